"""Names of layers and scales of tensors: from the layer file beside a loadable, a YAML file, a calibration table.

A YAML file names the tensors that operations write, and the real number that one unit of an integer stands for::

    layers:
      0/1: conv1        # task/operation: name
      0/2: pool1
    scales:
      conv1: 0.0203

A calibration table is the JSON that NVIDIA's compiler takes: ``{"conv1": {"scale": 0.0203, "min": 0, "max": 0,
"offset": 0}, ...}``.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvdla.errors import FormatError
from nvdla.files import read_file
from nvdla.plain_yaml import read_yaml

MAX_FILE = 16 << 20
_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxother = 1, 80
OPERATION = re.compile(r"(\d{1,9})/(\d{1,9})\Z")


@dataclass(frozen=True)
class Names:
    """``layers``: (task, operation) -> layer; ``scales``: name of a layer or tensor -> real value of one unit;
    ``preprocessing``: how the model takes images (:meth:`nvdla.tensors.preprocessing.Preprocessing.of`), as it stands
    in the layer file, and so do the inputs that take unsigned ``pixels``
    (:func:`nvdla.tensors.pixel_numbers.pixels_of`). ``zero_points``: name of a tensor -> the element that stands for 0,
    where that is not 0."""

    layers: dict[tuple[int, int], str] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    preprocessing: Any = None
    pixels: Any = None
    zero_points: dict[str, int] = field(default_factory=dict)

    def __or__(self, other: Names) -> Names:
        """Both; where both say something, the other."""
        preprocessing = self.preprocessing if other.preprocessing is None else other.preprocessing
        pixels = self.pixels if other.pixels is None else other.pixels
        points = self.zero_points | other.zero_points
        return Names(self.layers | other.layers, self.scales | other.scales, preprocessing, pixels, points)

    def scale(self, name: str | None) -> float | None:
        """The scale of a layer; of "conv1+relu1" that of its last part that has one."""
        return next((self.scales[part] for part in parts(name) if part in self.scales), None)

    def zero_point(self, name: str | None) -> int:
        """The element that stands for 0 in what :meth:`scale` knows the scale of; 0 where nothing else is known."""
        known = next((part for part in parts(name) if part in self.scales), "")
        return self.zero_points.get(known, 0)


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
    found = from_sidecar(loadable)
    if calibration:
        found |= from_calibration(calibration)
    if layers:
        found |= from_yaml(layers)
    return found


def from_sidecar(loadable: str | os.PathLike[str]) -> Names:
    """The layer file ``LOADABLE.layers.json`` that :mod:`nvdla.builder` writes; nothing where there is none."""
    if not Path(f"{os.fspath(loadable)}.layers.json").exists():
        return Names()
    from nvdla.program import sidecar

    data = sidecar.load(os.fspath(loadable))
    if data is None:
        return Names()
    found = data.get("tensors")
    tensors = found if isinstance(found, dict) else {}
    scales = {
        str(name): _scale(each.get("scale"), f"layer file of {loadable}, tensor {name}")
        for name, each in tensors.items()
        if isinstance(each, dict) and each.get("scale") is not None
    }
    points = {
        str(name): _zero_point(each["zero_point"], f"layer file of {loadable}, tensor {name}")
        for name, each in tensors.items()
        if isinstance(each, dict) and each.get("zero_point")
    }
    preprocessing, pixels = data.get("preprocessing") or None, data.get("pixels") or None
    return Names(sidecar.layers(data), scales, preprocessing, pixels, points)


def from_yaml(path: str | os.PathLike[str]) -> Names:
    """A YAML file with ``layers`` and ``scales``. Raises FormatError that names the entry."""
    name = os.fspath(path)
    document = read_yaml(path, "layer file")
    if not isinstance(document, dict) or any(key not in ("layers", "scales") for key in document):
        raise FormatError(f"{name}: must be a mapping with the keys 'layers' and 'scales'")
    layers = {}
    for key, value in _mapping(document.get("layers"), f"{name}: layers").items():
        match = OPERATION.match(key) if isinstance(key, str) else None
        if match is None or not isinstance(value, str):
            entry = f"{shortened(key)}: {shortened(value)}"
            raise FormatError(f"{name}: layers: {entry} must be TASK/OPERATION: NAME, such as 0/1: conv1")
        layers[int(match[1]), int(match[2])] = value
    scales = _mapping(document.get("scales"), f"{name}: scales")
    return Names(layers, {_name(key): _scale(value, f"{name}: scales: {_name(key)}") for key, value in scales.items()})


def from_calibration(path: str | os.PathLike[str]) -> Names:
    """A calibration table of NVIDIA's compiler. Raises FormatError."""
    table = read_calibration(path)
    return Names(scales={name: _scale(entry.get("scale"), f"{path}: {name}") for name, entry in table.items()})


def read_calibration(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The entries of a calibration table as they stand. Raises FormatError when it is none."""
    name = os.fspath(path)
    try:
        document = json.loads(read_file(path, MAX_FILE, "calibration table"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: not JSON: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(entry, dict) for entry in document.values()):
        raise FormatError(f'{name}: not a calibration table ({{"layer": {{"scale": number}}, ...}})')
    return document


def _zero_point(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -128 <= value <= 127:
        raise FormatError(f"{what}: zero point {shortened(value)} must be a whole number -128 .. 127")
    return value


def _name(key: Any) -> str:
    return key if isinstance(key, str) else shortened(key)


def shortened(value: Any) -> str:
    """A value from a file for a message: of lists within lists, which may share what they hold, only the outermost."""
    try:
        return _BRIEF.repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a large {type(value).__name__}"


def _mapping(value: Any, where: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FormatError(f"{where} must be a mapping, not {type(value).__name__}")
    return value


def _scale(value: Any, where: str) -> float:
    if not is_scale(value):
        raise FormatError(f"{where}: scale is {shortened(value)}, must be a positive number")
    return float(value)


def is_scale(value: Any) -> bool:
    """True for a positive number that a float holds."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 < value <= sys.float_info.max
