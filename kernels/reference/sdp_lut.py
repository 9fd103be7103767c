"""SDP's lookup tables: the position in LE and LO, the table that answers, interpolation and slopes.

Source: hls/sdp/sdp_y_idx.cpp:28 (position), :256 (choice), sdp_y_inp.cpp:27, :103, :120, :147 (result),
hls_wrapper/sdp_hls_wrapper.cpp:395 (bias). LE has 65 entries and is exponential or linear, LO has 257 and is linear.
Fractions have 35 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from nvdla.kernels.reference.floats import (
    FP16,
    FP17,
    FP32,
    add,
    encode,
    is_nan,
    multiply,
    narrow,
    position,
    subtract,
    widen,
)
from nvdla.kernels.reference.integers import saturate, shift_right, wrap

HIT, UNDERFLOW, OVERFLOW = "hit", "underflow", "overflow"
FRACTION_BITS = 35
ONE = 1 << FRACTION_BITS
LE_LAST, LO_LAST = 64, 256
LARGEST_INDEX = 511

Position = tuple[str, int, int]
"""(HIT, UNDERFLOW or OVERFLOW; index; fraction)."""


class LookupTable(NamedTuple):
    """A table and its registers. In fp16 processing start, end and bias are fp32 bits, entries and scales fp16 bits.

    ``bias`` is added to ``start`` below the exponential LE: 2**index_offset, for integers only if the offset is
    positive.
    """

    entries: Sequence[int]
    start: int
    end: int
    select: int
    underflow_scale: int
    underflow_shift: int
    overflow_scale: int
    overflow_shift: int
    bias: int


class Choice(NamedTuple):
    """Index function of LE, and the table that answers by situation: 0 = LE, 1 = LO."""

    exponential: int
    index_offset: int
    underflow: int
    overflow: int
    hybrid: int


def exponential(x: int, start: int, offset: int) -> Position:
    """Locate an integer in the exponential LE. ``start`` itself is an underflow (<=)."""
    if x <= start:
        return UNDERFLOW, 0, 0
    exponent = (x - start).bit_length() - 1
    if exponent < offset:
        return UNDERFLOW, 0, 0
    if exponent - offset >= LE_LAST:
        return OVERFLOW, LE_LAST, 0
    return HIT, exponent - offset, (x - start - (1 << exponent)) << FRACTION_BITS - exponent


def linear(x: int, start: int, select: int, last: int) -> Position:
    """Locate an integer in a linear table: distance / 2**select. ``start`` itself is an underflow (<=)."""
    if x <= start:
        return UNDERFLOW, 0, 0
    distance = x - start
    index = distance >> select if select >= 0 else min(distance, LARGEST_INDEX) << -select
    if index >= last:
        return OVERFLOW, last, 0
    below = distance % (1 << max(select, 0))
    if last == LE_LAST and select >= 32:
        below = wrap(distance, 32) % ONE  # LE keeps it in a signed word, and widens that to 35 bits before the shift
    return HIT, index, (below << FRACTION_BITS >> max(select, 0)) % ONE


def exponential_fp16(x: int, start: int, offset: int) -> Position:
    """Locate fp32 bits in the exponential LE."""
    distance = _distance_fp16(x, start)
    exponent = (distance >> 23) - 127
    if distance == 0 or exponent < offset:
        return UNDERFLOW, 0, 0
    if exponent - offset >= LE_LAST:
        return OVERFLOW, LE_LAST, 0
    return HIT, exponent - offset, (distance & 0x7FFFFF) << FRACTION_BITS - 23


def linear_fp16(x: int, start: int, select: int, last: int) -> Position:
    """Locate fp32 bits in a linear table."""
    distance = _distance_fp16(x, start)
    if distance == 0:
        return UNDERFLOW, 0, 0
    index, fraction = position(distance, select, FRACTION_BITS)
    return (OVERFLOW, last, 0) if index >= last else (HIT, index, fraction)


def _distance_fp16(x: int, start: int) -> int:
    """Return x - start, or 0 where it is negative, zero or a NaN."""
    distance = subtract(x, start, FP32)
    return 0 if distance >> 31 or is_nan(distance, FP32) else distance


def choose(le: str, lo: str, choice: Choice) -> int:
    """Return the table that answers, 0 = LE: the only one that hits, otherwise by priority."""
    if (le == HIT) != (lo == HIT):
        return int(lo == HIT)
    if le == lo == UNDERFLOW:
        return choice.underflow
    if le == lo == OVERFLOW:
        return choice.overflow
    return choice.hybrid


def lookup(x: int, le: LookupTable, lo: LookupTable, choice: Choice) -> tuple[int, str, str, str]:
    """Look up an integer of 32 bits.

    Args:
        x: Element.
        le: LE.
        lo: LO.
        choice: Index function and priorities.

    Returns:
        (result of 32 bits, state of the table that answers, state of LE, state of LO).
    """
    by_exponent = choice.exponential
    first = exponential(x, le.start, choice.index_offset) if by_exponent else linear(x, le.start, le.select, LE_LAST)
    second = linear(x, lo.start, lo.select, LO_LAST)
    table, (state, index, fraction) = ((le, first), (lo, second))[choose(first[0], second[0], choice)]
    entry = table.entries[index]
    if state == HIT:
        total = entry * (ONE - fraction) + table.entries[index + 1] * fraction
        return saturate(shift_right(total, FRACTION_BITS), 32), state, first[0], second[0]
    if state == UNDERFLOW:
        rise = shift_right((x - table.start - table.bias) * table.underflow_scale, table.underflow_shift)
    else:
        rise = shift_right((x - table.end) * table.overflow_scale, table.overflow_shift)
    return saturate(entry + saturate(rise, 32), 32), state, first[0], second[0]


def lookup_fp16(x: int, le: LookupTable, lo: LookupTable, choice: Choice) -> tuple[int, str, str, str]:
    """Look up fp32 bits; the distance is an fp32 number, everything after it is rounded to fp17 at each step.

    Args:
        x: Element.
        le: LE.
        lo: LO.
        choice: Index function and priorities.

    Returns:
        (result as fp32 bits, state of the table that answers, state of LE, state of LO).
    """
    if choice.exponential:
        first = exponential_fp16(x, le.start, choice.index_offset)
    else:
        first = linear_fp16(x, le.start, le.select, LE_LAST)
    second = linear_fp16(x, lo.start, lo.select, LO_LAST)
    table, (state, index, fraction) = ((le, first), (lo, second))[choose(first[0], second[0], choice)]
    entry = widen(table.entries[index], FP16, FP17)
    if state == HIT:
        weights = [encode(Fraction(part, ONE), 0, FP17) for part in (ONE - fraction, fraction)]
        following = widen(table.entries[index + 1], FP16, FP17)
        result = add(multiply(weights[0], entry, FP17), multiply(weights[1], following, FP17), FP17)
    else:
        under = state == UNDERFLOW
        origin = add(table.start, table.bias, FP32) if under else add(table.end, 0, FP32)
        scale = widen(table.underflow_scale if under else table.overflow_scale, FP16, FP17)
        rise = multiply(narrow(subtract(x, origin, FP32), FP32, FP17), scale, FP17)
        result = add(entry, rise, FP17)
    return widen(result, FP17, FP32), state, first[0], second[0]
