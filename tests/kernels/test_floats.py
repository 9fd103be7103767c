"""The floating-point operators against the specification: exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nvdla.kernels import floats
from nvdla.kernels.floats import FP16, FP17, FP32
from nvdla.kernels.reference import floats as reference
from nvdla.kernels.reference.floats import add, encode, multiply, narrow, parts, widen

FORMATS = [FP16, FP17, FP32]


def patterns(form: tuple[int, int], special: bool = True):
    """Bit patterns: any, near each other in exponent, and the corners."""
    expo_bits, mant_bits = form
    one = (1 << (expo_bits - 1)) - 1 << mant_bits
    top = 1 << (expo_bits + mant_bits + 1)
    infinity = (1 << expo_bits) - 1 << mant_bits
    corners = [
        0,
        1,
        1 << mant_bits,
        (1 << mant_bits) - 1,
        one,
        one - 1,
        one + 1,
        infinity - 1,
        infinity - (1 << mant_bits),
    ]
    if special:
        corners += [infinity, infinity + 1, infinity + (1 << mant_bits - 1)]
    signed = st.sampled_from(corners).flatmap(lambda x: st.sampled_from([x, x | top >> 1]))
    middle = st.integers(one - (30 << mant_bits - 1), one + (30 << mant_bits - 1)).map(lambda x: abs(x) % top)
    return st.one_of(signed, middle, st.integers(0, top - 1))


def pairs(form: tuple[int, int]):
    """Two patterns, often of nearly equal magnitude and other sign, so that sums cancel."""
    top = 1 << (form[0] + form[1])

    def neighbour(a: int):
        return st.integers(-3, 3).map(lambda step: (a, ((a + step) % top) | (~a & top)))

    return st.one_of(st.tuples(patterns(form), patterns(form)), patterns(form).flatmap(neighbour))


def usable(form: tuple[int, int], *numbers: int) -> bool:
    """No infinity among them (no operator makes one)."""
    return all(parts(x, form)[1] != (1 << form[0]) - 1 or parts(x, form)[2] != 0 for x in numbers)


def with_cases(check):
    """Run a property for each format."""
    return pytest.mark.parametrize("form", FORMATS, ids=["fp16", "fp17", "fp32"])(check)


@with_cases
@given(data=st.data())
def test_fp_add_is_the_exact_sum_rounded_once(form, data):
    a, b = data.draw(pairs(form))
    assume(usable(form, a, b))
    result = floats.fp_add(a, b, form)
    expected = add(a, b, form)
    assert result == expected


@with_cases
@given(data=st.data())
def test_fp_sub_adds_the_second_operand_with_its_sign_turned(form, data):
    a, b = data.draw(pairs(form))
    assume(usable(form, a, b))
    assert floats.fp_sub(a, b, form) == add(a, b ^ (1 << (form[0] + form[1])), form)


@with_cases
@given(data=st.data())
def test_fp_mul_is_the_exact_product_rounded_once_without_denormals(form, data):
    a, b = data.draw(pairs(form))
    assume(usable(form, a, b))
    assert floats.fp_mul(a, b, form) == multiply(a, b, form)


def test_every_fp16_number_widens_exactly():
    for bits in range(1 << 16):
        assert floats.fp16_to_fp32(bits) == widen(bits, FP16, FP32)
        assert floats.fp16_to_fp17(bits) == widen(bits, FP16, FP17)


def test_every_normal_fp17_number_narrows_to_fp16_and_widens_to_fp32():
    for bits in range(1 << 17):
        _, expo, mant = parts(bits, FP17)
        if expo == 0 and mant:
            continue  # no operator makes an fp17 denormal
        assert floats.fp17_to_fp16(bits) == narrow(bits, FP17, FP16)
        assert floats.fp17_to_fp32(bits) == widen(bits, FP17, FP32)


@given(patterns(FP32))
def test_fp32_narrows_with_one_rounding(bits):
    assert floats.fp32_to_fp17(bits) == narrow(bits, FP32, FP17)


@given(st.integers(-65536, 65535))
def test_a_17_bit_integer_becomes_the_nearest_fp16(x):
    assert floats.int_to_fp16(x) == reference.from_integer(x)


@given(st.one_of(st.integers(0, (1 << 35) - 1), st.integers(0, 63)))
def test_a_35_bit_fraction_becomes_the_nearest_fp17(fraction):
    assert floats.fraction_to_fp17(fraction, 35) == encode(Fraction(fraction, 1 << 35), 0, FP17)


@given(st.integers(1 << 23, (254 << 23) - 1), st.integers(-128, 127))
def test_fp32_splits_into_a_saturated_integer_and_a_truncated_fraction(bits, shift):
    integer, fraction = reference.position(bits, shift, 35)
    assert floats.fp32_to_int_fraction(bits, shift, 9, 35) == (min(integer, 511), fraction)
