"""Inputs whose elements are unsigned pixels: CDMA makes of them the numbers that a network computes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.errors import FormatError

BITS = (8, 10, 12, 16)


@by_annotations
@dataclass(frozen=True)
class PixelNumbers:
    """Pixels of 0 .. 2**``bits`` - 1 that stand for the real numbers ``(pixel - mean) * scale``, a number each or one a
    channel.

    Raises FormatError for scales that are not positive, numbers that are not finite, other bits than 8, 10, 12, 16.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise FormatError(f"pixels of {self.bits} bits: known are 8, 10, 12 and 16")
        if not self.mean or not self.scale or not np.all(np.isfinite([*self.mean, *self.scale])):
            raise FormatError(f"pixels with mean {self.mean} and scale {self.scale}: must be finite numbers")
        if min(self.scale) <= 0:
            raise FormatError(f"pixels with scale {min(self.scale):g}: must be above 0")

    @property
    def largest(self) -> int:
        """The largest pixel."""
        return (1 << self.bits) - 1

    def channels(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale (count,) of each channel. Raises FormatError for as many numbers as fit none."""
        for name, each in (("mean", self.mean), ("scale", self.scale)):
            if len(each) not in (1, count):
                raise FormatError(f"pixels: {len(each)} numbers of {name} for {count} channels")
        return np.resize(np.array(self.mean), count), np.resize(np.array(self.scale), count)

    def elements(self, values: np.ndarray) -> np.ndarray:
        """Real numbers (..., C, H, W) as the nearest pixels, in the bits of the input's signed elements.

        Raises FormatError for NaN.
        """
        mean, scale = (each[:, None, None] for each in self.channels(values.shape[-3]))
        pixels = np.rint(values.astype(np.float64) / scale + mean)
        if np.isnan(pixels).any():
            raise FormatError("values are NaN; pixels have none")
        return self.stored(np.clip(pixels, 0, self.largest))

    def stored(self, pixels: np.ndarray) -> np.ndarray:
        """Whole numbers 0 .. largest as the input's signed elements of the same bits."""
        unsigned = np.uint8 if self.bits == 8 else np.uint16
        return np.ascontiguousarray(pixels.astype(unsigned)).view(np.int8 if self.bits == 8 else np.int16)

    def document(self) -> dict[str, Any]:
        """As plain data."""
        return {"mean": list(self.mean), "scale": list(self.scale), "bits": self.bits}

    @classmethod
    def of(cls, document: Any) -> PixelNumbers:
        """From a layer file. Raises FormatError for what is none."""
        try:
            mean, scale = (tuple(float(each) for each in document[name]) for name in ("mean", "scale"))
            return cls(mean, scale, int(document["bits"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"pixels of the layer file: {error!r} is wrong or missing") from None


def pixels_of(document: Any) -> Mapping[str, PixelNumbers]:
    """The inputs of a layer file that take pixels, by name. Raises FormatError."""
    if not isinstance(document, Mapping):
        return {}
    return {str(name): PixelNumbers.of(each) for name, each in document.items()}
