"""Class names from text files, and from the archive at the end of a TFLite model."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from nvdla.errors import FormatError
from nvdla.tensors import real
from nvdla.tensors.real import read_labels, tops


def model(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Bytes that begin as a TFLite model, and an archive."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return b"\x1c\0\0\0TFL3" + bytes(100) + stream.getvalue()


def test_labels_of_a_model_are_those_of_its_label_file(tmp_path):
    path = tmp_path / "net.tflite"
    path.write_bytes(model({"vocabulary.txt": b"no\n", "labels.txt": "cat\nd\u00f6g\n".encode(), "a.bin": b"0"}))
    assert read_labels(path) == ["cat", "d\u00f6g"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            b"\x1c\0\0\0TFL3" + bytes(100),
            r"must contain a readable label file \(no metadata at the end of the file\).* one class name per line",
        ),
        (model({"a.bin": b"0"}), r"must contain a readable label file \(no .txt file\)"),
        (model({"labels.txt": b"cat"}, zipfile.ZIP_LZMA), "got method 14"),
        (model({"labels.txt": bytes(2000)}), "labels.txt: size: must be at most 1000 bytes, got 2000"),
        (model({"labels.txt": b"\xff"}), "must be UTF-8 text"),
        (model({"labels.txt": b"cat" * 30})[:-30], "must contain a readable label file"),
    ],
)
def test_other_archives_are_one_error(tmp_path, monkeypatch, data, words):
    monkeypatch.setattr(real, "MAX_LABELS_FILE", 1000)
    path = tmp_path / "net.tflite"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=words):
        read_labels(path)


def test_labels_name_the_output_that_has_as_many_numbers_as_there_are_labels():
    classes, boxes = np.arange(2.0).reshape(1, 2, 1, 1), np.arange(4.0).reshape(1, 4, 1, 1)
    named = {name: rows[0][0].label for name, rows in tops({"b": boxes, "c": classes}, 1, ["cat", "dog"]).items()}
    assert named == {"b": None, "c": "dog"}


def test_labels_fewer_than_the_numbers_of_every_output_name_the_first_ones():
    [ranks] = tops({"x": np.arange(4.0).reshape(1, 4, 1, 1)}, 4, ["cat", "dog"])["x"]
    assert [rank.label for rank in ranks] == [None, None, "dog", "cat"]
    assert tops({"x": np.zeros((1, 4))}, 0, ["cat"]) == {"x": []}
