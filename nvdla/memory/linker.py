"""The linker: places the memories of a loadable in DRAM and CVSRAM and fills them.

Allocation is that of NVIDIA's runtime on the reference platform, so that register logs can be compared address for
address: DRAM from 0xc0000000 upwards in multiples of 4096 bytes, first the memories that the runtime allocates (in list
order), then the bound inputs and outputs (in bind order); CVSRAM from 0x50000000.
Source: nvdla/sw umd/core/src/runtime/Runtime.cpp (load, loadMemory, rewriteStrides) and apps/runtime.
"""

from __future__ import annotations

import copy
import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nvdla.checked import raw_bytes, strides_by_name
from nvdla.errors import LinkError
from nvdla.limits import Limits
from nvdla.loadable.enums import MemoryFlags, RelocType
from nvdla.loadable.model import AddressEntry, Loadable, MemoryEntry, RelocEntry, TaskEntry, TensorDesc
from nvdla.memory.address_space import AddressSpace, Region, Space
from nvdla.memory.lanes import Lanes
from nvdla.memory.pages import Pages, Readers
from nvdla.memory.placement import PAGE, Allocation, place
from nvdla.memory.short_copies import clear, put
from nvdla.rounding import align

# The firmware counts the dependencies down in place, so the runtime loads memories with such contents anew
# before every submit.
DEPENDENCY_GRAPH = "dep_graph"


#: bytes behind the last memory in DRAM that an access may reach: hardware has memory there, too
BEHIND = 16 << 20


@dataclass(frozen=True)
class AddressWindow:
    """One entry of a task's address list: ``size`` bytes of ``region`` from ``address`` on."""

    index: int
    entry: AddressEntry
    region: Region
    address: int
    size: int

    @property
    def data(self) -> np.ndarray:
        """The bytes of the window (uint8 view)."""
        start = self.address - self.region.base
        return self.region.data[start : start + self.size]

    def __str__(self) -> str:
        return f"address {self.index} (0x{self.address:x}, {self.size} bytes of {self.region.name})"


@dataclass(frozen=True)
class Patch:
    """A 32-bit word that is written over the contents of a memory (a stride relocation)."""

    memory_id: int
    offset: int
    value: int


class LinkedLoadable:
    """A loadable in memory. ``regions`` by memory id; ``strides`` of bound tensors that the caller changed, by name;
    ``lanes``: the memories that change (``changing``, by id), more than one lane only :meth:`beside` another. ``flat``:
    neighbours by address lie side by side here, too, so that an access may go from one into the next; then there is
    nothing in lanes.

    Raises LinkError when the memories together pass ``limit`` bytes (nothing is allocated then), overlap, or when a
    stride cannot be changed.
    """

    def __init__(
        self,
        loadable: Loadable,
        limit: int = Limits.memory,
        strides: Mapping[str, tuple[int, ...]] | None = None,
        flat: bool = False,
    ) -> None:
        self.loadable = loadable
        self.space = AddressSpace(flat)
        self.regions: dict[int, Region] = {}
        self.tensors = _bound_tensors(loadable)
        self._strides: dict[str, tuple[int, ...]] = {}
        self._sizes = {memory.id: memory.size for memory in loadable.memories}
        self._patches: list[Patch] = []
        self._windows: dict[tuple[int, ...], list[AddressWindow]] = {}
        for name, wanted in strides_by_name(strides).items():
            self._change_strides(name, wanted)
        patched = {patch.memory_id for patch in self._patches}
        self._filled = {
            memory.id: memory for memory in loadable.memories if memory.flags & MemoryFlags.SET or memory.id in patched
        }
        self._described = {memory.id: self._describe(memory) for memory in (*loadable.inputs, *loadable.outputs)}
        changing = 0 if flat else sum(self._whole_pages(memory) for memory in loadable.memories if _changes(memory))
        _check_total(self._sizes.values(), limit)
        self.lanes = Lanes(1, changing)
        self.changing = {memory.id for memory in loadable.memories if _changes(memory) and not flat}
        self._account = _Account(limit, sum(align(size, PAGE) for size in self._sizes.values()))
        self.scratch = 0
        self._scratch_charges: list[_Charge] = []
        self._charge: _Charge | None = None
        self._bound_bytes = sum(memory.size for memory in (*loadable.inputs, *loadable.outputs))
        self._pages_of: dict[int, Pages] = {}
        self._forgotten = False
        self._place()
        for memory in loadable.memories:
            if memory.id in self.regions:
                self._load(memory)  # new regions are zero: pages that nothing is loaded into need not exist yet

    def beside(self, lane_count: int = 1) -> LinkedLoadable:
        """The same loadable with other memories in the place of those that change; constants are shared.

        For jobs that run at the same time; the firmware does not work on it (its ``space`` is that of this one).
        Raises LinkError where the memories together would pass the limit.
        """
        linked = copy.copy(self)
        linked._charge = self._account.take(lane_count * self.lanes.stride + self.scratch)
        linked.lanes = Lanes(lane_count, self.lanes.stride)
        linked._windows = {}
        linked.regions = {
            number: replace(region, data=self.lanes.counterpart(region.data, linked.lanes))
            for number, region in self.regions.items()
        }
        for memory in self.loadable.memories:
            if memory.id in self.changing and memory.id in linked.regions:
                linked._load(memory)
        return linked

    def has_room(self, lane_count: int) -> bool:
        """True where :meth:`beside` keeps to the limit."""
        return self._account.has_room(lane_count * self.lanes.stride + self.scratch)

    def room(self) -> int:
        """Bytes that the limit leaves for the temporaries of a run, besides the memory list, and inputs and outputs
        once more, as the caller has them."""
        return self._account.room() + self.scratch - self._bound_bytes

    def taken(self) -> int:
        """Bytes that one run takes in all, as far as it is known: the least memory limit, after the first run."""
        return self._account.taken + self._bound_bytes

    def hold_scratch(self, size: int) -> None:
        """What a run takes besides the memory list, and every instance that works beside this one takes again."""
        if size > self.scratch:
            self._scratch_charges.append(self._account.take(size - self.scratch))
            self.scratch = size

    def address_list(self, task: TaskEntry) -> list[AddressWindow]:
        """The task's address list; raises LinkError for an entry whose memory is not allocated."""
        if task.address_list not in self._windows:  # tasks may share one list
            entries = enumerate(task.address_list)
            self._windows[task.address_list] = [self._window(index, entry, task) for index, entry in entries]
        return self._windows[task.address_list]

    def reset(self, memory_ids: Iterable[int] | None = None) -> None:
        """Give memories (all by default) their contents as loaded: zero where nothing is loaded."""
        for memory_id in self.regions if memory_ids is None else memory_ids:
            if memory_id in self.regions:
                clear(self.regions[memory_id].data)
                if memory_id in self._filled:
                    self._load(self._filled[memory_id])

    def readers(self, views: Iterable[np.ndarray]) -> Readers:
        """Counts the readers of constants, so that :meth:`forget` can tell which ones nobody needs any more."""
        return Readers(self._pages_of.values(), views)

    def forget(self, readers: Readers, views: Iterable[np.ndarray]) -> None:
        """Give back the memory of constants that had been counted, where these were the last views of it."""
        self._forgotten |= readers.done(views)

    def remember(self) -> None:
        """Load constants that were given back once more: for whoever reads simulated memory as a whole."""
        if self._forgotten:
            # What was given back reads as zero, the rest is as it was: others may read it meanwhile.
            for memory in self.loadable.memories:
                if memory.id in self._pages_of:
                    self._load(memory)
            self._forgotten = False

    def in_lanes(self, memory_ids: Iterable[int]) -> bool:
        """True when all these memories are in lanes, and zero when loaded."""
        wanted = set(memory_ids)
        return all(
            _changes(memory) and not memory.contents
            for memory in self.loadable.memories
            if memory.id in wanted and memory.id in self.regions
        )

    def clear_lanes(self, memory_ids: Iterable[int], count: int) -> None:
        """Zero these memories in lanes 1 to ``count``."""
        for memory_id in memory_ids:
            if memory_id in self.regions:
                self.lanes.across(self.regions[memory_id].data, count)[:] = 0

    def bind(self, memory: MemoryEntry, data: bytes | bytearray | memoryview | np.ndarray, lane: int = 0) -> None:
        """Copy ``data`` into the bound memory (of a lane); raises LinkError when the size differs.

        A buffer that is not contiguous is taken in its own order (as its ``tobytes()``)."""
        what = self._described[memory.id]
        source = raw_bytes(data, what)
        bound = self.lanes.at(self.data(memory), lane) if lane else self.data(memory)
        if len(source) != bound.size:
            raise LinkError(f"{what} takes {bound.size} bytes, but {len(source)} bytes were given")
        put(bound, source)

    def data(self, memory: MemoryEntry) -> np.ndarray:
        """The bytes of a memory (uint8 view); raises LinkError if it is not allocated."""
        if memory.id not in self.regions:
            raise LinkError(
                f"memory {memory.id} of {memory.size} bytes is not allocated: it needs a size and one of the flags "
                "ALLOC, INPUT, OUTPUT"
            )
        return self.regions[memory.id].data[: self._sizes[memory.id]]

    def blob_of(self, memory: MemoryEntry) -> np.ndarray | None:
        """The blob (read-only bytes) that is a memory's whole content as loaded; None where it is made of more."""
        blobs = memory.contents if memory.flags & MemoryFlags.SET else ()
        if len(blobs) != 1 or memory.offsets[0] or any(patch.memory_id == memory.id for patch in self._patches):
            return None
        data = np.frombuffer(self.loadable.blob(blobs[0]).data, np.uint8)
        return data if data.size == self._sizes[memory.id] else None

    def strides_of(self, tensor: TensorDesc) -> tuple[int, ...]:
        """The strides of a bound tensor: its own, or those that the caller gave."""
        return self._strides.get(tensor.name, tensor.strides)

    def memories_of(self, arrays: Iterable[np.ndarray]) -> set[int]:
        """Ids of the memories that any of the array views lies in."""
        spans = [bounds(array) for array in arrays if array.size]
        found = set()
        for memory_id, region in self.regions.items():
            start, end = bounds(region.data)
            if any(low < end and start < high for low, high in spans):
                found.add(memory_id)
        return found

    def dependency_graphs(self) -> set[int]:
        """Ids of the memories that hold a dependency graph."""
        return {
            memory.id
            for memory in self.loadable.memories
            if any(DEPENDENCY_GRAPH in content for content in memory.contents)
        }

    def _window(self, index: int, address_id: int, task: TaskEntry) -> AddressWindow:
        entry = self.loadable.address(address_id)
        memory = self.loadable.memory(entry.mem_id)
        if memory.id not in self.regions:
            raise LinkError(
                f"task {task.id}, address {index} (address list id {entry.id}): memory {memory.id} is not allocated"
            )
        region, room = self.regions[memory.id], self._sizes[memory.id] - entry.offset
        if entry.offset < 0 or room < 0:
            raise LinkError(
                f"task {task.id}, address {index} (address list id {entry.id}): offset {entry.offset} lies outside "
                f"memory {memory.id} of {self._sizes[memory.id]} bytes"
            )
        # Compilers give concatenated tensors the size of the whole from an offset on, so the memory's end decides;
        # and the caller's strides may have made a bound memory larger.
        bound = memory.is_input or memory.is_output
        size = room if bound or not entry.size else min(entry.size, room)
        return AddressWindow(index, entry, region, region.base + entry.offset, size)

    def _place(self) -> None:
        """Map every allocated memory in the order of NVIDIA's runtime."""
        if self.space.flat:
            self._place_flat()
            return
        taken = 0  # bytes of a lane
        for made in place(self.loadable, sizes=self._sizes):
            memory = made.memory
            if _changes(memory):
                data = self.lanes.region(taken, made.reserved)
                taken += data.size
            else:
                self._pages_of[memory.id] = Pages(made.reserved)
                data = self._pages_of[memory.id].data
            self.regions[memory.id] = self.space.map(f"memory {memory.id}", made.kind, made.address, data.size, data)

    def _place_flat(self) -> None:
        """Map memories that follow each other without a gap as parts of one array."""
        runs: list[list[Allocation]] = []
        placed = sorted(
            place(self.loadable, sizes=self._sizes), key=lambda each: (each.kind is Space.DRAM, each.address)
        )
        for made in placed:
            before = runs[-1][-1] if runs else None
            if before is None or (before.space, before.end) != (made.space, made.address):
                runs.append([])
            runs[-1].append(made)
        for run in runs:
            last = run[-1]
            behind = BEHIND if last.kind is Space.DRAM and run is runs[-1] else 0
            data, first = np.zeros(last.end + behind - run[0].address, np.uint8), run[0].address
            for made in run:
                part = data[made.address - first :][: made.reserved]
                name = f"memory {made.memory.id}"
                self.regions[made.memory.id] = self.space.map(name, made.kind, made.address, part.size, part)
            if behind:
                self.space.map("memory of nobody", last.kind, last.end, behind, data[last.end - first :])

    def _whole_pages(self, memory: MemoryEntry) -> int:
        return align(self._sizes[memory.id], PAGE)

    def _load(self, memory: MemoryEntry) -> None:
        """Copy the contents of a memory to where they belong, and the changed strides over them."""
        data = self.data(memory)
        if memory.flags & MemoryFlags.SET:
            for name, offset in zip(memory.contents, memory.offsets, strict=True):
                blob = self.loadable.blob(name)
                if offset < 0 or offset + blob.length > data.size:
                    raise LinkError(
                        f"memory {memory.id}: blob {name} ({blob.length} bytes) at offset {offset} ends outside its "
                        f"{data.size} bytes"
                    )
                blob.copy_to(data[offset : offset + blob.length].data)
        for patch in self._patches:
            if patch.memory_id == memory.id:
                data[patch.offset : patch.offset + 4] = np.frombuffer(patch.value.to_bytes(4, "little"), np.uint8)

    def _change_strides(self, name: str, strides: tuple[int, ...]) -> None:
        """Note the relocations that give the bound tensor ``name`` other strides, and enlarge its memory."""
        if name not in self.tensors:
            raise LinkError(f"no bound tensor is called {name!r}: there are {', '.join(self.tensors)}")
        memory, tensor = self.tensors[name]
        wanted = tuple(int(each) for each in strides) + tensor.strides[len(strides) :]
        if wanted[0] != tensor.strides[0] or wanted[3:] != tensor.strides[3:] or len(wanted) != len(tensor.strides):
            raise LinkError(f"tensor {name}: only the line and surface stride can be changed, not {wanted}")
        if not all(0 < each < 1 << 32 for each in wanted[1:3]):
            raise LinkError(f"tensor {name}: line stride {wanted[1]} and surface stride {wanted[2]} must be positive")
        patches = [self._patch(reloc, wanted) for reloc in self._relocs(memory)]
        for kind in (RelocType.LINE, RelocType.SURFACE):
            moved = wanted[kind] != tensor.strides[kind]
            if moved and not any(reloc.reloc_type == kind for reloc in self._relocs(memory)):
                raise LinkError(f"tensor {name}: the loadable has no relocation for its {kind.name.lower()} stride")
        self._patches += patches
        self._strides[name] = wanted
        self._sizes[memory.id] = self._size_with(memory, tensor, wanted)

    def _relocs(self, memory: MemoryEntry) -> list[RelocEntry]:
        addresses = {entry.id for entry in self.loadable.addresses if entry.mem_id == memory.id}
        return [
            reloc
            for reloc in self.loadable.relocs
            if reloc.address_id in addresses and reloc.reloc_type in (RelocType.LINE, RelocType.SURFACE)
        ]

    def _patch(self, reloc: RelocEntry, strides: tuple[int, ...]) -> Patch:
        """``write_id`` is a memory id (Runtime.cpp:1287), and the byte offset counts from that memory's first byte."""
        size = self._sizes.get(reloc.write_id, 0)
        if not 0 <= reloc.offset <= size - 4:
            raise LinkError(f"relocation at byte {reloc.offset} lies outside memory {reloc.write_id} of {size} bytes")
        return Patch(reloc.write_id, reloc.offset, strides[reloc.reloc_type])

    def _size_with(self, memory: MemoryEntry, tensor: TensorDesc, strides: tuple[int, ...]) -> int:
        """Bytes of a bound memory with other strides. The images of a batch lie where the address list says."""
        surfaces = max(tensor.size // max(tensor.n, 1) // tensor.surface_stride, 1) if tensor.surface_stride else 1
        image = (surfaces - 1) * strides[2] + max((tensor.h - 1) * strides[1], 0) + tensor.line_stride
        offsets = sorted(entry.offset for entry in self.loadable.addresses if entry.mem_id == memory.id)
        gaps = [after - before for before, after in itertools.pairwise(offsets) if after > before]
        room = min(gaps, default=image)
        if image > room:
            raise LinkError(
                f"tensor {tensor.name}: an image with strides {strides[1:3]} takes {image} bytes, but the images of "
                f"the batch lie {room} bytes apart"
            )
        return max((offsets[-1] if offsets else 0) + max(image, surfaces * strides[2]), memory.size)

    def _describe(self, memory: MemoryEntry) -> str:
        kind = "input" if memory.is_input else "output"
        names = [name for name, (bound, _) in self.tensors.items() if bound.id == memory.id]
        return f"{kind} {memory.bind_id} ({', '.join(names) or f'memory {memory.id}'})"


class _Account:
    """The bytes that a loadable and what was linked beside it take together."""

    def __init__(self, limit: int, taken: int) -> None:
        self._limit, self.taken = limit, taken
        self._lock = threading.Lock()

    def room(self) -> int:
        return self._limit - self.taken

    def has_room(self, size: int) -> bool:
        return self.taken + size <= self._limit

    def take(self, size: int) -> _Charge:
        """What must be kept as long as the memory is; raises LinkError beyond the limit."""
        with self._lock:
            if not self.has_room(size):
                raise LinkError(
                    f"another instance of the network takes {size} bytes besides {self.taken}, more than the memory "
                    f"limit of {self._limit} bytes"
                )
            self.taken += size
        charge = _Charge()
        weakref.finalize(charge, self._give_back, size)
        return charge

    def _give_back(self, size: int) -> None:
        self.taken -= size


class _Charge:
    """Memory that was taken from an account, as long as this object lives."""


def _changes(memory: MemoryEntry) -> bool:
    """False for constants: what is loaded into and not bound."""
    return memory.is_input or memory.is_output or not memory.contents


def _bound_tensors(loadable: Loadable) -> dict[str, tuple[MemoryEntry, TensorDesc]]:
    bound = (*loadable.inputs, *loadable.outputs)
    tensors = [(memory, loadable.tensor(memory.tensor_desc_id)) for memory in bound]
    return {tensor.name: (memory, tensor) for memory, tensor in tensors}


def _check_total(sizes: Iterable[int], limit: int) -> None:
    total = sum(align(size, PAGE) for size in sizes)
    if total > limit:
        raise LinkError(
            f"the memory list asks for {total} bytes ({total / (1 << 30):.2f} GiB) in all, more than the limit of "
            f"{limit} bytes; pass a higher memory limit if that is meant"
        )


def bounds(array: np.ndarray) -> tuple[int, int]:
    """Addresses, in this process, of an array's first byte and of the one behind its last."""
    library: Any = np  # the name moved in numpy 2
    find = library.lib.array_utils.byte_bounds if hasattr(np.lib, "array_utils") else library.byte_bounds
    low, high = find(array)
    return low, high
