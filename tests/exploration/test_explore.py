"""The design space: figures are those of the cycle model and of evaluation, points that cannot be are named."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.cli.main import main
from nvdla.exploration import pareto
from nvdla.exploration.page import page

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LENET = str(SAMPLES / "lenet.loadable")


def explored(capsys, *words: object) -> list[dict]:
    code = main(["explore", *map(str, words), "--workers", "1", "--json"])
    points = json.loads(capsys.readouterr().out)["points"]
    assert code == int(any("error" in each for each in points))
    return points


def test_cycles_are_the_cycle_models(capsys):
    points = explored(capsys, LENET, "--bandwidth", "1,full", "--latency", "50,200")
    assert [(each["bandwidth"], each["latency"]) for each in points] == [(1, 50), (1, 200), (None, 50), (None, 200)]
    for each in points:
        memory = Memory(each["latency"], each["bandwidth"])
        assert each["cycles"] == Study.of(nvdla.load(LENET), memory=memory).schedule.cycles


def test_a_configuration_that_refuses_the_loadable_has_no_figures(capsys):
    own, other = explored(capsys, LENET, "--config", "nv_small,nv_large")
    assert own["cycles"] > 0
    assert "cycles" not in other
    assert "the loadable cannot run on it: loadable: tensor data has atoms of 8 bytes" in other["error"]


def test_accuracy_is_told_where_data_are_given(capsys):
    (point,) = explored(capsys, LENET, "--data", SAMPLES / "digits.npz", "--limit", 50)
    assert point["accuracy"]["value"] == pytest.approx(0.98)


def test_a_model_is_compiled_for_every_configuration(capsys, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper = onnx.helper
    shapes = (("x", [1, 8, 9, 9]), ("y", [1, 8, 7, 7]))
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes]
    weights = onnx.numpy_helper.from_array(np.random.default_rng(1).normal(size=(8, 8, 3, 3)).astype(np.float32), "w")
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    opset = [helper.make_opsetid("", 17)]
    onnx.save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    points = explored(capsys, tmp_path / "m.onnx", "--precision", "fp16", "--config", "nv_full,nv_small")
    assert points[0]["cycles"] > 0
    assert "nv_small" in points[1]["error"]  # which has no fp16


def test_the_plot_is_over_multipliers_where_configurations_differ_in_them():
    same = {"config": "a", "precision": "int8", "bandwidth": None, "latency": 1, "cycles": 10, "mac_use": 0.5}
    same |= {"buffer_use": 0.25, "bus_bytes": 8, "read_bytes": 1, "written_bytes": 1}
    points = [{**same, "mac_units": units, "frames_per_second": 100.0 * units} for units in (64, 256)]
    assert "multipliers, logarithmic" in page({"points": points}, "t")


def test_the_use_of_the_buffer_is_that_of_its_fullest_convolution(capsys):
    (point,) = explored(capsys, LENET)
    assert point["buffer_bytes"] == 128 << 10
    found = []
    for node in Study.of(nvdla.load(LENET)).operations:
        if node.engine == "conv":
            op = node.descriptors.op
            data = op.input_height_csc * op.entry_per_slice * 8
            found.append((data + min(node.surface.weight_data.size, op.weight_bank * 4096)) / (128 << 10))
    assert point["buffer_use"] == pytest.approx(max(found))


def test_points_that_nothing_beats():
    points = [{"a": a, "b": b} for a, b in ((1, 5), (2, 4), (2, 9), (3, 9), (4, 12), (0, None))]
    assert [(each["a"], each["b"]) for each in pareto(points, "a", "b")] == [(1, 5), (2, 9), (4, 12)]


def test_table_and_page(tmp_path, capsys):
    words = ["--bandwidth", "1,2,4,full", "--table", tmp_path / "t.csv", "--report", tmp_path / "p.html"]
    explored(capsys, LENET, *words)
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 5
    shown = (tmp_path / "p.html").read_text()
    assert shown.count("<circle") == 4 and "polyline" in shown
    assert "offered bandwidth" in shown and "buffer use" in shown
    places = {float(text.split('"')[0]) for text in shown.split('circle cx="')[1:]}
    assert len(places) == 4  # full is as wide as the bus, eight bytes a cycle
    assert "e+" not in shown  # axes are labelled with plain numbers
    labels = re.findall(r">([0-9,]+)</text>", shown)
    assert labels == ["1", "2", "5", "10", "10,000", "20,000", "50,000"]  # round ones, beyond the first and last point


def test_points_that_are_impossible_are_named_on_the_page(tmp_path, capsys):
    words = ["--config", "nv_small,nv_large", "--calibrate", tmp_path / "none", "--report", tmp_path / "p.html"]
    pytest.importorskip("onnxruntime")
    points = explored(capsys, SAMPLES / "lenet.onnx", *words)
    shown = (tmp_path / "p.html").read_text()
    assert [point["error"] in html.unescape(shown) for point in points] == [True, True]
    assert "<table" not in shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((LENET, "--bandwidth", "fast"), "--bandwidth fast: must be a number"),
        ((str(SAMPLES / "lenet.prototxt"),), "name some with --config"),
        (("missing.loadable",), "missing.loadable"),
        ((LENET, "--clock", "0"), "--clock 0.0 MHz: must be"),
        ((LENET, "--clock", "-5"), "--clock -5.0 MHz: must be"),
        ((LENET, "--limit", "0"), "--limit 0: must be at least 1"),
        ((LENET, "--config", "nv_huge"), "nv_huge"),
        ((LENET, "--precision", "int9"), "--precision int9: must be one of int8"),
        ((__file__,), "is it a loadable?"),
    ],
)
def test_what_cannot_be_explored_is_one_line(capsys, words, text):
    assert main(["explore", *words]) == 2
    captured = capsys.readouterr().err
    assert text in captured and captured.count("\n") == 1
