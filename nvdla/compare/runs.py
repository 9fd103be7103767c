"""Another run as the reference: other configuration, threads or inputs, or another loadable of the same network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nvdla.compare.alignment import align
from nvdla.compare.comparison import Expected, observe, padding_note
from nvdla.compare.naming import Names
from nvdla.compare.observation import Observation, Observer

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
        observations, self._outputs = observe(runtime, surfaces, names.layers)
        self._tensors = runtime.unpack(self._outputs)
        self._match, self.aligned = self._aligned(observations, ours, our_surfaces, our_names)

    def _aligned(
        self, theirs: list[Observation], ours: Runtime, surfaces: Sequence[bytes], names: Names
    ) -> tuple[dict, str]:
        """Match with what our run will do. Our own run is only made here when the loadables differ."""
        if ours.loadable == self.runtime.loadable:
            return {each.key: each for each in theirs if each.surface is not None}, "position"
        observer = Observer(names.layers)
        ours.run_raw(surfaces, observer.see)
        return align(observer.observations, theirs)

    def operation(self, observation: Observation) -> Expected | None:
        other = self._match.get(observation.key)
        if other is None:
            return None
        if other.dtype != observation.dtype:
            return Expected(str(other), other.tensor, note=f"{observation.dtype} against {other.dtype}")
        return Expected(str(other), other.tensor, note=padding_note(observation, other.surface, other.tensor))

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        """The output of the same name, else the one in the same place."""
        names = list(self._tensors)
        name = tensor.name if tensor.name in names else names[index] if index < len(names) else None
        if name is None or self._tensors[name].size != array.size:
            return None
        return Expected(f"output {name}", self._tensors[name])
