"""Local response normalisation in the CDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder import lut as tables
from nvdla.builder.fuse import Group
from nvdla.builder.ir import Convert, Normalize
from nvdla.builder.quantize import LARGEST, fixed_point

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering


def lower(lowering: Lowering, group: Group) -> None:
    """The table holds (k + alpha / size * s^2 * sum) ** -beta in as many bits as int16 allows; the CDP multiplies by
    x."""
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
