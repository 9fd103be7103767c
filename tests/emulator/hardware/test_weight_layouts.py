"""Weight layouts: what is written in the order that the format document describes is read back as kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.convolution_layers import image_weight_bytes, weight_bytes, winograd_weight_bytes

from nvdla.emulator.hardware.convolution.cdma import decompress, unpack_direct, unpack_image, unpack_winograd
from nvdla.errors import ConfigError


def kernels(seed, shape, dtype=np.int16):
    return np.random.default_rng(seed).integers(-30000, 30000, shape).astype(dtype)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 3), st.integers(1, 3), st.integers(1, 140),
       st.sampled_from([(8, 8), (16, 64), (32, 64)]))  # fmt: skip
def test_direct_weights(seed, count, height, width, channels, sizes):
    group, block = sizes
    weights = kernels(seed, (count, height, width, channels))
    elements = np.frombuffer(weight_bytes(weights, group, block), np.int16)
    assert (unpack_direct(elements, weights.shape, group, block) == weights).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 7), st.integers(1, 16), st.sampled_from([1, 2, 4]))
def test_image_weights_lie_together_by_lines_of_the_post_extension(seed, count, height, channels, extension):
    weights = kernels(seed, (count, height, 1, channels))
    elements = np.frombuffer(image_weight_bytes(weights, 16, 64, extension), np.int16)
    assert (unpack_image(elements, (count, height, channels), 16, 64, extension) == weights).all()


def test_a_post_extension_that_does_not_fit_the_mac_cell_is_refused():
    with pytest.raises(ConfigError, match="at most 16"):
        unpack_image(np.zeros(17 * 4, np.int8), (1, 4, 17), 32, 64, 4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 6), st.sampled_from([16, 32]))
def test_winograd_weights(seed, count, blocks, group):
    weights = kernels(seed, (count, blocks, 4, 4, 4))
    elements = np.frombuffer(winograd_weight_bytes(weights, group), np.int16)
    assert (unpack_winograd(elements, count, 4 * blocks, group) == weights).all()


@given(st.lists(st.sampled_from([0, 0, 0, 5, -7, 1]), min_size=1, max_size=200))
def test_compressed_weights_are_put_back_in_place(values):
    mask = 0
    for place, value in enumerate(values):
        mask |= (value != 0) << place
    mask_bytes = np.frombuffer(mask.to_bytes(-(-len(values) // 8), "little"), np.uint8)
    stored = np.array([value for value in values if value], np.int8)
    assert decompress(stored, mask_bytes, len(values)).tolist() == values


def test_a_mask_that_claims_more_weights_than_are_stored_is_refused():
    with pytest.raises(ConfigError, match="marks 3 weights as stored"):
        decompress(np.array([1, 2], np.int8), np.array([0b111], np.uint8), 8)
