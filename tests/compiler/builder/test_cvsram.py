"""Surfaces in CVSRAM: the same bytes of results, and less that goes through a narrow memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.build_checks import samples
from support.random_networks import networks

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import BuildError, Network, build, calibrate
from nvdla.errors import ConfigError
from nvdla.loadable.descriptors.enums import MemType
from nvdla.loadable.enums import MemoryDomain
from nvdla.program.program import Program

NARROW = Memory(bytes_per_cycle=4, shared=True)
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


def chain() -> Network:
    rng = np.random.default_rng(0)
    net = Network("chain")
    x = net.input("in", (32, 20, 20))
    a = net.convolution("a", x, rng.normal(size=(32, 32, 3, 3)), padding=1)
    b = net.convolution("b", a, rng.normal(size=(32, 32, 1, 1)))
    c = net.convolution("c", net.relu("r", net.add("sum", a, b)), rng.normal(size=(64, 32, 1, 1)))
    net.output(net.convolution("d", c, rng.normal(size=(8, 64, 1, 1))))
    return net


def built_with(net: Network, cvsram: int, level: int = 1):
    scales = calibrate(net, samples(net, np.random.default_rng(1), 1))
    return build(net, "nv_full", "int8", scales, level=level, cvsram=cvsram)


def fast(built) -> int:
    """Bytes of CVSRAM that the loadable asks for."""
    return sum(each.size for each in built.loadable.memories if each.domain == MemoryDomain.SRAM)


@FEW
@given(net=networks(), cvsram=st.sampled_from([256, 1024, 4096, 1 << 20]))
def test_random_networks_give_the_results_of_the_reference(net, cvsram):
    built = built_with(net, cvsram)
    assert fast(built) <= cvsram
    data = samples(net, np.random.default_rng(1), 1)
    elements = built.quantize_inputs({name: values[0] for name, values in data.items()})
    found, expected = nvdla.Runtime(built.loadable, "nv_full").run(elements), built.expected(elements)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert not lint(built.loadable, "nv_full").findings


def test_surfaces_that_fit_are_in_cvsram():
    net = chain()
    without, some, everything = (built_with(net, size) for size in (0, 13 << 10, 1 << 20))
    assert fast(without) == 0 < fast(some) <= 13 << 10 < fast(everything)
    assert everything.memory.size == 0 < some.memory.size <= without.memory.size
    cycles = [Study.of(each.loadable, "nv_full", memory=NARROW).schedule.cycles for each in (without, some, everything)]
    assert cycles[0] > cycles[1] > cycles[2]
    types = {each.surface.src_data.type for each in Program.of(everything.loadable, "nv_full").operations}
    assert MemType.CV in types


def test_figures_of_cvsram_are_no_measured_ones():
    study = Study.of(built_with(chain(), 1 << 20).loadable, "nv_full")
    assert not any(each.measured for each in study.estimates.values())


def test_the_search_uses_cvsram():
    built = built_with(chain(), 1 << 20, level=2)
    record = built.sidecar["evaluated"]["search"]
    assert record["cycles"] == Study.of(built.loadable, "nv_full").schedule.cycles
    assert fast(built) > 0 == record["pool"]


def test_softmax_takes_its_input_from_dram():
    net = Network("n")
    x = net.input("in", (8, 4, 4))
    net.output(net.softmax("s", net.fully_connected("f", x, np.ones((10, 128)))))
    built = built_with(net, 1 << 20)
    assert built.memory.cvsram == {}
    assert not lint(built.loadable, "nv_full").findings


def test_configurations_without_it_refuse():
    net = chain()
    scales = calibrate(net, samples(net, np.random.default_rng(1), 1))
    with pytest.raises(ConfigError, match="4096 bytes of CVSRAM: nv_small has no CVSRAM"):
        build(net, "nv_small", "int8", scales, cvsram=4096)
    with pytest.raises(BuildError, match="-1 bytes of CVSRAM: must be 0 or more"):
        build(net, "nv_full", "int8", scales, cvsram=-1)
