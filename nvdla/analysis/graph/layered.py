"""The graph as SVG without graphviz: operations and tensors in rows, each below all that it takes from.

Plainer than graphviz's drawing, and never in trouble: for graphs that graphviz fails on, and where it is not installed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from nvdla.analysis.graph.document import tensor_name
from nvdla.analysis.graph.dot import COLORS, KINDS, key_id
from nvdla.analysis.study import Study
from nvdla.analysis.svg import FIXED_STYLE, clean, short
from nvdla.errors import shape_text

WIDTH, GAP, LINE, ROW_GAP, MARGIN = 210, 26, 14, 40, 20
SWEEPS = 4  # over all rows, down and up by turns, until few lines cross
_HEAD = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#6e7781"/></marker></defs>'
)


@dataclass
class _Box:
    """An operation or a tensor: its lines of text, its colour, and where it stands."""

    name: str
    lines: list[str]
    color: str
    is_tensor: bool
    row: int = 0
    column: float = 0.0

    @property
    def height(self) -> int:
        return LINE * len(self.lines) + 10


@dataclass
class _Graph:
    boxes: dict[str, _Box] = field(default_factory=dict)
    edges: list[tuple[str, str, str]] = field(default_factory=list)  # from, to, label
    events: list[tuple[str, str, str]] = field(default_factory=list)

    def rows(self) -> list[list[_Box]]:
        """Boxes by row: the longest way from the top decides; rows are ordered so that few lines cross."""
        after, before = defaultdict(list), defaultdict(list)
        for source, target, _ in self.edges:
            after[source].append(target)
            before[target].append(source)
        self._rank(after, {name: len(before[name]) for name in self.boxes})
        rows: dict[int, list[_Box]] = defaultdict(list)
        for box in self.boxes.values():
            box.column = len(rows[box.row])
            rows[box.row].append(box)
        ordered = [rows[number] for number in sorted(rows)]
        for sweep in range(SWEEPS):
            neighbours = before if sweep % 2 == 0 else after
            for row in ordered if sweep % 2 == 0 else reversed(ordered):
                self._order(row, neighbours)
        return ordered

    def _rank(self, after: dict[str, list[str]], waiting: dict[str, int]) -> None:
        """Longest paths. In a circle, which only a broken file has, the first box in order goes on."""
        ready = [name for name, count in waiting.items() if not count]
        left = dict.fromkeys(self.boxes)
        while left:
            name = ready.pop() if ready else next(iter(left))
            if name not in left:
                continue
            del left[name]
            for target in after[name]:
                if target in left:
                    self.boxes[target].row = max(self.boxes[target].row, self.boxes[name].row + 1)
                    waiting[target] -= 1
                    if not waiting[target]:
                        ready.append(target)

    def _order(self, row: list[_Box], neighbours: dict[str, list[str]]) -> None:
        """By the middle of what each box is connected with in the rows before."""
        middle = {}
        for box in row:
            columns = [self.boxes[name].column for name in neighbours[box.name]]
            middle[box.name] = sum(columns) / len(columns) if columns else box.column
        row.sort(key=lambda box: middle[box.name])
        for number, box in enumerate(row):
            box.column = number - (len(row) - 1) / 2


def layered_svg(study: Study, constants: bool = False, events: bool = False) -> str:
    """The same graph as :func:`nvdla.analysis.graph.dot.dot_text` has, as an <svg> element."""
    graph = _graph(study, constants, events)
    rows = graph.rows()
    widest = max((len(row) for row in rows), default=1)
    width = 2 * MARGIN + widest * (WIDTH + GAP)
    place: dict[str, tuple[float, float]] = {}
    top = MARGIN + 2 * LINE
    for row in rows:
        for box in row:
            place[box.name] = (width / 2 + box.column * (WIDTH + GAP), top)
        top += max(box.height for box in row) + ROW_GAP
    parts = [_line(graph, place, edge, False) for edge in graph.edges]
    parts += [_line(graph, place, edge, True) for edge in graph.events]
    parts += [_drawn(box, *place[box.name]) for row in rows for box in row]
    title = escape(clean(study.title))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}" '
        f'font-family="Helvetica,sans-serif" font-size="10"><style>{FIXED_STYLE}</style>{_HEAD}'
        f'<text x="{width / 2:.0f}" y="{MARGIN}" text-anchor="middle" font-size="14" fill="#6e7781">{title}</text>'
        f"{''.join(parts)}</svg>\n"
    )


def _graph(study: Study, constants: bool, events: bool) -> _Graph:
    graph = _Graph()
    for node in study.operations:
        lines = [node.title, short(node.what, 40)]
        if node.output:
            lines.append(shape_text(node.output) + (f"  {node.precision}" if node.precision else ""))
        name = key_id(node.key)
        graph.boxes[name] = _Box(name, lines, COLORS.get(node.engine, "#6e7781"), False)
    for first, second in (pair for chain in study.chains for pair in itertools.pairwise(chain)):
        graph.edges.append((key_id(first.key), key_id(second.key), ""))
    for value in study.values:
        if constants or value.kind != "constant":
            shape = shape_text(value.shape) if value.shape else f"{value.bytes} bytes"
            lines = [short(tensor_name(study, value), 34), f"{shape}, memory {value.memory}+{value.offset}"]
            graph.boxes[f"t{value.id}"] = _Box(f"t{value.id}", lines, KINDS[value.kind], True)
            if value.writer:
                graph.edges.append((key_id(value.writer), f"t{value.id}", ""))
            for key, role in dict.fromkeys(value.readers):
                graph.edges.append((f"t{value.id}", key_id(key), "" if role == "src" else role))
    for node in study.operations if events else ():
        for each in node.dependencies:
            if each.target in study.by_key and study.step_of[each.target] != study.step_of[node.key]:
                word = each.event.removeprefix("OP_").lower()
                graph.events.append((key_id(node.key), key_id(each.target), word))
    return graph


def _line(graph: _Graph, place: dict[str, tuple[float, float]], edge: tuple[str, str, str], dashed: bool) -> str:
    """From the lower side of a box to the upper side of another, bent so that rows between are passed softly."""
    source, target, label = edge
    (x1, y1), (x2, y2) = place[source], place[target]
    y1 += graph.boxes[source].height
    bend = max(ROW_GAP / 2, abs(y2 - y1) / 3)
    look = ' stroke-dasharray="4 3"' if dashed else ""
    path = f"M{x1:.1f},{y1:.1f} C{x1:.1f},{y1 + bend:.1f} {x2:.1f},{y2 - bend:.1f} {x2:.1f},{y2:.1f}"
    text = ""
    if label:
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        text = f'<text x="{x:.1f}" y="{y:.1f}" font-size="8" fill="#6e7781">{escape(clean(label))}</text>'
    return f'<path d="{path}" fill="none" stroke="#6e7781" marker-end="url(#arrow)"{look}/>{text}'


def _drawn(box: _Box, x: float, y: float) -> str:
    fill, ink = ("none", "#6e7781") if box.is_tensor else (box.color, "#ffffff")
    radius = box.height / 2 if box.is_tensor else 5
    lines = "".join(
        f'<text x="{x:.1f}" y="{y + LINE * (number + 1):.1f}" text-anchor="middle" fill="{ink}">'
        f"{escape(clean(short(line, 42)))}</text>"
        for number, line in enumerate(box.lines)
    )
    return (
        f'<g><title>{box.name}</title><rect x="{x - WIDTH / 2:.1f}" y="{y:.1f}" width="{WIDTH}" '
        f'height="{box.height}" rx="{radius:.0f}" fill="{fill}" stroke="{box.color}"/>{lines}</g>'
    )
