"""A model as matching sees it: layers between points. A point is a value at one time: what one layer makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

Shape = tuple[int, int, int]

#: what a layer does, as far as it decides which engine does it
KINDS = ("conv", "deconv", "pool", "affine", "relu", "lut", "eltwise", "norm", "softmax", "concat", "slice", "pass")
#: kinds that the SDP does element by element
ELEMENTWISE = ("affine", "relu", "lut", "eltwise")
#: kinds that move no data where the compiler is good
SILENT = ("pass", "slice", "concat")


@dataclass(frozen=True)
class ModelLayer:
    """One layer. ``inputs`` and ``outputs`` are points; ``shape`` (C, H, W) is that of its first output, None where it
    is not known; ``window`` is (rows, columns), ``stride`` and ``dilation`` likewise; ``weights`` (K, C, R, S) of a
    convolution; ``whole``: an inner product; ``skewed``: another dilation down than across, which
    NVIDIA's compiler takes the other way round; ``adds``: an affine layer has an addend; ``cpu``: the processor may do
    it."""

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    shape: Shape | None
    window: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    weights: np.ndarray | None = field(default=None, repr=False, compare=False)
    whole: bool = False
    skewed: bool = False
    adds: bool = True
    cpu: bool = False

    @property
    def output(self) -> int:
        """Its first output."""
        return self.outputs[0]


@dataclass(frozen=True)
class ModelGraph:
    """``layers`` in order; ``inputs`` and ``outputs``: points by name; ``shapes`` of points (C, H, W)."""

    name: str
    layers: Sequence[ModelLayer]
    inputs: dict[str, int]
    outputs: dict[str, int]
    shapes: dict[int, Shape | None] = field(repr=False)

    @cached_property
    def consumers(self) -> dict[int, list[ModelLayer]]:
        """Layers that take a point."""
        found: dict[int, list[ModelLayer]] = {}
        for layer in self.layers:
            for point in dict.fromkeys(layer.inputs):
                found.setdefault(point, []).append(layer)
        return found

    @cached_property
    def producer(self) -> dict[int, ModelLayer]:
        """The layer that makes a point."""
        return {point: layer for layer in self.layers for point in layer.outputs}

    def same(self, point: int) -> list[int]:
        """A point and those that are the same bytes, or some of them: behind layers that only rename or cut."""
        return self._behind(point, ("pass", "slice"))

    def further(self, point: int) -> list[int]:
        """A point, those of the same bytes, and what it is a part of."""
        return self._behind(point, SILENT)

    def _behind(self, point: int, kinds: tuple[str, ...]) -> list[int]:
        found = [point]
        for each in found:
            for layer in self.consumers.get(each, ()):
                if layer.kind in kinds:
                    found += [output for output in layer.outputs if output not in found]
        return found

    def takers(self, point: int, kinds: Sequence[str]) -> Iterator[ModelLayer]:
        """Layers of some kinds that take a point, or what is the same bytes."""
        for each in self.same(point):
            for layer in self.consumers.get(each, ()):
                if layer.kind in kinds:
                    yield layer

    def kinds_behind(self, point: int) -> set[str]:
        """Kinds of all layers that take a point or what it is a part of; "output" where the model gives it out."""
        points = self.further(point)
        kinds = {layer.kind for each in points for layer in self.consumers.get(each, ())}
        kinds |= {"cpu" for each in points for layer in self.consumers.get(each, ()) if layer.cpu}
        return kinds | ({"output"} if set(points) & set(self.outputs.values()) else set())

    def joined(self, parts: Sequence[int]) -> list[int]:
        """Points that consist of these, in this order."""
        return [
            layer.output
            for layer in self.layers
            if layer.kind == "concat" and self._taken(layer.output, parts, 0) == len(parts)
        ]

    def _taken(self, point: int, parts: Sequence[int], place: int) -> int:
        """How many of the parts are used up when the point has been made of them from ``place`` on; -1: it cannot."""
        if place < len(parts) and point in self.same(parts[place]):
            return place + 1
        layer = self.producer.get(point)
        if layer is None or layer.kind not in ("concat", "pass"):
            return -1
        for each in layer.inputs:
            place = self._taken(each, parts, place)
            if place < 0:
                return -1
        return place
