"""Figures about differences: each planted difference is found, counted and placed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nvdla import FormatError
from nvdla.checks.compare import compare

TENSORS = st.sampled_from([np.int8, np.int16, np.float16]).flatmap(
    lambda dtype: hnp.arrays(dtype, st.tuples(*[st.integers(1, 4)] * 4))
)


@given(TENSORS)
def test_a_tensor_equals_itself_nan_and_all(tensor):
    difference = compare(tensor, tensor.copy())
    assert difference.exact
    assert difference.count == 0
    assert difference.within(0)


@given(TENSORS, st.data())
def test_one_flipped_bit_is_found_where_it_is(tensor, data):
    at = data.draw(st.integers(0, tensor.size - 1))
    other = tensor.copy()
    bits = other.reshape(-1).view(f"u{tensor.itemsize}")
    bits[at] ^= 1
    difference = compare(tensor, other)
    assert not difference.exact
    assert difference.count == 1
    assert difference.first == np.unravel_index(at, tensor.shape)


def test_minus_zero_is_not_plus_zero():
    zero = np.zeros((1, 1, 1, 1), np.float16)
    assert compare(zero, -zero).count == 1


def test_figures_of_a_small_example():
    expected = np.array([3, 4], np.int8).reshape(1, 2, 1, 1)
    actual = np.array([3, 2], np.int8).reshape(1, 2, 1, 1)
    difference = compare(expected, actual)
    assert (difference.max_abs, difference.mean_abs) == (2, 1)
    assert difference.cosine == pytest.approx(17 / (5 * math.sqrt(13)))
    assert difference.snr_db == pytest.approx(10 * math.log10(25 / 4))
    assert difference.psnr_db == pytest.approx(10 * math.log10(16 / 2))
    assert str(difference) == "1 of 2 elements differ, by at most 2; first at N=0, C=1, H=0, W=0: expected 4, got 2"
    assert difference.within(2)
    assert not difference.within(1)


def test_shapes_must_agree():
    with pytest.raises(FormatError, match=r"must be 2x1 .*got 1x2"):
        compare(np.zeros((2, 1)), np.zeros((1, 2)))
