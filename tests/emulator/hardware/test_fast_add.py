"""Operations on int8 cubes in memory: recorded calls and fast jobs of weighted sums write what the SDP writes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sdp_bench import OPERANDS, OUTPUT, SUM, Bench, cube

from nvdla.emulator.execution.fusing import fast_add
from nvdla.emulator.memory.address_space import Space

BYPASS, ALU_BYPASS, MUL_BYPASS, PRELU, RELU_BYPASS = 1, 1 << 1, 1 << 4, 1 << 5, 1 << 6
CUBE = 1 << 1 | 1 << 4 | 1 << 5  # read DMA: for the ALU, an operand an element, DRAM
ADD = SUM << 2 | MUL_BYPASS
MULTIPLY = ALU_BYPASS | RELU_BYPASS


def prepared(**registers):
    """The job of an SDP operation on two cubes of int8 with ``registers`` of the SDP; and the bench."""
    bench = Bench(width=13, height=9, channels=20)
    cube(bench, seed=1)
    bench.store(OPERANDS, np.random.default_rng(2).integers(-128, 128, (3, 9, 13, 8)).astype(np.int8))
    bench.write("SDP", **registers)
    for block, name in (("BS", "BRDMA"), ("BN", "NRDMA")):
        takes = (
            not registers.get(f"D_DP_{block}_CFG", 1) & (BYPASS | ALU_BYPASS) and registers[f"D_DP_{block}_ALU_CFG"] & 1
        )
        bench.write("SDP_RDMA", **{f"D_{name}_CFG": CUBE if takes else 1, f"D_{block}_BASE_ADDR_LOW": OPERANDS})
        bench.write("SDP_RDMA", **{f"D_{block}_LINE_STRIDE": 13 * 8, f"D_{block}_SURFACE_STRIDE": 9 * 13 * 8})
    bench.start()
    machine = bench.machine
    return bench, machine.engine("sdp").prepare({name: machine.unit(name).current for name in ("SDP", "SDP_RDMA")})


def both(bench, job, fast):
    results = []
    for each in (job, fast):
        written = bench.memory.view(Space.DRAM, OUTPUT, 4096)
        written[:] = 0x55
        each.run(None)
        results.append(written.copy())
    return results


class Recorded:
    """A recorded call as a job."""

    def __init__(self, call):
        self.call = call

    def run(self, source):
        self.call.run()


def block(name, draw):
    """Registers of X1 (BS) or X2 (BN): anything, but the useful more often than by chance."""
    flags = st.one_of(st.sampled_from([BYPASS, ADD, ADD | RELU_BYPASS, MULTIPLY]), st.integers(0, 127))
    shift = st.one_of(st.just(0), st.integers(0, 31))
    return {
        f"D_DP_{name}_CFG": draw(flags),
        f"D_DP_{name}_ALU_CFG": draw(st.sampled_from([1, 1, 0])) | draw(shift) << 8,
        f"D_DP_{name}_MUL_CFG": draw(st.one_of(st.just(0), st.integers(0, 63))) << 8,
        f"D_DP_{name}_ALU_SRC_VALUE": draw(st.integers(0, 0xFFFF)),
        f"D_DP_{name}_MUL_SRC_VALUE": draw(st.integers(0, 0xFFFF)),
    }


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_a_fast_job_is_made_for_it_writes_what_the_sdp_writes(data):
    registers = block("BS", data.draw) | block("BN", data.draw)
    registers |= {"D_CVT_OFFSET": data.draw(st.one_of(st.just(0), st.integers(0, 0xFFFFFFFF)))}
    registers |= {"D_CVT_SCALE": data.draw(st.integers(0, 0xFFFF)), "D_CVT_SHIFT": data.draw(st.integers(0, 40))}
    bench, job = prepared(**registers)
    (recorded,) = job.records()[0]
    for fast in (fast_add(job), Recorded(recorded)):
        if fast is not None:
            slow, quick = both(bench, job, fast)
            assert np.array_equal(slow, quick)


@pytest.mark.parametrize(
    ("x1", "x2", "registers"),
    [
        (ADD, BYPASS, {}),
        (ADD | RELU_BYPASS, BYPASS, {"D_CVT_SCALE": 20000, "D_CVT_SHIFT": 15}),
        (MULTIPLY, ADD, {"D_DP_BS_MUL_SRC_VALUE": 9778, "D_DP_BN_ALU_CFG": 1 | 14 << 8, "D_CVT_SHIFT": 14}),
        (BYPASS, ADD, {"D_CVT_OFFSET": 3}),
        (BYPASS, BYPASS, {"D_CVT_SCALE": 30000, "D_CVT_SHIFT": 15}),
        (MULTIPLY & ~RELU_BYPASS, BYPASS, {"D_DP_BS_MUL_SRC_VALUE": -3 & 0xFFFF}),
    ],
)
def test_residual_adds_copies_and_changes_of_scale_have_a_fast_job(x1, x2, registers):
    values = {"D_DP_BS_CFG": x1, "D_DP_BN_CFG": x2, "D_DP_BS_ALU_CFG": 1, "D_DP_BN_ALU_CFG": 1}
    bench, job = prepared(**(values | registers))
    fast = fast_add(job)
    assert fast is not None
    slow, quick = both(bench, job, fast)
    assert np.array_equal(slow, quick)
    assert len(np.unique(slow)) > 40


@pytest.mark.parametrize(
    ("x1", "x2", "registers"),
    [
        (MULTIPLY & ~RELU_BYPASS, ADD, {}),  # ReLU between the factor and the sum
        (MULTIPLY | PRELU, ADD, {}),
        (MULTIPLY, ADD, {"D_DP_BS_MUL_CFG": 3 << 8}),
        (MULTIPLY, ADD, {"D_DP_BN_ALU_CFG": 1 | 24 << 8}),  # the SDP may saturate the sum
        (ADD, ADD, {}),
        (BYPASS, 1 << 2 | MUL_BYPASS, {}),  # minimum
    ],
)
def test_other_forms_are_left_to_the_sdp(x1, x2, registers):
    values = {"D_DP_BS_CFG": x1, "D_DP_BN_CFG": x2, "D_DP_BS_ALU_CFG": 1, "D_DP_BN_ALU_CFG": 1}
    assert fast_add(prepared(**(values | registers))[1]) is None
