"""Layer names found in a model: the shipped networks, networks with branches, models that do not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.caffe_writer import layer, prototxt

import nvdla
from nvdla.checks.layers import ModelGraph, ModelLayer, caffe_graph, recognize
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.program import naming
from nvdla.program.naming import names_for

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
PROTOTXT, WEIGHTS = SAMPLES / "lenet.prototxt", SAMPLES / "lenet.caffemodel"
LENETS = ["lenet.loadable", "lenet_nv_large.loadable", "lenet_nv_full_fp16.loadable"]


def written_by_the_compiler(path: Path) -> dict[tuple[int, int], str]:
    return names_for(path).layers


@pytest.mark.parametrize("name", LENETS)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["structure alone", "weights"])
def test_the_names_are_those_that_the_builder_gave(name, weights):
    found = recognize(nvdla.load(SAMPLES / name), caffe_graph(PROTOTXT, weights))
    assert found.layers == written_by_the_compiler(SAMPLES / name)
    assert not found.unused and found.share == 1
    assert set(found.confidence.values()) == ({"structure"} if weights is None else {"structure", "weights"})


def test_an_onnx_model_names_its_operations_after_the_values_they_make(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra nvdla[onnx] is not installed")
    from nvdla.checks.layers import onnx_graph

    compiled = nvdla.compile(str(SAMPLES / "lenet.onnx"), "nv_full", precision="fp16")
    compiled.save(tmp_path / "net.nvdla")
    found = recognize(nvdla.load(tmp_path / "net.nvdla"), onnx_graph(SAMPLES / "lenet.onnx"))
    assert found.layers == written_by_the_compiler(tmp_path / "net.nvdla")


def test_groups_of_a_depthwise_convolution_and_tables_in_the_cdp_have_names(nvdla_command, tmp_path):
    """On nv_small 16 groups are two convolutions of 8, and HardSwish is a table of the CDP."""
    pytest.importorskip("onnxruntime", reason="the extra nvdla[onnx] is not installed")
    import onnx

    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(2)
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("HardSwish", "a", "ah"),
        node("Conv", "ah wd", "d", pads=[1, 1, 1, 1], group=16),
        node("Relu", "d", "dr"),
        node("Conv", "dr w1", "e"),
        node("HardSwish", "e", "y"),
    ]
    shapes = {"w0": (16, 3, 3, 3), "wd": (16, 1, 3, 3), "w1": (8, 16, 1, 1)}
    constants = {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    path, net = tmp_path / "net.onnx", tmp_path / "net.nvdla"
    onnx.save(model(nodes, {"x": (1, 3, 8, 8)}, {"y": (1, 8, 8, 8)}, constants), path)
    pictures = rng.normal(size=(4, 3, 8, 8)).astype("f4")
    nvdla.compile(str(path), "nv_small", "int8", pictures).save(net)
    names = written_by_the_compiler(net)
    Path(f"{net}.layers.json").unlink()
    assert nvdla_command("layers", net, "--onnx", path)[0] == 0
    assert written_by_the_compiler(net) == names and {"d+dr", "ah", "y"} <= set(names.values())


def test_products_with_channels_last_and_averages_of_atoms_have_names(nvdla_command, tmp_path):
    """TFLite flattens with the channels last; an average of 16 channels on nv_small is one of 2 atoms."""
    pytest.importorskip("onnxruntime", reason="the extra nvdla[onnx] is not installed")
    import onnx

    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(2)
    nodes = [
        node("Conv", "x w0", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "ar"),
        node("Transpose", "ar", "last", perm=[0, 2, 3, 1]),
        node("Flatten", "last", "flat"),
        node("Gemm", "flat w1", "y"),
        node("ReduceMean", "ar", "mean", axes=[2, 3], keepdims=1),
        node("Conv", "mean w2", "z"),
    ]
    shapes = {"w0": (16, 3, 3, 3), "w1": (16 * 5 * 4, 7), "w2": (6, 16, 1, 1)}
    constants = {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    path, net = tmp_path / "net.onnx", tmp_path / "net.nvdla"
    onnx.save(model(nodes, {"x": (1, 3, 5, 4)}, {"y": (1, 7), "z": (1, 6, 1, 1)}, constants), path)
    nvdla.compile(str(path), "nv_small", "int8", rng.normal(size=(4, 3, 5, 4)).astype("f4")).save(net)
    names = written_by_the_compiler(net)
    Path(f"{net}.layers.json").unlink()
    assert nvdla_command("layers", net, "--onnx", path)[0] == 0
    assert written_by_the_compiler(net) == names and {"a+ar", "y", "mean", "z"} == set(names.values())


def branches(rng: np.random.Generator) -> tuple[Network, ModelGraph, dict[str, np.ndarray]]:
    """Two convolutions of one shape from the same data, joined by a sum; its graph without weights, and the weights."""
    weights = {name: rng.standard_normal((8, 8, 1, 1)) for name in "ab"}
    net = Network("branches")
    data = net.input("data", (8, 6, 6))
    parts = [net.convolution(name, data, each, rng.standard_normal(8)) for name, each in weights.items()]
    net.output(net.add("sum", *parts))
    layers = [
        ModelLayer("a", "conv", (0,), (1,), (8, 6, 6)),
        ModelLayer("b", "conv", (0,), (2,), (8, 6, 6)),
        ModelLayer("sum", "eltwise", (1, 2), (3,), (8, 6, 6)),
    ]
    graph = ModelGraph("branches", layers, {"data": 0}, {"sum": 3}, dict.fromkeys(range(4), (8, 6, 6)))
    return net, graph, weights


def weighted(graph: ModelGraph, weights: dict[str, np.ndarray]) -> ModelGraph:
    return replace(graph, layers=[replace(each, weights=weights.get(each.name)) for each in graph.layers])


@pytest.mark.parametrize("config", ["nv_small", "nv_full"])
def test_similar_branches_are_recognized_by_their_weights(config):
    rng = np.random.default_rng(3)
    net, graph, weights = branches(rng)
    # At level 1 such branches become one convolution, and nothing is left to be told apart.
    built = build(net, config, "int8", calibrate(net, rng.standard_normal((2, 8, 6, 6))), level=0)
    truth = naming.layers(built.sidecar)
    blind, seeing = recognize(built.loadable, graph), recognize(built.loadable, weighted(graph, weights))
    assert {"order"} <= set(blind.confidence.values())
    assert "order" not in seeing.confidence.values()
    assert seeing.layers.keys() == truth.keys()
    convolutions = [key for key, how in seeing.confidence.items() if how == "weights"]
    assert convolutions and all(
        set(seeing.layers[key].split("+")) == set(truth[key].split("+")) for key in convolutions
    )


def test_a_model_of_another_network_gives_no_wrong_names():
    graph = caffe_graph(PROTOTXT)
    found = recognize(nvdla.load(SAMPLES / "color_digits.loadable"), graph)
    assert found.share < 0.5 and found.unused


def test_other_weights_are_not_taken_for_the_layer_s():
    """LeNet's structure with other weights: nothing holds them."""
    graph = caffe_graph(PROTOTXT, WEIGHTS)
    rng = np.random.default_rng(77)
    layers = [
        each if each.weights is None else replace(each, weights=rng.standard_normal(each.weights.shape))
        for each in graph.layers
    ]
    found = recognize(nvdla.load(SAMPLES / "lenet.loadable"), replace(graph, layers=layers))
    assert "weights" not in found.confidence.values() and found.share < 0.5


def residual(rng: np.random.Generator) -> tuple[Network, ModelGraph]:
    """A convolution too large for the buffer of nv_small, a sum with its input, a ReLU, and a convolution after it."""
    net, shape = Network("residual"), (32, 64, 64)
    data = net.input("data", (4, 64, 64))
    first = net.relu("relu1", net.convolution("conv1", data, rng.standard_normal((32, 4, 1, 1))))
    second = net.convolution("conv2", first, rng.standard_normal((32, 32, 3, 3)), padding=1)
    net.output(
        net.convolution("conv3", net.relu("relu2", net.add("sum", second, first)), rng.standard_normal((8, 32, 1, 1)))
    )
    layers = [
        ModelLayer("conv1", "conv", (0,), (1,), shape, (1, 1), (1, 1)),
        ModelLayer("relu1", "relu", (1,), (2,), shape),
        ModelLayer("conv2", "conv", (2,), (3,), shape, (3, 3), (1, 1)),
        ModelLayer("sum", "eltwise", (3, 2), (4,), shape),
        ModelLayer("relu2", "relu", (4,), (5,), shape),
        ModelLayer("conv3", "conv", (5,), (6,), (8, 64, 64), (1, 1), (1, 1)),
    ]
    shapes = {0: (4, 64, 64), **dict.fromkeys(range(1, 6), shape), 6: (8, 64, 64)}
    return net, ModelGraph("residual", layers, {"data": 0}, {"conv3": 6}, shapes)


def test_every_part_of_a_split_convolution_has_the_sum_and_the_relu_that_are_fused_into_it(nvdla_command, tmp_path):
    """With zero points the ReLU after the sum is only the saturation of the output converter at -128."""
    rng = np.random.default_rng(5)
    net, graph = residual(rng)
    calibration = replace(calibrate(net, rng.standard_normal((2, 4, 64, 64))), zero_points=True)
    built = build(net, "nv_small", "int8", calibration)
    found = recognize(built.loadable, graph)
    assert found.layers == naming.layers(built.sidecar) and not found.unused
    built.save(tmp_path / "net.nvdla")
    rows = json.loads(nvdla_command("layers", tmp_path / "net.nvdla", "--json")[1])["operations"]
    parts = [(row["engine"], row["part"]) for row in rows if row["layer"] == "conv2+sum+relu2"]
    count = len(parts) // 2
    assert count > 1
    assert parts == [(engine, f"{part}/{count}") for part in range(1, count + 1) for engine in ("conv", "sdp")]


@pytest.fixture
def nameless(tmp_path):
    return shutil.copy(SAMPLES / "lenet.loadable", tmp_path / "net.nvdla")


def test_the_command_writes_a_layer_file_that_the_other_commands_use(nameless, nvdla_command):
    code, out, _ = nvdla_command("layers", nameless, "--caffe", WEIGHTS, PROTOTXT)
    assert code == 0 and "13 of 13 operations have names." in out and f"{nameless}.layers.json" in out
    for words in (
        ["inspect", "--ops"],
        ["cycles"],
        ["timeline"],
        ["explain"],
        ["graph"],
        ["lint", "--config", "nv_full"],
    ):
        _, out, _ = nvdla_command(words[0], nameless, *words[1:])
        assert "conv2+relu2" in out, words
    code, out, _ = nvdla_command("layers", nameless, "--json")
    assert code == 0 and json.loads(out)["operations"][0]["confidence"] == "weights"


def test_scales_of_a_calibration_table_go_into_the_layer_file(nameless, nvdla_command, tmp_path):
    entry = {"scale": 0.25, "min": 0, "max": 0, "offset": 0}
    (tmp_path / "table.json").write_text(json.dumps({"data": entry, "prob": entry}))
    words = ("layers", nameless, "--caffe", PROTOTXT, "--scales", tmp_path / "table.json")
    assert nvdla_command(*words)[0] == 0
    assert nvdla.Runtime(nameless).names.scales == {"data": 0.25, "prob": 0.25}


def test_an_output_has_the_scale_of_the_layer_that_was_last_done_in_place(nvdla_command, tmp_path):
    """Caffe's blob has the name of the convolution, but the elements are those of the ReLU."""
    net = Network("net")
    x = net.input("data", (3, 8, 8))
    weights = np.random.default_rng(0).normal(size=(4, 3, 1, 1))
    net.output(net.relu("blob", net.convolution("c", x, weights)))
    built = build(net, "nv_small", "int8", calibrate(net, np.ones((1, 3, 8, 8))))
    built.loadable.save(tmp_path / "net.nvdla")
    kernels = "convolution_param { num_output: 4 kernel_size: 1 bias_term: false }"
    layers = (layer("Convolution", kernels, "data", "blob", "blob"), layer("ReLU", "", "blob", "blob", "relu"))
    (tmp_path / "net.prototxt").write_text(prototxt(*layers))
    table = {name: {"scale": scale} for name, scale in (("data", 1.0), ("blob", 0.5), ("relu", 0.25))}
    (tmp_path / "table.json").write_text(json.dumps(table))
    words = ("--caffe", tmp_path / "net.prototxt", "--scales", tmp_path / "table.json")
    assert nvdla_command("layers", tmp_path / "net.nvdla", *words)[0] == 0
    run = ("run", tmp_path / "net.nvdla", "--random-input")
    assert "blob: one unit is 0.25." in nvdla_command(*run)[1]
    assert "blob: one unit is 0.25." in nvdla_command(*run, "--scales", tmp_path / "table.json")[1]
    own = nvdla_command(*run, "--real", "--output-scale", "2", "--json")[1], nvdla_command(*run, "--json")[1]
    first, elements = (json.loads(out)["outputs"][0]["top"][0][0]["value"] for out in own)
    assert first == 2 * elements


def test_names_of_the_compiler_are_not_lost(nvdla_command, tmp_path):
    net = shutil.copy(SAMPLES / "lenet.loadable", tmp_path / "net.nvdla")
    before = shutil.copy(SAMPLES / "lenet.loadable.layers.json", tmp_path / "net.nvdla.layers.json").read_text()
    words = ("layers", net, "--caffe", PROTOTXT)
    code, _, err = nvdla_command(*words)
    assert code == 2 and "--force" in err
    assert nvdla_command(*words, "--dry-run")[0] == 0
    assert Path(f"{net}.layers.json").read_text() == before
    assert nvdla_command(*words, "--force")[0] == 0
    assert json.loads(Path(f"{net}.layers.json").read_text())["tensors"] == json.loads(before)["tensors"]


def test_a_model_of_another_network_does_not_replace_names(nvdla_command, nameless, tmp_path):
    assert nvdla_command("layers", nameless, "--caffe", PROTOTXT, WEIGHTS)[0] == 0
    before = Path(f"{nameless}.layers.json").read_bytes()
    kernels = "convolution_param { num_output: 4 kernel_size: 1 bias_term: false }"
    (tmp_path / "other.prototxt").write_text(prototxt(layer("Convolution", kernels)))
    words = ("layers", nameless, "--caffe", tmp_path / "other.prototxt")
    code, _, err = nvdla_command(*words)
    assert code == 2 and "has the names of 13 operations, this model those of" in err
    assert Path(f"{nameless}.layers.json").read_bytes() == before
    assert nvdla_command(*words, "--force")[0] == 1
    assert Path(f"{nameless}.layers.json").read_bytes() != before


def test_exit_code_1_where_operations_have_no_name(nvdla_command):
    code, out, _ = nvdla_command("layers", SAMPLES / "color_digits.loadable", "--caffe", PROTOTXT, "--dry-run")
    assert code == 1 and "Layers without an operation" in out
    assert "First operation without a name: 0/0 (CONV, " in out and "Find them with" not in out
