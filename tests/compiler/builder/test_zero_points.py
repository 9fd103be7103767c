"""Tensors with zero points: exact on the hardware, and finer than symmetric ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.build_checks import build_and_run, samples
from support.random_networks import networks

from nvdla import Runtime
from nvdla.compiler.builder import Network, build, calibrate, floating, layer_errors
from nvdla.compiler.builder.ir import Convert
from nvdla.errors import BuildError
from nvdla.loadable.descriptors.abi import abi_named
from nvdla.loadable.descriptors.task import DlaTask

SETTINGS = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
ALL = [("nv_small", False), ("nv_small", True), ("nv_large", True), ("nv_full", False)]


def with_ranges(net, data, bound=True):
    """A calibration that gives every tensor the range that it has in floats, as quantized models do."""
    values = floating.run(net, data)
    ends = {tensor.name for tensor in (*net.inputs, *net.outputs)}
    ranges = {
        name: (min(float(each.min()), 0.0), max(float(each.max()), 0.0))
        for name, each in values.items()
        if bound or name not in ends
    }
    return replace(calibrate(net, data), zero_points=True, ranges=ranges)


@pytest.mark.parametrize(("config", "per_channel"), ALL)
@SETTINGS
@given(net=networks())
def test_random_networks_with_zero_points_equal_plain_numpy(config, per_channel, net):
    data = samples(net, np.random.default_rng(1), 1)
    build_and_run(net, config, "int8", per_channel, data, with_ranges(net, data))


def branches(rng):
    """Every kind of layer that takes a zero point, on tensors behind ReLUs."""
    net = Network("branches")
    x = net.input("x", (16, 12, 12))

    def conv(name, source, kernels, size=3, **settings):
        weights = rng.normal(size=(kernels, source.shape[0] // settings.get("groups", 1), size, size))
        bias = rng.normal(size=kernels) * 3
        made = net.convolution(f"{name}/conv", source, weights, bias, padding=size // 2, **settings)
        return net.relu(name, made)

    a = conv("a", x, 16)
    b = conv("b", a, 16, groups=16)
    pooled = net.max_pool("pooled", b, 3, 2, 1)
    averaged = net.average_pool("averaged", b, 3, 2, 1)
    both = net.concat("both", pooled, averaged)
    summed = net.relu("summed", net.add("sum", conv("c", both, 16, 1), net.scale("d", pooled, rng.normal(size=16))))
    up = net.relu("up", net.deconvolution("up/conv", summed, rng.normal(size=(16, 16, 2, 2)), rng.normal(size=16), 2))
    residual = net.convolution("residual/conv", up, rng.normal(size=(16, 16, 1, 1)) / 4)
    total = net.relu("total", net.add("total/sum", residual, b))
    gate = net.sigmoid("gate", net.convolution("gate/conv", total, rng.normal(size=(16, 16, 1, 1)) / 16))
    gated = net.multiply("gated", total, gate)
    limited = net.clip("limited", net.upsample("upsampled", net.slice("part", gated, (0, 8)), 2), 0.5, 9.0)
    mean = net.global_average_pool("mean", limited)
    net.output(net.fully_connected("out", mean, rng.normal(size=(10, 8))))
    return net


def noise(net, built, data):
    return {name: error["snr_db"] for name, error in layer_errors(net, built, data).items()}


@pytest.mark.parametrize(("config", "per_channel"), ALL)
def test_tensors_after_relus_have_less_noise(config, per_channel):
    net = branches(np.random.default_rng(2))
    data = samples(net, np.random.default_rng(3), 2)
    calibration = calibrate(net, data)
    symmetric = noise(net, build(net, config, "int8", calibration, per_channel), data)
    built = build_and_run(net, config, "int8", per_channel, data, replace(calibration, zero_points=True))
    tensors = built.program.tensors
    assert {"a", "b", "pooled", "averaged", "both", "c", "summed", "up", "total"} <= {
        name for name, surface in tensors.items() if surface.zero == -128
    }
    assert tensors["x"].zero == tensors["out"].zero == 0
    found = noise(net, built, data)
    # The weights are rounded as before, so the noise of the activations is a part of all.
    gained = {name: found[name] - symmetric[name] for name in ("a", "b", "both", "summed", "up", "total")}
    assert min(gained.values()) > 1.5, gained
    assert built.sidecar["tensors"]["b"]["zero_point"] == -128


def test_a_tensor_that_a_layer_cannot_take_stays_symmetric():
    net = Network("lrn")
    x = net.input("x", (8, 6, 6))
    a = net.relu("a", net.convolution("conv", x, np.random.default_rng(1).normal(size=(8, 8, 1, 1))))
    net.output(net.lrn("lrn", a))
    net.output(net.convolution("other", a, np.ones((1, 8, 1, 1))))
    data = samples(net, np.random.default_rng(3), 1)
    built = build(net, "nv_small", "int8", replace(calibrate(net, data), zero_points=True))
    assert built.program.tensors["a"].zero == 0


def test_padding_is_the_element_that_stands_for_zero():
    """A border of real zeros: the descriptor of the convolution says -128, that of the average says its multiples."""
    net = Network("pads")
    x = net.input("x", (8, 5, 5))
    a = net.relu("a", net.convolution("conv", x, np.eye(8)[:, :, None, None]))
    net.output(net.convolution("b", a, np.ones((1, 8, 3, 3)), padding=1))
    net.output(net.average_pool("c", a, 3, 1, 1))
    data = samples(net, np.random.default_rng(3), 1)
    calibration = replace(with_ranges(net, data, bound=False), ranges={"c": (0.0, 3.0)})
    built = build_and_run(net, "nv_small", "int8", False, data, calibration)
    assert built.program.tensors["c"].zero == -128
    task = DlaTask.decode(built.loadable, built.loadable.tasks[0], abi_named("new"))
    convolutions = [each.op.pad_val for each in map(task.operation, range(len(task))) if each.engine == "conv"]
    assert -128 in convolutions


def conv_relu(net, rng, name, x, kernels=16, size=1):
    weights, bias = rng.normal(size=(kernels, x.shape[0], size, size)), rng.normal(size=kernels)
    return net.relu(name, net.convolution(f"{name}/conv", x, weights, bias, padding=size // 2))


def one_operation_less(form):
    """A network of a tensor behind a ReLU and what ``form`` makes of it, run at level 1 on nv_small; its operations."""
    rng = np.random.default_rng(5)
    net = Network("joined")
    a = conv_relu(net, rng, "a", net.input("x", (8, 9, 10)))
    net.output(form(net, rng, a))
    data = samples(net, rng)
    built = build_and_run(net, "nv_small", "int8", False, data, replace(calibrate(net, data), zero_points=True))
    return [operation.layer for operation in built.program.operations], built.program.tensors["a"].zero


def test_a_product_fused_into_its_convolution_comes_before_a_zero_point():
    """X2 multiplies by the elements as they lie in memory."""
    found = one_operation_less(
        lambda net, rng, a: net.relu(
            "r", net.multiply("m", a, net.convolution("b", a, rng.normal(size=(16, 16, 1, 1))))
        )
    )
    assert found == (["a/conv+a", "b+m+r"], 0)


def test_a_product_and_a_sum_with_constants_stay_one_operation():
    def affine(net, rng, a):
        product = net.multiply("m", a, net.constant("f", np.abs(rng.normal(size=a.shape))))
        return net.add("s", product, net.constant("c", rng.normal(size=a.shape)))

    assert one_operation_less(affine) == (["a/conv+a", "m+s"], 0)


def test_sums_and_branches_on_tensors_with_zero_points_stay_one_operation():
    def branches_of(net, rng, a):
        b = net.convolution("b", a, rng.normal(size=(16, 16, 3, 3)), rng.normal(size=16), padding=1)
        c = net.convolution("c", a, rng.normal(size=(16, 16, 1, 1)), rng.normal(size=16))
        both = net.relu("both", net.add("sum", b, c))
        return net.add("total", both, net.convolution("d", both, rng.normal(size=(16, 16, 1, 1))))

    assert one_operation_less(branches_of) == (["a/conv+a", "b+c+sum+both", "d+total"], -128)


@pytest.mark.parametrize(("config", "per_channel"), ALL)
@pytest.mark.parametrize(("level", "images"), [(0, 1), (2, 1), (1, 2)])
def test_every_level_and_batches_give_the_bytes_of_the_reference(config, per_channel, level, images):
    net = branches(np.random.default_rng(2))
    data = samples(net, np.random.default_rng(3), images)
    scales = with_ranges(net, {name: each[:1] for name, each in data.items()})
    built = build(net, config, "int8", scales, per_channel, level=level, images=images)
    assert built.zero_points
    elements = built.quantize_inputs(data)
    found, expected = Runtime(built.loadable, config).run(elements), built.expected(elements)
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name].reshape(wanted.shape), wanted)


@pytest.mark.parametrize("offset", [1 << 31, -(1 << 31) - 1, 10**40])
def test_an_offset_that_the_register_does_not_hold_is_refused(offset):
    """The descriptor's 32 bits would hold another number."""
    with pytest.raises(BuildError, match="offset: must fit into 32 bits"):
        Convert(offset=offset)
