"""Local response normalization through the registers: tables by their port, counters, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from support.engine_bench import SOURCE, TARGET, Bench, from_atoms, to_atoms

from nvdla.emulator.hardware import cdp
from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ConfigError, LinkError, ScheduleError
from nvdla.kernels.fast import cdp_int8


def program(bench, size, precision=0, **more):
    """size: (C, H, W), packed surfaces. Converters are the identity, the LO table has steps of 256."""
    channels, height, width = size
    atom = bench.config.memory_atom
    strides = (width * atom, width * height * atom)
    values = {
        "CDP_RDMA__D_DATA_CUBE_WIDTH": width - 1,
        "CDP_RDMA__D_DATA_CUBE_HEIGHT": height - 1,
        "CDP_RDMA__D_DATA_CUBE_CHANNEL": channels - 1,
        "CDP_RDMA__D_DATA_FORMAT": precision,
        "CDP_RDMA__D_SRC_BASE_ADDR_LOW": SOURCE,
        "CDP_RDMA__D_SRC_LINE_STRIDE": strides[0],
        "CDP_RDMA__D_SRC_SURFACE_STRIDE": strides[1],
        "CDP_RDMA__D_SRC_DMA_CFG": 1,
        "CDP__D_DATA_FORMAT": precision,
        "CDP__D_DST_BASE_ADDR_LOW": TARGET,
        "CDP__D_DST_LINE_STRIDE": strides[0],
        "CDP__D_DST_SURFACE_STRIDE": strides[1],
        "CDP__D_DST_DMA_CFG": 1,
        "CDP__D_DATIN_SCALE": 1,
        "CDP__D_DATOUT_SCALE": 1,
        "CDP__S_LUT_CFG": 1 | 1 << 4 | 1 << 5 | 1 << 6,  # linear LE, every priority to LO
        "CDP__S_LUT_LO_END_LOW": 65536,
        "CDP__S_LUT_INFO": 8 << 16,
    }
    bench.write(**(values | more))


def fill_table(bench, table, entries):
    bench.write(CDP__S_LUT_ACCESS_CFG=table << 16 | 1 << 17)
    for entry in entries:
        bench.write(CDP__S_LUT_ACCESS_DATA=int(entry) & 0xFFFF)


def normalize(bench, cube, **more):
    program(bench, cube.shape, **more)
    surfaces = to_atoms(cube, bench.config.memory_atom)
    bench.store(SOURCE, surfaces)
    bench.write(CDP__D_OP_ENABLE=1, CDP_RDMA__D_OP_ENABLE=1)
    completion = bench.step()
    return from_atoms(bench.load(TARGET, surfaces.shape, cube.dtype), cube.shape[0]), completion.stages[0].statistics


@pytest.mark.parametrize("name", ["nv_small", "nv_large", "nv_full"])
def test_the_sum_of_squares_runs_over_the_channels_around(name):
    """With table[i] = i and steps of 1 the output is the sum itself."""
    cube = np.random.default_rng(1).integers(-2, 3, (19, 2, 3)).astype(np.int8)
    bench = Bench(name)
    fill_table(bench, 1, range(257))
    result, _ = normalize(
        bench, cube, CDP__S_LUT_INFO=0, CDP__D_FUNC_BYPASS=2, CDP__D_LRN_CFG=1, CDP__S_LUT_LO_END_LOW=256
    )
    squares = np.pad(cube.astype(int) ** 2, ((2, 2), (0, 0), (0, 0)))
    expected = sum(squares[k : k + 19] for k in range(5))
    assert np.array_equal(result, expected)


def test_the_table_value_scales_the_input_and_channels_outside_are_zero():
    """Unused channels of the last atom hold garbage that must not be seen."""
    bench = Bench("nv_small")
    fill_table(bench, 1, [3] * 257)
    cube = np.arange(-5, 0, dtype=np.int8).reshape(5, 1, 1)
    program(bench, cube.shape)
    bench.store(SOURCE, np.concatenate([cube.ravel(), np.full(3, 100, np.int8)]))
    bench.write(CDP__D_OP_ENABLE=1, CDP_RDMA__D_OP_ENABLE=1)
    bench.step()
    assert bench.load(TARGET, (8,), np.int8).tolist() == [-15, -12, -9, -6, -3, 0, 0, 0]


def test_table_entries_read_back_through_the_port():
    bench = Bench("nv_small")
    fill_table(bench, 0, [7, -8, 9])
    bench.write(CDP__S_LUT_ACCESS_CFG=1)  # LE, read, from entry 1
    data = bench.machine.registers.map.register("CDP", "S_LUT_ACCESS_DATA")
    assert [bench.machine.registers.read_register(data) for _ in range(2)] == [0xFFF8, 9]


def test_counters_say_which_table_was_hit_and_what_saturated():
    bench = Bench("nv_full")
    fill_table(bench, 1, [127] * 257)
    cube = np.full((32, 1, 2), 100, np.int8)
    _, statistics = normalize(bench, cube)
    assert statistics["lut_lo_hit"] == 64
    assert statistics["saturation"] == 64
    group = bench.machine.unit("CDP").groups[0].values
    assert (group["D_PERF_LUT_LO_HIT"], group["D_OUT_SATURATION"]) == (64, 64)


def test_a_prepared_normalization_keeps_its_tables():
    """Two operations with other tables may be prepared before either runs again."""
    bench = Bench("nv_small")
    program(bench, (8, 1, 1))
    bench.store(SOURCE, np.ones(8, np.int8))
    bench.write(CDP__D_OP_ENABLE=1, CDP_RDMA__D_OP_ENABLE=1)
    groups = {unit: bench.machine.unit(unit).current for unit in ("CDP", "CDP_RDMA")}
    jobs = []
    for value in (5, 9):
        fill_table(bench, 1, [value] * 257)
        jobs.append(bench.machine.engine("cdp").prepare(groups))
    for job, value in zip(jobs, (5, 9), strict=True):
        job.run()
        assert (bench.load(TARGET, (8,), np.int8) == value).all()


def test_fp16_counts_and_flushes_nan():
    bench = Bench("nv_full")
    cube = np.full((16, 1, 1), 0x3C00, np.uint16)
    cube[3] = 0x7E00
    bits = dict.fromkeys(("CDP__S_LUT_LO_START_LOW", "CDP__S_LUT_LE_START_LOW"), 0)
    fill_table(bench, 1, [0x4000] * 257)
    result, statistics = normalize(bench, cube, precision=2, CDP__D_NAN_FLUSH_TO_ZERO=1, **bits)
    assert statistics["nan_input"] == 1
    assert statistics["nan_output"] == 0
    assert result[3] == 0
    assert result[0] == 0x4000


def job_of(bench, shape, **more):
    program(bench, shape, **more)
    bench.write(CDP__D_OP_ENABLE=1, CDP_RDMA__D_OP_ENABLE=1)
    groups = {unit: bench.machine.unit(unit).current for unit in ("CDP", "CDP_RDMA")}
    return bench.machine.engine("cdp").prepare(groups)


@pytest.mark.parametrize(("target", "gap"), [(TARGET, 0), (TARGET, 40), (SOURCE, 0)])
def test_large_int8_cubes_take_the_fast_kernel_with_the_same_results_and_counters(monkeypatch, target, gap):
    """Packed, with gaps between the lines written, and in place; the general kernel says what is right."""
    random = np.random.default_rng(5)
    tables = [random.integers(0, 30000, size) for size in (65, 257)]
    surfaces = random.integers(-128, 128, (4, 50, 20, 8), np.int8)
    line = 20 * 8 + gap
    registers = {"CDP__D_DST_BASE_ADDR_LOW": target, "CDP__D_DST_LINE_STRIDE": line, "CDP__D_DATOUT_SHIFTER": 15}
    fast, calls = cdp_int8.normalize_int8, []
    monkeypatch.setattr(cdp_int8, "normalize_int8", lambda *args: calls.append(1) or fast(*args))
    seen = []
    for words_fit in (cdp._words_fit, lambda data, out: False):
        monkeypatch.setattr(cdp, "_words_fit", words_fit)
        bench = Bench("nv_small")
        for number, entries in enumerate(tables):
            fill_table(bench, number, entries)
        job = job_of(bench, (29, 50, 20), CDP__D_DST_SURFACE_STRIDE=50 * line, **registers)
        for _ in range(3):
            bench.store(SOURCE, surfaces)
            job.run()
        seen.append((bench.load(target, (200 * line,), np.int8).tolist(), job.statistics))
    assert len(calls) == 2  # the first run has fewer elements than there are totals
    assert seen[0] == seen[1]
    assert len(set(seen[0][0])) > 50


def test_surfaces_may_lie_in_the_cvsram():
    bench = Bench("nv_full")
    fill_table(bench, 1, [2] * 257)
    program(bench, (32, 1, 1), CDP_RDMA__D_SRC_DMA_CFG=0, CDP_RDMA__D_SRC_BASE_ADDR_LOW=0x50000000)
    bench.store(0x50000000, np.arange(32, dtype=np.int8), Space.CVSRAM)
    bench.write(CDP__D_OP_ENABLE=1, CDP_RDMA__D_OP_ENABLE=1)
    bench.step()
    assert bench.load(TARGET, (16,), np.int8).tolist() == list(range(0, 32, 2))


@pytest.mark.parametrize(
    ("registers", "error", "text"),
    [
        ({"CDP__D_DATA_FORMAT": 1, "CDP_RDMA__D_DATA_FORMAT": 1}, ConfigError, "nv_small has no int16"),
        ({"CDP_RDMA__D_DATA_FORMAT": 1}, ScheduleError, "deadlock: CDP.D_DATA_FORMAT is 0"),
        ({"CDP__D_DST_DMA_CFG": 0}, ConfigError, "CVSRAM"),
        ({"CDP_RDMA__D_SRC_BASE_ADDR_LOW": 0}, LinkError, "CDP source"),
    ],
)
def test_settings_that_cannot_run_are_refused(registers, error, text):
    bench = Bench("nv_small")
    program(bench, (8, 1, 1), **registers)
    bench.write(CDP__D_OP_ENABLE=1, CDP_RDMA__D_OP_ENABLE=1)
    with pytest.raises(error, match=text):
        bench.step()


def test_a_missing_read_dma_is_named():
    bench = Bench("nv_small")
    program(bench, (8, 1, 1))
    bench.write(CDP__D_OP_ENABLE=1)
    with pytest.raises(ScheduleError, match="CDP_RDMA is not enabled"):
        bench.step()
