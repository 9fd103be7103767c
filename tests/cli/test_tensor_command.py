"""``nvdla tensor`` as a user calls it."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import nvdla
from nvdla.cli.main import parser_of
from nvdla.tensors.images import PixelConversion

(COMMANDS,) = parser_of("tensor")._subparsers._group_actions
OPTIONS = set(COMMANDS.choices["convert"]._option_string_actions)


def options_in(text: str) -> set[str]:
    return set(re.findall(r"--[a-z-]+", text))


@pytest.fixture
def surface(nvdla_command, lenet, digit, tmp_path):
    """The raw output of a run, and the same as an array."""
    raw, array = tmp_path / "prob.bin", tmp_path / "prob.npy"
    assert nvdla_command("run", lenet, "-i", digit, "-o", raw)[0] == 0
    assert nvdla_command("run", lenet, "-i", digit, "-o", array)[0] == 0
    return raw, np.load(array)


def test_a_raw_output_becomes_an_array_and_a_surface_again(nvdla_command, lenet, surface, tmp_path):
    raw, array = surface
    where = f"{lenet}:prob"
    assert nvdla_command("tensor", "convert", raw, tmp_path / "t.npy", "--tensor", where)[0] == 0
    assert np.array_equal(np.load(tmp_path / "t.npy"), array)
    assert nvdla_command("tensor", "convert", tmp_path / "t.npy", tmp_path / "t.bin", "--tensor", where)[0] == 0
    assert (tmp_path / "t.bin").read_bytes() == raw.read_bytes()


def test_an_input_can_be_made_for_the_network(nvdla_command, lenet, digit, tmp_path):
    """An image, converted as NVIDIA's runtime does, packed by hand, is the surface that the runtime makes."""
    runtime = nvdla.Runtime(nvdla.load(lenet))
    expected = runtime.surfaces(digit)[0]
    pixels = tmp_path / "pixels.npy"
    assert nvdla_command("tensor", "convert", digit, pixels)[0] == 0
    values = np.floor(np.load(pixels) * 127.0 / 255.0 + 0.5).astype(np.int8)
    np.save(pixels, values)
    assert nvdla_command("tensor", "convert", pixels, tmp_path / "in.bin", "--tensor", lenet)[0] == 0
    assert (tmp_path / "in.bin").read_bytes() == expected


def photo(path):
    """A "1" on light paper, larger than the input of LeNet."""
    pixels = np.full((90, 120), 230, np.uint8)
    pixels[15:75, 55:65] = 40
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("name", ["lenet", "lenet_nv_full_fp16", "color_digits"])
@pytest.mark.parametrize("has_layer_file", [True, False])
def test_a_picture_becomes_the_bytes_with_which_it_runs(nvdla_command, lenet, tmp_path, name, has_layer_file):
    samples = Path(lenet).parent
    loadable = shutil.copy(samples / f"{name}.loadable", tmp_path)
    if has_layer_file:
        shutil.copy(samples / f"{name}.loadable.layers.json", tmp_path)
    sample = samples / ("color_digit3.ppm" if name == "color_digits" else "digit3.pgm")
    code, _, err = nvdla_command("tensor", "convert", sample, tmp_path / "in.bin", "--tensor", loadable)
    assert (code, options_in(err) - OPTIONS) == (0, set()), err
    assert [(tmp_path / "in.bin").read_bytes()] == nvdla.Runtime(loadable).surfaces(str(sample))


def test_options_of_pictures_are_those_of_a_run(nvdla_command, lenet, tmp_path):
    picture, loadable = tmp_path / "wide.png", Path(lenet).with_name("color_digits.loadable")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    Image.fromarray(pixels).save(picture)
    words = ("tensor", "convert", picture, tmp_path / "in.bin", "--tensor", loadable)
    assert nvdla_command(*words, "--resize", "--color", "rgb")[0] == 0
    conversion = PixelConversion(color="rgb", resize=True)
    assert [(tmp_path / "in.bin").read_bytes()] == nvdla.Runtime(loadable).surfaces(str(picture), conversion)


def test_a_digit_on_paper_is_found_as_by_a_run(nvdla_command, lenet, tmp_path):
    picture = photo(tmp_path / "photo.png")
    code, out, err = nvdla_command("tensor", "convert", picture, tmp_path / "in.bin", "--tensor", lenet)
    assert (code, err) == (0, f"{picture}: inverted (light paper), cropped to 10x60, centered in 28x28\n")
    assert out.startswith(f"{picture}: 1x1x90x120 uint8\n")
    assert [(tmp_path / "in.bin").read_bytes()] == nvdla.Runtime(lenet).surfaces(str(picture))


def test_a_scale_quantizes_the_pixels_of_a_picture(nvdla_command, lenet, digit, tmp_path):
    """They are real numbers: with a scale of 2, black and white are 0 and 127."""
    words = ("--tensor", lenet, "--quantization-scale", "2")
    assert nvdla_command("tensor", "convert", digit, tmp_path / "in.npy", *words)[0] == 0
    assert nvdla_command("tensor", "convert", digit, tmp_path / "pixels.npy")[0] == 0
    elements, pixels = (np.load(tmp_path / name) for name in ("in.npy", "pixels.npy"))
    assert elements.dtype == np.int8
    assert np.array_equal(elements, np.minimum((pixels.astype(int) + 1) // 2, 127))


@pytest.mark.parametrize("words", [(), ("--quantization-scale", "2"), ("--dtype", "int8")])
@pytest.mark.parametrize("name", ["lenet", "color_digits"])
def test_errors_of_pictures_advise_options_of_the_command_alone(nvdla_command, lenet, tmp_path, name, words):
    """Of the wrong size, and without any contrast in which a digit could be found."""
    Image.new("RGB", (64, 48), "white").save(tmp_path / "white.png")
    loadable = Path(lenet).with_name(f"{name}.loadable")
    code, _, err = nvdla_command(
        "tensor", "convert", tmp_path / "white.png", tmp_path / "in.bin", "--tensor", loadable, *words
    )
    assert (code, options_in(err) - OPTIONS) == (2, set()), err


def test_the_advice_about_integers_that_do_not_fit_can_be_followed(nvdla_command, tmp_path):
    """Integers are elements; the scale dequantizes them. Floating-point numbers are quantized."""
    np.save(tmp_path / "a.npy", np.full((1, 1, 28, 28), 254, np.uint8))
    np.save(tmp_path / "b.npy", np.full((1, 1, 28, 28), 254, np.float32))
    packed = ("--to-layout", "feature-x8", "--dtype", "int8")
    words = ("tensor", "convert", tmp_path / "a.npy", tmp_path / "a.bin", *packed)
    scale = ("--quantization-scale", "2")
    assert "Save them as floating-point numbers, then use --quantization-scale." in nvdla_command(*words)[2]
    words = ("tensor", "convert", tmp_path / "b.npy", tmp_path / "b.bin", *packed)
    assert "Use --quantization-scale and --zero-point to quantize them." in nvdla_command(*words)[2]
    assert nvdla_command(*words, *scale)[0] == 0


@pytest.mark.parametrize("layout", ["feature-x8", "feature-x32", "nhwc", "nchw"])
def test_layouts_are_given_explicitly(nvdla_command, tmp_path, layout):
    array = np.arange(-60, 60, dtype=np.int8).reshape(1, 10, 3, 4)
    np.save(tmp_path / "a.npy", array)
    code, _, err = nvdla_command("tensor", "convert", tmp_path / "a.npy", tmp_path / "a.bin", "--to-layout", layout)
    assert (code, err) == (0, "")
    words = ("--layout", layout, "--shape", "10,3,4", "--dtype", "int8")
    assert nvdla_command("tensor", "convert", tmp_path / "a.bin", tmp_path / "b.npy", *words)[0] == 0
    assert np.array_equal(np.load(tmp_path / "b.npy"), array)


def test_one_layout_becomes_another(nvdla_command, tmp_path):
    array = np.arange(0, 120, dtype=np.int8).reshape(1, 10, 3, 4)
    np.save(tmp_path / "a.npy", array)
    nvdla_command("tensor", "convert", tmp_path / "a.npy", tmp_path / "x8.bin", "--to-layout", "feature-x8")
    words = ("--layout", "feature-x8", "--shape", "1,10,3,4", "--to-layout", "feature-x32")
    assert nvdla_command("tensor", "convert", tmp_path / "x8.bin", tmp_path / "x32.bin", *words)[0] == 0
    assert len((tmp_path / "x32.bin").read_bytes()) == 3 * 4 * 32


def test_scales_quantize_and_dequantise(nvdla_command, tmp_path):
    real = np.array([0.5, -0.25, 100, 0.124], np.float32).reshape(1, 4, 1, 1)
    np.save(tmp_path / "r.npy", real)
    words = ("--dtype", "int8", "--quantization-scale", "0.25")
    assert nvdla_command("tensor", "convert", tmp_path / "r.npy", tmp_path / "q.dimg", *words)[0] == 0
    assert (
        nvdla_command("tensor", "convert", tmp_path / "q.dimg", tmp_path / "back.npy", "--quantization-scale", "0.25")[
            0
        ]
        == 0
    )
    assert np.load(tmp_path / "back.npy").reshape(-1).tolist() == [0.5, -0.25, 31.75, 0.0]


def test_a_picture_can_be_made(nvdla_command, surface, lenet, tmp_path):
    raw, _ = surface
    assert nvdla_command("tensor", "convert", raw, tmp_path / "t.png", "--tensor", f"{lenet}:prob")[0] == 0
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_the_json_is_as_documented(nvdla_command, lenet, surface, tmp_path, as_documented):
    raw, array = surface
    where = ("--tensor", f"{lenet}:prob", "--json")
    as_documented(json.loads(nvdla_command("tensor", "convert", raw, tmp_path / "t.npy", *where)[1]))
    document = json.loads(nvdla_command("tensor", "info", raw, *where)[1])
    as_documented(document)
    assert document["maximum"] == array.max()
    as_documented(json.loads(nvdla_command("tensor", "layout", *where)[1]))


@pytest.mark.parametrize("layout", ["feature-x8", "feature-x32", "nchw", "nhwc"])
def test_the_printed_formula_gives_the_printed_bytes(nvdla_command, layout):
    words = ("--layout", layout, "--shape", "2,40,3,4", "--dtype", "int16", "--json")
    document = json.loads(nvdla_command("tensor", "layout", *words)[1])
    assert len(document["elements"]) > 4
    for element in document["elements"]:
        places = {key: element[key] for key in "nchw"}
        assert eval(document["formula"], {}, places) == element["byte"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("convert", "x.bin", "y.npy"), "need --tensor"),
        (("convert", "x.gif", "y.npy"), "got '.gif'"),
        (("convert", "x.bin", "y.npy", "--tensor", "missing.nvdla"), "missing.nvdla: cannot be read: No such file"),
        (("convert", "x.npy", "y.exe"), "got '.exe'"),
        (("layout", "--layout", "feature-x8", "--shape", "1,2"), "N,C,H,W"),
        (("layout", "--layout", "feature-x8", "--shape", "1,2,3,4", "--at", "0,2,0,0"), "--at"),
        (("layout", "--layout", "nonsense", "--shape", "1,2,3,4"), "invalid choice"),
        (("layout", "--layout", "feature-x8", "--shape", "1,9999999,9999,9999"), "must have at most"),
        (("layout", "--layout", "feature-x8", "--shape", "8,2,2", "--line-stride", "-8"), "negative"),
        ((), "required"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(nvdla_command, words, message):
    code, out, err = nvdla_command("tensor", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_an_unknown_tensor_is_refused_with_the_names(nvdla_command, lenet):
    code, _, err = nvdla_command("tensor", "layout", "--tensor", f"{lenet}:nothing")
    assert code == 2
    assert "data, prob" in err
