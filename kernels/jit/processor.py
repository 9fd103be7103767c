"""Processor: features and usable cores.

The environment variable ``NVDLA_INT8`` selects one of :data:`SETS`, or "none" for matrix products in floating point. So
each set can be compared and tested on a processor that also has a faster one.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nvdla.errors import ConfigError

VARIABLE = "NVDLA_INT8"

SETS = {
    "amx": "AMX products of matrices",
    "avx512vnni": "AVX512-VNNI dot products",
    "avxvnni": "AVX-VNNI dot products",
    "avx2": "AVX2 multiplications of 16-bit numbers",
    "neon": "NEON dot products",
}
"""Description of each instruction set by name, best first."""


CPUINFO = Path("/proc/cpuinfo")
FLAGS = {
    "amx-int8": "amx_int8",
    "avx512vnni": "avx512_vnni",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avxvnni": "avx_vnni",
    "avx2": "avx2",
    "dotprod": "asimddp",
}
"""Linux's name of each feature by LLVM's name."""


def sets_of(features: Mapping[str, bool]) -> list[str]:
    """Return the names in SETS for a processor with these features (LLVM's names), best first."""

    def has(*names: str) -> bool:
        return all(features.get(name) for name in names)

    widest = has("avx512vnni", "avx512bw", "avx512vl")
    present = {
        "amx": widest and has("amx-int8"),
        "avx512vnni": widest,
        "avxvnni": has("avxvnni") or has("avx512vnni", "avx512vl"),  # the same instruction in another encoding
        "avx2": has("avx2"),
        "neon": has("dotprod"),
    }
    return [name for name in SETS if present[name]]


@cache
def dot_instructions() -> str | None:
    """Return the instruction set that kernels are compiled for.

    None if the processor has none, numba compiles for another processor, or ``NVDLA_INT8`` is "none". Raises
    ConfigError if ``NVDLA_INT8`` names a set that the processor does not have.
    """
    forced = os.environ.get(VARIABLE, "").lower()
    if forced == "none" or _compiles_for_another():
        return None
    present = sets_of(_features())
    if "amx" in present and forced in ("", "amx") and not _may_use_matrices():
        present.remove("amx")
    if forced and forced not in present:
        raise ConfigError(
            f"{VARIABLE}: not supported by this processor: must be {', '.join([*present, 'none'])}, got {forced!r}"
        )
    return forced or next(iter(present), None)


ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
"""System call of Linux on x86-64, its function that asks for registers, and the number of AMX's."""


def _may_use_matrices() -> bool:
    """Ask Linux for AMX's registers, which a process may use only then; its threads and forks may, too."""
    import ctypes

    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA) == 0


def _features() -> Mapping[str, bool]:
    """Return the features of this processor by LLVM's names.

    Prefer /proc/cpuinfo, since LLVM takes 50 ms and 20 MB.
    """
    flags = cpuinfo_flags(CPUINFO)
    if flags:
        return {name: flag in flags for name, flag in FLAGS.items()}
    import llvmlite.binding as llvm

    try:
        features: Mapping[str, bool] = llvm.get_host_cpu_features()
    except RuntimeError:
        features = {}
    return features


def cpuinfo_flags(path: Path) -> set[str]:
    """Return the flags (x86) or features (Arm) of the first processor in a file like /proc/cpuinfo, or none."""
    return set(" ".join(cpuinfo(path, "flags", "Features").values()).split())


def cpuinfo(path: Path, *names: str) -> dict[str, str]:
    """Return these fields of the first processor in a file like /proc/cpuinfo; empty without such a file."""
    fields: dict[str, str] = {}
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for line in itertools.islice(file, 100):
            name, _, value = line.partition(":")
            if name.strip() in names:
                fields.setdefault(name.strip(), value.strip())
    return fields


def _compiles_for_another() -> bool:
    """Check whether numba is configured for another processor, without importing numba if possible."""
    if "numba" in sys.modules or Path(".numba_config.yaml").exists():
        settings: Any = importlib.import_module("numba.core.config")
        return bool(settings.CPU_NAME or settings.CPU_FEATURES)
    return bool(os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES"))


CGROUPS = Path("/sys/fs/cgroup")
OF_PROCESS = Path("/proc/self/cgroup")


@cache
def usable_cores() -> int:
    """Return the number of usable cores, at least 1; round a container's quota up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(CGROUPS, OF_PROCESS)
    if quota is not None:
        cores = min(cores, math.ceil(quota))
    numba_threads = os.environ.get("NUMBA_NUM_THREADS", "")
    if numba_threads.isascii() and numba_threads.isdecimal():
        cores = min(cores, int(numba_threads))
    return max(1, cores)


def cpu_quota(root: Path, of_process: Path) -> float | None:
    """Return the least quota, in cores, of the process's control groups (version 2 or 1); None: no quota."""
    quotas = []
    for line in _text(of_process).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers if controllers and (root / controllers).is_dir() else root
        top = top if not controllers or top != root else root / "cpu"
        for folder in (top / path.strip("/"), *(top / path.strip("/")).parents):
            quotas.append(_quota(folder))
            if folder == top:
                break
    return min((quota for quota in quotas if quota), default=None)


def _quota(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split() or [
        _text(folder / "cpu.cfs_quota_us").strip(),
        _text(folder / "cpu.cfs_period_us").strip(),
    ]
    if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
        return int(words[0]) / int(words[1])
    return None  # "max", -1, or no such file


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
