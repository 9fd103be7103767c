"""The single-point data processor."""

__all__ = ["engine", "settings"]
