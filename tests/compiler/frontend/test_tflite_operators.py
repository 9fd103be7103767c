"""TFLite operators on the accelerator are within one unit of the reference interpreter; sums and tables within two."""

from __future__ import annotations

import functools

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from support.tflite_models import CASES, FLOAT_CASES, goldens  # noqa: E402
from support.tflite_writer import interpreted  # noqa: E402

from nvdla.compiler.frontend.compiler import compile as compile_model  # noqa: E402
from nvdla.compiler.frontend.tflite import tflite_proto  # noqa: E402
from nvdla.compiler.frontend.tflite.graph import CONVERSIONS  # noqa: E402
from nvdla.compiler.frontend.tflite.reader import read_model  # noqa: E402

recorded = functools.cache(goldens)
DETECTION = "TFLite_Detection_PostProcess"

#: operators that no engine does: they run on the host
ON_HOST = {
    "BATCH_MATMUL computed": "MatMul",
    "BATCH_MATMUL adjoint computed": "MatMul",
    "RESIZE_BILINEAR aligned": "Resize",
    "L2_NORMALIZATION": "LpNormalization",
}


def units_off(case, config: str):
    """(largest difference to the interpreter in units, the compiled model)."""
    made = case.made()
    model = read_model(made.data, case.name)
    compiled = compile_model(made.data, config)
    feeds = {}
    for number, array in zip(model.inputs, made.arrays, strict=True):
        tensor = model.tensors[number]
        feeds[tensor.name] = _real(array, tensor.quantization)
    found = compiled.run(feeds)
    errors = []
    for number, wanted in zip(model.outputs, recorded()[case.name], strict=True):
        tensor = model.tensors[number]
        got = found[tensor.name]
        assert got.shape == wanted.shape
        if tensor.quantization is None:
            errors.append(np.abs(got - wanted).max(initial=0) * 1000)
        else:
            elements = np.rint(got / tensor.quantization.scales[0]) + tensor.quantization.points[0]
            errors.append(np.abs(elements - wanted).max(initial=0))
    return max(errors), compiled


def _real(array, quantization):
    if quantization is None:
        return array
    return ((array.astype(np.float64) - quantization.points[0]) * quantization.scales[0]).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_an_operator_is_within_its_units_of_the_interpreter(name):
    error, compiled = units_off(CASES[name], "nv_small")
    assert error <= CASES[name].units
    host = {row.op for row in compiled.nodes if row.placement == "host"} - {"Identity", "Transpose", "Reshape"}
    assert host == ({ON_HOST[name]} if name in ON_HOST else set())


@pytest.mark.parametrize("name", ["CONV_2D 1", "DEPTHWISE_CONV_2D 1", "ADD maps", "MEAN [1, 2] kept", "SOFTMAX"])
def test_nv_large_gives_the_same(name):
    assert units_off(CASES[name], "nv_large")[0] <= CASES[name].units


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_a_converted_operator_computes_the_same_in_onnxruntime(name):
    made = FLOAT_CASES[name].made()
    proto = tflite_proto(onnx, made.data, name, {})[1]
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    found = session.run(None, dict(zip(names, made.arrays, strict=True)))
    for got, wanted in zip(found, recorded()[name], strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_every_operator_that_is_converted_has_a_case():
    models = [case.made().data for case in (CASES | FLOAT_CASES).values()]
    tested = {each.op for data in models for each in read_model(data, "model").operators}
    # detections: test_tflite_detection.py
    assert set(CONVERSIONS) - tested == {"LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT", "SELECT", DETECTION}


def test_the_recorded_results_are_those_of_the_interpreter():
    pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
    for name, case in list((CASES | FLOAT_CASES).items())[::7]:
        made = case.made()
        for got, wanted in zip(interpreted(made.data, *made.arrays), recorded()[name], strict=True):
            np.testing.assert_array_equal(got, wanted, err_msg=name)


def test_the_page_of_operators_is_current():
    from tools.tflite_operators import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "run PYTHONPATH=.:tests python -m tools.tflite_operators"
