"""What the report shows of a run: the result, and what every operation wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.compare.naming import Names
from nvdla.compare.observation import Observation, Observer
from nvdla.doctor.examination import Examination, examine
from nvdla.errors import NvdlaError
from nvdla.study import Study
from nvdla.tensors.ranking import Rank, top

TOP = 5


@dataclass(frozen=True)
class RunView:
    """A run on one input. ``error``: why there is none. ``inputs`` and ``outputs``: tensors (N, C, H, W) by name."""

    inputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    outputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    ranks: dict[str, list[Rank]] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list, repr=False)
    error: str | None = None


def examine_and_run(
    study: Study,
    names: Names,
    inputs: Callable[[Any], list[list[bytes]]] | None,
    labels: list[str] | None = None,
) -> tuple[Examination, RunView | None]:
    """The doctor's findings, and with ``inputs`` a run on the first of them. Raises FormatError for unfit inputs."""
    made: list[tuple[Any, list[list[bytes]]]] = []

    def kept(runtime: Any) -> list[list[bytes]]:
        assert inputs is not None
        surfaces = inputs(runtime)
        made.append((runtime, surfaces))
        return surfaces

    found = examine(
        study.loadable, study.config.name, study.abi.name, names=names, inputs=kept if inputs else None
    )
    if inputs is None:
        return found, None
    if found.run_error is not None or not made or not made[0][1]:
        return found, RunView(error=found.run_error or "no input was given")
    runtime, surfaces = made[0]
    return found, _run(runtime, surfaces[0], names, labels)


def _run(runtime: Any, surfaces: list[bytes], names: Names, labels: list[str] | None) -> RunView:
    observer = Observer(names.layers)
    try:
        outputs = runtime.unpack(runtime.run_raw(surfaces, observer.see))
    except NvdlaError as error:
        return RunView(error=str(error))
    given = {
        tensor.name: tensor.layout.unpack(np.frombuffer(surface, np.uint8))
        for tensor, surface in zip(runtime.inputs, surfaces, strict=True)
    }
    ranks = {name: top(tensor[0], TOP, labels) for name, tensor in outputs.items()}
    return RunView(given, outputs, ranks, [each for each in observer.observations if each.surface is not None])
