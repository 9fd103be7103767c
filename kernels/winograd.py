"""Winograd convolution F(2x2, 3x3) of integers: CSC's transform of the data and CMAC's transform of the sums.

Sources: cmod/hls/csc_libs/csc_cvt.cpp (PRA), cmod/cmac/NV_NVDLA_cmac.h:119, :240 (POA).
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.kernels.integers import int_shift_right
from nvdla.kernels.jit.compilation import njit


def tiles(cube: np.ndarray, height: int, width: int) -> np.ndarray:
    """View (tile rows, tile columns, 4, 4, channels) of the 4x4 inputs of each 2x2 of ``height`` x ``width`` outputs.

    ``cube`` (lines, columns, channels) is padded and has at least ``height + 2`` lines and ``width + 2`` columns.
    """
    line, column, channel = cube.strides
    shape = (height // 2, width // 2, 4, 4, cube.shape[2])
    return as_strided(cube, shape, (2 * line, 2 * column, line, column, channel), writeable=False)


def transform_axis(data: np.ndarray, axis: int) -> np.ndarray:
    """C^T along one axis of length four: (d0 - d2, d1 + d2, d2 - d1, d1 - d3)."""
    d0, d1, d2, d3 = np.moveaxis(data, axis, 0)
    return np.stack((d0 - d2, d1 + d2, d2 - d1, d1 - d3), axis)


@njit(cache=True, nogil=True)
def _shift(values: np.ndarray, truncate: int, bits: int) -> None:
    for i in range(values.size):
        values[i] = int_shift_right(np.int64(values[i]), truncate, bits)


def transform_data(data: np.ndarray, truncate: int) -> np.ndarray:
    """PRA of integer tiles (..., 4, 4, channels): rows, columns, then a rounding shift saturated to the data width."""
    result = transform_axis(transform_axis(data.astype(np.int32), -3), -2)
    _shift(result.reshape(-1), truncate, 8 * data.itemsize)
    return result


def transform_sums(sums: np.ndarray) -> np.ndarray:
    """POA: A^T m A of sums (4, 4, ...) as (2, 2, ...), with A^T = [[1, 1, 1, 0], [0, 1, -1, -1]]."""
    rows = np.stack((sums[0] + sums[1] + sums[2], sums[1] - sums[2] - sums[3]))
    return np.stack((rows[:, 0] + rows[:, 1] + rows[:, 2], rows[:, 1] - rows[:, 2] - rows[:, 3]), axis=1)


def convolve(cube: np.ndarray, weights: np.ndarray, height: int, width: int, truncate: int) -> np.ndarray:
    """Sums (height, width, kernels) int64 of a padded cube with transformed weights (4, 4, channels, kernels) float64.

    Exact: a sum of magnitudes stays below 9 * 8192 channels * 2^30 < 2^47, so neither float64 rounds nor does CACC
    saturate at 48 bits.
    """
    kernels = weights.shape[3]
    sums = np.empty((height // 2, 2, width // 2, 2, kernels), np.int64)
    view = tiles(cube, height, width)
    for row in range(height // 2):
        data = transform_data(view[row], truncate).astype(np.float64)
        products = np.matmul(data.transpose(1, 2, 0, 3), weights)
        sums[row] = transform_sums(products.astype(np.int64)).transpose(0, 2, 1, 3)
    return sums.reshape(height, width, kernels)
