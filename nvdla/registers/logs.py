"""CSB logs: reading, comparing, decoding into operations.

Formats: this project's own (``W 0x0b004 0x1``), NVIDIA's virtual platform (``sc.log``: ``csb_adaptor: GP: iswrite=1
addr=.. data=..``, memory accesses of ``dbb_adaptor`` and ``sram_adaptor`` included), ``write_reg`` / ``read_reg``
transactions (word or byte addresses), ``reg_write(NAME, value);`` statements (C and .cfg), and plain ``address value``
lines. Addresses of registers become bytes from the start of the CSB.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from nvdla.emulator.hardware.register_file import RegisterFile, RegisterMap, register_map
from nvdla.emulator.memory.address_space import Space
from nvdla.emulator.trace.commands import TraceFolder, at_line
from nvdla.errors import TraceError
from nvdla.registers.register_program import CSB_SPAN, check_csb_base
from nvdla.util.files import read_file
from nvdla.util.recognition import wrong_kind
from nvdla.util.rounding import integer

LOG_LIMIT = 512 << 20
LINES_LIMIT = 1 << 24

MAPS = ("nv_small", "nv_full")


@dataclass(frozen=True)
class LoggedAccess:
    """``kind`` "write" (``value``), "read" (``value`` seen, None: not logged) or "wait" (until value & mask matches).

    ``looks``: polls of a wait before it fails (None: no limit)."""

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
    """A log: its ``format``, the register map, accesses and transfers in order.

    ``skipped``: names of commands of a .cfg trace other than accesses: memory, events, checks.
    """

    path: Path
    format: str
    map: RegisterMap
    events: tuple[LoggedAccess | LoggedTransfer, ...]
    skipped: tuple[str, ...] = ()

    @property
    def accesses(self) -> list[LoggedAccess]:
        """Reads and writes of registers, without other events."""
        return [event for event in self.events if isinstance(event, LoggedAccess)]


_OWN = re.compile(r"W\s+(0x[0-9a-fA-F]{1,8})\s+(0x[0-9a-fA-F]{1,8})\s*$")
_PLATFORM = re.compile(
    r"(csb|dbb|sram)_adaptor: GP: iswrite=([01]) addr=(0x[0-9a-fA-F]{1,16}) len=([0-9]{1,6}) "
    r"data=0x((?: [0-9a-fA-F]{8})*)"
)
_TRANSACTION = re.compile(r"(write_reg|read_reg|load_mem|dump_mem)\s+(\S+)\s+(\S+)(?:\s+(\S+))?(?:\s+(\S+))?")
_WORD = re.compile(r"\s*actual addr: (0x[0-9a-fA-F]{1,4})\b")  # of the RISC-V projects
_STATEMENT = re.compile(r"reg_write\s*\(\s*(?:NVDLA_)?([A-Z0-9_]+(?:\.[A-Z0-9_]+)?)_0\s*,\s*(\w+)\s*\)")
_TIME = re.compile(r"\s*\[\s*[0-9]{1,10}\.[0-9]{1,9}\]\s*")  # of dmesg
_BEGINS = re.compile(r"\s*(?:write_reg|read_reg|load_mem|dump_mem)\b|W\s+0x")  # what must be a whole access
_TRACE = re.compile(r"\s*((?:mem|check|sync|poll)_\w+|intr_notify|reg_read_(?:check|expected))\s*\(")  # only of .cfg
_PLAIN = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})[\s,:=]+(?:0x)?([0-9a-fA-F]{1,8})\s*$")

#: start of a last line that was cut off, by format
_HALF = {
    log_format: re.compile(pattern)
    for log_format, pattern in (
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
    addresses); ``base``: address of the first register (None: from remarks "actual addr: 0x0c03" of the log, else
    the multiple of the CSB's size below the lowest address). Whether addresses are words or bytes is detected.

    Raises TraceError with file and line for other files, FormatError for a base that is not a multiple of 4.
    """
    if base is not None:
        check_csb_base(base)
    path = Path(path)
    text = read_file(path, LOG_LIMIT, "log").decode("utf-8", "replace")
    if (other := wrong_kind(path, str(path), "a log of register accesses", ("csb", "trace"))) is not None:
        raise TraceError(other)
    if (lines := text.count("\n")) > LINES_LIMIT:
        raise TraceError(f"{path.name}: must have at most {LINES_LIMIT} lines, got {lines}")
    log_format = _format(path.name, text)
    reader = _Reader(path, log_format)
    events: list[LoggedAccess | LoggedTransfer] = []
    skipped: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = _without_time(line)
        try:
            event = reader.line(number, line)
            if event is None and _BEGINS.match(line) and log_format != "statements":
                raise TraceError(f"access: must be complete, got {line[:60]!r}")
        except TraceError as error:
            raise at_line(path.name, number, text, error) from error
        if event is not None:
            events.append(event)
        elif log_format == "statements" and (trace := _TRACE.match(line)):
            skipped[trace[1]] = None
    if event is None and _HALF[log_format].match(line):
        raise TraceError(f"{path.name}:{number}: last line: must be complete, got {line.strip()[:60]!r} (cut off?)")
    events = _based(events, base, reader.words)
    chosen = register_map(map_name) if map_name else _known_best(events, reader)
    events = [reader.named(event, chosen) for event in events]
    if not any(isinstance(event, LoggedAccess) for event in events):
        raise TraceError(f"{path.name}: must contain a register access, got none")
    return AccessLog(path, log_format, chosen, tuple(events), tuple(skipped))


def _format(name: str, text: str) -> str:
    """Return the log's format, from the first line that shows it.

    Two numbers after a time of dmesg show "plain" only where no other format follows: a kernel prints such lines, too.
    """
    timed_plain = False
    for line in text.split("\n"):
        if "_adaptor: GP:" in line:
            return "virtual-platform"
        access = _without_time(line)
        if _OWN.match(access):
            return "nvdla"
        if re.match(r"\s*(write_reg|read_reg)\s", access):
            return "txn"
        if _STATEMENT.search(line):
            return "statements"
        if _PLAIN.match(access.partition("#")[0].strip()):
            if access == line:
                return "plain"
            timed_plain = True
    if timed_plain:
        return "plain"
    raise TraceError(
        f"{name}: must be a log of register accesses: 'W address value' lines, sc.log of the virtual platform, "
        "write_reg transactions, reg_write(NAME, value) statements and 'address value' lines"
    )


def _without_time(line: str) -> str:
    """A line without the time that dmesg prints first: "[   12.345678] W 0x9058 0x58"."""
    return line[time.end() :] if (time := _TIME.match(line)) else line


class _Reader:
    """Lines of one format to events. Names of statements are looked up once the register map is known."""

    def __init__(self, path: Path, log_format: str) -> None:
        self._images = TraceFolder(path.parent, LOG_LIMIT)
        self._files: dict[tuple[str, int], bytes] = {}  # a log may name one file on every line
        self.names: dict[int, tuple[str, str]] = {}
        self.words: dict[int, int] = {}  # line -> word address of its register, as its remark states it
        lines: dict[str, Line] = {
            "nvdla": self._own,
            "virtual-platform": self._platform,
            "txn": self._transaction,
            "statements": self._statement,
            "plain": self._plain,
        }
        self.line = lines[log_format]

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
        access, _, remark = line.partition("#")
        match = _TRANSACTION.match(access.strip())
        if not match:
            return None
        command, first, second, third, bound = match.groups()
        address = _number(first)
        if command in ("load_mem", "dump_mem"):
            space = Space.CVSRAM if address >> 28 == 5 else Space.DRAM
            if (stated := remark.strip()) in list(Space):
                space = Space(stated)
            return self._file(number, space, command, address, _number(second), third)
        if word := _WORD.match(remark):
            self.words[number] = int(word[1], 16)
        elif address >> 16 == 0xFFFF:
            address = (address & 0xFFFF) << 2
        if command == "write_reg":
            return LoggedAccess(number, "write", address, _number(second))
        if third is None:
            return LoggedAccess(number, "read", address, None)
        looks = None if bound is None else _number(bound)
        if looks is not None and looks <= 0:
            raise TraceError(f"number of polls of read_reg: must be at least 1, or omitted, got {looks}")
        return LoggedAccess(number, "wait", address, _number(third), _number(second), looks)

    def _file(
        self, number: int, space: Space, command: str, address: int, size: int, name: str | None
    ) -> LoggedTransfer:
        key = (name or "", size)
        if key not in self._files:
            image = self._images.image(*key)  # raises TraceError for a shorter file
            data = bytearray(size)
            for offset, piece in image.segments:
                data[offset : offset + len(piece)] = piece
            self._files[key] = bytes(data)
        return LoggedTransfer(number, space, address, command == "dump_mem", self._files[key])

    def _statement(self, number: int, line: str) -> LoggedAccess | None:
        match = _STATEMENT.search(line)
        name = match[1].replace(".", "_") if match else ""
        if not match or "_" not in name:
            return None
        for map_name in MAPS:
            for unit, registers in register_map(map_name).units.items():
                if name.startswith(f"{unit}_") and name[len(unit) + 1 :] in registers:
                    self.names[number] = (unit, name[len(unit) + 1 :])
                    return LoggedAccess(number, "write", 0, _number(match[2].rstrip("uUlL")))
        raise TraceError(f"register: must be in one of the register maps, got {name}")

    def _plain(self, number: int, line: str) -> LoggedAccess | None:
        match = _PLAIN.match(line.partition("#")[0].partition("//")[0].strip())
        return LoggedAccess(number, "write", int(match[1], 16), int(match[2], 16)) if match else None


def _number(word: str) -> int:
    try:
        value = integer(word, 0)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 64:
        raise TraceError(f"number: must have at most 64 bits, got {word[:40]!r}")
    return value


def _based(
    events: list[LoggedAccess | LoggedTransfer], base: int | None, words: dict[int, int]
) -> list[LoggedAccess | LoggedTransfer]:
    """Register addresses in bytes from the start of the CSB. ``words``: word addresses in remarks, by line."""
    accesses = [event for event in events if isinstance(event, LoggedAccess)]
    start, unit = max(_places(accesses, base, words), key=_registers_at(accesses))
    for access in accesses:
        if not 0 <= (access.address - start) * unit < CSB_SPAN:
            raise TraceError(
                f"line {access.line}: register address: must be within 0x{CSB_SPAN // unit:x} "
                f"{'bytes' if unit == 1 else 'words'} of 0x{start:x}, got 0x{access.address:x}. "
                "Set the address of the first register with --csb-base."
            )
    return [
        replace(event, address=(event.address - start) * unit) if isinstance(event, LoggedAccess) else event
        for event in events
    ]


def _places(accesses: list[LoggedAccess], base: int | None, words: dict[int, int]) -> list[tuple[int, int]]:
    """Return possible (address of the first register, bytes per unit of addresses), the most likely one first.

    Registers have four bytes, so addresses that are not multiples of 4 can only be words.
    """
    units = (1, 4) if any(access.address % 4 for access in accesses) else (1,)
    if base is not None:
        return [(base, unit) for unit in units]
    stated = Counter(
        (access.address - words[access.line] * 4 // unit, unit)
        for access in accesses
        if access.line in words
        for unit in (1, 4)
    )
    lowest = min((access.address for access in accesses), default=0)
    floors = [(lowest // (CSB_SPAN // unit) * (CSB_SPAN // unit), unit) for unit in units]
    return [place for place, _ in stated.most_common() if place[0] >= 0 and place[0] % 4 == 0][:1] + floors


def _registers_at(accesses: list[LoggedAccess]) -> Callable[[tuple[int, int]], int]:
    """Return the function that counts the accesses whose addresses are registers if the CSB is at a place."""
    known = {address for name in MAPS for address in register_map(name).by_address}
    counts = Counter(access.address for access in accesses)
    return lambda place: sum(n for at, n in counts.items() if (at - place[0]) * place[1] in known)


def _known_best(events: list[LoggedAccess | LoggedTransfer], reader: _Reader) -> RegisterMap:
    """The register map that has most of the log's registers; enabling a unit counts most."""

    def score(registers: RegisterMap) -> tuple[int, int]:
        known = enables = 0
        for event in events:
            if not isinstance(event, LoggedAccess):
                continue
            if event.line in reader.names:
                unit, name = reader.names[event.line]
                known += name in registers.units.get(unit, {})
            elif event.address in registers.by_address:
                known += 1
                enables += registers.by_address[event.address].name == "D_OP_ENABLE" and event.value == 1
        return enables, known

    return max((register_map(name) for name in MAPS), key=score)


_ADDRESS = re.compile(r".*ADDR_(HIGH|LOW)(_\d)?$")


@dataclass(frozen=True)
class EnabledUnit:
    """One enabling of a unit: ``number`` counts the unit's, ``values`` are its D_ registers, ``line`` of the log.

    A BDMA has no groups of registers: its launches count, with the registers as they are then.
    """

    unit: str
    number: int
    group: int
    line: int
    values: dict[str, int]


@dataclass(frozen=True)
class LogDifference:
    """The first register of an operation in which two logs differ; a value is None where the operation is missing."""

    unit: str
    number: int
    register: str
    first: int | None
    second: int | None
    fields: tuple[tuple[str, int, int], ...] = ()


def operations(log: AccessLog) -> list[EnabledUnit]:
    """Every enabling in the log, in order."""
    return list(_operations(log))


def _operations(log: AccessLog) -> Iterator[EnabledUnit]:
    registers = RegisterFile(log.map)
    counts: dict[str, int] = {}
    tables: dict[str, int] = {}
    for access in log.accesses:
        register = log.map.by_address.get(access.address)
        if register is None or access.kind != "write" or access.value is None:
            continue
        registers.write_register(register, access.value)
        unit = registers.units[register.unit]
        unit.enabled[unit.producer] = False  # nothing runs here: a group takes the next operation's writes
        if register.name.startswith("S_LUT_ACCESS"):
            written = f"{register.name}={access.value:x}".encode()
            tables[unit.name] = zlib.crc32(written, tables.get(unit.name, 0))
        launched = register.name.startswith("CFG_LAUNCH")
        if not launched and (register.name != "D_OP_ENABLE" or not access.value & 1):
            continue
        counts[unit.name] = counts.get(unit.name, 0) + 1
        group = int(register.name[-1]) if launched else unit.producer
        values = dict(unit.groups[group].shared if launched else unit.groups[group].values)
        values.pop("D_OP_ENABLE", None)
        if unit.name in tables:
            values["LUT contents"] = tables[unit.name]
        yield EnabledUnit(unit.name, counts[unit.name] - 1, group, access.line, values)


def differences(first: AccessLog, second: AccessLog, mask_addresses: bool = False) -> list[LogDifference]:
    """The first difference of every operation, by unit and number: the order of independent writes does not matter,
    nor which group an operation was in. ``mask_addresses``: addresses of memory may differ."""
    ours, theirs = (
        {(operation.unit, operation.number): operation for operation in operations(log)} for log in (first, second)
    )
    results = []
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if a is None or b is None:
            results.append(
                LogDifference(*key, "(the operation)", int(a is not None) or None, int(b is not None) or None)
            )
            continue
        difference = _first(a, b, first.map, mask_addresses)
        if difference:
            results.append(difference)
    return results


def _first(a: EnabledUnit, b: EnabledUnit, registers: RegisterMap, mask_addresses: bool) -> LogDifference | None:
    for name in sorted({*a.values, *b.values}):
        value, other = a.values.get(name, 0), b.values.get(name, 0)
        if value == other or (mask_addresses and _ADDRESS.match(name)):
            continue
        fields: tuple[tuple[str, int, int], ...] = ()
        if name in registers.units.get(a.unit, {}):
            described = registers.register(a.unit, name).fields.values()
            pairs = [
                (field.name, value >> field.low & field.mask, other >> field.low & field.mask) for field in described
            ]
            fields = tuple(pair for pair in pairs if pair[1] != pair[2])
        return LogDifference(a.unit, a.number, name, value, other, fields)
    return None
