"""Scales from the calibration files of other tools: NVIDIA's JSON, a TensorRT cache, an onnxruntime table.

* NVIDIA's compiler: ``{"conv1": {"scale": 0.02, "min": 0, "max": 0, "offset": 0}}``.
* TensorRT: a text whose first line begins with ``TRT-``, then ``name: 3ca10a14``: the scale as the bits of a float32.
* onnxruntime: ``calibration.json`` with the lowest and highest value of each tensor (or a list of both), or
  ``calibration.cache``, a text of ``name largest``.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvdla.errors import FormatError
from nvdla.files import read_file
from nvdla.program.naming import shortened

MAX_FILE = 16 << 20
LARGEST = 127


@dataclass(frozen=True)
class ScaleTable:
    """Magnitudes by the names of the file; ``kind``: "NVIDIA JSON", "TensorRT cache" or "onnxruntime table"."""

    kind: str
    magnitudes: Mapping[str, float]


def read_table(path: str | os.PathLike[str]) -> ScaleTable:
    """A calibration file of any of the three tools. Raises FormatError naming file, entry and reason."""
    name = os.fspath(path)
    data = read_file(path, MAX_FILE, "calibration table")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{name}: a calibration table is JSON or text, this is neither") from None
    if text.lstrip()[:1] in ("{", "["):
        table = _json(name, text)
    elif text.startswith("TRT-"):
        table = ScaleTable("TensorRT cache", dict(_tensorrt(name, line) for line in _lines(text)[1:]))
    else:
        table = ScaleTable("onnxruntime table", dict(_cache(name, line) for line in _lines(text)))
    if not table.magnitudes:
        raise FormatError(f"{name}: {table.kind} without any tensor")
    for tensor, magnitude in table.magnitudes.items():
        if not (math.isfinite(magnitude) and magnitude >= 0):
            raise FormatError(f"{name}: tensor {tensor} has magnitude {magnitude}; it must be a positive finite number")
    return ScaleTable(table.kind, {tensor: each for tensor, each in table.magnitudes.items() if each > 0})


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _tensorrt(name: str, line: str) -> tuple[str, float]:
    tensor, colon, bits = line.rpartition(":")
    try:
        if not colon or len(bits.strip()) != 8:
            raise ValueError
        scale = struct.unpack(">f", bytes.fromhex(bits.strip()))[0]
    except ValueError:
        raise FormatError(f"{name}: {line[:80]!r} is not NAME: and eight hexadecimal digits") from None
    return tensor.strip(), scale * LARGEST


def _cache(name: str, line: str) -> tuple[str, float]:
    tensor, _, number = line.rpartition(" ")
    try:
        return tensor.strip(), abs(float(number))
    except ValueError:
        raise FormatError(f"{name}: {line[:80]!r} is no line of a calibration table (NAME NUMBER)") from None


def _json(name: str, text: str) -> ScaleTable:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise FormatError(f"{name}: is not JSON: {reason}") from None
    if isinstance(data, dict) and isinstance(data.get("data"), dict) and "CLS" in data:
        data = data["data"]
    if not isinstance(data, dict):
        raise FormatError(f"{name}: a calibration table is a mapping of tensor names")
    entries = {tensor: entry for tensor, entry in data.items() if isinstance(entry, dict | list)}
    scaled = {tensor: entry for tensor, entry in entries.items() if isinstance(entry, dict) and "scale" in entry}
    if entries and len(scaled) == len(entries):
        for tensor, entry in scaled.items():
            if entry.get("offset"):
                said = shortened(entry["offset"])
                raise FormatError(f"{name}: tensor {tensor} has offset {said}; int8 of NVDLA has none")
        scales = {tensor: _number(name, tensor, entry["scale"]) for tensor, entry in scaled.items()}
        return ScaleTable("NVIDIA JSON", {tensor: scale * LARGEST for tensor, scale in scales.items()})
    return ScaleTable("onnxruntime table", {tensor: _range(name, tensor, entry) for tensor, entry in entries.items()})


def _range(name: str, tensor: str, entry: Any) -> float:
    ends = entry if isinstance(entry, list) else [entry.get("lowest"), entry.get("highest")]
    if len(ends) != 2:
        raise FormatError(f"{name}: tensor {tensor} needs the lowest and the highest value")
    return max(abs(_number(name, tensor, end)) for end in ends)


def _number(name: str, tensor: str, value: Any) -> float:
    if isinstance(value, dict):  # an array as onnxruntime writes it
        value = value.get("data")
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{name}: tensor {tensor}: {shortened(value)} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise FormatError(f"{name}: tensor {tensor}: {shortened(value)} is more than a number holds") from None
