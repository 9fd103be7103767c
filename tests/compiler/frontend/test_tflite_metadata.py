"""The normalization that the metadata of a TFLite file specify is what compile, run and evaluate take pictures with."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from PIL import Image
from support.tflite_writer import FlatWriter, pictures_metadata

import nvdla
from nvdla.compiler.frontend.tflite import tflite_proto
from nvdla.errors import FormatError
from nvdla.experiments.evaluation import open_network
from nvdla.tensors.inputs import Preprocessing

MEAN, STD = (100.0, 110.0, 120.0), (50.0, 60.0, 70.0)
PICTURE = np.random.default_rng(5).integers(0, 256, (8, 6, 3), np.uint8)


def model(metadata: bytes, kind: str = "float32", scale: float | None = None, zero: int = 0) -> bytes:
    """A sum of the channels of each pixel."""
    writer = FlatWriter()
    writer.tensor((1, 8, 6, 3), kind, scale, zero, name="data")
    real = scale is None
    writer.constant(np.ones((1, 1, 1, 3), np.float32 if real else np.int8), None if real else 0.5)
    writer.constant(np.zeros(1, np.float32 if real else np.int32), None if real else scale * 0.5)
    writer.tensor((1, 8, 6, 1), kind, None if real else 0.2, 0 if kind != "uint8" else 128, name="out")
    writer.operator("CONV_2D", [0, 1, 2], [3], padding=1, stride_w=1, stride_h=1)
    return writer.model([0], [3], metadata)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    Image.fromarray(PICTURE).save(tmp_path / "images" / "in.png")
    return tmp_path


def compiled(folder, command, data, *options):
    """The layer file's mean and scale, and the notes of the compilation."""
    (folder / "net.tflite").write_bytes(data)
    words = ["compile", folder / "net.tflite", "-o", folder / "net.nvdla", "--json", *options]
    status, out, err = command(*words)
    assert status == 0, err
    stated = json.loads((folder / "net.nvdla.layers.json").read_text())["preprocessing"]
    return stated["mean"], stated["scale"], json.loads(out)["notes"]


@pytest.mark.parametrize("options", [["--precision", "fp16", "--config", "nv_full"], ["--calibrate", "images"]])
def test_a_picture_is_normalized_as_the_metadata_say(options, folder, nvdla_command, monkeypatch):
    monkeypatch.chdir(folder)
    mean, scale, notes = compiled(folder, nvdla_command, model(pictures_metadata(MEAN, STD)), *options)
    assert mean == list(MEAN)
    np.testing.assert_allclose(scale, 1 / np.array(STD))
    assert notes == ["pictures: mean 100, 110, 120, standard deviation 50, 60, 70, from the metadata of the file"]
    wanted = ((PICTURE - np.array(MEAN)) / STD).sum(axis=2)
    got = nvdla.Runtime(folder / "net.nvdla").run(folder / "images" / "in.png", real=True)
    got = next(iter(got.values()))
    assert np.abs(got.ravel() - wanted.ravel()).max() < 0.02 * np.abs(wanted).max()
    samples = folder / "samples.jsonl"
    words = ["evaluate", folder / "net.nvdla", folder / "images", "--predict-only", "--samples", samples]
    assert nvdla_command(*words)[0] == 0
    (top, _), *_ = json.loads(samples.read_text().splitlines()[-1])["top"]
    assert top == int(got.argmax())


def test_a_package_takes_pictures_so_as_well(folder):
    (folder / "net.tflite").write_bytes(model(pictures_metadata((127.5,), (127.5,))))
    made = nvdla.compile(str(folder / "net.tflite"), "nv_full", "fp16")
    found = made.run(str(folder / "images" / "in.png"))["out"]
    wanted = (PICTURE / 127.5 - 1).sum(axis=2)
    np.testing.assert_allclose(found.ravel(), wanted.ravel(), atol=0.01)
    made.save(folder / "net.nvpkg")
    package = nvdla.compiler.frontend.package.unpack(folder / "net.nvpkg")
    np.testing.assert_array_equal(package.machine().run({"data": str(folder / "images" / "in.png")})["out"], found)


@pytest.mark.parametrize(
    ("options", "mean", "scale"),
    [
        (["--mean", "0"], [0.0], [1.0]),
        (["--std", "2"], [0.0], [0.5]),
        (["--no-preprocess"], [0.0], [1.0]),
        (["--resize"], list(MEAN), [1 / each for each in STD]),
    ],
)
def test_stated_numbers_replace_those_of_the_file(options, mean, scale, folder, nvdla_command):
    form = ("--precision", "fp16", "--config", "nv_full")
    data = model(pictures_metadata(MEAN, STD))
    found_mean, found_scale, notes = compiled(folder, nvdla_command, data, *form, *options)
    assert found_mean == mean
    np.testing.assert_allclose(found_scale, scale)
    assert any("metadata" in note for note in notes) == (options == ["--resize"])


@pytest.mark.parametrize(
    ("kind", "scale", "zero", "numbers", "mean", "words"),
    [
        ("uint8", 1 / 128, 128, (127.5, 127.5), 128.0, None),  # the elements themselves
        ("int8", 1 / 128, 0, (127.5, 127.5), 128.0, None),
        ("uint8", 1 / 128, 128, (0.0, 1.0), 128.0, "not used, because the 8-bit input cannot hold these numbers"),
        ("int8", 0.02, -14, (120.0, 60.0), 120.0, "pictures: mean 120, standard deviation 60, from the metadata"),
    ],
)
def test_an_input_of_8_bits(kind, scale, zero, numbers, mean, words, folder, nvdla_command):
    data = model(pictures_metadata(*[[each] for each in numbers]), kind, scale, zero)
    found, _, notes = compiled(folder, nvdla_command, data)
    assert found == [mean]
    assert [note for note in notes if "pictures" in note] == [note for note in notes if words and words in note]
    assert any(words in note for note in notes) if words else True


@pytest.mark.parametrize(
    ("options", "outside"),
    [
        (
            ["--mean", "127", "--std", "127"],
            "become -1 to 1.01 (--mean, --std; Python: preprocessing=), but the quantized input data holds 0 to 1",
        ),
        (
            ["--mean", "0", "--std", "128"],
            "become 0 to 1.99 (--mean, --std; Python: preprocessing=), but the quantized input data holds 0 to 1",
        ),
        (["--std", "255"], None),
        (["--std", "250"], None),  # 2 per cent of the pixels
        ([], None),
    ],
)
def test_pixels_outside_of_a_quantized_input_are_reported(options, outside, folder, nvdla_command):
    notes = compiled(folder, nvdla_command, model(b"", "int8", 1 / 255, -128), *options)[2]
    found = [note for note in notes if note.startswith("pictures:")]
    if outside is None:
        assert not found
    else:
        assert outside in found[0] and "is limited to that. Check that these are" in found[0]


@pytest.mark.parametrize(
    ("scale", "point", "is_usual"),
    [(1 / 255, -128, True), (1 / 127.5, 0, True), (1.0, -128, True), (0.00615, -4, False), (0.902, -128, False)],
)
def test_pixels_that_become_elements_of_an_unusual_range_have_a_note(scale, point, is_usual, folder, nvdla_command):
    """The samples of the conversion did not have all pixels: the training had another normalization."""
    notes = compiled(folder, nvdla_command, model(b"", "int8", scale, point))[2]
    found = [note for note in notes if "which is not a usual range. Give the --mean and --std" in note]
    assert bool(found) is not is_usual


def test_python_takes_pixels_of_an_8_bit_input_as_the_command_does():
    made = nvdla.compile(model(b"", "uint8", 0.02, 100), "nv_small")
    wanted = ((PICTURE.astype(float) - 100) * 0.02 * 0.5).sum(axis=2)
    for given in (PICTURE, PICTURE[None]):
        assert np.abs(made.run(given)["out"].ravel() - wanted.ravel()).max() <= 0.2
    with pytest.raises(FormatError, match=r"a picture must have numbers of about -2 to 3.1, the calibrated range, got"):
        made.run(PICTURE.ravel())


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (pictures_metadata((1.0, 2.0), (1.0,)), "must be one number or one per channel [3], got 2 and 1"),
        (pictures_metadata((1.0,), (0.0,)), "metadata: mean and std: must be finite, std not 0"),
        (pictures_metadata((np.nan,), (1.0,)), "metadata: mean and std: must be finite, std not 0"),
        (pictures_metadata((1.0,), (1.0,))[:60], "net: "),
        (b"\0", "net: "),
    ],
)  # fmt: skip
def test_damaged_metadata_are_one_error(metadata, words):
    with pytest.raises(FormatError, match=re.escape(words)):
        tflite_proto(onnx, model(metadata), "net", {})


def test_metadata_with_any_changed_byte_are_read_or_refused():
    data = pictures_metadata(MEAN, STD)
    for place in range(len(data)):
        for value in (0, 0x7F, 0xFF):
            try:
                tflite_proto(onnx, model(data[:place] + bytes([value]) + data[place + 1 :]), "net", {})
            except FormatError as error:
                assert str(error).startswith("net: ")


def test_numbers_that_an_onnx_model_claims_are_checked():
    proto = tflite_proto(onnx, model(pictures_metadata(MEAN, STD)), "net", {})[1]
    proto.metadata_props[0].value = "[[1], 2]"
    with pytest.raises(FormatError, match=r"metadata nvdla\.normalization: must be two lists of numbers"):
        nvdla.compile(proto, "nv_full", "fp16")


def test_preprocessing_without_numbers_has_those_of_pixels():
    assert Preprocessing().document()["mean"] == [0.0]
    assert Preprocessing().document()["scale"] == [1.0]


def test_a_mean_of_numbers_from_0_to_1_is_noted():
    """Pixels are 0 to 255; PyTorch's usual means are of numbers up to 1."""
    proto = tflite_proto(onnx, model(pictures_metadata(MEAN, STD)), "net", {})[1]
    for mean, noted in (((0.485, 0.456, 0.406), True), ((123.7, 116.3, 103.5), False)):
        given = Preprocessing(mean=mean, scale=(0.02,))
        notes = nvdla.compile(proto, "nv_full", "fp16", preprocessing=given).report["notes"]
        assert any("Multiply the mean and std" in note for note in notes) is noted


@pytest.mark.parametrize("shape", [(8, 6, 3), (1, 8, 6, 3)])
def test_uint8_arrays_are_pixels_for_every_command(shape, folder, nvdla_command):
    """As in the picture that holds them, for a loadable, a package and an evaluation of either."""
    (folder / "net.tflite").write_bytes(model(pictures_metadata(MEAN, STD), "uint8", 0.04, 127))
    whole, image = nvdla.compile(str(folder / "net.tflite"), "nv_small"), folder / "images" / "in.png"
    np.save(folder / "in.npy", PICTURE.reshape(shape))
    wanted = whole.run(str(image))["out"].ravel()
    for given in (PICTURE.reshape(shape), str(folder / "in.npy")):
        assert np.array_equal(whole.run(given)["out"].ravel(), wanted)
    (folder / "arrays").mkdir()
    np.save(folder / "arrays" / "in.npy", PICTURE.reshape(shape))
    for name in ("net.nvdla", "net.nvpkg"):
        whole.save(folder / name)
        printed = [
            nvdla_command("run", folder / name, "-i", given, "--json", *options)
            for given, *options in ((image, "--real"), (folder / "in.npy", "--real"))
        ]
        tops = [json.loads(out)["outputs"] for _, out, _ in printed]
        assert tops[0] == tops[1]
        found = []
        for data in ("images", "arrays"):
            samples = folder / f"{name}.{data}.jsonl"
            words = ["evaluate", folder / name, folder / data, "--predict-only", "--samples", samples]
            assert nvdla_command(*words)[0] == 0
            found.append(json.loads(samples.read_text().splitlines()[-1])["hash"])
        assert found[0] == found[1]
        network = open_network(str(folder / name))
        assert np.array_equal(network.prepare(PICTURE.reshape(shape)), network.prepare(image))
