"""NVIDIA's hardware trace tests and the directed-random register traces, all of them: every check of every trace.

Quick: one trace of each configuration and unit. All: ``pytest tests/conformance -m slow``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvdla.emulator import trace

CORPUS = (Path(__file__).resolve().parents[2] / ".." / "shared" / "corpus").resolve()


def hardware_tests() -> dict[str, list[Path]]:
    """ "configuration/unit" -> traces."""
    manifest = CORPUS / "trace-tests" / "manifest.json"
    found: dict[str, list[Path]] = {}
    for test in json.loads(manifest.read_text())["tests"] if manifest.exists() else []:
        folder = CORPUS / "trace-tests" / test["path"]
        unit = test["unit"].rstrip("0123456789")
        found.setdefault(f"{test['config']}/{unit}", []).extend([*folder.glob("*.cfg"), *folder.glob("*.txn")])
    return found


def random_traces() -> dict[str, list[Path]]:
    """ "configuration/feature" -> traces."""
    found: dict[str, list[Path]] = {}
    root = CORPUS / "register-traces"
    for path in sorted(root.glob("*/*/*/*.cfg")):
        found.setdefault("/".join(path.relative_to(root).parts[:2]), []).append(path)
    return found


def cases():
    for kind, groups in (("hardware", hardware_tests()), ("random", random_traces())):
        for name, paths in groups.items():
            yield pytest.param(name, paths[:1], id=f"{kind}-{name}-first")
            if paths[1:]:
                yield pytest.param(name, paths[1:], id=f"{kind}-{name}-rest", marks=pytest.mark.slow)


@pytest.mark.parametrize("name, paths", list(cases()))
def test_every_check_of_the_trace_passes(name, paths):
    config = name.split("/")[0]
    for path in paths:
        result = trace.replay(path, config)
        assert result.checks, path.name
        assert result.passed, (path.name, [check for check in result.checks if not check.passed][:1])
