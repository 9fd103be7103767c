"""How many cores this process may use: its affinity, the CPU quota of its container, NUMBA_NUM_THREADS."""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OF_PROCESS = Path("/proc/self/cgroup")


@cache
def usable_cores() -> int:
    """At least 1. A container's quota of one and a half cores counts as two."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(CGROUPS, OF_PROCESS)
    if quota is not None:
        found = min(found, math.ceil(quota))
    said = os.environ.get("NUMBA_NUM_THREADS", "")
    if said.isdecimal():
        found = min(found, int(said))
    return max(1, found)


def cpu_quota(root: Path, of_process: Path) -> float | None:
    """The least quota, in cores, of the control groups (version 2, or 1) that the process is in; None: no quota."""
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
