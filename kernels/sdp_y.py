"""SDP Y (EW) without its lookup tables, integer processing: operand converter, multiplier, ALU, in this order.

The product has 64 bits, so this is int64 arithmetic. Cubes and operands as in ``nvdla.kernels.sdp``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nvdla.kernels.integers import convert, int_shift_right, saturate
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.sdp import LINE, MAX, MIN, MUL, NO_ALU, NO_MUL, PRELU, SUM, load_operand

EQL = 3


class Core(NamedTuple):
    """``truncate``: right shift of the product, 0..1023."""

    multiply: int
    truncate: int
    algorithm: int


@njit(cache=True, nogil=True)
def convert_operand(operand: np.ndarray, offset: int, scale: int, truncate: int) -> np.ndarray:
    """(x - offset) * scale / 2**truncate in 32 bits (sdp_y_cvt.cpp:17). int16 in, int32 out, any shape."""
    out = np.empty(operand.size, np.int32)
    flat = operand.reshape(-1)
    for i in range(flat.size):
        out[i] = convert(np.int64(flat[i]), offset, scale, truncate, 32)
    return out.reshape(operand.shape)


@njit(cache=True, nogil=True)
def _multiply(line: np.ndarray, operand: np.ndarray, size: int, core: Core) -> None:
    """Y multiplier and truncation (sdp_y_core.cpp:121); PReLU lets x >= 0 pass."""
    prelu = core.multiply == PRELU
    for i in range(size):
        if not (prelu and line[i] >= 0):
            line[i] = int_shift_right(line[i] * operand[i], core.truncate, 32)


@njit(cache=True, nogil=True)
def _alu(line: np.ndarray, operand: np.ndarray, size: int, algorithm: int) -> None:
    """Y ALU on 33 bits, saturated to 32 (sdp_y_core.cpp:27). EQL gives 1 where the numbers differ."""
    if algorithm == SUM:
        for i in range(size):
            line[i] = saturate(line[i] + operand[i], 32)
    elif algorithm == MAX:
        for i in range(size):
            line[i] = max(line[i], operand[i])
    elif algorithm == MIN:
        for i in range(size):
            line[i] = min(line[i], operand[i])
    else:
        for i in range(size):
            line[i] = 1 if line[i] != operand[i] else 0


@njit(cache=True, nogil=True)
def y_core(source: np.ndarray, mul: np.ndarray, alu: np.ndarray, core: Core, out: np.ndarray) -> None:
    """Multiplier and ALU of Y. source, out: int32 (rows, pixels, A); operands: int32 (rows' or 1, pixels or 1, A)."""
    rows, pixels, atom = source.shape
    most = LINE // atom
    line = np.empty(LINE, np.int64)
    operand = np.empty(LINE, np.int64)
    for row in range(rows):
        for start in range(0, pixels, most):
            count = min(most, pixels - start)
            size = count * atom
            values = source[row].reshape(-1)[start * atom : start * atom + size]
            for i in range(size):
                line[i] = values[i]
            if core.multiply != NO_MUL:
                load_operand(operand, mul, row, start, count)
                _multiply(line, operand, size, core)
            if core.algorithm != NO_ALU:
                load_operand(operand, alu, row, start, count)
                _alu(line, operand, size, core.algorithm)
            result = out[row].reshape(-1)[start * atom : start * atom + size]
            for i in range(size):
                result[i] = line[i]


__all__ = ["EQL", "MAX", "MIN", "MUL", "NO_ALU", "NO_MUL", "PRELU", "SUM", "Core", "convert_operand", "y_core"]
