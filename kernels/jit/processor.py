"""Which of the processor's instructions multiply bytes: the best set that it has, or the one that is asked for.

``NVDLA_INT8`` in the environment names one of :data:`SETS`, or "none" for matrix products in floating point: to compare
them, and to test each on a processor that has better ones.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nvdla.errors import ConfigError

VARIABLE = "NVDLA_INT8"

SETS = {
    "avx512vnni": "AVX512-VNNI dot products",
    "avxvnni": "AVX-VNNI dot products",
    "avx2": "AVX2 multiplications of 16-bit numbers",
    "neon": "NEON dot products",
}
"""Sets of instructions by name, best first, and what they are in words."""


CPUINFO = Path("/proc/cpuinfo")
FLAGS = {
    "avx512vnni": "avx512_vnni",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avxvnni": "avx_vnni",
    "avx2": "avx2",
    "dotprod": "asimddp",
}
"""LLVM's names of features, and those of Linux."""


def sets_of(features: Mapping[str, bool]) -> list[str]:
    """Those that a processor with these features has (LLVM's names), best first."""

    def has(*names: str) -> bool:
        return all(features.get(name) for name in names)

    found = {
        "avx512vnni": has("avx512vnni", "avx512bw", "avx512vl"),
        "avxvnni": has("avxvnni") or has("avx512vnni", "avx512vl"),  # the same instruction in another encoding
        "avx2": has("avx2"),
        "neon": has("dotprod"),
    }
    return [name for name in SETS if found[name]]


@cache
def dot_instructions() -> str | None:
    """The set that kernels are compiled for; None where there is none, numba compiles for another processor, or none
    is wanted. Raises ConfigError where one is asked for that the processor does not have."""
    wanted = os.environ.get(VARIABLE, "").lower()
    if wanted == "none" or _compiles_for_another():
        return None
    found = sets_of(_features())
    if wanted and wanted not in found:
        raise ConfigError(
            f"{VARIABLE} is {wanted!r}: this processor has {', '.join(found) or 'no such set'}, or say none"
        )
    return wanted or next(iter(found), None)


def _features() -> Mapping[str, bool]:
    """What this processor has, by LLVM's names: from Linux where it says so, since LLVM takes 50 ms and 20 MB."""
    told = flags_told(CPUINFO)
    if told:
        return {name: flag in told for name, flag in FLAGS.items()}
    import llvmlite.binding as llvm

    try:
        found: Mapping[str, bool] = llvm.get_host_cpu_features()
    except RuntimeError:
        found = {}
    return found


def flags_told(path: Path) -> set[str]:
    """The flags (x86) or features (Arm) of the first processor in a file like /proc/cpuinfo; none where it has none."""
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for line in itertools.islice(file, 100):
            name, _, words = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(words.split())
    return set()


def _compiles_for_another() -> bool:
    """True where numba was told to compile for another processor; numba itself is only asked if it must be."""
    if "numba" in sys.modules or Path(".numba_config.yaml").exists():
        settings: Any = importlib.import_module("numba.core.config")
        return bool(settings.CPU_NAME or settings.CPU_FEATURES)
    return bool(os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES"))
