"""What else comes in: manifests of data, journals, devices, settings, numbers on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.emulator.trace.commands import TraceFolder
from nvdla.errors import ConfigError, FormatError, LoadableError, TraceError
from nvdla.experiments.campaign.journal import read
from nvdla.experiments.evaluation import open_source
from nvdla.interop.containers.irpa_format import external_parameter

needs_devices = pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
DEEP = "[" * 100_000

LABELS = {
    "NaN": "got 'nan'",
    "Infinity": "got 'inf'",
    "1e400": "got 'inf'",
    "{}": "got '{}'",
    "null": "got nothing",
    "[NaN, 1]": "must be finite numbers",
    '["a"]': "must be finite numbers",
    "[[1], [2, 3]]": "must be finite numbers",
    DEEP + "]" * 100_000: "a line must be",
    "9" * 5000: "a line must be",
}


@pytest.mark.parametrize("label", LABELS, ids=lambda label: label[:12])
def test_labels_of_a_manifest_are_classes_names_or_finite_numbers(label, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(f'{{"path": "a.png", "label": 1}}\n{{"path": "b.png", "label": {label}}}\n')
    with pytest.raises(FormatError, match=f"data.jsonl:2: .*{LABELS[label]}"):
        open_source(str(path))


def test_a_manifest_names_files_below_its_own_folder_alone(tmp_path):
    """Somebody else's manifest does not make the tool open the user's other files."""
    inside, outside = tmp_path / "inside", tmp_path / "outside.pgm"
    inside.mkdir()
    for path in (outside, inside / "a.pgm"):
        path.write_bytes(b"P5\n2 2\n255\n1234")
    manifest = inside / "data.csv"
    for name in ("../outside.pgm", str(outside), "x/../../outside.pgm", "/etc/passwd"):
        manifest.write_text(f"path,label\na.pgm,1\n{name},1\n")
        with pytest.raises(FormatError, match=r"data\.csv:3: sample .* must be below .*inside\. .*--root DIR"):
            open_source(str(manifest))
    (inside / "link.pgm").symlink_to(outside)
    manifest.write_text(f"path,label\na.pgm,1\nlink.pgm,1\n{inside / 'a.pgm'},1\n")
    source = open_source(str(manifest))
    assert source.sample(0).value == source.sample(2).value == inside / "a.pgm"
    with pytest.raises(FormatError, match=r"sample link\.pgm: must be below"):
        source.sample(1)
    manifest.write_text("path,label\ninside/a.pgm,1\noutside.pgm,1\ninside/link.pgm,1\n")
    wider = open_source(str(manifest), root=str(tmp_path))
    assert [wider.sample(number).value.exists() for number in range(3)] == [True] * 3
    with pytest.raises(FormatError, match=r"--root .*: must be a directory"):
        open_source(str(manifest), root=str(tmp_path / "nowhere"))
    with pytest.raises(FormatError, match=r"--root .*: must be given with a manifest"):
        open_source(str(inside), root=str(tmp_path))


@needs_pipes
def test_a_pipe_and_a_link_to_nothing_are_damaged_samples(tmp_path, capsys):
    from nvdla.cli.main import main

    samples = Path(__file__).resolve().parents[2] / "samples"
    folder = tmp_path / "data" / "7"
    folder.mkdir(parents=True)
    (folder / "a.pgm").write_bytes((samples / "digit7.pgm").read_bytes())
    (folder / "gone.pgm").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe.pgm")
    (folder / "folder.pgm").mkdir()
    assert main(["evaluate", str(samples / "lenet.loadable"), str(folder.parent), "--json", "--workers", "1"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert (summary["samples"], summary["damaged"]) == (1, 2)
    assert [each["id"] for each in summary["problems"]] == ["7/gone.pgm", "7/pipe.pgm"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,label\n" + "x" * 200_000 + ",3\n", "data.csv:2: must be CSV: field larger"),
        ("a.png," + "l" * 200_000 + "\n", "data.csv:1: must be CSV: field larger"),
        ("a.png\n", "a row must be path,label"),
        ("a.png,\n", "got nothing"),
    ],
)
def test_broken_csv_names_the_line(text, said, tmp_path):
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(FormatError, match=said):
        open_source(str(tmp_path / "data.csv"))


def test_labels_that_are_names_and_numbers_are_names(tmp_path):
    """One of them that is no number made the others an internal error."""
    (tmp_path / "data.csv").write_text("a.png,cat\nb.png,1\nc.png,cat\n")
    source = open_source(str(tmp_path / "data.csv"))
    assert source.classes == ["1", "cat"]
    assert [source.sample(number).label for number in range(3)] == [1, 0, 1]
    (tmp_path / "data.jsonl").write_text('{"path": "a", "label": "cat"}\n{"path": "b", "label": [1, 2]}\n')
    with pytest.raises(FormatError, match="labels must be of one kind"):
        open_source(str(tmp_path / "data.jsonl"))


def test_many_names_of_classes_take_a_second(tmp_path):
    (tmp_path / "data.csv").write_text("".join(f"a.png,name{number}\n" for number in range(60_000)))
    start = time.perf_counter()
    assert len(open_source(str(tmp_path / "data.csv")).classes or ()) == 60_000
    assert time.perf_counter() - start < 5


def test_labels_of_arrays_are_finite(tmp_path):
    np.savez(tmp_path / "data.npz", images=np.zeros((2, 1, 2, 2), np.int8), labels=np.array([[1.0], [np.inf]]))
    with pytest.raises(FormatError, match="labels must be finite numbers, got NaN or infinity"):
        open_source(str(tmp_path / "data.npz"))


@needs_pipes
def test_a_pipe_that_a_file_names_is_refused_at_once(tmp_path):
    """A reader of the pipe waits for its other end."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "data.csv").write_text("pipe.png,1\n")
    with pytest.raises(FormatError, match="must be a file, got a directory, pipe or device"):
        open_source(str(tmp_path / "data.csv")).sample(0)
    with pytest.raises(FormatError, match="got a directory, pipe or device"):
        next(read(tmp_path / "pipe.png"))


@needs_devices
def test_devices_that_never_end_are_no_files(samples, nvdla_command, tmp_path):
    with pytest.raises(LoadableError, match="/dev/zero must be a file or a pipe, got a device"):
        nvdla.load("/dev/zero")
    lenet, digit = samples / "lenet.loadable", samples / "digit3.pgm"
    (tmp_path / "zero.npy").symlink_to("/dev/zero")
    for words in (
        ["inspect", "/dev/zero"],
        ["run", lenet, "-i", digit, "--class-names", "/dev/zero"],
        ["run", lenet, "-i", tmp_path / "zero.npy"],
        ["compare", lenet, "-i", digit, "--float", "/dev/zero"],
        ["container", "list", "/dev/zero"],
        ["container", "edit", "/dev/zero", "--erase", "x"],
        ["evaluate", lenet, samples / "digits.npz", "--samples", "/dev/zero"],
        ["explore", lenet, "--samples", "/dev/zero"],
        ["csb", "/dev/zero"],
        ["trace", "replay", "/dev/zero", "--config", "nv_small"],
    ):
        start = time.perf_counter()
        code, _, error = nvdla_command(*words)
        assert code == 2, words
        assert error.count("\n") == 1 and "internal error" not in error, error
        assert time.perf_counter() - start < 5, words


def test_a_journal_with_a_line_without_end_is_refused(tmp_path, samples, nvdla_command):
    with open(tmp_path / "journal.jsonl", "wb") as stream:
        stream.truncate(20 << 20)
    words = [samples / "lenet.loadable", "--samples", tmp_path / "journal.jsonl", "--resume"]
    code, _, error = nvdla_command("explore", *words)
    assert code == 2
    assert "more than 16777216 bytes is not a record" in error


@needs_pipes
def test_a_loadable_may_come_out_of_a_pipe(samples):
    """Whether it is a package was looked up in the pipe's first bytes, which were gone then."""
    command = [sys.executable, "-m", "nvdla", "run", "/dev/stdin", "-i", str(samples / "digit7.pgm"), "--json"]
    done = subprocess.run(command, input=(samples / "lenet.loadable").read_bytes(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--tolerance", "nan"], "must be a finite number from 0"),
        (["run", "--tolerance", "-1"], "must be a finite number from 0"),
        (["run", "--top", "1" * 5000], "must be a whole number"),
        (["run", "--threads", "1" * 5000], "must be a whole number"),
        (["run", "--threads", "0"], "must be at least 1"),
        (["run", "--random-input", "-1"], "must be at least 0"),
        (["run", "--profile", "1" * 5000], "must be a whole number, got '1{80}'"),
        (["serve", "--budget", "inf"], "must be a finite number from 1"),
        (["serve", "--timeout", "inf"], "must be a finite number from 0.001"),
        (["serve", "--host", "a" * 5000], "cannot listen on aaa"),
        (["compare", "--tolerance", "inf"], "must be a finite number from 0"),
        (["compare", "--min-cosine", "nan"], "must be a finite number from -1 to 1"),
        (["compare", "--min-snr", "nan"], "must be a finite number"),
        (["compile", "--max-drop", "nan"], "must be a finite number from 0 to 1"),
        (["compile", "--max-drop", "101%"], "must be a finite number from 0 to 100"),
        (["compile", "--mean", "1,nan"], "must be a finite number"),
        (["compile", "--scale", "inf"], "must be a finite number"),
        (["run", "--mean", "inf"], "must be a finite number"),
        (["hexdump", "--offset", "-1"], "must be at least 0"),
    ],
)
def test_numbers_of_options_have_a_range(words, said, nvdla_command):
    """NaN as a tolerance let every difference pass."""
    rest = ["--tvm-rpc", "--port=0"] if words[0] == "serve" else ["net.loadable"]
    code, _, error = nvdla_command(words[0], *rest, f"{words[1]}={words[2]}")
    assert code == 2
    assert said.replace("{80}", "1" * 79) in error
    assert len(error) < 400


@pytest.mark.parametrize("option", ["--line-stride", "--surface-stride", "--image-stride"])
def test_strides_beyond_any_memory(option, samples, nvdla_command):
    words = ["--layout", "feature-x8", "--shape", "1,10,1,1", "--dtype", "int8", f"{option}={'9' * 26}"]
    code, _, error = nvdla_command("tensor", "info", samples / "prob.bin", *words)
    assert code == 2
    assert "internal error" not in error
    if option != "--image-stride":
        words = ["--to-layout", "feature-x8", f"--to{option[1:]}={'9' * 26}"]
        code, _, error = nvdla_command("tensor", "convert", samples / "input.npy", "out.bin", *words)
        assert code == 2 and "must be at most" in error


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mean = [nan]", "must be finite numbers"),
        ("mean = " + "9" * 400, "must be finite numbers"),
        (".".join(["a"] * 20_000) + " = 1", "dotted key: must have at most 64 parts"),
        (".".join(['"a b"'] * 20_000) + " = 1", "dotted key: must have at most 64 parts"),
        ("[" + " . ".join(["a"] * 100) + "]", "dotted key: must have at most 64 parts"),
        ("x = {" + ".".join(["'.'"] * 100) + " = 1}", "dotted key: must have at most 64 parts"),
        ("a = " + "[" * 5000, "must be TOML"),
    ],
)
def test_settings_of_a_folder_take_no_time(text, said, tmp_path):
    """A dotted key of 20,000 parts took 7 s and 1.5 GB in Python's own parser."""
    pytest.importorskip("tomllib")
    from nvdla.cli.settings import read as read_settings

    (tmp_path / "nvdla.toml").write_text(text)
    start = time.perf_counter()
    with pytest.raises(ConfigError, match=said):
        read_settings(tmp_path)
    assert time.perf_counter() - start < 2


def test_settings_of_others_may_hold_many_dots(tmp_path):
    pytest.importorskip("tomllib")
    from nvdla.cli.settings import read as read_settings

    numbers = ", ".join(["1.5"] * 500 + ['"a.b.c"'] * 100)
    (tmp_path / "pyproject.toml").write_text(f'[tool.x]\nx = [{numbers}]\n[tool.nvdla]\nconfig = "nv_large"\n')
    assert read_settings(tmp_path)[0] == {"config": "nv_large"}


def test_dot_text_does_not_steer_the_terminal(samples, nvdla_command, tmp_path):
    path = tmp_path / "a\x1b[31m\x9b\u202eb.loadable"
    path.write_bytes((samples / "lenet.loadable").read_bytes())
    code, out, _ = nvdla_command("graph", path)
    assert code == 0
    assert not set(out) & {"\x1b", "\x9b", "\u202e"}


@pytest.mark.parametrize(
    "words",
    [
        "run {loop} --random-input", "inspect {loop}", "compare {lenet} {loop} --random-input", "container list {loop}",
        "evaluate {loop} {data} --workers 1", "faults {loop} {data} --count 1 --workers 1", "explore {loop}",
        "evaluate {lenet} {loop} --workers 1", "compile {loop} -o {folder}/out", "report {loop} -o {folder}/out",
        "csb {loop}", "trace replay {loop} --config nv_small", "run {lenet} -i {loop}", "diff {lenet} {loop}",
    ],
)  # fmt: skip
def test_links_in_a_circle_are_no_files(words, samples, nvdla_command, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "loop.txn").symlink_to("loop.txn")
    known = {"lenet": samples / "lenet.loadable", "data": samples / "digits.npz", "folder": tmp_path}
    code, _, error = nvdla_command(*words.format(loop=tmp_path / "loop", **known).split())
    assert code == 2 and error.count("\n") == 1 and "internal error" not in error, error


def test_files_that_name_a_link_in_a_circle(tmp_path):
    (tmp_path / "image.dat").symlink_to("image.dat")
    with pytest.raises(TraceError, match="must be a regular file"):
        TraceFolder(tmp_path, 1 << 20)._read("image.dat")
    with pytest.raises(FormatError, match="no such file"):
        external_parameter("x", "image.dat:4:0", tmp_path)


def test_external_data_of_a_model_that_is_a_link_in_a_circle(samples, tmp_path):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(samples / "lenet.onnx")
    onnx.save(model, tmp_path / "x.onnx", save_as_external_data=True, location="data", size_threshold=0)
    (tmp_path / "data").unlink()
    (tmp_path / "data").symlink_to("data")
    with pytest.raises(FormatError, match="must be a file in the model's folder"):
        nvdla.compile(tmp_path / "x.onnx", "nv_small")
