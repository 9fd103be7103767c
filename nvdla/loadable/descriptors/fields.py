"""Fields of descriptors as text: names, values, explanations.

    for each in fields(surface):
        print(each.offset, each.name, each.value, each.meaning)

Nested structures and arrays are walked in depth, with names such as ``src_data.width`` and ``consumers[2].index``.
Numbers in long arrays (tables, padding) come as one field whose value is a list.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvdla.loadable.descriptors import enums
from nvdla.loadable.descriptors.enums import OpType
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.precision import Precision
from nvdla.util.registry import OpenEnum

#: (structure, field) -> enum of its numbers
ENUMS: dict[tuple[str, str], type[OpenEnum | Precision]] = {
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
    ("ConvOp", "in_precision"): Precision,
    ("ConvOp", "out_precision"): Precision,
    ("SdpOp", "src_precision"): Precision,
    ("SdpOp", "dst_precision"): Precision,
    ("SdpOp", "conv_mode"): enums.ConvMode,
    ("SdpStage", "alu_type"): enums.SdpAlu,
    ("SdpStage", "type"): enums.SdpType,
    ("SdpStage", "mode"): enums.SdpMode,
    ("SdpStage", "act"): enums.Activation,
    ("SdpStage", "precision"): Precision,
    ("PdpOp", "pool_mode"): enums.PoolMode,
    ("PdpOp", "precision"): Precision,
    ("CdpOp", "in_precision"): Precision,
    ("CdpOp", "out_precision"): Precision,
    ("RubikOp", "mode"): enums.RubikMode,
    ("RubikOp", "precision"): Precision,
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


#: structure -> field -> its line; "*" is for structures that share a field of the same sense
EXPLANATIONS: dict[str, dict[str, str]] = {
    "*": {
        "op_type": "engine that the operation is for",
        "index": "number in the operation list, -1 = none",
        "in_precision": "element type of the input",
        "out_precision": "element type of the output",
        "src_precision": "element type of the input",
        "dst_precision": "element type of the output",
        "precision": "element type",
        "stride_x": "distance from one window to the next, in columns",
        "stride_y": "distance from one window to the next, in lines",
        "lut_index": "number in the task's list of lookup tables, -1 = none",
        "batch_stride": "bytes from one image of a hardware batch to the next",
        "conv_mode": "direct, or Winograd (4 x 4 tiles of transformed data)",
        "num_transfers": "number of transfers",
    },
    "CommonOpDesc": {
        "roi_index": "region of interest",
        "dependency_count": "events that must happen before the operation is enabled",
    },
    "Consumer": {"event": "event of this operation that the consumer waits for"},
    "DataCube": {
        "type": "DRAM, CVSRAM, or on the fly between two engines",
        "address": "index in the task's address list, -1 = none",
        "offset": "bytes added to the address",
        "size": "bytes",
        "width": "columns",
        "height": "lines",
        "channel": "channels",
        "line_stride": "bytes from a line to the next",
        "surf_stride": "bytes from a surface (one atom of channels) to the next",
        "plane_stride": "bytes from a plane to the next (planar layouts only)",
    },
    "CvtParam": {
        "scale": "factor of the converter",
        "truncate": "right shift after the multiplication, with rounding",
        "enable": "whether the converter is on",
        "offset": "subtracted before multiplying",
    },
    "ConvOp": {
        "data_reuse": "reuse the data that the previous convolution left in the buffer",
        "weight_reuse": "reuse the weights that the previous convolution left in the buffer",
        "skip_data_rls": "leave the data in the buffer for the next convolution",
        "skip_weight_rls": "leave the weights in the buffer for the next convolution",
        "entry_per_slice": "entries of the convolution buffer per line of data",
        "data_format": "feature cube, or pixel format of an image",
        "pixel_mapping": "order of an image's pixels in memory",
        "fetch_grain": "lines that are fetched at a time",
        "batch": "images of a hardware batch",
        "weight_format": "weights uncompressed, or compressed (without zeros, with a mask)",
        "data_bank": "banks of the convolution buffer for data",
        "weight_bank": "banks of the convolution buffer for weights",
        "post_extension": "lines of an image that are multiplied at once: 0 one, 1 two, 2 four",
        "pixel_override": "sign of an image's pixels, overrides that of the format",
        "release": "lines of data that are released when the convolution ends",
        "input_width_csc": "input columns of the sequencer (extended, for images)",
        "input_height_csc": "input lines of the sequencer",
        "input_channel_csc": "input channels of the sequencer",
        "kernel_width_csc": "columns of a kernel",
        "kernel_height_csc": "lines of a kernel",
        "kernel_channel_csc": "channels of a kernel",
        "input_width_cmac": "columns of the result",
        "input_height_cmac": "lines of the result",
        "bytes_per_kernel": "bytes of one kernel",
        "mean_ry": "mean of red, or Y, subtracted from pixels",
        "mean_gu": "mean of green, or U",
        "mean_bv": "mean of blue, or V",
        "mean_ax": "mean of alpha",
        "mean_format": "whether means are subtracted",
        "conv_stride_x": "distance of the kernel's positions, in columns",
        "conv_stride_y": "distance of the kernel's positions, in lines",
        "pad_x_left": "columns of padding on the left",
        "pad_x_right": "columns of padding on the right",
        "pad_y_top": "lines of padding above",
        "pad_y_bottom": "lines of padding below",
        "dilation_x": "columns from one tap of a kernel to the next",
        "dilation_y": "lines from one tap of a kernel to the next",
        "pra_truncate": "right shift before the Winograd transform of the data",
        "pad_val": "value of padding",
    },
    "SdpStage": {
        "enable": "whether the stage is on",
        "alu_type": "function of the adder: max, min, sum, or compare",
        "type": "adder, multiplier, both, or none",
        "mode": "one operand per layer, per channel, or per element",
        "act": "activation: none, ReLU, lookup table",
        "shift_value": "left shift of the adder's operand",
        "truncate": "right shift after the multiplier, with rounding",
        "precision": "element type of the operands",
        "alu_operand": "operand of the adder, if there is one per layer",
        "mul_operand": "operand of the multiplier, if there is one per layer",
    },
    "SdpOp": {"batch_num": "images of a hardware batch"},
    "PdpOp": {
        "partial_in_width_first": "input columns of the first part, if the width is split",
        "partial_in_width_mid": "input columns of the parts between",
        "partial_in_width_last": "input columns of the last part",
        "partial_width_first": "output columns of the first part",
        "partial_width_mid": "output columns of the parts between",
        "partial_width_last": "output columns of the last part",
        "split_num": "number of parts of the width",
        "pool_mode": "average, maximum or minimum",
        "pool_width": "columns of a window, minus 1",
        "pool_height": "lines of a window, minus 1",
        "pad_left": "columns of padding on the left",
        "pad_right": "columns of padding on the right",
        "pad_top": "lines of padding above",
        "pad_bottom": "lines of padding below",
        "padding_value": "sum of the padding in a window, for 1 to 7 padded columns",
    },
    "CdpOp": {
        "local_size": "channels per sum of squares",
        "bypass_sqsum": "look up the value itself, not its sum of squares",
        "bypass_out_mul": "return the result of the lookup, not multiplied by the value",
    },
    "RubikOp": {"mode": "contract, split or merge"},
    "BdmaSurface": {
        "source_type": "memory of the source",
        "destination_type": "memory of the destination",
    },
    "BdmaTransfer": {
        "source_address": "index in the task's address list",
        "destination_address": "index in the task's address list",
        "line_size": "bytes of a line",
        "line_repeat": "lines of a surface",
        "source_line": "bytes from a line of the source to the next",
        "destination_line": "bytes from a line of the destination to the next",
        "surface_repeat": "surfaces",
        "source_surface": "bytes from a surface of the source to the next",
        "destination_surface": "bytes from a surface of the destination to the next",
    },
    "LutParam": {
        "linear_exp_table": "table with exponential or coarse intervals (LE)",
        "linear_only_table": "table with even, fine intervals (LO)",
        "linear_exp_start": "start of the range of LE",
        "linear_exp_end": "end of the range of LE",
        "linear_only_start": "start of the range of LO",
        "linear_only_end": "end of the range of LO",
        "hybrid_priority": "table that is used if both ranges contain the number",
        "underflow_priority": "table that is used below both ranges",
        "overflow_priority": "table that is used above both ranges",
        "method": "intervals of LE: powers of two, or linear",
    },
    "LutOffset": {
        "exp_offset": "exponent of LE's first interval",
        "frac_bits": "interval of a linear table, as a right shift",
    },
    "FloatData": {"scale": "slope outside the table", "shifter": "right shift of the product with the slope"},
    "Slope": {"data_f": "slope outside the table, as the bits of an fp16 number"},
    "EmuCommonOp": {
        "input_scale_factor": "real value of one unit of the input",
        "output_scale_factor": "real value of one unit of the output",
    },
    "EmuSoftmaxOp": {"axis": "axis that is normalized"},
    "EmuPowerOp": {
        "power": "exponent of (shift + scale * x) ** power",
        "scale": "factor of (shift + scale * x) ** power",
        "shift": "offset of (shift + scale * x) ** power",
    },
    "ConvSurface": {
        "offset_u": "bytes from the first plane of an image to the second",
        "in_line_uv_stride": "bytes from a line of the second plane to the next",
    },
}
for _buffer in ("EmuBuffer", "OldEmuBuffer"):
    EXPLANATIONS[_buffer] = {
        "address_index": "index in the task's address list",
        "address_index_offset": "bytes added to the address",
        "size": "bytes",
        "format": "element type and atom",
        "width": "columns",
        "height": "lines",
        "channel": "channels",
        "line_stride": "bytes from a line to the next",
        "surf_stride": "bytes from a surface to the next",
    }


def explain(structure: str, field: str) -> str | None:
    """Return the explanation of ``field`` of ``structure`` (its class's name); None if its name is enough."""
    own = EXPLANATIONS.get(structure, {}).get(field)
    return own or EXPLANATIONS["*"].get(field)


_C_NAMES = {"c_byte": "int8", "c_ubyte": "uint8", "c_short": "int16", "c_ushort": "uint16", "c_int": "int32"}
_C_NAMES |= {"c_uint": "uint32", "c_long": "int64", "c_ulong": "uint64", "c_float": "float32"}

#: a structure of the firmware's
CtypesRecord = ctypes.Structure | ctypes.Union
#: union members of OperationContainer and SurfaceContainer begin with these names, in the order of OpType
MEMBERS = tuple(kind.name.lower() for kind in OpType)


@dataclass(frozen=True)
class FieldView:
    """One field. ``offset`` counts bytes from ``base``; ``type`` is for people ("uint16", "int16[65]").

    ``value`` is an int, a float or a list of them; ``meaning`` the name of an enum's number, else None. ``owner``: the
    structure that it is a field of.
    """

    name: str
    offset: int
    size: int
    type: str
    value: Any
    meaning: str | None
    owner: str = ""

    @property
    def explanation(self) -> str | None:
        """Explanation of the field in one line; None if its name is enough."""
        return explain(self.owner, self.name.rpartition(".")[2])

    @property
    def reserved(self) -> bool:
        """True if the field is only padding."""
        return self.name.rpartition(".")[2].startswith(("reserved", "array_reserved"))


@by_annotations
def fields(structure: CtypesRecord, base: int = 0, prefix: str = "") -> Iterator[FieldView]:
    """Fields of a structure in memory order; ``base`` and ``prefix`` are put before offsets and names.

    All members of a union are yielded (they share their offset). For operation and surface containers choose the member
    first, with :func:`member`.
    """
    for name, kind, *_ in structure._fields_:
        place = getattr(type(structure), name)
        value = getattr(structure, name)
        yield from _walk(type(structure).__name__, name, kind, value, base + place.offset, prefix + name)


@by_annotations
def member(container: CtypesRecord, op_type: int) -> Any:
    """The structure inside an operation, surface or stat container that ``op_type`` selects, None for unknown types."""
    if not 0 <= op_type < len(MEMBERS):
        return None
    wanted = MEMBERS[op_type]
    return next((getattr(container, name) for name, *_ in container._fields_ if name.startswith(wanted)), None)


@by_annotations
def to_dict(structure: CtypesRecord) -> Document:
    """A structure as plain nested data (ints, floats, lists, dicts), without padding."""
    plain = {}
    for name, *_ in structure._fields_:
        if not name.startswith(("reserved", "array_reserved")):
            plain[name] = _plain(getattr(structure, name))
    return plain


def _plain(value: object) -> object:
    if isinstance(value, ctypes.Array):
        return [_plain(item) for item in value]
    if isinstance(value, CtypesRecord):
        return to_dict(value)
    return value


def _walk(owner: str, field: str, kind: Any, value: object, offset: int, name: str) -> Iterator[FieldView]:
    if isinstance(value, ctypes.Array):
        element = kind._type_
        if issubclass(element, CtypesRecord):
            for index, item in enumerate(value):
                yield from fields(item, offset + index * ctypes.sizeof(element), f"{name}[{index}].")
        else:
            shape = f"{_type_name(element)}[{len(value)}]"
            yield FieldView(name, offset, ctypes.sizeof(kind), shape, list(value), None, owner)
    elif isinstance(value, CtypesRecord):
        yield from fields(value, offset, f"{name}.")
    else:
        meaning = describe(owner, field, value)
        yield FieldView(name, offset, ctypes.sizeof(kind), _type_name(kind), value, meaning, owner)


def _type_name(kind: type) -> str:
    return str(_C_NAMES.get(kind.__name__, kind.__name__))
