"""Winograd convolution in fp16: the data transform in fp17, the products of the fp16 MAC, four FP48 accumulators.

Sources: cmod/hls/csc_libs/csc_cvt.cpp (PRA), cmod/cmac/NV_NVDLA_cmac.h:669 (POA).
"""

from __future__ import annotations

import numpy as np

from nvdla.kernels.floats import FP17, fp16_to_fp17, fp17_to_fp16, fp_add, fp_sub
from nvdla.kernels.fp16_mac import ATOM, decode_operand, fp48_add, fp48_to_fp32, product_atom
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share

CHANNELS = 4
"""Channels of a 4x4 tile that fill a MAC atom."""


@njit(cache=True, nogil=True)
def _transform(tile, stride, start):
    """C^T along four elements of ``tile`` that lie ``stride`` apart (fp17 bits, each step rounded)."""
    d0, d1, d2, d3 = tile[start], tile[start + stride], tile[start + 2 * stride], tile[start + 3 * stride]
    tile[start] = fp_sub(d0, d2, FP17)
    tile[start + stride] = fp_add(d1, d2, FP17)
    tile[start + 2 * stride] = fp_sub(d2, d1, FP17)
    tile[start + 3 * stride] = fp_sub(d1, d3, FP17)


@njit(cache=True, nogil=True)
def _transform_tile(t, tiles, out):
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


@njit(cache=True, nogil=True, shared=True)
def _transform_tiles(crew, tiles, out):
    share(crew, tiles.shape[0], _transform_tile, (tiles, out))


def transform_data(tiles: np.ndarray) -> np.ndarray:
    """PRA of tiles (count, 4, 4, channels) uint16: atoms (count, channels / 4, 64) of row, column, channel."""
    count, _, _, channels = tiles.shape
    out = np.empty((count, channels // CHANNELS, ATOM), np.uint16)
    _transform_tiles(tiles, out)
    return out


@njit(cache=True, nogil=True)
def _decode(bits, data, negatives, exponents):
    """Operands of one atom as the MAC takes them; returns the first NaN's sign and fraction, or -1."""
    first = np.int64(-1)
    for i in range(ATOM):
        nan = decode_operand(np.int64(bits[i]), i, data, negatives, exponents)
        if first < 0:
            first = np.int64(nan)
    return first


@njit(cache=True, nogil=True)
def _position(products, i):
    """Sum of the four channels at position ``i`` of the 4x4 tile."""
    at = i * CHANNELS
    return np.int64(products[at]) + products[at + 1] + products[at + 2] + products[at + 3]


@njit(cache=True, nogil=True)
def _transform_sums(products, out):
    """POA of an atom's products: the four outputs in the order (0, 0), (0, 1), (1, 0), (1, 1)."""
    for row in range(2):
        a = np.empty(4, np.int64)
        for column in range(4):
            m1, m2 = _position(products, 4 + column), _position(products, 8 + column)
            if row == 0:
                a[column] = _position(products, column) + m1 + m2
            else:
                a[column] = m1 - m2 - _position(products, 12 + column)
        out[2 * row] = a[0] + a[1] + a[2]
        out[2 * row + 1] = a[1] - a[2] - a[3]


@njit(cache=True, nogil=True)
def _accumulate(state, nan, largest, sums):
    """Add one atom to the four accumulators ``state`` (4, 2): exponent and mantissa."""
    for i in range(4):
        exponent, mantissa = state[i, 0], state[i, 1]
        if nan >= 0:
            exponent, mantissa = fp48_add(exponent, mantissa, np.int64(63), (np.int64(nan) << 53) >> 26)
        else:
            exponent, mantissa = fp48_add(exponent, mantissa, largest, sums[i])
        state[i, 0], state[i, 1] = exponent, mantissa


@njit(cache=True, nogil=True)
def _convolve_tile(t, tiles, tile_columns, words, word_exponents, word_nans, out):
    """All kernels at one tile."""
    _, atoms, _ = tiles.shape
    atom = out.shape[3]
    data = np.empty((atoms, ATOM), np.uint32)
    negatives = np.empty((atoms, ATOM), np.uint32)
    exponents = np.empty((atoms, ATOM), np.int32)
    nans = np.empty(atoms, np.int32)
    products = np.empty(ATOM, np.int32)
    sums = np.empty(4, np.int64)
    for b in range(atoms):
        nans[b] = _decode(tiles[t, b], data[b], negatives[b], exponents[b])
    y, x = t // tile_columns * 2, t % tile_columns * 2
    for k in range(words.shape[0]):
        state = np.zeros((4, 2), np.int64)
        for b in range(atoms):
            nan = word_nans[k, b] if word_nans[k, b] >= 0 else nans[b]
            largest = np.int64(0)
            if nan < 0:
                at = b * ATOM
                largest = product_atom(
                    words[k, at : at + ATOM], word_exponents[k, at : at + ATOM],
                    data[b], negatives[b], exponents[b], products,
                )  # fmt: skip
                _transform_sums(products, sums)
            _accumulate(state, nan, largest << 2, sums)
        for i in range(4):
            out[k // atom, y + i // 2, x + i % 2, k % atom] = fp48_to_fp32(state[i, 0], state[i, 1])


@njit(cache=True, nogil=True, shared=True)
def convolve(crew, tiles, tile_columns, words, word_exponents, word_nans, out):
    """All outputs: ``tiles`` (count, atoms, 64) uint16 from :func:`transform_data`, ``out`` (S, H, W, A) uint32."""
    share(crew, tiles.shape[0], _convolve_tile, (tiles, tile_columns, words, word_exponents, word_nans, out))
