"""CDP: local response normalization of the channels of one pixel.

Source: cdp/NV_NVDLA_cdp.cpp:612 (channels outside), :1122 (double precision), :1191, :1548 (lookup); hls/cdp_libs
(converters); hls_wrapper/cdp_hls_wrapper.cpp:170, :308, :346, :411, :560, :675 (fp16). The tables are computed with C
integers and doubles: fractions have 16 bits, and shift counts are taken modulo 64 (int64) or 32 (int).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from nvdla.kernels.reference.floats import (
    FP16,
    FP17,
    FP32,
    add,
    encode,
    flush_nan,
    is_nan,
    multiply,
    narrow,
    position,
    subtract,
    widen,
)
from nvdla.kernels.reference.integers import convert, saturate, shift_right, wrap

HIT, UNDERFLOW, OVERFLOW = 0, 1, 2
SATURATED, LUT_UNDERFLOW, LUT_OVERFLOW, LUT_HYBRID, LE_HIT, LO_HIT, COUNTERS = range(7)
"""Positions in the list of counters, and their number."""


class CdpConverter(NamedTuple):
    """(x - offset) * scale / 2**shift in ``bits`` bits: 9 (int8) or 17 (int16) in, 8 or 16 out."""

    offset: int
    scale: int
    shift: int
    bits: int


class CdpTable(NamedTuple):
    """Registers of a table. In fp16, start and end are fp32 bits, the scales fp16 bits, and shifts are not used.

    ``index_offset`` belongs to the exponential LE, ``index_select`` to linear tables.
    """

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
    """1 = LO answers when both tables underflow, both overflow, or neither alone hits."""

    underflow: int
    overflow: int
    hybrid: int


class CdpFunction(NamedTuple):
    """``reach``: channels to either side, 1 to 4; ``product_bits``: width of table value times input, 25 or 33."""

    reach: int
    no_squares: int
    no_product: int
    product_bits: int


def divide_in_double(value: int, shift: int) -> int:
    """Divide by 2**shift in double precision, ties away from zero: exact below 2**53."""
    quotient = float(value) / 2.0**shift
    return int(quotient + 0.5) if quotient > 0 else int(quotient - 0.5)


def scale_fraction(remainder: int, bits: int) -> int:
    """Scale a remainder of ``bits`` bits to a fraction of 16, truncated."""
    return remainder >> (bits - 16) % 64 if bits > 16 else remainder << 16 - bits


def look_up(x: int, entries: Sequence[int], table: CdpTable) -> tuple[int, int]:
    """Look up a sum of squares in one table.

    Args:
        x: The sum, or the element with SQSUM_BYPASS.
        entries: 65 (LE) or 257 (LO) signed 16-bit integers.
        table: Registers.

    Returns:
        (state, value of 16 bits).
    """
    last, distance, low, fraction = len(entries) - 1, x - table.start, 0, 0
    if table.exponential:
        exponent = distance.bit_length() - 1 if distance > 0 else 0
        index = exponent - table.index_offset
        fraction = scale_fraction(distance - (1 << exponent), exponent)
        low = 1 << table.index_offset % 64 if table.index_offset >= 0 else 0
    elif table.index_select < 0:
        index = wrap(distance << -table.index_select % 64, 64)
    else:
        index = distance >> table.index_select % 64
        fraction = scale_fraction(distance & (1 << table.index_select % 32) - 1, table.index_select)
    if index < 0 or distance <= 0:
        product = wrap((distance - low) * table.underflow_scale, 64)  # past 64 bits for offsets from 48
        rise = divide_in_double(product, table.underflow_shift)
        return UNDERFLOW, saturate(entries[0] + saturate(rise, 56), 16)
    if index >= last:
        rise = divide_in_double((x - table.end) * table.overflow_scale, table.overflow_shift)
        return OVERFLOW, saturate(entries[last] + saturate(rise, 56), 16)
    rise = shift_right((entries[index + 1] - entries[index]) * fraction, 16)
    return HIT, saturate(entries[index] + rise, 16)


def look_up_fp16(x: int, entries: Sequence[int], table: CdpTable) -> tuple[int, int]:
    """Look up fp32 bits in one table of fp16 bits; the result is fp17, products come before table values.

    Args:
        x: The sum of squares, or the element with SQSUM_BYPASS.
        entries: 65 (LE) or 257 (LO) numbers.
        table: Registers.

    Returns:
        (state, fp17 bits).
    """

    def along_slope(entry: int, distance: int, scale: int) -> int:
        product = multiply(narrow(distance, FP32, FP17), widen(scale, FP16, FP17), FP17)
        return add(product, widen(entry, FP16, FP17), FP17)

    last, distance = len(entries) - 1, subtract(x, table.start, FP32)
    below = distance == 0 or distance >> 31 == 1 or is_nan(distance, FP32)
    index, fraction = 0, 0
    if not below and table.exponential:
        index, fraction = (distance >> 23) - 127 - table.index_offset, distance >> 7 & 0xFFFF
    elif not below:
        index, fraction = position(distance, table.index_select, 16)
    if below or index < 0:
        if table.exponential:
            low = encode(Fraction(2) ** table.index_offset, 0, FP32)
            distance = subtract(x, add(table.start, low, FP32), FP32)
        return UNDERFLOW, along_slope(entries[0], distance, table.underflow_scale)
    if index >= last:
        return OVERFLOW, along_slope(entries[last], subtract(x, table.end, FP32), table.overflow_scale)
    entry, following = entries[index], entries[index + 1]
    difference = narrow(subtract(widen(following, FP16, FP32), widen(entry, FP16, FP32), FP32), FP32, FP17)
    rise = multiply(difference, encode(Fraction(fraction, 1 << 16), 0, FP17), FP17)
    return HIT, add(rise, widen(entry, FP16, FP17), FP17)


def choose(le: int, lo: int, priority: Priority) -> tuple[int, int]:
    """Return the table that answers (0 = LE) and the counter that counts it, by the states of both tables."""
    if (le == HIT) != (lo == HIT):
        return (0, LE_HIT) if le == HIT else (1, LO_HIT)
    if le == lo == UNDERFLOW:
        return priority.underflow, LUT_UNDERFLOW
    if le == lo == OVERFLOW:
        return priority.overflow, LUT_OVERFLOW
    return priority.hybrid, LUT_HYBRID


Lookup = Callable[[int], tuple[int, int]]


def normalize(
    column: list[int],
    function: CdpFunction,
    icvt: CdpConverter,
    ocvt: CdpConverter,
    tables: tuple[Lookup, Lookup],
    priority: Priority,
) -> tuple[list[int], list[int]]:
    """Normalize the channels of one pixel, integers.

    Args:
        column: Elements of all channels; None for the unused ones of the last surface, which count as 0 after the
            input converter and are computed like the others.
        function: Window and bypasses.
        icvt: Input converter.
        ocvt: Output converter.
        tables: :func:`look_up` of LE and of LO.
        priority: Choice between them.

    Returns:
        (results, counters).
    """
    inputs = [0 if x is None else convert(x, *icvt) for x in column]
    results, counters = [], [0] * COUNTERS
    for channel, x in enumerate(inputs):
        near = inputs[max(channel - function.reach, 0) : channel + function.reach + 1]
        total = x if function.no_squares else sum(near_x * near_x for near_x in near)
        lookups = [table(total) for table in tables]
        chosen, counter = choose(lookups[0][0], lookups[1][0], priority)
        counters[counter] += 1
        product = lookups[chosen][1] if function.no_product else wrap(lookups[chosen][1] * x, function.product_bits)
        results.append(convert(product, *ocvt))
        counters[SATURATED] += abs(((product - ocvt.offset) * ocvt.scale >> ocvt.shift) - results[-1]) > 1
    return results, counters


def normalize_fp16(
    column: list[int],
    function: CdpFunction,
    flush: bool,
    tables: tuple[Lookup, Lookup],
    priority: Priority,
) -> tuple[list[int], list[int]]:
    """Normalize the channels of one pixel, fp16 bits: fp17 data, fp32 squares and sums.

    Args:
        column: Elements of all channels; None for the unused ones of the last surface, which count as +0.
        function: Window and bypasses.
        flush: Replace NaN inputs by +0.
        tables: :func:`look_up_fp16` of LE and of LO.
        priority: Choice between them.

    Returns:
        (results as fp16 bits, counters).
    """
    inputs = [0 if x is None else widen(flush_nan(x, FP16) if flush else x, FP16, FP17) for x in column]
    wide = [0] * 4 + [widen(x, FP17, FP32) for x in inputs] + [0] * 4
    squares = [multiply(x, x, FP32) for x in wide]
    results, counters = [], [0] * COUNTERS
    for channel, x in enumerate(inputs, 4):
        total = wide[channel]
        if not function.no_squares:  # the nearest neighbors first, in pairs
            total = add(add(squares[channel - 1], squares[channel + 1], FP32), squares[channel], FP32)
            for far in range(2, function.reach + 1):
                total = add(total, add(squares[channel - far], squares[channel + far], FP32), FP32)
        lookups = [table(total) for table in tables]
        chosen, counter = choose(lookups[0][0], lookups[1][0], priority)
        counters[counter] += 1
        result = lookups[chosen][1]
        if not function.no_product:
            result = multiply(x, result, FP17)
        elif is_nan(x, FP17):
            result = x
        results.append(narrow(result, FP17, FP16))
    return results, counters
