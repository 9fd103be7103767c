"""Winograd's transforms against the matrices, and the whole against a direct convolution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.kernels import winograd, winograd_fp16
from nvdla.kernels.fast import fp16_pixels
from nvdla.kernels.reference import winograd as reference

C = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
A = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
TWICE_G = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])
"""Twice the weight transform, so that it is whole; a convolution then comes out four times as large."""


def direct(cube, kernels, height, width):
    """Plain 3x3 convolution: cube (H, W, C), kernels (K, 3, 3, C)."""
    result = np.zeros((height, width, len(kernels)), np.int64)
    for y in range(height):
        for x in range(width):
            for k, kernel in enumerate(kernels):
                result[y, x, k] = (cube[y : y + 3, x : x + 3].astype(np.int64) * kernel).sum()
    return result


def random_layer(seed, largest):
    random = np.random.default_rng(seed)
    height, width = (int(4 * random.integers(1, 3)) for _ in range(2))
    channels, kernels = int(4 * random.integers(1, 4)), int(random.integers(1, 5))
    cube = random.integers(-largest, largest + 1, (height + 4, width + 4, channels))
    weights = random.integers(-9, 10, (kernels, 3, 3, channels))
    transformed = np.einsum("ai,bj,kijc->kabc", TWICE_G, TWICE_G, weights)
    return cube, weights, transformed, height, width


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_int16_winograd_is_four_times_the_convolution(seed):
    cube, weights, transformed, height, width = random_layer(seed, 2000)
    packed = transformed.transpose(1, 2, 3, 0).astype(np.float64)
    sums = winograd.convolve(cube.astype(np.int16), packed, height, width, 0)
    assert (sums == 4 * direct(cube, weights, height, width)).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_fp16_winograd_of_small_integers_loses_only_the_aligned_products_last_bits(seed):
    cube, weights, transformed, height, width = random_layer(seed, 40)
    halves = transformed.astype(np.float16).view(np.uint16)
    kernels, _, _, channels = halves.shape
    atoms = halves.reshape(kernels, 4, 4, channels // 4, 4).transpose(0, 3, 1, 2, 4).reshape(kernels, -1)
    tiles = winograd.tiles(cube.astype(np.float16).view(np.uint16), height, width)
    data = winograd_fp16.transform_data(np.ascontiguousarray(tiles).reshape(-1, 4, 4, channels))
    out = np.zeros((1, height, width, 16), np.uint32)
    winograd_fp16.convolve(data, width // 2, fp16_pixels.pack_weights(np.ascontiguousarray(atoms)), out)
    expected = 4 * direct(cube, weights, height, width)
    # 64 products per MAC atom, each at most one too small in the unit 2^(4 * 8 - 50) of the largest exponent here.
    atoms_added = 9 * 64 * channels // 4
    assert (abs(out[0].view(np.float32)[..., :kernels] - expected) <= atoms_added * 2.0**-18).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3), st.sampled_from([np.int8, np.int16]))
def test_the_data_transform_rounds_half_away_and_saturates_to_the_data_width(seed, truncate, dtype):
    limits = np.iinfo(dtype)
    tile = np.random.default_rng(seed).choice([limits.min, limits.max, 0, 1, -1, 55], (4, 4, 1)).astype(dtype)
    result = winograd.transform_data(tile, truncate)[..., 0]
    assert result.tolist() == reference.transform_data(tile[..., 0].tolist(), truncate, 8 * tile.itemsize)


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("truncate", range(4))
def test_no_weights_make_a_convolution_of_any_integers(dtype, truncate):
    """With all transformed weights the result is not a linear function of int8 (int16) data, hence not a convolution.

    A sum of two tiles must give the sum of their results: four equations for the 16 weights of a kernel. Those of a few
    tiles have only the solution zero."""
    random, limits = np.random.default_rng(0), np.iinfo(dtype)
    equations = []
    for _ in range(40):
        one, other = random.integers(limits.min // 2, limits.max // 2 + 1, (2, 4, 4, 1))
        tiles = [tile.astype(dtype) for tile in (one + other, one, other)]
        both, first, second = (winograd.transform_data(tile, truncate)[..., 0].astype(np.int64) for tile in tiles)
        rest = both - first - second
        basis = rest.reshape(16, 1, 1) * np.eye(16, dtype=np.int64).reshape(16, 4, 4)
        equations.append((A @ basis @ A.T).reshape(16, 4).T)
    assert np.linalg.matrix_rank(np.concatenate(equations)) == 16


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_data_of_two_bits_less_are_convolved_exactly(dtype):
    """-32 to 31 in int8, -8192 to 8191 in int16: the transform has at most four times that. One more is clamped."""
    limits = np.iinfo(dtype)
    least, most = limits.min // 4, limits.max // 4
    extremes = [np.where(np.outer(row, column) > 0, most, least) for row in np.sign(C) for column in np.sign(C)]
    extremes += [most + least - tile for tile in extremes]
    for tile in np.array(extremes)[..., None]:
        exact = winograd.transform_axis(winograd.transform_axis(tile, 0), 1)
        assert (winograd.transform_data(tile.astype(dtype), 0) == exact).all()
    beyond = np.full((4, 4, 1), most + 1, dtype)
    assert (
        winograd.transform_data(beyond, 0) != winograd.transform_axis(winograd.transform_axis(beyond.astype(int), 0), 1)
    ).any()


def test_the_sum_transform_is_the_matrix_product():
    sums = np.arange(16).reshape(4, 4) ** 3
    assert (winograd.transform_sums(sums) == A @ sums @ A.T).all()
    assert reference.transform_sums(sums.tolist()) == (A @ sums @ A.T).tolist()


def test_fp16_transform_rounds_each_step_to_fp17():
    """2048 + 1 is not an fp17 number; the next difference shows what was lost."""
    tile = np.zeros((1, 4, 4, 4), np.float16)
    tile[0, 1, :, 0] = (0, 2048, 0, 0)
    tile[0, 2, :, 0] = (0, 1, 0, 0)
    result = winograd_fp16.transform_data(tile.view(np.uint16)).view(np.float16)[0, 0].reshape(4, 4, 4)[..., 0]
    assert result[1].tolist() == [0, 2048, -2048, 2048]
    assert result[2].tolist() == [0, -2047, 2047, -2047]


def test_a_nan_of_the_weights_reaches_all_four_outputs():
    weights = np.zeros((1, 64), np.uint16)
    weights[0, 5] = 0xFE01
    out = np.zeros((1, 2, 2, 16), np.uint32)
    winograd_fp16.convolve(np.zeros((1, 1, 64), np.uint16), 1, fp16_pixels.pack_weights(weights), out)
    assert (out[0, ..., 0] == 0xFF800201).all()


def test_fp16_winograd_equals_the_specification():
    """40 tiles, 35 kernels, two atoms with NaN here and there: the transform of the products, then the accumulators."""
    random = np.random.default_rng(8)
    tiles = random.standard_normal((40, 2, 64)).astype(np.float16).view(np.uint16)
    weights = (random.standard_normal((35, 128)) * 2.0 ** random.integers(-9, 3, (35, 128))).astype(np.float16)
    weights = weights.view(np.uint16)
    tiles[7, 1, 3], weights[33, 70] = 0x7E01, 0xFE02
    out = np.zeros((3, 10, 16, 16), np.uint32)
    winograd_fp16.convolve(tiles, 8, fp16_pixels.pack_weights(weights), out)
    for k, t in ((0, 0), (31, 31), (34, 39), (3, 7), (33, 2), (33, 7)):
        got = out[k // 16, t // 8 * 2 : t // 8 * 2 + 2, t % 8 * 2 : t % 8 * 2 + 2, k % 16].reshape(-1).tolist()
        assert got == reference.outputs_fp16(weights[k].reshape(2, 64).tolist(), tiles[t].tolist())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3), st.sampled_from([np.int8, np.int16]))
def test_integer_outputs_equal_the_specification(seed, truncate, dtype):
    random, limits = np.random.default_rng(seed), np.iinfo(dtype)
    extremes = random.choice([limits.min, limits.max, 0, 77], (2, 6, 6, 8))
    values = np.where(
        random.random(extremes.shape) < 0.3, extremes, random.integers(limits.min, limits.max, extremes.shape)
    )
    cube, kernel = values[0].astype(dtype), values[1, :4, :4].astype(dtype)
    sums = winograd.convolve(cube, kernel[..., None].astype(np.float64), 4, 4, truncate)
    for y, x in ((0, 0), (2, 0), (0, 2), (2, 2)):
        tile = cube[y : y + 4, x : x + 4]
        data = [reference.transform_data(tile[..., c].tolist(), truncate, 8 * tile.itemsize) for c in range(8)]
        atoms = [[data[c][i // 4][i % 4] for i in range(16) for c in (b, b + 1, b + 2, b + 3)] for b in (0, 4)]
        weights = [[int(kernel[i // 4, i % 4, c]) for i in range(16) for c in (b, b + 1, b + 2, b + 3)] for b in (0, 4)]
        assert sums[y : y + 2, x : x + 2, 0].reshape(-1).tolist() == reference.outputs(weights, atoms)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_the_fp16_data_transform_equals_the_specification(seed):
    random = np.random.default_rng(seed)
    tile = (random.standard_normal((4, 4)) * 2.0 ** random.integers(-20, 14, (4, 4))).astype(np.float16).view(np.uint16)
    special = random.choice([0x7E01, 0xFC00, 0x7C00, 0x7BFF, 0x8000, 1], (4, 4)).astype(np.uint16)
    tile = np.where(random.random((4, 4)) < 0.1, special, tile)
    result = winograd_fp16.transform_data(np.ascontiguousarray(np.repeat(tile[None, ..., None], 4, axis=3)))
    assert result[0, 0].reshape(4, 4, 4)[..., 2].tolist() == reference.transform_data_fp16(tile.tolist())
