"""Commands of register traces, and the memory and images that they load.

Each command has the number of its line, which every message names.

NVIDIA's testbench answers at every address; a trace only says which ranges it loads and checks, and surfaces reach
beyond those. So each range is followed by spare memory, ranges that touch become one region, and an address outside
all ranges gets its own region when it is first used. Together they stay below a limit. Spare memory that is
never touched costs nothing: the operating system gives zeroed pages on first use.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from nvdla.emulator.hardware.register_file import Register
from nvdla.emulator.memory.address_space import AddressSpace, Region, Space
from nvdla.errors import FormatError, LinkError, TraceError, sentence
from nvdla.limits import PAGE, Limits
from nvdla.util.files import read_file
from nvdla.util.rounding import align, integer, is_digits

_PACKET = re.compile(rb"\{?\s*offset\s*:\s*(\w+)\s*,\s*size\s*:\s*(\w+)\s*,\s*payload\s*:")
LINE_LIMIT = 1 << 20  # bytes of one line of text: its numbers take many times as much while they are read
_PLAIN = re.compile(rb"\s*(?:0x[0-9a-fA-F]{2}(?:\s+|$))*")
_TEXT_START = re.compile(rb"\s*(\{|#|offset)")


@dataclass(frozen=True)
class MemoryImage:
    """Bytes by offset: ``segments`` are (offset, data), in file order; ``end`` is the first offset after them all."""

    segments: tuple[tuple[int, bytes], ...]

    @property
    def end(self) -> int:
        """First offset after the last byte."""
        return max((offset + len(data) for offset, data in self.segments), default=0)


class TraceFolder:
    """Gives the files that a trace names, and nothing outside the trace's folder.

    ``limit`` bounds the bytes of all images together. An image used twice is read once.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder.resolve()
        self.limit = limit
        self._images: dict[tuple[str, int | None], MemoryImage] = {}
        self._left = limit

    def image(self, name: str, packed_size: int | None = None) -> MemoryImage:
        """The memory image ``name``: packets ``{offset:.., size:.., payload:..}`` or raw bytes.

        With ``packed_size`` the file is the plain hex text of input.txn, of which that many bytes are taken.
        Raises TraceError (without a line: the caller knows it).
        """
        key = (name, packed_size)
        if key not in self._images:
            data = self._read(name)
            if packed_size is not None:
                image = parse_hex_lines(data, packed_size, name)
            elif _TEXT_START.match(data) and not name.endswith(".bin"):
                image = parse_packets(data, name, self._left)
            else:
                image = MemoryImage(((0, data),))
            self._spend(sum(len(piece) for _, piece in image.segments), name)
            self._images[key] = image
        return self._images[key]

    def _spend(self, size: int, name: str) -> None:
        self._left -= size
        if self._left < 0:
            raise TraceError(
                f"file {name!r}: memory images of the trace: must have at most {self.limit} bytes together, got more"
            )

    def _read(self, name: str) -> bytes:
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts or "\\" in name or "\0" in name:
            raise TraceError(f"file {name!r}: must be in the directory of the trace")
        try:
            path = Path(os.path.realpath(self.folder / relative))  # a loop of links has no separate error
            if not path.is_relative_to(self.folder):
                raise TraceError(
                    f"file {name!r}: must be in the directory of the trace ({self.folder}), got a link to {path}"
                )
            if not path.is_file():
                raise TraceError(f"file {name!r}: must be a regular file in {self.folder}")
            return read_file(path, self._left, "memory image")
        except FormatError as error:
            raise TraceError(str(error)) from error
        except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, links in a circle, no UTF-8
            raise TraceError(f"file {name[:80]!r} cannot be looked up: {error}"[:300]) from error


def number(text: str | bytes, what: str, bits: int = 64) -> int:
    """An unsigned number as NVIDIA writes them: 0x hex, decimal, 0b, 0o. Raises TraceError beyond ``bits``."""
    word = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    try:
        value = integer(word, 0)
    except ValueError:
        value = int(word) if len(word) <= 80 and is_digits(word) else -1  # leading zeros: still decimal
    if not 0 <= value < 1 << bits:
        raise TraceError(f"{what}: must be an unsigned number of at most {bits} bits, got {word[:80]!r}")
    return value


def parse_packets(data: bytes, name: str, limit: int) -> MemoryImage:
    """NVIDIA's surface text: one packet a line, lines starting with # are comments (mem_core.svh:m_parse_surface_file).

    A payload shorter than its size is filled up with zeros, as there; ``limit`` bounds the sizes together.
    """
    segments: list[tuple[int, bytearray]] = []
    left, lines = limit, data.count(b"\n") + 1
    for line_number, line in enumerate(data.split(b"\n"), 1):
        text = line.strip()
        if not text.strip(b"{}, \t") or text.startswith(b"#"):
            continue
        match = _PACKET.match(text)
        where = f"{name}:{line_number}"
        words = text[match.end() :].rstrip(b"}, \t") if match else b","
        if not match or b"," in words or b"}" in words or len(words) > LINE_LIMIT:
            cut = " (cut off?)" if line_number == lines and not data.endswith(b"\n") else ""
            raise TraceError(f"{where}: must be a packet {{offset:.., size:.., payload:..}}, got {text[:60]!r}{cut}")
        offset, size = number(match[1], f"{where}: offset"), number(match[2], f"{where}: size")
        payload = _payload(words, where)
        left -= size
        if len(payload) > size or left < 0:
            raise TraceError(
                f"{where}: payload: must have at most {size} bytes (size of the packet, limit {limit}), got "
                f"{len(payload)}"
            )
        if len(payload) < size and line_number == lines and not data.endswith(b"\n"):
            raise TraceError(
                f"{where}: payload of the last packet: must have {size} bytes, got {len(payload)} (cut off?)"
            )
        payload += bytes(size - len(payload))
        if segments and segments[-1][0] + len(segments[-1][1]) == offset:
            segments[-1][1].extend(payload)
        else:
            segments.append((offset, bytearray(payload)))
    return MemoryImage(tuple((offset, bytes(payload)) for offset, payload in segments))


def parse_hex_lines(data: bytes, size: int, name: str) -> MemoryImage:
    """The image form of input.txn: bytes as 0x words on lines that start with 0x, other lines are headers.

    Exactly ``size`` bytes are taken (input_txn_to_verilator.pl); a shorter file is an error.
    """
    payload = bytearray()
    for line_number, line in enumerate(data.split(b"\n"), 1):
        if len(payload) >= size:
            break
        text = line.strip()
        if len(text) > LINE_LIMIT:
            raise TraceError(f"{name}:{line_number}: line: must have at most {LINE_LIMIT} characters, got {len(text)}")
        if text.startswith(b"0x"):
            payload += _payload(text, f"{name}:{line_number}")
    if len(payload) < size:
        raise TraceError(f"file {name!r}: must have at least {size} bytes (command), got {len(payload)} (cut off?)")
    return MemoryImage(((0, bytes(payload[:size])),)) if size else MemoryImage(())


def _payload(text: bytes, where: str) -> bytes:
    """Bytes separated by white space. All two-digit hex, the usual case, takes the fast way."""
    if _PLAIN.fullmatch(text):
        return bytes.fromhex(text.replace(b"0x", b"").decode("ascii"))
    return bytes(number(word, f"{where}: payload byte", 8) for word in text.split())


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
        """Check whether a register's value ends the wait."""
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
    """intr_notify: when this interrupt comes, clear it and trigger ``sync_id``. ``cause`` None = any interrupt."""

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
        ranges = []
        for command in self.commands:
            if isinstance(command, (FillMemory, CheckMemory)) and command.size:
                ranges.append((command.space, command.address, command.size))
            elif isinstance(command, LoadMemory) and command.image.end:
                ranges.append((command.space, command.address, command.image.end))
        return ranges


ROOM = 16 << 20  # spare bytes after each range
_CHUNK = 1 << 24


def _random(address: int, size: int) -> np.ndarray:
    """Reproducible: the address is the seed."""
    return np.random.default_rng(address).integers(0, 256, size, np.uint8)


# mem_init patterns (verif/vip/mem_model/mem_core.svh, init_surface_with_pattern); unknown bits are zero here.
PATTERNS: dict[str, Callable[[int, int], np.ndarray | int]] = {
    "ALL_ZERO": lambda address, size: 0x00,
    "ZEROS": lambda address, size: 0x00,
    "X": lambda address, size: 0x00,
    "ONES": lambda address, size: 0xFF,
    "AFIVE": lambda address, size: 0xA5,
    "FIVEA": lambda address, size: 0x5A,
    "ADDR": lambda address, size: np.arange(address & 0xFF, (address & 0xFF) + size, dtype=np.uint64).astype(np.uint8),
    "RANDOM": _random,
}


class TraceMemory(AddressSpace):
    """An address space made from the ranges of a trace. ``limit``: bytes of all regions together."""

    def __init__(self, ranges: Iterable[tuple[Space, int, int]], limit: int = Limits.memory) -> None:
        super().__init__()
        self.limit = limit
        self.used: list[tuple[Space, int, int]] = []  # what was named or touched, for dumps
        ranges = sorted(set(ranges), key=lambda entry: (entry[0].value, entry[1], entry[2]))
        for space, address, size in ranges:
            if address + size > 1 << 64:
                raise TraceError(
                    f"{space.value} range: must end within 64-bit addresses, got {size} bytes from 0x{address:x}"
                )
        exact = _merge(ranges)
        needed = sum(size + 2 * PAGE for _, _, size in exact)
        if needed > limit:
            raise TraceError(f"memory of the trace: must be at most {limit} bytes, got {needed} in {len(exact)} ranges")
        self._room = min(ROOM, (limit - needed) // (len(exact) + 1)) // PAGE * PAGE
        self._total = 0
        self.used = exact
        for space, address, size in _merge(self._with_room(*extent) for extent in exact):
            self._add(space, address, size)

    def find(self, space: Space, address: int, size: int, what: str = "access") -> Region:
        """Find a region as AddressSpace.find; an address outside all regions gets one, if the limit allows."""
        try:
            return super().find(space, address, size, what)
        except LinkError as error:
            if size <= 0 or address < 0 or address + size > 1 << 64 or not self._is_free(space, address, size):
                raise
            self._grow(space, address, size, error)
            self.used = _merge(
                sorted([*self.used, (space, address, size)], key=lambda entry: (entry[0].value, entry[1]))
            )
            return super().find(space, address, size, what)

    def fill(self, space: Space, address: int, size: int, pattern: str) -> None:
        """mem_init: write a pattern, in pieces so that a large fill needs no second copy of itself."""
        for start in range(0, size, _CHUNK):
            length = min(_CHUNK, size - start)
            view = self.view(space, address + start, length, "mem_init")
            value = PATTERNS[pattern](address + start, length)
            if isinstance(value, int) and value == 0 and not view.any():
                continue  # writing zeros would only make the operating system commit the pages
            view[:] = value

    def crc(self, space: Space, address: int, size: int, what: str) -> int:
        """CRC-32 (as in zip) of a range."""
        return zlib.crc32(self.view(space, address, size, what).data) if size else 0

    def _with_room(self, space: Space, address: int, size: int) -> tuple[Space, int, int]:
        start = address // PAGE * PAGE
        end = min(align(address + size, PAGE) + self._room, 1 << 64)
        return space, start, end - start

    def _add(self, space: Space, address: int, size: int) -> None:
        self._total += size
        self.map(f"{space.value} at 0x{address:x}", space, address, size)

    def _is_free(self, space: Space, address: int, size: int) -> bool:
        return all(region.end <= address or address + size <= region.base for region in self.regions(space))

    def _grow(self, space: Space, address: int, size: int, error: LinkError) -> None:
        if self._total + size + 2 * PAGE > self.limit:
            problem = f"{sentence(error)} A region for it would exceed the limit of {self.limit} bytes."
            raise LinkError(problem) from error
        start, end = address // PAGE * PAGE, align(address + size, PAGE)
        spare = min(self._room, self.limit - self._total - (end - start)) // PAGE * PAGE
        end = min(end + spare, 1 << 64)
        for region in self.regions(space):
            if region.base >= address + size:
                end = min(end, region.base)
            if region.end <= address:
                start = max(start, region.end)
        self._add(space, start, end - start)


def _merge(ranges: Iterable[tuple[Space, int, int]]) -> list[tuple[Space, int, int]]:
    """Join ranges (sorted by space and address) that overlap or touch."""
    merged: list[tuple[Space, int, int]] = []
    for space, address, size in ranges:
        if merged and merged[-1][0] == space and address <= merged[-1][1] + merged[-1][2]:
            start = merged[-1][1]
            merged[-1] = (space, start, max(merged[-1][2], address + size - start))
        else:
            merged.append((space, address, size))
    return merged
