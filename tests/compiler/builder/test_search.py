"""Level 2 searches in a fixed order: equal inputs give equal loadables, and none is slower than level 1's forms."""

from __future__ import annotations

import numpy as np
import pytest
from support.build_checks import samples

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.checks.lint import lint
from nvdla.compiler.builder import BuildError, Calibration, Network, SearchLimits, build, calibrate
from nvdla.program.program import Program

NARROW = Memory(bytes_per_cycle=2, shared=True)


def branches() -> tuple[Network, Calibration]:
    """Two convolutions in a row, then a pooling that waits for neither of them."""
    rng = np.random.default_rng(0)
    net = Network("branches")
    x = net.input("in", (32, 28, 28))
    a = net.convolution("a", x, rng.normal(size=(64, 32, 3, 3)), rng.normal(size=64), padding=1)
    b = net.convolution("b", a, rng.normal(size=(32, 64, 3, 3)), rng.normal(size=32), padding=1)
    pooled = net.max_pool("p", x, 3, 1, padding=1)
    net.output(net.concat("both", b, pooled))
    return net, calibrate(net, samples(net, np.random.default_rng(1), 1))


def band(channels: int = 256, size: int = 28) -> tuple[Network, Calibration]:
    rng = np.random.default_rng(0)
    net = Network("band")
    x = net.input("in", (channels, size, size))
    net.output(net.convolution("c", x, rng.normal(size=(64, channels, 1, 1)), rng.normal(size=64)))
    return net, calibrate(net, samples(net, np.random.default_rng(1), 1))


def cycles(built, config: str, memory: Memory | None = None) -> int:
    return Study.of(built.loadable, config, memory=memory).schedule.cycles


def test_independent_operations_overlap_with_the_convolutions():
    net, scales = branches()
    built = {level: build(net, "nv_large", "int8", scales, level=level) for level in (1, 2)}
    found = {level: cycles(each, "nv_large") for level, each in built.items()}
    assert found[2] < 0.9 * found[1]
    record = built[2].sidecar["evaluated"]["search"]
    assert record["complete"] and record["cycles"] == found[2] <= record["cycles_before"]
    elements = built[2].quantize_inputs(np.random.default_rng(1).normal(size=(32, 28, 28)))
    results = [nvdla.Runtime(each.loadable, "nv_large").run(elements)["both"] for each in built.values()]
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[1], built[2].expected(elements)["both"])
    assert not lint(built[2].loadable, "nv_large").findings


def test_any_number_of_processes_gives_the_same_loadable():
    net, scales = branches()
    made = [build(net, "nv_small", "int8", scales, level=2, search=SearchLimits(workers=count)) for count in (1, 2, 3)]
    assert len({each.loadable.to_bytes() for each in made}) == 1
    assert all(each.sidecar == made[0].sidecar for each in made)


def test_the_steps_that_a_time_limit_left_give_the_same_loadable_again():
    net, scales = branches()
    limited = build(net, "nv_small", "int8", scales, level=2, search=SearchLimits(time_limit=0.1))
    steps = limited.sidecar["evaluated"]["search"]["steps"]
    again = build(net, "nv_small", "int8", scales, level=2, search=SearchLimits(steps=steps))
    assert again.loadable.to_bytes() == limited.loadable.to_bytes()
    untouched = build(net, "nv_small", "int8", scales, level=2, search=SearchLimits(steps=0)).sidecar["evaluated"][
        "search"
    ]
    assert (untouched["steps"], untouched["complete"], untouched["trials"]) == (0, False, 0)


def test_progress_is_reported_for_every_step():
    net, scales = branches()
    told = []
    search = SearchLimits(steps=3, progress=lambda done, total, count: told.append((done, total, count)))
    built = build(net, "nv_small", "int8", scales, level=2, search=search)
    assert [each[0] for each in told] == [1, 2, 3]
    assert told[-1][2] == built.sidecar["evaluated"]["search"]["cycles"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_limit": 0}, "time limit 0 s: must be more than 0"),
        ({"time_limit": float("nan")}, "time limit nan s"),
        ({"steps": -1}, "-1 steps of the search: must be 0 or more"),
        ({"workers": 0}, "0 workers: must be 1 .. 256"),
    ],
)
def test_limits_that_are_none_are_refused(settings, message):
    with pytest.raises(BuildError, match=message):
        SearchLimits(**settings)


def test_several_networks_share_the_time():
    assert SearchLimits(time_limit=6).divided(3).time_limit == 2
    assert SearchLimits().divided(3).time_limit is None


@pytest.mark.parametrize("level", [1, 2])
def test_candidates_are_evaluated_for_the_given_memory(level):
    """At two bytes a cycle for reads and writes, rows that are fetched twice cost more than waiting."""
    net, scales = band(64, 56)
    found = {memory: build(net, "nv_large", "int8", scales, level=level, memory=memory) for memory in (None, NARROW)}
    assert cycles(found[NARROW], "nv_large", NARROW) <= cycles(found[None], "nv_large", NARROW)
    assert cycles(found[None], "nv_large") <= cycles(found[NARROW], "nv_large")
    kept = [each.sidecar["evaluated"]["memory"] for each in found.values()]
    assert [each["bytes_per_cycle"] for each in kept] == [None, 2]


def test_the_layer_file_keeps_what_was_weighed():
    net, scales = band()
    built = build(net, "nv_large", "int8", scales)
    (layer,) = built.sidecar["evaluated"]["layers"]
    taken, operations = layer["forms"][layer["taken"]], Program.of(built.loadable, "nv_large").operations
    parts = [each for each in operations if each.engine == "conv"]
    assert layer["operations"] == [each.label for each in parts]
    assert (taken["parts"], taken["data_banks"]) == (len(parts), parts[0].op.data_bank) != (1, 1)
    assert [each["cycles"] for each in layer["forms"]] == sorted(each["cycles"] for each in layer["forms"])
    assert not build(net, "nv_large", "int8", scales, level=0).sidecar["evaluated"]["layers"]
