"""What the numbers in descriptors mean, for people. Kept apart so that parsing never depends on printing."""

from __future__ import annotations

from nvdla.descriptors import enums
from nvdla.open_enum import OpenEnum

#: (structure, field) -> enum of its numbers
ENUMS: dict[tuple[str, str], type[OpenEnum]] = {
    ("CommonOpDesc", "op_type"): enums.OpType,
    ("Consumer", "event"): enums.Event,
    ("DataCube", "type"): enums.MemType,
    ("BdmaSurface", "source_type"): enums.MemType,
    ("BdmaSurface", "destination_type"): enums.MemType,
    ("ConvOp", "conv_mode"): enums.ConvMode,
    ("ConvOp", "data_format"): enums.DataFormat,
    ("ConvOp", "pixel_mapping"): enums.ImageMapping,
    ("ConvOp", "pixel_override"): enums.PixelOverride,
    ("ConvOp", "weight_format"): enums.WeightFormat,
    ("ConvOp", "mean_format"): enums.MeanFormat,
    ("ConvOp", "in_precision"): enums.Precision,
    ("ConvOp", "out_precision"): enums.Precision,
    ("SdpOp", "src_precision"): enums.Precision,
    ("SdpOp", "dst_precision"): enums.Precision,
    ("SdpOp", "conv_mode"): enums.ConvMode,
    ("SdpStage", "alu_type"): enums.SdpAlu,
    ("SdpStage", "type"): enums.SdpType,
    ("SdpStage", "mode"): enums.SdpMode,
    ("SdpStage", "act"): enums.Activation,
    ("SdpStage", "precision"): enums.Precision,
    ("PdpOp", "pool_mode"): enums.PoolMode,
    ("PdpOp", "precision"): enums.Precision,
    ("CdpOp", "in_precision"): enums.Precision,
    ("CdpOp", "out_precision"): enums.Precision,
    ("RubikOp", "mode"): enums.RubikMode,
    ("RubikOp", "precision"): enums.Precision,
    ("LutParam", "method"): enums.LutMethod,
    ("LutParam", "hybrid_priority"): enums.LutPriority,
    ("LutParam", "underflow_priority"): enums.LutPriority,
    ("LutParam", "overflow_priority"): enums.LutPriority,
    ("EmuCommonOp", "op_type"): enums.EmuOpType,
    ("EmuBuffer", "format"): enums.EmuFormat,
    ("OldEmuBuffer", "format"): enums.OldEmuFormat,
}

#: signed indices for which -1 says "none"
OPTIONAL_INDICES = {
    ("NetworkDesc", "lut_data_index"),
    ("NetworkDesc", "roi_array_index"),
    ("NetworkDesc", "surface_index"),
    ("NetworkDesc", "stat_list_index"),
    ("NetworkDesc", "input_layer"),
    ("Consumer", "index"),
    ("DataCube", "address"),
    ("BdmaTransfer", "source_address"),
    ("BdmaTransfer", "destination_address"),
    ("SdpOp", "lut_index"),
    ("CdpOp", "lut_index"),
    ("EmuBuffer", "address_index"),
    ("OldEmuBuffer", "address_index"),
}

#: stored as the number minus 1
STORED_MINUS_ONE = {("PdpOp", "pool_width"), ("PdpOp", "pool_height")}


def describe(structure: str, field: str, value: object) -> str | None:
    """The meaning of a field's value in words, None where the number speaks for itself."""
    key = (structure, field)
    if key in ENUMS and isinstance(value, int):
        return ENUMS[key](value).name
    if key in OPTIONAL_INDICES and value == -1:
        return "none"
    if key in STORED_MINUS_ONE and isinstance(value, int):
        return f"{value + 1} elements"
    return None
