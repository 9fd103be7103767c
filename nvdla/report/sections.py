"""The sections of the report, each a function from what is known to markup (nothing: the section is left out)."""

from __future__ import annotations

import re
from typing import Any

from nvdla.analysis.cycles.document import caveats, cycles_document
from nvdla.analysis.cycles.svg import schedule_svg
from nvdla.analysis.graph.document import graph_document
from nvdla.analysis.graph.dot import dot_program, dot_svg, dot_text
from nvdla.analysis.memorymap.memory_map import MemoryMap
from nvdla.analysis.memorymap.svg import memory_svg
from nvdla.analysis.study import Study
from nvdla.analysis.views.views import describe_tensor, operation_counts
from nvdla.doctor.examination import Examination
from nvdla.errors import FormatError
from nvdla.report.html import Html, joined, number, pairs, table, tag
from nvdla.report.pictures import feature_maps, histogram
from nvdla.report.run import RunView

#: graphviz takes minutes for graphs of thousands of boxes
MAX_DRAWN = 1500
MAX_ROWS = 5000
OPERATION_COLUMNS = {
    "operation": "Operation",
    "engine": "Engine",
    "layer": "Layer",
    "input": "Input",
    "output": "Output",
    "precision": "Type",
    "macs": "MACs",
    "cycles": "Cycles",
    "share": "Share",
    "bound": "Bound by",
    "mac_share": "MAC use",
    "read_bytes": "Read",
    "written_bytes": "Written",
    "what": "What",
}


def overview(study: Study, clock: float, examination: Examination) -> Html:
    """The figures that everybody asks for first."""
    document = cycles_document(study, clock)
    loadable = study.loadable
    counts = operation_counts(study.tasks)
    memory = MemoryMap.of(study).spaces()
    peak = sum(row["peak_live"] for row in memory)
    carve_out = sum(row["carve_out"] for row in memory)
    figures = {
        "operations": number(sum(counts.values())),
        "cycles (estimate)": number(document["total_cycles"]),
        f"ms at {clock:g} MHz": f"{document['total_ms']:.3f}",
        "MACs": number(document["macs"]),
        "of the MAC array used": f"{document['mac_use'] or 0:.1%}",
        "bytes of memory": number(carve_out),
        "bytes live at the peak": number(peak),
        "findings": number(len(examination.findings)),
    }
    cards = [tag("div", tag("b", value), tag("span", name), class_="card") for name, value in figures.items()]
    about = pairs(
        {
            "File": loadable.name,
            "Configuration": f"{study.config.name}: {study.config_reason}",
            "Descriptors": study.abi_reason,
            "Inputs": _lines(describe_tensor(loadable, each) for each in loadable.inputs),
            "Outputs": _lines(describe_tensor(loadable, each) for each in loadable.outputs),
            "Operations": ", ".join(f"{count} {name}" for name, count in counts.items()),
            "Tasks": ", ".join(f"{task.id} {task.interface.name}" for task in loadable.tasks),
            "Blobs": f"{len(loadable.blobs)} with {sum(len(each.data) for each in loadable.blobs):,} bytes",
        }
    )
    notes = [tag("li", f"{line}.") for line in caveats(study)]
    return joined((tag("div", *cards, class_="cards"), about, tag("ul", *notes, class_="notes") if notes else None))


def _lines(texts: Any) -> Html:
    found = list(texts)
    return joined(part for text in found for part in (tag("div", text),)) if found else Html("none")


def result(view: RunView) -> Html:
    """The inputs as pictures and the greatest values of the outputs."""
    if view.error is not None:
        return tag("p", f"It cannot run: {view.error}", class_="bad")
    parts = []
    for name, tensor in view.inputs.items():
        shape = " x ".join(map(str, tensor.shape))
        parts.append(tag("figure", feature_maps(tensor[:1], f"input {name}"), tag("figcaption", f"{name}: {shape}")))
    for name, ranks in view.ranks.items():
        rows = [{"index": each.index, "value": each.value, "label": each.label} for each in ranks]
        tensor = view.outputs[name]
        caption = f"{name}: the greatest of {tensor[0].size} values, {tensor.dtype}"
        columns = {"index": "Index", "value": "Value", "label": "Label"}
        if not any(row["label"] for row in rows):
            del columns["label"]
        parts.append(tag("div", tag("h3", caption), table(rows, columns, caption)))
    return tag("div", *parts, class_="side")


def findings(examination: Examination) -> Html:
    """The doctor's findings as a table."""
    if not examination.findings:
        where = "in the file and in a run" if examination.runs else "in the file (it was not run)"
        return tag("p", f"The doctor found nothing wrong {where}.")
    rows = [
        {
            "severity": tag("span", each.severity, class_=f"severity {each.severity}"),
            "where": each.place,
            "rule": each.rule,
            "evidence": each.evidence,
            "advice": each.advice,
        }
        for each in examination.findings[:MAX_ROWS]
    ]
    columns = {"severity": "Severity", "where": "Where", "rule": "Rule", "evidence": "What was seen", "advice": "Do"}
    return table(rows, columns, "Findings of the doctor", "findings-table", sortable=True)


def graph(study: Study) -> tuple[Html, str]:
    """The drawing by graphviz ("drawing"), or without it the same as a table ("table")."""
    reason = "graphviz (dot) is not installed, so the graph is shown as a table"
    if len(study.operations) > MAX_DRAWN:
        reason = f"{len(study.operations)} operations are too many to draw, so the graph is shown as a table"
    elif dot_program():
        try:
            drawing = _bare(dot_svg(dot_text(study, events=False)))
            label = "Graph of the operations"
            box = tag("div", drawing, class_="graph", tabindex="0", role="region", aria_label=label)
            return joined((box, tag("p", _LEGEND, class_="soft"))), "drawing"
        except FormatError as error:
            reason = str(error)
    return joined((tag("p", f"{reason}.", class_="soft"), _graph_table(study))), "table"


_LEGEND = (
    "Boxes are operations, ellipses tensors in memory; bold arrows inside a dashed box go on the fly from engine to "
    "engine. Weights, operands and waiting for events are left out; 'nvdla graph' draws them."
)


def _bare(svg: str) -> Html:
    """graphviz's <svg>: without comments, scaled by the page. Its texts were escaped by graphviz."""
    text = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    return Html(re.sub(r"<script.*?</script>|<a [^>]*>|</a>", "", text, flags=re.DOTALL | re.IGNORECASE))


def _graph_table(study: Study) -> Html:
    document = graph_document(study)
    names = {row["id"]: row["name"] for row in document["tensors"]}
    rows = [
        {
            "operation": f"{row['op_type']} {row['name']}",
            "layer": row["layer"],
            "takes": ", ".join(f"{names[each['tensor']]} ({each['role']})" for each in row["inputs"])
            or "what the operation before hands over on the fly",
            "makes": ", ".join(names[each] for each in row["outputs"]) or "hands its result over on the fly",
        }
        for row in document["nodes"][:MAX_ROWS]
    ]
    columns = {"operation": "Operation", "layer": "Layer", "takes": "Takes", "makes": "Makes"}
    return table(rows, columns, "Graph of the operations")


def operations(study: Study, clock: float) -> Html:
    """The table of operations, sortable and searchable."""
    document = cycles_document(study, clock)
    total = document["total_cycles"]
    rows = []
    for row in document["operations"][:MAX_ROWS]:
        leads = row["leader"] == row["operation"]
        share = row["cycles"] / total if leads and row["cycles"] and total else None
        rows.append(
            row
            | {
                "engine": tag("span", row["engine"].upper(), class_=f"engine {row['engine']}"),
                "what": tag("div", row["what"], class_="what"),
                "input": _shape(row["input"]),
                "output": _shape(row["output"]),
                "macs": row["macs"] or None,
                "cycles": row["cycles"] if leads else None,
                "share": (f"{share:.1%}", share) if share is not None else None,
                "bound": row["bound"] if leads else f"with {row['leader']}",
                "mac_share": (f"{row['mac_share']:.1%}", row["mac_share"]) if row["mac_share"] else None,
            }
        )
    search = tag(
        "p",
        tag("label", "Search ", for_="operations-search"),
        tag(
            "input",
            type="search",
            id="operations-search",
            data_table="operations-table",
            placeholder="engine, layer, shape ...",
        ),
        tag("span", f"{len(rows)} operations", aria_live="polite", id="operations-count", class_="soft"),
        tag("span", "shapes are channels x height x width, amounts bytes", class_="soft"),
        class_="search",
    )
    columns = {key: text for key, text in OPERATION_COLUMNS.items() if any(row.get(key) for row in rows)}
    return joined((search, table(rows, columns, "Operations", "operations-table", sortable=True)))


def _shape(shape: list[int] | None) -> Any:
    if shape is None:
        return None
    return tag("span", " x ".join(map(str, shape)), class_="shape")


def schedule(study: Study, clock: float) -> Html:
    """The schedule as a drawing."""
    return tag("div", Html(schedule_svg(study, clock, "")), class_="scroll drawing", tabindex="0", role="region",
               aria_label="Schedule")  # fmt: skip


def memory(study: Study) -> Html:
    """Totals, the timeline, what must be contiguous."""
    found = MemoryMap.of(study)
    spaces = [_hexed(row) for row in found.spaces()]
    totals = {
        "space": "Space",
        "base": "From",
        "end": "To",
        "carve_out": "Carve-out",
        "constant": "From the file",
        "bound": "Bound",
        "intermediate": "Intermediate",
        "peak_live": "Live at the peak",
        "peak_at": "Peak at",
    }
    parts = [table(spaces, totals, "Memory by space")]
    overlaps = found.overlaps()
    if overlaps:
        parts.append(tag("p", f"{len(overlaps)} buffers are overwritten while they are still needed.", class_="bad"))
    drawing = Html(memory_svg(found, ""))
    parts.append(tag("div", drawing, class_="scroll drawing", tabindex="0", role="region", aria_label="Memory"))
    names = {row["memory"]: row["why"] for row in found.contiguous()}
    rows = [_hexed(row) | {"why": names[row["memory"]]} for row in found.allocation_rows()[:MAX_ROWS]]
    columns = {
        "memory": "Memory",
        "space": "Space",
        "address": "Address",
        "size": "Bytes",
        "alignment": "Alignment",
        "use": "Use",
        "name": "First content",
        "why": "Must be contiguous",
    }
    inner = table(rows, columns, "Allocations", "allocations-table", sortable=True)
    parts.append(tag("details", tag("summary", f"{len(rows)} allocations, each contiguous"), inner))
    return joined(parts)


def _hexed(row: dict[str, Any]) -> dict[str, Any]:
    places = ("address", "base", "end")
    return {key: (f"0x{value:x}", value) if key in places else value for key, value in row.items()}


def values(view: RunView, examination: Examination) -> Html:
    """What every operation wrote: figures, a histogram, pictures of the first channels."""
    health = {(each["task"], each["operation"]): each for each in examination.tensors}
    cards = []
    for seen in view.observations:
        tensor = seen.tensor
        if tensor is None:
            continue
        name = f"{seen.engine.upper()} {seen.task}/{seen.index}" + (f" {seen.layer}" if seen.layer else "")
        shape = " x ".join(map(str, tensor.shape[1:]))
        facts = health.get((seen.task, seen.index))
        parts = [tag("h3", name), tag("p", f"{shape} {tensor.dtype}", class_="soft")]
        if facts and seen.roi == 0:
            extent = f"{facts['min']:g} to {facts['max']:g}"
            text = f"{extent}, {facts['zero_share']:.1%} zero, {facts['saturated_share']:.2%} at the type's ends"
            dead = f", {facts['dead_count']} of {facts['channels']} channels always zero" if facts["dead_count"] else ""
            parts += [tag("p", text + dead), histogram(**_of(facts["histogram"]), what=name)]
        parts.append(feature_maps(tensor, name))
        cards.append(tag("article", *parts, class_="value"))
    note = "Black is a tensor's least value, white its greatest; the bars grow with the logarithm of the count."
    return joined((tag("p", note, class_="soft"), tag("div", *cards, class_="values")))


def _of(found: dict[str, Any]) -> dict[str, Any]:
    return {"counts": found["counts"], "edges": found["edges"]}
