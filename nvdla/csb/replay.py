"""A log of register accesses, run on the emulator: what it loads is memory, what it saw being written is the check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nvdla.csb.logs import AccessLog, LoggedAccess
from nvdla.errors import NvdlaError, TraceError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.machine import Machine
from nvdla.limits import Limits
from nvdla.memory.address_space import Space
from nvdla.trace.memory import TraceMemory


@dataclass(frozen=True)
class MemoryCheck:
    """Bytes that the log says were written at ``address``, and how many of them the emulator wrote otherwise."""

    space: Space
    address: int
    size: int
    different: int


@dataclass(frozen=True)
class LogReplay:
    """``engines`` that ran, in order; ``checks`` of memory; ``stuck``: waits of the log that never came true."""

    engines: tuple[str, ...]
    checks: tuple[MemoryCheck, ...]
    stuck: tuple[str, ...]
    memory: TraceMemory

    @property
    def passed(self) -> bool:
        """Whether everything came to its end with the values that were logged."""
        return not self.stuck and all(not each.different for each in self.checks)


def replay_log(
    log: AccessLog,
    config: Configuration,
    loads: Iterable[tuple[Space, int, bytes]] = (),
    threads: int | None = None,
    limits: Limits | None = None,
) -> LogReplay:
    """Run the accesses of ``log``. ``loads``: (memory, address, bytes) beside what the log itself loads.

    The first bytes that the accelerator reads at an address are what lay there before. Raises whatever NvdlaError an
    engine raises, with the line of the log.
    """
    given = list(loads)
    initial, expected = _memory_of(log)
    ranges = [(space, address, len(data)) for space, address, data in (*given, *initial, *expected)]
    memory = TraceMemory(ranges)
    for space, address, data in (*initial, *given):
        memory.view(space, address, len(data), "load")[:] = np.frombuffer(data, np.uint8)
    machine = Machine(config, memory, threads, limits)
    try:
        engines, stuck = _play(log, machine)
    finally:
        machine.close()
    checks = []
    for space, address, data in expected:
        actual = memory.view(space, address, len(data), "check")
        checks.append(MemoryCheck(space, address, len(data), int((actual != np.frombuffer(data, np.uint8)).sum())))
    return LogReplay(tuple(engines), tuple(checks), tuple(stuck), memory)


def _play(log: AccessLog, machine: Machine) -> tuple[list[str], list[str]]:
    engines: list[str] = []
    stuck: list[str] = []

    def settle() -> None:
        while (completion := machine.step()) is not None:
            engines.extend(stage.engine for stage in completion.stages)

    for access in log.accesses:
        try:
            register = log.map.at(access.address)
            unit = machine.unit(register.unit)
            at_work = unit.has_groups and register.grouped and unit.enabled[unit.producer]
            if access.kind != "write" or at_work or str(register) == "GLB.S_INTR_STATUS":
                settle()
            if access.kind == "write":
                machine.registers.write_register(register, access.value or 0)
            elif access.kind == "wait":
                seen = machine.registers.read_register(register) & access.mask
                if seen != (access.value or 0) & access.mask:
                    bound = f" within {access.looks} looks" if access.looks else ""
                    wanted = f"not 0x{access.value:x}{bound}"
                    stuck.append(f"line {access.line}: {register} & 0x{access.mask:x} is 0x{seen:x}, {wanted}")
        except NvdlaError as error:
            raise type(error)(f"{log.path.name}:{access.line}: {error}") from error
    settle()
    return engines, stuck


Stretch = tuple[Space, int, bytes]
_PAGE = 4096
PAGE_LIMIT = 1 << 17


class _Bytes:
    """Single bytes of both memories by address, a page at a time."""

    def __init__(self) -> None:
        self.pages: dict[tuple[Space, int], tuple[np.ndarray, np.ndarray]] = {}

    def page(self, space: Space, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of a page, and which of them are there. Raises TraceError for a log that is all over memory."""
        if len(self.pages) >= PAGE_LIMIT and (space, number) not in self.pages:
            raise TraceError(
                f"the log touches more than {PAGE_LIMIT} pages of {_PAGE} bytes ({PAGE_LIMIT >> 8} MiB) of memory: "
                "no network that the replay holds does; cut the log, or leave the memory bus out of it"
            )
        return self.pages.setdefault((space, number), (np.zeros(_PAGE, np.uint8), np.zeros(_PAGE, bool)))

    def stretches(self) -> list[Stretch]:
        """Bytes as stretches without a gap."""
        found: list[tuple[Space, int, bytearray]] = []
        for (space, number), (data, there) in sorted(
            self.pages.items(), key=lambda each: (each[0][0].value, each[0][1])
        ):
            edges = np.flatnonzero(np.diff(there, prepend=False, append=False)).tolist()
            for start, end in zip(edges[::2], edges[1::2], strict=True):
                address = number * _PAGE + start
                if not (found and found[-1][0] is space and found[-1][1] + len(found[-1][2]) == address):
                    found.append((space, address, bytearray()))
                found[-1][2].extend(data[start:end].tobytes())
        return [(space, address, bytes(data)) for space, address, data in found]


def _memory_of(log: AccessLog) -> tuple[list[Stretch], list[Stretch]]:
    """What lay in memory before, and what lies there after: of every byte the first read and the last write."""
    before, after = _Bytes(), _Bytes()
    for event in log.events:
        if isinstance(event, LoggedAccess):
            continue
        given, start = np.frombuffer(event.data, np.uint8), 0
        while start < given.size:
            number, at = divmod(event.address + start, _PAGE)
            piece = given[start : start + _PAGE - at]
            place = slice(at, at + piece.size)
            data, there = (after if event.write else before).page(event.space, number)
            known = after.page(event.space, number)[1][place] | there[place]
            new = np.ones(piece.size, bool) if event.write else ~known
            data[place][new], there[place][new] = piece[new], True
            start += piece.size
    return before.stretches(), after.stretches()
