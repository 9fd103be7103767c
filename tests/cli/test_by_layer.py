"""Layers: sums per layer, names by their beginning, short names of ONNX values, columns of narrow terminals."""

from __future__ import annotations

import json

import pytest

import nvdla
from nvdla.program.operation import layers_meant, short_layer, short_layers
from tests.support.packages import write_package

LONG = "/features/block1/conv/Conv_output_0+a"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package whose first layer has the name of an ONNX value with a path."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("package")
    write_package(folder)
    return folder / "net.nvpkg"


@pytest.mark.parametrize("by", ["layer", "block", "type"])
def test_groups_have_the_sums_of_their_operations(by, samples, nvdla_command):
    words = ("cycles", samples / "color_digits.loadable", "--by", by, "--json")
    document = json.loads(nvdla_command(*words)[1])
    rows, groups = document["operations"], document["groups"]
    key = {"layer": "layer", "type": "engine"}.get(by)
    for total in ("cycles", "macs", "read_bytes", "written_bytes"):
        assert sum(group[total] for group in groups) == sum(row[total] or 0 for row in rows)
        for group in groups if key else ():
            assert group[total] == sum(row[total] or 0 for row in rows if row[key] == group[by])
    assert sum(group["operations"] for group in groups) == len(rows) > len(groups)
    assert [group["cycles"] for group in groups] == sorted((group["cycles"] for group in groups), reverse=True)


def test_groups_follow_the_selected_rows(samples, nvdla_command):
    words = ("cycles", samples / "lenet.loadable", "--by", "layer", "--op", "conv", "--json")
    groups = json.loads(nvdla_command(*words)[1])["groups"]
    assert [group["layer"] for group in groups] == ["conv1+relu1", "conv2+relu2"]
    assert groups[0]["share"] == pytest.approx(0.543, abs=1e-3)


@pytest.mark.parametrize("by", ["layer", "block", "type"])
@pytest.mark.parametrize("column, total", [("cycles", "cycles"), ("read", "read_bytes"), ("macs", "macs")])
def test_the_first_groups_have_the_sums_of_all_their_operations(by, column, total, samples, nvdla_command):
    words = ("cycles", samples / "color_digits.loadable", "--by", by, "--json")
    groups = json.loads(nvdla_command(*words)[1])["groups"]
    first = json.loads(nvdla_command(*words, "--sort", column, "--top", "2")[1])["groups"]
    assert first == sorted(groups, key=lambda group: -group[total])[:2]
    net = nvdla.load(samples / "color_digits.loadable")
    rows = net.cycles(by=by, sort=column, top=2)
    assert [(row[by], row[total]) for row in rows] == [(group[by], group[total]) for group in first]


@pytest.mark.parametrize("by, is_told", [("layer", True), ("block", True), ("type", False)])
def test_a_file_without_layer_names_is_summed_by_engine_with_a_note(by, is_told, samples, tmp_path, nvdla_command):
    net = tmp_path / "net.loadable"  # without its layer file
    net.write_bytes((samples / "lenet.loadable").read_bytes())
    note = "Note: the file has no layer names, so rows are engines; 'nvdla layers' finds them"
    assert (note in nvdla_command("cycles", net, "--by", by)[1]) == is_told
    assert note not in nvdla_command("cycles", samples / "lenet.loadable", "--by", by)[1]


def test_a_name_means_a_whole_layer_before_beginnings():
    layers = ["conv1+relu1", "conv10", "conv2", LONG, None]
    assert layers_meant(layers, "conv1") == {"conv1+relu1"}
    assert layers_meant(layers, "conv10") == {"conv10"}
    assert layers_meant(layers, "conv") == {"conv1+relu1", "conv10", "conv2"}
    assert layers_meant(layers, "relu") == {"conv1+relu1"}
    assert layers_meant(layers, "features/block1") == layers_meant(layers, "/features") == {LONG}
    assert layers_meant(layers, "onv") == layers_meant(layers, "") == set()


@pytest.mark.parametrize(
    "layer, short",
    [
        ("conv1+relu1", "conv1+relu1"),
        (LONG, "features/block1/conv+a"),
        ("/f/f.0/Conv_output_0+/f/f.2/Clip_output_0", "f.0/Conv+f.2/Clip"),
        ("/layer1/layer1.0/conv1/Conv_output_0", "layer1.0/conv1/Conv"),
        ("/Relu_output_0", "Relu"),
        ("a/b_output_0", "a/b_output_0"),
        ("/", "/"),
        (
            "net_1/dw_2_relu/Relu6;net_1/bn/add_1;net_1/dw_2/depthwise;+net_1/dw_2_relu/Relu6;net_1/bn/add_1.2",
            "dw_2_relu/Relu6",
        ),
        ("net/Relu;net/add", "net/Relu"),
        ("Call:0;net/add+b", "Call:0+b"),
        ("layer1.0.down.1+layer1.0.add+layer1.0.relu.2", "layer1.0.down.1+add+relu.2"),
        ("0.conv+1.relu", "0.conv+1.relu"),
        ("conv.2+conv.3", "conv.2+conv.3"),
        ("conv+conv.2", "conv+conv.2"),
        ("a.+a.", "a.+"),
        ("", ""),
    ],
)
def test_names_of_onnx_torch_and_tflite_values_are_shortened(layer, short):
    assert short_layer(layer) == short


def test_explain_takes_the_beginning_of_a_name(samples, nvdla_command):
    def found(name):
        out = nvdla_command("explain", samples / "lenet.loadable", name, "--json")[1]
        return [row["operation"] for row in json.loads(out)["convolutions"]]

    assert found("conv1") == found("conv1+relu1") == ["0/0"]
    assert found("ip") == ["0/6", "0/8", "0/10"]
    code, _, err = nvdla_command("explain", samples / "lenet.loadable", "nothing")
    assert code == 2 and "layers are conv1+relu1, pool1, conv2+relu2" in err


def test_tables_have_short_names_and_documents_whole_ones(package, nvdla_command, monkeypatch):
    path = f"{package}/part0.loadable"
    for by in ((), ("--by", "layer")):
        _, out, _ = nvdla_command("cycles", path, *by)
        assert "features/block1/conv+a" in out and LONG not in out and "--wide" in out
    _, out, _ = nvdla_command("cycles", path, "--wide")
    assert LONG in out
    _, out, _ = nvdla_command("cycles", path, "--csv")
    assert LONG in out
    monkeypatch.delenv("COLUMNS")
    assert LONG in nvdla_command("cycles", path)[1]


def test_a_short_name_of_two_layers_stays_whole(monkeypatch, capsys):
    from nvdla.cli.output import print_table

    monkeypatch.setenv("COLUMNS", "100")
    names = ("/a/Conv_output_0", "/a/Conv_output_1", "/b/Conv_output_0")
    print_table("layers", [{"operation": str(number), "layer": name} for number, name in enumerate(names)])
    out = capsys.readouterr().out
    assert "/a/Conv_output_0" in out and "/a/Conv_output_1" in out and "/b/Conv_output_0" not in out


def test_narrow_terminals_keep_what_the_command_answers(samples, nvdla_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert "15,691" in nvdla_command("cycles", samples / "lenet.loadable")[1]
    monkeypatch.setenv("COLUMNS", "80")
    assert "6 kernels 5x5x1" in nvdla_command("inspect", samples / "lenet.loadable", "--ops")[1]


def test_nodes_that_tflite_has_fused_have_short_names(monkeypatch, capsys):
    from nvdla.cli.output import print_table

    monkeypatch.setenv("COLUMNS", "100")
    fused = "net/relu_1/Relu6;net/bn/add;net/conv/convolution"
    rows = [
        {"name": fused, "op": "Conv"},
        {"name": f"{fused}.2", "op": "Relu"},
        {"name": "/a/Conv_output_0", "op": "Conv"},
    ]
    print_table(
        "nodes", [*rows, {"name": "net/relu_2/Relu;a", "op": "Pad"}, {"name": "net/relu_2/Relu;b", "op": "Pad"}]
    )
    out = capsys.readouterr().out
    assert out.count("relu_1/Relu6") == 2 and "net/bn/add" not in out and "/a/Conv_output_0" in out
    assert "net/relu_2/Relu;a" in out and "net/relu_2/Relu;b" in out and "names are shortened" in out


def test_checks_of_tflite_models_have_short_names_and_the_reasons(corpus, nvdla_command, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    model = corpus / "tflite" / "misc_int8.tflite"
    _, out, _ = nvdla_command("compile", model, "--check")
    assert "functional_1/p_re_lu_1/Neg_1" not in out and "1 node, AveragePool: it needs a transpose" in " ".join(
        out.split()
    )
    code, _, err = nvdla_command("compile", model, "--config", "nv_smal")
    assert code == 2 and "did you mean nv_small?" in err
    assert "functional_1/p_re_lu_1/Neg_1" in nvdla_command("compile", model, "--check", "--wide")[1]
    monkeypatch.setenv("COLUMNS", "200")
    small = corpus / "tflite" / "small_cnn_int8.tflite"
    _, out, _ = nvdla_command("compile", small, "--nodes", "-o", tmp_path / "a.nvdla")
    (row,) = (line for line in out.splitlines() if "operations" in line and "placement" in line)
    assert ";" not in "".join(line[row.index("operations") :] for line in out.partition("\n\n")[0].splitlines())


def test_comparisons_in_80_columns_keep_the_result(monkeypatch, capsys):
    from nvdla.cli import compare
    from nvdla.cli.output import print_table

    monkeypatch.setenv("COLUMNS", "80")
    cells = dict.fromkeys(compare.COLUMNS, "x" * 9)
    row = {**cells, "operation": "output " + "y" * 33, "layer": "z" * 44, "result": "close"}
    print_table("a against b", [row, {**row, "operation": "0/1 SDP"}], compare.COLUMNS, compare.LEAST)
    assert "close" in capsys.readouterr().out


def test_the_scope_of_most_layers_is_omitted():
    fused = "net_1/conv/Relu;net_1/conv/add"
    layers = [fused, "net_1/pool/MaxPool", "net_1/b/c", "net_1/x", None, "Call:0/value"]
    assert short_layers(layers) == {
        fused: "conv/Relu",
        "net_1/pool/MaxPool": "pool/MaxPool",
        "net_1/b/c": "b/c",
        "net_1/x": "net_1/x",
        "Call:0/value": "Call:0/value",
    }
    assert layers_meant(layers, "pool/") == {"net_1/pool/MaxPool"}


FUSED = "net_1/dw_2_relu/Relu6;net_1/bn/add_1;net_1/dw_2/depthwise;+net_1/dw_2_relu/Relu6;net_1/bn/add_1.2"


@pytest.fixture
def fused(samples, tmp_path):
    """LeNet whose layers have names of TFLite's converter."""
    path = tmp_path / "fused.loadable"
    path.write_bytes((samples / "lenet.loadable").read_bytes())
    layers = json.loads((samples / "lenet.loadable.layers.json").read_text())
    for task in layers["tasks"]:
        for operation in task["operations"]:
            operation["layer"] = FUSED.replace("dw_2", operation["layer"].split("+")[0])
    path.with_name("fused.loadable.layers.json").write_text(json.dumps(layers))
    return path


@pytest.mark.parametrize("words", ["memory FILE", "explain FILE", "explain FILE 0/3", "graph FILE -o -"])
def test_commands_shorten_names_of_tflite(words, fused, nvdla_command):
    code, out, _ = nvdla_command(*words.replace("FILE", str(fused)).split())
    assert code == 0
    assert "_relu/Relu6" in out and "add_1" not in out


def test_documents_of_memory_have_whole_names(fused, nvdla_command):
    assert "pool1_relu/Relu6;net_1/bn/add_1;net_1/pool1/depthwise" in nvdla_command("memory", fused, "--json")[1]


def test_blocks_have_the_same_name_everywhere_which_op_accepts(corpus, tmp_path, nvdla_command, monkeypatch):
    """The layers of MobileNet begin with mobilenet_0.25_96_1/, and its operations overlap."""
    pytest.importorskip("onnxruntime")
    path = tmp_path / "net.nvdla"
    model = corpus / "tflite" / "mobilenet_v1_025_96_int8.tflite"
    assert nvdla_command("compile", model, "--config", "nv_small", "-o", path)[0] == 0
    words = ("cycles", path, "--by", "block")
    document = json.loads(nvdla_command(*words, "--json")[1])
    names = [group["block"] for group in document["groups"]]
    assert {"mobilenet_0.25_96_1/conv_dw", "mobilenet_0.25_96_1/conv_pw"} < set(names)
    assert document["overlap_cycles"] < 0 and sum(group["share"] for group in document["groups"]) == pytest.approx(1)
    terminal = nvdla_command(*words, "--wide")[1]
    for name in names:
        assert name in terminal
        for given in (name, name.removeprefix("mobilenet_0.25_96_1/")):  # the page has the short one
            assert json.loads(nvdla_command("cycles", path, "--op", given, "--json")[1])["operations"]
    assert "shares are of these" in terminal
    monkeypatch.setenv("COLUMNS", "100")
    narrow = nvdla_command(*words)[1]
    assert " conv_dw " in narrow and "mobilenet" not in narrow.partition("\n")[2]
    assert "Block names are shortened; --wide shows all of them." in narrow
    row = next(row for row in document["operations"] if row["cycles"])
    shown = json.loads(nvdla_command("explain", path, row["operation"], "--json")[1])["operations"][0]
    alone = document["total_cycles"] - document["overlap_cycles"]
    assert shown["cycles"] == row["cycles"] and shown["share"] == pytest.approx(row["cycles"] / alone)
