"""Loadables of the builder, as built and with planted settings: the bytes of NVIDIA's C model, or its verdict."""

from __future__ import annotations

import gzip
import json

import pytest
from support.golden import LOADABLES

import nvdla

ROOT = LOADABLES.parent / "builder-verdicts"
MANIFEST = ROOT / "manifest.json"
CASES = json.loads(MANIFEST.read_text())["cases"] if MANIFEST.exists() else []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_loadable_gives_the_bytes_of_the_c_model_or_its_verdict(case):
    outputs, reports = None, []
    try:
        runtime = nvdla.Runtime(nvdla.load(ROOT / case["loadable"]), config=case["config"])
        outputs = runtime.run_raw([(ROOT / name).read_bytes() for name in case["inputs"]])
        reports = runtime.warnings
    except nvdla.NvdlaError as error:
        reports = [str(error)]
    goldens = [[gzip.decompress((ROOT / name).read_bytes()) for name in names] for names in case["golden"]]
    if case["verdict"] == "ok" and not case["may_refuse"]:
        assert outputs in goldens
    elif case["verdict"] in ("hang", "abort", "refused"):
        assert reports
    else:
        assert reports or outputs in goldens
    if case["rule"]["reads_wrong_place"]:
        assert reports
