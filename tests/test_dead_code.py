"""Dead code: every function, class and constant of the packages has a user, or is named in ``[tool.vulture]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_nothing_is_unused_but_the_function_added_here(tmp_path):
    pytest.importorskip("vulture", reason="vulture is not installed (extra 'test')")
    added = tmp_path / "added.py"
    added.write_text("def helper_without_a_caller():\n    return 1\n")
    command = [sys.executable, "-m", "vulture", "nvdla", "kernels", "tools", added]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"{added}:1: unused function 'helper_without_a_caller' (60% confidence)"]
