"""Extension of Model Explorer: ``model-explorer net.nvdla --extensions=nvdla.report.model_explorer`` (docs/report.md).

This module has the numbers per operation that Model Explorer shows in its graph: cycles, use of the MAC array,
saturation, SNR.
"""

from __future__ import annotations

from nvdla.analysis.cycles.document import cycles_of
from nvdla.analysis.study import Study
from nvdla.report.document import Side
from nvdla.report.page import pairs
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document

#: stops from the least to the greatest number
COLORS = {"low": "#cfe8d5", "middle": "#f2dd9c", "high": "#e58a7b"}
#: dB above which two tensors are as good as equal
MOST_DB = 100.0

__all__ = ["cycles", "document", "mac_use", "saturation", "snr"]

Numbers = dict[str, float]


@by_annotations
def cycles(study: Study) -> Numbers:
    """Operation -> cycles of its chain; of operations on the fly their first alone has them."""
    totals = ((node.label, cycles_of(study, node)) for node in study.operations)
    return {label: float(cycles) for label, cycles in totals if cycles}


@by_annotations
def mac_use(study: Study) -> Numbers:
    """Operation -> percent of what the MAC array could do in its time."""
    shares = ((node.label, study.estimates[node.key].mac_share) for node in study.operations)
    return {label: 100.0 * share for label, share in shares if share is not None}


@by_annotations
def saturation(side: Side) -> Numbers:
    """Operation -> percent of the elements it wrote at either end of their type; nothing without a run."""
    run = side.document["run"]
    if run is None or run["error"]:
        return {}
    labels = [row["label"] for row in side.document["operations"]]
    return {labels[place]: 100.0 * side.pictures.rows[row]["saturated"] for place, row in run["wrote"].items()}


@by_annotations
def snr(side: Side, other: Side) -> Numbers:
    """Operation of ``side`` -> signal-to-noise ratio in dB of what it wrote, with its counterpart of ``other`` as the
    reference; equal tensors have :data:`MOST_DB`."""
    labels = [row["label"] for row in side.document["operations"]]
    return {
        labels[row["left"]]: MOST_DB if row["snr"] is None else min(row["snr"], MOST_DB)
        for row in pairs(side, other)
        if "equal" in row
    }


@by_annotations
def document(graph: str, name: str, numbers: Numbers, falling: bool = False) -> Document:
    """Node data of one graph as Model Explorer reads it from a file. ``falling``: great numbers are good ones."""
    colors = list(COLORS.values())
    gradient = [
        {"stop": stop, "bgColor": color, "textColor": "#1b1f24"}
        for stop, color in zip((0, 0.5, 1), reversed(colors) if falling else colors, strict=True)
    ]
    results = {label: {"value": value} for label, value in numbers.items()}
    return {graph: {"name": name, "results": results, "gradient": gradient}}
