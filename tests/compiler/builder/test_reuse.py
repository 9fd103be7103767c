"""Data that stay in the convolution buffer for the next convolution on the same cube."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import TARGETS, samples

import nvdla
from nvdla import limits
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import Network, build, calibrate, schedule
from nvdla.compiler.builder.lower import lower
from nvdla.emulator.hardware.configuration import configuration
from nvdla.limits import PlanLimits
from nvdla.program.program import Program

SETTINGS = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))


def branches(sizes: list[tuple[int, int]], shape=(16, 8, 8)) -> Network:
    """Convolutions of (kernels, size) on one input, concatenated."""
    rng = np.random.default_rng(0)
    net = Network("branches")
    x = net.input("in", shape)
    made = [
        net.convolution(f"c{at}", x, rng.normal(size=(kernels, shape[0], size, size)), padding=size // 2)
        for at, (kernels, size) in enumerate(sizes)
    ]
    net.output(net.concat("all", *made))
    return net


def convolutions(loadable, config):
    return [each.op for each in Program.of(loadable, config).operations if each.engine == "conv"]


def test_the_second_branch_uses_the_data_of_the_first():
    net = branches([(16, 3), (16, 1)])
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    first, second = convolutions(build(net, "nv_small", "int8", scales).loadable, "nv_small")
    assert (first.skip_data_rls, first.data_reuse) == (1, 0)
    assert (second.skip_data_rls, second.data_reuse) == (0, 1)
    assert (first.data_bank, first.weight_bank) == (second.data_bank, second.weight_bank)
    assert not any(
        each.data_reuse for each in convolutions(build(net, "nv_small", "int8", scales, level=0).loadable, "nv_small")
    )


@pytest.mark.parametrize(("config", "precision", "per_channel"), TARGETS)
@SETTINGS
@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.sampled_from([1, 3, 5])), min_size=2, max_size=4),
    shape=st.tuples(st.integers(1, 40), st.integers(3, 12), st.integers(3, 12)),
)
def test_results_are_those_of_the_reference_and_of_level_0(config, precision, per_channel, sizes, shape):
    net = branches(sizes, shape)
    data = samples(net, np.random.default_rng(1), 2)
    scales = calibrate(net, data)
    built, plain = (build(net, config, precision, scales, per_channel, level=level) for level in (1, 0))
    elements = built.quantize_inputs(data)
    found, strict = (nvdla.Runtime(built.loadable, config, **how).run(elements) for how in ({}, {"strict": True}))
    least = nvdla.Runtime(plain.loadable, config).run(elements)
    for name, each in found.items():
        assert np.array_equal(each.view(np.uint8), strict[name].view(np.uint8))
        if precision != "fp16":
            assert np.array_equal(each, built.expected(elements)[name])
            assert np.array_equal(each, least[name])
    assert precision == "int16" or not lint(built.loadable, config).findings


@pytest.mark.parametrize("config", ["nv_small", "nv_large", "nv_full"])
@pytest.mark.parametrize("sizes", [[(16, 3), (16, 1)], [(32, 1), (64, 1), (32, 1)], [(24, 5), (8, 3), (8, 1)]])
def test_it_is_done_where_the_cycle_model_finds_it_no_slower(config, sizes, monkeypatch):
    net = branches(sizes, (16, 6, 6))
    scales = calibrate(net, samples(net, np.random.default_rng(1)))

    def cycles() -> int:
        return Study.of(build(net, config, "int8", scales).loadable, config).schedule.cycles

    chosen = cycles()
    monkeypatch.setattr(schedule, "share_data", lambda *given: None)
    never = cycles()
    monkeypatch.setattr(schedule, "share_data", schedule.share_data)
    monkeypatch.setattr(schedule, "queue_cycles", lambda *given, **named: 0)
    assert chosen <= min(never, cycles())


@pytest.mark.parametrize("level", [1, 2])
def test_a_configuration_of_ones_own_is_weighed_too(level):
    net = branches([(16, 3), (16, 1)])
    scales = calibrate(net, samples(net, np.random.default_rng(1)))
    own, known = replace(configuration("nv_small"), name="mine"), configuration("nv_small")
    made, same = (build(net, each, "int8", scales, level=level).loadable.to_bytes() for each in (own, known))
    assert made == same


def test_convolutions_beyond_the_budget_share_no_data(monkeypatch):
    """Four convolutions on one cube in each of two rows: questions of four times four operations a row."""
    shared = []
    for budget in (1 << 18, 16, 15):
        monkeypatch.setattr(limits, "PLAN", PlanLimits(shared=budget))
        net, weights = Network("net"), np.full((16, 16, 3, 3), 0.1)
        for row in range(2):
            cube = net.input(f"x{row}", (16, 8, 8))
            for number in range(4):
                net.output(net.convolution(f"c{row}{number}", cube, weights))
        chosen = configuration("nv_full")
        tasks = schedule.schedule(lower(net, chosen, "fp16", None), chosen)
        shared.append(sum(each.reuses_data for each in tasks[0].operations))
    assert shared[0] == 2 * shared[1] > shared[2] == 0
