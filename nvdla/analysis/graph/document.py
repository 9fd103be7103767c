"""The graph as plain data: operations, groups on the fly, tensors, dependencies (docs/graph.md)."""

from __future__ import annotations

from typing import Any

from nvdla.analysis.study import Key, Study
from nvdla.program.values import Value

FORMAT, VERSION = "nvdla-graph", 1

Row = dict[str, Any]


def graph_document(study: Study) -> Row:
    """Everything that the drawings show. Tensors are named by their id, operations by their label."""
    producers = {value.id: value for value in study.values}
    return {
        "format": FORMAT,
        "version": VERSION,
        "loadable": study.loadable.name,
        "configuration": study.config.name,
        "abi": study.abi.name,
        "inputs": [value.id for value in study.values if value.kind == "input"],
        "outputs": [value.id for value in study.values if value.kind == "output"],
        "tasks": [_task(study, task) for task in dict.fromkeys(node.task for node in study.operations)],
        "groups": [[node.label for node in chain] for chain in study.chains if len(chain) > 1],
        "nodes": _nodes(study),
        "tensors": [_tensor(study, value) for value in producers.values()],
        "dependencies": _dependencies(study),
    }


def _task(study: Study, task: int) -> Row:
    return {"task": task, "interface": study.loadable.task(task).interface.name}


def _nodes(study: Study) -> list[Row]:
    inputs: dict[Key, list[Row]] = {}
    outputs: dict[Key, list[int]] = {}
    for value in study.values:
        for key, role in value.readers:
            inputs.setdefault(key, []).append({"tensor": value.id, "role": role})
        if value.writer:
            outputs.setdefault(value.writer, []).append(value.id)
    group_of = {node.key: chain[0].label for chain in study.chains if len(chain) > 1 for node in chain}
    return [
        {
            "name": node.label,
            "task": node.task,
            "operation": node.index,
            "roi": node.roi,
            "op_type": node.engine.upper(),
            "layer": node.layer,
            "what": node.what,
            "precision": node.precision,
            "input_shape": list(node.input) if node.input else None,
            "output_shape": list(node.output) if node.output else None,
            "inputs": inputs.get(node.key, []),
            "outputs": outputs.get(node.key, []),
            "group": group_of.get(node.key),
            "step": study.step_of[node.key],
            "waits_for": node.waits_for,
        }
        for node in study.operations
    ]


def _tensor(study: Study, value: Value) -> Row:
    return {
        "id": value.id,
        "name": tensor_name(study, value),
        "kind": value.kind,
        "memory": value.memory,
        "offset": value.offset,
        "bytes": value.bytes,
        "shape": list(value.shape) if value.shape else None,
        "layout": value.layout,
        "producer": study.by_key[value.writer].label if value.writer else None,
        "consumers": list(dict.fromkeys(study.by_key[key].label for key, _ in value.readers)),
    }


def tensor_name(study: Study, value: Value) -> str:
    """The name of the layer that makes it, where one is known; else of what lies there."""
    if value.kind == "intermediate" and value.writer:
        return study.by_key[value.writer].layer or value.name
    return value.name


def _dependencies(study: Study) -> list[Row]:
    known = study.by_key
    return [
        {"from": node.label, "to": known[each.target].label, "event": each.event, "fused_parent": each.on_the_fly}
        for node in study.operations
        for each in node.dependencies
        if each.target in known
    ]
