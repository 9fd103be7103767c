"""The loadable container: read (verified), the data model, write."""

from __future__ import annotations

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


save, to_bytes = Loadable.save, Loadable.to_bytes
