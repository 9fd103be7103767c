"""SDP Y's lookup tables: index, table selection, interpolation (cmod/hls/sdp/sdp_y_idx.cpp, sdp_y_inp.cpp).

LE has 65 entries and is exponential or linear, LO has 257 and is linear. A position in a table is (state, index,
fraction): the fraction has 35 bits, the state says hit, underflow or overflow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nvdla.kernels.floats import (
    FP17,
    FP17_ONE,
    FP32,
    fp16_to_fp17,
    fp17_to_fp32,
    fp32_to_fp17,
    fp32_to_int_fraction,
    fp_add,
    fp_mul,
    fp_sub,
    fraction_to_fp17,
    is_nan,
)
from nvdla.kernels.integers import (
    int_log2,
    int_shift_right,
    int_signed_shift_right,
    int_signed_shift_right_truncate,
    saturate,
)
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.reference.sdp_lut import Choice

FRACTION_BITS = 35
FRACTION_ONE = 1 << FRACTION_BITS
LE_LAST, LO_LAST = 64, 256
HIT, UNDERFLOW, OVERFLOW = 0, 1, 2
LE, LO = 0, 1
COUNTERS = 5  # underflow, overflow, hybrid (used table hit), LE hit, LO hit


class SdpTable(NamedTuple):
    """Range and out-of-range slopes of one table. start, end: int32 (fp16: fp32 bits); scales: int16 (fp16 bits).

    ``bias`` is added to ``start`` below the table (LE, exponential only).
    """

    start: int
    end: int
    select: int
    underflow_scale: int
    underflow_shift: int
    overflow_scale: int
    overflow_shift: int
    bias: int


@njit(cache=True, nogil=True)
def choose(le_state: int, lo_state: int, choice: Choice) -> int:
    """The table that answers (sdp_y_idx.cpp:256): a lone hit wins, else the priority of the situation."""
    if le_state == UNDERFLOW and lo_state == UNDERFLOW:
        return choice.underflow
    if le_state == OVERFLOW and lo_state == OVERFLOW:
        return choice.overflow
    if (le_state == HIT) == (lo_state == HIT):
        return choice.hybrid
    return LE if le_state == HIT else LO


@njit(cache=True, nogil=True)
def _count(counts: np.ndarray, state: int, le_state: int, lo_state: int) -> None:
    """Statistics (cmod/hls_wrapper/sdp_hls_wrapper.cpp:424)."""
    counts[0] += state == UNDERFLOW
    counts[1] += state == OVERFLOW
    counts[2] += state == HIT
    counts[3] += le_state == HIT
    counts[4] += lo_state == HIT


@njit(cache=True, nogil=True)
def _exponential(x: int, table: SdpTable, offset: int) -> tuple[int, int, int]:
    """Position of an integer in the exponential LE table."""
    if x <= table.start:
        return UNDERFLOW, 0, 0
    distance = x - table.start
    top = int_log2(distance)
    if top < offset:
        return UNDERFLOW, 0, 0
    if top - offset >= LE_LAST:
        return OVERFLOW, LE_LAST, 0
    return HIT, top - offset, (distance - (1 << top)) << (FRACTION_BITS - top)


@njit(cache=True, nogil=True)
def _linear(x: int, table: SdpTable, last: int) -> tuple[int, int, int]:
    """Position of an integer in a linear table.

    LE keeps the part below the index in a signed 32-bit number, which shows only for selects above 31.
    """
    if x <= table.start:
        return UNDERFLOW, 0, 0
    distance = x - table.start
    select = table.select
    index = int_signed_shift_right_truncate(distance, select, 9)
    if index >= last:
        return OVERFLOW, last, 0
    if select <= 0:
        return HIT, index, 0
    if select < 32:
        return HIT, index, (distance & ((1 << select) - 1)) << (FRACTION_BITS - select)
    if last == LE_LAST and distance >> 31:
        distance -= 1 << 32
    distance &= FRACTION_ONE - 1
    if select <= FRACTION_BITS:
        return HIT, index, (distance << (FRACTION_BITS - select)) & (FRACTION_ONE - 1)
    return HIT, index, distance >> min(select - FRACTION_BITS, 63)


@njit(cache=True, nogil=True)
def _interpolate(entries: np.ndarray, index: int, fraction: int) -> int:
    """Interpolate between two entries (sdp_y_inp.cpp:147)."""
    low, high = np.int64(entries[index]), np.int64(entries[index + 1])
    return int_shift_right(low * (FRACTION_ONE - fraction) + high * fraction, FRACTION_BITS, 32)


@njit(cache=True, nogil=True)
def _extrapolate(x: int, entry: int, state: int, table: SdpTable) -> int:
    """Outside the table along its slope (sdp_y_inp.cpp:103)."""
    if state == OVERFLOW:
        origin, scale, shift = table.end, table.overflow_scale, table.overflow_shift
    else:
        origin, scale, shift = table.start + table.bias, table.underflow_scale, table.underflow_shift
    return saturate(np.int64(entry) + int_signed_shift_right((x - origin) * scale, shift, 32), 32)


@njit(cache=True, nogil=True)
def lookup_integers(
    source: np.ndarray,
    le_entries: np.ndarray,
    le: SdpTable,
    lo_entries: np.ndarray,
    lo: SdpTable,
    choice: Choice,
    out: np.ndarray,
    counts: np.ndarray,
) -> None:
    """source, out: int32, C-contiguous, same shape; entries: int16; counts: int64 (COUNTERS), added to."""
    values, results = source.reshape(-1), out.reshape(-1)
    for i in range(values.size):
        x = np.int64(values[i])
        if choice.exponential:
            le_state, le_index, le_fraction = _exponential(x, le, choice.index_offset)
        else:
            le_state, le_index, le_fraction = _linear(x, le, LE_LAST)
        lo_state, lo_index, lo_fraction = _linear(x, lo, LO_LAST)
        if choose(le_state, lo_state, choice) == LE:
            state, index, fraction, table, entries = le_state, le_index, le_fraction, le, le_entries
        else:
            state, index, fraction, table, entries = lo_state, lo_index, lo_fraction, lo, lo_entries
        if state == HIT:
            results[i] = _interpolate(entries, index, fraction)
        else:
            results[i] = _extrapolate(x, entries[index], state, table)
        _count(counts, state, le_state, lo_state)


@njit(cache=True, nogil=True)
def _float_distance(x: int, start: int) -> int:
    """x - start in fp32, 0 when there is none (negative, zero or NaN: underflow)."""
    distance = fp_sub(x, start, FP32)
    return 0 if distance >> 31 or is_nan(distance, FP32) else distance


@njit(cache=True, nogil=True)
def _float_exponential(x: int, table: SdpTable, offset: int) -> tuple[int, int, int]:
    """Position of an fp32 number in the exponential LE table."""
    distance = _float_distance(x, table.start)
    exponent = (distance >> 23) - 127
    if distance == 0 or exponent < offset:
        return UNDERFLOW, 0, 0
    if exponent - offset >= LE_LAST:
        return OVERFLOW, LE_LAST, 0
    return HIT, exponent - offset, (distance & 0x7FFFFF) << (FRACTION_BITS - 23)


@njit(cache=True, nogil=True)
def _float_linear(x: int, table: SdpTable, last: int) -> tuple[int, int, int]:
    """Position of an fp32 number in a linear table."""
    distance = _float_distance(x, table.start)
    if distance == 0:
        return UNDERFLOW, 0, 0
    index, fraction = fp32_to_int_fraction(distance, table.select, 9, FRACTION_BITS)
    if index >= last:
        return OVERFLOW, last, 0
    return HIT, index, fraction


@njit(cache=True, nogil=True)
def _float_interpolate(entries: np.ndarray, index: int, fraction: int) -> int:
    """Interpolate between two entries, with every result rounded to fp17 (sdp_y_inp.cpp:120)."""
    low, high = np.int64(entries[index]) & 0xFFFF, np.int64(entries[index + 1]) & 0xFFFF
    low_weight = FP17_ONE if fraction == 0 else fraction_to_fp17(FRACTION_ONE - fraction, FRACTION_BITS)
    high_weight = fraction_to_fp17(fraction, FRACTION_BITS)
    low_part = fp_mul(low_weight, fp16_to_fp17(low), FP17)
    high_part = fp_mul(high_weight, fp16_to_fp17(high), FP17)
    return fp17_to_fp32(fp_add(low_part, high_part, FP17))


@njit(cache=True, nogil=True)
def _float_extrapolate(x: int, entry: int, state: int, table: SdpTable) -> int:
    """Outside the table along its slope: distance in fp32, the rest in fp17 (sdp_y_inp.cpp:27)."""
    if state == OVERFLOW:
        origin, scale, bias = table.end, table.overflow_scale, 0
    else:
        origin, scale, bias = table.start, table.underflow_scale, table.bias
    distance = fp32_to_fp17(fp_sub(x, fp_add(origin, bias, FP32), FP32))
    rise = fp_mul(distance, fp16_to_fp17(scale), FP17)
    return fp17_to_fp32(fp_add(fp16_to_fp17(np.int64(entry) & 0xFFFF), rise, FP17))


@njit(cache=True, nogil=True)
def lookup_floats(
    source: np.ndarray,
    le_entries: np.ndarray,
    le: SdpTable,
    lo_entries: np.ndarray,
    lo: SdpTable,
    choice: Choice,
    out: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Tables of floats: source, out are uint32 arrays of fp32 bits, entries fp16 bits in int16; the rest is that of
    :func:`lookup_integers`."""
    values, results = source.reshape(-1), out.reshape(-1)
    for i in range(values.size):
        x = np.int64(values[i])
        if choice.exponential:
            le_state, le_index, le_fraction = _float_exponential(x, le, choice.index_offset)
        else:
            le_state, le_index, le_fraction = _float_linear(x, le, LE_LAST)
        lo_state, lo_index, lo_fraction = _float_linear(x, lo, LO_LAST)
        if choose(le_state, lo_state, choice) == LE:
            state, index, fraction, table, entries = le_state, le_index, le_fraction, le, le_entries
        else:
            state, index, fraction, table, entries = lo_state, lo_index, lo_fraction, lo, lo_entries
        if state == HIT:
            results[i] = _float_interpolate(entries, index, fraction)
        else:
            results[i] = _float_extrapolate(x, entries[index], state, table)
        _count(counts, state, le_state, lo_state)
