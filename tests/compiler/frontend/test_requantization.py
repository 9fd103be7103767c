"""QuantizeLinear and DequantizeLinear keep their meaning: onnxruntime is the truth, within one step of the output."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from nvdla.compiler.frontend.compiler import compile as compile_model  # noqa: E402
from nvdla.compiler.frontend.package import unpack  # noqa: E402

X = (1, 8, 6, 6)
I8, U8, I16 = np.int8, np.uint8, np.int16


class Quantized:
    """A QDQ model under construction: every value is the real numbers behind a pair."""

    def __init__(self, opset=21):
        self.nodes, self.constants, self.opset = [], {}, opset

    def node(self, kind, inputs, **attributes):
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], f"{kind}{len(self.nodes)}", **attributes))
        return name

    def constant(self, values, kind="f4"):
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values, kind)
        return name

    def pair(self, value, scale, zero):
        steps = [self.constant(scale), self.constant(zero, zero.dtype)]
        return self.node("DequantizeLinear", [self.node("QuantizeLinear", [value, *steps]), *steps])

    def conv(self, value, seed=0, step=0.004):
        rng = np.random.default_rng(seed)
        weights = [
            self.constant(rng.integers(-127, 128, (8, 8, 1, 1)), I8),
            self.constant(np.full(8, step)),
            self.constant(np.zeros(8), I8),
        ]
        return self.node("Conv", [value, self.node("DequantizeLinear", weights, axis=0)])

    def model(self, output, *others):
        names = ["y", *(f"y{number}" for number, _ in enumerate(others))]
        for name, value in zip(names, (output, *others), strict=True):
            self.nodes.append(helper.make_node("Identity", [value], [name], f"end of {name}"))
        held = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X)
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        graph = helper.make_graph(self.nodes, "quantized", [x], ends, held)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(proto)


def data(spread=1.5):
    return np.random.default_rng(2).normal(size=(3, *X[1:])).astype("f4") * spread


def steps(proto, scale, samples=None, calibration=None, config="nv_small", **options):
    """The largest difference from onnxruntime in steps of the output, and what was compiled."""
    samples = data() if samples is None else samples
    compiled = compile_model(proto, config, "int8", calibration, **options)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    machine = unpack(compiled.package).machine() if not compiled.whole else compiled
    worst = max(
        np.abs(machine.run({"x": each[None]})["y"] - session.run(None, {"x": each[None]})[0]).max() for each in samples
    )
    return worst / scale, compiled


def placed(compiled, op):
    return {row.placement for row in compiled.nodes if row.op == op}


NARROWER = {
    "int8": ((0.03, I8(0)), (0.01, I8(0))),
    "int8, a tenth": ((0.1, I8(0)), (0.01, I8(0))),
    "uint8 of one side": ((0.03, U8(128)), (0.012, U8(0))),
    "uint8 with zero points": ((0.03, U8(100)), (0.015, U8(150))),
    "wider again": ((0.01, I8(0)), (0.03, I8(0))),
}


@pytest.mark.parametrize("case", NARROWER)
def test_a_tensor_that_is_quantized_again_saturates_at_both_ranges(case):
    wide, narrow = NARROWER[case]
    net = Quantized()
    value = net.pair(net.pair("x", *wide), *narrow)
    error, compiled = steps(net.model(net.pair(net.conv(value), 0.03, I8(0))), 0.03)
    assert error <= 1.01
    assert compiled.report["host_nodes"] == 0


KEEPERS = {
    "MaxPool": {"kernel_shape": [2, 2]},
    "Transpose": {"perm": [0, 1, 3, 2]},
    "Reshape": {},
    "Flatten": {},
    "Concat": {"axis": 1},
    "Resize": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
}


@pytest.mark.parametrize("kind", KEEPERS)
def test_a_narrower_range_after_an_operator_that_moves_elements_saturates(kind):
    net = Quantized()
    first = net.pair(net.conv(net.pair("x", 0.03, I8(0))), 0.04, I8(0))
    more = {"Reshape": [net.constant([1, 8, 36], "i8")], "Concat": [first], "Resize": ["", net.constant([1, 1, 2, 2])]}
    moved = net.node(kind, [first, *more.get(kind, [])], **KEEPERS[kind])
    error, compiled = steps(net.model(net.pair(moved, 0.01, I8(0))), 0.01, data(3.0))
    # The finer steps of the result show a rounding of the convolution, a step of 0.04, four times as large.
    assert error <= 4.01
    assert compiled.report["host_nodes"] == 0


def test_a_moved_tensor_of_one_range_stays_one_operation():
    net = Quantized()
    value = net.pair(net.conv(net.pair("x", 0.03, I8(0))), 0.04, I8(0))
    value = net.pair(net.node("MaxPool", [value], kernel_shape=[2, 2]), 0.04, I8(0))
    error, compiled = steps(net.model(value), 0.04)
    assert error <= 1.01
    assert not placed(compiled, "Clip") and not compiled.report["notes"]


def test_an_average_with_a_narrower_range_has_steps_of_its_own():
    net = Quantized()
    value = net.pair("x", 0.05, I8(0))
    value = net.node("AveragePool", [value], kernel_shape=[3, 3], strides=[1, 1])
    error, compiled = steps(net.model(net.pair(value, 0.01, I8(0))), 0.01)
    assert error <= 1.01
    assert placed(compiled, "AveragePool") == {"accelerator"}


def test_two_ways_of_quantizing_one_tensor_each_have_their_range():
    net = Quantized()
    value = net.node("Neg", [net.pair("x", 0.03, I8(0))])
    one, other = (
        net.pair(net.conv(net.pair(value, scale, I8(0)), seed), 0.03, I8(0)) for seed, scale in enumerate((0.03, 0.01))
    )
    error, compiled = steps(net.model(net.pair(net.node("Add", [one, other]), 0.05, I8(0))), 0.05)
    assert error <= 2.01
    assert any("is not quantized itself" in note for note in compiled.report["notes"])


def residual():
    """As TensorRT wants it: the convolution's input is quantized, the sum reads the real numbers."""
    net = Quantized()
    first = net.node("Relu", [net.conv(net.pair("x", 0.03, I8(0)))])
    branch = net.conv(net.pair(first, 0.01, I8(0)), 1)
    return net.model(net.pair(net.node("Add", [net.pair(branch, 0.02, I8(0)), first]), 0.04, I8(0)))


def test_a_residual_in_floats_keeps_what_the_branch_cuts_off():
    error, compiled = steps(residual(), 0.04, data(2.0), data(2.0))
    assert error <= 2.01  # the residual itself has steps of 8 bits
    assert compiled.report["host_nodes"] == 0
    assert placed(compiled, "Clip") == {"accelerator"}
    assert not any("is not quantized itself" in note for note in compiled.report["notes"])


def test_without_data_a_residual_has_the_range_of_the_branch_and_a_note_names_it():
    compiled = compile_model(residual(), "nv_small", "int8")
    notes = [note for note in compiled.report["notes"] if "is not quantized itself" in note]
    assert len(notes) == 1 and "its range is 1.27" in notes[0] and "--calibrate" in notes[0]
    assert placed(compiled, "Clip") <= {"folded"}


@pytest.mark.parametrize("kind", ["ArgMax", "Conv of unknown range"])
def test_pairs_around_nodes_of_the_host_stay(kind):
    net = Quantized()
    value = net.conv(net.pair("x", 0.02, U8(128)))
    if kind == "ArgMax":
        value = net.node("Mul", [net.pair(value, 0.01, I8(0)), net.constant(30.0)])
        value = net.node("Cast", [net.node("ArgMax", [value], axis=1)], to=1)
    else:
        value = net.node("Sigmoid", [value])
        value = net.node("Mul", [value, net.pair("x", 0.02, U8(128))])
    error, compiled = steps(net.model(net.pair(value, 6 / 255, U8(0))), 6 / 255, data(2.0))
    assert compiled.report["host_nodes"] > 0
    assert error <= 0.01


@pytest.mark.parametrize("zero", [U8(0), I8(-128)])
def test_relu6_after_a_convolution_is_one_operation_on_the_accelerator(zero):
    net = Quantized()
    value = net.conv(net.pair("x", 0.03, I8(0)))
    value = net.node("Clip", [value, net.constant(0.0), net.constant(6.0)])
    error, compiled = steps(net.model(net.pair(value, 6 / 255, zero)), 6 / 255)
    assert error <= 1.01
    assert placed(compiled, "Clip") == placed(compiled, "Conv") == {"accelerator"} and not placed(compiled, "Relu")


@pytest.mark.parametrize("moves", [[], ["Identity"], ["Transpose", "MaxPool"]], ids=["quantized", "copied", "moved"])
def test_integers_that_only_move_are_outputs_of_the_accelerator(moves):
    """The model's output is int8; here it is real numbers, whose elements are the model's."""
    net, settings = Quantized(), {"Transpose": {"perm": [0, 2, 1, 3]}, "MaxPool": {"kernel_shape": [1, 2]}}
    steps_of = [net.constant(0.05), net.constant(3, I8)]
    value = net.node("QuantizeLinear", [net.conv(net.pair("x", 0.05, I8(0))), *steps_of])
    for kind in moves:
        value = net.node(kind, [value], **settings.get(kind, {}))
    proto = net.model(value)
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    compiled = compile_model(proto, "nv_small")
    wanted = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": data()[:1]})[0]
    elements = np.rint(compiled.run(data()[:1])["y"] / 0.05) + 3
    assert compiled.whole and np.abs(elements - wanted).max() <= 1


@pytest.mark.parametrize(("kind", "number"), [("Min", 0.5), ("Max", 0.1), ("HardSwish", None), ("Sigmoid", None)])
@pytest.mark.parametrize("before", ["Relu", "Conv", "Add"])
@pytest.mark.parametrize("config", ["nv_small", "nv_full"])
def test_full_integer_models_need_no_data_where_zero_points_cut_negative_numbers_off(kind, number, before, config):
    """The ReLU that a zero point of -128 stands for may be an operation, or a part of the table of a function."""
    net = Quantized()
    x = net.pair("x", 0.02, I8(-3))
    value = net.conv(x)
    if before == "Add":
        value = net.node("Add", [net.pair(value, 0.04, I8(3)), x])
    value = net.pair(net.node("Relu", [value]) if before == "Relu" else value, 0.01, I8(-128))
    if kind == "Sigmoid":  # SiLU
        value = net.node("Mul", [value, net.pair(net.node("Sigmoid", [value]), 1 / 256, I8(-128))])
    else:
        value = net.node(kind, [value, *([] if number is None else [net.constant(number)])])
    value = net.conv(net.pair(value, 0.008, I8(-128)), 1)
    off, compiled = steps(net.model(net.pair(value, 0.02, I8(4))), 0.02, config=config)
    assert compiled.whole and off <= (2.001 if before == "Add" else 1.001)  # the sum is not rounded before


def test_elements_that_are_read_with_another_scale_are_other_numbers():
    net = Quantized()
    made = net.node("QuantizeLinear", ["x", net.constant(0.02), net.constant(3, I8)])
    value = net.node("DequantizeLinear", [made, net.constant(0.05), net.constant(-4, I8)])
    error, _ = steps(net.model(net.pair(value, 0.05, I8(0))), 0.05)
    assert error <= 1.01


def test_tensors_of_16_bits_in_int8_are_reported():
    net = Quantized()
    proto = net.model(net.pair(net.node("Relu", [net.pair("x", 0.0002, I16(0))]), 0.0002, I16(0)))
    notes = compile_model(proto, "nv_small", "int8").report["notes"]
    assert any("nv_small has no int16; configurations with it: nv_full" in note for note in notes)
    notes = compile_model(proto, "nv_full", "int8").report["notes"]
    assert any(note.endswith("compile with --precision int16 (Python: precision='int16')") for note in notes)
    assert not compile_model(proto, "nv_full", "int16").report["notes"]


LIMITS = {
    "ReLU6": (6 / 255, I8(-128)),
    "ReLU6 as uint8": (6 / 255, U8(0)),
    "Clip(-1, 1)": (1 / 127, I8(0)),
    "Clip(-5, 0.5)": (5.5 / 255, I8(104)),
}


@pytest.mark.parametrize("moved", [False, True], ids=["", "behind a pooling"])
@pytest.mark.parametrize("case", LIMITS)
def test_a_part_of_a_concat_keeps_the_limit_of_a_clip_that_was_taken_out(case, moved):
    """onnxruntime's tools remove a Clip before QuantizeLinear, whose range is that limit; the other part is wider."""
    limit, wide = LIMITS[case], 0.16
    net = Quantized()
    source = net.pair("x", 0.03, I8(0))
    narrow = net.pair(net.conv(source, 0, 0.012), *limit)
    other = net.pair(net.conv(source, 1, 0.032), wide, I8(0))
    if moved:
        narrow, other = (net.node("MaxPool", [part], kernel_shape=[2, 2]) for part in (narrow, other))
        narrow, other = net.pair(narrow, *limit), net.pair(other, wide, I8(0))
    joined = net.pair(net.node("Concat", [narrow, other], axis=1), wide, I8(0))
    samples = data(3.0)
    error, compiled = steps(net.model(joined), wide, samples)
    assert error <= 2.01  # a part is rounded in its own steps, then in those of the Concat
    assert compiled.report["host_nodes"] == 0
    lowest, highest = (int(end) - int(limit[1]) for end in (np.iinfo(limit[1].dtype).min, np.iinfo(limit[1].dtype).max))
    parts = [compiled.run({"x": each[None]})["y"][:, :8] for each in samples]
    assert max(part.max() for part in parts) <= highest * limit[0] + wide
    assert min(part.min() for part in parts) >= lowest * limit[0] - wide


@pytest.mark.parametrize(("precision", "config"), [("int8", "nv_small"), ("int16", "nv_full"), ("fp16", "nv_full")])
def test_the_nearer_end_of_a_range_stays_a_limit(precision, config):
    """Clip(max=0.5) that was taken out; tensors of int16 have no zero point."""
    net = Quantized()
    proto = net.model(net.pair(net.conv(net.pair("x", 0.03, I8(0))), 5.5 / 255, I8(104)))
    compiled = compile_model(proto, config, precision)
    results = [compiled.run({"x": each[None]})["y"] for each in data(3.0)]
    assert max(result.max() for result in results) <= 0.5 + 0.01
    assert min(result.min() for result in results) < -3


def test_a_function_whose_range_ends_by_itself_gets_no_limit():
    """A sigmoid that is joined with a wider part."""
    net = Quantized()
    source = net.pair("x", 0.03, I8(0))
    gate = net.pair(net.node("Sigmoid", [net.pair(net.conv(source), 0.04, I8(0))]), 1 / 256, I8(-128))
    other = net.pair(net.conv(source, 1, 0.032), 0.16, I8(0))
    joined = net.pair(net.node("Concat", [gate, other], axis=1), 0.16, I8(0))
    error, compiled = steps(net.model(joined), 0.16)
    assert error <= 1.01
    assert placed(compiled, "Clip") == set()


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_an_input_that_is_joined_keeps_its_scale_and_zero_point(parts, axis, config):
    """Whoever has the elements of the file gives them; the parts of a channel atom are put together."""
    net = Quantized()
    source = net.pair("x", 0.03, I8(-30))
    rest = [net.pair(net.conv(source, seed), 0.04, I8(-20)) for seed in range(parts)]
    if axis == 1:  # parts that do not fill atoms
        rest = [net.node("Slice", [part, *(net.constant([n], "i8") for n in (0, 3, 1))]) for part in rest]
    joined = net.pair(net.node("Concat", [rest[0], source, *rest[1:]], axis=axis), 0.045, I8(-25))
    error, compiled = steps(net.model(joined), 0.045, config=config)
    assert error <= 2.01
    assert compiled.report["host_nodes"] == 0
    (part,) = compiled.parts
    assert part.scales["x"] == pytest.approx(0.03) and part.zero_points["x"] == -30


def test_a_note_on_a_coarser_step_names_the_shared_scale():
    """Both parts keep their zero point; one of them has the step of the other."""
    net = Quantized()
    source = net.pair("x", 0.03, I8(0))
    parts = [net.pair(net.conv(source, seed), scale, I8(-100)) for seed, scale in ((0, 0.02), (1, 0.05))]
    compiled = compile_model(net.model(net.pair(net.node("Concat", parts, axis=1), 0.05, I8(-100))), "nv_small", "int8")
    (note,) = (note for note in compiled.report["notes"] if "its step is" in note)
    assert "its step is 2.5 times" in note and note.endswith("because all parts of a Concat have one scale")


def test_a_note_states_the_coarser_step_of_a_symmetric_tensor():
    """Symmetric int8 (zero point 0): the scales of the parts of a Concat differ, too."""
    net = Quantized()
    source = net.pair("x", 0.03, I8(0))
    parts = [net.pair(net.conv(source, seed), scale, I8(0)) for seed, scale in ((0, 0.02), (1, 0.05))]
    compiled = compile_model(net.model(net.pair(net.node("Concat", parts, axis=1), 0.05, I8(0))), "nv_small", "int8")
    (note,) = (note for note in compiled.report["notes"] if "its step is" in note)
    assert "its step is 2.5 times" in note and note.endswith("because all parts of a Concat have one scale")
    same = Quantized()
    result = same.pair(same.conv(same.pair("x", 0.03, I8(0)), 0), 0.02, I8(0))
    assert not any("its step" in note for note in compile_model(same.model(result), "nv_small", "int8").report["notes"])


@pytest.mark.parametrize("kind", ["GlobalAveragePool", "GlobalMaxPool"])
def test_a_note_states_averages_that_have_the_step_of_their_input(kind):
    """The largest number of a map uses the range of the map; its average may be much smaller."""
    net = Quantized()
    result = net.node(kind, [net.pair(net.conv(net.pair("x", 0.03, I8(0)), 0), 0.02, I8(0))])
    notes = compile_model(net.model(result), "nv_small", "int8").report["notes"]
    assert any("the model states no range: it has the step of" in note for note in notes) == (
        kind == "GlobalAveragePool"
    )


def test_a_note_blames_a_concat_for_its_own_parts_alone():
    """A pool has the scale of its input, whatever else is joined in the network."""
    net = Quantized()
    source = net.pair("x", 0.03, I8(0))
    parts = [net.pair(net.conv(source, seed), scale, I8(0)) for seed, scale in ((0, 0.02), (1, 0.05))]
    joined = net.pair(net.node("Concat", parts, axis=1), 0.05, I8(0))
    first = net.pair(net.conv(source, 2), 0.05, I8(0))
    pooled = net.pair(net.node("GlobalMaxPool", [first]), 0.02, I8(0))
    compiled = compile_model(net.model(joined, pooled), "nv_small", "int8")
    reasons = {note.split(":")[0]: note.split("because ")[1] for note in compiled.report["notes"] if "its step" in note}
    assert sorted(reasons.values()) == [
        "all parts of a Concat have one scale",
        "tensors that are pooled or copied have one scale",
    ]
