"""Model -> bytes, with the FlatBuffers builder and the generated bindings.

What is written reads back as an equal model. Default values are left out, as FlatBuffers does; empty lists and names
are written, so that NVIDIA's runtime (which does not check for a missing list) can read the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import flatbuffers
from flatbuffers import number_types

from nvdla.errors import LoadableError
from nvdla.loadable import schema
from nvdla.loadable.generated import loadable_generated as fb
from nvdla.loadable.schema import FieldType, Scalar, String, Struct, TableField, TableSchema, Union, Vector

#: FlatBuffers address at most 2 GiB
MAX_BYTES = (1 << 31) - 1

#: attributes of the model: the lists of the table Loadable, in its order
_LISTS = ("tasks", "memories", "addresses", "events", "blobs", "tensors", "relocs", "submits")
_TABLES = (
    schema.TASK,
    schema.MEMORY,
    schema.ADDRESS,
    schema.EVENT,
    schema.BLOB,
    schema.TENSOR,
    schema.RELOC,
    schema.SUBMIT,
)
_NUMBERS = {
    "B": number_types.Uint8Flags,
    "H": number_types.Uint16Flags,
    "h": number_types.Int16Flags,
    "I": number_types.Uint32Flags,
    "i": number_types.Int32Flags,
    "Q": number_types.Uint64Flags,
}


def flatbuffer(loadable: Any) -> bytes:
    """Return a :class:`nvdla.Loadable` as a FlatBuffer.

    Raises:
        LoadableError: A number does not fit its field, or there is too much data.
    """
    lists = [getattr(loadable, name) for name in _LISTS]
    version, identifier = loadable.version, loadable.identifier.encode("latin-1", "replace")
    total = sum(blob.length for blob in loadable.blobs)
    if total > MAX_BYTES - (1 << 20):
        raise LoadableError(
            f"blobs: must have at most {MAX_BYTES - (1 << 20)} bytes together (FlatBuffers), got {total}"
        )
    _check_version("version", version)
    for name, table, entries in zip(_LISTS, _TABLES, lists, strict=True):
        _check_ranges(name, table, entries)
    builder = flatbuffers.Builder(total + 4096)
    try:
        vectors = [_child(builder, Vector(table), entries) for table, entries in zip(_TABLES, lists, strict=True)]
        first, *others = schema.LOADABLE.fields
        values = [*zip(others, vectors, strict=True), (first, version)]
        root = _object(builder, schema.LOADABLE, values)
        builder.Finish(root, file_identifier=identifier if len(identifier) == 4 else None)
    except flatbuffers.builder.BuilderSizeError as error:
        raise LoadableError(f"the loadable does not fit a FlatBuffer: {error}") from None
    return bytes(builder.Output())


def _table(builder: flatbuffers.Builder, table: TableSchema, entry: object) -> int:
    """Write an entry after the data of its fields, and return its offset."""
    values = [_child(builder, field.type, _value(entry, field.name)) for field in table.fields]
    return _object(builder, table, list(zip(table.fields, values, strict=True)))


def _object(builder: flatbuffers.Builder, table: TableSchema, values: Sequence[tuple[TableField, Any]]) -> int:
    """Write a table with the functions of its binding; ``values``: numbers and offsets by field."""
    getattr(fb, f"{table.name}Start")(builder)
    for field, value in values:
        if isinstance(field.type, Struct):
            if value is None:
                continue
            value = fb.CreateVersion(builder, value.major, value.minor, value.sub_minor)
        name = "".join(word.capitalize() for word in field.name.split("_"))
        getattr(fb, f"{table.name}Add{name}")(builder, value)
    return int(getattr(fb, f"{table.name}End")(builder))


def _child(builder: flatbuffers.Builder, kind: FieldType | Union, value: Any) -> Any:
    """Write data outside the table and return its offset; return other values."""
    if isinstance(kind, String):
        return builder.CreateString(value)
    if not isinstance(kind, Vector):
        return value
    if isinstance(kind.element, Scalar):
        if kind.element.code == "B":
            return builder.CreateByteVector(bytes(value))
        number = _NUMBERS[kind.element.code]
        return _vector(builder, value, number.bytewidth, lambda item: builder.Prepend(number, item))
    if isinstance(kind.element, String):
        offsets = [builder.CreateString(text) for text in value]
    else:
        offsets = [_table(builder, kind.element, child) for child in value]
    return _vector(builder, offsets, 4, builder.PrependUOffsetTRelative)


def _vector(builder: flatbuffers.Builder, values: Sequence[int], size: int, prepend: Callable[[int], None]) -> int:
    builder.StartVector(size, len(values), size)
    for value in reversed(values):
        prepend(value)
    return int(builder.EndVector())


# ---- does everything fit its field?

_BITS = {"B": (0, 8), "H": (0, 16), "I": (0, 32), "Q": (0, 64), "h": (1, 16), "i": (1, 32)}


def _check_ranges(name: str, table: TableSchema, entries: Iterable[object]) -> None:
    """Refuse numbers that are too large for their field, before the builder sees them."""
    for index, entry in enumerate(entries):
        for field in table.fields:
            _check_value(f"{name}[{index}].{field.name}", _value(entry, field.name), field.type)


def _value(entry: object, name: str) -> Any:
    """Return a schema field of a model entry; two of them have another name in the model."""
    if name.startswith("stride_"):
        strides: tuple[int, ...] = vars(entry)["strides"]
        return strides[int(name[7:])] if len(strides) == 8 else None
    return getattr(entry, "task_ids" if name == "task_id" else name)


def _check_value(where: str, value: Any, kind: FieldType | Union) -> None:
    if isinstance(kind, Scalar):
        signed, bits = _BITS[kind.code]
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        if not isinstance(value, int) or not low <= value <= high:
            raise LoadableError(f"{where}: must be an integer from {low} to {high}, got {value!r}")
    elif isinstance(kind, Struct):
        if value is not None:
            _check_version(where, value)
    elif isinstance(kind, String):
        try:
            value.encode()
        except (UnicodeEncodeError, AttributeError):
            raise LoadableError(f"{where}: must be text that UTF-8 can hold, got {value!r}") from None
    elif isinstance(kind, Vector) and isinstance(kind.element, Scalar | String) and kind.element != schema.U8:
        for position, item in enumerate(value):
            _check_value(f"{where}[{position}]", item, kind.element)


def _check_version(where: str, version: object) -> None:
    for name in ("major", "minor", "sub_minor"):
        _check_value(f"{where}.{name}", getattr(version, name), schema.U8)
