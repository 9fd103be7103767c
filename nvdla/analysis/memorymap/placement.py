"""Addresses of a loadable's memories in the user's carve-out.

The order and the whole pages are those of NVIDIA's runtime (as :mod:`nvdla.memory.linker` places them): first the
memories that the runtime allocates, in list order, then the bound inputs and outputs in bind order.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvdla.errors import LinkError
from nvdla.loadable import Loadable, MemoryEntry
from nvdla.loadable.enums import MemoryDomain, MemoryFlags
from nvdla.memory.linker import CVSRAM_BASE, DRAM_BASE, PAGE

SPACES = ("dram", "cvsram")


@dataclass(frozen=True)
class Allocation:
    """One memory of the memory list at its place: ``size`` bytes are used, ``reserved`` are whole pages."""

    memory: MemoryEntry
    space: str
    address: int
    reserved: int

    @property
    def end(self) -> int:
        return self.address + self.reserved


def place(loadable: Loadable, base: int = DRAM_BASE, cvsram_base: int = CVSRAM_BASE) -> list[Allocation]:
    """Every memory that is allocated, by address.

    Raises LinkError for a base that is no multiple of a page, or memories that leave the 64-bit address range.
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
        if not memory.size:
            continue
        space = "cvsram" if memory.domain == MemoryDomain.SRAM else "dram"
        address = _align(free[space], max(PAGE, memory.alignment))
        made = Allocation(memory, space, address, _align(memory.size, PAGE))
        if made.end > 1 << 64:
            raise LinkError(f"memory {memory.id} of {memory.size} bytes ends beyond the 64-bit address range")
        found.append(made)
        free[space] = made.end
    return sorted(found, key=lambda each: (SPACES.index(each.space), each.address))


def _align(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
