"""TFLite files of Keras' converter give what the interpreter computed: the same classes, within a few units."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.golden import LOADABLES

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla
from nvdla.compiler.frontend.tflite.reader import read_model

ROOT = LOADABLES.parent / "tflite"
MANIFEST = ROOT / "manifest.json"
MODELS = json.loads(MANIFEST.read_text())["models"] if MANIFEST.exists() else []
SAMPLES = 24


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row["file"])
def test_a_file_gives_the_results_of_the_interpreter(row):
    path = ROOT / row["file"]
    with np.load(path.with_suffix(".npz")) as held:
        given, wanted = held["inputs"][:SAMPLES], held["outputs"][:SAMPLES].astype(np.float64)
    model = read_model(path.read_bytes(), row["file"])
    ends = [model.tensors[number].quantization for number in (model.inputs[0], model.outputs[0])]
    compiled = nvdla.compile(path, "nv_small", calibration=given if ends[0] is None else None)
    if ends[0] is not None:
        given = ((given.astype(np.float64) - ends[0].points[0]) * ends[0].scales[0]).astype(np.float32)
    found = np.concatenate([next(iter(compiled.run(each[None]).values())) for each in given])
    if ends[1] is not None:
        found = np.rint(found / ends[1].scales[0]) + ends[1].points[0]
        assert np.abs(found - wanted).max() <= 8
    if wanted.ndim == 2:
        assert (found.argmax(1) == wanted.argmax(1)).mean() > 0.95
