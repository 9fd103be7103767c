"""The graph executor's JSON: nodes, storage, shapes, with everything checked that other code relies on.

Source: tvm src/runtime/graph_executor/graph_executor.h (0.8 to 0.18), and measured files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvdla.containers.tvm.dtype import parse
from nvdla.errors import FormatError
from nvdla.rounding import ceil_div

_MAX_EXTENT = 1 << 40


def parse_json(data: bytes | memoryview, what: str) -> Any:
    """JSON text as values; FormatError for anything that is not, including absurd nesting and numbers."""
    try:
        return json.loads(bytes(data).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise FormatError(f"{what}: not UTF-8 text at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise FormatError(f"{what}: not JSON: {reason}") from None


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


def read_graph(data: bytes | memoryview, what: str) -> MlfGraph:
    """A graph; FormatError naming the field that is missing, of the wrong type, or points to nothing."""
    root = parse_json(data, what)
    raw_nodes = take(root, "nodes", list, what)
    rows = _integers(take(root, "node_row_ptr", list, what), f"{what}: node_row_ptr")
    attributes = take(root, "attrs", dict, what)
    entries = _entries(attributes, f"{what}: attrs")
    if len(rows) != len(raw_nodes) + 1 or list(rows) != sorted(rows) or (rows[0], rows[-1]) != (0, len(entries)):
        raise FormatError(f"{what}: node_row_ptr must rise from 0 to {len(entries)} over {len(raw_nodes)} nodes")
    nodes = tuple(_node(node, index, rows, what) for index, node in enumerate(raw_nodes))
    arguments = _integers(take(root, "arg_nodes", list, what), f"{what}: arg_nodes", len(nodes))
    heads = tuple(
        _entry_index(head, rows, f"{what}: head {i}") for i, head in enumerate(take(root, "heads", list, what))
    )
    return MlfGraph(nodes, entries, rows, arguments, heads)


def take(mapping: Any, key: str, kind: type | tuple[type, ...], what: str, default: Any = None) -> Any:
    """A field of a JSON object that must be of a type; FormatError where it is not, ``default`` where it is absent
    (and a default is given)."""
    if not isinstance(mapping, Mapping):
        raise FormatError(f"{what}: an object is needed, this is {_kind(mapping)}")
    if key not in mapping:
        if default is not None:
            return default
        raise FormatError(f"{what}: the field {key!r} is missing")
    value = mapping[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        wanted = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise FormatError(f"{what}: the field {key!r} is {_kind(value)}, not {wanted}")
    return value


def count(mapping: Any, key: str, what: str, default: int | None = None) -> int:
    """A field that counts bytes: an integer from 0 to 2^63 - 1."""
    value = take(mapping, key, int, what, default)
    if not 0 <= value < 1 << 63:
        raise FormatError(f"{what}: the field {key!r} is {_number(value)}, not from 0 to 2^63 - 1")
    return value


def _kind(value: Any) -> str:
    return type(value).__name__


def _number(value: int) -> str:
    """A number for a message: a JSON integer can have thousands of digits."""
    return str(value) if value.bit_length() < 128 else f"a number of {value.bit_length()} bits"


def _integers(values: list[Any], what: str, limit: int = 1 << 62) -> tuple[int, ...]:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < limit:
            raise FormatError(f"{what}: {str(value)[:40]} is not an index below {limit}")
    return tuple(values)


def _entries(attributes: Mapping[str, Any], what: str) -> tuple[MlfEntry, ...]:
    columns = []
    for key in ("dltype", "shape", "storage_id"):
        pair = take(attributes, key, list, what)
        if len(pair) != 2 or not isinstance(pair[1], list):
            raise FormatError(f"{what}: {key!r} must be a type name and a list")
        columns.append(pair[1])
    dtypes, shapes, storage = columns
    if not len(dtypes) == len(shapes) == len(storage):
        raise FormatError(f"{what}: {len(dtypes)} types, {len(shapes)} shapes and {len(storage)} storage ids")
    _integers(storage, f"{what}: storage_id")
    found = []
    for index, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
        if not isinstance(dtype, str) or not isinstance(shape, list) or len(shape) > 64:
            raise FormatError(f"{what}: entry {index} needs a type name and a shape")
        found.append(MlfEntry(dtype, _integers(shape, f"{what}: shape {index}", _MAX_EXTENT), storage[index]))
    return tuple(found)


def _node(node: Any, index: int, rows: tuple[int, ...], what: str) -> MlfNode:
    where = f"{what}: node {index}"
    op, name = take(node, "op", str, where), take(node, "name", str, where)
    inputs = tuple(
        _entry_index(value, rows, f"{where}, input {i}")
        for i, value in enumerate(take(node, "inputs", list, where, []))
    )
    function = ""
    if op != "null":
        function = take(take(node, "attrs", dict, where), "func_name", str, where)
    return MlfNode(op, name, function, inputs)


def _entry_index(value: Any, rows: tuple[int, ...], what: str) -> int:
    """A reference [node, output, version] as the number of an entry."""
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise FormatError(f"{what}: a reference is [node, output, version]")
    node, output = _integers(value[:2], what)
    if node >= len(rows) - 1 or output >= rows[node + 1] - rows[node]:
        raise FormatError(f"{what}: node {node} has no output {output}")
    return rows[node] + output
