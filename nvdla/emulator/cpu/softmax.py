"""Softmax on the CPU, as NVIDIA's runtime computes it (umd/core/src/runtime/Emulator.cpp executeSoftmax).

It walks ``channel`` elements from the start of the buffer, ignoring strides: with a spatial input only the first
elements are normalized, and the axis is ignored.
"""

from __future__ import annotations

import math
from ctypes import Structure
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.cpu.operation import CpuBuffer, saturate_int8, to_half
from nvdla.loadable.descriptors.enums import EmuFormat, EmuOpType

if TYPE_CHECKING:
    from nvdla.kernels.jit.recorded_calls import RecordedCall

TYPE = EmuOpType.SOFTMAX
IN_LINE = OF_LANES = True
PARTS = 32
ROOTS = np.array([2.0 ** (part / PARTS) for part in range(PARTS)])  # np.exp2 is one unit off for two of them
LN2 = math.log(2)
# Coefficients of r^3, r^2, r in 2^(r / 32).
POLYNOMIAL = (
    float.fromhex("0x1.c6af84b912394p-5") / PARTS**3,
    float.fromhex("0x1.ebfce50fac4f3p-3") / PARTS**2,
    float.fromhex("0x1.62e42ff0c52d6p-1") / PARTS,
)


def run(operation: Structure, scales: tuple[float, float], source: CpuBuffer, destination: CpuBuffer) -> None:
    """``scales``: of the input and of the output (int8 only: real value = scale * integer).

    The buffers may be those of several images at once.
    """
    count = source.channels
    if not count:
        return
    values = source.line(count)
    if source.format == EmuFormat.FF16:
        destination.line(count)[:] = softmax(values.astype(np.float32))
        return
    with np.errstate(all="ignore"):
        result = _of_int8(values, float(scales[0]))[..., : destination.channels]
        quotient = result.astype(np.float32) / np.float32(scales[1])
    destination.line(result.shape[-1])[:] = saturate_int8(quotient)


def record(
    operation: Structure, scales: tuple[float, float], source: CpuBuffer, destination: CpuBuffer
) -> RecordedCall | None:
    """Softmax of int8 with usual scales as a record of a compiled kernel; None for others."""
    count, scale = source.channels, np.float32(scales[1])
    halves = _halves(float(scales[0]))
    if source.format == EmuFormat.FF16 or not count or not (np.isfinite(halves).all() and np.isfinite(scale) and scale):
        return None
    from nvdla.kernels.softmax_int8 import softmax as compiled

    target = destination.line(min(count, destination.channels))
    return compiled(source.line(count), target, halves, ROOTS, (*POLYNOMIAL, PARTS / LN2), float(scale))


def softmax(values: np.ndarray) -> np.ndarray:
    """float32 (..., elements) -> halves. exp and the sum are float32, the sum in index order."""
    with np.errstate(all="ignore"):
        return _normalized(exp32(values - values.max(axis=-1, keepdims=True)))


def _of_int8(values: np.ndarray, scale: float) -> np.ndarray:
    """:func:`softmax` of the halves that int8 elements (..., elements) stand for; of one image by tables."""
    real = _halves(scale)[values.view(np.uint8)]
    if values.ndim > 1:
        return softmax(real)
    return _normalized(_exponentials(scale, float(real.max()))[values.view(np.uint8)])


def _normalized(exponentials: np.ndarray) -> np.ndarray:
    # cumsum adds one after the other, sum() does not
    total = np.cumsum(exponentials, axis=-1, dtype=np.float32)[..., -1:]
    return to_half(exponentials / total)


@lru_cache(maxsize=16)
def _halves(scale: float) -> np.ndarray:
    """The halves (as float32) that the int8 numbers stand for, by their bits."""
    numbers = np.arange(256, dtype=np.uint8).view(np.int8)
    with np.errstate(all="ignore"):
        return to_half(numbers.astype(np.float32) * np.float32(scale)).astype(np.float32)


@lru_cache(maxsize=256)
def _exponentials(scale: float, greatest: float) -> np.ndarray:
    """exp of the distance from the ``greatest`` for every int8 number, by its bits."""
    return exp32(_halves(scale) - np.float32(greatest))


def exp32(values: np.ndarray) -> np.ndarray:
    """expf as the reference's C library computes it, float32 -> float32, at most 0.502 units in the last place off.

    e^x = 2^(k/32) * 2^r with k = round(x * 32 / ln 2); 2^r is a polynomial of degree 3, all in double precision
    (published as part of ARM's optimized routines). The nearest float32 would differ once in some hundred values.
    """
    # Beyond +-200 the result is 0 or infinite anyway.
    scaled = np.clip(values.astype(np.float64), -200, 200) * (PARTS / LN2)
    whole = np.rint(scaled)
    rest = scaled - whole
    parts = np.nan_to_num(whole).astype(np.int64)
    power = np.ldexp(ROOTS[parts & PARTS - 1], parts >> PARTS.bit_length() - 1)
    cubic, square, linear = POLYNOMIAL
    result = (cubic * rest + square) * (rest * rest) + (linear * rest + 1.0)
    with np.errstate(over="ignore", under="ignore"):
        return (result * power).astype(np.float32)
