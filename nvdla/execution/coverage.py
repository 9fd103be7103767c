"""Which memories a run must find as they were loaded: those of which it shows, or reads, bytes that it has not written.

All others need no clearing between runs: surfaces that a network hands from layer to layer are written whole before
anything of them is read, and clearing them takes a large network as long as a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from nvdla.execution.steps import CpuStep, Step
from nvdla.memory.linker import LinkedLoadable
from nvdla.memory.pages import footprint


def must_be_cleared(steps: Sequence[Step], linked: LinkedLoadable, touched: Iterable[int]) -> set[int]:
    """Of the ``touched`` memories those that must be as loaded before a run."""
    masks = {each: _Mask(linked.regions[each].data) for each in touched if each in linked.regions}
    entries = {memory.id: memory for memory in linked.loadable.memories}
    wanted = {each for each in masks if entries[each].contents or entries[each].is_input} | set(touched) - set(masks)
    for step in steps:
        for view in step.reads:
            wanted |= {each for each, mask in masks.items() if not mask.holds_all(view)}
        # A CPU task writes somewhere in the memory that it names.
        for view in [] if isinstance(step, CpuStep) else step.writes:
            for mask in masks.values():
                mask.write(view)
    outputs = {each for each in masks if entries[each].is_output}
    return wanted | {each for each in outputs if not masks[each].written.all()}


class _Mask:
    """What of a memory has been written."""

    def __init__(self, data: np.ndarray) -> None:
        self._start = data.ctypes.data
        self.written = np.zeros(data.size, bool)

    def holds_all(self, view: np.ndarray) -> bool:
        """True when all bytes of the view that lie in this memory have been written."""
        if not self._meets(view):
            return True
        found = self._within(view)
        return found is not None and bool(found.all())

    def write(self, view: np.ndarray) -> None:
        """Note that a run writes the whole view, if it lies in this memory as a whole."""
        found = self._within(view) if self._meets(view) else None
        if found is not None:
            found[...] = True

    def _meets(self, view: np.ndarray) -> bool:
        if not view.size or min(view.strides, default=0) < 0:
            return bool(view.size)
        low = view.ctypes.data
        return low < self._start + self.written.size and low + footprint(view) > self._start

    def _within(self, view: np.ndarray) -> np.ndarray | None:
        """The places of the view's bytes; None where not all of them are in this memory, or that cannot be told."""
        if view.itemsize != 1 or min(view.strides, default=0) < 0:
            return None
        first = view.ctypes.data - self._start
        inside = first >= 0 and first + footprint(view) <= self.written.size
        return np.ndarray(view.shape, bool, self.written.data, first, view.strides) if inside else None
