"""Calibration and fixed-point factors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvdla.compiler.builder import BuildError, Calibration, Network, build, calibrate, layer_errors
from nvdla.compiler.builder.calibration import METHODS, Histogram, entropy_limit, mse_limit, percentile_limit
from nvdla.compiler.builder.ir import Convolve
from nvdla.compiler.builder.quantization import common_fixed_point, fixed_point, weight_scales


@given(st.floats(1e-9, 30000.0))
def test_a_factor_as_multiplier_and_shift_is_right_to_15_bits(ratio):
    multiplier, shift = fixed_point(ratio)
    assert 0 < multiplier < 1 << 15
    assert 0 <= shift <= 63
    assert multiplier / 2.0**shift == pytest.approx(ratio, rel=2.0**-14)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_factors_with_a_common_shift_are_as_fine_as_the_largest_allows(ratios):
    multipliers, shift = common_fixed_point(np.array(ratios))
    assert np.all(np.abs(multipliers) < 1 << 15)
    assert np.all(np.abs(multipliers / 2.0**shift - ratios) <= 0.5 / 2.0**shift + 1e-300)


def test_weight_scales_are_of_a_layer_or_of_a_kernel():
    weights = np.array([[1.0, -2.0], [0.0, 0.0], [0.5, 0.25]]).reshape(3, 2, 1, 1)
    np.testing.assert_allclose(weight_scales(weights, "int8", False), [2 / 127] * 3)
    np.testing.assert_allclose(weight_scales(weights, "int8", True), [2 / 127, 2 / 127, 0.5 / 127])


def _net(shape: tuple[int, int, int] = (3, 8, 8)) -> Network:
    net = Network()
    x = net.convolution("c", net.input("in", shape), np.random.default_rng(1).normal(size=(6, 3, 3, 3)))
    net.output(net.relu("r", x))
    return net


def _histogram(*batches: np.ndarray) -> Histogram:
    histogram = Histogram()
    for values in batches:
        histogram.add(values, float(np.abs(values).max()))
    return histogram


def test_max_covers_everything_and_the_other_methods_cut_outliers():
    data = np.random.default_rng(2).normal(size=(64, 3, 64, 64))  # less than one in a million is far off
    data[0, 0, 0, 0] = 40.0
    net = _net((3, 64, 64))
    found = {method: calibrate(net, data, method).magnitudes["in"] for method in METHODS}
    assert found["max"] == 40.0
    assert found["percentile"] < 10
    assert found["entropy"] < 30
    assert found["mse"] < 20


@pytest.mark.parametrize("method", METHODS)
def test_batches_and_one_array_calibrate_alike_in_any_order(method):
    data = np.random.default_rng(3).normal(size=(8, 3, 8, 8)) * np.arange(1, 9).reshape(8, 1, 1, 1)
    whole = calibrate(_net(), data, method).magnitudes
    assert calibrate(_net(), [data[:4], {"in": data[4:]}], method).magnitudes == whole
    assert calibrate(_net(), list(data[::-1]), method).magnitudes == whole


def test_entropy_keeps_a_uniform_histogram_whole():
    assert entropy_limit(_histogram(np.linspace(0, 1, 100000)), 127) > 0.9


@pytest.mark.parametrize("zeros", [0, 60000])
@pytest.mark.parametrize("middle", [-2.0, 0.0])
def test_entropy_keeps_the_large_values_after_a_hard_swish(zeros, middle):
    """Most magnitudes are below 0.4. The divergence alone saturates at 0.5 to 1 of 9: 2 to 4 dB."""
    rng = np.random.default_rng(0)
    before = np.concatenate([rng.normal(middle, 2, 40000), rng.uniform(0, 8, 400)])
    values = np.concatenate([before * np.clip(before / 6 + 0.5, 0, 1), np.zeros(zeros)]).astype(np.float32)
    unit = entropy_limit(_histogram(values), 127) / 127
    rounded = np.clip(np.rint(values / unit), -127, 127) * unit
    assert 10 * np.log10(np.sum(values**2) / np.sum((values - rounded) ** 2)) > 24


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 3.0))
@settings(max_examples=20, deadline=None)
def test_no_limit_has_a_smaller_squared_error_than_mse_by_more_than_a_tenth(seed, tail):
    """Against plain search over limits with the quantizer itself."""
    values = np.random.default_rng(seed).standard_t(2 + tail, 4000)

    def error(limit: float) -> float:
        step = limit / 127
        return float(np.mean((np.clip(np.round(values / step), -127, 127) * step - values) ** 2))

    best = min(error(limit) for limit in np.linspace(0.02, 1, 100) * np.abs(values).max())
    assert error(mse_limit(_histogram(values), 127)) <= 1.1 * best


@given(st.integers(0, 2**32 - 1), st.sampled_from([50.0, 90.0, 99.0, 99.9, 100.0]))
@settings(max_examples=20, deadline=None)
def test_a_percentile_is_right_to_a_bin(seed, percentile):
    values = np.maximum(np.random.default_rng(seed).normal(size=5000), 0)
    histogram = _histogram(values[:10], values[10:])
    wanted = np.percentile(values, percentile, method="inverted_cdf")
    assert percentile_limit(histogram, percentile) == pytest.approx(wanted, abs=2 * histogram.width)


@pytest.mark.parametrize("number", [np.nan, np.inf, -1e39])
def test_infinities_in_calibration_are_named(number):
    """Those of float32, too, in which results leave a part."""
    with pytest.raises(BuildError, match=r"layer in: .* NaN or infinity"):
        calibrate(_net(), np.full((1, 3, 8, 8), number))


def test_given_weight_scales_are_used_and_checked():
    net, data = _net(), np.random.default_rng(6).normal(size=(2, 3, 8, 8))
    calibration = replace(calibrate(net, data), weight_scales={"c": np.full(6, 0.25)})
    built = build(net, "nv_small", "int8", calibration)
    weights = next(each for each in built.program.operations if isinstance(each, Convolve)).weights
    np.testing.assert_array_equal(weights, np.floor(net.layers[1].settings.weights / 0.25 + 0.5))
    with pytest.raises(BuildError, match="layer c: weight scales"):
        build(net, "nv_small", "int8", replace(calibration, weight_scales={"c": np.zeros(6)}))


def test_scales_of_a_calibration_table_are_taken_over():
    found = Calibration.from_scales({"in": 0.5}).with_magnitudes(r=254.0)
    assert found.scale("in", "int8") == 0.5
    assert found.scale("r", "int8") == 2.0


def test_errors_are_reported_for_every_layer_and_shrink_with_precision():
    net, data = _net(), np.random.default_rng(4).normal(size=(4, 3, 8, 8))
    reports = [
        layer_errors(net, build(net, "nv_full", p, calibrate(net, data)), data) for p in ("int8", "int16", "fp16")
    ]
    for report in reports:
        assert list(report) == ["in", "r"]
        assert set(report["r"]) == {"rms", "max", "snr_db", "scale"}
    assert reports[0]["r"]["rms"] > 20 * reports[1]["r"]["rms"]
    assert reports[0]["r"]["rms"] > 5 * reports[2]["r"]["rms"]


def test_weight_scales_a_channel_lower_the_error_of_uneven_kernels():
    rng = np.random.default_rng(5)
    net = Network()
    weights = rng.normal(size=(8, 3, 3, 3)) * np.logspace(-2, 0, 8)[:, None, None, None]
    x = net.convolution("c", net.input("in", (3, 8, 8)), weights)
    net.output(net.scale("s", x, 1 / np.logspace(-2, 0, 8)))
    data = rng.normal(size=(4, 3, 8, 8))
    net2 = Network()
    x = net2.convolution("c", net2.input("in", (3, 8, 8)), weights)
    net2.output(x)
    errors = [
        layer_errors(net2, build(net2, "nv_small", "int8", calibrate(net2, data), per_channel), data)["c"]["rms"]
        for per_channel in (False, True)
    ]
    assert errors[1] <= errors[0]


@pytest.mark.parametrize("precision", ["int8", "int16"])
def test_kernels_of_zeros_cost_the_others_no_accuracy(precision):
    """Pruning leaves them: their channels are their biases."""
    rng = np.random.default_rng(11)
    data, ratios = rng.normal(size=(4, 8, 10, 10)), []
    for size in (1.0, 0.0):
        net, weights = Network(), 0.15 * rng.normal(size=(8, 8, 3, 3))
        weights[[1, 4]] *= size
        x = net.input("in", (8, 10, 10))
        net.output(net.add("a", net.convolution("c", x, weights, 0.1 * rng.normal(size=8), padding=1), x))
        built = build(net, "nv_full", precision, calibrate(net, data))
        ratios.append(layer_errors(net, built, data)["a"]["snr_db"])
    assert ratios[1] > ratios[0] - 3
