"""Calibration: scales from data, and tables of scales.

* NVIDIA's compiler: ``{"conv1": {"scale": 0.02, "min": 0, "max": 0, "offset": 0}}``.
* TensorRT: a text whose first line begins with ``TRT-``, then ``name: 3ca10a14``: the scale as the bits of a float32.
* onnxruntime: ``calibration.json`` with the lowest and highest value of each tensor (or a list of both), or
  ``calibration.cache``, a text of ``name largest``.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nvdla.compiler.builder import Calibration, Network, Recipe, Refined, refine
from nvdla.compiler.builder.accuracy import ChannelRanges
from nvdla.compiler.builder.compiler import Built
from nvdla.compiler.builder.groups import group_layers, is_sum
from nvdla.compiler.builder.layer_types import bounds_of, layer_type, own_scale
from nvdla.compiler.builder.layers import Group, PoolSettings, ScaleSettings
from nvdla.compiler.builder.lower.elementwise import LEVELS, refusal_of
from nvdla.compiler.builder.refinement import divided
from nvdla.compiler.frontend.data import CACHE, Samples
from nvdla.compiler.frontend.importer import HOST, Imported, Part
from nvdla.compiler.frontend.quantization.activations import (
    MOVES,
    Activations,
    FloatModel,
    SharedModel,
    channel_labels,
)
from nvdla.errors import BuildError, FormatError
from nvdla.program.naming import shortened
from nvdla.program.operation import short_layers
from nvdla.util.escaping import Document
from nvdla.util.files import read_file
from nvdla.util.precision import Precision
from nvdla.util.rounding import real

MAX_FILE = 16 << 20
LARGEST = 127


@dataclass(frozen=True)
class ScaleTable:
    """Magnitudes by the names of the file; ``kind``: "NVIDIA JSON", "TensorRT cache", "onnxruntime table" or
    "onnxruntime cache"."""

    kind: str
    magnitudes: Mapping[str, float]


def read_table(path: str | os.PathLike[str]) -> ScaleTable:
    """A calibration file of any of the three tools. Raises FormatError naming file, entry and reason."""
    name = os.fspath(path)
    data = read_file(path, MAX_FILE, "calibration table")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{name}: a calibration table: must be JSON or text, got neither") from None
    if text.lstrip()[:1] in ("{", "["):
        table = _json(name, text)
    elif text.startswith("TRT-"):
        table = ScaleTable("TensorRT cache", dict(_tensorrt(name, line) for line in _lines(text)[1:]))
    else:
        table = ScaleTable(CACHE, dict(_cache(name, line) for line in _lines(text)))
    if not table.magnitudes:
        raise FormatError(f"{name}: {table.kind}: must have at least one tensor, got none")
    for tensor, magnitude in table.magnitudes.items():
        if not (math.isfinite(magnitude) and magnitude >= 0):
            raise FormatError(f"{name}: tensor {tensor}: magnitude: must be a positive finite number, got {magnitude}")
    return ScaleTable(
        table.kind, {tensor: magnitude for tensor, magnitude in table.magnitudes.items() if magnitude > 0}
    )


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _tensorrt(name: str, line: str) -> tuple[str, float]:
    tensor, colon, bits = line.rpartition(":")
    try:
        if not colon or len(bits.strip()) != 8:
            raise ValueError
        scale = struct.unpack(">f", bytes.fromhex(bits.strip()))[0]
    except ValueError:
        raise FormatError(f"{name}: line: must be NAME: and eight hexadecimal digits, got {line[:80]!r}") from None
    return tensor.strip(), scale * LARGEST


def _cache(name: str, line: str) -> tuple[str, float]:
    tensor, _, number = line.rpartition(" ")
    try:
        return tensor.strip(), abs(real(number))
    except ValueError:
        raise FormatError(f"{name}: line: must be NAME NUMBER, got {line[:80]!r}") from None


def _json(name: str, text: str) -> ScaleTable:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise FormatError(f"{name}: must be JSON: {reason}") from None
    if isinstance(data, dict) and isinstance(data.get("data"), dict) and "CLS" in data:
        data = data["data"]
    if not isinstance(data, dict):
        raise FormatError(f"{name}: a calibration table: must be a mapping of tensor names")
    if data.get("format") == "nvdla-layers":
        raise FormatError(
            f"{name}: a calibration table: must be for the model as it is, got a layer file, whose scales are for "
            "equalized weights. Give the calibration data again."
        )
    entries = {tensor: entry for tensor, entry in data.items() if isinstance(entry, dict | list)}
    scaled = {tensor: entry for tensor, entry in entries.items() if isinstance(entry, dict) and "scale" in entry}
    if entries and len(scaled) == len(entries):
        for tensor, entry in scaled.items():
            if entry.get("offset"):
                offset = shortened(entry["offset"])
                raise FormatError(f"{name}: tensor {tensor}: offset: must be 0 for NVDLA, got {offset}")
        scales = {tensor: _number(name, tensor, entry["scale"]) for tensor, entry in scaled.items()}
        return ScaleTable("NVIDIA JSON", {tensor: scale * LARGEST for tensor, scale in scales.items()})
    return ScaleTable("onnxruntime table", {tensor: _range(name, tensor, entry) for tensor, entry in entries.items()})


def _range(name: str, tensor: str, entry: Any) -> float:
    ends = entry if isinstance(entry, list) else [entry.get("lowest"), entry.get("highest")]
    if len(ends) != 2:
        raise FormatError(
            f"{name}: tensor {tensor}: must have the lowest and the highest value, got {len(ends)} values"
        )
    return max(abs(_number(name, tensor, end)) for end in ends)


def _number(name: str, tensor: str, value: object) -> float:
    if isinstance(value, dict):  # an array as onnxruntime writes it
        value = value.get("data")
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"{name}: tensor {tensor}: must be a number, got {shortened(value)}")
    try:
        return float(value)
    except OverflowError:
        raise FormatError(f"{name}: tensor {tensor}: must be at most 1.8e308, got {shortened(value)}") from None


TABLES = (".json", ".cache", ".txt", ".table")
# The fewest and the most samples that the error of every layer is measured with, and the work for them: products, and
# for an element as much time as for so many products.
MEASURED_SAMPLES, MEASURED_WORK, ELEMENT_WORK = (2, 32), 1 << 28, 32
# Largest number of parts for which each part has a separate float model, with only its values as outputs: to open a
# large model takes onnxruntime longer than to run it.
OWN_MODELS = 8
Progress = Callable[[int, int], None]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Measured:
    """Samples of one part that errors are measured with. ``factors``: of :class:`nvdla.compiler.builder.Refined`."""

    activations: Activations
    feeds: Sequence[Mapping[str, np.ndarray]]
    factors: Mapping[str, np.ndarray]

    def values(self, feeds: Iterable[Mapping[str, np.ndarray]]) -> Iterator[Mapping[str, np.ndarray]]:
        """The values that the network which was built has in floats for some inputs of the model."""
        return divided((self.activations.values(feed) for feed in feeds), self.factors)


@dataclass(frozen=True)
class Calibrated:
    """Every accelerator part (by its place among the parts) with its calibration, and where the scales are from.

    ``measured``: some samples of a part, to measure errors with; ``channels``: the ranges of its outputs' channels
    over all samples.
    """

    parts: Mapping[int, Refined]
    source: Document
    per_channel: bool
    measured: Mapping[int, Measured] = field(default_factory=dict)
    channels: Mapping[int, Mapping[str, ChannelRanges]] = field(default_factory=dict)

    def in_int16(self, tensors: Set[str]) -> Calibrated:
        """A calibration with these tensors, and the layers that make them, in int16."""
        parts = {number: refined.in_int16(tensors, self.per_channel) for number, refined in self.parts.items()}
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
        recipe = replace(recipe, equalize=False, bias_correction=False, adaptive_rounding=False)
    elif model.weight_scales:  # both change weights, which are on the grid of these scales (dynamic-range TFLite)
        recipe = replace(recipe, equalize=False, adaptive_rounding=False)
    known = dict(model.magnitudes)
    source: Document = {"method": "model"} if brought else {}
    if isinstance(data, ScaleTable):
        known.update(_by_value(imported, data))
        source = {"method": data.kind, "tensors": len(data.magnitudes)}
    parts: dict[int, Refined] = {}
    seen: dict[int, Measured] = {}
    channels: dict[int, Mapping[str, ChannelRanges]] = {}
    taken = _taken(imported)
    whole = _of_all_parts(imported, len(data)) if isinstance(data, Samples) else None
    measured = list(data.some(_measured_samples(imported))) if isinstance(data, Samples) else []
    for number, part in enumerate(imported.parts):
        if part.network is None:
            continue
        own = _of_part(imported, part)
        if isinstance(data, Samples):
            labels_by_tensor = channel_labels(part, "channels_last" in imported.model.source)
            channels[number] = {name: ChannelRanges(labels) for name, labels in labels_by_tensor.items()}
            refined, activations = _from_samples(own, part, data, recipe, progress, channels[number], whole)
            seen[number] = Measured(activations, measured, refined.factors)
        else:
            refined = Refined(part.network, Calibration({}))
        values = {layer.name: own.tensors.get(layer.name, layer.name) for layer in part.layers.layers}
        given = {tensor: known[value] for tensor, value in values.items() if value in known}
        parts[number] = _finished(own, part, refined, given, taken)
    if isinstance(data, Samples):
        source |= {"samples": len(data), "sha256": data.sha256, "recipe": _document(recipe)}
        source["measured_samples"] = len(measured)
        source |= {"ignored_files": data.ignored} if data.ignored else {}
        source.setdefault("method", recipe.method)
        if data.constants:
            source["constant_inputs"] = data.constants
    uniform = brought and all(np.all(scales == scales.flat[0]) for scales in model.weight_scales.values())
    return Calibrated(parts, source, recipe.per_channel and not uniform, seen, channels)


def _measured_samples(imported: Imported) -> int:
    """The number of samples that errors are measured with: fewer for larger networks."""
    layers = [layer for part in imported.parts if part.network is not None for layer in part.network.layers]
    elements = sum(math.prod(layer.output.shape) for layer in layers)
    work = sum(row.macs for row in imported.nodes) + ELEMENT_WORK * elements
    fewest, most = MEASURED_SAMPLES
    return min(max(MEASURED_WORK // max(work, 1), fewest), most)


def _taken(imported: Imported) -> set[str]:
    """The values that a part of the accelerator takes, as they are or after the host has moved their elements."""
    networks = [part.network for part in imported.parts if part.network is not None]
    taken = {imported.tensors.get(tensor.name, tensor.name) for network in networks for tensor in network.inputs}
    moving = {row.name for row in imported.nodes if row.placement == HOST and row.op in MOVES}
    for node in reversed(imported.model.proto.graph.node):
        if node.name in moving and taken.intersection(node.output):
            taken.update(node.input)
    return taken


def _of_part(imported: Imported, part: Part) -> Imported:
    """Restrict an imported model to the tensors of one part."""
    names = [layer.name for layer in part.layers.layers]

    def own(known: Mapping[str, Value]) -> dict[str, Value]:
        return {name: known[name] for name in names if name in known}

    tables = own(imported.tensors), own(imported.ties), own(imported.magnitudes), own(imported.orders)
    return replace(imported, tensors=tables[0], ties=tables[1], magnitudes=tables[2], orders=tables[3])


def _document(recipe: Recipe) -> Document:
    return dict(vars(recipe))


def _of_all_parts(imported: Imported, samples: int) -> FloatModel | None:
    """One float model for the values of all parts where there are so many that a model for each would take too long."""
    parts = [part for part in imported.parts if part.network is not None]
    if len(parts) <= OWN_MODELS:
        return None
    return SharedModel(imported, (Activations(_of_part(imported, part), part).needed for part in parts), samples)


def _from_samples(
    imported: Imported,
    part: Part,
    data: Samples,
    recipe: Recipe,
    progress: Progress | None,
    channels: Mapping[str, ChannelRanges],
    whole: FloatModel | None,
) -> tuple[Refined, Activations]:
    """The refined network, and the float values of its tensors. ``channels`` see all samples."""
    activations = Activations(imported, part, model=whole)
    held = set(imported.ties) | set(imported.ties.values()) | set(imported.magnitudes)

    def batches() -> Iterator[dict[str, np.ndarray]]:
        done = 0
        for values in activations.batches(data):
            for name in channels.keys() & values.keys():
                channels[name].see(values[name])
            yield values
            done += max(map(len, values.values()))
            if progress is not None:
                progress(done, len(data))

    if imported.precision == Precision.FP16:  # magnitudes are the ranges of tables, nothing more
        plain = Recipe("max", equalize=False, bias_correction=False, headroom=False)
        refined = replace(refine(part.layers, batches, plain, Precision.INT16), network=part.layers)
    else:
        refined = refine(part.layers, batches, recipe, imported.precision, held)
    if imported.model.quantized is not None:
        activations = Activations(imported, part, quantized=True)
    return refined, activations


def _finished(imported: Imported, part: Part, refined: Refined, given: Mapping[str, float], taken: Set[str]) -> Refined:
    """With what is known besides: scales of the model, magnitudes of the importer, tied tensors, kept scales.
    ``taken``: values that a part takes from another."""
    model = imported.model
    magnitudes = {**refined.calibration.magnitudes, **given, **imported.magnitudes}
    for name, origin in imported.ties.items():
        if origin in magnitudes:
            magnitudes[name] = magnitudes[origin]
    if imported.precision != Precision.FP16:
        _spread(part.layers, magnitudes)
        if model.magnitudes:
            _bound_results(part.layers, magnitudes)
            _spread(part.layers, magnitudes)
            _bound_summands(part.layers, magnitudes)
        stated = set() if model.magnitudes else set(imported.tensors)
        _check_complete(part.layers, magnitudes, stated, imported.tensors)
    for layer in part.layers.layers:
        if own_scale(layer, Precision.INT8) is not None:
            magnitudes.setdefault(layer.name, 1.0)
    scales = {**refined.calibration.weight_scales, **model.weight_scales}
    # Of outputs as they were measured, unless something else says their scale. What another part takes keeps its units.
    bound = {tensor.name for tensor in (*part.layers.inputs, *part.layers.outputs)}
    ranges = {
        name: span
        for name, span in refined.calibration.ranges.items()
        if magnitudes[name] == refined.calibration.magnitudes[name]
        and (name not in bound or imported.tensors.get(name) not in taken)
    }
    ranges |= {name: model.ranges[value] for name, value in imported.tensors.items() if value in model.ranges}
    for name, origin in imported.ties.items():
        if origin in ranges:
            ranges[name] = ranges[origin]
    calibration = replace(refined.calibration, magnitudes=magnitudes, weight_scales=scales, ranges=ranges)
    return replace(refined, calibration=calibration)


def _bound_results(network: Network, magnitudes: dict[str, float]) -> None:
    """Bound results that a quantized model leaves in floats by the largest value that their scaled source allows."""
    for group in group_layers(network):
        layer = group.layer
        source = layer.inputs[0].name if len(layer.inputs) == 1 else ""
        if group.output.name in magnitudes or source not in magnitudes:
            continue
        if layer.kind == "scale":
            scale = ScaleSettings.of(layer)
            largest = float(np.max(np.abs(scale.factors) * magnitudes[source] + np.abs(scale.bias)))
        else:
            largest = max(map(abs, bounds_of(layer, magnitudes[source], {})))
        if np.isfinite(largest):
            magnitudes[group.output.name] = float(largest) or 1.0
        _within([group], magnitudes)


def _bound_summands(network: Network, magnitudes: dict[str, float]) -> None:
    """Summands that a quantized model leaves in floats: at most as large as the sum and the other summand together.

    Models for hardware that adds after the convolution have no integers there, for example those of --export-qdq.
    """
    for group in group_layers(network):
        names = [tensor.name for tensor in group.layer.inputs]
        if not is_sum(group.layer) or len(names) != 2:
            continue
        for name, other in (names, names[::-1]):
            if name not in magnitudes and other in magnitudes and group.output.name in magnitudes:
                magnitudes[name] = magnitudes[other] + magnitudes[group.output.name]


def _spread(network: Network, magnitudes: dict[str, float]) -> None:
    """Copy scales across layers that keep the scale of their input."""
    groups = group_layers(network)
    keepers = [group for group in groups if layer_type(group.layer.kind).keeps_scale]
    _within(groups, magnitudes)
    for group in [*keepers, *reversed(keepers), *keepers]:
        names = [group.output.name, *(tensor.name for tensor in group.layer.inputs)]
        if _averages(group) and names[1] not in magnitudes:  # it may have far larger numbers than the result
            continue
        scales = [magnitudes[name] for name in names if name in magnitudes]
        if scales:
            for name in names:
                magnitudes.setdefault(name, max(scales))
    _within(groups, magnitudes)


def _averages(group: Group) -> bool:
    settings = group.layer.settings
    return isinstance(settings, PoolSettings) and settings.mode == "average"


def _within(groups: list[Group], magnitudes: dict[str, float]) -> None:
    """Give results within the range of their source its scale, where they have none."""
    for group in groups:
        source = group.layer.inputs[0].name if group.layer.inputs else ""
        if layer_type(group.layer.kind).stays_within and source in magnitudes:
            magnitudes.setdefault(group.output.name, magnitudes[source])


class NoScaleError(BuildError):
    """``tensor`` has no scale in a model or table that brings those of others."""

    def __init__(self, tensor: str, text: str) -> None:
        super().__init__(text)
        self.tensor = tensor


def _check_complete(
    network: Network, magnitudes: Mapping[str, float], stated: Set[str], values: Mapping[str, str]
) -> None:
    """The first tensor without a scale is an error. ``stated``: tensors that a table must have scales of; others make
    their nodes run on the host. ``values``: the ONNX values of tensors."""
    groups = group_layers(network)
    for name in [*(tensor.name for tensor in network.inputs), *(group.output.name for group in groups)]:
        if name not in magnitudes and own_scale(network.layer(name), Precision.INT8) is None:
            value = values.get(name, name)
            add = "add it to the table, or " if name in stated else ""
            text = (
                f"tensor {name}{'' if value == name else f' (ONNX value {value})'} has no scale in the model or table; "
                f"{add}give calibration data (--calibrate; Python: calibration=)"
            )
            raise BuildError(text) if name in stated else NoScaleError(name, text)


def _by_value(imported: Imported, table: ScaleTable) -> dict[str, float]:
    """A table's magnitudes by ONNX value; its names may be those of values, of tensors of the layer file or of
    nodes. Tensors without an ONNX value keep their names."""
    nodes = {node.name: node.output[0] for node in imported.model.proto.graph.node if node.output}
    layers = {
        layer.name: imported.tensors.get(layer.name, layer.name) for net in imported.networks for layer in net.layers
    }
    values = {*imported.tensors.values(), *layers.values()}
    magnitudes = {}
    for name, magnitude in table.magnitudes.items():
        value = name if name in values else layers.get(name) or nodes.get(name)
        if value in values:
            magnitudes[value] = magnitude
    if not magnitudes:
        raise FormatError(
            f"{table.kind}: none of its {len(table.magnitudes)} names ({next(iter(table.magnitudes))} ...) is a tensor "
            f"or node of {imported.model.file}"
        )
    return magnitudes


def named_layers(imported: Imported, precisions: Mapping[str, str]) -> frozenset[str]:
    """The layers that are to be computed in int16. Raises BuildError.

    Args:
        imported: The model.
        precisions: "int16" or "int8" by the name of a layer, of an ONNX value or of a node.
    """
    if imported.precision != Precision.INT8 or Precision.INT16 not in imported.config.precisions:
        raise BuildError(
            f"precision: int16 layers must be within an int8 network on nv_full, got {imported.precision} on "
            f"{imported.config.name}"
        )
    chosen: set[str] = set()
    on_cpu = {layer.name for net in imported.networks for layer in net.layers if layer.kind == "softmax"}
    for name, precision in precisions.items():
        if precision not in (Precision.INT8, Precision.INT16):
            raise BuildError(f"precision of layer {name}: must be int16 or int8, got {precision}")
        layers, near = layers_named(imported, name)
        if not layers:
            raise BuildError(
                f"precision: must name a layer on the accelerator of {imported.model.file}, got {name}."
                f"{f' Did you mean {near}?' if near else ' The report lists them.'}"
            )
        if precision == Precision.INT16 and (tasks := sorted(layers & on_cpu)):
            raise BuildError(f"precision of layer {tasks[0]}: must be int8 (the CPU has no int16 softmax), got int16")
        chosen |= layers if precision == Precision.INT16 else set()
    return frozenset(chosen)


def layers_named(imported: Imported, name: str) -> tuple[Set[str], str]:
    """Return the layers that a name means, and without any the name that is most like it ("" where none is).

    Args:
        imported: The model.
        name: Name of a layer, of an ONNX value, of a node, or of an operation with several layers as tables show it.
    """
    layers = {layer.name for net in imported.networks for layer in net.layers}
    known: dict[str, Set[str]] = {row.name: layers.intersection(row.operations) for row in imported.nodes}
    known |= {value: {layer} for layer, value in imported.tensors.items() if layer in layers}
    known |= {layer: {layer} for layer in layers}
    groups = {group.name: frozenset(group.members) for net in imported.networks for group in group_layers(net)}
    shown = {short: groups[whole] for whole, short in short_layers(groups).items()}
    meant = known.get(name) or groups.get(name) or shown.get(name) or _joined(imported, known | shown, name)
    near = [] if meant else difflib.get_close_matches(name, [key for key, value in (known | shown).items() if value], 1)
    return meant, near[0] if near else ""


def _joined(imported: Imported, known: Mapping[str, Set[str]], name: str) -> set[str]:
    """The layers of an operation from its name, "b1.conv+b1.add" or "b1.conv+add" in tables; empty if none has it.

    Each reads one before it: "add" alone may be a layer of another operation.
    """
    first, *others = name.split("+")
    sources = {
        layer.name: {tensor.name for tensor in layer.inputs} for net in imported.networks for layer in net.layers
    }
    layers = set(known.get(first, ()))
    for part in others:
        alike = {layer for layer in sources if layer.endswith((f".{part}", f"/{part}"))} | known.get(part, set())
        linked = {layer for layer in alike if sources[layer] & layers}
        if not linked:
            return set()
        layers |= linked
    return layers


def is_table(data: object) -> bool:
    """Return whether calibration data is the path of a calibration table."""
    return isinstance(data, str | os.PathLike) and Path(data).suffix in TABLES and Path(data).is_file()


def table_or(data: Any, otherwise: Callable[[Any], Samples]) -> Samples | ScaleTable:
    """A table that is read, or samples."""
    if isinstance(data, ScaleTable):
        return data
    return read_table(data) if is_table(data) else otherwise(data)


def recipe_of(options: Document) -> tuple[Recipe, Document]:
    """The recipe in keyword options, and the options that are left."""
    names: Iterable[str] = Recipe.__dataclass_fields__
    chosen = {name: options[name] for name in names if name in options}
    return Recipe(**chosen), {name: value for name, value in options.items() if name not in chosen}


class _Sharing:
    """Tensors that have one scale with others: those that are joined, pooled or copied."""

    def __init__(self, network: Network) -> None:
        self._parents: dict[str, str] = {}
        self._parts: set[str] = set()
        for layer in network.layers:
            if layer.kind == "input" or not (layer_type(layer.kind).keeps_scale or layer.kind == "concat"):
                continue
            names = [layer.output.name, *(tensor.name for tensor in layer.inputs)]
            self._parts.update(names if layer.kind == "concat" else ())
            for name in names[1:]:
                self._parents[self._root(name)] = self._root(names[0])
        self._joined = {self._root(name) for name in self._parts}

    def _root(self, name: str) -> str:
        while (parent := self._parents.get(name, name)) != name:
            self._parents[name] = self._parents.get(parent, parent)
            name = parent
        return name

    def reason(self, name: str) -> str:
        """Return why a tensor has one scale with others."""
        if name in self._parts:
            return "all parts of a Concat have one scale"
        joined = "joined, " if self._root(name) in self._joined else ""
        return f"tensors that are {joined}pooled or copied have one scale"


def _of_source(group: Group | None, built: Built, name: str) -> list[str]:
    """Return a note on an average that has the step of its input, because the model states no range of it."""
    if group is None or not layer_type(group.layer.kind).stays_within:
        return []
    same = [tensor.name for tensor in group.layer.inputs if tensor.name in built.program.tensors]
    if not same or built.program.tensors[same[0]].scale != built.program.tensors[name].scale:
        return []
    return [
        f"tensor {name}: the model states no range: it has the step of {same[0]}, whose range is larger than that of "
        "its averages. Give calibration data (--calibrate; Python: calibration=) for its own"
    ]


def coarser(imported: Imported, network: Network, built: Built) -> list[str]:
    """Return notes on tensors with other units than the model's, with how much coarser they are, and why."""
    notes, model, sharing = [], imported.model, _Sharing(network)
    groups = {group.output.name: group for group in group_layers(network)} if model.affine else {}
    for name, surface in built.program.tensors.items():
        value = imported.tensors.get(name, "")
        held, magnitude = model.ranges.get(value), model.magnitudes.get(value)
        if held is None and magnitude and model.affine and value not in model.assumed:
            held = -magnitude, magnitude  # of a symmetric tensor, whose step has 127 units
        if imported.precision != Precision.INT8:
            continue
        if held is None:
            notes += _of_source(groups.get(name), built, name)
            continue
        units = LEVELS if value in model.ranges else 2 * LARGEST
        ratio = surface.scale * units / (held[1] - held[0])
        if not np.isclose(ratio, 1.0, rtol=0.005):
            alone = value in model.ranges and not surface.zero
            reason = refusal_of(network, name) if alone else sharing.reason(name)
            notes.append(
                f"tensor {name}: its step is {ratio:.3g} times that of the model (range {held[0]:.4g} to "
                f"{held[1]:.4g}), because {reason}"
            )
            if value in imported.model.inputs and value in imported.model.stored:
                notes.append(
                    f"input {value}: integers of the file have other units than the loadable's elements (scale "
                    f"{surface.scale:.6g}, zero {surface.zero}). Give real numbers (float arrays)"
                )
    return notes
