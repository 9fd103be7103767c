"""The simulated memory: bounds-checked regions of DRAM (behind MCIF) and CVSRAM (behind CVIF).

Every byte that an engine touches is reached through :meth:`AddressSpace.view` or :meth:`AddressSpace.surface`,
which hand out numpy views (never copies) after checking the whole footprint against one region.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.errors import LinkError, shape_text

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
        """First address behind the region."""
        return self.base + self.size

    def __str__(self) -> str:
        return f"{self.name} ({self.space.value} 0x{self.base:x}..0x{self.end:x}, {self.size} bytes)"


class LeavesRegion(LinkError):
    """An access that begins in a region and ends behind it: hardware has no bounds."""


class AddressSpace:
    """Regions by address. Regions of one space never overlap.

    ``flat``: an access may leave its region for the next ones where their bytes follow each other in one array, as
    hardware would have it; ``noticed`` is told each time. Otherwise it raises LeavesRegion.
    """

    def __init__(self, flat: bool = False) -> None:
        self.flat = flat
        self.noticed: Callable[[str], None] = lambda text: None
        self._regions: dict[Space, list[Region]] = {Space.DRAM: [], Space.CVSRAM: []}
        self._bases: dict[Space, list[int]] = {Space.DRAM: [], Space.CVSRAM: []}

    def map(self, name: str, space: Space, base: int, size: int, data: np.ndarray | None = None) -> Region:
        """Add a region of ``size`` bytes at ``base``; zero-filled unless ``data`` (uint8, writable) is given.

        Raises LinkError when it would overlap a region of the same space or leave the 64-bit address range.
        """
        if size <= 0 or base < 0 or base + size > 1 << 64:
            raise LinkError(f"region {name}: base 0x{base:x} and size {size} are outside the 64-bit address range")
        at = bisect.bisect_left(self._bases[space], base)
        for other in self._regions[space][max(at - 1, 0) : at + 1]:
            if base < other.end and other.base < base + size:
                raise LinkError(f"region {name} (0x{base:x}, {size} bytes) overlaps region {other}")
        if data is None:
            data = np.zeros(size, np.uint8)
        region = Region(name, space, base, data)
        self._regions[space].insert(at, region)
        self._bases[space].insert(at, base)
        return region

    def regions(self, space: Space | None = None) -> list[Region]:
        """All regions in address order, of one space or of both (DRAM first)."""
        spaces = [space] if space is not None else [Space.DRAM, Space.CVSRAM]
        return [region for each in spaces for region in self._regions[each]]

    def find(self, space: Space, address: int, size: int, what: str = "access") -> Region:
        """The region that holds ``size`` bytes from ``address``. Raises LinkError naming region, address and size."""
        at = bisect.bisect_right(self._bases[space], address) - 1
        region = self._regions[space][at] if at >= 0 else None
        if region is None or address >= region.end:
            near = f"; the nearest region below is {region}" if region else ""
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
        self.noticed(f"{text}: hardware goes on in {', '.join(each.name for each in joined[1:])}")
        whole = as_strided(first.data, (regions[last].end - first.base,), (1,), writeable=True)
        return Region(f"{first.name} to {regions[last].name}", space, first.base, whole)

    @staticmethod
    def _adjoin(one: Region, other: Region) -> bool:
        """Whether a region follows another one, as its bytes do in the same array."""
        return one.end == other.base and one.data.ctypes.data + one.size == other.data.ctypes.data

    def view(self, space: Space, address: int, size: int, what: str = "access") -> np.ndarray:
        """A writable uint8 view of ``size`` bytes at ``address``."""
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

        ``line_stride`` and ``surface_stride`` are in bytes. The whole footprint is checked, not only its start; and
        a cube whose lines or surfaces overlap (strides of 0 do) may not stand for more bytes than its region or
        OVERLAP_LIMIT, unless it only ``repeats`` (a source that is never gathered in one piece).
        """
        surfaces, height, width, atom = shape
        if min(shape) <= 0:
            raise LinkError(f"{what}: a cube of surfaces x height x width x atom = {shape_text(shape)} is empty")
        if line_stride < 0 or surface_stride < 0:
            raise LinkError(f"{what}: negative stride (line {line_stride}, surface {surface_stride})")
        footprint = (surfaces - 1) * surface_stride + (height - 1) * line_stride + width * atom
        region = self.find(space, address, footprint, what)
        size = math.prod(shape)
        limit = max(region.size, OVERLAP_LIMIT)
        if size > limit and not repeats:
            raise LinkError(
                f"{what}: a cube of {' x '.join(map(str, shape))} bytes has {size}, the limit is {limit} in "
                f"{region}: line stride {line_stride} or surface stride {surface_stride} makes it overlap itself"
            )
        start = address - region.base
        flat = region.data[start : start + footprint]
        return as_strided(flat, shape, (surface_stride, line_stride, atom, 1), writeable=True)
