"""Conversion to half precision as NVIDIA's runtime does it: to the nearest, ties away from zero.

IEEE arithmetic (and numpy) breaks ties to even; the library that the runtime uses (umd/external/include/half.h) is
configured to break them away from zero.
"""

from __future__ import annotations

import numpy as np

INFINITY = 0x7C00


def to_half(values: np.ndarray) -> np.ndarray:
    """float32 -> float16, nearest, ties away from zero. NaN keeps the top ten bits of its fraction.

    A tie has zeros below the bit that makes it one. With the lowest bit set it is no tie any more but just beyond it,
    away from zero, and nothing else gets to another side of a tie: so numpy's rounding gives this one.
    """
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        half = (bits | np.uint32(1)).view(np.float32).astype(np.float16)
    finite = np.isfinite(values)
    if not finite.all():
        special = INFINITY | bits >> 13 & 0x3FF | bits >> 16 & 0x8000
        np.copyto(half, special.astype(np.uint16).view(np.float16), where=~finite)
    return half


def saturate_int8(values: np.ndarray) -> np.ndarray:
    """float32 -> int8: clamp, then cut towards zero (umd/core/src/common/include/priv/Type.h saturate)."""
    clamped = np.fmin(np.maximum(values, np.float32(-128)), np.float32(127))  # a NaN becomes 127
    return clamped.astype(np.int8)
