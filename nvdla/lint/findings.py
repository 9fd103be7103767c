"""What a rule has to say, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: from the worst to the mildest
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One remark. ``rule`` is stable, ``headline`` says what is wrong ("dead channels"); task, operation, engine and
    layer are None where it is about the whole file."""

    severity: str
    rule: str
    headline: str
    evidence: str
    advice: str
    task: int | None = None
    operation: int | None = None
    engine: str | None = None
    layer: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return asdict(self)

    @property
    def place(self) -> str:
        """Where, in words: "operation 0/3 (CONV, layer conv2)"."""
        if self.task is None:
            return "loadable"
        if self.operation is None:
            return f"task {self.task}"
        layer = f", layer {self.layer}" if self.layer else ""
        return f"operation {self.task}/{self.operation} ({str(self.engine).upper()}{layer})"


def sort_key(finding: Finding) -> tuple[int, int, int, str]:
    """The worst first, then in the order of the work."""
    rank = SEVERITIES.index(finding.severity)
    return (
        rank,
        -1 if finding.task is None else finding.task,
        -1 if finding.operation is None else finding.operation,
        finding.rule,
    )
