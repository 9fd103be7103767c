"""Writing the layer file of a loadable (:mod:`nvdla.program.sidecar`)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nvdla.analysis.cycles.constants import Memory
from nvdla.builder.ir import LoweredProgram
from nvdla.builder.schedule import ScheduledDlaTask, Task
from nvdla.builder.weigh import Weigher
from nvdla.descriptors.enums import OpType
from nvdla.files import whole_file
from nvdla.program.sidecar import FORMAT, VERSION, path_of


def describe(
    program: LoweredProgram, config: str, tasks: list[Task], weigher: Weigher, search: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The sidecar of a program as plain data. ``search``: the record of level 2's."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": program.name,
        "config": config,
        "precision": program.precision,
        "tensors": {
            name: {
                "scale": surface.scale,
                "shape": list(surface.shape),
                "precision": surface.precision,
                **({"zero_point": surface.zero} if surface.zero else {}),
            }
            for name, surface in program.tensors.items()
        },
        "tasks": [_task(number, task) for number, task in enumerate(tasks)],
        "weighed": {**_weighed(tasks, weigher, search), "groups": _groups(program, tasks)},
        "pixels": {
            root.name: root.converter.numbers.document() for root in program.inputs if root.converter is not None
        },
    }


def _weighed(tasks: list[Task], weigher: Weigher, search: dict[str, Any] | None) -> dict[str, Any]:
    """For which memory, and of each convolution that had a choice its operations and the forms, with the cycles of each
    alone in a queue."""
    memory = weigher.memory or Memory()
    operations: dict[int, list[str]] = {}
    for number, task in enumerate(tasks):
        for each in task.operations if isinstance(task, ScheduledDlaTask) else ():
            if each.type == OpType.CONV:
                operations.setdefault(each.position, []).append(f"{number}/{each.index}")
    layers = [
        {
            "layer": choice.layer,
            "operations": operations[position],
            "taken": choice.taken,
            "forms": [form.document() for form in choice.forms],
        }
        for position, choice in sorted(weigher.choices.items())
    ]
    return {"level": weigher.level, "memory": asdict(memory), "layers": layers, "search": search}


def _groups(program: LoweredProgram, tasks: list[Task]) -> list[dict[str, Any]]:
    """Of each convolution of groups its operations, and the cycles of all of it for numbers of groups that one dense
    convolution takes."""
    operations: dict[str, list[str]] = {}
    for number, task in enumerate(tasks):
        for each in task.operations if isinstance(task, ScheduledDlaTask) else ():
            if each.type == OpType.CONV:
                operations.setdefault(each.layer, []).append(f"{number}/{each.index}")
    return [
        {
            "layer": choice.layer,
            "groups": choice.groups,
            "operations": operations[choice.layer],
            "taken": choice.taken,
            "forms": [asdict(form) for form in choice.forms],
        }
        for choice in program.grouped
        if choice.layer in operations
    ]


def _task(number: int, task: Task) -> dict[str, Any]:
    if not isinstance(task, ScheduledDlaTask):
        operation = {"index": 0, "engine": "cpu", "layer": task.operation.layer, "part": ""}
        return {"task": number, "kind": "cpu", "operations": [operation]}
    operations = [
        {"index": each.index, "engine": OpType(each.type).name.lower(), "layer": each.layer, "part": each.part}
        for each in task.operations
    ]
    return {"task": number, "kind": "dla", "operations": operations}


def save(data: dict[str, Any], loadable: str | Path) -> Path:
    """Write the sidecar of a loadable, whole or not at all."""
    path = path_of(loadable)
    with whole_file(path) as stream:
        stream.write(json.dumps(data, indent=1, sort_keys=True).encode("utf-8") + b"\n")
    return path
