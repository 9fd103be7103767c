"""Pooling through the registers: geometry, split width, the link from the SDP, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from support.engine_bench import SOURCE, TARGET, Bench, from_atoms, to_atoms

from nvdla.emulator.memory.address_space import Space
from nvdla.errors import ConfigError, LinkError, NvdlaError, ScheduleError

AVERAGE, MAXIMUM, MINIMUM = 0, 1, 2
CONFIGURATIONS = ["nv_small", "nv_medium_512", "nv_large", "nv_full"]


def program(bench, size, kernel, stride=(1, 1), pad=(0, 0, 0, 0), method=MAXIMUM, precision=0, **more):
    """size: (C, H, W); kernel, stride: (vertical, horizontal); pad: (top, bottom, left, right)."""
    channels, height, width = size
    out_height = (height + pad[0] + pad[1] - kernel[0]) // stride[0] + 1
    out_width = (width + pad[2] + pad[3] - kernel[1]) // stride[1] + 1
    atom = bench.config.memory_atom
    cube = {"D_DATA_CUBE_IN_WIDTH": width - 1, "D_DATA_CUBE_IN_HEIGHT": height - 1}
    cube |= {"D_DATA_CUBE_IN_CHANNEL": channels - 1, "D_DATA_FORMAT": precision}
    values = {f"PDP__{key}": value for key, value in cube.items()}
    values |= {f"PDP_RDMA__{key}": value for key, value in cube.items()}
    values |= {
        "PDP__D_DATA_CUBE_OUT_WIDTH": out_width - 1,
        "PDP__D_DATA_CUBE_OUT_HEIGHT": out_height - 1,
        "PDP__D_DATA_CUBE_OUT_CHANNEL": channels - 1,
        "PDP__D_OPERATION_MODE_CFG__POOLING_METHOD": method,
        "PDP__D_OPERATION_MODE_CFG__FLYING_MODE": 1,
        "PDP__D_POOLING_KERNEL_CFG": kernel[1] - 1
        | (kernel[0] - 1) << 8
        | (stride[1] - 1) << 16
        | (stride[0] - 1) << 20,
        "PDP__D_POOLING_PADDING_CFG": pad[2] | pad[0] << 4 | pad[3] << 8 | pad[1] << 12,
        "PDP__D_RECIP_KERNEL_WIDTH": round(65536 / kernel[1]),
        "PDP__D_RECIP_KERNEL_HEIGHT": round(65536 / kernel[0]),
        "PDP__D_DST_BASE_ADDR_LOW": TARGET,
        "PDP__D_DST_LINE_STRIDE": out_width * atom,
        "PDP__D_DST_SURFACE_STRIDE": out_width * out_height * atom,
        "PDP__D_DST_RAM_CFG": 1,
        "PDP_RDMA__D_SRC_BASE_ADDR_LOW": SOURCE,
        "PDP_RDMA__D_SRC_LINE_STRIDE": width * atom,
        "PDP_RDMA__D_SRC_SURFACE_STRIDE": width * height * atom,
        "PDP_RDMA__D_SRC_RAM_CFG": 1,
        "PDP_RDMA__D_POOLING_KERNEL_CFG": kernel[1] - 1 | (stride[1] - 1) << 4,
    }
    bench.write(**(values | more))
    return channels, out_height, out_width


def enable(bench, *units):
    bench.write(**{f"{unit}__D_OP_ENABLE": 1 for unit in units or ("PDP", "PDP_RDMA")})


def pool(bench, cube, *args, **kwargs):
    """Run one pooling of a (C, H, W) cube from memory; the result in the same form."""
    channels, height, width = program(bench, cube.shape, *args, **kwargs)
    surfaces = to_atoms(cube, bench.config.memory_atom)
    bench.store(SOURCE, surfaces)
    enable(bench)
    bench.step()
    shape = (surfaces.shape[0], height, width, surfaces.shape[3])
    return from_atoms(bench.load(TARGET, shape, cube.dtype), channels)


def random_cube(shape, dtype=np.int8):
    info = np.iinfo(dtype)
    return np.random.default_rng(5).integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def windows(cube, kernel, stride):
    view = np.lib.stride_tricks.sliding_window_view(cube, kernel, axis=(1, 2))
    return view[:, :: stride[0], :: stride[1]]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_configuration_pools_its_own_atoms(name):
    cube = random_cube((37, 9, 11))
    result = pool(Bench(name), cube, (3, 2), (2, 3))
    assert np.array_equal(result, windows(cube, (3, 2), (2, 3)).max(axis=(3, 4)))


@pytest.mark.parametrize("method", [AVERAGE, MAXIMUM])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "source", "copies"),
    [
        ((3, 3), (2, 2), (0, 0, 0, 0), SOURCE, False),
        ((3, 2), (2, 1), (1, 0, 1, 0), SOURCE, False),
        ((3, 3), (2, 2), (1, 1, 1, 1), SOURCE, True),  # windows reach beyond the part
        ((3, 3), (2, 2), (0, 0, 0, 0), SOURCE + (1 << 16) - 2 * 8 * 80, True),  # the memory ends with the part
    ],
)
def test_a_part_of_a_larger_cube_is_pooled_where_it_lies(method, kernel, stride, pad, source, copies):
    """7 x 9 of 8 x 10 atoms, two surfaces; the gaps hold the largest number."""
    bench = Bench("nv_small")
    whole = np.full((2, 8, 10, 8), 127, np.int8)
    whole[:, :7, :9] = random_cube((2, 7, 9, 8)) // 2
    first = 8 if copies and source != SOURCE else 0  # one atom to the right: what is behind it ends with the memory
    registers = {"LINE_STRIDE": 80, "SURFACE_STRIDE": 640, "BASE_ADDR_LOW": source + first}
    more = {f"PDP_RDMA__D_SRC_{name}": value for name, value in registers.items()}
    _, height, width = program(bench, (16, 7, 9), kernel, stride, pad, method, **more)
    bench.memory.view(Space.DRAM, SOURCE, 1 << 16)[:] = 127
    flat = whole.reshape(-1).view(np.uint8)[: (1 << 16) - (source + first - SOURCE)]
    bench.memory.view(Space.DRAM, source + first, flat.size)[:] = flat
    groups = {unit: bench.machine.unit(unit).current for unit in ("PDP", "PDP_RDMA")}
    job = bench.machine.engine("pdp").prepare(groups)
    job.run()
    assert (job._wide is None) == copies
    found = job.destination.view(np.int8).copy()
    part = Bench("nv_small")
    program(part, (16, 7, 9), kernel, stride, pad, method)
    part.store(SOURCE, whole[:, :7, :9])
    enable(part)
    part.step()
    assert np.array_equal(found, part.load(TARGET, (2, height, width, 8), np.int8))


def test_the_unused_channels_of_the_last_atom_are_pooled_like_data():
    bench = Bench("nv_small")
    program(bench, (3, 2, 2), (2, 2))
    bench.store(SOURCE, np.arange(32, dtype=np.int8))
    enable(bench)
    bench.step()
    assert bench.load(TARGET, (8,), np.int8).tolist() == list(range(24, 32))


def test_a_padded_minimum_ignores_the_padding():
    cube = np.full((8, 3, 3), 5, np.int8)
    assert (pool(Bench("nv_small"), cube, (3, 3), pad=(1, 1, 1, 1), method=MINIMUM) == 5).all()


def test_an_average_divides_by_the_whole_kernel():
    cube = np.full((8, 2, 2), 90, np.int8)
    result = pool(Bench("nv_small"), cube, (3, 3), pad=(1, 1, 1, 1), method=AVERAGE)
    assert (result == 40).all()  # 4 of 9 elements exist


def test_pad_values_count_missing_columns_and_rows():
    cube = np.zeros((8, 1, 1), np.int8)
    pads = {f"PDP__D_POOLING_PADDING_VALUE_{n}_CFG": n * 9 for n in range(1, 8)}
    result = pool(Bench("nv_small"), cube, (3, 3), pad=(1, 1, 1, 1), method=AVERAGE, **pads)
    assert (result == 8).all()  # the one row misses 2 columns, 2 rows miss 3: 18 + 3 * 18 = 72 over 9


def test_pad_values_keep_the_bits_above_their_sign():
    """The model sets the upper bits of a negative value and leaves those of a positive one as written."""
    cube = np.zeros((8, 1, 1), np.int8)
    result = pool(
        Bench("nv_small"), cube, (1, 2), pad=(0, 0, 1, 0), method=AVERAGE, PDP__D_POOLING_PADDING_VALUE_1_CFG=0x104
    )
    assert (result == np.int8(0x104 // 2 - 256)).all()


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_split_width_makes_no_difference(dtype):
    """Three parts of 4 columns each make 2 outputs each: kernel 3, stride 2, padding 1 and 1."""
    cube = random_cube((40, 5, 12), dtype)
    precision = int(dtype is np.int16)
    args = {"pad": (0, 0, 1, 1), "method": AVERAGE, "precision": precision}
    whole = pool(Bench("nv_full"), cube, (2, 3), (1, 2), **args)
    widths, outs = 3 | 3 << 10 | 3 << 20, 1 | 1 << 10 | 1 << 20  # each less one: first, last, middle
    split = {
        "PDP__D_OPERATION_MODE_CFG__SPLIT_NUM": 2,
        "PDP_RDMA__D_OPERATION_MODE_CFG__SPLIT_NUM": 2,
        "PDP__D_PARTIAL_WIDTH_IN": widths,
        "PDP_RDMA__D_PARTIAL_WIDTH_IN": widths,
        "PDP__D_PARTIAL_WIDTH_OUT": outs,
    }
    assert np.array_equal(pool(Bench("nv_full"), cube, (2, 3), (1, 2), **args, **split), whole)


def test_gaps_between_lines_keep_their_bytes():
    bench = Bench("nv_small")
    bench.memory.view(bench.memory.regions()[1].space, TARGET, 4096)[:] = 0xEE
    program(bench, (8, 2, 2), (1, 1), PDP__D_DST_LINE_STRIDE=32, PDP__D_DST_SURFACE_STRIDE=64)
    bench.store(SOURCE, np.arange(32, dtype=np.int8))
    enable(bench)
    bench.step()
    lines = bench.load(TARGET, (2, 32), np.uint8)
    assert lines[:, :16].ravel().tolist() == list(range(32))
    assert (lines[:, 16:] == 0xEE).all()


def test_fp16_counts_special_values_in_its_registers():
    bench = Bench("nv_full")
    cube = np.zeros((16, 1, 4), np.uint16)
    cube[0] = [0x7C00, 0x7E00, 0xFC00, 0x3C00]
    result = pool(bench, cube, (1, 2), (1, 2), precision=2)
    assert result[0].tolist() == [[0x7E00, 0x3C00]]
    read = {name: bench.machine.unit("PDP").groups[0].values[f"D_{name}_NUM"] for name in ("INF_INPUT", "NAN_INPUT")}
    assert read == {"INF_INPUT": 2, "NAN_INPUT": 1}
    assert bench.machine.unit("PDP").groups[0].values["D_NAN_OUTPUT_NUM"] == 1


def test_fp16_nan_is_flushed_on_request():
    cube = np.full((16, 1, 2), 0x7E00, np.uint16)
    result = pool(Bench("nv_full"), cube, (1, 2), precision=2, PDP__D_NAN_FLUSH_TO_ZERO=1)
    assert (result == 0).all()


def on_the_fly(bench, source, size, kernel, stride=(1, 1), pad=(0, 0, 0, 0)):
    program(bench, size, kernel, stride, pad, PDP__D_OPERATION_MODE_CFG__FLYING_MODE=0)
    job = bench.machine.engine("pdp").prepare({"PDP": bench.machine.unit("PDP").current})
    job.check_handed(source.shape)
    return job.run(source)


def test_what_the_sdp_hands_over_is_pooled():
    bench, cube = Bench("nv_small"), random_cube((8, 4, 4))
    on_the_fly(bench, to_atoms(cube, 8), (8, 4, 4), (2, 2), (2, 2))
    expected = windows(cube, (2, 2), (2, 2)).max(axis=(3, 4))
    assert np.array_equal(from_atoms(bench.load(TARGET, (1, 2, 2, 8), np.int8), 8), expected)


def test_pooling_on_the_fly_that_lacks_lines_is_named():
    """16 rows of 3 x 3 windows with stride 2 need 33 lines; 32 come."""
    bench = Bench("nv_small")
    program(bench, (8, 32, 32), (3, 3), (2, 2), PDP__D_OPERATION_MODE_CFG__FLYING_MODE=0)
    bench.write(PDP__D_DATA_CUBE_OUT_HEIGHT=15, PDP__D_DATA_CUBE_OUT_WIDTH=15)
    with pytest.raises(ScheduleError, match=r"deadlock: 16 PDP output .* need 33 input elements, there are 32"):
        bench.machine.engine("pdp").prepare({"PDP": bench.machine.unit("PDP").current})


def test_a_cube_of_another_size_from_the_sdp_is_named():
    with pytest.raises(ScheduleError, match=r"takes 1 surfaces of 4 lines of 4 atoms on the fly, the SDP delivers 1 s"):
        on_the_fly(Bench("nv_small"), np.zeros((1, 3, 4, 8), np.int8), (8, 4, 4), (2, 2))


@pytest.mark.parametrize(
    ("registers", "error", "text"),
    [
        ({"PDP__D_DATA_FORMAT": 2}, ConfigError, r"nv_small has no fp16; .*nv_full"),
        ({"PDP__D_DATA_FORMAT": 3}, ConfigError, r"D_DATA_FORMAT.INPUT_DATA: must be .*, got 3"),
        ({"PDP__D_OPERATION_MODE_CFG__POOLING_METHOD": 3}, ConfigError, "POOLING_METHOD: must be .*, got 3"),
        ({"PDP__D_POOLING_KERNEL_CFG__KERNEL_HEIGHT": 9}, ConfigError, "KERNEL_HEIGHT: must be at most 7, got 9"),
        ({"PDP__D_DATA_CUBE_OUT_WIDTH": 1}, ConfigError, "makes 3 output elements of width, the output cube has 2"),
        ({"PDP__D_DATA_CUBE_OUT_HEIGHT": 5}, ScheduleError, "need 7 input elements, there are 4"),
        ({"PDP__D_POOLING_PADDING_CFG": 0x22, "PDP__D_DATA_CUBE_OUT_WIDTH": 4}, NvdlaError, "PDP"),
        ({"PDP_RDMA__D_DATA_CUBE_IN_WIDTH": 5}, ScheduleError, "PDP_RDMA.D_DATA_CUBE_IN_WIDTH is 5"),
        ({"PDP__D_DST_RAM_CFG": 0}, ConfigError, "nv_small has no CVSRAM"),
        ({"PDP__D_DST_BASE_ADDR_LOW": 0x70000000}, LinkError, "PDP destination: no dram region holds"),
        ({"PDP_RDMA__D_SRC_SURFACE_STRIDE": 1 << 20, "PDP__D_DATA_CUBE_IN_CHANNEL": 15}, NvdlaError, "PDP"),
    ],
)
def test_settings_that_cannot_run_are_refused(registers, error, text):
    bench = Bench("nv_small")
    program(bench, (8, 4, 4), (2, 2), **registers)
    enable(bench)
    with pytest.raises(error, match=text):
        bench.step()


def test_a_cube_that_strides_of_zero_make_huge_is_refused_before_it_is_read():
    bench = Bench("nv_small")
    strides = dict.fromkeys(("PDP_RDMA__D_SRC_LINE_STRIDE", "PDP_RDMA__D_SRC_SURFACE_STRIDE"), 0)
    strides |= dict.fromkeys(("PDP__D_DST_LINE_STRIDE", "PDP__D_DST_SURFACE_STRIDE"), 0)
    program(bench, (8192, 8192, 8192), (1, 1), **strides)
    enable(bench)
    with pytest.raises(LinkError, match=r"must have at most \d+, got"):
        bench.step()


def test_a_missing_read_dma_is_named():
    bench = Bench("nv_small")
    program(bench, (8, 4, 4), (2, 2))
    enable(bench, "PDP")
    with pytest.raises(ScheduleError, match="PDP_RDMA is not enabled"):
        bench.step()


def test_a_prepared_pooling_reads_memory_again_each_time():
    bench = Bench("nv_small")
    program(bench, (8, 1, 1), (1, 1))
    enable(bench)
    units = ("PDP", "PDP_RDMA")
    job = bench.machine.engine("pdp").prepare({unit: bench.machine.unit(unit).current for unit in units})
    for value in (3, -7):
        bench.store(SOURCE, np.full(8, value, np.int8))
        job.run()
        assert (bench.load(TARGET, (8,), np.int8) == value).all()
