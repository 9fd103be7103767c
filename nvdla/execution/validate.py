"""``NVDLA_VALIDATE=1``: the jobs of single operations run beside every fused job, and must write the same bytes.

It costs what the fused jobs had saved, and more; it is for whoever doubts a result, or changes a fast form.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nvdla.errors import ScheduleError
from nvdla.execution.steps import Chain
from nvdla.memory.lanes import Lanes, Move

VARIABLE = "NVDLA_VALIDATE"


def validates() -> bool:
    """True where the user asked for it."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


@dataclass(frozen=True)
class Validated(Chain):
    """Jobs, and the ``reference`` that must write the same. The bytes of the reference stay in memory."""

    reference: Chain

    def run(self) -> None:
        """Do the chain, and its reference beside it; they must agree."""
        self._compare(self.reference.writes, super().run, self.reference.run)

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Do the chain for several images, and its reference beside it; they must agree."""
        views = [lanes.across(view, count) for view in self.reference.writes if lanes.holds(view)]
        fused = super().run_lanes
        self._compare(views, lambda: fused(lanes, count), lambda: self.reference.run_lanes(lanes, count))

    def moved(self, move: Move) -> Validated:
        """A copy of it on other memory."""
        return Validated(super().moved(move).jobs, self.reference.moved(move))

    def _compare(self, views: list[np.ndarray], fused: Callable[[], None], reference: Callable[[], None]) -> None:
        before = [view.copy() for view in views]
        fused()
        found = [view.copy() for view in views]
        for view, bytes_before in zip(views, before, strict=True):
            view[...] = bytes_before
        reference()
        wrong = sum(int(np.count_nonzero(view != each)) for view, each in zip(views, found, strict=True))
        if wrong:
            names = " + ".join(type(part).__name__ for job in self.jobs for part in job.parts)
            raise ScheduleError(
                f"{VARIABLE}: the fused job of {names} wrote {wrong} bytes that differ from what its operations write "
                "one after the other; please report this loadable"
            )
