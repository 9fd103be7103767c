"""Cache of compiled kernels that tolerates concurrent processes and damaged files.

numba's own cache has one index for all specializations of a function. Two processes that compile at once can corrupt
it, a truncated file makes it unreadable, and it does not detect a change in another module that is compiled in.

Here every specialization is one file. Its name contains a digest of its inputs: the source of the module and of all
kernel modules that it imports, argument types, processor, numba's version and settings. Its first bytes are a checksum,
and it is written atomically. An unusable file causes a new compilation. :mod:`nvdla.kernels.jit.cache_folder` chooses
the directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import compiler
from numba.core.caching import NullCache
from numba.core.serialize import dumps

from nvdla.kernels.jit.cache_folder import DIGEST_BYTES, cache_folder, cache_folders, source_digest, write_whole
from nvdla.kernels.jit.kernel_times import kernel_times
from nvdla.kernels.jit.processor import dot_instructions

MAGIC = b"NVDLA kernel 1\n"


def _settings() -> tuple[object, ...]:
    """Return the versions and settings that determine the machine code."""
    config = numba.config
    names = ("OPT", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "THREADING_LAYER")
    versions = (numba.__version__, llvmlite.__version__, sys.version_info[:3])
    return versions, dot_instructions(), tuple(str(getattr(config, name, None)) for name in names)


class KernelCache(NullCache):
    """The compiled specializations of one kernel, with the interface of numba's caches."""

    def __init__(self, function: Callable[..., object]) -> None:
        module = function.__module__.removeprefix("nvdla.kernels.")
        code = function.__code__
        name = f"{module}.{function.__qualname__}-{code.co_firstlineno}".replace("<", "").replace(">", "")
        self._base = name
        self._stamp = source_digest(module)[:16]

    @property
    def cache_path(self) -> str:
        """The directory of compiled kernels."""
        return str(cache_folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the specialization for the argument types, or None without a usable one."""
        with kernel_times.loading(kernels=0):
            target_context.refresh()  # the first time it imports half of numba
        paths = [self._path(folder, sig, target_context.codegen()) for folder in cache_folders()]
        return next(filter(None, (self._loaded(path, sig, target_context) for path in paths)), None)

    def _loaded(self, path: Path, sig: Any, target_context: Any) -> Any:
        try:
            data = path.read_bytes()
            head = len(MAGIC) + DIGEST_BYTES
            if data[: len(MAGIC)] != MAGIC or hashlib.sha256(data[head:]).digest() != data[len(MAGIC) : head]:
                return None
            with kernel_times.loading():
                result = compiler.CompileResult._rebuild(target_context, *pickle.loads(data[head:]))
            return result if tuple(result.signature.args) == tuple(sig) else None
        except Exception:  # missing, unreadable or foreign: compile again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a specialization to the cache; ignore failures."""
        folder = cache_folder()
        if folder is None or data.library.has_dynamic_globals or any(not lifted.can_cache for lifted in data.lifted):
            return
        with contextlib.suppress(Exception):
            payload = dumps(data._reduce())
            write_whole(self._path(folder, sig, data.codegen), MAGIC + hashlib.sha256(payload).digest() + payload)
            self._drop_stale(folder)

    def _path(self, folder: Path, sig: Any, codegen: Any) -> Path:
        key = hashlib.sha256(repr((tuple(map(repr, sig)), codegen.magic_tuple(), _settings())).encode()).hexdigest()
        return folder / f"{self._base}.{self._stamp}.{key[:32]}.kernel"

    def _drop_stale(self, folder: Path) -> None:
        """Remove specializations of earlier sources."""
        for path in folder.glob(f"{self._base}.*.kernel"):
            if not path.name.startswith(f"{self._base}.{self._stamp}."):
                with contextlib.suppress(OSError):
                    path.unlink()
