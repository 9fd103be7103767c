"""The theorem of kernels/fast/fp16_kernels.py: products of kernels against the carry-save form, over all mantissas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from nvdla.kernels import fp16_mac
from nvdla.kernels.fast import fp16_kernels
from nvdla.kernels.fast.fp16_code import deliver_fp32, multiply_atom
from nvdla.kernels.fast.fp16_layout import VECTOR
from nvdla.kernels.reference.fp16_mac import to_fp32

BOTH_SIGNS = np.array([[0], [0x8000]])
ALL_MANTISSAS = (np.r_[1:1024, 4 << 10 : 8 << 10] | BOTH_SIGNS).reshape(-1).astype(np.uint16)
"""One operand for each mantissa and sign: denormal fractions, and all fractions with the low two exponent bits."""


@njit
def _products(packed, data, shift, found):
    """Products (groups, data, kernels) of vectors of weights with data at a shift: a second place of the atom sets the
    largest exponent, and adds nothing but when it is shifted by 0. Return whether all exponents are the shift."""
    exact = True
    numbers, largest, sums = np.zeros((3, 2), np.int16), np.empty(VECTOR, np.int16), np.empty(VECTOR, np.int64)
    numbers[0, 1], numbers[1, 1] = 1, 1
    for group in range(packed.shape[0]):
        record = np.zeros((2, 2, VECTOR), np.int16)
        record[0, 0] = packed[group, 0, 0]
        record[1, 1, :] = shift
        for at in range(data.size):
            numbers[1, 0] = data[at]
            multiply_atom(
                record.ctypes.data, numbers[0].ctypes.data, numbers[1].ctypes.data, numbers[2].ctypes.data, 2,
                largest.ctypes.data, sums.ctypes.data,
            )  # fmt: skip
            found[group, at] = sums
            exact &= (largest == shift).all()
    return exact


def differences(weights, data):
    """Count the products of fp16 operands that differ from those of the carry-save adders."""
    count = -(-weights.size // VECTOR) * VECTOR
    columns = np.zeros((count, 64), np.uint16)
    columns[:, 0] = np.resize(weights, count)
    packed, _ = fp16_kernels.pack_weights(columns)
    mantissas = packed[:, 0, 0].astype(np.int32)
    found = 0
    for value in fp16_mac.mantissas_of(data):
        for shift in range(0, 37, 4):
            fast = np.empty((len(packed), 1, VECTOR), np.int64)
            assert _products(packed, np.array([value]), shift, fast)
            rule = fp16_mac.products(np.int32(value), mantissas, np.full((1, 1), shift, np.int32))
            found += np.count_nonzero(fast[:, 0] != rule)
    return found


def test_products_equal_the_carry_save_form_for_all_weights():
    """Each with data that are all ones and single bits, and random ones, at every shift."""
    extremes = [0x1FFF, 0x9FFF, 0x1C00, 0x9C00, 0x1000, 0x13FF, 0x03FF, 0x83FF, 0x0001, 0x8001]
    random = np.random.default_rng(5).choice(ALL_MANTISSAS, 20)
    assert differences(ALL_MANTISSAS, np.array(extremes, np.uint16)) == 0
    assert differences(ALL_MANTISSAS, random) == 0


@pytest.mark.slow
def test_products_equal_the_carry_save_form_for_all_operands():
    """Compare every pair of mantissas and signs at every shift: these are all operands."""
    assert differences(ALL_MANTISSAS, ALL_MANTISSAS) == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 10, 31, 33, 64, 131]), st.integers(1, 20), st.booleans())
def test_kernels_pixels_and_atoms_equal_the_rule(seed, kernels, pixels, specials):
    """Bit patterns of all kinds, many zeros, atoms that are not full, NaN of weights and of data."""
    random = np.random.default_rng(seed)
    weights, data = (random.integers(0, 1 << 16, size, np.uint16) for size in ((kernels, 192), (pixels * 9 + 192,)))
    for values in (weights, data):
        if not specials:
            values[values & 0x7C00 == 0x7C00] &= 0xBFFF
        values[random.random(values.shape) < 0.4] &= 0x8000
    bases, offsets = np.arange(pixels) * 9, np.arange(192)
    for absent in (slice(50, 64), slice(65, 128)):
        offsets[absent] = -1
        weights[:, absent] = 0
    data[: random.integers(0, 2) * 200] = 0
    outputs = []
    for form in (fp16_mac, fp16_kernels):
        out = np.zeros((-(-kernels // 16), pixels, 16), np.uint32)
        form.convolve(data, bases, offsets, form.pack_weights(weights), out)
        outputs.append(out)
    assert np.array_equal(*outputs)


@njit
def _deliver(exponents, mantissas, out):
    deliver_fp32(exponents.ctypes.data, mantissas.ctypes.data, out.ctypes.data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_results_equal_the_fallback(seed):
    random = np.random.default_rng(seed)
    signs = random.choice([1, -1], VECTOR)
    mantissas = signs * ((1 << 38) + random.integers(0, 1 << random.integers(1, 39), VECTOR)) - (signs < 0)
    mantissas[random.random(VECTOR) < 0.1] |= (1 << 24) - 1
    mantissas[random.random(VECTOR) < 0.1] = 0
    mantissas[random.random(VECTOR) < 0.1] = -(1 << 39)
    exponents = np.where(mantissas != 0, random.integers(13, 131, VECTOR), 0)
    exponents[(random.random(VECTOR) < 0.2) & (mantissas != 0)] = 255
    expected = [to_fp32(int(e), int(m)) for e, m in zip(exponents, mantissas, strict=True)]
    out = np.empty(VECTOR, np.uint32)
    _deliver(exponents, mantissas, out)
    assert out.tolist() == expected
