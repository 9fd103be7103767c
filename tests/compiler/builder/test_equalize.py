"""Cross-layer equalization: the same network in floats, channels of like sizes, and integers that still match."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.build_checks import build_and_run, samples, signal_to_noise
from support.random_networks import networks

from nvdla.compiler.builder import Network, build, calibrate, floating
from nvdla.compiler.builder.calibration import Statistics
from nvdla.compiler.builder.refinement import equalize, fold


def _peaks(net: Network, data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    statistics = Statistics(histograms=False)
    statistics.update(floating.run(net, data))
    return dict(statistics.peaks)


def _uneven(rng: np.random.Generator, clip: bool) -> Network:
    """A chain of a 1x1 convolution, a depthwise one and another 1x1 whose channels differ by a thousand."""
    net = Network("uneven")
    spread = np.exp(rng.uniform(-3.5, 3.5, 32))
    x = net.convolution("expand", net.input("in", (8, 12, 12)), rng.normal(size=(32, 8, 1, 1)) * _column(spread))
    x = net.clip("relu6", x, 0.0, 600.0) if clip else net.relu("relu6", x)
    x = net.depthwise("depthwise", x, rng.normal(size=(32, 1, 3, 3)) / _column(spread), padding=1)
    spread2 = np.exp(rng.uniform(-2, 2, 32))
    x = net.batch_norm("bn", x, np.zeros(32), np.ones(32), spread2, rng.normal(size=32) * spread2)
    x = net.max_pool("pool", net.relu("relu", x), 2)
    x = net.convolution("project", x, rng.normal(size=(8, 32, 1, 1)) / spread2[None, :, None, None], np.ones(8))
    net.output(x)
    return net


def _column(values: np.ndarray) -> np.ndarray:
    return values[:, None, None, None]


@pytest.mark.parametrize("clip", [False, True], ids=["relu", "relu6"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["one scale a layer", "one scale a kernel"])
def test_a_depthwise_chain_gains_many_decibels(clip, per_channel):
    rng = np.random.default_rng(1)
    net = _uneven(rng, clip)
    data = samples(net, rng, 4)
    equal, factors = equalize(net, _peaks(net, data), per_channel)
    assert np.ptp(np.log(factors["relu6"])) > 1
    before, after = (
        signal_to_noise(each, build(each, "nv_small", "int8", calibrate(each, data), per_channel), data)
        for each in (net, equal)
    )
    assert after > before + 4
    build_and_run(equal, "nv_small", "int8", per_channel, data)


def test_residual_sums_tie_channels_and_still_gain():
    rng = np.random.default_rng(2)
    net = Network("residual")
    spread = np.exp(rng.uniform(-3, 3, 16))
    x = net.convolution("stem", net.input("in", (3, 10, 10)), rng.normal(size=(16, 3, 1, 1)) * _column(spread))
    y = net.convolution("branch", x, rng.normal(size=(16, 16, 1, 1)) * _column(spread) / spread[None, :, None, None])
    x = net.relu("sum", net.add("add", x, y))
    net.output(net.convolution("last", x, rng.normal(size=(8, 16, 1, 1)) / spread[None, :, None, None]))
    data = samples(net, rng, 4)
    equal, factors = equalize(net, _peaks(net, data), False)
    np.testing.assert_array_equal(factors["stem"], factors["branch"])
    np.testing.assert_array_equal(factors["stem"], factors["sum"])
    before, after = (
        signal_to_noise(each, build(each, "nv_small", "int8", calibrate(each, data)), data) for each in (net, equal)
    )
    assert after > before + 6


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(net=networks())
def test_the_float_results_of_any_network_stay_and_tensors_are_divided_as_stated(net):
    data = samples(net, np.random.default_rng(3))
    exact = floating.run(net, data)
    equal, factors = equalize(net, _peaks(net, data), False)
    found = floating.run(equal, data)
    for tensor in net.outputs:
        np.testing.assert_allclose(found[tensor.name], exact[tensor.name], rtol=1e-6, atol=1e-9)
    for name, by in factors.items():
        scaled = exact[name] / by[None, :, None, None]
        np.testing.assert_allclose(found[name], scaled, rtol=1e-6, atol=1e-9 * max(np.abs(scaled).max(), 1.0))


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(net=networks())
def test_an_equalized_random_network_equals_plain_numpy(net):
    data = samples(net, np.random.default_rng(4), 1)
    for per_channel in (False, True):
        equal, _ = equalize(net, _peaks(net, data), per_channel)
        build_and_run(equal, "nv_small", "int8", per_channel, data)


def test_folding_keeps_names_and_results():
    rng = np.random.default_rng(5)
    net = _uneven(rng, False)
    folded = fold(net)
    assert [layer.name for layer in folded.layers] == [layer.name for layer in net.layers]
    assert np.all(folded.layer("bn").settings.factors == 1)
    data = samples(net, rng)
    np.testing.assert_allclose(floating.run(folded, data)["bn"], floating.run(net, data)["bn"], rtol=1e-9, atol=1e-9)


def test_limits_a_channel_are_kept_by_every_precision():
    rng = np.random.default_rng(6)
    for after in (True, False):
        net = Network()
        x = net.input("in", (20, 6, 6))
        if after:
            x = net.convolution("c", x, rng.normal(size=(20, 20, 1, 1)))
        net.output(net.clip("limit", x, 0.0, np.linspace(0.2, 2, 20)))
        data = samples(net, rng)
        for precision in ("int8", "int16", "fp16"):
            built = build_and_run(net, "nv_full", precision, False, data)
            assert signal_to_noise(net, built, data) > 30
