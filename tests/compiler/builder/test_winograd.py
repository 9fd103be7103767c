"""Convolutions by Winograd's method on nv_full in fp16."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import build_and_run, samples, signal_to_noise

from nvdla.analysis.study import Study
from nvdla.compiler.builder import Built, Network, build
from nvdla.loadable.descriptors.enums import ConvMode
from nvdla.program.program import Program

SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


def network(shape, kernels=24, padding=1, seed=0, last=True) -> Network:
    """A 3x3 convolution, with a 1x1 one behind it unless it is the ``last``."""
    rng = np.random.default_rng(seed)
    net = Network("layer")
    weights = rng.normal(size=(kernels, shape[0], 3, 3))
    x = net.convolution("c", net.input("in", shape), weights, rng.normal(size=kernels), padding=padding)
    x = net.prelu("p", x, rng.uniform(0.1, 0.5, kernels))
    if not last:
        x = net.convolution("after", x, rng.normal(size=(8, kernels, 1, 1)))
    net.output(x)
    return net


def modes(built: Built, config: str = "nv_full") -> list[int]:
    """Of all convolutions."""
    return [each.op.conv_mode for each in Program.of(built.loadable, config).operations if each.engine == "conv"]


def run(net: Network) -> Built:
    return build_and_run(net, "nv_full", "fp16", False, samples(net, np.random.default_rng(1), 1))


@SETTINGS
@given(
    shape=st.tuples(st.integers(5, 150), st.integers(3, 30), st.integers(3, 30)),
    kernels=st.integers(1, 70),
    padding=st.sampled_from([0, 1, 2, (1, 0, 2, 1)]),
)
def test_any_shape_runs_and_is_as_exact_as_halves_are(shape, kernels, padding):
    net = network(shape, kernels, padding, last=False)
    built = run(net)
    data = samples(net, np.random.default_rng(1), 1)
    assert signal_to_noise(net, built, data) >= 50


def test_results_that_are_no_whole_blocks_lie_in_a_larger_cube():
    built = run(network((16, 9, 10), last=False))
    assert modes(built) == [ConvMode.WINOGRAD, ConvMode.DIRECT]
    conv = next(each for each in Program.of(built.loadable, "nv_full").operations if each.engine == "conv")
    assert (conv.surface.dst_data.height, conv.surface.dst_data.width) == (12, 12)
    assert built.tensors({"in": np.zeros((16, 9, 10), np.float16)})["p"].shape == (24, 9, 10)


@pytest.mark.parametrize(("shape", "mode"), [((16, 12, 16), ConvMode.WINOGRAD), ((16, 10, 16), ConvMode.DIRECT)])
def test_an_output_must_be_of_whole_blocks(shape, mode):
    assert modes(run(network(shape))) == [mode]


def test_parts_of_rows_keep_the_weights_where_they_fit():
    built = run(network((128, 40, 56), 16))
    parts = [each.op for each in Program.of(built.loadable, "nv_full").operations if each.engine == "conv"]
    assert len(parts) > 1
    assert {part.conv_mode for part in parts} == {ConvMode.WINOGRAD}
    assert [part.weight_reuse for part in parts] == [0] + [1] * (len(parts) - 1)


@pytest.mark.parametrize(("config", "precision"), [("nv_large", "int8"), ("nv_full", "int8"), ("nv_full", "int16")])
def test_integers_stay_direct(config, precision):
    net = network((16, 12, 16))
    built = build_and_run(net, config, precision, False, samples(net, np.random.default_rng(1), 1))
    assert set(modes(built, config)) == {ConvMode.DIRECT}


def test_what_it_saves_by_the_cycle_model():
    net = network((64, 28, 28), 64)
    made = [build(net, "nv_full", "fp16", level=level).loadable for level in (0, 1)]
    cycles = [Study.of(each, "nv_full").schedule.cycles for each in made]
    assert cycles[1] < 0.75 * cycles[0]
