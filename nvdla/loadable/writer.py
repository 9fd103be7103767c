"""Model -> bytes, with the FlatBuffers builder, by the schema (:mod:`nvdla.loadable.schema`).

What is written reads back as an equal model. Default values are left out, as FlatBuffers does; empty lists and names
are written, so that NVIDIA's runtime (which does not ask whether a list is there) can read the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flatbuffers

from nvdla.errors import FormatError, LoadableError
from nvdla.files import write_file
from nvdla.loadable import schema
from nvdla.loadable.schema import Scalar, String, Struct, TableSchema, Vector

if TYPE_CHECKING:
    from nvdla.loadable import model

#: FlatBuffers address at most 2 GiB
MAX_BYTES = (1 << 31) - 1
#: lists of the model in the order of the root's slots
_TABLES: tuple[tuple[str, TableSchema], ...] = (
    ("tasks", schema.TASK),
    ("memories", schema.MEMORY),
    ("addresses", schema.ADDRESS),
    ("events", schema.EVENT),
    ("blobs", schema.BLOB),
    ("tensors", schema.TENSOR),
    ("relocs", schema.RELOC),
    ("submits", schema.SUBMIT),
)
_NAMES = {"B": "Uint8", "H": "Uint16", "I": "Uint32", "Q": "Uint64", "h": "Int16", "i": "Int32"}
_BITS = {"B": (0, 8), "H": (0, 16), "I": (0, 32), "Q": (0, 64), "h": (1, 16), "i": (1, 32)}


def to_bytes(loadable: model.Loadable) -> bytes:
    """The loadable as a FlatBuffer. LoadableError for numbers that do not fit their fields, or too much data."""
    total = sum(blob.length for blob in loadable.blobs)
    if total > MAX_BYTES - (1 << 20):
        raise LoadableError(f"blobs: {total} bytes together, must be at most {MAX_BYTES - (1 << 20)} (FlatBuffers)")
    _check_ranges(loadable)
    builder = flatbuffers.Builder(total + 4096)
    try:
        lists = [
            _vector(builder, [_entry(builder, table, each) for each in getattr(loadable, name)], schema.OFFSET)
            for name, table in _TABLES
        ]
        builder.StartObject(1 + len(lists))
        for slot, offset in enumerate(lists, 1):
            builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        builder.PrependStructSlot(0, _version(builder, loadable.version), 0)
        identifier = loadable.identifier.encode()
        builder.Finish(builder.EndObject(), file_identifier=identifier if len(identifier) == 4 else None)
    except flatbuffers.builder.BuilderSizeError as error:
        raise LoadableError(f"the loadable does not fit a FlatBuffer: {error}") from None
    return bytes(builder.Output())


def save(loadable: model.Loadable, path: str | Path) -> None:
    """Write the file whole or not at all. LoadableError when the model or the folder does not allow it."""
    data = to_bytes(loadable)
    try:
        write_file(path, data)
    except (FormatError, ValueError) as error:
        raise LoadableError(str(error)) from None


# ---- tables by their schema


def _entry(builder: Any, table: TableSchema, entry: Any) -> int:
    """A table: what it points at comes first, then its fields by slot."""
    values = [_value(entry, field.name) for field in table.fields]
    made = [_outside(builder, field.type, value) for field, value in zip(table.fields, values, strict=True)]
    builder.StartObject(len(table.fields))
    for slot, (field, value) in enumerate(zip(table.fields, made, strict=True)):
        if isinstance(field.type, Scalar):
            getattr(builder, f"Prepend{_NAMES[field.type.code]}Slot")(slot, value, 0)
        elif not isinstance(field.type, Struct):
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        elif value is not None:
            builder.PrependStructSlot(slot, _version(builder, value), 0)
    return int(builder.EndObject())


def _outside(builder: Any, kind: Any, value: Any) -> Any:
    """The offset of a string or vector; numbers and structs lie within their table."""
    if isinstance(kind, String):
        return builder.CreateString(value)
    if not isinstance(kind, Vector):
        return value
    if kind.element == schema.U8:
        return builder.CreateByteVector(bytes(value))
    if isinstance(kind.element, String):
        return _vector(builder, [builder.CreateString(each) for each in value], schema.OFFSET)
    return _vector(builder, value, kind.element)


def _vector(builder: Any, values: Sequence[int], element: Any) -> int:
    builder.StartVector(element.size, len(values), element.size)
    name = "UOffsetTRelative" if element is schema.OFFSET else _NAMES[element.code]
    prepend = getattr(builder, f"Prepend{name}")
    for value in reversed(values):
        prepend(value)
    return int(builder.EndVector())


def _version(builder: Any, version: model.Version) -> int:
    builder.Prep(1, schema.VERSION.size)
    for number in (version.sub_minor, version.minor, version.major):
        builder.PrependUint8(number)
    return int(builder.Offset())


# ---- does everything fit its field?


def _check_ranges(loadable: model.Loadable) -> None:
    """Refuse numbers that are too large for their field, before the builder sees them."""
    _check_version("version", loadable.version)
    for list_name, table in _TABLES:
        for index, entry in enumerate(getattr(loadable, list_name)):
            for field in table.fields:
                _check_value(f"{list_name}[{index}].{field.name}", _value(entry, field.name), field.type)


def _value(entry: Any, name: str) -> Any:
    """A schema field of a model entry; two of them have another name in the model."""
    if name.startswith("stride_"):
        strides = entry.strides
        return strides[int(name[7:])] if len(strides) == 8 else None
    return entry.task_ids if name == "task_id" else getattr(entry, name)


def _check_value(where: str, value: Any, kind: Any) -> None:
    if isinstance(kind, Scalar):
        signed, bits = _BITS[kind.code]
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        if not isinstance(value, int) or not low <= value <= high:
            raise LoadableError(f"{where}: {value!r}, must be an integer from {low} to {high}")
    elif isinstance(kind, Struct):
        if value is not None:
            _check_version(where, value)
    elif isinstance(kind, String):
        try:
            value.encode()
        except (UnicodeEncodeError, AttributeError):
            raise LoadableError(f"{where}: {value!r}, must be text that UTF-8 can hold") from None
    elif isinstance(kind.element, String) or (kind.element.__class__ is Scalar and kind.element.code != "B"):
        for position, each in enumerate(value):
            _check_value(f"{where}[{position}]", each, kind.element)


def _check_version(where: str, version: model.Version) -> None:
    for name in ("major", "minor", "sub_minor"):
        _check_value(f"{where}.{name}", getattr(version, name), schema.U8)
