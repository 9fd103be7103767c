"""Model Library Format archives made from loadables, with their C sources.

What is the same for every network is nvdla_crt.h and nvdla_crt.c, next to this file and copied into each library.

``parameters`` holds the blobs (weights, tables, descriptors) as they are loaded; ``codegen`` the C code that loads and
submits them; ``executor-config/graph`` the graph executor's view (one call); ``executor-config/nvdla`` the schedule:
every operation of every task, and the loadable's own tables, from which the loadable is made again.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import os
import re
import time
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvdla.emulator.memory.placement import place
from nvdla.errors import FormatError
from nvdla.interop.containers.tvm import params, tar
from nvdla.interop.containers.tvm.crt import FuncRegistry
from nvdla.interop.containers.tvm.mlf import LibraryModule, ModelLibrary, parse_json, take
from nvdla.interop.containers.tvm.tar import TarMember
from nvdla.loadable.descriptors import DlaTask
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.descriptors.task import DlaOperation, EmuTask
from nvdla.loadable.enums import MemoryDomain, MemoryFlags
from nvdla.loadable.model import (
    AddressEntry,
    Blob,
    EventEntry,
    Loadable,
    MemoryEntry,
    RelocEntry,
    SubmitEntry,
    TaskEntry,
    TensorDesc,
    Version,
)
from nvdla.program.program import Program
from nvdla.tensors.parameters import Parameter
from nvdla.util.escaping import Document, Json, c_name_part, c_string, json_text
from nvdla.util.rounding import integer, is_digits

#: What C99 promises of a string literal (5.2.4.1); a longer one is written as an array.
_MAX_LITERAL = 4000
#: Memories with such contents are loaded again before every submit: the firmware counts them down in place.
_DEPENDENCIES = "dep_graph"
#: A platform for register programs, and what TVM's C runtime needs from a platform. The build files leave them out.
_PLATFORM_FILES = ("nvdla_registers.h", "nvdla_registers.c", "tvm_platform.c")
_INTRODUCTION = "/* Generated from an NVDLA loadable. */\n"


@dataclass(frozen=True)
class CodegenNetwork:
    """A loadable with the names its C code uses. ``parameters`` are its blobs in the order of the parameter file."""

    name: str
    loadable: Loadable
    parameters: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """Return the prefix of its functions' names."""
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
    plain = c_name_part(name)
    if not plain:
        raise FormatError(f"model name: must contain a letter or digit, got {name[:60]!r}")
    return plain


def support_files() -> dict[str, bytes]:
    """The header and source that are the same for every network, by their paths in the library."""
    here = importlib.resources.files("nvdla.interop.containers.tvm")
    return {
        "codegen/host/include/nvdla_crt.h": (here / "nvdla_crt.h").read_bytes(),
        "codegen/host/src/nvdla_crt.c": (here / "nvdla_crt.c").read_bytes(),
        **{f"codegen/host/platform/{name}": (here / name).read_bytes() for name in _PLATFORM_FILES},
    }


def build_files(networks: Sequence[CodegenNetwork], count_bytes: int = 2) -> dict[str, bytes]:
    """Return the files that build a library: ``crt_config.h`` with the numbers of its networks, and two build files."""
    functions = [name for network in networks for name in (*network.functions, "__tvm_main__")]
    names = [name for network in networks for name in network.parameters]
    names += [name for network in networks for name, _ in _bound(network, network.loadable.inputs)]
    numbers = {
        "TVM_CRT_MAX_ARGS": max(len(_entries(network)) for network in networks),
        "TVM_CRT_MAX_NDIM": 1,
        "TVM_CRT_MAX_REGISTERED_MODULES": len(networks),
        "TVM_CRT_MAX_STRLEN_FUNCTION_NAME": max(len(name.encode()) for name in functions) + 1,
        "TVM_CRT_MAX_STRLEN_PARAM_NAME": max(len(name.encode()) for name in [*names, ""]) + 1,
        "TVM_CRT_GLOBAL_FUNC_REGISTRY_SIZE_BYTES": len(FuncRegistry(functions, (), count_bytes).encode()),
    }
    lines = "".join(f"#define {name} {number}\n" for name, number in numbers.items())
    header = f"{_INTRODUCTION}#ifndef CRT_CONFIG_H_\n#define CRT_CONFIG_H_\n\n{lines}\n#endif\n"
    return {
        "codegen/host/include/crt_config.h": header.encode(),
        "codegen/host/Makefile": _MAKEFILE.encode(),
        "codegen/host/CMakeLists.txt": _CMAKE.encode(),
    }


_MAKEFILE = """# Generated from an NVDLA loadable: make CC=riscv64-unknown-elf-gcc AR=riscv64-unknown-elf-ar
CFLAGS ?= -O2
OBJECTS := $(patsubst %.c,%.o,$(wildcard src/*.c))

libnvdla_network.a: $(OBJECTS)
\t$(AR) rcs $@ $^

%.o: %.c
\t$(CC) -std=c99 $(CFLAGS) -Iinclude -c $< -o $@

clean:
\trm -f libnvdla_network.a $(OBJECTS)

.PHONY: clean
"""
_CMAKE = """# Generated from an NVDLA loadable.
cmake_minimum_required(VERSION 3.13)
project(nvdla_network C)
file(GLOB sources ${CMAKE_CURRENT_SOURCE_DIR}/src/*.c)
add_library(nvdla_network STATIC ${sources})
target_include_directories(nvdla_network PUBLIC include)
set_target_properties(nvdla_network PROPERTIES C_STANDARD 99)
"""


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
               (f'{c_string(name)}, {network.loadable.blob(name).length}u' for name in network.parameters)),
        _table("nvdla_content_t", "contents", _contents(network)),
        _table("nvdla_memory_t", "memories",
               (f"{m.id}u, {int(m.domain)}u, {m.size}u, {m.alignment}u" for m in network.memories)),
        *_submits(network),
        _table("nvdla_binding_t", "inputs", _bindings(network, network.loadable.inputs)),
        _table("nvdla_binding_t", "outputs", _bindings(network, network.loadable.outputs)),
        _places(network),
        _instance(network),
        *_entry_points(network),
    ]  # fmt: skip
    return "\n".join(section for section in sections if section)


def _declarations(network: CodegenNetwork) -> str:
    lines = [_declaration(name) + ";" for name in network.functions]
    lines += [f"extern const nvdla_place_t {network.prefix}_places[];"]
    lines += [f"extern const uint32_t {network.prefix}_{name};" for name in ("num_places", "last_task")]
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
    return [f"{c_string(network.binding_name(memory))}, {memory.id}u, {memory.size}u" for memory in memories]


def _places(network: CodegenNetwork) -> str:
    """Tables with the place of each memory in the register program, and the last task, which ends a run."""
    allocations = place(network.loadable)
    bases = {allocation.space: allocation.address for allocation in reversed(allocations)}
    rows = [f"{a.memory.id}u, {int(a.memory.domain)}u, {a.address - bases[a.space]}u" for a in allocations]
    tasks = [task for entry in network.loadable.submit_order for task in entry.task_ids]
    numbers = (("num_places", len(rows)), ("last_task", tasks[-1] if tasks else 0))
    body = "".join(f"    {{{row}}},\n" for row in rows or ["0u, 0u, 0u"])
    constants = "".join(f"const uint32_t {network.prefix}_{name} = {number}u;\n" for name, number in numbers)
    return f"const nvdla_place_t {network.prefix}_places[] = {{\n{body}}};\n{constants}"


def _instance(network: CodegenNetwork) -> str:
    loadable = network.loadable
    sizes = {
        "parameters": len(network.parameters), "contents": len(_contents(network)),
        "memories": len(network.memories), "submits": len(loadable.submits), "inputs": len(loadable.inputs),
        "outputs": len(loadable.outputs),
    }  # fmt: skip
    members = "".join(f"    {name if size else 'NULL'}, {size}u,\n" for name, size in sizes.items())
    return (
        f"static const nvdla_network_t network = {{\n    {c_string(network.name)},\n{members}}};\n\n"
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


def _wrap(numbers: str) -> str:
    """Long lists in lines."""
    return re.sub(r"(.{1,110}),", r"\1,\n    ", numbers)


VERSION = 7
#: DLPack's number for an accelerator without its own number (kDLExtDev).
DEVICE = 12
_SCHEDULE_VERSION = 1
_TABLES: Mapping[str, type] = {
    "tasks": TaskEntry, "memories": MemoryEntry, "addresses": AddressEntry, "events": EventEntry,
    "tensors": TensorDesc, "relocs": RelocEntry, "submits": SubmitEntry,
}  # fmt: skip


def pack(loadables: Sequence[tuple[str, Loadable]], count_bytes: int = 2, when: int | None = None) -> bytes:
    """The tar of a library with these networks (name, loadable). ``count_bytes`` is the width of the registry's count:
    2 for TVM 0.9 and later, 1 for 0.8. ``when`` (seconds since 1970) defaults to $SOURCE_DATE_EPOCH, then to now."""
    if not loadables:
        raise FormatError("a model library: must have at least one loadable")
    stamp = _now() if when is None else when
    files: dict[str, bytes] = dict(support_files())
    modules: Document = {}
    networks: list[CodegenNetwork] = []
    for given, loadable in loadables:
        name = identifier(given)
        if name in modules:
            raise FormatError(f"names of networks: must be unique, got {name!r} twice")
        network = CodegenNetwork(name, loadable, tuple(sorted({blob.name for blob in loadable.blobs}, key=str.encode)))
        modules[name] = _metadata(network, stamp)
        networks.append(network)
        files |= _files(network, count_bytes)
    files |= build_files(networks, count_bytes)
    files["metadata.json"] = _json({"modules": modules, "version": VERSION})
    return tar.write(_members(files, stamp))


def unpack(library: ModelLibrary, module: LibraryModule) -> Loadable:
    """The loadable that :func:`pack` put in; FormatError for a library that was made of something else."""
    path = f"executor-config/nvdla/{module.name}.json"
    if path not in library.files or module.params_path is None or module.params_path not in library.files:
        raise FormatError(f"{library.name}: model {module.name!r}: must be made from a loadable, but has no {path}")
    schedule = parse_json(library.files[path].data, path)
    if take(schedule, "version", int, path) != _SCHEDULE_VERSION:
        raise FormatError(f"{path}: schedule version: must be {_SCHEDULE_VERSION}, got {str(schedule['version'])[:20]}")
    tables = take(schedule, "loadable", dict, path)
    data = {t.name: t.stored for t in params.read(library.files[module.params_path].data).tensors}
    blobs = []
    for index, row in enumerate(take(tables, "blobs", list, path)):
        blob_name = take(row, "name", str, f"{path}: blob {index}")
        if blob_name not in data:
            raise FormatError(f"{path}: blob {blob_name[:80]!r}: must be in {module.params_path} exactly once")
        blobs.append(_revive(Blob, {**row, "data": data.pop(blob_name)}, f"{path}: blob {index}"))
    rows: Document = {
        name: tuple(_revive(kind, row, f"{path}: {name} {i}") for i, row in enumerate(take(tables, name, list, path)))
        for name, kind in _TABLES.items()
    }
    version = _revive(Version, take(tables, "version", dict, path), f"{path}: version")
    return Loadable(
        version=version, blobs=tuple(blobs), identifier=take(tables, "identifier", str, path), name=module.name, **rows
    )


def _now() -> int:
    """The current time, or that of a reproducible build."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return integer(epoch) if is_digits(epoch) else int(time.time())


def _json(value: object) -> bytes:
    return json_text(value, indent=2, sort_keys=True).encode() + b"\n"


def _members(files: Mapping[str, bytes], stamp: int) -> Iterable[TarMember]:
    """Directories before their files, as TVM writes them, in order of name."""
    folders = {"."}
    for path in files:
        parts = path.split("/")[:-1]
        folders.update("./" + "/".join(parts[: i + 1]) for i in range(len(parts)))
    empty = memoryview(b"")
    members = [TarMember(folder, "dir", empty, 0o755, stamp) for folder in folders]
    members += [TarMember(f"./{path}", "file", memoryview(data), 0o644, stamp) for path, data in files.items()]
    return sorted(members, key=lambda member: member.path)


def _files(network: CodegenNetwork, count_bytes: int) -> dict[str, bytes]:
    name = network.name
    blobs = [
        Parameter.from_bytes(blob, network.loadable.blob(blob).data, "uint8", (network.loadable.blob(blob).length,))
        for blob in network.parameters
    ]
    return {
        f"codegen/host/src/{name}_lib0.c": registry_source(network, count_bytes).encode(),
        f"codegen/host/src/{name}_lib1.c": tables_source(network).encode(),
        f"parameters/{name}.params": params.write(blobs),
        f"executor-config/graph/{name}.graph": _json(_graph(network)),
        f"executor-config/nvdla/{name}.json": _json(_schedule(network)),
        f"src/{name}.relay": _relay(network).encode(),
    }  # fmt: skip


def _stored(network: CodegenNetwork) -> dict[str, int]:
    """Bytes of each parameter."""
    return {name: network.loadable.blob(name).length for name in network.parameters}


def _bound(network: CodegenNetwork, memories: Iterable[MemoryEntry]) -> list[tuple[str, int]]:
    """Name and bytes of bound tensors, in bind order. The graph needs names that differ, so one that another tensor or
    a parameter has already gets its number."""
    taken, bindings = set(network.parameters), []
    for memory in memories:
        name = network.binding_name(memory)
        name = name if name not in taken else f"{name}:{memory.bind_id}:{memory.id}"
        taken.add(name)
        bindings.append((name, memory.size))
    return bindings


def _entries(network: CodegenNetwork) -> list[tuple[str | None, int]]:
    """The graph's values in order: inputs, parameters, outputs (which have no name); each has a storage id."""
    inputs = _bound(network, network.loadable.inputs)
    outputs = [(None, size) for _, size in _bound(network, network.loadable.outputs)]
    return [*inputs, *_stored(network).items(), *outputs]


def _graph(network: CodegenNetwork) -> Document:
    """One call of the network on its inputs and parameters. Tensors are the bound memories, byte for byte."""
    entries = _entries(network)
    named = [name for name, _ in entries if name is not None]
    outputs = len(entries) - len(named)
    call = {
        "op": "tvm_op", "name": f"{network.prefix}_run", "inputs": [[index, 0, 0] for index in range(len(named))],
        "attrs": {"func_name": f"{network.prefix}_run", "num_inputs": str(len(named)), "num_outputs": str(outputs),
                  "flatten_data": "0"},
    }  # fmt: skip
    return {
        "nodes": [*({"op": "null", "name": name, "inputs": []} for name in named), call],
        "arg_nodes": list(range(len(named))),
        "heads": [[len(named), index, 0] for index in range(outputs)],
        "node_row_ptr": [*range(len(named) + 1), len(entries)],
        "attrs": {
            "dltype": ["list_str", ["uint8"] * len(entries)],
            "device_index": ["list_int", [1] * len(entries)],
            "storage_id": ["list_int", list(range(len(entries)))],
            "shape": ["list_shape", [[size] for _, size in entries]],
        },
    }


def _metadata(network: CodegenNetwork, stamp: int) -> Document:
    loadable = network.loadable
    inputs, outputs = _bound(network, loadable.inputs), _bound(network, loadable.outputs)
    main = {
        "device": DEVICE,
        "constants_size_bytes": sum(_stored(network).values()),
        "workspace_size_bytes": sum(m.size for m in network.memories if _is_workspace(m)),
        "io_size_bytes": sum(size for _, size in [*inputs, *outputs]),
        "inputs": {name: {"size": size, "dtype": "uint8"} for name, size in inputs},
        "outputs": {name: {"size": size, "dtype": "uint8"} for name, size in outputs},
    }
    operators = [
        {
            "function_name": f"{network.prefix}_submit_{entry.id}",
            "workspace": [{"device": DEVICE, "workspace_size_bytes": _workspace(network, entry)}],
        }
        for entry in loadable.submit_order
    ]
    sids = [
        {"storage_id": index, "size_bytes": size} | ({"input_binding": name} if name is not None else {})
        for index, (name, size) in enumerate(_entries(network))
    ]
    return {
        "model_name": network.name,
        "export_datetime": time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(stamp)),
        "memory": {"functions": {"main": [main], "operator_functions": operators}, "sids": sids},
        "target": ["nvdla", "c -keys=cpu -runtime=crt"],
        "executors": ["graph"],
        "style": "full-model",
    }


def _is_workspace(memory: MemoryEntry) -> bool:
    """Scratch memory: allocated, but neither bound nor filled."""
    filled = memory.flags & MemoryFlags.SET and memory.contents
    return not (memory.is_input or memory.is_output or filled)


def _workspace(network: CodegenNetwork, entry: SubmitEntry) -> int:
    """Scratch memory that the tasks of one submit reach."""
    loadable = network.loadable
    reached = {
        loadable.address(address).mem_id for task in map(loadable.task, entry.task_ids) for address in task.address_list
    }
    return sum(m.size for m in network.memories if m.id in reached and _is_workspace(m))


def _schedule(network: CodegenNetwork) -> dict[str, Json]:
    """Return the order of operations, for a reader, and the loadable's tables, to make it again."""
    loadable = network.loadable
    program = Program.of(loadable)
    decoded = program.tasks
    memory = {domain.name: sum(m.size for m in network.memories if m.domain == domain) for domain in MemoryDomain}
    return {
        "version": _SCHEDULE_VERSION,
        "abi": program.abi.name,
        "abi_reason": program.abi_reason,
        "memory_bytes": memory,
        "inputs": [_tensor(network, m) for m in loadable.inputs],
        "outputs": [_tensor(network, m) for m in loadable.outputs],
        "submits": [{"id": entry.id, "function": f"{network.prefix}_submit_{entry.id}",
                     "tasks": [_task(loadable.task(task), decoded[task]) for task in entry.task_ids]}
                    for entry in loadable.submit_order],
        "loadable": {"version": _plain(loadable.version), "identifier": loadable.identifier,
                     "blobs": [{**_plain(blob, skip="data")} for blob in loadable.blobs],
                     **{table: [_plain(row) for row in getattr(loadable, table)] for table in _TABLES}},
    }  # fmt: skip


def _tensor(network: CodegenNetwork, memory: MemoryEntry) -> Document:
    tensor = network.loadable.tensor(memory.tensor_desc_id)
    return {
        "name": tensor.name,
        "memory": memory.id,
        "bytes": memory.size,
        "shape": [tensor.n, tensor.c, tensor.h, tensor.w],
        "data_type": tensor.data_type.name,
        "data_format": tensor.data_format.name,
        "pixel_format": tensor.pixel_format.name,
        "line_stride": tensor.line_stride,
        "surface_stride": tensor.surface_stride,
    }


def _task(task: TaskEntry, decoded: DlaTask | EmuTask) -> Document:
    if isinstance(decoded, DlaTask):
        rois = range(max(decoded.network.num_rois, 1))
        operations = [_operation(operation) for roi in rois for operation in decoded.operations(roi)]
    else:
        operations = [
            {"index": op.index, "engine": "cpu", "operation": op.op_type.name.lower()} for op in decoded.operations()
        ]
    return {"id": task.id, "interface": task.interface.name, "operations": operations}


def _operation(operation: DlaOperation) -> Document:
    common = operation.common
    consumers = [
        {"engine": OpType(engine).name.lower(), "index": consumer.index, "event": Event(consumer.event).name}
        for engine, consumer in enumerate(common.consumers)
        if consumer.index >= 0
    ]
    parent = common.fused_parent.index
    return {
        "index": operation.index,
        "roi": operation.roi,
        "engine": operation.engine,
        "dependencies": common.dependency_count,
        "consumers": consumers,
        "fused_parent": parent if parent >= 0 else None,
    }


def _relay(network: CodegenNetwork) -> str:
    """The signature of the network as Relay text; the body is compiled already."""
    arguments = ", ".join(
        f"%{c_name_part(name) or 'input'}_{number}: Tensor[({size}), uint8]"
        for number, (name, size) in enumerate(_bound(network, network.loadable.inputs))
    )
    results = [f"Tensor[({size}), uint8]" for _, size in _bound(network, network.loadable.outputs)]
    result = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return (
        f"/* {network.name}: compiled for NVDLA; tensors are the bound surfaces, byte for byte. */\n"
        f"def @main({arguments}) -> {result};\n"
    )


def _plain(row: Any, skip: str = "") -> Document:
    """A table's row as JSON values."""
    return {field.name: _value(getattr(row, field.name)) for field in dataclasses.fields(row) if field.name != skip}


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _plain(value)
    return int(value) if isinstance(value, int) else list(value) if isinstance(value, tuple) else value


def _revive(kind: type, row: object, where: str) -> Any:
    """A row again. Every field must be there and of its type; FormatError otherwise."""
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        value = take(row, field.name, object, where)
        values[field.name] = _typed(value, hints[field.name], f"{where}: {field.name}")
    return kind(**values)


def _typed(value: object, hint: Any, where: str) -> Any:
    """A JSON value as a field's type: a number, a text, an enum, a tuple of one of these, or a version."""
    if isinstance(hint, types.UnionType):
        return None if value is None else _typed(value, typing.get_args(hint)[0], where)
    if typing.get_origin(hint) is tuple:
        if isinstance(value, list):
            return tuple(_typed(item, typing.get_args(hint)[0], where) for item in value)
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _revive(hint, value, where)
    elif isinstance(value, memoryview) or (hint is str and isinstance(value, str)):
        return value
    elif isinstance(value, int) and not isinstance(value, bool) and issubclass(hint, int) and abs(value) < 1 << 64:
        return hint(value)
    raise FormatError(f"{where}: must be {getattr(hint, '__name__', hint)}, got {type(value).__name__}")
