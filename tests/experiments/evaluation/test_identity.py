"""The identity of a campaign: results of other contents of the same files are not continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from nvdla.cli.main import main
from nvdla.experiments.evaluation import Evaluation, open_source
from nvdla.experiments.evaluation.networks import model_hash
from nvdla.experiments.exploration import Exploration, Point
from nvdla.tensors.datasets import data_hash

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
DIGITS = str(SAMPLES / "digits.npz")


@pytest.fixture
def lenet(tmp_path):
    for name in ("lenet.loadable", "lenet.loadable.layers.json"):
        shutil.copy(SAMPLES / name, tmp_path)
    return tmp_path / "lenet.loadable"


@pytest.fixture
def mine(tmp_path):
    """A configuration of one's own."""
    path = tmp_path / "mine.yaml"
    path.write_text("base: nv_small\nname: mine\n")
    return path


def refused(capsys, *words: object) -> str:
    assert main([*map(str, words)]) == 2
    said = capsys.readouterr().err
    *notes, error = said.splitlines()
    assert all("(assumed, as NVIDIA's runtime)" in note for note in notes) and "belongs to another run" in error
    return said


def test_a_configuration_file_that_changed_is_another_run(capsys, lenet, mine, tmp_path):
    """The path alone does not decide cycles."""
    commands = {
        "explore": ("explore", lenet, "--config", mine),
        "evaluate": ("evaluate", lenet, DIGITS, "--config", mine, "--limit", 5),
        "faults": ("faults", lenet, DIGITS, "--config", mine, "--count", 2, "--limit", 1),
    }
    tails = {name: ("--workers", 1, "--resume", "--samples", tmp_path / f"{name}.jsonl") for name in commands}
    for name, words in commands.items():
        assert main([*map(str, (*words, *tails[name]))]) == 0
    mine.write_text("base: nv_small\nname: mine\ncbuf_banks: 16\n")
    capsys.readouterr()
    for name, words in commands.items():
        assert "config" in refused(capsys, *words, *tails[name])


def test_a_layer_file_that_changed_is_another_run(capsys, lenet, tmp_path):
    words = ("evaluate", lenet, DIGITS, "--limit", 5, "--workers", 1, "--resume", "--samples", tmp_path / "s.jsonl")
    assert main([*map(str, words)]) == 0
    layers = tmp_path / "lenet.loadable.layers.json"
    layers.write_text(layers.read_text().replace('"scale": 0.', '"scale": 1.'))
    capsys.readouterr()
    assert "other layers" in refused(capsys, *words)
    layers.unlink()
    assert "other layers" in refused(capsys, *words)


def test_preprocessing_is_a_part_of_the_identity(capsys, lenet, tmp_path):
    words = ("evaluate", lenet, DIGITS, "--limit", 5, "--workers", 1, "--resume", "--samples", tmp_path / "s.jsonl")
    assert main([*map(str, words)]) == 0
    capsys.readouterr()
    assert "pixels was" in refused(capsys, *words, "--resize")


def test_a_metric_whose_code_changed_is_another_run(capsys, lenet, tmp_path, monkeypatch):
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ("evaluate", lenet, DIGITS, "--limit", 5, "--workers", 1, "--resume", "--samples", "s.jsonl")
    words += ("--metric", "my_metric:f")
    for text in ("def f(outputs, label): return 1.0\n", "def f(outputs, label): return 2.0\n"):
        (tmp_path / "my_metric.py").write_text(text)
        monkeypatch.delitem(sys.modules, "my_metric", raising=False)
        if "1.0" in text:
            assert main([*map(str, words)]) == 0
            capsys.readouterr()
    assert "other metric_code" in refused(capsys, *words)


def identity(calibration: Path, network: Path = SAMPLES / "lenet.onnx") -> str:
    return Exploration(str(network), [Point("nv_small")], calibration=str(calibration)).identity()


def test_calibration_data_that_changed_is_another_run(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("digit1.pgm", "digit2.pgm"):
        shutil.copy(SAMPLES / name, folder)
    seen = [identity(folder)]
    shutil.copy(SAMPLES / "digit3.pgm", folder / "digit2.pgm")  # of the same size
    seen.append(identity(folder))
    (folder / "digit2.pgm").unlink()
    seen.append(identity(folder))
    (folder / "digit1.pgm").rename(folder / "digit4.pgm")
    seen.append(identity(folder))
    moved = folder.rename(tmp_path / "elsewhere")
    assert len(set(seen)) == 4 and identity(moved) == seen[-1]


def test_external_data_of_a_model_are_a_part_of_it(tmp_path):
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    values = [helper.make_tensor_value_info(name, 1, [1, 300]) for name in "xy"]
    weights = onnx.numpy_helper.from_array(np.arange(300, dtype=np.float32)[None], "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    name = "w" * 200 + ".data"
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location=name, size_threshold=0)
    before = model_hash(tmp_path / "m.onnx")
    data = bytearray((tmp_path / name).read_bytes())
    data[5] ^= 1
    (tmp_path / name).write_bytes(data)
    assert model_hash(tmp_path / "m.onnx") != before
    (tmp_path / name).unlink()
    assert model_hash(tmp_path / "m.onnx") != before


def test_a_sample_of_another_size_is_another_data_set(lenet, tmp_path):
    folder = tmp_path / "samples"
    folder.mkdir()
    shutil.copy(SAMPLES / "digit1.pgm", folder)

    def identity() -> str:
        return Evaluation(str(lenet), open_source(str(folder))).identity()

    before = identity()
    with open(folder / "digit1.pgm", "ab") as stream:
        stream.write(b"\n")
    assert identity() != before


def test_arrays_of_another_form_are_other_data(tmp_path):
    values = np.arange(4 * 8, dtype=np.uint8)
    found = []
    for shape in ((4, 8), (4, 2, 4), (4, 4, 2)):
        np.savez(tmp_path / "a.npz", images=values.reshape(shape), labels=np.zeros(4, int))
        found.append(open_source(str(tmp_path / "a.npz")).settings()["content"])
    assert len(set(found)) == 3


def test_the_name_of_a_file_is_not_taken_for_its_content(tmp_path):
    for folder, name, text in (("a", "xy", "z"), ("b", "x", "yz")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    assert data_hash(tmp_path / "a") != data_hash(tmp_path / "b")
