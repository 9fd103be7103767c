"""One network on several instances: an estimate within the bounds that hold for every schedule."""

import csv
import itertools
import json
from math import prod

import pytest

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.instances import MAX_INSTANCES, SPLITS, splitting
from nvdla.analysis.study import Study
from nvdla.errors import ConfigError

MEMORIES = [Memory(latency, rate, shared) for latency in (50, 300) for rate in (None, 64, 3, 1) for shared in (0, 1)]
NAMES = ("lenet", "lenet_nv_large", "color_digits", "lenet_nv_full_fp16")


@pytest.fixture(params=NAMES)
def loadable(request, samples):
    return nvdla.load(samples / f"{request.param}.loadable")


def transfer(study):
    """Cycles in which the memory transfers the bytes of one input, from the estimates of the operations."""
    rows = study.estimates.values()
    read = sum(each.read_bytes - each.cvsram_read_bytes for each in rows)
    written = sum(each.written_bytes - each.cvsram_written_bytes for each in rows)
    rate = study.memory.bytes_per_cycle or study.config.dram_width_bits / 8
    return (read + written if study.memory.shared else max(read, written)) / rate


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_bounds_of_every_schedule_hold(loadable, memory):
    study = Study.of(loadable, memory=memory)
    single = study.schedule.total
    for split, count in itertools.product(SPLITS, (1, 2, 3, 5, 8, MAX_INSTANCES)):
        found = splitting([study], count, split)
        assert found.period * count >= single * (1 - 1e-9)  # N instances are at most N times as fast
        assert found.period >= transfer(study) * (1 - 1e-9)  # the memory transfers no more than it can
        assert found.period <= single * (1 + 1e-9)  # the others may stay idle
        assert found.period >= found.least_period * (1 - 1e-9)
        assert found.latency >= single * (1 - 1e-9)
        assert len(found.stages) <= count


@pytest.mark.parametrize("split", SPLITS)
def test_one_instance_is_the_cycle_model(loadable, split):
    study = Study.of(loadable)
    found = splitting([study], 1, split)
    assert found.period == pytest.approx(study.schedule.total) == found.latency


@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_more_instances_and_more_bandwidth_are_never_slower(loadable, memory):
    study = Study.of(loadable, memory=memory)
    periods = [splitting([study], count, "batch").period for count in range(1, 12)]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(periods))


def test_a_memory_that_is_wide_enough_costs_nothing(loadable):
    study = Study.of(loadable, memory=Memory(100, 1e6))
    assert splitting([study], 8, "batch").period == pytest.approx(study.schedule.total / 8, rel=1e-3)


def test_many_instances_are_as_fast_as_the_memory_or_the_processor(loadable):
    study = Study.of(loadable, memory=Memory(100, 0.05, True))
    found = splitting([study], MAX_INSTANCES, "batch")
    assert found.bound == "memory"
    assert transfer(study) <= found.period < 1.05 * transfer(study)
    wide = Study.of(loadable, memory=Memory(100, 1e6))
    cpu = sum(100 * prod(node.output) for node in wide.operations if node.engine == "cpu")
    found = splitting([wide], MAX_INSTANCES, "batch")
    assert found.period >= cpu > 0
    assert (found.bound == "processor") == (cpu > wide.schedule.total / MAX_INSTANCES)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_stages_of_a_pipeline_are_consecutive_and_the_longest_is_as_short_as_can_be(loadable, count):
    study = Study.of(loadable)
    found = splitting([study], count, "pipeline").stages
    chains = [(chain[0].label, chain[-1].label) for chain in study.steps]
    starts = [next(at for at, each in enumerate(chains) if each[0] == stage.first) for stage in found]
    ends = [next(at for at, each in enumerate(chains) if each[1] == stage.last) for stage in found]
    assert starts == [0, *(end + 1 for end in ends[:-1])] and ends[-1] == len(chains) - 1
    from nvdla.analysis.instances import _Chains

    work = _Chains([study])
    every = itertools.combinations(range(1, len(chains)), min(count, len(chains)) - 1)
    cuts = ([0, *cut, len(chains)] for cut in every)
    best = min(max(work.stage(*bounds).alone for bounds in itertools.pairwise(cut)) for cut in cuts)
    assert max(stage.alone for stage in found) <= best


def test_what_cannot_be_split_is_refused(lenet_loadable):
    study = Study.of(lenet_loadable)
    for count, split, text in ((0, "batch", "must be 1 to 64, got 0"), (2, "rows", "must be one of batch, pipeline")):
        with pytest.raises(ConfigError, match=text):
            splitting([study], count, split)


def test_explore_marks_the_estimate(nvdla_command, samples, tmp_path):
    words = ("--instances", "1,2,4", "--split", "batch,pipeline", "--area", "--workers", "1")
    table = tmp_path / "t.csv"
    code, _, err = nvdla_command("explore", samples / "lenet.loadable", *words, "--table", table)
    assert code == 0
    assert "several instances: an estimate with the contention on one memory" in err
    rows = list(csv.DictReader(table.open()))
    assert [(row["instances"], row["split"]) for row in rows] == [
        ("1", ""), ("2", "batch"), ("2", "pipeline"), ("4", "batch"), ("4", "pipeline"),
    ]  # fmt: skip
    assert [row["note"] for row in rows] == ["", *["estimate"] * 4]
    assert [float(row["mm2_16nm"]) for row in rows] == pytest.approx([0.55, 1.1, 1.1, 2.2, 2.2])
    document = json.loads(nvdla_command("explore", samples / "lenet.loadable", *words, "--json")[1])
    one, two, *_ = document["points"]
    assert one["splitting"] is None and two["splitting"]["estimate"] is True
    assert two["frames_per_second"] < 2 * one["frames_per_second"]
    assert two["frames_per_second"] <= two["splitting"]["most_frames_per_second"]
    assert one["memory_bytes"] < two["memory_bytes"] < 2 * one["memory_bytes"]
    assert two["microjoules"] > one["microjoules"]


@pytest.mark.parametrize(
    ("words", "text"),
    [(("--instances", "0"), "--instances 0: must be a whole number from 1 to 64"),
     (("--instances", "65"), "from 1 to 64"), (("--instances", "two"), "from 1 to 64"),
     (("--split", "rows"), "--split rows: must be one of batch, pipeline")],
)  # fmt: skip
def test_wrong_numbers_of_instances_are_one_line(words, text, nvdla_command, samples):
    code, _, err = nvdla_command("explore", samples / "lenet.loadable", *words)
    assert code == 2 and text in err and err.count("\n") == 1
