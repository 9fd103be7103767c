"""Bias correction, adaptive rounding and the whole recipe: better numbers, and integers that still match."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import build_and_run, samples, signal_to_noise
from support.random_networks import networks

import nvdla
from nvdla.compiler.builder import Network, build, calibrate, floating, layer_errors, refinement
from nvdla.compiler.builder.calibration import METHODS, Statistics
from nvdla.compiler.builder.ir import Convolve
from nvdla.compiler.builder.layer_types import layer_type
from nvdla.compiler.builder.refinement import (
    CORRECTED_SAMPLES,
    Means,
    Patches,
    Recipe,
    fold,
    refine,
    round_adaptively,
)
from nvdla.errors import BuildError


def _correlated(rng: np.random.Generator, count: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Positive samples whose channels have few common causes, as those behind a ReLU have."""
    channels, height, width = shape
    mixed = np.einsum("cm,nmhw->nchw", rng.normal(size=(channels, 6)), rng.normal(size=(count, 6, height, width)))
    return np.maximum(mixed + 0.5, 0) + 0.05 * rng.random((count, *shape))


def _net(rng: np.random.Generator) -> Network:
    net = Network("refined")
    x = net.convolution("c1", net.input("in", (16, 10, 10)), rng.normal(size=(24, 16, 3, 3)), padding=1)
    x = net.relu("r1", net.batch_norm("b1", x, np.zeros(24), np.ones(24) * 50, rng.uniform(0.2, 2, 24)))
    x = net.relu("r2", net.depthwise("c2", x, rng.normal(size=(24, 1, 3, 3)), padding=1, stride=2))
    net.output(net.fully_connected("ip", x, rng.normal(size=(10, 24 * 25)) / 20))
    return net


def _batches(net: Network, data: np.ndarray):
    return lambda: (floating.run(net, data[first : first + 2]) for first in range(0, len(data), 2))


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_adaptive_rounding_is_up_or_down_and_never_worse_than_the_nearest(seed, kernels, size):
    rng = np.random.default_rng(seed)
    weights, scales = rng.normal(size=(kernels, size)), rng.uniform(0.02, 0.2, kernels)
    patches = rng.normal(size=(40, size)) @ rng.normal(size=(size, size))
    moments = patches.T @ patches / 40
    elements = round_adaptively(weights, scales, moments)
    steps = weights / scales[:, None]
    assert np.all(np.abs(elements) <= 127)
    assert np.all(np.abs(np.clip(steps, -127, 127) - elements) < 1)
    damped = moments + 0.01 * np.mean(np.diag(moments)) * np.eye(size)
    nearest = np.clip(np.floor(steps + 0.5), -127, 127)
    loss = [np.einsum("kd,de,ke->k", e - steps, damped, e - steps) for e in (elements, nearest)]
    assert np.all(loss[0] <= loss[1] * (1 + 1e-9) + 1e-12)


def test_adaptive_rounding_halves_the_error_of_correlated_inputs():
    rng = np.random.default_rng(1)
    net = Network()
    net.output(net.convolution("c", net.input("in", (16, 8, 8)), rng.normal(size=(8, 16, 3, 3)), padding=1))
    data = _correlated(rng, 24, (16, 8, 8))
    patches = Patches(net)
    for _ in range(4):
        patches.update({"in": data[:16]})
    weights = net.layers[1].settings.weights.reshape(8, -1)
    scales = np.abs(weights).max(axis=1) / 7  # coarse, so that weights are what is wrong
    chosen = round_adaptively(weights, scales, patches.moments("c")[0], 7)
    errors = []
    for elements in (chosen, np.floor(weights / scales[:, None] + 0.5)):
        other = net.changed({"c": {"weights": (elements * scales[:, None]).reshape(8, 16, 3, 3)}})
        unseen = {"in": data[16:]}
        errors.append(np.mean((floating.run(other, unseen)["c"] - floating.run(net, unseen)["c"]) ** 2))
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("form", ["convolution", "deconvolution"])
@pytest.mark.parametrize("padding", [0, 1])
def test_bias_correction_takes_off_the_mean_error_of_rounded_weights(padding, form):
    rng = np.random.default_rng(2)
    net = Network()
    spread = np.logspace(-1.7, 0, 8)
    weights = rng.normal(size=(8, 4, 3, 3)) * spread[:, None, None, None]
    if form == "deconvolution":
        weights = weights.swapaxes(0, 1)
    x = getattr(net, form)("c", net.input("in", (4, 9, 9)), weights, padding=padding, stride=2)
    net.output(net.scale("s", net.relu("r", x), 1 / spread))
    means = np.array([1.0, 2.0, 1.5, 0.5])
    data = np.broadcast_to(means[:, None, None], (1, 4, 9, 9))
    errors = []
    for known in ({}, {"in": means}):
        calibration = replace(calibrate(net, data), means=known)
        coarse = replace(calibration, weight_scales={"c": np.full(8, np.abs(weights).max() / 20)})
        built = build(net, "nv_full", "int8", coarse)
        found = built.tensors(built.quantize_inputs(data[0]))["r"]
        errors.append(np.abs((found - floating.run(net, data)["r"][0]).mean(axis=(1, 2)) / spread))
    assert np.mean(errors[1]) < (0.4 if form == "convolution" else 0.6) * np.mean(errors[0])


def test_kernels_of_unlike_sizes_have_no_error_of_gain():
    """The multipliers of small kernels have few bits, but their scales fit them."""
    rng = np.random.default_rng(8)
    net = Network()
    spread = np.logspace(-3, 0, 16)
    weights = rng.normal(size=(16, 8, 3, 3)) * spread[:, None, None, None]
    net.output(net.convolution("c", net.input("in", (8, 9, 9)), weights))
    data = rng.normal(size=(2, 8, 9, 9))
    built = build(net, "nv_full", "int16", calibrate(net, data), True)
    found = built.tensors(built.quantize_inputs(data[0]))["c"]
    exact = floating.run(net, data)["c"][0]
    gains = (found * exact).sum(axis=(1, 2)) / (exact * exact).sum(axis=(1, 2))
    np.testing.assert_allclose(gains[4:], 1.0, atol=2e-3)


def test_each_part_of_the_recipe_helps_or_does_no_harm():
    rng = np.random.default_rng(3)
    net, data = _net(rng), _correlated(rng, 16, (16, 10, 10))
    plain = Recipe("max", 100.0, False, False, per_channel=False, zero_points=False, headroom=False)
    found = {}
    for name, recipe in {
        "plain": plain,
        "default": Recipe(),
        "adaptive": Recipe(adaptive_rounding=True),
    }.items():
        refined = refine(net, _batches(net, data), recipe)
        built = build(refined.network, "nv_small", "int8", refined.calibration, recipe.per_channel)
        # Errors against the network as it was given, at the output, whose channels no factor divides.
        exact = floating.run(net, data)["ip"]
        values = np.stack([built.tensors(built.quantize_inputs(one))["ip"] for one in data])
        found[name] = 10 * np.log10(np.mean(exact**2) / np.mean((values - exact) ** 2))
    assert found["default"] > found["plain"] + 1
    assert found["adaptive"] > found["plain"] + 1


def test_adaptively_rounded_weights_are_the_elements_of_the_loadable():
    rng = np.random.default_rng(4)
    net, data = _net(rng), _correlated(rng, 8, (16, 10, 10))
    refined = refine(net, _batches(net, data), Recipe(adaptive_rounding=True))
    built = build(refined.network, "nv_small", "int8", refined.calibration, True)
    elements = next(each for each in built.program.operations if isinstance(each, Convolve)).weights
    scales = refined.calibration.weight_scales["c1"]
    np.testing.assert_allclose(elements * scales[:, None, None, None], refined.network.layer("c1").settings.weights)
    nearest = np.floor(fold(net).layer("c1").settings.weights / scales[:, None, None, None] + 0.5)
    assert np.any(elements != nearest)


@pytest.mark.parametrize("adaptive", [False, True])
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(net=networks(), method=st.sampled_from(METHODS), per_channel=st.booleans())
def test_a_refined_random_network_equals_plain_numpy(adaptive, net, method, per_channel):
    data = samples(net, np.random.default_rng(5), 2)
    recipe = Recipe(method, adaptive_rounding=adaptive, per_channel=per_channel)
    refined = refine(net, lambda: [floating.run(net, data)], recipe)
    build_and_run(refined.network, "nv_small", "int8", per_channel, data, refined.calibration)


def test_int16_is_calibrated_by_the_same_recipe():
    rng = np.random.default_rng(6)
    net, data = _net(rng), _correlated(rng, 4, (16, 10, 10))
    refined = refine(net, _batches(net, data), Recipe(), "int16")
    built = build_and_run(refined.network, "nv_full", "int16", True, {"in": data}, refined.calibration)
    assert signal_to_noise(refined.network, built, {"in": data}) > 60


def test_no_data_is_an_error():
    with pytest.raises(BuildError, match="calibration data: must have at least one input"):
        refine(_net(np.random.default_rng(7)), list, Recipe(equalize=False))


def test_headroom_is_what_a_sample_left_out_goes_beyond_the_others():
    """Channels of one size whose largest magnitudes differ between samples by a tenth: five samples have less range
    than a sixth will need, a hundred hardly."""
    rng = np.random.default_rng(4)
    found = {}
    for count in (1, 5, 100):
        statistics = Statistics(histograms=False)
        for _ in range(count):
            statistics.update({"x": np.exp(rng.normal(size=(1, 64, 1, 1)) / 10)})
        found[count] = statistics.headroom()["x"]
    assert found[1] == 1.0
    assert 1.02 < found[5] < 1.3
    assert 1.0 <= found[100] < 1.01


def _ending(make) -> Network:
    rng = np.random.default_rng(11)
    net = Network("ending")
    x = net.convolution("c", net.input("in", (8, 6, 6)), rng.normal(size=(4, 8, 1, 1)))
    net.output(make(net, x))
    return net


def _calibration(net: Network, **options):
    data = np.random.default_rng(12).normal(size=(40, 8, 6, 6))
    return refine(net, lambda: [floating.run(net, {"in": each[None]}) for each in data], Recipe(**options)).calibration


def test_the_range_of_a_sigmoid_is_known_whatever_the_samples_give():
    net = _ending(lambda net, x: net.sigmoid("s", net.scale("low", x, np.full(4, 0.1), np.full(4, -3.0))))
    assert _calibration(net).ranges["s"] == pytest.approx((0, 1), abs=1e-9)
    assert _calibration(net, zero_points=False).magnitudes["s"] == pytest.approx(1)
    assert not _calibration(net, zero_points=False).ranges
    assert _calibration(net, method="percentile").magnitudes["s"] < 0.2


@pytest.mark.parametrize("method", ["max", "mse"])
def test_outputs_hold_everything_that_the_samples_have(method):
    """One number in a million is far larger: inside the network mse cuts it off, never in an output."""
    rng = np.random.default_rng(13)
    net = Network("ending")
    x = net.convolution("c", net.input("in", (8, 100, 125)), np.eye(8)[:, :, None, None])
    net.output(net.scale("s", net.relu("r", x), np.ones(8), np.full(8, 2.0)))
    data = rng.normal(size=(10, 8, 100, 125))
    data[3, 0, 2, 2] = 40.0
    found = refine(net, lambda: [floating.run(net, data)], Recipe(method, equalize=False, headroom=False)).calibration
    assert found.magnitudes["s"] == 42.0
    assert (found.magnitudes["in"] < 20) == (method == "mse")


def test_outputs_of_one_sign_use_all_elements():
    net = _ending(lambda net, x: net.relu("r", x))
    built = build(net, "nv_small", "int8", _calibration(net))
    assert built.zero_points == {"r": -128}
    assert built.sidecar["tensors"]["r"]["zero_point"] == -128
    symmetric = _ending(lambda net, x: net.scale("s", x, np.ones(4), np.zeros(4)))
    assert not build(symmetric, "nv_small", "int8", _calibration(symmetric)).zero_points


def test_a_range_holds_what_the_samples_give_though_a_function_seems_to_be_bounded():
    """A narrow pole between the points that are looked at."""
    net = Network("pole")
    net.output(net.function("f", net.input("in", (1, 1, 1)), lambda x: np.where(np.abs(x - 0.999) < 1e-3, 9.0, 0.0)))
    values = floating.run(net, {"in": np.full((1, 1, 1, 1), 0.999)})
    assert refine(net, lambda: [values], Recipe()).calibration.magnitudes["f"] == 9.0


@pytest.mark.parametrize(
    ("function", "bounds"),
    [
        (lambda x: 1 / (1 + np.exp(-x)), (0, 1)),
        (np.tanh, (-1, 1)),
        (lambda x: x / (1 + np.abs(x)), (-1, 1)),
        (np.sin, (-1, 1)),
        (np.arctan, (-np.pi / 2, np.pi / 2)),
        (np.exp, (-np.inf, np.inf)),
        (lambda x: np.exp(np.minimum(x, 700)), (0, np.inf)),  # as guarded forms of an importer
        (np.log, (-np.inf, np.inf)),
        (lambda x: x / (1 + np.exp(-x)), (-0.2785, np.inf)),
    ],
)
def test_functions_that_are_bounded(function, bounds):
    net = Network("one")
    layer = net.function("f", net.input("in", (1, 1, 1)), function).producer
    assert layer_type("function").bounds(layer, np.inf) == pytest.approx(bounds, abs=2e-3)


def test_mse_cuts_nothing_off_for_a_little():
    """The one face in a picture: rare, twice as large as anything else."""
    rng = np.random.default_rng(14)
    statistics = Statistics()
    values = rng.normal(size=(1, 4, 100, 100))
    values[0, 0, 0, :8] = 8.0
    statistics.update({"x": values})
    assert statistics.magnitudes("mse", 100.0, 127) == {"x": 8.0}
    assert statistics.ends["x"] == (values.min(), 8.0)


def test_an_output_that_is_an_input_is_a_copy_of_it():
    net = Network("copy")
    net.output(net.input("x", (3, 4, 4)))
    values = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    refined = refine(net, lambda: [{"x": values}])
    built = build(refined.network, "nv_small", "int8", refined.calibration)
    elements = built.quantize_inputs(values[:1])
    (found,) = nvdla.Runtime(built.loadable).run(elements).values()
    np.testing.assert_array_equal(found, elements["x"])


def test_scores_beyond_those_of_all_samples_are_not_clipped():
    """Logits from -8 to 1.9, as those of a detector whose samples hold few objects: a score of 0.93 stays one."""
    net = Network("scores")
    x = net.convolution("logits", net.input("in", (1, 8, 8)), np.ones((1, 1, 1, 1)), np.full(1, -2.0))
    net.output(net.sigmoid("score", x))
    data = np.random.default_rng(0).uniform(-6, 3.9, (8, 1, 8, 8))
    refined = refine(net, _batches(net, data))
    assert refined.calibration.magnitudes["logits"] == pytest.approx(6.2, abs=0.1), "beyond it 8 bits of a score end"
    built = build(refined.network, "nv_small", "int8", refined.calibration, per_channel=True)
    (element,) = np.unique(built.expected(built.quantize_inputs(np.full((1, 1, 8, 8), 4.6)))["score"])
    score = (int(element) - built.zero_points["score"]) * built.output_scales["score"]
    assert score == pytest.approx(1 / (1 + np.exp(-2.6)), abs=0.01)


@pytest.mark.parametrize(("precision", "largest"), [("int8", 6.2), ("int16", 11.8)])
def test_the_argument_of_a_score_reaches_as_far_as_the_integers_of_the_score_change(precision, largest):
    net = Network("scores")
    x = net.convolution("logits", net.input("in", (1, 8, 8)), np.ones((1, 1, 1, 1)))
    net.output(net.sigmoid("score", x))
    data = np.random.default_rng(0).uniform(-14, 3, (8, 1, 8, 8))
    refined = refine(net, _batches(net, data), precision=precision)
    assert refined.calibration.magnitudes["logits"] == pytest.approx(largest, abs=0.1)


def test_the_range_of_joined_gates_is_that_of_gates():
    def ending(net, x):
        gates = [net.sigmoid(f"s{i}", net.scale(f"low{i}", x, np.full(4, 0.1), np.full(4, -3.0))) for i in (0, 1)]
        return net.concat("both", net.max_pool("largest", gates[0], 1), gates[1])

    net = _ending(ending)
    data = np.random.default_rng(1).normal(size=(3, *net.inputs[0].shape))
    found = refine(net, lambda: [floating.run(net, data)]).calibration
    assert found.magnitudes[net.outputs[0].name] == pytest.approx(1.0)


def _limited() -> Network:
    net = Network("limited")
    x = net.convolution("c", net.input("in", (4, 8, 8)), np.ones((4, 4, 1, 1)), np.full(4, 1.0))
    net.output(net.clip("k", x, high=8.0))
    return net


def test_measured_corrections_take_off_the_mean_error_of_all_roundings():
    """A background of 0.4 units, which is rounded to 0 everywhere, gives four times as much."""
    net = _limited()
    data = np.full((8, 4, 8, 8), 0.4)
    data[:, :, 0, 0] = 127
    refined = refine(net, _batches(net, data), Recipe(headroom=False, equalize=False))
    errors = []
    for calibration in (refined.calibration, replace(refined.calibration, corrections={})):
        built = build(refined.network, "nv_small", "int8", calibration, per_channel=True)
        elements = built.expected(built.quantize_inputs(data))["k"]
        real = (elements - built.zero_points.get("k", 0)) * built.output_scales["k"]
        errors.append(np.abs(real[:, :, 1:, 1:] - 2.6).max())
    assert errors[0] < 0.1 < 1.5 < errors[1]


def test_corrections_belong_to_int8_and_to_samples_of_the_whole_set(monkeypatch):
    rng = np.random.default_rng(3)
    net = _limited()
    data = rng.normal(size=(40, 4, 8, 8))
    assert not refine(net, _batches(net, data), precision="int16").calibration.corrections
    assert not refine(net, _batches(net, data), Recipe(bias_correction=False)).calibration.corrections
    assert refine(net, _batches(net, data[:8])).calibration.corrections
    assert not refine(net, _batches(net, data[:7])).calibration.corrections, "few samples say nothing about a mean"
    monkeypatch.setattr(refinement, "CORRECTED_MACS", 7.9 * 4 * 4 * 64)
    assert not refine(net, _batches(net, data)).calibration.corrections, "nor seven that a limit leaves of forty"
    monkeypatch.undo()
    means = Means(net)
    for number, values in enumerate(_batches(net, data)()):
        means.update({name: np.full_like(array, number) for name, array in values.items()})
    numbers = [int(inputs["in"].max()) for inputs, _ in means.samples]
    assert len(numbers) == CORRECTED_SAMPLES
    assert max(numbers) > len(data) / 2 / 2 > min(numbers)


@pytest.mark.parametrize("groups, channels, side", [(1, 24, 33), (4, 64, 30), (1, 700, 5)])
def test_sums_in_float32_keep_to_one_thread(groups, channels, side):
    """Threads of the matrix library spin on a busy machine, which took up to ten times the processor time."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(8, channels, side, side)), rng.normal(size=(44, channels // groups, 3, 2))
    given = (x, weights, (1, 2), (1, 0, 2, 1), (1, 1), groups)
    found = floating.convolve_groups(*given)
    exact = floating.convolve(x, floating.expand_groups(weights, channels, groups), *given[2:5])
    np.testing.assert_allclose(found, exact, atol=1e-3)
    time.sleep(0.3)  # threads of earlier products
    thread, process = time.thread_time(), time.process_time()
    for _ in range(3):
        floating.convolve_groups(*given)
    thread, process = time.thread_time() - thread, time.process_time() - process
    assert process < 1.2 * thread + 0.005


def test_tensors_of_both_signs_use_all_elements_where_they_are_uneven():
    net = Network("uneven")
    x = net.convolution("c", net.input("in", (4, 6, 6)), np.eye(4)[:, :, None, None], np.full(4, 2.0))
    net.output(net.convolution("d", x, np.eye(4)[:, :, None, None]))
    data = np.random.default_rng(0).uniform(-3, 3, (4, 4, 6, 6))
    low, high = refine(net, lambda: [floating.run(net, data)], Recipe(headroom=False)).calibration.ranges["c"]
    assert -1.1 < low < -0.9 and 4.9 < high < 5.1


def test_a_channel_that_is_nearly_dead_behind_a_sum_does_not_widen_the_range_of_the_summands():
    """Channel 5 is near 0 behind the ReLU of the sum, but not in the summands."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(8, 8, 3, 3)) / 8 for name in "ab"} | {"y": rng.normal(size=(8, 8, 1, 1))}
    samples = rng.normal(size=(8, 8, 12, 12))

    def network(bias):
        network = Network("sum")
        x = network.input("x", (8, 12, 12))
        summands = [network.convolution(name, x, weights[name], bias, padding=1) for name in "ab"]
        network.output(network.convolution("y", network.relu("r", network.add("s", *summands)), weights["y"]))
        return network

    bias = np.zeros(8)
    bias[5] = 0.01 - floating.run(network(bias), samples)["s"][:, 5].max() / 2
    net = network(bias)
    factors = refine(net, _batches(net, samples)).factors["a"]
    peaks = np.abs(floating.run(net, samples)["a"]).max(axis=(0, 2, 3)) / factors
    assert peaks[5] <= 5.5 * np.median(peaks)


def test_int16_has_room_for_samples_that_calibration_did_not_see():
    """A single element that saturates would cost more than the bit of room."""
    rng = np.random.default_rng(9)
    net, weights = Network(), rng.normal(size=(24, 16, 3, 3))
    x = net.relu("r", net.convolution("c1", net.input("in", (16, 12, 12)), weights, padding=1))
    net.output(net.convolution("c2", x, rng.normal(size=(8, 24, 3, 3)), padding=1))
    seen, unseen = (rng.normal(size=(count, 16, 12, 12)) for count in (8, 30))
    refined = refine(net, _batches(net, seen), Recipe(), "int16")
    built = build(refined.network, "nv_full", "int16", refined.calibration)
    assert layer_errors(refined.network, built, unseen)["c2"]["snr_db"] > 70
