"""TFLite operators without an ONNX form: LiteRT's interpreter computes them on the host, or the file is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("ai_edge_litert")

import onnx
from support.tflite_writer import FlatWriter, interpreted

import nvdla
from nvdla.compiler.frontend.isolation import LITERT, ModelWorker
from nvdla.compiler.frontend.opening import open_file, open_session
from nvdla.compiler.frontend.package import unpack
from nvdla.compiler.frontend.tflite import tflite_proto
from nvdla.compiler.frontend.tflite.conversion import INTERPRETED
from nvdla.errors import FormatError


def between(op: str, second: np.ndarray | None = None) -> bytes:
    """An int8 convolution, an operator on int8 or (with ``second``) on real numbers, and a ReLU."""
    rng = np.random.default_rng(3)
    writer, shape, real = FlatWriter(), (1, 6, 6, 8), second is not None
    x, middle = writer.tensor((1, 6, 6, 4), scale=0.05, zero=3, name="x"), writer.tensor(shape, scale=0.1, zero=-2)
    weights = writer.constant(rng.integers(-127, 128, (8, 3, 3, 4)).astype(np.int8), 0.01)
    writer.operator("CONV_2D", [x, weights, writer.constant(np.zeros(8, np.int32), 0.0005)], [middle],
                    padding=0, stride_w=1, stride_h=1)  # fmt: skip
    scale, zero = (0.0125, 0) if real else (0.1, -2)
    elements = writer.tensor(shape, scale=scale, zero=zero)
    if real:
        given, made = (writer.tensor(shape, "float32") for _ in range(2))
        writer.operator("DEQUANTIZE", [middle], [given])
        writer.operator(op, [given, writer.constant(second)], [made])
        writer.operator("QUANTIZE", [made], [elements])
    else:
        block = writer.constant(rng.integers(-9, 9, (1, 2, 3, 8)).astype(np.int8), scale, zero)
        writer.operator(op, [middle, block, writer.constant([0, 1, 2, 0])], [elements])
    y = writer.tensor(shape, scale=scale, zero=zero, name="y")
    writer.operator("RELU", [elements], [y])
    return writer.model([x], [y])


MODELS = {
    "ATAN2": lambda: between("ATAN2", second=np.full((1, 6, 6, 8), 1.5, np.float32)),
    "DYNAMIC_UPDATE_SLICE": lambda: between("DYNAMIC_UPDATE_SLICE"),
}


@pytest.mark.parametrize("op", MODELS)
def test_a_model_runs_around_the_operator(op, tmp_path):
    data = MODELS[op]()
    elements = np.random.default_rng(4).integers(-128, 128, (1, 6, 6, 4)).astype(np.int8)
    (wanted,) = interpreted(data, elements)
    compiled = nvdla.compile(data, "nv_small")
    rows = {row.op: row for row in compiled.nodes}
    assert (rows["Conv"].placement, rows["Relu"].placement, rows[op].placement) == (
        "accelerator",
        "accelerator",
        "host",
    )
    assert rows[op].reason == "LiteRT's interpreter computes it"
    compiled.save(tmp_path / "net.nvpkg")
    feed = {"x": ((elements.astype(np.float64) - 3) * 0.05).astype(np.float32)}
    found = unpack(tmp_path / "net.nvpkg").machine().run(feed)["y"]
    scale, zero = (0.0125, 0) if op == "ATAN2" else (0.1, -2)
    assert np.abs(np.rint(found / scale) + zero - wanted).max() <= 1


def lstm() -> bytes:
    """A recurrent layer of 5 cells over 7 steps of 3 numbers, with two variables."""
    rng = np.random.default_rng(5)
    writer = FlatWriter()
    x = writer.tensor((1, 7, 3), "float32", name="x")
    inner = [writer.constant(rng.standard_normal((5, 3)).astype(np.float32)) for _ in range(4)]
    recurrent = [writer.constant(rng.standard_normal((5, 5)).astype(np.float32)) for _ in range(4)]
    biases = [writer.constant(rng.standard_normal(5).astype(np.float32)) for _ in range(4)]
    states = [writer.tensor((1, 5), "float32") for _ in range(2)]
    for state in states:
        writer.tensors[state]["variable"] = True
    y = writer.tensor((1, 7, 5), "float32", name="y")
    inputs = [x, *inner, *recurrent, -1, -1, -1, *biases, -1, -1, *states, -1, -1, -1, -1]
    writer.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], slots=(71, {0: ("Int8", 4), 1: ("Float32", 0.8)}))
    return writer.model([x], [y])


def test_variables_are_zero_at_the_start_of_each_run():
    data = lstm()
    session = open_session(tflite_proto(onnx, data, "net", {})[1], "net", ModelWorker())
    feed = np.random.default_rng(6).standard_normal((1, 7, 3)).astype(np.float32)
    (wanted,) = interpreted(data, feed)
    for _ in range(2):
        np.testing.assert_allclose(session.run(None, {"x": feed})[0], wanted, atol=1e-6)
    assert np.abs(wanted).max() > 0.1
    assert [(each.name, each.type, each.shape) for each in session.get_outputs()] == [("y", "tensor(float)", [1, 7, 5])]


def quantized_lstm() -> bytes:
    """The layer in int8, as the converter writes it: a state of 16 bits, and empty tensors with inner scales."""
    rng = np.random.default_rng(5)
    writer, given, state = FlatWriter(), 0.03, 0.005
    x = writer.tensor((1, 7, 3), scale=given, zero=15, name="x")
    weights = [
        writer.constant(rng.integers(-127, 128, (5, size)).astype(np.int8), 0.003) for size in (3, 5) for _ in range(4)
    ]
    biases = [writer.constant(rng.integers(-999, 999, 5).astype(np.int32), given * 0.003) for _ in range(4)]
    hidden, cell = writer.tensor((1, 5), scale=state, zero=-4), writer.tensor((1, 5), "int16", 2**-14)
    for each in (hidden, cell):
        writer.tensors[each]["variable"] = True
    inner = [writer.tensor((0,), "float32") for _ in range(4)] + [writer.tensor((0,), scale=state, zero=-4)]
    y, out = writer.tensor((1, 7, 5), scale=state, zero=-4), writer.tensor((1, 7, 5), scale=state, zero=-4, name="y")
    inputs = [x, *weights, -1, -1, -1, *biases, -1, -1, hidden, cell, -1, -1, -1, -1]
    slots = (71, {0: ("Int8", 4), 1: ("Float32", 10.0)})
    writer.operator("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], slots=slots, intermediates=inner)
    writer.operator("RELU", [y], [out])
    return writer.model([x], [out])


def test_a_recurrent_layer_in_int8_runs_between_operations_of_the_accelerator():
    data = quantized_lstm()
    compiled = nvdla.compile(data, "nv_small")
    assert {row.op: row.placement for row in compiled.nodes}["UNIDIRECTIONAL_SEQUENCE_LSTM"] == "host"
    for seed in range(4):
        elements = np.random.default_rng(seed).integers(-128, 128, (1, 7, 3)).astype(np.int8)
        (wanted,) = interpreted(data, elements)
        found = compiled.run(((elements.astype(np.float64) - 15) * 0.03).astype(np.float32))["y"]
        assert np.ptp(wanted) > 20
        assert np.abs(np.rint(found / 0.005) - 4 - wanted).max() <= 1


def test_without_the_interpreter_the_operator_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FormatError, match=r"operator 1 \(DYNAMIC_UPDATE_SLICE\).*pip install 'nvdla\[tflite\]'"):
        tflite_proto(onnx, MODELS["DYNAMIC_UPDATE_SLICE"](), "net", {})


def test_elements_that_the_interpreter_does_not_take_are_refused_before_a_package_is_written():
    writer = FlatWriter()
    x, y = (writer.tensor((1, 4, 4, 2), scale=0.1, name=name) for name in "xy")
    writer.operator("REVERSE_SEQUENCE", [x, writer.constant([2])], [y], slots=(87, {0: ("Int32", 1)}))
    with pytest.raises(FormatError, match="REVERSE_SEQUENCE: LiteRT cannot run it: Type 'INT8' is not supported"):
        nvdla.compile(writer.model([x], [y]), "nv_small")


def test_the_page_lists_the_operators():
    page = (Path(__file__).resolve().parents[3] / "docs" / "operators.md").read_text(encoding="utf-8")
    assert sorted(each for each in INTERPRETED if each not in page) == []


@pytest.mark.parametrize("model", [b"", b"TFL3" * 9, lstm()[:-40]])
def test_a_damaged_inner_model_is_one_error(model):
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, kind, [1, 7, 3]) for name in "xy"]
    node = helper.make_node("LSTM", ["x"], ["y"], domain=LITERT, model=model)
    opsets = [helper.make_opsetid(LITERT, 1), helper.make_opsetid("", 20)]
    proto = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets)
    with pytest.raises(FormatError, match="net: "):
        open_session(proto, "net", ModelWorker())


@pytest.mark.parametrize(("kind", "zero", "low", "high"), [("UINT4", 6, 0, 15), ("INT4", -2, -8, 7)])
def test_four_bit_steps_are_kept(kind, zero, low, high):
    """Simulated quantization of 4 bits: QUANTIZE to 4 bits and DEQUANTIZE."""
    writer = FlatWriter()
    x, y = (writer.tensor((1, 4, 4, 2), "float32", name=name) for name in "xy")
    steps = writer.tensor((1, 4, 4, 2), kind, 0.25, zero)
    writer.operator("QUANTIZE", [x], [steps])
    writer.operator("DEQUANTIZE", [steps], [y])
    session = open_session(tflite_proto(onnx, writer.model([x], [y]), "net", {})[1], "net", None)
    feed = np.random.default_rng(7).normal(0, 3, (1, 4, 4, 2)).astype(np.float32)
    wanted = (np.clip(np.rint(feed / 0.25) + zero, low, high) - zero) * 0.25
    np.testing.assert_array_equal(session.run(None, {"x": feed})[0], wanted.astype(np.float32))


def test_a_model_that_only_contains_the_name_of_the_domain_runs_in_onnxruntime():
    onnx = pytest.importorskip("onnx")
    from nvdla.compiler.frontend.isolation import LITERT, run_once

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, kind, (1, 2)) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], LITERT, ends[:1], ends[1:], doc_string=LITERT)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (result,) = run_once(model, "named", {"x": np.array([[-1, 2]], np.float32)})
    assert result.tolist() == [[0, 2]]


def test_a_file_whose_reference_kernel_is_wrong_runs_in_the_optimized_kernels(tmp_path):
    """The reference kernel of a quantized SUM gives -1 for all elements."""
    writer = FlatWriter()
    writer.tensor((1, 4, 4, 8), "int8", 0.05, 3, name="x")
    writer.constant(np.array([1, 2], np.int32))
    writer.tensor((1, 8), "int8", 0.4, -5, name="y")
    writer.operator("SUM", [0, 1], [2])
    (tmp_path / "net.tflite").write_bytes(writer.model([0], [2]))
    model = open_file(str(tmp_path / "net.tflite"), None)
    assert model.runs_in == "TFLite's optimized kernels"
    elements = np.random.default_rng(3).integers(-128, 128, (1, 4, 4, 8)).astype(np.int8)
    (found,) = model.session.run(None, {"x": elements})
    wanted = np.rint((elements - 3.0).sum((1, 2)) * 0.05 / 0.4) - 5
    assert np.abs(found - np.clip(wanted, -128, 127)).max() <= 1
