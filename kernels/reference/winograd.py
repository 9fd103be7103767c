"""Winograd convolution F(2x2, 3x3): the transform of the data (PRA), the sums, their transform (POA).

Source: hls/csc_libs/csc_cvt.cpp (PRA), cmac/NV_NVDLA_cmac.h:119, :240 (POA of integers), :669 (fp16). Software
transforms the weights. A MAC atom holds four channels of a 4x4 tile in the order row, column, channel.
"""

from __future__ import annotations

from nvdla.kernels.reference.conv import CACC_BITS
from nvdla.kernels.reference.floats import FP16, FP17, add, narrow, subtract, widen
from nvdla.kernels.reference.fp16_mac import accumulate, atom_products, nan_sum, to_fp32
from nvdla.kernels.reference.integers import saturate, shift_right

Tile = list[list[int]]
CHANNELS = 4


def transform_data(tile: Tile, truncate: int, bits: int) -> Tile:
    """Transform a 4x4 tile of integers: exact differences, one rounding shift, saturation.

    Args:
        tile: Elements [row][column].
        truncate: PRA_TRUNCATE, 0 to 3.
        bits: 8 or 16, the width of the data; also that of the result.

    Returns:
        C^T * tile * C, shifted and saturated.
    """

    def differences(d: list[int]) -> list[int]:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]

    columns = [differences(list(column)) for column in zip(*tile, strict=True)]
    rows = [differences(list(row)) for row in zip(*columns, strict=True)]
    return [[saturate(shift_right(x, truncate), bits) for x in row] for row in rows]


def transform_data_fp16(tile: Tile) -> Tile:
    """Transform a 4x4 tile of fp16 bits: columns, then rows; each difference is rounded to fp17, the result to fp16."""

    def differences(d: list[int]) -> list[int]:
        return [
            subtract(d[0], d[2], FP17),
            add(d[1], d[2], FP17),
            subtract(d[2], d[1], FP17),
            subtract(d[1], d[3], FP17),
        ]

    wide = [[widen(bits, FP16, FP17) for bits in row] for row in tile]
    columns = [differences(list(column)) for column in zip(*wide, strict=True)]
    rows = [differences(list(row)) for row in zip(*columns, strict=True)]
    return [[narrow(bits, FP17, FP16) for bits in row] for row in rows]


def transform_sums(sums: Tile) -> Tile:
    """Transform 4x4 sums to the 2x2 outputs, exactly: A^T * sums * A with A^T = [1 1 1 0; 0 1 -1 -1]."""

    def pair(m: list[int]) -> list[int]:
        return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]

    columns = [pair(list(column)) for column in zip(*sums, strict=True)]
    return [pair(list(row)) for row in zip(*columns, strict=True)]


def channel_sums(products: list[int]) -> Tile:
    """Add the four channels at each position of a tile."""
    sums = [sum(products[at : at + CHANNELS]) for at in range(0, 16 * CHANNELS, CHANNELS)]
    return [sums[row : row + 4] for row in range(0, 16, 4)]


def outputs(weights: list[list[int]], data: list[list[int]]) -> list[int]:
    """Compute the four outputs of a tile of integers.

    Args:
        weights: Transformed weights, 64 per MAC atom (row, column, channel).
        data: Transformed data in the same order.

    Returns:
        Accumulators at (0, 0), (0, 1), (1, 0), (1, 1).
    """
    totals = [0] * 4
    for w, d in zip(weights, data, strict=True):
        tile = transform_sums(channel_sums([x * y for x, y in zip(w, d, strict=True)]))
        totals = [saturate(total + x, CACC_BITS) for total, x in zip(totals, [*tile[0], *tile[1]], strict=True)]
    return totals


def outputs_fp16(weights: list[list[int]], data: list[list[int]]) -> list[int]:
    """Compute the four outputs of a tile of fp16 bits: the products of an atom share one exponent.

    Args:
        weights: Transformed weights, 64 per MAC atom (row, column, channel).
        data: Transformed data in the same order.

    Returns:
        fp32 bits at (0, 0), (0, 1), (1, 0), (1, 1).
    """
    accumulators = [(0, 0)] * 4
    for w, d in zip(weights, data, strict=True):
        nan = nan_sum(w, d)
        exponent, products = (63, []) if nan is not None else atom_products(w, d)
        tile = [[nan] * 2] * 2 if nan is not None else transform_sums(channel_sums(products))
        accumulators = [accumulate(a, exponent, x) for a, x in zip(accumulators, [*tile[0], *tile[1]], strict=True)]
    return [to_fp32(*accumulator) for accumulator in accumulators]
