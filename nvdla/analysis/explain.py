"""Explanations of operations: tiling, CBUF use and bounds, one operation in full, CBUF pictures.

Data and weights each go round in their own banks, one convolution's after those of the one before; where the banks
change they begin again (:mod:`nvdla.emulator.hardware.convolution.cbuf`). Times are those of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nvdla.analysis.cycles.constants import ConvolutionShape, CycleConstants, loading_cycles, mac_cycles
from nvdla.analysis.cycles.document import cycles_of, summed_cycles
from nvdla.analysis.cycles.schedule import Span
from nvdla.analysis.graph import tensor_name
from nvdla.analysis.study import Study
from nvdla.analysis.svg import STYLE, Drawing, round_ticks, short
from nvdla.errors import UnknownOperationError, counted, shape_text
from nvdla.loadable.descriptors.enums import ConvMode, OpType, WeightFormat
from nvdla.loadable.descriptors.fields import fields
from nvdla.program.operation import Key, Operation, layers_meant, short_layer, short_layers
from nvdla.util.escaping import Document
from nvdla.util.rounding import ceil_div


def explanations(study: Study, chosen: str | None = None) -> list[Document]:
    """One document a convolution, in order; ``chosen``: "TASK/OPERATION", "OPERATION" of the first task, a layer
    or its beginning. ``advice`` and ``change`` are empty: :func:`nvdla.analysis.layer_forms.with_advice`
    asks for them.

    Raises DescriptorError where no convolution is called so.
    """
    convolutions = [node for node in study.operations if node.type == OpType.CONV]
    wanted = convolutions if chosen is None else _meant(convolutions, chosen)
    if chosen is not None and not wanted:
        raise UnknownOperationError(f"unknown convolution {chosen}: {_known(convolutions)}")
    return [_explain(study, node, convolutions) for node in wanted]


def _meant(nodes: Sequence[Operation], name: str) -> list[Operation]:
    """Operations that a name means: "TASK/OPERATION", "OPERATION" of the first task, a layer or its beginning."""
    labels = [node for node in nodes if name == node.label or f"0/{name}" == node.label]
    layers = set() if labels else layers_meant((node.layer for node in nodes), name)
    return labels or [node for node in nodes if node.layer in layers]


def _known(nodes: Sequence[Operation]) -> str:
    """List the possible names, for an error."""
    labels = [node.label for node in nodes]
    layers = list(short_layers(node.layer for node in nodes).values())
    texts = [", ".join(names[:8]) + (" ..." if len(names) > 8 else "") for names in (labels, layers)]
    return f"operations are {texts[0] or 'none'}" + (f"; layers are {texts[1]}" if layers else "")


def _explain(study: Study, node: Operation, all_of_them: list[Operation]) -> Document:
    op, surface, config = node.descriptors.op, node.surface, study.config
    estimate = study.estimates[node.key]
    tiles = [tile for tile in all_of_them if node.layer and tile.layer == node.layer and tile.task == node.task]
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
        "stripes_of_a_group": ceil_div(positions, 2 * group),
        "macs": estimate.macs,
        "cycles": estimate.cycles,
        "mac_use": estimate.mac_share,
        "read_bytes": estimate.read_bytes,
        "bound": bound,
        "advice": "",
        "change": None,
        "change_cycles": None,
        "change_before_cycles": None,
        "change_saves": None,
        "change_per_image": None,
    }


def _share(count: int, cells: int) -> float:
    """Count how many of the cells work, on average over the passes that ``count`` takes."""
    return count / (ceil_div(count, cells) * cells) if count else 0.0


def sentences(row: Document) -> list[str]:
    """A document in words, line by line."""
    shape = " to ".join(shape_text(row[side]) for side in ("input", "output") if row[side])
    used, capacity = row["data_entries"]
    place = " ".join(filter(None, (row["operation"], short_layer(row["layer"] or ""))))
    lines = [f"{place}: {row['mode']} convolution, {shape} (channels x height x width)"]
    if row["tile"][1] > 1:
        lines.append(f"tile {row['tile'][0]} of {row['tile'][1]} of its layer")
    data = "reused from the previous convolution" if row["data_reused"] else "fetched once"
    lines.append(f"data: {counted(row['data_banks'], 'bank')}, {used} of {capacity} entries, {data}")
    resident = (
        "all of them remain in the buffer" if row["weights_resident"] else "streamed kernel group by kernel group"
    )
    if row["weights_reused"]:
        resident = "reused from the previous convolution"
    kind = "compressed bytes" if row["weights_compressed"] else "bytes"
    lines.append(f"weights: {counted(row['weight_banks'], 'bank')}, {row['weight_bytes']:,} {kind}, {resident}")
    lines.append(
        f"MAC array: {counted(row['kernel_groups'], 'kernel group')} of {row['kernels_of_a_group']} "
        f"({row['kernel_use']:.0%} of the cells), {row['channel_use']:.0%} of the channels of a cell, "
        f"{counted(row['stripes_of_a_group'], 'stripe')} per group"
    )
    if row["cycles"] is not None:
        use = f", {row['mac_use']:.1%} of the array" if row["mac_use"] is not None else ""
        lines.append(f"{row['cycles']:,} cycles{use}; bound by {row['bound']}")
    if row["advice"]:
        lines.append(f"what would help: {row['advice']}")
    return lines


#: what a cycle of a run goes to; one that fits several counts for the first
USES = {
    "mac": "the MAC array multiplies",
    "weight_loading": "the MAC array loads weights (few positions per set of weights)",
    "units": "SDP, PDP, CDP, BDMA or Rubik work and the MAC array does not",
    "memory": "latency, write responses, bandwidth, weights that arrive late",
    "fetch": "CDMA fetches data and the first weights of a convolution",
    "programming": "the firmware accesses registers or answers an interrupt",
    "cpu": "a CPU operation",
    "idle": "the pipeline fills, or nothing is ready",
}


def accounting(study: Study) -> dict[str, int] | None:
    """Return the cycles of a run by use (:data:`USES`); they add up to the total. None where a run never ends."""
    total = study.schedule.total
    if total is None:
        return None
    claims = [("programming", begin, end) for begin, end in study.schedule.firmware]
    array: dict[str, int] = dict.fromkeys(("mac", "weight_loading", "units", "memory"), 0)
    for chain in study.chains:
        spans = [study.schedule.spans[node.key] for node in chain]
        shape = study.estimates[chain[0].key].shape
        if chain[0].engine == "cpu":
            claims.append(("cpu", spans[0].start or 0, spans[0].end or 0))
        elif shape and shape.conv:
            claims += _convolution_claims(spans, study.memory.latency)
            for use, cycles in _array_cycles(shape.conv, spans[0], study.estimates[chain[0].key].constants).items():
                array[use] += cycles
        else:
            claims += _stream_claims(spans[-1], study.memory.latency)
    uses = _counted(claims, total) | {"idle": 0}
    busy = uses.pop("array", 0)
    if (spread := sum(array.values())) != busy:  # rounding of the ends of multiplications
        array["mac"] += busy - spread
    uses = {use: uses.get(use, 0) + array.get(use, 0) for use in USES}
    return uses | {"idle": total - sum(uses.values())}


Claim = tuple[str, int, int]


def _convolution_claims(spans: list[Span], latency: int) -> list[Claim]:
    """Fetching, the array at work, and the last results in the units after it."""
    conv, last = spans[0], spans[-1]
    enabled, first, end = conv.enabled or 0, conv.first_mac or 0, last.end or 0
    there = max(enabled, min(conv.data_done or 0, first))
    arriving = max(enabled, there - latency)
    late = min(max(conv.weights_done or 0, there), first) if conv.weights_done else there
    done = max((conv.last_mac or 0) + 1, first)
    drained = max(done, end - latency - (last.held if last is not conv else 0))
    return [
        ("fetch", enabled, arriving),
        ("memory", arriving, there),
        ("fetch", there, late),
        ("array", first, done),
        ("units", done, drained),
        ("memory", drained, end),
    ]


def _array_cycles(shape: ConvolutionShape, span: Span, constants: CycleConstants) -> dict[str, int]:
    """The cycles from the first to the last MAC: what remains after multiplications, loading and late weights is time
    in which the units after the array make it wait."""
    left = max((span.last_mac or 0) + 1 - (span.first_mac or 0), 0)
    wanted = {
        "mac": mac_cycles(shape, constants),
        "weight_loading": loading_cycles(shape, constants),
        "memory": span.held,
    }
    spent = {}
    for use, cycles in wanted.items():
        spent[use] = min(cycles, left)
        left -= spent[use]
    return spent | {"units": left}


def _stream_claims(span: Span, latency: int) -> list[Claim]:
    """A unit from memory to memory: it waits for its first data unless it read them ahead, and for the response of its
    last write."""
    start, end = span.start or 0, span.end or 0
    read = latency if start == span.enabled else 0
    begun = min(start + read, end)
    drained = max(begun, end - latency - span.held)
    return [("memory", start, begun), ("units", begun, drained), ("memory", drained, end)]


ORDER = ("array", "units", "memory", "fetch", "programming", "cpu")


def _counted(claims: list[Claim], total: int) -> dict[str, int]:
    """Cycles before ``total`` by the first use of ORDER that claims them."""
    events = sorted(
        (min(max(at, 0), total), change, ORDER.index(use))
        for use, begin, end in claims
        if end > begin
        for at, change in ((begin, 1), (end, -1))
    )
    active, counts, reached = [0] * len(ORDER), dict.fromkeys(ORDER, 0), 0
    for at, change, place in events:
        use = next((name for name, count in zip(ORDER, active, strict=True) if count), None)
        if use:
            counts[use] += at - reached
        reached = at
        active[place] += change
    return counts


def accounting_lines(uses: dict[str, int]) -> Iterator[str]:
    """The accounting in words, one use per line."""
    total = sum(uses.values())
    yield f"{total:,} cycles of a run:"
    for use, cycles in uses.items():
        if cycles:
            yield f"    {cycles:>{len(f'{total:,}')},} {cycles / total:6.1%}  {use.replace('_', ' ')}: {USES[use]}"


Row = Document


def chosen(study: Study, name: str) -> list[Operation]:
    """Return the operations that a name means: "TASK/OPERATION", "OPERATION" of task 0, a layer or its beginning.

    Raises:
        UnknownOperationError: there is none.
    """
    operations = _meant(study.operations, name)
    if not operations:
        raise UnknownOperationError(f"unknown operation or layer {name}: {_known(study.operations)}")
    return operations


def operation_document(study: Study, node: Operation) -> Row:
    """One operation as plain data. ``fields``: those of its descriptors that are not 0, with their meanings."""
    estimate, span = study.estimates[node.key], study.schedule.spans[node.key]
    cycles, total = cycles_of(study, node), study.schedule.total
    chain = next(chain for chain in study.chains if node in chain)
    before = [other for other in study.operations if any(to.target == node.key for to in other.dependencies)]
    return {
        "operation": node.label,
        "engine": node.engine.upper(),
        "layer": node.layer,
        "what": node.what,
        "input": list(node.input) if node.input else None,
        "output": list(node.output) if node.output else None,
        "precision": node.precision,
        "on_the_fly_with": [member.label for member in chain if member is not node],
        "waits_for": [other.label for other in before],
        "consumers": [
            study.by_key[dependency.target].label
            for dependency in node.dependencies
            if dependency.target in study.by_key
        ],
        "leader": study.by_key[estimate.leader].label,
        "cycles": cycles,
        "share": cycles / summed_cycles(study) if cycles and total else None,
        "bound": estimate.bound,
        "macs": estimate.macs,
        "mac_use": estimate.mac_share,
        "read_bytes": estimate.read_bytes,
        "written_bytes": estimate.written_bytes,
        "start": span.start,
        "end": span.end,
        "chain_end": study.schedule.spans[chain[-1].key].end,
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
    for field in (field for structure in structures for field in fields(structure)):
        plain = field.value in (0, -1) or (isinstance(field.value, list) and not any(field.value))
        if not field.reserved and not plain:
            yield {
                "field": field.name,
                "value": field.value,
                "meaning": field.meaning,
                "explanation": field.explanation,
            }


def lines(row: Row) -> Iterator[str]:
    """A document as lines, without its fields."""
    layer = f" {short_layer(row['layer'])}" if row["layer"] else ""
    yield f"{row['operation']} {row['engine']}{layer}: {row['what']}"
    shape = " to ".join(shape_text(row[side]) for side in ("input", "output") if row[side])
    yield f"    {', '.join(filter(None, (shape, row['precision'])))}"
    if row["on_the_fly_with"]:
        yield f"    on the fly with {', '.join(row['on_the_fly_with'])}"
    if row["waits_for"] or row["consumers"]:
        before, after = (", ".join(row[side]) or "none" for side in ("waits_for", "consumers"))
        yield f"    waits for {before}; consumers {after}"
    ends = row["start"] is not None and row["end"] is not None
    when = f"{row['start']:,} to {row['end']:,}" if ends else "never begins or ends"
    if row["cycles"] is not None:
        share = f" (share {row['share']:.1%})" if row["share"] else ""
        chain = f"{row['start']:,} to {row['chain_end']:,}" if ends and row["chain_end"] is not None else when
        bound = f", bound by {row['bound']}" if row["bound"] else ""
        yield f"    {row['cycles']:,} cycles alone{share}; in the run {chain}{bound}"
    elif row["leader"] != row["operation"]:
        yield f"    its cycles are counted with {row['leader']}; in the run {when}, bound by {row['bound']}"
    if row["macs"]:
        use = f", {row['mac_use']:.1%} of the MAC array" if row["mac_use"] is not None else ""
        yield f"    {row['macs']:,} MACs{use}"
    yield f"    reads {row['read_bytes']:,} bytes, writes {row['written_bytes']:,}"
    for value in row["values"]:
        dimensions = f" {'x'.join(map(str, value['shape']))}," if value["shape"] else ""
        place = f"memory {value['memory']}+{value['offset']}"
        yield f"    {value['role']}: {short_layer(value['name'])},{dimensions} {value['bytes']:,} bytes at {place}"


def field_lines(row: Row, width: int) -> Iterator[str]:
    """Fields of a document's descriptor as lines no wider than ``width``, side by side where it fits."""
    cells = [f"{field['field']} {field['meaning'] or _short(field['value'])}" for field in row["fields"]]
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
    """Units of data or weights in a ring of banks.

    ``count`` units from ``start`` on, in ``capacity`` units of ``banks`` banks from ``first``; they arrive from cycle
    ``begin`` to ``there`` and are released at ``end``.
    """

    node: Operation
    kind: str
    first: int
    banks: int
    capacity: int
    start: int
    count: int
    begin: float
    there: float
    end: float

    def pieces(self) -> Iterator[tuple[float, float]]:
        """(first, end) in banks of the buffer, in two pieces where it goes round."""
        scale = self.banks / self.capacity
        low, high = self.start % self.capacity, self.start % self.capacity + min(self.count, self.capacity)
        yield self.first + low * scale, self.first + min(high, self.capacity) * scale
        if high > self.capacity:
            yield float(self.first), self.first + (high - self.capacity) * scale


AGAIN = "used again"


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
        """Return the contents of a convolution in the ring; nothing is fetched where ``count`` is 0: it keeps its
        data."""
        begin, there, end = times
        first, mine, capacity = where
        again, changed = count == 0, banks != self.banks
        if again:
            yield Stay(node, AGAIN, first, mine, capacity, self.start, self.held, self.end, self.end, end)
        else:
            self.start = 0 if changed else (self.start + self.held) % capacity
            fitting = 0 if changed else max(min(capacity - self.held, count), 0)
            if self.end <= begin:
                fitting = count
            late = max(begin, self.end)
            if fitting:
                yield Stay(node, self.kind, first, mine, capacity, self.start, fitting, begin, max(there, begin), end)
            if count > fitting:
                rest = self.start + fitting
                yield Stay(node, self.kind, first, mine, capacity, rest, count - fitting, late, max(there, late), end)
            self.held = min(count, capacity)
        self.banks, self.end = banks, end


def stays(study: Study) -> list[Stay]:
    """Return the contents of the buffer over time, by convolution in running order."""
    stays: list[Stay] = []
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
        stays += data.take(
            node, where, (shape.data_banks, 0), max(count, int(shape.data_bytes > 0)), (begin, data_in, end)
        )
        where = shape.data_banks, shape.weight_banks, shape.weight_banks * size
        stays += weights.take(node, where, banks, shape.weight_bytes, (begin, min(weights_in, end), end))
        fetched = max(data_in, weights_in)
    return stays


@dataclass(frozen=True)
class UseTrack:
    """Use of a part of the hardware over time.

    ``points``: (cycle, value) from which on the value holds, the last one 0. ``limit``: what the hardware can do;
    values are averages of operations, so the sum of concurrent ones may exceed it.
    """

    name: str
    unit: str
    limit: float
    points: list[tuple[int, float]]


def use_tracks(study: Study) -> list[UseTrack]:
    """Return the use of the memory ports, of the convolution buffer and of the MAC array over time.

    An operation's traffic is spread evenly over the cycles in which it is fetched or at work, its multiplications over
    those from its first to its last MAC.
    """
    reads: list[Load] = []
    writes: list[Load] = []
    macs: list[Load] = []
    buffered = stays(study)
    fetched: dict[Key, tuple[float, float]] = {}
    for stay in buffered:
        if stay.kind != AGAIN:
            begin, there = fetched.get(stay.node.key, (stay.begin, stay.there))
            fetched[stay.node.key] = min(begin, stay.begin), max(there, stay.there)
    for node in study.operations:
        estimate, span = study.estimates[node.key], study.schedule.spans[node.key]
        if span.start is None or span.end is None or node.engine == "cpu":
            continue
        reads.append((*fetched.get(node.key, (span.start, span.end)), estimate.read_bytes))
        writes.append((span.start, span.end, estimate.written_bytes))
        if span.first_mac is not None and span.last_mac is not None:
            macs.append((span.first_mac, span.last_mac, 100 * estimate.full_use_cycles))
    held = [
        (stay.begin, stay.end, 100 * (end - low) * (stay.end - stay.begin) / study.config.cbuf_banks)
        for stay in buffered
        for low, end in stay.pieces()
    ]
    rate = study.memory.rate(study.config.dram_width_bits / 8)
    return [
        UseTrack("memory reads", "bytes per cycle", rate, _over_time(reads)),
        UseTrack("memory writes", "bytes per cycle", rate, _over_time(writes)),
        UseTrack("CBUF", "%", 100, _over_time(held)),
        UseTrack("MAC array", "%", 100, _over_time(macs)),
    ]


Load = tuple[float, float, float]  # first cycle, last cycle, amount


def _over_time(loads: list[Load]) -> list[tuple[int, float]]:
    """The sum of the amounts per cycle, as steps."""
    changes: dict[int, float] = {}
    for begin, end, amount in loads:
        first, last = round(begin), max(round(end), round(begin) + 1)
        if amount:
            changes[first] = changes.get(first, 0.0) + amount / (last - first)
            changes[last] = changes.get(last, 0.0) - amount / (last - first)
    points: list[tuple[int, float]] = []
    value = 0.0
    for cycle in sorted(changes):
        value += changes[cycle]
        points.append((cycle, max(round(value, 3), 0.0)))
    return points


def _convolutions(study: Study) -> Iterator[tuple[Operation, ConvolutionShape, Span]]:
    """Those that come to their end."""
    for chain in study.steps:
        shape, span = study.estimates[chain[0].key].shape, study.schedule.spans[chain[0].key]
        if shape and shape.conv and span.last_mac is not None:
            yield chain[0], shape.conv, span


def buffer_svg(study: Study, style: str = STYLE) -> str:
    """The drawing as SVG text; ``style`` "" for a page that has the colors. Banks that nothing uses are left out at
    the
    bottom, and said to be."""
    drawing = Drawing()
    buffer_stays = stays(study)
    convolutions = {stay.node.key for stay in buffer_stays}
    plot = min(max(LEAST_WIDTH, OF_A_CONVOLUTION * len(convolutions)), MOST_WIDTH)
    total = max(max((stay.end for stay in buffer_stays), default=0), 1)
    title = f"Convolution buffer of {short(study.title, 60)}: {study.config.cbuf_banks} banks of "
    title += f"{study.config.cbuf_bank_bytes // 1024} KiB, {counted(len(convolutions), 'convolution')}"
    drawing.text(8, 18, title, "title")
    scale = plot / total
    rows, missing = _bank_names(drawing, buffer_stays, scale, plot)
    top = 30 + rows * NAME_HEIGHT + 22
    used = max((stay.first + stay.banks for stay in buffer_stays), default=1)
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
    for stay in buffer_stays:
        _draw(drawing, stay, scale, top, high)
    unused = study.config.cbuf_banks - used
    notes = [f"never used: {counted(unused, 'bank')}"] if unused else []
    notes += [f"omitted: {counted(missing, 'name')}"] if missing else []
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


def _bank_names(drawing: Drawing, buffer_stays: list[Stay], scale: float, plot: float) -> tuple[int, int]:
    """Names above the moments in which the data are all there, where it fits: rows of them, and how many have
    none."""
    ends = [0.0] * NAME_ROWS
    seen: set[object] = set()
    missing = 0
    for stay in buffer_stays:
        name = stay.node.layer or stay.node.label
        if (stay.node.task, name) in seen:
            continue
        seen.add((stay.node.task, name))
        text, x = short(short_layer(name), LONGEST_NAME), LEFT + min(stay.there, stay.end) * scale
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
