"""The layers of a loadable that are convolutions, whoever compiled it, and the forms that they could have.

Convolutions with the same weights on bands of rows of one cube are the parts of one layer. The forms of
:mod:`nvdla.analysis.alternatives` are weighed with what works behind the convolution on the fly in the loadable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nvdla.analysis.alternatives import PARTS, Alternative, Geometry, StoredWeights, alternatives, compressed
from nvdla.analysis.cycles.queue import queue_cycles
from nvdla.analysis.cycles.shapes import ChainShape, ConvolutionShape, SdpShape
from nvdla.analysis.study import Study
from nvdla.descriptors.enums import ConvMode, DataFormat, OpType, Precision, WeightFormat
from nvdla.hardware.configuration import Configuration
from nvdla.program.accesses import Access
from nvdla.program.constants import constant_bytes
from nvdla.program.operation import Operation
from nvdla.rounding import align


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
        """Bytes as they lie in memory, compressed or not."""
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
        """Of its operations in a queue of their own."""
        return queue_cycles(self.chains, study.config, study.memory, element_bytes=self.geometry.element_bytes)


def layers_of(study: Study) -> list[LoweredLayer]:
    """The layers that are convolutions, in the order of their first operations."""
    groups: dict[tuple[Any, ...], list[Operation]] = {}
    for node in study.operations:
        if node.type == OpType.CONV:
            groups.setdefault(_same_layer(node), []).append(node)
    inputs = {key for value in study.values if value.kind == "input" for key, _ in value.readers}
    behind = {chain[0].key: study.estimates[chain[0].key].shape for chain in study.chains}
    found = [layer for group in groups.values() for layer in _layers(group, behind, inputs)]
    places = {node.key: place for place, node in enumerate(study.operations)}
    return sorted(found, key=lambda layer: places[layer.nodes[0].key])


def _access(node: Operation, role: str) -> Access | None:
    return next((each for each in node.reads if each.role == role), None)


def _same_layer(node: Operation) -> tuple[Any, ...]:
    """What parts of a layer have in common: weights, and the cube that they read bands of. Offsets in a cube differ by
    whole lines, and are less than a surface."""
    source, weights = _access(node, "src"), _access(node, "weights")
    if source is None or weights is None or not source.line_stride:
        return (node.key,)
    src = node.surface.src_data
    place = source.start % source.line_stride
    settings = node.op.conv_mode, node.op.kernel_height_csc, node.op.conv_stride_y, node.op.batch
    cube = source.memory, source.line_stride, source.surface_stride, src.width, src.channel, place
    return (node.task, node.roi, weights.memory, weights.start, weights.traffic, *cube, *settings)


def _layers(group: list[Operation], behind: dict[Any, ChainShape | None], inputs: set[Any]) -> Iterator[LoweredLayer]:
    """One layer where the operations are its parts one behind the other; else each is one of its own."""
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
    """Of the parts of a layer from its first rows to its last."""
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
        sums = {name: sum(getattr(each, name) for each in sdps) for name in SUMMED}
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
    can be; the fastest first."""
    chosen = config or study.config
    geometry = replace(layer.geometry, sparse=_sparse(layer, study, chosen))
    return alternatives(geometry, chosen, study.memory, {*PARTS, len(layer.nodes)})


def _sparse(layer: LoweredLayer, study: Study, config: Configuration) -> StoredWeights | None:
    """The weights of the loadable without their zeros; None of images, Winograd, compressed ones, and those that it
    does not bring along."""
    node = layer.nodes[0]
    op, surface = node.op, node.surface
    plain = op.conv_mode == ConvMode.DIRECT and op.weight_format == WeightFormat.UNCOMPRESSED and not node.is_image
    if not plain or not config.weight_compression or not Precision(op.out_precision).known:
        return None
    size, kernels = Precision(op.out_precision).bytes, surface.dst_data.channel
    each, group = op.bytes_per_kernel // size, max(config.mac_atomic_k // size, 1)
    data = constant_bytes(study.program.loadable, node, surface.weight_data)
    if data is None or not 0 < kernels * each * size <= data.size:
        return None
    elements = data[: kernels * each * size].view(Precision(op.out_precision).dtype)
    starts = np.arange(0, kernels, group) * each
    return compressed(np.add.reduceat(elements != 0, starts), elements.size, min(group, kernels) * each, size, config)


def takes_images(layer: LoweredLayer) -> bool:
    """Whether the layer reads an input of the network as a feature cube that could be an image."""
    op = layer.nodes[0].op
    direct = op.conv_mode == ConvMode.DIRECT and op.data_format == DataFormat.FEATURE and op.batch <= 1
    return layer.reads_input and direct and not op.data_reuse and layer.geometry.source[0] <= MOST_COMPONENTS
