"""Plain numpy evaluation of a lowered program: what the hardware must answer, written without any of its code.

Integer programs are exact, element for element. fp16 programs are evaluated in float64 with one rounding to half at the
end of each operation: the hardware's shortened mantissas are within a few units of that, not equal to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nvdla.compiler.builder.floating import convolve, extreme, pad, windows
from nvdla.compiler.builder.ir import (
    DTYPES,
    Contract,
    Convolve,
    LoweredProgram,
    Lut,
    LutTable,
    Normalize,
    Operation,
    Pool,
    Process,
    Root,
    Softmax,
    Stage,
    Surface,
)
from nvdla.errors import BuildError
from nvdla.util.precision import Precision

LIMITS: dict[str, tuple[int, int]] = {Precision.INT8: (-128, 127), Precision.INT16: (-32768, 32767)}
_INT32 = (-(1 << 31), (1 << 31) - 1)
# 65536 / k as the firmware writes it (kmd/firmware/pdp.c, recip_kernel_size).
RECIPROCALS = (0x10000, 0x8000, 0x5555, 0x4000, 0x3333, 0x2AAA, 0x2492, 0x2000)


class ReferenceMemory:
    """The arrays (C, H, W) of the roots."""

    def __init__(self) -> None:
        self._arrays: dict[int, np.ndarray] = {}

    def array(self, root: Root) -> np.ndarray:
        """The elements (channels, height, width) of a tensor; zeros before anything is stored."""
        if id(root) not in self._arrays:
            shape = (root.channels, root.height, root.width)
            self._arrays[id(root)] = np.zeros(shape, DTYPES[root.precision]) if root.data is None else root.data
        return self._arrays[id(root)]

    def load(self, surface: Surface) -> np.ndarray:
        """Elements of a surface as int64 or float64."""
        values = surface.of(self.array(surface.root))
        return values.astype(np.float64 if surface.precision == Precision.FP16 else np.int64)

    def store(self, surface: Surface, values: np.ndarray) -> None:
        """Store elements at the position of a surface."""
        surface.put(self.array(surface.root), values)


def evaluate(program: LoweredProgram, inputs: Mapping[str, np.ndarray]) -> ReferenceMemory:
    """Run the program on elements (C, H, W) or (1, C, H, W) by input name; gives all arrays."""
    memory = inputs_of(program, inputs)
    for operation in program.operations:
        step(operation, memory)
    return memory


def inputs_of(program: LoweredProgram, inputs: Mapping[str, np.ndarray]) -> ReferenceMemory:
    """Return a memory with the inputs of a program, as :func:`evaluate` takes them."""
    memory = ReferenceMemory()
    for root in program.inputs:
        if root.name not in inputs:
            raise BuildError(f"input {root.name}: must be given")
        elements = np.asarray(inputs[root.name]).reshape(root.channels, root.height, root.width)
        memory.array(root)[...] = elements if root.converter is None else _of_pixels(elements, root)
    return memory


def _of_pixels(elements: np.ndarray, root: Root) -> np.ndarray:
    """Unsigned pixels as CDMA converts them."""
    converter = root.converter
    assert converter is not None
    stored = converter.numbers.largest if converter.lift else (1 << 8 * elements.itemsize) - 1
    pixels = elements.astype(np.int64) & stored
    means = np.array(converter.means)[:, None, None]
    product = ((pixels << converter.lift) - means) * converter.scale
    result = round_half_away(product, converter.shift)
    return result if root.precision == Precision.FP16 else _limit(result, LIMITS[root.precision])


def step(operation: Operation, memory: ReferenceMemory) -> None:
    """One operation on the arrays."""
    forms: dict[type, Callable[[Any, ReferenceMemory], None]] = {
        Convolve: _convolve,
        Process: _process,
        Pool: _pool,
        Normalize: _normalize,
        Contract: _contract,
        Softmax: _softmax,
    }
    forms[type(operation)](operation, memory)


def round_half_away(x: np.ndarray, shift: int) -> np.ndarray:
    """x / 2**shift to the nearest whole number, ties away from zero. int64; |x| < 2**62."""
    if shift == 0:
        return x
    if shift > 62:
        return np.zeros_like(x)
    return np.sign(x) * ((np.abs(x) + (1 << (shift - 1))) >> shift)


def _limit(x: np.ndarray, limits: tuple[int, int]) -> np.ndarray:
    return np.clip(x, *limits)


def _convolve(operation: Convolve, memory: ReferenceMemory) -> None:
    x = pad(memory.load(operation.source)[None], operation.padding, operation.source.zero)
    if operation.winograd:
        _finish(operation.process, _by_winograd(x[0], operation.weights), memory)
        return
    total = convolve(x, operation.weights, operation.stride, (0, 0, 0, 0), operation.dilation)[0]
    if operation.source.precision != Precision.FP16:
        total = _limit(round_half_away(total.astype(np.int64), operation.truncate), _INT32)
    _finish(operation.process, total, memory)


_DATA = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float64)
_KERNELS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
_SUMS = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float64)


def _by_winograd(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A convolution of (C, H, W) with (K, C, 3, 3) halves by F(2x2, 3x3), whose transforms of data and weights round:
    that costs 2 to 8 dB."""
    channels, height, width = x.shape
    even = np.pad(x, ((0, 0), (0, height % 2), (0, width % 2)))
    tiles = sliding_window_view(even, (4, 4), (1, 2))[:, ::2, ::2].astype(np.float64)
    data = to_half(_of_eleven_bits(_DATA @ _of_eleven_bits(_DATA @ tiles).swapaxes(-1, -2)).swapaxes(-1, -2))
    kernels = to_half(_KERNELS @ weights.astype(np.float64) @ _KERNELS.T).astype(np.float64)
    rows, columns = data.shape[1:3]
    positions = data.astype(np.float64).reshape(channels, rows * columns, 16).transpose(2, 0, 1)
    sums = kernels.reshape(len(kernels), channels, 16).transpose(2, 0, 1) @ positions
    squares = sums.transpose(1, 2, 0).reshape(len(kernels), rows, columns, 4, 4)
    results = (_SUMS @ squares @ _SUMS.T).transpose(0, 1, 3, 2, 4).reshape(len(kernels), 2 * rows, 2 * columns)
    return results[:, : height - 2, : width - 2]


def _of_eleven_bits(x: np.ndarray) -> np.ndarray:
    """Nearest numbers of fp17, whose exponent is wider than that of a half."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2048) / 2048, exponent)


def _process(operation: Process, memory: ReferenceMemory) -> None:
    _finish(operation, memory.load(operation.taken), memory)


def _finish(process: Process, x: np.ndarray, memory: ReferenceMemory) -> None:
    """Stages, table and output converter of the SDP."""
    for stage in process.stages:
        x = (_half_stage if x.dtype == np.float64 else _integer_stage)(stage, x, memory)
    if process.lut is not None:
        x = look_up(process.lut, x)
    if x.dtype == np.float64:
        memory.store(process.destination, to_half(x))
        return
    convert = process.convert
    x = round_half_away((x - convert.offset) * convert.scale, convert.shift)
    memory.store(process.destination, _limit(x, LIMITS[process.destination.precision]))


def _operand(operand: object, memory: ReferenceMemory) -> np.ndarray:
    if isinstance(operand, Surface):
        return memory.load(operand)
    values = np.asarray(operand)
    values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    return values[:, None, None] if values.ndim else values


def _integer_stage(stage: Stage, x: np.ndarray, memory: ReferenceMemory) -> np.ndarray:
    if stage.alu is not None:
        operand = _limit(_operand(stage.alu_operand, memory) << stage.alu_shift, _INT32)
        x = {"add": np.add, "max": np.maximum, "min": np.minimum}[stage.alu](x, operand)
    if stage.multiplier is not None:
        product = _limit(round_half_away(x * _operand(stage.multiplier, memory), stage.truncate), _INT32)
        x = np.where(x >= 0, x, product) if stage.prelu else product
    else:
        x = _limit(round_half_away(x, stage.truncate), _INT32)
    return np.maximum(x, 0) if stage.relu else x


def _half_stage(stage: Stage, x: np.ndarray, memory: ReferenceMemory) -> np.ndarray:
    if stage.alu is not None:
        x = {"add": np.add, "max": np.maximum, "min": np.minimum}[stage.alu](x, _operand(stage.alu_operand, memory))
    if stage.multiplier is not None:
        product = x * _operand(stage.multiplier, memory)
        x = np.where(x >= 0, x, product) if stage.prelu else product
    return np.maximum(x, 0.0) if stage.relu else x


def to_half(x: np.ndarray) -> np.ndarray:
    """Nearest half; the hardware makes no infinities."""
    return np.clip(x, -65504.0, 65504.0).astype(np.float16)


def look_up(lut: Lut, x: np.ndarray, fraction_bits: int | None = None) -> np.ndarray:
    """Both tables and the choice between them. ``fraction_bits`` 16 for the CDP, which truncates the position."""
    parts = [_table(table, x, lut.precision == Precision.FP16, fraction_bits) for table in (lut.le, lut.lo)]
    (le, le_low, le_high), (lo, lo_low, lo_high) = parts
    le_hit, lo_hit = ~(le_low | le_high), ~(lo_low | lo_high)
    use_lo = np.full(x.shape, lut.prefer_lo)
    use_lo = np.where(le_low & lo_low, lut.low_lo, use_lo)
    use_lo = np.where(le_high & lo_high, lut.high_lo, use_lo)
    use_lo = np.where(le_hit & ~lo_hit, False, np.where(lo_hit & ~le_hit, True, use_lo))
    return np.where(use_lo, lo, le)


def _table(
    table: LutTable, x: np.ndarray, half: bool, fraction_bits: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(value, underflow, overflow) of one table."""
    index: np.ndarray
    part: np.ndarray
    d = x - (table.start if half else int(table.start))
    values = table.values.astype(np.float64 if half else np.int64)
    low = d <= 0
    safe = np.where(low, 1, d)
    if table.exponent:
        octave = np.floor(np.log2(safe.astype(np.float64)))
        low = low | (octave < table.select)
        part = safe / 2.0**octave - 1.0
        index = np.where(low, 0, octave - table.select)
    elif half:
        position = safe / 2.0**table.select
        index = np.floor(np.minimum(position, 1 << 20))
        part = position - index
    else:
        index = safe >> table.select
        part = safe & ((1 << table.select) - 1)
    high = ~low & (index >= table.segments)
    index = np.clip(index, 0, table.segments - 1).astype(np.int64)
    y0, y1 = values[index], values[index + 1]
    if half:
        inner = y0 + part * (y1 - y0)
        below = values[0] + d * table.underflow_slope
        above = values[-1] + (x - table.end) * table.overflow_slope
    else:
        inner = _interpolated(y0, y1, part, table.select, fraction_bits)
        below, above = values[0], values[-1]
    return np.where(low, below, np.where(high, above, inner)), low, high


def _interpolated(
    y0: np.ndarray, y1: np.ndarray, part: np.ndarray, select: int, fraction_bits: int | None
) -> np.ndarray:
    if fraction_bits is None:
        return round_half_away((y0 << select) + part * (y1 - y0), select)
    fraction = (part << fraction_bits) >> select
    return y0 + round_half_away((y1 - y0) * fraction, fraction_bits)


def _pool(operation: Pool, memory: ReferenceMemory) -> None:
    x = memory.load(operation.source)[None]
    if operation.mode == "average":
        view = windows(pad(x, operation.padding, operation.source.zero), operation.kernel, operation.stride)[0]
        memory.store(operation.destination, _average(view, x.dtype == np.float64))
        return
    larger, fill = (np.maximum, -(1 << 40)) if operation.mode == "max" else (np.minimum, 1 << 40)
    view = windows(pad(x, operation.padding, fill), operation.kernel, operation.stride)[0]
    memory.store(operation.destination, extreme(view, larger))


def _average(view: np.ndarray, half: bool) -> np.ndarray:
    """Integers: two roundings, width first, by truncated reciprocals (pdp/NV_NVDLA_pdp.cpp:1730)."""
    rows, columns = view.shape[3:]
    if half:
        return _average_of_halves(view)
    across = round_half_away(view.sum(axis=(3, 4)) * RECIPROCALS[columns - 1], 16)
    return round_half_away(across * RECIPROCALS[rows - 1], 16)


def _average_of_halves(view: np.ndarray) -> np.ndarray:
    """Sums in fp17 from left to right and from top to bottom, times both reciprocals in fp17."""
    rows, columns = view.shape[3:]
    total = np.zeros(view.shape[:3])
    for row in range(rows):
        across = view[..., row, 0]
        for column in range(1, columns):
            across = _of_eleven_bits(across + view[..., row, column])
        total = _of_eleven_bits(across + total)
    factors = _of_eleven_bits(1.0 / np.array([columns, rows]))
    return to_half(_of_eleven_bits(_of_eleven_bits(total * factors[0]) * factors[1]))


def _normalize(operation: Normalize, memory: ReferenceMemory) -> None:
    x = memory.load(operation.source)
    total = x
    if not operation.direct:
        half = operation.size // 2
        total = sliding_window_view(np.pad(x * x, ((half, half), (0, 0), (0, 0))), operation.size, axis=0).sum(-1)
    values = look_up(operation.lut, total, 16)
    if x.dtype == np.float64:
        memory.store(operation.destination, to_half(values if operation.direct else values * x))
        return
    values = _limit(values, LIMITS[Precision.INT16])
    convert = operation.convert
    result = round_half_away(
        ((values if operation.direct else values * x) - convert.offset) * convert.scale, convert.shift
    )
    memory.store(operation.destination, _limit(result, LIMITS[operation.destination.precision]))


def _contract(operation: Contract, memory: ReferenceMemory) -> None:
    """No arithmetic (rubik/NV_NVDLA_rbk.cpp:302)."""
    sy, sx = operation.stride
    x, result = memory.load(operation.source), operation.destination
    per_phase = len(x) // (sy * sx)
    for group in range(sy * sx):
        part = result.every(group // sx, sy, x.shape[1], group % sx, sx, x.shape[2])
        memory.store(part, x[group * per_phase : group * per_phase + result.channels])


def half_away(x: np.ndarray) -> np.ndarray:
    """float32 to the nearest half, ties away from zero, as the library of NVIDIA's runtime rounds (half.h)."""
    exact = np.asarray(x, np.float64)
    nearest = exact.astype(np.float16)
    outward = np.nextafter(nearest, np.copysign(np.float16(np.inf), nearest))
    tie = np.abs(outward.astype(np.float64) - exact) == np.abs(nearest.astype(np.float64) - exact)
    return np.where(tie & np.isfinite(outward), outward, nearest)


def _softmax(operation: Softmax, memory: ReferenceMemory) -> None:
    """As NVIDIA's runtime does it on the CPU (umd/core/src/runtime/Emulator.cpp)."""
    x = memory.load(operation.source)[:, 0, 0]
    integer = operation.source.precision != Precision.FP16
    # Scale factors are 32-bit floats in the descriptor.
    real = half_away(x.astype(np.float32) * np.float32(operation.source.scale)) if integer else x
    real = real.astype(np.float32)
    powers = np.exp((real - real.max()).astype(np.float64)).astype(np.float32)
    total = np.cumsum(powers, dtype=np.float32)[-1]  # in order, as the loop adds
    result = half_away(powers / total)
    if integer:
        result = np.clip(np.trunc(result.astype(np.float32) / np.float32(operation.destination.scale)), -128, 127)
    memory.store(operation.destination, result[:, None, None])
