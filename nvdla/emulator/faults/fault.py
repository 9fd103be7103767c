"""Faults: places, effects and their texts.

Each place says which ``bits`` a word has there; :mod:`nvdla.emulator.faults.fault` says what becomes of the word.
"""

from __future__ import annotations

import random
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar, get_args

import numpy as np

from nvdla.errors import ArgumentTypeError, FormatError
from nvdla.util.arguments import by_annotations
from nvdla.util.rounding import integer

EFFECTS = ("flip=BIT", "stuck0=BIT", "stuck1=BIT", "set=VALUE", "random=SEED")
_WORDS = {"flip", "stuck0", "stuck1", "set", "random"}


@by_annotations
@dataclass(frozen=True)
class Effect:
    """``kind``: "flip", "stuck0" or "stuck1" of bit ``value``; "set" to ``value`` (two's complement); "random": a word
    drawn from the seed ``value``. Raises FormatError for other kinds."""

    kind: str
    value: int

    def __post_init__(self) -> None:
        if self.kind not in _WORDS:
            raise FormatError(f"fault effect: must be one of {', '.join(EFFECTS)}, got {self.kind!r}")

    def __str__(self) -> str:
        return f"{self.kind}={self.value}"

    @property
    def bit(self) -> int | None:
        """The bit that it strikes, None where it is the whole word."""
        return None if self.kind in ("set", "random") else self.value

    @property
    def settles(self) -> bool:
        """True where doing it twice is doing it once."""
        return self.kind != "flip"

    def check(self, bits: int, what: str) -> None:
        """Raise FormatError for a bit or value that a word of ``bits`` bits does not have."""
        if self.bit is not None and not 0 <= self.bit < bits:
            raise FormatError(f"{what}: bit: must be 0 .. {bits - 1}, got {self.bit}")
        if self.kind == "set" and not -(1 << bits - 1) <= self.value < 1 << bits:
            raise FormatError(f"{what}: {self.value} does not fit a word of {bits} bits")

    def on(self, words: np.ndarray, bits: int) -> np.ndarray:
        """The words (any integers) after the fault, as signed numbers of ``bits`` bits, int64."""
        mask = (1 << bits) - 1
        values = words.astype(np.int64) & mask
        if self.kind == "flip":
            values = values ^ (1 << self.value)
        elif self.kind == "stuck0":
            values = values & ~(1 << self.value)
        elif self.kind == "stuck1":
            values = values | (1 << self.value)
        else:
            word = self.value if self.kind == "set" else random.Random(self.value).getrandbits(bits)
            values = np.full_like(values, word & mask)
        return values - ((values >> bits - 1 & 1) << bits)

    def on_word(self, word: int, bits: int) -> int:
        """One word after the fault, unsigned."""
        return int(self.on(np.array([word], np.int64), bits)[0]) & (1 << bits) - 1


class _Byte:
    """A place of one byte."""

    bits: ClassVar[int] = 8


@dataclass(frozen=True)
class WeightByte(_Byte):
    """Byte ``byte`` of the weights of a convolution, in their order in memory."""

    operation: str
    byte: int
    kind: ClassVar[str] = "weight"


@dataclass(frozen=True)
class InputByte(_Byte):
    """Byte ``byte`` of the surface of the bound input ``input``."""

    input: int
    byte: int
    kind: ClassVar[str] = "input"


@dataclass(frozen=True)
class SurfaceByte(_Byte):
    """Byte ``byte`` of what an operation has written, in the order (surface, line, pixel, byte)."""

    operation: str
    byte: int
    kind: ClassVar[str] = "surface"


@dataclass(frozen=True)
class MemoryByte(_Byte):
    """A byte of DRAM or CVSRAM by its address, struck before ``operation`` begins (empty: before the first)."""

    address: int
    space: str = "DRAM"
    operation: str = ""
    kind: ClassVar[str] = "memory"


@dataclass(frozen=True)
class SdpOperand(_Byte):
    """Byte ``byte`` of the operands that ``block`` (X1, X2 or Y) of an SDP operation takes from memory."""

    operation: str
    byte: int
    block: str = "X1"
    kind: ClassVar[str] = "operand"


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
    """The partial sum in CACC of kernel ``kernel`` at output (``y``, ``x``) after MAC atom ``atom`` (-1: the last). Its
    register has 34 bits in int8 and 48 in int16, the highest bit is the sign."""

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


MAX_NUMBER = 1 << 62


@dataclass(frozen=True)
class Fault:
    """``where``: a place (:mod:`nvdla.emulator.faults.fault`); ``what``: an :class:`Effect`, or its text such as
    "flip=5".

    ``permanent``: the cell is broken for all writes and reads. Otherwise the fault is there for
    one operation (of a multiplier: for one cycle where it names one; of memory: until the next write).

        Fault(WeightByte("0/0", 17), "flip=6")
        Fault(Multiplier(kernel=3, channel=2), "set=0", permanent=True)

    Raises FormatError for a bit or value that the word does not have.
    """

    where: Place
    what: Effect
    permanent: bool = False

    def __init__(self, where: Place, what: Effect | str, permanent: bool = False) -> None:
        if not isinstance(where, tuple(PLACES.values())):
            raise ArgumentTypeError(
                f"Fault.where: must be a place of nvdla.emulator.faults, got {type(where).__name__}"
            )
        effect = _effect(what) if isinstance(what, str) else what
        if not isinstance(effect, Effect):
            raise ArgumentTypeError(f"Fault.what: must be an Effect or its text, got {type(what).__name__}")
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "what", effect)
        object.__setattr__(self, "permanent", permanent)
        effect.check(where.bits, where.kind)

    def __str__(self) -> str:
        return " ".join([place_text(self.where), str(self.what), *(["permanent"] if self.permanent else [])])

    @property
    def operation(self) -> str:
        """The operation that it is tied to, empty where it is to none."""
        return "" if isinstance(self.where, DescriptorByte) else getattr(self.where, "operation", "")


def place_text(where: Place) -> str:
    """The words that name a place; fields that have their usual value are left out."""
    words = [where.kind]
    for each in fields(where):
        value = getattr(where, each.name)
        if value != each.default:
            words.append(f"{each.name}={value:#x}" if each.name == "address" else f"{each.name}={value}")
    return " ".join(words)


@by_annotations
def parse(text: str) -> Fault:
    """A fault of its text, such as ``weight operation=0/0 byte=17 flip=6``. Raises FormatError."""
    kind, *words = text.split() or [""]
    if kind not in PLACES:
        raise FormatError(f"fault {text[:80]!r}: place must be one of {', '.join(PLACES)}, got {kind!r}")
    permanent = "permanent" in words
    given = [word.partition("=") for word in words if word not in ("permanent", "transient")]
    known = {each.name: each for each in fields(PLACES[kind])}
    values: dict[str, int | str] = {}
    effects: list[str] = []
    for name, _, value in given:
        if name in known:
            values[name] = _number(value, name) if known[name].type == "int" else value
        else:
            effects.append(f"{name}={value}")
    missing = [name for name, each in known.items() if each.default is MISSING and name not in values]
    if missing:
        raise FormatError(f"fault {text[:80]!r}: {', '.join(missing)} is missing; {kind} takes {', '.join(known)}")
    if len(effects) != 1:
        raise FormatError(f"fault {text[:80]!r}: needs one of {', '.join(EFFECTS)}, and takes {', '.join(known)}")
    return Fault(PLACES[kind](**values), effects[0], permanent)


def _effect(text: str) -> Effect:
    kind, _, value = text.partition("=")
    return Effect(kind, _number(value, kind))


def _number(text: str, name: str) -> int:
    try:
        value = integer(text, 0)
    except ValueError:
        raise FormatError(f"{name}={text[:40]}: must be a whole number") from None
    if abs(value) > MAX_NUMBER:
        raise FormatError(f"{name}={text[:40]}: too large")
    return value
