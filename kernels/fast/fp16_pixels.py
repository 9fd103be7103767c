"""The fp16 multiplier-adders for many pixels at once: exact products, less the carries that the hardware loses.

CMAC shifts the two carry-save rows s, k of a Booth multiplier right before it adds them
(:mod:`nvdla.kernels.fp16_mac`).

**Theorem.** Let P be the exact product of two signed mantissas that are not 0, B = ``BIAS_ROWS``, and n the shift (0,
4, ... 28). The multiplier's result is ``(P >> n) + u - c``. Here c is the carry out of bit n - 1 in the sum s + k, and
u the same carry in the sum P + B (both 0 for n = 0). u is 0 for n <= 16, c for n <= 4.

*Proof.* Every Booth row is non-negative, and the exact sum of the rows is P + B. A row i is at most 2^17 - 1, shifted
by 2 i. So all eight rows, with the ones that complete the negative rows, have a sum below 2^32, and a carry-save adder
is exact if the sum fits. |P| < 2^28 (mantissas are below 2^14), so P + B is in 0 .. 2^31. So s + k = P + B exactly.
Hence ``(s >> n) + (k >> n) = (P + B >> n) - c``, and ``(P + B >> n) = (P >> n) + (B >> n) + u``. The multiplier
subtracts ``B >> n``. The low 16 bits of B are 0, hence u. Only rows 0 to 2 have any of the low four bits, and the first
adder's carry row has none at bit 0. Each of the four adders that follow moves carries by one place, so none remains
there, hence c for n = 4. Products of zeros are masked, so their shifts are at least 32.
(tests/kernels/test_fp16_pixels.py compares all pairs of operands with :mod:`nvdla.kernels.fp16_mac`.)

So c needs the carry-save tree of only the low 16 bits as long as n <= 16: a pixel in each 16 bits of a vector, whose
rows are looked up in a table of the data by the weight's Booth digits. Larger shifts ask for the upper half, too, where
they occur. The rest are products, shifts and sums of integers, exact in any order: four products are below 2^30.
The compiled parts are written in LLVM's vectors (:mod:`nvdla.kernels.fast.fp16_code`), for any processor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nvdla.kernels.fast.fast_paths import FastPath
from nvdla.kernels.fast.fp16_layout import DIGITS, HIGH_TABLE, LOW_TABLE, PIXELS, PLACES
from nvdla.kernels.fp16_mac import ATOM, exponent_of, fp48_add, mantissa_of, nan_of
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import late, njit
from nvdla.kernels.jit.variants import in_pieces
from nvdla.util.rounding import align, ceil_div

FAST_PATH = FastPath(
    "fp16_pixels.convolve",
    ("fp16_mac.convolve",),
    "always (the theorem in its module)",
    "tests/kernels/test_fp16_pixels.py",
)

KERNEL_TILE = 128
COST = 0.5
"""Nanoseconds per product, measured."""
PLACE_COST, RESULT_COST = 8, 5
"""The same of a value of the data that is looked up, for each tile of kernels, and of a result that is delivered."""
fill_tables: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:fill_tables")
"""The compiled filling of the tables of one place."""
largest_exponents: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:largest_exponents")
"""The compiled search for the largest exponent of an atom in each pixel."""
add_products: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:add_products")
"""The compiled sum of a few places' products in each pixel."""
add_atoms: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:add_atoms")
"""The compiled addition of an atom to an FP48 accumulator in each pixel."""
deliver_fp32: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:deliver_fp32")
"""The compiled delivery of the accumulators of each pixel."""


@njit(nogil=True)
def _digit_class(digit: int) -> int:
    return digit if digit >= 0 else 2 - digit


@njit(cache=True, nogil=True)
def _pack(bits: np.ndarray, words: np.ndarray, mantissas: np.ndarray, exponents: np.ndarray, nans: np.ndarray) -> None:
    for kernel in range(bits.shape[0]):
        nans[kernel] = -1
        for i in range(bits.shape[1]):
            value = np.int64(bits[kernel, i])
            sign = 1 - 2 * (value >> 15)
            mantissa = mantissa_of(value)
            doubled, word = mantissa << 1, 0
            for digit in range(DIGITS):
                code = doubled >> 2 * digit & 7
                worth = (code + 1) // 2 if code < 4 else (code + 1) // 2 - 4
                word |= _digit_class(worth * sign) << 3 * digit
            words[kernel, i] = word
            mantissas[kernel, i] = sign * mantissa
            exponents[kernel, i] = 4 * exponent_of(value)
            if nans[kernel, i // ATOM] < 0:
                nans[kernel, i // ATOM] = nan_of(value)


def pack_weights(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Weights (kernels, atoms * 64), fp16 bits, as :func:`convolve` takes them: Booth digits (three bits each, from the
    lowest on, uint32), signed mantissas (int16), exponents (int16), and for each atom its first NaN or -1 (int32)."""
    kernels, places = bits.shape
    words = np.empty(bits.shape, np.uint32)
    mantissas, exponents = np.empty((2, *bits.shape), np.int16)
    nans = np.empty((kernels, places // ATOM), np.int32)
    _pack(bits, words, mantissas, exponents, nans)
    return words, mantissas, exponents, nans


@njit(cache=True, nogil=True)
def decode(bits: np.ndarray, mantissas: np.ndarray, exponents: np.ndarray, nans: np.ndarray) -> None:
    """One place of the data, a value a pixel: signed mantissas and exponents; ``nans`` keeps each pixel's first NaN."""
    for pixel in range(PIXELS):
        value = np.int64(bits[pixel])
        mantissa = mantissa_of(value)
        mantissas[pixel] = -mantissa if value >> 15 else mantissa
        exponents[pixel] = 4 * exponent_of(value)
        if value & 0x7FFF > 0x7C00 and nans[pixel] < 0:
            nans[pixel] = nan_of(value)


@njit(cache=True, nogil=True)
def accumulate_atom(
    nan: int,
    nans: np.ndarray,
    any_nan: bool,
    exponents: np.ndarray,
    mantissas: np.ndarray,
    largest: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Add an atom to the accumulators (``exponents``, ``mantissas``) of all pixels; all arrays int64 but ``nans`` and
    ``largest``. ``nan`` is the weights' first NaN, or -1."""
    if nan < 0 and not any_nan:
        add_atoms(exponents.ctypes.data, mantissas.ctypes.data, largest.ctypes.data, sums.ctypes.data)
        return
    for pixel in range(PIXELS):
        first = nan if nan >= 0 else nans[pixel]
        exponent, mantissa = np.int64(63), (np.int64(first) << 53) >> 26
        if first < 0:
            exponent, mantissa = np.int64(largest[pixel]), sums[pixel]
        exponents[pixel], mantissas[pixel] = fp48_add(exponents[pixel], mantissas[pixel], exponent, mantissa)


@njit(cache=True, nogil=True)
def gather(
    bits: np.ndarray,
    bases: np.ndarray,
    first: int,
    offsets: np.ndarray,
    values: np.ndarray,
    mantissas: np.ndarray,
    exponents: np.ndarray,
    nans: np.ndarray,
) -> bool:
    """Decode one atom at PIXELS pixels, zeros after the last one. Return True if it contains a NaN."""
    nans[:] = -1
    count = min(PIXELS, bases.size - first)
    for place in range(offsets.size):
        for pixel in range(count):
            values[pixel] = bits[bases[first + pixel] + offsets[place]]
        decode(values, mantissas[place], exponents[place], nans)
    has_nan = False
    for pixel in range(PIXELS):
        has_nan |= nans[pixel] >= 0
    return has_nan


@njit(cache=True, nogil=True)
def _single_sums(
    kernels: tuple[int, int],
    at: int,
    data: np.ndarray,
    data_exponents: np.ndarray,
    weights: tuple[np.ndarray, np.ndarray, np.ndarray],
    largest: np.ndarray,
    sums: np.ndarray,
) -> None:
    """:func:`atom_sums` of a single place (an image of one channel): its products are not shifted, so they lose
    nothing. A zero has the mantissa 0, too."""
    _, mantissas, exponents = weights
    for k in range(kernels[0], kernels[1]):
        row, mantissa, exponent = k - kernels[0], np.int32(mantissas[k, at]), exponents[k, at]
        sums[row] = 0
        for pixel in range(PIXELS):
            largest[row, pixel] = max(np.int16(data_exponents[pixel] + exponent), np.int16(0))
            sums[row, 0, pixel] = np.int32(np.int32(data[pixel]) * mantissa)


@njit(cache=True, nogil=True)
def atom_sums(
    kernels: tuple[int, int],
    at: int,
    used: int,
    data: np.ndarray,
    data_exponents: np.ndarray,
    weights: tuple[np.ndarray, np.ndarray, np.ndarray],
    largest: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Sums of the products of one atom, whose places begin at ``at``, for some kernels: ``sums`` (kernels, groups,
    PIXELS) int64. PLACES at a time go to the groups in turn."""
    if used == 1:
        _single_sums(kernels, at, data[0], data_exponents[0], weights, largest, sums)
        return
    words, mantissas, exponents = weights
    low, high = np.empty((PLACES, LOW_TABLE), np.uint16), np.empty((PLACES, HIGH_TABLE), np.uint16)
    groups = sums.shape[1]
    for k in range(kernels[0], kernels[1]):
        row = k - kernels[0]
        sums[row] = 0
        largest_exponents(
            exponents[k, at:].ctypes.data, data_exponents.ctypes.data, used, largest[row].ctypes.data
        )  # fmt: skip
    for place in range(0, used, PLACES):
        count = min(PLACES, used - place)
        for i in range(count):
            fill_tables(data[place + i].ctypes.data, low[i].ctypes.data, high[i].ctypes.data)
        for k in range(kernels[0], kernels[1]):
            row, first = k - kernels[0], at + place
            add_products(
                low.ctypes.data, high.ctypes.data, data[place].ctypes.data, data_exponents[place].ctypes.data,
                words[k, first:].ctypes.data, mantissas[k, first:].ctypes.data, exponents[k, first:].ctypes.data,
                largest[row].ctypes.data, count, sums[row, place // PLACES % groups].ctypes.data,
            )  # fmt: skip


@in_pieces()
def _piece(
    number: int,
    bits: np.ndarray,
    bases: np.ndarray,
    offsets: np.ndarray,
    used: np.ndarray,
    words: np.ndarray,
    mantissas: np.ndarray,
    exponents: np.ndarray,
    nans: np.ndarray,
    out: np.ndarray,
) -> None:
    """Some kernels at some pixels."""
    kernels = words.shape[0]
    tiles = pieces(kernels, KERNEL_TILE)
    first, top = number // tiles * PIXELS, number % tiles * KERNEL_TILE
    limits = (top, min(top + KERNEL_TILE, kernels))
    count = limits[1] - top
    values = np.zeros(PIXELS, np.uint16)
    data, data_exponents = np.empty((ATOM, PIXELS), np.int16), np.empty((ATOM, PIXELS), np.int16)
    data_nans = np.empty(PIXELS, np.int32)
    largest = np.empty((count, PIXELS), np.int16)
    sums = np.empty((count, 1, PIXELS), np.int64)
    totals = np.zeros((2, count, PIXELS), np.int64)
    weights = (words, mantissas, exponents)
    for atom in range(used.size):
        at = atom * ATOM
        places = offsets[at : at + used[atom]]
        any_nan = gather(bits, bases, first, places, values, data, data_exponents, data_nans)
        atom_sums(limits, at, used[atom], data, data_exponents, weights, largest, sums)
        for row in range(count):
            nan = nans[top + row, atom]
            accumulate_atom(nan, data_nans, any_nan, totals[0, row], totals[1, row], largest[row], sums[row, 0])
    group = out.shape[2]
    results = np.empty(PIXELS, np.uint32)
    for k in range(top, limits[1]):
        deliver_fp32(totals[0, k - top].ctypes.data, totals[1, k - top].ctypes.data, results.ctypes.data)
        for pixel in range(min(PIXELS, bases.size - first)):
            out[k // group, first + pixel, k % group] = results[pixel]


def convolve(
    bits: np.ndarray,
    bases: np.ndarray,
    offsets: np.ndarray,
    packed: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    out: np.ndarray,
) -> None:
    """Compute :func:`nvdla.kernels.fp16_mac.convolve` with weights from this module's :func:`pack_weights`.

    In every atom, places that hold nothing (offset -1) only follow those that hold something.
    """
    used = (offsets.reshape(-1, ATOM) >= 0).sum(axis=1)
    kernels = len(packed[0])
    work = cost(bases.size, kernels) * int(used.sum()) + RESULT_COST * align(bases.size, PIXELS) * kernels
    count = ceil_div(bases.size, PIXELS) * ceil_div(kernels, KERNEL_TILE)
    _piece.for_work(work, count, bits, bases, offsets, used, *packed, out)


def cost(pixels: int, kernels: int) -> float:
    """Nanoseconds of a core for each place of the weights, without what a result costs."""
    return align(pixels, PIXELS) * (COST * kernels + PLACE_COST * ceil_div(kernels, KERNEL_TILE))
