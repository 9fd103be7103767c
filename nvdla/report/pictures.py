"""Tensors for the page: elements of the first channels (thinned out where they are many), histograms, figures.

The elements go as they are, little-endian, into one block of bytes for all tensors; the page makes pictures and real
numbers of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvdla.rounding import ceil_div

MAX_CHANNELS = 16
#: bytes of elements in a page, over all tensors, before they are compressed
ROOM = 880 << 10
#: bytes of a single tensor
MOST = 64 << 10
BINS = 48

Row = dict[str, Any]


class Pictures:
    """Collects tensors; :meth:`close` fits them into ``room`` bytes. A tensor is known by its number."""

    def __init__(self, room: int = ROOM) -> None:
        self.rows: list[Row] = []
        self.arrays: list[np.ndarray] = []  #: the whole tensors, (C, H, W)
        self._room = room

    def add(self, tensor: np.ndarray, scale: float | None = None, what: str = "", zero: int = 0) -> int:
        """A tensor (1, C, H, W) with the real value of one unit, where it is known, and the element that stands for 0;
        returns its number."""
        self.rows.append({"what": what, "scale": scale, "zero": zero, **figures(tensor, zero)})
        self.arrays.append(tensor[0])
        return len(self.rows) - 1

    def close(self) -> bytes:
        """The block of elements; the rows get ``offset``, ``shown`` (channels, height, width) and ``stride``."""
        share = min(max(self._room // max(len(self.arrays), 1), 64), MOST)
        parts, offset = [], 0
        for row, array in zip(self.rows, self.arrays, strict=True):
            shown, stride = thinned(array, share)
            data = shown.astype(shown.dtype.newbyteorder("<"), copy=False).tobytes()
            row |= {"offset": offset, "shown": list(shown.shape), "stride": stride}
            parts.append(data)
            offset += len(data)
        return b"".join(parts)


def thinned(cube: np.ndarray, room: int) -> tuple[np.ndarray, int]:
    """The first channels of (C, H, W), every ``stride``-th line and column, in ``room`` bytes; and the stride."""
    channels, height, width = cube.shape
    limit = max(room // cube.itemsize, 1)
    if height == width == 1:
        return np.ascontiguousarray(cube[:limit]), 1
    channels = min(channels, MAX_CHANNELS)
    stride = max(math.isqrt(ceil_div(channels * height * width, limit)), 1)
    while channels * ceil_div(height, stride) * ceil_div(width, stride) > limit:
        if stride >= max(height, width):
            channels = limit
            break
        stride += 1
    return np.ascontiguousarray(cube[:channels, ::stride, ::stride]), stride


def figures(tensor: np.ndarray, zero: int = 0) -> Row:
    """Shape, element type, range, shares and histogram of a tensor (1, C, H, W) in which ``zero`` stands for 0."""
    flat = tensor.reshape(-1)
    finite = flat if tensor.dtype.kind in "iu" else flat[np.isfinite(flat)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    limits = np.iinfo(tensor.dtype) if tensor.dtype.kind in "iu" else np.finfo(tensor.dtype)
    saturated = int((((flat == limits.min) & (limits.min != zero)) | (flat == limits.max)).sum())
    dead = (tensor == zero).all(axis=(0, 2, 3))
    return {
        "shape": list(tensor.shape[1:]),
        "dtype": str(tensor.dtype),
        "min": low,
        "max": high,
        "mean": float(finite.mean(dtype=np.float64)) if finite.size else 0.0,
        "zeros": float((flat == zero).mean()) if flat.size else 0.0,
        "saturated": saturated / max(flat.size, 1),
        "special": int(flat.size - finite.size),
        "dead": int(dead.sum()),
        "histogram": histogram(finite, low, high),
    }


def histogram(values: np.ndarray, low: float, high: float, bins: int = BINS) -> Row:
    """Equally wide bins from the least to the greatest value; of integers whole numbers wide."""
    if not values.size or low == high:
        return {"low": low, "high": high, "counts": [int(values.size)]}
    if values.dtype.kind in "iu":
        width = ceil_div(int(high - low) + 1, bins)
        places = (values.astype(np.int64) - int(low)) // width
        counts = np.bincount(places, minlength=1)
        return {"low": low, "high": low + width * len(counts), "counts": counts.tolist()}
    counts, _ = np.histogram(values.astype(np.float64), bins, (low, high))
    return {"low": low, "high": high, "counts": counts.tolist()}
