"""Inputs of a network: data sets in directories, preprocessing, arrays for the tensors.

(How NVIDIA's own runtime turns images into elements is :mod:`nvdla.tensors.images`.)
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nvdla.errors import ArgumentTypeError, FormatError, shape_text
from nvdla.tensors.files import (
    IMAGE_ENDINGS,
    INPUT_ENDINGS,
    ending,
    fit,
    has_axes,
    read_dimg,
    read_npy,
    read_raw,
    several_images,
)
from nvdla.tensors.images import INTERPOLATIONS, MAX_SIDE, PixelConversion, is_picture, is_pil, load_image, read_pixels
from nvdla.tensors.real import ModelValue, PixelNumbers, ScaleMissing, holding_scale, to_elements
from nvdla.util.arguments import as_array, described, raw_bytes
from nvdla.util.escaping import Document


def holds_pixels(array: np.ndarray) -> bool:
    """Check whether a sample of a data set is a picture: bytes are, regardless of the order of their axes."""
    return bool(array.dtype == np.uint8)


def planes(array: np.ndarray, shape: tuple[int, ...], conversion: PixelConversion | None = None) -> np.ndarray:
    """Return pixels (H, W), (H, W, C), (C, H, W), one of these in a batch, or flat as (1, C, H, W), with the size of
    ``shape`` (C, H, W) as ``conversion`` specifies. Raises FormatError."""
    channels, height, width = shape
    array = array[0] if array.ndim == 4 and len(array) == 1 else array
    conversion = conversion or PixelConversion()
    is_size = array.size == channels * height * width
    if array.ndim >= 2 and (conversion.crop or (conversion.resize and not is_size)):
        array = _resized(array, channels, (width, height), conversion)
    text = f"sample: shape: must be {channels}x{height}x{width} (input), got {shape_text(array.shape)}."
    if array.size != channels * height * width:
        if channels == 1 and array.shape[1:] == (height, width):
            raise FormatError(f"{text} Give several pictures with their channel, as {len(array)}x1x{height}x{width}.")
        raise FormatError(f"{text} Scale the images, or use --resize.").about("resize")
    if array.ndim == 3 and array.shape == (height, width, channels) and channels > 1:
        array = array.transpose(2, 0, 1)
    if not has_axes(array, shape):
        raise FormatError(f"{text} Are height and width exchanged?")
    return array.reshape(1, channels, height, width)


def _resized(array: np.ndarray, channels: int, size: tuple[int, int], conversion: PixelConversion) -> np.ndarray:
    """Each channel scaled and cropped as images are; (C, H, W)."""
    from PIL import Image

    if array.ndim == 2:
        array = array[None]
    elif array.shape[-1] == channels:
        array = array.transpose(2, 0, 1)
    if len(array) != channels:
        raise FormatError(f"sample: channels: must be {channels} (input), got shape {shape_text(array.shape)}")
    planes = [conversion.fit(Image.fromarray(plane), "a sample", size) for plane in array]
    return np.stack([np.asarray(plane, np.uint8) for plane in planes])


CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of the pixels 0..255 of an image to the numbers that a model takes: ``(pixel - mean) * scale``.

    ``mean`` and ``scale`` are one number or one per channel, the channels in the order ``color``; empty: those that the
    file of the model states when it is compiled, else 0 and 1. ``layout`` of the input: nchw, nhwc, or auto, the one
    that has 1, 3 or 4 channels. ``resize``, ``crop`` and ``interpolation``: as of :class:`PixelConversion`. ``digit``:
    the model takes digits in the form of MNIST, into which every picture is converted
    (:func:`nvdla.tensors.images.find_digit`). ``range``: smallest and greatest number of the calibration samples, which
    errors name; the compiler sets it.
    """

    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    color: str = "rgb"
    layout: str = "auto"
    resize: bool | int = False
    digit: bool = False
    crop: int = 0
    interpolation: str = "pil"
    range: tuple[float, ...] = ()

    def divided(self, std: Sequence[float]) -> Preprocessing:
        """Return the conversion ``(pixel - mean) / std * scale``. Raises FormatError."""
        scale = self.stated.scale
        count = max(len(scale), len(std))
        if 0 in std or not np.isfinite(std).all() or {len(scale), len(std)} - {1, count}:
            raise FormatError(f"std: must be one number or one per channel, finite and not 0, got {tuple(std)}")
        scales, divisors = (tuple(values) * (count // len(values)) for values in (scale, std))
        return replace(self, scale=tuple(scale / divisor for scale, divisor in zip(scales, divisors, strict=True)))

    @property
    def stated(self) -> Preprocessing:
        """The conversion with numbers for ``mean`` and ``scale``."""
        return replace(self, mean=self.mean or (0.0,), scale=self.scale or (1.0,))

    def document(self) -> Document:
        """The settings as plain data; ``digit``, ``crop``, ``interpolation`` and ``range`` only where they are set."""
        numbers = asdict(self.stated)
        settings = {key: list(value) if isinstance(value, tuple) else value for key, value in numbers.items()}
        for key in ("digit", "crop", "interpolation", "range"):
            if getattr(self, key) == getattr(Preprocessing, key):
                del settings[key]
        return settings

    def changed_by(self, given: PixelConversion | None) -> Preprocessing:
        """Return the conversion with what is given for the images of a run.

        Numbers (mean, std, scale) replace the whole conversion except the order of the channels; an order or sizes
        alone replace those of the conversion.

        Raises:
            FormatError: A number is 0, not finite, or not one per channel.
        """
        if given is None:
            return self
        color = given.color or self.color
        sizes: Document = {"resize": given.resize, "crop": given.crop, "interpolation": given.interpolation}
        if given.mean or given.std or given.scale:
            stated = Preprocessing(given.mean, given.scale, color, self.layout, digit=given.digit, **sizes)
            return stated.divided(given.std) if given.std else stated
        return (
            replace(self, color=color, digit=False, **sizes)
            if given.resize or given.crop
            else replace(self, color=color)
        )

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Preprocessing:
        """Read the preprocessing of a layer file. Raises FormatError if it is malformed."""
        try:
            return cls(
                tuple(float(number) for number in document["mean"]),
                tuple(float(number) for number in document["scale"]),
                str(document["color"]),
                str(document["layout"]),
                _side(document["resize"]),
                bool(document.get("digit", False)),
                int(_side(document.get("crop", 0))),
                _interpolation(document.get("interpolation", "pil")),
                tuple(float(number) for number in document.get("range", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"preprocessing of the layer file: must have correct fields, but {error!r} is wrong or missing"
            ) from None

    @property
    def conversion(self) -> PixelConversion:
        """The changes to pixels, before they become numbers."""
        sizes = self.crop, self.interpolation
        return PixelConversion((), (), (), self.color, self.resize, self.digit, *sizes)

    def image(self, path: object, shape: tuple[int, ...]) -> np.ndarray:
        """An image (a file, a PIL image, a uint8 array (H, W, C)) as one float32 input of this shape."""
        name = path if isinstance(path, (str, os.PathLike)) else "the image"
        channels, height, width = self.cube_shape(shape, name)
        cube = read_pixels(path, (1, channels, height, width), self.conversion)
        return self._as_input(self.numbers(cube.astype(np.float32), name), shape)

    def array(self, pixels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Convert a sample of a data set to one float32 input of this shape.

        The sample is uint8 (H, W), (H, W, C), (C, H, W) or flat with the channels R, G, B. Raises FormatError.
        """
        cube_shape = self.cube_shape(shape, "a sample of pixels")
        return self._as_input(self.numbers_of_rgb(planes(pixels, cube_shape, self.conversion)), shape)

    def takes(self, value: object, shape: tuple[int, ...]) -> bool:
        """Check whether a value is a picture for an input of this shape, not its numbers."""
        if len(shape) not in (3, 4):
            return False
        return is_picture(value, (1, *self.cube_shape(shape, "input")))

    def _is_channels_last(self, shape: tuple[int, ...]) -> bool:
        if self.layout == "auto":
            return shape[-1] in CHANNELS and shape[-3] not in CHANNELS
        return self.layout == "nhwc"

    def cube_shape(self, shape: tuple[int, ...], name: object = "a picture") -> tuple[int, int, int]:
        """Channels, height and width of an input. Raises FormatError."""
        if len(shape) not in (3, 4):
            raise FormatError(f"{name}: input: must have shape 1xCxHxW to accept an image, got {shape_text(shape)}")
        first, second, third = shape[-3:]
        return (third, first, second) if self._is_channels_last(shape) else (first, second, third)

    def _as_input(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """One picture (1, C, H, W) in the shape of an input. Raises FormatError for an input of several."""
        if len(shape) == 4 and shape[0] != 1:
            raise FormatError(f"one picture for an input of shape {shape_text(shape)}: must be {shape[0]} pictures")
        return (values.transpose(0, 2, 3, 1) if self._is_channels_last(shape) else values).reshape(shape)

    def numbers_of_rgb(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels (N, C, H, W) with the channels R, G, B as the model takes them."""
        return self.numbers(pixels[:, :: 1 if self.color == "rgb" else -1].astype(np.float32))

    def cube(self, path: object, shape: tuple[int, ...]) -> np.ndarray:
        """An image as a bound cube (1, C, H, W), or (1, H, W, C) where the model's input is used unchanged."""
        return replace(self, layout="auto").image(path, shape)

    def numbers(self, pixels: np.ndarray, what: object = "pixels") -> np.ndarray:
        """The pixels (N, C, H, W) as the numbers of the model, in the same layout."""
        stated = self.stated
        for name, numbers in (("mean", stated.mean), ("scale", stated.scale)):
            if len(numbers) not in (1, pixels.shape[1]):
                raise FormatError(
                    f"{what}: {name}: must be one number or one per channel ({pixels.shape[1]}), got {len(numbers)}"
                )
        mean, scale = (np.asarray(numbers, np.float32).reshape(1, -1, 1, 1) for numbers in (stated.mean, stated.scale))
        return (pixels - mean) * scale


PictureConversion = Preprocessing | PixelConversion
"""Conversion of the pictures of a run."""


def pixel_conversion(given: object) -> PixelConversion | None:
    """Return what is given as ``preprocessing`` of a run as a conversion of pixels.

    A :class:`Preprocessing` replaces that of the network, also where it has no numbers.

    Raises:
        ArgumentTypeError: It is neither a Preprocessing nor a PixelConversion.
    """
    if isinstance(given, Preprocessing):
        stated = given.stated
        return replace(given.conversion, mean=stated.mean, scale=stated.scale)
    if given is not None and not isinstance(given, PixelConversion):
        wanted = "a Preprocessing (nvdla.tensors.inputs)"
        raise ArgumentTypeError(f"preprocessing must be {wanted}, got {described(given)}")
    return given


def _interpolation(value: object) -> str:
    """The interpolation of a layer file. Raises ValueError."""
    if value not in INTERPOLATIONS:
        raise ValueError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, got {str(value)[:40]}")
    return str(value)


def _side(value: object) -> bool | int:
    """A size of a layer file. Raises ValueError."""
    if not isinstance(value, bool | int) or not 0 <= value <= MAX_SIDE:
        raise ValueError(f"sizes must be 0 .. {MAX_SIDE}, got {str(value)[:40]}")
    return value


def preprocessing_for(
    document: Mapping[str, Any] | None, given: PixelConversion | None, scale: float | None
) -> Preprocessing | None:
    """Return the conversion of pictures to real numbers for an input.

    Args:
        document: The preprocessing of the layer file, if it states one.
        given: What is given for the images of a run; None: nothing, ``PixelConversion()``: the conversion of NVIDIA's
            runtime.
        scale: The scale of an integer input, if it is known.

    Returns:
        The conversion; None where pixels become elements as in NVIDIA's runtime.

    Raises:
        FormatError: The preprocessing of the layer file is malformed, or a given number is not allowed.
    """
    if document is not None and given != PixelConversion():
        return Preprocessing.of(document).changed_by(given)
    if given is None or scale is None or not given.is_normalization:
        return None
    return Preprocessing(color="bgr").changed_by(given)


Shape = tuple[int, int, int, int]


class Picture(Protocol):
    """A PIL image."""

    @property
    def mode(self) -> str:
        """Pixel format, as "RGB"."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""

    def tobytes(self) -> bytes:
        """Return the pixels."""


RawSurface = np.ndarray | bytes | bytearray | memoryview
"""Bytes of a bound surface."""

Image = RawSurface | str | os.PathLike[str] | Picture
"""Elements or real numbers, the bytes of a surface, a file, or a PIL image."""


def batch_of(shapes: Iterable[Sequence[int]]) -> int:
    """Return the first dimension that all shapes (N, C, H, W) have; 1 without such a shape, or with different ones."""
    batches = {shape[0] for shape in shapes if len(shape) == 4}
    return batches.pop() if len(batches) == 1 else 1


Input = Image | Sequence[Image]
"""One input of one run, or a list of the images of several."""


@dataclass(frozen=True)
class InputForm:
    """Elements of an input: ``scale`` is the real value of one unit (None: not known), ``zero`` the element for 0.
    Pictures become numbers as the ``model`` specifies, or else as NVIDIA's runtime does it (``pixels``). ``numbers``:
    its elements are pixels themselves, and pictures are taken as they are. ``value``: the model's input that the tensor
    is taken from."""

    name: str
    shape: Shape
    dtype: np.dtype
    scale: float | None = None
    model: Preprocessing | None = None
    pixels: PixelConversion | None = None
    numbers: PixelNumbers | None = None
    zero: int = 0
    value: ModelValue | None = None

    @property
    def whole(self) -> ModelValue | None:
        """The model's input, where the tensor has other elements than its planes: values have its shape then."""
        return None if self.value is None else self.value.rearranged(self.shape[1:])

    def elements(self, value: object) -> np.ndarray | bytes:
        """An array (N, C, H, W) of the input's elements, or the bytes of its surface. Raises FormatError.

        Pictures (files, PIL images, uint8 arrays of rows of pixels) are preprocessed, and so are all uint8 arrays where
        the conversion of pixels is known; an array of floats holds real numbers; one of other integers holds elements;
        a list holds the images of a batch.
        """
        if isinstance(value, InputBatch):
            single_form = replace(self, shape=(1, *self.shape[1:]))
            return np.concatenate([np.asarray(single_form.elements(image)) for image in value.images])
        what = f"input {self.name}"
        if isinstance(value, (str, os.PathLike)):
            suffix, what = ending(value, INPUT_ENDINGS, "an input"), os.fspath(value)
            if suffix in IMAGE_ENDINGS:
                return self._picture(value)
            if suffix == ".bin":
                return read_raw(value)
            if suffix == ".dimg":  # elements as NVIDIA's runtime stores them, also those of eight bits
                return self._numbers(read_dimg(value), what)
            value = read_npy(value)
        elif isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(raw_bytes(value, what))
        if self._takes(value):
            return self._picture(value)
        array = as_array(value, what)
        if array.ndim == 4 and len(array) == self.shape[0] == 1 and self._takes(array[0]):
            return self._picture(array[0])
        if holds_pixels(array) and self.model is not None and self.numbers is None:
            if self.whole is not None and self._is_whole(array):
                return self._preprocessed(self.model, self._of_whole(self._numbers_of_pixels(array, self.whole.shape)))
            pixels = fit(array, self.shape, array.dtype, what)
            return self._preprocessed(self.model, self.model.numbers_of_rgb(pixels))
        return self._numbers(array, what)

    def real(self, value: object) -> np.ndarray | None:
        """Return the real numbers of the ``whole`` input that a picture, pixels or an array of them stand for.

        None for elements, and for a value of another shape. Raises FormatError.
        """
        assert self.whole is not None
        model, suffix = self.model or Preprocessing(), ""
        if isinstance(value, (str, os.PathLike)):
            suffix = Path(value).suffix.lower()
            value = read_npy(value) if suffix == ".npy" else value
        if suffix in IMAGE_ENDINGS or self._takes(value):
            return model.image(value, self.whole.shape)
        array = np.empty(0) if isinstance(value, (str, os.PathLike)) else as_array(value, f"input {self.name}")
        if not self._is_whole(array) or array.dtype.kind == "i":
            return None
        return self._numbers_of_pixels(array, self.whole.shape) if holds_pixels(array) else array

    def _takes(self, value: object) -> bool:
        if self.whole is None:
            return is_picture(value, self.shape)
        return (self.model or Preprocessing()).takes(value, self.whole.shape)

    def _is_whole(self, array: np.ndarray) -> bool:
        """Check whether an array has the axes of the model's input; elements may be those of the tensor."""
        assert self.whole is not None
        shape = self._whole_shape()
        if array.size != math.prod(shape) or not has_axes(array, shape):
            return False
        is_elements = (array.dtype, array.shape) == (self.dtype, self.shape)
        return not is_elements and (array.dtype.kind != "i" or not has_axes(array, self.shape))

    def _whole_shape(self) -> tuple[int, ...]:
        assert self.whole is not None
        return (self.shape[0], *self.whole.shape[1:]) if self.whole.shape[:1] == (1,) else self.whole.shape

    def _of_whole(self, value: np.ndarray) -> np.ndarray:
        """The tensor of a value of the model's input, one image or a batch."""
        assert self.whole is not None
        images = value.size // math.prod(self.whole.shape)
        return self.whole.elements(value, (images, *self.shape[1:]))

    def _numbers_of_pixels(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        model = self.model or Preprocessing()
        if len(shape) not in (3, 4):
            return model.numbers(array.reshape(1, 1, 1, -1).astype(np.float32))
        images = array.reshape(-1, *array.shape[-3:]) if array.ndim > 3 else array[None]
        return np.concatenate([model.array(image, shape) for image in images])

    def _picture(self, value: object) -> np.ndarray:
        single_shape: Shape = (1, *self.shape[1:])
        if self.whole is not None:
            model = self.model or Preprocessing()
            image = self._preprocessed(model, self._of_whole(model.image(value, self.whole.shape)))
            return np.broadcast_to(image, self.shape)
        if self.numbers is not None:
            return np.broadcast_to(self.numbers.stored(self._pixels(self.numbers, value, single_shape)), self.shape)
        if self.model is None:
            image = load_image(value, single_shape, self.dtype, self.pixels)
        else:
            image = self._preprocessed(self.model, self.model.cube(value, single_shape))
        return np.broadcast_to(image, self.shape)

    def _preprocessed(self, model: Preprocessing, values: np.ndarray) -> np.ndarray:
        check_pixels(values, self.scale, self.zero, self.dtype, self.name, model.range)
        return self._quantized(values)

    def _pixels(self, numbers: PixelNumbers, value: object, shape: Shape) -> np.ndarray:
        """A picture's pixels, of which files and arrays have eight bits."""
        wanted = self.pixels or PixelConversion()
        if self.model is not None:
            wanted = self.model.conversion
        stored = read_pixels(value, shape, wanted).astype(np.uint16)
        return stored << (numbers.bits - 8)

    def _numbers(self, array: np.ndarray, what: str) -> np.ndarray:
        has_others = self.value is not None and self.value.units is not None and self.dtype != np.int8
        if has_others and array.dtype.kind == "i" and array.dtype != self.dtype:
            raise FormatError(
                f"{what}: must be real numbers (a float array), got {array.dtype}: the integers of the model are not "
                f"the elements of the loadable ({self.dtype}). Give (integers - zero point) * scale"
            )
        if array.dtype.kind != "f" or array.dtype == self.dtype:
            if self.numbers is not None and array.dtype.kind == "u":
                return self.numbers.stored(self._fitted(array, array.dtype, what))
            return self._fitted(array, self.dtype, what)
        return self._quantized(self._fitted(array, array.dtype, what))

    def _fitted(self, array: np.ndarray, dtype: np.dtype, what: str) -> np.ndarray:
        """An array of the model's input or of the tensor as the latter. Raises FormatError for another shape."""
        if self.whole is None:
            return fit(array, self.shape, dtype, what)
        if self._is_whole(array):
            return fit(self._of_whole(array), self.shape, dtype, what)
        if array.size != math.prod(self.shape) or not has_axes(array, self.shape):
            wanted = f"{shape_text(self._whole_shape())} (or {shape_text(self.shape)}, as in the loadable)"
            hint = several_images(array, self._whole_shape())
            raise FormatError(f"{what}: shape must be {wanted}, got {shape_text(array.shape)}.{hint}")
        return fit(array, self.shape, dtype, what)

    def _quantized(self, values: np.ndarray) -> np.ndarray:
        if self.numbers is not None:
            return self.numbers.elements(values)
        scale = 1.0 if self.scale is None and self.dtype.kind == "f" else self.scale
        if scale is None:
            raise ScaleMissing(self.name, self.dtype, "input", holding_scale(values, self.dtype))
        check_range(values, scale, self.zero, self.dtype, self.name)
        return to_elements(values, scale, self.dtype, self.zero)


def check_range(values: np.ndarray, scale: float | None, zero: int, dtype: np.dtype, name: str) -> None:
    """Warn of real numbers far out of the range of an input, such as pixels 0..255 for 0..1, or lost in it."""
    if (ends := _exceeded(values, scale, zero, dtype)) is not None:
        low, high = ends
        warnings.warn(  # the same text for all samples: it is printed once
            f"input {name}: some numbers are far out of its range {low:.3g} to {high:.3g}, to which they are limited. "
            "Normalize arrays as in training, and calibrate with such arrays.",
            stacklevel=2,
        )
    elif scale is not None and dtype.kind != "f" and values.any() and np.all(np.abs(values) <= scale):
        warnings.warn(
            f"input {name}: all numbers are within one unit ({scale:.3g}) of 0. Normalize arrays as in training, and "
            "calibrate with such arrays.",
            stacklevel=2,
        )


def _exceeded(values: np.ndarray, scale: float | None, zero: int, dtype: np.dtype) -> tuple[float, float] | None:
    """The range of an input where a number is farther from it than it is wide, else None."""
    if scale is None or dtype.kind == "f" or not values.size:
        return None
    low, high = (float(scale * (end - zero)) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    is_far = float(values.min()) < 2 * low - high or float(values.max()) > 2 * high - low
    return (low, high) if is_far else None


def check_pixels(
    values: np.ndarray, scale: float | None, zero: int, dtype: np.dtype, name: str, samples: Sequence[float] = ()
) -> None:
    """Check that the numbers of a picture are near the range of an input, unlike pixels 0..255 for the range 0..1.

    ``samples``: the range of the calibration samples, where it is known; that of the elements may have another sign.

    Raises:
        FormatError: A number is farther from the range than the range is wide.
    """
    if (ends := _exceeded(values, scale, zero, dtype)) is not None:
        low, high = samples if len(samples) == 2 else ends
        raise FormatError(
            f"input {name}: a picture must have numbers of about {low:.3g} to {high:.3g}, the calibrated range, got "
            f"{values.min():.3g} to {values.max():.3g}. Compile the model with the --mean and --std of its training, "
            "or give them to the run (Python: run(..., "
            "preprocessing=nvdla.tensors.inputs.Preprocessing(mean, scale)))."
        )


def describe_conversion(shape: Shape, dtype: np.dtype, given: PixelConversion, is_pixels: bool) -> str:
    """Describe the conversion of pictures that no layer file specifies, as far as ``given`` does not state it.
    ``is_pixels``: the elements of the input are pixels."""
    parts, options = [], []
    if is_pixels:
        pass
    elif dtype == np.int8:
        parts.append("pixels halved to 0..127")
    elif not (given.mean or given.std or given.scale):
        parts.append("pixels 0..255 not normalized")
        options += ["--mean", "--std"]
    if shape[1] >= 3 and not given.color:
        parts.append("order bgr")
        options.insert(0, "--color")
    see = f"; see {', '.join(options)}" if options else ""
    return f"{', '.join(parts)} (assumed, as NVIDIA's runtime{see})" if parts else ""


@dataclass(frozen=True)
class InputBatch:
    """The images of one run of a network that takes several at a time."""

    images: tuple[object, ...]


def spread(inputs: Any, names: Sequence[str], owners: Mapping[str, str]) -> Any:
    """Return what is given for the inputs of a model as that for the tensors that are parts of it.

    ``owners``: name of a tensor -> the model's input. Anything else is returned as it is.
    """
    whole = list(dict.fromkeys(owners.get(name, name) for name in names))
    if len(whole) == len(names):
        return inputs
    if isinstance(inputs, Mapping):
        is_whole = set(inputs) == set(whole)
        return {name: inputs[owners.get(name, name)] for name in names} if is_whole else inputs
    is_single = len(whole) == 1 and not isinstance(inputs, (list, tuple))
    return dict.fromkeys(names, inputs) if is_single and inputs is not None else inputs


def by_position(
    inputs: Any, names: Sequence[str], owners: Callable[[], Mapping[str, str]] | None = None
) -> list[Input]:
    """The inputs of a network, given by name, in bind order, or one alone, in bind order. ``owners``: those of
    :func:`spread`. Raises FormatError."""
    if owners is not None and len(names) > 1:
        inputs = spread(inputs, names, owners())
    if isinstance(inputs, Mapping):
        unknown = [str(name) for name in inputs if name not in names]
        missing = [name for name in names if name not in inputs]
        if unknown or missing:
            problem = f"got unknown {', '.join(unknown)}" if unknown else f"but {', '.join(missing)} is missing"
            raise FormatError(f"inputs: must be {', '.join(names) or 'none'}, {problem}")
        return [inputs[name] for name in names]
    if isinstance(inputs, (list, tuple)) and len(names) == 1 < len(inputs) and all(map(is_image, inputs)):
        given: list[Input] = [inputs]
    elif isinstance(inputs, (list, tuple)):
        given = list(inputs)
    else:
        given = [] if inputs is None else [inputs]
    if len(given) != len(names):
        raise FormatError(f"inputs: must be {len(names)} ({', '.join(names) or 'none'}), got {len(given)}")
    return given


def is_image(value: object) -> bool:
    """Check whether a value is one image of a list of images: a file, a picture, an array."""
    if isinstance(value, np.ndarray):
        return value.ndim > 1
    return isinstance(value, (str, os.PathLike, InputBatch)) or is_pil(value)


def per_run(
    value: Any, shape: tuple[int, ...], name: str, whole: Callable[[], Mapping[str, ModelValue]] | None = None
) -> list[Any]:
    """Return the data of one input, run by run: a list of images or a batch array contains those of several runs.

    ``whole``: inputs of the model, by tensor: an array may be of their images, too. Raises FormatError where the number
    of images is not a multiple of what the network takes at a time.
    """
    listed = isinstance(value, (list, tuple)) and bool(value) and all(map(is_image, value))
    stacked = isinstance(value, np.ndarray) and value.ndim == 4 and _is_batch(value, shape)
    if not listed and not stacked:
        is_other = whole is not None and isinstance(value, np.ndarray) and value.shape != shape
        model = whole().get(name) if whole is not None and is_other else None
        if model is None or model.shape[:1] != (1,) or value.shape[1:] != model.shape[1:] or len(value) <= shape[0]:
            return [value]
    images = list(value)
    count = shape[0]
    if count == 1 or _holds_batches(images, shape):
        return images
    if len(images) % count:
        wanted = f"a multiple of {count} (batch of the network)"
        raise FormatError(f"input {name}: images: must be {wanted}, got {len(images)}")
    return [InputBatch(tuple(images[place : place + count])) for place in range(0, len(images), count)]


def _is_batch(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """More images than the network takes at a time, or pictures (N, H, W, C)."""
    _, channels, height, width = shape
    if array.shape[1:] == (channels, height, width):
        return len(array) > shape[0]
    return is_picture(array[0], shape) or (array.shape[1:] == (height, width, channels) and len(array) > shape[0])


def _holds_batches(images: Sequence[object], shape: tuple[int, ...]) -> bool:
    """Each of the list is for a whole run already."""
    return all(_is_whole(image, shape) for image in images)


def _is_whole(image: object, shape: tuple[int, ...]) -> bool:
    if isinstance(image, (str, os.PathLike)):
        suffix = Path(image).suffix.lower()
        if suffix != ".npy":
            return suffix == ".bin"
        image = read_npy(image)
    return isinstance(image, np.ndarray) and image.ndim == 4 and len(image) == shape[0]


def planes_first(values: Mapping[str, np.ndarray], is_channels_last: bool) -> dict[str, np.ndarray]:
    """Return the outputs of a model, those with four axes as (N, C, H, W)."""
    return {
        name: value.transpose(0, 3, 1, 2) if is_channels_last and value.ndim == 4 else value
        for name, value in values.items()
    }


def in_order(array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Pictures (..., C, H, W) for an input (N, H, W, C), and the other way round, in the order of the input."""
    if len(shape) != 4 or array.ndim < 3 or array.shape[-3:] == tuple(shape[1:]):
        return array
    first, second, third = shape[1:]
    if third in CHANNELS and array.shape[-3:] == (third, first, second):
        return np.moveaxis(array, -3, -1)
    if first in CHANNELS and array.shape[-3:] == (second, third, first):
        return np.moveaxis(array, -1, -3)
    return array
