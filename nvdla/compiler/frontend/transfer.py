"""Conversion of values where they go between the host (real numbers) and accelerator parts (elements)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nvdla.compiler.builder.quantization import quantize
from nvdla.compiler.frontend.opening import HostPart, value_of
from nvdla.errors import FormatError
from nvdla.tensors.inputs import check_pixels
from nvdla.tensors.real import Units
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from nvdla.compiler.builder.reference import ReferenceMemory
    from nvdla.compiler.frontend.graph import Binding
    from nvdla.compiler.frontend.isolation import ModelWorker
    from nvdla.compiler.frontend.package import CompiledPart, PackedPart


def elements_of(part: PackedPart, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the elements (images, C, H, W) of all inputs of an accelerator part, by the names of its tensors.

    Args:
        part: The accelerator part.
        values: Real numbers by the model's names.

    Raises:
        FormatError: A value is missing or has another size.
    """
    return {binding.tensor: _elements(part, binding, values) for binding in part.inputs}


def _elements(part: PackedPart, binding: Binding, values: Mapping[str, np.ndarray]) -> np.ndarray:
    given = np.asarray(value_of(values, binding.value))
    flat, images = given.astype(np.float64).ravel(), part.images
    size = int(np.prod(binding.shape))
    stack = flat.reshape(images, -1) if flat.size % images == 0 else flat[None]
    fits = binding.index is None or binding.index.max(initial=0) < stack.shape[1]
    order = stack if binding.index is None or not fits else stack[:, binding.index.ravel()]
    if not fits or order.size != size * images:
        raise FormatError(f"input {binding.value}: must have {size * images} elements, got {flat.size}")
    numbers, cubes = part.numbers.get(binding.tensor), order.reshape(images, *binding.shape)
    if numbers is not None:
        return numbers.elements(cubes)
    scale, zero = part.scales[binding.tensor], part.zero_points.get(binding.tensor, 0)
    if given.dtype == np.uint8:
        check_pixels(given, scale, zero, Precision(part.precision).dtype, binding.value)
    return quantize(cubes, scale, part.precision, zero)


def reals_of(part: PackedPart, results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of an accelerator part as real numbers, by the model's names.

    Args:
        part: The accelerator part.
        results: Elements of its outputs by the names of its tensors.
    """
    values = {}
    for binding in part.outputs:
        images, zero = part.images, np.float32(part.zero_points.get(binding.tensor, 0))
        scale = np.float32(part.scales[binding.tensor])
        stack = (results[binding.tensor].astype(np.float32).reshape(images, -1) - zero) * scale
        chosen = stack if binding.index is None else stack[:, binding.index.ravel()]
        values[binding.value] = chosen.reshape(binding.shape if images == 1 else (images, *binding.shape[1:]))
    return values


def rounded(parts: Sequence[PackedPart], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return inputs of the model as the elements of the accelerator parts that read them represent them.

    An error that is measured with these inputs is one of the network, not of the rounded input.

    Args:
        parts: Parts of the model, in the order of a run.
        feeds: Real numbers by the model's names.
    """
    values, left = dict(feeds), set(feeds)
    for part in (part for part in parts if part.kind == "accelerator"):
        for binding in (binding for binding in part.inputs if binding.value in left):
            left.discard(binding.value)
            flat = np.array(feeds[binding.value], np.float32).reshape(part.images, -1)
            numbers, elements = part.numbers.get(binding.tensor), _elements(part, binding, feeds)
            scale, zero = part.scales[binding.tensor], part.zero_points.get(binding.tensor, 0)
            units = Units(scale, zero) if numbers is None else numbers.units(elements.shape[1])
            index = np.arange(flat.shape[1]) if binding.index is None else binding.index.ravel()
            flat[:, index] = units.real(elements).reshape(part.images, -1)
            values[binding.value] = flat.reshape(np.shape(feeds[binding.value]))
    return values


class Chain:
    """A run of the whole model on samples, part by part as a :class:`nvdla.compiler.frontend.package.HostMachine` does.

    Attributes:
        inputs: Inputs of the model for each sample, as the parts so far represent them (:func:`rounded`).

    Args:
        feeds: Real numbers by the model's names for each sample.
    """

    def __init__(self, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._feeds = list(feeds)
        self._parts: list[PackedPart] = []
        self._values = [dict(feed) for feed in feeds]
        self.inputs: list[dict[str, np.ndarray]] = []

    def enter(self, part: CompiledPart) -> None:
        """Round the inputs of the model that an accelerator part reads."""
        self._parts.append(replace(part, images=1))
        self.inputs = [rounded(self._parts, feed) for feed in self._feeds]

    def run(self, part: CompiledPart) -> Iterator[ReferenceMemory]:
        """Run an accelerator part: all its tensors for each sample."""
        from nvdla.compiler.builder import reference

        one, program = replace(part, images=1), part.made.program
        for values in self._values:
            memory = reference.evaluate(program, elements_of(one, values))
            values |= reals_of(one, {root.name: memory.array(root) for root in program.outputs})
            yield memory

    def run_host(self, part: CompiledPart, name: str, worker: ModelWorker | None) -> None:
        """Run a host part.

        Args:
            part: The part.
            name: Its name, for errors.
            worker: Process that runs it; None: this process.

        Raises:
            FormatError: onnxruntime refuses the part.
        """
        if not self._values:
            return
        model = HostPart(part.model, name, worker)
        for values in self._values:
            values |= model.run(values)
