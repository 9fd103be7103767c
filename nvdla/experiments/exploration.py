"""Design space: one network over configurations and memories, as a table, a plot and a page.

A model (ONNX, Caffe) is compiled for every configuration, once a worker; a loadable or a package stays what it is, on
its own configuration, and only the external memory varies. A point says what its numbers leave out: nodes on the host,
a run that never ends, operations that the cycle model was not calibrated on.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import resources
from typing import TYPE_CHECKING, Any

from nvdla.analysis.cycles.constants import MEASURED, Memory, Software, bandwidth_text
from nvdla.analysis.cycles.document import cycles_document
from nvdla.analysis.explain import USES, accounting, explanations
from nvdla.analysis.instances import Splitting, splitting
from nvdla.analysis.silicon import (
    FITTED,
    OF_TIME,
    energy,
    facts,
    silicon,
    silicon_notes,
)
from nvdla.analysis.study import Study
from nvdla.checks.lint.linter import refusal
from nvdla.emulator.hardware.configuration import proof_lines
from nvdla.emulator.memory.placement import carve_out_bytes, place
from nvdla.errors import BuildError, ConfigError, FormatError, NvdlaError, counted
from nvdla.experiments.campaign.journal import Record, Table, Task, takes_records
from nvdla.experiments.evaluation.networks import configuration_settings, content_hash, layer_file_hash, model_hash
from nvdla.loadable import Loadable, load
from nvdla.program import Program
from nvdla.program.naming import names_for
from nvdla.program.program import check_built_in
from nvdla.tensors.datasets import SampleSource, data_hash
from nvdla.tensors.inputs import Preprocessing
from nvdla.util import html
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, json_text, xml_text
from nvdla.util.files import is_zip_file
from nvdla.util.recognition import wrong_kind

if TYPE_CHECKING:
    from nvdla.compiler.frontend.compiler import Compiled

__all__ = ["Exploration", "Point", "notes", "remarks"]

MODELS = (".onnx", ".tflite", ".prototxt")


@dataclass(frozen=True)
class Point:
    """One point: a configuration (name or .yaml file; "auto" for a loadable), a precision, and the external memory.

    ``bandwidth`` in bytes per cycle (None: the width of the bus), ``latency`` in cycles; ``shared`` by all accesses.
    ``instances`` of NVDLA with this memory divide the network by ``split`` (:data:`nvdla.analysis.instances.SPLITS`).
    """

    config: str
    precision: str = "int8"
    bandwidth: float | None = None
    latency: int = 100
    shared: bool = False
    instances: int = 1
    split: str = "batch"

    def __str__(self) -> str:
        return name_of(asdict(self))


@dataclass
class _Made:
    """A network for one configuration: the loadables of all accelerator parts, one after the other; ``host_nodes`` of
    the model run on the host, with ``host_share`` of the multiplications; ``compiled``: the model that they are of;
    ``deadlock``: why a run of them never ends; ``shapes`` of the model's inputs, if they are known."""

    loadables: list[Loadable]
    config: str
    host_nodes: int = 0
    host_share: float | None = 0.0
    compiled: Compiled | None = None
    deadlock: str | None = None
    shapes: Sequence[Sequence[int]] = ()

    @property
    def pictures(self) -> int:
        """Number of pictures of a run."""
        if self.compiled is not None:
            from nvdla.compiler.frontend.summary import pictures_of

            return pictures_of(self.compiled.imported, max(part.images for part in self.compiled.parts))
        batches = {shape[0] for shape in self.shapes if len(shape) == 4}
        if len(batches) == 1:
            return batches.pop()
        return max((net.tensor(entry.tensor_desc_id).n for net in self.loadables for entry in net.inputs), default=1)


@dataclass
class Exploration(Table):
    """``network``: a loadable, or a model that is compiled with ``calibration`` (what :func:`nvdla.compile` takes as a
    path) and ``weights``; ``source``: labelled data for accuracy, ``limit`` of them; ``clock``: MHz; ``coefficients``:
    a YAML file for energy (default: energy.yaml); ``preprocessing``: conversion of images to the model's inputs;
    ``software``: time that the firmware takes."""

    network: str
    points: list[Point]
    calibration: str | None = None
    weights: str | None = None
    source: SampleSource | None = None
    limit: int | None = None
    clock: float = 1000.0
    coefficients: str | None = None
    preprocessing: Preprocessing | None = None
    software: Software = field(default_factory=Software)
    name = "explore"
    shard = 1
    _accuracies: dict[tuple[str, str], Document] = field(default_factory=dict, repr=False)

    @classmethod
    def over(
        cls,
        network: str,
        configs: Sequence[str],
        precisions: Sequence[str] = ("int8",),
        bandwidths: Sequence[float | None] = (None,),
        latencies: Sequence[int] = (100,),
        shared: bool = False,
        instances: Sequence[tuple[int, str]] = ((1, "batch"),),
        **others: Any,
    ) -> Exploration:
        """Every combination; ``instances``: numbers of them, each with its split."""
        points = [
            Point(config, precision, bandwidth, latency, shared, count, split)
            for config, precision, bandwidth, latency, (count, split) in itertools.product(
                configs, precisions, bandwidths, latencies, instances
            )
        ]
        return cls(network, points, **others)

    @property
    def compiles(self) -> bool:
        """Check whether the network is a model, which is compiled for each configuration."""
        return self.network.endswith(MODELS)

    def settings(self) -> Document:
        """Return everything that affects the results, as plain data: runs with other settings do not resume it."""
        return {
            "network": model_hash(self.network) if self.compiles else content_hash(self.network),
            "layers": None if self.compiles else layer_file_hash(self.network),
            "points": [str(point) for point in self.points],
            "configurations": [
                configuration_settings(name) for name in sorted({point.config for point in self.points})
            ],
            "calibration": data_hash(self.calibration) if self.calibration else None,
            "weights": content_hash(self.weights) if self.weights else None,
            "data": None if self.source is None else self.source.settings(),
            "limit": self.limit,
            "clock": self.clock,
            "software": asdict(self.software),
            "preprocessing": self.preprocessing.document() if self.compiles and self.preprocessing else None,
            "coefficients": content_hash(self.coefficients, "energy coefficients") if self.coefficients else None,
        }

    def tasks(self) -> Iterable[Task]:
        """One task per point."""
        return (Task(f"{number:06}", point) for number, point in enumerate(self.points))

    def open(self) -> Callable[[Sequence[Task]], list[Record]]:
        """A worker's function from tasks to records."""
        networks: dict[tuple[str, str], _Made] = {}

        def network(point: Point) -> _Made:
            key = (point.config, point.precision)
            if key not in networks:
                networks[key] = self._made(point)
            return networks[key]

        return lambda tasks: [self._record(task, network) for task in tasks]

    def _made(self, point: Point) -> _Made:
        network = self._compiled(point) if self.compiles else self._loaded(point.config)
        for loadable in network.loadables:
            study = Study.of(loadable, network.config)
            stuck = [study.by_key[key].label for key in study.schedule.stuck]
            network.deadlock = str(study.deadlock or "") or (
                f"operations {', '.join(stuck[:8])} wait indefinitely" if stuck else None
            )
            if network.deadlock:
                break
        return network

    def _loaded(self, config: str) -> _Made:
        """The loadable, or the parts of a package. Raises ConfigError where the configuration refuses one: numbers
        would describe nothing."""
        if is_zip_file(self.network):
            network = _packed(self.network, config)
        else:
            loadable = load(self.network)
            images = max((loadable.tensor(entry.tensor_desc_id).n for entry in loadable.inputs), default=1)
            shapes = [value.shape for value in names_for(self.network).inputs.values()]
            shapes = [(images, *shape[1:]) if images > 1 else shape for shape in shapes]  # those of one image
            network = _Made([loadable], config, shapes=shapes)
        for loadable in network.loadables:
            reason = refusal(Program.of(loadable, network.config))
            if reason is not None:
                raise ConfigError(f"the loadable cannot run on it: {reason}")
        return network

    @cached_property
    def _precision(self) -> str:
        """The precisions of a loadable or package. Raises NvdlaError."""
        loadables, config = loadables_of(self.network)
        operations = [operation for loadable in loadables for operation in Program.of(loadable, config).operations]
        return ", ".join(sorted({str(unit.precisions[1]) for unit in operations if unit.precisions is not None}))

    def _compiled(self, point: Point) -> _Made:
        import nvdla

        compiled = nvdla.compile(
            self.network,
            point.config,
            point.precision,
            self.calibration,
            weights=self.weights,
            preprocessing=self.preprocessing,
        )
        loadables = [part.loadable for part in compiled.parts if part.loadable is not None]
        if not loadables:
            raise BuildError(f"{self.network}: no part of it runs on {point.config}")
        share = compiled.report["accelerator_macs_share"]
        host = compiled.report["host_nodes"]
        return _Made(loadables, point.config, host, None if share is None else 1 - share, compiled)

    def _record(self, task: Task, network: Callable[[Point], _Made]) -> Record:
        point = task.payload
        assert isinstance(point, Point)
        record: Record = {"key": task.key, **asdict(point)}
        try:
            if not self.compiles:
                record["precision"] = self._precision
            built = network(point)
            record |= _metrics(built, point, self.clock, self.coefficients, self.software)
            if self.source is not None and built.deadlock is None:
                record["accuracy"] = self._accuracy(point, built)
        except NvdlaError as error:
            record["error"] = str(error)
        return record

    def _accuracy(self, point: Point, built: _Made) -> Document:
        """top-1 with its interval; the external memory does not change it, so once per configuration."""
        assert self.source is not None
        key = (point.config, point.precision)
        if key not in self._accuracies:
            self._accuracies[key] = _evaluated(self.network, built, point.config, self.source, self.limit)
        return self._accuracies[key]


def loadables_of(network: str) -> tuple[list[Loadable], str]:
    """Return the loadables of a file, and the configuration that it is for. Raises NvdlaError."""
    wanted = "a model (.onnx, .tflite, .prototxt), a loadable or a package"
    if (other := wrong_kind(network, network, wanted, ("loadable", "package"))) is not None:
        raise FormatError(other)
    opened = _packed(network, "auto") if is_zip_file(network) else _Made([load(network)], "auto")
    return opened.loadables, opened.config


def _packed(path: str, config: str) -> _Made:
    from nvdla.compiler.frontend.package import unpack

    package = unpack(path)
    loadables = [part.loadable for part in package.parts if part.loadable is not None]
    if not loadables:
        raise FormatError(f"{path}: accelerator parts: must be at least 1, got 0")
    host = [part for part in package.parts if part.loadable is None]
    macs = sum(part.macs for part in package.parts)
    if config == "auto":
        check_built_in(config := package.manifest["config"], "package")
    share = sum(part.macs for part in host) / macs if macs else None
    shapes = list(package.manifest["inputs"].values())
    return _Made(loadables, config, sum(len(part.nodes) for part in host), share, shapes=shapes)


def _metrics(built: _Made, point: Point, clock: float, coefficients: str | None, software: Software) -> Record:
    """The numbers of all accelerator parts together. Frames per second are of a whole network that ends."""
    memory = Memory(point.latency, point.bandwidth, point.shared)
    studies = [Study.of(loadable, built.config, memory=memory, software=software) for loadable in built.loadables]
    documents = [cycles_document(study, clock) for study in studies]
    config = studies[0].config
    single = None if built.deadlock else sum(document["total_cycles"] for document in documents)
    several = splitting(studies, point.instances, point.split) if single and point.instances > 1 else None
    cycles, period = (round(several.latency), several.period) if several else (single, single)
    estimates = [estimate for study in studies for estimate in study.estimates.values()]
    full_use = sum(estimate.full_use_cycles for estimate in estimates)
    return {
        "config": config.name,
        "cycles": cycles,
        "frames_per_second": built.pictures * clock * 1e6 / period if period and not built.host_nodes else None,
        "splitting": _splitting_document(several, clock, built.pictures) if several else None,
        "macs": sum(document["macs"] for document in documents),
        "mac_use": full_use / (point.instances * period) if period else None,
        "read_bytes": sum(document["read_bytes"] for document in documents),
        "written_bytes": sum(document["written_bytes"] for document in documents),
        "memory_bytes": sum(
            entry.size if entry.contents else entry.size * point.instances  # weights are there once
            for network in built.loadables
            for entry in network.memories
        ),
        "carve_out_bytes": sum(_carve_out(network, point.instances) for network in built.loadables),
        "buffer_use": max((use for study in studies if (use := _buffer_use(study)) is not None), default=None),
        "buffer_bytes": config.cbuf_banks * config.cbuf_bank_bytes,
        "mac_units": config.mac_atomic_c * config.mac_atomic_k,
        "bus_bytes": config.dram_width_bits // 8,
        "silicon": silicon(config),
        "microjoules": _microjoules(studies, coefficients, point.instances * period / single)
        if period and single
        else None,
        "extrapolated": proof_lines(config, ("results",)),
        "accounting": _accounting(studies) if cycles else None,
        "host_nodes": built.host_nodes,
        "host_macs_percent": None if built.host_share is None else round(100 * built.host_share, 2),
        "deadlock": built.deadlock,
        "operations": len(estimates),
        "unproven_operations": sum(estimate.cycles is not None and not estimate.measured for estimate in estimates),
    }


def _carve_out(loadable: Loadable, instances: int) -> int:
    """Return the bytes to reserve for a loadable; weights are there once."""
    placed = place(loadable)
    own = sum(allocation.end - allocation.address for allocation in placed if not allocation.memory.contents)
    return carve_out_bytes(placed) + (instances - 1) * own


def _accounting(studies: list[Study]) -> dict[str, int]:
    """Return the cycles of all parts by use."""
    accountings = [accounting(study) or {} for study in studies]
    return {use: sum(cycles.get(use, 0) for cycles in accountings) for use in USES}


def _microjoules(studies: list[Study], coefficients: str | None, longer: float) -> float:
    """Return the energy of a run, for comparisons. ``longer``: the cycles of all instances per result, relative to
    those of one instance."""
    rows = [row for study in studies for row in energy(study, coefficients)]
    return sum((row["microjoules"] or 0.0) * (longer if row["event"] in OF_TIME else 1) for row in rows)


def _splitting_document(several: Splitting, clock: float, pictures: int) -> Document:
    """Describe a network on several instances as plain data; ``pictures`` of a run."""
    return {
        "estimate": True,
        "period_cycles": round(several.period),
        "most_frames_per_second": pictures * clock * 1e6 / several.least_period,
        "bound": several.bound,
        "stages": [
            {
                "first": stage.first,
                "last": stage.last,
                "cycles": round(stage.cycles),
                "cycles_alone": round(stage.alone),
            }
            for stage in several.stages
        ],
    }


@by_annotations
@takes_records
def notes(record: Record) -> dict[str, str]:
    """Return the limits of the numbers of a point as text, by the mark of each in tables: "estimate", "host",
    "deadlock", "unproven", "interface", "accuracy" or "extrapolated"."""
    notes_by_mark = {}
    if record.get("splitting"):
        notes_by_mark["estimate"] = (
            "several instances: an estimate with the contention on one memory; no run of them was measured"
        )
    if record["deadlock"]:
        notes_by_mark["deadlock"] = f"deadlock: {record['deadlock']}"
    if record["host_nodes"]:
        share = "" if record["host_macs_percent"] is None else f" ({record['host_macs_percent']:g}% of multiplications)"
        notes_by_mark["host"] = (
            f"on the host: {counted(record['host_nodes'], 'node')}{share}; cycles and traffic are those of the "
            "accelerator's part"
        )
    if record["unproven_operations"]:
        notes_by_mark["unproven"] = (
            f"{record['unproven_operations']} of {record['operations']} operations are estimates without proof: the "
            f"cycle model was calibrated on {' and '.join(MEASURED)} in int8"
        )
    if record["bandwidth"] is not None:
        accepted = Memory(bytes_per_cycle=record["bandwidth"]).rate(record["bus_bytes"])
        if accepted < record["bandwidth"]:
            notes_by_mark["interface"] = bandwidth_text(record["bandwidth"], accepted, record["config"])
    if problem := (record.get("accuracy") or {}).get("problem"):
        notes_by_mark["accuracy"] = problem
    if record.get("extrapolated"):
        notes_by_mark["extrapolated"] = "; ".join(record["extrapolated"])
    return notes_by_mark


@by_annotations
@takes_records
def remarks(records: Sequence[Record]) -> list[str]:
    """Return the notes of all points that are possible, each once, with configuration and precision; without what is
    extrapolated, which is a property of the configuration."""
    lines = [
        text if mark == "estimate" else f"{record['config']} {record['precision']}: {text}"
        for record in records
        if "error" not in record
        for mark, text in notes(record).items()
        if mark != "extrapolated"
    ]
    return list(dict.fromkeys(lines))


def _buffer_use(study: Study) -> float | None:
    """The largest share of the convolution buffer that data and weights of one convolution fill; None without any."""
    config = study.config
    shares = []
    for row in explanations(study):
        used, room = row["data_entries"]
        weights = min(row["weight_bytes"], row["weight_banks"] * config.cbuf_bank_bytes)
        filled = min(used, room) * config.cbuf_entry_bytes + weights
        shares.append(filled / (config.cbuf_banks * config.cbuf_bank_bytes))
    return max(shares, default=None)


def _evaluated(network: str, built: _Made, config: str, source: SampleSource, limit: int | None) -> Document:
    """The accuracy of the loadable, or of all of the compiled model, its host parts too."""
    import tempfile
    from pathlib import Path

    from nvdla.experiments.evaluation import Evaluation, summarize

    with tempfile.TemporaryDirectory(prefix="nvdla-") as folder:
        if built.compiled is not None:
            network = str(Path(folder) / "network.loadable")
            built.compiled.save(network)
        table = Evaluation(network, source, config, limit=limit)
        do, tasks = table.open(), list(table.tasks())
        records = [record for at in range(0, len(tasks), table.shard) for record in do(tasks[at : at + table.shard])]
    summary = summarize(records)
    reason = "their labels are not classes" if summary.squared_error.count else "the data have no labels"
    problem = summary.problem or (None if summary.top1.count else f"no accuracy: {reason}")
    return summary.top1.document() | ({"problem": problem} if problem else {})


def silicon_of_all(point: Record, key: str) -> float | None:
    """Return an area or a power (a key of FITTED) of all instances of a point; None: not known."""
    value = point["silicon"][key]
    return None if value is None else float(f"{value * point['instances']:.3g}")


def name_of(point: Document) -> str:
    """A point in words."""
    speed = "full bus" if point["bandwidth"] is None else f"{point['bandwidth']:g} B/cycle"
    shared = " shared" if point.get("shared") else ""
    several = f", {point['instances']} instances ({point['split']})" if point.get("instances", 1) > 1 else ""
    return f"{point['config']} {point['precision']}, {speed}{shared}, latency {point['latency']}{several}"


@dataclass(frozen=True)
class Metric:
    """An axis of the plot: name, unit, whether ``more`` of it is better, and its value of a point (None: unknown)."""

    name: str
    unit: str
    more: bool
    of: Callable[[Document], float | None]
    percent: bool = False


def _accuracy_of(point: Document) -> float | None:
    return (point.get("accuracy") or {}).get("value")


METRICS = {
    "frames": Metric("frames/s", "", True, lambda point: point["frames_per_second"]),
    "area16": Metric("area, 16 nm, estimated", "mm2", False, lambda point: silicon_of_all(point, "mm2_16nm")),
    "area28": Metric("area, 28 nm, estimated", "mm2", False, lambda point: silicon_of_all(point, "mm2_28nm")),
    "average": Metric("average power, estimated", "mW", False, lambda point: silicon_of_all(point, "mw_average")),
    "peak": Metric("peak power, estimated", "mW", False, lambda point: silicon_of_all(point, "mw_peak")),
    "energy": Metric("energy, for comparisons", "microjoules", False, lambda point: point["microjoules"]),
    "bandwidth": Metric(
        "offered bandwidth", "bytes/cycle", False, lambda point: point["bandwidth"] or point["bus_bytes"]
    ),
    "traffic": Metric("traffic", "bytes", False, lambda point: point["read_bytes"] + point["written_bytes"]),
    "accuracy": Metric("top-1 accuracy", "", True, _accuracy_of, percent=True),
    "multipliers": Metric("multipliers", "", False, lambda point: point["mac_units"] * point.get("instances", 1)),
    "memory": Metric("carve-out to reserve", "bytes", False, lambda point: point["carve_out_bytes"]),
    "cycles": Metric("run time", "cycles", False, lambda point: point["cycles"]),
}


def plot_document(points: Sequence[Document]) -> Document:
    """Return the data of the plot: metrics that a point has, and the value of each point (None: unknown).

    The horizontal axis is at first the most telling one in which points differ.
    """
    values = [{key: metric.of(point) for key, metric in METRICS.items()} for point in points]
    known = [key for key in METRICS if any(value[key] is not None for value in values)]
    differ = [key for key in known if key != "frames" and len({value[key] for value in values} - {None}) > 1]
    return {
        "x": differ[0] if differ else "energy",
        "y": "frames",
        "metrics": [
            {
                "key": key,
                "name": METRICS[key].name,
                "unit": METRICS[key].unit,
                "percent": METRICS[key].percent,
                "better": "more" if METRICS[key].more else "less",
            }
            for key in known
        ],
        "points": [
            {
                "label": label(point),
                "config": point["config"],
                "network": point.get("network", ""),
                "note": ", ".join(notes(point)),
                "values": value,
            }
            for point, value in zip(points, values, strict=True)
        ],
    }


def label(point: Document) -> str:
    """Return a point in words, with its network where it has one."""
    return f"{point['network']}: {name_of(point)}" if "network" in point else name_of(point)


def points_csv(points: Sequence[Document]) -> str:
    """Return points as CSV: what they are, and every metric of the plot."""
    columns = ("network", "config", "precision", "bandwidth", "latency", "instances", "split", "note")
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*columns, *(f"{metric.name} {metric.unit}".strip() for metric in METRICS.values())])
    for point in points:
        values = point | {"note": ", ".join(notes(point))}
        writer.writerow([*(values.get(key) for key in columns), *(metric.of(point) for metric in METRICS.values())])
    return stream.getvalue()


def plot_section(points: Sequence[Document], table: str) -> str:
    """Return the plot of points (:func:`plot_document`) with their ``table`` (HTML), whose rows it marks; the table
    alone if fewer than two points have frames per second."""
    rows = f'<div id="points">{table}</div>' if table else ""
    if sum(point["frames_per_second"] is not None for point in points) < 2:
        return rows
    data = f'<div id="plot-data" hidden>{xml_text(json_text(plot_document(points)))}</div>'
    return f'<div id="plot"><noscript>The plot needs JavaScript.</noscript></div>{data}{rows}'


def page_of(title: str, plot: str, *sections: str) -> str:
    """Return a page of ``sections``, among them the ``plot``."""
    drawn = 'id="plot-data"' in plot
    style, script = (_packaged("plot.css"), _packaged("plot.js")) if drawn else ("", "")
    return html.page(title, *sections, style=style, script=script)


def _packaged(name: str) -> str:
    return resources.files("nvdla.experiments").joinpath(name).read_text(encoding="utf-8")


HEAD = (
    "point",
    "cycles",
    "frames/s",
    "note",
    "MAC use",
    "buffer use",
    "traffic in bytes",
    "carve-out to reserve in bytes",
    "microjoules",
    "top-1",
)


def page(document: Document, title: str, table: str = "", conditions: str = "") -> str:
    """Return the results as a self-contained HTML page; ``table``: the points as CSV; ``conditions``: clock and
    firmware."""
    points = [point for point in document["points"] if "error" not in point]
    failures = (_failure(point) for point in document["points"] if "error" in point)
    plot = plot_section(points, html.table(HEAD, map(cells_of, points)))
    lines = [*extrapolated(points), *remarks(points), *cycle_notes()]
    return page_of(
        title,
        plot,
        html.paragraph(f"{conditions}.") if conditions and points else "",
        plot,
        html.download("points.csv", table, "The points as CSV") if table else "",
        html.section("Notes", html.items(lines if points else [])),
        html.section("Impossible", html.items(failures)),
        silicon_section([point["silicon"] for point in points if point.get("silicon")]),
    )


def extrapolated(points: Sequence[Document]) -> list[str]:
    """Return the extrapolated features of the configurations of points, each line once."""
    return list(dict.fromkeys(line for point in points for line in point.get("extrapolated") or ()))


def silicon_section(estimates: Sequence[Document]) -> str:
    """Return area and power of configurations with NVIDIA's table and the errors of the fit."""
    rows = {estimate["configuration"]: estimate for estimate in estimates}.values()
    if not rows:
        return ""
    source = facts()["table"]["rows"]
    values = [
        [estimate["configuration"], *(_or_dash(estimate[key]) for key in FITTED), estimate["basis"] or "-"]
        for estimate in rows
    ]
    refused = [
        f"{estimate['configuration']}: no estimate: {estimate['refused']}" for estimate in rows if estimate["refused"]
    ]
    return html.section(
        "Area and power",
        html.table(("configuration", *FITTED.values(), "basis"), values)
        + html.items([*refused, *silicon_notes()])
        + html.paragraph("NVIDIA's table: ResNet-50, 1 GHz, int8; power in 16 nm")
        + html.table(words(source[0]), [list(row.values()) for row in source]),
    )


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _failure(point: Document) -> str:
    return f"{point['config']} {point['precision']}: {point['error']}"


def cells_of(point: Document) -> tuple[str, ...]:
    """Return the row of a point in a table with the columns of HEAD."""
    cycles = "-" if point["cycles"] is None else f"{point['cycles']:,}"
    frames = "-" if point["frames_per_second"] is None else f"{point['frames_per_second']:,.1f}"
    use = "-" if point["mac_use"] is None else f"{point['mac_use']:.1%}"
    filled = "-" if point["buffer_use"] is None else f"{point['buffer_use']:.1%}"
    accuracy = point.get("accuracy")
    right = "-" if not accuracy or accuracy["value"] is None else f"{accuracy['value']:.2%}"
    traffic = point["read_bytes"] + point["written_bytes"]
    joules = "-" if point["microjoules"] is None else f"{point['microjoules']:,.4g}"
    sizes = (f"{traffic:,}", f"{point['carve_out_bytes']:,}")
    return name_of(point), cycles, frames, ", ".join(notes(point)), use, filled, *sizes, joules, right


def cycle_notes() -> list[str]:
    """Return where cycles and energy come from."""
    return [
        f"cycles: model calibrated on NVIDIA's RTL of {' and '.join(MEASURED)} in int8; all else is extrapolated",
        "energy: default coefficients of 'nvdla cycles --energy', derived from NVIDIA's table of average power",
    ]


def words(names: Iterable[str]) -> list[str]:
    """Return names with spaces instead of underscores."""
    return [name.replace("_", " ") for name in names]
