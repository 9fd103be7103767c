"""What a sum over the operations of a document gives: each chain once, and the total with the documented overlap."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import nvdla
from nvdla.analysis.cycles.constants import Software
from nvdla.analysis.cycles.document import cycles_document, cycles_of, grouped
from nvdla.analysis.explain import lines, operation_document, use_tracks
from nvdla.analysis.layer_forms import evaluate_layer, layers_of
from nvdla.analysis.study import Study
from nvdla.compiler.builder import Network, build, calibrate
from nvdla.emulator.execution.dry_run import dry_run
from nvdla.experiments.exploration import Exploration, Point
from nvdla.limits import Limits
from nvdla.program.naming import Names, names_for
from nvdla.report import model_explorer
from nvdla.report.document import make_side

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "samples").glob("*.loadable"))


@pytest.fixture
def deadlocked(lenet_loadable, plant):
    """LeNet whose last operation waits for an event that never comes."""

    def wait(task):
        task.operation(6).common.dependency_count = 5

    return plant(lenet_loadable, wait)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("software", [Software(), Software(answer=5000)], ids=["bare", "slow"])
def test_cycles_of_operations_and_the_overlap_are_the_total(path, software):
    study = Study.of(nvdla.load(path), software=software)
    document = cycles_document(study, 1000)
    rows = document["operations"]
    chains = [cycles_of(study, chain[0]) or 0 for chain in study.chains]
    assert all(chain for chain in chains), "operations of the CPU take time, too"
    assert sum(row["cycles"] or 0 for row in rows) == sum(chains)
    assert all(row["cycles"] is None for row in rows if row["leader"] != row["operation"])
    assert sum(chains) + document["overlap_cycles"] == document["total_cycles"] == study.schedule.cycles


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_an_operation_that_nothing_overlaps_takes_as_many_cycles_in_the_schedule_as_alone(path):
    """Also where the firmware enables it within a cycle, so what is left of the total is the firmware's."""
    study = Study.of(nvdla.load(path))
    for chain in study.chains:
        first, last = study.schedule.spans[chain[0].key], study.schedule.spans[chain[-1].key]
        assert last.end - first.start == cycles_of(study, chain[0]), chain[0].label
    assert max(span.end for span in study.schedule.spans.values()) <= study.schedule.total


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_all_commands_print_one_total(path, nvdla_command):
    document = json.loads(nvdla_command("cycles", path, "--json")[1])
    total = document["total_cycles"]
    for command, words in {"cycles": "cycles =", "timeline": "cycles =", "explain": "cycles of a run"}.items():
        assert f"\n{total:,} {words}" in nvdla_command(command, path)[1], command
    assert json.loads(nvdla_command("timeline", path, "--json")[1])["otherData"]["cycles"] == total
    assert json.loads(nvdla_command("explore", path, "--json")[1])["points"][0]["cycles"] == total
    study = Study.of(nvdla.load(path))
    assert make_side(study, names_for(path), 1000)[0].document["total"] == total
    spent = document["accounting"]
    assert sum(spent.values()) == total


@pytest.mark.parametrize("writes", [0.0, 0.3, 1.0, 2.14, 7.7])
def test_the_run_ends_with_or_after_its_last_operation(lenet_loadable, writes):
    schedule = Study.of(lenet_loadable, software=Software(write=writes)).schedule
    assert max(span.end for span in schedule.spans.values()) <= schedule.total


def test_a_timeline_says_that_a_run_ends_after_its_last_operation(nvdla_command, tmp_path):
    """Without a CPU operation after it, the firmware still answers the interrupt of the last operation."""
    net = Network("one")
    net.output(net.convolution("conv", net.input("data", (8, 6, 6)), np.ones((8, 8, 1, 1))))
    built = build(net, "nv_small", "int8", calibrate(net, np.ones((1, 8, 6, 6))))
    built.save(tmp_path / "net.loadable")
    study = Study.of(built.loadable)
    rest = study.schedule.total - max(span.end for span in study.schedule.spans.values())
    assert rest > 0
    out = nvdla_command("timeline", tmp_path / "net.loadable")[1]
    assert f"in the last {rest}, the firmware answers the last interrupt" in " ".join(out.split())


def test_an_explained_layer_counts_its_chain_once(lenet_loadable):
    study = Study.of(lenet_loadable)
    for chain in study.chains:
        documents = [operation_document(study, node) for node in chain]
        assert {each["leader"] for each in documents} == {chain[0].label}
        assert [each["cycles"] for each in documents[1:]] == [None] * (len(chain) - 1)
        assert documents[0]["cycles"] == cycles_of(study, chain[0])
    shares = [operation_document(study, node)["share"] or 0 for node in study.operations]
    cycles = [cycles_of(study, chain[0]) or 0 for chain in study.chains]
    assert sum(shares) == pytest.approx(sum(cycles) / study.schedule.cycles)


def test_a_page_and_its_exports_have_the_cycles_of_cpu_operations(lenet_loadable):
    """The cycles of a run by use add up to its total, on the page, too."""
    study = Study.of(lenet_loadable)
    side = make_side(study, names_for(lenet_loadable.name), 1000.0)[0].document
    led = {row["label"]: row["cycles"] for row in side["operations"] if row["leads"]}
    assert led == {chain[0].label: cycles_of(study, chain[0]) for chain in study.chains}
    assert led["1/0"] == 1000 == model_explorer.cycles(study)["1/0"]
    assert sum(side["uses"].values()) == side["total"]
    assert set(side["uses"]) == set(side["meanings"])


def test_cycles_between_operations_are_printed(nvdla_command):
    lenet_path = SAMPLES[0].with_name("lenet.loadable")
    for options in ((), ("--software", "5000")):
        spent = json.loads(nvdla_command("cycles", lenet_path, "--json", *options)[1])
        between, total = spent["accounting"]["programming"], spent["total_cycles"]
        assert sum(spent["accounting"].values()) == total
        line = f"{between:,} cycles ({between / total:.1%}) between operations: registers and interrupts"
        assert line in nvdla_command("cycles", lenet_path, *options)[1].splitlines()


def test_the_ends_of_an_explained_operation_are_those_of_its_chain(lenet_loadable):
    study = Study.of(lenet_loadable)
    for chain in study.chains:
        row = operation_document(study, chain[0])
        assert row["chain_end"] - row["start"] == pytest.approx(row["cycles"], abs=150)
        assert f"{row['start']:,} to {row['chain_end']:,}" in "".join(lines(row))


def test_the_parts_of_a_convolution_add_up_to_its_cycles(lenet_loadable):
    """The array is at work for as many cycles as it needs, the first and the last included."""
    study = Study.of(lenet_loadable)
    for layer in layers_of(study):
        terms = evaluate_layer(study, layer)["terms"]
        assert terms["multiplying"] >= terms["array"]
        parts = terms["until_first_mac"] + terms["multiplying"] + terms["after_last_mac"]
        assert parts == sum(cycles_of(study, node) for node in layer.nodes if node.engine == "conv")


def test_a_deadlock_has_no_total(deadlocked, tmp_path, nvdla_command):
    file = tmp_path / "deadlocked.loadable"
    file.write_bytes(deadlocked.to_bytes())
    code, out, _ = nvdla_command("cycles", file, "--json")
    found = json.loads(out)
    assert (code, found["stuck"]) != (0, [])
    keys = ("total_cycles", "overlap_cycles", "total_ms", "runs_per_second", "mac_use")
    assert [found[key] for key in keys] == [None] * len(keys)
    assert json.loads(nvdla_command("timeline", file, "--json")[1])["otherData"]["cycles"] is None
    explained = json.loads(nvdla_command("explain", file, "0/0", "--json")[1])["operations"]
    assert explained[0]["cycles"] and explained[0]["share"] is None
    for command in ("cycles", "timeline"):
        code, out, _ = nvdla_command(command, file)
        assert code == 1
        assert "no total: deadlock" in out
        assert "of the MAC array" not in out
    assert nvdla_command("timeline", file, "-o", tmp_path / "drawn.svg")[0] == 1
    assert "no total: deadlock" in (tmp_path / "drawn.svg").read_text()


def test_a_deadlock_in_the_convolution_buffer_has_no_total(corpus, nvdla_command):
    """The graph of operations ends; the hardware waits for entries that are never released."""
    path = corpus / "builder-verdicts" / "nv_small" / "nv_small-int8-banks-changed-02.loadable"
    code, out, _ = nvdla_command("cycles", path, "--json")
    found = json.loads(out)
    assert (code, found["stuck"], found["total_cycles"], found["runs_per_second"]) == (1, ["0/2", "0/3"], None, None)
    code, out, _ = nvdla_command("cycles", path)
    assert code == 1 and "no total: deadlock" in out and "change of D_BANK" in out
    assert nvdla_command("timeline", path)[0] == 1


def test_a_run_beyond_the_budget_is_no_deadlock(lenet_loadable, monkeypatch):
    study = Study.of(lenet_loadable)
    monkeypatch.setattr("nvdla.emulator.execution.dry_run.Limits", lambda: Limits(operations=3))
    assert "run budget" in (dry_run(lenet_loadable, study.abi, study.config)[0] or "")
    assert study.deadlock is None and study.schedule.total


def test_a_page_of_a_deadlock_shows_no_total(deadlocked, tmp_path, nvdla_command):
    (tmp_path / "net.loadable").write_bytes(deadlocked.to_bytes())
    path = tmp_path / "net.loadable"
    side = make_side(Study.of(deadlocked), names_for(path), 1000.0)[0].document
    assert side["total"] is None
    assert [value for _, value in side["figures"]].count("none: deadlock") == 3
    _, out, _ = nvdla_command("report", tmp_path, "-o", tmp_path / "pages", "--json")
    assert [row["cycles"] for row in json.loads(out)["loadables"]] == [None]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_mac_use_of_sums_is_that_of_the_operations(path):
    """16-bit elements halve the capacity of the array, in the total, the groups, the timeline, the report and explore
    as in the rows of operations."""
    study = Study.of(nvdla.load(path))
    document = cycles_document(study, 1000)
    shares = {row["operation"]: row["cycles"] * row["mac_share"] for row in document["operations"] if row["mac_share"]}
    assert document["mac_use"] * document["total_cycles"] == pytest.approx(sum(shares.values()))
    for by in ("layer", "type", "block"):
        groups = grouped(study, document["operations"], by)
        uses = [row["cycles"] * row["mac_share"] for row in groups if row["mac_share"]]
        assert sum(uses) == pytest.approx(sum(shares.values()))
    points = next(track.points for track in use_tracks(study) if track.name == "MAC array")
    held = sum((after - cycle) * value / 100 for (cycle, value), (after, _) in itertools.pairwise(points))
    assert held == pytest.approx(sum(shares.values()), rel=1e-2)
    exploration = Exploration(str(path), [Point(study.config.name)])
    rows = exploration.open()(list(exploration.tasks()))
    assert [row["mac_use"] for row in rows] == [pytest.approx(document["mac_use"])]


@pytest.mark.parametrize("name, capacity", [("lenet_nv_full_fp16", 1024), ("lenet_nv_large", 2048), ("lenet", 64)])
def test_the_roof_is_the_capacity_of_the_array_in_the_precision(name, capacity):
    study = Study.of(nvdla.load(next(path for path in SAMPLES if path.stem == name)))
    assert make_side(study, Names(), 1000.0)[0].document["roof"]["macs"] == capacity
