"""SDP arithmetic in fp16, with its output conversion.

Cubes are uint32 fp32 bit patterns (rows, pixels, A), operands too: (rows' or 1, pixels or 1, A). A line is first
computed by the processor's own fp32 arithmetic. The result equals NVDLA's if it is a normal number above the
smallest binade and no operand is denormal: both round the exact result once, to nearest even. The operators of
``nvdla.kernels.floats`` then compute the other elements.
"""

from __future__ import annotations

import numpy as np

from nvdla.kernels.floats import (
    FP16,
    FP16_LARGEST,
    FP32,
    fp16_to_fp32,
    fp16_to_int16,
    fp32_to_fp16,
    fp_add,
    fp_max,
    fp_min,
    fp_mul,
    fp_relu,
    int_to_fp16,
    is_nan,
)
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.variants import in_pieces
from nvdla.kernels.sdp import LINE, MAX, MIN, MUL, NO_ALU, NO_MUL, PRELU, SUM, load_operand
from nvdla.util.rounding import ceil_div

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
BLOCK_COST, NARROW_COST = 3, 5
"""Nanoseconds per element, measured."""


@njit(cache=True, nogil=True)
def widen(source: np.ndarray, nan_to_zero: bool, out: np.ndarray) -> None:
    """fp16 bits (int16) to fp32 bits (uint32), same shape, C-contiguous; NaN to +0 on request."""
    values, results = source.reshape(-1), out.reshape(-1)
    for i in range(values.size):
        bits = np.int64(values[i]) & 0xFFFF
        results[i] = 0 if nan_to_zero and is_nan(bits, FP16) else fp16_to_fp32(bits)


@njit(cache=True, nogil=True)
def flush_nan(source: np.ndarray, out: np.ndarray) -> None:
    """fp32 NaN to +0 at SDP's entry (cmod/hls_wrapper/sdp_hls_wrapper.cpp:530)."""
    values, results = source.reshape(-1), out.reshape(-1)
    for i in range(values.size):
        results[i] = 0 if is_nan(np.int64(values[i]), FP32) else values[i]


@njit(cache=True, nogil=True, inline="always")
def _unsafe(result: np.uint32, a: np.uint32, b: np.uint32) -> bool:
    """True unless ``result`` is normal above the smallest binade and neither a nor b is denormal."""
    exponent = (result >> np.uint32(23)) & np.uint32(255)
    magnitude = np.uint32(0x7FFFFFFF)
    denormal_a = ((a & magnitude) < np.uint32(0x800000)) & ((a & magnitude) != np.uint32(0))
    denormal_b = ((b & magnitude) < np.uint32(0x800000)) & ((b & magnitude) != np.uint32(0))
    return (exponent < np.uint32(2)) | (exponent == np.uint32(255)) | denormal_a | denormal_b


@njit(cache=True, nogil=True)
def _add(line: np.ndarray, operand: np.ndarray, result: np.ndarray, size: int) -> None:
    """FpAdd of two lines, in place."""
    a, b, c = line.view(np.float32), operand.view(np.float32), result.view(np.float32)
    for i in range(size):
        c[i] = a[i] + b[i]
    for i in range(size):
        if _unsafe(result[i], line[i], operand[i]):
            line[i] = fp_add(np.int64(line[i]), np.int64(operand[i]), FP32)
        else:
            line[i] = result[i]


@njit(cache=True, nogil=True)
def _alu(line: np.ndarray, operand: np.ndarray, result: np.ndarray, size: int, algorithm: int) -> None:
    """FpAlu (cmod/hls/sdp/sdp.h:559). EQL compares bits and gives the integer 1 where they differ."""
    if algorithm == SUM:
        _add(line, operand, result, size)
    elif algorithm == MAX:
        for i in range(size):
            line[i] = fp_max(np.int64(line[i]), np.int64(operand[i]), FP32)
    elif algorithm == MIN:
        for i in range(size):
            line[i] = fp_min(np.int64(line[i]), np.int64(operand[i]), FP32)
    else:
        for i in range(size):
            line[i] = 1 if line[i] != operand[i] else 0


@njit(cache=True, nogil=True)
def _multiply(line: np.ndarray, operand: np.ndarray, result: np.ndarray, size: int, prelu: bool) -> None:
    """FpMul; PReLU lets everything with a clear sign bit pass."""
    a, b, c = line.view(np.float32), operand.view(np.float32), result.view(np.float32)
    for i in range(size):
        c[i] = a[i] * b[i]
    for i in range(size):
        if prelu and line[i] < np.uint32(0x80000000):
            continue
        if _unsafe(result[i], line[i], operand[i]):
            line[i] = fp_mul(np.int64(line[i]), np.int64(operand[i]), FP32)
        else:
            line[i] = result[i]


@in_pieces()
def _block_piece(
    number: int,
    source: np.ndarray,
    alu: np.ndarray,
    algorithm: int,
    mul: np.ndarray,
    multiply: int,
    mul_first: bool,
    relu: bool,
    out: np.ndarray,
) -> None:
    """A line of at most LINE elements of :func:`float_block`."""
    _, pixels, atom = source.shape
    most = LINE // atom
    chunks = pieces(pixels, most)
    row, start = number // chunks, number % chunks * most
    count = min(most, pixels - start)
    size = count * atom
    line, operand, result = np.empty(LINE, np.uint32), np.empty(LINE, np.uint32), np.empty(LINE, np.uint32)
    values = source[row].reshape(-1)[start * atom : start * atom + size]
    for i in range(size):
        line[i] = values[i]
    for turn in range(2):
        if (turn == 0) == mul_first:
            if multiply != NO_MUL:
                load_operand(operand, mul, row, start, count)
                _multiply(line, operand, result, size, multiply == PRELU)
        elif algorithm != NO_ALU:
            load_operand(operand, alu, row, start, count)
            _alu(line, operand, result, size, algorithm)
    if relu:
        for i in range(size):
            line[i] = fp_relu(np.int64(line[i]), FP32)
    target = out[row].reshape(-1)[start * atom : start * atom + size]
    for i in range(size):
        target[i] = line[i]


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
    work, number = BLOCK_COST * source.size, rows * ceil_div(pixels, LINE // atom)
    _block_piece.for_work(work, number, source, alu, algorithm, mul, multiply, mul_first, relu, out)


@in_pieces()
def _narrow_piece(number: int, values: np.ndarray, mode: int, results: np.ndarray, counts: np.ndarray) -> None:
    largest, nans = 0, 0
    for i in range(number * LINE, min((number + 1) * LINE, values.size)):
        bits = fp32_to_fp16(np.int64(values[i]))
        if mode == TO_INT16:
            results[i] = fp16_to_int16(bits)
        else:
            results[i] = bits
        if mode == TO_FP16:
            largest += (bits & 0x7FFF) == FP16_LARGEST
            nans += is_nan(bits, FP16)
    counts[number, 0], counts[number, 1] = largest, nans


def narrow(source: np.ndarray, mode: int, out: np.ndarray, counts: np.ndarray) -> None:
    """fp32 to the output precision (sdp_c.cpp:44): fp16 first, then int16 from that.

    int8 output is not converted: it is the low byte of the fp16 number. Both are C-contiguous. counts: int64 (2),
    receives the number of largest fp16 numbers (the saturation counter) and of NaN results; both stay 0 for integer
    output.
    """
    by_line = np.zeros((ceil_div(source.size, LINE), 2), np.int64)
    _narrow_piece.for_work(NARROW_COST * source.size, len(by_line), source.reshape(-1), mode, out.reshape(-1), by_line)
    counts += by_line.sum(axis=0)


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
