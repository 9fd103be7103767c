"""IREE modules: sections, functions, constants, words of the bytecode.

Everything in the FlatBuffer is read and checked on opening. Which generation wrote a module is found by decoding it as
each, newest first, and taking the first that fits: no unknown field, names where names must be, ordinals and ranges
inside their tables, and a bytecode version of that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from itertools import islice

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import Source
from nvdla.interop.containers.vmfb import wrapping
from nvdla.interop.containers.vmfb.flatbuffer import FlatBuffer, FlatTable
from nvdla.interop.containers.vmfb.wrapping import GENERATIONS, Generation
from nvdla.limits import MAX_SHARING
from nvdla.util.arguments import by_annotations

#: How deep modules may be nested in rodata.
MAX_NESTING = 4


class ModuleFeatures(IntFlag):
    """Required features of a runtime (FeatureBits)."""

    EXT_F32 = 1
    EXT_F64 = 2
    YIELD = 4
    UNWIND = 8


@dataclass(frozen=True)
class Signature:
    """``convention`` is IREE's string: a digit, arguments, ``_``, results; letters i I f F r v, spans in C..D."""

    convention: str = ""
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> str:
        """Kinds of the arguments, a letter each."""
        return self.convention[1:].partition("_")[0].replace("v", "")

    @property
    def results(self) -> str:
        """Kinds of the results, a letter each."""
        return self.convention[1:].partition("_")[2].replace("v", "")


def registers_of_arguments(signature: Signature) -> tuple[int, int]:
    """Count the 32-bit registers and the references the arguments take: banks fill from 0, 64-bit values take an
    even pair. (0, 0) for variadic or unknown letters."""
    plain = refs = 0
    for letter in signature.arguments:
        if letter not in "iIfFr":
            return 0, 0
        width = 2 if letter in "IF" else 1
        if letter == "r":
            refs += 1
        else:
            plain += plain % width + width
    return plain, refs


@dataclass(frozen=True)
class Import:
    """A function that the module expects from its host."""

    name: str
    signature: Signature
    is_optional: bool


@dataclass(frozen=True)
class ModuleExport:
    """A function that the module offers."""

    name: str
    ordinal: int


@dataclass(frozen=True)
class ModuleDependency:
    """A module that this one needs."""

    name: str
    minimum_version: int
    is_optional: bool


@dataclass(frozen=True)
class ModuleFunction:
    """A function's code: ``offset`` and ``length`` are bytes of the module's bytecode. ``blocks`` None before 2023-03,
    when they were not counted."""

    ordinal: int
    offset: int
    length: int
    registers: int
    ref_registers: int
    signature: Signature
    requirements: int = 0
    blocks: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Rodata:
    """A read-only segment. ``offset`` is absolute in the file; ``offset_field`` is where the FlatBuffer stores the
    offset of an external one (relative to the rodata after it), 0 for one in the FlatBuffer."""

    index: int
    data: memoryview
    offset: int
    is_external: bool
    offset_field: int = 0


@dataclass(frozen=True)
class Location:
    """A source location: ``kind`` callsite, file, fused, name or unknown; the other fields as the kind has them."""

    kind: str
    text: str = ""
    line: int = 0
    column: int = 0
    children: tuple[int, ...] = ()


@dataclass(frozen=True)
class SourceMap:
    """Debug data of one function: pairs (bytecode offset, index of a location)."""

    name: str
    locations: tuple[tuple[int, int], ...]


@dataclass
class Module:
    """See the field names of BytecodeModuleDef. ``bytecode_version`` None before 2022-05-16."""

    source: Source
    wrapping: wrapping.Wrapping
    generation: Generation
    candidates: list[str]
    name: str
    version: int
    requirements: int
    attributes: dict[str, str]
    types: list[str]
    dependencies: list[ModuleDependency]
    imports: list[Import]
    exports: list[ModuleExport]
    functions: list[ModuleFunction]
    rodata: list[Rodata]
    rwdata: list[int]
    global_bytes: int
    global_refs: int
    bytecode_version: int | None
    bytecode: memoryview
    bytecode_offset: int
    locations: list[Location]
    source_maps: list[SourceMap]

    @property
    def major(self) -> int | None:
        """The major version of the bytecode, None where none is stated."""
        return None if self.bytecode_version is None else self.bytecode_version >> 16

    def export(self, name: str) -> ModuleExport:
        """The exported function called ``name``. Raises FormatError that lists those there are."""
        for export in self.exports:
            if export.name == name:
                return export
        known = ", ".join(repr(e.name) for e in self.exports[:20]) or "none"
        raise FormatError(f"{self.source.name}: function: must be one of {known}, got {name!r}")

    def code(self, function: ModuleFunction) -> memoryview:
        """The bytecode of a function."""
        return self.bytecode[function.offset : function.offset + function.length]

    def nested(self) -> Iterator[tuple[int, Module]]:
        """(rodata index, module) for each read-only segment that holds a module (VMVX executables), each once."""
        if self.source.name.count("rodata[") >= MAX_NESTING:
            return
        seen: set[int] = set()
        for segment in self.rodata:
            if segment.offset in seen or not looks_like_module(bytes(segment.data[:64])):
                continue
            seen.add(segment.offset)
            try:
                inner = read(_NamedSource(segment.data, None, f"{self.source.name}: rodata[{segment.index}]"))
            except FormatError:
                continue
            yield segment.index, inner


@dataclass(frozen=True)
class _NamedSource(Source):
    label: str = ""

    @property
    def name(self) -> str:
        return self.label


def looks_like_module(header: bytes) -> bool:
    """Check whether these first bytes can be those of a module, in any wrapping."""
    if header[:4] == wrapping.LOCAL_MAGIC:
        length = int.from_bytes(header[26:28], "little")
        return header[30 : 30 + length] == wrapping.MODULE_MEMBER.encode()
    return wrapping.IDENTIFIER in (header[4:8], header[8:12])


@by_annotations
def read(source: Source | bytes | memoryview | str, any_wrapping: bool = False) -> Module:
    """Parses a module. A FlatBuffer of a generation that always has a size prefix is refused without one, as IREE does,
    unless ``any_wrapping``. FormatError when no generation fits; the message is that of the likeliest."""
    where = Source.of(source)
    around = wrapping.find(where)
    best: Module | None = None
    candidates: list[str] = []
    reasons: list[tuple[int, FormatError]] = []
    for generation in reversed(GENERATIONS):
        reader = _Reader(where, around, generation)
        try:
            module = reader.run()
        except FormatError as error:
            reasons.append((reader.buffer.work, error))
            continue
        candidates.append(generation.name)
        has_internal = generation.slot("BytecodeModuleDef", "internal_functions") is not None
        if best is None or (module.major is None and not has_internal):
            # Without a version, the older of those that fit: newer ones only added what is absent.
            best = module
    if best is None:
        # The complaint of the generation that came furthest.
        raise min(reasons, key=lambda reason: reason[0])[1]
    if best.generation.is_prefixed and around.rodata_offset is None and not any_wrapping:
        raise FormatError(
            f"{where.name}: size prefix: must be present in a module of bytecode version {best.major}. "
            "Use --option wrapping=any to read it without."
        )
    best.candidates = candidates
    return best


def read_by(module: Module, buffer: FlatBuffer) -> None:
    """Reads a module's FlatBuffer once more by way of ``buffer``, which may note what is looked at."""
    _Reader(module.source, module.wrapping, module.generation, buffer).run()


class _Reader:
    """Decodes one module as one generation."""

    def __init__(
        self, source: Source, around: wrapping.Wrapping, generation: Generation, buffer: FlatBuffer | None = None
    ) -> None:
        start = around.flatbuffer_offset
        self.source = source
        self.around = around
        self.generation = generation
        self.buffer = buffer or FlatBuffer(source.data[start : start + around.flatbuffer_length], start, source.name)

    def slot(self, table: FlatTable, kind: str, name: str) -> int:
        """Slot of a field, or one past every vtable for a field this generation does not have."""
        place = self.generation.slot(kind, name)
        return 1 << 16 if place is None else place

    def known(self, table: FlatTable, kind: str) -> FlatTable:
        """The table, after checking that it has no field this generation does not know."""
        fields = len(self.generation.schema[kind])
        if any(table.slots[fields:]):
            raise FormatError(
                f"{self.source.name}: {table.where}: must have only fields of {kind} in {self.generation.name}"
            )
        return table

    def run(self) -> Module:
        root = self.known(self.buffer.root(wrapping.IDENTIFIER), "BytecodeModuleDef")
        self.check_version(root)
        bytecode = root.octets(self.slot(root, "BytecodeModuleDef", "bytecode_data"), "bytecode_data")
        bytecode = memoryview(b"") if bytecode is None else bytecode
        name = self.text(root, "BytecodeModuleDef", "name")
        state = root.table(self.slot(root, "BytecodeModuleDef", "module_state"), "module_state")
        signatures = [self.signature(t) for t in self.tables(root, "function_signatures", "FunctionSignatureDef")]
        exports, export_signatures = self.exports(root)
        sizes = (
            (
                self.number(state, "ModuleStateDef", "global_bytes_capacity"),
                self.number(state, "ModuleStateDef", "global_ref_count"),
            )
            if state
            else (0, 0)
        )
        locations, maps = self.debug(root)
        functions = self.functions(root, len(bytecode), signatures, export_signatures, exports, maps)
        for export in exports:
            if not 0 <= export.ordinal < len(functions):
                raise FormatError(
                    f"{self.source.name}: export {export.name!r}: internal ordinal: must be below {len(functions)} "
                    f"(functions), got {export.ordinal}"
                )
        return Module(
            self.source,
            self.around,
            self.generation,
            [],
            name,
            root.scalar(self.slot(root, "BytecodeModuleDef", "version"), 4),
            root.scalar(self.slot(root, "BytecodeModuleDef", "requirements"), 4),
            self.attributes(root, "BytecodeModuleDef"),
            [self.text(t, "TypeDef", "full_name") for t in self.tables(root, "types", "TypeDef")],
            self.dependencies(root),
            self.imports(root),
            exports,
            functions,
            self.rodata(root),
            [
                self.number(t, "RwdataSegmentDef", "byte_size")
                for t in self.tables(root, "rwdata_segments", "RwdataSegmentDef")
            ],
            *sizes,
            self.version(root),
            bytecode,
            self.bytecode_offset(root),
            locations,
            maps,
        )

    def check_version(self, root: FlatTable) -> None:
        version = self.version(root)
        expected = self.generation.versions
        if expected is not None and version is not None and version >> 16 not in expected:
            raise FormatError(
                f"{self.source.name}: bytecode version: must be one of {self.generation.name}, got "
                f"{version >> 16}.{version & 0xFFFF}"
            )

    def version(self, root: FlatTable) -> int | None:
        slot = self.generation.slot("BytecodeModuleDef", "bytecode_version")
        return None if slot is None else root.scalar(slot, 4)

    def bytecode_offset(self, root: FlatTable) -> int:
        """Return the position of the bytecode in the file."""
        at = root._reference(self.slot(root, "BytecodeModuleDef", "bytecode_data"), "bytecode_data")
        return self.buffer.base + at + 4 if at else 0

    def tables(self, root: FlatTable, name: str, kind: str) -> Iterator[FlatTable]:
        return (self.known(t, kind) for t in root.tables(self.slot(root, "BytecodeModuleDef", name), name))

    def text(self, table: FlatTable, kind: str, name: str) -> str:
        """A string that must be there and not be empty."""
        value = table.string(self.slot(table, kind, name), name)
        if not value:
            raise FormatError(
                f"{self.source.name}: {table.where} at byte {self.buffer.base + table.position}: "
                f"{name}: must be present and not empty"
            )
        return value

    def number(self, table: FlatTable, kind: str, name: str) -> int:
        """A count or size: int32, not negative."""
        value = table.scalar(self.slot(table, kind, name), 4, signed=True)
        if value < 0:
            raise FormatError(f"{self.source.name}: {table.where}: {name}: must not be negative, got {value}")
        return value

    def attributes(self, table: FlatTable, kind: str) -> dict[str, str]:
        return {
            self.text(t, "AttrDef", "key"): t.string(self.slot(t, "AttrDef", "value"), "value") or ""
            for t in (self.known(t, "AttrDef") for t in table.tables(self.slot(table, kind, "attrs"), "attrs"))
        }

    def signature(self, table: FlatTable | None) -> Signature:
        if table is None:
            return Signature()
        kind = "FunctionSignatureDef"
        self.known(table, kind)
        for name in ("argument_types", "result_types"):
            table.numbers(self.slot(table, kind, name), name)
        convention = table.string(self.slot(table, kind, "calling_convention"), "calling_convention")
        return Signature(convention or "", self.attributes(table, kind))

    def dependencies(self, root: FlatTable) -> list[ModuleDependency]:
        kind = "ModuleDependencyDef"
        return [
            ModuleDependency(
                self.text(t, kind, "name"),
                t.scalar(self.slot(t, kind, "minimum_version"), 4),
                bool(t.scalar(self.slot(t, kind, "flags"), 4, default=1) & 2),
            )
            for t in self.tables(root, "dependencies", kind)
        ]

    def imports(self, root: FlatTable) -> list[Import]:
        kind = "ImportFunctionDef"
        return [
            Import(
                self.text(t, kind, "full_name"),
                self.signature(t.table(self.slot(t, kind, "signature"), "signature")),
                bool(t.scalar(self.slot(t, kind, "flags"), 4, default=1) & 2),
            )
            for t in self.tables(root, "imported_functions", kind)
        ]

    def exports(self, root: FlatTable) -> tuple[list[ModuleExport], dict[int, Signature]]:
        """The exports, and the signatures they carried before 2023-03, by internal ordinal."""
        kind = "ExportFunctionDef"
        exports, signatures = [], {}
        for t in self.tables(root, "exported_functions", kind):
            ordinal = t.scalar(self.slot(t, kind, "internal_ordinal"), 4, signed=True)
            exports.append(ModuleExport(self.text(t, kind, "local_name"), ordinal))
            own = t.table(self.slot(t, kind, "signature"), "signature")
            if own is not None:
                signatures[ordinal] = self.signature(own)
        return exports, signatures

    def functions(
        self,
        root: FlatTable,
        code_size: int,
        signatures: list[Signature],
        exported: dict[int, Signature],
        exports: list[ModuleExport],
        maps: list[SourceMap],
    ) -> list[ModuleFunction]:
        size = self.generation.descriptor_size
        slot = self.slot(root, "BytecodeModuleDef", "function_descriptors")
        names = {e.ordinal: e.name for e in reversed(exports)}
        result = []
        left = code_size
        for ordinal, record in enumerate(root.records(slot, "function_descriptors", size)):
            words = [int.from_bytes(record[at : at + 4], "little", signed=True) for at in (0, 4)]
            halves = [int.from_bytes(record[at : at + 2], "little", signed=True) for at in range(8, size, 2)]
            offset, length = words
            if offset < 0 or length < 0 or offset + length > code_size:
                raise FormatError(
                    f"{self.source.name}: function {ordinal}: end: must be at most {code_size} (size of the bytecode), "
                    f"got {offset + length}"
                )
            left -= length
            if left < 0:
                raise FormatError(
                    f"{self.source.name}: function {ordinal}: functions: must not be longer together than the "
                    f"bytecode ({code_size} bytes): they overlap"
                )
            if halves[-1] < 0 or halves[-2] < 0:
                raise FormatError(
                    f"{self.source.name}: function {ordinal}: register counts: must not be negative, got "
                    f"{halves[-2]} and {halves[-1]}"
                )
            signature = signatures[ordinal] if ordinal < len(signatures) else exported.get(ordinal, Signature())
            name = names.get(ordinal) or (maps[ordinal].name if ordinal < len(maps) else "")
            requirements = int.from_bytes(record[8:12], "little") if size > 12 else 0
            result.append(
                ModuleFunction(
                    ordinal,
                    offset,
                    length,
                    halves[-2],
                    halves[-1],
                    signature,
                    requirements,
                    halves[-3] if size > 12 else None,
                    name,
                )
            )
        return result

    def rodata(self, root: FlatTable) -> list[Rodata]:
        kind = "RodataSegmentDef"
        budget = len(self.source.data)
        total = MAX_SHARING * budget
        seen: set[tuple[int, int]] = set()
        result = []
        for index, t in enumerate(self.tables(root, "rodata_segments", kind)):
            t.scalar(self.slot(t, kind, "compression_type_type"), 1)
            t.table(self.slot(t, kind, "compression_type"), "compression_type")
            embedded = t.octets(self.slot(t, kind, "embedded_data"), "embedded_data")
            if embedded is not None:
                at = t._reference(self.slot(t, kind, "embedded_data"), "embedded_data") + 4
                result.append(Rodata(index, embedded, self.buffer.base + at, False))
                total = self.spent(index, total, len(embedded))
                continue
            field_slot = self.slot(t, kind, "external_data_offset")
            offset, length = t.scalar(field_slot, 8), t.scalar(self.slot(t, kind, "external_data_length"), 8)
            result.append(self.external(index, offset, length, t.scalar_at(field_slot, 8)))
            total = self.spent(index, total, length)
            if (offset, length) not in seen:
                seen.add((offset, length))
                budget -= length
            if budget < 0:
                raise FormatError(
                    f"{self.source.name}: rodata[{index}]: external segments: must not be longer together than "
                    "the file: they overlap"
                )
        return result

    def spent(self, index: int, left: int, length: int) -> int:
        """Return the remaining bytes that segments may take together when they are written out."""
        if length > left:
            raise FormatError(
                f"{self.source.name}: rodata[{index}]: segments: must have together at most {MAX_SHARING} times the "
                "bytes of the file: too many share the same bytes"
            )
        return left - length

    def external(self, index: int, offset: int, length: int, offset_field: int) -> Rodata:
        base, size = self.around.rodata_offset, len(self.source.data)
        if length == 0:
            return Rodata(index, memoryview(b""), 0, False)
        if base is None or base + offset + length > size:
            raise FormatError(
                f"{self.source.name}: rodata[{index}]: end of external data: must be at most {size} (file size), "
                f"got {(base or 0) + offset + length}"
            )
        start = base + offset
        return Rodata(index, self.source.data[start : start + length], start, True, self.buffer.base + offset_field)

    def debug(self, root: FlatTable) -> tuple[list[Location], list[SourceMap]]:
        kind = "DebugDatabaseDef"
        table = root.table(self.slot(root, "BytecodeModuleDef", "debug_database"), "debug_database")
        if table is None:
            return [], []
        self.known(table, kind)
        kinds = table.octets(self.slot(table, kind, "location_table_type"), "location_table_type") or b""
        tables = table.union_tables(self.slot(table, kind, "location_table"), "location_table", bytes(kinds))
        locations = [self.location(t, number) for t, number in zip(tables, kinds, strict=True)]
        return locations, [self.source_map(t) for t in table.tables(self.slot(table, kind, "functions"), "functions")]

    def location(self, table: FlatTable | None, number: int) -> Location:
        if table is None:
            return Location("unknown")
        if number == 1:
            self.known(table, "CallSiteLocDef")
            return Location("callsite", children=(table.scalar(0, 4), table.scalar(1, 4)))
        if number == 2:
            self.known(table, "FileLineColLocDef")
            return Location("file", table.string(0, "filename") or "", table.scalar(1, 4), table.scalar(2, 4))
        if number == 3:
            self.known(table, "FusedLocDef")
            return Location("fused", table.string(0, "metadata") or "", children=tuple(table.numbers(1, "locations")))
        if number == 4:
            self.known(table, "NameLocDef")
            return Location("name", table.string(0, "name") or "", children=(table.scalar(1, 4),))
        raise FormatError(f"{self.source.name}: {table.where}: location type: must be a known number, got {number}")

    def source_map(self, table: FlatTable) -> SourceMap:
        kind = "FunctionSourceMapDef"
        self.known(table, kind)
        pairs = table.records(self.slot(table, kind, "locations"), "locations", 8)
        return SourceMap(
            table.string(self.slot(table, kind, "local_name"), "local_name") or "",
            tuple((int.from_bytes(p[:4], "little"), int.from_bytes(p[4:], "little")) for p in pairs),
        )


_TYPES = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": "!vm.ref<?>"}
_MAX_TEXT = 200
_MAX_DEPTH = 16


def call_in_words(signature: Signature) -> str | None:
    """``(i32, tuple<i64>...) -> (f32)``; None where no calling convention is recorded."""
    if not signature.convention.startswith("0"):
        return None
    return f"({_types(signature.arguments)}) -> ({_types(signature.results)})"


def _types(letters: str) -> str:
    """Letters as types; the letters between C and D are repeated any number of times."""
    words: list[str] = []
    spans: list[list[str]] = []
    for letter in letters:
        if letter == "C":
            spans.append([])
        elif letter == "D" and spans:
            inner = spans.pop()
            (spans[-1] if spans else words).append(f"tuple<{', '.join(inner)}>...")
        else:
            (spans[-1] if spans else words).append(_TYPES.get(letter, letter))
    return ", ".join(words + [word for span in spans for word in span])


def text_of(data: memoryview) -> str | None:
    """The content where it is text: printable ASCII, not longer than a line."""
    if not 0 < len(data) <= _MAX_TEXT:
        return None
    raw = bytes(data).removesuffix(b"\0")
    return raw.decode("ascii") if raw and all(32 <= byte < 127 for byte in raw) else None


def source_lines(module: Module, function: ModuleFunction) -> dict[int, str]:
    """Offset of an instruction -> where its source is, from the debug database (empty where it was stripped)."""
    for source_map in module.source_maps:
        if source_map.name == function.name and function.name:
            return {
                offset: " < ".join(islice(_places(module.locations, index), _MAX_DEPTH))
                for offset, index in source_map.locations
            }
    return {}


def _places(locations: list[Location], index: int, depth: int = 0) -> Iterator[str]:
    """``file:line:column``, innermost first; a location may refer to others, in a broken file to itself."""
    if not 0 <= index < len(locations) or depth >= _MAX_DEPTH:
        yield "?"
        return
    location = locations[index]
    if location.kind == "file":
        yield f"{location.text}:{location.line}:{location.column}"
    elif location.kind == "callsite":
        for child in location.children[:2]:
            yield from _places(locations, child, depth + 1)
    elif location.kind == "name":
        inner = next(_places(locations, location.children[0], depth + 1)) if location.children else "?"
        yield f'"{location.text}"' if inner == "?" else f'"{location.text}" ({inner})'
    elif location.kind == "fused":
        yield f"[{', '.join(next(_places(locations, child, depth + 1)) for child in location.children[:8])}]"
    else:
        yield "?"
