"""What a run left behind, operation by operation: the surfaces as tensors, with the names of their layers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from nvdla.descriptors.enums import MemType, OpType
from nvdla.descriptors.meaning import precisions_of
from nvdla.errors import FormatError
from nvdla.program.handover import BEHIND

Key = tuple[int, int, int]

#: engine that can take the result of another on the fly -> that other
_BEFORE = {taker.name.lower(): giver.name.lower() for giver, taker in BEHIND.items()}


@dataclass(frozen=True)
class Observation:
    """One operation as it completed.

    ``surface``: a copy (surfaces, height, width, atom bytes) of what it wrote, None on the fly. ``fused``: indices of
    the operations whose results it took on the fly, first to last.
    """

    task: int
    index: int
    roi: int
    engine: str
    layer: str | None
    dtype: np.dtype
    channels: int
    surface: np.ndarray | None = field(repr=False)
    statistics: dict[str, int] = field(default_factory=dict, repr=False)
    fused: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        """(task, index, region of interest)."""
        return self.task, self.index, self.roi

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
        return f"task {self.task} operation {self.index} ({self.engine.upper()})"


def dense(surface: np.ndarray, dtype: np.dtype, channels: int) -> np.ndarray:
    """A surface (surfaces, height, width, atom bytes) as (1, C, H, W) elements without padding channels."""
    elements = np.ascontiguousarray(surface).view(dtype)
    surfaces, height, width, atom = elements.shape
    cube = np.moveaxis(elements, -1, 1).reshape(surfaces * atom, height, width)
    return np.ascontiguousarray(cube[: min(channels, surfaces * atom)])[None]


class Observer:
    """Collects observations; give :meth:`see` to a run as ``on_operation``.

    ``then`` is called with each observation as it comes (it may raise to end the run). ``layers`` gives names.
    """

    def __init__(
        self, layers: dict[tuple[int, int], str] | None = None, then: Callable[[Observation], None] | None = None
    ) -> None:
        self.observations: list[Observation] = []
        self._layers = layers or {}
        self._then = then
        self._flying: dict[tuple[int, str], deque[tuple[int, ...]]] = defaultdict(deque)

    def see(self, event: Any) -> None:
        """Take an event of a run (:class:`nvdla.execution.steps.OperationEvent`)."""
        surface = event.descriptor.surface
        target = getattr(surface, "dst_data", None)
        fused = self._taken(event)
        if event.destination is None:
            self._flying[event.task, event.engine].append((*fused, event.index))
        observation = Observation(
            event.task,
            event.index,
            event.roi,
            event.engine,
            self._layers.get((event.task, event.index)),
            written_type(event.engine, event.descriptor.op),
            target.channel if target is not None else 1 << 30,
            None if event.destination is None else np.array(event.destination),
            event.statistics,
            fused,
        )
        self.observations.append(observation)
        if self._then:
            self._then(observation)

    def _taken(self, event: Any) -> tuple[int, ...]:
        """The operations that worked on the fly for this one: engines complete in order, so they queue up."""
        before = _BEFORE.get(event.engine)
        if before is None or event.descriptor.surface.src_data.type != MemType.HW:
            return ()
        waiting = self._flying[event.task, before]
        return waiting.popleft() if waiting else ()


def written_type(engine: str, op: Any) -> np.dtype:
    """Element type of what an operation writes; bytes for BDMA, which knows no elements."""
    found = precisions_of(OpType[engine.upper()], op)
    return np.dtype("u1") if found is None else found[1].dtype
