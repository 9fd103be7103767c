"""Memory that can be given back to the operating system page by page, when nobody will read it any more."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

import numpy as np

from nvdla.rounding import ceil_div

PAGE = mmap.PAGESIZE
_CAN_GIVE_BACK = hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MAP_ANONYMOUS") and hasattr(mmap, "MADV_DONTNEED")


class Pages:
    """``size`` zero bytes, ``data`` (uint8). What has been given back is undefined until it is written again."""

    def __init__(self, size: int) -> None:
        self._mapping = None
        if _CAN_GIVE_BACK:
            self._mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.data = np.zeros(size, np.uint8) if self._mapping is None else np.frombuffer(self._mapping, np.uint8)

    def give_back(self, first: int, last: int) -> None:
        """Pages ``first`` to ``last`` - 1, where the system can take them."""
        if self._mapping is not None:
            end = min(last * PAGE, self.data.size)
            self._mapping.madvise(mmap.MADV_DONTNEED, first * PAGE, end - first * PAGE)


class Readers:
    """How often every page is still to be read: a page is given back after its last reader."""

    def __init__(self, pages: Iterable[Pages], views: Iterable[np.ndarray]) -> None:
        self._pages = [(each, np.zeros(ceil_div(each.data.size, PAGE), np.int64)) for each in pages]
        for counts, _, first, last in self._ranges(views):
            counts[first:last] += 1

    def done(self, views: Iterable[np.ndarray]) -> bool:
        """These views, which were counted, are not read again. True if anything was given back."""
        some = False
        for counts, pages, first, last in self._ranges(views):
            counts[first:last] -= 1
            unread = np.flatnonzero(counts[first:last] == 0) + first
            for run in np.split(unread, np.flatnonzero(np.diff(unread) > 1) + 1):
                if run.size:
                    pages.give_back(int(run[0]), int(run[-1]) + 1)
                    some = True
        return some

    def _ranges(self, views: Iterable[np.ndarray]) -> Iterable[tuple[np.ndarray, Pages, int, int]]:
        """For each view that lies in pages: their counts, and the first page and the one behind the last."""
        for view in views:
            for pages, counts in self._pages:
                start, size = view.ctypes.data - pages.data.ctypes.data, footprint(view)
                if 0 <= start < pages.data.size and size:
                    yield counts, pages, start // PAGE, ceil_div(start + size, PAGE)


def footprint(view: np.ndarray) -> int:
    """Bytes from the first of a view to its last; strides are not negative, lines may overlap or stand apart."""
    if not view.size:
        return 0
    span = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    return int(span) + view.itemsize
