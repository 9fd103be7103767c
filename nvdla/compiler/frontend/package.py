"""Packages of accelerator and host parts: writing and reading.

Every field of ``manifest.json`` has its type and its range. The size of unpacked members is limited relative to the
archive. Each part's inputs must be produced by earlier parts, and the bindings of a part must match its loadable.

``manifest.json`` lists the parts in order with their bindings and scales; ``part0.loadable`` (with its sidecar
``part0.loadable.layers.json``) is an accelerator part, ``part1.onnx`` a host part, ``indices.npz`` holds the orders of
bound tensors where they differ from the model's, ``constants.npz`` outputs that are constants.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nvdla.compiler.builder.compiler import MAX_IMAGES
from nvdla.compiler.frontend.graph import Binding
from nvdla.compiler.frontend.isolation import ModelWorker, worker_of
from nvdla.compiler.frontend.opening import CompiledPart, HostPart, PackedPart, elements_of, reals_of, value_of
from nvdla.errors import FormatError, LoadableError, NvdlaError, shape_text
from nvdla.loadable import load
from nvdla.program.program import check_built_in
from nvdla.tensors.files import IMAGE_ENDINGS, check_whole, ending, has_axes, read_npy, several_images
from nvdla.tensors.images import is_picture
from nvdla.tensors.inputs import (
    Input,
    PictureConversion,
    Preprocessing,
    by_position,
    check_pixels,
    check_range,
    holds_pixels,
    in_order,
    is_image,
    pixel_conversion,
)
from nvdla.tensors.npz import check_packing, read_npz
from nvdla.tensors.real import pixels_of
from nvdla.util.arguments import as_array
from nvdla.util.escaping import Document, json_text
from nvdla.util.files import FREELY_UNPACKED, MAX_RATIO, UNREADABLE_ZIP, parse_json, read_file
from nvdla.util.precision import PRECISIONS
from nvdla.util.recognition import kind_of, wrong_kind

if TYPE_CHECKING:
    from nvdla.compiler.frontend.importer import Imported
    from nvdla.runtime import Runtime

FORMAT, VERSION = "nvdla-package", 1
MAX_PARTS = 1000
MAX_RANK = 8
MAX_ELEMENTS = 1 << 31
MAX_ZERO_POINT = 1 << 15
MAX_MANIFEST = 16 << 20


def read_members(data: bytes) -> tuple[Document, list[PackedPart], dict[str, np.ndarray]]:
    """Manifest, parts and constants of a package. Raises FormatError, and what :mod:`zipfile` raises."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = _Members(archive, len(data))
        manifest = _manifest(members.content("manifest.json", MAX_MANIFEST))
        indices = members.arrays("indices.npz")
        rows = _list(manifest, "parts", "manifest.json")
        if len(rows) > MAX_PARTS:
            raise FormatError(f"manifest.json: parts: must be at most {MAX_PARTS}, got {len(rows)}")
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
        for member in archive.infolist():
            check_packing(member, f"package: member {member.filename!r}")
            if member.filename in self._files:
                raise FormatError(f"package: member {member.filename[:200]!r}: must be unique")
            self._files[member.filename] = member
            self._charge(member.file_size)

    def _charge(self, size: int) -> None:
        self._total += size
        if self._total > self._limit:
            raise FormatError(
                f"package: unpacked size: must be at most {self._limit} bytes ({FREELY_UNPACKED >> 20} MiB and "
                f"{MAX_RATIO} times the file); without compression this size would be allowed"
            )

    def content(self, name: str, limit: int | None = None) -> bytes:
        """The bytes of a member. Raises FormatError for one that is not there, or longer than ``limit``."""
        if name not in self._files:
            raise FormatError(f"must have the member {name[:200]!r}, but has not")
        size = self._files[name].file_size
        if limit is not None and size > limit:
            raise FormatError(f"member {name}: must have at most {limit} bytes, got {size}")
        try:
            return self._archive.read(self._files[name])
        except UNREADABLE_ZIP as error:
            raise FormatError(f"member {name}: cannot be unpacked (damaged?): {error}") from None

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of an .npz in the package: packed once more, so they are charged too."""
        return read_npz(self.content(name), self._charge)


def _manifest(text: bytes) -> Document:
    try:
        manifest = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"manifest.json: must be JSON: {str(error)[:200]}") from None
    if not isinstance(manifest, dict):
        raise FormatError(f"manifest.json: must be an object, got {type(manifest).__name__}")
    if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise FormatError(
            f"must have format {FORMAT!r} {VERSION} for this release, got "
            f"{str(manifest.get('format'))[:80]!r} {str(manifest.get('version'))[:80]!r}"
        )
    for key in ("model", "config"):
        _field(manifest, key, str, "manifest.json")
    for name, shape in _field(manifest, "inputs", dict, "manifest.json").items():
        _unpacking_shape(shape, f"manifest.json: inputs: {name[:80]}")
    _names(manifest, "outputs", "manifest.json")
    if "halves" in manifest:
        _names(manifest, "halves", "manifest.json")
    if manifest.get("preprocessing") is not None:
        _field(manifest, "preprocessing", dict, "manifest.json")
    return manifest


def _part(row: object, where: str, members: _Members, indices: Mapping[str, np.ndarray]) -> PackedPart:
    if not isinstance(row, dict):
        raise FormatError(f"{where}: must be an object, got {type(row).__name__}")
    kind, file = _field(row, "kind", str, where), _field(row, "file", str, where)
    bound = {
        way: [
            _unpacking_binding(binding, f"{where}.{way}[{i}]", indices)
            for i, binding in enumerate(_list(row, way, where))
        ]
        for way in ("inputs", "outputs")
    }
    part = PackedPart(kind, _names(row, "nodes", where), bound["inputs"], bound["outputs"])
    part.images = _field(row, "images", int, where) if "images" in row else 1
    if not 1 <= part.images <= MAX_IMAGES:
        raise FormatError(f"{where}: images: must be 1 .. {MAX_IMAGES}, got {part.images}")
    part.rows = _node_rows(row, where)
    if kind == "host":
        part.model = members.content(file)
        if kind_of(part.model) in ("cut-onnx", "empty"):
            raise FormatError(wrong_kind(part.model, f"member {file}", "an ONNX model", ()))
    elif kind == "accelerator":
        _accelerator(part, row, where, members.content(file))
    else:
        raise FormatError(f"{where}: kind: must be accelerator or host, got {kind[:80]!r}")
    return part


def _node_rows(row: Document, where: str) -> list[Document]:
    rows = cast("list[Document]", _list(row, "rows", where) if "rows" in row else [])
    for number, node_row in enumerate(rows):
        if not isinstance(node_row, dict):
            raise FormatError(f"{where}.rows[{number}]: must be an object, got {type(node_row).__name__}")
        for key in ("name", "op", "reason"):
            _field(node_row, key, str, f"{where}.rows[{number}]")
        if not 0 <= _field(node_row, "macs", int, f"{where}.rows[{number}]") < 1 << 63:
            raise FormatError(f"{where}.rows[{number}]: macs: must be 0 .. 2^63 - 1")
    return rows


def _accelerator(part: PackedPart, row: Document, where: str, loadable: bytes) -> None:
    part.precision = _field(row, "precision", str, where)
    if part.precision not in PRECISIONS:
        raise FormatError(f"{where}: precision: must be one of {', '.join(PRECISIONS)}, got {part.precision[:80]!r}")
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
    needed = [binding for binding in part.inputs if binding.tensor not in part.numbers] + part.outputs
    for binding in needed:
        if binding.tensor not in part.scales:
            raise FormatError(f"{where}: scales: must contain tensor {binding.tensor[:80]!r}")
    try:
        part.loadable = load(loadable)
    except LoadableError as error:
        raise LoadableError(f"member {row['file']}: {error}") from None
    _check_bound(part, where)


def _check_bound(part: PackedPart, where: str) -> None:
    """Check that the bindings of a part match the tensors of its loadable."""
    assert part.loadable is not None
    loadable = part.loadable
    for way, memories in (("inputs", loadable.inputs), ("outputs", loadable.outputs)):
        tensors = [loadable.tensor(memory.tensor_desc_id) for memory in memories]
        sizes = {tensor.name: tensor.n * tensor.c * tensor.h * tensor.w // part.images for tensor in tensors}
        bindings: list[Binding] = getattr(part, way)
        if way == "inputs" and sorted(binding.tensor for binding in bindings) != sorted(sizes):
            raise FormatError(f"{where}: inputs: must be those of the loadable ({_few(sizes)})")
        for binding in bindings:
            size, own = sizes.get(binding.tensor), math.prod(binding.shape)
            if size is None:
                raise FormatError(
                    f"{where}: {way}: must be one of the loadable's {_few(sizes)}, got {binding.tensor[:80]!r}"
                )
            chooses = way == "outputs" and binding.index is not None
            if (own != size) if not chooses else (binding.index is not None and binding.index.max(initial=0) >= size):
                raise FormatError(
                    f"{where}: {way}: tensor {binding.tensor[:80]!r}: must have {size} elements (loadable), got {own}"
                )


def _few(names: Mapping[str, int]) -> str:
    return ", ".join(f"{name[:80]!r}" for name in list(names)[:8]) or "none"


def _unpacking_binding(row: object, where: str, indices: Mapping[str, np.ndarray]) -> Binding:
    if not isinstance(row, dict):
        raise FormatError(f"{where}: must be an object, got {type(row).__name__}")
    shape = _unpacking_shape(row.get("shape"), f"{where}: shape")
    index, key = None, row.get("index")
    if key is not None:
        index = indices.get(_field(row, "index", str, where))
        if index is None or index.dtype.kind not in "iu" or index.size != math.prod(shape):
            raise FormatError(
                f"{where}: index: must be an array of {math.prod(shape)} positions in indices.npz, got {key[:80]!r}"
            )
        if index.size and (index.min() < 0 or index.max() >= MAX_ELEMENTS):
            raise FormatError(
                f"{where}: index: must be within 0 .. {MAX_ELEMENTS - 1}, got {index.min()} .. {index.max()}"
            )
    return Binding(_field(row, "tensor", str, where), _field(row, "value", str, where), index, shape)


def _check_order(manifest: Document, parts: Sequence[PackedPart], constants: Mapping[str, np.ndarray]) -> None:
    """Every value that a part takes, and every output, is made before."""
    known = {*manifest["inputs"], *constants}
    for number, part in enumerate(parts):
        for binding in part.inputs:
            if binding.value not in known:
                raise FormatError(
                    f"manifest.json: parts[{number}]: value {binding.value[:80]!r}: must be produced by an earlier part"
                )
        known |= {binding.value for binding in part.outputs}
    for name in manifest["outputs"]:
        if name not in known:
            raise FormatError(f"manifest.json: outputs: {name[:80]!r}: must be produced by a part")


def _field(row: Document, key: str, kind: type, where: str) -> Any:
    value = row.get(key)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        actual = type(value).__name__ if key in row else "nothing"
        raise FormatError(f"{where}: {key}: must be {kind.__name__}, got {actual}")
    return value


def _list(row: Document, key: str, where: str) -> list[object]:
    items: list[object] = _field(row, key, list, where)
    return items


def _names(row: Document, key: str, where: str) -> list[str]:
    items = _list(row, key, where)
    names = [item for item in items if isinstance(item, str)]
    if len(names) != len(items):
        raise FormatError(f"{where}: {key}: must be names")
    return names


def _unpacking_shape(value: object, where: str) -> tuple[int, ...]:
    sound: Callable[[object], bool] = lambda size: type(size) is int and 0 < size <= MAX_ELEMENTS  # noqa: E731
    if not isinstance(value, list) or len(value) > MAX_RANK or not all(map(sound, value)):
        raise FormatError(f"{where}: must be a list of at most {MAX_RANK} sizes, got {str(value)[:80]}")
    if math.prod(value) > MAX_ELEMENTS:
        raise FormatError(f"{where}: must have at most {MAX_ELEMENTS} elements, got {math.prod(value)}")
    return tuple(value)


def _zero_point(value: object, where: str) -> int:
    if type(value) is not int or abs(value) > MAX_ZERO_POINT:
        raise FormatError(f"{where}: must be a whole number up to {MAX_ZERO_POINT}, got {str(value)[:80]}")
    return int(value)


def _positive(value: object, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise FormatError(f"{where}: must be a positive number, got {str(value)[:80]}")
    return float(value)


MAX_PACKAGE = 4 << 30
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(
    imported: Imported, compiled: list[CompiledPart], details: Document, constants: Mapping[str, np.ndarray]
) -> bytes:
    """The zip file; the same model gives the same bytes."""
    known = {
        row.name: {"name": row.name, "op": row.op, "macs": row.macs, "reason": row.reason} for row in imported.nodes
    }
    indices: dict[str, np.ndarray] = {}
    files: dict[str, bytes] = {}
    parts = []
    for number, part in enumerate(compiled):
        row: Document = {"kind": part.kind, "nodes": part.nodes, "rows": [known[name] for name in part.nodes]}
        for way in ("inputs", "outputs"):
            row[way] = [
                _binding(binding, f"{number}.{way}.{i}", indices) for i, binding in enumerate(getattr(part, way))
            ]
        if part.loadable is not None:
            row |= {"file": f"part{number}.loadable", "scales": part.scales, "precision": part.precision}
            row["pixels"] = {name: numbers.document() for name, numbers in part.numbers.items()}
            row |= {"zero_points": part.zero_points} if part.zero_points else {}
            files[row["file"]] = part.loadable.to_bytes()
            sidecar = json_text(part.made.sidecar, indent=1, sort_keys=True)
            files[f"{row['file']}.layers.json"] = sidecar.encode() + b"\n"
        else:
            row["file"] = f"part{number}.onnx"
            files[row["file"]] = part.model.SerializeToString(deterministic=True)
        row |= {"images": part.images} if part.images > 1 else {}
        parts.append(row)
    model = imported.model
    images = compiled[0].images if compiled else 1
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "model": model.name,
        "config": imported.config.name,
        "precision": imported.precision,
        "inputs": {name: batch_shape(model.shapes[name], images) for name in model.inputs},
        "outputs": model.outputs,
        "halves": halves_of(imported),
        "parts": parts,
        **details,
    }
    files["manifest.json"] = json_text(manifest, indent=1).encode() + b"\n"
    files["indices.npz"] = _npz(indices)
    files["constants.npz"] = _npz(constants)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def batch_shape(shape: Sequence[int], images: int) -> list[int]:
    """Return the shape for a run of ``images``, from the shape for one image."""
    return list(shape) if images == 1 else [images, *shape[1:]]


def _binding(binding: Binding, key: str, indices: dict[str, np.ndarray]) -> Document:
    if binding.index is not None:
        indices[key] = binding.index
    return {
        "tensor": binding.tensor,
        "value": binding.value,
        "shape": list(binding.shape),
        "index": key if binding.index is not None else None,
    }


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            inner = io.BytesIO()
            np.lib.format.write_array(
                inner, np.ascontiguousarray(arrays[name]).reshape(arrays[name].shape), allow_pickle=False
            )
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), inner.getvalue(), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


@dataclass
class Package:
    """A package that was read. ``machine()`` runs it."""

    manifest: Document
    parts: list[PackedPart]
    constants: dict[str, np.ndarray]

    @property
    def preprocessing(self) -> Preprocessing:
        """Conversion of pictures to the inputs."""
        return Preprocessing.of(document) if (document := self.manifest.get("preprocessing")) else Preprocessing()

    def machine(self, strict: bool = False, trusted: bool = False, config: str = "auto") -> HostMachine:
        """A machine that runs the parts one after the other. ``strict``: as of a Runtime. ``trusted``: host parts run
        in this process, without limits. ``config``: a configuration, default the one that the manifest names."""
        inputs, outputs, halves = self.manifest["inputs"], self.manifest["outputs"], self.manifest.get("halves", ())
        if config == "auto":
            check_built_in(config := self.manifest["config"], "package")
        given = self.constants, config, strict, worker_of(trusted), halves, self.preprocessing
        return HostMachine(self.parts, inputs, outputs, *given)


def machine_of(
    imported: Imported,
    parts: list[CompiledPart],
    constants: Mapping[str, np.ndarray],
    config: str,
    details: Document,
) -> HostMachine:
    """Return a machine that runs the parts of a compiled model."""
    model, images = imported.model, parts[0].images if parts else 1
    shapes = {name: batch_shape(model.shapes[name], images) for name in model.inputs}
    halves, pixels = halves_of(imported), Preprocessing.of(details["preprocessing"])
    return HostMachine(parts, shapes, model.outputs, constants, config, False, model.worker, halves, pixels)


def halves_of(imported: Imported) -> list[str]:
    """Return the outputs that are float16 in the model."""
    return [name for name in imported.model.outputs if imported.model.types.get(name) == np.float16]


def unpack(source: str | os.PathLike[str] | bytes) -> Package:
    """Read a package. Raises FormatError (LoadableError for a loadable in it)."""
    name = "package" if isinstance(source, bytes) else os.fspath(source)
    data = source if isinstance(source, bytes) else read_file(source, MAX_PACKAGE, "package")
    try:
        return Package(*read_members(data))
    except (NvdlaError, *UNREADABLE_ZIP) as error:
        takes = ("package",) if isinstance(error, NvdlaError) else ("package", "zip", "cut-zip")
        if (other := wrong_kind(data, name, "a package of nvdla compile", takes)) is not None:
            raise FormatError(other) from None
        if isinstance(error, NvdlaError):
            raise type(error)(f"{name}: {error}") from None
        raise FormatError(f"{name}: must be an intact package of nvdla compile (cut off?): {error}") from None


def real_input(
    value: object, name: str, shape: Sequence[int], preprocessing: Preprocessing | None, parts: Sequence[Any]
) -> np.ndarray:
    """Return the real numbers of an input of a model.

    Args:
        value: A file (image, .npy), a picture, pixels (uint8), real numbers, or signed integers: see
            :func:`real_numbers`.
        name: The input, for errors.
        shape: Its shape, which a file must have.
        preprocessing: Conversion of pictures.
        parts: Parts of the model; those on the accelerator limit the numbers of a picture.

    Raises:
        FormatError: The file cannot be read or does not fit.
    """
    shape, is_file = tuple(shape), isinstance(value, (str, os.PathLike))
    pictures = preprocessing or Preprocessing()
    if pictures.takes(value, shape) or (is_file and Path(str(value)).suffix.lower() in IMAGE_ENDINGS):
        image = pictures.image(value, shape)
        _check_picture(image, name, parts, pictures.range)
        return image
    if is_file:
        ending(str(value), (".npy", *IMAGE_ENDINGS), "an input of a package")
    array = read_npy(str(value)) if is_file else as_array(value, "input")
    if holds_pixels(array) and len(shape) in (3, 4) and array.ndim > 1:
        images = array if array.ndim == 4 else array[None]
        if len(images) == (shape[0] if len(shape) == 4 else 1):
            single = (1, *shape[1:]) if len(shape) == 4 else shape
            numbers = np.concatenate([pictures.array(image, single) for image in images]).reshape(shape)
            _check_picture(numbers, name, parts, pictures.range)
            return numbers
    return in_shape(real_numbers(array, name, parts), shape, f"{value}: input {name}" if is_file else f"input {name}")


def in_shape(array: np.ndarray, shape: Sequence[int], name: str) -> np.ndarray:
    """Return an array in the shape of an input, whose axes of size 1 may be missing, and whose channels may be at the
    other end. Raises FormatError for other axes."""
    ordered = in_order(array, shape)
    if ordered.size != math.prod(shape) or not has_axes(ordered, shape):
        hint = several_images(array, shape)
        raise FormatError(f"{name}: shape must be {shape_text(shape)}, got {shape_text(array.shape)}.{hint}")
    return ordered.reshape(shape)


def real_numbers(array: np.ndarray, name: str, parts: Sequence[Any]) -> np.ndarray:
    """Return the real numbers of an array for an input of the model: signed integers are elements of the accelerator
    part that reads it. Raises FormatError if the elements cannot hold one."""
    for part in (part for part in parts if part.kind == "accelerator" and array.dtype.kind in "if"):
        for tensor in (binding.tensor for binding in part.inputs if binding.value == name):
            dtype = part.precision_of(tensor).dtype
            if array.dtype.kind == "f":
                if tensor not in part.numbers:
                    check_range(array, part.scales[tensor], part.zero_points.get(tensor, 0), dtype, name)
                continue
            if dtype.kind == "i" and tensor not in part.numbers:
                advice = "Give real numbers (float32), or quantize them with the network's input scale"
                if array.dtype == np.int8 != dtype:
                    raise FormatError(f"input {name}: elements must be {dtype}, got int8. {advice}.")
                check_whole(array, dtype, f"the input's {dtype}", advice, f"input {name}: ")
                zero, scale = part.zero_points.get(tensor, 0), part.scales[tensor]
                return ((array.astype(np.float64) - zero) * scale).astype(np.float32)
    return array


def _check_picture(image: np.ndarray, name: str, parts: Sequence[Any], samples: Sequence[float]) -> None:
    """Check the numbers of a picture against the range of the accelerator parts that read it. Raises FormatError."""
    for part in (part for part in parts if part.kind == "accelerator"):
        for tensor in (binding.tensor for binding in part.inputs if binding.value == name):
            if tensor not in part.numbers:
                zero, dtype = part.zero_points.get(tensor, 0), part.precision_of(tensor).dtype
                check_pixels(image, part.scales[tensor], zero, dtype, name, samples)


class HostMachine:
    """Runs the parts of a model one after the other: real numbers in and out, by the model's names."""

    def __init__(
        self,
        parts: Sequence[Any],
        inputs: Mapping[str, Sequence[int]],
        outputs: Sequence[str],
        constants: Mapping[str, np.ndarray],
        config: str = "auto",
        strict: bool = False,
        worker: ModelWorker | None = None,
        halves: Collection[str] = (),
        preprocessing: Preprocessing | None = None,
    ) -> None:
        """``inputs``: shapes by name; ``halves``: outputs that are float16 in the model; ``preprocessing``: that of
        pictures."""
        self._halves, self._preprocessing, self._given = halves, preprocessing, parts
        self._shapes = {name: tuple(shape) for name, shape in inputs.items()}
        self.inputs, self.outputs, self.constants = list(inputs), list(outputs), dict(constants)
        self.parts = [
            _Accelerator(part, config, strict)
            if part.kind == "accelerator"
            else _Host(part, f"host part {number}", worker)
            for number, part in enumerate(parts)
        ]

    def run(
        self,
        inputs: Input | Sequence[Input] | Mapping[str, Input],
        before: Callable[[int, dict[str, np.ndarray]], None] | None = None,
        preprocessing: PictureConversion | None = None,
    ) -> dict[str, np.ndarray]:
        """Run all parts.

        Args:
            inputs: real numbers, elements (signed integers), pictures or files: by the model's names, in order, or a
                single one. Lists and batch arrays run one after the other.
            before: called for each accelerator part with its number and the elements of its inputs.
            preprocessing: conversion of pictures (default: that of the model).

        Returns:
            Real numbers by the model's names; those of several runs are concatenated along the first axis.

        Raises:
            FormatError: an input is missing or has another shape.
        """
        results = [self._run(feeds, before) for feeds in self.feeds(inputs, preprocessing)]
        if len(results) == 1:
            return results[0]
        return {name: np.concatenate([np.atleast_1d(result[name]) for result in results]) for name in self.outputs}

    def feeds(
        self, inputs: Input | Sequence[Input] | Mapping[str, Input], preprocessing: PictureConversion | None = None
    ) -> list[dict[str, np.ndarray]]:
        """Real numbers of the model's inputs for each run. Raises FormatError."""
        pictures = (self._preprocessing or Preprocessing()).changed_by(pixel_conversion(preprocessing))
        given = dict(zip(self.inputs, by_position(inputs, self.inputs), strict=True))
        runs = {name: self._runs(name, value) for name, value in given.items()}
        counts = set(map(len, runs.values()))
        if len(counts) > 1:
            numbers = ", ".join(f"{name} {len(values)}" for name, values in runs.items())
            raise FormatError(f"inputs: must have the same number of images each, got {numbers}")
        return [
            {
                name: real_input(values[run], name, self._shapes[name], pictures, self._given)
                for name, values in runs.items()
            }
            for run in range(max(counts, default=1))
        ]

    def _runs(self, name: str, value: Any) -> list[object]:
        """Return what was given for one input, run by run."""
        shape = self._shapes[name]
        value = value.detach().cpu().numpy() if hasattr(value, "detach") else value  # a tensor of PyTorch
        if isinstance(value, (list, tuple)) and value and all(map(is_image, value)):
            return list(value)
        if isinstance(value, np.ndarray) and value.ndim == len(shape) == 4 and value.shape[1:] != shape[1:]:
            if len(value) and is_picture(value[0], shape):
                return list(value)
            value = in_order(value, shape)
        if isinstance(value, np.ndarray) and len(shape) > 1 and value.shape[1:] == shape[1:]:
            count = len(value) // max(shape[0], 1)
            return [*np.split(value, count)] if count > 1 and len(value) == count * shape[0] else [value]
        return [value]

    def _run(
        self, feeds: Mapping[str, np.ndarray], before: Callable[[int, dict[str, np.ndarray]], None] | None
    ) -> dict[str, np.ndarray]:
        values: dict[str, np.ndarray] = {**feeds, **self.constants}
        for number, part in enumerate(self.parts):
            if before is not None and isinstance(part, _Accelerator):
                before(number, part.elements(values))
            values.update(part.run(values))
        return self.results(values)

    def results(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The model's outputs among all values. Raises FormatError where one is missing."""
        lacking = [name for name in self.outputs if name not in values]
        if lacking:
            raise FormatError(f"output {', '.join(lacking)}: must be produced by a part of the model")
        with np.errstate(over="ignore"):
            halves = {name: values[name].astype(np.float16) for name in self.outputs if name in self._halves}
        return {name: values[name] for name in self.outputs} | halves

    def warnings(self) -> list[str]:
        """Warnings of all parts: hardware behaviour without an error that the files probably do not intend."""
        return [warning for runtime in self.runtimes() for warning in runtime.warnings]

    def accelerators(self) -> dict[int, _Accelerator]:
        """The parts on the accelerator, by number."""
        return {number: part for number, part in enumerate(self.parts) if isinstance(part, _Accelerator)}

    def runtimes(self) -> list[Runtime]:
        """Those of the accelerator's parts."""
        return [part.runtime for part in self.accelerators().values()]


class _Host:
    """A host part, run image by image: its ONNX model is that for one image."""

    def __init__(self, part: Any, name: str, worker: ModelWorker | None) -> None:
        self.part, self.images = HostPart(part.model, name, worker), part.images
        self.takes = [binding.value for binding in part.inputs]

    def run(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute the part on the host: tensors by name in and out."""
        if self.images == 1:
            return self.part.run(values)
        stacks = {name: np.asarray(value_of(values, name)) for name in self.takes}
        for name, stack in stacks.items():
            if stack.shape[:1] != (self.images,):
                raise FormatError(f"value {name[:80]!r}: must have {self.images} images, got {shape_text(stack.shape)}")
        results = [self.part.run({name: stack[[n]] for name, stack in stacks.items()}) for n in range(self.images)]
        return {name: np.concatenate([result[name] for result in results]) for name in self.part.outputs}


class _Accelerator:
    """An accelerator part on the emulator."""

    def __init__(self, part: Any, config: str, strict: bool) -> None:
        from nvdla.runtime import Runtime

        self.part, self.runtime = part, Runtime(part.loadable, config, strict=strict)

    def elements(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Bound inputs (images, C, H, W) in the hardware's element type."""
        return elements_of(self.part, values)

    def run(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.real(self.runtime.run(self.elements(values)))

    def real(self, results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Elements of the outputs as real numbers, by the model's names."""
        return reals_of(self.part, results)
