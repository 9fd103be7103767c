"""C99 for a loadable: its tables, its entry points, and the CRT function registry that hands them out.

What is the same for every network is nvdla_crt.h and nvdla_crt.c, beside this file and copied into each library.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nvdla.containers.tvm.crt import FuncRegistry
from nvdla.errors import FormatError
from nvdla.loadable.enums import MemoryFlags
from nvdla.loadable.model import Loadable, MemoryEntry

#: What C99 promises of a string literal (5.2.4.1); a longer one is written as an array.
_MAX_LITERAL = 4000
#: Memories with such contents are loaded again before every submit: the firmware counts them down in place.
_DEPENDENCIES = "dep_graph"
_INTRODUCTION = "/* Generated from an NVDLA loadable. */\n"


@dataclass(frozen=True)
class CodegenNetwork:
    """A loadable with the names its C code uses. ``parameters`` are its blobs in the order of the parameter file."""

    name: str
    loadable: Loadable
    parameters: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """What the names of its functions begin with."""
        return f"tvmgen_{self.name}"

    @property
    def memories(self) -> list[MemoryEntry]:
        """Those that are allocated: by the runtime, or because they are bound."""
        wanted = MemoryFlags.ALLOC | MemoryFlags.INPUT | MemoryFlags.OUTPUT
        return [memory for memory in self.loadable.memories if memory.flags & wanted and memory.size]

    @property
    def functions(self) -> list[str]:
        """Entry points in the order of the registry."""
        submits = [f"{self.prefix}_submit_{entry.id}" for entry in self.loadable.submit_order]
        return [f"{self.prefix}_run", f"{self.prefix}_load", *submits, f"{self.prefix}_unload"]

    def binding_name(self, memory: MemoryEntry) -> str:
        """The name of the tensor bound to a memory."""
        return self.loadable.tensor(memory.tensor_desc_id).name


def identifier(name: str) -> str:
    """A name as a part of C identifiers and file names; FormatError where nothing is left."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")[:60]
    if not plain:
        raise FormatError(f"model name {name[:60]!r} has no letter or digit; give another one")
    return plain


def support_files() -> dict[str, bytes]:
    """The header and source that are the same for every network, by their paths in the library."""
    here = importlib.resources.files("nvdla.containers.tvm")
    return {
        "codegen/host/include/nvdla_crt.h": (here / "nvdla_crt.h").read_bytes(),
        "codegen/host/src/nvdla_crt.c": (here / "nvdla_crt.c").read_bytes(),
    }


def registry_source(network: CodegenNetwork, count_bytes: int = 2) -> str:
    """``NAME_lib0.c``: the function registry, as TVM generates it, with the system library's entry point."""
    names = [*network.functions, "__tvm_main__"]
    functions = [*network.functions, f"{network.prefix}_run"]
    text = FuncRegistry(names, (), count_bytes).encode()[:-1]  # the compiler adds the final NUL
    declarations = "\n".join(_declaration(name) + ";" for name in network.functions)
    array, initial = _names(text, names, count_bytes)
    table = ",\n".join(f"    {name}" for name in functions)
    return (
        f"{_INTRODUCTION}#include <nvdla_crt.h>\n\n{declarations}\n\n"
        f"static const TVMBackendPackedCFunc functions[] = {{\n{table},\n}};\n\n{array}"
        f"static const TVMFuncRegistry registry = {{\n{initial},\n    functions,\n}};\n\n"
        "static const TVMModule system_library = {\n    &registry,\n};\n\n"
        "const TVMModule* TVMSystemLibEntryPoint(void) { return &system_library; }\n"
    )


def _names(text: bytes, names: Sequence[str], count_bytes: int) -> tuple[str, str]:
    """The registry's string as a literal, or (where that would be too long) as an array declared before."""
    if len(text) <= _MAX_LITERAL:
        count = "".join(f"\\{byte:03o}" for byte in text[:count_bytes])
        pieces = "\n".join(f'    "{name}\\000"' for name in names)
        return "", f'    "{count}"\n{pieces}'
    numbers = ", ".join(map(str, [*text, 0]))
    return f"static const char names[] = {{{_wrap(numbers)}}};\n\n", "    names"


def _declaration(name: str) -> str:
    return (
        f"int {name}(\n    TVMValue* args, int* type_codes, int num_args, TVMValue* out_ret_value, "
        "int* out_ret_tcode,\n    void* resource_handle)"
    )


def tables_source(network: CodegenNetwork) -> str:
    """``NAME_lib1.c``: the tables, the network's one instance, and the entry points."""
    sections = [
        f"{_INTRODUCTION}#include <nvdla_crt.h>\n",
        _declarations(network),
        _table("nvdla_parameter_t", "parameters",
               (f'{_literal(name)}, {network.loadable.blob(name).length}u' for name in network.parameters)),
        _table("nvdla_content_t", "contents", _contents(network)),
        _table("nvdla_memory_t", "memories",
               (f"{m.id}u, {int(m.domain)}u, {m.size}u, {m.alignment}u" for m in network.memories)),
        *_submits(network),
        _table("nvdla_binding_t", "inputs", _bindings(network, network.loadable.inputs)),
        _table("nvdla_binding_t", "outputs", _bindings(network, network.loadable.outputs)),
        _instance(network),
        *_entry_points(network),
    ]  # fmt: skip
    return "\n".join(section for section in sections if section)


def _declarations(network: CodegenNetwork) -> str:
    lines = [_declaration(name) + ";" for name in network.functions]
    return "\n".join([*lines, f"void {network.prefix}_set_platform(const nvdla_platform_t* platform);", ""])


def _table(kind: str, name: str, rows: Iterable[str]) -> str:
    """A constant array; nothing for an empty one, which C99 does not have."""
    body = "".join(f"    {{{row}}},\n" for row in rows)
    return f"static const {kind} {name}[] = {{\n{body}}};\n" if body else ""


def _contents(network: CodegenNetwork) -> list[str]:
    """Blobs that are loaded into memories."""
    index = {name: position for position, name in enumerate(network.parameters)}
    rows = []
    for memory in network.memories:
        again = int(any(_DEPENDENCIES in name for name in memory.contents))
        contents = network.loadable.contents(memory) if memory.flags & MemoryFlags.SET else []
        rows += [f"{index[blob.name]}u, {memory.id}u, {offset}u, {again}u" for offset, blob in contents]
    return rows


def _submits(network: CodegenNetwork) -> list[str]:
    """Address lists of the tasks, the tasks of each submit, and the submits in the order they are served."""
    loadable = network.loadable
    sections: list[str] = []
    submits: list[str] = []
    for entry in loadable.submit_order:
        tasks: list[str] = []
        for task in map(loadable.task, entry.task_ids):
            name = f"addresses_{entry.id}_{len(tasks)}"
            addresses = [loadable.address(address) for address in task.address_list]
            sections.append(
                _table(
                    "nvdla_address_t",
                    name,
                    (f"{a.mem_id}u, {a.offset}u, {loadable.address_bytes(a)}u" for a in addresses),
                )
            )
            tasks.append(
                f"{task.id}u, {int(task.interface)}u, {task.instance}, "
                f"{name if addresses else 'NULL'}, {len(addresses)}u"
            )
        sections.append(_table("nvdla_task_t", f"tasks_{entry.id}", tasks))
        submits.append(f"{entry.id}u, {f'tasks_{entry.id}' if tasks else 'NULL'}, {len(tasks)}u")
    return [*sections, _table("nvdla_submit_t", "submits", submits)]


def _bindings(network: CodegenNetwork, memories: Iterable[MemoryEntry]) -> list[str]:
    return [f"{_literal(network.binding_name(memory))}, {memory.id}u, {memory.size}u" for memory in memories]


def _instance(network: CodegenNetwork) -> str:
    loadable = network.loadable
    sizes = {
        "parameters": len(network.parameters), "contents": len(_contents(network)),
        "memories": len(network.memories), "submits": len(loadable.submits), "inputs": len(loadable.inputs),
        "outputs": len(loadable.outputs),
    }  # fmt: skip
    members = "".join(f"    {name if size else 'NULL'}, {size}u,\n" for name, size in sizes.items())
    return (
        f"static const nvdla_network_t network = {{\n    {_literal(network.name)},\n{members}}};\n\n"
        f"static const void* parameter_data[{max(sizes['parameters'], 1)}];\n\n"
        "static nvdla_instance_t instance = {&network, NULL, parameter_data, 0};\n"
    )


def _entry_points(network: CodegenNetwork) -> list[str]:
    prefix = network.prefix
    yielded = [
        f"void {prefix}_set_platform(const nvdla_platform_t* platform) {{ instance.platform = platform; }}\n",
        _entry(f"{prefix}_run", "nvdla_crt_run(&instance, args, type_codes, num_args)", True),
        _entry(f"{prefix}_load", "nvdla_crt_load(&instance, args, type_codes, num_args)", True),
    ]
    for index, entry in enumerate(network.loadable.submit_order):
        yielded.append(_entry(f"{prefix}_submit_{entry.id}", f"nvdla_crt_submit(&instance, {index}u, num_args)", False))
    return [*yielded, _entry(f"{prefix}_unload", "nvdla_crt_unload(&instance, num_args)", False)]


def _entry(name: str, call: str, takes_arguments: bool) -> str:
    unused = ["out_ret_value", "out_ret_tcode", "resource_handle"]
    unused += [] if takes_arguments else ["args", "type_codes"]
    body = "".join(f"  (void){argument};\n" for argument in unused)
    return f"{_declaration(name)} {{\n{body}  return {call};\n}}\n"


def _literal(text: str) -> str:
    """A C string literal; everything but plain characters as octal (three digits, so nothing runs on)."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{plain}"'


def _wrap(numbers: str) -> str:
    """Long lists in lines."""
    return re.sub(r"(.{1,110}),", r"\1,\n    ", numbers)
