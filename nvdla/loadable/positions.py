"""Where in a file a field lies: for messages about files whose structure is sound and whose numbers are not."""

from __future__ import annotations

import re
import struct

from nvdla.loadable.schema import LOADABLE, Scalar, Struct, TableField, TableSchema, Vector

_PATH = re.compile(r"(?P<list>\w+)(?:\[(?P<index>\d+)\])?(?: \([^)]*\))?(?:\.(?P<field>\w+)(?:\[(?P<element>\d+)\])?)?")


def position_of(buffer: memoryview, path: str) -> int | None:
    """The byte at which lies what a message names first: ``memory_list[3].offsets[1]``.

    ``buffer``: a loadable that :class:`nvdla.loadable.verifier.Verifier` has passed. For a field that is absent, so
    that its default counts, the position of its table. None where ``path`` names no field of a loadable.
    """
    found = _PATH.match(path)
    if found is None:
        return None
    root = _offset(buffer, 0)
    if found["list"] == LOADABLE.name:
        return _inside(buffer, root, LOADABLE, found["field"], None)
    entries = _field(LOADABLE, found["list"])
    if entries is None or found["index"] is None:
        return None
    at = _inside(buffer, root, LOADABLE, entries.name, found["index"])
    kind = entries.type.element if isinstance(entries.type, Vector) else None
    if not isinstance(kind, TableSchema) or at == _inside(buffer, root, LOADABLE, entries.name, None):
        return None  # no table, or no such entry
    return _inside(buffer, _offset(buffer, at), kind, found["field"], found["element"])


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
