"""Floating point: formats and operators as exact rational arithmetic.

Source: hls/include/nvdla_float.h. A number is the bit pattern of fp16 (1/5/10), fp17 (1/6/10) or fp32 (1/8/23), and a
format is (exponent bits, fraction bits). Differences from IEEE 754:

* no operator produces an infinity: an overflow gives the largest finite number (SetToInf, :93);
* a result below the smallest normal number becomes zero; only conversions to fp16 produce denormals;
* a NaN passes unchanged, the first operand's first; conversions keep the low ten bits of its fraction, unshifted.

Widening an fp16 infinity gives the largest finite number (:438), so no operator receives one, unless a register of Y in
SDP holds it. That case is not specified here.
"""

from __future__ import annotations

from fractions import Fraction

Format = tuple[int, int]
FP16: Format = (5, 10)
FP17: Format = (6, 10)
FP32: Format = (8, 23)


def parts(bits: int, form: Format) -> tuple[int, int, int]:
    """Split a bit pattern into (sign, exponent field, fraction field)."""
    expo_bits, mant_bits = form
    return bits >> expo_bits + mant_bits, bits >> mant_bits & (1 << expo_bits) - 1, bits & (1 << mant_bits) - 1


def is_nan(bits: int, form: Format) -> bool:
    """Check for a NaN."""
    _, expo, mant = parts(bits, form)
    return expo == (1 << form[0]) - 1 and mant != 0


def value(bits: int, form: Format, denormals: bool = False) -> Fraction:
    """Return the number that a bit pattern represents.

    Args:
        bits: Bit pattern, not a NaN.
        form: Its format.
        denormals: Interpret an exponent field of 0 as IEEE 754 does. Operators do not: they add the hidden bit to every
            pattern but zero.

    Returns:
        The exact number.
    """
    sign, expo, mant = parts(bits, form)
    scale = Fraction(2) ** (expo - (1 << form[0] - 1) + 1)
    hidden = 0 if expo == 0 and (mant == 0 or denormals) else 1
    magnitude = (scale if hidden else 2 * scale) * (hidden + Fraction(mant, 1 << form[1]))
    return -magnitude if sign else magnitude


def encode(x: Fraction, sign: int, form: Format, denormals: bool = False) -> int:
    """Round a number to a format: to nearest, ties to even.

    Args:
        x: The exact number; its sign is ignored.
        sign: Sign bit of the result.
        form: Format of the result.
        denormals: Keep results below the smallest normal number instead of making them zero.

    Returns:
        Bit pattern; the largest finite number for what overflows.
    """
    expo_bits, mant_bits = form
    sign_bits = sign << expo_bits + mant_bits
    largest = ((1 << expo_bits) - 1 << mant_bits) - 1
    x = abs(x)
    if x == 0:
        return sign_bits
    lowest = 2 - (1 << expo_bits - 1)  # exponent of the smallest normal number
    expo = x.numerator.bit_length() - x.denominator.bit_length()
    if Fraction(2) ** expo > x:
        expo -= 1
    if denormals:
        expo = max(expo, lowest)
    mant = round(x / Fraction(2) ** expo * (1 << mant_bits))  # Python rounds a Fraction to nearest, ties to even
    pattern = (expo - lowest << mant_bits) + mant  # the hidden bit increments the exponent field
    if pattern < 1 << mant_bits and not denormals:
        return sign_bits
    return sign_bits | min(max(pattern, 0), largest)


def negate(bits: int, form: Format) -> int:
    """Invert the sign bit."""
    return bits ^ 1 << sum(form)


def add(a: int, b: int, form: Format) -> int:
    """Add (:974 FpAdd). A zero or underflowing sum has the sign of the larger operand, of ``a`` if both are equal."""
    if is_nan(a, form) or is_nan(b, form):
        return a if is_nan(a, form) else b
    x, y = value(a, form), value(b, form)
    larger = a if abs(x) >= abs(y) else b
    return encode(x + y, parts(larger, form)[0], form)


def subtract(a: int, b: int, form: Format) -> int:
    """Add the negated ``b`` (:1130 FpSub); a NaN ``b`` comes out negated too."""
    return add(a, negate(b, form), form)


def multiply(a: int, b: int, form: Format) -> int:
    """Multiply (:1283 FpMul)."""
    if is_nan(a, form) or is_nan(b, form):
        return a if is_nan(a, form) else b
    return encode(value(a, form) * value(b, form), parts(a, form)[0] ^ parts(b, form)[0], form)


def greater(a: int, b: int, form: Format) -> int:
    """Return the maximum (:1186 FpCmp): +0 is greater than -0, a NaN wins."""
    return _extreme(a, b, form, -1)


def lesser(a: int, b: int, form: Format) -> int:
    """Return the minimum (:1186 FpCmp): -0 is less than +0, a NaN wins."""
    return _extreme(a, b, form, 1)


def _extreme(a: int, b: int, form: Format, direction: int) -> int:
    if is_nan(a, form) or is_nan(b, form):
        return a if is_nan(a, form) else b
    return min(a, b, key=lambda bits: (direction * value(bits, form), -direction * parts(bits, form)[0]))


def relu(bits: int, form: Format) -> int:
    """Replace negative numbers and -0 by +0; NaN passes (:1413 FpRelu)."""
    return 0 if parts(bits, form)[0] and not is_nan(bits, form) else bits


def widen(bits: int, form: Format, wide: Format) -> int:
    """Convert to a wider format, exactly (:553 FpWidthInc); denormals become normal, infinity the largest number."""
    sign, expo, mant = parts(bits, form)
    if is_nan(bits, form):
        return sign << sum(wide) | (1 << wide[0]) - 1 << wide[1] | mant
    if expo == (1 << form[0]) - 1:
        return sign << sum(wide) | ((1 << wide[0]) - 1 << wide[1]) - 1
    return encode(value(bits, form, denormals=True), sign, wide)


def narrow(bits: int, form: Format, to: Format) -> int:
    """Convert to a narrower format (:674 FpWidthDec, :602 FpExpoWidthDec); only fp16 results are denormals."""
    sign, _, mant = parts(bits, form)
    if is_nan(bits, form):
        return sign << sum(to) | (1 << to[0]) - 1 << to[1] | mant & (1 << to[1]) - 1
    result = encode(value(bits, form), sign, to, denormals=True)
    # Rounding up to the smallest normal number counts as normal.
    return result if to == FP16 or parts(result, to)[1] else sign << sum(to)


def from_integer(x: int) -> int:
    """Convert a 17-bit integer to fp16 (:1443 FpIntToFloat); 65520 and more gives the largest number."""
    return encode(Fraction(x), int(x < 0), FP16)


def to_int16(bits: int) -> int:
    """Convert fp16 to int16 (:1508 FpFloatToInt): ties away from zero, NaN gives -32768."""
    if is_nan(bits, FP16):
        return -32768
    sign, expo, _ = parts(bits, FP16)
    magnitude = int(abs(value(bits, FP16)) + Fraction(1, 2)) if expo else 0
    return max(-magnitude, -32768) if sign else min(magnitude, 32767)


def flush_nan(bits: int, form: Format) -> int:
    """Replace a NaN by +0, where the engine's NAN_TO_ZERO register is set."""
    return 0 if is_nan(bits, form) else bits


def position(bits: int, select: int, fraction_bits: int) -> tuple[int, int]:
    """Split a positive fp32 number, divided by 2**select, into integer and fraction (:1564 FpFloatToIntFrac).

    Returns:
        (integer part, fraction truncated to ``fraction_bits`` bits).
    """
    exact = value(bits, FP32) / Fraction(2) ** select
    return int(exact), int((exact - int(exact)) * (1 << fraction_bits))
