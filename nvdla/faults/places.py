"""Where faults strike, in coordinates of the hardware. An operation is "task/index", as ``nvdla inspect`` shows it.

Each place says which ``bits`` a word has there; :mod:`nvdla.faults.effects` says what becomes of the word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args


@dataclass(frozen=True)
class WeightByte:
    """Byte ``byte`` of the weights of a convolution, as they lie in memory."""

    operation: str
    byte: int
    kind: ClassVar[str] = "weight"
    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class InputByte:
    """Byte ``byte`` of the surface of the bound input ``input``."""

    input: int
    byte: int
    kind: ClassVar[str] = "input"
    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class SurfaceByte:
    """Byte ``byte`` of what an operation has written, in the order (surface, line, pixel, byte)."""

    operation: str
    byte: int
    kind: ClassVar[str] = "surface"
    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class MemoryByte:
    """A byte of DRAM or CVSRAM by its address, struck before ``operation`` begins (empty: before the first)."""

    address: int
    space: str = "DRAM"
    operation: str = ""
    kind: ClassVar[str] = "memory"
    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class SdpOperand:
    """Byte ``byte`` of the operands that ``block`` (X1, X2 or Y) of an SDP operation takes from memory."""

    operation: str
    byte: int
    block: str = "X1"
    kind: ClassVar[str] = "operand"
    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class BufferEntry:
    """Byte ``byte`` of an entry of the convolution buffer, entries counted over all banks, data banks first."""

    operation: str
    entry: int
    byte: int
    kind: ClassVar[str] = "cbuf"
    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class Multiplier:
    """One multiplier of the MAC array: cell ``kernel`` (-1: all cells, as what CSC broadcasts), channel ``channel``.
    ``port``: its "product", its "data" or its "weight" operand. ``operation`` empty: of all convolutions.

    When: at ``length`` outputs from (``y``, ``x``) on, in the order of lines, in MAC atom ``atom`` of an output (from
    0) and for kernel group ``group``; -1: at all of them. Multipliers that no element is fed to stay idle.
    """

    kernel: int
    channel: int
    port: str = "product"
    operation: str = ""
    y: int = -1
    x: int = -1
    length: int = 1
    atom: int = -1
    group: int = -1
    kind: ClassVar[str] = "mac"
    bits: ClassVar[int] = 32

    @property
    def always(self) -> bool:
        """True for one multiplier that is struck in every cycle."""
        return self.kernel >= 0 and (self.y, self.x, self.atom, self.group) == (-1, -1, -1, -1)


@dataclass(frozen=True)
class PartialSum:
    """The partial sum in CACC of kernel ``kernel`` at output (``y``, ``x``) after MAC atom ``atom`` (-1: the last)."""

    operation: str
    kernel: int
    y: int
    x: int
    atom: int = -1
    kind: ClassVar[str] = "cacc"
    bits: ClassVar[int] = 48


@dataclass(frozen=True)
class LutEntry:
    """An entry of the table "LE" (0 to 64) or "LO" (0 to 256) of ``unit`` ("SDP" or "CDP") during an operation;
    ``operation`` empty: during all."""

    entry: int
    table: str = "LO"
    unit: str = "SDP"
    operation: str = ""
    kind: ClassVar[str] = "lut"
    bits: ClassVar[int] = 16


@dataclass(frozen=True)
class RegisterWord:
    """A register of an engine's unit (such as unit SDP, register D_CVT_SCALE) when an operation begins; ``operation``
    empty: at every operation of the unit."""

    unit: str
    register: str
    operation: str = ""
    kind: ClassVar[str] = "register"
    bits: ClassVar[int] = 32


@dataclass(frozen=True)
class DescriptorByte:
    """Byte ``byte`` of a list of a task that the firmware reads: "network", "dependencies", "operations", "surfaces" or
    "luts"."""

    byte: int
    list: str = "operations"
    task: int = 0
    kind: ClassVar[str] = "descriptor"
    bits: ClassVar[int] = 8


Place = (
    WeightByte
    | InputByte
    | SurfaceByte
    | MemoryByte
    | SdpOperand
    | BufferEntry
    | Multiplier
    | PartialSum
    | LutEntry
    | RegisterWord
    | DescriptorByte
)
PLACES: dict[str, type] = {place.kind: place for place in get_args(Place)}
"""Every kind of place by the word that names it."""
