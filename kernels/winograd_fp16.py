"""Winograd convolution in fp16: the data transform in fp17, the products of the fp16 MAC, four FP48 accumulators.

Sources: cmod/hls/csc_libs/csc_cvt.cpp (PRA), cmod/cmac/NV_NVDLA_cmac.h:669 (POA).
"""

from __future__ import annotations

import numpy as np

from nvdla.kernels.fast.fp16_layout import PIXELS as TILES
from nvdla.kernels.fast.fp16_pixels import COST, accumulate_atom, atom_sums, gather
from nvdla.kernels.floats import FP17, fp16_to_fp17, fp17_to_fp16, fp_add, fp_sub
from nvdla.kernels.fp16_mac import ATOM, exponents_of, fp48_to_fp32, has_nan, mantissas_of
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.variants import in_pieces
from nvdla.util.rounding import ceil_div

CHANNELS = 4
"""Channels of a 4x4 tile that fill a MAC atom."""
KERNEL_TILE = 32


@njit(cache=True, nogil=True)
def _transform(tile: np.ndarray, stride: int, start: int) -> None:
    """Apply C^T to four elements of ``tile``, ``stride`` apart (fp17 bits, each step rounded)."""
    d0, d1, d2, d3 = tile[start], tile[start + stride], tile[start + 2 * stride], tile[start + 3 * stride]
    tile[start] = fp_sub(d0, d2, FP17)
    tile[start + stride] = fp_add(d1, d2, FP17)
    tile[start + 2 * stride] = fp_sub(d2, d1, FP17)
    tile[start + 3 * stride] = fp_sub(d1, d3, FP17)


@in_pieces()
def _transform_tile(t: int, tiles: np.ndarray, out: np.ndarray) -> None:
    tile = np.empty(16, np.int64)
    for channel in range(tiles.shape[3]):
        for i in range(16):
            tile[i] = fp16_to_fp17(np.int64(tiles[t, i // 4, i % 4, channel]))
        for column in range(4):
            _transform(tile, 4, column)
        for row in range(4):
            _transform(tile, 1, 4 * row)
        for i in range(16):
            place = i * CHANNELS + channel % CHANNELS
            out[t, channel // CHANNELS, place] = np.uint16(fp17_to_fp16(tile[i]))


def transform_data(tiles: np.ndarray) -> np.ndarray:
    """PRA of tiles (count, 4, 4, channels) uint16: atoms (count, channels / 4, 64) of row, column, channel."""
    count, _, _, channels = tiles.shape
    out = np.empty((count, channels // CHANNELS, ATOM), np.uint16)
    _transform_tile(count, tiles, out)
    return out


@njit(cache=True, nogil=True)
def _transform_sums(positions: np.ndarray, out: np.ndarray) -> None:
    """POA of an atom's sums at the 16 positions of the tile, in every tile: the four outputs in the order (0, 0),
    (0, 1), (1, 0), (1, 1)."""
    for at in range(TILES):
        for row in range(2):
            a0, a1, a2, a3 = _column_sums(positions, row, at)
            out[2 * row, at] = a0 + a1 + a2
            out[2 * row + 1, at] = a1 - a2 - a3


@njit(cache=True, nogil=True)
def _column_sum(positions: np.ndarray, row: int, column: int, at: int) -> int:
    """One output row of A^T times a column of the tile."""
    middle, after = positions[4 + column, at], positions[8 + column, at]
    if row == 0:
        return positions[column, at] + middle + after
    return middle - after - positions[12 + column, at]


@njit(cache=True, nogil=True)
def _column_sums(positions: np.ndarray, row: int, at: int) -> tuple[int, int, int, int]:
    return (
        _column_sum(positions, row, 0, at), _column_sum(positions, row, 1, at),
        _column_sum(positions, row, 2, at), _column_sum(positions, row, 3, at),
    )  # fmt: skip


@in_pieces()
def _piece(
    number: int,
    bits: np.ndarray,
    data_mantissas: np.ndarray,
    data_exponents: np.ndarray,
    has_nan: bool,
    bases: np.ndarray,
    offsets: np.ndarray,
    tile_columns: int,
    words: np.ndarray,
    mantissas: np.ndarray,
    exponents: np.ndarray,
    nans: np.ndarray,
    out: np.ndarray,
) -> None:
    """Some kernels at some tiles."""
    kernels = words.shape[0]
    parts = pieces(kernels, KERNEL_TILE)
    first, top = number // parts * TILES, number % parts * KERNEL_TILE
    count = min(KERNEL_TILE, kernels - top)
    cube = (bits, data_mantissas, data_exponents)
    data, own = np.zeros((ATOM, TILES), np.int16), np.zeros((ATOM, TILES), np.int16)
    data_nans = np.empty(TILES, np.int32)
    largest = np.empty((count, TILES), np.int16)
    positions, sums = np.empty((count, ATOM // CHANNELS, TILES), np.int64), np.empty((4, TILES), np.int64)
    totals = np.zeros((2, count, 4, TILES), np.int64)
    for atom in range(nans.shape[1]):
        at = atom * ATOM
        any_nan = gather(cube, bases, first, offsets[at : at + ATOM], has_nan, data, own, data_nans)
        weights = (words, mantissas, exponents)
        atom_sums((top, top + count), at, ATOM, data, own, weights, largest, positions)
        for row in range(count):
            _transform_sums(positions[row], sums)
            nan = nans[top + row, atom]
            for i in range(4):
                accumulate_atom(nan, data_nans, any_nan, totals[0, row, i], totals[1, row, i], largest[row], sums[i])
    _deliver(totals, first, top, min(TILES, bases.size - first), tile_columns, out)


@njit(cache=True, nogil=True)
def _deliver(totals: np.ndarray, first: int, top: int, used: int, tile_columns: int, out: np.ndarray) -> None:
    """Write the accumulators of the first ``used`` tiles to the output."""
    atom = out.shape[3]
    for row in range(totals.shape[1]):
        surface, place = (top + row) // atom, (top + row) % atom
        for at in range(used):
            y, x = (first + at) // tile_columns * 2, (first + at) % tile_columns * 2
            for i in range(4):
                value = fp48_to_fp32(totals[0, row, i, at], totals[1, row, i, at])
                out[surface, y + i // 2, x + i % 2, place] = value


def convolve(
    tiles: np.ndarray,
    tile_columns: int,
    packed: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    out: np.ndarray,
) -> None:
    """All outputs: ``tiles`` (count, atoms, 64) uint16 from :func:`transform_data`, ``out`` (S, H, W, A) uint32;
    ``packed`` from :func:`nvdla.kernels.fast.fp16_pixels.pack_weights`."""
    offsets = np.arange(tiles[0].size)
    bases = np.arange(len(tiles)) * offsets.size
    work = COST * tiles.size * len(packed[0])
    count = ceil_div(len(tiles), TILES) * ceil_div(len(packed[0]), KERNEL_TILE)
    bits = tiles.reshape(-1)
    decoded = (bits, mantissas_of(bits), exponents_of(bits), has_nan(bits))
    _piece.for_work(work, count, *decoded, bases, offsets, tile_columns, *packed, out)
