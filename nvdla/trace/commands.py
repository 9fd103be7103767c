"""What a trace can ask for, independent of the language it is written in.

Each command knows the line it came from, so that every message can name it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nvdla.errors import TraceError
from nvdla.hardware.register_file import Register
from nvdla.memory.address_space import Space
from nvdla.trace.images import MemoryImage

# Comparisons a poll can wait for, by the word in the command's name.
COMPARISONS = {
    "equal": lambda actual, expected: actual == expected,
    "greater": lambda actual, expected: actual > expected,
    "less": lambda actual, expected: actual < expected,
    "not_equal": lambda actual, expected: actual != expected,
    "not_greater": lambda actual, expected: actual <= expected,
    "not_less": lambda actual, expected: actual >= expected,
}


def at_line(name: str, line: int, text: str, error: TraceError) -> TraceError:
    """The error with file and line; where the file ends within that line, it was probably cut off."""
    last = line == text.count("\n") + 1 and not text.endswith("\n")
    return TraceError(f"{name}:{line}: {error}{' (the file ends within this line: cut off?)' if last else ''}")


@dataclass(frozen=True)
class Command:
    """One line of a trace."""

    line: int


@dataclass(frozen=True)
class FillMemory(Command):
    """mem_init / mem_reserve: ``size`` bytes of a pattern (None = leave as they are). ``after``: sync id or ""."""

    space: Space
    address: int
    size: int
    pattern: str | None
    after: str = ""


@dataclass(frozen=True)
class LoadMemory(Command):
    """mem_load / load_mem / write_mem: put the bytes of an image at ``address`` plus their offsets."""

    space: Space
    address: int
    image: MemoryImage = field(repr=False)
    after: str = ""


@dataclass(frozen=True)
class WriteRegister(Command):
    """Write ``value`` (32 bits) to a register of the simulated device."""

    register: Register
    value: int


@dataclass(frozen=True)
class ReadRegister(Command):
    """Read once, compare under ``mask`` when ``expected`` is given. ``retry``: let time pass until it fits."""

    register: Register
    expected: int | None
    mask: int = 0xFFFFFFFF
    retry: bool = False


@dataclass(frozen=True)
class Poll(Command):
    """Wait until (register & mask) >> shift compares with ``expected`` as ``comparison`` says."""

    register: Register
    comparison: str
    expected: int
    mask: int = 0xFFFFFFFF
    shift: int = 0

    def holds(self, value: int) -> bool:
        """Whether a register's value is what is waited for."""
        return COMPARISONS[self.comparison]((value & self.mask) >> self.shift, self.expected)


@dataclass(frozen=True)
class Notify(Command):
    """sync_notify: the sequence of ``block`` triggers the event ``sync_id``."""

    block: str
    sync_id: str


@dataclass(frozen=True)
class Wait(Command):
    """sync_wait: the sequence of ``block`` stops until ``sync_id`` was triggered."""

    block: str
    sync_id: str


@dataclass(frozen=True)
class ExpectInterrupt(Command):
    """intr_notify: when this interrupt comes, clear it and trigger ``sync_id``. ``cause`` None = whichever comes."""

    cause: str | None
    group: int
    sync_id: str

    def __str__(self) -> str:
        return (
            f"intr_notify({self.cause}_{self.group}, {self.sync_id})" if self.cause else f"intr_notify({self.sync_id})"
        )


@dataclass(frozen=True)
class WaitInterrupt(Command):
    """wait: stop until the interrupt line is high."""


@dataclass(frozen=True)
class CheckMemory(Command):
    """check_crc, check_file, check_nothing, dump_mem, read_mem. Exactly one of ``crc`` and ``image``, or neither.

    ``sync_id`` is the event that starts it, None in the sequential language.
    """

    name: str
    sync_id: str | None
    space: Space
    address: int
    size: int
    crc: int | None = None
    image: MemoryImage | None = field(default=None, repr=False)
    mask: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Trace:
    """A parsed trace: its commands in file order; ``sequential`` = one thread (input.txn), else one per block."""

    name: str
    commands: tuple[Command, ...]
    sequential: bool

    def ranges(self) -> list[tuple[Space, int, int]]:
        """(space, address, size) of all memory that the trace itself mentions."""
        found = []
        for command in self.commands:
            if isinstance(command, (FillMemory, CheckMemory)) and command.size:
                found.append((command.space, command.address, command.size))
            elif isinstance(command, LoadMemory) and command.image.end:
                found.append((command.space, command.address, command.image.end))
        return found
