"""Fields of descriptors as text: names, values, explanations.

    for each in fields(surface):
        print(each.offset, each.name, each.value, each.meaning)

Nested structures and arrays are walked in depth, with names such as ``src_data.width`` and ``consumers[2].index``.
Numbers in long arrays (tables, padding) come as one field whose value is a list.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, cast

from nvdla.loadable.descriptors import enums
from nvdla.loadable.descriptors.enums import OpType
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.precision import Precision
from nvdla.util.registry import OpenEnum

#: (structure, field) -> enum of its numbers
ENUMS: dict[tuple[str, str], type[OpenEnum | Precision]] = {
    ("CommonOpDesc", "op_type"): enums.OpType,
    ("Consumer", "event"): enums.Event,
    ("DataCube", "type"): enums.MemType,
    ("BdmaSurface", "source_type"): enums.MemType,
    ("BdmaSurface", "destination_type"): enums.MemType,
    ("ConvOp", "conv_mode"): enums.ConvMode,
    ("ConvOp", "data_format"): enums.DataFormat,
    ("ConvOp", "pixel_mapping"): enums.ImageMapping,
    ("ConvOp", "pixel_override"): enums.PixelOverride,
    ("ConvOp", "weight_format"): enums.WeightFormat,
    ("ConvOp", "mean_format"): enums.MeanFormat,
    ("ConvOp", "in_precision"): Precision,
    ("ConvOp", "out_precision"): Precision,
    ("SdpOp", "src_precision"): Precision,
    ("SdpOp", "dst_precision"): Precision,
    ("SdpOp", "conv_mode"): enums.ConvMode,
    ("SdpStage", "alu_type"): enums.SdpAlu,
    ("SdpStage", "type"): enums.SdpType,
    ("SdpStage", "mode"): enums.SdpMode,
    ("SdpStage", "act"): enums.Activation,
    ("SdpStage", "precision"): Precision,
    ("PdpOp", "pool_mode"): enums.PoolMode,
    ("PdpOp", "precision"): Precision,
    ("CdpOp", "in_precision"): Precision,
    ("CdpOp", "out_precision"): Precision,
    ("RubikOp", "mode"): enums.RubikMode,
    ("RubikOp", "precision"): Precision,
    ("LutParam", "method"): enums.LutMethod,
    ("LutParam", "hybrid_priority"): enums.LutPriority,
    ("LutParam", "underflow_priority"): enums.LutPriority,
    ("LutParam", "overflow_priority"): enums.LutPriority,
    ("EmuCommonOp", "op_type"): enums.EmuOpType,
    ("EmuBuffer", "format"): enums.EmuFormat,
    ("OldEmuBuffer", "format"): enums.OldEmuFormat,
}

#: signed indices for which -1 says "none"
OPTIONAL_INDICES = {
    ("NetworkDesc", "lut_data_index"),
    ("NetworkDesc", "roi_array_index"),
    ("NetworkDesc", "surface_index"),
    ("NetworkDesc", "stat_list_index"),
    ("NetworkDesc", "input_layer"),
    ("Consumer", "index"),
    ("DataCube", "address"),
    ("BdmaTransfer", "source_address"),
    ("BdmaTransfer", "destination_address"),
    ("SdpOp", "lut_index"),
    ("CdpOp", "lut_index"),
    ("EmuBuffer", "address_index"),
    ("OldEmuBuffer", "address_index"),
}

#: stored as the number minus 1
STORED_MINUS_ONE = {("PdpOp", "pool_width"), ("PdpOp", "pool_height")}


def describe(structure: str, field: str, value: object) -> str | None:
    """The meaning of a field's value in words, None where the number speaks for itself."""
    key = (structure, field)
    if key in ENUMS and isinstance(value, int):
        return ENUMS[key](value).name
    if key in OPTIONAL_INDICES and value == -1:
        return "none"
    if key in STORED_MINUS_ONE and isinstance(value, int):
        return f"{value + 1} elements"
    return None


@cache
def _explanations() -> dict[str, dict[str, str]]:
    """structure -> field -> its explanation; "*" is for structures that share a field of the same sense."""
    path = resources.files("nvdla.loadable.descriptors").joinpath("explanations.json")
    return cast("dict[str, dict[str, str]]", json.loads(path.read_text(encoding="utf-8")))


def explain(structure: str, field: str) -> str | None:
    """Return the explanation of ``field`` of ``structure`` (its class's name); None if its name is enough."""
    table = _explanations()
    return table.get(structure.removeprefix("Old"), {}).get(field) or table["*"].get(field)


_C_NAMES = {"c_byte": "int8", "c_ubyte": "uint8", "c_short": "int16", "c_ushort": "uint16", "c_int": "int32"}
_C_NAMES |= {"c_uint": "uint32", "c_long": "int64", "c_ulong": "uint64", "c_float": "float32"}

#: a structure of the firmware's
CtypesRecord = ctypes.Structure | ctypes.Union
#: union members of OperationContainer and SurfaceContainer begin with these names, in the order of OpType
MEMBERS = tuple(kind.name.lower() for kind in OpType)


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
        """Explanation of the field in one line; None if its name is enough."""
        return explain(self.owner, self.name.rpartition(".")[2])

    @property
    def reserved(self) -> bool:
        """True if the field is only padding."""
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
def to_dict(structure: CtypesRecord) -> Document:
    """A structure as plain nested data (ints, floats, lists, dicts), without padding."""
    plain = {}
    for name, *_ in structure._fields_:
        if not name.startswith(("reserved", "array_reserved")):
            plain[name] = _plain(getattr(structure, name))
    return plain


def _plain(value: object) -> object:
    if isinstance(value, ctypes.Array):
        return [_plain(item) for item in value]
    if isinstance(value, CtypesRecord):
        return to_dict(value)
    return value


def _walk(owner: str, field: str, kind: Any, value: object, offset: int, name: str) -> Iterator[FieldView]:
    if isinstance(value, ctypes.Array):
        element = kind._type_
        if issubclass(element, CtypesRecord):
            for index, item in enumerate(value):
                yield from fields(item, offset + index * ctypes.sizeof(element), f"{name}[{index}].")
        else:
            shape = f"{_type_name(element)}[{len(value)}]"
            yield FieldView(name, offset, ctypes.sizeof(kind), shape, list(value), None, owner)
    elif isinstance(value, CtypesRecord):
        yield from fields(value, offset, f"{name}.")
    else:
        meaning = describe(owner, field, value)
        yield FieldView(name, offset, ctypes.sizeof(kind), _type_name(kind), value, meaning, owner)


def _type_name(kind: type) -> str:
    return str(_C_NAMES.get(kind.__name__, kind.__name__))
