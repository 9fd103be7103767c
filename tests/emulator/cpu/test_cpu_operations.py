"""The CPU tasks' arithmetic against slow plain Python."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla.emulator.cpu import power, softmax
from nvdla.emulator.cpu.operation import CpuBuffer, saturate_int8, to_half
from nvdla.errors import DescriptorError
from nvdla.loadable.descriptors.enums import EmuFormat, EmuOpType

FORMATS = {EmuFormat.FF16: np.dtype(np.float16), EmuFormat.INT8: np.dtype(np.int8), EmuFormat.INT8_8: np.dtype(np.int8)}
any_float = st.floats(width=32, allow_nan=False)


def plain_half(value: float) -> int:
    """Bits of the half nearest to a float32, ties away from zero, by exact integers."""
    sign = 0x8000 if math.copysign(1.0, value) < 0 else 0
    magnitude = abs(value)
    if math.isinf(magnitude):
        return sign | 0x7C00
    numerator, denominator = magnitude.as_integer_ratio()
    exponent = max(math.frexp(magnitude)[1] - 1, -14) if magnitude else -14
    shift = exponent - 10  # one unit in the last place is 2^shift
    scaled = (numerator << max(-shift, 0), denominator << max(shift, 0))
    units = (2 * scaled[0] + scaled[1]) // (2 * scaled[1])
    bits = units + ((exponent + 14) << 10) if exponent > -14 or units >= 0x400 else units
    return sign | min(bits, 0x7C00)


@given(st.lists(any_float, min_size=1, max_size=20))
def test_halves_round_to_the_nearest_with_ties_away_from_zero(values):
    array = np.array(values, np.float32)
    expected = [plain_half(float(value)) for value in array]
    assert to_half(array).view(np.uint16).tolist() == expected


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0.0, 0),
        (-0.0, 0x8000),
        (1 + 2**-11, 0x3C01),  # a tie: numpy would give 0x3c00
        (2**-24, 1),
        (2**-25, 1),  # half of the smallest
        (2**-26, 0),
        (1.2e-8, 0),
        (2**-14 - 2**-26, 0x0400),
        (65504, 0x7BFF),
        (65519.99, 0x7BFF),
        (65520, 0x7C00),
        (1e30, 0x7C00),
        (-math.inf, 0xFC00),
    ],
)
def test_corner_values_of_halves(value, bits):
    assert int(to_half(np.array([value], np.float32)).view(np.uint16)[0]) == bits


@given(st.lists(st.floats(width=32), max_size=20))
def test_int8_saturates_and_cuts_towards_zero(values):
    def plain(value):
        if math.isnan(value):
            return 127
        return int(max(min(value, 127.0), -128.0))

    assert saturate_int8(np.array(values, np.float32)).tolist() == [plain(value) for value in values]


def test_expf_is_the_c_librarys():
    name = ctypes.util.find_library("m")
    if not name or "libm.so.6" not in name:
        pytest.skip("the GNU C library's libm is not there to compare with")
    expf = ctypes.CDLL(name).expf
    expf.restype, expf.argtypes = ctypes.c_float, [ctypes.c_float]
    rng = np.random.default_rng(3)
    values = np.concatenate([-rng.exponential(8, 20000), rng.uniform(-110, 0, 5000), np.arange(-700, 1) / 64])
    values = values.astype(np.float32)
    expected = np.array([expf(float(value)) for value in values], np.float32)
    # A library without fused multiply-add may differ where the result is within 0.002 of a tie.
    assert np.count_nonzero(softmax.exp32(values) != expected) <= 5


def test_expf_of_infinity_is_zero():
    assert softmax.exp32(np.array([-np.inf], np.float32)).tolist() == [0.0]


def buffer(format_, width, height, channels, data=None, line_gap=0):
    dtype = FORMATS[format_]
    atom = 8 if format_ == EmuFormat.INT8_8 else 32
    line = width * atom + line_gap
    surfaces = -(-channels * dtype.itemsize // atom)
    if data is None:
        data = np.zeros(surfaces * height * line, np.uint8)
    return CpuBuffer("test", data, format_, dtype, atom, width, height, channels, line, height * line)


def plain_softmax(values):
    """As the C code: float maximum, sum in order, every step rounded to float32."""
    exponentials = [float(each) for each in softmax.exp32(np.array(values, np.float32) - np.float32(max(values)))]
    total = np.float32(0)
    for each in exponentials:
        total = np.float32(total + np.float32(each))
    return [plain_half(float(np.float32(each) / total)) for each in exponentials]


@given(st.lists(st.integers(-2000, 2000), min_size=1, max_size=40))
def test_softmax_in_half_precision(raw):
    values = np.array(raw, np.float32) / 64
    source = buffer(EmuFormat.FF16, 1, 1, len(raw))
    source.line(len(raw))[:] = values
    destination = buffer(EmuFormat.FF16, 1, 1, len(raw))
    softmax.run(None, (1.0, 1.0), source, destination)
    assert destination.line(len(raw)).view(np.uint16).tolist() == plain_softmax(values.tolist())


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=40), st.sampled_from([0.05, 0.11, 1.0]))
def test_softmax_in_int8_goes_through_halves(raw, scale):
    source = buffer(EmuFormat.INT8_8, 1, 1, len(raw))
    source.line(len(raw))[:] = raw
    destination = buffer(EmuFormat.INT8_8, 1, 1, len(raw))
    softmax.run(None, (scale, 1 / 127), source, destination)

    def half(bits):
        return struct.unpack("<e", struct.pack("<H", bits))[0]

    scaled = [half(plain_half(float(np.float32(value) * np.float32(scale)))) for value in raw]
    expected = [
        int(max(min(float(np.float32(half(bits)) / np.float32(1 / 127)), 127), -128)) for bits in plain_softmax(scaled)
    ]
    assert destination.line(len(raw)).tolist() == expected


def test_softmax_ignores_strides_and_takes_channels_from_the_start():
    source, destination = buffer(EmuFormat.INT8, 2, 1, 40), buffer(EmuFormat.INT8, 2, 1, 40)
    source.data[:40] = np.arange(40)
    softmax.run(None, (0.1, 0.01), source, destination)
    assert destination.data[:40].any()
    assert not destination.data[40:].any()


@pytest.mark.parametrize("format_", list(FORMATS))
def test_power_visits_every_element_and_leaves_the_padding(format_):
    operation = SimpleNamespace(power=2.0, scale=0.5, shift=1.0)
    source, destination = buffer(format_, 3, 2, 20, line_gap=32), buffer(format_, 3, 2, 20, line_gap=32)
    source.data[:] = np.random.default_rng(1).integers(0, 60, source.data.size)
    destination.data[:] = 0x77
    power.run(operation, (0.25, 0.5), source, destination)
    values, results = source.cube(), destination.cube()
    elements = values.shape[3]
    for (surface, y, x, element), value in np.ndenumerate(values):
        got = results[surface, y, x, element]
        if surface * elements + element >= 20:
            assert got.tobytes() == b"\x77" * got.itemsize
            continue
        real = np.float32(value) * (np.float32(0.25) if format_ != EmuFormat.FF16 else np.float32(1))
        base = np.float32(1.0) + np.float32(0.5) * real
        wanted = np.float32(float(base) ** 2)
        if format_ == EmuFormat.FF16:
            assert got.view(np.uint16) == plain_half(float(wanted))
        else:
            assert got == int(max(min(float(wanted / np.float32(0.5)), 127), -128))


def test_a_buffer_that_leaves_its_memory_is_refused():
    small = buffer(EmuFormat.INT8, 4, 4, 32, data=np.zeros(100, np.uint8))
    with pytest.raises(DescriptorError, match="must be at most 100, got"):
        small.cube()
    with pytest.raises(DescriptorError, match=r"must be at least 101 bytes \(101 elements\), got 100"):
        small.line(101)


DOUBLE = """
from nvdla.loadable.descriptors.enums import EmuOpType

TYPE = EmuOpType.POWER
OF_LANES = IN_LINE = True


def run(operation, scales, source, destination):
    destination.line(source.channels)[:] = 2 * source.line(source.channels)
"""


def test_a_new_operation_is_one_new_file(tmp_path, monkeypatch):
    """A file next to the others is what CPU tasks run, and whose reads and writes are known."""
    from nvdla.emulator import cpu
    from nvdla.emulator.cpu import operation as registry
    from nvdla.emulator.cpu.task import CpuOperation

    (tmp_path / "doubling.py").write_text(DOUBLE)
    monkeypatch.setattr(cpu, "__path__", [str(tmp_path)])
    registry.operations.cache_clear()
    try:
        assert set(registry.operations()) == {EmuOpType.POWER}
        assert registry.computes_in_line(EmuOpType.POWER)
        source, destination = (
            buffer(EmuFormat.INT8, 1, 1, 3, np.array([1, -2, 3], np.int8).view(np.uint8)) for _ in range(2)
        )
        CpuOperation(0, EmuOpType.POWER, None, (1.0, 1.0), source, destination).run()
        assert destination.line(3).tolist() == [2, -4, 6]
    finally:
        registry.operations.cache_clear()
