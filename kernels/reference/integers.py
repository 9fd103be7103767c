"""Integers: rounding, saturation and the converter that all engines share.

Source: hls/include/nvdla_int.h. The C model assigns one fixed-point number to another (``AC_RND_INF``, ``AC_SAT`` in
hls/include/nvdla_common.h): an exact shift, then rounding to nearest with ties away from zero, then saturation.
"""

from __future__ import annotations


def saturate(x: int, bits: int) -> int:
    """Clamp to signed bits (nvdla_int.h:407 IntSaturation).

    Args:
        x: Any integer.
        bits: Width of the result, its sign included.

    Returns:
        ``x``, or the nearest limit of the range.
    """
    return max(-(1 << bits - 1), min((1 << bits - 1) - 1, x))


def wrap(x: int, bits: int) -> int:
    """Keep the low bits as a two's complement number: an assignment to a narrower ``ac_int``."""
    return (x + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


def shift_right(x: int, shift: int) -> int:
    """Divide by a power of two and round to nearest, ties away from zero (nvdla_int.h:34 IntShiftRight).

    Args:
        x: Any integer: -5 shifted by 1 is -3, 5 is 3.
        shift: Places to the right; a negative count shifts left (nvdla_int.h:132 IntSignedShiftRight).

    Returns:
        The rounded quotient, not yet saturated.
    """
    if shift <= 0:
        return x << -shift
    magnitude = abs(x) + (1 << shift - 1) >> shift
    return magnitude if x >= 0 else -magnitude


def convert(x: int, offset: int, scale: int, shift: int, bits: int) -> int:
    """Apply a converter: subtract the offset, multiply, shift, saturate. It rounds once.

    Every converter of NVDLA has this order (cdma_cvt.cpp:14, sdp_y_cvt.cpp:17, sdp_c.cpp:19).

    Args:
        x: The element.
        offset: Subtracted first.
        scale: Signed factor.
        shift: Right shift of the product.
        bits: Width of the result.

    Returns:
        The converted element.
    """
    return saturate(shift_right((x - offset) * scale, shift), bits)
