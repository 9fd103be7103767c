"""Pooling kernels against the specification."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nvdla.kernels.pdp import (
    AVERAGE,
    MAXIMUM,
    MINIMUM,
    Cubes,
    count_special,
    flush_nan,
    pool_average,
    pool_extreme,
    pool_fp16,
    pooling,
)
from nvdla.kernels.reference import pdp as reference


@st.composite
def windows(draw):
    """(size, (kernel, stride, pad before, pad after)) such that each window holds an element of the cube."""
    size, kernel, stride = draw(st.integers(1, 9)), draw(st.integers(1, 8)), draw(st.integers(1, 9))
    before, after = draw(st.integers(0, kernel - 1)), draw(st.integers(0, kernel - 1))
    assume(size + before + after >= kernel)
    outputs = (size + before + after - kernel) // stride + 1
    assume((outputs - 1) * stride - before < size)
    return size, (kernel, stride, before, after), outputs


@st.composite
def layers(draw, elements):
    """A cube of one surface and two elements per atom, and its windows (kernel, stride, padding before, outputs)."""
    height, vertical, out_height = draw(windows())
    width, horizontal, out_width = draw(windows())
    cube = draw(st.lists(elements, min_size=2 * height * width, max_size=2 * height * width))
    shape = (1, height, width, 2)
    windows_ = (
        reference.PoolGeometry(*each[:3], outputs)
        for each, outputs in ((vertical, out_height), (horizontal, out_width))
    )
    return np.array(cube, np.int64).reshape(shape), *windows_, (1, out_height, out_width, 2)


def geometry(vertical, horizontal):
    return tuple(zip(vertical[:3], horizontal[:3], strict=True))  # kernel, stride, pad: (vertical, horizontal)


def planes(cube):
    return [cube[0, :, :, channel].tolist() for channel in range(2)]


def gathered(results, shape, dtype):
    return np.array(results).transpose(1, 2, 0).reshape(shape).astype(dtype)


def in_parallel(pool, source, out, *settings, images=2, gap=16):
    """Pool several equal images, ``gap`` elements apart, into ``out``; the gaps must not change."""
    sizes = source.size + gap, out.size + gap
    sources, results = np.zeros(images * sizes[0], source.dtype), np.full(images * sizes[1], 55, out.dtype)
    sources.reshape(images, -1)[:, : source.size] = source.reshape(-1)
    pool(sources, results, Cubes(images, *source.shape[:3], *out.shape[1:], *sizes), *settings)
    by_image = results.reshape(images, -1)
    assert (by_image[:, out.size :] == 55).all()
    assert (by_image == by_image[0]).all()
    out[...] = by_image[0, : out.size].reshape(out.shape)


def recorded(source, out, cubes, kernel, stride, pad, *settings):
    """The recorded call of maximum and minimum (one setting), or of the average; of int8 alone."""
    chosen = {"least": bool(settings[0])} if len(settings) == 1 else {"average": settings}
    pooling(source, out, cubes, (kernel, stride, pad), **chosen).run()


def variants(kernel):
    """All kernels of one definition."""
    return [kernel.call_compiled, kernel.joined, kernel.fallback, recorded]


INTEGERS = st.one_of(st.integers(-128, 127), st.sampled_from([-128, -127, -1, 0, 1, 127]))


@settings(max_examples=60)
@given(layers(INTEGERS), st.booleans(), st.sampled_from([np.int8, np.int16]))
def test_max_and_min_take_the_elements_of_the_cube_alone(layer, least, dtype):
    cube, vertical, horizontal, shape = layer
    if dtype is np.int16:
        cube = cube * 256 + 255
    expected = [reference.extreme(plane, vertical, horizontal, least) for plane in planes(cube)]
    for pool in variants(pool_extreme)[: 4 if dtype is np.int8 else 3]:
        out = np.zeros((*shape[:3], 8), dtype)
        in_parallel(pool, np.tile(cube.astype(dtype), 4), out, *geometry(vertical, horizontal), int(least))
        assert np.array_equal(out, np.tile(gathered(expected, shape, dtype), 4))


@settings(max_examples=80)
@given(
    layers(INTEGERS),
    st.lists(st.integers(-1024, 1023), min_size=7, max_size=7),
    st.tuples(st.integers(0, 0x1FFFF), st.integers(0, 0x1FFFF)),
    st.booleans(),
)
def test_the_average_rounds_twice_and_counts_the_padding(layer, pads, reciprocal, exact_reciprocal):
    cube, vertical, horizontal, shape = layer
    if exact_reciprocal:
        reciprocal = (round(65536 / vertical[0]), round(65536 / horizontal[0]))
    pads = [0, *pads]
    expected = [reference.average(p, vertical, horizontal, pads, reciprocal, (16, 8)) for p in planes(cube)]
    values = np.array(pads, np.int64)
    for pool in variants(pool_average):
        out = np.zeros((*shape[:3], 8), np.int8)
        in_parallel(
            pool, np.tile(cube.astype(np.int8), 4), out, *geometry(vertical, horizontal), values, reciprocal, 16
        )
        assert np.array_equal(out, np.tile(gathered(expected, shape, np.int8), 4))


def test_the_average_of_the_extremes_stays_exact():
    for element in (-32768, 32767):
        cube = np.full((1, 8, 8, 16), element, np.int16)
        out = np.zeros((1, 1, 1, 16), np.int16)
        in_parallel(pool_average, cube, out, (8, 8), (1, 1), (0, 0), np.zeros(8, np.int64), (8192, 8192), 32)
        assert (out == element).all()


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 4), st.sampled_from([8, 16]), st.sampled_from([np.int8, np.int16])),
    st.tuples(st.integers(60, 90), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3)),
    st.tuples(st.integers(20, 90), st.integers(1, 4), st.integers(1, 4), st.integers(0, 3)),
    st.integers(0, 1 << 31),
)
def test_cubes_of_many_lines_are_pooled_like_their_windows(cube, vertical, horizontal, seed):
    """More lines than one thread takes, int16 sums of 32 bits; numpy takes each window by itself."""
    surfaces, atom, dtype = cube
    pad = tuple(min(each[3], each[1] - 1) for each in (vertical, horizontal))
    kernel, stride = (vertical[1], horizontal[1]), (vertical[2], horizontal[2])
    size = vertical[0], horizontal[0]
    outputs = [(size[i] - 1 + pad[i]) // stride[i] + 1 for i in range(2)]
    source = np.random.default_rng(seed).integers(*np.iinfo(dtype).min + np.array([0, 256]), (surfaces, *size, atom))
    source = source.astype(dtype)
    greatest, average = (np.zeros((surfaces, *outputs, atom), dtype) for _ in range(2))
    in_parallel(pool_extreme, source, greatest, kernel, stride, pad, 0)
    bits = 16 if dtype is np.int8 else 32
    in_parallel(pool_average, source, average, kernel, stride, pad, np.zeros(8, np.int64), (65536, 65536), bits)
    for y in range(outputs[0]):
        for x in range(outputs[1]):
            top, left = y * stride[0] - pad[0], x * stride[1] - pad[1]
            window = source[:, max(top, 0) : top + kernel[0], max(left, 0) : left + kernel[1]]
            assert np.array_equal(greatest[:, y, x], window.max(axis=(1, 2)))
            assert np.array_equal(average[:, y, x], window.sum(axis=(1, 2)).astype(dtype))


FP16_PATTERNS = st.one_of(
    st.integers(0, 0xFFFF),
    st.sampled_from([0x0000, 0x8000, 0x0001, 0x8001, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0x7E01, 0xFE55]),
    st.integers(0x3000, 0x4400),
)


@settings(max_examples=60)
@given(layers(FP16_PATTERNS), st.sampled_from([MAXIMUM, MINIMUM]))
def test_fp16_extremes_let_nan_win(layer, method):
    cube, vertical, horizontal, shape = layer
    expected = [reference.extreme_fp16(p, vertical, horizontal, method == MINIMUM) for p in planes(cube)]
    out = np.zeros(shape, np.uint16)
    none = np.zeros(8, np.int64)
    nans = pool_fp16(cube.astype(np.uint16), out, method, *geometry(vertical, horizontal), none, (0, 0))
    golden = gathered(expected, shape, np.uint16)
    assert np.array_equal(out, golden)
    assert nans == count_special(golden)[1]


@settings(max_examples=40)
@given(
    layers(FP16_PATTERNS),
    st.lists(st.sampled_from([0x00000, 0x07C00, 0x17C00, 0x08000, 0x07800]), min_size=7, max_size=7),
    st.sampled_from([(0x07C00, 0x07C00), (0x07555, 0x07000), (0x07400, 0x17A00)]),
)
def test_the_fp16_average_rounds_each_addition_to_fp17(layer, pads, reciprocal):
    cube, vertical, horizontal, shape = layer
    pads = [0, *pads]
    expected = [reference.average_fp16(p, vertical, horizontal, pads, reciprocal) for p in planes(cube)]
    out = np.zeros(shape, np.uint16)
    values = np.array(pads, np.int64)
    pool_fp16(cube.astype(np.uint16), out, AVERAGE, *geometry(vertical, horizontal), values, reciprocal)
    assert np.array_equal(out, gathered(expected, shape, np.uint16))


def test_special_values_are_counted_and_only_nan_is_flushed():
    values = np.array([[0x7C00, 0xFC00, 0x7C01, 0xFFFF], [0x0000, 0x8000, 0x7BFF, 0x03FF]], np.uint16)
    assert count_special(values) == (2, 2)
    flush_nan(values)
    assert values.tolist() == [[0x7C00, 0xFC00, 0, 0], [0x0000, 0x8000, 0x7BFF, 0x03FF]]


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00])
def test_an_infinity_averages_as_the_largest_fp17_number(bits):
    cube = np.full((1, 1, 1, 1), bits, np.uint16)
    out = np.zeros((1, 1, 1, 1), np.uint16)
    pool_fp16(cube, out, AVERAGE, (1, 1), (1, 1), (0, 0), np.zeros(8, np.int64), (0x07C00, 0x07C00))
    assert int(out[0, 0, 0, 0]) == (bits & 0x8000 | 0x7BFF)
