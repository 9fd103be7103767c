"""The fp16 MAC and the FP48 accumulator against the specification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.fp16_atoms import atoms

from nvdla.kernels import fp16_mac
from nvdla.kernels.fast import fp16_kernels, fp16_pixels
from nvdla.kernels.reference.fp16_mac import accumulate, booth_product, fields, output, to_fp32

FORMS = pytest.mark.parametrize("form", [fp16_mac, fp16_pixels, fp16_kernels], ids=["places", "pixels", "kernels"])

BITS = st.one_of(
    st.integers(0, 0xFFFF),
    st.sampled_from([0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00]),
)
FINITE = BITS.filter(lambda bits: bits & 0x7FFF <= 0x7C00)


def fast_output(form, weights, data):
    """The same through a form of the kernel: one pixel, one kernel."""
    weights = np.array(weights, np.uint16).reshape(1, -1)
    data = np.array(data, np.uint16).reshape(-1)
    out = np.zeros((1, 1, 1), np.uint32)
    form.convolve(data, np.zeros(1, np.int64), np.arange(data.size), form.pack_weights(weights), out)
    return int(out[0, 0, 0])


@settings(max_examples=300, deadline=None)
@given(FINITE, FINITE, st.sampled_from([0, 4, 8, 12, 16, 20, 24, 28, 32, 40]))
def test_a_product_is_shifted_before_its_rows_are_added(weight, data, shift):
    (w_sign, w, _), (d_sign, d, _) = fields(weight), fields(data)
    mantissas = (fp16_mac.mantissas_of(np.array([bits])).astype(np.int32) for bits in (data, weight))
    result = fp16_mac.products(*mantissas, np.array([shift], np.int32))
    # zeros are masked, so that their shifts are at least 32
    assert result.tolist() == [booth_product(w, d, w_sign ^ d_sign, shift) if w and d else result[0]]


def test_an_unshifted_product_is_exact():
    for weight, data in ((0x3C00, 0xBC00), (0x7BFF, 0x7BFF), (0x0001, 0x83FF)):
        (w_sign, w, _), (d_sign, d, _) = fields(weight), fields(data)
        assert booth_product(w, d, w_sign ^ d_sign, 0) == w * d * (1 if w_sign == d_sign else -1)


@FORMS
@settings(max_examples=60, deadline=None)
@given(pair=atoms([0x7C00, 0xFC00, 1, 0x8001]))
def test_an_output_equals_the_specification(form, pair):
    assert fast_output(form, *pair) == output(*pair)


@FORMS
@settings(max_examples=20, deadline=None)
@given(pair=atoms([0x7E00, 0xFE01, 0x7C01]))
def test_nan_of_the_weights_comes_before_nan_of_the_data(form, pair):
    assert fast_output(form, *pair) == output(*pair)


MANTISSAS = st.one_of(
    st.integers(1 << 38, (1 << 39) - 1), st.integers(-(1 << 39), -(1 << 38) - 1), st.just(0),
    st.sampled_from([1 << 38, (1 << 39) - 1, -(1 << 39), -(1 << 38) - 1, -(1 << 39) + 1]),
)  # fmt: skip
MAC_MANTISSAS = st.one_of(
    st.integers(-(1 << 35), 1 << 35), st.integers(-300, 300), st.sampled_from([1, -1, 1 << 34, -(1 << 34)])
)


@settings(max_examples=600, deadline=None)
@given(st.integers(13, 120), MANTISSAS, st.sampled_from(range(0, 60, 4)), MAC_MANTISSAS)
@example(60, 1 << 38, 56, -1)
def test_addition_to_the_accumulator_equals_the_specification(exponent, mantissa, mac_exponent, mac_mantissa):
    exponent = exponent if mantissa else 0
    result = fp16_mac.fp48_add(exponent, mantissa, mac_exponent, mac_mantissa)
    assert tuple(map(int, result)) == accumulate((exponent, mantissa), mac_exponent, mac_mantissa)


@pytest.mark.parametrize("difference", range(37, 44))
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_more_than_forty_places_smaller_is_dropped(difference, sign):
    mac_mantissa = sign * ((1 << 36) - 1)  # normalized exponent: 49 + mac exponent
    exponent = 49 + difference
    result = fp16_mac.fp48_add(exponent, (1 << 38) + 1, 0, mac_mantissa)
    assert tuple(map(int, result)) == accumulate((exponent, (1 << 38) + 1), 0, mac_mantissa)
    if difference > 40:
        assert result == (exponent, (1 << 38) + 1)


@settings(max_examples=200, deadline=None)
@given(st.integers(13, 130), MANTISSAS)
def test_delivery_equals_the_specification(exponent, mantissa):
    exponent = exponent if mantissa else 0
    assert fp16_mac.fp48_to_fp32(exponent, mantissa) == to_fp32(exponent, mantissa)


@FORMS
def test_kernels_and_pixels_do_not_mix(form):
    """Tiles of many kernels and pixels give what each gives alone."""
    random = np.random.default_rng(3)
    weights = random.standard_normal((131, 128)).astype(np.float16).view(np.uint16)
    data = random.standard_normal(260).astype(np.float16).view(np.uint16)
    bases, offsets = np.arange(0, 120, 3), np.arange(128)
    offsets[70:] = -1
    weights[:, 70:] = 0
    out = np.zeros((9, bases.size, 16), np.uint32)
    form.convolve(data, bases, offsets, form.pack_weights(np.asfortranarray(weights)), out)
    for k in (0, 15, 16, 128, 130):
        for p in (0, 7, 8, 31, 32, 39):
            window = np.where(offsets >= 0, data[bases[p] + offsets.clip(0)], 0).reshape(2, 64).tolist()
            expected = output(weights[k].reshape(2, 64).tolist(), window)
            assert out[k // 16, p, k % 16] == expected
    assert not out[8, :, 3:].any()
