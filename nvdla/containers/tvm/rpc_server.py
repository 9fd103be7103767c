"""A TCP server that an unmodified TVM RPC client connects to.

Every caller has a thread, a session and memory of its own. What comes in is bounded: connections, size of a message,
time for the handshake, time for a message, time between messages. Garbage ends a connection, never the server.

Handshake (tvm src/runtime/rpc/rpc_socket_impl.cc, python/tvm/rpc/server.py): the client sends the magic number i32, the
length of a key i32 and the key ``client:NAME``; the server answers in the same form with ``server:NAME``.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from nvdla.containers.tvm.rpc_protocol import MAGIC, MISMATCH, Code, pack_sequence, packet
from nvdla.containers.tvm.rpc_session import RpcSession
from nvdla.errors import FormatError

_LOG = logging.getLogger("nvdla.rpc")
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
    """What one caller may take; sizes in bytes, times in seconds."""

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
            _LOG.warning("refused %s: %d callers are connected already", peer[0], self.limits.connections)
            connection.close()
            return
        thread.start()

    def _make_room(self) -> None:
        """Ends the connection of the caller that has been idle longest, if that is long enough. The lock is held."""
        idle = min(self._waiting, key=lambda each: self._waiting[each], default=None)
        if idle is not None and time.monotonic() - self._waiting[idle] >= self.limits.patience:
            _LOG.info("an idle caller gives way")
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
            raise _Closed(f"no TVM RPC client: it begins with {magic & 0xFFFFFFFF:#010x} and a key of {length} bytes")
        said = bytes(_receive(connection, length, deadline)).decode("utf-8", "replace")
        name = said.removeprefix("client:").split(" ")[0]
        if not said.startswith("client:") or (self.key is not None and name != self.key):
            connection.sendall(struct.pack("<i", MISMATCH))
            raise _Closed(f"the client's key {said[:80]!r} does not fit")
        answer = f"server:{self.key or ''}".encode()
        connection.sendall(_PAIR.pack(MAGIC, len(answer)) + answer)

    def _one_packet(self, connection: socket.socket, session: RpcSession) -> bool:
        """Reads, answers; False when the caller says goodbye."""
        (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, time.monotonic() + self.limits.idle))
        if length == 0:
            return True
        with self._lock:
            if self._waiting.pop(connection, None) is None:
                raise _Closed("it was idle, and gave way to another caller")
        try:
            return self._answer(connection, session, length)
        finally:
            with self._lock:
                self._waiting[connection] = time.monotonic()

    def _answer(self, connection: socket.socket, session: RpcSession, length: int) -> bool:
        """Reads the rest of a packet and answers it."""
        if length > self.limits.message:
            text = f"a message of {length} bytes; this server takes {self.limits.message} (start it with --max-message)"
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
        raise FormatError(f"port {port} is not from 0 to 65535")
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
            raise _Closed(f"{len(data)} of {size} bytes came in time")
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
