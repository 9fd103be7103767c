"""Inputs that come as images: other bytes in memory, the same elements, the same results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import TARGETS, build_and_run, samples

import nvdla
from nvdla.analysis.study import Study
from nvdla.compiler.builder import BuildError, Network, build, calibrate
from nvdla.loadable.enums import DataCategory, PixelFormat
from nvdla.program.program import Program


def first_layer(shape, kernels=20, size=(3, 3), stride=(1, 1), padding=(0, 0, 0, 0)) -> Network:
    rng = np.random.default_rng(0)
    net = Network("first")
    x = net.input("data", shape)
    weights = rng.normal(size=(kernels, shape[0], *size))
    net.output(net.relu("r", net.convolution("c", x, weights, rng.normal(size=kernels), stride, padding)))
    return net


@st.composite
def first_layers(draw) -> Network:
    def number(low, high):
        return draw(st.integers(low, high))

    height, width = number(1, 30), number(2, 60)
    size = number(1, min(height, 9)), number(1, min(width, 11))
    padding = tuple(number(0, side - 1) for side in (size[0], size[0], size[1], size[1]))
    return first_layer((number(1, 4), height, width), number(1, 70), size, (number(1, 4), number(1, 4)), padding)


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(net=first_layers())
def test_an_image_gives_the_results_of_the_reference(config, precision, per_channel, net):
    built = build_and_run(net, config, precision, per_channel, samples(net, np.random.default_rng(1), 1))
    assert built.program.inputs[0].pixels is not None


@pytest.mark.parametrize(
    ("channels", "precision", "form"),
    [
        (1, "int8", PixelFormat.R8),
        (3, "int8", PixelFormat.A8B8G8R8),
        (4, "int16", PixelFormat.A16B16G16R16),
        (1, "fp16", PixelFormat.R16_F),
        (2, "fp16", PixelFormat.A16B16G16R16_F),
    ],
)
def test_the_input_of_the_loadable_is_an_image(channels, precision, form):
    net = first_layer((channels, 10, 10))
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    built = build(net, "nv_full", precision, scales)
    tensor = built.loadable.tensors[0]
    # In the registers the columns and channels of a kernel are one axis; a pixel has 1 or 4 channels.
    words = next(iter(Program.of(built.loadable).operations)).what
    assert words.startswith(f"20 kernels 3x3x{1 if channels == 1 else 4}, stride 1,1")
    assert (tensor.pixel_format, tensor.data_category) == (form, DataCategory.IMAGE)
    assert (tensor.c, tensor.line_stride % 32) == (channels, 0)


@pytest.mark.parametrize(("size", "rows"), [((3, 3), 4), ((7, 7), 2), ((5, 5), 2), ((1, 1), 1), ((2, 2), 2)])
def test_rows_of_a_kernel_share_a_pass_where_they_fit_a_cell(size, rows):
    net = first_layer((3, 16, 16), size=size)
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    program = Program.of(build(net, "nv_large", "int8", scales).loadable, "nv_large")
    assert 1 << program.operations[0].op.post_extension == rows


def test_a_first_layer_takes_a_fraction_of_the_cycles():
    net = first_layer((3, 64, 64), 64, (7, 7), (2, 2), (3, 3, 3, 3))
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    cycles = {
        form: Study.of(build(net, "nv_large", "int8", scales, input_format=form).loadable, "nv_large").schedule.cycles
        for form in ("feature", "image")
    }
    assert cycles["image"] < 0.15 * cycles["feature"]


def test_both_formats_give_the_same_elements():
    net = first_layer((3, 20, 24), 10, padding=(1, 1, 1, 1))
    data = samples(net, np.random.default_rng(1))
    found = []
    for form in ("image", "feature"):
        built = build(net, "nv_small", "int8", calibrate(net, data), input_format=form)
        elements = built.quantize_inputs(data["data"][0])
        found.append(nvdla.Runtime(built.loadable, "nv_small").run(elements)["r"])
    np.testing.assert_array_equal(*found)


def test_what_others_need_or_has_more_channels_stays_a_feature_surface():
    rng = np.random.default_rng(1)
    shared = first_layer((3, 8, 8), 3, padding=(1, 1, 1, 1))
    shared.output(shared.add("sum", shared.layers[0].output, shared.layers[1].output))
    for net, why in (
        (shared, "layer sum is not a dense convolution"),
        (first_layer((5, 8, 8)), "more than four channels"),
    ):
        scales = calibrate(net, samples(net, rng))
        assert build(net, "nv_small", "int8", scales).program.inputs[0].pixels is None
        with pytest.raises(BuildError, match=why):
            build(net, "nv_small", "int8", scales, input_format="image")
    with pytest.raises(BuildError, match="input format 'png': must be one of auto, image, feature"):
        build(net, "nv_small", "int8", scales, input_format="png")


def test_large_images_are_cut_into_bands_of_rows():
    net = first_layer((3, 240, 300), 8, (5, 5), (1, 1), (2, 2, 2, 2))
    built = build_and_run(net, "nv_small", "int8", False, samples(net, np.random.default_rng(1), 1))
    assert sum(op["engine"] == "conv" for op in built.sidecar["tasks"][0]["operations"]) > 1
