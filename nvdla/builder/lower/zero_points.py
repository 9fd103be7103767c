"""Zero points: int8 tensors whose range is not symmetric use all 256 elements.

Behind a ReLU a symmetric tensor uses 128 of its elements. With a zero point ``z`` (the element that stands for 0, -128
there) its units are half as wide, at no cost:

* the SDP's output converter subtracts an offset; a ReLU is its saturation at -128;
* a convolution pads with ``z`` (PAD_VALUE of the CSC and the CDMA), and its bias takes up what ``z`` adds a kernel;
* pooling and copies keep the zero point; averages have registers for what padding adds;
* sums take the constant out in the output converter, products in X1, tables by their entries.

A tensor gets one where all that make and read it, and all that share its scale, can take it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.layer_types import layer_type
from nvdla.builder.lower import residual
from nvdla.builder.network import NetworkTensor

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering

LEVELS, LOWEST, HIGHEST = 255, -128, 127
# Units that are not at least this much finer are not worth a constant in every bias.
WORTH = 0.9
# The C model of the PDP reads past its table for padded windows of 8 columns (cmod/pdp/pdp_hls_wrapper.cpp:110).
_WIDEST_PADDED_AVERAGE = 7


@dataclass(frozen=True)
class ZeroPoint:
    """The real number of one unit, and the element that stands for 0."""

    scale: float
    zero: int


Find = Callable[[str], str]


def chosen(lowering: Lowering, find: Find) -> dict[str, ZeroPoint]:
    """The zero points of tensors by name. ``find``: the tensor that speaks for all of one scale."""
    calibration = lowering.calibration
    if lowering.default != "int8" or calibration is None or not (calibration.zero_points or calibration.ranges):
        return {}
    makers = {group.output.name: group for group in lowering.groups}
    members: dict[str, list[NetworkTensor]] = {}
    for tensor in lowering.tensors:
        members.setdefault(find(tensor.name), []).append(tensor)
    points = {}
    for lead, alike in members.items():
        if all(_can_make(lowering, tensor, makers.get(tensor.name)) for tensor in alike):
            # An input of the network keeps the scale that the application knows.
            telling = [tensor for tensor in alike if tensor in lowering.network.inputs] or alike
            said = any(tensor.name in calibration.ranges for tensor in telling)
            point = _point([_range(lowering, tensor, makers.get(tensor.name)) for tensor in telling], said)
            if point is not None:
                points[lead] = point
    for name in residual.without_zero_points(lowering):
        points.pop(find(name), None)
    while refused := _refused(lowering, points, find):
        for lead in refused:
            points.pop(lead, None)
    return {tensor.name: points[lead] for lead, alike in members.items() if lead in points for tensor in alike}


def _can_make(lowering: Lowering, tensor: NetworkTensor, group: Group | None) -> bool:
    """Bound tensors have zero points where that is said: by the model, or of an output by calibration."""
    network, ranges = lowering.network, lowering.scales_given.ranges
    if (group is None or tensor in network.outputs) and tensor.name not in ranges:
        return False
    if lowering.precisions[tensor.name] != "int8":
        return False
    if group is None:
        return True
    layer = group.layer
    if layer.kind == "elementwise":
        return layer.operation in ("add", "multiply") and len(layer.inputs) == 2
    return layer_type(layer.kind).zero_points or layer_type(layer.kind).keeps_scale


def _range(lowering: Lowering, tensor: NetworkTensor, group: Group | None) -> tuple[float, float] | None:
    """(lowest, highest) real number of a tensor that 256 elements are to hold; None where its source says it."""
    given = lowering.scales_given
    if tensor.name in given.ranges:
        return given.ranges[tensor.name]
    if group is not None and group.layer.kind == "constant":
        values = group.layer.values
        return min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    if group is not None and layer_type(group.layer.kind).keeps_scale:
        border = group.layer.settings.get("value", 0.0) if group.layer.kind == "pad" else 0.0
        return (min(border, 0.0), max(border, 0.0)) if border else None
    largest = float(given.magnitudes.get(tensor.name, 0.0))
    low = _lowest(lowering, group) if given.zero_points and group is not None else -largest
    return max(low, -largest), largest


def _lowest(lowering: Lowering, group: Group) -> float:
    """The lowest number that a group can give, whatever its input; -infinity where that is not known."""
    layer = group.activation or group.layer
    largest = max((lowering.scales_given.magnitudes.get(each.name, np.inf) for each in layer.inputs), default=0.0)
    return min(layer_type(layer.kind).bounds(layer, float(largest))[0], 0.0)


def _point(ranges: list[tuple[float, float] | None], said: bool) -> ZeroPoint | None:
    """The scale and zero point for tensors of one scale; None where a symmetric range is as good and the model has not
    ``said`` another."""
    known = [each for each in ranges if each is not None]
    low, high = min((each[0] for each in known), default=0.0), max((each[1] for each in known), default=0.0)
    scale = (high - low) / LEVELS
    if not (np.isfinite(scale) and scale > 0) or not (said or worth(low, high)):
        return None
    return ZeroPoint(scale, int(np.clip(np.floor(LOWEST - low / scale + 0.5), LOWEST, HIGHEST)))


def worth(low: float, high: float) -> bool:
    """Whether a range is far enough from a symmetric one."""
    return (high - low) / LEVELS <= WORTH * max(-low, high) / HIGHEST


def _refused(lowering: Lowering, points: dict[str, ZeroPoint], find: Find) -> set[str]:
    """Tensors with a zero point that something cannot take."""
    refused = set()
    for group in lowering.groups:
        leads = [find(tensor.name) for tensor in group.layer.inputs]
        out = find(group.output.name)
        if any(lead in points for lead in (*leads, out)):
            refused |= _refused_by(lowering, group, leads, out, points)
    return refused & points.keys()


def _refused_by(lowering: Lowering, group: Group, leads: list[str], out: str, points: dict[str, ZeroPoint]) -> set[str]:
    layer, sources = group.layer, set(leads)
    if lowering.precisions[group.output.name] != "int8":
        return {*sources, out}
    if layer_type(layer.kind).keeps_scale:
        if sources != {out}:  # an input of the network among them, which is copied with a change of scale
            return {*sources, out}
        padded = layer.kind == "pool" and layer.mode == "average" and any(layer.padding)
        return {out} if padded and layer.kernel[1] > _WIDEST_PADDED_AVERAGE else set()
    if layer.kind == "elementwise":
        return _refused_by_pair(group, leads, out, points)
    return set() if layer_type(layer.kind).zero_points else sources


def _refused_by_pair(group: Group, leads: list[str], out: str, points: dict[str, ZeroPoint]) -> set[str]:
    """Sums: a ReLU behind a constant has to be the saturation at -128. Products: the second factor has no constant."""
    layer = group.layer
    if len(leads) != 2 or layer.operation not in ("add", "multiply"):
        return set(leads)
    if layer.operation == "multiply":
        return {leads[1]} if all(lead in points for lead in leads) else set()
    saturates = out in points and points[out].zero == LOWEST
    return set() if group.activation is None or saturates else set(leads)
