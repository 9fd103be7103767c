"""The design space: figures are those of the cycle model and of evaluation, points that cannot be are named."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.cli.main import main
from nvdla.experiments.exploration import METRICS, Exploration, Point, plot_document

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
LENET = str(SAMPLES / "lenet.loadable")


def explored(capsys, *words: object) -> list[dict]:
    code = main(["explore", *map(str, words), "--workers", "1", "--json"])
    points = json.loads(capsys.readouterr().out)["points"]
    assert code == int(any("error" in each or each["deadlock"] for each in points))
    return points


def written_model(path: Path, *extra: str) -> Path:
    """A convolution of 1x8x9x9 in ONNX, and unary operators after it."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper = onnx.helper
    values = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [1, 8, 9, 9]), ("y", None))]
    weights = onnx.numpy_helper.from_array(np.random.default_rng(1).normal(size=(8, 8, 3, 3)).astype(np.float32), "w")
    names = ["c", *(f"v{number}" for number in range(len(extra)))]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"])]
    nodes += [
        helper.make_node(op, [before], [after]) for op, before, after in zip(extra, names, names[1:], strict=False)
    ]
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weights])
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_cycles_are_the_cycle_models(capsys):
    points = explored(capsys, LENET, "--bandwidth", "1,full", "--latency", "50,200")
    assert [(each["bandwidth"], each["latency"]) for each in points] == [(1, 50), (1, 200), (None, 50), (None, 200)]
    for each in points:
        memory = Memory(each["latency"], each["bandwidth"])
        assert each["cycles"] == Study.of(nvdla.load(LENET), memory=memory).schedule.cycles


def test_worker_processes_compile_a_model_each_for_itself(tmp_path):
    """A worker starts the process that reads models while it is itself being started."""
    path = written_model(tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(2).normal(size=(4, 8, 9, 9)).astype(np.float32))
    words = ["explore", path, "--config", "nv_small,nv_large", "--calibrate", tmp_path / "data.npy", "--workers", "2"]
    command = [sys.executable, "-m", "nvdla", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [point["config"] for point in json.loads(done.stdout)["points"]] == ["nv_small", "nv_large"]


def test_a_configuration_that_refuses_the_loadable_has_no_figures(capsys):
    own, other = explored(capsys, LENET, "--config", "nv_small,nv_large")
    assert own["cycles"] > 0
    assert "cycles" not in other
    assert "the loadable cannot run on it: loadable: tensor data has atoms of 8 bytes" in other["error"]


def test_accuracy_is_reported_if_data_are_given(capsys):
    (point,) = explored(capsys, LENET, "--data", SAMPLES / "digits.npz", "--limit", 50)
    assert point["accuracy"]["value"] == pytest.approx(1.0)


def test_data_that_do_not_fit_are_reported(capsys, tmp_path):
    np.savez(tmp_path / "wide.npz", x=np.zeros((3, 1, 9, 9), np.float32), y=np.zeros(3, np.int64))
    reason = "no sample could be evaluated; first: 0: sample: shape must be 1x1x28x28"
    assert main(["explore", LENET, "--data", str(tmp_path / "wide.npz"), "--workers", "1"]) == 0
    out, err = capsys.readouterr()
    assert "accuracy" in out and f"nv_small int8: {reason}" in err
    page = tmp_path / "page.html"
    assert main(["datasheet", "nv_small", LENET, "--data", str(tmp_path / "wide.npz"), "-o", str(page)]) == 0
    assert reason in page.read_text()


def test_a_model_is_compiled_for_every_configuration(capsys, tmp_path):
    model = written_model(tmp_path / "m.onnx")
    points = explored(capsys, model, "--precision", "fp16", "--config", "nv_full,nv_small")
    assert points[0]["cycles"] > 0
    assert "nv_small" in points[1]["error"]  # which has no fp16


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


def marked(capsys, tmp_path, *words: object) -> tuple[str, str, str, str]:
    """The row of the only point, its remark, and both on the page and in the CSV."""
    files = ["--report", tmp_path / "p.html", "--table", tmp_path / "t.csv"]
    main(["explore", *map(str, [*words, *files]), "--workers", "1"])
    said = capsys.readouterr()
    shown = html.unescape((tmp_path / "p.html").read_text())
    return said.out, said.err, shown, (tmp_path / "t.csv").read_text()


def test_a_network_with_nodes_on_the_host_has_no_frames_per_second(capsys, tmp_path):
    """Its cycles are those of a part of it."""
    words = [written_model(tmp_path / "m.onnx", "Ceil"), "--precision", "fp16", "--config", "nv_full"]
    (point,) = explored(capsys, *words)
    assert (point["host_nodes"], point["frames_per_second"]) == (1, None) and point["cycles"] > 0
    for text in marked(capsys, tmp_path, *words):
        assert "host" in text
    assert "on the host: 1 node (0% of multiplications)" in marked(capsys, tmp_path, *words)[2]


def test_the_parts_before_and_after_the_host_count_together(capsys, tmp_path):
    words = ["--precision", "fp16", "--config", "nv_full"]
    one = explored(capsys, written_model(tmp_path / "a.onnx"), *words)[0]
    both = explored(capsys, written_model(tmp_path / "b.onnx", "Ceil", "Relu"), *words)[0]
    assert both["cycles"] > one["cycles"] and both["read_bytes"] > one["read_bytes"]


def test_a_network_that_never_ends_has_no_cycles(capsys, tmp_path, corpus):
    path = corpus / "builder-verdicts" / "nv_small" / "nv_small-int8-banks-changed-02.loadable"
    (point,) = explored(capsys, path)
    assert point["cycles"] is point["frames_per_second"] is point["mac_use"] is None
    assert "change of D_BANK" in point["deadlock"]
    out, err, shown, table = marked(capsys, tmp_path, path)
    assert "deadlock" in out and "deadlock" in table and "deadlock" in shown
    assert "deadlock" in err and "deadlock" in shown


def test_operations_that_wait_for_each_other_are_a_deadlock(monkeypatch):
    """The schedule finds them, too, where a file passes the rules."""
    from nvdla.analysis.cycles.schedule import Schedule

    monkeypatch.setattr("nvdla.analysis.study.failure", lambda *_: None)
    monkeypatch.setattr(Schedule, "stuck", property(lambda self: [next(iter(self.spans))], lambda *_: None), False)
    table = Exploration(LENET, [Point("auto")])
    (point,) = table.open()(list(table.tasks()))
    assert point["deadlock"] == "operations 0/0 wait indefinitely" and point["cycles"] is None


def test_the_precision_of_a_loadable_is_that_of_its_operations(capsys):
    (point,) = explored(capsys, SAMPLES / "lenet_nv_full_fp16.loadable")
    assert point["precision"] == "fp16"
    assert main(["explore", LENET, "--precision", "fp16,int8"]) == 2
    assert "--precision fp16,int8: must be given with a model" in capsys.readouterr().err


def test_a_configuration_that_the_cycle_model_was_not_calibrated_on_is_marked(capsys, tmp_path):
    words = [SAMPLES / "lenet.prototxt", "--weights", SAMPLES / "lenet.caffemodel", "--config", "nv_full"]
    words += ["--precision", "fp16"]
    pytest.importorskip("onnxruntime")
    (point,) = explored(capsys, *words)
    assert 0 < point["unproven_operations"] <= point["operations"] and point["frames_per_second"] > 0
    for text in marked(capsys, tmp_path, *words):
        assert "unproven" in text or "estimates without proof" in text
    assert explored(capsys, LENET)[0]["unproven_operations"] == 0


def test_a_failed_calibration_is_named(capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    words = [SAMPLES / "lenet.onnx", "--config", "nv_small", "--calibrate", tmp_path / "none"]
    out, err, *_ = marked(capsys, tmp_path, *words)
    assert out == ""
    assert err.startswith(f"nv_small int8: impossible: {tmp_path / 'none'}: must be an existing file or directory")


def test_the_data_of_an_evaluation_calibrate(capsys):
    pytest.importorskip("onnxruntime")
    digits = SAMPLES / "digits.npz"
    words = ["--config", "nv_small", "--calibrate", digits, "--data", digits]
    (point,) = explored(capsys, SAMPLES / "lenet.onnx", *words)
    assert point["accuracy"]["value"] > 0.98


def test_table_and_page(tmp_path, capsys):
    words = ["--bandwidth", "1,2,4,full", "--table", tmp_path / "t.csv", "--report", tmp_path / "p.html"]
    explored(capsys, LENET, *words)
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 5
    shown = (tmp_path / "p.html").read_text()
    assert "buffer use" in shown
    assert "NVIDIA&#x27;s table" in shown
    assert unquote(re.search(r'href="data:text/csv,([^"]*)"', shown)[1]) == (tmp_path / "t.csv").read_text()
    data = plotted(tmp_path / "p.html")
    assert (data["x"], data["y"]) == ("energy", "frames")  # the first that differs: the area is the same
    assert [point["values"]["bandwidth"] for point in data["points"]] == [1, 2, 4, 8]  # full is as wide as the bus


def plotted(path: Path) -> dict:
    """The data of a page's plot."""
    return json.loads(html.unescape(re.search(r'id="plot-data" hidden>([^<]*)<', path.read_text())[1]))


def test_the_plot_has_every_metric_that_is_known(capsys, tmp_path):
    words = ["--bandwidth", "1,full", "--instances", "1,2", "--report", tmp_path / "p.html"]
    points = explored(capsys, LENET, *words)
    data = plotted(tmp_path / "p.html")
    assert {metric["key"] for metric in data["metrics"]} == METRICS.keys() - {"accuracy"}
    assert data["x"] == "area16"  # two instances are twice as large
    for point, shown in zip(points, data["points"], strict=True):
        assert shown["values"]["frames"] == point["frames_per_second"]
        assert shown["values"]["area16"] == pytest.approx(0.55 * point["instances"])
        assert shown["values"]["traffic"] == 54_208
        assert shown["values"]["accuracy"] is None
    assert plot_document(points) == data
    one, with_accuracy = explored(capsys, LENET, "--data", SAMPLES / "digits.npz", "--limit", 20, "--latency", "50,100")
    assert plot_document([one, with_accuracy])["points"][0]["values"]["accuracy"] == 1.0


def test_one_point_has_no_plot(capsys, tmp_path):
    explored(capsys, LENET, "--report", tmp_path / "p.html")
    assert "plot-data" not in (tmp_path / "p.html").read_text()


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
        ((str(SAMPLES / "lenet.prototxt"),), "a model needs configurations"),
        (("missing.loadable",), "missing.loadable"),
        ((LENET, "--clock", "0"), "clock: must be"),
        ((LENET, "--clock", "-5"), "clock: must be"),
        ((LENET, "--limit", "0"), "--limit 0: must be at least 1"),
        ((LENET, "--config", "nv_huge"), "nv_huge"),
        ((LENET, "--precision", "int9"), "--precision int9: must be one of int8"),
        ((__file__,), "got a text file"),
    ],
)
def test_what_cannot_be_explored_is_one_line(capsys, words, text):
    assert main(["explore", *words]) == 2
    captured = capsys.readouterr().err
    assert text in captured and captured.count("\n") == 1


def test_configurations_are_plotted_over_their_area(tmp_path, capsys):
    """nv_small_256 has four times the multipliers of nv_small, in an area that is less than half larger."""
    pytest.importorskip("onnxruntime")
    words = ["--config", "nv_small,nv_small_256,nv_full", "--calibrate", SAMPLES / "digits.npz"]
    points = explored(capsys, SAMPLES / "lenet.onnx", *words, "--report", tmp_path / "p.html")
    areas = [point["values"]["area16"] for point in plotted(tmp_path / "p.html")["points"]]
    assert areas == [0.55, 0.757, None]
    assert [each["silicon"]["mm2_16nm"] for each in points] == [0.55, 0.757, None]
    assert "nv_full: no estimate: NVIDIA&#x27;s table has int8 configurations only" in (tmp_path / "p.html").read_text()
