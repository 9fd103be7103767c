"""Class names from text files, and from the archive at the end of a TFLite model."""

from __future__ import annotations

import io
import zipfile

import pytest

from nvdla.errors import FormatError
from nvdla.tensors import real
from nvdla.tensors.real import read_labels


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
