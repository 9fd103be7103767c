"""Direct int8 convolution with the dot-product tile: the fast form of kernels.conv for processors with VNNI.

The instruction wants unsigned data, so the data cube is stored as ``x + 128`` and ``128 * sum(weights)`` is taken
off every kernel's sum. All sums are exact modulo 2^32; they equal the true sums while those fit an int32, which holds
up to :data:`MAX_TERMS` products a sum (128 * 128 * MAX_TERMS < 2^31).
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from nvdla.kernels.dot_tile import KERNELS, PIXELS, available, dot_row, dot_tile

MAX_TERMS = (1 << 17) - 1

__all__ = ["MAX_TERMS", "accumulate", "available", "pack_weights", "padded_cube"]


def pack_weights(weights: np.ndarray, dilated: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weights (K, C, R, S) int8 -> (kernel blocks, taps, steps, 64 kernels, 4 bytes) and the correction (K',) int32.

    A tap is a kernel row (its S * C' bytes lie side by side in the data), or one position when x is ``dilated``;
    C' is C rounded up to 4. The packed array is 64-byte aligned; missing kernels are zeros.
    """
    kernels, channels, rows, columns = weights.shape
    padded_channels = -(-channels // 4) * 4
    blocks = -(-kernels // KERNELS)
    taps = rows * columns if dilated else rows
    steps = (1 if dilated else columns) * padded_channels // 4
    packed = _aligned((blocks, taps, steps, KERNELS, 4))
    full = np.zeros((blocks * KERNELS, rows, columns, padded_channels), np.int8)
    full[:kernels, :, :, :channels] = weights.transpose(0, 2, 3, 1)
    packed[:] = full.reshape(blocks, KERNELS, taps, steps, 4).transpose(0, 2, 3, 1, 4)
    correction = full.reshape(blocks * KERNELS, -1).sum(axis=1, dtype=np.int32) * np.int32(128)
    return packed, correction


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    size = int(np.prod(shape))
    raw = np.empty(size + 64, np.int8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].reshape(shape)


@njit(cache=True, nogil=True, parallel=True)
def padded_cube(cube, channels, top, left, height, width, pad_value, out):  # type: ignore[no-untyped-def]
    """Feature cube (S, H, W, A) int8 -> ``out`` (height, width, C') uint8 = value + 128, with the padding in place.

    Rows and columns outside the cube, and channels from ``channels`` on, hold ``pad_value`` resp. 0 (+ 128); the
    weights of the latter are zeros.
    """
    surfaces, rows, columns, atom = cube.shape
    stored_channels = out.shape[2]
    fill = np.uint8((pad_value + 128) & 255)
    for y in prange(height):
        source = y - top
        if source < 0 or source >= rows:
            out[y] = fill
            continue
        for x in range(width):
            column = x - left
            if column < 0 or column >= columns:
                out[y, x] = fill
                continue
            for s in range(surfaces):
                base = s * atom
                for a in range(min(atom, stored_channels - base)):
                    out[y, x, base + a] = np.uint8(cube[s, source, column, a]) ^ np.uint8(128)
    return out


@njit(cache=True, nogil=True, parallel=True)
def accumulate(data, pixels, taps, steps, packed, correction, out):  # type: ignore[no-untyped-def]
    """Sums of all kernels at all ``pixels``: ``out`` (S, P, A) int32, surface by surface.

    ``data`` flat uint8; ``pixels`` (P,) and ``taps`` (T,) int64 byte offsets into it; ``packed`` and ``correction``
    from :func:`pack_weights`. Kernels behind the last surface of ``out`` are dropped.
    """
    surfaces, count, atom = out.shape
    blocks = packed.shape[0]
    tiles = (count + PIXELS - 1) // PIXELS
    chunk = max(1, min(16, tiles // 4))
    chunks = (tiles + chunk - 1) // chunk
    for job in prange(blocks * chunks):
        block = job // chunks
        sums = np.empty((PIXELS, KERNELS), np.int32)
        first = block * KERNELS
        wanted = min(KERNELS, surfaces * atom - first)
        for tile in range(job % chunks * chunk, min(tiles, (job % chunks + 1) * chunk)):
            start = tile * PIXELS
            rows = min(PIXELS, count - start)
            if rows < PIXELS and count >= PIXELS:
                start, rows = count - PIXELS, PIXELS
            if rows == PIXELS:
                dot_tile(
                    data.ctypes.data,
                    pixels.ctypes.data + 8 * start,
                    taps.ctypes.data,
                    taps.size,
                    steps,
                    packed[block].ctypes.data,
                    sums.ctypes.data,
                )
            else:
                for row in range(rows):
                    dot_row(
                        data.ctypes.data,
                        pixels.ctypes.data + 8 * (start + row),
                        taps.ctypes.data,
                        taps.size,
                        steps,
                        packed[block].ctypes.data,
                        sums[row].ctypes.data,
                    )
            for k in range(0, wanted, atom):
                surface = (first + k) // atom
                for row in range(rows):
                    for a in range(atom):
                        out[surface, start + row, a] = sums[row, k + a] - correction[first + k + a]
    return out
