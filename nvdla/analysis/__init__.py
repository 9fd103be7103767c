"""What can be said of a loadable without running it."""

__all__ = ["cycles", "explain", "graph", "memorymap", "study", "views"]
