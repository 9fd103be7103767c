"""Tensors of other formats: types, conversions, transformations."""

from __future__ import annotations

import bisect
import math
import re
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nvdla.errors import FormatError
from nvdla.tensors.parameters import ELEMENT_BITS, Parameter, packed_size
from nvdla.util.files import MAP_FROM, mapped
from nvdla.util.rounding import ascii_number, integer, real

#: MLIR's names of element types -> ours.
TYPE_NAMES = {
    "i1": "bool", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz", "f8E8M0FNU": "float8_e8m0fnu",
    **{f"{sign}{bits}": f"{kind}int{bits}" for bits in (8, 16, 32, 64)
       for sign, kind in (("i", ""), ("si", ""), ("ui", "u"))},
}  # fmt: skip

_SHAPED_TYPE = re.compile(r"((?:[0-9]{1,19}x)*)([A-Za-z]\w*)")
# As iree-create-parameters writes them.
_NAN = {"float16": b"\xff\x7f", "bfloat16": b"\xff\x7f"}
_PACK = {"float16": "<e", "float32": "<f", "float64": "<d"}


def element_type(name: str) -> str:
    """Our name of an element type given as MLIR (f32, ui8) or by our own name (float32)."""
    dtype = TYPE_NAMES.get(name, name)
    if dtype not in ELEMENT_BITS or ELEMENT_BITS[dtype] < 8:
        raise FormatError(f"element type: must be one of {', '.join(TYPE_NAMES)}, got {name!r}")
    return dtype


def pattern_of(dtype: str, text: str) -> bytes:
    """One element as little-endian bytes. Integers of i8 and the like may be given either way (-1 is 255)."""
    size = ELEMENT_BITS[dtype] // 8
    try:
        if dtype in _NAN and math.isnan(real(text)):
            return _NAN[dtype]
        if dtype in _PACK:
            return struct.pack(_PACK[dtype], real(text))
        if dtype == "bfloat16":
            return _bfloat16(real(text))
        if dtype in _SMALL_FLOATS:
            return bytes([_float8(_SMALL_FLOATS[dtype], real(text))])
        if dtype == "float8_e8m0fnu":
            return bytes([_power_of_two(real(text))])
        if dtype.startswith("complex"):
            number = complex(ascii_number(text.replace(" ", "")))
            return struct.pack("<ff" if size == 8 else "<dd", number.real, number.imag)
        number = integer(text, 0)
    except (ValueError, OverflowError, struct.error):
        raise FormatError(f"value: must be of type {dtype}, got {text!r}") from None
    least = 0 if dtype.startswith("uint") else -(1 << 8 * size - 1)
    if not least <= number < 1 << 8 * size or (dtype == "bool" and number not in (0, 1)):
        raise FormatError(f"value: must fit {dtype}, got {text}")
    return (number % (1 << 8 * size)).to_bytes(size, "little")


@dataclass(frozen=True)
class _Layout:
    """Decode a float of 8 bits. ``kind``: "ieee" has infinities and NaN at the largest exponent, "fn" only NaN as its
    last code, "fnuz" one NaN where -0 would be."""

    mantissa: int
    bias: int
    kind: str


_SMALL_FLOATS = {
    "float8_e3m4": _Layout(4, 3, "ieee"), "float8_e4m3": _Layout(3, 7, "ieee"), "float8_e5m2": _Layout(2, 15, "ieee"),
    "float8_e4m3fn": _Layout(3, 7, "fn"), "float8_e4m3fnuz": _Layout(3, 8, "fnuz"),
    "float8_e5m2fnuz": _Layout(2, 16, "fnuz"), "float8_e4m3b11fnuz": _Layout(3, 11, "fnuz"),
}  # fmt: skip


def _float8(layout: _Layout, value: float) -> int:
    """The code of the nearest value, ties to the even code; past the largest an infinity, else NaN."""
    infinity = 0x80 - (1 << layout.mantissa)
    largest = {"ieee": infinity - 1, "fn": 0x7E, "fnuz": 0x7F}[layout.kind]
    nan = 0x80 if layout.kind == "fnuz" else 0x7F
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    if value != value:
        return nan if layout.kind == "fnuz" else sign | nan
    # Codes rise with their values, also past the largest, as if the exponent had no end.
    values = [_code_value(layout, code) for code in range(largest + 2)]
    code = bisect.bisect_right(values, abs(value)) - 1
    if code <= largest:
        below, above = abs(value) - values[code], values[code + 1] - abs(value)
        code += above < below or (above == below and code & 1)
    if code > largest:
        return sign | infinity if layout.kind == "ieee" else nan if layout.kind == "fnuz" else sign | nan
    return 0 if layout.kind == "fnuz" and not code else sign | code


def _code_value(layout: _Layout, code: int) -> float:
    exponent, fraction = code >> layout.mantissa, code & (1 << layout.mantissa) - 1
    whole = fraction + (1 << layout.mantissa if exponent else 0)
    return math.ldexp(whole, max(exponent, 1) - layout.bias - layout.mantissa)


def _power_of_two(value: float) -> int:
    """float8_e8m0fnu: 2^(code - 127), the nearest; 255 is NaN, also for what is negative or out of range."""
    if not 0 < value < math.inf:
        return 0xFF
    mantissa, exponent = math.frexp(value)  # value = mantissa * 2^exponent, mantissa from 0.5 to below 1
    code = exponent - 1 + 127
    code += mantissa > 0.75 or (mantissa == 0.75 and code & 1)
    return code if 0 <= code < 0xFF else 0xFF


def _bfloat16(value: float) -> bytes:
    """Rounded to nearest even."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if value == value:
        bits += 0x7FFF + (bits >> 16 & 1)
    return (bits >> 16 & 0xFFFF).to_bytes(2, "little")


def shaped_parameter(text: str, as_splat: bool, name: str | None = None) -> Parameter:
    """``name=4x3xf32=1.5`` (value 0 if left out) as data or as a splat."""
    if name is None:
        name, _, text = text.partition("=")
    shaped, _, value = text.partition("=")
    match = _SHAPED_TYPE.fullmatch(shaped)
    if match is None:
        raise FormatError(
            f"parameter: must be NAME=[DIMxDIMx...]TYPE[=VALUE], such as weights=64x3xf32=0.5, got {name}={text}"
        )
    shape = tuple(int(n) for n in match[1].split("x")[:-1])
    dtype = element_type(match[2])
    length = packed_size(dtype, shape)
    if length >= 1 << 63:
        raise FormatError(f"{name}={text}: size: must fit a file, got {length} bytes")
    # As iree-create-parameters writes it: without a value, a pattern of one byte.
    pattern = pattern_of(dtype, value) if value else b"\0"
    parameter = Parameter(name, dtype, shape, None, length, pattern)
    return parameter if as_splat else Parameter.from_bytes(name, _written_out(parameter), dtype, shape)


def _written_out(parameter: Parameter) -> memoryview:
    """The bytes; where they are many, in a file that has no name."""
    if parameter.length <= MAP_FROM:
        return parameter.as_bytes()
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if parameter.length > free:  # found out before a disk is filled
        raise FormatError(
            f"parameter {parameter.name!r}: no memory for {parameter.length} bytes (of {free} in "
            f"{tempfile.gettempdir()}). Use --splat to store the value once."
        )
    try:
        with tempfile.TemporaryFile() as file:
            if any(parameter.pattern or b""):
                parameter.write(file)
            else:
                file.truncate(parameter.length)
            file.flush()
            return mapped(file)
    except (OSError, OverflowError) as error:
        raise FormatError(
            f"parameter {parameter.name!r}: no memory for {parameter.length} bytes "
            f"({getattr(error, 'strerror', None) or error}). Use --splat to store the value once."
        ) from None


def transform(
    parameters: Sequence[Parameter],
    exclude: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    strip: bool = False,
    splat: Sequence[str] = (),
) -> list[Parameter]:
    """The changed list, in the same order.

    ``strip`` turns every parameter into a splat of zero, ``splat`` those it names into a splat of a value: ``NAME``,
    ``NAME=VALUE`` (of the recorded type) or ``NAME=TYPE=VALUE``. Shape, type and metadata stay. Names are those before
    renaming. FormatError for a name that is not there.
    """
    names = {p.name for p in parameters}
    wanted = {}
    for text in splat:
        # The longest prefix that is a name: names may hold "=".
        name = next((n for n in _prefixes(text) if n in names), text.partition("=")[0])
        wanted[name] = text[len(name) + 1 :]
    rename = rename or {}
    for name in (*exclude, *rename, *wanted):
        if name not in names:
            raise FormatError(f"parameter: must be in the archive, got {name!r}")
    result = []
    for parameter in parameters:
        if parameter.name in exclude:
            continue
        changed = parameter
        if parameter.name in wanted:
            changed = _as_splat(parameter, wanted[parameter.name])
        elif strip:
            changed = replace(parameter, data=None, pattern=b"\0")
        result.append(replace(changed, name=rename.get(parameter.name, parameter.name)))
    return result


def _prefixes(text: str) -> list[str]:
    cuts = [i for i, c in enumerate(text) if c == "="]
    return [text, *(text[:i] for i in reversed(cuts))]


def _as_splat(parameter: Parameter, text: str) -> Parameter:
    kind, _, value = text.rpartition("=")
    dtype = element_type(kind) if kind else parameter.dtype
    if not value:
        return replace(parameter, data=None, pattern=b"\0")
    if dtype is None or ELEMENT_BITS[dtype] < 8:
        raise FormatError(
            f"parameter {parameter.name!r}: element type: must be given, because none is recorded. Use "
            f"{parameter.name}=TYPE=VALUE."
        )
    pattern = pattern_of(dtype, value)
    if parameter.length % len(pattern):
        raise FormatError(
            f"parameter {parameter.name!r}: size: must be a multiple of {dtype}, got {parameter.length} bytes"
        )
    return replace(parameter, data=None, pattern=pattern)
