"""Data sets as people have them: ILSVRC folders, tar files, WebDataset shards, parquet, addresses."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.tensors.datasets import open_source
from nvdla.tensors.samples import MAX_TAR_HEADER

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LENET = str(SAMPLES / "lenet.loadable")
COLOR = str(SAMPLES / "color_digits.loadable")


def add(archive: tarfile.TarFile, name: str, data: bytes, **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(data))


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


@pytest.fixture(scope="module")
def digits():
    with np.load(SAMPLES / "digits.npz") as data:
        return data["images"][:12], data["labels"][:12]


@pytest.fixture
def shards(tmp_path, digits):
    for number in range(3):
        with tarfile.open(tmp_path / f"val-{number:02}.tar", "w") as archive:
            for place in range(number * 4, number * 4 + 4):
                add(archive, f"digit{place:02}.cls", str(digits[1][place]).encode())
                add(archive, f"digit{place:02}.png", encoded(digits[0][place]))
                add(archive, f"digit{place:02}.json", b"{}")
    return tmp_path / "val-{00..02}.tar"


def evaluated(capsys, *words: object) -> dict:
    capsys.readouterr()
    assert main(["evaluate", *map(str, words), "--workers", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["summary"]


def test_webdataset_shards(shards, digits, capsys):
    source = open_source(str(shards))
    assert [source.sample(place).label for place in range(len(source))] == digits[1].tolist()
    assert [source.name_of(place) for place in (0, 11)] == ["digit00.png", "digit11.png"]
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(source)).sample(7).value), digits[0][7])
    summary = evaluated(capsys, LENET, shards)
    assert (summary["samples"], summary["top1"]["value"], summary["damaged"]) == (12, 1.0, 0)


def test_a_tar_equals_its_directory_also_in_color(tmp_path, capsys):
    for place in range(10):
        (tmp_path / "d" / str(place)).mkdir(parents=True)
        shutil.copy(SAMPLES / f"color_digit{place}.ppm", tmp_path / "d" / str(place) / "picture.ppm")
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        archive.add(tmp_path / "d", "d")
    records = []
    for data in ("d", "d.tar"):
        words = ["--samples", tmp_path / f"{data}.jsonl"]
        summary = evaluated(capsys, COLOR, tmp_path / data, *words)
        lines = [json.loads(line) for line in (tmp_path / f"{data}.jsonl").read_text().splitlines()[1:]]
        records.append(([(line["label"], line["hash"], line["top"]) for line in lines], summary["classes"]))
    assert records[0] == records[1] and len(records[0][0]) == 10


def test_calibration_and_arrays_in_a_tar(tmp_path):
    stream = io.BytesIO()
    np.save(stream, np.arange(6, dtype=np.float32).reshape(1, 2, 3))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "./x.npy", stream.getvalue())
    sample = open_source(str(tmp_path / "a.tar")).sample(0)
    assert sample.label is None and sample.value.shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("name", "data", "fields", "text"),
    [
        ("../../etc/a.png", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "must be a file, is a link"),
        ("a.png", b"", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, "must be a file, is a link"),
        ("a.png", b"", {"type": tarfile.CHRTYPE}, "must be a file, is a link, device"),
        ("a.txt", b"1", {}, "no samples: must hold members that end in"),
        ("a.png", b"1", {"pax_headers": {"comment": "x" * (MAX_TAR_HEADER + 1)}}, "header: must have at most"),
    ],
)
def test_hostile_members(name, data, fields, text, tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, name, data, **fields)
    with pytest.raises(FormatError, match=text):
        open_source(str(tmp_path / "a.tar"))


def test_names_that_lead_out_of_the_directory_write_nothing(tmp_path, digits):
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / "a.tar", "w") as archive:
        add(archive, "../../evil.png", encoded(digits[0][0]))
    source = open_source(str(tmp_path / "in" / "a.tar"))
    assert source.sample(0).id == "../../evil.png" and np.array_equal(np.asarray(source.sample(0).value), digits[0][0])
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "a.tar"]


def test_a_picture_that_unpacks_to_gigabytes(tmp_path, capsys):
    header = b"P5\n9000 9000\n255\n"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "a.pgm", header)
        add(archive, "b.cls", b"not a number")
    with pytest.raises(FormatError, match="must have at most"):
        open_source(str(tmp_path / "a.tar")).sample(0)


@pytest.mark.parametrize("cut", [100, 700, 5000])
def test_a_tar_that_was_cut_off_or_compressed(cut, shards, tmp_path):
    whole = (tmp_path / "val-00.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[:cut])
    with pytest.raises(FormatError, match="cut off"):
        open_source(str(tmp_path / "cut.tar"))
    (tmp_path / "gz.tar").write_bytes(b"\x1f\x8b" + whole)
    with pytest.raises(FormatError, match=r"decompress \.tar\.gz files first"):
        open_source(str(tmp_path / "gz.tar"))
    with pytest.raises(FormatError, match="shards must be"):
        open_source(str(tmp_path / "val-{0..999999}.tar"))


def test_a_label_that_is_none(tmp_path, digits):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "a.png", encoded(digits[0][0]))
        add(archive, "a.cls", b"cat")
    with pytest.raises(FormatError, match="the label must be the number of a class, got 'cat'"):
        open_source(str(tmp_path / "a.tar"))


@pytest.mark.parametrize("named", [False, True])
def test_the_layout_of_ilsvrc(named, tmp_path, digits, capsys):
    folder = tmp_path / "val"
    folder.mkdir()
    rows = []
    for place, (image, label) in enumerate(zip(*digits, strict=True)):
        name = f"ILSVRC2012_val_{place + 1:08}.png"
        (folder / name).write_bytes(encoded(image))
        rows.append(f"{name} {label}" if named else str(label))
    truth = tmp_path / "truth.txt"
    truth.write_text("\n".join(reversed(rows) if named else rows) + "\n")
    summary = evaluated(capsys, LENET, folder, "--labels", truth)
    assert (summary["samples"], summary["top1"]["value"]) == (12, 1.0)
    for text, problem in (("1\n2\n", "one label per file"), ("../x.png 3\n", "FILE LABEL of a file"), ("x\n", ":1:")):
        truth.write_text(text)
        with pytest.raises(FormatError, match=problem):
            open_source(str(folder), str(truth))


def test_parquet_of_hugging_face(tmp_path, digits, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    images = [{"bytes": encoded(image), "path": None} for image in digits[0]]
    table = pyarrow.table({"image": images, "label": digits[1].tolist()})
    parquet.write_table(table, tmp_path / "d.parquet", row_group_size=5)
    source = pickle.loads(pickle.dumps(open_source(str(tmp_path / "d.parquet"))))
    assert [source.sample(place).label for place in range(len(source))] == digits[1].tolist()
    assert np.array_equal(np.asarray(source.sample(6).value), digits[0][6])
    assert evaluated(capsys, LENET, tmp_path / "d.parquet")["top1"]["value"] == 1.0
    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(FormatError, match="must have a column image or img, got x"):
        open_source(str(tmp_path / "x.parquet"))
    (tmp_path / "n.parquet").write_bytes(b"PAR1" + b"x" * 40)
    with pytest.raises(FormatError, match="must be an intact parquet file"):
        open_source(str(tmp_path / "n.parquet"))


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"need pyarrow: pip install 'nvdla\[data\]'"):
        open_source(str(tmp_path / "d.parquet"))


def test_an_address_is_read_through_fsspec(shards, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    data = (tmp_path / "val-00.tar").read_bytes()
    with fsspec.open("memory://bucket/val.tar", "wb") as stream:
        stream.write(data)
    assert len(open_source("memory://bucket/val.tar")) == 4
    with pytest.raises(FormatError, match="cannot be read: FileNotFoundError"):
        open_source("memory://bucket/none.tar")
    with pytest.raises(FormatError, match="must be one address, got a chain"):
        open_source("zip://a.tar::memory://bucket/val.zip")
    monkeypatch.setattr("nvdla.tensors.samples.MAX_FETCHED", len(data) - 1)
    with pytest.raises(FormatError, match="must have at most"):
        open_source("memory://bucket/val.tar")


def test_directories_of_the_same_name_in_a_tar_are_one_class(tmp_path, digits):
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        for place, folder in enumerate(("train/cat", "train/dog", "val/cat", "val/dog")):
            add(archive, f"{folder}/{place}.png", encoded(digits[0][place]))
    source = open_source(str(tmp_path / "d.tar"))
    assert source.classes == ["cat", "dog"]
    assert [source.sample(place).label for place in range(4)] == [0, 1, 0, 1]


def test_two_samples_of_one_key_in_a_tar_are_refused(tmp_path, digits):
    """In WebDataset the name up to the first dot is the key: the second picture would replace the first."""
    with tarfile.open(tmp_path / "d.tar", "w") as archive:
        for place in range(2):
            add(archive, f"digit.{place}.png", encoded(digits[0][place]))
    with pytest.raises(FormatError, match=r"digit\.1\.png: must be the only 'digit' .* got digit\.0\.png too"):
        open_source(str(tmp_path / "d.tar"))
