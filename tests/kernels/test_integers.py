"""The integer primitives against the specification, and its rounding against exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla.kernels import integers
from nvdla.kernels.reference.integers import convert, saturate, shift_right, wrap

CORNERS = [0, 1, -1, 2, -2, 3, -3, 127, -128, 0x7FFFFFFF, -0x80000000, 1 << 48, -(1 << 48), 1 << 62, -(1 << 62)]
wide = st.one_of(st.sampled_from(CORNERS), st.integers(-(1 << 62), 1 << 62))


def rounded(x: Fraction) -> int:
    """Nearest integer, ties away from zero."""
    magnitude = int(abs(x) + Fraction(1, 2))
    return magnitude if x >= 0 else -magnitude


@given(wide, st.integers(1, 63))
def test_saturate_clamps_to_a_signed_width(x, bits):
    assert integers.saturate(x, bits) == saturate(x, bits)


@given(wide, st.integers(0, 70))
def test_round_half_away_is_the_nearest_integer_with_ties_away_from_zero(x, shift):
    assert integers.round_half_away(x, shift) == shift_right(x, shift) == rounded(Fraction(x, 1 << shift))


TIES = [(3, 1, 2), (-3, 1, -2), (1, 1, 1), (-1, 1, -1), (-5, 2, -1), (-6, 2, -2)]


@pytest.mark.parametrize("x, shift, expected", TIES)
def test_ties_leave_zero(x, shift, expected):
    assert integers.round_half_away(x, shift) == expected


@given(wide, st.integers(0, 63), st.sampled_from([8, 9, 16, 17, 32, 48]))
def test_int_shift_right_rounds_then_saturates(x, shift, bits):
    assert integers.int_shift_right(x, shift, bits) == saturate(shift_right(x, shift), bits)


@given(wide, st.integers(0, 63), st.sampled_from([16, 32]))
def test_int_shift_left_saturates(x, shift, bits):
    assert integers.int_shift_left(x, shift, bits) == saturate(x << shift, bits)


@given(wide, st.integers(-32, 31), st.sampled_from([16, 32]))
def test_a_negative_signed_shift_goes_left(x, shift, bits):
    assert integers.int_signed_shift_right(x, shift, bits) == saturate(shift_right(x, shift), bits)


@given(st.integers(0, 1 << 60), st.integers(-128, 127), st.sampled_from([9, 32]))
def test_the_truncating_signed_shift_drops_bits_and_saturates_unsigned(x, shift, bits):
    expected = min(int(x / Fraction(2) ** shift), (1 << bits) - 1)
    assert integers.int_signed_shift_right_truncate(x, shift, bits) == expected


@given(wide, st.sampled_from([8, 16, 32]))
def test_wrap_keeps_the_low_bits(x, bits):
    assert integers.wrap(x, bits) == wrap(x, bits)


@given(st.integers(1, (1 << 62) - 1))
def test_int_log2_is_the_position_of_the_highest_bit(x):
    assert integers.int_log2(x) == x.bit_length() - 1


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 15), 1 << 15), st.integers(-(1 << 15), 1 << 15))
def test_convert_subtracts_multiplies_shifts_and_saturates(x, offset, scale):
    assert [integers.convert(x, offset, scale, shift, 17) for shift in range(64)] == [
        convert(x, offset, scale, shift, 17) for shift in range(64)
    ]
