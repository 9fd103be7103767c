"""fp16 pooling. The order of the operations matters (NaN, zero signs, rounding): it is the hardware's.

Source: cmod/hls_wrapper/pdp_hls_wrapper.cpp. Sums are fp17, rounded at each addition.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.kernels.floats import FP16, FP17, fp16_to_fp17, fp17_to_fp16, fp_add, fp_max, fp_min, fp_mul, is_nan
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share

# The kernel widths as fp17 (pdp_hls_wrapper.cpp:110). There the table ends before 8, and a padded average of that width
# would read what lies behind it; 8.0 stands here.
_WIDTH = (0x00000, 0x07C00, 0x08000, 0x08200, 0x08400, 0x08500, 0x08600, 0x08700, 0x08800)

AVERAGE, MAXIMUM, MINIMUM = 0, 1, 2
COST = 4
"""Nanoseconds an element of a window, measured."""


@njit(cache=True, nogil=True)
def count_special(values: np.ndarray) -> tuple[int, int]:
    """(infinities, NaNs) among fp16 bit patterns, uint16."""
    infinities, nans = 0, 0
    for value in values.ravel():
        if value & 0x7C00 == 0x7C00:
            if value & 0x3FF:
                nans += 1
            else:
                infinities += 1
    return infinities, nans


@njit(cache=True, nogil=True)
def flush_nan(values: np.ndarray) -> None:
    """NaN becomes +0, in place."""
    flat = values.ravel()
    for i in range(flat.size):
        if flat[i] & 0x7C00 == 0x7C00 and flat[i] & 0x3FF:
            flat[i] = 0


@njit(cache=True, nogil=True, inline="always")
def _extreme(method: int, a: int, b: int) -> int:
    return fp_max(a, b, FP16) if method == MAXIMUM else fp_min(a, b, FP16)


@njit(cache=True, nogil=True)
def _row(method: int, row: np.ndarray, a: int, begin: int, end: int, padding: int) -> int:
    """One row of a window, left to right: the first element, then line buffer (first operand) with each next."""
    total = np.int64(row[begin, a])
    if method != AVERAGE:
        for w in range(begin + 1, end):
            total = _extreme(method, total, np.int64(row[w, a]))
        return total
    total = fp16_to_fp17(total)
    for w in range(begin + 1, end):
        total = fp_add(total, fp16_to_fp17(np.int64(row[w, a])), FP17)
    # The hardware adds the left and the right pad value after each element; all but the last time both are +0.
    return fp_add(total, padding, FP17) if padding else total


@njit(cache=True, nogil=True)
def _line(
    number: int,
    source: np.ndarray,
    out: np.ndarray,
    method: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    pad_values: np.ndarray,
    reciprocal: tuple[int, int],
    nans: np.ndarray,
) -> None:
    """Line ``number`` of all surfaces' lines one after the other."""
    _, height, width, atom = source.shape
    s, y = number // out.shape[1], number % out.shape[1]
    top = y * stride[0] - pad[0]
    first, last = max(top, 0), min(top + kernel[0], height)
    outside_rows = pad_values[kernel[0] - (last - first)]
    if outside_rows:
        outside_rows = fp_mul(outside_rows, _WIDTH[kernel[1]], FP17)
    found = 0
    for x in range(out.shape[2]):
        left = x * stride[1] - pad[1]
        begin, end = max(left, 0), min(left + kernel[1], width)
        outside = pad_values[kernel[1] - (end - begin)]
        for a in range(atom):
            total = _row(method, source[s, first], a, begin, end, outside)
            for h in range(first + 1, last):
                row = _row(method, source[s, h], a, begin, end, outside)
                total = fp_add(row, total, FP17) if method == AVERAGE else _extreme(method, row, total)
            if method == AVERAGE:
                if outside_rows:
                    total = fp_add(total, outside_rows, FP17)
                total = fp_mul(fp_mul(total, reciprocal[1], FP17), reciprocal[0], FP17)
                total = fp17_to_fp16(total)
            found += is_nan(total, FP16)
            out[s, y, x, a] = total
    nans[number] = found


@njit(cache=True, nogil=True, shared=True)
def _lines(crew: int, lines: int, *arguments: Any) -> None:
    share(crew, lines, _line, arguments)


def pool_fp16(
    source: np.ndarray,
    out: np.ndarray,
    method: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pad: tuple[int, int],
    pad_values: np.ndarray,
    reciprocal: tuple[int, int],
) -> int:
    """Pooling of fp16 bit patterns, uint16 arrays source (S, H, W, A) and out (S, OH, OW, A).

    As the integer kernels; ``pad_values`` int64 (8,) and ``reciprocal`` (vertical, horizontal) are fp17. Returns the
    number of NaNs in the output.
    """
    nans = np.zeros(out.shape[0] * out.shape[1], np.int64)
    work = out.size * kernel[0] * kernel[1] * COST
    _lines.for_work(work, nans.size, source, out, method, kernel, stride, pad, pad_values, reciprocal, nans)
    return int(nans.sum())
