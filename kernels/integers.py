"""The integer primitives that every engine rounds, shifts and clamps with.

Scalar functions on int64 for use inside other kernels. Source: cmod/hls/include/nvdla_int.h. The C model assigns one
fixed-point number to another there: exact shift, then rounding half away from zero, then saturation.

Some rules have three implementations: on int64; on integers in float64, which vectorizes where multiplications and
shifts of 64 bits do not; and on arrays, for fallbacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.kernels.jit.compilation import njit


@njit(cache=True, nogil=True, inline="always")
def saturate(x: int, bits: int) -> int:
    """Clamp ``x`` to ``bits`` signed bits, 1 <= bits <= 63 (nvdla_int.h:407 IntSaturation)."""
    high = (1 << (bits - 1)) - 1
    return min(max(x, -high - 1), high)


@njit(cache=True, nogil=True, inline="always")
def round_half_away(x: int, shift: int) -> int:
    """x / 2**shift rounded to nearest, ties away from zero; |x| < 2**63, shift >= 0 (AC_RND_INF).

    A negative number is lowered by one first, which turns its ties downwards; the bit below the cut then rounds.
    Unlike "add half, then shift" this cannot overflow.
    """
    if shift == 0:
        return x
    if shift > 63:
        return 0
    y = x + (x >> 63)
    return (y >> shift) + ((y >> (shift - 1)) & 1)


@njit(cache=True, nogil=True, inline="always")
def int_shift_right(x: int, shift: int, bits: int) -> int:
    """IntShiftRight (nvdla_int.h:34): round_half_away, then saturate to ``bits``."""
    return saturate(round_half_away(x, shift), bits)


@njit(cache=True, nogil=True, inline="always")
def convert(x: int, offset: int, scale: int, shift: int, bits: int) -> int:
    """(x - offset) * scale / 2**shift in ``bits`` signed bits: what every converter of integers does, with one rounding
    (sdp_y_cvt.cpp:17, cdma_cvt.cpp:14). |product| < 2**63."""
    return int_shift_right((x - offset) * scale, shift, bits)


@njit(cache=True, nogil=True, inline="always")
def int_shift_left(x: int, shift: int, bits: int) -> int:
    """IntShiftLeft (nvdla_int.h:81): x * 2**shift clamped to ``bits``; |x| < 2**62, shift 0..63."""
    high = (1 << (bits - 1)) - 1
    if x > high >> shift:
        return high
    if -x > (high + 1) >> shift:
        return -high - 1
    return x << shift


@njit(cache=True, nogil=True, inline="always")
def int_signed_shift_right(x: int, shift: int, bits: int) -> int:
    """IntSignedShiftRight (nvdla_int.h:132): a negative ``shift`` shifts left; clamped to ``bits``."""
    if shift < 0:
        return int_shift_left(x, -shift, bits)
    return int_shift_right(x, shift, bits)


@njit(cache=True, nogil=True, inline="always")
def int_signed_shift_right_truncate(x: int, shift: int, bits: int) -> int:
    """IntSignedShiftRightTZ (nvdla_int.h:156): unsigned x (< 2**62), towards zero, clamped to ``bits`` unsigned."""
    high = (1 << bits) - 1
    if shift >= 0:
        return min(x >> min(shift, 63), high)
    if x > high >> min(-shift, 63):
        return high
    return x << -shift


@njit(cache=True, nogil=True, inline="always")
def wrap(x: int, bits: int) -> int:
    """The low ``bits`` of ``x`` as a two's complement number (an assignment to a narrower ac_int)."""
    return (x << (64 - bits)) >> (64 - bits)


@njit(cache=True, nogil=True, inline="always")
def int_log2(x: int) -> int:
    """Position of the highest set bit of x > 0 (nvdla_int.h:392 IntLog2)."""
    position = 0
    for half in (32, 16, 8, 4, 2, 1):
        if x >> half:
            x >>= half
            position += half
    return position


@njit(cache=True, nogil=True, inline="always")
def pieces(count: int, size: int) -> int:
    """Return the number of pieces of at most ``size`` in ``count``, for compiled code.

    Elsewhere use :func:`nvdla.util.rounding.ceil_div`.
    """
    return (count + size - 1) // size


@njit(cache=True, nogil=True, inline="always")
def rounding(x: float) -> float:
    """Half with the sign of x: int(x + rounding(x)) rounds half away from zero.

    Exact for x = p * 2**-s with |p| < 2**49: for s <= 52 the sum has at most 53 bits; for larger s both |x| and the
    error of the sum are far below one half.
    """
    return 0.5 if x >= 0.0 else -0.5


@njit(cache=True, nogil=True, inline="always")
def nearest(x: float) -> int:
    """Round a float64 half away from zero, with :func:`rounding`; int64."""
    return np.int64(x + rounding(x))


@njit(cache=True, nogil=True, inline="always")
def clamp(x: float, low: float, high: float) -> float:
    """Clamp a float64 to limits (see :func:`saturate`)."""
    return min(max(x, low), high)


@njit(cache=True, nogil=True, inline="always")
def requantize(x: float, low: float, high: float) -> int:
    """A float64 clamped, then rounded half away from zero; int32. Limits are whole numbers, so that the order of both
    does not matter."""
    y = clamp(x, low, high)
    return np.int32(y + rounding(y))


def all_clamped(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """:func:`clamp` of every element."""
    clamped: np.ndarray = np.clip(values, low, high)
    return clamped


def all_saturated(values: np.ndarray, bits: int, out: np.ndarray | None = None) -> np.ndarray:
    """:func:`saturate` of every element of an integer array; into ``out``, if given."""
    high = (1 << bits - 1) - 1
    saturated: np.ndarray = np.clip(values, -high - 1, high, out=out)
    return saturated


def all_converted(values: np.ndarray, offsets: np.ndarray, scale: int, shift: int, bits: int) -> np.ndarray:
    """:func:`convert` of every element, channels last; ``offsets``: one per channel, int64."""
    products: Any = (values - offsets) * scale
    return all_saturated(np.asarray(round_half_away.py_func(products, shift)), bits)


def all_nearest(values: np.ndarray) -> np.ndarray:
    """:func:`nearest` of every element of a float64 array; int64."""
    return (values + np.copysign(0.5, values)).astype(np.int64)


def all_requantized(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """:func:`requantize` of every element of a float64 array, in place and still float64."""
    np.clip(values, low, high, out=values)
    values += np.copysign(0.5, values)
    return np.trunc(values, out=values)


# ---- statistics of a tensor for calibration: magnitudes and sums in one pass, a histogram in another


@njit(nogil=True)
def measure_planes(planes: np.ndarray, lows: np.ndarray, highs: np.ndarray, sums: np.ndarray) -> None:
    """Lowest and highest numbers ``lows`` and ``highs`` and ``sums``, float64 (C,), of ``planes``, float32 or float64
    (N, C, elements), together with what they hold already.

    A sum is not finite if an element is not.
    """
    for n in range(planes.shape[0]):
        for c in range(planes.shape[1]):
            plane = planes[n, c]
            low, high, total = plane[0], plane[0], 0.0
            for i in range(plane.shape[0]):
                value = plane[i]
                low, high = min(low, value), max(high, value)
                total += value
            lows[c], highs[c] = min(lows[c], float(low)), max(highs[c], float(high))
            sums[c] += total


@njit(nogil=True)
def count_magnitudes(values: np.ndarray, per_unit: float, counts: np.ndarray) -> int:
    """Count magnitudes in bins, ``per_unit`` of them in 1.0, the last one for all above it; returns how many elements
    are zero, which are not counted. ``values``: float32 or float64 (elements,), ``counts``: int64 (bins,)."""
    zeros, last = 0, counts.shape[0] - 1
    for i in range(values.shape[0]):
        magnitude = abs(values[i])
        if magnitude == 0:
            zeros += 1
        else:
            counts[min(int(magnitude * per_unit), last)] += 1
    return zeros
