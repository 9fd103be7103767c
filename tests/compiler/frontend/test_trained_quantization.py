"""Models of quantization-aware training: float weights, QuantizeLinear, DequantizeLinear, and activation functions
before QuantizeLinear. All of each model runs on the accelerator, within one unit of onnxruntime (a sigmoid: two)."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_reference import exact_session

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla  # noqa: E402
from nvdla.compiler.frontend.isolation import session  # noqa: E402

node = onnx.helper.make_node
#: activation function of the convolution, its nodes from a to r, scale and zero point of r
FUNCTIONS = {
    "none": ([], 0.04, np.uint8(128)),
    "symmetric": ([], 0.08, np.int8(0)),
    "Relu": ([node("Relu", ["a"], ["r"])], 0.04, np.uint8(0)),
    "ReLU6 of uint8": ([node("Clip", ["a", "low", "high"], ["r"])], 6 / 255, np.uint8(0)),
    "ReLU6 of int8": ([node("Clip", ["a", "low", "high"], ["r"])], 6 / 255, np.int8(-128)),
    "HardSwish": ([node("HardSwish", ["a"], ["r"])], 0.04, np.uint8(10)),
    "HardSwish, spelled out": (
        [node("HardSigmoid", ["a"], ["s"], alpha=1 / 6, beta=0.5), node("Mul", ["s", "a"], ["r"])],
        0.04,
        np.int8(-118),
    ),
    "SiLU": ([node("Sigmoid", ["a"], ["s"]), node("Mul", ["a", "s"], ["r"])], 0.04, np.uint8(8)),
    "Sigmoid": ([node("Sigmoid", ["a"], ["r"])], 1 / 256, np.uint8(0)),
}


def trained(function: str, per_channel: bool):
    """A convolution with fake-quantized weights: the model and the scale of its output."""
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=(8, 3, 3, 3)) * 0.3).astype(np.float32)
    nodes, scale, zero = FUNCTIONS[function]
    largest = np.abs(weights).max((1, 2, 3)) if per_channel else np.abs(weights).max()
    constants = {
        "w": weights,
        "b": (rng.normal(size=8) * 0.2).astype(np.float32),
        "low": np.float32(0),
        "high": np.float32(6),
        "x/scale": np.float32(0.05),
        "x/zero": np.uint8(128),
        "w/scale": (largest / 127).astype(np.float32),
        "w/zero": np.zeros(np.shape(largest), np.int8),
        "r/scale": np.float32(scale),
        "r/zero": zero,
    }
    axis = {"axis": 0} if per_channel else {}

    def rounded(name: str, result: str, parameters: str, **attributes):
        names = [f"{parameters}/scale", f"{parameters}/zero"]
        return [
            node("QuantizeLinear", [name, *names], [f"{result}/elements"], **attributes),
            node("DequantizeLinear", [f"{result}/elements", *names], [result], **attributes),
        ]

    nodes = [
        *rounded("x", "x/real", "x"),
        *rounded("w", "w/real", "w", **axis),
        node("Conv", ["x/real", "w/real", "b"], ["a" if nodes else "r"], pads=[1] * 4),
        *nodes,
        *rounded("r", "y", "r"),
    ]
    used = {name for each in nodes for name in each.input}
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [value("x", 1, [1, 3, 12, 12])],
        [value("y", 1, [1, 8, 12, 12])],
        [onnx.numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items() if name in used],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), scale


@pytest.mark.parametrize("per_channel", [False, True], ids=["per tensor", "per channel"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_all_of_it_runs_on_the_accelerator_within_one_unit(function, per_channel):
    net, scale = trained(function, per_channel)
    compiled = nvdla.compile(net, "nv_small", host=False)
    assert compiled.whole
    image = (np.random.default_rng(1).normal(size=(1, 3, 12, 12)) * 2).astype(np.float32)
    wanted = exact_session(net).run(None, {"x": image})[0]
    units = np.abs(compiled.run(image)["y"] - wanted) / scale
    assert units.max() < (2.01 if function == "Sigmoid" else 1.01)  # a steep table of 8 bits
    reference = session(net, "net").run(None, {"x": image})[0]  # of `evaluate --against`, optimized
    assert np.abs(reference - wanted).max() < 1.01 * scale
    assert len(np.unique(wanted)) > 50


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_means_of_numbers_that_can_be_negative_keep_the_bits_of_their_own_scale(config):
    """TFLite gives a mean the zero point -128 where calibration met no negative one; its scale is far finer than that
    of the convolution. What saturates at zero is as after a ReLU."""
    net, _ = trained("SiLU", True)
    scale = np.float32(0.0025)
    for name, value in {"m/scale": scale, "m/zero": np.int8(-128)}.items():
        net.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    net.graph.node.append(node("GlobalAveragePool", ["y"], ["m"]))
    net.graph.node.append(node("QuantizeLinear", ["m", "m/scale", "m/zero"], ["m/elements"]))
    net.graph.node.append(node("DequantizeLinear", ["m/elements", "m/scale", "m/zero"], ["z"]))
    net.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", 1, [1, 8, 1, 1]))
    compiled = nvdla.compile(net, config, host=False)
    image = (np.random.default_rng(1).normal(size=(1, 3, 12, 12)) * 0.5).astype(np.float32)
    wanted = exact_session(net).run(None, {"x": image})[0]
    assert np.abs(compiled.run(image)["z"] - wanted).max() < 2.01 * scale
    assert len(np.unique(wanted)) > 5, wanted


def test_zero_points_that_an_exporter_shares_by_identity_are_constants():
    """PyTorch's exporter without dynamo makes one constant of equal ones, and copies of it by Identity."""
    net, scale = trained("Relu", True)
    for name in ("r/zero", "w/zero"):
        for each in net.graph.node:
            each.input[:] = [f"{name}/copy" if given == name else given for given in each.input]
        net.graph.node.insert(0, node("Identity", [name], [f"{name}/copy"]))
    compiled = nvdla.compile(net, "nv_small", host=False)
    assert compiled.whole
    image = (np.random.default_rng(1).normal(size=(1, 3, 12, 12)) * 2).astype(np.float32)
    assert np.abs(compiled.run(image)["y"] - exact_session(net).run(None, {"x": image})[0]).max() < 1.01 * scale


@pytest.mark.parametrize("limits", [(-127, 127), (-7, 7)])
@pytest.mark.parametrize("function", ["none", "symmetric", "Relu"])
def test_integers_that_brevitas_limits_stay_on_the_accelerator(function, limits):
    """QCDQ: QuantizeLinear, Clip of the integers, DequantizeLinear; the weights are integers already."""
    net, scale = trained(function, True)
    held = {each.name: onnx.numpy_helper.to_array(each) for each in net.graph.initializer}
    nodes = []
    for each in net.graph.node:
        if each.op_type == "DequantizeLinear":
            zero, result = held[each.input[2]].astype(np.int64).max(), f"{each.input[0]}/limited"
            ends = [f"{result}/{end}" for end in ("low", "high")]
            for end, limit in zip(ends, limits, strict=True):
                kind = np.iinfo(held[each.input[2]].dtype)
                number = np.array(np.clip(zero + limit, kind.min, kind.max), kind.dtype)
                net.graph.initializer.append(onnx.numpy_helper.from_array(number, end))
            nodes.append(node("Clip", [each.input[0], *ends], [result]))
            each.input[0] = result
        if list(each.output) == ["w/real/elements"]:
            units = held["w/scale"].reshape(-1, 1, 1, 1)
            elements = np.rint(held["w"] / units).astype(np.int8)
            net.graph.initializer.append(onnx.numpy_helper.from_array(elements, "w/real/elements"))
        else:
            nodes.append(each)
    copies = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del net.graph.node[:]
    net.graph.node.extend(copies)
    compiled = nvdla.compile(net, "nv_small", host=False)
    assert compiled.whole
    image = (np.random.default_rng(1).normal(size=(1, 3, 12, 12)) * 2).astype(np.float32)
    wanted = exact_session(net).run(None, {"x": image})[0]
    assert np.abs(compiled.run(image)["y"] - wanted).max() < 1.01 * scale
    assert len(np.unique(wanted)) > 5


def test_weights_beyond_the_range_are_cut_off_as_onnxruntime_does():
    net, scale = trained("none", True)
    held = {each.name: each for each in net.graph.initializer}
    units = onnx.numpy_helper.to_array(held["w/scale"]) / np.float32(2)
    held["w/scale"].CopyFrom(onnx.numpy_helper.from_array(units, "w/scale"))
    image = np.random.default_rng(1).normal(size=(1, 3, 12, 12)).astype(np.float32)
    wanted = exact_session(net).run(None, {"x": image})[0]
    found = nvdla.compile(net, "nv_small", host=False).run(image)["y"]
    assert np.abs(found - wanted).max() < 1.01 * scale
