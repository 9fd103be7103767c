"""The table of an exploration: one task a point of the design space.

A model (ONNX, Caffe) is compiled for every configuration, once a worker; a loadable stays what it is, on its own
configuration, and only the memory behind it varies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.document import cycles_document
from nvdla.analysis.explain import explanations
from nvdla.analysis.study import Study
from nvdla.argument_kinds import by_annotations
from nvdla.campaign.table import Record, Table, Task, takes_records
from nvdla.errors import BuildError, ConfigError, NvdlaError
from nvdla.evaluation.networks import content_hash
from nvdla.evaluation.sources import SampleSource
from nvdla.lint.linter import refusal
from nvdla.loadable import Loadable, load

MODELS = (".onnx", ".prototxt")


@dataclass(frozen=True)
class Point:
    """One point: a configuration (name or .yaml file; "auto" for a loadable), a precision, and the memory behind it.

    ``bandwidth`` in bytes a cycle (None: the bus's width), ``latency`` in cycles; ``shared``: by reads and writes.
    """

    config: str
    precision: str = "int8"
    bandwidth: float | None = None
    latency: int = 100
    shared: bool = False

    def __str__(self) -> str:
        speed = "full bus" if self.bandwidth is None else f"{self.bandwidth:g} B/cycle"
        return f"{self.config} {self.precision}, {speed}{' shared' if self.shared else ''}, latency {self.latency}"


@dataclass
class Exploration(Table):
    """``network``: a loadable, or a model that is compiled with ``calibration`` (what :func:`nvdla.compile` takes as a
    path) and ``weights``; ``source``: labelled data for accuracy, ``limit`` of them; ``clock``: MHz."""

    network: str
    points: list[Point]
    calibration: str | None = None
    weights: str | None = None
    source: SampleSource | None = None
    limit: int | None = None
    clock: float = 1000.0
    name = "explore"
    shard = 1
    _accuracies: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False)
    _refusals: dict[str, str | None] = field(default_factory=dict, repr=False)

    @classmethod
    def over(
        cls,
        network: str,
        configs: Sequence[str],
        precisions: Sequence[str] = ("int8",),
        bandwidths: Sequence[float | None] = (None,),
        latencies: Sequence[int] = (100,),
        shared: bool = False,
        **others: Any,
    ) -> Exploration:
        """Every combination."""
        points = [
            Point(config, precision, bandwidth, latency, shared)
            for config, precision, bandwidth, latency in itertools.product(configs, precisions, bandwidths, latencies)
        ]
        return cls(network, points, **others)

    @property
    def compiles(self) -> bool:
        """Whether the network is a model, which is compiled for each configuration."""
        return self.network.endswith(MODELS)

    def settings(self) -> dict[str, Any]:
        """What a run depends on, as plain data: runs of other settings do not resume it."""
        return {
            "network": content_hash(self.network),
            "points": [str(point) for point in self.points],
            "calibration": self.calibration,
            "weights": content_hash(self.weights) if self.weights else None,
            "data": None if self.source is None else self.source.settings(),
            "limit": self.limit,
            "clock": self.clock,
        }

    def tasks(self) -> Iterable[Task]:
        """One task a point."""
        return (Task(f"{number:06}", point) for number, point in enumerate(self.points))

    def open(self) -> Callable[[Sequence[Task]], list[Record]]:
        """A worker's function from tasks to records."""
        made: dict[tuple[str, str], Loadable] = {}

        def loadable(point: Point) -> Loadable:
            key = (point.config, point.precision)
            if key not in made:
                made[key] = self._loadable(point)
            return made[key]

        return lambda tasks: [self._record(task, loadable) for task in tasks]

    def _loadable(self, point: Point) -> Loadable:
        if not self.compiles:
            return load(self.network)
        import nvdla

        compiled = nvdla.compile(self.network, point.config, point.precision, self.calibration, weights=self.weights)
        if compiled.loadable is None:
            raise BuildError(f"{self.network}: nothing of it runs on {point.config}")
        return compiled.loadable

    def _record(self, task: Task, loadable: Callable[[Point], Loadable]) -> Record:
        point: Point = task.payload
        record: Record = {"key": task.key, **asdict(point)}
        try:
            network = loadable(point)
            memory = Memory(point.latency, point.bandwidth, point.shared)
            if not self.compiles:
                self._require_that_it_runs(network, point.config)
            study = Study.of(network, point.config, memory=memory)
            document = cycles_document(study, self.clock)
            record |= {
                "config": document["configuration"],
                "cycles": document["total_cycles"],
                "frames_per_second": document["runs_per_second"],
                "macs": document["macs"],
                "mac_use": document["mac_use"],
                "read_bytes": document["read_bytes"],
                "written_bytes": document["written_bytes"],
                "memory_bytes": sum(each.size for each in network.memories),
                "buffer_use": _buffer_use(study),
                "buffer_bytes": study.config.cbuf_banks * study.config.cbuf_bank_bytes,
                "mac_units": study.config.mac_atomic_c * study.config.mac_atomic_k,
                "bus_bytes": study.config.dram_width_bits // 8,
            }
            if self.source is not None:
                record["accuracy"] = self._accuracy(point, network)
        except NvdlaError as error:
            record["error"] = str(error)
        return record

    def _require_that_it_runs(self, network: Loadable, config: str) -> None:
        """Figures of a file on hardware that refuses it would be of nothing. Raises ConfigError."""
        if config not in self._refusals:
            self._refusals[config] = refusal(network, config)
        if self._refusals[config] is not None:
            raise ConfigError(f"the loadable cannot run on it: {self._refusals[config]}")

    def _accuracy(self, point: Point, network: Loadable) -> Any:
        """top-1 with its standard error; the memory behind does not change it, so once a configuration."""
        key = (point.config, point.precision)
        if key not in self._accuracies:
            self._accuracies[key] = _evaluated(network, point.config, self.source, self.limit)
        return self._accuracies[key]


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


def _evaluated(network: Loadable, config: str, source: SampleSource | None, limit: int | None) -> dict[str, Any]:
    import tempfile
    from pathlib import Path

    from nvdla.evaluation import Evaluation, summarise

    assert source is not None
    with tempfile.TemporaryDirectory(prefix="nvdla-") as folder:
        path = Path(folder) / "network.loadable"
        path.write_bytes(network.to_bytes())
        table = Evaluation(str(path), source, config, limit=limit)
        do, tasks = table.open(), list(table.tasks())
        records = [record for at in range(0, len(tasks), table.shard) for record in do(tasks[at : at + table.shard])]
    return summarise(records).top1.document()


@by_annotations
@takes_records
def pareto(records: Sequence[Record], cost: str, value: str) -> list[Record]:
    """The points that no other one beats: less ``cost`` and at least as much ``value``."""
    whole = [each for each in records if each.get(cost) is not None and each.get(value) is not None]
    best: list[Record] = []
    for each in sorted(whole, key=lambda record: (record[cost], -record[value])):
        if not best or each[value] > best[-1][value]:
            best.append(each)
    return best
