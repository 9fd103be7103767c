"""Structures of the IREE parameter archive, version 0.0 (iree/schemas/parameter_archive.h): little-endian, packed.

A file is a chain of archives. Each begins with a header; its three segments (entry table, metadata, storage) lie at
offsets relative to that header. Names, paths and metadata blobs are ranges of the metadata segment, data are ranges of
the storage segment.
"""

from __future__ import annotations

import ctypes
from ctypes import c_uint8, c_uint16, c_uint32, c_uint64
from enum import IntEnum

MAGIC = 0x41505249  # "IRPA"
HEADER_ALIGNMENT = 16
ENTRY_ALIGNMENT = 16
DATA_ALIGNMENT = 64
FILE_ALIGNMENT = 4096
MAX_PATTERN = 16
#: Pattern lengths that IREE's runtime loads into a module; its tools list and write those of 8 and 16 bytes, too.
FILLED_BY_IREE = (1, 2, 4)
#: Larger alignments than this are refused when writing: padding would swamp the data.
MAX_ALIGNMENT = 1 << 30


class EntryType(IntEnum):
    """What an entry of an archive is."""

    SKIP = 0
    SPLAT = 1
    DATA = 2
    EXTERNAL = 3


class _Structure(ctypes.LittleEndianStructure):
    _pack_ = 1
    _layout_ = "ms"


class Range(_Structure):
    """Bytes of a segment: offset and length."""

    _fields_ = (("offset", c_uint64), ("length", c_uint64))


class HeaderPrefix(_Structure):
    """The part that every version has."""

    _fields_ = (
        ("magic", c_uint32),
        ("version_major", c_uint16),
        ("version_minor", c_uint16),
        ("header_size", c_uint64),
        ("next_header_offset", c_uint64),
        ("flags", c_uint64),
    )


class HeaderV0(_Structure):
    """The header of version 0."""

    _fields_ = (
        ("prefix", HeaderPrefix),
        ("entry_count", c_uint64),
        ("entry_segment", Range),
        ("metadata_segment", Range),
        ("storage_segment", Range),
    )


class EntryHeader(_Structure):
    """``entry_size`` leaves out the padding to the next multiple of 16; ``flags`` is not aligned."""

    _fields_ = (
        ("entry_size", c_uint64),
        ("type", c_uint32),
        ("flags", c_uint64),
        ("name", Range),
        ("metadata", Range),
        ("minimum_alignment", c_uint64),
    )


class SplatEntry(_Structure):
    """An entry that repeats a pattern."""

    _fields_ = (
        ("header", EntryHeader),
        ("length", c_uint64),
        ("pattern", c_uint8 * MAX_PATTERN),
        ("pattern_length", c_uint8),
    )


class DataEntry(_Structure):
    """An entry whose bytes lie in the archive."""

    _fields_ = (("header", EntryHeader), ("storage", Range))


class ExternalEntry(_Structure):
    """``range`` is absolute in the file that ``path`` names."""

    _fields_ = (("header", EntryHeader), ("path", Range), ("range", Range))


PREFIX_SIZE = ctypes.sizeof(HeaderPrefix)
HEADER_SIZE = ctypes.sizeof(HeaderV0)
ENTRY_HEADER_SIZE = ctypes.sizeof(EntryHeader)
ENTRY_STRUCTURES: dict[EntryType, type[_Structure]] = {
    EntryType.SPLAT: SplatEntry,
    EntryType.DATA: DataEntry,
    EntryType.EXTERNAL: ExternalEntry,
}
NEXT_HEADER_FIELD = HeaderPrefix.next_header_offset.offset
TYPE_FIELD = EntryHeader.type.offset
