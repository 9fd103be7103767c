"""Operations as rows: what each computes, on what, and what it waits for."""

from __future__ import annotations

from typing import Any

from nvdla.argument_kinds import by_annotations
from nvdla.descriptors import EmuOperation
from nvdla.descriptors.enums import MemType, OpType
from nvdla.errors import shape_text
from nvdla.program.accesses import Shape
from nvdla.program.operation import Dependency, Operation
from nvdla.program.program import Program

Row = dict[str, Any]


@by_annotations
def operation_rows(program: Program) -> list[Row]:
    """Every operation of every task (its first region of interest), in list order."""
    return [_row(operation) for operation in _operations(program)]


def _operations(program: Program) -> list[Operation]:
    places = {task: place for place, task in enumerate(program.tasks)}
    return sorted((each for each in program.operations if each.roi == 0), key=lambda each: places[each.task])


def _row(operation: Operation) -> Row:
    decoded = operation.descriptors
    if isinstance(decoded, EmuOperation):
        title, what = decoded.op_type.name, decoded.op_type.name.lower()
        places = [f"address {each.address_index}" for each in (decoded.src, decoded.dst)]
    else:
        title, what = decoded.op_type.name, operation.what
        places = [] if operation.type == OpType.BDMA else [place_of(cube) for cube in _ends(operation)]
    return {
        "task": operation.task,
        "operation": operation.index,
        "type": title,
        "precision": operation.precision,
        "input": _shape(operation.input),
        "output": _shape(operation.output),
        "source": places[0] if places else None,
        "destination": places[1] if places else None,
        "what": what,
        "waits_for": operation.waits_for,
        "consumers": [f"{each.type.name} {each.target[2]} on {_event(each)}" for each in operation.dependencies],
    }


def _ends(operation: Operation) -> tuple[Any, Any]:
    return operation.surface.src_data, operation.surface.dst_data


def _shape(shape: Shape | None) -> str | None:
    """ "6x24x24": channels, height, width of a data cube."""
    return None if shape is None else shape_text(shape)


def place_of(cube: Any) -> str:
    """Where a data cube lies: on the fly, or memory and address index."""
    if cube.type == MemType.HW:
        return "on the fly"
    if cube.address == -1:
        return "none"
    offset = f"+{cube.offset}" if cube.offset else ""
    memory = "CVSRAM " if cube.type == MemType.CV else ""
    return f"{memory}address {cube.address}{offset}"


def _event(dependency: Dependency) -> str:
    return f"{dependency.event} (fused parent)" if dependency.on_the_fly else dependency.event


@by_annotations
def graph_rows(program: Program) -> list[Row]:
    """Every arrow of the dependency graphs: who lets whom go on, at which event."""
    return [
        {
            "task": operation.task,
            "from": operation.index,
            "from_type": operation.engine.upper(),
            "event": _event(each),
            "to": each.target[2],
            "to_type": each.type.name,
        }
        for operation in _operations(program)
        for each in operation.dependencies
    ]
