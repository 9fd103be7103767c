"""The ONNX backend, used as ONNX's own tests and scripts use a backend."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_a_prepared_model_runs_as_often_as_wanted():
    import nvdla.onnx_backend as backend

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, kind, (1, 8, 4, 4)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    prepared = backend.prepare(model, "nv_full:fp16")
    for seed in range(2):
        x = np.random.default_rng(seed).uniform(-1, 1, (1, 8, 4, 4)).astype(np.float16).astype(np.float32)
        (y,) = prepared.run([x])
        assert np.array_equal(y, np.maximum(x, 0))
