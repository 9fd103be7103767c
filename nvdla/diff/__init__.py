"""How two loadables differ: tables, descriptors field by field, weights by statistics."""

from nvdla.diff.changes import Change, Diff, OperandChange
from nvdla.diff.differences import diff

__all__ = ["Change", "Diff", "OperandChange", "diff"]
