"""Replay of logs of register accesses on the register model."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.trace.commands import (
    CheckMemory,
    Command,
    LoadMemory,
    MemoryImage,
    ReadRegister,
    Trace,
    WriteRegister,
)
from nvdla.emulator.trace.languages import Replay, play
from nvdla.emulator.trace.player import MemoryCheck, SequentialPlayer
from nvdla.errors import NvdlaError, TraceError
from nvdla.limits import PAGE, Limits
from nvdla.registers.logs import AccessLog, LoggedAccess


@dataclass(frozen=True)
class LogReplay(Replay):
    """Result of a log's replay: engines, comparisons, and the waits of ``log`` that never ended."""

    log: AccessLog = field(repr=False)

    @property
    def memory_checks(self) -> list[MemoryCheck]:
        """Comparisons with the memory that the log shows as written."""
        return [check for check in self.checks if isinstance(check, MemoryCheck)]

    @property
    def stuck(self) -> list[str]:
        """Waits of the log that never ended, one sentence each."""
        accesses = {access.line: access for access in self.log.accesses}
        lines = []
        for check in self.checks:
            if isinstance(check, MemoryCheck) or check.passed:
                continue
            access = accesses[check.line]
            bound = f" within {access.looks} polls" if access.looks else ""
            register = f"{self.log.map.at(access.address)} & 0x{access.mask:x}"
            lines.append(f"line {check.line}: {register}: must be 0x{access.value:x}{bound}, got {check.actual}")
        return lines

    @property
    def compared(self) -> int:
        """Bytes of memory that were compared."""
        return sum(check.size for check in self.memory_checks)

    @property
    def passed(self) -> bool:
        """True if every wait ended and all memory has the logged values; False where no memory was compared."""
        return self.compared > 0 and all(check.passed for check in self.checks)


class LogPlayer(SequentialPlayer):
    """Player of a log: the client of a log knew what had completed, so the hardware completes all work before a read,
    before an interrupt is cleared, and before a group at work is written."""

    def execute(self, command: Command) -> None:
        """Execute one command; an error names its line."""
        try:
            super().execute(command)
        except NvdlaError as error:
            raise self.at(command, error) from error

    def settle(self) -> None:
        """Let the hardware complete all work."""
        while self.tick():
            pass

    def write_when_free(self, command: WriteRegister) -> None:
        """Write a register."""
        if str(command.register) == "GLB.S_INTR_STATUS":
            self.settle()
        if not self.write(command):
            self.settle()
            super().write_when_free(command)

    def read_until(self, command: ReadRegister) -> None:
        """Read a register after all work is complete."""
        self.settle()
        super().read_until(command)


def replay_log(
    log: AccessLog,
    config: Configuration,
    loads: Iterable[tuple[Space, int, bytes]] = (),
    threads: int | None = None,
    limits: Limits | None = None,
) -> LogReplay:
    """Run the accesses of ``log``.

    Args:
        log: The log.
        config: The hardware configuration.
        loads: (memory, address, bytes) to load in addition to the log's own memory contents.
        threads: Number of threads (None: all cores).
        limits: Limits of the run.

    Raises:
        TraceError: The file is a .cfg trace; its memory and checks are not accesses.
        NvdlaError: An engine refuses its registers; the message has the line of the log.
    """
    if log.skipped:
        raise TraceError(
            f"{log.path.name}: must be a log of register accesses, got a trace with {', '.join(log.skipped)}. "
            f"Run: nvdla trace replay {shlex.quote(str(log.path))} --config {config.name}"
        )
    player = play(_trace(log, list(loads)), LogPlayer, config, threads, limits)
    return LogReplay(log.path, config, tuple(player.checks), tuple(player.completions), player.memory, log)


def _trace(log: AccessLog, loads: list[Stretch]) -> Trace:
    """Commands of a log: the memory before the first access, the accesses, and a check of the written memory."""
    before, after = _memory_of(log)
    commands: list[Command] = [
        LoadMemory(0, space, address, MemoryImage(((0, data),))) for space, address, data in (*before, *loads)
    ]
    for access in log.accesses:
        try:
            register = log.map.at(access.address)
        except NvdlaError as error:
            raise type(error)(f"{log.path.name}:{access.line}: {error}") from error
        if access.kind == "write":
            commands.append(WriteRegister(access.line, register, access.value or 0))
        else:
            expected = None if access.kind == "read" else (access.value or 0) & access.mask
            commands.append(ReadRegister(access.line, register, expected, access.mask, retry=expected is not None))
    for space, address, data in after:
        image = MemoryImage(((0, data),))
        commands.append(CheckMemory(0, "memory", None, space, address, len(data), image=image))
    return Trace(log.path.name, tuple(commands), sequential=True)


Stretch = tuple[Space, int, bytes]
PAGE_LIMIT = 1 << 17


class _Bytes:
    """Single bytes of both memories by address, a page at a time."""

    def __init__(self) -> None:
        self.pages: dict[tuple[Space, int], tuple[np.ndarray, np.ndarray]] = {}

    def page(self, space: Space, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of a page, and which of them are there. Raises TraceError for a log that is all over memory."""
        if len(self.pages) >= PAGE_LIMIT and (space, number) not in self.pages:
            raise TraceError(
                f"memory of the log: must be at most {PAGE_LIMIT} pages of {PAGE} bytes ({PAGE_LIMIT >> 8} MiB). "
                "Shorten the log, or remove the accesses of the memory bus."
            )
        return self.pages.setdefault((space, number), (np.zeros(PAGE, np.uint8), np.zeros(PAGE, bool)))

    def stretches(self) -> list[Stretch]:
        """Bytes as stretches without a gap."""
        joined: list[tuple[Space, int, bytearray]] = []
        for (space, number), (data, there) in sorted(
            self.pages.items(), key=lambda item: (item[0][0].value, item[0][1])
        ):
            edges = np.flatnonzero(np.diff(there, prepend=False, append=False)).tolist()
            for start, end in zip(edges[::2], edges[1::2], strict=True):
                address = number * PAGE + start
                if not (joined and joined[-1][0] is space and joined[-1][1] + len(joined[-1][2]) == address):
                    joined.append((space, address, bytearray()))
                joined[-1][2].extend(data[start:end].tobytes())
        return [(space, address, bytes(data)) for space, address, data in joined]


def _memory_of(log: AccessLog) -> tuple[list[Stretch], list[Stretch]]:
    """Return the memory before the log (first read of each byte) and after it (last write of each byte)."""
    before, after = _Bytes(), _Bytes()
    for event in log.events:
        if isinstance(event, LoggedAccess):
            continue
        given, start = np.frombuffer(event.data, np.uint8), 0
        while start < given.size:
            number, at = divmod(event.address + start, PAGE)
            piece = given[start : start + PAGE - at]
            place = slice(at, at + piece.size)
            data, there = (after if event.write else before).page(event.space, number)
            known = after.page(event.space, number)[1][place] | there[place]
            new = np.ones(piece.size, bool) if event.write else ~known
            data[place][new], there[place][new] = piece[new], True
            start += piece.size
    return before.stretches(), after.stretches()
