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
    assert {row.placement for row in compiled.nodes} <= {"accelerator", "folded"}
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
