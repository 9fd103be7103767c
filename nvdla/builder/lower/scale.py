"""Factors and biases a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Process, Stage, Surface
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.stages import bias_operand, number_or_channels
from nvdla.builder.quantize import common_fixed_point, halves
from nvdla.builder.shapes import Shape, column, numbers_of

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer

LEAST_FACTOR = 2.0**-10
"""Smaller factors have few bits as halves, and what is added before them would be large."""
TOLERATED = 1 / 64
"""Units of the result by which a bias may be wrong that is added in whole units of the source."""


class ScaleLayer(LayerType):
    """``factors * x + bias`` a channel."""

    kind = "scale"
    zero_points = True

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """``factors`` and ``bias``: (channels,), numbers, or None for zeros."""
        for what in ("factors", "bias"):
            settings[what] = numbers_of(name, what, settings[what], shapes[0][0])
        return shapes[0]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """``factors * x + bias``."""
        return inputs[0] * column(layer.factors) + column(layer.bias)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """X1 multiplies (int16 factors of a common shift, kept in X1's result), X2 adds what is not nothing."""
        layer = group.layer
        source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
        relu_after = group.activation is not None
        if not lowering.integer:
            factors = halves(layer.name, "factor", layer.factors)
            before = _before(layer, factors)
            if lowering.level and before is not None:
                stage = Stage("add", before, multiplier=factors, relu=relu_after)
                lowering.operations.append(Process(group.name, source, destination, stage))
                return
            x1 = Stage(multiplier=factors)
            x2 = _shifted(x1, Stage("add", halves(layer.name, "bias", layer.bias)), relu_after)
            lowering.operations.append(Process(group.name, source, destination, x1, x2))
            return
        added = _added_before(layer, source, destination) if lowering.level else None
        if added is not None:
            multipliers, shift = common_fixed_point(layer.factors, _bits(lowering), 40)
            stage = Stage("add", number_or_channels(added), 0, multipliers, relu=relu_after)
            convert = lowering.convert(source.scale * 2.0**-shift, destination)
            lowering.operations.append(Process(group.name, source, destination, stage, convert=convert))
            return
        # Fewer bits where the bias would not fit 30 bits of the product's units.
        largest = float(np.max(np.abs(layer.bias), initial=0.0)) / source.scale
        largest += abs(source.zero) * float(np.max(np.abs(layer.factors), initial=0.0))
        most = 40 if largest == 0 else int(np.clip(np.floor(30 - np.log2(largest)), 0, 40))
        multipliers, shift = common_fixed_point(layer.factors, _bits(lowering), most)
        unit = source.scale * 2.0**-shift
        bias = layer.bias - source.zero * source.scale * layer.factors
        operand, left = bias_operand(group.name, bias, np.array([unit]))
        x1 = Stage(multiplier=multipliers)
        x2 = _shifted(x1, Stage("add", operand, left), relu_after)
        lowering.operations.append(
            Process(group.name, source, destination, x1, x2, convert=lowering.convert(unit, destination))
        )


def _before(layer: Layer, factors: np.ndarray) -> np.ndarray | None:
    """What is added before the multiplication to the same effect, in halves: one stage does both in that order. None
    where nothing is added, or a factor is too small for that."""
    if not np.any(layer.bias) or np.any(layer.factors == 0):
        return None
    with np.errstate(over="ignore"):
        found = (layer.bias / factors.astype(np.float64)).astype(np.float16)
    return found if np.all(np.isfinite(found)) and np.all(np.abs(layer.factors) > LEAST_FACTOR) else None


def _added_before(layer: Layer, source: Surface, destination: Surface) -> np.ndarray | None:
    """What is added before the multiplication, in whole units of the source: one stage does both. None where nothing
    is added, or that differs by more than TOLERATED units of the result."""
    if np.any(layer.factors == 0) or not (source.zero or np.any(layer.bias)):
        return None
    exact = layer.bias / layer.factors / source.scale - source.zero
    found = np.floor(exact + 0.5)
    errors = np.abs((exact - found) * layer.factors) * source.scale / destination.scale
    return found.astype(np.int64) if np.max(errors) <= TOLERATED and np.max(np.abs(found)) < 32768 else None


def _bits(lowering: Lowering) -> int:
    """Bits of the multipliers."""
    return 14 if lowering.precision == "int16" else 15


def _shifted(x1: Stage, x2: Stage, relu_after: bool) -> Stage | None:
    """The second stage, None where it would add nothing; the last of both has the ReLU."""
    adds = bool(np.any(np.asarray(x2.alu_operand)))
    (x2 if adds else x1).relu = relu_after
    return x2 if adds else None
