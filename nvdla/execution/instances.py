"""Instances: what runs that go on at the same time need each for itself.

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
from typing import Any

from nvdla.errors import LinkError, ScheduleError
from nvdla.execution.batch import Batch
from nvdla.execution.plan import Callers, Plan
from nvdla.execution.steps import OnOperation, OnStep
from nvdla.loadable.model import MemoryEntry
from nvdla.memory.lanes import Move
from nvdla.memory.linker import LinkedLoadable


class Instance:
    """A plan on memory of its own. Only one run at a time."""

    def __init__(self, linked: LinkedLoadable, plan: Plan) -> None:
        self.linked = linked
        self.plan = plan
        loadable = linked.loadable
        self._outputs = loadable.outputs
        self._touched = plan.written | {memory.id for memory in self._outputs}

    def run(
        self,
        inputs: Sequence[tuple[MemoryEntry, Any]],
        on_operation: OnOperation | None = None,
        on_step: OnStep | None = None,
        callers: Callers = Callers.FEW,
    ) -> list[bytes]:
        """Raw outputs for raw inputs, each with the memory that it is bound to."""
        linked = self.linked
        linked.reset(self.plan.cleared)
        for memory, data in inputs:
            linked.bind(memory, data)
        self.plan.run(on_operation, on_step, callers)
        return [linked.data(memory).tobytes() for memory in self._outputs]

    def run_lanes(self, images: Sequence[Sequence[tuple[MemoryEntry, Any]]]) -> list[list[bytes]]:
        """Run on as many images as there are lanes besides lane 0, or fewer."""
        linked, count = self.linked, len(images)
        linked.clear_lanes(self.plan.cleared, count)
        for lane, image in enumerate(images, 1):
            for memory, data in image:
                linked.bind(memory, data, lane)
        Batch(self.plan, linked.lanes).run(count)
        outputs = [linked.lanes.across(linked.data(memory), count) for memory in self._outputs]
        return [[output[lane].tobytes() for output in outputs] for lane in range(count)]

    def together(self) -> int:
        """How many images go together in the lanes: several where all that a run changes lies in lanes and every step
        takes them, else 1."""
        linked = self.linked
        if linked.lanes.count < 3:
            return 1
        batch = Batch(self.plan, linked.lanes)
        bound = {memory.id for memory in linked.loadable.inputs}
        return batch.together() if linked.in_lanes(self._touched | bound) and batch.serves() else 1

    def can_be_copied(self) -> bool:
        """False where a run writes into a memory that is loaded from the file: all instances share it."""
        return self._touched <= self.linked.changing

    def copy(self, lane_count: int = 1) -> Instance:
        """The same plan on other memory. Raises LinkError where the memory limit leaves no room."""
        linked = self.linked.beside(lane_count)
        return Instance(linked, self.plan.moved(Move(self.linked.lanes, linked.lanes)))


ROOM = 16 << 20
"""Bytes that the instances of one runtime may take together even if there are more of them than cores.

A run of some microseconds is often interrupted by another thread of Python in its middle. If callers had to wait for
its instance then, each would wake the next by the end of its run, which takes longer than the run.
"""


class Instances:
    """The instances of one runtime, and who works on them: at most ``most``, or as many as :data:`ROOM` has room for,
    and one for batches.

    A caller that finds an idle instance takes no lock. Python hands the lock on to a thread that must wait for the
    interpreter then, while the one that has the interpreter waits for the lock: from the first time that this happens
    on nobody gets on by more than one run in a row. So a caller *announces* itself first, then looks whether anybody
    queues (``_queued``); whoever queues counts itself first, then looks who is at work. One of them sees the other.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._first: Instance | None = None
        self._start()
        _all.add(self)

    def _start(self) -> None:
        """Nobody works: so it is at first, and in a child process, where other threads do not live on."""
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
        """The lock is held; nobody takes an instance without it, and whoever gives one back tells."""
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
        """Who runs at this moment, for one of them; ``converts``: it converts inputs and outputs itself."""
        if converts:
            return Callers.CONVERTING
        return Callers.MANY if len(self._busy) >= self._most else Callers.FEW

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
        """The instance with at least so many lanes, for one caller after the other; None where memory has no room."""
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
        """An idle instance where nobody queues, without the lock."""
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
                        and first.can_be_copied()
                        and first.linked.has_room(1)
                    ):
                        self._count += 1
                        break
                if inside:
                    raise _inside_a_run()
                self._condition.wait()
            self._busy[me] += 1
            return instance, first

    def _limit(self, first: Instance) -> int:
        return max(self._most, ROOM // max(1, first.linked.lanes.stride))

    def _copied(self, first: Instance) -> Instance:
        try:
            return first.copy()
        except BaseException:
            with self._condition:
                self._count -= 1
            raise

    def _with_lanes(self, lane_count: int) -> Instance | None:
        if self._batch is None or self._batch.linked.lanes.count < lane_count:
            self._batch = None
            first = self._first
            if first is None or not first.can_be_copied():
                return None
            try:
                self._batch = first.copy(lane_count)
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
        "a run was started inside a run of the same Runtime (by on_operation or on_step) that must have its memory for "
        "itself; wait until it is through, or use another Runtime"
    )


_all: weakref.WeakSet[Instances] = weakref.WeakSet()


def _after_fork() -> None:
    for instances in _all:
        instances._start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
