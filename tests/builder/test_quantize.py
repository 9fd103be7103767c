"""Calibration and fixed-point factors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvdla.builder import Calibration, Network, build, calibrate, layer_errors
from nvdla.builder.quantize import common_fixed_point, entropy_limit, fixed_point, weight_scales


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
    np.testing.assert_allclose(weight_scales(weights, "int8", True), [2 / 127, 1.0, 0.5 / 127])


def _net() -> Network:
    net = Network()
    x = net.convolution("c", net.input("in", (3, 8, 8)), np.random.default_rng(1).normal(size=(6, 3, 3, 3)))
    net.output(net.relu("r", x))
    return net


def test_max_covers_everything_percentile_and_entropy_cut_outliers():
    data = np.random.default_rng(2).normal(size=(64, 3, 8, 8))
    data[0, 0, 0, 0] = 200.0
    net = _net()
    found = {method: calibrate(net, data, method).magnitudes["in"] for method in ("max", "percentile", "entropy")}
    assert found["max"] == 200.0
    assert found["percentile"] < 10
    assert found["entropy"] < 30


def test_batches_and_one_array_calibrate_alike():
    data = np.random.default_rng(3).normal(size=(8, 3, 8, 8))
    assert calibrate(_net(), data).magnitudes == calibrate(_net(), [data[:4], {"in": data[4:]}]).magnitudes


def test_entropy_keeps_a_uniform_histogram_whole():
    assert entropy_limit(np.linspace(0, 1, 100000), 127) > 0.9


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
