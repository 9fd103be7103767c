"""Softmax, the operation that NVIDIA's runtime computes on the CPU.

Source: umd/core/src/runtime/Emulator.cpp (executeSoftmax); umd/external/include/half.h (halves: to nearest, ties away
from zero); the C library's ``expf`` (ARM's optimized routines, 32 table entries). Numbers are Python floats that hold
float32 values; every operation is rounded to float32 once.
"""

from __future__ import annotations

import math
import struct

PARTS = 32
CUBIC = float.fromhex("0x1.c6af84b912394p-5") / PARTS**3
SQUARE = float.fromhex("0x1.ebfce50fac4f3p-3") / PARTS**2
LINEAR = float.fromhex("0x1.62e42ff0c52d6p-1") / PARTS
"""Coefficients of 2**(r / 32)."""


def float32(x: float) -> float:
    """Round to float32, to nearest, ties to even; finite results only."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def half(x: float) -> float:
    """Round to a half, to nearest, ties away from zero; |x| < 65520."""
    exponent = max(math.frexp(x)[1], -13)  # the smallest normal half is 2**-14
    scaled = math.ldexp(abs(x), 11 - exponent)
    return math.copysign(math.ldexp(math.floor(scaled + 0.5), exponent - 11), x)


def expf(x: float) -> float:
    """Return e**x for x <= 0 as the C library does: 2**(k/32) * 2**(r/32) in double precision, then float32."""
    scaled = max(x, -200.0) * (PARTS / math.log(2))
    whole = round(scaled)  # to nearest, ties to even
    rest = scaled - whole
    power = math.ldexp(2.0 ** (whole % PARTS / PARTS), whole // PARTS)
    return float32(((CUBIC * rest + SQUARE) * (rest * rest) + (LINEAR * rest + 1.0)) * power)


def softmax(values: list[float]) -> list[float]:
    """Return the softmax of halves, as halves; the sum is taken in index order.

    Args:
        values: Finite halves.

    Returns:
        Halves between 0 and 1.
    """
    exponentials = [expf(float32(x - max(values))) for x in values]
    total = 0.0
    for x in exponentials:
        total = float32(total + x)
    return [half(float32(x / total)) for x in exponentials]


def softmax_int8(elements: list[int], in_scale: float, out_scale: float) -> list[int]:
    """Return the softmax of int8 elements as int8 elements.

    Args:
        elements: Integers; the real value is element * in_scale, rounded to a half.
        in_scale: Scale of the input, float32.
        out_scale: Scale of the output, float32, not 0.

    Returns:
        Quotients by ``out_scale``, clamped to int8 and truncated towards zero.
    """
    real = [half(float32(element * float32(in_scale))) for element in elements]
    return [int(max(-128.0, min(127.0, x / float32(out_scale)))) for x in softmax(real)]
