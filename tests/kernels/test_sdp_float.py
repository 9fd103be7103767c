"""SDP's fp16 kernels against the specification."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.kernels import floats, sdp_float
from nvdla.kernels.reference import sdp as reference
from nvdla.kernels.reference.floats import FP16, FP32, flush_nan, widen

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
    0x7F800123,
    0xFF7FFFFF,
    0xFFC00001,
]


def numbers(rng: np.random.Generator, shape: tuple) -> np.ndarray:
    """fp32 patterns near one, anywhere, and the special ones."""
    near = rng.standard_normal(shape).astype(np.float32).view(np.uint32)
    anywhere = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    kind = rng.random(shape)
    return np.where(kind < 0.5, near, np.where(kind < 0.75, anywhere, rng.choice(np.array(SPECIAL, np.uint32), shape)))


def full(operand: np.ndarray) -> list[int]:
    spread = np.broadcast_to(operand, (operand.shape[0], SHAPE[1], SHAPE[2]))
    return np.concatenate([spread] * (SHAPE[0] // spread.shape[0])).ravel().tolist()


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
        reference.block_fp16(
            x, a if algorithm != sdp_float.NO_ALU else None, algorithm,
            m if multiply != sdp_float.NO_MUL else None, multiply == sdp_float.PRELU, mul_first, relu,
        )
        for x, a, m in zip(source.ravel().tolist(), full(alu), full(mul), strict=True)
    ]  # fmt: skip
    assert out.ravel().tolist() == expected


@given(st.integers(0, 1 << 32))
def test_an_infinity_in_a_register_goes_through_the_scalar_operators(seed):
    source = numbers(np.random.default_rng(seed), SHAPE)
    infinity = np.full((1, 1, 8), 0x7F800000, np.uint32)
    out = np.empty_like(source)
    sdp_float.float_block(source, infinity, sdp_float.SUM, infinity, sdp_float.NO_MUL, False, False, out)
    assert out.ravel().tolist() == [floats.fp_add(x, 0x7F800000, FP32) for x in source.ravel().tolist()]
    sdp_float.float_block(source, infinity, sdp_float.NO_ALU, infinity, sdp_float.MUL, False, False, out)
    assert out.ravel().tolist() == [floats.fp_mul(x, 0x7F800000, FP32) for x in source.ravel().tolist()]


@given(st.booleans(), st.integers(0, 1 << 32))
def test_input_is_widened_and_nan_flushed_on_request(flush, seed):
    source = np.random.default_rng(seed).integers(0, 1 << 16, 64, dtype=np.uint16).view(np.int16)
    source[:4] = np.array([0x7C00, 0x7E00, 0xFC01, 0x8000], np.uint16).view(np.int16)
    out = np.empty(64, np.uint32)
    sdp_float.widen(source, flush, out)
    values = source.view(np.uint16).tolist()
    assert out.tolist() == [widen(flush_nan(x, FP16) if flush else x, FP16, FP32) for x in values]
    wide = numbers(np.random.default_rng(seed), (64,))
    sdp_float.flush_nan(wide, out)
    assert out.tolist() == [flush_nan(x, FP32) for x in wide.tolist()]


@given(st.integers(0, 2), st.integers(0, 1 << 32))
def test_output_goes_through_fp16(mode, seed):
    random = np.random.default_rng(seed)
    near_the_smallest = random.integers(90 << 23, 120 << 23, 32, dtype=np.uint32)
    source = np.concatenate([numbers(random, (32,)), near_the_smallest])
    out = np.empty(64, (np.int8, np.int16, np.uint16)[mode])
    counts = np.zeros(2, np.int64)
    sdp_float.narrow(source, mode, out, counts)
    expected = [reference.output_fp16(x, ("int8", "int16", "fp16")[mode]) for x in source.tolist()]
    assert out.tolist() == expected
    halves = expected if mode == sdp_float.TO_FP16 else []
    assert counts.tolist() == [sum(x & 0x7FFF == 0x7BFF for x in halves), sum(x & 0x7FFF > 0x7C00 for x in halves)]
