"""Findings of checks: severity, and the fields that all findings share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum

from nvdla.util.escaping import Document


class Severity(str, Enum):
    """Severity of a finding, from the worst to the mildest. Compares and prints as its value."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, text: str) -> str:
        return format(self.value, text)

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class AnyFinding:
    """One problem that a check found, in a program (:class:`nvdla.checks.lint.Finding`) or in a file's bytes."""

    severity: Severity

    def as_dict(self) -> Document:
        """Return all fields as plain data, for JSON."""
        return {**asdict(self), "severity": str(self.severity)}
