"""A plan: what the hardware did in a run, to be done again on other data without the firmware."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.cpu import CpuTask
from nvdla.execution.fusing import Shared, fast_add, fuse
from nvdla.firmware.operation import Operation
from nvdla.firmware.scheduler import CompletedOperation
from nvdla.hardware.machine import Completion, Job
from nvdla.hardware.sdp.engine import SdpJob
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

# Takes a step (a chain of jobs, or a CPU task) and the seconds it took.
OnStep = Callable[[tuple[Job, ...] | CpuTask, float], None]


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

    def plan(self, linked: LinkedLoadable, firmware: list[np.ndarray]) -> Plan:
        """``firmware``: views of what the firmware itself writes."""
        return Plan(self._steps, linked, firmware)


class Plan:
    """The jobs of a run in order. ``read`` and ``written``: ids of the memories that jobs read and write; ``dirty``:
    all that must be restored before the next run: what jobs and the firmware write, and the bound outputs.

    Without an observer, pairs of jobs are done by one fused job where that gives the same bytes
    (:mod:`nvdla.execution.fusing`); with one, every job runs by itself, so that its counters are there.
    """

    def __init__(self, steps: list[Any], linked: LinkedLoadable, firmware: list[np.ndarray]) -> None:
        self._steps = steps
        self.read = linked.memories_of(_read(steps))
        self.written = linked.memories_of(_written(steps))
        outputs = {memory.id for memory in linked.loadable.memories if memory.is_output}
        self.dirty = self.written | outputs | linked.dependency_graphs() | linked.memories_of(firmware)
        self._linked = linked
        self._fused: list[Any] | None = None

    @property
    def fused(self) -> list[Any]:
        """The steps without an observer: chains of jobs, and CPU tasks."""
        if self._fused is None:
            self._fused = self._fuse()
        return self._fused

    def run(self, on_operation: OnOperation | None = None, on_step: OnStep | None = None) -> None:
        """Do it all again."""
        if on_operation is not None:
            self._linked.remember()
        for step in self.fused if on_operation is None else self._steps:
            began = time.perf_counter()
            if isinstance(step, tuple):
                data = None
                for job in step:
                    data = job.run(data)
            elif isinstance(step, CpuTask):
                step.run()
            elif on_operation:
                on_operation(step.event())
            if on_step and not isinstance(step, _Completed):
                on_step(step, time.perf_counter() - began)

    def operations(self) -> list[tuple[Operation, Job | None]]:
        """Every operation of the hardware with the job that does it (None: nothing was to do)."""
        return [(step.operation, step.job) for step in self._steps if isinstance(step, _Completed)]

    def _fuse(self) -> list[Any]:
        """Fused steps have their own copies of weights, so that the linked ones can be given back one by one."""
        readers = self._linked.readers(_read(self._steps))
        return _fuse(self._steps, self._constant, lambda views: self._linked.forget(readers, views))

    def _constant(self, views: list[np.ndarray]) -> bool:
        """True when no run, and no input, changes the memories that the views lie in."""
        bound = {memory.id for memory in self._linked.loadable.memories if memory.is_input}
        return not self._linked.memories_of(views) & (self.dirty | bound)


def _fuse(
    steps: list[Any], constant: Callable[[list[np.ndarray]], bool], forget: Callable[[list[np.ndarray]], None]
) -> list[Any]:
    """The same steps with convolutions and their SDP fused where nobody misses what a fused job leaves out.

    From last to first, since a job can only be fused when the next convolution needs nothing from the convolution
    buffer: it takes no data, and weights only where it is fused itself (then it has its own copy). ``forget`` is told
    what the jobs that a fused one stands for need not read again.
    """
    left = _weights_left(steps)
    shared = Shared()
    fused = []
    next_needs_buffer = False
    for step in reversed(steps):
        conv = step[0] if isinstance(step, tuple) and hasattr(step[0], "weight_source") else None
        if conv is None:
            if not isinstance(step, _Completed):
                fused.append(_alone(step))
            continue
        job = None
        takes_data = conv.settings.data_reuse or conv.settings.keep_data
        weights = left[id(conv)]
        if not next_needs_buffer and not takes_data and constant(_constants(step[:2], weights)):
            job = fuse(step[0], step[1], shared, None if weights is None else weights.weight_source.read())
        if job is not None:
            forget(_constants(step[:2], None))
        elif constant(_weights(conv)):
            conv.keep_weights = True  # unpacked once
        next_needs_buffer = conv.settings.data_reuse or (job is None and conv.settings.weight_reuse)
        fused.append(step if job is None else (job, *step[2:]))
    return fused[::-1]


def _alone(step: Any) -> Any:
    """A step without a convolution, by a faster job where there is one."""
    if isinstance(step, tuple) and len(step) == 1 and isinstance(step[0], SdpJob):
        return (fast_add(step[0]) or step[0],)
    return step


def _weights_left(steps: list[Any]) -> dict[int, Any]:
    """For each convolution the earlier one whose weights it uses again (by identity), None where it fetches its own."""
    left: dict[int, Any] = {}
    before = None
    for step in steps:
        if not isinstance(step, tuple) or not hasattr(step[0], "weight_source"):
            continue
        conv = step[0]
        reuses = (
            before is not None
            and conv.settings.weight_reuse
            and before.settings.keep_weights
            and before.settings.layout == conv.settings.layout
        )
        left[id(conv)] = (left[id(before)] or before) if reuses else None
        before = conv
    return left


def _weights(conv: Any) -> list[np.ndarray]:
    """Where the weights of a convolution lie, their mask included."""
    source = conv.weight_source
    return [source.stored, *([] if source.mask is None else [source.mask])]


def _constants(jobs: tuple[Any, Any], weights: Any) -> list[np.ndarray]:
    """What a fused job reads from memory only once: weights and operands."""
    conv, sdp = jobs
    return _weights(weights or conv) + [operand.view for operand in sdp.sources if operand is not None]


def _written(steps: list[Any]) -> list[np.ndarray]:
    """Views of all that jobs and CPU tasks write."""
    views: list[np.ndarray] = []
    for step in steps:
        if isinstance(step, CpuTask):
            views += step.written()
        elif isinstance(step, _Completed) and step.job is not None:
            views += job_writes(step.job)
    return views


def job_writes(job: Any) -> list[np.ndarray]:
    """Views of all that a job writes; it writes the whole of each."""
    views = [job.destination, *getattr(job, "destinations", ()), *getattr(job, "targets", ())]
    return [view for view in views if view is not None] + [written for _, written in getattr(job, "copies", ())]


def _read(steps: list[Any]) -> list[np.ndarray]:
    """Views of all that jobs and CPU tasks read."""
    views: list[np.ndarray] = []
    for step in steps:
        if isinstance(step, CpuTask):
            views += [operation.source.data for operation in step.operations]
        for job in step if isinstance(step, tuple) else ():
            views += job_reads(job)
    return views


def job_reads(job: Any) -> list[np.ndarray]:
    """Views of all that a job reads."""
    source = getattr(job, "source", None)  # of PDP, CDP, Rubik an array, of a convolution its reader
    views = [source] if isinstance(source, np.ndarray) else list(getattr(source, "views", ()))
    views += _weights(job) if hasattr(job, "weight_source") else []
    views += [each.view for each in (getattr(job, "input", None), *getattr(job, "sources", ())) if each]
    return views + [read for read, _ in getattr(job, "copies", ())]
