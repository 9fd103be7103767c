"""How two loadables differ: tables, descriptors field by field, weights by statistics."""

from nvdla.diff.differences import Change, Diff, OperandChange, diff

__all__ = ["Change", "Diff", "OperandChange", "diff"]
