"""Graphs of operations and tensors: JSON document, DOT, SVG and ONNX.

Plainer than graphviz's drawing, and never in trouble: for graphs that graphviz fails on, and where it is not installed.

A node is an operation with its descriptors as attributes, a tensor a value in memory or on the fly. Nothing runs it.
"""

from __future__ import annotations

import itertools
import math
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nvdla.analysis.cycles.document import cycles_of
from nvdla.analysis.study import Study
from nvdla.analysis.svg import FIXED_STYLE, short
from nvdla.errors import FormatError, sentence, shape_text
from nvdla.loadable.descriptors.fields import FieldView, fields
from nvdla.loadable.model import Loadable
from nvdla.program.operation import Key, Operation, short_layer
from nvdla.program.values import Value
from nvdla.util.escaping import Document, Json, dot_string, xml_text
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

FORMAT, VERSION = "nvdla-graph", 1

Row = Document


def graph_document(study: Study) -> Row:
    """Everything that the drawings show. Tensors are named by their id, operations by their label."""
    producers = {value.id: value for value in study.values}
    return {
        "format": FORMAT,
        "version": VERSION,
        "loadable": study.loadable.name,
        "configuration": study.config.name,
        "abi": study.abi.name,
        "inputs": [value.id for value in study.values if value.kind == "input"],
        "outputs": [value.id for value in study.values if value.kind == "output"],
        "tasks": [_task(study, task) for task in dict.fromkeys(node.task for node in study.operations)],
        "groups": [[node.label for node in chain] for chain in study.chains if len(chain) > 1],
        "nodes": _nodes(study),
        "tensors": [_tensor(study, value) for value in producers.values()],
        "dependencies": _dependencies(study),
    }


def _task(study: Study, task: int) -> Row:
    return {"task": task, "interface": study.loadable.task(task).interface.name}


def _nodes(study: Study) -> list[Row]:
    inputs: dict[Key, list[Row]] = {}
    outputs: dict[Key, list[int]] = {}
    for value in study.values:
        for key, role in value.readers:
            inputs.setdefault(key, []).append({"tensor": value.id, "role": role})
        if value.writer:
            outputs.setdefault(value.writer, []).append(value.id)
    group_of = {node.key: chain[0].label for chain in study.chains if len(chain) > 1 for node in chain}
    return [
        {
            "name": node.label,
            "task": node.task,
            "operation": node.index,
            "roi": node.roi,
            "op_type": node.engine.upper(),
            "layer": node.layer,
            "what": node.what,
            "precision": node.precision,
            "input_shape": list(node.input) if node.input else None,
            "output_shape": list(node.output) if node.output else None,
            "inputs": inputs.get(node.key, []),
            "outputs": outputs.get(node.key, []),
            "group": group_of.get(node.key),
            "step": study.step_of[node.key],
            "waits_for": node.waits_for,
        }
        for node in study.operations
    ]


def _tensor(study: Study, value: Value) -> Row:
    return {
        "id": value.id,
        "name": tensor_name(study, value),
        "kind": value.kind,
        "memory": value.memory,
        "offset": value.offset,
        "bytes": value.bytes,
        "shape": list(value.shape) if value.shape else None,
        "layout": value.layout,
        "producer": study.by_key[value.writer].label if value.writer else None,
        "consumers": list(dict.fromkeys(study.by_key[key].label for key, _ in value.readers)),
    }


def tensor_name(study: Study, value: Value) -> str:
    """The name of the layer that makes it, where one is known; else of the data there."""
    if value.kind == "intermediate" and value.writer:
        return study.by_key[value.writer].layer or value.name
    return value.name


def _dependencies(study: Study) -> list[Row]:
    known = study.by_key
    return [
        {
            "from": node.label,
            "to": known[dependency.target].label,
            "event": dependency.event,
            "fused_parent": dependency.on_the_fly,
        }
        for node in study.operations
        for dependency in node.dependencies
        if dependency.target in known
    ]


DOT_SECONDS = 120
COLORS = {
    "conv": "#2f6fde",
    "sdp": "#1a7f64",
    "pdp": "#a15c00",
    "cdp": "#8250df",
    "bdma": "#6e7781",
    "rubik": "#bf3989",
    "cpu": "#4b5563",
}
KINDS = {"input": "#1a7f64", "output": "#2f6fde", "constant": "#8c959f", "intermediate": "#a15c00", "unset": "#cf222e"}


def dot_text(study: Study, constants: bool = False, events: bool = False) -> str:
    """The graph in DOT: a box an operation, an ellipse a tensor in memory, chains on the fly boxed together.

    ``constants`` shows weights and operands too; ``events`` the dependencies that data do not show (dashed).
    """
    tasks: dict[int, list[list[Operation]]] = {}
    for chain in study.chains:
        tasks.setdefault(chain[0].task, []).append(chain)
    lines = [
        "digraph loadable {",
        "  rankdir=TB; newrank=true;",
        f"  label={dot_string(study.title)}; labelloc=t; bgcolor=transparent;",
        '  graph [fontname="Helvetica"]; node [fontname="Helvetica", fontsize=10];',
        '  edge [fontname="Helvetica", fontsize=8, color="#6e7781"];',
    ]
    for task, chains in tasks.items():
        kind = study.loadable.task(task).interface.name
        label = dot_string(f"task {task} ({kind})")
        lines.append(f"  subgraph cluster_task{_number(task)} {{ label={label}; style=rounded;")
        lines += [line for chain in chains for line in _chain(chain)]
        lines.append("  }")
    values = [value for value in study.values if constants or value.kind != "constant"]
    lines += [_dot_tensor(study, value) for value in values]
    lines += [line for value in values for line in _flow(value)]
    lines += _on_the_fly(study)
    if events:
        lines += _events(study)
    return "\n".join([*lines, "}"]) + "\n"


def _chain(chain: list[Operation]) -> list[str]:
    boxes = [f"    {_box(node)}" for node in chain]
    if len(chain) == 1:
        return boxes
    name = _id(chain[0])
    return [f'    subgraph cluster_{name} {{ label="on the fly"; style="rounded,dashed"; fontsize=8;', *boxes, "    }"]


def _box(node: Operation) -> str:
    lines = [node.title, *_wrapped(node.what)]
    if node.output:
        lines.append(shape_text(node.output) + (f"  {node.precision}" if node.precision else ""))
    label = "\n".join(short(line, 46) for line in lines)
    color = COLORS.get(node.engine, "#6e7781")
    look = f'shape=box, style="rounded,filled", fillcolor="{color}", fontcolor=white'
    return f"{_id(node)} [{look}, label={dot_string(label)}];"


def _wrapped(text: str, width: int = 40) -> list[str]:
    """The description in at most three lines, cut at commas and semicolons."""
    lines: list[str] = []
    for part in re.split(r"(?<=[,;]) ", text):
        if lines and len(lines[-1]) + len(part) < width:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    return lines if len(lines) <= 3 else [*lines[:2], lines[2] + " ..."]


def _dot_tensor(study: Study, value: Value) -> str:
    shape = shape_text(value.shape) if value.shape else f"{value.bytes} bytes"
    label = f"{short(short_layer(tensor_name(study, value)), 30)}\n{shape}\nmemory {value.memory}+{value.offset}"
    color = KINDS[value.kind]
    return f'  t{value.id} [shape=ellipse, color="{color}", label={dot_string(label)}, height=0.3];'


def _flow(value: Value) -> list[str]:
    lines = []
    if value.writer:
        lines.append(f"  {key_id(value.writer)} -> t{value.id};")
    for key, role in dict.fromkeys(value.readers):
        label = "" if role == "src" else f" [label={dot_string(role)}]"
        lines.append(f"  t{value.id} -> {key_id(key)}{label};")
    return lines


def _on_the_fly(study: Study) -> list[str]:
    return [
        f'  {_id(first)} -> {_id(second)} [penwidth=2, color="#24292f"];'
        for chain in study.chains
        for first, second in itertools.pairwise(chain)
    ]


def _events(study: Study) -> list[str]:
    return [
        f"  {_id(node)} -> {key_id(dependency.target)} [style=dashed, weight=0, "
        f'fontcolor="#6e7781", label={dot_string(dependency.event.removeprefix("OP_").lower())}];'
        for node in study.operations
        for dependency in node.dependencies
        if dependency.target in study.by_key and study.step_of[dependency.target] != study.step_of[node.key]
    ]


def _id(node: Operation) -> str:
    return key_id(node.key)


def key_id(key: tuple[int, int, int]) -> str:
    """Return the name of an operation in drawings."""
    return "op_" + "_".join(_number(part) for part in key)


def _number(value: int) -> str:
    """An identifier's part: task ids may be negative in a broken file."""
    return str(value) if value >= 0 else f"m{-value}"


def dot_program() -> str | None:
    """Return where graphviz's ``dot`` is, None where it is not installed."""
    return shutil.which("dot")


def dot_svg(text: str) -> str:
    """The drawing of DOT text by graphviz: an <svg> element. Raises FormatError without graphviz, or when it fails."""
    program = dot_program()
    if program is None:
        raise FormatError(
            "drawing: needs graphviz's 'dot', which is not installed. Install it (Debian: apt-get install graphviz), "
            "or write DOT text: -o NAME.dot."
        )
    try:
        done = subprocess.run(
            [program, "-Tsvg"], input=text.encode(), capture_output=True, timeout=DOT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FormatError(f"graphviz did not draw the graph: {sentence(error)} Write DOT text: -o NAME.dot.") from None
    output = done.stdout.decode("utf-8", "replace")
    at = output.find("<svg")
    if done.returncode or at < 0:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise FormatError(f"graphviz did not draw the graph: {reason[0] if reason else 'no output'}")
    end = output.index(">", at) + 1
    return f"{output[at:end]}<style>{FIXED_STYLE}</style>{output[end:]}"


WIDTH, GAP, LINE, ROW_GAP, MARGIN = 210, 26, 14, 40, 20
LONG = 60  # chains or rows from which on a drawing has columns
TRACKS = 5  # places side by side for lines between two columns
SLENDER = 2  # how many times as high as wide a drawing in columns is at most
SWEEPS = 4  # over all rows, down and up by turns, until few lines cross
_HEAD = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#6e7781"/></marker></defs>'
)


@dataclass
class _Box:
    """An operation or a tensor: its lines of text, its color, and where it is."""

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
            neighbors = before if sweep % 2 == 0 else after
            for row in ordered if sweep % 2 == 0 else reversed(ordered):
                self._order(row, neighbors)
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

    def _order(self, row: list[_Box], neighbors: dict[str, list[str]]) -> None:
        """By the middle of what each box is connected with in the rows before."""
        middle = {}
        for box in row:
            columns = [self.boxes[name].column for name in neighbors[box.name]]
            middle[box.name] = sum(columns) / len(columns) if columns else box.column
        row.sort(key=lambda box: middle[box.name])
        for number, box in enumerate(row):
            box.column = number - (len(row) - 1) / 2


def layered_svg(study: Study, constants: bool = False, events: bool = False) -> str:
    """The same graph as :func:`nvdla.analysis.graph.dot_text` has, as an <svg> element; a long one in columns."""
    graph = _graph(study, constants, events)
    rows = graph.rows()
    layout = _placed(rows)
    place, width, top = layout.place, layout.width, layout.height
    parts = [_line(graph, layout, edge, False) for edge in graph.edges]
    parts += [_line(graph, layout, edge, True) for edge in graph.events]
    parts += [_drawn(box, *place[box.name]) for row in rows for box in row]
    title = xml_text(study.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}" '
        f'font-family="Helvetica,sans-serif" font-size="10"><style>{FIXED_STYLE}</style>{_HEAD}'
        f'<text x="{width / 2:.0f}" y="{MARGIN}" text-anchor="middle" font-size="14" fill="#6e7781">{title}</text>'
        f"{''.join(parts)}</svg>\n"
    )


@dataclass
class _Layout:
    """Places of the boxes, and the tracks between them for lines.

    ``column`` of each box; ``above``: the y of the track above its row, ``below`` its row; ``tracks``: the x of that
    to the left of each column, and after the last one; ``spread``: counts lines, which are side by side in a track.
    """

    place: dict[str, tuple[float, float]] = field(default_factory=dict)
    column: dict[str, int] = field(default_factory=dict)
    above: dict[str, float] = field(default_factory=dict)
    below: dict[str, float] = field(default_factory=dict)
    tracks: list[float] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0
    spread: int = 0

    def route(self, source: str, target: str) -> str | None:
        """Return the middle of an SVG path along the tracks; None without columns, and to the next row."""
        is_next = self.column[source] == self.column[target] and abs(self.below[source] - self.above[target]) < 1
        if len(self.tracks) < 3 or is_next:
            return None
        self.spread = (self.spread + 1) % TRACKS
        shift = (self.spread - TRACKS // 2) * GAP / (TRACKS + 1)
        start, end = self.column[source] + 1, self.column[target]
        first, last = self.tracks[start] + shift, self.tracks[end] + shift
        path = f"V{self.below[source] + shift / 2:.1f} H{first:.1f}"
        if start != end and self.column[source] != end:
            path += f" V{MARGIN + LINE + shift / 2:.1f} H{last:.1f}"  # over all columns between
        elif self.column[source] == end:
            last = first  # down on the right of the column
        return f"{path} V{self.above[target] + shift / 2:.1f}"


def _placed(rows: list[list[_Box]]) -> _Layout:
    """The layout of a drawing that is not much higher than wide."""
    heights = [max(box.height for box in row) + ROW_GAP for row in rows]
    high, wide = sum(heights), sum(map(len, rows)) / max(len(rows), 1) * (WIDTH + GAP)
    limit = high if len(rows) <= LONG else high / max(math.ceil(math.sqrt(high / (SLENDER * wide))), 1)
    layout, left, top = _Layout(), float(MARGIN), float(MARGIN + 2 * LINE)
    bottom, start = top, 0
    while start < len(rows):
        end, y = start, float(MARGIN + 2 * LINE)
        while end < len(rows) and (end == start or y < limit):
            y += heights[end]
            end += 1
        column = max(map(len, rows[start:end])) * (WIDTH + GAP)
        y = top
        for row, height in zip(rows[start:end], heights[start:end], strict=True):
            for box in row:
                layout.place[box.name] = left + column / 2 + box.column * (WIDTH + GAP), y
                layout.column[box.name] = len(layout.tracks)
                layout.above[box.name], layout.below[box.name] = y - ROW_GAP / 2, y + height - ROW_GAP / 2
            y += height
        layout.tracks.append(left - GAP / 2)
        left, bottom, start = left + column + GAP, max(bottom, y), end
    layout.tracks.append(left - GAP / 2)
    layout.width, layout.height = max(left - GAP, WIDTH + GAP) + MARGIN, bottom
    return layout


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
            lines = [
                short(short_layer(tensor_name(study, value)), 34),
                f"{shape}, memory {value.memory}+{value.offset}",
            ]
            graph.boxes[f"t{value.id}"] = _Box(f"t{value.id}", lines, KINDS[value.kind], True)
            if value.writer:
                graph.edges.append((key_id(value.writer), f"t{value.id}", ""))
            for key, role in dict.fromkeys(value.readers):
                graph.edges.append((f"t{value.id}", key_id(key), "" if role == "src" else role))
    for node in study.operations if events else ():
        for dependency in node.dependencies:
            if dependency.target in study.by_key and study.step_of[dependency.target] != study.step_of[node.key]:
                word = dependency.event.removeprefix("OP_").lower()
                graph.events.append((key_id(node.key), key_id(dependency.target), word))
    return graph


def _line(graph: _Graph, layout: _Layout, edge: tuple[str, str, str], dashed: bool) -> str:
    """From the lower side of a box to the upper side of another: along tracks in a drawing with columns, else bent so
    that rows between are passed softly."""
    source, target, label = edge
    (x1, y1), (x2, y2) = layout.place[source], layout.place[target]
    y1 += graph.boxes[source].height
    bend = max(ROW_GAP / 2, (y2 - y1) / 3)  # upwards, to the next column, nearly straight
    look = ' stroke-dasharray="4 3"' if dashed else ""
    path = f"M{x1:.1f},{y1:.1f} C{x1:.1f},{y1 + bend:.1f} {x2:.1f},{y2 - bend:.1f} {x2:.1f},{y2:.1f}"
    if (route := layout.route(source, target)) is not None:
        path = f"M{x1:.1f},{y1:.1f} {route} H{x2:.1f} V{y2:.1f}"
    text = ""
    if label:
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        text = f'<text x="{x:.1f}" y="{y:.1f}" font-size="8" fill="#6e7781">{xml_text(label)}</text>'
    return f'<path d="{path}" fill="none" stroke="#6e7781" marker-end="url(#arrow)"{look}/>{text}'


def _drawn(box: _Box, x: float, y: float) -> str:
    fill, ink = ("none", "#6e7781") if box.is_tensor else (box.color, "#ffffff")
    radius = box.height / 2 if box.is_tensor else 5
    lines = "".join(
        f'<text x="{x:.1f}" y="{y + LINE * (number + 1):.1f}" text-anchor="middle" fill="{ink}">'
        f"{xml_text(short(line, 42))}</text>"
        for number, line in enumerate(box.lines)
    )
    return (
        f'<g><title>{box.name}</title><rect x="{x - WIDTH / 2:.1f}" y="{y:.1f}" width="{WIDTH}" '
        f'height="{box.height}" rx="{radius:.0f}" fill="{fill}" stroke="{box.color}"/>{lines}</g>'
    )


DOMAIN, OPSET, IR = "nvdla", 1, 8
#: protobuf ends at 2 GiB
MAX_WEIGHTS = 1 << 30


def onnx_model(study: Study, weights: bool = True) -> ModelProto:
    """The model: checked by ``onnx.checker``. ``weights``: with the bytes of constants, else they are inputs.

    Raises FormatError without onnx, and for more than MAX_WEIGHTS bytes of weights.
    """
    try:
        import onnx
    except ImportError:
        raise FormatError("package onnx: must be installed: pip install 'nvdla[onnx]'") from None
    from onnx import helper

    names = _Names(study)
    constants = [value for value in study.values if value.kind == "constant"]
    if weights and sum(value.bytes for value in constants) > MAX_WEIGHTS:
        raise FormatError(
            f"more than {MAX_WEIGHTS >> 30} GiB of weights. Omit them with --no-weights (Python: weights=False)."
        )
    given = [value for value in study.values if value.writer is None and (value.kind != "constant" or not weights)]
    graph = helper.make_graph(
        [_node(study, names, node) for chain in study.steps for node in chain],
        study.title,
        [names.info(value) for value in given],
        [names.info(value) for value in study.values if value.kind == "output"],
        [_initializer(study.loadable, names, value) for value in constants] if weights else [],
        value_info=[names.info(value) for value in study.values if value.kind == "intermediate"] + names.flying(),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(DOMAIN, OPSET)], ir_version=IR)
    model.producer_name, model.domain = "nvdla", DOMAIN
    model.doc_string = (
        f"{study.config.name}: {study.config_reason}. For viewers only: no runtime supports the domain {DOMAIN}."
    )
    onnx.checker.check_model(model)
    return model


class _Names:
    """A name, a type and a shape for every value, and for what goes on the fly."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._by_id: dict[int, str] = {}
        taken: set[str] = set()
        for value in study.values:
            name = tensor_name(study, value) or "value"
            self._by_id[value.id] = name if name not in taken else f"{name} #{value.id}"
            taken.add(self._by_id[value.id])
        self.made: dict[Key, list[str]] = {}
        self.used: dict[Key, list[str]] = {}
        for value in study.values:
            if value.writer:
                self.made.setdefault(value.writer, []).append(self.of(value))
            for key, _ in dict.fromkeys(value.readers):
                self.used.setdefault(key, []).append(self.of(value))
        self._flying: list[Operation] = []
        for chain in study.chains:
            for giver, taker in itertools.pairwise(chain):
                self.made.setdefault(giver.key, []).append(self.fly(giver))
                self.used.setdefault(taker.key, []).insert(0, self.fly(giver))
                self._flying.append(giver)

    def of(self, value: Value) -> str:
        """The name of a value."""
        return self._by_id[value.id]

    @staticmethod
    def fly(node: Operation) -> str:
        """Return the on-the-fly output of an operation."""
        return f"{node.label} on the fly"

    def info(self, value: Value) -> ValueInfoProto:
        """Name, type and shape of a value."""
        from onnx import helper

        shape = [1, *value.shape] if value.shape else [value.bytes]
        return helper.make_tensor_value_info(self.of(value), self._type(value), shape)

    def flying(self) -> list[ValueInfoProto]:
        """Value infos of the tensors that are passed on the fly."""
        from onnx import helper

        return [
            helper.make_tensor_value_info(self.fly(node), _type_of(node, 1), [1, *node.output])
            for node in self._flying
            if node.output
        ]

    def _type(self, value: Value) -> int:
        """By who writes it, else by who reads it; bytes where nothing says."""
        from onnx import TensorProto

        if not value.shape:
            return int(TensorProto.UINT8)
        key = value.writer or (value.readers[0][0] if value.readers else None)
        node = self._study.by_key[key] if key else None
        tensor_type = _type_of(node, int(bool(value.writer))) if node else int(TensorProto.UINT8)
        sizes = {int(TensorProto.INT8): 1, int(TensorProto.INT16): 2, int(TensorProto.FLOAT16): 2}
        if sizes.get(tensor_type) == value.element_bytes:
            return tensor_type
        return int({1: TensorProto.INT8, 2: TensorProto.INT16}.get(value.element_bytes, TensorProto.UINT8))


def _type_of(node: Operation, side: int) -> int:
    """The element type of the input (0) or output (1) of an operation."""
    from onnx import TensorProto

    if node.precisions is None:
        half = (node.precision or "").startswith("fp16")
        return int(TensorProto.FLOAT16 if half else TensorProto.INT8)
    types = {Precision.INT8: TensorProto.INT8, Precision.INT16: TensorProto.INT16, Precision.FP16: TensorProto.FLOAT16}
    return int(types.get(node.precisions[side], TensorProto.UINT8))


def _node(study: Study, names: _Names, node: Operation) -> NodeProto:
    from onnx import helper

    estimate, span = study.estimates[node.key], study.schedule.spans[node.key]
    title = f"{node.label} {node.layer or ''}".strip()
    proto = helper.make_node(
        node.engine.upper(), names.used.get(node.key, []), names.made.get(node.key, []), title, node.what, DOMAIN
    )
    if not proto.input and not proto.output:
        proto.output.append(f"{node.label} nothing")  # ONNX knows no node without a tensor
    about: dict[str, Json] = {"what": node.what, "layer": node.layer, "precision": node.precision}
    about |= {"cycles": cycles_of(study, node), "bound_by": estimate.bound, "macs": estimate.macs or None}
    about |= {"start_cycle": span.start, "end_cycle": span.end}
    for structure in (node.op, None if node.type is None else node.surface):
        about |= {field.name: _attribute(field) for field in fields(structure) if _is_told(field)} if structure else {}
    proto.attribute.extend(helper.make_attribute(key, value) for key, value in about.items() if value is not None)
    return proto


def _is_told(field: FieldView) -> bool:
    return not field.reserved and not (isinstance(field.value, list) and not field.value)


def _attribute(field: FieldView) -> str | int | float | list[int]:
    """The name of an enum's number, else the number; numbers that 64 bits with a sign cannot hold as text."""
    if field.meaning is not None:
        return field.meaning
    large = isinstance(field.value, int) and not -(1 << 63) <= field.value < 1 << 63
    return str(field.value) if large else field.value


def _initializer(loadable: Loadable, names: _Names, value: Value) -> TensorProto:
    """A constant as bytes, as they are in the file; what the file does not fill is 0."""
    from onnx import helper

    data = np.zeros(value.bytes, np.uint8)
    at = 0
    contents = loadable.contents(loadable.memory(value.memory))
    for start, end in value.pieces:
        for offset, blob in contents:
            low, high = max(start, offset), min(end, offset + blob.length)
            if low < high:
                data[at + low - start : at + high - start] = np.frombuffer(
                    blob.data[low - offset : high - offset], np.uint8
                )
        at += end - start
    return helper.make_tensor(names.of(value), 2, [value.bytes], data.tobytes(), raw=True)
