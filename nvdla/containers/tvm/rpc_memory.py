"""The memory that a remote caller allocates: named by addresses, bounded, every access checked."""

from __future__ import annotations

import bisect

from nvdla.errors import FormatError
from nvdla.rounding import align

#: Addresses begin above every function and module handle, so a handle says what it is.
FIRST_ADDRESS = 1 << 32
#: microTVM's page allocator on the host rounds to this.
PAGE = 256
MAX_BLOCKS = 1 << 16


class RemoteMemory:
    """Blocks of bytes at made-up addresses, which rise and are never given out twice.

    ``used`` counts these blocks and everything else that is kept for the caller (:meth:`charge`)."""

    def __init__(self, limit: int, first_address: int = FIRST_ADDRESS) -> None:
        self.limit = limit
        self.used = 0
        self._next = first_address
        self._starts: list[int] = []
        self._blocks: dict[int, bytearray] = {}

    def allocate(self, size: int) -> int:
        """Address of a new block of zeros."""
        if len(self._blocks) >= MAX_BLOCKS:
            raise FormatError(f"{MAX_BLOCKS} blocks of memory are in use; free some")
        self.charge(size)
        address = self._next
        self._next += max(align(size, PAGE), PAGE)
        self._blocks[address] = bytearray(size)
        self._starts.append(address)
        return address

    def charge(self, size: int, what: str = "") -> None:
        """Counts bytes that are kept for the caller elsewhere; FormatError where they are more than are left."""
        if not 0 <= size <= self.limit - self.used:
            raise FormatError(
                f"{what}{size} bytes asked for, {self.limit - self.used} of {self.limit} are left; "
                "free tensors, networks or uploads, or start the server with a larger --memory"
            )
        self.used += size

    def give_back(self, size: int) -> None:
        """Takes back a :meth:`charge`."""
        self.used -= size

    def free(self, address: int) -> None:
        """Gives a block back; its address must be the one :meth:`allocate` returned."""
        block = self._blocks.pop(address, None)
        if block is None:
            raise FormatError(f"address {address:#x} is no block of memory; it was freed, or never given out")
        self.used -= len(block)
        del self._starts[bisect.bisect_left(self._starts, address)]

    def view(self, address: int, size: int) -> memoryview:
        """A writable view; FormatError where it leaves the block."""
        index = bisect.bisect_right(self._starts, address) - 1
        start = self._starts[index] if index >= 0 else 0
        block = self._blocks.get(start)
        if block is None or size < 0 or address - start + size > len(block):
            room = 0 if block is None else max(len(block) - (address - start), 0)
            raise FormatError(f"{size} bytes at address {address:#x}: {room} are there")
        return memoryview(block)[address - start : address - start + size]

    def holds(self, address: int) -> bool:
        """Whether a block begins here."""
        return address in self._blocks

    def clear(self) -> None:
        """Give everything back."""
        self._blocks.clear()
        self._starts.clear()
        self.used = 0
