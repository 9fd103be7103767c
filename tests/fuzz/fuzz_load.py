"""Fuzz target: the loadable, from bytes to model, descriptors, views and the configuration that fits."""

from __future__ import annotations

import zlib

from nvdla.analysis import views as views
from nvdla.descriptors import decode_tasks, detect
from nvdla.errors import ConfigError, DescriptorError, LoadableError
from nvdla.firmware.choice import choose_configuration
from nvdla.loadable import load, to_bytes
from nvdla.loadable.checks import problems


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
        abi, why = detect(loadable)
        tasks = decode_tasks(loadable, abi)
        config, reason = choose_configuration(loadable, tasks)
    except (DescriptorError, ConfigError):
        return
    views.overview(loadable, tasks, abi, why, config.name, reason)
    for rows in (views.task_rows, views.memory_rows):
        rows(loadable, tasks) if rows is views.task_rows else rows(loadable)
    views.blob_rows(loadable)
    views.tensor_rows(loadable)
    views.relocation_rows(loadable)
    views.operation_rows(tasks)
    views.graph_rows(tasks)
    if loadable.blobs:  # one of them, the same for the same bytes: this view is the dearest
        views.annotated_rows(loadable, tasks, loadable.blobs[zlib.crc32(data) % len(loadable.blobs)])
