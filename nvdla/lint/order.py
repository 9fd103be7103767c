"""Which operations of a task certainly run before which others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from nvdla.descriptors.enums import Event, MemType, OpType
from nvdla.descriptors.task import DlaTask

_AFTER = {OpType.CONV: OpType.SDP, OpType.SDP: OpType.PDP}


class Order:
    """The order that a dependency graph enforces, of ROI 0.

    One operation precedes another when it is earlier on the same engine, or when completion events lead from one to
    the other. Operations that hand over on the fly are one unit: whoever waits for the last waits for all.
    """

    def __init__(self, task: DlaTask) -> None:
        self._task = task
        self._count = task.network.num_operations
        self._known: dict[int, set[int]] = {}

    def is_ordered(self, one: int, other: int) -> bool:
        """Whether one of two operations certainly precedes the other; operations of one unit do."""
        first, second = self._unit[one], self._unit[other]
        return first == second or second in self._after(first) or first in self._after(second)

    @cached_property
    def _unit(self) -> list[int]:
        """The unit of each operation, named by its last operation."""
        unit = list(range(self._count))
        for giver, taker in handovers(self._task):
            unit[self._root(unit, giver)] = self._root(unit, taker)
        return [self._root(unit, index) for index in range(self._count)]

    @staticmethod
    def _root(unit: list[int], index: int) -> int:
        while unit[index] != index:
            index = unit[index]
        return index

    @cached_property
    def _follows(self) -> list[set[int]]:
        """For each unit the units that wait for its completion, or come next on one of its engines."""
        follows: list[set[int]] = [set() for _ in range(self._count)]
        for index in range(self._count):
            common = self._task.dependencies[index]
            for kind, consumer in enumerate(common.consumers):
                if 0 <= consumer.index < self._count and (
                    consumer.event == Event.OP_COMPLETED or kind == common.op_type
                ):
                    follows[self._unit[index]].add(self._unit[consumer.index])
        return follows

    def _after(self, unit: int) -> set[int]:
        """All units that certainly come after one."""
        if unit not in self._known:
            todo, seen = list(self._follows[unit]), set()
            while todo:
                each = todo.pop()
                if each not in seen:
                    seen.add(each)
                    todo.extend(self._follows[each])
            self._known[unit] = seen
        return self._known[unit]


def handovers(task: DlaTask) -> Iterator[tuple[int, int]]:
    """(giver, taker) of every hand-over on the fly, of ROI 0: who waits until the other is programmed, or, as its
    fused parent, is enabled."""
    count = task.network.num_operations
    pairs = set()
    for index in range(count):
        common = task.dependencies[index]
        after = _AFTER.get(common.op_type)
        if after is not None and common.consumers[after].event == Event.OP_PROGRAMMED:
            pairs.add((index, common.consumers[after].index))
        pairs.add((common.fused_parent.index, index))
    for giver, taker in sorted(pairs):
        if 0 <= giver < count and 0 <= taker < count and _takes_on_the_fly(task, giver, taker):
            yield giver, taker


def _takes_on_the_fly(task: DlaTask, giver: int, taker: int) -> bool:
    kind = task.dependencies[taker].op_type
    if _AFTER.get(task.dependencies[giver].op_type) != kind:
        return False
    surface = task.surface_containers[taker]
    cube = surface.sdp_surface.src_data if kind == OpType.SDP else surface.pdp_surface.src_data
    return cube.type == MemType.HW
