"""SDP through its registers: modes, layouts, status registers, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from support.sdp_bench import EQL, INPUT, OPERANDS, OUTPUT, SUM, Bench, cube

from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ConfigError, LinkError, NvdlaError, ScheduleError


@pytest.mark.parametrize("name", ["nv_small", "nv_small_256", "nv_medium_512", "nv_large", "nv_full"])
def test_bypassed_blocks_pass_the_cube_unchanged_with_its_unused_channels(name):
    bench = Bench(name)
    values = cube(bench)
    np.testing.assert_array_equal(bench.run(), values)


def test_an_unpacked_destination_keeps_its_gaps():
    bench = Bench()
    bench.store(OUTPUT, np.full(4096, 0x55, np.uint8))
    bench.write("SDP", D_DST_LINE_STRIDE=64, D_DST_SURFACE_STRIDE=256)
    values = cube(bench)
    np.testing.assert_array_equal(bench.run(), values)
    memory = bench.memory.view(Space.DRAM, OUTPUT, 512).reshape(2, 4, 64)
    assert (memory[:, :2, 24:] == 0x55).all()
    assert (memory[:, 2:] == 0x55).all()


@pytest.mark.parametrize("operand_bytes", [1, 2])
@pytest.mark.parametrize("per_element", [False, True])
def test_x1_adds_a_bias_from_memory_and_clears_negative_results(operand_bytes, per_element):
    bench = Bench()
    values = cube(bench).astype(np.int64)
    dtype = np.int8 if operand_bytes == 1 else np.int16
    shape = (2, 2, 3, 8) if per_element else (2, 1, 1, 8)
    limit = np.iinfo(dtype).max
    bias = np.random.default_rng(2).integers(-limit, limit, shape).astype(dtype)
    bench.store(OPERANDS, bias)
    bench.write("SDP", D_DP_BS_CFG=SUM << 2 | 1 << 4, D_DP_BS_ALU_CFG=1)
    bench.write("SDP_RDMA", D_BRDMA_CFG=1 << 1 | (operand_bytes - 1) << 3 | per_element << 4 | 1 << 5)
    bench.write("SDP_RDMA", D_BS_BASE_ADDR_LOW=OPERANDS, D_BS_LINE_STRIDE=3 * 8 * operand_bytes)
    bench.write("SDP_RDMA", D_BS_SURFACE_STRIDE=2 * 3 * 8 * operand_bytes)
    np.testing.assert_array_equal(bench.run(), np.clip(values + bias, 0, 127))


def test_alu_and_multiplier_operands_alternate_in_memory():
    bench = Bench()
    values = cube(bench).astype(np.int64)
    operands = np.random.default_rng(3).integers(-50, 50, (2, 1, 1, 8, 2)).astype(np.int16)
    bench.store(OPERANDS, operands)
    bench.write("SDP", D_DP_BN_CFG=SUM << 2 | 1 << 6, D_DP_BN_ALU_CFG=1, D_DP_BN_MUL_CFG=1)
    bench.write("SDP_RDMA", D_NRDMA_CFG=2 << 1 | 1 << 3 | 1 << 5, D_BN_BASE_ADDR_LOW=OPERANDS)
    expected = (values + operands[..., 0]) * operands[..., 1]
    np.testing.assert_array_equal(bench.run(), np.clip(expected, -128, 127))


def test_the_output_converter_subtracts_scales_shifts_and_rounds_half_away_from_zero():
    bench = Bench(channels=8, width=2, height=1)
    bench.store(INPUT, np.array([[5, 7, -5, -7, 127, -128, 1, 0]] * 2, np.int8))
    bench.write("SDP", D_CVT_OFFSET=1, D_CVT_SCALE=3, D_CVT_SHIFT=2)
    assert bench.run().ravel()[:8].tolist() == [3, 5, -5, -6, 95, -97, 0, -1]


def test_the_converter_counts_saturated_results_when_asked():
    bench = Bench(channels=8, width=1, height=1)
    bench.store(INPUT, np.array([1, 2, 3, -2, -3, 127, 0, -128], np.int8))
    bench.write("SDP", D_CVT_SCALE=0x7FFF, D_PERF_ENABLE=1 << 2)
    bench.run()
    assert bench.statistics["saturated"] == 4  # 3, -3, 127, -128 leave 17 bits; +-2 do not
    assert bench.machine.unit("SDP").groups[0].values["D_PERF_OUT_SATURATION"] == 4


def test_int16_data_become_int8_two_surfaces_at_a_time():
    bench = Bench("nv_full", channels=20)
    bench.precision(1, 0, 0)
    values = np.random.default_rng(4).integers(-300, 300, (2, 2, 3, 16)).astype(np.int16)
    bench.store(INPUT, values)
    expected = np.clip(np.concatenate([values[0], values[1]], axis=2), -128, 127)
    np.testing.assert_array_equal(bench.run()[0], expected)


def test_int8_data_become_int16_in_two_surfaces():
    bench = Bench("nv_full", channels=20)
    bench.precision(0, 0, 1)
    values = cube(bench)
    found = bench.run(np.int16)
    np.testing.assert_array_equal(found, np.stack([values[0, ..., :16], values[0, ..., 16:]]))


def test_int16_data_become_fp16():
    bench = Bench("nv_full")
    bench.precision(1, 1, 2)
    values = cube(bench, np.int16)
    np.testing.assert_array_equal(bench.run(np.float16), values.astype(np.float16))


def test_fp16_nan_pass_or_become_zero_and_are_counted():
    for flush in (0, 1):
        bench = Bench("nv_full", width=1, height=1, channels=16)
        bench.precision(2, 2, 2)
        halves = np.array([0x7E01, 0x7C00, 0xFC00, 0x3C00] * 4, np.uint16)
        bench.store(INPUT, halves)
        bench.write("SDP", D_FEATURE_MODE_CFG=flush << 3, D_PERF_ENABLE=1 << 3)
        bench.write("SDP_RDMA", D_PERF_ENABLE=2)
        found = bench.run(np.uint16).ravel()[:4].tolist()
        assert found == [0 if flush else 0x7E01, 0x7BFF, 0xFBFF, 0x3C00]
        rdma, sdp = (bench.machine.unit(unit).groups[0].values for unit in ("SDP_RDMA", "SDP"))
        assert (rdma["D_STATUS_NAN_INPUT_NUM"], rdma["D_STATUS_INF_INPUT_NUM"]) == (4, 8)
        assert sdp["D_STATUS_NAN_OUTPUT_NUM"] == (0 if flush else 4)


@pytest.mark.parametrize("different", [False, True])
def test_compare_mode_writes_nothing_and_reports_in_a_status_bit(different):
    bench = Bench("nv_large", channels=32)
    values = cube(bench)
    values[0, 1, 2, 31] += different
    bench.store(OPERANDS, values)
    bench.write("SDP", D_DP_EW_CFG=EQL << 2 | 1 << 4 | 1 << 6, D_DP_EW_ALU_CFG=3)
    bench.write("SDP_RDMA", D_ERDMA_CFG=1 << 1 | 1 << 4 | 1 << 5, D_EW_BASE_ADDR_LOW=OPERANDS)
    bench.write("SDP_RDMA", D_EW_LINE_STRIDE=96, D_EW_SURFACE_STRIDE=192)
    bench.start()
    stage = bench.machine.step().stages[0]
    assert stage.destination is None
    assert stage.statistics["unequal"] == different
    assert bench.read("SDP", "D_STATUS") == different
    assert not bench.memory.view(Space.DRAM, OUTPUT, 1024).any()


def test_tables_are_filled_through_the_register_port_and_counted():
    bench = Bench("nv_large", channels=32, width=1, height=1)
    bench.write("SDP", S_LUT_ACCESS_CFG=1 << 17 | 1 << 16)
    for entry in range(257):
        bench.write("SDP", S_LUT_ACCESS_DATA=(3 * entry - 300) & 0xFFFF)
    bench.write("SDP", S_LUT_CFG=0x71, S_LUT_LO_START=0xFFFFFF9C, S_LUT_LO_END=100, S_LUT_LE_START=0x7FFFFFFF)
    bench.write("SDP", D_DP_EW_CFG=1 << 1 | 1 << 4, D_PERF_ENABLE=2)
    values = np.arange(-128, 128, 8, dtype=np.int8)
    bench.store(INPUT, values)
    found = bench.run().ravel()
    expected = [3 * (int(x) + 100) - 300 if x > -100 else -300 for x in values]
    assert found.tolist() == np.clip(expected, -128, 127).tolist()
    registers = bench.machine.unit("SDP").groups[0].values
    assert registers["D_PERF_LUT_LO_HIT"] == sum(x > -100 for x in values)
    assert registers["D_PERF_LUT_UFLOW"] == sum(x <= -100 for x in values)


def test_a_prepared_job_runs_again_on_new_data():
    bench = Bench()
    cube(bench, seed=5)
    bench.start()
    machine = bench.machine
    job = machine.engine("sdp").prepare({name: machine.unit(name).current for name in ("SDP", "SDP_RDMA")})
    for seed in (6, 7):
        values = cube(bench, seed=seed)
        job.run(None)
        np.testing.assert_array_equal(job.destination.view(np.int8), values)


def test_a_batch_writes_every_image_with_shared_operands():
    bench = Bench("nv_full", channels=32, width=2, height=2)
    bench.write("SDP", D_FEATURE_MODE_CFG=1 | 2 << 8, D_DST_BATCH_STRIDE=512)
    bench.write("SDP", D_DP_BS_CFG=SUM << 2 | 1 << 4 | 1 << 6, D_DP_BS_ALU_CFG=1)
    bench.write("SDP_RDMA", D_FEATURE_MODE_CFG=1, D_BRDMA_CFG=1 << 1 | 1 << 5, D_BS_BASE_ADDR_LOW=OPERANDS)
    bias = np.arange(32, dtype=np.int8)
    bench.store(OPERANDS, bias)
    accumulators = np.random.default_rng(8).integers(-90, 90, (3, 1, 2, 2, 32)).astype(np.int32)
    machine = bench.machine
    bench.start()
    job = machine.engine("sdp").prepare({name: machine.unit(name).current for name in ("SDP", "SDP_RDMA")})
    job.run(accumulators)
    for image, view in zip(accumulators, job.destinations, strict=True):
        np.testing.assert_array_equal(view.view(np.int8), np.clip(image + bias, -128, 127))


def refused(bench: Bench, error: type[NvdlaError], text: str) -> None:
    bench.start()
    with pytest.raises(error, match=text):
        bench.machine.step()


def test_operands_from_a_disabled_read_dma_are_a_deadlock():
    bench = Bench()
    bench.write("SDP", D_DP_BS_CFG=SUM << 2 | 1 << 4, D_DP_BS_ALU_CFG=1)
    refused(bench, ScheduleError, "deadlock.*BRDMA is not enabled")


def test_operands_for_the_wrong_unit_are_a_deadlock():
    bench = Bench()
    bench.write("SDP", D_DP_BS_CFG=SUM << 2 | 1 << 4, D_DP_BS_ALU_CFG=1)
    bench.write("SDP_RDMA", D_BRDMA_CFG=1 << 5)
    refused(bench, ScheduleError, "ALU of BS takes operands from memory, but BRDMA DATA_USE is 0")


def test_a_read_dma_with_another_cube_hangs():
    bench = Bench()
    bench.write("SDP_RDMA", D_DATA_CUBE_WIDTH=9)
    refused(bench, ScheduleError, "10x2x10, SDP processes 3x2x10")


def test_input_from_memory_needs_the_read_dma():
    bench = Bench()
    bench.write("SDP", D_OP_ENABLE=1)
    with pytest.raises(ScheduleError, match="SDP_RDMA does not read it"):
        bench.machine.step()


@pytest.mark.parametrize("processing", [1, 2])
def test_precisions_that_are_not_built_are_refused(processing):
    bench = Bench("nv_large")
    bench.precision(0, processing, 0)
    refused(bench, ConfigError, "nv_large has no .*; configurations with it: nv_full")


def test_the_reserved_precision_is_refused():
    bench = Bench("nv_full")
    bench.precision(0, 3, 0)
    refused(bench, ConfigError, r"must be .*, got 3")


def test_batch_and_winograd_are_refused_where_they_are_not_built():
    bench = Bench()
    bench.write("SDP", D_FEATURE_MODE_CFG=1 << 8)
    refused(bench, ConfigError, "nv_small has no hardware batches")
    bench = Bench()
    bench.write("SDP", D_FEATURE_MODE_CFG=1 << 2)
    refused(bench, ConfigError, "nv_small has no Winograd mode")


def test_one_byte_operands_of_16_bit_data_are_refused_for_x2():
    bench = Bench("nv_full")
    bench.precision(1, 1, 1)
    bench.write("SDP", D_DP_BN_CFG=SUM << 2 | 1 << 4, D_DP_BN_ALU_CFG=1)
    bench.write("SDP_RDMA", D_NRDMA_CFG=1 << 1 | 1 << 5)
    refused(bench, ConfigError, "NRDMA DATA_SIZE must be two bytes")


def test_a_cube_outside_memory_is_refused():
    bench = Bench()
    bench.write("SDP_RDMA", D_SRC_SURFACE_STRIDE=1 << 20)
    refused(bench, LinkError, "SDP source")


def test_zero_strides_do_not_make_a_huge_cube():
    bench = Bench("nv_full", width=8, height=8192, channels=8192)
    bench.write("SDP_RDMA", D_SRC_LINE_STRIDE=0, D_SRC_SURFACE_STRIDE=0)
    refused(bench, LinkError, "makes it overlap itself")


def test_cvsram_is_refused_where_there_is_none():
    bench = Bench()
    bench.write("SDP", D_DST_DMA_CFG=0)
    refused(bench, ConfigError, "no CVSRAM")
