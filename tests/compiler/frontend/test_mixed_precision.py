"""Precision "auto": as few layers of int16 as the results need."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nvdla.cli.main import main  # noqa: E402
from nvdla.compiler.builder import Calibration  # noqa: E402
from nvdla.compiler.builder.accuracy import LayerAccuracy  # noqa: E402
from nvdla.compiler.frontend.compiler import compile as compile_model  # noqa: E402
from nvdla.compiler.frontend.quantization.mixed import choose, drop  # noqa: E402
from nvdla.errors import BuildError  # noqa: E402
from tests.compiler.frontend.models import model, node  # noqa: E402


def _rows(*decibels: float) -> list[LayerAccuracy]:
    return [LayerAccuracy(f"l{i}", f"t{i}", "int8", each, each, 0, 1, "") for i, each in enumerate(decibels)]


def test_the_smallest_sufficient_set_is_found_and_harmless_layers_go_back():
    def loss(chosen: frozenset[str]) -> float:
        return 0.1 * (2 - len({"t1", "t4"} & chosen))

    assert choose(_rows(30, 10, 20, 40, 15), loss, 0.05) == {"t1", "t4"}
    assert choose(_rows(30, 10, 20, 40, 15), loss, 0.3) == frozenset()
    with pytest.raises(BuildError, match="every layer in int16"):
        choose(_rows(30, 20), lambda chosen: 0.5, 0.1)


def test_inputs_become_int16_where_layers_alone_are_not_enough():
    def loss(chosen: frozenset[str]) -> float:
        return 0.1 * (2 - len({"x", "t1"} & chosen))

    assert choose(_rows(30, 10, 20), loss, 0.05, {"x", "z"}) == {"x", "t1"}
    assert choose(_rows(30, 10, 20), loss, 0.15, {"x", "z"}) == {"t1"}
    assert choose(_rows(30, 10), lambda chosen: 0.1 * ("x" not in chosen), 0.05, {"x"}) == {"x"}
    with pytest.raises(BuildError, match="every layer and input in int16"):
        choose(_rows(30, 20), lambda chosen: 0.5, 0.1, {"x"})


@pytest.fixture(scope="module")
def far():
    """Samples of which one is 200 times as large: int8 elements of the others are nearly all 0."""
    data = np.random.default_rng(0).normal(size=(300, 3, 12, 12)).astype(np.float32)
    data[7] *= 200
    return data


def test_auto_keeps_an_input_that_int8_spoils_in_int16_and_counts_its_samples(far):
    compiled = compile_model(_sum(), "nv_full", "auto", far)
    mixed = compiled.report["mixed"]
    assert "x" in mixed["int16"] and mixed["drop"] <= 0.005 < mixed["int8_drop"]
    assert (mixed["samples"], mixed["all_samples"]) == (256, 300)
    images = far[100:110]
    session = ort.InferenceSession(_sum().SerializeToString())
    exact = [session.run(None, {"x": image[None]})[0].argmax() for image in images]
    assert [compiled.run(image[None])["y"].argmax() for image in images] == exact


def test_a_rough_input_has_a_note_and_its_reader_advice_that_helps(far):
    narrow = compile_model(_sum(), "nv_full", "int8", far)
    assert any(note.startswith("input x: rounding its numbers") for note in narrow.report["notes"])
    (first,) = (row for row in narrow.report["accuracy"] if row["layer"] == "c1+r1")
    assert "in the calibration data: if few samples need that, try --method percentile" in first["advice"]
    assert "else int16 for this layer and what it reads (input x)" in first["advice"]
    wide = compile_model(_sum(), "nv_full", {"c1+r1": "int16", "x": "int16"}, far)
    assert not any("rounding its numbers" in note for note in wide.report["notes"])
    assert wide.summary["int16_layers"] == ["c1+r1"] and "int16 in 1 layer" in repr(wide)
    (better,) = (row for row in wide.report["accuracy"] if row["layer"] == "c1+r1")
    assert better["alone"] > first["alone"] + 15


def test_advice_does_not_repeat_what_was_done_nor_offer_fp16_a_range(far):
    open_, done = (
        compile_model(_model(), "nv_full", "int8", far[8:], adaptive_rounding=rounding).report["accuracy"]
        for rounding in (False, True)
    )
    assert any("adaptive rounding" in row["advice"] and "what it reads (c2)" in row["advice"] for row in open_)
    assert not any("adaptive rounding" in row["advice"] for row in done)
    assert any(row["advice"].startswith("try int16 for this layer and what it reads (c2)") for row in done)
    halves = compile_model(_sum(), "nv_full", "fp16", far[8:] * 100).report["accuracy"]
    assert [row["layer"] for row in halves if row["advice"]] == ["c2+s+r2"]
    assert all("exceed 65504, the largest number of fp16" in row["advice"] for row in halves if row["advice"])


@pytest.mark.parametrize("name", ["b2.conv+b2.add", "b2.conv+add"])
def test_an_operation_is_named_as_tables_show_it(name):
    """A shortened name is not taken for a layer of another operation."""
    weights = np.random.default_rng(1).normal(size=(8, 8, 1, 1)).astype(np.float32)
    nodes = [
        node("Conv", "x w", "b1.conv"),
        node("Add", "b1.conv x", "add"),
        node("Relu", "add", "r"),
        node("Conv", "r w", "b2.conv"),
        node("Add", "b2.conv r", "b2.add"),
    ]
    network = model(nodes, {"x": (1, 8, 6, 6)}, {"b2.add": (1, 8, 6, 6)}, {"w": weights})
    data = np.random.default_rng(2).normal(size=(8, 8, 6, 6)).astype(np.float32)
    compiled = compile_model(network, "nv_full", {name: "int16"}, data)
    wide = {row["layer"] for row in compiled.report["accuracy"] if row["precision"] == "int16"}
    assert wide and all("b2" in layer for layer in wide)
    kept = compile_model(network, "nv_full", "int8", data, keep_on_host=(name,))
    assert {row.name for row in kept.nodes if row.placement == "host"} == {kept.nodes[3].name, kept.nodes[4].name}
    with pytest.raises(BuildError, match="b3"):
        compile_model(network, "nv_full", {"b3.conv+add": "int16"}, data)


def test_a_drop_is_lost_winners_or_lost_energy():
    exact = [{"scores": np.array([[1.0, 2.0, 0.0]])}, {"scores": np.array([[3.0, 2.0, 0.0]])}]
    found = [{"scores": np.array([[1.1, 1.9, 0.0]])}, {"scores": np.array([[2.0, 2.5, 0.0]])}]
    assert drop(exact, found) == 0.5
    maps = [{"map": np.full((1, 2, 3, 3), 2.0)}]
    assert drop(maps, [{"map": np.full((1, 2, 3, 3), 1.8)}]) == pytest.approx(0.01)


def _model():
    """A network whose middle layer cancels large numbers, so that int8 there loses most of the result."""
    rng = np.random.default_rng(1)
    w2 = rng.normal(size=(16, 8, 1, 1))
    weights = {
        "w1": rng.normal(size=(8, 3, 3, 3)) / 4,
        "w2": np.concatenate([w2, w2 + 0.02 * rng.normal(size=w2.shape)]) * 4,
        "w3": np.concatenate([np.eye(16), -np.eye(16)], axis=1)[:, :, None, None],
        "w4": rng.normal(size=(8, 16, 3, 3)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], "n1", kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c1"], ["r1"], "n2"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "n3", kernel_shape=[1, 1]),
        helper.make_node("Conv", ["c2", "w3"], ["c3"], "n4", kernel_shape=[1, 1]),
        helper.make_node("Conv", ["c3", "w4"], ["y"], "n5", kernel_shape=[3, 3]),
    ]
    ends = [
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 8, 8])],
    ]
    constants = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "cancel", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_auto_finds_the_layer_that_int8_spoils():
    data = np.random.default_rng(2).normal(size=(4, 3, 12, 12)).astype(np.float32)
    compiled = compile_model(_model(), "nv_full", "auto", data, max_drop=0.02, equalize=False)
    mixed = compiled.report["mixed"]
    assert mixed["int8_drop"] > 0.02 >= mixed["drop"]
    assert "c2" in mixed["int16"]
    assert "c1" not in mixed["int16"]
    assert compiled.parts[0].built.sidecar["tensors"]["c2"]["precision"] == "int16"


def _sum():
    """A sum whose first channel is 300 times as large as the others, which the next convolution divides again."""
    rng = np.random.default_rng(2)
    large = rng.normal(size=(8, 8, 3, 3)) / 8
    large[0] *= 300
    small = rng.normal(size=(8, 8, 3, 3)) / 8
    small[:, 0] /= 300
    weights = {"w1": rng.normal(size=(8, 3, 3, 3)) / 4, "w2": large, "w3": small, "w4": rng.normal(size=(10, 8, 1, 1))}
    nodes = [
        node("Conv", "x w1", "c1", pads=[1] * 4),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1] * 4),
        node("Add", "c2 r1", "s"),
        node("Relu", "s", "r2"),
        node("Conv", "r2 w3", "c3", pads=[1] * 4),
        node("Relu", "c3", "r3"),
        node("GlobalAveragePool", "r3", "g"),
        node("Conv", "g w4", "y"),
    ]
    constants = {name: array.astype(np.float32) for name, array in weights.items()}
    return model(nodes, {"x": (1, 3, 12, 12)}, {"y": (1, 10, 1, 1)}, constants)


def test_auto_takes_the_operand_of_a_sum_along():
    """The convolution before a sum is a layer of the same operation: a sum in int16 of an int8 operand gains little."""
    data = np.random.default_rng(0).normal(size=(64, 3, 12, 12)).astype(np.float32)
    mixed = compile_model(_sum(), "nv_full", "auto", data, max_drop=0.0, equalize=False).report["mixed"]
    assert mixed["int8_drop"] > 0 == mixed["drop"]
    assert "r2" in mixed["int16"]


def test_biases_are_corrected_for_the_noise_that_int16_layers_leave():
    """Corrections for a network of int8 alone made one with int16 layers worse than int8."""
    rng = np.random.default_rng(0)
    data, others = (rng.normal(size=(64, 3, 12, 12)).astype(np.float32) for _ in range(2))
    session = ort.InferenceSession(_sum().SerializeToString())
    exact = np.concatenate([session.run(None, {"x": image[None]})[0] for image in others])

    def error(precision):
        result = compile_model(_sum(), "nv_full", precision, data).run(others)["y"]
        return float(np.sum((np.asarray(result) - exact) ** 2))

    assert error({"c1+r1": "int16", "c2+s+r2": "int16"}) < 0.8 * error("int8")


def test_auto_is_refused_where_it_cannot_be():
    data = np.random.default_rng(3).normal(size=(2, 3, 12, 12)).astype(np.float32)
    with pytest.raises(BuildError, match="must have int16, got nv_small"):
        compile_model(_model(), "nv_small", "auto", data)


DATA = np.random.default_rng(2).normal(size=(4, 3, 12, 12)).astype(np.float32)


def _precisions(compiled) -> dict[str, str]:
    tensors = [part.built.sidecar["tensors"] for part in compiled.parts if part.built]
    return {name: row["precision"] for table in tensors for name, row in table.items() if "precision" in row}


@pytest.mark.parametrize("name", ["c2", "n3", "c1+r1"])  # ONNX value, node, layer of the report
def test_one_named_layer_of_an_int8_network_is_int16(name):
    compiled = compile_model(_model(), "nv_full", {name: "int16"}, DATA)
    wide = {tensor for tensor, precision in _precisions(compiled).items() if precision == "int16"}
    assert wide == ({"r1"} if "+" in name else {"c2"})
    assert compiled.report["host_nodes"] == 0


def test_the_report_of_a_mixed_network_is_plain_data():
    compiled = compile_model(_model(), "nv_full", {"c2": "int16"}, DATA)
    assert yaml.safe_load(yaml.safe_dump(compiled.report))["precision"] == "int8"


def test_the_noise_of_layers_beside_another_precision_is_their_own():
    """They take converted tensors."""
    compiled = compile_model(_model(), "nv_full", {"c2": "int16"}, DATA)
    rows = {row["tensor"]: row for row in compiled.report["accuracy"]}
    assert min(rows["r1"]["alone"], rows["c2"]["alone"]) > 30
    assert not any("int16 for this layer" in row["advice"] for row in rows.values() if row["precision"] == "int16")
    assert max(map(len, repr(compiled).splitlines())) <= 100


def test_ranges_of_the_caller_may_name_an_int16_layer_of_any_part():
    ranges = Calibration(dict.fromkeys(["x", "c1", "r1", "c2", "c3", "y"], 4.0), precisions={"c3": "int16"})
    compiled = compile_model(_model(), "nv_full", calibration=ranges, keep_on_host=("n3",))
    assert [part.kind for part in compiled.parts] == ["accelerator", "host", "accelerator"]
    assert _precisions(compiled)["c3"] == "int16"


@pytest.mark.parametrize(
    ("config", "layers", "message"),
    [
        ("nv_full", {"c22": "int16"}, "must name a layer on the accelerator of cancel, got c22. Did you mean c2?"),
        ("nv_full", {"c2": "fp16"}, "precision of layer c2: must be int16 or int8, got fp16"),
        ("nv_small", {"c2": "int16"}, "must be within an int8 network on nv_full, got int8 on nv_small"),
    ],
)
def test_a_precision_of_a_layer_that_cannot_be_is_refused(config, layers, message):
    with pytest.raises(BuildError, match=message):
        compile_model(_model(), config, layers, DATA)


def test_the_command_line_names_int16_layers(tmp_path):
    onnx.save(_model(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", DATA)
    words = ["compile", tmp_path / "net.onnx", "--config", "nv_full", "--precision", "c2=int16"]
    assert main([*map(str, words), "--calibrate", str(tmp_path / "data.npy"), "-o", str(tmp_path / "net")]) == 0
    layers = json.loads((tmp_path / "net.layers.json").read_text())
    assert layers["tensors"]["c2"]["precision"] == "int16"


def test_the_choice_of_auto_is_in_the_document_and_below_the_tables(tmp_path, nvdla_command, as_documented):
    onnx.save(_model(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", DATA)
    words = ["compile", tmp_path / "net.onnx", "--config", "nv_full", "--precision", "auto", "--max-drop", "0.02"]
    words += ["--weights-effort", 0, "--calibrate", tmp_path / "data.npy", "-o", tmp_path / "net"]
    document = json.loads(nvdla_command(*words, "--json")[1])
    as_documented(document)
    assert document["mixed"]["samples"] == document["mixed"]["all_samples"] == len(DATA)
    chosen = ", ".join(document["mixed"]["int16"])
    assert f"int16: {chosen} (int8 loses " in (text := nvdla_command(*words)[1])
    assert "on 4 of 4 calibration samples)\n\nNext:" in text


def test_zeros_at_the_end_of_the_range_are_not_saturated():
    """The product of two ReLUs has the zero point -128, its smallest element; only larger numbers would be cut off."""
    rng = np.random.default_rng(4)
    nodes = [node("Conv", "x u", "a"), node("Relu", "a", "r"), node("Conv", "x v", "b"), node("Relu", "b", "s")]
    weights = {name: rng.normal(size=(8, 8, 1, 1)).astype(np.float32) for name in "uv"}
    network = model([*nodes, node("Mul", "r s", "y")], {"x": (1, 8, 12, 12)}, {"y": (1, 8, 12, 12)}, weights)
    data = rng.normal(size=(16, 8, 12, 12)).astype(np.float32)
    rows = {row["tensor"]: row for row in compile_model(network, "nv_small", "int8", data).report["accuracy"]}
    assert rows["y"]["saturated"] < 0.01


def test_a_softmax_has_no_int16_and_no_advice_for_it():
    """Its unit is fixed, and the CPU has int8 and fp16."""
    rng = np.random.default_rng(0)
    held = {"w": 0.2 * rng.normal(size=(200, 3, 4, 4)).astype("f4")}
    nodes = [node("Conv", "x w", "c"), node("Softmax", "c", "p", axis=1)]
    proto = model(nodes, {"x": (1, 3, 4, 4)}, {"p": (1, 200, 1, 1)}, held)
    data = rng.normal(size=(8, 3, 4, 4)).astype("f4")
    compiled = compile_model(proto, "nv_full", calibration=data)
    (row,) = (row for row in compiled.report["accuracy"] if row["tensor"] == "p")
    assert row["alone"] < 30 and row["advice"] == "the unit of a softmax is fixed (1/127); fp16 has smaller ones"
    with pytest.raises(BuildError, match=r"precision of layer p: must be int8 \(the CPU has no int16 softmax\)"):
        compile_model(proto, "nv_full", calibration=data, precision={"p": "int16"})


def test_features_that_rounding_removes_are_named_with_what_helps():
    """Three sensors in one vector, normalized by the network: one unit is that of the largest."""
    rng = np.random.default_rng(0)
    sensors = rng.normal([2.4, 700, 0.4], [0.3, 300, 0.1], (100, 1, 3)).astype("f4")
    constants = {"mean": np.float32([2.4, 700, 0.4]), "std": np.float32([0.3, 300, 0.1]),
                 "w": rng.normal(size=(3, 8)).astype("f4")}  # fmt: skip
    nodes = [node("Sub", "x mean", "s"), node("Div", "s std", "n"), node("MatMul", "n w", "y")]
    compiled = compile_model(model(nodes, {"x": (1, 3)}, {"y": (1, 8)}, constants), calibration=sensors)
    (note,) = [note for note in compiled.report["notes"] if "features" in note]
    assert note.startswith("input x: rounding its numbers loses 2 of 3 features (0, 2)") and "--precision auto" in note
    advice = [row["advice"] for row in compiled.report["accuracy"] if "saturate" in row["advice"]]
    assert advice and all("see the notes" in words and "--method" not in words for words in advice)
    plain = compile_model(
        model([node("MatMul", "x w", "y")], {"x": (1, 3)}, {"y": (1, 8)}, {"w": constants["w"]}),
        calibration=rng.normal(size=(100, 1, 3)).astype("f4"),
    )
    assert not any("features" in note for note in plain.report["notes"])
