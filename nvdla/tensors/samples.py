"""Samples of data sets, and those in tar files (WebDataset shards), .parquet files and at addresses."""

from __future__ import annotations

import atexit
import bisect
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.errors import FormatError, sentence
from nvdla.tensors.files import IMAGE_ENDINGS
from nvdla.tensors.images import MAX_FILE, decode_picture
from nvdla.tensors.npz import parse_npy
from nvdla.util.escaping import Document
from nvdla.util.files import require_file

CHUNK = 1 << 20
#: bytes of a DataLoader that are kept in memory
MAX_LOADED = 4 << 30
#: bytes of a file from an address
MAX_FETCHED = 1 << 38
MAX_SHARDS = 1 << 16
#: members of a tar file, bytes of a header and of a label there, characters of a name
MAX_MEMBERS, MAX_TAR_HEADER, MAX_LABEL_FILE, MAX_NAME = 1 << 24, 1 << 16, 64, 4096
TAR_ENDINGS = (*IMAGE_ENDINGS, ".npy")
_SHARDS = re.compile(r"(.*)\{(\d{1,9})\.\.(\d{1,9})\}(.*)")
LABELS = ("labels", "y", "target")
#: the largest number of a label that is compared with an output
MAX_LABEL = 1e300
CLASS_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
REAL_NUMBER = re.compile(r"[+-]?([0-9]{1,300}\.[0-9]{0,300}|\.[0-9]{1,300})([eE][+-]?[0-9]{1,3})?")
Label = int | list[float] | list[list[float]] | np.ndarray | None


@dataclass(frozen=True)
class Sample:
    """One sample: a name for messages, a path or an array without batch axis, a class, numbers of all outputs, boxes
    (N, 5) or a mask (H, W)."""

    id: str
    value: object
    label: Label


class SampleSource(ABC):
    """Samples by position, with the names of the classes where the data set has names."""

    classes: list[str] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample(self, position: int) -> Sample:
        """Return the sample at a position."""

    def name_of(self, position: int) -> str:
        """Return the name of the sample at a position, also if the sample cannot be read."""
        return str(position)

    @abstractmethod
    def settings(self) -> Document:
        """Return the identity of the data as plain data: paths, labels and sizes of files, or hashes."""

    def first(self, count: int) -> Iterable[int]:
        """Return the positions of ``count`` samples: evenly over the classes if each has its own directory."""
        return range(min(count, len(self)))

    def payloads(self, positions: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield (position, payload): None for data that workers read themselves, else the sample."""
        return ((position, None) for position in positions)


class NamedSamples(SampleSource):
    """Samples of a source, with the classes in the order of a network. Labels that are numbers stay."""

    def __init__(self, source: SampleSource, classes: list[str], what: str) -> None:
        """``what``: the origin of the names, for errors."""
        self._source, self.classes = source, classes
        unknown = [name for name in source.classes or () if name not in classes]
        if unknown:
            raise FormatError(
                f"{what}: class names: must contain all classes of the data, got no {unknown[0]!r} "
                f"among {', '.join(classes[:5])}{' ...' if len(classes) > 5 else ''}"
            )
        self._numbers = None if source.classes is None else [classes.index(name) for name in source.classes]

    def __len__(self) -> int:
        return len(self._source)

    def name_of(self, position: int) -> str:
        """Return the name of the sample at a position."""
        return self._source.name_of(position)

    def sample(self, position: int) -> Sample:
        """Return the sample at a position, with the network's number of its class."""
        return self._numbered(self._source.sample(position))

    def first(self, count: int) -> Iterable[int]:
        """Return the positions that the source chooses."""
        return self._source.first(count)

    def settings(self) -> Document:
        """Return the identity of the data, with the names of the classes."""
        return {**self._source.settings(), "class_names": self.classes}

    def payloads(self, positions: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield (position, payload) as the source does, with the network's numbers."""
        for position, sample in self._source.payloads(positions):
            yield position, None if sample is None else self._numbered(sample)

    def _numbered(self, sample: Sample) -> Sample:
        if self._numbers is None or not isinstance(sample.label, int):
            return sample
        return replace(sample, label=self._numbers[sample.label])


def evenly(labels: Sequence[object], count: int) -> list[int]:
    """Return the positions of ``count`` samples, in order: the first sample of each class, then the second, and on.

    Other labels, such as boxes, count as one class.
    """
    seen: Counter[object] = Counter()
    turns = []
    for position, label in enumerate(labels):
        group = label if isinstance(label, int | str) else None
        turns.append((seen[group], position))
        seen[group] += 1
    return sorted(position for _, position in sorted(turns)[:count])


@dataclass(frozen=True)
class _Member:
    """A sample in a tar file: its name, the place of its bytes, its label."""

    archive: str
    name: str
    offset: int
    size: int
    label: Label


class _Headers(io.FileIO):
    """A tar file of which only headers are read; a long one is refused before memory is allocated for it."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return at most :data:`MAX_TAR_HEADER` bytes. Raises FormatError."""
        if size is None or not 0 <= size <= MAX_TAR_HEADER:
            raise FormatError(f"{self.name}: header: must have at most {MAX_TAR_HEADER} bytes, got {size}")
        return super().read(size)


class TarFiles(SampleSource):
    """Images and .npy arrays in uncompressed tar files, such as WebDataset shards. Nothing is unpacked to the disk.

    The label of a sample is in the member of the same name that ends in ``.cls``, or its directory is its class.
    """

    def __init__(self, name: str, archives: list[Path]) -> None:
        self.name = name
        rows = [row for path in archives for row in _tar_members(path)]
        directories = {row.name.rpartition("/")[0] for row in rows}
        named_classes = len(directories) > 1 and all(row.label is None for row in rows)
        self.classes = sorted({directory.rpartition("/")[2] for directory in directories}) if named_classes else None
        if self.classes is not None:
            numbers = {directory: self.classes.index(directory.rpartition("/")[2]) for directory in directories}
            rows = [replace(row, label=numbers[row.name.rpartition("/")[0]]) for row in rows]
        if not rows:
            raise FormatError(f"{name}: no samples: must hold members that end in {' '.join(TAR_ENDINGS)}, got none")
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def name_of(self, position: int) -> str:
        """Return the name of a member."""
        return self._rows[position].name

    def first(self, count: int) -> Iterable[int]:
        """Return the positions of ``count`` samples, evenly over classes that are directories."""
        return super().first(count) if self.classes is None else evenly([row.label for row in self._rows], count)

    def sample(self, position: int) -> Sample:
        """Return the picture or array at a position, with its label. Raises FormatError."""
        row = self._rows[position]
        return Sample(row.name, _decoded(_bytes_of(row), f"{row.archive}/{row.name}"), row.label)

    def settings(self) -> Document:
        """Return the identity of the data: a hash of names, labels and sizes."""
        text = json.dumps([(row.name, row.label, row.size) for row in self._rows])
        return {"data": self.name, "samples": len(self), "entries": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _tar_members(path: Path) -> list[_Member]:
    """The samples of a tar file in its order. Raises FormatError."""
    require_file(path, "tar file")
    samples: dict[str, _Member] = {}
    labels: dict[str, _Member] = {}
    try:
        with _Headers(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for number, info in enumerate(archive):
                archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all of them
                if number >= MAX_MEMBERS:
                    raise FormatError(f"{path}: must have at most {MAX_MEMBERS} members, got more")
                folder, _, file = info.name.removeprefix("./").rpartition("/")
                stem, _, suffix = file.partition(".")
                suffix = "." + suffix.rpartition(".")[2].lower()
                if not stem or suffix not in (*TAR_ENDINGS, ".cls") or info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    raise FormatError(f"{path}: {info.name[:200]!r}: must be a file, is a link, device or sparse file")
                key = f"{folder}/{stem}"
                row = _Member(str(path.resolve()), info.name[:MAX_NAME], info.offset_data, info.size, None)
                kind = labels if suffix == ".cls" else samples
                if key in kind:
                    raise FormatError(
                        f"{path}: {row.name}: must be the only {key.strip('/')!r} (name up to the first dot), "
                        f"got {kind[key].name} too"
                    )
                kind[key] = row
    except (tarfile.TarError, EOFError, ValueError, RecursionError, OSError) as error:
        hint = "WebDataset shards are not compressed: decompress .tar.gz files first"
        raise FormatError(f"{path}: must be an intact tar file (cut off?): {sentence(error)} {hint}") from None
    return [replace(row, label=_class_of(labels[key]) if key in labels else None) for key, row in samples.items()]


def _class_of(row: _Member) -> int:
    text = _bytes_of(row, MAX_LABEL_FILE).decode("latin-1").strip()
    if not CLASS_NUMBER.fullmatch(text):
        raise FormatError(f"{row.archive}: {row.name}: the label must be the number of a class, got {text[:80]!r}")
    return int(text)


def _bytes_of(row: _Member, limit: int = MAX_FILE) -> bytes:
    if row.size > limit:
        raise FormatError(f"{row.archive}: {row.name}: must have at most {limit} bytes, got {row.size}")
    try:
        with open(row.archive, "rb") as stream:
            stream.seek(row.offset)
            data = stream.read(row.size)
    except OSError as error:
        raise FormatError(f"{row.archive} cannot be read: {error.strerror or error}") from None
    if len(data) != row.size:
        raise FormatError(f"{row.archive}: {row.name}: must have {row.size} bytes, got {len(data)} (cut off?)")
    return data


def _decoded(data: bytes, name: str) -> object:
    """The array or picture in the bytes of a file. Raises FormatError."""
    return parse_npy(data, name) if data.startswith(b"\x93NUMPY") else decode_picture(data, name)


class ParquetRows(SampleSource):
    """Rows of a .parquet file of the Hugging Face kind: pictures in ``image``, classes in ``label``."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), str(path.resolve())
        self._file = _parquet(self._path)
        columns = self._file.schema_arrow.names
        self._image = next((name for name in ("image", "img") if name in columns), None)
        self._label = next((name for name in ("label", *LABELS, "fine_label") if name in columns), None)
        if self._image is None:
            raise FormatError(f"{path}: must have a column image or img, got {', '.join(columns)[:200] or 'none'}")
        groups = [self._file.metadata.row_group(number) for number in range(self._file.num_row_groups)]
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)]).tolist()
        if (largest := max((group.total_byte_size for group in groups), default=0)) > MAX_LOADED:
            raise FormatError(f"{path}: a row group must have at most {MAX_LOADED} bytes, got {largest}")
        if not self._starts[-1]:
            raise FormatError(f"{path}: no samples: must have rows, got none")
        self._kept: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def sample(self, position: int) -> Sample:
        """Return the picture of a row, with its label. Raises FormatError."""
        group = bisect.bisect_right(self._starts, position) - 1
        if self._kept[0] != group:
            wanted = [name for name in (self._image, self._label) if name is not None]
            try:
                self._kept = group, self._file.read_row_group(group, columns=wanted)
            except Exception as error:  # pyarrow raises a dozen kinds for damaged files
                raise FormatError(f"{self.name}: row {position}: {str(error)[:200]}") from None
        place = position - self._starts[group]
        image, label = (
            None if name is None else self._kept[1].column(name)[place].as_py() for name in (self._image, self._label)
        )
        data = image.get("bytes") if isinstance(image, dict) else image
        if not isinstance(data, bytes):
            raise FormatError(f"{self.name}: row {position}: {self._image} must hold the bytes of an image file")
        return Sample(str(position), _decoded(data, f"{self.name}: row {position}"), label_of(label, self.name))

    def settings(self) -> Document:
        """Return the identity of the data: a hash of the file."""
        return {"data": self.name, "samples": len(self), "content": data_hash(self._path)[:16]}

    def __reduce__(self) -> tuple[object, ...]:
        return ParquetRows, (Path(self._path),)


def _parquet(path: str) -> Any:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise FormatError(f"{path}: .parquet files need pyarrow: pip install 'nvdla[data]'") from None
    try:
        return parquet.ParquetFile(path)
    except (ArrowException, OSError) as error:
        raise FormatError(f"{path}: must be an intact parquet file: {str(error)[:200]}") from None


def fetched(url: str) -> Path:
    """Copy a file that fsspec opens to a temporary directory of this process. Raises FormatError."""
    try:
        import fsspec
    except ImportError:
        raise FormatError(f"{url}: addresses need fsspec: pip install 'nvdla[data]'") from None
    if "::" in url:
        raise FormatError(f"{url}: must be one address, got a chain (::)")
    folder = Path(tempfile.mkdtemp(prefix="nvdla-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / (re.sub(r"[^\w.-]", "_", url.rpartition("/")[2].partition("?")[0])[-100:] or "data")
    total = 0
    try:
        with fsspec.open(url, "rb") as source, open(path, "wb") as target:
            while piece := source.read(CHUNK):
                if (total := total + len(piece)) > MAX_FETCHED:
                    raise FormatError(f"{url}: must have at most {MAX_FETCHED} bytes, got more")
                target.write(piece)
    except FormatError:
        raise
    except Exception as error:  # each file system raises its own kinds
        raise FormatError(f"{url} cannot be read: {type(error).__name__}: {str(error)[:200]}") from None
    return path


def shards_of(text: str) -> list[Path]:
    """The files of "val-{00..15}.tar"; one file as it is. Raises FormatError."""
    match = _SHARDS.fullmatch(text)
    if match is None or Path(text).exists():
        return [Path(text)]
    before, first, last, after = match.groups()
    if not int(first) <= int(last) < int(first) + MAX_SHARDS:
        raise FormatError(f"{text}: shards must be {{FIRST..LAST}}, at most {MAX_SHARDS}, got {first}..{last}")
    return [Path(f"{before}{number:0{len(first)}}{after}") for number in range(int(first), int(last) + 1)]


def labels_of(labels: np.ndarray, name: str) -> list[Label]:
    """Check the labels of samples: classes or finite numbers. Raises FormatError, which starts with ``name``."""
    if labels.ndim == 1 and labels.dtype.kind in "iub":
        return [int(label) for label in labels]
    if labels.ndim == 3 and labels.dtype.kind in "iub":
        return list(labels)
    if labels.dtype.kind in "iuf":
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise FormatError(f"{name}: labels must be finite numbers, got NaN or infinity")
        return [[float(value) for value in np.ravel(row)] for row in labels]
    raise FormatError(f"{name}: labels must be classes or numbers, got elements of type {labels.dtype}")


def label_of(label: object, name: str) -> Label:
    """Check the label of one sample, or None for no label. Raises FormatError, which starts with ``name``."""
    if label is None:
        return None
    if hasattr(label, "detach"):  # a tensor of PyTorch
        label = np.asarray(label)[()]
    if isinstance(label, int | np.integer):
        return int(label)
    if isinstance(label, np.ndarray) and label.ndim == 2 and label.dtype.kind in "iubf":
        return label
    try:
        return labels_of(np.asarray(label, np.float64)[None], name)[0]
    except (TypeError, ValueError):
        raise FormatError(f"{name}: the label must be a class or numbers, got {label!r}") from None


def data_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, or of all files of a directory with their names. Raises FormatError."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    digest = hashlib.sha256()
    for file in files:
        digest.update(framed(os.fsencode(file.relative_to(root)), file))
    return digest.hexdigest()


def framed(name: bytes, path: Path) -> bytes:
    """Return the digest of a file's name and content; of the name alone where the file does not exist."""
    digest = hashlib.sha256(b"%d:%s" % (len(name), name))
    if path.is_file():
        try:
            with open(path, "rb") as stream:
                while piece := stream.read(CHUNK):
                    digest.update(piece)
        except OSError as error:
            raise FormatError(f"{path} cannot be read: {error.strerror or error}") from error
    return digest.digest()
