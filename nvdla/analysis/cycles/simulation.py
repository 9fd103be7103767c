"""A small discrete-event simulation: processes that wait, and a memory port that they share.

A process is a generator. It yields what it waits for: a time (cycle), a :class:`SimulatedEvent`, or an
:class:`Activity` on the memory port. Times are floats of cycles; nothing here knows NVDLA.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

Process = Generator["float | SimulatedEvent | Activity", None, None]
ROUNDS = 12  # of halving the range of a common port's share for writes
SMALLEST = 1e-3  # cycles: what is left of an activity and less than this is nothing


class SimulatedEvent:
    """Something that happens once; ``time`` is when (None: not yet)."""

    __slots__ = ("time", "waiting")

    def __init__(self) -> None:
        self.time: float | None = None
        self.waiting: list[Process] = []


@dataclass(eq=False, slots=True)
class Activity:
    """Work that takes ``duration`` cycles at full speed, and then moves ``read`` and ``write`` bytes a cycle; it slows
    down where the port gives it less. ``weight``: of its reads against those of others. ``left``: the part to do."""

    duration: float
    read: float = 0.0
    write: float = 0.0
    weight: float = 1.0
    left: float = 1.0
    speed: float = 1.0
    process: Process | None = field(default=None, repr=False)


class Port:
    """The memory's bandwidth: ``rate`` bytes a cycle for reads and for writes, or for both together (``shared``).

    Who wants more than there is gets a share by weight; what one leaves goes to the others. Shared: reads and writes
    take turns, so each of both gets half, or what the other leaves.
    """

    def __init__(self, rate: float, shared: bool) -> None:
        self.rate, self.shared = rate, shared
        self.active: list[Activity] = []
        self.since = 0.0

    def progress(self, now: float, planned: float = 0.0) -> None:
        """Count what was done since the last change. ``planned``: cycles that have passed where ``now`` is too large a
        number for them to change it (after a convolution of centuries)."""
        past = now - self.since or planned
        self.since = now
        if past > 0:
            for each in self.active:
                each.left -= each.speed * past / each.duration

    def plan(self) -> float | None:
        """Set the speeds; the cycles until the next activity ends, or None where there is none."""
        if not self.active:
            return None
        self._share()
        return max(min(each.left * each.duration / each.speed for each in self.active), 0.0)

    def _share(self) -> None:
        """Set the speeds. Shared: half of the rate for writes, less where they need less or wait for reads, more where
        reads do not use theirs."""
        reads = sum(each.read for each in self.active)
        writes = sum(each.write for each in self.active)
        if (reads + writes if self.shared else max(reads, writes)) <= self.rate:
            for each in self.active:
                each.speed = 1.0
            return
        if not self.shared:
            self._grant(self.rate, self.rate)
            return
        if not any(each.read and each.write for each in self.active):
            half = self.rate / 2
            self._grant(max(half, self.rate - writes), max(half, self.rate - reads))
            return
        low, high = 0.0, self.rate
        for _ in range(ROUNDS):
            granted = (low + high) / 2
            reads_wait, writes_wait = self._grant(self.rate - granted, granted)
            enough = not writes_wait if granted <= self.rate / 2 else reads_wait
            low, high = (low, granted) if enough else (granted, high)

    def _grant(self, read_rate: float, write_rate: float) -> tuple[bool, bool]:
        """The speeds with so many bytes a cycle for reads and for writes; whether any waits for the one or the other.

        What an activity's reads hold back its writes leave to others, and the other way round.
        """
        weights, ones = [each.weight for each in self.active], [1.0] * len(self.active)
        read_speeds, write_speeds = ones, ones
        for _ in range(2):
            demands = [each.read * speed for each, speed in zip(self.active, write_speeds, strict=True)]
            share = _fair(demands, weights, read_rate)
            read_speeds = [min(1.0, share * each.weight / each.read) if each.read else 1.0 for each in self.active]
            demands = [each.write * speed for each, speed in zip(self.active, read_speeds, strict=True)]
            share = _fair(demands, ones, write_rate)
            write_speeds = [min(1.0, share / each.write) if each.write else 1.0 for each in self.active]
        for each, read, write in zip(self.active, read_speeds, write_speeds, strict=True):
            each.speed = min(read, write)
        speeds = list(zip(read_speeds, write_speeds, strict=True))
        return any(read < write for read, write in speeds), any(write < read for read, write in speeds)


def _fair(demands: list[float], weights: list[float], capacity: float) -> float:
    """The share for a weight of 1 that none may exceed (max-min fairness); infinite where all demands are met."""
    if sum(demands) <= capacity:
        return math.inf
    left, total = capacity, sum(weights)
    for demand, weight in sorted(zip(demands, weights, strict=True), key=lambda each: each[0] / each[1]):
        if demand * total >= left * weight:
            return left / total
        left -= demand
        total -= weight
    return math.inf


class Simulation:
    """Processes in time. ``now``: the cycle."""

    def __init__(self, port: Port) -> None:
        self.port = port
        self.now = 0.0
        self._queue: list[tuple[float, int, Process | Callable[[], None]]] = []
        self._number = 0
        self._plan = 0

    def run(self) -> None:
        """Until nothing moves any more."""
        while self._queue:
            self.now, _, what = heapq.heappop(self._queue)
            if callable(what):
                what()
            else:
                self._step(what)

    def start(self, process: Process) -> None:
        """Let a process run from now on."""
        self._push(self.now, process)

    def happen(self, event: SimulatedEvent, time: float | None = None) -> None:
        """Let an event happen now or at a later time."""
        if time is not None and time > self.now:
            self._push(time, lambda: self.happen(event))
        elif event.time is None:
            event.time = self.now
            for process in event.waiting:
                self._push(self.now, process)
            event.waiting.clear()

    def _push(self, time: float, what: Process | Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (time, self._number, what))

    def _step(self, process: Process) -> None:
        """Run a process to where it has to wait."""
        for target in process:
            if isinstance(target, SimulatedEvent):
                if target.time is None:
                    target.waiting.append(process)
                    return
            elif isinstance(target, Activity):
                if target.duration > 0:
                    self._begin(target, process)
                    return
            elif target > self.now:
                self._push(target, process)
                return

    def _begin(self, activity: Activity, process: Process) -> None:
        activity.process = process
        self.port.progress(self.now)
        self.port.active.append(activity)
        self._replan()

    def _replan(self) -> None:
        """When the port's next activity ends; earlier plans are void."""
        self._plan += 1
        cycles = self.port.plan()
        if cycles is not None:
            number = self._plan
            self._push(self.now + cycles, lambda: self._end(number, cycles))

    def _end(self, number: int, cycles: float) -> None:
        if number != self._plan:
            return
        self.port.progress(self.now, cycles)
        done = [each for each in self.port.active if each.left * each.duration <= SMALLEST]
        self.port.active = [each for each in self.port.active if each.left * each.duration > SMALLEST]
        for each in done:
            assert each.process is not None
            self._push(self.now, each.process)
        self._replan()
