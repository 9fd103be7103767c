"""A FlatBuffer written again as flatcc, IREE's FlatBuffer writer, writes it, with other places of external rodata.

A segment whose offset is 0 has no offset in its table (0 is the default), so that moving rodata changes the length of
tables and with it the place of everything written after them. flatcc writes from the back to the front: each object
takes the highest place below the one before at which its payload, behind a head of 4 bytes, is aligned. Tables of
fields lie together behind all that, in the order of their first use, each content once (flatcc's builder.c).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from nvdla.containers.vmfb.flatbuffer import FlatBuffer, FlatTable
from nvdla.containers.vmfb.module import Module, read_by
from nvdla.containers.vmfb.words import text_of

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
        """Where an offset leads to; the reference is noted."""
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
        objects = [_external(each, *moved[each.position]) if each.position in moved else each for each in self.objects]
        places, start, greatest = _places(objects)
        vtables: dict[bytes, int] = {}
        end = 0
        for each in objects:
            if each.fields and each.fields not in vtables:
                vtables[each.fields] = end
                end += len(each.fields)
        start = (start - HEADER - 4) // greatest * greatest + 4  # the size prefix lies at a multiple
        image = bytearray(end - start)
        for each in objects:
            at = places[each.position] - start
            image[at : at + len(each.content)] = each.content
            if each.fields:
                struct.pack_into("<i", image, at, places[each.position] - vtables[each.fields])
        self._refer(image, places, start)
        for fields, at in vtables.items():
            image[at - start : at - start + len(fields)] = fields
        struct.pack_into("<I4s", image, 0, places[self.root] - start, self.identifier)
        padding = end & greatest - 1  # as flatcc pads: by the remainder, not up to a multiple
        return bytes(image) + bytes(padding if self.is_padded else 0)

    def _refer(self, image: bytearray, places: Mapping[int, int], start: int) -> None:
        """Puts each reference where its object lies now."""
        starts = sorted(each.position for each in self.objects)
        at = 0
        for source in sorted(self.references):
            while at + 1 < len(starts) and starts[at + 1] <= source:
                at += 1
            if source >= starts[at]:  # not the root's
                here = places[starts[at]] + source - starts[at]
                struct.pack_into("<I", image, here - start, places[self.references[source]] - here)


def _places(objects: list[_Object]) -> tuple[dict[int, int], int, int]:
    """Where each object begins, counted from the tables of fields; the lowest place; the greatest alignment."""
    places, start, greatest = {}, 0, PLAIN
    for each in objects:
        payload = (start - (len(each.content) - 4)) // each.alignment * each.alignment
        places[each.position] = start = payload - 4
        greatest = max(greatest, each.alignment)
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
        made = FlatBufferLayout(
            _aligned(log, greatest), log.references, root, bytes(log.data[4:8]), segments, is_padded
        )
        again = made.written()
        if len(again) <= length and again + bytes(length - len(again)) == bytes(log.data):  # an archive pads it
            return made
    return None


def _segments(module: Module, log: Log, root: int) -> list[int]:
    """Where the tables of the rodata outside the FlatBuffer lie."""
    generation = module.generation
    slot = generation.slot("RodataSegmentDef", "external_data_length")
    vector = generation.slot("BytecodeModuleDef", "rodata_segments")
    if slot is None or vector is None:
        return []
    return [each.position for each in log.table(root, "root").tables(vector, "rodata_segments") if each.has(slot)]


def _aligned(log: Log, greatest: int) -> list[_Object]:
    """The objects, last first, each with the alignment that its place shows; rodata: up to ``greatest``."""
    behind = start = min(log.vtables())
    objects = []
    for each in sorted(log.objects.values(), key=lambda each: -each.position):
        payload = each.position + 4 - behind
        gap = start - each.position - len(each.content)
        alignment = each.alignment or greatest
        while payload % alignment and alignment > PLAIN:
            alignment //= 2
        while alignment <= gap < 1 << 16 and payload % (2 * alignment) == 0:
            alignment *= 2
        objects.append(replace(each, alignment=alignment))
        start = each.position
    return objects
