"""Fuzz target: the loadable, from bytes to model, descriptors, views and the configuration that fits."""

from __future__ import annotations

import zlib

from nvdla.analysis import views as views
from nvdla.errors import ConfigError, DescriptorError, LoadableError
from nvdla.loadable import load, to_bytes
from nvdla.loadable.checks import problems
from nvdla.program.program import Program


def one_input(data: bytes) -> None:
    """Loads and comes back as an equal model, or LoadableError; descriptors decode, or DescriptorError."""
    try:
        loadable = load(data, checked=False)
    except LoadableError:
        return
    if next(problems(loadable), None):
        return
    if load(to_bytes(loadable)) != loadable:
        raise RuntimeError("a loadable did not come back equal")
    try:
        program = Program.of(loadable)
    except (DescriptorError, ConfigError):
        return
    tasks = program.tasks
    views.overview(program)
    for operation in program.operations:
        if any(low >= high for access in operation.accesses for low, high in access.pieces):
            raise RuntimeError(f"an access of {operation.label} has an empty piece")
    for rows in (views.task_rows, views.memory_rows):
        rows(loadable, tasks) if rows is views.task_rows else rows(loadable)
    views.blob_rows(loadable)
    views.tensor_rows(loadable)
    views.relocation_rows(loadable)
    views.operation_rows(program)
    views.graph_rows(program)
    if loadable.blobs:  # one of them, the same for the same bytes: this view is the dearest
        views.annotated_rows(loadable, tasks, loadable.blobs[zlib.crc32(data) % len(loadable.blobs)])
