"""Differences between two loadables: tables, descriptors, operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from difflib import SequenceMatcher
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.memory.surfaces import pack_direct
from nvdla.errors import NvdlaError
from nvdla.loadable.descriptors.abi import Abi
from nvdla.loadable.descriptors.enums import ConvMode, OpType, Precision, WeightFormat
from nvdla.loadable.descriptors.fields import CtypesRecord, FieldView, fields
from nvdla.loadable.descriptors.meaning import operand_precision
from nvdla.loadable.descriptors.task import DlaTask, EmuTask
from nvdla.loadable.model import Loadable
from nvdla.program.operation import Operation, last_layer
from nvdla.program.parameters import LoadableParameters, Slot
from nvdla.program.program import Program, by_task
from nvdla.program.values import constant_bytes
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Change", "Diff", "OperandChange", "diff"]


@dataclass(frozen=True)
class Change:
    """One thing that differs.

    ``area``: a table of the container, or "operation", "surface", "graph", "network", "lut", "cpu"; "package" for a
    file of a package. ``where`` names the entry, ``what`` is "changed", "only in a" or "only in b". ``a`` and ``b``
    are values, ``meaning_a`` and ``meaning_b`` their names where they have some.
    """

    area: str
    where: str
    field: str | None
    what: str
    a: object = None
    b: object = None
    meaning_a: str | None = None
    meaning_b: str | None = None

    def as_dict(self) -> Document:
        """Return all fields as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class OperandChange:
    """Weights or operands that differ. ``statistics_a`` and ``_b``: elements, min, max, mean, std, zeros.

    ``first`` is the first element that differs: its ``index``, and where the layout is known kernel, channel, row and
    column. ``cosine`` is None for operands of different sizes, or all zero. ``note``: why elements are not compared.
    """

    where: str
    operand: str
    dtype: str
    statistics_a: dict[str, Json]
    statistics_b: dict[str, Json]
    different: int | None
    max_abs: float | None
    cosine: float | None
    first: dict[str, int] | None
    note: str | None = None

    def as_dict(self) -> Document:
        """Return all fields as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Diff:
    """Differences of two loadables; ``matched_by`` states per task how operations were paired ("index" or "shape").

    In packages, tasks and the places of changes begin with the name of their file.
    """

    a: str
    b: str
    abi_a: str
    abi_b: str
    changes: list[Change] = field(default_factory=list)
    operands: list[OperandChange] = field(default_factory=list)
    matched_by: dict[int | str, str] = field(default_factory=dict)

    @property
    def identical(self) -> bool:
        """Check whether nothing differs."""
        return not self.changes and not self.operands

    def counts(self) -> dict[str, int]:
        """Return the number of differences by area, in order."""
        counts = Counter(change.area for change in self.changes)
        if self.operands:
            counts["operands"] = len(self.operands)
        return dict(counts)

    def as_dict(self) -> Document:
        """Return all differences as plain data, for JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "abi_a": self.abi_a,
            "abi_b": self.abi_b,
            "identical": self.identical,
            "counts": self.counts(),
            "matched_by": self.matched_by,
            "changes": [change.as_dict() for change in self.changes],
            "operands": [operand.as_dict() for operand in self.operands],
        }


@dataclass(frozen=True)
class TaskPair:
    """A task of both loadables; ``pairs``: their operations side by side, None where one has no counterpart."""

    id: int
    a: DlaTask | EmuTask
    b: DlaTask | EmuTask
    matched_by: str
    pairs: list[tuple[Operation | None, Operation | None]]


def task_pairs(a: Program, b: Program) -> list[TaskPair]:
    """Tasks of equal id and kind."""
    ours, theirs = by_task(a.operations), by_task(b.operations)
    return [
        TaskPair(number, task, b.tasks[number], *_pair_up(ours.get(number, []), theirs.get(number, [])))
        for number, task in a.tasks.items()
        if number in b.tasks and type(task) is type(b.tasks[number])
    ]


def _pair_up(
    ours: list[Operation], theirs: list[Operation]
) -> tuple[str, list[tuple[Operation | None, Operation | None]]]:
    """By index where both have the same types of operations, else by the longest common runs of types and shapes, and
    of layers where all operations have names."""
    if [_kind(operation) for operation in ours] == [_kind(operation) for operation in theirs]:
        return "index", list(zip(ours, theirs, strict=True))
    is_named = all(operation.layer for operation in (*ours, *theirs))
    first, second = ([_signature(operation, is_named) for operation in side] for side in (ours, theirs))
    matcher = SequenceMatcher(None, first, second, False)
    pairs: list[tuple[Operation | None, Operation | None]] = []
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag == "equal":
            pairs += zip(ours[start:end], theirs[other_start:other_end], strict=True)
        else:
            pairs += [(operation, None) for operation in ours[start:end]]
            pairs += [(None, operation) for operation in theirs[other_start:other_end]]
    return "layer" if is_named else "shape", pairs


def _kind(operation: Operation) -> int:
    return operation.descriptors.op_type


def _signature(operation: Operation, is_named: bool) -> tuple[object, ...]:
    layer = last_layer(operation.layer) if is_named else None
    if layer is not None and (operation.engine == "conv" or operation.takes_on_the_fly):
        layer = str(operation.layer).partition("+")[0]  # another compiler may do the ReLU after it alone
    return (_kind(operation), layer, *(() if operation.type is None else operation.output or ()))


def place(operation: Operation) -> str:
    """ "operation 0/3 (CONV)"."""
    return f"operation {operation.label} ({operation.descriptors.op_type.name})"


def _places(ours: Operation, theirs: Operation) -> str:
    """ "operation 0/3 (CONV)", and the other one where it has another number."""
    return place(ours) + (f" and {theirs.label}" if ours.index != theirs.index else "")


def descriptor_changes(pair: TaskPair) -> Iterator[Change]:
    """Everything that differs in a task's descriptors."""
    yield from _structures("network", f"task {pair.id}", pair.a.network, pair.b.network)
    for ours, theirs in pair.pairs:
        if ours is None or theirs is None:
            for operation, what in ((ours, "only in a"), (theirs, "only in b")):
                if operation is not None:
                    yield Change("operation", place(operation), None, what)
        elif ours.type is None:
            yield from _cpu_changes(ours, theirs)
        else:
            yield from _dla_changes(ours, theirs)
    if isinstance(pair.a, DlaTask) and isinstance(pair.b, DlaTask):
        for number, (left, right) in enumerate(zip(pair.a.luts, pair.b.luts, strict=False)):
            yield from _structures("lut", f"task {pair.id} lut {number}", left, right)


def _cpu_changes(ours: Operation, theirs: Operation) -> Iterator[Change]:
    where = place(ours)
    for name in ("op", "src", "dst"):
        prefix = "" if name == "op" else f"{name}_data."
        left, right = getattr(ours.descriptors, name), getattr(theirs.descriptors, name)
        yield from _structures("cpu", where, left, right, prefix)


def _dla_changes(ours: Operation, theirs: Operation) -> Iterator[Change]:
    where = _places(ours, theirs)
    yield from _structures("operation", where, ours.op, theirs.op)
    yield from _structures("surface", where, ours.surface, theirs.surface)
    yield from _structures("graph", where, ours.common, theirs.common)


def _structures(area: str, where: str, left: CtypesRecord, right: CtypesRecord, prefix: str = "") -> Iterator[Change]:
    """Fields of two structures of one kind. What only one ABI has counts as 0 in the other."""
    ours = {field.name: field for field in fields(left) if not field.reserved}
    theirs = {field.name: field for field in fields(right) if not field.reserved}
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        mine, other = ours.get(name), theirs.get(name)
        if not _equal(mine, other):
            yield _change(area, where, prefix + _readable(area, name), mine, other)


def _readable(area: str, name: str) -> str:
    """Consumers by the engine of their slot."""
    if area == "graph" and name.startswith("consumers["):
        number, _, rest = name[len("consumers[") :].partition("].")
        return f"consumers[{OpType(int(number)).name}].{rest}"
    return name


def _equal(mine: FieldView | None, other: FieldView | None) -> bool:
    values = [0 if field is None else field.value for field in (mine, other)]
    return values[0] == values[1]


def _change(area: str, where: str, name: str, mine: FieldView | None, other: FieldView | None) -> Change:
    left, right = (None if field is None else field.value for field in (mine, other))
    if isinstance(left, list) and isinstance(right, list):
        different = [at for at, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]]
        first = different[0]
        name = f"{name}[{first}]" if len(different) == 1 else f"{name}[{first}] and {len(different) - 1} more"
        left, right = left[first], right[first]
    meanings = (None if field is None else field.meaning for field in (mine, other))
    return Change(area, where, name, "changed", left, right, *meanings)


OPERANDS = {OpType.CONV: ("weight_data", "wmb_data", "wgs_data"), OpType.SDP: ("x1_data", "x2_data", "y_data")}
#: kernels whose places in memory are worked out to name the first that differs
MOST_ELEMENTS = 1 << 24
LayerNames = Mapping[tuple[int, int], str]


def operand_changes(a: Program, b: Program, pairs: list[TaskPair]) -> Iterator[OperandChange]:
    """Operands of paired operations that differ. Packing and padding with zeros depend on the configuration; operands
    that differ in nothing else are equal."""
    sides = _Side(a), _Side(b)
    for pair in pairs:
        for ours, theirs in pair.pairs:
            if ours is None or theirs is None or ours.type is None:
                continue
            for name in OPERANDS.get(ours.type, ()):
                change = _compare(_places(ours, theirs), name, sides, (ours, theirs))
                if change is not None:
                    yield change


def operand(loadable: Loadable, subject: Operation, name: str) -> np.ndarray | None:
    """The elements of an operand as the loadable brings them along; None where it has none, or none is used."""
    cube = dict(subject.used_cubes()).get(name)
    data = None if cube is None else constant_bytes(loadable, subject, cube)
    if data is None:
        return None
    dtype = operand_type(subject, name)
    return data[: data.size // dtype.itemsize * dtype.itemsize].view(dtype)


def operand_type(subject: Operation, name: str) -> np.dtype:
    """Element type of an operand: that of ``weight_data``, ``x1_data`` ..."""
    if name in ("wmb_data", "wgs_data"):
        return np.dtype("u1")
    if name == "weight_data":
        return Precision(subject.op.out_precision).dtype
    return operand_precision(subject.op.src_precision, getattr(subject.op, f"{name[:-5]}_op")).dtype


class _Side:
    """One of two loadables, with its decoded parameters."""

    def __init__(self, program: Program) -> None:
        self.loadable = program.loadable
        self._parameters: LoadableParameters | None = None
        with suppress(NvdlaError):
            self._parameters = LoadableParameters(program)

    def packing(self, subject: Operation, name: str) -> tuple[object, ...]:
        """The fields that determine the order of the elements in memory."""
        return tuple((slot.layout, slot.shape, slot.group, slot.block) for slot in self._slots(subject, name))

    def decoded(self, subject: Operation, name: str) -> np.ndarray | None:
        """An operand as (kernels, channels, rows, columns), or (channels, operands); None if this is not known."""
        slots = self._slots(subject, name)
        if self._parameters is None or not slots:
            return None
        arrays = [self._parameters.decode(slot) for slot in slots]
        return arrays[0] if name == "weight_data" else np.stack(arrays, axis=-1)

    def _slots(self, subject: Operation, name: str) -> list[Slot]:
        mark = ".weights" if name == "weight_data" else f".{name.removesuffix('_data')}."
        slots = () if self._parameters is None else self._parameters.of_operation(subject)
        return [slot for slot in slots if mark in slot.name]


def _compare(
    where: str, name: str, sides: tuple[_Side, _Side], subjects: tuple[Operation, Operation]
) -> OperandChange | None:
    both = list(zip(sides, subjects, strict=True))
    try:
        left, right = (operand(side.loadable, subject, name) for side, subject in both)
        if left is None or right is None or (left.dtype == right.dtype and left.tobytes() == right.tobytes()):
            return None
        same = left.shape == right.shape and len({side.packing(subject, name) for side, subject in both}) == 1
        first, other = (None if same else side.decoded(subject, name) for side, subject in both)
    except NvdlaError:
        return None
    metrics: Document = {"different": None, "max_abs": None, "cosine": None, "first": None}
    at: Callable[[int], dict[str, int]] | None
    if same and left.dtype == right.dtype:
        at = partial(_kernel_position, subjects[0]) if name == "weight_data" else None
        metrics = _metrics(left, right, at)
    elif first is not None and other is not None and _alike(first, other):
        first, other = _padded(first, other)
        if np.array_equal(first, other):
            return None
        at = partial(_position, first.shape) if name == "weight_data" else None
        metrics = _metrics(first.ravel(), other.ravel(), at)
    else:
        metrics["note"] = "other size" if left.size != right.size else "other layout, not compared"
        metrics["note"] = "other type" if left.dtype != right.dtype else metrics["note"]
    return OperandChange(where, name, str(left.dtype), statistics(left), statistics(right), **metrics)


def _alike(left: np.ndarray, right: np.ndarray) -> bool:
    """Check whether two operands have the same dimensions and elements, and a size that is worth the work."""
    if left.ndim != right.ndim or (left.ndim == 2 and left.shape[1] != right.shape[1]):
        return False  # one has biases, the other also factors
    size = np.prod(np.maximum(left.shape, right.shape), dtype=np.int64)
    return bool(left.dtype == right.dtype and size <= 4 * MOST_ELEMENTS)


def _padded(*arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays of one shape, with zeros where others are larger."""
    shape = np.max([array.shape for array in arrays], axis=0)
    return [
        np.ascontiguousarray(np.pad(array, [(0, size - own) for size, own in zip(shape, array.shape, strict=True)]))
        for array in arrays
    ]


def _position(shape: tuple[int, ...], index: int) -> dict[str, int]:
    """Kernel, channel, row and column of an element."""
    names = ("kernel", "channel", "row", "column")
    return dict(zip(names, map(int, np.unravel_index(index, shape)), strict=True))


def statistics(elements: np.ndarray) -> Document:
    """Elements, extremes, mean, standard deviation, zeros. NaN and infinities are left out of the statistics."""
    values = elements.astype(np.float64)
    finite: np.ndarray = values[np.isfinite(values)]
    if not finite.size:
        return {"elements": int(values.size), "min": None, "max": None, "mean": None, "std": None, "zeros": 0}
    return {
        "elements": int(values.size),
        "min": float(finite.min()),
        "max": float(finite.max()),
        "mean": float(finite.mean()),
        "std": float(finite.std()),
        "zeros": int(np.count_nonzero(values == 0)),
    }


def _metrics(left: np.ndarray, right: np.ndarray, position: Callable[[int], dict[str, int]] | None) -> dict[str, Json]:
    """Compare elements. ``position``: kernel, channel, row and column of the element at an index."""
    bits = np.dtype(f"u{left.itemsize}")
    differs = left.view(bits) != right.view(bits)
    wide = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        largest = float(np.nanmax(np.abs(wide[0] - wide[1]), initial=0.0))
    norm = float(np.linalg.norm(wide[0]) * np.linalg.norm(wide[1]))
    cosine = float(wide[0] @ wide[1]) / norm if norm and np.isfinite(norm) else None
    index = int(np.argmax(differs))
    first = {"index": index, **({} if position is None else position(index))}
    return {"different": int(differs.sum()), "max_abs": largest, "cosine": cosine, "first": first}


def _kernel_position(subject: Operation, index: int) -> dict[str, int]:
    """Kernel, channel, row and column of the element at ``index`` of uncompressed direct weights of a feature cube."""
    op = subject.op
    kernels = subject.surface.dst_data.channel
    shape = (kernels, op.kernel_channel_csc, op.kernel_height_csc, op.kernel_width_csc)
    elements = int(np.prod(shape, dtype=np.int64))
    plain = op.conv_mode == ConvMode.DIRECT and op.weight_format == WeightFormat.UNCOMPRESSED and not subject.is_image
    if not plain or not index < elements <= MOST_ELEMENTS:
        return {}
    group = subject.config.mac_atomic_k // Precision(op.out_precision).bytes
    order = np.frombuffer(
        pack_direct(np.arange(elements, dtype="<i4").reshape(shape), group, subject.config.mac_atomic_c), "<i4"
    )
    return _position(shape, int(order[index]))


#: table of the container -> attribute of the model, what identifies an entry
TABLES = {
    "task_list": ("tasks", "id"),
    "memory_list": ("memories", "id"),
    "address_list": ("addresses", "id"),
    "event_list": ("events", "id"),
    "tensor_desc_list": ("tensors", "id"),
    "submit_list": ("submits", "id"),
    "blobs": ("blobs", "name"),
}


def table_changes(a: Loadable, b: Loadable) -> Iterator[Change]:
    """Every difference of the tables; of blobs also that their bytes differ, which descriptors and operands explain."""
    for name in ("version", "identifier"):
        values = [_plain(getattr(loadable, name)) for loadable in (a, b)]
        if values[0] != values[1]:
            yield Change("loadable", "loadable", name, "changed", values[0], values[1])
    for table, (attribute, key) in TABLES.items():
        yield from _entries(table, key, getattr(a, attribute), getattr(b, attribute))
    yield from _positions("reloc_list", a.relocs, b.relocs)
    yield from _contents(a, b)


def _entries(
    table: str, key: str, ours: Iterable[DataclassInstance], theirs: Iterable[DataclassInstance]
) -> Iterator[Change]:
    left = {getattr(entry, key): entry for entry in ours}
    right = {getattr(entry, key): entry for entry in theirs}
    for name, entry in left.items():
        where = f"{table} {key} {name}"
        if name not in right:
            yield Change(table, where, None, "only in a", a=_summary(entry))
        else:
            yield from _fields(table, where, entry, right[name])
    for name, entry in right.items():
        if name not in left:
            yield Change(table, f"{table} {key} {name}", None, "only in b", b=_summary(entry))


def _positions(table: str, ours: Sequence[DataclassInstance], theirs: Sequence[DataclassInstance]) -> Iterator[Change]:
    for position in range(max(len(ours), len(theirs))):
        where = f"{table}[{position}]"
        if position >= len(theirs):
            yield Change(table, where, None, "only in a", a=_summary(ours[position]))
        elif position >= len(ours):
            yield Change(table, where, None, "only in b", b=_summary(theirs[position]))
        else:
            yield from _fields(table, where, ours[position], theirs[position])


def _fields(table: str, where: str, left: DataclassInstance, right: DataclassInstance) -> Iterator[Change]:
    for column in fields_of(left):
        if column.name == "data":
            continue
        values = _plain(getattr(left, column.name)), _plain(getattr(right, column.name))
        if values[0] != values[1]:
            yield Change(table, where, column.name, "changed", values[0], values[1])


def _contents(a: Loadable, b: Loadable) -> Iterator[Change]:
    """Blobs of one name and size whose bytes differ, by the first byte that does."""
    theirs = {blob.name: blob for blob in b.blobs}
    for blob in a.blobs:
        other = theirs.get(blob.name)
        if other is None or blob.length != other.length or blob.data == other.data:
            continue
        places = np.flatnonzero(np.frombuffer(blob.data, np.uint8) != np.frombuffer(other.data, np.uint8))
        first = int(places[0])
        name = f"data[{first}]" + (f" and {places.size - 1} more" if places.size > 1 else "")
        yield Change("blobs", f"blobs name {blob.name}", name, "changed", blob.data[first], other.data[first])


def _summary(entry: DataclassInstance) -> Document:
    return {field.name: _plain(getattr(entry, field.name)) for field in fields_of(entry) if field.name != "data"}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.name if value.name else value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (int, float, str, bool)):
        return value
    return str(value)


@by_annotations
def diff(
    a: Loadable,
    b: Loadable,
    abi: str | Abi = "auto",
    layers: tuple[LayerNames | None, LayerNames | None] = (None, None),
) -> Diff:
    """Compare two loadables.

    Args:
        a: First loadable.
        b: Second loadable.
        abi: "auto", "old" or "new", for both.
        layers: Names of layers of both, by task and operation, if they are known.

    Returns:
        All differences.

    Raises:
        DescriptorError: The descriptors of one loadable cannot be read.
    """
    ours, theirs = (Program.of(loadable, abi=abi, layers=names) for loadable, names in zip((a, b), layers, strict=True))
    pairs = task_pairs(ours, theirs)
    matched: dict[int | str, str] = {pair.id: pair.matched_by for pair in pairs}
    difference = Diff(a.name, b.name, ours.abi.name, theirs.abi.name, matched_by=matched)
    difference.changes.extend(table_changes(a, b))
    for pair in pairs:
        difference.changes.extend(descriptor_changes(pair))
    difference.operands.extend(operand_changes(ours, theirs, pairs))
    return difference
