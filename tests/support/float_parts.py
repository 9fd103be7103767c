"""Floating-point operators in exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction


def parts(bits: int, form: tuple[int, int]) -> tuple[int, int, int]:
    expo_bits, mant_bits = form
    return bits >> (expo_bits + mant_bits), bits >> mant_bits & ((1 << expo_bits) - 1), bits & ((1 << mant_bits) - 1)


def nan(bits: int, form: tuple[int, int]) -> bool:
    _, expo, mant = parts(bits, form)
    return expo == (1 << form[0]) - 1 and mant != 0


def value(bits: int, form: tuple[int, int], denormals: bool = False) -> Fraction:
    """The number that a bit pattern stands for; operators take exponent 0 with a fraction as a normal number."""
    sign, expo, mant = parts(bits, form)
    scale = Fraction(2) ** (expo - (1 << (form[0] - 1)) + 1)
    if expo == 0 and (mant == 0 or denormals):
        magnitude = 2 * scale * Fraction(mant, 1 << form[1])
    else:
        magnitude = scale * (1 + Fraction(mant, 1 << form[1]))
    return -magnitude if sign else magnitude


def nearest_even(x: Fraction) -> int:
    return round(x)  # Python rounds a Fraction to nearest, ties to even


def encode(x: Fraction, sign: int, form: tuple[int, int], denormals: bool = False) -> int:
    """|x| in ``form``, nearest even, the largest finite number for what overflows, zero for what underflows."""
    expo_bits, mant_bits = form
    sign_bits = sign << (expo_bits + mant_bits)
    largest = ((1 << expo_bits) - 1 << mant_bits) - 1
    x = abs(x)
    if x == 0:
        return sign_bits
    lowest = 2 - (1 << (expo_bits - 1))  # exponent of the smallest normal number
    expo = x.numerator.bit_length() - x.denominator.bit_length()
    if Fraction(2) ** expo > x:
        expo -= 1
    if denormals:
        expo = max(expo, lowest)
    mant = nearest_even(x / Fraction(2) ** expo * (1 << mant_bits))
    pattern = (expo - lowest << mant_bits) + mant  # the hidden bit counts the exponent field up by one
    if pattern < 1 << mant_bits and not denormals:
        return sign_bits
    return sign_bits | min(max(pattern, 0), largest)


def expected_sum(a: int, b: int, form: tuple[int, int]) -> int:
    if nan(a, form) or nan(b, form):
        return a if nan(a, form) else b
    x, y = value(a, form), value(b, form)
    larger = a if abs(x) >= abs(y) else b
    return encode(x + y, parts(larger, form)[0], form)


def expected_product(a: int, b: int, form: tuple[int, int]) -> int:
    if nan(a, form) or nan(b, form):
        return a if nan(a, form) else b
    sign = parts(a, form)[0] ^ parts(b, form)[0]
    return encode(value(a, form) * value(b, form), sign, form)


def widened(bits: int, form: tuple[int, int], wide: tuple[int, int]) -> int:
    sign, expo, mant = parts(bits, form)
    if nan(bits, form):
        return sign << sum(wide) | (1 << wide[0]) - 1 << wide[1] | mant
    if expo == (1 << form[0]) - 1:
        return sign << sum(wide) | ((1 << wide[0]) - 1 << wide[1]) - 1
    return encode(value(bits, form, denormals=True), sign, wide)
