"""SDP's last conversion, from integers to fp16."""

from __future__ import annotations

import numpy as np

from nvdla.kernels.floats import FP16_LARGEST, int_to_fp16
from nvdla.kernels.jit.compilation import njit


@njit(cache=True, nogil=True)
def integers_to_fp16(source: np.ndarray, out: np.ndarray) -> int:
    """17-bit integers (int32, C-contiguous) to fp16 bits (uint16, same shape): sdp_c.cpp:52 Int17ToFp16.

    Returns how many became the largest number, which is what the saturation counter counts for fp16 output.
    """
    values, result = source.reshape(-1), out.reshape(-1)
    largest = 0
    for i in range(values.size):
        bits = int_to_fp16(values[i])
        result[i] = bits
        largest += (bits & 0x7FFF) == FP16_LARGEST
    return largest
