"""Where descriptor lists are read from: an address index of a task, and what lies behind it.

Decoding asks a :class:`DescriptorSource` for bytes, so the same code reads the blobs of a file (here) and the memory of
a running network (a runtime passes its own source, and sees rewritten strides).
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any, Protocol

from nvdla.argument_kinds import by_annotations
from nvdla.errors import DescriptorError, LoadableError
from nvdla.loadable.enums import MemoryFlags
from nvdla.loadable.model import Loadable, MemoryEntry, TaskEntry


class DescriptorSource(Protocol):
    """Bytes behind the address indices of one task."""

    #: "task 0": begins every message
    name: str
    #: entries of the task's address list
    num_addresses: int

    def read(self, index: int, size: int, what: str) -> Any:
        """The first ``size`` bytes behind address index ``index`` (a buffer). DescriptorError if there are fewer."""

    def label(self, index: int) -> str:
        """What lies behind an address index, for messages: "blob 'task-0-surf_list'"."""


@by_annotations
class LoadableSource:
    """The blobs of a loadable, as the memory list places them. Views wherever one blob holds all that is asked for."""

    def __init__(self, loadable: Loadable, task: TaskEntry) -> None:
        self.loadable = loadable
        self.task = task
        self.name = f"task {task.id}"
        self.num_addresses = len(task.address_list)

    def label(self, index: int) -> str:
        """The name of the blob behind an address index, for messages."""
        try:
            memory = self.loadable.memory(self.loadable.address(self.task.address_list[index]).mem_id)
        except (LoadableError, IndexError):
            return f"address index {index}"
        return f"blob {memory.contents[0]!r}" if memory.contents else f"memory {memory.id}"

    def read(self, index: int, size: int, what: str) -> Any:
        """``size`` bytes behind an address index. Raises DescriptorError where they are not there."""
        if not 0 <= index < self.num_addresses:
            raise DescriptorError(
                f"{self.name}, {what}: address index is {index}, must be 0 .. {self.num_addresses - 1} (address list)"
            )
        try:
            address = self.loadable.address(self.task.address_list[index])
            memory = self.loadable.memory(address.mem_id)
            room = memory.size - address.offset
            if room < size:
                raise DescriptorError(
                    f"{self.name}, {what}, {self.label(index)}: needs {size} bytes from byte {address.offset}, "
                    f"memory {memory.id} has {memory.size}"
                )
            return self._contents(memory, address.offset, size, f"{what}, {self.label(index)}")
        except LoadableError as error:
            raise DescriptorError(f"{self.name}, {what}: {error}") from None

    def _contents(self, memory: MemoryEntry, start: int, size: int, what: str) -> Any:
        """``size`` bytes of a memory from ``start``, put together from the blobs that cover them."""
        end = start + size
        contents = self.loadable.contents(memory) if memory.flags & MemoryFlags.SET else []
        first = max(bisect.bisect_right(contents, start, key=lambda each: each[0]) - 1, 0)
        pieces = []
        for offset, blob in itertools.islice(contents, first, None):
            if offset <= start and end <= offset + blob.length:
                return blob.data[start - offset : end - offset]
            if offset >= end:
                break
            if start < offset + blob.length:
                pieces.append((offset, blob.data))
        covered = sum(min(end, offset + len(data)) - max(start, offset) for offset, data in pieces)
        if covered < size:
            raise DescriptorError(f"{self.name}, {what}: needs {size} bytes from byte {start}, contents give {covered}")
        joined = bytearray(size)
        for offset, data in pieces:
            low, high = max(start, offset), min(end, offset + len(data))
            joined[low - start : high - start] = data[low - offset : high - offset]
        return memoryview(joined).toreadonly()
