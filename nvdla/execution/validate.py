"""``NVDLA_VALIDATE=1``: the jobs of single operations run beside every fused job, and must write the same bytes.

It costs what the fused jobs had saved, and more; it is for whoever doubts a result, or changes a fast form.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from nvdla.errors import ScheduleError
from nvdla.execution.steps import Chain
from nvdla.hardware.job import Job
from nvdla.memory.lanes import Lanes, Move

VARIABLE = "NVDLA_VALIDATE"


def validates() -> bool:
    """True where the user asked for it."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


class Validated(Chain):
    """Jobs, and the ``references``, one after the other, that must write the same. Their bytes stay in memory."""

    def __init__(self, jobs: tuple[Job, ...], *references: Chain) -> None:
        super().__init__(jobs)
        object.__setattr__(self, "references", references)

    references: tuple[Chain, ...]

    def run(self) -> None:
        """Do the chain, and its references beside it; they must agree."""

        def references() -> None:
            for each in self.references:
                each.run()

        self._compare(self._written, super().run, references)

    def run_lanes(self, lanes: Lanes, count: int) -> None:
        """Do the chain for several images, and its references beside it; they must agree."""
        views = [lanes.across(view, count) for view in self._written if lanes.holds(view)]
        fused = super().run_lanes

        def references() -> None:
            for each in self.references:
                each.run_lanes(lanes, count)

        self._compare(views, lambda: fused(lanes, count), references)

    def moved(self, move: Move) -> Validated:
        """A copy of it on other memory."""
        return Validated(super().moved(move).jobs, *(each.moved(move) for each in self.references))

    @property
    def _written(self) -> list[np.ndarray]:
        return [view for each in self.references for view in each.writes]

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
