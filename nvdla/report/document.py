"""Document of the report: everything that the page shows, as plain data.

The elements go as they are, little-endian, into one block of bytes for all tensors; the page makes pictures and real
numbers of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nvdla.analysis.cycles.document import caveats, chain_cycles, cycles_document, group_names, short_names
from nvdla.analysis.explain import USES, accounting, explanations, sentences, use_tracks
from nvdla.analysis.layer_forms import with_advice
from nvdla.analysis.memory import MemoryMap
from nvdla.analysis.study import Study
from nvdla.analysis.views import TABLES, describe_tensor, operation_counts, subgraphs
from nvdla.checks.compare.comparison import Observation
from nvdla.checks.doctor.doctor import DoctorReport, FirstRun, examine
from nvdla.checks.lint.linter import Order
from nvdla.emulator.execution.dry_run import failure
from nvdla.emulator.firmware.operation import CsbLog
from nvdla.emulator.firmware.scheduler import FirmwareTask, Scheduler
from nvdla.emulator.hardware.configuration import proof_lines
from nvdla.emulator.hardware.machine import Rehearsal
from nvdla.emulator.hardware.register_file import register_map
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.errors import NvdlaError, counted
from nvdla.loadable.descriptors.fields import FieldView, fields
from nvdla.loadable.descriptors.task import EmuOperation
from nvdla.loadable.enums import Interface
from nvdla.program.naming import Names
from nvdla.program.operation import Key, Operation
from nvdla.program.parameters import LoadableParameters, Slot
from nvdla.program.program import Program
from nvdla.runtime import Runtime
from nvdla.tensors.real import Rank, Units, by_image, tops
from nvdla.util.escaping import Document
from nvdla.util.files import in_package
from nvdla.util.rounding import ceil_div

MAX_CHANNELS = 16
#: bytes of elements in a page, over all tensors, before they are compressed
ROOM = 880 << 10
#: bytes of a single tensor
MOST = 64 << 10
BINS = 48
NO_LIMITS = np.zeros((2, 1), bool)

Row = Document


class Pictures:
    """Collection of numbered tensors; :meth:`close` fits them into ``size`` bytes."""

    def __init__(self, size: int = ROOM) -> None:
        self.rows: list[Row] = []
        self.arrays: list[np.ndarray] = []  #: the whole tensors, (C, H, W)
        self._size = size

    def add(self, tensor: np.ndarray, units: Units | None = None, what: str = "", kept: np.ndarray = NO_LIMITS) -> int:
        """Add a tensor (1, C, H, W) with what its elements stand for, where that is known; returns its number. With
        units per channel (``factors`` in its row) range, mean and histogram are those of real numbers."""
        if units is not None and units.unsigned and tensor.itemsize == 1:
            tensor, units = tensor.view(np.uint8), replace(units, unsigned=False)
        zero = units.zero if units is not None and tensor.dtype.kind in "iu" else 0
        row: Row = {"what": what, "scale": None if units is None else units.scale, "zero": np.asarray(zero).tolist()}
        row |= figures(tensor, 0 if np.ndim(zero) else int(zero), kept)
        if units is not None and (units.factors is not None or np.ndim(zero)):
            ones = np.ones(tensor.shape[1])
            row["factors"] = (ones if units.factors is None else units.factors).tolist()
            row |= spread(units.real(tensor).astype(np.float32))
        self.rows.append(row)
        self.arrays.append(tensor[0])
        return len(self.rows) - 1

    def close(self) -> bytes:
        """The block of elements; the rows get ``offset``, ``shown`` (channels, height, width) and ``stride``."""
        share = min(max(self._size // max(len(self.arrays), 1), 64), MOST)
        parts, offset = [], 0
        for row, array in zip(self.rows, self.arrays, strict=True):
            shown, stride = thinned(array, share)
            data = shown.astype(shown.dtype.newbyteorder("<"), copy=False).tobytes()
            row |= {"offset": offset, "shown": list(shown.shape), "stride": stride}
            parts.append(data)
            offset += len(data)
        return b"".join(parts)


def thinned(cube: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Return the first channels, every ``stride``-th line and column of (C, H, W) in ``size`` bytes, and the stride."""
    channels, height, width = cube.shape
    limit = max(size // cube.itemsize, 1)
    if height == width == 1:
        return np.ascontiguousarray(cube[:limit]), 1
    channels = min(channels, MAX_CHANNELS)
    stride = max(math.isqrt(ceil_div(channels * height * width, limit)), 1)
    while channels * ceil_div(height, stride) * ceil_div(width, stride) > limit:
        if stride >= max(height, width):
            channels = limit
            break
        stride += 1
    return np.ascontiguousarray(cube[:channels, ::stride, ::stride]), stride


def figures(tensor: np.ndarray, zero: int = 0, kept: np.ndarray = NO_LIMITS) -> Row:
    """Figures of a tensor (1, C, H, W): ``zero`` stands for 0; at ends that are ``kept`` (2, C) nothing is lost."""
    flat = tensor.reshape(-1)
    limits = np.iinfo(tensor.dtype) if tensor.dtype.kind in "iu" else np.finfo(tensor.dtype)
    lost = (tensor == limits.max) & ~kept[1][:, None, None]
    if limits.min != zero:
        lost |= (tensor == limits.min) & ~kept[0][:, None, None]
    return {
        "shape": list(tensor.shape[1:]),
        "dtype": str(tensor.dtype),
        "zeros": float((flat == zero).mean()) if flat.size else 0.0,
        "saturated": float(lost.mean()) if flat.size else 0.0,
        "special": 0 if tensor.dtype.kind in "iu" else int(flat.size - np.isfinite(flat).sum()),
        "dead": int((tensor == zero).all(axis=(0, 2, 3)).sum()),
        **spread(tensor),
    }


def spread(tensor: np.ndarray) -> Row:
    """Range, mean and histogram of the finite numbers of a tensor."""
    flat = tensor.reshape(-1)
    finite = flat if tensor.dtype.kind in "iu" else flat[np.isfinite(flat)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    mean = float(finite.mean(dtype=np.float64)) if finite.size else 0.0
    return {"min": low, "max": high, "mean": mean, "histogram": histogram(finite, low, high)}


def histogram(values: np.ndarray, low: float, high: float, bins: int = BINS) -> Row:
    """Equally wide bins from the least to the greatest value; of integers whole numbers wide."""
    if not values.size or low == high:
        return {"low": low, "high": high, "counts": [int(values.size)]}
    if values.dtype.kind in "iu":
        width = ceil_div(int(high - low) + 1, bins)
        places = (values.astype(np.int64) - int(low)) // width
        counts = np.bincount(places, minlength=1)
        return {"low": low, "high": low + width * len(counts), "counts": counts.tolist()}
    counts, _ = np.histogram(values.astype(np.float64), bins, (low, high))
    return {"low": low, "high": high, "counts": counts.tolist()}


#: weights of larger networks are looked at in a part alone
MAX_ELEMENTS = 1 << 22


def structures(operation: Operation) -> list[tuple[str, Any]]:
    """(name, structure) of all descriptors of an operation, itself first."""
    descriptors = operation.descriptors
    if isinstance(descriptors, EmuOperation):
        return [("operation", descriptors.op), ("source", descriptors.src), ("destination", descriptors.dst)]
    parts = [("operation", operation.op), ("surface", operation.surface), ("dependencies", operation.common)]
    return [*parts, ("lookup table", operation.lut)] if operation.lut is not None else parts


class FieldTable:
    """Fields of operations with every name and explanation said once: ``schemas`` by structure."""

    def __init__(self) -> None:
        self.schemas: dict[str, list[list[object]]] = {}

    def rows(self, operation: Operation) -> list[list[object]]:
        """[part, schema, [value or [value, meaning], ...]] of each structure; numbers of unused transfers are left
        out."""
        rows: list[list[object]] = []
        for part, structure in structures(operation):
            shown = [field for field in fields(structure) if not field.reserved and not _is_unused(field, structure)]
            schema = f"{type(structure).__name__} {len(shown)}"
            if schema not in self.schemas:
                self.schemas[schema] = [[field.name, field.type, field.explanation or ""] for field in shown]
            rows.append([part, schema, [_value(field) for field in shown]])
        return rows


def _is_unused(field: FieldView, structure: Any) -> bool:
    """Check whether a field is an unused transfer slot of a BDMA operation."""
    if not field.name.startswith("transfers["):
        return False
    return int(field.name[10 : field.name.index("]")]) >= structure.num_transfers


def _value(field: FieldView) -> object:
    return field.value if field.meaning is None else [field.value, field.meaning]


class ShownWeights:
    """Weights and operands of operations, as pictures and figures."""

    def __init__(self, program: Program, pictures: Pictures) -> None:
        self._pictures = pictures
        self.problem: str | None = None
        self._slots: dict[tuple[str, str], Slot] = {}
        self._known: dict[str, Row | None] = {}
        try:
            self._parameters = LoadableParameters(program)
        except NvdlaError as error:
            self.problem = str(error)
            return
        for slot in self._parameters.slots:
            for name in (slot.name, *slot.metadata["shared_with"]):
                owner, _, rest = name.partition(".")[2].partition(".")
                self._slots[f"{name.partition('.')[0]}.{owner}", rest] = slot

    def of(self, operation: Operation) -> list[Row]:
        """One row per parameter of the operation: what it is, its figures, the number of its picture."""
        name = f"task{operation.task}.{operation.engine}{operation.index}"
        rows = []
        for rest in ("weights", *(f"{stage}.{kind}" for stage in ("x1", "x2", "y") for kind in ("alu", "mul"))):
            slot = self._slots.get((name, rest))
            row = self._row(slot, rest) if slot is not None else None
            if row is not None:
                rows.append(row)
        return rows

    def _row(self, slot: Slot, rest: str) -> Row | None:
        """Tiles share weights, which are decoded and shown once."""
        if slot.name not in self._known:
            self._known[slot.name] = self._made(slot, rest)
        return self._known[slot.name]

    def _made(self, slot: Slot, rest: str) -> Row | None:
        try:
            array = self._parameters.decode(slot)
        except (NvdlaError, ValueError):  # a file that is cut off, or whose mask is wrong: lint says so
            return None
        if not array.size:
            return None
        kind = slot.metadata["kind"]
        row = {"part": rest, "kind": kind, "bytes": slot.length, "shape": list(slot.shape), "layout": slot.layout}
        row["compressed"] = slot.metadata.get("compressed", False)
        return row | {"tensor": self._pictures.add(_as_tensor(array), None, f"{rest} {kind}")}


def _as_tensor(array: np.ndarray) -> np.ndarray:
    """Kernels as (1, kernels x channels, rows, columns), vectors as (1, elements, 1, 1)."""
    if array.ndim == 1:
        return np.ascontiguousarray(array).reshape(1, -1, 1, 1)
    _, channels, rows, columns = array.shape
    if array.size > MAX_ELEMENTS:
        array = array[: max(MAX_ELEMENTS // (channels * rows * columns), 1)]
    if rows == columns == 1:
        return np.ascontiguousarray(array).reshape(1, 1, -1, channels)
    return np.ascontiguousarray(array).reshape(1, -1, rows, columns)


def hazards(study: Study, memory: MemoryMap) -> list[Row]:
    """``earlier`` (the last user of a value) and ``later`` (who takes its bytes), ``bytes``, and ``kind``:

    "overlap": the value is still needed afterwards; "unordered": nothing makes the later operation wait; "reuse": the
    dependency graph keeps them apart.
    """
    orders = {number: Order(task, study.program.takers) for number, task in study.program.dla_tasks.items()}
    values = {value.id: value for value in study.values}
    rows: list[Row] = []
    pairs = [(row, True) for row in memory.overlaps()] + [(row, False) for row in memory.reuse()]
    for row, overlaps in pairs:
        value = values[row["earlier"]]
        users = [key for key, _ in value.readers] or ([value.writer] if value.writer else [])
        later = values[row["later"]].writer
        if later is None or row["in_place"]:
            continue
        for user in list(dict.fromkeys(users))[-2:]:
            if user == later:
                continue
            kind = "overlap" if overlaps else "reuse" if _is_ordered(study, orders, user, later) else "unordered"
            rows.append({"earlier": user, "later": later, "bytes": row["bytes"], "kind": kind})
    return rows


def _is_ordered(study: Study, orders: dict[int, Order], key: Key, other: Key) -> bool:
    if key[0] != other[0] or key[0] not in orders or key[1] or other[1]:
        return True  # tasks, and regions of interest, come one after the other
    return orders[key[0]].is_ordered(key[2], other[2]) or study.step_of[key] == study.step_of[other]


#: address of a register, value, how often in a row it was written
Write = tuple[int, int, int]


def register_writes(
    program: Program, linked: LinkedLoadable | None = None
) -> tuple[dict[Key, list[Write]], str | None]:
    """Return the writes of each operation (task, 0, index) in the firmware's order, and why they end early, if so.

    Of several regions of interest the writes of all are together. Writes of one register in a row (lookup tables)
    are one entry with the last value.
    """
    writes: dict[Key, list[Write]] = {}
    loadable, problem = program.loadable, None
    logs: list[tuple[int, CsbLog]] = []
    try:
        linked = linked or LinkedLoadable(loadable)
        machine = Rehearsal(program.config, linked.space)
        for number in (task for entry in loadable.submit_order for task in entry.task_ids):
            if loadable.task(number).interface != Interface.DLA1:
                continue
            log: CsbLog = []
            logs.append((number, log))
            task = FirmwareTask(linked, loadable.task(number), program.abi, program.config)
            task.check()
            Scheduler(machine, log).run(task)
    except NvdlaError as error:
        problem = str(error)
    for number, log in logs:
        _sort(writes, number, log)
    return writes, problem


def _sort(writes: dict[Key, list[Write]], task: int, log: CsbLog) -> None:
    """Writes belong to the operation that was last programmed or enabled."""
    mine: list[Write] | None = None
    for what, *rest in log:
        if what in ("program", "enable"):
            mine = writes.setdefault((task, 0, rest[0]), [])
        elif what != "W":
            mine = None
        elif mine is not None:
            address, value = rest
            times = mine.pop()[2] + 1 if mine and mine[-1][0] == address else 1
            mine.append((address, value, times))


def register_table(program: Program, writes: dict[Key, list[Write]]) -> list[list[object]]:
    """[address, "UNIT.NAME", [[field, high bit, low bit], ...]] of every register that is written."""
    registers = register_map(program.config.register_map)
    used = sorted({address for write in writes.values() for address, _, _ in write})
    rows = []
    for address in used:
        register = registers.at(address)
        rows.append(
            [address, str(register), [[field.name, field.high, field.low] for field in register.fields.values()]]
        )
    return rows


TOP = 5


@dataclass(frozen=True)
class RunView:
    """A run on one input. ``error``: why there is none. ``inputs`` and ``outputs``: tensors (N, C, H, W) by name."""

    inputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    outputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    ranks: dict[str, list[list[Rank]]] = field(default_factory=dict)
    observations: list[Observation] = field(default_factory=list, repr=False)
    error: str | None = None


def examine_and_run(
    study: Study,
    names: Names,
    inputs: Callable[[Runtime], list[list[bytes]]] | None,
    labels: list[str] | None = None,
) -> tuple[DoctorReport, RunView | None, LinkedLoadable | None]:
    """Return the doctor's findings, with ``inputs`` its run on the first of them, and the memory image in use.
    Raises FormatError for inputs that do not fit."""
    recording, linked = FirstRun(), None
    if inputs is None:
        with contextlib.suppress(NvdlaError):  # the dry run reports it
            linked = LinkedLoadable(study.loadable)
    report = examine(study.program, names=names, inputs=inputs, recording=recording, linked=linked)
    if inputs is None:
        if linked is not None:
            linked.reset()  # the dry run counts dependencies down in the descriptors
            study.settle(failure(study.loadable, study.abi, study.config, linked) if report.count("error") else None)
            linked.reset()
        return report, None, linked
    if report.run_error is not None or recording.runtime is None:
        return report, RunView(error=report.run_error or "no input was given"), None
    study.settle(None)
    view, linked = _view(recording, labels), recording.runtime._linked
    linked.reload()
    linked.reset()  # as after the dry run
    return report, view, linked


def _view(recording: FirstRun, labels: list[str] | None) -> RunView:
    runtime = recording.runtime
    given = {
        tensor.name: tensor.layout.unpack(np.frombuffer(surface, np.uint8))
        for tensor, surface in zip(runtime.inputs, recording.surfaces, strict=True)
    }
    outputs = runtime.unpack(recording.outputs)
    ranks = tops({title: image for _, title, image in by_image(outputs, MAX_CHANNELS)}, TOP, labels)
    return RunView(given, outputs, ranks, recording.observations)


def run_rows(view: RunView, examination: DoctorReport, names: Names, number: dict[Key, int], pictures: Pictures) -> Row:
    """The run as plain data: tensors by their numbers in ``pictures``. ``wrote``: operation -> its tensor;
    ``counted``: operation -> what its hardware counters say."""
    if view.error is not None:
        return {"error": view.error, "inputs": [], "outputs": [], "wrote": {}, "counted": {}}
    inputs: list[list[object]] = []
    for name, title, tensor in by_image(view.inputs, MAX_CHANNELS):
        place = pictures.add(tensor, names.units(name, tensor.dtype), name)
        if tensor.shape[1] == 3:  # shown as a picture
            pictures.rows[place]["color"] = (names.preprocessing or {}).get("color", "bgr")
        inputs.append([title, place])
    outputs = []
    for name, title, tensor in by_image(view.outputs, MAX_CHANNELS):
        rows = [[rank.index, rank.value, rank.label] for rank in view.ranks[title][0]]
        outputs.append([title, pictures.add(tensor, names.units_of_output(name, tensor.dtype), name), rows])
    wrote = {}
    for seen in view.observations:
        if seen.key in number and seen.part.size:
            kept = seen.at_limits(names, True) | seen.is_intermediate  # its zero point is not known
            wrote[number[seen.key]] = pictures.add(seen.part, seen.units_of_part(names), seen.layer or "", kept)
    counted = {
        number[tensor["task"], 0, tensor["operation"]]: tensor["statistics"]
        for tensor in examination.tensors
        if tensor.get("statistics") and (tensor["task"], 0, tensor["operation"]) in number
    }
    return {"error": None, "inputs": inputs, "outputs": outputs, "wrote": wrote, "counted": counted}


#: larger networks are shown without fields, register writes and weights
MAX_DETAILED = 2000
MAX_FINDINGS = 2000
#: rows of each table of the file
MAX_ROWS = 2000


@dataclass(frozen=True)
class Side:
    """A loadable, perhaps with a run, as the page shows it. ``document``: plain data; ``pictures``: its tensors."""

    study: Study
    names: Names
    document: Row
    pictures: Pictures
    view: RunView | None


def side_of(
    study: Study,
    names: Names,
    report: DoctorReport,
    view: RunView | None,
    clock: float,
    limit: int,
    linked: LinkedLoadable | None = None,
) -> Side:
    """Return the page's data of one loadable; ``clock`` in MHz, ``limit``: bytes for elements of tensors."""
    memory, pictures = MemoryMap.of(study), Pictures(limit)
    number = {node.key: place for place, node in enumerate(study.operations)}
    document = {
        "title": study.title,
        "file": study.loadable.name,
        "part": in_package(study.loadable.name) is not None,
        "configuration": study.config.name,
        "clock": clock,
        "inputs": [study.loadable.tensor(memory.tensor_desc_id).name for memory in study.loadable.inputs],
        **_overview(study, clock, report, memory),
        "operations": _operations(study, number),
        "short": short_names(study),
        "chains": [[number[node.key] for node in chain] for chain in study.steps],
        "values": _values(study, memory, number),
        "spaces": memory.spaces(),
        "live": memory.usage,
        "allocations": memory.allocation_rows(),
        "hazards": [row | {end: number[row[end]] for end in ("earlier", "later")} for row in hazards(study, memory)],
        "findings": _findings(report, number),
        "tables": {name: rows(study.program)[:MAX_ROWS] for name, rows in TABLES.items()},
        "roof": _roof(study),
        "tracks": [vars(track) for track in use_tracks(study)],
        "memory": {
            "latency": study.memory.latency,
            "bus": study.config.dram_width_bits / 8,
            "offered": study.memory.bytes_per_cycle,
        },
        "timings": [],
        "cycles": study.schedule.cycles,
        "total": study.schedule.total,
        "uses": accounting(study),
        "meanings": USES,
    }
    document |= _details(study, number, pictures, document["operations"], linked)
    document["run"] = None if view is None else run_rows(view, report, names, number, pictures)
    document["tensors"] = pictures.rows
    return Side(study, names, document, pictures, view)


def _overview(study: Study, clock: float, examination: DoctorReport, memory: MemoryMap) -> Row:
    """The figures that everybody asks for first."""
    cycles, loadable = cycles_document(study, clock), study.loadable
    counts, spaces = operation_counts(study.tasks), memory.spaces()
    figures = [
        ["operations", f"{sum(counts.values()):,}"],
        ["cycles (estimate)", _number(cycles["total_cycles"], ",")],
        [f"ms at {clock:g} MHz", _number(cycles["total_ms"], ",.3f")],
        ["MACs", f"{cycles['macs']:,}"],
        ["of the MAC array used", _number(None if cycles["total_cycles"] is None else cycles["mac_use"] or 0.0, ".1%")],
        ["bytes of carve-out to reserve", f"{sum(row['carve_out'] for row in spaces):,}"],
        ["bytes live at the peak", f"{sum(row['peak_live'] for row in spaces):,}"],
        counted(len(examination.findings), "finding").split()[::-1],
    ]
    about = [
        ["File", loadable.name],
        ["Configuration", f"{study.config.name}: {study.config_reason}"],
        ["Descriptors", study.abi_reason],
        ["Inputs", _lines(describe_tensor(loadable, tensor) for tensor in loadable.inputs)],
        ["Outputs", _lines(describe_tensor(loadable, output) for output in loadable.outputs)],
        ["Operations", ", ".join(f"{count} {name}" for name, count in counts.items())],
        ["Tasks", ", ".join(f"{task.id} {task.interface.name}" for task in loadable.tasks)],
        ["Blobs", f"{len(loadable.blobs)} with {sum(blob.length for blob in loadable.blobs):,} bytes"],
    ]
    notes = (*proof_lines(study.config, ("results",)), *caveats(study, clock))
    return {"figures": figures, "about": about, "notes": [f"{line}." for line in notes]}


def _number(value: float | None, form: str) -> str:
    """A figure of the run; a run that never ends has none."""
    return "none: deadlock" if value is None else format(value, form)


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(texts) or "none"


def _operations(study: Study, number: dict[Key, int]) -> list[Row]:
    """One row an operation, in the order of the submitted tasks."""
    waits: dict[Key, list[list[object]]] = {}
    for node in study.operations:
        for dependency in node.dependencies:
            if dependency.target in number:
                wait = [number[node.key], dependency.event, dependency.on_the_fly]
                waits.setdefault(dependency.target, []).append(wait)
    rows = []
    names = zip(group_names(study, "block"), subgraphs(study.program, study.values), strict=True)
    for node, (block, subgraph) in zip(study.operations, names, strict=True):
        estimate, span = study.estimates[node.key], study.schedule.spans[node.key]
        rows.append(
            {
                "label": node.label,
                "engine": node.engine,
                "layer": node.layer,
                "block": block,
                "subgraph": subgraph,
                "what": node.what,
                "precision": node.precision,
                "input": list(node.input) if node.input else None,
                "output": list(node.output) if node.output else None,
                "leads": estimate.leader == node.key,
                "cycles": chain_cycles(study, node),
                "bound": estimate.bound,
                "macs": estimate.macs,
                "use": estimate.mac_share,
                "read": estimate.read_bytes,
                "written": estimate.written_bytes,
                "measured": estimate.measured,
                "group": span.group,
                "programmed": span.programmed,
                "start": span.start,
                "end": span.end,
                "mac": [span.first_mac, span.last_mac] if span.first_mac is not None else None,
                "waits": waits.get(node.key, []),
            }
        )
    return rows


def _values(study: Study, memory: MemoryMap, number: dict[Key, int]) -> list[Row]:
    """Return the values in memory; ``first`` and ``last`` are steps, ``readers`` [operation, role]."""
    spaces = {allocation.memory.id: allocation.space for allocation in memory.allocations}
    keep = ("name", "kind", "memory", "offset", "address", "size", "bytes", "shape", "layout", "line_stride")
    return [
        {key: row[key] for key in (*keep, "surface_stride", "first", "last")}
        | {
            "space": spaces.get(value.memory),
            "writer": number[value.writer] if value.writer else None,
            "readers": [[number[key], role] for key, role in dict.fromkeys(value.readers)],
            "damaged": [number[key] for key in value.damaged_by],
        }
        for value, row in zip(study.values, memory.buffer_rows(), strict=True)
    ]


def _findings(examination: DoctorReport, number: dict[Key, int]) -> list[Row]:
    rows = []
    for finding in examination.findings[:MAX_FINDINGS]:
        place = (
            (finding.task, 0, finding.operation) if finding.task is not None and finding.operation is not None else None
        )
        rows.append(
            {
                "severity": str(finding.severity),
                "rule": finding.rule,
                "headline": finding.headline,
                "place": finding.place,
                "evidence": finding.evidence,
                "advice": finding.advice,
                "operation": number.get(place) if place else None,
            }
        )
    return rows


def _roof(study: Study) -> Row:
    """Return the limits of the machine: multiplications per cycle (in the fastest precision used), bytes per cycle, of
    each direction or of both."""
    config, used = study.config, [row.constants.macs_per_cycle for row in study.estimates.values() if row.macs]
    macs = max(used, default=config.mac_atomic_c * config.mac_atomic_k)
    return {"macs": macs, "bytes": study.memory.rate(config.dram_width_bits / 8), "shared": study.memory.shared}


#: cycles of latency, and parts of the bus's bandwidth, for which a page without a server has the cycles
LATENCIES, DIVISORS = (50, 100, 200, 400), (1, 2, 4, 8)
#: operations of a network up to which it has them
MAX_TIMED = 1000


def timing(study: Study, latency: int, bandwidth: float) -> Row:
    """Return the cycles of a loadable with another memory (``latency`` in cycles, ``bandwidth`` in bytes per cycle).

    Returns:
        ``total`` and ``uses``, the cycles by use (None: deadlock), and, for each operation, ``cycles`` and ``bound``.

    Raises:
        ConfigError: The latency or the bandwidth is out of range.
    """
    other = study.on(replace(study.memory, latency=latency, bytes_per_cycle=bandwidth))
    rows = [other.estimates[node.key] for node in study.operations]
    return {
        "latency": latency,
        "bandwidth": other.memory.rate(study.config.dram_width_bits / 8),
        "total": other.schedule.total,
        "uses": accounting(other),
        "cycles": [chain_cycles(other, node) for node in study.operations],
        "bound": [row.bound for row in rows],
    }


def timings(study: Study) -> list[Row]:
    """Return :func:`timing` for a grid of memories, which includes the study's own; none for large networks."""
    if len(study.operations) > MAX_TIMED:
        return []
    bus, memory = study.config.dram_width_bits / 8, study.memory
    latencies = sorted({*LATENCIES, memory.latency})
    rates = sorted({*(bus / divisor for divisor in DIVISORS), memory.rate(bus)})
    return [timing(study, latency, rate) for latency in latencies for rate in rates]


def _details(
    study: Study, number: dict[Key, int], pictures: Pictures, rows: list[Row], linked: LinkedLoadable | None
) -> Row:
    """Adds fields, register writes, weights and the ways of convolutions to the operations' rows; their tables."""
    if len(rows) > MAX_DETAILED:
        note = f"{len(rows)} operations: fields, register writes and weights are left out"
        return {"schemas": {}, "registers": [], "missing": [note]}
    table, weights = FieldTable(), ShownWeights(study.program, pictures)
    writes, problem = register_writes(study.program, linked)
    explained = with_advice(study, explanations(study)) if study.operations else []
    ways = {row["operation"]: sentences(row)[1:] for row in explained}
    for node in study.operations:
        row = rows[number[node.key]]
        row["fields"] = table.rows(node)
        row["writes"] = [list(write) for write in writes.get((node.task, 0, node.index), [])]
        row["weights"] = weights.of(node)
        row["ways"] = ways.get(node.label, [])
    missing = [f"register writes end early: {problem}"] if problem else []
    missing += [f"weights are not shown: {weights.problem}"] if weights.problem else []
    return {"schemas": table.schemas, "registers": register_table(study.program, writes), "missing": missing}


#: makes the surfaces of each run once the network's inputs are known
Inputs = Callable[[Runtime], list[list[bytes]]]


def make_side(
    study: Study,
    names: Names,
    clock: float,
    inputs: Inputs | None = None,
    labels: Sequence[str] | None = None,
    sides: int = 1,
) -> tuple[Side, DoctorReport]:
    """Return one side of a page with ``sides`` sides, and the doctor's report.

    Args:
        study: The loadable; one that cannot run is shown, too.
        names: Names and scales of its tensors.
        clock: MHz.
        inputs: Makes the surfaces of the run that is shown.
        labels: Names of the classes.
        sides: Number of sides that share the page's bytes.

    Raises:
        FormatError: The inputs do not fit.
    """
    report, view, linked = examine_and_run(study, names, inputs, list(labels) if labels else None)
    return side_of(study, names, report, view, clock, ROOM // sides, linked), report
