"""A small discrete-event simulation: processes that wait, and a memory port that they share.

A process is a generator. It yields what it waits for: a time (cycle), a :class:`SimulatedEvent`, or an
:class:`Activity` on the memory port. Times are floats of cycles; nothing here knows NVDLA.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

Process = Generator["float | SimulatedEvent | Activity", None, None]
ROUNDS = 12  # of halving the range of a common port's share for writes
SMALLEST = 1e-3  # cycles: a smaller rest of an activity is nothing


def whole_cycles(time: float) -> int:
    """Return a time rounded up to whole cycles; sums of fractions may be off by the last bits."""
    return math.ceil(time - 1e-6)


class SimulatedEvent:
    """Something that happens once; ``time`` is when (None: not yet)."""

    __slots__ = ("time", "waiting")

    def __init__(self) -> None:
        self.time: float | None = None
        self.waiting: list[Process] = []


@dataclass(eq=False, slots=True)
class Activity:
    """Work that takes ``duration`` cycles at full speed, and then moves ``read`` and ``write`` bytes per cycle
    (``second_read`` and ``second_write`` through the second port); it slows down where a port gives it less.
    ``weight``: of its reads against those of others. ``left``: the part to do.

    ``queue``: bytes that it reads ahead of its work, as fast as the port gives them. ``ahead``: those that are there,
    ``unread``: those still to be read, ``fetching``: the rate. Its first data come after the port's backlog."""

    duration: float
    read: float = 0.0
    write: float = 0.0
    weight: float = 1.0
    second_read: float = 0.0
    second_write: float = 0.0
    queue: float = 0.0
    left: float = 1.0
    speed: float = 1.0
    ahead: float = 0.0
    unread: float = 0.0
    fetching: float = 0.0
    process: Process | None = field(default=None, repr=False)

    def wanted(self, speed: float = 1.0) -> float:
        """Bytes per cycle that it would read now, with the work at such a part of its full speed."""
        if not self.queue:
            return self.read * speed
        if self.unread <= SMALLEST:
            return 0.0
        return self.read * speed if self.ahead >= self.queue - SMALLEST else math.inf

    def granted(self, rate: float) -> float:
        """Set the rate of its reads; return the speed of its work with them."""
        if not self.queue:
            return min(1.0, rate / self.read) if self.read else 1.0
        self.fetching = min(rate, self.wanted())
        stored = self.ahead > SMALLEST or self.unread <= SMALLEST
        return 1.0 if stored else min(1.0, self.fetching / self.read)

    def progress(self, cycles: float) -> None:
        """Count the part that is done in so many cycles."""
        self.left -= self.speed * cycles / self.duration
        if self.queue:
            self.unread = max(self.unread - self.fetching * cycles, 0.0)
            self.ahead = min(max(self.ahead + (self.fetching - self.read * self.speed) * cycles, 0.0), self.queue)

    def change(self) -> float:
        """Cycles until it ends, or its queue is full or empty."""
        cycles = self.left * self.duration / self.speed if self.speed else math.inf
        if self.queue and self.unread > SMALLEST:
            growth = self.fetching - self.read * self.speed
            if self.fetching > 0:
                cycles = min(cycles, self.unread / self.fetching)
            if growth > SMALLEST and self.ahead < self.queue - SMALLEST:
                cycles = min(cycles, (self.queue - self.ahead) / growth)
            elif growth < -SMALLEST and self.ahead > SMALLEST:
                cycles = min(cycles, self.ahead / -growth)
        return cycles

    @property
    def outstanding(self) -> float:
        """Bytes that it can have requested and not received."""
        return min(self.unread, self.queue - self.ahead) if self.queue else self.left * self.read * self.duration

    @property
    def reading(self) -> float:
        """Bytes per cycle that it reads now."""
        return self.fetching if self.queue else self.read * self.speed


class Flight:
    """Bytes requested and not yet returned: at most ``limit``, each for ``trip`` cycles.

    ``rates`` is a list of (cycle, bytes per cycle requested from that cycle on), from ``trip`` cycles ago to now.
    """

    def __init__(self, limit: float, trip: float) -> None:
        self.limit, self.trip = limit, trip
        self.bytes = 0.0
        self.rates: deque[tuple[float, float]] = deque()

    def progress(self, since: float, now: float) -> None:
        """Count requests and responses since the last change."""
        while self.rates:
            until = min(self.rates[1][0] + self.trip, now) if len(self.rates) > 1 else now
            begin = max(since, min(self.rates[0][0] + self.trip, until))
            self.bytes += self.rates[-1][1] * (until - since) - self.rates[0][1] * (until - begin)
            since = until
            if until >= now:
                break
            self.rates.popleft()
        while len(self.rates) > 1 and self.rates[1][0] <= now - self.trip + SMALLEST:
            self.rates.popleft()

    def request(self, now: float, rate: float) -> None:
        """Set the rate of requests from now on."""
        if self.rates and self.rates[-1][0] >= now:
            self.rates.pop()
        if not self.rates or self.rates[-1][1] != rate:
            self.rates.append((now, rate))

    def returning(self, now: float) -> float:
        """Bytes per cycle that return now."""
        if not self.rates or self.rates[0][0] > now - self.trip + SMALLEST:
            return 0.0
        return self.rates[0][1]

    def allowed(self, now: float) -> float:
        """Bytes per cycle that can be requested now."""
        return math.inf if self.bytes < self.limit - SMALLEST else self.returning(now)

    def change(self, now: float) -> float:
        """Cycles until another rate returns or the limit is reached."""
        later = (begin for begin, _ in self.rates if begin > now - self.trip + SMALLEST)
        cycles = next(later, math.inf) + self.trip - now
        growth = (self.rates[-1][1] if self.rates else 0.0) - self.returning(now)
        if growth > 0 and self.bytes < self.limit - SMALLEST:
            cycles = min(cycles, (self.limit - self.bytes) / growth)
        return max(cycles, SMALLEST)


class Port:
    """The memory's bandwidth: ``rate`` bytes per cycle for reads and for writes, or for both together (``shared``).

    Who wants more than there is gets a share by weight; what one leaves goes to the others. Shared: reads and writes
    take turns, so each of both gets half, or what the other leaves. ``flight``: the limit of outstanding reads (None:
    the port never reaches it). ``second``: bytes per cycle and direction of the second port (CVSRAM).

    Requests are accepted at ``bus`` bytes per cycle and answered in order, so a memory that is slower has a
    ``backlog`` of requests, ``most`` bytes at the most, which the first requests of an activity wait for.
    """

    def __init__(
        self,
        rate: float,
        shared: bool,
        flight: Flight | None = None,
        second: float = math.inf,
        bus: float = 0.0,
        most: float = 0.0,
    ) -> None:
        self.rate, self.shared, self.flight, self.second = rate, shared, flight, second
        self.bus, self.most = max(bus, rate), most
        self.active: list[Activity] = []
        self.since = 0.0
        self.backlog, self._growth, self._answered = 0.0, 0.0, rate

    def progress(self, now: float, planned: float = 0.0) -> None:
        """Count the finished part since the last change. ``planned``: cycles that have passed where ``now`` is too
        large a
        number for them to change it (after a convolution of centuries)."""
        past = now - self.since or planned
        if self.flight:
            self.flight.progress(self.since, now)
        self.since = now
        if past > 0:
            for activity in self.active:
                activity.progress(past)
            if self._growth or self.backlog:
                outstanding = sum(activity.outstanding for activity in self.active)
                self.backlog = min(max(self.backlog + self._growth * past, 0.0), self.most, outstanding)

    @property
    def waiting(self) -> float:
        """Cycles until the requests are answered that the memory has accepted by now."""
        return self.backlog / self._answered if self._answered else 0.0

    def plan(self) -> float | None:
        """Set the speeds; the cycles until they change or the next activity ends, or None where there is none."""
        flight = self.flight
        if self.active:
            self._share(min(flight.allowed(self.since), self.rate) if flight else self.rate)
            self._share_second()
        reading = sum(activity.reading for activity in self.active)
        if self.bus > self.rate:
            requested = min(sum(activity.wanted() for activity in self.active), self.bus)
            self._growth = (requested if reading > self._answered - SMALLEST else reading) - self._answered
        if flight:
            flight.request(self.since, reading)
        if not self.active:
            return None
        cycles = min(activity.change() for activity in self.active)
        return max(min(cycles, flight.change(self.since)) if flight else cycles, 0.0)

    def _share(self, most: float) -> None:
        """Set the speeds, with ``most`` bytes per cycle of reads. Shared: half of the rate for writes, less where they
        need less or wait for reads, more where reads do not use theirs."""
        reads = sum(min(activity.wanted(), self.rate) for activity in self.active)
        writes = sum(activity.write for activity in self.active)
        if (reads + writes if self.shared else max(reads, writes)) <= self.rate and reads <= most:
            for activity in self.active:
                activity.speed = activity.granted(self.rate)
            self._answered = min(most, self.rate - writes if self.shared else self.rate)
            return
        if not self.shared:
            self._grant(most, self.rate)
            return
        if not any(activity.read and activity.write for activity in self.active):
            half = self.rate / 2
            self._grant(min(max(half, self.rate - writes), most), max(half, self.rate - min(reads, most)))
            return
        low, high = 0.0, self.rate
        for _ in range(ROUNDS):
            granted = (low + high) / 2
            reads_wait, writes_wait = self._grant(min(self.rate - granted, most), granted)
            enough = not writes_wait if granted <= self.rate / 2 else reads_wait
            low, high = (low, granted) if enough else (granted, high)

    def _share_second(self) -> None:
        """Slow down what the second port gives less than it asks for at its speed."""
        active = self.active
        reads = [(activity, activity.second_read, activity.weight) for activity in active if activity.second_read]
        writes = [(activity, activity.second_write, 1.0) for activity in active if activity.second_write]
        for asking in (reads, writes):
            demands = [rate * activity.speed for activity, rate, _ in asking]
            share = _fair(demands, [weight for *_, weight in asking], self.second)
            for activity, rate, weight in asking:
                activity.speed = min(activity.speed, share * weight / rate)

    def _grant(self, read_rate: float, write_rate: float) -> tuple[bool, bool]:
        """The speeds with so many bytes per cycle for reads and for writes; whether any waits for the one or the other.

        What an activity's reads hold back its writes leave to others, and the other way round.
        """
        self._answered = read_rate
        weights, ones = [activity.weight for activity in self.active], [1.0] * len(self.active)
        read_speeds, write_speeds = ones, ones
        for _ in range(2):
            demands = [activity.wanted(speed) for activity, speed in zip(self.active, write_speeds, strict=True)]
            share = _fair(demands, weights, read_rate)
            read_speeds = [activity.granted(share * activity.weight) for activity in self.active]
            demands = [activity.write * speed for activity, speed in zip(self.active, read_speeds, strict=True)]
            share = _fair(demands, ones, write_rate)
            write_speeds = [min(1.0, share / activity.write) if activity.write else 1.0 for activity in self.active]
        for activity, read, write in zip(self.active, read_speeds, write_speeds, strict=True):
            activity.speed = min(read, write)
        speeds = list(zip(read_speeds, write_speeds, strict=True))
        return any(read < write for read, write in speeds), any(write < read for read, write in speeds)


def _fair(demands: list[float], weights: list[float], capacity: float) -> float:
    """The share for a weight of 1 that none may exceed (max-min fairness); infinite where all demands are met."""
    if sum(demands) <= capacity:
        return math.inf
    left, total = capacity, sum(weights)
    for demand, weight in sorted(zip(demands, weights, strict=True), key=lambda pair: pair[0] / pair[1]):
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
        activity.process, activity.unread = process, activity.read * activity.duration
        self.port.progress(self.now)
        if activity.queue and self.port.waiting > SMALLEST:
            self._push(self.now + self.port.waiting, lambda: self._admit(activity))
        else:
            self._admit(activity)

    def _admit(self, activity: Activity) -> None:
        self.port.progress(self.now)
        self.port.active.append(activity)
        self._replan()

    def _replan(self) -> None:
        """Return when the port's next activity ends; earlier plans are void."""
        self._plan += 1
        cycles = self.port.plan()
        if cycles is not None:
            number = self._plan
            self._push(self.now + cycles, lambda: self._end(number, cycles))

    def _end(self, number: int, cycles: float) -> None:
        if number != self._plan:
            return
        self.port.progress(self.now, cycles)
        done = [activity for activity in self.port.active if activity.left * activity.duration <= SMALLEST]
        self.port.active = [activity for activity in self.port.active if activity.left * activity.duration > SMALLEST]
        for activity in done:
            assert activity.process is not None
            self._push(self.now, activity.process)
        self._replan()
