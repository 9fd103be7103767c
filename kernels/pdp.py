"""Integer pooling (int8 and int16): one kernel for maximum and minimum, one for the average.

Cubes are C-contiguous arrays (surfaces, height, width, atom elements). Each output line is made in two steps, as in
the hardware: all rows under the window into one line (contiguous, whatever the atom), then the columns of that line.
Source: cmod/pdp/NV_NVDLA_pdp.cpp, LineOperation (:1426), PoolingStage0Calc (:1524), PoolingStage1Calc (:1641).
"""

from __future__ import annotations

import functools

import numpy as np

from nvdla.kernels.compilation import njit
from nvdla.kernels.integers import round_half_away, wrap


@njit(cache=True, nogil=True)
def _merge_greatest(line, row):
    for i in range(line.size):
        line[i] = row[i] if row[i] > line[i] else line[i]


@njit(cache=True, nogil=True)
def _merge_least(line, row):
    for i in range(line.size):
        line[i] = row[i] if row[i] < line[i] else line[i]


@njit(cache=True, nogil=True)
def pool_extreme(source, out, kernel, stride, pad, least):
    """Greatest (or ``least``) element under each window; elements outside the cube do not exist.

    source (S, H, W, A), out (S, OH, OW, A) int8 or int16; kernel, stride, pad: (vertical, horizontal), pad at the top
    and left. Every window must hold at least one element of the cube.
    """
    surfaces, height, width, atom = source.shape
    rows = source.reshape(surfaces, height, width * atom)
    line = np.empty(width * atom, source.dtype)
    for s in range(surfaces):
        for y in range(out.shape[1]):
            top = y * stride[0] - pad[0]
            first = max(top, 0)
            line[:] = rows[s, first]
            for h in range(first + 1, min(top + kernel[0], height)):
                if least:
                    _merge_least(line, rows[s, h])
                else:
                    _merge_greatest(line, rows[s, h])
            for x in range(out.shape[2]):
                left = x * stride[1] - pad[1]
                begin = max(left, 0)
                out[s, y, x] = line[begin * atom : (begin + 1) * atom]
                for w in range(begin + 1, min(left + kernel[1], width)):
                    if least:
                        _merge_least(out[s, y, x], line[w * atom : (w + 1) * atom])
                    else:
                        _merge_greatest(out[s, y, x], line[w * atom : (w + 1) * atom])


def _pool_extreme_cost(source, out, kernel, stride, pad, least) -> int:
    return out.size * max(kernel[0] * kernel[1], stride[0] * stride[1])


@pool_extreme.plain(_pool_extreme_cost)
def _pool_extreme_plain(source, out, kernel, stride, pad, least):
    """Outside the cube lies what no element can lose against."""
    surfaces, height, width, atom = out.shape
    merge = np.minimum if least else np.maximum
    limits = np.iinfo(source.dtype)
    rows, columns = ((size - 1) * step + window for size, step, window in zip((height, width), stride, kernel, strict=True))
    padded = np.full((surfaces, rows, columns, atom), limits.max if least else limits.min, source.dtype)
    inside = source[:, : rows - pad[0], : columns - pad[1]]
    padded[:, pad[0] : pad[0] + inside.shape[1], pad[1] : pad[1] + inside.shape[2]] = inside
    shifted = [
        padded[:, y : rows - kernel[0] + y + 1 : stride[0], x : columns - kernel[1] + x + 1 : stride[1]]
        for y in range(kernel[0])
        for x in range(kernel[1])
    ]
    out[:] = functools.reduce(merge, shifted)


@njit(cache=True, nogil=True)
def pool_average(source, out, kernel, stride, pad, pad_values, reciprocal, bits):
    """Average under each window: sum, times 1/kernel width, rounded, times 1/kernel height, rounded.

    As pool_extreme, and ``pad_values`` int64 (8,): what n columns outside the cube add to one row of the window (a row
    outside adds the value of n rows outside, once for each column of the kernel); ``reciprocal``: (vertical,
    horizontal) in units of 1/65536; ``bits``: (of the line buffer's sums, of the output). Both wrap: only odd pad
    values reach that.
    """
    surfaces, height, width, atom = source.shape
    rows = source.reshape(surfaces, height, width * atom)
    line = np.empty(width * atom, np.int32)
    sums = np.empty(atom, np.int32)
    for s in range(surfaces):
        for y in range(out.shape[1]):
            top = y * stride[0] - pad[0]
            first, last = max(top, 0), min(top + kernel[0], height)
            line[:] = rows[s, first]
            for h in range(first + 1, last):
                for i in range(line.size):
                    line[i] += rows[s, h, i]
            outside_rows = pad_values[kernel[0] - (last - first)] * kernel[1]
            for x in range(out.shape[2]):
                left = x * stride[1] - pad[1]
                begin, end = max(left, 0), min(left + kernel[1], width)
                sums[:] = 0
                for w in range(begin, end):
                    for a in range(atom):
                        sums[a] += line[w * atom + a]
                padding = pad_values[kernel[1] - (end - begin)] * (last - first) + outside_rows
                for a in range(atom):
                    total = wrap(np.int64(sums[a]) + padding, bits[0])
                    total = round_half_away(total * reciprocal[1], 16)
                    total = round_half_away(total * reciprocal[0], 16)
                    out[s, y, x, a] = wrap(total, bits[1])
