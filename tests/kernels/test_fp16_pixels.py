"""The theorem of kernels/fast/fp16_pixels.py: products of pixels against the carry-save form, over all mantissas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from nvdla.kernels import fp16_mac
from nvdla.kernels.fast import fp16_pixels
from nvdla.kernels.fast.fp16_code import add_atoms, add_products, fill_tables
from nvdla.kernels.fast.fp16_layout import HIGH_TABLE, LOW_TABLE, PIXELS, PLACES
from nvdla.kernels.reference.fp16_mac import accumulate

BOTH_SIGNS = np.array([[0], [0x8000]])
ALL_MANTISSAS = (np.r_[1:1024, 4 << 10 : 8 << 10] | BOTH_SIGNS).reshape(-1).astype(np.uint16)
"""One operand for each mantissa and sign: denormal fractions, and all fractions with the low two exponent bits; no
zeros: they are masked before they are multiplied."""


@njit
def _products(mantissas, weights, words, shift, found):
    """Products (pixels, weights) of one vector of data with all weights, at a shift."""
    values, low_words = mantissas[0], words[0]
    low, high = np.empty((PLACES, LOW_TABLE), np.uint16), np.empty((PLACES, HIGH_TABLE), np.uint16)
    fill_tables(values.ctypes.data, low.ctypes.data, high.ctypes.data)
    nothing, largest, sums = np.zeros(PIXELS, np.int16), np.empty(PIXELS, np.int16), np.empty(PIXELS, np.int64)
    largest[:] = shift
    for w in range(weights.size):
        sums[:] = 0
        add_products(
            low.ctypes.data, high.ctypes.data, values.ctypes.data, nothing.ctypes.data,
            low_words[w:].ctypes.data, weights[w:].ctypes.data, nothing.ctypes.data,
            largest.ctypes.data, 1, sums.ctypes.data,
        )  # fmt: skip
        found[:, w] = sums


def differences(data, weights):
    """Count the products of fp16 operands that differ from those of the carry-save adders."""
    words, mantissas, _, _ = fp16_pixels.pack_weights(np.resize(weights, (1, -(-weights.size // 64) * 64)))
    found = 0
    for start in range(0, data.size, PIXELS):
        values = fp16_mac.mantissas_of(np.resize(data[start : start + PIXELS], PIXELS))
        for shift in range(0, 37, 4):
            fast = np.empty((PIXELS, mantissas.size), np.int64)
            _products(values[None], mantissas[0], words, shift, fast)
            rule = fp16_mac.products(
                values[:, None].astype(np.int32), mantissas.astype(np.int32), np.full((1, 1), shift, np.int32)
            )
            found += np.count_nonzero(fast != rule)
    return found


def test_products_equal_the_carry_save_form_for_all_weights():
    """Each with a few hundred data, at every shift: those that are all ones and single bits, and random ones."""
    random = np.random.default_rng(5).choice(ALL_MANTISSAS, 3 * PIXELS)
    extremes = [0x1FFF, 0x9FFF, 0x1C00, 0x9C00, 0x1000, 0x13FF, 0x03FF, 0x83FF, 0x0001, 0x8001]
    ones = [fraction for bits in range(1, 10) for fraction in (1 << bits, (1 << bits) - 1)]
    assert differences(np.array(extremes + ones, np.uint16), ALL_MANTISSAS) == 0
    assert differences(random, ALL_MANTISSAS) == 0


@pytest.mark.slow
def test_products_equal_the_carry_save_form_for_all_operands():
    """Compare every pair of mantissas and signs at every shift: these are all operands."""
    assert differences(ALL_MANTISSAS, ALL_MANTISSAS) == 0


def test_zeros_and_what_is_too_small_add_nothing():
    """Masked operands have shifts beyond 31 for every largest exponent of the atom."""
    weights = np.array([[0x0000, 0x8000, 0x0001, 0x7C00] * 16], np.uint16)
    data = np.array([0x7C00, 0xFC00, 0x0001, 0x7C00] * 16, np.uint16)
    outputs = []
    for form in (fp16_mac, fp16_pixels):
        out = np.zeros((1, 1, 1), np.uint32)
        form.convolve(data, np.zeros(1, np.int64), np.arange(64), form.pack_weights(weights), out)
        outputs.append(int(out[0, 0, 0]))
    assert outputs == [np.float32(16 * 65536.0**2).view(np.uint32)] * 2
    assert fp16_mac.MASKED * 4 < -32 - 4 * 14


@njit
def _add(exponents, mantissas, largest, sums):
    add_atoms(exponents.ctypes.data, mantissas.ctypes.data, largest.ctypes.data, sums.ctypes.data)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([38, 8, 4]), st.booleans())
def test_accumulators_of_all_pixels_equal_the_fallback(seed, width, near):
    """Accumulators that are normalized, zero or NaN; sums of all sizes, also those that cancel them."""
    random = np.random.default_rng(seed)
    signs = random.choice([1, -1], PIXELS)
    mantissas = signs * ((1 << 38) + random.integers(0, 1 << random.integers(1, 39), PIXELS)) - (signs < 0)
    mantissas[random.random(PIXELS) < 0.1] = 0
    mantissas[random.random(PIXELS) < 0.1] = -(1 << 39)
    exponents = np.where(mantissas != 0, random.integers(20, 120, PIXELS), 0)
    exponents[(random.random(PIXELS) < 0.1) & (mantissas != 0)] = 255
    sums = random.integers(-(1 << width - 4), 1 << width - 4, PIXELS)
    largest = (4 * random.integers(0, 15, PIXELS)).astype(np.int16)
    if near:  # the accumulator is close to minus the sum
        sums = -(mantissas >> 10) + random.integers(-1, 2, PIXELS)
        exponents = np.where((mantissas != 0) & (exponents != 255), largest + 49 - 8, exponents)
    expected = [
        accumulate((int(e), int(m)), int(at), int(s))
        for e, m, at, s in zip(exponents, mantissas, largest, sums, strict=True)
    ]
    _add(exponents, mantissas, largest, sums)
    assert list(zip(exponents.tolist(), mantissas.tolist(), strict=True)) == expected


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_atoms_of_a_single_place_equal_the_rule(seed, specials):
    """An image of one channel: bit patterns of all kinds, zeros, NaN of weights and of data."""
    random = np.random.default_rng(seed)
    weights, data = np.zeros((20, 5, 64), np.uint16), random.integers(0, 1 << 16, 60, np.uint16)
    weights[:, :, 0] = random.integers(0, 1 << 16, (20, 5), np.uint16)
    for values in (weights, data):
        if not specials:
            values[values & 0x7C00 == 0x7C00] &= 0xBFFF
        values[random.random(values.shape) < 0.2] &= 0x8000
    offsets = np.full((5, 64), -1)
    offsets[:, 0] = np.arange(0, 20, 4)
    outputs = []
    for form in (fp16_mac, fp16_pixels):
        out = np.zeros((2, 40, 16), np.uint32)
        form.convolve(data, np.arange(40), offsets.reshape(-1), form.pack_weights(weights.reshape(20, -1)), out)
        outputs.append(out)
    assert np.array_equal(*outputs)
