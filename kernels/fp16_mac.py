"""The fp16 multiplier-adders of CMAC and the FP48 accumulators of CACC, bit for bit.

Neither is IEEE arithmetic. CMAC aligns the 64 products of a MAC atom to the largest exponent of the atom. It shifts the
two carry-save rows of each Booth multiplier *before* it adds them, so a product can be one too small.
CACC adds atoms in order into an accumulator of 8 bits of exponent and 40 bits of two's complement mantissa.

Sources: cmod/cmac/NV_NVDLA_cmac.h:301 (NaN), :387 (exponents), :433 (Booth), :669 (sum);
cmod/cacc/NV_NVDLA_cacc.cpp:1243 (addition), :1518 (delivery).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.kernels.integers import int_log2, pieces
from nvdla.kernels.jit.compilation import njit
from nvdla.kernels.jit.variants import in_pieces
from nvdla.util.rounding import ceil_div

ATOM = 64
VECTOR = 16
"""Places of an atom that are computed together; an atom of few channels stops after the last used ones."""
MASKED = -64
"""Exponent of an operand that is +0 or -0: its products are left out, and do not count for the largest exponent."""
NAN_EXPONENT = 255
BIAS_ROWS = 0x55550000
"""Sum of the bits 16 that the eight Booth rows carry instead of a sign extension."""
COST = 3
"""Nanoseconds per product, measured."""
PIXEL_TILE = 8
KERNEL_TILE = 16


@njit(nogil=True)
def mantissa_of(bits: int) -> int:
    """Mantissa of fp16 ``bits`` with its hidden bit, shifted left by the low two exponent bits.

    So alignment shifts are multiples of four. An exponent field of 0 has no hidden bit and a shift of 1; infinity is
    2^16.
    """
    field = bits >> 10 & 31
    fraction = bits & 1023
    return fraction << 1 if field == 0 else (fraction | 1024) << (field & 3)


@njit(nogil=True)
def exponent_of(bits: int) -> int:
    """The upper three bits of the exponent field; MASKED for zeros."""
    return MASKED if bits & 0x7FFF == 0 else bits >> 12 & 7


@njit(nogil=True)
def nan_of(bits: int) -> int:
    """Sign and fraction (11 bits) of a NaN, -1 for any number."""
    return (bits >> 5 & 0x400) | bits & 0x3FF if bits & 0x7FFF > 0x7C00 else -1


@njit(cache=True, nogil=True)
def booth_word(bits: int) -> int:
    """Encode a weight with the radix-4 Booth coder, one uint32.

    Digit i (of 8) has four bits in the word: 2i: the digit is +-1; 2i+1: it is +-2; 16+2i: the row is inverted when
    the data are positive; 17+2i: the row is inverted when they are negative.
    """
    word = 0
    sign = bits >> 15
    doubled = mantissa_of(bits) << 1
    for digit in range(8):
        code = doubled >> 2 * digit
        low, middle, high = code & 1, code >> 1 & 1, code >> 2 & 1
        single = low ^ middle
        word |= single << 2 * digit
        word |= ((high ^ middle) & (single ^ 1)) << 2 * digit + 1
        word |= (high & (low & middle ^ 1)) << 16 + 2 * digit + sign
        word |= ((high ^ 1) & (low | middle)) << 17 + 2 * digit - sign
    return np.uint32(word)


@njit(cache=True, nogil=True)
def _pack(bits: np.ndarray, words: np.ndarray, exponents: np.ndarray, nans: np.ndarray) -> None:
    for kernel in range(bits.shape[0]):
        nans[kernel] = -1
        for i in range(bits.shape[1]):
            value = np.int64(bits[kernel, i])
            words[kernel, i] = booth_word(value)
            exponents[kernel, i] = exponent_of(value)
            if nans[kernel, i // ATOM] < 0:
                nans[kernel, i // ATOM] = nan_of(value)


def pack_weights(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (kernels, atoms * 64), fp16 bits, as the words, exponents and NaNs that :func:`convolve` takes."""
    kernels, places = bits.shape
    words = np.empty(bits.shape, np.uint32)
    exponents = np.empty(bits.shape, np.int32)
    nans = np.empty((kernels, places // ATOM), np.int32)
    _pack(bits, words, exponents, nans)
    return words, exponents, nans


@njit(nogil=True)
def _and(a: int, b: int) -> int:
    """In 32 bits: numba would widen to 64, and half as many would fit a register."""
    return np.uint32(a & b)


@njit(nogil=True)
def _or(a: int, b: int) -> int:
    return np.uint32(a | b)


@njit(nogil=True)
def _xor(a: int, b: int) -> int:
    return np.uint32(a ^ b)


@njit(nogil=True)
def _bit(word: int, place: int) -> bool:
    return _and(word, np.uint32(1 << place)) != np.uint32(0)


@njit(nogil=True)
def _row(word: int, signs: int, data: int, digit: int) -> int:
    """Booth row ``digit``, not yet shifted: +-data, +-2 data or 0 with the bias bit 16, inverted where negative."""
    row = np.uint32(0)
    if _bit(word, 2 * digit):
        row = data
    if _bit(word, 2 * digit + 1):
        row = np.uint32(data << np.uint32(1))
    mask = np.uint32(0x1FFFF) if _bit(signs, 2 * digit) else np.uint32(0)
    return np.uint32(_xor(_or(row, np.uint32(0x10000)), mask) << np.uint32(2 * digit))


@njit(nogil=True)
def _sum(a: int, b: int, c: int) -> int:
    """The sum row of a carry-save adder."""
    return _xor(_xor(a, b), c)


@njit(nogil=True)
def _carry(a: int, b: int, c: int) -> int:
    """The carry row of a carry-save adder."""
    return np.uint32(_or(_and(a, b), _and(c, _or(a, b))) << np.uint32(1))


@njit(nogil=True)
def _compress5(a: int, b: int, c: int, d: int, e: int) -> tuple[int, int]:
    """Five rows to two, in the order of cmac.h:560."""
    s, k = _sum(a, b, c), _carry(a, b, c)
    s, k = _sum(s, k, d), _carry(s, k, d)
    return _sum(s, k, e), _carry(s, k, e)


@njit(inline="always")  # inlined by numba, or the loop over an atom would not be vectorized; the small ones need not
def _product(word: int, negative: int, data: int, shift: int) -> int:
    """One product, shifted right by ``shift`` (0, 4, ... 28, otherwise 0): int32.

    ``negative`` is 1 for negative data (the sign of the weight is in its word). A negative Booth row is its one's
    complement; the missing one is added in the row after it, at the place of its lowest bit.
    """
    signs = np.uint32(word >> np.uint32(17)) if negative != np.uint32(0) else np.uint32(word >> np.uint32(16))
    r0 = _row(word, signs, data, 0)
    r1 = _or(_row(word, signs, data, 1), _and(signs, np.uint32(1 << 0)))
    r2 = _or(_row(word, signs, data, 2), _and(signs, np.uint32(1 << 2)))
    r3 = _or(_row(word, signs, data, 3), _and(signs, np.uint32(1 << 4)))
    r4 = _and(signs, np.uint32(1 << 6))
    r5 = _row(word, signs, data, 4)
    r6 = _or(_row(word, signs, data, 5), _and(signs, np.uint32(1 << 8)))
    r7 = _or(_row(word, signs, data, 6), _and(signs, np.uint32(1 << 10)))
    r8 = _or(_row(word, signs, data, 7), _and(signs, np.uint32(1 << 12)))
    r9 = _and(signs, np.uint32(1 << 14))
    s0, k0 = _compress5(r0, r1, r2, r3, r4)
    s1, k1 = _compress5(r5, r6, r7, r8, r9)
    s2, k2 = _sum(s0, k0, s1), _carry(s0, k0, s1)
    s3, k3 = _sum(s2, k2, k1), _carry(s2, k2, k1)
    by = _and(np.uint32(shift), np.uint32(31))
    total = np.uint32(np.uint32(s3 >> by) + np.uint32(k3 >> by) - np.uint32(np.uint32(BIAS_ROWS) >> by))
    return np.int32(total) if shift < 32 else np.int32(0)


@njit(inline="always")
def _atom(
    words: np.ndarray,
    exponents: np.ndarray,
    data: np.ndarray,
    negatives: np.ndarray,
    data_exponents: np.ndarray,
    at: int,
    blocks: int,
    products: np.ndarray,
) -> int:
    """The products of an atom, aligned to its largest exponent, into ``products``; returns that exponent / 4.

    ``at``: where the atom's places begin; ``blocks``: how many times VECTOR of them are in use.
    """
    largest = np.int32(0)
    for i in range(at, at + blocks * VECTOR):
        largest = max(largest, np.int32(exponents[i] + data_exponents[i]))
    for i in range(blocks * VECTOR):
        shift = np.int32((largest - (exponents[at + i] + data_exponents[at + i])) << 2)
        products[i] = _product(words[at + i], negatives[at + i], data[at + i], shift)
    return largest


@njit(inline="always")
def _total(products: np.ndarray, blocks: int) -> int:
    """Exact sum of the products of an atom: 64 times 2^29 does not fit an int32, so halves are added apart."""
    low = np.int32(0)
    high = np.int32(0)
    for i in range(blocks * VECTOR):
        low += np.int32(products[i] & 0xFFFF)
        high += np.int32(products[i] >> 16)
    return (np.int64(high) << 16) + np.int64(low)


@njit(cache=True, nogil=True)
def normalize(mantissa: int, width: int) -> int:
    """Return the left shift after which the two top bits of a ``mantissa`` of ``width`` bits differ."""
    magnitude = mantissa ^ (mantissa >> 63)
    return width - 2 - int_log2(magnitude) if magnitude else width - 1


@njit(cache=True, nogil=True)
def fp48_add(exponent: int, mantissa: int, mac_exponent: int, mac_mantissa: int) -> tuple[int, int]:
    """One atom added to an accumulator (exponent, mantissa); value = mantissa * 2^(exponent - 101).

    The MAC's value is ``mac_mantissa * 2^(mac_exponent - 50)``; its exponent 63 says NaN, an accumulator's 255.
    Bits shifted out of the smaller operand come back in when the sum is normalized to the left; then one guard bit
    rounds, half away from zero. A difference of exponents above 40 drops the smaller operand completely.
    """
    if mac_mantissa == 0 or exponent == NAN_EXPONENT:
        return exponent, mantissa
    if mac_exponent == 63:
        return np.int64(NAN_EXPONENT), np.int64(mac_mantissa >> 27 << 29)
    left = normalize(mac_mantissa, 38)
    small, small_exponent = mac_mantissa << left + 2, mac_exponent - left + 49
    large, large_exponent = mantissa, exponent if mantissa else np.int64(0)
    if small_exponent > large_exponent:
        small, large = large, small
        small_exponent, large_exponent = large_exponent, small_exponent
    difference = large_exponent - small_exponent
    lost = np.int64(0)  # what is shifted out, at the top of 40 bits
    if difference > 40:
        small = np.int64(0)
    elif difference:
        lost = (small & ((1 << difference) - 1)) << (40 - difference)
        small >>= difference
    total = large + small
    if total >> 39 != total >> 40:  # does not fit 40 bits
        guard, sticky = total & 1, lost != 0
        total >>= 1
        result_exponent = large_exponent + 1
    else:
        left = normalize(total, 40)
        total = total << left | lost >> (40 - left)
        lost = lost << left & ((1 << 40) - 1)
        guard, sticky = lost >> 39, (lost & ((1 << 39) - 1)) != 0
        result_exponent = large_exponent - left
    if guard and (total >= 0 or sticky):
        negative = total < 0
        total += 1
        if (not negative and total >> 39) or (negative and total >= 0):
            total >>= 1
            total |= -(1 << 39) if negative else 0
            result_exponent += 1
    return (result_exponent & 0xFF if total else np.int64(0)), total


@njit(cache=True, nogil=True)
def fp48_to_fp32(exponent: int, mantissa: int) -> int:
    """An accumulator as fp32 bits: one guard bit rounds half away from zero; NaN keeps ten bits, at the low end."""
    sign = np.int64(0x80000000) if mantissa < 0 else np.int64(0)
    if exponent == NAN_EXPONENT:
        return sign | 0x7F800000 | (mantissa >> 29 & 0x3FF)
    if mantissa == -(1 << 39):
        return sign | (exponent + 65 & 0xFF) << 23
    if mantissa == 0:
        return np.int64(0)
    magnitude = abs(mantissa)
    rounded = (magnitude >> 15) + (magnitude >> 14 & 1)
    exponent += 64
    if rounded >> 24:
        rounded >>= 1
        exponent += 1
    return sign | (exponent & 0xFF) << 23 | rounded & 0x7FFFFF


@njit(cache=True, nogil=True)
def _gather(
    bits: np.ndarray,
    base: int,
    offsets: np.ndarray,
    data: np.ndarray,
    negatives: np.ndarray,
    exponents: np.ndarray,
    nans: np.ndarray,
) -> None:
    """Decode the window at ``base``: one value for every place of every atom; absent places are zeros."""
    nans[:] = -1
    for i in range(offsets.size):
        value = np.int64(bits[base + offsets[i]]) if offsets[i] >= 0 else np.int64(0)
        data[i] = np.uint32(mantissa_of(value))
        negatives[i] = np.uint32(value >> 15)
        exponents[i] = np.int32(exponent_of(value))
        if nans[i // ATOM] < 0:
            nans[i // ATOM] = nan_of(value)


@njit(cache=True, nogil=True)
def _dot(
    words: np.ndarray,
    word_exponents: np.ndarray,
    word_nans: np.ndarray,
    data: np.ndarray,
    negatives: np.ndarray,
    data_exponents: np.ndarray,
    data_nans: np.ndarray,
    blocks: np.ndarray,
    products: np.ndarray,
) -> int:
    """One output: all atoms of one kernel in order; returns fp32 bits."""
    exponent, mantissa = np.int64(0), np.int64(0)
    for atom in range(word_nans.size):
        nan = word_nans[atom] if word_nans[atom] >= 0 else data_nans[atom]
        if nan >= 0:
            exponent, mantissa = fp48_add(exponent, mantissa, np.int64(63), (np.int64(nan) << 53) >> 26)
            continue
        used = blocks[atom]
        largest = _atom(words, word_exponents, data, negatives, data_exponents, atom * ATOM, used, products)
        exponent, mantissa = fp48_add(exponent, mantissa, np.int64(largest) << 2, _total(products, used))
    return fp48_to_fp32(exponent, mantissa)


@in_pieces()
def _convolve_piece(
    number: int,
    bits: np.ndarray,
    bases: np.ndarray,
    offsets: np.ndarray,
    blocks: np.ndarray,
    words: np.ndarray,
    word_exponents: np.ndarray,
    word_nans: np.ndarray,
    out: np.ndarray,
) -> None:
    """Some kernels at some pixels."""
    kernels, places = words.shape
    atom = out.shape[2]
    kernel_tiles = pieces(kernels, KERNEL_TILE)
    first = number // kernel_tiles * PIXEL_TILE
    count = min(PIXEL_TILE, bases.size - first)
    data = np.empty((PIXEL_TILE, places), np.uint32)
    negatives = np.empty((PIXEL_TILE, places), np.uint32)
    exponents = np.empty((PIXEL_TILE, places), np.int32)
    nans = np.empty((PIXEL_TILE, places // ATOM), np.int32)
    products = np.empty(ATOM, np.int32)
    for p in range(count):
        _gather(bits, bases[first + p], offsets, data[p], negatives[p], exponents[p], nans[p])
    top = number % kernel_tiles * KERNEL_TILE
    for k in range(top, min(top + KERNEL_TILE, kernels)):
        for p in range(count):
            out[k // atom, first + p, k % atom] = _dot(
                words[k], word_exponents[k], word_nans[k],
                data[p], negatives[p], exponents[p], nans[p], blocks, products,
            )  # fmt: skip


def convolve(
    bits: np.ndarray,
    bases: np.ndarray,
    offsets: np.ndarray,
    packed: tuple[np.ndarray, np.ndarray, np.ndarray],
    out: np.ndarray,
) -> None:
    """All outputs of one batch: ``out`` (surfaces, pixels, atom) uint32, fp32 bits; other kernels' places stay.

    ``bits`` flat uint16, the padded cube; ``bases`` (pixels,) int64 where each output's window starts; ``offsets``
    (atoms * 64,) int64 from there, -1 for places that hold nothing; ``packed`` from :func:`pack_weights`, with zeros
    at these places.
    """
    used: Any = (offsets.reshape(-1, ATOM) >= 0) * np.arange(1, ATOM + 1)
    blocks = np.asarray(ceil_div(used.max(axis=1), VECTOR))
    work = COST * VECTOR * int(blocks.sum()) * bases.size * len(packed[0])
    count = ceil_div(bases.size, PIXEL_TILE) * ceil_div(len(packed[0]), KERNEL_TILE)
    _convolve_piece.for_work(work, count, bits, bases, offsets, blocks, *packed, out)
