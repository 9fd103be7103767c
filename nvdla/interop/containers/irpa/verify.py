"""Verification of an IREE parameter archive beyond what reading it needs.

Lenient: what IREE's tools write and read passes with warnings. Strict: what the specification
(iree/schemas/parameter_archive.h) rules out is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nvdla.errors import FormatError
from nvdla.interop.containers.irpa import reader
from nvdla.interop.containers.irpa.reader import EntryType, IrpaArchive, IrpaItem
from nvdla.interop.containers.registry import FileFinding, Severity
from nvdla.tensors.parameters import PATTERN_LENGTHS
from nvdla.util.arguments import by_annotations
from nvdla.util.files import pieces_of

_HEADER_START = reader.MAGIC.to_bytes(4, "little") + bytes(4) + reader.HEADER_SIZE.to_bytes(8, "little")


@by_annotations
def verify(archive: IrpaArchive, strict: bool = False, external: Path | None = None) -> list[FileFinding]:
    """All findings, in file order within each rule: those of parsing first, then of headers, entries, names, alignment,
    overlaps, external files and unlinked archives."""
    findings = list(archive.problems)
    rule = Severity.ERROR if strict else Severity.WARNING
    for check in (_headers, _entries, _names, _alignment, _overlaps, _unlinked):
        findings += check(archive, rule)
    return findings + list(_external(archive, external))


def _headers(archive: IrpaArchive, rule: Severity) -> Iterator[FileFinding]:
    if len(archive.headers) > 1:
        yield FileFinding(
            Severity.WARNING,
            "header 1",
            archive.headers[1].offset,
            "a second archive is linked: IREE's reader (3.13) reads it with the fields of the first. "
            "'nvdla container convert' makes one archive of them.",
        )
    for header in archive.headers:
        where = f"header {header.index}"
        if header.offset % reader.HEADER_ALIGNMENT:
            yield FileFinding(
                rule,
                where,
                header.offset,
                f"offset: must be a multiple of {reader.HEADER_ALIGNMENT}, got {header.offset}",
            )
        if header.flags:
            yield FileFinding(rule, where, header.offset, f"flags: must be 0 in version 0.0, got 0x{header.flags:x}")
        left = header.entries[0] + header.entries[1] - header.entries_end
        if left >= reader.ENTRY_HEADER_SIZE:
            yield FileFinding(
                rule,
                where,
                header.entries_end,
                f"entry table: must end after its {header.entry_count} entries, got {left} more bytes",
            )
        if header.entries[1] and header.entries[0] < header.offset + reader.HEADER_SIZE:
            yield FileFinding(rule, f"{where}, entry segment", header.entries[0], "overlaps the header")
        yield from _segment_overlaps(
            where, rule, {"entry": header.entries, "metadata": header.metadata, "storage": header.storage}
        )


def _segment_overlaps(where: str, rule: Severity, spans: dict[str, tuple[int, int]]) -> Iterator[FileFinding]:
    names = list(spans)
    for position, first in enumerate(names):
        for second in names[position + 1 :]:
            start = max(spans[first][0], spans[second][0])
            if start < min(sum(spans[first]), sum(spans[second])):
                yield FileFinding(rule, where, start, f"the {first} segment and the {second} segment overlap")


def _entries(archive: IrpaArchive, rule: Severity) -> Iterator[FileFinding]:
    for entry in archive.entries:
        where = _where(entry)
        if entry.flags:
            yield FileFinding(rule, where, entry.record, f"flags: must be 0 in version 0.0, got 0x{entry.flags:x}")
        if entry.kind is EntryType.SPLAT:
            yield from _pattern(entry, where, rule)
        if entry.kind is EntryType.EXTERNAL:
            yield FileFinding(
                Severity.NOTE,
                where,
                entry.record,
                f"is in the external file {entry.path!r}, which IREE's own reader does not support",
            )


def _pattern(entry: IrpaItem, where: str, rule: Severity) -> Iterator[FileFinding]:
    length = len(entry.pattern or b"")
    if length not in PATTERN_LENGTHS:
        # Its reader lists such an entry; iree-convert-parameters and loading into a module refuse it.
        yield FileFinding(
            Severity.ERROR,
            where,
            entry.record,
            f"pattern_length: must be one of {', '.join(map(str, PATTERN_LENGTHS))}, got {length}",
        )
    elif length not in reader.FILLED_BY_IREE:
        yield FileFinding(
            Severity.WARNING,
            where,
            entry.record,
            f"pattern_length: must be 1, 2 or 4 for IREE's runtime (3.13), got {length}",
        )
    if length and entry.length % length:
        problem = f"length: must be a multiple of {length} (pattern_length), got {entry.length}"
        yield FileFinding(rule, where, entry.record, problem)


def _names(archive: IrpaArchive, rule: Severity) -> Iterator[FileFinding]:
    first: dict[str, IrpaItem] = {}
    for entry in archive.entries:
        where = _where(entry)
        if entry.name in first:
            yield FileFinding(
                rule,
                where,
                entry.record,
                f"name: must be unique: the entry at byte {first[entry.name].record} has it, too, and is used",
            )
        first.setdefault(entry.name, entry)
        if any("\ud800" <= c <= "\udfff" for c in entry.name):
            yield FileFinding(rule, where, entry.record, "name: must be valid UTF-8 (IREE's Python API refuses others)")
        if "\0" in entry.name:
            yield FileFinding(rule, where, entry.record, "name: must not contain NUL, which ends it in C tools")


def _alignment(archive: IrpaArchive, rule: Severity) -> Iterator[FileFinding]:
    for entry in archive.entries:
        wanted, offset = entry.minimum_alignment, entry.offset or 0
        if wanted & (wanted - 1):
            yield FileFinding(
                rule, _where(entry), entry.record, f"minimum_alignment: must be a power of two, got {wanted}"
            )
        elif entry.kind is EntryType.DATA and wanted and entry.length and offset % wanted:
            # IREE's writer stores 64, independent of --alignment.
            yield FileFinding(
                rule,
                _where(entry),
                entry.record,
                f"offset of data: must be a multiple of {wanted} (minimum_alignment), got {offset}",
            )


def _overlaps(archive: IrpaArchive, rule: Severity) -> Iterator[FileFinding]:
    data = [(entry.offset or 0, entry) for entry in archive.entries if entry.kind is EntryType.DATA and entry.length]
    start, reach = 0, None
    for offset, entry in sorted(data, key=lambda item: (item[0], -item[1].length)):
        if reach is not None and offset < start + reach.length:
            same = (offset, entry.length) == (start, reach.length)
            severity, word = (Severity.NOTE, "shares") if same else (rule, "overlaps")
            yield FileFinding(severity, _where(entry), offset, f"{word} the data of {_label(reach.name)}")
        if reach is None or offset + entry.length > start + reach.length:
            start, reach = offset, entry


def _unlinked(archive: IrpaArchive, rule: Severity) -> Iterator[FileFinding]:
    """Archives after the chain's end that nothing links to (plain concatenation)."""
    if not archive.headers or any(p.where.startswith("header") for p in archive.problems):
        return
    end = max(header.end for header in archive.headers)
    at = _find(archive.source.data[end:], _HEADER_START)
    if at is not None:
        yield FileFinding(
            rule,
            "file",
            end + at,
            f"no header links to the archive at byte {end + at}, so readers ignore it. "
            "Use 'nvdla container edit --append' to add parameters to an archive.",
        )


def _find(data: memoryview, wanted: bytes) -> int | None:
    """Find bytes in a view that may be a large mapping."""
    at = 0
    for piece in pieces_of(data):
        place = bytes(data[at : at + len(piece) + len(wanted) - 1]).find(wanted)
        if place >= 0:
            return at + place
        at += len(piece)
    return None


def _external(archive: IrpaArchive, folder: Path | None) -> Iterator[FileFinding]:
    if folder is None:
        return
    for entry in archive.entries:
        if entry.kind is EntryType.EXTERNAL:
            try:
                archive.external_data(entry, folder)
            except FormatError as error:
                yield FileFinding(Severity.ERROR, _where(entry), entry.record, str(error))


def _where(entry: IrpaItem) -> str:
    return f"entry {_label(entry.name)}"


def _label(name: str) -> str:
    """A name for messages: quoted, escaped, not endless."""
    text = repr(name)
    return text if len(text) <= 100 else text[:97] + "..."
