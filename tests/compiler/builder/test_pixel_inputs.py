"""Inputs of unsigned pixels: CDMA subtracts the mean and multiplies, and nobody converts anything before."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nvdla
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import BuildError, Network, PixelNumbers, build, calibrate, layer_errors
from nvdla.compiler.builder.cbuf import depth
from nvdla.emulator.hardware.configuration import configuration
from nvdla.errors import FormatError, LinkError
from nvdla.loadable.enums import PIXEL_FORMATS, PixelFormat
from nvdla.program.program import Program

Image = pytest.importorskip("PIL.Image")
TARGETS = [("nv_small", "int8", 8), ("nv_large", "int8", 8), ("nv_full", "int8", 8), ("nv_full", "int16", 16)]
NETWORKS = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
CAFFE = PixelNumbers((123.68, 116.78, 103.94), (1.0,))


def first_layer(shape=(3, 12, 14), kernels=10, size=(3, 3), padding=(1, 1, 1, 1)) -> Network:
    rng = np.random.default_rng(0)
    net = Network("first")
    x = net.input("data", shape)
    weights = rng.normal(size=(kernels, shape[0], *size))
    net.output(net.convolution("c", x, weights, rng.normal(size=kernels), (1, 1), padding))
    return net


def pixels_and_numbers(numbers: PixelNumbers, shape, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """Pixels, and the real numbers that they stand for."""
    mean, scale = (each[:, None, None] for each in numbers.channels(shape[0]))
    pixels = np.random.default_rng(seed).integers(0, numbers.largest + 1, (1, *shape))
    return pixels, (pixels - mean) * scale


def built_with(net: Network, numbers: PixelNumbers, config="nv_small", precision="int8"):
    scales = calibrate(net, pixels_and_numbers(numbers, net.inputs[0].shape, 1)[1])
    return build(net, config, precision, scales, input_format="pixels", pixels=numbers)


@st.composite
def cases(draw):
    def number(low, high):
        return draw(st.integers(low, high))

    height, width = number(1, 20), number(2, 30)
    size = number(1, min(height, 5)), number(1, min(width, 5))
    padding = tuple(number(0, side - 1) for side in (size[0], size[0], size[1], size[1]))
    channels = number(1, 4)
    means = draw(st.lists(st.floats(-20, 300), min_size=channels, max_size=channels))
    scales = draw(st.lists(st.floats(0.001, 2), min_size=channels, max_size=channels))
    return first_layer((channels, height, width), number(1, 40), size, padding), means, scales


@pytest.mark.parametrize(("config", "precision", "bits"), TARGETS)
@NETWORKS
@given(case=cases())
def test_pixels_give_the_results_of_the_reference(config, precision, bits, case):
    net, means, scales = case
    step = 1 << (bits - 8)
    means = [min(each * step, 32768) for each in means]
    numbers = PixelNumbers(tuple(means), tuple(each / step for each in scales), bits)
    built = built_with(net, numbers, config, precision)
    pixels, real = pixels_and_numbers(numbers, net.inputs[0].shape)
    elements = built.quantize_inputs(real)
    np.testing.assert_array_equal(elements["data"], numbers.stored(pixels))
    found = nvdla.Runtime(built.loadable, config).run(elements)["c"]
    np.testing.assert_array_equal(found, built.expected(elements)["c"])
    assert precision == "int16" or not lint(built.loadable, config).findings


@pytest.mark.parametrize(
    ("numbers", "config", "precision", "channels", "form"),
    [
        (PixelNumbers((128,), (1 / 128,)), "nv_small", "int8", 1, PixelFormat.R8),
        (CAFFE, "nv_large", "int8", 3, PixelFormat.A8B8G8R8),
        (PixelNumbers((0,), (1 / 255, 2 / 255, 1 / 510)), "nv_full", "int8", 3, PixelFormat.A8B8G8R8),
        (PixelNumbers((32768,), (1 / 32768,), 16), "nv_full", "int16", 1, PixelFormat.R16),
        (PixelNumbers((512,), (1 / 512,), 10), "nv_full", "int16", 3, PixelFormat.A2B10G10R10),
    ],
)
def test_the_loadable_has_pixel_input_and_the_same_results(numbers, config, precision, channels, form):
    net = first_layer((channels, 12, 14))
    built = built_with(net, numbers, config, precision)
    assert built.loadable.tensors[0].pixel_format == form
    (conv, *_) = Program.of(built.loadable, config).operations
    assert (conv.op.pixel_override, conv.op.mean_format) == (0, int(any(numbers.mean)))
    _, real = pixels_and_numbers(numbers, net.inputs[0].shape, 1)
    assert layer_errors(net, built, real)["c"]["snr_db"] > (30 if precision == "int8" else 70)
    elements = built.quantize_inputs(real)
    found = nvdla.Runtime(built.loadable, config).run(elements)["c"]
    np.testing.assert_array_equal(found, built.expected(elements)["c"])


IMAGES = [form for form in PixelFormat if form < PixelFormat.FEATURE]


@pytest.mark.parametrize("form", IMAGES, ids=lambda form: form.name)
def test_every_pixel_format_can_be_requested(form):
    """Unsigned pixels with a mean and a scale a channel; signed words and halves as they are."""
    spec, bits = PIXEL_FORMATS[form], depth(form.name)
    precision = "fp16" if spec.floating else "int8" if spec.element_bytes == 1 else "int16"
    config = "nv_small" if precision == "int8" else "nv_full"
    net = first_layer((spec.whole, 9, 13))
    numbers, real = None, np.random.default_rng(0).normal(size=(1, spec.whole, 9, 13))
    if bits is not None:
        means = tuple(float(each << (bits - 8)) for each in (124, 117, 104, 90)[: spec.whole])
        numbers = PixelNumbers(means, tuple(2.0**-bits * each for each in (1, 2, 1.5, 1)[: spec.whole]), bits)
        real = pixels_and_numbers(numbers, net.inputs[0].shape)[1]
    scales = None if precision == "fp16" else calibrate(net, real)
    built = build(net, config, precision, scales, input_format=form.name, pixels=numbers)
    assert built.loadable.tensors[0].pixel_format == form
    assert (built.program.inputs[0].converter is None) == (numbers is None)
    elements = built.quantize_inputs(real)
    found, expected = nvdla.Runtime(built.loadable, config).run(elements)["c"], built.expected(elements)["c"]
    if precision == "fp16":
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0.01, atol=0.02)
    else:
        np.testing.assert_array_equal(found, expected)
    assert precision == "int16" or not lint(built.loadable, config).findings


@pytest.mark.parametrize(
    ("form", "precision", "least"),
    [
        ("A8B8G8R8", "fp16", 50),
        ("R8G8B8A8", "int16", 60),
        ("Y8_U8V8_N444", "fp16", 50),
        ("A2B10G10R10", "fp16", 50),
        ("A2R10G10B10", "int8", 30),
        ("Y12_V12U12_N444", "fp16", 50),
        ("Y16_U16V16_N444", "int8", 30),
        ("A16B16G16R16", "fp16", 50),
    ],
)
def test_pixels_become_numbers_of_any_precision(form, precision, least):
    """CDMA makes 8, 16 bits or halves of pixels of any bits: a picture goes into a network of halves as it is."""
    bits = depth(form)
    net = first_layer((3, 9, 13))
    numbers = PixelNumbers(tuple(float(each << (bits - 8)) for each in (124, 117, 104)), (2.0**-bits,), bits)
    real = pixels_and_numbers(numbers, (3, 9, 13))[1]
    scales = None if precision == "fp16" else calibrate(net, real)
    built = build(net, "nv_full", precision, scales, input_format=form, pixels=numbers)
    (conv, *_) = Program.of(built.loadable, "nv_full").operations
    assert conv.op.in_precision == (0 if bits == 8 else 1)
    assert layer_errors(net, built, real)["c"]["snr_db"] > least
    elements = built.quantize_inputs(real)
    found, expected = nvdla.Runtime(built.loadable, "nv_full").run(elements)["c"], built.expected(elements)["c"]
    if precision == "fp16":
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=0.01, atol=0.02)
    else:
        np.testing.assert_array_equal(found, expected)
    Study.of(built.loadable, configuration("nv_full"))


def test_a_mean_that_cdma_cannot_subtract_is_refused():
    """Its means have 16 bits with a sign: of 16-bit pixels the upper half, of 10-bit words all above 511."""
    net = first_layer((3, 8, 8))
    scales = calibrate(net, np.random.default_rng(0).normal(size=(1, 3, 8, 8)))
    for form, mean, bits in (("A16B16G16R16", 40000, 16), ("A2B10G10R10", 600, 10)):
        with pytest.raises(BuildError, match=f"mean: must be at most .*, got {mean}"):
            numbers = PixelNumbers((1.0, mean, 2.0), bits=bits)
            build(net, "nv_full", "int16", scales, input_format=form, pixels=numbers)


def test_bands_of_rows_find_their_lines_in_both_planes():
    net = first_layer((3, 260, 250), 3)
    numbers = PixelNumbers((128,), (1 / 128,))
    real = pixels_and_numbers(numbers, (3, 260, 250))[1]
    built = build(net, "nv_small", "int8", calibrate(net, real), input_format="Y8_V8U8_N444", pixels=numbers)
    bands = [each for each in Program.of(built.loadable, "nv_small").operations if each.engine == "conv"]
    assert len(bands) > 1
    assert len({each.surface.offset_u for each in bands}) == len(bands)
    elements = built.quantize_inputs(real)
    found = nvdla.Runtime(built.loadable, "nv_small").run(elements)["c"]
    np.testing.assert_array_equal(found, built.expected(elements)["c"])


def test_a_batch_in_two_planes():
    net, numbers = first_layer((3, 9, 13)), PixelNumbers((128,), (1 / 128,))
    real = np.concatenate([pixels_and_numbers(numbers, (3, 9, 13), seed)[1] for seed in range(3)])
    scales = calibrate(net, real)
    built = build(net, "nv_small", "int8", scales, input_format="Y8_U8V8_N444", pixels=numbers, images=3)
    elements = built.quantize_inputs(real)
    found = nvdla.Runtime(built.loadable, "nv_small").run(elements)["c"]
    np.testing.assert_array_equal(found, built.expected(elements)["c"])


def test_strides_of_two_planes_cannot_be_changed():
    net, numbers = first_layer(), PixelNumbers((128,), (1 / 128,))
    scales = calibrate(net, pixels_and_numbers(numbers, (3, 12, 14))[1])
    built = build(net, "nv_small", "int8", scales, input_format="Y8_U8V8_N444", pixels=numbers)
    with pytest.raises(LinkError, match="line stride: must have a relocation in the loadable"):
        nvdla.Runtime(built.loadable, "nv_small", strides={"data": (1, 64, 1024)})


@pytest.mark.parametrize(
    ("form", "channels", "config", "precision", "words"),
    [
        (
            "T_R8",
            1,
            "nv_small",
            "int8",
            "input format 'T_R8': must be one of auto, image, feature, pixels, R8,",
        ),
        ("FEATURE", 1, "nv_small", "int8", "input format 'FEATURE': must be one of"),
        ("R8", 3, "nv_small", "int8", "a pixel of R8 has 1 channels of 8 bits, the input has 3"),
        ("R10", 1, "nv_small", "int8", "nv_small has no int16 (the elements of R10); configurations with it: nv_full"),
        ("R16_I", 1, "nv_full", "int8", "pixels of R16_I are for int16, the network computes in int8"),
        ("A16B16G16R16_F", 3, "nv_full", "int8", "pixels of A16B16G16R16_F are for fp16, the network computes in int8"),
        ("A2B10G10R10", 4, "nv_full", "int16", "a pixel of A2B10G10R10 has 3 channels of 10 bits, the input has 4"),
    ],
)
def test_formats_that_do_not_fit_are_refused(form, channels, config, precision, words):
    net = first_layer((channels, 8, 8))
    scales = calibrate(net, np.random.default_rng(0).normal(size=(1, channels, 8, 8)))
    with pytest.raises(BuildError, match=re.escape(words)):
        build(net, config, precision, scales, input_format=form)


def test_numbers_of_other_bits_than_the_format_are_refused():
    net = first_layer((1, 8, 8))
    scales = calibrate(net, np.random.default_rng(0).normal(size=(1, 1, 8, 8)))
    with pytest.raises(BuildError, match="pixels of R12 have 12 bits, the given ones 10"):
        build(net, "nv_full", "int16", scales, input_format="R12", pixels=PixelNumbers(bits=10))


def model_and_picture(folder):
    """A convolution as ``net.onnx``, and the pixels (8, 8, 3) of ``images/a.png``, for the compiler's commands."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from tests.compiler.frontend.models import model, node

    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(4, 3, 3, 3)).astype("f4")}
    net = model([node("Conv", "x w", "y", pads=[1, 1, 1, 1])], {"x": (1, 3, 8, 8)}, {"y": (1, 4, 8, 8)}, weights)
    onnx.save(net, folder / "net.onnx")
    picture = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    (folder / "images").mkdir()
    Image.fromarray(picture).save(folder / "images" / "a.png")
    return net, picture


@pytest.mark.parametrize("form", ["R8G8B8A8", "Y8_U8V8_N444", "A2R10G10B10", "Y12_V12U12_N444", "A16B16G16R16"])
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_compiled_model_takes_a_picture_in_a_format_of_ones_own(form, precision, tmp_path, nvdla_command):
    """`nvdla run` puts a picture's pixels into whatever format the loadable says; mean and scale are CDMA's."""
    _, picture = model_and_picture(tmp_path)
    out, result = tmp_path / "net.loadable", tmp_path / "out.npy"
    words = ["--calibrate", str(tmp_path / "images"), "--mean", "124,117,104", "--scale", "0.017", "-o", str(out)]
    words += ["--config", "nv_full", "--precision", precision, "--input-format", form]
    code, _, err = nvdla_command("compile", str(tmp_path / "net.onnx"), *words)
    assert code == 0, err
    code, _, err = nvdla_command("run", str(out), "--input", str(tmp_path / "images" / "a.png"), "-o", str(result))
    assert code == 0, err
    real = (picture.transpose(2, 0, 1)[None] - np.array([124, 117, 104.0]).reshape(1, 3, 1, 1)) * 0.017
    runtime = nvdla.Runtime(out, "nv_full")
    np.testing.assert_array_equal(np.load(result), next(iter(runtime.run(real.astype(np.float32)).values())))


def test_pixels_that_fit_stay_as_they_are():
    """With a mean in the middle a step is one of a pixel's: nothing is lost."""
    net = first_layer()
    converter = built_with(net, PixelNumbers((128, 127.6, 128), (1.0,))).program.inputs[0].converter
    assert (converter.means, converter.scale, converter.shift) == ((128, 128, 128), 1, 0)


def test_a_picture_goes_in_as_it_is(tmp_path, nvdla_command):
    """The bytes of a .png are the input's; floats, arrays of pixels and the picture give the same."""
    net = first_layer()
    built = built_with(net, CAFFE)
    built.save(tmp_path / "net.loadable")
    assert json.loads((tmp_path / "net.loadable.layers.json").read_text())["pixels"] == {"data": CAFFE.document()}
    pixels, real = pixels_and_numbers(CAFFE, (3, 12, 14))
    wanted = built.expected(built.quantize_inputs(real))["c"]
    Image.fromarray(pixels[0].transpose(1, 2, 0)[..., ::-1].astype(np.uint8)).save(tmp_path / "a.png")
    runtime = nvdla.Runtime(tmp_path / "net.loadable", "nv_small")
    for given_as in (real.astype(np.float32), pixels.astype(np.uint8), tmp_path / "a.png"):
        np.testing.assert_array_equal(runtime.run(given_as)["c"], wanted)
    out = tmp_path / "out.npy"
    code, _, err = nvdla_command(
        "run", str(tmp_path / "net.loadable"), "--input", str(tmp_path / "a.png"), "-o", str(out)
    )
    assert code == 0, err
    np.testing.assert_array_equal(np.load(out), wanted)


def test_a_compiled_model_leaves_mean_and_scale_to_the_accelerator(tmp_path, nvdla_command):
    net, picture = model_and_picture(tmp_path)
    from nvdla.compiler.frontend.model import run_once
    from nvdla.compiler.frontend.package import unpack

    out = tmp_path / "net.loadable"
    words = ["--calibrate", str(tmp_path / "images"), "--mean", "124,117,104", "--scale", "0.017", "-o", str(out)]
    code, _, err = nvdla_command("compile", str(tmp_path / "net.onnx"), "--input-format", "pixels", *words)
    assert code == 0, err
    real = (picture.transpose(2, 0, 1)[None] - np.array([124, 117, 104.0]).reshape(1, 3, 1, 1)) * 0.017
    runtime = nvdla.Runtime(out, "nv_small")
    found = runtime.run(tmp_path / "images" / "a.png", real=True)
    (name,) = found
    np.testing.assert_array_equal(found[name], runtime.run(real.astype(np.float32), real=True)[name])
    (exact,) = run_once(net, "net", {"x": real.astype(np.float32)})
    assert np.abs(found[name] - exact).max() < 0.03 * np.abs(exact).max()
    package = tmp_path / "net.nvpkg"
    code, _, err = nvdla_command(
        "compile", str(tmp_path / "net.onnx"), "--input-format", "pixels", *words[:-1], str(package)
    )
    assert code == 0, err

    again = unpack(package).machine().run({"x": real})["y"]
    np.testing.assert_allclose(again, found[name], rtol=1e-6)


def test_what_no_pixels_can_be_is_refused():
    net = first_layer((5, 8, 8))
    scales = calibrate(net, np.random.default_rng(0).normal(size=(1, 5, 8, 8)))
    with pytest.raises(BuildError, match="no pixel format of nv_small has 5 channels of 8 bits"):
        build(net, "nv_small", "int8", scales, input_format="pixels")
    net = first_layer()
    scales = calibrate(net, np.random.default_rng(0).normal(size=(1, 3, 12, 14)))
    with pytest.raises(BuildError, match="no pixel format of nv_small has 3 channels of 16 bits"):
        build(net, "nv_small", "int8", scales, input_format="pixels", pixels=PixelNumbers(bits=16))
    with pytest.raises(FormatError, match=r"mean: must be one number or 3 .*, got 2"):
        build(net, "nv_small", "int8", scales, input_format="pixels", pixels=PixelNumbers((1.0, 2.0)))
    for wrong in ({"bits": 9}, {"scale": (0.0,)}, {"mean": (float("nan"),)}, {"mean": ()}):
        with pytest.raises(FormatError):
            PixelNumbers(**wrong)
    for document in ({}, {"mean": [0], "scale": ["x"], "bits": 8}, {"mean": [0], "scale": [1], "bits": "many"}):
        with pytest.raises(FormatError, match="pixels of the layer file"):
            PixelNumbers.of(document)
