"""Softmax on the CPU, as NVIDIA's runtime computes it (umd/core/src/runtime/Emulator.cpp executeSoftmax).

It walks ``channel`` elements from the start of the buffer, whatever the strides: with a spatial input only the first
elements are normalised, and the axis is ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.cpu.buffers import CpuBuffer
from nvdla.cpu.half import saturate_int8, to_half
from nvdla.descriptors.enums import EmuFormat


def run(operation: Any, scales: tuple[float, float], source: CpuBuffer, destination: CpuBuffer) -> None:
    """``scales``: of the input and of the output (int8 only: real value = scale * integer)."""
    count = source.channels
    if not count:
        return
    values = source.line(count)
    if source.format == EmuFormat.FF16:
        destination.line(count)[:] = softmax(values.astype(np.float32))
        return
    scaled = to_half(values.astype(np.float32) * np.float32(scales[0]))
    result = softmax(scaled.astype(np.float32))[: destination.channels]
    with np.errstate(all="ignore"):
        quotient = result.astype(np.float32) / np.float32(scales[1])
    destination.line(result.size)[:] = saturate_int8(quotient)


def softmax(values: np.ndarray) -> np.ndarray:
    """float32 vector -> halves. exp and the sum are float32, the sum in index order."""
    with np.errstate(all="ignore"):
        exponentials = exp32(values - values.max())
        total = np.cumsum(exponentials, dtype=np.float32)[-1]  # cumsum adds one after the other, sum() does not
        return to_half(exponentials / total)


def exp32(values: np.ndarray) -> np.ndarray:
    """The float32 nearest to e**x. The C library's expf is the same but for arguments within 0.002 of a tie."""
    return np.exp(values.astype(np.float64)).astype(np.float32)
