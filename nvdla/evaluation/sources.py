"""Labelled data: folders of images by class, manifests, arrays, a Python function. Workers read samples where they lie.

A source is small and picklable: it knows where the samples are, and loads one when asked.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.errors import FormatError, shape_text
from nvdla.files import named, read_file, require_file
from nvdla.tensors.files import INPUT_ENDINGS
from nvdla.tensors.npy import map_npy

MAX_MANIFEST = 1 << 30
#: the largest number of a label that is compared with an output
MAX_LABEL = 1e300
_CLASS = re.compile(r"[+-]?[0-9]{1,18}")
Label = int | list[float] | None


@dataclass(frozen=True)
class Sample:
    """``id``: what people call it; ``value``: a path or an array without batch axis; ``label``: class or numbers."""

    id: str
    value: Any
    label: Label


class SampleSource(ABC):
    """Samples by position. ``classes``: their names, where the source has any."""

    classes: list[str] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample(self, position: int) -> Sample:
        """The sample at a position."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What identifies the data: paths, sizes and times of files, or hashes."""

    def payloads(self, positions: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """(position, what the worker needs beside it); nothing for data that workers read themselves."""
        return ((position, None) for position in positions)


class Files(SampleSource):
    """Images and tensors in files, with labels."""

    def __init__(self, name: str, entries: list[tuple[str, Label]], root: Path, classes: list[str] | None) -> None:
        if not entries:
            raise FormatError(f"{name}: there is no sample in it (files {' '.join(INPUT_ENDINGS)})")
        self.name, self._entries, self._root, self.classes = name, entries, root, classes

    def __len__(self) -> int:
        return len(self._entries)

    def sample(self, position: int) -> Sample:
        """The file at a position, with its label."""
        path, label = self._entries[position]
        require_file(self._root / path, "sample")
        return Sample(path, self._root / path, label)

    def settings(self) -> dict[str, Any]:
        """What says which data these are, as plain data."""
        text = json.dumps(self._entries)
        return {"data": self.name, "samples": len(self), "entries": hashlib.sha256(text.encode()).hexdigest()[:16]}


class Arrays(SampleSource):
    """One array of samples (samples first) and one of labels, mapped from .npy files or read from a .npz."""

    def __init__(self, name: str, samples: np.ndarray, labels: np.ndarray | None) -> None:
        if samples.ndim < 2 or not len(samples):
            raise FormatError(f"{name}: an array of shape {shape_text(samples.shape)} holds no samples (samples first)")
        if labels is not None and len(labels) != len(samples):
            raise FormatError(f"{name}: {len(samples)} samples and {len(labels)} labels")
        self.name, self.samples = name, samples
        self._labels = None if labels is None else _labels(labels, name)

    def __len__(self) -> int:
        return len(self.samples)

    def sample(self, position: int) -> Sample:
        """The array at a position, with its label."""
        return Sample(str(position), self.samples[position], None if self._labels is None else self._labels[position])

    def settings(self) -> dict[str, Any]:
        """What says which data these are, as plain data."""
        return {"data": self.name, "samples": len(self), "content": self._content}

    @cached_property
    def _content(self) -> str:
        digest = hashlib.sha256(json.dumps(self._labels).encode())
        for at in range(0, len(self.samples), 4096):
            digest.update(np.ascontiguousarray(self.samples[at : at + 4096]).tobytes())
        return digest.hexdigest()[:16]


class MappedArrays(Arrays):
    """Arrays of .npy files: workers map the files themselves."""

    def __init__(self, path: Path, labels: np.ndarray | None) -> None:
        self._path, self._given = path, labels
        super().__init__(str(path), _mapped(path), labels)

    def __reduce__(self) -> Any:
        return MappedArrays, (self._path, self._given)


class Function(SampleSource):
    """Samples of a Python function ``module:function`` that yields (sample, label) or (sample, label, id).

    The function runs in this process; samples travel to the workers. ``len`` is not known before the end.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._function = python_function(name)

    def __len__(self) -> int:
        return sys.maxsize

    def sample(self, position: int) -> Sample:
        """Raises FormatError: a function has no samples by number."""
        raise FormatError(f"{self.name}: samples of a function cannot be asked for by number")

    def settings(self) -> dict[str, Any]:
        """What says which data these are, as plain data."""
        return {"data": self.name}

    def payloads(self, positions: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Samples as the function gives them, with their positions."""
        for position, found in zip(positions, self._found(), strict=False):
            if not isinstance(found, tuple) or not 2 <= len(found) <= 3:
                raise FormatError(f"{self.name}: sample {position} must be (sample, label) or (sample, label, id)")
            value, label, *rest = found
            yield position, Sample(str(rest[0]) if rest else str(position), value, _label(label, self.name))

    def _found(self) -> Iterator[Any]:
        """What the function yields. Raises FormatError for whatever it raises."""
        try:
            yield from self._function()
        except Exception as error:  # user code
            raise FormatError(f"{self.name}: {type(error).__name__}: {error}") from error

    def __reduce__(self) -> Any:
        return _NoSamples, (self.name,)


class _NoSamples(SampleSource):
    """What workers get of a Function: nothing, samples come with the tasks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 0

    def sample(self, position: int) -> Sample:
        raise FormatError(f"{self.name}: sample {position} did not come with its task")

    def settings(self) -> dict[str, Any]:
        return {"data": self.name}


@by_annotations
def open_source(data: str, labels: str | None = None) -> SampleSource:
    """A folder (a sub-folder a class, or files alone), a .csv or .jsonl manifest (path, label), a .npz with samples and
    labels, a .npy with samples (and ``labels``, a .npy), or ``module:function``. Raises FormatError."""
    path = Path(named(data, "data"))
    try:
        if path.is_dir():
            return _folder(path)
        there = path.exists()
    except (OSError, ValueError) as error:  # a name that is too long
        raise FormatError(f"{str(data)[:80]}: {getattr(error, 'strerror', None) or error}") from None
    suffix = path.suffix.lower()
    if not there:
        if ":" in data and not suffix:
            return Function(data)
        raise FormatError(f"{data}: no such file or folder (a Python source is given as module:function)")
    if suffix == ".npy":
        return MappedArrays(path.resolve(), None if labels is None else _mapped(Path(labels)))
    if suffix == ".npz":
        return _npz(path)
    if suffix in (".csv", ".jsonl"):
        return _manifest(path)
    raise FormatError(f"{data}: data are a folder, .csv, .jsonl, .npz, .npy or module:function")


def python_function(name: str) -> Any:
    """The function ``module:function``, looked for in the present folder, too. Raises FormatError."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # user code: whatever it raises
        raise FormatError(f"{name}: cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise FormatError(f"{name} is no function")
    return found


def _folder(path: Path) -> SampleSource:
    classes = sorted(each.name for each in path.iterdir() if each.is_dir())
    if not classes:
        return Files(str(path), [(name, None) for name in _files(path)], path.resolve(), None)
    entries: list[tuple[str, Label]] = [
        (f"{name}/{file}", label) for label, name in enumerate(classes) for file in _files(path / name)
    ]
    return Files(str(path), entries, path.resolve(), classes)


def _files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.suffix.lower() in INPUT_ENDINGS and each.is_file())


def _manifest(path: Path) -> SampleSource:
    text = read_file(path, MAX_MANIFEST, "manifest").decode("utf-8", "replace")
    entries = [
        (file, _said(label, f"{path}:{number}: sample {file[:200]!r}")) for number, file, label in _rows(path, text)
    ]
    if not any(isinstance(label, str) for _, label in entries):
        return Files(
            str(path),
            [(file, label) for file, label in entries if not isinstance(label, str)],
            path.resolve().parent,
            None,
        )
    if any(isinstance(label, list) for _, label in entries):
        raise FormatError(f"{path}: some labels are names, others numbers of all outputs; give one kind")
    # labels that are names: classes in alphabetical order
    classes = {name: number for number, name in enumerate(sorted({str(label) for _, label in entries}))}
    return Files(
        str(path), [(file, classes[str(label)]) for file, label in entries], path.resolve().parent, list(classes)
    )


def _rows(path: Path, text: str) -> Iterator[tuple[int, str, Any]]:
    """Line, file and label of each sample."""
    if path.suffix.lower() == ".csv":
        yield from _csv_rows(path, text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            yield number, str(entry["path"]), entry["label"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(f'{path}:{number}: a line is {{"path": ..., "label": ...}}: {str(error)[:200]}') from None


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, str, Any]]:
    reader = csv.reader(io.StringIO(text))
    try:
        for number, row in enumerate(reader, 1):
            if number == 1 and [each.strip().lower() for each in row[:2]] == ["path", "label"]:
                continue
            if row:
                if len(row) < 2:
                    raise FormatError(f"{path}:{number}: a row is path,label")
                yield number, row[0].strip(), row[1]
    except csv.Error as error:
        raise FormatError(f"{path}:{reader.line_num}: no CSV that can be read: {error}") from None


def _said(label: Any, where: str) -> int | str | list[float]:
    """The label of a manifest: a class's number, its name, or numbers of all outputs. Raises FormatError."""
    if isinstance(label, list):
        if not all(isinstance(each, int | float) and abs(each) <= MAX_LABEL for each in label):  # not so for NaN
            raise FormatError(f"{where}: numbers of a label must be finite numbers")
        return [float(each) for each in label]
    if isinstance(label, float) and label.is_integer():
        return int(label)
    if isinstance(label, str) and label.strip():
        name = label.strip()
        return int(name) if _CLASS.fullmatch(name) else name
    if isinstance(label, int):
        return int(label)
    said = "no label" if label is None or label == "" else f"the label {str(label)[:80]!r}"
    raise FormatError(f"{where} has {said}; it is a class's number or name, or a list of numbers")


def _npz(path: Path) -> SampleSource:
    from nvdla.containers.npz_members import read_npz

    arrays = read_npz(path)
    for samples, labels in (("images", "labels"), ("x", "y"), ("samples", "labels"), ("data", "target")):
        if samples in arrays:
            return Arrays(str(path), arrays[samples], arrays.get(labels))
    known = [name for name, each in arrays.items() if each.ndim == 1 and each.dtype.kind in "iu"]
    if len(arrays) == 2 and len(known) == 1:
        return Arrays(str(path), next(each for name, each in arrays.items() if name != known[0]), arrays[known[0]])
    raise FormatError(
        f"{path}: holds {', '.join(arrays) or 'nothing'}; samples are 'images', 'x', 'samples' or 'data', labels "
        "'labels', 'y' or 'target'"
    )


def _mapped(path: Path) -> np.ndarray:
    """A .npy file without reading it."""
    try:
        return map_npy(path)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None


def _labels(labels: np.ndarray, name: str) -> list[Label]:
    if labels.ndim == 1 and labels.dtype.kind in "iub":
        return [int(each) for each in labels]
    if labels.dtype.kind in "iuf":
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise FormatError(f"{name}: labels hold NaN or infinity; give finite numbers")
        return [[float(each) for each in np.ravel(row)] for row in labels]
    raise FormatError(f"{name}: labels of type {labels.dtype} are neither classes nor numbers")


def _label(label: Any, name: str) -> Label:
    if label is None or isinstance(label, int | np.integer):
        return None if label is None else int(label)
    try:
        return _labels(np.asarray(label, np.float64)[None], name)[0]
    except (TypeError, ValueError):
        raise FormatError(f"{name}: the label {label!r} is neither a class's number nor numbers") from None
