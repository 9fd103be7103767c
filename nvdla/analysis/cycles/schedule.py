"""Schedule of operations over time, with the cycles that programming them takes.

The rules are those of the firmware (kmd/firmware/scheduler.c), as :mod:`nvdla.emulator.firmware.scheduler` states them:
each
engine's operations form a queue, up to two are programmed ahead in its register groups, one is enabled when all that it
waits for has happened. The firmware is one thread: it answers the interrupts that have come, programs and enables, each
register access taking its time. The units (:mod:`nvdla.analysis.cycles.hardware`) work on an engine's operations in the
order of the queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from ctypes import Structure
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from nvdla.analysis.cycles.constants import ChainShape, CycleConstants, Memory, Software
from nvdla.analysis.cycles.hardware import Hardware, Run
from nvdla.analysis.cycles.simulation import Process, SimulatedEvent, whole_cycles
from nvdla.loadable.descriptors.enums import ENGINE_NAMES, SdpMode, SdpType
from nvdla.loadable.descriptors.meaning import reads_operands
from nvdla.program.operation import Key


class Accesses(NamedTuple):
    """Register writes and reads."""

    writes: int
    reads: int = 0


# The interrupt's cause written back; the writes that select a group and enable it.
INTERRUPT = Accesses(1)
ENABLE = {
    "bdma": Accesses(2),
    "conv": Accesses(10),
    "sdp": Accesses(4),
    "pdp": Accesses(4),
    "cdp": Accesses(4),
    "rubik": Accesses(2),
}
# What the RTL's bus takes to program a register group, in register writes. A convolution: 71 writes, and waits between
# its reads. An entry of a lookup table takes 1.055 writes: 334 of the SDP and 338 of the CDP with their bounds.
CONV_WRITES, PDP_WRITES, PDP_READ_WRITES, CDP_WRITES = 73, 29, 15, 24
SDP_TABLE_WRITES, CDP_TABLE_WRITES = 352, 356
SDP_WRITES, SDP_READ_WRITES, SDP_INPUT_WRITES, SDP_OUTPUT_WRITES, SDP_OPERAND_WRITES = 20, 6, 5, 4, 4
# Reads of the pointers and, with Software.status, of the state of each unit and of the interrupt mask.
CONV_READS, CONV_STATUS_READS, STATUS_READS = 5, 5, 1


def select_accesses(engine: str) -> Accesses:
    """With both groups free the firmware asks the hardware which comes next; read DMAs are asked, too."""
    return Accesses(0, 1 if engine == "conv" else 2 if engine in ("sdp", "pdp", "cdp") else 1)


def program_accesses(node: Scheduled, status: bool = False) -> Accesses:
    """To program a register group for an operation; ``status``: with all reads."""
    if node.engine == "conv":
        return Accesses(CONV_WRITES, CONV_READS + CONV_STATUS_READS * status)
    reads = STATUS_READS * status
    if node.engine == "sdp":
        return Accesses(_sdp_writes(node), reads)
    if node.engine == "pdp":
        return Accesses(PDP_WRITES if node.takes_on_the_fly else PDP_WRITES + PDP_READ_WRITES, reads)
    if node.engine == "cdp":
        return Accesses(CDP_WRITES + CDP_TABLE_WRITES, reads)
    return Accesses(10)


def _sdp_writes(node: Scheduled) -> int:
    """Writes of the SDP's driver: those of its read DMA only if that has something to read."""
    writes = SDP_WRITES + SDP_OUTPUT_WRITES * (not node.gives_on_the_fly)
    if node.op is None:  # a bias for each kernel
        return writes + SDP_READ_WRITES + SDP_OPERAND_WRITES + 2 + SDP_INPUT_WRITES * (not node.takes_on_the_fly)
    stages = [(name, getattr(node.op, f"{name}_op")) for name in ("x1", "x2", "y")]
    stages = [(name, stage) for name, stage in stages if stage.enable]
    operands = sum(reads_operands(stage) for _, stage in stages)
    if operands or not node.takes_on_the_fly:
        writes += SDP_READ_WRITES + SDP_OPERAND_WRITES * operands + SDP_INPUT_WRITES * (not node.takes_on_the_fly)
    for name, stage in stages:
        alu, product = stage.type in (SdpType.ADD, SdpType.BOTH), stage.type in (SdpType.MUL, SdpType.BOTH)
        per_layer = stage.mode == SdpMode.PER_LAYER
        writes += 1 + ((2 if per_layer else 4) * (alu + product) if name == "y" else alu + 2 * per_layer)
    return writes + SDP_TABLE_WRITES * (node.op.lut_index >= 0)


GROUPS = (0, 1)


class Awaited(Protocol):
    """An event of an operation that another one waits for; ``on_the_fly``: the operation before it on the fly."""

    @property
    def target(self) -> Key:
        """The operation that waits."""

    @property
    def event(self) -> str:
        """Name of the event."""

    @property
    def on_the_fly(self) -> bool:
        """True for the operation before it on the fly."""


class Scheduled(Protocol):
    """An operation, or a unit's part of a chain, as the schedule needs it."""

    @property
    def key(self) -> Key:
        """Its place in the loadable."""

    @property
    def engine(self) -> str:
        """The engine that it runs on."""

    @property
    def queue(self) -> int:
        """Its position among the operations of its engine."""

    @property
    def takes_on_the_fly(self) -> bool:
        """True if it reads the output of another unit without memory."""

    @property
    def gives_on_the_fly(self) -> bool:
        """True if another unit reads its output without memory."""

    @property
    def waits_for(self) -> int:
        """Number of events that it waits for."""

    @property
    def dependencies(self) -> Sequence[Awaited]:
        """The events of it that others wait for."""

    @property
    def op(self) -> Structure | None:
        """Its descriptor."""


@dataclass(frozen=True)
class ChainWork:
    """A chain on the fly: its operations, and what the units do (None: nothing that is modelled)."""

    nodes: Sequence[Scheduled]
    shape: ChainShape | None
    constants: CycleConstants
    elements: int = 0


@dataclass
class Span:
    """An operation in time (cycles from the first register write of the run; None: it never happens).

    ``group``: its register group; ``start`` and ``end``: when its engine works on it (a convolution that is fetched
    ahead begins before ``start``). ``first_mac`` and ``last_mac`` of a convolution. ``held``: cycles in which it waits
    for the memory port or, for a convolution between these two, for weights.
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
    held: int = 0


@dataclass(frozen=True)
class ScheduledStep:
    """A step of the firmware: ``what`` is "program", "enable" or "complete"."""

    what: str
    time: int
    key: Key
    engine: str
    group: int


@dataclass(frozen=True)
class Schedule:
    """``spans`` by operation; ``order``: operations as they begin, those that never do last; ``cycles``: the end of the
    last that ends; ``stuck``: operations that wait indefinitely,
    or that the firmware would do again and again; ``firmware``: (begin, end) of its register accesses and answers."""

    spans: dict[Key, Span]
    order: list[Key]
    steps: list[ScheduledStep]
    cycles: int
    stuck: list[Key]
    firmware: list[tuple[int, int]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Check whether every operation comes to its end."""
        return not self.stuck

    @property
    def total(self) -> int | None:
        """Cycles of a run; None: a deadlock, the run never ends."""
        return self.cycles if self.complete else None


def schedule(works: list[ChainWork], memory: Memory, software: Software | None = None) -> Schedule:
    """The schedule of all tasks, one after the other, of the chains of their operations.

    Never fails: what a broken graph keeps waiting is listed as stuck.
    """
    software = software or Software()
    nodes = [node for work in works for node in work.nodes]
    spans = {node.key: Span(node.key, node.engine) for node in nodes}
    steps: list[ScheduledStep] = []
    firmware: list[tuple[int, int]] = []
    clock = 0
    pointers = dict.fromkeys(ENGINE_NAMES, 0)
    for mine in _by_task(works):
        if mine[0].nodes[0].engine == "cpu":
            for work in mine:
                span = spans[work.nodes[0].key]
                span.programmed = span.enabled = span.start = clock
                clock += software.cpu_cycles(work.elements)
                span.end = clock
        else:
            clock = _TaskRun(mine, memory, software, spans, steps, firmware, pointers, clock).run()
    places = {node.key: place for place, node in enumerate(nodes)}
    started = [node.key for node in nodes if spans[node.key].start is not None]
    started.sort(key=lambda key: (spans[key].start, places[key]))
    endless = _endless(nodes)
    stuck = [node.key for node in nodes if spans[node.key].end is None or node.key in endless]
    waiting = [node.key for node in nodes if spans[node.key].start is None]
    return Schedule(spans, started + waiting, steps, clock, stuck, firmware)


def _by_task(works: list[ChainWork]) -> list[list[ChainWork]]:
    tasks: dict[int, list[ChainWork]] = {}
    for work in works:
        tasks.setdefault(work.nodes[0].key[0], []).append(work)
    return list(tasks.values())


@dataclass
class _Engine:
    """The two register groups of an engine and its queue. ``running``: enabled or programmed, in the order in which the
    hardware goes, ``places`` in it by key; ``begun``: how many of them the hardware has begun; ``events``: what
    interrupts reported, by group.
    """

    queue: list[Scheduled]
    next: int = 0
    groups: list[Scheduled | None] = field(default_factory=lambda: [None, None])
    running: list[Scheduled] = field(default_factory=list)
    begun: int = 0
    places: dict[Key, int] = field(default_factory=dict)
    last_group: int = 1
    events: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))


class _TaskRun:
    """One task on the engines: the firmware's thread as a process of the simulation."""

    def __init__(
        self,
        works: list[ChainWork],
        memory: Memory,
        software: Software,
        spans: dict[Key, Span],
        steps: list[ScheduledStep],
        firmware: list[tuple[int, int]],
        pointers: dict[str, int],
        start: int,
    ) -> None:
        nodes = [node for work in works for node in work.nodes]
        self.nodes = {node.key: node for node in nodes}
        self.works = {work.nodes[0].key: work for work in works}
        self.fed = {work.nodes[1].key: work for work in works if _adds(work.shape)}
        self.operands: dict[Key, SimulatedEvent] = {}
        self.software, self.spans, self.steps, self.firmware = software, spans, steps, firmware
        self.pointers = pointers  # the group that the hardware takes next; they stay from task to task
        self.counts = {node.key: node.waits_for for node in nodes}
        self.enabled: set[Key] = set()
        self.engines = {
            name: _Engine(sorted((n for n in nodes if n.engine == name and n.queue >= 0), key=lambda n: n.queue))
            for name in ENGINE_NAMES
        }
        self.hardware = Hardware(works[0].constants, memory)
        self.simulation = self.hardware.simulation
        self.simulation.now = self.hardware.simulation.port.since = float(start)
        self.interrupt = SimulatedEvent()
        self.at_work = 0

    @property
    def now(self) -> int:
        return round(self.simulation.now)

    def run(self) -> int:
        """Everything that can run; the cycle of the last event."""
        self.simulation.start(self._firmware())
        self.simulation.run()
        return max(self.now, *(self.spans[key].end or 0 for key in self.nodes))

    # ---- firmware

    def _firmware(self) -> Process:
        for name in ENGINE_NAMES:
            for _ in GROUPS:
                yield from self._submit(name)
        while True:
            if not any(any(engine.events) for engine in self.engines.values()):
                self.interrupt = SimulatedEvent()
                yield self.interrupt
                yield self._until(self.simulation.now + self.software.answer)
            yield self._spend(INTERRUPT)
            yield from self._process_events()

    def _spend(self, accesses: Accesses) -> float:
        """The time at which so many register accesses are done."""
        return self._until(self.simulation.now + self.software.register_cycles(accesses))

    def _until(self, time: float) -> float:
        """Record that the firmware is at work from now to ``time``."""
        self.firmware.append((self.now, round(time)))
        return time

    def _process_events(self) -> Process:
        """Return what the interrupts reported when they were read: by engine, the other group's first, completion
        last."""
        for name in ENGINE_NAMES:
            engine = self.engines[name]
            first = 1 - engine.last_group
            for group in (first, 1 - first):
                events, node = set(engine.events[group]), engine.groups[group]
                engine.events[group].clear()
                if node is None:
                    continue
                for event in ("CDMA_WT_DONE", "CDMA_DT_DONE"):
                    if event in events:
                        yield from self._announce(node, event)
                if "OP_COMPLETED" in events:
                    yield from self._complete(node)

    def _submit(self, name: str) -> Process:
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
        if not any(engine.groups) and self.steps:  # a run is measured from its first write
            yield self._spend(select_accesses(name))
        engine.next += 1
        engine.groups[group] = node
        engine.places[node.key] = len(engine.running)
        engine.running.append(node)
        span = self.spans[node.key]
        span.group, span.programmed = group, self.now
        self._note("program", node, group)
        yield self._spend(program_accesses(node, self.software.status))
        yield from self._announce(node, "OP_PROGRAMMED")
        if self.counts[node.key] == 0:
            yield from self._enable(node)

    def _free_group(self, name: str) -> int | None:
        taken = [node is not None for node in self.engines[name].groups]
        if all(taken):
            return None
        return taken.index(False) if any(taken) else self.pointers[name]

    def _may_program(self, engine: _Engine, node: Scheduled, group: int) -> bool:
        """An engine's only lookup tables are not overwritten while the other group may use them (sdp.c, cdp.c)."""
        lut = _lut(node)
        other = engine.groups[1 - group]
        if lut == -1 or other is None or _lut(other) == lut:
            return True
        return _lut(other) == -1 and other.key not in self.enabled

    def _enable(self, node: Scheduled) -> Process:
        span = self.spans[node.key]
        if span.group is None or node.key in self.enabled:
            return
        self.enabled.add(node.key)
        self._note("enable", node, span.group)
        yield self._spend(ENABLE[node.engine])
        span.enabled = self.now
        self._start_hardware()
        yield from self._announce(node, "OP_ENABLED")

    def _announce(self, node: Scheduled, event: str) -> Process:
        """Count down the operations that wait for the event."""
        for dependency in node.dependencies:
            if dependency.event != event or dependency.target not in self.nodes:
                continue
            target = dependency.target
            if self.counts[target] > 0:
                self.counts[target] -= 1
                if self.counts[target] == 0:
                    yield from self._enable(self.nodes[target])

    def _complete(self, node: Scheduled) -> Process:
        engine, span = self.engines[node.engine], self.spans[node.key]
        assert span.group is not None
        self._note("complete", node, span.group)
        engine.groups[span.group] = None
        engine.last_group = span.group
        yield from self._announce(node, "OP_COMPLETED")
        for _ in GROUPS:  # the one that waited for the lookup tables, and the one after it
            yield from self._submit(node.engine)

    def _note(self, what: str, node: Scheduled, group: int) -> None:
        self.steps.append(ScheduledStep(what, self.now, node.key, node.engine, group))

    # ---- hardware

    def _start_hardware(self) -> None:
        """Begin every chain that is enabled and next in the queues of its engines."""
        moved = True
        while moved:
            moved = False
            for name in ENGINE_NAMES:
                engine = self.engines[name]
                head = engine.running[engine.begun] if engine.begun < len(engine.running) else None
                work = self.works.get(head.key) if head else None
                if work and _is_whole(work.nodes) and all(self._is_ready(node) for node in work.nodes):
                    self._start(work)
                    moved = True
        self._read_operands()

    def _read_operands(self) -> None:
        """The SDP reads the operands of its next operation when that is enabled, even if its convolution is not."""
        engine = self.engines["sdp"]
        head = engine.running[engine.begun] if engine.begun < len(engine.running) else None
        work = self.fed.get(head.key) if head else None
        if work and head and head.key in self.enabled and work.nodes[0].key not in self.operands:
            assert work.shape is not None
            self.operands[work.nodes[0].key] = self.hardware.read_operands(work.shape, work.constants)

    def _is_ready(self, node: Scheduled) -> bool:
        engine = self.engines[node.engine]
        return engine.begun < len(engine.running) and engine.running[engine.begun] is node and node.key in self.enabled

    def _start(self, work: ChainWork) -> None:
        for node in work.nodes:
            self.engines[node.engine].begun += 1
        assert work.shape is not None
        run = self.hardware.start(work.shape, work.constants, self.operands.get(work.nodes[0].key))
        events = {"conv": run.conv_done, "sdp": run.sdp_done, "pdp": run.pdp_done}
        for node in work.nodes:
            done = events.get(node.engine, run.done)
            self.simulation.start(self._watch(done, self._finisher(node, run)))
        first = work.nodes[0]
        if first.engine == "conv":
            self.simulation.start(self._watch(run.weights_in, lambda: self._fetched(first, "CDMA_WT_DONE")))
            self.simulation.start(self._watch(run.data_in, lambda: self._fetched(first, "CDMA_DT_DONE")))

    def _watch(self, event: SimulatedEvent, action: Callable[[], None]) -> Process:
        yield event
        action()

    def _finisher(self, node: Scheduled, run: Run) -> Callable[[], None]:
        """The engine is done: it goes on with the other group by itself."""

        def finish() -> None:
            span = self.spans[node.key]
            assert span.group is not None and span.enabled is not None
            before = [span.end for span in self._earlier(node) if span.end is not None]
            begun = round(run.started)
            span.start = max([span.enabled, begun, *before])
            # Not fetched ahead: as many cycles as the chain takes alone, also where it begins within a cycle.
            whole = whole_cycles(self.simulation.now - run.started)
            span.end = begun + whole if span.start == begun else max(self.now, span.start)
            if node.engine == "conv":
                span.first_mac, span.last_mac = math.ceil(run.first_mac), math.ceil(run.last_mac)
            span.held = round(run.waits["weights"] if node.engine == "conv" else run.slowed)
            self.pointers[node.engine] = 1 - span.group
            self._raise(node, "OP_COMPLETED")

        return finish

    def _earlier(self, node: Scheduled) -> list[Span]:
        """The operation before it in its engine."""
        engine = self.engines[node.engine]
        place = engine.places[node.key]
        return [self.spans[other.key] for other in engine.running[max(place - 1, 0) : place]]

    def _fetched(self, node: Scheduled, event: str) -> None:
        span = self.spans[node.key]
        if event == "CDMA_WT_DONE":
            span.weights_done = self.now
        else:
            span.data_done = self.now
        if any(dependency.event == event for dependency in node.dependencies):
            self._raise(node, event)

    def _raise(self, node: Scheduled, event: str) -> None:
        group = self.spans[node.key].group
        assert group is not None
        self.engines[node.engine].events[group].add(event)
        self.simulation.happen(self.interrupt)


def _endless(nodes: Sequence[Scheduled]) -> set[Key]:
    """Operations after which their engine's queue comes back to itself or to an earlier one: it never ends."""
    places = {node.key: (node.engine, node.queue) for node in nodes}
    return {
        node.key
        for node in nodes
        for dependency in node.dependencies
        if not dependency.on_the_fly
        and dependency.target in places
        and _comes_before(places[dependency.target], places[node.key])
    }


def _comes_before(target: tuple[str, int], place: tuple[str, int]) -> bool:
    return target[0] == place[0] and target[1] <= place[1]


def _adds(shape: ChainShape | None) -> bool:
    """Check whether an SDP after a convolution reads an operand for every element."""
    return bool(shape and shape.conv and shape.sdp and shape.sdp.operand_bytes)


def _is_whole(chain: Sequence[Scheduled]) -> bool:
    """Check whether something gives what the first takes on the fly, and takes what the last gives."""
    return not (chain[0].takes_on_the_fly or chain[-1].gives_on_the_fly)


def _lut(node: Scheduled) -> int:
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
