"""The register server: the emulator's register model behind a socket, for whoever drives an NVDLA.

A QEMU device, a Verilator test bench, a driver under test or a C program on this machine writes and reads registers;
DRAM and CVSRAM are memory that both sides map (files), or are moved over the socket. docs/register-server.md has the
protocol. Every connection gets a machine of its own, fresh from reset, on the server's memories; one is served at a
time.

Time: the hardware goes on when the client looks: at a read of GLB.S_INTR_STATUS or of a status register, or when it
waits for the interrupt line. With events on, it goes on as soon as the client's records are used up.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nvdla.errors import FormatError, LinkError, NvdlaError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.machine import Machine
from nvdla.limits import Limits, Meter
from nvdla.memory.address_space import AddressSpace, Space

VERSION = 1
REQUEST = struct.Struct("<III")
ADDRESS = struct.Struct("<Q")
REPLY = struct.Struct("<II")
OK, FAILED, INTERRUPT = 0, 1, 0x51524921

WRITE, READ, WAIT, RESET, EVENTS, LOAD, DUMP, HELLO = b"WRIZELDV"
SPACES = (Space.DRAM, Space.CVSRAM)


@dataclass(frozen=True)
class MemoryPlan:
    """A memory of the server: ``size`` bytes at ``base``, in the file ``path`` or (None) of its own."""

    space: Space
    base: int
    size: int
    path: Path | None = None

    def map(self) -> np.ndarray:
        """The bytes. Raises FormatError for a file that cannot be made or mapped."""
        if self.path is None:
            return np.zeros(self.size, np.uint8)
        try:
            with open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as stream:
                os.ftruncate(stream.fileno(), self.size)
            return np.memmap(self.path, np.uint8, "r+", shape=(self.size,))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise FormatError(f"memory file {self.path} cannot be mapped: {reason}") from error


class RegisterServer:
    """Serves the register model of ``config``. ``memories`` as planned; ``limits``: of the work between two waits."""

    def __init__(
        self,
        config: Configuration,
        memories: list[MemoryPlan],
        threads: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.config = config
        self.space = AddressSpace()
        for each in memories:
            if each.size <= 0:
                raise LinkError(f"the {each.space.value} has {each.size} bytes, must be at least 1")
            if each.space is Space.CVSRAM:
                config.require("cvsram")
            self.space.map(each.space.value, each.space, each.base, each.size, each.map())
        self._threads, self._limits = threads, limits or Limits()

    def serve(self, listener: socket.socket) -> None:
        """Serve one connection after the other until the listener is closed."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                self.serve_connection(connection)

    def serve_connection(self, connection: socket.socket) -> None:
        """Serve a client until it hangs up."""
        session = _Session(connection, self)
        try:
            session.run()
        except (ConnectionError, _HungUp):
            return
        finally:
            session.close()

    def machine(self) -> Machine:
        """A new machine on the server's memory."""
        return Machine(self.config, self.space, self._threads, self._limits)

    def meter(self) -> Meter:
        """A new account of work."""
        return Meter(self._limits)


class _HungUp(Exception):
    """The client has closed the connection."""


class _Session:
    """One client: its machine, and what it has been told."""

    def __init__(self, connection: socket.socket, server: RegisterServer) -> None:
        self._connection = connection
        self._server = server
        self._machine = server.machine()
        self._buffer = bytearray()
        self._events = False
        self._line = False
        self._failure: str | None = None

    def close(self) -> None:
        self._machine.close()

    def run(self) -> None:
        while True:
            if self._events and len(self._buffer) < REQUEST.size:
                self._tell_interrupt()
            command, address, value = REQUEST.unpack(self._take(REQUEST.size))
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
            self._failure, self._line = None, False
            self._send(OK, 0)
        elif command == EVENTS:
            self._events = bool(value)
            self._send(OK, 0)
        elif command == HELLO:
            self._send(OK, VERSION)
        elif command in (LOAD, DUMP):
            self._move(command, address, value)
        else:
            self._failure = f"unknown command 0x{command:x}"
            self._answer(lambda: 0)

    def _answer(self, ask: Callable[[], int]) -> None:
        """Reply with what ``ask`` gives, or with the first error since the last reply."""
        value = 0
        if self._failure is None:
            try:
                value = ask()
            except NvdlaError as error:
                self._failure = str(error)
        if self._failure is not None:
            text = self._failure.encode()[:4096]
            self._failure = None
            self._connection.sendall(REPLY.pack(FAILED, len(text)) + text)
            return
        self._send(OK, value)

    def _read(self, address: int) -> int:
        register = self._machine.registers.map.at(address)
        if register.name in ("S_INTR_STATUS", "S_STATUS", "STATUS"):
            self._advance()
        return self._machine.registers.read_register(register)

    def _wait(self) -> int:
        self._advance()
        return self._pending()

    def _advance(self) -> None:
        """Let the hardware work until it stands still; every such stretch has the whole budget."""
        self._machine.meter = self._server.meter()
        while self._machine.step() is not None:
            pass

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
        (address,) = ADDRESS.unpack(self._take(ADDRESS.size))
        where = SPACES[space & 1]
        try:
            view = self._server.space.view(where, address, size, "transfer")
        except NvdlaError as error:
            if command == LOAD:
                self._skip(size)
            self._failure = str(error)
            self._answer(lambda: 0)
            return
        if command == LOAD:
            taken = 0
            while taken < size:  # in pieces: the buffer never holds more than one
                piece = self._take(min(size - taken, 1 << 16))
                view[taken : taken + len(piece)] = np.frombuffer(piece, np.uint8)
                taken += len(piece)
            self._send(OK, size)
            return
        self._send(OK, size)
        self._connection.sendall(view.tobytes())

    def _skip(self, size: int) -> None:
        while size:
            size -= len(self._take(min(size, 1 << 16)))

    def _send(self, status: int, value: int) -> None:
        self._connection.sendall(REPLY.pack(status, value))

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            piece = self._connection.recv(1 << 16)
            if not piece:
                raise _HungUp
            self._buffer += piece
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken


def listen(where: str) -> socket.socket:
    """A listening socket: a path for a Unix socket, or ``127.0.0.1:port`` (port 0: any). Loopback only.

    Raises FormatError for an address that is not this machine's own, or that cannot be had.
    """
    host, colon, port = where.rpartition(":")
    try:
        if colon and port.isdigit():
            if host not in ("127.0.0.1", "localhost", "::1", "[::1]"):
                raise FormatError(f"{where}: the register server has no passwords, so it listens on 127.0.0.1 only")
            family = socket.AF_INET6 if "::1" in host else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", int(port)))
        else:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(where)
        listener.listen(1)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"cannot listen on {where}: {reason}") from error
    return listener
