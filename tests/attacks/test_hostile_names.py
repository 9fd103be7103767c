"""Files with names and scales of layers (YAML, JSON): read as data, within limits, or refused in one line."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

import nvdla
from nvdla.checks.compare.runs import _entries
from nvdla.compiler.builder import compiler as written
from nvdla.program import naming
from nvdla.program.naming import from_calibration, from_sidecar, from_yaml


def bomb(table: str, prefix: str) -> str:
    """Lists of lists that are shared: 9^11 entries once they are written out."""
    lines = [f"{table}:", f"  {prefix}0: &a0 [x]"]
    lines += [f"  {prefix}{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return "\n".join(lines)


YAML = {
    "calls": ("scales: !!python/object/apply:os.system ['touch owned']", "tag: must be omitted"),
    "nested": ("layers: " + "[" * 20_000, "must be nested at most"),
    "bomb": (bomb("scales", "conv"), "must be at most 64"),
    "bomb_as_layer": (bomb("layers", "0/"), "must be at most 64"),
    "merged": ("scales: &a {conv1: 1}\nlayers: {<<: *a}", "merge keys"),
    "shared": ("scales: {conv0: &a [x], conv1: [*a, *a]}", "scale: must be"),
    "nan": ("scales: {conv1: .nan}", "got nan"),
    "infinite": ("scales: {conv1: .inf}", "got inf"),
    "number_of_thousands_of_digits": (
        f"scales: {{conv1: 0x{'f' * 9000}}}",
        "must have at most 400 characters, got 9002",
    ),
    "key_of_thousands_of_digits": (f"scales:\n  ? 0x{'f' * 9000}\n  : x", "must have at most 400 characters, got 9002"),
    "operation_of_thousands_of_digits": (
        f"layers:\n  ? 0x{'f' * 9000}\n  : x",
        "must have at most 400 characters, got 9002",
    ),
    "no_text": ("\x00\x01", "must be YAML"),
    "keys_of_other_kinds": ("{1: 2, [a]: b}", "a key must be a scalar"),
}
JSON = {
    "nested": ("[" * 100_000, "must be JSON"),
    "nan": ('{"conv1": {"scale": NaN}}', "got nan"),
    "beyond_floats": ('{"conv1": {"scale": 1' + "0" * 400 + "}}", "scale: must be"),
    "digits": ('{"conv1": {"scale": 1' + "0" * 9000 + "}}", "must be JSON"),
    "list": ("[1, 2]", "calibration table: must be a mapping"),
    "half_a_pair": ('{"\\ud800": {"scale": 1}}', "must be JSON.*surrogates"),
}


def refused(read, path, message):
    began = time.process_time()
    with pytest.raises(nvdla.NvdlaError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert time.process_time() - began < 5


@pytest.mark.parametrize("name", YAML)
def test_a_layer_file_that_is_more_than_names_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, message = YAML[name]
    (tmp_path / "names.yaml").write_text(text)
    refused(from_yaml, tmp_path / "names.yaml", message)
    assert os.listdir(tmp_path) == ["names.yaml"]


@pytest.mark.parametrize("name", JSON)
def test_a_calibration_table_that_is_none_is_refused(name, tmp_path):
    text, message = JSON[name]
    (tmp_path / "table.json").write_text(text)
    refused(from_calibration, tmp_path / "table.json", message)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", '"x"', "1" + "0" * 400, "[1]"])
def test_numbers_that_are_none_in_a_layer_file_or_a_list_of_hashes_are_refused(number, tmp_path):
    operation = f'{{"index": {number}, "layer": "a"}}'
    data = f'{{"format": "nvdla-layers", "version": 1, "tasks": [{{"task": {number}, "operations": [{operation}]}}]}}'
    (tmp_path / "x.nvdla.layers.json").write_text(data)
    (tmp_path / "hashes.json").write_text(f'[{{"task": {number}, "op": 0, "type": "sdp"}}]')
    if number[:4] == "1000":
        return  # an integer, if a strange one
    refused(from_sidecar, tmp_path / "x.nvdla", "a task: must have a number|must be JSON")
    refused(_entries, tmp_path / "hashes.json", "must be a list of operations")


@pytest.mark.parametrize("name", [r"\ud800", r"x\udfffx", "\ud800"], ids=["escaped", "inside", "as bytes"])
def test_half_of_a_surrogate_pair_in_a_layer_file_is_refused(name, tmp_path):
    """No page, graph or terminal takes such text; a whole pair is a character."""
    text = (
        '{"format": "nvdla-layers", "version": 1, "tasks": [{"task": 0, "operations": [{"index": 0, "layer": "%s"}]}]}'
    )
    path = tmp_path / "x.nvdla.layers.json"
    path.write_bytes((text % name).encode("utf-8", "surrogatepass"))
    refused(from_sidecar, tmp_path / "x.nvdla", "must be JSON")
    path.write_text(text % r"\ud83e\udd80")
    assert from_sidecar(tmp_path / "x.nvdla").layers == {(0, 0): "\U0001f980"}


def test_an_implicit_layer_file_that_is_a_pipe_does_not_block(tmp_path):
    """A pipe beside a loadable, which no one writes to; one that is too large is refused."""
    os.mkfifo(tmp_path / "x.nvdla.layers.json")
    found = []
    reader = threading.Thread(target=lambda: found.append(from_sidecar(tmp_path / "x.nvdla")), daemon=True)
    reader.start()
    reader.join(5)
    assert found and not found[0].layers
    with open(tmp_path / "y.nvdla.layers.json", "wb") as stream:
        stream.truncate(naming.MAX_FILE + 1)
    refused(from_sidecar, tmp_path / "y.nvdla", "must have at most 16777216")


def test_a_layer_file_is_written_whole(tmp_path, monkeypatch):
    """Not through a name that somebody may have put there."""
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "x.nvdla.layers.json.tmp").symlink_to(tmp_path / "elsewhere")
    written.save({"format": "nvdla-layers", "version": 1, "tasks": []}, tmp_path / "x.nvdla")
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert json.loads((tmp_path / "x.nvdla.layers.json").read_text())["version"] == 1
