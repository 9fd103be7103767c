"""Conversion to half precision as NVIDIA's runtime does it: to the nearest, ties away from zero.

IEEE arithmetic (and numpy) breaks ties to even; the library that the runtime uses (umd/external/include/half.h) is
configured to break them away from zero.
"""

from __future__ import annotations

import numpy as np

MANTISSA_BITS = 23
MANTISSA_MASK = (1 << MANTISSA_BITS) - 1
BIAS_DIFFERENCE = 127 - 15
INFINITY = 0x7C00


def to_half(values: np.ndarray) -> np.ndarray:
    """float32 -> float16, nearest, ties away from zero. NaN keeps the top ten bits of its fraction."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.int64)
    sign, exponent, fraction = bits >> 16 & 0x8000, bits >> MANTISSA_BITS & 0xFF, bits & MANTISSA_MASK
    # Below 2^-14 a half has the exponent of 2^-14 and loses one bit more for each power of two; 25 clears everything.
    lost = np.clip(BIAS_DIFFERENCE + 1 - exponent, 0, 12)
    significand = fraction | np.where(exponent > 0, 1 << MANTISSA_BITS, 0)
    shift = 13 + lost
    rounded = (significand + (np.int64(1) << shift - 1)) >> shift
    finite = np.where(lost > 0, rounded, rounded + (exponent - BIAS_DIFFERENCE - 1 << 10))
    finite = np.minimum(finite, INFINITY)
    special = INFINITY | fraction >> 13
    half = np.where(exponent == 0xFF, special, finite) | sign
    return half.astype(np.uint16).view(np.float16)


def saturate_int8(values: np.ndarray) -> np.ndarray:
    """float32 -> int8: clamp, then cut towards zero (umd/core/src/common/include/priv/Type.h saturate)."""
    return np.trunc(np.clip(np.nan_to_num(values, nan=127.0, posinf=127.0, neginf=-128.0), -128, 127)).astype(np.int8)
