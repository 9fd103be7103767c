"""Bad use is one clear error: it names the layer, the value, the limit and what to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nvdla import ConfigError, NvdlaError, Runtime
from nvdla.compiler.builder import BuildError, Calibration, Network, build, calibrate, emit, quantize
from nvdla.emulator.hardware.configuration import configuration


def _one(make, shape=(4, 8, 8)) -> Network:
    net = Network("net")
    net.output(make(net, net.input("in", shape)))
    return net


W = np.ones((2, 4, 3, 3))

BAD_LAYERS = {
    "layer c: weights .* with 1 groups do not fit 4 input channels": lambda n, x: n.convolution("c", x, W[:, :3]),
    "layer c: weights .* must have four dimensions": lambda n, x: n.convolution("c", x, np.ones((2, 4))),
    "layer c: weights: must be finite": lambda n, x: n.convolution("c", x, W * np.nan),
    "layer c: kernel: must span at most 8 .padded input. of the height, got 9": (
        lambda n, x: n.convolution("c", x, np.ones((2, 4, 9, 3)))
    ),
    "layer c: stride 0 must be a positive whole number": lambda n, x: n.convolution("c", x, W, stride=0),
    "layer c: padding -1 must be": lambda n, x: n.convolution("c", x, W, padding=-1),
    "layer c: bias must be 2 finite numbers, got 3": lambda n, x: n.convolution("c", x, W, np.ones(3)),
    "layer f: weights .* must be .kernels, 256.": lambda n, x: n.fully_connected("f", x, np.ones((3, 5))),
    "layer p: padding .* must be less than the kernel": lambda n, x: n.max_pool("p", x, 2, padding=2),
    "layer l: LRN size: must be 3, 5, 7 or 9": lambda n, x: n.lrn("l", x, 4),
    "layer l: LRN: k must be above 0": lambda n, x: n.lrn("l", x, 5, k=0),
    "layer s: softmax: cube must be 1x1, got 4x8x8": lambda n, x: n.softmax("s", x),
    "layer c: low 1 must be less than high 1": lambda n, x: n.clip("c", x, 1, 1),
    "layer a: add: must have two or more inputs of equal shape": lambda n, x: n.add("a", x, n.max_pool("p", x, 2)),
    "layer k: concat: inputs: must be of equal height and width": lambda n, x: n.concat("k", x, n.max_pool("p", x, 2)),
    "layer in: another layer has this name": lambda n, x: n.relu("in", x),
    "layer u: shape .* each 1 to 8192": lambda n, x: n.upsample("u", x, 2000),
    "layer r: its input must be a tensor of network net": lambda n, x: n.relu("r", Network().input("x", (1, 1, 1))),
    "layer d: padding .*: result must have at least one row": lambda n, x: n.deconvolution(
        "d", x, np.ones((4, 2, 2, 2)), padding=9
    ),
    "layer b: variance": lambda n, x: n.batch_norm("b", x, 0.0, -1.0),
}


BAD_KINDS = {
    "channels must be": lambda n, x: n.slice("s", x, channels=(1, 2, 3)),
    "rows must be": lambda n, x: n.slice("s", x, rows=(1, 2)),
    "kernel must be": lambda n, x: n.max_pool("p", x, "two"),
    "padding must be": lambda n, x: n.pad("p", x, "two"),
    "size must be": lambda n, x: n.lrn("l", x, "three"),
}


@pytest.mark.parametrize("message", BAD_KINDS)
def test_arguments_of_another_kind_are_refused(message):
    with pytest.raises(NvdlaError, match=message):
        _one(BAD_KINDS[message])


@pytest.mark.parametrize("message", BAD_LAYERS)
def test_bad_layers_are_refused_when_they_are_added(message):
    with pytest.raises(BuildError, match=message):
        _one(BAD_LAYERS[message])


BEYOND_HARDWARE = {
    "layer c: kernel rows: must be at most 32, got 33. Pool or split": (
        lambda n, x: n.convolution("c", x, np.ones((2, 4, 33, 1))),
        (4, 40, 8),
    ),
    "layer c: stride and dilation .* must be at most 8 and": (
        lambda n, x: n.convolution("c", x, W, stride=9),
        (4, 20, 20),
    ),
    "layer c: padding of the rows: must be less than 3 .span of the kernel.": (
        lambda n, x: n.convolution("c", x, W, padding=3),
        (4, 8, 8),
    ),
    "layer p: average pooling of 37x37 with stride .* Use a smaller window": (
        lambda n, x: n.average_pool("p", x, 37),
        (1, 37, 37),
    ),
    "layer f: the function must give one finite number": (
        lambda n, x: n.function("f", x, lambda v: v / np.zeros(1)),
        (1, 2, 2),
    ),
}


@pytest.mark.parametrize("message", BEYOND_HARDWARE)
def test_layers_that_the_hardware_cannot_do_are_refused_when_built(message):
    make, shape = BEYOND_HARDWARE[message]
    net = _one(make, shape)
    magnitudes = {layer.name: 1.0 for layer in net.layers}
    with np.errstate(all="ignore"), pytest.raises(BuildError, match=message):
        calibrate(net, {"in": np.ones((1, *shape))})
        build(net, "nv_small", "int8", Calibration(magnitudes))


def test_a_missing_scale_names_the_layer_and_the_remedy():
    net = _one(lambda n, x: n.relu("r", x))
    with pytest.raises(BuildError, match=r"layer r: its output must have a scale. Run calibrate\(\)"):
        build(net, "nv_small", "int8", Calibration({"in": 1.0}))
    with pytest.raises(BuildError, match=r"network net: scales: must be given for int8. Pass calibration=calibrate"):
        build(net, "nv_small")
    with pytest.raises(BuildError, match=r"layer r: magnitude -1.0 in the calibration must be a positive"):
        build(net, "nv_small", "int8", Calibration({"in": 1.0, "r": -1.0}))


def test_a_configuration_without_the_precision_names_those_that_have_it():
    net = _one(lambda n, x: n.relu("r", x))
    with pytest.raises(ConfigError, match="nv_small has no fp16; configurations with it: nv_full"):
        build(net, "nv_small", "fp16")
    with pytest.raises(ConfigError, match="nv_large has no int4; no configuration has it"):
        build(net, "nv_large", "int4")
    wide = replace(configuration("nv_medium_512"), name="wide", memory_atom=64)
    with pytest.raises(ConfigError, match="wide: memory atom: must have a tensor format in loadables, got 64 bytes"):
        build(net, wide)
    with pytest.raises(ConfigError, match=r"configuration 'nv_smal': must be one of .*; did you mean nv_small"):
        build(net, "nv_smal")


def test_networks_without_ends_are_refused():
    net = Network("net")
    net.input("in", (1, 1, 1))
    with pytest.raises(BuildError, match="must have at least one input and one output"):
        build(net, "nv_full", "fp16")


def test_softmax_has_no_int16():
    net = _one(lambda n, x: n.softmax("s", x), (4, 1, 1))
    with pytest.raises(BuildError, match="layer s: softmax on the CPU: precision must be int8 or fp16"):
        build(net, "nv_full", "int16", calibrate(net, np.ones((1, 4, 1, 1))))


def test_calibration_arguments_are_checked():
    net = _one(lambda n, x: n.relu("r", x))
    data = np.ones((1, 4, 8, 8))
    for arguments, message in [
        ({"method": "median"}, "calibration method: must be one of max, percentile, entropy, mse, got 'median'"),
        ({"percentile": 0}, "percentile: must be above 0 and at most 100, got 0"),
    ]:
        with pytest.raises(BuildError, match=message):
            calibrate(net, data, **arguments)
    with pytest.raises(BuildError, match="calibration data: must have at least one input"):
        calibrate(net, [])
    with pytest.raises(BuildError, match=r"input in: shape: must be Nx4x8x8, got"):
        calibrate(net, np.ones((1, 4, 8, 7)))


_LARGE = np.full(4, 1e5)
ONE = np.ones((4, 4, 1, 1))


@pytest.mark.parametrize(
    ("what", "layers"),
    [
        ("weight", lambda n, x: n.convolution("c", x, W * 1e5)),
        ("bias", lambda n, x: n.convolution("c", x, W, np.full(len(W), -1e5))),
        ("factor", lambda n, x: n.scale("c", x, _LARGE)),
        ("bias", lambda n, x: n.bias("c", x, _LARGE)),
        ("slope", lambda n, x: n.prelu("c", x, _LARGE)),
        ("slope", lambda n, x: n.prelu("c", n.convolution("before", x, W), np.full(len(W), 1e5))),
        ("factor", lambda n, x: n.multiply("c", x, n.constant("k", np.full(x.shape, 1e5)))),
        ("factor", lambda n, x: n.multiply("c", n.relu("before", x), n.constant("k", np.full(x.shape, 1e5)))),
        (
            "factor",
            lambda n, x: n.multiply(
                "c", n.convolution("b", x, np.ones((4, 4, 1, 1))), n.constant("k", np.full(x.shape, 1e5))
            ),
        ),
    ],
)
def test_a_constant_above_the_largest_half_that_would_make_no_number_of_0_is_refused(what, layers):
    with pytest.raises(BuildError, match=f"layer c: {what}: must be at most 65504 .fp16., got 100000"):
        build(_one(layers), "nv_full", "fp16")


def test_a_sum_with_a_constant_above_the_largest_half_is_limited_as_every_sum(recwarn):
    net = _one(lambda n, x: n.add("sum", x, n.constant("k", np.full(x.shape, -3e38))))
    built = build(net, "nv_full", "fp16")
    elements = built.quantize_inputs({"in": np.ones((1, *net.inputs[0].shape))})
    assert np.all(Runtime(built.loadable, "nv_full").run(elements)["sum"] == -65504)
    assert not recwarn.list


def test_every_error_of_the_builder_is_one_line_of_the_family():
    assert issubclass(BuildError, NvdlaError)
    with pytest.raises(NvdlaError) as caught:
        _one(lambda n, x: n.relu("in", x))
    assert "\n" not in str(caught.value)


def test_quantize_limits_to_the_symmetric_range():
    np.testing.assert_array_equal(quantize(np.array([-9, -0.5, 0.5, 9]), 0.05, "int8"), [-127, -10, 10, 127])


def test_factors_between_scales_and_tables_name_the_layer_in_the_error():
    """Helpers that know numbers alone find them, deep below the layer."""
    net = _one(lambda n, x: n.relu("far", x))
    refused = "layer far: factor between two scales: must be at most 32767, got 1e.06"
    with pytest.raises(BuildError, match=refused) as caught:
        build(net, "nv_small", "int8", Calibration({"in": 127e6, "far": 127.0}))
    assert caught.value.layer == "far"
    net = _one(lambda n, x: n.function("f", x, lambda v: 1 / v))
    with pytest.raises(BuildError, match="layer f: function of a lookup table: must be finite") as caught:
        build(net, "nv_full", "fp16")
    assert caught.value.layer == "f"
    assert BuildError("32 steps of the search").layer == ""


def test_networks_print_as_one_line():
    net = Network("net")
    net.output(net.relu("r", net.input("x", (8, 4, 4))))
    assert repr(net) == "<Network net: 2 layers; x 8x4x4, r 8x4x4>"
    built = build(net, "nv_small", "int8", Calibration({"x": 1.0, "r": 1.0}))
    assert repr(built) == "<Built net: int8, 1 operation, 0 bytes of surfaces>"


def test_more_operations_than_descriptors_can_number_are_refused(monkeypatch):
    monkeypatch.setattr(emit, "MAX_OPERATIONS", 3)
    rng, net = np.random.default_rng(0), Network()
    x = net.convolution("c", net.input("in", (8, 6, 6)), rng.normal(size=(8, 8, 3, 3)))
    net.output(net.convolution("d", x, rng.normal(size=(8, 8, 3, 3))))
    calibration = calibrate(net, rng.normal(size=(2, 8, 6, 6)))
    with pytest.raises(BuildError, match=r"operations of a task: must be at most 3, got 4, of which 2 are"):
        build(net, "nv_small", "int8", calibration)
