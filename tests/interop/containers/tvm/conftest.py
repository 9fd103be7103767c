"""The real files and the real TVM, if they are here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tvm_corpus import FORMATS


@pytest.fixture(scope="session")
def formats() -> Path:
    if not FORMATS.exists():
        pytest.skip("the corpus of real files is not here")
    return FORMATS


@pytest.fixture(scope="session")
def tvm_python() -> str:
    """An interpreter that has apache-tvm: $NVDLA_TVM_PYTHON, or this one (install the extra `interop`)."""
    python = os.environ.get("NVDLA_TVM_PYTHON")
    if python:
        return python
    if importlib.util.find_spec("tvm") is None:
        pytest.skip("apache-tvm is not installed (extra `interop`), and NVDLA_TVM_PYTHON names no interpreter with it")
    return sys.executable


@pytest.fixture(scope="session")
def run_tvm(tvm_python):
    """Runs a script under the interpreter that has TVM and returns what it prints."""

    def run(script: str, *arguments: object, timeout: float = 120) -> str:
        done = subprocess.run(
            [tvm_python, "-c", script, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
