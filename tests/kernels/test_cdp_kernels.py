"""Local response normalisation kernels against plain Python: integers with exact fractions, fp16 with exact sums."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.float_parts import encode, expected_product, expected_sum, nan, parts, value, widened
from support.pdp_reference import half_away

from nvdla.kernels import cdp
from nvdla.kernels.cdp import CdpConverter, CdpFunction, CdpTable, Priority, normalise
from nvdla.kernels.cdp_fp16 import normalise_fp16
from nvdla.kernels.fast import cdp_int8
from nvdla.kernels.floats import FP16, FP17, FP32, fp17_to_fp16

RANDOM = np.random.default_rng(7)
LE = RANDOM.integers(-32768, 32768, 65).astype(np.int16)
LO = RANDOM.integers(-32768, 32768, 257).astype(np.int16)


def clamp(x: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, x))


def scaled(x: int, converter: CdpConverter) -> int:
    return clamp(half_away(Fraction((x - converter.offset) * converter.scale, 1 << converter.shift)), converter.bits)


def place(x: int, table: CdpTable, last: int):
    """(state, index, fraction) from the definition of the two index functions."""
    distance = x - table.start
    if distance <= 0:
        return cdp.UNDERFLOW, 0, Fraction(0)
    if table.exponential:
        exponent = distance.bit_length() - 1
        index, fraction = exponent - table.index_offset, Fraction(distance, 1 << exponent) - 1
    else:
        steps = Fraction(distance) / Fraction(2) ** table.index_select
        index = int(steps)
        fraction = steps - index
    if index < 0:
        return cdp.UNDERFLOW, 0, Fraction(0)
    return (cdp.OVERFLOW, last, Fraction(0)) if index >= last else (cdp.HIT, index, fraction)


def table_value(x: int, entries, table: CdpTable):
    last = len(entries) - 1
    state, index, fraction = place(x, table, last)
    if state == cdp.UNDERFLOW:
        low = 1 << table.index_offset if table.exponential and table.index_offset >= 0 else 0
        slope = Fraction((x - table.start - low) * table.underflow_scale) / Fraction(2) ** table.underflow_shift
        return state, clamp(int(entries[0]) + half_away(slope), 16)
    if state == cdp.OVERFLOW:
        slope = Fraction((x - table.end) * table.overflow_scale) / Fraction(2) ** table.overflow_shift
        return state, clamp(int(entries[last]) + half_away(slope), 16)
    step = (int(entries[index + 1]) - int(entries[index])) * int(fraction * 65536)
    return state, clamp(int(entries[index]) + half_away(Fraction(step, 65536)), 16)


def select(le, lo, priority: Priority):
    """The chosen value and the counter that it counts in."""
    states = le[0], lo[0]
    if states == (cdp.UNDERFLOW, cdp.UNDERFLOW):
        return (lo if priority.underflow else le)[1], cdp.LUT_UNDERFLOW
    if states == (cdp.OVERFLOW, cdp.OVERFLOW):
        return (lo if priority.overflow else le)[1], cdp.LUT_OVERFLOW
    if states.count(cdp.HIT) == 1:
        return (le[1], cdp.LE_HIT) if le[0] == cdp.HIT else (lo[1], cdp.LO_HIT)
    return (lo if priority.hybrid else le)[1], cdp.LUT_HYBRID


def normalised(column, width, function, icvt, ocvt, le, lo, priority):
    """One pixel: ``column`` holds the real channels, ``width`` channels come out; and the counters."""
    inputs = [scaled(x, icvt) for x in column] + [0] * (width - len(column))
    counters = [0] * cdp.COUNTERS
    results = []
    for channel, x in enumerate(inputs):
        near = inputs[max(channel - function.reach, 0) : channel + function.reach + 1]
        total = x if function.no_squares else sum(each * each for each in near)
        chosen, counter = select(table_value(total, LE, le), table_value(total, LO, lo), priority)
        counters[counter] += 1
        product = chosen if function.no_product else chosen * x
        results.append(scaled(product, ocvt))
        cut = (product - ocvt.offset) * ocvt.scale >> ocvt.shift
        counters[cdp.SATURATED] += abs(cut - results[-1]) > 1
    return results, counters


def tables(bits):
    start, shift, scale = st.integers(-(1 << bits), 1 << bits), st.integers(-16, 15), st.integers(-32768, 32767)
    slopes = (scale, shift, scale, shift)
    le = st.builds(CdpTable, st.integers(0, 1), start, start, st.integers(-8, 24), st.integers(-4, 24), *slopes)
    lo = st.builds(CdpTable, st.just(0), start, start, st.just(0), st.integers(-4, 24), *slopes)
    return st.tuples(le, lo)


@pytest.mark.parametrize(("dtype", "widths"), [(np.int8, (9, 25, 8)), (np.int16, (17, 33, 16))])
@settings(max_examples=120)
@given(data=st.data())
def test_integer_normalisation_follows_its_definition(dtype, widths, data):
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
    counters = normalise(source, out, channels, function, icvt, ocvt, le, lo, LE, LO, priority)
    expected, counted = normalised(column, surfaces * atom, function, icvt, ocvt, le, lo, priority)
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
    counters = cdp_int8.normalise_int8(source, out, channels, cdp_int8.loop_settings(function, icvt, ocvt), answers)
    expected = np.zeros_like(source)
    counted = normalise(source, expected, channels, function, icvt, ocvt, le, lo, LE, LO, priority)
    assert np.array_equal(out, expected)
    assert counters.tolist() == counted.tolist()


def test_large_cubes_are_shared_out_and_may_be_normalised_in_place():
    source = RANDOM.integers(-128, 128, (7, 61, 53, 8), np.int8)
    function, icvt, ocvt = CdpFunction(2, 0, 0, 25), CdpConverter(0, 1, 0, 9), CdpConverter(3, 20000, 29, 8)
    le, lo, priority = (
        CdpTable(0, 0, 4096, 0, 6, 0, 0, 5, 2),
        CdpTable(0, 0, 65536, 0, 8, 0, 0, 1, 4),
        Priority(0, 1, 1),
    )
    answers = cdp_int8.answers(cdp_int8.totals(function, icvt), le, lo, LE, LO, priority)
    expected = np.zeros_like(source)
    counted = normalise(source, expected, 50, function, icvt, ocvt, le, lo, LE, LO, priority)
    counters = cdp_int8.normalise_int8(source, source, 50, cdp_int8.loop_settings(function, icvt, ocvt), answers)
    assert source.size > 8 * cdp_int8.JOB
    assert np.array_equal(source, expected)
    assert counters.tolist() == counted.tolist()
    assert len(np.unique(expected)) > 100


@given(st.integers(1, 4), st.booleans(), st.integers(-128, 127), st.integers(-32768, 32767), st.integers(0, 31))
def test_no_total_lies_outside_the_table(reach, no_squares, offset, scale, shift):
    icvt = CdpConverter(offset, scale, shift, 9)
    low, high = cdp_int8.totals(CdpFunction(reach, int(no_squares), 0, 25), icvt)
    inputs = [0] + [scaled(x, icvt) for x in range(-128, 128)]
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
    counters = cdp_int8.normalise_int8(source, out, 16, cdp_int8.loop_settings(function, icvt, ocvt), answers)
    counted = normalise(source, expected, 16, function, icvt, ocvt, le, lo, LE, LO, priority)
    assert np.array_equal(out, expected)
    assert counters.tolist() == counted.tolist()


def fp_table(x, entries, table):
    """The fp16 table: (state, fp17), with the exact operators of the tests of the formats."""

    def slope(entry, distance, scale):
        product = expected_product(narrowed(distance), widened(scale, FP16, FP17), FP17)
        return expected_sum(product, widened(int(entry), FP16, FP17), FP17)

    last = len(entries) - 1
    distance = expected_sum(x, table.start ^ 1 << 31, FP32)
    number = None if nan(distance, FP32) else value(distance, FP32)
    state, index, fraction = cdp.UNDERFLOW, 0, Fraction(0)
    if number is not None and number > 0:
        if table.exponential:
            exponent = parts(distance, FP32)[1] - 127
            index, fraction = exponent - table.index_offset, number / Fraction(2) ** exponent - 1
        else:
            steps = number / Fraction(2) ** table.index_select
            index, fraction = int(steps), steps - int(steps)
        state = cdp.UNDERFLOW if index < 0 else cdp.OVERFLOW if index >= last else cdp.HIT
    if state == cdp.UNDERFLOW:
        if table.exponential:
            low = encode(Fraction(2) ** table.index_offset, 0, FP32)
            distance = expected_sum(x, expected_sum(table.start, low, FP32) ^ 1 << 31, FP32)
        return state, slope(entries[0], distance, table.underflow_scale)
    if state == cdp.OVERFLOW:
        return state, slope(entries[last], expected_sum(x, table.end ^ 1 << 31, FP32), table.overflow_scale)
    low, high = (widened(int(entries[i]), FP16, FP32) for i in (index, index + 1))
    step = narrowed(expected_sum(high, low ^ 1 << 31, FP32))
    part = encode(Fraction(int(fraction * 65536), 65536), 0, FP17)
    return state, expected_sum(expected_product(step, part, FP17), widened(int(entries[index]), FP16, FP17), FP17)


def narrowed(bits):
    """fp32 -> fp17, nearest even, small numbers become zero."""
    sign, _, mant = parts(bits, FP32)
    if nan(bits, FP32):
        return sign << 16 | 0x3F << 10 | mant & 0x3FF
    return encode(value(bits, FP32), sign, FP17)


def fp_column(column, width, function, flush, le, lo, le_entries, lo_entries, priority):
    inputs = [widened(0 if flush and nan(x, FP16) else x, FP16, FP17) for x in column] + [0] * (width - len(column))
    wide = [0] * 4 + [widened(x, FP17, FP32) for x in inputs] + [0] * 4
    squares = [expected_product(x, x, FP32) for x in wide]
    results = []
    for channel, x in enumerate(inputs, 4):
        total = wide[channel]
        if not function.no_squares:
            total = expected_sum(expected_sum(squares[channel - 1], squares[channel + 1], FP32), squares[channel], FP32)
            for far in range(2, function.reach + 1):
                pair = expected_sum(squares[channel - far], squares[channel + far], FP32)
                total = expected_sum(total, pair, FP32)
        chosen, _ = select(fp_table(total, le_entries, le), fp_table(total, lo_entries, lo), priority)
        if not function.no_product:
            chosen = expected_product(x, chosen, FP17)
        elif nan(x, FP17):
            chosen = x
        results.append(fp17_to_fp16(chosen))
    return results


def fp32(number: float) -> int:
    return int(np.float32(number).view(np.uint32))


@settings(max_examples=120)
@given(st.data())
def test_fp16_normalisation_rounds_where_the_hardware_does(data):
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
    counters, nans = normalise_fp16(source, out, channels, function, flush, le, lo, le_entries, lo_entries, priority)
    args = (surfaces * atom, function, flush, le, lo, le_entries, lo_entries, priority)
    expected = fp_column(column, *args)
    assert out.ravel().tolist() == expected
    assert nans == sum(nan(bits, FP16) for bits in expected)
    assert counters[1:].sum() == out.size


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
