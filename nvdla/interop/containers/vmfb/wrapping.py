"""Envelopes and generations of IREE modules.

A (until 2022-05): a bare FlatBuffer. B (from 2022-06): u32 size, FlatBuffer, then rodata at multiples of 64 bytes; by
default inside a ZIP archive of stored members (``module.fb`` first, then one member an executable), padded so that
members are aligned. IREE skips the first local header and never looks at the rest of the ZIP
(iree/vm/bytecode/archive.c); neither does reading here.

The schema declares no field numbers, so each field inserted in the middle moved all after it. A generation is declared
as what changed against the one before (runtime/src/iree/schemas/bytecode_module_def.fbs in IREE's history; dates are
those of the commits). ``versions`` are the major bytecode versions that modules of the generation carry; modules before
2022-05-16 carry none.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import Source
from nvdla.util.rounding import align

IDENTIFIER = b"IREE"
ALIGNMENT = 64
MEMBER_ALIGNMENT = 16
LOCAL_MAGIC, CENTRAL_MAGIC, END_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
LOCAL_SIZE = 30
MODULE_MEMBER = "module.fb"


@dataclass(frozen=True)
class Wrapping:
    """``kind`` is bare, size-prefixed, zip+size-prefixed or zip+bare. Offsets are absolute in the file: of the module
    (its size prefix, if it has one), of the FlatBuffer, and of the rodata after it (None for bare ones)."""

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
    """Return the position of the FlatBuffer. FormatError with the reason when there is none."""
    data = source.data
    start, kind = 0, ""
    if bytes(data[:4]) == LOCAL_MAGIC:
        member = local_member(data, 0)
        if member is None:
            raise FormatError(f"{source.name}: first header of the ZIP archive: must fit the file (cut off?)")
        start, kind = member.data_offset, "zip+"
    left = len(data) - start
    if left < 16:
        raise FormatError(f"{source.name}: module at byte {start}: must have at least 16 bytes, got {left} (cut off?)")
    if bytes(data[start + 4 : start + 8]) == IDENTIFIER:
        return Wrapping(f"{kind}bare", start, start, left, None)
    if bytes(data[start + 8 : start + 12]) != IDENTIFIER:
        raise FormatError(
            f"{source.name}: FlatBuffer at byte {start}: must have the identifier IREE 4 bytes later, "
            "or 8 with a size prefix"
        )
    size = int.from_bytes(data[start : start + 4], "little")
    if size > left - 4:
        raise FormatError(
            f"{source.name}: size prefix at byte {start}: must be at most {left - 4} (rest of the file), "
            f"got {size} (cut off?)"
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
    """Check whether the file ends with a ZIP directory (ZIP tools need it, IREE does not)."""
    tail = bytes(data[-(1 << 16) - 22 :])
    return END_MAGIC in tail


def header_length(name: str) -> int:
    """Bytes of a member's local header without padding, as IREE's compiler writes it."""
    return LOCAL_SIZE + len(name.encode("utf-8", "replace")) + 4 + 20


def zip_members(members: Sequence[tuple[str, bytes | memoryview]], alignments: Sequence[int] = ()) -> bytes:
    """A ZIP archive as IREE's compiler writes it (ArchiveWriter.cpp): stored, ZIP64 directory, fixed time stamps.

    The first member is at a multiple of 64 bytes and the others of 16 (or of ``alignments``, one for each after the
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


#: table -> its fields in slot order
Schema = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Generation:
    """``descriptor_size``: bytes of a FunctionDescriptor structure."""

    name: str
    schema: Schema
    versions: range | None
    descriptor_size: int = 12
    #: True if the file begins with the FlatBuffer's size, so that rodata can follow it.
    is_prefixed: bool = False

    def slot(self, table: str, field: str) -> int | None:
        """The number of a field in this generation's schema, None where it has none."""
        fields = self.schema[table]
        return fields.index(field) if field in fields else None


_FIRST: dict[str, tuple[str, ...]] = {
    "AttrDef": ("key", "value"),
    "TypeDef": ("full_name",),
    "FunctionSignatureDef": ("argument_types", "result_types", "calling_convention", "attrs"),
    "ImportFunctionDef": ("full_name", "signature"),
    "ExportFunctionDef": ("local_name", "signature", "internal_ordinal"),
    "ModuleDependencyDef": ("name", "minimum_version", "flags"),
    "RodataSegmentDef": ("compression_type_type", "compression_type", "embedded_data"),
    "RwdataSegmentDef": ("byte_size",),
    "ModuleStateDef": ("global_bytes_capacity", "global_ref_count"),
    "CallSiteLocDef": ("callee", "caller"),
    "FileLineColLocDef": ("filename", "line", "column"),
    "FusedLocDef": ("metadata", "locations"),
    "NameLocDef": ("name", "child_location"),
    "FunctionSourceMapDef": ("locations",),
    "DebugDatabaseDef": ("location_table_type", "location_table", "functions"),
    "BytecodeModuleDef": (
        "name",
        "types",
        "imported_functions",
        "exported_functions",
        "internal_functions",
        "rodata_segments",
        "rwdata_segments",
        "module_state",
        "function_descriptors",
        "bytecode_data",
        "debug_database",
    ),
}

_Change = Mapping[str, tuple[str, ...]]


def _insert(fields: tuple[str, ...], field: str, after: str) -> tuple[str, ...]:
    at = fields.index(after) + 1
    return (*fields[:at], field, *fields[at:])


def _without(fields: tuple[str, ...], *gone: str) -> tuple[str, ...]:
    return tuple(f for f in fields if f not in gone)


def _generations() -> list[Generation]:
    """Oldest first."""
    schema = dict(_FIRST)
    result: list[Generation] = []

    def generation(name: str, versions: range | None, changes: _Change, size: int = 12, prefixed: bool = False) -> None:
        schema.update(changes)
        result.append(Generation(name, MappingProxyType(dict(schema)), versions, size, prefixed))

    root = _FIRST["BytecodeModuleDef"]
    generation("2021-08-09 2e711d471c", None, {})
    root = _without(root, "internal_functions")
    generation("2021-09-16 83ea4e0d18", None, {"BytecodeModuleDef": root})
    generation("2022-04-19 79495f454f", None, {"ImportFunctionDef": ("full_name", "signature", "flags")})
    root = _insert(root, "bytecode_version", after="function_descriptors")
    generation("2022-05-16 66162780a4", range(3), {"BytecodeModuleDef": root})
    rodata = (
        "compression_type_type",
        "compression_type",
        "embedded_data",
        "external_data_offset",
        "external_data_length",
    )
    generation("2022-05-26 795070fe11", range(2, 4), {"RodataSegmentDef": rodata}, prefixed=True)
    generation(
        "2022-06-22 2cb393d345", range(3, 5), {"FunctionSourceMapDef": ("local_name", "locations")}, prefixed=True
    )
    signature = ("calling_convention", "attrs")
    generation("2022-06-27 6c20d14d60", range(4, 5), {"FunctionSignatureDef": signature}, prefixed=True)
    root = _insert(root, "attrs", after="name")
    generation("2022-06-28 1d60c18b21", range(5, 7), {"BytecodeModuleDef": root}, prefixed=True)
    root = _insert(_insert(root, "version", after="name"), "dependencies", after="types")
    generation("2022-08-08 6b8387ca5c", range(7, 14), {"BytecodeModuleDef": root}, prefixed=True)
    root = _insert(_insert(root, "requirements", after="version"), "function_signatures", after="exported_functions")
    changes = {"BytecodeModuleDef": root, "ExportFunctionDef": ("local_name", "internal_ordinal")}
    generation("2023-03-03 91e73d3969", range(14, 17), changes, 20, True)
    generation("2026-01-12 97bc62cd66", range(17, 1 << 16), {}, 20, True)
    return result


GENERATIONS: tuple[Generation, ...] = tuple(_generations())

#: Major bytecode version -> (first, last) day of IREE sources whose runtime loads it; a runtime takes exactly one.
VERSION_DATES: Mapping[int, tuple[str, str]] = MappingProxyType({
    0: ("2022-05-16", "2022-05-16"), 1: ("2022-05-16", "2022-05-23"), 2: ("2022-05-19", "2022-06-13"),
    3: ("2022-06-13", "2022-06-23"), 4: ("2022-06-23", "2022-06-28"), 5: ("2022-06-28", "2022-07-25"),
    6: ("2022-07-25", "2022-08-08"), 7: ("2022-08-08", "2022-08-22"), 8: ("2022-08-22", "2022-08-22"),
    9: ("2022-08-22", "2022-08-23"), 10: ("2022-08-23", "2022-09-12"), 11: ("2022-09-12", "2022-09-13"),
    12: ("2022-09-13", "2022-09-26"), 13: ("2022-09-26", "2023-02-24"), 14: ("2023-02-24", "2023-03-04"),
    15: ("2023-03-04", "2026-01-06"), 16: ("2026-01-06", "2026-01-12"), 17: ("2026-01-12", "now"),
})  # fmt: skip


def loaders(version: int | None) -> str:
    """Which IREE can load a module of this major bytecode version, for people."""
    if version is None:
        return "IREE before 2022-05-16 (modules carried no version; none that is still distributed)"
    if version not in VERSION_DATES:
        return f"unknown: bytecode version {version} is newer than any known here"
    first, last = VERSION_DATES[version]
    return f"IREE of {first} to {last}, whose runtimes take bytecode version {version} only"
