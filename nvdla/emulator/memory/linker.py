"""Linker: the memory image of a loadable, address lists, and views of both for the firmware."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nvdla.emulator.memory.address_space import AddressSpace, ConstantPages, Lanes, Region, Space
from nvdla.emulator.memory.placement import Allocation, Placement, Strides, changes
from nvdla.emulator.memory.surfaces import clear, put
from nvdla.errors import DescriptorError, LinkError
from nvdla.limits import Limits
from nvdla.loadable.enums import MemoryFlags
from nvdla.loadable.model import AddressEntry, Loadable, MemoryEntry, TaskEntry
from nvdla.util.arguments import raw_bytes

# The firmware counts the dependencies down in place, so the runtime reloads memories with such contents
# before every submit.
DEPENDENCY_GRAPH = "dep_graph"


#: bytes after the last memory in DRAM that an access may reach: hardware has memory there, too
TAIL_BYTES = 16 << 20


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


Surface = bytes | bytearray | memoryview | np.ndarray
"""Raw bytes of an input."""


class Charge:
    """Bytes taken from an account, as long as this object lives."""


class MemoryAccount:
    """Bytes that a loadable and its clones take together, of at most ``limit``.

    ``linked``: bytes of the memory list; ``lane``: of one lane; ``bound``: of inputs and outputs, which the caller has
    too. ``scratch``: bytes of a run's temporaries, known after the first one.
    """

    def __init__(self, limit: int, linked: int, lane: int, bound: int) -> None:
        self._limit, self._taken, self._lane, self._bound = limit, linked, lane, bound
        self._lock = threading.Lock()
        self._scratch_charges: list[Charge] = []
        self.scratch = 0

    def room(self) -> int:
        """Return the bytes that the limit leaves for the temporaries of a run."""
        return self._limit - self._taken + self.scratch - self._bound

    def taken(self) -> int:
        """Return the bytes that one run takes in all: the least memory limit, after the first run."""
        return self._taken + self._bound

    def has_room(self, lane_count: int) -> bool:
        """Return whether :meth:`take_lanes` keeps to the limit."""
        return self._fits(self._size(lane_count))

    def take_lanes(self, lane_count: int) -> Charge:
        """Take the bytes of a clone with so many lanes. Raises LinkError beyond the limit."""
        return self._take(self._size(lane_count))

    def hold_scratch(self, size: int) -> None:
        """Take the temporaries of a run; every clone takes as much again."""
        if size > self.scratch:
            self._scratch_charges.append(self._take(size - self.scratch))
            self.scratch = size

    def _size(self, lane_count: int) -> int:
        return lane_count * self._lane + self.scratch

    def _fits(self, size: int) -> bool:
        return self._taken + size <= self._limit

    def _take(self, size: int) -> Charge:
        with self._lock:
            if not self._fits(size):
                raise LinkError(
                    f"instances of the network: must use at most {self._limit} bytes (memory limit), got {size} "
                    f"bytes in addition to {self._taken}"
                )
            self._taken += size
        charge = Charge()
        weakref.finalize(charge, self._give_back, size)
        return charge

    def _give_back(self, size: int) -> None:
        self._taken -= size


class LinkedLoadable:
    """A loadable in memory: ``regions`` by memory id, in the address space ``space``.

    ``placement`` has sizes and strides; ``constants`` the memories that no run changes; ``account`` the bytes that all
    take. ``lanes``: the memories that change (``changing``, by id); only a :meth:`clone` has more than one lane.
    ``flat``: memories with contiguous addresses are contiguous here, too, so that an access may span several; then no
    memory is in lanes.

    Raises LinkError when the memories together pass ``limit`` bytes (nothing is allocated then), overlap, or when a
    stride cannot be changed.
    """

    def __init__(
        self,
        loadable: Loadable,
        limit: int = Limits.memory,
        strides: Mapping[str, Strides] | None = None,
        flat: bool = False,
    ) -> None:
        self.loadable = loadable
        self.placement = Placement(loadable, limit, strides)
        self.space = AddressSpace(flat)
        self.regions: dict[int, Region] = {}
        self.changing = set() if flat else {memory.id for memory in loadable.memories if changes(memory)}
        self.lanes = Lanes(1, 0 if flat else self.placement.changing_bytes())
        bound = sum(memory.size for memory in (*loadable.inputs, *loadable.outputs))
        self.account = MemoryAccount(limit, self.placement.total, self.lanes.stride, bound)
        self.constants = ConstantPages()
        self._charge: Charge | None = None
        self._windows: dict[tuple[int, ...], list[AddressWindow]] = {}
        patched = {patch.memory_id for patch in self.placement.patches}
        self._filled = {
            memory.id: memory for memory in loadable.memories if memory.flags & MemoryFlags.SET or memory.id in patched
        }
        self._place()
        for memory in loadable.memories:
            if memory.id in self.regions:
                self._load(memory)  # new regions are zero: pages that nothing is loaded into need not exist yet

    def clone(self, lane_count: int = 1) -> LinkedLoadable:
        """Return the same loadable with other memories in the place of those that change; constants are shared.

        For jobs that run at the same time; the firmware does not work on it (its ``space`` is that of this one).
        Raises LinkError where the memories together would pass the limit.
        """
        linked = copy.copy(self)
        linked._charge = self.account.take_lanes(lane_count)
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

    def reload(self) -> None:
        """Load constants again whose pages were released. Other threads may read those that were not."""
        self.constants.reload(lambda memory_id: self._load(self.loadable.memory(memory_id)))

    def in_lanes(self, memory_ids: Iterable[int]) -> bool:
        """True when all these memories are in lanes, and zero when loaded."""
        wanted = set(memory_ids)
        return all(
            changes(memory) and not memory.contents
            for memory in self.loadable.memories
            if memory.id in wanted and memory.id in self.regions
        )

    def clear_lanes(self, memory_ids: Iterable[int], count: int) -> None:
        """Zero these memories in lanes 1 to ``count``."""
        for memory_id in memory_ids:
            if memory_id in self.regions:
                self.lanes.across(self.regions[memory_id].data, count)[:] = 0

    def bind(self, memory: MemoryEntry, data: Surface, lane: int = 0) -> None:
        """Copy ``data`` into the bound memory (of a lane); raises LinkError when the size differs.

        A buffer that is not contiguous is taken in its own order (as its ``tobytes()``)."""
        source = data if type(data) is bytes else raw_bytes(data, self.placement.describe(memory))
        bound = self.lanes.at(self.data(memory), lane) if lane else self.data(memory)
        if len(source) != bound.size:
            what = self.placement.describe(memory)
            raise LinkError(f"{what}: must have {bound.size} bytes, got {len(source)}")
        put(bound, source)

    def data(self, memory: MemoryEntry) -> np.ndarray:
        """The bytes of a memory (uint8 view); raises LinkError if it is not allocated."""
        if memory.id not in self.regions:
            raise LinkError(
                f"memory {memory.id}: must have a size and one of the flags ALLOC, INPUT, OUTPUT to be allocated, "
                f"got {memory.size} bytes"
            )
        return self.regions[memory.id].data[: self.placement.sizes[memory.id]]

    def blob_of(self, memory: MemoryEntry) -> np.ndarray | None:
        """The blob (read-only bytes) that is a memory's whole content as loaded; None where it is made of more."""
        blobs = memory.contents if memory.flags & MemoryFlags.SET else ()
        if len(blobs) != 1 or memory.offsets[0] or self.placement.patches_of(memory):
            return None
        data = np.frombuffer(self.loadable.blob(blobs[0]).data, np.uint8)
        return data if data.size == self.placement.sizes[memory.id] else None

    def memories_of(self, arrays: Iterable[np.ndarray]) -> set[int]:
        """Return the ids of the memories of array views."""
        spans = [bounds(array) for array in arrays if array.size]
        ids = set()
        for memory_id, region in self.regions.items():
            start, end = bounds(region.data)
            if any(low < end and start < high for low, high in spans):
                ids.add(memory_id)
        return ids

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
                f"task {task.id}, address {index} (address list id {entry.id}): memory {memory.id}: must be allocated"
            )
        region, room = self.regions[memory.id], self.placement.sizes[memory.id] - entry.offset
        if entry.offset < 0 or room < 0:
            raise LinkError(
                f"task {task.id}, address {index} (address list id {entry.id}): offset: must be within the "
                f"{self.placement.sizes[memory.id]} bytes of memory {memory.id}, got {entry.offset}"
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
        for allocation in self.placement.allocations():
            memory = allocation.memory
            if changes(memory):
                data = self.lanes.region(taken, allocation.reserved)
                taken += data.size
            else:
                data = self.constants.reserve(memory.id, allocation.reserved)
            self.regions[memory.id] = self.space.map(
                f"memory {memory.id}", allocation.kind, allocation.address, data.size, data
            )

    def _place_flat(self) -> None:
        """Map memories that follow each other without a gap as parts of one array."""
        runs: list[list[Allocation]] = []
        placed = sorted(
            self.placement.allocations(), key=lambda allocation: (allocation.kind is Space.DRAM, allocation.address)
        )
        for allocation in placed:
            before = runs[-1][-1] if runs else None
            if before is None or (before.space, before.end) != (allocation.space, allocation.address):
                runs.append([])
            runs[-1].append(allocation)
        for run in runs:
            last = run[-1]
            tail_bytes = TAIL_BYTES if last.kind is Space.DRAM and run is runs[-1] else 0
            data, first = np.zeros(last.end + tail_bytes - run[0].address, np.uint8), run[0].address
            for allocation in run:
                part = data[allocation.address - first :][: allocation.reserved]
                name = f"memory {allocation.memory.id}"
                self.regions[allocation.memory.id] = self.space.map(
                    name, allocation.kind, allocation.address, part.size, part
                )
            if tail_bytes:
                self.space.map("unallocated memory", last.kind, last.end, tail_bytes, data[last.end - first :])

    def _load(self, memory: MemoryEntry) -> None:
        """Copy the contents of a memory to where they belong, and the changed strides over them."""
        data = self.data(memory)
        if memory.flags & MemoryFlags.SET:
            for name, offset in zip(memory.contents, memory.offsets, strict=True):
                blob = self.loadable.blob(name)
                if offset < 0 or offset + blob.length > data.size:
                    raise LinkError(
                        f"memory {memory.id}: blob {name}: must end within {data.size} bytes, got {blob.length} "
                        f"bytes at offset {offset}"
                    )
                blob.copy_to(data[offset : offset + blob.length].data)
        for patch in self.placement.patches_of(memory):
            data[patch.offset : patch.offset + 4] = np.frombuffer(patch.value.to_bytes(4, "little"), np.uint8)


def bounds(array: np.ndarray) -> tuple[int, int]:
    """Addresses, in this process, of an array's first byte and of the one after its last."""
    library: Any = np  # the name moved in numpy 2
    find = library.lib.array_utils.byte_bounds if hasattr(np.lib, "array_utils") else library.byte_bounds
    low, high = find(array)
    return low, high


class MemorySource:
    """The address list of a task as a :class:`nvdla.loadable.descriptors.task.DescriptorSource`.

    Structures are decoded in place, so that counts that the firmware changes are in memory.
    """

    def __init__(self, task: TaskEntry, windows: Sequence[AddressWindow]) -> None:
        self.name = f"task {task.id}"
        self.num_addresses = len(windows)
        self._windows = windows

    def label(self, index: int) -> str:
        """Return the window of an address index, for messages."""
        return str(self._windows[index]) if 0 <= index < self.num_addresses else f"address index {index}"

    def read(self, index: int, size: int, what: str) -> memoryview:
        """Return ``size`` bytes at an address index. Raises DescriptorError where they are not there."""
        if not 0 <= index < self.num_addresses:
            raise DescriptorError(
                f"{self.name}, {what}: address index: must be 0 .. {self.num_addresses - 1} (address list), got {index}"
            )
        window = self._windows[index]
        if size > window.size:
            raise DescriptorError(f"{self.name}, {what}: must have {size} bytes, but {window} has {window.size}")
        return window.data[:size].data
