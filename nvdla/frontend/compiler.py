"""One call from a model to a loadable, or to a package of accelerator and host parts."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import nvdla
from nvdla.argument_kinds import by_annotations
from nvdla.builder import Built, Calibration, Recipe, Refined, build, quantize
from nvdla.builder.accuracy import LayerAccuracy, accuracy
from nvdla.builder.groups import group_layers
from nvdla.builder.lower.zero_points import LEVELS
from nvdla.builder.pixels import PICTURE_BITS, depth
from nvdla.builder.statistics import NotFiniteError
from nvdla.errors import BuildError, FormatError
from nvdla.frontend.batch import one_image
from nvdla.frontend.data import Samples, samples
from nvdla.frontend.importer import (
    ACCELERATOR,
    HOST,
    Binding,
    Imported,
    NodeRow,
    Part,
    check_host,
    import_graph,
)
from nvdla.frontend.model import Model, packages, read, reads
from nvdla.frontend.package import run_config
from nvdla.frontend.quantisation.activations import FloatModel
from nvdla.frontend.quantisation.calibrate import Calibrated, NoScaleError, Progress, calibrate, recipe_of, table_or
from nvdla.frontend.quantisation.mixed import JUDGED_SAMPLES, choose, drop
from nvdla.frontend.quantisation.tables import ScaleTable
from nvdla.hardware.configuration import configurations
from nvdla.loadable.model import Loadable
from nvdla.tensors.pixel_numbers import PixelNumbers
from nvdla.tensors.preprocessing import Preprocessing


@dataclass
class CompiledPart:
    """One step of a compiled model. ``kind`` "accelerator": ``loadable``, ``built`` and ``refined``, the network that
    was built; "host": ``model`` (ONNX). ``images``: of a batch, whose bindings are those of one."""

    kind: str
    nodes: list[str]
    inputs: list[Binding]
    outputs: list[Binding]
    loadable: Loadable | None = None
    built: Built | None = None
    model: Any = None
    scales: dict[str, float] = field(default_factory=dict)
    precision: str = ""
    refined: Refined | None = None
    numbers: Mapping[str, PixelNumbers] = field(default_factory=dict)
    images: int = 1
    zero_points: dict[str, int] = field(default_factory=dict)

    @property
    def made(self) -> Built:
        """``built`` of a part on the accelerator."""
        assert self.built is not None, "a part on the host is not built"
        return self.built


class Compiled:
    """A compiled model; see docs/compile.md."""

    def __init__(
        self, imported: Imported, parts: list[CompiledPart], nodes: list[NodeRow], details: dict[str, Any]
    ) -> None:
        self.imported, self.parts, self.nodes, self.details = imported, parts, nodes, details
        #: the configuration that a run is told, its name or file: loadables do not always tell it
        self.run_config = run_config(imported.config.name)
        self._machine: Any = None

    @property
    def loadable(self) -> Loadable | None:
        """The loadable of the first accelerator part, None where nothing runs on the accelerator."""
        return next((part.loadable for part in self.parts if part.loadable is not None), None)

    @property
    def whole(self) -> bool:
        """Whether one loadable is all of the model."""
        return len(self.parts) == 1 and self.parts[0].loadable is not None

    @property
    def report(self) -> dict[str, Any]:
        """Plain data: nodes, parts, cuts, bytes that cross, share of multiplications on the accelerator, details."""
        return report(self.imported, self.nodes) | self.details

    @property
    def package(self) -> bytes:
        """The package as a zip file: manifest, loadables, host models, scales."""
        from nvdla.frontend.package import pack

        return pack(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """One loadable with its sidecar where that is all of the model (and the name does not end in .nvpkg), else the
        package."""
        from nvdla.files import write_file

        if self.whole and Path(path).suffix != ".nvpkg":
            self.parts[0].made.save(os.fspath(path))
        else:
            write_file(path, self.package)

    def export_qdq(self, path: str | os.PathLike[str]) -> None:
        """Write the quantised network as ONNX in QDQ form, which onnxruntime runs (docs/quantisation.md).

        Inputs and outputs are cubes (1, C, H, W) of real numbers. Raises BuildError where the host has a part, and for
        precisions other than int8.
        """
        from nvdla.files import write_file
        from nvdla.frontend.quantisation.export import qdq_model

        if not self.whole:
            raise BuildError(f"{self.imported.model.name}: nodes run on the host; only a whole network goes out as QDQ")
        refined, built = self.parts[0].refined, self.parts[0].made
        assert refined is not None, "what is built was refined"
        write_file(path, qdq_model(refined.network, built).SerializeToString(deterministic=True))

    def run(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
        """Outputs for real inputs, both by the model's names: accelerator parts on the emulator, bit-exactly, host
        parts in onnxruntime."""
        from nvdla.frontend.package import HostMachine

        if self._machine is None:
            ends = self.imported.model.inputs, self.imported.model.outputs
            self._machine = HostMachine(self.parts, *ends, self.constants, self.run_config)
        return self._machine.run(inputs)

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Outputs of the model that are constants."""
        model = self.imported.model
        return {name: model.constants[name] for name in model.outputs if name in model.constants}


@by_annotations
def compile(
    model: Any,
    config: str = "nv_small",
    precision: str = "int8",
    calibration: Any = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    shapes: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | None = None,
    host: bool = True,
    keep_on_host: tuple[str, ...] = (),
    progress: Progress | None = None,
    max_drop: float = 0.005,
    **options: Any,
) -> Compiled:
    """Compile a model for one configuration.

    ``model``: a path (.onnx, .prototxt with ``weights``), bytes or an ``onnx.ModelProto``. ``precision``: "int8",
    "int16", "fp16", "auto". ``calibration``: an array (samples first), a mapping of input names to such arrays, an
    iterable of samples, a folder of images or arrays, or a :class:`nvdla.builder.Calibration`; not needed for fp16 nor
    where the model brings its scales. ``host``: False makes a node on the host an error.
    ``max_drop``: what precision "auto" may lose (:func:`nvdla.frontend.quantisation.mixed.drop`).
    ``progress(done, all)`` is told of every sample that calibration has run. ``options`` are those of
    :class:`nvdla.builder.Recipe` (``method``, ``equalise``, ``per_channel`` ...) and of the builder. Raises
    FormatError, BuildError or ConfigError, one line each.
    """
    loaded = model if isinstance(model, Model) else read(model, shapes, weights)
    recipe, rest = recipe_of(options)
    bits = depth(str(rest.get("input_format", "auto")))
    if bits is not None:
        rest["pixels"] = _pixel_numbers(preprocessing or Preprocessing(), bits)
    data = _data(loaded, calibration, preprocessing)
    auto, precision = precision == "auto", "int8" if precision == "auto" else precision
    kept = dict.fromkeys(keep_on_host, "it is kept on the host as asked")
    alone = None if auto or kept else one_image(loaded)
    while True:
        imported, images = _imported(loaded, alone, config, precision, kept, calibration is not None)
        if not host:
            check_host(imported)
        details = _details(imported, preprocessing)
        try:
            shown = data.each_image(images) if isinstance(data, Samples) else data
            calibrated = _calibration(imported, shown, recipe, progress)
            details["calibration"] = calibrated.source
            if auto:
                calibrated = _mixed(imported, calibrated, data, rest, details, max_drop)
            compiled = _build(imported, calibrated, rest | {"images": images}, details)
            if config not in configurations():
                compiled.run_config = config
            return compiled
        except _NodesFail as failure:
            if images > 1:
                alone = None
                continue
            # What only scales can show: the nodes go to the host with what the builder says.
            fresh = failure.nodes - kept.keys() or _readers(loaded, failure.nodes) - kept.keys()
            if not host or not fresh:
                raise BuildError(failure.reason) from None
            kept |= dict.fromkeys(fresh, failure.reason)


def check(
    model: Any,
    config: str = "nv_small",
    precision: str = "int8",
    weights: str | os.PathLike[str] | None = None,
    shapes: Mapping[str, Any] | None = None,
    host: bool = True,
) -> dict[str, Any]:
    """What compiling would do: the report of :class:`Compiled` without building anything. ``host`` as for
    :func:`compile`."""
    loaded = read(model, shapes, weights)
    imported, _ = _imported(loaded, one_image(loaded), config, precision, {}, True)
    if not host:
        check_host(imported)
    _name_operations(imported)
    return report(imported, imported.nodes)


def _imported(
    loaded: Model,
    alone: tuple[Model, int] | None,
    config: str,
    precision: str,
    kept: Mapping[str, str],
    ranged: bool,
) -> tuple[Imported, int]:
    """The parts, and how many images each run takes: where the whole model can be done image by image on the
    accelerator (``alone``), one part of one image; else all images in one."""
    if alone is not None:
        one, images = alone
        imported = import_graph(one, config, precision, kept, ranged)
        if len(imported.parts) == 1 and imported.network is not None:
            rows = [replace(row, macs=row.macs * images) for row in imported.nodes]
            return replace(imported, nodes=rows), images
    return import_graph(loaded, config, precision, kept, ranged), 1


def report(imported: Imported, nodes: list[NodeRow]) -> dict[str, Any]:
    """Nodes, parts and totals as plain data."""
    macs = sum(row.macs for row in nodes)
    here = sum(row.macs for row in nodes if row.placement != HOST)
    placed = [row.placement for row in nodes]
    return {
        "model": imported.model.name,
        "config": imported.config.name,
        "precision": imported.precision,
        "nodes": [asdict(row) for row in nodes],
        "accelerator_nodes": placed.count(ACCELERATOR),
        "host_nodes": placed.count(HOST),
        "cuts": imported.cuts,
        "bytes_crossing": crossing(imported),
        "macs": macs,
        "accelerator_macs_share": here / macs if macs else None,
    }


def crossing(imported: Imported) -> int:
    """Bytes that go between parts in one inference, in the float32 of the host."""
    model = imported.model
    ends = set(model.inputs)
    return sum(
        int(np.prod(model.shapes.get(name, (0,)))) * model.types.get(name, np.dtype(np.float32)).itemsize
        for part in imported.parts
        for name in part.takes
        if name not in ends
    )


def _name_operations(imported: Imported) -> None:
    """Operations of nodes by the groups that would be built."""
    groups = {
        member: group.name for net in imported.networks for group in group_layers(net) for member in group.members
    }
    for row in imported.nodes:
        row.operations = list(dict.fromkeys(groups[name] for name in row.operations if name in groups))


def _readers(model: Model, nodes: set[str]) -> set[str]:
    """The nodes that take what these nodes make."""
    graph = model.proto.graph.node
    values = {value for node in graph if node.name in nodes for value in node.output}
    return {node.name for node in graph if values & set(reads(node))}


class _NodesFail(Exception):
    def __init__(self, nodes: set[str], reason: str) -> None:
        super().__init__(reason)
        self.nodes, self.reason = nodes, reason


def _data(model: Model, data: Any, preprocessing: Preprocessing | None) -> Calibration | Samples | ScaleTable | None:
    """Calibration data, looked at once: an iterable cannot be gone through again."""
    if data is None or isinstance(data, Calibration):
        return data
    return table_or(data, lambda each: samples(model, each, preprocessing))


def _calibration(
    imported: Imported, data: Calibration | Samples | ScaleTable | None, recipe: Recipe, progress: Progress | None
) -> Calibrated:
    if isinstance(data, Calibration) or not imported.networks:
        given = data if isinstance(data, Calibration) else Calibration({})
        parts = {n: Refined(part.network, given) for n, part in enumerate(imported.parts) if part.network is not None}
        return Calibrated(parts, {"method": "given"}, recipe.per_channel)
    if data is None and imported.precision != "fp16" and not imported.model.magnitudes:
        raise BuildError(
            f"{imported.model.name}: {imported.precision} needs scales; give calibration data (--calibrate) or a model "
            "that brings its scales"
        )
    try:
        return calibrate(imported, data, recipe, progress)
    except NotFiniteError as error:
        raise _NodesFail({_maker(imported, each, error) for each in error.layers}, str(error)) from None
    except NoScaleError as error:
        raise _NodesFail({_maker(imported, error.tensor, error)}, str(error)) from None


def _mixed(
    imported: Imported,
    calibrated: Calibrated,
    data: Calibration | Samples | ScaleTable | None,
    options: dict[str, Any],
    details: dict[str, Any],
    max_drop: float,
) -> Calibrated:
    """Layers of int16 where int8 alone loses more than ``max_drop`` (docs/quantisation.md)."""
    if "int16" not in imported.config.precisions:
        raise BuildError(f"precision auto: {imported.config.name} has int8 alone; build for nv_full, or in int8")
    if not isinstance(data, Samples):
        raise BuildError("precision auto needs samples as calibration data, to measure on")
    feeds = list(islice(data, JUDGED_SAMPLES))
    outputs = [name for name in imported.model.outputs if name not in imported.model.constants]
    model = FloatModel(imported, outputs)
    exact = [{name: values[name] for name in outputs} for values in map(model.run, feeds)]
    # What is compared are numbers, which are the same on every level: none of them is searched for.
    options = options | {"level": min(options.get("level", 1), 1), "search": None}
    first = _build(imported, calibrated, options, dict(details))
    rows = [LayerAccuracy(**row) for row in first.report["accuracy"]]

    def loss(tensors: frozenset[str]) -> float:
        trial = _build(imported, calibrated.in_int16(tensors), options, dict(details), measure=False)
        return drop(exact, [trial.run(feed) for feed in feeds])

    chosen = choose(rows, loss, max_drop)
    lost = {"drop": loss(chosen), "int8_drop": loss(frozenset())}
    details["mixed"] = {"max_drop": max_drop, "int16": sorted(chosen), **lost}
    return calibrated.in_int16(chosen)


def _pixel_numbers(of_image: Preprocessing, bits: int) -> PixelNumbers:
    """What pixels of more bits than a picture's stand for: mean and scale are those of pixels 0..255."""
    larger = 1 << (bits - PICTURE_BITS)
    mean, scale = tuple(each * larger for each in of_image.mean), tuple(each / larger for each in of_image.scale)
    return PixelNumbers(mean, scale, bits)


def _build(
    imported: Imported, calibrated: Calibrated, options: dict[str, Any], details: dict[str, Any], measure: bool = True
) -> Compiled:
    rows = [replace(row, operations=list(row.operations)) for row in imported.nodes]
    parts = []
    search = options.get("search")
    if search is not None:
        options = options | {"search": search.divided(sum(part.network is not None for part in imported.parts))}
    for number, part in enumerate(imported.parts):
        if part.network is None:
            parts.append(CompiledPart(HOST, part.nodes, part.inputs, part.outputs, model=part.model))
            continue
        refined = calibrated.parts[number]
        chosen = imported.config, imported.precision, refined.calibration, calibrated.per_channel
        try:
            built = build(refined.network, *chosen, **options)
        except BuildError as error:
            raise _NodesFail({_culprit(rows, _named(error), error)}, str(error)) from None
        details["notes"] = [*details.get("notes", ()), *_coarser(imported, built)]
        measured = calibrated.samples.get(number, ()) if measure else ()
        rows_of_part = [asdict(row) for row in accuracy(refined.network, built, measured)]
        details["accuracy"] = [*details.get("accuracy", ()), *rows_of_part]
        own = {"accuracy": rows_of_part, "factors": _factors(refined)}
        built.sidecar.update({**_sidecar(imported, part, rows, details), **own})
        numbers = {root.name: root.converter.numbers for root in built.program.inputs if root.converter}
        scales = {**built.input_scales, **built.output_scales}
        parts.append(
            CompiledPart(
                ACCELERATOR,
                part.nodes,
                part.inputs,
                part.outputs,
                built.loadable,
                built,
                None,
                scales,
                imported.precision,
                refined,
                numbers,
                int(options.get("images", 1)),
                built.zero_points,
            )
        )
    _name_groups(rows, parts)
    return Compiled(imported, parts, rows, details)


def _coarser(imported: Imported, built: Built) -> list[str]:
    """Tensors of a quantised model whose zero points the hardware cannot take everywhere, and by how much their units
    are larger."""
    notes = []
    for name, surface in built.program.tensors.items():
        held = imported.model.ranges.get(imported.tensors.get(name, ""))
        if held is None or imported.precision != "int8":
            continue
        ratio = surface.scale * LEVELS / (held[1] - held[0])
        if not np.isclose(ratio, 1.0, rtol=1e-6):
            notes.append(
                f"tensor {imported.tensors[name]} holds {held[0]:.4g} to {held[1]:.4g} in the model; what reads it or "
                f"shares its scale takes no such zero point, its step is {ratio:.3g} times as large"
            )
    return notes


def _factors(refined: Refined) -> dict[str, list[float]]:
    """By what the channels of equalised tensors were divided."""
    return {name: each.tolist() for name, each in refined.factors.items() if np.any(each != 1)}


def _named(error: BuildError) -> str:
    """The layer that a message of the builder names."""
    found = re.match(r"layer (.+?): ", str(error))
    return found.group(1) if found else ""


def _culprit(rows: list[NodeRow], layer: str, error: BuildError) -> str:
    """The node that a layer of the builder's computes; the error itself where it is nobody's."""
    names = layer.split("+")
    for row in rows:
        if any(name in row.operations or name.split("/")[0] in row.operations for name in names):
            return row.name
    raise error


def _maker(imported: Imported, layer: str, error: BuildError) -> str:
    """The node that makes a tensor of a part: a layer's, or an input from the host."""
    value = imported.tensors.get(layer, layer)
    for node in imported.model.proto.graph.node:
        if value in node.output:
            return str(node.name)
    return _culprit(imported.nodes, layer, error)


def _name_groups(rows: list[NodeRow], parts: list[CompiledPart]) -> None:
    """Layers that share an operation are shown by the name of the whole group."""
    groups: dict[str, str] = {}
    for part in parts:
        for task in part.built.sidecar["tasks"] if part.built else ():
            for operation in task["operations"]:
                groups.update((member, operation["layer"]) for member in operation["layer"].split("+"))
    for row in rows:
        row.operations = list(dict.fromkeys(groups[name] for name in row.operations if name in groups))


def _details(imported: Imported, preprocessing: Preprocessing | None) -> dict[str, Any]:
    onnx, runtime = packages()
    return {
        "source": {"name": imported.model.name, "sha256": imported.model.sha256},
        "tools": {
            "nvdla": nvdla.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": runtime.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "preprocessing": preprocessing.document() if preprocessing else None,
        "calibration": None,
        "notes": list(imported.model.notes),
    }


def _sidecar(imported: Imported, part: Part, rows: list[NodeRow], details: dict[str, Any]) -> dict[str, Any]:
    """What the sidecar of a loadable keeps of the model it came from."""
    names = set(part.nodes)
    nodes = {row.name: {"op": row.op, "layers": list(row.operations)} for row in rows if row.name in names}
    values = {
        layer.name: imported.tensors[layer.name] for layer in part.layers.layers if layer.name in imported.tensors
    }
    return {"nodes": nodes, "values": values, **details}


__all__ = ["BuildError", "Compiled", "CompiledPart", "FormatError", "check", "compile", "quantize", "report"]
