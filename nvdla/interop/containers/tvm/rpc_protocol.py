"""TVM's remote procedure calls on the wire: packets, codes, and argument sequences of both dialects.

A packet is its length u64, a code i32 and a body, little-endian. Both dialects call themselves protocol 0.8.0 but
differ in the type codes of arguments and in their layout: ``0.8`` (up to 0.20, and microTVM) sends all type codes first
and then the values, ``0.27`` sends each value after its type code.

Source: tvm src/runtime/minrpc/rpc_reference.h of 0.8, src/runtime/rpc/minrpc/rpc_reference.h and rpc_endpoint.cc of
0.27, and recorded traffic of both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from nvdla.errors import FormatError, shape_text
from nvdla.interop.containers.tvm.crt import FunctionHandle, ModuleHandle
from nvdla.interop.containers.tvm.params import TvmDataType
from nvdla.util.rounding import ceil_div

MAGIC = 0xFF271
MISMATCH = MAGIC + 2
PROTOCOL_VERSION = b"0.8.0"
#: Arguments of a call; real calls have a few dozen.
MAX_ARGUMENTS = 1 << 16
MAX_RANK = 32
DIALECTS = ("0.8", "0.27")


class Code(IntEnum):
    """Kind of a packet; from GET_GLOBAL on, system calls."""

    NONE = 0
    SHUTDOWN = 1
    INIT_SERVER = 2
    CALL = 3
    RETURN = 4
    EXCEPTION = 5
    COPY_FROM_REMOTE = 6
    COPY_TO_REMOTE = 7
    COPY_ACK = 8
    GET_GLOBAL = 9
    FREE_HANDLE = 10
    SET_DEVICE = 11
    GET_ATTRIBUTE = 12
    ALLOC_DATA = 13
    FREE_DATA = 14
    STREAM_SYNC = 15
    COPY_AMONG_REMOTE = 16
    ALLOC_DATA_WITH_SCOPE = 17
    CREATE_STREAM = 18
    FREE_STREAM = 19
    SET_STREAM = 20
    GET_CURRENT_STREAM = 21


class Kind(IntEnum):
    """Types of values, independent of the dialect's numbers."""

    NULL = 0
    INT = 1
    BOOL = 2
    FLOAT = 3
    POINTER = 4
    DATA_TYPE = 5
    DEVICE = 6
    TENSOR_VIEW = 7
    STRING = 8
    BYTES = 9
    OBJECT = 10
    FUNCTION = 11
    MODULE = 12
    TENSOR = 13


_OLD = {Kind.INT: 0, Kind.FLOAT: 2, Kind.POINTER: 3, Kind.NULL: 4, Kind.DATA_TYPE: 5, Kind.DEVICE: 6,
        Kind.TENSOR_VIEW: 7, Kind.OBJECT: 8, Kind.MODULE: 9, Kind.FUNCTION: 10, Kind.STRING: 11, Kind.BYTES: 12,
        Kind.TENSOR: 13}  # fmt: skip
_NEW = {Kind.NULL: 0, Kind.INT: 1, Kind.BOOL: 2, Kind.FLOAT: 3, Kind.POINTER: 4, Kind.DATA_TYPE: 5, Kind.DEVICE: 6,
        Kind.TENSOR_VIEW: 7, Kind.STRING: 8, Kind.BYTES: 9, Kind.OBJECT: 64, Kind.FUNCTION: 68, Kind.TENSOR: 70,
        Kind.MODULE: 73}  # fmt: skip
#: dialect -> kind -> type code on the wire.
TYPE_CODES = {"0.8": _OLD, "0.27": _NEW}
_KINDS = {dialect: {code: kind for kind, code in table.items()} for dialect, table in TYPE_CODES.items()}

# Codes of 0.27 that carry an inner type and then a value (rpc_endpoint.cc, ReadFFIAny).
_SMALL_STR, _SMALL_BYTES, _STR, _BYTES, _REMOTE_OBJECT = 11, 12, 65, 66, 115

_U32, _I32, _I64, _U64 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<Q")
_F64 = struct.Struct("<d")
_DEVICE = struct.Struct("<ii")
_DTYPE = struct.Struct("<BBH")
_CPU = 1


@dataclass(frozen=True)
class Pointer:
    """An opaque 64-bit handle."""

    value: int


@dataclass(frozen=True)
class Device:
    """Device type (1 is the CPU) and number."""

    type: int = _CPU
    index: int = 0


@dataclass(frozen=True)
class TensorView:
    """A tensor in the server's memory at ``data``."""

    data: int
    dtype: TvmDataType
    shape: tuple[int, ...]
    device: Device = Device()
    byte_offset: int = 0

    @property
    def size(self) -> int:
        """Bytes of a compact tensor of this shape and type."""
        elements = 1
        for extent in self.shape:
            elements *= extent
        return ceil_div(elements * self.dtype.bits * self.dtype.lanes, 8)


class Reader:
    """A cursor over the body of one packet."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes. Raises FormatError at the end of the packet."""
        if not 0 <= size <= len(self._data) - self._at:
            raise FormatError(
                f"RPC packet: must have {size} bytes at byte {self._at}, got {len(self._data) - self._at} (cut off?)"
            )
        self._at += size
        return self._data[self._at - size : self._at]

    def unpack(self, layout: struct.Struct) -> Any:
        """The next values of a layout; one alone is not in a tuple."""
        values = layout.unpack(self.take(layout.size))
        return values[0] if len(values) == 1 else values

    def u64(self) -> int:
        """The next unsigned number of 64 bits."""
        return self.unpack(_U64)

    def i32(self) -> int:
        """The next signed number of 32 bits."""
        return self.unpack(_I32)

    def string(self) -> bytes:
        """Length u64 and bytes."""
        return bytes(self.take(self.u64()))

    def rest(self) -> memoryview:
        """All bytes that are left."""
        return self.take(len(self._data) - self._at)

    def tensor_view(self) -> TensorView:
        """Read the next tensor view: the address of its data, its shape and type."""
        data = self.u64()
        device = Device(*self.unpack(_DEVICE))
        rank = self.i32()
        dtype = TvmDataType(*self.unpack(_DTYPE))
        if not 0 <= rank <= MAX_RANK:
            raise FormatError(f"rank of an RPC tensor: must be at most {MAX_RANK}, got {rank}")
        shape = tuple(self.unpack(_I64) for _ in range(rank))
        if any(extent < 0 for extent in shape):
            raise FormatError(f"shape of an RPC tensor: must not be negative, got {shape_text(shape)}")
        return TensorView(data, dtype, shape, device, self.u64())


def pack_tensor_view(view: TensorView) -> bytes:
    """A tensor view as bytes of a packet."""
    return b"".join(
        [
            _U64.pack(view.data),
            _DEVICE.pack(view.device.type, view.device.index),
            _I32.pack(len(view.shape)),
            _DTYPE.pack(*view.dtype),
            *(_I64.pack(extent) for extent in view.shape),
            _U64.pack(view.byte_offset),
        ]
    )


def packet(code: Code, *body: bytes | memoryview) -> bytes:
    """A packet with its length."""
    return b"".join([_U64.pack(4 + sum(map(len, body))), _I32.pack(code), *body])


def kind_of(value: object) -> Kind:
    """The kind a Python value is sent as; FormatError for one that cannot be sent."""
    for types, kind in _KIND_OF_TYPE:
        if isinstance(value, types):
            return kind
    raise FormatError(
        f"value for TVM's RPC: must be a number, string, bytes, tensor or handle, got {type(value).__name__}"
    )


_KIND_OF_TYPE: tuple[tuple[type | tuple[type, ...], Kind], ...] = (
    (type(None), Kind.NULL), (bool, Kind.BOOL), (int, Kind.INT), (float, Kind.FLOAT), (str, Kind.STRING),
    ((bytes, bytearray, memoryview), Kind.BYTES), (Pointer, Kind.POINTER), (TvmDataType, Kind.DATA_TYPE),
    (Device, Kind.DEVICE), (TensorView, Kind.TENSOR_VIEW), (FunctionHandle, Kind.FUNCTION),
    (ModuleHandle, Kind.MODULE),
)  # fmt: skip


def type_code(kind: Kind, dialect: str) -> int:
    """A kind's number; the old dialect sends a bool as an integer."""
    if dialect == "0.8" and kind is Kind.BOOL:
        kind = Kind.INT
    return TYPE_CODES[dialect][kind]


def pack_sequence(values: Sequence[object], dialect: str) -> bytes:
    """Number of arguments i32, then types and values in the dialect's order."""
    codes = [_I32.pack(type_code(kind_of(value), dialect)) for value in values]
    bodies = [_pack_value(value) for value in values]
    if dialect == "0.8":
        return b"".join([_I32.pack(len(values)), *codes, *bodies])
    return b"".join([_I32.pack(len(values)), *(part for pair in zip(codes, bodies, strict=True) for part in pair)])


def _pack_value(value: Any) -> bytes:
    kind = kind_of(value)
    if kind is Kind.NULL:
        return b""
    if kind in (Kind.INT, Kind.BOOL):
        if not -(1 << 63) <= value < 1 << 63:
            raise FormatError(f"integer: must fit 64 bits, got {value}")
        return _I64.pack(value)
    if kind is Kind.FLOAT:
        return _F64.pack(value)
    if kind is Kind.DATA_TYPE:
        return _DTYPE.pack(*value) + bytes(4)
    if kind is Kind.DEVICE:
        return _DEVICE.pack(value.type, value.index)
    if kind is Kind.TENSOR_VIEW:
        return pack_tensor_view(value)
    if kind in (Kind.STRING, Kind.BYTES):
        raw = value.encode("utf-8", "replace") if isinstance(value, str) else bytes(value)
        return _U64.pack(len(raw)) + raw
    return _U64.pack(value.value)


def read_sequence(reader: Reader, dialect: str) -> list[object]:
    """The arguments of a call or system call."""
    count = reader.i32()
    if not 0 <= count <= MAX_ARGUMENTS:
        raise FormatError(f"arguments of an RPC call: must be at most {MAX_ARGUMENTS}, got {count}")
    if dialect == "0.8":
        codes = [reader.i32() for _ in range(count)]
        return [_read_value(reader, code, dialect) for code in codes]
    return [_read_value(reader, reader.i32(), dialect) for _ in range(count)]


def _read_value(reader: Reader, code: int, dialect: str) -> object:
    kind = _KINDS[dialect].get(code)
    if kind is None or kind in (Kind.OBJECT, Kind.TENSOR):
        return _read_object(reader, code, dialect)
    read = _READERS[kind]
    return read(reader)


def _read_string(reader: Reader) -> str:
    return reader.string().decode("utf-8", "replace")


def _read_data_type(reader: Reader) -> TvmDataType:
    dtype = TvmDataType(*reader.unpack(_DTYPE))
    reader.take(4)
    return dtype


_READERS = {
    Kind.NULL: lambda reader: None,
    Kind.INT: lambda reader: reader.unpack(_I64),
    Kind.BOOL: lambda reader: bool(reader.unpack(_I64)),
    Kind.FLOAT: lambda reader: reader.unpack(_F64),
    Kind.POINTER: lambda reader: Pointer(reader.u64()),
    Kind.DATA_TYPE: _read_data_type,
    Kind.DEVICE: lambda reader: Device(*reader.unpack(_DEVICE)),
    Kind.TENSOR_VIEW: Reader.tensor_view,
    Kind.STRING: _read_string,
    Kind.BYTES: Reader.string,
    Kind.FUNCTION: lambda reader: FunctionHandle(reader.u64()),
    Kind.MODULE: lambda reader: ModuleHandle(reader.u64()),
}


def _read_object(reader: Reader, code: int, dialect: str) -> object:
    """Values that 0.27 wraps once more (strings and remote objects); everything else is refused."""
    if dialect == "0.27" and (code >= 64 or code in (_SMALL_STR, _SMALL_BYTES)):
        inner = reader.unpack(_U32)
        if inner == _STR:
            return _read_string(reader)
        if inner == _BYTES:
            return reader.string()
        if inner == _REMOTE_OBJECT:
            return Pointer(reader.u64())
        raise FormatError(f"RPC argument: object type: must be one of TVM RPC, got {inner}")
    raise FormatError(f"RPC argument: type code: must be known to dialect {dialect}, got {code}")
