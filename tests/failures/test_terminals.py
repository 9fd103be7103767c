"""On a terminal: progress while a network runs, and nothing left of it in the end."""

from __future__ import annotations

import os
import re
import sys

import pytest
from support.fault_commands import DIGITS, LENET, RUN, start

pty = pytest.importorskip("pty") if sys.platform != "win32" else pytest.skip("no terminals", allow_module_level=True)


COMPILES = """
import sys
from nvdla.kernels.jit import compilation
compilation.fallback_work.end()  # every kernel is compiled, as in large networks
from nvdla.cli.main import main
sys.exit(main(["run", *sys.argv[1:]]))
"""
WORK = """
import sys, time
from nvdla.cli.working import line_of_work, working
with line_of_work("nvdla doctor"):
    with working("examining lenet"):
        time.sleep(2.2)
        print("a finding")
        time.sleep(0.3)
        print("half a line", end="")
        time.sleep(1.7)
        print(".")
"""


def shown_by(command: list[str], *words: object, **options: object) -> tuple[bytes, int]:
    """What a command writes on a terminal, and its exit code."""
    leader, follower = pty.openpty()
    process = start(command, *words, stdin=follower, stdout=follower, stderr=follower, **options)
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
    return shown, process.wait(timeout=60)


def test_a_run_on_a_terminal_shows_its_progress_and_result():
    shown, code = shown_by(RUN, LENET, "-i", DIGITS[3])
    assert code == 0
    assert b"internal error" not in shown
    assert b"prob: 1x10x1x1 int8 on nv_small" in shown
    assert b"\x1b[" in shown  # the progress bar
    assert re.search(rb"times: linking [\d.]+ m?s, .*running [\d.]+ m?s", shown)


def test_long_silent_work_is_shown_and_its_line_is_cleared():
    """After a second the line comes; what is printed clears it; it never breaks into a line."""
    shown, code = shown_by([sys.executable], "-c", WORK)
    assert code == 0
    assert re.search(rb"\r\x1b\[Kexamining lenet: [12] s", shown)
    assert re.search(rb"\r\x1b\[Ka finding\r\n", shown)
    assert b"half a line.\r\n" in shown


PIPED = """
import contextlib, os, time
from nvdla.cli.working import line_of_work
with contextlib.suppress(BrokenPipeError), line_of_work("nvdla compile"):
    time.sleep(1.7)
    print("first", flush=True)
    time.sleep(1.7)
    print("second", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("reader", ["head -1", "cat"])
def test_the_line_ends_before_the_reader_of_a_pipe_prints(reader):
    shown, _ = shown_by(["sh", "-c", f"{sys.executable} -c '{PIPED}' | {reader}"])
    assert re.search(rb"\r\x1b\[Knvdla compile: \d+ s\r\x1b\[Kfirst\r\n", shown)
    assert shown.partition(b"first\r\n")[2] == (b"second\r\n" if reader == "cat" else b"")


def test_compiled_kernels_are_reported(tmp_path):
    """Of a cache that is empty: on the terminal, and in the times, apart from those of running."""
    folder = tmp_path / "kernels"
    environment = {**os.environ, "NVDLA_CACHE_DIR": str(folder)}
    words = [LENET, *(word for digit in DIGITS[:3] for word in ("-i", digit))]
    shown, code = shown_by([sys.executable, "-c", COMPILES, *map(str, words)], env=environment)
    assert code == 0
    assert b"compiling kernels, once" in shown
    assert re.search(rb"times: linking .*, compiling \d+ kernels [\d.]+ m?s.*, running", shown)
