"""Writing an IREE parameter archive the way IREE's own builder lays it out (iree/io/formats/irpa/irpa_builder.c).

Entry table at byte 96, then names and metadata without alignment, then storage; the file padded to 4096 bytes. Given
the same entries and alignments, the bytes equal those of iree-create-parameters and iree-convert-parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nvdla.argument_kinds import by_annotations
from nvdla.checked import instance
from nvdla.containers.irpa import layout
from nvdla.containers.irpa.layout import EntryType
from nvdla.containers.irpa.reader import IrpaItem
from nvdla.containers.parameters import PATTERN_LENGTHS
from nvdla.errors import FormatError
from nvdla.rounding import align

_ENTRIES_AT = align(layout.HEADER_SIZE, layout.ENTRY_ALIGNMENT)
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
        is_usable = 0 < wanted <= layout.MAX_ALIGNMENT and not wanted & (wanted - 1)
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
        """What the entry will be."""
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
        return replace(self, data=None, path=None, pattern=pattern, length=length, offset=0, minimum_alignment=None)


@by_annotations
def build(
    entries: Iterable[EntrySpec],
    alignment: int = layout.DATA_ALIGNMENT,
    file_alignment: int = layout.FILE_ALIGNMENT,
    packing: int | None = None,
    base: int = 0,
) -> bytes:
    """A whole archive as bytes; see :func:`chunks`."""
    return b"".join(chunks(entries, alignment, file_alignment, packing, base))


@by_annotations
def chunks(
    entries: Iterable[EntrySpec],
    alignment: int = layout.DATA_ALIGNMENT,
    file_alignment: int = layout.FILE_ALIGNMENT,
    packing: int | None = None,
    base: int = 0,
) -> Iterator[bytes | memoryview]:
    """The archive piece by piece, data not copied.

    ``alignment`` (bytes) is written as minimum_alignment of entries that name none of their own and honoured for each.
    ``packing`` overrides where data are placed, leaving the field as it is: what iree-create-parameters --alignment
    does. ``base`` is the offset the archive will have in its file; data are aligned in the file, not in the archive.
    """
    specs = [instance(each, EntrySpec, "each of the entries") for each in entries]
    for name, value in (("alignment", alignment), ("file alignment", file_alignment), ("packing", packing or 1)):
        if not 0 < value <= layout.MAX_ALIGNMENT or value & (value - 1):
            raise FormatError(f"{name} is {value}, must be a power of two from 1 to {layout.MAX_ALIGNMENT}")
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
        raise FormatError(f"entry {label}: give exactly one of data, pattern and external path")
    if spec.pattern is not None:
        if len(spec.pattern) not in PATTERN_LENGTHS:
            raise FormatError(f"entry {label}: a pattern has 1, 2, 4, 8 or 16 bytes, not {len(spec.pattern)}")
        if spec.length % len(spec.pattern):
            raise FormatError(
                f"entry {label}: length {spec.length} is no multiple of the pattern's {len(spec.pattern)} bytes"
            )
    if not 0 <= spec.length < 1 << 64 or not 0 <= spec.offset < 1 << 64:
        raise FormatError(f"entry {label}: length {spec.length} and offset {spec.offset} must fit 64 bits")
    wanted = alignment if spec.minimum_alignment is None else spec.minimum_alignment
    if not 0 < wanted <= layout.MAX_ALIGNMENT or wanted & (wanted - 1):
        raise FormatError(
            f"entry {label}: minimum alignment is {wanted}, must be a power of two from 1 to {layout.MAX_ALIGNMENT}"
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
            f"entry {label}: minimum alignment {worst.minimum_alignment} and those of the other entries "
            f"take {padding} bytes of padding, over the limit of {limit}; name a packing to place data "
            "closer together"
        )


def _table_length(specs: Sequence[EntrySpec]) -> int:
    end = 0
    for spec in specs:
        end = align(end, layout.ENTRY_ALIGNMENT) + ctypes.sizeof(layout.ENTRY_STRUCTURES[spec.kind])
    return end


def _place(
    specs: Sequence[EntrySpec], alignment: int, packing: int | None, base: int, header_end: int
) -> tuple[int, list[int], int]:
    """Where storage begins, each entry's offset in it (0 for those without data), and how long it is."""
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
    prefix = layout.HeaderPrefix(magic=layout.MAGIC, header_size=layout.HEADER_SIZE)
    return bytes(layout.HeaderV0(prefix, count, *(layout.Range(*span) for span in spans)))


def index(specs: Sequence[EntrySpec], offsets: Sequence[int], alignment: int) -> tuple[bytes, bytes]:
    """The entry table and the metadata of an archive whose data lie at ``offsets`` in its storage segment."""
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
        table += bytes(-len(table) % layout.ENTRY_ALIGNMENT)
        structure = layout.ENTRY_STRUCTURES[spec.kind]
        name = layout.Range(text, len(spec.name_bytes))
        text += name.length
        # A missing blob is written as offset 0, length 0.
        blob = layout.Range(text if len(spec.metadata) else 0, len(spec.metadata))
        text += blob.length
        # Without data there is nothing to align, and IREE's writer stores 0.
        field = spec.minimum_alignment or (alignment if spec.kind is EntryType.DATA else 0)
        head = layout.EntryHeader(ctypes.sizeof(structure), spec.kind, spec.flags, name, blob, field)
        if spec.kind is EntryType.DATA:
            table += bytes(structure(head, layout.Range(offset, len(spec.data or b""))))
        elif spec.kind is EntryType.SPLAT:
            pattern = spec.pattern or b""
            padded = (ctypes.c_uint8 * layout.MAX_PATTERN).from_buffer_copy(pattern.ljust(layout.MAX_PATTERN, b"\0"))
            table += bytes(structure(head, spec.length, padded, len(pattern)))
        else:
            path = (spec.path or "").encode("utf-8", "surrogateescape")
            table += bytes(structure(head, layout.Range(text, len(path)), layout.Range(spec.offset, spec.length)))
            text += len(path)
    return bytes(table)


def _zeros(count: int) -> Iterator[bytes]:
    while count > 0:
        yield _ZEROS[:count]
        count -= len(_ZEROS)
