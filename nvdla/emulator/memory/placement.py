"""Placement of a loadable's memories: addresses, sizes and stride relocations, without any memory.

The order and the whole pages are those of NVIDIA's runtime on the reference platform, so that register logs can be
compared address for address: DRAM from 0xc0000000 upwards in multiples of 4096 bytes, first the memories that the
runtime allocates (in list order), then the bound inputs and outputs (in bind order); CVSRAM from 0x50000000.
Source: nvdla/sw umd/core/src/runtime/Runtime.cpp (load, loadMemory, rewriteStrides) and apps/runtime.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nvdla.emulator.memory.address_space import Space
from nvdla.errors import LinkError
from nvdla.limits import PAGE
from nvdla.loadable.enums import MemoryDomain, MemoryFlags, RelocType
from nvdla.loadable.model import Loadable, MemoryEntry, RelocEntry, TensorDesc
from nvdla.util.arguments import strides_by_name
from nvdla.util.rounding import align

DRAM_BASE = 0xC0000000
CVSRAM_BASE = 0x50000000

SPACES = ("dram", "cvsram")
_KINDS = {"dram": Space.DRAM, "cvsram": Space.CVSRAM}


class Strides(Protocol):
    """Strides of a bound tensor in bytes: element, line, surface."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...


@dataclass(frozen=True)
class Allocation:
    """One memory of the memory list at its place: ``size`` bytes are used, ``reserved`` are whole pages."""

    memory: MemoryEntry
    space: str
    address: int
    reserved: int

    @property
    def end(self) -> int:
        """The first address after it."""
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
            raise LinkError(f"{name}: must be a positive multiple of {PAGE} (a page), got 0x{value:x}")
    bound = list({memory.id: memory for memory in (*loadable.inputs, *loadable.outputs)}.values())
    own = [
        memory
        for memory in loadable.memories
        if memory.flags & MemoryFlags.ALLOC and not (memory.is_input or memory.is_output)
    ]
    free = {"dram": base, "cvsram": cvsram_base}
    allocations = []
    for memory in (*own, *bound):
        size = memory.size if sizes is None else sizes[memory.id]
        if not size:
            continue
        space = "cvsram" if memory.domain == MemoryDomain.SRAM else "dram"
        # Whole pages, as the driver allocates them: read DMAs fetch whole atoms, also at the end of a small memory.
        address = align(free[space], max(PAGE, memory.alignment))
        allocation = Allocation(memory, space, address, align(size, PAGE))
        if allocation.end > 1 << 64:
            raise LinkError(f"memory {memory.id}: must end within the 64-bit address range, got {size} bytes")
        allocations.append(allocation)
        free[space] = allocation.end
    return allocations


def carve_out_bytes(allocations: Iterable[Allocation]) -> int:
    """Return the bytes to reserve: of each space those from its first allocation to the end of its last."""
    spaces: dict[str, tuple[int, int]] = {}
    for allocation in allocations:
        first, last = spaces.get(allocation.space, (allocation.address, allocation.end))
        spaces[allocation.space] = min(first, allocation.address), max(last, allocation.end)
    return sum(end - first for first, end in spaces.values())


@dataclass(frozen=True)
class Patch:
    """A 32-bit word that is written over the contents of a memory (a stride relocation)."""

    memory_id: int
    offset: int
    value: int


class Placement:
    """Sizes of all memories by id, strides of bound tensors by name, and the ``patches`` that change strides.

    Raises LinkError when the memories together pass ``limit`` bytes, or when a stride cannot be changed.
    """

    def __init__(self, loadable: Loadable, limit: int, strides: Mapping[str, Strides] | None = None) -> None:
        self.loadable = loadable
        self.tensors = _bound_tensors(loadable)
        self.sizes = {memory.id: memory.size for memory in loadable.memories}
        self.patches: list[Patch] = []
        self._strides: dict[str, tuple[int, ...]] = {}
        for name, wanted in strides_by_name(strides).items():
            self._change_strides(name, wanted)
        self.total = _total(self.sizes.values(), limit)

    def allocations(self) -> list[Allocation]:
        """Return every memory that is allocated, in the order of NVIDIA's runtime."""
        return place(self.loadable, sizes=self.sizes)

    def changing_bytes(self) -> int:
        """Return the bytes of whole pages of all memories that runs change."""
        return sum(align(self.sizes[memory.id], PAGE) for memory in self.loadable.memories if changes(memory))

    def strides_of(self, tensor: TensorDesc) -> tuple[int, ...]:
        """Return the strides of a bound tensor: its own, or those that the caller gave."""
        return self._strides.get(tensor.name, tensor.strides)

    def patches_of(self, memory: MemoryEntry) -> list[Patch]:
        """Return the patches of a memory's contents."""
        return [patch for patch in self.patches if patch.memory_id == memory.id]

    def describe(self, memory: MemoryEntry) -> str:
        """Return the name of a bound memory for messages."""
        kind = "input" if memory.is_input else "output"
        names = [name for name, (bound, _) in self.tensors.items() if bound.id == memory.id]
        return f"{kind} {memory.bind_id} ({', '.join(names) or f'memory {memory.id}'})"

    def _change_strides(self, name: str, strides: Sequence[int]) -> None:
        """Note the relocations that give the bound tensor ``name`` other strides, and enlarge its memory."""
        if name not in self.tensors:
            raise LinkError(f"strides: no bound tensor {name!r}: must be one of {', '.join(self.tensors)}")
        memory, tensor = self.tensors[name]
        wanted = tuple(int(stride) for stride in strides) + tensor.strides[len(strides) :]
        if wanted[0] != tensor.strides[0] or wanted[3:] != tensor.strides[3:] or len(wanted) != len(tensor.strides):
            raise LinkError(
                f"tensor {name}: element stride: must not change (only line and surface stride can), got {wanted}"
            )
        if not all(0 < stride < 1 << 32 for stride in wanted[1:3]):
            raise LinkError(
                f"tensor {name}: line and surface stride: must be positive, got {wanted[1]} and {wanted[2]}"
            )
        patches = [self._patch(reloc, wanted) for reloc in self._relocs(memory)]
        for kind in (RelocType.LINE, RelocType.SURFACE):
            moved = wanted[kind] != tensor.strides[kind]
            if moved and not any(reloc.reloc_type == kind for reloc in self._relocs(memory)):
                raise LinkError(
                    f"tensor {name}: {kind.name.lower()} stride: must have a relocation in the loadable to be changed"
                )
        self.patches += patches
        self._strides[name] = wanted
        self.sizes[memory.id] = self._size_with(memory, tensor, wanted)

    def _relocs(self, memory: MemoryEntry) -> list[RelocEntry]:
        addresses = {entry.id for entry in self.loadable.addresses if entry.mem_id == memory.id}
        return [
            reloc
            for reloc in self.loadable.relocs
            if reloc.address_id in addresses and reloc.reloc_type in (RelocType.LINE, RelocType.SURFACE)
        ]

    def _patch(self, reloc: RelocEntry, strides: tuple[int, ...]) -> Patch:
        """``write_id`` is a memory id (Runtime.cpp:1287), and the byte offset counts from that memory's first byte."""
        size = self.sizes.get(reloc.write_id, 0)
        if not 0 <= reloc.offset <= size - 4:
            raise LinkError(
                f"relocation: must be within the {size} bytes of memory {reloc.write_id}, got byte {reloc.offset}"
            )
        return Patch(reloc.write_id, reloc.offset, strides[reloc.reloc_type])

    def _size_with(self, memory: MemoryEntry, tensor: TensorDesc, strides: tuple[int, ...]) -> int:
        """Return the bytes of a bound memory with other strides. The address list places the images of a batch."""
        surfaces = max(tensor.size // max(tensor.n, 1) // tensor.surface_stride, 1) if tensor.surface_stride else 1
        image = (surfaces - 1) * strides[2] + max((tensor.h - 1) * strides[1], 0) + tensor.line_stride
        offsets = sorted(entry.offset for entry in self.loadable.addresses if entry.mem_id == memory.id)
        gaps = [after - before for before, after in itertools.pairwise(offsets) if after > before]
        room = min(gaps, default=image)
        if image > room:
            raise LinkError(
                f"tensor {tensor.name}: image with strides {strides[1:3]}: must have at most {room} bytes "
                f"(distance of the images in the batch), got {image}"
            )
        return max((offsets[-1] if offsets else 0) + max(image, surfaces * strides[2]), memory.size)


def changes(memory: MemoryEntry) -> bool:
    """Return False for constants: memories with contents that are not bound."""
    return memory.is_input or memory.is_output or not memory.contents


def _bound_tensors(loadable: Loadable) -> dict[str, tuple[MemoryEntry, TensorDesc]]:
    bound = (*loadable.inputs, *loadable.outputs)
    tensors = [(memory, loadable.tensor(memory.tensor_desc_id)) for memory in bound]
    return {tensor.name: (memory, tensor) for memory, tensor in tensors}


def _total(sizes: Iterable[int], limit: int) -> int:
    """Return the bytes of whole pages. Raises LinkError beyond the limit."""
    total = sum(align(size, PAGE) for size in sizes)
    if total > limit:
        raise LinkError(
            f"memory list: must have at most {limit} bytes together, got {total} ({total / (1 << 30):.2f} GiB). "
            "Pass a higher memory limit."
        )
    return total
