"""One function turns stored tensors into real numbers: what ``compile`` measures, ``compare`` finds again."""

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import nvdla
from nvdla.checks.compare.metrics import compare
from nvdla.errors import FormatError
from nvdla.program.naming import StoredPlace, from_sidecar, names_for, place_of, value_of
from nvdla.tensors.real import ModelValue, Units, order_document, order_of
from tests.compiler.frontend.models import model, node

RNG = np.random.default_rng(5)
PADDED = [1, 1, 1, 1]


def weights(*shape):
    return (RNG.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))).astype("f4")


def uneven(*shape):
    """Kernels of very different sizes: equalization gives the channels factors."""
    return weights(*shape) * np.geomspace(0.1, 10, shape[0]).reshape(-1, *[1] * (len(shape) - 1)).astype("f4")


def mobile():
    """A depthwise network that ends in a global average and softmax."""
    nodes = [
        node("Conv", "x w0", "a", pads=PADDED, strides=[2, 2]),
        node("Relu", "a", "ar"),
        node("Conv", "ar wd", "d", pads=PADDED, group=16),
        node("HardSwish", "d", "dh"),
        node("Conv", "dh w1", "e"),
        node("Relu", "e", "er"),
        node("GlobalAveragePool", "er", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f wf", "logits"),
        node("Softmax", "logits", "y"),
    ]
    constants = {
        "w0": uneven(16, 3, 3, 3),
        "wd": uneven(16, 1, 3, 3),
        "w1": uneven(32, 16, 1, 1),
        "wf": weights(32, 10),
    }
    return model(nodes, {"x": (1, 3, 32, 32)}, {"y": (1, 10)}, constants)


def branches(images=1):
    """Sums, a concatenation that several operations write, pooling on the fly."""
    nodes = [
        node("Conv", "x w0", "a", pads=PADDED),
        node("Relu", "a", "ar"),
        node("Conv", "ar w1", "b", pads=PADDED),
        node("Add", "b ar", "s"),
        node("Relu", "s", "sr"),
        node("MaxPool", "sr", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p w2", "c1"),
        node("Conv", "p w3", "c2", pads=PADDED),
        node("Relu", "c2", "c2r"),
        node("Concat", "c1 c2r", "k", axis=1),
        node("Sigmoid", "k", "ks"),
        node("Mul", "k ks", "m"),
        node("AveragePool", "m", "ap", kernel_shape=[3, 3], strides=[2, 2]),
        node("Conv", "ap w4", "y"),
    ]
    shapes = {
        "w0": (16, 3, 3, 3),
        "w1": (16, 16, 3, 3),
        "w2": (12, 16, 1, 1),
        "w3": (20, 16, 3, 3),
        "w4": (8, 32, 1, 1),
    }
    constants = {name: uneven(*shape) for name, shape in shapes.items()}
    return model(nodes, {"x": (images, 3, 20, 20)}, {"y": (images, 8, 4, 4)}, constants)


def last_channels():
    """Images with channels last, in and out."""
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]),
        node("Conv", "t w0", "a"),
        node("Relu", "a", "ar"),
        node("Transpose", "ar", "u", perm=[0, 2, 3, 1]),
        node("Relu", "u", "y"),
    ]
    return model(nodes, {"x": (1, 8, 6, 3)}, {"y": (1, 8, 6, 16)}, {"w0": weights(16, 3, 1, 1)})


def rows():
    """Matrix products over the last axis of a sequence."""
    nodes = [node("MatMul", "x w0", "a"), node("Add", "a b", "s"), node("Relu", "s", "r"), node("MatMul", "r w1", "y")]
    constants = {"w0": weights(32, 24), "b": weights(24), "w1": weights(24, 16)}
    return model(nodes, {"x": (1, 7, 32)}, {"y": (1, 7, 16)}, constants)


def larger():
    """Nearest neighbour and a deconvolution: results interleaved by strides; groups."""
    nodes = [
        node("Conv", "x w0", "a", pads=PADDED, group=2),
        node("Relu", "a", "ar"),
        helper.make_node(
            "Resize", ["ar", "", "sizes"], ["u"], mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        ),
        node("Conv", "u w1", "c", pads=PADDED),
        node("Relu", "c", "cr"),
        node("ConvTranspose", "cr w2", "d", strides=[2, 2]),
        node("Clip", "d low high", "y"),
    ]  # fmt: skip
    constants = {"w0": weights(32, 2, 3, 3), "w1": weights(16, 32, 3, 3), "w2": weights(16, 8, 2, 2)}
    constants |= {"sizes": np.array([1, 1, 2, 2], "f4"), "low": np.float32(0), "high": np.float32(1)}
    return model(nodes, {"x": (1, 4, 12, 12)}, {"y": (1, 8, 48, 48)}, constants)


MODELS = {"mobile": mobile, "branches": branches, "last": last_channels, "rows": rows, "larger": larger}
TARGETS = [
    *((name, "nv_small", {}) for name in MODELS),
    ("mobile", "nv_full", {}),
    ("branches", "nv_large", {}),
    ("mobile", "nv_small", {"level": 0}),
    ("mobile", "nv_small", {"level": 2}),
    ("branches", "nv_small", {"input_format": "pixels"}),
]


@pytest.fixture
def agrees(nvdla_command, tmp_path):
    """``agrees(proto, ...)``: compiled, ``compare`` with its model passes and finds what ``compile`` measured."""

    def call(proto, config="nv_small", sample=None, **options):
        path, file, given = (str(tmp_path / name) for name in ("m.onnx", "m.nvdla", "in.npy"))
        onnx.save(proto, path)
        shape = [each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
        if sample is None:
            pixels = options.get("input_format") == "pixels"
            sample = RNG.integers(0, 256, shape) if pixels else RNG.normal(size=shape)
        made = nvdla.compile(path, config, "int8", sample.astype("f4"), **options)
        assert made.whole
        made.save(file)
        bound = names_for(file).inputs[nvdla.Runtime(file).inputs[0].name]
        taken = sample.reshape(-1) if bound.index is None else sample.reshape(-1)[bound.index]
        np.save(given, taken.reshape(nvdla.Runtime(file).inputs[0].shape).astype("f4"))
        code, out, err = nvdla_command("compare", file, "--onnx", path, "-i", given, "--config", config, "--json")
        assert code == 0, out + err
        found = json.loads(out)
        chain = {row["layer"]: row["chain"] for row in made.report["accuracy"]}
        measured = {row["name"]: row["snr_db"] for row in found["tensors"] if row["kind"] == "operation"}
        return chain, measured, found

    return call


@pytest.mark.parametrize(("name", "config", "options"), TARGETS)
def test_compare_finds_what_compile_measured(agrees, name, config, options):
    chain, measured, found = agrees(MODELS[name](), config, **options)
    common = [layer for layer in measured if layer in chain and measured[layer] is not None]
    assert len(common) >= min(len(measured), 2)
    assert {layer: measured[layer] for layer in common} == pytest.approx(
        {each: chain[each] for each in common}, abs=0.5
    )
    assert (found["different"], found["exact"] + found["close"]) == (0, found["compared"])


def quarter(place):
    """A convolution of 32 channels, of which the host gets one of four slices."""
    slices = helper.make_node("Split", ["a", "sizes"], [f"s{number}" for number in range(4)], axis=1)
    nodes = [node("Conv", "x w0", "a"), slices, node("Relu", f"s{place}", "r"), node("MatMul", "r r", "m")]
    constants = {"w0": weights(32, 3, 1, 1), "w1": weights(8, 8, 1, 1), "sizes": np.full(4, 8)}
    return model([*nodes, node("Conv", "m w1", "y")], {"x": (1, 3, 8, 8)}, {"y": (1, 8, 8, 8)}, constants)


@pytest.mark.parametrize(("place", "channels"), [(0, "0 to 7"), (2, "16 to 23")])
def test_metrics_are_those_of_the_elements_that_the_model_has(nvdla_command, tmp_path, place, channels):
    path, package, given = (str(tmp_path / name) for name in ("m.onnx", "m.nvpkg", "x.npy"))
    onnx.save(quarter(place), path)
    sample = RNG.normal(size=(1, 3, 8, 8)).astype("f4")
    np.save(given, sample)
    nvdla.compile(path, "nv_small", "int8", sample).save(package)
    code, out, err = nvdla_command("compare", package, "--onnx", path, "-i", given, "--json")
    assert code == 0, err
    for row in json.loads(out)["parts"][0]["document"]["tensors"]:
        assert (row["shape"], row["elements"]) == ([1, 32, 8, 8], 8 * 8 * 8)
        assert row["note"] == f"in the model: channels {channels} of 32"
        assert row["first"]["c"] in range(8 * place, 8 * place + 8) and row["snr_db"] > 30
        assert row["first_expected"] != row["first_actual"]


def test_every_image_of_a_batch_is_compared(agrees):
    """Each with its own: an image by itself may be 3 dB better or worse than all together."""
    chain, _, found = agrees(branches(2))
    rows = {}
    for row in (each for each in found["tensors"] if each["kind"] == "operation"):
        rows.setdefault(row["name"], []).append(row["snr_db"])
    assert all(len(each) == 2 for name, each in rows.items() if name in chain)
    for name, each in rows.items():
        if name in chain:
            assert min(each) - 1 < chain[name] < max(each) + 1


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("points", [False, True])
def test_a_quantized_model_equals_itself(agrees, tmp_path, form, unsigned, points):
    quantization = pytest.importorskip("onnxruntime.quantization")
    nodes = [
        node("Conv", "x w0 b0", "a", pads=PADDED, strides=[2, 2]),
        node("Relu", "a", "ar"),
        node("Conv", "ar w1", "e"),
        node("MaxPool", "e", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p w2", "q", pads=PADDED),
        node("Add", "q p", "s"),
        node("Relu", "s", "sr"),
        node("GlobalAveragePool", "sr", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f wf", "y"),
    ]
    shapes = {"w0": (16, 3, 3, 3), "w1": (32, 16, 1, 1), "w2": (32, 32, 3, 3), "wf": (32, 10), "b0": (16,)}
    constants = {name: weights(*shape) for name, shape in shapes.items()}
    onnx.save(model(nodes, {"x": (1, 3, 16, 16)}, {"y": (1, 10)}, constants, opset=13), tmp_path / "float.onnx")
    samples = RNG.normal(size=(4, 1, 3, 16, 16)).astype("f4")

    class Reader(quantization.CalibrationDataReader):
        left = iter([{"x": each} for each in samples])

        def get_next(self):
            return next(self.left, None)

    kind = quantization.QuantType.QUInt8 if unsigned else quantization.QuantType.QInt8
    quantization.quantize_static(
        tmp_path / "float.onnx", tmp_path / "q.onnx", Reader(), quant_format=quantization.QuantFormat[form],
        activation_type=kind, weight_type=quantization.QuantType.QInt8,
        extra_options={"ActivationSymmetric": not points, "WeightSymmetric": True},
    )  # fmt: skip
    chain, measured, found = agrees(onnx.load(tmp_path / "q.onnx"), sample=samples[0])
    assert found["different"] == 0 and min(value for value in measured.values() if value is not None) > 30
    for name, value in measured.items():
        assert value is None or value == pytest.approx(chain[name], abs=0.5)


@pytest.mark.parametrize("option", ["--onnx", "--tflite"])
@pytest.mark.parametrize("reference", ["int8", "uint8", "float32"])
@pytest.mark.parametrize("compiled", ["int8", "uint8", "float32"])
def test_every_kind_of_a_network_is_compared_in_its_own_units(nvdla_command, tmp_path, compiled, reference, option):
    """Kinds of one network differ by rounding, whichever was compiled; the reference is what LiteRT computes."""
    pytest.importorskip("ai_edge_litert")
    from support.tflite_kinds import quantized_file
    from support.tflite_writer import interpreted

    if option == "--onnx" and (compiled, reference) != ("int8", "float32"):
        pytest.skip("another name of --tflite")
    given = np.random.default_rng(4).normal(0, 0.5, (1, 6, 6, 2)).astype("f4")
    (tmp_path / "net.tflite").write_bytes(quantized_file(compiled))
    (tmp_path / "other.tflite").write_bytes(quantized_file(reference))
    whole = nvdla.compile(tmp_path / "net.tflite", "nv_small", "int8", given if compiled == "float32" else None)
    whole.save(tmp_path / "net.nvdla")
    np.save(tmp_path / "x.npy", given.transpose(0, 3, 1, 2))
    files = [tmp_path / name for name in ("net.nvdla", "other.tflite", "x.npy")]
    code, text, error = nvdla_command("compare", files[0], option, files[1], "-i", files[2], "--json")
    found = json.loads(text)
    assert (code, error, found["different"]) == (0, "", 0)
    assert [row["kind"] for row in found["tensors"]][-3:] == ["operation", "operation", "output"]
    assert all(row["exact"] or row["snr_db"] > 20 for row in found["tensors"])
    quantized = {"int8": (0.02, 0, 9), "uint8": (0.02, 128, 137)}.get(reference)
    elements = given if quantized is None else np.rint(given / quantized[0]) + quantized[1]
    (wanted,) = interpreted(quantized_file(reference), elements.astype(reference))
    real = wanted if quantized is None else (wanted - float(quantized[2])) * quantized[0]
    from nvdla.checks.compare.float_models import onnx_tensors

    tensors, (end,), runs_in = onnx_tensors(tmp_path / "other.tflite", {"x": given})
    assert np.abs(tensors[end] - real).max() <= 1e-5
    assert runs_in == ("onnxruntime" if quantized is None else "TFLite's reference kernels")
    assert (found["against"]["kind"], found["against"]["reference"]) == ("tflite", runs_in)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_quantized_tensors_of_a_tflite_file_are_those_of_the_interpreter(kind, tmp_path):
    """In the order of the ONNX model, also where all sizes of a tensor are equal."""
    pytest.importorskip("ai_edge_litert")
    from support.tflite_writer import FlatWriter, interpreted

    from nvdla.checks.compare.float_models import onnx_tensors

    rng, writer, zero = np.random.default_rng(6), FlatWriter(), 128 * (kind == "uint8")
    writer.tensor((1, 4, 4, 4), kind, 0.02, zero, name="x")
    for layer, end in enumerate(("inner", "y")):
        weights = writer.constant(rng.integers(0, 127, (4, 3, 3, 4)).astype(kind), 0.0037)
        writer.constant(rng.integers(-99, 99, 4).astype(np.int32), 0.0037 * (0.02, 0.031)[layer])
        writer.tensor((1, 4, 4, 4), kind, (0.031, 0.047)[layer], zero, name=end)
        writer.operator("CONV_2D", [weights - 1, weights, weights + 1], [weights + 2], stride_w=1, stride_h=1)
    (tmp_path / "net.tflite").write_bytes(writer.model([0], [6]))
    info = np.iinfo(kind)
    elements = rng.integers(info.min, info.max + 1, (1, 4, 4, 4)).astype(kind)
    tensors, *_ = onnx_tensors(tmp_path / "net.tflite", {"x": (elements - float(zero)).astype("f4") * np.float32(0.02)})
    for last, name, scale in ((3, "inner", 0.031), (6, "y", 0.047)):
        (wanted,) = interpreted(writer.model([0], [last]), elements)
        real = (wanted - float(zero)) * np.float32(scale)
        np.testing.assert_allclose(tensors[f"{name}/elements"], real.transpose(0, 3, 1, 2), atol=1e-6)


@pytest.fixture
def lenets(samples, tmp_path):
    """The sample compiled from its model, which gives channels factors."""
    digits = np.load(samples / "digits.npz")["images"][:64, None].astype("f4")
    made = nvdla.compile(str(samples / "lenet.onnx"), "nv_small", "int8", digits)
    made.save(tmp_path / "digits.nvdla")
    assert from_sidecar(tmp_path / "digits.nvdla").factors
    return tmp_path / "digits.nvdla"


def test_equalized_tensors_are_compared_in_the_models_units(nvdla_command, samples, lenets):
    """Without the factors 11.5 dB."""
    digit = samples / "digit7.pgm"
    for words in (("--onnx", samples / "lenet.onnx"), (samples / "lenet_nv_full_fp16.loadable",)):
        code, out, _ = nvdla_command("compare", lenets, *words, "-i", digit, "--json")
        found = {row["name"]: row["snr_db"] for row in json.loads(out)["tensors"]}
        assert code == 0 and min(found.values()) > 28


def test_the_page_and_node_data_have_the_same_figures(nvdla_command, samples, lenets, tmp_path):
    other, digit = samples / "lenet_nv_full_fp16.loadable", samples / "digit7.pgm"
    _, out, _ = nvdla_command("compare", other, lenets, "-i", digit, "--json")
    table = {f"{row['task']}/{row['operation']}": row["snr_db"] for row in json.loads(out)["tensors"]}
    code, _, err = nvdla_command("export", other, lenets, "-i", digit, "--node-data", tmp_path / "out")
    assert code == 0, err
    node_data = next(iter(json.loads((tmp_path / "out/snr.json").read_text()).values()))["results"]
    assert node_data
    for label, row in node_data.items():
        assert math.isclose(row["value"], table[label], abs_tol=0.05)


def test_the_snr_of_integers_with_a_zero_point_is_that_of_their_real_values(nvdla_command, samples, lenets, tmp_path):
    """Compare, page and node data: dB against the second loadable, whether units are the same or not."""
    digit, document = samples / "digit7.pgm", json.loads(Path(f"{lenets}.layers.json").read_text())
    changed = tmp_path / "changed.nvdla"
    nvdla.load(lenets).save(changed)
    source = nvdla.Runtime(lenets).inputs[0].name
    for tensor in [tensor for name, tensor in document["tensors"].items() if name != source]:
        tensor["zero_point"] = 30
    for path in (lenets, changed):
        Path(f"{path}.layers.json").write_text(json.dumps(document))
    words = ("-i", digit, "--other-input", samples / "digit3.pgm")
    _, out, _ = nvdla_command("compare", lenets, changed, *words, "--json")
    table = {f"{row['task']}/{row['operation']}": row["snr_db"] for row in json.loads(out)["tensors"]}
    assert nvdla_command("export", lenets, changed, *words, "--node-data", tmp_path / "out")[0] == 0
    node_data = next(iter(json.loads((tmp_path / "out/snr.json").read_text()).values()))["results"]
    assert {label: row["value"] for label, row in node_data.items()} == {
        label: pytest.approx(table[label], abs=1e-6) for label in node_data
    }
    shown = nvdla_command("compare", lenets, changed, *words)[1]
    assert f"SNR: dB against {changed}, real values." in shown


def test_the_page_shows_real_numbers_of_equalized_tensors(samples, lenets):
    from nvdla.analysis.study import Study
    from nvdla.report.document import make_side

    names = names_for(lenets)
    study = Study.of(nvdla.load(lenets), layers=names.layers)
    side, _ = make_side(study, names, 1000.0, lambda runtime: [runtime.surfaces(samples / "digit7.pgm")])
    rows = [row for row in side.pictures.rows if row.get("factors")]
    assert rows
    for row, array in zip(side.pictures.rows, side.pictures.arrays, strict=True):
        if row.get("factors"):
            real = Units(row["scale"], row["zero"], np.array(row["factors"])).real(array)
            assert (row["min"], row["max"]) == pytest.approx((real.min(), real.max()))


def test_tensors_without_a_counterpart_are_named(nvdla_command, samples, tmp_path):
    np.savez(tmp_path / "t.npz", pool2=np.zeros((1, 16, 4, 4), "f4"))
    code, out, _ = nvdla_command(
        "compare", samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--float", tmp_path / "t.npz"
    )
    assert code == 1
    assert "1 tensor compared: 0 exact, 0 close, 1 different." in out
    assert "Without a counterpart: operation 0/2 (PDP, layer pool1), operation 0/7 (SDP, layer ip1+relu3)" in out


def test_a_wrong_scale_is_different(nvdla_command, samples, tmp_path):
    """The cosine of a tensor of half the size is 1; its SNR is 6 dB."""
    runtime = nvdla.Runtime(samples / "lenet.loadable")
    real = runtime.run(str(samples / "digit3.pgm"), real=True)["prob"]
    for factor, wanted in ((1.0, 0), (2.0, 1)):
        np.savez(tmp_path / "t.npz", prob=real * factor)
        words = "compare", samples / "lenet.loadable", "-i", samples / "digit3.pgm", "--float", tmp_path / "t.npz"
        assert nvdla_command(*words)[0] == wanted


# ---- orders and places


def test_orders_are_written_as_loops():
    index = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).transpose(0, 2, 3, 1)
    document = order_document(index)
    assert set(document) == {"start", "loops"}
    assert np.array_equal(order_of(document, "x"), index.ravel())
    shuffled = RNG.permutation(1000)
    assert np.array_equal(order_of(json.loads(json.dumps(order_document(shuffled))), "x"), shuffled)
    assert order_document(np.arange(24).reshape(2, 12)) is None
    assert np.array_equal(order_of(order_document(np.arange(24), 96), "x"), np.arange(24))  # the first of four parts
    assert order_document(RNG.permutation(1 << 17)) is False
    assert value_of({"value": "x", "shape": [2], "index": False}, "x") is None


def test_a_value_and_its_tensor_are_turned_into_each_other():
    index = np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)
    value = ModelValue("v", (4, 2, 3), order_document(index))
    given = RNG.normal(size=(4, 2, 3))
    cubes, known = value.cubes(given, (2, 3, 4))
    assert known is None and np.array_equal(cubes[0].ravel()[index], given)
    assert np.array_equal(value.value(cubes), given)
    part = ModelValue("v", (3,), [0, 2, 4])
    cubes, known = part.cubes(np.array([1.0, 2.0, 3.0]), (5, 1, 1))
    assert known.ravel().tolist() == [True, False, True, False, True]
    assert cubes.ravel().tolist() == [1, 0, 2, 0, 3]


def test_the_place_of_a_part():
    place = StoredPlace("t", (4, 5, 6), (1, 0, 2), (2, 3, 2), (2, 3))
    cube = np.arange(120).reshape(4, 5, 6)
    assert np.array_equal(place.positions((2, 3, 2)), cube[1:3, 0:5:2, 2:6:3])
    assert np.array_equal(place.positions((2, 6, 1)), cube[1:3, 0:5:2, 2:6:3].reshape(2, 6, 1))
    assert place.positions((2, 3, 3)) is None
    assert StoredPlace("t", (4, 5, 6), (3, 0, 0), (2, 1, 1)).positions((2, 1, 1)) is None
    atoms = StoredPlace("t", (10, 1, 1), atoms=True).positions((8, 2, 1))
    assert atoms[:, :, 0].T.ravel().tolist() == [*range(10), *[-1] * 6]


def test_units_of_all_kinds():
    elements = np.array([[[3]], [[-2]]], np.int8)
    assert Units(0.5, 1, np.array([1.0, 4.0])).real(elements).ravel().tolist() == [1.0, -6.0]
    assert Units(1.0, np.array([1.0, 2.0]), np.array([2.0, 1.0]), unsigned=True).real(elements).ravel().tolist() == [
        4,
        252,
    ]
    assert Units(0.5).is_same(Units(0.5)) and not Units(0.5).is_same(Units(0.5, 1))
    assert Units(0.1).is_same(Units(float(np.float32(0.1)))) and not Units(0.1).is_same(Units(0.100001))
    assert not Units(0.5, 0, np.ones(2)).is_same(Units(0.5))


@pytest.mark.parametrize(
    "broken",
    [
        {"factors": {"relu1": [1, -1]}},
        {"factors": {"relu1": [1.0]}},
        {"model": {"relu1": {"value": 3, "shape": []}}},
        {"model": {"relu1": {"value": "x", "shape": [-1]}}},
        {"model": {"relu1": {"value": "x", "shape": [2], "scale": -1}}},
        {"inputs": 5},
        {"writes": {"tensor": 5}},
        {"writes": {"tensor": "relu1", "first": [0, 0]}},
        {"writes": {"tensor": "relu1", "stride": [0, 1]}},
        {"writes": {"tensor": "relu1", "image": "one"}},
    ],
)
def test_a_broken_layer_file_is_one_error(samples, tmp_path, broken):
    document = json.loads((samples / "lenet.loadable.layers.json").read_text())
    if "writes" in broken:
        document["tasks"][0]["operations"][1] |= broken
    else:
        document |= broken
    (tmp_path / "x.nvdla.layers.json").write_text(json.dumps(document))
    with pytest.raises(FormatError):
        from_sidecar(tmp_path / "x.nvdla")


@pytest.mark.parametrize(
    "order", [[], [-1], [1 << 40], ["1"], {"start": 0}, {"start": 0, "loops": [[1 << 20, 1], [1 << 20, 1]]}, 7]
)
def test_a_broken_order_is_one_error(order):
    with pytest.raises(FormatError):
        order_of(order, "x")
    with pytest.raises(FormatError):
        place_of({"tensor": "t", "size": order}, {"t": (1, 1, 1)}, "x")


def test_a_layer_file_may_be_wrong_about_sizes(samples, tmp_path):
    """Places and orders that do not fit are not known; nothing else happens."""
    runtime = nvdla.Runtime(samples / "lenet.loadable")
    names = from_sidecar(samples / "lenet.loadable")
    for place in (StoredPlace("ip3", (10, 1, 1), (9, 0, 0), (10, 1, 1)), StoredPlace("ip3", (1, 1, 1))):
        assert names.place(0, 11, "ip3", (10, 1, 1)) is not None
        names.places[0, 11] = place
        assert names.place(0, 11, "ip3", (10, 1, 1)) is None
        del names.places[0, 11]
    assert ModelValue("v", (1,), [5]).cubes(np.zeros(1), (2, 1, 1)) is None
    assert compare(np.zeros(1), np.zeros(1)).exact and runtime.outputs


def test_evaluation_compares_in_the_order_of_the_model(nvdla_command, tmp_path):
    """Channels last in the model, first in the loadable."""
    proto, data = last_channels(), np.random.default_rng(0).normal(size=(3, 1, 8, 6, 3)).astype("f4")
    onnx.save(proto, tmp_path / "m.onnx")
    nvdla.compile(proto, "nv_small", "int8", data).save(tmp_path / "m.nvdla")
    np.savez(tmp_path / "m.npz", images=data[:, 0].transpose(0, 3, 1, 2), labels=np.zeros(3, int))
    words = "evaluate", tmp_path / "m.nvdla", tmp_path / "m.npz", "--against", tmp_path / "m.onnx", "--json"
    code, out, err = nvdla_command(*words)
    assert code == 0, err
    found = json.loads(out)["summary"]["float"]
    assert found["snr_db"] > 35


def test_the_argument_of_a_sigmoid_may_exceed_the_range_beyond_which_it_stays_the_same(nvdla_command, tmp_path):
    """A quarter of the scores are beyond the range; the float model and fp16 have them, int8 has its end."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(4, 3, 1, 1)).astype("f4") * 4}
    proto = model([node("Conv", "x w", "c"), node("Sigmoid", "c", "y")], {"x": (1, 3, 16, 16)}, {"y": None}, constants)
    data = rng.normal(size=(8, 3, 16, 16)).astype("f4")
    onnx.save(proto, tmp_path / "m.onnx")
    nvdla.compile(proto, "nv_small", calibration=data).save(tmp_path / "m.nvdla")
    nvdla.compile(proto, "nv_full", "fp16").save(tmp_path / "half.nvdla")
    np.save(tmp_path / "x.npy", data[:1])
    assert set(from_sidecar(tmp_path / "m.nvdla").cut["c"]) == {"low", "high"}
    for words in (
        ("compare", tmp_path / "m.nvdla", "--onnx", tmp_path / "m.onnx"),
        ("compare", tmp_path / "m.nvdla", tmp_path / "half.nvdla"),
        ("compare", tmp_path / "half.nvdla", tmp_path / "m.nvdla"),
    ):
        code, out, _ = nvdla_command(*words, "--input", tmp_path / "x.npy", "--json")
        rows = {row["name"]: row for row in json.loads(out)["tensors"]}
        assert code == 0 and rows["c"]["snr_db"] > 30, rows
