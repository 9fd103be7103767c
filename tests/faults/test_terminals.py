"""On a terminal: progress while a network runs, and nothing left of it in the end."""

from __future__ import annotations

import os
import sys

import pytest
from support.fault_commands import DIGITS, LENET, RUN, start

pty = pytest.importorskip("pty") if sys.platform != "win32" else pytest.skip("no terminals", allow_module_level=True)


def test_a_run_on_a_terminal_shows_its_progress_and_result():
    leader, follower = pty.openpty()
    process = start(RUN, LENET, "-i", DIGITS[3], stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait(timeout=60) == 0
    assert b"internal error" not in shown
    assert b"prob: 1x10x1x1 int8 on nv_small" in shown
    assert b"\x1b[" in shown  # the progress bar


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("doctor", LENET, "-i", DIGITS[3]), b"examining"),
        (("compare", LENET, LENET, "-i", DIGITS[3]), b"comparing"),
        (("report", LENET, "-i", DIGITS[3], "-o", "page.html"), b"making a page of"),
    ],
)
def test_long_work_shows_on_a_terminal_what_it_is_at(words, says, tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "nvdla"]
    process = start(command, *words, cwd=tmp_path, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert process.wait(timeout=60) in (0, 1)
    assert says in shown
