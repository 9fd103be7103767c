"""Data sets: samples with labels from directories, manifests, arrays and Python functions.

Evaluation, fault injection, exploration and calibration read their data here. A data set is small and picklable: it
knows where its samples are and loads each on request.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.tensors.files import INPUT_ENDINGS, read_npy
from nvdla.tensors.images import decode_picture
from nvdla.tensors.npz import map_npy, read_npz
from nvdla.tensors.samples import (
    CLASS_NUMBER,
    LABELS,
    MAX_LABEL,
    MAX_LOADED,
    REAL_NUMBER,
    Label,
    ParquetRows,
    Sample,
    SampleSource,
    TarFiles,
    data_hash,
    evenly,
    fetched,
    label_of,
    labels_of,
    shards_of,
)
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document
from nvdla.util.files import named, read_file, require_file

MAX_MANIFEST = 1 << 30
MAX_MASK = 1 << 28
MANIFESTS = (".csv", ".jsonl")
SAMPLES = ("images", "x", "samples", "data", "inputs")
#: files of a directory that are samples; .npz files (arrays of several inputs by name) in the absence of others
SAMPLE_ENDINGS = (*INPUT_ENDINGS, ".npz")
_ROOT_HINT = "If you trust the manifest, name a directory that holds all samples with --root DIR."


class Files(SampleSource):
    """Images and tensors in files, with labels. ``confined`` refuses files that are not below ``root``, also through a
    link."""

    def __init__(
        self,
        name: str,
        entries: list[tuple[str, Label]],
        root: Path,
        classes: list[str] | None,
        confined: bool = False,
    ) -> None:
        if not entries:
            raise FormatError(f"{name}: no samples: must hold files that end in {' '.join(INPUT_ENDINGS)}, got none")
        self.name, self._entries, self._root, self.classes = name, entries, root, classes
        self._confined = confined
        #: number of files of the directory itself that are not samples
        self.ignored = 0

    def __len__(self) -> int:
        return len(self._entries)

    def name_of(self, position: int) -> str:
        """Return the path of the file, relative to the root."""
        return self._entries[position][0]

    def sample(self, position: int) -> Sample:
        """Return the file at a position, with its label. Raises FormatError."""
        path, label = self._entries[position]
        if self._confined and not _is_below(self._root, path):
            raise FormatError(f"sample {path}: must be below {self._root}, is a link to elsewhere. {_ROOT_HINT}")
        require_file(self._root / path, "sample")
        return Sample(path, self._root / path, label)

    def first(self, count: int) -> Iterable[int]:
        """Return the positions of ``count`` samples, evenly over classes that are directories."""
        if self.classes is None or self._confined:
            return super().first(count)
        return evenly([label for _, label in self._entries], count)

    def settings(self) -> Document:
        """Return the identity of the data: a hash of paths, labels and sizes."""
        return {"data": self.name, "samples": len(self), "entries": self._identity}

    @cached_property
    def _identity(self) -> str:
        """Hash of paths, labels and sizes (a hash of all contents would take as long as some evaluations)."""
        text = json.dumps([(path, label, _size(self._root / path)) for path, label in self._entries])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Masked(Files):
    """Images with a mask each: the file of the same name with any suffix, in another directory."""

    def __init__(self, path: Path, masks: Path) -> None:
        super().__init__(str(path), [(file, None) for file in _files(path)], path.resolve(), None)
        self._folder, self._masks = masks.resolve(), {Path(file).stem: file for file in _files(masks)}
        missing = [file for file, _ in self._entries if Path(file).stem not in self._masks]
        if missing:
            raise FormatError(f"{masks}: mask: must be one file per image, got none for {missing[0]}")

    def sample(self, position: int) -> Sample:
        """Return the image at a position, with its mask (H, W)."""
        sample = super().sample(position)
        file = self._folder / self._masks[Path(sample.id).stem]
        is_npy = file.suffix.lower() == ".npy"
        mask = read_npy(file) if is_npy else np.asarray(decode_picture(read_file(file, MAX_MASK, "mask"), str(file)))
        if mask.ndim != 2 or mask.dtype.kind not in "iub":
            raise FormatError(f"{file}: mask: must be integers (H, W), got {mask.dtype} {shape_text(mask.shape)}")
        return Sample(sample.id, sample.value, mask)

    def settings(self) -> Document:
        """Return the identity of the data, with names and sizes of the masks."""
        sizes = json.dumps(sorted((file, _size(self._folder / file)) for file in self._masks.values()))
        return super().settings() | {"masks": hashlib.sha256(sizes.encode()).hexdigest()[:16]}


def _boxed(path: Path, labels: str) -> SampleSource:
    """The images that an annotation file of COCO lists, with boxes (N, 6) in fractions: class, left, top, right,
    bottom, crowd. Classes are the categories in the order of their numbers. Raises FormatError."""
    try:
        document = json.loads(read_file(labels, MAX_MANIFEST, "labels"))
        categories = sorted(document["categories"], key=lambda row: int(row["id"]))
        classes = {row["id"]: number for number, row in enumerate(categories)}
        images = {row["id"]: row for row in document["images"]}
        boxes: dict[object, list[list[float]]] = {image: [] for image in images}
        for row in document["annotations"]:
            left, top, width, height = map(float, row["bbox"])
            size = images[row["image_id"]]["width"], images[row["image_id"]]["height"]
            corners = [left / size[0], top / size[1], (left + width) / size[0], (top + height) / size[1]]
            boxes[row["image_id"]].append([classes[row["category_id"]], *corners, float(row.get("iscrowd", 0))])
        names = [str(row["name"]) for row in categories]
        entries = [(_below(path.resolve(), str(row["file_name"]), labels), image) for image, row in images.items()]
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FormatError(
            f"{labels}: must be an annotation file of COCO (images, annotations, categories), got {reason}"
        ) from None
    labeled: list[tuple[str, Label]] = [(file, boxes[image]) for file, image in entries]
    return Files(str(path), labeled, path.resolve(), names)


class Arrays(SampleSource):
    """One array of samples (samples first) and one of labels, mapped from .npy files or read from a .npz."""

    def __init__(self, name: str, samples: np.ndarray, labels: np.ndarray | None) -> None:
        if samples.ndim < 2 or not len(samples):
            raise FormatError(
                f"{name}: must have samples along its first dimension, got shape {shape_text(samples.shape)}"
            )
        if labels is not None and len(labels) != len(samples):
            raise FormatError(f"{name}: labels: must be {len(samples)}, one per sample, got {len(labels)}")
        self.name, self.samples = name, samples
        self._labels = None if labels is None else labels_of(labels, name)

    def __len__(self) -> int:
        return len(self.samples)

    def sample(self, position: int) -> Sample:
        """Return the array at a position, with its label."""
        return Sample(str(position), self.samples[position], None if self._labels is None else self._labels[position])

    def settings(self) -> Document:
        """Return the identity of the data: a hash of samples and labels."""
        return {"data": self.name, "samples": len(self), "content": self._content}

    @cached_property
    def _content(self) -> str:
        form = str((self.samples.dtype, self.samples.shape))
        digest = hashlib.sha256(
            json.dumps([form, self._labels], default=lambda mask: hashlib.sha256(mask.tobytes()).hexdigest()).encode()
        )
        for start in range(0, len(self.samples), 4096):
            digest.update(np.ascontiguousarray(self.samples[start : start + 4096]).tobytes())
        return digest.hexdigest()[:16]


class MappedArrays(Arrays):
    """Arrays of .npy files; each worker maps the files itself."""

    def __init__(self, path: Path, labels: np.ndarray | None) -> None:
        self._path, self._given = path, labels
        super().__init__(str(path), _mapped(path), labels)

    def __reduce__(self) -> tuple[object, ...]:
        return MappedArrays, (self._path, self._given)


class Function(SampleSource):
    """Samples of a Python function ``module:function`` that yields (sample, label) or (sample, label, id).

    The function runs in this process, and its samples travel to the workers. Their number is unknown before the end.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._function = python_function(name)

    def __len__(self) -> int:
        return sys.maxsize

    def sample(self, position: int) -> Sample:
        """Raise FormatError: a function yields its samples in order only."""
        raise FormatError(f"{self.name}: samples of a function cannot be read by position")

    def settings(self) -> Document:
        """Return the identity of the data: a hash of the module."""
        return {"data": self.name, "data_code": code_hash(self._function)}

    def payloads(self, positions: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield the samples of the function, with their positions."""
        for position, row in zip(positions, self._rows(), strict=False):
            if not isinstance(row, tuple) or not 2 <= len(row) <= 3:
                raise FormatError(f"{self.name}: sample {position} must be (sample, label) or (sample, label, id)")
            value, label, *rest = row
            yield position, Sample(str(rest[0]) if rest else str(position), value, label_of(label, self.name))

    def _rows(self) -> Iterator[Any]:
        """Yield from the function. Raises FormatError for any exception of it."""
        try:
            yield from self._function()
        except Exception as error:  # user code
            raise FormatError(f"{self.name}: {type(error).__name__}: {error}") from error

    def __reduce__(self) -> tuple[object, ...]:
        return _NoSamples, (self.name,)


class _NoSamples(SampleSource):
    """Placeholder of a Function in workers: the samples arrive with the tasks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 0

    def sample(self, position: int) -> Sample:
        raise FormatError(f"{self.name}: sample {position}: must be sent with its task")

    def settings(self) -> Document:
        return {"data": self.name}


@by_annotations
def loader_of(data: object) -> Iterable[object] | None:
    """Return a ``DataLoader`` of PyTorch as it is, or one for a data set, else None. Does not import PyTorch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(data, torch.utils.data.DataLoader | torch.utils.data.Dataset):
        return None
    is_loader = isinstance(data, torch.utils.data.DataLoader)
    return cast("Iterable[object]", data if is_loader else torch.utils.data.DataLoader(data, batch_size=64))


def loader_source(loader: Iterable[object], name: str = "DataLoader") -> Arrays:
    """The batches of a loader, [samples, labels] or samples alone, in memory. Raises FormatError."""
    pieces: list[list[np.ndarray]] = [[], []]
    total = 0
    for batch in _batches(loader):
        parts = batch if isinstance(batch, list | tuple) else [batch]
        if not parts or not all(hasattr(part, "detach") for part in parts[:2]):
            raise FormatError(f"DataLoader: batches must be tensors, or [samples, labels], got {type(batch).__name__}")
        for kept, part in zip(pieces, parts, strict=False):
            kept.append(part.detach().cpu().numpy())
            total += kept[-1].nbytes
        if total > MAX_LOADED:
            raise FormatError(f"DataLoader: must have at most {MAX_LOADED} bytes, got more. Use a torch Subset.")
    if not total:
        raise FormatError("DataLoader: must have at least one sample, got none")
    try:
        samples, labels = (np.concatenate(kept) if kept else None for kept in pieces)
    except ValueError as error:
        raise FormatError(f"DataLoader: samples must have one shape: {error}") from None
    assert samples is not None, "the first element of a batch is its samples"
    return Arrays(name, samples, labels)


def _batches(loader: Iterable[object]) -> Iterator[object]:
    """Yield the batches. Raises FormatError for any exception of the data set."""
    try:
        yield from loader
    except Exception as error:  # user code, and samples that do not form batches
        raise FormatError(f"DataLoader: {type(error).__name__}: {str(error)[:200]}") from error


def open_source(
    data: str | os.PathLike[str] | Iterable[object], labels: str | None = None, root: str | None = None
) -> SampleSource:
    """Open a data set.

    Args:
        data: a directory (one subdirectory per class, or files alone), one image or tensor, a .csv or .jsonl manifest
            (path, label), a .npz with samples and labels, a .npy with samples, a .tar, or WebDataset shards as
            ``val-{00..15}.tar``, a .parquet of Hugging Face, the address of any of these files ("s3://..."),
            ``module:function``, or a data set or ``DataLoader`` of PyTorch (or its ``module:name``) with batches
            [samples, labels], which are kept in memory.
        labels: a .npy with the labels of a .npy; a .txt with the labels of a directory of files, one per line in the
            order of their names, or lines of file and label.
        root: the directory of a manifest's paths (default: the directory of the manifest). Paths must be below it.

    Raises:
        FormatError: the path does not exist, or is not a data set.
    """
    if (loader := loader_of(data)) is not None:
        return loader_source(loader)
    text = os.fspath(named(cast("str", data), "data"))
    if "://" in text:
        text = str(fetched(text))
    path = Path(text)
    suffix = path.suffix.lower()
    if root is not None and suffix not in MANIFESTS:
        raise FormatError(f"--root {root}: must be given with a manifest ({', '.join(MANIFESTS)}), the data are {data}")
    try:
        if path.is_dir():
            return _directory(path, labels)
        if suffix == ".tar":
            return TarFiles(text, shards_of(text))
        exists = path.exists()
    except (OSError, ValueError) as error:  # a name that is too long
        raise FormatError(f"{text[:80]}: {getattr(error, 'strerror', None) or error}") from None
    if not exists:
        if ":" in text and not suffix:
            loader = loader_of(python_object(text))
            return Function(text) if loader is None else loader_source(loader, text)
        raise FormatError(f"{text}: must be an existing file or directory, or module:function for a Python source")
    if suffix == ".npy":
        return MappedArrays(path.resolve(), None if labels is None else _mapped(Path(labels)))
    if suffix == ".npz":
        return arrays_source(text, read_npz(path))
    if suffix in MANIFESTS:
        return _manifest(path, root)
    if suffix == ".parquet":
        return ParquetRows(path)
    if suffix in INPUT_ENDINGS:
        return Files(text, [(path.name, None)], path.resolve().parent, None)
    raise FormatError(
        f"{text}: unknown kind of data: must be a directory, an image, .csv, .jsonl, .npz, .npy, .tar, .parquet or "
        f"module:function, "
        f"got {suffix or 'a file without ending'}"
    )


def samples_and_labels(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the samples of a data set, and its labels where it has some.

    Samples are the array that is called "images", "x", "samples" or "data", labels the one that is called "labels",
    "y" or "target", in any combination and case. A single array holds samples. Of two arrays with other names, the one
    of integers with one dimension holds the labels. None where no array is known to hold the samples.
    """
    if len(arrays) == 1:
        return next(iter(arrays.values())), None
    by_name = {name.lower(): array for name, array in arrays.items()}
    samples = next((by_name[name] for name in SAMPLES if name in by_name), None)
    if samples is not None:
        return samples, next((by_name[name] for name in LABELS if name in by_name), None)
    numbers = [name for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "iu"]
    if len(arrays) == 2 and len(numbers) == 1:
        return next(array for name, array in arrays.items() if name != numbers[0]), arrays[numbers[0]]
    return None


def arrays_source(name: str, arrays: dict[str, np.ndarray]) -> Arrays:
    """Return the data set in the arrays of a .npz. Raises FormatError where no array is known to hold samples."""
    split = samples_and_labels(arrays)
    if split is None:
        raise FormatError(
            f"{name}: no samples: must hold one array, or samples called one of {', '.join(SAMPLES)} (labels: one of "
            f"{', '.join(LABELS)}), got {', '.join(arrays) or 'nothing'}. Evaluation needs a network with one input"
        )
    return Arrays(name, *split)


def python_object(name: str) -> Any:
    """Return ``module:name``; the current directory is searched, too. Raises FormatError."""
    module, _, member = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), member)
    except Exception as error:  # user code may raise anything
        raise FormatError(f"{name}: cannot be imported: {type(error).__name__}: {error}") from error


def python_function(name: str) -> Callable[..., Any]:
    """Return the function ``module:function``. Raises FormatError."""
    target = python_object(name)
    if not callable(target):
        raise FormatError(f"{name}: must be a function, got {type(target).__name__}")
    return cast("Callable[..., Any]", target)


def _ground_truth(path: Path, labels: str) -> SampleSource:
    """The files of a flat directory with the labels of a text, as ILSVRC has them; with the boxes of COCO's .json, or
    with the masks of another directory. Raises FormatError."""
    if os.path.isdir(labels):
        return Masked(path, Path(labels))
    if labels.lower().endswith(".json"):
        return _boxed(path, labels)
    files = _files(path)
    lines = read_file(labels, MAX_MANIFEST, "labels").decode("utf-8", "replace").split("\n")
    rows = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    known, entries = set(files), list[tuple[str, Label]]()
    for place, (number, words) in enumerate(rows):
        file = words[0] if len(words) == 2 else files[place] if place < len(files) else ""
        if len(words) > 2 or not CLASS_NUMBER.fullmatch(words[-1]) or (len(words) == 2 and file not in known):
            raise FormatError(f"{labels}:{number}: must be LABEL, or FILE LABEL of a file in {path}, got {words[:3]}")
        entries.append((file, int(words[-1])))
    if len(rows) != len(files) and not all(len(words) == 2 for _, words in rows):
        raise FormatError(f"{labels}: must have one label per file ({len(files)}), got {len(rows)}")
    return Files(str(path), entries, path.resolve(), None)


def _directory(path: Path, labels: str | None = None) -> SampleSource:
    """Files without labels, and the files of each subdirectory with its number; hidden directories are skipped."""
    if labels is not None:
        return _ground_truth(path, labels)
    classes = sorted(item.name for item in path.iterdir() if item.is_dir() and not item.name.startswith("."))
    entries: list[tuple[str, Label]] = [(file, None) for file in _files(path)]
    for label, name in enumerate(classes):
        entries += [(f"{name}/{file}", label) for file in _files(path / name, deep=True)]
    others = [entry for entry in entries if not entry[0].lower().endswith(".npz")]
    source = Files(str(path), others or entries, path.resolve(), classes or None)
    source.ignored = sum(item.is_file() for item in path.iterdir()) - sum(
        "/" not in file for file, _ in others or entries
    )
    return source


def _is_below(root: Path, path: str) -> bool:
    """Check whether a path leads to a file below ``root``, with links followed."""
    return Path(os.path.realpath(root / path)).is_relative_to(os.path.realpath(root))


def _size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return None


def _files(directory: Path, deep: bool = False) -> list[str]:
    """Return the names of samples. A pipe or a dangling link with the right ending counts as a damaged sample."""
    entries = directory.rglob("*") if deep else directory.iterdir()
    samples = (item for item in entries if item.suffix.lower() in SAMPLE_ENDINGS and not item.is_dir())
    return sorted(item.relative_to(directory).as_posix() for item in samples)


def _manifest(path: Path, root: str | None) -> SampleSource:
    text = read_file(path, MAX_MANIFEST, "manifest").decode("utf-8", "replace")
    directory = path.resolve().parent if root is None else Path(os.path.realpath(root))
    if not directory.is_dir():
        raise FormatError(f"--root {root}: must be a directory")
    entries = [
        (_below(directory, file, f"{path}:{number}"), _manifest_label(label, f"{path}:{number}: sample {file[:200]!r}"))
        for number, file, label in _rows(path, text)
    ]
    labeled: list[tuple[str, Label]]
    if not any(isinstance(label, str) for _, label in entries):
        is_real = any(isinstance(label, list) and len(label) == 1 for _, label in entries)
        labeled = [
            (file, [float(label)] if is_real and isinstance(label, int) else label)
            for file, label in entries
            if not isinstance(label, str)
        ]
        return Files(str(path), labeled, directory, None, confined=True)
    if any(isinstance(label, list) and len(label) > 1 for _, label in entries):
        raise FormatError(f"{path}: labels must be of one kind, got names and numbers of all outputs")
    # labels that are names: classes in alphabetical order
    names = [str(label[0] if isinstance(label, list) else label) for _, label in entries]
    classes = {name: number for number, name in enumerate(sorted(set(names)))}
    labeled = [(file, classes[name]) for (file, _), name in zip(entries, names, strict=True)]
    return Files(str(path), labeled, directory, list(classes), confined=True)


def _below(directory: Path, file: str, where: str) -> str:
    """Return the path of a sample. Raises FormatError where it leads out of the directory."""
    if "\0" not in file and Path(os.path.normpath(directory / file)).is_relative_to(directory):
        return file
    raise FormatError(f"{where}: sample {file[:200]!r} must be below {directory}. {_ROOT_HINT}")


def _rows(path: Path, text: str) -> Iterator[tuple[int, str, object]]:
    """Yield line, file and label of each sample."""
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
            raise FormatError(
                f'{path}:{number}: a line must be {{"path": ..., "label": ...}}: {str(error)[:200]}'
            ) from None


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, str, object]]:
    reader = csv.reader(io.StringIO(text))
    try:
        for number, row in enumerate(reader, 1):
            if number == 1 and [cell.strip().lower() for cell in row[:2]] == ["path", "label"]:
                continue
            if row:
                if len(row) < 2:
                    raise FormatError(f"{path}:{number}: a row must be path,label")
                if any(form.fullmatch(row[0].strip()) for form in (CLASS_NUMBER, REAL_NUMBER)):
                    raise FormatError(
                        f"{path}:{number}: a row must be path,label, got the number {row[0].strip()[:20]}. Save "
                        "samples of numbers as .npz (x: samples, y: labels) or .npy"
                    )
                yield number, row[0].strip(), row[1]
    except csv.Error as error:
        raise FormatError(f"{path}:{reader.line_num}: must be CSV: {error}") from None


def _manifest_label(label: object, where: str) -> int | str | list[float]:
    """Return the label of a manifest: number or name of a class, numbers of all outputs, boxes. Raises FormatError.

    A number with a decimal point is a list of one: the evaluation takes "3.0" as a class where outputs have classes.
    """
    if isinstance(label, list) and label and all(isinstance(row, list) and len(row) == 5 for row in label):
        return [number for row in label for number in cast("list[float]", _manifest_label(row, where))]
    if isinstance(label, list):
        if not all(isinstance(value, int | float) and abs(value) <= MAX_LABEL for value in label):  # false for NaN
            raise FormatError(f"{where}: numbers of a label must be finite numbers")
        return [float(value) for value in label]
    if isinstance(label, float) and abs(label) <= MAX_LABEL:
        return [label]
    if isinstance(label, str) and label.strip():
        name = label.strip()
        if REAL_NUMBER.fullmatch(name) and abs(float(name)) <= MAX_LABEL:
            return [float(name)]
        return int(name) if CLASS_NUMBER.fullmatch(name) else name
    if isinstance(label, int):
        return int(label)
    given = "nothing" if label is None or label == "" else f"{str(label)[:80]!r}"
    raise FormatError(f"{where}: the label must be the number or name of a class, or a list of numbers, got {given}")


def _mapped(path: Path) -> np.ndarray:
    """Map a .npy file without reading it."""
    try:
        return map_npy(path)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None


def code_hash(function: object) -> str | None:
    """Return the SHA-256 of the module that defines a function, None where the module has no file."""
    file = getattr(sys.modules.get(getattr(function, "__module__", None) or ""), "__file__", None)
    return data_hash(file) if file and os.path.isfile(file) else None
