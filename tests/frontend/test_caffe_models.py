"""Caffe networks compile as ONNX models do."""

from pathlib import Path

import numpy as np
import pytest

import nvdla

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


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
