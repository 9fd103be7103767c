"""Values of the IREE VM and their arithmetic.

Integers come signed and may leave the range: who writes the register wraps them. Floats come as Python floats; 32-bit
results are rounded when they are written, which is exact for + - * / and square roots. Traps of the reference: casts
from float round half away from zero, "ordered not equal" is true for NaN, fma rounds twice, and casts from f64 to
32-bit integers go through f32.

Transcendental functions are those of the C library in double precision, special cases (zeros, infinities, NaN) as C's
Annex F has them; a 32-bit result is rounded from that once. IREE takes the 32-bit functions of the C library that it
runs with, so that its 32-bit results may differ in the last bit, as they do between two machines.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from nvdla.errors import FormatError

Operation = Callable[..., Any]


def wrap(value: int, bits: int) -> int:
    """Two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def round_f32(value: float) -> float:
    """The nearest 32-bit float; too large becomes infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def round_half_away(value: float) -> float:
    """C's round()."""
    if not math.isfinite(value):
        return value
    whole = math.trunc(value)
    return math.copysign(abs(whole) + (abs(value - whole) >= 0.5), value)


def round_half_even(value: float) -> float:
    """To even as the reference does it, which loses the sign of -0.5 and of no other number."""
    rounded = round_half_away(value)
    if abs(value - rounded) == 0.5 and math.fmod(rounded, 2.0):
        rounded -= math.copysign(1.0, value)
    return rounded


def power(base: float, exponent: float) -> float:
    """C's pow(), where Python's raises."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        is_negative = base < 0 and math.fmod(exponent, 2.0) != 0
    except ValueError:
        if base:
            return math.nan  # a negative number to a power that is not whole
        is_negative = math.copysign(1.0, base) < 0 and abs(math.fmod(exponent, 2.0)) == 1.0
    return -math.inf if is_negative else math.inf


def to_long(value: float) -> int:
    """C's llround() on x86-64: numbers out of range become the smallest number."""
    rounded = round_half_away(value)
    return int(rounded) if -(2.0**63) <= rounded < 2.0**63 else -(1 << 63)


def to_unsigned_long(value: float) -> int:
    """A float to 64 unsigned bits, rounded half away from zero."""
    rounded = round_half_away(value)
    return int(rounded) if 0 <= rounded < 2.0**64 else to_long(rounded)


def divide(a: int, b: int) -> int:
    """Towards zero. ZeroDivisionError for b = 0."""
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def _unsigned(bits: int, operation: Callable[[int, int], int]) -> Operation:
    mask = (1 << bits) - 1
    return lambda a, b: operation(a & mask, b & mask)


def _integer(bits: int) -> dict[str, Operation]:
    mask = (1 << bits) - 1
    return {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "fma": lambda a, b, c: a * b + c, "abs": abs, "not": lambda a: ~a, "and": lambda a, b: a & b,
        "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "ctlz": lambda a: bits - (a & mask).bit_length(),
        "div.s": divide, "rem.s": lambda a, b: a - divide(a, b) * b,
        "div.u": _unsigned(bits, lambda a, b: a // b), "rem.u": _unsigned(bits, lambda a, b: a % b),
        "min.s": min, "max.s": max,
        "min.u": lambda a, b: b if b & mask < a & mask else a, "max.u": lambda a, b: b if a & mask < b & mask else a,
        "shl": lambda a, n: a << (n & bits - 1), "shr.s": lambda a, n: a >> (n & bits - 1),
        "shr.u": lambda a, n: (a & mask) >> (n & bits - 1),
        "cmp.eq": lambda a, b: int(a == b), "cmp.ne": lambda a, b: int(a != b), "cmp.nz": lambda a: int(a != 0),
        "cmp.lt.s": lambda a, b: int(a < b), "cmp.lt.u": _unsigned(bits, lambda a, b: int(a < b)),
    }  # fmt: skip


def _is_nan(*values: float) -> bool:
    return any(v != v for v in values)


def _libm(function: Callable[..., Any], exact: Callable[..., float] | None = None) -> Operation:
    """A function of numpy, which answers NaN and infinity where Python's (``exact``, the C library's) would raise."""

    def call(*values: float) -> float:
        if exact is not None:
            try:
                return exact(*values)
            except (ValueError, OverflowError):
                pass
        with np.errstate(all="ignore"):
            return float(function(*map(np.float64, values)))

    return call


def _remainder(a: float, b: float) -> float:
    return math.nan if _is_nan(a, b) or math.isinf(a) or b == 0 else math.remainder(a, b)


def _float(rounded: Callable[[float], float]) -> dict[str, Operation]:
    """``rounded`` is the precision's own rounding, for results inside an instruction."""
    plain: dict[str, Operation] = {
        "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
        "div": _libm(np.divide), "rem": _remainder, "fma": lambda a, b, c: rounded(a * b) + c,
        "abs": abs, "neg": lambda a: -a, "ceil": _libm(np.ceil), "floor": _libm(np.floor),
        "round": round_half_away, "round.even": round_half_even,
        "min": lambda a, b: b if b < a else a, "max": lambda a, b: b if a < b else a,
        "atan": math.atan, "atan2": math.atan2, "cos": _libm(np.cos, math.cos), "sin": _libm(np.sin, math.sin),
        "exp": _libm(np.exp, math.exp), "exp2": _libm(np.exp2, lambda a: math.pow(2.0, a)),
        "expm1": _libm(np.expm1, math.expm1), "log": _libm(np.log, math.log), "log10": _libm(np.log10, math.log10),
        "log1p": _libm(np.log1p, math.log1p), "log2": _libm(np.log2, math.log2), "pow": power, "sqrt": _libm(np.sqrt),
        "rsqrt": _libm(lambda a: 1.0 / np.float64(rounded(float(np.sqrt(a))))), "tanh": math.tanh,
        "erf": math.erf, "cmp.nan": lambda a: int(_is_nan(a)),
    }  # fmt: skip
    compares = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "lte": lambda a, b: a <= b,
    }
    for name, compare in compares.items():
        plain[f"cmp.{name}.o"] = lambda a, b, compare=compare: int(compare(a, b))
        plain[f"cmp.{name}.u"] = lambda a, b, compare=compare: int(_is_nan(a, b) or compare(a, b))
    return plain


def _bits(source: str, target: str) -> Operation:
    return lambda a: struct.unpack(target, struct.pack(source, a))[0]


_CONVERSIONS: dict[str, Operation] = {
    "trunc.i32.i8": lambda a: a & 0xFF, "trunc.i32.i16": lambda a: a & 0xFFFF, "trunc.i64.i32": lambda a: a,
    "ext.i8.i32.s": lambda a: wrap(a, 8), "ext.i8.i32.u": lambda a: a & 0xFF,
    "ext.i16.i32.s": lambda a: wrap(a, 16), "ext.i16.i32.u": lambda a: a & 0xFFFF,
    "ext.i32.i64.s": lambda a: a, "ext.i32.i64.u": lambda a: a & 0xFFFFFFFF,
    "trunc.f64.f32": lambda a: a, "ext.f32.f64": lambda a: a,
    "cast.si32.f32": float, "cast.si32.f64": float, "cast.si64.f64": float,
    "cast.ui32.f32": lambda a: float(a & 0xFFFFFFFF), "cast.ui32.f64": lambda a: float(a & 0xFFFFFFFF),
    "cast.ui64.f64": lambda a: float(a & (1 << 64) - 1),
    # From 64 bits straight to 32-bit floats: by way of f64 would round twice.
    "cast.si64.f32": lambda a: float(np.int64(a).astype(np.float32)),
    "cast.ui64.f32": lambda a: float(np.uint64(a & (1 << 64) - 1).astype(np.float32)),
    "cast.f32.si32": to_long, "cast.f32.si64": to_long, "cast.f32.ui32": to_long, "cast.f32.ui64": to_unsigned_long,
    "cast.f64.si32": lambda a: to_long(round_f32(a)), "cast.f64.ui32": lambda a: to_long(round_f32(a)),
    "cast.f64.si64": to_long, "cast.f64.ui64": to_long,
    "bitcast.i32.f32": _bits("<i", "<f"), "bitcast.f32.i32": _bits("<f", "<i"),
    "bitcast.i64.f64": _bits("<q", "<d"), "bitcast.f64.i64": _bits("<d", "<q"),
}  # fmt: skip


@cache
def operation(mnemonic: str) -> Operation | None:
    """The function of an arithmetic instruction; None when it is none."""
    if mnemonic in _CONVERSIONS:
        return _CONVERSIONS[mnemonic]
    parts = mnemonic.split(".")
    kind = next((part for part in parts if part in _TABLES), None)
    return None if kind is None else _TABLES[kind].get(".".join(part for part in parts if part != kind))


_TABLES = {"i32": _integer(32), "i64": _integer(64), "f32": _float(round_f32), "f64": _float(float)}
_MASK = (1 << 64) - 1


def siphash(data: bytes | memoryview) -> int:
    """SipHash-2-4 with the key 00 01 .. 0f: what vm.buffer.hash answers."""
    v = [
        0x736F6D6570736575 ^ 0x0706050403020100,
        0x646F72616E646F6D ^ 0x0F0E0D0C0B0A0908,
        0x6C7967656E657261 ^ 0x0706050403020100,
        0x7465646279746573 ^ 0x0F0E0D0C0B0A0908,
    ]
    whole = len(data) & ~7
    for at in range(0, whole, 8):
        _absorb(v, int.from_bytes(data[at : at + 8], "little"))
    _absorb(v, int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    v[2] ^= 0xFF
    for _ in range(4):
        _sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _absorb(v: list[int], word: int) -> None:
    v[3] ^= word
    _sip_round(v)
    _sip_round(v)
    v[0] ^= word


def _sip_round(v: list[int]) -> None:
    def rotate(value: int, count: int) -> int:
        return (value << count | value >> (64 - count)) & _MASK

    v[0] = (v[0] + v[1]) & _MASK
    v[1] = rotate(v[1], 13) ^ v[0]
    v[0] = rotate(v[0], 32)
    v[2] = (v[2] + v[3]) & _MASK
    v[3] = rotate(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) & _MASK
    v[3] = rotate(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) & _MASK
    v[1] = rotate(v[1], 17) ^ v[2]
    v[2] = rotate(v[2], 32)


class VmError(FormatError):
    """A running function failed: bounds, limits, a missing import, or vm.fail."""


@dataclass
class VmMemory:
    """Bytes that buffers, lists and globals may take together."""

    limit: int
    used: int = 0

    def take(self, count: int, item: str) -> None:
        """Charge bytes. Raises VmError beyond the limit."""
        if count < 0 or self.used + count > self.limit:
            raise VmError(f"{item}: size: must be at most {self.limit - self.used} bytes (option memory), got {count}")
        self.used += count

    def give_back(self, count: int) -> None:
        """Bytes that are free again."""
        self.used -= count


#: Element type -> (struct code, bytes).
_ELEMENTS = {"i8": ("<b", 1), "i16": ("<h", 2), "i32": ("<i", 4), "i64": ("<q", 8), "f32": ("<f", 4), "f64": ("<d", 8)}


@dataclass(eq=False, repr=False)
class VmBuffer:
    """!vm.buffer: bytes, read only for rodata. Allocated ones give their bytes back when nothing refers to them."""

    data: bytearray | memoryview
    is_constant: bool = False
    memory: VmMemory | None = None

    @classmethod
    def allocate(cls, content: bytes | memoryview | int, memory: VmMemory) -> VmBuffer:
        """A new buffer holding these bytes, or that many zeros."""
        count = content if isinstance(content, int) else len(content)
        memory.take(count, "a buffer")
        return cls(bytearray(content), memory=memory)

    def __del__(self) -> None:
        if self.memory is not None:
            self.memory.give_back(len(self.data))

    def __repr__(self) -> str:
        return f"!vm.buffer of {len(self.data)} bytes"

    def span(self, offset: int, length: int) -> slice:
        """The range as a slice; VmError when it is not in the buffer."""
        if offset < 0 or length < 0 or offset + length > len(self.data):
            raise VmError(f"end in the buffer: must be at most {len(self.data)}, got {offset + length}")
        return slice(offset, offset + length)

    def writable(self, offset: int, length: int) -> slice:
        """The bytes of a range that may be written. Raises VmError for a constant."""
        if self.is_constant:
            raise VmError("buffer: must be writable")
        return self.span(offset, length)

    def load(self, kind: str, offset: int) -> int | float:
        """A number of a kind at a byte offset."""
        code, size = _ELEMENTS[kind]
        return struct.unpack(code, self.data[self.span(offset, size)])[0]

    def store(self, kind: str, offset: int, value: int | float) -> None:
        """Put a number of a kind at a byte offset."""
        self.data[self.writable(offset, _ELEMENTS[kind][1])] = encode(kind, value)

    def fill(self, kind: str, offset: int, count: int, value: int | float) -> None:
        """Put a number of a kind ``count`` times."""
        pattern = encode(kind, value)
        where = self.writable(offset, count * len(pattern))
        self.data[where] = pattern * count


def encode(kind: str, value: int | float) -> bytes:
    """A number as little-endian bytes of its kind."""
    code, size = _ELEMENTS[kind]
    if kind[0] == "i":
        return (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
    return struct.pack(code, round_f32(value) if kind == "f32" else value)


def element_size(kind: str) -> int:
    """Bytes of a number of a kind."""
    return _ELEMENTS[kind][1]


#: What one list element is counted as, in bytes.
_LIST_ELEMENT = 16


@dataclass(eq=False, repr=False)
class VmList:
    """!vm.list<element>: ``element`` is a value type, a reference type, or ``?`` for any."""

    element: str
    memory: VmMemory
    items: list[object] = field(default_factory=list)
    capacity: int = 0

    def __del__(self) -> None:
        self.memory.give_back(self.capacity * _LIST_ELEMENT)

    def __repr__(self) -> str:
        return f"!vm.list<{self.element}> of {len(self.items)} elements"

    def reserve(self, count: int) -> None:
        """Allocate ``count`` elements."""
        if count > self.capacity:
            self.memory.take((count - self.capacity) * _LIST_ELEMENT, "a list")
            self.capacity = count

    def resize(self, count: int) -> None:
        """Exactly ``count`` elements; new ones are 0 or nothing."""
        self.reserve(count)
        del self.items[count:]
        empty = 0 if self.element in _ELEMENTS else None
        self.items += [empty] * (count - len(self.items))

    def get(self, index: int, kind: str | None) -> Any:
        """An element as a value type (:func:`converted`), or as a reference (``kind`` None)."""
        value = self.items[self._checked(index)]
        number = value if isinstance(value, (int, float)) else None
        if (number is None) != (kind is None):
            raise VmError(f"list element {index}: must be {'a number' if number is None else 'a reference'}")
        return value if kind is None or number is None else converted(kind, number)

    def set(self, index: int, value: Any) -> None:
        """Set an element, converted to the list's kind."""
        if self.element in _ELEMENTS:
            if not isinstance(value, (int, float)):
                raise VmError(f"list of {self.element}: must contain numbers, got a reference")
            value = converted(self.element, value)
        self.items[self._checked(index)] = value

    def _checked(self, index: int) -> int:
        if not 0 <= index < len(self.items):
            raise VmError(f"index in the list: must be below {len(self.items)}, got {index}")
        return index


def converted(kind: str, value: int | float) -> int | float:
    """A number of a list as another kind: integers lose their upper bits, doubles are rounded to floats. Between
    integers and floats lists do not convert: such a number is 0 (iree_vm_list_convert_value_type)."""
    if kind[0] == "i":
        return wrap(value, 8 * element_size(kind)) if isinstance(value, int) else 0
    if isinstance(value, int):
        return 0.0
    return round_f32(value) if kind == "f32" else value
