"""Bytes of a file that need not stay in memory: whoever asks for them later gets them from the file again.

They are read, not mapped: a mapped file that somebody shortens ends the process that touches its pages (SIGBUS). What
is read is compared with checksums made at loading, so a file that was changed in place is an error, never another
result. One that was replaced or removed is still there for whoever has it open.
"""

from __future__ import annotations

import mmap
import os
import weakref
import zlib

from nvdla.errors import LoadableError
from nvdla.rounding import ceil_div

PIECE = 1 << 16
CAN_STAY_OPEN = hasattr(os, "pread")  # an open file can be replaced and removed where this is


class StoredFile:
    """A file that was read, kept open as long as this object lives. ``handle``: its own descriptor, closed at the end;
    ``data``: what the file holds."""

    def __init__(self, name: str, handle: int, data: memoryview) -> None:
        self.name, self._handle, self._size = name, handle, len(data)
        self._sums = [zlib.crc32(data[at : at + PIECE]) for at in range(0, len(data), PIECE)]
        weakref.finalize(self, os.close, handle)

    def copy(self, offset: int, target: memoryview) -> None:
        """What the file held from byte ``offset`` on to ``target``, piece by piece: LoadableError for one that is not
        what it was."""
        end = offset + len(target)
        for number in range(offset // PIECE, ceil_div(end, PIECE)):
            at = number * PIECE
            piece = self._piece(at)
            if zlib.crc32(piece) != self._sums[number] or len(piece) != min(PIECE, self._size - at):
                raise LoadableError(
                    f"{self.name}: bytes {at} to {at + PIECE} have changed since the file was loaded; load it again"
                )
            first, last = max(at, offset), min(at + PIECE, end)
            target[first - offset : last - offset] = piece[first - at : last - at]

    def _piece(self, at: int) -> bytes:
        try:
            return os.pread(self._handle, PIECE, at)[: self._size - at]
        except OSError as error:
            raise LoadableError(f"{self.name}: cannot be read again: {error.strerror or error}") from None


class StoredBytes:
    """What a file has from byte ``offset`` on; ``data`` is held until it is forgotten."""

    def __init__(self, file: StoredFile, offset: int, data: memoryview) -> None:
        self.size = len(data)
        self._file, self._offset = file, offset
        self._held: memoryview | None = data

    def view(self) -> memoryview:
        """The bytes, read-only; held from now on. Raises LoadableError where the file has other ones now."""
        held = self._held
        if held is None:
            memory = anonymous(self.size)
            self._file.copy(self._offset, memory)
            self._held = held = memory.toreadonly()
        return held

    def copy_to(self, target: memoryview) -> None:
        """Write the bytes to ``target`` (as many), and hold no more than before. Raises LoadableError."""
        held = self._held
        if held is None:
            self._file.copy(self._offset, target)
        else:
            target[:] = held

    def forget(self) -> None:
        """Hold nothing: who has a view keeps it."""
        self._held = None


def anonymous(size: int) -> memoryview:
    """``size`` > 0 zero bytes that go back to the system when nobody holds them any more."""
    return memoryview(mmap.mmap(-1, size))
