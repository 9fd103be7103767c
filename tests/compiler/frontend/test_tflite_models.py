"""TFLite files: read with checked positions, converted whole, refused by name."""

from __future__ import annotations

import re

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.tflite_models import CASES, OneOperator  # noqa: E402
from support.tflite_writer import FlatWriter, interpreted  # noqa: E402

import nvdla  # noqa: E402
from nvdla.compiler.frontend.tflite import tflite_proto  # noqa: E402
from nvdla.compiler.frontend.tflite.generated import tflite_generated as fb  # noqa: E402
from nvdla.compiler.frontend.tflite.reader import OPTIONS, read_model  # noqa: E402
from nvdla.errors import FormatError  # noqa: E402


def small(**changes) -> FlatWriter:
    """A convolution 1x4x4x2 -> 1x4x4x3."""
    writer = FlatWriter()
    writer.tensor(changes.get("shape", (1, 4, 4, 2)), scale=0.1, name="x", signature=changes.get("signature"))
    writer.constant(np.ones((3, 1, 1, 2), np.int8), 0.5)
    writer.constant(np.zeros(3, np.int32), 0.05)
    writer.tensor((1, 4, 4, 3), scale=0.2, name="y")
    writer.operator(changes.get("op", "CONV_2D"), [0, 1, 2], [3], padding=1, stride_w=1, stride_h=1)
    return writer


def converted(data: bytes, **shapes):
    return tflite_proto(onnx, data, "net", shapes)[1]


def test_tables_come_from_the_bindings():
    names = [field.name for field in OPTIONS[fb.BuiltinOptions.Conv2DOptions].fields]
    assert names[:5] == ["padding", "stride_w", "stride_h", "fused_activation_function", "dilation_w_factor"]
    assert [field.default for field in OPTIONS[fb.BuiltinOptions.Conv2DOptions].fields][4:] == [1, 1]
    assert [f.name for f in OPTIONS[fb.BuiltinOptions.ResizeBilinearOptions].fields][2:] == [
        "align_corners",
        "half_pixel_centers",
    ]


def test_a_file_is_read_as_it_was_written():
    model = read_model(small().model([0], [3]), "net")
    assert [each.op for each in model.operators] == ["CONV_2D"]
    assert (model.inputs, model.outputs) == ([0], [3])
    assert model.tensors[1].elements().shape == (3, 1, 1, 2)
    assert model.tensors[1].quantization.scales.tolist() == [0.5]
    assert model.operators[0].options["stride_w"] == 1


@pytest.mark.parametrize("end", range(0, 400, 7))
def test_a_file_that_is_cut_off_is_refused(end):
    data = small().model([0], [3])
    with pytest.raises(FormatError):
        converted(data[: len(data) * end // 400])


def test_any_changed_byte_is_read_or_refused():
    data = small().model([0], [3])
    refused = 0
    for place in range(len(data)):
        for value in (0, 0x7F, 0xFF):
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            try:
                converted(changed)
            except FormatError:
                refused += 1
    assert refused > len(data) // 4


def test_four_bit_weights_are_unpacked():
    writer = FlatWriter()
    writer.tensor((3, 3), "INT4", 0.5, data=np.array([0x21, 0xF8, 0x07, 0x65, 0x03], np.uint8))
    elements = read_model(writer.model([], []), "net").tensors[0].elements()
    assert elements.tolist() == [[1, 2, -8], [-1, 7, 0], [5, 6, 3]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.operator("WHILE", [0], [3]), "operator 0 (WHILE) that makes y: this operator is not converted"),
        (lambda w: w.operator("MyOperator", [0], [3]), "operator 0 (MyOperator) that makes y"),
        (lambda w: w.operator("CONV_2D", [0, 1], [9]), "CONV_2D: tensor: must be less than 4, got 9"),
        (lambda w: w.operator("CONV_2D", [0, 2], [3], stride_w=1, stride_h=1), "t2: must have 4 dimensions, got 1"),
        (lambda w: w.operator("RELU", [0], [0]), "tensor y is used before it is defined"),
        (
            lambda w: w.operator("CONV_2D", [0, 1], [3]),
            "size, kernel, stride, dilation: must be positive, got 4, 1, 0, 1",
        ),
        (
            lambda w: w.operator("RELU", [3], [3]),
            "operator 0 (RELU) that makes y: tensor y is used before it is defined",
        ),
    ],
)
def test_what_is_not_converted_is_named(change, words):
    writer = small()
    writer.operators.clear()
    change(writer)
    with pytest.raises(FormatError, match=re.escape(words)):
        converted(writer.model([0], [3]))


def test_a_tensor_that_is_made_twice_is_refused():
    writer = small()
    writer.operator("RELU", [0], [3])
    with pytest.raises(FormatError, match="tensor y: must be defined once"):
        converted(writer.model([0], [3]))


def test_data_of_another_size_than_the_shape_is_refused():
    writer = small()
    writer.tensors[1]["shape"] = (3, 1, 1, 200)
    with pytest.raises(FormatError, match=r"tensor t1: data: must be 600 bytes, got 6|do not fit"):
        converted(writer.model([0], [3]))


def test_an_open_batch_is_one_and_other_open_sizes_must_be_given():
    data = small(shape=(1, 4, 4, 2), signature=(-1, 4, 4, 2)).model([0], [3])
    sizes = [dim.dim_value for dim in converted(data).graph.input[0].type.tensor_type.shape.dim]
    assert sizes == [1, 4, 4, 2]
    assert converted(data, x=(3, 4, 4, 2)).graph.output[0].type.tensor_type.shape.dim[0].dim_value == 3
    data = small(shape=(1, 1, 1, 2), signature=(-1, -1, -1, 2)).model([0], [3])
    with pytest.raises(FormatError, match=re.escape("Add --shape x=1,?,?,2")):
        converted(data)
    with pytest.raises(FormatError, match="the model fixes a dimension to 2"):
        converted(data, x=(1, 8, 8, 3))


def test_shapes_that_are_computed_are_known_when_the_model_is_read():
    writer = FlatWriter()
    source = writer.tensor((1, 3, 4, 2), scale=0.1, name="x", signature=(-1, 3, 4, 2))
    shape, batch, wanted, out = (
        writer.tensor((4,), "int32"),
        writer.tensor((), "int32"),
        writer.tensor((2,), "int32"),
        4,
    )
    assert writer.tensor((1, 24), scale=0.1, name="y") == out
    one = [writer.constant([n]) for n in (0, 1, 1)]
    writer.operator("SHAPE", [source], [shape], out_type=fb.TensorType.INT32)
    writer.operator("STRIDED_SLICE", [shape, *one], [batch], shrink_axis_mask=1)
    writer.operator("PACK", [batch, writer.constant(24)], [wanted], values_count=2, axis=0)
    writer.operator("RESHAPE", [source, wanted], [out])
    graph = converted(writer.model([source], [out])).graph
    kinds = {node.op_type for node in graph.node}
    assert kinds == {"DequantizeLinear", "QuantizeLinear", "Reshape"}


def test_a_convolution_between_space_to_batch_and_back_is_dilated():
    writer = FlatWriter()
    source = writer.tensor((1, 8, 8, 2), scale=0.1, name="x")
    weights = writer.constant(np.ones((3, 3, 3, 2), np.int8), 0.5)
    parts = [writer.tensor(shape, scale=0.1) for shape in ((4, 6, 6, 2), (4, 4, 4, 3), (1, 8, 8, 3))]
    blocks, ends = writer.constant([2, 2]), writer.constant(np.array([[2, 2], [2, 2]], np.int32))
    writer.operator("SPACE_TO_BATCH_ND", [source, blocks, ends], parts[:1])
    writer.operator("CONV_2D", [parts[0], weights], [parts[1]], padding=1, stride_w=1, stride_h=1)
    writer.operator("BATCH_TO_SPACE_ND", [parts[1], blocks, writer.constant(np.zeros((2, 2), np.int32))], parts[2:])
    nodes = [node for node in converted(writer.model([source], parts[2:])).graph.node if node.op_type == "Conv"]
    attributes = {each.name: list(each.ints) for each in nodes[0].attribute}
    assert (attributes["dilations"], attributes["pads"]) == ([2, 2], [2, 2, 2, 2])


@pytest.mark.parametrize("last", ["RESHAPE", "SQUEEZE"])
def test_a_dilated_convolution_of_a_sequence_has_rows_in_between(last):
    """Keras' Conv1D with a dilation_rate."""
    writer = FlatWriter()
    source = writer.tensor((1, 12, 4), scale=0.1, name="x")
    weights = writer.constant(np.ones((3, 1, 3, 4), np.int8), 0.5)
    shapes = (2, 8, 4), (2, 1, 8, 4), (2, 1, 6, 3), (2, 6, 3), (1, 12, 3)
    parts = [writer.tensor(shape, scale=0.1) for shape in shapes]
    blocks, ends, axis = (writer.constant(np.array(array, np.int32)) for array in ([2], [[2, 2]], 1))
    writer.operator("SPACE_TO_BATCH_ND", [source, blocks, ends], parts[:1])
    writer.operator("EXPAND_DIMS", [parts[0], axis], parts[1:2])
    writer.operator("CONV_2D", [parts[1], weights], parts[2:3], padding=1, stride_w=1, stride_h=1)
    shape = [writer.constant(np.array([2, 6, 3], np.int32))] if last == "RESHAPE" else []
    writer.operator(last, [parts[2], *shape], parts[3:4], **({} if shape else {"squeeze_dims": [1]}))
    writer.operator("BATCH_TO_SPACE_ND", [parts[3], blocks, writer.constant(np.zeros((1, 2), np.int32))], parts[4:])
    data = writer.model([source], parts[4:])
    nodes = [node for node in converted(data).graph.node if node.op_type == "Conv"]
    attributes = {each.name: list(each.ints) for each in nodes[0].attribute}
    assert (attributes["dilations"], attributes["pads"]) == ([1, 2], [0, 2, 0, 2])
    given = np.random.default_rng(0).integers(-8, 9, (1, 12, 4))
    sums = np.pad(given.sum(axis=2)[0], 2)
    wanted = 0.05 * (sums[:-4] + sums[2:-2] + sums[4:])
    got = nvdla.compile(data, "nv_small").run((0.1 * given).astype(np.float32))
    np.testing.assert_allclose(next(iter(got.values()))[0], np.tile(wanted, (3, 1)).T, atol=0.051)


def test_float16_weights_are_constants_of_a_float_model():
    rng = np.random.default_rng(0)
    writer = FlatWriter()
    source = writer.tensor((1, 6, 6, 3), "float32", name="x")
    half = writer.constant(rng.normal(size=(4, 3, 3, 3)).astype(np.float16))
    weights, out = writer.tensor((4, 3, 3, 3), "float32"), writer.tensor((1, 6, 6, 4), "float32", name="y")
    writer.operator("DEQUANTIZE", [half], [weights])
    writer.operator("CONV_2D", [source, weights], [out], padding=0, stride_w=1, stride_h=1)
    data, samples = writer.model([source], [out]), rng.normal(size=(8, 6, 6, 3)).astype(np.float32)
    compiled = nvdla.compile(data, "nv_small", calibration=samples)
    assert compiled.whole
    kernel = read_model(data, "net").tensors[half].elements().astype(np.float64)
    padded = np.pad(samples[0], ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))
    wanted = np.einsum("hwcyx,kyxc->hwk", windows, kernel)
    got = compiled.run(samples[:1])["y"][0]
    assert np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


def test_the_command_takes_a_file(tmp_path, capsys):
    from nvdla.cli.main import main

    path = tmp_path / "net.tflite"
    path.write_bytes(CASES["CONV_2D 0"].made().data)
    assert main(["compile", str(path), "-o", str(tmp_path / "net.nvdla"), "--quiet"]) == 0
    assert (tmp_path / "net.nvdla").is_file()
    assert main(["compile", str(path), "--check"]) == 0
    assert "Conv" in capsys.readouterr().out


def test_factors_after_a_convolution_multiply_the_scales_of_its_weights():
    rng = np.random.default_rng(1)
    net = OneOperator(rng)
    source, weights = net.input((1, 6, 6, 4), 0.03, 7), net.constant(net.elements((6, 3, 3, 4)), 0.01)
    middle = net.writer.tensor((1, 6, 6, 6), "int8", 0.3, 4)
    net.writer.operator("CONV_2D", [source, weights], [middle], padding=0, stride_w=1, stride_h=1)
    factors = net.constant(np.array([127, 100, 60, 20, -127, -90], np.int8), 2 / 127)
    net.output((1, 6, 6, 6), 0.6, -4)
    net.op("MUL", [middle, factors])
    compiled = nvdla.compile(net.data, "nv_small")
    real = (net.arrays[0].astype(np.float64) - 7) * 0.03
    padded = np.pad(real[0], ((1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))
    kernels = net.writer.tensors[weights]["data"] * 0.01
    wanted = np.einsum("hwcyx,kyxc->hwk", windows, kernels) * np.array([127, 100, 60, 20, -127, -90]) * 2 / 127
    (got,) = compiled.run({"t0": real.astype(np.float32)}).values()
    inside = np.abs(wanted) < 0.6 * 120
    assert np.abs(got[0] - wanted)[inside].max() <= 0.6 * 2


def test_the_suggested_commands_run(tmp_path, nvdla_command, monkeypatch):
    """compile names the commands for the next steps; compare takes the TFLite file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.tflite").write_bytes(small().model([0], [3]))
    np.save(tmp_path / "FILE.npy", np.random.default_rng(0).normal(size=(1, 4, 4, 2)).astype(np.float32))
    status, out, _ = nvdla_command("compile", "net.tflite", "-o", "net.loadable")
    assert status == 0
    suggested = [line.strip() for line in out.partition("Next:\n")[2].splitlines() if line.startswith("  nvdla ")]
    assert suggested[-1] == "nvdla compare net.loadable --tflite net.tflite --input FILE"
    for line in suggested:
        assert nvdla_command(*line.replace("FILE", "FILE.npy").split()[1:])[0] == 0


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_a_loadable_keeps_the_names_of_the_file(kind, corpus):
    """The network ends with softmax, which has no zero point."""
    compiled = nvdla.compile(corpus / "tflite" / f"small_cnn_{kind}.tflite", "nv_small")
    loadable, name = compiled.loadable, "StatefulPartitionedCall_1:0"
    assert [tensor.name for tensor in loadable.tensors] == ["serving_default_keras_tensor:0", name]
    (note,) = [note for note in compiled.report["notes"] if "its step is" in note]
    assert note.startswith(f"tensor {name}: its step is 2.02 times")
    assert note.endswith("because its producer (softmax) has no zero point")


@pytest.mark.parametrize("config, precision, least", [("nv_full", "int16", 70), ("nv_small", "int8", 30)])
@pytest.mark.parametrize("is_real", [False, True])
def test_activations_of_16_bits_compile_as_int16_or_become_int8(config, precision, least, is_real):
    """TFLite's 16x8 kind: int8 weights, biases of 64 bits, no zero points; ends of 16 bits, or real ones."""
    pytest.importorskip("ai_edge_litert")
    from support.tflite_writer import interpreted

    rng, writer, scale = np.random.default_rng(5), FlatWriter(), 2.0**-13
    x, y = (writer.tensor((1, 6, 6, 4), "int16", scale, name=name) for name in ("x", "y"))
    weights = writer.constant(rng.integers(-127, 128, (4, 3, 3, 4)).astype(np.int8), np.full(4, 0.005))
    bias = writer.constant(rng.integers(-900, 900, 4), np.full(4, 0.005 * scale))
    options = {"padding": 0, "stride_w": 1, "stride_h": 1, "fused_activation_function": 1}
    writer.operator("CONV_2D", [x, weights, bias], [y], **options)
    given, result = x, y
    if is_real:
        given, result = (writer.tensor((1, 6, 6, 4), "float32", name=f"{name} real") for name in "xy")
        writer.operators.insert(0, ("QUANTIZE", [given], [x], {}, b""))
        writer.operator("DEQUANTIZE", [y], [result])
    data = writer.model([given], [result])
    real = rng.uniform(-2, 2, (1, 6, 6, 4)).astype(np.float32)
    (wanted,) = interpreted(data, real if is_real else np.rint(real / scale).astype(np.int16))
    wanted = wanted if is_real else wanted * scale
    compiled = nvdla.compile(data, config, precision)
    assert compiled.whole
    (found,) = compiled.run(real).values()
    noise = float(np.sum((np.reshape(found, wanted.shape) - wanted) ** 2))
    assert np.ptp(wanted) > 0.5 and 10 * np.log10(float(np.sum(wanted**2)) / noise) > least


def test_a_note_states_that_integers_of_the_file_are_no_elements_of_the_loadable():
    """The second factor of a product has no zero point: its units are larger than those of the file."""
    writer = FlatWriter()
    for name in ("first", "second", "out"):
        writer.tensor((1, 8, 6, 4), "int8", 0.02, -100, name=name)
    writer.operator("MUL", [0, 1], [2])
    notes = nvdla.compile(writer.model([0, 1], [2])).report["notes"]
    (note,) = (note for note in notes if "integers of the file have other units" in note)
    assert note.startswith("input second: ") and "zero 0" in note and note.endswith("Give real numbers (float arrays)")


def test_a_constant_state_of_a_quantized_recurrent_layer_has_its_real_numbers():
    """Unrolled GRU, LSTM and SimpleRNN of Keras begin with the FILL of a quantized number."""
    pytest.importorskip("ai_edge_litert")
    rng = np.random.default_rng(0)
    writer = FlatWriter()
    x = writer.tensor((1, 4), scale=0.05, zero=3, name="x")
    state = writer.tensor((1, 3), scale=0.1, zero=-7, name="state")
    writer.operator("FILL", [writer.constant([1, 3]), writer.constant(np.array(5, np.int8), 0.1, -7)], [state])
    sides = []
    for source, count in ((x, 4), (state, 3)):
        weights = writer.constant(rng.integers(-127, 128, (2, count)).astype(np.int8), 0.01)
        bias = writer.constant(np.zeros(2, np.int32), 0.01 * (0.05 if source == x else 0.1))
        sides.append(writer.tensor((1, 2), scale=0.1, zero=1, name=f"side{count}"))
        writer.operator("FULLY_CONNECTED", [source, weights, bias], [sides[-1]])
    y = writer.tensor((1, 2), scale=0.1, zero=0, name="y")
    writer.operator("ADD", sides, [y])
    data = writer.model([x], [y])
    compiled = nvdla.compile(data, "nv_small")
    for elements in rng.integers(-128, 128, (5, 1, 4)).astype(np.int8):
        expected = interpreted(data, elements)[0].astype(float) * 0.1
        assert np.abs(compiled.run((elements.astype("f4") - 3) * np.float32(0.05))["y"] - expected).max() <= 0.21
