"""Another run as the reference: other configuration, threads or inputs, or another loadable of the same network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nvdla.compare.alignment import align
from nvdla.compare.comparison import Expected, observe, padding_note
from nvdla.compare.floats import fitted
from nvdla.compare.observation import Observation, Observer
from nvdla.program.naming import Names
from nvdla.program.operation import Key

if TYPE_CHECKING:
    from nvdla.runtime import Runtime, Tensor


class RunReference:
    """The tensors of a run that is made here. ``aligned``: how operations were matched ("position", ...)."""

    kind = "run"

    def __init__(
        self,
        runtime: Runtime,
        surfaces: Sequence[bytes],
        names: Names,
        ours: Runtime,
        our_surfaces: Sequence[bytes],
        our_names: Names,
    ) -> None:
        self.runtime = runtime
        self._names, self._our_names = names, our_names
        observations, self._outputs = observe(runtime, surfaces, names.layers)
        self._tensors = runtime.unpack(self._outputs)
        self._match, self.aligned = self._aligned(observations, ours, our_surfaces, our_names)

    def _aligned(
        self, theirs: list[Observation], ours: Runtime, surfaces: Sequence[bytes], names: Names
    ) -> tuple[dict[Key, Observation], str]:
        """Match with what our run will do. Our own run is only made here when the loadables differ."""
        if ours.loadable == self.runtime.loadable:
            return {each.key: each for each in theirs if each.surface is not None}, "position"
        observer = Observer(ours.program(names.layers))
        ours.run_raw(surfaces, observer.see)
        return align(observer.observations, theirs)

    def operation(self, observation: Observation) -> Expected | None:
        """What the other run's operation wrote."""
        other = self._match.get(observation.key)
        if other is None:
            return None
        if other.dtype.kind != observation.dtype.kind:
            units = _units(self._our_names, observation.layer), _units(self._names, other.layer)
            return _real(str(other), observation.tensor, other.tensor, *units)
        note = padding_note(observation, other.written, other.tensor) if other.dtype == observation.dtype else None
        return Expected(str(other), other.tensor, note=note)

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        """The output of the same name, else the one in the same place."""
        names = list(self._tensors)
        name = tensor.name if tensor.name in names else names[index] if index < len(names) else None
        if name is None or self._tensors[name].size != array.size:
            return None
        theirs = self._tensors[name]
        if theirs.dtype.kind != array.dtype.kind:
            units = _units(self._our_names, tensor.name), _units(self._names, name)
            return _real(f"output {name}", array, theirs, *units)
        return Expected(f"output {name}", theirs)


Units = tuple[float | None, int]
"""What one unit stands for, None where that is not known, and the element that stands for 0."""


def _units(names: Names, name: str | None) -> Units:
    return names.scale(name), names.zero_point(name)


def _real(name: str, ours: np.ndarray, theirs: np.ndarray, our_units: Units, their_units: Units) -> Expected:
    """Integers against halves: as real numbers; a scale that is not known is fitted."""
    note = f"{ours.dtype} against {theirs.dtype}"
    real = theirs.astype(np.float32)
    if theirs.dtype.kind == "f":
        scale, zero = our_units
        if scale is None:
            scale, note = fitted(real, ours), f"{note}, scale fitted"
        return Expected(name, real, scale=scale, note=note, zero=zero)
    factor, zero = their_units
    if factor is None:
        factor, note = fitted(ours.astype(np.float32), theirs), f"{note}, scale fitted"
    return Expected(name, (real - np.float32(zero)) * np.float32(factor), scale=1.0, note=note)
