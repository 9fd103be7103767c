"""Adjustments that make NVIDIA's loadables comparable where they compute another function or wait too little.

* Averages: windows that reach beyond the padding are divided by the whole kernel; Caffe divides by the part inside.
* Averages of whole maps in int8: the PDP's are in steps of the input, of which so small numbers use few.
* Batch normalization in int8: the SDP adds before it multiplies, in whole units of the input.
* An SDP operation that reads what the one before writes is enabled as soon as that is programmed: its read DMA runs
  ahead, so it needs that one's completion.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from nvdla.checks.lint.post_processing_rules import read_too_early
from nvdla.compiler.frontend.operators import pooling
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.enums import SubInterface
from nvdla.loadable.model import Loadable
from nvdla.program import Program

KERNEL, UNITS = "averages divide by the whole kernel", "adds in whole units of the input"
STEPS = "averages of whole maps in steps of the input"
OTHERWISE = {
    ("mini_cnn", "int8"): STEPS,
    ("pool_ave_k8", "int8"): STEPS,
    ("pool_ave_k5x3", "int8"): KERNEL,
    ("pool_ave_k5x3", "fp16"): KERNEL,
    ("batchnorm", "int8"): UNITS,
    ("bn_scale", "int8"): UNITS,
}
"""Function computed by a loadable instead, by network and precision."""


def as_theirs(onnx: Any, model: Any, data: np.ndarray | None) -> Any:
    """The model with the function of NVIDIA's loadable. ``data``: the calibration data of integers."""
    graph = model.graph
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    if any(node.op_type == "AveragePool" for node in graph.node):
        pool, factors = (next(each for each in graph.node if each.op_type == kind) for kind in ("AveragePool", "Mul"))
        pool.output[0] = factors.output[0]
        graph.node.remove(factors)
        return model
    assert data is not None
    norm = next(node for node in graph.node if node.op_type == "BatchNormalization")
    scale, shift, mean, variance = (constants[name] for name in norm.input[1:])
    epsilon = next(each.f for each in norm.attribute if each.name == "epsilon")
    factors = scale / np.sqrt(variance + epsilon)
    biases, last = shift - mean * factors, norm.input[2]
    for node in (each for each in graph.node if each.op_type in ("Mul", "Add")):
        values = constants[node.input[1]].reshape(-1)
        if node.op_type == "Mul":
            factors, biases = factors * values, biases * values
        else:
            biases, last = biases + values, node.input[1]
    step = factors * float(np.abs(data).max()) / 127
    more = np.round(biases / step) * step - biases
    changed = constants[last] + more.reshape(constants[last].shape)
    old = next(each for each in graph.initializer if each.name == last)
    old.CopyFrom(onnx.numpy_helper.from_array(changed.astype(np.float32), last))
    return model


@contextmanager
def means_in_steps_of_the_input() -> Iterator[None]:
    """Leave global averages to the PDP while compiling."""

    def pooled(graph: Any, name: str, cube: Any) -> Any:
        return graph.network.global_average_pool(name, cube)

    with mock.patch.object(pooling, "mean", pooled):
        yield


def with_waits(loadable: Loadable, config: str) -> tuple[Loadable, int]:
    """The loadable with the waits that its SDP operations need for what they read, and how many it lacked."""
    program = Program.of(loadable, config)
    lacking = set(_too_early(program))
    blobs = list(loadable.blobs)
    for task_id, index in lacking:
        task = program.dla_tasks[task_id]
        at = next(number for number, blob in enumerate(blobs) if _is_graph_of(blob, task_id))
        graph = (type(task.dependencies[0]) * len(task.dependencies)).from_buffer_copy(blobs[at].data)
        graph[index].consumers[OpType.SDP].event = Event.OP_COMPLETED
        blobs[at] = replace(blobs[at], data=memoryview(bytes(graph)), size=ctypes.sizeof(graph))
    return replace(loadable, blobs=tuple(blobs)), len(lacking)


def _is_graph_of(blob: Any, task: int) -> bool:
    return bool(blob.sub_interface == SubInterface.DEPS and blob.name == f"task-{task}-dep_graph")


def _too_early(program: Program) -> list[tuple[int, int]]:
    """(task, index) of SDP operations whose successor in the queue reads what they write too early."""
    found = []
    for number, task in program.dla_tasks.items():
        operations = [each for each in program.hardware_operations if each.key[:2] == (number, 0)]
        found += [(number, first.index) for first, _ in read_too_early(task, operations, program.takers)]
    return found
