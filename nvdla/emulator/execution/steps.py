"""Steps of a recorded run, and the time that each takes.

A *step* is a :class:`Chain` of jobs that pass results on the fly, or a CPU task. Between steps all data are in memory.
A :class:`Completed` marks where the firmware found an operation completed.

    rows = profile(runtime, surfaces, runs=5)

A chain is a convolution with its SDP (and PDP) on the fly, or one operation between memories. Times are medians over
the runs; they are those of repeated runs, after the firmware has been through once and all kernels are compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Protocol

import numpy as np

from nvdla.emulator.cpu import CpuTask
from nvdla.emulator.firmware.operation import CsbLog, FirmwareOperation
from nvdla.emulator.hardware.job import Handed, Job
from nvdla.emulator.memory.address_space import Lanes, Move
from nvdla.errors import FormatError
from nvdla.limits import Work
from nvdla.tensors.inputs import RawSurface
from nvdla.util.escaping import Json


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
    """An observer of a run that may have to start again: it receives each event once."""

    def __init__(self, notify: OnOperation, known: int = 0) -> None:
        self._notify, self._known, self._count = notify, known, 0

    def __call__(self, event: OperationEvent) -> None:
        self._count += 1
        if self._count > self._known:
            self._notify(event)

    def again(self) -> Resumable:
        """Return the observer for the run that starts again."""
        return Resumable(self._notify, max(self._count, self._known))


@dataclass(frozen=True)
class Chain:
    """Jobs that the hardware does in one go, each passing its results on the fly to the next."""

    jobs: tuple[Job, ...]

    def run(self) -> None:
        """Do the work once; returns the result for the next engine, None if it went to memory."""
        handed: Handed = None
        for job in self.jobs:
            handed = job.run(handed)

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Do the chain for ``count`` images in lanes 1, 2 ..."""
        handed: Handed = None
        for job in self.jobs:
            handed = job.run_lanes(lanes, count, handed)

    def moved(self, move: Move) -> Chain:
        """Return a copy on other memory."""
        return Chain(tuple(moved_job(job, move) for job in self.jobs))

    @property
    def needs_kernels(self) -> bool:
        """True if a run takes compiled kernels."""
        return any(job.needs_kernels for job in self.jobs)

    @property
    def fallback_cost(self) -> int:
        """Estimated nanoseconds of a run by the fallback."""
        return sum(job.fallback_cost for job in self.jobs)

    @property
    def works(self) -> list[Work]:
        """Costs of its jobs."""
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
        """Do the work once; returns the result for the next engine, None if it went to memory."""
        self.task.run()

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Compute for several images at once."""
        self.task.run_lanes(lanes, count)

    def moved(self, move: Move) -> CpuStep:
        """Return a copy on other memory."""
        return CpuStep(self.task.moved(move))

    @property
    def needs_kernels(self) -> bool:
        """The CPU's operations do without."""
        return False

    @property
    def fallback_cost(self) -> int:
        """Estimated nanoseconds."""
        return 4 * self.task.work.elements

    @property
    def works(self) -> list[Work]:
        """Cost of the task."""
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
        """Return the event for ``on_operation``."""
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
        """Return a copy on other memory."""
        job = None if self.job is None else moved_job(self.job, move)
        return Completed(self.operation, self.engine, self.group, job)


Step = Chain | CpuStep

# Takes a step and the seconds it took.
OnStep = Callable[[Step, float], None]


def moved_job(job: Job, move: Move) -> Job:
    """The job on other memory: the same one wherever it is met."""
    return move.once(job, lambda: job.moved(move))


MAX_RUNS = 1000


@dataclass(frozen=True)
class ProfileRow:
    """One chain: its task, the indices and engines of its operations, seconds, multiplications of its convolution
    (0: none), part of the whole time (0 to 1), and how many of its operations, from the first, one fused job does
    at once (1: it is not fused)."""

    task: int
    operations: tuple[int, ...]
    engines: tuple[str, ...]
    seconds: float
    multiplications: int
    share: float
    fused: int

    @property
    def gmacs(self) -> float | None:
        """10^9 multiplications per second, None for a chain that does not multiply."""
        return self.multiplications / self.seconds / 1e9 if self.multiplications and self.seconds else None

    def as_dict(self) -> dict[str, Json]:
        """Plain data, ``gmacs`` included."""
        return {**asdict(self), "gmacs": self.gmacs}


class Profiled(Protocol):
    """Methods of a :class:`nvdla.Runtime` that :func:`profile` calls."""

    def run_raw(
        self,
        inputs: Sequence[RawSurface],
        on_operation: OnOperation | None = None,
        csb_log: CsbLog | None = None,
        on_step: OnStep | None = None,
    ) -> list[bytes]:
        """Run on raw surfaces; ``on_step`` receives each repeated step and its seconds."""

    def operations(self) -> list[tuple[FirmwareOperation, Job | None]]:
        """Return every operation of the latest run with its job."""


def profile(runtime: Profiled, surfaces: Sequence[bytes], runs: int = 5) -> list[ProfileRow]:
    """Rows in the order of the run, for raw inputs in bind order.

    Raises FormatError for a loadable whose every run goes through the firmware (statistics, or descriptors that
    change with the data), and for a number of runs that is not 1 to 1000.
    """
    if not 1 <= runs <= MAX_RUNS:
        raise FormatError(f"profile: runs: must be 1 to {MAX_RUNS}, got {runs}")
    steps: list[Step] = []
    times: list[list[float]] = []
    for _ in range(2):  # the first goes through the firmware, the second fuses and compiles
        runtime.run_raw(surfaces)
    for number in range(runs):
        taken: list[float] = []

        def note(step: Step, seconds: float, taken: list[float] = taken, first: bool = number == 0) -> None:
            taken.append(seconds)
            if first:
                steps.append(step)

        runtime.run_raw(surfaces, on_step=note)
        times.append(taken)
    if not steps:
        raise FormatError(
            "profile: loadable: must have repeatable steps, but its firmware writes statistics or changes "
            "descriptors in each run"
        )
    seconds = [median(samples) for samples in zip(*times, strict=True)]
    return _rows(runtime, steps, seconds)


def _rows(runtime: Profiled, steps: list[Step], seconds: list[float]) -> list[ProfileRow]:
    total = sum(seconds) or 1.0
    known = {id(job): operation for operation, job in runtime.operations() if job is not None}
    return [_row(known, step, duration, duration / total) for step, duration in zip(steps, seconds, strict=True)]


def _row(known: dict[int, FirmwareOperation], step: Step, seconds: float, share: float) -> ProfileRow:
    if isinstance(step, CpuStep):
        task = step.task
        indices = tuple(operation.index for operation in task.operations)
        engines = tuple(operation.type.name.lower() for operation in task.operations)
        return ProfileRow(task.id, indices, engines, seconds, 0, share, 1)
    jobs = [part for job in step.jobs for part in job.parts]
    operations = [known[id(job)] for job in jobs if id(job) in known]
    return ProfileRow(
        operations[0].task,
        tuple(operation.index for operation in operations),
        tuple(operation.type.name.lower() for operation in operations),
        seconds,
        sum(job.work.multiplications for job in jobs),
        share,
        len(step.jobs[0].parts),
    )
