"""Writing the layer file of a loadable (:mod:`nvdla.program.sidecar`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvdla.builder.ir import Program
from nvdla.builder.schedule import DlaTask, Task
from nvdla.descriptors.enums import OpType
from nvdla.files import whole_file
from nvdla.program.sidecar import FORMAT, VERSION, path_of


def describe(program: Program, config: str, tasks: list[Task]) -> dict[str, Any]:
    """The sidecar of a program as plain data."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "network": program.name,
        "config": config,
        "precision": program.precision,
        "tensors": {
            name: {"scale": surface.scale, "shape": list(surface.shape), "precision": surface.precision}
            for name, surface in program.tensors.items()
        },
        "tasks": [_task(number, task) for number, task in enumerate(tasks)],
    }


def _task(number: int, task: Task) -> dict[str, Any]:
    if not isinstance(task, DlaTask):
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
