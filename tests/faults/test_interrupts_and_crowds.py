"""Ctrl-C at any moment, and many runs at once: an output is absent, old or whole."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from support.fault_commands import DIGITS, LENET, RUN, finish, start


def take_interrupts() -> None:
    """Processes in the background of a shell ignore SIGINT, and so would what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupted_runs(folder: Path, count: int, seed: int) -> dict[int, int]:
    """Runs that get SIGINT after a random time; exit codes and how often each came."""
    rng = random.Random(seed)
    out = folder / "out.json"
    began = time.perf_counter()
    assert finish(start(RUN, LENET, "-i", DIGITS[0], "-o", out))[0] == 0
    longest, whole = time.perf_counter() - began, out.read_bytes()
    codes: dict[int, int] = {}
    for number in range(count):
        old = number % 2 == 0
        if old:
            out.write_bytes(b"old")
        else:
            out.unlink(missing_ok=True)
        process = start(RUN, LENET, "-i", DIGITS[0], "-o", out, preexec_fn=take_interrupts)
        time.sleep(rng.uniform(0, longest * 1.1))
        process.send_signal(signal.SIGINT)
        code, _, error = finish(process)
        codes[code] = codes.get(code, 0) + 1
        # Before the command has begun the interpreter itself ends the process, in its own words.
        assert code in (0, 130, -signal.SIGINT, 1), error
        assert code in (-signal.SIGINT, 1) or "Traceback" not in error
        content = out.read_bytes() if out.exists() else None
        assert content in ([b"old", whole] if old else [None, whole])
        assert set(os.listdir(folder)) <= {"out.json"}
        if code == 130:
            assert error.endswith("interrupted\n")
    return codes


def test_an_interrupted_run_leaves_no_half_output(tmp_path):
    interrupted_runs(tmp_path, 4, seed=1)


@pytest.mark.slow
def test_a_hundred_interrupted_runs_leave_no_half_output(tmp_path):
    codes = interrupted_runs(tmp_path, 100, seed=2)
    assert codes.get(130, 0) > 20


def crowd(folder: Path, count: int) -> None:
    """``count`` runs at once on different digits, all into one file; it is whole whenever one looks."""
    expected = set()
    for digit in DIGITS[:2]:
        assert finish(start(RUN, LENET, "-i", digit, "-o", folder / "alone.bin"))[0] == 0
        expected.add((folder / "alone.bin").read_bytes())
    (folder / "alone.bin").unlink()
    out = folder / "out.bin"
    running = [start(RUN, LENET, "-i", DIGITS[n % 2], "-o", out) for n in range(count)]
    while any(process.poll() is None for process in running):
        if out.exists():
            assert out.read_bytes() in expected
        time.sleep(0.01)
    for process in running:
        code, _, error = finish(process)
        assert (code, error) == (0, "")
    assert out.read_bytes() in expected
    assert os.listdir(folder) == ["out.bin"]


def test_runs_that_write_the_same_file_write_all_of_it(tmp_path):
    crowd(tmp_path, 3)


@pytest.mark.slow
def test_fifty_runs_at_once(tmp_path):
    crowd(tmp_path, 50)


def test_an_interrupt_that_became_another_error_is_an_interrupt(monkeypatch, capsys):
    """numpy's C code makes an ImportError of Ctrl-C while it is being imported."""
    import types

    from nvdla.cli import main

    def run(arguments: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise ImportError("PyCapsule_Import could not import module") from None
        return 0

    command = types.SimpleNamespace(HELP="", configure=lambda parser: None, run=run)
    monkeypatch.setitem(main.COMMANDS, "fake", ("fake", ""))
    monkeypatch.setattr(main.importlib, "import_module", lambda name: command)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main.run_command("fake", []) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "\nnvdla fake: interrupted\n"
