"""Memory images: what must lie in memory before the program starts, inputs included where they are given."""

from __future__ import annotations

import numpy as np

from nvdla.csb.export import Export
from nvdla.rounding import align

FORMAT = "bin"
HELP = "memory images as raw bytes"


def write(export: Export) -> None:
    """Write the program in this form. Raises FormatError for what it cannot say."""
    for space, data in images(export).items():
        export.save(f"{export.name}_{space}.bin", data.tobytes())


def images(export: Export) -> dict[str, np.ndarray]:
    """Bytes by memory ("dram", "cvsram"), from the memory's base to the last byte that is not zero."""
    found = {}
    for space, data in export.parts[0].before.items():
        used = np.flatnonzero(data)
        end = align(int(used[-1]) + 1, 16) if used.size else 0
        found[space.value] = data[: min(end, data.size)]
    return {name: data for name, data in found.items() if data.size}


def words(data: np.ndarray) -> np.ndarray:
    """Little-endian 32-bit words, filled up with zeros."""
    padded = np.zeros(align(data.size, 4), np.uint8)
    padded[: data.size] = data
    return padded.view("<u4")
