"""The error of every layer: alone, and with all layers before it."""

from __future__ import annotations

import numpy as np
import pytest
from support.build_checks import samples

import nvdla
from nvdla.compiler.builder import Network, build, calibrate, floating, layer_errors
from nvdla.compiler.builder.accuracy import accuracy, worst
from nvdla.compiler.builder.ir import Convolve


def _net(rng: np.random.Generator, spread: float = 0.0) -> Network:
    net = Network()
    weights = rng.normal(size=(16, 3, 3, 3)) * np.exp(rng.normal(size=16) * spread)[:, None, None, None]
    x = net.relu("r1", net.convolution("c1", net.input("in", (3, 12, 12)), weights, padding=1))
    y = net.convolution("c2", net.max_pool("p1", x, 2), rng.normal(size=(16, 16, 3, 3)), padding=1)
    x = net.concat("cat", y, net.average_pool("p2", x, 2))
    net.output(net.fully_connected("ip", x, rng.normal(size=(10, 32 * 36))))
    return net


def test_chain_is_what_layer_errors_reports_and_alone_is_never_much_worse():
    rng = np.random.default_rng(1)
    net = _net(rng)
    data = samples(net, rng, 2)
    built = build(net, "nv_small", "int8", calibrate(net, data))
    exact = floating.run(net, data)
    rows = accuracy(net, built, [{k: v[i : i + 1] for k, v in exact.items()} for i in range(2)])
    chain = layer_errors(net, built, data)
    assert [row.tensor for row in rows] == ["r1", "p1", "c2", "p2", "cat", "ip"]
    for row in rows:
        assert row.chain == pytest.approx(chain[row.tensor]["snr_db"], abs=1e-6)
        assert row.alone > row.chain - 1
    assert rows[-1].alone > rows[-1].chain + 1
    assert rows[0].layer == "c1+r1"


def test_a_range_that_is_cut_and_uneven_kernels_are_named_with_what_to_try():
    rng = np.random.default_rng(2)
    net = _net(rng, 2.0)
    data = samples(net, rng, 2)
    calibration = calibrate(net, data)
    cut = calibration.with_magnitudes(ip=calibration.magnitudes["ip"] / 8)
    exact = [{k: v[:1] for k, v in floating.run(net, data).items()}]
    rows = {row.tensor: row for row in accuracy(net, build(net, "nv_small", "int8", cut), exact)}
    assert "--method max" in rows["ip"].advice
    assert rows["ip"].saturated > 0.05
    assert worst(list(rows.values()))[0].tensor == "ip"


def test_the_argument_of_a_sigmoid_saturates_without_loss_where_the_score_stays_the_same():
    """Calibration ends the range of the argument where the score changes last."""
    rng = np.random.default_rng(0)
    net = Network()
    x = net.convolution("c", net.input("in", (3, 16, 16)), 3 * rng.normal(size=(4, 3, 1, 1)))
    net.output(net.sigmoid("s", x))
    data = samples(net, rng, 4)
    calibration = calibrate(net, data).with_magnitudes(c=4.9)
    exact = [{k: v[:1] for k, v in floating.run(net, data).items()}]
    rows = {row.tensor: row for row in accuracy(net, build(net, "nv_small", "int8", calibration), exact)}
    assert np.abs(exact[0]["c"]).max() > 5.5
    assert rows["c"].saturated < 0.001 and rows["c"].alone > 35 and not rows["c"].advice


def test_winograds_method_costs_accuracy_that_is_measured():
    """Its transforms round; the run on the emulator has the same error."""
    rng, net = np.random.default_rng(7), Network()
    x = net.relu("r", net.convolution("c1", net.input("in", (32, 24, 24)), rng.normal(size=(32, 32, 3, 3)), padding=1))
    net.output(net.convolution("c2", x, rng.normal(size=(16, 32, 1, 1))))
    data = samples(net, rng, 1)
    built = build(net, "nv_full", "fp16")
    assert [step.winograd for step in built.program.operations if isinstance(step, Convolve)] == [True, False]
    exact = floating.run(net, data)
    (row,) = [row for row in accuracy(net, built, [exact]) if row.tensor == "c2"]
    computed = nvdla.Runtime(built.loadable).run(data["in"].astype(np.float16))
    error = np.ravel(next(iter(computed.values()))).astype(np.float64) - exact["c2"].ravel()
    assert row.chain == pytest.approx(10 * np.log10(np.sum(exact["c2"] ** 2) / np.sum(error**2)), abs=0.5)


@pytest.mark.parametrize(
    ("weight", "number", "cause"),
    [(2e-7, 1.0, "most weights are below 6.1e-05"), (1.0, 1e6, "exceed 65504"), (1.0, 1e-7, "all values are below")],
)
def test_the_advice_for_fp16_names_numbers_that_it_cannot_hold(weight, number, cause):
    rng, net = np.random.default_rng(8), Network()
    net.output(net.convolution("c", net.input("in", (8, 6, 6)), weight * rng.normal(size=(8, 8, 3, 3))))
    data = {name: number * array for name, array in samples(net, rng, 1).items()}
    rows = accuracy(net, build(net, "nv_full", "fp16"), [floating.run(net, data)])
    assert cause in rows[-1].advice


@pytest.mark.parametrize("kernel", [2, 3, 14])
def test_fp16_averages_have_the_error_of_the_run(kernel):
    """The PDP rounds at every addition, and multiplies by rounded reciprocals."""
    rng, net = np.random.default_rng(10), Network()
    x = net.input("in", (16, 14, 14))
    net.output(net.global_average_pool("p", x) if kernel == 14 else net.average_pool("p", x, kernel))
    data = {"in": rng.normal(size=(1, 16, 14, 14)).astype(np.float16).astype(np.float64)}
    built, exact = build(net, "nv_full", "fp16"), floating.run(net, data)
    (row,) = [row for row in accuracy(net, built, [exact]) if row.tensor == "p"]
    computed = nvdla.Runtime(built.loadable).run(data["in"].astype(np.float16))
    error = np.ravel(next(iter(computed.values()))).astype(np.float64) - exact["p"].ravel()
    assert row.chain == pytest.approx(10 * np.log10(np.sum(exact["p"] ** 2) / np.sum(error**2)), abs=0.5)


@pytest.mark.parametrize("kind", ["convolution", "deconvolution"])
def test_the_unit_of_a_concat_is_not_fixed_by_the_rounding_of_weights(kind):
    """The other tensor of the Concat has three times the range: the noise is that of its unit."""
    rng, net = np.random.default_rng(9), Network()
    x = net.input("in", (8, 12, 12))
    weights = 0.05 * rng.normal(size=(8, 8, 3, 3))
    small = getattr(net, kind)("small", x, weights, padding=1)
    net.output(net.concat("cat", small, x))
    data = {"in": rng.laplace(size=(4, 8, 12, 12))}
    calibration = calibrate(net, data)
    built = build(net, "nv_small", "int8", calibration)
    exact = [{name: array[:1] for name, array in floating.run(net, data).items()}]
    (row,) = [row for row in accuracy(net, built, exact, calibration=calibration) if row.tensor == "small"]
    assert row.alone < 30 and "an adjacent tensor needs" in row.advice and "rounding" not in row.advice


def test_fp16_is_measured_too():
    rng = np.random.default_rng(3)
    net = _net(rng)
    exact = [{k: v[:1] for k, v in floating.run(net, samples(net, rng, 1)).items()}]
    rows = accuracy(net, build(net, "nv_full", "fp16"), exact)
    assert all(row.alone > 50 and not row.advice for row in rows)


@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_biases_do_not_cost_the_weights_of_int16_their_low_bits(spread):
    """Biases of the size of the results, and ten times it: the error stays that of 16 bits."""
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(16, 3, 3, 3)) * np.exp(rng.normal(size=16) * spread)[:, None, None, None]
    for size in (5, 50):
        net = Network()
        x = net.convolution("c", net.input("in", (3, 20, 22)), weights, rng.normal(size=16) * size, padding=1)
        net.output(net.relu("r", x))
        data = samples(net, rng, 2)
        built = build(net, "nv_full", "int16", calibrate(net, data), per_channel=True)
        assert layer_errors(net, built, data)["r"]["snr_db"] > 70


@pytest.mark.parametrize("precision", ["int8", "int16", "fp16"])
def test_a_sum_after_a_convolution_is_one_row(precision):
    rng = np.random.default_rng(4)
    net = Network()
    x = net.relu("r", net.convolution("c1", net.input("in", (8, 9, 9)), rng.normal(size=(16, 8, 3, 3)), padding=1))
    y = net.convolution("c2", x, rng.normal(size=(16, 16, 3, 3)) / 12, padding=1)
    net.output(net.convolution("c3", net.relu("s", net.add("sum", x, y)), rng.normal(size=(8, 16, 1, 1))))
    data = samples(net, rng, 1)
    built = build(net, "nv_full", precision, calibrate(net, data))
    rows = accuracy(net, built, [floating.run(net, data)])
    assert [row.layer for row in rows] == ["c1+r", "c2+sum+s", "c3"]
    assert all(row.alone > 30 for row in rows)
