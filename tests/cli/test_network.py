"""Main commands as methods of a loadable or package: keywords are options, results are tables."""

import json
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest

import nvdla
from nvdla.cli import network
from nvdla.compiler.builder.edit import rename
from nvdla.loadable import load as load_loadable
from tests.support.packages import write_package


@pytest.fixture
def net(samples):
    return nvdla.load(samples / "lenet.loadable")


def test_ten_lines_do_what_the_main_commands_do(net, samples, tmp_path):
    assert net.run(samples / "digit7.pgm")["prob"].argmax() == 7
    assert [row["type"] for row in net.operations][:3] == ["CONV", "SDP", "PDP"]
    assert net.cycles().document["total_cycles"] > net.cycles(latency=10).document["total_cycles"]
    assert [row["type"] for row in net.cycles(by="type")] == ["conv", "cpu", "sdp", "pdp"]
    assert net.memory(dram_base=1 << 31).document["spaces"][0]["base"] == 1 << 31
    assert {row["rule"] for row in net.lint(config="nv_large")} > set()
    table = net.compare(samples / "lenet_nv_large.loadable", samples / "digit7.pgm")
    assert len(table) == 6 and table.document["format"] == "nvdla-compare"
    assert str(tmp_path) not in repr(table)
    pixels = np.zeros((1, 1, 28, 28), np.int8)
    assert len(net.compare(samples / "lenet_nv_large.loadable", pixels)) == 6
    net.report(tmp_path / "page.html", samples / "digit7.pgm", class_names=samples / "labels.txt")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_a_method_gives_what_the_command_prints(net, samples, nvdla_command):
    path = samples / "lenet.loadable"
    assert net.cycles(bandwidth=8, shared=True).document == json.loads(
        nvdla_command("cycles", path, "--bandwidth", 8, "--shared", "--json")[1]
    )


def test_the_inputs_of_a_network_are_given_as_for_a_run(tmp_path):
    pytest.importorskip("onnx")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(1, 8, 4, 4)).astype("f4") for name in ("x", "z")}
    source = model(
        [node("Add", "x z", "s"), node("Relu", "s", "y")], dict.fromkeys(arrays, (1, 8, 4, 4)), {"y": (1, 8, 4, 4)}
    )
    compiled = nvdla.compile(source, calibration={name: array.repeat(4, 0) for name, array in arrays.items()})
    path = tmp_path / "sum.nvdla"
    compiled.save(path)
    files = []
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        files.append(f"{name}={tmp_path / name}.npy")
    two = nvdla.load(path)
    expected = two.compare(path, input=files).rows
    for given in (arrays, list(arrays.values()), tuple(word.split("=")[1] for word in files), files):
        assert two.compare(path, given).rows == two.compare(path, input=given).rows == expected
        two.report(tmp_path / "page.html", given)
    assert two.compare(path, arrays, other_input=arrays).rows == expected
    with pytest.raises(nvdla.NvdlaError, match="no such input: must be one of x, z"):
        two.compare(path, {"x": arrays["x"], "w": arrays["z"]})


def test_printing_a_result_shows_what_the_command_prints_on_a_terminal(net, samples, monkeypatch, nvdla_command):
    monkeypatch.setenv("COLUMNS", "100")
    rows = net.cycles(by="layer")
    assert str(rows) == nvdla_command("cycles", samples / "lenet.loadable", "--by", "layer")[1].rstrip()
    assert str(pickle.loads(pickle.dumps(rows))) == repr(rows)
    compared = net.compare(samples / "lenet.onnx", np.zeros((1, 1, 28, 28), np.int8))
    assert "4 tensors compared" in str(compared) and "\x1b" not in str(compared)


def test_a_notebook_shows_lists_of_operations_as_numbers_and_shapes_as_shapes(net, samples):
    table = net.compare(
        samples / "lenet_nv_large.loadable", samples / "digit3.pgm", other_input=str(samples / "digit7.pgm")
    )
    rows = [re.findall("<td>(.*?)</td>", row) for row in table._repr_html_().split("<tr>")[2:]]
    heads = re.findall("<th>(.*?)</th>", table._repr_html_())
    shown = [dict(zip(heads, row, strict=True)) for row in rows]
    assert [(row["fused"], row["shape"]) for row in shown][:2] == [("0, 1", "1x6x12x12"), ("3, 4", "1x16x4x4")]
    assert shown[-1]["fused"] == "" and shown[0]["first"].startswith("n=0, c=0, h=")
    assert "1x28x28" in net.cycles()._repr_html_()


def test_explain_gives_one_row_per_convolution_or_operation(net, samples, tmp_path, nvdla_command):
    table = net.explain(latency=60)
    printed = json.loads(nvdla_command("explain", samples / "lenet.loadable", "--latency", 60, "--json")[1])
    assert table.document == printed and len(table) == 5
    assert table.rows == [{**row, "part": 0} for row in printed["convolutions"]]
    (pooling,) = net.explain("0/2")
    assert pooling["engine"] == "PDP" and pooling["bound"] and not net.explain("0/2").document["convolutions"]
    assert net.explain("conv2").document["evaluated"][0]["changes"]
    with pytest.raises(nvdla.NvdlaError, match="operations are 0/0"):
        net.explain("conv9")
    write_package(tmp_path)
    rows = nvdla.load(tmp_path / "net.nvpkg").explain()
    assert {row["part"] for row in rows} == {0, 2, 4} and {tuple(row) for row in rows} == {tuple(table[0])}


def test_the_gain_of_a_change_has_its_cycles_and_memory(net):
    """Of one layer alone: cycles without and with the best change, on the memory that the document states."""
    for bandwidth in (1, 8):
        table = net.explain(bandwidth=bandwidth)
        offered = {"bytes_per_cycle": bandwidth, "accepted_bytes_per_cycle": bandwidth}
        assert table.document["memory"] == {"latency_cycles": 100, **offered, "shared": False}
        for row in table:
            (layer,) = net.explain(row["operation"], bandwidth=bandwidth).document["evaluated"]
            best = layer["changes"][0]
            assert (row["change"], row["change_cycles"]) == (best["change"], best["cycles"])
            assert row["change_saves"] == 1 - row["change_cycles"] / row["change_before_cycles"]
            assert row["change_per_image"] or row["change_before_cycles"] == layer["cycles"] > row["cycles"]


def test_a_notebook_shows_the_parts_and_the_ends_of_a_package(tmp_path):
    write_package(tmp_path)
    package = nvdla.load(tmp_path / "net.nvpkg")
    page = package._repr_html_()
    manifest = package._package.manifest
    assert f"net.nvpkg: 5 parts for {manifest['config']}" in page
    assert page.count("<td>accelerator</td>") == 3 and page.count("<td>host</td>") == 2
    assert all(f"<td>input</td><td>{name}</td>" in page for name in manifest["inputs"])
    assert all(f"<td>output</td><td>{name}</td>" in page for name in manifest["outputs"])
    assert "0 tasks" not in page


def test_a_table_in_a_notebook_has_no_tables_in_its_cells(net):
    """The registers of an operation are a table of their own: they are in the rows, and not in a cell."""
    table = net.explain("conv1")
    assert {row["field"] for row in table[0]["fields"]} > {"entry_per_slice", "data_bank"}
    page = table._repr_html_()
    assert "<th>cycles</th>" in page
    assert "<th>fields</th>" not in page and "<th>values</th>" not in page and "entry_per_slice" not in page


def test_a_wrong_keyword_is_refused_with_the_nearest_name(net):
    with pytest.raises(TypeError, match="cycles: unknown keyword 'bandwith': did you mean 'bandwidth'"):
        net.cycles(bandwith=8)
    with pytest.raises(TypeError, match="run: unknown keyword 'reel': did you mean 'real'"):
        net.run(None, reel=True)
    with pytest.raises(TypeError, match="load: unknown keyword 'limit': did you mean 'limits'"):
        nvdla.load(net.name, limit=None)
    with pytest.raises(nvdla.NvdlaError, match="invalid choice: 'kind'"):
        net.cycles(by="kind")


def test_compare_takes_the_options_of_the_command(samples):
    """``--different`` filters rows, ``--golden`` needs no model, and ``--input`` may have its own name."""
    flipped, digit = nvdla.load(samples / "flipped.loadable"), samples / "digit3.pgm"
    rows = flipped.compare(samples / "lenet.loadable", input=digit, different=True)
    assert {row["result"] for row in rows} == {"different"} and len(rows) == 4
    golden = nvdla.load(samples / "lenet.loadable").compare(golden=samples / "golden", input=digit)
    assert {row["result"] for row in golden} == {"exact"}


def test_an_option_that_prints_a_list_is_an_error_in_python(net, capsys):
    with pytest.raises(nvdla.NvdlaError, match=r"got one that prints a list\. Run 'nvdla cycles --board=list'"):
        net.cycles(board="list")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda path: nvdla.compile("no.onnx", calibrate="images"),
            "compile: .*'calibrate': did you mean 'calibration'",
        ),
        (lambda path: nvdla.compile("no.onnx", precison="int8"), "compile: .*'precison': did you mean 'precision'"),
        (lambda path: nvdla.compile("no.onnx", per_chanel=True), "compile: .*'per_chanel': did you mean 'per_channel'"),
        (lambda path: nvdla.Runtime(path, confg="nv_small"), "Runtime: .*'confg': did you mean 'config'"),
        (lambda path: nvdla.Runtime(path).run("x.pgm", reel=True), "Runtime.run: .*'reel': did you mean 'real'"),
    ],
)
def test_unknown_keywords_are_refused_before_any_work(samples, call, message):
    with pytest.raises(TypeError, match=message):
        call(samples / "lenet.loadable")


def test_a_network_is_a_loadable(net, samples):
    plain = load_loadable(samples / "lenet.loadable")
    assert isinstance(net, nvdla.Loadable) and net == plain and plain == net
    assert net.memory(1) == plain.memory(1)
    again = pickle.loads(pickle.dumps(net))
    assert again == net and len(again.cycles()) == len(net.cycles())
    changed = rename(net, {"data": "image"})
    assert changed != net
    assert "image" in str(changed.memory().rows) and "image" not in str(net.memory().rows), "the old file was read"


def test_tables_become_data_frames(net, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(nvdla.NvdlaError, match=r"package pandas: must be installed: pip install pandas"):
        net.cycles().to_pandas()
    monkeypatch.undo()
    pandas = pytest.importorskip("pandas")
    frame = net.cycles().to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame["operation"])[:2] == ["0/0", "0/1"]


def test_one_row_is_not_one_rows():
    assert [repr(network.ResultTable("cycles of net", rows, {})) for rows in ([{}], [{}, {}])] == [
        "<cycles of net: 1 row>",
        "<cycles of net: 2 rows>",
    ]


def test_a_package_has_the_same_methods(tmp_path):
    pytest.importorskip("onnxruntime")
    write_package(tmp_path)
    net = nvdla.load(tmp_path / "net.nvpkg")
    assert "Package" in repr(net) and " parts>" in repr(net)
    assert {row["part"] for row in net.cycles()} == {row["part"] for row in net.operations}
    assert net.cycles().document["totals"]["host_nodes"] > 0
    assert net.run(np.load(tmp_path / "x.npy"))["y"].shape == (1, 4, 8, 8)
    again = pickle.loads(pickle.dumps(net))
    assert again.cycles().rows == net.cycles().rows
    assert net == net and net != nvdla.load(tmp_path / "net.nvpkg/part0.loadable")
    with pytest.raises(nvdla.NvdlaError, match="must be a loadable, got a package"):
        nvdla.Runtime(net)


def test_the_tables_of_a_package_are_those_of_its_loadables(tmp_path):
    pytest.importorskip("onnxruntime")
    write_package(tmp_path)
    net = nvdla.load(tmp_path / "net.nvpkg")
    for table in (lambda: net.tasks, lambda: net.blob("tb-0"), lambda: net.inputs, lambda: net.memory(0), net.to_bytes):
        with pytest.raises(nvdla.FormatError, match=r"net.nvpkg: must be a loadable, got a package.*part0\.loadable'"):
            table()
    assert nvdla.load(tmp_path / "net.nvpkg/part0.loadable").tasks


def test_help_teaches():
    text = subprocess.run(
        [sys.executable, "-c", "import nvdla; help(nvdla)"], capture_output=True, text=True, check=True
    ).stdout
    for name in ("nvdla.load", "nvdla.compile", "net.run", "net.cycles", "net.explain", "net.compare", "to_pandas"):
        assert name in text, name
    for name in network.ROWS:
        assert getattr(nvdla.LoadedNetwork, "operations" if name == "inspect" else name).__doc__


def test_reading_a_loadable_imports_neither_numba_nor_the_compiler(samples):
    program = "import sys, nvdla; nvdla.load(sys.argv[1]); print(*sys.modules)"
    command = [sys.executable, "-c", program, str(samples / "lenet.loadable")]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"numba", "numpy", "argparse", "nvdla.compiler.frontend"} & set(modules)
