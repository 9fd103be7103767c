"""Structural verification of a FlatBuffer, done while it is decoded.

Python's flatbuffers package reads whatever an offset points at. :class:`Verifier` walks the buffer along a declared
schema (:mod:`nvdla.loadable.schema`) and checks each position before it reads it, so nothing can be decoded that was
not verified: bounds, alignment, vtables, vectors, strings (closing NUL, UTF-8), and the numbers in
:class:`nvdla.limits.Limits`.

64-bit numbers need only be aligned to 4 bytes, although FlatBuffers aligns them to 8: NVIDIA's regression loadables of
2018 are built that way, and NVIDIA's runtime reads them.

Offsets may share targets, as FlatBuffers allows. What sharing can cost is bounded by ``Limits.sharing``: the walk reads
at most that many times the size of the file, so time and memory stay linear in it.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from nvdla.errors import LoadableError, NvdlaError
from nvdla.limits import Limits
from nvdla.loadable.schema import Scalar, String, Struct, TableField, TableSchema, Vector

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_S32 = struct.Struct("<i")


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
        raise self.error(f"{where} at byte {position}: {what} is {value}, must be {limit}{hint}")

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
            self._fail(path, field, position, "data read through shared offsets", "too much", limit)

    def _target(self, path: str, field: str, position: int) -> int:
        """Follow the forward offset stored at ``position`` (already inside the file)."""
        offset = _U32.unpack_from(self.buffer, position)[0]
        if offset == 0 or position + offset + 4 > self.size:
            self._fail(path, field, position, "offset", offset, f"between 1 and {self.size - 4 - position} (file size)")
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
            values[field.name] = self._field(position + offset, field, path, depth)
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

    def _field(self, position: int, field: TableField, path: str, depth: int) -> object:
        kind = field.type
        if isinstance(kind, Scalar | Struct):
            if position % kind.alignment:
                self._fail(path, field.name, position, "position", position, f"a multiple of {kind.alignment}")
            values = kind.packed.unpack_from(self.buffer, position)
            return values[0] if isinstance(kind, Scalar) else values
        if position % 4:
            self._fail(path, field.name, position, "position", position, "a multiple of 4")
        target = self._target(path, field.name, position)
        if isinstance(kind, String):
            return self._string(target, path, field.name)
        return self._vector(target, kind, path, field.name, depth)

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
            self._fail(path, field, start + length, "byte behind string", self.buffer[start + length], "0")
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
        values: list[Any] = []
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
