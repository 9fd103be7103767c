"""Bound inputs as people hold them: files, pictures, real numbers, elements, and several images at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.checked import as_array, raw_bytes
from nvdla.errors import FormatError
from nvdla.tensors.dimg import read_dimg
from nvdla.tensors.files import IMAGE_ENDINGS, INPUT_ENDINGS, ending, fit, read_npy, read_raw
from nvdla.tensors.images import PixelConversion, is_picture, is_pil, load_image, read_pixels
from nvdla.tensors.pixel_numbers import PixelNumbers
from nvdla.tensors.preprocessing import Preprocessing
from nvdla.tensors.real import ScaleMissing, holding_scale, to_elements

Shape = tuple[int, int, int, int]
#: elements or real numbers, raw surfaces, files; a PIL image or a list of images, too
Input = Any


@dataclass(frozen=True)
class InputForm:
    """What an input takes: ``scale`` is the real value of one unit (None: not known), ``zero`` the element that stands
    for 0; pictures become numbers as the ``model`` says, or else as NVIDIA's runtime does it (``pixels``). ``numbers``:
    its elements are pixels themselves, and pictures are taken as they are."""

    name: str
    shape: Shape
    dtype: np.dtype
    scale: float | None = None
    model: Preprocessing | None = None
    pixels: PixelConversion | None = None
    numbers: PixelNumbers | None = None
    zero: int = 0

    def elements(self, value: Any) -> np.ndarray | bytes:
        """An array (N, C, H, W) of the input's elements, or the bytes of its surface. Raises FormatError.

        Pictures (files, PIL images, uint8 arrays of rows of pixels) are preprocessed; an array of floats holds real
        numbers; one of integers holds elements; a list holds the images of a batch.
        """
        if isinstance(value, InputBatch):
            one = replace(self, shape=(1, *self.shape[1:]))
            return np.concatenate([np.asarray(one.elements(each)) for each in value.images])
        what = f"input {self.name}"
        if isinstance(value, (str, os.PathLike)):
            suffix, what = ending(value, INPUT_ENDINGS, "an input"), os.fspath(value)
            if suffix in IMAGE_ENDINGS:
                return self._picture(value)
            if suffix == ".bin":
                return read_raw(value)
            value = read_npy(value) if suffix == ".npy" else read_dimg(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(raw_bytes(value, what))
        if is_picture(value, self.shape):
            return self._picture(value)
        return self._numbers(as_array(value, what), what)

    def _picture(self, value: Any) -> np.ndarray:
        one: Shape = (1, *self.shape[1:])
        if self.numbers is not None:
            return np.broadcast_to(self.numbers.stored(self._pixels(self.numbers, value, one)), self.shape)
        if self.model is None:
            image = load_image(value, one, self.dtype, self.pixels)
        else:
            image = self._quantised(self.model.cube(value, one))
        return np.broadcast_to(image, self.shape)

    def _pixels(self, numbers: PixelNumbers, value: Any, shape: Shape) -> np.ndarray:
        """A picture's pixels, of which files and arrays have eight bits."""
        wanted = self.pixels or PixelConversion()
        if self.model is not None:
            wanted = PixelConversion(order=self.model.colour, resize=self.model.resize)
        found = read_pixels(value, shape, wanted).astype(np.uint16)
        return found << (numbers.bits - 8)

    def _numbers(self, array: np.ndarray, what: str) -> np.ndarray:
        if array.dtype.kind != "f" or array.dtype == self.dtype:
            if self.numbers is not None and array.dtype.kind == "u":
                return self.numbers.stored(fit(array, self.shape, array.dtype, what))
            return fit(array, self.shape, self.dtype, what)
        return self._quantised(fit(array, self.shape, array.dtype, what))

    def _quantised(self, values: np.ndarray) -> np.ndarray:
        if self.numbers is not None:
            return self.numbers.elements(values)
        scale = 1.0 if self.scale is None and self.dtype.kind == "f" else self.scale
        if scale is None:
            raise ScaleMissing(self.name, self.dtype, "input", holding_scale(values, self.dtype))
        return to_elements(values, scale, self.dtype, self.zero)


@dataclass(frozen=True)
class InputBatch:
    """The images of one run of a network that takes several at a time."""

    images: tuple[Any, ...]


def by_position(inputs: Any, names: Sequence[str]) -> list[Input]:
    """The inputs of a network, given by name, in bind order, or one alone, in bind order. Raises FormatError."""
    if isinstance(inputs, Mapping):
        unknown = [str(name) for name in inputs if name not in names]
        missing = [name for name in names if name not in inputs]
        if unknown or missing:
            problem = f"no input is called {', '.join(unknown)}" if unknown else f"{', '.join(missing)} is missing"
            raise FormatError(f"{problem}; the network's inputs are {', '.join(names) or 'none'}")
        return [inputs[name] for name in names]
    if isinstance(inputs, (list, tuple)) and len(names) == 1 < len(inputs) and all(map(is_image, inputs)):
        given = [inputs]
    elif isinstance(inputs, (list, tuple)):
        given = list(inputs)
    else:
        given = [] if inputs is None else [inputs]
    if len(given) != len(names):
        raise FormatError(
            f"the network has {len(names)} inputs ({', '.join(names) or 'none'}), {len(given)} were given"
        )
    return given


def is_image(value: Any) -> bool:
    """Whether a value is one image of a list of images: a file, a picture, an array."""
    if isinstance(value, np.ndarray):
        return value.ndim > 1
    return isinstance(value, (str, os.PathLike, InputBatch)) or is_pil(value)


def per_run(value: Any, shape: tuple[int, ...], name: str) -> list[Any]:
    """What was given for one input, run by run: a list of images or a batch array holds those of several runs.

    Raises FormatError where their number is no multiple of what the network takes at a time.
    """
    listed = isinstance(value, (list, tuple)) and bool(value) and all(map(is_image, value))
    stacked = isinstance(value, np.ndarray) and value.ndim == 4 and _is_batch(value, shape)
    if not listed and not stacked:
        return [value]
    images = list(value)
    count = shape[0]
    if count == 1 or _holds_batches(images, shape):
        return images
    if len(images) % count:
        raise FormatError(f"input {name}: {len(images)} images, but the network takes {count} at a time")
    return [InputBatch(tuple(images[place : place + count])) for place in range(0, len(images), count)]


def _is_batch(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """More images than the network takes at a time, or pictures (N, H, W, C)."""
    return is_picture(array[0], shape) if array.shape[1:] != shape[1:] else len(array) > shape[0]


def _holds_batches(images: list[Any], shape: tuple[int, ...]) -> bool:
    """Each of the list is for a whole run already."""
    return all(isinstance(each, np.ndarray) and each.shape == tuple(shape) for each in images) or all(
        isinstance(each, (str, os.PathLike)) and Path(each).suffix.lower() == ".bin" for each in images
    )
