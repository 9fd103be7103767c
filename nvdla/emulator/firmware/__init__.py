"""NVIDIA's firmware: descriptors become register writes, in the order of the dependency graph."""

__all__ = ["scheduler"]
