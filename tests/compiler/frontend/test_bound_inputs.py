"""Inputs whose tensor has other elements than the model's input: commands and Python take the model's."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from PIL import Image

import nvdla
from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.tensors.inputs import Preprocessing
from tests.compiler.frontend.models import model, node

#: operators before the first layer: nodes that give "p" (1, 3, 8, 8) of "x", shape of "x", constants
BEFORE = {
    "channels exchanged": ([node("Gather", "x order", "p", axis=1)], (1, 3, 8, 8), {"order": [2, 1, 0]}),
    "mirrored": ([node("Slice", "x last before axis back", "p")], (1, 3, 8, 8),
                 {"last": [-1], "before": [-100], "axis": [3], "back": [-1]}),
    "rows and columns exchanged": ([node("Transpose", "x", "p", perm=[0, 1, 3, 2])], (1, 3, 8, 8), {}),
    "channels last, exchanged": ([node("Gather", "x order", "q", axis=3),
                                  node("Transpose", "q", "p", perm=[0, 3, 1, 2])],
                                 (1, 8, 8, 3), {"order": [2, 1, 0]}),
    "flat": ([node("Reshape", "x shape", "p")], (1, 192), {"shape": [1, 3, 8, 8]}),
    "cropped": ([node("Slice", "x first end axes", "p")], (1, 3, 12, 12),
                {"first": [1, 2], "end": [9, 10], "axes": [2, 3]}),
    "enlarged": ([node("Resize", "x empty empty sizes", "p", coordinate_transformation_mode="asymmetric")],
                 (1, 3, 4, 4), {"sizes": [1, 3, 8, 8]}),
    "broadcast": ([node("Expand", "x shape", "p")], (1, 3, 1, 1), {"shape": [1, 3, 8, 8]}),
    "in two parts": ([node("Slice", "x zero one axis", "a"), node("Slice", "x one three axis", "b"),
                      node("Concat", "b a", "p", axis=1)],
                     (1, 3, 8, 8), {"zero": [0], "one": [1], "three": [3], "axis": [1]}),
}  # fmt: skip
PICTURES = ("channels exchanged", "mirrored", "channels last, exchanged", "cropped", "in two parts")


def network(name):
    """A convolution of "p", and the pool of its results."""
    before, shape, numbers = BEFORE[name]
    constants = {key: np.array(values, np.int64) for key, values in numbers.items()}
    constants |= {"w": np.random.default_rng(0).normal(size=(6, 3, 3, 3)).astype("f4"), "empty": np.array([], "f4")}
    nodes = [*before, node("Conv", "p w", "c"), node("GlobalAveragePool", "c", "g"), node("Flatten", "g", "y")]
    return model(nodes, {"x": shape}, {"y": (1, 6)}, constants), shape


@pytest.fixture(params=BEFORE)
def compiled(request, tmp_path):
    """The compiled model and its loadable, calibrated with 20 samples, which are the third."""
    graph, shape = network(request.param)
    samples = np.random.default_rng(1).normal(size=(20, *shape[1:])).astype("f4")
    (tmp_path / "net.onnx").write_bytes(graph.SerializeToString())
    result = nvdla.compile(tmp_path / "net.onnx", "nv_small", calibration=samples)
    result.save(tmp_path / "net.nvdla")
    return result, tmp_path, samples


def test_a_loadable_gives_what_the_model_gives(compiled, capsys):
    result, folder, samples = compiled
    network = nvdla.load(folder / "net.nvdla")
    for sample in samples[:3]:
        found = network.run(sample[None], real=True)["y"].ravel()
        np.testing.assert_allclose(found, result.run(sample[None])["y"].ravel(), rtol=1e-5)
    np.save(folder / "x.npy", samples[:1])
    words = folder / "net.nvdla", "--onnx", folder / "net.onnx", "--input", folder / "x.npy"
    assert main(["compare", *map(str, words)]) == 0
    capsys.readouterr()


def test_evaluation_gives_the_reference_the_same_sample(compiled, capsys):
    _, folder, samples = compiled
    np.save(folder / "x.npy", samples)
    words = ["evaluate", folder / "net.nvdla", folder / "x.npy", "--predict-only", "--against", folder / "net.onnx"]
    code = main([*map(str, words), "--workers", "1", "--json"])
    out, err = capsys.readouterr()
    if len(nvdla.load(folder / "net.nvdla").inputs) > 1:
        assert code == 2 and "evaluation supports one input" in err
    else:
        assert json.loads(out)["summary"]["float"]["snr_db"] > 20


def test_the_summary_states_which_elements_a_driver_has_to_give(compiled, request):
    """Unless they are those of the model, in the same order."""
    text = "\n".join(compiled[0].report["notes"])
    is_flat = request.node.name.endswith("[flat]")
    assert ("take the model's input, a driver takes the loadable's" in text) != is_flat


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_those_of_the_model(name, tmp_path):
    graph, shape = network(name)
    sides = [side for side in shape if side > 3] + [3]
    pixels = np.random.default_rng(2).integers(0, 256, sides, np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    samples = np.random.default_rng(1).uniform(0, 1, size=(20, *shape[1:])).astype("f4")
    result = nvdla.compile(graph, "nv_small", calibration=samples, preprocessing=Preprocessing(scale=(1 / 255,)))
    result.save(tmp_path / "net.nvdla")
    loaded = nvdla.load(tmp_path / "net.nvdla")
    numbers = (pixels if shape[-1] == 3 else pixels.transpose(2, 0, 1))[None] * np.float32(1 / 255)
    expected = result.run(numbers)["y"].ravel()
    for value in (tmp_path / "x.png", Image.open(tmp_path / "x.png"), pixels, numbers):
        np.testing.assert_allclose(loaded.run(value, real=True)["y"].ravel(), expected, rtol=1e-5)


def test_integers_in_the_shape_of_the_tensor_are_its_elements(tmp_path):
    graph, shape = network("mirrored")
    samples = np.random.default_rng(1).normal(size=(20, *shape[1:])).astype("f4")
    nvdla.compile(graph, "nv_small", calibration=samples).save(tmp_path / "net.nvdla")
    runtime = nvdla.Runtime(tmp_path / "net.nvdla")
    elements = np.random.default_rng(2).integers(-128, 128, shape, np.int8)
    real = elements.astype("f4") * runtime.names.scale("x")
    assert np.array_equal(runtime.run(elements)["y"], runtime.run(real[..., ::-1])["y"])


def test_a_wrong_shape_is_refused_with_that_of_the_model(tmp_path):
    graph, shape = network("flat")
    samples = np.random.default_rng(1).normal(size=(20, *shape[1:])).astype("f4")
    nvdla.compile(graph, "nv_small", calibration=samples).save(tmp_path / "net.nvdla")
    with pytest.raises(FormatError, match=r"shape must be 1x192 \(or 1x3x8x8, as in the loadable\), got 1x191"):
        nvdla.load(tmp_path / "net.nvdla").run(samples[:1, :-1])


def test_a_batch_array_has_images_of_the_model(compiled):
    _, folder, samples = compiled
    network = nvdla.load(folder / "net.nvdla")
    found = network.run(samples[:3], real=True)["y"]
    expected = [network.run(sample[None], real=True)["y"] for sample in samples[:3]]
    assert np.array_equal(found, np.concatenate(expected))


@pytest.mark.parametrize(("config", "precision"), [("nv_small", "int8"), ("nv_full", "fp16")])
@pytest.mark.parametrize("name", ["mirrored", "in two parts"])
def test_commands_feed_the_parts_of_a_package(name, config, precision, tmp_path, capsys):
    """Parts get elements of their tensors, by the names of these."""
    before, shape, numbers = BEFORE[name]
    constants = {key: np.array(values, np.int64) for key, values in numbers.items()}
    constants |= {"w": np.random.default_rng(0).normal(size=(6, 3, 3, 3)).astype("f4")}
    nodes = [*before, node("Conv", "p w", "c"), node("ArgMax", "c", "i", axis=1), node("Cast", "i", "y", to=1)]
    graph = model(nodes, {"x": shape}, {"y": (1, 1, 6, 6)}, constants)
    (tmp_path / "net.onnx").write_bytes(graph.SerializeToString())
    samples = np.random.default_rng(1).normal(size=(20, *shape[1:])).astype("f4")
    np.save(tmp_path / "x.npy", samples[:1])
    package = tmp_path / "net.nvpkg"
    nvdla.compile(tmp_path / "net.onnx", config, precision, samples).save(package)
    words = package, "--onnx", tmp_path / "net.onnx", "--input", tmp_path / "x.npy"
    assert main(["compare", *map(str, words)]) == 0
    assert main(["doctor", str(package), "--input", str(tmp_path / "x.npy")]) == 0
    assert main(["report", str(package), "--input", str(tmp_path / "x.npy"), "-o", str(tmp_path / "pages")]) == 0
    assert "0 different" in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "pages").iterdir()} == {"index.html", "part0.loadable.html"}
