"""Images become tensors as NVIDIA's runtime makes them."""

import numpy as np
import pytest
from PIL import Image

from nvdla import FormatError
from nvdla.tensors.images import PixelConversion, describe_gray, load_image
from nvdla.tensors.inputs import InputForm, Preprocessing, preprocessing_for


@pytest.fixture
def grey(tmp_path):
    path = tmp_path / "grey.pgm"
    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(path)
    return path


@pytest.fixture
def color(tmp_path):
    path = tmp_path / "color.png"
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[..., 0], pixels[..., 1], pixels[..., 2] = 10, 20, 30
    Image.fromarray(pixels).save(path)
    return path


def test_int8_pixels_are_compressed_to_0_to_127_and_rounded_half_up(grey):
    tensor = load_image(grey, (1, 1, 16, 16), np.int8)
    assert tensor.dtype == np.int8
    assert tensor.reshape(-1).tolist() == [(p * 127 * 2 + 255) // 510 for p in range(256)]


def test_fp16_pixels_have_mean_and_normalize_applied(grey):
    tensor = load_image(grey, (1, 1, 16, 16), np.float16, PixelConversion(mean=(128.0,), std=(255.0,)))
    expected = ((np.arange(256, dtype=np.float32) - 128) / np.float32(255)).astype(np.float16)
    assert np.array_equal(tensor.reshape(-1), expected)


def test_the_default_channel_order_is_blue_green_red(color):
    bgr = load_image(color, (1, 3, 2, 3), np.float16)
    rgb = load_image(color, (1, 3, 2, 3), np.float16, PixelConversion(color="rgb"))
    assert bgr[0, :, 0, 0].tolist() == [30, 20, 10]
    assert rgb[0, :, 0, 0].tolist() == [10, 20, 30]


def test_another_size_is_refused_with_both_sizes_and_taken_on_request(grey):
    with pytest.raises(FormatError, match=r"28 x 28 .*16 x 16.*--resize"):
        load_image(grey, (1, 1, 28, 28), np.int8)
    assert load_image(grey, (1, 1, 28, 28), np.int8, PixelConversion(resize=True)).shape == (1, 1, 28, 28)


def test_a_gray_image_for_a_color_input_is_refused(grey):
    with pytest.raises(FormatError, match="3 channels"):
        load_image(grey, (1, 3, 16, 16), np.int8)


def test_a_color_image_for_a_gray_input_becomes_gray(color):
    gray = load_image(color, (1, 1, 2, 3), np.float16)
    assert gray[0, 0, 0, 0] == round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)
    assert "0.299 R" in describe_gray(color, 1) and describe_gray(color, 3) == ""


def test_mean_is_refused_for_int8_without_a_scale(grey):
    with pytest.raises(FormatError, match="must be omitted for an int8 input without a known scale"):
        load_image(grey, (1, 1, 16, 16), np.int8, PixelConversion(mean=(3.0,)))


def form_of_int8(given: PixelConversion, document: dict | None, zero: int = -128) -> InputForm:
    """An int8 input whose elements stand for 0 to 1."""
    model = preprocessing_for(document, given, 1 / 255)
    return InputForm("data", (1, 1, 16, 16), np.dtype(np.int8), 1 / 255, model, given, zero=zero)


@pytest.mark.parametrize("document", [None, Preprocessing((127.5,), (1 / 127.5,)).document()])
def test_a_divisor_is_applied_to_an_int8_input_with_scale_and_zero_point(grey, document):
    pixels = np.asarray(Image.open(grey))
    elements = form_of_int8(PixelConversion(std=(255.0,)), document).elements(grey)
    assert (elements[0, 0] == pixels.astype(int) - 128).all()


def test_given_numbers_keep_the_channel_order_of_the_model_and_an_order_keeps_its_numbers():
    model = Preprocessing((1.0,), (2.0,), "rgb", resize=True)
    assert model.changed_by(PixelConversion(std=(4.0,))) == Preprocessing((), (0.25,), "rgb")
    assert model.changed_by(PixelConversion(color="bgr")) == Preprocessing((1.0,), (2.0,), "bgr", resize=True)
    assert model.changed_by(PixelConversion(crop=3)) == Preprocessing((1.0,), (2.0,), "rgb", crop=3)


def test_a_file_that_is_no_image_is_named(tmp_path):
    path = tmp_path / "noise.png"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(FormatError, match=r"noise\.png"):
        load_image(path, (1, 1, 4, 4), np.int8)


def test_a_truncated_image_is_an_error(grey):
    grey.write_bytes(grey.read_bytes()[:-100])
    with pytest.raises(FormatError):
        load_image(grey, (1, 1, 16, 16), np.int8)
