"""Operations as rows: what each computes, on what, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvdla.descriptors import DlaOperation, DlaTask, EmuOperation, EmuTask
from nvdla.descriptors.enums import Event, MemType, OpType
from nvdla.descriptors.meaning import precisions_of
from nvdla.program.words import describe

Row = dict[str, Any]
Tasks = Mapping[int, DlaTask | EmuTask]


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
        "precision": source.element_format.title,
        "input": shape_of(source),
        "output": shape_of(target),
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
        "what": describe(operation),
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
    """ "6x24x24": channels, height, width of a data cube."""
    return f"{cube.channel}x{cube.height}x{cube.width}"


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
    """Input and output precision of an operation: "int8", "fp16 -> int8", None for BDMA."""
    found = precisions_of(operation.op_type, operation.op)
    if found is None:
        return None
    source, destination = found
    return source.title if source == destination else f"{source.title} -> {destination.title}"


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
