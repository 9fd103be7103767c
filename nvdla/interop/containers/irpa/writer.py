"""Writer and editor of IREE parameter archives.

Entry table at byte 96, then names and metadata without alignment, then storage; the file padded to 4096 bytes. Given
the same entries and alignments, the bytes equal those of iree-create-parameters and iree-convert-parameters.

The functions on buffers (a bytearray, or a writable mapping of a file) check everything before they change the first
byte. Data that only shrink or keep their size are replaced in place; larger data are appended to the file, with a new
table of all entries (:func:`append_file`).
"""

from __future__ import annotations

import bisect
import ctypes
import dataclasses
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import IO

from nvdla.errors import FormatError
from nvdla.interop.containers.irpa import reader
from nvdla.interop.containers.irpa.reader import EntryType, IrpaArchive, IrpaItem, read
from nvdla.tensors.parameters import PATTERN_LENGTHS
from nvdla.util.arguments import by_annotations, checked
from nvdla.util.files import write_data
from nvdla.util.rounding import align

_ENTRIES_AT = align(reader.HEADER_SIZE, reader.ENTRY_ALIGNMENT)
_ZEROS = bytes(1 << 16)
#: Bytes between data: what is always allowed, and for each entry. A small file may ask for gigabytes by alignment.
PADDING_LIMIT, PADDING_OF_ENTRY = 1 << 26, 1 << 13


@dataclass(frozen=True)
class EntrySpec:
    """One entry to be written: exactly one of ``data``, ``pattern`` (with ``length``) and ``path`` (with ``offset`` and
    ``length`` in that file). ``minimum_alignment`` None means the archive's alignment."""

    name: str | bytes
    data: bytes | memoryview | None = None
    pattern: bytes | None = None
    path: str | None = None
    length: int = 0
    offset: int = 0
    metadata: bytes | memoryview = b""
    minimum_alignment: int | None = None
    flags: int = 0

    @classmethod
    def of(cls, entry: IrpaItem) -> EntrySpec:
        """The same entry again. Data keep their alignment; zero (unspecified) and odd values become the default."""
        wanted = entry.minimum_alignment
        is_usable = 0 < wanted <= reader.MAX_ALIGNMENT and not wanted & (wanted - 1)
        return cls(
            entry.name_bytes,
            entry.data,
            entry.pattern,
            entry.path,
            entry.length,
            (entry.offset or 0) if entry.kind is EntryType.EXTERNAL else 0,
            entry.metadata,
            wanted if is_usable else None,
            entry.flags,
        )

    @property
    def kind(self) -> EntryType:
        """Return the entry to write."""
        if self.data is not None:
            return EntryType.DATA
        return EntryType.SPLAT if self.pattern is not None else EntryType.EXTERNAL

    @property
    def name_bytes(self) -> bytes:
        """The name as the file will hold it."""
        return self.name if isinstance(self.name, bytes) else self.name.encode("utf-8", "surrogateescape")

    def as_splat(self, pattern: bytes = b"\0") -> EntrySpec:
        """The entry without its data: a splat of the same length, name and metadata."""
        length = len(self.data) if self.data is not None else self.length
        return replace_fields(
            self, data=None, path=None, pattern=pattern, length=length, offset=0, minimum_alignment=None
        )


@by_annotations
def build(
    entries: Iterable[EntrySpec],
    alignment: int = reader.DATA_ALIGNMENT,
    file_alignment: int = reader.FILE_ALIGNMENT,
    packing: int | None = None,
    base: int = 0,
) -> bytes:
    """A whole archive as bytes; see :func:`chunks`."""
    return b"".join(chunks(entries, alignment, file_alignment, packing, base))


@by_annotations
def chunks(
    entries: Iterable[EntrySpec],
    alignment: int = reader.DATA_ALIGNMENT,
    file_alignment: int = reader.FILE_ALIGNMENT,
    packing: int | None = None,
    base: int = 0,
) -> Iterator[bytes | memoryview]:
    """The archive piece by piece, data not copied.

    ``alignment`` (bytes) is written as minimum_alignment of entries without their own and honored for each.
    ``packing`` overrides where data are placed, leaving the field unchanged: what iree-create-parameters --alignment
    does. ``base`` is the offset the archive will have in its file; data are aligned in the file, not in the archive.
    """
    specs = [checked(entry, EntrySpec, "each of the entries") for entry in entries]
    for name, value in (("alignment", alignment), ("file alignment", file_alignment), ("packing", packing or 1)):
        if not 0 < value <= reader.MAX_ALIGNMENT or value & (value - 1):
            raise FormatError(f"{name}: must be a power of two from 1 to {reader.MAX_ALIGNMENT}, got {value}")
    for spec in specs:
        _check(spec, alignment)
    metadata = _metadata(specs)
    table_length = _table_length(specs)
    metadata_at = _ENTRIES_AT + table_length
    storage_at, offsets, storage_length = _place(specs, alignment, packing, base, metadata_at + len(metadata))
    _check_padding(specs, storage_at - metadata_at - len(metadata) + storage_length, max(alignment, packing or 1))
    spans = (_ENTRIES_AT, table_length), (metadata_at, len(metadata)), (storage_at, storage_length)
    yield header(len(specs), *spans).ljust(_ENTRIES_AT, b"\0")
    yield _table(specs, offsets, alignment)
    yield metadata
    position = metadata_at + len(metadata)
    for spec, offset in zip(specs, offsets, strict=True):
        if spec.data is not None and len(spec.data):
            yield from _zeros(storage_at + offset - position)
            yield spec.data
            position = storage_at + offset + len(spec.data)
    position_end = storage_at + storage_length
    yield from _zeros(align(position_end, file_alignment) - position)


def _check(spec: EntrySpec, alignment: int) -> None:
    label = repr(spec.name_bytes[:80].decode("utf-8", "replace"))
    given = [spec.data is not None, spec.pattern is not None, spec.path is not None]
    if sum(given) != 1:
        raise FormatError(f"entry {label}: must have exactly one of data, pattern and external path, got {sum(given)}")
    if spec.pattern is not None:
        if len(spec.pattern) not in PATTERN_LENGTHS:
            raise FormatError(f"entry {label}: pattern: must have 1, 2, 4, 8 or 16 bytes, got {len(spec.pattern)}")
        if spec.length % len(spec.pattern):
            raise FormatError(
                f"entry {label}: length: must be a multiple of {len(spec.pattern)} (pattern), got {spec.length}"
            )
    if not 0 <= spec.length < 1 << 64 or not 0 <= spec.offset < 1 << 64:
        raise FormatError(f"entry {label}: length and offset: must fit 64 bits, got {spec.length} and {spec.offset}")
    wanted = alignment if spec.minimum_alignment is None else spec.minimum_alignment
    if not 0 < wanted <= reader.MAX_ALIGNMENT or wanted & (wanted - 1):
        raise FormatError(
            f"entry {label}: minimum alignment: must be a power of two from 1 to {reader.MAX_ALIGNMENT}, got {wanted}"
        )


def _check_padding(specs: Sequence[EntrySpec], length: int, asked: int) -> None:
    """FormatError where alignments written in a file, rather than ``asked`` for, make it swell."""
    data = [spec for spec in specs if spec.data is not None]
    padding = length - sum(len(spec.data or b"") for spec in data)
    limit = PADDING_LIMIT + max(PADDING_OF_ENTRY, asked) * (len(data) + 1)
    if padding > limit:
        worst = max(data, key=lambda spec: spec.minimum_alignment or 0)
        label = repr(worst.name_bytes[:80].decode("utf-8", "replace"))
        raise FormatError(
            f"entry {label}: padding of all entries for their minimum alignments (here {worst.minimum_alignment}): "
            f"must be at most {limit} bytes, got {padding}. Use the option packing to place data closer together."
        )


def _table_length(specs: Sequence[EntrySpec]) -> int:
    end = 0
    for spec in specs:
        end = align(end, reader.ENTRY_ALIGNMENT) + ctypes.sizeof(reader.ENTRY_STRUCTURES[spec.kind])
    return end


def _place(
    specs: Sequence[EntrySpec], alignment: int, packing: int | None, base: int, header_end: int
) -> tuple[int, list[int], int]:
    """Return where storage begins, each entry's offset in it (0 for those without data), and how long it is."""
    needs = [packing or spec.minimum_alignment or alignment for spec in specs]
    largest = max((need for need, spec in zip(needs, specs, strict=True) if spec.data is not None), default=1)
    # The segment starts aligned in the file, so that offsets in it need only be aligned in it.
    start = align(base + header_end, largest) - base
    offsets, end = [], 0
    for spec, need in zip(specs, needs, strict=True):
        if spec.data is None:
            offsets.append(0)
            continue
        end = align(end, need)
        offsets.append(end)
        end += len(spec.data)
    return start, offsets, end


def header(count: int, *spans: tuple[int, int]) -> bytes:
    """An archive header without a link; ``spans`` are (offset, length) of entry table, metadata and storage."""
    prefix = reader.HeaderPrefix(magic=reader.MAGIC, header_size=reader.HEADER_SIZE)
    return bytes(reader.HeaderV0(prefix, count, *(reader.Range(*span) for span in spans)))


def index(specs: Sequence[EntrySpec], offsets: Sequence[int], alignment: int) -> tuple[bytes, bytes]:
    """The entry table and the metadata of an archive whose data are at ``offsets`` in its storage segment."""
    for spec in specs:
        _check(spec, alignment)
    return _table(specs, offsets, alignment), _metadata(specs)


def _metadata(specs: Sequence[EntrySpec]) -> bytes:
    return b"".join(
        spec.name_bytes + bytes(spec.metadata) + (spec.path or "").encode("utf-8", "surrogateescape") for spec in specs
    )


def _table(specs: Sequence[EntrySpec], offsets: Sequence[int], alignment: int) -> bytes:
    table = bytearray()
    text = 0
    for spec, offset in zip(specs, offsets, strict=True):
        table += bytes(-len(table) % reader.ENTRY_ALIGNMENT)
        structure = reader.ENTRY_STRUCTURES[spec.kind]
        name = reader.Range(text, len(spec.name_bytes))
        text += name.length
        # A missing blob is written as offset 0, length 0.
        blob = reader.Range(text if len(spec.metadata) else 0, len(spec.metadata))
        text += blob.length
        # Without data there is nothing to align, and IREE's writer stores 0.
        field = spec.minimum_alignment or (alignment if spec.kind is EntryType.DATA else 0)
        head = reader.EntryHeader(ctypes.sizeof(structure), spec.kind, spec.flags, name, blob, field)
        if spec.kind is EntryType.DATA:
            table += bytes(structure(head, reader.Range(offset, len(spec.data or b""))))
        elif spec.kind is EntryType.SPLAT:
            pattern = spec.pattern or b""
            padded = (ctypes.c_uint8 * reader.MAX_PATTERN).from_buffer_copy(pattern.ljust(reader.MAX_PATTERN, b"\0"))
            table += bytes(structure(head, spec.length, padded, len(pattern)))
        else:
            path = (spec.path or "").encode("utf-8", "surrogateescape")
            table += bytes(structure(head, reader.Range(text, len(path)), reader.Range(spec.offset, spec.length)))
            text += len(path)
    return bytes(table)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield _ZEROS[:count]
        count -= len(_ZEROS)


Buffer = bytearray | mmap.mmap | memoryview


@by_annotations
def erase(buffer: Buffer, names: Iterable[str], scrub: bool = False) -> int:
    """Turns every entry of these names into SKIP; with ``scrub`` also zeroes their data, names and metadata (unless
    another entry uses the same bytes). Returns how many entries were erased."""
    wanted = set(names)
    with memoryview(buffer) as view:
        archive = read(view)
        try:
            victims = [entry for entry in archive.entries if entry.name in wanted]
            missing = wanted - {entry.name for entry in victims}
            if missing:
                raise FormatError(f"no parameter is named {', '.join(sorted(map(repr, missing)))}. Nothing was erased.")
            _check_records(archive, victims)
            for start, length in _exclusive_spans(archive, victims) if scrub else []:
                view[start : start + length] = bytes(length)
            for entry in victims:
                _store(view, entry.record + reader.TYPE_FIELD, EntryType.SKIP, 4)
        finally:
            _release(archive)
    return len(victims)


def _check_records(archive: IrpaArchive, victims: list[IrpaItem]) -> None:
    """Refuse to change a record that is also the name or data of an entry that stays."""
    kept = _Ranges(_surviving(archive, victims))
    for entry in victims:
        if kept.touch(entry.record + reader.TYPE_FIELD, 4):
            raise FormatError(
                f"parameter {entry.name!r}: its record at byte {entry.record} is also the name or data "
                "of another parameter. Nothing was erased."
            )


def _exclusive_spans(archive: IrpaArchive, victims: list[IrpaItem]) -> list[tuple[int, int]]:
    """Byte ranges of the victims' data and text which no surviving entry touches, and no header or table of entries."""
    tables = [span for header in archive.headers for span in ((header.offset, reader.HEADER_SIZE), header.entries)]
    kept = _Ranges(_surviving(archive, victims) + tables)
    return [span for entry in victims for span in _spans(archive, entry) if not kept.touch(*span)]


def _surviving(archive: IrpaArchive, victims: list[IrpaItem]) -> list[tuple[int, int]]:
    gone = {entry.record for entry in victims}
    return [span for entry in archive.entries if entry.record not in gone for span in _spans(archive, entry)]


class _Ranges:
    """Byte ranges (start, length), to be asked whether they touch others."""

    def __init__(self, spans: Iterable[tuple[int, int]]) -> None:
        merged: list[list[int]] = []
        for start, length in sorted(spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], start + length)
            else:
                merged.append([start, start + length])
        self._starts = [start for start, _ in merged]
        self._ends = [end for _, end in merged]

    def touch(self, start: int, length: int) -> bool:
        before = bisect.bisect_left(self._starts, start + length) - 1  # the last one that begins before our end
        return before >= 0 and self._ends[before] > start


def _spans(archive: IrpaArchive, entry: IrpaItem) -> list[tuple[int, int]]:
    header = archive.headers[entry.header]
    raw = reader.EntryHeader.from_buffer_copy(archive.source.data[entry.record :][: reader.ENTRY_HEADER_SIZE])
    spans = [(header.metadata[0] + r.offset, r.length) for r in (raw.name, raw.metadata)]
    if entry.kind is EntryType.DATA:
        spans.append((entry.offset or 0, entry.length))
    return [span for span in spans if span[1]]


@by_annotations
def replace(buffer: Buffer, name: str, data: bytes | memoryview) -> None:
    """Replace the data of the first entry of this name in place: they must fit before the next entry's data (or the end
    of the storage segment). The entry's length changes with them; the remaining bytes are zeroed."""
    with memoryview(buffer) as view:
        archive = read(view)
        try:
            entry = archive[name]
            if entry.kind is not EntryType.DATA:
                raise FormatError(f"parameter {name!r}: must be a data entry, got {entry.kind.name.lower()}")
            room = _room(archive, entry)
            if len(data) > room:
                raise FormatError(
                    f"parameter {name!r}: new data: must have at most {room} bytes, got {len(data)}. "
                    "Use append_file for more."
                )
            start = entry.offset or 0
            view[start : start + len(data)] = data
            if entry.length > len(data):
                view[start + len(data) : start + entry.length] = bytes(entry.length - len(data))
            _store(view, entry.record + reader.DataEntry.storage.offset + reader.Range.length.offset, len(data), 8)
        finally:
            _release(archive)


@by_annotations
def fits(path: str | os.PathLike[str], name: str, size: int) -> bool:
    """Check whether :func:`replace` can put this many bytes in place of the entry's data. Raises FormatError
    for an entry without data, or with shared data."""
    archive = read(Path(path))
    entry = archive[name]
    if entry.kind is not EntryType.DATA:
        raise FormatError(f"parameter {name!r}: must be a data entry, got {entry.kind.name.lower()}")
    return size <= _room(archive, entry)


def _room(archive: IrpaArchive, entry: IrpaItem) -> int:
    start = entry.offset or 0
    end = sum(archive.headers[entry.header].storage)
    for other in archive.entries:
        if other is entry or other.kind is not EntryType.DATA or not other.length:
            continue
        begin = other.offset or 0
        if begin < start + entry.length and start < begin + other.length:
            raise FormatError(
                f"parameter {entry.name!r}: must not share bytes with {other.name!r}: replacing one would change both"
            )
        if begin >= start:
            end = min(end, begin)
    return end - start


@by_annotations
def replace_splat(buffer: Buffer, name: str, pattern: bytes) -> None:
    """A new pattern for a SPLAT entry; its length must be a multiple of the pattern's."""
    if len(pattern) not in PATTERN_LENGTHS:
        raise FormatError(f"pattern: must have 1, 2, 4, 8 or 16 bytes, got {len(pattern)}")
    with memoryview(buffer) as view:
        archive = read(view)
        try:
            entry = archive[name]
            if entry.kind is not EntryType.SPLAT:
                raise FormatError(f"parameter {name!r}: must be a splat entry, got {entry.kind.name.lower()}")
            if entry.length % len(pattern):
                size = len(pattern)
                raise FormatError(
                    f"parameter {name!r}: length: must be a multiple of {size} (pattern), got {entry.length}"
                )
            at = entry.record + reader.SplatEntry.pattern.offset
            view[at : at + reader.MAX_PATTERN] = pattern.ljust(reader.MAX_PATTERN, b"\0")
            _store(view, entry.record + reader.SplatEntry.pattern_length.offset, len(pattern), 1)
        finally:
            _release(archive)


@by_annotations
def append(data: bytes | memoryview, entries: Iterable[EntrySpec], alignment: int = reader.DATA_ALIGNMENT) -> bytes:
    """``data`` with one more archive linked after it."""
    start, link_at, link = _link(read(data))
    new = b"".join(chunks(entries, alignment, base=start))
    result = bytearray(data)
    result[link_at : link_at + 8] = link.to_bytes(8, "little")
    return bytes(result) + bytes(start - len(result)) + new


@by_annotations
def append_file(
    path: str | os.PathLike[str],
    entries: Iterable[EntrySpec],
    alignment: int = reader.DATA_ALIGNMENT,
    replaced: Mapping[str, bytes | memoryview] | None = None,
    linked: bool = False,
) -> int:
    """Adds entries to a file without rewriting its data; returns the offset of the first new byte.

    The new data and then a new table of all entries are appended to the file. The first header is pointed at them
    last, so that a reader at any moment sees the old archive or the new one. IREE's reader accepts the result (it reads
    linked archives with the first one's fields). A chain of linked archives becomes one. ``replaced``: new
    data of entries, of any size; the old data stay in the file, unused. ``linked``: a second archive to link instead of
    adding entries. On an error the file is truncated to its old size.
    """
    archive = read(Path(path))
    old_size = len(archive.source.data)
    if linked:
        start, link_at, link = _link(archive)
        tail: Iterable[bytes | memoryview] = chunks(entries, alignment, base=start)
        patch_at, patch = link_at, link.to_bytes(8, "little")
    else:
        start = align(old_size, reader.FILE_ALIGNMENT)
        patch_at, patch, tail = _joined(archive, list(entries), replaced or {}, alignment, start)
    with _writable(path) as file:
        try:
            file.seek(0, os.SEEK_END)
            file.write(bytes(start - old_size))
            for chunk in tail:
                write_data(file, chunk)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(old_size)
            raise
        file.seek(patch_at)
        file.write(patch)
    _release(archive)
    return start


def _joined(
    archive: IrpaArchive,
    new: list[EntrySpec],
    replaced: Mapping[str, bytes | memoryview],
    alignment: int,
    start: int,
) -> tuple[int, bytes, Iterable[bytes | memoryview]]:
    """(where the first header is, its new bytes, what is appended to the file from byte ``start`` on)."""
    first = archive.headers[0]
    base = first.offset
    specs, places = [], []
    for entry in archive.entries:
        spec = EntrySpec.of(entry)
        if entry.name in replaced and archive[entry.name] is entry:
            spec = dataclasses.replace(spec, data=replaced[entry.name])
        specs.append(spec)
        places.append(None if spec.data is None or entry.name in replaced else entry.offset)
    storage_at = min([place for place in places if place is not None] + [start])
    end, tail = start, []
    for number, spec in enumerate(specs + new):
        if number < len(places) and (places[number] is not None or spec.data is None):
            continue
        if number >= len(places):
            places.append(None)
        if spec.data is None:
            continue
        place = align(end, spec.minimum_alignment or alignment)
        tail += [bytes(place - end), spec.data]
        places[number], end = place, place + len(spec.data)
    table, metadata = index([*specs, *new], [0 if p is None else p - storage_at for p in places], alignment)
    table_at = align(end, reader.ENTRY_ALIGNMENT)
    metadata_at = table_at + len(table)
    file_end = align(metadata_at + len(metadata), reader.FILE_ALIGNMENT)
    tail += [bytes(table_at - end), table, metadata, bytes(file_end - metadata_at - len(metadata))]
    spans = (table_at - base, len(table)), (metadata_at - base, len(metadata)), (storage_at - base, end - storage_at)
    return base, header(len(places), *spans), tail


def _link(archive: IrpaArchive) -> tuple[int, int, int]:
    """(offset of a new archive, offset of the field that links to it, value of that field)."""
    last = archive.headers[-1]
    start = align(max(len(archive.source.data), last.end), reader.FILE_ALIGNMENT)
    return start, last.offset + reader.NEXT_HEADER_FIELD, start - last.offset


@contextmanager
def mapped_for_writing(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    """A writable mapping of a file, for :func:`erase` and :func:`replace`."""
    with _writable(path) as file:
        if not os.fstat(file.fileno()).st_size:
            raise FormatError(f"{path}: must be a parameter archive, got an empty file")
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE)
        try:
            yield mapping
            mapping.flush()
        finally:
            # While an error is on its way its traceback still holds views; the mapping then closes with them.
            with suppress(BufferError):
                mapping.close()


@contextmanager
def _writable(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    try:
        with open(path, "r+b") as file:
            yield file
    except OSError as error:
        raise FormatError(f"{path}: cannot be changed: {error.strerror or error}") from None


def _store(view: memoryview, offset: int, value: int, size: int) -> None:
    view[offset : offset + size] = int(value).to_bytes(size, "little")


def _release(archive: IrpaArchive) -> None:
    """Drops the views an archive holds, so that the buffer under them may be resized or closed."""
    for entry in (*archive.entries, *archive.skipped):
        entry.metadata.release()
        if entry.data is not None:
            entry.data.release()
    archive.source.data.release()
