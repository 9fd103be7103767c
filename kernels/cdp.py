"""CDP arithmetic on integers and in fp16.

Source: cmod/cdp/NV_NVDLA_cdp.cpp (lookup_lut_int8 :1191, lookup_lut :1548), cmod/hls/cdp_libs. The tables are computed
there with C integers and doubles, not with the fixed-point library; the same is done here, with the shift counts that
its processor takes modulo 64 (int64) and 32 (int).

Source: cmod/hls_wrapper/cdp_hls_wrapper.cpp. Operand orders are the hardware's: they decide which NaN and which zero
comes out.
"""

from __future__ import annotations

import numpy as np

from nvdla.kernels.floats import (
    FP16,
    FP17,
    FP32,
    fp16_to_fp17,
    fp16_to_fp32,
    fp17_to_fp16,
    fp17_to_fp32,
    fp32_to_fp17,
    fp32_to_int_fraction,
    fp_add,
    fp_mul,
    fp_sub,
    fraction_to_fp17,
    is_nan,
)
from nvdla.kernels.integers import convert, int_log2, int_shift_right, saturate, wrap
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.variants import in_pieces
from nvdla.kernels.reference.cdp import (
    COUNTERS,
    HIT,
    LE_HIT,
    LO_HIT,
    LUT_HYBRID,
    LUT_OVERFLOW,
    LUT_UNDERFLOW,
    OVERFLOW,
    SATURATED,
    UNDERFLOW,
    CdpConverter,
    CdpFunction,
    CdpTable,
    Priority,
)

HALO = 4  # channels that the widest window reaches to either side


@njit(cache=True, nogil=True, inline="always")
def double_round_half_away(value: int, shift: int) -> int:
    """value / 2**shift rounded half away from zero in double precision (NV_NVDLA_cdp.cpp:1122), -16 <= shift <= 16."""
    quotient = np.float64(value) / 2.0**shift
    if quotient >= 9223372036854775808.0:
        return np.int64(0x7FFFFFFFFFFFFFFF)
    if quotient <= -9223372036854775808.0:
        return np.int64(-0x8000000000000000)
    return np.int64(quotient + 0.5) if quotient > 0 else np.int64(quotient - 0.5)


@njit(cache=True, nogil=True, inline="always")
def _extrapolate(entry: int, distance: int, scale: int, shift: int) -> int:
    """A table's last entry and its slope times the distance from there."""
    return saturate(entry + saturate(double_round_half_away(distance * scale, shift), 56), 16)


@njit(cache=True, nogil=True, inline="always")
def _interpolate(entries: np.ndarray, index: int, fraction: int) -> int:
    """Between two entries; ``fraction`` has 16 bits."""
    rise = (np.int64(entries[index + 1]) - np.int64(entries[index])) * fraction
    return saturate(np.int64(entries[index]) + int_shift_right(rise, 16, 56), 16)


@njit(cache=True, nogil=True, inline="always")
def _scale_fraction(remainder: int, bits: int) -> int:
    """A remainder of ``bits`` bits as a fraction of 16, the rest cut off."""
    return remainder >> ((bits - 16) & 63) if bits > 16 else remainder << (16 - bits)


@njit(cache=True, nogil=True)
def look_up(x: int, entries: np.ndarray, table: CdpTable) -> tuple[int, int]:
    """One table: (HIT, UNDERFLOW or OVERFLOW, value of 16 bits). ``entries``: int16, one more than indices."""
    last = entries.size - 1
    distance = x - table.start
    low = np.int64(0)
    if table.exponential:
        exponent = np.int64(int_log2(distance)) if distance > 0 else np.int64(0)
        index = exponent - table.index_offset
        fraction = _scale_fraction(distance - (np.int64(1) << exponent), exponent)
        low = np.int64(1) << (table.index_offset & 63) if table.index_offset >= 0 else low
    elif table.index_select < 0:
        index = distance << (-table.index_select & 63)
        fraction = np.int64(0)
    else:
        index = distance >> (table.index_select & 63)
        modulus = np.int64(1) << (table.index_select & 31)
        fraction = _scale_fraction(distance & (modulus - 1), table.index_select)
    if index < 0 or distance <= 0:
        below = _extrapolate(np.int64(entries[0]), distance - low, table.underflow_scale, table.underflow_shift)
        return UNDERFLOW, below
    if index >= last:
        beyond = _extrapolate(np.int64(entries[last]), x - table.end, table.overflow_scale, table.overflow_shift)
        return OVERFLOW, beyond
    return HIT, _interpolate(entries, index, fraction)


@njit(cache=True, nogil=True, inline="always")
def choose(le_state: int, lo_state: int, priority: Priority, counters: np.ndarray) -> bool:
    """True if the LO table's result is taken; counts why."""
    if le_state == UNDERFLOW and lo_state == UNDERFLOW:
        counters[LUT_UNDERFLOW] += 1
        return priority.underflow != 0
    if le_state == OVERFLOW and lo_state == OVERFLOW:
        counters[LUT_OVERFLOW] += 1
        return priority.overflow != 0
    if (le_state == HIT) != (lo_state == HIT):
        counters[LE_HIT if le_state == HIT else LO_HIT] += 1
        return lo_state == HIT
    counters[LUT_HYBRID] += 1
    return priority.hybrid != 0


@njit(cache=True, nogil=True, inline="always")
def _convert_out(x: int, converter: CdpConverter, counters: np.ndarray) -> int:
    """The output converter; counts what its saturation changes by more than rounding (IntShiftRightSat)."""
    result = convert(x, converter.offset, converter.scale, converter.shift, converter.bits)
    if abs(((x - converter.offset) * converter.scale >> converter.shift) - result) > 1:
        counters[SATURATED] += 1
    return result


@njit(cache=True, nogil=True)
def _normalize_column(
    column: np.ndarray,
    squares: np.ndarray,
    results: np.ndarray,
    function: CdpFunction,
    le: CdpTable,
    lo: CdpTable,
    le_entries: np.ndarray,
    lo_entries: np.ndarray,
    priority: Priority,
    converter: CdpConverter,
    counters: np.ndarray,
) -> None:
    """All channels of one pixel. ``column`` and ``squares`` have HALO zeros at both ends."""
    for channel in range(results.size):
        x = column[channel + HALO]
        total = x
        if not function.no_squares:
            total = np.int64(0)
            for c in range(channel + HALO - function.reach, channel + HALO + function.reach + 1):
                total += squares[c]
        le_state, le_value = look_up(total, le_entries, le)
        lo_state, lo_value = look_up(total, lo_entries, lo)
        value = lo_value if choose(le_state, lo_state, priority, counters) else le_value
        if not function.no_product:
            value = wrap(value * x, function.product_bits)
        results[channel] = _convert_out(value, converter, counters)


@njit(cache=True, nogil=True)
def normalize(
    source: np.ndarray,
    out: np.ndarray,
    channels: int,
    function: CdpFunction,
    icvt: CdpConverter,
    ocvt: CdpConverter,
    le: CdpTable,
    lo: CdpTable,
    le_entries: np.ndarray,
    lo_entries: np.ndarray,
    priority: Priority,
) -> np.ndarray:
    """Local response normalization of int8 or int16 cubes source, out (S, H, W, A); returns the counters, int64.

    Channels from ``channels`` on count as 0 after the input converter and are computed and written like the others.
    """
    surfaces, height, width, atom = source.shape
    column = np.zeros(surfaces * atom + 2 * HALO, np.int64)
    squares = np.zeros(surfaces * atom + 2 * HALO, np.int64)
    results = np.zeros(surfaces * atom, np.int64)
    counters = np.zeros(COUNTERS, np.int64)
    for h in range(height):
        for w in range(width):
            for channel in range(channels):
                x = np.int64(source[channel // atom, h, w, channel % atom])
                x = convert(x, icvt.offset, icvt.scale, icvt.shift, icvt.bits)
                column[channel + HALO] = x
                squares[channel + HALO] = x * x
            _normalize_column(
                column, squares, results, function, le, lo, le_entries, lo_entries, priority, ocvt, counters
            )
            for channel in range(results.size):
                out[channel // atom, h, w, channel % atom] = results[channel]
    return counters


# The conversions of the floats module are inlined at every use; these functions compile once.


@njit(cache=True, nogil=True)
def _half_to_fp17(bits: int) -> int:
    return fp16_to_fp17(bits)


@njit(cache=True, nogil=True)
def _half_to_single(bits: int) -> int:
    return fp16_to_fp32(bits)


@njit(cache=True, nogil=True)
def _fp17_to_single(bits: int) -> int:
    return fp17_to_fp32(bits)


@njit(cache=True, nogil=True)
def _single_to_fp17(bits: int) -> int:
    return fp32_to_fp17(bits)


@njit(cache=True, nogil=True)
def _subtract(a: int, b: int) -> int:
    return fp_sub(a, b, FP32)


COST = 100
"""Nanoseconds per element, measured."""
_INDEX_BITS = 30  # enough: the tables end at 64 and 256
_FRACTION_BITS = 16


@njit(cache=True, nogil=True, inline="always")
def _power_of_two(exponent: int) -> int:
    """2**exponent as fp32, 0 for exponents of -127 and less (:308)."""
    return np.int64(0) if exponent <= -127 else np.int64(exponent + 127) << 23


@njit(cache=True, nogil=True, inline="always")
def _extrapolate_fp16(entry: int, distance: int, scale: int) -> int:
    """Product first, then the entry: fp17 (:346, :370)."""
    product = fp_mul(_single_to_fp17(distance), _half_to_fp17(scale), FP17)
    return fp_add(product, _half_to_fp17(entry), FP17)


@njit(cache=True, nogil=True)
def look_up_fp16(x: int, entries: np.ndarray, table: CdpTable) -> tuple[int, int]:
    """One table: (HIT, UNDERFLOW or OVERFLOW, fp17). ``x``: fp32; ``entries``: uint16.

    Starts and ends in ``table`` are fp32, slope scales fp16 bit patterns.
    """
    last = entries.size - 1
    distance = _subtract(x, table.start)
    below = distance <= 0 or distance >> 31 != 0 or is_nan(distance, FP32)
    index, fraction = np.int64(0), np.int64(0)
    if not below and table.exponential:
        index = (distance >> 23) - 127 - table.index_offset
        fraction = (distance >> 7) & 0xFFFF
        below = index < 0
    elif not below:
        index, fraction = fp32_to_int_fraction(distance, table.index_select, _INDEX_BITS, _FRACTION_BITS)
    if below:
        if table.exponential:
            distance = _subtract(x, fp_add(table.start, _power_of_two(table.index_offset), FP32))
        return UNDERFLOW, _extrapolate_fp16(np.int64(entries[0]), distance, table.underflow_scale)
    if index >= last:
        distance = _subtract(x, table.end)
        return OVERFLOW, _extrapolate_fp16(np.int64(entries[last]), distance, table.overflow_scale)
    entry, following = np.int64(entries[index]), np.int64(entries[index + 1])
    rise = _single_to_fp17(_subtract(_half_to_single(following), _half_to_single(entry)))
    rise = fp_mul(rise, fraction_to_fp17(fraction, _FRACTION_BITS), FP17)
    return HIT, fp_add(rise, _half_to_fp17(entry), FP17)


@njit(cache=True, nogil=True, inline="always")
def _sum_of_squares(squares: np.ndarray, center: int, reach: int) -> int:
    """Add the adjacent squares pairwise, the nearest first (:560)."""
    total = fp_add(squares[center - 1], squares[center + 1], FP32)
    total = fp_add(total, squares[center], FP32)
    for distance in range(2, reach + 1):
        pair = fp_add(squares[center - distance], squares[center + distance], FP32)
        total = fp_add(total, pair, FP32)
    return total


@njit(cache=True, nogil=True)
def _normalize_column_fp16(
    column: np.ndarray,
    squares: np.ndarray,
    results: np.ndarray,
    function: CdpFunction,
    le: CdpTable,
    lo: CdpTable,
    le_entries: np.ndarray,
    lo_entries: np.ndarray,
    priority: Priority,
    counters: np.ndarray,
) -> int:
    """All channels of one pixel; returns the NaNs among the results."""
    nans = 0
    for channel in range(results.size):
        x = column[channel + HALO]
        total = _fp17_to_single(x) if function.no_squares else _sum_of_squares(squares, channel + HALO, function.reach)
        le_state, le_value = look_up_fp16(total, le_entries, le)
        lo_state, lo_value = look_up_fp16(total, lo_entries, lo)
        value = lo_value if choose(le_state, lo_state, priority, counters) else le_value
        if not function.no_product:
            value = fp_mul(x, value, FP17)
        elif is_nan(x, FP17):
            value = x
        result = fp17_to_fp16(value)
        nans += is_nan(result, FP16)
        results[channel] = result
    return nans


@in_pieces()
def _line(
    h: int,
    source: np.ndarray,
    out: np.ndarray,
    channels: int,
    function: CdpFunction,
    flush_nan: bool,
    le: CdpTable,
    lo: CdpTable,
    le_entries: np.ndarray,
    lo_entries: np.ndarray,
    priority: Priority,
    counters: np.ndarray,
    nans: np.ndarray,
) -> None:
    """Line ``h`` of :func:`normalize_fp16`."""
    surfaces, _, width, atom = source.shape
    column = np.zeros(surfaces * atom + 2 * HALO, np.int64)
    squares = np.zeros(surfaces * atom + 2 * HALO, np.int64)
    results = np.zeros(surfaces * atom, np.int64)
    nan_count = 0
    for w in range(width):
        for channel in range(channels):
            bits = np.int64(source[channel // atom, h, w, channel % atom])
            if flush_nan and is_nan(bits, FP16):
                bits = np.int64(0)
            x = _half_to_fp17(bits)
            wide = _fp17_to_single(x)
            column[channel + HALO] = x
            squares[channel + HALO] = fp_mul(wide, wide, FP32)
        nan_count += _normalize_column_fp16(
            column, squares, results, function, le, lo, le_entries, lo_entries, priority, counters[h]
        )
        for channel in range(results.size):
            out[channel // atom, h, w, channel % atom] = results[channel]
    nans[h] = nan_count


def normalize_fp16(
    source: np.ndarray,
    out: np.ndarray,
    channels: int,
    function: CdpFunction,
    flush_nan: bool,
    le: CdpTable,
    lo: CdpTable,
    le_entries: np.ndarray,
    lo_entries: np.ndarray,
    priority: Priority,
) -> tuple[np.ndarray, int]:
    """Local response normalization of fp16 bit patterns, uint16 (S, H, W, A); returns (counters, output NaNs).

    Channels from ``channels`` on are +0. ``flush_nan``: input NaNs become +0.
    """
    height = source.shape[1]
    counters, nans = np.zeros((height, COUNTERS), np.int64), np.zeros(height, np.int64)
    tables = (le, lo, le_entries, lo_entries, priority)
    arguments = (source, out, channels, function, flush_nan, *tables, counters, nans)
    _line.for_work(COST * source.size, height, *arguments)
    return counters.sum(axis=0), int(nans.sum())
