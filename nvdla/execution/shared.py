"""What the fused jobs of a plan have in common: memory for what does not last, and packed weights."""

from __future__ import annotations

import numpy as np

from nvdla.memory.pages import footprint


class Scratch:
    """Memory that the fused jobs of a plan use one after the other; nothing in it lasts."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._size = 0

    def reserve(self, size: int) -> None:
        """Say before anything is taken how much will be: then all take the same memory."""
        self._size = max(self._size, size)

    def take(self, size: int) -> np.ndarray:
        """``size`` bytes with anything in them."""
        self.reserve(size)
        if self._memory.size < size:
            self._memory = np.empty(self._size, np.uint8)
        return self._memory[:size]


class Shared:
    """What the fused jobs of a plan have in common: memory for padded data and for what is handed to PDP, and packed
    weights. Layers with the same weights (averages are) read them from one place, which stays in the cache."""

    def __init__(self) -> None:
        self.data = Scratch()
        self.handed = Scratch()
        self._packed: dict[tuple[tuple[int, ...], bytes], list[np.ndarray]] = {}

    def packed(self, weights: np.ndarray) -> np.ndarray:
        """The packed weights, or the same ones of an earlier job."""
        equal = self._packed.setdefault((weights.shape, weights.reshape(-1)[:4096].tobytes()), [])
        for known in equal:
            if np.array_equal(known, weights):
                return known
        equal.append(weights)
        return weights


def flat_bytes(view: np.ndarray) -> np.ndarray:
    """The footprint of a cube as flat int8, from its first byte to its last; lines may overlap or stand apart."""
    return np.lib.stride_tricks.as_strided(view.view(np.int8), (footprint(view),), (1,))
