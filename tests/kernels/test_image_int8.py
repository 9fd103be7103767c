"""Images straight to the data of dot products: what CDMA's lines and the padding around them are, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from support.image_bench import PLACES, image_bench

from nvdla.kernels.fast.image_int8 import Channel, Surroundings, image_lines
from nvdla.kernels.reference.conv import convert_input

BYTES = [name for name in PLACES if PLACES[name][1] == 8]
CONVERTERS = [
    {},
    {"CDMA__D_CVT_CFG": 1, "CDMA__D_CVT_SCALE": 1, "CDMA__D_MEAN_GLOBAL_0": 128 | 128 << 16},
    {"CDMA__D_CVT_CFG": 1 | 3 << 4, "CDMA__D_CVT_SCALE": 9, "CDMA__D_MEAN_GLOBAL_1": 100 | 5 << 16},
]


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("converter", CONVERTERS)
@pytest.mark.parametrize("depth", [3, 4])
def test_lines_are_those_of_cdma(name, signed, converter, depth):
    bench = image_bench(
        name, (9, 6), 0, CDMA__D_MEAN_FORMAT=1, CDMA__D_DATAIN_FORMAT__PIXEL_SIGN_OVERRIDE=signed, **converter
    )
    source = bench.engine.prepare(bench.groups()).source
    lines = source.read()[0][..., :depth]
    height, width, channels = lines.shape
    out = np.full((1, 9, 12, depth), 77, np.uint8)
    around = Surroundings(height, width, 0, width, 2, 0, -5)
    places = []
    for plane, at in source.places():
        view = source.views[plane]
        places.append(Channel(view.ctypes.data + at, view.strides[1], source.format.bytes_per_pixel(plane), 0))
    image_lines(around, places, source.tables(), out).run()
    expected = np.zeros((9, 12, depth), np.int8)
    expected[:, :width, :channels] = -5
    expected[2 : 2 + height, :width, :channels] = lines
    assert np.array_equal(out[0].view(np.int8) ^ np.int8(-128), np.where(rows_of(expected, height), expected, -5))


def rows_of(array, height):
    """True in the rows of the image; all others are padding from end to end."""
    inside = np.zeros(array.shape, bool)
    inside[2 : 2 + height] = True
    return inside


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize("converter", CONVERTERS[1:])
def test_tables_hold_the_specified_elements(name, signed, converter):
    bench = image_bench(
        name, (9, 6), 0, CDMA__D_MEAN_FORMAT=1, CDMA__D_DATAIN_FORMAT__PIXEL_SIGN_OVERRIDE=signed, **converter
    )
    source = bench.engine.prepare(bench.groups()).source
    chosen = source.settings.converter
    bytes_ = [byte - 256 if signed and byte > 127 else byte for byte in range(256)]
    for table, offset in zip(source.tables().tolist(), chosen.offsets, strict=False):
        assert table == [convert_input(x, offset, chosen.scale, chosen.truncate, "int8") for x in bytes_]


@pytest.mark.parametrize("left", [0, 2, 3])
@pytest.mark.parametrize("columns", [2, 4, 9, 14])
def test_pads_next_to_the_image(left, columns):
    """CDMA's pads surround the lines, then zeros follow; the result can end earlier."""
    image = np.arange(2 * 5 * 4, dtype=np.uint8).reshape(2, 5, 4)
    channels = [Channel(image.ctypes.data + c, 20, 4, 0) for c in range(4)]
    tables = np.tile(np.arange(256, dtype=np.uint8).view(np.int8), (4, 1))
    out = np.empty((1, 2, columns, 4), np.uint8)
    image_lines(Surroundings(2, 5, left, 5 + left + 1, 0, 9, 1), channels, tables, out).run()
    whole = np.zeros((2, 20, 4), np.uint8)
    whole[:, : left + 6] = 9
    whole[:, left : left + 5] = image
    assert np.array_equal(out[0] ^ 128, whole[:, :columns])


def test_formats_of_wider_channels_are_left_to_python():
    bench = image_bench("T_A2B10G10R10", (4, 4), 1)
    assert bench.engine.prepare(bench.groups()).source.tables() is None
