"""Changing an archive without rewriting it: erase, replace, append.

The functions on buffers (a bytearray, or a writable mapping of a file) check everything before they change the first
byte. Data that only shrink or keep their size are replaced where they lie; larger data go behind the file, with a new
table of all entries (:func:`append_file`).
"""

from __future__ import annotations

import bisect
import dataclasses
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from nvdla.argument_kinds import by_annotations
from nvdla.containers.irpa import layout
from nvdla.containers.irpa.layout import EntryType
from nvdla.containers.irpa.reader import IrpaArchive, IrpaItem, read
from nvdla.containers.irpa.writer import EntrySpec, chunks, header, index
from nvdla.containers.parameters import PATTERN_LENGTHS
from nvdla.containers.source import write_data
from nvdla.errors import FormatError
from nvdla.rounding import align

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
                raise FormatError(f"no parameter named {', '.join(sorted(map(repr, missing)))}; nothing was erased")
            _check_records(archive, victims)
            for start, length in _exclusive_spans(archive, victims) if scrub else []:
                view[start : start + length] = bytes(length)
            for entry in victims:
                _store(view, entry.record + layout.TYPE_FIELD, EntryType.SKIP, 4)
        finally:
            _release(archive)
    return len(victims)


def _check_records(archive: IrpaArchive, victims: list[IrpaItem]) -> None:
    """Refuse to change a record that is also the name or data of an entry that stays."""
    kept = _Ranges(_surviving(archive, victims))
    for entry in victims:
        if kept.touch(entry.record + layout.TYPE_FIELD, 4):
            raise FormatError(
                f"parameter {entry.name!r}: its record at byte {entry.record} is also the name or data "
                "of another parameter; nothing was erased"
            )


def _exclusive_spans(archive: IrpaArchive, victims: list[IrpaItem]) -> list[tuple[int, int]]:
    """Byte ranges of the victims' data and text which no surviving entry touches, and no header or table of entries."""
    tables = [span for header in archive.headers for span in ((header.offset, layout.HEADER_SIZE), header.entries)]
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
    raw = layout.EntryHeader.from_buffer_copy(archive.source.data[entry.record :][: layout.ENTRY_HEADER_SIZE])
    spans = [(header.metadata[0] + r.offset, r.length) for r in (raw.name, raw.metadata)]
    if entry.kind is EntryType.DATA:
        spans.append((entry.offset or 0, entry.length))
    return [span for span in spans if span[1]]


@by_annotations
def replace(buffer: Buffer, name: str, data: bytes | memoryview) -> None:
    """New data for the first entry of this name, where the old lie: they must fit before the next entry's data (or the
    end of the storage segment). The entry's length changes with them; what is left over is zeroed."""
    with memoryview(buffer) as view:
        archive = read(view)
        try:
            entry = archive[name]
            if entry.kind is not EntryType.DATA:
                raise FormatError(f"parameter {name!r} is a {entry.kind.name.lower()} entry and has no data to replace")
            room = _room(archive, entry)
            if len(data) > room:
                raise FormatError(
                    f"parameter {name!r}: {len(data)} bytes do not fit where there is room for {room}; "
                    "append_file puts larger data behind the file"
                )
            start = entry.offset or 0
            view[start : start + len(data)] = data
            if entry.length > len(data):
                view[start + len(data) : start + entry.length] = bytes(entry.length - len(data))
            _store(view, entry.record + layout.DataEntry.storage.offset + layout.Range.length.offset, len(data), 8)
        finally:
            _release(archive)


@by_annotations
def fits(path: str | os.PathLike[str], name: str, size: int) -> bool:
    """Whether :func:`replace` can put this many bytes where the entry's data lie. FormatError for an entry that has no
    data, or shares them with others."""
    archive = read(Path(path))
    entry = archive[name]
    if entry.kind is not EntryType.DATA:
        raise FormatError(f"parameter {name!r} is a {entry.kind.name.lower()} entry and has no data to replace")
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
                f"parameter {entry.name!r} shares bytes with {other.name!r}; replacing it would change both"
            )
        if begin >= start:
            end = min(end, begin)
    return end - start


@by_annotations
def replace_splat(buffer: Buffer, name: str, pattern: bytes) -> None:
    """A new pattern for a SPLAT entry; its length must be a multiple of the pattern's."""
    if len(pattern) not in PATTERN_LENGTHS:
        raise FormatError(f"a pattern has 1, 2, 4, 8 or 16 bytes, not {len(pattern)}")
    with memoryview(buffer) as view:
        archive = read(view)
        try:
            entry = archive[name]
            if entry.kind is not EntryType.SPLAT:
                raise FormatError(f"parameter {name!r} is no splat but a {entry.kind.name.lower()} entry")
            if entry.length % len(pattern):
                raise FormatError(f"parameter {name!r}: length {entry.length} is no multiple of {len(pattern)} bytes")
            at = entry.record + layout.SplatEntry.pattern.offset
            view[at : at + layout.MAX_PATTERN] = pattern.ljust(layout.MAX_PATTERN, b"\0")
            _store(view, entry.record + layout.SplatEntry.pattern_length.offset, len(pattern), 1)
        finally:
            _release(archive)


@by_annotations
def append(data: bytes | memoryview, entries: Iterable[EntrySpec], alignment: int = layout.DATA_ALIGNMENT) -> bytes:
    """``data`` with one more archive linked behind it."""
    start, link_at, link = _link(read(data))
    new = b"".join(chunks(entries, alignment, base=start))
    result = bytearray(data)
    result[link_at : link_at + 8] = link.to_bytes(8, "little")
    return bytes(result) + bytes(start - len(result)) + new


@by_annotations
def append_file(
    path: str | os.PathLike[str],
    entries: Iterable[EntrySpec],
    alignment: int = layout.DATA_ALIGNMENT,
    replaced: Mapping[str, bytes | memoryview] | None = None,
    linked: bool = False,
) -> int:
    """Adds entries to a file without rewriting its data; returns the offset of the first new byte.

    The new data and then a new table of all entries go behind the file, and the first header is pointed at them last: a
    reader at any moment sees the old archive or the new one, and IREE's reader takes it (linked archives it reads with
    the first one's fields). A chain of linked archives becomes one. ``replaced`` gives entries new data of any size;
    the old ones stay behind unused. ``linked`` links a second archive instead, as the specification has it. On an error
    the file is cut back.
    """
    archive = read(Path(path))
    old_size = len(archive.source.data)
    if linked:
        start, link_at, link = _link(archive)
        tail: Iterable[bytes | memoryview] = chunks(entries, alignment, base=start)
        patch_at, patch = link_at, link.to_bytes(8, "little")
    else:
        start = align(old_size, layout.FILE_ALIGNMENT)
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
    """(where the first header is, its new bytes, what goes behind the file from byte ``start`` on)."""
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
    table_at = align(end, layout.ENTRY_ALIGNMENT)
    metadata_at = table_at + len(table)
    file_end = align(metadata_at + len(metadata), layout.FILE_ALIGNMENT)
    tail += [bytes(table_at - end), table, metadata, bytes(file_end - metadata_at - len(metadata))]
    spans = (table_at - base, len(table)), (metadata_at - base, len(metadata)), (storage_at - base, end - storage_at)
    return base, header(len(places), *spans), tail


def _link(archive: IrpaArchive) -> tuple[int, int, int]:
    """(offset of a new archive, offset of the field that links to it, value of that field)."""
    last = archive.headers[-1]
    start = align(max(len(archive.source.data), last.end), layout.FILE_ALIGNMENT)
    return start, last.offset + layout.NEXT_HEADER_FIELD, start - last.offset


@contextmanager
def mapped_for_writing(path: str | os.PathLike[str]) -> Iterator[mmap.mmap]:
    """A writable mapping of a file, for :func:`erase` and :func:`replace`."""
    with _writable(path) as file:
        if not os.fstat(file.fileno()).st_size:
            raise FormatError(f"{path}: the file is empty")
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
