"""The loadable container: read (verified), the data model, write."""

from __future__ import annotations

from pathlib import Path

from nvdla.limits import Limits
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
from nvdla.loadable.reader import load
from nvdla.util.arguments import by_annotations

__all__ = [
    "AddressEntry",
    "Blob",
    "EventEntry",
    "Limits",
    "Loadable",
    "MemoryEntry",
    "RelocEntry",
    "SubmitEntry",
    "TaskEntry",
    "TensorDesc",
    "Version",
    "load",
    "save",
    "to_bytes",
]


@by_annotations
def to_bytes(loadable: Loadable) -> bytes:
    """Return the loadable as a FlatBuffer (:meth:`Loadable.to_bytes`)."""
    return loadable.to_bytes()


@by_annotations
def save(loadable: Loadable, path: str | Path) -> None:
    """Write the file whole or not at all (:meth:`Loadable.save`)."""
    loadable.save(path)
