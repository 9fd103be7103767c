"""Convolution sums on integers, and input conversion.

A layer comes as ``lines`` (batches, rows, elements of a line), already padded, with weights (kernels, rows, columns,
channels). Output (y, x) takes the line elements ``x * stride_x + column * stride_column + channel`` of the rows
``y * stride_y + row * dilation_y``. Feature data and images are both of this shape.

Exactness: a product of matrices in float32 (float64) is exact in every order of additions while no sum of magnitudes
can pass 2^24 (2^53). CACC saturates at 48 bits after each MAC atom, which cannot happen while no sum of magnitudes
passes 2^47. :func:`largest_sum` is that bound; beyond it :func:`saturating_sums` does what CACC does.

Source: hls/cdma_libs/cdma_cvt.cpp:14 and its checker cmod/cdma/NV_NVDLA_cdma.cpp:3880.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.kernels.integers import all_clamped, all_converted, all_saturated, int_shift_right, round_half_away
from nvdla.kernels.jit.compilation import njit

CACC_BITS = 48
BLOCK_ELEMENTS = 1 << 21
"""Elements of the window matrix that are made at a time (8 MiB in float32)."""


@dataclass(frozen=True)
class ConvolutionWindow:
    """Steps of a kernel over the padded lines, in elements and rows."""

    out_height: int
    out_width: int
    stride_y: int
    stride_x: int
    dilation_y: int
    stride_column: int


def windows(lines: np.ndarray, window: ConvolutionWindow, kernel: tuple[int, int, int]) -> np.ndarray:
    """A view (batches, out height, out width, rows, columns, channels) on ``lines``; ``kernel`` is the last three."""
    batch, row, element = lines.strides
    strides = (
        batch,
        row * window.stride_y,
        element * window.stride_x,
        row * window.dilation_y,
        element * window.stride_column,
        element,
    )
    return as_strided(lines, (lines.shape[0], window.out_height, window.out_width, *kernel), strides, writeable=False)


def largest_sum(weights: np.ndarray) -> int:
    """No sum of one output's products, nor any part of it, can have a larger magnitude than this."""
    largest = -int(np.iinfo(weights.dtype).min)
    magnitudes = np.abs(weights.reshape(weights.shape[0], -1).astype(np.int64)).sum(axis=1)
    return int(magnitudes.max(initial=0)) * largest


def pack_weights(weights: np.ndarray) -> np.ndarray:
    """Weights as the matrix (elements of a window, kernels), in the narrowest float type that is exact."""
    exact = np.float32 if largest_sum(weights) < 1 << 24 else np.float64
    return np.ascontiguousarray(weights.reshape(weights.shape[0], -1).T, exact)


def exact_sums(
    lines: np.ndarray, packed: np.ndarray, window: ConvolutionWindow, kernel: tuple[int, int, int]
) -> np.ndarray:
    """All sums as int64 (batches, height, width, kernels); for :func:`largest_sum` below 2^47."""
    view = windows(lines, window, kernel)
    batches, height, width = view.shape[:3]
    sums = np.empty((batches, height, width, packed.shape[1]), np.int64)
    columns = max(1, min(width, BLOCK_ELEMENTS // packed.shape[0]))
    rows = max(1, BLOCK_ELEMENTS // (columns * packed.shape[0]))
    for batch, top, left in product(range(batches), range(0, height, rows), range(0, width, columns)):
        part = view[batch, top : top + rows, left : left + columns]
        matrix = part.astype(packed.dtype).reshape(-1, packed.shape[0])
        sums[batch, top : top + rows, left : left + columns] = (matrix @ packed).reshape(*part.shape[:2], -1)
    return sums


def saturating_sums(
    lines: np.ndarray, weights: np.ndarray, window: ConvolutionWindow, atoms: list[list[tuple[int, int, int, int]]]
) -> np.ndarray:
    """All sums as int64 (batches, height, width, kernels), saturated after each atom as CACC does it
    (cmod/cacc/NV_NVDLA_cacc.cpp:1077).

    ``atoms``: the steps of the sequence in order, each a list of (row, column, first channel, end channel).
    """
    view = windows(lines, window, weights.shape[1:])
    sums = np.zeros((*view.shape[:3], weights.shape[0]), np.int64)
    for batch, y in product(range(view.shape[0]), range(view.shape[1])):
        line = sums[batch, y]
        for atom in atoms:
            for row, column, first, end in atom:
                # 64 products of 16 bits stay below 2^37: exact in float64.
                part = view[batch, y, :, row, column, first:end].astype(np.float64)
                line += (part @ weights[:, row, column, first:end].T.astype(np.float64)).astype(np.int64)
            all_saturated(line, CACC_BITS, out=line)
    return sums


@njit(cache=True, nogil=True)
def deliver(sums: np.ndarray, truncate: int, out: np.ndarray) -> int:
    """CACC's delivery: shift right by ``truncate``, round half away from zero, saturate to 32 bits.

    ``sums`` int64 (batches, height, width, kernels); ``out`` int32 (batches, surfaces, height, width, atom), where
    kernels that do not exist become 0. Returns the number of saturated results (D_OUT_SATURATION).
    Source: cmod/cacc/NV_NVDLA_cacc.cpp:822.
    """
    batches, height, width, kernels = sums.shape
    atom = out.shape[4]
    saturated = 0
    for n in range(batches):
        for s in range(out.shape[1]):
            for y in range(height):
                for x in range(width):
                    for a in range(atom):
                        k = s * atom + a
                        value = 0
                        if k < kernels:
                            value = int_shift_right(sums[n, y, x, k], truncate, 33)
                            result = int_shift_right(sums[n, y, x, k], truncate, 32)
                            saturated += value != result
                            value = result
                        out[n, s, y, x, a] = value
    return saturated


@deliver.with_fallback(lambda sums, truncate, out: 16 * (sums.size + out.size))
def _deliver_fallback(sums: np.ndarray, truncate: int, out: np.ndarray) -> int:
    wide: Any = round_half_away.py_func(sums, truncate)
    narrow = all_saturated(wide, 32)
    batches, surfaces, height, width, atom = out.shape
    channels = np.zeros((batches, height, width, surfaces * atom), np.int32)
    channels[..., : sums.shape[3]] = narrow
    out[:] = channels.reshape(batches, height, width, surfaces, atom).transpose(0, 3, 1, 2, 4)
    return int(np.count_nonzero(wide != narrow))


@njit(cache=True, nogil=True)
def shift(accumulators: np.ndarray, truncate: int) -> None:
    """CACC's delivery in place, for int32 sums that are exact: shift right, round half away from zero."""
    for i in range(accumulators.size):
        accumulators[i] = round_half_away(np.int64(accumulators[i]), truncate)


@shift.with_fallback(lambda accumulators, truncate: 16 * accumulators.size)
def _shift_fallback(accumulators: np.ndarray, truncate: int) -> None:
    accumulators[:] = round_half_away.py_func(accumulators.astype(np.int64), truncate)


def convert_input(values: np.ndarray, offsets: np.ndarray, scale: int, truncate: int, precision: int) -> np.ndarray:
    """``(values - offsets) * scale`` shifted right by ``truncate`` (0..63), rounded half away from zero, saturated.

    ``values``: integers of at most 17 signed bits, channels last; ``offsets``: one per channel. ``precision`` 0 gives
    int8, 1 int16, 2 the bit patterns (uint16) of fp16, to which the 17-bit result is rounded to nearest even.
    """
    bits = (8, 16, 17)[precision]
    converted = all_converted(values.astype(np.int32), np.asarray(offsets, np.int64), scale, truncate, bits)
    if precision < 2:
        return converted.astype((np.int8, np.int16)[precision])
    # 65520 and more would round to infinity, which NVDLA never makes: the largest finite number instead.
    return all_clamped(converted, -65504, 65504).astype(np.float16).view(np.uint16)
