"""The operations of a loadable as a graph: what each reads and writes, what it waits for, which values flow where."""

__all__ = ["document", "dot"]
