"""Metrics of an evaluation, and their confidence intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from nvdla.errors import FormatError
from nvdla.experiments.campaign.journal import Record, takes_records
from nvdla.experiments.evaluation.decoders import average_precision, intersection_over_union
from nvdla.tensors.real import decibels
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, Json

CONFIDENCE = 0.95


@dataclass
class Mean:
    """A mean over samples and its standard error, by Welford's recurrence: exact also where the mean is large."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Take one more value."""
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self.squares += before * (value - self.mean)

    def document(self) -> Document:
        """``value`` and ``standard_error`` (None where there are too few samples)."""
        if not self.count:
            return {"value": None, "standard_error": None}
        error = math.sqrt(self.squares / (self.count - 1) / self.count) if self.count > 1 else None
        return {"value": self.mean, "standard_error": error}


@dataclass
class Share:
    """Share of the samples that have a property, with Wilson's interval."""

    count: int = 0
    hits: int = 0

    def add(self, hit: bool) -> None:
        """Take one more sample."""
        self.count += 1
        self.hits += hit

    def document(self) -> Document:
        """The share and its interval, as :func:`proportion` returns them."""
        return proportion(self.hits, self.count)


def proportion(hits: float, count: int, confidence: float = CONFIDENCE) -> dict[str, Json]:
    """Return the share of ``hits`` in ``count`` trials as ``value``, with its interval ``low`` to ``high``; without
    trials all are None."""
    if not count:
        return {"value": None, "low": None, "high": None}
    low, high = wilson(hits, count, confidence)
    return {"value": hits / count, "low": low, "high": high}


def class_texts(rows: Sequence[Document]) -> list[str]:
    """The names of classes; numbers where none has a name, and "class 3" for one without a name among others."""
    has_names = any(row["name"] for row in rows)
    return [str(row["name"] or (f"class {row['class']}" if has_names else row["class"])) for row in rows]


def percent(share: Document) -> str:
    """A share of :func:`proportion` in percent, with its interval."""
    if share["value"] is None:
        return "-"
    return f"{100 * share['value']:.2f}% ({100 * share['low']:.2f} .. {100 * share['high']:.2f})"


def normal_quantile(confidence: float) -> float:
    """Standard deviations on either side that hold ``confidence`` of a normal distribution. Raises FormatError."""
    if not 0 < confidence < 1:
        raise FormatError(f"confidence {confidence:g}: must be between 0 and 1, such as 0.95")
    return NormalDist().inv_cdf((1 + confidence) / 2)


@by_annotations
def wilson(hits: float, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a share of ``count`` trials, after Wilson: sensible also for shares of nothing and all.
    Raises FormatError."""
    if not 0 <= hits <= count:
        raise FormatError(f"{hits:g} of {count} trials: must be 0 .. {count}")
    if not count:
        return 0.0, 1.0
    quantile, share = normal_quantile(confidence), hits / count
    middle = share + quantile**2 / (2 * count)
    spread = quantile * math.sqrt(share * (1 - share) / count + quantile**2 / (4 * count**2))
    scale = 1 + quantile**2 / count
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return max(0.0, low) if hits else 0.0, min(1.0, high) if hits < count else 1.0


DAMAGED_SHOWN = 20


@dataclass
class Decoded:
    """Boxes and pixels of classes that a decoder found."""

    images: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    cells: Counter[tuple[int, int]] = field(default_factory=Counter)
    metric: Mean = field(default_factory=Mean)

    def add(self, record: Record, truth: list[list[float]] | None) -> None:
        """Take what a record has of one network."""
        if "metric" in record:
            self.metric.add(record["metric"])
        if "boxes" in record and truth is not None:
            self.images.append((np.reshape(truth, (-1, 6)), np.reshape(record["boxes"], (-1, 6))))
        for label, predicted, count in record.get("cells", ()):
            self.cells[label, predicted] += count

    def document(self, classes: list[str] | None) -> Document:
        """Return the metrics as plain data, without those of nothing."""
        document: Document = {"detection": average_precision(self.images)} if self.images else {}
        if self.metric.count:
            document["metric"] = self.metric.document()
        if self.cells:
            document["segmentation"] = intersection_over_union(self.cells, classes)
        return document


@dataclass
class Summary:
    """All figures of an evaluation; figures that no sample has are left out of :meth:`document`."""

    samples: int = 0
    damaged: int = 0
    top1: Share = field(default_factory=Share)
    top5: Share = field(default_factory=Share)
    squared_error: Mean = field(default_factory=Mean)
    metric: Mean = field(default_factory=Mean)
    agreement: Share = field(default_factory=Share)
    float_top1: Share = field(default_factory=Share)
    compared: int = 0
    signal: float = 0.0
    noise: float = 0.0
    parted: list[str] = field(default_factory=list)
    confusion: Counter[tuple[int, int]] = field(default_factory=Counter)
    problems: list[dict[str, str]] = field(default_factory=list)
    decoded: Decoded = field(default_factory=Decoded)
    float_decoded: Decoded = field(default_factory=Decoded)

    def add(self, record: Record) -> None:
        """Take one more record."""
        if "error" in record:
            self.damaged += 1
            if len(self.problems) < DAMAGED_SHOWN:
                self.problems.append({"id": str(record.get("id", record["key"])), "error": record["error"]})
            return
        self.samples += 1
        if "metric" in record:
            self.metric.add(record["metric"])
        if "top" not in record:
            self.decoded.add(record, record.get("truth"))
            self.float_decoded.add(record.get("float", {}), record.get("truth"))
            return
        best = [entry[0] for entry in record["top"]]
        label = record.get("label")
        if isinstance(label, int) and len(best) > 1:  # one number has no classes
            self.top1.add(best[0] == label)
            self.top5.add(label in best)
            self.confusion[label, best[0]] += 1
        if "squared_error" in record:
            self.squared_error.add(record["squared_error"])
        if "float" in record:
            self._add_float(record, best[0])

    def _add_float(self, record: Record, best: int) -> None:
        reference, same = record["float"], record["float"]["top"] == best
        self.compared += 1
        self.signal += reference["signal"]
        self.noise += reference["noise"]
        if reference["top"] is None or len(record["top"]) < 2:  # numbers without classes
            return
        if isinstance(record.get("label"), int):
            self.float_top1.add(reference["top"] == record["label"])
        if "squared_error" in record:
            return
        self.agreement.add(same)
        if not same and len(self.parted) < DAMAGED_SHOWN:
            self.parted.append(record["id"])

    @property
    def problem(self) -> str | None:
        """Number of samples that could not be evaluated, with the reason of the first; None if all were."""
        if self.samples and not self.damaged:
            return None
        first = self.problems[0] if self.problems else {"id": "-", "error": "no samples in the data"}
        how_many = f"{self.damaged} of {self.samples + self.damaged} samples" if self.samples else "no sample"
        could = "could not" if self.samples else "could"
        return f"{how_many} {could} be evaluated; first: {first['id']}: {first['error']}"

    def document(self, classes: list[str] | None = None) -> Document:
        """Plain data with stable keys."""
        document: Document = {"samples": self.samples, "damaged": self.damaged, "confidence": CONFIDENCE}
        for name in ("top1", "top5", "squared_error", "metric"):
            metric: Share | Mean = getattr(self, name)
            if metric.count:
                document[name] = metric.document()
        if self.compared:
            ratio = decibels(self.signal, self.noise)
            snr = ratio if math.isfinite(ratio) else None
            top1 = {"top1": self.float_top1.document()} if self.float_top1.count else {}
            document["float"] = {**top1, "agreement": self.agreement.document(), "snr_db": snr, "parted": self.parted}
        document |= self.decoded.document(classes)
        if reference := self.float_decoded.document(classes):
            document["float"] = reference
        if self.confusion:
            document["classes"] = self.per_class(classes)
            document["confusion"] = [
                {"label": label, "found": predicted, "count": count}
                for (label, predicted), count in sorted(self.confusion.items())
            ]
        if self.problems:
            document["problems"] = self.problems
        return document

    def per_class(self, names: list[str] | None) -> list[dict[str, Json]]:
        """Precision and recall of every class that occurs, with their intervals."""
        labeled: Counter[int] = Counter()
        predicted: Counter[int] = Counter()
        for (label, best), count in self.confusion.items():
            labeled[label] += count
            predicted[best] += count
        rows = []
        for class_index in sorted({*labeled, *predicted}):
            right = self.confusion[class_index, class_index]
            row: Document = {
                "class": class_index,
                "name": names[class_index] if names and class_index < len(names) else None,
            }
            row |= {"samples": labeled[class_index], "precision": proportion(right, predicted[class_index])}
            row["recall"] = proportion(right, labeled[class_index])
            rows.append(row)
        return rows


@by_annotations
@takes_records
def summarize(records: Iterable[Record]) -> Summary:
    """The summary of all records."""
    summary = Summary()
    for record in records:
        summary.add(record)
    return summary
