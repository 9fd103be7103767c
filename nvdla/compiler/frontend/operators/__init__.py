"""One ONNX operator, one function: its docstring is the paragraph of docs/operators.md.

A function takes the graph under construction and the node, and gives the node's value (or values). It raises
:class:`~nvdla.compiler.frontend.graph.Cut` with a reason, and advice where there is any, for what it cannot take.
"""

from __future__ import annotations

import importlib

from nvdla.compiler.frontend.operators.registry import OPERATORS, Operator, operator

#: the families, in the order of the page
FAMILIES = ("convolution", "activation", "arithmetic", "pooling", "reduction", "shape", "resize")

for _family in FAMILIES:
    importlib.import_module(f"{__name__}.{_family}")

__all__ = ["FAMILIES", "OPERATORS", "Operator", "operator"]
