"""How much a run may do: found out before it starts where the file says it, and counted while it runs.

What a file may ask for when it is only read is in :class:`nvdla.loadable.Limits` and
:class:`nvdla.descriptors.task.TaskLimits`; how much memory it may ask for is the ``memory_limit`` of a Runtime and the
``limit`` of a trace replay. ``docs/security.md`` lists them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nvdla.errors import LinkError, ScheduleError


@dataclass(frozen=True)
class RunBudget:
    """Limits of one run. The defaults are far above real networks (ResNet-50: 175 operations, 4 * 10^9
    multiplications); reaching them takes hours."""

    #: hardware operations
    operations: int = 1 << 16
    #: multiplications of convolutions
    multiplications: int = 10**13
    #: elements that the other engines work on, times the elements of a pooling or normalisation window; bytes copied
    elements: int = 10**12
    #: elements of the largest cube of one operation, hardware batches together (input, weights or output)
    cube: int = 1 << 28


@dataclass(frozen=True)
class Work:
    """What running a prepared operation costs: multiplications of a convolution, elements (times the elements of a
    window) of the other engines, elements of the largest cube that it needs in one piece, bytes of memory."""

    multiplications: int = 0
    elements: int = 0
    cube: int = 0
    #: bytes besides simulated memory that a run takes while it lasts, and those that stay for later runs; not less than
    #: what was measured (tests/attacks/test_memory_of_a_run.py)
    scratch: int = 0
    kept: int = 0


class Meter:
    """Counts the work of a run and stops it with a ScheduleError where it passes the budget.

    ``room``: bytes that operations may take besides simulated memory (None: as many as there are); ``most``: how many
    they took at once so far, with what they keep.
    """

    def __init__(self, budget: RunBudget | None = None, room: int | None = None) -> None:
        self.budget = budget or RunBudget()
        self.room = room
        self.most = 0
        self.kept = 0
        self.operations = 0
        self.multiplications = 0
        self.elements = 0

    def charge(self, what: str, work: Work) -> None:
        """Before one operation is done: add its work."""
        self.operations += 1
        self.multiplications += work.multiplications
        self.elements += work.elements
        for name in ("operations", "multiplications", "elements"):
            used, limit = getattr(self, name), getattr(self.budget, name)
            if used > limit:
                raise ScheduleError(
                    f"{what}: the run takes {used:,} {name}, more than its budget of {limit:,} (RunBudget.{name})"
                )
        self.allow(what, work)

    def hold(self, what: str, works: Iterable[Work]) -> None:
        """Before operations that go on at the same time are done: the memory that they take together."""
        scratch = 0
        for work in works:
            scratch += work.scratch
            self.kept += work.kept
        self.most = max(self.most, self.kept + scratch)
        if self.room is not None and self.kept + scratch > self.room:
            raise LinkError(
                f"{what}: up to {scratch:,} bytes for its data and {self.kept:,} for packed weights, but the memory "
                f"limit leaves {self.room:,} besides the memory list; pass a higher memory_limit if that is meant"
            )

    def spend(self, what: str, elements: int) -> None:
        """Before bytes are moved or compared without an operation."""
        self.elements += elements
        if self.elements > self.budget.elements:
            raise ScheduleError(
                f"{what}: the run takes {self.elements:,} elements, more than its budget of "
                f"{self.budget.elements:,} (RunBudget.elements)"
            )

    def allow(self, what: str, work: Work) -> None:
        """Refuse an operation whose largest cube passes the limit."""
        if work.cube > self.budget.cube:
            raise ScheduleError(
                f"{what}: a cube of {work.cube:,} elements is more than the limit of {self.budget.cube:,} "
                "(RunBudget.cube)"
            )
