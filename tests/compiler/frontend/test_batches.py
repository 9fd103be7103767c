"""A batch of images: one loadable with operations for each image, as NVIDIA's compiler makes it."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla
from nvdla.checks.lint import lint
from nvdla.compiler.frontend.data import one_image
from nvdla.compiler.frontend.model import read, run_once
from nvdla.compiler.frontend.package import unpack
from tests.compiler.frontend.models import model, node
from tests.report.test_report_page import unpacked


def classifier(images=3, offset=(5,), shape=None):
    """Convolution, pool, a matrix product and softmax."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", "p s", "f"),
        node("Gemm", "f v c", "g"),
        node("Softmax", "g", "y", axis=1),
    ]
    constants = {"w": rng.normal(size=(6, 3, 3, 3)), "v": rng.normal(size=(54, 5)) / 8, "c": rng.normal(size=offset)}
    constants = {name: array.astype("f4") for name, array in constants.items()}
    constants["s"] = np.array(shape or [images, 54])
    return model(nodes, {"x": (images, 3, 6, 6)}, {"y": (images, 5)}, constants)


@pytest.mark.parametrize(("config", "precision"), [("nv_small", "int8"), ("nv_large", "int8"), ("nv_full", "fp16")])
def test_every_image_gives_what_it_gives_alone(config, precision):
    images = np.random.default_rng(1).normal(size=(3, 3, 6, 6)).astype("f4")
    data = None if precision == "fp16" else images
    batch = nvdla.compile(classifier(3), config, precision, data, host=False)
    single = nvdla.compile(classifier(1), config, precision, data, host=False)
    found = batch.run(images)["y"]
    assert np.array_equal(found, np.concatenate([single.run(each[None])["y"] for each in images]))
    assert np.abs(found - run_once(classifier(3), "net", {"x": images})[0]).max() < 0.1
    assert np.array_equal(unpack(batch.package).machine().run(images)["y"], found)
    assert not lint(batch.loadable, config).findings


def test_bound_tensors_hold_the_images_one_after_the_other():
    loadable = nvdla.compile(classifier(3), "nv_small", "int8", np.ones((3, 3, 6, 6), "f4")).loadable
    assert [(each.name, each.n, each.c) for each in loadable.tensors] == [("x", 3, 3), ("y", 3, 5)]
    assert [each.size for each in loadable.tensors] == [3 * 4 * 6 * 32 // 4, 3 * 8]


@pytest.mark.parametrize("shape", [[3, 54], [-1, 54], [0, 54], [3, -1]])
def test_a_reshape_may_name_the_batch(shape):
    assert one_image(read(classifier(3, shape=shape)))[1] == 3


def one(nodes, constants=None, shape=(2, 4, 6, 6), out=(2, 4, 6, 6)):
    return one_image(read(model(nodes, {"x": shape}, {"y": out}, constants)))


def test_models_that_look_from_image_to_image_are_left_whole():
    ones = np.ones
    assert one([node("Relu", "x", "y")])
    assert not one([node("Transpose", "x", "y", perm=[1, 0, 2, 3])], out=(4, 2, 6, 6))
    assert not one([node("Softmax", "x", "y", axis=0)])
    assert not one([node("Concat", "x x", "y", axis=0)], out=(4, 4, 6, 6))
    assert one([node("Concat", "x x", "y", axis=1)], out=(2, 8, 6, 6))
    assert not one([node("Pad", "x p", "y")], {"p": np.array([1, 0, 0, 0, -1, 0, 0, 0])})
    assert not one([node("Add", "x c", "y")], {"c": ones((2, 1, 1, 1), "f4")})
    assert one([node("Add", "x c", "y")], {"c": ones((1, 4, 1, 1), "f4")})
    assert not one([node("PRelu", "x c", "y")], {"c": ones((2, 4, 1, 1), "f4")})
    assert not one_image(read(classifier(2, offset=(2, 5))))
    assert not one_image(read(classifier(1)))


AXES = [
    node("Transpose", "x", "t", perm=[0, 3, 1, 2]),
    node("Conv", "t w", "a", pads=[1, 1, 1, 1]),
    node("Resize", "a empty empty sizes", "b", mode="nearest", coordinate_transformation_mode="asymmetric"),
    node("Slice", "b begin end axes", "c"),
    node("ReduceMean", "c", "m", axes=[2, 3], keepdims=0),
    node("Unsqueeze", "m axis", "u"),
    node("Transpose", "u", "y", perm=[0, 2, 1]),
]


def axes(images):
    """A model with channels last, with operators that act along axes; the first of them is that of the images."""
    constants = {"w": np.random.default_rng(0).normal(size=(5, 3, 3, 3)).astype("f4"), "empty": np.array([], "f4")}
    numbers = {"sizes": [images, 5, 12, 12], "begin": [1], "end": [9], "axes": [3], "axis": [2]}
    constants |= {name: np.array(values, np.int64) for name, values in numbers.items()}
    return model(AXES, {"x": (images, 6, 6, 3)}, {"y": (images, 1, 5)}, constants)


def test_operators_along_other_axes_leave_the_images_apart():
    images = np.random.default_rng(1).normal(size=(4, 6, 6, 3)).astype("f4")
    batch, single = (nvdla.compile(axes(count), "nv_small", "int8", images) for count in (4, 1))
    assert batch.parts[0].images == 4
    found = batch.run(images)["y"]
    assert np.array_equal(found, np.concatenate([single.run(image[None])["y"] for image in images]))
    exact = run_once(axes(4), "net", {"x": images})[0]
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()
    assert one([node("ReduceMean", "x", "y", axes=[-1], keepdims=1)], out=(2, 4, 6, 1))
    for axis in (0, -4):
        assert not one([node("ReduceMean", "x", "y", axes=[axis], keepdims=1)], out=(1, 4, 6, 6))
    assert not one([node("ReduceMean", "x", "y", keepdims=1)], out=(1, 1, 1, 1))


def test_a_node_for_the_host_leaves_the_batch_whole():
    nodes = [node("Relu", "x", "a"), node("ArgMax", "a", "i", axis=1), node("Cast", "i", "y", to=1)]
    net = model(nodes, {"x": (2, 4, 6, 6)}, {"y": (2, 1, 6, 6)})
    x = np.random.default_rng(2).normal(size=(2, 4, 6, 6)).astype("f4")
    compiled = nvdla.compile(net, "nv_small", "int8", x)
    assert [part.images for part in compiled.parts] == [1, 1]
    assert compiled.run(x)["y"].shape == (2, 1, 6, 6)


def test_a_note_states_the_batch_that_times_are_of():
    images = np.random.default_rng(1).normal(size=(3, 3, 6, 6)).astype("f4")
    notes = ["\n".join(nvdla.compile(classifier(n), "nv_small", "int8", images).report["notes"]) for n in (3, 1)]
    assert ["a batch of 3; times are of 3" in text for text in notes] == [True, False]


def test_every_command_counts_a_batch_once(tmp_path, nvdla_command):
    """Multiplications of the model, pictures per second, and images on the page."""
    images = np.random.default_rng(1).normal(size=(3, 3, 6, 6)).astype("f4") * np.array([1, 2, 3], "f4").reshape(
        3, 1, 1, 1
    )
    compiled = nvdla.compile(classifier(3), "nv_small", calibration=images)
    compiled.save(tmp_path / "net.nvdla")
    macs = 3 * (6 * 3 * 3 * 3 * 36 + 54 * 5)
    assert sum(row.macs for row in compiled.nodes) == macs
    cycles = json.loads(nvdla_command("cycles", tmp_path / "net.nvdla", "--json")[1])
    assert cycles["model_macs"] == macs
    (point,) = json.loads(nvdla_command("explore", tmp_path / "net.nvdla", "--json")[1])["points"]
    assert point["frames_per_second"] == pytest.approx(3e9 / point["cycles"])
    np.save(tmp_path / "x.npy", images)
    page, data = tmp_path / "page.html", tmp_path / "net.nvdla"
    assert nvdla_command("report", data, "--input", tmp_path / "x.npy", "-o", page)[0] == 0
    run = unpacked(page.read_text(), "document")["sides"][0]["run"]
    assert [title for title, _ in run["inputs"]] == [f"x, image {number}" for number in range(3)]
    largest = [(title, rows[0][0]) for title, _, rows in run["outputs"]]
    assert largest == [(f"y, image {number}", row.argmax()) for number, row in enumerate(compiled.run(images)["y"])]


def test_frames_per_second_count_the_pictures_of_a_batch():
    w = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype("f4")
    nodes = [node("Conv", "x w", "a", pads=[1] * 4), node("Relu", "a", "y")]
    images = np.random.default_rng(1).normal(size=(4, 3, 12, 12)).astype("f4")
    rates = []
    for batch in (1, 4):
        network = model(nodes, {"x": (batch, 3, 12, 12)}, {"y": (batch, 8, 12, 12)}, {"w": w})
        summary = nvdla.compile(network, "nv_small", "int8", images).summary
        rates.append((summary["frames_per_second"], summary["cycles"]))
    (single, _), (several, cycles) = rates
    assert several == pytest.approx(4e9 / cycles) and several > 0.9 * single


def test_a_tensor_of_torch_is_calibration_data_as_its_array_is():
    torch = pytest.importorskip("torch")
    images = np.random.default_rng(1).normal(size=(6, 3, 6, 6)).astype("f4")
    tables = [nvdla.compile(classifier(3), "nv_small", "int8", data).report["calibration"]["samples"]
              for data in (images, torch.tensor(images))]  # fmt: skip
    assert tables[0] == tables[1]


def test_names_of_no_node_are_refused_with_those_that_exist():
    images = np.random.default_rng(1).normal(size=(3, 3, 6, 6)).astype("f4")
    names = [row["name"] for row in nvdla.compile(classifier(1), "nv_small", "int8", images).report["nodes"]]
    with pytest.raises(nvdla.NvdlaError, match="keep_on_host: must be names of nodes or layers, got 'zzz'") as refused:
        nvdla.compile(classifier(1), "nv_small", "int8", images, keep_on_host=("zzz",))
    assert all(name in str(refused.value) for name in names[:8])
