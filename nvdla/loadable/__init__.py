"""The loadable container: read (verified), the data model, write."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from nvdla.loadable.writer import save, to_bytes

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


def __getattr__(name: str) -> object:
    # Reading needs neither flatbuffers nor numpy, so the writer is imported on first use.
    if name not in ("save", "to_bytes"):
        raise AttributeError(f"module 'nvdla.loadable' has no attribute {name!r}")
    from nvdla.loadable import writer

    return getattr(writer, name)
