"""Power on the CPU: (shift + scale * x) ** power (umd/core/src/runtime/Emulator.cpp executePower)."""

from __future__ import annotations

from ctypes import Structure

import numpy as np

from nvdla.emulator.cpu.operation import CpuBuffer, saturate_int8, to_half
from nvdla.errors import DescriptorError
from nvdla.loadable.descriptors.enums import EmuFormat, EmuOpType

TYPE = EmuOpType.POWER


def run(operation: Structure, scales: tuple[float, float], source: CpuBuffer, destination: CpuBuffer) -> None:
    """Every element of the source's cube, at the same place of the destination's cube.

    ``scales``: of the input and of the output (int8 only). Elements beyond the last channel keep what they were.
    """
    values, result = source.cube(), destination.cube()
    if values.shape != result.shape:
        raise DescriptorError(
            f"{destination.what}: cube: must be {values.shape[0]} surfaces x {values.shape[1]} x {values.shape[2]} "
            f"(source), got {result.shape[0]} x {result.shape[1]} x {result.shape[2]}"
        )
    if not values.size:
        return
    real = values.astype(np.float32)
    half = source.format == EmuFormat.FF16
    with np.errstate(all="ignore"):
        if not half:
            real = real * np.float32(scales[0])
        base = np.float32(operation.shift) + np.float32(operation.scale) * real
        power = np.power(base.astype(np.float64), np.float64(np.float32(operation.power))).astype(np.float32)
        done = to_half(power) if half else saturate_int8(power / np.float32(scales[1]))
    last = source.channels - (values.shape[0] - 1) * values.shape[3]
    result[:-1] = done[:-1]
    result[-1, :, :, :last] = done[-1, :, :, :last]
