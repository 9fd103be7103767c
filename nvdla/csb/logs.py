"""Logs of register accesses, in the forms that people have, as one list of accesses.

Forms: this project's own (``W 0x0b004 0x1``), NVIDIA's virtual platform (``sc.log``: ``csb_adaptor: GP: iswrite=1
addr=.. data=..``, memory accesses of ``dbb_adaptor`` and ``sram_adaptor`` included), ``write_reg`` / ``read_reg``
transactions (word addresses with 0xffff above them, or byte addresses), ``reg_write(NAME, value);`` statements (C and
.cfg), and plain ``address value`` lines. Addresses of registers become bytes from the start of the CSB.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from nvdla.errors import TraceError
from nvdla.files import read_file
from nvdla.hardware.register_file import RegisterMap, register_map
from nvdla.memory.address_space import Space
from nvdla.trace.commands import at_line
from nvdla.trace.images import TraceFolder

LOG_LIMIT = 512 << 20
LINES_LIMIT = 1 << 24
CSB_SPAN = 0x40000  # bytes; no register map is larger

MAPS = ("nv_small", "nv_full")


@dataclass(frozen=True)
class LoggedAccess:
    """``kind`` "write" (``value``), "read" (``value`` seen, None: not said) or "wait" (until value & mask matches).

    ``looks``: how often a wait may read before it has failed (None: for ever)."""

    line: int
    kind: str
    address: int
    value: int | None
    mask: int = 0xFFFFFFFF
    looks: int | None = None


@dataclass(frozen=True)
class LoggedTransfer:
    """The accelerator's access to memory, or a load or dump of a file: ``write`` is what it must have written."""

    line: int
    space: Space
    address: int
    write: bool
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class AccessLog:
    """A log: ``form`` it was in, the register map that it is read with, accesses and transfers in order."""

    path: Path
    form: str
    map: RegisterMap
    events: tuple[LoggedAccess | LoggedTransfer, ...]

    @property
    def accesses(self) -> list[LoggedAccess]:
        """Reads and writes of registers, without other events."""
        return [each for each in self.events if isinstance(each, LoggedAccess)]


_OWN = re.compile(r"W\s+(0x[0-9a-fA-F]{1,8})\s+(0x[0-9a-fA-F]{1,8})\s*$")
_PLATFORM = re.compile(
    r"(csb|dbb|sram)_adaptor: GP: iswrite=([01]) addr=(0x[0-9a-fA-F]{1,16}) len=(\d{1,6}) data=0x((?: [0-9a-fA-F]{8})*)"
)
_TRANSACTION = re.compile(r"(write_reg|read_reg|load_mem|dump_mem)\s+(\S+)\s+(\S+)(?:\s+(\S+))?(?:\s+(\S+))?")
_STATEMENT = re.compile(r"reg_write\s*\(\s*(?:NVDLA_)?([A-Z0-9_]+(?:\.[A-Z0-9_]+)?)_0\s*,\s*(\w+)\s*\)")
_BEGINS = re.compile(r"\s*(?:write_reg|read_reg|load_mem|dump_mem)\b|W\s+0x")  # what must be a whole access
_PLAIN = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})[\s,:=]+(?:0x)?([0-9a-fA-F]{1,8})\s*$")

#: how the last line of a log begins that was cut off within it, by form
_HALF = {
    form: re.compile(pattern)
    for form, pattern in (
        ("nvdla", r"W"),
        ("virtual-platform", r".*_adaptor: GP"),
        ("txn", r"[wrld]"),
        ("statements", r".*\breg_write"),
        ("plain", r"[0-9a-fA-F]"),
    )
}

Line = Callable[[int, str], LoggedAccess | LoggedTransfer | None]


def read_log(path: str | os.PathLike[str], map_name: str | None = None, base: int | None = None) -> AccessLog:
    """Read a log. ``map_name``: the register map ("nv_small", "nv_full"; None: the one that knows more of its
    addresses); ``base``: what to take off addresses (None: what all of them have in common above the CSB's size).

    Raises TraceError for files that are no log, naming file and line.
    """
    path = Path(path)
    text = read_file(path, LOG_LIMIT, "log").decode("utf-8", "replace")
    if (lines := text.count("\n")) > LINES_LIMIT:
        raise TraceError(f"{path.name}: {lines} lines, must be at most {LINES_LIMIT}")
    form = _form(path.name, text)
    reader = _Reader(path, form)
    events: list[LoggedAccess | LoggedTransfer] = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            event = reader.line(number, line)
            if event is None and _BEGINS.match(line) and form != "statements":
                raise TraceError(f"{line[:60]!r} is half an access")
        except TraceError as error:
            raise at_line(path.name, number, text, error) from error
        if event is not None:
            events.append(event)
    if event is None and _HALF[form].match(line):
        raise TraceError(f"{path.name}:{number}: the log ends within {line.strip()[:60]!r}: cut off?")
    events = _based(events, base)
    chosen = register_map(map_name) if map_name else _known_best(events, reader)
    events = [reader.named(each, chosen) for each in events]
    if not any(isinstance(each, LoggedAccess) for each in events):
        raise TraceError(f"{path.name}: no register access in it")
    return AccessLog(path, form, chosen, tuple(events))


def _form(name: str, text: str) -> str:
    """What the log is written in, by its first telling line."""
    for line in text.split("\n"):
        if "_adaptor: GP:" in line:
            return "virtual-platform"
        if _OWN.match(line):
            return "nvdla"
        if re.match(r"\s*(write_reg|read_reg)\s", line):
            return "txn"
        if _STATEMENT.search(line):
            return "statements"
        if _PLAIN.match(line.partition("#")[0].strip()):
            return "plain"
    raise TraceError(
        f"{name}: no log of register accesses: known are 'W address value' lines, sc.log of the virtual platform, "
        "write_reg transactions, reg_write(NAME, value) statements and 'address value' lines"
    )


class _Reader:
    """Lines of one form to events. Names of statements are looked up once the register map is known."""

    def __init__(self, path: Path, form: str) -> None:
        self._images = TraceFolder(path.parent, LOG_LIMIT)
        self._files: dict[tuple[str, int], bytes] = {}  # a log may name one file on every line
        self.names: dict[int, tuple[str, str]] = {}
        lines: dict[str, Line] = {
            "nvdla": self._own,
            "virtual-platform": self._platform,
            "txn": self._transaction,
            "statements": self._statement,
            "plain": self._plain,
        }
        self.line = lines[form]

    def named(self, event: LoggedAccess | LoggedTransfer, registers: RegisterMap) -> LoggedAccess | LoggedTransfer:
        """The event with the address of the register that it names."""
        if not isinstance(event, LoggedAccess) or event.line not in self.names:
            return event
        register = registers.register(*self.names[event.line])
        return replace(event, address=register.address)

    def _own(self, number: int, line: str) -> LoggedAccess | None:
        match = _OWN.match(line)
        return LoggedAccess(number, "write", int(match[1], 16), int(match[2], 16)) if match else None

    def _platform(self, number: int, line: str) -> LoggedAccess | LoggedTransfer | None:
        match = _PLATFORM.search(line)
        if not match:
            return None
        words = [int(word, 16) for word in match[5].split()]
        address, write = int(match[3], 16), match[2] == "1"
        if match[1] == "csb":
            return LoggedAccess(number, "write" if write else "read", address, words[0] if words else None)
        data = b"".join(word.to_bytes(4, "little") for word in words)[: int(match[4])]
        space = Space.DRAM if match[1] == "dbb" else Space.CVSRAM
        return LoggedTransfer(number, space, address, write, data)

    def _transaction(self, number: int, line: str) -> LoggedAccess | LoggedTransfer | None:
        match = _TRANSACTION.match(line.partition("#")[0].strip())
        if not match:
            return None
        command, first, second, third, bound = match.groups()
        if command in ("load_mem", "dump_mem"):
            return self._file(number, command, _number(first), _number(second), third)
        address = _number(first)
        if address >> 16 == 0xFFFF:
            address = (address & 0xFFFF) << 2
        if command == "write_reg":
            return LoggedAccess(number, "write", address, _number(second))
        if third is None:
            return LoggedAccess(number, "read", address, None)
        looks = None if bound is None else _number(bound)
        if looks is not None and looks <= 0:
            raise TraceError(f"read_reg may look {looks} times: the bound must be 1 or more, or left out")
        return LoggedAccess(number, "wait", address, _number(third), _number(second), looks)

    def _file(self, number: int, command: str, address: int, size: int, name: str | None) -> LoggedTransfer:
        key = (name or "", size)
        if key not in self._files:
            image = self._images.image(*key)  # refuses a file that is shorter
            data = bytearray(size)
            for offset, piece in image.segments:
                data[offset : offset + len(piece)] = piece
            self._files[key] = bytes(data)
        space = Space.CVSRAM if address >> 28 == 5 else Space.DRAM
        return LoggedTransfer(number, space, address, command == "dump_mem", self._files[key])

    def _statement(self, number: int, line: str) -> LoggedAccess | None:
        match = _STATEMENT.search(line)
        name = match[1].replace(".", "_") if match else ""
        if not match or "_" not in name:
            return None
        for each in MAPS:
            for unit, registers in register_map(each).units.items():
                if name.startswith(f"{unit}_") and name[len(unit) + 1 :] in registers:
                    self.names[number] = (unit, name[len(unit) + 1 :])
                    return LoggedAccess(number, "write", 0, _number(match[2].rstrip("uUlL")))
        raise TraceError(f"no register is called {name}")

    def _plain(self, number: int, line: str) -> LoggedAccess | None:
        match = _PLAIN.match(line.partition("#")[0].partition("//")[0].strip())
        return LoggedAccess(number, "write", int(match[1], 16), int(match[2], 16)) if match else None


def _number(word: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        raise TraceError(f"{word[:40]!r} is no number") from None


def _based(events: list[LoggedAccess | LoggedTransfer], base: int | None) -> list[LoggedAccess | LoggedTransfer]:
    """Register addresses from the start of the CSB."""
    accesses = [each for each in events if isinstance(each, LoggedAccess)]
    if base is None:
        lowest = min((each.address for each in accesses), default=0)
        base = lowest // CSB_SPAN * CSB_SPAN
    for each in accesses:
        if not base <= each.address < base + CSB_SPAN:
            raise TraceError(
                f"line {each.line}: register address 0x{each.address:x} is not within 0x{CSB_SPAN:x} bytes of "
                f"0x{base:x}; --csb-base says where the registers begin"
            )
    return [replace(each, address=each.address - base) if isinstance(each, LoggedAccess) else each for each in events]


def _known_best(events: list[LoggedAccess | LoggedTransfer], reader: _Reader) -> RegisterMap:
    """The register map that has most of the log's registers; enabling a unit counts most."""

    def score(registers: RegisterMap) -> tuple[int, int]:
        known = enables = 0
        for each in events:
            if not isinstance(each, LoggedAccess):
                continue
            if each.line in reader.names:
                unit, name = reader.names[each.line]
                known += name in registers.units.get(unit, {})
            elif each.address in registers.by_address:
                known += 1
                enables += registers.by_address[each.address].name == "D_OP_ENABLE" and each.value == 1
        return enables, known

    return max((register_map(name) for name in MAPS), key=score)
