"""The generations of IREE's bytecode module schema: which field lies in which vtable slot.

The schema declares no field numbers, so each field inserted in the middle moved all after it. A generation is declared
as what changed against the one before (runtime/src/iree/schemas/bytecode_module_def.fbs in IREE's history; dates are
those of the commits). ``versions`` are the major bytecode versions that modules of the generation carry; modules before
2022-05-16 carry none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: table -> its fields in slot order
Schema = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Generation:
    """``descriptor_size``: bytes of a FunctionDescriptor structure."""

    name: str
    schema: Schema
    versions: range | None
    descriptor_size: int = 12
    #: Whether the file begins with the FlatBuffer's size, and rodata may lie behind it.
    is_prefixed: bool = False

    def slot(self, table: str, field: str) -> int | None:
        """The number of a field in this generation's schema, None where it has none."""
        fields = self.schema[table]
        return fields.index(field) if field in fields else None


_FIRST: dict[str, tuple[str, ...]] = {
    "AttrDef": ("key", "value"),
    "TypeDef": ("full_name",),
    "FunctionSignatureDef": ("argument_types", "result_types", "calling_convention", "attrs"),
    "ImportFunctionDef": ("full_name", "signature"),
    "ExportFunctionDef": ("local_name", "signature", "internal_ordinal"),
    "ModuleDependencyDef": ("name", "minimum_version", "flags"),
    "RodataSegmentDef": ("compression_type_type", "compression_type", "embedded_data"),
    "RwdataSegmentDef": ("byte_size",),
    "ModuleStateDef": ("global_bytes_capacity", "global_ref_count"),
    "CallSiteLocDef": ("callee", "caller"),
    "FileLineColLocDef": ("filename", "line", "column"),
    "FusedLocDef": ("metadata", "locations"),
    "NameLocDef": ("name", "child_location"),
    "FunctionSourceMapDef": ("locations",),
    "DebugDatabaseDef": ("location_table_type", "location_table", "functions"),
    "BytecodeModuleDef": (
        "name",
        "types",
        "imported_functions",
        "exported_functions",
        "internal_functions",
        "rodata_segments",
        "rwdata_segments",
        "module_state",
        "function_descriptors",
        "bytecode_data",
        "debug_database",
    ),
}

_Change = Mapping[str, tuple[str, ...]]


def _insert(fields: tuple[str, ...], field: str, after: str) -> tuple[str, ...]:
    at = fields.index(after) + 1
    return (*fields[:at], field, *fields[at:])


def _without(fields: tuple[str, ...], *gone: str) -> tuple[str, ...]:
    return tuple(f for f in fields if f not in gone)


def _generations() -> list[Generation]:
    """Oldest first."""
    schema = dict(_FIRST)
    result: list[Generation] = []

    def generation(name: str, versions: range | None, changes: _Change, size: int = 12, prefixed: bool = False) -> None:
        schema.update(changes)
        result.append(Generation(name, MappingProxyType(dict(schema)), versions, size, prefixed))

    root = _FIRST["BytecodeModuleDef"]
    generation("2021-08-09 2e711d471c", None, {})
    root = _without(root, "internal_functions")
    generation("2021-09-16 83ea4e0d18", None, {"BytecodeModuleDef": root})
    generation("2022-04-19 79495f454f", None, {"ImportFunctionDef": ("full_name", "signature", "flags")})
    root = _insert(root, "bytecode_version", after="function_descriptors")
    generation("2022-05-16 66162780a4", range(3), {"BytecodeModuleDef": root})
    rodata = (
        "compression_type_type",
        "compression_type",
        "embedded_data",
        "external_data_offset",
        "external_data_length",
    )
    generation("2022-05-26 795070fe11", range(2, 4), {"RodataSegmentDef": rodata}, prefixed=True)
    generation(
        "2022-06-22 2cb393d345", range(3, 5), {"FunctionSourceMapDef": ("local_name", "locations")}, prefixed=True
    )
    signature = ("calling_convention", "attrs")
    generation("2022-06-27 6c20d14d60", range(4, 5), {"FunctionSignatureDef": signature}, prefixed=True)
    root = _insert(root, "attrs", after="name")
    generation("2022-06-28 1d60c18b21", range(5, 7), {"BytecodeModuleDef": root}, prefixed=True)
    root = _insert(_insert(root, "version", after="name"), "dependencies", after="types")
    generation("2022-08-08 6b8387ca5c", range(7, 14), {"BytecodeModuleDef": root}, prefixed=True)
    root = _insert(_insert(root, "requirements", after="version"), "function_signatures", after="exported_functions")
    changes = {"BytecodeModuleDef": root, "ExportFunctionDef": ("local_name", "internal_ordinal")}
    generation("2023-03-03 91e73d3969", range(14, 17), changes, 20, True)
    generation("2026-01-12 97bc62cd66", range(17, 1 << 16), {}, 20, True)
    return result


GENERATIONS: tuple[Generation, ...] = tuple(_generations())

#: Major bytecode version -> (first, last) day of IREE sources whose runtime loads it; a runtime takes exactly one.
VERSION_DATES: Mapping[int, tuple[str, str]] = MappingProxyType({
    0: ("2022-05-16", "2022-05-16"), 1: ("2022-05-16", "2022-05-23"), 2: ("2022-05-19", "2022-06-13"),
    3: ("2022-06-13", "2022-06-23"), 4: ("2022-06-23", "2022-06-28"), 5: ("2022-06-28", "2022-07-25"),
    6: ("2022-07-25", "2022-08-08"), 7: ("2022-08-08", "2022-08-22"), 8: ("2022-08-22", "2022-08-22"),
    9: ("2022-08-22", "2022-08-23"), 10: ("2022-08-23", "2022-09-12"), 11: ("2022-09-12", "2022-09-13"),
    12: ("2022-09-13", "2022-09-26"), 13: ("2022-09-26", "2023-02-24"), 14: ("2023-02-24", "2023-03-04"),
    15: ("2023-03-04", "2026-01-06"), 16: ("2026-01-06", "2026-01-12"), 17: ("2026-01-12", "now"),
})  # fmt: skip


def loaders(version: int | None) -> str:
    """Which IREE can load a module of this major bytecode version, for people."""
    if version is None:
        return "IREE before 2022-05-16 (modules carried no version; none that is still distributed)"
    if version not in VERSION_DATES:
        return f"unknown: bytecode version {version} is newer than any known here"
    first, last = VERSION_DATES[version]
    return f"IREE of {first} to {last}, whose runtimes take bytecode version {version} only"
