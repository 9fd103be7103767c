"""Instances of a recorded run for several callers, and batches.

A batch does a step for all images in one call, so that weights are read once for several images. Images are in lanes
 (:mod:`nvdla.emulator.memory.address_space`).

An :class:`Instance` is the memories that change and a plan whose jobs work on them. The first one is the runtime's own:
only on it the firmware runs, and then nothing else does. Others are copies, made when a caller finds none idle: they
share constants, packed weights and compiled kernels with the first.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from nvdla.emulator.execution.fused_convolution import FusedConvolution
from nvdla.emulator.execution.paths import Callers, RunPath
from nvdla.emulator.execution.plan import Plan
from nvdla.emulator.execution.steps import Chain, OnOperation, OnStep
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.memory.address_space import Lanes, Move
from nvdla.emulator.memory.linker import LinkedLoadable, Surface
from nvdla.errors import LinkError, ScheduleError
from nvdla.loadable.model import MemoryEntry

LANE_BYTES = 40 << 20
MOST_LANES = 32
"""Bytes of the lanes of a batch (and again of the padded data of a layer), and the number of lanes: more make nothing
faster. Large networks are fastest while the layers at work stay in a third-level cache."""

LEAST_REREAD, WORK_PER_BYTE = 4 << 20, 240
"""Bytes of weights of fully connected layers, and multiplications of the network per such byte, where a batch is faster
than a loop: fewer bytes stay in the cache, and with more multiplications their time does not count. (Reading a byte
takes as long as about 30 multiplications.)"""


def lanes_for(images: int, lane_bytes: int) -> int:
    """Return how many images run together: 1 where lanes are too large for a gain."""
    return max(1, min(images, MOST_LANES, LANE_BYTES // max(lane_bytes, 1)))


class Batch:
    """Fused steps of a plan for images in lanes 1, 2 ...; jobs that cannot use lanes work in lane 0."""

    def __init__(self, plan: Plan, lanes: Lanes) -> None:
        self._steps = plan.steps if plan.fused is None else plan.fused
        self._lanes = lanes

    def is_possible(self) -> bool:
        """Return whether no image can read data of the one before.

        Convolutions that are not fused run one by one, and could take another image's data from the convolution buffer.
        Fused ones must read from lanes.
        """
        alone = [job for job in self._first_jobs() if isinstance(job, ConvolutionJob)]
        fused = self._fused()
        views = [view for job in fused for view in job.conv.source.views]
        taken = any(conv.settings.data_reuse or conv.settings.weight_reuse for conv in alone)
        return len(alone) <= len(fused) and not taken and all(self._lanes.holds(view) for view in views)

    def is_faster(self) -> bool:
        """Return whether a batch is faster than a loop.

        Fully connected layers read their weights from memory once for several images. All other layers take as long as
        one by one, where a run is a few compiled calls; a batch is a call per step.
        """
        reread = sum(job.reread_bytes for job in self._fused())
        work = sum(work.multiplications for step in self._steps for work in step.works)
        return reread >= LEAST_REREAD and reread * WORK_PER_BYTE >= work

    def together(self) -> int:
        """Return how many images run together: as many as lanes and the temporaries of jobs may take memory for."""
        largest = max((job.scratch_bytes for job in self._fused()), default=0)
        return min(lanes_for(MOST_LANES, self._lanes.stride), max(1, LANE_BYTES // max(largest, 1)))

    def run(self, count: int) -> None:
        """Run on the inputs in lanes 1 to ``count``."""
        for step in self._steps:
            step.run_lanes(self._lanes, count)

    def _first_jobs(self) -> list[object]:
        return [step.jobs[0] for step in self._steps if isinstance(step, Chain)]

    def _fused(self) -> list[FusedConvolution]:
        return [job for job in self._first_jobs() if isinstance(job, FusedConvolution)]


class Instance:
    """A plan on its own memory. Only one run at a time."""

    def __init__(self, linked: LinkedLoadable, plan: Plan) -> None:
        self.linked = linked
        self.plan = plan
        loadable = linked.loadable
        self._outputs = loadable.outputs
        self._touched = plan.written | {memory.id for memory in self._outputs}

    def serves(self, path: RunPath) -> bool:
        """Return whether the plan has the steps of a path."""
        return self.plan.state.fused or path in (RunPath.JOBS, RunPath.FALLBACK)

    def run(
        self,
        inputs: Sequence[tuple[MemoryEntry, Surface]],
        path: RunPath,
        on_operation: OnOperation | None = None,
        on_step: OnStep | None = None,
    ) -> list[bytes]:
        """Return raw outputs for raw inputs, each with the memory that it is bound to."""
        linked = self.linked
        linked.reset(self.plan.cleared)
        for memory, data in inputs:
            linked.bind(memory, data)
        self.plan.run(path, on_operation, on_step)
        return [linked.data(memory).tobytes() for memory in self._outputs]

    def run_lanes(self, images: Sequence[Sequence[tuple[MemoryEntry, Surface]]]) -> list[list[bytes]]:
        """Run on as many images as there are lanes besides lane 0, or fewer."""
        linked, count = self.linked, len(images)
        linked.clear_lanes(self.plan.cleared, count)
        for lane, image in enumerate(images, 1):
            for memory, data in image:
                linked.bind(memory, data, lane)
        Batch(self.plan, linked.lanes).run(count)
        outputs = [linked.lanes.across(linked.data(memory), count) for memory in self._outputs]
        return [[output[lane].tobytes() for output in outputs] for lane in range(count)]

    def fuse(self) -> None:
        """Make the fused steps of the plan, and decide how many images run together."""
        linked, plan = self.linked, self.plan
        plan.fuse()
        batch = Batch(plan, linked.lanes)
        bound = {memory.id for memory in linked.loadable.inputs}
        serves = self.can_be_cloned() and linked.in_lanes(self._touched | bound) and batch.is_possible()
        plan.state = plan.state._replace(lanes=batch.together() if serves and batch.is_faster() else 1)

    def can_be_cloned(self) -> bool:
        """Return False where a run writes into a memory that is loaded from the file: all instances share it."""
        return self._touched <= self.linked.changing

    def clone(self, lane_count: int = 1) -> Instance:
        """Return the same plan on other memory. Raises LinkError beyond the memory limit."""
        linked = self.linked.clone(lane_count)
        return Instance(linked, self.plan.moved(Move(self.linked.lanes, linked.lanes)))


SPARE_BYTES = 16 << 20
"""Bytes that the instances of one runtime may take together even if there are more of them than cores.

A run of some microseconds is often interrupted by another thread of Python in its middle. If callers had to wait for
its instance then, each would wake the next by the end of its run, which takes longer than the run.
"""


class Instances:
    """The instances of one runtime, and who works on them: at most ``most``, or as many as fit :data:`SPARE_BYTES`,
    and one for batches.

    A caller that finds an idle instance takes no lock. Python hands the lock on to a thread that must wait for the
    interpreter then, while the one that has the interpreter waits for the lock: from the first time that this happens
    on each thread does one run at a time. So a caller *announces* itself first, then checks whether a thread queues
    (``_queued``); a thread that queues counts itself first, then checks which threads run. One of them sees the other.
    """

    def __init__(self, most: int) -> None:
        self._callers = most
        self._first: Instance | None = None
        self._start()
        _all.add(self)

    def _start(self) -> None:
        """Reset to no runs, as at first and in a child process, where other threads do not exist."""
        self._condition = threading.Condition()
        self._batch_lock = threading.Lock()
        self._idle = [] if self._first is None else [self._first]
        self._count = len(self._idle)
        self._batch: Instance | None = None
        self._busy: Counter[int] = Counter()
        self._alone = False
        self._queued = 0

    @contextmanager
    def _queue(self) -> Iterator[None]:
        """Hold the lock: no thread takes an instance without it, and each that returns one notifies."""
        with self._condition:
            self._queued += 1
            try:
                yield
            finally:
                self._queued = max(0, self._queued - 1)  # a child starts from 0 in the middle of it

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other run is under way. Raises ScheduleError inside a run of the calling thread."""
        me = threading.get_ident()
        with self._queue():
            if self.inside():
                raise _inside_a_run()
            while self._alone or any(tuple(self._busy.values())):
                self._condition.wait()
            self._alone = True
            self._busy[me] += 1
        try:
            yield
        finally:
            self._alone = False
            self._leave(me)

    def inside(self) -> bool:
        """True inside a run of the calling thread."""
        return self._busy.get(threading.get_ident(), 0) > 0

    def callers(self, converts: bool) -> Callers:
        """Return how many threads run, one that is about to run included; ``converts``: it converts its tensors."""
        if converts:
            return Callers.CONVERTING
        return Callers.MANY if len(self._busy) + 1 >= self._callers else Callers.FEW

    def fuse(self) -> None:
        """Make the fused steps, alone; clones of the plan without them are dropped."""
        with self.alone():
            first = self._first
            if first is not None and not first.plan.state.fused:
                first.fuse()
                self.renew(first)

    def renew(self, first: Instance | None) -> None:
        """The firmware has run: what was copied from an earlier plan goes. None: no plan can be repeated."""
        with self._condition:
            self._first, self._batch = first, None
            self._idle = [] if first is None else [first]
            self._count = len(self._idle)

    def one(self) -> Loan:
        """An instance for one run: an idle one, a copy, or the next one that gets idle; None where no plan is there.

        Inside a run of the calling thread never the last: raises ScheduleError where there can be no copy.
        """
        return Loan(self)

    @contextmanager
    def batch(self, lane_count: int) -> Iterator[Instance | None]:
        """The instance with at least so many lanes, for one caller after the other; None beyond the memory limit."""
        me = threading.get_ident()
        with self._batch_lock:
            with self._queue():
                while self._alone and not self.inside():
                    self._condition.wait()
                self._busy[me] += 1
            try:
                yield self._with_lanes(lane_count)
            finally:
                self._leave(me)

    def take(self, me: int) -> Instance | None:
        """The instance of :meth:`one` for a thread, until it is :meth:`done` with it."""
        instance = self._take_idle(me)
        if instance is not None:
            return instance
        instance, first = self._take(me)
        if instance is not None or first is None:
            return instance
        try:
            return self._copied(first)
        except BaseException:
            self._leave(me)
            raise

    def _take_idle(self, me: int) -> Instance | None:
        """Return an idle instance where no thread queues, without the lock."""
        self._busy[me] += 1
        if not (self._queued or self._alone):  # in this order: who has queued is alone before it leaves the queue
            with suppress(IndexError):
                return self._idle.pop()
        self._leave(me)
        return None

    def _take(self, me: int) -> tuple[Instance | None, Instance | None]:
        """An idle instance, else the one that is to be copied (the copy is counted already); neither without a plan."""
        with self._queue():
            while True:
                first, instance, inside = self._first, None, self.inside()
                if not self._alone:
                    if first is None:
                        break
                    if self._idle:
                        instance = self._idle.pop()
                        break
                    if (
                        (inside or self._count < self._limit(first))
                        and first.can_be_cloned()
                        and first.linked.account.has_room(1)
                    ):
                        self._count += 1
                        break
                if inside:
                    raise _inside_a_run()
                self._condition.wait()
            self._busy[me] += 1
            return instance, first

    def _limit(self, first: Instance) -> int:
        return max(self._callers, SPARE_BYTES // max(1, first.linked.lanes.stride))

    def _copied(self, first: Instance) -> Instance:
        try:
            return first.clone()
        except BaseException:
            with self._condition:
                self._count -= 1
            raise

    def _with_lanes(self, lane_count: int) -> Instance | None:
        if self._batch is None or self._batch.linked.lanes.count < lane_count:
            self._batch = None
            first = self._first
            if first is None or not first.can_be_cloned():
                return None
            try:
                self._batch = first.clone(lane_count)
            except LinkError:  # one image fits the memory limit, several do not
                return None
        return self._batch

    def done(self, me: int, instance: Instance | None) -> None:
        """The thread's run is through, and the instance idle again."""
        if instance is not None and instance not in self._idle:
            self._idle.append(instance)
        self._leave(me)

    def _leave(self, me: int) -> None:
        left = self._busy[me] - 1
        if left > 0:
            self._busy[me] = left
        else:  # below zero after a fork inside a run
            del self._busy[me]
        if self._queued:
            with self._condition:
                self._condition.notify_all()


class Loan:
    """An instance, while a run is under way."""

    __slots__ = ("_instance", "_instances", "_thread")

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def __enter__(self) -> Instance | None:
        self._thread = threading.get_ident()
        self._instance = self._instances.take(self._thread)
        return self._instance

    def __exit__(self, *raised: object) -> None:
        self._instances.done(self._thread, self._instance)


def _inside_a_run() -> ScheduleError:
    return ScheduleError(
        "a run was started inside a run of the same Runtime (in on_operation or on_step), which needs its memory "
        "alone. Wait for its end, or use another Runtime."
    )


_all: weakref.WeakSet[Instances] = weakref.WeakSet()


def _after_fork() -> None:
    for instances in _all:
        instances._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
