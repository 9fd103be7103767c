"""IREE parameter archives (.irpa): read, verify, write, edit in place.

archive = nvdla.containers.irpa.read(data)
archive["layer0.weight"].data
"""

from __future__ import annotations

from nvdla.containers.irpa.editing import append, append_file, erase, fits, replace, replace_splat
from nvdla.containers.irpa.reader import Header, IrpaArchive, IrpaItem, read
from nvdla.containers.irpa.verify import verify
from nvdla.containers.irpa.writer import EntrySpec, build, chunks

__all__ = [
    "EntrySpec",
    "Header",
    "IrpaArchive",
    "IrpaItem",
    "append",
    "append_file",
    "build",
    "chunks",
    "erase",
    "fits",
    "read",
    "replace",
    "replace_splat",
    "verify",
]
