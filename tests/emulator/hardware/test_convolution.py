"""Integer convolution through the registers: layouts, padding, strides, batches, re-use, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.convolution_bench import load, random_data
from support.convolution_layers import (
    DATA,
    WEIGHTS,
    Bench,
    random_layer,
    store_cube,
    window_element,
)

from nvdla.emulator.hardware.convolution import arithmetic as convolution_arithmetic
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ConfigError, LinkError, ScheduleError


def expected(cube, weights, layer):
    """The definition: every product of every output in plain Python integers."""
    width, height, kernels = layer["output"]
    _, rows, columns, channels = weights.shape
    pad = int(np.array(layer["pad_value"]).astype(cube.dtype))
    result = np.zeros((height, width, kernels), object)
    for y in range(height):
        for x in range(width):
            for r in range(rows):
                for c in range(columns):
                    row = [window_element(cube, layer, (y, x, r, c), pad, i) for i in range(channels)]
                    for k in range(kernels):
                        result[y, x, k] += sum(d * int(w) for d, w in zip(row, weights[k, r, c], strict=True))
    return result


def as_cube(accumulators, kernels):
    """(surfaces, height, width, atom) as (height, width, kernels); what lies beyond the kernels must be zero."""
    surfaces, height, width, atom = accumulators.shape
    cube = accumulators.transpose(1, 2, 0, 3).reshape(height, width, surfaces * atom)
    assert not cube[..., kernels:].any()
    return cube[..., :kernels]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([("nv_small", 0), ("nv_small_256", 0), ("nv_large", 0), ("nv_full", 0), ("nv_full", 1)]),
    st.integers(0, 2**20),
)
def test_direct_convolution_is_the_definition(kind, seed):
    name, precision = kind
    bench = Bench(name)
    layer = random_layer(seed, precision, bench.config.memory_atom)
    if layer["data"][2] * layer["output"][2] > 1200:
        layer["output"] = (*layer["output"][:2], 3)
    cube, weights = random_data(layer, seed)
    load(bench, layer, cube, weights)
    (result,) = bench.run()
    exact = np.clip(expected(cube, weights, layer), -(2**31), 2**31 - 1)
    assert result.dtype == np.int32
    assert result.shape[3] == bench.config.memory_atom // weights.itemsize
    assert (as_cube(result, layer["output"][2]) == exact).all()


def small(name="nv_small", **changes):
    """A bench with one small layer loaded."""
    bench = Bench(name)
    atom = bench.config.memory_atom
    layer = {
        "precision": 0, "data": (5, 4, 8), "kernel": (3, 3, 8), "output": (3, 2, 4), "stride": (1, 1),
        "dilation": (1, 1), "padding": (0, 0), "pad_value": 0, "line_stride": 5 * atom, "surface_stride": 20 * atom,
        "surfaces": 1, **changes,
    }  # fmt: skip
    cube, weights = random_data(layer, 1)
    load(bench, layer, cube, weights)
    return bench, layer, cube, weights


def test_batches_are_fetched_a_stride_apart():
    bench, layer, cube, weights = small("nv_full", batches=3, batch_stride=0x1000)
    cubes = [cube, cube[::-1], -cube]
    for number, each in enumerate(cubes):
        store_cube(bench, each, layer, DATA + number * 0x1000)
    result = bench.run()
    assert result.shape[0] == 3
    for number, each in enumerate(cubes):
        assert (as_cube(result[number], 4) == expected(each, weights, layer)).all()


def test_feature_data_have_no_mean():
    """The converter takes CVT_OFFSET also where MEAN_FORMAT is on (cmod/cdma/NV_NVDLA_cdma.cpp:1450)."""
    bench, layer, cube, weights = small("nv_full")
    bench.write(CDMA__D_CVT_CFG=1, CDMA__D_CVT_OFFSET=3, CDMA__D_CVT_SCALE=1, CDMA__D_MEAN_FORMAT=1)
    bench.write(CDMA__D_MEAN_GLOBAL_0=40)
    moved = np.clip(cube.astype(int) - 3, -128, 127).astype(np.int8)
    assert (as_cube(bench.run()[0], 4) == expected(moved, weights, layer)).all()


def test_truncation_rounds_half_away_and_counts_saturation():
    bench, layer, cube, weights = small(truncate=5)
    job = bench.job()
    (result,) = job.run(None)
    exact = expected(cube, weights, layer)
    rounded = [(abs(int(v)) + 16 >> 5) * (1 if v >= 0 else -1) for v in exact.reshape(-1)]
    assert as_cube(result, 4).reshape(-1).tolist() == rounded
    assert job.statistics["saturated"] == 0


def test_a_job_reads_memory_again_at_each_run():
    bench, layer, cube, weights = small()
    job = bench.job()
    job.run(None)
    store_cube(bench, cube[::-1].copy(), layer)
    bench.memory.view(Space.DRAM, WEIGHTS, 1)[:] ^= 1
    weights.reshape(-1)[0] ^= 1
    assert (as_cube(job.run(None)[0], 4) == expected(cube[::-1], weights, layer)).all()


def test_a_run_changes_nothing_of_a_job_but_its_statistics():
    bench, *_ = small()
    job = bench.job()
    before = dict(vars(job))
    job.run(None)
    bench.engine.close()
    job.run(None)
    assert vars(job).keys() == before.keys() and all(vars(job)[name] is before[name] for name in before)


def test_accounting_leaves_the_prepared_job_as_it_is():
    bench, *_ = small()
    bench.write(CDMA__D_MISC_CFG__SKIP_DATA_RLS=1, CSC__D_MISC_CFG__SKIP_DATA_RLS=1)
    bench.run()
    bench.write(CDMA__D_MISC_CFG__DATA_REUSE=1, CSC__D_MISC_CFG__DATA_REUSE=1)
    job = bench.engine.prepare(bench.groups())
    before = dict(vars(job))
    assert not job.accounted().data.fetches
    assert vars(job) == before and job.data.fetches


def test_an_early_fetch_holds_the_data_of_that_moment():
    bench, layer, cube, weights = small()
    bench.engine.fetch(bench.groups())
    bench.memory.view(Space.DRAM, DATA, 64)[:] = 0
    bench.memory.view(Space.DRAM, WEIGHTS, 64)[:] = 0
    assert (as_cube(bench.run()[0], 4) == expected(cube, weights, layer)).all()


def test_the_next_layer_can_use_the_data_again():
    bench, *_ = small()
    bench.write(CDMA__D_MISC_CFG__SKIP_DATA_RLS=1, CSC__D_MISC_CFG__SKIP_DATA_RLS=1)
    first = bench.run()
    bench.memory.view(Space.DRAM, DATA, 64)[:] = 0
    bench.write(CDMA__D_MISC_CFG__SKIP_DATA_RLS=0, CSC__D_MISC_CFG__SKIP_DATA_RLS=0)
    bench.write(CDMA__D_MISC_CFG__DATA_REUSE=1, CSC__D_MISC_CFG__DATA_REUSE=1)
    assert (bench.run() == first).all()
    assert (bench.run() != first).any()  # released: fetched from memory


def test_a_first_layer_finds_nothing_when_a_recorded_run_is_done_again():
    bench, layer, cube, weights = small()
    bench.write(CDMA__D_MISC_CFG__DATA_REUSE=1, CSC__D_MISC_CFG__DATA_REUSE=1)
    bench.write(CDMA__D_MISC_CFG__SKIP_DATA_RLS=1, CSC__D_MISC_CFG__SKIP_DATA_RLS=1)
    job = bench.job()
    job.run(None)
    store_cube(bench, cube[::-1].copy(), layer)
    assert (as_cube(job.run(None)[0], 4) == expected(cube[::-1], weights, layer)).all()


def test_reused_lines_of_another_shape_keep_their_place_in_the_buffer_with_a_warning():
    """Two atoms a column fill two blocks of entries on nv_small; a layer of one atom finds the first block of each
    line, and the second one where the next line should be."""
    bench, layer, cube, weights = small(data=(5, 4, 16), kernel=(3, 3, 16), surfaces=2)
    bench.write(CDMA__D_MISC_CFG__SKIP_DATA_RLS=1, CSC__D_MISC_CFG__SKIP_DATA_RLS=1)
    bench.run()
    bench.write(CDMA__D_MISC_CFG__DATA_REUSE=1, CSC__D_MISC_CFG__DATA_REUSE=1)
    bench.write(CDMA__D_DATAIN_SIZE_1=7, CSC__D_DATAIN_SIZE_EXT_1=7, CDMA__D_WEIGHT_SIZE_0=71)
    bench.write(CSC__D_WEIGHT_SIZE_EXT_1__WEIGHT_CHANNEL_EXT=7, CDMA__D_ENTRY_PER_SLICE=4, CSC__D_ENTRY_PER_SLICE=4)
    narrow = {**layer, "data": (5, 4, 8), "kernel": (3, 3, 8)}
    found = np.concatenate([cube[line, None, :, part : part + 8] for line in (0, 1) for part in (0, 8)])
    kernels = weights.reshape(-1)[: weights.shape[0] * 72].reshape(weights.shape[0], 3, 3, 8)
    load(bench, narrow, cube[:, :, :8], kernels)
    assert (as_cube(bench.run()[0], weights.shape[0]) == expected(found, kernels, narrow)).all()
    assert any("another width, number of channels" in each for each in bench.warnings)


def test_lines_that_were_not_released_come_before_the_fetched_ones():
    bench, layer, cube, weights = small()
    bench.write(CSC__D_RELEASE=1)  # 2 of 4 lines
    bench.run()
    bench.write(CDMA__D_MISC_CFG__DATA_REUSE=1, CSC__D_MISC_CFG__DATA_REUSE=1)
    bench.write(CDMA__D_DATAIN_SIZE_0__DATAIN_HEIGHT=1)  # 2 lines more
    again = np.concatenate((cube[2:], cube[:2]))
    assert (as_cube(bench.run()[0], 4) == expected(again, weights, layer)).all()


def test_the_next_layer_can_use_the_weights_again():
    bench, *_ = small()
    bench.write(CDMA__D_MISC_CFG__SKIP_WEIGHT_RLS=1, CSC__D_MISC_CFG__SKIP_WEIGHT_RLS=1)
    first = bench.run()
    bench.memory.view(Space.DRAM, WEIGHTS, 64)[:] = 0
    bench.write(CDMA__D_MISC_CFG__WEIGHT_REUSE=1, CSC__D_MISC_CFG__WEIGHT_REUSE=1)
    assert (bench.run() == first).all()


@pytest.mark.parametrize(
    ("error", "text", "registers"),
    [
        (ConfigError, "fp16.*nv_full", {"CSC__D_MISC_CFG__PROC_PRECISION": 2, "CDMA__D_MISC_CFG__PROC_PRECISION": 2}),
        (ConfigError, "Winograd.*nv_full", {f"{u}__D_MISC_CFG__CONV_MODE": 1 for u in ("CDMA", "CSC", "CACC")}),
        (ScheduleError, "deadlock: CMAC_B", {"CMAC_B__D_MISC_CFG__PROC_PRECISION": 1}),
        (ScheduleError, "deadlock", {"CDMA__D_WEIGHT_SIZE_0": 10}),
        (ScheduleError, "deadlock", {"CDMA__D_BANK": 3}),
        (ScheduleError, "deadlock", {"CACC__D_DATAOUT_SIZE_0": 0}),
        (ScheduleError, "entries of data", {"CSC__D_DATAIN_SIZE_EXT_0__DATAIN_HEIGHT_EXT": 9}),
        (ScheduleError, "deadlock: D_WEIGHT_BYTES", {"CDMA__D_WEIGHT_BYTES": 128}),
        (ScheduleError, "deadlock: CDMA fetches 5x4x9", {"CDMA__D_DATAIN_SIZE_1": 8}),
        (
            ConfigError,
            r"must use at most 32 banks .nv_small., got 20 \+ 20",
            {f"{u}__D_BANK": 19 | 19 << 16 for u in ("CDMA", "CSC")},
        ),
        (ConfigError, "must be at least 130x4", {"CSC__D_DATAOUT_SIZE_0": 0x1007F, "CACC__D_DATAOUT_SIZE_0": 0x1007F}),
        (ConfigError, "has no int16", {f"{u}__D_MISC_CFG__IN_PRECISION": 1 for u in ("CDMA", "CSC")}),
        (LinkError, "0x80000000", {"CDMA__D_LINE_STRIDE": 0xFFFFFFF8}),
        (LinkError, "weights", {"CDMA__D_WEIGHT_ADDR_LOW": 0x4000}),
    ],
)
def test_settings_that_cannot_run_are_refused(error, text, registers):
    bench, *_ = small()
    bench.write(**registers)
    with pytest.raises(error, match=text):
        bench.run()


def test_what_does_not_fit_the_convolution_buffer_deadlocks():
    bench, *_ = small(data=(5, 4, 4096), kernel=(3, 3, 4096), surfaces=512, output=(3, 2, 1), surface_stride=160)
    bench.write(**{f"{unit}__D_BANK": 15 | 15 << 16 for unit in ("CDMA", "CSC")})
    with pytest.raises(ScheduleError, match="data of 81920 bytes do not fit the 16 banks of 4096 bytes"):
        bench.run()
    bench.write(**{f"{unit}__D_BANK": 23 | 7 << 16 for unit in ("CDMA", "CSC")})
    with pytest.raises(ScheduleError, match="1 kernels of 36864 bytes do not fit the 8 banks"):
        bench.run()
    bench.write(**{f"{unit}__D_BANK": 21 | 9 << 16 for unit in ("CDMA", "CSC")})
    assert bench.run().shape == (1, 1, 2, 3, 8)


@pytest.mark.parametrize(
    ("before", "after", "converter", "text"),
    [(2, 1, 1, "fp16 data"), (1, 2, 0, "converter"), (0, 1, 1, "cannot change their width")],
)
def test_precisions_that_no_converter_can_bridge_are_refused(before, after, converter, text):
    bench, *_ = small("nv_full", precision=1, data=(5, 4, 3), kernel=(3, 3, 3))
    for unit in ("CDMA", "CSC"):
        bench.write(**{f"{unit}__D_MISC_CFG__IN_PRECISION": before})
    for unit in ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC"):
        bench.write(**{f"{unit}__D_MISC_CFG__PROC_PRECISION": after})
    bench.write(CDMA__D_CVT_CFG=converter)
    with pytest.raises(ConfigError, match=text):
        bench.run()


def test_the_plain_matrix_product_serves_processors_without_dot_products(monkeypatch):
    bench, layer, cube, weights = small()
    fast = bench.run()
    monkeypatch.setattr(convolution_arithmetic.DirectDots, "serves", staticmethod(lambda settings: False))
    job = bench.job()
    assert type(job.arithmetic) is convolution_arithmetic.DirectIntegers
    assert (job.run(None) == fast).all()
    assert (as_cube(fast[0], 4) == expected(cube, weights, layer)).all()


def test_counters_are_left_in_the_statistics_registers():
    bench, *_ = small("nv_full", precision=2, data=(5, 4, 3), kernel=(3, 3, 3))
    bench.memory.view(Space.DRAM, DATA, 8).view(np.uint16)[:] = (0x7C01, 0xFC00, 0x7C00, 0x5555)
    bench.memory.view(Space.DRAM, WEIGHTS, 2).view(np.uint16)[:] = 0xFE00
    job = bench.job()
    job.run(None)
    group = bench.registers.units["CDMA"].current
    names = ("D_NAN_INPUT_DATA_NUM", "D_INF_INPUT_DATA_NUM", "D_NAN_INPUT_WEIGHT_NUM", "D_INF_INPUT_WEIGHT_NUM")
    assert [group[name] for name in names] == [1, 2, 1, 0]
    assert job.statistics["nan_data"] == 1
