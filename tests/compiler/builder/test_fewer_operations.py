"""What takes one operation of the hardware instead of several: branches that are added, products with a sum, scaling in
one stage, wide pools."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.build_checks import TARGETS, build_and_run, engines, samples, signal_to_noise

import nvdla
from nvdla.compiler.builder import Calibration, Network, build, calibrate, floating
from nvdla.compiler.builder.accuracy import accuracy
from nvdla.program.program import Program


def convolution(net, rng, name, x, kernels, size, stride=1, padding=None):
    weights = rng.normal(size=(kernels, x.shape[0], *size))
    padding = (size[0] // 2, size[1] // 2) if padding is None else padding
    return net.convolution(name, x, weights, rng.normal(size=kernels), stride, padding)


def layers(built) -> list[str]:
    return [operation.layer for operation in built.program.operations]


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@pytest.mark.parametrize("sizes", [((3, 3), (1, 1)), ((1, 1), (5, 3)), ((1, 7), (7, 1))])
@pytest.mark.parametrize("stride", [1, 2])
def test_branches_on_one_tensor_are_one_convolution(config, precision, per_channel, sizes, stride):
    rng = np.random.default_rng(1)
    net = Network("branches")
    x = net.input("in", (9, 11, 12))
    a, b = (convolution(net, rng, name, x, 20, size, stride) for name, size in zip("ab", sizes, strict=True))
    net.output(net.relu("r", net.add("sum", a, b)))
    data = samples(net, rng)
    built = build_and_run(net, config, precision, per_channel, data)
    assert layers(built) == ["a+b+sum+r"]
    plain = build(net, config, precision, calibrate(net, data), per_channel, level=0)
    assert layers(plain) == ["a", "b", "sum+r"]
    assert signal_to_noise(net, built, data) >= signal_to_noise(net, plain, data) - 0.5


def test_a_chain_of_sums_is_one_convolution_too():
    rng = np.random.default_rng(2)
    net = Network("chain")
    x = net.input("in", (8, 8, 8))
    made = [convolution(net, rng, name, x, 8, size) for name, size in (("a", (3, 3)), ("b", (1, 1)), ("c", (1, 3)))]
    net.output(net.add("second", net.add("first", *made[:2]), made[2]))
    data = samples(net, rng)
    built = build_and_run(net, "nv_small", "int8", False, data)
    assert layers(built) == ["a+b+first+c+second"]
    (row,) = accuracy(net, built, [floating.run(net, {"in": data["in"][:1]})])
    assert row.layer == "a+b+first+c+second"
    assert row.alone > 30


APART = {
    "unlike strides": lambda net, rng, x: (
        convolution(net, rng, "a", x, 8, (3, 3), 2),
        convolution(net, rng, "b", net.max_pool("p", x, 2), 8, (1, 1)),
    ),
    "a result that is an output": lambda net, rng, x: (
        net.output(a := convolution(net, rng, "a", x, 8, (3, 3))) or a,
        convolution(net, rng, "b", x, 8, (1, 1)),
    ),
    "an activation between": lambda net, rng, x: (
        net.relu("ra", convolution(net, rng, "a", x, 8, (3, 3))),
        convolution(net, rng, "b", x, 8, (1, 1)),
    ),
}


@pytest.mark.parametrize("name", APART)
def test_other_branches_stay_apart(name):
    rng = np.random.default_rng(3)
    net = Network("apart")
    a, b = APART[name](net, rng, net.input("in", (8, 8, 8)))
    net.output(net.add("sum", a, b))
    assert engines(build_and_run(net, "nv_small", "int8", False, samples(net, rng))).count("conv") == 2


def test_scales_that_are_given_for_a_branch_keep_it_apart():
    rng = np.random.default_rng(4)
    net = Network("given")
    x = net.input("in", (8, 8, 8))
    a, b = convolution(net, rng, "a", x, 8, (3, 3)), convolution(net, rng, "b", x, 8, (1, 1))
    net.output(net.add("sum", a, b))
    data = samples(net, rng)
    scales = Calibration(calibrate(net, data).magnitudes, {"a": np.full(8, 0.05)})
    assert engines(build_and_run(net, "nv_small", "int8", True, data, scales)).count("conv") == 2


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@pytest.mark.parametrize("size", [0.01, 1.0, 50.0])
def test_a_product_and_a_sum_with_constants_are_one_operation(config, precision, per_channel, size):
    rng = np.random.default_rng(5)
    net = Network("affine")
    x = net.input("in", (20, 6, 7))
    product = net.multiply("m", x, net.constant("f", rng.normal(size=(20, 6, 7))))
    net.output(net.relu("r", net.add("s", product, net.constant("c", size * rng.normal(size=(20, 6, 7))))))
    data = samples(net, rng)
    built = build_and_run(net, config, precision, per_channel, data)
    if precision == "int16" and size > 1:  # products of 30 bits leave no room
        assert engines(built) == ["sdp", "sdp"]
        return
    assert engines(built) == ["sdp"]
    plain = build(net, config, precision, calibrate(net, data), per_channel, level=0)
    assert engines(plain) == ["sdp", "sdp"]
    assert signal_to_noise(net, built, data) >= signal_to_noise(net, plain, data) - 3


def test_scaling_in_halves_takes_one_stage_unless_a_factor_is_small():
    rng = np.random.default_rng(6)
    for least, stages in ((0.5, 1), (0.0, 2)):
        net = Network("scale")
        factors = rng.uniform(0.5, 2, 16)
        factors[3] = least
        net.output(net.scale("s", net.input("in", (16, 5, 6)), factors, rng.normal(size=16)))
        built = build_and_run(net, "nv_full", "fp16", False, samples(net, rng))
        (operation,) = built.program.operations
        assert len(operation.stages) == stages


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@pytest.mark.parametrize("kernel", [2, 4])
def test_the_pdp_splits_the_width_of_a_wide_pool(config, precision, per_channel, kernel):
    rng = np.random.default_rng(7)
    net = Network("wide")
    net.output(net.max_pool("p", net.input("in", (20, 8, 2200)), kernel))
    built = build_and_run(net, config, precision, per_channel, samples(net, rng, 1))
    (pool,) = (each.op for each in Program.of(built.loadable, config).operations)
    widths = pool.partial_width_first, pool.partial_width_mid, pool.partial_width_last
    assert pool.split_num > 2
    assert widths[0] + (pool.split_num - 2) * widths[1] + widths[2] == 2200 // kernel


def test_windows_that_overlap_are_pools_of_their_own():
    rng = np.random.default_rng(8)
    net = Network("wide")
    net.output(net.max_pool("p", net.input("in", (20, 8, 1100)), 3, 2, 1))
    assert len(engines(build_and_run(net, "nv_large", "int8", False, samples(net, rng, 1)))) > 1


@pytest.mark.parametrize("precision", ["int8", "int16"])
@pytest.mark.parametrize(("steps", "stages"), [(3.0, 1), (-40.0, 1), (2.4, 2)])
def test_a_bias_of_whole_steps_is_added_in_the_stage_that_multiplies(precision, steps, stages):
    rng = np.random.default_rng(4)
    net, factors = Network("scale"), rng.uniform(0.5, 1.5, 9)
    scale = 1 / (127 if precision == "int8" else 32767)
    net.output(net.scale("s", net.input("in", (9, 6, 7)), factors, factors * steps * scale))
    calibration = Calibration.from_scales({"in": scale, "s": 2 * scale}, precision)
    built = build(net, "nv_full", precision, calibration)
    (process,) = built.program.operations
    assert len(process.stages) == stages
    elements = built.quantize_inputs(rng.uniform(-1, 1, (2, 9, 6, 7)))
    found = nvdla.Runtime(built.loadable, "nv_full").run(elements)["s"]
    assert np.array_equal(found, built.expected(elements)["s"])
    exact = (elements["in"] + steps) * factors[:, None, None] / 2
    assert np.abs(np.clip(exact, -128, 127) - found).max() < 0.53 or precision == "int16"


def test_a_zero_point_after_a_convolution_needs_no_factors_per_channel():
    rng = np.random.default_rng(5)
    net = Network("zero")
    x = convolution(net, rng, "c", net.input("in", (8, 8, 8)), 16, (3, 3))
    net.output(convolution(net, rng, "d", net.relu("r", x), 8, (1, 1)))
    data = samples(net, rng)
    built = build(net, "nv_small", "int8", replace(calibrate(net, data), zero_points=True))
    made = built.program.operations[0]
    assert made.process.destination.zero == -128
    assert made.process.x1.multiplier is None
    elements = built.quantize_inputs(data)
    found = nvdla.Runtime(built.loadable, "nv_small").run(elements)["d"]
    assert np.array_equal(found, built.expected(elements)["d"])
    one = {name: each[0] for name, each in elements.items()}
    assert built.tensors(one)["r"].min() == 0
