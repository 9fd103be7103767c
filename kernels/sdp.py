"""SDP arithmetic on integers: X1, X2 and Y operations, output conversion.

All values are exact in float64, which vectorizes where 64-bit integer multiplication and shifts do not: X works on
33-bit sums and 49-bit products (C model cmod/hls/sdp/sdp.h), the converter on 49-bit products, a power-of-two factor
does not round, and what remains is below 2**53 (:func:`nvdla.kernels.integers.rounding`: why adding one half is safe).

A cube is (rows, pixels, A): rows = batch * surfaces, pixels = height * width, A = elements of one atom. Work goes
through lines of LINE elements that stay in the first-level cache, with one simple loop per stage. So the loops have no
branches on modes and do not depend on the size of an atom.

The product has 64 bits, so this is int64 arithmetic. Cubes and operands as in ``nvdla.kernels.sdp``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from nvdla.kernels.integers import (
    all_clamped,
    all_requantized,
    clamp,
    convert,
    int_shift_right,
    pieces,
    requantize,
    saturate,
)
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.recorded_calls import ALONE, JOINED, WAKING, RecordedCall, float64s, int8s, int16s, words
from nvdla.kernels.jit.variants import recorded
from nvdla.util.rounding import ceil_div

__all__ = ["EQL", "MAX", "MIN", "MUL", "NO_ALU", "NO_MUL", "PRELU", "SUM", "Core", "convert_operand", "y_core"]

LINE = 2048
FALLBACK_LINE = 1 << 15
SHARED_SIZE, WAKING_SIZE = 1 << 14, 1 << 17
INT32_LOW = -2147483648.0
INT32_HIGH = 2147483647.0
# The status bit of the converter compares the 17-bit result with the shifted product and forgives a difference
# of one (cmod/hls/include/nvdla_int.h:57 IntShiftRightSat).
SATURATED_HIGH = 65537.0
SATURATED_LOW = -65537.0

MAX, MIN, SUM, NO_ALU = 0, 1, 2, 4
NO_MUL, MUL, PRELU = 0, 1, 2


class StageValues(NamedTuple):
    """One X block (X1 = BS, X2 = BN). ``active`` 0: bypassed whole.

    ``operand_scale``: 2**alu_shift; ``result_scale``: 2**-mul_shift (applies without a multiplication too).
    """

    active: int
    algorithm: int
    operand_scale: float
    multiply: int
    result_scale: float
    relu: int


class Converter(NamedTuple):
    """Output converter: (x - offset) * scale, ``scale`` = CVT_SCALE * 2**-CVT_SHIFT; ``low``, ``high``: the clamp."""

    offset: float
    scale: float
    low: float
    high: float


BYPASS = StageValues(0, NO_ALU, 1.0, NO_MUL, 1.0, 0)
RAW = Converter(0.0, 1.0, INT32_LOW, INT32_HIGH)  # 32-bit values pass unchanged


@njit(cache=True, nogil=True, inline="always")
def _converted(x: float, converter: Converter) -> float:
    """Apply the output converter's offset and scale, before the rounding (sdp_c.cpp:19)."""
    return (x - converter.offset) * converter.scale


@njit(cache=True, nogil=True, inline="always")
def _is_saturated(y: float) -> bool:
    """Check whether the converter's status bit is set for a value."""
    return (y >= SATURATED_HIGH) | (y < SATURATED_LOW)


@njit(cache=True, nogil=True)
def load_operand(line: np.ndarray, operand: np.ndarray, row: int, start: int, count: int) -> None:
    """Operand elements for ``count`` pixels: per element, or one atom (or register) repeated along the line."""
    row = row % operand.shape[0]
    atom = operand.shape[2]
    if operand.shape[1] > 1:
        flat = operand[row].reshape(-1)
        for i in range(count * atom):
            line[i] = flat[start * atom + i]
        return
    channels = operand[row, 0]
    for pixel in range(count):
        for element in range(atom):
            line[pixel * atom + element] = channels[element]


@njit(cache=True, nogil=True)
def _alu(line: np.ndarray, operand: np.ndarray, size: int, stage: StageValues) -> None:
    """X ALU on 33 bits; the operand is shifted left first and saturated to 32 bits (sdp_x.cpp:31)."""
    if stage.operand_scale != 1.0:
        for i in range(size):
            operand[i] = clamp(operand[i] * stage.operand_scale, INT32_LOW, INT32_HIGH)
    if stage.algorithm == SUM:
        for i in range(size):
            line[i] += operand[i]
    elif stage.algorithm == MAX:
        for i in range(size):
            line[i] = max(line[i], operand[i])
    else:
        for i in range(size):
            line[i] = min(line[i], operand[i])


@njit(cache=True, nogil=True)
def _multiply(line: np.ndarray, operand: np.ndarray, size: int, stage: StageValues) -> None:
    """X multiplier and shift (sdp_x.cpp:150, :261). PReLU lets x >= 0 pass both, wrapped to 32 bits."""
    if stage.multiply == PRELU:
        for i in range(size):
            x = line[i]
            y = np.float64(requantize(x * operand[i] * stage.result_scale, INT32_LOW, INT32_HIGH))
            passed = x - 4294967296.0 if x > INT32_HIGH else x
            line[i] = passed if x >= 0.0 else y
        return
    if stage.multiply == MUL:
        for i in range(size):
            line[i] *= operand[i]
    if stage.result_scale == 1.0:
        for i in range(size):
            line[i] = clamp(line[i], INT32_LOW, INT32_HIGH)
        return
    for i in range(size):
        line[i] = np.float64(requantize(line[i] * stage.result_scale, INT32_LOW, INT32_HIGH))


@njit(cache=True, nogil=True)
def _x_block(
    line: np.ndarray,
    operand: np.ndarray,
    alu: np.ndarray,
    mul: np.ndarray,
    row: int,
    start: int,
    count: int,
    stage: StageValues,
) -> None:
    """One X block on a line: ALU, multiplier, shift, ReLU."""
    size = count * alu.shape[2]
    if stage.algorithm != NO_ALU:
        load_operand(operand, alu, row, start, count)
        _alu(line, operand, size, stage)
    if stage.multiply != NO_MUL:
        load_operand(operand, mul, row, start, count)
    _multiply(line, operand, size, stage)
    if stage.relu:
        for i in range(size):
            line[i] = max(line[i], 0.0)


@njit(cache=True, nogil=True)
def _convert(line: np.ndarray, size: int, converter: Converter, out: np.ndarray) -> int:
    """Output converter of a line (sdp_c.cpp:19); returns the number of saturated elements."""
    saturated = 0
    for i in range(size):
        y = _converted(line[i], converter)
        saturated += _is_saturated(y)
        out[i] = requantize(y, converter.low, converter.high)
    return saturated


@njit(cache=True, nogil=True)
def _lines(
    source: np.ndarray,
    alu1: np.ndarray,
    mul1: np.ndarray,
    stage1: StageValues,
    alu2: np.ndarray,
    mul2: np.ndarray,
    stage2: StageValues,
    converter: Converter,
    out: np.ndarray,
    first: int,
    last: int,
) -> int:
    """Lines ``first`` to ``last`` of the cube; returns the number of saturated elements."""
    pixels, atom = source.shape[1], source.shape[2]
    most = LINE // atom
    per_row = pieces(pixels, most)
    line = np.empty(LINE, np.float64)
    operand = np.empty(LINE, np.float64)
    saturated = 0
    for index in range(first, last):
        row = index // per_row
        start = (index - row * per_row) * most
        count = min(most, pixels - start)
        size = count * atom
        values = source[row].reshape(-1)[start * atom : start * atom + size]
        for i in range(size):
            line[i] = values[i]
        if stage1.active:
            _x_block(line, operand, alu1, mul1, row, start, count, stage1)
        if stage2.active:
            _x_block(line, operand, alu2, mul2, row, start, count, stage2)
        saturated += _convert(line, size, converter, out[row].reshape(-1)[start * atom : start * atom + size])
    return saturated


@_lines.with_fallback(lambda source, *_: 24 * source.size)
def _lines_fallback(
    source: np.ndarray,
    alu1: np.ndarray,
    mul1: np.ndarray,
    stage1: StageValues,
    alu2: np.ndarray,
    mul2: np.ndarray,
    stage2: StageValues,
    converter: Converter,
    out: np.ndarray,
    first: int,
    last: int,
) -> int:
    """Compute all lines, in parts of a row that stay in the second-level cache."""
    saturated, most = 0, max(1, FALLBACK_LINE // source.shape[2])
    for row, start in itertools.product(range(source.shape[0]), range(0, source.shape[1], most)):
        part = slice(start, start + most)
        x = source[row, part].astype(np.float64)
        for alu, mul, stage in ((alu1, mul1, stage1), (alu2, mul2, stage2)):
            if stage.active:
                x = _x_block_fallback(x, _operand_part(alu, row, part), _operand_part(mul, row, part), stage)
        y: Any = _converted.py_func(x, converter)
        if y.max() >= SATURATED_HIGH or y.min() < SATURATED_LOW:
            saturated += int(np.count_nonzero(_is_saturated.py_func(y)))
        out[row, part] = all_requantized(y, converter.low, converter.high)
    return saturated


def _operand_part(operand: np.ndarray, row: int, part: slice) -> np.ndarray:
    """Return the operand of some pixels of a row, or the one atom that they share."""
    return operand[row % operand.shape[0], part if operand.shape[1] > 1 else slice(1)]


def _x_block_fallback(x: np.ndarray, alu: np.ndarray, mul: np.ndarray, stage: StageValues) -> np.ndarray:
    """:func:`_x_block` on (pixels, A)."""
    if stage.algorithm != NO_ALU:
        operand = all_clamped(alu * stage.operand_scale, INT32_LOW, INT32_HIGH)
        x = {SUM: np.add, MAX: np.maximum, MIN: np.minimum}[stage.algorithm](x, operand)
    y = x if stage.multiply == NO_MUL else x * mul
    if stage.result_scale == 1.0:
        y = all_clamped(y, INT32_LOW, INT32_HIGH)
    else:
        y = all_requantized(y * stage.result_scale, INT32_LOW, INT32_HIGH)
    if stage.multiply == PRELU:
        y = np.where(x >= 0.0, np.where(x > INT32_HIGH, x - 2.0**32, x), y)
    return np.maximum(y, 0.0, out=y) if stage.relu else y


@njit(cache=True, nogil=True)
def _bias_lines(
    source: np.ndarray, bias: np.ndarray, floor: float, converter: Converter, out: np.ndarray, first: int, last: int
) -> int:
    """The usual end of a convolution: + bias, ReLU or not (``floor``), converter; rows ``first`` to ``last``.

    Equal to ``_lines`` with X1 = SUM without shift or multiplication and X2 bypassed, in a single loop.
    """
    pixels, atom = source.shape[1], source.shape[2]
    most = min(pixels, max(1, 512 // atom))
    repeated = np.empty(most * atom, np.float64)
    saturated = 0
    for row in range(first, last):
        load_operand(repeated, bias, row, 0, most)
        values = source[row].reshape(-1)
        result = out[row].reshape(-1)
        for start in range(0, pixels * atom, most * atom):
            x = values[start : start + most * atom]
            z = result[start : start + most * atom]
            for i in range(x.size):
                y = _converted(clamp(x[i] + repeated[i], floor, INT32_HIGH), converter)
                saturated += _is_saturated(y)
                z[i] = requantize(y, converter.low, converter.high)
    return saturated


@_bias_lines.with_fallback(lambda source, bias, floor, converter, out, first, last: 8 * source.size)
def _bias_lines_fallback(
    source: np.ndarray, bias: np.ndarray, floor: float, converter: Converter, out: np.ndarray, first: int, last: int
) -> int:
    stage = StageValues(1, SUM, 1.0, NO_MUL, 1.0, int(floor == 0.0))
    return _lines_fallback(source, bias, bias, stage, bias, bias, BYPASS, converter, out, first, last)


def x_and_convert(
    source: np.ndarray,
    alu1: np.ndarray,
    mul1: np.ndarray,
    stage1: StageValues,
    alu2: np.ndarray,
    mul2: np.ndarray,
    stage2: StageValues,
    converter: Converter,
    out: np.ndarray,
) -> int:
    """X1, X2 and the output converter.

    source: int32 (rows, pixels, A); out: the same shape, int8, int16 or int32; operands: int16 (rows' or 1, pixels
    or 1, A), where rows' divides rows (a batch shares its operands). Returns the number of elements that the
    converter's status bit calls saturated.
    """
    plain = stage1.algorithm == SUM and stage1.operand_scale == 1.0 and alu1.shape[1] == 1
    plain &= stage1.multiply == NO_MUL and stage1.result_scale == 1.0
    if stage1.active and plain and not stage2.active:
        floor = 0.0 if stage1.relu else INT32_LOW
        return _bias_lines(source, alu1, floor, converter, out, 0, source.shape[0])
    most = LINE // source.shape[2]
    lines = source.shape[0] * ceil_div(source.shape[1], most)
    return _lines(source, alu1, mul1, stage1, alu2, mul2, stage2, converter, out, 0, lines)


SOURCE, OUT, ROWS, PIXELS, ATOM = 0, 2, 4, 5, 6
OPERANDS, OPERAND_FIELDS = 7, 6
FLAGS = OPERANDS + 4 * OPERAND_FIELDS
FACTORS = FLAGS + 8
FIELDS = FACTORS + 8
"""The fields of a record of :func:`x_call`: addresses of both cubes, each with the bytes from a row to the next, their
shape, four :class:`MemoryOperand`, flags of both stages, and numbers in float64."""


class MemoryOperand(NamedTuple):
    """Operand as an address and the bytes from a row to the next, ``rows``, ``pixels`` (1: all take the same atom),
    bytes of an element, and elements from one to the next."""

    address: int
    row_stride: int
    rows: int
    pixels: int
    size: int
    stride: int


@njit(nogil=True)
def _read_operand(record: np.ndarray, which: int, row: int, start: int, count: int) -> np.ndarray:
    """Return the elements of operand ``which`` for ``count`` pixels: int16 (1, count or 1, A)."""
    f, atom = record[OPERANDS + which * OPERAND_FIELDS :], record[ATOM]
    operand = MemoryOperand(f[0], f[1], f[2], f[3], f[4], f[5])
    each_pixel = operand.pixels > 1
    result = np.empty((1, count if each_pixel else 1, atom), np.int16)
    flat, stride = result.reshape(-1), operand.stride
    address = operand.address + row % operand.rows * operand.row_stride
    if each_pixel:
        address += start * atom * stride * operand.size
    if operand.size == 1:
        bytes_there = int8s(address, (flat.size - 1) * stride + 1)
        for i in range(flat.size):
            flat[i] = bytes_there[i * stride]
    else:
        words_there = int16s(address, (flat.size - 1) * stride + 1)
        for i in range(flat.size):
            flat[i] = words_there[i * stride]
    return result


@njit(nogil=True)
def _stage_of(record: np.ndarray, factors: np.ndarray, number: int) -> StageValues:
    flags = record[FLAGS + 4 * number :]
    return StageValues(flags[0], flags[1], factors[2 * number], flags[2], factors[2 * number + 1], flags[3])


@njit(nogil=True)
def _count_lines(address: int) -> int:
    record = words(address, FIELDS)
    return record[ROWS] * pieces(record[PIXELS], LINE // record[ATOM])


@recorded(_count_lines)
def _x_line(number: int, address: int) -> None:
    record, factors = words(address, FIELDS), float64s(address + 8 * FACTORS, 8)
    pixels, atom = record[PIXELS], record[ATOM]
    most = LINE // atom
    per_row = pieces(pixels, most)
    row = number // per_row
    start = (number - row * per_row) * most
    count = min(most, pixels - start)
    source = int8s(record[SOURCE] + row * record[SOURCE + 1] + start * atom, count * atom).reshape(1, count, atom)
    out = int8s(record[OUT] + row * record[OUT + 1] + start * atom, count * atom).reshape(1, count, atom)
    alu1, mul1 = _read_operand(record, 0, row, start, count), _read_operand(record, 1, row, start, count)
    alu2, mul2 = _read_operand(record, 2, row, start, count), _read_operand(record, 3, row, start, count)
    stage1, stage2 = _stage_of(record, factors, 0), _stage_of(record, factors, 1)
    converter = Converter(factors[4], factors[5], factors[6], factors[7])
    _lines(source, alu1, mul1, stage1, alu2, mul2, stage2, converter, out, 0, 1)


def x_call(
    source: np.ndarray,
    operands: Sequence[MemoryOperand],
    stages: tuple[StageValues, StageValues],
    converter: Converter,
    out: np.ndarray,
    kept: Sequence[np.ndarray] = (),
) -> RecordedCall:
    """:func:`x_and_convert` from int8 to int8 in memory, as a recorded call.

    Args:
        source: The input, uint8 (surfaces, height, width, A) with packed surfaces.
        operands: ALU and MUL of X1, then those of X2.
        stages: X1 and X2.
        converter: The output converter.
        out: The result, as ``source``. An element may only overlap its own input and operands.
        kept: Arrays of the operands.
    """
    rows, height, width, atom = source.shape
    numbers = [source.ctypes.data, source.strides[0], out.ctypes.data, out.strides[0], rows, height * width, atom]
    numbers += itertools.chain(*operands)
    for stage in stages:
        numbers += [stage.active, stage.algorithm, stage.multiply, stage.relu]
    factors = [factor for stage in stages for factor in (stage.operand_scale, stage.result_scale)]
    numbers += np.array([*factors, *converter], np.float64).view(np.int64).tolist()
    sharing = WAKING if source.size > WAKING_SIZE else JOINED if source.size > SHARED_SIZE else ALONE
    return RecordedCall(_x_line, numbers, (source, out, *kept), sharing, source.size)


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
def _y_multiply(line: np.ndarray, operand: np.ndarray, size: int, core: Core) -> None:
    """Y multiplier and truncation (sdp_y_core.cpp:121); PReLU lets x >= 0 pass."""
    prelu = core.multiply == PRELU
    for i in range(size):
        if not (prelu and line[i] >= 0):
            line[i] = int_shift_right(line[i] * operand[i], core.truncate, 32)


@njit(cache=True, nogil=True)
def _y_alu(line: np.ndarray, operand: np.ndarray, size: int, algorithm: int) -> None:
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
                _y_multiply(line, operand, size, core)
            if core.algorithm != NO_ALU:
                load_operand(operand, alu, row, start, count)
                _y_alu(line, operand, size, core.algorithm)
            result = out[row].reshape(-1)[start * atom : start * atom + size]
            for i in range(size):
                result[i] = line[i]
