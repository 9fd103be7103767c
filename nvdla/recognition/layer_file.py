"""The layer file of what was recognised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvdla.program.program import Program
from nvdla.program.sidecar import FORMAT, VERSION
from nvdla.recognition.match import Recognised


def layer_file(
    program: Program, network: str, found: Recognised, scales: Mapping[str, float], before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """A layer file's document. ``scales``: real value of one unit by tensor; ``before``: the layer file that was there,
    whose tensors and preprocessing stay."""
    known = dict(before or {})
    tensors = dict(known.get("tensors") or {})
    for name, scale in scales.items():
        tensors[name] = {**tensors.get(name, {}), "scale": scale}
    precision = next((each.precision for each in program.operations if each.precision), None)
    return {
        **known,
        "format": FORMAT,
        "version": VERSION,
        "network": network,
        "config": program.config.name,
        "precision": (precision or "").partition(" ")[0].lower(),
        "tensors": tensors,
        "tasks": [_task(program, task, found) for task in program.submitted],
    }


def _task(program: Program, task: int, found: Recognised) -> dict[str, Any]:
    named = {
        each.index: {
            "index": each.index,
            "engine": each.engine,
            "layer": found.layers[task, each.index],
            "part": "",
            "confidence": found.confidence[task, each.index],
        }
        for each in program.operations
        if each.task == task and (task, each.index) in found.layers
    }
    kind = "cpu" if task in program.cpu_tasks else "dla"
    return {"task": task, "kind": kind, "operations": list(named.values())}
