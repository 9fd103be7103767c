"""IREE parameter archives (.irpa): read, verify, write, edit in place.

archive = nvdla.interop.containers.irpa.read(data)
archive["layer0.weight"].data
"""

from __future__ import annotations

from nvdla.interop.containers.irpa.reader import Header, IrpaArchive, IrpaItem, read
from nvdla.interop.containers.irpa.verify import verify
from nvdla.interop.containers.irpa.writer import (
    EntrySpec,
    append,
    append_file,
    build,
    chunks,
    erase,
    fits,
    replace,
    replace_splat,
)

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
