"""The schedule as a drawing: a row for each register group, operations as bars in time."""

from __future__ import annotations

from nvdla.analysis.study import Study
from nvdla.analysis.svg import STYLE, Drawing, round_ticks, short
from nvdla.descriptors.enums import ENGINE_NAMES

LEFT, RIGHT, ROW, PLOT = 110, 40, 24, 1000  # on the right there is room for half of the last number
TICKS = 8


def schedule_svg(study: Study, clock: float, style: str = STYLE) -> str:
    """The drawing as SVG text; ``style`` "" for a page that has the colours. ``clock`` in MHz."""
    drawing = Drawing()
    total = max(study.schedule.cycles, 1)
    title = f"Schedule of {short(study.title, 60)}: {study.schedule.cycles:,} cycles"
    drawing.text(8, 18, f"{title}, {study.schedule.cycles / clock / 1000:.3f} ms at {clock:g} MHz", "title")
    rows = _rows(study)
    top = 48.0
    scale = PLOT / total
    for tick in round_ticks(total, TICKS):
        x = LEFT + tick * scale
        drawing.line(x, top - 8, x, top + len(rows) * ROW)
        drawing.text(x, top - 12, f"{tick:,}", "soft", "middle" if tick else "start")
    places = {row: top + number * ROW for number, row in enumerate(rows)}
    for (engine, group), y in places.items():
        drawing.text(8, y + 15, "CPU" if engine == "cpu" else f"{engine.upper()} group {group}")
    for node in study.operations:
        span = study.schedule.spans[node.key]
        if span.start is None or span.end is None:
            continue
        y = places[node.engine, span.group]
        if span.programmed is not None and span.programmed < span.start:
            x, width = LEFT + span.programmed * scale, (span.start - span.programmed) * scale
            label = f"{node.title} is programmed and waits"
            drawing.rect(x, y + 9, width, ROW - 17, node.engine, label, 0.3)
        width = max((span.end - span.start) * scale, 1)
        what = f"{node.title}: {span.start:,} to {span.end:,} ({span.end - span.start:,} cycles), {node.what}"
        drawing.rect(LEFT + span.start * scale, y + 2, width, ROW - 5, node.engine, what)
    drawing.text(8, top + len(rows) * ROW + 16, "bars: at work; thin bars: programmed ahead and waiting", "soft")
    return drawing.document(LEFT + PLOT + RIGHT, title, style)


def _rows(study: Study) -> list[tuple[str, int | None]]:
    used = {(node.engine, study.schedule.spans[node.key].group) for node in study.operations}
    rows: list[tuple[str, int | None]] = [
        (engine, group) for engine in ENGINE_NAMES for group in (0, 1) if (engine, group) in used
    ]
    return [*rows, *([("cpu", None)] if ("cpu", None) in used else [])]
