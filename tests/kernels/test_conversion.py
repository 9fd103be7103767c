"""CDMA's input converter: subtract, multiply, shift with rounding half away from zero, saturate."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.kernels.conv import convert_input
from nvdla.kernels.reference import conv as reference

VALUES = st.one_of(st.integers(-(1 << 15), (1 << 16) - 1), st.sampled_from([0, 1, -1, 32767, -32768, 65535]))
SIGNED16 = st.one_of(st.integers(-(1 << 15), (1 << 15) - 1), st.sampled_from([0, 1, -1, 32767, -32768]))


@settings(max_examples=200)
@given(st.lists(VALUES, min_size=6, max_size=6), SIGNED16, SIGNED16, SIGNED16, st.integers(0, 63))
def test_conversion_to_each_precision(values, offset, other, scale, shift):
    pixels = np.array(values, np.int32).reshape(1, 3, 2)
    offsets = (offset, other) * 3
    for number, precision in enumerate(("int8", "int16", "fp16")):
        result = convert_input(pixels, np.array([offset, other]), scale, shift, number)
        expected = [
            reference.convert_input(v, o, scale, shift, precision) for v, o in zip(values, offsets, strict=True)
        ]
        assert result.reshape(-1).tolist() == expected
        assert result.dtype == (np.int8, np.int16, np.uint16)[number]


def test_ties_go_away_from_zero():
    result = convert_input(np.array([[[3, -3, 5, -5]]]), np.zeros(4, int), 1, 1, 1)
    assert result.reshape(-1).tolist() == [2, -2, 3, -3]
