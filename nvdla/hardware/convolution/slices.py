"""How a line of a feature cube (a slice) lies in the entries of the convolution buffer.

Atoms of a whole entry lie side by side, one entry a column; what is left over is packed, two or four columns an entry
(cmod/cdma/NV_NVDLA_cdma.cpp:1553, csc/NV_NVDLA_csc.cpp:806). Lines of images, and of Winograd data, are taken as they
come, one element behind the other.
"""

from __future__ import annotations

import numpy as np

from nvdla.hardware.configuration import Configuration
from nvdla.rounding import align, ceil_div


def entries_per_slice(channel_bytes: int, width: int, config: Configuration) -> int:
    """Entries that a line of ``width`` columns takes whose columns have ``channel_bytes`` bytes."""
    whole, rest = divmod(ceil_div(channel_bytes, config.memory_atom), _atoms_per_entry(config))
    return whole * width + (ceil_div(width, _columns_per_entry(rest, config)) if rest else 0)


def to_entries(lines: np.ndarray, config: Configuration) -> np.ndarray:
    """Lines (lines, width, bytes of whole atoms) uint8 as entries (lines, entries of a slice, bytes of an entry)."""
    count, width, size = lines.shape
    entry = config.cbuf_entry_bytes
    whole, rest = divmod(size, entry)
    result = np.zeros((count, entries_per_slice(size, width, config), entry), np.uint8)
    full = lines[:, :, : whole * entry].reshape(count, width, whole, entry)
    result[:, : whole * width] = full.transpose(0, 2, 1, 3).reshape(count, whole * width, entry)
    if rest:
        columns = _columns_per_entry(rest // config.memory_atom, config)
        tail = np.zeros((count, align(width, columns), rest), np.uint8)
        tail[:, :width] = lines[:, :, whole * entry :]
        packed = tail.reshape(count, -1, columns * rest)
        result[:, whole * width :, : columns * rest] = packed
    return result


def from_entries(entries: np.ndarray, width: int, channel_bytes: int, config: Configuration) -> np.ndarray:
    """The lines (lines, width, bytes of whole atoms) that :func:`to_entries` has made entries of."""
    count, entry = entries.shape[0], config.cbuf_entry_bytes
    size = align(channel_bytes, config.memory_atom)
    whole, rest = divmod(size, entry)
    lines = np.empty((count, width, size), np.uint8)
    full = entries[:, : whole * width].reshape(count, whole, width, entry)
    lines[:, :, : whole * entry] = full.transpose(0, 2, 1, 3).reshape(count, width, whole * entry)
    if rest:
        columns = _columns_per_entry(rest // config.memory_atom, config)
        tail = entries[:, whole * width :, : columns * rest].reshape(count, -1, rest)
        lines[:, :, whole * entry :] = tail[:, :width]
    return lines


def _atoms_per_entry(config: Configuration) -> int:
    return config.cbuf_entry_bytes // config.memory_atom


def _columns_per_entry(rest: int, config: Configuration) -> int:
    """Columns whose last ``rest`` atoms share an entry: 4, 2, or 1 where they take more than half of it."""
    atoms = _atoms_per_entry(config)
    return atoms // rest if rest in (atoms // 4, atoms // 2) else 1
