"""A quantized network as ONNX: onnxruntime computes nearly the same integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.build_checks import samples
from support.onnx_reference import exact_session
from support.random_networks import networks

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

import nvdla
from nvdla.compiler.builder import BuildError, Built, Network, build, calibrate, floating
from nvdla.compiler.frontend.quantization.export import Exporter, qdq_model
from tests.compiler.frontend.models import model, node


def _run(exported, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = exact_session(exported)
    names = [each.name for each in session.get_outputs()]
    feeds = {each.name: inputs[each.name].astype(np.float32) for each in session.get_inputs()}
    return dict(zip(names, session.run(names, feeds), strict=True))


def _differences(net: Network, built: Built, data: dict[str, np.ndarray]) -> np.ndarray:
    """Steps between onnxruntime's elements and the hardware's, over all outputs."""
    exported, found = qdq_model(net, built), []
    for index in range(len(next(iter(data.values())))):
        one = {name: array[index : index + 1] for name, array in data.items()}
        reals = _run(exported, one)
        expected = built.expected(built.quantize_inputs({name: array[0] for name, array in one.items()}))
        for name, elements in expected.items():
            steps = np.round(reals[name] / built.output_scales[name])
            found.append(np.abs(steps - elements.astype(np.float64)).ravel())
    return np.concatenate(found)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(net=networks())
def test_the_integers_of_random_networks_are_within_steps(net):
    data = samples(net, np.random.default_rng(1), 1)
    built = build(net, "nv_small", "int8", calibrate(net, data), True)
    # Steep functions make many steps of one; a layer that means something else would be off everywhere.
    assert np.mean(_differences(net, built, data) > 8) < 0.02


def test_a_convolutional_network_differs_in_few_elements_and_by_one_step():
    rng = np.random.default_rng(2)
    net = Network()
    x = net.convolution("c1", net.input("in", (3, 24, 24)), rng.normal(size=(16, 3, 3, 3)), rng.normal(size=16))
    x = net.max_pool("p1", net.clip("r1", net.batch_norm("b1", x, np.zeros(16), np.ones(16))), 2)
    y = net.relu("r2", net.depthwise("d2", x, rng.normal(size=(16, 1, 3, 3)), padding=1))
    x = net.add("sum", net.convolution("c3", y, rng.normal(size=(16, 16, 1, 1)) / 4), x)
    x = net.sigmoid("s", net.average_pool("p", x, 3))
    net.output(net.fully_connected("ip", x, rng.normal(size=(10, 16 * 9)) / 12, rng.normal(size=10)))
    data = samples(net, rng, 4)
    for per_channel in (False, True):
        built = build(net, "nv_small", "int8", calibrate(net, data), per_channel)
        steps = _differences(net, built, data)
        assert steps.max() <= 2
        assert np.mean(steps > 0) < 0.25


def test_the_float_form_is_the_network():
    rng = np.random.default_rng(3)
    net = Network()
    x = net.deconvolution("d", net.input("in", (4, 5, 6)), rng.normal(size=(4, 6, 3, 3)), rng.normal(size=6), 2, 1)
    x = net.upsample("u", net.prelu("p", x, rng.normal(size=6)), (2, 3))
    x = net.lrn("l", net.concat("c", x, net.min_pool("m", x, 3, 1, 1)), 3, 0.5)
    net.output(net.clip("k", x, -0.5, np.linspace(0.2, 1, 12)))
    data = samples(net, rng, 1)
    found = _run(Exporter(net, None).model(), data)
    np.testing.assert_allclose(found["k"], floating.run(net, data)["k"], rtol=1e-4, atol=1e-5)


def test_other_precisions_and_functions_are_refused_by_name():
    net = Network("f")
    net.output(net.tanh("t", net.input("in", (4, 3, 3))))
    with pytest.raises(BuildError, match="layer t: function"):
        Exporter(net, None).model()
    built = build(net, "nv_full", "fp16")
    with pytest.raises(BuildError, match="only int8"):
        qdq_model(net, built)


def test_a_sum_after_a_convolution_is_exported_without_a_rounding_between():
    rng = np.random.default_rng(4)
    net = Network()
    x = net.relu("r", net.convolution("c1", net.input("in", (8, 9, 9)), rng.normal(size=(16, 8, 3, 3)), padding=1))
    y = net.convolution("c2", x, rng.normal(size=(16, 16, 3, 3)) / 12, padding=1)
    net.output(net.relu("s", net.add("sum", x, y)))
    data = samples(net, rng, 2)
    built = build(net, "nv_small", "int8", calibrate(net, data), True)
    assert _differences(net, built, data).max() <= 2


def test_a_function_in_the_operation_of_a_convolution_has_no_form_in_onnx():
    """There it is looked up before the convolution's result is rounded; level 0 looks up elements."""
    net, rng = Network(), np.random.default_rng(0)
    net.output(net.sigmoid("y", net.convolution("c", net.input("in", (4, 3, 3)), rng.normal(size=(4, 4, 1, 1)))))
    data = samples(net, rng, 2)
    with pytest.raises(BuildError, match=r"layer y: its function is looked up .* -O 0"):
        qdq_model(net, build(net, "nv_full", "int8", calibrate(net, data), level=1))
    built = build(net, "nv_full", "int8", calibrate(net, data), level=0)
    assert _differences(net, built, data).max() <= 1


def test_an_exported_table_computes_with_elements_when_it_is_compiled_again():
    """On the host: the importer takes scales out of models, but a Cast reads integers."""
    net, rng = Network(), np.random.default_rng(0)
    net.output(net.sigmoid("y", net.convolution("c", net.input("in", (4, 3, 3)), rng.normal(size=(4, 4, 1, 1)))))
    data = samples(net, rng, 4)
    exported = qdq_model(net, build(net, "nv_small", "int8", calibrate(net, data)))
    again = nvdla.compile(exported, "nv_small")
    one = {name: array[:1].astype(np.float32) for name, array in data.items()}
    assert np.abs(again.run(one)["y"] - _run(exported, one)["y"]).max() <= 0.02


@pytest.mark.parametrize("first", ["Resize", "Transpose", "Reshape", "none"])
def test_the_file_takes_and_gives_what_the_model_does(first, tmp_path):
    """Elements that the compiler moves are moved in the file; outputs have the order of the model."""
    rng = np.random.default_rng(0)
    moves = {
        "Resize": node("Resize", "x roi scales", "v", mode="nearest"),
        "Transpose": node("Transpose", "x", "v", perm=[0, 3, 1, 2]),
        "Reshape": node("Reshape", "x shape", "v"),
        "none": node("Identity", "x", "v"),
    }
    shape = {"Resize": (1, 4, 3, 3), "Transpose": (1, 6, 6, 4), "Reshape": (1, 24, 6), "none": (1, 4, 6, 6)}[first]
    constants = {"roi": np.zeros(0, "f4"), "scales": np.float32([1, 1, 2, 2]), "shape": np.array([1, 4, 6, 6])}
    constants = {name: array for name, array in constants.items() if name in moves[first].input}
    constants |= {name: rng.normal(size=(5, 4, 3, 3)).astype("f4") for name in ("w1", "w2")}
    nodes = [moves[first], node("Conv", "v w1", "a", pads=[1] * 4), node("Relu", "a", "b"), node("Conv", "v w2", "c")]
    nodes.append(node("Transpose", "c", "d", perm=[0, 2, 3, 1]))
    net = model(nodes, {"x": shape}, {"d": (1, 4, 4, 5), "b": (1, 5, 6, 6)}, constants)
    data = rng.normal(size=(8, *shape[1:])).astype("f4")
    compiled = nvdla.compile(net, "nv_small", calibration=data)
    compiled.export_qdq(tmp_path / "qdq.onnx")
    exported, given = onnx.load(tmp_path / "qdq.onnx"), {"x": data[:1]}
    found, wanted = _run(exported, given), compiled.run(given)
    assert list(found) == ["d", "b"]
    again = nvdla.compile(exported, "nv_small")
    assert not [row["op"] for row in again.nodes if row["placement"] == "host"]
    for name, array in found.items():
        assert array.shape == wanted[name].shape
        limit = 0.011 * np.abs(array).max()  # a unit
        assert np.abs(array - wanted[name]).max() < limit
        assert np.abs(array - again.run(given)[name]).max() < limit


def test_an_input_that_is_read_in_several_orders_is_one_input_of_the_file(tmp_path):
    net = model([node("ReduceMean", "x", "m", axes=[1]), node("Relu", "x", "r")],
                {"x": (1, 8, 6, 6)}, {"m": (1, 1, 6, 6), "r": (1, 8, 6, 6)}, {})  # fmt: skip
    data = np.random.default_rng(0).normal(size=(4, 8, 6, 6)).astype("f4")
    compiled = nvdla.compile(net, "nv_small", calibration=data)
    compiled.export_qdq(tmp_path / "qdq.onnx")
    exported, given = onnx.load(tmp_path / "qdq.onnx"), {"x": data[:1]}
    onnx.checker.check_model(exported)
    for name, array in _run(exported, given).items():
        assert np.abs(array - compiled.run(given)[name]).max() < 0.011 * np.abs(array).max()


def test_an_input_that_is_an_output_is_refused(tmp_path):
    net = model([node("Identity", "x", "y"), node("ReduceMean", "x", "m", axes=[1])],
                {"x": (1, 8, 6, 6)}, {"y": (1, 8, 6, 6), "m": (1, 1, 6, 6)}, {})  # fmt: skip
    data = np.random.default_rng(0).normal(size=(4, 8, 6, 6)).astype("f4")
    with pytest.raises(BuildError, match="an input that is an output, too, does not go out as QDQ"):
        nvdla.compile(net, "nv_small", calibration=data).export_qdq(tmp_path / "qdq.onnx")
