"""Steps: what a plan consists of, and what observers are told.

A *step* is what is done in one go: a :class:`Chain` of jobs that hand their results on the fly, or a CPU task. Between
steps everything lies in memory. A :class:`Completed` stands where the firmware found an operation completed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nvdla.cpu import CpuTask
from nvdla.firmware.operation import FirmwareOperation
from nvdla.hardware.job import Handed, Job
from nvdla.limits import Work
from nvdla.memory.lanes import Lanes, Move


@dataclass(frozen=True)
class OperationEvent:
    """A completed DLA operation, for observers.

    ``index`` is its place in the task's operation list, ``engine`` one of "bdma" "conv" "sdp" "pdp" "cdp" "rubik",
    ``group`` the register group. ``destination`` is a uint8 view (surfaces, height, width, atom bytes) of what it
    wrote, None on the fly to the next engine. ``statistics``: its counters (saturation, NaN, LUT hits ...).
    ``descriptor`` holds its descriptors (``.op``, ``.surface``).
    """

    task: int
    index: int
    roi: int
    engine: str
    group: int
    destination: np.ndarray | None
    statistics: dict[str, int]
    descriptor: FirmwareOperation


OnOperation = Callable[[OperationEvent], None]


class Resumable:
    """An observer of a run that may have to begin anew: what it has been told once it is not told again."""

    def __init__(self, tell: OnOperation, known: int = 0) -> None:
        self._tell, self._known, self._count = tell, known, 0

    def __call__(self, event: OperationEvent) -> None:
        self._count += 1
        if self._count > self._known:
            self._tell(event)

    def again(self) -> Resumable:
        """The observer for the run that begins anew."""
        return Resumable(self._tell, max(self._count, self._known))


@dataclass(frozen=True)
class Chain:
    """Jobs that the hardware does in one go, each handing on the fly to the next."""

    jobs: tuple[Job, ...]

    def run(self) -> None:
        """Do the work once; returns what the next engine takes on the fly, None where the result went to memory."""
        handed: Handed = None
        for job in self.jobs:
            handed = job.run(handed)

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Do the chain for ``count`` images in lanes 1, 2 ..."""
        handed: Handed = None
        for job in self.jobs:
            handed = job.run_lanes(lanes, count, handed)

    def moved(self, move: Move) -> Chain:
        """A copy of it whose views lie elsewhere in memory: ``move`` says where."""
        return Chain(tuple(moved_job(job, move) for job in self.jobs))

    @property
    def needs_kernels(self) -> bool:
        """Whether it takes compiled kernels."""
        return any(job.needs_kernels for job in self.jobs)

    @property
    def works(self) -> list[Work]:
        """What its jobs cost."""
        return [job.work for job in self.jobs]

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return [view for job in self.jobs for view in job.reads]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return [view for job in self.jobs for view in job.writes]


@dataclass(frozen=True)
class CpuStep:
    """A CPU task."""

    task: CpuTask

    def run(self) -> None:
        """Do the work once; returns what the next engine takes on the fly, None where the result went to memory."""
        self.task.run()

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Compute for several images at once."""
        self.task.run_lanes(lanes, count)

    def moved(self, move: Move) -> CpuStep:
        """A copy of it whose views lie elsewhere in memory: ``move`` says where."""
        return CpuStep(self.task.moved(move))

    @property
    def needs_kernels(self) -> bool:
        """The CPU's operations do without."""
        return False

    @property
    def works(self) -> list[Work]:
        """What the task costs."""
        return [self.task.work]

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return self.task.reads

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return self.task.writes


@dataclass(frozen=True)
class Completed:
    """A completed operation and the job that did it (None: nothing was to do)."""

    operation: FirmwareOperation
    engine: str
    group: int
    job: Job | None

    def event(self) -> OperationEvent:
        """What a caller of ``on_operation`` gets."""
        operation, job = self.operation, self.job
        return OperationEvent(
            operation.task,
            operation.index,
            operation.roi,
            self.engine,
            self.group,
            job.destination if job else None,
            dict(job.statistics) if job else {},
            operation,
        )

    def moved(self, move: Move) -> Completed:
        """A copy of it whose views lie elsewhere in memory: ``move`` says where."""
        job = None if self.job is None else moved_job(self.job, move)
        return Completed(self.operation, self.engine, self.group, job)


Step = Chain | CpuStep

# Takes a step and the seconds it took.
OnStep = Callable[[Step, float], None]


def moved_job(job: Job, move: Move) -> Job:
    """The job on other memory: the same one wherever it is met."""
    return move.once(job, lambda: job.moved(move))
