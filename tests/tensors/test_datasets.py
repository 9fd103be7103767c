"""Data sets: one reader for evaluation, faults, exploration and calibration."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nvdla
from nvdla.cli.main import main
from nvdla.compiler.frontend.data import samples
from nvdla.compiler.frontend.model import read
from nvdla.errors import FormatError
from nvdla.tensors.datasets import Arrays, open_source, samples_and_labels

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LENET = str(SAMPLES / "lenet.loadable")
COUNT = 3


@pytest.fixture
def digits():
    with np.load(SAMPLES / "digits.npz") as data:
        return data["images"][:COUNT], data["labels"][:COUNT]


def _directory(folder, images, labels):
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")
    return folder


def _classes(folder, images, labels):
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{number}.png")
    return folder


def _manifest(folder, images, labels):
    _directory(folder, images, labels)
    with open(folder / "val.csv", "w", newline="") as stream:
        csv.writer(stream).writerows((f"{number}.png", int(label)) for number, label in enumerate(labels))
    return folder / "val.csv"


def _lines(folder, images, labels):
    _directory(folder, images, labels)
    rows = ({"path": f"{number}.png", "label": int(label)} for number, label in enumerate(labels))
    (folder / "val.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "val.jsonl"


def _npz(folder, images, labels):
    np.savez(folder / "d.npz", X=images, Y=labels)
    return folder / "d.npz"


def _npy(folder, images, labels):
    np.save(folder / "d.npy", images)
    return folder / "d.npy"


def _function(folder, images, labels):
    np.savez(folder / "d.npz", x=images, y=labels)
    module = f"digits_of_{folder.name.replace('-', '_')}"
    load = f"import numpy\nd = numpy.load({str(folder / 'd.npz')!r})\n"
    text = load + "def rows():\n    yield from zip(d['x'], d['y'])\n"
    (folder / f"{module}.py").write_text(text)
    return f"{module}:rows"


KINDS = [_directory, _classes, _manifest, _lines, _npz, _npy, _function]


@pytest.mark.parametrize("kind", KINDS)
def test_calibration_reads_each_kind_of_data_set(kind, digits, tmp_path, monkeypatch):
    """Labels are ignored; the feeds are the same pixels as those of an array of images."""
    monkeypatch.syspath_prepend(tmp_path)
    model = read(SAMPLES / "lenet.onnx")
    data = kind(tmp_path, *digits)
    feeds = [feed["data"] for feed in samples(model, str(data))]
    expected = [feed["data"] for feed in samples(model, digits[0][:, None].astype(np.float32))]
    order = np.argsort(digits[1], kind="stable") if kind is _classes else range(COUNT)
    assert [feed.tobytes() for feed in feeds] == [expected[number].tobytes() for number in order]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_reads_each_kind_of_data_set(kind, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    words = ["evaluate", LENET, str(kind(tmp_path, *digits)), "--predict-only", "--workers", "1", "--json"]
    assert main([*words, "--samples", str(tmp_path / "journal.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["samples"] == COUNT
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert sorted(row["top"][0][0] for row in rows if "top" in row) == sorted(digits[1].tolist())


@pytest.mark.parametrize("limit, count", [(None, 80), (10, 10)])
def test_calibration_begins_with_samples_of_all_classes(limit, count, tmp_path):
    """What sees the first samples alone must not see the first class alone."""
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        for index in range(40):
            np.save(tmp_path / str(number) / f"{index:02}.npy", np.full((1, 1, 28, 28), number, np.float32))
    classes = [int(feed["data"].max()) for feed in samples(read(SAMPLES / "lenet.onnx"), str(tmp_path), limit=limit)]
    assert len(classes) == count and sum(classes) == count // 2
    assert sum(classes[:32]) == min(32, count) // 2


def test_one_image_is_a_data_set():
    source = open_source(SAMPLES / "digit7.pgm")
    assert [source.sample(n).value for n in range(len(source))] == [SAMPLES / "digit7.pgm"]


def test_files_next_to_class_directories_have_no_label(digits, tmp_path):
    _classes(tmp_path, *digits)
    Image.fromarray(digits[0][0]).save(tmp_path / "extra.png")
    source = open_source(str(tmp_path))
    assert source.sample(0).label is None and source.sample(0).id == "extra.png"
    names = [source.classes[source.sample(n).label] for n in range(1, len(source))]
    assert names == sorted(map(str, digits[1]))


def test_arrays_of_several_inputs_in_files_are_samples_of_a_directory(tmp_path):
    np.savez(tmp_path / "a.npz", left=np.zeros(3), right=np.zeros(3))
    assert len(open_source(str(tmp_path))) == 1
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "a.png")
    assert open_source(str(tmp_path)).name_of(0) == "a.png"


@pytest.mark.parametrize("names", [("images", "labels"), ("x", "target"), ("X", "Y"), ("faces", "people"), ("arr_0",)])
def test_a_pair_of_names_is_recognized(names):
    arrays = dict(zip(names, (np.zeros((2, 4, 4), np.uint8), np.arange(2)), strict=False))
    found, labels = samples_and_labels(arrays)
    assert found is arrays[names[0]] and labels is (arrays[names[1]] if len(names) > 1 else None)


def test_arrays_of_unknown_meaning_are_refused():
    assert samples_and_labels({"left": np.zeros((2, 4)), "right": np.zeros((2, 4))}) is None
    with pytest.raises(nvdla.FormatError, match="must be classes or numbers"):
        Arrays("d", np.zeros((2, 4)), np.array(["a", "b"]))


def test_a_manifest_of_calibration_data_stays_below_its_root(digits, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "lists"
    folder.mkdir()
    manifest = folder / "val.csv"
    _directory(tmp_path, *digits)
    manifest.write_text(f"{tmp_path / '0.png'},7\n")
    words = ["compile", str(SAMPLES / "lenet.onnx"), "--calibrate", str(manifest), "-o", str(tmp_path / "net.loadable")]
    assert main(words) == 2
    assert f"must be below {folder}" in capsys.readouterr().err
    assert main([*words, "--root", str(tmp_path)]) == 0


@pytest.mark.parametrize("text", ["0.5,1.5,2\n0.25,1,3\n", "a,b,label\n-1,2.5,3\n"])
def test_a_table_of_numbers_is_refused_with_the_way_out(tmp_path, text):
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(
        FormatError, match=r"a row must be path,label, got the number .*Save samples of numbers as \.npz"
    ):
        open_source(str(tmp_path / "data.csv"))
