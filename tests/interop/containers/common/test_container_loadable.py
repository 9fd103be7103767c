"""The parameters of loadables: KCRS as the network was trained, through other containers, and back byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nvdla.cli.main import main
from nvdla.errors import FormatError
from nvdla.interop.containers import registry
from nvdla.tensors.parameters import Parameter

CORPUS = Path(__file__).parents[4] / ".." / "shared" / "corpus" / "loadables"
#: A few of each layout: direct, image with and without post extension, Winograd; each precision and configuration.
FILES = [
    "conv3x3/nv_full-fp16-fast-math.nvdla",
    "conv3x3/nv_small-int8-fast-math.nvdla",
    "conv_bn/nv_full-fp16-default.nvdla",
    "conv_c1/nv_full-int8-fast-math-nhwc.nvdla",
    "conv_c3_7x7s2/nv_full-fp16-fast-math-nhwc.nvdla",
    "conv_chain/nv_full-fp16-wg.nvdla",
    "conv_c1/nv_large-int8-fast-math-pf.nvdla",
]


@pytest.fixture(params=FILES)
def loadable(request) -> Path:
    path = CORPUS / request.param
    if not path.exists():
        pytest.skip("the corpus of golden loadables is not here")
    return path


def open_parameters(path: Path) -> dict[str, Parameter]:
    return {p.name: p for p in registry.open(path).parameters()}


def trained(network: str) -> list[np.ndarray]:
    """The Caffe model's bytes as float32, at each of the four alignments (packed floats lie anywhere)."""
    data = (CORPUS / network / "net.caffemodel").read_bytes()
    return [np.frombuffer(data[at : at + (len(data) - at) // 4 * 4], "<f4") for at in range(4)]


def appears(array: np.ndarray, floats: list[np.ndarray]) -> bool:
    """Whether the array lies in the model, up to the rounding to half precision."""
    wanted = np.ascontiguousarray(array).astype(np.float32).ravel()
    for values in floats:
        with np.errstate(invalid="ignore"):
            starts = np.nonzero(np.abs(values - wanted[0]) <= 2e-3 * abs(wanted[0]))[0]
        for at in starts:
            part = values[at : at + wanted.size]
            if part.size == wanted.size and np.allclose(part, wanted, rtol=2e-3, atol=1e-6):
                return True
    return False


def test_parameters_go_through_every_container_and_back_byte_for_byte(loadable, tmp_path):
    original = loadable.read_bytes()
    container = registry.open(loadable)
    assert container.verify(strict=True) == [] and container.rows()
    for name in ("irpa", "npz", "safetensors"):
        between = registry.open(container.convert(registry.format_named(name)))
        again = registry.format_named("loadable").create(between.parameters(), {"template": str(loadable)})
        assert again == original, name
    assert container.convert(container.format) == original


def test_a_changed_weight_comes_back_changed_and_alone(loadable):
    parameters = open_parameters(loadable)
    name = next(n for n, p in parameters.items() if p.metadata["kind"] == "weights")
    array = parameters[name].as_array().copy()
    array.flat[array.size // 2] += 1
    changed = Parameter.from_array(name, array)
    data = registry.format_named("loadable").create([changed], {"template": str(loadable)})
    after = {p.name: p.as_array() for p in registry.open(data).parameters()}
    assert after[name].tobytes() == array.tobytes()
    for other in set(after) - {name}:
        assert after[other].tobytes() == parameters[other].as_array().tobytes()


@pytest.mark.parametrize(
    ("file", "channels"),
    [
        ("conv3x3/nv_full-fp16-fast-math.nvdla", None),
        ("conv_c3_7x7s2/nv_full-fp16-basic.nvdla", None),
        ("conv_c3_7x7s2/nv_full-fp16-fast-math-nhwc.nvdla", 3),
        ("conv_odd/nv_full-fp16-basic.nvdla", None),
    ],
)
def test_half_precision_weights_are_those_of_the_trained_network(file, channels):
    """An image convolution's kernels have four channels of which the network trained three."""
    if not (CORPUS / file).exists():
        pytest.skip("the corpus of golden loadables is not here")
    floats = trained(file.split("/")[0])
    weights = [p for p in open_parameters(CORPUS / file).values() if p.metadata["kind"] == "weights"]
    assert weights
    for parameter in weights:
        assert appears(parameter.as_array()[:, :channels], floats), parameter.name


def test_biases_and_multipliers_come_apart():
    path = CORPUS / "conv_c1" / "nv_large-int8-fast-math-pf.nvdla"
    if not path.exists():
        pytest.skip("the corpus of golden loadables is not here")
    kinds = {p.metadata["kind"]: p for p in open_parameters(path).values()}
    assert {"weights", "bias", "multiplier"} <= set(kinds)
    assert kinds["bias"].shape == kinds["multiplier"].shape == kinds["weights"].shape[:1]
    assert "output_scale" in kinds["weights"].metadata


def test_a_network_without_its_parameters_answers_zero(tmp_path, capsys):
    import nvdla

    path = CORPUS / "conv3x3" / "nv_small-int8-fast-math.nvdla"
    if not path.exists():
        pytest.skip("the corpus of golden loadables is not here")
    stripped = tmp_path / "stripped.nvdla"
    assert main(["container", "convert", str(path), str(stripped), "--strip", "--option", f"template={path}"]) == 0
    capsys.readouterr()
    runtime = nvdla.Runtime(nvdla.load(stripped))
    (output,) = runtime.run(np.full(runtime.inputs[0].shape, 3, np.int8)).values()
    assert not output.any()


def test_what_does_not_fit_is_refused(loadable):
    form = registry.format_named("loadable")
    name, parameter = next(iter(open_parameters(loadable).items()))
    options = {"template": str(loadable)}
    for wrong in (
        [Parameter.from_array("absent", parameter.as_array())],
        [Parameter.from_array(name, parameter.as_array()[:1])],
        [Parameter.from_array(name, parameter.as_array().astype(np.int32))],
        [parameter, parameter],
    ):
        with pytest.raises(FormatError):
            form.create(wrong, options)
    with pytest.raises(FormatError, match="option template"):
        form.create([parameter])


def test_a_broken_loadable_is_one_error():
    for data in (b"\x10\0\0\0NVDA", b"\x10\0\0\0NVDA" + bytes(100)):
        with pytest.raises(FormatError) as refusal:
            registry.open(data)
        assert "\n" not in str(refusal.value)
