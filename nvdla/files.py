"""Files are read with a size limit and appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nvdla.errors import FormatError

CHUNK = 1 << 24


def read_file(path: str | os.PathLike[str], limit: int, what: str = "file") -> bytes:
    """The bytes of a file of at most ``limit`` bytes. Raises FormatError naming path, size and limit.

    Memory is taken as bytes arrive: a file that grows, a pipe or a device is read up to the limit and no further.
    """
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limit:
                raise FormatError(f"{what} {os.fspath(path)} has {size} bytes, the limit is {limit}")
            data = stream.read(min(size + 1, limit + 1))
            if len(data) > size:  # no regular file, or one that grows
                pieces, total = [data], len(data)
                while total <= limit and (piece := stream.read(min(CHUNK, limit + 1 - total))):
                    pieces.append(piece)
                    total += len(piece)
                data = b"".join(pieces)
    except (OSError, ValueError, MemoryError) as error:  # ValueError: a name with a NUL
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise FormatError(f"{what} {os.fspath(path)} cannot be read: {reason}") from error
    if len(data) > limit:
        raise FormatError(f"{what} {os.fspath(path)} is longer than the limit of {limit} bytes")
    return data


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary stream whose content becomes ``path`` when the block ends well, and vanishes when it does not.

    The temporary file lies in the same folder, so the final rename is atomic. Raises FormatError for a folder or
    disk that cannot take it.
    """
    temporary = ""
    try:
        target = Path(path).resolve()  # a symbolic link keeps pointing where it did
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name with a NUL
        raise FormatError(f"{os.fspath(path)!r} cannot be written: {error}") from error
    try:
        if target.exists() and not target.is_file():  # a device or pipe: there is nothing to replace
            with open(target, "wb") as stream:
                yield stream
            return
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".part", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())  # the new name may not reach the disk before the bytes
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
