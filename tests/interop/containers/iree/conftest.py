"""The real files, and IREE's own tools if they are here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.iree_corpus import FORMATS


@pytest.fixture(scope="session")
def formats() -> Path:
    if not FORMATS.exists():
        pytest.skip("the corpus of real files is not here")
    return FORMATS


@pytest.fixture(scope="session")
def iree_python() -> str:
    """An interpreter that has iree-base-runtime: $NVDLA_IREE_PYTHON, or this one (install the extra `interop`)."""
    python = os.environ.get("NVDLA_IREE_PYTHON")
    if python:
        return python
    if importlib.util.find_spec("iree") is None:
        pytest.skip("iree-base-runtime is not installed (extra `interop`), and NVDLA_IREE_PYTHON names no interpreter")
    return sys.executable


@pytest.fixture(scope="session")
def run_iree(iree_python):
    """Runs a script under the interpreter that has IREE and returns what it prints."""

    def run(script: str, *arguments: object) -> str:
        done = subprocess.run(
            [iree_python, "-c", script, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
