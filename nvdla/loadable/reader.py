"""Reader of loadables: verified FlatBuffers to the data model.

Python's flatbuffers package does not check offsets. :class:`Verifier` walks the buffer along a declared
schema (:mod:`nvdla.loadable.schema`) and checks each position before it reads it, so nothing can be decoded that was
not verified: bounds, alignment, vtables, vectors, strings (closing NUL, UTF-8), and the numbers in
:class:`nvdla.limits.Limits`.

64-bit numbers need only be aligned to 4 bytes, although FlatBuffers aligns them to 8: NVIDIA's regression loadables of
2018 are built that way, and NVIDIA's runtime reads them.

Offsets may share targets, as FlatBuffers allows. What sharing can cost is bounded by ``Limits.sharing``: the walk reads
at most that many times the size of the file, so time and memory stay linear in it.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Protocol, cast

from nvdla.errors import FormatError, LoadableError, NvdlaError
from nvdla.limits import Limits
from nvdla.loadable import enums, schema
from nvdla.loadable.checks import check
from nvdla.loadable.model import (
    CAN_STAY_OPEN,
    AddressEntry,
    Blob,
    EventEntry,
    Loadable,
    MemoryEntry,
    RelocEntry,
    StoredBytes,
    StoredFile,
    SubmitEntry,
    TaskEntry,
    TensorDesc,
    Version,
    anonymous,
)
from nvdla.loadable.schema import LOADABLE, FieldType, Scalar, String, Struct, TableField, TableSchema, Union, Vector
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.files import in_package, packed_file, refuse_device

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_S32 = struct.Struct("<i")
#: the table of a union that no schema describes: nothing of it is read
_UNKNOWN = TableSchema("unknown", ())


class Verifier:
    """Decodes one FlatBuffer, checking as it goes. Raises ``error`` (LoadableError) and nothing else."""

    def __init__(
        self, buffer: memoryview, limits: Limits | None = None, error: type[NvdlaError] = LoadableError
    ) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.limits = limits or Limits()
        self.error = error
        self.starts: dict[int, int] = {}  # where in the buffer the views of the result begin, by their identity
        self._tables = 0
        self._budget = self.limits.sharing * self.size + 4096
        self._numbers: dict[tuple[int, str], tuple[object, ...]] = {}
        self._layouts: dict[tuple[str, int], tuple[int, list[tuple[TableField, int]]]] = {}

    def root(self, table: TableSchema) -> dict[str, object]:
        """The root table as {field: value}; nested tables are dicts, vectors tuples, byte vectors views.

        Absent fields have the schema's default.
        """
        if self.size > self.limits.file_size:
            self._fail(table.name, "file", 0, "size", self.size, f"at most {self.limits.file_size} (Limits.file_size)")
        if self.size < 8:
            self._fail(table.name, "root offset", 0, "file size", self.size, "at least 8 bytes")
        return self._table(self._target(table.name, "root offset", 0), table, table.name, 1)

    def _fail(self, path: str, field: str, position: int, what: str, value: object, limit: str) -> NoReturn:
        where = f"{path}.{field}" if field else path
        hint = " (cut off?)" if "(file size" in limit or what == "file size" else ""
        raise self.error(f"{where} at byte {position}: {what}: must be {limit}, got {value}{hint}")

    def _span(self, path: str, field: str, position: int, size: int, alignment: int, what: str) -> None:
        """Check that ``size`` bytes at ``position`` are inside the file and aligned."""
        if position % alignment:
            self._fail(path, field, position, f"position of {what}", position, f"a multiple of {alignment}")
        if position + size > self.size:
            self._fail(path, field, position, f"end of {what}", position + size, f"at most {self.size} (file size)")

    def _spend(self, path: str, field: str, position: int, size: int) -> None:
        self._budget -= size
        if self._budget < 0:
            limit = f"at most {self.limits.sharing} times the file size (Limits.sharing)"
            self._fail(path, field, position, "data read through shared offsets", "more", limit)

    def _target(self, path: str, field: str, position: int) -> int:
        """Follow the forward offset stored at ``position`` (already inside the file)."""
        offset = _U32.unpack_from(self.buffer, position)[0]
        if offset == 0 or position + offset + 4 > self.size:
            limit = f"between 1 and {self.size - 4 - position} (file size {self.size})"
            self._fail(path, field, position, "offset", offset, limit)
        return position + int(offset)

    def _table(self, position: int, table: TableSchema, path: str, depth: int) -> dict[str, object]:
        self._tables += 1
        if self._tables > self.limits.tables:
            self._fail(path, "", position, "table count", self._tables, f"at most {self.limits.tables} (Limits.tables)")
        if depth > self.limits.depth:
            self._fail(path, "", position, "depth", depth, f"at most {self.limits.depth} (Limits.depth)")
        self._span(path, "", position, 4, 4, "table")
        vtable = position - _S32.unpack_from(self.buffer, position)[0]
        layout = self._layouts.get((table.name, vtable))
        if layout is None:
            layout = self._layout(position, vtable, table, path)
        extent, present = layout
        if position + extent > self.size:
            self._fail(path, "", position, "end of table", position + extent, f"at most {self.size} (file size)")
        self._spend(path, "", position, extent)
        values = {field.name: field.default for field in table.fields}
        for field, offset in present:
            kind = field.type
            if isinstance(kind, Union):
                kind = kind.choices.get(cast(int, values[kind.selector]), _UNKNOWN)
            values[field.name] = self._field(position + offset, kind, field.name, path, depth)
        return values

    def _layout(
        self, position: int, vtable: int, table: TableSchema, path: str
    ) -> tuple[int, list[tuple[TableField, int]]]:
        """Check a vtable; returns how far its fields reach and the present fields with their offsets.

        Tables of one type share vtables, so each is checked once. The table size that the vtable states is not a
        bound: files of 2018 state one that leaves out the struct at the end (NVIDIA's regression loadables).
        """
        if vtable < 0 or vtable % 2 or vtable + 4 > self.size:
            self._fail(path, "", position, "vtable position", vtable, f"even and between 0 and {self.size - 4}")
        vtable_size = _U16.unpack_from(self.buffer, vtable)[0]
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > self.size:
            limit = f"even and between 4 and {self.size - vtable}"
            self._fail(path, "", vtable, "vtable size", vtable_size, limit)
        extent, present = 4, []
        for slot, field in enumerate(table.fields):
            entry = 4 + 2 * slot
            offset = _U16.unpack_from(self.buffer, vtable + entry)[0] if entry < vtable_size else 0
            if offset:
                if offset < 4:
                    self._fail(path, field.name, vtable + entry, "field offset", offset, "0 or at least 4")
                extent = max(extent, offset + _inline_size(field))
                present.append((field, offset))
            elif field.required:
                self._fail(path, field.name, position, "required field", "absent", "present")
        self._layouts[table.name, vtable] = extent, present
        return extent, present

    def _field(self, position: int, kind: FieldType, name: str, path: str, depth: int) -> object:
        if isinstance(kind, Scalar | Struct):
            if position % kind.alignment:
                self._fail(path, name, position, "position", position, f"a multiple of {kind.alignment}")
            values = kind.packed.unpack_from(self.buffer, position)
            return values[0] if isinstance(kind, Scalar) else values
        if position % 4:
            self._fail(path, name, position, "position", position, "a multiple of 4")
        target = self._target(path, name, position)
        if isinstance(kind, String):
            return self._string(target, path, name)
        if isinstance(kind, Vector):
            return self._vector(target, kind, path, name, depth)
        return self._table(target, kind, f"{path}.{name}", depth + 1)

    def _string(self, position: int, path: str, field: str) -> str:
        self._span(path, field, position, 4, 4, "string length")
        length = _U32.unpack_from(self.buffer, position)[0]
        if length > self.limits.string_bytes:
            limit = f"at most {self.limits.string_bytes} (Limits.string_bytes)"
            self._fail(path, field, position, "string length", length, limit)
        start = position + 4
        self._span(path, field, start, length + 1, 1, "string with its closing NUL")
        self._spend(path, field, position, length + 4)
        if self.buffer[start + length] != 0:
            self._fail(path, field, start + length, "byte after string", self.buffer[start + length], "0")
        try:
            return str(self.buffer[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            byte = self.buffer[start + error.start]
            self._fail(path, field, start + error.start, "byte in string", f"0x{byte:02x}", "valid UTF-8")

    def _vector(self, position: int, kind: Vector, path: str, field: str, depth: int) -> object:
        self._span(path, field, position, 4, 4, "vector length")
        count = _U32.unpack_from(self.buffer, position)[0]
        start = position + 4
        element = kind.element
        size = element.size if isinstance(element, Scalar) else 4
        if start + count * size > self.size:
            limit = f"at most {(self.size - start) // size} (file size {self.size})"
            self._fail(path, field, position, "vector length", count, limit)
        if isinstance(element, Scalar) and element.code == "B":
            view = self.buffer[start : start + count]
            self.starts[id(view)] = start
            return view
        self._spend(path, field, position, count * size + 4)
        if isinstance(element, Scalar):
            key = (position, element.code)
            if key not in self._numbers:  # tables that share a vector share its numbers, too
                self._numbers[key] = struct.unpack_from(f"<{count}{element.code}", self.buffer, start)
            return self._numbers[key]
        values: list[object] = []
        for index in range(count):
            name = f"{field}[{index}]"
            target = self._target(path, name, start + 4 * index)
            if isinstance(element, String):
                values.append(self._string(target, path, name))
            else:
                values.append(self._table(target, element, name, depth + 1))
        return tuple(values)


def _inline_size(field: TableField) -> int:
    """Bytes of a field inside its table: numbers and structs themselves, everything else a 4-byte offset."""
    return field.type.size if isinstance(field.type, Scalar | Struct) else 4


_PATH = re.compile(r"(?P<list>\w+)(?:\[(?P<index>\d+)\])?(?:\.(?P<field>\w+)(?:\[(?P<element>\d+)\])?)?")


def position_of(buffer: memoryview, path: str) -> int | None:
    """Return the byte position of a field: ``memory_list[3].offsets[1]``.

    ``buffer``: a loadable that :class:`nvdla.loadable.reader.Verifier` has passed. For a field that is absent, so
    that its default counts, the position of its table. None where ``path`` names no field of a loadable.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    root = _offset(buffer, 0)
    if match["list"] == LOADABLE.name:
        return _inside(buffer, root, LOADABLE, match["field"], None)
    entries = _field(LOADABLE, match["list"])
    if entries is None or match["index"] is None:
        return None
    at = _inside(buffer, root, LOADABLE, entries.name, match["index"])
    kind = entries.type.element if isinstance(entries.type, Vector) else None
    if not isinstance(kind, TableSchema) or at == _inside(buffer, root, LOADABLE, entries.name, None):
        return None  # no table, or no such entry
    return _inside(buffer, _offset(buffer, at), kind, match["field"], match["element"])


def _inside(buffer: memoryview, position: int, table: TableSchema, name: str | None, element: str | None) -> int:
    """A field of the table at ``position``, or an element of that field's vector where it has so many."""
    field = _field(table, name) if name else None
    if field is None:
        return position
    vtable = position - struct.unpack_from("<i", buffer, position)[0]
    entry = 4 + 2 * table.fields.index(field)
    size = struct.unpack_from("<H", buffer, vtable)[0]
    offset = struct.unpack_from("<H", buffer, vtable + entry)[0] if entry < size else 0
    if not offset:
        return position
    at = position + offset
    if isinstance(field.type, Scalar | Struct):
        return at
    at = _offset(buffer, at)
    if element is None or not isinstance(field.type, Vector):
        return at
    kind = field.type.element
    size = kind.size if isinstance(kind, Scalar) else 4
    count = struct.unpack_from("<I", buffer, at)[0]
    return at + 4 + size * int(element) if int(element) < count else at


def _offset(buffer: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", buffer, at)[0])


def _field(table: TableSchema, name: str) -> TableField | None:
    return next((field for field in table.fields if field.name == name), None)


IDENTIFIER = b"NVDA"
#: What takes a loadable out of another container, by the kind of file (:mod:`nvdla.util.recognition`): its bytes and
#: file name to the bytes of a loadable. ``nvdla.interop.containers`` adds model libraries when it is imported.
EXTRACTORS: dict[str, Callable[[memoryview, str], bytes]] = {}
UNNAMED = "loadable"  # name of bytes without a file in messages
LARGE_FILE, LARGE_BLOB = 1 << 20, 1 << 14  # bytes from which it is worthwhile not to hold them


class ContiguousBytes(Protocol):
    """Any object with the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return the bytes."""
        ...


Source = str | os.PathLike[str] | ContiguousBytes
"""A path, or contiguous bytes."""


@by_annotations
def load(source: Source, *, limits: Limits | None = None, checked: bool = True) -> Loadable:
    """Read a loadable from a path or from bytes.

    Blob data of the result are views into the bytes: a mutable buffer must not change afterwards. A TVM model library
    (.tar) that contains one loadable is read, too, once ``nvdla.interop.containers`` is imported; the commands import
    it.

    Args:
        source: Path, or any contiguous buffer (bytes, bytearray, memoryview).
        limits: Limits of the file (default: :class:`nvdla.limits.Limits`).
        checked: Also apply the semantic checks of :mod:`nvdla.loadable.checks`. False verifies only the FlatBuffer's
            structure, so that tools can read an inconsistent loadable.

    Returns:
        The loadable.

    Raises:
        LoadableError: The source cannot be read or is not a valid loadable. Errors of the source raise nothing else.
    """
    limits = limits or Limits()
    buffer, name, file = _bytes_of(source, limits)
    verifier = Verifier(buffer, limits)
    where = "" if name == UNNAMED else f"{name}: "
    try:
        loadable = _model(verifier.root(schema.LOADABLE), buffer, name)
        _check_tasks(loadable, limits)
    except LoadableError as error:
        if buffer[4:8] == IDENTIFIER:
            raise LoadableError(f"{where}{error}") from None
        from nvdla.util.recognition import is_text, kind_of, wrong_kind

        if extract := EXTRACTORS.get(kind_of(buffer)):
            return _extracted(extract, buffer, name, limits, checked)
        other = "got a damaged file or one of another kind, without NVDA in bytes 4 to 7"
        unknown = f"{name}: must be an NVDLA loadable, {other}: {error}"
        if is_text(buffer):
            unknown = f"{name}: must be an NVDLA loadable, got a text file. Give the file that the compiler wrote."
        raise LoadableError(wrong_kind(buffer, name, "an NVDLA loadable", ("loadable",)) or unknown) from None
    if checked:
        try:
            check(loadable)
        except LoadableError as error:
            position = position_of(buffer, error.place)
            at = "" if position is None else f" (byte {position} of the file)"
            raise LoadableError(f"{where}{error}{at}") from None
    return loadable if file is None else _stored(loadable, file, verifier.starts, len(buffer))


def _extracted(
    extract: Callable[[memoryview, str], bytes], data: memoryview, name: str, limits: Limits, checked: bool
) -> Loadable:
    try:
        return replace(load(extract(data, name), limits=limits, checked=checked), name=name)
    except LoadableError as error:
        raise LoadableError(f"{name}: {error}") from None
    except (NvdlaError, ValueError) as error:  # ValueError: names that UTF-8 cannot encode
        raise LoadableError(str(error)) from None


def _check_tasks(loadable: Loadable, limits: Limits) -> None:
    """Tasks may share one list, and the descriptors that it leads to: following the lists of a small file would take
    unlimited work."""
    if len(loadable.tasks) > limits.tasks:
        raise LoadableError(
            f"task_list: must have at most {limits.tasks} tasks (Limits.tasks), got {len(loadable.tasks)}"
        )
    entries = sum(len(task.address_list) for task in loadable.tasks)
    if entries > limits.task_addresses:
        raise LoadableError(
            f"task_list: the address lists of all tasks together must have at most {limits.task_addresses} entries "
            f"(Limits.task_addresses), got {entries}"
        )


def _bytes_of(source: Source, limits: Limits) -> tuple[memoryview, str, StoredFile | None]:
    """The bytes, their name, and the file if it can be read again."""
    if isinstance(source, str | os.PathLike):
        data, file = _read(Path(source), limits.file_size)
        return data, str(source), file
    try:
        view = memoryview(source)
        return (view.cast("B") if view.nbytes else memoryview(b"")).toreadonly(), UNNAMED, None
    except (TypeError, ValueError, BufferError):
        kind = type(source).__name__
        raise LoadableError(f"source of a loadable: must be a path or contiguous bytes, got {kind}") from None


def _read(path: Path, limit: int) -> tuple[memoryview, StoredFile | None]:
    """The whole file; refuses to read more than ``limit`` bytes, also from a device or pipe that never ends."""
    if packed := in_package(path):
        try:
            return memoryview(packed_file(*packed, limit)), None
        except FormatError as error:
            raise LoadableError(str(error)) from None
    try:
        if path.is_dir():
            from nvdla.util.recognition import wrong_kind

            raise LoadableError(wrong_kind(path, str(path), "an NVDLA loadable", ()))
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if CAN_STAY_OPEN and LARGE_FILE <= size <= limit:
                data = anonymous(size)
                if _fill(data, file) == size and not file.read(1):
                    return data.toreadonly(), StoredFile(str(path), os.dup(file.fileno()), data)
                file.seek(0)
        with path.open("rb") as stream:
            refuse_device(os.fstat(stream.fileno()), str(path), LoadableError)
            read = stream.read() if 0 < size <= limit else stream.read(limit + 1)
    except (OSError, ValueError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LoadableError(f"{path}: cannot be read: {reason}") from None
    if len(read) > limit:
        raise LoadableError(f"{path}: file size: must be at most {limit} bytes (Limits.file_size), got more")
    return memoryview(read), None


def _fill(target: memoryview, file: io.FileIO) -> int:
    """Return bytes read from the file, at most as many as fit."""
    total = 0
    while total < len(target) and (count := file.readinto(target[total:])):
        total += count
    return total


def _stored(loadable: Loadable, file: StoredFile, starts: dict[int, int], size: int) -> Loadable:
    """Return a loadable whose large blobs may be released; the small ones are copies. A file whose blobs share their
    bytes is unchanged: copies could take more than the file."""
    if sum(blob.length for blob in loadable.blobs) > size:
        return loadable
    blobs = []
    for blob in loadable.blobs:
        data = blob.data
        large = len(data) >= LARGE_BLOB
        kept = StoredBytes(file, starts[id(data)], data) if large else memoryview(bytes(data))
        blobs.append(replace(blob, data=kept))
    return replace(loadable, blobs=tuple(blobs))


def _model(root: Document, buffer: memoryview, name: str) -> Loadable:
    return Loadable(
        version=Version(*root["version"]),
        tasks=tuple(map(_task, root["task_list"])),
        memories=tuple(map(_memory, root["memory_list"])),
        addresses=tuple(AddressEntry(**entry) for entry in root["address_list"]),
        events=tuple(map(_event, root["event_list"])),
        blobs=tuple(map(_blob, root["blobs"])),
        tensors=tuple(map(_tensor, root["tensor_desc_list"])),
        relocs=tuple(map(_reloc, root["reloc_list"])),
        submits=tuple(SubmitEntry(entry["id"], entry["task_id"]) for entry in root["submit_list"]),
        identifier=_identifier(buffer),
        name=name,
    )


def _identifier(buffer: memoryview) -> str:
    """The identifier of a file, "" if it has none: then 16-bit numbers below 256 are there, or zeros."""
    return "" if 0 in buffer[4:8] else str(buffer[4:8], "latin-1")


def _task(entry: Document) -> TaskEntry:
    return TaskEntry(**{**entry, "interface": enums.Interface(entry["interface"])})


def _memory(entry: Document) -> MemoryEntry:
    domain, flags = enums.MemoryDomain(entry["domain"]), enums.MemoryFlags(entry["flags"])
    return MemoryEntry(**{**entry, "domain": domain, "flags": flags})


def _event(entry: Document) -> EventEntry:
    return EventEntry(**{**entry, "type": enums.EventType(entry["type"]), "op": enums.EventOp(entry["op"])})


def _blob(entry: Document) -> Blob:
    version = entry["version"]
    return Blob(
        name=entry["name"],
        data=memoryview(b"") if entry["data"] == () else entry["data"],
        size=entry["size"],
        interface=enums.Interface(entry["interface"]),
        sub_interface=enums.SubInterface(entry["sub_interface"]),
        version=None if version is None else Version(*version),
    )


def _tensor(entry: Document) -> TensorDesc:
    plain = {key: value for key, value in entry.items() if not key.startswith("stride_")}
    plain["strides"] = tuple(entry[f"stride_{i}"] for i in range(8))
    plain["data_format"] = enums.DataFormat(entry["data_format"])
    plain["data_type"] = enums.DataType(entry["data_type"])
    plain["data_category"] = enums.DataCategory(entry["data_category"])
    plain["pixel_format"] = enums.PixelFormat(entry["pixel_format"])
    plain["pixel_mapping"] = enums.PixelMapping(entry["pixel_mapping"])
    return TensorDesc(**plain)


def _reloc(entry: Document) -> RelocEntry:
    return RelocEntry(
        address_id=entry["address_id"],
        write_id=entry["write_id"],
        offset=entry["offset"],
        interface=enums.Interface(entry["interface"]),
        sub_interface=enums.SubInterface(entry["sub_interface"]),
        reloc_type=enums.RelocType(entry["reloc_type"]),
    )
