"""Convolution and SDP in one pass, int8: a tile's sums are processed while they lie in the first-level cache.

Equal to :mod:`nvdla.kernels.fast.conv_int8_dot` followed by the integer pipeline of the SDP for the usual end of a
convolution: X1 = per-channel ALU SUM, multiplier and shift, ReLU; X2 and Y bypassed; output converter to int8.

Bounds that make it exact, to be checked by the caller for each operation: sums and sums + ALU operand fit an int32
(:data:`~nvdla.kernels.fast.conv_int8_dot.MAX_TERMS` and :func:`sums_fit`), so X1's 32-bit saturation (which applies
after its shift) cannot act before the multiplication; products fit an int64 (32 x 16 bits).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nvdla.kernels.fast.dot_tile import (
    ALU,
    ENDING,
    FLOOR,
    HALF,
    HALVES,
    KERNELS,
    LANES,
    NARROW_PIXELS,
    NARROW_VECTORS,
    OUT,
    PIXELS,
    PLACES,
    ROW_STRIDE,
    WIDE,
    dot_narrow_tile,
    dot_row,
    dot_tile,
)
from nvdla.kernels.fast.forms import FastForm
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share

FORM = FastForm(
    "conv_sdp_int8.convolve_and_convert",
    ("conv.exact_sums", "conv.deliver", "sdp.x_and_convert"),
    "int8; sums_fit: sums and sums with the ALU operand fit an int32; X2 and Y bypassed",
    "tests/kernels/test_conv_sdp_int8.py",
)

INT32_LOW, INT32_HIGH = -(1 << 31), (1 << 31) - 1
SHARED_WORK = 1 << 21
WAKING_WORK = 1 << 23
"""Multiplications from which several threads pay: those that are awake (30 microseconds of work), and others (120)."""


class Stage(NamedTuple):
    """X1's multiplier part and the output converter. ``multiply`` 0: no multiplier; ``low`` is 0 with ReLU.

    The converter is ``(x - offset) * scale >> shift``, rounded half away from zero and clamped to int8.
    """

    multiply: int
    shift: int
    low: int
    offset: int
    scale: int
    out_shift: int


class Place(NamedTuple):
    """Where results go and images lie, in bytes: surface s begins at s * ``surface_stride`` and holds ``atom`` bytes a
    pixel, ``pixel_stride`` apart; image i of ``images`` begins at i * ``image_step`` of the data (of which it takes
    about ``image_size``) and i * ``out_step`` of the results. ``flip``: :data:`~nvdla.kernels.fast.dot_tile.FLIP` for
    int8 data, 0 for data + 128.
    """

    surfaces: int
    surface_stride: int
    atom: int
    pixel_stride: int
    flip: int
    images: int
    image_step: int
    image_size: int
    out_step: int


def narrow_settings(stage: Stage) -> np.ndarray:
    """How a tile can end: floor, ceiling, offset, scale, rounding, shift (int64), or an empty array where 32 bits do
    not suffice.

    The converter rises with x, and its result stays at a rail beyond some x on either side. If the products up to
    there fit an int32, x can be limited to that range first and nothing is lost: so ``floor`` is the least x whose
    product (and rounding) fits, which must give -128 unless ReLU's 0 lies above it; ``ceiling`` likewise gives 127.
    """
    none = np.empty(0, np.int64)
    if stage.multiply or stage.scale <= 0 or stage.out_shift > 30:
        return none
    # Without a shift nothing is rounded: twice the number halved, so that tiles need not tell the two apart.
    scale, shift = (stage.scale, stage.out_shift) if stage.out_shift else (2 * stage.scale, 1)
    half = 1 << shift - 1
    highest = (INT32_HIGH - half) // scale
    lowest = -(INT32_HIGH // scale)
    floor, ceiling = max(stage.low, stage.offset + lowest), stage.offset + highest
    fits = stage.offset + lowest >= INT32_LOW and ceiling <= INT32_HIGH
    top = highest * scale + half >> shift >= 127
    bottom = lowest * scale + half - 1 >> shift <= -128 or stage.low > stage.offset + lowest
    if not (fits and top and bottom and floor <= ceiling):
        return none
    return np.array([floor, ceiling, stage.offset, scale, half, shift], np.int64)


def sums_fit(weights: np.ndarray, alu: np.ndarray) -> bool:
    """True when no sum of int8 data with ``weights`` (K, ...), with or without ``alu`` (K,), leaves int32."""
    magnitudes = np.abs(weights.reshape(len(weights), -1), dtype=np.int16).sum(axis=1, dtype=np.int64) * 128
    return int((magnitudes + np.abs(alu.astype(np.int64))).max(initial=0)) < 1 << 31


@njit(cache=True, nogil=True)
def _convert(sums: np.ndarray, rows: int, alu: np.ndarray, mul: np.ndarray, stage: Stage, out: np.ndarray) -> None:
    """X1 and the output converter on a tile (rows, 64 kernels). Sums are exact modulo 2^32, hence the int32 casts.

    ``(p + half + (p >> 63)) >> s`` rounds p / 2**s half away from zero (``half`` = 2**(s-1), 0 for s = 0: then the sign
    term must not act, so it is masked).
    """
    half = (np.int64(1) << stage.out_shift) >> 1
    sign = np.int64(-1) if stage.out_shift else np.int64(0)
    scale, shift, offset, low = np.int64(stage.scale), stage.out_shift, np.int64(stage.offset), np.int64(stage.low)
    if not stage.multiply:
        floor = np.int32(stage.low)
        for row in range(rows):
            for k in range(KERNELS):
                x = np.int64(max(np.int32(sums[row, k] + alu[k]), floor))
                p = (x - offset) * scale
                p = (p + half + ((p >> 63) & sign)) >> shift
                out[row, k] = np.int8(min(max(p, np.int64(-128)), np.int64(127)))
        return
    first_half = (np.int64(1) << stage.shift) >> 1
    first_sign = np.int64(-1) if stage.shift else np.int64(0)
    for row in range(rows):
        for k in range(KERNELS):
            p = np.int64(np.int32(sums[row, k] + alu[k])) * np.int64(mul[k])
            p = (p + first_half + ((p >> 63) & first_sign)) >> stage.shift
            x = min(max(p, low), np.int64(2147483647))
            p = (x - offset) * scale
            p = (p + half + ((p >> 63) & sign)) >> shift
            out[row, k] = np.int8(min(max(p, np.int64(-128)), np.int64(127)))


@njit(cache=True, nogil=True)
def _ending(alu: np.ndarray, kernel: int, wanted: int, narrow: np.ndarray, place: Place) -> np.ndarray:
    """What tiles of kernels ``kernel`` .. ``kernel`` + ``wanted`` - 1 end with; OUT is still to be set."""
    ending = np.empty(ENDING, np.int64)
    ending[ALU] = alu.ctypes.data + 4 * kernel
    for at in range(narrow.size):
        ending[FLOOR + at] = narrow[at]
    ending[HALVES] = wanted // HALF
    ending[WIDE] = place.atom >= LANES
    ending[ROW_STRIDE] = place.pixel_stride
    for half in range(KERNELS // HALF):
        lane = kernel + half * HALF
        ending[PLACES + half] = lane // place.atom * place.surface_stride + lane % place.atom
    return ending


@njit(cache=True, nogil=True)
def _tiles(
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    steps: int,
    packed: np.ndarray,
    alu: np.ndarray,
    mul: np.ndarray,
    stage: Stage,
    narrow: np.ndarray,
    out: np.ndarray,
    place: Place,
    image: int,
    first: int,
    last: int,
    block: int,
) -> None:
    """Tiles ``first`` to ``last`` - 1 of kernel block ``block`` of one image."""
    sums = np.empty((NARROW_PIXELS, KERNELS), np.int32)
    results = np.empty((NARROW_PIXELS, KERNELS), np.int8)
    atom, pixel_stride = place.atom, place.pixel_stride
    count = pixels.size
    kernel = block * KERNELS
    wanted = min(KERNELS, place.surfaces * atom - kernel)
    is_narrow = wanted <= NARROW_VECTORS * LANES and count >= NARROW_PIXELS
    height = NARROW_PIXELS if is_narrow else PIXELS
    weights = packed[block].ctypes.data
    biases = alu[kernel : kernel + KERNELS]
    factors = mul[kernel : kernel + KERNELS]
    ending = _ending(alu, kernel, wanted, narrow, place)
    end = ending.ctypes.data if narrow.size > 0 else 0
    source = data.ctypes.data + image * place.image_step
    begin = image * place.out_step
    for pixel in range(first * PIXELS, min(last * PIXELS, count), height):
        # The last tile works on whole rows again, some of them twice.
        start = count - height if pixel + height > count >= height else pixel
        rows = min(height, count - start)
        where = pixels.ctypes.data + 8 * start
        ending[OUT] = out.ctypes.data + begin + start * pixel_stride
        if is_narrow:
            dot_narrow_tile(
                source, where, taps.ctypes.data, taps.size, steps, weights, place.flip, sums.ctypes.data, end
            )
        elif rows == PIXELS:
            dot_tile(source, where, taps.ctypes.data, taps.size, steps, weights, place.flip, sums.ctypes.data, end)
        else:
            for row in range(rows):
                at, to = where + 8 * row, sums[row].ctypes.data
                dot_row(source, at, taps.ctypes.data, taps.size, steps, weights, place.flip, to, end)
                ending[OUT] += pixel_stride
        if narrow.size > 0:
            continue
        _convert(sums, rows, biases, factors, stage, results)
        for k in range(0, wanted, atom):
            base = begin + (kernel + k) // atom * place.surface_stride + start * pixel_stride
            for row in range(rows):
                for a in range(atom):
                    out[base + row * pixel_stride + a] = results[row, k + a]


@njit(cache=True, nogil=True)
def _jobs(packed: np.ndarray, pixels: np.ndarray, place: Place) -> tuple[int, int, int]:
    """(jobs, chunks of an image, tiles of a chunk): a job is a chunk of an image for one block of kernels."""
    tiles = (pixels.size + PIXELS - 1) // PIXELS
    chunk = max(1, min(16, tiles // 4))
    chunks = (tiles + chunk - 1) // chunk
    return packed.shape[0] * place.images * chunks, chunks, chunk


@njit(cache=True, nogil=True)
def _job(
    number: int,
    chunks: int,
    chunk: int,
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    steps: int,
    packed: np.ndarray,
    alu: np.ndarray,
    mul: np.ndarray,
    stage: Stage,
    narrow: np.ndarray,
    out: np.ndarray,
    place: Place,
) -> None:
    """Job ``number``. What is larger stays in the cache: the weights of a block, or the data of an image."""
    blocks, images = packed.shape[0], place.images
    tiles = (pixels.size + PIXELS - 1) // PIXELS
    piece, first = number // chunks, number % chunks * chunk
    if packed[0].size > place.image_size:
        block, image = piece // images, piece % images
    else:
        image, block = piece // blocks, piece % blocks
    last = min(tiles, first + chunk)
    _tiles(data, pixels, taps, steps, packed, alu, mul, stage, narrow, out, place, image, first, last, block)


@njit(cache=True, nogil=True)
def _serial(
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    steps: int,
    packed: np.ndarray,
    alu: np.ndarray,
    mul: np.ndarray,
    stage: Stage,
    narrow: np.ndarray,
    out: np.ndarray,
    place: Place,
) -> None:
    jobs, chunks, chunk = _jobs(packed, pixels, place)
    for number in range(jobs):
        _job(number, chunks, chunk, data, pixels, taps, steps, packed, alu, mul, stage, narrow, out, place)


@njit(cache=True, nogil=True, shared=True)
def _shared(
    crew: int,
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    steps: int,
    packed: np.ndarray,
    alu: np.ndarray,
    mul: np.ndarray,
    stage: Stage,
    narrow: np.ndarray,
    out: np.ndarray,
    place: Place,
) -> None:
    jobs, chunks, chunk = _jobs(packed, pixels, place)
    arguments = (chunks, chunk, data, pixels, taps, steps, packed, alu, mul, stage, narrow, out, place)
    share(crew, jobs, _job, arguments)


def convolve_and_convert(
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    steps: int,
    packed: np.ndarray,
    alu: np.ndarray,
    mul: np.ndarray,
    stage: Stage,
    narrow: np.ndarray,
    out: np.ndarray,
    place: Place,
) -> None:
    """All kernels at all pixels of all images, straight to their surfaces.

    ``data``, ``pixels``, ``taps``, ``steps``, ``packed`` as for ``conv_int8_dot.accumulate``; ``alu`` (K',) int32 is
    the ALU operand less the packing's correction, ``mul`` (K',) int32 the multiplier; ``narrow`` from
    :func:`narrow_settings`. ``data`` may also be int8, as it lies in memory (``place.flip`` = FLIP). ``out`` is flat
    int8.
    """
    work = packed.size * pixels.size * place.images
    run = _shared if work > WAKING_WORK else _shared.joined if work > SHARED_WORK else _serial
    run(data.view(np.uint8), pixels, taps, steps, packed, alu, mul, stage, narrow, out, place)
