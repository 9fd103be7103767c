"""Squares and reductions in fp16 are exact to the rounding of halves, near 0 and far from it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla
from nvdla.compiler.frontend.model import session
from tests.compiler.frontend.models import model, node

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
