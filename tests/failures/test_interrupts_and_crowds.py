"""Ctrl-C at any moment, and many runs at once: an output is absent, old or whole."""

from __future__ import annotations

import os
import random
import signal
import sys
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


@pytest.mark.skipif(not hasattr(os, "set_blocking"), reason="needs pipes and signals")
def test_ctrl_c_while_kernels_compile_ends_the_command_at_once(tmp_path):
    """Compiling all kernels takes tens of seconds; the interrupt comes after the first of them."""
    environment = {**os.environ, "NVDLA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    process = start([sys.executable, "-m", "nvdla", "cache", "warm-up"], env=environment, preexec_fn=take_interrupts)
    while process.poll() is None and not any(path.is_file() for path in tmp_path.rglob("*")):
        time.sleep(0.05)
    assert process.poll() is None, finish(process)
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    code, out, error = finish(process)
    assert (code, out, error) == (130, "", "\nnvdla cache: interrupted\n")
    assert time.perf_counter() - began < 5


SWALLOWS = """
import ctypes, signal, sys, time
import nvdla.cli.main as main

class Module:
    HELP = ""
    def configure(parser): pass
    def run(args):
        call = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
        call()  # ctypes drops what the function raises
        time.sleep({seconds})
        return 0

sys.modules["swallows"] = Module
main.COMMANDS["swallows"] = ("swallows", "")
from nvdla.cli.entry import main
sys.argv = ["nvdla", "swallows"]
sys.exit(main())
"""


@pytest.mark.parametrize("seconds", [0, 30])
def test_an_interrupt_that_c_code_drops_ends_the_command_all_the_same(seconds):
    began = time.perf_counter()
    command = [sys.executable, "-c", SWALLOWS.format(seconds=seconds)]
    code, out, error = finish(start(command, preexec_fn=take_interrupts))
    assert (code, out, error) == (130, "", "\nnvdla swallows: interrupted\n")
    assert time.perf_counter() - began < 15


IMPORTS = """
import builtins, signal, sys
real = builtins.__import__
def interrupted(name, *rest):
    if name == {name!r}:
        signal.raise_signal(signal.SIGINT)
    return real(name, *rest)
import nvdla.cli.entry
builtins.__import__ = interrupted
sys.argv = ["nvdla", "run", {loadable!r}, "-i", {image!r}]
sys.exit(nvdla.cli.entry.main())
"""


@pytest.mark.parametrize(
    "name", ["argparse", "nvdla.errors", "numpy", "nvdla.program.program", "nvdla.emulator.execution.plan"]
)
def test_ctrl_c_while_modules_are_imported_is_one_line(name):
    text = IMPORTS.format(name=name, loadable=str(LENET), image=str(DIGITS[0]))
    code, out, error = finish(start([sys.executable, "-c", text], preexec_fn=take_interrupts))
    assert (code, out) == (130, "")
    assert error in ("\nnvdla: interrupted\n", "\nnvdla run: interrupted\n")


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


def test_an_interrupt_that_became_another_error_is_an_interrupt(monkeypatch, capfd):
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
    assert capfd.readouterr().err == "\nnvdla fake: interrupted\n"
