"""SDP's fp16 kernels against the operators of kernels.floats, one number after the other."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.kernels import floats, sdp_float, sdp_lut
from nvdla.kernels.floats import FP17, FP32

SHAPE = (4, 3, 8)
FORMS = [(1, 1), (2, 1), (2, 3)]
SPECIAL = [
    0,
    1 << 31,
    1,
    0x00800000,
    0x00FFFFFF,
    0x3F800000,
    0x7F7FFFFF,
    0x7F800000,
    0x7F800123,
    0xFF7FFFFF,
    0xFFC00001,
]
ALU = {
    sdp_float.MAX: partial(floats.fp_max, form=FP32),
    sdp_float.MIN: partial(floats.fp_min, form=FP32),
    sdp_float.SUM: partial(floats.fp_add, form=FP32),
    sdp_float.EQL: lambda a, b: int(a != b),
}


def numbers(rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """fp32 patterns near one, anywhere, and the special ones."""
    near = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    anywhere = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    kind = rng.random(shape)
    return np.where(kind < 0.5, near, np.where(kind < 0.75, anywhere, rng.choice(np.array(SPECIAL, np.uint32), shape)))


def full(operand: np.ndarray) -> list[int]:
    spread = np.broadcast_to(operand, (operand.shape[0], SHAPE[1], SHAPE[2]))
    return np.concatenate([spread] * (SHAPE[0] // spread.shape[0])).ravel().tolist()


def block(x: int, alu: int, algorithm: int, mul: int, multiply: int, mul_first: bool, relu: bool) -> int:
    def multiplied(y: int) -> int:
        if multiply == sdp_float.NO_MUL or (multiply == sdp_float.PRELU and y < 1 << 31):
            return y
        return floats.fp_mul(y, mul, FP32)

    def added(y: int) -> int:
        return y if algorithm == sdp_float.NO_ALU else ALU[algorithm](y, alu)

    x = added(multiplied(x)) if mul_first else multiplied(added(x))
    return floats.fp_relu(x, FP32) if relu else x


@settings(max_examples=150)
@given(
    st.sampled_from([0, 1, 2, 3, sdp_float.NO_ALU]), st.integers(0, 2), st.booleans(), st.booleans(),
    st.sampled_from(FORMS), st.sampled_from(FORMS), st.integers(0, 1 << 32),
)  # fmt: skip
def test_a_block_equals_the_operators_one_by_one(algorithm, multiply, mul_first, relu, alu_form, mul_form, seed):
    rng = np.random.default_rng(seed)
    source = numbers(rng, SHAPE)
    alu, mul = numbers(rng, (*alu_form, 8)), numbers(rng, (*mul_form, 8))
    out = np.empty_like(source)
    sdp_float.float_block(source, alu, algorithm, mul, multiply, mul_first, relu, out)
    expected = [
        block(x, a, algorithm, m, multiply, mul_first, relu)
        for x, a, m in zip(source.ravel().tolist(), full(alu), full(mul), strict=True)
    ]
    assert out.ravel().tolist() == expected


@given(st.booleans(), st.integers(0, 1 << 32))
def test_input_is_widened_and_nan_flushed_on_request(flush, seed):
    source = np.random.default_rng(seed).integers(0, 1 << 16, 64, dtype=np.uint16).view(np.int16)
    source[:4] = np.array([0x7C00, 0x7E00, 0xFC01, 0x8000], np.uint16).view(np.int16)
    out = np.empty(64, np.uint32)
    sdp_float.widen(source, flush, out)
    for bits, wide in zip(source.view(np.uint16).tolist(), out.tolist(), strict=True):
        nan = bits & 0x7FFF > 0x7C00
        assert wide == (0 if flush and nan else floats.fp16_to_fp32(bits))


@given(st.integers(0, 2), st.integers(0, 1 << 32))
def test_output_goes_through_fp16(mode, seed):
    source = numbers(np.random.default_rng(seed), (64,))
    out = np.empty(64, (np.int8, np.int16, np.uint16)[mode])
    counts = np.zeros(2, np.int64)
    sdp_float.narrow(source, mode, out, counts)
    half = [floats.fp32_to_fp16(x) for x in source.tolist()]
    if mode == sdp_float.TO_INT16:
        expected = [floats.fp16_to_int16(x) for x in half]
    elif mode == sdp_float.TO_INT8:
        expected = [(x & 0xFF) - (x & 0x80) * 2 for x in half]
    else:
        expected = half
        assert counts.tolist() == [sum(x & 0x7FFF == 0x7BFF for x in half), sum(x & 0x7FFF > 0x7C00 for x in half)]
    assert out.tolist() == expected


def hit(low: int, high: int, fraction: int) -> int:
    """Interpolation spelled out: weights in fp17, two products, one sum."""
    one = 1 << 35
    weights = [
        floats.fraction_to_fp17(one - fraction, 35) if fraction else 0x7C00,
        floats.fraction_to_fp17(fraction, 35),
    ]
    products = [floats.fp_mul(w, floats.fp16_to_fp17(y), FP17) for w, y in zip(weights, (low, high), strict=True)]
    return floats.fp17_to_fp32(floats.fp_add(*products, FP17))


@given(st.floats(0.0, 1.0, width=32), st.integers(-8, 4), st.integers(0, 1 << 32))
def test_a_linear_float_lookup_interpolates_in_fp17(part, select, seed):
    entries = np.random.default_rng(seed).standard_normal(257).astype(np.float16).view(np.int16)
    start = np.float32(0.25)
    x = np.float32(start + np.float32(part) * np.float32(60 * 2.0**select))
    distance = float(np.float32(x - start))
    bits = [int(np.array(y, np.float32).view(np.uint32)) for y in (start, x)]
    table = sdp_lut.SdpTable(bits[0], bits[0], select, 0, 0, 0, 0, 0)
    out, counts = np.empty(1, np.uint32), np.zeros(sdp_lut.COUNTERS, np.int64)
    choice = sdp_lut.Choice(0, 0, 0, 0, 0)
    sdp_lut.lookup_floats(np.array(bits[1:], np.uint32), entries[:65], table, entries, table, choice, out, counts)
    words = entries.view(np.uint16).tolist()
    position = distance / 2.0**select
    if distance <= 0:
        assert counts.tolist() == [1, 0, 0, 0, 0]
        assert out[0] == floats.fp17_to_fp32(floats.fp_add(floats.fp16_to_fp17(words[0]), 0, FP17))
    else:
        fraction = int((position - int(position)) * (1 << 35))
        assert out[0] == hit(words[int(position)], words[int(position) + 1], fraction)
