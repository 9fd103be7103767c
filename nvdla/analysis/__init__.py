"""Static analysis of loadables: cycles, memory, graphs and views, without running them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nvdla.analysis.cycles.document import cycles_document
    from nvdla.analysis.study import Study

__all__ = ["Study", "cycles", "cycles_document", "explain", "graph", "memory", "study", "views"]


def __getattr__(name: str) -> object:
    # Resolved on first use: a page of the graph needs no cycle model.
    homes = {"Study": "nvdla.analysis.study", "cycles_document": "nvdla.analysis.cycles.document"}
    if name not in homes:
        raise AttributeError(f"module 'nvdla.analysis' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(homes[name]), name)
