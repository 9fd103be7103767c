"""ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Stage
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.stages import alone, from_zero

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class ReluLayer(LayerType):
    """max(x, 0)."""

    kind = "relu"
    each_channel_alone = zero_points = True

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """max(x, 0)."""
        return np.maximum(inputs[0], 0.0)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """The SDP's own ReLU."""
        alone(lowering, group, from_zero(lowering, group, Stage(relu=True)))

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float]:
        """0 and the input's."""
        return 0.0, largest
