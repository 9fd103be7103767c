"""Bytes for people: plain lines, and lines with the structure that lies on them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

from nvdla.argument_kinds import by_annotations
from nvdla.descriptors import DlaTask, EmuTask, fields, member
from nvdla.loadable import Blob, Loadable

Row = dict[str, Any]
Tasks = Mapping[int, DlaTask | EmuTask]
BYTES_A_LINE = 16


@by_annotations
def hexdump_lines(data: memoryview, start: int = 0, length: int | None = None) -> Iterator[str]:
    """Offset, sixteen bytes, and what of them is printable ASCII; a run of equal lines is one ``*``."""
    end = len(data) if length is None else min(len(data), start + length)
    before: bytes | None = None
    starred = False
    for offset in range(start, end, BYTES_A_LINE):
        piece = bytes(data[offset : min(offset + BYTES_A_LINE, end)])
        if piece == before and offset + BYTES_A_LINE < end:
            if not starred:
                yield "*"
            starred = True
            continue
        starred, before = False, piece
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        halves = f"{piece[:8].hex(' ')}  {piece[8:].hex(' ')}"
        yield f"{offset:08x}  {halves:48}  |{text}|"
    yield f"{end:08x}"


@by_annotations
def annotated_rows(loadable: Loadable, tasks: Tasks, blob: Blob) -> list[Row]:
    """Field by field: offset, bytes, name, type, value, meaning. Empty when no structure lies on the blob."""
    return [
        {
            "offset": f"0x{each.offset:04x}",
            "bytes": _shorten(bytes(blob.data[each.offset : each.offset + each.size]).hex(" ")),
            "field": each.name,
            "type": each.type,
            "value": _value(each.value),
            "meaning": each.meaning,
        }
        for prefix, base, structure in _structures(loadable, tasks, blob)
        for each in fields(structure, base, prefix)
        if not each.reserved
    ]


def _shorten(text: str, limit: int = 8 * 3) -> str:
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def _value(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    numbers = ", ".join(str(each) for each in value[:8])
    return f"[{numbers}{', ...' if len(value) > 8 else ''}]"


def _structures(loadable: Loadable, tasks: Tasks, blob: Blob) -> Iterator[tuple[str, int, Any]]:
    """(name, byte offset in the blob, structure) of everything that lies on ``blob``."""
    for task_id, task in tasks.items():
        for kind, index, entries in _lists(task):
            if index >= 0 and _is_behind(loadable, task, index, blob):
                yield from _entries(task_id, kind, task, entries)


def _lists(task: DlaTask | EmuTask) -> Iterator[tuple[str, int, Any]]:
    network = task.network
    yield "network", 0, [network]
    if isinstance(task, EmuTask):
        yield "operation", network.operation_desc_index, task.containers
        yield "buffers", network.operation_buffer_desc_index, task.buffers
        return
    yield "operation", network.operation_desc_index, task.containers
    yield "surface", network.surface_desc_index, task.surface_containers
    yield "dependency", network.dependency_graph_index, task.dependencies
    yield "lut", network.lut_data_index, task.luts


def _is_behind(loadable: Loadable, task: DlaTask | EmuTask, index: int, blob: Blob) -> bool:
    """Does address index ``index`` of the task lead to this blob (its first content, from offset 0 on)?"""
    addresses = task.task.address_list
    if index >= len(addresses):
        return False
    entry = loadable.address(addresses[index])
    memory = loadable.memory(entry.mem_id)
    return any(
        name == blob.name and offset == entry.offset
        for name, offset in zip(memory.contents, memory.offsets, strict=False)
    )


def _entries(task_id: int, kind: str, task: DlaTask | EmuTask, entries: Any) -> Iterator[tuple[str, int, Any]]:
    for position, entry in enumerate(entries):
        structure = entry
        if isinstance(task, DlaTask) and kind in ("operation", "surface"):
            structure = member(entry, task.dependencies[position].op_type)
        elif isinstance(task, EmuTask) and kind == "operation":
            structure = task.operations()[position].op
        if structure is not None:
            name = "network" if kind == "network" else f"{kind}[{position}]"
            yield f"task {task_id} {name}.", position * ctypes.sizeof(entry), structure
