"""Structure-aware mutators: one field of a valid file becomes wrong, and the rest of it stays valid.

A byte mutator mostly breaks the FlatBuffer's offsets and is refused at the door. These go through the model and the
descriptors, so that what they change is reached.
"""

from __future__ import annotations

import ctypes
import dataclasses
import random
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.errors import NvdlaError
from nvdla.loadable import Loadable, load, to_bytes
from nvdla.loadable.descriptors import NEW, OLD, DlaTask, EmuTask
from nvdla.loadable.enums import Interface

LISTS = ("tasks", "memories", "addresses", "events", "blobs", "tensors", "relocs", "submits")
EDGES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 256, 4095, 4096, 8191, 8192, 32767, 32768)
EDGES += (65535, 65536, (1 << 24) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)


@dataclass(frozen=True)
class DescriptorList:
    """Where a list of descriptors lies in a file: its first byte, what the entries are, how many; and, for unions, the
    operation types of the file that was taken apart."""

    start: int
    kind: Any
    count: int
    types: tuple[int, ...]


_ANATOMIES: OrderedDict[bytes, tuple[DescriptorList, ...]] = OrderedDict()
_ANATOMIES_KEPT = 2048


def mutate_loadable(data: bytes, rng: random.Random) -> bytes | None:
    """The loadable with one to three fields changed; None when it cannot be taken apart or put together.

    Most changes are of descriptors, made in the file's bytes where they lie: that takes no writing of a FlatBuffer,
    which takes longer than most inputs do.
    """
    if rng.randrange(16):
        lists = _anatomy(data)
        return _patched(data, lists, rng) if lists else None
    try:
        loadable = load(data, checked=False)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            loadable = rng.choice((_field, _entries))(loadable, rng)
        return to_bytes(loadable)
    except (NvdlaError, ValueError, TypeError, OverflowError, LookupError, AttributeError):
        return None


def mutate_tflite(data: bytes, rng: random.Random) -> bytes | None:
    """A TFLite model with one to three fields changed; None when it cannot be read."""
    from fuzz_tflite import changed

    return changed(data, rng, number)


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


def _anatomy(data: bytes) -> tuple[DescriptorList, ...]:
    """The descriptor lists of a file; none if it cannot be taken apart. Kept, because mutants are mutated again."""
    if data not in _ANATOMIES:
        try:
            _keep(data, tuple(_lists(data)))
        except (NvdlaError, ValueError, TypeError, OverflowError, LookupError, AttributeError):
            _keep(data, ())
    return _ANATOMIES[data]


def inherit(parent: bytes, child: bytes) -> bytes:
    """The child; where it is as long as its parent, descriptors are looked for at the same places."""
    if len(child) == len(parent) and parent in _ANATOMIES:
        _keep(child, _ANATOMIES[parent])
    return child


def _keep(data: bytes, lists: tuple[DescriptorList, ...]) -> None:
    _ANATOMIES[data] = lists
    if len(_ANATOMIES) > _ANATOMIES_KEPT:
        _ANATOMIES.popitem(last=False)


def _lists(data: bytes) -> Iterator[DescriptorList]:
    loadable = load(data, checked=False)
    for task in loadable.tasks:
        kind = DlaTask if task.interface == Interface.DLA1 else EmuTask
        try:
            decoded = kind.overlay(loadable, task, NEW)
        except NvdlaError:
            decoded = kind.overlay(loadable, task, OLD)
        entries = {0: [decoded.network]}
        for field, name in _ENTRIES.items():
            if hasattr(decoded.network, field):
                entries[getattr(decoded.network, field)] = getattr(decoded, name)
        if isinstance(decoded, DlaTask):
            types = tuple(each.op_type for each in decoded.dependencies)
        else:
            types = tuple(each.power_op.common.op_type for each in decoded.containers)
        for index, found in entries.items():
            start = _position(data, loadable, task.address_list[index]) if len(found) else None
            if start is not None:
                yield DescriptorList(start, type(found[0]), len(found), types)


_ENTRIES = {
    "operation_desc_index": "containers",
    "surface_desc_index": "surface_containers",
    "dependency_graph_index": "dependencies",
    "lut_data_index": "luts",
    "operation_buffer_desc_index": "buffers",
}


def _position(data: bytes, loadable: Loadable, address_id: int) -> int | None:
    """Where in the file lies what is behind an address: blobs are views of the file."""
    address = loadable.address(address_id)
    base = np.frombuffer(data, np.uint8).ctypes.data
    for start, blob in loadable.contents(loadable.memory(address.mem_id)):
        if 0 <= address.offset - start < len(blob.data):
            return np.frombuffer(blob.data, np.uint8).ctypes.data - base + address.offset - start
    return None


def _patched(data: bytes, lists: tuple[DescriptorList, ...], rng: random.Random) -> bytes:
    """Other values in one to three fields of descriptors."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        chosen = rng.choice(lists)
        position = rng.randrange(chosen.count)
        start = chosen.start + position * ctypes.sizeof(chosen.kind)
        if start + ctypes.sizeof(chosen.kind) > len(changed):
            continue
        entry = chosen.kind.from_buffer_copy(changed, start)
        structure = _chosen(entry, chosen.types, position) or entry
        offset, width, old = _leaf(structure, rng)
        value = (number(old, rng, _values(structure)) & (1 << 8 * width) - 1).to_bytes(width, "little")
        changed[start + offset : start + offset + width] = value
    made = bytes(changed)
    _keep(made, lists)
    return made


def _chosen(entry: Any, types: tuple[int, ...], position: int) -> Any:
    """The member of a union that the operation's type selects: it lies at the union's beginning."""
    if not isinstance(entry, ctypes.Union) or position >= len(types):
        return None
    members = [name for name, *_ in entry._fields_]
    return getattr(entry, members[types[position]]) if types[position] < len(members) else None


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


def mutate_seed(data: bytes, rng: random.Random) -> bytes | None:
    """Another input for a target that makes everything from a seed; one that is more than a seed keeps its bytes."""
    return rng.randbytes(12) if len(data) <= 12 else None


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
