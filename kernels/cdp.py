"""Integer local response normalisation: converter in, sum of squares over channels, two lookup tables, product,
converter out.

Source: cmod/cdp/NV_NVDLA_cdp.cpp (lookup_lut_int8 :1191, lookup_lut :1548), cmod/hls/cdp_libs. The tables are computed
there with C integers and doubles, not with the fixed-point library; the same is done here, with the shift counts that
its processor takes modulo 64 (int64) and 32 (int).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nvdla.kernels.integers import convert, int_log2, int_shift_right, saturate, wrap
from nvdla.kernels.jit.compilation import njit

HIT, UNDERFLOW, OVERFLOW = 0, 1, 2
HALO = 4  # channels that the widest window reaches to either side

# Positions in the array of counters.
SATURATED, LUT_UNDERFLOW, LUT_OVERFLOW, LUT_HYBRID, LE_HIT, LO_HIT, COUNTERS = range(7)


class CdpConverter(NamedTuple):
    """(x - offset) * scale / 2**shift in ``bits`` bits."""

    offset: int
    scale: int
    shift: int
    bits: int


class CdpTable(NamedTuple):
    """Where a table begins and ends, how an index is made, and the slopes outside. ``index_offset``: exponent mode."""

    exponential: int
    start: int
    end: int
    index_offset: int
    index_select: int
    underflow_scale: int
    underflow_shift: int
    overflow_scale: int
    overflow_shift: int


class Priority(NamedTuple):
    """1 = the LO table's result is taken when both underflow, both overflow, or neither alone hits."""

    underflow: int
    overflow: int
    hybrid: int


class CdpFunction(NamedTuple):
    """``reach``: channels to either side, 1 to 4; ``product_bits``: width of table value times input."""

    reach: int
    no_squares: int
    no_product: int
    product_bits: int


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
def _normalise_column(
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
def normalise(
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
    """Local response normalisation of int8 or int16 cubes source, out (S, H, W, A); returns the counters, int64.

    Channels behind the last of ``channels`` are 0 after the input converter, whatever lies in memory, and are computed
    and written like the others.
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
            _normalise_column(
                column, squares, results, function, le, lo, le_entries, lo_entries, priority, ocvt, counters
            )
            for channel in range(results.size):
                out[channel // atom, h, w, channel % atom] = results[channel]
    return counters
