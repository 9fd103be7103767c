"""Comparing a run with what is expected of it: operation by operation, then output by output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nvdla.compare.metrics import AXES, Difference, compare
from nvdla.compare.observation import Observation, Observer
from nvdla.errors import FormatError, printable, shape_text
from nvdla.notebook import table

if TYPE_CHECKING:
    from nvdla.runtime import Runtime, Tensor

REGION = 3
PADDING = "padding channels differ"


@dataclass(frozen=True)
class Expected:
    """What a reference says about one tensor.

    ``name``: where it comes from. ``tensor``: elements of the tensor's own kind, or real numbers; then ``scale`` is
    what one unit of ours stands for, and ``zero`` the element that is 0. Or ``digests``: SHA-256 of the whole surface,
    and of its elements without padding channels.
    """

    name: str
    tensor: np.ndarray | None = None
    digests: tuple[str, str | None] | None = None
    scale: float | None = None
    note: str | None = None
    zero: int = 0


class Reference(Protocol):
    """Something to compare with."""

    kind: str

    def operation(self, observation: Observation) -> Expected | None:
        """What is expected of an operation; None when nothing is known."""

    def output(self, index: int, tensor: Tensor, array: np.ndarray, raw: bytes) -> Expected | None:
        """What is expected of a bound output."""


@dataclass(frozen=True)
class Tolerances:
    """What is let pass: ``tolerance`` for elements; for real numbers the least ``cosine`` and ``snr_db``."""

    tolerance: float = 0.0
    cosine: float = 0.95
    snr_db: float | None = None


@dataclass(frozen=True)
class Row:
    """One tensor compared. ``task``, ``operation``, ``engine`` are None for a bound output.

    ``difference`` is None where only a digest is known. ``scale`` is set when real numbers were compared.
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON; every key is always there."""
        difference = self.difference.as_dict() if self.difference else {}
        first = difference.get("first")
        figures = ("elements", "count", "max_abs", "mean_abs", "cosine", "snr_db", "psnr_db")
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
            **{name: difference.get(name) for name in figures},
            "first": dict(zip(AXES.lower()[-len(first) :], first, strict=True)) if first else None,
            "first_expected": difference.get("first_expected"),
            "first_actual": difference.get("first_actual"),
            "scale": self.scale,
            "note": self.note,
        }

    @property
    def place(self) -> str:
        """Who made the tensor, in words."""
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

    def as_dict(self) -> dict[str, Any]:
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
        """Whether every tensor passed."""
        return all(row.passed for row in self.rows)

    @property
    def first(self) -> Row | None:
        """The first tensor that did not pass."""
        return next((row for row in self.rows if not row.passed), None)

    def __repr__(self) -> str:
        """One line: how many tensors, and the first that differs."""
        bad = sum(not row.passed for row in self.rows)
        first = f", first {self.first.place}" if self.first else ""
        return printable(f"<Comparison: {len(self.rows)} tensors, {bad} differ{first}>")

    def _repr_html_(self) -> str:
        """For notebooks: one row a tensor."""
        rows = [
            {
                "tensor": row.place,
                "layer": row.name if row.kind == "operation" else None,
                "result": "exact" if row.exact else "close" if row.passed else "DIFFERENT",
                "differ": row.difference.count if row.difference else None,
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
    """Ends a run at its first divergence."""


def compare_run(
    runtime: Runtime,
    surfaces: Sequence[bytes],
    reference: Reference,
    layers: dict[tuple[int, int], str] | None = None,
    limits: Tolerances | None = None,
    fail_fast: bool = False,
) -> Comparison:
    """Run and compare. With ``fail_fast`` the run ends at the first tensor that does not pass. Raises NvdlaError."""
    limits = limits or Tolerances()
    found = Comparison()

    def look(observation: Observation) -> None:
        expected = reference.operation(observation) if observation.surface is not None else None
        if expected is None:
            if observation.surface is not None:
                found.skipped.append(str(observation))
            return
        array, raw = observation.tensor, observation.written.tobytes()
        _judge(found, limits, expected, array, raw, _operation_row(observation))
        if fail_fast and not found.rows[-1].passed:
            raise _Diverged

    observer = Observer(runtime.program(layers), look)
    try:
        outputs = runtime.run_raw(surfaces, observer.see)
    except _Diverged:
        return found
    arrays = runtime.unpack(outputs)
    for index, tensor in enumerate(runtime.outputs):
        array, raw = arrays[tensor.name], outputs[index]
        expected = reference.output(index, tensor, array, raw)
        if expected is None:
            found.skipped.append(f"output {tensor.name}")
            continue
        row = {"kind": "output", "task": None, "operation": None, "engine": None, "name": tensor.name}
        _judge(found, limits, expected, array, raw, row)
        if fail_fast and not found.rows[-1].passed:
            break
    return found


def _operation_row(observation: Observation) -> dict[str, Any]:
    return {
        "kind": "operation",
        "task": observation.task,
        "operation": observation.index,
        "engine": observation.engine,
        "name": observation.layer,
        "taken_from": observation.taken_from,
    }


def _judge(
    found: Comparison, limits: Tolerances, expected: Expected, array: np.ndarray, raw: bytes, who: dict[str, Any]
) -> None:
    """Add the row of one tensor."""
    what = {**who, "against": expected.name, "shape": array.shape, "dtype": str(array.dtype)}
    if expected.tensor is None:
        found.add(_digest_row(expected, array, raw, what), None, None)
        return
    golden = _shaped(expected.tensor, array.shape, expected.name)
    ours = array
    if expected.scale is not None:
        ours = (array.astype(np.float32) - np.float32(expected.zero)) * np.float32(expected.scale)
        golden = golden.astype(np.float32)
    difference = compare(golden, ours)
    passed = _close(difference, limits) if expected.scale is not None else difference.within(limits.tolerance)
    row = Row(
        **what, passed=passed, exact=difference.exact, difference=difference, scale=expected.scale, note=expected.note
    )
    found.add(row, golden, ours)


def _close(difference: Difference, limits: Tolerances) -> bool:
    """Real numbers: never equal bit by bit, so the angle and the noise decide. All zero on both sides is equal."""
    if difference.exact or difference.max_abs == 0:
        return True
    if difference.cosine is None or difference.cosine < limits.cosine:
        return False
    return limits.snr_db is None or difference.snr_db >= limits.snr_db


def _digest_row(expected: Expected, array: np.ndarray, raw: bytes, what: dict[str, Any]) -> Row:
    """Padding channels do not decide where the elements alone are known."""
    whole, valid = expected.digests or (None, None)
    same_surface = sha256(raw).hexdigest() == whole
    exact = same_surface or (valid is not None and sha256(np.ascontiguousarray(array).tobytes()).hexdigest() == valid)
    return Row(**what, passed=exact, exact=exact, note=PADDING if exact and not same_surface else expected.note)


def _shaped(golden: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    """A golden in the tensor's shape; files may leave dimensions of 1 out, or have lost the shape."""
    if golden.dtype.kind not in "iufb":
        raise FormatError(f"{name}: an array of {golden.dtype} is no tensor of numbers")
    if golden.size != int(np.prod(shape, dtype=np.int64)):
        raise FormatError(f"{name}: shape {shape_text(golden.shape)}, but the tensor is {shape_text(shape)}")
    return golden.reshape(shape)


def padding_note(ours: Observation, surface: np.ndarray, tensor: np.ndarray) -> str | None:
    """A remark when only channels beyond the tensor's differ: the hardware writes them, nobody should read them."""
    if surface.shape != ours.written.shape or np.array_equal(ours.written, surface):
        return None
    return PADDING if np.array_equal(ours.tensor, tensor) else None


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
    runtime: Runtime, surfaces: Sequence[bytes], layers: dict[tuple[int, int], str] | None = None
) -> tuple[list[Observation], list[bytes]]:
    """A whole run: every operation's observation in completion order, and the raw outputs."""
    observer = Observer(runtime.program(layers))
    outputs = runtime.run_raw(surfaces, observer.see)
    return observer.observations, outputs
