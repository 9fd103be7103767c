"""Explanations of operations: tiling, CBUF use and bounds, one operation in full, CBUF pictures.

Data and weights each go round in their own banks, one convolution's after those of the one before; where the banks
change they begin again (:mod:`nvdla.emulator.hardware.convolution.cbuf`). Times are those of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nvdla.analysis.cycles.constants import ConvolutionShape
from nvdla.analysis.cycles.schedule import Span
from nvdla.analysis.graph import tensor_name
from nvdla.analysis.study import Study
from nvdla.analysis.svg import STYLE, Drawing, round_ticks, short
from nvdla.errors import DescriptorError, counted, shape_text
from nvdla.loadable.descriptors.enums import ConvMode, OpType, WeightFormat
from nvdla.loadable.descriptors.fields import fields
from nvdla.program.operation import Operation
from nvdla.util.escaping import Document
from nvdla.util.rounding import ceil_div


def explanations(study: Study, chosen: str | None = None) -> list[Document]:
    """One document a convolution, in order; ``chosen``: "TASK/OPERATION", "OPERATION" of the first task, or a layer.
    ``advice`` is empty: :func:`nvdla.analysis.layer_forms.with_advice` asks for it.

    Raises DescriptorError where no convolution is called so.
    """
    found = [node for node in study.operations if node.type == OpType.CONV]
    rows = [_explain(study, node, found) for node in found if chosen is None or chosen in _names(node)]
    if chosen is not None and not rows:
        known = ", ".join(node.label for node in found[:8]) + (" ..." if len(found) > 8 else "")
        raise DescriptorError(f"no convolution is called {chosen}; convolutions are {known or 'none'}")
    return rows


def _names(node: Operation) -> set[str]:
    return {node.label, node.layer or "", *([str(node.index)] if node.task == 0 else [])}


def _explain(study: Study, node: Operation, all_of_them: list[Operation]) -> Document:
    op, surface, config = node.descriptors.op, node.surface, study.config
    estimate = study.estimates[node.key]
    tiles = [each for each in all_of_them if node.layer and each.layer == node.layer and each.task == node.task]
    kernels, element = surface.dst_data.channel, 2 if op.out_precision else 1
    group = config.mac_atomic_k // element
    positions = surface.dst_data.width * surface.dst_data.height
    used = op.input_height_csc * op.entry_per_slice
    weights = surface.weight_data.size
    bound = estimate.bound or "unknown"
    return {
        "operation": node.label,
        "layer": node.layer,
        "mode": ConvMode(op.conv_mode).name.lower(),
        "input": list(node.input) if node.input else None,
        "output": list(node.output) if node.output else None,
        "tile": [tiles.index(node) + 1, len(tiles)] if node in tiles else [1, 1],
        "data_banks": op.data_bank,
        "data_entries": [used, op.data_bank * config.cbuf_bank_entries],
        "data_reused": bool(op.data_reuse),
        "weight_banks": op.weight_bank,
        "weight_bytes": weights,
        "weights_resident": weights <= op.weight_bank * config.cbuf_bank_bytes,
        "weights_reused": bool(op.weight_reuse),
        "weights_compressed": op.weight_format == WeightFormat.COMPRESSED,
        "idle_banks": config.cbuf_banks - op.data_bank - op.weight_bank,
        "kernel_groups": ceil_div(kernels, group),
        "kernels_of_a_group": group,
        "channel_use": _share(op.kernel_channel_csc, config.mac_atomic_c),
        "kernel_use": _share(kernels, group),
        "stripes_of_a_group": ceil_div(positions, 2 * config.mac_atomic_k),
        "macs": estimate.macs,
        "cycles": estimate.cycles,
        "mac_use": estimate.mac_share,
        "read_bytes": estimate.read_bytes,
        "bound": bound,
        "advice": "",
    }


def _share(count: int, cells: int) -> float:
    """Count how many of the cells work, on average over the passes that ``count`` takes."""
    return count / (ceil_div(count, cells) * cells) if count else 0.0


def sentences(row: Document) -> list[str]:
    """A document in words, line by line."""
    shape = " to ".join(shape_text(row[side]) for side in ("input", "output") if row[side])
    used, room = row["data_entries"]
    lines = [f"{row['operation']} {row['layer'] or ''}: {row['mode']} convolution, {shape} (channels x height x width)"]
    if row["tile"][1] > 1:
        lines.append(f"tile {row['tile'][0]} of {row['tile'][1]} of its layer")
    data = "used again from the convolution before" if row["data_reused"] else "fetched once"
    lines.append(f"data: {counted(row['data_banks'], 'bank')}, {used} of {room} entries, {data}")
    resident = "all of them stay in the buffer" if row["weights_resident"] else "streamed kernel group by kernel group"
    if row["weights_reused"]:
        resident = "used again from the convolution before"
    kind = "compressed bytes" if row["weights_compressed"] else "bytes"
    lines.append(f"weights: {counted(row['weight_banks'], 'bank')}, {row['weight_bytes']:,} {kind}, {resident}")
    lines.append(
        f"MAC array: {counted(row['kernel_groups'], 'kernel group')} of {row['kernels_of_a_group']} "
        f"({row['kernel_use']:.0%} of the cells), {row['channel_use']:.0%} of the channels of a cell, "
        f"{counted(row['stripes_of_a_group'], 'stripe')} a group"
    )
    if row["cycles"] is not None:
        use = f", {row['mac_use']:.1%} of the array" if row["mac_use"] is not None else ""
        lines.append(f"{row['cycles']:,} cycles{use}; bound by {row['bound']}")
    if row["advice"]:
        lines.append(f"what would help: {row['advice']}")
    return lines


Row = Document


def chosen(study: Study, name: str) -> list[Operation]:
    """Operations that are called so: "TASK/OPERATION", "OPERATION" of the first task, or a layer. Raises
    DescriptorError where none is."""
    found = [node for node in study.operations if name in (node.label, node.layer) or f"0/{name}" == node.label]
    if not found:
        known = ", ".join(node.label for node in study.operations[:8]) + (" ..." if len(study.operations) > 8 else "")
        raise DescriptorError(f"no operation or layer is called {name}; operations are {known or 'none'}")
    return found


def operation_document(study: Study, node: Operation) -> Row:
    """One operation as plain data. ``fields``: those of its descriptors that are not 0, with their meanings."""
    estimate, span = study.estimates[node.key], study.schedule.spans[node.key]
    cycles, total = estimate.own_cycles, study.schedule.total
    chain = next(chain for chain in study.chains if node in chain)
    before = [each for each in study.operations if any(to.target == node.key for to in each.dependencies)]
    return {
        "operation": node.label,
        "engine": node.engine.upper(),
        "layer": node.layer,
        "what": node.what,
        "input": list(node.input) if node.input else None,
        "output": list(node.output) if node.output else None,
        "precision": node.precision,
        "on_the_fly_with": [each.label for each in chain if each is not node],
        "waits_for": [each.label for each in before],
        "lets_go_on": [study.by_key[each.target].label for each in node.dependencies if each.target in study.by_key],
        "leader": study.by_key[estimate.leader].label,
        "cycles": cycles,
        "share": cycles / total if cycles and total else None,
        "bound": estimate.bound,
        "macs": estimate.macs,
        "mac_use": estimate.mac_share,
        "read_bytes": estimate.read_bytes,
        "written_bytes": estimate.written_bytes,
        "start": span.start,
        "end": span.end,
        "group": span.group,
        "values": [*_values(study, node)],
        "fields": [*_fields(node)],
    }


def _values(study: Study, node: Operation) -> Iterator[Row]:
    for value in study.values:
        roles = [role for key, role in value.readers if key == node.key]
        if value.writer == node.key:
            roles.append("writes")
        for role in dict.fromkeys(roles):
            yield {
                "role": role,
                "name": tensor_name(study, value),
                "shape": list(value.shape) if value.shape else None,
                "bytes": value.bytes,
                "memory": value.memory,
                "offset": value.offset,
            }


def _fields(node: Operation) -> Iterator[Row]:
    structures = [node.op] if node.type is None else [node.op, node.surface]
    for each in (each for structure in structures for each in fields(structure)):
        plain = each.value in (0, -1) or (isinstance(each.value, list) and not any(each.value))
        if not each.reserved and not plain:
            yield {"field": each.name, "value": each.value, "meaning": each.meaning, "explanation": each.explanation}


def lines(row: Row, width: int) -> Iterator[str]:
    """A document as lines no wider than ``width``, fields side by side where it fits."""
    layer = f" {row['layer']}" if row["layer"] else ""
    yield f"{row['operation']} {row['engine']}{layer}: {row['what']}"
    shape = " to ".join(shape_text(row[side]) for side in ("input", "output") if row[side])
    yield f"    {', '.join(filter(None, (shape, row['precision'])))}"
    if row["on_the_fly_with"]:
        yield f"    on the fly with {', '.join(row['on_the_fly_with'])}"
    if row["waits_for"] or row["lets_go_on"]:
        before, behind = (", ".join(row[side]) or "nothing" for side in ("waits_for", "lets_go_on"))
        yield f"    waits for {before}; lets {behind} go on"
    ends = row["start"] is not None and row["end"] is not None
    when = f"{row['start']:,} to {row['end']:,}" if ends else "which it never begins or ends"
    if row["cycles"] is not None:
        share = f" ({row['share']:.1%} of the whole)" if row["share"] else ""
        yield f"    {row['cycles']:,} cycles{share}, {when}, bound by {row['bound']}"
    elif row["leader"] != row["operation"]:
        yield f"    its cycles are counted with {row['leader']}, {when}, bound by {row['bound']}"
    if row["macs"]:
        use = f", {row['mac_use']:.1%} of the MAC array" if row["mac_use"] is not None else ""
        yield f"    {row['macs']:,} MACs{use}"
    yield f"    reads {row['read_bytes']:,} bytes, writes {row['written_bytes']:,}"
    for value in row["values"]:
        dimensions = f" {'x'.join(map(str, value['shape']))}," if value["shape"] else ""
        place = f"memory {value['memory']}+{value['offset']}"
        yield f"    {value['role']}: {value['name']},{dimensions} {value['bytes']:,} bytes at {place}"
    cells = [f"{each['field']} {each['meaning'] or _short(each['value'])}" for each in row["fields"]]
    wide = max(map(len, cells), default=0) + 3
    columns = max((width - 4) // max(wide, 1), 1)
    for at in range(0, len(cells), columns):
        yield "    " + "".join(f"{cell:{wide}}" for cell in cells[at : at + columns]).rstrip()


def _short(value: object) -> str:
    return f"[{', '.join(map(str, value[:4]))}, ...]" if isinstance(value, list) and len(value) > 4 else str(value)


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
    """Ring of banks that places the next convolution's data (or weights).

    ``held``: units of the convolution before, which leaves at ``end``.
    """

    kind: str
    banks: tuple[int, int] = (0, 0)
    start: int = 0
    held: int = 0
    end: float = 0.0

    def take(
        self, node: Operation, where: tuple[int, int, int], banks: tuple[int, int], count: int, times: tuple[float, ...]
    ) -> Iterator[Stay]:
        """Return what a convolution has in the ring; nothing is fetched where ``count`` is 0: it keeps its
        data."""
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
    """Return what is in the buffer when, convolution by convolution in the order in which they run."""
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
    """The drawing as SVG text; ``style`` "" for a page that has the colours. Banks that nothing uses are left out at
    the
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
    rows, missing = _bank_names(drawing, found, scale, plot)
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


def _bank_names(drawing: Drawing, found: list[Stay], scale: float, plot: float) -> tuple[int, int]:
    """Names above the moments in which the data are all there, where it fits: rows of them, and how many have
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
