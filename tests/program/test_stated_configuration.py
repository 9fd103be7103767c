"""The layer file and the package state the configuration that a network was compiled for."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import nvdla
from nvdla.checks.lint import lint_file
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.compiler.frontend.package import unpack
from nvdla.program.program import Program
from tests.compiler.frontend.models import model, node

WIDE = "base: nv_small\nname: wide\nmac_atomic_k: 16\n"


@pytest.fixture
def compiled(tmp_path):
    """A convolution with 20 kernels, which are packed by 16 on the custom configuration, then a node on the host.
    Lines of 8 bytes take one entry of the buffer in any configuration."""

    def make(config, host=False):
        (tmp_path / "wide.yaml").write_text(WIDE)
        rng = np.random.default_rng(0)
        nodes = [node("Conv", "x w", "y")]
        if host:
            nodes = [node("Conv", "x w", "c"), node("ArgMax", "c", "i", axis=1), node("Cast", "i", "y", to=1)]
        net = model(nodes, {"x": (1, 8, 6, 1)}, {"y": None}, {"w": rng.normal(size=(20, 8, 3, 1)).astype("f4")})
        samples = rng.normal(size=(4, 8, 6, 1)).astype("f4")
        result = nvdla.compile(net, str(tmp_path / config) if config.endswith("yaml") else config, calibration=samples)
        path = str(tmp_path / ("net.nvpkg" if host else "net.loadable"))
        result.save(path)
        return path, samples[:1], result

    return make


def test_a_loadable_runs_on_the_configuration_that_it_was_compiled_for(compiled):
    """The descriptors fit nv_small, which would take other kernels from the weights."""
    path, x, result = compiled("nv_small_256")
    runtime = nvdla.Runtime(path)
    assert runtime.config.name == "nv_small_256"
    assert "layer file" in runtime.config_reason
    np.testing.assert_array_equal(runtime.run(x)["y"], nvdla.Runtime(result, "nv_small_256").run(x)["y"])


def test_a_custom_configuration_must_be_given_for_a_loadable(compiled, tmp_path):
    path, x, result = compiled("wide.yaml")
    with pytest.raises(nvdla.ConfigError, match="compiled for 'wide', which is not built in"):
        nvdla.Runtime(path)
    runtime = nvdla.Runtime(path, str(tmp_path / "wide.yaml"))
    np.testing.assert_array_equal(runtime.run(x)["y"], nvdla.Runtime(result).run(x)["y"])
    assert Program.of(nvdla.load(path), checked=False).config.name == "nv_small"  # to look at, not to run
    with pytest.raises(nvdla.ConfigError, match="compiled for 'wide', which is not built in"):
        lint_file(path)
    assert lint_file(path, str(tmp_path / "wide.yaml")).clean


def test_a_custom_configuration_must_be_given_for_a_package(compiled, tmp_path):
    path, x, result = compiled("wide.yaml", host=True)
    with pytest.raises(nvdla.ConfigError, match="compiled for 'wide', which is not built in"):
        unpack(path).machine()
    found = unpack(path).machine(config=str(tmp_path / "wide.yaml")).run({"x": x})["y"]
    np.testing.assert_array_equal(found, result.run(x)["y"])


def test_a_layer_file_of_another_loadable_is_not_believed(compiled, tmp_path):
    path, _, _ = compiled("nv_small")
    sidecar = tmp_path / "net.loadable.layers.json"
    sidecar.write_text(sidecar.read_text().replace('"config": "nv_small"', '"config": "nv_large"'))
    assert nvdla.Runtime(path).config.name == "nv_small"


@pytest.mark.parametrize("config", ["nv_full", "nv_large"])
def test_lines_of_an_image_tell_the_configuration(config):
    """70 pixels of 4 bytes with their padding take 5 entries of 64 bytes on nv_large, 3 of 128 bytes on nv_full."""
    rng, network = np.random.default_rng(0), Network()
    image = network.input("in", (3, 64, 64))
    network.output(network.convolution("conv", image, rng.normal(size=(32, 3, 7, 7)), padding=3, stride=2))
    samples = rng.normal(size=(2, 3, 64, 64))
    built = build(network, config, calibration=calibrate(network, samples), input_format="image")
    program = Program.of(built.loadable)
    assert program.config.name == config
    assert "would compute the same" not in program.config_reason
