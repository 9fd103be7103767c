"""The flat memory behind a trace.

NVIDIA's testbench answers at every address; a trace only says which ranges it loads and checks, and surfaces reach
beyond those. So each range gets room behind it, ranges that come to touch become one region, and an address that no
range foresaw gets a region of its own when it is first used. All of it together stays below a limit. Room that is
never touched costs nothing: the operating system gives zeroed pages on first use.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import numpy as np

from nvdla.errors import LinkError, TraceError
from nvdla.limits import Limits
from nvdla.memory.address_space import AddressSpace, Region, Space
from nvdla.rounding import align

PAGE = 4096
ROOM = 16 << 20  # bytes behind each range
_CHUNK = 1 << 24


def _random(address: int, size: int) -> np.ndarray:
    """Reproducible: the address is the seed."""
    return np.random.default_rng(address).integers(0, 256, size, np.uint8)


# mem_init patterns (verif/vip/mem_model/mem_core.svh, init_surface_with_pattern); unknown bits are zero here.
PATTERNS: dict[str, Callable[[int, int], np.ndarray | int]] = {
    "ALL_ZERO": lambda address, size: 0x00,
    "ZEROS": lambda address, size: 0x00,
    "X": lambda address, size: 0x00,
    "ONES": lambda address, size: 0xFF,
    "AFIVE": lambda address, size: 0xA5,
    "FIVEA": lambda address, size: 0x5A,
    "ADDR": lambda address, size: np.arange(address & 0xFF, (address & 0xFF) + size, dtype=np.uint64).astype(np.uint8),
    "RANDOM": _random,
}


class TraceMemory(AddressSpace):
    """An address space made from the ranges of a trace. ``limit``: bytes of all regions together."""

    def __init__(self, ranges: Iterable[tuple[Space, int, int]], limit: int = Limits.memory) -> None:
        super().__init__()
        self.limit = limit
        self.used: list[tuple[Space, int, int]] = []  # what was named or touched, for dumps
        ranges = sorted(set(ranges), key=lambda each: (each[0].value, each[1], each[2]))
        for space, address, size in ranges:
            if address + size > 1 << 64:
                raise TraceError(f"{space.value} range 0x{address:x} of {size} bytes ends beyond the 64-bit addresses")
        exact = _merge(ranges)
        needed = sum(size + 2 * PAGE for _, _, size in exact)
        if needed > limit:
            raise TraceError(f"the trace names {needed} bytes of memory in {len(exact)} ranges, the limit is {limit}")
        self._room = min(ROOM, (limit - needed) // (len(exact) + 1)) // PAGE * PAGE
        self._total = 0
        self.used = exact
        for space, address, size in _merge(self._with_room(*each) for each in exact):
            self._add(space, address, size)

    def find(self, space: Space, address: int, size: int, what: str = "access") -> Region:
        """As AddressSpace.find; what lies in no region gets one, if the limit allows."""
        try:
            return super().find(space, address, size, what)
        except LinkError as error:
            if size <= 0 or address < 0 or address + size > 1 << 64 or not self._is_free(space, address, size):
                raise
            self._grow(space, address, size, error)
            self.used = _merge(sorted([*self.used, (space, address, size)], key=lambda each: (each[0].value, each[1])))
            return super().find(space, address, size, what)

    def fill(self, space: Space, address: int, size: int, pattern: str) -> None:
        """mem_init: write a pattern, in pieces so that a large fill needs no second copy of itself."""
        for start in range(0, size, _CHUNK):
            length = min(_CHUNK, size - start)
            view = self.view(space, address + start, length, "mem_init")
            value = PATTERNS[pattern](address + start, length)
            if isinstance(value, int) and value == 0 and not view.any():
                continue  # writing zeros would only make the operating system commit the pages
            view[:] = value

    def crc(self, space: Space, address: int, size: int, what: str) -> int:
        """CRC-32 (as in zip) of a range."""
        return zlib.crc32(self.view(space, address, size, what).data) if size else 0

    def _with_room(self, space: Space, address: int, size: int) -> tuple[Space, int, int]:
        start = address // PAGE * PAGE
        end = min(align(address + size, PAGE) + self._room, 1 << 64)
        return space, start, end - start

    def _add(self, space: Space, address: int, size: int) -> None:
        self._total += size
        self.map(f"{space.value} at 0x{address:x}", space, address, size)

    def _is_free(self, space: Space, address: int, size: int) -> bool:
        return all(region.end <= address or address + size <= region.base for region in self.regions(space))

    def _grow(self, space: Space, address: int, size: int, error: LinkError) -> None:
        if self._total + size + 2 * PAGE > self.limit:
            raise LinkError(f"{error}; a region for it would pass the limit of {self.limit} bytes") from error
        start, end = address // PAGE * PAGE, align(address + size, PAGE)
        spare = min(self._room, self.limit - self._total - (end - start)) // PAGE * PAGE
        end = min(end + spare, 1 << 64)
        for region in self.regions(space):
            if region.base >= address + size:
                end = min(end, region.base)
            if region.end <= address:
                start = max(start, region.end)
        self._add(space, start, end - start)


def _merge(ranges: Iterable[tuple[Space, int, int]]) -> list[tuple[Space, int, int]]:
    """Join ranges (sorted by space and address) that overlap or touch."""
    merged: list[tuple[Space, int, int]] = []
    for space, address, size in ranges:
        if merged and merged[-1][0] == space and address <= merged[-1][1] + merged[-1][2]:
            start = merged[-1][1]
            merged[-1] = (space, start, max(merged[-1][2], address + size - start))
        else:
            merged.append((space, address, size))
    return merged
