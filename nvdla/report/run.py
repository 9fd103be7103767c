"""What the page shows of a run: the result, and what every operation wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.analysis.study import Study
from nvdla.compare.observation import Observation
from nvdla.doctor.examination import Examination, FirstRun, examine
from nvdla.program.naming import Names
from nvdla.program.operation import Key
from nvdla.report.pictures import Pictures
from nvdla.tensors.ranking import Rank, top

TOP = 5

Row = dict[str, Any]


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
    """The doctor's findings, and with ``inputs`` its run on the first of them. Raises FormatError for unfit inputs."""
    recording = FirstRun()
    found = examine(study.loadable, study.config.name, study.abi.name, names=names, inputs=inputs, recording=recording)
    if inputs is None:
        return found, None
    if found.run_error is not None or recording.runtime is None:
        return found, RunView(error=found.run_error or "no input was given")
    return found, _view(recording, labels)


def _view(recording: FirstRun, labels: list[str] | None) -> RunView:
    runtime = recording.runtime
    given = {
        tensor.name: tensor.layout.unpack(np.frombuffer(surface, np.uint8))
        for tensor, surface in zip(runtime.inputs, recording.surfaces, strict=True)
    }
    outputs = runtime.unpack(recording.outputs)
    ranks = {name: top(tensor[0], TOP, labels) for name, tensor in outputs.items()}
    return RunView(given, outputs, ranks, recording.observations)


def run_rows(view: RunView, examination: Examination, names: Names, number: dict[Key, int], pictures: Pictures) -> Row:
    """The run as plain data: tensors by their numbers in ``pictures``. ``wrote``: operation -> its tensor;
    ``counted``: operation -> what its hardware counters say."""
    if view.error is not None:
        return {"error": view.error, "inputs": [], "outputs": [], "wrote": {}, "counted": {}}
    inputs = [
        [name, pictures.add(tensor[:1], names.scale(name), name, names.zero_point(name))]
        for name, tensor in view.inputs.items()
    ]
    outputs = []
    for name, tensor in view.outputs.items():
        rows = [[rank.index, rank.value, rank.label] for rank in view.ranks[name]]
        outputs.append([name, pictures.add(tensor[:1], names.scale(name), name, names.zero_point(name)), rows])
    wrote = {}
    for seen in view.observations:
        if seen.tensor is not None and seen.key in number and seen.tensor.size:
            wrote[number[seen.key]] = pictures.add(
                seen.tensor, names.scale(seen.layer), seen.layer or "", names.zero_point(seen.layer)
            )
    counted = {
        number[each["task"], 0, each["operation"]]: each["statistics"]
        for each in examination.tensors
        if each.get("statistics") and (each["task"], 0, each["operation"]) in number
    }
    return {"error": None, "inputs": inputs, "outputs": outputs, "wrote": wrote, "counted": counted}
