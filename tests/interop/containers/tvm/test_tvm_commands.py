"""TVM's containers through the command line, as a user meets them."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from support.plain_loadable import plain_loadable
from support.tvm_library import SOURCE, library

import nvdla
from nvdla.cli.main import main
from nvdla.interop.containers import registry
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
    assert "(cut off?)" in out
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
    assert run("verify", "--warnings-as-errors", path)[0] == 0
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
    assert run("verify", "--warnings-as-errors", target)[0] == 0
    first = target.read_bytes()
    time.sleep(0.01)
    assert run("create", target, tmp_path / "net.nvdla", "--option", "name=net")[0] == 0
    assert target.read_bytes() == first
    code, _, errors = run("create", target, tmp_path / "net.nvdla", "--option", "registry=1.0")
    assert (code, errors.count("\n")) == (2, 1)
    assert target.read_bytes() == first


LENET, DIGIT = (Path(__file__).parents[4] / "samples" / name for name in ("lenet.loadable", "digit7.pgm"))


@pytest.fixture
def lenet_library(run, tmp_path):
    """The sample LeNet as a model library."""
    assert run("convert", LENET, tmp_path / "net.tar")[0] == 0
    return tmp_path / "net.tar"


def test_a_library_becomes_the_loadable_again(run, lenet_library, tmp_path):
    assert run("convert", lenet_library, tmp_path / "net.nvdla")[0] == 0
    assert nvdla.load(tmp_path / "net.nvdla") == nvdla.load(LENET)
    assert (tmp_path / "net.nvdla").read_bytes() == nvdla.load(LENET).to_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--all", "--json"),
        ("run", "--json", "--input", DIGIT),
        ("lint", "--json"),
        ("cycles", "--json"),
        ("memory", "--json"),
        ("graph", "--json"),
        ("doctor", "--json"),
        ("hexdump", "task-0-op_list"),
    ],
)
def test_commands_open_a_library_as_the_loadable_in_it(nvdla_command, lenet_library, tmp_path, words):
    """Its output equals that for the loadable, except for the file name and the time of a run."""
    command, *rest = words
    shutil.copy(LENET, tmp_path / "net.nvdla")
    if command == "hexdump":
        found = [nvdla_command(command, tmp_path / name, *rest) for name in ("net.tar", "net.nvdla")]
    else:
        found = [nvdla_command(command, *rest, tmp_path / name) for name in ("net.tar", "net.nvdla")]
    one, two = (re.sub(r'(_ms|seconds)": [\d.e-]+', "", out.replace("net.nvdla", "net.tar")) for _, out, _ in found)
    assert found[0][0] == found[1][0] == 0, found[0][2]
    assert len(one) > 200
    assert one == two


def test_python_opens_a_library_too(lenet_library):
    import nvdla.interop.containers

    result = nvdla.Runtime(lenet_library).run(DIGIT)
    assert result["prob"].argmax() == 7
    assert nvdla.load(lenet_library).name == str(lenet_library)


def test_one_of_several_models_is_chosen_by_name(run, nvdla_command, lenet_library, tmp_path):
    other = LENET.with_name("lenet_nv_large.loadable")
    both = tmp_path / "both.tar"
    assert run("create", both, LENET, other)[0] == 0
    code, _, error = nvdla_command("inspect", both)
    assert (code, error.count("\n")) == (2, 1)
    assert "must contain one model, got lenet, lenet_nv_large. 'nvdla container convert" in error
    target = tmp_path / "large.nvdla"
    assert run("convert", both, target, "--option", "name=lenet_nv_large")[0] == 0
    assert nvdla.load(target) == nvdla.load(other)
    assert "must be one of lenet, lenet_nv_large, got 'x'" in run("convert", both, target, "--option", "name=x")[2]


def test_a_library_of_another_compiler_has_no_loadable(nvdla_command, tmp_path):
    (tmp_path / "other.tar").write_bytes(library())
    code, _, error = nvdla_command("run", tmp_path / "other.tar")
    assert (code, error.count("\n")) == (2, 1)
    assert "other.tar: model 'net': must be made from a loadable" in error


def test_a_library_with_a_damaged_loadable_is_refused(nvdla_command, lenet_library, tmp_path):
    """The checks of loadables apply: a task with an event that does not exist."""
    container = registry.open(lenet_library)
    path = "executor-config/nvdla/lenet.json"
    schedule = json.loads(bytes(container.library.files[path].data))
    schedule["loadable"]["events"] = []
    lenet_library.write_bytes(container.library.repack({path: json.dumps(schedule).encode()}))
    code, _, error = nvdla_command("inspect", lenet_library)
    assert (code, error.count("\n")) == (2, 1)
    assert "net.tar: task_list[0].post_actions[0]: must be the id of an existing event, got 0" in error


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
