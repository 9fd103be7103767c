"""Models that read digits: ``compile --digit`` lets users give photographs."""

import pytest
from PIL import Image, ImageDraw, ImageFont


def photograph(path):
    """A dark 7 on light paper, not centered."""
    image = Image.new("RGB", (300, 200), (230, 228, 220))
    ImageDraw.Draw(image).text((150, 40), "7", font=ImageFont.load_default(110), fill=(20, 20, 60))
    image.save(path)


def test_a_compiled_digit_model_reads_photographs(nvdla_command, samples, tmp_path):
    pytest.importorskip("onnxruntime")
    photograph(tmp_path / "photo.png")
    words = ["compile", samples / "lenet.onnx", "--calibrate", samples / "digits.npz", "-q"]
    assert nvdla_command(*words, "--digit", "-o", tmp_path / "digits.loadable")[0] == 0
    code, out, told = nvdla_command("run", tmp_path / "digits.loadable", "--input", tmp_path / "photo.png")
    assert code == 0
    assert out.split("prob:")[1].splitlines()[1].split()[0] == "7"
    assert "inverted" in told
    assert nvdla_command(*words, "-o", tmp_path / "plain.loadable")[0] == 0
    code, _, error = nvdla_command("run", tmp_path / "plain.loadable", "--input", tmp_path / "photo.png")
    assert code == 2
    assert "--resize" in error


def test_digits_have_one_channel(nvdla_command, samples, tmp_path):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "images"
    path.mkdir()
    photograph(path / "photo.png")
    onnx = pytest.importorskip("onnx")
    model = onnx.load(samples / "lenet.onnx")
    weights = next(each for each in model.graph.initializer if list(each.dims) == [6, 1, 5, 5])
    array = onnx.numpy_helper.to_array(weights).repeat(3, axis=1)
    weights.CopyFrom(onnx.numpy_helper.from_array(array, weights.name))
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 3
    onnx.save(model, tmp_path / "color.onnx")
    words = ["compile", tmp_path / "color.onnx", "--calibrate", path, "--digit", "-o", tmp_path / "x.loadable", "-q"]
    code, _, error = nvdla_command(*words)
    assert code == 2
    assert "--digit: input: must have one channel, got 3" in error
