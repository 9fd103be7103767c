"""Fuzz target: an ONNX model, as far as its placement on nv_small. It is read and placed, or an NvdlaError."""

from __future__ import annotations

from unittest import mock

from nvdla.errors import NvdlaError
from nvdla.frontend import model
from nvdla.frontend.importer import import_graph

ELEMENTS = 1 << 16


def one_input(data: bytes) -> None:
    limits = {"MAX_TENSOR": ELEMENTS, "MAX_ELEMENTS": 4 * ELEMENTS, "MAX_FOLDED": ELEMENTS, "MAX_NODES": 100}
    try:
        with mock.patch.multiple(model, **limits):
            import_graph(model.read(data), "nv_small")
    except NvdlaError:
        return
