"""Which register holds which field of a descriptor, for the check of ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvdla.descriptors.enums import OpType
from nvdla.hardware.register_file import register_map
from nvdla.program.operation import Operation

# field of the descriptor ("src_data." ... are cubes of the surface) -> unit, register, field, what is subtracted
_CUBE = ("width", "height", "channel")
CONV = {
    "src_data.width": ("CDMA", "D_DATAIN_SIZE_0", "DATAIN_WIDTH", 1),
    "src_data.height": ("CDMA", "D_DATAIN_SIZE_0", "DATAIN_HEIGHT", 1),
    "src_data.channel": ("CDMA", "D_DATAIN_SIZE_1", "DATAIN_CHANNEL", 1),
    "dst_data.width": ("CACC", "D_DATAOUT_SIZE_0", "DATAOUT_WIDTH", 1),
    "dst_data.height": ("CACC", "D_DATAOUT_SIZE_0", "DATAOUT_HEIGHT", 1),
    "dst_data.channel": ("CACC", "D_DATAOUT_SIZE_1", "DATAOUT_CHANNEL", 1),
    "input_width_csc": ("CSC", "D_DATAIN_SIZE_EXT_0", "DATAIN_WIDTH_EXT", 1),
    "input_height_csc": ("CSC", "D_DATAIN_SIZE_EXT_0", "DATAIN_HEIGHT_EXT", 1),
    "input_channel_csc": ("CSC", "D_DATAIN_SIZE_EXT_1", "DATAIN_CHANNEL_EXT", 1),
    "kernel_width_csc": ("CSC", "D_WEIGHT_SIZE_EXT_0", "WEIGHT_WIDTH_EXT", 1),
    "kernel_height_csc": ("CSC", "D_WEIGHT_SIZE_EXT_0", "WEIGHT_HEIGHT_EXT", 1),
    "kernel_channel_csc": ("CSC", "D_WEIGHT_SIZE_EXT_1", "WEIGHT_CHANNEL_EXT", 1),
    "conv_stride_x": ("CDMA", "D_CONV_STRIDE", "CONV_X_STRIDE", 1),
    "conv_stride_y": ("CDMA", "D_CONV_STRIDE", "CONV_Y_STRIDE", 1),
    "dilation_x": ("CSC", "D_DILATION_EXT", "X_DILATION_EXT", 1),
    "dilation_y": ("CSC", "D_DILATION_EXT", "Y_DILATION_EXT", 1),
    "pad_x_left": ("CDMA", "D_ZERO_PADDING", "PAD_LEFT", 0),
    "pad_x_right": ("CDMA", "D_ZERO_PADDING", "PAD_RIGHT", 0),
    "pad_y_top": ("CDMA", "D_ZERO_PADDING", "PAD_TOP", 0),
    "pad_y_bottom": ("CDMA", "D_ZERO_PADDING", "PAD_BOTTOM", 0),
    "data_bank": ("CDMA", "D_BANK", "DATA_BANK", 1),
    "weight_bank": ("CDMA", "D_BANK", "WEIGHT_BANK", 1),
    "entry_per_slice": ("CDMA", "D_ENTRY_PER_SLICE", "ENTRIES", 1),
    "fetch_grain": ("CDMA", "D_FETCH_GRAIN", "GRAINS", 1),
    "bytes_per_kernel": ("CDMA", "D_WEIGHT_SIZE_0", "BYTE_PER_KERNEL", 1),
    "out_cvt.truncate": ("CACC", "D_CLIP_CFG", "CLIP_TRUNCATE", 0),
    "in_cvt.truncate": ("CDMA", "D_CVT_CFG", "CVT_TRUNCATE", 0),
    "pra_truncate": ("CSC", "D_PRA_CFG", "PRA_TRUNCATE", 0),
}
SDP = {
    "src_data.width": ("SDP", "D_DATA_CUBE_WIDTH", "WIDTH", 1),
    "src_data.height": ("SDP", "D_DATA_CUBE_HEIGHT", "HEIGHT", 1),
    "src_data.channel": ("SDP", "D_DATA_CUBE_CHANNEL", "CHANNEL", 1),
    "out_cvt.truncate": ("SDP", "D_CVT_SHIFT", "CVT_SHIFT", 0),
    "x1_op.shift_value": ("SDP", "D_DP_BS_ALU_CFG", "BS_ALU_SHIFT_VALUE", 0),
    "x2_op.shift_value": ("SDP", "D_DP_BN_ALU_CFG", "BN_ALU_SHIFT_VALUE", 0),
    "batch_num": ("SDP", "D_FEATURE_MODE_CFG", "BATCH_NUMBER", 1),
}
PDP = {
    "src_data.width": ("PDP", "D_DATA_CUBE_IN_WIDTH", "CUBE_IN_WIDTH", 1),
    "src_data.height": ("PDP", "D_DATA_CUBE_IN_HEIGHT", "CUBE_IN_HEIGHT", 1),
    "src_data.channel": ("PDP", "D_DATA_CUBE_IN_CHANNEL", "CUBE_IN_CHANNEL", 1),
    "dst_data.width": ("PDP", "D_DATA_CUBE_OUT_WIDTH", "CUBE_OUT_WIDTH", 1),
    "dst_data.height": ("PDP", "D_DATA_CUBE_OUT_HEIGHT", "CUBE_OUT_HEIGHT", 1),
    "stride_x": ("PDP", "D_POOLING_KERNEL_CFG", "KERNEL_STRIDE_WIDTH", 1),
    "stride_y": ("PDP", "D_POOLING_KERNEL_CFG", "KERNEL_STRIDE_HEIGHT", 1),
    "pad_left": ("PDP", "D_POOLING_PADDING_CFG", "PAD_LEFT", 0),
    "pad_right": ("PDP", "D_POOLING_PADDING_CFG", "PAD_RIGHT", 0),
    "pad_top": ("PDP", "D_POOLING_PADDING_CFG", "PAD_TOP", 0),
    "pad_bottom": ("PDP", "D_POOLING_PADDING_CFG", "PAD_BOTTOM", 0),
}
CDP = {
    "src_data.width": ("CDP_RDMA", "D_DATA_CUBE_WIDTH", "WIDTH", 1),
    "src_data.height": ("CDP_RDMA", "D_DATA_CUBE_HEIGHT", "HEIGHT", 1),
    "src_data.channel": ("CDP_RDMA", "D_DATA_CUBE_CHANNEL", "CHANNEL", 1),
    "in_cvt.truncate": ("CDP", "D_DATIN_SHIFTER", "DATIN_SHIFTER", 0),
    "out_cvt.truncate": ("CDP", "D_DATOUT_SHIFTER", "DATOUT_SHIFTER", 0),
}
FIELDS = {OpType.CONV: CONV, OpType.SDP: SDP, OpType.PDP: PDP, OpType.CDP: CDP}
#: without Winograd the registers of these are written 0
WINOGRAD_ONLY = ("pra_truncate",)


def register_problems(subject: Operation) -> Iterator[str]:
    """Fields of the operation whose values the configuration's registers cannot hold."""
    registers = register_map(subject.config.register_map)
    for path, (unit, name, field, minus) in (FIELDS.get(subject.type, {}) if subject.type is not None else {}).items():
        register = registers.units.get(unit, {}).get(name)
        if register is None or field not in register.fields:
            continue
        value = _value(subject, path) - minus
        most = register.fields[field].mask
        if not 0 <= value <= most:
            yield f"{path} is {value + minus}; {unit}.{name}.{field} holds {minus} to {most + minus}"


def _value(subject: Operation, path: str) -> int:
    first, _, rest = path.partition(".")
    owner: Any = subject.surface if first.endswith("_data") else subject.op
    value = getattr(owner, first)
    return getattr(value, rest) if rest else value
