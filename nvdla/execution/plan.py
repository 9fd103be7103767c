"""A plan: what the hardware did in a run, to be done again on other data without the firmware."""

from __future__ import annotations

import copy
import enum
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nvdla.cpu import CpuTask
from nvdla.execution.bands import merge_bands
from nvdla.execution.compiled import compiled_steps
from nvdla.execution.coverage import must_be_cleared
from nvdla.execution.fusing import fuse_steps
from nvdla.execution.steps import Chain, Completed, CpuStep, OnOperation, OnStep, Step
from nvdla.execution.validate import Validated, validates
from nvdla.firmware.csb import CsbLog
from nvdla.firmware.operation import FirmwareOperation
from nvdla.firmware.scheduler import CompletedOperation, Scheduler, SchedulerObserver
from nvdla.firmware.task import FirmwareTask
from nvdla.hardware.job import Job
from nvdla.hardware.machine import Completion, Machine
from nvdla.kernels.jit.compilation import plain_work
from nvdla.memory.lanes import Move
from nvdla.memory.linker import LinkedLoadable
from nvdla.threads import one_blas_thread

if TYPE_CHECKING:
    from nvdla.kernels.jit.record import Walk


SHORTEST, SHORT = 90_000, 250_000
"""Nanoseconds of work, as records count it (a third of that on a current processor), of a run that takes about as long
as what Python does beside it: for a raw run, and with conversions."""


class Callers(enum.Enum):
    """Who runs a network, which decides how a short run of one walk is done.

    ``FEW``: with the crew. ``MANY``: every core has a caller of its own, so without the crew. The shortest runs then,
    and short ones of a caller that is ``CONVERTING`` inputs and outputs, do not give up Python's lock: with it all that
    Python touches would go to another core at every run, which takes longer than what is won.
    """

    FEW = enum.auto()
    MANY = enum.auto()
    CONVERTING = enum.auto()


class Recorder:
    """Watches a run through the firmware, tells the observer, and keeps what is needed to do it again."""

    def __init__(self, on_operation: OnOperation | None) -> None:
        self._on_operation = on_operation
        self._recorded: list[Step | Completed] = []

    def run(self, tasks: Sequence[FirmwareTask | CpuTask], machine: Machine, log: CsbLog | None = None) -> Scheduler:
        """Let firmware and hardware go through the tasks. ``log`` takes every register write."""
        scheduler = Scheduler(machine, log, SchedulerObserver(completed=self.completed, ran=self.ran))
        for task in tasks:
            if isinstance(task, FirmwareTask):
                scheduler.run(task)
            else:
                machine.meter.hold(f"task {task.id}", [task.work])
                if machine.works:
                    task.run()
                self._recorded.append(CpuStep(task))
        return scheduler

    def ran(self, completion: Completion) -> None:
        """Note what the machine did."""
        if completion.stages:
            self._recorded.append(Chain(tuple(stage.job for stage in completion.stages)))

    def completed(self, operation: CompletedOperation) -> None:
        """Note an operation that the firmware has found completed, and tell the caller."""
        node = operation.node
        job = operation.stage.job if operation.stage else None
        done = Completed(node.operation, node.type.name.lower(), operation.group, job)
        self._recorded.append(done)
        if self._on_operation:
            self._on_operation(done.event())

    def plan(self, linked: LinkedLoadable, tasks: Sequence[FirmwareTask | CpuTask]) -> Plan:
        """The plan of what was recorded while the tasks ran."""
        return Plan(self._recorded, linked, [view for task in _of_firmware(tasks) for view in task.written])


class Plan:
    """The jobs of a run in order. ``read`` and ``written``: ids of the memories that jobs read and write; ``dirty``:
    all that must be restored before the firmware runs again: what jobs and the firmware write, and the bound outputs;
    ``cleared``: what must be as loaded before the plan runs again (:mod:`nvdla.execution.coverage`).

    With an observer every job runs by itself, so that its counters are there. Without one the :meth:`fused` steps run
    as soon as they have been made: several operations are done by one job where that gives the same bytes
    (:mod:`nvdla.execution.fusing`).
    """

    def __init__(
        self, recorded: Sequence[Step | Completed], linked: LinkedLoadable, firmware: list[np.ndarray]
    ) -> None:
        self._recorded = recorded
        steps = self.steps
        self.read = linked.memories_of(view for step in steps for view in step.reads)
        self.written = linked.memories_of(view for step in steps for view in step.writes)
        outputs = {memory.id for memory in linked.loadable.memories if memory.is_output}
        self.dirty = self.written | outputs | linked.dependency_graphs() | linked.memories_of(firmware)
        self.cleared = self.written | outputs
        self._linked = linked
        self.fused: list[Step] | None = None
        self._begins_plain = False
        self._calls: list[Step | Walk] | None = None
        self._walk: Walk | None = None

    @property
    def is_walk(self) -> bool:
        """Whether a run is a single walk of compiled code."""
        return self._walk is not None

    @property
    def steps(self) -> list[Step]:
        """The steps, job by job."""
        return [each for each in self._recorded if not isinstance(each, Completed)]

    def is_repeatable(self, tasks: Sequence[FirmwareTask | CpuTask]) -> bool:
        """False where the firmware takes part in the result: it writes statistics, places regions of interest, what it
        reads comes from an input or is overwritten, or its counts are read by an operation."""
        found, linked = _of_firmware(tasks), self._linked
        if any(task.network.dynamic_roi or task.keeps_statistics for task in found):
            return False
        changing = self.written | {memory.id for memory in linked.loadable.inputs}
        counted = linked.memories_of(view for task in found for view in task.written)
        described = linked.memories_of(view for task in found for view in task.descriptors)
        return not (changing & (described | counted) or self.read & counted)

    def fuse(self) -> None:
        """Make the fused steps, unless they are there.

        They have their own copies of weights, so that the linked ones are given back one by one: no other run may be
        under way (:meth:`nvdla.memory.linker.LinkedLoadable.remember` brings them back).
        """
        if self.fused is None:
            linked = self._linked
            readers = linked.readers(view for step in self.steps for view in step.reads)
            if validates():
                fused = fuse_steps(self.steps, self.constant, lambda views: None, beside=Validated)
            else:
                fused = fuse_steps(self.steps, self.constant, lambda views: linked.forget(readers, views))
            self.fused = merge_bands(fused)
            self.cleared = must_be_cleared(self.steps, linked, self.cleared)

    def may_begin_plain(self) -> bool:
        """Whether the next run shall be done job by job with numpy alone, which is over before the kernels of the fused
        steps are there; if so, it is taken from what the process may do so."""
        if not validates() and not any(step.needs_kernels for step in self.steps):
            works = [work for step in self.steps for work in step.works]
            cost = sum(each.multiplications // 32 + 4 * each.elements for each in works)
            self._begins_plain = plain_work.take_run(cost)
        return self._begins_plain

    def run(
        self,
        on_operation: OnOperation | None = None,
        on_step: OnStep | None = None,
        callers: Callers = Callers.FEW,
    ) -> None:
        """Do it all again."""
        if on_operation is None and self.fused is not None:
            if on_step is None:
                self._run_compiled(self._compiled(self.fused), callers)
            else:
                for step in self.fused:
                    _timed(step, on_step)
            return
        self._linked.remember()
        plain, self._begins_plain = self._begins_plain, False
        if plain:
            with plain_work.run(), one_blas_thread():
                self._run_jobs(on_operation, on_step)
        else:
            self._run_jobs(on_operation, on_step)

    def _run_compiled(self, calls: list[Step | Walk], callers: Callers) -> None:
        walk = self._walk
        if callers is Callers.FEW or walk is None or walk.work > SHORT:
            for call in calls:
                call.run()
        elif callers is Callers.MANY and walk.work > SHORTEST:
            walk.run_alone()
        else:
            walk.run_within_lock()

    def _run_jobs(self, on_operation: OnOperation | None, on_step: OnStep | None) -> None:
        for each in self._recorded:
            if not isinstance(each, Completed):
                _timed(each, on_step)
            elif on_operation is not None:
                on_operation(each.event())

    def _compiled(self, fused: list[Step]) -> list[Step | Walk]:
        """The fused steps in as few calls as possible, made when they are first run."""
        if self._calls is None:
            self._calls = calls = compiled_steps(fused)
            self._walk = None if len(calls) != 1 or isinstance(calls[0], Chain | CpuStep) else calls[0]
        return self._calls

    def operations(self) -> list[tuple[FirmwareOperation, Job | None]]:
        """Every operation of the hardware with the job that does it (None: nothing was to do)."""
        return [(each.operation, each.job) for each in self._recorded if isinstance(each, Completed)]

    def moved(self, move: Move) -> Plan:
        """The same plan on other memory: both may run at the same time."""
        plan = copy.copy(self)
        plan._recorded = [each.moved(move) for each in self._recorded]
        plan.fused = None if self.fused is None else [step.moved(move) for step in self.fused]
        plan._calls, plan._walk = None, None
        return plan

    def constant(self, views: list[np.ndarray]) -> bool:
        """True when no run, and no input, changes the memories that the views lie in."""
        bound = {memory.id for memory in self._linked.loadable.memories if memory.is_input}
        return not self._linked.memories_of(views) & (self.dirty | bound)


def _of_firmware(tasks: Sequence[FirmwareTask | CpuTask]) -> list[FirmwareTask]:
    return [task for task in tasks if isinstance(task, FirmwareTask)]


def _timed(step: Step, on_step: OnStep | None) -> None:
    if on_step is None:
        step.run()
        return
    began = time.perf_counter()
    step.run()
    on_step(step, time.perf_counter() - began)
