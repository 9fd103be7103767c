"""Comparing tensors: exactly, and by how much they differ."""

from nvdla.checks.compare.metrics import Difference, compare

__all__ = ["Difference", "compare"]
