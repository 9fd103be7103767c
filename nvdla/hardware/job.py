"""Jobs: what engines make of their registers, and whoever runs them again may rely on.

A job is one operation of one engine, decoded and checked, ready to run again and again. What it reads and writes is
part of the protocol: :mod:`nvdla.execution` decides by it what must be restored before a run, what changes with the
data, and where a copy of the job works.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.limits import Work
from nvdla.memory.lanes import Lanes, Move

if TYPE_CHECKING:
    from typing_extensions import Self

    from nvdla.kernels.jit.record import Record

# What an engine hands to the next one on the fly: a cube, or None where the results went to memory.
Handed = np.ndarray | None


class Job(ABC):
    """One prepared operation of one engine (or, of a fused job, of several; then ``parts`` are what it stands for).

    ``destination`` is a uint8 view (surfaces, height, width, atom bytes) of what it writes, None on the fly.
    ``statistics`` holds the counters of the latest run (saturation, NaN, LUT hits, ...).
    """

    destination: np.ndarray | None = None
    statistics: dict[str, int]

    @property
    @abstractmethod
    def work(self) -> Work:
        """What a run of the job costs."""

    @property
    def needs_kernels(self) -> bool:
        """Whether a run takes compiled kernels: not all of them have plain forms
        (:mod:`nvdla.kernels.jit.compilation`)."""
        return True

    @property
    @abstractmethod
    def reads(self) -> list[np.ndarray]:
        """Views of all memory that a run may read."""

    @property
    @abstractmethod
    def writes(self) -> list[np.ndarray]:
        """Views of all memory that a run writes; it writes the whole of each."""

    @abstractmethod
    def run(self, source: Handed = None) -> Handed:
        """Compute. ``source`` is what the engine before hands over on the fly (None from memory); returns what the
        next engine on the fly takes, None when the result went to memory."""

    def records(self, source: Handed = None) -> tuple[list[Record], Handed] | None:
        """What :meth:`run` does as records of compiled kernels, and where they leave what the next engine takes on the
        fly; None where Python has a part in it."""
        return None

    @abstractmethod
    def _relocate(self, move: Move) -> None:
        """Replace every view on memory by its counterpart, and whatever a run changes by something of its own."""

    def account(self) -> None:
        """What a first run notes besides computing: nothing, but of convolutions. Raises ScheduleError."""
        return

    @property
    def parts(self) -> tuple[Job, ...]:
        """The jobs of single operations that this one does at once, in data order."""
        return (self,)

    def moved(self, move: Move) -> Self:
        """The same job on other memory. What no run changes (settings, tables, packed weights) is shared, so both may
        run at the same time."""
        job = copy.copy(self)
        job.statistics = {}
        job._relocate(move)
        return job

    def run_lanes(self, lanes: Lanes, count: int, handed: Handed = None) -> Handed:
        """:meth:`run` for ``count`` images in lanes 1, 2 ...; cubes on the fly have the images in front.

        This form goes by way of lane 0; engines may have a better one.
        """
        reads = [view for view in self.reads if lanes.holds(view)]
        writes = self.writes
        results: list[Any] = []
        for lane in range(1, count + 1):
            for view in reads:
                view[...] = lanes.at(view, lane)
            results.append(self.run(None if handed is None else handed[lane - 1]))
            for view in writes:
                lanes.at(view, lane)[...] = view
        return None if results[0] is None else np.stack(results)
