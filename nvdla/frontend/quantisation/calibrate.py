"""Networks of a model, ready to be built in integers: scales from data, from tables, or from the model itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.builder import Calibration, Network, Recipe, Refined, refine
from nvdla.builder.groups import Group, group_layers
from nvdla.builder.layer_types import layer_type, own_scale
from nvdla.builder.refine import divided
from nvdla.errors import BuildError, FormatError
from nvdla.frontend.data import Samples
from nvdla.frontend.importer import Imported, Part
from nvdla.frontend.quantisation.activations import Activations
from nvdla.frontend.quantisation.tables import ScaleTable, read_table

TABLES = (".json", ".cache", ".txt", ".table")
# Samples whose tensors are kept, to measure the error of every layer.
KEPT_SAMPLES = 2
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Calibrated:
    """Every accelerator part (by its place among the parts) with its calibration, and where the scales are from.

    ``samples``: the values of all tensors of a part's network for the first samples, to measure errors with.
    """

    parts: Mapping[int, Refined]
    source: dict[str, Any]
    per_channel: bool
    samples: Mapping[int, list[Mapping[str, np.ndarray]]] = field(default_factory=dict)

    def in_int16(self, tensors: Set[str]) -> Calibrated:
        """A calibration with these tensors, and the layers that make them, in int16."""
        parts = {}
        for number, refined in self.parts.items():
            own = {layer.name: "int16" for layer in refined.network.layers if layer.name in tensors}
            parts[number] = replace(refined, calibration=replace(refined.calibration, precisions=own))
        return replace(self, parts=parts)


def calibrate(
    imported: Imported,
    data: Samples | ScaleTable | None,
    recipe: Recipe | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Scales for every part of a model.

    ``data``: samples, a table of another tool, or None where the model brings all scales. Scales of the model come
    first; a table is not asked to know everything: pooling and the like take the scale of their input. Raises
    BuildError naming the first tensor that has no scale, and FormatError for samples that cannot be run.
    """
    recipe = recipe or Recipe()
    model = imported.model
    brought = bool(model.magnitudes)
    if brought:
        # The model's own integers are what is wanted; nothing is to move them.
        recipe = replace(recipe, equalise=False, bias_correction=False, adaptive_rounding=False)
    known = dict(model.magnitudes)
    source: dict[str, Any] = {"method": "model"} if brought else {}
    if isinstance(data, ScaleTable):
        known.update(_by_value(imported, data))
        source = {"method": data.kind, "tensors": len(data.magnitudes)}
    parts: dict[int, Refined] = {}
    seen: dict[int, list[Mapping[str, np.ndarray]]] = {}
    for number, part in enumerate(imported.parts):
        if part.network is None:
            continue
        if isinstance(data, Samples):
            refined, seen[number] = _from_samples(imported, part, data, recipe, progress)
        else:
            refined = Refined(part.network, Calibration({}))
        given = {tensor: known[value] for tensor, value in imported.tensors.items() if value in known}
        parts[number] = _finished(imported, part, refined, given)
    if isinstance(data, Samples):
        source |= {"samples": len(data), "sha256": data.sha256, "recipe": _document(recipe)}
        source.setdefault("method", recipe.method)
    uniform = brought and all(np.all(each == each.flat[0]) for each in model.weight_scales.values())
    return Calibrated(parts, source, recipe.per_channel and not uniform, seen)


def _document(recipe: Recipe) -> dict[str, Any]:
    return dict(vars(recipe))


def _from_samples(
    imported: Imported, part: Part, data: Samples, recipe: Recipe, progress: Progress | None
) -> tuple[Refined, list[Mapping[str, np.ndarray]]]:
    """The refined network, and the values of the first samples in it."""
    activations = Activations(imported, part)
    held = set(imported.ties) | set(imported.ties.values()) | set(imported.magnitudes)

    first: list[dict[str, np.ndarray]] = []

    def batches() -> Iterator[dict[str, np.ndarray]]:
        for number, values in enumerate(activations.batches(data)):
            if number == len(first) < KEPT_SAMPLES:
                first.append(values)
            yield values
            if progress is not None:
                progress(number + 1, len(data))

    if imported.precision == "fp16":  # magnitudes are the ranges of tables, nothing more
        plain = Recipe("max", equalise=False, bias_correction=False, headroom=False)
        refined = replace(refine(part.layers, batches, plain, "int16"), network=part.layers)
    else:
        refined = refine(part.layers, batches, recipe, imported.precision, held)
    return refined, list(divided(first, refined.factors))


def _finished(imported: Imported, part: Part, refined: Refined, given: Mapping[str, float]) -> Refined:
    """With what is known besides: scales of the model, magnitudes of the importer, tied tensors, kept scales."""
    model = imported.model
    magnitudes = {**refined.calibration.magnitudes, **given, **imported.magnitudes}
    for name, origin in imported.ties.items():
        if origin in magnitudes:
            magnitudes[name] = magnitudes[origin]
    if imported.precision != "fp16":
        _spread(part.layers, magnitudes)
        if model.magnitudes:
            _bound_results(part.layers, magnitudes)
            _spread(part.layers, magnitudes)
            _bound_summands(part.layers, magnitudes)
        _check_complete(part.layers, magnitudes, brought=bool(model.magnitudes))
    for layer in part.layers.layers:
        if own_scale(layer, "int8") is not None:
            magnitudes.setdefault(layer.name, 1.0)
    scales = {**refined.calibration.weight_scales, **model.weight_scales}
    # Of outputs as they were measured, unless something else says their scale. What another part takes keeps its units.
    ranges = {
        name: each
        for name, each in refined.calibration.ranges.items()
        if magnitudes[name] == refined.calibration.magnitudes[name] and imported.tensors.get(name) in model.outputs
    }
    ranges |= {name: model.ranges[value] for name, value in imported.tensors.items() if value in model.ranges}
    for name, origin in imported.ties.items():
        if origin in ranges:
            ranges[name] = ranges[origin]
    calibration = replace(refined.calibration, magnitudes=magnitudes, weight_scales=scales, ranges=ranges)
    return replace(refined, calibration=calibration)


def _bound_results(network: Network, magnitudes: dict[str, float]) -> None:
    """What a quantised model leaves in floats behind a tensor with a scale: as large as it can be for that tensor."""
    for group in group_layers(network):
        layer = group.layer
        source = layer.inputs[0].name if len(layer.inputs) == 1 else ""
        if group.output.name in magnitudes or source not in magnitudes:
            continue
        if layer.kind == "scale":
            largest = float(np.max(np.abs(layer.factors) * magnitudes[source] + np.abs(layer.bias)))
        else:
            largest = max(np.abs(layer_type(layer.kind).bounds(layer, magnitudes[source])))
        if np.isfinite(largest):
            magnitudes[group.output.name] = float(largest) or 1.0
        _within([group], magnitudes)


def _bound_summands(network: Network, magnitudes: dict[str, float]) -> None:
    """Summands that a quantised model leaves in floats: at most as large as the sum and the other summand together.

    Models for hardware that adds behind the convolution have no integers there, ours (--export-qdq) among them.
    """
    for group in group_layers(network):
        names = [tensor.name for tensor in group.layer.inputs]
        if group.layer.kind != "elementwise" or group.layer.operation != "add" or len(names) != 2:
            continue
        for name, other in (names, names[::-1]):
            if name not in magnitudes and other in magnitudes and group.output.name in magnitudes:
                magnitudes[name] = magnitudes[other] + magnitudes[group.output.name]


def _spread(network: Network, magnitudes: dict[str, float]) -> None:
    """Tensors that keep the scale of their neighbours take it."""
    groups = group_layers(network)
    keepers = [group for group in groups if layer_type(group.layer.kind).keeps_scale]
    _within(groups, magnitudes)
    for group in [*keepers, *reversed(keepers), *keepers]:
        names = [group.output.name, *(tensor.name for tensor in group.layer.inputs)]
        found = [magnitudes[name] for name in names if name in magnitudes]
        if found:
            for name in names:
                magnitudes.setdefault(name, max(found))
    _within(groups, magnitudes)


def _within(groups: list[Group], magnitudes: dict[str, float]) -> None:
    """Results that lie within the range of their source take its scale where they have none."""
    for group in groups:
        source = group.layer.inputs[0].name if group.layer.inputs else ""
        if layer_type(group.layer.kind).stays_within and source in magnitudes:
            magnitudes.setdefault(group.output.name, magnitudes[source])


class NoScaleError(BuildError):
    """``tensor`` has no scale in a model that brings those of others."""

    def __init__(self, tensor: str) -> None:
        super().__init__(f"tensor {tensor} has no scale in the model; give calibration data (--calibrate)")
        self.tensor = tensor


def _check_complete(network: Network, magnitudes: Mapping[str, float], brought: bool) -> None:
    """The first tensor without a scale is an error; ``brought``: others have theirs from the model."""
    groups = group_layers(network)
    for name in [*(tensor.name for tensor in network.inputs), *(group.output.name for group in groups)]:
        if name not in magnitudes and own_scale(network.layer(name), "int8") is None:
            if brought:
                raise NoScaleError(name)
            raise BuildError(f"tensor {name} has no scale in the model or table; give calibration data (--calibrate)")


def _by_value(imported: Imported, table: ScaleTable) -> dict[str, float]:
    """A table's magnitudes by ONNX value; its names may be those of values or of nodes."""
    nodes = {node.name: node.output[0] for node in imported.model.proto.graph.node if node.output}
    values = set(imported.tensors.values())
    found = {}
    for name, magnitude in table.magnitudes.items():
        value = name if name in values else nodes.get(name)
        if value in values:
            found[value] = magnitude
    if not found:
        raise FormatError(
            f"{table.kind}: none of its {len(table.magnitudes)} names ({next(iter(table.magnitudes))} ...) is a tensor "
            f"or node of {imported.model.name}"
        )
    return found


def is_table(data: Any) -> bool:
    """Whether calibration data is the path of a calibration table."""
    return isinstance(data, str | os.PathLike) and Path(data).suffix in TABLES and Path(data).is_file()


def table_or(data: Any, otherwise: Callable[[Any], Samples]) -> Samples | ScaleTable:
    """A table that is read, or samples."""
    if isinstance(data, ScaleTable):
        return data
    return read_table(data) if is_table(data) else otherwise(data)


def recipe_of(options: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """The recipe in keyword options, and the options that are left."""
    names: Iterable[str] = Recipe.__dataclass_fields__
    chosen = {name: options[name] for name in names if name in options}
    return Recipe(**chosen), {name: value for name, value in options.items() if name not in chosen}
