"""Where the memory of a loadable goes: placement, lifetimes, reuse, overlaps, peak."""

__all__ = ["memory_map", "svg"]
