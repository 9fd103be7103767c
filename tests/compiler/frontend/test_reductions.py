"""Squares and reductions in fp16 are exact to the rounding of halves, near 0 and far from it."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla  # noqa: E402
from nvdla.compiler.frontend.model import session  # noqa: E402
from tests.compiler.frontend.models import model, node  # noqa: E402

NODES = {
    "ReduceSumSquare": node("ReduceSumSquare", "x", "y", keepdims=0),
    "ReduceL1": node("ReduceL1", "x", "y", keepdims=0),
    "ReduceL2": node("ReduceL2", "x", "y", keepdims=0),
    "ReduceSum": node("ReduceSum", "x", "y", keepdims=0),
    "Pow": node("Pow", "x two", "y"),
    "Mul": node("Mul", "x x", "y"),
}


@pytest.mark.parametrize("largest", [0.05, 1.0, 50.0])
@pytest.mark.parametrize("name", NODES)
def test_squares_and_their_sums_are_exact_to_the_rounding_of_halves(name, largest):
    shape = (1, 3, 4, 4)
    made = model([NODES[name]], {"x": shape}, {"y": None}, {"two": np.float32(2)}, opset=13)
    compiled = nvdla.compile(made, "nv_full", "fp16")
    x = (np.random.default_rng(1).uniform(0.1, 1, shape) * largest).astype(np.float16).astype(np.float32)
    exact = session(made, "m").run(None, {"x": x})[0]
    # Each square and the sum are rounded to 11 bits once; below 2**-14 halves have a fixed step.
    np.testing.assert_allclose(compiled.run(x)["y"], exact, rtol=2.0**-10, atol=2.0**-24)
    assert name == "ReduceL2" or all(row.placement == "accelerator" for row in compiled.nodes)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceMax"])
def test_tokens_are_reduced_where_they_are(op):
    """The tokens of a transformer are the pixels of a cube whose channels are features: no element has to move."""
    weights = np.random.default_rng(0).normal(size=(32, 24)).astype(np.float32)
    axes = {"axes": np.array([1])} if op == "ReduceSum" else {}
    given = {} if axes else {"axes": [1]}
    nodes = [node("MatMul", "x w", "t"), node(op, "t axes" if axes else "t", "y", keepdims=0, **given)]
    made = model(nodes, {"x": (1, 16, 32)}, {"y": None}, {"w": weights, **axes}, opset=17)
    tokens = np.random.default_rng(1).normal(size=(8, 16, 32)).astype(np.float32)
    compiled = nvdla.compile(made, "nv_small", "int8", [{"x": each[None]} for each in tokens], host=False)
    wanted = np.concatenate([session(made, "m").run(None, {"x": each[None]})[0] for each in tokens])
    noise = np.concatenate([compiled.run(each[None])["y"] for each in tokens]) - wanted
    assert 10 * np.log10(np.mean(wanted**2) / np.mean(noise**2)) > 30
    assert nvdla.Runtime(compiled.loadable).tasks[0].num_operations < 10


@pytest.mark.parametrize(("precision", "config"), [("int8", "nv_small"), ("fp16", "nv_full")])
@pytest.mark.parametrize("shifted", [False, True])
def test_a_logarithm_of_a_sum_of_exponentials_is_right(precision, config, shifted):
    """exp(60) fits into no element: the host computes it. Less the largest value, as in a softmax, the sum is small."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [("ReduceMax", ["x", "axis"], "top"), ("Sub", ["x", "top"], "s")] if shifted else []
    nodes += [("Exp", ["s" if shifted else "x"], "e"), ("ReduceSum", ["e", "axis"], "t"), ("Log", ["t"], "y")]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [name], name=f"{name}_node") for op, inputs, name in nodes],
        "sum",
        [helper.make_tensor_value_info("x", kind, (1, 8, 4, 4))],
        [helper.make_tensor_value_info("y", kind, (1, 1, 4, 4))],
        [onnx.numpy_helper.from_array(np.array([1]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    given = np.random.default_rng(2).uniform(-60, 60, (1, 8, 4, 4)).astype(np.float32)
    shift = given.max(axis=1, keepdims=True) if shifted else np.zeros(1)
    wanted = np.log(np.exp(given.astype(np.float64) - shift).sum(axis=1, keepdims=True))
    compiled = nvdla.compile(model, config, precision, [{"x": given}])
    placed = {row.op: row.placement for row in compiled.nodes}
    # in fp16 the logarithm is on the host, too, and takes the sum with it
    assert (placed["ReduceSum"] == "host") == (not shifted or precision == "fp16")
    assert np.abs(compiled.run({"x": given})["y"] - wanted).max() < (0.05 if shifted else 1e-4)


def test_a_variance_by_difference_runs_on_the_host_in_int8():
    """The mean of the squares minus the square of the mean loses small variances; squared deviations keep them."""
    axis = np.array([3], np.int64)
    means = [
        node("ReduceMean", "x axis", "mean"),
        node("Mul", "x x", "square"),
        node("ReduceMean", "square axis", "squares"),
        node("Mul", "mean mean", "squared"),
        node("Sub", "squares squared", "y"),
    ]
    deviations = [
        node("ReduceMean", "x axis", "mean"),
        node("Sub", "x mean", "deviation"),
        node("Mul", "deviation deviation", "square"),
        node("ReduceMean", "square axis", "y"),
    ]
    spread = np.float32([1, 0.5, 1, 0.5]).reshape(1, 4, 1, 1)
    samples = np.random.default_rng(3).normal(size=(8, 4, 6, 16)).astype("f4") * spread + 1
    for nodes, hosted in ((means, 4), (deviations, 0)):
        made = model(nodes, {"x": (1, 4, 6, 16)}, {"y": (1, 4, 6, 1)}, {"axis": axis}, opset=18)
        compiled = nvdla.compile(made, "nv_small", "int8", samples)
        assert [row.placement for row in compiled.nodes].count("host") == hosted
        exact = session(made, "m").run(None, {"x": samples[:1]})[0]
        assert np.abs(compiled.run(samples[:1])["y"] - exact).max() < 0.05 * exact.max()
