"""Variants of the layers of a loadable: costs, what-if comparisons and advice.

Convolutions with the same weights on bands of rows of one cube are the parts of one layer. The forms of
:mod:`nvdla.analysis.alternatives` are evaluated with what works after the convolution on the fly in the loadable.

Nothing is said that the model did not compute: each change is a run of the model on the layer unchanged, or as it would
be built for the change.

The cycle model computes each (:mod:`nvdla.analysis.layer_forms`); layers of the same shape are asked once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nvdla.analysis.alternatives import PARTS, Alternative, Geometry, StoredWeights, alternatives, compressed
from nvdla.analysis.cycles.constants import (
    ChainShape,
    ConvolutionShape,
    Memory,
    SdpShape,
    bandwidth_text,
    mac_cycles,
    rate_text,
)
from nvdla.analysis.cycles.estimate import queue_cycles
from nvdla.analysis.study import Study
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import counted
from nvdla.limits import LINE_ALIGNMENT
from nvdla.loadable.descriptors.enums import ConvMode, DataFormat, OpType, Precision, WeightFormat
from nvdla.program.accesses import Access
from nvdla.program.operation import Key, Operation
from nvdla.program.values import constant_bytes
from nvdla.util.escaping import Document
from nvdla.util.rounding import align, ceil_div


@dataclass(frozen=True)
class LayerGeometry(Geometry):
    """A layer of a loadable. ``whole``: all of it as one chain; ``line``: entries that a line takes; ``stored``: bytes
    of all weights, fetched or not, and ``mask`` those of the mask where they are compressed; ``most``: entries of all
    data, where they are not just its lines (Winograd); ``bands``: whether it can be done in parts of rows."""

    whole: ChainShape = field(default_factory=ChainShape)
    line: int = 0
    stored: int = 0
    mask: int = 0
    most: int = 0
    bands: bool = True

    @property
    def shape(self) -> ConvolutionShape:
        """The convolution of the chain."""
        assert self.whole.conv is not None
        return self.whole.conv

    @property
    def divisible(self) -> bool:
        """Not for pooling on the fly, Winograd, batches, and data that are used again."""
        return self.bands

    def entries(self, part: tuple[int, int], config: Configuration) -> int:
        """Entries as the descriptors count them."""
        return self.most or self.rows(*part)[1] * self.line

    def weight_bytes(self, kernels: int, config: Configuration) -> int:
        """Bytes as they are in memory, compressed or not."""
        share = min(kernels, self.shape.kernels) / self.shape.kernels
        return align(math.ceil(self.stored * share), config.cbuf_entry_bytes)

    def weight_forms(self, config: Configuration) -> Iterator[StoredWeights]:
        """The one in the loadable, and plain weights compressed; a kernel group of compressed weights may begin within
        an entry."""
        plain = next(super().weight_forms(config))
        beside = config.cbuf_entry_bytes if self.mask else 0
        yield replace(plain, group=plain.group + beside, mask=self.mask)
        if self.sparse is not None:
            yield self.sparse

    def chain(self, part: tuple[int, int], form: Alternative, first: bool, config: Configuration) -> ChainShape:
        """A part with its share of the traffic of all."""
        rows, height = self.rows(*part)[1], self.source[1]
        weights = self.shape.weight_bytes
        if form.compressed and self.sparse is not None and weights:
            weights = self.sparse.traffic
        conv = replace(
            self.shape,
            out_height=part[1],
            slices=rows,
            data_bytes=self.shape.data_bytes * rows // height,
            weight_bytes=weights if first or not form.keeps_weights else 0,
            data_banks=form.data_banks,
            weight_banks=form.weight_banks,
        )
        sdp = self.whole.sdp
        return replace(self.whole, conv=conv, sdp=_share(sdp, part[1], self.result[1]) if sdp else None)


def _share(sdp: SdpShape, count: int, height: int) -> SdpShape:
    """So many of its rows."""
    return replace(
        sdp,
        height=sdp.height * count // height,
        read_bytes=sdp.read_bytes * count // height,
        operand_bytes=sdp.operand_bytes * count // height,
        write_bytes=sdp.write_bytes * count // height,
    )


@dataclass(frozen=True)
class LoweredLayer:
    """Operations that are one layer, from its first rows to its last; ``built``: the form that they have;
    ``reads_input``: what they read is an input of the network."""

    nodes: tuple[Operation, ...]
    chains: tuple[ChainShape, ...]
    geometry: LayerGeometry
    built: Alternative
    reads_input: bool

    def cycles(self, study: Study) -> int:
        """Cycles of its operations in their own queue."""
        return queue_cycles(self.chains, study.config, study.memory, element_bytes=self.geometry.element_bytes)


def layers_of(study: Study) -> list[LoweredLayer]:
    """The layers that are convolutions, in the order of their first operations."""
    groups: dict[tuple[object, ...], list[Operation]] = {}
    for node in study.operations:
        if node.type == OpType.CONV:
            groups.setdefault(_same_layer(node), []).append(node)
    inputs = {key for value in study.values if value.kind == "input" for key, _ in value.readers}
    behind = {chain[0].key: study.estimates[chain[0].key].shape for chain in study.chains}
    layers = [layer for group in groups.values() for layer in _layers(group, behind, inputs)]
    places = {node.key: place for place, node in enumerate(study.operations)}
    return sorted(layers, key=lambda layer: places[layer.nodes[0].key])


def _access(node: Operation, role: str) -> Access | None:
    return next((access for access in node.reads if access.role == role), None)


def _same_layer(node: Operation) -> tuple[object, ...]:
    """Return the common data of the parts of a layer: weights, and the cube of which they read bands. Offsets in a cube
    differ by
    whole lines, and are less than a surface."""
    source, weights = _access(node, "src"), _access(node, "weights")
    if source is None or weights is None or not source.line_stride:
        return (node.key,)
    src = node.surface.src_data
    place = source.start % source.line_stride
    settings = node.op.conv_mode, node.op.kernel_height_csc, node.op.conv_stride_y, node.op.batch
    cube = source.memory, source.line_stride, source.surface_stride, src.width, src.channel, place
    return (node.task, node.roi, weights.memory, weights.start, weights.traffic, *cube, *settings)


def _layers(
    group: list[Operation], behind: Mapping[Key, ChainShape | None], inputs: set[Key]
) -> Iterator[LoweredLayer]:
    """One layer where the operations are its parts one after the other; else each is separate."""
    for nodes in _rows_in_order(group):
        chains = [behind[node.key] for node in nodes if node.key in behind]
        whole = [chain for chain in chains if chain is not None and chain.conv is not None]
        if len(whole) == len(nodes):
            yield _layer(nodes, whole, nodes[0].key in inputs)


def _rows_in_order(group: list[Operation]) -> list[list[Operation]]:
    sources = [_access(node, "src") for node in group]
    if len(group) == 1 or any(source is None for source in sources):
        return [[node] for node in group]
    starts = {node.key: source.start for node, source in zip(group, sources, strict=True) if source}
    nodes = sorted(group, key=lambda node: starts[node.key])
    stride = next(source.line_stride for source in sources if source)
    first, top, geometry = starts[nodes[0].key], 0, _geometry(nodes, ChainShape())
    for node in nodes:
        count = node.surface.dst_data.height
        begin, rows = geometry.rows(top, count)
        if begin != (starts[node.key] - first) // stride or node.surface.src_data.height < rows:
            return [[node] for node in group]
        top += count
    return [nodes]


def _geometry(nodes: list[Operation], whole: ChainShape, bands: bool = True) -> LayerGeometry:
    """Geometry of a layer, from the part with its first rows to the part with its last."""
    op, src, dst = nodes[0].op, nodes[0].surface.src_data, nodes[0].surface.dst_data
    count = max(sum(node.surface.dst_data.height for node in nodes), 1)
    span = (max(op.kernel_height_csc, 1) - 1) * max(op.dilation_y, 1) + 1
    stride, pad = max(op.conv_stride_y, 1), op.pad_y_top
    last = nodes[-1].surface.dst_data.height
    height = src.height  # the last part says where the cube ends
    if len(nodes) > 1:
        height = max((count - last) * stride - pad, 0) + nodes[-1].surface.src_data.height
    used = op.input_height_csc * op.entry_per_slice * max(op.batch, 1)
    plain = op.conv_mode == ConvMode.DIRECT and op.batch <= 1
    return LayerGeometry(
        (max(src.channel, 1), max(height, 1), max(src.width, 1)),
        (max(dst.channel, 1), count, max(dst.width, 1)),
        (max(op.kernel_height_csc, 1), max(op.kernel_width_csc, 1)),
        span,
        stride,
        pad,
        element_bytes=nodes[0].element_bytes("dst_data"),
        whole=whole,
        line=max(op.entry_per_slice, 1),
        stored=sum(access.traffic for access in nodes[0].reads if access.role == "weights"),
        mask=sum(access.traffic for access in nodes[0].reads if access.role == "wmb"),
        most=0 if plain else max(used, 1),
        bands=bands and plain,
    )


def _layer(nodes: list[Operation], chains: list[ChainShape], reads_input: bool) -> LoweredLayer:
    """The layer of such parts: ``whole`` has the shapes of the first, and the sums of all."""
    first = chains[0]
    conv, op = first.conv, nodes[0].op
    assert conv is not None
    bands = not any(chain.pdp or op.data_reuse for chain in chains)
    plain = _geometry(nodes, ChainShape(), bands)
    height, rows = plain.source[1], plain.result[1]
    conv = replace(conv, out_height=rows, slices=height, data_bytes=conv.data_bytes * height // conv.slices)
    sdps = [chain.sdp for chain in chains if chain.sdp]
    sdp = sdps[0] if sdps else None
    if sdp and len(sdps) > 1:
        sums = {name: sum(getattr(sdp, name) for sdp in sdps) for name in SUMMED}
        sdp = replace(sdp, **sums)
    geometry = _geometry(nodes, replace(first, conv=conv, sdp=sdp), bands)
    tops = [sum(node.surface.dst_data.height for node in nodes[:number]) for number in range(len(nodes))]
    parts = tuple((top, node.surface.dst_data.height) for top, node in zip(tops, nodes, strict=True))
    kept = len(nodes) > 1 and all(node.op.weight_reuse for node in nodes[1:])
    built = Alternative(parts, conv.data_banks, conv.weight_banks, kept, compressed=plain.mask > 0)
    return LoweredLayer(tuple(nodes), tuple(chains), geometry, built, reads_input)


MOST_COMPONENTS = 4
"""Components of a pixel at most."""
SUMMED = ("height", "read_bytes", "operand_bytes", "write_bytes")


def other_forms(layer: LoweredLayer, study: Study, config: Configuration | None = None) -> list[Alternative]:
    """Forms that fit the buffer, in 1, 2 or 4 parts and in as many as it has, also with weights compressed where that
    can be; the fastest first. Images: whole, and in as many parts as it has; the compiler builds no others."""
    chosen = config or study.config
    geometry = replace(layer.geometry, sparse=_sparse(layer, study, chosen))
    numbers = {1} if layer.nodes[0].is_image else set(PARTS)
    return alternatives(geometry, chosen, study.memory, {*numbers, len(layer.nodes)})


def _sparse(layer: LoweredLayer, study: Study, config: Configuration) -> StoredWeights | None:
    """The weights of the loadable without their zeros; None of images, Winograd, compressed ones, and those that it
    does not bring along."""
    node = layer.nodes[0]
    op, surface = node.op, node.surface
    plain = op.conv_mode == ConvMode.DIRECT and op.weight_format == WeightFormat.UNCOMPRESSED and not node.is_image
    if not plain or not config.weight_compression or not Precision(op.out_precision).known:
        return None
    size, kernels = Precision(op.out_precision).bytes, surface.dst_data.channel
    kernel_elements, group = op.bytes_per_kernel // size, max(config.mac_atomic_k // size, 1)
    data = constant_bytes(study.program.loadable, node, surface.weight_data)
    if data is None or not 0 < kernels * kernel_elements * size <= data.size:
        return None
    elements = data[: kernels * kernel_elements * size].view(Precision(op.out_precision).dtype)
    starts = np.arange(0, kernels, group) * kernel_elements
    return compressed(
        np.add.reduceat(elements != 0, starts), elements.size, min(group, kernels) * kernel_elements, size, config
    )


def takes_images(layer: LoweredLayer) -> bool:
    """Check whether the layer reads an input of the network as a feature cube that could be an image."""
    op = layer.nodes[0].op
    direct = op.conv_mode == ConvMode.DIRECT and op.data_format == DataFormat.FEATURE and op.batch <= 1
    return layer.reads_input and direct and not op.data_reuse and layer.geometry.source[0] <= MOST_COMPONENTS


WORTH = 0.01
"""The share of the cycles that a change must save to be named."""
IMAGES = 4


def changes(study: Study, layer: LoweredLayer, cycles: int) -> list[Document]:
    """Changes that save at least :data:`WORTH` of ``cycles``, those that save most first."""
    plain = [*_hardware(study, layer), *_forms(study, layer), *_image_input(study, layer)]
    tried = [(what, changed, cycles, False) for what, changed in plain]
    tried += [(what, changed, before, True) for what, changed, before in _images(study, layer)]
    rows = [
        {"change": what, "cycles": changed, "before": before, "saves": 1 - changed / before, "per_image": per_image}
        for what, changed, before, per_image in tried
        if changed < before * (1 - WORTH)
    ]
    return sorted(rows, key=lambda row: -row["saves"])


Tried = tuple[str, int]


def _hardware(study: Study, layer: LoweredLayer) -> Iterator[Tried]:
    """The layer unchanged on other hardware. More kernels at a time are not tried: the model only covers arrays that
    make an atom of results at a time."""
    config, memory = study.config, study.memory
    bus = config.dram_width_bits / 8
    rate = memory.bytes_per_cycle
    if rate is not None and rate < bus:
        what, wide = f"twice the bandwidth ({rate_text(2 * rate)})", config
    else:
        what, wide = (
            f"a bus twice as wide ({rate_text(2 * bus)})",
            replace(config, dram_width_bits=int(16 * bus)),
        )
    faster_memory = replace(memory, bytes_per_cycle=2 * rate if rate is not None else None)
    yield what, _again(layer, wide, faster_memory)
    latency = memory.latency // 2
    yield f"half the memory's latency ({latency} cycles)", _again(layer, config, replace(memory, latency=latency))
    channels = 2 * config.mac_atomic_c
    yield f"MAC cells of {channels} channels", _again(layer, replace(config, mac_atomic_c=channels), memory)
    x, y = (2 * (throughput or 1) for throughput in (config.sdp_bs_throughput, config.sdp_ew_throughput))
    faster = replace(config, sdp_bs_throughput=x, sdp_ew_throughput=y)
    yield "an SDP twice as fast", _again(layer, faster, memory)
    if layer.chains[0].pdp:
        double = replace(config, pdp_throughput=2 * (config.pdp_throughput or 1))
        yield "a PDP twice as fast", _again(layer, double, memory)


def _again(layer: LoweredLayer, config: Configuration, memory: Memory) -> int:
    return queue_cycles(layer.chains, config, memory, element_bytes=layer.geometry.element_bytes)


def _forms(study: Study, layer: LoweredLayer) -> Iterator[Tried]:
    """Other forms on this hardware, and with a larger buffer."""
    here = other_forms(layer, study)
    if here:
        yield here[0].words, here[0].cycles
    larger = replace(study.config, cbuf_banks=2 * study.config.cbuf_banks)
    there = other_forms(layer, study, larger)
    if there and (not here or there[0].cycles < here[0].cycles):
        yield f"a buffer of {larger.cbuf_banks} banks ({there[0].words})", there[0].cycles


def _images(study: Study, layer: LoweredLayer) -> Iterator[tuple[str, int, int]]:
    """Images one after the other, with the weights kept and with them fetched again: cycles of an image."""
    shape, whole = layer.geometry.shape, layer.geometry.whole
    fits = shape.weight_bytes <= shape.weight_banks * study.config.cbuf_bank_bytes
    if len(layer.chains) > 1 or not shape.weight_bytes or not fits or shape.batch > 1:
        return
    kept = replace(whole, conv=replace(shape, weight_bytes=0))
    size = layer.geometry.element_bytes
    fetched, once = (
        ceil_div(queue_cycles([whole, *[image] * (IMAGES - 1)], study.config, study.memory, element_bytes=size), IMAGES)
        for image in (whole, kept)
    )
    yield f"weights kept for {IMAGES} consecutive images", once, fetched


def _image_input(study: Study, layer: LoweredLayer) -> Iterator[Tried]:
    """Pixels of 1 or 4 components: the columns of a kernel's row are channels, and 2 or 4 rows share a pass."""
    if not takes_images(layer):
        return
    geometry, shape, config = layer.geometry, layer.geometry.shape, study.config
    components = 1 if geometry.source[0] == 1 else MOST_COMPONENTS
    channels, rows = shape.kernel_width * components, shape.kernel_height
    shared = [count for count in (4, 2) if channels * count <= config.mac_atomic_c and rows > count // 2]
    line = align(geometry.source[2] * components * geometry.element_bytes, LINE_ALIGNMENT)
    conv = replace(
        shape,
        kernel_width=1,
        kernel_channels=channels,
        post_extension=shared[0] if shared else 1,
        by_line=True,
        data_bytes=geometry.source[1] * line,
        weight_bytes=shape.weight_bytes * components // geometry.source[0],
        entries_per_slice=ceil_div(line, config.cbuf_entry_bytes),
    )
    image = replace(geometry, whole=replace(geometry.whole, conv=conv), line=conv.entries_per_slice)
    forms = alternatives(image, config, study.memory)
    # the compiler divides an image only where it does not fit whole
    built = min(forms, key=lambda form: (len(form.parts), form.cycles), default=None)
    if built:
        yield f"an image as the input ({built.words})", built.cycles


Row = Document
TERMS = ("until_first_mac", "multiplying", "array", "after_last_mac")
SAME = ("parts", "data_banks", "weight_banks", "keeps_weights", "compressed")


def evaluate_layer(study: Study, layer: LoweredLayer) -> Row:
    """Return evaluated variants and helpful changes of a layer as plain data (cycles alone, in its own queue)."""
    cycles = layer.cycles(study)
    forms = [_form(layer, form, False) for form in other_forms(layer, study)]
    built = _form(layer, replace(layer.built, cycles=cycles), True)
    same = [form for form in forms if all(form[key] == built[key] for key in SAME)]
    forms = [built if form in same[:1] else form for form in forms]
    if not same:
        forms.append(built)
    return {
        "operations": [node.label for node in layer.nodes],
        "layer": layer.nodes[0].layer,
        "cycles": cycles,
        "forms": sorted(forms, key=lambda form: (form["cycles"], not form["chosen"])),
        "terms": _terms(study, layer),
        "why_no_parts": _why_no_parts(layer),
        "changes": changes(study, layer, cycles),
    }


def _form(layer: LoweredLayer, form: Alternative, chosen: bool) -> Row:
    shape, geometry = layer.geometry.shape, layer.geometry
    lines = sum(geometry.rows(*part)[1] for part in form.parts)
    fetched = 1 if form.keeps_weights else len(form.parts)
    return {
        **form.document(),
        "data_passes": lines / geometry.source[1] if shape.data_bytes else 0.0,
        "weight_passes": fetched if shape.weight_bytes else 0,
        "chosen": chosen,
    }


def _why_no_parts(layer: LoweredLayer) -> str | None:
    """Why forms in parts of rows are not evaluated; None where they are."""
    op = layer.nodes[0].op
    if layer.chains[0].pdp:
        return "pooling on the fly after it needs all rows"
    if op.conv_mode != ConvMode.DIRECT:
        return "Winograd processes rows in tiles"
    if op.batch > 1:
        return "it processes a batch"
    if op.data_reuse:
        return "it reuses the data of the previous convolution"
    if layer.nodes[0].is_image:
        return "the compiler divides an image only where it does not fit the buffer"
    return "its result has one row" if layer.geometry.result[1] == 1 else None


def _terms(study: Study, layer: LoweredLayer) -> Row:
    """Return where the cycles of the operations go, each alone; ``array``: what the MAC array itself needs."""
    terms = dict.fromkeys(TERMS, 0)
    for node in layer.nodes:
        estimate = study.estimates[node.key]
        time, shape = estimate.time, estimate.shape
        if time and shape and shape.conv:
            terms["until_first_mac"] += time.first_mac
            terms["multiplying"] += time.last_mac - time.first_mac + 1
            terms["array"] += mac_cycles(shape.conv, estimate.constants)
            terms["after_last_mac"] += time.total - time.last_mac - 1
    return terms


def evaluation_lines(row: Row) -> Iterator[str]:
    """Yield the lines below the table of a layer's forms."""
    terms = row["terms"]
    parts = ", summed over the parts" if len(row["operations"]) > 1 else ""
    array = f"the array needs {terms['array']:,}"
    yield (
        f"{terms['until_first_mac']:,} cycles from the enabling to the first multiplication, {terms['multiplying']:,} "
        f"to the last ({array}), {terms['after_last_mac']:,} to the interrupt{parts}"
    )
    by_the_builder = (row.get("by_the_builder") or {}).get("forms", ())
    if row["why_no_parts"] and not any("parts of rows" in form["form"] for form in by_the_builder):
        yield f"row splits were not evaluated: {row['why_no_parts']}"
    if not row["changes"]:
        yield "what would help, by the model: no tested change saves 1%"
        return
    yield "what would help, by the model:"
    for change in row["changes"]:
        average = f" (averages of {IMAGES} images in a row)" if change["per_image"] else ""
        yield f"    {_saving(change)}{average}"


def _saving(change: Row) -> str:
    """A change with its cycles, those without it, and the difference."""
    cycles = f"{change['cycles']:,} instead of {change['before']:,} cycles{' per image' if change['per_image'] else ''}"
    return f"{change['change']}: {cycles}, {change['saves']:.0%} less"


def builder_lines(row: Row, config: Configuration) -> Iterator[str]:
    """Return the variants that the builder evaluated, from the layer file, and how the banks of the one that it built
    differ: it gives convolutions in a row the same banks afterwards."""
    kept = row["by_the_builder"]
    if not kept:
        return
    built = _banks_text(next(form for form in row["forms"] if form["chosen"]))
    memory, search = kept["memory"], kept["search"]
    bus, rate = config.dram_width_bits / 8, memory["bytes_per_cycle"]
    accepted = Memory(bytes_per_cycle=rate).rate(bus)
    bandwidth = "the width of the bus" if rate is None else bandwidth_text(rate, accepted, config.name)
    shared = ", shared" if memory["shared"] else ""
    yield f"the compiler evaluated (-O{kept['level']}, latency {memory['latency']}, {bandwidth}{shared}):"
    yield from _groups_lines(kept["groups"])
    for place, form in enumerate(kept["forms"]):
        banks = _banks_text(form)
        shared = "" if banks == built else f" with the {built} that convolutions in a row share"
        mark = f" (built{shared})" if place == kept["taken"] else ""
        banks += ", weights compressed" if form["compressed"] else ""
        held = ", weights kept" if form["keeps_weights"] else ""
        yield f"    {form['form']}, {banks}{held}: {form['cycles']:,} cycles{mark}"
    if search:
        end = "to its end" if search["complete"] else "cut short"
        yield (
            f"    then the whole network was searched, {search['steps']} steps, {end}: {search['cycles_before']:,} to "
            f"{search['cycles']:,} cycles"
        )


def _banks_text(form: Row) -> str:
    return f"{form['data_banks']} data and {form['weight_banks']} weight banks"


def _groups_lines(kept: Row | None) -> Iterator[str]:
    """Count how many groups a dense convolution could take."""
    if kept is None:
        return
    for place, form in enumerate(kept["forms"]):
        what = f"{form['groups']} of {kept['groups']} groups together"
        times, use = (
            counted(form["convolutions"], "dense convolution"),
            f"one product in {form['groups']} within a group",
        )
        built = " (built)" if place == kept["taken"] else ""
        yield f"    {what}: {times}, {use}, {form['cycles']:,} cycles{built}"


COUNTED = {
    False: "(the layer alone, from its first register write to its interrupt)",
    True: f"(the layer alone, averages of {IMAGES} images in a row)",
}
NOTHING = f"no tested change saves {WORTH:.0%}"


def with_advice(study: Study, rows: list[Document]) -> list[Document]:
    """The rows of :func:`nvdla.analysis.explain.explanations` with what would help the layer of each: ``advice`` in
    words, and ``change`` with its cycles."""
    labels = {row["operation"] for row in rows}
    known: dict[object, Document] = {}
    advice: dict[str, Document] = {}
    for layer in layers_of(study):
        mine = [node.label for node in layer.nodes if node.label in labels]
        if not mine:
            continue
        key = layer.chains, layer.geometry, takes_images(layer)
        if key not in known:
            known[key] = _advice(changes(study, layer, layer.cycles(study)))
        advice.update(dict.fromkeys(mine, known[key]))
    return [row | advice.get(row["operation"], {}) for row in rows]


def _advice(tried: Sequence[Document]) -> Document:
    """The change with the largest gain."""
    if not tried:
        return {"advice": NOTHING}
    best = tried[0]
    return {
        "advice": f"{_saving(best)} {COUNTED[bool(best['per_image'])]}",
        "change": best["change"],
        "change_cycles": best["cycles"],
        "change_before_cycles": best["before"],
        "change_saves": best["saves"],
        "change_per_image": best["per_image"],
    }
