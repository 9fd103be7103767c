"""Where a container's bytes come from, and how they go to a file: mapped, viewed, written piece by piece.

A large file is mapped, not read; what is written from a mapping is let go of page by page, so that a conversion takes
the memory of one piece, whatever the size of the file.
"""

from __future__ import annotations

import mmap
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from nvdla.errors import FormatError
from nvdla.files import refuse_device
from nvdla.rounding import align

#: Larger files are mapped, not read. A mapped file that another program shortens meanwhile ends the process (SIGBUS).
MAP_FROM = 1 << 26
#: A pipe is read to its end, once; a longer one must be saved to a file first.
MAX_PIPE = 1 << 33
#: Bytes that are read, checked or written at a time.
PIECE = 1 << 23


@dataclass(frozen=True)
class Source:
    """Where a container's bytes are: a read-only view (mapped when it is a large file), and its path if it has one.
    A directory (an unpacked model library) has a path and no data."""

    data: memoryview
    path: Path | None = None

    @property
    def name(self) -> str:
        """The path, or how many bytes there are."""
        return str(self.path) if self.path is not None else f"<{len(self.data)} bytes>"

    @classmethod
    def of(cls, source: Source | str | os.PathLike[str] | bytes | bytearray | memoryview) -> Source:
        """A path is mapped, bytes are viewed; FormatError where the file cannot be read. A pipe is read once: who needs
        it again keeps the Source."""
        if isinstance(source, Source):
            return source
        if isinstance(source, (bytes, bytearray, memoryview)):
            view = memoryview(source)
            if not view.contiguous:
                raise FormatError("the bytes of a container must be contiguous")
            return cls(view.toreadonly().cast("B") if view.nbytes else memoryview(b""))
        try:
            path = Path(source)
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
    """What comes out of a pipe, held once: in memory, or where it is long in a file that has no name."""
    spool = tempfile.SpooledTemporaryFile(MAP_FROM)  # noqa: SIM115 - the mapping keeps it
    total = 0
    while piece := pipe.read(PIECE):
        total += len(piece)
        if total > MAX_PIPE:
            raise FormatError(f"{name}: more than {MAX_PIPE} bytes come out of the pipe; save them to a file first")
        spool.write(piece)
    spool.seek(0)
    if total <= MAP_FROM:
        return memoryview(spool.read())
    spool.flush()
    return mapped(spool)


def mapped(file: Any) -> memoryview:
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
    base, at = (np.frombuffer(each, np.uint8).__array_interface__["data"][0] for each in (mapping, piece))
    first = align(at - base, mmap.PAGESIZE)
    length = (at - base + len(piece) - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if length > 0:
        mapping.madvise(mmap.MADV_DONTNEED, first, length)


def write_data(file: Any, data: bytes | memoryview) -> None:
    """Writes bytes without having them all in memory where they are mapped."""
    for piece in pieces_of(memoryview(data)):
        file.write(piece)
