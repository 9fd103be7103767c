"""``--input-scale`` and ``--scales`` of every command, and the command that an error suggests."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest

import nvdla
from nvdla.cli.main import COMMANDS

SCALE = 2.0
WORDS = {
    "run": (),
    "compare": ("--onnx", "lenet.onnx"),
    "doctor": (),
    "report": ("-o", "page.html"),
    "program": ("--format", "cfg", "-o", "net.cfg"),
    "export": ("--node-data", "data"),
}


@pytest.fixture
def bare(samples, tmp_path, monkeypatch):
    """A loadable without a layer file, a model, an input of real numbers and a table, in the current directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("lenet.loadable", "lenet.onnx", "lenet_nv_large.loadable"):
        shutil.copy(samples / name, tmp_path)
    from PIL import Image

    digit = np.asarray(Image.open(samples / "digit7.pgm")).astype("f4")
    np.save("in.npy", digit[None, None])
    entry = {"scale": SCALE, "min": 0, "max": 0, "offset": 0}
    (tmp_path / "table.json").write_text(json.dumps({"data": entry}))
    (tmp_path / "names.yaml").write_text("layers: {0/7: ip1_relu, 0/11: ip3}\n")
    return "lenet.loadable", "-i", "in.npy"


def commands_with_inputs():
    """Every command whose arguments have ``--input-scale`` of :func:`add_input_options`."""
    import argparse
    import importlib

    found = []
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"nvdla.cli.{name.replace('-', '_')}").configure(parser)
        options = {option for action in parser._actions for option in action.option_strings}
        if {"--input-scale", "--random-input"} <= options:
            assert "--scales" in options, name
            found.append(name)
    return found


def test_every_command_with_inputs_is_tried_here():
    assert set(commands_with_inputs()) == {*WORDS, "view"}  # view waits for a browser, and has the options of report


@pytest.mark.parametrize("command", WORDS)
def test_the_suggested_command_works(nvdla_command, bare, command):
    more = WORDS[command] if command != "compare" else (*WORDS[command], "--layers", "names.yaml")
    code, out, err = nvdla_command(command, *bare, *more)
    assert (code, out) == (2, "")
    assert err.startswith(
        f"nvdla {command}: lenet.loadable: input data: unknown scale: must be known for floating-point values, got int8"
    )
    assert "or copy the layer file (if any) to lenet.loadable.layers.json." in err
    suggested = shlex.split(re.search("Run 'nvdla (.*)'", err)[1])
    assert suggested[0] == command and suggested[-2] == "--input-scale"
    assert float(suggested[-1].removeprefix("data=")) == pytest.approx(SCALE, rel=1e-5)
    code, _, err = nvdla_command(*suggested)
    assert code == 0, err


@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize(
    "options", [("--input-scale", f"data={SCALE}"), ("--input-scale", str(SCALE)), ("--scales", "table.json")]
)
def test_every_command_obeys_both_options(nvdla_command, bare, command, options):
    more = WORDS[command] if command != "compare" else (*WORDS[command], "--layers", "names.yaml")
    code, _, err = nvdla_command(command, *bare, *more, *options)
    assert code == 0, err


@pytest.mark.parametrize("option", ["--scales", "--layers"])
def test_a_layer_file_as_a_table_is_refused_with_the_place_for_it(nvdla_command, bare, samples, option):
    sidecar = samples / "lenet.loadable.layers.json"
    words = "compare", *bare, "--onnx", "lenet.onnx"
    code, _, err = nvdla_command(*words, option, sidecar)
    assert code == 2
    assert err.endswith(", got a layer file. Copy it to LOADABLE.layers.json.\n")
    shutil.copy(sidecar, "lenet.loadable.layers.json")
    assert nvdla_command(*words)[0] == 0


def test_the_scale_is_that_of_the_run(nvdla_command, bare, samples):
    """Twice the scale is half of every element."""
    tops = []
    for scale in (SCALE, 2 * SCALE):
        nvdla_command("program", *bare, "--format", "cfg", "-o", f"{scale:.1f}.cfg", "--input-scale", scale)
        code, out, _ = nvdla_command("compare", *bare, "--onnx", "lenet.onnx", "--layers", "names.yaml",
                                     "--input-scale", scale, "--json")  # fmt: skip
        assert code == 0
        tops.append(json.loads(out)["tensors"][0]["scale"])
        assert json.loads(out)["tensors"][0]["snr_db"] > 15
    wanted = nvdla_command("run", samples / "lenet.loadable", "-i", samples / "digit7.pgm", "--json")[1]
    given = nvdla_command("run", *bare, "--input-scale", SCALE, "--json")[1]
    assert json.loads(given)["outputs"][0]["top"] == json.loads(wanted)["outputs"][0]["top"]


def test_two_loadables_take_one_scale(nvdla_command, bare):
    words = "compare", bare[0], "lenet_nv_large.loadable", *bare[1:]
    code, _, err = nvdla_command(*words)
    assert code == 2 and "unknown scale" in err
    assert nvdla_command(*words, "--input-scale", SCALE)[0] == 0
    for command, more in (("report", ("-o", "two.html")), ("export", ("--node-data", "two"))):
        code, _, err = nvdla_command(
            command, bare[0], "lenet_nv_large.loadable", *bare[1:], *more, "--input-scale", SCALE
        )
        assert code == 0, err


@pytest.mark.parametrize("command", ["evaluate", "faults"])
def test_campaigns_take_a_scale_too(nvdla_command, bare, command, tmp_path):
    np.savez(tmp_path / "data.npz", images=np.load("in.npy"), labels=np.array([7]))
    more = ("--count", "3") if command == "faults" else ()
    code, _, err = nvdla_command(command, bare[0], "data.npz", *more)
    assert code == 2 and "--input-scale" in err
    suggested = shlex.split(re.search("Run 'nvdla (.*)'", err)[1])
    code, _, err = nvdla_command(*suggested)
    assert code == 0, err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("other=2", "--input-scale other=2: no such input: must be one of data, got other"),
        ("nan", "--input-scale nan: must be a positive number, got 'nan'"),
        ("data=-1", "--input-scale data=-1: must be a positive number, got '-1'"),
        ("data=", "--input-scale data=: must be a positive number, got ''"),
    ],
)
@pytest.mark.parametrize("command", WORDS)
def test_a_bad_scale_is_one_line(nvdla_command, bare, command, text, problem):
    code, out, err = nvdla_command(command, *bare, *WORDS[command], "--input-scale", text)
    assert (code, out) == (2, "") and err == f"nvdla {command}: {problem}\n"


def test_a_missing_scale_names_the_loadable_and_what_the_layer_file_has(tmp_path, samples, nvdla_command):
    """Names of tensors that were changed are missing in the layer file; of two loadables the one without is named."""
    from nvdla.compiler.builder.edit import rename

    edited, bare = tmp_path / "edited.loadable", tmp_path / "bare.loadable"
    rename(nvdla.load(samples / "lenet.loadable"), {"data": "image"}).save(edited)
    shutil.copy(samples / "lenet.loadable.layers.json", f"{edited}.layers.json")
    code, _, err = nvdla_command("run", edited, "--input", samples / "digit7.pgm")
    assert code == 2 and f"{edited}: input image: unknown scale ({edited}.layers.json has none for it, but" in err
    shutil.copy(samples / "lenet.loadable", bare)
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 28, 28), np.float32))
    code, _, err = nvdla_command("report", samples / "lenet.loadable", bare, "--input", tmp_path / "x.npy")
    assert code == 2 and f"{bare}: input data: unknown scale" in err
