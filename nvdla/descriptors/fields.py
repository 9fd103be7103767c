"""A walk over the fields of any structure: name, place, size, type, value, meaning.

    for each in fields(surface):
        print(each.offset, each.name, each.value, each.meaning)

Nested structures and arrays are walked in depth, with names such as ``src_data.width`` and ``consumers[2].index``.
Numbers in long arrays (tables, padding) come as one field whose value is a list.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvdla.argument_kinds import by_annotations
from nvdla.descriptors.descriptions import describe
from nvdla.descriptors.enums import OpType
from nvdla.descriptors.explanations import explain

_C_NAMES = {"c_byte": "int8", "c_ubyte": "uint8", "c_short": "int16", "c_ushort": "uint16", "c_int": "int32"}
_C_NAMES |= {"c_uint": "uint32", "c_long": "int64", "c_ulong": "uint64", "c_float": "float32"}

#: a structure of the firmware's
CtypesRecord = ctypes.Structure | ctypes.Union
#: union members of OperationContainer and SurfaceContainer begin with these names, in the order of OpType
MEMBERS = tuple(each.name.lower() for each in OpType)


@dataclass(frozen=True)
class FieldView:
    """One field. ``offset`` counts bytes from ``base``; ``type`` is for people ("uint16", "int16[65]").

    ``value`` is an int, a float or a list of them; ``meaning`` the name of an enum's number, else None. ``owner``: the
    structure that it is a field of.
    """

    name: str
    offset: int
    size: int
    type: str
    value: Any
    meaning: str | None
    owner: str = ""

    @property
    def explanation(self) -> str | None:
        """What the field says, in one line; None where its name says it all."""
        return explain(self.owner, self.name.rpartition(".")[2])

    @property
    def reserved(self) -> bool:
        """Whether the field is only padding."""
        return self.name.rpartition(".")[2].startswith(("reserved", "array_reserved"))


@by_annotations
def fields(structure: CtypesRecord, base: int = 0, prefix: str = "") -> Iterator[FieldView]:
    """Fields of a structure in memory order; ``base`` and ``prefix`` are put before offsets and names.

    All members of a union are yielded (they share their offset). For operation and surface containers choose the member
    first, with :func:`member`.
    """
    for name, kind, *_ in structure._fields_:
        place = getattr(type(structure), name)
        value = getattr(structure, name)
        yield from _walk(type(structure).__name__, name, kind, value, base + place.offset, prefix + name)


@by_annotations
def member(container: CtypesRecord, op_type: int) -> Any:
    """The structure inside an operation, surface or stat container that ``op_type`` selects, None for unknown types."""
    if not 0 <= op_type < len(MEMBERS):
        return None
    wanted = MEMBERS[op_type]
    return next((getattr(container, name) for name, *_ in container._fields_ if name.startswith(wanted)), None)


@by_annotations
def to_dict(structure: CtypesRecord) -> dict[str, Any]:
    """A structure as plain nested data (ints, floats, lists, dicts), without padding."""
    plain = {}
    for name, *_ in structure._fields_:
        if not name.startswith(("reserved", "array_reserved")):
            plain[name] = _plain(getattr(structure, name))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, ctypes.Array):
        return [_plain(each) for each in value]
    if isinstance(value, CtypesRecord):
        return to_dict(value)
    return value


def _walk(owner: str, field: str, kind: Any, value: Any, offset: int, name: str) -> Iterator[FieldView]:
    if isinstance(value, ctypes.Array):
        element = kind._type_
        if issubclass(element, CtypesRecord):
            for index, each in enumerate(value):
                yield from fields(each, offset + index * ctypes.sizeof(element), f"{name}[{index}].")
        else:
            shape = f"{_type_name(element)}[{len(value)}]"
            yield FieldView(name, offset, ctypes.sizeof(kind), shape, list(value), None, owner)
    elif isinstance(value, CtypesRecord):
        yield from fields(value, offset, f"{name}.")
    else:
        meaning = describe(owner, field, value)
        yield FieldView(name, offset, ctypes.sizeof(kind), _type_name(kind), value, meaning, owner)


def _type_name(kind: Any) -> str:
    return str(_C_NAMES.get(kind.__name__, kind.__name__))
