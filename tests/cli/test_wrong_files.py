"""Files of every kind given to commands that do not read them."""

import io
import json
import pickle
import shutil
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nvdla.cli.main import main
from nvdla.errors import FormatError, LoadableError
from nvdla.loadable import load
from nvdla.util.recognition import HEADER, KINDS, kind_of

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LOADABLE = SAMPLES / "lenet.loadable"


def zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"{}" * 40)
    return stream.getvalue()


def zip64(name: str) -> bytes:
    """An archive whose end has its numbers in the ZIP64 record alone, as IREE's compiler writes it."""
    data = zipped(name)
    end = data.rindex(b"PK\x05\x06")
    size, start = struct.unpack_from("<II", data, end + 12)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, size, start)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    return data[:end] + record + locator + b"PK\x05\x06" + bytes(4) + b"\xff" * 12 + bytes(2)


def protobuf(*fields: tuple[int, int | bytes]) -> bytes:
    """Fields of a message, with numbers below 128 and contents of less than 128 bytes."""
    result = b""
    for number, value in fields:
        kind = 2 if isinstance(value, bytes) else 0
        key = number << 3 | kind
        result += bytes([key] if key < 128 else [key & 127 | 128, key >> 7])
        result += bytes([len(value)]) + value if isinstance(value, bytes) else bytes([value])
    return result


def tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("notes.txt"))
    return stream.getvalue()


def array(save) -> bytes:
    stream = io.BytesIO()
    save(stream, np.zeros(3))
    return stream.getvalue()


HEADERS = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
#: kind, file name, content: the name contradicts the content in some
FILES = [
    ("loadable", "a.bin", LOADABLE.read_bytes()),
    ("package", "net.nvpkg", zipped("indices.npz", "manifest.json")),
    ("onnx", "net.pb", (SAMPLES / "lenet.onnx").read_bytes()),
    ("cut-onnx", "cut.onnx", (SAMPLES / "lenet.onnx").read_bytes()[:5000]),
    ("tflite", "net.onnx", b"\x1c\0\0\0TFL3" + bytes(60)),
    ("hdf5", "net.h5", b"\x89HDF\r\n\x1a\n" + bytes(60)),
    ("keras", "net.keras", zipped("metadata.json", "config.json", "model.weights.h5")),
    ("pt2", "net.pt2", zipped("net/archive_format", "net/models/model.json", "net/data/weights/w0")),
    ("torch", "net.pth", zipped("archive/data.pkl", "archive/data/0")),
    ("torchscript", "script.pt", zipped("a/data.pkl", "a/code/m.py", "a/constants.pkl")),
    ("pickle", "old.pt", pickle.dumps({"a": 1}, 2)),
    ("graph_def", "frozen.pb", protobuf((1, b"\x0a\x01a\x12\x01B"), (1, b"\x0a\x01b\x12\x01B"), (4, b"\x08\x16"))),
    ("saved_model", "saved_model.pb", protobuf((1, 1), (2, b"\x0a\x04meta"))),
    ("prototxt", "deploy.txt", (SAMPLES / "lenet.prototxt").read_bytes()),
    ("caffemodel", "w.caffemodel", (SAMPLES / "lenet.caffemodel").read_bytes()),
    ("darknet", "yolo.cfg", b"[net]\nwidth=416\n[convolutional]\nfilters=16\n"),
    ("trace", "pooling.cfg", (SAMPLES / "traces" / "pooling.cfg").read_bytes()),
    ("csb", "run.log", b"W 0x0b004 0x1\nR 0x0b004 0x1\n"),
    ("vmfb", "net.vmfb", b"\x10\0\0\0IREE" + bytes(60)),
    ("vmfb", "wrapped.vmfb", zip64("module.fb")),
    ("irpa", "net.irpa", b"IRPA" + bytes(60)),
    ("safetensors", "net.safetensors", struct.pack("<Q", len(HEADERS)) + HEADERS + b"\0"),
    ("gguf", "net.gguf", b"GGUF" + bytes(60)),
    ("tvm-params", "net.params", (0xF7E58D4F05049CB7).to_bytes(8, "little") + bytes(60)),
    ("tar", "net.tar", tar()),
    ("npz", "x.npz", array(np.savez)),
    ("npy", "x.npy", array(np.save)),
    ("dimg", "x.dimg", b"DIMG" + bytes(60)),
    ("image", "x.png", b"\x89PNG\r\n\x1a\n" + bytes(60)),
    ("image", "x.pgm", (SAMPLES / "digit1.pgm").read_bytes()),
    ("other-image", "x.gif", b"GIF89a" + bytes(60)),
    ("zip", "x.zip", zipped("readme.txt")),
    ("cut-zip", "cut.zip", zipped("readme.txt")[:20]),
    ("layers", "a.json", (SAMPLES / "lenet.loadable.layers.json").read_bytes()),
    ("layers", "b.json", b'{\n "accuracy": [\n  {\n   "advice": ""'),
    ("names", "names.yaml", b"layers:\n  0/1: conv1\nscales:\n  conv1: 0.02\n"),
    ("calibration", "calib.json", b'{"conv1": {"scale": 0.02, "min": 0, "max": 0, "offset": 0}}'),
    ("calibration", "calib.cache", b"TRT-8503-EntropyCalibration2\ndata: 3c010a14\n"),
    ("configuration", "mine.yaml", (SAMPLES / "configurations" / "macs_32_128k.yaml").read_bytes()),
    ("settings", "nvdla.toml", b'[tool.nvdla]\nconfig = "nv_large"\n'),
    ("manifest", "manifest.json", b'{"format": "nvdla-package", "version": 1}'),
    ("document", "cycles.json", b'{\n  "format": "nvdla-package",\n  "version": 1,\n  "command": "cycles"'),
    ("table", "e.csv", b"config,precision,bandwidth\n"),
    ("c", "nvdla_port.h", b"#ifndef NVDLA_PORT_H\n#define NVDLA_PORT_H\n"),
    ("labels", "labels.txt", (SAMPLES / "labels.txt").read_bytes()),
    ("labels", "imagenet.txt", b"tench, Tinca tinca\r\ngoldfish\r\n"),
    ("empty", "x", b""),
]
#: words of a command, what it reads, and the kinds that it reads
COMMANDS = [
    (["inspect"], "an NVDLA loadable", {"loadable", "package", "tar"}),
    (["cycles"], "an NVDLA loadable", {"loadable", "package", "tar"}),
    (["lint"], "an NVDLA loadable", {"loadable", "package", "tar"}),
    (["memory"], "an NVDLA loadable", {"loadable", "package", "tar"}),
    (["view"], "an NVDLA loadable", {"loadable", "package", "tar"}),
    (["run", "--random-input"], "an NVDLA loadable", {"loadable", "package", "tar", "cut-zip"}),
    (["compile"], "a model (ONNX, TFLite, PyTorch .pt2 or Caffe)", {"onnx", "cut-onnx", "tflite", "prototxt", "pt2"}),
    (
        ["compile", "--check"],
        "a model (ONNX, TFLite, PyTorch .pt2 or Caffe)",
        {"onnx", "cut-onnx", "tflite", "prototxt", "pt2"},
    ),
    (["trace", "replay", "--config", "nv_small"], "a register trace", {"trace", "empty"}),
    (["csb", "show"], "a log of register accesses", {"csb", "trace"}),
    (
        ["container", "list"],
        "a container",
        {"loadable", "vmfb", "irpa", "safetensors", "gguf", "tvm-params", "tar", "npz", "cut-zip"},
    ),
]


@pytest.fixture(params=FILES, ids=[f"{kind}:{name}" for kind, name, _ in FILES])
def file(request, tmp_path):
    kind, name, content = request.param
    path = tmp_path / name
    path.write_bytes(content)
    return kind, path


def test_a_file_alone_prints_its_kind_and_its_command(file, capsys):
    kind, path = file
    assert kind_of(path) == kind == kind_of(path.read_bytes())
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: {KINDS[kind].title}. {KINDS[kind].advice_for(str(path))}\n"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "nvdla compile " in KINDS[kind].advice])
def test_advice_to_compile_names_the_calibration_data(kind):
    """Models in floats do not compile for int8 without it."""
    assert "--calibrate" in KINDS[kind].advice


#: files that commands write, and their kinds; DIGITS: data, DIR: a directory
WRITTEN = {
    "inspect --json > i.json": "document",
    "evaluate DIGITS --limit 1 --samples s.jsonl": "journal",
    "evaluate DIGITS --limit 1 -o e.json": "document",
    "faults DIGITS --count 1 --limit 1 --table t.csv": "table",
    "run --random-input --dump-ops DIR/index.json": "dump",
    "run --random-input --csb-log c.log": "csb",
    "run --random-input -o o.json": "values",
    "graph -o g.dot": "dot",
    "timeline -o t.json": "timeline",
    "memory --svg m.svg": "page",
    "report -o r.html": "page",
    "program --format c -o DIR/lenet.c": "c",
    "program --format cfg -o DIR/lenet_dram_0.dat": "memory",
    "program --format txn -o DIR/dram_0.dat": "memory",
    "program --format ihex -o DIR/lenet_dram.hex": "memory",
    "program --format json -o DIR/lenet.json": "document",
}


@pytest.mark.parametrize("words", WRITTEN)
def test_files_that_commands_write_are_recognized(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command, *options = words.replace("DIGITS", str(SAMPLES / "digits.npz")).split(" > ")[0].split()
    path = Path(words.split()[-1])
    assert main([command, str(LOADABLE), *(option.replace(f"/{path.name}", "") for option in options)]) == 0
    if ">" in words:
        path.write_text(capsys.readouterr().out)
    assert kind_of(path) == WRITTEN[words]


@pytest.mark.parametrize(("words", "wanted", "takes"), COMMANDS, ids=[" ".join(words) for words, _, _ in COMMANDS])
def test_a_command_names_the_kind_and_the_right_command(words, wanted, takes, file, capsys, monkeypatch):
    kind, path = file
    if kind in {*takes, "c", "labels"}:
        pytest.skip("the command reads this kind, or accepts any text")
    monkeypatch.setenv("NVDLA_TRACEBACK", "1")
    assert main([*words, str(path)]) == 2
    error = capsys.readouterr().err
    if words[0] == "run" and path.read_bytes().startswith(b"PK"):
        wanted = "a package of nvdla compile"
    assert f"{path}: must be {wanted}" in error
    assert f"got {KINDS[kind].title}. {KINDS[kind].advice_for(str(path))}" in error


def test_options_that_run_a_program_of_pytorch_ask_for_its_onnx_model(tmp_path, capsys):
    """A program that is compiled already gets no advice to compile it."""
    path = tmp_path / "net.pt2"
    path.write_bytes(next(content for kind, _, content in FILES if kind == "pt2"))
    pictures = str(SAMPLES / "digits.npz")
    evaluation = ["evaluate", pictures, "--limit", "1", "--against"]
    for words in (["compare", "--random-input", "--onnx"], evaluation, ["layers", "--onnx"]):
        assert main([words[0], str(LOADABLE), *words[1:], str(path)]) == 2
        error = capsys.readouterr().err
        assert f"{path}: must be an ONNX or TFLite model, got a PyTorch program" in error
        assert "Export it as ONNX in Python: torch.onnx.export(torch.export.load(" in error
        assert "nvdla compile" not in error


@pytest.mark.parametrize("option", ["--caffe", "--onnx"])
def test_options_with_models_name_the_kind(option, capsys):
    assert main(["layers", str(LOADABLE), option, str(SAMPLES / "digit1.pgm")]) == 2
    assert "got an image" in capsys.readouterr().err


def test_inputs_of_a_run_name_the_kind(capsys):
    assert main(["run", str(LOADABLE), "--input", str(SAMPLES / "lenet.onnx")]) == 2
    assert "got an ONNX model. Run 'nvdla compile" in capsys.readouterr().err


def test_a_zip_archive_is_no_package(tmp_path, capsys):
    path = tmp_path / "x.nvpkg"
    path.write_bytes(zipped("readme.txt"))
    assert main(["run", str(path), "--input", "x=1.npy"]) == 2
    assert "must be a package of nvdla compile, got a zip archive" in capsys.readouterr().err


def test_directories(tmp_path, capsys):
    saved = tmp_path / "saved model"
    saved.mkdir()
    for words in (["inspect"], ["compile"]):
        assert main([*words, str(saved)]) == 2
        assert "got a directory" in capsys.readouterr().err
    shutil.copy(LOADABLE, saved / "saved_model.pb")
    commands = [["inspect"], ["compile"], ["run", "--random-input"], ["layers", str(LOADABLE), "--onnx"]]
    commands.append(["compare", str(LOADABLE), "--random-input", "--onnx"])
    commands.append(["evaluate", str(LOADABLE), str(SAMPLES / "digits.npz"), "--against"])
    for words in commands:
        assert main([*words, str(saved)]) == 2
        assert f"--saved-model '{saved}'" in capsys.readouterr().err


def test_python_gives_the_same_answer():
    import nvdla

    with pytest.raises(LoadableError, match=r"got an ONNX model\. Run 'nvdla compile"):
        nvdla.load(SAMPLES / "lenet.onnx")
    with pytest.raises(LoadableError, match="got an ONNX model"):
        load((SAMPLES / "lenet.onnx").read_bytes())
    with pytest.raises(FormatError, match=r"got an NVDLA loadable\. Run 'nvdla inspect"):
        nvdla.compile(LOADABLE)


def test_unknown_files_and_words(tmp_path, capsys):
    path = tmp_path / "unknown"
    path.write_bytes(b"\xff\xfe\x01")
    assert main([str(path)]) == 2
    assert "unknown kind of file" in capsys.readouterr().err
    assert main(["no-such-file"]) == 2
    assert "unknown command" in capsys.readouterr().err
    assert main(["net.tflite"]) == 2
    assert capsys.readouterr().err == "nvdla: net.tflite: no such file\n"


def test_a_missing_package_is_reported_with_its_extra(monkeypatch):
    from nvdla.compiler.frontend.isolation import packages

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(FormatError, match=r"package onnx: must be .*'nvdla\[tflite\]' for TFLite"):
        packages()


def test_little_is_read_of_a_large_file(tmp_path, monkeypatch):
    read = []

    class Counting(io.BytesIO):
        def read(self, size=-1):
            data = super().read(size)
            read.append(len(data))
            return data

    monkeypatch.setattr("nvdla.util.recognition.io.BytesIO", Counting)
    names = [f"{i:0100}" for i in range(20_000)]
    assert kind_of(zipped(*names)) == "zip"
    assert sum(read) < 3 * (1 << 16)
    read.clear()
    assert kind_of(b"\x08\x01" * 1_000_000) == ""
    assert sum(read) < HEADER + 64 * 20 + 1


def test_compile_looks_at_the_model_before_it_asks_for_an_output(tmp_path, nvdla_command):
    (tmp_path / "notes.txt").write_text("hello world\n", encoding="utf-8")
    for words in ([], ["-o", tmp_path / "net.loadable"]):
        _, _, err = nvdla_command("compile", tmp_path / "nothere.onnx", *words)
        assert "nothere.onnx cannot be read: No such file" in err
        _, _, err = nvdla_command("compile", tmp_path / "notes.txt", *words)
        assert "notes.txt: must be a model (ONNX, TFLite, PyTorch .pt2 or Caffe), got a text file" in err


@pytest.fixture
def damaged(lenet_loadable, plant, tmp_path):
    """LeNet with a consumer that does not exist."""

    def change(task):
        task.operation(0).common.consumers[2].index = 99

    plant(lenet_loadable, change).save(tmp_path / "damaged.loadable")
    return tmp_path / "damaged.loadable"


@pytest.mark.parametrize("command", ["diff", "compare"])
def test_bad_descriptors_of_one_of_two_loadables_are_reported_with_the_file(command, damaged, samples, nvdla_command):
    whole, words = samples / "lenet.loadable", () if command == "diff" else ("-i", samples / "digit7.pgm")
    for files in ((whole, damaged), (damaged, whole)):
        code, _, err = nvdla_command(command, *files, *words)
        assert code == 2
        assert err.startswith(f"nvdla {command}: {damaged}: task 0, blob 'task-0-dep_graph', CommonOpDesc[0]"), err


def test_a_deadlock_of_one_of_two_loadables_is_reported_with_the_file(plant, samples, tmp_path, nvdla_command):
    def change(task):
        task.operation(0).common.dependency_count = 3

    whole, file = samples / "lenet.loadable", tmp_path / "stuck.loadable"
    plant(load(whole), change).save(file)
    shutil.copy(f"{whole}.layers.json", f"{file}.layers.json")
    for files in ((whole, file), (file, whole)):
        _, _, err = nvdla_command("compare", *files, "-i", samples / "digit7.pgm")
        assert err.startswith(f"nvdla compare: {file}: task 0 can make no progress"), err


def test_a_finding_about_a_task_states_the_task_once(damaged, nvdla_command):
    code, out, _ = nvdla_command("lint", damaged)
    assert code == 1 and "    task 0: blob 'task-0-dep_graph', CommonOpDesc[0]" in out
    (finding,) = json.loads(nvdla_command("lint", damaged, "--json")[1])["findings"]
    assert (finding["task"], finding["evidence"][:6]) == (0, "blob '")


@pytest.mark.parametrize("text", ["hello\n", "a = 1; b = 2\n", "7\n"])
def test_every_command_recognizes_a_text_file(text, tmp_path, nvdla_command):
    (tmp_path / "notes.txt").write_text(text, encoding="utf-8")
    for command in ("inspect", "compile", "cycles", "explore"):
        assert "got a text file" in nvdla_command(command, tmp_path / "notes.txt")[2]
