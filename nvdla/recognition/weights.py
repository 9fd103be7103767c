"""Whether a convolution of a loadable holds the weights of a layer: by the angles between their kernels."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from nvdla.containers.loadable_parameters import LoadableParameters
from nvdla.errors import NvdlaError
from nvdla.program.operation import Operation
from nvdla.program.program import Program
from nvdla.recognition.model_graph import ModelLayer
from nvdla.recognition.units import Unit

#: mean |cosine| of kernels: of the same weights, quantised and scaled a kernel, it is above 0.99; of others near 0
SAME = 0.8
#: kernels that are looked at, evenly spread
MOST_KERNELS = 64
MOST_ELEMENTS = 1 << 22


class Weights:
    """The weights of a program's convolutions, decoded when asked for."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[int, int], np.ndarray | None] = {}
        self._answers: dict[tuple[int, int, str], bool | None] = {}

    def agree(self, unit: Unit, layer: ModelLayer) -> bool | None:
        """True where a convolution holds a layer's weights, False where it holds others, None where nobody can say."""
        if layer.weights is None or layer.kind != "conv":
            return None
        key = (unit.first.task, unit.first.index, layer.name)
        if key not in self._answers:
            self._answers[key] = self._compared(unit, layer.weights)
        return self._answers[key]

    def _compared(self, unit: Unit, model: np.ndarray) -> bool | None:
        ours = self._of(unit.first)
        if ours is None:
            return None
        theirs = _like(model, ours.shape)
        if theirs is None:
            return None
        count = len(ours)
        likeness = max(_likeness(ours, theirs[first : first + count]) for first in _places(len(theirs), count))
        if likeness >= SAME:
            return True
        return None if not unit.plain else False

    @cached_property
    def _slots(self) -> dict[str, int]:
        found = {}
        for place, slot in enumerate(self._parameters.slots if self._parameters else ()):
            for name in (slot.name, *slot.metadata.get("shared_with", ())):
                found[name] = place
        return found

    @cached_property
    def _parameters(self) -> LoadableParameters | None:
        try:
            return LoadableParameters(self._program.loadable, self._program.config.name)
        except NvdlaError:  # weights that cannot be decoded are no evidence
            return None

    def _of(self, operation: Operation) -> np.ndarray | None:
        """(K, C, R, S), or None where it has none that can be compared."""
        key = (operation.task, operation.index)
        if key not in self._known:
            self._known[key] = self._decoded(f"task{operation.task}.conv{operation.index}.weights")
        return self._known[key]

    def _decoded(self, name: str) -> np.ndarray | None:
        place = self._slots.get(name)
        if place is None or self._parameters is None:
            return None
        slot = self._parameters.slots[place]
        if slot.metadata.get("transformed") or int(np.prod(slot.shape)) > MOST_ELEMENTS:
            return None
        try:
            return self._parameters.decode(slot)
        except NvdlaError:
            return None


def _places(kernels: int, count: int) -> range:
    """Where a part of the kernels may begin."""
    return range(0, max(kernels - count, 0) + 1, count)


def _like(model: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """A layer's weights in the form of a convolution's (C, R, S): groups filled with zeros, inner products cut."""
    kernels, channels, *window = model.shape
    wanted = int(np.prod(shape[1:]))
    if channels * int(np.prod(window)) == wanted:
        return model.reshape(kernels, *shape[1:])
    if tuple(window) != tuple(shape[2:]) or shape[1] % channels or kernels % (shape[1] // channels):
        return None
    groups = shape[1] // channels
    wide = np.zeros((kernels, shape[1], *window), model.dtype)
    for group in range(groups):
        mine = slice(group * kernels // groups, (group + 1) * kernels // groups)
        wide[mine, group * channels : (group + 1) * channels] = model[mine]
    return wide


def _likeness(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Mean |cosine| of kernels; those that are 0 say nothing."""
    if len(ours) != len(theirs):
        return 0.0
    chosen = np.unique(np.linspace(0, len(ours) - 1, min(len(ours), MOST_KERNELS)).astype(int))
    one, other = (array[chosen].astype(np.float64).reshape(len(chosen), -1) for array in (ours, theirs))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    some = np.isfinite(lengths) & (lengths > 0)
    return float(np.abs((one[some] * other[some]).sum(axis=1) / lengths[some]).mean()) if some.any() else 0.0
