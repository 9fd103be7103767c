"""Directory of the compiled kernels, and the check of its permissions.

The cache contains machine code that the next process loads and runs. So a directory is used only if this user owns it
and no other user can write to it. The candidates, in this order:

1. ``NVDLA_CACHE_DIR`` (or ``NUMBA_CACHE_DIR``), where it is set;
2. ``__pycache__`` next to the kernels, from which Python runs code anyway;
3. ``nvdla/kernels`` below the user's cache directory (``XDG_CACHE_HOME``, ``~/.cache``; ``LOCALAPPDATA`` on Windows).
   For a package that pip has installed, this comes before ``__pycache__``: pip removes only files that it has written,
   and a directory ``nvdla`` that remains hides an editable installation.

Without a usable candidate, every process compiles its kernels again. Kernels are also loaded, not written, from the
system's directory (``/var/cache/nvdla/kernels``, or below ``NVDLA_SYSTEM_CACHE_DIR``), which root owns and
``nvdla cache warm-up --system`` fills.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path

SYSTEM_VARIABLE = "NVDLA_SYSTEM_CACHE_DIR"
DIGEST_BYTES = hashlib.sha256().digest_size
HERE = Path(__file__).resolve().parents[1]
"""The directory of the kernels."""


_chosen: list[Path] = []
"""The directory of :func:`use_system_folder`."""


@cache
def cache_folder() -> Path | None:
    """Return the existing, safe cache directory of this process, or None."""
    if _chosen:
        return _chosen[-1]
    for variable in ("NVDLA_CACHE_DIR", "NUMBA_CACHE_DIR"):
        if os.environ.get(variable):
            named = Path(os.environ[variable]).absolute() / _installation()
            reason = _usable(named)
            if reason:
                warnings.warn(f"{variable}: compiled kernels are not kept: {reason}", RuntimeWarning, stacklevel=2)
            return None if reason else named
    candidates = [HERE / "__pycache__", _user_folder() / _installation()]
    if {"site-packages", "dist-packages"} & set(HERE.parts):
        candidates.reverse()
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


def _unsafe(folder: Path, of_system: bool = False) -> str:
    """Return which other user could write to the directory or replace it, or "". Follow links.

    ``of_system``: it may belong to the administrator.
    """
    if not hasattr(os, "geteuid"):  # Windows: the user's profile has its own access lists
        return ""
    folder = Path(os.path.realpath(folder))
    for place in (folder, *folder.parents):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if status.st_uid not in (os.geteuid(), 0) or (
            place == folder and status.st_uid != os.geteuid() and not of_system
        ):
            return f"{place} belongs to user {status.st_uid}"
        if shared and (place == folder or not status.st_mode & stat.S_ISVTX):
            return f"{place} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def system_folder() -> Path | None:
    """Return the directory of the kernels that an administrator has compiled for all users; None on Windows."""
    if not hasattr(os, "geteuid"):
        return None
    default = "/Library/Caches/nvdla" if sys.platform == "darwin" else "/var/cache/nvdla"
    return Path(os.environ.get(SYSTEM_VARIABLE) or default).absolute() / "kernels" / _installation()


@cache
def cache_folders() -> tuple[Path, ...]:
    """Return the directories that kernels are loaded from: :func:`cache_folder`, and the system's if it is safe."""
    folders = [cache_folder(), system_folder()]
    return tuple(
        folder
        for number, folder in enumerate(folders)
        if folder is not None and (number == 0 or (folder.is_dir() and not _unsafe(folder, of_system=True)))
    )


def use_system_folder() -> str:
    """Write kernels to the system's directory from now on; return the reason why that is not possible, or ""."""
    folder = system_folder()
    if folder is None:
        return "this system has none"
    umask = os.umask(0o022)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        reason = _unsafe(folder) or ("" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} is not writable")
    except OSError as error:
        reason = f"{folder}: {error.strerror or error}"
    finally:
        os.umask(umask)
    if not reason:
        _chosen.append(folder)
        cache_folder.cache_clear()
        cache_folders.cache_clear()
    return reason


def kept_kernels() -> list[Path]:
    """Return the files of compiled kernels in the directory of this process."""
    folder = cache_folder()
    return [] if folder is None else sorted([*folder.glob("*.kernel"), *folder.glob("*.object")])


#: imports, the places of late imports, and harmless others; it begins with letters, since that is faster
_IMPORT = re.compile(r"nvdla\.kernels\.([\w.]+)(?: import|:)")


@cache
def source_digest(module: str) -> str:
    """Return the digest of a kernel module's source ("conv", "fast.dot_tile") and of all that it imports."""
    modules, pending = {module}, [module]
    while pending:
        new = of_source(pending.pop())[1] - modules
        modules |= new
        pending += new
    return hashlib.sha256("".join(of_source(name)[0] for name in sorted(modules)).encode()).hexdigest()


@cache
def of_source(module: str) -> tuple[str, set[str]]:
    """Return the digest of a module's name and source, and the modules that it imports."""
    text = source_of(module)
    return hashlib.sha256(f"{module}\0{text}".encode()).hexdigest(), set(_IMPORT.findall(text))


def source_of(module: str) -> str:
    """Return the source of a kernel module."""
    try:
        return HERE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    except OSError:  # a frozen application: the version has to do
        from nvdla import __version__

        return __version__


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of the cache; no process sees a part of it."""
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        if path.parent in _chosen:
            os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
