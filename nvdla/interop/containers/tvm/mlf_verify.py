"""Check a model library: its metadata against its files.

TVM writes these files and never reads most of them back, so nothing of this is checked by TVM itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nvdla.errors import FormatError, shape_text
from nvdla.interop.containers.registry import FileFinding, Severity
from nvdla.interop.containers.tvm import params, tar
from nvdla.interop.containers.tvm.crt import FuncRegistry
from nvdla.interop.containers.tvm.mlf import METADATA, LibraryModule, MlfEntry, MlfGraph, ModelLibrary, read_graph
from nvdla.interop.containers.tvm.params import ParamsFile

_KNOWN_FOLDERS = ("codegen/", "parameters/", "src/", "executor-config/", "runtime-config/", "runtime/", "templates/")
_REGISTRY = re.compile(
    rb'TVMFuncRegistry\s{1,20}\w{1,100}\s{0,20}=\s{0,20}\{\s{0,200}((?:"(?:[^"\\\n]|\\.)*"\s{0,200})+)'
)
_PIECE = re.compile(rb'"((?:[^"\\\n]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]+)|([0-7]{1,3})|(.))", re.DOTALL)
_SIMPLE = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def verify(library: ModelLibrary, strict: bool = False) -> list[FileFinding]:
    """All findings. ``strict`` makes errors of what contradicts itself without stopping anyone (sizes that do not add
    up, files without a mention)."""
    return list(_Verification(library, strict).run())


def c_string(literal: bytes) -> bytes:
    """The bytes of C string literals, adjacent pieces joined; the closing NUL is not included."""
    return b"".join(_ESCAPE.sub(_unescape, piece[1]) for piece in _PIECE.finditer(literal))


def _unescape(match: re.Match[bytes]) -> bytes:
    digits, octal, simple = match.groups()
    if digits is not None:
        return bytes([int(digits[-2:], 16)])
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    return _SIMPLE.get(simple, simple)


def registry_of(source: bytes) -> FuncRegistry | None:
    """The function registry in a generated C source, None where there is none; FormatError where it is wrong."""
    match = _REGISTRY.search(source)
    return FuncRegistry.parse(c_string(match[1]) + b"\0") if match else None


class _Verification:
    """One pass over a library; every file is parsed once."""

    def __init__(self, library: ModelLibrary, strict: bool) -> None:
        self.library = library
        self.minor = Severity.ERROR if strict else Severity.WARNING
        self.expected: set[str] = {METADATA}

    def run(self) -> Iterator[FileFinding]:
        yield from self._archive()
        seen: set[str] = set()
        for module in self.library.modules:
            where = f"model {module.name[:80]!r}"
            if module.name in seen:
                yield _error(where, "name: must be unique in the metadata")
                continue
            seen.add(module.name)
            yield from self._metadata(module, where)
            yield from self._module(module, where)
        yield from self._unknown_files()

    def _archive(self) -> Iterator[FileFinding]:
        archive = self.library.archive
        if archive.size and not archive.ended:
            yield FileFinding(self.minor, "tar archive", archive.size, "must end with two blocks of zeros")
        if archive.junk:
            yield FileFinding(
                self.minor,
                "tar archive",
                archive.size - len(archive.tail),
                "must end after two blocks of zeros, got more bytes",
            )
        seen: set[str] = set()
        for member in archive.members:
            reason = tar.unsafe(member)
            if reason:
                yield FileFinding(
                    Severity.ERROR, f"member {member.path[:200]!r}", member.offset, f"{reason}. It is never extracted."
                )
            elif member.kind == "file":
                if member.name in seen:
                    yield FileFinding(
                        self.minor,
                        f"member {member.path[:200]!r}",
                        member.offset,
                        "path: must be unique: the later member is used",
                    )
                seen.add(member.name)

    def _metadata(self, module: LibraryModule, where: str) -> Iterator[FileFinding]:
        entries = self.library.metadata.get("modules")
        if isinstance(entries, dict) and module.name not in entries:
            yield _error(where, "has another name in the metadata's list of modules")
        if module.style not in ("full-model", "operator"):
            yield FileFinding(
                self.minor, where, None, f"style: must be full-model or operator, got {module.style[:40]!r}"
            )
        for executor in module.executors:
            if executor not in ("graph", "aot", "nvdla"):
                yield FileFinding(self.minor, where, None, f"executor: must be graph or aot, got {executor[:40]!r}")
        if module.style == "full-model" and not module.executors:
            yield FileFinding(self.minor, where, None, "must name an executor, got none")
        if not module.targets:
            yield FileFinding(self.minor, where, None, "must name a target, got none")

    def _module(self, module: LibraryModule, where: str) -> Iterator[FileFinding]:
        for path in (module.relay_path, module.graph_path, module.params_path):
            if path is not None:
                self.expected.add(path)
                if path not in self.library.files:
                    yield _error(where, f"the file {path!r} is missing")
        parameters, graph = None, None
        try:
            parameters = self._parameters(module)
        except FormatError as error:
            yield _error(f"{where}, {module.params_path}", str(error))
        try:
            graph = self._graph(module)
        except FormatError as error:
            yield _error(f"{where}, {module.graph_path}", str(error))
        if parameters is not None:
            for finding in parameters.verify():
                if finding.severity is not Severity.NOTE:
                    yield FileFinding(
                        finding.severity,
                        f"{where}, {module.params_path}, {finding.where}",
                        finding.offset,
                        finding.message,
                    )
            yield from self._constants(module, parameters, where)
        if graph is not None:
            yield from self._storage(module, graph, where)
            yield from self._bindings(module, graph, parameters, where)
        yield from self._sources(module, graph, where)
        yield from self._operator_buffers(module, where)

    def _parameters(self, module: LibraryModule) -> ParamsFile | None:
        member = self.library.files.get(module.params_path or "")
        return params.read(member.data, "0.8" if self.library.version < 7 else "0.27") if member else None

    def _graph(self, module: LibraryModule) -> MlfGraph | None:
        member = self.library.files.get(module.graph_path or "")
        return read_graph(member.data, module.graph_path or "") if member else None

    def _constants(self, module: LibraryModule, parameters: ParamsFile, where: str) -> Iterator[FileFinding]:
        """The parameters are the model's constants, unless they were linked into the code."""
        stored = sum(len(tensor.stored) for tensor in parameters.tensors)
        for main in module.main:
            if main.constants and main.constants != stored and len(module.main) == 1:
                yield FileFinding(
                    self.minor,
                    f"{where}, memory of main",
                    None,
                    f"size of constants: must be {stored} (parameter file), got {main.constants}",
                )

    def _storage(self, module: LibraryModule, graph: MlfGraph, where: str) -> Iterator[FileFinding]:
        """Storage ids against the graph. TVM looks up the shape under the id's number where the node's was meant (both
        are the same until memory is shared), so that size is taken too."""
        sizes: dict[int, set[int]] = {}
        names: dict[int, str] = {}
        for entry in graph.entries:
            sizes.setdefault(entry.storage_id, set()).add(entry.size)
            if entry.storage_id < len(graph.entries):
                sizes[entry.storage_id].add(graph.entries[entry.storage_id].size)
        for node in graph.arguments:
            if graph.rows[node] < graph.rows[node + 1]:
                names.setdefault(graph.entry_of(node).storage_id, graph.nodes[node].name)
        listed = {item.storage_id for item in module.storage}
        for item in module.storage:
            at = f"{where}, storage id {item.storage_id}"
            if item.storage_id not in sizes:
                yield _error(at, "is in the metadata but not in the graph")
            elif item.size not in sizes[item.storage_id]:
                fitting = " or ".join(map(str, sorted(sizes[item.storage_id])[:8]))
                yield FileFinding(self.minor, at, None, f"size: must be {fitting} (graph), got {item.size}")
            elif item.binding != names.get(item.storage_id):
                yield _error(
                    at, f"is bound to {item.binding!r} in the metadata, to {names.get(item.storage_id)!r} in the graph"
                )
        missing = sorted(set(sizes) - listed)
        if module.storage and missing:
            yield _error(where, f"storage id {missing[0]} of the graph is missing in the metadata")

    def _bindings(
        self, module: LibraryModule, graph: MlfGraph, parameters: ParamsFile | None, where: str
    ) -> Iterator[FileFinding]:
        """Parameters against the graph's arguments, and the bytes of inputs and outputs against the metadata."""
        arguments = graph.argument_names()
        bound: set[str] = set()
        for tensor in parameters.tensors if parameters else ():
            node = arguments.get(tensor.name)
            at = f"{where}, parameter {tensor.name[:80]!r}"
            if node is None or graph.rows[node] == graph.rows[node + 1]:
                yield _error(at, "is not an argument of the graph")
                continue
            bound.add(tensor.name)
            entry = graph.entry_of(node)
            if (entry.dtype, entry.shape) != (tensor.type_name, tensor.shape):
                yield _error(
                    at,
                    f"is {tensor.type_name} {shape_text(tensor.shape)}, "
                    f"the graph expects {entry.dtype} {shape_text(entry.shape)}",
                )
        if len(module.main) == 1 and module.main[0].io:
            inputs = [n for name, n in arguments.items() if name not in bound and graph.rows[n] < graph.rows[n + 1]]
            total = sum(graph.entry_of(n).size for n in inputs) + sum(graph.entries[h].size for h in graph.heads)
            if total != module.main[0].io:
                yield FileFinding(
                    self.minor,
                    f"{where}, memory of main",
                    None,
                    f"size of inputs and outputs: must be {total} (graph), got {module.main[0].io}",
                )

    def _sources(self, module: LibraryModule, graph: MlfGraph | None, where: str) -> Iterator[FileFinding]:
        """Generated code: some must be there, its registry must be sound, and hold the functions that are called."""
        sources = self.library.sources(module)
        self.expected.update(member.name for member in sources)
        if not sources:
            yield _error(where, f"missing generated code codegen/host/src/{module.source_prefix}*.c")
            return
        names: set[str] = set()
        has_registry = False
        for member in sources:
            if not member.name.endswith((".c", ".cc", ".cpp")):
                continue
            try:
                registry = registry_of(bytes(member.data))
            except FormatError as error:
                yield FileFinding(Severity.ERROR, f"{where}, {member.name}", member.offset, str(error))
                continue
            if registry is not None:
                has_registry = True
                names.update(registry.names)
                yield FileFinding(
                    Severity.NOTE,
                    f"{where}, {member.name}",
                    member.offset,
                    f"registry of {len(registry.names)} functions, counted in {registry.count_bytes} bytes "
                    f"({'TVM 0.9 and later' if registry.count_bytes == 2 else 'up to TVM 0.8'})",
                )
        called = {node.function for node in graph.nodes if node.op == "tvm_op"} if graph else set()
        if has_registry:
            for name in sorted(called - names - {"__nop", "__copy"}):
                yield _error(where, f"the graph calls {name[:200]!r}, which is not in the function registry")

    def _operator_buffers(self, module: LibraryModule, where: str) -> Iterator[FileFinding]:
        for buffer in module.buffers:
            taken = MlfEntry(buffer.dtype, buffer.shape, 0).size
            if taken != buffer.size:
                yield FileFinding(
                    self.minor,
                    f"{where}, {buffer.function[:80]}, {buffer.name[:80]!r}",
                    None,
                    f"size of {buffer.dtype[:40]} {buffer.shape[:8]}: must be {taken}, got {buffer.size}",
                )

    def _unknown_files(self) -> Iterator[FileFinding]:
        for path, member in self.library.files.items():
            if path not in self.expected and not path.startswith(_KNOWN_FOLDERS):
                yield FileFinding(self.minor, f"member {path[:200]!r}", member.offset, "is not part of the format")


def _error(where: str, message: str) -> FileFinding:
    return FileFinding(Severity.ERROR, where, None, message)
