"""The container's tables as data: what the verifier walks. Order and types are those of fbs/loadable.fbs."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class _Inline:
    """Value that a table or vector stores in place; ``code`` is its struct format."""

    code: str

    @cached_property
    def packed(self) -> struct.Struct:
        """Its bytes in the file."""
        return struct.Struct("<" + self.code)

    @cached_property
    def size(self) -> int:
        """Bytes of it."""
        return self.packed.size


@dataclass(frozen=True)
class Scalar(_Inline):
    """A little-endian number."""

    @cached_property
    def alignment(self) -> int:
        """Bytes; 64-bit numbers need only 4, see :mod:`nvdla.loadable.reader`."""
        return min(self.size, 4)


@dataclass(frozen=True)
class Struct(_Inline):
    """A fixed group of scalars, decoded to a tuple."""

    name: str
    alignment: int


@dataclass(frozen=True)
class String:
    """Length-prefixed UTF-8 with a closing NUL, reached by offset."""


@dataclass(frozen=True)
class Vector:
    """Length-prefixed elements: Scalar, String or Table. A vector of bytes is returned as a view."""

    element: Scalar | String | TableSchema


@dataclass(frozen=True)
class TableField:
    """One field; its position in the table is its vtable slot. ``default`` holds where the field is absent."""

    name: str
    type: FieldType | Union
    default: object = None
    required: bool = False


@dataclass(frozen=True)
class TableSchema:
    """A table of the schema: its fields by slot."""

    name: str
    fields: tuple[TableField, ...]


@dataclass(frozen=True)
class Union:
    """A table, reached by offset, whose schema the number in another field chooses; None for other numbers."""

    selector: str
    choices: Mapping[int, TableSchema]


FieldType = Scalar | Struct | String | Vector | TableSchema
U8, U16, S16, U32, S32, U64 = (Scalar(code) for code in "BHhIiQ")
STRING = String()
VERSION = Struct("BBB", "Version", 1)


def _table(table: str, /, **fields: Scalar | Struct | String | Vector) -> TableSchema:
    """A table whose numbers default to 0, strings to "", vectors to (), structs to None."""
    defaults = {Scalar: 0, Struct: None, String: "", Vector: ()}
    return TableSchema(table, tuple(TableField(key, kind, defaults[type(kind)]) for key, kind in fields.items()))


BLOB = _table("Blob", name=STRING, size=U64, interface=U32, sub_interface=U32, version=VERSION, data=Vector(U8))
MEMORY = _table(
    "MemoryListEntry",
    id=U16,
    domain=U8,
    flags=U16,
    size=U64,
    alignment=U32,
    contents=Vector(STRING),
    offsets=Vector(U64),
    bind_id=U16,
    tensor_desc_id=U16,
)
EVENT = _table("EventListEntry", id=U16, type=U8, target=U16, val=U32, op=U8)
TASK = _table(
    "TaskListEntry",
    id=U16,
    interface=U32,
    instance=S16,
    address_list=Vector(U16),
    pre_actions=Vector(U16),
    post_actions=Vector(U16),
)
ADDRESS = _table("AddressListEntry", id=U16, mem_id=U16, offset=U64, size=U64)
SUBMIT = _table("SubmitListEntry", id=U16, task_id=Vector(U16))
TENSOR = _table(
    "TensorDescListEntry",
    name=STRING,
    id=U16,
    mem_id=U16,
    size=U64,
    offset=U64,
    data_format=U8,
    data_type=U8,
    data_category=U8,
    pixel_format=U8,
    pixel_mapping=U8,
    n=S32,
    c=S32,
    h=S32,
    w=S32,
    **{f"stride_{i}": U32 for i in range(8)},
)
RELOC = _table(
    "RelocListEntry", address_id=U16, write_id=U16, offset=U64, interface=U32, sub_interface=U32, reloc_type=U8
)
LOADABLE = TableSchema(
    "Loadable",
    (
        TableField("version", VERSION, required=True),
        TableField("task_list", Vector(TASK), ()),
        TableField("memory_list", Vector(MEMORY), ()),
        TableField("address_list", Vector(ADDRESS), ()),
        TableField("event_list", Vector(EVENT), ()),
        TableField("blobs", Vector(BLOB), ()),
        TableField("tensor_desc_list", Vector(TENSOR), ()),
        TableField("reloc_list", Vector(RELOC), ()),
        TableField("submit_list", Vector(SUBMIT), ()),
    ),
)
