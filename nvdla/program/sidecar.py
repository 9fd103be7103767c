"""Names of layers beside a loadable: which operation of which task belongs to which layer.

A loadable has no room for layer names, so they lie in ``<loadable>.layers.json``::

    {"format": "nvdla-layers", "version": 1, "network": "lenet", "config": "nv_small", "precision": "int8",
     "tensors": {"conv1": {"scale": 0.01, "shape": [20, 24, 24]}},
     "tasks": [{"task": 0, "kind": "dla",
                "operations": [{"index": 0, "engine": "conv", "layer": "conv1+relu1", "part": ""}]}]}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nvdla.errors import FormatError
from nvdla.files import read_file

FORMAT, VERSION = "nvdla-layers", 1
SUFFIX = ".layers.json"
MAX_FILE = 16 << 20


def path_of(loadable: str | Path) -> Path:
    """Where the layer file of a loadable lies."""
    return Path(str(loadable) + SUFFIX)


def load(loadable: str | Path) -> dict[str, Any] | None:
    """The sidecar of a loadable, None where there is none. Raises FormatError when it is not one."""
    path = path_of(loadable)
    if not path.is_file():  # nobody asked for it, so a pipe is not waited for
        return None
    try:
        data = json.loads(read_file(path, MAX_FILE, "layer file"))
    except (ValueError, RecursionError) as reason:
        raise FormatError(f"{path}: is not JSON: {reason}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("tasks"), list):
        raise FormatError(f"{path}: is not a layer file (format {FORMAT!r} with a list of tasks)")
    if data.get("version") != VERSION:
        raise FormatError(f"{path}: layer file version {data.get('version')!r}, this release reads {VERSION}")
    return data


def layers(data: dict[str, Any]) -> dict[tuple[int, int], str]:
    """(task, operation) -> layer, from a sidecar."""
    names: dict[tuple[int, int], str] = {}
    for task in data["tasks"]:
        try:
            for operation in task["operations"]:
                names[int(task["task"]), int(operation["index"])] = str(operation["layer"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise FormatError("layer file: a task needs its number and operations with index and layer") from None
    return names


def builders_choices(loadable: str | Path) -> dict[str, dict[str, Any]]:
    """What the builder weighed for each convolution ("TASK/OPERATION"), from the layer file of a loadable: ``level``,
    ``memory``, ``forms``, ``taken`` (None where it had no choice), ``search``, ``groups`` (None, or for a layer of
    groups how many one convolution takes). Empty where no layer file says. Raises FormatError for what is none.
    """
    kept = (load(loadable) or {}).get("weighed")
    if kept is None:
        return {}
    try:
        memory, search = _memory(kept["memory"]), kept["search"] and _search(kept["search"])
        common = {"level": int(kept["level"]), "memory": memory, "search": search}
        rows = [
            (list(map(str, layer["operations"])), int(layer["taken"]), list(map(_form, layer["forms"])))
            for layer in kept["layers"]
        ]
        groups = {label: _groups(layer) for layer in kept.get("groups", ()) for label in map(str, layer["operations"])}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{path_of(loadable)}: what was weighed: {error!r} is wrong or missing") from None
    found = dict.fromkeys(groups, common | {"taken": None, "forms": []})
    found |= {label: common | {"taken": taken, "forms": forms} for labels, taken, forms in rows for label in labels}
    return {label: each | {"groups": groups.get(label)} for label, each in found.items()}


def _groups(found: Any) -> dict[str, Any]:
    names = "groups", "convolutions", "cycles"
    forms = [{name: int(form[name]) for name in names} for form in found["forms"]]
    return {"groups": int(found["groups"]), "taken": int(found["taken"]), "forms": forms}


def _memory(found: Any) -> dict[str, Any]:
    rate = found["bytes_per_cycle"]
    rate = None if rate is None else float(rate)
    return {"latency": int(found["latency"]), "bytes_per_cycle": rate, "shared": bool(found["shared"])}


def _search(found: Any) -> dict[str, Any]:
    numbers = {name: int(found[name]) for name in ("steps", "cycles_before", "cycles")}
    return {"complete": bool(found["complete"]), **numbers}


def _form(found: Any) -> dict[str, Any]:
    numbers = {name: int(found[name]) for name in ("parts", "data_banks", "weight_banks", "cycles")}
    flags = {"keeps_weights": bool(found["keeps_weights"]), "compressed": bool(found.get("compressed", False))}
    return {"form": str(found["form"]), **flags, **numbers}
