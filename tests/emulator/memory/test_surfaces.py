"""Layouts of tensors and weights: packing and unpacking are inverse, and every element is where the formula places
it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla.emulator.hardware.convolution.cdma import unpack_direct, unpack_image, unpack_winograd
from nvdla.emulator.memory.surfaces import (
    FeatureLayout,
    PixelLayout,
    pack_direct,
    pack_image,
    pack_winograd,
    tensor_layout,
)
from nvdla.errors import FormatError, LinkError
from nvdla.loadable.enums import DataFormat, DataType, PixelFormat
from nvdla.loadable.model import TensorDesc

DTYPES = [np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.float16)]
shapes = st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 4), st.integers(1, 5))


def random_array(shape, dtype, seed=0):
    bits = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return bits.view(dtype)[..., 0]


@given(
    shape=shapes,
    dtype=st.sampled_from(DTYPES),
    atom=st.sampled_from([8, 16, 32]),
    gaps=st.tuples(*[st.integers(0, 3)] * 3),
)
def test_feature_elements_are_at_the_offset_of_the_formula(shape, dtype, atom, gaps):
    n, channels, height, width = shape
    elements = atom // dtype.itemsize
    surfaces = -(-channels // elements)
    line = (width + gaps[0]) * atom
    surface = (height + gaps[1]) * line
    image = (surfaces + gaps[2]) * surface
    layout = FeatureLayout(shape, dtype, atom, line, surface, image, n * image)
    array, buffer = random_array(shape, dtype), np.full(n * image, 0xA5, np.uint8)
    layout.pack(array, buffer)
    assert np.array_equal(layout.unpack(buffer).view(np.uint8), np.ascontiguousarray(array).view(np.uint8))
    expected = bytearray(b"\xa5" * (n * image))
    for index in np.ndindex(shape):
        at = index[0] * image + index[1] // elements * surface + index[2] * line + index[3] * atom
        at += index[1] % elements * dtype.itemsize
        expected[at : at + dtype.itemsize] = array[index].tobytes()
    assert buffer.tobytes() == bytes(expected)


EIGHT = [each for each in PixelFormat if PixelFormat.A8B8G8R8 <= each <= PixelFormat.R8G8B8X8]
TEN = [each for each in PixelFormat if PixelFormat.A2B10G10R10 <= each <= PixelFormat.V10U10Y10A2]
SIXTEEN = [each for each in PixelFormat if PixelFormat.A16B16G16R16 <= each <= PixelFormat.A16Y16U16V16_F]


@pytest.mark.parametrize("pixel_format", [*EIGHT, PixelFormat.A8Y8U8V8, PixelFormat.V8U8Y8A8, *SIXTEEN])
@given(channels=st.integers(1, 4), height=st.integers(1, 3), width=st.integers(1, 5), gap=st.integers(0, 9))
def test_components_lie_in_the_reverse_order_of_the_formats_name(pixel_format, channels, height, width, gap):
    dtype = np.dtype(np.int8 if "8" in pixel_format.name else np.int16)
    pixel = 4 * dtype.itemsize
    line = width * pixel + gap
    layout = PixelLayout((1, channels, height, width), dtype, pixel_format, line, height * line, height * line)
    array, buffer = random_array((1, channels, height, width), dtype), np.zeros(height * line, np.uint8)
    layout.pack(array, buffer)
    assert np.array_equal(layout.unpack(buffer), array)
    letters = [letter for letter in pixel_format.name.removesuffix("_F") if letter.isalpha()][::-1]
    for _, channel, y, x in np.ndindex(array.shape):
        position = next(i for i, letter in enumerate(letters) if letter in ("RY", "GU", "BV", "AX")[channel])
        at = y * line + x * pixel + position * dtype.itemsize
        assert buffer[at : at + dtype.itemsize].tobytes() == array[0, channel, y, x].tobytes()


@pytest.mark.parametrize("pixel_format", TEN)
def test_ten_bit_components_share_a_word(pixel_format):
    values = np.array([1, 2, 3, 1], np.int16).reshape(1, 4, 1, 1)
    layout = PixelLayout((1, 4, 1, 1), np.dtype(np.int16), pixel_format, 4, 4, 4)
    buffer = np.zeros(4, np.uint8)
    layout.pack(values, buffer)
    assert np.array_equal(layout.unpack(buffer), values)
    word, shift = int(buffer.view("<u4")[0]), 0
    for letter in reversed([each for each in pixel_format.name if each.isalpha()]):
        bits = 2 if letter == "A" else 10
        assert word >> shift & ((1 << bits) - 1) == {"R": 1, "Y": 1, "G": 2, "U": 2, "B": 3, "V": 3, "A": 1}[letter]
        shift += bits


@given(
    kernels=st.integers(1, 40),
    channels=st.integers(1, 70),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    group=st.sampled_from([8, 16, 32]),
    block=st.sampled_from([8, 32, 64]),
)
def test_direct_weights_come_back(kernels, channels, rows, columns, group, block):
    weights = random_array((kernels, channels, rows, columns), np.dtype(np.int8))
    stored = np.frombuffer(pack_direct(weights, group, block), np.int8)
    unpacked = unpack_direct(stored, (kernels, rows, columns, channels), group, block)
    assert np.array_equal(unpacked, weights.transpose(0, 2, 3, 1))


@given(
    kernels=st.integers(1, 40), rows=st.integers(1, 7), columns=st.integers(1, 4), extension=st.sampled_from([1, 2, 4])
)
def test_image_weights_come_back(kernels, rows, columns, extension):
    weights = random_array((kernels, 4, rows, columns), np.dtype(np.int16))
    stored = np.frombuffer(pack_image(weights, 16, 64, extension), np.int16)
    unpacked = unpack_image(stored, (kernels, rows, 4 * columns), 16, 64, extension)
    assert np.array_equal(unpacked[:, :, 0], weights.transpose(0, 2, 3, 1).reshape(kernels, rows, -1))


@given(kernels=st.integers(1, 40), fours=st.integers(1, 5))
def test_winograd_weights_come_back(kernels, fours):
    weights = random_array((kernels, 4 * fours, 4, 4), np.dtype(np.float16))
    stored = np.frombuffer(pack_winograd(weights, 16), np.uint16)
    unpacked = unpack_winograd(stored, kernels, 4 * fours, 16)
    expected = weights.view(np.uint16).reshape(kernels, fours, 4, 4, 4).transpose(0, 1, 3, 4, 2)
    assert np.array_equal(unpacked, expected)


def described(**changes):
    fields = {
        "name": "data",
        "id": 0,
        "mem_id": 0,
        "size": 128,
        "n": 1,
        "c": 8,
        "h": 4,
        "w": 4,
        "data_format": DataFormat.NCxHWx,
        "data_type": DataType.INT8,
        "pixel_format": PixelFormat.FEATURE_X8,
        "strides": (1, 32, 128, 0, 0, 0, 0, 0),
    }
    return TensorDesc(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"data_type": DataType.FLOAT}, FormatError, "data type: must be one of INT8, INT16, HALF, got FLOAT"),
        ({"pixel_format": PixelFormat.Y8_U8V8_N444, "c": 4}, LinkError, "must be at most 3 for Y8_U8V8_N444, got 4"),
        ({"pixel_format": PixelFormat.Y8_U8V8_N444, "c": 3}, LinkError, "must have at most 128 bytes"),
        (
            {"pixel_format": PixelFormat.Y8_U8V8_N444, "c": 3, "strides": (1, 16, 32)},
            LinkError,
            "offset of the second plane: must be at least",
        ),
        ({"pixel_format": PixelFormat(60)}, FormatError, "pixel format: must be known, got 60"),
        ({"c": 0}, LinkError, "must not be empty"),
        ({"strides": (1, 64, 128)}, LinkError, "must have at most 128 bytes, got 224"),
        ({"c": 9}, LinkError, "must have at most 128 bytes, got 256"),
        ({"pixel_format": PixelFormat.R8, "c": 2}, LinkError, "must be at most 1 for R8, got 2"),
        ({"pixel_format": PixelFormat.R16, "c": 1}, FormatError, "must have 2 bytes for R16, got int8"),
    ],
)
def test_tensors_that_do_not_fit_their_memory_are_refused(changes, error, said):
    with pytest.raises(error, match=said.replace("(", r"\(")):
        tensor_layout(described(**changes), 128)


def test_the_images_of_a_batch_share_the_memory_evenly():
    layout = tensor_layout(described(n=2, size=256), 256)
    array, buffer = random_array((2, 8, 4, 4), np.dtype(np.int8)), np.zeros(256, np.uint8)
    layout.pack(array, buffer)
    assert np.array_equal(tensor_layout(described(), 128).unpack(buffer[128:]), array[1:])
