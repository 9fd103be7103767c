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
from functools import cache

import numpy as np

from nvdla.kernels.fast.fast_paths import FastPath
from nvdla.kernels.fast.fp16_layout import DIGITS, HIGH_TABLE, LOW_TABLE, PIXELS, PLACES
from nvdla.kernels.fp16_mac import ATOM, exponents_of, first_nans, fp48_add, has_nan, mantissas_of, nan_of
from nvdla.kernels.integers import pieces
from nvdla.kernels.jit.compilation import WORTH_WAKING, late, njit
from nvdla.kernels.jit.recorded_calls import JOINED, WAKING, RecordedCall, int16s, int32s, uint16s, uint32s, words
from nvdla.kernels.jit.variants import recorded
from nvdla.util.rounding import align, ceil_div

FAST_PATH = FastPath(
    "fp16_pixels.convolve",
    ("fp16_mac.convolve",),
    "always (the theorem in its module)",
    "tests/kernels/test_fp16_pixels.py",
)

KERNEL_TILE = 128
CODES = ((0, 1, 1, 2, 4, 3, 3, 0), (0, 3, 3, 4, 2, 1, 1, 0))
"""Classes of Booth digits, by three bits of a mantissa: of a positive number, of a negative one."""
BITS, MANTISSAS, EXPONENTS, BASES, OFFSETS, USED, WORDS, FACTORS, FACTOR_EXPONENTS, NANS, OUT = range(11)
SIZE, COUNT, ATOMS, KERNELS, GROUP, HAS_NAN, FIELDS = range(11, 18)
"""The fields of a record: addresses of the data, windows, weights and results, and their sizes."""
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


@cache
def _words() -> np.ndarray:
    """Booth digits of all fp16 bit patterns (uint32): three bits each, from the lowest on."""
    doubled = abs(mantissas_of(np.arange(1 << 16))).astype(np.uint32) << 1
    rows = np.array(CODES)[np.arange(1 << 16) >> 15]
    codes = np.zeros(1 << 16, np.uint32)
    for digit in range(DIGITS):
        codes |= rows[np.arange(1 << 16), doubled >> 2 * digit & 7].astype(np.uint32) << 3 * digit
    return codes


def pack_weights(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Weights (kernels, atoms * 64), fp16 bits, as :func:`convolve` takes them: Booth digits (three bits each, from the
    lowest on, uint32), signed mantissas (int16), exponents (int16), and for each atom its first NaN or -1 (int32)."""
    bits = np.ascontiguousarray(bits)
    nans = first_nans(bits.reshape(len(bits), -1, ATOM))
    return _words()[bits], mantissas_of(bits), exponents_of(bits), nans


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
    cube: tuple[np.ndarray, np.ndarray, np.ndarray],
    bases: np.ndarray,
    first: int,
    offsets: np.ndarray,
    has_nan: bool,
    data: np.ndarray,
    exponents: np.ndarray,
    nans: np.ndarray,
) -> bool:
    """Take one atom at PIXELS pixels from a ``cube`` (bits, mantissas, exponents). Return True if it contains a NaN,
    which needs ``has_nan``; ``nans``: the first one of each pixel, or -1."""
    bits, cube_mantissas, cube_exponents = cube
    count = min(PIXELS, bases.size - first)
    for place in range(offsets.size):
        for pixel in range(count):
            at = bases[first + pixel] + offsets[place]
            data[place, pixel], exponents[place, pixel] = cube_mantissas[at], cube_exponents[at]
    nans[:] = -1
    if not has_nan:
        return False
    any_nan = False
    for pixel in range(count):
        for place in range(offsets.size):
            if nans[pixel] < 0:
                nans[pixel] = nan_of(np.int64(bits[bases[first + pixel] + offsets[place]]))
        any_nan |= nans[pixel] >= 0
    return any_nan


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


@njit(nogil=True)
def _count(address: int) -> int:
    record = words(address, FIELDS)
    return pieces(record[COUNT], PIXELS) * pieces(record[KERNELS], KERNEL_TILE)


@recorded(_count)
def _convolve(number: int, address: int) -> None:
    """Compute some kernels at some pixels."""
    record = words(address, FIELDS)
    size, atoms, kernels = record[SIZE], record[ATOMS], record[KERNELS]
    cube = uint16s(record[BITS], size), int16s(record[MANTISSAS], size), int16s(record[EXPONENTS], size)
    bases, offsets = words(record[BASES], record[COUNT]), words(record[OFFSETS], atoms * ATOM)
    used, nans = words(record[USED], atoms), int32s(record[NANS], kernels * atoms)
    shape = (kernels, atoms * ATOM)
    weights = (
        uint32s(record[WORDS], kernels * atoms * ATOM).reshape(shape),
        int16s(record[FACTORS], kernels * atoms * ATOM).reshape(shape),
        int16s(record[FACTOR_EXPONENTS], kernels * atoms * ATOM).reshape(shape),
    )
    tiles = pieces(kernels, KERNEL_TILE)
    first, top = number // tiles * PIXELS, number % tiles * KERNEL_TILE
    limits = (top, min(top + KERNEL_TILE, kernels))
    count = limits[1] - top
    data, data_exponents = np.zeros((ATOM, PIXELS), np.int16), np.zeros((ATOM, PIXELS), np.int16)
    data_nans = np.empty(PIXELS, np.int32)
    largest = np.empty((count, PIXELS), np.int16)
    sums = np.empty((count, 1, PIXELS), np.int64)
    totals = np.zeros((2, count, PIXELS), np.int64)
    for atom in range(atoms):
        at = atom * ATOM
        places = offsets[at : at + used[atom]]
        any_nan = gather(cube, bases, first, places, record[HAS_NAN] != 0, data, data_exponents, data_nans)
        atom_sums(limits, at, used[atom], data, data_exponents, weights, largest, sums)
        for row in range(count):
            nan = nans[(top + row) * atoms + atom]
            accumulate_atom(nan, data_nans, any_nan, totals[0, row], totals[1, row], largest[row], sums[row, 0])
    results, out = np.empty(PIXELS, np.uint32), record[OUT]
    for k in range(top, limits[1]):
        deliver_fp32(totals[0, k - top].ctypes.data, totals[1, k - top].ctypes.data, results.ctypes.data)
        begin = (k // record[GROUP] * record[COUNT] + first) * record[GROUP] + k % record[GROUP]
        target = uint32s(out + 4 * begin, PIXELS * record[GROUP])
        for pixel in range(min(PIXELS, bases.size - first)):
            target[pixel * record[GROUP]] = results[pixel]


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
    arrays = (bits, mantissas_of(bits), exponents_of(bits), bases, offsets, used, *packed, out)
    numbers = (bits.size, bases.size, used.size, kernels, out.shape[2], has_nan(bits))
    sharing = WAKING if work > WORTH_WAKING else JOINED
    RecordedCall(_convolve, [*(array.ctypes.data for array in arrays), *numbers], arrays, sharing, int(work)).run()


def cost(pixels: int, kernels: int) -> float:
    """Nanoseconds of a core for each place of the weights, without what a result costs."""
    return align(pixels, PIXELS) * (COST * kernels + PLACE_COST * ceil_div(kernels, KERNEL_TILE))
