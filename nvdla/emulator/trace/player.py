"""Plays a trace on a machine.

A .cfg is several sequences, one per block, that run side by side, an interrupt handler, and checks that start with
events (verif/testbench/trace_player of the hardware repository). Here everything that can go on without the hardware
goes on first, in file order; only when all sequences wait does the hardware do its next thing. An input.txn is one
sequence.

One step of the machine finishes a whole chain of engines and raises all its interrupts. Hardware raises them one after
the other, and a trace may clear one before it waits for the next; so they are raised one at a time.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.emulator.hardware.machine import INTERRUPT_BITS, Completion, Machine
from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.trace.commands import (
    CheckMemory,
    Command,
    ExpectInterrupt,
    FillMemory,
    LoadMemory,
    Notify,
    Poll,
    ReadRegister,
    Trace,
    TraceMemory,
    Wait,
    WaitInterrupt,
    WriteRegister,
)
from nvdla.errors import NvdlaError, TraceError

# The order in which the interrupts of one chain come: the fetch ends before the sums, those before the results.
_ORDER = ("CDMA_DAT_DONE", "CDMA_WT_DONE", "CACC_DONE", "SDP_DONE", "CDP_DONE", "PDP_DONE", "RUBIK_DONE", "BDMA_DONE")
_BITS = [1 << INTERRUPT_BITS[cause] + group for cause in _ORDER for group in range(2)]


@dataclass(frozen=True)
class Check:
    """One comparison that the trace asked for. ``expected`` and ``actual`` are printable."""

    name: str
    line: int
    expected: str
    actual: str
    passed: bool


@dataclass(frozen=True)
class MemoryCheck(Check):
    """Comparison of ``size`` bytes of memory: ``different`` of them have another value than expected."""

    space: Space
    address: int
    size: int
    different: int


class Player(ABC):
    """One run of one trace. After :meth:`play`, ``checks`` and ``completions`` have the results."""

    def __init__(self, trace: Trace, machine: Machine, memory: TraceMemory) -> None:
        self.trace = trace
        self.machine = machine
        self.memory = memory
        self.checks: list[Check] = []
        self.completions: list[Completion] = []
        self._held: deque[int] = deque()

    @abstractmethod
    def play(self) -> None:
        """Run to the end. A wait that never ends becomes a failed check; an error of an engine is raised."""

    def finish(self) -> None:
        """Let the hardware finish, so that memory can be read."""
        while self.tick():
            self.machine.interrupt_status = 0

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Let time pass: the next held interrupt comes, else the machine does one thing. False: nothing can happen."""
        if not self._held:
            before = self.machine.interrupt_status
            completion = self.machine.step()
            if completion is None:
                return False
            self.completions.append(completion)
            raised = completion.interrupts
            self.machine.interrupt_status = before
            self._held.extend(bit for bit in _BITS if raised & bit)
        if self._held:
            self.machine.interrupt_status |= self._held.popleft()
        return True

    def pending(self) -> int:
        """Interrupts that are raised and not masked: the interrupt line is high when there are any."""
        mask = self.machine.unit("GLB").current.shared["S_INTR_MASK"]
        return self.machine.interrupt_status & ~mask

    def stuck(self) -> str:
        """Why nothing can happen, in words: the units that are enabled and never run."""
        waiting = [
            f"{name} group {group}"
            for name, unit in self.machine.registers.units.items()
            for group in range(2)
            if unit.enabled[group]
        ]
        return f"enabled and waiting indefinitely: {', '.join(waiting)}" if waiting else "no unit is enabled"

    # -- commands that both languages have -------------------------------------------------------------------------

    def at(self, command: Command, error: NvdlaError) -> NvdlaError:
        """Return the error with the trace's file and line in front."""
        return error.at(f"{self.trace.name}:{command.line}")

    def load(self, command: FillMemory | LoadMemory) -> None:
        """Fill memory as a command says."""
        try:
            if isinstance(command, LoadMemory):
                for offset, data in command.image.segments:
                    self.machine.meter.spend("load", len(data))
                    view = self.memory.view(command.space, command.address + offset, len(data), "load")
                    view[:] = np.frombuffer(data, np.uint8)
            elif command.pattern is not None:
                self.machine.meter.spend("mem_init", command.size)
                self.memory.fill(command.space, command.address, command.size, command.pattern)
        except NvdlaError as error:
            raise self.at(command, error) from error

    def write(self, command: WriteRegister) -> bool:
        """False while the group that would be written is at work: the hardware may not see it change."""
        unit = self.machine.unit(command.register.unit)
        if unit.has_groups and command.register.grouped and unit.enabled[unit.producer]:
            return False
        try:
            self.machine.registers.write_register(command.register, command.value)
        except NvdlaError as error:
            raise self.at(command, error) from error
        return True

    def read(self, command: ReadRegister | Poll) -> int:
        """The value of a command's register."""
        return self.machine.registers.read_register(command.register)

    def record_read(self, command: ReadRegister, value: int) -> None:
        """Record whether a read gave the expected value; a mask of 0 makes no check."""
        if command.expected is not None and command.mask:
            actual = value & command.mask
            name = f"read {command.register}" + ("" if command.mask == 0xFFFFFFFF else f" & 0x{command.mask:x}")
            passed = actual == command.expected
            self.checks.append(Check(name, command.line, f"0x{command.expected:x}", f"0x{actual:x}", passed))

    def check(self, command: CheckMemory) -> None:
        """Compare memory with the CRC or the file that the command names."""
        if command.crc is None and command.image is None:
            return
        name = f"{command.name} {command.sync_id or ''}".strip()
        name = f"{name} {command.space.value} 0x{command.address:x} {command.size} bytes"
        try:
            self.machine.meter.spend(command.name, command.size)
            if command.crc is None and command.size:
                expected, (passed, actual, different) = "the bytes of the file", self._compare(command)
                place = (command.space, command.address, command.size)
                self.checks.append(MemoryCheck(name, command.line, expected, actual, passed, *place, different))
                return
            if command.size:
                crc = self.memory.crc(command.space, command.address, command.size, command.name)
                fields = (f"0x{command.crc:08x}", f"0x{crc:08x}", crc == command.crc)
            else:
                fields = ("bytes to compare", "none", False)
        except NvdlaError as error:
            raise self.at(command, error) from error
        self.checks.append(Check(name, command.line, *fields))

    def never(self, command: Command, what: str, why: str) -> None:
        """A failed check for something that can no longer happen."""
        self.checks.append(Check(what, command.line, "to happen", f"never happened: {why}", False))

    def _compare(self, command: CheckMemory) -> tuple[bool, str, int]:
        """Compare the bytes of the image; return whether all are equal, a sentence, and how many differ."""
        view = self.memory.view(command.space, command.address, command.size, command.name)
        compared, different, first = 0, 0, -1
        mask = np.frombuffer(command.mask, np.uint8) if command.mask else None
        for offset, data in command.image.segments if command.image else ():
            golden = np.frombuffer(data, np.uint8)[: max(command.size - offset, 0)]
            actual = view[offset : offset + golden.size]
            wrong = np.flatnonzero((actual if mask is None else actual & mask) != golden)
            if wrong.size and first < 0:
                first = offset + int(wrong[0])
            compared += golden.size if mask is None else int(np.count_nonzero(mask))
            different += wrong.size
        if not compared:
            return False, "no bytes to compare", 0
        if not different:
            return True, "the same bytes", 0
        text = f"{different} bytes differ, the first at offset 0x{first:x} (0x{int(view[first]):02x})"
        return False, text, different


class SequentialPlayer(Player):
    """input.txn: one command after the other.

    These traces were made on the RTL, where the convolution buffer is still being flushed when the first registers are
    read after reset: S_CBUF_FLUSH_STATUS is 0 until time passes (the C model starts with 1).
    """

    def __init__(self, trace: Trace, machine: Machine, memory: TraceMemory) -> None:
        super().__init__(trace, machine, memory)
        self._flushing = True

    def tick(self) -> bool:
        """One step of the machine; False when nothing happened."""
        if self._flushing:
            self._flushing = False
            return True
        return super().tick()

    def read(self, command: ReadRegister | Poll) -> int:
        """The value of a command's register; a flush of the buffer takes a step."""
        if self._flushing and str(command.register) == "CDMA.S_CBUF_FLUSH_STATUS":
            return 0
        return super().read(command)

    def play(self) -> None:
        """Play all commands in their order."""
        for command in self.trace.commands:
            self.execute(command)

    def execute(self, command: Command) -> None:
        """Execute one command, and let time pass until it is done."""
        if isinstance(command, (FillMemory, LoadMemory)):
            self.load(command)
        elif isinstance(command, WriteRegister):
            self.write_when_free(command)
        elif isinstance(command, ReadRegister):
            self.read_until(command)
        elif isinstance(command, WaitInterrupt):
            while not self.pending() and self.tick():
                pass
            if not self.pending():
                self.never(command, "wait for an interrupt", self.stuck())
        elif isinstance(command, CheckMemory):
            self.check(command)

    def write_when_free(self, command: WriteRegister) -> None:
        """Write a register as soon as its group is not at work."""
        while not self.write(command):
            if not self.tick():
                raise self.at(command, TraceError(f"{command.register}: deadlock: {self.stuck()}"))

    def read_until(self, command: ReadRegister) -> None:
        """Read a register, with ``retry`` until it has the expected value."""
        value = self.read(command)
        while command.retry and value & command.mask != command.expected and self.tick():
            value = self.read(command)
        self.record_read(command, value)


class BlockPlayer(Player):
    """.cfg: a sequence a block. Memory commands without an event come first, then everything by events."""

    def __init__(self, trace: Trace, machine: Machine, memory: TraceMemory) -> None:
        super().__init__(trace, machine, memory)
        self._sequences: dict[str, deque[Command]] = defaultdict(deque)
        self._ready: list[tuple[int, str]] = []  # (line of the next command, block)
        self._waiting: dict[str, list[str]] = defaultdict(list)  # event -> blocks
        self._polling: list[str] = []
        self._by_event: dict[str, list[Command]] = defaultdict(list)  # event -> memory commands and checks
        self._expected: dict[tuple[str | None, int], deque[ExpectInterrupt]] = defaultdict(deque)
        self._events: set[str] = set()

    def play(self) -> None:
        """Play the blocks of all units side by side."""
        self._distribute()
        progressed = False
        while True:
            progressed |= self._advance()
            self._handle_interrupts()
            if self._ready:
                continue
            if not self.tick() and not progressed:
                break
            self._retry()
            progressed = False
        self._report_stuck()

    def _retry(self) -> None:
        """Check the conditions of the waiting blocks again after a change."""
        self._ready = [(self._sequences[block][0].line, block) for block in self._polling]
        heapq.heapify(self._ready)
        self._polling.clear()

    def _distribute(self) -> None:
        """Sort the commands: load memory now, queue those of a block, and keep those that wait for an event."""
        for command in self.trace.commands:
            if isinstance(command, (FillMemory, LoadMemory)):
                if command.after:
                    self._by_event[command.after].append(command)
                else:
                    self.load(command)
            elif isinstance(command, CheckMemory):
                self._by_event[command.sync_id or ""].append(command)
            elif isinstance(command, ExpectInterrupt):
                self._expected[command.cause, command.group].append(command)
            else:
                named: Any = command
                block = named.block if isinstance(command, (Notify, Wait)) else named.register.unit
                self._sequences[block].append(command)
        self._ready = [(commands[0].line, block) for block, commands in self._sequences.items()]
        heapq.heapify(self._ready)

    def _advance(self) -> bool:
        """Run all sequences as far as they come, the earliest line first. True if any command was done."""
        done = False
        while self._ready:
            _, block = heapq.heappop(self._ready)
            sequence = self._sequences[block]
            if not self._execute(sequence[0], block):
                continue
            done = True
            sequence.popleft()
            if sequence:
                heapq.heappush(self._ready, (sequence[0].line, block))
        return done

    def _execute(self, command: Command, block: str) -> bool:
        """Do one command of a sequence; False (and the block is put aside) if it has to wait."""
        if isinstance(command, Wait):
            if command.sync_id not in self._events:
                self._waiting[command.sync_id].append(block)
                return False
        elif isinstance(command, Notify):
            self._trigger(command.sync_id)
        elif isinstance(command, WriteRegister):
            if not self.write(command):
                self._polling.append(block)
                return False
        elif isinstance(command, Poll):
            if not command.holds(self.read(command)):
                self._polling.append(block)
                return False
        elif isinstance(command, ReadRegister):
            self.record_read(command, self.read(command))
        return True

    def _trigger(self, sync_id: str) -> None:
        """An event: its checks and memory commands run, the blocks that wait for it go on."""
        self._events.add(sync_id)
        for command in self._by_event.pop(sync_id, ()):
            if isinstance(command, CheckMemory):
                self.check(command)
            elif isinstance(command, (FillMemory, LoadMemory)):
                self.load(command)
        for block in self._waiting.pop(sync_id, ()):
            heapq.heappush(self._ready, (self._sequences[block][0].line, block))

    def _handle_interrupts(self) -> None:
        """Clear pending interrupts; each triggers the event of the first intr_notify that expects it.

        An interrupt that no command expects is cleared and forgotten: traces of one layer name only the last one.
        """
        pending = self.pending()
        self.machine.interrupt_status &= ~pending
        for cause in _ORDER:
            for group in range(2):
                if pending >> INTERRUPT_BITS[cause] + group & 1:
                    self._interrupt(cause.removesuffix("_DONE"), group)

    def _interrupt(self, cause: str, group: int) -> None:
        for expected in (self._expected[cause, group], self._expected[None, 0]):
            if expected:
                self._trigger(expected.popleft().sync_id)
                return

    def _report_stuck(self) -> None:
        """Report the remaining commands and interrupts, which can no longer happen."""
        why = self.stuck()
        for sequence in self._sequences.values():
            if sequence:
                command: Any = sequence[0]
                what = {Wait: "sync_wait", Poll: "poll", WriteRegister: "write"}.get(type(command), "command")
                about = command.sync_id if isinstance(command, (Wait, Notify)) else str(command.register)
                self.never(command, f"{what} {about}", why)
        for expectations in self._expected.values():
            for expected in expectations:
                self.never(expected, str(expected), why)
        for commands in self._by_event.values():
            for command in commands:
                if isinstance(command, CheckMemory):
                    self.never(command, f"{command.name} {command.sync_id}", "its event never came")
