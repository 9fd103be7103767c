"""Campaigns leave no process behind, whatever dies: what is orphaned becomes a child of the tests, and is found."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import pytest
from support.campaign_clients import workers_of
from support.cluster import TESTS, import_path

PR_SET_CHILD_SUBREAPER = 36
SECONDS = 60.0


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Workers are new processes: they find the tables of the tests, too."""
    monkeypatch.setenv("PYTHONPATH", import_path(TESTS))


def left() -> set[int]:
    """Processes of ours, also those whose parents died, but for the helper that multiprocessing keeps."""
    found = set()
    for process in workers_of(os.getpid()):
        try:
            if os.waitpid(process, os.WNOHANG)[0] == 0 and "resource_tracker" not in _command(process):
                found.add(process)
        except ChildProcessError:
            continue
    return found


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_behind():
    """After the tests of a file no process is there that was not there before."""
    if sys.platform != "linux":
        yield
        return
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = left()
    yield
    end = time.monotonic() + SECONDS
    while (remaining := left() - before) and time.monotonic() < end:
        time.sleep(0.05)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert not remaining, {process: _command(process) for process in remaining}
