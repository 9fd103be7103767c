"""Real values of stored tensors: scales, pixel numbers, ranking of results, and the values of models in them."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nvdla.errors import FormatError
from nvdla.tensors.npz import check_packing
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, Json
from nvdla.util.files import UNREADABLE_ZIP, read_file, require_file

Cube = tuple[int, int, int]
MAX_ELEMENTS = 1 << 24
"""Elements of a tensor whose order differs from the model's."""
MAX_LISTED = 1 << 16
"""Largest order without a pattern that fits into a layer file, in elements."""


class ScaleMissing(FormatError):
    """Real numbers are given or wanted, and what one unit of a tensor's integers stands for is not known.

    ``name``: the tensor; ``kind``: "input" or "output"; ``suggested``: a scale that holds the values given, or None.
    """

    def __init__(self, name: str, dtype: np.dtype, kind: str, suggested: float | None = None) -> None:
        self.name, self.dtype, self.kind, self.suggested = name, dtype, kind, suggested
        given = "are real numbers" if kind == "input" else "must become real numbers"
        number = "NUMBER" if suggested is None else f"{suggested:.3g}"
        hint = "" if suggested is None else f" ({number} is enough for the largest of these values)"
        super().__init__(
            f"{kind} {name}: its values {given}, but its {dtype} scale is unknown: give "
            f"Runtime(..., scales={{{name!r}: {number}}}){hint}"
        )


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two energies in dB: infinity without noise, minus infinity without a signal or where an
    energy is not finite."""
    if noise == 0:
        return math.inf
    if signal == 0 or not math.isfinite(signal) or not math.isfinite(noise):
        return -math.inf
    return 10 * math.log10(signal / noise)


def to_elements(values: np.ndarray, scale: float, dtype: np.dtype, zero: int = 0) -> np.ndarray:
    """Real numbers as elements: floor(x / scale + 0.5), limited to the symmetric range (-127 .. 127 for int8), with a
    zero point to the whole range; halves as they are rounded by numpy. Raises FormatError for NaN, which integers
    lack."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if dtype.kind == "f":
            return (values.astype(np.float64) / scale).astype(dtype)
        if np.isnan(values).any():
            raise FormatError(f"values: must not be NaN for {dtype}, got {int(np.isnan(values).sum())} NaN")
        largest = np.iinfo(dtype).max
        lowest = -largest - 1 if zero else -largest
        return np.clip(np.floor(values.astype(np.float64) / scale + 0.5) + zero, lowest, largest).astype(dtype)


@dataclass(frozen=True, eq=False)
class Units:
    """The real numbers of a stored tensor: ``(element - zero) * scale * factors``.

    ``zero``: the element that stands for 0, one number or one per channel (C,). ``factors`` (C,): what the compiler
    divided the channels by (cross-layer equalization), None where it left them alone. ``unsigned``: the signed elements
    are read as unsigned ones of the same width (pixels).
    """

    scale: float = 1.0
    zero: float | np.ndarray = 0
    factors: np.ndarray | None = None
    unsigned: bool = False

    @property
    def scales(self) -> float | np.ndarray:
        """The real value of one unit: one number, or one per channel (C,)."""
        return self.scale if self.factors is None else self.scale * self.factors

    @property
    def by_channel(self) -> bool:
        """Check whether channels may have different units."""
        return self.factors is not None or np.ndim(self.zero) > 0

    def real(self, elements: np.ndarray) -> np.ndarray:
        """Return the real numbers (float64) of elements; per-channel units need the shape (..., C, H, W)."""
        if self.unsigned:
            elements = elements.view(f"u{elements.itemsize}")
        values = (elements.astype(np.float64) - _column(self.zero)) * self.scale
        return values if self.factors is None else values * _column(self.factors)

    def within_one_unit(self, some: np.ndarray, others: np.ndarray) -> bool:
        """Check whether real numbers (..., C, H, W) nowhere differ by more than one unit: the last place of the
        integers."""
        unit = self.scale if self.factors is None else self.scale * _column(self.factors)
        return bool(np.all(np.abs(some.astype(np.float64) - others) <= unit * (1 + 1e-6)))

    def is_same(self, other: Units) -> bool:
        """Check whether equal elements stand for equal numbers in both, as far as float32 holds their scales."""
        mine, others = self.factors, other.factors
        factors = mine is others if mine is None or others is None else np.array_equal(mine, others)
        same = math.isclose(self.scale, other.scale, rel_tol=1e-6) and self.unsigned == other.unsigned
        return factors and same and np.array_equal(self.zero, other.zero)


def _column(values: float | np.ndarray) -> float | np.ndarray:
    return np.reshape(values, (-1, 1, 1)) if np.ndim(values) else values


def holding_scale(values: np.ndarray, dtype: np.dtype) -> float | None:
    """Return the scale that maps the greatest of the values to the greatest element; None where it does not exist."""
    greatest = float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
    scale = greatest / np.iinfo(dtype).max
    return scale if scale > 0 and math.isfinite(scale) else None


BITS = (8, 10, 12, 16)


@by_annotations
@dataclass(frozen=True)
class PixelNumbers:
    """Pixels that represent the real numbers ``(pixel - mean) * scale``.

    Attributes:
        mean: Pixel that represents 0: one number, or one per channel.
        scale: Real value per unit: one number, or one per channel.
        bits: Bits of a pixel: 8, 10, 12 or 16. Pixels are 0 to 2**``bits`` - 1.

    Raises:
        FormatError: A scale is not positive, a number is not finite, or the number of bits is unknown.
    """

    mean: tuple[float, ...] = (0.0,)
    scale: tuple[float, ...] = (1.0,)
    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise FormatError(f"pixels: bits: must be 8, 10, 12 or 16, got {self.bits}")
        if not self.mean or not self.scale or not np.all(np.isfinite([*self.mean, *self.scale])):
            raise FormatError(f"pixels: mean and scale: must be finite numbers, got {self.mean} and {self.scale}")
        if min(self.scale) <= 0:
            raise FormatError(f"pixels: scale: must be above 0, got {min(self.scale):g}")

    @property
    def largest(self) -> int:
        """The largest pixel."""
        return (1 << self.bits) - 1

    def channels(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Expand mean and scale to all channels.

        Args:
            count: Number of channels.

        Returns:
            Mean and scale, each of shape (count,).

        Raises:
            FormatError: There are several numbers, but not one per channel.
        """
        for name, numbers in (("mean", self.mean), ("scale", self.scale)):
            if len(numbers) not in (1, count):
                raise FormatError(
                    f"pixels: {name}: must be one number or {count} (one per channel), got {len(numbers)}"
                )
        return np.resize(np.array(self.mean), count), np.resize(np.array(self.scale), count)

    def elements(self, values: np.ndarray) -> np.ndarray:
        """Convert real numbers to the nearest pixels.

        Args:
            values: Real numbers (..., C, H, W).

        Returns:
            Pixels of the same shape, stored as signed elements (:meth:`stored`).

        Raises:
            FormatError: A value is NaN, or the numbers of channels differ.
        """
        mean, scale = (channel[:, None, None] for channel in self.channels(values.shape[-3]))
        pixels = np.rint(values.astype(np.float64) / scale + mean)
        if np.isnan(pixels).any():
            raise FormatError("values for pixels: must not be NaN")
        return self.stored(np.clip(pixels, 0, self.largest))

    def stored(self, pixels: np.ndarray) -> np.ndarray:
        """Reinterpret pixels as the signed elements of the input.

        Args:
            pixels: Whole numbers from 0 to ``largest``.

        Returns:
            Elements with the same bits and shape: int8 for pixels of 8 bits, otherwise int16.
        """
        unsigned = np.uint8 if self.bits == 8 else np.uint16
        return np.ascontiguousarray(pixels.astype(unsigned)).view(np.int8 if self.bits == 8 else np.int16)

    def units(self, channels: int) -> Units:
        """Return the real numbers that stored elements represent.

        Args:
            channels: Number of channels.

        Raises:
            FormatError: There are several numbers, but not one per channel (:meth:`channels`).
        """
        mean, scale = self.channels(channels)
        return Units(1.0, mean, scale, unsigned=True)

    def document(self) -> Document:
        """Return mean, scale and bits as plain data, for JSON."""
        return {"mean": list(self.mean), "scale": list(self.scale), "bits": self.bits}

    @classmethod
    def of(cls, document: Document) -> PixelNumbers:
        """Read the entry of a layer file.

        Args:
            document: Parsed JSON with ``mean``, ``scale`` and ``bits``.

        Returns:
            The pixels.

        Raises:
            FormatError: An entry is missing or invalid.
        """
        try:
            mean, scale = (tuple(float(number) for number in document[name]) for name in ("mean", "scale"))
            return cls(mean, scale, int(document["bits"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(
                f"pixels of the layer file: must have correct fields, but {error!r} is wrong or missing"
            ) from None


def pixels_of(document: object) -> Mapping[str, PixelNumbers]:
    """The inputs of a layer file that take pixels, by name. Raises FormatError."""
    if not isinstance(document, Mapping):
        return {}
    return {str(name): PixelNumbers.of(entry) for name, entry in document.items()}


MAX_LABELS_FILE = 16 << 20


@dataclass(frozen=True)
class Rank:
    """One class of a result: its index among the values of the image, its value, its label if known."""

    index: int
    value: float
    label: str | None


def by_image(tensors: Mapping[str, np.ndarray], most: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield name, title and image (1, C, H, W) of the first ``most`` images of tensors (N, C, H, W)."""
    for name, tensor in tensors.items():
        for number in range(min(len(tensor), most)):
            title = name if len(tensor) == 1 else f"{name}, image {number}"
            yield name, title, tensor[number : number + 1]


def top(tensor: np.ndarray, count: int, labels: list[str] | None = None) -> list[Rank]:
    """The ``count`` greatest values of one image (C, H, W), greatest first; of equal values the first index leads.

    NaN ranks last.
    """
    flat = np.nan_to_num(tensor.reshape(-1).astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    order = np.argsort(-flat, kind="stable")[: max(count, 0)]
    return [Rank(int(i), float(flat[i]), labels[i] if labels and i < len(labels) else None) for i in order]


def tops(
    outputs: Mapping[str, Sequence[np.ndarray] | np.ndarray], count: int, labels: list[str] | None = None
) -> dict[str, list[list[Rank]]]:
    """The ``count`` greatest values of each image of each output.

    Where outputs have as many numbers as there are labels, the labels name those of these outputs alone.
    """
    sizes = {name: images[0].size for name, images in outputs.items() if count > 0 and len(images)}
    exact = {name for name, size in sizes.items() if labels and size == len(labels)} or set(sizes)
    names = {name: labels if name in exact else None for name in outputs}
    return {
        name: [top(image, count, names[name]) for image in (images if name in sizes else ())]
        for name, images in outputs.items()
    }


def read_labels(path: str | os.PathLike[str]) -> list[str]:
    """Class names, one per line of a text file, or of the label file that is packed in a TFLite model.

    Raises:
        FormatError: the file is not UTF-8 text, or the model contains no label file.
    """
    try:
        packed = os.fspath(path).lower().endswith(".tflite")
        text = (_packed_labels(path) if packed else read_file(path, MAX_LABELS_FILE, "labels file")).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(f"{os.fspath(path)}: labels: must be UTF-8 text, one per line: {error}") from error
    return [_printable(line.strip()) for line in text.splitlines()]


def has_labels(path: str | os.PathLike[str]) -> bool:
    """Check whether a TFLite model contains a label file."""
    try:
        return bool(read_labels(path))
    except FormatError:
        return False


def _packed_labels(path: str | os.PathLike[str]) -> bytes:
    """The label file in the zip archive at the end of a TFLite model."""
    name = os.fspath(path)
    require_file(path, "labels file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".txt")]
            members.sort(key=lambda member: "label" not in member.filename.lower())
            if not members:
                raise zipfile.BadZipFile("no .txt file")
            check_packing(members[0], f"{name}: {members[0].filename[:80]}")
            if members[0].file_size > MAX_LABELS_FILE:
                limit = f"must be at most {MAX_LABELS_FILE} bytes, got {members[0].file_size}"
                raise FormatError(f"{name}: {members[0].filename[:80]}: size: {limit}")
            return archive.read(members[0])
    except UNREADABLE_ZIP as error:
        reason = str(error)[:80] if zipfile.is_zipfile(path) else "no metadata at the end of the file"
        hint = "Give a text file with one class name per line."
        raise FormatError(f"{name}: model: must contain a readable label file ({reason}). {hint}") from None


def _printable(text: str) -> str:
    """Replace terminal control characters."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


@dataclass(frozen=True)
class Ends:
    """Real numbers at the ends of a range beyond which nothing is lost, of each channel (C, 1, 1); infinite for others.

    Such an argument of a sigmoid reaches only as far as the sigmoid changes.
    """

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, units: Units | None, limited: np.ndarray, elements: np.ndarray) -> Ends | None:
        """Those of integers (N, C, H, W), of which ``limited`` (2, C) marks the ends; None where there are none."""
        if units is None or elements.dtype.kind not in "iu" or not limited.any():
            return None
        type_ends = np.iinfo(elements.dtype)
        shape = (1, limited.shape[1], 1, 1)
        low, high = (units.real(np.full(shape, end, elements.dtype))[0] for end in (type_ends.min, type_ends.max))
        lower, upper = limited[:, :, None, None]
        return cls(np.where(lower, low, -np.inf), np.where(upper, high, np.inf))

    def limit(self, numbers: np.ndarray) -> np.ndarray:
        """Real numbers within the ends."""
        within: np.ndarray = np.clip(numbers, self.low, self.high).astype(numbers.dtype)
        return within


@dataclass(frozen=True)
class ModelValue:
    """The value of a model that a tensor holds.

    ``shape``: of one image. ``order``: where its elements are in the tensor, as :func:`order_document` writes it.
    ``units``: of the model's own integers, None where it has real numbers.
    """

    name: str
    shape: tuple[int, ...] = ()
    order: Json = None
    units: Units | None = None

    @cached_property
    def index(self) -> np.ndarray | None:
        """Element ``i`` of the value (flat) is at position ``index[i]`` of the tensor; None: in the same order.

        Raises FormatError for an order that is broken.
        """
        return order_of(self.order, f"layer file: index of {self.name}")

    def cubes(self, value: np.ndarray, shape: Cube) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the value as tensors (images, C, H, W), real numbers, and which elements (C, H, W) it has (None: all).

        None where sizes do not fit.
        """
        size = math.prod(shape) if self.index is None else self.index.size
        if not size or value.size % size:
            return None
        images = (value if self.units is None else self.units.real(value)).reshape(-1, size)
        if self.index is None:
            return images.reshape(-1, *shape), None
        places = self.index
        if places.max() >= math.prod(shape):
            return None
        filled = np.zeros((len(images), math.prod(shape)), images.dtype)
        filled[:, places] = images
        known = np.zeros(math.prod(shape), bool)
        known[places] = True
        return filled.reshape(-1, *shape), None if known.all() else known.reshape(shape)

    def value(self, cubes: np.ndarray) -> np.ndarray:
        """Return tensors (images, C, H, W) as the model's value, images concatenated along its first axis."""
        flat = cubes.reshape(len(cubes), -1)
        shape = self.shape or (1, *cubes.shape[1:])
        elements = flat if self.index is None else flat[:, self.index]
        if len(cubes) > 1:
            return elements.reshape(-1, *shape[1:])
        return elements.reshape(shape)

    def rearranged(self, cube: Cube) -> ModelValue | None:
        """Return this value of an input if a tensor (C, H, W) is not merely its planes; None if it is."""
        sizes = [[size for size in shape if size != 1] for shape in (self.shape, cube)]
        same = self._planes == cube or (self.index is None and sizes[0] == sizes[1])
        return None if same or not self.shape else self

    @cached_property
    def _planes(self) -> Cube | None:
        """(C, H, W) of a tensor with the elements of an input (1, H, W, C), the channels first."""
        if self.index is None or len(self.shape) != 4:
            return None
        height, width, channels = self.shape[1:]
        order = np.arange(math.prod(self.shape[1:])).reshape(self.shape[1:]).transpose(2, 0, 1)
        return (channels, height, width) if np.array_equal(order.ravel(), self.index) else None

    def elements(self, value: np.ndarray, shape: tuple[int, int, int, int]) -> np.ndarray:
        """Return an input of the model as a bound tensor of this shape: the opposite of :meth:`fed`.

        Raises FormatError for an order that does not fit.
        """
        flat = value.reshape(shape[0], -1)
        size = math.prod(shape[1:])
        index: np.ndarray = np.arange(size) if self.index is None else self.index
        if index.size != size or index.max() >= flat.shape[1]:
            raise FormatError(f"layer file: inputs: index of {self.name} must fit {flat.shape[1]} elements")
        return flat[:, index].reshape(shape)

    def fed(self, cubes: np.ndarray, before: np.ndarray | None = None) -> np.ndarray:
        """Return the value that a bound input (images, C, H, W) is taken from: element ``i`` of a tensor is element
        ``index[i]`` of the value. ``before``: the value with the elements that other inputs are taken from.

        Raises FormatError for an order that does not fit.
        """
        flat = cubes.reshape(len(cubes), -1)
        size = math.prod(self.shape) if self.shape else flat.shape[1]
        index: np.ndarray = np.arange(flat.shape[1]) if self.index is None else self.index
        if index.size != flat.shape[1] or index.max() >= size:
            raise FormatError(f"layer file: inputs: index of {self.name} must fit a tensor of {flat.shape[1]} elements")
        value = np.zeros((len(cubes), size), cubes.dtype) if before is None else before.reshape(len(cubes), size)
        value[:, index] = flat
        return ModelValue(self.name, self.shape).value(value if self.shape else value.reshape(cubes.shape))


def order_document(index: np.ndarray | None, size: int | None = None) -> Json:
    """Return an order as plain data: None, nested loops, a list, or False for one that is too long for both.

    ``size``: elements of the tensor, where the value may be its beginning; None: as many as the value has.
    """
    if index is None:
        return None
    flat = index.ravel()
    if np.array_equal(flat, np.arange(flat.size if size is None else size)):
        return None
    loops = _loops(flat)
    if loops is not None:
        return loops
    return flat.tolist() if flat.size <= MAX_LISTED else False


def _loops(flat: np.ndarray) -> Document | None:
    """Nested loops, the outermost first: ``start`` and [count, stride] of each."""
    loops = []
    while len(flat) > 1:
        stride = int(flat[1] - flat[0])
        breaks = np.flatnonzero(np.diff(flat) != stride)
        count = int(breaks[0]) + 1 if breaks.size else len(flat)
        if len(flat) % count:
            return None
        blocks = flat.reshape(-1, count)
        if not np.array_equal(blocks - blocks[:, :1], np.broadcast_to(np.arange(count) * stride, blocks.shape)):
            return None
        loops.append([count, stride])
        flat = blocks[:, 0]
    return {"start": int(flat[0]), "loops": loops[::-1]}


def order_of(document: object, what: str) -> np.ndarray | None:
    """Read what :func:`order_document` writes (not False). Raises FormatError."""
    if document is None:
        return None
    if isinstance(document, list):
        order: np.ndarray = np.array([whole_number(number, what) for number in document], np.int64)
    else:
        order = np.array([whole_number(entry_of(document, "start", int, what), what)])
        for loop in entry_of(document, "loops", list, what):
            if not isinstance(loop, list) or len(loop) != 2:
                raise FormatError(f"{what}: a loop must be [count, stride]")
            count, stride = whole_number(loop[0], what), whole_number(loop[1], what, -MAX_ELEMENTS)
            if count * order.size > MAX_ELEMENTS:
                raise FormatError(f"{what}: order: must have at most {MAX_ELEMENTS} elements")
            order = (order[:, None] + np.arange(count) * stride).ravel()
    if not order.size or order.min() < 0 or order.max() >= MAX_ELEMENTS:
        raise FormatError(f"{what}: order: must have positions from 0 to {MAX_ELEMENTS - 1}")
    return order


def entry_of(document: object, key: str, kind: Any, what: str) -> Any:
    """Return an entry of a layer file. Raises FormatError unless it has the type."""
    if not isinstance(document, dict) or not isinstance(document.get(key), kind):
        raise FormatError(f"{what}: {key}: must be given with the right type")
    return document[key]


def whole_number(value: object, what: str, least: int = 0) -> int:
    """Return a whole number of a layer file. Raises FormatError for other values."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_ELEMENTS:
        raise FormatError(f"{what}: must be a whole number from {least} to {MAX_ELEMENTS}")
    return value
