"""Layers, one file each: a module of :mod:`nvdla.builder.lower` with a :class:`LayerType`, found by its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nvdla.builder.shapes import Shape
from nvdla.discovery import modules_of
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.groups import Group
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer

PACKAGE = "nvdla.builder.lower"


class LayerType(ABC):
    """One kind of layer: the shape of its result, its float form, its operations of the hardware.

    ``inputs``: how many it takes; None: any number. ``keeps_scale``: the result has the scale of the inputs.
    ``copies``: inputs of the network whose scale is another are copied into the result with a change of scale.
    ``each_channel_alone``: a factor on a channel of all inputs is one on that channel of the result. ``zero_points``:
    inputs and results may have zero points, each its own (layers that keep the scale keep the zero point, too).
    ``stays_within``: the result lies within the range of the input, whose scale will do where it has none.
    """

    kind: ClassVar[str]
    inputs: ClassVar[int | None] = 1
    keeps_scale: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    each_channel_alone: ClassVar[bool] = False
    zero_points: ClassVar[bool] = False
    stays_within: ClassVar[bool] = False

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """(C, H, W) of the result from those of the inputs; brings the settings into their one form. Raises
        BuildError."""
        return shapes[0]

    @abstractmethod
    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """What it computes, in floats, on arrays (N, C, H, W)."""

    @abstractmethod
    def lower(self, lowering: Lowering, group: Group) -> None:
        """Append the operations of the hardware."""

    def own_scale(self, layer: Layer, precision: str) -> float | None:
        """The scale of the result that the layer itself sets, whatever calibration says; None where it sets none."""
        return None

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float]:
        """(lowest, highest) number that the result can have for inputs up to ``largest`` in magnitude, which may be
        infinite; infinite where it may be any. What keeps the scale, or lies within the range, of its inputs has
        theirs."""
        if not (self.keeps_scale or self.stays_within):
            return -np.inf, np.inf
        border = float(layer.settings.get("value", 0.0))
        ends = [(border, border), *(bounds_of(each.producer, largest) for each in layer.inputs)]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def channels(self, layer: Layer, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Of the numbers (C,) that the channels of the inputs have, those that each channel of the result has.

        All that one channel gets must have one factor when channels are brought to like magnitudes. Empty: the result
        has nothing to do with the sizes of single channels.
        """
        return inputs if self.each_channel_alone else []


@cache
def layer_types() -> dict[str, LayerType]:
    """All of them by kind."""
    found = {}
    for module in modules_of(PACKAGE):
        for each in vars(module).values():
            if isinstance(each, type) and issubclass(each, LayerType) and each is not LayerType:
                found[each.kind] = each()
    return found


def layer_type(kind: str) -> LayerType:
    """That of a kind. Raises BuildError that lists those there are."""
    if kind not in layer_types():
        raise BuildError(f"a layer of kind {kind!r} is not known: known are {', '.join(sorted(layer_types()))}")
    return layer_types()[kind]


def bounds_of(layer: Layer, largest: float) -> tuple[float, float]:
    """The least and the most of what a layer gives; an input of the network may be any number."""
    return (-np.inf, np.inf) if layer.kind == "input" else layer_type(layer.kind).bounds(layer, largest)


def own_scale(layer: Layer, precision: str) -> float | None:
    """The scale of its result that a layer sets itself; None where it sets none, and for inputs of the network."""
    return None if layer.kind == "input" else layer_type(layer.kind).own_scale(layer, precision)
