"""TVM's element type: DLPack's (code, bits, lanes) triple, and its name.

The numbers of the type codes above 5 changed between releases and files carry no marker, so every name belongs to a
dialect: ``0.8`` (up to 0.13: integers, floats, bfloat16, and bool as a one-bit unsigned integer), ``0.14`` (0.14 to
0.20: two float8 types took the codes 6 and 7) and ``0.27`` (since 0.21: DLPack's own numbers, with a bool type of its
own that is written since 0.23).
Source: tvm include/tvm/runtime/data_type.h of the releases; dlpack.h of apache-tvm-ffi 0.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from nvdla.errors import FormatError
from nvdla.rounding import ceil_div

#: What a writer uses unless told otherwise, and a reader assumes.
CURRENT_DIALECT = "0.27"

_COMMON = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex"}
_DLPACK = {
    6: "bool", 7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz", 10: "float8_e4m3fn",
    11: "float8_e4m3fnuz", 12: "float8_e5m2", 13: "float8_e5m2fnuz", 14: "float8_e8m0fnu",
    15: "float6_e2m3fn", 16: "float6_e3m2fn", 17: "float4_e2m1fn",
}  # fmt: skip

#: dialect -> type code -> name; the names of codes 0 to 5 take the number of bits behind them, the others contain it.
DIALECTS: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "0.8": {code: name for code, name in _COMMON.items() if code != 5},
        "0.14": {**_COMMON, 6: "float8_e4m3fn", 7: "float8_e5m2", 8: "float4_e2m1fn"},
        "0.27": {**_COMMON, **_DLPACK},
    }
)

_SIZED_BITS = {"bool": 8, "float8": 8, "float6": 6, "float4": 4}
_LANES = re.compile(r"(?<!comple)x(\d{1,5})\Z")
_NAME = re.compile(r"([a-z]+(?:\d_[a-z0-9]+)?)(\d{0,3})\Z")


class TvmDataType(NamedTuple):
    """Type code, bits of one lane, lanes of one element."""

    code: int
    bits: int
    lanes: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of one element with all its lanes."""
        return ceil_div(self.bits * self.lanes, 8)

    def name(self, dialect: str = CURRENT_DIALECT) -> str:
        """``int8``, ``float32x4``, ``bfloat16``, ``bool``; ``code9_16`` for what the dialect does not know."""
        base = codes(dialect).get(self.code)
        lanes = f"x{self.lanes}" if self.lanes != 1 else ""
        if base is None:
            return f"code{self.code}_{self.bits}{lanes}"
        if base == "uint" and self.bits == 1:
            return f"bool{lanes}"
        fixed = _fixed_bits(base)
        if fixed is None:
            return f"{base}{self.bits}{lanes}"
        return f"{base}{lanes}" if fixed == self.bits else f"code{self.code}_{self.bits}{lanes}"


def codes(dialect: str) -> Mapping[int, str]:
    """The type codes of a dialect; FormatError listing the known dialects otherwise."""
    if dialect not in DIALECTS:
        raise FormatError(f"unknown TVM dialect {dialect!r}; known are {', '.join(DIALECTS)}")
    return DIALECTS[dialect]


def parse(name: str, dialect: str = CURRENT_DIALECT) -> TvmDataType:
    """The triple of a name as :meth:`DataType.name` gives it; FormatError where the dialect has no such type."""
    known = codes(dialect)
    if name == "bool" and "bool" not in known.values():
        return TvmDataType(1, 1)
    by_name = {base: code for code, base in known.items()}
    vector = _LANES.search(name)
    match = _NAME.match(name[: vector.start()] if vector else name)
    lanes = int(vector[1]) if vector else 1
    if match and 1 <= lanes <= 0xFFFF:
        base, bits = match[1], match[2]
        if base in by_name and not bits and _fixed_bits(base) is not None:
            return TvmDataType(by_name[base], _fixed_bits(base) or 0, lanes)
        if base in by_name and bits and _fixed_bits(base) is None and 1 <= int(bits) <= 255:
            return TvmDataType(by_name[base], int(bits), lanes)
    raise FormatError(f"TVM dialect {dialect} has no element type {name!r}")


def _fixed_bits(base: str) -> int | None:
    """Bits of a type whose name already says them."""
    return _SIZED_BITS.get(base.split("_")[0])
