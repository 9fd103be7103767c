"""Gates as mobile networks have them: hard-swish spelled out, and squeeze-and-excite."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from nvdla.compiler.frontend.compiler import compile as compile_model
from nvdla.compiler.frontend.model import session
from nvdla.compiler.frontend.operators import pooling
from tests.compiler.frontend.models import model, node

RNG = np.random.default_rng(5)
X = RNG.normal(size=(16, 8, 12, 12)).astype(np.float32)


def spelled(order):
    """conv, then x * clip(x + 3, 0, 6) / 6, divided at the end or before the product."""
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Add", "c three", "a"),
        node("Clip", "a zero six", "k"),
    ]
    if order == "end":
        nodes += [node("Mul", "c k", "m"), node("Div", "m six", "y")]
    else:
        nodes += [node("Div", "k six", "h"), node("Mul", "h c", "y")]
    numbers = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    weights = {"w": (RNG.normal(size=(8, 8, 3, 3)) / 8).astype(np.float32)}
    return model(nodes, {"x": (1, 8, 12, 12)}, {"y": (1, 8, 12, 12)}, numbers | weights)


@pytest.mark.parametrize("order", ["end", "before"])
@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_a_hard_swish_spelled_out_is_one_table_in_int8(order, config):
    made = spelled(order)
    compiled = compile_model(made, config, "int8", X)
    # The SDP of nv_large has tables, which the convolution's own operation looks up.
    layers = ["c+y"] if config == "nv_large" else ["c", "y"]
    assert [row["layer"] for row in compiled.report["accuracy"]] == layers
    exact = session(made, "m").run(None, {"x": X[:1]})[0]
    found = compiled.run(X[:1])["y"]
    assert np.sqrt(np.mean((found - exact) ** 2)) < 0.01 * np.abs(exact).max()


def test_the_table_of_nodes_tells_which_of_them_one_lookup_table_computes():
    """x * sigmoid(x): the product is the table, and no operation of its own computes the sigmoid."""
    weights = {"w": np.random.default_rng(0).normal(size=(8, 3, 1, 1)).astype("f4")}
    nodes = [node("Conv", "x w", "c"), node("Sigmoid", "c", "s"), node("Mul", "c s", "y")]
    compiled = compile_model(
        model(nodes, {"x": (1, 3, 6, 6)}, {"y": (1, 8, 6, 6)}, weights), "nv_small", "int8", np.ones((2, 3, 6, 6), "f4")
    )
    rows = {row.op: row for row in compiled.nodes}
    assert (rows["Mul"].operations, rows["Mul"].reason) == (["y"], "lookup table")
    assert (rows["Sigmoid"].operations, rows["Sigmoid"].reason) == ([], "in the lookup table of a later node")


def test_the_table_of_nodes_tells_which_of_them_move_elements_by_operations():
    """The copies of a nearest Resize are in the order that its reader needs; a Flatten of one pixel needs none."""
    constants = {"w": RNG.normal(size=(8, 3, 1, 1)).astype("f4"), "v": RNG.normal(size=(4, 8, 3, 3)).astype("f4")}
    constants["scales"] = np.array([1, 1, 2, 2], "f4")
    nodes = [
        node("Conv", "x w", "c"),
        node("Resize", "c  scales", "up", mode="nearest"),
        node("Conv", "up v", "d"),
        node("GlobalAveragePool", "d", "g"),
        node("Flatten", "g", "y"),
    ]
    nodes[1].input[:] = ["c", "", "scales"]
    made = model(nodes, {"x": (1, 3, 6, 6)}, {"y": (1, 4)}, constants)
    compiled = compile_model(made, "nv_small", "int8", np.ones((2, 3, 6, 6), "f4"))
    rows = {row.op: row for row in compiled.nodes}
    assert (rows["Resize"].placement, rows["Resize"].operations) == ("accelerator", ["d/repeat"])
    assert rows["Flatten"].placement == "folded" and "d/repeat" in rows["Conv"].operations


def test_in_fp16_it_stays_arithmetic():
    compiled = compile_model(spelled("end"), "nv_full", "fp16")
    kinds = [layer.kind for layer in compiled.imported.network.layers]
    assert "function" not in kinds and "clip" in kinds


def test_squeeze_and_excite_sees_fine_means(monkeypatch):
    """Of a sparse map: in steps of the map, as the PDP has them, its means would be one or two."""
    nodes = [
        node("Relu", "x", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Conv", "p w", "q"),
        node("Sigmoid", "q", "s"),
        node("Mul", "r s", "y"),
    ]
    weights = {"w": (RNG.normal(size=(8, 8, 1, 1)) * 4).astype(np.float32)}
    made = model(nodes, {"x": (1, 8, 12, 12)}, {"y": (1, 8, 12, 12)}, weights)

    def gate():
        compiled = compile_model(made, "nv_small", "int8", (X**5).astype(np.float32))
        return {row["tensor"]: row["chain"] for row in compiled.report["accuracy"]}["s"]

    fine = gate()
    monkeypatch.setattr(pooling, "mean", lambda graph, name, cube: graph.network.global_average_pool(name, cube))
    assert fine > gate() + 6


@pytest.mark.parametrize("precision", ["int8", "int16"])
@pytest.mark.parametrize("layer", ["Gemm", "MatMul"])
def test_a_product_of_functions_of_a_matrix_product_is_one_table(layer, precision):
    """GELU as PyTorch exports it: elements of these layers are in another order than in the model."""
    rng = np.random.default_rng(7)
    source, out = ((1, 12), (1, 6)) if layer == "Gemm" else ((1, 5, 12), (1, 5, 6))
    constants = {"v": rng.normal(size=(12, 6)) / 4, "root": np.sqrt(2), "one": 1.0, "half": 0.5}
    nodes = [
        node(layer, "x v", "g"),
        node("Div", "g root", "d"),
        node("Erf", "d", "e"),
        node("Add", "e one", "a"),
        node("Mul", "g a", "m"),
        node("Mul", "m half", "y"),
    ]
    constants = {name: np.asarray(value, "f4") for name, value in constants.items()}
    made, samples = model(nodes, {"x": source}, {"y": out}, constants), rng.normal(size=(16, *source[1:])).astype("f4")
    compiled = compile_model(made, "nv_full", precision, samples)
    assert [row.reason for row in compiled.nodes if row.op == "Mul"] == [
        "in the lookup table of a later node",
        "lookup table",
    ]
    exact = session(made, "m").run(None, {"x": samples[:1]})[0]
    assert np.abs(compiled.run(samples[:1])["y"] - exact).max() < 0.02 * np.abs(exact).max()


def test_a_product_of_a_value_with_its_transpose_is_no_table():
    rng = np.random.default_rng(7)
    nodes = [
        node("MatMul", "x v", "g"),
        node("Sigmoid", "g", "s"),
        node("Transpose", "s", "t", perm=[0, 2, 1]),
        node("Mul", "g t", "y"),
    ]
    constants = {"v": (rng.normal(size=(12, 5)) / 4).astype("f4")}
    made, samples = model(nodes, {"x": (1, 5, 12)}, {"y": (1, 5, 5)}, constants), rng.normal(size=(16, 5, 12))
    compiled = compile_model(made, "nv_full", "int8", samples.astype("f4"))
    exact = session(made, "m").run(None, {"x": samples[:1].astype("f4")})[0]
    assert np.abs(compiled.run(samples[:1].astype("f4"))["y"] - exact).max() < 0.05 * np.abs(exact).max()
