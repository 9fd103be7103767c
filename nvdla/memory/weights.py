"""Weight layouts: kernels as arrays to the bytes that CDMA fetches (the inverse is nvdla/hardware/weights.py).

Source: "In-memory data formats", weight format for direct convolution; cmod/csc/NV_NVDLA_csc.cpp:1150.
"""

from __future__ import annotations

import numpy as np


def pack_direct(weights: np.ndarray, group: int, block: int) -> bytes:
    """Weights (kernels, channels, rows, columns) in the order of a direct convolution on feature data.

    Kernel group (``group`` kernels, fewer in the last) -> block of ``block`` channels (fewer in the last) -> row ->
    column -> kernel -> channel, without gaps. Elements keep their dtype, little-endian.
    """
    little = weights.astype(weights.dtype.newbyteorder("<"), copy=False)
    parts = []
    for first in range(0, weights.shape[0], group):
        for start in range(0, weights.shape[1], block):
            part = little[first : first + group, start : start + block]
            parts.append(part.transpose(2, 3, 0, 1).tobytes())
    return b"".join(parts)
