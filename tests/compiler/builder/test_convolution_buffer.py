"""The convolution buffer: entries, banks, tiles, kernels in parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.build_checks import build_and_run, engines, samples

from nvdla.compiler.builder import BuildError, Network
from nvdla.compiler.builder.cbuf import buffer_of, entries_per_slice, fit, kernel_group, rounded, weight_bytes
from nvdla.compiler.builder.ir import Convolve, Process, Root, Stage
from nvdla.compiler.builder.schedule import legal_convolutions
from nvdla.emulator.hardware.configuration import configuration, configurations
from nvdla.loadable.descriptors.abi import NEW
from nvdla.loadable.descriptors.enums import OpType
from nvdla.loadable.descriptors.task import DlaTask


def _operation(
    config: str, channels: int, size: tuple[int, int], kernels: int, kernel: int, precision="int8", **window
):
    stride, pads = window.get("stride", 1), window.get("padding", 0)
    out = [(s + 2 * pads - kernel) // stride + 1 for s in size]
    source = Root("in", channels, *size, precision).whole
    target = Root("out", kernels, *out, precision).whole
    weights = np.ones((kernels, channels, kernel, kernel), np.int8)
    process = Process("layer", None, target)
    return Convolve("layer", source, weights, (stride, stride), (pads,) * 4, (1, 1), process)


@pytest.mark.parametrize(
    ("config", "channels", "width", "precision", "entries"),
    [
        ("nv_small", 16, 12, "int8", 24),
        ("nv_small", 500, 1, "int8", 63),
        ("nv_full", 1, 28, "fp16", 7),
        ("nv_full", 33, 9, "int8", 5),
        ("nv_full", 65, 9, "int8", 9),
        ("nv_large", 33, 9, "int8", 9),
        ("nv_large", 32, 9, "int8", 5),
    ],
)
def test_entries_per_slice_pack_atoms_into_entries(config, channels, width, precision, entries):
    chosen = configuration(config)
    assert entries_per_slice(channels, width, precision, chosen) == entries


@given(
    st.sampled_from(["nv_small", "nv_medium_512", "nv_large", "nv_full"]),
    st.integers(1, 200),
    st.tuples(st.integers(5, 90), st.integers(5, 300)),
    st.integers(1, 80),
    st.sampled_from([1, 2, 3, 5]),
    st.integers(1, 3),
)
def test_tiles_cover_the_result_once_and_their_input_fits(config, channels, size, kernels, kernel, stride):
    operation = _operation(config, channels, size, kernels, kernel, stride=stride, padding=kernel // 2)
    chosen, buffer = configuration(config), buffer_of(configuration(config))
    found = fit(operation, chosen)
    result = np.zeros(operation.process.destination.shape[1:], int)
    for tile in found.tiles:
        (top, rows), (left, columns) = tile.out_rows, tile.out_columns
        result[top : top + rows, left : left + columns] += 1
        used = tile.in_rows[1] * entries_per_slice(channels, tile.in_columns[1], "int8", chosen)
        assert used <= found.data_banks * buffer.entries
        # The programming guide: every element of input and padding is used.
        assert (columns - 1) * stride + kernel == tile.padding[2] + tile.in_columns[1] + tile.padding[3]
        assert (rows - 1) * stride + kernel == tile.padding[0] + tile.in_rows[1] + tile.padding[1]
    assert np.all(result == 1)
    assert found.data_banks + found.weight_banks <= buffer.banks
    group = weight_bytes(min(kernels, kernel_group(chosen, "int8")), channels, kernel, kernel, "int8")
    assert found.weight_banks * buffer.bank_bytes >= rounded(group, chosen)


@pytest.mark.parametrize("config", sorted(configurations()))
def test_a_kernel_that_cannot_fit_is_one_clear_error(config):
    operation = _operation(config, 8192, (32, 32), 1, 32)
    with pytest.raises(
        BuildError, match=r"layer layer: one kernel group of 8192 channels, 32x32 .* use fewer channels"
    ):
        fit(operation, configuration(config))


@pytest.mark.parametrize(
    ("shape", "kernels", "size"),
    [((64, 60, 60), 20, 3), ((300, 9, 50), 5, 3), ((8, 10, 2100), 6, 3), ((40, 93, 37), 9, 5)],
)
def test_layers_too_large_for_nv_small_run_in_tiles(shape, kernels, size):
    net, rng = Network(), np.random.default_rng(1)
    x = net.input("in", shape)
    net.output(
        net.convolution(
            "c", x, rng.normal(size=(kernels, shape[0], size, size)), rng.normal(size=kernels), padding=size // 2
        )
    )
    built = build_and_run(net, "nv_small", "int8", False, samples(net, rng, 1))
    assert engines(built).count("conv") > 1
    assert built.sidecar["tasks"][0]["operations"][0]["part"].startswith("1/")


@pytest.mark.parametrize(("config", "precision"), [("nv_small", "int8"), ("nv_large", "int8"), ("nv_full", "fp16")])
def test_kernels_too_large_for_the_buffer_are_computed_in_parts(config, precision):
    net, rng = Network(), np.random.default_rng(2)
    x = net.fully_connected("f", net.input("in", (512, 7, 7)), rng.normal(size=(40, 512 * 49)), rng.normal(size=40))
    net.output(net.prelu("p", x, rng.uniform(0, 1, 40)))
    built = build_and_run(net, config, precision, False, samples(net, rng, 1))
    assert engines(built).count("conv") > 2


@pytest.mark.parametrize("config", sorted(configurations()))
def test_as_many_weights_are_fetched_as_are_released(config):
    """Whole entries of the convolution buffer and no more: 8 bytes on nv_small, 64 on nv_large, 128 on nv_full. What
    is fetched beyond is never released, and the next layer reads its weights too early, or deadlocks."""
    net, rng = Network(), np.random.default_rng(3)
    x = net.input("in", (5, 40, 40))
    for number in range(6):
        x = net.convolution(f"c{number}", x, rng.normal(size=(5 + number, x.shape[0], 3, 3)), padding=1)
    net.output(x)
    loadable = build_and_run(net, config, "int8", False, samples(net, rng, 1)).loadable
    operations = DlaTask.decode(loadable, loadable.tasks[0], NEW).operations()
    convolutions = [each for each in operations if each.op_type == OpType.CONV]
    assert len(convolutions) >= 6
    entry = configuration(config).cbuf_entry_bytes
    for each in convolutions:
        used = each.op.bytes_per_kernel * each.surface.dst_data.channel
        assert each.surface.weight_data.size == -(-used // entry) * entry


@pytest.mark.parametrize(("config", "precision"), [("nv_small", "int8"), ("nv_large", "int8"), ("nv_full", "fp16")])
@pytest.mark.parametrize("kernels", [5, 9, 40])
def test_a_deconvolution_of_one_pixel_writes_its_pieces_surface_by_surface(config, precision, kernels):
    """A piece is one pixel of the result: a 1x1 cube whose surfaces do not lie one behind the other, which the SDP
    cannot write at once (cmod/sdp/NV_NVDLA_sdp.cpp:1497)."""
    net, rng = Network(), np.random.default_rng(kernels)
    x = net.deconvolution("d", net.input("in", (3, 1, 1)), rng.normal(size=(3, kernels, 2, 2)), stride=2)
    net.output(net.prelu("p", x, rng.uniform(0, 1, kernels)))
    built = build_and_run(net, config, precision, False, samples(net, rng, 2))
    for each in DlaTask.decode(built.loadable, built.loadable.tasks[0], NEW).operations():
        cube = each.surface.dst_data if each.op_type == OpType.SDP else None
        if cube is not None and (cube.width, cube.height) == (1, 1):
            assert cube.surf_stride == configuration(config).memory_atom


def test_a_tile_of_one_pixel_is_written_surface_by_surface():
    """Three rows of one column in tiles of two: the last is a 1x1 cube."""
    source, target = Root("in", 512, 100, 8, "int8").whole, Root("out", 20, 3, 1, "int8").whole
    process = Process("layer", None, target.crop(2, 1, 0, 1), x1=Stage("add", np.arange(20)))
    whole = Convolve("layer", source, np.ones((20, 512, 1, 1), np.int8), (1, 1), (0,) * 4, (1, 1), process)
    parts = legal_convolutions(whole, configuration("nv_small"))
    assert [len(each.weights) for each in parts] == [8, 8, 4]
    assert [each.process.destination.first_channel for each in parts] == [0, 8, 16]
    assert np.concatenate([each.process.x1.alu_operand for each in parts]).tolist() == list(range(20))
