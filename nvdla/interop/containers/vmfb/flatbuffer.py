"""A small FlatBuffer reader that checks every offset before it follows it.

Generated bindings trust the file; here tables, vtables, vectors and strings must be in the buffer and aligned. The
whole traversal may read no more bytes than a small multiple of the file's size, so shared or overlapping references
cannot make reading quadratic. Format: https://flatbuffers.dev/internals (tables, vtables, vectors, strings, unions).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from nvdla.errors import FormatError

#: Work allowed: bytes looked at, as a multiple of the buffer's length, and a floor for tiny files.
_WORK_FACTOR, _WORK_FLOOR = 16, 1 << 16


class FlatBuffer:
    """A FlatBuffer that begins at byte 0 of ``data``; ``base`` is where that is in the file (for messages)."""

    def __init__(self, data: memoryview, base: int, name: str) -> None:
        self.data = data
        self.base = base
        self.name = name
        self.work = _WORK_FACTOR * len(data) + _WORK_FLOOR
        self.end = 0  # after the bytes that were read
        self._strings: dict[int, str] = {}
        self._vtables: dict[int, tuple[int, array[int]]] = {}

    def fail(self, where: str, offset: int, message: str) -> FormatError:
        """An error that names file, field and byte."""
        return FormatError(f"{self.name}: {where} at byte {self.base + offset}: {message}")

    def spend(self, amount: int, where: str, offset: int) -> None:
        """Charge work to the file's allowance. Raises FormatError when it is spent."""
        self.work -= amount
        if self.work < 0:
            raise self.fail(where, offset, "tables, vectors or strings: must not overlap, or be shared so often")

    def scalar(self, offset: int, size: int, where: str, signed: bool = False) -> int:
        """A little-endian number; its bytes must be in the buffer."""
        if offset < 0 or offset + size > len(self.data):
            raise self.fail(
                where, max(offset, 0), f"{size} bytes: must be within the FlatBuffer of {len(self.data)} bytes"
            )
        self.end = max(self.end, offset + size)
        return int.from_bytes(self.data[offset : offset + size], "little", signed=signed)

    def follow(self, offset: int, where: str) -> int:
        """The position that the unsigned relative offset stored at ``offset`` points to."""
        relative = self.scalar(offset, 4, where)
        if not 0 < relative < len(self.data) - offset:
            raise self.fail(
                where, offset, f"offset: must be within the FlatBuffer of {len(self.data)} bytes, got {relative}"
            )
        return offset + relative

    def root(self, identifier: bytes) -> FlatTable:
        """The root table, after checking the file identifier."""
        if len(self.data) < 8:
            raise self.fail("FlatBuffer", 0, f"must have at least 8 bytes, got {len(self.data)}")
        if bytes(self.data[4:8]) != identifier:
            raise self.fail("FlatBuffer", 4, f"identifier: must be {identifier!r}, got {bytes(self.data[4:8])!r}")
        return self.table(self.follow(0, "root"), "root")

    def table(self, position: int, where: str) -> FlatTable:
        """The table at ``position``: its vtable and its extent are checked."""
        if position % 4:
            raise self.fail(where, position, f"position of a table: must be a multiple of 4 bytes, got {position}")
        vtable = position - self.scalar(position, 4, where, signed=True)
        if vtable < 0 or vtable % 2:
            raise self.fail(
                where, position, f"position of its vtable: must be even and within the FlatBuffer, got {vtable}"
            )
        extent, slots = self._vtables.get(vtable) or self._vtable(vtable, where)
        if extent < 4 or position + extent > len(self.data):
            raise self.fail(where, position, f"size of a table: must fit the FlatBuffer, got {extent}")
        self.spend(2 * len(slots) + 8, where, position)
        self.end = max(self.end, position + extent)
        return FlatTable(self, position, extent, slots, where)

    def _vtable(self, vtable: int, where: str) -> tuple[int, array[int]]:
        """Bytes of a table, and the positions of its fields. Tables of one type share a vtable, so it is kept."""
        length, extent = self.scalar(vtable, 2, where), self.scalar(vtable + 2, 2, where)
        if length < 4 or length % 2 or vtable + length > len(self.data):
            raise self.fail(
                where, vtable, f"size of a vtable: must be even, at least 4, and fit the FlatBuffer, got {length}"
            )
        slots = array("H", bytes(self.data[vtable + 4 : vtable + length]))  # two bytes each: vtables may overlap
        if sys.byteorder == "big":
            slots.byteswap()
        if slots and max(slots) >= max(extent, 4):
            raise self.fail(where, vtable, f"a field: must be within its table of {extent} bytes")
        self.end = max(self.end, vtable + length)
        self._vtables[vtable] = extent, slots
        return extent, slots

    def vtables(self) -> list[int]:
        """Positions of the tables of fields that were read."""
        return list(self._vtables)

    def vector(self, position: int, size: int, where: str) -> tuple[int, int]:
        """(position of the first element, count) of a vector of elements of ``size`` bytes."""
        count = self.scalar(position, 4, where)
        start = position + 4
        if count * size > len(self.data) - start:
            raise self.fail(where, position, f"vector: must fit the FlatBuffer, got {count} elements of {size} bytes")
        self.spend(4 + count * size, where, position)
        self.end = max(self.end, start + count * size)
        return start, count

    def string(self, position: int, where: str) -> str:
        """A string; undecodable bytes come as surrogates. The terminating NUL must be there."""
        known = self._strings.get(position)
        if known is None:
            start, count = self.vector(position, 1, where)
            if self.scalar(start + count, 1, where):
                raise self.fail(where, position, "string: must end with a zero byte")
            known = bytes(self.data[start : start + count]).decode("utf-8", "surrogateescape")
            self._strings[position] = known
        return known


@dataclass(frozen=True)
class FlatTable:
    """A table: ``slots`` are the offsets of its fields in it, 0 for a field that is absent."""

    buffer: FlatBuffer
    position: int
    extent: int
    slots: array[int]
    where: str

    def _field(self, slot: int, size: int) -> int:
        """Position of the field's inline bytes, 0 when it is absent."""
        inside = self.slots[slot] if slot < len(self.slots) else 0
        if not inside:
            return 0
        if inside < 4 or inside + size > self.extent:
            raise self.buffer.fail(
                f"{self.where}, field {slot}",
                self.position,
                f"end of the field: must be at most {self.extent} (size of its table), got {inside + size}",
            )
        return self.position + inside

    def has(self, slot: int) -> bool:
        """Check whether a field is present."""
        return slot < len(self.slots) and self.slots[slot] != 0

    def scalar(self, slot: int, size: int, signed: bool = False, default: int = 0) -> int:
        """A number; ``default`` where the field is not there."""
        at = self._field(slot, size)
        return self.buffer.scalar(at, size, self.where, signed) if at else default

    def scalar_at(self, slot: int, size: int) -> int:
        """Position of a scalar in the buffer (to patch it), 0 when absent."""
        return self._field(slot, size)

    def _reference(self, slot: int, name: str) -> int:
        at = self._field(slot, 4)
        return self.buffer.follow(at, f"{self.where}.{name}") if at else 0

    def string(self, slot: int, name: str) -> str | None:
        """A text, None where the field is not there."""
        at = self._reference(slot, name)
        return self.buffer.string(at, f"{self.where}.{name}") if at else None

    def table(self, slot: int, name: str) -> FlatTable | None:
        """A table, None where the field is not there."""
        at = self._reference(slot, name)
        return self.buffer.table(at, f"{self.where}.{name}") if at else None

    def tables(self, slot: int, name: str) -> Iterator[FlatTable]:
        """The tables of a vector; none where the field is not there."""
        at = self._reference(slot, name)
        start, count = self.buffer.vector(at, 4, f"{self.where}.{name}") if at else (0, 0)
        for index in range(count):
            where = f"{self.where}.{name}[{index}]"
            yield self.buffer.table(self.buffer.follow(start + 4 * index, where), where)

    def union_tables(self, slot: int, name: str, kinds: bytes) -> list[FlatTable | None]:
        """A vector of unions, whose types ``kinds`` tells; an element of type 0 (none) is None."""
        at = self._reference(slot, name)
        start, count = self.buffer.vector(at, 4, f"{self.where}.{name}") if at else (0, 0)
        if count != len(kinds):
            raise self.buffer.fail(
                f"{self.where}.{name}", at, f"values: must be {len(kinds)}, one per type, got {count}"
            )
        places = [(start + 4 * n, f"{self.where}.{name}[{n}]") for n in range(count)]
        return [
            self.buffer.table(self.buffer.follow(*place), place[1]) if kind else None
            for place, kind in zip(places, kinds, strict=True)
        ]

    def octets(self, slot: int, name: str) -> memoryview | None:
        """A vector of bytes, as a view."""
        at = self._reference(slot, name)
        if not at:
            return None
        start, count = self.buffer.vector(at, 1, f"{self.where}.{name}")
        return self.buffer.data[start : start + count]

    def numbers(self, slot: int, name: str) -> list[int]:
        """A vector of int32."""
        return [int.from_bytes(record, "little", signed=True) for record in self.records(slot, name, 4)]

    def records(self, slot: int, name: str, size: int) -> list[memoryview]:
        """A vector of structures of ``size`` bytes, as views."""
        at = self._reference(slot, name)
        if not at:
            return []
        start, count = self.buffer.vector(at, size, f"{self.where}.{name}")
        return [self.buffer.data[start + size * n : start + size * (n + 1)] for n in range(count)]
