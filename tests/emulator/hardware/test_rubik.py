"""Reshaping through the registers: contract, split, merge."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_bench import SOURCE, TARGET, Bench, to_atoms

from nvdla.errors import ConfigError, LinkError, ScheduleError
from nvdla.kernels.reference import rubik as reference

CONTRACT, SPLIT, MERGE = 0, 1, 2
DTYPES = [np.int8, np.int16, np.uint16]


def program(bench, mode, size, out_channels=1, precision=0, **more):
    channels, height, width = size
    values = {
        "RBK__D_MISC_CFG": mode | precision << 8,
        "RBK__D_DAIN_RAM_TYPE": 1,
        "RBK__D_DAOUT_RAM_TYPE": 1,
        "RBK__D_DATAIN_SIZE_0": (width - 1) | (height - 1) << 16,
        "RBK__D_DATAIN_SIZE_1": channels - 1,
        "RBK__D_DATAOUT_SIZE_1": out_channels - 1,
        "RBK__D_DAIN_ADDR_LOW": SOURCE,
        "RBK__D_DAOUT_ADDR_LOW": TARGET,
    }
    bench.write(**(values | more), RBK__D_OP_ENABLE=1)


def random_cube(shape, dtype, seed=0):
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True).astype(dtype)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2), *[st.integers(1, 5)] * 4, st.integers(1, 40), st.integers(0, 2))
def test_contract_spreads_groups_of_surfaces_over_the_plane(precision, sx, sy, height, width, channels, gap):
    dtype = DTYPES[precision]
    atom = 32 // np.dtype(dtype).itemsize
    surfaces = -(-channels // atom)
    bench = Bench("nv_full", 1 << 18)
    source = random_cube((sy, sx, surfaces, height, width, atom), dtype)
    bench.store(SOURCE, source)
    line = (width * sx + gap) * 32
    program(
        bench,
        CONTRACT,
        (sx * sy * channels, height, width),
        channels,
        precision,
        RBK__D_DAIN_LINE_STRIDE=width * 32,
        RBK__D_DAIN_SURF_STRIDE=width * height * 32,
        RBK__D_DECONV_STRIDE=(sx - 1) | (sy - 1) << 16,
        RBK__D_DAOUT_LINE_STRIDE=line,
        RBK__D_CONTRACT_STRIDE_1=line * sy,
        RBK__D_DAOUT_SURF_STRIDE=line * sy * height,
    )
    destination = bench.step().stages[0].destination
    assert destination.shape == (surfaces, height * sy, width * sx, 32)
    result = np.ascontiguousarray(destination).view(dtype)
    assert result.tolist() == reference.contract(source.reshape(-1, height, width, atom).tolist(), sy, sx)


@pytest.mark.parametrize("precision", [0, 1, 2])
def test_split_writes_planes_in_whole_bursts(precision):
    dtype = DTYPES[precision]
    cube = random_cube((37, 3, 5), dtype)
    bench = Bench("nv_full")
    bench.store(SOURCE, to_atoms(cube, 32))
    bench.memory.view(bench.memory.regions()[1].space, TARGET, 37 * 3 * 64)[:] = 0xEE
    program(
        bench,
        SPLIT,
        cube.shape,
        37,
        precision,
        RBK__D_DAIN_LINE_STRIDE=5 * 32,
        RBK__D_DAIN_SURF_STRIDE=15 * 32,
        RBK__D_DAOUT_LINE_STRIDE=64,
        RBK__D_DAOUT_PLANAR_STRIDE=3 * 64,
    )
    bench.step()
    lines = bench.load(TARGET, (37, 3, 64 // cube.dtype.itemsize), dtype)
    assert np.array_equal(lines[:, :, :5], cube)
    burst = 32 // cube.dtype.itemsize
    atoms = to_atoms(cube, 32).tolist()
    assert lines[:, :, :burst].tolist() == reference.split(atoms, 37, cube.dtype.itemsize)
    assert (lines[:, :, burst:].view(np.uint8) == 0xEE).all()


@pytest.mark.parametrize("precision", [0, 1, 2])
def test_merge_undoes_split_and_clears_the_unused_channels(precision):
    dtype = DTYPES[precision]
    cube = random_cube((21, 2, 40), dtype)
    bench = Bench("nv_full")
    line = -(-40 * cube.dtype.itemsize // 32) * 32
    padded = np.zeros((21, 2, line // cube.dtype.itemsize), dtype)
    padded[:, :, :40] = cube
    bench.store(SOURCE, padded)
    program(
        bench,
        MERGE,
        cube.shape,
        21,
        precision,
        RBK__D_DAIN_LINE_STRIDE=line,
        RBK__D_DAIN_PLANAR_STRIDE=2 * line,
        RBK__D_DAOUT_LINE_STRIDE=40 * 32,
        RBK__D_DAOUT_SURF_STRIDE=80 * 32,
    )
    bench.step()
    atoms = to_atoms(cube, 32)
    assert np.array_equal(bench.load(TARGET, atoms.shape, dtype), atoms)
    assert atoms.tolist() == reference.merge(cube.tolist(), 32 // cube.dtype.itemsize)


@pytest.mark.parametrize(
    ("name", "registers", "error", "text"),
    [
        ("nv_small", {}, ConfigError, "nv_small has no Rubik; configurations with it: nv_full"),
        ("nv_full", {"RBK__D_MISC_CFG": 3}, ConfigError, "RUBIK_MODE: must be 0 .* got 3"),
        ("nv_full", {"RBK__D_MISC_CFG": 0x300}, ConfigError, "IN_PRECISION: must be .*, got 3"),
        ("nv_full", {"RBK__D_DAIN_ADDR_LOW": 0}, LinkError, "Rubik source"),
        ("nv_full", {"RBK__D_DAOUT_ADDR_LOW": 0}, LinkError, "Rubik destination"),
        ("nv_full", {"RBK__D_MISC_CFG": 1, "RBK__D_DATAOUT_SIZE_1": 99}, ScheduleError, "100 planes"),
        (
            "nv_full",
            {"RBK__D_DATAIN_SIZE_0": 0x1FFF1FFF, "RBK__D_DATAIN_SIZE_1": 0x1FFF},
            LinkError,
            "destination|source",
        ),
    ],
)
def test_settings_that_cannot_run_are_refused(name, registers, error, text):
    bench = Bench(name)
    program(bench, SPLIT if "RBK__D_DATAOUT_SIZE_1" in registers else CONTRACT, (32, 2, 2), 32, **registers)
    with pytest.raises(error, match=text):
        bench.step()
