"""Sessions and server of TVM's RPC: memory, packed functions, exceptions.

Source of the behavior: rpc_endpoint.cc and rpc_local_session.cc of 0.27, minrpc_server.h of 0.8.

Every caller has its own thread, session and memory. What comes in is bounded: connections, size of a message,
time for the handshake, time for a message, time between messages. Garbage ends a connection, never the server.

Handshake (tvm src/runtime/rpc/rpc_socket_impl.cc, python/tvm/rpc/server.py): the client sends the magic number i32, the
length of a key i32 and the key ``client:NAME``; the server answers in the same form with ``server:NAME``.
"""

from __future__ import annotations

import bisect
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.errors import FormatError, NvdlaError, shape_text
from nvdla.interop.containers.tvm import params as types
from nvdla.interop.containers.tvm.crt import CrtRuntime, FunctionHandle, ModuleHandle
from nvdla.interop.containers.tvm.params import TvmDataType
from nvdla.interop.containers.tvm.rpc_protocol import (
    DIALECTS,
    MAGIC,
    MISMATCH,
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
from nvdla.tensors.parameters import numpy_dtype
from nvdla.util.rounding import align

#: Addresses begin above every function and module handle, so a handle says what it is.
FIRST_ADDRESS = 1 << 32
#: microTVM's page allocator on the host rounds to this.
PAGE = 256
MAX_BLOCKS = 1 << 16


class RemoteMemory:
    """Blocks of bytes at made-up addresses, which rise and are never given out twice.

    ``used`` counts these blocks and everything else that is kept for the caller (:meth:`charge`)."""

    def __init__(self, limit: int, first_address: int = FIRST_ADDRESS) -> None:
        self.limit = limit
        self.used = 0
        self._next = first_address
        self._starts: list[int] = []
        self._blocks: dict[int, bytearray] = {}

    def allocate(self, size: int) -> int:
        """Address of a new block of zeros."""
        if len(self._blocks) >= MAX_BLOCKS:
            raise FormatError(f"blocks of memory: must be at most {MAX_BLOCKS}. Free some.")
        self.charge(size)
        address = self._next
        self._next += max(align(size, PAGE), PAGE)
        self._blocks[address] = bytearray(size)
        self._starts.append(address)
        return address

    def charge(self, size: int, prefix: str = "") -> None:
        """Counts bytes that are kept for the caller elsewhere; FormatError where they are more than are left."""
        if not 0 <= size <= self.limit - self.used:
            raise FormatError(
                f"{prefix}size: must be at most {self.limit - self.used} (free of {self.limit} bytes), got {size}. "
                "Free tensors, networks or uploads, or start the server with a larger --memory-limit."
            )
        self.used += size

    def give_back(self, size: int) -> None:
        """Takes back a :meth:`charge`."""
        self.used -= size

    def free(self, address: int) -> None:
        """Gives a block back; its address must be the one :meth:`allocate` returned."""
        block = self._blocks.pop(address, None)
        if block is None:
            raise FormatError(f"address: must be in an allocated block of memory, got {address:#x}")
        self.used -= len(block)
        del self._starts[bisect.bisect_left(self._starts, address)]

    def view(self, address: int, size: int) -> memoryview:
        """A writable view; FormatError where it leaves the block."""
        index = bisect.bisect_right(self._starts, address) - 1
        start = self._starts[index] if index >= 0 else 0
        block = self._blocks.get(start)
        if block is None or size < 0 or address - start + size > len(block):
            room = 0 if block is None else max(len(block) - (address - start), 0)
            raise FormatError(f"size at address {address:#x}: must be at most {room}, got {size}")
        return memoryview(block)[address - start : address - start + size]

    def holds(self, address: int) -> bool:
        """Check whether a block begins here."""
        return address in self._blocks

    def clear(self) -> None:
        """Give everything back."""
        self._blocks.clear()
        self._starts.clear()
        self.used = 0


_LOG = logging.getLogger("nvdla.rpc")
_CPU = 1
#: Strings of at most this many bytes have a separate type code in 0.27 (kTVMFFISmallStr, kTVMFFISmallBytes).
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
            raise FormatError(f"RPC dialect: must be one of {', '.join(DIALECTS)}, got {dialect!r}")
        self.runtime = runtime
        self.memory = memory
        self.dialect = dialect
        self._on_close = on_close
        self._calls: dict[int, Callable[[list[object]], object]] = {
            Code.GET_GLOBAL: self._get_global, Code.FREE_HANDLE: self._free_handle, Code.SET_DEVICE: self._nothing,
            Code.GET_ATTRIBUTE: self._get_attribute, Code.ALLOC_DATA: self._allocate,
            Code.ALLOC_DATA_WITH_SCOPE: self._allocate_tensor, Code.FREE_DATA: self._free_data,
            Code.STREAM_SYNC: self._nothing, Code.SET_STREAM: self._nothing, Code.FREE_STREAM: self._nothing,
            Code.CREATE_STREAM: self._null_pointer, Code.GET_CURRENT_STREAM: self._null_pointer,
            Code.COPY_AMONG_REMOTE: self._copy_among,
        }  # fmt: skip

    def close(self) -> None:
        """Free the caller's remaining memory."""
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
            reason = error.strerror if isinstance(error, OSError) else error  # no paths of the server's
            return self._exception(f"internal fault: {type(error).__name__}: {reason}")

    def _answer(self, code: int, reader: Reader) -> bytes:
        if code == Code.INIT_SERVER:
            return self._initialize(reader)
        if code == Code.CALL:
            return self._call(reader)
        if code == Code.COPY_FROM_REMOTE:
            return self._copy_from(reader)
        if code == Code.COPY_TO_REMOTE:
            return self._copy_to(reader)
        if code not in self._calls:
            raise FormatError(f"RPC code: must be known, got {code}")
        return self._return(self._calls[code](self._sequence(reader)))

    def _sequence(self, reader: Reader) -> list[object]:
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
            raise FormatError(f"arguments of an RPC packet: must fit one of the dialects {', '.join(DIALECTS)}")
        dialect, values = next(iter(fits.items()))
        if len(fits) == 1:
            self.dialect = dialect
        return values

    def _current(self) -> str:
        return self.dialect or DIALECTS[-1]

    def _return(self, *values: object) -> bytes:
        return packet(Code.RETURN, pack_sequence(values, self._current()))

    def _exception(self, text: str) -> bytes:
        return packet(Code.EXCEPTION, pack_sequence([text[:_MAX_MESSAGE_TEXT]], self._current()))

    def _initialize(self, reader: Reader) -> bytes:
        version = reader.string()
        if version != PROTOCOL_VERSION:
            text = version[:40].decode("utf-8", "replace")
            raise FormatError(f"RPC protocol: must be {PROTOCOL_VERSION.decode()!r}, got {text!r} from the client")
        arguments = self._sequence(reader)
        if arguments:
            raise FormatError(f"session constructor: must be empty, got {str(arguments[0])[:80]!r}")
        return self._return(None)

    def _call(self, reader: Reader) -> bytes:
        handle = reader.u64()
        arguments = self._sequence(reader)
        return self._encode_result(self.runtime.call(handle, *arguments))

    def _encode_result(self, value: object) -> bytes:
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
            raise FormatError(f"type of a tensor: must be one of {', '.join(_ARRAY_TYPES)}, got {name}")
        dtype = numpy_dtype(name)
        size = math.prod(view.shape) * dtype.itemsize
        data = self.memory.view(view.data + view.byte_offset, size)
        try:
            return np.frombuffer(data, dtype).reshape(view.shape) if size else np.empty(view.shape, dtype)
        except ValueError as error:
            raise FormatError(f"tensor of shape {shape_text(view.shape)}: {error}") from None

    def _check_device(self, device: Device) -> None:
        if device.type != _CPU or device.index != 0:
            raise FormatError(
                f"device: must be the CPU (type 1, number 0), got type {device.type}, number {device.index}. "
                "Use nvdla.load and nvdla.run for the accelerator."
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

    def _copy_among(self, arguments: list[object]) -> None:
        source, target, _ = self._arguments(arguments, (TensorView, TensorView, object), "copy among remote")
        if source.size != target.size:
            raise FormatError(f"size of the copied tensor: must be {target.size} bytes, got {source.size}")
        self._block(target, target.size)[:] = self._block(source, source.size)

    def _get_global(self, arguments: list[object]) -> Pointer:
        (name,) = self._arguments(arguments, (str,), "get global function")
        return Pointer(self.runtime.get_global(name) or 0)

    def _free_handle(self, arguments: list[object]) -> None:
        """0.8 says what kind of thing the handle is; 0.27 does not, but the three kinds never overlap."""
        handle = self._arguments(arguments[:1], (Pointer,), "free handle")[0].value
        if self.memory.holds(handle):
            self.memory.free(handle)
        elif handle <= 0xFFFF:
            self.runtime.free_module(handle)

    def _get_attribute(self, arguments: list[object]) -> object:
        device, kind = self._arguments(arguments, (Device, int), "get device attribute")
        return int(device == Device()) if kind == _ATTRIBUTE_EXISTS else None

    def _allocate(self, arguments: list[object]) -> Pointer:
        device, size, _, _ = self._arguments(arguments, (Device, int, int, TvmDataType), "allocate")
        self._check_device(device)
        return Pointer(self.memory.allocate(size))

    def _allocate_tensor(self, arguments: list[object]) -> Pointer:
        view, scope = self._arguments(arguments, (TensorView, object), "allocate a tensor")
        self._check_device(view.device)
        if scope not in (None, "", "global"):
            raise FormatError(f"memory scope: must be empty or global, got {str(scope)[:40]!r}")
        return Pointer(self.memory.allocate(view.size))

    def _free_data(self, arguments: list[object]) -> None:
        _, pointer = self._arguments(arguments, (Device, Pointer), "free data")
        self.memory.free(pointer.value)

    def _nothing(self, arguments: Sequence[object]) -> None:
        """Devices need no selecting and streams no waiting: every call is done when it is answered."""

    def _null_pointer(self, arguments: Sequence[object]) -> Pointer:
        return Pointer(0)

    @staticmethod
    def _arguments(arguments: list[object], wanted: tuple[type, ...], call: str) -> list[Any]:
        fits = len(arguments) == len(wanted) and all(isinstance(a, t) for a, t in zip(arguments, wanted, strict=True))
        if not fits:
            given = ", ".join(type(a).__name__ for a in arguments[:8])
            raise FormatError(f"arguments to {call}: must be {', '.join(t.__name__ for t in wanted)}, got ({given})")
        return arguments


_POLL_SECONDS = 0.25
#: Time that calls in progress have to end when the server stops.
_GRACE_SECONDS = 5.0
_CHUNK = 1 << 20
_MAX_KEY = 1024
_SLOWEST_BYTES_A_SECOND = 1 << 16
_LENGTH = struct.Struct("<Q")
_PAIR = struct.Struct("<ii")


@dataclass(frozen=True)
class CallerLimits:
    """Limits of one caller; sizes in bytes, times in seconds."""

    connections: int = 16
    message: int = 256 << 20
    handshake: float = 10.0
    packet: float = 60.0
    idle: float = 3600.0
    #: Where all places are taken, the caller that said nothing for the longest time, and for this long, gives way.
    patience: float = 10.0


class _Closed(Exception):
    """The caller is gone, late, or talks nonsense: the connection ends, with this reason."""


class RpcServer:
    """Listens on ``address`` once it is made; :meth:`serve` answers until :meth:`stop`."""

    def __init__(
        self,
        make_session: Callable[[], RpcSession],
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
        limits: CallerLimits | None = None,
    ) -> None:
        self.limits = limits or CallerLimits()
        self.key = key
        self._make_session = make_session
        self._stopping = threading.Event()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._waiting: dict[socket.socket, float] = {}  # since when a caller has said nothing
        self._listener = _listen(host, port)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def serve(self) -> None:
        """Accepts callers until the server is stopped; then ends every connection."""
        try:
            while not self._stopping.is_set():
                try:
                    connection, peer = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError as error:
                    if self._stopping.is_set():
                        break
                    _LOG.warning("accept failed: %s", error)
                    time.sleep(_POLL_SECONDS)
                    continue
                self._start(connection, peer)
        finally:
            self.stop()
            self._join()

    def stop(self) -> None:
        """May be called from any thread, and more than once."""
        self._stopping.set()
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def _join(self) -> None:
        with self._lock:
            threads = list(self._open.values())
        deadline = time.monotonic() + _GRACE_SECONDS
        for thread in threads:
            thread.join(timeout=max(deadline - time.monotonic(), 0))

    def _start(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        with self._lock:
            if len(self._open) >= self.limits.connections:
                self._make_room()
            full = len(self._open) >= self.limits.connections
            if not full:
                thread = threading.Thread(
                    target=self._run, args=(connection, peer), daemon=True, name=f"rpc {peer[0]}:{peer[1]}"
                )
                self._open[connection] = thread
                self._waiting[connection] = time.monotonic()
        if full:
            _LOG.warning("refused %s: %d clients are connected", peer[0], self.limits.connections)
            connection.close()
            return
        thread.start()

    def _make_room(self) -> None:
        """Ends the connection of the caller that has been idle longest, if that is long enough. The lock is held."""
        idle = min(self._waiting, key=lambda caller: self._waiting[caller], default=None)
        if idle is not None and time.monotonic() - self._waiting[idle] >= self.limits.patience:
            _LOG.info("an idle client is disconnected for another one")
            del self._waiting[idle], self._open[idle]
            _shut(idle)

    def _run(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        """One connection from handshake to end."""
        session = None
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._handshake(connection)
            session = self._make_session()
            while not self._stopping.is_set() and self._one_packet(connection, session):
                pass
        except (_Closed, OSError) as error:
            _LOG.info("connection of %s:%s ended: %s", peer[0], peer[1], error)
        finally:
            if session is not None:
                session.close()
            with self._lock:
                self._open.pop(connection, None)
                self._waiting.pop(connection, None)
            _shut(connection)
            connection.close()

    def _handshake(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + self.limits.handshake
        magic, length = _PAIR.unpack(_receive(connection, _PAIR.size, deadline))
        if magic != MAGIC or not 0 <= length <= _MAX_KEY:
            raise _Closed(
                f"client: must be a TVM RPC client, got {magic & 0xFFFFFFFF:#010x} and a key of {length} bytes"
            )
        key = bytes(_receive(connection, length, deadline)).decode("utf-8", "replace")
        name = key.removeprefix("client:").split(" ")[0]
        if not key.startswith("client:") or (self.key is not None and name != self.key):
            connection.sendall(struct.pack("<i", MISMATCH))
            raise _Closed(f"key of the client: must be that of the server, got {key[:80]!r}")
        answer = f"server:{self.key or ''}".encode()
        connection.sendall(_PAIR.pack(MAGIC, len(answer)) + answer)

    def _one_packet(self, connection: socket.socket, session: RpcSession) -> bool:
        """Reads, answers; False when the caller says goodbye."""
        (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, time.monotonic() + self.limits.idle))
        if length == 0:
            return True
        with self._lock:
            if self._waiting.pop(connection, None) is None:
                raise _Closed("the client was idle and was disconnected for another client")
        try:
            return self._answer(connection, session, length)
        finally:
            with self._lock:
                self._waiting[connection] = time.monotonic()

    def _answer(self, connection: socket.socket, session: RpcSession, length: int) -> bool:
        """Reads the rest of a packet and answers it."""
        if length > self.limits.message:
            text = f"message: must have at most {self.limits.message} bytes (--max-message), got {length}"
            connection.sendall(packet(Code.EXCEPTION, pack_sequence([text], session.dialect or "0.27")))
            raise _Closed(text)
        allowed = self.limits.packet + length / _SLOWEST_BYTES_A_SECOND
        reply = session.handle(memoryview(_receive(connection, length, time.monotonic() + allowed)))
        if reply is None:
            return False
        connection.settimeout(self.limits.packet + len(reply) / _SLOWEST_BYTES_A_SECOND)
        connection.sendall(reply)
        return True


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 0xFFFF:
        raise FormatError(f"port: must be 0 to 65535, got {port}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        raise FormatError(f"cannot listen on {host[:80]} port {port}: {getattr(error, 'strerror', error)}") from None
    listener.settimeout(_POLL_SECONDS)
    return listener


def _receive(connection: socket.socket, size: int, deadline: float) -> bytearray:
    """Exactly ``size`` bytes before the deadline; the buffer grows with what arrives, not with what was promised."""
    data = bytearray()
    while len(data) < size:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _Closed(f"received only {len(data)} of {size} bytes in time")
        connection.settimeout(left)
        try:
            chunk = connection.recv(min(size - len(data), _CHUNK))
        except TimeoutError:
            continue
        if not chunk:
            raise _Closed("the client closed the connection" + (f" after {len(data)} of {size} bytes" if data else ""))
        data += chunk
    return data


def _shut(connection: socket.socket) -> None:
    """Wakes a thread that waits on the socket."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
