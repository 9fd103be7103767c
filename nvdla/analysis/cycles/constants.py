"""Constants of the cycle model, fitted to RTL runs and known boards, and the shapes that it takes.

The formulas and the fixed terms were calibrated on cycle-accurate simulation of NVIDIA's RTL of nv_small and nv_large
(memory latencies of 50 to 200 cycles, several bandwidths; single operations and whole networks). For other
configurations sizes and throughputs come from the configuration and the fixed terms from the measured one of the same
memory atom: unproven there.

What a source does not say is fitted to its published LeNet; its ResNet-50 is then a check (docs/cycles.md).
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from nvdla.emulator.hardware.configuration import Configuration, built_in
from nvdla.errors import ConfigError
from nvdla.util.escaping import Document
from nvdla.util.rounding import ceil_div

MEASURED = ("nv_small", "nv_large")
DEFAULT_CLOCK = 1000.0
"""MHz"""
DEFAULT_LATENCY = 100
MAX_LATENCY = 1 << 20
WIDE_ATOM = 32
MIN_QUEUE = 4
# Register accesses on the configuration bus as they were measured; a CPU operation's element: what a processor with
# floating point in hardware takes for an exponential and a division, an assumption.
CSB_WRITE, CSB_READ, CPU_ELEMENT = 2.14, 19.0, 100.0
MAX_SOFTWARE = 1 << 40
ROUNDING = 1e-9  # a bandwidth that divides the bus but for rounding divides it


def check_clock(clock: float) -> None:
    """Raise ConfigError for a clock frequency (MHz) that is out of range."""
    if not 1e-6 <= clock <= 1e6:
        raise ConfigError(f"clock: must be 0.000001 .. 1000000 MHz, got {clock:g}").about("clock")


def rate_text(bytes_per_cycle: float) -> str:
    """A bandwidth in words: "1 byte per cycle", "2.5 bytes per cycle"."""
    return f"{bytes_per_cycle:g} byte{'s' * (bytes_per_cycle != 1)} per cycle"


def bandwidth_text(offered: float, accepted: float, config: str) -> str:
    """Describe the bandwidth of a memory: "16 bytes per cycle (the memory interface of nv_small takes 8)".

    Args:
        offered: Bytes per cycle of the memory.
        accepted: Bytes per cycle that one port transfers (:meth:`Memory.rate`); stated where it is less.
        config: Name of the configuration.
    """
    is_less = accepted < offered * (1 - ROUNDING)
    return rate_text(offered) + (f" (the memory interface of {config} takes {accepted:g})" if is_less else "")


@dataclass(frozen=True)
class Memory:
    """External memory for the cycle model.

    The port transfers beats as wide as the bus, each in a whole number of cycles (:meth:`rate`).

    Attributes:
        latency: Cycles from an accepted address to its first data, and from the last data written to the response.
        bytes_per_cycle: Bandwidth in bytes per cycle; None: as wide as the bus.
        shared: Whether reads and writes share the bandwidth.

    Raises:
        ConfigError: The latency or the bandwidth is out of range.
    """

    latency: int = DEFAULT_LATENCY
    bytes_per_cycle: float | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.latency <= MAX_LATENCY:
            raise ConfigError(f"memory latency: must be 0 .. {MAX_LATENCY} cycles, got {self.latency}").about("latency")
        if self.bytes_per_cycle is not None and not 1e-3 <= self.bytes_per_cycle <= 1e6:
            raise ConfigError(
                f"memory bandwidth: must be 0.001 .. 1000000 bytes per cycle, got {self.bytes_per_cycle}"
            ).about("bandwidth")

    def rate(self, bus: float) -> float:
        """Compute the bandwidth of one port.

        A beat takes a whole number of cycles: on a 32-byte bus, 20 bytes per cycle become a beat every second cycle, or
        16 bytes per cycle.

        Args:
            bus: Width of the port in bytes.

        Returns:
            Bytes per cycle, at most ``bus``.
        """
        if self.bytes_per_cycle is None or self.bytes_per_cycle >= bus:
            return bus
        return bus / math.ceil(bus / self.bytes_per_cycle - ROUNDING)


@dataclass(frozen=True)
class Software:
    """The firmware's processor: ``answer``: cycles from an interrupt to the firmware's answer; ``write`` and ``read``:
    cycles of a register access (those of the RTL's bus by default); ``element``: cycles for an element of a CPU
    operation's output. All in cycles of NVDLA's clock. ``status``: the driver reads states and interrupt masks, too
    (the runs on the RTL read pointers only).

    Raises ConfigError for times below 0 or beyond MAX_SOFTWARE.
    """

    answer: int = 0
    write: float = CSB_WRITE
    read: float = CSB_READ
    element: float = CPU_ELEMENT
    status: bool = False

    def __post_init__(self) -> None:
        for name in ("answer", "write", "read", "element"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_SOFTWARE:
                raise ConfigError(f"software {name} cycles: must be 0 .. {MAX_SOFTWARE}, got {value}")

    def register_cycles(self, accesses: tuple[int, int]) -> float:
        """Time of so many writes and reads."""
        return accesses[0] * self.write + accesses[1] * self.read

    def cpu_cycles(self, elements: int) -> int:
        """Time of a CPU operation."""
        return round(elements * self.element)


@dataclass(frozen=True)
class Fixed:
    """Cycles of a unit's operation that depend on nothing: ``begin`` from its start to its first request's acceptance,
    ``end`` from the last data to the interrupt (the write response's latency apart). For the next queued operation:
    ``read`` from the last data to its start of reading, ``ready`` from the interrupt to where the unit takes its data.
    """

    begin: int
    end: int
    read: int
    ready: int


@dataclass(frozen=True)
class CycleConstants:
    """A configuration as the model sees it, for elements of one size.

    ``kernels`` and ``channels``: what the MAC array takes at a time. ``*_atom``: cycles that a unit needs for a memory
    atom (``sdp_y_atom`` with the Y stage at work). ``sdp``, ``pdp``, ``cdp``: their fixed cycles; ``tail``: from CACC's
    last result delivered to the SDP's last write; ``sdp_to_delivery``: from where the SDP is ready to CACC's first.
    ``bank`` and ``entry``: bytes of a bank of the buffer and of an entry, as slices count them.
    ``cdp_block_gap`` + surfaces * ``cdp_surface_gap``: cycles between the blocks of 8 columns of a CDP line;
    ``cdp_sums``: cycles that sums of squares take in the pipeline.
    ``operand_queue``: bytes of operands that the SDP reads ahead after a convolution. ``pdp_after_sdp``: from the SDP's
    interrupt to that of a PDP on the fly, without the write response. ``queues``: beats of the input that SDP, PDP and
    CDP read ahead.
    """

    name: str
    atom: int
    bus: float
    channels: int
    kernels: int
    bank: int
    entry: int
    sdp_atom: float
    sdp_y_atom: float
    pdp_atom: float
    cdp_atom: float
    sdp: Fixed
    pdp: Fixed
    cdp: Fixed
    tail: int
    sdp_to_delivery: int
    cdp_block_gap: int
    cdp_surface_gap: int
    cdp_sums: int
    operand_queue: int
    pdp_after_sdp: int
    queues: tuple[int, int, int]
    measured: bool

    @property
    def macs_per_cycle(self) -> int:
        """Multiplications that the MAC array can do per cycle with elements of this size."""
        return self.channels * self.kernels

    def reads_ahead(self, unit: str) -> float:
        """Beats of its input that SDP, PDP or CDP reads ahead at most; infinite for other units."""
        return dict(zip(("sdp", "pdp", "cdp"), self.queues, strict=True)).get(unit, math.inf)


_NARROW: Document = {
    "sdp": Fixed(29, 28, -10, -14),
    "pdp": Fixed(32, 31, -9, -14),
    "cdp": Fixed(53, 31, -9, -14),
    "tail": 4,
}
_WIDE: Document = {
    "sdp": Fixed(24, 26, -1, -8),
    "pdp": Fixed(26, 28, -2, -8),
    "cdp": Fixed(47, 28, -2, -8),
    "tail": 2,
}
_NARROW |= {
    "sdp_to_delivery": 27,
    "cdp_block_gap": 5,
    "cdp_surface_gap": 1,
    "cdp_sums": 8,
    "operand_queue": 1280,
    "pdp_after_sdp": 27,
}
_WIDE |= {
    "sdp_to_delivery": 29,
    "cdp_block_gap": 2,
    "cdp_surface_gap": 0,
    "cdp_sums": 0,
    "operand_queue": 8192,
    "pdp_after_sdp": 38,
}


def constants(config: Configuration, element_bytes: int = 1) -> CycleConstants:
    """The constants of a configuration for elements of 1 (int8) or 2 bytes (int16, fp16).

    Two-byte elements: an atom holds half as many, and the MAC array takes half as many kernels at a time
    (hw/v1/ias/unit_description, CMAC). A unit that is not built takes the SDP's X throughput.
    """
    elements = config.memory_atom // element_bytes
    x = config.sdp_bs_throughput or 1

    def cycles(throughput: int | None) -> float:
        return elements / (throughput or x)

    return CycleConstants(
        name=config.name,
        atom=config.memory_atom,
        bus=config.dram_width_bits / 8,
        channels=config.mac_atomic_c,
        kernels=max(config.mac_atomic_k // element_bytes, 1),
        bank=config.cbuf_bank_bytes,
        entry=config.cbuf_entry_bytes,
        sdp_atom=cycles(x),
        sdp_y_atom=max(cycles(config.sdp_ew_throughput), cycles(x)),
        pdp_atom=cycles(config.pdp_throughput),
        cdp_atom=cycles(config.cdp_throughput),
        measured=built_in(config) in MEASURED and element_bytes == 1,
        queues=BRANCH_QUEUES.get(config.rtl_branch) or _queues(config),
        **(_WIDE if config.memory_atom >= WIDE_ATOM else _NARROW),
    )


# The queues of branch nv_small; those of branch master follow from the planned latency.
BRANCH_QUEUES = {"nv_small": (80, 61, 61)}


def _queues(config: Configuration) -> tuple[int, int, int]:
    """Beats of the queues of SDP, PDP and CDP: what the unit takes in the latency that the hardware is planned for
    (spec/defs/projects.spec, NVDLA_VMOD_*_LATENCY_FIFO_DEPTH)."""
    beat = config.dram_width_bits // 8
    units = (config.sdp_bs_throughput, config.pdp_throughput, config.cdp_throughput)
    sdp, pdp, cdp = (
        max(MIN_QUEUE, ceil_div(config.dram_latency_cycles * min(unit or 1, max(beat // 4, 1)), beat)) for unit in units
    )
    return sdp, pdp, cdp


@dataclass(frozen=True)
class Board:
    """``clock`` in MHz; ``config``: the NVDLA on it; ``source``: who published figures; ``fitted``: what is not from
    there."""

    name: str
    config: str
    clock: float
    memory: Memory
    software: Software
    source: str
    fitted: str


BOARDS = {
    board.name: board
    for board in (
        Board(
            name="zcu102-150mhz",
            config="nv_small",
            clock=149.985,
            memory=Memory(latency=50, bytes_per_cycle=8),
            software=Software(answer=12_000, write=50.0, read=200.0, element=CPU_ELEMENT),
            source="github.com/BerkantB0/NVDLA (2026): ZCU102, port HP0 of 64 bits, Linux 6.6 with NVIDIA's driver",
            fitted="memory latency, register accesses, 80 us from an interrupt to the driver's answer",
        ),
        Board(
            name="zcu102-bare-100mhz",
            config="nv_small",
            clock=100.0,
            memory=Memory(latency=60, bytes_per_cycle=1.0, shared=True),
            software=Software(answer=100, write=20.0, read=40.0, element=CPU_ELEMENT),
            source="arXiv 2508.16095 (2025): ZCU102, a RISC-V core without an operating system",
            fitted="memory with one byte per cycle for reads and writes together, the core's accesses",
        ),
    )
}


def board(name: str) -> Board:
    """The board called ``name``. Raises ConfigError that lists the names and suggests the nearest."""
    if name in BOARDS:
        return BOARDS[name]
    near = difflib.get_close_matches(name, BOARDS, n=1, cutoff=0.4)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise ConfigError(
        f"unknown board {name!r}: must be one of {', '.join(BOARDS)}. "
        f"{hint}Describe another board with --clock, --latency and --bandwidth (Python: clock=, latency=, bandwidth=; "
        "in nvdla.compile clock=, memory=)."
    )


@dataclass(frozen=True)
class ConvolutionShape:
    """A convolution as its registers describe it.

    ``kernel_*``: width, height and channels of a kernel as CSC takes them; ``data_bytes`` and ``weight_bytes`` are what
    CDMA fetches (0 for what is re-used); ``slices``: lines of the input cube that the buffer takes one by one;
    ``entries_per_slice``: their size in the buffer, in entries of a bank; ``data_atoms``: the channel atoms of a pixel;
    ``by_line``: stripes end with the output line (image input); ``share``: part of the positions that one pass over a
    tap serves (Winograd: 1/4).
    """

    out_width: int
    out_height: int
    kernels: int
    kernel_width: int
    kernel_height: int
    kernel_channels: int
    data_bytes: int
    weight_bytes: int
    weight_banks: int
    data_atoms: int
    data_banks: int = 1
    slices: int = 1
    entries_per_slice: int = 0
    by_line: bool = False
    post_extension: int = 1
    batch: int = 1
    share: int = 1
    element_bytes: int = 1


@dataclass(frozen=True)
class SdpShape:
    """``stages``: how many of X1, X2, Y work; ``uses_y``; ``read_bytes``: the input (0 where it comes on the fly);
    ``operand_bytes``: what the stages read for every element; ``table_bytes``: what they read for every kernel;
    ``write_bytes``: 0 where the result goes on the fly; ``lut``: Y looks up a table, which the driver programs."""

    width: int
    height: int
    surfaces: int
    stages: int = 0
    uses_y: bool = False
    read_bytes: int = 0
    operand_bytes: int = 0
    write_bytes: int = 0
    batch: int = 1
    table_bytes: int = 0
    lut: bool = False

    @property
    def atoms(self) -> int:
        """Atoms of the cube, all images of a batch together."""
        return self.width * self.height * self.surfaces * self.batch


@dataclass(frozen=True)
class PdpShape:
    """``in_width``: with a split width the columns of all parts, common ones counted again. ``rows`` and ``columns``:
    windows in the padding after the input (:func:`flushed_windows`), after the last surface (line) and after the
    others."""

    in_width: int
    in_height: int
    out_width: int
    out_height: int
    surfaces: int
    rows: tuple[int, int] = (0, 0)
    columns: tuple[int, int] = (0, 0)
    read_bytes: int = 0
    write_bytes: int = 0

    @property
    def atoms_through(self) -> int:
        """Atoms that go through the unit: those of the input, and those that only flush windows."""
        lines = self.surfaces * self.in_height * (self.in_width + self.columns[1]) - self.columns[1]
        between = (self.surfaces - 1) * max(self.rows[1] * self.out_width - 1, 0)
        return lines + between + self.atoms_at_the_end

    @property
    def atoms_at_the_end(self) -> int:
        """Atoms that flush windows after the last of the input."""
        return self.columns[0] + self.rows[0] * self.out_width


@dataclass(frozen=True)
class CdpShape:
    """A normalization: its cube in pixels and surfaces. ``sums``: False where the sums of squares are bypassed, so
    that only the table works."""

    width: int
    height: int
    surfaces: int
    sums: bool = True

    @property
    def atoms(self) -> int:
        """Atoms of the cube."""
        return self.width * self.height * self.surfaces


@dataclass(frozen=True)
class CopyShape:
    """BDMA and Rubik: bytes moved."""

    read_bytes: int
    write_bytes: int


@dataclass(frozen=True)
class ChainShape:
    """Units that work together on one operation, or on several on the fly: a convolution with its SDP and a PDP, an
    SDP with a PDP, or one unit alone (``copy``: BDMA or Rubik).

    ``cvsram``: data kept there takes nothing of the memory's bandwidth: "data" and "weights" of the
    convolution, "read", "operand" of the SDP's sums, "write"."""

    conv: ConvolutionShape | None = None
    sdp: SdpShape | None = None
    pdp: PdpShape | None = None
    cdp: CdpShape | None = None
    copy: CopyShape | None = None
    cvsram: frozenset[str] = frozenset()


def taps(shape: ConvolutionShape, constants: CycleConstants) -> int:
    """Passes over a stripe: one for each position in the kernel and each portion of its channels."""
    rows = ceil_div(shape.kernel_height, shape.post_extension)
    return shape.kernel_width * rows * ceil_div(shape.kernel_channels, constants.channels)


def kernel_groups(kernels: int, at_a_time: int) -> list[int]:
    """Kernels of each group that the array works on."""
    full, rest = divmod(kernels, at_a_time)
    return [at_a_time] * full + [rest] * (rest > 0)


def stripes(shape: ConvolutionShape, constants: CycleConstants) -> list[tuple[int, int]]:
    """(length, how many) of the stripes that the output positions are cut into, in order.

    Stripes hold twice as many positions as the array has kernels; what remains when less than two of them are left goes
    in halves but for the last. Image input: the list of a line; its rest is its own stripe.
    """
    whole = shape.out_width if shape.by_line else shape.out_width * shape.out_height
    whole = ceil_div(whole, shape.share)
    half = constants.kernels
    full, rest = divmod(whole, 2 * half)
    if not rest or shape.by_line:
        pieces = [(2 * half, full), (rest, 1)]
    else:
        full = max(full - 1, 0)
        left = whole - full * 2 * half
        halves = max(ceil_div(left - 2 * half, half), 0)
        pieces = [(2 * half, full), (half, halves), (left - halves * half, 1)]
    return [(length, count) for length, count in pieces if length and count]


def mac_cycles(shape: ConvolutionShape, constants: CycleConstants) -> int:
    """Cycles that the MAC array computes, were nothing else in its way."""
    positions = ceil_div(shape.out_width * shape.out_height * shape.batch, shape.share)
    return positions * taps(shape, constants) * ceil_div(shape.kernels, constants.kernels)


def loading_cycles(shape: ConvolutionShape, constants: CycleConstants) -> int:
    """Cycles beyond :func:`mac_cycles` where the next weights load longer than the positions of a stripe last."""
    lines = (shape.out_height if shape.by_line else 1) * shape.batch
    longest = sum(count * max(length, constants.kernels) for length, count in stripes(shape, constants))
    all_passes = longest * lines * taps(shape, constants) * ceil_div(shape.kernels, constants.kernels)
    return max(all_passes - mac_cycles(shape, constants), 0)


def flushed_windows(inputs: int, kernel: int, stride: int, before: int, after: int) -> tuple[int, int]:
    """Count the windows of a pooling that end in the padding after the input, in one direction.

    Args:
        inputs: Rows or columns of the input.
        kernel: Size of a window.
        stride: Step from a window to the next.
        before: Padding before the input.
        after: Padding after the input.

    Returns:
        The windows that the PDP flushes after the last surface or line, and those after each of the others, where the
        next one's data before its first result hide the rest.
    """
    first = kernel - before
    windows = after // stride
    if inputs < first:
        first, windows = inputs, max(inputs + before + after - kernel, 0) // stride
    return windows, max(windows - first + 1, 0) if windows else 0
