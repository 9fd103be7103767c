"""The fp16 MAC and the FP48 accumulator in plain Python, bit by bit from the C model's behaviour."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st


def fields(bits):
    """Sign, mantissa shifted by the low exponent bits, exponent / 4."""
    sign, exponent, fraction = bits >> 15, bits >> 10 & 31, bits & 1023
    shift = exponent & 3 if exponent else 1
    return sign, (fraction | (1024 if exponent else 0)) << shift, exponent >> 2


def carry_save(rows):
    """Rows (0..2 of what is left first, the rest moved behind) to two, dropping what leaves 32 bits."""
    rows = list(rows)
    while len(rows) > 2:
        a, b, c, *rest = rows
        rows = [a ^ b ^ c, ((a & b | b & c | a & c) << 1) & 0xFFFFFFFF, *rest]
    return rows


def booth_product(weight, data, negative, shift):
    """One multiplier: eight radix-4 rows, two groups of five compressed apart, shifted, then added."""
    if shift >= 32:
        return 0
    rows, inverted = [], []
    for digit in range(8):
        code = (weight << 1 >> 2 * digit & 7) ^ (7 if negative else 0)
        value = {0: 0, 7: 0, 1: data, 2: data, 3: 2 * data, 4: -2 * data, 5: -data, 6: -data}[code]
        inverted.append(int(code in (4, 5, 6)))
        rows.append((~abs(value) & 0xFFFF) if inverted[-1] else value | 0x10000)
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
    compensation = {
        0: 0xAAAB0000, 4: 0xFAAAB000, 8: 0xFFAAAB00, 12: 0xFFFAAAB0,
        16: 0xFFFFAAAB, 20: 0xFFFFFAAB, 24: 0xFFFFFFAB, 28: 0xFFFFFFFB,
    }[shift]  # fmt: skip
    total = (first >> shift) + (second >> shift) + compensation & 0xFFFFFFFF
    return total - (1 << 32) if total >> 31 else total


def mac_products(weights, data):
    """Largest exponent (6 bits) and the 64 aligned products of an atom without NaN."""
    pairs = [(fields(w), fields(d)) for w, d in zip(weights, data, strict=True)]
    live = [w & 0x7FFF != 0 and d & 0x7FFF != 0 for w, d in zip(weights, data, strict=True)]
    largest = max([w[2] + d[2] for (w, d), used in zip(pairs, live, strict=True) if used], default=0)
    products = [
        booth_product(w[1], d[1], w[0] ^ d[0], 4 * (largest - w[2] - d[2])) if used else 0
        for (w, d), used in zip(pairs, live, strict=True)
    ]
    return 4 * largest, products


def signed(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def run_length(value, bits):
    """How many bits below the top one equal it."""
    pattern = [value >> i & 1 for i in range(bits)][::-1]
    count = 0
    while count < bits - 1 and pattern[count + 1] == pattern[0]:
        count += 1
    return count


def accumulate(accumulator, mac_exponent, mac_mantissa):
    """CACC's addition with registers as bit strings of 40 bits."""
    exponent, mantissa = accumulator
    if mac_mantissa == 0 or exponent == 255:
        return accumulator
    if mac_exponent == 63:
        return 255, signed((mac_mantissa & 0x3FFFFFFFFF) >> 27 << 29, 40)
    left = run_length(mac_mantissa & 0x3FFFFFFFFF, 38)
    mac, mac_exponent = mac_mantissa << left << 2, mac_exponent - left + 49
    exponent = exponent if mantissa else 0
    lost = 0
    largest = max(exponent, mac_exponent)
    operands = []
    for value, own in ((mantissa, exponent), (mac, mac_exponent)):
        difference = largest - own
        if difference > 40:
            value = 0
        elif difference:
            lost = (value & (1 << difference) - 1) << 40 - difference
            value >>= difference
        operands.append(value)
    total = sum(operands)
    if not -(1 << 39) <= total < 1 << 39:
        guard, sticky, total, largest = total & 1, lost != 0, total >> 1, largest + 1
    else:
        left = run_length(total & (1 << 40) - 1, 40)
        register = ((total & (1 << 40) - 1) << 40 | lost) << left
        total, lost = signed(register >> 40, 40), register & (1 << 40) - 1
        guard, sticky, largest = lost >> 39, lost & (1 << 39) - 1 != 0, largest - left
    if guard and (total >= 0 or sticky):
        rounded = signed(total + 1, 40)
        if (rounded < 0) != (total < 0):
            rounded = signed((1 << 39 if total < 0 else 0) | (rounded & (1 << 40) - 1) >> 1, 40)
            largest += 1
        total = rounded
    return (largest & 255 if total else 0), total


def to_fp32(exponent, mantissa):
    """Delivery of an accumulator."""
    sign = 1 if mantissa < 0 else 0
    if exponent == 255:
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


def first_nan(values):
    return next((bits for bits in values if bits & 0x7FFF > 0x7C00), None)


def slow_output(weights, data):
    """All atoms (64 bit patterns each) of one output."""
    accumulator = 0, 0
    for w, d in zip(weights, data, strict=True):
        nan = first_nan(w) if first_nan(w) is not None else first_nan(d)
        if nan is not None:
            accumulator = accumulate(accumulator, 63, signed((nan >> 15) << 37 | (nan & 1023) << 27, 38))
        else:
            largest, products = mac_products(w, d)
            accumulator = accumulate(accumulator, largest, sum(products))
    return to_fp32(*accumulator)


def atoms(elements):
    return st.integers(0, 2**32).map(lambda seed: make_atoms(seed, elements))


def make_atoms(seed, kinds):
    """1 to 4 atoms of weights and data: exponents from a random window, some zeros, specials now and then."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 5))

    def side():
        low = random.integers(0, 31)
        exponent = random.integers(low, min(31, low + random.integers(1, 20)) + 1, (count, 64))
        bits = random.integers(0, 2, (count, 64)) << 15 | exponent << 10 | random.integers(0, 1024, (count, 64))
        bits[random.random((count, 64)) < random.choice([0, 0.1, 0.9])] = random.choice([0, 0x8000])
        special = random.random((count, 64)) < random.choice([0, 0.02])
        bits[special] = random.choice(kinds, int(special.sum()))
        if 0x7E00 not in kinds:
            bits[bits & 0x7FFF > 0x7C00] &= 0xBFFF
        return bits.tolist()

    return side(), side()
