"""Ctrl-C at any moment of any command, from when it is the command's: 130, one line, at once, nothing half-written."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.fault_commands import SAMPLES
from support.interrupted_commands import COMMAND_LINES, NEVER_END, interrupted

from nvdla.cli.main import COMMANDS, ENDED_BY_CTRL_C

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs groups of processes")
SECONDS = 2.0
SECONDS_WITH_PROCESSES = dict.fromkeys(("evaluate", "explore", "faults"), 5.0)
"""Processes that are being started are not left behind half-started."""
QUICK = ("inspect", "run", "evaluate", "serve")
"""Commands of the default suite: one that only reads, one that runs, one with processes, one that serves."""


@pytest.fixture
def folder(tmp_path) -> Path:
    """The samples, in a folder of their own."""
    for path in SAMPLES.iterdir():
        if path.is_file() and path.suffix in (".loadable", ".json", ".pgm", ".onnx", ".npz", ".prototxt"):
            shutil.copy(path, tmp_path)
    return tmp_path


def interrupt_often(command: str, folder: Path, count: int) -> dict[int, int]:
    """The exit codes of ``count`` interrupted runs, and how often each came."""
    if command == "compile":
        pytest.importorskip("onnx", reason="the extra nvdla[onnx] is not installed")
    *before, line = COMMAND_LINES[command]
    for each in before:
        assert interrupted(each, folder, None)[0] == 0
    usual, says, longest = 0, "", NEVER_END.get(command, 0.0)
    if not longest:
        usual, says, longest = interrupted(line, folder, None)
        assert usual in (0, 1) or "shtab" in says, says  # what completion needs may not be installed
    rng = random.Random(command)
    codes: dict[int, int] = {}
    for number in range(count):
        part = (number + rng.random()) / count
        after = longest * (part**2 if command in NEVER_END else part)  # half of them before a server listens
        code, error, seconds = interrupted(line, folder, after)
        where = f"{line}: {after:.3f} of {longest:.3f} s: exit code {code} after {seconds:.1f} s: {error}"
        assert code in (130, usual), where
        assert only_says(error, says, code == 130), where
        assert seconds < SECONDS_WITH_PROCESSES.get(command, SECONDS), where
        assert not list(folder.rglob(".*.part")), where
        codes[code] = codes.get(code, 0) + 1
    return codes


def only_says(error: str, usual: str, is_interrupted: bool) -> bool:
    """Whether nothing stands there but what the command usually says, and the one line at the end."""
    if is_interrupted:
        error, found, rest = error.rpartition("\nnvdla")
        if not found or not rest.endswith("interrupted\n") or rest.count("\n") != 1:
            return False
    return set(error.split("\n")) <= {*usual.split("\n"), ""}


@pytest.mark.parametrize("command", QUICK)
def test_ctrl_c_ends_a_command_with_one_line(command, folder):
    assert interrupt_often(command, folder, 3).get(130, 0) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_ends_every_command_with_one_line(command, folder):
    assert interrupt_often(command, folder, 10).get(130, 0) >= 3


def test_every_command_is_interrupted():
    assert set(COMMAND_LINES) == set(COMMANDS)
    assert set(NEVER_END) == ENDED_BY_CTRL_C


def test_nothing_is_imported_before_ctrl_c_is_taken_over():
    """The rest of the time until then is Python's own start."""
    text = "import sys; before = set(sys.modules); import nvdla.cli.entry; print(*sorted(set(sys.modules) - before))"
    shown = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert set(shown.split()) - {"atexit"} == {"nvdla", "nvdla.cli", "nvdla.cli.ctrl_c", "nvdla.cli.entry"}


LATE = """
import atexit, os, signal, sys
from nvdla.cli import entry
class Late:
    def __del__(self):  # the interpreter takes itself down
        os.kill(os.getpid(), signal.SIGINT)
sys.late = Late()
sys.argv = ["nvdla", "cache", "info"]
sys.exit(entry.main())
"""


def test_an_interrupt_while_the_interpreter_ends_changes_nothing():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "folder" in done.stdout
