"""The dot-product tile gives exactly the sums of the specification."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.convolution_sums import reference_sums, some

from nvdla.kernels.fast import conv_int8_dot as fast

pytestmark = pytest.mark.skipif(not fast.available(), reason="this processor has no instructions for it")


def fast_sums(cube, channels, weights, pads, stride, dilation, pad_value, atom):
    """The same through the packed cube, the packed weights and the tile."""
    top, left, bottom, right = pads
    kernels, _, rows, columns = weights.shape
    height, width = cube.shape[1] + top + bottom, cube.shape[2] + left + right
    stored = -(-channels // 4) * 4
    data = np.empty((height, width, stored), np.uint8)
    fast.padded_cube(cube, top, left, pad_value, data)
    packed, correction = fast.pack_weights(weights, dilation > 1)
    out_height = (height - (rows - 1) * dilation - 1) // stride + 1
    out_width = (width - (columns - 1) * dilation - 1) // stride + 1
    pixels = ((np.arange(out_height) * width)[:, None] + np.arange(out_width)).reshape(-1) * (stride * stored)
    taps = np.arange(rows) * (dilation * width * stored)
    if dilation > 1:
        taps = (taps[:, None] + np.arange(columns) * (dilation * stored)).reshape(-1)
    out = np.empty((-(-kernels // atom), out_height * out_width, atom), np.int32)
    fast.accumulate(data.reshape(-1), pixels, taps, packed.shape[2], packed, correction, out)
    planes = out.transpose(0, 2, 1).reshape(-1, out_height, out_width)
    assert not planes[kernels:].any(), "kernels that do not exist have sum 0"
    return planes[:kernels]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sums_equal_the_specification(data):
    draw = data.draw
    atom = draw(st.sampled_from([8, 32]))
    channels, kernels = draw(st.integers(1, 70)), draw(st.integers(1, 140))
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    height = draw(st.integers((rows - 1) * dilation + 1, 12))
    width = draw(st.integers((columns - 1) * dilation + 1, 12))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    extreme = draw(st.booleans())
    pick = (
        (lambda shape: random.choice(np.array([-128, 127], np.int8), shape))
        if extreme
        else (lambda shape: random.integers(-128, 128, shape, dtype=np.int8))
    )
    cube = pick((-(-channels // atom), height, width, atom))
    weights = pick((kernels, channels, rows, columns))
    geometry = (pads, stride, dilation, draw(st.integers(-128, 127)))
    chosen = some(random, kernels)
    expected = reference_sums(cube, channels, weights[chosen], *geometry)
    assert np.array_equal(fast_sums(cube, channels, weights, *geometry, atom)[chosen], expected)


def test_sums_are_exact_up_to_the_stated_number_of_terms():
    channels = fast.MAX_TERMS // 4 * 4
    cube = np.full((channels // 32, 1, 1, 32), -128, np.int8)
    channels = cube.shape[0] * 32
    weights = np.full((1, channels, 1, 1), -128, np.int8)
    sums = fast_sums(cube, channels, weights, (0, 0, 0, 0), 1, 1, 0, 32)
    assert sums[0, 0, 0] == 128 * 128 * channels
