"""SDP arithmetic in fp16, with its output conversion.

Cubes are uint32 fp32 bit patterns (rows, pixels, A), operands too: (rows' or 1, pixels or 1, A). The processor's own
fp32 arithmetic computes them. Its result equals NVDLA's if it is zero or a normal number above the smallest binade and
no operand is denormal: both round the exact result once, to nearest even. The operators of ``nvdla.kernels.floats``
then compute the other elements, which are rare.

Everything but :func:`integers_to_fp16` needs only numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from nvdla.kernels.floats import FP16_LARGEST, FP32, fp_add, fp_mul, int_to_fp16
from nvdla.kernels.integers import all_nearest
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.sdp import MAX, MIN, MUL, NO_ALU, NO_MUL, PRELU, SUM

__all__ = [
    "EQL",
    "MAX",
    "MIN",
    "MUL",
    "NO_ALU",
    "NO_MUL",
    "PRELU",
    "SUM",
    "TO_FP16",
    "TO_INT8",
    "TO_INT16",
    "float_block",
    "flush_nan",
    "narrow",
    "widen",
]

EQL = 3
TO_INT8, TO_INT16, TO_FP16 = 0, 1, 2
PART = 1 << 15
"""Elements that are computed together: their arrays fit the second-level cache."""
MAGNITUDE, INFINITY, SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(1 << 31)
LARGEST_HALF = np.array(65504, np.float32).view(np.uint32)


@cache
def _widened() -> np.ndarray:
    """fp32 bits of all fp16 bit patterns: a NaN keeps the low ten bits, an infinity is the largest finite number."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    magnitude, sign = bits & 0x7FFF, (bits & 0x8000).astype(np.uint32) << 16
    finite = np.where(magnitude < 0x7C00, magnitude, 0).astype(np.uint16).view(np.float16).astype(np.float32)
    special = np.where(magnitude == 0x7C00, 0x7F7FFFFF, INFINITY | (bits & 0x3FF))
    wide = np.where(magnitude < 0x7C00, finite.view(np.uint32), special)
    return (sign | wide).astype(np.uint32)


def widen(source: np.ndarray, nan_to_zero: bool, out: np.ndarray) -> None:
    """fp16 bits (int16) to fp32 bits (uint32), same shape, C-contiguous; NaN to +0 on request."""
    out[...] = _widened()[source.view(np.uint16)]
    if nan_to_zero:
        flush_nan(out, out)


def flush_nan(source: np.ndarray, out: np.ndarray) -> None:
    """fp32 NaN to +0 at SDP's entry (cmod/hls_wrapper/sdp_hls_wrapper.cpp:530)."""
    out[...] = np.where(_is_nan(source), 0, source)


def _is_nan(bits: np.ndarray) -> np.ndarray:
    return (bits & MAGNITUDE) > INFINITY


def _is_denormal(bits: np.ndarray) -> np.ndarray:
    return (bits & MAGNITUDE) - np.uint32(1) < np.uint32(0x7FFFFF)


def _differs(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elements that NVDLA may compute in another way: infinite, NaN, or in the smallest binade, denormal operands."""
    magnitude = result & MAGNITUDE
    is_small = magnitude - np.uint32(1) < np.uint32(0xFFFFFF)
    return is_small | (magnitude >= INFINITY) | _is_denormal(a) | _is_denormal(b)


def _by_processor(operation: np.ufunc, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """An operation of fp32 bits in IEEE arithmetic."""
    with np.errstate(all="ignore"):
        result: np.ndarray = operation(a.view(np.float32), b.view(np.float32)).view(np.uint32)
    return result


def _corrected(
    result: np.ndarray, rule: Callable[[int, int, tuple[int, int]], int], a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Results of the processor, or those of the ``rule`` for elements where NVDLA may differ."""
    where = np.nonzero(_differs(result, a, b))
    if where[0].size:
        pairs = np.stack([np.broadcast_to(operand, result.shape)[where] for operand in (a, b)], 1)
        unique, places = np.unique(pairs, axis=0, return_inverse=True)
        values = [rule(x, y, FP32) for x, y in unique.tolist()]
        result[where] = np.array(values, np.uint32)[places.reshape(-1)]
    return result


def _sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """FpAdd: a zero has the sign of ``a``."""
    result = _by_processor(np.add, a, b)
    return _corrected(np.where(result & MAGNITUDE, result, a & SIGN), fp_add.plain, a, b)


def _ordered(bits: np.ndarray) -> np.ndarray:
    """Numbers that order bit patterns as FpCmp does: -0 below +0."""
    return np.where(bits & SIGN, -(bits & MAGNITUDE).astype(np.int64) - 1, bits)


def _extreme(a: np.ndarray, b: np.ndarray, is_least: bool) -> np.ndarray:
    """FpCmp: a NaN wins, the first one first."""
    x, y = _ordered(a), _ordered(b)
    takes_first = (x < y) if is_least else (x > y)
    return np.where(_is_nan(a) | (takes_first & ~_is_nan(b)), a, b)


def _alu(line: np.ndarray, operand: np.ndarray, algorithm: int) -> np.ndarray:
    """FpAlu (cmod/hls/sdp/sdp.h:559). EQL compares bits and gives the integer 1 where they differ."""
    if algorithm == SUM:
        return _sum(line, operand)
    if algorithm == EQL:
        return (line != operand).astype(np.uint32)
    return _extreme(line, operand, algorithm == MIN)


def _multiply(line: np.ndarray, operand: np.ndarray, prelu: bool) -> np.ndarray:
    """FpMul; PReLU lets everything with a clear sign bit pass."""
    result = _corrected(_by_processor(np.multiply, line, operand), fp_mul.plain, line, operand)
    return np.where(line < SIGN, line, result) if prelu else result


def float_block(
    source: np.ndarray,
    alu: np.ndarray,
    algorithm: int,
    mul: np.ndarray,
    multiply: int,
    mul_first: bool,
    relu: bool,
    out: np.ndarray,
) -> None:
    """One block: X is ALU, multiplier, ReLU; Y (``mul_first``) is multiplier, ALU. Shifts do not exist here.

    source and out may be the same array.
    """
    rows, pixels, atom = source.shape
    count = max(1, PART // (pixels * atom))
    for first in range(0, rows, count):
        part = slice(first, first + count)
        line, numbers = source[part], np.arange(first, min(first + count, rows))
        for turn in range(2):
            if (turn == 0) == mul_first:
                if multiply != NO_MUL:
                    line = _multiply(line, mul[numbers % len(mul)], multiply == PRELU)
            elif algorithm != NO_ALU:
                line = _alu(line, alu[numbers % len(alu)], algorithm)
        out[part] = np.where((line >= SIGN) & ~_is_nan(line), 0, line) if relu else line


def _halves(source: np.ndarray) -> np.ndarray:
    """fp32 to fp16 bits (uint16), to nearest even; what is too large becomes the largest number."""
    limited = np.minimum(source & MAGNITUDE, LARGEST_HALF).view(np.float32)
    halves = np.where(_is_nan(source), 0x7C00 | source & 0x3FF, limited.astype(np.float16).view(np.uint16))
    return (source >> 16 & 0x8000 | halves).astype(np.uint16)


def _to_int16(bits: np.ndarray) -> np.ndarray:
    """fp16 to the nearest int16, ties away from zero (nvdla_float.h:1508); NaN: -32768, infinity: the extremes."""
    mantissa, exponent = (bits & 0x3FF | 0x400).astype(np.float64), (bits >> 10 & 31).astype(np.int64)
    magnitude = all_nearest(np.ldexp(mantissa, exponent - 25)).astype(np.int64)
    value = np.where(bits >> 15, -np.minimum(magnitude, 32768), np.minimum(magnitude, 32767))
    return np.where(bits & 0x7FFF > 0x7C00, -32768, value)


def narrow(source: np.ndarray, mode: int, out: np.ndarray, counts: np.ndarray) -> None:
    """fp32 to the output precision (sdp_c.cpp:44): fp16 first, then int16 from that.

    int8 output is not converted: it is the low byte of the fp16 number. Both are C-contiguous. counts: int64 (2),
    receives the number of largest fp16 numbers (the saturation counter) and of NaN results; both stay 0 for integer
    output.
    """
    bits = _halves(source)
    out[...] = (_to_int16(bits) if mode == TO_INT16 else bits).astype(out.dtype)
    if mode == TO_FP16:
        magnitude = bits & 0x7FFF
        counts += np.count_nonzero(magnitude == FP16_LARGEST), np.count_nonzero(magnitude > 0x7C00)


@njit(cache=True, nogil=True)
def integers_to_fp16(source: np.ndarray, out: np.ndarray) -> int:
    """17-bit integers (int32, C-contiguous) to fp16 bits (uint16, same shape): sdp_c.cpp:52 Int17ToFp16.

    Returns the number of results that are the largest number: the saturation counter of fp16 output.
    """
    values, result = source.reshape(-1), out.reshape(-1)
    largest = 0
    for i in range(values.size):
        bits = int_to_fp16(values[i])
        result[i] = bits
        largest += (bits & 0x7FFF) == FP16_LARGEST
    return largest
