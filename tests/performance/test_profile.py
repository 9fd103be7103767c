"""Where the time of a run goes, in Python and on the command line."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import nvdla
from nvdla.emulator.execution.steps import profile


@pytest.fixture(scope="module")
def runtime(lenet_loadable):
    return nvdla.Runtime(lenet_loadable)


@pytest.fixture(scope="module")
def surface(runtime):
    return runtime.pack(0, np.random.default_rng(0).integers(-128, 128, runtime.inputs[0].shape, np.int8))


def test_every_operation_is_in_one_row(runtime, surface):
    rows = profile(runtime, [surface], runs=2)
    seen = []
    runtime.run_raw([surface], on_operation=lambda event: seen.append((event.task, event.index, event.engine)))
    hardware = [
        (row.task, *each) for row in rows if row.task == 0 for each in zip(row.operations, row.engines, strict=True)
    ]
    assert sorted(hardware) == sorted(seen)
    assert [row.engines for row in rows if row.task == 1] == [("softmax",)]


def test_shares_are_parts_of_the_whole(runtime, surface):
    rows = profile(runtime, [surface], runs=2)
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert all(row.seconds > 0 for row in rows)


def test_multiplications_are_those_of_the_layers(runtime, surface):
    first, *_, last = (row for row in profile(runtime, [surface], runs=1) if row.multiplications)
    layers = [operation for operation, _ in runtime.operations() if operation.type.name == "CONV"]
    for row, operation in ((first, layers[0]), (last, layers[-1])):
        data, result = operation.surface.src_data, operation.surface.dst_data
        kernel = operation.surface.weight_data
        volume = kernel.width * kernel.height * data.channel
        assert row.multiplications == volume * result.width * result.height * result.channel
        assert row.gmacs == pytest.approx(row.multiplications / row.seconds / 1e9)


def test_a_profile_leaves_results_alone(lenet_loadable, runtime, surface):
    expected = nvdla.Runtime(lenet_loadable).run_raw([surface])
    profile(runtime, [surface], runs=1)
    assert runtime.run_raw([surface]) == expected


@pytest.mark.parametrize("runs", [0, -1, 1001])
def test_the_number_of_runs_is_checked(runtime, surface, runs):
    with pytest.raises(nvdla.FormatError, match=f"profile: runs: must be 1 to 1000, got {runs}"):
        profile(runtime, [surface], runs)


def test_the_command_prints_a_row_for_each_chain_and_json(nvdla_command, samples):
    words = ("run", samples / "lenet.loadable", "--input", samples / "digit3.pgm", "--profile", "1")
    code, out, _ = nvdla_command(*words)
    assert code == 0
    assert out.count("CONV+SDP") == 5
    assert "gmac/s" in out
    table = list(csv.DictReader(nvdla_command(*words, "--csv")[1].splitlines()))
    milliseconds, work, speed = (float(table[-1][key]) for key in ("ms", "mmac", "gmac/s"))
    assert speed == float(f"{speed:.3g}") == pytest.approx(work / milliseconds, rel=0.05)
    code, out, _ = nvdla_command(*words, "--json")
    rows = json.loads(out)["profile"]
    assert code == 0
    assert [row["operations"] for row in rows][:2] == [[0, 1, 2], [3, 4, 5]]
    assert set(rows[0]) == {"task", "operations", "engines", "seconds", "multiplications", "share", "fused", "gmacs"}
    assert nvdla_command(*words[:-1], "0")[0] == 2
