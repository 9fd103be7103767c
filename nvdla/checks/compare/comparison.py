"""Comparison of observed tensors, operation by operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nvdla.checks.compare.metrics import AXES, Difference, compare
from nvdla.emulator.memory.surfaces import FeatureLayout, Layout
from nvdla.errors import FormatError, counted, in_file, printable, shape_text
from nvdla.loadable.reader import UNNAMED
from nvdla.program.naming import Names, StoredPlace, at_limits
from nvdla.program.operation import Key, Keyed, Operation
from nvdla.program.program import Program
from nvdla.tensors.real import Ends, Units
from nvdla.util.escaping import Document, table

if TYPE_CHECKING:
    from nvdla.emulator.execution.steps import OperationEvent
    from nvdla.runtime import Runtime, Tensor

#: channels of a result whose descriptor names none (BDMA): all that are there
ALL_CHANNELS = 1 << 30


@dataclass(frozen=True)
class Observation(Keyed):
    """One operation as it completed.

    ``key``: (task, region of interest, index). ``surface``: a copy (surfaces, height, width, atom bytes) of what it
    wrote, None on the fly. ``taken_from``: indices of the operations whose results it took on the fly, first to last.
    ``place``: where it writes in the network's tensor, None where that is not known. ``whole``: that tensor
    (1, C, H, W), where this is the last of several operations that write its parts.
    """

    key: Key
    engine: str
    layer: str | None
    dtype: np.dtype
    channels: int
    surface: np.ndarray | None = field(repr=False)
    statistics: dict[str, int] = field(default_factory=dict, repr=False)
    taken_from: tuple[int, ...] = ()
    place: StoredPlace | None = None
    whole: np.ndarray | None = field(default=None, repr=False)

    @cached_property
    def dense(self) -> np.ndarray:
        """The elements (1, C, H, W) as they are in memory, without padding channels."""
        return dense(self.written, self.dtype, self.channels)

    @cached_property
    def part(self) -> np.ndarray:
        """The elements (1, C, H, W) that the operation wrote: in the order of the network's tensor, where they are all
        of it."""
        if self.place is None or self._covers is None:
            return self.dense
        elements = np.zeros(self.place.shape, self.dtype)
        self.put(elements)
        return elements[None]

    @property
    def tensor(self) -> np.ndarray:
        """The elements (1, C, H, W) of the network's tensor, once the operation completes it; else :attr:`part`."""
        return self.part if self.whole is None else self.whole

    @property
    def is_part(self) -> bool:
        """Check whether :attr:`tensor` is a part of the network's tensor."""
        return self.positions is not None and self.whole is None

    @property
    def positions(self) -> np.ndarray | None:
        """Position in the network's tensor of each element (C, H, W) of :attr:`part`, -1 for one beyond it; None where
        the part is all of the tensor, or its place is not known."""
        if self.place is None or self.place.tensor is None or self._covers is not None:
            return None
        places = self.place.positions(self.dense.shape[1:])
        return None if places is None or places.shape == self.place.shape else places

    @cached_property
    def _covers(self) -> np.ndarray | None:
        """Positions of elements that are all of a tensor in another order."""
        if self.place is None or (not self.place.atoms and self.dense.shape[1:] == self.place.shape):
            return None
        places = self.place.positions(self.dense.shape[1:])
        size = math.prod(self.place.shape)
        whole = places is not None and np.bincount(places[places >= 0], minlength=size).all()
        return places if whole else None

    def put(self, tensor: np.ndarray) -> None:
        """Put the elements into the network's tensor (C, H, W)."""
        places = self._covers if self.positions is None else self.positions
        assert places is not None
        known = places >= 0
        tensor.reshape(-1)[places[known]] = self.dense[0][known]

    def units(self, names: Names) -> Units | None:
        """Return the real values of :attr:`tensor`; None for integers without a scale."""
        return self._units(names, self.is_part)

    def units_of_part(self, names: Names) -> Units | None:
        """Return the real values of :attr:`part`; None for integers without a scale."""
        return self._units(names, True)

    def units_in_memory(self, names: Names) -> Units | None:
        """Return the real values of :attr:`dense`; None also for units per channel of channels in another order."""
        units = self.units_of_part(names)
        return units if units is None or self.part is self.dense or not units.by_channel else None

    def _channels(self, of_part: bool) -> np.ndarray | None:
        """The channels of the network's tensor that :attr:`part` has; None for all."""
        positions = self.positions if of_part else None
        if positions is None or self.place is None:
            return None
        channels: np.ndarray = positions[:, 0, 0] // math.prod(self.place.shape[1:])
        return channels

    def _units(self, names: Names, of_part: bool) -> Units | None:
        channels = self._channels(of_part)
        units = names.units(self.layer if self.place is None else self.place.tensor, self.dtype, channels)
        count = (self.part if of_part else self.tensor).shape[1]
        fits = units is None or units.factors is None or len(units.factors) == count
        return units if fits else None

    def zero(self, names: Names) -> int:
        """The element that stands for 0."""
        return int(units.zero) if (units := self.units_of_part(names)) else 0

    def at_limits(self, names: Names, of_part: bool, cut: bool = False) -> np.ndarray:
        """Return whether nothing is lost at the lower and the upper end of the type, for each channel of :attr:`part`
        or of :attr:`tensor` (2, C); ``cut``: of ends that cut numbers off alone."""
        tensor = names.tensor(self.layer) if self.place is None else self.place.tensor
        limited = (names.cut if cut else names.limited).get(tensor or "", {})
        channels = self._channels(of_part)
        if channels is None or self.place is None:
            return at_limits(limited, (self.part if of_part else self.tensor).shape[1])
        return at_limits(limited, self.place.shape[0])[:, channels]

    @property
    def is_intermediate(self) -> bool:
        """Check whether the result is not one tensor of the network."""
        return self.place is not None and self.place.tensor is None

    @property
    def written(self) -> np.ndarray:
        """:attr:`surface` of an operation that wrote to memory. Raises FormatError for one that did not."""
        if self.surface is None:
            raise FormatError(f"{self} forwards its result on the fly, so it has no tensor in memory")
        return self.surface

    def __str__(self) -> str:
        return f"operation {self.task}/{self.index} ({self.engine.upper()})"


def dense(surface: np.ndarray, dtype: np.dtype, channels: int) -> np.ndarray:
    """A surface (surfaces, height, width, atom bytes) as (1, C, H, W) elements without padding channels."""
    elements = np.ascontiguousarray(surface).view(dtype)
    surfaces, height, width, atom = elements.shape
    cube = np.moveaxis(elements, -1, 1).reshape(surfaces * atom, height, width)
    return np.ascontiguousarray(cube[: min(channels, surfaces * atom)])[None]


class Observer:
    """Collects the observations of a run; give :meth:`see` to it as ``on_operation``.

    ``program`` says what an operation is: its element type, its layer, what it takes on the fly
    (:meth:`nvdla.Runtime.program`). ``then`` is called with each observation as it comes (it may raise to end the run).
    ``names``: where operations write in the network's tensors.
    """

    def __init__(
        self, program: Program, then: Callable[[Observation], None] | None = None, names: Names | None = None
    ) -> None:
        self.observations: list[Observation] = []
        self._names = names or Names()
        self._tensors: dict[tuple[str | None, int], tuple[np.ndarray, np.ndarray]] = {}
        self._operations = program.by_key
        self._then = then
        self._taken_from = {
            operation.key: tuple(member.index for member in chain[:place])
            for chain in program.chains
            for place, operation in enumerate(chain)
        }

    def see(self, event: OperationEvent) -> None:
        """Take an event of the run."""
        operation = self._operations[event.task, event.roi, event.index]
        observation = Observation(
            operation.key,
            operation.engine,
            operation.layer,
            written_type(operation),
            operation.output[0] if operation.output is not None else ALL_CHANNELS,
            None if event.destination is None else np.array(event.destination),
            event.statistics,
            self._taken_from[operation.key],
        )
        if observation.surface is not None:
            surfaces, height, width, atom = observation.surface.shape
            channels = min(observation.channels, surfaces * (atom // observation.dtype.itemsize))
            written = channels, height, width
            place = self._names.place(operation.task, operation.index, operation.layer, written)
            observation = self._assembled(replace(observation, place=place))
        self.observations.append(observation)
        if self._then:
            self._then(observation)

    def _assembled(self, observation: Observation) -> Observation:
        """With the whole tensor, where this operation writes its last part."""
        for place in self._names.shared.get((observation.task, observation.index), ()):
            self._put(replace(observation, place=place))
        if observation.positions is None:
            return observation
        self._put(observation)
        return self.completed(observation)

    def _put(self, observation: Observation) -> None:
        place, positions = observation.place, observation.positions
        if place is None or positions is None:
            return
        key = place.tensor, place.image
        if key not in self._tensors:
            self._tensors[key] = np.zeros(place.shape, observation.dtype), np.zeros(math.prod(place.shape), bool)
        tensor, known = self._tensors[key]
        if tensor.dtype == observation.dtype:
            observation.put(tensor)
            known[positions[positions >= 0]] = True

    def completed(self, observation: Observation) -> Observation:
        """The observation of a part with its whole tensor, where all of that is written."""
        place = observation.place
        tensor, known = self._tensors.get((None, 0) if place is None else (place.tensor, place.image), (None, None))
        if tensor is None or known is None or not known.all():
            return observation
        return replace(observation, whole=tensor[None].copy())


def written_type(operation: Operation) -> np.dtype:
    """Element type of what an operation writes; bytes for BDMA, which knows no elements."""
    return np.dtype("u1") if operation.precisions is None else operation.precisions[1].dtype


REGION = 3
PADDING, BETWEEN_LINES = "padding channels differ", "bytes between lines differ"


@dataclass(frozen=True)
class Expected:
    """Expected value of one tensor, from a reference.

    ``name``: where it comes from. ``tensor``: elements of the tensor's own kind, or real numbers; then ``units`` are
    those of our elements, ``known`` marks the elements with real numbers (None: all), and ``ends`` are those of the
    reference's own range. Or ``digests``: SHA-256 of the whole surface, and of its elements without padding channels.
    """

    name: str
    tensor: np.ndarray | None = None
    digests: tuple[str, str | None] | None = None
    units: Units | None = None
    note: str | None = None
    known: np.ndarray | None = None
    ends: Ends | None = None


class Reference(Protocol):
    """Something to compare with.

    ``sees``: what is compared of an operation: "memory" (its elements as they are in memory), "operations" (in the
    network's order) or "tensors" (whole tensors, also those that several operations write).
    """

    kind: str
    sees: str

    def operation(self, observation: Observation) -> Expected | None:
        """Return the expected output of an operation; None if it is unknown."""

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        """Return the expected value of a bound output."""


@dataclass(frozen=True)
class Tolerances:
    """The limits of "close": ``tolerance`` for elements; for real numbers the least ``cosine`` and ``snr_db``."""

    tolerance: float = 0.0
    cosine: float = 0.95
    snr_db: float = 10.0


@dataclass(frozen=True)
class Row:
    """One tensor compared. ``task``, ``operation``, ``engine`` are None for a bound output.

    ``difference`` is None where only a digest is known. ``scale`` is set when real numbers were compared; ``real``:
    cosine and SNR are those of real numbers.
    """

    kind: str
    task: int | None
    operation: int | None
    engine: str | None
    name: str | None
    against: str
    shape: tuple[int, ...]
    dtype: str
    passed: bool
    exact: bool
    taken_from: tuple[int, ...] = ()
    difference: Difference | None = None
    scale: float | None = None
    note: str | None = None
    real: bool = False

    def as_dict(self) -> Document:
        """For JSON; every key is always there."""
        difference = self.difference.as_dict() if self.difference else {}
        first = difference.get("first")
        metrics = ("elements", "count", "max_abs", "mean_abs", "cosine", "snr_db", "psnr_db")
        return {
            "kind": self.kind,
            "task": self.task,
            "operation": self.operation,
            "engine": self.engine,
            "fused": list(self.taken_from),
            "name": self.name,
            "against": self.against,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "passed": self.passed,
            "exact": self.exact,
            "result": self.result,
            **{name: difference.get(name) for name in metrics},
            "first": dict(zip(AXES.lower()[-len(first) :], first, strict=True)) if first else None,
            "first_expected": difference.get("first_expected"),
            "first_actual": difference.get("first_actual"),
            "scale": self.scale,
            "note": self.note,
        }

    @property
    def result(self) -> str:
        """ "exact" (equal bits or numbers), "close" (within the tolerances) or "different"."""
        return "exact" if self.exact else "close" if self.passed else "different"

    @property
    def place(self) -> str:
        """Return the origin of the tensor, in words."""
        if self.kind == "output":
            return f"output {self.name}"
        givers = ", ".join(f"{self.task}/{index}" for index in self.taken_from)
        before = f" after {givers} on the fly" if givers else ""
        layer = f", layer {self.name}" if self.name else ""
        return f"operation {self.task}/{self.operation} ({str(self.engine).upper()}{before}{layer})"


@dataclass(frozen=True)
class DifferingRegion:
    """The surroundings of a position in both tensors: two axes, the first index of each, values by row."""

    axes: tuple[str, str]
    origin: tuple[int, int]
    fixed: dict[str, int]
    expected: list[list[float]]
    actual: list[list[float]]

    def as_dict(self) -> Document:
        """Everything as plain data, for JSON."""
        return {
            "axes": list(self.axes),
            "origin": list(self.origin),
            "fixed": self.fixed,
            "expected": self.expected,
            "actual": self.actual,
        }


@dataclass(repr=False)
class Comparison:
    """All rows in completion order, the surroundings of the first divergence, and what was not compared."""

    rows: list[Row] = field(default_factory=list)
    region: DifferingRegion | None = None
    skipped: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Check whether every tensor passed; False where none was compared."""
        return bool(self.rows) and all(row.passed for row in self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """Count how many tensors are "exact", "close" and "different"."""
        results = [row.result for row in self.rows]
        return {name: results.count(name) for name in ("exact", "close", "different")}

    @property
    def first(self) -> Row | None:
        """The first tensor that did not pass."""
        return next((row for row in self.rows if not row.passed), None)

    def __repr__(self) -> str:
        """One line: how many tensors, and the first that differs."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        first = f", first {self.first.place}" if self.first else ""
        return printable(f"<Comparison: {counted(len(self.rows), 'tensor')}, {counts}{first}>")

    def _repr_html_(self) -> str:
        """For notebooks: one row per tensor."""
        rows = [
            {
                "tensor": row.place,
                "layer": row.name if row.kind == "operation" else None,
                "result": row.result,
                "unequal": row.difference.count if row.difference else None,
                "at most": row.difference.max_abs if row.difference else None,
                "cosine": row.difference.cosine if row.difference else None,
                "note": row.note,
            }
            for row in self.rows
        ]
        return table(repr(self).strip("<>"), rows)

    def add(self, row: Row, expected: np.ndarray | None, actual: np.ndarray | None) -> None:
        """Add a row; the first that does not pass gives the region that is shown."""
        first = row.difference.first if row.difference and not row.passed else None
        if self.region is None and first and expected is not None and actual is not None:
            self.region = region_around(expected, actual, first)
        self.rows.append(row)


class _Diverged(Exception):
    """Exception that ends the run at its first divergence."""


def compare_run(
    runtime: Runtime,
    surfaces: Sequence[bytes],
    reference: Reference,
    names: Names | None = None,
    limits: Tolerances | None = None,
    fail_fast: bool = False,
) -> Comparison:
    """Run and compare. With ``fail_fast`` the run ends at the first tensor that does not pass. Raises NvdlaError."""
    limits, names = limits or Tolerances(), names or Names()
    comparison = Comparison()
    parts = _Parts(reference, comparison)

    def look(observation: Observation) -> None:
        pair = parts.take(observation) if observation.surface is not None else None
        if pair is not None:
            judge(*pair)

    def judge(expected: Expected, observation: Observation) -> None:
        memory, raw = reference.sees == "memory", observation.written.tobytes()
        array = observation.dense if memory else observation.tensor
        units = observation.units_in_memory(names) if memory else observation.units(names)
        ends = observation.at_limits(names, memory or observation.is_part, True)
        own = None if memory and observation.part is not array else Ends.of(units, ends, array)
        _judge(comparison, limits, expected, array, raw, _operation_row(observation), units, own)
        if fail_fast and not comparison.rows[-1].passed:
            raise _Diverged

    observer = Observer(runtime.program(names.layers), look, names)
    try:
        outputs = runtime.run_raw(surfaces, observer.see)
        for incomplete in parts.waiting.values():
            whole = observer.completed(incomplete[-1][1])
            expected = None if whole.is_part else reference.operation(whole)
            for pair in map(_noted, incomplete) if expected is None else [(expected, whole)]:
                judge(*pair)
    except _Diverged:
        return comparison
    arrays = runtime.unpack(outputs)
    for index, tensor in enumerate(runtime.outputs):
        array, raw = arrays[tensor.name], outputs[index]
        expected = reference.output(index, tensor, array, raw)
        if expected is None:
            comparison.skipped.append(f"output {tensor.name}")
            continue
        row = {"kind": "output", "task": None, "operation": None, "engine": None, "name": tensor.name}
        _judge(comparison, limits, expected, array, raw, row, names.units_of_output(tensor.name, array.dtype))
        if fail_fast and not comparison.rows[-1].passed:
            break
    return comparison


class _Parts:
    """Operations that write parts of a tensor: each part is compared alone where all have a counterpart (or the
    reference sees memory), else the whole tensor once it is complete.

    ``waiting``: parts whose tensor is not yet complete. ``_lonely``: those without a counterpart, in words.
    """

    def __init__(self, reference: Reference, comparison: Comparison) -> None:
        self._reference, self._comparison = reference, comparison
        self.waiting: dict[tuple[str | None, int], list[tuple[Expected, Observation]]] = {}
        self._lonely: dict[tuple[str | None, int], list[str]] = {}

    def take(self, observation: Observation) -> tuple[Expected, Observation] | None:
        """Return what is to be judged now, None for nothing."""
        place, sees = observation.place, self._reference.sees
        tensor = (None, 0) if place is None else (place.tensor, place.image)
        expected = self._reference.operation(observation)
        if expected is None:
            self._comparison.skipped.append(_described(observation))
            if observation.is_part:
                self._lonely.setdefault(tensor, []).append(self._comparison.skipped[-1])
            return None
        if sees == "tensors" and observation.is_part:
            self.waiting.setdefault(tensor, []).append((expected, observation))
            return None
        if observation.whole is None or sees == "memory":
            return expected, observation
        if sees == "operations" and tensor not in self._lonely:
            last = replace(observation, whole=None)
            of_last = self._reference.operation(last)
            if of_last is not None:
                return of_last, last
        alone = self._lonely.pop(tensor, [])
        self._comparison.skipped = [text for text in self._comparison.skipped if text not in alone]
        count = len(alone) + len(self.waiting.pop(tensor, ()))
        note = f"with {counted(count, 'other part')}" if count else None
        return replace(expected, note=", ".join(filter(None, (expected.note, note))) or None), observation


def _noted(pair: tuple[Expected, Observation]) -> tuple[Expected, Observation]:
    """A part of a tensor that the run does not complete, with the note that it is one."""
    expected, observation = pair
    assert observation.place is not None
    size = math.prod(observation.place.shape)
    share = f"part of {observation.place.tensor}: {observation.part.size} of {size} elements"
    return replace(expected, note=", ".join(filter(None, (expected.note, share)))), observation


def _described(observation: Observation) -> str:
    """A tensor without a counterpart, in words."""
    layer = f", layer {observation.layer}" if observation.layer else ""
    inner = ", an intermediate result" if observation.is_intermediate else ""
    return f"operation {observation.task}/{observation.index} ({observation.engine.upper()}{layer}{inner})"


def _operation_row(observation: Observation) -> Document:
    return {
        "kind": "operation",
        "task": observation.task,
        "operation": observation.index,
        "engine": observation.engine,
        "name": observation.layer,
        "taken_from": observation.taken_from,
    }


def _judge(
    comparison: Comparison,
    limits: Tolerances,
    expected: Expected,
    array: np.ndarray,
    raw: bytes,
    who: Document,
    own_units: Units | None,
    own_ends: Ends | None = None,
) -> None:
    """Add the row of one tensor. ``own_units``: those of our elements, where they are known; ``own_ends``: the ends of
    their range beyond which the functions that take them stay the same, which outputs do not have."""
    what = {**who, "against": expected.name, "shape": array.shape, "dtype": str(array.dtype)}
    if expected.tensor is None:
        comparison.add(_digest_row(expected, array, raw, what), None, None)
        return
    golden = _shaped(expected.tensor, array.shape, expected.name)
    ours, known = array, None
    units, note = expected.units, expected.note
    if units is not None:
        ours, golden = units.real(array).astype(np.float32), golden.astype(np.float32)
        for ends in filter(None, (own_ends, expected.ends)):
            ours, golden = ends.limit(ours), ends.limit(golden)
        if expected.known is not None:
            known = np.broadcast_to(expected.known, ours.shape)
            note = ", ".join(filter(None, (note, _share(known))))
            ours, golden = (np.where(known, array, np.float32(0)) for array in (ours, golden))
    difference = compare(golden, ours) if known is None else _compare_known(golden, ours, known)
    real = units is not None or (own_units is not None and golden.dtype == ours.dtype)
    if units is None and own_units is not None and real and not difference.exact:
        difference = difference.with_ratios_of(compare(own_units.real(golden), own_units.real(ours)))
    if units is None:
        passed = difference.within(limits.tolerance)
    else:
        passed = _close(difference, limits) or (array.dtype.kind in "iu" and units.within_one_unit(ours, golden))
    scale = None if units is None else units.scale
    row = Row(**what, passed=passed, exact=difference.exact, difference=difference, scale=scale, note=note, real=real)
    comparison.add(row, golden, ours)


def _share(known: np.ndarray) -> str:
    """Which elements (N, C, H, W) are compared, in words."""
    channels, count = np.flatnonzero(known.any((0, 2, 3))), known.shape[1]
    if not channels.size or not known[:, channels].all() or channels[-1] - channels[0] >= channels.size:
        return f"in the model: {int(known.sum())} of {known.size} elements"
    last = f"s {channels[0]} to {channels[-1]}" if channels.size > 1 else f" {channels[0]}"
    return f"in the model: channel{last} of {count}"


def _compare_known(golden: np.ndarray, ours: np.ndarray, known: np.ndarray) -> Difference:
    """Compare the known elements alone; the first that differs has its position in the tensor."""
    difference = compare(golden[known], ours[known])
    if difference.first is None:
        return difference
    first = np.unravel_index(np.flatnonzero(known)[difference.first[0]], known.shape)
    return replace(difference, first=tuple(map(int, first)))


def _close(difference: Difference, limits: Tolerances) -> bool:
    """Real numbers: seldom equal bit by bit, so the angle and the noise decide. All zero on both sides is equal."""
    if difference.exact or difference.max_abs == 0:
        return True
    if difference.cosine is None or difference.cosine < limits.cosine:
        return False
    return difference.snr_db >= limits.snr_db


def _digest_row(expected: Expected, array: np.ndarray, raw: bytes, what: Document) -> Row:
    """Padding channels do not decide where the elements alone are known."""
    whole, valid = expected.digests or (None, None)
    same_surface = sha256(raw).hexdigest() == whole
    exact = same_surface or (valid is not None and sha256(np.ascontiguousarray(array).tobytes()).hexdigest() == valid)
    return Row(**what, passed=exact, exact=exact, note=PADDING if exact and not same_surface else expected.note)


def _shaped(golden: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """A golden in the tensor's shape; files may leave dimensions of 1 out, or have lost the shape."""
    if golden.dtype.kind not in "iufb":
        raise FormatError(f"{name}: must be an array of numbers, got elements of type {golden.dtype}")
    if golden.size != int(np.prod(shape, dtype=np.int64)):
        raise FormatError(f"{name}: shape: must be {shape_text(shape)}, got {shape_text(golden.shape)}")
    return golden.reshape(shape)


def padding_note(ours: Observation, surface: np.ndarray, tensor: np.ndarray) -> str | None:
    """A remark when only channels beyond the tensor's differ: the hardware writes them, nothing should read them."""
    if surface.shape != ours.written.shape or np.array_equal(ours.written, surface):
        return None
    return PADDING if np.array_equal(ours.dense, tensor) else None


def unpacked(layout: Layout, surfaces: bytes) -> np.ndarray:
    """The elements (N, C, H, W) of a bound tensor's surface; those of several runs concatenated."""
    data = np.frombuffer(surfaces, np.uint8).reshape(-1, layout.size)
    return np.concatenate([layout.unpack(surface) for surface in data])


def surface_note(layout: Layout, ours: bytes, theirs: bytes) -> str | None:
    """A remark when surfaces of a bound tensor, equally long, differ only in bytes that hold no element."""
    if ours == theirs or unpacked(layout, ours).tobytes() != unpacked(layout, theirs).tobytes():
        return None
    if isinstance(layout, FeatureLayout) and _atoms(layout, ours) == _atoms(layout, theirs):
        return BETWEEN_LINES
    return PADDING


def _atoms(layout: FeatureLayout, surfaces: bytes) -> list[bytes]:
    """Atoms of the surface of each run, padding channels included."""
    return [layout.view(surface).tobytes() for surface in np.frombuffer(surfaces, np.uint8).reshape(-1, layout.size)]


def region_around(
    expected: np.ndarray, actual: np.ndarray, first: tuple[int, ...], reach: int = REGION
) -> DifferingRegion:
    """Values of both tensors around ``first``: rows and columns, or channels where the image is a single pixel."""
    shape = [1] * (4 - expected.ndim) + list(expected.shape)
    expected, actual = expected.reshape(shape), actual.reshape(shape)
    place = [0] * (4 - len(first)) + list(first)
    axes = (2, 3) if shape[2] * shape[3] > 1 else (0, 1)
    index: list[Any] = list(place)
    for axis in axes:
        index[axis] = slice(max(place[axis] - reach, 0), place[axis] + reach + 1)
    return DifferingRegion(
        axes=(AXES[axes[0]].lower(), AXES[axes[1]].lower()),
        origin=(index[axes[0]].start, index[axes[1]].start),
        fixed={AXES[axis].lower(): place[axis] for axis in range(4) if axis not in axes},
        expected=expected[tuple(index)].tolist(),
        actual=actual[tuple(index)].tolist(),
    )


def observe(
    runtime: Runtime, surfaces: Sequence[bytes], names: Names | None = None
) -> tuple[list[Observation], list[bytes]]:
    """A whole run: every operation's observation in completion order, and the raw outputs."""
    names = names or Names()
    observer = Observer(runtime.program(names.layers), names=names)
    with in_file("" if runtime.loadable.name == UNNAMED else runtime.loadable.name):
        outputs = runtime.run_raw(surfaces, observer.see)
    return observer.observations, outputs
