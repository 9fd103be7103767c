"""Comparing tensors: exactly, and by how much they differ."""

from nvdla.compare.metrics import Difference, compare

__all__ = ["Difference", "compare"]
