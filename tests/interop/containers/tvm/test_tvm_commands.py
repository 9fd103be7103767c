"""TVM's containers through the command line, as a user meets them."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from support.plain_loadable import plain_loadable
from support.tvm_library import SOURCE, library

from nvdla.cli.main import main
from nvdla.interop.containers.tvm import params
from nvdla.tensors.parameters import Parameter


@pytest.fixture
def run(capsys):
    """Runs ``nvdla container ...``; exit code, output, errors."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main(["container", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights.params"
    path.write_bytes(
        params.write(
            [Parameter.from_array("b", np.arange(3, dtype=np.float32)), Parameter.from_array("a", np.array([True]))],
            order="given",
        )
    )
    return path


def test_a_parameter_file_is_found_by_content_and_listed(run, tmp_path, weights):
    renamed = weights.rename(tmp_path / "anything.at.all")
    code, out, _ = run("list", renamed, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["container"] == "tvm-params"
    rows = [(row["name"], row["dtype"], row["shape"]) for row in document["rows"]]
    assert rows == [("b", "float32", [3]), ("a", "bool", [1])]


def test_a_truncated_parameter_file_fails_verification_in_one_line(run, weights):
    weights.write_bytes(weights.read_bytes()[:-1])
    code, out, _ = run("verify", weights)
    assert code == 1
    assert "cut short" in out
    code, _, errors = run("list", weights)
    assert code == 2
    assert errors.count("\n") == 1


def test_converting_to_the_same_format_sorts_by_name_and_takes_a_dialect(run, tmp_path, weights):
    target = tmp_path / "old.params"
    assert run("convert", weights, target, "--option", "dialect=0.8")[0] == 0
    tensors = params.read(target.read_bytes(), "0.8").tensors
    assert [(t.name, t.dtype) for t in tensors] == [("a", (1, 1, 1)), ("b", (2, 32, 1))]


def test_a_library_is_verified_extracted_and_repacked(run, tmp_path):
    path = tmp_path / "library.tar"
    path.write_bytes(library())
    assert run("verify", "--strict", path)[0] == 0
    assert run("extract", path, "-o", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "codegen" / "host" / "src" / "net_lib0.c").read_bytes() == SOURCE
    assert run("verify", tmp_path / "out")[0] == 0
    assert run("convert", path, tmp_path / "again.tar")[0] == 0
    assert (tmp_path / "again.tar").read_bytes() == path.read_bytes()
    path.write_bytes(library(graph=None))
    code, out, _ = run("verify", path)
    assert code == 1
    assert "missing" in out


def test_the_memory_of_a_library_is_shown_as_a_table(run, tmp_path):
    path = tmp_path / "library.tar"
    path.write_bytes(library())
    memory = json.loads(run("list", path, "--json")[1])["info"]["memory"]
    assert memory == [
        {"module": "net", "function": "main", "device": 1, "workspace_bytes": 0, "constants_bytes": 6, "io_bytes": 10}
    ]
    assert "workspace bytes" in run("list", path)[1]


def test_a_loadable_becomes_a_library(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    plain_loadable().save(tmp_path / "net.nvdla")
    target = tmp_path / "net.tar"
    assert run("create", target, tmp_path / "net.nvdla")[0] == 0
    assert run("verify", "--strict", target)[0] == 0
    first = target.read_bytes()
    time.sleep(0.01)
    assert run("create", target, tmp_path / "net.nvdla", "--option", "name=net")[0] == 0
    assert target.read_bytes() == first
    code, _, errors = run("create", target, tmp_path / "net.nvdla", "--option", "registry=1.0")
    assert (code, errors.count("\n")) == (2, 1)
    assert target.read_bytes() == first


def test_a_library_of_nothing_is_refused(run, tmp_path):
    code, _, errors = run("create", tmp_path / "net.tar")
    assert code == 2
    assert "at least one loadable" in errors
    assert not (tmp_path / "net.tar").exists()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--tvm-rpc", "--models", "/nowhere"),
        ("--tvm-rpc", "--port", "70000"),
        ("--tvm-rpc", "--connections", "0"),
        ("--tvm-rpc", "--host", "256.0.0.1"),
    ],
)
def test_serve_refuses_what_it_cannot_serve(words, capsys):
    assert main(["serve", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
