"""What lies in the memories at one moment of a program: what is loaded, and the pages that changed since.

A network's weights are most of its memory and never change, so that a state takes little besides them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from nvdla.csb.program import Segment
from nvdla.memory.address_space import Space
from nvdla.rounding import align, ceil_div

PAGE = 4096
PIECE = 1 << 18
"""Bytes that are looked at together."""

Live = Callable[[Space, int, int], np.ndarray]
Pages = Mapping[Space, Mapping[int, np.ndarray]]


@dataclass(frozen=True)
class MemoryState:
    """Memories of ``sizes`` bytes that hold ``loaded`` (the later one wins where two overlap), and over it the pages
    ``changed``, by memory and number."""

    sizes: Mapping[Space, int]
    loaded: tuple[Segment, ...] = field(repr=False)
    changed: Pages = field(repr=False, default_factory=dict)

    def read(self, space: Space, start: int, end: int) -> np.ndarray:
        """A copy of the bytes from ``start`` up to ``end``."""
        found = np.zeros(end - start, np.uint8)
        for each in self.loaded:
            if each.space is space:
                _lay(found, start, each.offset, each.data)
        changed = self.changed.get(space, {})
        for page in range(start // PAGE, ceil_div(end, PAGE)) if changed else ():
            if page in changed:
                _lay(found, start, page * PAGE, changed[page])
        return found

    def pieces(self, space: Space, start: int = 0, end: int | None = None) -> Iterator[np.ndarray]:
        """The bytes from ``start`` to ``end`` (the memory's) in pieces of PIECE bytes."""
        stop = self.sizes[space] if end is None else end
        for at in range(start, stop, PIECE):
            yield self.read(space, at, min(at + PIECE, stop))

    def crc32(self, space: Space, start: int, end: int) -> int:
        """CRC-32 of the bytes from ``start`` to ``end``."""
        crc = 0
        for piece in self.pieces(space, start, end):
            crc = zlib.crc32(piece.data, crc)
        return crc

    def filled(self, space: Space) -> list[tuple[int, int]]:
        """(start, end) of the pages that hold anything but zeros, neighbours together."""
        pages: list[int] = []
        for number, piece in enumerate(self.pieces(space)):
            pages += (np.flatnonzero(_by_page(piece).any(axis=1)) + number * (PIECE // PAGE)).tolist()
        return stretches(pages, self.sizes[space])

    def end(self, space: Space) -> int:
        """The byte behind the last one that is not zero."""
        for start in range((self.sizes[space] - 1) // PIECE * PIECE, -1, -PIECE):
            used = np.flatnonzero(self.read(space, start, min(start + PIECE, self.sizes[space])))
            if used.size:
                return start + int(used[-1]) + 1
        return 0

    def now(self, live: Live) -> MemoryState:
        """The state of memories whose bytes ``live(space, start, end)`` gives."""
        changed = {space: dict(self.changed.get(space, {})) for space in self.sizes}
        for space, size in self.sizes.items():
            for start in range(0, size, PIECE):
                end = min(start + PIECE, size)
                there = live(space, start, end)
                other = (_by_page(self.read(space, start, end)) != _by_page(there)).any(axis=1)
                for page in np.flatnonzero(other).tolist():
                    changed[space][start // PAGE + page] = there[page * PAGE : (page + 1) * PAGE].copy()
        return MemoryState(self.sizes, self.loaded, changed)

    def changes(self, before: MemoryState, space: Space) -> list[tuple[int, int]]:
        """(start, end) of the pages that differ from an earlier state, neighbours together."""
        known = before.changed.get(space, {})
        pages = [page for page, data in self.changed.get(space, {}).items() if known.get(page) is not data]
        return stretches(sorted(pages), self.sizes[space])


def stretches(pages: list[int], size: int) -> list[tuple[int, int]]:
    """(start, end) in bytes of ascending page numbers, neighbours together; the last ends with the memory."""
    found: list[list[int]] = []
    for page in pages:
        start, end = page * PAGE, min((page + 1) * PAGE, size)
        if found and found[-1][1] == start:
            found[-1][1] = end
        else:
            found.append([start, end])
    return [(start, end) for start, end in found]


def _lay(target: np.ndarray, start: int, offset: int, data: np.ndarray) -> None:
    """Put what lies at ``offset`` where it meets ``target``, which begins at ``start``."""
    low, high = max(start, offset), min(start + target.size, offset + data.size)
    if low < high:
        target[low - start : high - start] = data[low - offset : high - offset]


def _by_page(data: np.ndarray) -> np.ndarray:
    """(pages, PAGE); the last one is filled up with zeros."""
    if data.size % PAGE:
        data = np.concatenate([data, np.zeros(align(data.size, PAGE) - data.size, np.uint8)])
    return data.reshape(-1, PAGE)
