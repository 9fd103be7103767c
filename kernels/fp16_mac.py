"""The fp16 multiplier-adders of CMAC and the FP48 accumulators of CACC, bit for bit.

Neither is IEEE arithmetic. CMAC aligns the 64 products of a MAC atom to the largest exponent of the atom. It shifts the
two carry-save rows of each Booth multiplier *before* it adds them, so a product can be one too small.
CACC adds atoms in order into an accumulator of 8 bits of exponent and 40 bits of two's complement mantissa.

:func:`convolve` needs only numpy. Runs use it until compiled kernels with the same results are available.

Sources: cmod/cmac/NV_NVDLA_cmac.h:301 (NaN), :387 (exponents), :433 (Booth), :669 (sum);
cmod/cacc/NV_NVDLA_cacc.cpp:1243 (addition), :1518 (delivery).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from nvdla.kernels.integers import int_log2
from nvdla.kernels.jit.compilation import njit

ATOM = 64
MASKED = -64
"""Exponent of an operand that is +0 or -0: its products are left out, and do not count for the largest exponent."""
NAN_EXPONENT = 255
BIAS_ROWS = 0x55550000
"""Sum of the bits 16 that the eight Booth rows carry instead of a sign extension."""
FALLBACK_COST = 40
"""Nanoseconds per product of :func:`convolve`, measured."""
BLOCK = 1 << 14
"""Products that are computed together: their arrays fit the second-level cache."""
MOST_PIXELS = 256
DIGITS = np.array([0, 1, 1, 2, -2, -1, -1, 0], np.int32)
"""Booth digits, by three bits of a mantissa."""
LOW_40 = (1 << 40) - 1
"""Mask of a mantissa of the accumulator, and of the bits that it loses."""


@njit(nogil=True)
def nan_of(bits: int) -> int:
    """Sign and fraction (11 bits) of a NaN, -1 for any number."""
    return (bits >> 5 & 0x400) | bits & 0x3FF if bits & 0x7FFF > 0x7C00 else -1


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


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Signed mantissas and exponents, int16, of all fp16 bit patterns."""
    bits = np.arange(1 << 16)
    field, fraction = bits >> 10 & 31, bits & 1023
    # With its hidden bit, shifted left by the low two exponent bits. An exponent field of 0 has no hidden bit and a
    # shift of 1; infinity is 2^16.
    mantissas = np.where(field == 0, fraction << 1, (fraction | 1024) << (field & 3))
    exponents = np.where(bits & 0x7FFF == 0, MASKED, field >> 2) * 4
    return np.where(bits >> 15, -mantissas, mantissas).astype(np.int16), exponents.astype(np.int16)


def mantissas_of(bits: np.ndarray) -> np.ndarray:
    """Signed mantissas (int16) of fp16 ``bits``, so that alignment shifts are multiples of four."""
    return _tables()[0][bits]


def exponents_of(bits: np.ndarray) -> np.ndarray:
    """Exponents (int16, multiples of four): the upper three bits of the field; 4 MASKED for zeros."""
    return _tables()[1][bits]


def has_nan(bits: np.ndarray) -> bool:
    """Check whether any of fp16 ``bits`` is a NaN."""
    return bool((bits & 0x7FFF > 0x7C00).any())


def first_nans(bits: np.ndarray) -> np.ndarray:
    """Sign and fraction (11 bits, int32) of the first NaN in each row of ``bits`` (..., places), -1 without one."""
    is_nan = bits & 0x7FFF > 0x7C00
    first = np.take_along_axis(bits, is_nan.argmax(axis=-1)[..., None], -1)[..., 0].astype(np.int32)
    return np.where(is_nan.any(axis=-1), (first >> 5 & 0x400) | first & 0x3FF, -1).astype(np.int32)


def pack_weights(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (kernels, atoms * 64), fp16 bits, as the mantissas, exponents and NaNs that :func:`convolve` takes."""
    nans = first_nans(bits.reshape(len(bits), -1, ATOM))
    return mantissas_of(bits).astype(np.int32), exponents_of(bits).astype(np.int32), nans


def _adder(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of sums and carries of a carry-save adder."""
    odd = a ^ b
    return odd ^ c, (a & b | c & odd) << 1


def _two(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Reduce five rows to two, in the order of cmac.h:560."""
    a, b, c, d, e = rows
    return _adder(*_adder(*_adder(a, b, c), d), e)


def _two_rows(data: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a multiplier (int32) of signed mantissas that are not 0.

    A negative Booth row is its one's complement; the missing one is added in the row after it, at the place of its
    lowest bit. Bit 16 of a row, before its shift, replaces its sign extension.
    """
    value, doubled = np.where(weights < 0, -data, data), np.abs(weights) << 1
    rows, ones = [], []
    for place in range(0, 16, 2):
        term = DIGITS[doubled >> place & 7] * value
        negative = term >> 31
        rows.append(term + negative + 0x10000 << place)
        ones.append(negative & 1 << place)
    for row in (1, 2, 3, 5, 6, 7):
        rows[row] |= ones[row - 1]
    sums, carries = _two([*rows[:4], ones[3]])
    more_sums, more_carries = _two([*rows[4:], ones[7]])
    return _adder(*_adder(sums, carries, more_sums), more_carries)


def products(data: np.ndarray, weights: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Products of signed mantissas that are not 0, shifted right by 0, 4, ...; 0 from 32 on. All int32.

    Up to a shift of 4 the rows lose nothing (:mod:`nvdla.kernels.fast.fp16_pixels` has the proof).
    """
    near, by = shifts < 32, np.minimum(shifts, 31)
    if not (near & (shifts > 4)).any():
        return np.where(near, data * weights >> by, 0)
    low = by.view(np.uint32)
    sums, carries = (row.view(np.uint32) >> low for row in _two_rows(data, weights))
    return np.where(near, (sums + carries - (np.uint32(BIAS_ROWS) >> low)).view(np.int32), 0)


def _bit_length(magnitudes: np.ndarray) -> np.ndarray:
    """Bits of non-negative numbers below 2^53, int64."""
    return np.frexp(magnitudes.astype(np.float64))[1].astype(np.int64)


def _spare_bits(numbers: np.ndarray, width: int) -> np.ndarray:
    """Count the bits below the sign bit of ``width`` bits that equal it; -1 if the number needs one more bit."""
    return width - 1 - _bit_length(numbers ^ numbers >> 63)


def add_atoms(
    exponent: np.ndarray, mantissa: np.ndarray, mac_exponent: np.ndarray, mac_mantissa: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """:func:`fp48_add` of arrays of int64, without its branches.

    There the sum either loses its last bit or moves left; here it moves left by ``left`` + 1 >= 0, and its last bit is
    the guard in both cases.
    """
    left = _spare_bits(mac_mantissa, 38)
    small, small_exponent = mac_mantissa << left + 2, mac_exponent - left + 49
    large, large_exponent = mantissa, np.where(mantissa != 0, exponent, 0)
    swap = small_exponent > large_exponent
    small, large = np.where(swap, large, small), np.where(swap, small, large)
    difference = abs(large_exponent - small_exponent)
    large_exponent = np.maximum(large_exponent, small_exponent)
    small, difference = np.where(difference <= 40, small, 0), np.minimum(difference, 40)
    lost, total = small << 40 - difference & LOW_40, large + (small >> difference)
    left = _spare_bits(total, 40) + 1
    joined = total << left | lost >> 40 - left
    negative, total = joined < 0, joined >> 1
    total += joined & (~negative | (lost << left & LOW_40 != 0))
    over = np.where(negative, total >= 0, total >> 39 != 0)
    total = np.where(over, total >> 1 | np.where(negative, -1 << 39, 0), total)
    result = np.where(total != 0, large_exponent - left + 1 + over & 0xFF, 0)
    is_nan, stays = mac_exponent == 63, (mac_mantissa == 0) | (exponent == NAN_EXPONENT)
    result, total = np.where(is_nan, NAN_EXPONENT, result), np.where(is_nan, mac_mantissa >> 27 << 29, total)
    return np.where(stays, exponent, result), np.where(stays, mantissa, total)


def deliver_fp32(exponent: np.ndarray, mantissa: np.ndarray) -> np.ndarray:
    """:func:`fp48_to_fp32` of arrays of int64, as uint32: -2^39, a special case there, becomes 2^23."""
    sign, magnitude = np.where(mantissa < 0, 1 << 31, 0), np.abs(mantissa)
    rounded = (magnitude >> 15) + (magnitude >> 14 & 1)
    more = rounded >> 24
    number = sign | (exponent + 64 + more & 0xFF) << 23 | rounded >> more & 0x7FFFFF
    nan = sign | 0x7F800000 | (mantissa >> 29 & 0x3FF)
    return np.where(exponent == NAN_EXPONENT, nan, np.where(mantissa != 0, number, 0)).astype(np.uint32)


def _sums(
    data: np.ndarray, data_exponents: np.ndarray, weights: np.ndarray, weight_exponents: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Largest exponents and sums of the products of an atom, int64 (pixels, kernels)."""
    pixels, places = data.shape
    count = max(1, BLOCK // (pixels * places))
    largest, sums = np.empty((2, pixels, len(weights)), np.int64)
    for start in range(0, len(weights), count):
        part = slice(start, start + count)
        exponents = data_exponents[:, None] + weight_exponents[part]
        top = np.maximum(exponents.max(axis=2), 0)
        sums[:, part] = products(data[:, None], weights[part], top[:, :, None] - exponents).sum(axis=2, dtype=np.int64)
        largest[:, part] = top
    return largest, sums


def _outputs(
    bits: np.ndarray, bases: np.ndarray, offsets: np.ndarray, packed: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> np.ndarray:
    """fp32 bits (pixels, kernels) of some pixels: all atoms in order."""
    weights, exponents, nans = packed
    totals = np.zeros((2, bases.size, len(weights)), np.int64)
    for atom, places in enumerate(offsets.reshape(-1, ATOM)):
        used = np.flatnonzero(places >= 0)
        window, columns = bits[bases[:, None] + places[used]], atom * ATOM + used
        data, data_exponents = mantissas_of(window).astype(np.int32), exponents_of(window).astype(np.int32)
        largest, sums = _sums(data, data_exponents, weights[:, columns], exponents[:, columns])
        nan = np.where(nans[:, atom] >= 0, nans[:, atom], first_nans(window)[:, None]).astype(np.int64)
        sums, largest = np.where(nan >= 0, nan << 53 >> 26, sums), np.where(nan >= 0, 63, largest)
        totals = np.stack(add_atoms(totals[0], totals[1], largest, sums))
    return deliver_fp32(*totals)


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
    kernels, atom = np.arange(len(packed[0])), out.shape[2]
    for first in range(0, bases.size, MOST_PIXELS):
        part = slice(first, first + MOST_PIXELS)
        out[kernels // atom, part, kernels % atom] = _outputs(bits, bases[part], offsets, packed).T
