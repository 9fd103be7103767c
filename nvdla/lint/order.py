"""Which operations of a task certainly run before which others."""

from __future__ import annotations

from collections.abc import Iterator

from nvdla.descriptors.enums import Event, MemType, OpType
from nvdla.descriptors.task import DlaTask

_AFTER = {OpType.CONV: OpType.SDP, OpType.SDP: OpType.PDP}


class Order:
    """The order that a dependency graph enforces, of ROI 0.

    One operation is finished before another begins when a completion event leads from one to the other, or when it is
    earlier on the same engine. Who hands over on the fly is finished when the one who takes is; and who takes begins
    after the one who hands over. Operations joined on the fly run at the same time: nothing orders them.
    """

    def __init__(self, task: DlaTask) -> None:
        self._task = task
        self._takers: dict[int, list[int]] = {}
        for giver, taker in handovers(task):
            self._takers.setdefault(giver, []).append(taker)
        self._known: dict[int, set[int]] = {}

    def is_ordered(self, one: int, other: int) -> bool:
        """Whether one of two operations is certainly finished before the other begins."""
        return other in self._after(one) or one in self._after(other)

    def _after(self, index: int) -> set[int]:
        """All operations that certainly begin after one is finished."""
        if index not in self._known:
            todo, seen = self._followers(index), set()
            while todo:
                each = todo.pop()
                if each not in seen:
                    seen.add(each)
                    todo += self._followers(each) + self._takers.get(each, [])
            self._known[index] = seen
        return self._known[index]

    def _followers(self, index: int) -> list[int]:
        """Who waits for the completion of an operation, or of those that it hands over to, or is next on its engine."""
        common = self._task.dependencies[index]
        count = self._task.network.num_operations
        found = [
            consumer.index
            for kind, consumer in enumerate(common.consumers)
            if 0 <= consumer.index < count and (consumer.event == Event.OP_COMPLETED or kind == common.op_type)
        ]
        for taker in self._takers.get(index, []):
            found += self._followers(taker)
        return found


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
