"""A package is read: nothing in it is believed before it is checked, and a small file takes little memory.

Every field of ``manifest.json`` has its kind and its range; members are unpacked to no more than the archive may stand
for; each part's values must be made before it; what a part binds must fit it.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.builder.compiler import MAX_IMAGES
from nvdla.containers.npz_members import check_packing, read_npz
from nvdla.errors import FormatError
from nvdla.frontend.graph import Binding
from nvdla.loadable import Loadable, load
from nvdla.precision import PRECISIONS
from nvdla.tensors.pixel_numbers import PixelNumbers, pixels_of

FORMAT, VERSION = "nvdla-package", 1
MAX_PARTS = 1000
MAX_RANK = 8
MAX_ELEMENTS = 1 << 31
MAX_ZERO_POINT = 1 << 15
MAX_MANIFEST = 16 << 20
#: What the members of a package may unpack to: so much, and so many times the file.
FREELY_UNPACKED = 256 << 20
MAX_RATIO = 64


@dataclass
class PackedPart:
    """A part as it comes out of a package."""

    kind: str
    nodes: list[str]
    inputs: list[Binding]
    outputs: list[Binding]
    loadable: Loadable | None = None
    model: Any = None
    scales: dict[str, float] = field(default_factory=dict)
    precision: str = ""
    numbers: Mapping[str, PixelNumbers] = field(default_factory=dict)
    images: int = 1
    zero_points: dict[str, int] = field(default_factory=dict)


def read_members(data: bytes) -> tuple[dict[str, Any], list[PackedPart], dict[str, np.ndarray]]:
    """Manifest, parts and constants of a package. Raises FormatError, and what :mod:`zipfile` raises."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = _Members(archive, len(data))
        manifest = _manifest(members.content("manifest.json", MAX_MANIFEST))
        indices = members.arrays("indices.npz")
        rows = _list(manifest, "parts", "manifest.json")
        if len(rows) > MAX_PARTS:
            raise FormatError(f"manifest.json: parts: {len(rows)}, the limit is {MAX_PARTS}")
        parts = [_part(row, f"manifest.json: parts[{i}]", members, indices) for i, row in enumerate(rows)]
        constants = members.arrays("constants.npz")
    _check_order(manifest, parts, constants)
    return manifest, parts, constants


class _Members:
    """The files of the archive, and how much they may still unpack to."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        self._limit = FREELY_UNPACKED + MAX_RATIO * size
        self._files: dict[str, zipfile.ZipInfo] = {}
        self._total = 0
        for each in archive.infolist():
            check_packing(each, f"package: member {each.filename!r}")
            if each.filename in self._files:
                raise FormatError(f"package: member {each.filename[:200]!r} is there twice")
            self._files[each.filename] = each
            self._charge(each.file_size)

    def _charge(self, size: int) -> None:
        self._total += size
        if self._total > self._limit:
            raise FormatError(
                f"the package unpacks to more than {self._limit} bytes ({FREELY_UNPACKED >> 20} MiB and {MAX_RATIO} "
                "times the file); packed without compression it may be as large as it is"
            )

    def content(self, name: str, limit: int | None = None) -> bytes:
        """The bytes of a member. Raises FormatError for one that is not there, or longer than ``limit``."""
        if name not in self._files:
            raise FormatError(f"the package has no member {name[:200]!r}")
        size = self._files[name].file_size
        if limit is not None and size > limit:
            raise FormatError(f"package: member {name} has {size} bytes, the limit is {limit}")
        return self._archive.read(self._files[name])

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of an .npz in the package: packed once more, so they are charged too."""
        return read_npz(self.content(name), self._charge)


def _manifest(text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"manifest.json is no JSON document: {str(error)[:200]}") from None
    if not isinstance(manifest, dict):
        raise FormatError(f"manifest.json must be an object, not {type(manifest).__name__}")
    if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise FormatError(
            f"package of format {str(manifest.get('format'))[:80]!r}, version {str(manifest.get('version'))[:80]!r}; "
            f"this release reads {FORMAT!r} {VERSION}"
        )
    for key in ("model", "config"):
        _field(manifest, key, str, "manifest.json")
    for name, shape in _field(manifest, "inputs", dict, "manifest.json").items():
        _shape(shape, f"manifest.json: inputs: {name[:80]}")
    _names(manifest, "outputs", "manifest.json")
    if manifest.get("preprocessing") is not None:
        _field(manifest, "preprocessing", dict, "manifest.json")
    return manifest


def _part(row: Any, where: str, members: _Members, indices: Mapping[str, np.ndarray]) -> PackedPart:
    if not isinstance(row, dict):
        raise FormatError(f"{where}: must be an object, not {type(row).__name__}")
    kind, file = _field(row, "kind", str, where), _field(row, "file", str, where)
    bound = {
        way: [_binding(each, f"{where}.{way}[{i}]", indices) for i, each in enumerate(_list(row, way, where))]
        for way in ("inputs", "outputs")
    }
    part = PackedPart(kind, _names(row, "nodes", where), bound["inputs"], bound["outputs"])
    if kind == "host":
        part.model = members.content(file)
    elif kind == "accelerator":
        _accelerator(part, row, where, members.content(file))
    else:
        raise FormatError(f"{where}: kind: {kind[:80]!r}, must be accelerator or host")
    return part


def _accelerator(part: PackedPart, row: dict[str, Any], where: str, loadable: bytes) -> None:
    part.precision = _field(row, "precision", str, where)
    if part.precision not in PRECISIONS:
        raise FormatError(f"{where}: precision: {part.precision[:80]!r}, must be one of {', '.join(PRECISIONS)}")
    part.scales = {
        name: _positive(value, f"{where}: scales: {name[:80]}")
        for name, value in _field(row, "scales", dict, where).items()
    }
    if "zero_points" in row:
        zero_points = _field(row, "zero_points", dict, where)
        part.zero_points = {
            name: _zero_point(value, f"{where}: zero_points: {name[:80]}") for name, value in zero_points.items()
        }
    if row.get("pixels") is not None:
        part.numbers = pixels_of(_field(row, "pixels", dict, where))
    part.images = _field(row, "images", int, where) if "images" in row else 1
    if not 1 <= part.images <= MAX_IMAGES:
        raise FormatError(f"{where}: images: {part.images}, must be 1 .. {MAX_IMAGES}")
    needed = [each for each in part.inputs if each.tensor not in part.numbers] + part.outputs
    for each in needed:
        if each.tensor not in part.scales:
            raise FormatError(f"{where}: scales: there is none for tensor {each.tensor[:80]!r}")
    part.loadable = load(loadable)
    _check_bound(part, where)


def _check_bound(part: PackedPart, where: str) -> None:
    """What the part binds is what its loadable has."""
    assert part.loadable is not None
    loadable = part.loadable
    for way, memories in (("inputs", loadable.inputs), ("outputs", loadable.outputs)):
        tensors = [loadable.tensor(memory.tensor_desc_id) for memory in memories]
        sizes = {each.name: each.n * each.c * each.h * each.w // part.images for each in tensors}
        bindings: list[Binding] = getattr(part, way)
        if way == "inputs" and sorted(each.tensor for each in bindings) != sorted(sizes):
            raise FormatError(f"{where}: inputs: the loadable takes {_few(sizes)}")
        for each in bindings:
            size, own = sizes.get(each.tensor), math.prod(each.shape)
            if size is None:
                raise FormatError(f"{where}: {way}: the loadable has no {each.tensor[:80]!r}, it has {_few(sizes)}")
            chooses = way == "outputs" and each.index is not None
            if (own != size) if not chooses else (each.index is not None and each.index.max(initial=0) >= size):
                raise FormatError(f"{where}: {way}: tensor {each.tensor[:80]!r} has {size} elements, {own} are bound")


def _few(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name[:80]!r}" for name in list(names)[:8]) or "none"


def _binding(each: Any, where: str, indices: Mapping[str, np.ndarray]) -> Binding:
    if not isinstance(each, dict):
        raise FormatError(f"{where}: must be an object, not {type(each).__name__}")
    shape = _shape(each.get("shape"), f"{where}: shape")
    index, key = None, each.get("index")
    if key is not None:
        index = indices.get(_field(each, "index", str, where))
        if index is None or index.dtype.kind not in "iu" or index.size != math.prod(shape):
            raise FormatError(f"{where}: index: {key[:80]!r} is no array of {math.prod(shape)} places in indices.npz")
        if index.size and (index.min() < 0 or index.max() >= MAX_ELEMENTS):
            raise FormatError(f"{where}: index: places {index.min()} .. {index.max()}, must be 0 .. {MAX_ELEMENTS - 1}")
    return Binding(_field(each, "tensor", str, where), _field(each, "value", str, where), index, shape)


def _check_order(manifest: dict[str, Any], parts: Sequence[PackedPart], constants: Mapping[str, np.ndarray]) -> None:
    """Every value that a part takes, and every output, is made before."""
    made = {*manifest["inputs"], *constants}
    for number, part in enumerate(parts):
        for each in part.inputs:
            if each.value not in made:
                raise FormatError(f"manifest.json: parts[{number}]: nothing before it makes {each.value[:80]!r}")
        made |= {each.value for each in part.outputs}
    for name in manifest["outputs"]:
        if name not in made:
            raise FormatError(f"manifest.json: outputs: no part makes {name[:80]!r}")


def _field(row: dict[str, Any], key: str, kind: type, where: str) -> Any:
    value = row.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        said = "is missing" if key not in row else f"is {type(value).__name__}, must be {kind.__name__}"
        raise FormatError(f"{where}: {key} {said}")
    return value


def _list(row: dict[str, Any], key: str, where: str) -> list[Any]:
    found: list[Any] = _field(row, key, list, where)
    return found


def _names(row: dict[str, Any], key: str, where: str) -> list[str]:
    found = _list(row, key, where)
    if not all(isinstance(each, str) for each in found):
        raise FormatError(f"{where}: {key}: must be names")
    return found


def _shape(value: Any, where: str) -> tuple[int, ...]:
    sound: Callable[[Any], bool] = lambda each: type(each) is int and 0 < each <= MAX_ELEMENTS  # noqa: E731
    if not isinstance(value, list) or len(value) > MAX_RANK or not all(map(sound, value)):
        raise FormatError(f"{where}: must be a list of at most {MAX_RANK} sizes, not {str(value)[:80]}")
    if math.prod(value) > MAX_ELEMENTS:
        raise FormatError(f"{where}: {math.prod(value)} elements, the limit is {MAX_ELEMENTS}")
    return tuple(value)


def _zero_point(value: Any, where: str) -> int:
    if type(value) is not int or abs(value) > MAX_ZERO_POINT:
        raise FormatError(f"{where}: must be a whole number up to {MAX_ZERO_POINT}, not {str(value)[:80]}")
    return int(value)


def _positive(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise FormatError(f"{where}: must be a positive number, not {str(value)[:80]}")
    return float(value)
