"""Register server and its connections.

One client is served at a time. While it is silent, others are accepted into a queue; a client that stays silent while
others wait is disconnected. A message that has begun must arrive, and a reply must be read, within a deadline. Without
other clients a connection may be silent indefinitely: an idle guest of a simulator is not an error.

A QEMU device, a Verilator test bench, a driver under test or a C program on this machine writes and reads registers;
DRAM and CVSRAM are memory that both sides map (files), or are moved over the socket. docs/registers.md has the
protocol. Every connection gets its own machine, fresh from reset, on the server's memories; one is served at a
time (:mod:`nvdla.registers.server` has the deadlines).

Time: the hardware goes on when the client looks: at a read of GLB.S_INTR_STATUS or of a status register, or when it
waits for the interrupt line. With events on, it goes on as soon as the client's records are used up.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.machine import Machine
from nvdla.emulator.memory.address_space import AddressSpace, Space
from nvdla.errors import FormatError, LinkError, NvdlaError
from nvdla.limits import Limits, Meter
from nvdla.util.rounding import integer

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_NO_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_BACK_OFF = 1.0  # seconds without accepting where the system has no descriptor left
_MOST_WAITING = 16
_PIECE = 1 << 16


@dataclass(frozen=True)
class Deadlines:
    """Seconds and bytes per second.

    Attributes:
        silence: Seconds that a client may be silent between two messages while others wait.
        message: Seconds for a message or reply, besides its transfer.
        rate: Least bytes per second of a transfer.
    """

    silence: float = 10.0
    message: float = 30.0
    rate: float = float(1 << 20)


class HungUp(Exception):
    """The connection has ended: closed by the client, past a deadline (which the message names), or by the server."""


class Clients:
    """The clients of a listening socket: one served, the others in a queue."""

    def __init__(self, deadlines: Deadlines | None = None) -> None:
        self.deadlines = deadlines or Deadlines()
        self.ending = False
        self.waiting_since = 0.0
        self._waiting: deque[socket.socket] = deque()
        self._listener: socket.socket | None = None
        self._accept_at = 0.0
        self._ear, self._bell = socket.socketpair()

    def listen(self, listener: socket.socket) -> None:
        """Accept clients from ``listener``, which becomes non-blocking."""
        listener.setblocking(False)
        self._listener = listener

    def stop(self) -> None:
        """End the served connection, and :meth:`next`. Call it from any thread."""
        self.ending = True
        self._bell.send(b"x")

    def next(self) -> socket.socket | None:
        """Return the client that has waited longest; None where the listener was closed or the server ends."""
        self._accept()
        while not self.ending and not self._waiting and self._listener is not None:
            self._wait(None, 1.0, _READ)
            self._accept()
        if self._waiting and not self.ending:
            self.waiting_since = time.monotonic()
            return self._waiting.popleft()
        while self._waiting:
            self._waiting.popleft().close()
        return None

    def someone_waits(self) -> bool:
        """Accept who has come, and return whether anyone in the queue still waits."""
        self._accept()
        for client in [client for client in self._waiting if not _is_open(client)]:
            self._waiting.remove(client)
            client.close()
        return bool(self._waiting)

    def wait(self, connection: socket.socket | None, seconds: float, event: int = _READ) -> None:
        """Return when ``connection`` is ready, a client connects, :meth:`stop` is called, or after ``seconds``."""
        self._accept()
        self._wait(connection, seconds, event)

    def _wait(self, connection: socket.socket | None, seconds: float, event: int) -> None:
        watched: list[tuple[socket.socket, int]] = [(self._ear, _READ)]
        watched += [(connection, event)] if connection is not None else []
        pause = self._accept_at - time.monotonic()
        if self._listener is not None and len(self._waiting) < _MOST_WAITING and pause <= 0:
            watched.append((self._listener, _READ))
        _wait_for(watched, min(seconds, max(pause, 0.01)) if pause > 0 else seconds)

    def _accept(self) -> None:
        """Move who has come into the queue."""
        while self._listener is not None and len(self._waiting) < _MOST_WAITING and time.monotonic() >= self._accept_at:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _NO_RESOURCES:
                    self._accept_at = time.monotonic() + _BACK_OFF
                else:
                    self._listener = None  # closed
                return
            if not self._waiting:
                self.waiting_since = time.monotonic()
            self._waiting.append(connection)


def _is_open(connection: socket.socket) -> bool:
    """Check whether the client is connected, without consuming its bytes."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except (BlockingIOError, InterruptedError):
        return True
    except OSError:
        return False


def _wait_for(watched: Sequence[tuple[socket.socket, int]], seconds: float) -> None:
    """poll() where the system has it: it needs no descriptor, and notices one that another thread closes."""
    with getattr(selectors, "PollSelector", selectors.DefaultSelector)() as selector:
        try:
            for connection, event in watched:
                selector.register(connection, event)
        except ValueError:  # a socket that was closed meanwhile
            return
        selector.select(max(seconds, 0.0))


class Connection:
    """A client's socket: whole messages in, replies out, each within its deadline. Raises HungUp."""

    def __init__(self, connection: socket.socket, clients: Clients) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._clients = clients
        self._buffer = bytearray()
        self._deadline = 0.0

    @property
    def has(self) -> int:
        """Bytes that have arrived and are not taken yet."""
        return len(self._buffer)

    def begin(self, size: int) -> bytes:
        """Return the first ``size`` bytes of the next message; wait for it indefinitely unless others wait."""
        since = time.monotonic()
        while not self._buffer and not self._receive():
            seconds = 1.0
            if self._clients.someone_waits():
                start = max(since, self._clients.waiting_since)
                seconds = start + self._clients.deadlines.silence - time.monotonic()
                if seconds <= 0:
                    limit = self._clients.deadlines.silence
                    raise HungUp(f"silent for {limit:g} seconds while another client waits")
            self._wait(min(seconds, 1.0))
        self._deadline = time.monotonic() + self._clients.deadlines.message
        return self.take(size)

    def announced(self, size: int) -> None:
        """Extend the message's deadline by the time that ``size`` bytes may take."""
        self._deadline += size / self._clients.deadlines.rate

    def take(self, size: int) -> bytes:
        """Return ``size`` bytes of the message that :meth:`begin` began."""
        while len(self._buffer) < size:
            if not self._receive():
                self._wait(self._left("a message was not complete"))
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def send(self, data: bytes | memoryview) -> None:
        """Send all of ``data``."""
        view = memoryview(data)
        self._deadline = time.monotonic() + self._clients.deadlines.message
        self.announced(len(view))
        while view:
            try:
                view = view[self._socket.send(view) :]
            except (BlockingIOError, InterruptedError):
                self._wait(self._left("a reply was not read"), _WRITE)
            except OSError as error:
                raise HungUp from error

    def say(self, data: bytes) -> None:
        """Send ``data`` if the socket accepts it immediately."""
        try:
            self._socket.send(data)
        except OSError:
            return

    def _left(self, what: str) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise HungUp(f"{what} within its deadline")
        return left

    def _receive(self) -> bool:
        """Move arrived bytes into the buffer; return whether there were any."""
        try:
            piece = self._socket.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise HungUp from error
        if not piece:
            raise HungUp
        self._buffer += piece
        return True

    def _wait(self, seconds: float, event: int = _READ) -> None:
        if self._clients.ending:
            raise HungUp
        self._clients.wait(self._socket, seconds, event)
        if self._clients.ending:
            raise HungUp


VERSION = 1
REQUEST = struct.Struct("<III")
ADDRESS = struct.Struct("<Q")
REPLY = struct.Struct("<II")
OK, FAILED, INTERRUPT = 0, 1, 0x51524921

WRITE, READ, WAIT, RESET, EVENTS, LOAD, DUMP, HELLO = b"WRIZELDV"
SPACES = (Space.DRAM, Space.CVSRAM)


@dataclass(frozen=True)
class MemoryPlan:
    """A memory of the server: ``size`` bytes at ``base``, in the file ``path``, or (None) private."""

    space: Space
    base: int
    size: int
    path: Path | None = None

    def file(self) -> IO[bytes]:
        """Open the file, which is new, empty or of the memory's size: a file of another size is never changed.

        Raises:
            FormatError: The file has another size, is not a regular file, or cannot be opened.
        """
        assert self.path is not None
        try:
            if self.path.exists() and not self.path.is_file():
                raise FormatError(f"memory file {self.path}: must be a regular file, got a directory, pipe or device.")
            stream = open(os.open(self.path, os.O_RDWR | os.O_CREAT | _NO_WAIT, 0o600), "r+b")  # noqa: SIM115 - kept
            size = os.fstat(stream.fileno()).st_size
            if size not in (0, self.size):
                raise FormatError(
                    f"memory file {self.path}: must be new, empty or of {self.size} bytes, got {size} bytes. "
                    f"Give its size with --{self.space.value}-size, or another file."
                )
            if not size:
                os.ftruncate(stream.fileno(), self.size)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise FormatError(f"memory file {self.path}: cannot be mapped: {reason}") from error
        return stream


_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


class _SharedFile:
    """A memory in a file. Another program may shorten the file; an access beyond its end would end the process."""

    def __init__(self, plan: MemoryPlan) -> None:
        self._plan, self._stream = plan, plan.file()
        try:
            self.data = np.memmap(self._stream, np.uint8, "r+", shape=(plan.size,))
        except (OSError, ValueError) as error:
            raise FormatError(f"memory file {plan.path}: cannot be mapped: {error}") from error

    def check(self) -> None:
        """Raise LinkError where the file is shorter than the memory."""
        size = os.fstat(self._stream.fileno()).st_size
        if size < self._plan.size:
            raise LinkError(
                f"memory file {self._plan.path}: must keep its {self._plan.size} bytes, got {size} bytes. Give it back "
                "its size; the bytes cut off are 0 then."
            )


class RegisterServer:
    """Serves the register model of ``config``. ``memories`` as planned; ``limits``: of the work between two waits;
    ``deadlines``: of connections."""

    def __init__(
        self,
        config: Configuration,
        memories: list[MemoryPlan],
        threads: int | None = None,
        limits: Limits | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.config = config
        self.space = AddressSpace()
        self.clients = Clients(deadlines)
        self._files: list[_SharedFile] = []
        for memory in memories:
            if memory.size <= 0:
                raise LinkError(f"{memory.space.value}: must have at least 1 byte, got {memory.size}")
            if memory.space is Space.CVSRAM:
                config.require("cvsram")
            config.check_reach(memory.space.value, memory.base, memory.base + memory.size)
            self.space.map(memory.space.value, memory.space, memory.base, memory.size, self._bytes(memory))
        self._threads, self._limits = threads, limits or Limits()

    def _bytes(self, plan: MemoryPlan) -> np.ndarray:
        if plan.path is None:
            return np.zeros(plan.size, np.uint8)
        self._files.append(_SharedFile(plan))
        return self._files[-1].data

    def serve(self, listener: socket.socket) -> None:
        """Serve one connection after the other until the listener is closed or :meth:`stop` is called."""
        self.clients.listen(listener)
        while (connection := self.clients.next()) is not None:
            with connection:
                self._serve(Connection(connection, self.clients))

    def stop(self) -> None:
        """End :meth:`serve` after the operation at work. Call it from any thread."""
        self.clients.stop()

    def _serve(self, connection: Connection) -> None:
        """Serve a client until it hangs up or misses a deadline, which is reported to it if it still reads."""
        session = _Session(connection, self)
        try:
            session.run()
        except HungUp as reason:
            if str(reason):
                connection.say(_failed(str(reason)))
        finally:
            session.close()

    def check_files(self) -> None:
        """Raise LinkError where a memory's file has been cut."""
        for file in self._files:
            file.check()

    def machine(self) -> Machine:
        """A new machine on the server's memory."""
        return Machine(self.config, self.space, self._threads, self._limits)

    def meter(self) -> Meter:
        """A new account of work."""
        return Meter(self._limits)


def _failed(text: str) -> bytes:
    data = text.encode()[:4096]
    return REPLY.pack(FAILED, len(data)) + data


class _Session:
    """One client: its machine, and the replies to it."""

    def __init__(self, connection: Connection, server: RegisterServer) -> None:
        self._connection = connection
        self._server = server
        self._machine = server.machine()
        self._events = False
        self._line = False
        self._failure: str | None = None

    def close(self) -> None:
        self._machine.close()

    def run(self) -> None:
        while True:
            if self._events and self._connection.has < REQUEST.size:
                self._tell_interrupt()
            command, address, value = REQUEST.unpack(self._connection.begin(REQUEST.size))
            try:
                self._execute(command, address, value)
            except NvdlaError as error:
                # Told with the next reply: a write has none. The first error is the one that matters.
                self._failure = self._failure or str(error)

    def _execute(self, command: int, address: int, value: int) -> None:
        if command == WRITE:
            if self._failure is None:
                self._machine.registers.write(address, value)
                self._line = self._line and bool(self._pending())
        elif command == READ:
            self._answer(lambda: self._read(address))
        elif command == WAIT:
            self._answer(self._wait)
        elif command == RESET:
            self._machine.close()
            self._machine = self._server.machine()
            self._line = False
            self._answer(lambda: 0)
        elif command == EVENTS:
            self._events = bool(value)
            self._answer(lambda: 0)
        elif command == HELLO:
            self._answer(lambda: VERSION)
        elif command in (LOAD, DUMP):
            self._move(command, address, value)
        else:
            self._failure = self._failure or f"unknown command 0x{command:x}"
            self._answer(lambda: 0)

    def _answer(self, ask: Callable[[], int]) -> bool:
        """Reply with what ``ask`` gives, or with the first error since the last reply; whether it was the former."""
        value = 0
        if self._failure is None:
            try:
                value = ask()
            except NvdlaError as error:
                self._failure = str(error)
        if self._failure is not None:
            text, self._failure = self._failure, None
            self._connection.send(_failed(text))
            return False
        self._send(OK, value)
        return True

    def _read(self, address: int) -> int:
        register = self._machine.registers.map.at(address)
        if register.name in ("S_INTR_STATUS", "S_STATUS", "STATUS"):
            self._advance()
        return self._machine.registers.read_register(register)

    def _wait(self) -> int:
        self._advance()
        return self._pending()

    def _advance(self) -> None:
        """Let the hardware work until it is idle; each time it has the whole budget."""
        self._server.check_files()
        self._machine.meter = self._server.meter()
        while self._machine.step() is not None:
            if self._server.clients.ending:
                raise HungUp

    def _pending(self) -> int:
        return self._machine.interrupt_status & ~self._machine.unit("GLB").current.shared["S_INTR_MASK"]

    def _tell_interrupt(self) -> None:
        """An event whenever the interrupt line rises."""
        try:
            self._advance()
        except NvdlaError as error:
            self._failure = self._failure or str(error)
        pending = self._pending()
        if pending and not self._line:
            self._send(INTERRUPT, pending)
        self._line = bool(pending)

    def _move(self, command: int, space: int, size: int) -> None:
        (address,) = ADDRESS.unpack(self._connection.take(ADDRESS.size))
        view = None
        try:
            view = self._server.space.view(SPACES[space & 1], address, size, "transfer")
        except NvdlaError as error:
            self._failure = self._failure or str(error)
        if command == LOAD:
            self._load(view, size)
        if self._answer(lambda: self._checked(size)) and command == DUMP and view is not None:
            self._connection.send(view.tobytes())

    def _load(self, view: np.ndarray | None, size: int) -> None:
        """Take ``size`` bytes in pieces, so that the buffer never holds more than one; None: drop them."""
        self._connection.announced(size)
        taken = 0
        while taken < size:
            piece = self._connection.take(min(size - taken, 1 << 16))
            if view is not None and self._failure is None:
                try:
                    self._server.check_files()
                    view[taken : taken + len(piece)] = np.frombuffer(piece, np.uint8)
                except NvdlaError as error:
                    self._failure = str(error)
            taken += len(piece)

    def _checked(self, size: int) -> int:
        self._server.check_files()
        return size

    def _send(self, status: int, value: int) -> None:
        self._connection.send(REPLY.pack(status, value))


def _port(where: str, text: str) -> int:
    with contextlib.suppress(ValueError):
        if 0 <= (number := integer(text)) < 1 << 16 and not text.startswith("+"):
            return number
    raise FormatError(
        f"{where[:80]}: port must be 0 to 65535, got {text[:20]!r}. A path that contains ':' needs a '/' (./NAME)."
    )


def _remove_unused(path: str) -> None:
    """Remove a Unix socket that a killed server has left. Raises OSError for one that a server uses."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(1.0)
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "a server uses it")


def listen(where: str) -> socket.socket:
    """A listening socket: a path for a Unix socket, or ``127.0.0.1:port`` (port 0: any). Loopback only.

    Raises FormatError for an address that is not this machine's own, or that cannot be had.
    """
    host, colon, port = where.rpartition(":")
    try:
        if colon and "/" not in where:  # a path of a Unix socket with a colon needs a slash: ./a:b
            number = _port(where, port)
            if host not in ("127.0.0.1", "localhost", "::1", "[::1]"):
                raise FormatError(f"{where}: must be on 127.0.0.1: the register server has no passwords")
            family = socket.AF_INET6 if "::1" in host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", number))
        else:
            _remove_unused(where)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(where)
        listener.listen(16)
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"cannot listen on {where}: {reason}") from error
    return listener
