"""Fixed numbers, kept in the loadable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Root
from nvdla.builder.layer_types import LayerType
from nvdla.builder.quantize import LARGEST, halves, quantize
from nvdla.builder.shapes import Shape
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class ConstantLayer(LayerType):
    """A tensor of fixed numbers."""

    kind = "constant"
    inputs = 0
    zero_points = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """``values``: (channels, height, width) of finite numbers."""
        settings["values"] = values = np.asarray(settings["values"], np.float64)
        if values.ndim != 3 or not np.all(np.isfinite(values)):
            raise BuildError(f"layer {name}: a constant must be (channels, height, width) of finite numbers")
        return values.shape

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """One image, the same for all."""
        return np.asarray(layer.values[None])

    def own_scale(self, layer: Layer, precision: str) -> float:
        """The largest magnitude is the largest integer."""
        return max(float(np.max(np.abs(layer.values))), 1e-30) / LARGEST[precision]

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Elements in the loadable's constants; copied where they are an output or a part of a concatenation."""
        name = group.output.name
        root = constant_root(lowering, group.layer.name, group.layer.values, lowering.scales[name], lowering.zero(name))
        if name in lowering.places or group.output in lowering.network.outputs:
            lowering.copy(group.name, root.whole, lowering.target(group.output))
        else:
            lowering.places[name] = root.whole


def check_factors(lowering: Lowering, layer: Layer) -> None:
    """The constants that a product in halves multiplies with can be held. Raises BuildError."""
    for tensor in layer.inputs:
        if not lowering.integer and layer.operation == "multiply" and tensor.producer.kind == "constant":
            halves(layer.name, "factor", tensor.producer.values)


def constant_root(lowering: Lowering, name: str, values: np.ndarray, scale: float, zero: int) -> Root:
    """Memory that holds numbers (C, H, W) in the precision of the group that is lowered."""
    data = quantize(values, scale, lowering.precision, zero)
    channels, height, width = values.shape
    return Root(name, channels, height, width, lowering.precision, scale, "constant", data, zero=zero)
