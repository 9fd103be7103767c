"""The graph as an ONNX model: ONNX's checker passes it, Netron shows it, and it says what the loadable says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.analysis.study import Study
from nvdla.program.naming import names_for

onnx = pytest.importorskip("onnx", reason="the extra nvdla[onnx] is not installed")

from nvdla.analysis.graph import onnx_model  # noqa: E402

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "samples").glob("*.loadable"))
CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "loadables"
LENET = next(path for path in SAMPLES if path.stem == "lenet")


def model_of(path, **how):
    return onnx_model(Study.of(nvdla.load(path), layers=names_for(path).layers), **how)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_node_is_an_operation(path):
    """The model is checked when it is made; here what it says."""
    study, model = Study.of(nvdla.load(path)), model_of(path)
    assert [node.op_type for node in model.graph.node] == [node.engine.upper() for each in study.steps for node in each]
    assert {node.domain for node in model.graph.node} == {"nvdla"}
    onnx.checker.check_model(onnx.load_from_string(model.SerializeToString()))


def test_shapes_types_and_attributes_are_those_of_the_descriptors():
    model = model_of(LENET)
    node = next(node for node in model.graph.node if node.name == "0/3 conv2+relu2")
    values = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert (values["kernel_width_csc"], values["kernel_channel_csc"], values["conv_mode"]) == (5, 6, b"DIRECT")
    assert values["src_data.width"] == 12
    shapes = {
        each.name: ([size.dim_value for size in each.type.tensor_type.shape.dim], each.type.tensor_type.elem_type)
        for each in (*model.graph.value_info, *model.graph.input, *model.graph.output)
    }
    int8 = onnx.TensorProto.INT8
    assert shapes["pool1"] == ([1, 6, 12, 12], int8)
    assert shapes["0/3 on the fly"] == ([1, 16, 8, 8], int8)
    assert shapes["data"] == ([1, 1, 28, 28], int8)


def test_weights_are_the_bytes_of_the_file():
    loadable, model = nvdla.load(LENET), model_of(LENET)
    blobs = {blob.name: bytes(blob.data) for blob in loadable.blobs}
    found = {each.name: onnx.numpy_helper.to_array(each).tobytes() for each in model.graph.initializer}
    assert len(found) == 10  # five convolutions, five biases
    assert all(data == blobs[name][: len(data)] for name, data in found.items())
    bare = model_of(LENET, weights=False)
    assert not bare.graph.initializer
    assert {each.name for each in bare.graph.input} == {"data", *found}


def test_halves_are_halves():
    path = next(path for path in SAMPLES if "fp16" in path.stem)
    assert {each.type.tensor_type.elem_type for each in model_of(path).graph.output} == {onnx.TensorProto.FLOAT16}


def test_equal_names_get_numbers():
    study = Study.of(nvdla.load(LENET), layers={(0, index): "same" for index in range(12)})
    names = [name for node in onnx_model(study).graph.node for name in node.output]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_every_network_of_the_corpus_passes_the_checker():
    paths = [path for path in sorted(CORPUS.glob("*/*.nvdla")) if path.stat().st_size < 4 << 20]
    if not paths:
        pytest.skip("the corpus is not there")
    for path in paths:
        assert model_of(path).graph.node


def test_the_command_writes_what_netron_shows(nvdla_command, chromium_browser, tmp_path, as_documented):
    """In Netron's own server: operations, shapes, and on a click the attributes."""
    import json

    netron = pytest.importorskip("netron", reason="netron is not installed: pip install 'nvdla[browser-test]'")
    code, out, _ = nvdla_command("export", LENET, "--output", tmp_path / "net.onnx", "--json")
    assert code == 0
    as_documented(json.loads(out))
    host, port = netron.start(str(tmp_path / "net.onnx"), address=("127.0.0.1", 0), browse=False)
    try:
        page = chromium_browser.new_page(viewport={"width": 1200, "height": 1600})
        page.route(lambda url: "127.0.0.1" not in url, lambda route: route.abort())
        page.goto(f"http://{host}:{port}")
        consent = page.get_by_text("Accept")
        consent.or_(page.get_by_text("CONV").first).first.wait_for()
        if consent.is_visible():
            consent.click()
        page.get_by_text("CONV").first.wait_for()
        page.get_by_text("1×16×8×8").first.wait_for()
        page.get_by_text("PDP").first.click()
        page.locator("input[value='pool_mode']").wait_for()
        page.close()
    finally:
        netron.stop((host, port))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--output"),
        (("--output", "x.png"), ".onnx"),
        (("--output", "x.onnx", "-i", "none.pgm", "--node-data", "d"), "none"),
    ],
)
def test_bad_usage_is_one_line(nvdla_command, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = nvdla_command("export", LENET, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_broken_values_become_bytes():
    """A value without a shape is bytes; what its blob does not fill is 0."""
    loadable = nvdla.load(LENET)
    cut = replace(
        loadable,
        blobs=tuple(
            replace(blob, data=blob.data[:8]) if blob.name.startswith("tb-") else blob for blob in loadable.blobs
        ),
    )
    model = onnx_model(Study.of(cut))
    for each in model.graph.initializer:
        array = onnx.numpy_helper.to_array(each)
        assert array.dtype == np.uint8
        assert not array[8:].any()
