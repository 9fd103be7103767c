"""What lies around the FlatBuffer of a module: nothing, a size prefix, a ZIP archive.

A (until 2022-05): a bare FlatBuffer. B (from 2022-06): u32 size, FlatBuffer, then rodata at multiples of 64 bytes; by
default inside a ZIP archive of stored members (``module.fb`` first, then one member an executable), padded so that
members are aligned. IREE skips the first local header and never looks at the rest of the ZIP
(iree/vm/bytecode/archive.c); neither does reading here.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from nvdla.containers.registry import Source
from nvdla.errors import FormatError
from nvdla.rounding import align

IDENTIFIER = b"IREE"
ALIGNMENT = 64
MEMBER_ALIGNMENT = 16
LOCAL_MAGIC, CENTRAL_MAGIC, END_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
LOCAL_SIZE, CENTRAL_SIZE = 30, 46
MODULE_MEMBER = "module.fb"


@dataclass(frozen=True)
class Wrapping:
    """``kind`` is bare, size-prefixed, zip+size-prefixed or zip+bare. Offsets are absolute in the file: of the module
    (its size prefix, if it has one), of the FlatBuffer, and of the rodata behind it (None for bare ones)."""

    kind: str
    module_offset: int
    flatbuffer_offset: int
    flatbuffer_length: int
    rodata_offset: int | None


@dataclass(frozen=True)
class WrappedMember:
    """A local header of the ZIP archive."""

    name: str
    header_offset: int
    data_offset: int


def find(source: Source) -> Wrapping:
    """Where the FlatBuffer is. FormatError with the reason when there is none."""
    data = source.data
    start, kind = 0, ""
    if bytes(data[:4]) == LOCAL_MAGIC:
        member = local_member(data, 0)
        if member is None:
            raise FormatError(f"{source.name}: a ZIP archive whose first header does not fit the file (cut off?)")
        start, kind = member.data_offset, "zip+"
    left = len(data) - start
    if left < 16:
        raise FormatError(f"{source.name}: {left} bytes at byte {start}, a module has at least 16 (cut off?)")
    if bytes(data[start + 4 : start + 8]) == IDENTIFIER:
        return Wrapping(f"{kind}bare", start, start, left, None)
    if bytes(data[start + 8 : start + 12]) != IDENTIFIER:
        raise FormatError(
            f"{source.name}: no FlatBuffer with identifier IREE at byte {start}: it would have the "
            "identifier 4 bytes on, or 8 with a size prefix"
        )
    size = int.from_bytes(data[start : start + 4], "little")
    if size > left - 4:
        raise FormatError(
            f"{source.name}: the size prefix at byte {start} says {size} bytes, the file has {left - 4} "
            "after it (cut off?), or the prefix is wrong"
        )
    end = start + 4 + size
    return Wrapping(f"{kind}size-prefixed", start, start + 4, size, align(end, ALIGNMENT))


def local_member(data: memoryview, offset: int) -> WrappedMember | None:
    """The ZIP member whose local header is at ``offset``; None when there is none, or it does not fit."""
    if bytes(data[offset : offset + 4]) != LOCAL_MAGIC or offset + LOCAL_SIZE > len(data):
        return None
    name_length, extra_length = struct.unpack_from("<HH", data, offset + 26)
    start = offset + LOCAL_SIZE + name_length + extra_length
    if start > len(data):
        return None
    name = bytes(data[offset + LOCAL_SIZE : offset + LOCAL_SIZE + name_length]).decode("utf-8", "replace")
    return WrappedMember(name, offset, start)


def has_central_directory(data: memoryview) -> bool:
    """Whether the file ends with a ZIP directory (ZIP tools need it, IREE does not)."""
    tail = bytes(data[-(1 << 16) - 22 :])
    return END_MAGIC in tail


def header_length(name: str) -> int:
    """Bytes of a member's local header without padding, as IREE's compiler writes it."""
    return LOCAL_SIZE + len(name.encode("utf-8", "replace")) + 4 + 20


def zip_members(members: Sequence[tuple[str, bytes | memoryview]], alignments: Sequence[int] = ()) -> bytes:
    """A ZIP archive as IREE's compiler writes it (ArchiveWriter.cpp): stored, ZIP64 directory, fixed time stamps.

    The first member lies at a multiple of 64 bytes and the others of 16 (or of ``alignments``, one for each behind the
    first), by way of a padding field (0xFECA) before the ZIP64 field. The compiler forgets the size prefix when it
    counts the bytes of module.fb, so ZIP tools extract 4 bytes too few; the bytes written here are the same."""
    body, directory = bytearray(), bytearray()
    wanted = [ALIGNMENT, *(alignments or [MEMBER_ALIGNMENT] * len(members))]
    for (name, content), alignment in zip(members, wanted, strict=False):
        encoded = name.encode("utf-8", "replace")
        header_at = len(body)
        padding = -(header_at + header_length(name)) % alignment
        size = len(content) - (4 if name == MODULE_MEMBER and not body else 0)
        checksum = zlib.crc32(content[:size])
        extra = struct.pack("<HH", 0xFECA, padding) + bytes(padding) + struct.pack("<HHQQ", 1, 16, size, size)
        body += (
            struct.pack(
                "<4s5H3I2H", LOCAL_MAGIC, 45, 0, 0, 0, 33, checksum, 0xFFFFFFFF, 0xFFFFFFFF, len(encoded), len(extra)
            )
            + encoded
            + extra
            + content
        )
        directory += struct.pack(
            "<4s6H3I5H2I",
            CENTRAL_MAGIC,
            798,
            45,
            0,
            0,
            0,
            33,
            checksum,
            0xFFFFFFFF,
            0xFFFFFFFF,
            len(encoded),
            28,
            0,
            0,
            0,
            0,
            0xFFFFFFFF,
        )
        directory += encoded + struct.pack("<HHQQQ", 1, 24, size, size, header_at)
    count, at = len(members), len(body)
    end64 = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), at)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, at + len(directory), 1)
    end = struct.pack("<4sHHHHIIH", END_MAGIC, 0, 0, count, count, len(directory), 0xFFFFFFFF, 0)
    return bytes(body + directory + end64 + locator + end)
