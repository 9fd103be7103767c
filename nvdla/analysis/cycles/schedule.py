"""When every operation runs: the firmware's scheduling rules with the model's cycles, event by event.

The rules are those of the firmware (kmd/firmware/scheduler.c), as :mod:`nvdla.firmware.scheduler` states them: each
engine's operations form a queue, up to two are programmed ahead in its register groups, one is enabled when all that it
waits for has happened. The hardware works on an engine's operations in the order of the queue; a chain on the fly
begins when all of its engines are free and enabled. CPU tasks take no time here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from nvdla.analysis.cycles.estimate import Estimate
from nvdla.program.handover import by_task, chains
from nvdla.program.operation import Key, Operation

ENGINES = ("bdma", "conv", "sdp", "pdp", "cdp", "rubik")
GROUPS = (0, 1)


@dataclass
class Span:
    """An operation in time (cycles from the start of the run; None: it never happens).

    ``group``: its register group; ``start`` and ``end``: when its engine works on it. ``first_mac`` and ``last_mac``
    of a convolution.
    """

    key: Key
    engine: str
    group: int | None = None
    programmed: int | None = None
    enabled: int | None = None
    start: int | None = None
    end: int | None = None
    data_done: int | None = None
    weights_done: int | None = None
    first_mac: int | None = None
    last_mac: int | None = None


@dataclass(frozen=True)
class Step:
    """A step of the firmware: ``what`` is "program", "enable" or "complete"."""

    what: str
    time: int
    key: Key
    engine: str
    group: int


@dataclass(frozen=True)
class Schedule:
    """``spans`` by operation; ``order``: operations as they begin, those that never do last; ``cycles``: the end of the
    last; ``stuck``: operations that wait for ever,
    or that the firmware would do again and again."""

    spans: dict[Key, Span]
    order: list[Key]
    steps: list[Step]
    cycles: int
    stuck: list[Key]

    @property
    def complete(self) -> bool:
        return not self.stuck


def schedule(nodes: list[Operation], estimates: dict[Key, Estimate], software: int = 0) -> Schedule:
    """The schedule of all tasks, one after the other. ``software``: cycles from an interrupt to the firmware's answer.

    Never fails: what a broken graph keeps waiting is listed as stuck.
    """
    spans = {node.key: Span(node.key, node.engine) for node in nodes}
    steps: list[Step] = []
    clock = 0
    pointers = dict.fromkeys(ENGINES, 0)
    for mine in by_task(nodes).values():
        if mine[0].engine == "cpu":
            for node in mine:
                span = spans[node.key]
                span.programmed = span.enabled = span.start = span.end = clock
        else:
            clock = _TaskRun(mine, estimates, spans, steps, pointers, software).run(clock)
    started = [node.key for node in nodes if spans[node.key].start is not None]
    places = {node.key: place for place, node in enumerate(nodes)}
    started.sort(key=lambda key: (spans[key].start, places[key]))
    endless = _endless(nodes)
    stuck = [node.key for node in nodes if spans[node.key].end is None or node.key in endless]
    waiting = [node.key for node in nodes if spans[node.key].start is None]
    return Schedule(spans, started + waiting, steps, clock, stuck)


@dataclass
class _Engine:
    """The two register groups of an engine and its queue. ``running``: in the order in which the hardware goes."""

    queue: list[Operation]
    next: int = 0
    groups: list[Operation | None] = field(default_factory=lambda: [None, None])
    running: list[Operation] = field(default_factory=list)
    busy: bool = False


class _TaskRun:
    """One task on the engines."""

    def __init__(
        self,
        nodes: list[Operation],
        estimates: dict[Key, Estimate],
        spans: dict[Key, Span],
        steps: list[Step],
        pointers: dict[str, int],
        software: int,
    ) -> None:
        self.operations = {node.key: node for node in nodes}
        self.estimates, self.spans, self.steps, self.software = estimates, spans, steps, software
        self.pointers = pointers  # the group that the hardware takes next; they stay from task to task
        self.chains = {chain[0].key: chain for chain in chains(nodes)}
        self.counts = {node.key: node.waits_for for node in nodes}
        self.enabled: set[Key] = set()
        self.engines = {
            name: _Engine(sorted((n for n in nodes if n.engine == name and n.queue >= 0), key=lambda n: n.queue))
            for name in ENGINES
        }
        self.events: list[tuple[int, int, Callable[[int], None]]] = []
        self._number = 0

    def run(self, start: int) -> int:
        """Everything that can run; the cycle of the last event."""
        for name in ENGINES:
            for _ in GROUPS:
                self._submit(name, start)
        clock = start
        self._start_hardware(clock)
        while self.events:
            clock, _, action = heapq.heappop(self.events)
            action(clock)
            self._start_hardware(clock)
        return clock

    def _at(self, time: int, action: Callable[[int], None]) -> None:
        self._number += 1
        heapq.heappush(self.events, (time, self._number, action))

    # ---- firmware

    def _submit(self, name: str, now: int) -> None:
        """Program the next operation of the queue if a group is free and the lookup tables allow it."""
        engine = self.engines[name]
        if engine.next >= len(engine.queue):
            return
        group = self._free_group(name)
        if group is None:
            return
        node = engine.queue[engine.next]
        if not self._may_program(engine, node, group):
            return
        engine.next += 1
        engine.groups[group] = node
        engine.running.append(node)
        span = self.spans[node.key]
        span.group, span.programmed = group, now
        self._note("program", now, node, group)
        self._announce(node, "OP_PROGRAMMED", now)
        if self.counts[node.key] == 0:
            self._enable(node, now)

    def _free_group(self, name: str) -> int | None:
        taken = [node is not None for node in self.engines[name].groups]
        if all(taken):
            return None
        return taken.index(False) if any(taken) else self.pointers[name]

    def _may_program(self, engine: _Engine, node: Operation, group: int) -> bool:
        """An engine's only lookup tables are not overwritten while the other group may use them (sdp.c, cdp.c)."""
        lut = _lut(node)
        other = engine.groups[1 - group]
        if lut == -1 or other is None or _lut(other) == lut:
            return True
        return _lut(other) == -1 and other.key not in self.enabled

    def _enable(self, node: Operation, now: int) -> None:
        span = self.spans[node.key]
        if span.group is None or node.key in self.enabled:
            return
        self.enabled.add(node.key)
        span.enabled = now
        self._note("enable", now, node, span.group)
        self._announce(node, "OP_ENABLED", now)

    def _announce(self, node: Operation, event: str, now: int) -> None:
        """Count down the operations that wait for the event."""
        for dependency in node.dependencies:
            if dependency.event != event or dependency.target not in self.operations:
                continue
            target = dependency.target
            if self.counts[target] > 0:
                self.counts[target] -= 1
                if self.counts[target] == 0:
                    self._enable(self.operations[target], now)

    def _complete(self, node: Operation, now: int) -> None:
        engine, span = self.engines[node.engine], self.spans[node.key]
        assert span.group is not None
        self._note("complete", now, node, span.group)
        engine.groups[span.group] = None
        self._announce(node, "OP_COMPLETED", now)
        for _ in GROUPS:  # the one that waited for the lookup tables, and the one behind it
            self._submit(node.engine, now)

    def _note(self, what: str, now: int, node: Operation, group: int) -> None:
        self.steps.append(Step(what, now, node.key, node.engine, group))

    # ---- hardware

    def _start_hardware(self, now: int) -> None:
        """Start every chain whose engines are free and whose operations are enabled."""
        moved = True
        while moved:
            moved = False
            for name in ENGINES:
                engine = self.engines[name]
                head = engine.running[0] if engine.running else None
                chain = self.chains.get(head.key) if head and not engine.busy else None
                if chain and _is_whole(chain) and all(self._is_ready(node) for node in chain):
                    self._start(chain, now)
                    moved = True

    def _is_ready(self, node: Operation) -> bool:
        engine = self.engines[node.engine]
        return not engine.busy and bool(engine.running) and engine.running[0] is node and node.key in self.enabled

    def _start(self, chain: list[Operation], now: int) -> None:
        estimate = self.estimates[chain[0].key]
        time, total = estimate.time, estimate.cycles or 0
        for node in chain:
            span = self.spans[node.key]
            span.start, span.end = now, now + total
            self.engines[node.engine].busy = True
        first = self.spans[chain[0].key]
        if chain[0].engine == "conv" and time:
            first.data_done, first.weights_done = now + time.data_done, now + time.weights_done
            first.first_mac, first.last_mac = now + time.first_mac, now + time.last_mac
            self._interrupt(first.weights_done, lambda at: self._announce(chain[0], "CDMA_WT_DONE", at))
            self._interrupt(first.data_done, lambda at: self._announce(chain[0], "CDMA_DT_DONE", at))
        for node in chain:
            end = self.spans[node.key].end
            assert end is not None
            self._at(end, self._freer(node))
            self._interrupt(end, self._completer(node))

    def _interrupt(self, time: int, action: Callable[[int], None]) -> None:
        self._at(time + self.software, action)

    def _freer(self, node: Operation) -> Callable[[int], None]:
        """The hardware goes on with the other group by itself."""

        def free(now: int) -> None:
            engine = self.engines[node.engine]
            engine.busy = False
            engine.running.pop(0)
            group = self.spans[node.key].group
            assert group is not None
            self.pointers[node.engine] = 1 - group

        return free

    def _completer(self, node: Operation) -> Callable[[int], None]:
        return lambda now: self._complete(node, now)


def _endless(nodes: list[Operation]) -> set[Key]:
    """Operations after which their engine's queue comes back to itself or to an earlier one: it never ends."""
    places = {node.key: (node.engine, node.queue) for node in nodes}
    return {
        node.key
        for node in nodes
        for each in node.dependencies
        if not each.fused and each.target in places and _comes_before(places[each.target], places[node.key])
    }


def _comes_before(target: tuple[str, int], place: tuple[str, int]) -> bool:
    return target[0] == place[0] and target[1] <= place[1]


def _is_whole(chain: list[Operation]) -> bool:
    """Whether somebody gives what the first takes on the fly, and takes what the last gives."""
    return not (chain[0].takes_on_the_fly or chain[-1].gives_on_the_fly)


def _lut(node: Operation) -> int:
    return getattr(node.op, "lut_index", -1)


def busy_cycles(schedule: Schedule, keys: Iterable[Key]) -> int:
    """Cycles in which any of the operations is at work."""
    spans = sorted(
        (span.start, span.end)
        for span in (schedule.spans[key] for key in keys)
        if span.start is not None and span.end is not None
    )
    total, reached = 0, 0
    for start, end in spans:
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return total
