"""Open sizes, float16 ends, nodes in any order, and attributes of late opsets."""

from __future__ import annotations

import re

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla  # noqa: E402
from nvdla.compiler.frontend.package import unpack  # noqa: E402
from nvdla.errors import FormatError  # noqa: E402


def convolution(shape=(1, 3, 8, 8), dtype=np.float32, nodes=None):
    """Conv and Relu, or other nodes between x and y."""
    helper, weights = onnx.helper, np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(dtype) * dtype(0.3)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes or [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4), helper.make_node("Relu", ["a"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, [shape[0], 4, *shape[2:]])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def image(dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(dtype)


@pytest.mark.parametrize("batch", ["N", -1])
def test_an_open_batch_is_1_with_a_note(batch):
    net = convolution((batch, 3, 8, 8))
    compiled = nvdla.compile(net, "nv_full", "fp16")
    note = "input x: its batch is open, so it is 1. For another add --shape x=N,3,8,8 (Python: shapes=)."
    assert note in compiled.report["notes"]
    assert compiled.whole
    fixed = nvdla.compile(convolution(), "nv_full", "fp16")
    assert note not in fixed.report.get("notes", ())
    assert np.array_equal(compiled.run(image())["y"], fixed.run(image())["y"])
    two = nvdla.compile(net, "nv_full", "fp16", shapes={"x": (2, 3, 8, 8)})
    assert two.run(np.concatenate([image(), image()]))["y"].shape == (2, 4, 8, 8)


@pytest.mark.parametrize(
    ("shape", "hint"),
    [((1, 3, "H", "W"), "x=1,3,?,?"), (("N", 3, "H", 8), "x=1,3,?,8"), (("N", "C", 8, 8), "x=1,?,8,8")],
)
def test_other_open_sizes_must_be_given(shape, hint):
    shown = ", ".join(map(str, shape))
    with pytest.raises(
        FormatError, match=re.escape(f"shape must be fixed, got [{shown}]. Add --shape {hint} with a number")
    ):
        nvdla.compile(convolution(shape), "nv_full", "fp16")
    compiled = nvdla.compile(convolution(shape), "nv_full", "fp16", shapes={"x": (1, 3, 8, 8)})
    assert compiled.run(image())["y"].shape == (1, 4, 8, 8)


def test_float16_stays_at_the_ends():
    net = convolution(dtype=np.float16)
    compiled = nvdla.compile(net, "nv_full", "fp16")
    found = compiled.run(image(np.float16))["y"]
    assert found.dtype == np.float16
    packed = unpack(compiled.package).machine().run(image(np.float16))["y"]
    assert packed.dtype == np.float16 and np.array_equal(packed, found)
    wide = nvdla.compile(convolution(), "nv_full", "fp16")
    assert wide.run(image())["y"].dtype == np.float32


def test_nodes_come_in_any_order():
    make = onnx.helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        make("Relu", ["a"], ["b"]),
        make("MaxPool", ["b"], ["c"], kernel_shape=[3, 3], pads=[1] * 4),
        make("Add", ["b", "c"], ["y"]),
    ]
    wanted = nvdla.compile(convolution(nodes=nodes), "nv_full", "fp16").run(image())["y"]
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        found = nvdla.compile(convolution(nodes=[nodes[place] for place in order]), "nv_full", "fp16")
        assert np.array_equal(found.run(image())["y"], wanted)
    nodes[0].input[0] = "y"
    with pytest.raises(FormatError, match="is used before it is defined"):
        nvdla.compile(convolution(nodes=nodes), "nv_full", "fp16")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_float16_model_is_calibrated_with_samples_of_any_float_type(dtype):
    """onnxruntime takes the inputs of a float16 model in float16 only."""
    compiled = nvdla.compile(convolution(dtype=np.float16), "nv_small", "int8", [{"x": image(dtype)}])
    assert compiled.whole
    exact = nvdla.compile(convolution(), "nv_full", "fp16").run(image())["y"]
    found = compiled.run(image())["y"]
    assert 10 * np.log10((exact**2).sum() / ((exact - found.astype(np.float32)) ** 2).sum()) > 25


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("batch", [1, 2])
def test_space_to_depth_has_the_order_of_its_mode(mode, batch):
    """The attribute is new in opset 28."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    if onnx.defs.get_schema("SpaceToDepth").since_version < 28:
        pytest.skip("this onnx knows no mode of SpaceToDepth")
    graph = helper.make_graph(
        [
            helper.make_node("SpaceToDepth", ["x"], ["a"], blocksize=2, mode=mode),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        "blocks",
        [helper.make_tensor_value_info("x", kind, (batch, 3, 4, 6))],
        [helper.make_tensor_value_info("y", kind, (batch, 12, 2, 3))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)])
    given = np.arange(batch * 72, dtype=np.float32).reshape(batch, 3, 4, 6)
    blocks = given.reshape(batch, 3, 2, 2, 3, 2)
    right = blocks.transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)).reshape(batch, 12, 2, 3)
    compiled = nvdla.compile(model, "nv_full", "fp16")
    assert compiled.loadable is not None
    assert np.array_equal(compiled.run({"x": given})["y"], right)


def test_values_above_the_largest_half_are_computed_on_the_host():
    """A convolution of halves would saturate; the calibration data show it."""
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        onnx.helper.make_node("Relu", ["a"], ["y"]),
    ]
    large = image() * np.float32(1e5)
    compiled = nvdla.compile(convolution(nodes=nodes), "nv_full", "fp16", [{"x": large}])
    (row,) = [row for row in compiled.nodes if row.op == "Conv"]
    assert row.placement == "host" and "the largest half" in row.reason
    small = nvdla.compile(convolution(nodes=nodes), "nv_full", "fp16", [{"x": image()}])
    assert all(row.placement != "host" for row in small.nodes)
