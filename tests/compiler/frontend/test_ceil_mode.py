"""Pools whose size is rounded up, and whose last window would begin in the padding: onnxruntime drops it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

from nvdla.compiler.frontend.attributes import infer_shapes
from nvdla.compiler.frontend.checking import known_shapes
from nvdla.compiler.frontend.compiler import compile as compile_model
from nvdla.compiler.frontend.isolation import session
from nvdla.compiler.frontend.model import read
from nvdla.errors import FormatError
from tests.compiler.frontend.models import model, node

OPSETS = (11, 13, 19, 22)
X = np.random.default_rng(8).normal(size=(4, 3, 7, 6)).astype(np.float32)
#: windows, each with an axis that loses its last window: some with one on the other axis that is only cut off
WINDOWS = {
    "narrower than the stride": {"kernel_shape": [3, 1], "strides": [1, 3]},
    "one cut off, one dropped": {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 1]},
    "padded on all sides": {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1]},
    "valid": {"kernel_shape": [1, 2], "strides": [4, 4], "auto_pad": "VALID"},
}


def pool(op, opset, **attributes):
    """A pool that rounds up, with a node behind it that must agree with its size; no shape is stated."""
    made = model([node(op, "x", "p", ceil_mode=1, **attributes), node("Relu", "p", "y")], {"x": X[:1].shape}, {"y": ()})
    made.opset_import[0].version = opset
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def truth(made):
    return session(made, "m").run(None, {"x": X[:1]})[0]


def inferred(made):
    return known_shapes(infer_shapes(onnx, made, strict=True).graph.output)["y"]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("opset", OPSETS)
def test_sizes_are_those_of_onnxruntime(op, opset):
    if op == "LpPool" and opset < 18:
        pytest.skip("LpPool has no ceil_mode before opset 18")
    tried = 0
    for kernel, stride, begin, end in product((1, 2, 3, 4), (1, 2, 3, 4), range(3), range(4)):
        if max(begin, end) < kernel:
            window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [begin, begin, end, end]}
            made = pool(op, opset, **window)
            assert inferred(made) == truth(made).shape, window
            tried += 1
    for kernel, stride, mode in product((1, 2, 3), (1, 2, 3), ("VALID", "SAME_UPPER", "SAME_LOWER")):
        if kernel >= stride:  # onnxruntime refuses others in some modes
            made = pool(op, opset, kernel_shape=[kernel] * 2, strides=[stride] * 2, auto_pad=mode)
            assert inferred(made) == truth(made).shape, (kernel, stride, mode)
    assert tried > 100


def test_inference_leaves_the_nodes_as_they_are():
    made = pool("AveragePool", 13, **WINDOWS["padded on all sides"])
    assert list(infer_shapes(onnx, made).graph.node) == list(made.graph.node)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "counted", "LpPool"])
@pytest.mark.parametrize("opset", OPSETS)
def test_compiled_pools_give_what_onnxruntime_gives(op, opset, window):
    attributes = WINDOWS[window]
    if op == "counted":
        op, attributes = "AveragePool", attributes | {"count_include_pad": 1}
    elif op == "LpPool":
        attributes = attributes | {"p": 1}
        if opset < 18:
            pytest.skip("LpPool has no ceil_mode before opset 18")
    made = pool(op, opset, **attributes)
    exact = truth(made)
    for config, precision, data in (("nv_full", "fp16", None), ("nv_small", "int8", X)):
        found = compile_model(made, config, precision, data).run(X[:1])["y"]
        assert found.shape == exact.shape
        assert np.abs(found - exact).max() < (0.01 if precision == "fp16" else 0.05) * np.abs(exact).max()


def test_on_the_host_too():
    made = pool("LpPool", 19, p=2, **WINDOWS["padded on all sides"])
    compiled = compile_model(made, "nv_full", "fp16")
    assert {row["name"]: row["placement"] for row in compiled.report["nodes"]}["p"] == "host"
    np.testing.assert_allclose(compiled.run(X[:1])["y"], truth(made), rtol=2e-3, atol=2e-3)


def test_a_file_with_the_sizes_of_onnx_is_read():
    """Tools store what onnx infers, one window too many; onnxruntime runs such a file."""
    made = onnx.shape_inference.infer_shapes(pool("MaxPool", 13, **WINDOWS["narrower than the stride"]))
    exact = truth(made)
    assert known_shapes(made.graph.output)["y"] != exact.shape
    assert read(made).shapes["y"] == exact.shape
    np.testing.assert_allclose(compile_model(made, "nv_full", "fp16").run(X[:1])["y"], exact, atol=2e-3)


def test_a_size_that_neither_gives_is_an_error():
    made = onnx.shape_inference.infer_shapes(pool("MaxPool", 13, **WINDOWS["narrower than the stride"]))
    made.graph.output[0].type.tensor_type.shape.dim[2].dim_value += 1
    with pytest.raises(FormatError, match=r"differ in dimension 2"):
        read(made)
