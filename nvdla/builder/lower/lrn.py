"""Local response normalisation in the CDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nvdla.builder import lut as tables
from nvdla.builder.groups import Group
from nvdla.builder.ir import Convert, Normalize
from nvdla.builder.layer_types import LayerType
from nvdla.builder.quantize import LARGEST, fixed_point
from nvdla.builder.shapes import Shape
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer


class LrnLayer(LayerType):
    """Across channels: ``x * (k + alpha / size * sum(x^2)) ** -beta``."""

    kind = "lrn"

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """``size`` 3, 5, 7 or 9; ``alpha``, ``beta``, ``k`` numbers."""
        size, alpha, k = settings["size"], settings["alpha"], settings["k"]
        if size not in (3, 5, 7, 9):
            raise BuildError(f"layer {name}: LRN size {size} is not one of 3, 5, 7, 9 (the windows of the CDP)")
        if k <= 0 or alpha < 0:
            raise BuildError(f"layer {name}: LRN needs k > 0 and alpha >= 0, got k {k} and alpha {alpha}")
        settings.update({what: float(settings[what]) for what in ("alpha", "beta", "k")})
        return shapes[0]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Sums of squares of neighbouring channels; zeros beyond the first and last."""
        x, half = inputs[0], layer.size // 2
        squares = np.pad(x * x, ((0, 0), (half, half), (0, 0), (0, 0)))
        total = sliding_window_view(squares, layer.size, axis=1).sum(-1)
        return np.asarray(x * (layer.k + layer.alpha / layer.size * total) ** -layer.beta)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """The table holds (k + alpha / size * s^2 * sum) ** -beta in as many bits as int16 allows; the CDP multiplies
        by x."""
        layer = group.layer
        source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
        if not lowering.integer:
            table = tables.fit_normalisation_halves(layer.size, layer.alpha, layer.beta, layer.k)
            lowering.operations.append(Normalize(group.name, source, destination, layer.size, table, Convert()))
            return
        bits = 14 - int(np.ceil(np.log2(layer.k**-layer.beta)))
        factor = layer.alpha / layer.size * source.scale**2

        def normalise(total: np.ndarray) -> np.ndarray:
            return (layer.k + factor * np.maximum(total, 0)) ** -layer.beta * 2.0**bits

        most = layer.size * (LARGEST[lowering.precision] + 1) ** 2
        table = tables.fit_integers(normalise, 0, most)
        convert = Convert(*fixed_point(source.scale * 2.0**-bits / destination.scale))
        lowering.operations.append(Normalize(group.name, source, destination, layer.size, table, convert))
