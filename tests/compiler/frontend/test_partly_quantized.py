"""Models that are quantized in part: tensors without scales take what can be known of them, or their nodes go to the
host."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from nvdla.compiler.frontend.compiler import check
from nvdla.compiler.frontend.compiler import compile as compile_model
from nvdla.compiler.frontend.model import session
from nvdla.errors import BuildError
from tests.compiler.frontend.models import model, node

RNG = np.random.default_rng(6)
X = RNG.uniform(-1, 1, (1, 8, 6, 6)).astype(np.float32)


def partly(middle, more=None):
    """Q, DQ, nodes in floats from d to m, Q, DQ, a convolution whose result is not quantized, and Q, DQ again."""
    numbers = {"s": np.float32(1 / 127), "z": np.int8(0), "s2": np.float32(0.05), "s3": np.float32(0.03)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        *middle,
        node("QuantizeLinear", "m s2 z", "q2"),
        node("DequantizeLinear", "q2 s2 z", "d2"),
        node("Relu", "d2", "r"),
        node("QuantizeLinear", "r s3 z", "q3"),
        node("DequantizeLinear", "q3 s3 z", "y"),
    ]
    return model(nodes, {"x": X.shape}, {"y": X.shape}, numbers | (more or {}))


def error_of(compiled, made):
    """The largest error against onnxruntime, of the largest result."""
    exact = session(made, "m").run(None, {"x": X})[0]
    return np.abs(compiled.run(X)["y"] - exact).max() / np.abs(exact).max()


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
def test_a_result_that_can_only_be_so_large_needs_no_scale(config):
    """x / 6 and Elu of a tensor whose scale is known."""
    made = partly([node("Div", "d six", "a"), node("Elu", "a", "e"), node("Mul", "e nine", "m")], NUMBERS)
    compiled = compile_model(made, config, "int8")
    assert compiled.report["host_nodes"] == 0
    assert error_of(compiled, made) < 0.05


NUMBERS = {"six": np.float32(6), "nine": np.float32(9)}
CONVOLUTION = [node("Conv", "d w", "c"), node("Sigmoid", "c", "g"), node("Mul", "g d", "m")]
WEIGHTS = {"w": RNG.normal(size=(8, 8, 1, 1)).astype(np.float32)}


def test_a_node_without_a_scale_of_its_result_runs_on_the_host():
    made = partly(CONVOLUTION, WEIGHTS)
    compiled = compile_model(made, "nv_small", "int8")
    reasons = {each.op: each.reason for each in compiled.nodes if each.placement == "host"}
    assert "has no scale in the model or table; give calibration data" in reasons["Conv"]
    assert error_of(compiled, made) < 0.05


@pytest.mark.parametrize("activation", ["PRelu", "HardSwish", "Tanh"])
def test_the_range_of_an_average_is_not_that_of_what_is_averaged(activation):
    """Tools quantize the result of the pool alone, which is far smaller than its input."""
    given = "d slope" if activation == "PRelu" else "d"
    middle = [
        node("Mul", "d nine", "n"),
        node(activation, given.replace("d", "n"), "a"),
        node("AveragePool", "a", "m", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1], count_include_pad=1),
    ]
    made = partly(middle, {"nine": np.float32(9), "slope": np.full((8, 1, 1), 0.2, np.float32)})
    assert error_of(compile_model(made, "nv_small", "int8"), made) < 0.1


def test_calibration_data_gives_the_scales_that_the_model_lacks():
    made = partly(CONVOLUTION, WEIGHTS)
    compiled = compile_model(made, "nv_small", "int8", X)
    assert compiled.report["host_nodes"] == 0
    assert error_of(compiled, made) < 0.05


def test_without_the_host_it_is_refused():
    with pytest.raises(BuildError, match="has no scale in the model or table; give calibration data"):
        compile_model(partly(CONVOLUTION, WEIGHTS), "nv_small", "int8", host=False)


def test_an_unsupported_operator_is_the_reason_of_its_node_not_the_missing_scale():
    """Calibration would not bring CumSum to the accelerator."""
    made = partly([node("Conv", "d w", "c"), node("CumSum", "c axis", "m")], WEIGHTS | {"axis": np.int64(1)})
    compiled = compile_model(made, "nv_small", "int8")
    reasons = {each.op: each.reason for each in compiled.nodes if each.placement == "host"}
    assert reasons["CumSum"] == "CumSum is not supported on the accelerator"
    assert "has no scale in the model or table" in reasons["Conv"]


def test_a_limit_of_the_hardware_is_the_reason_of_its_node_not_the_missing_scale():
    """A kernel of 33 rows is too high for the convolution core; the quantized ReLU after it limits its range."""
    x, weights = {"x": (1, 8, 33, 1)}, {"w": np.ones((8, 8, 33, 1), np.float32), "s": np.float32(0.01), "z": np.int8(0)}
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "d"), node("Conv", "d w", "c")]
    ends = [node("Relu", "c", "r"), node("QuantizeLinear", "r s z", "p"), node("DequantizeLinear", "p s z", "y")]
    compiled = compile_model(model([*nodes, *ends], x, {"y": (1, 8, 1, 1)}, weights), "nv_small", "int8")
    reasons = {row.op: row.reason for row in compiled.nodes if row.placement == "host"}
    assert "kernel rows: must be at most 32, got 33" in reasons["Conv"]
    assert "Relu" not in reasons


def test_a_convolution_of_an_input_without_a_quantizer_runs_on_the_host():
    numbers = {"s": np.float32(0.1), "z": np.int8(0), "w2": RNG.normal(size=(8, 8, 1, 1)).astype(np.float32)} | WEIGHTS
    nodes = [
        node("Conv", "x w", "a"),
        node("QuantizeLinear", "a s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Conv", "d w2", "c"),
        node("QuantizeLinear", "c s z", "p"),
        node("DequantizeLinear", "p s z", "y"),
    ]
    made = model(nodes, {"x": X.shape}, {"y": X.shape}, numbers)
    placed = ["host", "accelerator", "folded"]
    compiled = compile_model(made, "nv_small", "int8")
    assert [row.placement for row in compiled.nodes] == placed
    assert "tensor x has no scale in the model or table" in compiled.nodes[0].reason
    assert compile_model(made, "nv_small", "int8", X).report["host_nodes"] == 0
    with pytest.raises(BuildError, match="tensor x has no scale in the model or table"):
        compile_model(made, "nv_small", "int8", host=False)


@pytest.mark.parametrize("ranged", [False, True])
def test_the_check_places_the_nodes_of_a_quantized_model_as_the_compilation_does(ranged):
    made = partly(CONVOLUTION, WEIGHTS)
    compiled = compile_model(made, "nv_small", "int8", X if ranged else None)
    rows = [(row["name"], row["placement"], row["reason"]) for row in check(made, ranged=ranged)["nodes"]]
    assert rows == [(row.name, row.placement, row.reason) for row in compiled.nodes]


def test_integer_weights_with_float_activations_are_as_good_as_the_float_network():
    """As in dynamic-range TFLite files. Equalization would move the weights off the grid of their scales."""
    rng = np.random.default_rng(4)
    sizes, nodes, held, quantized = np.geomspace(0.05, 5, 16).astype("f4"), [], {}, {}
    for number, (kernels, channels) in enumerate(((16, 3), (16, 16), (8, 16))):
        weights = rng.normal(size=(kernels, channels, 3, 3)).astype("f4") / channels
        weights *= sizes[:, None, None, None] if not number else 1 / sizes[None, :channels, None, None]
        scale = np.abs(weights).max((1, 2, 3)) / np.float32(127)
        elements = np.rint(weights / scale[:, None, None, None]).astype(np.int8)
        quantized |= {f"q{number}": elements, f"s{number}": scale, f"z{number}": np.zeros(kernels, np.int8)}
        held[f"w{number}"] = elements * scale[:, None, None, None]
        nodes.append(node("Conv", f"{'x' if not number else f'r{number - 1}'} w{number}", f"c{number}", pads=[1] * 4))
        nodes.append(node("Relu", f"c{number}", f"r{number}"))
    shapes = {"x": (1, 3, 8, 8)}, {"r2": (1, 8, 8, 8)}
    made = [node("DequantizeLinear", f"q{number} s{number} z{number}", f"w{number}", axis=0) for number in range(3)]
    data = rng.normal(size=(40, 3, 8, 8)).astype("f4")
    twins = model(nodes, *shapes, held), model([*made, *nodes], *shapes, quantized)
    exact, weights_alone = (
        compile_model(twin, "nv_small", calibration=data, equalize=equalize).summary["output_snr"]["r2"]
        for twin, equalize in zip(twins, (False, True), strict=True)
    )
    assert weights_alone > exact - 1
