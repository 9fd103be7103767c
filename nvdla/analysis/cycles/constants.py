"""What the cycle model knows of a hardware configuration and of the memory behind it.

The formulas and the fixed terms were calibrated on cycle-accurate simulation of NVIDIA's RTL of nv_small and nv_large
(memory latencies of 50 to 200 cycles, several bandwidths; single operations and whole networks). For other
configurations sizes and throughputs come from the configuration and the fixed terms from the measured one of the same
memory atom: unproven there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvdla.errors import ConfigError
from nvdla.hardware.configuration import Configuration

MEASURED = ("nv_small", "nv_large")
DEFAULT_LATENCY = 100
MAX_LATENCY = 1 << 20
WIDE_ATOM = 32
# Register accesses on the configuration bus as they were measured; a CPU operation's element: what a processor with
# floating point in hardware takes for an exponential and a division, an assumption.
CSB_WRITE, CSB_READ, CPU_ELEMENT = 2.1, 19.0, 100.0
MAX_SOFTWARE = 1 << 40


@dataclass(frozen=True)
class Memory:
    """The memory behind NVDLA: ``latency`` in cycles from an accepted address to its first data (and from the last
    data written to the response); ``bytes_per_cycle`` None = as wide as the bus; ``shared``: reads and writes share it.

    Raises ConfigError for a bandwidth that is not positive or a latency below 0.
    """

    latency: int = DEFAULT_LATENCY
    bytes_per_cycle: float | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.latency <= MAX_LATENCY:
            raise ConfigError(f"memory latency {self.latency} cycles: must be 0 .. {MAX_LATENCY}")
        if self.bytes_per_cycle is not None and not 1e-3 <= self.bytes_per_cycle <= 1e6:
            raise ConfigError(f"memory bandwidth {self.bytes_per_cycle} bytes a cycle: must be 0.001 .. 1000000")


@dataclass(frozen=True)
class Software:
    """The firmware's processor: ``answer``: cycles from an interrupt to the firmware's answer; ``write`` and ``read``:
    cycles of a register access (those of the RTL's bus by default); ``element``: cycles for an element of a CPU
    operation's output. All in cycles of NVDLA's clock.

    Raises ConfigError for times below 0 or beyond MAX_SOFTWARE.
    """

    answer: int = 0
    write: float = CSB_WRITE
    read: float = CSB_READ
    element: float = CPU_ELEMENT

    def __post_init__(self) -> None:
        for name in ("answer", "write", "read", "element"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_SOFTWARE:
                raise ConfigError(f"software {name} {value} cycles: must be 0 .. {MAX_SOFTWARE}")

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
    ``cdp_block_gap`` + surfaces * ``cdp_surface_gap``: cycles between the blocks of 8 columns of a CDP line.
    ``operand_queue``: bytes of operands that the SDP reads ahead behind a convolution.
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
    operand_queue: int
    measured: bool


_NARROW: dict[str, Any] = {
    "sdp": Fixed(29, 28, -10, -14),
    "pdp": Fixed(32, 31, -9, -14),
    "cdp": Fixed(53, 31, -9, -14),
    "tail": 4,
}
_WIDE: dict[str, Any] = {
    "sdp": Fixed(24, 26, -1, -8),
    "pdp": Fixed(26, 28, -2, -8),
    "cdp": Fixed(47, 28, -2, -8),
    "tail": 2,
}
_NARROW |= {"sdp_to_delivery": 27, "cdp_block_gap": 5, "cdp_surface_gap": 1, "operand_queue": 1120}
_WIDE |= {"sdp_to_delivery": 29, "cdp_block_gap": 2, "cdp_surface_gap": 0, "operand_queue": 5120}


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
        measured=config.name in MEASURED and element_bytes == 1,
        **(_WIDE if config.memory_atom >= WIDE_ATOM else _NARROW),
    )
