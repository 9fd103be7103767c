"""From records to figures, each with its standard error. One pass, memory for classes and no more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nvdla.argument_kinds import by_annotations
from nvdla.campaign.table import Record, takes_records

DAMAGED_SHOWN = 20


@dataclass
class Mean:
    """A mean over samples and its standard error."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Take one more value."""
        self.count += 1
        self.total += value
        self.squares += value * value

    def document(self) -> dict[str, Any]:
        """``value`` and ``standard_error`` (None where there are too few samples)."""
        if not self.count:
            return {"value": None, "standard_error": None}
        mean = self.total / self.count
        variance = max(self.squares / self.count - mean * mean, 0.0)
        error = math.sqrt(variance / (self.count - 1)) if self.count > 1 else None
        return {"value": mean, "standard_error": error}


@dataclass
class Summary:
    """All figures of an evaluation; figures that no sample has are left out of :meth:`document`."""

    samples: int = 0
    damaged: int = 0
    top1: Mean = field(default_factory=Mean)
    top5: Mean = field(default_factory=Mean)
    squared_error: Mean = field(default_factory=Mean)
    metric: Mean = field(default_factory=Mean)
    agreement: Mean = field(default_factory=Mean)
    signal: float = 0.0
    noise: float = 0.0
    parted: list[str] = field(default_factory=list)
    confusion: Counter[tuple[int, int]] = field(default_factory=Counter)
    problems: list[dict[str, str]] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Take one more record."""
        if "error" in record:
            self.damaged += 1
            if len(self.problems) < DAMAGED_SHOWN:
                self.problems.append({"id": str(record.get("id", record["key"])), "error": record["error"]})
            return
        self.samples += 1
        best = [each[0] for each in record["top"]]
        label = record.get("label")
        if isinstance(label, int):
            self.top1.add(float(best[0] == label))
            self.top5.add(float(label in best))
            self.confusion[label, best[0]] += 1
        if "squared_error" in record:
            self.squared_error.add(record["squared_error"])
        if "metric" in record:
            self.metric.add(record["metric"])
        if "float" in record:
            self._add_float(record, best[0])

    def _add_float(self, record: Record, best: int) -> None:
        found = record["float"]
        self.agreement.add(float(found["top"] == best))
        self.signal += found["signal"]
        self.noise += found["noise"]
        if found["top"] != best and len(self.parted) < DAMAGED_SHOWN:
            self.parted.append(record["id"])

    def document(self, classes: list[str] | None = None) -> dict[str, Any]:
        """Plain data with stable keys."""
        document: dict[str, Any] = {"samples": self.samples, "damaged": self.damaged}
        for name in ("top1", "top5", "squared_error", "metric"):
            mean = getattr(self, name)
            if mean.count:
                document[name] = mean.document()
        if self.agreement.count:
            ratio = 10 * math.log10(self.signal / self.noise) if self.noise and self.signal else None
            document["float"] = {"agreement": self.agreement.document(), "snr_db": ratio, "parted": self.parted}
        if self.confusion:
            document["classes"] = self.per_class(classes)
            document["confusion"] = [
                {"label": label, "found": found, "count": count}
                for (label, found), count in sorted(self.confusion.items())
            ]
        if self.problems:
            document["problems"] = self.problems
        return document

    def per_class(self, names: list[str] | None) -> list[dict[str, Any]]:
        """Precision and recall of every class that occurs, with standard errors."""
        labelled: Counter[int] = Counter()
        found: Counter[int] = Counter()
        for (label, best), count in self.confusion.items():
            labelled[label] += count
            found[best] += count
        rows = []
        for each in sorted({*labelled, *found}):
            right = self.confusion[each, each]
            row: dict[str, Any] = {"class": each, "name": names[each] if names and each < len(names) else None}
            row |= {"samples": labelled[each], "precision": _share(right, found[each])}
            row["recall"] = _share(right, labelled[each])
            rows.append(row)
        return rows


def _share(right: int, of: int) -> dict[str, Any]:
    if not of:
        return {"value": None, "standard_error": None}
    share = right / of
    return {"value": share, "standard_error": math.sqrt(share * (1 - share) / (of - 1)) if of > 1 else None}


@by_annotations
@takes_records
def summarise(records: Iterable[Record]) -> Summary:
    """The summary of all records."""
    summary = Summary()
    for record in records:
        summary.add(record)
    return summary
