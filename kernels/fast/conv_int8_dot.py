"""Direct int8 convolution with the dot-product tile: the fast path of kernels.conv.

The tile needs unsigned data. So the data cube is stored as ``x + 128``, and ``128 * sum(weights)`` is subtracted from
every kernel's sum. All sums are exact modulo 2^32; they equal the true sums while those fit an int32, which holds
up to :data:`MAX_TERMS` products per sum (128 * 128 * MAX_TERMS < 2^31).
"""

from __future__ import annotations

import mmap
from itertools import product
from typing import Any

import numpy as np

from nvdla.kernels.fast.dot_layout import FLIP, KERNELS, PIXELS
from nvdla.kernels.fast.dot_tile import available, dot_row, dot_tile
from nvdla.kernels.fast.fast_paths import FastPath
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import fallback_work, njit
from nvdla.kernels.jit.recorded_calls import ALONE, JOINED, WAKING, RecordedCall, int8s, uint8s, words
from nvdla.kernels.jit.variants import in_pieces, recorded
from nvdla.util.rounding import align, ceil_div

FAST_PATH = FastPath(
    "conv_int8_dot.accumulate",
    ("conv.exact_sums",),
    "int8; at most MAX_TERMS = 2^17 - 1 products per sum, so that an int32 holds every sum",
    "tests/kernels/test_conv_int8_dot.py",
)

MAX_TERMS = (1 << 17) - 1
FLIP_SHORT, FLIP_LONG = np.int32(FLIP - (1 << 32)), np.int64((FLIP << 32 | FLIP) - (1 << 64))
GROUP = 32
SHARED_BYTES, WAKING_BYTES = 1 << 13, 1 << 20
BLAS_PIXELS, BLAS_TERMS, BLAS_KERNELS = 1 << 8, 1 << 10, 1 << 10
"""Largest sides of the matrices for BLAS: the working set stays below 8 MiB."""
PIECE_BYTES = 1 << 12
OWN_PAGES = 1 << 16
BYTES_PER_NANOSECOND = 4
"""Least rate of :func:`blocked_cubes`."""

SOURCE, SOURCE_SIZE, SHAPE = range(3)
STRIDES, TOP, LEFT, PAD, TARGET, IMAGES, BLOCKS, ROWS, WIDTH, DEPTH, PIECE_ROWS = 6, *range(9, 19)
FIELDS = PIECE_ROWS + 1
"""The fields of a record of :func:`blocked_cubes`: its arguments, and the rows of a piece."""

__all__ = [
    "MAX_TERMS",
    "accumulate",
    "aligned",
    "available",
    "blocked_cubes",
    "channel_group",
    "pack_weights",
    "padded_cube",
    "tap_offsets",
]


def channel_group(channels: int) -> int:
    """Return the number of contiguous channels in the data of :func:`blocked_cubes`: all of a thin cube, else 32."""
    return min(align(channels, 4), GROUP)


def pack_weights(
    weights: np.ndarray, dilated: bool, group: int | None = None, out: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Pack weights (K, C, R, S) int8 to (kernel blocks, taps, quads, 64 kernels, 4 bytes), with the correction.

    The correction is (K',) int32.

    A tap is a kernel row of one channel group (its S * ``group`` bytes are contiguous in the data), or one position
    of it if x is ``dilated``. The default ``group`` is all channels (rounded up to 4). The packed
    array is ``out`` (part of a packed array), or a new one that is 64-byte aligned; missing kernels and channels are
    zeros.
    """
    kernels, channels, rows, columns = weights.shape
    group = group or align(channels, 4)
    groups = ceil_div(channels, group)
    blocks = ceil_div(kernels, KERNELS)
    taps = groups * (rows * columns if dilated else rows)
    quads = (1 if dilated else columns) * group // 4
    packed = aligned((blocks, taps, quads, KERNELS, 4)) if out is None else out
    whole = packed.view(np.uint32).reshape(blocks, groups, rows, columns, group // 4, KERNELS)
    by_position = weights.transpose(0, 2, 3, 1)
    padded = np.zeros((KERNELS, rows, columns, groups * group), np.int8)
    words = padded.view(np.uint32).reshape(KERNELS, rows, columns, groups, group // 4).transpose(3, 1, 2, 4, 0)
    for block in range(blocks):
        part = by_position[block * KERNELS :][:KERNELS]
        padded[: len(part), ..., :channels] = part
        padded[len(part) :] = 0
        whole[block] = words
    correction = np.zeros(blocks * KERNELS, np.int32)
    correction[:kernels] = weights.sum(axis=(1, 2, 3), dtype=np.int32) * np.int32(128)
    return packed, correction


def tap_offsets(
    groups: int, kernel: tuple[int, int], dilation: tuple[int, int], plane: tuple[int, int], group: int
) -> np.ndarray:
    """Byte offsets (taps,) int64 in the order of :func:`pack_weights`.

    ``kernel`` and ``dilation`` are (y, x); ``plane`` is (rows, columns) of the padded cube, ``group`` its channels.
    """
    rows, columns = plane
    offsets = np.arange(groups)[:, None] * (rows * columns * group)
    offsets = (offsets + np.arange(kernel[0]) * (dilation[0] * columns * group))[:, :, None]
    if dilation[1] > 1:
        offsets = offsets + np.arange(kernel[1]) * (dilation[1] * group)
    return np.ascontiguousarray(offsets.reshape(-1), np.int64)


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Allocate an aligned array. Large ones get separate pages, since they live as long as the network."""
    size = int(np.prod(shape))
    raw = np.empty(size + 64, np.int8) if size < OWN_PAGES else np.frombuffer(mmap.mmap(-1, size), np.int8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].reshape(shape)


@njit(nogil=True)
def _rows(cube: np.ndarray, top: int, left: int, pad_value: int, out: np.ndarray) -> int:
    return out.shape[0]


@in_pieces(_rows)
def padded_cube(y: int, cube: np.ndarray, top: int, left: int, pad_value: int, out: np.ndarray) -> None:
    """Convert a feature cube (S, H, W, A) int8 to ``out`` (height, width, C') uint8 = value + 128, with padding.

    Rows and columns outside the cube are ``pad_value``. Channels beyond the cube are undefined: their
    weights are zeros.
    """
    surfaces, rows, columns, atom = cube.shape
    width, stored_channels = out.shape[1:]
    fill = np.uint8((pad_value + 128) & 255)
    source = y - top
    if source < 0 or source >= rows:
        out[y] = fill
        return
    for x in range(width):
        column = x - left
        if column < 0 or column >= columns:
            out[y, x] = fill
            continue
        for s in range(surfaces):
            base = s * atom
            for a in range(min(atom, stored_channels - base)):
                out[y, x, base + a] = np.uint8(cube[s, source, column, a]) ^ np.uint8(128)


@padded_cube.with_fallback(lambda cube, top, left, pad_value, out: cube.size + out.size)
def _padded_cube_fallback(cube: np.ndarray, top: int, left: int, pad_value: int, out: np.ndarray) -> None:
    height, width, _ = out.shape
    out[:] = (pad_value + 128) & 255
    _, rows, columns, _ = cube.shape
    # Visible rows and columns of the cube: none if the whole output is in the padding.
    y, x = max(-top, 0), max(-left, 0)
    bottom, right = max(min(rows, height - top), y), max(min(columns, width - left), x)
    shown = cube[:, y:bottom, x:right].transpose(1, 2, 0, 3)
    pixels = shown.reshape(*shown.shape[:2], cube.shape[0] * cube.shape[3])[..., : out.shape[2]]
    target = out[top + y : top + bottom, left + x : left + right, : pixels.shape[2]]
    target[:] = pixels.view(np.uint8) ^ 128


@njit(cache=True, nogil=True)
def _place_words(line: np.ndarray, atom: int, target: np.ndarray, group: int, count: int, flip: int) -> None:
    """Copy the first ``count`` words of every atom, + 128 in each byte; ``atom`` and ``group``: strides in words."""
    for word in range(count):
        for x in range(line.size // atom):
            target[x * group + word] = line[x * atom + word] ^ flip


@njit(cache=True, nogil=True)
def _place_four(flat: np.ndarray, start: int, apart: int, size: int, target: np.ndarray) -> None:
    """Interleave the words of four lines, ``apart`` bytes from one to the next, + 128 in each byte.

    A whole group at a time, so that the loop vectorizes.
    """
    first, second = flat[start : start + size].view(np.int64), flat[start + apart : start + apart + size].view(np.int64)
    start += 2 * apart
    third, fourth = flat[start : start + size].view(np.int64), flat[start + apart : start + apart + size].view(np.int64)
    for x in range(first.size):
        target[4 * x] = first[x] ^ FLIP_LONG
        target[4 * x + 1] = second[x] ^ FLIP_LONG
        target[4 * x + 2] = third[x] ^ FLIP_LONG
        target[4 * x + 3] = fourth[x] ^ FLIP_LONG


@njit(cache=True, nogil=True)
def _flipped(line: np.ndarray, out: np.ndarray) -> None:
    """Copy a line + 128. A separate loop from 0 on over arrays of equal length vectorizes."""
    for i in range(out.size):
        out[i] = np.uint8(line[i]) ^ np.uint8(128)


@njit(cache=True, nogil=True)
def _blocked_row(
    flat: np.ndarray,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int, int],
    image: int,
    y: int,
    top: int,
    left: int,
    pad_value: int,
    out: np.ndarray,
    block: int,
) -> None:
    """Convert row ``y`` of channel group ``block`` of one image of :func:`blocked_cubes`."""
    surfaces, rows, columns, atom = shape
    width, group = out.shape[3:]
    fill = np.uint8((pad_value + 128) & 255)
    target = out[image, block, y].reshape(-1)
    source = y - top
    if source < 0 or source >= rows:
        target[:] = fill
        return
    shown = max(min(columns, width - left), 0)
    target[: left * group] = fill
    target[(left + shown) * group :] = fill
    begin = image * strides[0] + source * strides[2]
    if atom == group:
        line = flat[begin + block * strides[1] :]
        _flipped(line[: shown * group], target[left * group : (left + shown) * group])
        return
    first = block * group
    if atom == 8 and group == 32 and first + group <= surfaces * atom:
        placed = target[left * group : (left + shown) * group].view(np.int64)
        _place_four(flat, begin + first // atom * strides[1], strides[1], shown * atom, placed)
        return
    for base in range(0, group, atom):
        surface = (first + base) // atom
        length = min(atom, group - base)
        if surface >= surfaces:
            for x in range(shown):
                target[(left + x) * group + base : (left + x) * group + base + length] = 128
            continue
        start = begin + surface * strides[1]
        line = flat[start : start + shown * atom]
        placed = target[left * group + base :]
        if atom % 8 == 0 and group % 8 == 0:
            long = placed[: placed.size // 8 * 8].view(np.int64)
            _place_words(line.view(np.int64), atom // 8, long, group // 8, length // 8, FLIP_LONG)
            continue
        if atom % 4 == 0:
            short = placed[: placed.size // 4 * 4].view(np.int32)
            _place_words(line.view(np.int32), atom // 4, short, group // 4, length // 4, FLIP_SHORT)
            continue
        for x in range(shown):
            at = (left + x) * group + base
            for a in range(length):
                target[at + a] = np.uint8(line[x * atom + a]) ^ np.uint8(128)


@njit(nogil=True)
def _count(address: int) -> int:
    record = words(address, FIELDS)
    return pieces(record[IMAGES] * record[BLOCKS] * record[ROWS], record[PIECE_ROWS])


@recorded(_count)
def _block(number: int, address: int) -> None:
    """Convert the rows of one piece of :func:`blocked_cubes`."""
    record = words(address, FIELDS)
    images, blocks, rows, width, group = record[IMAGES], record[BLOCKS], record[ROWS], record[WIDTH], record[DEPTH]
    flat = int8s(record[SOURCE], record[SOURCE_SIZE])
    out = uint8s(record[TARGET], images * blocks * rows * width * group).reshape((images, blocks, rows, width, group))
    shape = (record[SHAPE], record[SHAPE + 1], record[SHAPE + 2], record[SHAPE + 3])
    strides = (record[STRIDES], record[STRIDES + 1], record[STRIDES + 2])
    first = number * record[PIECE_ROWS]
    for at in range(first, min(first + record[PIECE_ROWS], images * blocks * rows)):
        image, row = at // (blocks * rows), at % (blocks * rows)
        _blocked_row(flat, shape, strides, image, row % rows, record[TOP], record[LEFT], record[PAD], out, row // rows)


def blocked_cubes(
    flat: np.ndarray,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int, int],
    top: int,
    left: int,
    pad_value: int,
    out: np.ndarray,
) -> RecordedCall:
    """Convert feature cubes int8 to ``out`` (images, channel groups, rows, columns, group) uint8 = value + 128, padded.

    Each cube has ``shape`` (S, H, W, A); image i's surface s has its line y at i * ``strides[0]`` + s * ``strides[1]``
    + y * ``strides[2]`` of ``flat``, int8. ``group`` is a multiple of 4 that A divides or that is at most A
    (:func:`channel_group`). Channels beyond the cube are undefined: their weights are zeros.
    """
    sharing = WAKING if out.size > WAKING_BYTES else JOINED if out.size > SHARED_BYTES else ALONE
    piece = max(1, PIECE_BYTES // (out.shape[3] * out.shape[4]))
    numbers = (flat.ctypes.data, flat.size, *shape, *strides, top, left, pad_value, out.ctypes.data, *out.shape, piece)
    return RecordedCall(_block, numbers, (flat, out), sharing, out.size // BYTES_PER_NANOSECOND)


@njit(cache=True, nogil=True)
def _chunk_of(out: np.ndarray) -> tuple[int, int]:
    """Return the tiles of pixels per piece of :func:`accumulate`, and all tiles."""
    tiles = pieces(out.shape[1], PIXELS)
    return max(1, min(16, tiles // 4)), tiles


@njit(nogil=True)
def _accumulate_count(*arguments: Any) -> int:
    chunk, tiles = _chunk_of(arguments[-1])
    return arguments[4].shape[0] * pieces(tiles, chunk)


@in_pieces(_accumulate_count)
def accumulate(
    number: int,
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    quads: int,
    packed: np.ndarray,
    correction: np.ndarray,
    out: np.ndarray,
) -> None:
    """Compute the sums of all kernels at all ``pixels``: ``out`` (S, P, A) int32, surface by surface.

    ``data`` flat uint8; ``pixels`` (P,) and ``taps`` (T,) int64 byte offsets into it; ``packed`` and ``correction``
    from :func:`pack_weights`. Kernels after the last surface of ``out`` are dropped.
    """
    surfaces, count, atom = out.shape
    chunk, tiles = _chunk_of(out)
    chunks = pieces(tiles, chunk)
    block = number // chunks
    weights = packed[block].ctypes.data
    sums = np.empty((PIXELS, KERNELS), np.int32)
    first = block * KERNELS
    kernels = min(KERNELS, surfaces * atom - first)
    for tile in range(number % chunks * chunk, min(tiles, (number % chunks + 1) * chunk)):
        start = tile * PIXELS
        rows = min(PIXELS, count - start)
        if rows < PIXELS and count >= PIXELS:
            start, rows = count - PIXELS, PIXELS
        where = pixels.ctypes.data + 8 * start
        if rows == PIXELS:
            dot_tile(data.ctypes.data, where, taps.ctypes.data, taps.size, quads, weights, 0, sums.ctypes.data, 0)
        else:
            for row in range(rows):
                at, to = where + 8 * row, sums[row].ctypes.data
                dot_row(data.ctypes.data, at, taps.ctypes.data, taps.size, quads, weights, 0, to, 0)
        for k in range(0, kernels, atom):
            surface = (first + k) // atom
            for row in range(rows):
                for a in range(atom):
                    out[surface, start + row, a] = sums[row, k + a] - correction[first + k + a]


def _accumulate_cost(
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    quads: int,
    packed: np.ndarray,
    correction: np.ndarray,
    out: np.ndarray,
) -> int:
    return packed.size + pixels.size * (4 * taps.size * quads + packed.size // 2)


@accumulate.with_fallback(_accumulate_cost)
def _accumulate_fallback(
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    quads: int,
    packed: np.ndarray,
    correction: np.ndarray,
    out: np.ndarray,
) -> None:
    """Compute :func:`accumulate` as products of matrices, modulo 2^32.

    In the run of a large network float32 by BLAS with one thread (:func:`nvdla.kernels.threads.one_blas_thread`),
    otherwise int32.
    """
    surfaces, count, atom = out.shape
    if fallback_work.within_run:
        most, blocks = BLAS_KERNELS // atom, BLAS_KERNELS // KERNELS
        for block, first in enumerate(range(0, surfaces, most)):
            kernels = packed[block * blocks : (block + 1) * blocks]
            _large_product(data, pixels, taps, quads, kernels, out[first : first + most])
        return
    places = (taps[:, None] + np.arange(4 * quads)).reshape(-1)
    windows = data[pixels[:, None] + places].astype(np.int32)
    weights = packed.transpose(0, 3, 1, 2, 4).reshape(-1, places.size)[: surfaces * atom].astype(np.int32)
    sums = windows @ weights.T - correction[: surfaces * atom]
    out[:] = sums.reshape(count, surfaces, atom).transpose(1, 0, 2)


def _large_product(
    data: np.ndarray, pixels: np.ndarray, taps: np.ndarray, quads: int, packed: np.ndarray, out: np.ndarray
) -> None:
    """Compute exact sums by BLAS: a product of int8 is at most 2^14, so the sums of 2^10 of them are at most 2^24.

    The data are converted back to int8, so the sums need no correction.
    """
    surfaces, _, atom = out.shape
    out[:] = 0
    terms = max(1, BLAS_TERMS // (4 * quads))
    for tap, quad in product(range(0, taps.size, terms), range(0, quads, BLAS_TERMS // 4)):
        some = packed[:, tap : tap + terms, quad : quad + BLAS_TERMS // 4].transpose(1, 2, 4, 0, 3)
        weights = some.astype(np.float32, order="C").reshape(-1, packed.shape[0] * KERNELS)[:, : surfaces * atom]
        at, length = taps[tap : tap + terms] + 4 * quad, 4 * some.shape[1]
        windows = np.lib.stride_tricks.sliding_window_view(data, length)
        for first in range(0, pixels.size, BLAS_PIXELS):
            seen = windows[pixels[first : first + BLAS_PIXELS, None] + at].reshape(-1, at.size * length)
            sums = (seen ^ np.uint8(128)).view(np.int8).astype(np.float32) @ weights
            lines = out[:, first : first + BLAS_PIXELS]
            lines += sums.astype(np.int32).reshape(-1, surfaces, atom).transpose(1, 0, 2)
