"""NVDLA's floating-point formats and operators, bit-exact.

fp16 (1/5/10), fp17 (1/6/10) and fp32 (1/8/23) numbers are int64 scalars that hold the unsigned bit pattern. The
functions are for use inside other kernels. Source: cmod/hls/include/nvdla_float.h. Where this differs from IEEE 754:

* no operator makes an infinity: what overflows becomes the largest finite number; an fp16 infinity that is widened
  becomes the largest finite number of the wider format;
* results below the smallest normal number become zero (only the conversions to fp16 make denormals);
* a NaN passes unchanged (the first operand's wins); conversions keep the LOW ten bits of its fraction, unshifted.
"""

from __future__ import annotations

from nvdla.kernels.integers import int_log2
from nvdla.kernels.jit.compilation import njit

FP16 = (5, 10)
FP17 = (6, 10)
FP32 = (8, 23)
FP17_ONE = 0x7C00
FP16_LARGEST = 0x7BFF


@njit(cache=True, nogil=True, inline="always")
def is_nan(bits: int, form: tuple[int, int]) -> bool:
    """True for a NaN of the format ``form`` = (exponent bits, fraction bits)."""
    expo_bits, mant_bits = form
    infinity = ((1 << expo_bits) - 1) << mant_bits
    return bits & ((1 << (expo_bits + mant_bits)) - 1) > infinity


@njit(cache=True, nogil=True, inline="always")
def largest(form: tuple[int, int]) -> int:
    """The largest finite number (SetToInf, nvdla_float.h:93)."""
    expo_bits, mant_bits = form
    return (((1 << expo_bits) - 1) << mant_bits) - 1


@njit(cache=True, nogil=True, inline="always")
def round_nearest_even(mant: int, drop: int) -> int:
    """``mant`` >= 0 without its low ``drop`` bits, to nearest, ties to even (FpMantRNE); 0 < drop < 63."""
    kept = mant >> drop
    rest = mant & ((1 << drop) - 1)
    half = 1 << (drop - 1)
    if rest > half or (rest == half and kept & 1):
        kept += 1
    return kept


@njit(cache=True, nogil=True, inline="always")
def _shift(x: int, left: int) -> int:
    """x shifted left, or right for a negative count, as ac_int does."""
    if left >= 0:
        return x << left
    return x >> min(-left, 63)


@njit(cache=True, nogil=True)
def fp_add(a: int, b: int, form: tuple[int, int]) -> int:
    """a + b (nvdla_float.h:974 FpAdd), rounded to nearest even once.

    The sum keeps 2 * fraction + 3 bits and no sticky bit, as the source does. x + (-x) has the sign of ``a``.
    """
    expo_bits, mant_bits = form
    magnitude = (1 << (expo_bits + mant_bits)) - 1
    if is_nan(a, form):
        return a
    if is_nan(b, form):
        return b
    swap = (b & magnitude) > (a & magnitude)
    large, small = (b, a) if swap else (a, b)
    sign = large & (magnitude + 1)
    mant_mask = (1 << mant_bits) - 1
    large_magnitude, small_magnitude = large & magnitude, small & magnitude
    expo, small_expo = large_magnitude >> mant_bits, small_magnitude >> mant_bits
    large_mant = (large_magnitude & mant_mask) | ((1 << mant_bits) if large_magnitude else 0)
    small_mant = (small_magnitude & mant_mask) | ((1 << mant_bits) if small_magnitude else 0)
    more = mant_bits + 2
    width = 2 * mant_bits + 3
    aligned = _shift(small_mant, more - (expo - small_expo))
    total = (large_mant << more) + (aligned if (a ^ b) & (magnitude + 1) == 0 else -aligned)
    if total == 0:
        return sign
    expo_max = (1 << expo_bits) - 1
    if total >> width:
        expo += 1
        total >>= 1
        if expo >= expo_max:
            return sign | largest(form)
    else:
        zeros = width - 1 - int_log2(total)
        if expo <= zeros:
            return sign
        expo -= zeros
        total <<= zeros
    mant = round_nearest_even(total, more)
    if mant >> (mant_bits + 1):
        expo += 1
        mant = 0
        if expo >= expo_max:
            return sign | largest(form)
    return sign | expo << mant_bits | mant & mant_mask


@njit(cache=True, nogil=True, inline="always")
def fp_sub(a: int, b: int, form: tuple[int, int]) -> int:
    """a - b (nvdla_float.h:1130 FpSub): a + (-b), so a NaN ``b`` comes out with its sign turned."""
    expo_bits, mant_bits = form
    return fp_add(a, b ^ (1 << (expo_bits + mant_bits)), form)


@njit(cache=True, nogil=True)
def fp_mul(a: int, b: int, form: tuple[int, int]) -> int:
    """a * b (nvdla_float.h:1283 FpMul): exact product, rounded to nearest even once; no denormals."""
    expo_bits, mant_bits = form
    sign_bit = 1 << (expo_bits + mant_bits)
    if is_nan(a, form):
        return a
    if is_nan(b, form):
        return b
    sign = (a ^ b) & sign_bit
    a_magnitude, b_magnitude = a & (sign_bit - 1), b & (sign_bit - 1)
    bias = (1 << (expo_bits - 1)) - 1
    expo_max = (1 << expo_bits) - 1
    expo = (a_magnitude >> mant_bits) + (b_magnitude >> mant_bits) - bias
    if a_magnitude == 0 or b_magnitude == 0 or expo < 0:
        return sign
    if expo >= expo_max:
        return sign | largest(form)
    hidden = 1 << mant_bits
    product = (a_magnitude & (hidden - 1) | hidden) * (b_magnitude & (hidden - 1) | hidden)
    if product >> (2 * mant_bits + 1):
        expo += 1
        if expo >= expo_max:
            return sign | largest(form)
        mant = round_nearest_even(product, mant_bits + 1)
    else:
        mant = round_nearest_even(product, mant_bits)
    if mant >> (mant_bits + 1):
        expo += 1
        mant = hidden
        if expo >= expo_max:
            return sign | largest(form)
    if expo == 0:
        return sign
    return sign | expo << mant_bits | mant & (hidden - 1)


@njit(cache=True, nogil=True, inline="always")
def fp_widen(bits: int, form: tuple[int, int], wide: tuple[int, int]) -> int:
    """A number in a wider format (nvdla_float.h:553 FpWidthInc): exact, denormals normalized, infinity = largest."""
    expo_bits, mant_bits = form
    wide_expo_bits, wide_mant_bits = wide
    delta = (1 << (wide_expo_bits - 1)) - (1 << (expo_bits - 1))
    sign = (bits >> (expo_bits + mant_bits)) << (wide_expo_bits + wide_mant_bits)
    expo = (bits >> mant_bits) & ((1 << expo_bits) - 1)
    mant = bits & ((1 << mant_bits) - 1)
    if expo == (1 << expo_bits) - 1:
        if mant:
            return sign | ((1 << wide_expo_bits) - 1) << wide_mant_bits | mant
        return sign | largest(wide)
    if expo == 0:
        if mant == 0:
            return sign
        top = int_log2(mant)
        expo = 1 - (mant_bits - top)
        mant = (mant << (mant_bits - top)) & ((1 << mant_bits) - 1)
    return sign | (expo + delta) << wide_mant_bits | mant << (wide_mant_bits - mant_bits)


@njit(cache=True, nogil=True, inline="always")
def fp_narrow(bits: int, form: tuple[int, int], narrow: tuple[int, int], denormals: bool) -> int:
    """A number in a narrower format (nvdla_float.h:674 FpWidthDec, :602 FpExpoWidthDec), nearest even once.

    Without ``denormals`` what stays below the smallest normal number after rounding is zero.
    """
    expo_bits, mant_bits = form
    narrow_expo_bits, narrow_mant_bits = narrow
    delta = (1 << (expo_bits - 1)) - (1 << (narrow_expo_bits - 1))
    expo_max = (1 << narrow_expo_bits) - 1
    sign = (bits >> (expo_bits + mant_bits)) << (narrow_expo_bits + narrow_mant_bits)
    mant = bits & ((1 << mant_bits) - 1)
    if is_nan(bits, form):
        return sign | expo_max << narrow_mant_bits | mant & ((1 << narrow_mant_bits) - 1)
    expo = ((bits >> mant_bits) & ((1 << expo_bits) - 1)) - delta
    if expo >= expo_max:
        return sign | largest(narrow)
    if expo < -narrow_mant_bits:
        return sign
    mant |= 1 << mant_bits
    drop = mant_bits - narrow_mant_bits
    if expo <= 0:
        rounded = round_nearest_even(mant, drop + 1 - expo)
        return sign | (rounded if denormals or rounded >> narrow_mant_bits else 0)
    rounded = round_nearest_even(mant, drop) if drop else mant
    # A carry out of the fraction lands in the exponent, which is what it should do.
    magnitude = (expo << narrow_mant_bits) + rounded - (1 << narrow_mant_bits)
    return sign | min(magnitude, largest(narrow))


@njit(cache=True, nogil=True, inline="always")
def fp16_to_fp32(bits: int) -> int:
    """fp16 bit pattern to fp32 bit pattern, exact."""
    return fp_widen(bits, FP16, FP32)


@njit(cache=True, nogil=True, inline="always")
def fp16_to_fp17(bits: int) -> int:
    """fp16 bit pattern to fp17 bit pattern, exact."""
    return fp_widen(bits, FP16, FP17)


@njit(cache=True, nogil=True, inline="always")
def fp17_to_fp32(bits: int) -> int:
    """fp17 bit pattern to fp32 bit pattern, exact."""
    return fp_widen(bits, FP17, FP32)


@njit(cache=True, nogil=True, inline="always")
def fp17_to_fp16(bits: int) -> int:
    """fp17 bit pattern to fp16 bit pattern, rounded to nearest even."""
    return fp_narrow(bits, FP17, FP16, True)


@njit(cache=True, nogil=True, inline="always")
def fp32_to_fp17(bits: int) -> int:
    """Results below the smallest normal fp17 number become zero."""
    return fp_narrow(bits, FP32, FP17, False)


@njit(cache=True, nogil=True, inline="always")
def int_to_fp16(x: int) -> int:
    """A signed integer of up to 17 bits as fp16, nearest even (nvdla_float.h:1443); 65520 and more: 0x7bff."""
    if x == 0:
        return 0
    sign = 0x8000 if x < 0 else 0
    magnitude = -x if x < 0 else x
    top = int_log2(magnitude)
    mant = magnitude << (10 - top) if top <= 10 else round_nearest_even(magnitude, top - 10)
    return sign | min(((top + 14) << 10) + mant, FP16_LARGEST)


@njit(cache=True, nogil=True, inline="always")
def fraction_to_fp17(fraction: int, bits: int) -> int:
    """The unsigned fraction / 2**bits as fp17, nearest even (nvdla_float.h:807); below 2**-30: zero."""
    if fraction == 0:
        return 0
    top = int_log2(fraction)
    expo = 31 - (bits - top)
    mant = fraction << (10 - top) if top <= 10 else round_nearest_even(fraction, top - 10)
    if expo <= 0 and not mant >> 11:
        return 0
    return ((expo - 1) << 10) + mant


@njit(cache=True, nogil=True, inline="always")
def fp32_to_int_fraction(bits: int, shift: int, int_bits: int, fraction_bits: int) -> tuple[int, int]:
    """bits / 2**shift as (integer part, fraction), for bits > 0 (nvdla_float.h:1564 FpFloatToIntFrac).

    The integer part saturates at ``int_bits`` bits, the fraction is truncated to ``fraction_bits`` bits.
    """
    left = ((bits >> 23) & 0xFF) - 127 - shift - 23
    mant = (bits & 0x7FFFFF) | 0x800000
    limit = (1 << int_bits) - 1
    if left >= 0:
        return (limit if left > int_bits else min(mant << left, limit)), 0
    fraction = _shift(mant, fraction_bits + left) & ((1 << fraction_bits) - 1)
    return min(_shift(mant, left), limit), fraction
