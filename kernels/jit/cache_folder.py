"""Directory of the compiled kernels, and the check of its permissions.

The cache contains machine code that the next process loads and runs. So a directory is used only if this user owns it
and no other user can write to it. The candidates, in this order:

1. ``NVDLA_CACHE_DIR`` (or ``NUMBA_CACHE_DIR``), where it is set;
2. ``__pycache__`` next to the kernels, from which Python runs code anyway;
3. ``nvdla/kernels`` below the user's cache directory (``XDG_CACHE_HOME``, ``~/.cache``; ``LOCALAPPDATA`` on Windows).

Without a usable candidate, every process compiles its kernels again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import warnings
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
"""The directory of the kernels."""


@cache
def cache_folder() -> Path | None:
    """Return the existing, safe cache directory of this process, or None."""
    for variable in ("NVDLA_CACHE_DIR", "NUMBA_CACHE_DIR"):
        if os.environ.get(variable):
            named = Path(os.environ[variable]).absolute() / _installation()
            reason = _usable(named)
            if reason:
                warnings.warn(f"{variable}: compiled kernels are not kept: {reason}", RuntimeWarning, stacklevel=2)
            return None if reason else named
    candidates = (HERE / "__pycache__", _user_folder() / _installation())
    return next((folder for folder in candidates if not _usable(folder)), None)


def _installation() -> str:
    """Return a name for this copy of the kernels, since copies may share the user's directory."""
    return hashlib.sha256(str(HERE).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _user_folder() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expanduser(base)).absolute() / "nvdla" / "kernels"


def _usable(folder: Path) -> str:
    """Create the directory, private, if it is missing; return the reason that it cannot be used, or ""."""
    try:
        reason = _unsafe(folder)
        if reason:
            return reason
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = _unsafe(folder)  # again: another process may have created it meanwhile
        if not reason and not os.access(folder, os.W_OK | os.X_OK):
            reason = f"{folder} is not writable"
        return reason
    except OSError as error:
        return f"{folder}: {error.strerror or error}"


def _unsafe(folder: Path) -> str:
    """Return which other user could write to the directory or replace it, or "". Follow links."""
    if not hasattr(os, "geteuid"):  # Windows: the user's profile has its own access lists
        return ""
    folder = Path(os.path.realpath(folder))
    for place in (folder, *folder.parents):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid not in (os.geteuid(), 0) or (place == folder and status.st_uid != os.geteuid()):
            return f"{place} belongs to user {status.st_uid}"
        if shared and (place == folder or not status.st_mode & stat.S_ISVTX):
            return f"{place} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def kept_kernels() -> list[Path]:
    """Return the files of compiled kernels in the directory of this process."""
    folder = cache_folder()
    return [] if folder is None else sorted(folder.glob("*.kernel"))
