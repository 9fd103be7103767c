"""On a terminal: progress while a network runs, and nothing left of it in the end."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys

import pytest
from support.fault_commands import DIGITS, LENET, RUN, start

from nvdla.cli.output import wrapped

fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
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


@pytest.fixture(autouse=True)
def width_of_the_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def shown_by(command: list[str], *words: object, columns: int = 0, **options: object) -> tuple[bytes, int]:
    """What a command writes on a terminal of so many columns (0: unknown), and its exit code."""
    leader, follower = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
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
    times = b" ".join(shown.split())
    assert re.search(rb"times: linking [\d.]+ m?s, .*running [\d.]+ m?s \(with preparations\)", times)


def test_long_silent_work_is_shown_and_its_line_is_cleared():
    """After a second the line comes; what is printed clears it; it never breaks into a line."""
    shown, code = shown_by([sys.executable], "-c", WORK)
    assert code == 0
    assert re.search(rb"\r\x1b\[Kexamining lenet: [12] s", shown)
    assert re.search(rb"\r\x1b\[Ka finding\r\n", shown)
    assert b"half a line.\r\n" in shown


COMMAND = [sys.executable, "-m", "nvdla"]
NARROW = 60


@pytest.mark.parametrize("words", [("cycles", LENET), ("explain", LENET), ("cycles", LENET, "--frobnicate=1234567890")])
def test_lines_of_text_and_errors_wrap_between_words(words):
    """On a terminal no line is wider than it, and no word is broken; in a pipe the same lines are whole."""
    shown, code = shown_by(COMMAND, *words, columns=NARROW)
    shown = re.sub(rb"\r\x1b\[K[^\r]*(?=\r\x1b\[K)", b"", shown)  # the line of work
    lines = re.sub(r"\x1b\[[0-9;]*[mK]", "", shown.decode()).replace("\r", "").splitlines()
    assert max(map(len, lines)) <= NARROW
    piped = subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True)
    notes = [line for line in (piped.stdout + piped.stderr).splitlines() if len(line) > NARROW and "\t" not in line]
    assert notes
    text = " ".join(" ".join(lines).split())
    assert not [note for note in notes if " ".join(note.split()) not in text]
    assert code == piped.returncode


def test_a_command_to_copy_stays_whole():
    command = f"'nvdla run {'x' * 30}.nvdla --input {'y' * 30}.png'"
    assert wrapped(f"no input: run {command} instead", 40) == ["no input: run", f"    {command}", "    instead"]


def test_the_line_of_work_is_cut_to_the_terminal():
    shown, _ = shown_by([sys.executable, "-c", WORK.replace("lenet", "lenet" * 20)], columns=NARROW)
    lines = re.findall(rb"\r\x1b\[K(examining [^\r]+)", shown)
    assert lines and all(len(line) < NARROW and re.search(rb"\.\.\.: \d+ s$", line) for line in lines)


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
    times = b" ".join(shown.split())
    assert re.search(rb"times: linking .*, compiling \d+ kernels [\d.]+ m?s.*, running", times)
