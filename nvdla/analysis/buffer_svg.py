"""The convolution buffer as a drawing: banks as rows, time from left to right, what each convolution has in it.

Data and weights each go round in their own banks, one convolution's behind those of the one before; where the banks
change they begin anew (:mod:`nvdla.hardware.convolution.books`). Times are those of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nvdla.analysis.cycles.schedule import Span
from nvdla.analysis.cycles.shapes import ConvolutionShape
from nvdla.analysis.study import Study
from nvdla.analysis.svg import STYLE, Drawing, round_ticks, short
from nvdla.program.operation import Operation

LEFT, RIGHT, TICKS = 90, 60, 10
LEAST_WIDTH, MOST_WIDTH, OF_A_CONVOLUTION = 1000, 4000, 34
BANKS_HIGH, BANK_LEAST, BANK_MOST = 480, 10, 26
NAME_ROWS, NAME_HEIGHT, CHARACTER, LONGEST_NAME = 6, 13, 6.6, 22
KINDS = {"data": "conv", "weights": "pdp", "used again": "cdp"}
FILLING = 0.35


@dataclass(frozen=True)
class Stay:
    """``count`` units of a ring of banks from ``start`` on (``room`` units in ``banks`` banks from ``first``): arriving
    from cycle ``begin``, all there at ``there``, gone at ``end``."""

    node: Operation
    kind: str
    first: int
    banks: int
    room: int
    start: int
    count: int
    begin: float
    there: float
    end: float

    def pieces(self) -> Iterator[tuple[float, float]]:
        """(first, end) in banks of the buffer, in two pieces where it goes round."""
        scale = self.banks / self.room
        low, high = self.start % self.room, self.start % self.room + min(self.count, self.room)
        yield self.first + low * scale, self.first + min(high, self.room) * scale
        if high > self.room:
            yield float(self.first), self.first + (high - self.room) * scale


@dataclass
class _Ring:
    """Where the next convolution's data (or weights) go. ``held``: units of the one before, which leaves at ``end``."""

    kind: str
    banks: tuple[int, int] = (0, 0)
    start: int = 0
    held: int = 0
    end: float = 0.0

    def take(
        self, node: Operation, where: tuple[int, int, int], banks: tuple[int, int], count: int, times: tuple[float, ...]
    ) -> Iterator[Stay]:
        """What a convolution has in the ring; nothing is fetched where ``count`` is 0: it has what is there."""
        begin, there, end = times
        first, mine, room = where
        again, changed = count == 0, banks != self.banks
        if again:
            yield Stay(node, "used again", first, mine, room, self.start, self.held, self.end, self.end, end)
        else:
            self.start = 0 if changed else (self.start + self.held) % room
            fitting = 0 if changed else max(min(room - self.held, count), 0)
            if self.end <= begin:
                fitting = count
            late = max(begin, self.end)
            if fitting:
                yield Stay(node, self.kind, first, mine, room, self.start, fitting, begin, max(there, begin), end)
            if count > fitting:
                rest = self.start + fitting
                yield Stay(node, self.kind, first, mine, room, rest, count - fitting, late, max(there, late), end)
            self.held = min(count, room)
        self.banks, self.end = banks, end


def stays(study: Study) -> list[Stay]:
    """What is in the buffer when, convolution by convolution in the order in which they run."""
    found: list[Stay] = []
    data, weights = _Ring("data"), _Ring("weights")
    fetched = 0.0
    entries, size = study.config.cbuf_bank_entries, study.config.cbuf_bank_bytes
    for node, shape, span in _convolutions(study):
        begin = max(float(span.enabled or 0), fetched)
        banks = shape.data_banks, shape.weight_banks
        end = float(span.last_mac or 0)
        data_in, weights_in = float(span.data_done or 0), float(span.weights_done or 0)
        count = node.op.input_height_csc * shape.entries_per_slice * shape.batch if shape.data_bytes else 0
        where = 0, shape.data_banks, shape.data_banks * entries
        found += data.take(
            node, where, (shape.data_banks, 0), max(count, int(shape.data_bytes > 0)), (begin, data_in, end)
        )
        where = shape.data_banks, shape.weight_banks, shape.weight_banks * size
        found += weights.take(node, where, banks, shape.weight_bytes, (begin, min(weights_in, end), end))
        fetched = max(data_in, weights_in)
    return found


def _convolutions(study: Study) -> Iterator[tuple[Operation, ConvolutionShape, Span]]:
    """Those that come to their end."""
    for chain in study.steps:
        shape, span = study.estimates[chain[0].key].shape, study.schedule.spans[chain[0].key]
        if shape and shape.conv and span.last_mac is not None:
            yield chain[0], shape.conv, span


def buffer_svg(study: Study, style: str = STYLE) -> str:
    """The drawing as SVG text; ``style`` "" for a page that has the colours. Banks that nobody uses are left out at the
    bottom, and said to be."""
    drawing = Drawing()
    found = stays(study)
    convolutions = {stay.node.key for stay in found}
    plot = min(max(LEAST_WIDTH, OF_A_CONVOLUTION * len(convolutions)), MOST_WIDTH)
    total = max(max((stay.end for stay in found), default=0), 1)
    title = f"Convolution buffer of {short(study.title, 60)}: {study.config.cbuf_banks} banks of "
    title += f"{study.config.cbuf_bank_bytes // 1024} KiB, {len(convolutions)} convolutions"
    drawing.text(8, 18, title, "title")
    scale = plot / total
    rows, missing = _names(drawing, found, scale, plot)
    top = 30 + rows * NAME_HEIGHT + 22
    used = max((stay.first + stay.banks for stay in found), default=1)
    high = min(max(BANKS_HIGH / used, BANK_LEAST), BANK_MOST)
    bottom = top + used * high
    for tick in round_ticks(total, TICKS):
        x = LEFT + tick * scale
        drawing.line(x, top - 6, x, bottom)
        drawing.text(x, top - 9, f"{tick:,}", "soft", "middle" if tick else "start")
    for bank in range(used + 1):
        drawing.line(LEFT, top + bank * high, LEFT + plot, top + bank * high)
        if bank < used and (high >= NAME_HEIGHT or bank % 2 == 0):
            drawing.text(LEFT - 8, top + (bank + 0.5) * high + 4, f"bank {bank}", "soft", "end")
    for stay in found:
        _draw(drawing, stay, scale, top, high)
    notes = [f"{study.config.cbuf_banks - used} banks are never used"] if used < study.config.cbuf_banks else []
    notes += [f"{missing} names have no room"] if missing else []
    _legend(drawing, bottom + 22, notes)
    return drawing.document(LEFT + plot + RIGHT, title, style)


def _draw(drawing: Drawing, stay: Stay, scale: float, top: float, high: float) -> None:
    """Pale while it arrives, full while it is worked with."""
    color = KINDS[stay.kind]
    what = f"{stay.node.title}: {stay.kind}, {stay.begin:,.0f} to {stay.end:,.0f}, all there at {stay.there:,.0f}"
    for low, end in stay.pieces():
        y, height = top + low * high + 0.5, max((end - low) * high - 1, 1.5)
        there = min(stay.there, stay.end)
        if there > stay.begin:
            width = (there - stay.begin) * scale
            drawing.rect(LEFT + stay.begin * scale, y, width, height, color, what, FILLING)
        width = max((stay.end - there) * scale - 0.5, 1)
        drawing.rect(LEFT + there * scale, y, width, height, color, what)


def _names(drawing: Drawing, found: list[Stay], scale: float, plot: float) -> tuple[int, int]:
    """Names above the moments in which the data are all there, where there is room: rows of them, and how many have
    none."""
    ends = [0.0] * NAME_ROWS
    seen: set[object] = set()
    missing = 0
    for stay in found:
        name = stay.node.layer or stay.node.label
        if (stay.node.task, name) in seen:
            continue
        seen.add((stay.node.task, name))
        text, x = short(name, LONGEST_NAME), LEFT + min(stay.there, stay.end) * scale
        width = len(text) * CHARACTER + 8
        x = min(x, LEFT + plot + RIGHT - width)
        row = next((number for number in range(NAME_ROWS) if ends[number] <= x), None)
        if row is None:
            missing += 1
            continue
        ends[row] = x + width
        y = 30 + row * NAME_HEIGHT
        drawing.rect(x - 4, y + 3, 2, NAME_HEIGHT - 4, "conv")
        drawing.text(x, y + 11, text)
    return sum(end > 0 for end in ends), missing


def _legend(drawing: Drawing, y: float, notes: list[str]) -> None:
    x = 8.0
    for kind, color in KINDS.items():
        drawing.rect(x, y - 9, 11, 11, color)
        drawing.text(x + 16, y, kind)
        x += 16 + len(kind) * CHARACTER + 22
    words = ["pale: arriving", "full: there", "cycles from left to right", *notes]
    drawing.text(x, y, "; ".join(words), "soft")
