"""Every command's ``--json`` is one document in one frame, and is what the schema of its format in docs/json says."""

from __future__ import annotations

import argparse
import csv
import importlib
import io
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nvdla.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "docs" / "json"
LOG = "program lenet.loadable --format riscv-txn --input digit7.pgm -o txn"
#: schema -> commands whose output it describes; the last is the one that is checked, the others make its files
RUNS: dict[str, list[str]] = {
    "cache": ["cache info"],
    "compare": ["compare lenet.loadable lenet_nv_large.loadable -i digit7.pgm"],
    "compile": ["samples digit -o digits", "compile lenet.onnx --calibrate digits -o new.loadable"],
    "configs": ["configs"],
    "container-disassemble": [],
    "container-edit": ["container create --fill a=4xf32=1 a.irpa", "container edit a.irpa --erase a"],
    "container-extract": ["container extract lenet.loadable -o parts"],
    "container-formats": ["container formats"],
    "container-list": ["container list lenet.loadable"],
    "container-run": [],
    "container-verify": ["container verify lenet.loadable"],
    "container-write": ["container convert lenet.loadable weights.npz"],
    "csb-accesses": [LOG, "csb txn/lenet.txn"],
    "csb-diff": [LOG, "program color_digits.loadable --format txn -o other", "csb diff txn/lenet.txn other/input.txn"],
    "csb-operations": [LOG, "csb txn/lenet.txn --operations"],
    "csb-replay": [LOG, "csb replay txn/lenet.txn --config nv_small"],
    "csb-verify": [],
    "cycles": ["cycles lenet.loadable --by layer"],
    "datasheet": ["datasheet nv_small lenet.loadable -o page.html"],
    "diff": ["diff lenet.loadable lenet_nv_large.loadable"],
    "doctor": ["doctor lenet.loadable -i digit7.pgm"],
    "error": ["inspect missing.loadable"],
    "evaluation": ["evaluate lenet.loadable digits.npz --limit 10"],
    "explain": ["explain lenet.loadable --alternatives", "explain lenet.loadable 0/3 --area --power"],
    "export": ["export lenet.loadable --node-data folder"],
    "exploration": ["explore lenet.loadable --bandwidth 1 --latency 50"],
    "faults": ["faults lenet.loadable digits.npz --count 12 --where weight,mac"],
    "extract": ["extract lenet.loadable tb-0 -o blob.bin"],
    "graph": ["graph lenet.loadable"],
    "hexdump": ["hexdump lenet.loadable task-0-op_list"],
    "inspect": ["inspect color_digits.loadable --all"],
    "layers-found": ["layers lenet.loadable --caffe lenet.prototxt --dry-run"],
    "lint": ["lint lenet.loadable --config nv_full"],
    "lint-rules": ["lint --rules"],
    "memory": ["memory lenet.loadable"],
    "package": [],
    "program": ["program lenet.loadable --format list"],
    "program-summary": [LOG],
    "report": ["report lenet.loadable -o page.html"],
    "report-folder": ["report . -o pages"],
    "run": ["run lenet.loadable -i digit7.pgm --stats --profile 1 --compare prob.npy"],
    "samples": ["samples"],
    "self-test": ["program --self-test --config nv_small --board baremetal -o kit"],
    "serve": [],
    "view": [],
    "tensor": ["tensor layout --layout feature-x8 --shape 1,20,3,4"],
    "timeline": ["timeline lenet.loadable"],
    "trace": [
        "program lenet.loadable --format cfg -i digit7.pgm -o cfg",
        "trace replay cfg/lenet.cfg --config nv_small",
    ],
    "version": ["version --verbose"],
}
SILENT = {"completion"}
"""A command that prints no data: a script for the shell."""
WITHOUT_ROWS = {"error", "trace", "self-test"}
"""Commands that print lines, and one that is slow: a variant of ``program-summary``."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the samples and a golden output that is wrong."""
    for path in (ROOT / "samples").iterdir():
        if path.suffix in (".loadable", ".json", ".pgm", ".onnx", ".npz", ".prototxt"):
            shutil.copy(path, tmp_path)
    np.save(tmp_path / "prob.npy", np.zeros((1, 10, 1, 1), np.int8))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [name for name, lines in RUNS.items() if lines])
def test_documents_are_what_their_schemas_say(name, folder, nvdla_command, as_documented):
    if name == "compile":
        pytest.importorskip("onnxruntime", reason="the extra nvdla[onnx] is not installed")
    *before, last = RUNS[name]
    for line in before:
        nvdla_command(*shlex.split(line))
    code, out, err = nvdla_command(*shlex.split(last), "--json")
    assert code == (2 if name == "error" else code) and code in (0, 1, 2), err
    document = json.loads(out)
    assert document["format"] == f"nvdla-{name}", err
    assert next(iter(document)) == "format"
    as_documented(document)


@pytest.mark.parametrize(
    "line",
    [
        "inspect lenet.loadable --ops",
        "inspect lenet.loadable",
        "cycles lenet.loadable --energy",
        "cycles lenet.loadable --board zcu102-150mhz",
        "memory lenet.loadable --buffers",
        "compile lenet.onnx --config nv_full --precision fp16 -o half.nvdla",
        "compile lenet.onnx --check",
        "evaluate lenet.loadable digits.npz --limit 10 --against lenet.onnx",
        "compare lenet.loadable --onnx lenet.onnx -i digit7.pgm",
    ],
)
def test_documents_of_other_options_are_what_their_schemas_say(line, folder, nvdla_command, as_documented):
    if ".onnx" in line:
        pytest.importorskip("onnxruntime", reason="the extra nvdla[onnx] is not installed")
    code, out, err = nvdla_command(*shlex.split(line), "--json")
    assert code in (0, 1), err
    as_documented(json.loads(out))


@pytest.mark.parametrize("name", [name for name, lines in RUNS.items() if lines and name not in WITHOUT_ROWS])
def test_every_command_prints_rows_with_csv(name, folder, nvdla_command):
    if name == "compile":
        pytest.importorskip("onnxruntime", reason="the extra nvdla[onnx] is not installed")
    *before, last = RUNS[name]
    for line in before:
        nvdla_command(*shlex.split(line))
    code, out, err = nvdla_command(*shlex.split(last), "--csv")
    assert code in (0, 1), err
    rows = list(csv.reader(out.splitlines()))
    assert rows and len(rows[0]) == len(set(rows[0])), "a header"
    assert len(rows) > 1 or name in ("lint", "container-verify"), "rows"


def test_a_document_without_a_table_is_one_row(folder, nvdla_command):
    _, out, _ = nvdla_command("extract", "lenet.loadable", "tb-0", "-o", "blob.bin", "--csv")
    assert list(csv.DictReader(out.splitlines())) == [{"blob": "tb-0", "output": "blob.bin", "bytes": "152"}]
    _, out, _ = nvdla_command("run", "lenet.loadable", "-i", "digit7.pgm", "--top", "2", "--tsv")
    assert out.splitlines()[:2] == ["output\timage\tindex\tlabel\tvalue", "prob\t0\t7\t\t127"]


def test_findings_are_rows_of_csv_with_the_same_columns_when_there_are_none(folder, nvdla_command):
    headers = [
        nvdla_command("lint", "lenet.loadable", "--config", name, "--csv")[1] for name in ("nv_small", "nv_full")
    ]
    none, some = (text.splitlines() for text in headers)
    assert none == some[:1]
    assert len(some) > 3


def test_modules_of_iree_are_run_and_disassembled_as_documented(corpus, nvdla_command, as_documented):
    path = next((corpus / "formats").glob("**/arith*.vmfb"))
    as_documented(json.loads(nvdla_command("container", "disassemble", path, "--json")[1]))
    words = ("container", "run", path, "--function", "divrem", "--input", "17", "--input", "5", "--json")
    code, out, _ = nvdla_command(*words)
    as_documented(json.loads(out))
    assert code == 0
    assert [each["value"] for each in json.loads(out)["results"]] == [3, 2]


def test_functions_on_a_device_are_run_as_documented(corpus, nvdla_command, as_documented):
    pytest.importorskip("iree.runtime", reason="the extra nvdla[iree] is not installed")
    path = next((corpus / "formats").glob("**/simple_abs_cpu.vmfb"))
    _, out, _ = nvdla_command("container", "run", path, "--function", "abs", "--input", "f32=-1.5", "--json")
    as_documented(json.loads(out))
    assert "ran_on" in json.loads(out)


def test_a_server_has_its_address_in_the_frame(as_documented):
    for words in ("--registers --config nv_small --socket 127.0.0.1:0", "--tvm-rpc --port 0"):
        command = [sys.executable, "-m", "nvdla", "serve", *words.split(), "--json"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                as_documented(json.loads(server.stdout.readline()))
            finally:
                server.kill()


def test_every_schema_is_tested_and_sound():
    jsonschema = pytest.importorskip("jsonschema", reason="the extra nvdla[test] is not installed")
    for path in SCHEMAS.iterdir():
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))
    assert {path.name.removesuffix(".schema.json") for path in SCHEMAS.iterdir()} == {"frame", *RUNS}


def test_every_key_is_explained():
    for path in SCHEMAS.iterdir():
        schema = json.loads(path.read_text(encoding="utf-8"))
        assert list(unexplained(schema)) == [], path.name
        assert [found for part in schema.get("$defs", {}).values() for found in unexplained(part)] == [], path.name


def unexplained(schema):
    """Keys without a description, at any depth."""
    for key, value in schema.get("properties", {}).items():
        if "const" not in value and "$ref" not in value:
            if not value.get("description"):
                yield key
            yield from unexplained(value)
            yield from unexplained(value.get("items", {}))


def test_schemas_know_every_action_of_the_cache():
    parser = argparse.ArgumentParser()
    importlib.import_module("nvdla.cli.cache").configure(parser)
    action = next(each for each in parser._actions if each.dest == "action")
    schema = json.loads((SCHEMAS / "cache.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"]["action"]["enum"] == list(action.choices or ())


def test_every_command_that_prints_data_has_json():
    for name, (module, _) in COMMANDS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(module).configure(parser)
        text = parser.format_help()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                text = "".join(each.format_help() for each in action.choices.values())
        assert ("--json" in text) != (name in SILENT), name


def test_a_document_of_another_shape_is_refused(as_documented):
    """The schemas would notice a key that is missing, new, or of another type."""
    import jsonschema

    good = {"format": "nvdla-extract", "version": 1, "blob": "a", "output": "b", "bytes": 3}
    as_documented(good)
    for change in ({"bytes": "3"}, {"new": 1}, {"version": 2}):
        with pytest.raises(jsonschema.ValidationError):
            as_documented(good | change)
    with pytest.raises(jsonschema.ValidationError):
        as_documented({key: value for key, value in good.items() if key != "blob"})


@pytest.mark.parametrize(
    "line, error, command",
    [
        ("inspect missing.loadable", "LoadableError", "inspect"),
        ("inspect", "UsageError", "inspect"),
        ("container dance", "UsageError", "container"),
        ("lnit a.loadable", "UsageError", ""),
        ("lint lenet.loadable --config nv_smal", "ConfigError", "lint"),
        ("extract lenet.loadable tb-0 -o no/folder/here.bin", "FormatError", "extract"),
    ],
)
def test_errors_are_documents_too(line, error, command, folder, nvdla_command, as_documented):
    code, out, err = nvdla_command(*shlex.split(line), "--json")
    document = json.loads(out)
    as_documented(document)
    assert code == 2
    assert (document["error"], document["command"]) == (error, command)
    assert document["message"] in err
    assert len(err.splitlines()) == 1


def test_an_error_of_a_layer_names_it_in_a_field_of_its_own(tmp_path, nvdla_command, as_documented):
    """A function whose table needs a known range, where no node may run on the host."""
    onnx = pytest.importorskip("onnx")
    nodes = [onnx.helper.make_node("Softsign", ["x"], ["far"])]
    ends = [onnx.helper.make_tensor_value_info(name, 1, (1, 4, 4, 4)) for name in ("x", "far")]
    net = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:])
    onnx.save(
        onnx.helper.make_model(net, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8), tmp_path / "m.onnx"
    )
    words = ["compile", str(tmp_path / "m.onnx"), "--config", "nv_full", "--precision", "fp16", "--no-host"]
    code, out, _ = nvdla_command(*words, "-o", str(tmp_path / "m.nvdla"), "--json")
    document = json.loads(out)
    as_documented(document)
    assert (code, document["error"], document["layer"]) == (2, "BuildError", "far")


def test_without_json_an_error_is_on_standard_error_alone(folder, nvdla_command):
    assert nvdla_command("inspect")[1] == ""
    assert nvdla_command("inspect", "missing.loadable")[1] == ""


def test_yaml_has_the_same_frame(folder, nvdla_command):
    import yaml

    document = yaml.safe_load(io.StringIO(nvdla_command("inspect", "lenet.loadable", "--yaml")[1]))
    assert (document["format"], document["version"]) == ("nvdla-inspect", 1)
