"""PDP: pooling of one plane of elements.

Source: pdp/NV_NVDLA_pdp.cpp:1426 (rows), :1524 (columns), :1730 (average), :497, :1446, :1566 (padding);
hls_wrapper/pdp_hls_wrapper.cpp:58, :69, :83, :110, :188 (fp16). The rows of a window are reduced first, from left to
right, then the results of the rows from top to bottom. The order of operands matters for fp16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

from nvdla.kernels.reference.floats import FP16, FP17, add, greater, lesser, multiply, narrow, widen
from nvdla.kernels.reference.integers import shift_right, wrap

Plane = list[list[int]]
WIDTH = (0x00000, 0x07C00, 0x08000, 0x08200, 0x08400, 0x08500, 0x08600, 0x08700, 0x08800)
"""Widths of a kernel as fp17. The C model's list ends before 8; here the exact value follows."""


class PoolGeometry(NamedTuple):
    """Windows in one direction: kernel, stride, padding before the first element, number of outputs."""

    kernel: int
    stride: int
    pad: int
    outputs: int

    def inside(self, number: int, size: int) -> range:
        """Return the positions under window ``number`` inside the plane."""
        first = number * self.stride - self.pad
        return range(max(first, 0), min(first + self.kernel, size))


def _pool(plane: Plane, vertical: PoolGeometry, horizontal: PoolGeometry, reduced: Callable[[Plane], int]) -> Plane:
    """Reduce the elements under each window, padding excluded."""
    rows = [vertical.inside(y, len(plane)) for y in range(vertical.outputs)]
    columns = [horizontal.inside(x, len(plane[0])) for x in range(horizontal.outputs)]
    return [[reduced([[plane[y][x] for x in across] for y in down]) for across in columns] for down in rows]


def extreme(plane: Plane, vertical: PoolGeometry, horizontal: PoolGeometry, least: bool) -> Plane:
    """Return the maximum, or the minimum, of each window of integers; padding is ignored."""
    pick = min if least else max
    return _pool(plane, vertical, horizontal, lambda rows: pick(pick(row) for row in rows))


def average(
    plane: Plane,
    vertical: PoolGeometry,
    horizontal: PoolGeometry,
    pad_values: list[int],
    reciprocal: tuple[int, int],
    bits: tuple[int, int],
) -> Plane:
    """Return the average of each window of integers, rounded twice: across, then down.

    Args:
        plane: Elements [row][column].
        vertical: Windows from top to bottom.
        horizontal: Windows from left to right.
        pad_values: What n = 0..7 columns outside the plane add to a row, on either side. n rows outside add
            the value n once per column of the kernel.
        reciprocal: 65536 / kernel height and 65536 / kernel width. The divisor counts the padding.
        bits: Width of the sums (16 for int8, 32 for int16) and of the result. Both wrap.

    Returns:
        Averages [row][column].
    """

    def reduced(rows: Plane) -> int:
        total = sum(sum(row) + pad_values[horizontal.kernel - len(row)] for row in rows)
        total = wrap(total + pad_values[vertical.kernel - len(rows)] * horizontal.kernel, bits[0])
        across = shift_right(total * reciprocal[1], 16)
        return wrap(shift_right(across * reciprocal[0], 16), bits[1])

    return _pool(plane, vertical, horizontal, reduced)


def extreme_fp16(plane: Plane, vertical: PoolGeometry, horizontal: PoolGeometry, least: bool) -> Plane:
    """Return the maximum, or the minimum, of each window of fp16 bits; a NaN wins."""
    pick = lesser if least else greater

    def reduced(rows: Plane) -> int:
        across = [reduce(lambda total, element: pick(total, element, FP16), row) for row in rows]
        return reduce(lambda total, row: pick(row, total, FP16), across)

    return _pool(plane, vertical, horizontal, reduced)


def average_fp16(
    plane: Plane, vertical: PoolGeometry, horizontal: PoolGeometry, pad_values: list[int], reciprocal: tuple[int, int]
) -> Plane:
    """Return the average of each window of fp16 bits; every addition and product is rounded to fp17.

    Args:
        plane: fp16 bits [row][column].
        vertical: Windows from top to bottom.
        horizontal: Windows from left to right.
        pad_values: As for :func:`average`, fp17 bits.
        reciprocal: 1 / kernel height and 1 / kernel width, fp17 bits.

    Returns:
        fp16 bits [row][column].
    """

    def reduced(rows: Plane) -> int:
        across = []
        for row in rows:
            total = reduce(lambda a, b: add(a, b, FP17), [widen(bits, FP16, FP17) for bits in row])
            # Left and right padding are two additions; one of them, or both, adds +0.
            across.append(add(add(total, pad_values[horizontal.kernel - len(row)], FP17), 0, FP17))
        total = reduce(lambda total, row: add(row, total, FP17), across)
        padding = multiply(pad_values[vertical.kernel - len(rows)], WIDTH[horizontal.kernel], FP17)
        total = add(add(total, padding, FP17), 0, FP17)
        return narrow(multiply(multiply(total, reciprocal[1], FP17), reciprocal[0], FP17), FP17, FP16)

    return _pool(plane, vertical, horizontal, reduced)
