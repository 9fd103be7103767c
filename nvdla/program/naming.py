"""Names, stored formats and layer files of tensors.

A layer file (:mod:`nvdla.program.naming`) states both where they differ from what is usual. An operation of a layer
usually writes all of the layer's tensor, element by element; otherwise the file has ``writes`` with the tensor (None:
an intermediate result), ``first`` and ``size`` (channel, row, column), ``stride`` (rows, columns), ``atoms`` (the lines
of the result are groups of channels) and ``image``. The key ``model`` has the value of the model that a tensor holds:
its ``value``, ``shape``, the ``index`` of its elements in the tensor, and for integers of a quantized model ``scale``
and ``zero_point``; ``inputs`` has the same of bound inputs. ``outputs`` has the layer that makes a bound output, where
it has another name, ``macs`` the multiplications of the model's nodes.

A YAML file names the tensors that operations write, and the real number that one unit of an integer stands for::

    layers:
      0/1: conv1        # task/operation: name
      0/2: pool1
    scales:
      conv1: 0.0203

A calibration table is the JSON that NVIDIA's compiler takes: ``{"conv1": {"scale": 0.0203, "min": 0, "max": 0,
"offset": 0}, ...}``.

A loadable does not contain layer names. They are in ``<loadable>.layers.json``::

    {"format": "nvdla-layers", "version": 1, "network": "lenet", "config": "nv_small", "precision": "int8",
     "tensors": {"conv1": {"scale": 0.01, "shape": [20, 24, 24], "zero_point": -128, "limited": ["low"]}},
     "tasks": [{"task": 0, "kind": "dla",
                "operations": [{"index": 0, "engine": "conv", "layer": "conv1+relu1", "part": ""}]}]}
"""

from __future__ import annotations

import math
import os
import re
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.errors import FormatError, NvdlaError
from nvdla.loadable.model import Loadable
from nvdla.tensors.real import Cube, ModelValue, Units, entry_of, pixels_of, whole_number
from nvdla.util.escaping import Document, Json
from nvdla.util.files import is_file, parse_json, read_file
from nvdla.util.yaml import read_yaml

Limited = dict[str, np.ndarray | None]


@dataclass(frozen=True)
class StoredPlace:
    """Place of a result: ``tensor`` of ``shape`` (C, H, W), None for an intermediate result.

    ``first``, ``size``, ``stride``: the part that it writes (``size`` None: all of it). ``atoms``: the result is a cube
    (channels of an atom, atoms, 1) of a tensor of 1x1. ``image``: the image of a batch.
    """

    tensor: str | None
    shape: Cube
    first: Cube = (0, 0, 0)
    size: Cube | None = None
    stride: tuple[int, int] = (1, 1)
    atoms: bool = False
    image: int = 0

    def positions(self, written: Cube) -> np.ndarray | None:
        """Return the position in the tensor (C, H, W) of each element of a result, -1 for elements beyond it.

        None where a result of this shape does not fit, or where it is intermediate.
        """
        if self.tensor is None or not math.prod(written):
            return None
        if self.atoms:
            positions = self.first[0] + np.arange(written[0])[:, None] + written[0] * np.arange(written[1])
            positions = np.where(positions < self.shape[0], positions, -1)
        else:
            size = self.size or self.shape
            if math.prod(size) != math.prod(written):
                return None
            axes = zip(self.first, size, (1, *self.stride), strict=True)
            places = [start + stride * np.arange(count) for start, count, stride in axes]
            if any(axis_places[-1] >= end for axis_places, end in zip(places, self.shape, strict=True)):
                return None
            positions = (places[0][:, None, None] * self.shape[1] + places[1][:, None]) * self.shape[2] + places[2]
        return positions.reshape(written) if positions.size == math.prod(written) else None


def place_of(document: Any, shapes: Mapping[str, Cube], what: str) -> StoredPlace:
    """Read ``writes`` of an operation. Raises FormatError."""
    name = entry_of(document, "tensor", (str, type(None)), what)
    numbers = {key: _cube(document[key], f"{what}: {key}", 3) for key in ("first", "size") if key in document}
    if "stride" in document:
        numbers["stride"] = _cube(document["stride"], f"{what}: stride", 2, 1)
    image, atoms = whole_number(document.get("image", 0), f"{what}: image"), bool(document.get("atoms", False))
    return StoredPlace(
        name if name in shapes else None, shapes.get(name, (0, 0, 0)), atoms=atoms, image=image, **numbers
    )


def value_of(document: Any, what: str) -> ModelValue | None:
    """Read the place of a tensor in the model; None if its order is unknown. Raises FormatError."""
    name, shape = entry_of(document, "value", str, what), entry_of(document, "shape", list, what)
    sizes = tuple(whole_number(size, f"{what}: shape") for size in shape)
    order, units = document.get("index"), None
    if order is False:
        return None
    if "scale" in document:
        scale = document["scale"]
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < math.inf:
            raise FormatError(f"{what}: scale: must be a positive number")
        units = Units(float(scale), whole_number(document.get("zero_point", 0), f"{what}: zero_point", -(1 << 15)))
    return ModelValue(name, sizes, order, units)


def _cube(value: object, what: str, count: int, least: int = 0) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) != count:
        raise FormatError(f"{what}: must be {count} whole numbers")
    return tuple(whole_number(number, what, least) for number in value)


MAX_FILE = 16 << 20
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxother = 1, 80
OPERATION = re.compile(r"([0-9]{1,9})/([0-9]{1,9})\Z")


@dataclass(frozen=True)
class Names:
    """``layers``: (task, operation) -> layer; ``scales``: name of a layer or tensor -> real value of one unit;
    ``preprocessing``: how the model takes images (:meth:`nvdla.tensors.inputs.Preprocessing.of`), as in
    the layer file, and so do the inputs that take unsigned ``pixels``
    (:func:`nvdla.tensors.real.pixels_of`). ``zero_points``: name of a tensor -> the element that stands for 0,
    where that is not 0. ``factors``: name of a tensor -> what its channels (C,) were divided by. ``shapes``: name of a
    tensor -> (C, H, W). ``places``: (task, operation) -> where it writes, where that is not all of its layer's tensor.
    ``shared``: (task, operation) -> the parts of other layers' tensors that it writes at the same time.
    ``values``: name of a tensor -> the model's value in it, None where its order is not known; ``inputs``: the same of
    bound inputs; ``results``: of bound outputs. ``limited``: name of a tensor -> the ends of its range, "low" and
    "high", at which nothing is lost, with the channels, None for all: bounds of its function, or (``cut``) beyond them
    all functions that take it stay as they are. ``operators``: name of a layer -> the operator of its node in the
    model ("Conv", "Concat"). ``outputs``: name of a bound output -> the layer that makes it, where that has another
    name: in Caffe an output may have the name of a layer whose result was replaced in place. ``macs``: multiplications
    of the model; 0 where not known. ``channels_last``: the model has tensors (N, H, W, C)."""

    layers: dict[tuple[int, int], str] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    preprocessing: Document | None = None
    pixels: Json = None
    zero_points: dict[str, int] = field(default_factory=dict)
    factors: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, Cube] = field(default_factory=dict)
    places: dict[tuple[int, int], StoredPlace] = field(default_factory=dict)
    shared: dict[tuple[int, int], list[StoredPlace]] = field(default_factory=dict)
    values: dict[str, ModelValue | None] = field(default_factory=dict)
    inputs: dict[str, ModelValue] = field(default_factory=dict)
    limited: dict[str, Limited] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    macs: int = 0
    cut: dict[str, Limited] = field(default_factory=dict)
    results: dict[str, ModelValue] = field(default_factory=dict)
    channels_last: bool = False

    def __or__(self, other: Names) -> Names:
        """Both; where both state something, the other. An operation with another name has no known place. A scale that
        the other states for an output, but not for its layer, is that of the output."""
        renamed = {key for key, name in other.layers.items() if self.layers.get(key) != name}
        outputs = {
            name: layer
            for name, layer in self.outputs.items()
            if name not in other.scales or other.tensor(layer) not in (None, name)
        }
        kept = {key: place for key, place in self.places.items() if key not in renamed}
        return Names(
            self.layers | other.layers,
            self.scales | other.scales,
            self.preprocessing if other.preprocessing is None else other.preprocessing,
            self.pixels if other.pixels is None else other.pixels,
            self.zero_points | other.zero_points,
            self.factors | other.factors,
            self.shapes | other.shapes,
            kept | other.places,
            {key: names for key, names in self.shared.items() if key not in renamed} | other.shared,
            self.values | other.values,
            self.inputs | other.inputs,
            self.limited | other.limited,
            self.operators | other.operators,
            outputs | other.outputs,
            other.macs or self.macs,
            self.cut | other.cut,
            self.results | other.results,
            self.channels_last or other.channels_last,
        )

    def agree(self, other: Names) -> bool:
        """Check whether no tensor of both has another scale or zero point in ``other``."""
        both = self.scales.keys() & other.scales.keys()
        return all(
            (self.scales[name], self.zero_points.get(name)) == (other.scales[name], other.zero_points.get(name))
            for name in both
        )

    def scale(self, name: str | None) -> float | None:
        """The scale of a layer; of "conv1+relu1" that of its last part that has one."""
        return next((self.scales[part] for part in parts(name) if part in self.scales), None)

    def zero_point(self, name: str | None) -> int:
        """The element that stands for 0 in what :meth:`scale` knows the scale of; 0 where nothing else is known."""
        return self.zero_points.get(self.tensor(name) or "", 0)

    def tensor(self, name: str | None) -> str | None:
        """The tensor of a layer: of "conv1+relu1" that of its last part that has a scale; None where none has."""
        return next((part for part in parts(name) if part in self.scales), None)

    def units_of_output(self, name: str, dtype: np.dtype) -> Units | None:
        """Return the units of a bound output's elements, None for integers without a scale."""
        return self.units(self.outputs.get(name, name), dtype)

    @property
    def owners(self) -> dict[str, str]:
        """Name of a bound input -> that of the model's input that it is taken from."""
        return {name: value.name for name, value in self.inputs.items()}

    def rearranged(self, name: str, cube: Cube) -> ModelValue | None:
        """Return the model's input that a bound tensor (C, H, W) is taken from, unless it is merely its planes."""
        value = self.inputs.get(name)
        return None if value is None else value.rearranged(cube)

    def place(self, task: int, operation: int, layer: str | None, written: Cube) -> StoredPlace | None:
        """Return the place of an operation's result (C, H, W), None where it is not known."""
        place = self.places.get((task, operation))
        if place is None:
            tensor = self.tensor(layer)
            place = StoredPlace(tensor, self.shapes[tensor]) if tensor in self.shapes else None
        known = place is not None and (place.tensor is None or place.positions(written) is not None)
        return place if known else None

    def units(self, name: str | None, dtype: np.dtype, channels: np.ndarray | None = None) -> Units | None:
        """Return the units of a tensor's or layer's elements, None for integers without a scale.

        ``channels``: the channels of the tensor that the elements belong to, where those are not all of them.
        """
        tensor = self.tensor(name)
        numbers = pixels_of(self.pixels).get(name or "")
        if numbers is not None:
            return numbers.units(self.shapes.get(name or "", (len(numbers.mean),))[0])
        factors = self.factors.get(tensor or name or "")
        if factors is not None and channels is not None:
            factors = factors[channels]
        if dtype.kind == "f":
            return Units(factors=factors)
        return None if tensor is None else Units(self.scales[tensor], self.zero_points.get(tensor, 0), factors)


def parts(name: str | None) -> list[str]:
    """Other names of several layers in one operation: its whole name, then its parts from the last to the first."""
    if not name:
        return []
    pieces = name.split("+")
    return [name] if len(pieces) == 1 else [name, *reversed(pieces)]


def names_for(
    loadable: str | os.PathLike[str],
    layers: str | os.PathLike[str] | None = None,
    calibration: str | os.PathLike[str] | None = None,
) -> Names:
    """All that is known: the loadable's layer file, then the calibration table, then the YAML file. FormatError."""
    names = from_sidecar(loadable)
    if calibration:
        names |= from_calibration(calibration)
    if layers:
        names |= from_yaml(layers)
    return names


def names_of(loadable: Loadable) -> Names:
    """The names of a loadable: of its layer file, in memory or next to its file. Raises FormatError."""
    data = loadable.layer_file
    return from_sidecar(loadable.name) if data is None else from_layer_file({**data}, f"layers of {loadable.name}")


def compiled_for(loadable: Loadable) -> str:
    """Return the name of the configuration that the layer file states, "" where it states none or cannot be read."""
    try:
        data = loadable.layer_file or load(loadable.name) or {}
    except NvdlaError:  # who needs the names reports it
        return ""
    name = data.get("config")
    return name if isinstance(name, str) else ""


def from_sidecar(loadable: str | os.PathLike[str]) -> Names:
    """The layer file ``LOADABLE.layers.json`` that :mod:`nvdla.compiler.builder` writes; nothing without one."""
    data = load(os.fspath(loadable))
    return Names() if data is None else from_layer_file(data, f"layer file of {loadable}")


def from_layer_file(data: Document, where: str) -> Names:
    """Return the names in the content of a layer file. ``where``: what it is called in errors. Raises FormatError."""
    tensors = rows if isinstance(rows := data.get("tensors"), dict) else {}
    known = [(str(name), row, f"{where}, tensor {name}") for name, row in tensors.items() if isinstance(row, dict)]
    scales = {name: _scale(row["scale"], what) for name, row, what in known if row.get("scale") is not None}
    points = {name: _zero_point(row["zero_point"], what) for name, row, what in known if row.get("zero_point")}
    shapes = {name: tuple(row["shape"]) for name, row, _ in known if _is_cube(row.get("shape"))}
    factors = {
        str(name): _factors(row, f"{where}: factors of {name}", shapes.get(name))
        for name, row in _mapping(data.get("factors"), f"{where}: factors").items()
    }
    places = {
        key: place_of(row, shapes, f"{where}, operation {key[0]}/{key[1]}")
        for key, row in operations(data, "writes").items()
    }
    shared = {
        key: [place_of(place, shapes, f"{where}, operation {key[0]}/{key[1]}") for place in _listed(rows, where)]
        for key, rows in operations(data, "also").items()
    }
    values = {
        key: {
            str(name): value_of(row, f"{where}: {key}: {name}")
            for name, row in _mapping(data.get(key), f"{where}: {key}").items()
        }
        for key in ("model", "inputs", "results")
    }
    inputs, results = ({name: value for name, value in values[key].items() if value} for key in ("inputs", "results"))
    return Names(
        layers(data),
        scales,
        data.get("preprocessing") or None,
        data.get("pixels") or None,
        points,
        factors,
        shapes,
        places,
        shared,
        values["model"],
        inputs,
        _limited(tensors, "limited"),
        {
            str(layer): str(row.get("op"))
            for row in _mapping(data.get("nodes"), f"{where}: nodes").values()
            if isinstance(row, dict) and isinstance(row.get("layers"), list)
            for layer in row["layers"]
        },
        {str(name): str(layer) for name, layer in _mapping(data.get("outputs"), f"{where}: outputs").items()},
        data["macs"] if type(data.get("macs")) is int and data["macs"] > 0 else 0,
        _limited(tensors, "cut"),
        results,
        is_channels_last(data),
    )


def is_channels_last(data: Document) -> bool:
    """Check whether a layer file or the manifest of a package states a model with tensors (N, H, W, C)."""
    return isinstance(source := data.get("source"), dict) and source.get("channels_last") is True


def _limited(tensors: Document, key: str) -> dict[str, Limited]:
    return {str(name): limited_of(row, key) for name, row in tensors.items() if isinstance(row, dict)}


def limited_of(row: Document, key: str = "limited") -> Limited:
    """The ends of a tensor's range at which nothing is lost, from its row of a layer file."""
    whole, some = row.get(key), row.get(f"{key}_channels")
    rows = some.items() if isinstance(some, dict) else ()
    channels = {str(end): np.array(numbers) for end, numbers in rows if isinstance(numbers, list)}
    limited: Limited = {end: numbers for end, numbers in channels.items() if numbers.dtype.kind == "i"}
    return limited | (dict.fromkeys(map(str, whole)) if isinstance(whole, list) else {})


def at_limits(limited: Limited, count: int) -> np.ndarray:
    """Return whether nothing is lost at the lower and the upper end, for each channel (2, count)."""
    masks = np.zeros((2, count), bool)
    for mask, end in zip(masks, ("low", "high"), strict=True):
        if end in limited:
            channels = limited[end]
            mask[slice(None) if channels is None else channels[(channels >= 0) & (channels < count)]] = True
    return masks


def _listed(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise FormatError(f"{where}: also: must be a list")
    return value


def _is_cube(shape: Any) -> bool:
    whole = isinstance(shape, list) and all(type(size) is int and 0 < size < 1 << 24 for size in shape)
    return whole and len(shape) == 3


def _factors(values: object, what: str, shape: Cube | None) -> np.ndarray:
    if not isinstance(values, list) or not all(map(is_scale, values)):
        raise FormatError(f"{what}: must be a list of positive numbers")
    if shape is not None and len(values) != shape[0]:
        raise FormatError(f"{what}: must have {shape[0]} numbers, one per channel, got {len(values)}")
    return np.array(values, np.float64)


def from_yaml(path: str | os.PathLike[str]) -> Names:
    """A YAML file with ``layers`` and ``scales``. Raises FormatError that names the entry."""
    name = os.fspath(path)
    document = read_yaml(path, "layer file")
    _check_is_table(document, name, "YAML with the keys 'layers' and 'scales'")
    if not isinstance(document, dict) or any(key not in ("layers", "scales") for key in document):
        raise FormatError(f"{name}: must be a mapping with the keys 'layers' and 'scales'")
    layers = {}
    for key, value in _mapping(document.get("layers"), f"{name}: layers").items():
        match = OPERATION.match(key) if isinstance(key, str) else None
        if match is None or not isinstance(value, str):
            entry = f"{shortened(key)}: {shortened(value)}"
            raise FormatError(f"{name}: layers: must be TASK/OPERATION: NAME, such as 0/1: conv1, got {entry}")
        layers[int(match[1]), int(match[2])] = value
    scales = _mapping(document.get("scales"), f"{name}: scales")
    return Names(layers, {_name(key): _scale(value, f"{name}: scales: {_name(key)}") for key, value in scales.items()})


def from_calibration(path: str | os.PathLike[str]) -> Names:
    """A calibration table of NVIDIA's compiler. Raises FormatError."""
    table = read_calibration(path)
    return Names(scales={name: _scale(entry.get("scale"), f"{path}: {name}") for name, entry in table.items()})


def read_calibration(path: str | os.PathLike[str]) -> dict[str, Document]:
    """Return the entries of a calibration table, unchanged. Raises FormatError for other files."""
    name = os.fspath(path)
    try:
        document = parse_json(read_file(path, MAX_FILE, "calibration table"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: calibration table: must be JSON: {error}") from None
    _check_is_table(document, name, "a calibration table")
    if not isinstance(document, dict) or not all(isinstance(entry, dict) for entry in document.values()):
        raise FormatError(f'{name}: calibration table: must be a mapping ({{"layer": {{"scale": number}}, ...}})')
    return document


def _check_is_table(document: object, name: str, wanted: str) -> None:
    """Raise FormatError for a layer file, which has no option."""
    if isinstance(document, dict) and document.get("format") == FORMAT:
        raise FormatError(f"{name}: must be {wanted}, got a layer file. Copy it to LOADABLE{SUFFIX}.")


def _zero_point(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -128 <= value <= 127:
        raise FormatError(f"{what}: zero point: must be a whole number -128 .. 127, got {shortened(value)}")
    return value


def _name(key: object) -> str:
    return key if isinstance(key, str) else shortened(key)


def shortened(value: object) -> str:
    """A value from a file for a message: of lists within lists, which may share what they hold, only the outermost."""
    try:
        return _BRIEF.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a large {type(value).__name__}"


def _mapping(value: object, where: str) -> dict[Any, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FormatError(f"{where}: must be a mapping, got {type(value).__name__}")
    return value


def _scale(value: Any, where: str) -> float:
    if not is_scale(value):
        raise FormatError(f"{where}: scale: must be a positive number, got {shortened(value)}")
    return float(value)


def is_scale(value: Any) -> bool:
    """True for a positive number that a float holds."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value <= sys.float_info.max


FORMAT, VERSION = "nvdla-layers", 1
SUFFIX = ".layers.json"


def path_of(loadable: str | Path) -> Path:
    """Return the path of a loadable's layer file."""
    return Path(str(loadable) + SUFFIX)


def load(loadable: str | Path) -> Document | None:
    """The sidecar of a loadable, None where there is none. Raises FormatError when it is not one."""
    path = path_of(loadable)
    if not is_file(path):  # the user did not name it, so do not wait for a pipe
        return None
    try:
        data = parse_json(read_file(path, MAX_FILE, "layer file"))
    except (ValueError, RecursionError) as reason:
        raise FormatError(f"{path}: layer file: must be JSON: {reason}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("tasks"), list):
        raise FormatError(f"{path}: layer file: must have format {FORMAT!r} and a list of tasks")
    if data.get("version") != VERSION:
        raise FormatError(f"{path}: layer file version: must be {VERSION}, got {data.get('version')!r}")
    return data


def layers(data: Document) -> dict[tuple[int, int], str]:
    """(task, operation) -> layer, from a sidecar."""
    return {key: str(layer) for key, layer in operations(data, "layer", needed=True).items()}


def operations(data: Document, entry: str, needed: bool = False) -> dict[tuple[int, int], object]:
    """(task, operation) -> what the sidecar states of it under ``entry``. Raises FormatError for what is none, and
    where an operation lacks a ``needed`` entry."""
    rows: dict[tuple[int, int], object] = {}
    for task in data["tasks"]:
        try:
            for operation in task["operations"]:
                if needed or entry in operation:
                    rows[int(task["task"]), int(operation["index"])] = operation[entry]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise FormatError("layer file: a task: must have a number, and operations with index and layer") from None
    return rows


def builders_choices(loadable: str | Path) -> dict[str, Document]:
    """Return the candidates that the builder evaluated for each convolution ("TASK/OPERATION"), from the layer file:
    ``level``, ``memory``, ``forms``, ``taken`` (None where it had no choice), ``search``, ``groups`` (None, or for a
    layer of groups how many one convolution takes). Empty without a layer file. Raises FormatError for another file.
    """
    kept = (load(loadable) or {}).get("evaluated")
    if kept is None:
        return {}
    try:
        memory, search = _memory(kept["memory"]), kept["search"] and _search(kept["search"])
        common = {"level": int(kept["level"]), "memory": memory, "search": search}
        rows = [
            (list(map(str, layer["operations"])), int(layer["taken"]), list(map(_form, layer["forms"])))
            for layer in kept["layers"]
        ]
        groups = {label: _groups(layer) for layer in kept.get("groups", ()) for label in map(str, layer["operations"])}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{path_of(loadable)}: evaluated candidates: must have correct fields, but {error!r} is wrong or missing"
        ) from None
    choices = dict.fromkeys(groups, common | {"taken": None, "forms": []})
    choices |= {label: common | {"taken": taken, "forms": forms} for labels, taken, forms in rows for label in labels}
    return {label: choice | {"groups": groups.get(label)} for label, choice in choices.items()}


def _groups(row: Any) -> Document:
    names = "groups", "convolutions", "cycles"
    forms = [{name: int(form[name]) for name in names} for form in row["forms"]]
    return {"groups": int(row["groups"]), "taken": int(row["taken"]), "forms": forms}


def _memory(row: Any) -> Document:
    rate = row["bytes_per_cycle"]
    rate = None if rate is None else float(rate)
    return {"latency": int(row["latency"]), "bytes_per_cycle": rate, "shared": bool(row["shared"])}


def _search(row: Any) -> Document:
    numbers = {name: int(row[name]) for name in ("steps", "cycles_before", "cycles")}
    return {"complete": bool(row["complete"]), **numbers}


def _form(row: Any) -> Document:
    numbers = {name: int(row[name]) for name in ("parts", "data_banks", "weight_banks", "cycles")}
    flags = {"keeps_weights": bool(row["keeps_weights"]), "compressed": bool(row.get("compressed", False))}
    return {"form": str(row["form"]), **flags, **numbers}
