"""Where compiled kernels are kept, and who may write there.

What lies in the cache is machine code that the next process loads and runs, so a folder is only used if nobody but
its owner can put something into it, and its owner is this user. In this order:

1. ``NVDLA_CACHE_DIR`` (or ``NUMBA_CACHE_DIR``), where it is set;
2. ``__pycache__`` beside the kernels, from which Python runs code anyway;
3. ``nvdla/kernels`` below the user's cache folder (``XDG_CACHE_HOME``, ``~/.cache``; ``LOCALAPPDATA`` on Windows).

None of them: kernels are compiled anew in every process.
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
"""The folder of the kernels."""


@cache
def cache_folder() -> Path | None:
    """The folder of this process; it exists, and is safe. None where there is none."""
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
    """A name for this copy of the kernels, since copies may share the user's folder."""
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
    """Why a folder (made here, private, if it is missing) cannot be used; "" if it can."""
    try:
        reason = _unsafe(folder)
        if reason:
            return reason
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = _unsafe(folder)  # again: somebody else may have been faster
        if not reason and not os.access(folder, os.W_OK | os.X_OK):
            reason = f"{folder} is not writable"
        return reason
    except OSError as error:
        return f"{folder}: {error.strerror or error}"


def _unsafe(folder: Path) -> str:
    """Who else could put files into the folder, or put another folder in its place. Links are followed."""
    if not hasattr(os, "geteuid"):  # Windows: the user's profile has its own access lists
        return ""
    folder = Path(os.path.realpath(folder))
    for place in (folder, *folder.parents):
        try:
            found = place.stat()
        except FileNotFoundError:
            continue
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid not in (os.geteuid(), 0) or (place == folder and found.st_uid != os.geteuid()):
            return f"{place} belongs to user {found.st_uid}"
        if shared and (place == folder or not found.st_mode & stat.S_ISVTX):
            return f"{place} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def kept_kernels() -> list[Path]:
    """The files of compiled kernels in the folder of this process."""
    folder = cache_folder()
    return [] if folder is None else sorted(folder.glob("*.kernel"))
