"""Softmax of int8 elements as one compiled loop, with the numbers of :mod:`nvdla.emulator.cpu.softmax` (numpy).

Both do the same operations of float32 and float64 in the same order, without fused multiply-adds. Integers compute the
rounding to fp16: to nearest, ties away from zero.

Bound, to be checked by the caller: the input's halves are finite, and the output's scale is finite and not 0, so that
no NaN occurs (tests/kernels/test_softmax_int8.py compares the bytes).
"""

from __future__ import annotations

import math

import numpy as np

from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.recorded_calls import ALONE, RecordedCall, float32s, float64s, int8s, int32s, uint8s, words

SOURCE, COUNT, TARGET, WRITTEN, HALVES, ROOTS, NUMBERS, SPACE, FIELDS = range(9)
"""The fields of a record: addresses and sizes of source and target, tables, space for ``COUNT`` float32."""
NANOSECONDS = 10


@njit(cache=True, nogil=True)
def _exponential(x: float, roots: np.ndarray, numbers: np.ndarray) -> float:
    """exp of a float32 that is at most 0 (:func:`nvdla.emulator.cpu.softmax.exp32`)."""
    scaled = max(np.float64(x), -200.0) * numbers[3]
    whole = np.rint(scaled)
    rest = scaled - whole
    parts = np.int64(whole)
    power = math.ldexp(roots[parts & 31], np.int32(parts >> 5))
    result = (numbers[0] * rest + numbers[1]) * (rest * rest) + (numbers[2] * rest + 1.0)
    return np.float32(result * power)


@njit(cache=True, nogil=True)
def _half(bits: int) -> float:
    """The half nearest to a float32 from 0 to 1, of these bits; as a float32."""
    exponent, fraction = bits >> 23, bits & (1 << 23) - 1
    lost = min(max(113 - exponent, 0), 12)
    shift = 13 + lost
    significand = fraction | (1 << 23 if exponent > 0 else 0)
    rounded = (significand + (1 << shift - 1)) >> shift
    return np.float32(math.ldexp(np.float64(rounded), np.int32(max(exponent, 1) - 150 + shift)))


@njit(cache=True, nogil=True)
def _softmax(pool: int, address: int) -> None:
    record = words(address, FIELDS)
    count = record[COUNT]
    source, halves = uint8s(record[SOURCE], count), float32s(record[HALVES], 256)
    roots, numbers = float64s(record[ROOTS], 32), float64s(record[NUMBERS], 5)
    values, bits = float32s(record[SPACE], count), int32s(record[SPACE], count)
    greatest = halves[source[0]]
    for i in range(count):
        greatest = max(greatest, halves[source[i]])
    total = np.float32(0.0)
    for i in range(count):
        values[i] = _exponential(halves[source[i]] - greatest, roots, numbers)
        total = np.float32(total + values[i])
    target, scale = int8s(record[TARGET], record[WRITTEN]), np.float32(numbers[4])
    for i in range(record[WRITTEN]):
        values[i] = values[i] / total
        quotient = np.float32(_half(np.int64(bits[i])) / scale)
        target[i] = np.int8(np.int32(min(max(quotient, np.float32(-128.0)), np.float32(127.0))))


def softmax(
    source: np.ndarray,
    target: np.ndarray,
    halves: np.ndarray,
    roots: np.ndarray,
    polynomial: tuple[float, float, float, float],
    scale: float,
) -> RecordedCall:
    """``source`` (N,) int8 -> ``target`` (at most N,) int8 of the ``scale``, both in their memory layout.

    ``halves`` (256,) float32: the real number of every element, by its bits; ``roots`` (32,) float64: 2^(i/32);
    ``polynomial``: coefficients of the cubic, square and linear term, and parts for each e.
    """
    numbers = np.array([*polynomial, np.float32(scale)], np.float64)
    space = np.empty(source.size, np.float32)
    sizes = (source.ctypes.data, source.size, target.ctypes.data, target.size)
    tables = [table.ctypes.data for table in (halves, roots, numbers, space)]
    arrays = (source, target, halves, roots, numbers, space)
    return RecordedCall(_softmax, [*sizes, *tables], arrays, ALONE, NANOSECONDS * source.size)
