"""Layer types and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache, reduce
from typing import Any, ClassVar

import numpy as np

from nvdla.compiler.builder.context import Lowering
from nvdla.compiler.builder.layers import (
    Ends,
    Group,
    Layer,
    LayerSettings,
    NetworkTensor,
    PadSettings,
    ScaleSettings,
    Shape,
)
from nvdla.errors import BuildError
from nvdla.util.registry import modules_of

Given = Mapping[str, Any]
"""Settings as a caller of ``Network.add_layer`` writes them."""

PACKAGE = "nvdla.compiler.builder.lower"


class LayerType(ABC):
    """One kind of layer: the shape of its result, its float form, its operations of the hardware.

    ``inputs``: how many it takes; None: any number. ``keeps_scale``: the result has the scale of the inputs.
    ``copies``: inputs of the network whose scale is another are copied into the result with a change of scale.
    ``each_channel_alone``: a factor on a channel of all inputs is one on that channel of the result. ``zero_points``:
    inputs and results may have zero points, each its own (layers that keep the scale keep the zero point, too).
    ``stays_within``: the result is within the range of the input, whose scale is used if the result has none.
    ``shift_invariant``: adding a constant to all elements of the input changes nothing, so the input may have a zero
    point; the result has none.
    """

    kind: ClassVar[str]
    inputs: ClassVar[int | None] = 1
    keeps_scale: ClassVar[bool] = False
    copies: ClassVar[bool] = False
    each_channel_alone: ClassVar[bool] = False
    zero_points: ClassVar[bool] = False
    stays_within: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False

    def parse(self, name: str, shapes: list[Shape], given: Given) -> LayerSettings:
        """Check the settings given for a layer and return them in normal form.

        Args:
            name: the layer.
            shapes: (C, H, W) of its inputs.
            given: the settings as a caller of :meth:`Network.add_layer` writes them.

        Raises:
            BuildError: a setting is wrong.
            KeyError: a setting is missing.
        """
        return LayerSettings()

    def shape(self, layer: Layer) -> Shape:
        """Return (C, H, W) of the result. Raises BuildError."""
        return layer.inputs[0].shape

    @abstractmethod
    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Compute the layer in floats, on arrays (N, C, H, W)."""

    @abstractmethod
    def lower(self, lowering: Lowering, group: Group) -> None:
        """Append the operations of the hardware."""

    def own_scale(self, layer: Layer, precision: str) -> float | None:
        """Return the scale of the result that the layer itself sets, independent of calibration, or None."""
        return None

    def bounds(self, layer: Layer, largest: float) -> tuple[float, float | np.ndarray]:
        """(lowest, highest) number that the result can have for inputs up to ``largest`` in magnitude, which may be
        infinite; infinite where it may be any. The highest may be one per channel. Layers that keep the scale, or stay
        within the range, of their inputs return the limits of the inputs."""
        return bounds_of(layer, largest, {})

    def channels(self, layer: Layer, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Return the numbers of each result channel, from the numbers (C,) of the input channels.

        All inputs of one channel must have one factor when channels are equalized. Empty: the result does not depend
        on the sizes of single channels.
        """
        return inputs if self.each_channel_alone else []


@cache
def layer_types() -> dict[str, LayerType]:
    """All of them by kind."""
    types = {}
    for module in modules_of(PACKAGE):
        for member in vars(module).values():
            if isinstance(member, type) and issubclass(member, LayerType) and member is not LayerType:
                types[member.kind] = member()
    return types


def layer_type(kind: str) -> LayerType:
    """That of a kind. Raises BuildError that lists those there are."""
    if kind not in layer_types():
        raise BuildError(f"kind of layer: must be one of {', '.join(sorted(layer_types()))}, got {kind!r}")
    return layer_types()[kind]


def bounds_of(layer: Layer, largest: float, known: dict[int, Ends]) -> tuple[float, float]:
    """The least and the most of what a layer gives; an input of the network may be any number. ``known``: those of
    channels found so far for the same ``largest``, by layer (identity)."""
    low, high = _channel_bounds(layer, largest, known)
    return float(np.min(low)), float(np.max(high))


def _channel_bounds(layer: Layer, largest: float, known: dict[int, Ends]) -> Ends:
    waiting = [layer]
    while waiting:
        current = waiting[-1]
        is_scaled = current.kind == "scale" and largest == np.inf
        sources = [tensor.producer for tensor in current.inputs] if is_scaled or _passes(current) else []
        missing = [source for source in sources if id(source) not in known]
        if missing:
            waiting += missing
            continue
        if is_scaled:
            known[id(current)] = _scaled(current, known[id(sources[0])])
        elif sources:
            known[id(current)] = _within(current, [known[id(source)] for source in sources])
        elif current.kind == "input" or _passes(current) or not _has_bounds(current):
            known[id(current)] = np.array(-np.inf), np.array(np.inf)
        else:
            low, high = layer_type(current.kind).bounds(current, largest)
            known[id(current)] = np.asarray(low), np.asarray(high)
        waiting.pop()
    return known[id(layer)]


def _scaled(layer: Layer, ends: Ends) -> Ends:
    """The bounds of ``factors * x + bias``; a factor 0 gives the bias for any number."""
    settings = ScaleSettings.of(layer)
    with np.errstate(invalid="ignore"):
        first, second = (np.where(settings.factors == 0, 0.0, settings.factors * end) + settings.bias for end in ends)
    return np.minimum(first, second), np.maximum(first, second)


def _within(layer: Layer, sources: list[Ends]) -> Ends:
    """The bounds of a layer whose result is within the range of its inputs, and a border."""
    if not layer_type(layer.kind).each_channel_alone:
        sources = [(np.min(low), np.max(high)) for low, high in sources]
    border = np.array(layer.settings.value if isinstance(layer.settings, PadSettings) else 0.0)
    lows, highs = zip((border, border), *sources, strict=True)
    return reduce(np.minimum, lows), reduce(np.maximum, highs)


_BEYOND = np.array([0.0, 0.1, 1.0, 10.0, 1e3, 1e6])
"""Numbers beyond an end of a range, in lengths of the range."""

Ranges = Mapping[str, tuple[float, float, float]]
"""(lowest, highest) number of a tensor's integers, and that of one unit, by name."""


def limited_ends(
    tensor: NetworkTensor,
    takers: list[Layer],
    ranges: Ranges,
    known: dict[int, Ends],
) -> tuple[dict[str, list[int] | None], list[str]]:
    """Return the ends of a tensor's range, "low" and "high", at which nothing is lost, with the channels (None: all),
    and those of them that cut numbers off.

    There its function has its own bound, such as the 6 of a ReLU6, or all functions that take it stay as they are.

    Args:
        tensor: A tensor of a network.
        takers: The layers that read it, none of an output.
        ranges: Of all integer tensors.
        known: As of :func:`bounds_of`, for an infinite input.
    """
    low, high, unit = ranges[tensor.name]
    least, most = _channel_bounds(tensor.producer, np.inf, known)
    most_lost = unit * (1 + 1e-6)  # TFLite's tanh, in units of 1/128, ends at 127
    ends = {
        "low": (low - (high - low) * _BEYOND, least >= low - most_lost),
        "high": (high + (high - low) * _BEYOND, most <= high + most_lost),
    }
    limited: dict[str, list[int] | None] = {}
    cut = []
    for name, (numbers, are_bounds) in ends.items():
        if np.all(are_bounds):
            limited[name] = None
        elif takers and all(_stays(layer, numbers, ranges) for layer in takers):
            limited[name] = None
            cut.append(name)
        elif np.any(are_bounds):
            limited[name] = np.flatnonzero(are_bounds).tolist()
    return limited, cut


def _stays(layer: Layer, numbers: np.ndarray, ranges: Ranges) -> bool:
    """Return whether a function gives the same element, or the next, for all numbers."""
    cubes = np.broadcast_to(numbers[:, None, None, None], (len(numbers), layer.inputs[0].shape[0], 1, 1))
    return bool(np.all(same_results(layer, cubes, cubes[:1], ranges)))


def same_results(layer: Layer, cubes: np.ndarray, others: np.ndarray, ranges: Ranges) -> np.ndarray:
    """Return where a layer is a function that gives the same element, or the next, for both cubes (N, C, H, W)."""
    if layer.name not in ranges or layer.kind not in ("function", "clip", "relu"):
        return np.zeros(cubes.shape, bool)
    with np.errstate(all="ignore"):
        results, other_results = (layer_type(layer.kind).form(layer, [cube]) for cube in (cubes, others))
    # Calibration ends an argument where the rounded result changes last, half a unit before the result itself.
    same: np.ndarray = np.abs(results - other_results) <= 1.6 * ranges[layer.name][2]
    return same


def _has_bounds(layer: Layer) -> bool:
    """Return whether its kind knows the bounds of a result by itself."""
    return type(layer_type(layer.kind)).bounds is not LayerType.bounds


def _passes(layer: Layer) -> bool:
    """Return whether the result of a layer is within the range of its inputs, and a border."""
    if layer.kind == "input" or _has_bounds(layer):
        return False
    return layer_type(layer.kind).keeps_scale or layer_type(layer.kind).stays_within


def own_scale(layer: Layer, precision: str) -> float | None:
    """The scale of its result that a layer sets itself; None where it sets none, and for inputs of the network."""
    return None if layer.kind == "input" else layer_type(layer.kind).own_scale(layer, precision)
