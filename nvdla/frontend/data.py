"""Calibration data: arrays, mappings, iterables, files and folders of images as feeds of the float model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.containers.npz_members import read_npz
from nvdla.errors import FormatError, shape_text
from nvdla.files import read_file
from nvdla.frontend.model import Model
from nvdla.tensors.npy import parse_npy
from nvdla.tensors.preprocessing import Preprocessing

IMAGES = (".png", ".jpg", ".jpeg", ".ppm", ".pgm")
MAX_FILE = 4 << 30
MAX_SAMPLES = 100_000


class Samples:
    """Feeds for the float model, one after the other; can be gone through again. ``sha256`` of all of them."""

    def __init__(self, feeds: list[Any], load: Any) -> None:
        self._feeds, self._load = feeds, load
        self._digest = hashlib.sha256()
        self._hashed = False

    def __len__(self) -> int:
        return len(self._feeds)

    def __iter__(self) -> Any:
        for each in self._feeds:
            feed = self._load(each)
            if not self._hashed:
                for name in sorted(feed):
                    self._digest.update(name.encode())
                    self._digest.update(np.ascontiguousarray(feed[name]).tobytes())
            yield feed
        self._hashed = True

    def each_image(self, images: int) -> Samples:
        """These samples, an image of a batch at a time."""
        if images == 1:
            return self
        places = [(feed, image) for feed in self._feeds for image in range(images)]

        def load(place: tuple[Any, int]) -> dict[str, np.ndarray]:
            feed, image = place
            return {name: array[image : image + 1] for name, array in self._load(feed).items()}

        return Samples(places, load)

    @property
    def sha256(self) -> str:
        """After the first time through."""
        return self._digest.hexdigest()


def samples(model: Model, data: Any, preprocessing: Preprocessing | None = None, limit: int | None = None) -> Samples:
    """Calibration data in any form that :func:`nvdla.compile` takes. Raises FormatError naming input and shape."""
    if isinstance(data, Samples):
        return data
    preprocessing = preprocessing or Preprocessing()
    if isinstance(data, str | os.PathLike):
        return _from_path(model, Path(data), preprocessing, limit)
    if isinstance(data, Mapping):
        return _from_arrays(model, {name: np.asarray(array) for name, array in data.items()}, limit)
    if isinstance(data, np.ndarray):
        return _from_arrays(model, {_only_input(model): data}, limit)
    if not isinstance(data, Iterable):
        raise FormatError(
            f"calibration data of type {type(data).__name__}: give an array, a mapping, samples or a folder"
        )
    feeds = []
    for number, each in enumerate(data):
        if number >= min(limit or MAX_SAMPLES, MAX_SAMPLES):
            break
        one = {_only_input(model): each} if not isinstance(each, Mapping) else each
        feeds.append({name: _sample(model, name, np.asarray(array)) for name, array in _known(model, one).items()})
    if not feeds:
        raise FormatError("calibration data is empty; give at least one sample")
    return Samples(feeds, lambda feed: feed)


def _only_input(model: Model) -> str:
    if len(model.inputs) != 1:
        raise FormatError(f"the model has the inputs {', '.join(model.inputs) or 'none'}: give data by name")
    return model.inputs[0]


def _known(model: Model, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
    missing = [name for name in model.inputs if name not in arrays]
    extra = [name for name in arrays if name not in model.inputs]
    if missing or extra:
        raise FormatError(
            f"calibration data has {', '.join(arrays) or 'no inputs'}; the model's inputs are {', '.join(model.inputs)}"
        )
    return arrays


def _sample(model: Model, name: str, array: np.ndarray) -> np.ndarray:
    """One sample as the model takes it: with its batch dimension or without."""
    shape = model.shapes[name]
    if array.size != int(np.prod(shape)) or (array.shape != shape and array.shape != shape[1:]):
        raise FormatError(
            f"calibration data of shape {shape_text(array.shape)} for input {name} of shape {shape_text(shape)}"
        )
    made = np.ascontiguousarray(array, dtype=model.types[name]).reshape(shape)
    if made.dtype.kind == "f" and not np.all(np.isfinite(made)):
        raise FormatError(f"calibration data for input {name} holds NaN or infinity")
    return made


def _from_arrays(model: Model, arrays: Mapping[str, np.ndarray], limit: int | None) -> Samples:
    """Arrays whose first dimension counts samples, or rows of the model's own batch."""
    stacks = {}
    for name, array in _known(model, arrays).items():
        shape = model.shapes[name]
        batch = shape[0] if shape else 1
        if array.shape == shape and array.ndim and batch != 1:
            array = array[None]
        elif array.shape[1:] == shape[1:] and array.ndim == len(shape) and array.ndim:
            if len(array) < batch or not batch:
                raise FormatError(f"calibration data of {len(array)} rows for input {name}, whose batch is {batch}")
            array = array[: len(array) // batch * batch].reshape(-1, *shape)
        elif array.shape[1:] != shape:
            raise FormatError(
                f"calibration data of shape {shape_text(array.shape)} for input {name}: "
                f"it must be samples of {shape_text(shape)}"
            )
        stacks[name] = array
    counts = {len(array) for array in stacks.values()}
    if len(counts) > 1 or 0 in counts:
        raise FormatError(
            f"calibration data: inputs have {sorted(counts)} samples; give as many for each, at least one"
        )
    count = min(counts.pop() if counts else 1, limit or MAX_SAMPLES)

    def load(number: int) -> dict[str, np.ndarray]:
        return {name: _sample(model, name, array[number]) for name, array in stacks.items()}

    return Samples(list(range(count)), load)


def _from_path(model: Model, path: Path, preprocessing: Preprocessing, limit: int | None) -> Samples:
    if path.is_dir():
        return _from_folder(model, path, preprocessing, limit)
    if path.suffix.lower() in IMAGES:
        return _from_images(model, [path], preprocessing)
    if path.suffix not in (".npy", ".npz"):
        raise FormatError(f"calibration data {path}: give a folder of images or arrays, an image, .npy or .npz")
    return _from_arrays(model, _arrays(model, path), limit)


def _arrays(model: Model, path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        return read_npz(path)
    return {_only_input(model): parse_npy(read_file(path, MAX_FILE, "calibration data"), f"calibration data {path}")}


def _from_folder(model: Model, folder: Path, preprocessing: Preprocessing, limit: int | None) -> Samples:
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    images = [each for each in files if each.suffix.lower() in IMAGES]
    arrays = [each for each in files if each.suffix in (".npy", ".npz")]
    if images:
        return _from_images(model, images[: limit or MAX_SAMPLES], preprocessing)
    if not arrays:
        raise FormatError(f"calibration folder {folder} has no images ({', '.join(IMAGES)}) and no .npy or .npz files")

    def load(path: Path) -> dict[str, np.ndarray]:
        return {name: _sample(model, name, array) for name, array in _known(model, _arrays(model, path)).items()}

    return Samples(arrays[: limit or MAX_SAMPLES], load)


def _from_images(model: Model, images: list[Path], preprocessing: Preprocessing) -> Samples:
    name = _only_input(model)

    def load(path: Path) -> dict[str, np.ndarray]:
        return {name: preprocessing.image(path, model.shapes[name])}

    return Samples(images, load)
