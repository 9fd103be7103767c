"""TVM parameter files and data types.

The numbers of the type codes above 5 changed between releases and files carry no marker, so every name belongs to a
dialect: ``0.8`` (up to 0.13: integers, floats, bfloat16, and bool as a one-bit unsigned integer), ``0.14`` (0.14 to
0.20: two float8 types took the codes 6 and 7) and ``0.27`` (since 0.21: DLPack's own numbers, with a bool type of its
own that is written since 0.23).
Source: tvm include/tvm/runtime/data_type.h of the releases; dlpack.h of apache-tvm-ffi 0.1.

Layout, little-endian (tvm src/runtime of 0.8 to 0.27, and measured): list magic u64, reserved u64, number of names u64,
the names (length u64, bytes), number of tensors u64, the tensors: magic u64, reserved u64, device type i32 (1, the
CPU), device id i32, rank i32, type code u8, bits u8, lanes u16, shape i64 each, bytes i64, data.

The byte count is ceil(bits / 8) times the product of the shape: the lanes do not count, so a tensor of vectors loses
all but its first part, and a type of less than 8 bits is followed by bytes that mean nothing. TVM reads a file cut
short by a byte, takes bytes after the end and duplicate names silently, and cannot read back a tensor of shape
(3, 0) that it wrote: what it does not check is checked here.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.interop.containers.registry import FileFinding, Severity
from nvdla.tensors.parameters import ELEMENT_BITS, Parameter, utf8_name
from nvdla.util.rounding import ceil_div

#: What a writer uses unless told otherwise, and a reader assumes.
CURRENT_DIALECT = "0.27"

_COMMON = {0: "int", 1: "uint", 2: "float", 3: "handle", 4: "bfloat", 5: "complex"}
_DLPACK = {
    6: "bool", 7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz", 10: "float8_e4m3fn",
    11: "float8_e4m3fnuz", 12: "float8_e5m2", 13: "float8_e5m2fnuz", 14: "float8_e8m0fnu",
    15: "float6_e2m3fn", 16: "float6_e3m2fn", 17: "float4_e2m1fn",
}  # fmt: skip

#: dialect -> type code -> name; the names of codes 0 to 5 take the number of bits after them, the others contain it.
DIALECTS: Mapping[str, Mapping[int, str]] = MappingProxyType(
    {
        "0.8": {code: name for code, name in _COMMON.items() if code != 5},
        "0.14": {**_COMMON, 6: "float8_e4m3fn", 7: "float8_e5m2", 8: "float4_e2m1fn"},
        "0.27": {**_COMMON, **_DLPACK},
    }
)

_SIZED_BITS = {"bool": 8, "float8": 8, "float6": 6, "float4": 4}
_LANES = re.compile(r"(?<!comple)x([0-9]{1,5})\Z")
_NAME = re.compile(r"([a-z]+(?:[0-9]_[a-z0-9]+)?)([0-9]{0,3})\Z")


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
        raise FormatError(f"TVM dialect: must be one of {', '.join(DIALECTS)}, got {dialect!r}")
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
    raise FormatError(f"element type: must be one of TVM dialect {dialect}, got {name!r}")


def _fixed_bits(base: str) -> int | None:
    """Bits of a type whose name already says them."""
    return _SIZED_BITS.get(base.split("_")[0])


LIST_MAGIC = 0xF7E58D4F05049CB7
TENSOR_MAGIC = 0xDD5E40F096B4A13F
_CPU = 1
_INT64_MAX = (1 << 63) - 1
#: Rank that the writer takes; real tensors have at most a handful of dimensions.
MAX_RANK = 1024

_U64 = struct.Struct("<Q")
_LIST_HEADER = struct.Struct("<3Q")
_TENSOR_HEADER = struct.Struct("<2Q3i2BH")
_I64 = struct.Struct("<q")


@dataclass(frozen=True)
class ParamsTensor:
    """One tensor of the file. ``stored`` views the bytes the file holds (read only)."""

    raw_name: bytes
    dtype: TvmDataType
    shape: tuple[int, ...]
    stored: memoryview
    device_id: int = 0
    reserved: int = 0
    offset: int | None = None
    dialect: str = CURRENT_DIALECT

    @property
    def name(self) -> str:
        """The name; bytes that are not UTF-8 are shown as ``\\xNN``."""
        return self.raw_name.decode("utf-8", "backslashreplace")

    @property
    def type_name(self) -> str:
        """The element type as the file's dialect calls it."""
        return self.dtype.name(self.dialect)

    @property
    def needed(self) -> int:
        """Bytes that the tensor takes in memory: all lanes, types under 8 bits packed (a bool takes a byte)."""
        bits = 8 if self.type_name == "bool" else self.dtype.bits * self.dtype.lanes
        return 0 if 0 in self.shape else ceil_div(math.prod(self.shape) * bits, 8)

    @property
    def complete(self) -> bool:
        """True if the file holds all of it (it does not where there are several lanes)."""
        return len(self.stored) >= self.needed

    @property
    def data(self) -> memoryview:
        """The meaningful bytes, packed; FormatError when the writer dropped a part of them."""
        if not self.complete:
            raise FormatError(
                f"tensor {self.name!r}: {self.type_name} of shape {shape_text(self.shape)}: must have "
                f"{self.needed} bytes, got {len(self.stored)}. TVM does not count vector lanes when it writes, so "
                "the rest is lost. Write the tensor again with the lanes as a dimension."
            )
        return self.stored[: self.needed]

    def parameter(self) -> Parameter:
        """The tensor as every container has it; types that have no name there come as a run of bytes."""
        name = self.type_name
        if not self.complete or name not in ELEMENT_BITS or not _fits_an_array(self.shape):
            metadata = {"tvm_dtype": name, "tvm_shape": list(self.shape), "complete": self.complete}
            return Parameter.from_bytes(self.name, self.stored, metadata=metadata)
        return Parameter.from_bytes(self.name, self.data, name, self.shape)

    def array(self) -> np.ndarray:
        """The elements, a read-only view (:meth:`Parameter.as_array`)."""
        return self.parameter().as_array()


@dataclass(frozen=True)
class ParamsFile:
    """A parameter file. ``tensors`` in file order, duplicates kept; ``trailing`` bytes after the last tensor."""

    tensors: tuple[ParamsTensor, ...]
    reserved: int = 0
    trailing: memoryview = field(default_factory=lambda: memoryview(b""))
    size: int = 0

    def __getitem__(self, name: str) -> ParamsTensor:
        """The last tensor of this name, which is the one TVM keeps."""
        for tensor in reversed(self.tensors):
            if tensor.name == name:
                return tensor
        raise FormatError(f"tensor: must be in the parameter file, got {name!r}")

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Everything wrong or odd in a file that can be read. ``strict`` also forbids what TVM itself writes or
        takes although it cannot be read back whole."""
        worse = Severity.ERROR if strict else Severity.WARNING
        findings = list(self._file_findings())
        seen: dict[bytes, int] = {}
        for index, tensor in enumerate(self.tensors):
            where = f"tensor {index} {tensor.name!r}"
            if tensor.raw_name in seen:
                message = f"name: must be unique, got that of tensor {seen[tensor.raw_name]}. TVM keeps the later one."
                findings.append(FileFinding(Severity.ERROR, where, tensor.offset, message))
            seen[tensor.raw_name] = index
            if tensor.dtype.code not in codes(tensor.dialect):
                message = (
                    f"type code: must be known to dialect {tensor.dialect}, got {tensor.dtype.code}: TVM refuses it"
                )
                findings.append(FileFinding(Severity.ERROR, where, tensor.offset, message))
            findings += [FileFinding(worse, where, tensor.offset, text) for text in _tensor_faults(tensor)]
            findings += [FileFinding(Severity.WARNING, where, tensor.offset, text) for text in _tensor_oddities(tensor)]
        if [t.raw_name for t in self.tensors] != sorted(t.raw_name for t in self.tensors):
            findings.append(FileFinding(Severity.NOTE, "names", 24, "order: must be by name (canonical order)"))
        return findings

    def _file_findings(self) -> Iterator[FileFinding]:
        if len(self.trailing):
            yield FileFinding(
                Severity.ERROR,
                "end of file",
                self.size - len(self.trailing),
                f"must be the end of the last tensor, got {len(self.trailing)} more bytes. Cut them off.",
            )
        if self.reserved:
            yield FileFinding(Severity.WARNING, "header, reserved field", 8, f"must be 0, got {self.reserved:#x}")

    def pack(self) -> bytes:
        """Return the file, byte for byte, trailing bytes included."""
        return b"".join([*_pack(self.tensors, self.reserved), self.trailing])


def read(data: bytes | bytearray | memoryview, dialect: str = CURRENT_DIALECT) -> ParamsFile:
    """Reads a parameter file; views, no copies. FormatError for anything that has no single meaning: a wrong magic
    number, a count or size that disagrees, or data that ends early."""
    codes(dialect)
    reader = _Reader(memoryview(data).toreadonly().cast("B") if len(data) else memoryview(b""))
    magic, reserved, count = reader.unpack(_LIST_HEADER, "file header")
    if magic != LIST_MAGIC:
        raise FormatError(f"magic of a TVM parameter file: must be {LIST_MAGIC:#018x}, got {magic:#018x}")
    names = _read_names(reader, count)
    (tensors,) = reader.unpack(_U64, "tensor count")
    if tensors != count:
        raise FormatError(
            f"tensor count at byte {reader.offset - 8}: must be {count}, the count of names, got {tensors}"
        )
    contents = tuple(_read_tensor(reader, name, dialect) for name in names)
    return ParamsFile(contents, reserved, reader.data[reader.offset :], len(reader.data))


class _Reader:
    """A cursor on bytes, with errors that state the missing part and its place."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.offset = 0

    def unpack(self, layout: struct.Struct, part: str) -> tuple[Any, ...]:
        return layout.unpack(self.take(layout.size, part))

    def take(self, size: int, part: str) -> memoryview:
        left = len(self.data) - self.offset
        if size > left:
            raise FormatError(
                f"parameter file: {part} at byte {self.offset}: must have {size} bytes, got {left} (cut off?)"
            )
        self.offset += size
        return self.data[self.offset - size : self.offset]


def _read_names(reader: _Reader, count: int) -> list[bytes]:
    left = len(reader.data) - reader.offset
    if count > left // 8:
        raise FormatError(f"name count at byte 16: must be at most {left // 8} (the rest of the file), got {count}")
    names = []
    for index in range(count):
        (length,) = reader.unpack(_U64, f"length of name {index}")
        names.append(bytes(reader.take(length, f"name {index}")))
    return names


def _read_tensor(reader: _Reader, raw_name: bytes, dialect: str) -> ParamsTensor:
    start = reader.offset
    name = f"tensor {raw_name[:80].decode('utf-8', 'backslashreplace')!r}"
    magic, reserved, device, device_id, rank, code, bits, lanes = reader.unpack(_TENSOR_HEADER, f"header of {name}")
    if magic != TENSOR_MAGIC:
        raise FormatError(f"{name} at byte {start}: magic: must be {TENSOR_MAGIC:#018x}, got {magic:#018x}")
    if device != _CPU:
        raise FormatError(f"{name} at byte {start}: device type: must be 1 (CPU), got {device}")
    left = len(reader.data) - reader.offset
    if not 0 <= rank <= left // 8:
        raise FormatError(
            f"{name} at byte {start}: rank: must be at most {left // 8} (the rest of the file), got {rank}"
        )
    shape = tuple(np.frombuffer(reader.take(8 * rank, f"shape of {name}"), "<i8").tolist())
    (stored,) = reader.unpack(_I64, f"byte count of {name}")
    elements = _elements(shape, f"{name} at byte {start}")
    expected = ceil_div(bits, 8) * elements
    if stored != expected:
        raise FormatError(
            f"{name} at byte {start}: {TvmDataType(code, bits, lanes).name(dialect)} of shape "
            f"{_brief(shape)}: must be stored in {expected} bytes, got {stored}"
        )
    data = reader.take(stored, f"data of {name}")
    return ParamsTensor(raw_name, TvmDataType(code, bits, lanes), shape, data, device_id, reserved, start, dialect)


def _elements(shape: tuple[int, ...], name: str) -> int:
    """Product of the shape, refused past 63 bits so that a long shape cannot make a huge number."""
    if any(extent < 0 for extent in shape):
        raise FormatError(f"{name}: shape: must not be negative, got {_brief(shape)}")
    if 0 in shape:
        return 0
    count = 1
    for extent in shape:
        count *= extent
        if count > _INT64_MAX:
            raise FormatError(f"{name}: shape: must have at most 2^63 elements, got {_brief(shape)}")
    return count


def _fits_an_array(shape: Sequence[int]) -> bool:
    """Check whether numpy can hold the shape: at most 32 dimensions (before 2.0), no overflow with an extent of 0."""
    return len(shape) <= 32 and math.prod(max(extent, 1) for extent in shape) <= _INT64_MAX // 64


def _brief(shape: Sequence[int]) -> str:
    """A shape for a message, shortened when it is absurdly long."""
    return str(tuple(shape)) if len(shape) <= 12 else f"{tuple(shape[:12])} and {len(shape) - 12} more extents"


def _tensor_faults(tensor: ParamsTensor) -> Iterator[str]:
    if not tensor.complete:
        yield (
            f"{tensor.type_name} of shape {_brief(tensor.shape)} takes {tensor.needed} bytes, the file holds "
            f"{len(tensor.stored)}: TVM does not count the lanes and drops the rest"
        )
    if tensor.shape and tensor.shape[0] != 0 and 0 in tensor.shape:
        yield f"shape {_brief(tensor.shape)} holds no data and TVM refuses to read it back (it only takes a leading 0)"


def _tensor_oddities(tensor: ParamsTensor) -> Iterator[str]:
    if tensor.device_id:
        yield f"device id: must be 0, got {tensor.device_id}. TVM creates the tensor on that device."
    if tensor.reserved:
        yield f"reserved field: must be 0, got {tensor.reserved:#x}"
    if tensor.dtype.lanes == 0 or tensor.dtype.bits == 0:
        yield f"element type of {tensor.dtype.bits} bits and {tensor.dtype.lanes} lanes"
    try:
        tensor.raw_name.decode("utf-8")
    except UnicodeDecodeError:
        yield "name: must be UTF-8"
    if tensor.dtype.bits < 8 and tensor.type_name != "bool" and len(tensor.stored) > tensor.needed:
        yield f"{len(tensor.stored) - tensor.needed} bytes after the packed {tensor.type_name} data have no meaning"


def write(parameters: Iterable[Parameter], dialect: str = CURRENT_DIALECT, order: str = "name") -> bytes:
    """A parameter file in memory; see :func:`pieces`."""
    return b"".join(pieces(parameters, dialect, order))


def pieces(
    parameters: Iterable[Parameter], dialect: str = CURRENT_DIALECT, order: str = "name"
) -> list[bytes | memoryview]:
    """A parameter file, piece by piece, data not copied.

    ``order`` "name" is the canonical one (sorted by the name's bytes, so equal contents give equal
    files), "given" keeps theirs. FormatError for duplicates and for types the dialect does not have; a parameter
    without a recorded type is stored as uint8."""
    if order not in ("name", "given"):
        raise FormatError(f"order of parameters: must be name or given, got {order!r}")
    tensors = [_tensor_of(parameter, dialect) for parameter in parameters]
    seen: set[bytes] = set()
    for tensor in tensors:
        if tensor.raw_name in seen:
            raise FormatError(f"names of parameters: must be unique for TVM, got {tensor.name!r} twice")
        seen.add(tensor.raw_name)
    return _pack(sorted(tensors, key=lambda t: t.raw_name) if order == "name" else tensors)


def _tensor_of(parameter: Parameter, dialect: str) -> ParamsTensor:
    data, name, shape = parameter.as_bytes(), parameter.dtype, parameter.shape
    if name is None or shape is None:
        name, shape = "uint8", (len(data),)
    if len(shape) > MAX_RANK:
        raise FormatError(f"parameter {parameter.name!r}: rank: must be at most {MAX_RANK}, got {len(shape)}")
    dtype = parse(name, dialect)
    elements = _elements(shape, f"parameter {parameter.name!r}")
    stored = ceil_div(dtype.bits, 8) * elements
    tensor = ParamsTensor(utf8_name(parameter.name), dtype, tuple(shape), data, dialect=dialect)
    if len(data) != tensor.needed:
        raise FormatError(
            f"parameter {parameter.name!r}: {name} of shape {_brief(shape)}: must have {tensor.needed} bytes, "
            f"got {len(data)}"
        )
    if stored > len(data):  # under 8 bits: packed data first, then the bytes TVM expects and does not use
        data = memoryview(bytes(data) + bytes(stored - len(data)))
    return ParamsTensor(tensor.raw_name, dtype, tensor.shape, data, dialect=dialect)


def _pack(tensors: Sequence[ParamsTensor], reserved: int = 0) -> list[bytes | memoryview]:
    parts: list[bytes | memoryview] = [_LIST_HEADER.pack(LIST_MAGIC, reserved, len(tensors))]
    for tensor in tensors:
        parts += [_U64.pack(len(tensor.raw_name)), tensor.raw_name]
    parts.append(_U64.pack(len(tensors)))
    for tensor in tensors:
        dtype, rank = tensor.dtype, len(tensor.shape)
        parts.append(_TENSOR_HEADER.pack(TENSOR_MAGIC, tensor.reserved, _CPU, tensor.device_id, rank, *dtype))
        parts.append(struct.pack(f"<{rank}q", *tensor.shape))
        parts += [_I64.pack(len(tensor.stored)), tensor.stored]
    return parts
