"""Deconvolution before Rubik: one convolution with the kernels of all phases."""

from __future__ import annotations

import numpy as np
import pytest
from support.build_checks import build_and_run, engines, samples

import nvdla
from nvdla.analysis.study import Study
from nvdla.compiler.builder import Network, build, calibrate

FORMS = {
    "2x2 stride 2": ((16, 8, 8), (16, 2, 2), 2, 0),
    "fewer kernels than an atom": ((16, 7, 7), (8, 3, 3), 3, 0),
    "overlap and a cut": ((5, 6, 7), (40, 5, 4), 2, 1),
    "stride of columns alone": ((5, 6, 7), (3, 1, 4), (1, 3), 0),
    "one pixel": ((3, 1, 1), (40, 2, 2), 2, 0),
    "more than the buffer holds": ((128, 20, 30), (64, 2, 2), 2, 0),
}


def network(form: str) -> Network:
    shape, (kernels, rows, columns), stride, padding = FORMS[form]
    rng = np.random.default_rng(3)
    net = Network("deconvolution")
    weights = rng.normal(size=(shape[0], kernels, rows, columns))
    x = net.deconvolution("d", net.input("in", shape), weights, rng.normal(size=kernels), stride, padding)
    net.output(net.prelu("p", x, rng.uniform(0.1, 0.5, kernels)))
    return net


@pytest.mark.parametrize("precision", ["int8", "int16", "fp16"])
@pytest.mark.parametrize("form", FORMS)
def test_all_phases_go_through_one_rubik(form, precision):
    net = network(form)
    built = build_and_run(net, "nv_full", precision, True, samples(net, np.random.default_rng(1), 2))
    found = engines(built)
    assert found.count("rubik") == 1
    assert "conv" not in found[found.index("rubik") :]


@pytest.mark.parametrize("form", FORMS)
def test_it_gives_the_bytes_of_a_convolution_for_each_phase(form):
    net = network(form)
    data = samples(net, np.random.default_rng(1), 1)
    scales = calibrate(net, data)
    results = []
    for level in (0, 1):
        built = build(net, "nv_full", "int8", scales, level=level)
        results.append(nvdla.Runtime(built.loadable, "nv_full").run(built.quantize_inputs(data["in"][0]))["p"])
    assert np.array_equal(*results)


def test_what_it_saves_by_the_cycle_model():
    net = network("2x2 stride 2")
    scales = calibrate(net, samples(net, np.random.default_rng(1), 1))
    made = [build(net, "nv_full", "int8", scales, level=level).loadable for level in (0, 1)]
    cycles = [Study.of(each, "nv_full").schedule.cycles for each in made]
    assert cycles[1] < 0.6 * cycles[0]
