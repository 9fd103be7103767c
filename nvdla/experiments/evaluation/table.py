"""Tables of evaluations: networks, samples and their records, and the page of the results."""

from __future__ import annotations

import hashlib
import importlib.util
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nvdla.checks.compare.float_models import OTHER_MODEL, feeds_for
from nvdla.compiler.frontend.isolation import ONNXRUNTIME, run_session, worker_of
from nvdla.compiler.frontend.opening import open_file, runner_of
from nvdla.errors import FormatError, NvdlaError
from nvdla.experiments.campaign import Record, Table, Task, worker
from nvdla.experiments.evaluation import decoders
from nvdla.experiments.evaluation.metrics import class_texts, percent
from nvdla.experiments.evaluation.networks import (
    EvaluatedNetwork,
    LoadableNetwork,
    check_batch,
    model_hash,
    network_settings,
    open_network,
)
from nvdla.tensors.datasets import Sample, SampleSource, code_hash, python_function
from nvdla.tensors.images import PixelConversion
from nvdla.tensors.inputs import planes_first
from nvdla.util import html
from nvdla.util.escaping import Document, Json, xml_text
from nvdla.util.recognition import kind_of

MEASURES = ("map", "miou")  # metrics of the whole data set, of decoded outputs
TOP = 5
KEY_DIGITS = 9


@dataclass
class Evaluation(Table):
    """``network``: path of a loadable or package; ``metric``: ``module:function`` of (outputs, label) -> number,
    "map" or "miou"; ``decoder``: ``module:function`` of (all outputs, input shape), whose result the metric takes;
    ``against``: an ONNX or TFLite model for agreement; ``limit`` and ``shuffle`` choose samples; ``strict``: refuse
    accesses that leave their region of memory; ``trusted``: models run in the process that evaluates, without limits;
    ``stop_on_error``: a sample that cannot be read ends the run; ``judge``: the output that labels are of."""

    network: str
    source: SampleSource
    config: str = "auto"
    pixels: PixelConversion = field(default_factory=PixelConversion)
    input_scale: float | None = None
    metric: str | None = None
    against: str | None = None
    predict_only: bool = False
    limit: int | None = None
    shuffle: int | None = None
    strict: bool = False
    trusted: bool = False
    stop_on_error: bool = False
    decoder: str | None = None
    judge: str | None = None
    _network: EvaluatedNetwork | None = field(default=None, init=False, repr=False, compare=False)
    _reference: str | None = field(default=None, init=False, repr=False, compare=False)
    name = "evaluate"

    def __post_init__(self) -> None:
        """Check the metric and the decoder. Raises FormatError."""
        if self.decoder and not self.metric:
            raise FormatError(f"--decoder {self.decoder}: --metric: must be map, miou or MODULE:FUNCTION, got none")
        if self.metric == "map" and not self.decoder:
            names = "yolo, yolo_rows, ssd and dbnet"
            raise FormatError(
                f"--metric map: --decoder: must be MODULE:FUNCTION, got none. {decoders.__name__} has {names}."
            )

    def settings(self) -> Document:
        """Return everything that affects the results, as plain data: runs with other settings do not resume it."""
        return {
            **network_settings(self.network, self.config, self.pixels, self.input_scale),
            **self.source.settings(),
            "metric": self.metric,
            "metric_code": None if self.metric in (None, *MEASURES) else code_hash(python_function(self.metric)),
            **({"decoder": self.decoder, "decoder_code": code_hash(self.decode)} if self.decode else {}),
            "against": model_hash(self.against) if self.against else None,
            # Its results are others than those of onnxruntime, with which earlier journals of a TFLite file were made.
            **({} if self.reference in (None, ONNXRUNTIME) else {"reference": self.reference}),
            "predict_only": self.predict_only,
            **({"judge": self.judge} if self.judge else {}),
            "limit": self.limit,
            "shuffle": self.shuffle,
        }

    @property
    def reference(self) -> str | None:
        """The runner of the model of ``against``, None without one. Raises FormatError."""
        if self.against and self._reference is None:
            self._reference = runner_of(self.against, self.trusted)
        return self._reference

    @property
    def decode(self) -> Callable[..., object] | None:
        """The decoder, None without one. Raises FormatError."""
        return python_function(self.decoder) if self.decoder else decoders.argmax if self.metric == "miou" else None

    def tasks(self) -> Iterable[Task]:
        """One task per sample."""
        for position, payload in self.source.payloads(self._positions()):
            yield Task(f"{position:0{KEY_DIGITS}}", payload)

    def _positions(self) -> Iterable[int]:
        count = len(self.source)
        if self.shuffle is None:
            return self.source.first(self.limit or count)
        return sorted(random.Random(self.shuffle).sample(range(count), min(count, self.limit or count)))

    def prepare(self) -> None:
        """A loadable with its kernels, for workers that are copies of this process.

        Each worker opens a package itself: the process of a host part belongs to the process that opened it.
        """
        network = self._opened()
        if isinstance(network, LoadableNetwork):
            network.warm()
            self._network = network

    def open(self) -> Callable[[Sequence[Task]], list[Record]]:
        """A worker's function from tasks to records; it opens the network once."""
        return _Worker(self, self._network or self._opened()).records

    def _opened(self) -> EvaluatedNetwork:
        threads, scale = worker.threads, self.input_scale
        options = self.pixels, scale, self.strict, self.trusted, self.judge
        network = open_network(self.network, self.config, threads, *options)
        if network.crop and self.metric in MEASURES and not self.predict_only:
            reason = "boxes and masks are those of whole pictures"
            raise FormatError(f"--metric {self.metric}: --crop: must be 0 ({reason}), got {network.crop}")
        return network

    def __getstate__(self) -> dict[str, Json]:
        """Workers that are not copies open the network themselves."""
        return {**self.__dict__, "_network": None}


class _Worker:
    """An evaluation in a worker: the network is loaded once."""

    def __init__(self, table: Evaluation, network: EvaluatedNetwork) -> None:
        self._table = table
        self._network = network
        self._metric = None if table.metric in (None, *MEASURES) else python_function(table.metric)
        self._decode = table.decode
        self._float = _float_model(table.against, table.trusted, table.reference) if table.against else None

    def records(self, tasks: Sequence[Task]) -> list[Record]:
        records: list[Record] = [{"key": task.key} for task in tasks]
        sound = [sample for sample in map(self._sample, tasks, records) if sample is not None]
        ready = [
            (*sample, value) for sample, value in zip(sound, self._prepared(sound), strict=True) if value is not None
        ]
        if ready:
            for record, _, prepared in ready:
                record["hash"] = hashlib.sha256(np.ascontiguousarray(prepared).data).hexdigest()[:16]
            if self._decode is not None:
                outputs = self._network.outputs_of([prepared for *_, prepared in ready])
                for row, values in zip(ready, outputs, strict=True):
                    self._judge_decoded(*row, values)
                return records
            results = self._network.run([prepared for *_, prepared in ready])
            for (record, given, prepared), result, top in zip(ready, results, _best(results), strict=True):
                sample = _with_class(given, result.size)
                if self._has_class(record, sample, result.size):
                    record["top"] = top
                    self._judge(record, sample, prepared, result)
        return records

    def _sample(self, task: Task, record: Record) -> tuple[Record, Sample] | None:
        """The sample of a task, with a label that can be judged; None where its record says what is wrong."""
        try:
            sample = task.payload
            if not isinstance(sample, Sample):
                sample = self._table.source.sample(int(task.key))
            record["id"] = sample.id
            self._check_label(sample)
        except NvdlaError as error:
            record.setdefault("id", self._table.source.name_of(int(task.key)))
            self._note(record, error)
            return None
        return record, sample

    def _prepared(self, given: Sequence[tuple[Record, Sample]]) -> list[np.ndarray | None]:
        """Samples as the network takes them, together unless one of them is damaged; None for those."""
        try:
            return list(self._network.prepare_many([sample.value for _, sample in given])) if given else []
        except NvdlaError:
            return [self._prepared_alone(*sample) for sample in given]

    def _prepared_alone(self, record: Record, sample: Sample) -> np.ndarray | None:
        try:
            return self._network.prepare(sample.value)
        except NvdlaError as error:
            self._note(record, error)
            return None

    def _note(self, record: Record, error: NvdlaError) -> None:
        if self._table.stop_on_error:
            raise error
        record["error"] = str(error)

    def _check_label(self, sample: Sample) -> None:
        if self._table.predict_only:
            return
        if sample.label is None:
            raise FormatError(f"sample {sample.id} has no label. Use --predict-only for data without labels.")
        if isinstance(sample.label, int) and not self._decode:
            self._check_class(sample.id, sample.label, self._network.outputs)

    def _has_class(self, record: Record, sample: Sample, count: int) -> bool:
        """Check the class of a sample against the size of its result, which packages do not know before a run."""
        try:
            if isinstance(sample.label, int) and not self._table.predict_only:
                self._check_class(sample.id, sample.label, count)
        except NvdlaError as error:
            self._note(record, error)
            return False
        return True

    def _check_class(self, name: str, label: int, count: int) -> None:
        """Check a class against ``count`` numbers of the result, 0 before they are known. Raises FormatError."""
        outputs, judged = self._network.output_names, self._network.judged
        first, others = outputs[judged], [name for name in outputs if name != outputs[judged]]
        rest = f" --judge NAME chooses another output ({', '.join(others)})." if others else ""
        if count == 1 and self._metric is None:
            raise FormatError(
                f"sample {name}: label {label}: must not be a class, because output {first} has one number. Give real "
                f"numbers ({float(label)}) as labels, or use nvdla evaluate with a --metric.{rest}"
            )
        if count > 1 and not 0 <= label < count:
            numbers = f"output {first} has {count} numbers"
            raise FormatError(f"sample {name} has the label {label}; {numbers}{rest.replace(' --', '. --', 1)}")

    def _judge_decoded(self, record: Record, sample: Sample, prepared: np.ndarray, outputs: decoders.Outputs) -> None:
        record |= self._decoded(sample, outputs)
        if self._float is not None:
            record["float"] = self._decoded(sample, self._float(self._network.real(prepared, sample.value)))
        if self._table.metric == "map" and not self._table.predict_only:
            record["truth"] = decoders.truth_document(sample.label, sample.id)

    def _decoded(self, sample: Sample, outputs: decoders.Outputs) -> Record:
        """Return what the metric needs of a network's outputs. Raises FormatError for all that user code raises."""
        assert self._decode is not None
        try:
            decoded = self._decode(outputs, self._network.cube_shape)
        except Exception as error:  # user code
            raise FormatError(
                f"{self._table.decoder} of sample {sample.id}: {type(error).__name__}: {error}"
            ) from error
        if self._metric is not None:
            return {"metric": self._measured(self._metric, sample, decoded)}
        if self._table.metric == "map":
            return {"boxes": decoders.boxes_document(decoded, self._network.cube_shape)}
        return {} if self._table.predict_only else {"cells": decoders.cells_document(decoded, sample.label, sample.id)}

    def _judge(self, record: Record, sample: Sample, prepared: np.ndarray, result: np.ndarray) -> None:
        if not self._table.predict_only:
            label = sample.label
            record["label"] = label.ravel().tolist() if isinstance(label, np.ndarray) else label
            is_judged = self._metric is not None and np.size(sample.label) != result.size  # by the metric alone
            if isinstance(record["label"], list) and not is_judged:
                record["squared_error"] = self._squared_error(sample, result)
        if self._metric is not None:
            record["metric"] = self._measured(self._metric, sample, self._network.real_result(result))
        if self._float is not None:
            record["float"] = self._compare(sample, prepared, result)

    def _measured(self, metric: Callable[[Any, object], float], sample: Sample, result: object) -> float:
        """The user's own metric. Raises FormatError for anything that it raises, and for what is not a number."""
        try:
            value = float(metric(result, sample.label))
        except Exception as error:  # user code
            raise FormatError(f"{self._table.metric} of sample {sample.id}: {type(error).__name__}: {error}") from error
        if not np.isfinite(value):
            raise FormatError(f"{self._table.metric} of sample {sample.id} is {value}: must be a finite number")
        return value

    def _squared_error(self, sample: Sample, result: np.ndarray) -> float:
        wanted = np.ravel(np.asarray(sample.label, np.float64))
        if wanted.size != result.size:
            raise FormatError(
                f"sample {sample.id} has {wanted.size} numbers as label, the network returns {result.size}"
            )
        real = self._network.real_result(result)
        return float(np.mean((real - wanted) ** 2))

    def _compare(self, sample: Sample, prepared: np.ndarray, result: np.ndarray) -> dict[str, Json]:
        """The float model's class, and the energies of its result and of the difference."""
        assert self._float is not None
        outputs = self._float(self._network.real(prepared, sample.value))
        judged = self._network.output_names[self._network.judged]
        name, first = next(
            ((name, value) for name, value in outputs.items() if name == judged), next(iter(outputs.items()))
        )
        wanted = np.ravel(first).astype(np.float64)
        if wanted.size != result.size:
            raise FormatError(
                f"{self._table.against}: output {name}: must have {result.size:,} numbers as in the network, "
                f"got {wanted.size:,}. {OTHER_MODEL}"
            )
        real = self._network.real_result(result)
        is_map = sum(count > 1 for count in np.shape(first)) > 1  # its greatest element is not a class
        return {
            "top": None if is_map else int(np.argmax(wanted)),
            "signal": float((wanted**2).sum()),
            "noise": float(((wanted - real) ** 2).sum()),
        }


def _with_class(sample: Sample, count: int) -> Sample:
    """A sample whose class is a number with a decimal point, as tables of pandas have it, with the number."""
    label = sample.label
    if count > 1 and isinstance(label, list) and len(label) == 1 and isinstance(label[0], float):
        return replace(sample, label=int(label[0])) if label[0].is_integer() else sample
    return sample


def _best(results: np.ndarray) -> list[list[list[object]]]:
    """The five greatest of each row of results as [place, value]; the first of equal ones first, NaN last."""
    values = np.nan_to_num(results.astype(np.float64), nan=-np.inf)
    places = np.argsort(-values, axis=1, kind="stable")[:, :TOP]
    largest = np.take_along_axis(results, places, axis=1)
    if not np.isfinite(largest).all():
        largest = np.array([[_plain(value) for value in row] for row in largest.tolist()], object)
    return [list(map(list, zip(*pair, strict=True))) for pair in zip(places.tolist(), largest.tolist(), strict=True)]


def _plain(number: float) -> float | str:
    """JSON has no infinity and no NaN."""
    return number if np.isfinite(number) else str(number)


def _float_model(
    path: str, trusted: bool, reference: str | None = None
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """An ONNX or TFLite model with one input; gives its outputs as :meth:`EvaluatedNetwork.outputs_of`. ``reference``:
    what runs it on the machine that started the evaluation."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise FormatError("--against needs onnxruntime: pip install 'nvdla[onnx]'")
    model = open_file(path, worker_of(trusted), threads=worker.threads)
    if reference not in (None, model.runs_in):  # on another machine of a cluster
        wanted = f"must be {reference} as on the machine that started the evaluation"
        raise FormatError(f"{path}: reference: {wanted}, got {model.runs_in}. Install the same packages on both.")

    stated = model.session.get_inputs()[0].shape

    def run(sample: np.ndarray) -> dict[str, np.ndarray]:
        fits = isinstance(stated, list) and len(stated) == sample.ndim and sample.shape[:1] == (1,)
        batch = stated[0] if fits and isinstance(stated[0], int) else 1
        images = np.repeat(sample.astype(np.float32), max(batch, 1), axis=0)
        feeds = feeds_for(model.session, {"input": images}, path, model.units)
        results = run_session(model.session, path, model.outputs, feeds)
        reals = {name: model.real(name, result) for name, result in zip(model.outputs, results, strict=True)}
        if batch > 1:  # of the same image
            check_batch(path, batch, {name: real.shape for name, real in reals.items()})
            reals = {name: real[:1] for name, real in reals.items()}
        return planes_first(reals, kind_of(path) == "tflite")

    return run


DECODED = (
    ("detection.map", "mAP (IoU 0.50 to 0.95)", ".4f"),
    ("detection.map50", "mAP (IoU 0.50)", ".4f"),
    ("detection.map75", "mAP (IoU 0.75)", ".4f"),
    ("segmentation.miou", "mean IoU", ".4f"),
    ("segmentation.pixel_accuracy", "pixel accuracy", ".2%"),
)
CELL = 28
LARGEST = 60  # classes in the picture; the matrix of more is in the JSON alone


def page(document: Document, title: str) -> str:
    """Return the results as a self-contained HTML page."""
    summary = document["summary"]
    problems = (f"{problem['id']}: {problem['error']}" for problem in summary.get("problems", ()))
    return html.page(
        title,
        html.table((), figures(summary)),
        _confusion(summary),
        _classes(summary),
        html.section("Damaged samples", html.items(problems)),
    )


def number(figure: Document) -> str:
    """A mean with its standard error; without one where all values are the same: that is not a certainty."""
    if figure["value"] is None:
        return "-"
    error = f" ± {figure['standard_error']:.3g}" if figure["standard_error"] else ""
    return f"{figure['value']:.6g}{error}"


def figures(summary: Document) -> list[tuple[str, str]]:
    """(what, figure) rows of a summary, for the page and for the terminal."""
    rows = [("samples", f"{summary['samples']:,}")]
    if summary["damaged"]:
        rows.append(("damaged samples", f"{summary['damaged']:,}"))
    for name, text, form in (
        ("top1", "top-1 accuracy", percent),
        ("top5", "top-5 accuracy", percent),
        ("squared_error", "mean squared error", number),
        ("metric", "metric", number),
    ):
        if name in summary:
            rows.append((text, form(summary[name])))
    for name, text, places in DECODED:
        for of, measured in (("", summary), (", reference model", summary.get("float", {}))):
            key, _, value = name.partition(".")
            if value in measured.get(key, {}):
                share = measured[key][value]
                rows.append((text + of, "-" if share is None else f"{share:{places}}"))
    if "reference" in summary.get("float", {}):
        rows.append(("reference", summary["float"]["reference"]))
    if "top1" in summary.get("float", {}):
        rows.append(("top-1 accuracy, reference model", percent(summary["float"]["top1"])))
    if "agreement" in summary.get("float", {}):
        if summary["float"]["agreement"]["value"] is not None:
            rows.append(("same top-1 as the reference model", percent(summary["float"]["agreement"])))
        if summary["float"]["snr_db"] is not None:
            rows.append(("SNR against the reference model", f"{summary['float']['snr_db']:.1f} dB"))
    return rows


def _confusion(summary: Document) -> str:
    """The matrix as a picture: rows are labels, columns the predictions; a cell is its share of the row."""
    classes = summary.get("classes", [])
    if not classes or len(classes) > LARGEST:
        return ""
    names = class_texts(classes)
    place = {row["class"]: number for number, row in enumerate(classes)}
    totals = {row["class"]: row["samples"] for row in classes}
    margin = 12 + 7 * max(map(len, names))
    size = margin + CELL * len(classes) + 10
    cells = []
    for row in summary["confusion"]:
        x, y = margin + CELL * place[row["found"]], margin + CELL * place[row["label"]]
        part = row["count"] / totals[row["label"]]
        color = "#2a9d5c" if row["label"] == row["found"] else "#d1495b"
        title = f"label {names[place[row['label']]]}, found {names[place[row['found']]]}: {row['count']}"
        cells.append(
            f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{color}" '
            f'fill-opacity="{0.25 + 0.75 * part:.3f}"><title>{xml_text(title)}</title></rect>'
            f'<text x="{x + CELL / 2}" y="{y + CELL / 2 + 4}" text-anchor="middle">{row["count"]}</text>'
        )
    for number_, name in enumerate(names):
        at = margin + CELL * number_ + CELL / 2
        cells.append(f'<text x="{margin - 6}" y="{at + 4}" text-anchor="end">{xml_text(name)}</text>')
        cells.append(f'<text transform="translate({at + 4},{margin - 6}) rotate(-90)">{xml_text(name)}</text>')
    matrix = html.drawing(size, size, "".join(cells), "confusion matrix")
    return html.section("Confusion", matrix, "Rows: labels. Columns: predictions. Shade: share of the row.")


def _classes(summary: Document) -> str:
    entries, areas = summary.get("classes", []), summary.get("segmentation", {}).get("classes", [])
    rows = (
        (name, entry["samples"], percent(entry["precision"]), percent(entry["recall"]))
        for name, entry in zip(class_texts(entries), entries, strict=True)
    )
    pixels = (
        (name, f"{entry['pixels']:,}", f"{entry['iou']:.4f}")
        for name, entry in zip(class_texts(areas), areas, strict=True)
    )
    return html.section("Classes", html.table(("class", "samples", "precision", "recall"), rows)) + html.section(
        "Pixels", html.table(("class", "pixels", "IoU"), pixels)
    )
