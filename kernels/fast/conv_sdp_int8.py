"""Convolution and SDP in one pass, int8: a tile's sums are processed while they lie in the first-level cache.

Equal to :mod:`nvdla.kernels.fast.conv_int8_dot` followed by the integer pipeline of the SDP for the usual end of a
convolution: X1 = per-channel ALU SUM, multiplier and shift, ReLU; X2 bypassed or the sum with a cube of int8 in memory
and ReLU; Y bypassed; output converter to int8.

Bounds that make it exact, to be checked by the caller for each operation: sums and sums + ALU operand fit an int32
(:data:`~nvdla.kernels.fast.conv_int8_dot.MAX_TERMS` and :func:`sums_fit`), so X1's 32-bit saturation (which applies
after its shift) cannot act before the multiplication; products fit an int64 (32 x 16 bits). X2's summand fits 32 bits
(its shift is at most :data:`LARGEST_X2_SHIFT`), so that nothing saturates but the sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from nvdla.kernels.fast.dot_layout import (
    ALU,
    ENDING,
    FLOOR,
    HALF,
    HALVES,
    KERNELS,
    NARROW_PIXELS,
    NARROW_VECTORS,
    OUT,
    PIXELS,
    PLACES,
    ROW_STRIDE,
    WIDE,
    WORDS,
)
from nvdla.kernels.fast.dot_tile import copy_half, dot_narrow_tile, dot_row, dot_tile
from nvdla.kernels.fast.forms import FastForm
from nvdla.kernels.integers import clamp, pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share
from nvdla.kernels.jit.record import ALONE, JOINED, WAKING, Record, int32s, words
from nvdla.rounding import ceil_div

FORM = FastForm(
    "conv_sdp_int8.convolution",
    ("conv.exact_sums", "conv.deliver", "sdp.x_and_convert"),
    "int8; sums_fit: sums and sums with the ALU operand fit an int32; X2 and Y bypassed",
    "tests/kernels/test_conv_sdp_int8.py",
)

INT32_LOW, INT32_HIGH = -(1 << 31), (1 << 31) - 1
LARGEST_X2_SHIFT = 24
SHARED_WORK = 1 << 21
WAKING_WORK = 1 << 23
"""Multiplications from which several threads pay: those that are awake (30 microseconds of work), and others (120)."""


WORK_A_NANOSECOND = 64
"""What a core multiplies at least in the time."""

DATA, PIXEL_PLACES, PIXEL_COUNT, TAPS, TAP_COUNT, QUADS, PACKED, BLOCKS, BLOCK_BYTES, BIASES, FACTORS = range(11)
"""The fields of a record: data, pixels, taps, weights, operands of X1 (addresses, with their sizes) ..."""
MULTIPLY, X1_SHIFT, LOW, CONVERTER_OFFSET, CONVERTER_SCALE, CONVERTER_SHIFT = range(11, 17)
SURFACES, SURFACE_STRIDE, ATOM, PIXEL_STRIDE, FLIPPED, IMAGES, IMAGE_STRIDE, IMAGE_SIZE, OUT_STRIDE = range(17, 26)
RESULTS, OTHER, OTHER_SURFACE, OTHER_PIXEL, OTHER_IMAGE, OTHER_SHIFT, OTHER_LOW = range(26, 33)
CHUNK, CHUNKS, IS_NARROW, NARROW = range(33, 37)
NARROW_NUMBERS = 6
FIELDS = NARROW + NARROW_NUMBERS
"""... the fields of :class:`FusedStage` and :class:`Place`, results and summand (addresses) with those of
:class:`Summand`, tiles of a chunk, chunks of an image, and :func:`narrow_settings`, if any."""


class FusedStage(NamedTuple):
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
    pixel, ``pixel_stride`` apart; image i of ``images`` begins at i * ``image_stride`` of the data (of which it takes
    about ``image_size``) and i * ``out_stride`` of the results. ``flip``: :data:`~nvdla.kernels.fast.dot_layout.FLIP`
    for int8 data, 0 for data + 128.
    """

    surfaces: int
    surface_stride: int
    atom: int
    pixel_stride: int
    flip: int
    images: int
    image_stride: int
    image_size: int
    out_stride: int


class Summand(NamedTuple):
    """The cube that X2 adds to the results: strides in bytes as in :class:`Place`; ``shift`` to the left, then the sum
    is at least ``low`` (0 with ReLU) and within 32 bits."""

    surface_stride: int
    pixel_stride: int
    image_stride: int
    shift: int
    low: int


NO_SUMMAND = Summand(0, 0, 0, 0, INT32_LOW)


def narrow_settings(stage: FusedStage) -> np.ndarray:
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


@njit(cache=True, nogil=True, fastmath={"contract"})
def _convert(
    sums: np.ndarray,
    rows: int,
    alu: np.ndarray,
    factors: np.ndarray,
    stage: FusedStage,
    others: np.ndarray,
    summand: Summand,
    out: np.ndarray,
) -> None:
    """X1, X2 and the output converter on a tile (rows, 64 kernels), all float64, which holds every number exactly
    (:mod:`nvdla.kernels.sdp`), so that a product and a sum may be one instruction. Sums are exact modulo 2^32, hence
    the int32 cast. ``factors``: mul * 2**-shift, or 1.

    The converter is monotone: X2's limits, converted, are limits of its result (at most 48 bits, exact, too).
    """
    low, highest = np.float64(stage.low), np.float64(INT32_HIGH)
    scale = stage.scale * 2.0**-stage.out_shift
    shifted, power = stage.offset * scale, np.float64(np.int64(1) << summand.shift)
    ends = summand.low * scale - shifted, highest * scale - shifted
    bottom, top = clamp(min(ends), -128.0, 127.0), clamp(max(ends), -128.0, 127.0)
    for row in range(rows):
        for k in range(KERNELS):
            x = clamp(np.float64(np.int32(sums[row, k] + alu[k])) * factors[k], low, highest)
            x = np.trunc(x + math.copysign(0.5, x)) + np.float64(others[row, k]) * power
            y = clamp(x * scale - shifted, bottom, top)
            out[row, k] = np.int8(np.int32(y + math.copysign(0.5, y)))


@njit(cache=True, nogil=True)
def _take_summand(
    other: int, kernel: int, wanted: int, rows: int, summand: Summand, atom: int, out: np.ndarray
) -> None:
    """X2's summand for a tile whose first row is at the address ``other``: int8 (rows, 64 kernels)."""
    for k in range(0, wanted, HALF):
        at = other + (kernel + k) // atom * summand.surface_stride + k % atom
        for row in range(rows):
            copy_half(at + row * summand.pixel_stride, out[row, k:].ctypes.data)


@njit(cache=True, nogil=True)
def _put_results(results: np.ndarray, kernel: int, wanted: int, rows: int, record: np.ndarray, out: int) -> None:
    """A tile to where its first row belongs, the address ``out``."""
    atom = record[ATOM]
    for k in range(0, wanted, HALF):
        at = out + (kernel + k) // atom * record[SURFACE_STRIDE] + k % atom
        for row in range(rows):
            copy_half(results[row, k:].ctypes.data, at + row * record[PIXEL_STRIDE])


@njit(cache=True, nogil=True)
def _ending(record: np.ndarray, kernel: int, wanted: int) -> np.ndarray:
    """What tiles of kernels ``kernel`` .. ``kernel`` + ``wanted`` - 1 end with; OUT is still to be set."""
    ending = np.empty(ENDING, np.int64)
    atom, surface = record[ATOM], record[SURFACE_STRIDE]
    ending[ALU] = record[BIASES] + 4 * kernel
    for at in range(NARROW_NUMBERS):
        ending[FLOOR + at] = record[NARROW + at]
    ending[HALVES] = wanted // HALF
    ending[WIDE] = atom >= WORDS
    ending[ROW_STRIDE] = record[PIXEL_STRIDE]
    for half in range(KERNELS // HALF):
        channel = kernel + half * HALF
        ending[PLACES + half] = channel // atom * surface + channel % atom
    return ending


@njit(cache=True, nogil=True)
def _factors(record: np.ndarray, kernel: int) -> np.ndarray:
    """What the accumulators of KERNELS kernels from ``kernel`` on are multiplied by, float64."""
    factors = np.ones(KERNELS)
    if record[MULTIPLY]:
        mul = int32s(record[FACTORS] + 4 * kernel, KERNELS)
        for k in range(KERNELS):
            factors[k] = mul[k] * 2.0 ** -record[X1_SHIFT]
    return factors


@njit(cache=True, nogil=True)
def _tiles(record: np.ndarray, image: int, first: int, last: int, block: int) -> None:
    """Tiles ``first`` to ``last`` - 1 of kernel block ``block`` of one image."""
    sums = np.empty((NARROW_PIXELS, KERNELS), np.int32)
    results, others = np.empty((NARROW_PIXELS, KERNELS), np.int8), np.zeros((NARROW_PIXELS, KERNELS), np.int8)
    pixel_stride, count, kernel = record[PIXEL_STRIDE], record[PIXEL_COUNT], block * KERNELS
    wanted = min(KERNELS, record[SURFACES] * record[ATOM] - kernel)
    is_narrow = wanted <= NARROW_VECTORS * WORDS and count >= NARROW_PIXELS
    height = NARROW_PIXELS if is_narrow else PIXELS
    weights = record[PACKED] + block * record[BLOCK_BYTES]
    taps, tap_count, quads, flip = record[TAPS], record[TAP_COUNT], record[QUADS], record[FLIPPED]
    biases, factors = int32s(record[BIASES] + 4 * kernel, KERNELS), _factors(record, kernel)
    ending = _ending(record, kernel, wanted)
    end = ending.ctypes.data if record[IS_NARROW] else 0
    source = record[DATA] + image * record[IMAGE_STRIDE]
    begin = record[RESULTS] + image * record[OUT_STRIDE]
    stage = FusedStage(
        record[MULTIPLY],
        record[X1_SHIFT],
        record[LOW],
        record[CONVERTER_OFFSET],
        record[CONVERTER_SCALE],
        record[CONVERTER_SHIFT],
    )
    summand = Summand(
        record[OTHER_SURFACE], record[OTHER_PIXEL], record[OTHER_IMAGE], record[OTHER_SHIFT], record[OTHER_LOW]
    )
    for pixel in range(first * PIXELS, min(last * PIXELS, count), height):
        # The last tile works on whole rows again, some of them twice.
        start = count - height if pixel + height > count >= height else pixel
        rows = min(height, count - start)
        where = record[PIXEL_PLACES] + 8 * start
        ending[OUT] = begin + start * pixel_stride
        if is_narrow:
            dot_narrow_tile(source, where, taps, tap_count, quads, weights, flip, sums.ctypes.data, end)
        elif rows == PIXELS:
            dot_tile(source, where, taps, tap_count, quads, weights, flip, sums.ctypes.data, end)
        else:
            for row in range(rows):
                dot_row(source, where + 8 * row, taps, tap_count, quads, weights, flip, sums[row].ctypes.data, end)
                ending[OUT] += pixel_stride
        if end:
            continue
        if record[OTHER]:
            base = record[OTHER] + image * summand.image_stride + start * summand.pixel_stride
            _take_summand(base, kernel, wanted, rows, summand, record[ATOM], others)
        _convert(sums, rows, biases, factors, stage, others, summand, results)
        _put_results(results, kernel, wanted, rows, record, begin + start * pixel_stride)


@njit(cache=True, nogil=True)
def _job(number: int, address: int) -> None:
    """Job ``number``: a chunk of an image for one block of kernels. What is larger stays in the cache: the weights of a
    block, or the data of an image."""
    record = words(address, FIELDS)
    blocks, images, chunks, chunk = record[BLOCKS], record[IMAGES], record[CHUNKS], record[CHUNK]
    tiles = pieces(record[PIXEL_COUNT], PIXELS)
    piece, first = number // chunks, number % chunks * chunk
    if record[BLOCK_BYTES] > record[IMAGE_SIZE]:
        block, image = piece // images, piece % images
    else:
        image, block = piece // blocks, piece % blocks
    _tiles(record, image, first, min(tiles, first + chunk), block)


@njit(cache=True, nogil=True)
def _convolve(crew: int, address: int) -> None:
    record = words(address, FIELDS)
    share(crew, record[BLOCKS] * record[IMAGES] * record[CHUNKS], _job, (address,))


def convolution(
    data: np.ndarray,
    pixels: np.ndarray,
    taps: np.ndarray,
    quads: int,
    packed: np.ndarray,
    alu: np.ndarray,
    mul: np.ndarray,
    stage: FusedStage,
    narrow: np.ndarray,
    out: np.ndarray,
    place: Place,
    other: np.ndarray | None = None,
    summand: Summand = NO_SUMMAND,
) -> Record:
    """All kernels at all pixels of all images, straight to their surfaces.

    ``data``, ``pixels``, ``taps``, ``quads``, ``packed`` as for ``conv_int8_dot.accumulate``; ``alu`` (K',) int32 is
    the ALU operand less the packing's correction, ``mul`` (K',) int32 the multiplier; ``narrow`` from
    :func:`narrow_settings`. ``data`` may also be int8, as it lies in memory (``place.flip`` = FLIP). ``out`` is flat
    int8. ``other``, flat int8 and apart from ``out``, is the cube that X2 adds; then ``narrow`` is empty.
    """
    work = packed.size * pixels.size * place.images
    sharing = WAKING if work > WAKING_WORK else JOINED if work > SHARED_WORK else ALONE
    tiles = ceil_div(pixels.size, PIXELS)
    chunk = max(1, min(16, tiles // 4))
    numbers = np.zeros(FIELDS, np.int64)
    numbers[[DATA, PIXEL_PLACES, TAPS, PACKED]] = [each.ctypes.data for each in (data, pixels, taps, packed)]
    numbers[[BIASES, FACTORS, RESULTS]] = [each.ctypes.data for each in (alu, mul, out)]
    numbers[[PIXEL_COUNT, TAP_COUNT, QUADS]] = pixels.size, taps.size, quads
    numbers[[BLOCKS, BLOCK_BYTES, CHUNK, CHUNKS]] = len(packed), packed[0].size, chunk, ceil_div(tiles, chunk)
    numbers[MULTIPLY : MULTIPLY + len(stage)] = stage
    numbers[SURFACES : SURFACES + len(place)] = place
    numbers[OTHER] = 0 if other is None else other.ctypes.data
    numbers[OTHER_SURFACE : OTHER_SURFACE + len(summand)] = summand
    numbers[IS_NARROW] = narrow.size > 0
    numbers[NARROW : NARROW + narrow.size] = narrow
    arrays = (data, pixels, taps, packed, alu, mul, out, other)
    return Record(_convolve, numbers, arrays, sharing, work // WORK_A_NANOSECOND)
