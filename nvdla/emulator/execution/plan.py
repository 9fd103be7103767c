"""Recorded runs: jobs in order, row bands, compiled sequences, coverage, validation.

Validation (NVDLA_VALIDATE). ``1``: the jobs of single operations run next to every fused job and must write the same
bytes. ``reference``: the specification (:mod:`nvdla.emulator.execution.reference`) also computes every operation, in
plain Python.

A compiler splits a convolution whose data do not fit the convolution buffer into bands of rows: operations with the
same weights, one after the other. Fused jobs need no buffer, and a whole layer has work for every thread.
:func:`merge_bands` puts bands together where that writes the same bytes: row for row a result comes from the same rows
of data, what is padding for a band is padding for the whole, and no band overwrites what another reads.

Most memories need no clearing between runs: surfaces between layers are written whole before they are read.
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.cpu import CpuTask
from nvdla.emulator.execution.fused_convolution import FusedConvolution, is_below, merged
from nvdla.emulator.execution.fusing import SHARE, Switch, at_once, fuse_in_parts, fuse_steps, needed_kernels
from nvdla.emulator.execution.paths import RunPath, State
from nvdla.emulator.execution.steps import Chain, Completed, CpuStep, OnOperation, OnStep, Step
from nvdla.emulator.firmware.operation import CsbLog, FirmwareOperation
from nvdla.emulator.firmware.scheduler import CompletedOperation, FirmwareTask, Scheduler, SchedulerObserver
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.hardware.job import Handed, Job
from nvdla.emulator.hardware.machine import Completion, Machine
from nvdla.emulator.memory.address_space import Lanes, Move, Readers, footprint
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.errors import ScheduleError
from nvdla.kernels.jit.compilation import fallback_work
from nvdla.kernels.threads import one_blas_thread

if TYPE_CHECKING:
    from nvdla.kernels.jit.object_code import ObjectCode
    from nvdla.kernels.jit.recorded_calls import CommandList, RecordedCall

VARIABLE = "NVDLA_VALIDATE"


def validates() -> bool:
    """Check whether fused jobs are compared with the operations that they replace."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def validates_by_reference() -> bool:
    """Check whether operations are compared with the specification."""
    return os.environ.get(VARIABLE, "") == "reference"


AXES = {
    5: ("image", "surface", "line", "column", "channel"),
    4: ("surface", "line", "column", "channel"),
}


def compare(name: str, actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare the output of an operation with the expected one. Raises ScheduleError at the first element that differs.

    Args:
        name: The operation.
        found: Its elements; bytes of a cube in memory (surfaces, lines, columns, bytes of an atom).
        expected: The correct ones, of the same shape.
    """
    wrong = np.argwhere(actual != expected)
    if not len(wrong):
        return
    place = tuple(wrong[0].tolist())
    axes = AXES.get(actual.ndim, ("element",))
    if actual.dtype == np.uint8:
        axes = (*axes[:-1], "byte")
    where = " ".join(f"{axis} {number}" for axis, number in zip(axes, place, strict=False))
    raise ScheduleError(
        f"{VARIABLE}: {name}: {where} must be {expected[place]}, got {actual[place]} ({len(wrong)} of {actual.size} "
        "differ). Please report this loadable."
    )


def checked(job: Job, handed: Handed, name: str = "", recorded: bool = False) -> Handed:
    """Run a job and its reference. Raises ScheduleError where they differ.

    Args:
        job: The job.
        handed: What the engine before it hands over.
        name: The operation, for the message.
        recorded: Run the job's recorded kernels where it has some.

    Returns:
        What the job hands to the next engine.
    """
    from nvdla.emulator.execution.reference import reference_of

    views, stale = job.writes, isinstance(job, ConvolutionJob) and job.fetched_ahead
    before = [view.copy() for view in views]
    records = job.records(handed) if recorded else None
    for record in records[0] if records else ():
        record.run()
    result = records[1] if records else job.run(handed)
    reference = None if stale else reference_of(job)
    if reference is None:
        return result
    actual = [view.copy() for view in views]
    for view, bytes_before in zip(views, before, strict=True):
        view[...] = bytes_before
    expected = reference.run(handed)
    name = name or type(job).__name__
    for view, array in zip(views, actual, strict=True):
        compare(name, array, view)
    if result is not None and expected is not None:
        compare(name, result, expected)
    return result


def _one_by_one(step: Step, lanes: Lanes, count: int) -> None:
    """Run a step for the images in lanes 1, 2 ..., each in lane 0."""
    reads, writes = ([view for view in views if lanes.holds(view)] for views in (step.reads, step.writes))
    for lane in range(1, count + 1):
        for view in reads:
            view[...] = lanes.at(view, lane)
        step.run()
        for view in writes:
            lanes.at(view, lane)[...] = view


class Referenced(Chain):
    """Jobs of single operations that are compared with the specification. ``names``: their operations."""

    names: tuple[str, ...]

    def __init__(self, jobs: tuple[Job, ...], names: tuple[str, ...]) -> None:
        super().__init__(jobs)
        object.__setattr__(self, "names", names)

    def run(self) -> None:
        """Run and compare each job."""
        handed: Handed = None
        for job, name in zip(self.jobs, self.names, strict=True):
            handed = checked(job, handed, name, recorded=True)

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Run and compare each image, in lane 0."""
        _one_by_one(self, lanes, count)

    def moved(self, move: Move) -> Referenced:
        """Return a copy on other memory."""
        return Referenced(super().moved(move).jobs, self.names)


class ReferencedCpu(CpuStep):
    """A CPU task whose softmax is compared with the specification."""

    def run(self) -> None:
        """Run and compare each operation."""
        from nvdla.emulator.execution.reference import reference_softmax

        for operation in self.task.operations:
            expected = reference_softmax(operation)
            record = operation.record()
            if record is None:
                operation.run()
            else:
                record.run()
            if expected is not None:
                written = operation.destination.line(min(expected.size, operation.destination.channels))
                compare(f"CPU operation {operation.index} ({operation.type.name})", written, expected[: written.size])

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Run and compare each image, in lane 0."""
        _one_by_one(self, lanes, count)

    def moved(self, move: Move) -> ReferencedCpu:
        """Return a copy on other memory."""
        return ReferencedCpu(self.task.moved(move))


def referenced(recorded: Sequence[Step | Completed]) -> list[Step | Completed]:
    """Return the recorded steps of a run, each compared with the specification."""
    names = {id(entry.job): str(entry.operation) for entry in recorded if isinstance(entry, Completed)}
    steps: list[Step | Completed] = []
    for entry in recorded:
        if isinstance(entry, Chain):
            steps.append(Referenced(entry.jobs, tuple(names.get(id(job), type(job).__name__) for job in entry.jobs)))
        else:
            steps.append(ReferencedCpu(entry.task) if isinstance(entry, CpuStep) else entry)
    return steps


class Validated(Chain):
    """Jobs, and the ``references``, one after the other, that must write the same. Their bytes stay in memory."""

    def __init__(self, jobs: tuple[Job, ...], *references: Chain) -> None:
        super().__init__(jobs)
        object.__setattr__(self, "references", references)

    references: tuple[Chain, ...]

    def run(self) -> None:
        """Run the chain, then its references; both must write the same bytes."""

        def references() -> None:
            for reference in self.references:
                reference.run()

        self._compare(self._written, super().run, references)

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Run the chain for several images, then its references; both must write the same bytes."""
        views = [lanes.across(view, count) for view in self._written if lanes.holds(view)]
        fused = super().run_lanes

        def references() -> None:
            for reference in self.references:
                reference.run_lanes(lanes, count)

        self._compare(views, lambda: fused(lanes, count), references)

    def moved(self, move: Move) -> Validated:
        """A copy of it on other memory."""
        return Validated(super().moved(move).jobs, *(reference.moved(move) for reference in self.references))

    @property
    def _written(self) -> list[np.ndarray]:
        return [view for reference in self.references for view in reference.writes]

    def _compare(self, views: list[np.ndarray], fused: Callable[[], None], reference: Callable[[], None]) -> None:
        before = [view.copy() for view in views]
        fused()
        actual = [view.copy() for view in views]
        for view, bytes_before in zip(views, before, strict=True):
            view[...] = bytes_before
        reference()
        named = [name for reference in self.references if isinstance(reference, Referenced) for name in reference.names]
        names = named or [type(part).__name__ for job in self.jobs for part in job.parts]
        for view, array in zip(views, actual, strict=True):
            compare(f"the fused job of {' + '.join(names)}", array, view)


def merge_bands(steps: Sequence[Step]) -> list[Step]:
    """Return the same steps with consecutive bands of one layer done by one job."""
    merged_steps: list[Step] = []
    at = 0
    while at < len(steps):
        bands = _bands(steps[at:])
        whole = merged(bands) if len(bands) > 1 else None
        while whole is None and len(bands) > 1:
            bands = bands[:-1]
            whole = merged(bands) if len(bands) > 1 else None
        merged_steps.append(steps[at] if whole is None else _replacing(whole, steps[at : at + len(bands)]))
        at += 1 if whole is None else len(bands)
    return merged_steps


def _bands(steps: Sequence[Step]) -> list[FusedConvolution]:
    """The convolutions of as many steps as may be bands of the layer that the first is of."""
    bands: list[FusedConvolution] = []
    for step in steps:
        job = step.jobs[0] if isinstance(step, Chain) and len(step.jobs) == 1 else None
        if not isinstance(job, FusedConvolution) or job.destination is None:
            break
        if bands and not (bands[0].is_alike(job) and is_below(bands[-1].writes[0], job.writes[0])):
            break
        bands.append(job)
    return bands


def _replacing(job: FusedConvolution, steps: Sequence[Step]) -> Chain:
    chains = [step for step in steps if isinstance(step, Chain)]
    references = tuple(reference for chain in chains if isinstance(chain, Validated) for reference in chain.references)
    return Validated((job,), *references) if references else Chain((job,))


LONGEST_RUN = 5_000_000_000
"""Nanoseconds of a run by the fallback that take as long as to compile the kernels."""
BETWEEN_LOOKS = 0.01
"""Seconds between looks for kernels that another process compiles: one takes 2 % of a short run."""
STRETCH_WORK = 20_000_000
"""Nanoseconds of work, or so, after which Python can handle an interrupt."""


def compiled_steps(steps: Sequence[Step]) -> list[Step | CommandList]:
    """Return the steps in as few calls as possible: those with recorded calls together, all others alone."""
    return at_once(_compiled_in_parts(steps))


def _compiled_in_parts(steps: Sequence[Step]) -> Generator[bool, None, list[Step | CommandList]]:
    """Return what :func:`compiled_steps` does; yield False after each step."""
    compiled: list[Step | CommandList] = []
    pending: list[RecordedCall] = []
    for step in steps:
        yield False
        records = records_of(step)
        if records is not None and sum(call.work for call in pending) < STRETCH_WORK:
            pending += records
            continue
        compiled += _compiled_calls(pending)
        pending = records or []
        if records is None:
            compiled.append(step)
    yield False
    return compiled + _compiled_calls(pending)


def records_of(step: Step) -> list[RecordedCall] | None:
    """The records that do a step; None where Python takes part in it, or compares results."""
    return at_once(record_in_parts(step))


def record_in_parts(step: Step) -> Generator[bool, None, list[RecordedCall] | None]:
    """Return what :func:`records_of` does; yield False after each job but the last, and within a fused one."""
    if type(step) is CpuStep:
        return step.task.records()
    if type(step) is not Chain:
        return None
    records: list[RecordedCall] = []
    handed: Handed = None
    for job in step.jobs:
        if job is not step.jobs[0]:
            yield False
        if isinstance(job, FusedConvolution):
            job.read_in()
            yield False
        job_records = job.records(handed)
        if job_records is None:
            return None
        records += job_records[0]
        handed = job_records[1]
    return records


def _compiled_calls(records: Sequence[RecordedCall]) -> list[CommandList]:
    if not records:
        return []
    from nvdla.kernels.jit.recorded_calls import JOINED, WAKING, CommandList

    sharing = [call for call in records if call.sharing >= JOINED]
    if any(call.sharing == WAKING for call in sharing):
        sharing[0].sharing = WAKING  # threads are needed soon: wake them now
    return [CommandList(records)]


def must_be_cleared(steps: Sequence[Step], linked: LinkedLoadable, touched: Iterable[int]) -> set[int]:
    """Return those of the ``touched`` memories that must be as loaded before a run."""
    masks = {memory_id: _Mask(linked.regions[memory_id].data) for memory_id in touched if memory_id in linked.regions}
    entries = {memory.id: memory for memory in linked.loadable.memories}
    wanted = {memory_id for memory_id in masks if entries[memory_id].contents or entries[memory_id].is_input} | set(
        touched
    ) - set(masks)
    for step in steps:
        for view in step.reads:
            wanted |= {memory_id for memory_id, mask in masks.items() if not mask.holds_all(view)}
        # A CPU task writes somewhere in the memory that it names.
        for view in [] if isinstance(step, CpuStep) else step.writes:
            for mask in masks.values():
                mask.write(view)
    outputs = {memory_id for memory_id in masks if entries[memory_id].is_output}
    return wanted | {memory_id for memory_id in outputs if not masks[memory_id].written.all()}


class _Mask:
    """Bytes of a memory that have been written."""

    def __init__(self, data: np.ndarray) -> None:
        self._start = data.ctypes.data
        self.written = np.zeros(data.size, bool)

    def holds_all(self, view: np.ndarray) -> bool:
        """Return True when all bytes of the view within this memory have been written."""
        if not self._meets(view):
            return True
        part = self._within(view)
        return part is not None and bool(part.all())

    def write(self, view: np.ndarray) -> None:
        """Note that a run writes the whole view, if all of it is in this memory."""
        part = self._within(view) if self._meets(view) else None
        if part is not None:
            part[...] = True

    def _meets(self, view: np.ndarray) -> bool:
        if not view.size or min(view.strides, default=0) < 0:
            return bool(view.size)
        low = view.ctypes.data
        return low < self._start + self.written.size and low + footprint(view) > self._start

    def _within(self, view: np.ndarray) -> np.ndarray | None:
        """The places of the view's bytes; None where not all of them are in this memory, or this is not known."""
        if view.itemsize != 1 or min(view.strides, default=0) < 0:
            return None
        first = view.ctypes.data - self._start
        inside = first >= 0 and first + footprint(view) <= self.written.size
        return np.ndarray(view.shape, bool, self.written.data, first, view.strides) if inside else None


class Recorder:
    """Recorder of a run through the firmware: it notifies the observer, and keeps what repetitions need."""

    def __init__(self, on_operation: OnOperation | None) -> None:
        self._on_operation = on_operation
        self._recorded: list[Step | Completed] = []

    def run(self, tasks: Sequence[FirmwareTask | CpuTask], machine: Machine, log: CsbLog | None = None) -> Scheduler:
        """Let firmware and hardware go through the tasks. ``log`` takes every register write."""
        scheduler = Scheduler(machine, log, SchedulerObserver(completed=self.completed, ran=self.ran))
        by_reference = validates_by_reference()
        if by_reference:
            machine.run_job = checked
        for task in tasks:
            if isinstance(task, FirmwareTask):
                scheduler.run(task)
            else:
                machine.meter.hold(f"task {task.id}", [task.work])
                step = CpuStep(task)
                if machine.works:
                    (ReferencedCpu(task) if by_reference else step).run()
                self._recorded.append(step)
        return scheduler

    def ran(self, completion: Completion) -> None:
        """Record a job of the machine."""
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
        """The plan of the recorded jobs of the tasks."""
        recorded = referenced(self._recorded) if validates_by_reference() else self._recorded
        return Plan(recorded, linked, [view for task in _of_firmware(tasks) for view in task.written])


class Plan:
    """The jobs of a run in order. ``read`` and ``written``: ids of the memories that jobs read and write; ``dirty``:
    memories that must be restored before the firmware runs again: what jobs and the firmware write, and the bound
    outputs; ``cleared``: what must be as loaded before the plan runs again (:mod:`nvdla.emulator.execution.plan`).

    With an observer every job runs by itself, so that its counters are valid. Without one, the fused steps run: one job
    does several operations where that gives the same bytes (:mod:`nvdla.emulator.execution.fusing`). ``state``: what
    :func:`nvdla.emulator.execution.paths.choose_path` decides by.
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
        self.state = State(recorded=True)
        self._calls: list[Step | CommandList] | None = None
        self._kernels: Sequence[ObjectCode] | None = None
        self._switch: Switch[_Prepared] | None = None
        self._next_look = 0.0

    @property
    def steps(self) -> list[Step]:
        """The steps, job by job."""
        return [entry for entry in self._recorded if not isinstance(entry, Completed)]

    def is_repeatable(self, tasks: Sequence[FirmwareTask | CpuTask]) -> bool:
        """False where the firmware takes part in the result: it writes statistics, places regions of interest, what it
        reads comes from an input or is overwritten, or its counts are read by an operation."""
        firmware_tasks, linked = _of_firmware(tasks), self._linked
        if any(task.network.dynamic_roi or task.keeps_statistics for task in firmware_tasks):
            return False
        changing = self.written | {memory.id for memory in linked.loadable.inputs}
        counted = linked.memories_of(view for task in firmware_tasks for view in task.written)
        described = linked.memories_of(view for task in firmware_tasks for view in task.descriptors)
        return not (changing & (described | counted) or self.read & counted)

    def fuse(self) -> None:
        """Make the fused steps, unless they are there.

        They have their own copies of weights, so that the linked ones are given back one by one: no other run may be
        under way (:meth:`nvdla.emulator.memory.linker.LinkedLoadable.reload` brings them back).
        """
        if self.fused is None:
            linked, ready = self._linked, self._switch and self._switch.result
            if ready:
                self.fused, self.cleared, self._calls, release = ready
                release()
            elif validates():
                self._set_fused(fuse_steps(self.steps, self.constant, lambda views: None, validated=Validated))
            else:
                readers = self._readers()
                self._set_fused(fuse_steps(self.steps, self.constant, partial(linked.constants.release, readers)))
            single = self._single(self._compiled())
            self.state = State(recorded=True, fused=True, single_call=None if single is None else single.work)

    def _set_fused(self, fused: list[Step]) -> None:
        self.fused = merge_bands(fused)
        self.cleared = must_be_cleared(self.steps, self._linked, self.cleared)

    def _readers(self) -> Readers:
        return self._linked.constants.readers(view for step in self.steps for view in step.reads)

    def _prepare_in_parts(self, cleared: set[int]) -> Generator[bool, None, _Prepared]:
        """Do what :meth:`fuse` and the first run by compiled kernels would do; yield as :class:`Switch` requires.

        ``cleared``: the memories to clear. Weights are released at the end, since the fallback reads them.
        """
        from nvdla.kernels.jit.thread_pool import polls, pool_handle

        unread: list[list[np.ndarray]] = []
        readers = self._readers()
        fused = merge_bands((yield from fuse_in_parts(self.steps, self.constant, unread.append)))
        for step in fused:
            yield False
            yield from record_in_parts(step)  # jobs keep their records
        yield False
        for kernel in self._kernels or ():
            while not kernel.seen:
                yield True
            yield False
            kernel.read()
            yield False
            kernel.look_up()
            yield False
            kernel.load()
            yield False
        calls = yield from _compiled_in_parts(fused)
        yield False
        polls()
        yield False
        pool_handle(False)  # starts the workers

        def release() -> None:
            for views in unread:
                self._linked.constants.release(readers, views)

        return fused, cleared, calls, release

    def prepare(self, began: float) -> None:
        """Prepare for kernels that another process compiles, if any, after a run that ``began`` at a thread time."""
        now = time.thread_time()
        if self._switch is not None:
            self._switch.go_on(now + SHARE * (now - began))
        elif fallback_work.waits and self._can_wait() and self._awaits():
            # The first run takes long in any case: it starts the process, and does what cannot be divided.
            for kernel in self._kernels or ():
                kernel.is_cached()  # reads the sources
            self._switch = Switch(self._prepare_in_parts(must_be_cleared(self.steps, self._linked, self.cleared)))

    def current_state(self) -> State:
        """Return the state for the next run, which may wait for kernels that another process compiles."""
        return self.state if self.state.fused else self.state._replace(takes_fallback=self.takes_fallback(False))

    def takes_fallback(self, is_first: bool) -> bool:
        """Return whether a run takes the fallback (numpy) kernels.

        It does while compiled ones are missing: the first run within the amount that the process may do in this way,
        repeated runs until another process has compiled them and this one has prepared for them.
        """
        if not self._can_wait():
            return False
        if fallback_work.waits:
            if self._awaits():
                return True
            if self._kernels and all(kernel.is_cached() for kernel in self._kernels):
                return False
        if not is_first:
            return False
        return fallback_work.take_run(self._fallback_cost)

    def _can_wait(self) -> bool:
        return not validates() and fallback_work.fits_process() and self._fallback_cost < LONGEST_RUN

    @cached_property
    def _fallback_cost(self) -> float:
        """Estimated nanoseconds of a run by the fallback, infinite without one."""
        steps = self.steps
        return math.inf if any(step.needs_kernels for step in steps) else sum(step.fallback_cost for step in steps)

    def _awaits(self) -> bool:
        """Let another process compile missing kernels. Return whether they, or preparations for them, are missing."""
        from nvdla.kernels.jit.object_code import background

        if time.monotonic() < self._next_look:
            return True
        if self._kernels is None:
            self._kernels = needed_kernels(self.steps) or ()
        if background.awaits(self._kernels):
            self._next_look = time.monotonic() + BETWEEN_LOOKS
            return True
        is_prepared = self._switch is None or self._switch.result is not None
        return not is_prepared and all(kernel.is_cached() for kernel in self._kernels)

    def run(self, path: RunPath, on_operation: OnOperation | None = None, on_step: OnStep | None = None) -> None:
        """Run the recorded steps on the data now in memory, by a path that works on one image."""
        if path is RunPath.JOBS:
            self._run_jobs(on_operation, on_step)
        elif path is RunPath.FALLBACK:
            began = time.thread_time()
            with fallback_work.run(), one_blas_thread():
                self._run_jobs(on_operation, on_step)
            self.prepare(began)
        elif path is RunPath.STEPS:
            for step in self.fused or []:
                _timed(step, on_step)
        else:
            self._run_compiled(self._compiled(), path)

    def _run_compiled(self, calls: list[Step | CommandList], path: RunPath) -> None:
        single = None if path is RunPath.POOL else self._single(calls)
        if single is None:
            for call in calls:
                call.run()
        elif path is RunPath.ALONE:
            single.run_alone()
        else:
            single.run_within_lock()

    def _run_jobs(self, on_operation: OnOperation | None, on_step: OnStep | None) -> None:
        self._linked.reload()
        for entry in self._recorded:
            if not isinstance(entry, Completed):
                _timed(entry, on_step)
            elif on_operation is not None:
                on_operation(entry.event())

    def _compiled(self) -> list[Step | CommandList]:
        """Return the fused steps in as few calls as possible; a clone makes its own at its first run."""
        if self._calls is None:
            self._calls = compiled_steps(self.fused or [])
        return self._calls

    @staticmethod
    def _single(calls: list[Step | CommandList]) -> CommandList | None:
        """Return the one compiled call that does all steps, if it does."""
        return None if len(calls) != 1 or isinstance(calls[0], Chain | CpuStep) else calls[0]

    def operations(self) -> list[tuple[FirmwareOperation, Job | None]]:
        """Every operation of the hardware with the job that does it (None: nothing was to do)."""
        return [(entry.operation, entry.job) for entry in self._recorded if isinstance(entry, Completed)]

    def moved(self, move: Move) -> Plan:
        """The same plan on other memory: both may run at the same time."""
        plan = copy.copy(self)
        plan._recorded = [entry.moved(move) for entry in self._recorded]
        plan.fused = None if self.fused is None else [step.moved(move) for step in self.fused]
        plan._calls = plan._switch = None
        return plan

    def constant(self, views: list[np.ndarray]) -> bool:
        """True when no run, and no input, changes the memories of the views."""
        bound = {memory.id for memory in self._linked.loadable.memories if memory.is_input}
        return not self._linked.memories_of(views) & (self.dirty | bound)


_Prepared = tuple[list[Step], set[int], "list[Step | CommandList]", Callable[[], None]]
"""Fused steps, memories to clear, compiled calls, and a function that releases what they do not read."""


def _of_firmware(tasks: Sequence[FirmwareTask | CpuTask]) -> list[FirmwareTask]:
    return [task for task in tasks if isinstance(task, FirmwareTask)]


def _timed(step: Step, on_step: OnStep | None) -> None:
    if on_step is None:
        step.run()
        return
    began = time.perf_counter()
    step.run()
    on_step(step, time.perf_counter() - began)
