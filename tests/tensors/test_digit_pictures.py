"""Pictures of digits become the form of MNIST: rules of nvdla.tensors.images.find_digit, in Python and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nvdla
from nvdla.cli.main import main
from nvdla.experiments.evaluation import open_network
from nvdla.tensors.images import INT8_OF_PIXEL, PixelConversion, describe_digit, find_digit
from nvdla.tensors.inputs import Preprocessing

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LENET = SAMPLES / "lenet.loadable"
SIZE = (28, 28)


def bar(ink: int = 20, paper: int = 230, mode: str = "L") -> Image.Image:
    """An upright bar of 30x100 pixels, off the middle of a picture of 300x200."""
    pixels = np.full((200, 300), paper, np.uint8)
    pixels[40:140, 60:90] = ink
    return Image.fromarray(pixels).convert(mode)


def found(image: Image.Image) -> np.ndarray:
    return find_digit(image, "x.png", SIZE)[0]


def test_the_digit_is_light_on_black_with_20_pixels_and_its_mass_in_the_middle():
    pixels = found(bar())
    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    assert (pixels.shape, pixels.dtype, pixels.max()) == ((28, 28), np.uint8, 255)
    assert (rows[0], rows[-1]) == (4, 23)
    assert (columns[0], columns[-1]) == (11, 16)
    assert pixels[0, 0] == 0


def test_light_ink_on_a_dark_board_is_the_same_digit():
    np.testing.assert_allclose(found(bar(230, 20)), found(bar(20, 230)), atol=8)


def test_color_transparency_and_size_make_no_difference():
    plain = found(bar())
    np.testing.assert_array_equal(found(bar(mode="RGB")), plain)
    clear = np.zeros((200, 300, 4), np.uint8)
    clear[40:140, 60:90] = (20, 20, 20, 255)
    np.testing.assert_allclose(found(Image.fromarray(clear)), plain, atol=8)
    large = bar().resize((2400, 1600), Image.Resampling.NEAREST)
    np.testing.assert_allclose(found(large).astype(int), plain.astype(int), atol=64)


def test_paper_that_is_lit_from_one_side_is_paper():
    light = np.linspace(0.5, 1, 300)
    pixels = np.asarray(bar(), np.float64) * light
    shadowed = found(Image.fromarray(pixels.astype(np.uint8)))
    rows, columns = np.flatnonzero(shadowed.any(axis=1)), np.flatnonzero(shadowed.any(axis=0))
    assert (rows[0], rows[-1]) == (4, 23)
    assert columns[-1] - columns[0] < 8


def test_a_picture_in_the_form_of_mnist_stays_as_it_is():
    for label in range(10):
        path = SAMPLES / f"digit{label}.pgm"
        with Image.open(path) as image:
            pixels, steps = find_digit(image, "x", SIZE)
            np.testing.assert_array_equal(pixels, np.asarray(image))
        assert steps == describe_digit(path, SIZE) == ""


def test_a_28x28_picture_on_light_paper_is_inverted():
    with Image.open(SAMPLES / "digit7.pgm") as image:
        inverted = Image.fromarray(255 - np.asarray(image))
    pixels, steps = find_digit(inverted, "x", SIZE)
    assert steps.startswith("inverted (light paper), cropped to ")
    assert pixels[0].max() == 0
    assert nvdla.Runtime(LENET).run(np.asarray(inverted))["prob"].argmax() == 7


def test_a_picture_without_contrast_is_refused():
    with pytest.raises(nvdla.FormatError, match=r"x\.png: digit: must have 24 .* got 9\."):
        find_digit(bar(100, 109), "x.png", SIZE)
    with pytest.raises(nvdla.FormatError, match=r"digit: must have"):
        find_digit(Image.new("L", (1, 1), 200), "x.png", SIZE)


def test_the_layer_file_asks_for_digits_and_the_elements_of_samples_stay():
    runtime = nvdla.Runtime(LENET)
    assert Preprocessing.of(runtime.names.preprocessing).digit
    form = runtime._input_form(runtime.inputs[0], "x.pgm", None)
    every = np.arange(784, dtype=np.uint16).reshape(28, 28).astype(np.uint8)
    every[[0, -1]], every[:, [0, -1]] = 0, 0
    np.testing.assert_array_equal(form.elements(every)[0, 0], INT8_OF_PIXEL[every])


def test_other_networks_and_other_documents_know_nothing_of_digits():
    assert "digit" not in Preprocessing().document()
    assert Preprocessing(digit=True).document()["digit"] is True
    assert not Preprocessing.of(Preprocessing().document()).digit
    with pytest.raises(nvdla.FormatError, match="300 x 200"):
        nvdla.Runtime(SAMPLES / "color_digits.loadable").run(bar(mode="RGB"))


def test_explicit_conversions_replace_that_of_digits():
    runtime = nvdla.Runtime(LENET)
    with pytest.raises(nvdla.FormatError, match="300 x 200"):
        runtime.run(bar(), preprocessing=PixelConversion())
    resized = runtime.surfaces(bar(), PixelConversion(resize=True))
    plain = bar().resize(SIZE, Image.Resampling.BILINEAR)
    assert resized == runtime.surfaces(plain, PixelConversion())
    assert resized != runtime.surfaces(bar())


def test_evaluation_prepares_pictures_as_a_run_does(tmp_path):
    network, runtime = open_network(str(LENET)), nvdla.Runtime(LENET)
    bar().save(tmp_path / "bar.png")
    expected = runtime.surfaces(bar())[0]
    for value in (str(tmp_path / "bar.png"), np.asarray(bar())):
        (surface,) = network.surfaces([network.prepare(value)])
        assert bytes(surface) == expected
    assert [each.tobytes() for each in network.prepare_many([np.asarray(bar())] * 2)] == [
        network.prepare(np.asarray(bar())).tobytes()
    ] * 2


def test_run_reports_the_steps_in_one_line(tmp_path, capsys):
    path = tmp_path / "seven.png"
    with Image.open(SAMPLES / "digit7.pgm") as image:
        large = Image.fromarray(255 - np.asarray(image)).resize((420, 420), Image.Resampling.BICUBIC)
    large.convert("RGB").save(path)
    words = ["run", str(LENET), "--input", str(path), "--top", "1"]
    assert main(words) == 0
    printed = capsys.readouterr()
    lines = [*printed.err.splitlines(), *printed.out.splitlines()]
    assert lines[0].startswith(f"{path}: converted to gray, inverted (light paper), cropped to ")
    assert lines[0].endswith(", centered in 28x28")
    assert lines[2].split()[0] == "7"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == {str(path): lines[0].partition(": ")[2]}


def test_run_without_preprocessing_takes_the_pixels_as_they_are(tmp_path, capsys):
    bar().save(tmp_path / "bar.png")
    words = ["run", str(LENET), "--input", str(tmp_path / "bar.png"), "--no-preprocess"]
    assert main(words) == 2
    assert "300 x 200" in capsys.readouterr().err
    assert main([*words, "--resize"]) == 0
    assert "cropped" not in capsys.readouterr().out
    light = 255 - np.asarray(Image.open(SAMPLES / "digit3.pgm"))
    Image.fromarray(light).save(tmp_path / "bar.png")
    assert main([*words, "-o", str(tmp_path / "out.npy")]) == 0
    expected = nvdla.Runtime(LENET).run(INT8_OF_PIXEL[light][None, None])["prob"]
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)


def test_the_preprocessing_of_a_layer_file_is_checked():
    document = Preprocessing(digit=True).document()
    del document["mean"]
    with pytest.raises(nvdla.FormatError, match="mean"):
        Preprocessing.of(document)


@pytest.mark.parametrize("name", ["lenet_nv_large", "lenet_nv_full_fp16"])
def test_every_sample_lenet_takes_pictures_of_any_size(name):
    path = SAMPLES / f"{name}.loadable"
    runtime, network = nvdla.Runtime(path), open_network(str(path))
    with Image.open(SAMPLES / "digit3.pgm") as image:
        large = Image.fromarray(255 - np.asarray(image)).resize((280, 280), Image.Resampling.BICUBIC)
    assert runtime.run(large)["prob"].argmax() == 3
    assert network.run([network.prepare(np.asarray(large))]).argmax() == 3
