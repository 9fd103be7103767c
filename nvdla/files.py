"""Files are read with a size limit and appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nvdla.errors import FormatError


def read_file(path: str | os.PathLike[str], limit: int, what: str = "file") -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes. Raises FormatError naming path, size and limit."""
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise FormatError(f"{what} {os.fspath(path)} has {size} bytes, the limit is {limit}")
            data = stream.read(limit + 1)
    except OSError as error:
        raise FormatError(f"{what} {os.fspath(path)} cannot be read: {error.strerror or error}") from error
    if len(data) > limit:
        raise FormatError(f"{what} {os.fspath(path)} is longer than the limit of {limit} bytes")
    return data


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary stream whose content becomes ``path`` when the block ends well, and vanishes when it does not.

    The temporary file lies in the same folder, so the final rename is atomic. Raises FormatError for a folder or
    disk that cannot take it.
    """
    target = Path(path)
    temporary = ""
    try:
        target = target.resolve()  # a symbolic link keeps pointing where it did
        if target.exists() and not target.is_file():  # a device or pipe: there is nothing to replace
            with open(target, "wb") as stream:
                yield stream
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".part", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            yield stream
        _use_ordinary_mode(temporary, target)
        os.replace(temporary, target)
    except OSError as error:
        raise FormatError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            if temporary:
                os.unlink(temporary)


def _use_ordinary_mode(temporary: str, target: Path) -> None:
    """mkstemp makes private files; keep the mode of a file that is replaced, else what umask allows."""
    try:
        mode = target.stat().st_mode & 0o777
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    os.chmod(temporary, mode)


def write_file(path: str | os.PathLike[str], data: bytes | bytearray | memoryview) -> None:
    """Write ``data`` as ``path``, whole or not at all."""
    with whole_file(path) as stream:
        stream.write(data)
