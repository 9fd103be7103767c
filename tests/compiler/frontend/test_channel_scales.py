"""Activations with a scale per channel before a depthwise convolution, as NNCF writes them, get one scale."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import nvdla  # noqa: E402

CHANNELS = 8


def model(relu: bool, multiplier: int, zero: int, ends: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """Q, DQ, convolution, ReLU, Q and DQ per channel, depthwise convolution, Q, DQ."""
    rng = np.random.default_rng(3)
    held: dict[str, np.ndarray] = {
        "s": np.float32(0.03),
        "z": np.int8(0),
        "scales": (rng.uniform(0.004, 0.02, CHANNELS)).astype(np.float32),
        "zeros": np.full(CHANNELS, zero, np.uint8 if zero else np.int8),
        "w1": rng.integers(-127, 128, (CHANNELS, 3, 3, 3)).astype(np.int8),
        "s1": rng.uniform(0.001, 0.004, CHANNELS).astype(np.float32),
        "b1": rng.normal(0, 0.3, CHANNELS).astype(np.float32),
        "w2": rng.integers(-127, 128, (CHANNELS * multiplier, 1, 3, 3)).astype(np.int8),
        "s2": np.float32(0.003),
        "b2": rng.normal(0, 0.3, CHANNELS * multiplier).astype(np.float32),
        "sy": np.float32(0.02),
        "zv": np.zeros(CHANNELS, np.int8),
    }
    middle = "r" if relu else "c"
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], "q", {}),
        ("DequantizeLinear", ["q", "s", "z"], "d", {}),
        ("DequantizeLinear", ["w1", "s1", "zv"], "k1", {"axis": 0}),
        ("Conv", ["d", "k1", "b1"], "c", {"pads": [1] * 4}),
        *([("Relu", ["c"], "r", {})] if relu else []),
        ("QuantizeLinear", [middle, "scales", "zeros"], "qm", {"axis": 1}),
        ("DequantizeLinear", ["qm", "scales", "zeros"], "dm", {"axis": 1}),
        ("DequantizeLinear", ["w2", "s2", "z"], "k2", {}),
        ("Conv", ["dm", "k2", "b2"], "c2", {"pads": [1] * 4, "group": CHANNELS}),
        ("QuantizeLinear", ["c2", "sy", "z"], "qy", {}),
        ("DequantizeLinear", ["qy", "sy", "z"], "y", {}),
    ]
    shapes = {"y": [1, CHANNELS * multiplier, 6, 6], "dm": [1, CHANNELS, 6, 6], middle: [1, CHANNELS, 6, 6]}
    graph = helper.make_graph(
        [helper.make_node(op, given, [made], **form) for op, given, made, form in nodes],
        "channels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in ends],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compared(proto: onnx.ModelProto) -> tuple[nvdla.Compiled, float]:
    """The compiled model, and its largest difference to onnxruntime in units of the output."""
    options = onnxruntime.SessionOptions()  # its optimized kernels have no scales per channel of results
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    compiled = nvdla.compile(proto, "nv_small")
    worst = 0.0
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(1, 3, 6, 6)).astype(np.float32)
        (wanted,), found = session.run(["y"], {"x": x}), compiled.run(x)["y"]
        assert np.ptp(wanted) > 2
        worst = max(worst, float(np.abs(found - wanted).max() / 0.02))
    return compiled, worst


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("multiplier", [1, 2])
def test_all_of_it_runs_on_the_accelerator_as_in_onnxruntime(relu, multiplier):
    compiled, worst = compared(model(relu, multiplier, 0))
    assert [row.op for row in compiled.nodes if row.placement == "host"] == []
    assert worst <= 2  # a unit of each convolution


@pytest.mark.parametrize("ends", [("y", "dm"), ("y", "r")])
def test_values_that_the_model_returns_keep_their_scales(ends):
    compiled, worst = compared(model(True, 1, 0, ends))
    assert any(row.placement == "host" for row in compiled.nodes)
    assert worst <= 2
    session = onnxruntime.InferenceSession(model(True, 1, 0, ends).SerializeToString())
    x = np.random.default_rng(0).normal(size=(1, 3, 6, 6)).astype(np.float32)
    wanted, found = session.run([ends[1]], {"x": x})[0], compiled.run(x)[ends[1]]
    assert np.abs(found - wanted).max() <= 0.05


def test_a_zero_point_for_all_channels_is_kept():
    compiled, worst = compared(model(False, 1, 128))
    assert worst <= 2
    assert [row.op for row in compiled.nodes if row.placement == "host"] == []
