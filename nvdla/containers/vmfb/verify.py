"""Verification of a module beyond reading it: the bytecode of every function, and what lies around the FlatBuffer."""

from __future__ import annotations

from collections.abc import Iterator

from nvdla.containers.registry import FileFinding, Severity
from nvdla.containers.vmfb import wrapping
from nvdla.containers.vmfb.disassembler import branches
from nvdla.containers.vmfb.generations import GENERATIONS, VERSION_DATES
from nvdla.containers.vmfb.instructions import BLOCK_MARKERS, TERMINATORS, Decoder, Instruction
from nvdla.containers.vmfb.module import Module, ModuleFeatures, ModuleFunction, registers_of_arguments
from nvdla.errors import FormatError


def verify(module: Module, strict: bool = False) -> list[FileFinding]:
    """All findings: wrapping, tables, functions, nested modules. Strict makes errors of what IREE's loader forgives."""
    rule = Severity.ERROR if strict else Severity.WARNING
    found = [*_wrapping(module, rule), *_tables(module, rule)]
    for function in module.functions:
        found += _function(module, function, rule)
    for index, inner in module.nested():
        found += [
            FileFinding(f.severity, f"rodata[{index}], {f.where}", f.offset, f.message) for f in verify(inner, strict)
        ]
    return found


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
            yield FileFinding(rule, "file", None, "the ZIP archive has no directory: IREE loads it, ZIP tools do not")
        if around.module_offset % wrapping.ALIGNMENT:
            yield FileFinding(
                rule,
                "file",
                around.module_offset,
                f"the module does not lie at a multiple of {wrapping.ALIGNMENT} bytes",
            )
    elif any(data[end:]) and not wrapping.has_central_directory(data[end:]):
        yield FileFinding(rule, "file", end, f"{len(data) - end} bytes after the module belong to nothing")
    if around.rodata_offset is None and module.generation.is_prefixed:
        yield FileFinding(
            Severity.ERROR, "file", around.flatbuffer_offset, "the size prefix is missing: no IREE loads it"
        )


def _tables(module: Module, rule: Severity) -> Iterator[FileFinding]:
    if module.major is not None and module.major not in VERSION_DATES:
        yield FileFinding(
            Severity.WARNING,
            "bytecode_version",
            None,
            f"version {module.major} is not known here; read as {GENERATIONS[-1].name}",
        )
    if module.requirements & ~int(ModuleFeatures(15)):
        yield FileFinding(rule, "requirements", None, f"0x{module.requirements:x} names features that are not known")
    names = [export.name for export in module.exports]
    for name in sorted({n for n in names if names.count(n) > 1}) if len(names) < 10_000 else ():
        yield FileFinding(rule, f"export {name!r}", None, "the name is exported more than once; the first one counts")
    for imported in module.imports:
        if "." not in imported.name:
            yield FileFinding(rule, f"import {imported.name!r}", None, "the name has no module before a dot")


def _function(module: Module, function: ModuleFunction, rule: Severity) -> list[FileFinding]:
    where = f"function {function.name or function.ordinal}"
    at = module.bytecode_offset + function.offset
    if not function.length:
        return [FileFinding(Severity.ERROR, where, at, "has no code")]
    plain, refs = registers_of_arguments(function.signature)
    if plain > function.registers or refs > function.ref_registers:
        message = (
            f"its arguments take {plain} registers and {refs} references, its descriptor counts {function.registers} "
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
                yield instruction.pc, f"branches to {target:08X}, where no block begins"
    if has_markers and instructions[0].mnemonic != "block":
        yield 0, "does not begin with a block"
    blocks = sum(i.mnemonic == "block" for i in instructions)
    if has_markers and function.blocks is not None and blocks != function.blocks:
        yield 0, f"has {blocks} blocks, its descriptor counts {function.blocks}"
    if instructions[-1].mnemonic not in TERMINATORS:
        yield instructions[-1].pc, "the code ends within a block"


def _requirements(
    where: str, function: ModuleFunction, at: int, rule: Severity, instructions: list[Instruction]
) -> Iterator[FileFinding]:
    """Floats need the features that say so (recorded since 2023-03); conversions between both are of EXT_F64 alone."""
    if function.blocks is None:
        return
    for feature, word in ((ModuleFeatures.EXT_F32, "f32"), (ModuleFeatures.EXT_F64, "f64")):
        uses = next((i for i in instructions if word in i.mnemonic.split(".") and _feature(i) == feature), None)
        if uses is not None and not function.requirements & feature:
            yield FileFinding(rule, where, at + uses.pc, f"uses vm.{uses.mnemonic} but does not require {feature.name}")


def _feature(instruction: Instruction) -> ModuleFeatures:
    """The feature that an instruction on floats is part of."""
    words = instruction.mnemonic.split(".")
    return ModuleFeatures.EXT_F64 if "f64" in words else ModuleFeatures.EXT_F32
