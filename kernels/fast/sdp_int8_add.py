"""SDP from memory to memory, int8: the weighted sum of two cubes, ReLU or not, and the output converter (a residual
add; with one cube alone a copy to another scale).

float32 is exact where both weights are 1: with |a + b - offset| * |scale| + 2^(shift-1) <= 2^24 the product and the
product plus one half are whole multiples of 2^-shift that fit 24 bits, so rounding half away from zero is truncation
after adding one half. :func:`fits` is that bound. Otherwise float64 is, as :mod:`nvdla.kernels.sdp` says, and the sum
may only not saturate in the SDP: :func:`sum_fits`.
"""

from __future__ import annotations

import numpy as np

from nvdla.kernels.fast.forms import FastForm
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.crew import share

FORM = FastForm(
    "sdp_int8_add.add_and_convert",
    ("sdp.x_and_convert",),
    "int8; sum_fits: the weighted sum does not saturate in the SDP; float32 where fits, else float64",
    "tests/kernels/test_sdp_int8_add.py",
)

LARGEST_SUM = 256
CHUNK = 1 << 13
SHARED_SIZE, WAKING_SIZE = 1 << 16, 1 << 20


def fits(offset: int, scale: int, shift: int) -> bool:
    """True when float32 gives every result exactly."""
    half = (1 << shift) >> 1
    return shift <= 24 and (LARGEST_SUM + abs(offset)) * abs(scale) + half <= 1 << 24


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
def _rows(
    first: np.ndarray,
    second: np.ndarray,
    strides: tuple[int, int, int],
    steps: tuple[int, int, int],
    length: int,
    shape: tuple[int, int],
    floor: float,
    offset: float,
    factor: float,
    out: np.ndarray,
) -> None:
    for image in range(shape[0]):
        for row in range(shape[1]):
            a, b, c = _places(image, row, steps, strides, 0)
            _add(first[a : a + length], second[b : b + length], floor, offset, factor, out[c : c + length])


@njit(cache=True, nogil=True)
def _add_piece(
    number: int,
    first: np.ndarray,
    second: np.ndarray,
    strides: tuple[int, int, int],
    steps: tuple[int, int, int],
    length: int,
    shape: tuple[int, int],
    floor: float,
    offset: float,
    factor: float,
    out: np.ndarray,
) -> None:
    chunks = (length + CHUNK - 1) // CHUNK
    line, start = number // chunks, number % chunks * CHUNK
    n = min(length - start, CHUNK)
    a, b, c = _places(line // shape[1], line % shape[1], steps, strides, start)
    _add(first[a : a + n], second[b : b + n], floor, offset, factor, out[c : c + n])


@njit(cache=True, nogil=True, shared=True)
def _rows_shared(
    crew: int,
    first: np.ndarray,
    second: np.ndarray,
    strides: tuple[int, int, int],
    steps: tuple[int, int, int],
    length: int,
    shape: tuple[int, int],
    floor: float,
    offset: float,
    factor: float,
    out: np.ndarray,
) -> None:
    pieces = shape[0] * shape[1] * ((length + CHUNK - 1) // CHUNK)
    share(crew, pieces, _add_piece, (first, second, strides, steps, length, shape, floor, offset, factor, out))


@njit(cache=True, nogil=True)
def _places(
    image: int, row: int, steps: tuple[int, int, int], strides: tuple[int, int, int], start: int
) -> tuple[int, int, int]:
    a = image * steps[0] + row * strides[0] + start
    b = image * steps[1] + row * strides[1] + start
    return a, b, image * steps[2] + row * strides[2] + start


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
    """As ``_add``; everything float64."""
    for i in range(out.size):
        x = max(np.float64(first[i]) * weights[0] + np.float64(second[i]) * weights[1], floor)
        y = min(max((x - offset) * factor, -128.0), 127.0)
        out[i] = np.int8(np.int32(y + (0.5 if y >= 0.0 else -0.5)))


@njit(cache=True, nogil=True)
def _weighted_piece(
    number: int,
    first: np.ndarray,
    second: np.ndarray,
    strides: tuple[int, int, int],
    steps: tuple[int, int, int],
    length: int,
    shape: tuple[int, int],
    weights: tuple[float, float],
    floor: float,
    offset: float,
    factor: float,
    out: np.ndarray,
) -> None:
    chunks = (length + CHUNK - 1) // CHUNK
    line, start = number // chunks, number % chunks * CHUNK
    n = min(length - start, CHUNK)
    a, b, c = _places(line // shape[1], line % shape[1], steps, strides, start)
    _add_weighted(first[a : a + n], second[b : b + n], weights, floor, offset, factor, out[c : c + n])


@njit(cache=True, nogil=True, shared=True)
def _weighted_shared(
    crew: int,
    first: np.ndarray,
    second: np.ndarray,
    strides: tuple[int, int, int],
    steps: tuple[int, int, int],
    length: int,
    shape: tuple[int, int],
    weights: tuple[float, float],
    floor: float,
    offset: float,
    factor: float,
    out: np.ndarray,
) -> None:
    pieces = shape[0] * shape[1] * ((length + CHUNK - 1) // CHUNK)
    arguments = (first, second, strides, steps, length, shape, weights, floor, offset, factor, out)
    share(crew, pieces, _weighted_piece, arguments)


def add_and_convert(
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
    steps: tuple[int, int, int] = (0, 0, 0),
) -> None:
    """``out = ((max(first * w0 + second * w1, 0 if relu) - offset) * scale >> shift)`` clamped to int8.

    All three are flat int8: ``rows`` runs of ``length`` elements, ``strides`` apart in each of them, for each of
    ``images``, ``steps`` apart; ``converter`` is (offset, scale, shift). The weights are within :func:`sum_fits`.
    ``out`` may be ``first`` or ``second``.
    """
    offset, scale, shift = converter
    shape = (images, rows)
    if weights != (1, 1) or not fits(offset, scale, shift):
        floor = 0.0 if relu else -float(1 << 31)
        factors = (float(weights[0]), float(weights[1]))
        factor = scale * 2.0**-shift
        _weighted_shared(first, second, strides, steps, length, shape, factors, floor, float(offset), factor, out)
        return
    size = images * rows * length
    shared = _rows_shared if size > WAKING_SIZE else _rows_shared.joined
    run = shared if size > SHARED_SIZE else _rows
    floor32 = np.float32(0.0 if relu else -LARGEST_SUM)
    factor32 = np.float32(scale * 2.0**-shift)
    run(first, second, strides, steps, length, shape, floor32, np.float32(offset), factor32, out)
