"""The mean of each channel has a scale of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.build_checks import build_and_run, samples

from nvdla.compiler.builder import Network, build, calibrate, layer_errors
from nvdla.compiler.builder.ir import Convolve, Pool
from nvdla.compiler.builder.lower.lowering import lower
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import BuildError


def averaging(shape, kind="mean"):
    """A ReLU of a scaled input, and its mean."""
    net = Network("averaging")
    x = net.relu("r", net.scale("s", net.input("x", shape), np.linspace(0.5, 1.5, shape[0])))
    net.output(net.mean("m", x) if kind == "mean" else net.global_average_pool("m", x))
    return net


@pytest.mark.parametrize("config", ["nv_small", "nv_large", "nv_full"])
@pytest.mark.parametrize("shape", [(8, 1, 1), (16, 7, 7), (24, 14, 10), (5, 3, 2), (40, 48, 64), (3, 112, 112)])
def test_a_mean_equals_plain_numpy_with_and_without_zero_points(config, shape):
    net = averaging(shape)
    data = samples(net, np.random.default_rng(2), 1)
    symmetric = calibrate(net, data)
    for calibration in (symmetric, replace(symmetric, zero_points=True, ranges={"m": (-0.01, 0.9)})):
        build_and_run(net, config, "int8", False, data, calibration)


@pytest.mark.parametrize("config", ["nv_full"])
@pytest.mark.parametrize("precision", ["int16", "fp16"])
def test_means_of_other_precisions(config, precision):
    net = averaging((24, 14, 10))
    data = samples(net, np.random.default_rng(2), 1)
    calibration = None if precision == "fp16" else calibrate(net, data, levels=32768)
    build_and_run(net, config, precision, False, data, calibration)


def test_a_mean_keeps_more_bits_than_a_pool():
    """Sparse maps: their means are a hundredth of their largest element."""
    x = np.random.default_rng(3).normal(size=(4, 16, 14, 14)) ** 5
    worst = {}
    for kind in ("mean", "pool"):
        net = averaging((16, 14, 14), kind)
        built = build(net, "nv_small", "int8", calibrate(net, x))
        worst[kind] = layer_errors(net, built, x[:1])["m"]["snr_db"]
    assert worst["mean"] > worst["pool"] + 15


def test_small_maps_are_one_convolution_and_large_ones_are_pooled_before():
    def kinds(shape):
        net = averaging(shape)
        program = lower(net, configuration("nv_small"), "int8", calibrate(net, np.ones((1, *shape))))
        return [type(each) for each in program.operations][1:]

    assert kinds((16, 7, 7)) == [Convolve]
    assert kinds((16, 64, 64)) == [Pool, Convolve]


def test_a_map_that_does_not_divide_is_refused():
    net = averaging((16, 37, 41))
    with pytest.raises(BuildError, match="layer m: the mean over 37x41"):
        build(net, "nv_small", "int8", calibrate(net, np.ones((1, 16, 37, 41))))
