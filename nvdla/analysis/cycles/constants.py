"""What the cycle model knows of a hardware configuration and of the memory behind it.

The formulas and the fixed terms were calibrated on cycle-accurate simulation of NVIDIA's RTL of nv_small and nv_large
(memory latencies of 50, 120 and 200 cycles, several bandwidths). For other configurations sizes and throughputs come
from the configuration and the fixed terms from the measured one of the same memory atom: unproven there.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvdla.errors import ConfigError
from nvdla.hardware.configuration import Configuration

MEASURED = ("nv_small", "nv_large")
DEFAULT_LATENCY = 100
MAX_LATENCY = 1 << 20
WIDE_ATOM = 32


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
class Constants:
    """A configuration as the model sees it, for elements of one size.

    ``kernels`` and ``channels``: what the MAC array takes at a time. ``*_atom``: cycles that a unit needs for a memory
    atom (``sdp_y_atom`` with the Y stage at work). ``*_fixed``: cycles of an operation that depend on nothing.
    ``stripe_gap``: cycles between stripes that wait for the SDP. ``cdp_block_gap`` + surfaces *
    ``cdp_surface_gap``: cycles between the blocks of 8 columns of a CDP line.
    """

    name: str
    atom: int
    bus: float
    channels: int
    kernels: int
    bank: int
    sdp_atom: float
    sdp_y_atom: float
    pdp_atom: float
    cdp_atom: float
    conv_fixed: int
    sdp_fixed: int
    pdp_fixed: int
    cdp_fixed: int
    stripe_gap: int
    cdp_block_gap: int
    cdp_surface_gap: int
    measured: bool


# conv, SDP, PDP, CDP; gap between stripes; CDP's gaps.
_NARROW = {"conv_fixed": 40, "sdp_fixed": 57, "pdp_fixed": 63, "cdp_fixed": 84, "stripe_gap": 54}
_WIDE = {"conv_fixed": 35, "sdp_fixed": 50, "pdp_fixed": 54, "cdp_fixed": 75, "stripe_gap": 46}
_NARROW |= {"cdp_block_gap": 5, "cdp_surface_gap": 1}
_WIDE |= {"cdp_block_gap": 2, "cdp_surface_gap": 0}


def constants(config: Configuration, element_bytes: int = 1) -> Constants:
    """The constants of a configuration for elements of 1 (int8) or 2 bytes (int16, fp16).

    Two-byte elements: an atom holds half as many, and the MAC array takes half as many kernels at a time
    (hw/v1/ias/unit_description, CMAC). A unit that is not built takes the SDP's X throughput.
    """
    elements = config.memory_atom // element_bytes
    x = config.sdp_bs_throughput or 1

    def cycles(throughput: int | None) -> float:
        return elements / (throughput or x)

    return Constants(
        name=config.name,
        atom=config.memory_atom,
        bus=config.dram_width_bits / 8,
        channels=config.mac_atomic_c,
        kernels=max(config.mac_atomic_k // element_bytes, 1),
        bank=config.cbuf_bank_bytes,
        sdp_atom=cycles(x),
        sdp_y_atom=max(cycles(config.sdp_ew_throughput), cycles(x)),
        pdp_atom=cycles(config.pdp_throughput),
        cdp_atom=cycles(config.cdp_throughput),
        measured=config.name in MEASURED and element_bytes == 1,
        **(_WIDE if config.memory_atom >= WIDE_ATOM else _NARROW),
    )
