"""IREE modules with other constants: new layout and new envelope.

A segment whose offset is 0 has no offset in its table (0 is the default), so that moving rodata changes the length of
tables and with it the place of everything written after them. flatcc writes from the back to the front: each object
takes the highest place below the one before at which its payload, after a head of 4 bytes, is aligned. Tables of
fields follow together, in the order of their first use, each content once (flatcc's builder.c).

IREE's compiler writes both from the same module; here the one is made from the other, with its bytes. Rodata after the
FlatBuffer has other offsets in the two, since each member of an archive has a header. So the FlatBuffer is laid out
again, and modules among the rodata are wrapped as the module itself. A FlatBuffer that the compiler
cannot have written stays unchanged, with its distance to the rodata.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from nvdla.errors import FormatError
from nvdla.interop.containers.vmfb.flatbuffer import FlatBuffer, FlatTable
from nvdla.interop.containers.vmfb.module import Module, Rodata, looks_like_module, read_by, text_of
from nvdla.interop.containers.vmfb.wrapping import ALIGNMENT, MODULE_MEMBER, header_length, local_member, zip_members
from nvdla.util.rounding import align

#: Alignment of a payload: of offsets of 64 bits, and of all else but rodata (texts among rodata ask for none).
WIDE, PLAIN = 8, 4
#: What rodata may ask for, the likeliest first. The largest shows at the buffer's ends alone.
RODATA = (16, 64, 32, 128, 256, 8, 4)
HEADER = 8  # root offset and identifier


class Log(FlatBuffer):
    """A reader that notes each object that it looks at, and each reference between them."""

    def __init__(self, data: memoryview, base: int, name: str) -> None:
        super().__init__(data, base, name)
        self.objects: dict[int, _Object] = {}
        self.references: dict[int, int] = {}

    def follow(self, offset: int, where: str) -> int:
        """Return the target of an offset, and record the reference."""
        target = self.references[offset] = super().follow(offset, where)
        return target

    def table(self, position: int, where: str) -> FlatTable:
        """The table at a position; it is noted."""
        table = super().table(position, where)
        vtable = position - self.scalar(position, 4, where, signed=True)
        fields = bytes(self.data[vtable : vtable + 4 + 2 * len(table.slots)])
        self.objects[position] = _Object(position, bytes(self.data[position : position + table.extent]), PLAIN, fields)
        return table

    def vector(self, position: int, size: int, where: str) -> tuple[int, int]:
        """First byte and count of the vector at a position; it is noted, with its end where it is a text."""
        start, count = super().vector(position, size, where)
        content = bytes(self.data[position : start + count * size])
        is_rodata = where.endswith(".embedded_data") and text_of(memoryview(content)[4:]) is None
        self.objects[position] = _Object(position, content, 0 if is_rodata else PLAIN)
        return start, count

    def string(self, position: int, where: str) -> str:
        """The text at a position; its terminating zero is noted with it."""
        text = super().string(position, where)
        known = self.objects[position]
        count = int.from_bytes(known.content[:4], "little")
        self.objects[position] = replace(known, content=bytes(self.data[position : position + 5 + count]))
        return text


@dataclass(frozen=True)
class _Object:
    """A table, vector or text at ``position``, with its head of 4 bytes; ``alignment`` of what follows (0: not known
    yet); ``fields``: its table of fields."""

    position: int
    content: bytes
    alignment: int
    fields: bytes = b""


@dataclass
class FlatBufferLayout:
    """The objects of a FlatBuffer in the order of their writing, last first in the file."""

    objects: list[_Object]
    references: dict[int, int]
    root: int
    identifier: bytes
    segments: list[int]  # tables of external rodata, in the module's order
    is_padded: bool  # at its end, which flatcc does since 2024

    def written(self, external: Sequence[tuple[int, int]] = ()) -> bytes:
        """The FlatBuffer without its size prefix; ``external``: new (offset, length) of each external segment."""
        moved = dict(zip(self.segments, external, strict=False))
        objects = [_external(item, *moved[item.position]) if item.position in moved else item for item in self.objects]
        places, start, greatest = _places(objects)
        vtables: dict[bytes, int] = {}
        end = 0
        for item in objects:
            if item.fields and item.fields not in vtables:
                vtables[item.fields] = end
                end += len(item.fields)
        start = (start - HEADER - 4) // greatest * greatest + 4  # the size prefix is at a multiple
        image = bytearray(end - start)
        for item in objects:
            at = places[item.position] - start
            image[at : at + len(item.content)] = item.content
            if item.fields:
                struct.pack_into("<i", image, at, places[item.position] - vtables[item.fields])
        self._refer(image, places, start)
        for fields, at in vtables.items():
            image[at - start : at - start + len(fields)] = fields
        struct.pack_into("<I4s", image, 0, places[self.root] - start, self.identifier)
        padding = end & greatest - 1  # as flatcc pads: by the remainder, not up to a multiple
        return bytes(image) + bytes(padding if self.is_padded else 0)

    def _refer(self, image: bytearray, places: Mapping[int, int], start: int) -> None:
        """Update each reference to the new position of its object."""
        starts = sorted(item.position for item in self.objects)
        at = 0
        for source in sorted(self.references):
            while at + 1 < len(starts) and starts[at + 1] <= source:
                at += 1
            if source >= starts[at]:  # not the root's
                here = places[starts[at]] + source - starts[at]
                struct.pack_into("<I", image, here - start, places[self.references[source]] - here)


def _places(objects: list[_Object]) -> tuple[dict[int, int], int, int]:
    """Return the start of each object, counted from the tables of fields; the lowest place; the greatest alignment."""
    places, start, greatest = {}, 0, PLAIN
    for item in objects:
        payload = (start - (len(item.content) - 4)) // item.alignment * item.alignment
        places[item.position] = start = payload - 4
        greatest = max(greatest, item.alignment)
    return places, start, greatest


def _external(segment: _Object, offset: int, length: int) -> _Object:
    """The table of an external segment with other numbers: fields that are 0 are left out."""
    (size,) = struct.unpack_from("<H", segment.fields)
    slots = [0] * ((size - 4) // 2)
    content = segment.content[:4]
    for slot, value in ((len(slots) - 2, offset), (len(slots) - 1, length)):
        if value:
            slots[slot] = len(content)
            content += value.to_bytes(8, "little")
    fields = struct.pack(f"<HH{len(slots)}H", size, len(content), *slots)
    return replace(segment, content=content, fields=fields)


def layout(module: Module) -> FlatBufferLayout | None:
    """The module's FlatBuffer, taken apart; None where flatcc would not have written it so."""
    start, length = module.wrapping.flatbuffer_offset, module.wrapping.flatbuffer_length
    log = Log(module.source.data[start : start + length], start, module.source.name)
    read_by(module, log)
    root = log.references[0]
    segments = _segments(module, log, root)
    for position in segments:
        log.objects[position] = replace(log.objects[position], alignment=WIDE)
    for greatest, is_padded in product(RODATA, (True, False)):
        flatbuffer = FlatBufferLayout(
            _aligned(log, greatest), log.references, root, bytes(log.data[4:8]), segments, is_padded
        )
        again = flatbuffer.written()
        if len(again) <= length and again + bytes(length - len(again)) == bytes(log.data):  # an archive pads it
            return flatbuffer
    return None


def _segments(module: Module, log: Log, root: int) -> list[int]:
    """Return the positions of the tables of the rodata outside the FlatBuffer."""
    generation = module.generation
    slot = generation.slot("RodataSegmentDef", "external_data_length")
    vector = generation.slot("BytecodeModuleDef", "rodata_segments")
    if slot is None or vector is None:
        return []
    return [table.position for table in log.table(root, "root").tables(vector, "rodata_segments") if table.has(slot)]


def _aligned(log: Log, greatest: int) -> list[_Object]:
    """The objects, last first, each with the alignment that its place shows; rodata: up to ``greatest``."""
    end = start = min(log.vtables())
    objects = []
    for item in sorted(log.objects.values(), key=lambda item: -item.position):
        payload = item.position + 4 - end
        gap = start - item.position - len(item.content)
        alignment = item.alignment or greatest
        while payload % alignment and alignment > PLAIN:
            alignment //= 2
        while alignment <= gap < 1 << 16 and payload % (2 * alignment) == 0:
            alignment *= 2
        objects.append(replace(item, alignment=alignment))
        start = item.position
    return objects


MODES = ("keep", "zip", "prefixed")
MAX_NAME = 1 << 12

#: Alignments of rodata, the likeliest first: executables (the compiler asks for none), weights for devices, other data.
_OF_EXECUTABLES, _OF_WEIGHTS, _OF_DATA = (16, 64, 32), (64, 16, 32), (16, 64, 32)
_RARE = (128, 256, 512, 1024, 2048, 4096, 8, 4, 2, 1)
#: How a module says that no device takes its executable: the one place where a module without an archive names it.
_REFUSAL = re.compile(rb"any variant of executable `([^`]{1,200})`; available formats: \[([^\]]{1,200})\]")


@dataclass(frozen=True)
class _Part:
    """A segment after the FlatBuffer: its bytes, its alignment, its name in an archive ("" where not known)."""

    content: bytes
    alignment: int
    name: str


def rewrap(module: Module, mode: str, names: Sequence[str] = ()) -> bytes:
    """The file again (``keep``), inside a ZIP archive, or without one; ``names``: of the archive's members after the
    first, which a module without an archive does not know (without them they get the compiler's usual ones). A module
    that lost its size prefix (and was opened all the same) gets it back. FormatError where the module's time knows no
    such wrapping, or names do not fit."""
    if mode not in MODES:
        raise FormatError(f"option wrapping: must be one of {', '.join(MODES)}, got {mode!r}")
    around, data = module.wrapping, module.source.data
    if mode == "keep" or (mode == "zip" and around.kind == "zip+size-prefixed"):
        return bytes(data)
    if not module.generation.is_prefixed:
        raise FormatError(
            f"{module.source.name}: wrapping: must be keep for modules of {module.generation.name}, got {mode}"
        )
    original = layout(module)
    parts = None if original is None else _parts(module, original, mode)
    if original is None or parts is None:
        return _kept(module, mode)
    return _zipped(original, _named(module, parts, names)) if mode == "zip" else _plain(original, parts)


def _plain(original: FlatBufferLayout, parts: Sequence[_Part]) -> bytes:
    """Size prefix, FlatBuffer, rodata: as the compiler writes it without an archive."""
    external, tail = [], 0
    for part in parts:
        tail = align(tail, part.alignment)
        external.append((tail, len(part.content)))
        tail += len(part.content)
    flatbuffer = original.written(external)
    image = bytearray(len(flatbuffer).to_bytes(4, "little") + flatbuffer)
    image += bytes(-len(image) % ALIGNMENT)
    base = len(image)
    for part, (offset, _) in zip(parts, external, strict=True):
        image += bytes(base + offset - len(image)) + part.content
    return bytes(image)


def _zipped(original: FlatBufferLayout, parts: Sequence[_Part]) -> bytes:
    """A ZIP archive; its size prefix counts the padding to 64 bytes (with the prefix counted twice, ArchiveWriter.cpp),
    and offsets count the headers of members."""
    external, tail = [], 0
    for part in parts:
        start = align(tail + header_length(part.name), part.alignment)
        external.append((start, len(part.content)))
        tail = start + len(part.content)
    flatbuffer = original.written(external)
    size = align(8 + len(flatbuffer), ALIGNMENT) - 4
    body = size.to_bytes(4, "little") + flatbuffer + bytes(size - len(flatbuffer))
    members = [(MODULE_MEMBER, body), *((part.name, part.content) for part in parts)]
    return zip_members(members, [part.alignment for part in parts])


def _parts(module: Module, original: FlatBufferLayout, mode: str) -> list[_Part] | None:
    """Return the segments after the FlatBuffer; None for a layout other than the compiler's."""
    segments = [segment for segment in module.rodata if segment.is_external]
    if len(segments) != len(original.segments):
        return None
    base = module.wrapping.rodata_offset or 0
    names, earliest, at = [], [], base
    for segment in segments:
        member = local_member(module.source.data, at) if module.wrapping.kind.startswith("zip") else None
        names.append(member.name if member and member.data_offset == segment.offset else "")
        earliest.append(at - base + (header_length(names[-1]) if names[-1] else 0))
        at = segment.offset + len(segment.data)
    starts = [segment.offset - base for segment in segments]
    if any(start < low for start, low in zip(starts, earliest, strict=True)):
        return None
    alignments = _alignments(module, segments, list(zip(earliest, starts, strict=True)))
    nested = dict(module.nested())
    contents = [
        rewrap(nested[segment.index], mode) if segment.index in nested else bytes(segment.data) for segment in segments
    ]
    return [_Part(*fields) for fields in zip(contents, alignments, names, strict=True)]


def _alignments(module: Module, segments: Sequence[Rodata], places: Sequence[tuple[int, int]]) -> list[int]:
    """Return the alignment of each segment, derived from its earliest possible and its real place. Weights of one
    module have the same alignment, which all of them must fit."""
    weights = _OF_WEIGHTS if any(function.name.startswith("hal.") for function in module.imports) else _OF_DATA
    data = [place for segment, place in zip(segments, places, strict=True) if not _is_executable(segment.data)]
    common = next((size for size in (*weights, *_RARE) if all(_fits(size, *place) for place in data)), None)
    alignments = []
    for segment, place in zip(segments, places, strict=True):
        likely = _OF_EXECUTABLES if _is_executable(segment.data) else (common or weights[0], *weights)
        alignments.append(next((size for size in (*likely, *_RARE) if _fits(size, *place)), 1))
    return alignments


def _fits(alignment: int, earliest: int, start: int) -> bool:
    return align(earliest, alignment) == start


def _is_executable(data: memoryview) -> bool:
    """Check whether rodata is device code: a module, an ELF file, or a FlatBuffer after IREE's header of 64 bytes,
    which begins with the FlatBuffer's identifier and ends with zeros."""
    header = bytes(data[:72])
    if header[:4] == b"\x7fELF" or looks_like_module(header):
        return True
    return len(header) == 72 and header[:4] == header[68:72] and not any(header[16:64])


def _named(module: Module, parts: Sequence[_Part], names: Sequence[str]) -> list[_Part]:
    """The parts with names: as given, or as the compiler's passes name constants and executables."""
    if names and len(names) != len(parts):
        raise FormatError(
            f"option names: must have {len(parts)} names (segments after the FlatBuffer), got {len(names)}"
        )
    for name in names:
        if not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME or "\0" in name:
            raise FormatError(f"option names: {name!r:.80}: must have 1 to {MAX_NAME} bytes without NUL")
    usual = names or _usual_names(module, parts)
    return [_Part(part.content, part.alignment, name) for part, name in zip(parts, usual, strict=True)]


def _usual_names(module: Module, parts: Sequence[_Part]) -> list[str]:
    """``_const.bin``, ``_const_0.bin``, ... for data; executables as in what the module says where no device takes
    them."""
    refusals = [match.groups() for match in _REFUSAL.finditer(module.bytecode)]
    stems = [(name, form) for name, forms in refusals for form in forms.split(b", ")]
    names, constants = [], 0
    for number, part in enumerate(parts):
        if _is_executable(memoryview(part.content)):
            name, form = stems.pop(0) if stems else (b"executable_%d" % number, b"")
            stem = (name + b"_" * bool(form) + form.replace(b"-", b"_")).decode("utf-8", "replace")
            names.append(stem + (".so" if part.content[:4] == b"\x7fELF" else ".fb"))
        else:
            names.append(f"_const_{constants - 1}.bin" if constants else "_const.bin")
            constants += 1
    return names


def _kept(module: Module, mode: str) -> bytes:
    """With the FlatBuffer unchanged, and the rodata at its distance from it, which a header of a multiple of 64 bytes
    does not change."""
    around, data = module.wrapping, module.source.data
    if around.rodata_offset is None or not any(segment.is_external for segment in module.rodata):
        start = around.flatbuffer_offset
        body = around.flatbuffer_length.to_bytes(4, "little") + bytes(data[start : start + around.flatbuffer_length])
        return zip_members([(MODULE_MEMBER, body)]) if mode == "zip" else body
    if around.module_offset % ALIGNMENT:
        raise FormatError(
            f"{module.source.name}: offset of the module: must be a multiple of {ALIGNMENT} to keep the place "
            f"of its rodata, got {around.module_offset}"
        )
    end = max(segment.offset + len(segment.data) for segment in module.rodata if segment.is_external)
    body = bytes(data[around.module_offset : max(end, around.flatbuffer_offset + around.flatbuffer_length)])
    return zip_members([(MODULE_MEMBER, body)]) if mode == "zip" else body + bytes(-len(body) % ALIGNMENT)
