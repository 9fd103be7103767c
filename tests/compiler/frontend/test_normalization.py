"""LayerNormalization on the accelerator: against the formula, where it stays on the host, and written out in steps."""

from __future__ import annotations

import numpy as np
import pytest

import nvdla

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.tflite_writer import FlatWriter

from nvdla.compiler.frontend.isolation import session
from nvdla.compiler.frontend.model import read
from nvdla.compiler.frontend.quantization.calibrate import ScaleTable
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


@pytest.mark.parametrize(
    "channels, shape, epsilon, bias",
    [(32, (ROWS,), 1e-5, True), (96, (ROWS,), 1e-6, False), (17, (ROWS,), 1e-3, True), (64, (4, 6), 1e-5, True)],
)
@pytest.mark.parametrize("spread", [1.2, 6])
def test_it_is_within_the_noise_of_fp16(channels, shape, epsilon, bias, spread):
    """Also where variances differ by a factor of a thousand."""
    net = network(channels, epsilon, shape, bias)
    compiled = nvdla.compile(net, "nv_full", "fp16", samples(16, *shape, channels, spread=spread))
    assert [row.placement for row in compiled.nodes] == ["accelerator"]
    x = samples(1, *shape, channels, spread=spread, seed=1)
    assert snr(normalized(net, x, epsilon), compiled.run(x)["y"]) > 60


def test_the_hardware_agrees_with_the_reference_model_but_for_rounding():
    compiled = nvdla.compile(network(32), "nv_full", "fp16", samples(16, ROWS, 32, spread=6))
    built = compiled.parts[0].made
    elements = built.quantize_inputs(samples(1, ROWS, 32, spread=6, seed=1).transpose(0, 2, 1)[..., None])
    (found,), (wanted,) = (
        outputs.values()
        for outputs in (nvdla.Runtime(built.loadable, "nv_full").run(elements), built.expected(elements))
    )
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("channels", [17, 33, 100])
def test_the_weights_of_a_mean_have_a_sum_of_one_in_fp16(channels):
    """1 / 17 is no half: means that are much larger than the deviations would be wrong by 1 / 2048 of them."""
    net, x = network(channels), samples(1, ROWS, channels, seed=1) + np.float32(10)
    compiled = nvdla.compile(net, "nv_full", "fp16", samples(16, ROWS, channels) + np.float32(10))
    assert snr(normalized(net, x.astype(np.float64), 1e-5), compiled.run(x)["y"]) > 46


@pytest.mark.parametrize(
    "factor, reason",
    [
        (60, "squared deviations of the calibration data: must be at most 16376 in fp16"),
        (2**-12, "variances of the calibration data: must be at least 7.6e-06 in fp16"),
    ],
)
def test_variances_out_of_the_range_of_fp16_keep_it_on_the_host(factor, reason):
    net, factor = network(32, 1e-7), np.float32(factor)
    compiled = nvdla.compile(net, "nv_full", "fp16", samples(16, ROWS, 32) * factor)
    (row,) = compiled.nodes
    assert row.placement == "host" and reason in row.reason
    x = samples(1, ROWS, 32, seed=1) * factor
    assert snr(normalized(net, x, 1e-7), compiled.run(x)["y"]) > 100


def test_without_calibration_data_fp16_keeps_it_on_the_host():
    (row,) = nvdla.compile(network(32), "nv_full", "fp16").nodes
    assert row.placement == "host" and "range of its input: must be known. Calibrate with data." in row.reason


def test_int16_keeps_it_on_the_host():
    (row,) = nvdla.compile(network(32), "nv_full", "int16", samples(4, ROWS, 32)).nodes
    assert row.placement == "host" and "a variance in int16 needs a table that is too steep" in row.reason


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


@pytest.mark.parametrize("config, precision", [("nv_large", "int8"), ("nv_full", "fp16")])
def test_a_transformer_block_leaves_the_accelerator_once(config, precision):
    """For the products of computed matrices and the softmax between them; what only scales them goes with them."""
    compiled = nvdla.compile(transformer_block(), config, precision, samples(16, ROWS, 32))
    assert compiled.report["cuts"] == 2
    on_host = [row.op for row in compiled.nodes if row.placement == "host"]
    assert on_host == ["MatMul", "Mul", "Softmax", "MatMul"]


# ---- written out in steps

STEPS = {
    "torch": ["Pow d two sq", "Div d root core", "Mul core scale scaled", "Add scaled bias y"],
    "product and reciprocal": [
        "Mul d d sq",
        "Reciprocal root inverse",
        "Mul inverse d core",
        "Mul scale core scaled",
        "Add bias scaled y",
    ],
    "keras": [
        "Mul d d sq",
        "Reciprocal root inverse",
        "Mul inverse scale factor",
        "Mul x factor first",
        "Mul mean factor second",
        "Sub bias second offset",
        "Add first offset y",
    ],
    "without scale": ["Pow d two sq", "Sub x mean again", "Div again root y"],
    "mean first": [
        "Sub mean x reverse",
        "Mul reverse reverse sq",
        "Neg mean less",
        "Add x less core",
        "Div core root y",
    ],
}


def written_out(steps: list[str], shape=(1, 6, 16), axis: int = 2, opset: int = 13, extra=(), **changed):
    """A convolution-like factor, the steps, and what follows. ``changed``: constants and attributes."""
    rng = np.random.default_rng(5)
    along = tuple(size if place == axis else 1 for place, size in enumerate(shape))
    constants = {name: rng.uniform(0.5, 1.5, along).astype(np.float32) for name in ("scale", "bias")}
    constants |= {"two": np.float32(2), "epsilon": np.full(1, 1e-3, np.float32), "factor_of_x": np.float32(1.5)}
    constants |= {name: changed[name] for name in changed.keys() & constants.keys()}
    second = changed.get("second", axis)
    nodes = [
        node("Mul", "given factor_of_x", "x"),
        node("ReduceMean", "x", "mean", axes=[axis]),
        node("Sub", "x mean", "d"),
    ]
    made = [node(op, " ".join(names[:-1]), names[-1]) for op, *names in (step.split() for step in steps)]
    last = [node("ReduceMean", "sq", "variance", axes=[second]), node("Add", "variance epsilon", "total")]
    last.append(node(changed.get("root", "Sqrt"), "total" if "power" not in changed else "total power", "root"))
    if "power" in changed:
        constants["power"] = np.float32(changed["power"])
    squared = next(place for place, each in enumerate(made) if each.output[0] == "sq") + 1
    nodes += [*made[:squared], *last, *made[squared:], *(node(*each) for each in extra)]
    outputs = {"y": shape} | {each[2]: None for each in extra}
    return model(nodes, {"given": shape}, outputs, constants, opset)


def operators(loaded) -> list[str]:
    return [each.op_type for each in loaded.proto.graph.node]


def assert_same(net, loaded, *shape: int):
    """onnxruntime computes the same with and without the steps."""
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    before, after = (session(proto, "net").run(None, {"given": x}) for proto in (net, loaded.proto))
    for wanted, given in zip(before, after, strict=True):
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("steps", STEPS)
def test_its_steps_become_one_node(steps, opset):
    net = written_out(STEPS[steps], opset=opset)
    loaded = read(net)
    assert operators(loaded) == ["Mul", "LayerNormalization"]
    assert_same(net, loaded, 1, 6, 16)
    compiled = nvdla.compile(net, "nv_large", "int8", samples(16, 6, 16))
    assert {row.op: row.placement for row in compiled.nodes}["LayerNormalization"] == "accelerator"
    assert {row.op for row in compiled.nodes if "part of LayerNormalization" in row.reason} >= {"ReduceMean", "Sqrt"}
    x = samples(1, 6, 16, seed=1)
    assert snr(session(net, "net").run(None, {"given": x})[0], compiled.run(x)["y"]) > 25


@pytest.mark.parametrize("power, step", [(0.5, "Div d root y"), (-0.5, "Mul d root y")])
def test_the_root_may_be_a_power(power, step):
    net = written_out(["Mul d d sq", step], root="Pow", power=power)
    loaded = read(net)
    assert operators(loaded) == ["Mul", "LayerNormalization"]
    assert_same(net, loaded, 1, 6, 16)


@pytest.mark.parametrize("config, precision, least", [("nv_large", "int8", 25), ("nv_full", "fp16", 60)])
def test_steps_over_channels_become_one_node_between_transposes(config, precision, least):
    shape = (1, 16, 5, 4)
    net = written_out(STEPS["torch"], shape, axis=1)
    loaded = read(net)
    assert operators(loaded) == ["Mul", "Transpose", "LayerNormalization", "Transpose"]
    assert_same(net, loaded, *shape)
    compiled = nvdla.compile(net, config, precision, samples(16, *shape[1:]))
    assert "host" not in {row.placement for row in compiled.nodes}
    x = samples(1, *shape[1:], seed=1)
    assert snr(session(net, "net").run(None, {"given": x})[0], compiled.run(x)["y"]) > least


@pytest.mark.parametrize(
    "changed",
    [
        {"extra": [("Relu", "mean", "z")]},
        {"extra": [("Relu", "d", "z")]},
        {"extra": [("Identity", "variance", "z")]},
        {"second": 1},
        {"epsilon": np.full((1, 6, 1), 1e-3, np.float32)},
        {"two": np.float32(4)},
        {"root": "Exp"},
        {"root": "Pow", "power": 0.25},
    ],
    ids=str,
)
def test_other_steps_stay_as_they_are(changed):
    net = written_out(STEPS["torch"], (1, 6, 6) if "second" in changed else (1, 6, 16), **changed)
    assert "LayerNormalization" not in operators(read(net))


def test_an_inner_value_that_is_an_output_stays():
    net = written_out(STEPS["torch"])
    net.graph.output.append(type(net.graph.output[0])(name="variance"))
    assert "LayerNormalization" not in operators(read(net))


def test_what_differs_along_another_dimension_stays_outside():
    """The node ends before a factor of each row; a factor per channel is part of it."""
    rows = np.linspace(1, 2, 6, dtype=np.float32).reshape(1, 6, 1)
    net = written_out(STEPS["torch"], scale=rows)
    loaded = read(net)
    assert operators(loaded) == ["Mul", "LayerNormalization", "Mul", "Add"]
    assert_same(net, loaded, 1, 6, 16)


@pytest.mark.parametrize("shape", [(1, 6, 16), (1, 4, 6, 16)])
def test_the_steps_of_a_tflite_file_become_one_node(shape):
    """As Keras writes them: squared differences, a reciprocal root, factor and offset from it."""
    rng, net, one = np.random.default_rng(4), FlatWriter(), (*shape[:-1], 1)
    given = net.tensor(shape, "float32")
    axes, epsilon = net.constant([len(shape) - 1]), net.constant(np.array(1e-3, np.float32))
    scale, bias = (net.constant(rng.uniform(0.5, 1.5, 16).astype(np.float32)) for _ in range(2))

    def add(op: str, out: tuple[int, ...], *inputs: int, **options) -> int:
        net.operator(op, inputs, [net.tensor(out, "float32")], **options)
        return len(net.tensors) - 1

    mean = add("MEAN", one, given, axes, keep_dims=True)
    variance = add("MEAN", one, add("SQUARED_DIFFERENCE", shape, given, mean), axes, keep_dims=True)
    factor = add("MUL", shape, add("RSQRT", one, add("ADD", one, variance, epsilon)), scale)
    offset = add("SUB", shape, bias, add("MUL", shape, mean, factor))
    result = add("ADD", shape, add("MUL", shape, given, factor), offset)
    loaded = read(net.model([given], [result]))
    assert operators(loaded).count("LayerNormalization") == 1 and "Sqrt" not in operators(loaded)
    x = rng.normal(size=shape).astype(np.float32)
    centered = x - x.mean(-1, keepdims=True)
    scale, bias = (net.tensors[number]["data"] for number in (scale, bias))
    wanted = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-3) * scale + bias
    feed = x if len(shape) == 3 or loaded.shapes[loaded.inputs[0]] == shape else x.transpose(0, 3, 1, 2)
    found = session(loaded.proto, "net").run(None, {loaded.inputs[0]: feed})[0]
    found = found if found.shape == shape else found.transpose(0, 2, 3, 1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_table_without_its_inner_scales_keeps_it_on_the_host():
    table = ScaleTable("onnxruntime table", {"x": 4.0, "y": 4.0})
    (row,) = nvdla.compile(network(32), "nv_large", "int8", table).nodes
    assert row.placement == "host" and "y/mean has no scale in the model or table" in row.reason
