"""A package that is written can be loaded: its host parts are opened once when it is compiled."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto

from nvdla.compiler.frontend import compiler
from nvdla.compiler.frontend.checking import multiplications
from nvdla.compiler.frontend.isolation import session
from nvdla.compiler.frontend.package import unpack
from nvdla.errors import FormatError
from tests.compiler.frontend.models import model, node

RNG = np.random.default_rng(3)
X = RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)


def fake_quantized():
    """Weights in real numbers, quantized and dequantized in the graph, with one scale."""
    weights = (RNG.normal(size=(4, 3, 3, 3)) / 5).astype(np.float32)
    nodes = [
        node("QuantizeLinear", "x sx z", "xq"),
        node("DequantizeLinear", "xq sx z", "xd"),
        node("QuantizeLinear", "w sw z", "wq"),
        node("DequantizeLinear", "wq sw z", "wd"),
        node("Conv", "xd wd", "c", pads=[1, 1, 1, 1]),
        node("QuantizeLinear", "c sy z", "cq"),
        node("DequantizeLinear", "cq sy z", "y"),
    ]
    scales = {"sx": np.float32(0.02), "sy": np.float32(0.03), "sw": np.float32(np.abs(weights).max() / 127)}
    return model(nodes, {"x": X.shape}, {"y": (1, 4, 8, 8)}, {"w": weights, "z": np.int8(0), **scales})


def test_weights_quantized_in_the_graph_are_saved_loaded_and_run(tmp_path):
    made = fake_quantized()
    compiler.compile(made, "nv_small", "int8").save(tmp_path / "net.nvpkg")
    found = unpack(tmp_path / "net.nvpkg").machine().run({"x": X})["y"]
    assert np.abs(found - session(made, "m").run(None, {"x": X})[0]).max() <= 0.03 * 1.001


def test_a_part_that_onnxruntime_refuses_is_an_error_of_compile(monkeypatch):
    made = model([node("Erf", "x", "e"), node("Sin", "e", "y")], {"x": X.shape}, {"y": X.shape})
    whole = compiler._build

    def broken(*arguments, **options):
        compiled = whole(*arguments, **options)
        part = next(part for part in compiled.parts if part.model is not None)
        part.model.graph.node[0].name, part.model.graph.node[0].op_type = "bad", "NoOperator"
        return compiled

    monkeypatch.setattr(compiler, "_build", broken)
    with pytest.raises(FormatError, match=r"host part \d: onnxruntime cannot run it: .*bad"):
        compiler.compile(made, "nv_full", "fp16", keep_on_host=("e", "y"))


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (1, 4, 5, 3)])
def test_a_picture_for_a_host_part_of_integers_keeps_its_pixels(shape):
    net = model([node("BitwiseNot", "x", "y")], {"x": shape}, {"y": shape}, opset=18)
    for end in (*net.graph.input, *net.graph.output):
        end.type.tensor_type.elem_type = TensorProto.UINT8
    pixels = RNG.integers(0, 256, shape).astype(np.uint8)
    compiled = compiler.compile(net, "nv_full", "fp16")
    np.testing.assert_array_equal(compiled.run({"x": pixels})["y"], ~pixels)
    with pytest.raises(FormatError, match="input 'x': must be whole numbers of uint8, got real numbers"):
        compiled.run({"x": pixels + 0.5})


@pytest.mark.parametrize(
    ("op", "attributes", "inputs", "count"),
    [
        ("GRU", {"hidden_size": 12}, [(6, 1, 16), (1, 36, 16), (1, 36, 12)], 6 * 36 * 28),
        ("LSTM", {"direction": "bidirectional"}, [(6, 2, 16), (2, 48, 16), (2, 48, 12)], 2 * 6 * 2 * 48 * 28),
        ("Einsum", {"equation": "bij,jk->bik"}, [(2, 3, 4), (4, 5)], 2 * 3 * 4 * 5),
        ("Einsum", {"equation": "...ij, ...jk -> ...ik"}, [(7, 2, 3, 4), (2, 4, 5)], 7 * 2 * 3 * 4 * 5),
        ("Einsum", {"equation": "ij->ji"}, [(3, 4)], 0),
        ("Relu", {}, [(3, 4)], 0),
    ],
)
def test_recurrent_layers_and_sums_of_products_count_as_multiplications(op, attributes, inputs, count):
    shapes = {f"i{place}": shape for place, shape in enumerate(inputs)} | {"y": (1,)}
    assert multiplications(op, list(shapes)[:-1], ["y"], attributes, shapes) == count
