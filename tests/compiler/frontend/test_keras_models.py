"""A Keras model by both ways of docs/compile.md, where TensorFlow is installed."""

from __future__ import annotations

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")
tf = pytest.importorskip("tensorflow")

import nvdla  # noqa: E402


@pytest.fixture(scope="module")
def network():
    """A small classifier and images for it."""
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((16, 16, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    return model, np.random.default_rng(0).random((20, 16, 16, 1)).astype(np.float32)


def quality(compiled, network) -> float:
    """Decibels between the compiled model and Keras."""
    model, images = network
    name = compiled.imported.model.inputs[0]
    found = np.concatenate([next(iter(compiled.run({name: each[None]}).values())) for each in images])
    wanted = model(images).numpy()
    return float(10 * np.log10(np.sum(wanted**2) / np.sum((found - wanted) ** 2)))


def test_tflite(network):
    model, images = network
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([each[None]] for each in images)
    compiled = nvdla.compile(converter.convert(), "nv_small")
    assert compiled.whole
    assert quality(compiled, network) > 25


def test_onnx(network, tmp_path):
    pytest.importorskip("tf2onnx")
    model, images = network
    model(images[:1])
    model.export(tmp_path / "net.onnx", format="onnx")
    compiled = nvdla.compile(tmp_path / "net.onnx", "nv_small", calibration=images)
    assert compiled.whole
    assert quality(compiled, network) > 25


@pytest.mark.parametrize("name", ["my.keras", "my.h5"])
def test_the_line_that_the_error_suggests_converts_the_file(network, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network[0].save(name)
    with pytest.raises(nvdla.FormatError) as error:
        nvdla.compile(name)
    code = str(error.value).partition("in Python: ")[2].partition(". Then run")[0]
    exec(code, {})
    compiled = nvdla.compile("model.tflite", "nv_small", calibration=network[1])
    assert quality(compiled, network) > 25
