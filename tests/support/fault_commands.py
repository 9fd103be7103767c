"""The command line in processes of its own, as faults need it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
LENET = SAMPLES / "lenet.loadable"
DIGITS = sorted(SAMPLES.glob("digit*.pgm"))
RUN = [sys.executable, "-c", "import sys; from nvdla.cli.entry import run_main; sys.exit(run_main())"]
NVDLA = [sys.executable, "-m", "nvdla"]


def start(command: list[str], *words: object, **options: Any) -> subprocess.Popen:
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment, **options}
    return subprocess.Popen([*command, *map(str, words)], **options)


def finish(process: subprocess.Popen, seconds: float = 120) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)."""
    out, error = process.communicate(timeout=seconds)
    return process.returncode, (out or b"").decode(), (error or b"").decode()


def one_line(error: str) -> bool:
    """What a fault may say."""
    return error.count("\n") == 1 and error.startswith("nvdla") and "Traceback" not in error
