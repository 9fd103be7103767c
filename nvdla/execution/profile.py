"""Where the time of a run goes: one row for each chain of operations that the hardware does in one go.

    rows = profile(runtime, surfaces, runs=5)

A chain is a convolution with its SDP (and PDP) on the fly, or one operation between memories. Times are medians over
the runs; they are those of repeated runs, after the firmware has been through once and all kernels are compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from nvdla.errors import FormatError
from nvdla.execution.steps import CpuStep, Step
from nvdla.firmware.operation import FirmwareOperation

if TYPE_CHECKING:
    from nvdla.runtime import Runtime

MAX_RUNS = 1000


@dataclass(frozen=True)
class ProfileRow:
    """One chain: its task, the indices and engines of its operations, seconds, multiplications of its convolution
    (0: none), part of the whole time (0 to 1), and how many of its operations, from the first, one fused job does
    at once (1: there is no such job)."""

    task: int
    operations: tuple[int, ...]
    engines: tuple[str, ...]
    seconds: float
    multiplications: int
    share: float
    fused: int

    @property
    def gmacs(self) -> float | None:
        """10^9 multiplications a second, None for a chain that does not multiply."""
        return self.multiplications / self.seconds / 1e9 if self.multiplications and self.seconds else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ``gmacs`` included."""
        return {**asdict(self), "gmacs": self.gmacs}


def profile(runtime: Runtime, surfaces: Sequence[bytes], runs: int = 5) -> list[ProfileRow]:
    """Rows in the order of the run, for raw inputs in bind order.

    Raises FormatError for a loadable whose every run goes through the firmware (statistics, or descriptors that
    change with the data), and for a number of runs that is not 1 to 1000.
    """
    if not 1 <= runs <= MAX_RUNS:
        raise FormatError(f"profile: the number of runs is {runs}; it must be 1 to {MAX_RUNS}")
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
            "profile: the firmware takes part in every run of this loadable (it writes statistics, or its descriptors "
            "change), so that there are no repeated steps to time"
        )
    seconds = [median(each) for each in zip(*times, strict=True)]
    return _rows(runtime, steps, seconds)


def _rows(runtime: Runtime, steps: list[Step], seconds: list[float]) -> list[ProfileRow]:
    total = sum(seconds) or 1.0
    known = {id(job): operation for operation, job in runtime.operations() if job is not None}
    return [_row(known, step, each, each / total) for step, each in zip(steps, seconds, strict=True)]


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
