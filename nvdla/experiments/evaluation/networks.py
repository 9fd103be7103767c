"""Networks as evaluation sees them: samples in, one vector of real or integer numbers per sample out."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import nvdla
from nvdla.emulator.execution.dry_run import silent_warnings
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import FormatError, shape_text
from nvdla.program import naming
from nvdla.program.naming import Names, names_for
from nvdla.tensors.files import IMAGE_ENDINGS, fit, read_npy, several_images
from nvdla.tensors.images import PixelConversion, convert_pixels, is_digit, is_picture, is_pil
from nvdla.tensors.inputs import (
    InputForm,
    Preprocessing,
    batch_of,
    check_pixels,
    check_range,
    describe_conversion,
    holds_pixels,
    planes,
    planes_first,
    preprocessing_for,
)
from nvdla.tensors.real import ModelValue, ScaleMissing, Units, holding_scale, pixels_of, to_elements
from nvdla.tensors.samples import framed
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Json
from nvdla.util.files import is_zip_file, read_file, require_file
from nvdla.util.recognition import wrong_kind

MAX_NETWORK = 4 << 30
_LOCATION = re.compile(rb"\x0a\x08location\x12")
WARM_RUNS = 3
"""The first run goes through the firmware, the others go together."""


class EvaluatedNetwork(ABC):
    """``shape`` of a sample without batch axis; ``batch``: images of a run, of which a sample is one; ``outputs``: how
    many numbers a result has; ``crop``: pixels per side that are kept of pictures, 0 for all; ``cube_shape``:
    (C, H, W) of the input; ``assumed``: the conversion of pictures that nothing states; ``output_names``: of all
    outputs; ``judged``: the position of the result among them."""

    shape: tuple[int, ...]
    batch: int = 1
    outputs: int
    crop: int = 0
    cube_shape: tuple[int, ...]
    output_names: Sequence[str]
    judged: int = 0
    assumed: str = ""

    @abstractmethod
    def prepare(self, value: object) -> np.ndarray:
        """A sample (a path or an array) as the network takes it. Raises FormatError for what does not fit."""

    def prepare_many(self, values: Sequence[Any]) -> list[np.ndarray]:
        """Several samples, each as :meth:`prepare` gives it. Raises FormatError where one of them does not fit."""
        return [self.prepare(value) for value in values]

    def together(self, samples: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Prepared samples as the inputs of runs: ``batch`` at a time; the last one fills up the last run."""
        if self.batch == 1:
            return samples
        filled = [*samples, *[samples[-1]] * (-len(samples) % self.batch)]
        return [np.concatenate(filled[at : at + self.batch]) for at in range(0, len(filled), self.batch)]

    def apart(self, runs: Sequence[dict[str, np.ndarray]], count: int) -> list[dict[str, np.ndarray]]:
        """The outputs of each of ``count`` samples, of those of the runs of :meth:`together`."""
        if self.batch == 1:
            return list(runs)
        places = (divmod(sample, self.batch) for sample in range(count))
        return [{name: value[at : at + 1] for name, value in runs[run].items()} for run, at in places]

    @abstractmethod
    def run(self, samples: Sequence[np.ndarray]) -> np.ndarray:
        """Results (samples, outputs) of prepared samples."""

    @abstractmethod
    def outputs_of(self, samples: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return all outputs of each sample, by the model's names: real numbers in the model's shapes, four axes as
        (N, C, H, W). Raises ScaleMissing."""

    def real_result(self, result: np.ndarray) -> np.ndarray:
        """A row of results in real numbers, where the scale is known."""
        return result.astype(np.float64)

    @abstractmethod
    def warnings(self) -> list[str]:
        """Return what a run would do silently though the file can hardly mean it, known before one. Raises LinkError
        for an
        access that leaves its memory where the network is ``strict``."""

    @abstractmethod
    def configurations(self) -> list[Configuration]:
        """The hardware configurations that it runs on."""

    @abstractmethod
    def real(self, sample: np.ndarray, value: object) -> np.ndarray:
        """The real numbers that a float model takes: those of ``value`` before quantization, or else those of the
        prepared sample."""


class LoadableNetwork(EvaluatedNetwork):
    """A loadable with one input; one of its outputs is the result.

    uint8 arrays are pixels and become elements as images do; other integers are elements; floats are quantized with
    the input's scale (sidecar, or ``scale``).
    """

    def __init__(
        self,
        path: str,
        config: str,
        threads: int | None,
        pixels: PixelConversion,
        scale: float | None = None,
        strict: bool = False,
        judge: str | None = None,
    ) -> None:
        if scale is not None and not 0 < scale < np.inf:
            raise FormatError(f"--input-scale {scale:g}: must be a positive number, got {scale:g}")
        self.runtime, self._strict = nvdla.Runtime(path, config, threads=threads, strict=strict), strict
        if len(self.runtime.inputs) != 1 or not self.runtime.outputs:
            names = ", ".join(tensor.name for tensor in self.runtime.inputs) or "none"
            owners = self.runtime.names.owners
            parts = len({owners.get(tensor.name, tensor.name) for tensor in self.runtime.inputs}) == 1
            hint = ", which are one of the model. Compile it to a package (-o NAME.nvpkg)" if parts else ""
            raise FormatError(f"{path}: evaluation supports one input, the network has {names}{hint}")
        self._input = self.runtime.inputs[0]
        self.batch, self._shape = self._input.shape[0], (1, *self._input.shape[1:])
        check_batch(path, self.batch, {tensor.name: tensor.shape for tensor in self.runtime.outputs})
        self.shape = self._input.shape[1:]
        known = names_for(path) | Names(scales={} if scale is None else {self._input.name: scale})
        self._scale, self._zero = known.scale(self._input.name), known.zero_point(self._input.name)
        self._units = known.units(self._input.name, self._input.dtype)
        self._names = known
        self.output_names = [self._result_value(tensor.name).name for tensor in self.runtime.outputs]
        self.judged = judged_place(judge, self.output_names, path)
        self._output = self.runtime.outputs[self.judged]
        self._result_units = known.units_of_output(self._output.name, self._output.dtype)
        self._value = known.inputs.get(self._input.name)
        together = 1 if self._value is None else batch_of([self._value.shape])
        if together > 1:
            raise FormatError(
                f"{path}: batch: must be 1 or images apart, got {together} images in one tensor. Export the model with "
                "a batch of 1."
            )
        self.cube_shape = self.shape
        self._order = self._order_of_result()
        self.outputs = int(np.prod(self._output.shape[1:])) if self._order is None else self._order.size
        self._pixels = pixels
        self._numbers = pixels_of(known.pixels).get(self._input.name)
        stated = known.preprocessing if self._scale is not None else None
        scale = self._scale if self._input.dtype.kind != "f" else None
        self._model_pixels = preprocessing_for(stated, None if pixels == PixelConversion() else pixels, scale)
        self._sizes = pixels if self._model_pixels is None else self._model_pixels.conversion
        if self._model_pixels is None:
            form = self._shape, self._input.dtype, pixels
            self.assumed = describe_conversion(*form, is_pixels=self._numbers is not None)
        self.crop = self._sizes.crop
        given = self._model_pixels, pixels, self._numbers, self._zero
        self._form = InputForm(self._input.name, self._shape, self._input.dtype, self._scale, *given, self._value)
        whole = self._form.whole
        if whole is not None and len(whole.shape) in (3, 4):
            self.cube_shape = (self._model_pixels or Preprocessing()).cube_shape(whole.shape)
        self._digits = self._model_pixels if self._model_pixels is not None and self._model_pixels.digit else None

    def prepare(self, value: object) -> np.ndarray:
        """A sample as an array (C, H, W) of the input's elements."""
        shape, dtype = self._shape, self._input.dtype
        if self._form.whole is not None or isinstance(value, str | os.PathLike) or is_pil(value):
            elements = self._form.elements(value)
            if isinstance(elements, bytes):
                raise FormatError(f"{value}: raw surfaces cannot be evaluated. Use images or .npy.")
            return elements
        array = np.asarray(value)
        if self._is_raw_digit(array):
            assert self._digits is not None
            return self._quantized(self._digits.image(array, shape))
        if holds_pixels(array):
            return self._of_pixels(planes(array, self.shape, self._sizes))
        if array.dtype.kind == "i" and array.dtype != dtype:
            return np.asarray(self._form.elements(array))
        if array.dtype.kind == "f" and dtype.kind == "i":
            if self._scale is None:
                raise ScaleMissing(self._input.name, dtype, "input", holding_scale(array, dtype))
            check_range(array, self._scale, self._zero, dtype, self._input.name)
            array = self._quantized(_fit(array, shape, array.dtype))
        return _fit(array, shape, dtype)

    def prepare_many(self, values: Sequence[Any]) -> list[np.ndarray]:
        """Several samples; arrays of pixels together."""
        arrays = self._form.whole is None and all(isinstance(value, np.ndarray) for value in values)
        if not arrays or not all(holds_pixels(value) and not self._is_raw_digit(value) for value in values):
            return super().prepare_many(values)
        pixels = np.concatenate([planes(value, self.shape, self._sizes) for value in values])
        return list(np.ascontiguousarray(self._of_pixels(pixels))[:, None])

    def _is_raw_digit(self, array: np.ndarray) -> bool:
        """Check whether the model takes digits, and this is the picture of one in another form."""
        if self._digits is None or not is_picture(array, self._shape):
            return False
        return array.ndim > 2 or not is_digit(array, (self.shape[2], self.shape[1]))

    def _of_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels (N, C, H, W) as elements."""
        if self._model_pixels is None and self._numbers is not None:
            return self._numbers.stored(pixels)
        if self._model_pixels is None:
            return convert_pixels(pixels, self._input.dtype, self._pixels)
        return self._of_picture(self._model_pixels.numbers_of_rgb(pixels))

    def _of_picture(self, values: np.ndarray) -> np.ndarray:
        stated = () if self._model_pixels is None else self._model_pixels.range
        check_pixels(values, self._scale, self._zero, self._input.dtype, self._input.name, stated)
        return self._quantized(values)

    def _quantized(self, values: np.ndarray) -> np.ndarray:
        """Real numbers as elements of the input."""
        dtype = self._input.dtype
        if dtype.kind == "f":
            return values.astype(dtype)
        if self._numbers is not None:
            return self._numbers.elements(values)
        assert self._scale is not None
        return to_elements(values, self._scale, dtype, self._zero)

    def run(self, samples: Sequence[np.ndarray]) -> np.ndarray:
        """The outputs of samples, one row each."""
        surfaces = self.surfaces(self.together(samples))
        return self.rows(self.runtime.run_many([[surface] for surface in surfaces]))[: len(samples)]

    def outputs_of(self, samples: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return all outputs of each sample, in real numbers."""
        surfaces = self.surfaces(self.together(samples))
        runs = self.runtime.run_many([[surface] for surface in surfaces])
        return self.apart([self._real(raw) for raw in runs], len(samples))

    def _real(self, raw: Sequence[bytes]) -> dict[str, np.ndarray]:
        outputs = {}
        for name, elements in self.runtime.unpack(raw).items():
            units = self._names.units_of_output(name, elements.dtype)
            if units is None:
                raise ScaleMissing(name, elements.dtype, "output")
            value = self._result_value(name)
            outputs[value.name] = value.value(units.real(elements).astype(np.float32))
        return planes_first(outputs, self._names.channels_last)

    def _result_value(self, name: str) -> ModelValue:
        """Return the model's value in a bound output."""
        return self._names.results.get(name) or self._names.values.get(name) or ModelValue(name)

    def _order_of_result(self) -> np.ndarray | None:
        """Return where the numbers of a result are in the first output; None: all, in the same order."""
        shape, value = (1, *self._output.shape[1:]), self._result_value(self._output.name)
        if value.index is None:
            return None
        places = np.arange(np.prod(shape)).reshape(shape)
        order = np.ravel(planes_first({"": value.value(places)}, self._names.channels_last)[""])
        return None if np.array_equal(order, places.ravel()) else order

    def warnings(self) -> list[str]:
        """Return warnings about silent behavior of a run."""
        return _silent_warnings(self.runtime, self._strict)

    def configurations(self) -> list[Configuration]:
        """That of the loadable."""
        return [self.runtime.config]

    def warm(self) -> None:
        """Load what runs need (the program's steps, kernels for one image and for several), with an input of zeros."""
        zeros = np.zeros(self._shape, self._input.dtype)
        self.run([zeros] * WARM_RUNS * self.batch)

    def surfaces(self, samples: Sequence[np.ndarray]) -> list[bytes]:
        """Raw surfaces of the inputs of runs."""
        return _batched_pack(self._input.layout, samples)

    def rows(self, raw: Sequence[Sequence[bytes]]) -> np.ndarray:
        """The judged one of the raw outputs of runs: a row of numbers for each image, in the order of the model."""
        rows = _batched_unpack(self._output.layout, [outputs[self.judged] for outputs in raw])
        rows = rows.reshape(len(raw) * self.batch, -1)
        return rows if self._order is None else rows[:, self._order]

    def real(self, sample: np.ndarray, value: object) -> np.ndarray:
        """A sample as real numbers, in the shape and order of the model's input where the layer file states it."""
        if self._form.whole is not None and (whole := self._form.real(value)) is not None:
            return whole.reshape(self._form.whole.shape).astype(np.float32)
        exact = self._exact(value)
        shape = self._shape
        real = (self._units or Units()).real(sample) if exact is None else _fit(exact, shape, exact.dtype)
        real = real.astype(np.float32)
        return real if self._value is None else self._value.fed(real)

    def _exact(self, value: object) -> np.ndarray | None:
        """Real numbers of a sample before quantization; None for a sample that holds elements of the input."""
        shape = self._shape
        suffix = Path(value).suffix.lower() if isinstance(value, str | os.PathLike) else ""
        if suffix in IMAGE_ENDINGS or is_pil(value):
            return None if self._model_pixels is None else self._model_pixels.cube(value, shape)
        if isinstance(value, str | os.PathLike):
            array = read_npy(value) if suffix == ".npy" else np.empty(0, self._input.dtype)
            return array if array.dtype.kind == "f" and array.size and not is_picture(array, shape) else None
        array = np.asarray(value)
        if self._is_raw_digit(array):
            assert self._digits is not None
            return self._digits.image(array, shape)
        if holds_pixels(array):
            pixels = planes(array, self.shape, self._sizes)
            return None if self._model_pixels is None else self._model_pixels.numbers_of_rgb(pixels)
        return array if array.dtype.kind == "f" else None

    def real_result(self, result: np.ndarray) -> np.ndarray:
        """A row of results in real numbers; unchanged where the scale is not known."""
        return (self._result_units or Units()).real(result)


class PackageNetwork(EvaluatedNetwork):
    """A package of ``nvdla compile``: real numbers in and out, one of its outputs is the result."""

    def __init__(
        self,
        path: str,
        strict: bool = False,
        trusted: bool = False,
        config: str = "auto",
        pixels: PixelConversion | None = None,
        judge: str | None = None,
    ) -> None:
        from nvdla.compiler.frontend.package import unpack

        package = unpack(path)
        self.machine, self._strict, self._parts = package.machine(strict, trusted, config), strict, package.parts
        names = list(package.manifest["inputs"])
        if len(names) != 1:
            raise FormatError(f"{path}: evaluation supports one input, the package has {', '.join(names)}")
        self._name, self._whole = names[0], tuple(package.manifest["inputs"][names[0]])
        self.shape, self.batch = self._whole[1:], batch_of([self._whole])
        self._single = (1, *self.shape) if self.batch > 1 else self._whole
        self.output_names = package.manifest["outputs"]
        self.judged = judged_place(judge, self.output_names, path)
        self._output = self.output_names[self.judged]
        self._preprocessing = package.preprocessing.changed_by(pixels)
        self._is_channels_last = naming.is_channels_last(package.manifest)
        is_cube = len(self._whole) in (3, 4)
        self.cube_shape = package.preprocessing.cube_shape(self._whole) if is_cube else self.shape
        if self._is_channels_last and len(self._whole) == 4:
            self.cube_shape = self._whole[3], *self._whole[1:3]
        self._path, self.outputs = path, 0  # known after the first run
        self.crop = self._preprocessing.crop

    def prepare(self, value: object) -> np.ndarray:
        """A sample as an array of real numbers."""
        from nvdla.compiler.frontend.package import real_input

        if not isinstance(value, str | os.PathLike) and not is_pil(value):
            value = np.asarray(value)
            _check_single(value, self._single)
        return real_input(value, self._name, self._single, self._preprocessing, self._parts).astype(np.float32)

    def warnings(self) -> list[str]:
        """Return warnings about silent behavior of a run of any part."""
        return [warning for runtime in self.machine.runtimes() for warning in _silent_warnings(runtime, self._strict)]

    def configurations(self) -> list[Configuration]:
        """Those of the accelerator parts."""
        return [runtime.config for runtime in self.machine.runtimes()]

    def run(self, samples: Sequence[np.ndarray]) -> np.ndarray:
        """The outputs of samples, one row each."""
        rows = [np.ravel(outputs[self._output]) for outputs in self.outputs_of(samples)]
        self.outputs = rows[0].size
        return np.stack(rows)

    def row(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """The result among the outputs of the machine, as a row of numbers."""
        return np.ravel(planes_first(outputs, self._is_channels_last)[self._output])

    def values(self, sample: np.ndarray) -> dict[str, np.ndarray]:
        """The values that the parts of a run begin with: a prepared sample, and constants."""
        return {**self.machine.feeds({self._name: sample})[0], **self.machine.constants}

    def outputs_of(self, samples: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return all outputs of each sample, those with four axes as (N, C, H, W)."""
        runs = [self.machine.run({self._name: images}) for images in self.together(samples)]
        if self.batch > 1 and runs:
            check_batch(self._path, self.batch, {name: value.shape for name, value in runs[0].items()})
        return self.apart([planes_first(outputs, self._is_channels_last) for outputs in runs], len(samples))

    def real(self, sample: np.ndarray, value: object) -> np.ndarray:
        """A sample as real numbers."""
        return sample


def judged_place(name: str | None, outputs: Sequence[str], path: str) -> int:
    """Return the position of the output that is judged. Raises FormatError for a name of none."""
    if name is not None and name not in outputs:
        raise FormatError(f"{path}: output to judge: must be one of {', '.join(outputs)}, got {name}")
    return 0 if name is None else list(outputs).index(name)


@by_annotations
def open_network(
    path: str,
    config: str = "auto",
    threads: int | None = None,
    pixels: PixelConversion | None = None,
    scale: float | None = None,
    strict: bool = False,
    trusted: bool = False,
    judge: str | None = None,
) -> EvaluatedNetwork:
    """A loadable or a package, in a file: every worker reads it. ``strict``: as of a Runtime. ``trusted``: host parts
    of a package run in this process, without limits. ``judge``: name of the output that is the result (default: the
    first). Raises NvdlaError."""
    takes = ("loadable", "package", "zip", "cut-zip")
    if (other := wrong_kind(path, path, "a loadable or a package", takes)) is not None:
        raise FormatError(other)
    require_file(path, "network")
    return (
        PackageNetwork(path, strict, trusted, config, pixels, judge)
        if is_zip_file(path)
        else LoadableNetwork(path, config, threads, pixels or PixelConversion(), scale, strict, judge)
    )


def _fit(array: np.ndarray, shape: tuple[int, int, int, int], dtype: np.dtype) -> np.ndarray:
    """A sample in the shape and type of an input. Raises FormatError."""
    _check_single(array, shape)
    return fit(array, shape, dtype, "sample")


def _check_single(array: np.ndarray, shape: Sequence[int]) -> None:
    """Raise FormatError for a sample of several images."""
    if several_images(array, shape):
        wanted, got = shape_text(shape), shape_text(array.shape)
        raise FormatError(
            f"sample: must be one image of shape {wanted}, got {got}. Give each image with its own label."
        )


def check_batch(path: str, batch: int, outputs: Mapping[str, tuple[int, ...]]) -> None:
    """Raise FormatError where a network takes several images at a time, and an output has not one part for each."""
    for name, shape in outputs.items():
        if batch > 1 and shape[:1] != (batch,):
            raise FormatError(
                f"{path}: output {name}: batch must be {batch}, that of the input, got shape {shape_text(shape)}"
            )


def _silent_warnings(runtime: nvdla.Runtime, strict: bool) -> list[str]:
    from nvdla.loadable.descriptors.abi import abi_named

    return silent_warnings(runtime.loadable, abi_named(runtime.abi), runtime.config, strict, runtime._linked)


def _batched_pack(layout: Any, samples: Sequence[np.ndarray]) -> list[bytes]:
    """Surfaces of many samples; together where surfaces are contiguous in a layout of the same kind."""
    stride = getattr(layout, "image_stride", None)
    if len(samples) > 1 and stride == layout.size and layout.shape[0] == 1:
        together = replace(layout, shape=(len(samples), *layout.shape[1:]), size=stride * len(samples))
        packed = np.zeros(together.size, np.uint8)
        together.pack(np.concatenate(samples), packed)
        return list(packed.reshape(len(samples), stride))
    surfaces = np.zeros((len(samples), layout.size), np.uint8)
    for surface, sample in zip(surfaces, samples, strict=True):
        layout.pack(sample, surface)
    return list(surfaces)


def _batched_unpack(layout: Any, surfaces: Sequence[bytes]) -> np.ndarray:
    stride = getattr(layout, "image_stride", None)
    if len(surfaces) > 1 and stride == layout.size and layout.shape[0] == 1:
        together = replace(layout, shape=(len(surfaces), *layout.shape[1:]), size=stride * len(surfaces))
        return together.unpack(np.frombuffer(b"".join(surfaces), np.uint8))
    return np.concatenate([layout.unpack(np.frombuffer(surface, np.uint8)) for surface in surfaces])


# ---- identity of an evaluation: hashes of networks, models and configurations


def network_settings(path: str, config: str, pixels: PixelConversion, scale: float | None) -> dict[str, Json]:
    """Return what a run of a network depends on: the content of the network, of its layer file and of a configuration
    file, and how samples become elements. Raises FormatError."""
    return {
        "network": content_hash(path),
        "layers": layer_file_hash(path),
        "config": configuration_settings(config),
        "pixels": str(pixels),
        "input_scale": scale,
    }


def layer_file_hash(network: str) -> str | None:
    """Return the SHA-256 of the layer file of a loadable, None where there is none. Raises FormatError."""
    layers = naming.path_of(network)
    return content_hash(layers, "layer file") if layers.is_file() else None


def configuration_settings(name: str) -> str | dict[str, str]:
    """Return the name of a configuration, with the hash of the content where it is a file. Raises FormatError."""
    if not name.endswith((".yaml", ".yml")):
        return name
    return {"file": name, "content": content_hash(name, "configuration")}


def content_hash(path: str | os.PathLike[str], what: str = "network") -> str:
    """Return the SHA-256 of a file. Raises FormatError."""
    return hashlib.sha256(read_file(path, MAX_NETWORK, what)).hexdigest()


def model_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a model with the files of its external data. Raises FormatError."""
    from nvdla.compiler.frontend.loading import require_model

    require_model(path, runs=True)
    data = read_file(path, MAX_NETWORK, "model")
    digest = hashlib.sha256(data)
    for location in sorted(set(_locations(data))):
        digest.update(framed(location, Path(os.fsdecode(path)).parent / os.fsdecode(location)))
    return digest.hexdigest()


def _locations(data: bytes) -> Iterator[bytes]:
    """The names of external files in an ONNX model: the values of entries with the key "location"."""
    for match in _LOCATION.finditer(data):
        length, shift, at = 0, 0, match.end()
        while at < len(data) and shift < 28:
            length |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                if b"\0" not in data[at : at + length]:
                    yield data[at : at + length]
                break
