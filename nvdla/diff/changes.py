"""The structural difference of two loadables as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Change:
    """One thing that differs.

    ``area``: a table of the container, or "operation", "surface", "graph", "network", "lut", "cpu". ``where`` names
    the entry, ``what`` is "changed", "only in a" or "only in b". ``a`` and ``b`` are values, ``meaning_a`` and
    ``meaning_b`` their names where they have some.
    """

    area: str
    where: str
    field: str | None
    what: str
    a: Any = None
    b: Any = None
    meaning_a: str | None = None
    meaning_b: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class OperandChange:
    """Weights or operands that differ. ``statistics_a`` and ``_b``: elements, min, max, mean, std, zeros.

    ``first`` is the first element that differs: its ``index``, and where the layout is known kernel, channel, row and
    column. ``cosine`` is None for operands of different sizes, or all zero.
    """

    where: str
    operand: str
    dtype: str
    statistics_a: dict[str, Any]
    statistics_b: dict[str, Any]
    different: int | None
    max_abs: float | None
    cosine: float | None
    first: dict[str, int] | None

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Diff:
    """All differences; ``matched_by`` says for each task how its operations were paired ("index" or "shape")."""

    a: str
    b: str
    abi_a: str
    abi_b: str
    changes: list[Change] = field(default_factory=list)
    operands: list[OperandChange] = field(default_factory=list)
    matched_by: dict[int, str] = field(default_factory=dict)

    @property
    def identical(self) -> bool:
        """Whether nothing differs."""
        return not self.changes and not self.operands

    def counts(self) -> dict[str, int]:
        """Differences by area, in order."""
        found = Counter(change.area for change in self.changes)
        if self.operands:
            found["operands"] = len(self.operands)
        return dict(found)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "abi_a": self.abi_a,
            "abi_b": self.abi_b,
            "identical": self.identical,
            "counts": self.counts(),
            "matched_by": self.matched_by,
            "changes": [each.as_dict() for each in self.changes],
            "operands": [each.as_dict() for each in self.operands],
        }
