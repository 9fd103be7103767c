"""From a study to a side of the page: examined, and with inputs run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nvdla.analysis.study import Study
from nvdla.doctor.examination import Examination
from nvdla.program.naming import Names
from nvdla.report.document import Side, side_of
from nvdla.report.pictures import ROOM
from nvdla.report.run import examine_and_run

#: makes the surfaces of each run once the network's inputs are known
Inputs = Callable[[Any], list[list[bytes]]]


def make_side(
    study: Study,
    names: Names,
    clock: float,
    inputs: Inputs | None = None,
    labels: Sequence[str] | None = None,
    sides: int = 1,
) -> tuple[Side, Examination]:
    """A side of a page that has so many ``sides``, and what the doctor found. ``clock`` in MHz; ``inputs``: makes the
    surfaces of the run that is shown. A loadable that cannot run is shown all the same. Raises FormatError for unfit
    inputs."""
    examination, view = examine_and_run(study, names, inputs, list(labels) if labels else None)
    return side_of(study, names, examination, view, clock, ROOM // sides), examination
