"""The cycle model against whole compiled networks on the RTL: their cycles, and the bytes that crossed the ports."""

import json
from hashlib import sha256

import pytest
from support.compiled import COMPILED, runs
from support.queued import memory_of

from nvdla.analysis.cycles.constants import Software
from nvdla.analysis.cycles.document import cycles_document
from nvdla.analysis.study import Study


@pytest.fixture(scope="module")
def compiled():
    if not COMPILED.is_dir():
        pytest.skip("the measured networks (../shared/corpus/cycles/compiled) are not here")
    return list(runs())


def test_bytes_are_those_that_crossed_the_ports(compiled):
    """Equal in all runs: re-used data and weights, lines of images, tables of operands, CPU operations."""
    assert len(compiled) > 100
    for run in compiled:
        document, case = cycles_document(run.study, 1000), run.case
        for ours, theirs in (("read", "read"), ("written", "write")):
            cvsram = case[f"cvsram_{theirs}_bytes"]
            assert document[f"cvsram_{ours}_bytes"] == cvsram, (run.name, ours)
            assert document[f"{ours}_bytes"] == case[f"axi_{theirs}_bytes"] + cvsram, (run.name, ours)


# As it is stated (benchmarks/RESULTS.md): the mean of the absolute errors and the worst, in percent.
STATED = {"nv_small": (0.2, 2.0), "nv_large": (0.5, 2.9)}


@pytest.mark.parametrize("config", STATED)
def test_totals_are_as_near_as_stated(compiled, config):
    errors = [
        abs(run.study.schedule.total / run.case["rtl_total_from_first_write"] - 1) * 100
        for run in compiled
        if run.case["config"] == config and is_of_the_model(run.case)
    ]
    mean, worst = STATED[config]
    assert len(errors) > 50
    assert sum(errors) / len(errors) <= mean
    assert max(errors) <= worst


def is_of_the_model(case):
    """Whether the machine is the one that the model is of, driven as it was calibrated."""
    other_machine = case["rtl_source"] == "nvdla/hw branch master, nv_small"
    return not other_machine and case["conditions"]["register_reads_on_rtl"] != "all"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "resnet50-20B-shared", "resnet18", "googlenet"])
def test_networks_of_full_resolution_are_within_one_percent(name):
    """Built here byte for byte as they ran on the RTL."""
    path = COMPILED / "large" / f"{name}.json"
    if not path.is_file():
        pytest.skip("the measured networks (../shared/corpus/cycles/compiled) are not here")
    networks = pytest.importorskip("benchmarks.networks")
    case = json.loads(path.read_text())
    built = networks.built(networks.NETWORKS[name.split("-")[0]](), "nv_large")
    if sha256(built.loadable.to_bytes()).hexdigest() != case["loadable_sha256"]:
        pytest.skip("the builder makes another loadable than the one that was measured")
    study = Study.of(built.loadable, "nv_large", memory=memory_of(case["conditions"]), software=Software(element=0))
    assert study.schedule.total == pytest.approx(case["rtl_total_from_first_write"], rel=0.01)
