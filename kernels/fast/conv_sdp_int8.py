"""Convolution and SDP in one pass, int8: a tile's sums are processed while they are in the first-level cache.

Equal to :mod:`nvdla.kernels.fast.conv_int8_dot` followed by the integer pipeline of the SDP for the usual end of a
convolution: X1 = per-channel ALU SUM, multiplier and shift, ReLU; X2 bypassed or the sum with a cube of int8 in memory
and ReLU; Y bypassed; output converter to int8.

Bounds that make it exact, to be checked by the caller for each operation: sums and sums + ALU operand fit an int32
(:data:`~nvdla.kernels.fast.conv_int8_dot.MAX_TERMS` and :func:`sums_fit`), so X1's 32-bit saturation (which applies
after its shift) cannot act before the multiplication; products fit an int64 (32 x 16 bits). X2's summand fits 32 bits
(its shift is at most :data:`LARGEST_X2_SHIFT`), so that nothing saturates but the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nvdla.kernels.fast.dot_layout import (
    ALU,
    BOTTOM,
    DECIDES,
    EPILOGUE,
    ESTIMATE,
    FACTOR,
    FACTORS,
    FLOOR,
    HALF,
    HALVES,
    KERNELS,
    LOWEST,
    MATRIX_PIXELS,
    NARROW_PIXELS,
    NARROW_VECTORS,
    OTHER_PLACES,
    OTHER_STRIDE,
    PIXELS,
    PLACES,
    POWER,
    ROW_STRIDE,
    SHIFTED,
    TIMES,
    TOP,
    WIDE,
    WORDS,
)
from nvdla.kernels.fast.dot_tile import (
    begin_matrices,
    dot_matrix_tile,
    dot_narrow_tile,
    dot_row,
    dot_tile,
    end_matrices,
    finish,
    multiplies_matrices,
)
from nvdla.kernels.fast.fast_paths import FastPath
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.recorded_calls import ALONE, JOINED, WAKING, RecordedCall, words
from nvdla.kernels.jit.variants import recorded
from nvdla.util.rounding import ceil_div

FAST_PATH = FastPath(
    "conv_sdp_int8.convolution",
    ("conv.exact_sums", "conv.deliver", "sdp.x_and_convert"),
    "int8; sums_fit: sums and sums with the ALU operand fit an int32; X2 and Y bypassed",
    "tests/kernels/test_conv_sdp_int8.py",
)

INT32_LOW, INT32_HIGH = -(1 << 31), (1 << 31) - 1
LARGEST_X2_SHIFT = 24
SHARED_WORK = 1 << 19
WAKING_WORK = 1 << 23
"""Least multiplications for awake workers (8 microseconds of work) and for waking others (120)."""


PIECE_WORK = 1 << 19
"""Multiplications per piece, 2 microseconds of work: the caller waits for the last piece."""
ROWS_ALONE = 2
"""Rows at the end that are computed one by one: each takes a fourth of the time of a tile."""
LARGEST_ERROR = 2.0**-9
"""Largest useful error of an estimate: above it more than 1 in 256 numbers, over one per tile, stay undecided."""
NOTHING = np.zeros(HALF, np.int8)
"""X2's summand if there is none."""
WORK_PER_NANOSECOND = 64
"""Least multiplications of a core per nanosecond."""

DATA, PIXEL_PLACES, PIXEL_COUNT, TAPS, TAP_COUNT, QUADS, PACKED, BLOCKS, BLOCK_BYTES, EPILOGUES, IN_32_BITS = range(11)
PIXEL_STRIDE, FLIPPED, IMAGES, IMAGE_STRIDE, IMAGE_SIZE, OUT_STRIDE, RESULTS = range(11, 18)
OTHER, OTHER_PIXEL, OTHER_IMAGE, CHUNK, CHUNKS, TILE = range(18, 24)
FIELDS = TILE + 1
"""Fields of a record: data, pixels, taps, weights, epilogues of each block of kernels (addresses, with their sizes),
flag for an epilogue in 32 bits; fields of :class:`Place`, results; address of X2's summand, strides of its pixels and
images; tiles per chunk, chunks per image, pixels per tile."""


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
    """Layout of results and images in bytes.

    Surface s begins at s * ``surface_stride`` and contains ``atom`` bytes per pixel, ``pixel_stride`` apart. Image i of
    ``images`` begins at i * ``image_stride`` of the data, occupies about ``image_size`` there, and begins at i *
    ``out_stride`` of the results. ``flip``: :data:`~nvdla.kernels.fast.dot_layout.FLIP`
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
    """Return the settings of an epilogue in 32 bits, or an empty array if 32 bits do not suffice.

    The settings: floor, ceiling, offset, scale, rounding, shift (int64).

    The converter rises with x, and its result stays at a rail beyond some x on either side. If the products up to
    there fit an int32, x can be limited to that range first and nothing is lost: so ``floor`` is the least x whose
    product (and rounding) fits, which must give -128 unless ReLU's 0 is above it; ``ceiling`` likewise gives 127.
    """
    none = np.empty(0, np.int64)
    if stage.multiply or stage.scale <= 0 or stage.out_shift > 30:
        return none
    # Without a shift nothing is rounded: twice the number halved, so that tiles need no second case.
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
    largest = int(np.abs(alu.astype(np.int64)).max(initial=0))
    if weights[0].size * (1 << 14) + largest < 1 << 31:
        return True
    magnitudes = np.abs(weights.reshape(len(weights), -1), dtype=np.int16).sum(axis=1, dtype=np.int64) * 128
    sums: np.ndarray = magnitudes + np.abs(alu.astype(np.int64))
    return int(sums.max(initial=0)) < 1 << 31


class Multipliers(NamedTuple):
    """Operands for the sums of each kernel, (K',).

    ``alu`` int32; ``factors`` float64; ``estimates`` float32: the factors times the converter's.
    """

    alu: np.ndarray
    factors: np.ndarray
    estimates: np.ndarray


def _epilogues(
    stage: FusedStage, narrow: np.ndarray, operands: Multipliers, place: Place, summand: Summand
) -> np.ndarray:
    """Return the epilogues of the tiles of each block of kernels, int64 (blocks, EPILOGUE).

    Every number is exact in float64 (:mod:`nvdla.kernels.sdp`), so a product and a sum may be one instruction. The
    converter is monotone: X2's limits, converted, are limits of its result (at most 48 bits, exact, too).
    """
    first = np.arange(operands.alu.size // KERNELS) * KERNELS
    epilogues = np.zeros((first.size, EPILOGUE), np.int64)
    used = np.minimum(place.surfaces * place.atom - first, KERNELS)
    for field, array in zip((ALU, FACTORS, ESTIMATE), operands, strict=True):
        epilogues[:, field] = array.ctypes.data + array.itemsize * first
    epilogues[:, FLOOR : FLOOR + narrow.size] = narrow
    epilogues[:, HALVES], epilogues[:, WIDE] = used // HALF, place.atom >= WORDS
    epilogues[:, ROW_STRIDE], epilogues[:, OTHER_STRIDE] = place.pixel_stride, summand.pixel_stride
    half = np.arange(KERNELS // HALF)
    channel = first[:, None] + HALF * np.where(half * HALF < used[:, None], half, half - half % 2)
    surface, byte = channel // place.atom, channel % place.atom
    epilogues[:, PLACES : PLACES + half.size] = surface * place.surface_stride + byte
    if summand.surface_stride:
        epilogues[:, OTHER_PLACES : OTHER_PLACES + half.size] = surface * summand.surface_stride + byte
    _put_numbers(stage, summand, epilogues.view(np.float64))
    return epilogues


def _put_numbers(stage: FusedStage, summand: Summand, fields: np.ndarray) -> None:
    """Set the float64 fields of the epilogues (blocks, EPILOGUE)."""
    scale, power = stage.scale * 2.0**-stage.out_shift, 2.0**summand.shift
    ends = [(limit - stage.offset) * scale for limit in (summand.low, INT32_HIGH)]
    numbers = {LOWEST: stage.low, POWER: power, FACTOR: scale, SHIFTED: stage.offset * scale}
    numbers |= {BOTTOM: min(max(min(ends), -128), 127), TOP: min(max(max(ends), -128), 127)}
    numbers |= {TIMES: power * scale, DECIDES: 0.5 - estimate_error(stage, summand)}
    for field, number in numbers.items():
        fields[:, field] = number


def estimate_error(stage: FusedStage, summand: Summand) -> float:
    """Return the largest error of an estimate in float32 before rounding; 1 if the estimate is not useful.

    With scale > 0 the exact number is t = ((z + other * 2^s) - offset) * c, where z is x * factor rounded and c the
    converter's factor. The estimate leaves out the first rounding (c / 2). Its operands and operations are rounded to
    24 bits, at most five times one after the other, so it is off by less than 5 * 2^-24 of the magnitudes that it adds:
    128 * 2^s * c and offset * c, both twice, since a sum may be so much larger than the result, and 130 for the result.
    Beyond 130 the error grows with the result, which is -128 or 127 all the same. Saturations in 32 bits and X1's ReLU
    must change nothing but what the limits of the result do: z must not reach its limits while the result is within
    its own.
    """
    c = stage.scale * 2.0**-stage.out_shift
    reach = 128 * 2.0**summand.shift
    top = (INT32_HIGH - reach - stage.offset) * c >= 129
    bottom = (INT32_LOW + reach - stage.offset) * c <= -129
    if c <= 0 or stage.low != INT32_LOW or not (top and bottom):
        return 1.0
    error = c / 2 + 5 * 2.0**-24 * (130 + 2 * reach * c + 2 * abs(stage.offset) * c)
    return error if error < LARGEST_ERROR else 1.0


@njit(cache=True, nogil=True)
def _tiles(record: np.ndarray, image: int, first: int, last: int, block: int) -> None:
    """Compute tiles ``first`` to ``last`` - 1 of kernel block ``block`` of one image."""
    sums = np.empty((MATRIX_PIXELS, KERNELS), np.int32)
    count, epilogue, in_32_bits = record[PIXEL_COUNT], record[EPILOGUES] + 8 * EPILOGUE * block, record[IN_32_BITS]
    tile = record[TILE]
    is_matrix, few = tile == MATRIX_PIXELS, words(epilogue, EPILOGUE)[HALVES] * HALF <= NARROW_VECTORS * WORDS
    is_narrow = few and count >= NARROW_PIXELS and not is_matrix
    height = NARROW_PIXELS if is_narrow else tile
    weights = record[PACKED] + block * record[BLOCK_BYTES]
    taps, tap_count, quads, flip = record[TAPS], record[TAP_COUNT], record[QUADS], record[FLIPPED]
    source = record[DATA] + image * record[IMAGE_STRIDE]
    begin = record[RESULTS] + image * record[OUT_STRIDE]
    # Destination of a tile's rows, and their stride.
    to, stride, end = (begin, record[PIXEL_STRIDE], epilogue) if in_32_bits else (sums.ctypes.data, 4 * KERNELS, 0)
    if is_matrix:
        begin_matrices()
    for pixel in range(first * tile, min(last * tile, count), height):
        # The last tile repeats some rows if this takes less time than single rows.
        left = count - pixel
        start = count - height if ROWS_ALONE < left < height <= count else pixel
        rows = min(height, count - start)
        where = record[PIXEL_PLACES] + 8 * start
        target = to + start * stride if in_32_bits else to
        if rows < height:
            for row in range(rows):
                dot_row(source, where + 8 * row, taps, tap_count, quads, weights, flip, target + row * stride, end)
        elif is_matrix:
            dot_matrix_tile(source, where, taps, tap_count, quads, weights, flip, target, end)
        elif is_narrow:
            dot_narrow_tile(source, where, taps, tap_count, quads, weights, flip, target, end)
        else:
            dot_tile(source, where, taps, tap_count, quads, weights, flip, target, end)
        if not in_32_bits:
            other = record[OTHER] + image * record[OTHER_IMAGE] + start * record[OTHER_PIXEL]
            finish(sums.ctypes.data, rows, epilogue, other, begin + start * record[PIXEL_STRIDE])
    if is_matrix:
        end_matrices()


@njit(nogil=True)
def _count(address: int) -> int:
    record = words(address, FIELDS)
    return record[BLOCKS] * record[IMAGES] * record[CHUNKS]


@recorded(_count)
def _convolve(number: int, address: int) -> None:
    """Compute a chunk of an image for one block of kernels.

    The order of the pieces keeps the larger operand in the cache: the weights of a block, or the data of an image.
    """
    record = words(address, FIELDS)
    blocks, images, chunks, chunk = record[BLOCKS], record[IMAGES], record[CHUNKS], record[CHUNK]
    tiles = pieces(record[PIXEL_COUNT], record[TILE])
    piece, first = number // chunks, number % chunks * chunk
    if record[BLOCK_BYTES] > record[IMAGE_SIZE]:
        block, image = piece // images, piece % images
    else:
        image, block = piece // blocks, piece % blocks
    _tiles(record, image, first, min(tiles, first + chunk), block)


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
) -> RecordedCall:
    """Compute all kernels at all pixels of all images, and write the results to their surfaces.

    ``data``, ``pixels``, ``taps``, ``quads``, ``packed`` as for ``conv_int8_dot.accumulate``; ``alu`` (K',) int32 is
    the ALU operand less the packing's correction, ``mul`` (K',) int32 the multiplier; ``narrow`` from
    :func:`narrow_settings`. ``data`` can also be int8 in its memory layout (``place.flip`` = FLIP). ``out`` is flat
    int8. ``other``, flat int8 and apart from ``out``, is the cube that X2 adds; then ``narrow`` is empty.
    """
    work = packed.size * pixels.size * place.images
    sharing = WAKING if work > WAKING_WORK else JOINED if work > SHARED_WORK else ALONE
    tile = MATRIX_PIXELS if pixels.size >= MATRIX_PIXELS and multiplies_matrices(taps.size, quads) else PIXELS
    tiles = ceil_div(pixels.size, tile)
    chunk = max(1, min(PIECE_WORK // (tile * packed[0].size), tiles))
    added = NOTHING if other is None else other
    if other is None:  # X1's lower limit is X2's as well
        stage, summand = stage._replace(low=INT32_LOW), summand._replace(low=max(stage.low, summand.low))
    factors = mul * 2.0**-stage.shift if stage.multiply else np.ones(mul.size)
    operands = Multipliers(alu, factors, (factors * stage.scale * 2.0**-stage.out_shift).astype(np.float32))
    epilogues = _epilogues(stage, narrow, operands, place, summand)
    numbers = np.zeros(FIELDS, np.int64)
    numbers[[DATA, PIXEL_PLACES, TAPS, PACKED]] = [array.ctypes.data for array in (data, pixels, taps, packed)]
    numbers[[EPILOGUES, RESULTS, OTHER]] = [array.ctypes.data for array in (epilogues, out, added)]
    numbers[[PIXEL_COUNT, TAP_COUNT, QUADS]] = pixels.size, taps.size, quads
    numbers[[BLOCKS, BLOCK_BYTES, CHUNK, CHUNKS, TILE]] = (
        len(packed),
        packed[0].size,
        chunk,
        ceil_div(tiles, chunk),
        tile,
    )
    numbers[[PIXEL_STRIDE, FLIPPED, IMAGES]] = place.pixel_stride, place.flip, place.images
    numbers[[IMAGE_STRIDE, IMAGE_SIZE, OUT_STRIDE]] = place.image_stride, place.image_size, place.out_stride
    numbers[[OTHER_PIXEL, OTHER_IMAGE, IN_32_BITS]] = summand.pixel_stride, summand.image_stride, narrow.size > 0
    arrays = (data, pixels, taps, packed, operands, epilogues, out, added)
    return RecordedCall(_convolve, numbers, arrays, sharing, work // WORK_PER_NANOSECOND)
