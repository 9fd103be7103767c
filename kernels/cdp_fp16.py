"""fp16 local response normalisation: fp17 data, fp32 squares and sums, fp17 table values.

Source: cmod/hls_wrapper/cdp_hls_wrapper.cpp. Operand orders are the hardware's: they decide which NaN and which zero
comes out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.kernels.cdp import COUNTERS, HALO, HIT, OVERFLOW, UNDERFLOW, CdpFunction, CdpTable, Priority, choose
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
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share

# The conversions of the format module are expanded wherever they stand; called, they compile once.


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
"""Nanoseconds an element, measured."""
_INDEX_BITS = 30  # enough: the tables end at 64 and 256
_FRACTION_BITS = 16


@njit(cache=True, nogil=True, inline="always")
def _power_of_two(exponent: int) -> int:
    """2**exponent as fp32, 0 for exponents of -127 and less (:308)."""
    return np.int64(0) if exponent <= -127 else np.int64(exponent + 127) << 23


@njit(cache=True, nogil=True, inline="always")
def _extrapolate(entry: int, distance: int, scale: int) -> int:
    """Product first, then the entry: fp17 (:346, :370)."""
    product = fp_mul(_single_to_fp17(distance), _half_to_fp17(scale), FP17)
    return fp_add(product, _half_to_fp17(entry), FP17)


@njit(cache=True, nogil=True)
def look_up(x: int, entries: np.ndarray, table: CdpTable) -> tuple[int, int]:
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
        return UNDERFLOW, _extrapolate(np.int64(entries[0]), distance, table.underflow_scale)
    if index >= last:
        distance = _subtract(x, table.end)
        return OVERFLOW, _extrapolate(np.int64(entries[last]), distance, table.overflow_scale)
    entry, following = np.int64(entries[index]), np.int64(entries[index + 1])
    rise = _single_to_fp17(_subtract(_half_to_single(following), _half_to_single(entry)))
    rise = fp_mul(rise, fraction_to_fp17(fraction, _FRACTION_BITS), FP17)
    return HIT, fp_add(rise, _half_to_fp17(entry), FP17)


@njit(cache=True, nogil=True, inline="always")
def _sum_of_squares(squares: np.ndarray, centre: int, reach: int) -> int:
    """The neighbours pairwise, the nearest first (:560)."""
    total = fp_add(squares[centre - 1], squares[centre + 1], FP32)
    total = fp_add(total, squares[centre], FP32)
    for distance in range(2, reach + 1):
        pair = fp_add(squares[centre - distance], squares[centre + distance], FP32)
        total = fp_add(total, pair, FP32)
    return total


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
    counters: np.ndarray,
) -> int:
    """All channels of one pixel; returns the NaNs among the results."""
    nans = 0
    for channel in range(results.size):
        x = column[channel + HALO]
        total = _fp17_to_single(x) if function.no_squares else _sum_of_squares(squares, channel + HALO, function.reach)
        le_state, le_value = look_up(total, le_entries, le)
        lo_state, lo_value = look_up(total, lo_entries, lo)
        value = lo_value if choose(le_state, lo_state, priority, counters) else le_value
        if not function.no_product:
            value = fp_mul(x, value, FP17)
        elif is_nan(x, FP17):
            value = x
        result = fp17_to_fp16(value)
        nans += is_nan(result, FP16)
        results[channel] = result
    return nans


@njit(cache=True, nogil=True)
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
    """Line ``h`` of :func:`normalise_fp16`."""
    surfaces, _, width, atom = source.shape
    column = np.zeros(surfaces * atom + 2 * HALO, np.int64)
    squares = np.zeros(surfaces * atom + 2 * HALO, np.int64)
    results = np.zeros(surfaces * atom, np.int64)
    found = 0
    for w in range(width):
        for channel in range(channels):
            bits = np.int64(source[channel // atom, h, w, channel % atom])
            if flush_nan and is_nan(bits, FP16):
                bits = np.int64(0)
            x = _half_to_fp17(bits)
            wide = _fp17_to_single(x)
            column[channel + HALO] = x
            squares[channel + HALO] = fp_mul(wide, wide, FP32)
        found += _normalise_column(
            column, squares, results, function, le, lo, le_entries, lo_entries, priority, counters[h]
        )
        for channel in range(results.size):
            out[channel // atom, h, w, channel % atom] = results[channel]
    nans[h] = found


@njit(cache=True, nogil=True, shared=True)
def _lines(crew: int, lines: int, *arguments: Any) -> None:
    share(crew, lines, _line, arguments)


def normalise_fp16(
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
    """Local response normalisation of fp16 bit patterns, uint16 (S, H, W, A); returns (counters, output NaNs).

    Channels behind the last of ``channels`` are +0. ``flush_nan``: input NaNs become +0.
    """
    height = source.shape[1]
    counters, nans = np.zeros((height, COUNTERS), np.int64), np.zeros(height, np.int64)
    tables = (le, lo, le_entries, lo_entries, priority)
    arguments = (source, out, channels, function, flush_nan, *tables, counters, nans)
    _lines.for_work(COST * source.size, height, *arguments)
    return counters.sum(axis=0), int(nans.sum())
