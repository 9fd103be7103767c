"""Models that are quantized already, made by onnxruntime's own tool, keep their scales."""

from __future__ import annotations

import numpy as np
import pytest
from support.onnx_reference import exact_session

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
tools = pytest.importorskip("onnxruntime.quantization")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nvdla.compiler.builder.ir import Convolve  # noqa: E402
from nvdla.compiler.frontend.compiler import compile as compile_model  # noqa: E402
from nvdla.compiler.frontend.package import unpack  # noqa: E402
from nvdla.compiler.frontend.quantization.qdq import strip  # noqa: E402
from nvdla.errors import BuildError, FormatError  # noqa: E402
from tests.compiler.frontend.models import model, node  # noqa: E402

SHAPE = (3, 16, 16)


class _Reader(tools.CalibrationDataReader):
    def __init__(self, data: np.ndarray) -> None:
        self._rest = iter([{"x": each[None].astype(np.float32)} for each in data])

    def get_next(self):
        return next(self._rest, None)


def _float_model(path, rng: np.random.Generator) -> None:
    weights = {
        "w1": rng.normal(size=(8, 3, 3, 3)) / 4,
        "b1": rng.normal(size=8),
        "w2": rng.normal(size=(8, 8, 1, 1)) / 2,
        "b2": rng.normal(size=8),
        "w3": rng.normal(size=(8 * 64, 5)) / 16,
        "b3": rng.normal(size=5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], "conv2", kernel_shape=[1, 1]),
        helper.make_node("Add", ["c2", "p1"], ["s1"], "sum1"),
        helper.make_node("Flatten", ["s1"], ["f1"], "flatten1"),
        helper.make_node("Gemm", ["f1", "w3", "b3"], ["y"], "gemm1"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, *SHAPE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def _quantized(tmp_path, **options):
    rng = np.random.default_rng(1)
    data = rng.normal(size=(8, *SHAPE))
    _float_model(tmp_path / "float.onnx", rng)
    path = tmp_path / "quantized.onnx"
    tools.quantize_static(str(tmp_path / "float.onnx"), str(path), _Reader(data), **options)
    return path, data


def _reference(path, data: np.ndarray) -> np.ndarray:
    session = exact_session(path)
    return np.concatenate([session.run(None, {"x": each[None].astype(np.float32)})[0] for each in data])


FORMATS = [tools.QuantFormat.QDQ, tools.QuantFormat.QOperator]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("form", FORMATS, ids=["QDQ", "QOperator"])
def test_symmetric_int8_comes_in_exactly(tmp_path, form, per_channel):
    options = {"activation_type": tools.QuantType.QInt8, "weight_type": tools.QuantType.QInt8}
    extra = {"ActivationSymmetric": True, "WeightSymmetric": True}
    path, data = _quantized(tmp_path, quant_format=form, per_channel=per_channel, extra_options=extra, **options)
    compiled = compile_model(str(path), "nv_small")
    assert compiled.whole
    assert compiled.report["calibration"]["method"] == "model"
    proto = onnx.load(path)
    stored = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    first = next(each for each in compiled.parts[0].built.program.operations if isinstance(each, Convolve))
    np.testing.assert_array_equal(first.weights, stored["w1_quantized"])
    scale = float(stored["x_scale"])
    assert compiled.parts[0].built.input_scales["x"] == pytest.approx(scale)
    step = float(stored.get("y_scale", 0.05))
    wanted, found = _reference(path, data), np.concatenate([compiled.run(each[None])["y"] for each in data])
    assert np.abs(wanted - found).max() <= 3.01 * step
    assert np.mean(np.abs(wanted - found) < 1.01 * step) > 0.9


@pytest.mark.parametrize("kind", [tools.QuantType.QInt8, tools.QuantType.QUInt8])
@pytest.mark.parametrize("form", FORMATS, ids=["QDQ", "QOperator"])
def test_tensors_with_zero_points_come_in_exactly(tmp_path, form, kind):
    path, data = _quantized(tmp_path, quant_format=form, activation_type=kind, weight_type=tools.QuantType.QInt8)
    compiled = compile_model(str(path), "nv_small")
    assert not compiled.report["notes"]
    stored = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    program = compiled.parts[0].built.program
    bound = {"x": program.inputs[0], "y": program.outputs[0]}
    points = {value: int(stored[f"{value}_zero_point"]) - 128 * (kind == tools.QuantType.QUInt8) for value in bound}
    assert {name: root.zero for name, root in bound.items()} == points
    assert any(points.values())
    for name, root in bound.items():
        assert root.scale == pytest.approx(float(stored[f"{name}_scale"]), rel=1e-6)
    assert any(surface.zero == -128 for surface in program.tensors.values())
    wanted, found = _reference(path, data), np.concatenate([compiled.run(each[None])["y"] for each in data])
    step = float(stored["y_scale"])
    assert np.abs(wanted - found).max() <= 3.01 * step
    assert np.mean(np.abs(wanted - found) < 1.01 * step) > 0.9
    again = unpack(compiled.package).machine()
    np.testing.assert_array_equal(again.run(data[0][None])["y"], found[:1])


def test_zero_points_that_a_layer_cannot_take_are_named(tmp_path):
    """Normalization across channels has squares of the elements themselves."""
    constants = {"s": np.float32(0.1), "z": np.uint8(100)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"], "d"),
        helper.make_node("LRN", ["r"], ["n"], "n", size=3, alpha=0.1),
        helper.make_node("QuantizeLinear", ["n", "s", "z"], ["nq"], "nq"),
        helper.make_node("DequantizeLinear", ["nq", "s", "z"], ["y"], "nd"),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 3, 3])] for name in ("x", "y")]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    compiled = compile_model(helper.make_model(helper.make_graph(nodes, "lrn", *ends, stored)), "nv_small")
    notes = [note for note in compiled.report["notes"] if note.startswith("tensor x: ") and "range -10 to 15.5" in note]
    assert notes and "its step is 1.22 times that of the model" in notes[0]
    assert "because y (lrn) does not support its zero point" in notes[0]
    assert [tensor.name for tensor in compiled.loadable.tensors] == ["x", "y"]


def test_a_relu_that_the_zero_point_stands_for_is_put_back():
    proto = _pair(np.uint8(0))
    kinds = [node.op_type for node in strip(proto).proto.graph.node]
    assert kinds == ["Neg", "Relu", "Identity"]
    assert [node.op_type for node in strip(_pair(np.uint8(128))).proto.graph.node] == ["Neg", "Identity"]


def _pair(zero: np.ndarray, scale: float = 0.1):
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], "neg"),
        helper.make_node("QuantizeLinear", ["n", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "d"),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])] for name in ("x", "y")]
    constants = [numpy_helper.from_array(np.float32(scale), "s"), numpy_helper.from_array(zero, "z")]
    return helper.make_model(helper.make_graph(nodes, "pair", *ends, constants))


def test_uint8_of_middle_zero_point_is_int8_and_others_have_a_range():
    middle, low = strip(_pair(np.uint8(128))), strip(_pair(np.uint8(100)))
    assert middle.magnitudes == {"n": pytest.approx(12.7)}
    assert not middle.notes
    assert low.magnitudes == {"n": pytest.approx(15.5)}
    assert low.ranges == {"n": pytest.approx((-10, 15.5))}
    assert not middle.ranges


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_scales_that_are_none_are_refused(scale):
    with pytest.raises(FormatError, match="positive finite"):
        strip(_pair(np.int8(0), scale))


def test_a_model_without_quantization_stays_the_same_object(tmp_path):
    _float_model(tmp_path / "f.onnx", np.random.default_rng(2))
    proto = onnx.load(tmp_path / "f.onnx")
    assert strip(proto).proto is proto
    with pytest.raises(BuildError, match="scales: must be given"):
        compile_model(proto, "nv_small")


def test_tables_give_the_scales_of_values_and_of_nodes(tmp_path):
    _float_model(tmp_path / "f.onnx", np.random.default_rng(3))
    table = tmp_path / "table.json"
    table.write_text('{"x": {"scale": 0.02}, "relu1": {"scale": 0.05}, "s1": {"scale": 0.06}, "y": {"scale": 0.1}}')
    with pytest.raises(BuildError, match="tensor c2 has no scale"):
        compile_model(str(tmp_path / "f.onnx"), "nv_small", calibration=table)
    table.write_text(table.read_text().replace("}}", '}, "c2": {"scale": 0.06}}'))
    compiled = compile_model(str(tmp_path / "f.onnx"), "nv_small", calibration=table)
    scales = {name: each["scale"] for name, each in compiled.parts[0].built.sidecar["tensors"].items()}
    assert scales["x"] == pytest.approx(0.02)
    assert scales["p1"] == pytest.approx(0.05)
    table.write_text('{"nobody": {"scale": 1}}')
    with pytest.raises(FormatError, match="none of its 1 names"):
        compile_model(str(tmp_path / "f.onnx"), "nv_small", calibration=table)


def test_what_goes_out_as_qdq_comes_in_again_with_the_same_integers(tmp_path):
    _float_model(tmp_path / "f.onnx", np.random.default_rng(4))
    data = np.random.default_rng(5).normal(size=(4, *SHAPE))
    compiled = compile_model(str(tmp_path / "f.onnx"), "nv_small", calibration=data)
    compiled.export_qdq(tmp_path / "q.onnx")
    again = compile_model(str(tmp_path / "q.onnx"), "nv_small")
    weights = [
        [each.weights for each in one.parts[0].built.program.operations if isinstance(each, Convolve)]
        for one in (compiled, again)
    ]
    for first, second in zip(*weights, strict=True):
        np.testing.assert_array_equal(first, second)
    scale = compiled.parts[0].built.output_scales["y"]
    for each in data:
        steps = (compiled.run(each[None])["y"].ravel() - again.run(each[None])["y"].ravel()) / scale
        assert np.abs(steps).max() < 1.5


def test_the_command_prints_the_worst_layers_and_writes_qdq(tmp_path, capsys):
    from nvdla.cli.main import main

    _float_model(tmp_path / "f.onnx", np.random.default_rng(6))
    np.save(tmp_path / "data.npy", np.random.default_rng(7).normal(size=(2, *SHAPE)).astype(np.float32))
    words = ["compile", str(tmp_path / "f.onnx"), "--calibrate", str(tmp_path / "data.npy"), "--config", "nv_full"]
    words += ["-o", str(tmp_path / "f.loadable"), "--export-qdq", str(tmp_path / "q.onnx")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "noisiest" in printed
    assert "dB" in printed
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"))
    assert main([*words[:-2], "--precision", "auto", "--max-drop", "50%"]) == 0
    assert "int16: " in capsys.readouterr().out


def test_a_limit_that_only_the_range_of_the_integers_states_holds_in_a_composed_table():
    """x * relu6(x) is one table; ReLU6 is a Relu whose result has the quantized range 0 to 6."""
    kind = TensorProto.FLOAT
    constants = {"sx": 0.14, "s6": 6 / 255, "sy": 0.83}
    initial = [numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()]
    initial.append(numpy_helper.from_array(np.int8(-128), "z"))
    nodes = []
    for name, source, scale in (("x0", "x", "sx"), ("r6", "r", "s6"), ("y", "m", "sy")):
        if name == "r6":
            nodes.append(helper.make_node("Relu", ["x0"], ["r"]))
        if name == "y":
            nodes.append(helper.make_node("Mul", ["r6", "x0"], ["m"]))
        nodes.append(helper.make_node("QuantizeLinear", [source, scale, "z"], [f"{name}/q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}/q", scale, "z"], [name]))
    ends = [helper.make_tensor_value_info(name, kind, (1, 8, 4, 4)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "limit", ends[:1], ends[1:], initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = (np.arange(128, dtype=np.float32) * np.float32(0.28)).reshape(1, 8, 4, 4)
    wanted = np.round(given * np.minimum(given, 6) / 0.83) * 0.83
    compiled = compile_model(model, "nv_small")
    assert np.abs(compiled.run({"x": given})["y"] - np.minimum(wanted, 0.83 * 255)).max() <= 0.84


@pytest.mark.parametrize("kind", [tools.QuantType.QInt8, tools.QuantType.QUInt8])
@pytest.mark.parametrize("form", FORMATS, ids=["QDQ", "QOperator"])
def test_a_pad_between_quantized_convolutions_has_a_border_of_real_numbers(tmp_path, form, kind):
    """QOperator: the Pad is one of integers, whose border is the zero point."""
    rng = np.random.default_rng(2)
    constants = {"w": rng.normal(size=(4, 3, 3, 3)) / 4, "v": rng.normal(size=(4, 4, 3, 3)) / 4}
    constants = {name: array.astype(np.float32) for name, array in constants.items()} | {
        "p": np.array([0, 0, 2, 1] * 2)
    }
    nodes = [node("Conv", "x w", "a"), node("Pad", "a p", "b"), node("Conv", "b v", "y")]
    onnx.save(model(nodes, {"x": (1, *SHAPE)}, {"y": None}, constants), tmp_path / "float.onnx")
    path, data = tmp_path / "quantized.onnx", rng.normal(size=(8, *SHAPE))
    options = {"quant_format": form, "activation_type": kind, "weight_type": tools.QuantType.QInt8}
    tools.quantize_static(str(tmp_path / "float.onnx"), str(path), _Reader(data), **options)
    compiled = compile_model(path, "nv_small")
    assert not [row.name for row in compiled.nodes if row.placement == "host"]
    exact, found = _reference(path, data[:2]), compiled.run(data[:2].astype(np.float32))["y"]
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()
