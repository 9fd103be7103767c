"""A network that takes several images at a time: each image of the data counts alone."""

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
from nvdla.experiments.evaluation import open_network
from nvdla.program.naming import names_for
from nvdla.tensors.inputs import Preprocessing
from tests.compiler.frontend.test_batches import classifier

UNIT = Preprocessing(scale=(1 / 255,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The classifier for one image and for three, 20 pictures of 6 x 6 pixels, and numbers for them as labels."""
    folder = tmp_path_factory.mktemp("batches")
    rng = np.random.default_rng(3)
    pictures = rng.integers(0, 256, (20, 6, 6, 3), np.uint8)
    np.savez(folder / "data.npz", images=pictures, labels=np.arange(20) % 5)
    np.savez(folder / "numbers.npz", images=pictures, labels=rng.random((20, 5)))
    (folder / "pictures").mkdir()
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / "pictures" / f"{number:02}.png")
    for images in (1, 3):
        (folder / f"{images}.onnx").write_bytes(classifier(images).SerializeToString())
        options = {"calibration": folder / "pictures", "preprocessing": UNIT}
        compiled = nvdla.compile(folder / f"{images}.onnx", "nv_small", **options)
        for ending in ("loadable", "nvpkg"):
            compiled.save(folder / f"{images}.{ending}")
    return folder


def evaluated(capsys, *words):
    assert main(["evaluate", *map(str, words), "--workers", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["summary"]


def test_calibration_with_pictures_sees_each_once(folder):
    """The scales of a batch are those of one image."""
    single, batch = (names_for(folder / f"{images}.loadable").scales for images in (1, 3))
    assert single == batch


@pytest.mark.parametrize("ending", ["loadable", "nvpkg"])
@pytest.mark.parametrize("model", ["1.onnx", "3.onnx"])
def test_figures_are_those_of_the_network_for_one_image(folder, capsys, ending, model):
    single, batch = (
        evaluated(capsys, folder / f"{images}.{ending}", folder / "data.npz", "--against", folder / model)
        for images in (1, 3)
    )
    assert batch["samples"] == 20
    assert {name: batch[name] for name in ("top1", "classes")} == {name: single[name] for name in ("top1", "classes")}
    assert batch["float"].pop("snr_db") == pytest.approx(single["float"].pop("snr_db"))
    assert batch["float"] == single["float"]


@pytest.mark.parametrize("ending", ["loadable", "nvpkg"])
def test_all_outputs_of_each_image_are_given_to_decoders(folder, ending):
    networks = [open_network(str(folder / f"{images}.{ending}")) for images in (1, 3)]
    files = sorted((folder / "pictures").iterdir())[:4]
    single, batch = (network.outputs_of([network.prepare(file) for file in files]) for network in networks)
    assert len(single) == len(batch) == 4
    for one, other in zip(single, batch, strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("ending", ["loadable", "nvpkg"])
def test_a_sample_of_several_images_has_one_label_and_is_refused(folder, ending):
    network = open_network(str(folder / f"3.{ending}"))
    with pytest.raises(
        FormatError, match=r"must be one image of shape 1x3x6x6, got 3x3x6x6\. Give each image with its"
    ):
        network.prepare(np.zeros((3, 3, 6, 6), np.float32))


def test_images_in_one_tensor_are_not_taken_for_one(folder):
    """Layers in int16 beside int8 take the batch as it is: a tensor holds all its images."""
    options = {"calibration": folder / "pictures", "preprocessing": UNIT}
    compiled = nvdla.compile(folder / "3.onnx", "nv_full", "auto", **options)
    compiled.save(folder / "auto.loadable")
    with pytest.raises(FormatError, match=r"batch: must be 1 or images apart, got 3 images in one tensor"):
        open_network(str(folder / "auto.loadable"))


def test_numbers_as_labels_say_nothing_about_classes(folder, capsys):
    words = folder / "1.loadable", folder / "numbers.npz", "--against", folder / "1.onnx"
    found = evaluated(capsys, *words)["float"]
    assert found["agreement"]["value"] is None and found["snr_db"] > 20
    assert main(["evaluate", *map(str, words)]) == 0
    assert "same top-1" not in capsys.readouterr().out


def test_faults_need_one_image_at_a_time(folder, capsys):
    for ending in ("loadable", "nvpkg"):
        assert main(["faults", str(folder / f"3.{ending}"), str(folder / "pictures"), "--count", "1"]) == 2
        assert "faults: batch must be 1, got 3. Export the model with a batch of 1." in capsys.readouterr().err


def test_a_run_follows_the_warnings_before_it(folder):
    """Warnings come from a dry run, which counts dependencies down in the memory of the network."""
    network = open_network(str(folder / "1.loadable"))
    sample = network.prepare(folder / "pictures" / "00.png")
    assert network.warnings() == [] and network.run([sample]).shape == (1, 5)
