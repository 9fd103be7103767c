"""Element values on the command line: ``4x3xf32=1.5`` and the like, as iree-create-parameters takes them."""

from __future__ import annotations

import re
import struct

from nvdla.containers.parameters import ELEMENT_BITS, Parameter, packed_size
from nvdla.errors import FormatError

#: MLIR's names of element types -> ours.
TYPE_NAMES = {
    "i1": "bool", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2FNUZ": "float8_e5m2fnuz", "f8E8M0FNU": "float8_e8m0fnu",
    **{f"{sign}{bits}": f"{kind}int{bits}" for bits in (8, 16, 32, 64)
       for sign, kind in (("i", ""), ("si", ""), ("ui", "u"))},
}  # fmt: skip

_SHAPED_TYPE = re.compile(r"((?:\d{1,19}x)*)([A-Za-z]\w*)")
_PACK = {"float16": "<e", "float32": "<f", "float64": "<d"}


def element_type(name: str) -> str:
    """Our name of an element type given as MLIR (f32, ui8) or by our own name (float32)."""
    dtype = TYPE_NAMES.get(name, name)
    if dtype not in ELEMENT_BITS or ELEMENT_BITS[dtype] < 8:
        raise FormatError(f"unknown element type {name!r}; known are {', '.join(TYPE_NAMES)}")
    return dtype


def pattern_of(dtype: str, text: str) -> bytes:
    """One element as little-endian bytes. Integers may be signed or unsigned (-1 is 255 for 8 bits)."""
    size = ELEMENT_BITS[dtype] // 8
    try:
        if dtype in _PACK:
            return struct.pack(_PACK[dtype], float(text))
        if dtype == "bfloat16":
            return _bfloat16(float(text))
        if dtype.startswith(("float", "complex")):
            if float(text):
                raise FormatError(f"{dtype}: only the value 0 can be written as text, not {text}")
            return bytes(size)
        number = int(text, 0)
    except (ValueError, OverflowError, struct.error):
        raise FormatError(f"{text!r} is no value of type {dtype}") from None
    if not -(1 << 8 * size - 1) <= number < 1 << 8 * size or (dtype == "bool" and number not in (0, 1)):
        raise FormatError(f"{text} does not fit {dtype}")
    return (number % (1 << 8 * size)).to_bytes(size, "little")


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
        raise FormatError(f"{name}={text}: expected NAME=[DIMxDIMx...]TYPE[=VALUE], such as weights=64x3xf32=0.5")
    shape = tuple(int(n) for n in match[1].split("x")[:-1])
    dtype = element_type(match[2])
    length = packed_size(dtype, shape)
    if length >= 1 << 63:
        raise FormatError(f"{name}={text}: {length} bytes are more than a file can hold")
    pattern = pattern_of(dtype, value or "0")
    parameter = Parameter(name, dtype, shape, None, length, pattern)
    return parameter if as_splat else Parameter.from_bytes(name, parameter.as_bytes(), dtype, shape)
