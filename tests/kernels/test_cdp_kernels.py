"""Local response normalization kernels against the specification."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.kernels import cdp
from nvdla.kernels.cdp import CdpConverter, CdpFunction, CdpTable, Priority, normalize, normalize_fp16
from nvdla.kernels.fast import cdp_int8
from nvdla.kernels.reference import cdp as reference
from nvdla.kernels.reference.floats import FP16, is_nan
from nvdla.kernels.reference.integers import convert

RANDOM = np.random.default_rng(7)
LE = RANDOM.integers(-32768, 32768, 65).astype(np.int16)
LO = RANDOM.integers(-32768, 32768, 257).astype(np.int16)


def normalized(column, width, function, icvt, ocvt, le, lo, priority):
    """One pixel by the specification: ``column`` holds the real channels, ``width`` channels come out; and the
    counters."""
    tables = (
        partial(reference.look_up, entries=LE.tolist(), table=le),
        partial(reference.look_up, entries=LO.tolist(), table=lo),
    )
    padded = [*column, *[None] * (width - len(column))]
    return reference.normalize(padded, function, icvt, ocvt, tables, priority)


def tables(bits):
    start, shift, scale = st.integers(-(1 << bits), 1 << bits), st.integers(-16, 15), st.integers(-32768, 32767)
    slopes = (scale, shift, scale, shift)
    le = st.builds(CdpTable, st.integers(0, 1), start, start, st.integers(-8, 24), st.integers(-4, 24), *slopes)
    lo = st.builds(CdpTable, st.just(0), start, start, st.just(0), st.integers(-4, 24), *slopes)
    return st.tuples(le, lo)


@pytest.mark.parametrize(("dtype", "widths"), [(np.int8, (9, 25, 8)), (np.int16, (17, 33, 16))])
@settings(max_examples=120)
@given(data=st.data())
def test_integer_normalization_follows_its_definition(dtype, widths, data):
    info = np.iinfo(dtype)
    bits = 8 * info.dtype.itemsize
    channels = data.draw(st.integers(1, 20))
    element = st.one_of(st.integers(info.min, info.max), st.sampled_from([info.min, -1, 0, 1, info.max]))
    column = data.draw(st.lists(element, min_size=channels, max_size=channels))
    flag = st.integers(0, 1)
    function = data.draw(st.builds(CdpFunction, st.integers(1, 4), flag, flag, st.just(widths[1])))
    offset, scale = st.integers(info.min, info.max), st.integers(-32768, 32767)
    icvt = data.draw(st.builds(CdpConverter, offset, scale, st.integers(0, 31), st.just(widths[0])))
    out_offset = st.integers(-(1 << 24), (1 << 24) - 1)
    ocvt = data.draw(st.builds(CdpConverter, out_offset, scale, st.integers(0, 63), st.just(widths[2])))
    le, lo = data.draw(tables(2 * bits))
    priority = data.draw(st.builds(Priority, *[st.integers(0, 1)] * 3))
    atom = 8
    surfaces = -(-channels // atom)
    garbage = RANDOM.integers(info.min, info.max, surfaces * atom, endpoint=True)
    garbage[:channels] = column
    source = garbage.astype(dtype).reshape(surfaces, 1, 1, atom)
    out = np.zeros_like(source)
    counters = normalize(source, out, channels, function, icvt, ocvt, le, lo, LE, LO, priority)
    expected, counted = normalized(column, surfaces * atom, function, icvt, ocvt, le, lo, priority)
    assert out.ravel().tolist() == expected
    assert counters.tolist() == counted


def integer_settings(bits, widths):
    """(function, input converter, output converter, (LE, LO), priority): anything that the registers can say."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    flag, scale = st.integers(0, 1), st.integers(-32768, 32767)
    function = st.builds(CdpFunction, st.integers(1, 4), flag, flag, st.just(widths[1]))
    icvt = st.builds(CdpConverter, st.integers(low, high), scale, st.integers(0, 31), st.just(widths[0]))
    out_offset = st.integers(-(1 << 24), (1 << 24) - 1)
    ocvt = st.builds(CdpConverter, out_offset, scale, st.integers(0, 63), st.just(widths[2]))
    return st.tuples(function, icvt, ocvt, tables(2 * bits), st.builds(Priority, *[st.integers(0, 1)] * 3))


def usual_settings():
    """Settings whose results are neither all 0 nor all at the rails."""
    function = st.builds(CdpFunction, st.integers(1, 4), st.just(0), st.just(0), st.just(25))
    icvt = st.builds(CdpConverter, st.integers(-4, 4), st.integers(1, 300), st.integers(0, 8), st.just(9))
    ocvt = st.builds(CdpConverter, st.integers(-99, 99), st.integers(-32768, 32767), st.integers(24, 32), st.just(8))
    return st.tuples(function, icvt, ocvt, tables(16), st.builds(Priority, *[st.integers(0, 1)] * 3))


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(usual_settings(), integer_settings(8, (9, 25, 8))),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 40), st.sampled_from([8, 32])),
    st.integers(0, 31),
    st.integers(0, 1 << 31),
)
def test_one_table_over_all_totals_gives_what_the_two_tables_give(chosen, shape, missing, seed):
    """Results and counters of the fast int8 kernel, against the general one."""
    function, icvt, ocvt, (le, lo), priority = chosen
    channels = max(1, shape[0] * shape[3] - missing)
    source = np.random.default_rng(seed).integers(-128, 128, shape, np.int8)
    answers = cdp_int8.answers(cdp_int8.totals(function, icvt), le, lo, LE, LO, priority)
    out = np.zeros_like(source)
    counters = cdp_int8.normalize_int8(source, out, channels, cdp_int8.loop_settings(function, icvt, ocvt), answers)
    expected = np.zeros_like(source)
    counted = normalize(source, expected, channels, function, icvt, ocvt, le, lo, LE, LO, priority)
    assert np.array_equal(out, expected)
    assert counters.tolist() == counted.tolist()
    column = source[:, 0, 0].reshape(-1)[:channels].tolist()
    by_pixel, _ = normalized(column, shape[0] * shape[3], function, icvt, ocvt, le, lo, priority)
    assert out[:, 0, 0].reshape(-1).tolist() == by_pixel


def test_large_cubes_are_shared_out_and_may_be_normalized_in_place():
    source = RANDOM.integers(-128, 128, (7, 61, 53, 8), np.int8)
    function, icvt, ocvt = CdpFunction(2, 0, 0, 25), CdpConverter(0, 1, 0, 9), CdpConverter(3, 20000, 29, 8)
    le, lo, priority = (
        CdpTable(0, 0, 4096, 0, 6, 0, 0, 5, 2),
        CdpTable(0, 0, 65536, 0, 8, 0, 0, 1, 4),
        Priority(0, 1, 1),
    )
    answers = cdp_int8.answers(cdp_int8.totals(function, icvt), le, lo, LE, LO, priority)
    expected = np.zeros_like(source)
    counted = normalize(source, expected, 50, function, icvt, ocvt, le, lo, LE, LO, priority)
    counters = cdp_int8.normalize_int8(source, source, 50, cdp_int8.loop_settings(function, icvt, ocvt), answers)
    assert source.size > 8 * cdp_int8.JOB
    assert np.array_equal(source, expected)
    assert counters.tolist() == counted.tolist()
    assert len(np.unique(expected)) > 100


@given(st.integers(1, 4), st.booleans(), st.integers(-128, 127), st.integers(-32768, 32767), st.integers(0, 31))
def test_no_total_is_outside_the_table(reach, no_squares, offset, scale, shift):
    icvt = CdpConverter(offset, scale, shift, 9)
    low, high = cdp_int8.totals(CdpFunction(reach, int(no_squares), 0, 25), icvt)
    inputs = [0] + [convert(x, *icvt) for x in range(-128, 128)]
    reached = inputs if no_squares else [0, *[(2 * reach + 1) * x * x for x in inputs]]
    assert (low, high) == (min(reached), max(reached))


@pytest.mark.parametrize("start", [-(1 << 37) + 1, -(1 << 37) + 50, -(1 << 31) + 30000, 20000])
@pytest.mark.parametrize("selects", [(-32, -31), (-31, -32), (-1, -32)])
def test_an_index_that_leaves_64_bits_is_counted_too(start, selects):
    """A distance of more than 31 bits, shifted left by 32: the states go round once more."""
    le, lo = (CdpTable(0, start, 0, 0, select, 9, 0, 9, 0) for select in selects)
    function, icvt, ocvt = CdpFunction(2, 0, 0, 25), CdpConverter(0, 1, 0, 9), CdpConverter(0, 9, 12, 8)
    priority = Priority(0, 1, 0)
    source = RANDOM.integers(-128, 128, (2, 5, 7, 8), np.int8)
    out, expected = np.zeros_like(source), np.zeros_like(source)
    answers = cdp_int8.answers(cdp_int8.totals(function, icvt), le, lo, LE, LO, priority)
    counters = cdp_int8.normalize_int8(source, out, 16, cdp_int8.loop_settings(function, icvt, ocvt), answers)
    counted = normalize(source, expected, 16, function, icvt, ocvt, le, lo, LE, LO, priority)
    assert np.array_equal(out, expected)
    assert counters.tolist() == counted.tolist()


def fp_column(column, width, function, flush, le, lo, le_entries, lo_entries, priority):
    words = ((le_entries.tolist(), le), (lo_entries.tolist(), lo))
    tables = tuple(partial(reference.look_up_fp16, entries=entries, table=table) for entries, table in words)
    return reference.normalize_fp16([*column, *[None] * (width - len(column))], function, flush, tables, priority)


def fp32(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


@settings(max_examples=120)
@given(st.data())
def test_fp16_normalization_rounds_where_the_hardware_does(data):
    finite = st.integers(0, 0xFFFF).filter(lambda bits: bits & 0x7C00 != 0x7C00)
    element = st.one_of(st.integers(0x2800, 0x4800), finite, st.sampled_from([0x7E00, 0xFC55, 0x7C00, 0x8000, 0]))
    channels = data.draw(st.integers(1, 12))
    column = data.draw(st.lists(element, min_size=channels, max_size=channels))
    function = data.draw(st.builds(CdpFunction, st.integers(1, 4), st.integers(0, 1), st.integers(0, 1), st.just(0)))
    limit = st.sampled_from([fp32(0), fp32(1.5), fp32(-3.25), fp32(100), fp32(2.0**-10), fp32(70000)])
    slope = (st.integers(0x2000, 0x4400), st.just(0), st.integers(0xA000, 0xC000), st.just(0))
    le = data.draw(
        st.builds(CdpTable, st.integers(0, 1), limit, limit, st.integers(-20, 8), st.integers(-8, 8), *slope)
    )
    lo = data.draw(st.builds(CdpTable, st.just(0), limit, limit, st.just(0), st.integers(-8, 8), *slope))
    priority = data.draw(st.builds(Priority, *[st.integers(0, 1)] * 3))
    flush = data.draw(st.booleans())
    entries = np.random.default_rng(3).normal(0, 2, 322).astype(np.float16).view(np.uint16)
    le_entries, lo_entries = entries[:65].copy(), entries[65:].copy()
    atom, surfaces = 4, -(-channels // 4)
    source = np.full(surfaces * atom, 0x7E00, np.uint16)
    source[:channels] = column
    source = source.reshape(surfaces, 1, 1, atom)
    out = np.zeros_like(source)
    counters, nans = normalize_fp16(source, out, channels, function, flush, le, lo, le_entries, lo_entries, priority)
    args = (surfaces * atom, function, flush, le, lo, le_entries, lo_entries, priority)
    expected, counted = fp_column(column, *args)
    assert out.ravel().tolist() == expected
    assert nans == sum(is_nan(bits, FP16) for bits in expected)
    assert counters.tolist() == counted


def test_double_rounding_of_the_slopes_is_half_away_and_bounded():
    for value_, shift, expected in [
        (5, 1, 3),
        (-5, 1, -3),
        (4, 3, 1),
        (-4, 3, -1),
        (0, 5, 0),
        (7, -2, 28),
        (1 << 62, -16, (1 << 63) - 1),
        (-(1 << 62), -16, -(1 << 63)),
    ]:
        assert cdp.double_round_half_away(value_, shift) == expected
