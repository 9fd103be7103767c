"""Local response normalization of int8, with one lookup table over all totals.

The index of the lookup tables is a small whole number. The input converter's result has 9 bits, and a total is that
number or the sum of at most nine squares, so at most 9 * 2**16. :class:`Answers` contains the result of
:func:`nvdla.kernels.cdp.look_up` and ``choose`` for every possible total. The rest is a simple loop over contiguous
numbers. Bounds that make the floating point exact:

* input converter: |x - offset| <= 255 times an int16 stays below 2**23, so p, p * 2**-shift and, where it is not
  far below one half anyway, p * 2**-shift + 0.5 fit float32's 24 bits;
* squares and totals are at most 589824 < 2**24 (float32);
* output converter: a table value of 16 bits times 9 bits, less an offset of 25 bits, times an int16 stays below
  2**41, which float64 rounds like :mod:`nvdla.kernels.sdp` says (2**49). The product of 25 bits cannot wrap.
"""

from __future__ import annotations

from math import copysign
from typing import NamedTuple

import numpy as np

from nvdla.kernels.cdp import COUNTERS, SATURATED, CdpConverter, CdpFunction, CdpTable, Priority, choose, look_up
from nvdla.kernels.fast.fast_paths import FastPath
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.variants import in_pieces
from nvdla.util.rounding import ceil_div

FAST_PATH = FastPath(
    "cdp_int8.normalize_int8",
    ("cdp.normalize",),
    "int8; sums of at most nine squares, which are looked up in advance",
    "tests/kernels/test_cdp_kernels.py",
)

HALO = 4  # channels that the widest window reaches to either side
WORD = 8  # bytes; every memory atom is a multiple
BLOCK = 2048  # elements that are worked on together: what is computed of them stays in the first-level cache
JOB = 1 << 14  # elements that a thread takes at a time
# Each of two tables goes from underflow to hit to overflow as the total rises. Where a left shift takes an index out of
# 64 bits that begins again, but only every 2**32 totals.
EDGES = 4


class Answers(NamedTuple):
    """Results of the lookup tables for the totals ``low``, ``low`` + 1 ...: values (int16) and counters.

    From the total ``edges[i - 1]`` on (float32), ``counters[i]`` counts; ``counters`` has one element more.
    """

    low: int
    values: np.ndarray
    edges: np.ndarray
    counters: np.ndarray


class Settings(NamedTuple):
    """Parameters of the converters and the function; ``reach`` 0: no squares."""

    in_offset: np.float32
    in_factor: np.float32
    reach: int
    no_product: int
    out_offset: float
    out_factor: float


def loop_settings(function: CdpFunction, icvt: CdpConverter, ocvt: CdpConverter) -> Settings:
    """The registers' values for the loops: all factors are exact, an int16 times a power of two."""
    return Settings(
        np.float32(icvt.offset),
        np.float32(icvt.scale * 2.0**-icvt.shift),
        0 if function.no_squares else function.reach,
        function.no_product,
        float(ocvt.offset),
        ocvt.scale * 2.0**-ocvt.shift,
    )


@njit(cache=True, nogil=True)
def _tabulate(
    low: int,
    le: CdpTable,
    lo: CdpTable,
    le_entries: np.ndarray,
    lo_entries: np.ndarray,
    priority: Priority,
    values: np.ndarray,
    kinds: np.ndarray,
) -> None:
    counters = np.zeros(COUNTERS, np.int64)
    for i in range(values.size):
        total = np.int64(low + i)
        le_state, le_value = look_up(total, le_entries, le)
        lo_state, lo_value = look_up(total, lo_entries, lo)
        counters[:] = 0
        values[i] = lo_value if choose(le_state, lo_state, priority, counters) else le_value
        for kind in range(COUNTERS):
            if counters[kind]:
                kinds[i] = kind


def totals(function: CdpFunction, icvt: CdpConverter) -> tuple[int, int]:
    """The least and the greatest total that an int8 element (or a channel that does not exist, 0) can lead to."""
    ends = [0, _converted(-128, icvt), _converted(127, icvt)]
    if function.no_squares:
        return min(ends), max(ends)
    return 0, (2 * function.reach + 1) * max(end * end for end in ends)


def _converted(x: int, icvt: CdpConverter) -> int:
    """The input converter, which rises or falls all along."""
    y = min(max((x - icvt.offset) * icvt.scale * 2.0**-icvt.shift, -256.0), 255.0)
    return int(y + copysign(0.5, y))


def answers(
    bounds: tuple[int, int],
    le: CdpTable,
    lo: CdpTable,
    le_entries: np.ndarray,
    lo_entries: np.ndarray,
    priority: Priority,
) -> Answers:
    """Ask the tables with every total within ``bounds`` (:func:`totals`)."""
    low, high = bounds
    values = np.empty(high - low + 1, np.int16)
    kinds = np.empty(values.size, np.int8)
    _tabulate(low, le, lo, le_entries, lo_entries, priority, values, kinds)
    places = np.flatnonzero(np.diff(kinds)) + 1
    edges = np.full(EDGES, np.inf, np.float32)
    edges[: places.size] = low + places
    counters = np.full(EDGES + 1, kinds[-1], np.int64)
    counters[: places.size] = kinds[places - 1]
    return Answers(low, values, edges, counters)


@njit(cache=True, nogil=True)
def _convert_in(
    elements: np.ndarray, channels: int, padded: int, settings: Settings, x: np.ndarray, squares: np.ndarray
) -> None:
    """Apply the input converter and compute the squares (or x itself). Channels after the last one are 0."""
    offset, factor, power = settings.in_offset, settings.in_factor, settings.reach > 0
    half, low, high = np.float32(0.5), np.float32(-256.0), np.float32(255.0)
    for i in range(elements.size):
        y = min(max((np.float32(elements[i]) - offset) * factor, low), high)
        y = np.float32(np.int32(y + (half if y >= np.float32(0.0) else -half)))
        x[i] = y
        squares[i] = y * y if power else y
    if channels < padded:
        for pixel in range(0, elements.size, padded):
            for i in range(pixel + channels, pixel + padded):
                x[i] = 0
                squares[i] = 0


@njit(cache=True, nogil=True)
def _sum_window(squares: np.ndarray, padded: int, reach: int, sums: np.ndarray) -> None:
    """Sum ``reach`` adjacent squares on either side; ``squares`` has HALO zeros at both ends.

    The first pass ignores the ends of pixels, the second subtracts the squares of other pixels. Both are exact, since
    all numbers are whole and below 2**24.
    """
    middle, left, right = squares[HALO:], squares[HALO - 1 :], squares[HALO + 1 :]
    if reach == 0:
        for i in range(sums.size):
            sums[i] = middle[i]
        return
    if reach == 1:
        for i in range(sums.size):
            sums[i] = middle[i] + (left[i] + right[i])
    else:
        left2, right2 = squares[HALO - 2 :], squares[HALO + 2 :]
        for i in range(sums.size):
            sums[i] = middle[i] + ((left[i] + right[i]) + (left2[i] + right2[i]))
        for k in range(3, reach + 1):
            left, right = squares[HALO - k :], squares[HALO + k :]
            for i in range(sums.size):
                sums[i] += left[i] + right[i]
    for k in range(1, reach + 1):
        for channel in range(k):
            for pixel in range(0, sums.size, padded):
                sums[pixel + channel] -= squares[HALO + pixel + channel - k]
                last = pixel + padded - 1 - channel
                sums[last] -= squares[HALO + last + k]


@njit(cache=True, nogil=True)
def _look_up(
    sums: np.ndarray, low: int, values: np.ndarray, edges: np.ndarray, chosen: np.ndarray, counted: np.ndarray
) -> None:
    """The table's answers, and how many sums reach each of the ``edges``."""
    for i in range(sums.size):
        chosen[i] = np.int32(sums[i]) - low
    for i in range(sums.size):
        chosen[i] = values[np.uint64(chosen[i])]
    for k in range(EDGES):
        reached, edge = np.int32(0), edges[k]
        for i in range(sums.size):
            reached += np.int32(1) if sums[i] >= edge else np.int32(0)
        counted[k] += reached


@njit(cache=True, nogil=True)
def _convert_out(chosen: np.ndarray, x: np.ndarray, settings: Settings, elements: np.ndarray) -> int:
    """Product with the element, output converter; the number of results that the hardware counts as saturated: those
    that differ from the shifted product by more than one (IntShiftRightSat)."""
    offset, factor = settings.out_offset, settings.out_factor
    saturated = np.int32(0)
    for i in range(elements.size):
        product = np.float64(chosen[i])
        if not settings.no_product:
            product *= np.float64(x[i])
        y = (product - offset) * factor
        saturated += np.int32(1) if (y >= 129.0) | (y < -129.0) else np.int32(0)
        y = min(max(y, -128.0), 127.0)
        elements[i] = np.int32(y + (0.5 if y >= 0.0 else -0.5))
    return saturated


@njit(cache=True, nogil=True)
def _pixels(
    source: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
    channels: int,
    settings: Settings,
    low: int,
    values: np.ndarray,
    edges: np.ndarray,
    counted: np.ndarray,
) -> None:
    """Pixels ``first`` to ``last``, a block at a time, all channels of a pixel side by side."""
    surfaces, _, words = source.shape
    padded = surfaces * words * WORD
    block = max(1, BLOCK // padded)
    gathered = np.empty((block, surfaces, words), np.int64)
    x = np.empty(block * padded, np.float32)
    squares = np.zeros(block * padded + 2 * HALO, np.float32)
    sums = np.empty(block * padded, np.float32)
    chosen = np.empty(block * padded, np.int32)
    for start in range(first, last, block):
        count = min(block, last - start)
        for s in range(surfaces):
            for pixel in range(count):
                for word in range(words):
                    gathered[pixel, s, word] = source[s, start + pixel, word]
        size = count * padded
        elements = gathered.reshape(-1).view(np.int8)[:size]
        squares[HALO + size :] = 0
        _convert_in(elements, channels, padded, settings, x, squares[HALO:])
        _sum_window(squares, padded, settings.reach, sums[:size])
        _look_up(sums[:size], low, values, edges, chosen, counted)
        counted[EDGES] += _convert_out(chosen, x, settings, elements)
        for s in range(surfaces):
            for pixel in range(count):
                for word in range(words):
                    out[s, start + pixel, word] = gathered[pixel, s, word]


@in_pieces()
def _piece(
    number: int,
    source: np.ndarray,
    out: np.ndarray,
    job: int,
    channels: int,
    settings: Settings,
    low: int,
    values: np.ndarray,
    edges: np.ndarray,
    counted: np.ndarray,
) -> None:
    last = min(source.shape[1], (number + 1) * job)
    _pixels(source, out, number * job, last, channels, settings, low, values, edges, counted[number])


def normalize_int8(
    source: np.ndarray, out: np.ndarray, channels: int, settings: Settings, table: Answers
) -> np.ndarray:
    """Compute :func:`nvdla.kernels.cdp.normalize` of int8. ``out`` is ``source`` or does not overlap it."""
    surfaces, height, width, atom = source.shape
    words = (surfaces, height * width, atom // WORD)
    job = max(1, JOB // (surfaces * atom))
    counted = np.zeros((ceil_div(words[1], job), EDGES + 1), np.int64)
    cubes = source.view(np.int64).reshape(words), out.view(np.int64).reshape(words)
    _piece(len(counted), *cubes, job, channels, settings, table.low, table.values, table.edges, counted)
    counters = np.zeros(COUNTERS, np.int64)
    *reached, counters[SATURATED] = counted.sum(axis=0)
    np.add.at(counters, table.counters, -np.diff([source.size, *reached, 0]))
    return counters
