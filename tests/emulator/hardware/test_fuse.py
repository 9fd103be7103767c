"""A convolution and its SDP as one job: it writes what the two write one after the other, or there is none."""

from __future__ import annotations

import numpy as np
import pytest
import support.convolution_layers as layers
import support.sdp_bench as sdp_bench
from hypothesis import given, settings
from hypothesis import strategies as st
from support.convolution_bench import load, random_data
from support.convolution_layers import WEIGHTS
from support.image_bench import image_bench

from nvdla.emulator.execution import fusing
from nvdla.emulator.execution.fused_convolution import Shared
from nvdla.emulator.execution.fusing import _fuse
from nvdla.emulator.memory.address_space import Space
from nvdla.kernels.fast.dot_tile import available

pytestmark = pytest.mark.skipif(not available(), reason="this processor has no instructions for it: nothing is fused")

BYPASS, ALU_BYPASS, MUL_BYPASS, PRELU, RELU_BYPASS = 1, 1 << 1, 1 << 4, 1 << 5, 1 << 6
SUM = 2 << 2
BIAS = SUM | MUL_BYPASS
CHANNELS_OF_ALU = 1 << 1 | 1 << 5  # read DMA: one operand a channel, for the ALU, one byte, DRAM
PER_ELEMENT = 1 << 4
SUMMAND = {"D_NRDMA_CFG": CHANNELS_OF_ALU | PER_ELEMENT}
FACTORS = 1 << 5 | PER_ELEMENT
USUAL = {"D_DP_BS_CFG": BIAS, "D_DP_BS_ALU_CFG": 0, "D_DP_BS_ALU_SRC_VALUE": 9, "D_CVT_SCALE": 20, "D_CVT_SHIFT": 15}


def pair(seed: int, registers: dict[str, int], layer: dict[str, int], rdma: dict[str, int], gaps=(0, 0)):
    """The jobs of a small random convolution and of an SDP behind it with ``registers``; and the SDP's bench."""
    drawn = {**layers.random_layer(seed, 0, 8), **layer}
    bench = layers.Bench("nv_small")
    load(bench, drawn, *random_data(drawn, seed))
    conv = bench.job()
    width, height, kernels = drawn["output"]
    behind = sdp_bench.Bench("nv_small", width, height, kernels)
    operands = np.random.default_rng(seed).integers(-128, 128, 8192).astype(np.int8)
    behind.store(sdp_bench.OPERANDS, operands)
    gaps = (0, 0) if width == height == 1 else gaps  # the SDP packs such a cube
    line = (width + gaps[0]) * 8
    values = {"D_DST_LINE_STRIDE": line, "D_DST_SURFACE_STRIDE": max(line * height + gaps[1] * 8, 8)}
    behind.write("SDP", **{**values, "D_FEATURE_MODE_CFG": 1, **registers})
    addresses = {"D_BS_BASE_ADDR_LOW": sdp_bench.OPERANDS, "D_BN_BASE_ADDR_LOW": sdp_bench.OPERANDS + 64}
    strides = {"D_BS_LINE_STRIDE": width * 8, "D_BS_SURFACE_STRIDE": width * height * 8}
    strides |= {"D_BN_LINE_STRIDE": width * 8, "D_BN_SURFACE_STRIDE": width * height * 8}
    behind.write("SDP_RDMA", D_FEATURE_MODE_CFG=1, **{**addresses, **strides, **rdma})
    behind.start()
    groups = {unit: behind.machine.unit(unit).current for unit in ("SDP", "SDP_RDMA")}
    sdp = behind.machine.engine("sdp").prepare(groups)
    sdp.run(conv.run())  # as through the firmware: only what has run may be fused
    return conv, sdp, behind


def fuse(conv, sdp, shared):
    parts = _fuse(conv, sdp, shared)
    while True:
        try:
            next(parts)
        except StopIteration as done:
            return done.value


def written(bench, run) -> np.ndarray:
    memory = bench.memory.view(Space.DRAM, sdp_bench.OUTPUT, 1 << 14)
    memory[:] = 0x55
    handed = run()
    return memory.copy() if handed is None else handed.reshape(-1).copy()


def assert_equal(conv, sdp, bench, fused) -> np.ndarray:
    alone = written(bench, lambda: sdp.run(conv.run()))
    for _ in range(2):  # nothing stays in the scratch memory
        assert np.array_equal(written(bench, fused.run), alone)
    return alone


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_whatever_is_fused_writes_what_the_two_jobs_write(data):
    draw = data.draw
    often = lambda usual, other: draw(st.one_of(st.just(usual), st.just(usual), other))  # noqa: E731
    from_memory = draw(st.booleans())
    registers = {
        "D_DP_BS_CFG": often(BIAS, st.one_of(st.sampled_from([BYPASS, SUM, SUM | RELU_BYPASS]), st.integers(0, 127))),
        "D_DP_BS_ALU_CFG": int(from_memory) | often(0, st.integers(0, 63)) << 8,
        "D_DP_BS_ALU_SRC_VALUE": draw(st.integers(0, 0xFFFF)),
        "D_DP_BS_MUL_CFG": often(0, st.integers(0, 255)) << 8,
        "D_DP_BS_MUL_SRC_VALUE": draw(st.integers(0, 0xFFFF)),
        "D_CVT_OFFSET": often(0, st.integers(0, 0xFFFFFFFF)),
        "D_CVT_SCALE": draw(st.integers(0, 0xFFFF)),
        "D_CVT_SHIFT": draw(st.integers(0, 63)),
        "D_FEATURE_MODE_CFG": often(1, st.just(3)),
    }
    summed = draw(st.booleans())
    if summed:
        registers["D_DP_BN_CFG"] = often(BIAS, st.sampled_from([SUM | RELU_BYPASS | MUL_BYPASS, MUL_BYPASS, SUM]))
        registers["D_DP_BN_ALU_CFG"] = 1 | draw(st.integers(0, 26)) << 8
    flags = registers["D_DP_BS_CFG"]
    takes = from_memory and not flags & (BYPASS | ALU_BYPASS)
    rdma = {"D_BRDMA_CFG": CHANNELS_OF_ALU | often(0, st.just(PER_ELEMENT)) if takes else 1}
    rdma |= SUMMAND if summed else {}
    layer = {"truncate": often(0, st.integers(0, 31))}
    gaps = (often(0, st.integers(0, 3)), often(0, st.integers(-6, 3)))
    conv, sdp, bench = pair(draw(st.integers(0, 1 << 16)), registers, layer, rdma, gaps)
    fused = fuse(conv, sdp, Shared())
    if fused is not None:
        assert_equal(conv, sdp, bench, fused)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("to_pdp", [False, True])
def test_the_usual_pairs_are_fused(seed, to_pdp):
    conv, sdp, bench = pair(seed, {**USUAL, "D_FEATURE_MODE_CFG": 3 if to_pdp else 1}, {}, {})
    fused = fuse(conv, sdp, Shared())
    assert fused is not None
    assert fused.parts == (conv, sdp)
    assert len(np.unique(assert_equal(conv, sdp, bench, fused))) > 1


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kernels", [64, 130, 150])
def test_large_weights_are_packed_a_block_of_kernels_at_a_time(seed, kernels, monkeypatch):
    """Packing all at once takes longer than a small network's image, which waits for it."""
    monkeypatch.setattr(fusing, "PACKED_AT_ONCE", 1)
    width, height, _ = layers.random_layer(seed, 0, 8)["output"]
    conv, sdp, bench = pair(seed, USUAL, {"output": (width, height, kernels)}, {})
    assert len([*_fuse(conv, sdp, Shared())]) == 2 + -(-kernels // 64)
    assert_equal(conv, sdp, bench, fuse(conv, sdp, Shared()))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("to_pdp", [False, True])
@pytest.mark.parametrize("relu", [0, RELU_BYPASS])
def test_sums_with_a_cube_in_memory_are_fused(seed, to_pdp, relu):
    """X1 multiplies each channel, X2 adds the other summand: what the builder makes of a residual sum."""
    second = {"D_DP_BN_CFG": BIAS | relu, "D_DP_BN_ALU_CFG": 1 | 9 << 8, "D_FEATURE_MODE_CFG": 3 if to_pdp else 1}
    first = {"D_DP_BS_CFG": SUM | RELU_BYPASS, "D_DP_BS_MUL_CFG": 4 << 8, "D_DP_BS_MUL_SRC_VALUE": 300}
    conv, sdp, bench = pair(seed, {**USUAL, **first, **second, "D_CVT_SHIFT": 17}, {}, SUMMAND)
    fused = fuse(conv, sdp, Shared())
    assert fused is not None
    before = assert_equal(conv, sdp, bench, fused)
    assert len(np.unique(before)) > 1
    operands = bench.memory.view(Space.DRAM, sdp_bench.OPERANDS, 8192)
    operands[:] = ~operands  # the summand is read at each run
    assert not np.array_equal(assert_equal(conv, sdp, bench, fused), before)


@pytest.mark.parametrize(
    ("registers", "layer", "rdma", "gaps"),
    [
        ({}, {"truncate": 3}, {}, (0, 0)),  # the accumulators are shifted before the SDP sees them
        ({}, {}, {}, (2, 0)),  # lines with gaps between them
        ({"D_DST_SURFACE_STRIDE": 8}, {"output": (3, 2, 16)}, {}, (0, 0)),  # surfaces that overlap
        ({"D_DP_BS_CFG": MUL_BYPASS}, {}, {}, (0, 0)),  # X1 takes the maximum
        ({"D_DP_BS_CFG": SUM | PRELU}, {}, {}, (0, 0)),
        ({"D_DP_BN_CFG": BIAS}, {}, {}, (0, 0)),  # X2 adds a number from a register
        ({"D_DP_BN_CFG": BIAS, "D_DP_BN_ALU_CFG": 1}, {"output": (3, 2, 8)}, {"D_NRDMA_CFG": CHANNELS_OF_ALU}, (0, 0)),
        ({"D_DP_BN_CFG": BIAS, "D_DP_BN_ALU_CFG": 1 | 25 << 8}, {}, SUMMAND, (0, 0)),  # it may leave 32 bits
        ({"D_DP_BN_CFG": SUM | ALU_BYPASS, "D_DP_BN_MUL_CFG": 1}, {}, {**SUMMAND, "D_NRDMA_CFG": FACTORS}, (0, 0)),
        ({"D_DP_BN_CFG": BIAS, "D_DP_BN_ALU_CFG": 1, "D_DP_BN_MUL_CFG": 3 << 8}, {}, SUMMAND, (0, 0)),  # shifted again
        ({"D_DP_BN_CFG": BIAS, "D_DP_BN_ALU_CFG": 1}, {}, {**SUMMAND, "D_BN_BASE_ADDR_LOW": sdp_bench.OUTPUT}, (0, 0)),
        ({"D_DP_EW_CFG": BIAS | 1 << 6}, {}, {}, (0, 0)),  # Y is
        ({"D_CVT_SHIFT": 61}, {}, {}, (0, 0)),
        ({"D_DP_BS_ALU_CFG": 1}, {"output": (3, 2, 8)}, {"D_BRDMA_CFG": CHANNELS_OF_ALU | PER_ELEMENT}, (0, 0)),
        ({"D_DP_BS_ALU_SRC_VALUE": 0x7FFF, "D_DP_BS_ALU_CFG": 20 << 8}, {}, {}, (0, 0)),  # the sum leaves 32 bits
    ],
)
def test_what_must_not_be_fused(registers, layer, rdma, gaps):
    seed = 3
    drawn = layers.random_layer(seed, 0, 8)
    if "output" in layer:  # other sizes of the output, from data that are large enough
        drawn = {**drawn, "data": (3, 2, 8), "kernel": (1, 1, 8), "stride": (1, 1), "dilation": (1, 1)}
        drawn |= {"padding": (0, 0), "line_stride": 24, "surface_stride": 48, "surfaces": 1}
    conv, sdp, _ = pair(seed, {**USUAL, **registers}, {**drawn, **layer}, rdma, gaps)
    assert fuse(conv, sdp, Shared()) is None


@pytest.mark.parametrize("name", ["T_A8B8G8R8", "T_Y8___V8U8_N444", "T_A2B10G10R10", "T_A16B16G16R16"])
def test_images_of_every_kind_of_channel_are_fused(name):
    """8-bit channels by a table, wider ones by way of CDMA's own lines."""
    converter = {"CDMA__D_CVT_CFG": 1 | 7 << 4, "CDMA__D_CVT_SCALE": 3}
    image = image_bench(name, (9, 6), 0, **converter)
    weights = image.memory.view(Space.DRAM, WEIGHTS, 64)
    weights[:] = np.random.default_rng(3).integers(0, 256, 64)
    conv = image.job()
    behind = sdp_bench.Bench("nv_full", 9, 6, 1)
    registers = {"D_DST_LINE_STRIDE": 9 * 32, "D_DST_SURFACE_STRIDE": 6 * 9 * 32, "D_FEATURE_MODE_CFG": 1, **USUAL}
    behind.write("SDP", **registers)
    behind.write("SDP_RDMA", D_FEATURE_MODE_CFG=1, D_BRDMA_CFG=1)
    behind.start()
    groups = {unit: behind.machine.unit(unit).current for unit in ("SDP", "SDP_RDMA")}
    sdp = behind.machine.engine("sdp").prepare(groups)
    sdp.run(conv.run())
    fused = fuse(conv, sdp, Shared())
    assert fused is not None
    assert (fused.records() is None) == (name in ("T_A2B10G10R10", "T_A16B16G16R16"))
    assert len(np.unique(assert_equal(conv, sdp, behind, fused))) > 1
