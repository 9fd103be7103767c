"""CDMA's input converter: subtract, multiply, shift with rounding half away from zero, saturate."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.kernels.conversion import convert_input

VALUES = st.one_of(st.integers(-(1 << 15), (1 << 16) - 1), st.sampled_from([0, 1, -1, 32767, -32768, 65535]))
SIGNED16 = st.one_of(st.integers(-(1 << 15), (1 << 15) - 1), st.sampled_from([0, 1, -1, 32767, -32768]))


def rounded(value, shift):
    exact = abs(Fraction(value, 1 << shift)) + Fraction(1, 2)
    return int(exact) if value >= 0 else -int(exact)


def nearest_even_half(value):
    """fp16 bits of an integer, the largest finite number instead of infinity."""
    sign, magnitude = (0x8000, -value) if value < 0 else (0, value)
    if magnitude == 0:
        return 0
    exponent = magnitude.bit_length() - 1
    mantissa = Fraction(magnitude, 1 << exponent) * 1024
    whole = int(mantissa)
    rest = mantissa - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    if whole == 2048:
        whole, exponent = 1024, exponent + 1
    return sign | (0x7BFF if exponent > 15 else exponent + 15 << 10 | whole & 1023)


@settings(max_examples=200)
@given(st.lists(VALUES, min_size=6, max_size=6), SIGNED16, SIGNED16, SIGNED16, st.integers(0, 63))
def test_conversion_to_each_precision(values, offset, other, scale, shift):
    pixels = np.array(values, np.int32).reshape(1, 3, 2)
    exact = [rounded((v - o) * scale, shift) for v, o in zip(values, (offset, other) * 3, strict=True)]
    for precision, low, high in ((0, -128, 127), (1, -32768, 32767)):
        result = convert_input(pixels, np.array([offset, other]), scale, shift, precision)
        assert result.reshape(-1).tolist() == [max(low, min(high, e)) for e in exact]
        assert result.dtype == (np.int8, np.int16)[precision]
    halves = convert_input(pixels, np.array([offset, other]), scale, shift, 2)
    wide = [max(-65536, min(65535, e)) for e in exact]
    assert halves.reshape(-1).tolist() == [nearest_even_half(w) for w in wide]


def test_ties_go_away_from_zero():
    result = convert_input(np.array([[[3, -3, 5, -5]]]), np.zeros(4, int), 1, 1, 1)
    assert result.reshape(-1).tolist() == [2, -2, 3, -3]
