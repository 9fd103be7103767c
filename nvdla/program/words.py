"""Operations in words: what each computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvdla.descriptors.enums import (
    Activation,
    ConvMode,
    DataFormat,
    OpType,
    PoolMode,
    RubikMode,
    SdpAlu,
    SdpMode,
    SdpType,
)
from nvdla.descriptors.task import DlaOperation, EmuOperation


def _convolution(operation: DlaOperation) -> str:
    op, surface = operation.op, operation.surface
    kernels = surface.dst_data.channel
    words = [
        f"{kernels} kernels {op.kernel_width_csc}x{op.kernel_height_csc}x{op.kernel_channel_csc}",
        f"stride {op.conv_stride_x},{op.conv_stride_y}",
    ]
    padding = (op.pad_x_left, op.pad_x_right, op.pad_y_top, op.pad_y_bottom)
    if any(padding):
        words.append("pad left,right,top,bottom " + ",".join(map(str, padding)))
    if (op.dilation_x, op.dilation_y) != (1, 1):
        words.append(f"dilation {op.dilation_x},{op.dilation_y}")
    if op.conv_mode == ConvMode.WINOGRAD:
        words.append("winograd")
    if op.data_format != DataFormat.FEATURE:
        words.append(f"image {DataFormat(op.data_format).name}")
    words += [name for name in ("data_reuse", "weight_reuse", "weight_format") if getattr(op, name)]
    return ", ".join(words).replace("weight_format", "compressed weights").replace("_", " ")


def _sdp(operation: DlaOperation) -> str:
    op = operation.op
    stages = [_sdp_stage(name, getattr(op, f"{name}_op")) for name in ("x1", "x2", "y")]
    convert = op.out_cvt
    if convert.enable or convert.scale not in (0, 1) or convert.truncate:
        stages.append(f"out (x - {convert.offset}) * {convert.scale} >> {convert.truncate}")
    return "; ".join(stage for stage in stages if stage) or "copy"


def _sdp_stage(name: str, stage: Any) -> str:
    if not stage.enable:
        return ""
    words = {
        SdpType.MUL: ["mul"],
        SdpType.ADD: [SdpAlu(stage.alu_type).name.lower()],
        SdpType.BOTH: [SdpAlu(stage.alu_type).name.lower(), "mul"],
    }.get(stage.type, [])
    if words:
        words.append(SdpMode(stage.mode).name.lower().replace("_", " "))
    if stage.act != Activation.NONE:
        words.append(Activation(stage.act).name.lower())
    return f"{name.upper()} {' '.join(words)}" if words else ""


def _pdp(operation: DlaOperation) -> str:
    op = operation.op
    padding = (op.pad_left, op.pad_right, op.pad_top, op.pad_bottom)
    text = f"{PoolMode(op.pool_mode).name.lower()} {op.pool_width + 1}x{op.pool_height + 1}"
    text += f", stride {op.stride_x},{op.stride_y}"
    if any(padding):
        text += ", pad left,right,top,bottom " + ",".join(map(str, padding))
    return text + (f", width split in {op.split_num}" if op.split_num > 1 else "")


def _cdp(operation: DlaOperation) -> str:
    return f"normalise over {operation.op.local_size} channels"


def _rubik(operation: DlaOperation) -> str:
    op = operation.op
    return f"{RubikMode(op.mode).name.lower()}, stride {op.stride_x},{op.stride_y}"


def _bdma(operation: DlaOperation) -> str:
    return f"{operation.surface.num_transfers} transfers"


DESCRIBE: dict[OpType, Callable[[DlaOperation], str]] = {
    OpType.BDMA: _bdma,
    OpType.CONV: _convolution,
    OpType.SDP: _sdp,
    OpType.PDP: _pdp,
    OpType.CDP: _cdp,
    OpType.RUBIK: _rubik,
}


def describe(operation: DlaOperation | EmuOperation) -> str:
    """An operation in words: "20 kernels 5 x 5 x 1, stride 1,1"."""
    if isinstance(operation, EmuOperation):
        return operation.op_type.name.lower()
    return DESCRIBE[operation.op_type](operation)
