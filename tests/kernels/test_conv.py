"""Integer convolution, CACC's saturation and delivery against the specification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.kernels import conv
from nvdla.kernels.reference import conv as reference
from nvdla.kernels.reference.integers import shift_right

HIGH = (1 << 47) - 1


def written_out(lines, weights, window):
    """The sums by the specification: [image][line][column][kernel]."""
    channels = weights.shape[3]
    out, stride = (window.out_height, window.out_width), (window.stride_y, window.stride_x // channels)
    geometry = reference.ConvolutionGeometry(
        out, stride, (window.dilation_y, window.stride_column // channels), (0, 0), 0
    )
    atoms = list(reference.feature_atoms(*weights.shape[1:], 8))
    cubes = lines.reshape(*lines.shape[:2], -1, channels).tolist()
    return [reference.convolve(cube, weights.tolist(), geometry, atoms) for cube in cubes]


def layer(seed, dtype, largest):
    random = np.random.default_rng(seed)
    kernels, rows, columns, channels = (int(random.integers(1, high)) for high in (6, 4, 4, 9))
    window = conv.ConvolutionWindow(
        out_height=int(random.integers(1, 4)),
        out_width=int(random.integers(1, 4)),
        stride_y=int(random.integers(1, 4)),
        stride_x=int(random.integers(1, 4)) * channels,
        dilation_y=int(random.integers(1, 3)),
        stride_column=int(random.integers(1, 3)) * channels,
    )
    height = (window.out_height - 1) * window.stride_y + (rows - 1) * window.dilation_y + 1
    length = (window.out_width - 1) * window.stride_x + (columns - 1) * window.stride_column + channels
    values = random.choice([-largest - 1, largest, 0, 1, -1, 77], (2, height, length))
    weights = random.choice([-largest - 1, largest, 0, 3, -5], (kernels, rows, columns, channels))
    return values.astype(dtype), weights.astype(dtype), window


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([np.int8, np.int16]))
def test_matrix_products_give_the_exact_sums(seed, dtype):
    lines, weights, window = layer(seed, dtype, np.iinfo(dtype).max)
    sums = conv.exact_sums(lines, conv.pack_weights(weights), window, weights.shape[1:])
    assert sums.tolist() == written_out(lines, weights, window)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_the_bound_holds_for_every_partial_sum(seed):
    lines, weights, window = layer(seed, np.int16, 32767)
    bound = conv.largest_sum(weights)
    magnitudes = written_out(abs(lines.astype(int)), abs(weights.astype(int)), window)
    assert np.max(magnitudes) <= bound


def test_float32_is_used_only_where_it_is_exact():
    assert conv.pack_weights(np.full((1, 1, 1, 1023), -128, np.int8)).dtype == np.float32
    assert conv.pack_weights(np.full((1, 1, 1, 1024), -128, np.int8)).dtype == np.float64


def test_sums_saturate_at_48_bits_after_each_atom():
    """Atoms are added in order: what passes the limit is lost even if later atoms come back."""
    channels = 64 * 2100
    weights = np.full((1, 1, 1, channels), -32768, np.int16)
    lines = np.full((1, 1, channels), -32768, np.int16)
    lines[0, 0, -64:] = 32767
    window = conv.ConvolutionWindow(1, 1, 1, channels, 1, channels)
    atoms = [[(0, 0, first, first + 64)] for first in range(0, channels, 64)]
    parts = [
        [each[0, 0, 0, first : first + 64].tolist() for first in range(0, channels, 64)]
        for each in (weights, lines[None])
    ]
    assert conv.largest_sum(weights) > HIGH
    assert conv.saturating_sums(lines, weights, window, atoms)[0, 0, 0, 0] == reference.output(*parts)


SUMS = st.one_of(
    st.integers(-HIGH - 1, HIGH), st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, HIGH, -HIGH - 1])
)


@given(st.lists(SUMS, min_size=6, max_size=6), st.integers(0, 31))
def test_delivery_rounds_half_away_saturates_and_counts(values, truncate):
    sums = np.array(values, np.int64).reshape(1, 1, 2, 3)
    out = np.empty((1, 1, 1, 2, 4), np.int32)
    count = conv.deliver(sums, truncate, out)
    exact = [shift_right(value, truncate) for value in values]
    expected = [reference.deliver(value, truncate) for value in values]
    assert out[0, 0, 0, :, :3].reshape(-1).tolist() == expected
    assert not out[..., 3].any()
    assert count == sum(before != after for before, after in zip(exact, expected, strict=True))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 7)])
def test_windows_are_views(shape):
    lines = np.zeros((shape[0], 20, 400), np.int8)
    window = conv.ConvolutionWindow(4, 5, 2, 14, 3, 7)
    assert np.shares_memory(conv.windows(lines, window, shape[1:]), lines)
