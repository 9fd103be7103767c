"""Self-test kit of a configuration: one register program per engine and mode, and the table of a board's log.

The tests are the probes of :mod:`nvdla.emulator.hardware.support` with data: every mode that a configuration supports
and that writes memory. Data come from the name of the test, so the expected CRCs can be computed again at any time.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration, configuration
from nvdla.emulator.hardware.machine import ENGINES, Machine
from nvdla.emulator.hardware.register_file import Register, RegisterGroup
from nvdla.emulator.hardware.support import (
    CVSRAM,
    DATA,
    OUTPUT,
    REGION_BYTES,
    SIDE,
    WEIGHTS,
    Probe,
    ask,
    probes,
    written,
)
from nvdla.emulator.memory.address_space import AddressSpace, Space
from nvdla.emulator.memory.linker import bounds
from nvdla.errors import FormatError
from nvdla.registers.recording import MemoryState, PartOfRun, Recording
from nvdla.registers.register_program import Await, BoundTensor, Flushed, RegisterProgram, Segment, Step, Write
from nvdla.util.escaping import c_identifier
from nvdla.util.files import read_file
from nvdla.util.precision import Precision
from nvdla.util.rounding import align, ceil_div

#: address of a probe -> memory and offset in the kit
_PLACES = {
    DATA: (Space.DRAM, 0),
    WEIGHTS: (Space.DRAM, REGION_BYTES),
    OUTPUT: (Space.DRAM, 2 * REGION_BYTES),
    CVSRAM: (Space.CVSRAM, 0),
}
_BASES = {Space.DRAM: 0xC0000000, Space.CVSRAM: CVSRAM}
_SIZES = {Space.DRAM: 3 * REGION_BYTES, Space.CVSRAM: REGION_BYTES}
_ADDRESS = re.compile(r"(.*ADDR)_(HIGH|LOW)(_\d)?$")
_STALE = 0xA5
"""Output memory before a test: results of an earlier test do not pass."""


@dataclass(frozen=True)
class SelfTest:
    """One test of a kit: what it covers, and its recording."""

    engine: str
    mode: str
    precision: str
    recording: Recording = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the register program: an identifier in C."""
        return self.recording.register_program.name

    @property
    def crcs(self) -> tuple[int, ...]:
        """CRC-32 of each output."""
        return tuple(zlib.crc32(data) for data in self.recording.outputs)


def self_tests(config: Configuration) -> list[SelfTest]:
    """The tests of all modes that ``config`` supports and whose results are in memory."""
    tests: list[SelfTest] = []
    for probe in probes():
        if probe.mode == "Y compares (EQL)" or not ask(probe, config).supported:
            continue  # EQL counts in a register and writes nothing
        name = c_identifier(f"test{len(tests) + 1}_{probe.engine}_{probe.precision}")
        tests.append(SelfTest(probe.engine, probe.mode, probe.precision, _recording(probe, config, name)))
    return tests


@cache
def _by_key() -> dict[tuple[str, str, str], Probe]:
    return {(probe.engine, probe.mode, probe.precision): probe for probe in probes()}


def _chain(probe: Probe) -> list[Probe]:
    """The probe with the engines that it works with on the fly, in data order."""

    def other(engine: str, mode: str) -> Probe:
        return _by_key()[engine, mode, probe.precision]

    special = {"Winograd": "Winograd order after the convolution", "hardware batch": "hardware batch"}
    if probe.engine == "conv":
        return [probe, other("sdp", special.get(probe.mode, "on the fly after the convolution"))]
    convolutions = {after: before for before, after in special.items()}
    convolutions["on the fly after the convolution"] = "direct"
    if probe.engine == "sdp" and probe.mode in convolutions:
        return [other("conv", convolutions[probe.mode]), probe]
    if (probe.engine, probe.mode) == ("sdp", "on the fly to the PDP"):
        return [probe, other("pdp", "on the fly after the SDP")]
    if (probe.engine, probe.mode) == ("pdp", "on the fly after the SDP"):
        return [other("sdp", "on the fly to the PDP"), probe]
    return [probe]


_NUMBERS = {"int8": (17, 3), "int16": (1700, 3), "fp16": (0x3800, 0xC000)}
"""Operands of the SDP's ALU and multiplier: 0.5 and -2.0 in fp16."""


def _settings(chain: list[Probe], config: Configuration) -> dict[str, int]:
    """Registers that give a chain of probes results that depend on every input."""
    result: dict[str, int] = {}
    for probe in chain:
        addend, factor = _NUMBERS[probe.precision]
        shift = 0 if probe.precision == Precision.FP16 else 1
        if probe.engine == "sdp" and len(chain) > 1 and chain[0].engine == "conv":
            result["SDP.D_DATA_CUBE_CHANNEL"] = 15
            result["SDP.D_CVT_SHIFT"] = {"fp16": 0, "int8": 8, "int16": 16}[probe.precision]
            if chain[0].mode == "Winograd":
                result |= {"SDP.D_DATA_CUBE_WIDTH": 3, "SDP.D_DATA_CUBE_HEIGHT": 3}
        for block, mode in (("BS", "X1 "), ("BN", "X2 ")):
            if probe.engine == "sdp" and probe.mode.startswith(mode):
                result |= {
                    f"SDP.D_DP_{block}_ALU_SRC_VALUE": addend,
                    f"SDP.D_DP_{block}_MUL_SRC_VALUE": factor,
                    f"SDP.D_DP_{block}_MUL_CFG": shift << 8,
                }
        if probe.mode == "image input":  # lines without gaps, 16 kernels of 4 weights
            element, entry = 1 if probe.precision == Precision.INT8 else 2, config.cbuf_entry_bytes
            entries = ceil_div(SIDE * 4 * element, entry) - 1
            result |= {"CDMA.D_ENTRY_PER_SLICE": entries, "CSC.D_ENTRY_PER_SLICE": entries}
            result["CDMA.D_WEIGHT_BYTES"] = align(16 * 4 * element, entry)
        if probe.mode == "compressed weights":
            result["CDMA.D_WEIGHT_BYTES"] = align(_mask(probe)[1], 128)
        if probe.mode == "to int8 in memory" and probe.precision == Precision.INT16:
            result["SDP.D_CVT_SHIFT"] = 8
        if probe.mode == "to int16 in memory" and probe.precision == Precision.FP16:  # times 512
            result |= {"SDP.D_DP_BS_CFG": 1 << 1 | 1 << 6, "SDP.D_DP_BS_MUL_SRC_VALUE": 0x6000}
        if probe.mode == "Y (element-wise)":
            if probe.precision == Precision.FP16:  # operands of this block have 32 bits
                addend, factor = 0x3F000000, 0xC0000000
            result |= {"SDP.D_DP_EW_ALU_SRC_VALUE": addend, "SDP.D_DP_EW_MUL_SRC_VALUE": factor}
            result |= {"SDP.D_DP_EW_ALU_CFG": 2, "SDP.D_DP_EW_MUL_CFG": 2, "SDP.D_DP_EW_TRUNCATE_VALUE": shift}
        if probe.mode == "Y lookup tables" and probe.precision == Precision.INT8:
            result["SDP.D_CVT_SHIFT"] = 8
        if probe.engine == "cdp" and probe.precision != Precision.FP16:
            result["CDP.D_DATOUT_SHIFTER"] = 16 if probe.mode.startswith("local") else 16 - 8 * shift
        if probe.engine == "pdp" and probe.precision == Precision.FP16:
            result |= dict.fromkeys(("PDP.D_RECIP_KERNEL_WIDTH", "PDP.D_RECIP_KERNEL_HEIGHT"), 0x7800)
    return result


def _table_range(probe: Probe) -> tuple[int, int, int] | None:
    """(start, end, index selection) of the table LO; None if the probe uses no lookup table."""
    if probe.mode not in ("Y lookup tables", "lookup table alone", "local response normalization"):
        return None
    squares = probe.engine == "cdp" and probe.mode.startswith("local")
    if probe.precision == Precision.FP16:  # bits of float32: -128 .. 128, or 0 .. 256
        return (0, 0x43800000, 0) if squares else (0xC3000000, 0x43000000, 0)
    bits = 7 if probe.precision == Precision.INT8 else 15
    if squares:
        return 0, 1 << 2 * bits + 3, 2 * bits - 5
    return -(1 << bits), 1 << bits, bits - 7


def _table_writes(probe: Probe, machine: Machine) -> Iterator[tuple[str, int]]:
    """Writes of the lookup tables of SDP or CDP: a linear table LE over the first quarter, LO over the whole range."""
    chosen = _table_range(probe)
    if chosen is None:
        return
    unit = probe.engine.upper()
    start, end, select = chosen
    values = _bytes(f"table {probe.precision}", 2 * (65 + 257), probe.precision).view("<u2")
    for table, entries in ((0, values[:65]), (1, values[65:])):
        yield f"{unit}.S_LUT_ACCESS_CFG", table << 16 | 1 << 17
        for entry in entries.tolist():
            yield f"{unit}.S_LUT_ACCESS_DATA", entry
    yield f"{unit}.S_LUT_CFG", 1 | 1 << 6
    yield f"{unit}.S_LUT_INFO", (select & 0xFF) << 8 | (select & 0xFF) << 16
    quarter = 0 if probe.precision == Precision.FP16 else start + (end - start) // 4
    for kind, low, high in (("LE", start, quarter), ("LO", start, end)):
        for name, value in (("START", low), ("END", high)):
            register = f"{unit}.S_LUT_{kind}_{name}"
            wide = f"S_LUT_{kind}_{name}_LOW" in machine.unit(unit).registers
            yield f"{register}_LOW" if wide else register, value & 0xFFFFFFFF
            if wide:
                yield f"{register}_HIGH", 0 if probe.precision == Precision.FP16 else value >> 32 & 0x3F
    for register in ("LE_SLOPE_SCALE", "LE_SLOPE_SHIFT", "LO_SLOPE_SCALE", "LO_SLOPE_SHIFT"):
        yield f"{unit}.S_LUT_{register}", 0


def _bytes(seed: str, size: int, precision: str) -> np.ndarray:
    """Bytes that depend on ``seed`` alone; in fp16 numbers of magnitude 0.125 to 2."""
    data = np.frombuffer(hashlib.shake_128(seed.encode()).digest(size + size % 2), "<u2")
    if precision == Precision.FP16:
        data = data & 0x8FFF | 0x3000
    return data.astype("<u2").view(np.uint8)[:size].copy()


def _steps(chain: list[Probe], config: Configuration) -> list[Step]:
    """Pointers to group 0, lookup tables, every register of the units, enables from the last engine to the first."""
    machine = written(chain, config, _settings(chain, config))
    registers = machine.registers.map
    steps: list[Step] = [Flushed(registers.register("CDMA", "S_CBUF_FLUSH_STATUS"))]
    units = [unit for probe in chain for unit in ENGINES[probe.engine].units if unit not in probe.idle]
    for unit in units:
        if "S_POINTER" in machine.unit(unit).registers:
            steps.append(Write(registers.register(unit, "S_POINTER"), 0))
    for probe in chain:
        for name, value in _table_writes(probe, machine):
            steps.append(Write(registers.register(*name.split(".")), value))
    for unit in units:
        values = machine.unit(unit).groups[0]
        for register in sorted(machine.unit(unit).registers.values(), key=lambda register: register.address):
            if _is_setting(register):
                steps.append(_write(register, values[register.name], values))
    for probe in reversed(chain):
        for unit in ENGINES[probe.engine].units:
            if unit in units and "D_OP_ENABLE" in machine.unit(unit).registers:
                steps.append(Write(registers.register(unit, "D_OP_ENABLE"), 1))
    if "BDMA" in units:
        steps.append(Write(registers.register("BDMA", "CFG_LAUNCH0"), 1))
    return steps


def _is_setting(register: Register) -> bool:
    """True for registers that software sets before it enables an operation."""
    if register.unit == "BDMA":
        return register.name.startswith("CFG_") and register.name not in ("CFG_LAUNCH0", "CFG_LAUNCH1", "CFG_STATUS")
    counters = ("D_PERF_", "D_STATUS_", "D_INF_", "D_NAN_", "D_OUT_")
    skipped = register.name == "D_OP_ENABLE" or (register.name.startswith(counters) and "ENABLE" not in register.name)
    return register.grouped and register.writable != 0 and not skipped


def _write(register: Register, value: int, values: RegisterGroup) -> Write:
    """A write; halves of addresses become offsets in a memory."""
    match = _ADDRESS.match(register.name)
    if match:
        low = values[f"{match[1]}_LOW{match[3] or ''}"]
        for start, (space, offset) in _PLACES.items():
            if start <= low < start + REGION_BYTES:
                return Write(register, low - start + offset, space, match[2] == "HIGH")
    return Write(register, value)


def _recording(probe: Probe, config: Configuration, name: str) -> Recording:
    """Run the test on the emulator."""
    chain = _chain(probe)
    steps = _steps(chain, config)
    spaces = [Space.DRAM, *([Space.CVSRAM] if config.cvsram else [])]
    memory = AddressSpace()
    contents = {space: memory.map(space.value, space, _BASES[space], _SIZES[space]).data for space in spaces}
    machine = Machine(config, memory)
    for step in steps:
        if isinstance(step, Write):
            machine.registers.write_register(step.register, step.resolved(_BASES))
    segments, (space, start, end) = _contents(probe, chain, machine, contents)
    for segment in segments:
        contents[segment.space][segment.offset : segment.offset + segment.size] = segment.data
    sizes = {space: _SIZES[space] for space in spaces}
    before = MemoryState(sizes, tuple(segments))
    completion = machine.step()
    if completion is None:
        raise FormatError(f"self-test {probe.engine} {probe.mode}: must run, but its engines wait for each other")
    steps.append(Await(completion.interrupts))
    output = BoundTensor(
        "output", space, start, end - start, (1, 1, 1, end - start), "int8", (1, end - start, end - start)
    )
    bases = {used: _BASES[used] for used in spaces}
    program = RegisterProgram(name, config, tuple(steps), tuple(segments), (), (output,), bases, sizes, True)
    after = before.now(lambda space, low, high: contents[space][low:high].copy())
    parts = (PartOfRun(tuple(steps), before, after),)
    return Recording(program, (), (contents[space][start:end].tobytes(),), before, parts)


def _contents(
    probe: Probe, chain: list[Probe], machine: Machine, contents: dict[Space, np.ndarray]
) -> tuple[list[Segment], tuple[Space, int, int]]:
    """Data of everything that the engines read, stale bytes where they write; and the range that they write."""
    segments: list[Segment] = []
    ranges: dict[bool, list[tuple[Space, int, int]]] = {True: [], False: []}
    for stage in chain:
        units = {unit: machine.unit(unit).current for unit in ENGINES[stage.engine].units if unit not in stage.idle}
        job = machine.engine(stage.engine).prepare(units)
        for is_output, views in ((False, job.reads), (True, job.writes)):
            ranges[is_output] += [place for view in views if (place := _place(view, contents))]
    outputs = ranges[True]
    space, start, end = outputs[0][0], min(place[1] for place in outputs), max(place[2] for place in outputs)
    segments.append(Segment(space, start, np.full(end - start, _STALE, np.uint8)))
    reads = set(ranges[False])
    if probe.mode == "compressed weights":
        mask, group_size = _mask(probe)
        reads.discard((Space.DRAM, REGION_BYTES + 0x8000, REGION_BYTES + 0x8000 + mask.size))
        segments.append(Segment(Space.DRAM, REGION_BYTES + 0x8000, mask))
        segments.append(Segment(Space.DRAM, REGION_BYTES + 0xC000, np.array([group_size], "<u4").view(np.uint8)))
    for source, low, high in sorted(reads, key=lambda place: (place[0].value, place[1])):
        if (source, low) != (space, start):
            data = _bytes(f"{probe.engine} {probe.mode} {source.value} {low}", high - low, probe.precision)
            segments.append(Segment(source, low, data))
    return segments, (space, start, end)


def _mask(probe: Probe) -> tuple[np.ndarray, int]:
    """Mask of 16 kernels of 64 weights (a bit per weight), and the bytes of the weights that it keeps."""
    mask = _bytes(f"mask {probe.precision}", 128, "int8")
    return mask, int(np.unpackbits(mask).sum()) * (1 if probe.precision == Precision.INT8 else 2)


def _place(view: np.ndarray, contents: dict[Space, np.ndarray]) -> tuple[Space, int, int] | None:
    """Memory, first byte and end of a view; None for data that are not in memory."""
    low, high = bounds(view)
    for space, data in contents.items():
        start, end = bounds(data)
        if start <= low and high <= end and low < high:
            return space, low - start, high - start
    return None


@dataclass(frozen=True)
class TestResult:
    """A row of a board's log. ``problem`` is empty if the test passed."""

    engine: str
    mode: str
    precision: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        """True if the board has the expected outputs."""
        return not self.problem


_BEGIN = re.compile(r"nvdla-test begin (\d{1,6}) \| ([^|\r\n]{1,100})")
_ROW = re.compile(
    r"nvdla-test (\d{1,6}) result (\d{1,10})((?: crc 0x[0-9a-f]{8} expected 0x[0-9a-f]{8})*)"
    r" \| ([^|\r\n]{1,40}) \| ([^|\r\n]{1,200}) \| ([^|\s]{1,20})"
)
_PAIR = re.compile(r"crc (0x[0-9a-f]{8}) expected (0x[0-9a-f]{8})")
_RESULTS = {1: "timed out", 2: "memory not visible to the processor", 3: "bad program"}
LOG_LIMIT = 64 << 20


def verify_log(path: Path, config: Configuration | None = None) -> tuple[str, list[TestResult]]:
    """Return the configuration's name and the results of the last run in a board's log.

    The expected CRCs of a kit are computed again on the emulator; those of a network come from the log.

    Args:
        path: The log; lines may have prefixes such as times.
        config: The configuration (None: the one that the log names).

    Raises:
        FormatError: The log contains no run, or another configuration than ``config``.
    """
    text = read_file(path, LOG_LIMIT, "log").decode("utf-8", "replace")
    begins = list(_BEGIN.finditer(text))
    if not begins:
        raise FormatError(f"{path.name}: must be a log of self-tests, got no line 'nvdla-test begin'")
    count, name = int(begins[-1][1]), begins[-1][2].strip()
    if config is not None and config.name != name:
        raise FormatError(f"{path.name}: configuration: must be {config.name}, got {name}")
    rows = {int(row[1]): row for row in _ROW.finditer(text, begins[-1].end())}
    known: list[SelfTest] = []
    if not rows or any(row[4] != "network" for row in rows.values()):
        known = self_tests(config or configuration(name))
    results = []
    for number in range(1, max(count, len(known)) + 1):
        test = known[number - 1] if number <= len(known) else None
        row = rows.get(number)
        if row is None:
            covered = (test.engine, test.mode, test.precision) if test else ("unknown", "unknown", "unknown")
            results.append(TestResult(*covered, "missing in the log"))
        else:
            results.append(TestResult(row[4], row[5], row[6], _problem(row, test, bool(known))))
    return name, results


def _problem(row: re.Match[str], test: SelfTest | None, is_kit: bool) -> str:
    """The problem of a row; empty if there is none."""
    pairs = _PAIR.findall(row[3])
    if is_kit:
        covered = (row[4], row[5], row[6])
        expected = [f"0x{crc:08x}" for crc in test.crcs] if test else []
        if test is None or covered != (test.engine, test.mode, test.precision) or [p[1] for p in pairs] != expected:
            return "the kit is of another version: create it again"
    result = int(row[2])
    if result in _RESULTS:
        return _RESULTS[result]
    if result or not pairs or any(crc != expected for crc, expected in pairs):
        return "wrong output"
    return ""
