"""Every command that takes a configuration states what of it is not proven: in a line, and in its JSON document."""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvdla.cli.main import COMMANDS, parser_of
from nvdla.emulator.hardware.configuration import configurations, proof

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Note: mine: results are extrapolated for int8 (no network was compared with NVIDIA's C model or RTL)."
#: command -> its words before --config
TAKE_A_CONFIGURATION = {
    "compile": "compile lenet.onnx -o new.loadable --calibrate digits.npz",
    "inspect": "inspect lenet.loadable",
    "run": "run lenet.loadable -i digit7.pgm",
    "layers": "layers lenet.loadable",
    "compare": "compare lenet.loadable lenet.loadable -i digit7.pgm",
    "doctor": "doctor lenet.loadable",
    "lint": "lint lenet.loadable",
    "memory": "memory lenet.loadable",
    "graph": "graph lenet.loadable",
    "cycles": "cycles lenet.loadable",
    "explain": "explain lenet.loadable",
    "timeline": "timeline lenet.loadable",
    "report": "report lenet.loadable -o page.html",
    "export": "export lenet.loadable --node-data nodes",
    "evaluate": "evaluate lenet.loadable digits.npz --limit 5 --workers 1",
    "faults": "faults lenet.loadable digits.npz --count 2 --where weight --workers 1",
    "explore": "explore lenet.loadable --workers 1",
    "program": "program lenet.loadable --format txn -o txn",
    "csb": "csb replay before/input.txn",
    "trace": "trace replay cfg/lenet.cfg",
}
#: they run until they are interrupted (below), or take the configuration as their argument
OTHERS = {"view", "serve", "datasheet", "configs"}


@pytest.fixture
def folder(tmp_path, monkeypatch, nvdla_command):
    for path in (ROOT / "samples").iterdir():
        if path.suffix in (".loadable", ".pgm", ".onnx", ".npz"):
            shutil.copy(path, tmp_path)
    (tmp_path / "mine.yaml").write_text("base: nv_small\nname: mine\ncbuf_bank_depth_entries: 1024\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", TAKE_A_CONFIGURATION)
def test_what_is_not_proven_is_one_line(command, folder, nvdla_command):
    if command == "compile":
        pytest.importorskip("onnxruntime")
    if command in ("csb", "trace"):
        nvdla_command("program", "lenet.loadable", "--format", "txn", "-o", "before")
        nvdla_command("program", "lenet.loadable", "--format", "cfg", "-i", "digit7.pgm", "-o", "cfg")
    words = TAKE_A_CONFIGURATION[command].split()
    code, out, err = nvdla_command(*words, "--config", "mine.yaml")
    assert code in (0, 1), err
    assert [line for line in (out + err).splitlines() if "are extrapolated" in line] == [TEXT]
    code, out, err = nvdla_command(*words, "--config", "nv_small")
    assert "extrapolated" not in out + err
    document = json.loads(nvdla_command(*words, "--config", "mine.yaml", "--json")[1])
    assert document["proof"] == [{"configuration": "mine", "results": {"int8": None}, "cycles": {"int8": None}}]
    document = json.loads(nvdla_command(*words, "--config", "nv_small", "--json")[1])
    assert document["proof"] == [proof(configurations()["nv_small"])]
    assert document["proof"][0]["results"]["int8"].startswith("RTL")


def test_no_command_with_a_configuration_is_left_out():
    def has_option(parser):
        children = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        return any("--config" in action.option_strings for action in parser._actions) or any(
            has_option(child) for choices in children for child in choices.values()
        )

    assert {name for name in COMMANDS if has_option(parser_of(name))} - OTHERS == set(TAKE_A_CONFIGURATION)


def test_a_detected_configuration_is_stated_too(folder, nvdla_command):
    document = json.loads(nvdla_command("inspect", "lenet.loadable", "--json")[1])
    assert [each["configuration"] for each in document["proof"]] == ["nv_small"]
    code, _, err = nvdla_command("datasheet", "mine.yaml", "-o", "page.html")
    assert (code, err) == (0, TEXT + "\n")


@pytest.mark.parametrize("words", ["view lenet.loadable --no-browser", "serve --registers --socket 127.0.0.1:0"])
def test_servers_state_it_when_they_start(words, folder):
    command = [sys.executable, "-m", "nvdla", *words.split(), "--config", "mine.yaml", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        document = json.loads(server.stdout.readline())
        server.terminate()
    assert document["proof"] == [{"configuration": "mine", "results": {"int8": None}, "cycles": {"int8": None}}]


def test_two_sides_of_a_comparison_are_both_stated(folder, nvdla_command):
    words = "compare lenet.loadable lenet.loadable -i digit7.pgm --config nv_small --other-config mine.yaml"
    document = json.loads(nvdla_command(*words.split(), "--json")[1])
    assert [each["configuration"] for each in document["proof"]] == ["nv_small", "mine"]


@pytest.mark.parametrize(
    "words",
    ["color.loadable lenet.loadable --config nv_small", "lenet.loadable color.loadable --other-config nv_small"],
)
def test_of_two_loadables_the_one_that_does_not_fit_is_named(words, samples, folder, nvdla_command):
    shutil.copy(samples / "color_digits_nv_full_fp16.loadable", "color.loadable")
    code, _, err = nvdla_command("compare", *words.split(), "--random-input")
    assert code == 2
    assert err.startswith("nvdla compare: color.loadable: operation ")


def test_the_line_is_printed_once_for_all_parts_of_a_package(folder, nvdla_command):
    from support.packages import write_package

    pytest.importorskip("onnxruntime")
    write_package(folder)
    for command in ("cycles", "run"):
        words = (command, "net.nvpkg", *(("--random-input",) if command == "run" else ("--config", "mine.yaml")))
        _, out, err = nvdla_command(*words)
        assert (out + err).count("extrapolated") == (command == "cycles")
    parts = json.loads(nvdla_command("cycles", "net.nvpkg", "--json")[1])["parts"]
    proofs = [part["document"]["proof"] for part in parts if part["kind"] == "accelerator"]
    assert len(proofs) == 3 and all(each == [proof(configurations()["nv_small"])] for each in proofs)
    assert json.loads(nvdla_command("run", "net.nvpkg", "--random-input", "--json")[1])["proof"] == proofs[0]


def test_the_table_names_features_that_the_configurations_have():
    """A feature with another name would never be found."""
    from nvdla.emulator.hardware.configuration import _packaged

    table = dict(_packaged("proof"))
    assert table.keys() == configurations().keys()
    for name, known in table.items():
        features = proof(configurations()[name])["results"]
        assert all(set(known[kind]) <= set(features) for kind in ("results", "cycles")), name
