"""The input converter of CDMA: integers to the processing precision.

Source: hls/cdma_libs/cdma_cvt.cpp:14 and its checker cmod/cdma/NV_NVDLA_cdma.cpp:3880.
"""

from __future__ import annotations

import numpy as np

from nvdla.kernels.integers import all_clamped, all_converted, convert
from nvdla.kernels.jit.compilation import njit


@njit(cache=True, nogil=True)
def _convert(values: np.ndarray, offsets: np.ndarray, scale: int, truncate: int, bits: int, out: np.ndarray) -> None:
    for row in range(values.shape[0]):
        for channel in range(values.shape[1]):
            out[row, channel] = convert(values[row, channel], offsets[channel], scale, truncate, bits)


@_convert.plain(lambda values, *_: 16 * values.size)
def _convert_plain(
    values: np.ndarray, offsets: np.ndarray, scale: int, truncate: int, bits: int, out: np.ndarray
) -> None:
    out[:] = all_converted(values, offsets, scale, truncate, bits)


def convert_input(values: np.ndarray, offsets: np.ndarray, scale: int, truncate: int, precision: int) -> np.ndarray:
    """``(values - offsets) * scale`` shifted right by ``truncate`` (0..63), rounded half away from zero, saturated.

    ``values``: integers of at most 17 signed bits, channels last; ``offsets``: one per channel. ``precision`` 0 gives
    int8, 1 int16, 2 the bit patterns (uint16) of fp16, to which the 17-bit result is rounded to nearest even.
    """
    rows = np.ascontiguousarray(values, np.int32).reshape(-1, values.shape[-1])
    out = np.empty(rows.shape, np.int32)
    _convert(rows, np.asarray(offsets, np.int64), np.int64(scale), np.int64(truncate), (8, 16, 17)[precision], out)
    converted: np.ndarray = out.reshape(values.shape)
    if precision < 2:
        return converted.astype((np.int8, np.int16)[precision])
    # 65520 and more would round to infinity, which NVDLA never makes: the largest finite number instead.
    return all_clamped(converted, -65504, 65504).astype(np.float16).view(np.uint16)
