"""Packages: accelerator and host parts of one model in one zip file, and the machine that runs them.

``manifest.json`` lists the parts in order with their bindings and scales; ``part0.loadable`` (with its sidecar
``part0.loadable.layers.json``) is an accelerator part, ``part1.onnx`` a host part, ``indices.npz`` holds the orders of
bound tensors where they differ from the model's, ``constants.npz`` outputs that are constants.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.quantize import quantize
from nvdla.errors import FormatError, NvdlaError
from nvdla.files import read_file
from nvdla.frontend.graph import Binding
from nvdla.frontend.host import HostPart, value_of
from nvdla.frontend.unpacking import FORMAT, VERSION, PackedPart, read_members
from nvdla.hardware.configuration import configurations

if TYPE_CHECKING:
    from nvdla.frontend.compiler import Compiled
    from nvdla.runtime import Runtime

MAX_PACKAGE = 4 << 30
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(compiled: Compiled) -> bytes:
    """The zip file; the same model gives the same bytes."""
    indices: dict[str, np.ndarray] = {}
    files: dict[str, bytes] = {}
    parts = []
    for number, part in enumerate(compiled.parts):
        row: dict[str, Any] = {"kind": part.kind, "nodes": part.nodes}
        for way in ("inputs", "outputs"):
            row[way] = [_binding(each, f"{number}.{way}.{i}", indices) for i, each in enumerate(getattr(part, way))]
        if part.loadable is not None:
            row |= {"file": f"part{number}.loadable", "scales": part.scales, "precision": part.precision}
            row["pixels"] = {name: numbers.document() for name, numbers in part.numbers.items()}
            row |= {"images": part.images} if part.images > 1 else {}
            row |= {"zero_points": part.zero_points} if part.zero_points else {}
            files[row["file"]] = part.loadable.to_bytes()
            sidecar = json.dumps(part.made.sidecar, indent=1, sort_keys=True)
            files[f"{row['file']}.layers.json"] = sidecar.encode() + b"\n"
        else:
            row["file"] = f"part{number}.onnx"
            files[row["file"]] = part.model.SerializeToString(deterministic=True)
        parts.append(row)
    model = compiled.imported.model
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "model": model.name,
        "config": compiled.imported.config.name,
        "precision": compiled.imported.precision,
        "inputs": {name: _shape(model.shapes[name], compiled.parts[0].images) for name in model.inputs},
        "outputs": model.outputs,
        "parts": parts,
        **compiled.details,
    }
    files["manifest.json"] = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
    files["indices.npz"] = _npz(indices)
    files["constants.npz"] = _npz(compiled.constants)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), files[name], zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _shape(shape: Sequence[int], images: int) -> list[int]:
    """What a run takes, from what one image has."""
    return list(shape) if images == 1 else [images, *shape[1:]]


def _binding(each: Binding, key: str, indices: dict[str, np.ndarray]) -> dict[str, Any]:
    if each.index is not None:
        indices[key] = each.index
    return {
        "tensor": each.tensor,
        "value": each.value,
        "shape": list(each.shape),
        "index": key if each.index is not None else None,
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

    manifest: dict[str, Any]
    parts: list[PackedPart]
    constants: dict[str, np.ndarray]

    def machine(self, strict: bool = False) -> HostMachine:
        """A machine that runs the parts one after the other. ``strict``: as of a Runtime."""
        inputs, outputs = list(self.manifest["inputs"]), list(self.manifest["outputs"])
        config = run_config(self.manifest["config"])
        return HostMachine(self.parts, inputs, outputs, self.constants, config, strict)


def run_config(name: str) -> str:
    """What a run is told of the configuration that a model was compiled for: "auto" where its name is not known."""
    return name if name in configurations() else "auto"


# zipfile raises RuntimeError for an encrypted member and (as NotImplementedError) for a compression that it does not
# know, EOFError, OSError and zlib's error for one that is cut off or damaged.
_UNREADABLE = (zipfile.BadZipFile, zipfile.LargeZipFile, RuntimeError, EOFError, OSError, ValueError, zlib.error)


def unpack(source: str | os.PathLike[str] | bytes) -> Package:
    """Read a package. Raises FormatError (LoadableError for a loadable in it)."""
    name = "package" if isinstance(source, bytes) else os.fspath(source)
    data = source if isinstance(source, bytes) else read_file(source, MAX_PACKAGE, "package")
    try:
        return Package(*read_members(data))
    except NvdlaError as error:
        raise type(error)(f"{name}: {error}") from None
    except _UNREADABLE as error:
        raise FormatError(
            f"{name}: not a package of nvdla compile, or one that is damaged (cut off?): {error}"
        ) from None


class HostMachine:
    """Runs the parts of a model one after the other: real numbers in and out, by the model's names."""

    def __init__(
        self,
        parts: Sequence[Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
        constants: Mapping[str, np.ndarray],
        config: str = "auto",
        strict: bool = False,
    ) -> None:
        self.inputs, self.outputs, self.constants = list(inputs), list(outputs), dict(constants)
        self.parts = [
            _Accelerator(part, config, strict) if part.kind == "accelerator" else _Host(part, f"host part {number}")
            for number, part in enumerate(parts)
        ]

    def run(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
        """Raises FormatError for inputs that are missing or of another shape."""
        if not isinstance(inputs, Mapping):
            if len(self.inputs) != 1:
                raise FormatError(f"the model has the inputs {', '.join(self.inputs)}: give them by name")
            inputs = {self.inputs[0]: inputs}
        missing = [name for name in self.inputs if name not in inputs]
        if missing:
            raise FormatError(f"input {', '.join(missing)} is missing")
        values: dict[str, np.ndarray] = {name: np.asarray(array) for name, array in inputs.items()}
        values.update(self.constants)
        for part in self.parts:
            values.update(part.run(values))
        lacking = [name for name in self.outputs if name not in values]
        if lacking:
            raise FormatError(f"output {', '.join(lacking)}: no part of the model makes it")
        return {name: values[name] for name in self.outputs}

    def warnings(self) -> list[str]:
        """What hardware does in silence though the files can hardly mean it, of all parts."""
        return [each for runtime in self.runtimes() for each in runtime.warnings]

    def runtimes(self) -> list[Runtime]:
        """Those of the accelerator's parts."""
        return [part.runtime for part in self.parts if isinstance(part, _Accelerator)]


class _Host:
    def __init__(self, part: Any, name: str) -> None:
        self.part = HostPart(part.model, name)

    def run(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.part.run(values)


class _Accelerator:
    """An accelerator part on the emulator."""

    def __init__(self, part: Any, config: str, strict: bool) -> None:
        from nvdla.runtime import Runtime

        self.part, self.runtime = part, Runtime(part.loadable, config, strict=strict)

    def elements(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Bound inputs (images, C, H, W) in the hardware's element type."""
        found, images = {}, self.part.images
        for each in self.part.inputs:
            flat = np.asarray(value_of(values, each.value), np.float64).ravel()
            size = int(np.prod(each.shape))
            stack = flat.reshape(images, -1) if flat.size % images == 0 else flat[None]
            fits = each.index is None or each.index.max(initial=0) < stack.shape[1]
            order = stack if each.index is None or not fits else stack[:, each.index.ravel()]
            if not fits or order.size != size * images:
                raise FormatError(f"input {each.value} has {flat.size} elements, must have {size * images}")
            numbers, cubes = self.part.numbers.get(each.tensor), order.reshape(images, *each.shape)
            if numbers is None:
                scale, zero = self.part.scales[each.tensor], self.part.zero_points.get(each.tensor, 0)
                found[each.tensor] = quantize(cubes, scale, self.part.precision, zero)
            else:
                found[each.tensor] = numbers.elements(cubes)
        return found

    def run(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = self.runtime.run(self.elements(values))
        found = {}
        for each in self.part.outputs:
            images, zero = self.part.images, np.float32(self.part.zero_points.get(each.tensor, 0))
            stack = made[each.tensor].astype(np.float32).reshape(images, -1) - zero
            stack *= np.float32(self.part.scales[each.tensor])
            chosen = stack if each.index is None else stack[:, each.index.ravel()]
            found[each.value] = chosen.reshape(each.shape if images == 1 else (images, *each.shape[1:]))
        return found
