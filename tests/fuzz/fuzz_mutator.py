"""Structure-aware mutators: one field of a valid file becomes wrong, and the rest of it stays valid.

A byte mutator mostly breaks the FlatBuffer's offsets and is refused at the door. These go through the model and the
descriptors, so that what they change is reached.
"""

from __future__ import annotations

import ctypes
import dataclasses
import random
import re
from typing import Any

from nvdla.descriptors import NEW, OLD, DlaTask, EmuTask
from nvdla.errors import NvdlaError
from nvdla.loadable import Blob, Loadable, load, to_bytes
from nvdla.loadable.enums import Interface

LISTS = ("tasks", "memories", "addresses", "events", "blobs", "tensors", "relocs", "submits")
EDGES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 4095, 4096, 8191, 8192, 32767, 32768)
EDGES += (65535, 65536, (1 << 24) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)


def mutate_loadable(data: bytes, rng: random.Random) -> bytes | None:
    """The loadable with one to three fields changed; None when it cannot be taken apart or put together."""
    try:
        loadable = load(data, checked=False)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change = rng.choice((_descriptor, _descriptor, _descriptor, _field, _entries))
            loadable = change(loadable, rng)
        return to_bytes(loadable)
    except (NvdlaError, ValueError, TypeError, OverflowError, LookupError, AttributeError):
        return None


def number(old: int, rng: random.Random, others: list[int] = []) -> int:  # noqa: B006 - never changed
    """A number that breaks naive checks: an edge, a neighbour, a multiple, a flipped bit, or one from elsewhere."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(EDGES)
    if kind == 1:
        return old + rng.choice((-1, 1, -8, 8, -32, 32))
    if kind == 2:
        return rng.choice((old * 2, old // 2, old * 256, -old, ~old))
    if kind == 3 and others:
        return rng.choice(others)
    if kind == 4:
        return old ^ 1 << rng.randrange(32)
    return rng.randrange(1 << rng.randrange(1, 33))


def _field(loadable: Loadable, rng: random.Random) -> Loadable:
    """Another value in one field of one table."""
    name = rng.choice([each for each in LISTS if getattr(loadable, each)])
    entries = list(getattr(loadable, name))
    index = rng.randrange(len(entries))
    field = rng.choice(dataclasses.fields(entries[index])).name
    value = getattr(entries[index], field)
    entries[index] = dataclasses.replace(entries[index], **{field: _other(value, rng)})
    return dataclasses.replace(loadable, **{name: tuple(entries)})


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, int):
        return type(value)(number(int(value), rng) & (1 << 64) - 1)
    if isinstance(value, str):
        return rng.choice(("", "x", value + "x", value[:-1], "dep_graph"))
    if isinstance(value, memoryview):
        return memoryview(bytes(value[: rng.randrange(len(value) + 1)]))
    if isinstance(value, tuple):
        values = list(value)
        kind = rng.randrange(3)
        if values and kind == 0:
            at = rng.randrange(len(values))
            values[at] = _other(values[at], rng)
        elif values and kind == 1:
            del values[rng.randrange(len(values))]
        elif values:
            values.insert(rng.randrange(len(values)), rng.choice(values))
        return tuple(values)
    return value


def _entries(loadable: Loadable, rng: random.Random) -> Loadable:
    """One entry of one table less, twice, or somewhere else."""
    name = rng.choice([each for each in LISTS if getattr(loadable, each)])
    entries = list(getattr(loadable, name))
    moved = entries.pop(rng.randrange(len(entries)))
    if rng.randrange(2):
        entries.insert(rng.randrange(len(entries) + 1), moved)
        if rng.randrange(2) and hasattr(moved, "id"):
            entries.append(dataclasses.replace(moved, id=len(entries)))
    return dataclasses.replace(loadable, **{name: tuple(entries)})


def _descriptor(loadable: Loadable, rng: random.Random) -> Loadable:
    """Another value in one field of one descriptor."""
    task = rng.choice(loadable.tasks)
    kind = DlaTask if task.interface == Interface.DLA1 else EmuTask
    abis = [NEW, OLD] if rng.randrange(8) else [OLD, NEW]
    try:
        decoded = kind.overlay(loadable, task, abis[0])
    except NvdlaError:
        decoded = kind.overlay(loadable, task, abis[1])
    lists = {0: [decoded.network]}
    for name, *_ in type(decoded.network)._fields_:
        entries = {
            "operation_desc_index": "containers", "surface_desc_index": "surface_containers",
            "dependency_graph_index": "dependencies", "lut_data_index": "luts",
            "operation_buffer_desc_index": "buffers",
        }.get(name)  # fmt: skip
        if entries and len(getattr(decoded, entries, ())):
            lists[getattr(decoded.network, name)] = getattr(decoded, entries)
    index = rng.choice(list(lists))
    position = rng.randrange(len(lists[index]))
    entry = lists[index][position]
    structure = _chosen(entry, decoded, position) or entry
    offset, leaf, old = _leaf(structure, rng)
    value = (number(old, rng, _values(structure)) & (1 << 8 * leaf) - 1).to_bytes(leaf, "little")
    return _patched(loadable, task.address_list[index], position * ctypes.sizeof(entry) + offset, value)


def _chosen(entry: Any, decoded: Any, position: int) -> Any:
    """The member of a union that the operation's type selects: it lies at the union's beginning."""
    if not isinstance(entry, ctypes.Union):
        return None
    kinds = getattr(decoded, "dependencies", None)
    kind = kinds[position].op_type if kinds else entry.power_op.common.op_type
    members = [name for name, *_ in entry._fields_]
    return getattr(entry, members[kind]) if kind < len(members) else None


def _leaf(structure: Any, rng: random.Random) -> tuple[int, int, int]:
    """(offset, bytes, value) of a number somewhere in a structure."""
    offset, here = 0, structure
    while True:
        if isinstance(here, ctypes.Array):
            at = rng.randrange(len(here))
            size = ctypes.sizeof(here._type_)
            offset += at * size
            here = here[at]
        elif isinstance(here, ctypes.Structure | ctypes.Union):
            name, kind, *_ = rng.choice(here._fields_)
            offset += getattr(type(here), name).offset
            size = ctypes.sizeof(kind)
            here = getattr(here, name)
        else:
            return offset, size, int(here) if here == here and abs(here) < 1 << 70 else 0


def _values(structure: Any) -> list[int]:
    """Numbers of the structure itself, to be put in each other's place."""
    found = [getattr(structure, name) for name, *_ in structure._fields_]
    return [each for each in found if isinstance(each, int)]


def _patched(loadable: Loadable, address_id: int, offset: int, value: bytes) -> Loadable:
    """Bytes behind an address, written into the blob that lies there."""
    address = loadable.address(address_id)
    for start, blob in loadable.contents(loadable.memory(address.mem_id)):
        at = address.offset + offset - start
        if 0 <= at <= len(blob.data) - len(value):
            changed = bytearray(blob.data)
            changed[at : at + len(value)] = value
            new = Blob(blob.name, bytes(changed), -1, blob.interface, blob.sub_interface, blob.version)
            blobs = tuple(new if each is blob else each for each in loadable.blobs)
            return dataclasses.replace(loadable, blobs=blobs)
    return loadable


_NUMBER = re.compile(rb"0x[0-9a-fA-F]+|\b\d+\b")


def mutate_text(data: bytes, rng: random.Random) -> bytes | None:
    """A trace with a number changed, or a line dropped, doubled, swapped or taken from elsewhere."""
    trace, mark, rest = data.partition(b"\n%% ")
    lines = trace.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind < 5:
            found = list(_NUMBER.finditer(lines[at]))
            if found:
                spot = rng.choice(found[-2:])
                value = max(number(int(spot[0], 0) if spot[0][:2] == b"0x" else int(spot[0]), rng), 0)
                lines[at] = lines[at][: spot.start()] + hex(value).encode() + lines[at][spot.end() :]
        elif kind == 5:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 6:
            lines.insert(at, lines[other])
        elif len(lines) > 1:
            del lines[at]
    return b"\n".join(lines) + mark + rest


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """What any file can suffer: cut, flipped bits, overwritten words, bytes moved."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not changed:
            return rng.randbytes(rng.randrange(64))
        at, kind = rng.randrange(len(changed)), rng.randrange(6)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            width = rng.choice((2, 4, 8))
            value = number(int.from_bytes(changed[at : at + width], "little"), rng) & (1 << 8 * width) - 1
            changed[at : at + width] = value.to_bytes(width, "little")[: len(changed) - at]
        elif kind == 3:
            del changed[at : at + rng.randrange(1, 17)]
        elif kind == 4:
            start = rng.randrange(len(changed))
            changed[at:at] = changed[start : start + rng.randrange(1, 33)]
        else:
            del changed[at:]
    return bytes(changed)
