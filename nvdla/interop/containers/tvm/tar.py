"""Plain tar archives, read with views and written again byte for byte.

Own code instead of the standard library's: every member keeps its raw blocks, so an unchanged archive is written back
byte for byte, with its extension headers. Damaged input has one way to fail, in time and memory linear in its size.
Old, ustar, GNU (long names) and pax headers are read; sparse files, links and devices are listed but have no data.
Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nvdla.errors import FormatError
from nvdla.util.rounding import align, is_digits

BLOCK = 512
#: tar files are padded to whole records of 20 blocks.
RECORD = 20 * BLOCK
_CHECKSUM = slice(148, 156)
_FILE_TYPES = frozenset(b"0\0" + b"7")
_KINDS = {ord("5"): "dir", ord("1"): "link", ord("2"): "link"}
_EXTENSIONS = frozenset(b"xgLK")
#: pax records that matter here.
_USED = frozenset({"path", "linkpath", "size", "mtime"})


@dataclass(frozen=True)
class TarMember:
    """One thing in the archive. ``path`` is as stored (``./codegen/host``), ``kind`` "file", "dir", "link" or "other".

    ``raw`` views everything that belongs to it, from its first extension header to the padding after its data."""

    path: str
    kind: str
    data: memoryview
    mode: int = 0o644
    mtime: int = 0
    link: str = ""
    offset: int | None = None
    raw: memoryview | None = None

    @property
    def size(self) -> int:
        """Bytes of it."""
        return len(self.data)

    @property
    def name(self) -> str:
        """The path without the leading ``./`` and a trailing ``/``; "." for the root."""
        return clean(self.path)


@dataclass(frozen=True)
class TarArchive:
    """The members in order, and the bytes from the end marker on (empty where the archive just stops)."""

    members: tuple[TarMember, ...]
    tail: memoryview
    size: int

    @property
    def ended(self) -> bool:
        """Check whether the two zero blocks that end a tar file exist."""
        return len(self.tail) >= 2 * BLOCK and not any(self.tail[: 2 * BLOCK])

    @property
    def junk(self) -> bool:
        """Check whether something other than zeros follows the end."""
        return any(bytes(self.tail).lstrip(b"\0")[:1])


def clean(path: str) -> str:
    """A stored path as the plain relative path that it means: no ``.`` parts, no doubled or trailing slashes."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    prefix = "/" if path.startswith("/") else ""
    return prefix + "/".join(parts) or "."


def unsafe(member: TarMember) -> str | None:
    """Why this member must not be written to a folder, None where it may."""
    if member.kind == "link":
        return f"is a link to {member.link!r}"
    if member.kind == "other":
        return "is neither a file nor a directory"
    if member.path.startswith(("/", "\\")) or member.path[1:2] == ":":
        return "has an absolute path"
    if ".." in member.path.replace("\\", "/").split("/"):
        return "leads out of the directory by '..'"
    if any(ord(c) < 32 or c == "\\" for c in member.path):
        return "has a backslash or control characters in its path"
    return None


def looks_like_tar(header: bytes) -> bool:
    """Check whether the first block is a tar header: its magic, or (old archives) its checksum."""
    return len(header) >= BLOCK and _checksum_fits(header[:BLOCK])


def read(data: memoryview) -> TarArchive:
    """All members. FormatError for a header whose checksum or numbers are wrong, and for data that ends early."""
    members: list[TarMember] = []
    offset = 0
    while offset + BLOCK <= len(data) and any(data[offset : offset + BLOCK]):
        start = offset
        records: dict[str, str] = {}
        header, content, offset = _next(data, offset, records)
        while header[156] in _EXTENSIONS:
            _extend(header[156], content, records, start)
            header, content, offset = _next(data, offset, records)
        members.append(_member(header, content, records, start, data[start:offset]))
    if offset < len(data) and not members:
        raise FormatError("must be a tar archive that is not empty, got no header at byte 0")
    return TarArchive(tuple(members), data[offset:], len(data))


def _next(data: memoryview, offset: int, records: dict[str, str]) -> tuple[bytes, memoryview, int]:
    """The header at ``offset``, its data, and where the next header is."""
    header = _header(data, offset)
    kind = header[156]
    size = _number(header, 124, 12, offset) if kind in _EXTENSIONS else _size(header, records, offset)
    return header, *_content(data, offset, 0 if kind in b"123456" else size)


def _header(data: memoryview, offset: int) -> bytes:
    block = bytes(data[offset : offset + BLOCK])
    if len(block) < BLOCK:
        raise FormatError(f"tar archive: header at byte {offset}: must be complete (cut off?)")
    if not _checksum_fits(block):
        raise FormatError(f"tar header at byte {offset}: checksum: must be correct (damaged?)")
    return block


def _checksum_fits(block: bytes) -> bool:
    stored = block[_CHECKSUM].strip(b" \0")
    if not stored or any(c not in b"01234567" for c in stored):
        return False
    return int(stored, 8) == _checksum(block)


def _checksum(block: bytes) -> int:
    """Sum of the header's bytes with its own field taken as blanks."""
    return sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")


def _number(block: bytes, at: int, width: int, offset: int) -> int:
    """An octal field, or GNU's base 256 where the first bit is set."""
    field = block[at : at + width]
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or value >> 63:
            raise FormatError(f"number in the tar header at byte {offset}: must not be negative or too large")
        return value
    text = field.split(b"\0")[0].strip(b" ")
    if any(c not in b"01234567" for c in text):
        raise FormatError(f"number in the tar header at byte {offset}: must be octal, got {text!r}")
    return int(text or b"0", 8)


def _size(header: bytes, records: dict[str, str], offset: int) -> int:
    """Size of the member's data; a pax record overrides the header's field."""
    stated = records.get("size")
    if stated is None:
        return _number(header, 124, 12, offset)
    if not (is_digits(stated) and len(stated) < 20):
        raise FormatError(f"pax size before the tar header at byte {offset}: must be a number, got {stated[:40]!r}")
    return int(stated)


def _content(data: memoryview, offset: int, size: int) -> tuple[memoryview, int]:
    """The data after a header, and where the next header begins."""
    start = offset + BLOCK
    if size > len(data) - start:
        raise FormatError(
            f"tar archive: member at byte {offset}: must have {size} bytes, got {len(data) - start} (cut off?)"
        )
    return data[start : start + size], min(start + align(size, BLOCK), len(data))


def _extend(kind: int, content: memoryview, records: dict[str, str], offset: int) -> None:
    """Apply an extension header to the next member. Global ones are only checked: what is used here
    (path, link, size) makes no sense for more than one member."""
    if kind == ord("L"):
        records["path"] = _text(bytes(content).split(b"\0")[0])
    elif kind == ord("K"):
        records["linkpath"] = _text(bytes(content).split(b"\0")[0])
    else:
        known = {key: value for key, value in _pax_records(bytes(content), offset) if key in _USED}
        records.update(known if kind == ord("x") else {})


def _pax_records(content: bytes, offset: int) -> Iterator[tuple[str, str]]:
    """``length key=value`` lines, the length counting itself."""
    at = 0
    while at < len(content) and content[at]:
        blank = content.find(b" ", at, at + 12)
        digits = content[at:blank] if blank > at else b""
        length = int(digits) if digits.isdigit() else 0
        if not blank - at + 3 <= length <= len(content) - at or content[at + length - 1] != ord("\n"):
            raise FormatError(
                f"pax header at byte {offset}: length of a record: must be that of its line, got {length}"
            )
        key, equals, value = content[blank + 1 : at + length - 1].partition(b"=")
        if not equals:
            raise FormatError(f"pax header at byte {offset}: a record: must contain '='")
        yield _text(key), _text(value)
        at += length


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _member(header: bytes, content: memoryview, records: dict[str, str], start: int, raw: memoryview) -> TarMember:
    name = _text(header[:100].split(b"\0")[0])
    prefix = _text(header[345:500].split(b"\0")[0]) if header[257:263] == b"ustar\0" else ""
    path = records.get("path", f"{prefix}/{name}" if prefix else name)
    kind = _KINDS.get(header[156], "file" if header[156] in _FILE_TYPES else "other")
    if kind == "file" and path.endswith("/"):
        kind = "dir"  # old archives mark folders by the slash alone
    if kind == "dir":
        path = path.rstrip("/") or "/"
    link = records.get("linkpath", _text(header[157:257].split(b"\0")[0]))
    return TarMember(
        path,
        kind,
        content if kind == "file" else content[:0],
        _number(header, 100, 8, start) & 0o7777,
        _mtime(header, records, start),
        link if kind == "link" else "",
        start,
        raw,
    )


def _mtime(header: bytes, records: dict[str, str], offset: int) -> int:
    """Seconds since 1970; pax writes fractions, and 0 in the header's own field."""
    seconds = records.get("mtime", "").split(".")[0]
    return int(seconds) if is_digits(seconds) and len(seconds) < 12 else (_number(header, 136, 12, offset))


def write(members: Iterable[TarMember], tail: memoryview | bytes | None = None) -> bytes:
    """An archive. Members that carry ``raw`` are copied as they are; others get a plain ustar header owned by root, as
    TVM writes. ``tail`` is what follows the last member, by default the end marker, padded to a whole record."""
    parts: list[bytes | memoryview] = []
    for member in members:
        parts += [member.raw] if member.raw is not None else _blocks(member)
    if tail is None:
        size = sum(map(len, parts)) + 2 * BLOCK
        tail = bytes(2 * BLOCK + -size % RECORD)
    return b"".join([*parts, tail])


def _blocks(member: TarMember) -> list[bytes | memoryview]:
    path = member.path + "/" if member.kind == "dir" and not member.path.endswith("/") else member.path
    prefix, name = _split(path.encode("utf-8"))
    kind = {"dir": b"5", "file": b"0"}.get(member.kind)
    if kind is None:
        raise FormatError(f"{member.path!r}: must be a file or directory")
    if member.size >> 33:
        raise FormatError(f"{member.path!r}: must be smaller than 8 GiB for tar, got {member.size} bytes")
    block = b"".join([
        name.ljust(100, b"\0"), b"%07o\0" % (member.mode & 0o7777), b"0000000\0", b"0000000\0",
        b"%011o\0" % member.size, b"%011o\0" % (member.mtime & ((1 << 33) - 1)), b" " * 8, kind, bytes(100),
        b"ustar\x0000", b"root".ljust(32, b"\0"), b"root".ljust(32, b"\0"), b"0000000\0", b"0000000\0",
        prefix.ljust(155, b"\0"), bytes(12),
    ])  # fmt: skip
    return [block[:148] + b"%06o\0 " % _checksum(block) + block[156:], member.data, bytes(-member.size % BLOCK)]


def _split(path: bytes) -> tuple[bytes, bytes]:
    """A path as ustar's prefix and name."""
    if len(path) <= 100:
        return b"", path
    cut = path.find(b"/", len(path) - 101, len(path) - 1)  # the first slash that leaves a name of at most 100 bytes
    if not 0 < cut <= 155:
        raise FormatError(
            f"path {path[:60].decode('utf-8', 'replace')!r}...: must fit the header of a tar archive, got "
            f"{len(path)} bytes"
        )
    return path[:cut], path[cut + 1 :]
