"""LayerNormalization on the accelerator, in int8: against the formula, and where it stays on the host."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.compiler.frontend.models import model, node

ROWS = 12


def network(channels: int, epsilon: float = 1e-5, shape: tuple[int, ...] = (ROWS,), bias: bool = True):
    rng = np.random.default_rng(channels)
    constants = {"scale": rng.uniform(0.5, 1.5, channels).astype(np.float32)}
    if bias:
        constants["bias"] = rng.normal(size=channels).astype(np.float32) / 4
    full = (1, *shape, channels)
    taken = " ".join(["x", *constants])
    return model(
        [node("LayerNormalization", taken, "y", axis=-1, epsilon=epsilon)],
        {"x": full},
        {"y": full},
        constants,
        opset=17,
    )


def samples(count: int, *shape: int, spread: float = 1.2, seed: int = 0) -> np.ndarray:
    """Rows of normal numbers whose standard deviations differ by up to ``spread`` squared."""
    rng = np.random.default_rng(seed)
    factors = spread ** rng.uniform(-1, 1, (count, *shape[:-1], 1))
    return ((rng.normal(size=(count, *shape)) + rng.normal(size=factors.shape) / 3) * factors).astype(np.float32)


def normalized(net, x: np.ndarray, epsilon: float) -> np.ndarray:
    import onnx

    constants = {each.name: onnx.numpy_helper.to_array(each) for each in net.graph.initializer}
    centered = x - x.mean(-1, keepdims=True)
    result = centered / np.sqrt(np.mean(centered**2, axis=-1, keepdims=True) + epsilon)
    return result * constants["scale"] + constants.get("bias", 0.0)


def snr(wanted: np.ndarray, given: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(wanted**2) / np.sum((wanted - given) ** 2)))


@pytest.mark.parametrize("config", ["nv_small", "nv_large"])
@pytest.mark.parametrize(
    "channels, shape, epsilon, bias",
    [(32, (ROWS,), 1e-5, True), (96, (ROWS,), 1e-6, False), (17, (ROWS,), 1e-3, True), (64, (4, 6), 1e-5, True)],
)
def test_it_is_within_the_noise_of_int8(config, channels, shape, epsilon, bias):
    net = network(channels, epsilon, shape, bias)
    compiled = nvdla.compile(net, config, "int8", samples(16, *shape, channels))
    assert [row.placement for row in compiled.nodes] == ["accelerator"]
    x = samples(1, *shape, channels, seed=1)
    assert snr(normalized(net, x, epsilon), compiled.run(x)["y"]) > 29


def test_an_epsilon_of_zero_needs_no_other_table():
    compiled = nvdla.compile(network(32, 0.0), "nv_large", "int8", samples(16, ROWS, 32))
    x = samples(1, ROWS, 32, seed=1)
    assert snr(normalized(network(32), x, 0.0), compiled.run(x)["y"]) > 29


def test_variances_that_differ_too_much_keep_it_on_the_host():
    compiled = nvdla.compile(network(32), "nv_large", "int8", samples(16, ROWS, 32, spread=6))
    (row,) = compiled.nodes
    assert row.placement == "host" and "variances of the calibration data: must differ by a factor" in row.reason
    x = samples(1, ROWS, 32, spread=6, seed=1)
    assert snr(normalized(network(32), x, 1e-5), compiled.run(x)["y"]) > 100


@pytest.mark.parametrize("precision", ["int16", "fp16"])
def test_other_precisions_keep_it_on_the_host(precision):
    compiled = nvdla.compile(network(32), "nv_full", precision, samples(4, ROWS, 32))
    assert [row.placement for row in compiled.nodes] == ["host"]


def test_another_axis_stays_on_the_host():
    full = (1, 4, 6, 8)
    constants = {"scale": np.ones((6, 8), np.float32)}
    net = model([node("LayerNormalization", "x scale", "y", axis=2)], {"x": full}, {"y": full}, constants, opset=17)
    (row,) = nvdla.compile(net, "nv_large", "int8", samples(4, 4, 6, 8)).nodes
    assert row.placement == "host" and "must normalize the last dimension" in row.reason


def transformer_block(width: int = 32, heads: int = 2):
    """Attention and two layers, each after a LayerNormalization and around a residual addition."""
    rng = np.random.default_rng(7)
    weights = {
        name: (rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width),
                            "w1": (width, 2 * width), "w2": (2 * width, width)}.items()
    }  # fmt: skip
    ones = {"one": np.ones(width, np.float32), "zero": np.zeros(width, np.float32), "root": np.float32(0.25)}
    ones["split"] = np.array([1, ROWS, heads, width // heads])
    ones["joined"] = np.array([1, ROWS, width])
    nodes = [node("LayerNormalization", "x one zero", "n1", axis=-1)]
    for name in "qkv":
        nodes += [node("MatMul", f"n1 {name}", f"{name}1"), node("Reshape", f"{name}1 split", f"{name}2")]
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes.append(node("Transpose", f"{name}2", f"{name}3", perm=order))
    nodes += [
        node("MatMul", "q3 k3", "scores"),
        node("Mul", "scores root", "scaled"),
        node("Softmax", "scaled", "shares", axis=-1),
        node("MatMul", "shares v3", "mixed"),
        node("Transpose", "mixed", "mixed1", perm=[0, 2, 1, 3]),
        node("Reshape", "mixed1 joined", "mixed2"),
        node("MatMul", "mixed2 o", "attended"),
        node("Add", "x attended", "x1"),
        node("LayerNormalization", "x1 one zero", "n2", axis=-1),
        node("MatMul", "n2 w1", "h"),
        node("Relu", "h", "h1"),
        node("MatMul", "h1 w2", "h2"),
        node("Add", "x1 h2", "y"),
    ]
    return model(nodes, {"x": (1, ROWS, width)}, {"y": (1, ROWS, width)}, weights | ones, opset=17)


def test_a_transformer_block_leaves_the_accelerator_once():
    """For the products of computed matrices and the softmax between them; what only scales them goes with them."""
    compiled = nvdla.compile(transformer_block(), "nv_large", "int8", samples(16, ROWS, 32))
    assert compiled.report["cuts"] == 2
    on_host = [row.op for row in compiled.nodes if row.placement == "host"]
    assert on_host == ["MatMul", "Mul", "Softmax", "MatMul"]
