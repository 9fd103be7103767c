"""The design space: one network over configurations and memories, by the cycle model, with accuracy where data are."""

from nvdla.exploration.table import Exploration, Point, pareto

__all__ = ["Exploration", "Point", "pareto"]
