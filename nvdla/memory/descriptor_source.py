"""Descriptors as they lie in simulated memory."""

from __future__ import annotations

from collections.abc import Sequence

from nvdla.errors import DescriptorError
from nvdla.loadable.model import TaskEntry
from nvdla.memory.linker import AddressWindow


class MemorySource:
    """The address list of a task as a :class:`nvdla.descriptors.source.DescriptorSource`: what is decoded from it
    lies over the memory itself, so a count that goes down does so in memory."""

    def __init__(self, task: TaskEntry, windows: Sequence[AddressWindow]) -> None:
        self.name = f"task {task.id}"
        self.num_addresses = len(windows)
        self._windows = windows

    def label(self, index: int) -> str:
        """The window behind an address index, for messages."""
        return str(self._windows[index]) if 0 <= index < self.num_addresses else f"address index {index}"

    def read(self, index: int, size: int, what: str) -> memoryview:
        """``size`` bytes behind an address index. Raises DescriptorError where they are not there."""
        if not 0 <= index < self.num_addresses:
            raise DescriptorError(
                f"{self.name}, {what}: address index is {index}, must be 0 .. {self.num_addresses - 1} (address list)"
            )
        window = self._windows[index]
        if size > window.size:
            raise DescriptorError(f"{self.name}, {what}: needs {size} bytes, {window} has {window.size}")
        return window.data[:size].data
