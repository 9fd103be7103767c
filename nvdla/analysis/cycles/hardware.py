"""The units at work: chains of operations as processes on a common memory port.

Every unit works on its operations in the order in which they are queued, and has two register groups, so a queued
operation begins before its predecessor is done, each part as soon as it can:

* CDMA fetches a convolution's data and weights when those of the one before are in, as far as the banks have room
  beside what that one still holds: weights leave group by group, data only when all is multiplied, and enter slice by
  slice. Weights are not fetched ahead when the number of banks changes.
* CSC and CMAC begin when all data and the first group's weights are in. A group waits for its weights.
* SDP, PDP and CDP read ahead of their data path; that is free when the operation before has written all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nvdla.analysis.cycles.constants import CycleConstants, Fixed, Memory
from nvdla.analysis.cycles.shapes import (
    CdpShape,
    ChainShape,
    ConvolutionShape,
    CopyShape,
    PdpShape,
    SdpShape,
    kernel_groups,
    stripes,
    taps,
)
from nvdla.analysis.cycles.simulation import Activity, Port, Process, SimulatedEvent, Simulation
from nvdla.analysis.cycles.stripes import Delivery, group_time
from nvdla.rounding import ceil_div

# CDMA: cycles from its start to the first request's acceptance; from an operation's end of fetching to the next one's
# start; to go on when room was made, for data and for weights; to fetch weights into other banks than before.
FETCH, NEXT_FETCH, RESUME_DATA, RESUME_WEIGHTS, CHANGE_BANKS, REUSED = 45, 15, 21, 18, 68, 6
# From the last data, from weights, and from the last MAC of the operation before to the first MAC, loading apart.
DATA_TO_MAC, WEIGHTS_TO_MAC, MAC_TO_MAC = 26, 18, 58
# CDMA reads the surfaces of a line four at a time.
SURFACES_AT_A_TIME = 4
STAGE = 6
# Fixed cycles that remain where the memory bounds an operation, with reads and writes apart and together.
FLOOR, FLOOR_SHARED = 50, 15
# What the reads of CDMA and of an SDP's stream win against those of PDP and CDP, whose requests are shorter.
CDMA_WEIGHT, SDP_WEIGHT = 3.0, 1.3
# What the units on the fly add to the SDP's pace and to the end.
DELIVERED = 1
CDP_BLOCK = 8


def bandwidth(constants: CycleConstants, memory: Memory) -> float:
    """Bytes a cycle in one direction."""
    return constants.bus if memory.bytes_per_cycle is None else min(constants.bus, memory.bytes_per_cycle)


@dataclass(eq=False)
class Run:
    """A chain on its way. Times are cycles; events happen when the interrupt comes or the part is free for the next."""

    chain: ChainShape
    started: float = 0.0
    data_in: SimulatedEvent = field(default_factory=SimulatedEvent)
    weights_in: SimulatedEvent = field(default_factory=SimulatedEvent)
    first_weights: SimulatedEvent = field(default_factory=SimulatedEvent)
    conv_done: SimulatedEvent = field(default_factory=SimulatedEvent)
    sdp_done: SimulatedEvent = field(default_factory=SimulatedEvent)
    pdp_done: SimulatedEvent = field(default_factory=SimulatedEvent)
    done: SimulatedEvent = field(default_factory=SimulatedEvent)
    first_mac: float = 0.0
    last_mac: float = 0.0
    waited: float = 0.0
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
    that are asked for now come when it is free."""

    read: SimulatedEvent = field(default_factory=SimulatedEvent)
    soon: SimulatedEvent = field(default_factory=SimulatedEvent)
    free: SimulatedEvent = field(default_factory=SimulatedEvent)


class Hardware:
    """The units of one configuration, idle at first. ``start`` a chain when it is enabled."""

    def __init__(self, constants: CycleConstants, memory: Memory) -> None:
        self.memory = memory
        self.rate = bandwidth(constants, memory)
        self.simulation = Simulation(Port(self.rate, memory.shared))
        self._last_conv: Run | None = None
        self._paths = {unit: self._idle() for unit in ("sdp", "pdp", "cdp", "copy")}

    def _idle(self) -> Path:
        path = Path()
        path.read.time = path.soon.time = path.free.time = 0.0
        return path

    def start(self, chain: ChainShape, constants: CycleConstants) -> Run:
        """Enable a chain now; what it does goes on in the simulation."""
        run = Run(chain, self.simulation.now)
        work = _Work(self, run, constants)
        self.simulation.start(work.process())
        return run


class _Work:
    """One chain's processes."""

    def __init__(self, hardware: Hardware, run: Run, constants: CycleConstants) -> None:
        self.hardware, self.run, self.constants = hardware, run, constants
        self.simulation, self.latency = hardware.simulation, hardware.memory.latency
        self.before = hardware._last_conv
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
        sdp = self.run.chain.sdp
        if sdp and sdp.operand_bytes:
            ahead = min(sdp.operand_bytes, self.constants.operand_queue)
            self.simulation.start(self._read_ahead(ahead))
        yield self.run.data_in
        yield self.run.weights_in
        self.simulation.happen(self.run.fetched)

    def _prepare(self, shape: ConvolutionShape) -> None:
        """Room and weights of each group."""
        run = self.run
        groups = kernel_groups(shape.kernels, self.constants.kernels)
        per_kernel = shape.weight_bytes / shape.kernels
        run.group_bytes = [count * per_kernel for count in groups]
        run.group_in = [SimulatedEvent() for _ in groups]
        run.group_out = [SimulatedEvent() for _ in groups]
        run.entries = shape.entries_per_slice * shape.slices
        if not shape.data_bytes and self.before:
            run.entries = self.before.entries

    def _data(self, shape: ConvolutionShape, start: float) -> Process:
        simulation, run = self.simulation, self.run
        if not shape.data_bytes:
            simulation.happen(run.data_in, start + REUSED)
            return
        before, changed = self._before(shape)
        yield start + FETCH
        slices = shape.slices
        if before and before.released.time is None:
            fitting = self._slices_that_fit(shape, before)
            if changed:
                fitting = 0
            if fitting < slices:
                if fitting:
                    yield self._lines(shape, fitting)
                yield before.released
                yield simulation.now + RESUME_DATA
                slices -= fitting
        yield self._lines(shape, slices)
        simulation.happen(run.data_in, simulation.now + self.latency)

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
        return Activity(cycles * count, self._dram("data", size) / cycles, weight=CDMA_WEIGHT)

    def _dram(self, what: str, size: float) -> float:
        """The bytes of it that go through the memory's port: none of what lies in CVSRAM."""
        return 0.0 if what in self.run.chain.cvsram else size

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
        yield from self._groups(shape, held)
        simulation.happen(run.weights_in, simulation.now + self.latency)

    def _groups(self, shape: ConvolutionShape, held: list[tuple[SimulatedEvent, float]]) -> Process:
        """Fetch the groups' weights one after the other, as far as those before leave room."""
        simulation, run = self.simulation, self.run
        room = max(float(shape.weight_banks * self.constants.bank), *run.group_bytes)
        room -= sum(size for _, size in held[: len(held) - len(run.group_out)])
        oldest = 0
        for event, size in zip(run.group_in, run.group_bytes, strict=True):
            missing = size
            while missing > 1e-9:
                while oldest < len(held) and held[oldest][0].time is not None:
                    room += held[oldest][1]
                    oldest += 1
                if room < 1:
                    yield held[oldest][0]
                    yield simulation.now + RESUME_WEIGHTS
                    continue
                taken = min(room, missing)
                room -= taken
                missing -= taken
                rate = self._dram("weights", self.constants.bus)
                yield Activity(taken / self.constants.bus, rate, weight=CDMA_WEIGHT)
            simulation.happen(event, simulation.now + self.latency)

    def _read_ahead(self, size: int) -> Process:
        """The SDP's operands go ahead of the convolution as far as its queue takes them."""
        yield self.simulation.now + self.constants.sdp.begin
        yield Activity(size / self.constants.bus, self._dram("operand", self.constants.bus), weight=CDMA_WEIGHT)

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
        pace = run.pace = self._pace()
        positions = sum(length * count for length, count in pieces) * lines
        begin = run.first_mac
        earliest = begin
        if "sdp" in self.paths:
            yield self.paths["sdp"][0].free
            earliest = (self.paths["sdp"][0].free.time or 0.0) + self.constants.sdp_to_delivery
        delivery = Delivery(2 * self.constants.kernels, pace, earliest - begin)
        last = pieces[-1][0]
        out: list[SimulatedEvent] = []
        for number in range(len(groups)):
            if number:
                yield run.group_in[number]
                arrived = (run.group_in[number].time or 0.0) + WEIGHTS_TO_MAC + groups[number]
                if arrived > begin and shape.weight_bytes:
                    run.waited += arrived - begin
                    delivery.shift(arrived - begin)
                    begin = arrived
            cycles = group_time(pieces, lines, passes, self.constants.kernels, delivery)
            run.mac_time += cycles
            out.append(SimulatedEvent())
            before = out[number - 1] if number else None
            delivered = begin + cycles + delivery.end
            simulation.start(self._output(delivered, positions * pace, len(groups), before, out[number]))
            if number > 1:
                yield out[number - 2]
            begin = max(begin + cycles, simulation.now)
            yield begin
            simulation.happen(run.group_out[number])
        loading = max(self.constants.kernels - last, 0)
        run.last_mac = begin - loading - 1
        self._delivered = begin + delivery.end
        self._out = out[-1]

    def _output(
        self, end: float, least: float, groups: int, before: SimulatedEvent | None, done: SimulatedEvent
    ) -> Process:
        """A group's share of what the SDP and PDP behind read and write, till ``end`` where the memory is fast enough,
        ``least`` cycles long."""
        if before:
            yield before
        cycles = max(end - self.simulation.now, least)
        sdp, pdp = self.run.chain.sdp, self.run.chain.pdp
        write = (pdp.write_bytes if pdp else sdp.write_bytes if sdp else 0) / groups
        operands = max((sdp.operand_bytes if sdp else 0) - self.constants.operand_queue, 0) / groups
        yield Activity(cycles, self._dram("operand", operands) / cycles, self._dram("write", write) / cycles)
        self.simulation.happen(done)

    def _pace(self) -> float:
        """Cycles in which the units behind take an atom of results."""
        sdp, pdp = self.run.chain.sdp, self.run.chain.pdp
        pace = (self.constants.sdp_y_atom if sdp and sdp.uses_y else self.constants.sdp_atom) + DELIVERED
        if pdp and sdp and sdp.atoms:
            pace = max(pace, self.constants.pdp_atom * pdp.atoms_through / sdp.atoms)
        return pace

    def _finish(self, shape: ConvolutionShape) -> Process:
        """The last stripe leaves through the units behind."""
        simulation, run, chain = self.simulation, self.run, self.run.chain
        simulation.happen(run.conv_done, self._delivered - 24)
        if "sdp" in self.paths:
            simulation.happen(self.paths["sdp"][1].read, self._delivered - 24)
        yield self._delivered
        yield self._out
        run.slowed = simulation.now - self._delivered
        end = self.latency + self.constants.tail
        if chain.sdp:
            end += STAGE * max(chain.sdp.stages - 1, 0)
        if chain.pdp:
            end += 14
        self._complete("sdp", simulation.now + end)
        if chain.pdp:
            self._complete("pdp", simulation.now + end)
        simulation.happen(run.done, simulation.now + end)

    # ---- units from memory to memory

    def _sdp(self, shape: SdpShape) -> Process:
        rate = self.constants.sdp_y_atom if shape.uses_y else self.constants.sdp_atom
        fixed, pdp = self.constants.sdp, self.run.chain.pdp
        work = rate * shape.atoms
        if pdp:
            work = max(work, self.constants.pdp_atom * pdp.atoms_through)
        reads = (self._dram("read", shape.read_bytes), self._dram("operand", shape.operand_bytes))
        write = pdp.write_bytes if pdp else shape.write_bytes
        return self._stream("sdp", fixed, work, reads, write, STAGE * shape.stages)

    def _pdp(self, shape: PdpShape) -> Process:
        work = self.constants.pdp_atom * shape.atoms_through
        return self._stream("pdp", self.constants.pdp, work, (self._dram("read", shape.read_bytes),), shape.write_bytes)

    def _cdp(self, shape: CdpShape) -> Process:
        constants = self.constants
        blocks = shape.height * ceil_div(shape.width, CDP_BLOCK)
        gap = constants.cdp_block_gap + constants.cdp_surface_gap * shape.surfaces
        size = shape.atoms * constants.atom
        work = constants.cdp_atom * shape.atoms + blocks * gap
        return self._stream("cdp", constants.cdp, work, (self._dram("read", size),), size)

    def _copy(self, shape: CopyShape) -> Process:
        work = max(shape.read_bytes, shape.write_bytes) / self.constants.bus
        return self._stream("copy", self.constants.sdp, work, (shape.read_bytes,), shape.write_bytes)

    def _stream(
        self, unit: str, fixed: Fixed, work: float, reads: tuple[float, ...], write: int, stages: int = 0
    ) -> Process:
        """Read, work, write: ``work`` cycles where the memory is fast enough."""
        simulation = self.simulation
        before, mine = self.paths[unit]
        yield before.read
        yield simulation.now + fixed.begin
        work = max(work, 1.0)
        weight = SDP_WEIGHT * max(sum(size > 0 for size in reads), 1) if unit == "sdp" else 1.0
        yield before.soon
        begun = simulation.now
        yield Activity(work, sum(reads) / work, self._dram("write", write) / work, weight)
        slowed = self.run.slowed = simulation.now - begun - work
        yield simulation.now + self.latency
        simulation.happen(mine.read, simulation.now + fixed.read + stages)
        floor = FLOOR_SHARED if self.hardware.memory.shared else FLOOR
        hidden = min(max(fixed.begin + fixed.end + stages - floor, 0), slowed)
        end = simulation.now + self.latency + fixed.end + stages - hidden
        self._complete(unit, end)
        if self.run.chain.pdp and unit == "sdp":
            self._complete("pdp", end)
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
        if unit == "sdp":
            simulation.happen(self.run.sdp_done, end)
        if unit == "pdp":
            simulation.happen(self.run.pdp_done, end)
