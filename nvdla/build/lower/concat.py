"""Concatenation: producers write into parts of one root; parts that do not begin at an atom are moved by
convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.build.fuse import Group
from nvdla.build.ir import DTYPES, Convolve, Process, Stage, Surface
from nvdla.build.quantize import fixed_point

if TYPE_CHECKING:
    from nvdla.build.lower.lowering import Lowering


def reserve(lowering: Lowering) -> None:
    """Give tensors that are concatenated their place in the result before anything writes them (outer concats
    first)."""
    bound = {tensor.name for tensor in lowering.network.outputs}
    for group in reversed(lowering.groups):
        if group.layer.kind != "concat":
            continue
        whole = lowering.target(group.output)
        if not _aligned(lowering, group):
            continue
        first = 0
        for tensor in group.layer.inputs:
            part = whole.channel_range(first, tensor.shape[0])
            first += tensor.shape[0]
            same_scale = lowering.scales[tensor.name] == whole.scale
            if tensor.name not in lowering.places and tensor.name not in bound and same_scale:
                lowering.places[tensor.name] = part


def _aligned(lowering: Lowering, group: Group) -> bool:
    """Whether every part but the last fills whole atoms."""
    return all(tensor.shape[0] % lowering.atom_channels == 0 for tensor in group.layer.inputs[:-1])


def lower(lowering: Lowering, group: Group) -> None:
    whole = lowering.target(group.output)
    if not _aligned(lowering, group):
        gather(lowering, group.name, [lowering.source(tensor) for tensor in group.layer.inputs], whole)
        return
    first = 0
    for tensor in group.layer.inputs:
        part = whole.channel_range(first, tensor.shape[0])
        place = lowering.source(tensor)
        if place.root is not part.root or place.first_channel != part.first_channel:
            lowering.copy(group.name, place, part)
        first += tensor.shape[0]


def gather(lowering: Lowering, name: str, sources: list[Surface], whole: Surface) -> None:
    """1x1 convolutions that place each source's channels behind those before, each adding to the result so far.

    Exact where scales are equal: every sum has one term that is not zero.
    """
    first, before = 0, None
    for index, source in enumerate(sources):
        last = index == len(sources) - 1
        target = whole if last else lowering.temporary(name, *whole.shape, whole.scale)
        weights = np.zeros((whole.channels, source.channels, 1, 1), DTYPES[lowering.precision])
        weights[first + np.arange(source.channels), np.arange(source.channels)] = 1
        x1 = None
        if lowering.integer and source.scale != target.scale:
            multiplier, truncate = fixed_point(source.scale / target.scale, most=31)
            x1 = Stage(multiplier=multiplier, truncate=truncate)
        x2 = Stage("add", before) if before is not None else None
        process = Process(name, None, target, x1, x2)
        lowering.operations.append(Convolve(name, source, weights, (1, 1), (0, 0, 0, 0), (1, 1), process))
        first, before = first + source.channels, target
