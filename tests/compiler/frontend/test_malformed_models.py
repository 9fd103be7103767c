"""Models that onnx.checker or onnxruntime refuse, and attributes out of range: compile refuses them, with the node."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper

import nvdla
from nvdla.compiler.frontend.compiler import check
from nvdla.compiler.frontend.model import read
from tests.compiler.frontend.models import model, node

X = {"x": (1, 3, 8, 8)}
W = np.ones((4, 3, 3, 3), np.float32)


def floats(name, numbers):
    attribute = helper.make_attribute(name, [1.0])
    attribute.floats[:] = numbers
    return attribute


def cast_to_text():
    net = model([node("Cast", "x", "t", to=TensorProto.STRING), node("Relu", "t", "y")], X, {"y": (1, 3, 8, 8)})
    net.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, (1, 3, 8, 8)))
    return net


NINE = {
    "kernel_shape": (
        lambda: model([node("Conv", "x w", "y", kernel_shape=[1, 1])], X, {"y": (1, 4, 8, 8)}, {"w": W}),
        r"node y \(Conv\): attribute kernel_shape: must be \[3, 3\] \(weights\), got \[1, 1\]",
    ),
    "three strides": (
        lambda: model([node("Conv", "x w", "y", strides=[1, 1, 1])], X, {"y": (1, 4, 6, 6)}, {"w": W}),
        r"Conv.*strides",
    ),
    "Resize by a million": (
        lambda: model(
            [helper.make_node("Resize", ["x", "", "s"], ["y"])],
            X,
            {"y": (1, 3, 8, 8)},
            {"s": np.array([1, 1, 1e6, 1e6], "f4")},
        ),
        r"Resize.*differ in dimension 2|limit",
    ),
    "Resize by -2": (
        lambda: model(
            [helper.make_node("Resize", ["x", "", "s"], ["y"])],
            X,
            {"y": (1, 3, 8, 8)},
            {"s": np.array([1, 1, -2, -2], "f4")},
        ),
        r"Resize.*(-16|positive)",
    ),
    "Reshape to -5": (
        lambda: model([node("Reshape", "x s", "y")], {"x": (1, 15)}, {"y": (5, 3)}, {"s": np.array([-5, 3])}),
        r"Reshape.*-5",
    ),
    "Cast to text": (cast_to_text, r"Cast"),
    "Concat on axis 2^40": (
        lambda: model([node("Concat", "x x", "y", axis=2**40)], X, {"y": (1, 6, 8, 8)}),
        r"node y \(Concat\): attribute axis: must be -64 to 63, got 1099511627776",
    ),
    "Transpose with negative perm": (
        lambda: model([node("Transpose", "x", "y", perm=[0, -2, -1, -3])], X, {"y": (1, 3, 8, 8)}),
        r"node y \(Transpose\): attribute perm: must be 0 to 63, got -2",
    ),
    "ceil_mode -7": (
        lambda: model(
            [node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[1, 1], ceil_mode=-7)], X, {"y": (1, 3, 8, 8)}
        ),
        r"node y \(MaxPool\): attribute ceil_mode: must be 0 to 1, got -7",
    ),
}


def resize_nan():
    resize = helper.make_node("Resize", ["x", "", "s"], ["y"])
    return untyped(model([resize], X, {"y": ()}, {"s": np.array([1, 1, np.nan, 1], "f4")}))


MORE = {
    "alpha NaN": (
        lambda: model([node("Elu", "x", "y", alpha=float("nan"))], X, {"y": X["x"]}),
        "alpha: must be finite",
    ),
    "alpha infinite": (
        lambda: model([node("LeakyRelu", "x", "y", alpha=float("inf"))], X, {"y": X["x"]}),
        r"node y \(LeakyRelu\): attribute alpha: must be finite, got inf",
    ),
    "stride 0": (
        lambda: model([node("Conv", "x w", "y", strides=[0, 1])], X, {"y": (1, 4, 6, 6)}, {"w": W}),
        "strides: must be 1 to",
    ),
    "pads below 0": (
        lambda: model([node("Conv", "x w", "y", pads=[-1, 0, 0, 0])], X, {"y": (1, 4, 5, 6)}, {"w": W}),
        "pads: must be 0 to",
    ),
    "pads as large as the window": (
        lambda: model(
            [node("MaxPool", "x", "y", kernel_shape=[2, 2], strides=[1, 1], pads=[2, 0, 2, 0])], X, {"y": (1, 3, 11, 7)}
        ),
        r"pads: must be less than the window \(2\), got 2",
    ),
    "groups that do not fit": (
        lambda: model([node("Conv", "x w", "y", group=2)], X, {"y": (1, 4, 6, 6)}, {"w": W}),
        "channels",
    ),
    "batch_dims -128": (
        lambda: model(
            [node("GatherND", "x i", "y", batch_dims=-128)], X, {"y": (1, 8)}, {"i": np.zeros((1, 3), np.int64)}
        ),
        "batch_dims: must be 0 to 63, got -128",
    ),
    "Split on axis 2^32": (
        lambda: model([helper.make_node("Split", ["x"], ["y", "z"], axis=2**32, num_outputs=2)], X, {}, opset=18),
        "axis: must be -64 to 63, got 4294967296",
    ),
    "auto_pad": (
        lambda: model([node("Conv", "x w", "y", auto_pad="SOMEHOW")], X, {"y": (1, 4, 6, 6)}, {"w": W}),
        "auto_pad: must be one of NOTSET",
    ),
    "an Einsum on which onnx does not end": (
        lambda: model([node("Einsum", "x", "y", equation="nchw,.")], X, {"y": ()}),
        "equation: must be terms of letters",
    ),
    "inside a branch": (
        lambda: branching(helper.make_node("Elu", ["x"], ["r"], "inner", alpha=float("nan"))),
        r"node inner \(Elu\): attribute alpha: must be finite",
    ),
    "beside a custom operator": (
        lambda: with_custom([node("Reshape", "x s", "y")], {"y": (5, 3)}, {"s": np.array([-5, 3])}),
        "Reshape.*-5",
    ),
    "a stated shape against the attributes": (
        lambda: stated(model([node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("Relu", "t", "y")], X, {"y": ()})),
        r"Transpose.*differ in dimension 1: \(8\) vs \(3\)",
    ),
    "scales that are NaN": (resize_nan, "Resize.*positive finite"),
}


def branching(inner):
    branches = [helper.make_graph([inner], name, [], [helper.make_tensor_value_info("r", 1, None)]) for name in "ab"]
    chosen = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    return model([chosen], X, {"y": X["x"]}, {"c": np.array(True)})


def with_custom(nodes, outputs, constants):
    net = model([helper.make_node("Foo", ["x"], ["c"], domain="my"), *nodes], {"x": (1, 15)}, outputs, constants)
    net.opset_import.append(helper.make_opsetid("my", 1))
    net.graph.value_info.append(helper.make_tensor_value_info("c", 1, (1, 15)))
    return net


def stated(net):
    net.graph.value_info.append(helper.make_tensor_value_info("t", 1, (1, 3, 8, 8)))
    del net.graph.output[0].type.tensor_type.shape.dim[:]
    net.graph.output[0].type.tensor_type.ClearField("shape")
    return net


@pytest.mark.parametrize("name", NINE | MORE)
def test_a_malformed_model_is_refused_with_its_node(name):
    made, reason = (NINE | MORE)[name]
    with pytest.raises(nvdla.FormatError, match=reason):
        read(made())


def test_what_the_checker_refuses_is_refused():
    """With all its checks, on each of the nine; our own checks are for those that it accepts."""
    refused = 0
    for made, _ in NINE.values():
        try:
            onnx.checker.check_model(made(), full_check=True)
        except Exception:
            refused += 1
    assert refused >= 5


@pytest.mark.parametrize("scale", [1e-45, 3e38])
def test_a_scale_that_fp16_cannot_hold_is_refused(scale):
    constants = {"s": np.float32(scale), "z": np.int8(0)}
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("Relu", "d", "y")]
    with pytest.raises(nvdla.FormatError, match=r"tensor x: range of its quantization: must be .* in fp16"):
        check(model(nodes, X, {"y": X["x"]}, constants), "nv_full", "fp16")


def test_an_output_that_is_a_constant_of_bfloat16():
    net = model([node("Relu", "x", "y")], X, {"y": X["x"]})
    held = helper.make_tensor("k", TensorProto.BFLOAT16, [2], [1.5, -2.0])
    net.graph.initializer.append(held)
    net.graph.output.append(helper.make_tensor_value_info("k", TensorProto.BFLOAT16, [2]))
    made = nvdla.compile(net, "nv_full", "fp16")
    given = np.ones((1, 3, 8, 8), np.float32)
    assert [found["k"].tolist() for found in (made.run(given), unpacked(made).run(given))] == [[1.5, -2.0]] * 2


def untyped(net):
    for each in net.graph.output:
        each.type.tensor_type.ClearField("shape")
    return net


def test_outputs_without_a_shape_are_inferred():
    found = read(untyped(model([node("Relu", "x", "y")], X, {"y": ()})))
    assert found.shapes["y"] == (1, 3, 8, 8)


def test_an_output_whose_shape_depends_on_data_stays_on_the_host():
    net = model([node("Relu", "x", "r"), node("NonZero", "r", "y")], X, {"y": ()})
    del net.graph.output[:]
    net.graph.output.append(helper.make_tensor_value_info("y", TensorProto.INT64, None))
    made = nvdla.compile(net, "nv_full", "fp16")
    given = np.zeros((1, 3, 8, 8), np.float32)
    given[0, 1, 2, 3] = 1
    assert made.run(given)["y"].ravel().tolist() == [0, 1, 2, 3]


def test_an_input_of_unknown_rank_takes_a_shape():
    net = untyped(model([node("Relu", "x", "y")], X, {"y": ()}))
    net.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(nvdla.FormatError, match="Add --shape x="):
        read(net)
    assert read(net, {"x": (1, 3, 12, 20)}).shapes["y"] == (1, 3, 12, 20)


@pytest.mark.parametrize("kind", ["input", "constant", "both"])
def test_outputs_that_are_inputs_or_constants(kind):
    """They need no part: a run passes them through."""
    outputs = {"input": ["x"], "constant": ["k"], "both": ["x", "k", "y"]}[kind]
    net = model([node("Relu", "x", "y")], X, {"y": X["x"]}, {"k": np.arange(3, dtype=np.float32)})
    ends = {"x": X["x"], "k": (3,), "y": X["x"]}
    del net.graph.output[:]
    net.graph.output.extend(helper.make_tensor_value_info(name, 1, ends[name]) for name in outputs)
    made = nvdla.compile(net, "nv_full", "fp16")
    given = np.ones((1, 3, 8, 8), np.float32)
    for found in (made.run(given), unpacked(made).run(given)):
        assert sorted(found) == sorted(outputs)
        for name, expected in {"x": given, "k": np.arange(3), "y": given}.items():
            assert name not in found or np.array_equal(found[name], expected)


def unpacked(made):
    from nvdla.compiler.frontend.package import unpack

    return unpack(made.package).machine()


def test_local_functions_are_expanded():
    twice = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 17)]
    )
    net = model([helper.make_node("Twice", ["x"], ["y"], domain="mine")], X, {"y": X["x"]})
    net.opset_import.append(helper.make_opsetid("mine", 1))
    net.functions.append(twice)
    given = np.full((1, 3, 8, 8), 1.5, np.float32)
    assert np.array_equal(nvdla.compile(net, "nv_full", "fp16").run(given)["y"], 2 * given)


@pytest.mark.parametrize("opset", range(7, onnx.defs.onnx_opset_version() + 1))
def test_valid_models_of_every_opset_are_read(opset):
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", "p s", "y"),
    ]
    net = model(nodes, X, {"y": (1, 64)}, {"w": W, "s": np.array([0, -1])}, opset=opset)
    assert read(net).shapes["y"] == (1, 64)


def test_operators_of_other_domains_are_typed_by_onnxruntime():
    """Nothing is stated of what they make, and what follows is checked all the same."""

    def net(axis):
        nodes = [
            helper.make_node("FastGelu", ["x"], ["g"], domain="com.microsoft"),
            node("Softmax", "g", "y", axis=axis),
        ]
        made = untyped(model(nodes, X, {"y": ()}))
        made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        return made

    assert read(net(1)).shapes["y"] == X["x"]
    with pytest.raises(nvdla.FormatError, match=r"Softmax"):
        read(net(4))


@pytest.mark.parametrize("number", [3e38, 1e30, 1e-38])
@pytest.mark.filterwarnings("error")
def test_calibration_with_extreme_numbers_prints_no_warning(number):
    nodes = [node("Mul", "x x", "a"), node("Sigmoid", "a", "b"), node("Exp", "b", "y")]
    net, data = model(nodes, X, {"y": X["x"]}), np.full((2, 3, 8, 8), number, np.float32)
    for config, precision in (("nv_small", "int8"), ("nv_full", "fp16")):
        try:
            nvdla.compile(net, config, precision, data)
        except nvdla.NvdlaError as error:
            assert "\n" not in str(error)


def test_calibration_data_of_complex_numbers_is_refused():
    net = model([node("Relu", "x", "y")], X, {"y": X["x"]})
    with pytest.raises(nvdla.FormatError, match="calibration data for input x: must be real numbers, got complex64"):
        nvdla.compile(net, "nv_small", "int8", np.ones((2, 3, 8, 8), np.complex64))


def test_a_tensor_of_absurd_dimensions_is_refused():
    for dims in ([2**62] * 300, [-1, 3]):
        net = model([node("Relu", "x", "y")], X, {"y": X["x"]})
        net.graph.initializer.add(name="k", data_type=1, dims=dims, raw_data=b"1234")
        with pytest.raises(nvdla.FormatError, match=r"tensor k: shape: must be at most 64 sizes from 0"):
            read(net)


def test_a_quantization_without_its_scale_is_refused():
    net = model([node("QuantizeLinear", "x", "q"), node("DequantizeLinear", "q s", "y")], X, {"y": X["x"]}, {"s": W[0]})
    with pytest.raises(nvdla.FormatError, match=r"QuantizeLinear.* input"):
        read(net)
