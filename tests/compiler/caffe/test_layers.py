"""Each layer computes what Caffe's does: through onnxruntime, against plain Python written from Caffe's definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.caffe_writer import caffemodel, layer, prototxt
from support.plain_layers import convolution, deconvolution, lrn_across, lrn_within, pooled_size, pooling, softmax

pytest.importorskip("onnx", reason="needs the extra nvdla[onnx]")
pytest.importorskip("onnxruntime", reason="needs the extra nvdla[onnx]")

from nvdla import FormatError
from nvdla.checks.compare.float_models import caffe_tensors
from nvdla.compiler.caffe.layers import LAYERS
from nvdla.compiler.caffe.layers import pooled_size as pooled_size_of_the_project

RNG = np.random.default_rng(5)
X = RNG.normal(size=(2, 4, 6, 5)).astype(np.float32)
CHANNELS = X.shape[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("caffe")


@pytest.fixture
def run(folder):
    return lambda *words, **named: run_in(folder, *words, **named)


def run_in(folder, text, weights=None, inputs=None):
    """All tensors of a network. ``weights``: blobs by layer name."""
    inputs = {"data": X} if inputs is None else inputs
    (folder / "net.prototxt").write_text(text if "Input" in text else prototxt(text, shape=inputs["data"].shape))
    (folder / "net.caffemodel").write_bytes(caffemodel(weights or {"none": []}))
    tensors, blobs = caffe_tensors(folder / "net.prototxt", folder / "net.caffemodel", inputs)
    return tensors | {f"blob {name}": array for name, array in blobs.items()}


def agree(found, wanted):
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


# ---- convolutions, inner products

sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=25)
@given(sizes, sizes, st.tuples(*[st.integers(0, 2)] * 2), sizes, st.sampled_from([1, 2]), st.booleans(), st.booleans())
def test_a_convolution_is_that_of_caffe(folder, kernel, stride, pad, dilation, group, bias, deconvolve):
    x = np.random.default_rng(1).normal(size=(1, 4, 7, 8)).astype(np.float32)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if deconvolve and any(r + 6 * s <= 2 * p for r, s, p in zip(reach, stride, pad, strict=True)):
        return
    shape = (4, 6 // group, *kernel) if deconvolve else (6, 4 // group, *kernel)
    weights, biases = RNG.normal(size=shape).astype(np.float32), RNG.normal(size=6).astype(np.float32)
    text = (
        f"convolution_param {{ num_output: 6 kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} "
        f"stride_w: {stride[1]} pad_h: {pad[0]} pad_w: {pad[1]} dilation: {dilation[0]} dilation: {dilation[1]} "
        f"group: {group} bias_term: {str(bias).lower()} }}"
    )
    blobs = [weights, biases] if bias else [weights]
    plain = deconvolution if deconvolve else convolution
    found = run_in(folder, layer("Deconvolution" if deconvolve else "Convolution", text), {"layer": blobs}, {"data": x})
    agree(found["layer"], plain(x, weights, biases if bias else None, stride, pad, dilation, group))


def test_one_number_sets_both_dimensions(run):
    weights, bias = RNG.normal(size=(3, 4, 3, 3)).astype(np.float32), np.zeros(3, np.float32)
    for text in ("kernel_size: 3 stride: 2 pad: 1", "kernel_size: [3, 3] stride: [2, 2] pad: [1, 1]"):
        found = run(layer("Convolution", f"convolution_param {{ num_output: 3 {text} }}"), {"layer": [weights, bias]})
        agree(found["layer"], convolution(X, weights, bias, (2, 2), (1, 1), (1, 1), 1))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_an_inner_product_flattens_from_its_axis_on(run, transpose, axis):
    length = int(np.prod(X.shape[axis:]))
    weights, bias = RNG.normal(size=(7, length)).astype(np.float32), RNG.normal(size=7).astype(np.float32)
    text = f"inner_product_param {{ num_output: 7 axis: {axis} transpose: {str(transpose).lower()} }}"
    found = run(layer("InnerProduct", text), {"layer": [weights.T if transpose else weights, bias]})
    agree(found["layer"], X.reshape(*X.shape[:axis], length).astype(float) @ weights.T + bias)


def test_blobs_of_old_files_have_leading_axes_of_one(run):
    weights, bias = RNG.normal(size=(1, 1, 7, 120)), RNG.normal(size=(1, 1, 1, 7))
    found = run(layer("InnerProduct", "inner_product_param { num_output: 7 }"), {"layer": [weights, bias]})
    agree(found["layer"], X.reshape(2, -1) @ weights[0, 0].T + bias[0, 0])


# ---- pooling


@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 12), st.integers(0, 11), st.booleans())
def test_the_size_of_a_pooled_axis_is_caffes(size, kernel, stride, pad, ceil):
    if pad < kernel and kernel <= size + 2 * pad:
        setting = (size, kernel, stride, pad, ceil)
        assert pooled_size_of_the_project(*setting) == pooled_size(*setting)


@settings(max_examples=60)
@given(st.sampled_from(["MAX", "AVE"]), *[st.tuples(*[st.integers(1, 4)] * 2)] * 3, st.booleans())
def test_pooling_rounds_sizes_up_and_divides_by_what_is_inside_the_padding(folder, kind, kernel, stride, pad, ceil):
    pad = tuple(min(each - 1, size - 1) for each, size in zip(pad, kernel, strict=True))
    shape = [pooled_size(*each, ceil) for each in zip(X.shape[2:], kernel, stride, pad, strict=True)]
    last = [(count - 1) * s - p for count, s, p in zip(shape, stride, pad, strict=True)]
    if any(begin >= size for begin, size in zip(last, X.shape[2:], strict=True)):
        return  # a window without a single element
    text = (
        f"pooling_param {{ pool: {kind} kernel_h: {kernel[0]} kernel_w: {kernel[1]} stride_h: {stride[0]} "
        f"stride_w: {stride[1]} pad_h: {pad[0]} pad_w: {pad[1]} round_mode: {'CEIL' if ceil else 'FLOOR'} }}"
    )
    agree(run_in(folder, layer("Pooling", text))["layer"], pooling(X, kind, kernel, stride, pad, ceil))


def test_global_pooling_takes_the_whole_image(run):
    found = run(layer("Pooling", "pooling_param { pool: AVE global_pooling: true }"))
    agree(found["layer"], X.mean(axis=(2, 3), keepdims=True))


def test_a_maximum_of_negative_numbers_is_not_the_padding(run):
    x = -1 - np.abs(X)
    found = run(layer("Pooling", "pooling_param { kernel_size: 3 pad: 1 stride: 2 }"), inputs={"data": x})
    agree(found["layer"], pooling(x, "MAX", (3, 3), (2, 2), (1, 1)))


# ---- element by element


def elementwise(kind, settings, function):
    return pytest.param(kind, settings, function, id=f"{kind} {settings}".strip())


@pytest.mark.parametrize(
    ("kind", "settings", "function"),
    [
        elementwise("ReLU", "", lambda x: np.maximum(x, 0)),
        elementwise("ReLU", "relu_param { negative_slope: 0.1 }", lambda x: np.where(x > 0, x, 0.1 * x)),
        elementwise("ELU", "elu_param { alpha: 0.5 }", lambda x: np.where(x > 0, x, 0.5 * (np.exp(x) - 1))),
        elementwise("Sigmoid", "", lambda x: 1 / (1 + np.exp(-x))),
        elementwise("TanH", "", np.tanh),
        elementwise("AbsVal", "", np.abs),
        elementwise("BNLL", "", lambda x: np.log1p(np.exp(x))),
        elementwise("Dropout", "dropout_param { dropout_ratio: 0.9 }", lambda x: x),
        elementwise("Power", "power_param { power: 2 scale: 3 shift: -1 }", lambda x: (3 * x - 1) ** 2),
        elementwise("Power", "power_param { scale: 0.5 }", lambda x: 0.5 * x),
        elementwise("Power", "power_param { power: 0 }", np.ones_like),
        elementwise("Power", "power_param { scale: 0 shift: 2 power: 3 }", lambda x: 0 * x + 8),
        elementwise("Exp", "exp_param { scale: 0.5 shift: 1 }", lambda x: np.exp(1 + 0.5 * x)),
        elementwise("Exp", "exp_param { base: 2 shift: 1 }", lambda x: 2 ** (1 + x)),
        elementwise("Log", "log_param { base: 10 scale: 0.1 shift: 5 }", lambda x: np.log10(5 + 0.1 * x)),
        elementwise("Softmax", "", lambda x: softmax(x, 1)),
        elementwise("Softmax", "softmax_param { axis: -1 }", lambda x: softmax(x, 3)),
        elementwise("LRN", "", lambda x: lrn_across(x, 5, 1, 0.75, 1)),
        elementwise(
            "LRN", "lrn_param { local_size: 3 alpha: 2 beta: 0.5 k: 3 }", lambda x: lrn_across(x, 3, 2, 0.5, 3)
        ),
        elementwise(
            "LRN", "lrn_param { norm_region: WITHIN_CHANNEL local_size: 3 k: 9 }", lambda x: lrn_within(x, 3, 1, 0.75)
        ),
        elementwise("Flatten", "", lambda x: x.reshape(2, -1)),
        elementwise("Flatten", "flatten_param { axis: 2 end_axis: -1 }", lambda x: x.reshape(2, 4, 30)),
        elementwise("Reshape", "reshape_param { shape { dim: [0, -1, 5] } }", lambda x: x.reshape(2, 24, 5)),
        elementwise(
            "Reshape",
            "reshape_param { shape { dim: [2, 2] } axis: 1 num_axes: 1 }",
            lambda x: x.reshape(2, 2, 2, 6, 5),
        ),
        elementwise(
            "Reshape", "reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }", lambda x: x.reshape(2, 4, 6, 5, 1)
        ),
    ],
)
def test_a_layer_without_weights(run, kind, settings, function):
    agree(run(layer(kind, settings))["layer"], function(X.astype(np.float64)))


# ---- scales, normalization


def test_prelu_has_a_slope_for_each_channel_or_one_for_all(run):
    slopes = np.array([0.1, 0.2, -0.3, 2.0])
    for text, blob in (("", slopes), ("prelu_param { channel_shared: true }", slopes[:1])):
        found = run(layer("PReLU", text), {"layer": [blob]})
        agree(found["layer"], np.where(X > 0, X, X * blob.reshape(1, -1, 1, 1)))


@pytest.mark.parametrize("factor", [1.0, 999.5, 0.0])
def test_batch_norm_divides_its_sums_by_the_factor(run, factor):
    mean, variance = RNG.normal(size=4), RNG.uniform(0.5, 2, size=4)
    found = run(
        layer("BatchNorm", "batch_norm_param { eps: 0.01 use_global_stats: true }"),
        {"layer": [mean, variance, np.array([factor])]},
    )
    factor = 1 / factor if factor else 0
    m, v = (each.reshape(1, -1, 1, 1) * factor for each in (mean, variance))
    agree(found["layer"], (X - m) / np.sqrt(v + 0.01))


@pytest.mark.parametrize(
    ("settings", "shape", "aligned"),
    [
        ("", (4,), (1, 4, 1, 1)),
        ("axis: 1 num_axes: 3", (4, 6, 5), (1, 4, 6, 5)),
        ("axis: 2 num_axes: -1", (6, 5), (1, 1, 6, 5)),
        ("num_axes: 0", (), (1, 1, 1, 1)),
        ("axis: -1", (5,), (1, 1, 1, 5)),
    ],
)
def test_scale_and_bias_cover_the_axes_they_say(run, settings, shape, aligned):
    factor, bias = RNG.normal(size=shape), RNG.normal(size=shape)
    scaled = run(layer("Scale", f"scale_param {{ {settings} bias_term: true }}"), {"layer": [factor, bias]})
    agree(scaled["layer"], X * factor.reshape(aligned) + bias.reshape(aligned))
    moved = run(layer("Bias", f"bias_param {{ {settings} }}"), {"layer": [bias]})
    agree(moved["layer"], X + bias.reshape(aligned))


def test_scale_and_bias_take_a_second_bottom(run):
    pooled = layer("Pooling", "pooling_param { pool: AVE global_pooling: true }", top="p", name="p")
    flat = layer("Flatten", "", "p", "f", "f")
    scale = layer("Scale", "scale_param { axis: 0 }", ["data", "f"], "s", "s")
    bias = layer("Bias", "bias_param { axis: 0 }", ["s", "f"], "b", "b")
    found = run(prototxt(pooled, flat, scale, bias, shape=X.shape))
    factor = X.mean(axis=(2, 3), keepdims=True)
    agree(found["b"], X * factor + factor)


# ---- several blobs


@pytest.mark.parametrize(
    ("settings", "function"),
    [
        ("", lambda a, b: a + b),
        ("eltwise_param { operation: SUM coeff: [2, -1] }", lambda a, b: 2 * a - b),
        ("eltwise_param { operation: PROD }", lambda a, b: a * b),
        ("eltwise_param { operation: MAX }", np.maximum),
    ],
)
def test_eltwise_takes_its_bottoms_together(run, settings, function):
    other = layer("Power", "power_param { scale: -0.5 shift: 0.25 }", top="other", name="other")
    found = run(prototxt(other, layer("Eltwise", settings, ["data", "other"]), shape=X.shape))
    agree(found["layer"], function(X, 0.25 - 0.5 * X))


@pytest.mark.parametrize("settings", ["", "concat_param { axis: -2 }", "concat_param { concat_dim: 3 }"])
def test_concat_joins_along_its_axis(run, settings):
    axis = 1 if not settings else 2 if "-2" in settings else 3
    other = layer("AbsVal", top="other", name="other")
    found = run(prototxt(other, layer("Concat", settings, ["data", "other", "data"]), shape=X.shape))
    agree(found["layer"], np.concatenate([X, np.abs(X), X], axis))


def test_slice_split_and_crop_give_parts(run):
    text = prototxt(
        layer("Slice", "slice_param { slice_point: [1, 3] }", "data", ["a", "b", "c"], "cut"),
        layer("Slice", "slice_param { axis: 2 }", "data", ["d", "e"], "halves"),
        layer("Split", "", "a", ["f", "g"], "split"),
        layer("Crop", "crop_param { offset: [2, 0] }", ["data", "d"], "h", "crop"),
        shape=X.shape,
    )
    found = run(text)
    for name, wanted in (("a", X[:, :1]), ("b", X[:, 1:3]), ("c", X[:, 3:]), ("d", X[:, :, :3]), ("e", X[:, :, 3:])):
        agree(found[name], wanted)
    agree(found["f"], X[:, :1])
    agree(found["g"], X[:, :1])
    agree(found["crop"], X[:, :, 2:5])


# ---- names


def test_a_blob_that_is_written_in_place_has_a_value_for_each_layer(run):
    text = prototxt(
        layer("Power", "power_param { scale: 2 }", "data", "conv1", "conv1"),
        layer("ReLU", "", "conv1", "conv1", "relu1"),
        layer("Power", "power_param { shift: 1 }", "conv1", "out", "next"),
        shape=X.shape,
    )
    found = run(text)
    agree(found["data"], X)
    agree(found["conv1"], 2 * X)
    agree(found["relu1"], np.maximum(2 * X, 0))
    agree(found["blob conv1"], np.maximum(2 * X, 0))
    agree(found["next"], np.maximum(2 * X, 0) + 1)
    agree(found["out"], found["next"])
    assert list(found)[:4] == ["data", "conv1", "relu1", "next"]


def test_inputs_are_found_by_name_or_in_order(run):
    text = (
        'layer { name: "a" type: "Input" top: "a" input_param { shape { dim: [1, 4, 6, 5] } } }'
        'layer { name: "b" type: "Input" top: "b" input_param { shape { dim: [1, 120] } } }'
        + layer("Reshape", "reshape_param { shape { dim: [0, 4, 6, 5] } }", "b", "r", "r")
        + layer("Eltwise", "eltwise_param { coeff: [1, -1] }", ["a", "r"])
    )
    for names in (("a", "b"), ("x", "y")):
        agree(run(text, inputs=dict(zip(names, (X, 2 * X), strict=True)))["layer"], -X)
    agree(run(text, inputs={"b": X, "a": 2 * X})["layer"], X)


def test_an_image_of_four_channels_gives_the_network_the_first_of_them(run):
    text = prototxt(layer("AbsVal"), shape=(1, 3, 6, 5))
    agree(run(text)["layer"], np.abs(X[:, :3]))


# ---- refusals


def conv(settings, kind="Convolution", **named):
    return layer(kind, f"convolution_param {{ {settings} }}", **named)


def pool(settings):
    return layer("Pooling", f"pooling_param {{ {settings} }}")


def cut(settings, top):
    return layer("Slice", f"slice_param {{ {settings} }}", top=top)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (layer("Convolutoin"), "; did you mean Convolution?"),
        (layer("ReLU", bottom="dta"), "bottom dta: must be written by an earlier layer; did you mean data?"),
        (layer("ReLU", bottom=["data", "data"]), "bottoms: must be 1, got 2"),
        (layer("Eltwise"), "bottoms: must be 2 or more, got 1"),
        (layer("Scale", bottom=["data"] * 3), "bottoms: must be 1 or 2, got 3"),
        (layer("ReLU", top=["a", "b"]), "tops: must be 1, got 2"),
        (layer("ReLU", "pooling_param { }"), "pooling_param: must not be given for a layer of this type, which takes"),
        (layer("AbsVal", "relu_param { }"), "which has no parameters"),
        (layer("ReLU", "rleu_param { }"), "rleu_param: must be a field of the layer; did you mean relu_param?"),
        (conv("kernel_size: 3"), "num_output: must be given"),
        (conv("num_output: 2"), "ConvolutionParameter: kernel_size: must be given"),
        (conv("num_output: 2 kernel_size: 3 kernel_h: 3"), "got both"),
        (conv("num_output: 2 kernel_size: [1, 1, 1]"), "must be given once, or twice (height and width), got 3 times"),
        (conv("num_output: 2 kernel_size: 0"), "kernel and stride: must be at least 1"),
        (conv("num_output: 2 kernel_size: 1 stride: 0"), "kernel and stride: must be at least 1"),
        (conv("num_output: 2 kernel_size: 1 dilation: 0"), "above 0"),
        (conv("num_output: 2 kernel_size: 1 group: 3"), "group: must divide"),
        (conv("num_output: 2 kernel_size: 1 axis: 2"), "axis: must be 1 (convolution"),
        (conv("num_output: 2 kernel_size: 1"), "must be 2, got none under this name"),
        (
            conv("num_output: 2 kernel_size: 3", name="w"),
            "weights: must be 2x4x",
        ),
        (
            conv("num_output: 2 kernel_size: 1 bias_term: false", name="w"),
            "weight blobs in the .caffemodel: must be 1, got",
        ),
        (
            conv("num_output: 1 kernel_size: 9 bias_term: false", name="k"),
            "result: sizes must be at least 1, got 2x1x-2x-3",
        ),
        (conv("num_output: 1 kernel_size: 1 stride: 4000000000", "Deconvolution", name="d"), "elements together, got"),
        (layer("InnerProduct", ""), "num_output: must be given"),
        (
            layer("InnerProduct", "inner_product_param { num_output: 2 axis: 4 }"),
            "axis: must be -4 to 3 for a blob of 4 axes, got 4",
        ),
        (pool("pool: STOCHASTIC kernel_size: 2"), "pooling method: must be MAX or AVE, got STOCHASTIC"),
        (pool("kernel_size: 2 pad: 2"), "pad: must be less than the kernel 2x2, got 2x2"),
        (pool("kernel_size: 20"), "result: sizes must be at least 1"),
        (pool("kernel_size: 2 global_pooling: true"), "kernel size: must be omitted"),
        (pool("stride: 2 global_pooling: true"), "pad and stride: must be omitted"),
        (layer("LRN", "lrn_param { local_size: 4 }"), "local_size: must be odd, got 4"),
        (
            layer("BatchNorm", "batch_norm_param { use_global_stats: false }"),
            "use_global_stats: must be true or omitted, got false",
        ),
        (layer("Log", "log_param { base: 1 }"), "base of the logarithm: must not be 1"),
        (layer("Exp", "exp_param { base: -2 }"), "base: must be above 0, or -1 for e, got -2"),
        (
            layer("Scale", "scale_param { axis: 3 num_axes: 2 }"),
            "num_axes: must be -1, or at most 1 (axes from axis 3 on), got 2",
        ),
        (layer("Eltwise", "eltwise_param { coeff: 1 }", ["data", "data"]), "2 bottoms of SUM, got 1 of SUM"),
        (
            layer("Eltwise", "eltwise_param { operation: MAX coeff: [1, 1] }", ["data", "data"]),
            "2 bottoms of SUM, got 2 of MAX",
        ),
        (cut("slice_point: [3, 1]", ["a", "b", "c"]), "must rise"),
        (cut("slice_point: 1", ["a", "b", "c"]), "slice points: must be 2 (one less than tops), got 1"),
        (layer("Slice", "", top=["a", "b", "c"]), "must be a multiple of 3 (tops)"),
        (cut("axis: 1 slice_dim: 1", ["a", "b"]), "got both"),
        (layer("Reshape", "reshape_param { shape { dim: 7 dim: -1 } }"), "new shape: must have"),
        (layer("Reshape", "reshape_param { shape { dim: -1 dim: -1 } }"), "new shape: must have"),
        (layer("Reshape", "reshape_param { axis: 9 }"), "must be within the 4 axes of the blob, got 9 and -1"),
        (layer("Flatten", "flatten_param { axis: 3 end_axis: 1 }"), "end_axis: must be at least 3 (axis), got 1"),
        (layer("Softmax", "softmax_param { axis: -5 }"), "axis: must be -4 to 3 for a blob of 4 axes, got -5"),
        (layer("Crop", "crop_param { offset: [1, 1] }", ["data", "data"]), "end of the crop: must be within"),
    ],
)
def test_what_cannot_be_is_refused_by_layer_and_line(run, text, said):
    blobs = {"w": [np.ones((2, 4, 1, 1)), np.ones(2)], "k": [np.ones((1, 4, 9, 9))]}
    blobs["d"] = [np.ones((4, 1, 1, 1)), np.ones(1)]
    with pytest.raises(FormatError) as raised:
        run(text, blobs)
    assert said in str(raised.value)
    assert "net.prototxt: line 2: layer " in str(raised.value)
    assert "\n" not in str(raised.value)


def test_names_with_line_ends_stay_on_one_line(run):
    with pytest.raises(FormatError) as raised:
        run(layer("Re\\nLU", name="\\033[1m"))
    assert r"layer \x1b[1m (Re\x0aLU): unknown type" in str(raised.value)


def test_an_unknown_layer_names_those_that_are_known(run):
    with pytest.raises(FormatError) as raised:
        run(layer("LSTM"))
    assert all(kind in str(raised.value) for kind in LAYERS)


def test_inputs_that_do_not_fit_are_refused(run):
    with pytest.raises(FormatError, match="input data: must be 2x4x6x5 \\(loadable\\), got 1x4x9x9"):
        run(prototxt(layer("ReLU"), shape=(1, 4, 9, 9)))
    with pytest.raises(FormatError, match=r"inputs: must be 2, as in the loadable, got 1 \(data\)"):
        run(prototxt(layer("ReLU"), shape=X.shape), inputs={"a": X, "b": X})
