"""Files and byte sources: reading, writing at once, paths.

A large file is mapped, not read; what is written from a mapping is let go of page by page, so that a conversion of any
file takes the memory of one piece.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import secrets
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nvdla.errors import ArgumentTypeError, FormatError, NvdlaError
from nvdla.util.rounding import align

CHUNK = 1 << 24
#: temporary files that exist now: who ends the process without unwinding removes them
UNFINISHED: set[str] = set()
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(data: bytes) -> Any:
    """Parse a JSON document.

    Raises:
        ValueError: it is not JSON, or it contains half of a surrogate pair, which no file or terminal takes.
        RecursionError: it is nested too deeply.
    """
    text = data.decode(json.detect_encoding(data))
    document = json.loads(text)
    if _SURROGATE.search(text):
        json.dumps(document, ensure_ascii=False).encode()
    return document


def read_file(path: str | os.PathLike[str], limit: int, what: str = "file") -> bytes:
    """The bytes of a file of at most ``limit`` bytes. Raises FormatError naming path, size and limit.

    Memory is taken as bytes arrive: a file that grows, a pipe or a device is read up to the limit and no further.
    """
    path = named(path, what)
    if packed := in_package(path):
        return packed_file(*packed, limit)
    try:
        with open(path, "rb") as stream:
            status = os.fstat(stream.fileno())
            refuse_device(status, f"{what} {path}")
            size = status.st_size
            if size > limit:
                raise FormatError(f"{what} {path}: must have at most {limit} bytes, got {size}")
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
        raise FormatError(f"{what} {path}: must have at most {limit} bytes, got more")
    return data


def named(path: str | os.PathLike[str], what: str) -> str:
    """A path as a str. Raises ArgumentTypeError for other types: a number would mean an open file."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise ArgumentTypeError(f"{what}: a path must be a str or os.PathLike, got {type(path).__name__}") from None


def refuse_device(status: os.stat_result, name: str, error: type[NvdlaError] = FormatError) -> None:
    """Raises ``error`` for a character device: /dev/zero gives bytes without end. Pipes, which end, are read."""
    if stat.S_ISCHR(status.st_mode):
        raise error(f"{name} must be a file or a pipe, got a device")


def require_file(path: str | os.PathLike[str], what: str) -> None:
    """Raises FormatError for a path that is there and no regular file. Who opens a pipe that a file names would wait
    for its other end; what is not there at all says so when it is opened."""
    path = named(path, what)
    if os.path.exists(path) and not os.path.isfile(path):
        raise FormatError(f"{what} {path} must be a file, got a directory, pipe or device")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary stream whose content becomes ``path`` when the block ends well, and vanishes when it does not.

    The temporary file is in the same directory, so the final rename is atomic. Raises FormatError for a folder or
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


def make_directory(path: str | os.PathLike[str]) -> None:
    """Create a directory and those above it. Raises FormatError."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise FormatError(f"directory {os.fspath(path)}: cannot be created: {error.strerror or error}") from None


def write_file(path: str | os.PathLike[str], data: bytes | bytearray | memoryview) -> None:
    """Write ``data`` as ``path``, whole or not at all."""
    with whole_file(path) as stream:
        stream.write(data)


def is_zip_file(path: str | os.PathLike[str]) -> bool:
    """Return True if a file begins as a zip file does; never a pipe, whose beginning can be read only once."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as stream:
            return stream.read(4) == b"PK\x03\x04"
    except OSError:
        return False


#: What the members of a package may unpack to: so much, and so many times the file.
FREELY_UNPACKED = 256 << 20
MAX_RATIO = 64
#: zipfile raises RuntimeError for an encrypted member and (as NotImplementedError) for a compression that it does not
#: know, EOFError, OSError and zlib's error for one that is cut off or damaged.
UNREADABLE_ZIP = (
    zipfile.BadZipFile, zipfile.LargeZipFile, RuntimeError, EOFError, OSError, ValueError, KeyError, zlib.error
)  # fmt: skip


def in_package(path: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Split the path of a file in a package: "net.nvpkg/part0.loadable" is ("net.nvpkg", "part0.loadable").

    Returns:
        None if the path is not below a zip file.
    """
    package, member = os.path.split(os.fspath(path))
    return (package, member) if package and member and is_zip_file(package) else None


def packed_files(package: str | os.PathLike[str], suffix: str = "") -> dict[str, int]:
    """Return the files of a package with this suffix and their sizes in bytes. Raises FormatError."""
    try:
        with zipfile.ZipFile(package) as archive:
            return {entry.filename: entry.file_size for entry in archive.infolist() if entry.filename.endswith(suffix)}
    except UNREADABLE_ZIP as error:
        raise FormatError(
            f"{os.fspath(package)}: must be an intact package of nvdla compile (cut off?): {error}"
        ) from None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Check whether a path is a regular file, or a file of a package."""
    packed = in_package(path)
    return packed[1] in packed_files(packed[0]) if packed else os.path.isfile(path)


def packed_file(package: str, member: str, limit: int) -> bytes:
    """Read a file of a package.

    Raises:
        FormatError: it does not exist, is damaged, or has more than ``limit`` bytes, :data:`FREELY_UNPACKED` bytes and
            :data:`MAX_RATIO` times the package.
    """
    where = f"{package}/{member}"
    limit = min(limit, FREELY_UNPACKED + MAX_RATIO * os.path.getsize(package))
    try:
        with zipfile.ZipFile(package) as archive:
            info = archive.getinfo(member)
            if info.file_size > limit:
                raise FormatError(f"{where}: size: must be at most {limit} bytes, got {info.file_size}")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise FormatError(f"{where}: compression: must be none or deflate, got method {info.compress_type}")
            return archive.read(info)
    except KeyError:
        raise FormatError(f"{where}: must be in the package, but is missing") from None
    except UNREADABLE_ZIP as error:
        raise FormatError(f"{where}: cannot be unpacked (cut off?): {error}") from None


#: Larger files are mapped, not read. A mapped file that another program shortens meanwhile ends the process (SIGBUS).
MAP_FROM = 1 << 26
#: A pipe is read to its end, once; a longer one must be saved to a file first.
MAX_PIPE = 1 << 33
#: A file of a package is unpacked in memory.
MAX_PACKED = 1 << 31
#: Bytes that are read, checked or written at a time.
PIECE = 1 << 23


@dataclass(frozen=True)
class Source:
    """Bytes of a container.

    Attributes:
        data: Read-only view; large files are mapped. Empty for a directory (an unpacked model library).
        path: Path of the file or directory; None for bytes.
    """

    data: memoryview
    path: Path | None = None

    @property
    def name(self) -> str:
        """The path, or how many bytes there are."""
        return str(self.path) if self.path is not None else f"<{len(self.data)} bytes>"

    @classmethod
    def of(cls, source: Source | str | os.PathLike[str] | bytes | bytearray | memoryview) -> Source:
        """Open a file, or wrap bytes.

        Large files are mapped. A pipe can be read only once: keep the Source to use its content again.

        Args:
            source: Path, bytes or an existing Source.

        Returns:
            The Source.

        Raises:
            FormatError: The file cannot be read, or the bytes are not contiguous.
        """
        if isinstance(source, Source):
            return source
        if isinstance(source, (bytes, bytearray, memoryview)):
            view = memoryview(source)
            if not view.contiguous:
                raise FormatError("the bytes of a container must be contiguous")
            return cls(view.toreadonly().cast("B") if view.nbytes else memoryview(b""))
        try:
            path = Path(source)
            if packed := in_package(path):
                return cls(memoryview(packed_file(*packed, MAX_PACKED)), path)
            if path.is_dir():
                return cls(memoryview(b""), path)
            with path.open("rb") as file:
                return cls(_content(file, str(path)), path)
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FormatError(f"{os.fspath(source)!r}: cannot be read: {reason}") from None


def _content(file: IO[bytes], name: str) -> memoryview:
    status = os.fstat(file.fileno())
    refuse_device(status, name)
    if not stat.S_ISREG(status.st_mode):
        return _held(file, name)
    if status.st_size > MAP_FROM:
        return mapped(file)
    return memoryview(file.read(status.st_size))


def _held(pipe: IO[bytes], name: str) -> memoryview:
    """Return the content of a pipe: in memory, or in an unnamed file if it is long."""
    spool = tempfile.SpooledTemporaryFile(MAP_FROM)  # noqa: SIM115 - the mapping keeps it
    total = 0
    while piece := pipe.read(PIECE):
        total += len(piece)
        if total > MAX_PIPE:
            raise FormatError(f"{name}: pipe: must give at most {MAX_PIPE} bytes. Save them to a file first.")
        spool.write(piece)
    spool.seek(0)
    if total <= MAP_FROM:
        return memoryview(spool.read())
    spool.flush()
    return mapped(spool)


def mapped(file: IO[bytes]) -> memoryview:
    """A read-only view on all of an open file that is not empty; it outlives the file object."""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def pieces_of(view: memoryview) -> Iterator[memoryview]:
    """The view piece by piece. Pages of a mapping are let go of when the next piece is asked for."""
    mapping = view.obj if isinstance(view.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED") else None
    for start in range(0, len(view), PIECE):
        piece = view[start : start + PIECE]
        yield piece
        if mapping is not None:
            _let_go(mapping, piece)


def _let_go(mapping: mmap.mmap, piece: memoryview) -> None:
    """Whole pages of the piece need not stay in memory; who looks again gets them from the file."""
    import numpy as np  # readers of files do without it

    base, at = (np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] for buffer in (mapping, piece))
    first = align(at - base, mmap.PAGESIZE)
    length = (at - base + len(piece) - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        mapping.madvise(mmap.MADV_DONTNEED, first, length)


def write_data(file: IO[bytes], data: bytes | memoryview) -> None:
    """Writes bytes without having them all in memory where they are mapped."""
    for piece in pieces_of(memoryview(data)):
        file.write(piece)
