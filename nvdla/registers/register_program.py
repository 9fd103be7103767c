"""The register program of a network: every access of the CSB in order, what to wait for, and the memory it works on.

It is the firmware's work, unrolled: it runs without Linux and without a driver. Addresses are offsets from the
start of the two memories (DRAM on MCIF, CVSRAM on CVIF), so that a printer can put them anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.machine import INTERRUPT_BITS
from nvdla.emulator.hardware.register_file import MASK32, Register
from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.memory.surfaces import FeatureLayout, PixelLayout
from nvdla.errors import FormatError
from nvdla.limits import PAGE
from nvdla.tensors.real import Units

CSB_SPAN = 0x40000
"""Bytes of the register space; no register map is larger."""


@dataclass(frozen=True)
class Write:
    """A register write. With ``space``, ``value`` is an offset in that memory, and the register takes the upper
    (``high``) or lower 32 bits of its address."""

    register: Register
    value: int
    space: Space | None = None
    high: bool = False

    def resolved(self, bases: Mapping[Space, int]) -> int:
        """The 32 bits to write, with the memories at ``bases``."""
        if self.space is None:
            return self.value
        address = bases[self.space] + self.value
        return address >> 32 & MASK32 if self.high else address & MASK32


@dataclass(frozen=True)
class Await:
    """Wait until every bit of ``interrupts`` has been seen in GLB.S_INTR_STATUS; bits are cleared as they are seen."""

    interrupts: int

    def causes(self) -> list[tuple[str, int]]:
        """(cause, register group) of every bit, such as ("CACC_DONE", 0)."""
        return [
            (cause, group)
            for cause, bit in INTERRUPT_BITS.items()
            for group in range(2)
            if self.interrupts >> bit + group & 1
        ]


@dataclass(frozen=True)
class Flushed:
    """Wait until the convolution buffer is flushed after reset (CDMA.S_CBUF_FLUSH_STATUS bit 0)."""

    register: Register


@dataclass(frozen=True)
class Mark:
    """A remark for people: ``what`` is "program" or "enable" of an operation in a register group."""

    what: str
    task: int
    index: int
    engine: str
    group: int

    def __str__(self) -> str:
        return f"{self.what} operation {self.task}/{self.index} {self.engine} group {self.group}"


@dataclass(frozen=True)
class CpuCube:
    """Operand of a CPU operation: ``size`` bytes from ``offset`` of ``space`` on; strides in bytes."""

    space: Space
    offset: int
    size: int
    half: bool
    atom: int
    width: int
    height: int
    channels: int
    line_stride: int
    surface_stride: int


@dataclass(frozen=True)
class CpuCall:
    """An operation of a CPU task: "softmax", or "power" with (shift + scale * x) ** power; int8 scales in and out."""

    task: int
    index: int
    kind: str
    source: CpuCube
    destination: CpuCube
    input_scale: float
    output_scale: float
    shift: float = 0.0
    scale: float = 1.0
    power: float = 1.0


Step = Write | Await | Flushed | Mark | CpuCall


@dataclass(frozen=True)
class Segment:
    """Bytes that are loaded into memory before the program starts: weights, tables, operands."""

    space: Space
    offset: int
    data: np.ndarray = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of it."""
        return int(self.data.size)


@dataclass(frozen=True)
class BoundTensor:
    """An input or output.

    ``shape`` is (N, C, H, W); ``offset``, ``size`` and strides (element, line, surface) are in bytes. ``units``: the
    real numbers of its elements (None: not known). ``layout``: the order of its bytes. ``color``: order of the channels
    of pictures, "rgb" or "bgr" ("": not known).
    """

    name: str
    space: Space
    offset: int
    size: int
    shape: tuple[int, int, int, int]
    dtype: str
    strides: tuple[int, ...]
    units: Units | None = field(default=None, compare=False)
    layout: FeatureLayout | PixelLayout | None = None
    color: str = ""

    @property
    def scale(self) -> float | None:
        """Real value of one unit; None if it is not known, or not the same in all channels."""
        return None if (same := self._same()) is None else same[0]

    @property
    def zero_point(self) -> int:
        """Element that represents 0; 0 without a scale."""
        return 0 if (same := self._same()) is None else same[1]

    def _same(self) -> tuple[float, int] | None:
        """Scale and zero point, if all channels have the same and the zero point is a whole number."""
        if self.units is None:
            return None
        zeros = np.unique(self.units.zero)
        scales = np.unique(self.units.scales)
        if len(zeros) != 1 or len(scales) != 1 or float(zeros[0]) != int(zeros[0]):
            return None
        return float(scales[0]), int(zeros[0])


@dataclass(frozen=True)
class RegisterProgram:
    """A whole program. ``bases``: where the emulator has the memories; ``sizes``: bytes of each memory, laid out as in
    NVIDIA's runtime, so that addresses can be compared with those of its driver; ``unused``: (start, end) of the parts
    that neither NVDLA nor the processor accesses, because they hold descriptors for NVIDIA's firmware."""

    name: str
    config: Configuration
    steps: tuple[Step, ...]
    segments: tuple[Segment, ...]
    inputs: tuple[BoundTensor, ...]
    outputs: tuple[BoundTensor, ...]
    bases: dict[Space, int]
    sizes: dict[Space, int]
    serial: bool
    unused: dict[Space, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    @property
    def writes(self) -> list[Write]:
        """The register writes, in order."""
        return [step for step in self.steps if isinstance(step, Write)]

    @property
    def cpu_operations(self) -> list[CpuCall]:
        """The operations of the CPU, in order."""
        return [step for step in self.steps if isinstance(step, CpuCall)]

    def parts(self) -> Iterator[list[Step]]:
        """The steps between CPU operations; a part without writes is left out."""
        part: list[Step] = []
        for step in (*self.steps, None):
            if step is not None and not isinstance(step, CpuCall):
                part.append(step)
                continue
            if any(isinstance(program_step, Write) for program_step in part):
                yield part
            part = []


def checked_bases(program: RegisterProgram, bases: Mapping[Space, int]) -> dict[Space, int]:
    """``bases`` for the memories that the program uses. Raises FormatError for a base that is not a multiple of 4096,
    ConfigError for a memory that the address registers of the configuration cannot reach."""
    chosen = {space: bases.get(space, program.bases[space]) for space in program.sizes}
    for space, base in chosen.items():
        if base % PAGE or base < 0:
            raise FormatError(f"{space.value} base: must be a multiple of {PAGE} bytes, got 0x{base:x}")
        program.config.check_reach(space.value, base, base + program.sizes[space])
    return chosen


def check_csb_base(base: int) -> None:
    """Raise FormatError for an address of the first register that is not aligned to registers, or not of 64 bits."""
    if base % 4 or not 0 <= base <= (1 << 64) - CSB_SPAN:
        raise FormatError(
            f"csb base: must be a multiple of 4, the size of a register, and at most 0x{(1 << 64) - CSB_SPAN:x}, "
            f"got 0x{base:x}"
        )
