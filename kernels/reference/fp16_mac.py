"""CMAC and CACC in fp16: multiplier, alignment of an atom's products, FP48 accumulator, delivery to fp32.

Source: cmac/NV_NVDLA_cmac.h:301 (NaN), :387 (exponents), :433 to :591 (Booth multiplier), :669 (sum);
cacc/NV_NVDLA_cacc.cpp:1243 (addition), :1518 (delivery). This is not IEEE arithmetic: products are aligned before the
two rows of the multiplier are added, and the accumulator is not associative.
"""

from __future__ import annotations

from functools import lru_cache

Accumulator = tuple[int, int]
"""FP48: exponent (8 bits) and two's complement mantissa (40 bits), value = mantissa * 2**(exponent - 101). Bits 39 and
38 of a normalized mantissa differ."""
NAN = 255
"""Exponent of a NaN in the accumulator; its mantissa keeps sign and fraction."""
COMPENSATION = {
    0: 0xAAAB0000, 4: 0xFAAAB000, 8: 0xFFAAAB00, 12: 0xFFFAAAB0,
    16: 0xFFFFAAAB, 20: 0xFFFFFAAB, 24: 0xFFFFFFAB, 28: 0xFFFFFFFB,
}  # fmt: skip
"""Instead of sign extensions of the eight Booth rows: a constant per alignment shift."""


def fields(bits: int) -> tuple[int, int, int]:
    """Split fp16 into (sign, mantissa shifted by the two low exponent bits, upper three exponent bits).

    So alignment shifts are multiples of four. A denormal has no hidden bit and a shift of 1; infinity is 2**16.
    """
    sign, exponent, fraction = bits >> 15, bits >> 10 & 31, bits & 1023
    shift = exponent & 3 if exponent else 1
    return sign, (fraction | (1024 if exponent else 0)) << shift, exponent >> 2


def carry_save(rows: list[int]) -> list[int]:
    """Reduce rows to two with 3:2 compressors of 32 bits, the first three rows first."""
    rows = list(rows)
    while len(rows) > 2:
        a, b, c, *rest = rows
        rows = [a ^ b ^ c, ((a & b | b & c | a & c) << 1) & 0xFFFFFFFF, *rest]
    return rows


@lru_cache(1 << 18)
def booth_product(weight: int, data: int, negative: int, shift: int) -> int:
    """Multiply two mantissas in eight radix-4 Booth rows and align the product.

    The tree compresses two groups of five rows, then the four that remain. Both resulting rows are shifted *before*
    they are added, so the product may be one less than the shifted exact product.

    Args:
        weight: Mantissa of the weight, from :func:`fields`.
        data: Mantissa of the data element.
        negative: 1 where the signs differ; it inverts the Booth codes.
        shift: Alignment, a multiple of four.

    Returns:
        The product as a signed 32-bit integer; 0 for shifts of 32 and more.
    """
    if shift >= 32:
        return 0
    rows, inverted = [], []
    for digit in range(8):
        code = (weight << 1 >> 2 * digit & 7) ^ (7 if negative else 0)
        term = {0: 0, 7: 0, 1: data, 2: data, 3: 2 * data, 4: -2 * data, 5: -data, 6: -data}[code]
        inverted.append(int(code in (4, 5, 6)))
        rows.append((~abs(term) & 0xFFFF) if inverted[-1] else term | 0x10000)
    tree = [
        rows[0],
        rows[1] << 2 | inverted[0],
        rows[2] << 4 | inverted[1] << 2,
        rows[3] << 6 | inverted[2] << 4,
        inverted[3] << 6,
        rows[4] << 8,
        rows[5] << 10 | inverted[4] << 8,
        rows[6] << 12 | inverted[5] << 10,
        rows[7] << 14 | inverted[6] << 12,
        inverted[7] << 14,
    ]
    first, second = carry_save(carry_save(tree[:5]) + carry_save(tree[5:]))
    total = (first >> shift) + (second >> shift) + COMPENSATION[shift] & 0xFFFFFFFF
    return total - (1 << 32) if total >> 31 else total


def atom_products(weights: list[int], data: list[int]) -> tuple[int, list[int]]:
    """Multiply the (at most 64) elements of a MAC atom and align the products to the largest exponent.

    Zeros of either sign are left out: they do not count for the largest exponent (csc.cpp:884, :1414).

    Args:
        weights: fp16 bits, no NaN.
        data: fp16 bits, no NaN.

    Returns:
        (exponent, products): a product represents product * 2**(exponent - 50).
    """
    used = [w & 0x7FFF != 0 and d & 0x7FFF != 0 for w, d in zip(weights, data, strict=True)]
    pairs = [(fields(w), fields(d)) for w, d in zip(weights, data, strict=True)]
    largest = max([w[2] + d[2] for (w, d), counts in zip(pairs, used, strict=True) if counts], default=0)
    products = [
        booth_product(w[1], d[1], w[0] ^ d[0], 4 * (largest - w[2] - d[2])) if counts else 0
        for (w, d), counts in zip(pairs, used, strict=True)
    ]
    return 4 * largest, products


def signed(value: int, bits: int) -> int:
    """Interpret the low bits as a two's complement number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def leading_copies(value: int, bits: int) -> int:
    """Count the bits below the top one that equal it."""
    pattern = [value >> i & 1 for i in range(bits)][::-1]
    count = 0
    while count < bits - 1 and pattern[count + 1] == pattern[0]:
        count += 1
    return count


def accumulate(accumulator: Accumulator, mac_exponent: int, mac_mantissa: int) -> Accumulator:
    """Add the sum of an atom to the accumulator.

    The smaller operand is aligned by an arithmetic shift; a difference of more than 40 drops it. A negative sum is
    rounded up only where guard and sticky bits are set.

    Args:
        accumulator: (exponent, mantissa) so far; (0, 0) at the start.
        mac_exponent: From :func:`atom_products`; 63 for a NaN.
        mac_mantissa: Sum of the products, 38 bits.

    Returns:
        The new accumulator. A sum of 0 leaves it unchanged, and so does anything added to a NaN.
    """
    exponent, mantissa = accumulator
    if mac_mantissa == 0 or exponent == NAN:
        return accumulator
    if mac_exponent == 63:
        return NAN, signed((mac_mantissa & 0x3FFFFFFFFF) >> 27 << 29, 40)
    left = leading_copies(mac_mantissa & 0x3FFFFFFFFF, 38)
    mac, mac_exponent = mac_mantissa << left << 2, mac_exponent - left + 49
    exponent = exponent if mantissa else 0
    lost = 0
    largest = max(exponent, mac_exponent)
    operands = []
    for operand, own in ((mantissa, exponent), (mac, mac_exponent)):
        difference = largest - own
        if difference > 40:
            operand = 0
        elif difference:
            lost = (operand & (1 << difference) - 1) << 40 - difference
            operand >>= difference
        operands.append(operand)
    total = sum(operands)
    if not -(1 << 39) <= total < 1 << 39:
        guard, sticky, total, largest = total & 1, lost != 0, total >> 1, largest + 1
    else:
        left = leading_copies(total & (1 << 40) - 1, 40)
        register = ((total & (1 << 40) - 1) << 40 | lost) << left  # bits that were shifted out come back
        total, lost = signed(register >> 40, 40), register & (1 << 40) - 1
        guard, sticky, largest = lost >> 39, lost & (1 << 39) - 1 != 0, largest - left
    if guard and (total >= 0 or sticky):
        rounded = signed(total + 1, 40)
        if (rounded < 0) != (total < 0):
            rounded = signed((1 << 39 if total < 0 else 0) | (rounded & (1 << 40) - 1) >> 1, 40)
            largest += 1
        total = rounded
    return (largest & 255 if total else 0), total


def to_fp32(exponent: int, mantissa: int) -> int:
    """Deliver an accumulator to SDP as fp32, rounded on the single bit below its fraction."""
    sign = 1 if mantissa < 0 else 0
    if exponent == NAN:
        return sign << 31 | 255 << 23 | mantissa >> 29 & 1023
    if mantissa == -(1 << 39):
        return sign << 31 | (exponent + 65) << 23
    if mantissa == 0:
        return 0
    digits = abs(mantissa) >> 15
    exponent += 64
    if abs(mantissa) >> 14 & 1:
        digits += 1
        if digits == 1 << 24:
            digits, exponent = digits >> 1, exponent + 1
    return sign << 31 | exponent << 23 | digits & 0x7FFFFF


def first_nan(values: list[int]) -> int | None:
    """Find the first NaN among fp16 bit patterns."""
    return next((bits for bits in values if bits & 0x7FFF > 0x7C00), None)


def nan_sum(weights: list[int], data: list[int]) -> int | None:
    """Return what an atom with a NaN adds, at exponent 63: weights before data, lowest channel first (cmac.h:301)."""
    nan = first_nan(weights)
    nan = first_nan(data) if nan is None else nan
    return None if nan is None else signed((nan >> 15) << 37 | (nan & 1023) << 27, 38)


def output(weights: list[list[int]], data: list[list[int]]) -> int:
    """Compute one output of a direct convolution.

    Args:
        weights: fp16 bits of the kernel, one list per MAC atom in the order of CSC.
        data: fp16 bits of the data under it, in the same order.

    Returns:
        fp32 bits for SDP.
    """
    accumulator = 0, 0
    for w, d in zip(weights, data, strict=True):
        nan = nan_sum(w, d)
        if nan is not None:
            accumulator = accumulate(accumulator, 63, nan)
        else:
            exponent, products = atom_products(w, d)
            accumulator = accumulate(accumulator, exponent, sum(products))
    return to_fp32(*accumulator)
