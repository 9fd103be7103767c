"""Single operators with any settings give what onnxruntime gives, or are refused with the setting."""

import math

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from support.operator_settings import random_model

import nvdla
from nvdla.compiler.frontend.operators.functions import erf
from tests.compiler.frontend.models import model, node

X = (1, 4, 7, 7)
W = np.arange(36, dtype="f4").reshape(1, 4, 3, 3) / 36
#: lookup tables and steps of integers have their own bars; these find wrong elements
LEAST_DB = {"fp16": 30, "int8": 14}


def expected_of(net, inputs):
    """onnxruntime's result, None if it refuses the model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(net.SerializeToString(), options).run(None, inputs)[0]
    except Exception:
        return None


@pytest.mark.parametrize(
    ("kind", "settings", "problem"),
    [
        ("Conv", {"auto_pad": "SAME_UPPER", "pads": [1, 1, 1, 1]}, "pads: must be absent with auto_pad SAME_UPPER"),
        ("ConvTranspose", {"output_padding": [1, 0]}, "output_padding: must be less than"),
        ("ConvTranspose", {"output_shape": [6, 9]}, r"output_shape: must be 7x7 \(input\) to 9x9, got 6x9"),
        ("ConvTranspose", {"output_shape": [9, 10]}, "output_shape: must be 7x7"),
        (
            "ConvTranspose",
            {"auto_pad": "SAME_UPPER", "strides": [2, 2], "output_padding": [1, 0]},
            "output_padding: must be 0 with auto_pad",
        ),
        ("MaxPool", {"kernel_shape": [3, 3], "auto_pad": "VALID", "pads": [1, 1, 1, 1]}, "pads: must be absent"),
        ("Conv", {"auto_pad": "SAME_LOWER", "dilations": [1, 2]}, "dilations: must be 1 with auto_pad SAME_LOWER"),
        ("SpaceToDepth", {"blocksize": 2}, "blocksize: must divide 7x7, got 2"),
        ("DepthToSpace", {"blocksize": 3}, "blocksize: its square must divide 4, got 3"),
        ("LRN", {"size": 4}, "size: must be odd, got 4"),
        ("Celu", {"alpha": 0.0}, "alpha: must not be 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(kind, settings, problem):
    weights = {"Conv": {"w": W}, "ConvTranspose": {"w": W.reshape(4, 1, 3, 3)}}.get(kind, {})
    net = model([node(kind, " ".join(["x", *weights]), "y", **settings)], {"x": X}, {"y": None}, weights)
    with pytest.raises(nvdla.NvdlaError, match=problem):
        nvdla.compile(net, "nv_full", precision="fp16")


def test_a_reflection_is_smaller_than_what_it_reflects():
    net = model(
        [node("Pad", "x p", "y", mode="reflect")], {"x": X}, {"y": None}, {"p": np.array([0, 0, 7, 0, 0, 0, 0, 0])}
    )
    with pytest.raises(nvdla.NvdlaError, match=r"pads: must be less than the size \(7\) with mode reflect, got 7"):
        nvdla.compile(net, "nv_full", precision="fp16")


@pytest.mark.parametrize("mode", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("target", [[7, 7], [8, 9], [14, 15]])
def test_a_deconvolution_with_a_stated_size_is_cut_at_the_end_that_onnx_names(mode, target):
    strides = [2, 2] if target[0] == 14 else [1, 1]
    settings = {"output_shape": target, "strides": strides} | ({} if mode == "NOTSET" else {"auto_pad": mode})
    net = model([node("ConvTranspose", "x w", "y", **settings)], {"x": X}, {"y": None}, {"w": W.reshape(4, 1, 3, 3)})
    x = np.random.default_rng(1).normal(size=X).astype("f4")
    found = nvdla.compile(net, "nv_full", precision="fp16").run({"x": x})["y"]
    np.testing.assert_allclose(found, expected_of(net, {"x": x}), atol=0.02)


def judge(seed, precision):
    """Why a model is wrong, empty if it is right or refused."""
    made = random_model(seed)
    if made is None:
        return ""
    net, shape = made
    x = np.random.default_rng(seed).normal(size=(4, *shape[1:])).astype("f4")
    expected = expected_of(net, {"x": x[:1]})
    what = f"seed {seed}: {net.graph.node[0].op_type} of {shape}"
    config = {"fp16": "nv_full", "int8": "nv_small"}[precision]
    try:
        compiled = nvdla.compile(net, config, precision=precision, calibration=x)
        (found,) = compiled.run({"x": x[:1]}).values()
    except nvdla.NvdlaError:
        return ""
    if not found.size:  # onnxruntime refuses some empty results
        return ""
    if expected is None:
        return f"{what}: onnxruntime refuses it"
    if found.shape != expected.shape:
        return f"{what}: shape must be {expected.shape}, got {found.shape}"
    # The result of one sample may be close to zero: its scale is that of all samples.
    others = [expected_of(net, {"x": sample[None]}) for sample in x]
    noise = float(np.square(found - expected).mean())
    level = 10 * np.log10(float(np.square(others).mean()) / noise) if noise else np.inf
    return f"{what}: {level:.1f} dB" if level < LEAST_DB[precision] else ""


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_random_settings_of_an_operator(precision):
    assert [problem for seed in range(30) if (problem := judge(seed, precision))] == []


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
@pytest.mark.parametrize("part", range(8))
def test_many_random_settings_of_an_operator(precision, part):
    assert [problem for seed in range(30 + part, 1200, 8) if (problem := judge(seed, precision))] == []


def test_erf_of_arrays_is_that_of_numbers():
    x = np.concatenate([np.linspace(-7, 7, 30_001), [0.0, -0.0, 1e-300, 5e-9, np.inf, -np.inf, 1e300, 6, -6]])
    expected = np.array([math.erf(value) for value in x])
    values = erf(x.reshape(-1, 1))
    assert values.shape == (len(x), 1)
    np.testing.assert_allclose(values[:, 0], expected, rtol=5e-16, atol=2e-16)
    assert (np.signbit(values[:, 0]) == np.signbit(expected)).all()
    assert np.isnan(erf(np.array(np.nan)))
