"""A short, deterministic replay of the fuzz targets: their seeds, what they once found, and mutations of both.

Long runs: tests/fuzz/fuzz_campaign.py, see docs/security.md.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import fuzz_mutator
import pytest
from fuzz_targets import REGRESSIONS, TARGETS

COUNTS = {
    "load": 250,
    "tools": 150,
    "run": 250,
    "cfg": 150,
    "txn": 150,
    "irpa": 150,
    "vmfb": 60,
    "mlf": 60,
    "builder": 60,
    "operators": 200,
    "write-program": 100,
    "write-report": 50,
    "write-export": 100,
}


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_give_a_result_or_one_of_our_errors(name):
    target, rng = TARGETS[name], random.Random(name)
    if target.needs:
        pytest.importorskip(target.needs)
    one_input = target.one_input()
    seeds = target.seed_inputs()[:24] or [b""]
    for seed in seeds[:8]:
        one_input(seed)
    for _ in range(COUNTS.get(name, 500)):
        data = target.mutate(rng.choice(seeds), rng)[: target.max_len]
        began = time.perf_counter()
        one_input(data)
        assert time.perf_counter() - began < 30


def test_regressions_belong_to_targets():
    assert {path.name for path in REGRESSIONS.iterdir()} <= set(TARGETS)


_CHECKED = """
import sys
from fuzz_targets import REGRESSIONS, TARGETS
one_input = TARGETS[sys.argv[1]].one_input()
for path in sorted((REGRESSIONS / sys.argv[1]).iterdir()):
    one_input(path.read_bytes())
"""


@pytest.mark.slow
def test_no_kernel_leaves_its_arrays(tmp_path):
    """numba checks every index here, which it otherwise does not; long runs do so with --boundscheck."""
    settings = {
        "NUMBA_BOUNDSCHECK": "1",
        "NVDLA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(str(Path(__file__).parents[up]) for up in (0, 1)),
    }
    words = [sys.executable, "-c", _CHECKED, "run"]
    done = subprocess.run(words, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_structured_mutator_keeps_the_flatbuffer_valid():
    from nvdla.errors import LoadableError
    from nvdla.loadable import load

    seeds, rng = TARGETS["run"].seed_inputs()[:4], random.Random(1)
    made = [fuzz_mutator.mutate_loadable(rng.choice(seeds), rng) for _ in range(60)]
    mutants = [each for each in made if each is not None]
    assert len(mutants) > 40
    accepted = 0
    for each in mutants:
        load(each, checked=False)
        try:
            load(each)
            accepted += 1
        except LoadableError:
            continue
    assert accepted > 15


def test_the_campaign_runs_and_reports_its_figures(tmp_path):
    """With or without atheris; a finding would be exit code 1."""
    import json

    script = Path(__file__).with_name("fuzz_campaign.py")
    words = [sys.executable, script, "dimg", "--inputs", "2000", "--seconds", "60", "--work", tmp_path]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=120)
    figures = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert figures["inputs"] >= 2000
    assert figures["findings"] == []


def test_packages_that_a_campaign_does_not_watch_exist() -> None:
    assert all(importlib.util.find_spec(f"nvdla.{name}") for target in TARGETS.values() for name in target.elsewhere)
