"""Sums behind the convolution that makes one of their inputs: no operation of their own."""

from __future__ import annotations

import numpy as np
import pytest
from support.build_checks import TARGETS, build_and_run, engines, samples, signal_to_noise

from nvdla.analysis.study import Study
from nvdla.compiler.builder import Built, Network, build, calibrate


def block(rng, channels=40, sums=("b", "a"), output=None) -> Network:
    """relu(a) and b = conv(relu(a)) are added; ``output`` names a tensor that the application wants, too."""
    net = Network("block")
    x = net.input("in", (8, 12, 12))
    a = net.relu(
        "ra", net.convolution("a", x, rng.normal(size=(channels, 8, 3, 3)), rng.normal(size=channels), padding=1)
    )
    b = net.convolution("b", a, rng.normal(size=(channels, channels, 3, 3)) * 0.1, rng.normal(size=channels), padding=1)
    made = {"a": a, "b": b}
    net.output(net.relu("r", net.add("sum", *(made[name] for name in sums))))
    if output:
        net.output(made[output])
    return net


def layers(built: Built) -> list[str]:
    """What operations are called, in order."""
    return [operation.layer for operation in built.program.operations]


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@pytest.mark.parametrize("sums", ["ab", "ba"])
def test_a_sum_fused_into_its_convolution_equals_the_reference(config, precision, per_channel, sums):
    rng = np.random.default_rng(1)
    net = block(rng, sums=sums)
    data = samples(net, rng)
    built = build_and_run(net, config, precision, per_channel, data)
    assert layers(built) == ["a+ra", "b+sum+r"]
    plain = build(net, config, precision, calibrate(net, data), per_channel, level=0)
    assert layers(plain) == ["a+ra", "b", "sum+r"]
    loss = 4 if precision == "fp16" else 0.1  # one rounding less, but in fp16 those of Winograd's method
    assert signal_to_noise(net, built, data) >= signal_to_noise(net, plain, data) - loss


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@pytest.mark.parametrize("operation", ["multiply", "maximum", "minimum"])
def test_products_and_extremes_are_fused_into_their_convolution(config, precision, per_channel, operation):
    rng = np.random.default_rng(7)
    net = Network("block")
    x = net.input("in", (8, 10, 11))
    a = net.convolution("a", x, rng.normal(size=(20, 8, 1, 1)), rng.normal(size=20))
    b = net.convolution("b", a, rng.normal(size=(20, 20, 3, 3)) * 0.1, rng.normal(size=20), padding=1)
    net.output(net.relu("r", getattr(net, operation)("e", a, b)))
    data = samples(net, rng)
    built = build_and_run(net, config, precision, per_channel, data)
    fused = precision != "int16" or operation != "multiply"  # no room for products of 16 bits in finer steps
    assert layers(built) == (["a", "b+e+r"] if fused else ["a", "b", "e+r"])
    plain = build(net, config, precision, calibrate(net, data), per_channel, level=0)
    assert signal_to_noise(net, built, data) >= signal_to_noise(net, plain, data) - 0.5


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
def test_a_product_fused_into_its_convolution_does_not_change_the_sum(config, precision, per_channel):
    rng = np.random.default_rng(8)
    net = Network("block")
    x = net.convolution("a", net.input("in", (8, 10, 11)), rng.normal(size=(20, 8, 1, 1)))
    factors, summands = (net.constant(name, rng.normal(size=x.shape)) for name in ("k", "c"))
    net.output(net.add("s", net.multiply("m", x, factors), summands))
    built = build_and_run(net, config, precision, per_channel, samples(net, rng))
    assert layers(built) == (["a+m", "s"] if precision != "int16" else ["a", "m+s"])


def test_a_convolution_that_others_need_keeps_its_own_result():
    rng = np.random.default_rng(2)
    net = block(rng, output="b")
    assert layers(build_and_run(net, "nv_small", "int8", False, samples(net, rng))) == ["a+ra", "b", "sum+r"]


def test_a_tensor_added_to_itself_and_a_chain_of_sums_stay_as_they_are():
    rng = np.random.default_rng(3)
    net = Network()
    x = net.input("in", (8, 6, 6))
    y = net.convolution("c", x, rng.normal(size=(8, 8, 1, 1)))
    net.output(net.add("twice", y, y))
    build_and_run(net, "nv_small", "int8", False, samples(net, rng))


def test_tiles_take_their_part_of_the_other_summand():
    rng = np.random.default_rng(4)
    net = Network()
    x = net.input("in", (16, 90, 120))
    y = net.convolution("c", x, rng.normal(size=(16, 16, 3, 3)), rng.normal(size=16), padding=1)
    net.output(net.add("sum", x, y))
    built = build_and_run(net, "nv_small", "int8", False, samples(net, rng, 1))
    assert engines(built).count("conv") > 1
    assert engines(built).count("sdp") == engines(built).count("conv")


def test_scales_too_far_apart_are_added_apart():
    """A summand whose steps are coarse for the sum cannot be brought to finer ones by enough bits."""
    rng = np.random.default_rng(5)
    net = Network()
    x, z = net.input("in", (8, 6, 6)), net.input("small", (8, 6, 6))
    y = net.convolution("c", x, rng.normal(size=(8, 8, 1, 1)) * 1e6)
    net.output(net.add("sum", y, z))
    built = build_and_run(net, "nv_small", "int8", False, samples(net, rng))
    assert engines(built) == ["conv", "sdp", "sdp"]


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_the_cycle_model_predicts_the_gain(config):
    rng = np.random.default_rng(6)
    net = block(rng)
    scales = calibrate(net, samples(net, rng))
    made = [build(net, config, "int8", scales, level=level).loadable for level in (0, 1)]
    cycles = [Study.of(each, config).schedule.cycles for each in made]
    assert cycles[1] < 0.95 * cycles[0]
