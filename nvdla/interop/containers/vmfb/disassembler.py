"""Disassembly and checks of IREE modules.

For modules of version 17 the text equals IREE 3.13's, save one thing: IREE's disassembler forgets that vm.switch.ref
carries a type, and loses its way after one. Blocks of modules before version 15 have no markers; their labels are made
from the branches that lead to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import FileFinding, Severity
from nvdla.interop.containers.vmfb import wrapping
from nvdla.interop.containers.vmfb.instructions import (
    BLOCK_MARKERS,
    IMPORT_BIT,
    MOVE_BIT,
    REF_BIT,
    REF_MASK,
    TERMINATORS,
    Branch,
    Decoder,
    Instruction,
)
from nvdla.interop.containers.vmfb.module import (
    Module,
    ModuleFeatures,
    ModuleFunction,
    registers_of_arguments,
    source_lines,
)
from nvdla.interop.containers.vmfb.wrapping import GENERATIONS, VERSION_DATES
from nvdla.util.rounding import is_digits

_TYPE_NAMES = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": "!vm.ref<?>"}


def disassemble(module: Module, function: str | None = None, source: bool = False) -> str:
    """The whole module: directives, then every function; or one function, given by its name or ordinal. ``source`` puts
    lines of the debug database before the instructions that were made of them."""
    if function is not None:
        return "\n".join(function_lines(module, named(module, function), source)) + "\n"
    lines = [f"vm.module @{module.name} version {module.version}"]
    lines += [f"vm.type {name}" for name in module.types]
    lines += [
        f'vm.import {"optional " if i.is_optional else ""}@{i.name} cconv "{i.signature.convention}"'
        for i in module.imports
    ]
    lines += [f"vm.rodata[{segment.index}] = {segment.data.hex().upper()}" for segment in module.rodata]
    lines.append("")
    for item in module.functions:
        lines += [*function_lines(module, item, source), ""]
    return "\n".join(lines[:-1] if module.functions else lines) + "\n"


def named(module: Module, name: str) -> ModuleFunction:
    """The function of this name (its own, or one that it is exported by) or ordinal. FormatError otherwise."""
    ordinals = [export.ordinal for export in module.exports if export.name == name]
    ordinals += [
        candidate.ordinal for candidate in module.functions if name in (candidate.name, f"fn{candidate.ordinal}")
    ]
    if not ordinals and is_digits(name) and int(name[:9]) < len(module.functions):
        ordinals = [int(name[:9])]
    if not ordinals:
        known = ", ".join(repr(candidate.name or candidate.ordinal) for candidate in module.functions[:20]) or "none"
        raise FormatError(f"{module.source.name}: function: must be one of {known}, got {name!r}")
    return module.functions[ordinals[0]]


def function_lines(module: Module, function: ModuleFunction, source: bool = False) -> list[str]:
    """One function: its exports, its signature, its instructions with their offsets."""
    name = function.name or f"fn{function.ordinal}"
    lines = [
        f"vm.export @{e.name}" if e.name == name else f"vm.export @{e.name} = @{name}"
        for e in module.exports
        if e.ordinal == function.ordinal
    ]
    lines.append(f"vm.func @{name}({_arguments(function)}) -> ({_results(function)}) {{")
    instructions = list(Decoder(module, function).all())
    blocks = block_starts(instructions)
    printer = _Printer(module, blocks)
    places = source_lines(module, function) if source else {}
    for instruction in instructions:
        label = f"^bb{blocks[instruction.pc]}:" if instruction.pc in blocks else ""
        if label:
            lines.append(f"[{instruction.pc:08X}]{label}")
        if instruction.pc in places:
            lines.append(f"            // {places[instruction.pc]}")
        if instruction.mnemonic != "block":
            lines.append(f"[{instruction.pc:08X}]  {printer.text(instruction)}")
    return [*lines, "}"]


def block_starts(instructions: list[Instruction]) -> dict[int, int]:
    """Offset of each block -> its number: by markers where there are any, else by what branches lead to."""
    starts = {i.pc for i in instructions if i.mnemonic == "block"}
    if not starts:
        starts = {0} | {b.target for i in instructions for b in branches(i)}
    return {pc: number for number, pc in enumerate(sorted(starts))}


def branches(instruction: Instruction) -> list[Branch]:
    """Every branch of an instruction."""
    targets: list[Branch] = []
    for operand in instruction.operands:
        if isinstance(operand, Branch):
            targets.append(operand)
        elif isinstance(operand, tuple):
            targets += [item for item in operand if isinstance(item, Branch)]
    return targets


def _arguments(function: ModuleFunction) -> str:
    words, plain, refs = [], 0, 0
    for letter in function.signature.arguments:
        if letter == "r":
            words.append(f"%r{refs}: {_TYPE_NAMES[letter]}")
            refs += 1
        elif letter in "IF":
            words.append(f"%i{plain}:{plain + 1}: {_TYPE_NAMES[letter]}")
            plain += 2
        else:
            words.append(f"%i{plain}: {_TYPE_NAMES.get(letter, letter)}")
            plain += 1
    return ", ".join(words)


def _results(function: ModuleFunction) -> str:
    return ", ".join(_TYPE_NAMES.get(letter, letter) for letter in function.signature.results)


class _Printer:
    def __init__(self, module: Module, blocks: Mapping[int, int]) -> None:
        self.module = module
        self.blocks = blocks

    def text(self, instruction: Instruction) -> str:
        name, described = instruction.mnemonic, instruction.shape
        form = _FORMS.get(name) or _FORMS.get(".".join(name.split(".")[:2])) or _FORMS.get(name.split(".")[0])
        words = self.words(instruction)
        if form is not None:
            return form(self, f"vm.{name}", words, instruction)
        if described.endswith(">"):
            return f"vm.{name} {', '.join(words)}".rstrip()
        return f"{words[-1]} = vm.{name} {', '.join(words[:-1])}".rstrip()

    def words(self, instruction: Instruction) -> list[str]:
        """Each operand as text."""
        kinds = instruction.shape.replace(">", "")
        letters = [kinds[i : i + 2] if c == "#" else c for i, c in enumerate(kinds) if not (i and kinds[i - 1] == "#")]
        return [self.word(kind, value) for kind, value in zip(letters, instruction.operands, strict=True)]

    def word(self, kind: str, value: Any) -> str:
        if kind in "if":
            return f"%i{value}"
        if kind in "ld":
            return f"%i{value}:{value + 1}"
        if kind == "r":
            return register(value | REF_BIT)
        if kind in "LR":
            return ", ".join(register(item) for item in value)
        if kind == "U":
            return ", ".join(map(str, value))
        if kind == "B":
            return self.branch(value)
        if kind == "P":
            return self.block(value)
        if kind == "F":
            return self.callee(value)
        if kind == "T":
            return self.module.types[value] if value < len(self.module.types) else f"type {value}"
        if kind == "#f":
            return f"{value:.9g}"
        if kind == "#d":
            return f"{value:.17g}"
        return str(value)

    def block(self, pc: int) -> str:
        return f"^bb{self.blocks[pc]}" if pc in self.blocks else f"^{pc:08X}"

    def branch(self, branch: Branch) -> str:
        pairs = ", ".join(f"{register(a)}->{register(b)}" for a, b in branch.pairs)
        return f"{self.block(branch.target)}({pairs})"

    def callee(self, ordinal: int) -> str:
        if ordinal & IMPORT_BIT:
            return f"@{self.module.imports[ordinal & ~IMPORT_BIT].name}"
        name = self.module.functions[ordinal].name
        return f"@{self.module.name}.{name}" if name else f"@{self.module.name}:{ordinal}"


def register(value: int) -> str:
    """An encoded register: %i3, %r2, or %R2 for a reference that is moved."""
    if value & REF_BIT:
        return f"%{'R' if value & MOVE_BIT else 'r'}{value & REF_MASK}"
    return f"%i{value}"


def _global(_: _Printer, name: str, words: list[str], instruction: Instruction) -> str:
    place, *rest = words
    bank = ".refs" if name.endswith(".ref") else ".rwdata"
    kind = f" : {rest.pop(0)}" if name.endswith(".ref") else ""
    if instruction.shape.endswith(">"):
        return f"{name} {rest[0]}, {bank}[{place}]{kind}"
    return f"{rest[0]} = {name} {bank}[{place}]{kind}"


def _const(printer: _Printer, name: str, words: list[str], instruction: Instruction) -> str:
    value = instruction.operands[0]
    if instruction.mnemonic == "const.ref.rodata":
        return f"{words[1]} = {name} {value}  // {len(printer.module.rodata[value].data)}b"
    if instruction.mnemonic == "const.i32":
        return f"{words[1]} = {name} {value}  // 0x{value & 0xFFFFFFFF:08X}"
    if instruction.mnemonic == "const.i64":
        return f"{words[1]} = {name} {value}  // 0x{value & 0xFFFFFFFFFFFFFFFF:016X}"
    return f"{words[-1]} = {name} {' '.join(words[:-1])}".rstrip()


def _select(_: _Printer, name: str, words: list[str], instruction: Instruction) -> str:
    condition, *rest = words
    kind = f" -> {rest.pop(0)}" if name.endswith(".ref") else ""
    return f"{rest[2]} = {name} {condition} ? {rest[0]} : {rest[1]}{kind}"


def _switch(_: _Printer, name: str, words: list[str], instruction: Instruction) -> str:
    index, *rest = words
    kind = f" -> {rest.pop(0)}" if name.endswith(".ref") else ""
    return f"{rest[2]} = {name} {index}[{rest[1]}] else {rest[0]}{kind}"


def _call(_: _Printer, name: str, words: list[str], instruction: Instruction) -> str:
    callee, *rest = words
    segments = f" segments[{rest.pop(0)}]" if "U" in instruction.shape else ""
    if "P" in instruction.shape:
        return f"{name} {callee}{segments}({rest[0]}) -> {rest[1]}({rest[2]})"
    results = f"{rest[1]} = " if rest[1] else ""
    return f"{results}{name} {callee}{segments}({rest[0]})"


def _branch_table(printer: _Printer, name: str, words: list[str], instruction: Instruction) -> str:
    default, *cases = (printer.branch(branch) for branch in instruction.operands[1])
    return f"{name} {words[0]} {{ {', '.join([f'default: {default}', *(f'{n}: {c}' for n, c in enumerate(cases))])} }}"


_FORMS: Mapping[str, Callable[[_Printer, str, list[str], Instruction], str]] = {
    "global": _global, "const": _const, "select": _select, "switch": _switch, "call": _call, "br_table": _branch_table,
    "fail": lambda p, name, words, i: f'{name} {words[0]}, "{words[1]}"',
    "trace": lambda p, name, words, i: f'{name} "{words[0]}"({words[1]})',
    "print": lambda p, name, words, i: f'{name} "{words[0]}"({words[1]})',
    # The value first, independent of the order in the code.
    "buffer.store": lambda p, name, words, i: f"{name} {words[2]}, {words[0]}, {words[1]}",
    "list.alloc": lambda p, name, words, i: f"{words[2]} = {name} {words[1]} : !vm.list<{words[0]}>",
    "list.get.ref": lambda p, name, words, i: f"{words[3]} = {name} {words[0]}, {words[1]} : {words[2]}",
    "cast.any.ref": lambda p, name, words, i: f"{words[2]} = {name} {words[0]} : !vm.ref<?> -> {words[1]}",
}  # fmt: skip


def verify(module: Module, strict: bool = False) -> list[FileFinding]:
    """All findings: wrapping, tables, functions, nested modules. Strict makes errors of what IREE's loader forgives."""
    rule = Severity.ERROR if strict else Severity.WARNING
    findings = [*_wrapping(module, rule), *_tables(module, rule)]
    for function in module.functions:
        findings += _function(module, function, rule)
    for index, inner in module.nested():
        findings += [
            FileFinding(f.severity, f"rodata[{index}], {f.where}", f.offset, f.message) for f in verify(inner, strict)
        ]
    return findings


def _wrapping(module: Module, rule: Severity) -> Iterator[FileFinding]:
    around, data = module.wrapping, module.source.data
    end = max(
        [
            around.flatbuffer_offset + around.flatbuffer_length,
            *(s.offset + len(s.data) for s in module.rodata if s.is_external),
        ]
    )
    if around.kind.startswith("zip"):
        if not wrapping.has_central_directory(data):
            yield FileFinding(
                rule, "file", None, "ZIP archive: must have a directory for ZIP tools (IREE loads it without)"
            )
        if around.module_offset % wrapping.ALIGNMENT:
            yield FileFinding(
                rule,
                "file",
                around.module_offset,
                f"offset of the module: must be a multiple of {wrapping.ALIGNMENT}, got {around.module_offset}",
            )
    elif any(data[end:]) and not wrapping.has_central_directory(data[end:]):
        yield FileFinding(rule, "file", end, f"must end after the module, got {len(data) - end} more bytes")
    if around.rodata_offset is None and module.generation.is_prefixed:
        yield FileFinding(
            Severity.ERROR,
            "file",
            around.flatbuffer_offset,
            "size prefix: must be present: no IREE loads the file without it",
        )


def _tables(module: Module, rule: Severity) -> Iterator[FileFinding]:
    if module.major is not None and module.major not in VERSION_DATES:
        yield FileFinding(
            Severity.WARNING,
            "bytecode_version",
            None,
            f"version: must be a known one, got {module.major}. It is read as {GENERATIONS[-1].name}.",
        )
    if module.requirements & ~int(ModuleFeatures(15)):
        yield FileFinding(rule, "requirements", None, f"must be known features, got 0x{module.requirements:x}")
    names = [export.name for export in module.exports]
    for name in sorted({n for n in names if names.count(n) > 1}) if len(names) < 10_000 else ():
        yield FileFinding(rule, f"export {name!r}", None, "name: must be unique: the first export is used")
    for imported in module.imports:
        if "." not in imported.name:
            yield FileFinding(rule, f"import {imported.name!r}", None, "name: must be MODULE.FUNCTION")


def _function(module: Module, function: ModuleFunction, rule: Severity) -> list[FileFinding]:
    where = f"function {function.name or function.ordinal}"
    at = module.bytecode_offset + function.offset
    if not function.length:
        return [FileFinding(Severity.ERROR, where, at, "has no code")]
    plain, refs = registers_of_arguments(function.signature)
    if plain > function.registers or refs > function.ref_registers:
        message = (
            f"register counts: must be at least {plain} and {refs} (arguments), got {function.registers} "
            f"and {function.ref_registers}"
        )
        return [FileFinding(Severity.ERROR, where, at, message)]
    try:
        instructions = list(Decoder(module, function).all())
    except FormatError as error:
        return [FileFinding(Severity.ERROR, where, at, str(error))]
    return [
        FileFinding(Severity.ERROR, where, at + pc, message) for pc, message in _flow(module, function, instructions)
    ] + list(_requirements(where, function, at, rule, instructions))


def _flow(module: Module, function: ModuleFunction, instructions: list[Instruction]) -> Iterator[tuple[int, str]]:
    """Branches lead to instructions (to block markers, where there are any); every block ends."""
    has_markers = (module.major or 0) >= BLOCK_MARKERS
    starts = {i.pc for i in instructions if not has_markers or i.mnemonic == "block"}
    for instruction in instructions:
        targets = [branch.target for branch in branches(instruction)]
        targets += [o for k, o in zip(instruction.shape, instruction.operands, strict=False) if k == "P"]
        for target in targets:
            if target not in starts:
                yield instruction.pc, f"branch target: must be the start of a block, got {target:08X}"
    if has_markers and instructions[0].mnemonic != "block":
        yield 0, "must begin with a block"
    blocks = sum(i.mnemonic == "block" for i in instructions)
    if has_markers and function.blocks is not None and blocks != function.blocks:
        yield 0, f"blocks: must be {function.blocks} (descriptor), got {blocks}"
    if instructions[-1].mnemonic not in TERMINATORS:
        yield instructions[-1].pc, "must end with the end of a block"


def _requirements(
    where: str, function: ModuleFunction, at: int, rule: Severity, instructions: list[Instruction]
) -> Iterator[FileFinding]:
    """Floats need the features that say so (recorded since 2023-03); conversions between both are of EXT_F64 alone."""
    if function.blocks is None:
        return
    for feature, word in ((ModuleFeatures.EXT_F32, "f32"), (ModuleFeatures.EXT_F64, "f64")):
        uses = next((i for i in instructions if word in i.mnemonic.split(".") and _feature(i) == feature), None)
        if uses is not None and not function.requirements & feature:
            yield FileFinding(
                rule, where, at + uses.pc, f"requirements: must contain {feature.name} (used by vm.{uses.mnemonic})"
            )


def _feature(instruction: Instruction) -> ModuleFeatures:
    """The feature that an instruction on floats is part of."""
    words = instruction.mnemonic.split(".")
    return ModuleFeatures.EXT_F64 if "f64" in words else ModuleFeatures.EXT_F32
