"""What integers cost: the error of every layer, by itself and with all layers before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from nvdla.builder import reference
from nvdla.builder.compiler import Built
from nvdla.builder.groups import Group, group_layers
from nvdla.builder.ir import Convolve, LoweredProgram, Operation, Surface
from nvdla.builder.network import Network, NetworkTensor
from nvdla.builder.quantize import LARGEST, quantize

# Signal to noise, in dB, from which a layer needs no advice: the rounding of a well used int8 range gives about 40.
GOOD = 30.0
_MUCH_SATURATION, _WIDE_KERNELS, _PEAKED = 1e-3, 8.0, 24.0


@dataclass(frozen=True)
class LayerAccuracy:
    """One operation of the hardware. ``layer``: names of its layers; ``tensor``: its result.

    ``alone``: signal to noise (dB) where its inputs are the float ones, rounded; ``chain``: with all layers before it.
    ``saturated``: share of elements at the ends of the range. ``scale``: real number of one unit. ``advice``: what to
    try, empty where the layer is good.
    """

    layer: str
    tensor: str
    precision: str
    alone: float
    chain: float
    saturated: float
    scale: float
    advice: str


@dataclass
class _Sums:
    signal: float = 0.0
    alone: float = 0.0
    chain: float = 0.0
    saturated: float = 0.0
    count: int = 0
    peak: float = 0.0


def accuracy(network: Network, built: Built, samples: Iterable[Mapping[str, np.ndarray]]) -> list[LayerAccuracy]:
    """Errors over samples, in the order of the network. ``network`` is the one that was built; a sample has the float
    values of its tensors, (1, C, H, W) by name."""
    program = built.program
    groups = _as_computed(group_layers(network), program)
    sums = {group.output.name: _Sums() for group in groups}
    for values in samples:
        inputs = {
            root.name: quantize(values[root.name], root.scale, root.precision, root.zero) for root in program.inputs
        }
        chain = reference.evaluate(program, inputs)
        alone = _Alone(program)
        for group in groups:
            if group.output.name in values:
                _add(sums[group.output.name], program, group, values, chain, alone)
    return [_row(built, group, sums[group.output.name]) for group in groups if sums[group.output.name].count]


def worst(rows: list[LayerAccuracy], count: int = 5) -> list[LayerAccuracy]:
    """The layers that are worst by themselves: there the error is made, later ones inherit it."""
    return sorted((row for row in rows if np.isfinite(row.alone)), key=lambda row: row.alone)[:count]


@dataclass(eq=False)
class _Unit(Group):
    """A group as it is computed: with the convolutions before a sum, where all are one operation."""

    sources: list[NetworkTensor] = field(default_factory=list)


def _as_computed(groups: list[Group], program: LoweredProgram) -> list[_Unit]:
    makers = {group.output.name: group for group in groups}
    return [_unit(group, makers, program) for group in groups if group.output.name in program.tensors]


def _unit(group: Group, makers: Mapping[str, Group], program: LoweredProgram) -> _Unit:
    """With everything before it that has no tensor of its own."""
    kept = [tensor for tensor in group.layer.inputs if tensor.name in program.tensors]
    taken = [
        _unit(makers[tensor.name], makers, program)
        for tensor in group.layer.inputs
        if tensor.name not in program.tensors
    ]
    main = taken[0] if taken else group
    members = [name for each in (*taken, group) for name in each.members]
    sources = [*kept, *(tensor for each in taken for tensor in each.sources)]
    return _Unit(main.layer, group.output, members, group.activation, main.weights, main.bias, sources=sources)


class _Alone:
    """Runs the operations of one layer on rounded float inputs."""

    def __init__(self, program: LoweredProgram) -> None:
        self.program = program
        self.memory = reference.ReferenceMemory()
        self.operations: dict[str, list[Operation]] = {}
        for operation in program.operations:
            self.operations.setdefault(operation.layer, []).append(operation)

    def run(self, group: _Unit, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Elements of the group's result (C, H, W)."""
        for tensor in group.sources:
            surface = self.program.tensors[tensor.name]
            if surface.root.data is None and tensor.name in values:
                elements = quantize(values[tensor.name][0], surface.scale, surface.precision, surface.zero)
                self.memory.store(surface, elements)
        for operation in self.operations.get(group.name, ()):
            reference.step(operation, self.memory)
        return self.memory.load(self.program.tensors[group.output.name])


def _add(
    sums: _Sums,
    program: LoweredProgram,
    group: _Unit,
    values: Mapping[str, np.ndarray],
    chain: reference.ReferenceMemory,
    alone: _Alone,
) -> None:
    surface = program.tensors[group.output.name]
    exact = np.asarray(values[group.output.name][0], np.float64)
    together, single = chain.load(surface), alone.run(group, values)
    sums.signal += float(np.sum(exact**2))
    sums.chain += float(np.sum((surface.real(together) - exact) ** 2))
    sums.alone += float(np.sum((surface.real(single) - exact) ** 2))
    sums.peak = max(sums.peak, float(np.abs(exact).max()))
    sums.count += exact.size
    if surface.precision in LARGEST:
        # A zero point at the low end is where a ReLU ends: nothing is lost there.
        ends = np.abs(single) if surface.zero == 0 else single
        sums.saturated += int(np.count_nonzero(ends >= LARGEST[surface.precision]))


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal else float("-inf")


def _row(built: Built, group: Group, sums: _Sums) -> LayerAccuracy:
    surface = built.program.tensors[group.output.name]
    saturated = sums.saturated / sums.count
    alone = _decibels(sums.signal, sums.alone)
    advice = "" if alone >= GOOD or sums.signal == 0 else _advice(built, group, surface, sums, saturated)
    chain = _decibels(sums.signal, sums.chain)
    return LayerAccuracy(
        group.name, group.output.name, surface.precision, alone, chain, saturated, surface.scale, advice
    )


def _advice(built: Built, group: Group, surface: Surface, sums: _Sums, saturated: float) -> str:
    """What most likely makes a layer bad, and the option that meets it."""
    largest = (LARGEST.get(surface.precision, np.inf) - surface.zero) * surface.scale
    rms = (sums.signal / sums.count) ** 0.5
    if saturated > _MUCH_SATURATION and sums.peak > 1.05 * largest:
        return f"values to {sums.peak:.3g} are cut at {largest:.3g}: try --method max, or more calibration data"
    if largest > 4 * sums.peak:
        return f"values to {sums.peak:.3g} use a part of the range {largest:.3g}: its scale is that of a neighbour"
    convolution = any(isinstance(each, Convolve) and each.layer == group.name for each in built.program.operations)
    if convolution and group.weights is not None:
        sizes = np.abs(group.weights).reshape(len(group.weights), -1).max(axis=1)
        scales = built.program.quantised.get(group.layer.name)
        uneven = sizes.max() > _WIDE_KERNELS * max(float(np.median(sizes)), 1e-30)
        if uneven and scales is not None and np.ptp(scales.scales) == 0:
            return "kernels differ much in size: try a scale a kernel (without --per-layer) or equalisation (-O 1)"
    if sums.peak > _PEAKED * rms:
        return "few values are far larger than the rest: try --method mse or percentile, or equalisation (-O 1)"
    return "try adaptive rounding (-O 2); on nv_full int16 for this layer (--precision auto)"
