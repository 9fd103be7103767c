"""Cycles of single operations on the engines: stripes, transfers, lower bounds.

Each stripe goes over the taps; a tap takes as long as the loading of the next weights at least. CSC may send the last
tap of a stripe only when CACC's buffer (two kernels' worth of the array: a full stripe) has space for its results, and
CACC delivers them one by one as fast as the units after take them.

Every unit works on its operations in the order in which they are queued, and has two register groups. So a queued
operation begins before its predecessor is done, each part as soon as possible:

* CDMA fetches a convolution's data and weights when those of the one before are in, as far as the banks have space
  next to the data that one still holds. Weights leave group by group; data leave only when all is multiplied, and
  enter slice by slice. Weights are not fetched ahead when the number of banks changes.
* CSC and CMAC begin when all data and the first group's weights are in. A group waits for its weights.
* SDP, PDP and CDP read ahead of their data path; that is free when the operation before has written all.

A chain (:class:`~nvdla.analysis.cycles.constants.ChainShape`) runs on the simulated units. Not measured, and so
unproven: Winograd, batches, compressed weights, 16-bit precisions, BDMA, Rubik, CVSRAM.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from nvdla.analysis.cycles.constants import (
    CdpShape,
    ChainShape,
    ConvolutionShape,
    CopyShape,
    CycleConstants,
    Fixed,
    Memory,
    PdpShape,
    SdpShape,
    kernel_groups,
    stripes,
    taps,
)
from nvdla.analysis.cycles.simulation import Activity, Flight, Port, Process, SimulatedEvent, Simulation
from nvdla.util.rounding import ceil_div

DELIVERY = 38  # cycles from the first data of a stripe's last tap to its first result delivered
TAKING = 16  # cycles from the first result of a group delivered to a PDP on the fly that works without a gap


class Delivery:
    """CACC's buffer. ``pace``: cycles for an atom of results; times count from the beginning of the group."""

    def __init__(self, room: int, pace: float, earliest: float = 0.0) -> None:
        self.room, self.pace = room, pace
        self.end = earliest  # of what is delivered so far
        self.first: float | None = None  # result of the group
        self._credits = room
        self._segments: deque[tuple[float, int]] = deque()

    def send(self, moment: float, length: int) -> float:
        """Send a stripe's last tap, at ``moment`` or when CACC has space; return the cycle at which it goes."""
        missing = length - self._credits
        while missing > 0 and self._segments:
            begin, count = self._segments.popleft()
            taken = min(count, missing)
            moment = max(moment, begin + self.pace * taken)
            if taken < count:
                self._segments.appendleft((begin + self.pace * taken, count - taken))
            missing -= taken
            self._credits += taken
        self._credits -= length
        begin = max(moment + DELIVERY, self.end)
        self._segments.append((begin, length))
        self.end = begin + self.pace * length
        if self.first is None:
            self.first = begin
        return moment

    def taken_by(self, pace: float, positions: int, earlier: float) -> float:
        """Return when a unit after that takes ``pace`` cycles for an atom has taken the group's ``positions``, as they
        come
        and not before ``earlier``: bound by all of them, or by the last stripe."""
        begin, length = self._segments[-1]
        if positions <= length:
            return max(earlier, begin) + pace * length
        return max(max(earlier, (self.first or 0.0) + TAKING) + pace * positions, begin + pace * length)

    def shift(self, cycles: float) -> None:
        """Count from another beginning, so many cycles later."""
        self.end -= cycles
        if self.first is not None:
            self.first -= cycles
        self._segments = deque((begin - cycles, count) for begin, count in self._segments)

    @property
    def state(self) -> tuple[float, ...]:
        """Return the state that decides the time of the next stripes."""
        return (round(self.end, 6), self._credits, *(round(part, 6) for segment in self._segments for part in segment))


def group_time(pieces: list[tuple[int, int]], lines: int, taps: int, loading: int, delivery: Delivery) -> float:
    """Cycles from the first data of a group to the first of the next one. ``pieces``: (length, how many) of the stripes
    of a line, ``lines`` of them; ``loading``: cycles in which weights are loaded. ``delivery`` counts from the end of
    the group afterwards."""
    total, line = 0.0, 0
    delivery.first = None
    while line < lines:
        before, clock = delivery.state, 0.0
        for length, count in pieces:
            clock = _equal_stripes(clock, length, count, taps, loading, delivery)
        delivery.shift(clock)
        line += 1
        total += clock
        if delivery.state == before:  # the lines to come are like this one
            assert delivery.first is not None
            delivery.first -= clock * (lines - line)
            return total + clock * (lines - line)
    return total


def _equal_stripes(clock: float, length: int, count: int, taps: int, loading: int, delivery: Delivery) -> float:
    """The clock after ``count`` stripes of one length. ``delivery`` counts from the line's beginning."""
    stripe = max(length, loading)
    number, last = 0, -1.0
    while number < count:
        sent = delivery.send(clock + (taps - 1) * stripe, length)
        gone = sent + stripe - clock
        clock += gone
        number += 1
        if gone == last and number < count:  # steady
            rest = (count - number) * gone
            clock += rest
            first = delivery.first
            delivery.shift(-rest)
            delivery.first = first
            number = count
        last = gone
    return clock


# CDMA: cycles from its start to the first request's acceptance; from an operation's end of fetching to the next one's
# start; to resume when space was freed, for data and for weights; to fetch weights into other banks than before.
FETCH, NEXT_FETCH, RESUME_DATA, RESUME_WEIGHTS, CHANGE_BANKS, REUSED = 45, 15, 21, 18, 68, 6
# From the last data, from weights, and from the last MAC of the operation before to the first MAC, loading apart.
DATA_TO_MAC, WEIGHTS_TO_MAC, MAC_TO_MAC = 26, 18, 58
# CDMA reads the surfaces of a line four at a time.
SURFACES_AT_A_TIME = 4
STAGE = 6
PDP_END = 14  # of a PDP on the fly
# Fixed cycles that remain where an operation is memory-bound, with reads and writes apart and together.
FLOOR, FLOOR_SHARED = 50, 15
# What the reads of CDMA and of an SDP's stream win against those of PDP and CDP, whose requests are shorter.
LONG_REQUESTS = 1.3
# What an SDP stage reads for every kernel comes in the gaps that the others leave.
TABLE_WEIGHT = LONG_REQUESTS / 300
# What the units on the fly add to the SDP's pace and to the end.
DELIVERED = 1
CDP_BLOCK = 8
# Cycles from a unit's request to the next one in the same place of its queue, without the memory's latency.
ROUND_TRIP = 14
# Beats that MCIF has outstanding at most (its register's reset value is 255, one less), and cycles from a beat's
# arrival to the request that takes its place.
OUTSTANDING, RETURN = 256, 2


def bandwidth(constants: CycleConstants, memory: Memory) -> float:
    """Bytes per cycle in one direction."""
    return memory.rate(constants.bus)


def _port(constants: CycleConstants, memory: Memory) -> Port:
    """The memory's port, with the limit of outstanding reads where it is fast enough to reach it."""
    rate, limit, trip = bandwidth(constants, memory), OUTSTANDING * constants.bus, memory.latency + RETURN
    flight = Flight(limit, trip) if rate * trip > limit else None
    return Port(rate, memory.shared, flight, constants.bus, constants.bus, max(limit - rate * memory.latency, 0.0))


@dataclass(eq=False)
class Run:
    """A chain on its way. Times are cycles; events happen when the interrupt comes or the part is free for the next.

    ``waits``: of the MAC array between kernel groups, for weights and until results are written. ``covered``: work of
    the MAC array during transfers that end later than the work.
    """

    chain: ChainShape
    started: float = 0.0
    operands_in: SimulatedEvent | None = None
    data_in: SimulatedEvent = field(default_factory=SimulatedEvent)
    weights_in: SimulatedEvent = field(default_factory=SimulatedEvent)
    conv_done: SimulatedEvent = field(default_factory=SimulatedEvent)
    sdp_done: SimulatedEvent = field(default_factory=SimulatedEvent)
    pdp_done: SimulatedEvent = field(default_factory=SimulatedEvent)
    done: SimulatedEvent = field(default_factory=SimulatedEvent)
    first_mac: float = 0.0
    last_mac: float = 0.0
    waits: dict[str, float] = field(default_factory=lambda: {"weights": 0.0, "memory": 0.0})
    covered: dict[str, float] = field(default_factory=lambda: {"weights": 0.0, "memory": 0.0})
    mac_time: float = 0.0
    slowed: float = 0.0
    pace: float = 0.0
    fetched: SimulatedEvent = field(default_factory=SimulatedEvent)
    released: SimulatedEvent = field(default_factory=SimulatedEvent)
    group_in: list[SimulatedEvent] = field(default_factory=list)
    group_out: list[SimulatedEvent] = field(default_factory=list)
    group_bytes: list[float] = field(default_factory=list)
    entries: int = 0


@dataclass
class Path:
    """A unit's data path: ``read``: the operation before has read all; ``free``: it has written all; ``soon``: data
    that are asked for now come when it is free; ``delivered``: CACC has delivered its last result."""

    read: SimulatedEvent = field(default_factory=SimulatedEvent)
    soon: SimulatedEvent = field(default_factory=SimulatedEvent)
    free: SimulatedEvent = field(default_factory=SimulatedEvent)
    delivered: SimulatedEvent = field(default_factory=SimulatedEvent)


class Hardware:
    """The units of one configuration, idle at first. ``start`` a chain when it is enabled."""

    def __init__(self, constants: CycleConstants, memory: Memory) -> None:
        self.memory = memory
        self.rate = bandwidth(constants, memory)
        self.simulation = Simulation(_port(constants, memory))
        self._last_conv: Run | None = None
        self._paths = {unit: self._idle() for unit in ("sdp", "pdp", "cdp", "copy")}

    def _idle(self) -> Path:
        path = Path()
        path.read.time = path.soon.time = path.free.time = path.delivered.time = 0.0
        return path

    def read_operands(self, chain: ChainShape, constants: CycleConstants) -> SimulatedEvent:
        """Let the SDP of a convolution that starts next, enabled now, read its operands as far as its queue takes them:
        when they are in."""
        done = SimulatedEvent()
        self.simulation.start(self._operands(chain, constants, done))
        return done

    def _operands(self, chain: ChainShape, constants: CycleConstants, done: SimulatedEvent) -> Process:
        enabled, before = self.simulation.now, self._paths["sdp"]
        yield before.free
        yield max(enabled + constants.sdp.begin, self.simulation.now) + self.memory.latency
        size = min(chain.sdp.operand_bytes if chain.sdp else 0, constants.operand_queue)
        if size:
            rates = (0.0, constants.bus) if "operand" in chain.cvsram else (constants.bus, 0.0)
            yield Activity(size / constants.bus, rates[0], weight=LONG_REQUESTS, second_read=rates[1])
        self.simulation.happen(done)

    def start(self, chain: ChainShape, constants: CycleConstants, operands: SimulatedEvent | None = None) -> Run:
        """Enable a chain now; what it does goes on in the simulation. ``operands``: of :meth:`read_operands`."""
        run = Run(chain, self.simulation.now)
        if operands:
            run.operands_in = operands
        work = _Work(self, run, constants)
        self.simulation.start(work.process())
        return run


class _Work:
    """One chain's processes."""

    def __init__(self, hardware: Hardware, run: Run, constants: CycleConstants) -> None:
        self.hardware, self.run, self.constants = hardware, run, constants
        self.simulation, self.latency = hardware.simulation, hardware.memory.latency
        self.before = hardware._last_conv
        self.operands_in: list[SimulatedEvent] = []
        chain = run.chain
        self.paths: dict[str, tuple[Path, Path]] = {}
        for unit in ("sdp", "pdp", "cdp", "copy"):
            if getattr(chain, unit) is not None:
                path = Path()
                self.paths[unit] = hardware._paths[unit], path
                hardware._paths[unit] = path
        if chain.conv:
            hardware._last_conv = run

    def process(self) -> Process:
        chain = self.run.chain
        if chain.conv:
            return self._convolution(chain.conv)
        if chain.sdp:
            return self._sdp(chain.sdp)
        if chain.pdp:
            return self._pdp(chain.pdp)
        if chain.cdp:
            return self._cdp(chain.cdp)
        return self._copy(chain.copy or CopyShape(0, 0))

    # ---- fetching

    def _convolution(self, shape: ConvolutionShape) -> Process:
        self._prepare(shape)
        if self.before:
            yield self.before.fetched
        start = self.simulation.now
        if self.before and self.before.fetched.time is not None and self.before.fetched.time > self.run.started - 1:
            start += NEXT_FETCH
        self.simulation.start(self._multiply(shape))
        self.simulation.start(self._data(shape, start))
        self.simulation.start(self._weights(shape, start))
        sdp = self.run.chain.sdp or SdpShape(0, 0, 0)
        ahead = min(sdp.operand_bytes, self.constants.operand_queue)
        self.operands_in = [
            self.run.operands_in or self._read_ahead("operand", ahead, LONG_REQUESTS),
            self._read_ahead("table", sdp.table_bytes, TABLE_WEIGHT),
        ]
        yield self.run.data_in
        yield self.run.weights_in
        self.simulation.happen(self.run.fetched)

    def _prepare(self, shape: ConvolutionShape) -> None:
        """Compute the space and the weights of each group."""
        run = self.run
        groups = kernel_groups(shape.kernels, self.constants.kernels)
        per_kernel = shape.weight_bytes / shape.kernels
        run.group_bytes = [count * per_kernel for count in groups]
        run.group_in = [SimulatedEvent() for _ in groups]
        run.group_out = [SimulatedEvent() for _ in groups]
        run.entries = shape.entries_per_slice * shape.slices
        if not shape.data_bytes and self.before:
            run.entries = self.before.entries
        if not shape.weight_bytes and self.before and len(self.before.group_bytes) == len(groups):
            run.group_bytes = self.before.group_bytes

    def _data(self, shape: ConvolutionShape, start: float) -> Process:
        simulation, run = self.simulation, self.run
        if not shape.data_bytes:
            simulation.happen(run.data_in, start + REUSED)
            return
        before, changed = self._before(shape)
        yield start + FETCH
        slices, resumed = shape.slices, simulation.now
        if before and before.released.time is None:
            fitting = 0 if changed else self._slices_that_fit(shape, before)
            if fitting < slices:
                if fitting:
                    yield simulation.now + self.latency
                    yield self._lines(shape, fitting)
                yield before.released
                resumed = max(simulation.now - self.latency * (fitting > 0), before.released.time or 0.0) + RESUME_DATA
                slices -= fitting
        yield resumed + self.latency
        yield self._lines(shape, slices)
        simulation.happen(run.data_in)

    def _before(self, shape: ConvolutionShape) -> tuple[Run | None, bool]:
        """The convolution before, and whether the data banks change."""
        if not self.before or not self.before.chain.conv:
            return None, False
        return self.before, self.before.chain.conv.data_banks != shape.data_banks

    def _slices_that_fit(self, shape: ConvolutionShape, before: Run) -> int:
        room = shape.data_banks * self.constants.bank // self.constants.entry - before.entries
        if not shape.entries_per_slice:
            return shape.slices
        return min(max(room // shape.entries_per_slice, 0), shape.slices)

    def _lines(self, shape: ConvolutionShape, count: int) -> Activity:
        """The reading of so many lines of the input at the bus's full width."""
        size = shape.data_bytes / shape.slices
        cycles = self._line_cycles(shape)
        return self._transfer(cycles * count, {"data": size * count}, weight=LONG_REQUESTS)

    def _transfer(
        self, cycles: float, reads: Mapping[str, float], write: float = 0.0, weight: float = 1.0, queue: float = 0.0
    ) -> Activity:
        """The transfer of bytes in ``cycles`` at the least, each through its memory's port; ``queue``: read ahead."""
        second = self.run.chain.cvsram
        read = sum(size for what, size in reads.items() if what not in second)
        other = sum(size for what, size in reads.items() if what in second)
        writes = (0.0, write) if "write" in second else (write, 0.0)
        queue = max(queue - self.latency * read / cycles, 0.0) if read else 0.0
        return Activity(cycles, read / cycles, writes[0] / cycles, weight, other / cycles, writes[1] / cycles, queue)

    def _line_cycles(self, shape: ConvolutionShape) -> float:
        beats = shape.data_bytes / shape.slices / self.constants.bus
        if shape.by_line:
            return beats * 1.06 + 2.4
        width = beats / shape.data_atoms * self.constants.bus / self.constants.atom
        full, rest = divmod(shape.data_atoms, SURFACES_AT_A_TIME)
        cycles = beats + full * (beats / shape.data_atoms + 2.7)
        return cycles + (0.0, 1.1, 2.2, width / 2 + 2.5)[rest]

    def _weights(self, shape: ConvolutionShape, start: float) -> Process:
        simulation, run = self.simulation, self.run
        if not shape.weight_bytes:
            for event in run.group_in:
                simulation.happen(event, start + REUSED)
            simulation.happen(run.weights_in, start + REUSED)
            return
        yield start + FETCH - 4
        held: list[tuple[SimulatedEvent, float]] = []
        before = self.before
        if before and before.chain.conv:
            conv = before.chain.conv
            if (conv.weight_banks, conv.data_banks) != (shape.weight_banks, shape.data_banks):
                if before.released.time is None or before.released.time > start:
                    yield before.released
                    yield simulation.now + CHANGE_BANKS
            else:
                held = list(zip(before.group_out, before.group_bytes, strict=True))
        held += zip(run.group_out, run.group_bytes, strict=True)
        yield simulation.now + self.latency
        yield from self._groups(shape, held)
        simulation.happen(run.weights_in)

    def _groups(self, shape: ConvolutionShape, held: list[tuple[SimulatedEvent, float]]) -> Process:
        """Fetch the groups' weights one after the other, as far as those before leave space."""
        simulation, run = self.simulation, self.run
        room = max(float(shape.weight_banks * self.constants.bank), *run.group_bytes)
        room -= sum(size for _, size in held[: len(held) - len(run.group_out)])
        oldest = 0
        for event, size in zip(run.group_in, run.group_bytes, strict=True):
            missing = size
            while missing > 1e-9:
                asked = simulation.now - self.latency
                while oldest < len(held) and (held[oldest][0].time or math.inf) <= asked:
                    room += held[oldest][1]
                    oldest += 1
                if room < 1:
                    freed = held[oldest][0]
                    yield freed
                    yield max(asked, freed.time or 0.0) + RESUME_WEIGHTS + self.latency
                    continue
                taken = min(room, missing)
                room -= taken
                missing -= taken
                yield self._transfer(taken / self.constants.bus, {"weights": taken}, weight=LONG_REQUESTS)
            simulation.happen(event)

    def _read_ahead(self, what: str, size: float, weight: float) -> SimulatedEvent:
        """The SDP's operands go ahead of the convolution as far as its queue takes them: when they are in."""
        done = SimulatedEvent()
        self.simulation.start(self._operands(what, size, weight, done))
        return done

    def _operands(self, what: str, size: float, weight: float, done: SimulatedEvent) -> Process:
        if size:
            yield self.simulation.now + self.constants.sdp.begin + self.latency
            yield self._transfer(size / self.constants.bus, {what: size}, weight=weight)
        self.simulation.happen(done)

    # ---- multiplying

    def _multiply(self, shape: ConvolutionShape) -> Process:
        simulation, run = self.simulation, self.run
        ready = 0.0
        groups = kernel_groups(shape.kernels, self.constants.kernels)
        if self.before:
            yield self.before.released
            ready = (self.before.released.time or 0.0) + MAC_TO_MAC + groups[0]
        yield run.data_in
        ready = max(ready, (run.data_in.time or 0.0) + DATA_TO_MAC + groups[0] if shape.data_bytes else 0.0)
        yield run.group_in[0]
        weights = (run.group_in[0].time or 0.0) + WEIGHTS_TO_MAC + groups[0]
        yield max(ready, weights if shape.weight_bytes else 0.0)
        run.first_mac = simulation.now
        yield from self._all_groups(shape, groups)
        simulation.happen(run.released)
        yield from self._finish(shape)

    def _all_groups(self, shape: ConvolutionShape, groups: list[int]) -> Process:
        simulation, run = self.simulation, self.run
        pieces, passes = stripes(shape, self.constants), taps(shape, self.constants)
        lines = (shape.out_height if shape.by_line else 1) * shape.batch
        pace, pooled = self._paces()
        run.pace = max(pace, pooled)
        positions = sum(length * count for length, count in pieces) * lines
        begin = run.first_mac
        earliest = begin
        if "sdp" in self.paths:
            earliest = yield from self._sdp_is_ready()
        delivery = Delivery(2 * self.constants.kernels, pace, earliest - begin)
        taken = cycles = 0.0
        last = pieces[-1][0]
        out: list[SimulatedEvent] = []
        for number in range(len(groups)):
            if number:
                yield run.group_in[number]
                arrived = (run.group_in[number].time or 0.0) + WEIGHTS_TO_MAC + groups[number]
                if arrived > begin and shape.weight_bytes:
                    run.waits["weights"] += arrived - begin
                    run.covered["weights"] += cycles
                    delivery.shift(arrived - begin)
                    begin = arrived
            cycles = group_time(pieces, lines, passes, self.constants.kernels, delivery)
            run.mac_time += cycles
            out.append(SimulatedEvent())
            before = out[number - 1] if number else None
            end = begin + cycles
            delivered = end + delivery.end
            if pooled:
                taken = end + delivery.taken_by(pooled, positions, taken - end)
                delivered = max(delivered, taken)
            simulation.start(self._output(delivered, positions * run.pace, len(groups), before, out[number]))
            if number > 1:
                yield out[number - 2]
            begin += cycles
            if simulation.now > begin:
                run.waits["memory"] += simulation.now - begin
                run.covered["memory"] += cycles
                begin = simulation.now
            yield begin
            simulation.happen(run.group_out[number])
        loading = max(self.constants.kernels - last, 0)
        run.last_mac = begin - loading - 1
        self._delivered = delivered
        self._out = out[-1]

    def _sdp_is_ready(self) -> Generator[SimulatedEvent, None, float]:
        """The cycle of the first result that the SDP can take: with operands from memory it waits for the interrupt of
        the operation before, without them only for that operation's last result."""
        ahead, sdp = self.paths["sdp"][0], self.run.chain.sdp
        pooled = 0.0
        if "pdp" in self.paths:
            yield self.paths["pdp"][0].free
            pooled = (self.paths["pdp"][0].free.time or 0.0) + self.constants.sdp_to_delivery
        if sdp and (sdp.operand_bytes or sdp.table_bytes):
            yield ahead.free
            return max((ahead.free.time or 0.0) + self.constants.sdp_to_delivery, pooled)
        yield ahead.delivered
        return max((ahead.delivered.time or 0.0) + DELIVERY, pooled)

    def _output(
        self, end: float, least: float, groups: int, before: SimulatedEvent | None, done: SimulatedEvent
    ) -> Process:
        """A group's share of what the SDP and PDP after read and write, till ``end`` where the memory is fast enough,
        ``least`` cycles long."""
        if before:
            yield before
        cycles = max(end - self.simulation.now, least)
        sdp, pdp = self.run.chain.sdp, self.run.chain.pdp
        write = (pdp.write_bytes if pdp else sdp.write_bytes if sdp else 0) / groups
        operands = max((sdp.operand_bytes if sdp else 0) - self.constants.operand_queue, 0) / groups
        yield self._transfer(cycles, {"operand": operands}, write, LONG_REQUESTS)
        self.simulation.happen(done)

    def _paces(self) -> tuple[float, float]:
        """Cycles in which the SDP and a PDP after it (0: none) take an atom of results."""
        sdp, pdp = self.run.chain.sdp, self.run.chain.pdp
        pace = (self.constants.sdp_y_atom if sdp and sdp.uses_y else self.constants.sdp_atom) + DELIVERED
        if pdp and sdp and sdp.atoms:
            return pace, self.constants.pdp_atom * pdp.atoms_through / sdp.atoms
        return pace, 0.0

    def _finish(self, shape: ConvolutionShape) -> Process:
        """The last stripe leaves through the units after."""
        simulation, run, chain = self.simulation, self.run, self.run.chain
        simulation.happen(run.conv_done, self._delivered - 24)
        if "sdp" in self.paths:
            simulation.happen(self.paths["sdp"][1].read, self._delivered - 24)
        end = self.latency + self.constants.tail
        if chain.sdp:
            end += STAGE * max(chain.sdp.stages - 1, 0)
        if chain.pdp:
            end += PDP_END
            yield self._delivered + end - self._pooling_alone(chain.pdp)
            self._complete("sdp", self._delivered + end - self._pooling_alone(chain.pdp))
        yield self._delivered
        yield self._out
        if "sdp" in self.paths:
            simulation.happen(self.paths["sdp"][1].delivered)
        yield from self.operands_in
        run.slowed = simulation.now - self._delivered
        self._complete("pdp" if chain.pdp else "sdp", simulation.now + end)
        simulation.happen(run.done, simulation.now + end)

    def _pooling_alone(self, shape: PdpShape) -> float:
        """Cycles from the interrupt of an SDP that gives to a PDP on the fly to the PDP's: its last windows, its way to
        the memory, and the response."""
        return self.latency + self.constants.pdp_after_sdp + self.constants.pdp_atom * shape.atoms_at_the_end

    # ---- units from memory to memory

    def _sdp(self, shape: SdpShape) -> Process:
        rate = self.constants.sdp_y_atom if shape.uses_y else self.constants.sdp_atom
        fixed, pdp = self.constants.sdp, self.run.chain.pdp
        work = rate * shape.atoms
        if pdp:
            work = max(work, self.constants.pdp_atom * pdp.atoms_through)
        reads = {"read": shape.read_bytes, "table": shape.table_bytes, "operand": shape.operand_bytes}
        write = pdp.write_bytes if pdp else shape.write_bytes
        return self._stream("sdp", fixed, work, reads, write, STAGE * shape.stages + PDP_END * (pdp is not None))

    def _pdp(self, shape: PdpShape) -> Process:
        work = self.constants.pdp_atom * shape.atoms_through
        return self._stream("pdp", self.constants.pdp, work, {"read": shape.read_bytes}, shape.write_bytes)

    def _cdp(self, shape: CdpShape) -> Process:
        constants = self.constants
        if shape.sums:
            blocks = shape.height * ceil_div(shape.width, CDP_BLOCK)
            gaps = blocks * (constants.cdp_block_gap + constants.cdp_surface_gap * shape.surfaces)
        else:  # no sums to be flushed at the end of a block
            blocks = shape.height * (shape.width // CDP_BLOCK)
            gaps = blocks * constants.cdp_surface_gap * shape.surfaces - constants.cdp_sums
        size = shape.atoms * constants.atom
        work = constants.cdp_atom * shape.atoms + gaps
        return self._stream("cdp", constants.cdp, work, {"read": size}, size)

    def _copy(self, shape: CopyShape) -> Process:
        work = max(shape.read_bytes, shape.write_bytes) / self.constants.bus
        return self._stream("copy", self.constants.sdp, work, {"copy": shape.read_bytes}, shape.write_bytes)

    def _stream(
        self, unit: str, fixed: Fixed, work: float, reads: Mapping[str, float], write: int, stages: int = 0
    ) -> Process:
        """Read, work, write: ``work`` cycles where the memory is fast enough."""
        simulation = self.simulation
        before, mine = self.paths[unit]
        yield before.read
        yield simulation.now + fixed.begin
        starved = reads.get("read", 0.0) / (self.constants.reads_ahead(unit) * self.constants.bus)
        work = max(work, starved * (self.latency + ROUND_TRIP), 1.0)
        streams = max(bool(reads.get("read") or reads.get("table")) + bool(reads.get("operand")), 1)
        weight = LONG_REQUESTS * streams if unit == "sdp" else 1.0
        yield before.soon
        yield simulation.now + self.latency
        begun = simulation.now
        ahead = min(self.constants.reads_ahead(unit) * streams, OUTSTANDING) * (unit != "copy")
        yield self._transfer(work, reads, write, weight, ahead * self.constants.bus)
        slowed = self.run.slowed = simulation.now - begun - work
        if unit == "sdp" and self.run.chain.pdp:
            end = simulation.now + self.latency + fixed.end + stages - self._pooling_alone(self.run.chain.pdp)
            self._complete("sdp", end)
        simulation.happen(mine.read, simulation.now + fixed.read + stages)
        floor: float = FLOOR_SHARED if self.hardware.memory.shared else FLOOR
        if unit == "cdp" and self.hardware.memory.shared:  # the last block is written when nothing more is read
            floor += CDP_BLOCK * self.constants.atom / self.hardware.rate / 2
        hidden = min(max(fixed.begin + fixed.end + stages - floor, 0), slowed)
        end = simulation.now + self.latency + fixed.end + stages - hidden
        self._complete("pdp" if self.run.chain.pdp else unit, end)
        simulation.happen(self.run.done, end)

    def _complete(self, unit: str, end: float) -> None:
        """The unit's interrupt, and when the next operation can use its data path."""
        simulation = self.simulation
        path = self.paths[unit][1] if unit in self.paths else None
        fixed = getattr(self.constants, unit, self.constants.sdp)
        if path:
            simulation.happen(path.read, end + fixed.ready)
            simulation.happen(path.soon, end + fixed.ready - self.latency)
            simulation.happen(path.free, end + fixed.ready)
            simulation.happen(path.delivered, end + fixed.ready)
        if unit == "sdp":
            simulation.happen(self.run.sdp_done, end)
        if unit == "pdp":
            simulation.happen(self.run.pdp_done, end)
