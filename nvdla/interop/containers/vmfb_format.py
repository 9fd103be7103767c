"""IREE VM bytecode modules as a container."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

from nvdla.errors import FormatError
from nvdla.interop.containers.registry import (
    Container,
    FileFinding,
    Format,
    Options,
    ParameterSets,
    Source,
    register,
)
from nvdla.interop.containers.vmfb import module as modules
from nvdla.interop.containers.vmfb.module import (
    Module,
    ModuleDependency,
    ModuleFeatures,
    ModuleFunction,
    Signature,
    call_in_words,
    text_of,
)
from nvdla.interop.containers.vmfb.wrapping import loaders
from nvdla.util.escaping import Document
from nvdla.util.rounding import integer, is_digits, real

#: Options of ``run``: name -> limit.
_LIMITS = ("instructions", "depth", "memory")


class VmfbContainer(Container):
    """An open module; ``module`` is the typed form."""

    def __init__(self, format: VmfbFormat, source: Source, any_wrapping: bool) -> None:
        self.format = format
        self.source = source
        self.module = modules.read(source, any_wrapping)

    def info(self) -> Document:
        """Return the data of `nvdla container info`."""
        m = self.module
        version = None if m.bytecode_version is None else f"{m.bytecode_version >> 16}.{m.bytecode_version & 0xFFFF}"
        return {
            "name": m.name, "version": m.version, "container": m.wrapping.kind, "fb_offset": m.wrapping.module_offset,
            "generation": m.generation.name, "candidates": m.candidates, "bytecode_version": version,
            "loads_in": loaders(m.major), "requirements": feature_names(m.requirements), "attributes": m.attributes,
            "types": m.types, "dependencies": [_dependency(d) for d in m.dependencies],
            "imports": [i.name for i in m.imports], "exports": [[e.name, e.ordinal] for e in m.exports],
            "descriptors": len(m.functions), "bytecode_len": len(m.bytecode), "rodata": len(m.rodata),
            "rwdata": m.rwdata, "global_bytes": m.global_bytes, "global_refs": m.global_refs,
            "flatbuffer_bytes": m.wrapping.flatbuffer_length,
            "blocks": sum(f.blocks or 0 for f in m.functions),
            "rodata_bytes": sum(len(s.data) for s in m.rodata),
            "external_rodata_bytes": sum(len(s.data) for s in m.rodata if s.is_external),
            "locations": len(m.locations), "nested_modules": [index for index, _ in m.nested()],
        }  # fmt: skip

    def rows(self) -> list[Document]:
        """Imports, exports, functions, rodata and nested modules' functions, told apart by ``kind``."""
        return list(_rows(self.module, ""))

    def verify(self, strict: bool = False) -> list[FileFinding]:
        """Yield problems of the file; ``strict``: also what other readers would refuse."""
        from nvdla.interop.containers.vmfb.disassembler import verify

        return verify(self.module, strict)

    def parts(self) -> Iterable[tuple[str, bytes | memoryview]]:
        """The FlatBuffer, the bytecode of each function, each read-only segment (a nested module as .vmfb)."""
        m, around = self.module, self.module.wrapping
        start = around.flatbuffer_offset
        yield "module.fb", self.source.data[start : start + around.flatbuffer_length]
        for function in m.functions:
            yield f"functions/{function.ordinal}_{_file_name(function.name)}.bc", m.code(function)
        nested = {index for index, _ in m.nested()}
        for segment in m.rodata:
            yield f"rodata/{segment.index}{'.vmfb' if segment.index in nested else '.bin'}", segment.data

    def disassemble(self, function: str | None = None, source: bool = False) -> str:
        """The code of all functions, or of one, as text."""
        from nvdla.interop.containers.vmfb.disassembler import disassemble

        texts = [disassemble(self.module, function, source)]
        if function is not None:
            return texts[0]
        for index, inner in self.module.nested():
            texts.append(f"// nested module in rodata[{index}]\n{disassemble(inner, None, source)}")
        return "\n".join(texts)

    def call(
        self,
        function: str,
        inputs: Sequence[str],
        options: Options | None = None,
        parameters: ParameterSets | None = None,
    ) -> Document:
        """Run an exported function on numbers given as text.

        A function that needs a device runs on IREE's own runtime if that is installed; ``ran_on`` states so. Only such
        a function can load parameters. Raises FormatError.
        """
        from nvdla.interop.containers.vmfb import device
        from nvdla.interop.containers.vmfb.interpreter import LETTERS, MachineLimits, VirtualMachine

        target = self.module.functions[self.module.export(function).ordinal]
        loads = any(imported.name.startswith("io_parameters.") for imported in self.module.imports)
        if parameters and not loads:
            raise FormatError(f"{self.source.name}: --parameters: the module loads no parameters. Omit the option.")
        if self._needs_device(target) and device.is_installed():
            _limits(options)
            if loads and not parameters:
                raise FormatError(f"{self.source.name}: the module loads parameters. Add --parameters [SCOPE=]FILE.")
            return device.call(bytes(self.source.data), function, inputs, parameters)
        arguments = parse_arguments(self.module, target, inputs)
        machine = VirtualMachine(self.module, limits=MachineLimits(**_limits(options)))
        values = machine.call(function, arguments)
        kinds = [LETTERS[letter] for letter in target.signature.results]
        results = [
            {"type": kind, "value": value if isinstance(value, (int, float)) else str(value)}
            for kind, value in zip(kinds, values, strict=True)
        ]
        return {"results": results, "instructions": machine.executed}

    def _needs_device(self, function: ModuleFunction) -> bool:
        """Check whether the function takes or returns references, in a module that imports functions of devices."""
        letters = function.signature.arguments + function.signature.results
        return "r" in letters and any(imported.name.startswith("hal.") for imported in self.module.imports)

    def convert_to(self, file: IO[bytes], target: Format, options: Options | None = None) -> None:
        """Re-wrapped, for a module; other formats have no place for one."""
        if target is not self.format:
            raise FormatError(
                f"{self.source.name}: target format: must be vmfb, got {target.name}. Only the wrapping can change."
            )
        from nvdla.interop.containers.vmfb.rewrap import rewrap

        given = target.check_options(options)
        names = given["names"].split(",") if "names" in given else []
        file.write(rewrap(self.module, given.get("wrapping", "keep"), names))


def _dependency(wanted: ModuleDependency) -> str:
    return f"{wanted.name} >= {wanted.minimum_version}, {'optional' if wanted.is_optional else 'required'}"


def _rows(module: Module, prefix: str) -> Iterable[Document]:
    for imported in module.imports:
        yield _row(
            "import",
            prefix + imported.name,
            signature=imported.signature,
            attributes=imported.signature.attributes,
            optional=imported.is_optional,
        )
    for export in module.exports:
        function = module.functions[export.ordinal]
        yield _row(
            "export",
            prefix + export.name,
            export.ordinal,
            signature=function.signature,
            attributes=function.signature.attributes,
        )
    for function in module.functions:
        yield _row(
            "function",
            prefix + (function.name or f"fn{function.ordinal}"),
            function.ordinal,
            module.bytecode_offset + function.offset,
            function.length,
            function.signature,
            function.signature.attributes,
            requirements=feature_names(function.requirements),
            blocks=function.blocks,
            registers=function.registers,
            ref_registers=function.ref_registers,
        )
    nested = dict(module.nested())
    for segment in module.rodata:
        yield _row(
            "rodata",
            f"{prefix}rodata[{segment.index}]",
            segment.index,
            segment.offset,
            len(segment.data),
            external=segment.is_external,
            text=text_of(segment.data),
        )
        if segment.index in nested:
            yield from _rows(nested[segment.index], f"{prefix}rodata[{segment.index}]/")


def _row(
    kind: str,
    name: str,
    ordinal: int | None = None,
    offset: int | None = None,
    length: int | None = None,
    signature: Signature | None = None,
    attributes: Mapping[str, str] | None = None,
    **more: Any,
) -> Document:
    keys = ("requirements", "blocks", "registers", "ref_registers", "optional", "external", "text")
    return {
        "kind": kind,
        "name": name,
        "ordinal": ordinal,
        "offset": offset,
        "length": length,
        "signature": None if signature is None else signature.convention,
        "call": None if signature is None else call_in_words(signature),
        "attributes": dict(attributes or {}),
        **{key: more.get(key) for key in keys},
    }


def feature_names(bits: int) -> list[str]:
    """Names of requirement bits; unknown ones as hexadecimal."""
    known = [feature.name or "" for feature in ModuleFeatures if bits & feature]
    rest = bits & ~int(ModuleFeatures.EXT_F32 | ModuleFeatures.EXT_F64 | ModuleFeatures.YIELD | ModuleFeatures.UNWIND)
    return known + ([f"0x{rest:x}"] if rest else [])


def parse_arguments(module: Module, function: ModuleFunction, inputs: Sequence[str]) -> list[int | float]:
    """Text to numbers by the function's signature. FormatError for references, counts and values that do not fit."""
    from nvdla.interop.containers.vmfb.interpreter import LETTERS, signature_letters

    letters, _ = signature_letters(function.signature, f"{module.source.name}: {function.name}")
    if len(inputs) != len(letters):
        raise FormatError(
            f"{module.source.name}: {function.name}: must get {len(letters)} input{'s' * (len(letters) != 1)} "
            f"({', '.join(LETTERS[c] for c in letters) or 'none'}), got {len(inputs)}"
        )
    return [_argument(letter, text, number) for number, (letter, text) in enumerate(zip(letters, inputs, strict=True))]


def _argument(letter: str, text: str, number: int) -> int | float:
    if letter == "r":
        raise FormatError(
            f"input {number} is a reference (a tensor on a device), and this interpreter has no device. "
            "Install iree-base-runtime to run such functions: pip install 'nvdla[iree]'."
        )
    try:
        if letter in "fF":
            return real(text)
        value = integer(text, 0)
    except ValueError:
        raise FormatError(
            f"input {number}: must be {'a float' if letter in 'fF' else 'an integer'}, got {text!r}"
        ) from None
    bits = 32 if letter == "i" else 64
    if not -(1 << bits - 1) <= value < 1 << bits:
        raise FormatError(f"input {number}: must fit {bits} bits, got {text}")
    return value


def _limits(options: Options | None) -> dict[str, int]:
    limits = {}
    for key, text in (options or {}).items():
        if key not in _LIMITS:
            raise FormatError(f"option: must be one of {', '.join(_LIMITS)}, got {key!r}")
        if not is_digits(text) or not 0 < int(text[:20]) < 1 << 40:
            raise FormatError(f"option {key}: must be a positive number, got {text!r}")
        limits[key] = integer(text)
    return limits


def _file_name(name: str) -> str:
    return name.replace("/", "_") or "unnamed"


@register
class VmfbFormat(Format):
    """IREE's compiled module."""

    name = "vmfb"
    title = "IREE VM module"
    suffixes = (".vmfb",)
    options: ClassVar[Mapping[str, str]] = {
        "wrapping": "converting: keep (default), zip, prefixed; reading: any, to read a module without its size prefix",
        "names": "converting to zip: names of the members after module.fb, separated by commas",
        "instructions": "running: how many instructions at most",
        "depth": "running: how deep calls may be nested",
        "memory": "running: bytes that buffers, lists and globals may take",
    }

    def sniff(self, header: bytes, path: Path | None) -> bool:
        """Check whether a file has this format, from its first bytes (``header``) or its path."""
        if header[:4] != b"PK\x03\x04":
            return modules.looks_like_module(header)
        name_length, extra_length = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        start = 30 + name_length + extra_length
        return modules.looks_like_module(header) or b"IREE" in (
            header[start + 4 : start + 8],
            header[start + 8 : start + 12],
        )

    def open(self, source: Source, options: Options | None = None) -> VmfbContainer:
        """Open a file of this format. Raises FormatError for one that is broken."""
        chosen = self.check_options(options)
        return VmfbContainer(self, source, chosen.get("wrapping") == "any")

    def build(self, file: IO[bytes], inputs: Sequence[Source], options: Options | None = None) -> None:
        """Make a file of this format from others. Raises FormatError where that cannot be."""
        raise FormatError("only IREE's compiler creates modules. 'nvdla container convert' changes their wrapping.")
