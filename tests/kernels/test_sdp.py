"""SDP's integer kernels against the specification: random settings, corner values, every kind of operand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.emulator.hardware.sdp.settings import Operands
from nvdla.kernels import sdp
from nvdla.kernels.reference import sdp as reference
from nvdla.kernels.sdp_float import integers_to_fp16

CORNERS = [0, 1, -1, 2, -2, 127, -128, 255, 32767, -32768, 65535, 65536, -65537, (1 << 31) - 1, -(1 << 31)]
shifts = st.one_of(st.integers(0, 24), st.integers(0, 63))
int16 = st.one_of(st.sampled_from([0, 1, -1, 32767, -32768]), st.integers(-32768, 32767))
int32 = st.one_of(st.sampled_from(CORNERS), st.integers(-(1 << 31), (1 << 31) - 1))
# (surfaces, pixels) of an operand: register, per channel, per element
FORMS = [(1, 1), (2, 1), (2, 3)]
SHAPE = (4, 3, 8)  # two batches of two surfaces


def numbers(rng: np.random.Generator, shape: tuple, bits: int) -> np.ndarray:
    """Random numbers of random magnitude, and corner values among them."""
    values = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), shape) >> rng.integers(0, bits, shape)
    corners = np.array([x for x in CORNERS if -(1 << (bits - 1)) <= x < 1 << (bits - 1)])
    chosen = rng.random(shape) < 0.2
    return np.where(chosen, rng.choice(corners, shape), values).astype({16: np.int16, 32: np.int32}[bits])


def full(operand: np.ndarray) -> np.ndarray:
    """An operand spread over the whole cube, batches included."""
    spread = np.broadcast_to(operand, (2 if operand.shape[0] > 1 else 1, SHAPE[1], SHAPE[2]))
    return np.concatenate([spread] * (SHAPE[0] // spread.shape[0]))


@st.composite
def x_settings(draw) -> dict:
    return {
        "active": draw(st.booleans()),
        "alu": draw(st.booleans()),
        "algorithm": draw(st.sampled_from([sdp.MAX, sdp.MIN, sdp.SUM])),
        "alu_shift": draw(st.sampled_from([0, 0, 1, 7, 15, 31, 63])),
        "mul": draw(st.booleans()),
        "prelu": draw(st.booleans()),
        "shift": draw(st.one_of(st.just(0), shifts)),
        "relu": draw(st.booleans()),
        "alu_form": draw(st.sampled_from(FORMS)),
        "mul_form": draw(st.sampled_from(FORMS)),
    }


def stage(s: dict) -> sdp.StageValues:
    if not s["active"]:
        return sdp.BYPASS
    multiply = (sdp.PRELU if s["prelu"] else sdp.MUL) if s["mul"] else sdp.NO_MUL
    algorithm = s["algorithm"] if s["alu"] else sdp.NO_ALU
    return sdp.StageValues(1, algorithm, 2.0 ** s["alu_shift"], multiply, 2.0 ** -s["shift"], int(s["relu"]))


def x_expected(data: np.ndarray, s: dict, alu: np.ndarray, mul: np.ndarray) -> list:
    if not s["active"]:
        return data
    rows = zip(data, full(alu).ravel().tolist(), full(mul).ravel().tolist(), strict=True)
    return [
        reference.x_block(
            x, a if s["alu"] else None, s["algorithm"], s["alu_shift"],
            m if s["mul"] else None, s["prelu"], s["shift"], s["relu"],
        )
        for x, a, m in rows
    ]  # fmt: skip


@settings(max_examples=150)
@given(x_settings(), x_settings(), int32, int16, shifts, st.sampled_from([8, 16]), st.integers(0, 1 << 32))
def test_x1_x2_and_the_output_converter_equal_single_numbers(s1, s2, offset, scale, shift, bits, seed):
    rng = np.random.default_rng(seed)
    source = numbers(rng, SHAPE, 32)
    operands = [numbers(rng, (*form, SHAPE[2]), 16) for s in (s1, s2) for form in (s["alu_form"], s["mul_form"])]
    out = np.empty(SHAPE, {8: np.int8, 16: np.int16}[bits])
    high = float((1 << (bits - 1)) - 1)
    converter = sdp.Converter(float(offset), scale * 2.0**-shift, -high - 1, high)
    count = sdp.x_and_convert(source, *operands[:2], stage(s1), *operands[2:], stage(s2), converter, out)
    data = x_expected(source.ravel().tolist(), s1, *operands[:2])
    data = x_expected(data, s2, *operands[2:])
    assert out.ravel().tolist() == [reference.convert_output(x, offset, scale, shift, f"int{bits}") for x in data]
    assert count == sum(reference.is_saturated(x, offset, scale, shift) for x in data)


@st.composite
def memory_operands(draw) -> dict:
    """Operands of one block in memory: bytes or words, of ALU and MUL alternately or of one of them."""
    return {"size": draw(st.sampled_from([1, 2])), "both": draw(st.booleans()), "form": draw(st.sampled_from(FORMS))}


@settings(max_examples=150)
@given(
    x_settings(), x_settings(), memory_operands(), memory_operands(), int32, int16, shifts, st.integers(0, 1 << 32),
    st.sampled_from([3, 700]),
)  # fmt: skip
def test_a_recorded_call_reads_int8_and_all_kinds_of_operands(s1, s2, m1, m2, offset, scale, shift, seed, width):
    rng = np.random.default_rng(seed)
    surfaces, gap = 2, 64
    memory = rng.integers(-128, 128, (2, surfaces, width * 8 + gap)).astype(np.int8).view(np.uint8)
    source, out = (cube[:, : width * 8].reshape(surfaces, 1, width, 8) for cube in memory)
    blocks, expected_operands, kept = [], [], []
    for form in (m1, m2):
        rows, pixels = form["form"][0], width if form["form"][1] > 1 else 1
        length = 8 * form["size"] * (2 if form["both"] else 1)
        view = rng.integers(0, 256, (rows, 1, pixels, length)).astype(np.uint8)
        operands = Operands(view, form["size"], form["both"])
        blocks += [operands.placed(is_second=False), operands.placed(is_second=True)]
        expected_operands += [operand.copy() for operand in operands.read()]
        kept.append(view)
    converter = sdp.Converter(float(offset), scale * 2.0**-shift, -128.0, 127.0)
    expected = np.empty((surfaces, width, 8), np.int8)
    cube = np.ascontiguousarray(source).view(np.int8).reshape(surfaces, width, 8).astype(np.int32)
    first, second = stage(s1), stage(s2)
    sdp.x_and_convert(cube, *expected_operands[:2], first, *expected_operands[2:], second, converter, expected)
    outside = memory[1, :, width * 8 :].copy()
    sdp.x_call(source, blocks, (first, second), converter, out, kept).run()
    np.testing.assert_array_equal(out.view(np.int8).reshape(expected.shape), expected)
    np.testing.assert_array_equal(memory[1, :, width * 8 :], outside)


@given(st.booleans(), int32, int16, shifts, st.integers(0, 1 << 32), st.sampled_from([8, 16, 32]))
def test_the_one_loop_path_equals_the_general_one(relu, offset, scale, shift, seed, atom):
    rng = np.random.default_rng(seed)
    source = numbers(rng, (3, 131, atom), 32)
    bias = numbers(rng, (3, 1, atom), 16)
    first = sdp.StageValues(1, sdp.SUM, 1.0, sdp.NO_MUL, 1.0, int(relu))
    converter = sdp.Converter(float(offset), scale * 2.0**-shift, -128.0, 127.0)
    fast, general = np.empty(source.shape, np.int8), np.empty(source.shape, np.int8)
    idle = sdp.StageValues(1, sdp.NO_ALU, 1.0, sdp.NO_MUL, 1.0, 0)
    fast_count = sdp.x_and_convert(source, bias, bias, first, bias, bias, sdp.BYPASS, converter, fast)
    assert fast_count == sdp.x_and_convert(source, bias, bias, first, bias, bias, idle, converter, general)
    np.testing.assert_array_equal(fast, general)


def test_32_bit_values_pass_the_raw_converter_unchanged():
    source = np.array(CORNERS[:8] + CORNERS[-8:], np.int32).reshape(1, 2, 8)
    out = np.empty_like(source)
    operand = np.zeros((1, 1, 8), np.int16)
    sdp.x_and_convert(source, operand, operand, sdp.BYPASS, operand, operand, sdp.BYPASS, sdp.RAW, out)
    np.testing.assert_array_equal(out, source)


@settings(max_examples=150)
@given(
    st.booleans(), st.booleans(), st.one_of(st.integers(0, 70), st.integers(0, 1023)), st.booleans(),
    st.integers(0, 3), st.sampled_from(FORMS), st.sampled_from(FORMS), st.integers(0, 1 << 32),
)  # fmt: skip
def test_y_multiplies_truncates_then_adds(mul, prelu, truncate, alu, algorithm, mul_form, alu_form, seed):
    rng = np.random.default_rng(seed)
    source = numbers(rng, SHAPE, 32)
    factors, addends = numbers(rng, (*mul_form, 8), 32), numbers(rng, (*alu_form, 8), 32)
    multiply = (sdp.PRELU if prelu else sdp.MUL) if mul else sdp.NO_MUL
    out = np.empty_like(source)
    sdp.y_core(source, factors, addends, sdp.Core(multiply, truncate, algorithm if alu else sdp.NO_ALU), out)
    expected = [
        reference.y_core(x, m if mul else None, prelu, truncate, a if alu else None, algorithm)
        for x, m, a in zip(
            source.ravel().tolist(), full(factors).ravel().tolist(), full(addends).ravel().tolist(), strict=True
        )
    ]
    assert out.ravel().tolist() == expected


@given(int32, int16, st.integers(0, 63), st.integers(0, 1 << 32))
def test_y_operands_from_memory_are_converted_to_32_bits(offset, scale, truncate, seed):
    operand = numbers(np.random.default_rng(seed), (2, 3, 8), 16)
    found = sdp.convert_operand(operand, offset, scale, truncate)
    expected = [reference.convert_operand(x, offset, scale, truncate) for x in operand.ravel().tolist()]
    assert found.ravel().tolist() == expected


@pytest.mark.parametrize(
    "x, bits", [(65519, 0x7BFF), (65520, 0x7BFF), (2049, 0x6800), (2051, 0x6802), (-65536, 0xFBFF)]
)
def test_17_bit_integers_become_fp16(x, bits):
    out = np.empty((1, 1, 1), np.uint16)
    largest = integers_to_fp16(np.full((1, 1, 1), x, np.int32), out)
    assert out[0, 0, 0] == bits
    assert largest == (bits & 0x7FFF == 0x7BFF)


@given(st.lists(st.integers(-65536, 65535), min_size=1, max_size=40))
def test_integers_become_fp16_as_specified(values):
    out = np.empty((1, 1, len(values)), np.uint16)
    integers_to_fp16(np.array(values, np.int32).reshape(out.shape), out)
    assert out.ravel().tolist() == [reference.convert_output(x, 0, 1, 0, "fp16") for x in values]
