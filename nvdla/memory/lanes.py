"""Lanes: the memories of a network that change, several times over, so that a batch of images lies side by side.

Lane 0 is what the firmware and the engines see. Lane i repeats it ``i * stride`` bytes further on: what lies at an
address in lane 0 has its counterpart for another image at the same place of another lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from nvdla.memory.pages import footprint

Thing = TypeVar("Thing")

_view: Callable[..., np.ndarray] = np.ndarray


class Lanes:
    """``count`` lanes of ``size`` bytes each, all zero."""

    def __init__(self, count: int, size: int) -> None:
        self._memory = np.zeros((count, size), np.uint8)
        self.count, self.stride = count, size

    def region(self, offset: int, size: int) -> np.ndarray:
        """``size`` bytes of lane 0 (uint8 view)."""
        return self._memory[0, offset : offset + size]

    def holds(self, view: np.ndarray) -> bool:
        """True when the first byte of the view lies in lane 0."""
        return 0 <= self._offset(view) < self.stride

    def holds_all(self, view: np.ndarray) -> bool:
        """True when all bytes of the view lie in lane 0."""
        return self.holds(view) and self._offset(view) + footprint(view) <= self.stride

    def at(self, view: np.ndarray, lane: int) -> np.ndarray:
        """The counterpart in ``lane`` of a view of lane 0; of another view itself."""
        if not self.holds(view):
            return view
        offset = lane * self.stride + self._offset(view)
        return _view(view.shape, view.dtype, self._memory, offset, view.strides)

    def across(self, view: np.ndarray, count: int) -> np.ndarray:
        """The counterparts in lanes 1 to ``count`` of a view of lane 0, (count, ...); of another view itself."""
        if not self.holds(view):
            return np.broadcast_to(view, (count, *view.shape))
        strides = (self.stride, *view.strides)
        return _view((count, *view.shape), view.dtype, self._memory, self.stride + self._offset(view), strides)

    def flat(self, view: np.ndarray, first: int, count: int) -> np.ndarray:
        """int8 bytes from where the view begins in lane ``first`` to where it ends ``count`` lanes further on.

        ``view``: uint8, of lane 0, strides not negative.
        """
        offset = first * self.stride + self._offset(view)
        return _view(((count - 1) * self.stride + footprint(view),), np.int8, self._memory, offset)

    def _offset(self, view: np.ndarray) -> int:
        return view.ctypes.data - self._memory.ctypes.data

    def counterpart(self, view: np.ndarray, target: Lanes) -> np.ndarray:
        """What lies at the place of a view of lane 0 in lane 0 of ``target``; of another view itself."""
        if not view.size or not self.holds(view):
            return view
        return _view(view.shape, view.dtype, target._memory, self._offset(view), view.strides)


class Move:
    """From the memories that change of one run to those of another that goes on at the same time.

    Calling it gives the counterpart of a view; constants, which both share, stay where they are.
    """

    def __init__(self, source: Lanes, target: Lanes) -> None:
        self._source, self._target = source, target
        self._made: dict[int, tuple[Any, Any]] = {}

    def __call__(self, view: np.ndarray) -> np.ndarray:
        return self._source.counterpart(view, self._target)

    def once(self, thing: Thing, make: Callable[[], Thing]) -> Thing:
        """What takes the place of something that several jobs have in common: made by ``make`` for the first of them.

        (The thing is kept, so that no other can get its identity.)
        """
        if id(thing) not in self._made:
            self._made[id(thing)] = thing, make()
        made: Thing = self._made[id(thing)][1]
        return made
