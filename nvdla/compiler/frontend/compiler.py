"""One call from a model to a loadable, or to a package of accelerator and host parts."""

from __future__ import annotations

import difflib
import inspect
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar, cast

import numpy as np

import nvdla
from nvdla.analysis.cycles.constants import DEFAULT_CLOCK, Memory, check_clock
from nvdla.compiler.builder import Calibration, Recipe, Refined, build, quantize
from nvdla.compiler.builder.accuracy import LayerAccuracy, accuracy
from nvdla.compiler.builder.calibration import NotFiniteError
from nvdla.compiler.builder.compiler import check_level
from nvdla.compiler.builder.groups import group_layers
from nvdla.compiler.frontend.data import Samples, describe_samples, for_model, one_image, pixels_option, samples
from nvdla.compiler.frontend.importer import (
    HOST,
    Imported,
    NodeRow,
    check_host,
    import_graph,
    nodes_for_host,
    readers,
)
from nvdla.compiler.frontend.isolation import reads
from nvdla.compiler.frontend.model import Model, read
from nvdla.compiler.frontend.opening import CompiledPart, HostPart, PackedPart, PartChain
from nvdla.compiler.frontend.package import HostMachine, machine_of, pack
from nvdla.compiler.frontend.quantization.activations import FloatModel, shared_scales, weak_channels, wide_variances
from nvdla.compiler.frontend.quantization.calibrate import (
    Calibrated,
    NoScaleError,
    Progress,
    ScaleTable,
    calibrate,
    coarser,
    layers_named,
    named_layers,
    recipe_of,
    table_or,
)
from nvdla.compiler.frontend.quantization.mixed import JUDGED_SAMPLES, choose, drop
from nvdla.compiler.frontend.summary import batch_notes, factors, html, other_ends, report, sidecar, summarize, text
from nvdla.emulator.hardware.configuration import configurations
from nvdla.errors import BuildError, FormatError
from nvdla.loadable.model import Loadable, LoadableHolder
from nvdla.loadable.reader import Source
from nvdla.tensors.datasets import SampleSource
from nvdla.tensors.inputs import Input, PictureConversion, Preprocessing
from nvdla.util.arguments import by_annotations, known_keywords, refuse_unknown
from nvdla.util.escaping import Document
from nvdla.util.precision import Precision

Result = TypeVar("Result")
REQUESTED = "kept on the host as requested"
_NAMED = 8  # names that an error lists


class ModelProto(Protocol):
    """An ``onnx.ModelProto``."""

    def SerializeToString(self) -> bytes:
        """Return the bytes of the model."""


class Dataset(Protocol):
    """A data set of PyTorch."""

    def __getitem__(self, index: int) -> object:
        """Return a sample, with or without its label."""


ModelSource = Source | ModelProto | Model
CalibrationData = (
    Mapping[str, np.ndarray]
    | Iterable[object]
    | Dataset
    | SampleSource
    | str
    | os.PathLike[str]
    | Calibration
    | ScaleTable
)


class Compiled(LoadableHolder):
    """A compiled model; see docs/compile.md."""

    @by_annotations
    def __init__(self, imported: Imported, parts: list[CompiledPart], nodes: list[NodeRow], details: Document) -> None:
        self.imported, self.parts, self.nodes, self.details = imported, parts, nodes, details
        #: configuration of a run, a name or a file: loadables do not always contain it
        self.run_config = imported.config.name
        #: external memory that the summary's cycles assume; None: the default of the cycle model
        self.memory: Memory | None = None
        #: clock frequency of the summary's times in MHz
        self.clock = DEFAULT_CLOCK
        self._machine: HostMachine | None = None

    @property
    def loadable(self) -> Loadable | None:
        """The loadable of the first accelerator part, None where nothing runs on the accelerator."""
        return next((part.loadable for part in self.parts if part.loadable is not None), None)

    @property
    def whole(self) -> bool:
        """Return whether one loadable is all of the model."""
        return len(self.parts) == 1 and self.parts[0].loadable is not None

    @property
    def report(self) -> Document:
        """Plain data: nodes, parts, cuts, bytes that cross, share of multiplications on the accelerator, details."""
        return report(self.imported, self.nodes) | self.details

    @cached_property
    def summary(self) -> Document:
        """Plain data: reasons of host nodes, cycles, frames per second, memory, traffic, SNR, worst layers."""
        return summarize(self.imported, self.parts, self.nodes, self.report, self.memory, self.clock)

    def __repr__(self) -> str:
        return text(self._title, self.summary)

    def _repr_html_(self) -> str:
        return html(self._title, self.summary)

    @property
    def _title(self) -> str:
        return f"{self.imported.model.name}, compiled for {self.imported.config.name}"

    @property
    def package(self) -> bytes:
        """The package as a zip file: manifest, loadables, host models, scales."""
        return pack(self.imported, self.parts, self.details, self.constants)

    @known_keywords
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model.

        Args:
            path: The file. If one loadable contains the whole model, it is written with its layer file next to it;
                else, and if the name ends in .nvpkg, a package is written.
        """
        from nvdla.util.files import write_file

        if self.whole and Path(path).suffix != ".nvpkg":
            self.parts[0].made.save(os.fspath(path))
        else:
            write_file(path, self.package)

    def export_qdq(self, path: str | os.PathLike[str]) -> None:
        """Write the quantized network as ONNX in QDQ form, which onnxruntime runs (docs/quantization.md).

        Args:
            path: The ONNX file, of a network for one image.

        Raises:
            BuildError: A part runs on the host, or the precision is not int8.
        """
        from nvdla.compiler.frontend.quantization.export import qdq_model, with_ends_of_model
        from nvdla.util.files import write_file

        if not self.whole:
            raise BuildError(f"{self.imported.model.file}: model: must have no host nodes (--check) for QDQ export")
        part, model = self.parts[0], self.imported.model
        assert part.refined is not None, "what is built was refined"
        ends = part.inputs, part.outputs, model.shapes, [value.name for value in model.proto.graph.output]
        exported = with_ends_of_model(qdq_model(part.refined.network, part.made), *ends)
        write_file(path, exported.SerializeToString(deterministic=True))

    def __nvdla_loadable__(self, config: str) -> tuple[Loadable, str]:
        """See :class:`nvdla.loadable.model.LoadableHolder`. Raises FormatError if nodes run on the host."""
        if not self.whole:
            kinds = ", ".join(part.kind for part in self.parts)
            raise FormatError(f"{self._title}: must be one accelerator part, got {kinds}. Use Compiled.run.")
        return self.parts[0].made.named, self.run_config if config == "auto" else config

    @known_keywords
    def run(
        self, inputs: Input | Sequence[Input] | Mapping[str, Input], preprocessing: PictureConversion | None = None
    ) -> dict[str, np.ndarray]:
        """Run the model: accelerator parts on the emulator, bit-exactly, host parts in onnxruntime.

        Args:
            inputs: As for :meth:`nvdla.Runtime.run`, with the model's names. Arrays are real numbers, pictures (uint8),
                or elements (signed integers) of an input that the accelerator reads.
            preprocessing: Conversion of pictures as for :meth:`nvdla.Runtime.run`.

        Returns:
            Real outputs by the model's names; several images are concatenated along the first axis.
        """
        if self._machine is None:
            self._machine = machine_of(self.imported, self.parts, self.constants, self.run_config, self.details)
        return self._machine.run(inputs, preprocessing=preprocessing)

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Outputs of the model that are constants; numbers that numpy does not have (bfloat16) as float32."""
        model = self.imported.model
        outputs = {name: model.constants[name] for name in model.outputs if name in model.constants}
        return {name: array.astype(np.float32) if array.dtype.kind == "V" else array for name, array in outputs.items()}


@by_annotations
@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # what is not finite is looked for, and named
def compile(
    model: ModelSource,
    config: str = "nv_small",
    precision: str | Mapping[str, str] = "int8",
    calibration: CalibrationData | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    preprocessing: Preprocessing | None = None,
    host: bool = True,
    keep_on_host: tuple[str, ...] = (),
    progress: Progress | None = None,
    on_stage: Callable[[str], None] | None = None,
    max_drop: float = 0.005,
    trusted: bool = False,
    example_inputs: Sequence[object] | None = None,
    clock: float = DEFAULT_CLOCK,
    **options: object,
) -> Compiled:
    """Return a model, compiled for one configuration.

    Args:
        model: A path (.onnx, .tflite, .pt2, .prototxt with ``weights``), bytes, an ``onnx.ModelProto``, a
            ``torch.export.ExportedProgram``, or a ``torch.nn.Module`` with ``example_inputs``.
        config: Name or file of the configuration.
        precision: "int8", "int16", "fp16" or "auto", or the int16 layers of an int8 network, by names of layers, ONNX
            values or nodes: ``{"conv1": "int16"}``.
        calibration: Samples (arrays, iterable, DataLoader or directory) or ranges; not needed for fp16 and quantized
            models.
        weights: The .caffemodel of a Caffe network.
        shapes: Shapes of inputs with dynamic sizes, by name.
        preprocessing: Conversion of images to inputs.
        host: False: raise an error if a node runs on the host.
        keep_on_host: Names of nodes (``report["nodes"]`` has all), ONNX values or layers that run on the host.
        progress: Called as ``progress(done, all)`` after every calibration sample.
        on_stage: Called with the name of each stage: "calibrating" or "building".
        max_drop: Largest accuracy loss that precision "auto" accepts.
        trusted: Read and run the model in this process, without limits of memory and processor time (docs/security.md).
        example_inputs: Arguments of ``forward`` for a ``torch.nn.Module``.
        clock: Clock frequency in MHz, for the times in the summary.
        **options: Fields of :class:`nvdla.compiler.builder.Recipe`, and options of the builder.

    Raises:
        NvdlaError: The model cannot be read or compiled for the configuration: FormatError, BuildError or ConfigError.
    """
    refuse_unknown("compile", options, _keywords())
    recipe, rest = _options(options, max_drop, clock)
    loaded = model if isinstance(model, Model) else read(model, shapes, weights, trusted, None, example_inputs)
    precision, layers = (precision, {}) if isinstance(precision, str) else (Precision.INT8, precision)
    _check_scales(loaded, precision)
    loaded, preprocessing = for_model(loaded, preprocessing)
    data, rest = _data(loaded, calibration, preprocessing), rest | pixels_option(rest, preprocessing)
    loaded = loaded.measured() if isinstance(data, Samples) else loaded
    kept = dict.fromkeys(keep_on_host, REQUESTED)
    settings = recipe, rest, preprocessing, host, progress, on_stage or str, max_drop, kept, layers
    compiled = _Compilation(loaded, config, precision, data, *settings).compiled()
    compiled.clock = clock
    return compiled


def _keywords() -> set[str]:
    """Names of all keywords of :func:`compile`."""
    named = inspect.signature(compile).parameters.keys() - {"options"}
    return {*named, *Recipe.__dataclass_fields__, "level", "input_format", "memory", "search", "cvsram"}


@dataclass
class _Compilation:
    """A model, the settings of its compilation, and what failed attempts have shown: nodes for the host (``kept``,
    ``joins``: names and reasons), and that a single image at a time cannot be built (``alone`` is None). ``layers``:
    the precisions of single layers."""

    model: Model
    config: str
    precision: str
    data: Calibration | Samples | ScaleTable | None
    recipe: Recipe
    options: Document
    preprocessing: Preprocessing | None
    host: bool
    progress: Progress | None
    on_stage: Callable[[str], object]
    max_drop: float
    kept: dict[str, str]
    layers: Mapping[str, str] = field(default_factory=dict)
    joins: dict[str, str] = field(default_factory=dict)
    failures: int = 0

    def __post_init__(self) -> None:
        self.is_mixed = self.precision == "auto"
        self.precision = Precision.INT8 if self.is_mixed else self.precision
        self.alone = None if self.is_mixed or self.kept else one_image(self.model)

    def compiled(self) -> Compiled:
        """Return the result of the first attempt that succeeds. Raises FormatError, BuildError or ConfigError."""
        return self._first(self._attempt)

    def placed(self) -> Imported:
        """Return the parts that :meth:`compiled` builds, as far as scales decide about them. Raises as that does."""
        return self._first(
            lambda imported, images: imported if self._calibrated(imported, images, _details(imported, None)) else None
        )

    def _first(self, attempt: Callable[[Imported, int], Result | None]) -> Result:
        """Return the first result of an attempt; after each other one, more nodes run on the host."""
        while True:
            ranged = self.data is not None
            imported, images = _imported(
                self.model, self.alone, self.config, self.precision, self.kept, ranged, self.joins
            )
            if self._found_requested(imported):
                continue
            if not self.host:
                check_host(imported)
            try:
                result = attempt(imported, images)
            except _NodesFail as failure:
                self._give_way(failure, imported, images)
                continue
            if result is not None:
                return result

    def _found_requested(self, imported: Imported) -> bool:
        """Replace names of layers in ``keep_on_host`` by nodes; return whether there was one. Raises BuildError."""
        names = [row.name for row in imported.nodes]
        others = [name for name, reason in self.kept.items() if reason == REQUESTED and name not in names]
        for name in others:
            layers, _ = layers_named(imported, name)
            nodes = [row.name for row in imported.nodes if not layers.isdisjoint(row.operations)]
            if not nodes:
                near = difflib.get_close_matches(name, names, 1)
                some = f"Nodes are {', '.join(names[:_NAMED])} ... (all: report['nodes'])."
                hint = f"Did you mean {near[0]!r}?" if near else some
                raise BuildError(f"keep_on_host: must be names of nodes or layers, got {name!r}. {hint}")
            del self.kept[name]
            self.kept |= dict.fromkeys(nodes, REQUESTED)
        return bool(others)

    def _calibrated(self, imported: Imported, images: int, details: Document) -> Calibrated | None:
        """The scales. None: nodes that would share a scale go to the host, in the next attempt."""
        shown = self.data.each_image(images) if isinstance(self.data, Samples) else self.data
        calibrated = _calibration(imported, shown, self.recipe, self.progress)
        self.on_stage("building")
        describe_samples(details, calibrated.source, imported.model, shown, self.preprocessing)
        if _keep_scales_apart(imported, calibrated, self.host, self.joins, details):
            self.kept |= self.joins
            return None
        return calibrated

    def _attempt(self, imported: Imported, images: int) -> Compiled | None:
        """Calibrate and build. None as for :meth:`_calibrated`."""
        details = _details(imported, self.preprocessing)
        details["notes"] += batch_notes(imported, images)
        self.on_stage("calibrating")
        calibrated = self._calibrated(imported, images, details)
        if calibrated is None:
            return None
        layers = {**(self.data.precisions if isinstance(self.data, Calibration) else {}), **self.layers}
        if self.is_mixed:
            calibrated = _mixed(imported, calibrated, self.data, self.options, details, self.max_drop)
        elif layers:
            calibrated = calibrated.in_int16(named_layers(imported, layers))
        compiled = _build(imported, calibrated, self.options | {"images": images}, details)
        _check_host_parts(compiled)
        compiled.memory = cast("Memory | None", self.options.get("memory"))
        if self.config not in configurations():
            compiled.run_config = self.config
        return compiled

    def _give_way(self, failure: _NodesFail, imported: Imported, images: int) -> None:
        """Take several images at once, or send the nodes to the host with the error of the builder, which only scales
        can show; nodes on the host keep their own reason. Raises the error where neither is left."""
        if images > 1:
            self.alone = None
            return
        placed = {row.name for row in imported.nodes if row.placement == HOST} | self.kept.keys()
        fresh = failure.nodes - placed or readers(self.model, failure.nodes) - placed
        if not self.host or not fresh:
            raise failure.error from None
        self.failures += 1
        nodes = nodes_for_host(self.model, fresh, placed, self.failures)
        self.kept |= dict.fromkeys(nodes, str(failure.error))


def check(
    model: object,
    config: str = "nv_small",
    precision: str | Mapping[str, str] = "int8",
    weights: str | os.PathLike[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    host: bool = True,
    trusted: bool = False,
    ranged: bool = False,
) -> Document:
    """Return the report of :class:`Compiled` without building anything. ``host`` and ``trusted`` as
    for :func:`compile`; ``ranged``: calibration data will be given."""
    loaded = read(model, shapes, weights, trusted)
    number_format = precision if isinstance(precision, str) and precision != "auto" else Precision.INT8
    _check_scales(loaded, number_format)
    if loaded.magnitudes and not ranged:  # a quantized model: tensors without a range decide, too
        imported = _Compilation(
            loaded, config, number_format, None, Recipe(), {}, None, host, None, str, 0.0, {}
        ).placed()
    else:
        imported, _ = _imported(loaded, one_image(loaded), config, number_format, {}, True)
        if not host:
            check_host(imported)
    if not isinstance(precision, str):
        named_layers(imported, precision)
    _name_operations(imported)
    return report(imported, imported.nodes)


def _check_scales(model: Model, precision: str) -> None:
    """Refuse a quantized model with a range that the elements of the accelerator cannot hold."""
    kind = np.float16 if precision == Precision.FP16 else np.float32
    least, greatest = float(np.finfo(kind).smallest_subnormal), float(np.finfo(kind).max)
    for name, magnitude in model.magnitudes.items():
        if not least <= magnitude <= greatest:
            raise FormatError(
                f"{model.file}: tensor {name}: range of its quantization: must be {least:.3g} to {greatest:.3g} in "
                f"{precision}, got {magnitude:.3g}"
            )


def _imported(
    loaded: Model,
    alone: tuple[Model, int] | None,
    config: str,
    precision: str,
    kept: Mapping[str, str],
    ranged: bool,
    joins: Mapping[str, str] | None = None,
) -> tuple[Imported, int]:
    """The parts, and how many images each run takes: where the whole model (but for ``joins``, which only move
    elements) can be done image by image on the accelerator (``alone``), one part of one image; else all images in
    one."""
    if alone is not None:
        single, images = alone
        imported = import_graph(single, config, precision, kept, ranged)
        after = [name for part in imported.parts[1:] for name in part.nodes]
        if imported.parts and imported.parts[0].network is not None and set(after) <= set(joins or ()):
            rows = [replace(row, macs=row.macs * images) for row in imported.nodes]
            return replace(imported, nodes=rows), images
    return import_graph(loaded, config, precision, kept, ranged), 1


def _name_operations(imported: Imported) -> None:
    """Operations of nodes by the groups that would be built."""
    groups = {
        member: group.name for net in imported.networks for group in group_layers(net) for member in group.members
    }
    for row in imported.nodes:
        row.operations = list(dict.fromkeys(groups[name] for name in row.operations if name in groups))


def _options(options: Document, max_drop: float, clock: float) -> tuple[Recipe, Document]:
    """Options of quantization and of the builder. Raises BuildError and ConfigError for those out of range."""
    check_clock(clock)
    if not 0 <= max_drop <= 1:
        raise BuildError(f"max_drop: must be 0 to 1, got {max_drop:g}")
    recipe, rest = recipe_of(options)
    check_level(rest.get("level", 1), rest.get("search"))
    return recipe, rest


class _NodesFail(Exception):
    """The nodes that ``error`` is about must run on the host."""

    def __init__(self, nodes: set[str], error: BuildError) -> None:
        super().__init__(str(error))
        self.nodes, self.error = nodes, error


def _data(model: Model, data: object, preprocessing: Preprocessing | None) -> Calibration | Samples | ScaleTable | None:
    """Calibration data, looked at once: an iterable cannot be gone through again."""
    if data is None or isinstance(data, Calibration):
        return data
    return table_or(data, lambda source: samples(model, source, preprocessing))


def _calibration(
    imported: Imported, data: Calibration | Samples | ScaleTable | None, recipe: Recipe, progress: Progress | None
) -> Calibrated:
    if isinstance(data, Calibration) or not imported.networks:
        given = replace(data, precisions={}) if isinstance(data, Calibration) else Calibration({})
        parts = {n: Refined(part.network, given) for n, part in enumerate(imported.parts) if part.network is not None}
        return Calibrated(parts, {"method": "given"}, recipe.per_channel)
    if data is None and imported.precision != Precision.FP16 and not imported.model.magnitudes:
        raise BuildError(
            f"{imported.model.file}: scales: must be given for {imported.precision}. Add calibration data "
            "(--calibrate; Python: calibration=), or use a model with scales."
        )
    try:
        return calibrate(imported, data, recipe, progress)
    except NotFiniteError as error:
        raise _NodesFail(_makers(imported, error.layers, error), error) from None
    except NoScaleError as error:
        value = imported.tensors.get(error.tensor, error.tensor)
        readers = {node.name for node in imported.model.proto.graph.node if value in reads(node)}
        is_input = value in imported.model.inputs
        raise _NodesFail(readers if is_input else _makers(imported, [error.tensor], error), error) from None


def _keep_scales_apart(
    imported: Imported, calibrated: Calibrated, host: bool, joins: dict[str, str], details: Document
) -> bool:
    """Add to ``joins`` the nodes that would give outputs of very different ranges one scale, and why each of them runs
    on the host; return whether there are any. What has to share its scale becomes a note."""
    notes = [f"Concat {name} runs on the host: it {why}" for name, why in joins.items() if why.startswith("joins")]
    before, calibrations = len(joins), [part.calibration for part in calibrated.parts.values()]
    joins |= wide_variances(imported, calibrations) if host else {}
    for shared in shared_scales(imported, calibrations):
        if host:
            joins |= {name: f"moves data of {shared.node} on the host" for name in shared.nodes if name not in joins}
        if host and shared.nodes:
            joins[shared.node] = shared.reason
        else:
            advice = (
                "; on the host (without --no-host; Python: host=True) each would keep its own scale"
                if shared.nodes
                else ""
            )
            notes.append(f"Concat {shared.node} {shared.reason}{advice}")
    details["notes"] += notes
    return len(joins) > before


def _mixed(
    imported: Imported,
    calibrated: Calibrated,
    data: Calibration | Samples | ScaleTable | None,
    options: Document,
    details: Document,
    max_drop: float,
) -> Calibrated:
    """Layers of int16 where int8 alone loses more than ``max_drop`` (docs/quantization.md)."""
    if Precision.INT16 not in imported.config.precisions:
        raise BuildError(f"precision auto: must have int16, got {imported.config.name}. Compile for nv_full, or int8.")
    if not isinstance(data, Samples):
        raise BuildError("precision auto: calibration data: must be samples. They are used for the measurement.")
    feeds = list(data.some(JUDGED_SAMPLES))
    outputs = [name for name in imported.model.outputs if name not in imported.model.constants]
    model = FloatModel(imported, outputs)
    exact = [{name: values[name] for name in outputs} for values in map(model.run, feeds)]
    # What is compared are numbers, which are the same on every level: none of them is searched for.
    options = options | {"level": min(options.get("level", 1), 1), "search": None}
    first = _build(imported, calibrated, options, dict(details))
    rows = [LayerAccuracy(**row) for row in first.report["accuracy"]]

    names = {row.tensor: row.layer.split("+") for row in rows}

    def whole(tensors: frozenset[str]) -> frozenset[str]:
        # with the other layers of an operation: a sum in int16 needs its operand in int16, too
        return tensors.union(*(names.get(tensor, ()) for tensor in tensors))

    def loss(tensors: frozenset[str]) -> float:
        trial = _build(imported, calibrated.in_int16(whole(tensors)), options, dict(details), measure=False)
        return drop(exact, [trial.run(feed) for feed in feeds])

    inputs = {layer.name for net in imported.networks for layer in net.layers if layer.kind == "input"}
    chosen = choose(rows, loss, max_drop, inputs)
    lost = {"drop": loss(chosen), "int8_drop": loss(frozenset()), "samples": len(feeds), "all_samples": len(data)}
    details["mixed"] = {"max_drop": max_drop, "int16": sorted(whole(chosen)), **lost}
    return calibrated.in_int16(whole(chosen))


def _build(
    imported: Imported, calibrated: Calibrated, options: Document, details: Document, measure: bool = True
) -> Compiled:
    rows = [replace(row, operations=list(row.operations)) for row in imported.nodes]
    by_name = {row.name: row for row in rows}
    measured_rows = list(details.get("accuracy", ()))
    parts = []
    search = options.get("search")
    if search is not None:
        options = options | {"search": search.divided(sum(part.network is not None for part in imported.parts))}
    images = int(options.get("images", 1))
    chain = PartChain(next(iter(calibrated.measured.values())).feeds if measure and calibrated.measured else ())
    last = max((number for number, part in enumerate(imported.parts) if part.network is not None), default=0)
    for number, part in enumerate(imported.parts):
        if part.network is None:
            parts.append(CompiledPart(HOST, part.nodes, part.inputs, part.outputs, model=part.model, images=images))
            if number < last:
                chain.run_host(parts[-1], f"{imported.model.file}: host part {number}", imported.model.worker)
            continue
        refined = calibrated.parts[number]
        chosen = imported.config, imported.precision, refined.calibration, calibrated.per_channel
        try:
            built = build(refined.network, *chosen, **options)
        except BuildError as error:
            raise _NodesFail({_culprit(rows, error.layer, error)}, error) from None
        notes = *coarser(imported, refined.network, built), *other_ends(imported, part)
        details["notes"] = [*details.get("notes", ()), *notes]
        bound = PackedPart("accelerator", part.nodes, part.inputs, part.outputs)
        bound.precision, bound.images = imported.precision, images
        parts.append(CompiledPart.of(bound, refined, built))
        chain.enter(parts[-1])
        measured = calibrated.measured[number].values(chain.inputs) if chain.inputs else ()
        ranges = calibrated.channels.get(number)
        runs, known = chain.run(parts[-1]), refined.calibration
        layers = accuracy(refined.network, built, measured, refined.factors, ranges, runs, known)
        rows_of_part = [asdict(row) for row in layers]
        measured_rows += rows_of_part
        details["notes"] = [*details["notes"], *weak_channels(part, layers)]
        multiplications = sum(by_name[name].macs for name in part.nodes)  # of all images
        own = {"accuracy": rows_of_part, "factors": factors(refined), "macs": multiplications}
        built.sidecar.update({**sidecar(imported, part, by_name, details), **own})
    if any(part.built for part in parts):
        details["accuracy"] = measured_rows
        details["notes"] = [*details["notes"], *chain.rounding_notes()]
    _name_groups(rows, parts)
    return Compiled(imported, parts, rows, details)


def _check_host_parts(compiled: Compiled) -> None:
    """Open every host part once, as a run does. Raises FormatError for one that onnxruntime refuses."""
    model = compiled.imported.model
    for number, part in enumerate(compiled.parts):
        if part.model is not None:
            try:
                HostPart(part.model, f"host part {number}", model.worker)
            except FormatError as error:
                raise FormatError(f"{model.file}: {error}") from None


def _culprit(rows: list[NodeRow], layer: str, error: BuildError) -> str:
    """Return the node that a layer of the builder computes; the error itself where no node matches."""
    names = layer.split("+")
    for row in rows:
        if any(name in row.operations or name.split("/")[0] in row.operations for name in names):
            return row.name
    raise error


def _makers(imported: Imported, layers: list[str], error: BuildError) -> set[str]:
    """The nodes that make tensors of a part: those of layers, or of inputs from the host."""
    makers = {value: str(node.name) for node in imported.model.proto.graph.node for value in node.output}
    values = {layer: imported.tensors.get(layer, layer) for layer in layers}
    return {makers.get(value) or _culprit(imported.nodes, layer, error) for layer, value in values.items()}


def _name_groups(rows: list[NodeRow], parts: list[CompiledPart]) -> None:
    """Layers that share an operation are shown by the name of the whole group."""
    groups: dict[str, str] = {}
    for part in parts:
        for task in part.built.sidecar["tasks"] if part.built else ():
            for operation in task["operations"]:
                groups.update((member, operation["layer"]) for member in operation["layer"].split("+"))
    for row in rows:
        row.operations = list(dict.fromkeys(groups[name] for name in row.operations if name in groups))


def _details(imported: Imported, preprocessing: Preprocessing | None) -> Document:
    return {
        "source": imported.model.source,
        "tools": {
            "nvdla": nvdla.__version__,
            **imported.model.tools,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "preprocessing": (preprocessing or Preprocessing()).document(),
        "calibration": None,
        "notes": [*imported.notes, *_of_ranges(imported)],
    }


def _of_ranges(imported: Imported) -> list[str]:
    """Notes on the loss of a quantized model's integers in this precision, and on ranges that it does not state."""
    model = imported.model
    notes = [
        f"tensor {name} is not quantized itself: its range is {model.magnitudes[name]:.4g}, the largest of its "
        "quantized copies; larger numbers are cut off. Give calibration data "
        "(--calibrate; Python: calibration=) for its own range"
        for name in sorted(model.assumed)
    ]
    if model.wide and imported.precision == Precision.INT8:
        missing = imported.config.refusal(Precision.INT16)
        wide = f"{len(model.wide)} tensors of 16 bits in the model ({model.wide[0]} ...) become int8"
        notes.append(
            f"{wide}; compile with --precision int16 (Python: precision='int16'){f' ({missing})' if missing else ''}"
        )
    return notes


__all__ = ["BuildError", "Compiled", "CompiledPart", "FormatError", "check", "compile", "quantize", "report"]
