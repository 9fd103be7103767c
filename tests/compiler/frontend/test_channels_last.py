"""Models with channels last (TFLite, Keras) take pictures and arrays (N, H, W, C) in every command."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from support.tflite_writer import FlatWriter

import nvdla
from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.experiments.evaluation.networks import PackageNetwork, open_network
from nvdla.tensors.inputs import Preprocessing

HEIGHT, WIDTH = 28, 20
MEAN, STD = (100.0, 110.0, 120.0), (50.0, 60.0, 70.0)
OPTIONS = ["--mean", "100,110,120", "--std", "50,60,70"]


def model(channels_last, channels=3):
    """A convolution of a picture; ``channels_last``: behind a Transpose, as exporters of Keras models write it."""
    weights = np.random.default_rng(0).normal(size=(4, channels, 3, 3)).astype(np.float32)
    shape = [1, HEIGHT, WIDTH, channels] if channels_last else [1, channels, HEIGHT, WIDTH]
    nodes = [helper.make_node("Transpose", ["data"], ["planes"], perm=[0, 3, 1, 2])] if channels_last else []
    nodes.append(helper.make_node("Conv", ["planes" if channels_last else "data", "weights"], ["out"], name="conv"))
    graph = helper.make_graph(
        nodes,
        "picture",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 4, HEIGHT - 2, WIDTH - 2])],
        [helper.make_tensor("weights", TensorProto.FLOAT, weights.shape, weights.ravel())],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Both models, three pictures, and the loadables that the command compiles from them."""
    folder = tmp_path_factory.mktemp("pictures")
    chance = np.random.default_rng(1)
    (folder / "images").mkdir()
    for number in range(3):
        pixels = chance.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
    for name, last in (("last", True), ("first", False)):
        onnx.save(model(last), folder / f"{name}.onnx")
        words = ["compile", folder / f"{name}.onnx", "--calibrate", folder / "images", "-o", folder / f"{name}.nvdla"]
        assert main([*map(str, words), *OPTIONS]) == 0
    return folder


def pixels(folder):
    """The three pictures (N, H, W, C)."""
    return np.stack([np.asarray(Image.open(folder / "images" / f"{number}.png")) for number in range(3)])


def numbers(folder):
    """What the model takes for them."""
    return (pixels(folder) - np.float32(MEAN)) * (1 / np.array(STD)).astype(np.float32)


def test_a_picture_gives_what_the_model_with_channels_first_gives(folder):
    last, first = (nvdla.Runtime(folder / f"{name}.nvdla") for name in ("last", "first"))
    image = folder / "images" / "0.png"
    np.testing.assert_array_equal(last.run(image)["out"], first.run(image)["out"])


def test_real_numbers_are_taken_in_the_order_of_the_model_and_with_channels_first(folder):
    runtime = nvdla.Runtime(folder / "last.nvdla")
    last = numbers(folder)[:1]
    first = np.ascontiguousarray(last.transpose(0, 3, 1, 2))
    expected = runtime.run(folder / "images" / "0.png")["out"]
    for array in (last, first, last[0], first[0]):
        np.testing.assert_array_equal(runtime.run(array)["out"], expected)
    stacked = runtime.run(np.concatenate([last, last[:, ::-1], last]))["out"]
    np.testing.assert_array_equal(stacked[[0, 2]], np.concatenate([expected, expected]))


def test_tensor_convert_takes_arrays_in_both_orders_and_real_numbers_as_a_run_does(folder, tmp_path):
    last = numbers(folder)[:1]
    (expected,) = nvdla.Runtime(folder / "last.nvdla").surfaces(folder / "images" / "0.png")
    for array in (last, last[0], np.ascontiguousarray(last.transpose(0, 3, 1, 2)), pixels(folder)[0]):
        np.save(tmp_path / "in.npy", array)
        words = ["tensor", "convert", tmp_path / "in.npy", tmp_path / "in.bin", "--tensor", folder / "last.nvdla"]
        assert main(list(map(str, words))) == 0
        assert (tmp_path / "in.bin").read_bytes() == expected


def test_an_array_in_another_order_is_refused(folder):
    runtime = nvdla.Runtime(folder / "last.nvdla")
    with pytest.raises(nvdla.FormatError, match=f"1x{WIDTH}x{HEIGHT}x3"):
        runtime.run(np.zeros((1, WIDTH, HEIGHT, 3), np.float32))


@pytest.mark.parametrize("kind", ["files", "numbers", "pixels"])
def test_evaluate_predicts_the_same_for_both_layouts(folder, kind, tmp_path):
    data = folder / "images"
    if kind != "files":
        data = tmp_path / "data.npz"
        np.savez(data, images=pixels(folder) if kind == "pixels" else numbers(folder))
    for name in ("last", "first"):
        words = ["evaluate", folder / f"{name}.nvdla", data, "--predict-only", "--samples", tmp_path / f"{name}.jsonl"]
        assert main(list(map(str, words))) == 0
    (_, *last), (_, *first) = ((tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("last", "first"))
    assert last == first
    assert len(last) == 3


def test_the_layout_is_the_one_that_has_the_channels_of_a_picture():
    picture = np.random.default_rng(2).integers(0, 256, (8, 6, 3), np.uint8)
    auto = Preprocessing()
    np.testing.assert_array_equal(auto.image(picture, (1, 8, 6, 3))[0], picture)
    np.testing.assert_array_equal(auto.image(picture, (1, 3, 8, 6))[0], picture.transpose(2, 0, 1))
    square = picture[:3, :3]
    np.testing.assert_array_equal(auto.image(square, (1, 3, 3, 3))[0], square.transpose(2, 0, 1))
    np.testing.assert_array_equal(Preprocessing(layout="nhwc").image(square, (1, 3, 3, 3))[0], square)


@pytest.mark.parametrize(("kind", "point"), [("int8", -128), ("uint8", 0), ("int8", -1), ("uint8", 100)])
def test_pixels_are_the_elements_of_a_quantized_tflite_input(kind, point, tmp_path, nvdla_command):
    """The element of pixel p is p in uint8 and p - 128 in int8, as TFLite's tools feed pictures."""
    writer = FlatWriter()
    writer.tensor((1, 8, 6, 3), kind, 0.02, point, name="data")
    writer.constant(np.ones((1, 1, 1, 3), np.int8), 0.5)
    writer.constant(np.zeros(1, np.int32), 0.01)
    writer.tensor((1, 8, 6, 1), kind, 0.2, 0, name="out")
    writer.operator("CONV_2D", [0, 1, 2], [3], padding=1, stride_w=1, stride_h=1)
    (tmp_path / "net.tflite").write_bytes(writer.model([0], [3]))
    picture = np.random.default_rng(5).integers(0, 256, (8, 6, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "in.png")
    assert nvdla_command("compile", tmp_path / "net.tflite", "-o", tmp_path / "net.nvdla")[0] == 0
    runtime = nvdla.Runtime(tmp_path / "net.nvdla")
    real = 0.02 * (picture.astype(np.float32) + np.iinfo(kind).min - point)
    assert runtime.surfaces(tmp_path / "in.png") == runtime.surfaces(real[None])


def test_a_picture_far_outside_the_calibrated_range_is_refused(folder, tmp_path, nvdla_command):
    """Calibrated with numbers of about -2 to 2, and run on pixels 0..255."""
    np.savez(tmp_path / "data.npz", images=numbers(folder))
    loadable = tmp_path / "net.nvdla"
    assert nvdla_command("compile", folder / "last.onnx", "--calibrate", tmp_path / "data.npz", "-o", loadable)[0] == 0
    for words in (("run", loadable, "--input", folder / "images" / "0.png"),
                  ("evaluate", loadable, folder / "images", "--predict-only")):  # fmt: skip
        status, _, error = nvdla_command(*words)
        assert status != 0
        assert "a picture must have numbers of about" in error


@pytest.mark.parametrize("ending", ["nvdla", "nvpkg"])
def test_real_numbers_far_outside_the_calibrated_range_are_limited_with_a_warning(
    folder, ending, tmp_path, nvdla_command
):
    compiled = nvdla.compile(folder / "last.onnx", calibration=numbers(folder).astype(np.float32))
    compiled.save(tmp_path / f"net.{ending}")
    pixels = (127 * numbers(folder)[:2]).astype(np.float32)
    np.savez(tmp_path / "data.npz", images=pixels, labels=[0, 1])
    with pytest.warns(UserWarning, match="far out of its range"):
        open_network(str(tmp_path / f"net.{ending}")).prepare(pixels[0])
    status, _, error = nvdla_command("evaluate", tmp_path / f"net.{ending}", tmp_path / "data.npz", "--predict-only")
    assert status == 0 and error.count("far out of its range") == 1
    with pytest.warns(UserWarning, match="far out of its range"):
        compiled.run(pixels[:1])


@pytest.mark.parametrize("name", ["last", "first"])
def test_calibration_arrays_may_have_either_order(folder, tmp_path, name):
    last = numbers(folder).astype(np.float32)
    scales = []
    for array in (last, np.ascontiguousarray(last.transpose(0, 3, 1, 2))):
        compiled = nvdla.compile(folder / f"{name}.onnx", calibration=array)
        scales.append({key: row["scale"] for key, row in compiled.parts[0].built.sidecar["tensors"].items()})
    assert scales[0] == scales[1]
    np.save(tmp_path / "one.npy", last[:1].transpose(0, 3, 1, 2))
    words = ["compile", folder / f"{name}.onnx", "--calibrate", tmp_path / "one.npy", "-o", tmp_path / "net.nvdla"]
    assert main(list(map(str, words))) == 0


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("count", [1, 5])
def test_calibration_arrays_of_gray_pictures_need_no_channel(last, count):
    gray = np.random.default_rng(3).integers(0, 256, (count, HEIGHT, WIDTH), np.uint8)
    alike = [
        nvdla.compile(model(last, 1), calibration=array).package
        for array in (gray, gray[..., None] if last else gray[:, None])
    ]
    assert alike[0] == alike[1]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_compiled_model_runs_several_images_in_either_order(channels):
    """Each has its result: a batch with channels first must not become one run."""
    gray = np.random.default_rng(4).normal(size=(3, HEIGHT, WIDTH, channels)).astype(np.float32)
    compiled = nvdla.compile(model(True, channels), "nv_small", calibration=gray)
    results = [compiled.run(array)["out"] for array in (gray, np.ascontiguousarray(gray.transpose(0, 3, 1, 2)))]
    assert results[0].shape[0] == 3
    np.testing.assert_array_equal(*results)
    with pytest.raises(nvdla.FormatError, match="shape must be"):
        compiled.run(np.zeros((1, channels, HEIGHT, 2 * WIDTH), np.float32))


@pytest.mark.parametrize("last", [False, True])
def test_a_package_takes_real_numbers_in_either_order_and_no_other(last, tmp_path, nvdla_command, monkeypatch):
    """As a loadable does: axes in a third order would be read as noise."""
    monkeypatch.chdir(tmp_path)
    calibration = np.random.default_rng(5).normal(size=(4, HEIGHT, WIDTH, 3)).astype(np.float32)
    Path("net.nvpkg").write_bytes(nvdla.compile(model(last, 3), calibration=calibration).package)
    net, results = nvdla.load("net.nvpkg"), []
    image = calibration[0] if last else calibration[0].transpose(2, 0, 1)
    for order in ((0, 1, 2), (2, 0, 1)) if last else ((0, 1, 2), (1, 2, 0)):
        for array in (image.transpose(order), image.transpose(order)[None]):
            results.append(net.run(array)["out"])
            np.save("x.npy", array)
            assert nvdla_command("run", "net.nvpkg", "-i", "x.npy", "-o", "y.npy")[0] == 0
            results.append(np.load("y.npy"))
            results.append(PackageNetwork("net.nvpkg").machine.run(PackageNetwork("net.nvpkg").prepare(array))["out"])
    assert all(np.array_equal(result, results[0]) for result in results)
    for order in ((1, 0, 2), (0, 2, 1)):
        wrong = image.transpose(order)
        np.save("x.npy", wrong)
        for run in (net.run, PackageNetwork("net.nvpkg").prepare):
            with pytest.raises(nvdla.FormatError, match="shape must be"):
                run(wrong)
        assert nvdla_command("run", "net.nvpkg", "-i", "x.npy")[0] == 2


def test_a_value_that_a_part_spreads_is_transferred_once(tmp_path, nvdla_command):
    """A number per channel from the host, by which a map is multiplied: as many bytes as compile states."""
    nodes = [
        helper.make_node("Conv", ["data", "weights"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["m"]),
        helper.make_node("CumSum", ["m", "axis"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["out"]),
    ]
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        nodes,
        "gate",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 8, 6, 6])],
        [
            helper.make_tensor("weights", TensorProto.FLOAT, [8, 3, 3, 3], rng.normal(size=216)),
            helper.make_tensor("axis", TensorProto.INT64, [], [1]),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    compiled = nvdla.compile(proto, "nv_small", calibration=rng.normal(size=(4, 3, 8, 8)).astype(np.float32))
    compiled.save(tmp_path / "net.nvpkg")
    stated = compiled.summary["bytes_crossing"]
    document = json.loads(nvdla_command("cycles", tmp_path / "net.nvpkg", "--json")[1])
    assert document["totals"]["transferred_bytes"] == stated


def test_a_package_refuses_pictures_with_other_numbers_as_its_loadable_does(folder, capsys):
    """Calibrated with numbers from 0 to 1, without --std: pixels from 0 to 255 mean something else."""
    np.save(folder / "unit.npy", pixels(folder) / np.float32(255))
    for name in ("unit.nvdla", "unit.nvpkg"):
        words = ["compile", folder / "last.onnx", "--calibrate", folder / "unit.npy", "-o", folder / name]
        assert main([*map(str, words)]) == 0
        for command in (["evaluate", "--predict-only"], ["faults", "--count", "1"]):
            words = [command[0], folder / name, folder / "images", *command[1:]]
            assert main([*map(str, words)]) != 0
            assert "a picture must have numbers of about" in capsys.readouterr().err
        assert main(["evaluate", *map(str, (folder / name, folder / "images")), "--predict-only", "--std", "255"]) == 0


@pytest.mark.parametrize("name", ["net.nvdla", "net.nvpkg"])
def test_sequences_are_taken_as_the_model_has_them(tmp_path, capsys, name):
    """A convolution along one axis, of a model with channels last: samples (T, C)."""
    rng = np.random.default_rng(0)
    writer = FlatWriter()
    writer.tensor((1, 1, 20, 3), "float32", name="x")
    writer.constant(rng.normal(size=(4, 1, 3, 3)).astype(np.float32))
    writer.constant(np.zeros(4, np.float32))
    writer.tensor((1, 1, 18, 4), "float32", name="y")
    writer.operator("CONV_2D", [0, 1, 2], [3], padding=1, stride_w=1, stride_h=1)
    (tmp_path / "net.tflite").write_bytes(writer.model([0], [3]))
    samples = rng.normal(size=(5, 20, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", samples)
    nvdla.compile(tmp_path / "net.tflite", "nv_small", calibration=samples[:, None]).save(tmp_path / name)
    network = nvdla.load(tmp_path / name)
    whole = network.run(samples[:1, None])["y"]
    assert np.array_equal(network.run(samples[0])["y"], whole)
    assert main(["evaluate", *map(str, (tmp_path / name, tmp_path / "x.npy")), "--predict-only", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["samples"] == 5
    with pytest.raises(FormatError, match=r"Give one image per file"):
        network.run(samples)


def test_channels_of_an_output_are_those_of_its_last_axis():
    """Rows are no channels: a channel that eight bits cannot hold has a note."""
    rng = np.random.default_rng(0)
    writer = FlatWriter()
    writer.tensor((1, 6, 5, 2), "float32", name="x")
    weights = rng.normal(size=(3, 1, 1, 2)) * np.array([1, 100, 0.01]).reshape(3, 1, 1, 1)
    writer.constant(weights.astype(np.float32))
    writer.constant(np.zeros(3, np.float32))
    writer.tensor((1, 6, 5, 3), "float32", name="y")
    writer.operator("CONV_2D", [0, 1, 2], [3], padding=1, stride_w=1, stride_h=1)
    data = rng.normal(size=(8, 6, 5, 2)).astype(np.float32)
    report = nvdla.compile(writer.model([0], [3]), "nv_small", calibration=data).report
    rows = report["accuracy"][-1]["channels"]
    assert sum(row["count"] for row in rows) == 3 and {row["weak"] for row in rows} == {"", "0", "2"}
    assert any("output y: 2 of 3 channels (0, 2) stay below two int8 units" in note for note in report["notes"])
