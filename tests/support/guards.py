"""Simulated memory with a guard before and behind each region, to see what reads or writes outside.

What is written there is seen at once. What is read there is seen when two runs, with other bytes in the guards, differ.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import numpy as np

from nvdla.emulator.memory.address_space import AddressSpace


class Guards:
    """The guards of all regions mapped so far; each has ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.value = 0x5A
        self._buffers: list[tuple[str, np.ndarray]] = []

    def region(self, name: str, size: int) -> np.ndarray:
        """``size`` zeros between two guards."""
        buffer = np.zeros(size + 2 * self.size, np.uint8)
        self._buffers.append((name, buffer))
        self._fill(buffer)
        return buffer[self.size : -self.size]

    def fill(self, value: int) -> None:
        """Put another byte into all guards."""
        self.value = value
        for _, buffer in self._buffers:
            self._fill(buffer)

    def check(self) -> None:
        """Raises RuntimeError naming the regions next to which something was written."""
        touched = [
            name
            for name, buffer in self._buffers
            if (buffer[: self.size] != self.value).any() or (buffer[-self.size :] != self.value).any()
        ]
        if touched:
            raise RuntimeError(f"written outside of {', '.join(touched)}")

    def _fill(self, buffer: np.ndarray) -> None:
        buffer[: self.size] = buffer[-self.size :] = self.value


@contextlib.contextmanager
def guarded(size: int = 4096) -> Iterator[Guards]:
    """Regions that are mapped inside this block have guards of ``size`` bytes."""
    guards = Guards(size)
    unguarded = AddressSpace.map

    def mapped(self, name, space, base, size, data=None):  # type: ignore[no-untyped-def]
        taken = guards.region(name, size) if size > 0 else None
        if data is not None and taken is not None:
            taken[:] = data
        return unguarded(self, name, space, base, size, taken)

    with mock.patch.object(AddressSpace, "map", mapped):
        yield guards
