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
from nvdla.kernels.fp16_mac import ATOM, exponents_of, first_nans, fp48_add, mantissas_of, nan_of
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import WORTH_WAKING, late, njit
from nvdla.kernels.jit.recorded_calls import JOINED, WAKING, RecordedCall, int16s, int32s, uint16s, uint32s, words
from nvdla.kernels.jit.variants import recorded
from nvdla.util.rounding import align, ceil_div

FAST_PATH = FastPath(
    "fp16_kernels.convolve",
    ("fp16_mac.convolve",),
    "always (the theorem of fp16_pixels, and that of its module)",
    "tests/kernels/test_fp16_kernels.py",
)

PIXEL_TILE = 8
GROUPS_TOGETHER = 4
"""Vectors of kernels that use the same numbers of the data in turn."""
ENOUGH = 8
"""With fewer pieces each has one vector of kernels."""
COST = 0.6
"""Nanoseconds per product, measured."""
NAN = 1 << 14
"""Exponent of data that are NaN."""
RECORD_BYTES = 2 * 2 * VECTOR
"""Weights of VECTOR kernels at one place: mantissas, exponents."""
BITS, DATA, DATA_EXPONENTS, BASES, OFFSETS, USED, PACKED, NANS, OUT = range(9)
SIZE, PIXELS, ATOMS, GROUPS, KERNELS, GROUP, TOGETHER, ANY_NAN, FIELDS = range(9, 18)
"""The fields of a record: addresses of the data, windows, weights and results, and their sizes."""

multiply_atom: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:multiply_atom")
"""The compiled sums of an atom's products in each kernel."""
add_atoms: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:add_atoms")
"""The compiled addition of an atom to an FP48 accumulator in each kernel."""
deliver_fp32: Callable[..., None] = late("nvdla.kernels.fast.fp16_code:deliver_fp32")
"""The compiled delivery of accumulators."""


def pack_weights(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (kernels, atoms * 64), fp16 bits, as :func:`convolve` takes them: (groups of 32, places, 2, 32) int16,
    signed mantissas and exponents with the kernels side by side; and for each atom its first NaN or -1 (kernels, atoms)
    int32."""
    kernels, places = bits.shape
    padded = np.zeros((align(kernels, VECTOR), places), np.uint16)
    padded[:kernels] = bits
    packed = np.empty((len(padded) // VECTOR, places, 2, VECTOR), np.int16)
    for row, values in ((MANTISSAS, mantissas_of(padded)), (EXPONENTS, exponents_of(padded))):
        packed[:, :, row] = values.reshape(-1, VECTOR, places).transpose(0, 2, 1)
    return packed, first_nans(padded[:kernels].reshape(kernels, -1, ATOM))


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
def _deliver(totals: np.ndarray, pixel: int, kernels: tuple[int, int], record: np.ndarray, results: np.ndarray) -> None:
    """Write the accumulators of some ``kernels`` at one pixel to the output."""
    deliver_fp32(totals[0].ctypes.data, totals[1].ctypes.data, results.ctypes.data)
    pixels, group = record[PIXELS], record[GROUP]
    out = uint32s(record[OUT], pieces(kernels[1], group) * group * pixels)
    for kernel in range(kernels[0], min(kernels[0] + VECTOR, kernels[1])):
        out[(kernel // group * pixels + pixel) * group + kernel % group] = results[kernel - kernels[0]]


@njit(nogil=True)
def _count(address: int) -> int:
    record = words(address, FIELDS)
    return pieces(record[PIXELS], PIXEL_TILE) * pieces(record[GROUPS], record[TOGETHER])


@recorded(_count)
def _convolve(number: int, address: int) -> None:
    """Compute some kernels at some pixels."""
    record = words(address, FIELDS)
    bits, mantissas = uint16s(record[BITS], record[SIZE]), int16s(record[DATA], record[SIZE])
    exponents, bases = int16s(record[DATA_EXPONENTS], record[SIZE]), words(record[BASES], record[PIXELS])
    atoms, kernels, together = record[ATOMS], record[KERNELS], record[TOGETHER]
    offsets, used = words(record[OFFSETS], atoms * ATOM), words(record[USED], atoms)
    nans = int32s(record[NANS], kernels * atoms).reshape((kernels, atoms))
    parts = pieces(record[GROUPS], together)
    first, top = number // parts * PIXEL_TILE, number % parts * together
    pixels, groups = min(PIXEL_TILE, record[PIXELS] - first), min(together, record[GROUPS] - top)
    numbers = np.empty((3, ATOM), np.int16)
    largest, sums, results = np.zeros(VECTOR, np.int16), np.empty(VECTOR, np.int64), np.empty(VECTOR, np.uint32)
    totals = np.zeros((pixels, groups, 2, VECTOR), np.int64)
    for atom in range(atoms):
        at = atom * ATOM
        places = offsets[at : at + used[atom]]
        for pixel in range(pixels):
            count, where = _gather(mantissas, exponents, bases[first + pixel], places, numbers)
            nan = nan_of(np.int64(bits[where])) if where >= 0 else np.int64(-1)
            for group in range(groups):
                total = totals[pixel, group]
                if count:
                    weights = record[PACKED] + ((top + group) * atoms * ATOM + at) * RECORD_BYTES
                    multiply_atom(
                        weights, numbers[0].ctypes.data, numbers[1].ctypes.data, numbers[2].ctypes.data, count,
                        largest.ctypes.data, sums.ctypes.data,
                    )  # fmt: skip
                else:
                    sums[:] = 0
                if nan >= 0 or record[ANY_NAN] != 0:
                    _add_nans(nans[(top + group) * VECTOR :, atom], nan, total, largest, sums)
                elif count:
                    add_atoms(total[0].ctypes.data, total[1].ctypes.data, largest.ctypes.data, sums.ctypes.data)
    for pixel in range(pixels):
        for group in range(groups):
            _deliver(totals[pixel, group], first + pixel, ((top + group) * VECTOR, kernels), record, results)


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
    weights, nans = packed
    groups, tiles = len(weights), ceil_div(bases.size, PIXEL_TILE)
    together = GROUPS_TOGETHER if tiles * ceil_div(groups, GROUPS_TOGETHER) >= ENOUGH else 1
    work = cost(bases.size, len(nans)) * int(used.sum())
    exponents = np.where(bits & 0x7FFF > 0x7C00, np.int16(NAN), exponents_of(bits))
    arrays = (bits, mantissas_of(bits), exponents, bases, offsets, used, weights, nans, out)
    numbers = (bits.size, bases.size, used.size, groups, len(nans), out.shape[2], together, nans.max() >= 0)
    sharing = WAKING if work > WORTH_WAKING else JOINED
    RecordedCall(_convolve, [*(array.ctypes.data for array in arrays), *numbers], arrays, sharing, int(work)).run()


def cost(pixels: int, kernels: int) -> float:
    """Nanoseconds of a core for each place of the weights."""
    return COST * pixels * align(kernels, VECTOR)
