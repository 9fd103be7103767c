"""Which operations of a task certainly run before which others."""

from __future__ import annotations

from collections.abc import Mapping

from nvdla.descriptors.enums import Event, OpType
from nvdla.descriptors.task import DlaTask
from nvdla.program.operation import Key, Operation

#: operations that are looked at in all to find orders in one task
MOST_LOOKS = 1 << 22


class Order:
    """The order that a dependency graph enforces, of ROI 0.

    One operation is finished before another begins when a completion event leads from one to the other, or when it is
    earlier on the same engine. Who hands over on the fly is finished when the one who takes is; and who takes begins
    after the one who hands over. Operations joined on the fly run at the same time: nothing orders them.
    """

    def __init__(self, task: DlaTask, takers: Mapping[Key, Operation], *, overlap_of: OpType | None = None) -> None:
        """``takers``: who takes an operation's result on the fly (:attr:`nvdla.program.Program.takers`).

        ``overlap_of``: an engine whose next operation may begin while the one before is still at work, as the parts of
        the convolution pipeline do.
        """
        self._task = task
        self._overlap_of = overlap_of
        keys = ((task.task.id, 0, index) for index in range(task.network.num_operations))
        self._takers = {key[2]: [takers[key].index] for key in keys if key in takers}
        self._known: dict[int, set[int]] = {}
        self._work = 0

    def is_ordered(self, one: int, other: int) -> bool:
        """Whether one of two operations is certainly finished before the other begins. Graphs that no compiler makes
        can take longer to follow than is looked; then it is taken for true."""
        return other in self._after(one) or one in self._after(other) or self._work > MOST_LOOKS

    def _after(self, index: int) -> set[int]:
        """All operations that certainly begin after one is finished."""
        if index not in self._known:
            todo, seen = self._followers(index), set[int]()
            while todo and self._work <= MOST_LOOKS:
                each = todo.pop()
                if each not in seen:
                    seen.add(each)
                    self._work += 1
                    todo += self._followers(each) + self._takers.get(each, [])
            self._known[index] = seen
        return self._known[index]

    def _followers(self, index: int) -> list[int]:
        """Who waits for the completion of an operation, or of those that it hands over to, or is next on its engine."""
        common = self._task.dependencies[index]
        count = self._task.network.num_operations
        queue = None if common.op_type == self._overlap_of else common.op_type
        found = [
            consumer.index
            for kind, consumer in enumerate(common.consumers)
            if 0 <= consumer.index < count and (consumer.event == Event.OP_COMPLETED or kind == queue)
        ]
        for taker in self._takers.get(index, []):
            found += self._followers(taker)
        return found
