"""A real Dask cluster on loopback: a scheduler and worker processes that tests may kill. It ends with the tests,
however those end."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PR_SET_PDEATHSIG = 1


def ends_with_the_tests() -> None:
    """In a new process (Linux): end when the tests do, also when those are killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def import_path(first: Path | str) -> str:
    """PYTHONPATH with ``first`` before what it has."""
    return os.pathsep.join(filter(None, [str(first), os.environ.get("PYTHONPATH")]))


def started(words: list[str], path: Path | str = TESTS, **options: object) -> subprocess.Popen[bytes]:
    """A Python process with ``path`` first on its import path."""
    quiet: dict[str, object] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": import_path(path)},
        preexec_fn=ends_with_the_tests,
        **{**quiet, **options},  # type: ignore[arg-type]
    )


class Cluster:
    """A scheduler and two workers. ``path``: on the workers' import path; ``nanny``: workers that die come back;
    ``tls``: options that name the files of an encrypted connection."""

    def __init__(self, folder: Path, path: Path | str = TESTS, nanny: bool = False, tls: Sequence[str] = ()) -> None:
        self.folder, self._path, self._nanny, self._tls = folder, path, nanny, tls
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        """The scheduler, on any port, and two workers of it."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show", "--scheduler-file", str(file)]
        options += ["--protocol", "tls"] if self._tls else []
        self._process("scheduler", options)
        self.address = _address(file)
        self.workers = [self.start_worker(), self.start_worker()]

    def start_worker(self) -> subprocess.Popen[bytes]:
        """One more worker."""
        options = ["--nthreads", "1", "--no-dashboard", "--local-directory", str(self.folder)]
        return self._process("worker", [self.address, *options, "--nanny" if self._nanny else "--no-nanny"])

    def _process(self, kind: str, options: list[str]) -> subprocess.Popen[bytes]:
        process = started(["-m", f"distributed.cli.dask_{kind}", *options, *self._tls], self._path)
        self.processes.append(process)
        return process

    def stop(self) -> None:
        """Kill all of it."""
        while self.processes:
            process = self.processes.pop()
            process.kill()
            process.wait()


def _address(file: Path) -> str:
    """What the scheduler has written. It writes the file at once, but not in one go."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            return str(json.loads(file.read_text())["address"])
        except (OSError, ValueError):
            time.sleep(0.05)
    raise TimeoutError("the scheduler did not start")
