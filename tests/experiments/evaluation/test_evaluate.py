"""Evaluation: the figures are those of the runs, from every source, on any number of workers."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.cli.main import main
from nvdla.experiments.evaluation import open_source, summarize
from nvdla.experiments.evaluation.metrics import Mean, percent
from nvdla.experiments.evaluation.table import Evaluation, figures
from nvdla.tensors.datasets import Files

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
LENET = str(SAMPLES / "lenet.loadable")


@pytest.fixture(scope="module")
def digits():
    with np.load(SAMPLES / "digits.npz") as data:
        return data["images"], data["labels"]


@pytest.fixture(scope="module")
def truth(digits):
    """What LeNet says of every digit, one run each."""
    runtime = nvdla.Runtime(LENET)
    elements = np.floor(digits[0] * 127.0 / 255.0 + 0.5).astype(np.int8)
    return [int(runtime.run(each[None, None])["prob"].argmax()) for each in elements]


def evaluated(capsys, *words: object) -> dict:
    assert main(["evaluate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["summary"]


def test_accuracy_and_its_interval_are_those_of_single_runs(capsys, digits, truth):
    summary = evaluated(capsys, LENET, SAMPLES / "digits.npz", "--workers", 1)
    right = sum(int(a == b) for a, b in zip(truth, digits[1], strict=True)) / len(truth)
    assert summary["samples"] == 360
    assert summary["top1"]["value"] == pytest.approx(right)
    for name, share in (("top1", right), ("top5", 1.0)):
        low, high = summary[name]["low"], summary[name]["high"]
        assert low < share <= high
        for end in {low, high} - {1.0}:  # as far from the share as 1.96 standard errors of a share that is the end
            assert (share - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / 360, rel=1e-5)
    counts = {(row["label"], row["found"]): row["count"] for row in summary["confusion"]}
    assert sum(counts.values()) == 360
    for label in range(10):
        found = [t for t, wanted in zip(truth, digits[1], strict=True) if wanted == label]
        assert counts.get((label, label), 0) == found.count(label)
        assert summary["classes"][label]["recall"]["value"] == pytest.approx(found.count(label) / len(found))


def write_pgm(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"P5\n28 28\n255\n" + image.tobytes())


def test_a_limit_takes_samples_evenly_over_the_directories_of_classes(capsys, tmp_path, digits):
    for number in range(60):
        write_pgm(tmp_path / "data" / str(digits[1][number] // 2) / f"{number:03}.pgm", digits[0][number])
    words = (LENET, tmp_path / "data", "--limit", 11)
    whole = evaluated(capsys, *words)
    assert sorted(row["samples"] for row in whole["classes"] if row["samples"]) == [2, 2, 2, 2, 3]
    parts = [tmp_path / f"{part}.jsonl" for part in (1, 2)]
    for part, path in enumerate(parts, 1):
        evaluated(capsys, *words, "--shard", f"{part}/2", "--samples", path)
    assert evaluated(capsys, *words, "--merge", *parts) == whole


def test_classes_that_are_names_have_the_order_that_is_stated(capsys, tmp_path, digits):
    names = ("zero", "one", "two")
    for number in range(30):
        if digits[1][number] < 3:
            write_pgm(tmp_path / "data" / names[digits[1][number]] / f"{number:03}.pgm", digits[0][number])
    (tmp_path / "names.txt").write_text("\n".join([*names, *map(str, range(3, 10))]))
    words = ["evaluate", str(LENET), str(tmp_path / "data")]
    order = (
        "classes are numbered in the alphabetical order of their names (0 is 'one', 2 is 'zero'); "
        "--class-names FILE gives the network's order"
    )
    assert main(words) == 0 and order in capsys.readouterr().err
    explore = ["explore", words[1], "--data", words[2]]
    assert main(explore) == 0 and order in capsys.readouterr().err
    for more in ([*words, "--predict-only"], [*words, "--class-names", str(tmp_path / "names.txt")]):
        assert main(more) == 0
        assert order not in capsys.readouterr().err


def test_the_order_of_classes_is_stated_where_names_are_other_numbers(capsys, tmp_path, digits):
    """The digits 3 and 7 are the classes 0 and 1, and the table names no class twice."""
    for number in range(40):
        if digits[1][number] in (3, 7):
            write_pgm(tmp_path / "data" / str(digits[1][number]) / f"{number:03}.pgm", digits[0][number])
    assert main(["evaluate", str(LENET), str(tmp_path / "data")]) == 0
    out, err = capsys.readouterr()
    assert "(0 is '3', 1 is '7')" in err
    rows = [line.split("  ")[0].strip() for line in out[out.index("Classes") :].splitlines()[4:] if line.strip()]
    assert rows == ["3", "7", "class 3", "class 7"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_numbers_with_a_decimal_point_are_classes_only_where_outputs_have_classes(capsys, tmp_path, digits, ending):
    """3.0, as tables of pandas have it, is the class 3 of ten; 0.5 is a number for a mean squared error."""
    rows = []
    for number in range(12):
        write_pgm(tmp_path / f"{number}.pgm", digits[0][number])
        rows.append((f"{number}.pgm", float(digits[1][number])))
    csv = "path,label\n" + "".join(f"{path},{label}\n" for path, label in rows)
    lines = "".join(json.dumps({"path": path, "label": label}) + "\n" for path, label in rows)
    (tmp_path / f"data.{ending}").write_text(csv if ending == "csv" else lines)
    assert evaluated(capsys, LENET, tmp_path / f"data.{ending}")["top1"]["value"] == 1
    source = open_source(str(tmp_path / f"data.{ending}"))
    assert [source.sample(place).label for place in range(12)] == [[label] for _, label in rows]
    (tmp_path / "mixed.csv").write_text("0.pgm,3\n1.pgm,0.5\n")
    mixed = open_source(str(tmp_path / "mixed.csv"))
    assert [mixed.sample(place).label for place in range(2)] == [[3.0], [0.5]]


def test_pixels_without_a_layer_file_have_the_conversion_that_is_stated(capsys, tmp_path, digits):
    """Of files as of arrays; a layer file states it, so that nothing is assumed."""
    write_pgm(tmp_path / "data" / "0.pgm", digits[0][0])
    np.savez(tmp_path / "data.npz", samples=np.asarray(digits[0][:2], np.uint8))
    net = shutil.copy(LENET, tmp_path / "net.nvdla")
    for data in ("data", "data.npz"):
        for network in (net, LENET):
            assert main(["evaluate", str(network), str(tmp_path / data), "--predict-only"]) == 0
            assert ("pixels halved to 0..127 (assumed" in capsys.readouterr().err) == (network == net)


@pytest.fixture
def folder(tmp_path, digits):
    """Thirty digits as files, in a folder a class, and the manifests of them."""
    rows = []
    for number in range(30):
        label = int(digits[1][number])
        path = Path(str(label)) / f"{number:03}.pgm"
        write_pgm(tmp_path / "images" / path, digits[0][number])
        rows.append((f"images/{path}", label))
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    lines = "".join(json.dumps({"path": path, "label": label}) + "\n" for path, label in rows)
    (tmp_path / "list.jsonl").write_text(lines)
    np.save(tmp_path / "x.npy", digits[0][:30])
    np.save(tmp_path / "y.npy", digits[1][:30])
    return tmp_path


def test_every_source_gives_the_same_figures(capsys, folder, truth, digits):
    right = sum(int(a == b) for a, b in zip(truth[:30], digits[1][:30], strict=True)) / 30
    for words in (
        (folder / "images",),
        (folder / "list.csv",),
        (folder / "list.jsonl",),
        (folder / "x.npy", "--labels", folder / "y.npy"),
    ):
        summary = evaluated(capsys, LENET, *words, "--workers", 1)
        assert (summary["samples"], summary["top1"]["value"]) == (30, pytest.approx(right))


def test_a_python_function_is_a_source_too(capsys, tmp_path, monkeypatch, truth, digits):
    (tmp_path / "my_digits.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        f"    with np.load({str(SAMPLES / 'digits.npz')!r}) as data:\n"
        "        for number in range(20):\n"
        "            yield data['images'][number], int(data['labels'][number]), f'digit {number}'\n"
        "def margin(outputs, label):\n"
        "    return float(outputs[label])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = (LENET, "my_digits:samples", "--metric", "my_digits:margin", "--samples", "s.jsonl", "--workers", 1)
    summary = evaluated(capsys, *words)
    assert summary["samples"] == 20
    assert summary["metric"]["value"] > 0.9
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()[1:]]
    assert [line["id"] for line in lines] == [f"digit {number}" for number in range(20)]
    assert [line["top"][0][0] for line in lines] == truth[:20]


@pytest.mark.parametrize("name", ["rows", "loader"])
def test_a_data_set_of_pytorch_is_a_source_too(capsys, tmp_path, monkeypatch, truth, name):
    pytest.importorskip("torch")
    (tmp_path / "torch_digits.py").write_text(
        "import numpy as np, torch\n"
        f"data = np.load({str(SAMPLES / 'digits.npz')!r})\n"
        "images, labels = torch.tensor(data['images'][:20]), torch.tensor(data['labels'][:20])\n"
        "rows = torch.utils.data.TensorDataset(images, labels)\n"
        "loader = torch.utils.data.DataLoader(rows, batch_size=8)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    summary = evaluated(capsys, LENET, f"torch_digits:{name}", "--samples", f"{name}.jsonl", "--workers", 1)
    assert (summary["samples"], summary["top1"]["value"]) == (20, 1.0)
    lines = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()[1:]]
    assert [line["label"] for line in lines] == truth[:20]


def test_damaged_samples_are_counted_apart_and_strict_stops(capsys, folder):
    (folder / "images" / "3" / "broken.pgm").write_bytes(b"P5\n28 28\n255\n123")
    summary = evaluated(capsys, LENET, folder / "images", "--workers", 1)
    assert (summary["samples"], summary["damaged"]) == (30, 1)
    assert "broken.pgm" in summary["problems"][0]["id"]
    assert main(["evaluate", LENET, str(folder / "images"), "--workers", "1", "--stop-on-error"]) == 2
    assert "broken.pgm" in capsys.readouterr().err


def test_files_are_the_same_for_any_number_of_workers_and_after_resuming(capsys, tmp_path):
    for name, workers in (("a", 1), ("b", 2)):
        words = ["--samples", tmp_path / f"{name}.jsonl", "--output", tmp_path / f"{name}.json", "--workers", workers]
        evaluated(capsys, LENET, SAMPLES / "digits.npz", *words)
    whole = (tmp_path / "a.jsonl").read_bytes()
    assert whole == (tmp_path / "b.jsonl").read_bytes()
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    (tmp_path / "c.jsonl").write_bytes(whole[: len(whole) // 2])
    evaluated(capsys, LENET, SAMPLES / "digits.npz", "--samples", tmp_path / "c.jsonl", "--resume", "--workers", 1)
    assert (tmp_path / "c.jsonl").read_bytes() == whole


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on the size of files")
def test_a_full_disk_is_one_line_and_resume_goes_on(capsys, tmp_path):
    words = ["-m", "nvdla", "evaluate", LENET, str(SAMPLES / "digits.npz"), "--samples", "s.jsonl", "--workers", "1"]
    limited = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20480, 20480)); "
    limited += "sys.argv = ['nvdla', *sys.argv[1:]]; runpy.run_module('nvdla', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", limited, *words[2:]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert re.fullmatch(
        r"nvdla evaluate: journal s\.jsonl cannot be written: .*; \d+ results? kept. Continue with --resume.\n",
        done.stderr,
    )
    evaluated(capsys, LENET, SAMPLES / "digits.npz", "--samples", tmp_path / "s.jsonl", "--resume", "--workers", 1)
    evaluated(capsys, LENET, SAMPLES / "digits.npz", "--samples", tmp_path / "whole.jsonl", "--workers", 1)
    assert (tmp_path / "s.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_against_a_float_model_agreement_and_snr_are_reported(capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper, save_model

    weights = np.random.default_rng(1).normal(size=(784, 10)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(weights, "w")],
    )
    save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), tmp_path / "f.onnx")
    words = (LENET, SAMPLES / "digits.npz", "--against", tmp_path / "f.onnx", "--limit", 40, "--workers", 1)
    summary = evaluated(capsys, *words, "--samples", tmp_path / "s.jsonl")
    assert 0 <= summary["float"]["agreement"]["value"] < 0.6  # a random model
    assert 0 <= summary["float"]["top1"]["value"] < 0.6 < summary["top1"]["value"]
    rows = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()[1:]]
    right = [row["label"] == row["float"]["top"] for row in rows]
    assert summary["float"]["top1"]["value"] == sum(right) / 40
    assert ("top-1 accuracy, reference model", percent(summary["float"]["top1"])) in figures(summary)
    assert summary["float"]["parted"] and summary["float"]["snr_db"] is not None


def test_the_page_has_the_matrix_as_a_picture(capsys, tmp_path):
    evaluated(capsys, LENET, SAMPLES / "digits.npz", "--report", tmp_path / "p.html", "--workers", 1)
    page = (tmp_path / "p.html").read_text()
    assert page.count("<rect") >= 10 and "98.94 .. 100.00" in page
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((LENET, "missing.npz"), "must be an existing file or directory"),
        ((LENET, "empty"), "no samples: must hold files"),
        ((LENET, "wide.npy", "--labels", "y.npy"), "no sample could be evaluated"),
        ((LENET, "x.npy"), "has no label"),
        ((LENET, "x.npy", "--labels", "far.npy"), "has the label 77"),
        ((LENET, "x.npy", "--labels", "short.npy"), "labels: must be 3, one per sample, got 2"),
        ((LENET, "floats.npy", "--labels", "y.npy", "--config", "nv_smal"), "nv_smal"),
        ((LENET, "list.txt"), "must be a directory, an image"),
        ((LENET, "nothing:here"), "cannot be imported"),
        ((LENET, "negative.npy"), "must be a tuple of at most"),
        ((LENET, "truth.npy"), "must be a tuple of at most"),
        ((LENET, "x.npy", "--labels", "y.npy", "--limit", "0"), "must be at least 1"),
        ((LENET, "x.npy", "--labels", "y.npy", "--workers", "0"), "must be 1 .."),
        ((LENET, "x.npy", "--labels", "y.npy", "--input-scale", "0"), "--input-scale 0: must be a positive number"),
        ((LENET, "x.npy", "--labels", "y.npy", "--input-scale", "nan"), "--input-scale nan: must be a positive number"),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(capsys, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_text("x")
    images = np.zeros((3, 28, 28), np.uint8)
    np.save("x.npy", images)
    for name, size in (("negative.npy", b"-3"), ("truth.npy", b"True")):
        data = (tmp_path / "x.npy").read_bytes()
        (tmp_path / name).write_bytes(
            data.replace(b"(3, 28, 28), }" + b" " * (len(size) - 1), b"(%s, 28, 28), }" % size)
        )
    np.save("y.npy", np.zeros(3, int))
    np.save("far.npy", np.full(3, 77))
    np.save("short.npy", np.zeros(2, int))
    np.save("wide.npy", np.zeros((3, 30, 30), np.uint8))
    np.save("floats.npy", images.astype(np.float32))
    assert main(["evaluate", *words]) == 2
    captured = capsys.readouterr().err
    assert text in captured and captured.count("\n") == 1


USERS_OWN = """
import numpy as np
def breaks():
    yield np.zeros((28, 28), np.uint8), 1
    raise RuntimeError("the data base is down")
def no_generator():
    return 5
def names():
    yield np.zeros((28, 28), np.uint8), "cat"
def raises(outputs, label):
    raise ValueError("mine")
def nothing(outputs, label):
    return None
def not_a_number(outputs, label):
    return float("nan")
"""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("own:breaks",), "own:breaks: RuntimeError: the data base is down"),
        (("own:no_generator",), "own:no_generator: TypeError"),
        (("own:names",), "own:names: the label must be a class or numbers, got 'cat'"),
        (("x.npz", "--metric", "own:raises"), "own:raises of sample 0: ValueError: mine"),
        (("x.npz", "--metric", "own:nothing"), "own:nothing of sample 0: TypeError"),
        (("x.npz", "--metric", "own:not_a_number"), "own:not_a_number of sample 0 is nan"),
    ],
)
def test_what_is_wrong_with_a_users_own_function_is_one_line(capsys, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    (tmp_path / "own.py").write_text(USERS_OWN)
    np.savez("x.npz", images=np.zeros((3, 28, 28), np.uint8), labels=np.zeros(3, int))
    assert main(["evaluate", LENET, *words, "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1 and "internal error" not in said


def test_a_folder_without_classes_is_for_predictions(capsys, tmp_path, digits):
    for number in range(4):
        write_pgm(tmp_path / "plain" / f"{number}.pgm", digits[0][number])
    source = open_source(str(tmp_path / "plain"))
    assert isinstance(source, Files) and source.sample(2).label is None
    words = (LENET, tmp_path / "plain", "--predict-only", "--samples", tmp_path / "s.jsonl", "--workers", 1)
    assert "top1" not in evaluated(capsys, *words)


def test_a_share_of_few_samples_has_a_wide_interval(capsys):
    """All of 7 right are no certainty; the interval is Wilson's, as of scipy.stats.binomtest(7, 7)."""
    summary = summarize(
        [{"key": str(number), "label": 3, "top": [[3, 1.0], [1, 0.5]], "metric": 2.5} for number in range(7)]
    )
    document = summary.document()
    assert document["top1"] == {"value": 1.0, "low": pytest.approx(0.64567, abs=1e-5), "high": 1.0}
    assert document["classes"][0]["recall"] == document["top1"]
    rows = dict(figures(document))
    assert rows["top-1 accuracy"] == "100.00% (64.57 .. 100.00)"
    assert rows["metric"] == "2.5"
    assert main(["evaluate", LENET, str(SAMPLES / "digits.npz"), "--limit", "7", "--workers", "1"]) == 0
    assert "±" not in capsys.readouterr().out


def test_a_mean_of_large_numbers_keeps_its_error():
    """Sums of squares lose it: 1e9 squared has no digit left for 1."""
    values = np.random.default_rng(3).normal(1e9, 1.0, 50)
    mean = Mean()
    assert mean.document() == {"value": None, "standard_error": None}
    for value in values:
        mean.add(float(value))
    assert mean.mean == pytest.approx(values.mean(), rel=1e-15)
    assert mean.document()["standard_error"] == pytest.approx(values.std(ddof=1) / math.sqrt(50), rel=1e-6)


@pytest.mark.parametrize("labels", ["labels", "y", "target"])
@pytest.mark.parametrize("samples", ["images", "x", "samples", "data"])
def test_any_pair_of_names_works_in_an_npz(tmp_path, digits, samples, labels):
    np.savez(tmp_path / "d.npz", **{samples: digits[0][:5], labels: digits[1][:5]})
    source = open_source(str(tmp_path / "d.npz"))
    assert [source.sample(number).label for number in range(5)] == digits[1][:5].tolist()
    np.savez(tmp_path / "e.npz", **{samples: digits[0][:5], "names": digits[1][:5]})
    assert open_source(str(tmp_path / "e.npz")).sample(0).label is None


@pytest.mark.parametrize("name", ["net.nvdla", "net.nvpkg"])
def test_against_a_tflite_file_with_int8_ends(name, capsys, tmp_path):
    """Real numbers go into the file and come out of it: the compiled network differs by rounding only."""
    pytest.importorskip("onnxruntime")
    from support.tflite_writer import FlatWriter

    rng = np.random.default_rng(1)
    writer = FlatWriter()
    writer.tensor((1, 4, 4, 2), scale=0.1, zero=7, name="x")
    writer.constant(rng.integers(-127, 128, (3, 4, 4, 2)).astype(np.int8), 0.01)
    writer.constant(np.zeros(3, np.int32), 0.001)
    writer.tensor((1, 1, 1, 3), scale=1.3, zero=-5, name="y")
    writer.operator("CONV_2D", [0, 1, 2], [3], padding=1, stride_w=1, stride_h=1)
    (tmp_path / "net.tflite").write_bytes(writer.model([0], [3]))
    samples = rng.normal(0, 4, (30, 4, 4, 2)).astype(np.float32)
    samples = samples if name == "net.nvpkg" else samples.transpose(0, 3, 1, 2)  # a loadable takes cubes
    np.savez(tmp_path / "data.npz", x=samples, y=np.arange(30) % 3)
    nvdla.compile(tmp_path / "net.tflite", "nv_small").save(tmp_path / name)
    words = (tmp_path / name, tmp_path / "data.npz", "--against", tmp_path / "net.tflite", "--workers", 1)
    summary = evaluated(capsys, *words)
    assert summary["float"]["agreement"]["value"] == 1
    assert summary["float"]["snr_db"] is None or summary["float"]["snr_db"] > 30  # None: no difference


@pytest.mark.parametrize("ends", ["int8", "uint8"])
def test_against_a_quantized_tflite_file_gives_the_interpreters_classes(ends, capsys, tmp_path):
    """Its convolutions share a zero point, as those of TensorFlow's converter do."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ai_edge_litert")
    from support.tflite_kinds import quantized_file
    from support.tflite_writer import interpreted

    data = quantized_file(ends)
    (tmp_path / "net.tflite").write_bytes(data)
    samples = np.random.default_rng(2).normal(0, 1, (40, 1, 1, 2)) * np.ones((6, 6, 2), np.float32)
    points = np.rint(samples / 0.02) + (0 if ends == "int8" else 128)
    elements = np.clip(points, np.iinfo(ends).min, np.iinfo(ends).max).astype(ends)
    labels = np.array([interpreted(data, sample[None])[0].argmax() for sample in elements])
    np.savez(tmp_path / "data.npz", x=samples.astype(np.float32), y=labels)
    nvdla.compile(tmp_path / "net.tflite", "nv_small").save(tmp_path / "net.nvpkg")
    words = (tmp_path / "net.nvpkg", tmp_path / "data.npz", "--against", tmp_path / "net.tflite", "--workers", 1)
    summary = evaluated(capsys, *words)
    assert len(set(labels.tolist())) > 1
    assert summary["float"]["top1"]["value"] == 1
    assert summary["float"]["reference"] == "TFLite's reference kernels"
    main(["evaluate", *map(str, words)])
    assert "TFLite's reference kernels" in capsys.readouterr().out
    assert summary["float"]["snr_db"] is None or summary["float"]["snr_db"] > 25


@pytest.mark.parametrize("ending", ["nvdla", "nvpkg"])
def test_against_a_tflite_file_whose_output_is_an_image_compares_its_elements_in_order(ending, capsys, tmp_path):
    """TFLite's is (N, H, W, C), that of a loadable (N, C, H, W)."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ai_edge_litert")
    from support.tflite_kinds import quantized_file

    (tmp_path / "net.tflite").write_bytes(quantized_file("int8", has_mean=False))
    samples = np.random.default_rng(2).normal(0, 1, (10, 6, 6, 2)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=samples, y=np.zeros(10, int))
    nvdla.compile(tmp_path / "net.tflite", "nv_small").save(tmp_path / f"net.{ending}")
    words = (tmp_path / f"net.{ending}", tmp_path / "data.npz", "--against", tmp_path / "net.tflite", "--workers", 1)
    summary = evaluated(capsys, *words)
    assert summary["float"]["snr_db"] > 25 and summary["float"]["agreement"]["value"] is None  # has no classes


def test_against_a_tflite_file_takes_onnxruntime_without_the_interpreter(monkeypatch, tmp_path):
    """The settings of a journal have the reference: results of both are not joined."""
    pytest.importorskip("onnxruntime")
    from support.tflite_kinds import quantized_file

    (tmp_path / "net.tflite").write_bytes(quantized_file("int8"))
    nvdla.compile(tmp_path / "net.tflite", "nv_small").save(tmp_path / "net.nvdla")
    np.savez(tmp_path / "data.npz", x=np.ones((1, 2, 6, 6), np.float32), y=[0])
    source = open_source(str(tmp_path / "data.npz"))

    def table():
        return Evaluation(str(tmp_path / "net.nvdla"), source, against=str(tmp_path / "net.tflite"), trusted=True)

    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    without = table()
    assert without.reference == "onnxruntime"
    (record,) = without.open()(list(without.tasks()))
    assert "error" not in record and "reference" not in without.settings()
    monkeypatch.undo()
    pytest.importorskip("ai_edge_litert")
    assert table().settings()["reference"] == "TFLite's reference kernels"
    assert table().identity() != without.identity()
    without._reference = "TFLite's optimized kernels"  # of another machine
    with pytest.raises(nvdla.FormatError, match="reference: must be TFLite's optimized kernels as on the machine"):
        without.open()


@pytest.mark.parametrize(
    ("shapes", "outputs", "problem"),
    [
        ([(1, 3, 8, 8)], 10, "input x0: must be 1x1x28x28 as in the network, got 1x3x8x8"),
        ([(1, 1, 28, 28), (1, 2)], 10, "inputs: must be 1, as in the network, got 2 (x0, x1)"),
        ([(1, 1, 28, 28)], 7, "output y: must have 10 numbers as in the network, got 7"),
    ],
)
def test_a_float_model_of_another_network_is_named(shapes, outputs, problem, capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    from onnx import save_model

    from tests.compiler.frontend.models import model, node

    inputs = {f"x{number}": shape for number, shape in enumerate(shapes)}
    nodes = [node("Flatten", "x0", "flat"), node("Gemm", "flat w", "y")]
    if len(shapes) > 1:
        nodes = [nodes[0], node("Gemm", "flat w", "real"), node("ReduceSum", "x1", "sum"), node("Add", "real sum", "y")]
    held = {"w": np.zeros((int(np.prod(shapes[0])), outputs), "f4")}
    save_model(model(nodes, inputs, {"y": None}, held), tmp_path / "other.onnx")
    words = ["evaluate", str(LENET), str(SAMPLES / "digits.npz"), "--limit", "2", "--workers", "1"]
    assert main([*words, "--against", str(tmp_path / "other.onnx")]) == 2
    advice = "Give the model that the network was compiled from."
    assert f"{tmp_path / 'other.onnx'}: {problem}. {advice}" in capsys.readouterr().err


def test_a_float_model_with_integer_inputs_gets_integers_of_its_own_scale(capsys, tmp_path):
    """QLinearConv reads its int8 input without DequantizeLinear."""
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, save_model

    from tests.compiler.frontend.models import model, node

    held = {"w": np.ones((2, 1, 1, 2), "i1"), "s": np.float32(0.5), "z": np.int8(3), "wz": np.int8(0)}
    held["w"][1] = -1
    net = model([node("QLinearConv", "x s z w s wz s z", "y")], {"x": (1, 1, 1, 2)}, {"y": (1, 2, 1, 1)}, held)
    for end in (*net.graph.input, *net.graph.output):
        end.type.tensor_type.elem_type = TensorProto.INT8
    save_model(net, tmp_path / "net.onnx")
    compiled = nvdla.compile(net, "nv_small")
    compiled.save(tmp_path / "net.nvpkg")
    samples = np.array([[[[4, 6]]], [[[-9, 2]]], [[[7, 1]]], [[[-3, -8]]]], "f4")
    np.savez(tmp_path / "data.npz", x=samples, y=(samples.sum(axis=(1, 2, 3)) < 0).astype(int))
    words = (tmp_path / "net.nvpkg", tmp_path / "data.npz", "--against", tmp_path / "net.onnx", "--workers", 1)
    assert evaluated(capsys, *words)["float"]["top1"]["value"] == 1


@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_the_float_model_takes_samples_before_they_are_quantized(kind, capsys, tmp_path):
    """Two elements less than one int8 step apart: only the float model sees which one is larger."""
    pytest.importorskip("onnxruntime")
    from onnx import save_model

    from nvdla.tensors.inputs import Preprocessing
    from tests.compiler.frontend.models import model, node

    net = model(
        [node("Conv", "x w", "y")], {"x": (1, 1, 1, 2)}, {"y": (1, 1, 1, 2)}, {"w": np.ones((1, 1, 1, 1), "f4")}
    )
    save_model(net, tmp_path / "net.onnx")
    scaled = Preprocessing(scale=(1 / 255,))
    ends = np.array([[[[-1, 1]]]], "f4")
    nvdla.compile(net, "nv_small", "int8", ends, preprocessing=scaled).save(tmp_path / "net.nvdla")
    pixels = np.array([[[[level, level + 1]]] for level in range(20, 200, 7)], np.uint8)
    samples = pixels if kind == "uint8" else (pixels / 255).astype("f4")
    np.savez(tmp_path / "data.npz", x=samples, y=np.ones(len(samples), np.int64))
    words = (tmp_path / "net.nvdla", tmp_path / "data.npz", "--against", tmp_path / "net.onnx", "--workers", 1)
    summary = evaluated(capsys, *words)
    assert summary["float"]["top1"]["value"] == 1 > summary["top1"]["value"]


def test_a_package_with_a_host_part_is_evaluated_in_every_worker(tmp_path):
    """The process of a host part belongs to the worker that opened it, not to the process that the worker copies."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(1)
    nodes = [node("Conv", "x w", "a"), node("CumSum", "a axis", "b"), node("Conv", "b w", "y")]
    held = {"w": rng.normal(size=(3, 3, 1, 1)).astype("f4"), "axis": np.array(2)}
    net = model(nodes, {"x": (1, 3, 4, 4)}, {"y": (1, 3, 4, 4)}, held)
    samples = rng.normal(size=(40, 3, 4, 4)).astype(np.float32)
    compiled = nvdla.compile(net, "nv_small", "int8", samples[:8])
    assert len(compiled.parts) == 3
    compiled.save(tmp_path / "net.nvpkg")
    labels = [int(compiled.run(sample[None])["y"].argmax()) for sample in samples]
    np.savez(tmp_path / "data.npz", x=samples, y=np.array(labels))
    # A process of its own, which has no threads, so that the workers are copies of it.
    words = ["evaluate", tmp_path / "net.nvpkg", tmp_path / "data.npz", "--workers", "2", "--json"]
    done = subprocess.run([sys.executable, "-m", "nvdla", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert (summary["samples"], summary["top1"]["value"]) == (40, 1)


def test_one_number_has_no_classes_also_for_a_metric(capsys, tmp_path, monkeypatch):
    """A detector of persons with one sigmoid: the metric judges it, and no accuracy of its greatest number is told."""
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(4, 1, 3, 3)).astype("f4"), "v": rng.normal(size=(4, 1)).astype("f4")}
    nodes = [node("Conv", "x w", "c"), node("GlobalAveragePool", "c", "g"), node("Flatten", "g", "f")]
    nodes += [node("Gemm", "f v", "z"), node("Sigmoid", "z", "y")]
    data = rng.normal(size=(20, 1, 8, 8)).astype("f4")
    graph = model(nodes, {"x": (1, 1, 8, 8)}, {"y": (1, 1)}, constants)
    (tmp_path / "net.onnx").write_bytes(graph.SerializeToString())
    nvdla.compile(tmp_path / "net.onnx", "nv_small", calibration=data).save(tmp_path / "net.nvdla")
    np.savez(tmp_path / "data.npz", x=data, y=np.arange(20) % 2)
    (tmp_path / "p_of_one.py").write_text(
        "def right(outputs, label): return float((outputs[0] > 0.5) == bool(label))\n"
    )
    monkeypatch.chdir(tmp_path)
    words = (tmp_path / "net.nvdla", tmp_path / "data.npz", "--metric", "p_of_one:right", "--against", "net.onnx")
    summary = evaluated(capsys, *words)
    assert summary["metric"]["count"] == 20 if "count" in summary["metric"] else summary["metric"]["value"] >= 0
    assert not {"top1", "top5", "classes", "confusion"} & set(summary) and "top1" not in summary["float"]
    assert main(["explore", str(tmp_path / "net.nvdla"), "--data", str(tmp_path / "data.npz")]) in (0, 1)
    assert "nvdla evaluate with a --metric" in capsys.readouterr().err
    np.savez(tmp_path / "reals.npz", x=data, y=rng.random(20).astype("f4"))
    assert main(["explore", str(tmp_path / "net.nvdla"), "--data", str(tmp_path / "reals.npz")]) in (0, 1)
    assert "no accuracy: their labels are not classes" in "".join(capsys.readouterr())


def test_a_metric_judges_labels_of_any_size(capsys, tmp_path, monkeypatch, digits):
    """Masks, or fewer numbers than the output has: the function gets them as they are."""
    np.savez(tmp_path / "data.npz", images=digits[0][:3], labels=np.ones((3, 2), "f4"))
    (tmp_path / "sizes_of_labels.py").write_text("def size(outputs, label): return float(len(label))\n")
    monkeypatch.chdir(tmp_path)
    summary = evaluated(capsys, LENET, tmp_path / "data.npz", "--metric", "sizes_of_labels:size")
    assert summary["metric"]["value"] == 2 and "squared_error" not in summary
    assert main(["evaluate", LENET, str(tmp_path / "data.npz")]) == 2
    assert "2 numbers as label, the network returns 10" in capsys.readouterr().err
