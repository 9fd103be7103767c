"""Calibration data: arrays, files, directories, and their split into batches.

A model is taken so where every node does the same to each image of the batch (the first dimension of all its values),
which is known of the operators listed here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nvdla.compiler.builder.cbuf import PICTURE_BITS, depth
from nvdla.compiler.frontend.model import Model, read
from nvdla.compiler.frontend.quantization.mixed import Affine
from nvdla.compiler.frontend.tflite.graph import NORMALIZATION_KEY
from nvdla.errors import FormatError, shape_text
from nvdla.tensors.datasets import (
    Arrays,
    Function,
    Sample,
    SampleSource,
    arrays_source,
    loader_of,
    loader_source,
    open_source,
)
from nvdla.tensors.files import IMAGE_ENDINGS, read_dimg
from nvdla.tensors.images import is_pil
from nvdla.tensors.inputs import Preprocessing, holds_pixels, in_order
from nvdla.tensors.npz import parse_npy, read_npz
from nvdla.tensors.real import PixelNumbers
from nvdla.util.arguments import as_array
from nvdla.util.escaping import Document
from nvdla.util.files import read_file

if TYPE_CHECKING:
    from onnx import NodeProto

MAX_FILE = 4 << 30
MAX_SAMPLES = 100_000
#: samples at the beginning that are evenly of all classes
HEAD = 32
CACHE = "onnxruntime cache"
"""The text that onnxruntime writes next to its JSON: of each tensor the highest number alone."""
EIGHT_BITS = (2, 3)  # TensorProto.UINT8 and INT8; onnx is imported when a model is read


class Samples:
    """Feeds for the float model, one after the other; can be gone through again. ``sha256`` of all of them.
    ``pixels``: inputs of real numbers that got pixels 0..255 (known after the first time through)."""

    def __init__(
        self, feeds: Sequence[object], load: Callable[..., dict[str, np.ndarray]], pixels: set[str] | None = None
    ) -> None:
        self._feeds, self._load = feeds, load
        self.pixels: set[str] = set() if pixels is None else pixels
        #: number of files of a directory that are not samples
        self.ignored = 0
        #: the images of a batch are the same one
        self.alike = False
        self._digest = hashlib.sha256()
        self._hashed = False
        self._ends: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for feed_source in self._feeds:
            feed = self._load(feed_source)
            if not self._hashed:
                for name in sorted(feed):
                    self._digest.update(name.encode())
                    self._digest.update(np.ascontiguousarray(feed[name]).tobytes())
                    self._see(name, feed[name])
            yield feed
        self._hashed = True

    def some(self, count: int) -> Samples:
        """At most ``count`` of these samples, at equal distances: directories are in the order of their classes."""
        places = np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(int)
        return Samples([self._feeds[place] for place in places], self._load, self.pixels)

    def each_image(self, images: int) -> Samples:
        """These samples, an image of a batch at a time."""
        if images == 1:
            return self
        places = [(feed, image) for feed in self._feeds for image in range(1 if self.alike else images)]

        def load(place: tuple[object, int]) -> dict[str, np.ndarray]:
            feed, image = place
            return {name: array[image : image + 1] for name, array in self._load(feed).items()}

        single = Samples(places, load, self.pixels)
        single.ignored = self.ignored
        return single

    def _see(self, name: str, array: np.ndarray) -> None:
        if array.size > 1 and array.dtype.kind == "f":
            low, high = self._ends.get(name, (np.inf, -np.inf))
            self._ends[name] = min(low, float(array.min())), max(high, float(array.max()))

    @property
    def constants(self) -> dict[str, float]:
        """After the first time through: inputs of real numbers that are the same number everywhere."""
        return {name: low for name, (low, high) in self._ends.items() if low == high}

    @property
    def ends(self) -> dict[str, tuple[float, float]]:
        """After the first time through: the smallest and the greatest of the real numbers of each input."""
        return self._ends

    @property
    def sha256(self) -> str:
        """After the first time through."""
        return self._digest.hexdigest()


def samples(model: Model, data: Any, preprocessing: Preprocessing | None = None, limit: int | None = None) -> Samples:
    """Return calibration data as feeds: data sets, arrays, mappings of arrays, iterables. Raises FormatError."""
    if isinstance(data, Samples):
        return data
    preprocessing = preprocessing or Preprocessing()
    if isinstance(data, str | os.PathLike):
        return _from_path(model, os.fspath(data), preprocessing, limit)
    if loader_of(data) is not None:
        data = open_source(data)
    if isinstance(data, SampleSource):
        return _from_source(model, data, preprocessing, limit)
    if isinstance(data, Mapping):
        return _from_arrays(model, {name: np.asarray(array) for name, array in data.items()}, limit)
    if hasattr(data, "detach"):
        data = as_array(data, "calibration data")
    if isinstance(data, np.ndarray):
        return _from_arrays(model, {_only_input(model): data}, limit)
    if not isinstance(data, Iterable):
        raise FormatError(
            f"calibration data: must be an array, a mapping, samples or a data set, got {type(data).__name__}"
        )
    items = iter(data)
    head = list(islice(items, 1))
    if head and isinstance(head[0], list | tuple) and head[0] and all(hasattr(part, "detach") for part in head[0]):
        return _from_source(model, loader_source(chain(head, items), "calibration data"), preprocessing, limit)
    feeds = []
    for sample in islice(chain(head, items), min(limit or MAX_SAMPLES, MAX_SAMPLES)):
        if isinstance(sample, list | tuple) and len(sample) == 2 and np.ndim(sample[1]) == 0 < np.ndim(sample[0]):
            sample = sample[0]  # with its label
        named = {_only_input(model): sample} if not isinstance(sample, Mapping) else sample
        arrays = {name: as_array(array, "calibration data: a sample") for name, array in _known(model, named).items()}
        feeds.append({name: _sample(model, name, array) for name, array in arrays.items()})
    if not feeds:
        raise FormatError("calibration data: must have at least one sample, got none")
    return Samples(feeds, lambda feed: feed)


def for_model(model: Model, given: Preprocessing | None) -> tuple[Model, Preprocessing | None]:
    """Return the preprocessing that the file of a model specifies, if no mean or scale is given.

    A pixel is an element of an 8-bit input (uint8), or 128 more than the element (int8), as in TFLite's tools. Other
    inputs take what the metadata of a TFLite file specify, and so do 8-bit inputs whose range contains that.

    Returns:
        The model, with a note on the numbers of the metadata or on given ones that pixels do not have, and the
        preprocessing.
    """
    if given is not None and any(given.mean) and max(map(abs, given.mean)) <= 1:
        means = ", ".join(f"{mean:g}" for mean in given.mean)
        note = f"pictures: mean {means}: pixels are 0 to 255. Multiply the mean and std of numbers 0 to 1 by 255"
        return replace(model, notes=[*model.notes, note]), given
    if len(model.inputs) != 1 or (given is not None and (given.mean or given.scale)):
        return model, given
    stated, affine, note = _normalization(model), _eight_bits(model), ""
    if affine is not None:
        least = np.iinfo(affine.kind).min
        as_elements = Preprocessing((float(affine.point - least),), (affine.scale,))
        if stated is None:
            stated, note = as_elements, _unusual_range(model, affine)
        pixels = np.array([[0.0], [255.0]])
        elements: np.ndarray = (pixels - stated.mean) * stated.scale / affine.scale + affine.point - least
        if np.abs(elements - pixels).max() <= 1:
            model = replace(model, notes=[*model.notes, note]) if note else model
            return model, replace(given or Preprocessing(), mean=as_elements.mean, scale=as_elements.scale)
        if elements.min() < -1 or elements.max() > 256:
            note = f"{_described(stated)}: not used, because the 8-bit input cannot hold these numbers"
            stated = as_elements
    if stated is None:
        return model, given
    numbers = replace(given or Preprocessing(), mean=stated.mean, scale=stated.scale)
    return replace(model, notes=[*model.notes, note or _described(stated)]), numbers


def _unusual_range(model: Model, affine: Affine) -> str:
    """Return a note on a quantized input of pictures that does not hold what pixels usually become."""
    shape, (low, high) = model.shapes[model.inputs[0]], affine.ends
    is_near = any(
        max(abs(low - least), abs(high - most)) <= _NEAR * (most - least) for least, most in _RANGES_OF_PIXELS
    )
    if len(shape) != 4 or not {shape[1], shape[3]} & {1, 3, 4} or is_near:
        return ""
    return (
        f"pictures: pixels are the elements of input {model.inputs[0]}, so 0..255 become {low:.3g} to {high:.3g}, "
        "which is not a usual range. Give the --mean and --std of the training (Python: preprocessing=), unless the "
        "application gives pixels as elements"
    )


#: numbers of the pixels 0 to 255 in training, and how far from one of them a range is that is not it
_RANGES_OF_PIXELS = ((0, 255), (0, 1), (-1, 1), (-128, 127), (-0.5, 0.5))
_NEAR = 0.03


def describe_samples(
    details: Document, calibration: Document, model: Model, data: object, preprocessing: Preprocessing | None
) -> None:
    """Add to the details of a compilation what is known after its calibration: the range of the samples of real
    numbers, inputs that got pixels 0..255 unchanged, and notes on samples without a range and on pixels out of it."""
    details["calibration"] = calibration
    seen = data if isinstance(data, Samples) else None
    details["notes"] += [
        f"calibration data: input {name} is {value:g} in all elements of all samples: scales and expected SNR have no "
        "meaning. Give samples of real use"
        for name, value in calibration.get("constant_inputs", {}).items()
    ]
    if calibration.get("method") == CACHE:
        details["notes"].append(
            "calibration data: calibration.cache of onnxruntime has the highest number of each tensor alone; tensors "
            "with larger negative numbers are cut off. Give its calibration.json"
        )
    details["notes"] += _pixel_notes(model, seen, preprocessing)
    if seen is None:
        return
    if not model.affine and len(seen.ends) == len(model.inputs) == 1:
        details["preprocessing"]["range"] = list(*seen.ends.values())
    stated = (preprocessing or Preprocessing()).stated
    if seen.pixels and not any(stated.mean) and set(stated.scale) == {1.0}:
        calibration["unscaled_pixels"] = sorted(seen.pixels)


def _pixel_notes(model: Model, data: Samples | None, preprocessing: Preprocessing | None) -> list[str]:
    """Return a note on pictures whose pixels become numbers outside of the range of the input.

    The range is that of a quantized input, or else that of the samples, unless these are pictures.
    """
    if len(model.inputs) != 1 or preprocessing is None or not (preprocessing.mean or preprocessing.scale):
        return []
    name, affine = model.inputs[0], model.affine.get(model.inputs[0])
    ends = {} if data is None or data.pixels else data.ends
    if affine is None and name not in ends:
        return []
    low, high = ends[name] if affine is None else affine.ends
    stated = preprocessing.stated
    numbers = (np.array([[0.0], [255.0]]) - stated.mean) * stated.scale
    least, most = float(np.min(numbers)), float(np.max(numbers))
    outside = (max(low - least, 0) + max(most - high, 0)) / (most - least) if most > least else 0.0
    if outside <= (_OUTSIDE_OF_SAMPLES if affine is None else _OUTSIDE):
        return []
    holder = "the calibration samples hold" if affine is None else f"the quantized input {name} holds"
    return [
        f"pictures: pixels 0..255 become {least:.3g} to {most:.3g} (--mean, --std; Python: preprocessing=), but "
        f"{holder} {low:.3g} to "
        f"{high:.3g}: {outside:.0%} of the range of the pixels is limited to that. Check that these are the --mean and "
        "--std of the training"
    ]


#: shares of the range of pixels outside of a quantized input, and of the samples, that are not a rounding or a chance
_OUTSIDE, _OUTSIDE_OF_SAMPLES = 0.05, 0.25


def _described(stated: Preprocessing) -> str:
    mean, std = (", ".join(f"{x:g}" for x in numbers) for numbers in (stated.mean, 1 / np.array(stated.scale)))
    return f"pictures: mean {mean}, standard deviation {std}, from the metadata of the file"


def _normalization(model: Model) -> Preprocessing | None:
    """Mean and scale of the pixels of the input as the file states them."""
    text = next((entry.value for entry in model.proto.metadata_props if entry.key == NORMALIZATION_KEY), None)
    if text is None:
        return None
    try:
        mean, std = (tuple(float(x) for x in numbers) for numbers in json.loads(text))
        if not np.isfinite(mean).all():
            raise ValueError(text)
    except (ValueError, TypeError, RecursionError):
        raise FormatError(f"{model.file}: metadata {NORMALIZATION_KEY}: must be two lists of numbers") from None
    return Preprocessing(mean).divided(std)


def _eight_bits(model: Model) -> Affine | None:
    """Scale and zero point of an input of 8 bits."""
    stored = None if model.quantized is None else model.quantized.graph.input
    affine, (name,) = model.affine.get(model.inputs[0]), model.inputs
    integers = any(value.name == name and value.type.tensor_type.elem_type in EIGHT_BITS for value in stored or ())
    return affine if affine is not None and affine.bits == 8 and integers else None


def _only_input(model: Model) -> str:
    if len(model.inputs) != 1:
        raise FormatError(f"calibration data: must be given by name for the inputs {', '.join(model.inputs) or 'none'}")
    return model.inputs[0]


Value = TypeVar("Value")


def _known(model: Model, arrays: Mapping[str, Value]) -> Mapping[str, Value]:
    if set(model.inputs) != set(arrays):
        raise FormatError(
            f"calibration data: inputs must be {', '.join(model.inputs)}, got {', '.join(arrays) or 'none'}"
        )
    return arrays


def _sample(model: Model, name: str, array: np.ndarray) -> np.ndarray:
    """One sample as the model takes it: with its batch dimension or without."""
    shape = model.shapes[name]
    array = in_order(array, shape)
    if array.size != int(np.prod(shape)) or (array.shape != shape and array.shape != shape[1:]):
        raise FormatError(
            f"calibration data: shape: must be {shape_text(shape)} (input {name}), got {shape_text(array.shape)}"
        )
    if array.dtype.kind not in "fiub":
        raise FormatError(f"calibration data for input {name}: must be real numbers, got {array.dtype}")
    with np.errstate(over="ignore"):  # numbers that become infinite are refused below
        sample = np.ascontiguousarray(array, dtype=model.types[name]).reshape(shape)
    if sample.dtype.kind == "f" and not np.all(np.isfinite(sample)):
        raise FormatError(f"calibration data for input {name}: must be finite, got NaN or infinity")
    return sample


def _from_arrays(model: Model, arrays: Mapping[str, np.ndarray], limit: int | None) -> Samples:
    """Arrays whose first dimension counts samples, or rows of the model's own batch."""
    stacks = {}
    for name, array in _known(model, arrays).items():
        shape = model.shapes[name]
        if array.ndim == 3 and tuple(shape[1:]) in ((1, *array.shape[1:]), (*array.shape[1:], 1)):
            array = array.reshape(-1, *shape[1:])  # gray pictures without their channel
        array = in_order(array, shape)
        batch = shape[0] if shape else 1
        if array.shape == shape and array.ndim and batch != 1:
            array = array[None]
        elif array.shape[1:] == shape[1:] and array.ndim == len(shape) and array.ndim:
            if len(array) < batch or not batch:
                raise FormatError(
                    f"calibration data: rows of input {name}: must be at least {batch} (its batch), got {len(array)}"
                )
            array = array[: len(array) // batch * batch].reshape(-1, *shape)
        elif array.shape[1:] != shape:
            raise FormatError(
                f"calibration data for input {name}: must be samples of {shape_text(shape)}, got shape "
                f"{shape_text(array.shape)}"
            )
        stacks[name] = array
    counts = {len(array) for array in stacks.values()}
    if len(counts) > 1 or 0 in counts:
        raise FormatError(
            f"calibration data: samples: must be the same number for each input, and at least one, got {sorted(counts)}"
        )
    count = min(counts.pop() if counts else 1, limit or MAX_SAMPLES)

    def load(number: int) -> dict[str, np.ndarray]:
        return {name: _sample(model, name, array[number]) for name, array in stacks.items()}

    pixels = {name for name, array in stacks.items() if holds_pixels(array) and model.types[name].kind == "f"}
    return Samples(list(range(count)), load, pixels)


def _from_path(model: Model, path: str, preprocessing: Preprocessing, limit: int | None) -> Samples:
    """Samples of a data set, without its labels; a .npz may hold the arrays of several inputs by name instead."""
    if Path(path).suffix.lower() == ".npz" and os.path.isfile(path):
        arrays = read_npz(path)
        if set(arrays) == set(model.inputs) or len(model.inputs) > 1:
            return _from_arrays(model, arrays, limit)
        return _from_source(model, arrays_source(path, arrays), preprocessing, limit)
    return _from_source(model, open_source(path), preprocessing, limit)


def _from_source(model: Model, source: SampleSource, preprocessing: Preprocessing, limit: int | None) -> Samples:
    """Samples of a data set. Bytes are pixels for a model with floating-point input."""
    count = min(len(source), limit or MAX_SAMPLES, MAX_SAMPLES)
    if isinstance(source, Arrays):
        name = _only_input(model)
        if not holds_pixels(source.samples) or model.types[name].kind != "f":
            return _from_arrays(model, {name: source.samples}, limit)

    pixels: set[str] = set()

    def load(position: int, given: Sample | None = None) -> dict[str, np.ndarray]:
        return _feed(model, (given or source.sample(position)).value, preprocessing, pixels)

    if isinstance(source, Function):
        feeds = [load(*row) for row in source.payloads(range(count))]
        if not feeds:
            raise FormatError(f"{source.name}: no samples: must yield (sample, label), got nothing")
        return Samples(feeds, lambda feed: feed, pixels)
    # Equalization and the measured errors see the first samples alone: they are of all classes.
    head = list(source.first(min(count, HEAD)))
    rest = sorted(set(source.first(count)).difference(head))
    samples = Samples([*head, *rest], load, pixels)
    samples.ignored = getattr(source, "ignored", 0)
    samples.alike = all(_is_picture(source.sample(position).value) for position in head[:1])
    return samples


def _is_picture(value: object) -> bool:
    """Check whether a sample is one picture, for a model with any batch."""
    is_file = isinstance(value, str | os.PathLike) and Path(value).suffix.lower() in IMAGE_ENDINGS
    return is_file or is_pil(value) or (isinstance(value, np.ndarray) and value.ndim < 4 and holds_pixels(value))


def _feed(model: Model, value: Any, preprocessing: Preprocessing, pixels: set[str]) -> dict[str, np.ndarray]:
    """Return a sample (file or array) as the model's inputs by name. An input of real numbers that gets pixels is added
    to ``pixels``. Raises FormatError."""
    suffix = Path(value).suffix.lower() if isinstance(value, str | os.PathLike) else None
    if suffix == ".npz":
        arrays = _known(model, read_npz(value))
        return {name: _sample(model, name, array) for name, array in arrays.items()}
    name = _only_input(model)
    if suffix in IMAGE_ENDINGS or is_pil(value):
        pixels.update({name} if model.types[name].kind == "f" else ())
        return {name: _of_one(preprocessing.image, value, model.shapes[name])}
    if suffix == ".npy":
        value = parse_npy(read_file(value, MAX_FILE, "calibration data"), f"calibration data {value}")
    elif suffix == ".dimg":
        value = read_dimg(value)
    elif suffix is not None:
        raise FormatError(f"calibration data {value}: must be an image, .npy, .npz or .dimg, got {suffix}")
    array = as_array(value, "calibration data")
    if suffix is None and holds_pixels(array) and model.types[name].kind == "f":
        array = _of_one(preprocessing.array, array, model.shapes[name])
        pixels.add(name)
    return {name: _sample(model, name, array)}


def _of_one(convert: Callable[[Any, tuple[int, ...]], np.ndarray], picture: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A picture as an input of this shape: every image of a batch is the same."""
    images = shape[0] if len(shape) == 4 else 1
    return np.repeat(convert(picture, (1, *shape[1:])), images, axis=0) if images > 1 else convert(picture, shape)


EACH_IMAGE_ALONE = (
    *("Abs", "Add", "AveragePool", "BatchNormalization", "Ceil", "Clip", "Concat", "Conv", "ConvTranspose"),
    *("DepthToSpace", "Div", "Dropout", "Elu", "Erf", "Exp", "Flatten", "Floor", "Gelu", "Gemm", "GlobalAveragePool"),
    *("GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LRN", "LeakyRelu", "Log"),
    *("LogSoftmax", "MatMul", "Max", "MaxPool", "Min", "Mish", "Mul", "Neg", "PRelu", "Pad", "Pow", "ReduceMax"),
    *("ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Resize", "Round", "Selu", "Sigmoid", "Slice"),
    *("Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh"),
    *("Transpose", "Unsqueeze"),
)
"""Operators that never look from one image at another, with an axis other than the first."""


_BROUGHT = ("magnitudes", "ranges", "weight_scales", "affine", "assumed", "wide")
"""Attributes of a quantized model, by value: the same for one image."""


def one_image(model: Model) -> tuple[Model, int] | None:
    """The model for one image, and how many images the batch has; None for models without a batch, and where that
    cannot be known to compute the same."""
    shapes = [model.shapes.get(name, ()) for name in model.inputs]
    if not shapes or any(len(shape) < 2 for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
        return None
    images = shapes[0][0]
    if images < 2 or not all(_is_alone(node, model) for node in model.proto.graph.node):
        return None
    try:
        alone = read(_narrowed(model, images), trusted=model.worker is None, worker=model.worker)
    except FormatError:
        return None  # its shapes are those of a batch alone
    if not _corresponds(model, alone, images):
        return None
    brought = {name: getattr(model, name) for name in _BROUGHT}
    named = replace(alone, name=model.name, sha256=model.sha256, folded=model.folded, notes=model.notes)
    return replace(named, **brought), images


def _narrowed(model: Model, images: int) -> Any:
    """Copy of the model with a batch of 1 in its inputs and in the shapes of Reshape and Resize; all others are
    inferred again."""
    copy = type(model.proto)()
    copy.CopyFrom(model.proto)
    asked = _asked_shapes(model)
    for constant in copy.graph.initializer:
        if constant.name in asked and model.constants[constant.name].ravel()[:1] == images:
            shape = model.constants[constant.name].copy()
            shape[0] = 1
            constant.ClearField("int64_data")
            constant.raw_data = shape.astype("<i8").tobytes()
    constants = {constant.name for constant in copy.graph.initializer}
    for value in copy.graph.input:
        if value.name not in constants:
            value.type.tensor_type.shape.dim[0].dim_value = 1
    del copy.graph.value_info[:]
    for output in copy.graph.output:
        output.type.tensor_type.ClearField("shape")
    return copy


def _asked_shapes(model: Model) -> set[str]:
    """Constants that are only used as the shape of a Reshape or Resize."""
    shapes: set[str] = set()
    others: set[str] = set(model.outputs)
    for node in model.proto.graph.node:
        place = {"Reshape": 1, "Resize": 3}.get(node.op_type, len(node.input))
        told = [name for name in node.input[place : place + 1] if name]
        shapes.update(told)
        others.update(name for name in node.input if name not in told)
    return {name for name in shapes - others if name in model.constants and model.constants[name].dtype == np.int64}


def _is_alone(node: NodeProto, model: Model) -> bool:
    """Return whether a node does the same to each image, from what its operator does along which axis."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if node.op_type not in EACH_IMAGE_ALONE or node.domain not in ("", "ai.onnx"):
        return False
    if (inside := _stays_inside(node, attributes, model)) is not None:
        return inside
    if node.op_type in ("Concat", "LogSoftmax", "Softmax", "Flatten"):
        rank = len(model.shapes.get(node.output[0], (0, 0)))
        axis = attributes["axis"].i if "axis" in attributes else 1 if node.op_type == "Flatten" else -1
        return axis % rank != 0 and (node.op_type != "Flatten" or axis == 1)
    if node.op_type in ("Gemm", "MatMul"):
        matrix = model.shapes.get(node.input[1], ())
        constant = node.input[1] in model.constants and len(matrix) == 2
        turned = "transA" in attributes and attributes["transA"].i
        return constant and not turned and not _differs(node.input[2:], model, 2)
    if node.op_type == "Pad":
        amounts = model.constants.get(node.input[1]) if len(node.input) in (2, 3) else None
        return amounts is not None and amounts[0] == amounts[len(amounts) // 2] == 0
    rank = len(model.shapes.get(node.output[0], ()))
    weights = node.input[1:] if node.op_type in ("Conv", "ConvTranspose", "Reshape") else ()
    return rank >= 2 and not _differs([name for name in node.input if name not in weights], model, rank)


def _stays_inside(node: NodeProto, attributes: Mapping[str, Any], model: Model) -> bool | None:
    """Return whether an operator that moves or joins along axes leaves the first one; None for other operators."""
    if node.op_type == "Transpose":
        return "perm" in attributes and attributes["perm"].ints[0] == 0
    places = {"Slice": 3, "Squeeze": 1, "Unsqueeze": 1}
    if node.op_type == "Split":
        axes = [attributes["axis"].i if "axis" in attributes else 0]
    elif node.op_type not in places and not node.op_type.startswith("Reduce"):
        return None
    elif "axes" in attributes:
        axes = list(attributes["axes"].ints)
    else:
        constant = model.constants.get([*node.input, *[""] * 4][places.get(node.op_type, 1)])
        axes = [] if constant is None else constant.ravel().tolist()
    rank = len(model.shapes.get((node.output if node.op_type == "Unsqueeze" else node.input)[0], ()))
    return bool(axes) and rank > 0 and all(axis % rank for axis in axes)


def _differs(names: Iterable[str], model: Model, rank: int) -> bool:
    """Return whether one of them is a constant that is not the same for every image of values with ``rank``
    dimensions."""
    shapes = [model.constants[name].shape for name in names if name in model.constants]
    return any(len(shape) >= rank and shape[0] != 1 for shape in shapes)


def _corresponds(model: Model, alone: Model, images: int) -> bool:
    """Return whether both have the same nodes, and every computed value is as many of the one for a single image."""
    nodes = [(node.op_type, list(node.input), list(node.output)) for node in model.proto.graph.node]
    if nodes != [(node.op_type, list(node.input), list(node.output)) for node in alone.proto.graph.node]:
        return False
    computed = {name for _, _, outputs in nodes for name in outputs} | set(model.inputs)
    shared = (set(model.constants) | set(alone.constants)) & computed
    asked = _asked_shapes(model)
    if shared or not all(_same(model, alone, name) for name in model.constants if name not in asked):
        return False
    for name in computed:
        single_shape, all_of_them = alone.shapes.get(name, ()), model.shapes.get(name, ())
        if not single_shape or single_shape[0] != 1 or all_of_them != (images, *single_shape[1:]):
            return False
    return True


def _same(model: Model, alone: Model, name: str) -> bool:
    """Return whether a constant is the same for both."""
    return name in alone.constants and np.array_equal(model.constants[name], alone.constants[name])


def pixels_option(options: Mapping[str, Any], of_image: Preprocessing | None) -> dict[str, PixelNumbers]:
    """The numbers that pixels stand for, as an option of the builder; empty if the input format has no pixels."""
    bits = depth(str(options.get("input_format", "auto")))
    return {} if bits is None else {"pixels": pixel_numbers(of_image or Preprocessing(), bits)}


def pixel_numbers(of_image: Preprocessing, bits: int) -> PixelNumbers:
    """Conversion of pixels of more bits than a picture's; mean and scale of ``of_image`` are those of pixels 0..255."""
    larger, stated = 1 << (bits - PICTURE_BITS), of_image.stated
    mean = tuple(mean_value * larger for mean_value in stated.mean)
    scale = tuple(scale_value / larger for scale_value in stated.scale)
    return PixelNumbers(mean, scale, bits)
