"""SDP from memory to memory, int8: the weighted sum of two cubes, ReLU or not, and the output converter (a residual
add; with one cube alone a copy to another scale).

16 bits suffice if both weights are 1, the offset is 0, 0 < scale / 2^shift < 1 and shift <= 15 (:func:`short_scale`).
Then the magnitude of the sum is at most 256, and the scale for a shift of 15 is below 2^15. So
``(magnitude * scale >> 14) + 1 >> 1`` is the magnitude of the correctly rounded result.

Otherwise float32 is exact if both weights are 1 and |a + b - offset| * |scale| + 2^(shift-1) <= 2^24 (:func:`fits`).
Then the product and the product plus one half are whole multiples of 2^-shift that fit 24 bits. So rounding half away
from zero is truncation after the addition of one half. Otherwise float64 is exact (:mod:`nvdla.kernels.sdp`) while the
sum does not saturate in the SDP (:func:`sum_fits`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvdla.kernels.fast.fast_paths import FastPath
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import late, njit
from nvdla.kernels.jit.recorded_calls import ALONE, JOINED, WAKING, RecordedCall, int8s, words
from nvdla.kernels.jit.variants import recorded

add_shorts: Callable[..., int] = late("nvdla.kernels.fast.dot_code:add_shorts")
"""The compiled sum in 16 bits."""

FAST_PATH = FastPath(
    "sdp_int8_add.addition",
    ("sdp.x_and_convert",),
    "int8; sum_fits: the weighted sum does not saturate in the SDP; 16 bits where short_scale, float32 where fits, "
    "else float64",
    "tests/kernels/test_sdp_int8_add.py",
)

LARGEST_SUM = 256
CHUNK = 1 << 13
SHARED_SIZE, WAKING_SIZE = 1 << 16, 1 << 20
ELEMENTS_PER_NANOSECOND = 8

FIRST, SECOND, OUT, STRIDES, IMAGE_STRIDES = 0, 1, 2, 3, 6
LENGTH, ROWS, IMAGES, OFFSET, SCALE, SHIFT, WEIGHTS, RELU = 9, 10, 11, 12, 13, 14, 15, 17
SHORT_SCALE = 18
FIELDS = SHORT_SCALE + 1
"""The fields of a record of :func:`addition`: addresses of the cubes, then its arguments."""


def fits(offset: int, scale: int, shift: int) -> bool:
    """True when float32 gives every result exactly."""
    half = (1 << shift) >> 1
    return shift <= 24 and (LARGEST_SUM + abs(offset)) * abs(scale) + half <= 1 << 24


def short_scale(offset: int, scale: int, shift: int) -> int:
    """Return the scale for a shift of 15 if 16 bits give every result exactly, else 0."""
    short = scale << 15 - shift if shift <= 15 else 0
    return short if offset == 0 and 0 < short < 1 << 15 else 0


def sum_fits(weights: tuple[int, int]) -> bool:
    """True when neither a weighted sum nor one of its terms can leave 32 bits."""
    return 128 * (abs(weights[0]) + abs(weights[1])) < 1 << 31


@njit(cache=True, nogil=True)
def _add(first: np.ndarray, second: np.ndarray, floor: float, offset: float, factor: float, out: np.ndarray) -> None:
    """``first``, ``second``, ``out`` flat int8 of one length."""
    for i in range(out.size):
        x = max(np.float32(np.int32(first[i]) + np.int32(second[i])), floor)
        y = (x - offset) * factor
        y = min(max(y, np.float32(-128.0)), np.float32(127.0))
        half = np.float32(0.5) if y >= np.float32(0.0) else np.float32(-0.5)
        out[i] = np.int8(np.int32(y + half))


@njit(cache=True, nogil=True)
def _places(number: int, record: np.ndarray) -> tuple[int, int, int, int]:
    """Return the elements of piece ``number`` and the addresses of both operands and the result."""
    length, rows = record[LENGTH], record[ROWS]
    chunks = pieces(length, CHUNK)
    line, start = number // chunks, number % chunks * CHUNK
    image, row = line // rows, line % rows
    a = record[FIRST] + image * record[IMAGE_STRIDES] + row * record[STRIDES] + start
    b = record[SECOND] + image * record[IMAGE_STRIDES + 1] + row * record[STRIDES + 1] + start
    c = record[OUT] + image * record[IMAGE_STRIDES + 2] + row * record[STRIDES + 2] + start
    return min(length - start, CHUNK), a, b, c


@njit(nogil=True)
def _count(address: int) -> int:
    record = words(address, FIELDS)
    return record[IMAGES] * record[ROWS] * pieces(record[LENGTH], CHUNK)


@recorded(_count)
def _add_all(number: int, address: int) -> None:
    record = words(address, FIELDS)
    n, a, b, c = _places(number, record)
    if record[SHORT_SCALE]:
        done = add_shorts(a, b, c, n, 0 if record[RELU] else -LARGEST_SUM, record[SHORT_SCALE])
        n, a, b, c = n - done, a + done, b + done, c + done
    floor, offset = np.float32(0 if record[RELU] else -LARGEST_SUM), np.float32(record[OFFSET])
    _add(int8s(a, n), int8s(b, n), floor, offset, np.float32(record[SCALE] * 2.0 ** -record[SHIFT]), int8s(c, n))


@njit(cache=True, nogil=True)
def _add_weighted(
    first: np.ndarray,
    second: np.ndarray,
    weights: tuple[float, float],
    floor: float,
    offset: float,
    factor: float,
    out: np.ndarray,
) -> None:
    """A chunk of the weighted sum of :func:`addition`, everything float64."""
    for i in range(out.size):
        x = max(np.float64(first[i]) * weights[0] + np.float64(second[i]) * weights[1], floor)
        y = min(max((x - offset) * factor, -128.0), 127.0)
        out[i] = np.int8(np.int32(y + (0.5 if y >= 0.0 else -0.5)))


@recorded(_count)
def _add_weighted_all(number: int, address: int) -> None:
    record = words(address, FIELDS)
    n, a, b, c = _places(number, record)
    weights = (np.float64(record[WEIGHTS]), np.float64(record[WEIGHTS + 1]))
    floor, offset = 0.0 if record[RELU] else -float(1 << 31), np.float64(record[OFFSET])
    _add_weighted(int8s(a, n), int8s(b, n), weights, floor, offset, record[SCALE] * 2.0 ** -record[SHIFT], int8s(c, n))


def addition(
    first: np.ndarray,
    second: np.ndarray,
    strides: tuple[int, int, int],
    length: int,
    rows: int,
    relu: bool,
    converter: tuple[int, int, int],
    out: np.ndarray,
    weights: tuple[int, int] = (1, 1),
    images: int = 1,
    image_strides: tuple[int, int, int] = (0, 0, 0),
) -> RecordedCall:
    """``out = ((max(first * w0 + second * w1, 0 if relu) - offset) * scale >> shift)`` clamped to int8.

    All three are flat int8: ``rows`` runs of ``length`` elements, ``strides`` apart in each of them, for each of
    ``images``, ``image_strides`` apart; ``converter`` is (offset, scale, shift). The weights are within
    :func:`sum_fits`. ``out`` may be ``first`` or ``second``.
    """
    is_plain, size = weights == (1, 1) and fits(*converter), images * rows * length
    sharing = WAKING if size > WAKING_SIZE else JOINED if size > SHARED_SIZE else ALONE
    numbers = [array.ctypes.data for array in (first, second, out)]
    numbers += [*strides, *image_strides, length, rows, images, *converter, *weights, relu]
    numbers.append(short_scale(*converter) if weights == (1, 1) else 0)
    kernel, pace = (_add_all, ELEMENTS_PER_NANOSECOND) if is_plain else (_add_weighted_all, 1)
    return RecordedCall(kernel, numbers, (first, second, out), sharing, size // pace)
