"""Images that are scaled and cropped: the shorter side, then the center, with the arithmetic of PIL or of OpenCV."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nvdla
from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.tensors.files import fit
from nvdla.tensors.images import MAX_PIXELS, PixelConversion, read_pixels
from nvdla.tensors.inputs import Preprocessing, planes

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LENET = str(SAMPLES / "lenet.loadable")
#: a 6 x 4 picture of pixels (37 * place) % 256, scaled by cv2.resize (OpenCV 5.0, INTER_LINEAR)
OPENCV = {
    (3, 2): [[66, 76, 150], [190, 72, 82]],
    (4, 3): [[35, 59, 114, 170], [182, 46, 69, 125], [169, 192, 24, 79]],
    (9, 5): [
        [0, 18, 43, 68, 92, 117, 142, 166, 185],
        [155, 84, 19, 44, 68, 93, 118, 143, 161],
        [205, 160, 99, 38, 42, 66, 91, 116, 134],
        [178, 196, 191, 96, 53, 39, 63, 88, 107],
        [154, 172, 197, 222, 118, 15, 40, 64, 83],
    ],
}


def picture(width: int, height: int, channels: int = 3) -> np.ndarray:
    generator = np.random.default_rng(width * height)
    return generator.integers(0, 256, (height, width, channels), dtype=np.uint8)


@pytest.mark.parametrize(("width", "height", "scaled"), [(50, 40, (20, 16)), (41, 50, (16, 19)), (16, 16, (16, 16))])
def test_the_shorter_side_then_the_center(width, height, scaled):
    pixels = picture(width, height)
    found = read_pixels(pixels, (1, 3, 12, 12), PixelConversion(color="rgb", resize=16, crop=12))
    whole = np.asarray(Image.fromarray(pixels).resize(scaled, Image.Resampling.BILINEAR))
    left, top = (round((side - 12) / 2) for side in scaled)
    assert np.array_equal(found[0], whole[top : top + 12, left : left + 12].transpose(2, 0, 1))
    as_array = planes(pixels, (3, 12, 12), PixelConversion(resize=16, crop=12))
    assert np.array_equal(as_array, found)


def test_crop_alone_keeps_the_pixels():
    pixels = picture(21, 15)
    found = read_pixels(pixels, (1, 3, 10, 10), PixelConversion(color="rgb", crop=10))
    assert np.array_equal(found[0], pixels[2:12, 6:16].transpose(2, 0, 1))


@pytest.mark.parametrize("size", OPENCV)
def test_the_interpolation_of_opencv(size):
    pixels = np.array([(37 * place) % 256 for place in range(24)], np.uint8).reshape(4, 6)
    conversion = PixelConversion(resize=True, interpolation="opencv")
    found = read_pixels(pixels, (1, 1, size[1], size[0]), conversion)
    assert found[0, 0].tolist() == OPENCV[size]


@pytest.mark.parametrize(
    ("conversion", "text"),
    [
        (PixelConversion(crop=16), "--crop 16: must be at most 15, the shorter side"),
        (PixelConversion(resize=True, crop=10), "--resize: must be the shorter side in pixels with --crop"),
        (PixelConversion(resize=12), "size: must be 10 x 10 .*, got 16 x 12. Scale the image, or use --resize"),
        (PixelConversion(resize=1 << 16), f"must be at most {MAX_PIXELS} pixels"),
    ],
)
def test_sizes_that_do_not_fit(conversion, text):
    with pytest.raises(FormatError, match=text):
        read_pixels(picture(21, 15), (1, 3, 10, 10), conversion)


def test_a_long_thin_picture_is_refused_before_it_is_scaled(tmp_path):
    Image.new("L", (60000, 1)).save(tmp_path / "thin.png")
    with pytest.raises(FormatError, match="scaled to 15360000 x 256: must be at most"):
        nvdla.Runtime(LENET).surfaces(str(tmp_path / "thin.png"), PixelConversion(resize=256, crop=28))


def test_the_sizes_are_a_part_of_the_layer_file():
    model = Preprocessing(resize=256, crop=224, interpolation="opencv")
    assert Preprocessing.of(model.document()) == model.stated
    assert set(Preprocessing().document()) == {"mean", "scale", "color", "layout", "resize"}
    for wrong in ({"resize": -1}, {"crop": 1 << 20}, {"resize": "256"}, {"crop": None}):
        with pytest.raises(FormatError, match="preprocessing of the layer file"):
            Preprocessing.of(model.document() | wrong)


def test_run_and_evaluate_take_the_same_sizes(tmp_path, capsys):
    image = Image.open(SAMPLES / "digit7.pgm")
    large = Image.new("L", (80, 60))
    large.paste(image.resize((42, 42)), (19, 9))
    (tmp_path / "7").mkdir()
    large.save(tmp_path / "7" / "large.png")
    sizes = ["--resize", "40", "--crop", "28", "--interpolation", "opencv"]
    surface = nvdla.Runtime(LENET).surfaces(
        str(tmp_path / "7" / "large.png"), PixelConversion(resize=40, crop=28, interpolation="opencv")
    )[0]
    (tmp_path / "surface.bin").write_bytes(surface)
    results = []
    for words in (["large.png", *sizes], ["surface.bin"]):
        folder = tmp_path / "7" if words[0].endswith("png") else tmp_path
        path = str(folder / words[0])
        assert main(["run", LENET, "--input", path, *words[1:], "-o", str(tmp_path / "out.npy")]) == 0
        results.append(np.load(tmp_path / "out.npy"))
    assert np.array_equal(*results)
    capsys.readouterr()
    words = ["evaluate", LENET, str(tmp_path / "7" / "large.png"), "--predict-only", "--samples"]
    assert main([*words, str(tmp_path / "s.jsonl"), "--workers", "1", *sizes]) == 0
    record = json.loads((tmp_path / "s.jsonl").read_text().splitlines()[1])
    assert record["top"][0] == [int(results[0].argmax()), int(results[0].max())]


def test_a_crop_is_a_number_of_pixels(capsys):
    """``--resize input`` exists, ``--crop input`` does not."""
    assert main(["evaluate", LENET, str(SAMPLES / "digits.npz"), "--crop", "input"]) == 2
    assert "--crop" in capsys.readouterr().err


def test_an_unknown_interpolation_of_a_layer_file_is_refused():
    document = Preprocessing().document() | {"interpolation": "nearest"}
    with pytest.raises(FormatError, match="interpolation must be one of pil, opencv, got nearest"):
        Preprocessing.of(document)


def test_several_gray_pictures_need_their_channel():
    with pytest.raises(FormatError, match=r"got 5x8x8\. Give several pictures with their channel, as 5x1x8x8\."):
        planes(np.zeros((5, 8, 8), np.uint8), (1, 8, 8))
    with pytest.raises(FormatError, match=r"got 5x9x8\. Scale the images, or use --resize\."):
        planes(np.zeros((5, 9, 8), np.uint8), (1, 8, 8))


def test_pictures_with_height_and_width_exchanged_are_refused():
    """They have the right number of pixels."""
    pixels = np.arange(240, dtype=np.uint8)
    for shape in ((10, 8, 3), (3, 10, 8), (10, 24)):
        with pytest.raises(FormatError, match="Are height and width exchanged"):
            planes(pixels.reshape(shape), (3, 8, 10))
    for array in (pixels, pixels.reshape(3, 8, 10), np.moveaxis(pixels.reshape(3, 8, 10), 0, -1)):
        assert np.array_equal(planes(array, (3, 8, 10)).ravel(), pixels)
    assert planes(pixels.reshape(3, 8, 10), (240, 1, 1)).shape == (1, 240, 1, 1)


def test_several_images_without_their_channel_are_refused_with_the_shape_that_python_takes():
    for shape in ((5, 28, 28), (5, 28, 28, 1), (5, 1, 28, 28)):
        with pytest.raises(FormatError, match=r"Give one image per file: .* in Python, run takes arrays as 5x1x28x28"):
            fit(np.zeros(shape, np.int8), (1, 1, 28, 28), np.dtype(np.int8), "input")
