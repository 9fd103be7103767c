"""What was compiled runs on the configuration that it was compiled for, whether its loadables tell it or not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from nvdla import Runtime
from nvdla.compiler.frontend.compiler import compile as compile_model
from nvdla.compiler.frontend.package import unpack
from tests.compiler.frontend.models import model, node

RNG = np.random.default_rng(7)
X = RNG.normal(size=(2, 3, 16, 16)).astype(np.float32)


def test_patches_of_an_image_run_on_nv_small_256():
    """Two rows of a kernel share a pass in its 32 multipliers, nv_small has 8; the lines of the buffer tell."""
    weights = {"w": RNG.normal(size=(8, 3, 4, 4)).astype(np.float32)}
    made = model(
        [node("Conv", "x w", "c", strides=[4, 4]), node("Softmax", "c", "y", axis=1)],
        {"x": (1, 3, 16, 16)},
        {"y": (1, 8, 4, 4)},
        weights,
    )
    compiled = compile_model(made, "nv_small_256", "int8", X)
    assert Runtime(compiled.loadable).config.name == "nv_small_256"
    found = compiled.run(X[:1])["y"]
    again = unpack(compiled.package).machine().run(X[:1])["y"]
    np.testing.assert_array_equal(found, again)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=0.05)
