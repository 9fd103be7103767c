"""Layers of int16 within a network of int8: the SDP converts between them, and integers still match."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import samples, signal_to_noise
from support.random_networks import networks

import nvdla
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import BuildError, Calibration, Network, build, calibrate
from nvdla.compiler.builder.groups import group_layers
from nvdla.compiler.builder.ir import Process


def _mixed(net: Network, data: dict[str, np.ndarray], layers: list[str], zero_points: bool = False) -> Calibration:
    magnitudes = calibrate(net, data).magnitudes
    return Calibration(magnitudes, precisions=dict.fromkeys(layers, "int16"), zero_points=zero_points)


def _equal(net: Network, calibration: Calibration, data: dict[str, np.ndarray], per_channel: bool = False):
    built = build(net, "nv_full", "int8", calibration, per_channel)
    runtime = nvdla.Runtime(nvdla.load(built.loadable.to_bytes()), config="nv_full")
    elements = built.quantize_inputs({name: values[0] for name, values in data.items()})
    found, expected = runtime.run(elements), built.expected(elements)
    for name, wanted in expected.items():
        assert found[name].dtype == wanted.dtype
        np.testing.assert_array_equal(found[name], wanted, err_msg=name)
    return built


def _chain(rng: np.random.Generator, channels: int) -> Network:
    net = Network()
    x = net.relu("r1", net.convolution("c1", net.input("in", (3, 9, 7)), rng.normal(size=(channels, 3, 3, 3))))
    y = net.convolution("c2", x, rng.normal(size=(channels, channels, 1, 1)))
    x = net.max_pool("p", net.add("sum", x, y), 2)
    net.output(net.fully_connected("ip", x, rng.normal(size=(10, channels * x.shape[1] * x.shape[2]))))
    return net


@pytest.mark.parametrize("channels", [5, 16, 20, 33, 48])
@pytest.mark.parametrize("layers", [["c1"], ["c2"], ["sum"], ["p"], ["ip"], ["c1", "ip"], ["c1", "c2", "sum", "ip"]])
@pytest.mark.parametrize("zero_points", [False, True])
def test_any_choice_of_layers_runs_bit_exactly(channels, layers, zero_points):
    rng = np.random.default_rng(channels)
    net = _chain(rng, channels)
    data = samples(net, rng, 1)
    built = _equal(net, _mixed(net, data, layers, zero_points), data)
    tensors = built.sidecar["tensors"]
    for name in layers:
        group = next(each for each in group_layers(net) if name in each.members)
        # A sum that is made behind its convolution leaves no tensor of the convolution's own.
        assert tensors[group.output.name if group.output.name in tensors else "sum"]["precision"] == "int16"
    assert tensors["in"]["precision"] == "int8"
    assert not [str(each) for each in lint(built.loadable, "nv_full").findings if each.severity == "error"]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(net=networks(), choice=st.lists(st.booleans(), min_size=10, max_size=10), zero_points=st.booleans())
def test_random_networks_of_random_precisions_equal_plain_numpy(net, choice, zero_points):
    data = samples(net, np.random.default_rng(3), 1)
    layers = [layer.name for layer, wide in zip(net.layers, choice, strict=False) if wide and layer.kind != "input"]
    _equal(net, _mixed(net, data, layers, zero_points), data, True)


def test_all_layers_of_int16_lose_only_what_the_input_loses():
    rng = np.random.default_rng(4)
    net = _chain(rng, 16)
    data = {"in": np.round(rng.normal(size=(2, 3, 9, 7)) * 20) / 32}  # the input is exact in int8
    exact = calibrate(net, data).with_magnitudes(**{"in": 127 / 32})
    every = Calibration(exact.magnitudes, precisions={g.output.name: "int16" for g in group_layers(net)})
    low, high = (signal_to_noise(net, build(net, "nv_full", "int8", each), data) for each in (exact, every))
    assert high > low + 30


def test_int8_tensors_beside_an_int16_layer_keep_their_zero_points():
    """A ReLU's results use all 256 elements, also where an int16 layer takes them or has computed them."""
    rng = np.random.default_rng(6)
    net = Network()
    x = net.input("in", (3, 9, 7))
    for name, channels in (("c1", 3), ("c2", 16)):
        x = net.relu(f"{name}/relu", net.convolution(name, x, rng.normal(size=(16, channels, 3, 3))))
    net.output(net.convolution("c3", x, rng.normal(size=(8, 16, 1, 1))))
    data = samples(net, rng, 1)
    built = _equal(net, _mixed(net, data, ["c2"], zero_points=True), data)
    copies = [operation.destination for operation in built.program.operations if isinstance(operation, Process)]
    surfaces = built.program.tensors | {surface.root.name: surface for surface in copies}
    zeros = {name: (surfaces[name].precision, surfaces[name].zero) for name in surfaces if name.startswith("c")}
    assert zeros["c1/relu"] == zeros["c2/relu/int8"] == ("int8", -128)
    assert zeros["c2/relu"] == zeros["c1/relu/int16"] == ("int16", 0)


def test_what_cannot_be_mixed_is_refused_by_name():
    rng = np.random.default_rng(5)
    net = _chain(rng, 8)
    data = samples(net, rng, 1)
    with pytest.raises(BuildError, match="layer: must be in network"):
        build(net, "nv_full", "int8", _mixed(net, data, ["nobody"]))
    with pytest.raises(BuildError, match=r"layer c1: precision: .* got int16 within int8 on nv_small"):
        build(net, "nv_small", "int8", _mixed(net, data, ["c1"]))
    halves = Calibration(calibrate(net, data).magnitudes, precisions={"c1": "fp16"})
    with pytest.raises(BuildError, match=r"layer c1: precision: .* got fp16"):
        build(net, "nv_full", "int8", halves)


@pytest.mark.parametrize("channels", [8, 16, 32])
def test_int16_tensors_of_an_odd_number_of_surfaces_are_read_by_int8_layers_without_a_warning(channels):
    """The SDP reads surfaces of int16 in pairs: what is after the last channel is no data."""
    rng, net = np.random.default_rng(0), Network()
    x = net.relu("r1", net.convolution("c1", net.input("in", (8, 8, 8)), rng.normal(size=(16, 8, 3, 3))))
    x = net.relu("r2", net.convolution("c2", x, rng.normal(size=(channels, 16, 3, 3))))
    net.output(net.convolution("c3", x, rng.normal(size=(4, channels, 1, 1))))
    calibration = calibrate(net, rng.normal(size=(4, 8, 8, 8)))
    built = build(net, "nv_full", "int8", replace(calibration, precisions={"c2": "int16"}))
    assert not lint(built.loadable, "nv_full").findings
    assert not [value for value in Study.of(built.loadable, "nv_full").values if value.kind == "unset"]
