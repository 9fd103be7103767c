"""What a run left behind, operation by operation: the surfaces as tensors, with the names of their layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from nvdla.errors import FormatError
from nvdla.program.operation import Key, Keyed, Operation
from nvdla.program.program import Program

if TYPE_CHECKING:
    from nvdla.execution.steps import OperationEvent

#: channels of a result whose descriptor names none (BDMA): all that are there
ALL_CHANNELS = 1 << 30


@dataclass(frozen=True)
class Observation(Keyed):
    """One operation as it completed.

    ``key``: (task, region of interest, index). ``surface``: a copy (surfaces, height, width, atom bytes) of what it
    wrote, None on the fly. ``taken_from``: indices of the operations whose results it took on the fly, first to last.
    """

    key: Key
    engine: str
    layer: str | None
    dtype: np.dtype
    channels: int
    surface: np.ndarray | None = field(repr=False)
    statistics: dict[str, int] = field(default_factory=dict, repr=False)
    taken_from: tuple[int, ...] = ()

    @cached_property
    def tensor(self) -> np.ndarray:
        """The elements (1, C, H, W) without padding channels, of an operation that wrote to memory."""
        return dense(self.written, self.dtype, self.channels)

    @property
    def written(self) -> np.ndarray:
        """:attr:`surface` of an operation that wrote to memory. Raises FormatError for one that did not."""
        if self.surface is None:
            raise FormatError(f"{self} hands its result on the fly: there is no tensor in memory")
        return self.surface

    def __str__(self) -> str:
        return f"operation {self.task}/{self.index} ({self.engine.upper()})"


def dense(surface: np.ndarray, dtype: np.dtype, channels: int) -> np.ndarray:
    """A surface (surfaces, height, width, atom bytes) as (1, C, H, W) elements without padding channels."""
    elements = np.ascontiguousarray(surface).view(dtype)
    surfaces, height, width, atom = elements.shape
    cube = np.moveaxis(elements, -1, 1).reshape(surfaces * atom, height, width)
    return np.ascontiguousarray(cube[: min(channels, surfaces * atom)])[None]


class Observer:
    """Collects the observations of a run; give :meth:`see` to it as ``on_operation``.

    ``program`` says what an operation is: its element type, its layer, what it takes on the fly
    (:meth:`nvdla.Runtime.program`). ``then`` is called with each observation as it comes (it may raise to end the run).
    """

    def __init__(self, program: Program, then: Callable[[Observation], None] | None = None) -> None:
        self.observations: list[Observation] = []
        self._operations = program.by_key
        self._then = then
        self._taken_from = {
            operation.key: tuple(each.index for each in chain[:place])
            for chain in program.chains
            for place, operation in enumerate(chain)
        }

    def see(self, event: OperationEvent) -> None:
        """Take an event of the run."""
        operation = self._operations[event.task, event.roi, event.index]
        observation = Observation(
            operation.key,
            operation.engine,
            operation.layer,
            written_type(operation),
            operation.output[0] if operation.output is not None else ALL_CHANNELS,
            None if event.destination is None else np.array(event.destination),
            event.statistics,
            self._taken_from[operation.key],
        )
        self.observations.append(observation)
        if self._then:
            self._then(observation)


def written_type(operation: Operation) -> np.dtype:
    """Element type of what an operation writes; bytes for BDMA, which knows no elements."""
    return np.dtype("u1") if operation.precisions is None else operation.precisions[1].dtype
