"""The mean of each channel, with a scale of its own.

Means are far smaller than the largest element: of steps of the source, as the PDP gives them, they use few. So the sum
is made by a convolution with ones, and the SDP brings it to the steps of the result.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import BYTES, Convert, Pool, Process, Stage, Surface
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.convolution import MAX_KERNEL, Window
from nvdla.builder.lower.pool import LIMIT, room_for_ones, with_ones
from nvdla.builder.shapes import Shape
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer

# Steps of the sum are fine enough for the zero point of the result where they are this much finer than its own.
_FINE = 16
# Positions whose sum, times a factor of 15 bits, has 31 bits.
_FEW = 512


class MeanLayer(LayerType):
    """The mean over rows and columns."""

    kind = "mean"
    each_channel_alone = zero_points = stays_within = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """One number a channel."""
        return shapes[0][0], 1, 1

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """The mean of each channel."""
        return inputs[0].mean(axis=(2, 3), keepdims=True)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A convolution with ones; maps that are too large for one are averaged over small windows first."""
        source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        while (window := _first(lowering, group, source)) != (1, 1):
            sizes = source.height // window[0], source.width // window[1]
            smaller = lowering.temporary(group.name, source.channels, *sizes, source)
            lowering.operations.append(Pool(group.name, source, smaller, "average", window, window, (0, 0, 0, 0)))
            source = smaller
        one = 1.0 if lowering.integer else 1.0 / (source.height * source.width)
        with_ones(
            lowering,
            group,
            source,
            destination,
            source.shape[1:],
            Window(),
            lambda target: _finish(lowering, group, source, target),
            one,
        )


def _first(lowering: Lowering, group: Group, source: Surface) -> tuple[int, int]:
    """The window to average over before; (1, 1) where none is needed. As small as will do."""
    height, width = source.shape[1:]
    most = room_for_ones(lowering.config) // (lowering.atom_channels**2 * BYTES[lowering.precision])

    def able(window: tuple[int, int]) -> bool:
        rows, columns = height // window[0], width // window[1]
        return max(rows, columns) <= MAX_KERNEL and rows * columns <= most

    windows = [(y, x) for y, x in product(range(1, LIMIT + 1), repeat=2) if height % y == 0 and width % x == 0]
    windows.sort(key=lambda window: window[0] * window[1])
    found = next((window for window in windows if able(window)), windows[-1])
    if found == (1, 1) and not able(found):
        raise BuildError(
            f"layer {group.name}: the mean over {height}x{width} is no cascade of windows up to {LIMIT} and one up to "
            f"{MAX_KERNEL}; use a map of another size"
        )
    return found


def _finish(lowering: Lowering, group: Group, source: Surface, target: Surface) -> Process:
    """From sums to the steps of the result."""
    if not lowering.integer:
        return Process(group.name, None, target)
    positions = source.height * source.width
    unit, constant = source.scale / positions, source.zero * positions
    if target.zero and unit * _FINE > target.scale and positions < _FEW:
        multiplier, convert = lowering.rescaled(unit, constant, target)
        return Process(group.name, None, target, Stage(multiplier=multiplier), convert=convert)
    if unit == target.scale:  # the converter rounds nothing
        return Process(group.name, None, target, convert=Convert(offset=constant - target.zero))
    return Process(group.name, None, target, convert=lowering.convert(unit, target, constant))
