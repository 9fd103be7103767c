"""Model Library Format archives and their graphs.

Source: tvm src/runtime/graph_executor/graph_executor.h (0.8 to 0.18), and measured files.

A plain tar with ``metadata.json``, C sources under ``codegen/host``, ``parameters/NAME.params``, and by version:

1. ``relay.txt`` at the root, ``runtime-config/graph/graph.json``, ``runtimes``; memory is a list of storage ids; lib0.c
2. memory has ``functions`` and (graph executor) ``sids``
3. sources are ``NAME_lib0.c``
4. ``style`` full-model or operator; ``src/relay.txt``, or ``src/tir-DEVICE.txt`` for an operator
5. ``executor-config`` and ``executors``
6. ``target`` is a list
7. ``modules`` by name; ``src/NAME.relay``, ``executor-config/graph/NAME.graph``; operators keep the layout before

Source: tvm python/tvm/micro/model_library_format.py of 0.7 to 0.18, and files made by those exporters.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nvdla.errors import FormatError
from nvdla.interop.containers.tvm import tar
from nvdla.interop.containers.tvm.params import parse
from nvdla.interop.containers.tvm.tar import TarArchive, TarMember
from nvdla.util.escaping import Json
from nvdla.util.rounding import ceil_div

_MAX_EXTENT = 1 << 40


def parse_json(data: bytes | memoryview, where: str) -> Any:
    """JSON text as values; FormatError for anything that is not, including absurd nesting and numbers."""
    try:
        return json.loads(bytes(data).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: must be UTF-8, but byte {error.start} is not") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise FormatError(f"{where}: must be JSON: {reason}") from None


@dataclass(frozen=True)
class MlfNode:
    """``op`` is "null" (an input or parameter) or "tvm_op" (a call of ``function``)."""

    op: str
    name: str
    function: str
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class MlfEntry:
    """One value that a node makes."""

    dtype: str
    shape: tuple[int, ...]
    storage_id: int

    @property
    def size(self) -> int:
        """Bytes, as TVM counts them (packed)."""
        try:
            bits = parse(self.dtype).bits
        except FormatError:
            return 0
        return 0 if 0 in self.shape else ceil_div(math.prod(self.shape) * bits, 8)


@dataclass(frozen=True)
class MlfGraph:
    """``entries[i]`` is output ``i - rows[n]`` of node ``n``; ``heads`` are entries, ``arguments`` nodes."""

    nodes: tuple[MlfNode, ...]
    entries: tuple[MlfEntry, ...]
    rows: tuple[int, ...]
    arguments: tuple[int, ...]
    heads: tuple[int, ...]

    def entry_of(self, node: int) -> MlfEntry:
        """The first output of a node."""
        return self.entries[self.rows[node]]

    def argument_names(self) -> dict[str, int]:
        """Inputs and parameters: name -> node."""
        return {self.nodes[index].name: index for index in self.arguments}


def read_graph(data: bytes | memoryview, where: str) -> MlfGraph:
    """A graph; FormatError naming the field that is missing, of the wrong type, or points to nothing."""
    root = parse_json(data, where)
    raw_nodes = take(root, "nodes", list, where)
    rows = _integers(take(root, "node_row_ptr", list, where), f"{where}: node_row_ptr")
    attributes = take(root, "attrs", dict, where)
    entries = _entries(attributes, f"{where}: attrs")
    if len(rows) != len(raw_nodes) + 1 or list(rows) != sorted(rows) or (rows[0], rows[-1]) != (0, len(entries)):
        raise FormatError(f"{where}: node_row_ptr: must rise from 0 to {len(entries)} over {len(raw_nodes)} nodes")
    nodes = tuple(_node(node, index, rows, where) for index, node in enumerate(raw_nodes))
    arguments = _integers(take(root, "arg_nodes", list, where), f"{where}: arg_nodes", len(nodes))
    heads = tuple(
        _entry_index(head, rows, f"{where}: head {i}") for i, head in enumerate(take(root, "heads", list, where))
    )
    return MlfGraph(nodes, entries, rows, arguments, heads)


def take(mapping: object, key: str, kind: type | tuple[type, ...], where: str, default: object = None) -> Any:
    """A field of a JSON object that must be of a type; FormatError where it is not, ``default`` where it is absent
    (and a default is given)."""
    if not isinstance(mapping, Mapping):
        raise FormatError(f"{where}: must be an object, got {_kind(mapping)}")
    if key not in mapping:
        if default is not None:
            return default
        raise FormatError(f"{where}: field {key!r}: must be given")
    value = mapping[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise FormatError(f"{where}: field {key!r}: must be {wanted}, got {_kind(value)}")
    return value


def count(mapping: object, key: str, where: str, default: int | None = None) -> int:
    """A field that counts bytes: an integer from 0 to 2^63 - 1."""
    value = take(mapping, key, int, where, default)
    if not 0 <= value < 1 << 63:
        raise FormatError(f"{where}: field {key!r}: must be 0 to 2^63 - 1, got {_number(value)}")
    return value


def _kind(value: object) -> str:
    return type(value).__name__


def _number(value: int) -> str:
    """A number for a message: a JSON integer can have thousands of digits."""
    return str(value) if value.bit_length() < 128 else f"a number of {value.bit_length()} bits"


def _integers(values: list[Any], where: str, limit: int = 1 << 62) -> tuple[int, ...]:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
            raise FormatError(f"{where}: index: must be below {limit}, got {str(value)[:40]}")
    return tuple(values)


def _entries(attributes: Mapping[str, Json], where: str) -> tuple[MlfEntry, ...]:
    columns = []
    for key in ("dltype", "shape", "storage_id"):
        pair = take(attributes, key, list, where)
        if len(pair) != 2 or not isinstance(pair[1], list):
            raise FormatError(f"{where}: {key!r}: must be a type name and a list")
        columns.append(pair[1])
    dtypes, shapes, storage = columns
    if not len(dtypes) == len(shapes) == len(storage):
        raise FormatError(
            f"{where}: types, shapes, storage ids: must be as many, got {len(dtypes)}, {len(shapes)} and {len(storage)}"
        )
    _integers(storage, f"{where}: storage_id")
    entries = []
    for index, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
        if not isinstance(dtype, str) or not isinstance(shape, list) or len(shape) > 64:
            raise FormatError(f"{where}: entry {index}: must have a type name and a shape")
        entries.append(MlfEntry(dtype, _integers(shape, f"{where}: shape {index}", _MAX_EXTENT), storage[index]))
    return tuple(entries)


def _node(node: object, index: int, rows: tuple[int, ...], graph: str) -> MlfNode:
    where = f"{graph}: node {index}"
    op, name = take(node, "op", str, where), take(node, "name", str, where)
    inputs = tuple(
        _entry_index(value, rows, f"{where}, input {i}")
        for i, value in enumerate(take(node, "inputs", list, where, []))
    )
    function = ""
    if op != "null":
        function = take(take(node, "attrs", dict, where), "func_name", str, where)
    return MlfNode(op, name, function, inputs)


def _entry_index(value: object, rows: tuple[int, ...], where: str) -> int:
    """A reference [node, output, version] as the number of an entry."""
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise FormatError(f"{where}: a reference: must be [node, output, version]")
    node, output = _integers(value[:2], where)
    if node >= len(rows) - 1 or output >= rows[node + 1] - rows[node]:
        raise FormatError(f"{where}: a reference: must be an output of a node, got output {output} of node {node}")
    return rows[node] + output


VERSIONS = range(1, 8)
#: Files that an unpacked library may have, and their bytes together.
MAX_FILES = 100_000
MAX_BYTES = 8 << 30
METADATA = "metadata.json"


@dataclass(frozen=True)
class Workspace:
    """Scratch memory on a device (DLPack device type; 1 is the CPU)."""

    device: int
    size: int


@dataclass(frozen=True)
class OperatorFunction:
    """One generated function and the scratch memory it takes."""

    name: str
    workspaces: tuple[Workspace, ...]


@dataclass(frozen=True)
class MainMemory:
    """Memory that the whole model takes on one device. ``inputs`` and ``outputs`` (from TVM 0.11 on) give bytes and
    element type by name, empty where they were not recorded."""

    device: int
    workspace: int
    constants: int
    io: int
    inputs: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    outputs: Mapping[str, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Storage:
    """A storage id of the graph executor, and the input bound to it."""

    storage_id: int
    size: int
    binding: str | None = None


@dataclass(frozen=True)
class OperatorBuffer:
    """An argument of an operator-style function."""

    function: str
    name: str
    size: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class LibraryModule:
    """One model of the library, independent of the version. The paths are those of its version; verification checks
    that the files exist."""

    name: str
    style: str
    executors: tuple[str, ...]
    targets: tuple[str, ...]
    exported: str
    main: tuple[MainMemory, ...]
    operators: tuple[OperatorFunction, ...]
    storage: tuple[Storage, ...]
    buffers: tuple[OperatorBuffer, ...]
    source_prefix: str
    relay_path: str | None
    graph_path: str | None
    params_path: str | None

    def memory_rows(self) -> list[dict[str, Json]]:
        """Bytes by function and device: the summary that ``info`` prints as a table."""
        rows = [_row(self.name, "main", m.device, m.workspace, m.constants, m.io) for m in self.main]
        for function in self.operators:
            rows += [_row(self.name, function.name, w.device, w.size, None, None) for w in function.workspaces]
        if not rows and self.storage:
            bound = sum(s.size for s in self.storage if s.binding is not None)
            free = sum(s.size for s in self.storage if s.binding is None)
            rows.append(_row(self.name, "storage ids", 1, free, None, bound))
        sizes: dict[str, int] = {}
        for buffer in self.buffers:
            sizes[buffer.function] = sizes.get(buffer.function, 0) + buffer.size
        return rows + [_row(self.name, function, 1, None, None, size) for function, size in sizes.items()]


def _row(
    module: str, function: str, device: int, workspace: int | None, constants: int | None, io: int | None
) -> dict[str, Json]:
    return {
        "module": module,
        "function": function,
        "device": device,
        "workspace_bytes": workspace,
        "constants_bytes": constants,
        "io_bytes": io,
    }


@dataclass(frozen=True)
class ModelLibrary:
    """An open library. ``files`` maps each plain path to the last member of that path, as extraction would leave it."""

    version: int
    modules: tuple[LibraryModule, ...]
    archive: TarArchive
    files: Mapping[str, TarMember]
    metadata: Mapping[str, Json]
    name: str = "model library"

    def module(self, name: str) -> LibraryModule:
        """The module called ``name``. Raises FormatError that lists those there are."""
        for module in self.modules:
            if module.name == name:
                return module
        known = ", ".join(repr(module.name) for module in self.modules)
        raise FormatError(f"{self.name}: model: must be one of {known}, got {name!r}")

    def sources(self, module: LibraryModule) -> list[TarMember]:
        """The generated sources and objects of a model."""
        return self.sources_by_prefix.get(module.source_prefix, [])

    @cached_property
    def sources_by_prefix(self) -> dict[str, list[TarMember]]:
        """``codegen/host/src/NAME_lib0.c`` and ``.../lib/NAME_lib0.o`` by ``NAME_lib``."""
        sources: dict[str, list[TarMember]] = {}
        for path, member in self.files.items():
            if path.startswith(("codegen/host/src/", "codegen/host/lib/")):
                stem = path.rpartition("/")[2].partition(".")[0].rstrip("0123456789")
                sources.setdefault(stem, []).append(member)
        return sources

    def memory_rows(self) -> list[dict[str, Json]]:
        """Return the memory that each function takes."""
        return [row for module in self.modules for row in module.memory_rows()]

    def repack(self, changes: Mapping[str, bytes | None] | None = None) -> bytes:
        """The archive again: byte for byte without ``changes``; otherwise with the contents given by path replaced (or,
        for None, removed) and new files at the end."""
        changes = {tar.clean(path): data for path, data in (changes or {}).items()}
        members = []
        for member in self.archive.members:
            if member.name not in changes or member.kind != "file":
                members.append(member)
                continue
            data = changes[member.name]
            if data is not None and self.files.get(member.name) is member:
                members.append(TarMember(member.path, "file", memoryview(data), member.mode, member.mtime))
        for path, data in changes.items():
            if data is not None and path not in self.files:
                new = TarMember(f"./{path}", "file", memoryview(data), 0o644, self._time())
                if reason := tar.unsafe(new):
                    raise FormatError(f"{path!r} {reason}. It cannot be packed.")
                members.append(new)
        whole = not changes and self.archive.size
        return tar.write(members, self.archive.tail if whole else None)

    def _time(self) -> int:
        return max((member.mtime for member in self.archive.members), default=0)


def read(data: memoryview, name: str = "model library") -> ModelLibrary:
    """Opens a tar. FormatError for a broken archive and for metadata that cannot be understood."""
    return _open(tar.read(data), name)


def read_folder(folder: Path) -> ModelLibrary:
    """Opens an unpacked library. Links are listed and not followed."""
    return _open(TarArchive(tuple(_walk(folder)), memoryview(b""), 0), str(folder))


def _walk(folder: Path) -> Iterator[TarMember]:
    total, number = 0, 0
    try:
        for root, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path, number = Path(root, name), number + 1
                relative = f"./{path.relative_to(folder).as_posix()}"
                if path.is_symlink() or not path.is_file():
                    yield TarMember(
                        relative, "link", memoryview(b""), link=os.fspath(path.readlink()) if path.is_symlink() else ""
                    )
                    continue
                total += path.stat().st_size
                if total > MAX_BYTES or number > MAX_FILES:
                    raise FormatError(
                        f"{folder}: a model library: must have at most {MAX_FILES} files and {MAX_BYTES} bytes"
                    )
                yield TarMember(relative, "file", memoryview(path.read_bytes()))
    except OSError as error:
        raise FormatError(f"{folder}: cannot be read: {error.strerror}") from None


def _open(archive: TarArchive, name: str) -> ModelLibrary:
    files = {member.name: member for member in archive.members if member.kind == "file"}
    if METADATA not in files:
        raise FormatError(f"{name}: must be a TVM model library, got an archive without {METADATA}")
    metadata = parse_json(files[METADATA].data, f"{name}: {METADATA}")
    version = take(metadata, "version", int, METADATA)
    if version not in VERSIONS:
        raise FormatError(
            f"{name}: model library version: must be {VERSIONS[0]} to {VERSIONS[-1]}, got {str(version)[:20]}"
        )
    if version >= 7 and "modules" in metadata:
        entries = take(metadata, "modules", dict, METADATA)
        modules = tuple(
            _module(entry, version, f"{METADATA}: modules: {key[:60]}", key) for key, entry in entries.items()
        )
    else:
        modules = (_module(metadata, version, METADATA, None),)
    return ModelLibrary(version, modules, archive, files, metadata, name)


def _module(entry: object, version: int, where: str, key: str | None) -> LibraryModule:
    name = take(entry, "model_name", str, where)
    style = take(entry, "style", str, where, "full-model")
    executors = take(entry, "executors" if version >= 5 else "runtimes", list, where)
    memory = take(entry, "memory", dict if version > 1 else list, where)
    where_memory = f"{where}: memory"
    full = style != "operator"
    functions = take(memory, "functions", dict, where_memory) if full and version > 1 else {}
    storage = (memory if version == 1 else take(memory, "sids", list, where_memory, [])) if full else []
    return LibraryModule(
        name=name, style=style, executors=_strings(executors, f"{where}: executors"),
        targets=_targets(entry, where), exported=take(entry, "export_datetime", str, where, "?"),
        main=tuple(_main(item, f"{where_memory}: main {i}")
                   for i, item in enumerate(take(functions, "main", list, where_memory, []))),
        operators=tuple(_operator(item, f"{where_memory}: operator_functions {i}")
                        for i, item in enumerate(take(functions, "operator_functions", list, where_memory, []))),
        storage=tuple(_storage(item, f"{where_memory}: storage {i}") for i, item in enumerate(storage)),
        buffers=() if full else tuple(_buffers(memory, where_memory)),
        source_prefix=f"{name}_lib" if version >= 3 and full else "lib",
        **_paths(name, version, full, tuple(executors)),
    )  # fmt: skip


def _paths(name: str, version: int, full: bool, executors: tuple[object, ...]) -> dict[str, str | None]:
    """Paths of a model's files in one version."""
    if not full:
        return {"relay_path": None, "graph_path": None, "params_path": None}
    relay = f"src/{name}.relay" if version >= 7 else "src/relay.txt" if version >= 4 else "relay.txt"
    graph = None
    if "graph" in executors:
        graph = (
            "runtime-config/graph/graph.json"
            if version < 5
            else "executor-config/graph/graph.json"
            if version < 7
            else f"executor-config/graph/{name}.graph"
        )
    return {"relay_path": relay, "graph_path": graph, "params_path": f"parameters/{name}.params"}


def _strings(values: list[Any], where: str) -> tuple[str, ...]:
    for value in values:
        if not isinstance(value, str):
            raise FormatError(f"{where}: must be text, got {type(value).__name__}")
    return tuple(values)


def _targets(entry: object, where: str) -> tuple[str, ...]:
    """Up to version 5 an object by device type, then a list; either is taken."""
    target = take(entry, "target", (dict, list), where, {})
    return _strings(list(target.values()) if isinstance(target, dict) else target, f"{where}: target")


def _main(item: object, where: str) -> MainMemory:
    return MainMemory(
        count(item, "device", where),
        count(item, "workspace_size_bytes", where, 0),
        count(item, "constants_size_bytes", where, 0),
        count(item, "io_size_bytes", where, 0),
        _tensors(item, "inputs", where),
        _tensors(item, "outputs", where),
    )


def _tensors(item: object, key: str, where: str) -> dict[str, tuple[int, str]]:
    listed = take(item, key, dict, where, {})
    return {
        name: (
            count(row, "size", f"{where}: {key}: {name[:60]}"),
            take(row, "dtype", str, f"{where}: {key}: {name[:60]}", "?"),
        )
        for name, row in listed.items()
    }


def _operator(item: object, where: str) -> OperatorFunction:
    workspaces = take(item, "workspace", list, where, [])
    return OperatorFunction(
        take(item, "function_name", str, where),
        tuple(Workspace(count(w, "device", where), count(w, "workspace_size_bytes", where)) for w in workspaces),
    )


def _storage(item: object, where: str) -> Storage:
    binding = take(item, "input_binding", str, where, "") or None
    return Storage(count(item, "storage_id", where), count(item, "size_bytes", where), binding)


def _buffers(memory: Any, where: str) -> Iterator[OperatorBuffer]:
    for function in memory:
        for index, item in enumerate(take(memory, function, list, where)):
            at = f"{where}: {function[:60]} {index}"
            shape = take(item, "shape", list, at)
            if len(shape) > 64 or not all(isinstance(e, int) and 0 <= e < 1 << 62 for e in shape):
                raise FormatError(f"{at}: shape: must be a list of whole numbers")
            yield OperatorBuffer(
                function,
                take(item, "input_binding", str, at),
                count(item, "size_bytes", at),
                tuple(shape),
                take(item, "dtype", str, at),
            )
