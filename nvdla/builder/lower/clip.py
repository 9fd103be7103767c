"""Limits below and above, ReLU6 among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Stage
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.stages import alone, number_or_channels
from nvdla.builder.shapes import Shape, column, numbers_of
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class ClipLayer(LayerType):
    """Limit to low..high."""

    kind = "clip"
    each_channel_alone = zero_points = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """``low`` a number; ``high`` one or (channels,)."""
        low, high = float(settings["low"]), settings["high"]
        if not np.all(low < np.asarray(high)):
            raise BuildError(f"layer {name}: low {settings['low']} must be less than high {np.min(high)}")
        limit = float(high) if np.ndim(high) == 0 else numbers_of(name, "high", high, shapes[0][0])
        settings.update(low=low, high=limit)
        return shapes[0]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Elements within their channel's limits."""
        return np.clip(inputs[0], layer.low, column(np.atleast_1d(layer.high)))

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Two comparisons with numbers: X1 the lower limit, X2 the upper one."""
        layer = group.layer
        limits, source = [np.atleast_1d(limit) for limit in (layer.low, layer.high)], lowering.source(layer.inputs[0])
        if lowering.integer:
            limits = [np.floor(limit / source.scale + 0.5) + source.zero for limit in limits]
            limits = [np.clip(limit, -32768, 32767).astype(np.int64) for limit in limits]
        else:
            limits = [np.clip(limit, -65504, 65504).astype(np.float16) for limit in limits]
        low, high = (number_or_channels(limit) for limit in limits)
        alone(lowering, group, Stage("max", low), Stage("min", high), source.zero)

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float]:
        """The limits."""
        return float(layer.low), float(np.max(layer.high))
