"""Files are read with a size limit and appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from nvdla.errors import ArgumentTypeError, FormatError, NvdlaError

CHUNK = 1 << 24
#: temporary files that exist now: who ends the process without unwinding removes them
UNFINISHED: set[str] = set()


def read_file(path: str | os.PathLike[str], limit: int, what: str = "file") -> bytes:
    """The bytes of a file of at most ``limit`` bytes. Raises FormatError naming path, size and limit.

    Memory is taken as bytes arrive: a file that grows, a pipe or a device is read up to the limit and no further.
    """
    path = named(path, what)
    try:
        with open(path, "rb") as stream:
            status = os.fstat(stream.fileno())
            refuse_device(status, f"{what} {path}")
            size = status.st_size
            if size > limit:
                raise FormatError(f"{what} {path} has {size} bytes, the limit is {limit}")
            data = stream.read(min(size + 1, limit + 1))
            if len(data) > size:  # no regular file, or one that grows
                pieces, total = [data], len(data)
                while total <= limit and (piece := stream.read(min(CHUNK, limit + 1 - total))):
                    pieces.append(piece)
                    total += len(piece)
                data = b"".join(pieces)
    except (OSError, ValueError, MemoryError) as error:  # ValueError: a name with a NUL
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise FormatError(f"{what} {path} cannot be read: {reason}") from error
    if len(data) > limit:
        raise FormatError(f"{what} {path} is longer than the limit of {limit} bytes")
    return data


def named(path: str | os.PathLike[str], what: str) -> str:
    """A path as a str. Raises ArgumentTypeError for what is none: a number would be taken for an open file."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise ArgumentTypeError(f"{what}: a path is a str or os.PathLike, not {type(path).__name__}") from None


def refuse_device(status: os.stat_result, name: str, error: type[NvdlaError] = FormatError) -> None:
    """Raises ``error`` for a character device: /dev/zero gives bytes without end. Pipes, which end, are read."""
    if stat.S_ISCHR(status.st_mode):
        raise error(f"{name} is a device, not a file; files and pipes are read")


def require_file(path: str | os.PathLike[str], what: str) -> None:
    """Raises FormatError for a path that is there and no regular file. Who opens a pipe that a file names would wait
    for its other end; what is not there at all says so when it is opened."""
    path = named(path, what)
    if os.path.exists(path) and not os.path.isfile(path):
        raise FormatError(f"{what} {path} is a folder, pipe or device, not a file")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary stream whose content becomes ``path`` when the block ends well, and vanishes when it does not.

    The temporary file lies in the same folder, so the final rename is atomic. Raises FormatError for a folder or
    disk that cannot take it.
    """
    temporary, path = "", named(path, "file")
    try:
        target = Path(path).resolve()  # a symbolic link keeps pointing where it did
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name with a NUL
        raise FormatError(f"{path!r} cannot be written: {error}") from error
    try:
        if target.exists() and not target.is_file():  # a device or pipe: there is nothing to replace
            with open(target, "wb") as stream:
                yield stream
            return
        # Named before it is there: Ctrl-C while it is being made must find the name.
        temporary = str(target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.part"))
        UNFINISHED.add(temporary)
        with os.fdopen(os.open(temporary, _NEW, _mode(target)), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())  # the new name may not reach the disk before the bytes
        _keep_mode(temporary, target)
        os.replace(temporary, target)
    except OSError as error:
        raise FormatError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            if temporary:
                os.unlink(temporary)
        UNFINISHED.discard(temporary)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def _mode(target: Path) -> int:
    """A new file has the mode that the umask leaves; one that replaces another is private until it has that one's."""
    return 0o600 if target.exists() else 0o666


def _keep_mode(temporary: str, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.chmod(temporary, target.stat().st_mode & 0o777)


def write_file(path: str | os.PathLike[str], data: bytes | bytearray | memoryview) -> None:
    """Write ``data`` as ``path``, whole or not at all."""
    with whole_file(path) as stream:
        stream.write(data)


def is_zip_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a zip file does; never a pipe, whose beginning can be read only once."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as stream:
            return stream.read(4) == b"PK\x03\x04"
    except OSError:
        return False
