"""NVIDIA's hardware trace tests and directed-random register traces of the engines behind the SDP: golden bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvdla.emulator import trace

CORPUS = Path(__file__).parents[3].parent / "shared" / "corpus"
FEATURES = ("pdp", "pdp_split", "pdp_nan", "pdp_on_the_fly", "cdp", "cdp_lut", "cdp_nan", "rubik", "bdma")


def trace_tests():
    path = CORPUS / "trace-tests" / "manifest.json"
    found = json.loads(path.read_text())["tests"] if path.exists() else []
    ours = ("pdp", "cdp", "sanity0", "sanity1", "sanity2")
    return [each for each in found if each["complete"] and each["unit"] in ours]


def register_traces(feature):
    root = CORPUS / "register-traces"
    return sorted(root.glob(f"*/{feature}/*/*.cfg"))


def failures(cases):
    wrong = []
    for path, config in cases:
        result = trace.replay(path, config)
        if not result.passed or not result.checks:
            wrong.append((path.parent.name, [each for each in result.checks if not each.passed][:1]))
    return wrong


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of golden traces is not here")
@pytest.mark.parametrize(
    "config", ["nv_small", "nv_small_256", "nv_small_256_full", "nv_medium_512", "nv_large", "nv_full"]
)
def test_nvidias_traces_pass(config):
    folders = [CORPUS / "trace-tests" / each["path"] for each in trace_tests() if each["config"] == config]
    cases = [(next(iter([*folder.glob("*.cfg"), *folder.glob("*.txn")])), config) for folder in folders]
    assert cases
    assert not failures(cases)


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of golden traces is not here")
@pytest.mark.parametrize("feature", FEATURES)
def test_directed_random_traces_give_the_golden_bytes(feature):
    cases = [(path, path.relative_to(CORPUS / "register-traces").parts[0]) for path in register_traces(feature)]
    assert cases
    assert not failures(cases)
