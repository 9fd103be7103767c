"""Address space of DRAM and CVSRAM regions, lanes for several images, pages.

Every byte that an engine touches is reached through :meth:`AddressSpace.view` or :meth:`AddressSpace.surface`,
which hand out numpy views (never copies) after checking the whole footprint against one region.

Lane 0 is what the firmware and the engines see. Lane i repeats it ``i * stride`` bytes further on: the bytes at an
address in lane 0 have their counterpart for another image at the same place of another lane.
"""

from __future__ import annotations

import bisect
import math
import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.errors import LinkError, shape_text
from nvdla.util.rounding import ceil_div

#: bytes that an overlapping cube may stand for where its region is smaller
OVERLAP_LIMIT = 1 << 26


class Space(str, Enum):
    """The two memories of NVDLA. Registers name them by RAM_TYPE: 0 = CVSRAM, 1 = MC (DRAM)."""

    DRAM = "dram"
    CVSRAM = "cvsram"

    @classmethod
    def from_ram_type(cls, ram_type: int) -> Space:
        """The memory that a RAM_TYPE register selects: 0 is CVSRAM."""
        return cls.DRAM if ram_type else cls.CVSRAM


@dataclass(frozen=True)
class Region:
    """One contiguous piece of memory: ``data`` is its bytes (uint8, writable, C-contiguous)."""

    name: str
    space: Space
    base: int
    data: np.ndarray = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of it."""
        return int(self.data.size)

    @property
    def end(self) -> int:
        """First address after the region."""
        return self.base + self.size

    def __str__(self) -> str:
        return f"{self.name} ({self.space.value} 0x{self.base:x}..0x{self.end:x}, {self.size} bytes)"


class LeavesRegion(LinkError):
    """An access that begins in a region and ends after it: hardware has no bounds."""


class AddressSpace:
    """Regions by address. Regions of one space never overlap.

    ``flat``: an access may leave its region for the next ones where their bytes follow each other in one array, as
    hardware would have it; ``noticed`` is called each time. Otherwise it raises LeavesRegion. ``address_bits``: width
    of the address bus, set by the machine that works on the memory; an access beyond it raises LinkError.
    """

    def __init__(self, flat: bool = False) -> None:
        self.flat = flat
        self.address_bits = 64
        self.noticed: Callable[[str], None] = lambda text: None
        self._regions: dict[Space, list[Region]] = {Space.DRAM: [], Space.CVSRAM: []}
        self._bases: dict[Space, list[int]] = {Space.DRAM: [], Space.CVSRAM: []}

    def map(self, name: str, space: Space, base: int, size: int, data: np.ndarray | None = None) -> Region:
        """Add a region of ``size`` bytes at ``base``; zero-filled unless ``data`` (uint8, writable) is given.

        Raises LinkError when it would overlap a region of the same space or leave the 64-bit address range.
        """
        if size <= 0 or base < 0 or base + size > 1 << 64:
            raise LinkError(f"region {name}: must be within the 64-bit address range, got base 0x{base:x}, size {size}")
        at = bisect.bisect_left(self._bases[space], base)
        for other in self._regions[space][max(at - 1, 0) : at + 1]:
            if base < other.end and other.base < base + size:
                raise LinkError(f"region {name} (0x{base:x}, {size} bytes): must not overlap region {other}")
        if data is None:
            data = np.zeros(size, np.uint8)
        region = Region(name, space, base, data)
        self._regions[space].insert(at, region)
        self._bases[space].insert(at, base)
        return region

    def regions(self, space: Space | None = None) -> list[Region]:
        """All regions in address order, of one space or of both (DRAM first)."""
        spaces = [space] if space is not None else [Space.DRAM, Space.CVSRAM]
        return [region for searched in spaces for region in self._regions[searched]]

    def find(self, space: Space, address: int, size: int, what: str = "access") -> Region:
        """The region that holds ``size`` bytes from ``address``. Raises LinkError naming region, address and size."""
        at = bisect.bisect_right(self._bases[space], address) - 1
        region = self._regions[space][at] if at >= 0 else None
        if region is None or address >= region.end:
            near = f"; the nearest region below is {region}" if region else ""
            # the firmware programs address 0 for a surface without an address index
            near += (
                "; surfaces without an address index have address 0, 'nvdla lint' names them" if address == 0 else ""
            )
            raise LinkError(f"{what}: no {space.value} region holds address 0x{address:x} ({size} bytes){near}")
        if size < 0 or address + size > region.end:
            return self._beyond(space, at, address, size, what)
        return region

    def _beyond(self, space: Space, at: int, address: int, size: int, what: str) -> Region:
        """The regions from number ``at`` on as one, for an access that leaves the first. Raises LinkError."""
        regions, text = self._regions[space], f"{what}: {size} bytes from {space.value} address 0x{address:x} end at"
        text += f" 0x{address + size:x}, outside region {regions[at]}"
        if not self.flat:
            raise LeavesRegion(text)
        first, last = regions[at], at
        while last < len(regions) - 1 and self._adjoin(regions[last], regions[last + 1]):
            if address + size <= regions[last].end:
                break
            last += 1
        if size < 0 or address + size > regions[last].end:
            raise LinkError(text)
        joined = regions[at : last + 1]
        self.noticed(f"{text}: hardware continues in {', '.join(region.name for region in joined[1:])}")
        whole = as_strided(first.data, (regions[last].end - first.base,), (1,), writeable=True)
        return Region(f"{first.name} to {regions[last].name}", space, first.base, whole)

    @staticmethod
    def _adjoin(region: Region, other: Region) -> bool:
        """Return whether a region follows another one, as its bytes do in the same array."""
        return region.end == other.base and region.data.ctypes.data + region.size == other.data.ctypes.data

    def _check_reach(self, address: int, size: int, what: str) -> None:
        """Raise LinkError for an access that the address bus cannot express."""
        if address + size > 1 << self.address_bits:
            raise LinkError(
                f"{what}: end: must fit {self.address_bits} address bits of the configuration, got "
                f"0x{address + size:x} from address 0x{address:x}. Lower the address (ADDR_HIGH registers)."
            )

    def view(self, space: Space, address: int, size: int, what: str = "access") -> np.ndarray:
        """A writable uint8 view of ``size`` bytes at ``address``."""
        self._check_reach(address, size, what)
        region = self.find(space, address, size, what)
        start = address - region.base
        return region.data[start : start + size]

    def surface(
        self,
        space: Space,
        address: int,
        shape: tuple[int, int, int, int],
        line_stride: int,
        surface_stride: int,
        what: str = "surface",
        *,
        repeats: bool = False,
    ) -> np.ndarray:
        """A writable uint8 view of a cube in feature layout, shape (surfaces, height, width, atom bytes).

        ``line_stride`` and ``surface_stride`` are in bytes. The whole footprint is checked, not only its start.
        A cube whose lines or surfaces overlap (strides of 0 do) may not stand for more bytes than its region or
        OVERLAP_LIMIT, unless it only ``repeats`` (a source that is never gathered in one piece).
        """
        surfaces, height, width, atom = shape
        if min(shape) <= 0:
            raise LinkError(
                f"{what}: cube: must not be empty, got surfaces x height x width x atom = {shape_text(shape)}"
            )
        if line_stride < 0 or surface_stride < 0:
            raise LinkError(f"{what}: strides: must not be negative, got line {line_stride}, surface {surface_stride}")
        footprint = (surfaces - 1) * surface_stride + (height - 1) * line_stride + width * atom
        self._check_reach(address, footprint, what)
        region = self.find(space, address, footprint, what)
        size = math.prod(shape)
        limit = max(region.size, OVERLAP_LIMIT)
        if size > limit and not repeats:
            raise LinkError(
                f"{what}: cube of {' x '.join(map(str, shape))} bytes: must have at most {limit} bytes in "
                f"{region}, got {size}. Line stride {line_stride} or surface stride {surface_stride} makes it "
                "overlap itself."
            )
        start = address - region.base
        flat = region.data[start : start + footprint]
        return as_strided(flat, shape, (surface_stride, line_stride, atom, 1), writeable=True)


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
    """Counts of the readers of each page: a page is released after its last reader."""

    def __init__(self, pages: Iterable[Pages], views: Iterable[np.ndarray]) -> None:
        self._pages = [
            (pages_of_memory, np.zeros(ceil_div(pages_of_memory.data.size, PAGE), np.int64))
            for pages_of_memory in pages
        ]
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
        """Yield for each view within pages: their counts, and the first page and the one after the last."""
        for view in views:
            for pages, counts in self._pages:
                start, size = view.ctypes.data - pages.data.ctypes.data, footprint(view)
                if 0 <= start < pages.data.size and size:
                    yield counts, pages, start // PAGE, ceil_div(start + size, PAGE)


class ConstantPages:
    """Memories that no run changes, by id. Their pages are released when every reader has its own copy."""

    def __init__(self) -> None:
        self._pages: dict[int, Pages] = {}
        self._released = False

    def reserve(self, memory_id: int, size: int) -> np.ndarray:
        """Return the bytes of a new memory, zero."""
        self._pages[memory_id] = Pages(size)
        return self._pages[memory_id].data

    def readers(self, views: Iterable[np.ndarray]) -> Readers:
        """Count the readers of each page, for :meth:`release`."""
        return Readers(self._pages.values(), views)

    def release(self, readers: Readers, views: Iterable[np.ndarray]) -> None:
        """Release the pages of which these counted views were the last."""
        self._released |= readers.done(views)

    def reload(self, load: Callable[[int], None]) -> None:
        """Load all memories again if any page was released."""
        if self._released:
            for memory_id in self._pages:
                load(memory_id)
            self._released = False


def footprint(view: np.ndarray) -> int:
    """Bytes from the first of a view to its last; strides are not negative, lines may overlap or have gaps."""
    if not view.size:
        return 0
    span = sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    return int(span) + view.itemsize


Thing = TypeVar("Thing")

_view: Callable[..., np.ndarray] = np.ndarray


class Lanes:
    """``count`` lanes of ``size`` bytes each, all zero."""

    def __init__(self, count: int, size: int) -> None:
        self._memory = np.zeros((count, size), np.uint8)
        self.count, self.stride = count, size

    def region(self, offset: int, size: int) -> np.ndarray:
        """``size`` bytes of lane 0 (uint8 view)."""
        return self._memory[0, offset : offset + size]

    def holds(self, view: np.ndarray) -> bool:
        """Return True when the first byte of the view is in lane 0."""
        return 0 <= self._offset(view) < self.stride

    def holds_all(self, view: np.ndarray) -> bool:
        """Return True when all bytes of the view are in lane 0."""
        return self.holds(view) and self._offset(view) + footprint(view) <= self.stride

    def at(self, view: np.ndarray, lane: int) -> np.ndarray:
        """The counterpart in ``lane`` of a view of lane 0; of another view itself."""
        if not self.holds(view):
            return view
        offset = lane * self.stride + self._offset(view)
        return _view(view.shape, view.dtype, self._memory, offset, view.strides)

    def across(self, view: np.ndarray, count: int) -> np.ndarray:
        """The counterparts in lanes 1 to ``count`` of a view of lane 0, (count, ...); of another view itself."""
        if not self.holds(view):
            return np.broadcast_to(view, (count, *view.shape))
        strides = (self.stride, *view.strides)
        return _view((count, *view.shape), view.dtype, self._memory, self.stride + self._offset(view), strides)

    def flat(self, view: np.ndarray, first: int, count: int) -> np.ndarray:
        """int8 bytes from where the view begins in lane ``first`` to where it ends ``count`` lanes further on.

        ``view``: uint8, of lane 0, strides not negative.
        """
        offset = first * self.stride + self._offset(view)
        return _view(((count - 1) * self.stride + footprint(view),), np.int8, self._memory, offset)

    def _offset(self, view: np.ndarray) -> int:
        return view.ctypes.data - self._memory.ctypes.data

    def counterpart(self, view: np.ndarray, target: Lanes) -> np.ndarray:
        """Return the view at the same place of lane 0 of ``target``; another view itself."""
        if not view.size or not self.holds(view):
            return view
        return _view(view.shape, view.dtype, target._memory, self._offset(view), view.strides)


class Move:
    """From the memories that change of one run to those of another that goes on at the same time.

    Calling it gives the counterpart of a view; constants, which both share, stay where they are.
    """

    def __init__(self, source: Lanes, target: Lanes) -> None:
        self._source, self._target = source, target
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, view: np.ndarray) -> np.ndarray:
        return self._source.counterpart(view, self._target)

    def once(self, thing: Thing, make: Callable[[], Thing]) -> Thing:
        """Return the counterpart of an object that several jobs share: ``make`` makes it for the first of them.

        (The thing is kept, so that no other can get its identity.)
        """
        if id(thing) not in self._made:
            self._made[id(thing)] = thing, make()
        counterpart: Thing = self._made[id(thing)][1]
        return counterpart
