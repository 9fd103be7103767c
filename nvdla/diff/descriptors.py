"""Differences of the firmware's descriptors, task by task, operation by operation, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from nvdla.descriptors import DlaTask, EmuTask, decode_tasks
from nvdla.descriptors.abi import Abi
from nvdla.descriptors.enums import OpType
from nvdla.descriptors.fields import FieldView, fields
from nvdla.descriptors.task import DlaOperation, EmuOperation
from nvdla.diff.differences import Change
from nvdla.loadable.model import Loadable

Operation = DlaOperation | EmuOperation


@dataclass(frozen=True)
class TaskPair:
    """A task of both loadables; ``pairs``: their operations side by side, None where one has no counterpart."""

    id: int
    a: DlaTask | EmuTask
    b: DlaTask | EmuTask
    matched_by: str
    pairs: list[tuple[Operation | None, Operation | None]]


def task_pairs(a: Loadable, b: Loadable, abis: tuple[Abi, Abi]) -> list[TaskPair]:
    """Tasks of equal id and kind. Raises DescriptorError for descriptors that cannot be read."""
    ours, theirs = decode_tasks(a, abis[0]), decode_tasks(b, abis[1])
    return [
        TaskPair(task_id, task, theirs[task_id], *_pair_up(task, theirs[task_id]))
        for task_id, task in ours.items()
        if task_id in theirs and type(task) is type(theirs[task_id])
    ]


def _operations(task: DlaTask | EmuTask) -> list[Operation]:
    """All operations, of every ROI."""
    if isinstance(task, EmuTask):
        return list(task.operations())
    return [operation for roi in range(task.network.num_rois) for operation in task.operations(roi)]


def _pair_up(a: DlaTask | EmuTask, b: DlaTask | EmuTask) -> tuple[str, list[tuple[Operation | None, Operation | None]]]:
    """By index where both have the same types of operations, else by the longest common runs of types and shapes."""
    ours, theirs = _operations(a), _operations(b)
    if [each.op_type for each in ours] == [each.op_type for each in theirs]:
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


def _signature(operation: Operation) -> tuple[Any, ...]:
    if isinstance(operation, EmuOperation):
        return (operation.op_type,)
    cube = getattr(operation.surface, "dst_data", None)
    return (operation.op_type, *((cube.channel, cube.height, cube.width) if cube is not None else ()))


def place(task_id: int, operation: Operation) -> str:
    """ "task 0 operation 3 (CONV)"."""
    roi = f" ROI {operation.roi}" if getattr(operation, "roi", 0) else ""
    return f"task {task_id} operation {operation.index}{roi} ({operation.op_type.name})"


def descriptor_changes(pair: TaskPair) -> Iterator[Change]:
    """Everything that differs in a task's descriptors."""
    yield from _structures("network", f"task {pair.id}", pair.a.network, pair.b.network)
    for ours, theirs in pair.pairs:
        if ours is None or theirs is None:
            operation = ours or theirs
            what = "only in a" if theirs is None else "only in b"
            yield Change("operation", place(pair.id, operation), None, what)
        elif isinstance(ours, EmuOperation):
            yield from _cpu_changes(pair.id, ours, theirs)
        else:
            yield from _dla_changes(pair.id, ours, theirs)
    if isinstance(pair.a, DlaTask):
        for number, (left, right) in enumerate(zip(pair.a.luts, pair.b.luts, strict=False)):
            yield from _structures("lut", f"task {pair.id} lut {number}", left, right)


def _cpu_changes(task_id: int, ours: EmuOperation, theirs: EmuOperation) -> Iterator[Change]:
    where = place(task_id, ours)
    for name in ("op", "src", "dst"):
        prefix = "" if name == "op" else f"{name}_data."
        yield from _structures("cpu", where, getattr(ours, name), getattr(theirs, name), prefix)


def _dla_changes(task_id: int, ours: DlaOperation, theirs: DlaOperation) -> Iterator[Change]:
    where = place(task_id, ours)
    if ours.index != theirs.index:
        where += f" / operation {theirs.index}"
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
