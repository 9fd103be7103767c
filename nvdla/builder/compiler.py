"""One call from a float network to a loadable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.analysis.cycles.constants import Memory
from nvdla.argument_kinds import by_annotations
from nvdla.builder import reference, sidecar
from nvdla.builder.batch import batched
from nvdla.builder.emit import emit
from nvdla.builder.ir import LoweredProgram, Root, Surface
from nvdla.builder.kernel_parts import programs_in_parts
from nvdla.builder.lower import lower
from nvdla.builder.network import Network
from nvdla.builder.packing import PackedWeights
from nvdla.builder.planner import SurfacePlan
from nvdla.builder.quantize import Calibration, quantize
from nvdla.builder.search import Evaluator, SearchLimits, habits_of
from nvdla.builder.search import search as look_further
from nvdla.builder.weigh import GAIN
from nvdla.errors import BuildError
from nvdla.hardware.configuration import Configuration, configuration
from nvdla.loadable.model import Loadable
from nvdla.tensors.pixel_numbers import PixelNumbers

MAX_IMAGES = 256


@dataclass(frozen=True)
class Built:
    """What :func:`build` gives: the loadable, the program of one image (for the expected results), names of layers.

    ``memory``: where the surfaces between operations lie; ``memory.size`` bytes in all, ``memory.least`` at the least.
    """

    loadable: Loadable
    program: LoweredProgram
    sidecar: dict[str, Any]
    memory: SurfacePlan

    @property
    def input_scales(self) -> dict[str, float]:
        """Real number of one unit of each input (1 for fp16)."""
        return {root.name: root.scale for root in self.program.inputs}

    @property
    def output_scales(self) -> dict[str, float]:
        """Output -> the real number that one unit stands for."""
        return {root.name: root.scale for root in self.program.outputs}

    @property
    def zero_points(self) -> dict[str, int]:
        """The element that stands for 0 of bound tensors where that is not 0 itself, by name."""
        return {root.name: root.zero for root in (*self.program.inputs, *self.program.outputs) if root.zero}

    def quantize_inputs(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
        """Real inputs (C, H, W) or (images, C, H, W) as elements (images, C, H, W)."""
        if not isinstance(inputs, Mapping):
            inputs = {self.program.inputs[0].name: inputs}
        return {root.name: _elements(root, np.asarray(inputs[root.name])) for root in self.program.inputs}

    def expected(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs (images, C, H, W) for inputs given as elements, by the plain numpy model; exact for integers."""
        shapes = {root.name: (-1, root.channels, root.height, root.width) for root in self.program.inputs}
        stacks = {name: np.asarray(inputs[name]).reshape(shape) for name, shape in shapes.items() if name in inputs}
        count = len(next(iter(stacks.values()), ()))
        found = [
            reference.evaluate(self.program, {name: each[image] for name, each in stacks.items()})
            for image in range(count)
        ]
        return {root.name: np.stack([memory.array(root) for memory in found]) for root in self.program.outputs}

    def tensors(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Real values (C, H, W) of every tensor that an operation writes, for inputs given as elements."""
        memory = reference.evaluate(self.program, inputs)
        return {
            name: _real(surface, surface.of(memory.array(surface.root)))
            for name, surface in self.program.tensors.items()
        }

    def save(self, path: str | Path) -> None:
        """Write the loadable, and the sidecar beside it (``<path>.layers.json``)."""
        self.loadable.save(path)
        sidecar.save(self.sidecar, path)


def _elements(root: Root, values: np.ndarray) -> np.ndarray:
    shape = root.channels, root.height, root.width
    if root.converter is not None:
        return root.converter.numbers.elements(values.reshape(-1, *shape))
    return quantize(values, root.scale, root.precision, root.zero).reshape(-1, *shape)


def _real(surface: Surface, elements: np.ndarray) -> np.ndarray:
    """Real numbers of elements; an input of pixels has units of its own for each channel."""
    converter = surface.root.converter
    real = surface.real(elements)
    return real if converter is None else real * np.array(converter.factors)[:, None, None]


@by_annotations
def build(
    network: Network,
    config: str | Configuration = "nv_small",
    precision: str = "int8",
    calibration: Calibration | None = None,
    per_channel: bool = False,
    *,
    level: int = 1,
    input_format: str = "auto",
    memory: Memory | None = None,
    search: SearchLimits | None = None,
    pixels: PixelNumbers | None = None,
    cvsram: int = 0,
    images: int = 1,
) -> Built:
    """Build a loadable.

    ``precision``: "int8" everywhere, "int16" and "fp16" on nv_full. Integers need a ``calibration``
    (:func:`nvdla.builder.calibrate`). ``per_channel``: one weight scale a kernel instead of one a layer. ``level``: 0
    gives every layer operations of its own, 1 makes sums behind the convolutions that they wait for and does
    convolutions in the parts that the cycle model finds fastest, 2 weighs more of them and searches for the forms and
    the order that make the whole network fastest, as far as ``search`` says (None: to its end, in this process).
    ``memory``: what is behind the accelerator, which all of it is weighed for (None: as wide as the bus).
    ``input_format``: "auto" (from level 1 on) takes inputs of up to four channels that only convolutions take as
    images, whose elements stay the same; "image" insists, "feature" never does. "pixels" insists on images of unsigned
    elements, the pixels as they are, which stand for the numbers that ``pixels`` says (by default themselves): CDMA
    subtracts the mean and multiplies. ``images``: a batch, whose images lie one after the other in every bound tensor;
    each goes through operations of its own, with the same weights.
    ``cvsram``: bytes of CVSRAM, in which surfaces between operations lie that fit.
    Raises BuildError naming layer, value, limit and remedy; ConfigError for what the configuration lacks.
    """
    chosen = configuration(config) if isinstance(config, str) else config
    if cvsram < 0:
        raise BuildError(f"{cvsram} bytes of CVSRAM: must be 0 or more")
    if cvsram:
        chosen.require("cvsram", f"{cvsram} bytes of CVSRAM")
    program = lower(network, chosen, precision, calibration, per_channel, level, input_format, memory, pixels)
    if not 1 <= images <= MAX_IMAGES:
        raise BuildError(f"network {network.name}: a batch of {images} images, it must be 1 to {MAX_IMAGES}")
    evaluator = _evaluator(program, chosen, memory or Memory(), cvsram, level, images)
    all_images, packed = evaluator.program, evaluator.packed
    weigher, record = evaluator.weigher(), None
    if level > 1:
        evaluator = replace(evaluator, level=level, known={}, packed=None)
        found = look_further(evaluator, search or SearchLimits())
        all_images, weigher, record = found.program, evaluator.weigher(found.wanted), found.record
    loadable, tasks, layout = emit(all_images, chosen, weigher, packed, cvsram)
    layers = sidecar.describe(program, chosen.name, tasks, weigher, record)
    return Built(loadable, all_images if images == 1 else program, layers, layout)


def _evaluator(
    program: LoweredProgram, config: Configuration, memory: Memory, cvsram: int, level: int, images: int
) -> Evaluator:
    """Level 1 (0 where that is wanted) of all images, settled on what makes the whole of them fastest."""
    found, fewest = None, 0
    forms = [program, *(programs_in_parts(program, config, images) if level and images > 1 else ())]
    for form in forms:
        every = batched(form, images)
        made = Evaluator(every, config, memory, cvsram, min(level, 1), packed=PackedWeights(every, config))
        if level:
            made = replace(made, habits=habits_of(made, level > 1))
        cycles = made.as_it_is().cycles if len(forms) > 1 else 0
        if found is None or cycles < GAIN * fewest:
            found, fewest = made, cycles
    assert found is not None
    return found


@by_annotations
def layer_errors(
    network: Network, built: Built, samples: np.ndarray | Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Error of each tensor against the float network over samples (N, C, H, W).

    Gives, by name: ``rms`` error, ``max`` error, ``snr_db`` (signal to noise), ``scale``.
    """
    from nvdla.builder import floating

    exact = floating.run(network, samples)
    first = network.inputs[0].name
    inputs = samples if isinstance(samples, Mapping) else {first: samples}
    inputs = {name: np.asarray(array).reshape(-1, *network_shape(network, name)) for name, array in inputs.items()}
    sums: dict[str, list[np.ndarray]] = {}
    for index in range(len(inputs[first])):
        one = {name: array[index] for name, array in inputs.items()}
        for name, values in built.tensors(built.quantize_inputs(one)).items():
            sums.setdefault(name, []).append(values - exact[name][index])
    report = {}
    for name, differences in sums.items():
        error, signal = np.stack(differences), exact[name]
        noise, power = float(np.mean(error**2)), float(np.mean(signal**2))
        snr = 10 * np.log10(power / noise) if noise and power else float("inf")
        scale = built.program.tensors[name].scale
        report[name] = {"rms": noise**0.5, "max": float(np.abs(error).max()), "snr_db": float(snr), "scale": scale}
    return report


def network_shape(network: Network, name: str) -> tuple[int, int, int]:
    """(channels, height, width) of the input called ``name``."""
    return next(tensor.shape for tensor in network.inputs if tensor.name == name)
