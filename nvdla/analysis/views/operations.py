"""Operations as rows: what each computes, on what, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvdla.descriptors import DlaOperation, DlaTask, EmuOperation, EmuTask
from nvdla.descriptors.enums import (
    Activation,
    ConvMode,
    DataFormat,
    Event,
    MemType,
    OpType,
    PoolMode,
    Precision,
    RubikMode,
    SdpAlu,
    SdpMode,
    SdpType,
)

Row = dict[str, Any]
Tasks = dict[int, DlaTask | EmuTask]


def operation_rows(tasks: Tasks) -> list[Row]:
    """Every operation of every task, in list order."""
    return [row for task_id, task in tasks.items() for row in _task_rows(task_id, task)]


def _task_rows(task_id: int, task: DlaTask | EmuTask) -> list[Row]:
    if isinstance(task, EmuTask):
        return [_cpu_row(task_id, operation) for operation in task.operations()]
    return [_dla_row(task_id, operation) for operation in task.operations()]


def _cpu_row(task_id: int, operation: EmuOperation) -> Row:
    source, target = operation.src, operation.dst
    return {
        "task": task_id,
        "operation": operation.index,
        "type": operation.op_type.name,
        "precision": source.element_format.name,
        "input": f"{source.channel} x {source.height} x {source.width}",
        "output": f"{target.channel} x {target.height} x {target.width}",
        "source": f"address {source.address_index}",
        "destination": f"address {target.address_index}",
        "what": operation.op_type.name.lower(),
        "waits_for": 0,
        "consumers": [],
    }


def _dla_row(task_id: int, operation: DlaOperation) -> Row:
    surface = operation.surface
    row = {
        "task": task_id,
        "operation": operation.index,
        "type": operation.op_type.name,
        "precision": precision_of(operation),
        "input": None,
        "output": None,
        "source": None,
        "destination": None,
        "what": DESCRIBE[operation.op_type](operation),
        "waits_for": operation.common.dependency_count,
        "consumers": [f"{OpType(kind).name} {index} on {event}" for index, kind, event in consumers_of(operation)],
    }
    if operation.op_type != OpType.BDMA:
        row |= {
            "input": shape_of(surface.src_data),
            "output": shape_of(surface.dst_data),
            "source": place_of(surface.src_data),
            "destination": place_of(surface.dst_data),
        }
    return row


def shape_of(cube: Any) -> str:
    """ "C x H x W" of a data cube."""
    return f"{cube.channel} x {cube.height} x {cube.width}"


def place_of(cube: Any) -> str:
    """Where a data cube lies: on the fly, or memory and address index."""
    if cube.type == MemType.HW:
        return "on the fly"
    if cube.address == -1:
        return "none"
    offset = f"+{cube.offset}" if cube.offset else ""
    memory = "CVSRAM " if cube.type == MemType.CV else ""
    return f"{memory}address {cube.address}{offset}"


def precision_of(operation: DlaOperation) -> str | None:
    """Input and output precision of an operation."""
    op = operation.op
    names = {
        OpType.CONV: ("in_precision", "out_precision"),
        OpType.SDP: ("src_precision", "dst_precision"),
        OpType.PDP: ("precision", "precision"),
        OpType.CDP: ("in_precision", "out_precision"),
        OpType.RUBIK: ("precision", "precision"),
    }.get(operation.op_type)
    if names is None:
        return None
    first, last = (Precision(getattr(op, name)).name for name in names)
    return first if first == last else f"{first} -> {last}"


def consumers_of(operation: DlaOperation) -> list[tuple[int, int, str]]:
    """(index, operation type, event) of each operation that waits for this one; a fused parent counts."""
    found = [
        (each.index, kind, Event(each.event).name)
        for kind, each in enumerate(operation.common.consumers)
        if each.index != -1
    ]
    parent = operation.common.fused_parent
    if parent.index != -1:
        found.append((parent.index, operation.op_type - 1, f"{Event(parent.event).name} (fused parent)"))
    return found


def _convolution(operation: DlaOperation) -> str:
    op, surface = operation.op, operation.surface
    kernels = surface.dst_data.channel
    words = [
        f"{kernels} kernels {op.kernel_width_csc} x {op.kernel_height_csc} x {op.kernel_channel_csc}",
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
    text = f"{PoolMode(op.pool_mode).name.lower()} {op.pool_width + 1} x {op.pool_height + 1}"
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


def graph_rows(tasks: Tasks) -> list[Row]:
    """Every arrow of the dependency graphs: who lets whom go on, at which event."""
    rows = []
    for task_id, task in tasks.items():
        if isinstance(task, EmuTask):
            continue
        for operation in task.operations():
            for index, kind, event in consumers_of(operation):
                rows.append(
                    {
                        "task": task_id,
                        "from": operation.index,
                        "from_type": operation.op_type.name,
                        "event": event,
                        "to": index,
                        "to_type": OpType(kind).name,
                    }
                )
    return rows
