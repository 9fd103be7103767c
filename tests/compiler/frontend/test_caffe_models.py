"""Caffe networks compile as ONNX models do."""

from pathlib import Path

import numpy as np
import pytest

import nvdla

SAMPLES = Path(__file__).resolve().parents[3] / "samples"


def test_lenet_of_caffe_reads_digits_on_nv_full():
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    compiled = nvdla.compile(SAMPLES / "lenet.prototxt", "nv_full", "fp16", weights=SAMPLES / "lenet.caffemodel")
    assert compiled.loadable is not None
    assert {row.name: row.placement for row in compiled.nodes}["prob"] == "cpu"
    assert {row.placement for row in compiled.nodes} == {"accelerator", "cpu", "folded"}
    assert {row.name.split("/")[0] for row in compiled.nodes} <= {
        *("conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "ip1", "relu3", "ip2", "relu4", "ip3", "prob")
    }
    with np.load(SAMPLES / "digits.npz") as data:
        images, labels = data["images"][:20], data["labels"][:20]
    found = [next(iter(compiled.run(image[None, None].astype(np.float32)).values())) for image in images]
    right = sum(int(np.argmax(each) == label) for each, label in zip(found, labels, strict=True))
    assert right >= 19


def test_a_last_layer_in_place_is_the_networks_output(tmp_path):
    onnx = pytest.importorskip("onnx")
    from nvdla.compiler.caffe import read_network
    from nvdla.compiler.caffe.conversion import convert

    text = 'layer { name: "data" type: "Input" top: "x" input_param { shape: { dim: 1 dim: 2 dim: 4 dim: 4 } } }\n'
    text += (
        'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }\nlayer { name: "s" type: "ReLU" bottom: "y" top: "y" }\n'
    )
    (tmp_path / "net.prototxt").write_text(text)
    made = convert(onnx, read_network(tmp_path / "net.prototxt"), {"x": (1, 2, 4, 4)})
    assert made.ends == [made.names["s"]]


def test_a_layer_whose_name_could_be_an_inner_value_keeps_it(tmp_path):
    """A layer called "ip/Reshape", next to the Reshape of the layer "ip"."""
    onnx = pytest.importorskip("onnx")
    from nvdla.compiler.caffe import read_network
    from nvdla.compiler.caffe.conversion import convert

    text = 'layer { name: "data" type: "Input" top: "x" input_param { shape: { dim: 1 dim: 2 dim: 4 dim: 4 } } }\n'
    text += 'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1 } }\n'
    text += 'layer { name: "ip/Reshape" type: "ReLU" bottom: "y" top: "z" }\n'
    (tmp_path / "net.prototxt").write_text(text)
    weights = {"ip": [np.ones((1, 32), "f4"), np.ones(1, "f4")]}
    made = convert(onnx, read_network(tmp_path / "net.prototxt", weights), {"x": (1, 2, 4, 4)})
    names = [name for node in made.model.graph.node for name in node.output]
    assert len(names) == len(set(names))
    assert "ip/Reshape" not in names
