"""The softmax of the CPU task, compiled and with numpy, against the specification."""

import numpy as np
import pytest

from nvdla.emulator.cpu import softmax
from nvdla.emulator.cpu.operation import CpuBuffer
from nvdla.kernels.reference import softmax as reference
from nvdla.loadable.descriptors.enums import EmuFormat


def buffers(values, channels):
    source, target = np.zeros(2048, np.uint8), np.zeros(2048, np.uint8)
    source[: values.size] = values.view(np.uint8)
    counts = (values.size, channels)
    return [
        CpuBuffer("test", data, EmuFormat.INT8, np.dtype(np.int8), 32, 1, 1, count, 32, 32)
        for data, count in zip((source, target), counts, strict=True)
    ]


@pytest.mark.parametrize("scale", [0.05, 0.11, 1.0, 0.0327, 3.0, 1e-7, -0.2, 600.0])
@pytest.mark.parametrize("out_scale", [1 / 127, 0.00028, 1e-12, -0.01, 0.5])
@pytest.mark.parametrize("count", [1, 2, 10, 256, 1000])
def test_bytes_are_those_of_numpy(scale, out_scale, count):
    random = np.random.default_rng(count)
    for spread in (1, 6, 60, 128):
        values = random.integers(-spread, spread, count).astype(np.int8)
        source, expected = buffers(values, max(1, count - 1))
        softmax.run(None, (scale, out_scale), source, expected)
        _, found = buffers(values, max(1, count - 1))
        record = softmax.record(None, (scale, out_scale), source, found)
        if record is None:
            assert not abs(scale * 128) < 65520
            continue
        record.run()
        assert np.array_equal(found.data, expected.data)
        specified = reference.softmax_int8(values.tolist(), scale, out_scale)[: found.channels]
        assert found.data[: found.channels].view(np.int8).tolist() == specified


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_halves_are_normalized_as_specified(count):
    values = (np.random.default_rng(count).standard_normal(count) * 9).astype(np.float16).astype(np.float32)
    assert softmax.softmax(values).tolist() == reference.softmax(values.tolist())


@pytest.mark.parametrize("scales", [(0.1, 0.0), (np.inf, 0.1), (0.1, np.nan)])
def test_what_could_be_no_number_is_left_to_numpy(scales):
    source, target = buffers(np.ones(4, np.int8), 4)
    assert softmax.record(None, scales, source, target) is None
