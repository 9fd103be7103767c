"""Networks for nv_medium_512, whose atoms have 16 bytes: FEATURE tensors with strides of such atoms."""

from __future__ import annotations

import numpy as np
import pytest
from support.build_checks import build_and_run, samples

import nvdla
from nvdla import ConfigError
from nvdla.checks.lint import lint
from nvdla.compiler.builder import BuildError, Network, build, calibrate
from nvdla.loadable.enums import PixelFormat
from nvdla.program.program import Program


def network(shape=(20, 9, 7), kernels=40):
    rng = np.random.default_rng(0)
    net = Network("middle")
    x = net.input("in", shape)
    y = net.relu("r", net.convolution("c", x, rng.normal(size=(kernels, shape[0], 1, 1)), rng.normal(size=kernels)))
    net.output(net.add("sum", y, net.convolution("d", x, rng.normal(size=(kernels, shape[0], 1, 1)))))
    return net, samples(net, rng, 1)


@pytest.mark.parametrize("shape", [(20, 9, 7), (16, 1, 1), (33, 1, 5)])
def test_the_configuration_is_found_in_the_strides(shape):
    net, data = network(shape)
    built = build_and_run(net, "nv_medium_512", "int8", False, data)
    loadable = nvdla.load(built.loadable.to_bytes())
    assert {tensor.pixel_format for tensor in loadable.tensors} == {PixelFormat.FEATURE}
    assert Program.of(loadable).config.name == "nv_medium_512"
    elements = built.quantize_inputs({"in": data["in"][0]})
    found = nvdla.Runtime(loadable).run(elements)
    np.testing.assert_array_equal(found["sum"], built.expected(elements)["sum"])


@pytest.mark.parametrize("other", ["nv_small", "nv_large"])
def test_it_runs_on_no_other_configuration(other):
    net, data = network()
    loadable = build(net, "nv_medium_512", "int8", calibrate(net, data)).loadable
    with pytest.raises(ConfigError, match=r"atom: must be \d+ bytes on .*, got 16 .* on nv_medium_512"):
        nvdla.Runtime(loadable, other)
    assert any("atoms of 16 bytes" in str(finding) for finding in lint(loadable, other).findings)


def test_softmax_is_refused():
    net = Network("soft")
    net.output(net.softmax("s", net.input("in", (20, 1, 1))))
    data = samples(net, np.random.default_rng(0), 1)
    with pytest.raises(BuildError, match="softmax on the CPU: memory atoms must be 8 or 32 bytes, got 16"):
        build(net, "nv_medium_512", "int8", calibrate(net, data))
