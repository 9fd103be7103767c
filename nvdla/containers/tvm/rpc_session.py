"""One remote caller: packets in, replies out, on a CRT runtime and the caller's own memory.

Source of the behaviour: rpc_endpoint.cc and rpc_local_session.cc of 0.27, minrpc_server.h of 0.8.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nvdla.containers.parameters import numpy_dtype
from nvdla.containers.tvm import dtype as types
from nvdla.containers.tvm.crt import CrtRuntime, FunctionHandle, ModuleHandle
from nvdla.containers.tvm.dtype import TvmDataType
from nvdla.containers.tvm.rpc_memory import RemoteMemory
from nvdla.containers.tvm.rpc_protocol import (
    DIALECTS,
    PROTOCOL_VERSION,
    Code,
    Device,
    Kind,
    Pointer,
    Reader,
    TensorView,
    kind_of,
    pack_sequence,
    packet,
    read_sequence,
    type_code,
)
from nvdla.errors import FormatError, NvdlaError, shape_text

_LOG = logging.getLogger("nvdla.rpc")
_CPU = 1
#: Strings of at most this many bytes have a type code of their own in 0.27 (kTVMFFISmallStr, kTVMFFISmallBytes).
_SMALL = 7
_ATTRIBUTE_EXISTS = 0
_MAX_MESSAGE_TEXT = 4000
_ARRAY_TYPES = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "bfloat16",
    "float32",
    "float64",
)


class RpcSession:
    """State of one caller. ``dialect`` None finds it out from the first packet that tells."""

    def __init__(
        self,
        runtime: CrtRuntime,
        memory: RemoteMemory,
        dialect: str | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        if dialect is not None and dialect not in DIALECTS:
            raise FormatError(f"unknown RPC dialect {dialect!r}; known are {', '.join(DIALECTS)}")
        self.runtime = runtime
        self.memory = memory
        self.dialect = dialect
        self._on_close = on_close
        self._calls: dict[int, Callable[[list[Any]], Any]] = {
            Code.GET_GLOBAL: self._get_global, Code.FREE_HANDLE: self._free_handle, Code.SET_DEVICE: self._nothing,
            Code.GET_ATTRIBUTE: self._get_attribute, Code.ALLOC_DATA: self._allocate,
            Code.ALLOC_DATA_WITH_SCOPE: self._allocate_tensor, Code.FREE_DATA: self._free_data,
            Code.STREAM_SYNC: self._nothing, Code.SET_STREAM: self._nothing, Code.FREE_STREAM: self._nothing,
            Code.CREATE_STREAM: self._null_pointer, Code.GET_CURRENT_STREAM: self._null_pointer,
            Code.COPY_AMONG_REMOTE: self._copy_among,
        }  # fmt: skip

    def close(self) -> None:
        """Frees what the caller left behind."""
        if self._on_close is not None:
            self._on_close()
        self.runtime.free_all()
        self.memory.clear()

    def handle(self, body: memoryview) -> bytes | None:
        """The reply to a packet (its bytes after the length), None when the caller says goodbye. What goes wrong with
        one packet is an answer, not the end."""
        reader = Reader(body)
        try:
            code = reader.i32()
            if code == Code.SHUTDOWN:
                return None
            return self._answer(code, reader)
        except NvdlaError as error:
            return self._exception(str(error))
        except Exception as error:  # a fault of this program must not take the server down with it
            _LOG.exception("fault while answering an RPC packet")
            what = error.strerror if isinstance(error, OSError) else error  # no paths of the server's
            return self._exception(f"internal fault: {type(error).__name__}: {what}")

    def _answer(self, code: int, reader: Reader) -> bytes:
        if code == Code.INIT_SERVER:
            return self._initialise(reader)
        if code == Code.CALL:
            return self._call(reader)
        if code == Code.COPY_FROM_REMOTE:
            return self._copy_from(reader)
        if code == Code.COPY_TO_REMOTE:
            return self._copy_to(reader)
        if code not in self._calls:
            raise FormatError(f"unknown RPC code {code}")
        return self._return(self._calls[code](self._sequence(reader)))

    def _sequence(self, reader: Reader) -> list[Any]:
        """Arguments, by the caller's dialect; while that is not known, by the only one that fits."""
        body = reader.rest()
        if self.dialect is not None:
            return read_sequence(Reader(body), self.dialect)
        fits = {}
        for dialect in reversed(DIALECTS):
            attempt = Reader(body)
            try:
                fits[dialect] = read_sequence(attempt, dialect)
            except FormatError:
                continue
            if len(attempt.rest()):
                del fits[dialect]
        if not fits:
            raise FormatError(
                f"the arguments of an RPC packet make sense in none of the known dialects ({', '.join(DIALECTS)})"
            )
        dialect, values = next(iter(fits.items()))
        if len(fits) == 1:
            self.dialect = dialect
        return values

    def _current(self) -> str:
        return self.dialect or DIALECTS[-1]

    def _return(self, *values: Any) -> bytes:
        return packet(Code.RETURN, pack_sequence(values, self._current()))

    def _exception(self, text: str) -> bytes:
        return packet(Code.EXCEPTION, pack_sequence([text[:_MAX_MESSAGE_TEXT]], self._current()))

    def _initialise(self, reader: Reader) -> bytes:
        version = reader.string()
        if version != PROTOCOL_VERSION:
            said = version[:40].decode("utf-8", "replace")
            raise FormatError(f"the client speaks RPC protocol {said!r}, this server {PROTOCOL_VERSION.decode()!r}")
        arguments = self._sequence(reader)
        if arguments:
            raise FormatError(
                f"this server makes no session of kind {str(arguments[0])[:80]!r}; connect without a "
                "session constructor"
            )
        return self._return(None)

    def _call(self, reader: Reader) -> bytes:
        handle = reader.u64()
        arguments = self._sequence(reader)
        return self._encode_result(self.runtime.call(handle, *arguments))

    def _encode_result(self, value: Any) -> bytes:
        """The type code first, then the value; a tensor comes with the handle that frees it."""
        dialect = self._current()
        if isinstance(value, np.ndarray):
            view = self.store(value)
            return self._return(type_code(Kind.TENSOR, dialect), view, Pointer(view.data))
        code = type_code(kind_of(value), dialect)
        if isinstance(value, (FunctionHandle, ModuleHandle)):
            return self._return(code, Pointer(value.value))
        if dialect == "0.27" and isinstance(value, (str, bytes)):
            small = len(value.encode("utf-8", "replace") if isinstance(value, str) else value) <= _SMALL
            code = (11 if small else 65) if isinstance(value, str) else (12 if small else 66)
        return self._return(code, value)

    def store(self, array: np.ndarray) -> TensorView:
        """A copy of an array in the caller's memory."""
        plain = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        name = plain.dtype.name
        dtype = TvmDataType(1, 1) if name == "bool" and self._current() == "0.8" else types.parse(name)
        address = self.memory.allocate(plain.nbytes)
        self.memory.view(address, plain.nbytes)[:] = plain.reshape(-1).view(np.uint8).data if plain.nbytes else b""
        return TensorView(address, dtype, array.shape)

    def array(self, view: TensorView) -> np.ndarray:
        """A caller's tensor as a writable array on the caller's memory."""
        self._check_device(view.device)
        name = view.dtype.name()
        if name not in _ARRAY_TYPES:
            raise FormatError(f"tensors of type {name} are not taken; known are {', '.join(_ARRAY_TYPES)}")
        dtype = numpy_dtype(name)
        size = math.prod(view.shape) * dtype.itemsize
        data = self.memory.view(view.data + view.byte_offset, size)
        try:
            return np.frombuffer(data, dtype).reshape(view.shape) if size else np.empty(view.shape, dtype)
        except ValueError as error:
            raise FormatError(f"a tensor of shape {shape_text(view.shape)}: {error}") from None

    def _check_device(self, device: Device) -> None:
        if device.type != _CPU or device.index != 0:
            raise FormatError(
                f"device type {device.type} number {device.index}: this server has the CPU (1, 0) only; "
                "the accelerator is reached through nvdla.load and nvdla.run"
            )

    def _block(self, view: TensorView, size: int) -> memoryview:
        self._check_device(view.device)
        return self.memory.view(view.data + view.byte_offset, size)

    def _copy_from(self, reader: Reader) -> bytes:
        view = reader.tensor_view()
        return packet(Code.COPY_ACK, self._block(view, reader.u64()))

    def _copy_to(self, reader: Reader) -> bytes:
        view = reader.tensor_view()
        size = reader.u64()
        data = reader.take(size)
        self._block(view, size)[:] = data
        return self._return(None)

    def _copy_among(self, arguments: list[Any]) -> None:
        source, target, _ = self._arguments(arguments, (TensorView, TensorView, object), "copy among remote")
        if source.size != target.size:
            raise FormatError(f"a tensor of {source.size} bytes cannot be copied to one of {target.size}")
        self._block(target, target.size)[:] = self._block(source, source.size)

    def _get_global(self, arguments: list[Any]) -> Pointer:
        (name,) = self._arguments(arguments, (str,), "get global function")
        return Pointer(self.runtime.get_global(name) or 0)

    def _free_handle(self, arguments: list[Any]) -> None:
        """0.8 says what kind of thing the handle is; 0.27 does not, but the three kinds never overlap."""
        handle = self._arguments(arguments[:1], (Pointer,), "free handle")[0].value
        if self.memory.holds(handle):
            self.memory.free(handle)
        elif handle <= 0xFFFF:
            self.runtime.free_module(handle)

    def _get_attribute(self, arguments: list[Any]) -> Any:
        device, kind = self._arguments(arguments, (Device, int), "get device attribute")
        return int(device == Device()) if kind == _ATTRIBUTE_EXISTS else None

    def _allocate(self, arguments: list[Any]) -> Pointer:
        device, size, _, _ = self._arguments(arguments, (Device, int, int, TvmDataType), "allocate")
        self._check_device(device)
        return Pointer(self.memory.allocate(size))

    def _allocate_tensor(self, arguments: list[Any]) -> Pointer:
        view, scope = self._arguments(arguments, (TensorView, object), "allocate a tensor")
        self._check_device(view.device)
        if scope not in (None, "", "global"):
            raise FormatError(f"memory scope {str(scope)[:40]!r} does not exist here")
        return Pointer(self.memory.allocate(view.size))

    def _free_data(self, arguments: list[Any]) -> None:
        _, pointer = self._arguments(arguments, (Device, Pointer), "free data")
        self.memory.free(pointer.value)

    def _nothing(self, arguments: list[Any]) -> None:
        """Devices need no selecting and streams no waiting: every call is done when it is answered."""

    def _null_pointer(self, arguments: list[Any]) -> Pointer:
        return Pointer(0)

    @staticmethod
    def _arguments(arguments: list[Any], wanted: tuple[type, ...], what: str) -> list[Any]:
        fits = len(arguments) == len(wanted) and all(isinstance(a, t) for a, t in zip(arguments, wanted, strict=True))
        if not fits:
            given = ", ".join(type(a).__name__ for a in arguments[:8])
            raise FormatError(f"the system call to {what} takes {', '.join(t.__name__ for t in wanted)}, not ({given})")
        return arguments
