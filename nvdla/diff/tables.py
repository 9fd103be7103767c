"""Differences of the container's tables, entry by entry and field by field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any

import numpy as np

from nvdla.diff.changes import Change
from nvdla.loadable.model import Loadable

#: table of the container -> attribute of the model, what identifies an entry
TABLES = {
    "task_list": ("tasks", "id"),
    "memory_list": ("memories", "id"),
    "address_list": ("addresses", "id"),
    "event_list": ("events", "id"),
    "tensor_desc_list": ("tensors", "id"),
    "submit_list": ("submits", "id"),
    "blobs": ("blobs", "name"),
}


def table_changes(a: Loadable, b: Loadable) -> Iterator[Change]:
    """Every difference of the tables; of blobs also that their bytes differ, which descriptors and operands explain."""
    for name in ("version", "identifier"):
        values = [_plain(getattr(each, name)) for each in (a, b)]
        if values[0] != values[1]:
            yield Change("loadable", "loadable", name, "changed", *values)
    for table, (attribute, key) in TABLES.items():
        yield from _entries(table, key, getattr(a, attribute), getattr(b, attribute))
    yield from _positions("reloc_list", a.relocs, b.relocs)
    yield from _contents(a, b)


def _entries(table: str, key: str, ours: Iterable[Any], theirs: Iterable[Any]) -> Iterator[Change]:
    left = {getattr(each, key): each for each in ours}
    right = {getattr(each, key): each for each in theirs}
    for name, entry in left.items():
        where = f"{table} {key} {name}"
        if name not in right:
            yield Change(table, where, None, "only in a", a=_summary(entry))
        else:
            yield from _fields(table, where, entry, right[name])
    for name, entry in right.items():
        if name not in left:
            yield Change(table, f"{table} {key} {name}", None, "only in b", b=_summary(entry))


def _positions(table: str, ours: Sequence[Any], theirs: Sequence[Any]) -> Iterator[Change]:
    for position in range(max(len(ours), len(theirs))):
        where = f"{table}[{position}]"
        if position >= len(theirs):
            yield Change(table, where, None, "only in a", a=_summary(ours[position]))
        elif position >= len(ours):
            yield Change(table, where, None, "only in b", b=_summary(theirs[position]))
        else:
            yield from _fields(table, where, ours[position], theirs[position])


def _fields(table: str, where: str, left: Any, right: Any) -> Iterator[Change]:
    for each in fields(left):
        if each.name == "data":
            continue
        values = _plain(getattr(left, each.name)), _plain(getattr(right, each.name))
        if values[0] != values[1]:
            yield Change(table, where, each.name, "changed", *values)


def _contents(a: Loadable, b: Loadable) -> Iterator[Change]:
    """Blobs of one name and size whose bytes differ, by the first byte that does."""
    theirs = {blob.name: blob for blob in b.blobs}
    for blob in a.blobs:
        other = theirs.get(blob.name)
        if other is None or blob.length != other.length or blob.data == other.data:
            continue
        places = np.flatnonzero(np.frombuffer(blob.data, np.uint8) != np.frombuffer(other.data, np.uint8))
        first = int(places[0])
        name = f"data[{first}]" + (f" and {places.size - 1} more" if places.size > 1 else "")
        yield Change("blobs", f"blobs name {blob.name}", name, "changed", blob.data[first], other.data[first])


def _summary(entry: Any) -> dict[str, Any]:
    return {each.name: _plain(getattr(entry, each.name)) for each in fields(entry) if each.name != "data"}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name if value.name else value.value
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (int, float, str, bool)):
        return value
    return str(value)
