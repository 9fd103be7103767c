"""Reader of IREE parameter archives: layout, entries, metadata.

A file is a chain of archives. Each begins with a header; its three segments (entry table, metadata, storage) are at
offsets relative to that header. Names, paths and metadata blobs are ranges of the metadata segment, data are ranges of
the storage segment.

Offsets are 64-bit in the file and unbounded here, so nothing wraps; a link points forward, so a chain that stays in
the file ends. Entry tables, names and metadata blobs may together not take more bytes than the file has: real tables
do not overlap, and tables that do could be made to cost the square of the file's size.

The archive itself stores neither. IREE's Python writers add a JSON blob after the prefix ``TENSORv0:`` (before:
``PYTORCH:``), with PyTorch's or numpy's names of the element type; archives converted from other formats carry none.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping
from ctypes import Structure, c_uint8, c_uint16, c_uint32, c_uint64
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NoReturn

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import FileFinding, Severity, Source
from nvdla.tensors.parameters import ELEMENT_BITS, Parameter, packed_size
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.rounding import align

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
    """Kind of an archive's entry."""

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
    """An entry whose bytes are in the archive."""

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


@dataclass(frozen=True)
class Header:
    """One archive of the chain. Offsets are absolute in the file, lengths in bytes."""

    index: int
    offset: int
    next_offset: int | None
    flags: int
    entry_count: int
    entries: tuple[int, int]
    metadata: tuple[int, int]
    storage: tuple[int, int]
    #: Where parsing of the entry table ended (after the last counted entry and its padding).
    entries_end: int = 0

    @property
    def end(self) -> int:
        """First byte after everything this header claims."""
        spans = (self.entries, self.metadata, self.storage)
        return max(self.offset + HEADER_SIZE, *(start + length for start, length in spans))


@dataclass(frozen=True)
class IrpaItem:
    """One entry. ``name`` is UTF-8 with undecodable bytes as surrogates; ``offset`` is the absolute offset of DATA, and
    of EXTERNAL data in its own file; ``record`` the absolute offset of the entry in the table."""

    kind: EntryType
    name: str
    metadata: memoryview
    length: int
    header: int
    record: int
    flags: int
    minimum_alignment: int
    offset: int | None = None
    data: memoryview | None = None
    pattern: bytes | None = None
    path: str | None = None

    @property
    def name_bytes(self) -> bytes:
        """The name as the file holds it."""
        return self.name.encode("utf-8", "surrogateescape")


@dataclass
class IrpaArchive:
    """A parsed file: its chain of headers and its entries in order, SKIP entries apart."""

    source: Source
    headers: list[Header] = field(default_factory=list)
    entries: list[IrpaItem] = field(default_factory=list)
    skipped: list[IrpaItem] = field(default_factory=list)
    problems: list[FileFinding] = field(default_factory=list)
    #: External files that were opened, by their path: each is mapped once.
    externals: dict[Path, Source] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[IrpaItem]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> IrpaItem:
        """The first entry of this name, as IREE looks it up."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise FormatError(
            f"{self.source.name}: parameter: must be in the archive, got {name!r}. 'nvdla container list' shows "
            "the names."
        )

    def external_data(self, entry: IrpaItem, folder: Path | None) -> memoryview:
        """The bytes of an EXTERNAL entry, from a file below ``folder`` and nowhere else."""
        if folder is None:
            raise FormatError(
                f"{self.source.name}: parameter {entry.name!r} is in the external file {entry.path!r}. "
                "Name the directory that may be read: --option external=DIR."
            )
        root = folder.resolve()
        try:
            path = (root / str(entry.path)).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise FormatError(f"{self.source.name}: external path {entry.path!r}: {error}") from None
        if root not in path.parents:
            raise FormatError(
                f"{self.source.name}: parameter {entry.name!r}: external file: must be in {folder} "
                f"(option external), got {entry.path!r}"
            )
        if not path.is_file():
            raise FormatError(
                f"{self.source.name}: parameter {entry.name!r}: external file: must be a regular file, got {path}"
            )
        data = self.externals.setdefault(path, Source.of(path)).data
        start = entry.offset or 0
        if start > len(data) or entry.length > len(data) - start:
            raise FormatError(
                f"{self.source.name}: parameter {entry.name!r}: end: must be at most {len(data)} "
                f"(size of {path}), got {start + entry.length}"
            )
        return data[start : start + entry.length]


@by_annotations
def read(source: Source | bytes | memoryview | str | Path, offset: int = 0, keep_going: bool = False) -> IrpaArchive:
    """Parses the chain that begins at byte ``offset``. Raises FormatError at the first fault, or with ``keep_going``
    collects faults in ``problems`` and goes on with what can still be read."""
    return _Parser(Source.of(source), keep_going).run(offset)


class _StopChainError(Exception):
    """Nothing after this point of the chain can be read."""


class _Parser:
    def __init__(self, source: Source, keep_going: bool) -> None:
        self.source = source
        self.data = source.data
        self.keep_going = keep_going
        self.archive = IrpaArchive(source)
        self.table_budget = len(self.data)
        self.name_budget = len(self.data)
        self.blob_budget = len(self.data)
        self.blobs: set[tuple[int, int]] = set()

    def run(self, offset: int) -> IrpaArchive:
        here: int | None = offset
        while here is not None:
            try:
                header = self.read_header(here)
            except _StopChainError:
                break
            end = self.read_entries(header)
            self.archive.headers.append(Header(**{**vars(header), "entries_end": end}))
            here = header.next_offset
        return self.archive

    def fault(self, where: str, offset: int | None, message: str) -> None:
        if not self.keep_going:
            at = "" if offset is None else f" at byte {offset}"
            raise FormatError(f"{self.source.name}: {where}{at}: {message}")
        self.archive.problems.append(FileFinding(Severity.ERROR, where, offset, message))

    def stop(self, where: str, offset: int, message: str) -> NoReturn:
        self.fault(where, offset, message)
        raise _StopChainError

    def view(self, start: int, length: int) -> memoryview:
        return self.data[start : start + length]

    def structure(self, kind: type[Structure], offset: int) -> Structure:
        return kind.from_buffer_copy(self.view(offset, ctypes.sizeof(kind)))

    def read_header(self, offset: int) -> Header:
        index = len(self.archive.headers)
        where = f"header {index}"
        size = len(self.data)
        if offset + PREFIX_SIZE > size:
            cycle = ": it needs more than 64 bits, and readers that wrap around would loop" if offset >> 64 else ""
            self.stop(
                where,
                offset,
                f"end of the archive header: must be at most {size} (file size), got {offset + HEADER_SIZE} (cut off?)"
                + (f". The link of the header before it is wrong{cycle}." if index else ""),
            )
        prefix = self.structure(HeaderPrefix, offset)
        if prefix.magic != MAGIC:
            self.stop(where, offset, f"magic: must be 0x{MAGIC:08x} (IRPA), got 0x{prefix.magic:08x}")
        if (prefix.version_major, prefix.version_minor) != (0, 0):
            self.stop(where, offset + 4, f"version: must be 0.0, got {prefix.version_major}.{prefix.version_minor}")
        if prefix.header_size != HEADER_SIZE:
            self.stop(where, offset + 8, f"header_size: must be {HEADER_SIZE} in version 0.0, got {prefix.header_size}")
        if offset + HEADER_SIZE > size:
            self.stop(
                where,
                offset,
                f"end of the header: must be at most {size} (file size), got {offset + HEADER_SIZE} (cut off?)",
            )
        raw = self.structure(HeaderV0, offset)
        spans = {
            name: self.segment(where, offset, name, getattr(raw, f"{name}_segment"))
            for name in ("entry", "metadata", "storage")
        }
        following = offset + prefix.next_header_offset if prefix.next_header_offset else None
        return Header(
            index, offset, following, prefix.flags, raw.entry_count, spans["entry"], spans["metadata"], spans["storage"]
        )

    def segment(self, where: str, base: int, name: str, span: Structure) -> tuple[int, int]:
        start, size = base + span.offset, len(self.data)
        if start > size or span.length > size - start:
            self.fault(
                f"{where}, {name} segment",
                base,
                f"end: must be at most {size} (file size), got {start + span.length} (cut off?)",
            )
            return min(start, size), 0
        return start, span.length

    def read_entries(self, header: Header) -> int:
        """Parses the entry table; returns where it ended."""
        start, length = header.entries
        self.table_budget -= length
        if self.table_budget < 0:
            self.fault(
                f"header {header.index}, entry segment",
                start,
                "entry tables: must not be longer than the file together: they overlap",
            )
            return start
        here, end = start, start + length
        for number in range(header.entry_count):
            where = f"header {header.index}, entry {number}"
            if end - here < ENTRY_HEADER_SIZE:
                self.fault(
                    where,
                    here,
                    f"entry table: must have {header.entry_count} entries of at least {ENTRY_HEADER_SIZE} bytes, "
                    f"got {number} before its end at byte {end}",
                )
                break
            raw = self.structure(EntryHeader, here)
            if not ENTRY_HEADER_SIZE <= raw.entry_size <= end - here:
                self.fault(
                    where,
                    here,
                    f"entry_size: must be {ENTRY_HEADER_SIZE} to {end - here} (the end of the table), "
                    f"got {raw.entry_size}",
                )
                break
            self.read_entry(header, where, here, raw)
            # Padding counts from the start of the table, as IREE's parser has it.
            here = min(end, start + align(here - start + raw.entry_size, ENTRY_ALIGNMENT))
        return here

    def read_entry(self, header: Header, where: str, here: int, raw: Structure) -> None:
        try:
            kind = EntryType(raw.type)
        except ValueError:
            self.fault(where, here + TYPE_FIELD, f"type: must be 0 skip, 1 splat, 2 data or 3 external, got {raw.type}")
            return
        if kind is EntryType.SKIP:
            # Erased: its other contents are ignored.
            self.archive.skipped.append(
                IrpaItem(kind, "", memoryview(b""), 0, header.index, here, raw.flags, raw.minimum_alignment)
            )
            return
        structure = ENTRY_STRUCTURES[kind]
        if raw.entry_size < ctypes.sizeof(structure):
            self.fault(
                where,
                here,
                f"entry_size: must be at least {ctypes.sizeof(structure)} ({kind.name.lower()}), got {raw.entry_size}",
            )
            return
        name = self.reference(header, f"{where}, name", here, raw.name, is_blob=False)
        metadata = self.reference(header, f"{where}, metadata", here, raw.metadata, is_blob=True)
        if name is None or metadata is None:
            return
        common = {
            "kind": kind,
            "name": bytes(name).decode("utf-8", "surrogateescape"),
            "metadata": metadata,
            "header": header.index,
            "record": here,
            "flags": raw.flags,
            "minimum_alignment": raw.minimum_alignment,
        }
        entry = self.read_body(header, where, here, self.structure(structure, here), common)
        if entry is not None:
            self.archive.entries.append(entry)

    def read_body(self, header: Header, where: str, here: int, raw: Structure, common: Document) -> IrpaItem | None:
        """The part of an entry that depends on its type."""
        if common["kind"] is EntryType.SPLAT:
            if raw.pattern_length > MAX_PATTERN:
                self.fault(where, here, f"pattern_length: must be at most {MAX_PATTERN}, got {raw.pattern_length}")
                return None
            return IrpaItem(**common, length=raw.length, pattern=bytes(raw.pattern)[: raw.pattern_length])
        if common["kind"] is EntryType.DATA:
            start, length = header.storage
            if raw.storage.offset > length or raw.storage.length > length - raw.storage.offset:
                self.fault(
                    where,
                    here,
                    f"end of data: must be at most {length} (size of the storage segment), "
                    f"got {raw.storage.offset + raw.storage.length}",
                )
                return None
            begin = start + raw.storage.offset
            return IrpaItem(
                **common, length=raw.storage.length, offset=begin, data=self.view(begin, raw.storage.length)
            )
        path = self.reference(header, f"{where}, path", here, raw.path, is_blob=False)
        if path is None:
            return None
        return IrpaItem(
            **common,
            length=raw.range.length,
            offset=raw.range.offset,
            path=bytes(path).decode("utf-8", "surrogateescape"),
        )

    def reference(self, header: Header, where: str, here: int, span: Structure, is_blob: bool) -> memoryview | None:
        """A range of the metadata segment."""
        start, length = header.metadata
        if span.offset > length or span.length > length - span.offset:
            self.fault(
                where,
                here,
                f"end: must be at most {length} (size of the metadata segment), got {span.offset + span.length}",
            )
            return None
        begin = start + span.offset
        if is_blob:
            # Entries may share a blob, but not many different overlapping ones.
            if (begin, span.length) not in self.blobs:
                self.blobs.add((begin, span.length))
                self.blob_budget -= span.length
        else:
            self.name_budget -= span.length
        if self.name_budget < 0 or self.blob_budget < 0:
            self.fault(where, here, "names and metadata: must not be longer than the file together: they overlap")
            self.name_budget = self.blob_budget = 0
            return None
        return self.view(begin, span.length)


PREFIXES = (b"TENSORv0:", b"PYTORCH:")
#: A blob longer than this is not looked into: a type and a shape do not take a megabyte.
MAX_JSON = 1 << 20
MAX_RANK = 256
#: Key under which parameter metadata that IREE does not know travels in the blob.
EXTRA = "nvdla"

_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "bool_": "bool",
    "cfloat": "complex64",
    "cdouble": "complex128",
}


def decode(blob: memoryview | bytes, length: int) -> tuple[str | None, tuple[int, ...] | None, Document]:
    """(dtype, shape, extra metadata). dtype and shape are None unless the blob names both and they take ``length``
    bytes; extra holds the parsed blob's other keys, or the text of a blob that is not a tensor's."""
    raw = bytes(blob) if len(blob) <= MAX_JSON else b""
    prefix = next((p for p in PREFIXES if raw.startswith(p)), None)
    if prefix is None:
        return None, None, _text(blob)
    try:
        parsed = json.loads(raw[len(prefix) :])
    except (ValueError, RecursionError):
        return None, None, _text(blob)
    if not isinstance(parsed, dict):
        return None, None, _text(blob)
    dtype, shape = _element_type(parsed.get("dtype")), _shape(parsed.get("shape"))
    extra = dict(parsed[EXTRA]) if isinstance(parsed.get(EXTRA), dict) else {}
    if dtype is None or shape is None or packed_size(dtype, shape) != length:
        return None, None, extra
    return dtype, shape, extra


def _text(blob: memoryview | bytes) -> Document:
    if not 0 < len(blob) <= MAX_JSON:
        return {}
    raw = bytes(blob)
    try:
        return {"blob_text": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"blob_hex": raw.hex()}


def _element_type(name: object) -> str | None:
    if not isinstance(name, str):
        return None
    plain = name.removeprefix("torch.").removeprefix("numpy.")
    plain = _ALIASES.get(plain, plain)
    return plain if plain in ELEMENT_BITS else None


def _shape(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > MAX_RANK:
        return None
    if any(type(n) is not int or not 0 <= n < 1 << 63 for n in value):
        return None
    return tuple(value)


def encode(parameter: Parameter) -> bytes:
    """The blob IREE's Python writer would store (same keys, order and spacing), plus the parameter's own metadata under
    a key of this project; empty when there is nothing to say."""
    if parameter.dtype is None or parameter.shape is None:
        return b"" if not parameter.metadata else _preserved(parameter.metadata)
    bits = ELEMENT_BITS.get(parameter.dtype)
    if bits is None:
        raise FormatError(f"parameter {parameter.name!r}: element type: must be known to IREE, got {parameter.dtype!r}")
    content: dict[str, object] = {
        "type": "Tensor",
        "dtype": parameter.dtype,
        "shape": list(parameter.shape),
        "dtype_desc": {
            "class_name": f"{parameter.dtype.capitalize().replace('Uint', 'UInt')}DType",
            "is_complex": parameter.dtype.startswith("complex"),
            "is_floating_point": "float" in parameter.dtype,
            # IREE's writer asks whether the type is a signed *integer*.
            "is_signed": parameter.dtype.startswith("int"),
            "itemsize": max(bits // 8, 1),
        },
    }
    if parameter.metadata:
        content[EXTRA] = dict(parameter.metadata)
    return PREFIXES[0] + json.dumps(content).encode()


def _preserved(metadata: Mapping[str, Any]) -> bytes:
    """A blob other than a tensor description goes back as it came; other metadata becomes JSON."""
    if set(metadata) == {"blob_text"}:
        return str(metadata["blob_text"]).encode()
    if set(metadata) == {"blob_hex"}:
        return bytes.fromhex(metadata["blob_hex"])
    return json.dumps({EXTRA: dict(metadata)}).encode()
