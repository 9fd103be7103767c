"""A loadable packed as a model library (version 7), and unpacked again.

``parameters`` holds the blobs (weights, tables, descriptors) as they are loaded; ``codegen`` the C code that loads and
submits them; ``executor-config/graph`` the graph executor's view (one call); ``executor-config/nvdla`` the schedule:
every operation of every task, and the loadable's own tables, from which the loadable is made again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nvdla.containers.parameters import Parameter
from nvdla.containers.tvm import mlf_codegen, params, tar
from nvdla.containers.tvm.mlf import LibraryModule, ModelLibrary
from nvdla.containers.tvm.mlf_codegen import CodegenNetwork
from nvdla.containers.tvm.mlf_graph import parse_json, take
from nvdla.containers.tvm.tar import TarMember
from nvdla.descriptors import DlaTask
from nvdla.descriptors.enums import Event, OpType
from nvdla.errors import FormatError
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

VERSION = 7
#: DLPack's number for an accelerator that has no number of its own (kDLExtDev).
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
        raise FormatError("a model library needs at least one loadable")
    stamp = _now() if when is None else when
    files: dict[str, bytes] = dict(mlf_codegen.support_files())
    modules: dict[str, Any] = {}
    for given, loadable in loadables:
        name = mlf_codegen.identifier(given)
        if name in modules:
            raise FormatError(f"two networks of the library are named {name!r}; names must differ")
        network = CodegenNetwork(name, loadable, tuple(sorted({blob.name for blob in loadable.blobs}, key=str.encode)))
        modules[name] = _metadata(network, stamp)
        files |= _files(network, count_bytes)
    files["metadata.json"] = _json({"modules": modules, "version": VERSION})
    return tar.write(_members(files, stamp))


def unpack(library: ModelLibrary, module: LibraryModule) -> Loadable:
    """The loadable that :func:`pack` put in; FormatError for a library that was made of something else."""
    path = f"executor-config/nvdla/{module.name}.json"
    if path not in library.files or module.params_path is None or module.params_path not in library.files:
        raise FormatError(f"{library.name}: model {module.name!r} was not made of a loadable (there is no {path})")
    schedule = parse_json(library.files[path].data, path)
    if take(schedule, "version", int, path) != _SCHEDULE_VERSION:
        raise FormatError(f"{path}: schedule version {str(schedule['version'])[:20]}; {_SCHEDULE_VERSION} is known")
    tables = take(schedule, "loadable", dict, path)
    data = {t.name: t.stored for t in params.read(library.files[module.params_path].data).tensors}
    blobs = []
    for index, said in enumerate(take(tables, "blobs", list, path)):
        blob_name = take(said, "name", str, f"{path}: blob {index}")
        if blob_name not in data:
            raise FormatError(f"{path}: blob {blob_name[:80]!r} is not in {module.params_path}")
        blobs.append(_revive(Blob, {**said, "data": data[blob_name]}, f"{path}: blob {index}"))
    rows = {
        name: tuple(_revive(kind, row, f"{path}: {name} {i}") for i, row in enumerate(take(tables, name, list, path)))
        for name, kind in _TABLES.items()
    }
    version = _revive(Version, take(tables, "version", dict, path), f"{path}: version")
    return Loadable(
        version=version, blobs=tuple(blobs), identifier=take(tables, "identifier", str, path), name=module.name, **rows
    )


def _now() -> int:
    """The current time, or what a reproducible build sets instead."""
    said = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(said) if said.isascii() and said.isdigit() else int(time.time())


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"


def _members(files: Mapping[str, bytes], stamp: int) -> Iterable[TarMember]:
    """Folders before what they hold, as TVM writes them, everything in order of name."""
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
        f"codegen/host/src/{name}_lib0.c": mlf_codegen.registry_source(network, count_bytes).encode(),
        f"codegen/host/src/{name}_lib1.c": mlf_codegen.tables_source(network).encode(),
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
    taken, found = set(network.parameters), []
    for memory in memories:
        name = network.binding_name(memory)
        name = name if name not in taken else f"{name}:{memory.bind_id}:{memory.id}"
        taken.add(name)
        found.append((name, memory.size))
    return found


def _entries(network: CodegenNetwork) -> list[tuple[str | None, int]]:
    """The graph's values in order: inputs, parameters, outputs (which have no name); each has a storage id."""
    inputs = _bound(network, network.loadable.inputs)
    outputs = [(None, size) for _, size in _bound(network, network.loadable.outputs)]
    return [*inputs, *_stored(network).items(), *outputs]


def _graph(network: CodegenNetwork) -> dict[str, Any]:
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


def _metadata(network: CodegenNetwork, stamp: int) -> dict[str, Any]:
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


def _schedule(network: CodegenNetwork) -> dict[str, Any]:
    """What runs when, for a reader; and the loadable's tables, to make it again."""
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


def _tensor(network: CodegenNetwork, memory: MemoryEntry) -> dict[str, Any]:
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


def _task(task: TaskEntry, decoded: Any) -> dict[str, Any]:
    if isinstance(decoded, DlaTask):
        rois = range(max(decoded.network.num_rois, 1))
        operations = [_operation(operation) for roi in rois for operation in decoded.operations(roi)]
    else:
        operations = [
            {"index": op.index, "engine": "cpu", "operation": op.op_type.name.lower()} for op in decoded.operations()
        ]
    return {"id": task.id, "interface": task.interface.name, "operations": operations}


def _operation(operation: Any) -> dict[str, Any]:
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
        f"%{mlf_codegen.identifier(name)}: Tensor[({size}), uint8]"
        for name, size in _bound(network, network.loadable.inputs)
    )
    results = [f"Tensor[({size}), uint8]" for _, size in _bound(network, network.loadable.outputs)]
    result = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return (
        f"/* {network.name}: compiled for NVDLA; tensors are the bound surfaces, byte for byte. */\n"
        f"def @main({arguments}) -> {result};\n"
    )


def _plain(row: Any, skip: str = "") -> dict[str, Any]:
    """A table's row as JSON values."""
    return {field.name: _value(getattr(row, field.name)) for field in dataclasses.fields(row) if field.name != skip}


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _plain(value)
    return int(value) if isinstance(value, int) else list(value) if isinstance(value, tuple) else value


def _revive(kind: type, row: Any, where: str) -> Any:
    """A row again. Every field must be there and of its type; FormatError otherwise."""
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        said = take(row, field.name, object, where)
        values[field.name] = _typed(said, hints[field.name], f"{where}: {field.name}")
    return kind(**values)


def _typed(said: Any, hint: Any, where: str) -> Any:
    """A JSON value as a field's type: a number, a text, an enum, a tuple of one of these, or a version."""
    if isinstance(hint, types.UnionType):
        return None if said is None else _typed(said, typing.get_args(hint)[0], where)
    if typing.get_origin(hint) is tuple:
        if isinstance(said, list):
            return tuple(_typed(item, typing.get_args(hint)[0], where) for item in said)
    elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _revive(hint, said, where)
    elif isinstance(said, memoryview) or (hint is str and isinstance(said, str)):
        return said
    elif isinstance(said, int) and not isinstance(said, bool) and issubclass(hint, int) and abs(said) < 1 << 64:
        return hint(said)
    raise FormatError(f"{where}: {type(said).__name__} where {getattr(hint, '__name__', hint)} is needed")
