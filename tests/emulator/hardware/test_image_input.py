"""Image input: where each format keeps its channels, the converter, padding, and the convolution of pixel lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.convolution_layers import DATA, WEIGHTS, Bench, image_weight_bytes, program
from support.image_bench import PLACES, channel, image_bench, pixel_bytes

from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ConfigError, ScheduleError
from nvdla.loadable.enums import NAMES, PIXEL_FORMATS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("signed", [0, 1])
def test_each_channel_comes_from_its_place(name, signed):
    offset = 3
    width = 16 if PLACES[name][1] > 8 else 8
    conversion = {"CDMA__D_CVT_CFG": 1, "CDMA__D_CVT_SCALE": 1} if not name.endswith("_F") else {}
    bench = image_bench(
        name, (5, 2), 2 if name.endswith("_F") else 1, CDMA__D_PIXEL_OFFSET=offset,
        CDMA__D_DATAIN_FORMAT__PIXEL_SIGN_OVERRIDE=signed, CDMA__D_MEAN_FORMAT=1, **conversion,
        CDMA__D_MEAN_GLOBAL_0=7 | 0xFFF0 << 16, CDMA__D_MEAN_GLOBAL_1=300 | 5 << 16,
    )  # fmt: skip
    lines = bench.engine.prepare(bench.groups()).source.read()
    for y in range(2):
        for x in range(5):
            memory = pixel_bytes(bench, name, x, y, offset)
            for index, mean in enumerate((7, -16, 300, 5)[: lines.shape[3]]):
                value = channel(name, memory, index)
                if not name.endswith("_F"):
                    value -= (1 << width) if signed and value >> width - 1 else 0
                    value = max(-32768, min(32767, value - mean))
                assert lines[0, y, x, index] == value


def test_the_table_of_formats_is_complete():
    assert [form.name for form in PIXEL_FORMATS] == list(NAMES)
    assert set(PLACES) == set(NAMES)
    assert [form.channels for form in PIXEL_FORMATS] == [len(PLACES[name][0]) for name in NAMES]


def test_without_the_converter_the_bits_pass_unchanged():
    bench = image_bench("T_A8B8G8R8", (4, 1), 0, CDMA__D_MEAN_FORMAT=1, CDMA__D_MEAN_GLOBAL_0=99)
    lines = bench.engine.prepare(bench.groups()).source.read()
    assert lines.dtype == np.int8
    assert lines.tobytes() == bench.memory.view(Space.DRAM, DATA, 16).tobytes()


def test_left_and_right_padding_is_that_of_cdma_and_not_converted():
    bench = image_bench(
        "T_R8", (4, 2), 1, CDMA__D_CVT_CFG=1, CDMA__D_CVT_SCALE=3, CDMA__D_ZERO_PADDING=2 | 3 << 8,
        CDMA__D_ZERO_PADDING_VALUE=0xFFF7, CSC__D_ZERO_PADDING_VALUE=5,
    )  # fmt: skip
    lines = bench.engine.prepare(bench.groups()).source.read()[0, :, :, 0]
    assert lines.shape == (2, 9)
    assert (lines[:, :2] == -9).all()
    assert (lines[:, 6:] == -9).all()
    assert (lines[:, 2:6] % 3 == 0).all()


def test_nan_of_an_image_is_flushed_on_request_and_counted():
    bench = image_bench("T_R16_F", (4, 1), 2)
    bench.memory.view(Space.DRAM, DATA, 8).view(np.uint16)[:] = (0x7E01, 0x3C00, 0xFC00, 0xFFFF)
    source = bench.engine.prepare(bench.groups()).source
    assert source.read().reshape(-1).tolist() == [0x7E01, 0x3C00, 0xFC00, 0xFFFF]
    bench.write(CDMA__D_NAN_FLUSH_TO_ZERO=1)
    source = bench.engine.prepare(bench.groups()).source
    assert source.read().reshape(-1).tolist() == [0, 0x3C00, 0xFC00, 0]
    assert (source.specials.nans, source.specials.infinities) == (2, 1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([0, 1, 2]), st.sampled_from(["nv_small", "nv_large", "nv_full"]))
def test_image_convolution_is_the_definition(seed, extension, name):
    random = np.random.default_rng(seed)
    pick = lambda low, high: int(random.integers(low, high + 1))  # noqa: E731
    block = Bench(name).config.mac_atomic_c
    columns = pick(1, 5) if extension == 0 else min(pick(1, 4), block >> extension >> 2)
    if columns == 0:
        return
    rows, kernels, stride = pick(1, 5), pick(1, 9), (pick(1, 3), pick(1, 3))
    out, pad = (pick(1, 4), pick(1, 3)), (pick(0, columns - 1), pick(0, rows - 1))
    size = [max(1, (out[a] - 1) * stride[a] + (columns, rows)[a] - pad[a]) for a in range(2)]
    bench = Bench(name, 1 << 16)
    pixels = random.integers(-128, 128, (size[1], size[0], 4)).astype(np.int8)
    weights = random.integers(-128, 128, (kernels, rows, 1, columns * 4)).astype(np.int8)
    for y in range(size[1]):
        bench.memory.view(Space.DRAM, DATA + y * 256, size[0] * 4)[:] = pixels[y].reshape(-1).view(np.uint8)
    image = image_weight_bytes(weights, bench.config.mac_atomic_k, block, 1 << extension)
    bench.memory.view(Space.DRAM, WEIGHTS, len(image))[:] = np.frombuffer(image, np.uint8)
    program(
        bench, data=(*size, 4), kernel=(1, rows, columns * 4), output=(*out, kernels), stride=stride, dilation=(1, 1),
        padding=pad, pad_value=-3, line_stride=256, surface_stride=0,
    )  # fmt: skip
    bench.write(
        CDMA__D_DATAIN_FORMAT=1 | NAMES.index("T_A8B8G8R8") << 8, CSC__D_DATAIN_FORMAT=1,
        CSC__D_POST_Y_EXTENSION=extension, CDMA__D_ZERO_PADDING=pad[0] | pad[1] << 16 | 31 << 24,
    )  # fmt: skip
    (result,) = bench.run()
    cube = np.pad(pixels.astype(int), ((pad[1], rows), (pad[0], 0), (0, 0)), constant_values=-3)
    for y in range(out[1]):
        for x in range(out[0]):
            top, left = y * stride[1], x * stride[0]
            window = cube[top : top + rows, left : left + columns].reshape(rows, 1, columns * 4)
            for k in range(kernels):
                atom = result.shape[3]
                assert result[k // atom, y, x, k % atom] == (window * weights[k].astype(int)).sum()


@pytest.mark.parametrize(
    ("error", "text", "registers"),
    [
        (ConfigError, "PIXEL_FORMAT: must be 0 to 35, got 40", {"CDMA__D_DATAIN_FORMAT__PIXEL_FORMAT": 40}),
        (ConfigError, "pitch linear", {"CDMA__D_DATAIN_FORMAT__PIXEL_MAPPING": 1}),
        (ConfigError, "16-bit elements", {"CDMA__D_DATAIN_FORMAT__PIXEL_FORMAT": 6}),
        (ScheduleError, "has 1 channels", {"CDMA__D_DATAIN_FORMAT__PIXEL_FORMAT": 0}),
        (ConfigError, "must be at least 9x1", {"CSC__D_DATAOUT_SIZE_0": 8, "CACC__D_DATAOUT_SIZE_0": 8}),
    ],
)
def test_images_that_cannot_run_are_refused(error, text, registers):
    bench = image_bench("T_A8B8G8R8", (4, 1), 0, **registers)
    with pytest.raises(error, match=text):
        bench.run()
