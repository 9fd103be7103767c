"""The static schedule follows the firmware: the same groups, the same order in every engine, nothing twice at once."""

import itertools
import json
from pathlib import Path

import pytest

import nvdla
from nvdla.analysis.cycles.constants import Software
from nvdla.analysis.cycles.schedule import busy_cycles
from nvdla.analysis.study import Study
from nvdla.errors import ConfigError

SAMPLES = sorted((Path(__file__).resolve().parents[3] / "samples").glob("*.loadable"))
CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpus"
# Lookup tables shared by the groups, two convolutions side by side, tiles that re-use data, several tasks.
HARD = (
    "conv_relu_lrn/nv_full-fp16-basic.nvdla",
    "conv_sigmoid_conv/nv_full-fp16-fast-math.nvdla",
    "sigmoid_tanh/nv_full-fp16-basic.nvdla",
    "multi_out/nv_small-int8-fast-math.nvdla",
    "conv_splith2/nv_small-int8-fast-math.nvdla",
    "mini_cnn/nv_small-int8-default.nvdla",
)


def by_engine(steps):
    found = {}
    for what, engine, step in steps:
        found.setdefault((what, engine), []).append(step)
    return found


def assert_like_the_firmware(loadable):
    runtime = nvdla.Runtime(loadable)
    runtime.run_raw([bytes(tensor.size) for tensor in runtime.inputs])
    real = by_engine((s.what, s.type.name.lower(), (s.task, s.roi, s.index, s.group)) for s in runtime.steps)
    ours = by_engine((s.what, s.engine, (*s.key, s.group)) for s in Study.of(loadable).schedule.steps)
    assert ours == real


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_groups_and_order_are_those_of_a_run(path):
    assert_like_the_firmware(nvdla.load(path))


@pytest.mark.parametrize("name", HARD)
def test_groups_and_order_are_those_of_a_run_where_it_is_hard(name):
    path = CORPUS / "loadables" / name
    if not path.is_file():
        pytest.skip("the corpus of loadables (../shared/corpus) is not here")
    assert_like_the_firmware(nvdla.load(path))


def test_groups_and_order_are_those_of_nvidias_firmware():
    """The register group of every operation, and each engine's order of completion, as NVIDIA's driver logged them."""
    logs = sorted((CORPUS / "loadables").glob("*/*.ops.json"))
    if not logs:
        pytest.skip("the corpus of loadables (../shared/corpus) is not here")
    for log in logs:
        name = log.name.removesuffix(".ops.json")
        study = Study.of(nvdla.load(log.with_name(f"{name}.nvdla")), config=name.split("-")[0])
        completed = [step for step in study.schedule.steps if step.what == "complete"]
        ours, real = {}, {}
        for step in completed:
            ours.setdefault(step.engine, []).append((step.key[0], step.key[2], step.group))
        for done in json.loads(log.read_text()):
            real.setdefault(done["type"].lower(), []).append((done["task"], done["op"], done["group"]))
        assert ours == real, log


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_an_engine_does_one_operation_at_a_time_and_a_group_holds_one(path):
    schedule = Study.of(nvdla.load(path)).schedule
    assert schedule.complete
    for engine in {span.engine for span in schedule.spans.values()} - {"cpu"}:
        spans = sorted((s for s in schedule.spans.values() if s.engine == engine), key=lambda s: s.start)
        for before, after in itertools.pairwise(spans):
            assert before.end <= after.start
        for group in (0, 1):
            mine = sorted((s for s in spans if s.group == group), key=lambda s: s.programmed)
            for before, after in itertools.pairwise(mine):
                assert before.end <= after.programmed


def test_what_an_operation_waits_for_happens_before():
    study = Study.of(nvdla.load(SAMPLES[0]))
    spans = study.schedule.spans
    for node in study.operations:
        for each in node.dependencies:
            target = spans[each.target]
            moment = {"OP_PROGRAMMED": "programmed", "OP_ENABLED": "enabled", "OP_COMPLETED": "end"}.get(each.event)
            if moment:
                assert getattr(spans[node.key], moment) <= target.start


def test_the_run_is_as_long_as_its_operations_one_after_the_other_at_most():
    study = Study.of(nvdla.load(SAMPLES[0]), software=Software(0, 0.0, 0.0, 0.0))
    leaders = [chain[0].key for chain in study.chains]
    total = sum(study.estimates[key].cycles or 0 for key in leaders)
    assert 0 < study.schedule.cycles <= total
    assert busy_cycles(study.schedule, [node.key for node in study.operations]) <= study.schedule.cycles


def test_the_firmwares_time_comes_on_top():
    loadable = nvdla.load(SAMPLES[0])
    plain, slow = Study.of(loadable).schedule, Study.of(loadable, software=Software(answer=1000)).schedule
    assert slow.cycles >= plain.cycles + 1000


def test_register_writes_take_their_time():
    """The bus of a processor far away makes LeNet longer by each write that nothing hides."""
    loadable = nvdla.load(SAMPLES[0])
    near, far = (Study.of(loadable, software=Software(write=cycles)).schedule for cycles in (0.0, 100.0))
    assert far.cycles > near.cycles + 12 * 71 * 100 / 4


def test_a_cpu_operation_takes_cycles_for_each_element_of_its_output():
    loadable = nvdla.load(Path(__file__).resolve().parents[3] / "samples" / "lenet.loadable")
    none, some = (Study.of(loadable, software=Software(element=cycles)).schedule for cycles in (0.0, 70.0))
    assert some.cycles - none.cycles == 10 * 70


@pytest.mark.parametrize("bad", [{"answer": -1}, {"write": -0.5}, {"element": float("nan")}])
def test_software_that_cannot_be_is_refused(bad):
    with pytest.raises(ConfigError, match="must be 0"):
        Software(**bad)


def test_operations_that_deadlock_are_listed():
    path = CORPUS / "loadables" / "conv_power_conv" / "nv_small-int8-basic.nvdla"
    if not path.is_file():
        pytest.skip("the corpus of loadables (../shared/corpus) is not here")
    study = Study.of(nvdla.load(path))
    assert set(study.schedule.stuck) >= {(0, 0, 0), (0, 0, 1)}
    assert set(study.schedule.order) == {node.key for node in study.operations}
