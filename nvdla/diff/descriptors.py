"""Differences of the firmware's descriptors, task by task, operation by operation, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from nvdla.descriptors.enums import OpType
from nvdla.descriptors.fields import FieldView, fields
from nvdla.descriptors.task import DlaTask, EmuTask
from nvdla.diff.changes import Change
from nvdla.program.handover import by_task
from nvdla.program.operation import Operation
from nvdla.program.program import Program


@dataclass(frozen=True)
class TaskPair:
    """A task of both loadables; ``pairs``: their operations side by side, None where one has no counterpart."""

    id: int
    a: DlaTask | EmuTask
    b: DlaTask | EmuTask
    matched_by: str
    pairs: list[tuple[Operation | None, Operation | None]]


def task_pairs(a: Program, b: Program) -> list[TaskPair]:
    """Tasks of equal id and kind."""
    ours, theirs = by_task(a.operations), by_task(b.operations)
    return [
        TaskPair(number, task, b.tasks[number], *_pair_up(ours.get(number, []), theirs.get(number, [])))
        for number, task in a.tasks.items()
        if number in b.tasks and type(task) is type(b.tasks[number])
    ]


def _pair_up(
    ours: list[Operation], theirs: list[Operation]
) -> tuple[str, list[tuple[Operation | None, Operation | None]]]:
    """By index where both have the same types of operations, else by the longest common runs of types and shapes."""
    if [_kind(each) for each in ours] == [_kind(each) for each in theirs]:
        return "index", list(zip(ours, theirs, strict=True))
    matcher = SequenceMatcher(None, [_signature(each) for each in ours], [_signature(each) for each in theirs], False)
    pairs: list[tuple[Operation | None, Operation | None]] = []
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag == "equal":
            pairs += zip(ours[start:end], theirs[other_start:other_end], strict=True)
        else:
            pairs += [(each, None) for each in ours[start:end]]
            pairs += [(None, each) for each in theirs[other_start:other_end]]
    return "shape", pairs


def _kind(operation: Operation) -> int:
    return operation.descriptors.op_type


def _signature(operation: Operation) -> tuple[Any, ...]:
    return (_kind(operation), *(() if operation.type is None else operation.output or ()))


def place(operation: Operation) -> str:
    """ "operation 0/3 (CONV)"."""
    return f"operation {operation.label} ({operation.descriptors.op_type.name})"


def descriptor_changes(pair: TaskPair) -> Iterator[Change]:
    """Everything that differs in a task's descriptors."""
    yield from _structures("network", f"task {pair.id}", pair.a.network, pair.b.network)
    for ours, theirs in pair.pairs:
        if ours is None or theirs is None:
            for operation, what in ((ours, "only in a"), (theirs, "only in b")):
                if operation is not None:
                    yield Change("operation", place(operation), None, what)
        elif ours.type is None:
            yield from _cpu_changes(ours, theirs)
        else:
            yield from _dla_changes(ours, theirs)
    if isinstance(pair.a, DlaTask) and isinstance(pair.b, DlaTask):
        for number, (left, right) in enumerate(zip(pair.a.luts, pair.b.luts, strict=False)):
            yield from _structures("lut", f"task {pair.id} lut {number}", left, right)


def _cpu_changes(ours: Operation, theirs: Operation) -> Iterator[Change]:
    where = place(ours)
    for name in ("op", "src", "dst"):
        prefix = "" if name == "op" else f"{name}_data."
        left, right = getattr(ours.descriptors, name), getattr(theirs.descriptors, name)
        yield from _structures("cpu", where, left, right, prefix)


def _dla_changes(ours: Operation, theirs: Operation) -> Iterator[Change]:
    where = place(ours)
    if ours.index != theirs.index:
        where += f" and {theirs.label}"
    yield from _structures("operation", where, ours.op, theirs.op)
    yield from _structures("surface", where, ours.surface, theirs.surface)
    yield from _structures("graph", where, ours.common, theirs.common)


def _structures(area: str, where: str, left: Any, right: Any, prefix: str = "") -> Iterator[Change]:
    """Fields of two structures of one kind. What only one ABI has counts as 0 in the other."""
    ours = {each.name: each for each in fields(left) if not each.reserved}
    theirs = {each.name: each for each in fields(right) if not each.reserved}
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        one, other = ours.get(name), theirs.get(name)
        if not _equal(one, other):
            yield _change(area, where, prefix + _readable(area, name), one, other)


def _readable(area: str, name: str) -> str:
    """Consumers by the engine of their slot."""
    if area == "graph" and name.startswith("consumers["):
        number, _, rest = name[len("consumers[") :].partition("].")
        return f"consumers[{OpType(int(number)).name}].{rest}"
    return name


def _equal(one: FieldView | None, other: FieldView | None) -> bool:
    values = [0 if each is None else each.value for each in (one, other)]
    return values[0] == values[1]


def _change(area: str, where: str, name: str, one: FieldView | None, other: FieldView | None) -> Change:
    left, right = (None if each is None else each.value for each in (one, other))
    if isinstance(left, list) and isinstance(right, list):
        different = [at for at, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]]
        first = different[0]
        name = f"{name}[{first}]" if len(different) == 1 else f"{name}[{first}] and {len(different) - 1} more"
        left, right = left[first], right[first]
    meanings = (None if each is None else each.meaning for each in (one, other))
    return Change(area, where, name, "changed", left, right, *meanings)
