"""How a model takes images: what ``nvdla compile`` was told, and keeps in the layer file.

(How NVIDIA's own runtime turns images into elements is :mod:`nvdla.tensors.images`.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.tensors.images import PixelConversion, read_pixels

CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Preprocessing:
    """How the pixels 0..255 of an image become the numbers that a model takes: ``(pixel - mean) * scale``, a number
    each or one a channel, channels in the order ``colour``; ``layout`` of the input; ``resize`` images of another
    size."""

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    colour: str = "rgb"
    layout: str = "nchw"
    resize: bool = False

    def document(self) -> dict[str, Any]:
        """The settings as plain data."""
        return {key: list(each) if isinstance(each, tuple) else each for key, each in asdict(self).items()}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Preprocessing:
        """From a sidecar. Raises FormatError for what is no preprocessing."""
        try:
            return cls(
                tuple(float(each) for each in document["mean"]),
                tuple(float(each) for each in document["scale"]),
                str(document["colour"]),
                str(document["layout"]),
                bool(document["resize"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"preprocessing of the layer file: {error!r} is wrong or missing") from None

    def image(self, path: Any, shape: tuple[int, ...]) -> np.ndarray:
        """An image (a file, a PIL image, a uint8 array (H, W, C)) as one input of this shape (1, C, H, W) or, in layout
        nhwc, (1, H, W, C); float32."""
        name = path if isinstance(path, (str, os.PathLike)) else "the image"
        if len(shape) not in (3, 4):
            raise FormatError(f"{name}: the input of shape {shape_text(shape)} takes no image")
        channels, height, width = shape[-3:] if self.layout == "nchw" else (shape[-1], *shape[-3:-1])
        cube = read_pixels(path, (1, channels, height, width), PixelConversion(order=self.colour, resize=self.resize))
        return self.numbers(cube.astype(np.float32), name).reshape(shape)

    def cube(self, path: Any, shape: tuple[int, ...]) -> np.ndarray:
        """An image as a bound cube (1, C, H, W), or (1, H, W, C) where the model's input is used as it is."""
        rows_first = self.layout == "nhwc" and shape[1] not in CHANNELS and shape[3] in CHANNELS
        one = Preprocessing(self.mean, self.scale, self.colour, "nhwc" if rows_first else "nchw", self.resize)
        return one.image(path, shape)

    def numbers(self, pixels: np.ndarray, what: object = "pixels") -> np.ndarray:
        """Pixels (1, C, H, W) as the model takes them."""
        for name, each in (("mean", self.mean), ("scale", self.scale)):
            if len(each) not in (1, pixels.shape[1]):
                raise FormatError(f"{what}: {len(each)} numbers of {name} for {pixels.shape[1]} channels")
        mean, scale = (np.asarray(each, np.float32).reshape(1, -1, 1, 1) for each in (self.mean, self.scale))
        values = (pixels - mean) * scale
        return values if self.layout == "nchw" else values.transpose(0, 2, 3, 1)
