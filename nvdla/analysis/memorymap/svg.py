"""The memory map as a drawing: live bytes over the operations, and a bar for the life of every buffer."""

from __future__ import annotations

from nvdla.analysis.memorymap.memory_map import MemoryMap, Row
from nvdla.analysis.svg import STYLE, Drawing, short
from nvdla.memory.placement import SPACES

LEFT, RIGHT, ROW, CURVE = 330, 24, 15, 90
MIN_WIDTH, MAX_WIDTH = 640, 2400
MAX_ROWS = 2000


def memory_svg(memory: MemoryMap, style: str = STYLE) -> str:
    """The drawing as SVG text; ``style`` "" for a page that has the colours."""
    rows = sorted(memory.buffer_rows(), key=lambda row: (row["address"] or 0, row["first"]))
    steps = memory.steps()
    plot = min(max(len(steps) * 14, MIN_WIDTH), MAX_WIDTH)
    scale = plot / max(len(steps), 1)
    drawing = Drawing()
    drawing.text(8, 18, f"Memory of {short(memory.study.title, 80)}", "title")
    top = 30.0
    for space in SPACES:
        if max(memory.usage[space], default=0):
            top = _curve(drawing, memory.usage[space], space, scale, plot, top)
    top = _axis(drawing, steps, scale, plot, top, len(rows[:MAX_ROWS]) * ROW)
    for row in rows[:MAX_ROWS]:
        _bar(drawing, row, scale, len(steps), top)
        top += ROW
    if len(rows) > MAX_ROWS:
        drawing.text(8, top + 12, f"{len(rows) - MAX_ROWS} more buffers are not drawn", "soft")
        top += ROW
    _legend(drawing, top + 16)
    return drawing.document(LEFT + plot + RIGHT, f"Memory map of {memory.study.loadable.name}", style)


def _curve(drawing: Drawing, live: list[int], space: str, scale: float, plot: float, top: float) -> float:
    peak = max(live)
    bottom = top + CURVE
    points = [(float(LEFT), bottom)]
    for step, amount in enumerate(live):
        y = bottom - amount / peak * (CURVE - 12)
        points += [(LEFT + step * scale, y), (LEFT + (step + 1) * scale, y)]
    points.append((LEFT + len(live) * scale, bottom))
    drawing.area(points, "intermediate")
    drawing.line(LEFT, bottom, LEFT + plot, bottom)
    drawing.text(8, top + 24, f"live bytes in {space.upper()}")
    drawing.text(8, top + 40, f"peak {peak:,} (weights not counted)", "soft")
    return bottom + 8


def _axis(drawing: Drawing, steps: list[Row], scale: float, plot: float, top: float, height: float) -> float:
    every = max(1, round(60 / scale))
    for step in range(0, len(steps), every):
        x = LEFT + step * scale
        drawing.line(x, top + 16, x, top + 20 + height)
        label = f"{steps[step]['operations'][0]} {steps[step]['engines'][0]}"
        drawing.text(x + 2, top + 12, short(label, 12), "soft")
    drawing.line(LEFT, top + 18, LEFT + plot, top + 18)
    return top + 20


def _bar(drawing: Drawing, row: Row, scale: float, steps: int, top: float) -> None:
    first, last = max(row["first"], 0), min(row["last"], steps - 1)
    address = f"0x{row['address']:x}" if row["address"] is not None else "not allocated"
    drawing.text(8, top + 11, f"{address}  {short(row['name'], 26)}")
    drawing.text(LEFT - 8, top + 11, f"{row['bytes']:,}", "soft", "end")
    life = f"{row['written_by'] or 'before the run'} to {row['read_by'][-1] if row['read_by'] else 'the end'}"
    title = f"{row['name']}: {row['bytes']:,} bytes at {address}, {row['kind']}, {life}"
    width = max((last - first + 1) * scale, 2)
    drawing.rect(LEFT + first * scale, top + 2, width, ROW - 4, row["kind"], title)


def _legend(drawing: Drawing, top: float) -> None:
    x = 8.0
    for kind in ("input", "intermediate", "output", "constant", "unset"):
        drawing.rect(x, top - 9, 10, 10, kind)
        drawing.text(x + 15, top, kind, "soft")
        x += 110
