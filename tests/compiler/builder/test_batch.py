"""Several images in one loadable: each through operations of its own, weights fetched once where they fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import TARGETS, samples
from support.random_networks import networks

import nvdla
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import BuildError, Network, build, calibrate
from nvdla.emulator.hardware.configuration import configuration
from nvdla.program.program import Program

SETTINGS = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))


def layer(shape=(16, 12, 12), kernels=24) -> Network:
    rng = np.random.default_rng(0)
    net = Network("layer")
    x = net.convolution("c", net.input("in", shape), rng.normal(size=(kernels, shape[0], 3, 3)), padding=1)
    net.output(net.max_pool("p", x, 2))
    return net


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@SETTINGS
@given(net=networks(), images=st.integers(2, 3))
def test_random_networks_give_for_each_image_what_they_give_alone(config, precision, per_channel, net, images):
    data = samples(net, np.random.default_rng(1), images)
    scales = calibrate(net, data)
    for level in (0, 1):
        built = build(net, config, precision, scales, per_channel, level=level, images=images)
        one = nvdla.Runtime(build(net, config, precision, scales, per_channel, level=level).loadable, config)
        elements = built.quantize_inputs(data)
        found, expected = nvdla.Runtime(built.loadable, config).run(elements), built.expected(elements)
        for image in range(images):
            alone = one.run({name: each[image : image + 1] for name, each in elements.items()})
            for name, each in alone.items():
                assert np.array_equal(found[name][image].view(np.uint8), each[0].view(np.uint8))
        if precision != "fp16":
            assert all(np.array_equal(found[name], expected[name]) for name in expected)
        assert precision == "int16" or not lint(built.loadable, config).findings


def test_weights_are_fetched_for_the_first_image_alone():
    net = layer()
    built = build(net, "nv_large", "int8", calibrate(net, samples(net, np.random.default_rng(1))), images=3)
    convolutions = [each.op for each in Program.of(built.loadable, "nv_large").operations if each.engine == "conv"]
    assert [each.weight_reuse for each in convolutions] == [0, 1, 1]
    assert [each.skip_weight_rls for each in convolutions] == [1, 1, 0]
    assert len({(each.data_bank, each.weight_bank) for each in convolutions}) == 1
    assert (
        len({each.surface.weight_data.offset for each in Program.of(built.loadable, "nv_large").operations[::3]}) == 1
    )


def test_images_overlap_by_the_cycle_model():
    net = layer()
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    one, four = (build(net, "nv_large", "int8", scales, images=images).loadable for images in (1, 4))
    cycles = [Study.of(each, "nv_large").schedule.cycles for each in (one, four)]
    assert cycles[1] < 3.7 * cycles[0]


@pytest.mark.parametrize("images", [0, 257])
def test_the_number_of_images_has_limits(images):
    net = layer()
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    with pytest.raises(BuildError, match=f"images: must be 1 to 256, got {images}"):
        build(net, "nv_small", "int8", scales, images=images)


def test_pools_of_a_batch_overlap_with_the_next_convolution_where_that_is_faster():
    """A pool holds the next image's convolution back, which it works beside where it takes its data from memory."""
    rng = np.random.default_rng(0)
    net = Network("pooled")
    x = net.convolution("c", net.input("in", (16, 16, 16)), rng.normal(size=(32, 16, 3, 3)), padding=1)
    x = net.convolution("d", net.max_pool("p", x, 2), rng.normal(size=(64, 32, 3, 3)), padding=1)
    net.output(x)
    data = samples(net, rng, 4)
    scales = calibrate(net, data)
    found = {images: build(net, "nv_full", "int8", scales, images=images) for images in (1, 4)}
    flying = {images: Program.of(each.loadable, "nv_full").chains for images, each in found.items()}
    assert [len(chain) for chain in flying[1]] == [3, 2]
    assert [len(chain) for chain in flying[4]] == [2, 1] * 4 + [2] * 4
    elements = found[4].quantize_inputs(data)
    assert np.array_equal(
        nvdla.Runtime(found[4].loadable, "nv_full").run(elements)["d"], found[4].expected(elements)["d"]
    )


@pytest.mark.parametrize("level", [1, 2])
def test_a_configuration_of_ones_own_is_weighed_too(level):
    net, known = layer((8, 6, 6), 8), configuration("nv_small")
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    made, same = (
        build(net, each, "int8", scales, level=level, images=2).loadable.to_bytes()
        for each in (replace(known, name="mine"), known)
    )
    assert made == same
