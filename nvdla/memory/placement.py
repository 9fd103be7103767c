"""Addresses of a loadable's memories.

The order and the whole pages are those of NVIDIA's runtime: first the memories that the runtime allocates, in list
order, then the bound inputs and outputs in bind order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nvdla.errors import LinkError
from nvdla.loadable.enums import MemoryDomain, MemoryFlags
from nvdla.loadable.model import Loadable, MemoryEntry
from nvdla.memory.address_space import Space
from nvdla.rounding import align

DRAM_BASE = 0xC0000000
CVSRAM_BASE = 0x50000000
PAGE = 4096
SPACES = ("dram", "cvsram")
_KINDS = {"dram": Space.DRAM, "cvsram": Space.CVSRAM}


@dataclass(frozen=True)
class Allocation:
    """One memory of the memory list at its place: ``size`` bytes are used, ``reserved`` are whole pages."""

    memory: MemoryEntry
    space: str
    address: int
    reserved: int

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.address + self.reserved

    @property
    def kind(self) -> Space:
        """The space as the address space calls it."""
        return _KINDS[self.space]


def place(
    loadable: Loadable,
    base: int = DRAM_BASE,
    cvsram_base: int = CVSRAM_BASE,
    sizes: Mapping[int, int] | None = None,
) -> list[Allocation]:
    """Every memory that is allocated, in the order in which it is: so by address in each space.

    ``sizes``: bytes of memories by id, where they are not those of the memory list. Raises LinkError for a base that is
    no multiple of a page, or memories that leave the 64-bit address range.
    """
    for name, value in (("base", base), ("CVSRAM base", cvsram_base)):
        if value < 0 or value % PAGE:
            raise LinkError(f"{name} 0x{value:x} must be a multiple of a page of {PAGE} bytes, and not negative")
    bound = list({memory.id: memory for memory in (*loadable.inputs, *loadable.outputs)}.values())
    own = [
        memory
        for memory in loadable.memories
        if memory.flags & MemoryFlags.ALLOC and not (memory.is_input or memory.is_output)
    ]
    free = {"dram": base, "cvsram": cvsram_base}
    found = []
    for memory in (*own, *bound):
        size = memory.size if sizes is None else sizes[memory.id]
        if not size:
            continue
        space = "cvsram" if memory.domain == MemoryDomain.SRAM else "dram"
        # Whole pages, as the driver allocates them: read DMAs fetch whole atoms, also at the end of a small memory.
        address = align(free[space], max(PAGE, memory.alignment))
        made = Allocation(memory, space, address, align(size, PAGE))
        if made.end > 1 << 64:
            raise LinkError(f"memory {memory.id} of {size} bytes ends beyond the 64-bit address range")
        found.append(made)
        free[space] = made.end
    return found
