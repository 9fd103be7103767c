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
    """Change of a word by a fault.

    Attributes:
        kind: "flip", "stuck0" or "stuck1": change one bit. "set": replace the word. "random": replace it by a random
            word.
        value: The bit number, the new word (two's complement) or the seed, depending on ``kind``.

    Raises:
        FormatError: The kind is unknown.
    """

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
        """Check whether the effect fits a word.

        Args:
            bits: Width of the word.
            what: Kind of the place, for the message.

        Raises:
            FormatError: The word does not have the bit, or the value does not fit.
        """
        if self.bit is not None and not 0 <= self.bit < bits:
            raise FormatError(f"{what}: bit: must be 0 .. {bits - 1}, got {self.bit}")
        if self.kind == "set" and not -(1 << bits - 1) <= self.value < 1 << bits:
            raise FormatError(f"{what}: must fit a word of {bits} bits, got {self.value}")

    def on(self, words: np.ndarray, bits: int) -> np.ndarray:
        """Apply the effect to words.

        Args:
            words: Integers of any type and shape.
            bits: Width of a word.

        Returns:
            The changed words as signed numbers of ``bits`` bits: an int64 array of the same shape.
        """
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
        """Apply the effect to one word.

        Args:
            word: The word.
            bits: Width of the word.

        Returns:
            The changed word, unsigned.
        """
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
    """One multiplier of the MAC array.

    The fault applies at ``length`` outputs from (``y``, ``x``) on, in line order, in MAC atom ``atom`` of an output and
    for kernel group ``group``. -1 selects all of them. Multipliers without an element stay idle.

    Attributes:
        kernel: MAC cell; -1: all cells, for an operand that CSC broadcasts.
        channel: Channel within the cell.
        port: "product", "data" or "weight".
        operation: The convolution; empty: all convolutions.
        y: Row of the first output.
        x: Column of the first output.
        length: Number of outputs.
        atom: MAC atom of an output, from 0.
        group: Kernel group.
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
    """Partial sum in CACC of one kernel at output (``y``, ``x``).

    Its register has 34 bits for int8 and 48 bits for int16; the highest bit is the sign.

    Attributes:
        operation: The convolution.
        kernel: Index of the kernel.
        y: Row of the output.
        x: Column of the output.
        atom: MAC atom after which the fault applies; -1: the last.
    """

    operation: str
    kernel: int
    y: int
    x: int
    atom: int = -1
    kind: ClassVar[str] = "cacc"
    bits: ClassVar[int] = 48


@dataclass(frozen=True)
class LutEntry:
    """Entry of a lookup table during an operation.

    Attributes:
        entry: Index of the entry: 0 to 64 in "LE", 0 to 256 in "LO".
        table: "LE" or "LO".
        unit: "SDP" or "CDP".
        operation: The operation; empty: all operations.
    """

    entry: int
    table: str = "LO"
    unit: str = "SDP"
    operation: str = ""
    kind: ClassVar[str] = "lut"
    bits: ClassVar[int] = 16


@dataclass(frozen=True)
class RegisterWord:
    """Register of an engine's unit when an operation begins.

    Attributes:
        unit: Name of the unit, such as "SDP".
        register: Name of the register, such as "D_CVT_SCALE".
        operation: The operation; empty: every operation of the unit.
    """

    unit: str
    register: str
    operation: str = ""
    kind: ClassVar[str] = "register"
    bits: ClassVar[int] = 32


@dataclass(frozen=True)
class DescriptorByte:
    """Byte of a descriptor list that the firmware reads.

    Attributes:
        byte: Offset in the list.
        list: "network", "dependencies", "operations", "surfaces" or "luts".
        task: Id of the task.
    """

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
    """Fault: a place and the effect on the word there.

    A transient fault lasts for one operation; at a multiplier for one cycle if the place specifies one; in memory until
    the next write.

        Fault(WeightByte("0/0", 17), "flip=6")
        Fault(Multiplier(kernel=3, channel=2), "set=0", permanent=True)

    Attributes:
        where: The place (:mod:`nvdla.emulator.faults.fault`).
        what: An :class:`Effect`, or its text such as "flip=5".
        permanent: Whether the fault affects all writes and reads of the cell.
        part: Number of the accelerator part in a package; None for a loadable, and for every part of a package.

    Raises:
        FormatError: The word does not have the bit, or the value does not fit.
    """

    where: Place
    what: Effect
    permanent: bool = False
    part: int | None = None

    def __init__(self, where: Place, what: Effect | str, permanent: bool = False, part: int | None = None) -> None:
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
        object.__setattr__(self, "part", part)
        effect.check(where.bits, where.kind)

    def __str__(self) -> str:
        kind, *fields_of_place = place_text(self.where).split()
        part = [] if self.part is None else [f"part={self.part}"]
        return " ".join([kind, *part, *fields_of_place, str(self.what), *(["permanent"] if self.permanent else [])])

    @property
    def of_hardware(self) -> bool:
        """True for a place in the hardware that no operation is named for: it is there in every part of a package."""
        return isinstance(self.where, Multiplier | LutEntry | RegisterWord) and not self.where.operation

    @property
    def operation(self) -> str:
        """The operation that it is tied to, empty where it is to none."""
        return "" if isinstance(self.where, DescriptorByte) else getattr(self.where, "operation", "")


def place_text(where: Place) -> str:
    """The words that name a place; fields that have their usual value are left out."""
    words = [where.kind]
    for field in fields(where):
        value = getattr(where, field.name)
        if value != field.default:
            words.append(f"{field.name}={value:#x}" if field.name == "address" else f"{field.name}={value}")
    return " ".join(words)


@by_annotations
def parse(text: str) -> Fault:
    """Parse the text of a fault.

    Args:
        text: Place, effect and options, such as ``weight operation=0/0 byte=17 flip=6``; for a part of a package
            ``weight part=2 operation=0/0 byte=17 flip=6``.

    Returns:
        The fault.

    Raises:
        FormatError: The text is not a fault, or the effect does not fit the place.
    """
    kind, *words = text.split() or [""]
    if kind not in PLACES:
        raise FormatError(f"fault {text[:80]!r}: place must be one of {', '.join(PLACES)}, got {kind!r}")
    permanent = "permanent" in words
    given = [word.partition("=") for word in words if word not in ("permanent", "transient")]
    known = {field.name: field for field in fields(PLACES[kind])}
    values: dict[str, int | str] = {}
    effects: list[str] = []
    part = None
    for name, _, value in given:
        if name == "part":
            part = _number(value, name)
        elif name in known:
            values[name] = _number(value, name) if known[name].type == "int" else value
        else:
            effects.append(f"{name}={value}")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in values]
    if missing:
        raise FormatError(
            f"fault {text[:80]!r}: {', '.join(missing)}: must be given. {kind} has the fields {', '.join(known)}."
        )
    if len(effects) != 1:
        raise FormatError(
            f"fault {text[:80]!r}: must have one of {', '.join(EFFECTS)}, and the fields {', '.join(known)}"
        )
    return Fault(PLACES[kind](**values), effects[0], permanent, part)


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
