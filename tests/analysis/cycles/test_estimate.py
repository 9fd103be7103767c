"""Estimates of whole loadables: descriptors become the shapes that were measured."""

from pathlib import Path

import pytest

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ROOT / "samples"
LOADABLES = ROOT.parent / "shared" / "corpus" / "loadables"


@pytest.fixture(scope="module")
def lenet():
    return Study.of(nvdla.load(SAMPLES / "lenet.loadable"))


def is_the_operation(node, entry):
    """Whether a node is what was measured: some loadables were measured as an earlier compiler made them."""
    shape = entry["shape"]
    if node.engine != entry["unit"]:
        return False
    if node.engine == "conv":
        op = node.op
        kernel = (shape["k"], shape["kernel_w"], shape["kernel_h"], shape["kernel_c"])
        found = (node.output[0], op.kernel_width_csc, op.kernel_height_csc, op.kernel_channel_csc)
        return found == kernel and node.output[1:] == (shape["out_h"], shape["out_w"])
    cube = shape.get("pool") or {"in_c": shape.get("c"), "in_h": shape.get("h"), "in_w": shape.get("w")}
    return node.input == (cube["in_c"], cube["in_h"], cube["in_w"])


def test_loadables_take_the_cycles_that_the_rtl_took(rtl_cycles):
    """Operations of the loadables that ran on the RTL, found by their place in the order of the run."""
    checked = 0
    for config, entries in rtl_cycles.items():
        for entry in entries:
            path = LOADABLES / entry.get("loadable", "none")
            if not path.is_file():
                continue
            study = Study.of(nvdla.load(path), config=config, memory=Memory(entry["memory"]["latency_cycles"]))
            node = study.steps[entry["op"]][0] if entry["op"] < len(study.steps) else None
            if node and is_the_operation(node, entry):
                estimate = study.estimates[node.key]
                assert estimate.measured
                assert estimate.cycles == pytest.approx(entry["cycles"], rel=0.056, abs=15), (path.name, entry["op"])
                checked += 1
    assert checked >= 40


def test_macs_are_those_of_the_layers(lenet):
    """LeNet here: 6 kernels 5x5 on 24x24 positions, 16 of 5x5x6 on 8x8, then 120, 84 and 10 neurons."""
    macs = [lenet.estimates[chain[0].key].macs for chain in lenet.steps if chain[0].engine == "conv"]
    assert macs == [24 * 24 * 6 * 25, 8 * 8 * 16 * 150, 120 * 256, 84 * 120, 10 * 84]


def test_an_operation_on_the_fly_has_the_time_of_its_chain(lenet):
    for chain in lenet.chains:
        found = [lenet.estimates[node.key] for node in chain]
        assert {each.leader for each in found} == {chain[0].key}
        assert len({each.cycles for each in found}) == 1


def test_the_mac_array_is_never_used_more_than_it_can_be():
    for path in sorted(SAMPLES.glob("*.loadable")):
        study = Study.of(nvdla.load(path))
        for estimate in study.estimates.values():
            assert estimate.mac_share is None or 0 < estimate.mac_share <= 1


def test_a_cpu_operation_has_no_cycles(lenet):
    cpu = [node for node in lenet.operations if node.engine == "cpu"]
    assert cpu
    assert all(lenet.estimates[node.key].cycles is None for node in cpu)


def test_slow_memory_bounds_the_operations():
    loadable = nvdla.load(SAMPLES / "lenet.loadable")
    slow = Study.of(loadable, memory=Memory(100, 0.1, shared=True))
    fast = Study.of(loadable)
    assert slow.schedule.cycles > 5 * fast.schedule.cycles
    bounds = {estimate.bound for estimate in slow.estimates.values() if estimate.bound}
    assert bounds & {"memory", "fetch", "weights"}


def test_a_convolution_with_many_positions_is_not_bound_by_weight_loading():
    """conv1 of color_digits has 1,024 positions for its 432 bytes of weights; the SDP takes its results too slowly."""
    study = Study.of(nvdla.load(SAMPLES / "color_digits.loadable"), "nv_small")
    bounds = {node.label: study.estimates[node.key].bound for node in study.operations}
    assert (bounds["0/0"], bounds["0/3"], bounds["0/9"]) == ("SDP", "MAC", "weight loading")


@pytest.mark.parametrize(("rate", "bound"), [(8, "weight loading"), (4, "weights"), (1, "weights")])
def test_weights_bound_a_fully_connected_layer_where_they_arrive_slower_than_they_are_loaded(rate, bound):
    """ip1 has 256 bytes per kernel: 8 kernels are loaded in 256 cycles, and arrive in 2048 / rate."""
    study = Study.of(nvdla.load(SAMPLES / "lenet.loadable"), "nv_small", memory=Memory(50, rate))
    estimates = {node.label: study.estimates[node.key] for node in study.operations}
    assert estimates["0/6"].bound == estimates["0/8"].bound == bound
    assert estimates["0/0"].bound == estimates["0/3"].bound == "MAC"
