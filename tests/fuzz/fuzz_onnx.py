"""Fuzz target: an ONNX model, as far as its placement on nv_small. It is read and placed, or an NvdlaError."""

from __future__ import annotations

from unittest import mock

from nvdla.compiler.frontend import loading, model
from nvdla.compiler.frontend.importer import import_graph
from nvdla.errors import NvdlaError

ELEMENTS = 1 << 16


def one_input(data: bytes) -> None:
    limits = {"MAX_TENSOR": ELEMENTS, "MAX_ELEMENTS": 4 * ELEMENTS, "MAX_FOLDED": ELEMENTS}
    try:
        with mock.patch.multiple(model, **limits), mock.patch.object(loading, "MAX_NODES", 100):
            import_graph(model.read(data, trusted=True), "nv_small")  # this process is what is fuzzed
    except NvdlaError:
        return
