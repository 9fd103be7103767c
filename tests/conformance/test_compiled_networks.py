"""The cycle model against whole compiled networks on the RTL: their cycles, and the bytes that crossed the ports."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from support.compiled import COMPILED, runs
from support.queued import memory_of

from nvdla.analysis.cycles.constants import Software
from nvdla.analysis.cycles.document import cycles_document
from nvdla.analysis.study import Study
from nvdla.compiler.builder.lower import convolution

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


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


MEAN, WORST = 0.5, 3.0  # of each class of benchmarks/cycle_errors.py, in percent
ABOVE_300 = 1.0  # latencies above 300 cycles have no bar


def test_totals_of_every_class_are_within_the_bars(compiled, monkeypatch):
    """The nv_small of branch master, drivers that read all states, and CVSRAM are classes of their own."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    cycle_errors = pytest.importorskip("cycle_errors")
    errors = list(cycle_errors.compiled(compiled))
    assert len(errors) == len(compiled)
    found = cycle_errors.classes(errors)
    assert len(found) >= 10
    for mine in found:
        mean, worst = cycle_errors.summary(mine)
        above = mine[0].kind.startswith("latency above")
        assert mean <= (ABOVE_300 if above else MEAN), mine[0][:3]
        assert abs(worst.percent) <= WORST, worst


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "resnet50-20B-shared", "resnet18", "googlenet"])
def test_networks_of_full_resolution_are_within_one_percent(name, monkeypatch):
    """Built here byte for byte as they ran on the RTL: with the rows that strided 1x1 layers skip."""
    monkeypatch.setattr(convolution, "without_unused_rows", lambda source, *others: (source, others[-1]))
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
