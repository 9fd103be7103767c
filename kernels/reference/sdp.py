"""SDP: the X1, X2 and Y blocks and the output converter, one element at a time.

Source: hls/sdp/sdp_x.cpp:31 (ALU), :150 (multiplier), :261 (shift); sdp_y_core.cpp:27, :121, :228; sdp_y_cvt.cpp:17;
sdp_c.cpp:19; hls_wrapper/sdp_hls_wrapper.cpp:530 (NaN). X works in the order ALU, multiplier, shift, ReLU; Y in the
order multiplier, shift, ALU, lookup (``sdp_lut.py``). fp16 is processed as fp32, without shifts and converters.
"""

from __future__ import annotations

from nvdla.kernels.reference.floats import (
    FP16,
    FP32,
    add,
    from_integer,
    greater,
    lesser,
    multiply,
    narrow,
    relu,
    to_int16,
)
from nvdla.kernels.reference.integers import convert, saturate, shift_right, wrap

MAX, MIN, SUM, EQL = 0, 1, 2, 3
"""ALU_ALGO."""


def x_block(
    x: int, alu: int | None, algorithm: int, alu_shift: int, mul: int | None, prelu: bool, shift: int, relu: bool
) -> int:
    """Process an integer in X1 or X2.

    Args:
        x: Element of 32 bits.
        alu: Operand of the ALU, 16 bits; None bypasses it.
        algorithm: ALU_ALGO. X has no EQL: it adds.
        alu_shift: Left shift of the ALU operand, which saturates to 32 bits.
        mul: Operand of the multiplier, 16 bits; None bypasses it.
        prelu: Positive elements skip multiplier and shift and wrap to 32 bits.
        shift: Right shift. It applies without the multiplier too.
        relu: Replace negative results by 0.

    Returns:
        Element of 32 bits.
    """
    if alu is not None:
        alu = saturate(alu << alu_shift, 32)
        x = {MAX: max(x, alu), MIN: min(x, alu), SUM: x + alu, EQL: x + alu}[algorithm]
    if mul is not None and prelu and x >= 0:
        x = wrap(x, 32)
    else:
        x = saturate(shift_right(x if mul is None else x * mul, shift), 32)
    return max(x, 0) if relu else x


def y_core(x: int, mul: int | None, prelu: bool, truncate: int, alu: int | None, algorithm: int) -> int:
    """Process an integer in Y, without its lookup.

    Args:
        x: Element of 32 bits.
        mul: Operand of the multiplier, 32 bits; None bypasses multiplier and shift.
        prelu: Positive elements skip both.
        truncate: Right shift of the product.
        alu: Operand of the ALU, 32 bits; None bypasses it.
        algorithm: ALU_ALGO; EQL gives 1 where the numbers differ.

    Returns:
        Element of 32 bits.
    """
    if mul is not None and not (prelu and x >= 0):
        x = saturate(shift_right(x * mul, truncate), 32)
    if alu is None:
        return x
    return saturate({MAX: max(x, alu), MIN: min(x, alu), SUM: x + alu, EQL: int(x != alu)}[algorithm], 32)


def convert_operand(x: int, offset: int, scale: int, truncate: int) -> int:
    """Convert an operand of Y from memory, 16 bits, to 32 bits. Operands in registers are not converted."""
    return convert(x, offset, scale, truncate, 32)


def convert_output(x: int, offset: int, scale: int, shift: int, precision: str) -> int:
    """Convert an integer of 32 bits to the output precision.

    Args:
        x: Element.
        offset: CVT_OFFSET, subtracted.
        scale: CVT_SCALE.
        shift: CVT_SHIFT.
        precision: "int8", "int16" or "fp16".

    Returns:
        The element, as bits for fp16.
    """
    wide = convert(x, offset, scale, shift, 17)
    return from_integer(wide) if precision == "fp16" else saturate(wide, 8 if precision == "int8" else 16)


def is_saturated(x: int, offset: int, scale: int, shift: int) -> bool:
    """Check whether the saturation counter includes a result (nvdla_int.h:57): off by more than one."""
    product = (x - offset) * scale
    return abs((product >> shift) - saturate(shift_right(product, shift), 17)) > 1


def block_fp16(
    x: int, alu: int | None, algorithm: int, mul: int | None, prelu: bool, mul_first: bool, apply_relu: bool
) -> int:
    """Process fp32 bits in X1, X2 or Y.

    Args:
        x: Element.
        alu: Operand of the ALU; None bypasses it.
        algorithm: ALU_ALGO; EQL compares bits and gives the integer 1 where they differ.
        mul: Operand of the multiplier; None bypasses it.
        prelu: Elements with a clear sign bit skip the multiplier.
        mul_first: True in Y, False in X.
        apply_relu: Replace negative results by +0.

    Returns:
        Element, fp32 bits.
    """

    def multiplied(y: int) -> int:
        return y if mul is None or (prelu and not y >> 31) else multiply(y, mul, FP32)

    def added(y: int) -> int:
        if alu is None:
            return y
        if algorithm == EQL:
            return int(y != alu)
        return {MAX: greater, MIN: lesser, SUM: add}[algorithm](y, alu, FP32)

    x = added(multiplied(x)) if mul_first else multiplied(added(x))
    return relu(x, FP32) if apply_relu else x


def output_fp16(x: int, precision: str) -> int:
    """Round fp32 bits to fp16, once, then to the output precision.

    Args:
        x: Element.
        precision: "fp16"; "int16" rounds the fp16 number; "int8" takes its low byte, unconverted.

    Returns:
        The element, as bits for fp16.
    """
    half = narrow(x, FP32, FP16)
    return {"fp16": half, "int16": to_int16(half), "int8": wrap(half, 8)}[precision]
