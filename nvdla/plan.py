"""A plan: what the hardware did in a run, to be done again on other data without the firmware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.cpu import CpuTask
from nvdla.firmware.operation import Operation
from nvdla.firmware.scheduler import CompletedOperation
from nvdla.hardware.machine import Completion, Job
from nvdla.memory.linker import LinkedLoadable


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
    descriptor: Operation


OnOperation = Callable[[OperationEvent], None]


@dataclass(frozen=True)
class _Completed:
    """A completed operation and the job that did it (None: nothing was to do)."""

    operation: Operation
    engine: str
    group: int
    job: Job | None

    def event(self) -> OperationEvent:
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


class Recorder:
    """Watches a run through the firmware, tells the observer, and keeps what is needed to do it again."""

    def __init__(self, on_operation: OnOperation | None) -> None:
        self._on_operation = on_operation
        self._steps: list[Any] = []

    def ran(self, completion: Completion) -> None:
        if completion.stages:
            self._steps.append(tuple(stage.job for stage in completion.stages))

    def completed(self, operation: CompletedOperation) -> None:
        node = operation.node
        job = operation.stage.job if operation.stage else None
        done = _Completed(node.operation, node.type.name.lower(), operation.group, job)
        self._steps.append(done)
        if self._on_operation:
            self._on_operation(done.event())

    def cpu(self, task: CpuTask) -> None:
        """Run a CPU task and note it."""
        task.run()
        self._steps.append(task)

    def plan(self, linked: LinkedLoadable) -> Plan:
        return Plan(self._steps, linked)


class Plan:
    """The jobs of a run in order. ``dirty``: ids of the memories that it writes, to be restored before the next."""

    def __init__(self, steps: list[Any], linked: LinkedLoadable) -> None:
        self._steps = steps
        self.dirty = _written(steps, linked)

    def run(self, on_operation: OnOperation | None = None) -> None:
        """Do it all again."""
        for step in self._steps:
            if isinstance(step, tuple):
                data = None
                for job in step:
                    data = job.run(data)
            elif isinstance(step, CpuTask):
                step.run()
            elif on_operation:
                on_operation(step.event())


def _written(steps: list[Any], linked: LinkedLoadable) -> set[int] | None:
    """Memories that jobs, CPU tasks and the firmware write; None for any (BDMA writes to many places)."""
    views: list[np.ndarray] = []
    for step in steps:
        if isinstance(step, _Completed):
            if step.engine == "bdma":
                return None
            if step.job is not None:
                views += getattr(step.job, "destinations", None) or [step.job.destination]
        elif isinstance(step, CpuTask):
            views += step.written()
    written = linked.memories_of(view for view in views if view is not None)
    bound = {memory.id for memory in linked.loadable.memories if memory.is_output}
    return written | bound | linked.dependency_graphs()
