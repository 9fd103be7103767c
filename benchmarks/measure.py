"""Measuring: interleaved timing, the machine's description, separate processes."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm")
SETTLE, BLOCK = 0.1, 0.04
"""Seconds: between two blocks, so that worker threads of the one before stop spinning (onnxruntime's do so for 40 ms on
Zen 4, where a pause takes longer than elsewhere; with 20 ms they held a core during half of the next block); of a block
of runs."""


class Seconds(float):
    """A median of times. ``noise``: how far, relatively, the quartiles differ from it; ``best``: the least."""

    noise: float
    best: float

    @classmethod
    def of(cls, times: list[float]) -> Seconds:
        made = cls(median(times))
        lower, _, upper = quantiles(times, n=4) if len(times) > 1 else (times * 3)
        made.noise, made.best = (upper - lower) / 2 / made, min(times)
        return made


BUSY_SETTLE = 0.4
"""The same where such a thread gets a third of a core."""


def interleaved(
    works: Mapping[str, Callable[[], Any]],
    seconds: float,
    least: int = 5,
    warm: int = 2,
    settle: float = SETTLE,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Seconds]:
    """Median seconds of each piece of work, measured in turns (A B A B ...), so that a disturbance meets all alike.

    A turn is a block of runs, the first of which is not counted (the other has had the caches) unless runs are long.
    ``warm`` runs of each come before all that. Turns go on for ``seconds``, but there are at least ``least``.
    ``settle``: seconds between two blocks. ``clock``: ``time.process_time`` for the processor time of this process.
    """
    for _ in range(warm):
        for work in works.values():
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    began, turns = time.perf_counter(), 0
    while turns < least or time.perf_counter() - began < seconds:
        for name, work in works.items():
            time.sleep(settle)
            times[name] += _block(work, clock)
        turns += 1
    return {name: Seconds.of(values) for name, values in times.items()}


def _block(work: Callable[[], Any], clock: Callable[[], float]) -> list[float]:
    """Seconds of runs one after the other, without the first where there are others."""
    times: list[float] = []
    while sum(times) < BLOCK or (len(times) == 1 and times[0] < 10 * BLOCK):
        start = clock()
        work()
        times.append(clock() - start)
    return times[1:] or times


def machine(threads: int) -> dict[str, Any]:
    """Description of the machine. ``peak_float32_gflops``: a product of 2048 x 2048 matrices, best of five."""
    names = ("numpy", "numba", "llvmlite", "onnx", "onnxruntime", "nvdla")
    flags = _cpuinfo("flags") or _cpuinfo("Features")
    return {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "family_model": f"{_cpuinfo('cpu family')}/{_cpuinfo('model')}",
        "cores": os.cpu_count(),
        "threads": threads,
        "features": [name for name in FEATURES if name in flags.split()],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "commit": _commit(),
        "load": [round(each, 2) for each in os.getloadavg()],
        "peak_float32_gflops": round(float32_peak(), 1),
    }


def float32_peak(size: int = 2048) -> float:
    """10^9 operations per second of numpy's matrix product, as a measure of what the cores can do in float32."""
    import numpy as np

    a = np.random.default_rng(0).standard_normal((size, size), np.float32)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best / 1e9


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == key), "")


def _commit() -> str | None:
    """The commit of the checkout; None where there is none."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def process(words: list[str], environment: Mapping[str, str] | None = None) -> tuple[float, str]:
    """Wall seconds and standard output of a new process. Raises CalledProcessError when it fails."""
    began = time.perf_counter()
    done = subprocess.run(words, check=True, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    return time.perf_counter() - began, done.stdout


def python(code: str, *words: str) -> str:
    """Standard output of Python code in a new process."""
    return process([sys.executable, "-c", code, *words])[1]


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Run next to ``count`` processes that do nothing but spin, at the same priority."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.2)
        yield
    finally:
        for each in processes:
            each.kill()
            each.wait()


def peak_memory() -> int:
    """Bytes of the largest resident set of this process so far.

    Not ru_maxrss where there is something better: a process that is started by another begins with that one's.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
