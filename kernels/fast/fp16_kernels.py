"""The fp16 multiplier-adders for many kernels at once: for maps of few pixels, and data with many zeros.

The theorem is that of :mod:`nvdla.kernels.fast.fp16_pixels`; here one number of the data meets the weights of 32
kernels, so that the rows of the multiplier are computed instead of looked up.

**Rows.** Let v be the number of the data with the sign of the product, e a Booth digit of the weight's magnitude, and
g = 1 where e v < 0, else 0. The low 16 bits of the row of digit i are those of ``(e v - g) 2^(2 i)``. The bits above
them are those of ``(e v - g) 2^(2 i - 16)`` below 2 i, and 1 - g at 2 i.

*Proof.* CMAC makes a row of ``|e v|``, below 2^15, with a 1 at bit 16, and inverts these 17 bits where g = 1: since the
complement of x is -x - 1, the lower 16 bits are those of e v - g, and bit 16 is 1 - g. Then it shifts the row left by
2 i. A digit of 0 has no sign: g is 0. (tests/kernels/test_fp16_kernels.py compares all pairs of operands.)

A number of the data that is 0 is left out for all kernels: CMAC masks its products, and they do not count for the
largest exponent of an atom.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvdla.kernels.fast.fast_paths import FastPath
from nvdla.kernels.fast.fp16_layout import EXPONENTS, MANTISSAS, VECTOR
from nvdla.kernels.fp16_mac import ATOM, exponent_of, fp48_add, mantissa_of, nan_of
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import late, njit
from nvdla.kernels.jit.thread_pool import share
from nvdla.util.rounding import align, ceil_div

FAST_PATH = FastPath(
    "fp16_kernels.convolve",
    ("fp16_mac.convolve",),
    "always (the theorem of fp16_pixels, and that of its module)",
    "tests/kernels/test_fp16_kernels.py",
)

PIXEL_TILE = 8
GROUPS = 4
"""Vectors of kernels that use the same numbers of the data in turn."""
ENOUGH = 8
"""With fewer pieces each has one vector of kernels."""
COST = 0.6
"""Nanoseconds per product, measured."""
NAN = 1 << 14
"""Exponent of data that are NaN."""

multiply_atom: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:multiply_atom")
"""The compiled sums of an atom's products in each kernel."""
add_atoms: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:add_atoms")
"""The compiled addition of an atom to an FP48 accumulator in each kernel."""
deliver_fp32: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:deliver_fp32")
"""The compiled delivery of accumulators."""


@njit(cache=True, nogil=True)
def _pack(bits: np.ndarray, packed: np.ndarray, nans: np.ndarray) -> None:
    for kernel in range(bits.shape[0]):
        group, own = kernel // VECTOR, kernel % VECTOR
        for i in range(bits.shape[1]):
            value = np.int64(bits[kernel, i])
            mantissa = mantissa_of(value)
            packed[group, i, MANTISSAS, own] = -mantissa if value >> 15 else mantissa
            packed[group, i, EXPONENTS, own] = 4 * exponent_of(value)
            if nans[kernel, i // ATOM] < 0:
                nans[kernel, i // ATOM] = nan_of(value)


def pack_weights(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (kernels, atoms * 64), fp16 bits, as :func:`convolve` takes them: (groups of 32, places, 2, 32) int16,
    signed mantissas and exponents with the kernels side by side; and for each atom its first NaN or -1 (kernels, atoms)
    int32."""
    kernels, places = bits.shape
    groups = ceil_div(kernels, VECTOR)
    packed = np.zeros((groups, places, 2, VECTOR), np.int16)
    nans = np.full((kernels, places // ATOM), -1, np.int32)
    _pack(bits, packed, nans)
    return packed, nans


@njit(cache=True, nogil=True)
def _decode(bits: np.ndarray, mantissas: np.ndarray, exponents: np.ndarray) -> None:
    """Signed mantissas and exponents of all data."""
    for i in range(bits.size):
        value = np.int64(bits[i])
        mantissa = mantissa_of(value)
        mantissas[i] = -mantissa if value >> 15 else mantissa
        exponents[i] = NAN if value & 0x7FFF > 0x7C00 else 4 * exponent_of(value)


@njit(cache=True, nogil=True)
def _gather(
    mantissas: np.ndarray, exponents: np.ndarray, base: int, offsets: np.ndarray, numbers: np.ndarray
) -> tuple[int, int]:
    """Places, mantissas and exponents (``numbers``, 3 x ATOM) of what an atom of one pixel has besides zeros. Returns
    how many they are, and where in the data the first NaN is, or -1."""
    count = 0
    for place in range(offsets.size):
        at = base + offsets[place]
        mantissa = mantissas[at]
        if mantissa != 0:
            if exponents[at] == NAN:
                return 0, at
            numbers[0, count], numbers[1, count], numbers[2, count] = place, mantissa, exponents[at]
            count += 1
    return count, -1


@njit(cache=True, nogil=True)
def _add_nans(nans: np.ndarray, nan: int, totals: np.ndarray, largest: np.ndarray, sums: np.ndarray) -> None:
    """An atom with NaN in some of the kernels that ``nans`` has, or in the data (``nan``, else -1)."""
    for own in range(min(nans.size, VECTOR)):
        first = nans[own] if nans[own] >= 0 else nan
        exponent, mantissa = np.int64(63), (np.int64(first) << 53) >> 26
        if first < 0:
            exponent, mantissa = np.int64(largest[own]), sums[own]
        totals[0, own], totals[1, own] = fp48_add(totals[0, own], totals[1, own], exponent, mantissa)


@njit(cache=True, nogil=True)
def _deliver(totals: np.ndarray, pixel: int, kernels: tuple[int, int], results: np.ndarray, out: np.ndarray) -> None:
    """Write the accumulators of some ``kernels`` at one pixel to the output."""
    deliver_fp32(totals[0].ctypes.data, totals[1].ctypes.data, results.ctypes.data)
    atom = out.shape[2]
    for kernel in range(kernels[0], min(kernels[0] + VECTOR, kernels[1])):
        out[kernel // atom, pixel, kernel % atom] = results[kernel - kernels[0]]


@njit(cache=True, nogil=True)
def _piece(
    number: int,
    together: int,
    bits: np.ndarray,
    mantissas: np.ndarray,
    exponents: np.ndarray,
    bases: np.ndarray,
    offsets: np.ndarray,
    used: np.ndarray,
    packed: np.ndarray,
    nans: np.ndarray,
    any_nan: bool,
    out: np.ndarray,
) -> None:
    """Some kernels at some pixels."""
    parts = pieces(packed.shape[0], together)
    first, top = number // parts * PIXEL_TILE, number % parts * together
    pixels, groups = min(PIXEL_TILE, bases.size - first), min(together, packed.shape[0] - top)
    numbers = np.empty((3, ATOM), np.int16)
    largest, sums, results = np.zeros(VECTOR, np.int16), np.empty(VECTOR, np.int64), np.empty(VECTOR, np.uint32)
    totals = np.zeros((pixels, groups, 2, VECTOR), np.int64)
    for atom in range(used.size):
        at = atom * ATOM
        places = offsets[at : at + used[atom]]
        for pixel in range(pixels):
            count, where = _gather(mantissas, exponents, bases[first + pixel], places, numbers)
            nan = nan_of(np.int64(bits[where])) if where >= 0 else np.int64(-1)
            for group in range(groups):
                total = totals[pixel, group]
                if count:
                    multiply_atom(
                        packed[top + group, at].ctypes.data, numbers[0].ctypes.data, numbers[1].ctypes.data,
                        numbers[2].ctypes.data, count, largest.ctypes.data, sums.ctypes.data,
                    )  # fmt: skip
                else:
                    sums[:] = 0
                if nan >= 0 or any_nan:
                    _add_nans(nans[(top + group) * VECTOR :, atom], nan, total, largest, sums)
                elif count:
                    add_atoms(total[0].ctypes.data, total[1].ctypes.data, largest.ctypes.data, sums.ctypes.data)
    for pixel in range(pixels):
        for group in range(groups):
            limits = ((top + group) * VECTOR, nans.shape[0])
            _deliver(totals[pixel, group], first + pixel, limits, results, out)


@njit(cache=True, nogil=True, shared=True)
def _convolve(
    pool: int,
    together: int,
    bits: np.ndarray,
    bases: np.ndarray,
    offsets: np.ndarray,
    used: np.ndarray,
    packed: np.ndarray,
    nans: np.ndarray,
    out: np.ndarray,
) -> None:
    mantissas, exponents = np.empty(bits.size, np.int16), np.empty(bits.size, np.int16)
    _decode(bits, mantissas, exponents)
    count = pieces(bases.size, PIXEL_TILE) * pieces(packed.shape[0], together)
    any_nan = nans.max() >= 0
    arguments = (together, bits, mantissas, exponents, bases, offsets, used, packed, nans, any_nan, out)
    share(pool, count, _piece, arguments)


def convolve(
    bits: np.ndarray,
    bases: np.ndarray,
    offsets: np.ndarray,
    packed: tuple[np.ndarray, np.ndarray],
    out: np.ndarray,
) -> None:
    """Compute :func:`nvdla.kernels.fp16_mac.convolve` with weights from this module's :func:`pack_weights`.

    In every atom, places that hold nothing (offset -1) only follow those that hold something.
    """
    used = (offsets.reshape(-1, ATOM) >= 0).sum(axis=1)
    groups = len(packed[0])
    tiles = ceil_div(bases.size, PIXEL_TILE)
    together = GROUPS if tiles * ceil_div(groups, GROUPS) >= ENOUGH else 1
    work = cost(bases.size, len(packed[1])) * int(used.sum())
    _convolve.for_work(work, together, bits, bases, offsets, used, *packed, out)


def cost(pixels: int, kernels: int) -> float:
    """Nanoseconds of a core for each place of the weights."""
    return COST * pixels * align(kernels, VECTOR)
