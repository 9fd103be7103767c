"""Static analysis of loadables: cycles, memory, graphs and views, without running them."""

__all__ = ["cycles", "explain", "graph", "memory", "study", "views"]
