"""DoctorReport of a loadable: check context, tensor statistics, scales, and the report of all checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from nvdla.checks.compare.comparison import Observation, Observer
from nvdla.checks.diff import operand
from nvdla.checks.lint.linter import MOST_OF_A_RULE, Context, Finding, Rule, lint, rule, sort_key
from nvdla.emulator.memory.linker import LinkedLoadable
from nvdla.errors import DescriptorError, NvdlaError
from nvdla.loadable.descriptors.enums import Activation, OpType, Precision, SdpMode, SdpType
from nvdla.loadable.model import Loadable
from nvdla.program.accesses import STAGES
from nvdla.program.naming import Names
from nvdla.program.operation import Operation
from nvdla.program.program import Program
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document, Json
from nvdla.util.registry import Severity, modules_of

TRAINED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Operators of a model with trained kernels. The compiler makes the kernels of others, such as Concat."""
HISTOGRAM_BINS = 16
MOST_CHANNELS = 64


@dataclass
class TensorHealth:
    """A tensor of the network over all runs, or one operation's output where more is not known. Integers are counted
    value by value, fp16 bit pattern by bit pattern. ``zero``: the element that stands for 0. ``limited``: whether
    nothing is lost at the lower and the upper end of the type, of each channel (2, C). ``ends``: elements there."""

    task: int
    index: int
    engine: str
    layer: str | None
    taken_from: tuple[int, ...]
    dtype: np.dtype
    shape: tuple[int, ...]
    zero: int = 0
    limited: np.ndarray = field(default_factory=lambda: np.zeros((2, 1), bool), repr=False)
    runs: int = 0
    counts: np.ndarray | None = field(default=None, repr=False)
    channel_low: np.ndarray | None = field(default=None, repr=False)
    channel_high: np.ndarray | None = field(default=None, repr=False)
    ends: np.ndarray | int = field(default=0, repr=False)
    statistics: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, observation: Observation, names: Names) -> TensorHealth:
        """A tensor that nothing is known of yet but what ``names`` say."""
        return cls(
            observation.task,
            observation.index,
            observation.engine,
            observation.layer,
            observation.taken_from,
            observation.dtype,
            observation.tensor.shape,
            observation.zero(names),
            observation.at_limits(names, observation.is_part),
        )

    def add(self, observation: Observation) -> None:
        """One more run."""
        tensor = observation.tensor
        bits = np.ascontiguousarray(tensor).view(f"u{tensor.itemsize}").reshape(-1)
        counts = np.bincount(bits, minlength=1 << (8 * tensor.itemsize))
        low, high = tensor.min(axis=(0, 2, 3)), tensor.max(axis=(0, 2, 3))
        if self.counts is None or self.channel_low is None or self.channel_high is None:
            self.counts, self.channel_low, self.channel_high = counts, low, high
        else:
            self.counts = self.counts + counts
            self.channel_low = np.minimum(self.channel_low, low)
            self.channel_high = np.maximum(self.channel_high, high)
        self.ends = self.ends + np.array([(tensor == end).sum(axis=(0, 2, 3)) for end in self.limits])
        self.runs += 1
        for name, value in observation.statistics.items():
            self.statistics[name] = self.statistics.get(name, 0) + value

    @property
    def elements(self) -> int:
        """Elements seen, over all runs."""
        return 0 if self.counts is None else int(self.counts.sum())

    @property
    def per_channel(self) -> int:
        """Elements of a channel over all runs."""
        return self.elements // max(self.shape[1], 1)

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """(values that occur, how often), in ascending order; NaN and infinities of fp16 are left out."""
        counts = np.empty(0, np.int64) if self.counts is None else self.counts
        bits = np.flatnonzero(counts)
        values = bits.astype(f"u{self.dtype.itemsize}").view(self.dtype).astype(np.float64)
        finite = np.isfinite(values)
        order = np.argsort(values[finite], kind="stable")
        return values[finite][order], counts[bits[finite][order]]

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the greatest value of the type."""
        limits = np.iinfo(self.dtype) if self.dtype.kind in "iu" else np.finfo(self.dtype)
        return float(limits.min), float(limits.max)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest value seen; 0 where there was none."""
        values, _ = self.values()
        return (float(values[0]), float(values[-1])) if values.size else (0.0, 0.0)

    def share_of(self, value: float) -> float:
        """The part of the elements that have this value, 0 to 1."""
        values, counts = self.values()
        return float(counts[values == value].sum()) / max(self.elements, 1)

    @property
    def saturated(self) -> float:
        """The share of elements at the ends of the type, but for ends at which nothing is lost. The lower one is such
        an end where it stands for 0: there a ReLU ends."""
        lost = ~self.limited & (np.array(self.limits) != self.zero)[:, None]
        return float(np.sum(self.ends * lost)) / max(self.elements, 1)

    @property
    def room(self) -> float:
        """Units between the element that stands for 0 and the farther end of the type."""
        low, high = self.limits
        return max(self.zero - low, high - self.zero) if self.zero else high

    @property
    def special(self) -> int:
        """NaN and infinities."""
        _, counts = self.values()
        return self.elements - int(counts.sum())

    @property
    def dead(self) -> list[int]:
        """Channels that were zero everywhere."""
        return [
            int(channel)
            for channel in np.flatnonzero((self.channel_low == self.zero) & (self.channel_high == self.zero))
        ]

    @property
    def constant(self) -> list[int]:
        """Channels with one value everywhere that is not zero."""
        same = (self.channel_low == self.channel_high) & (self.channel_low != self.zero)
        return [int(channel) for channel in np.flatnonzero(same)]

    def histogram(self) -> dict[str, list[float]]:
        """Equally wide bins over the range of the type (integers) or of what occurs (fp16): edges and counts."""
        values, counts = self.values()
        low, high = self.limits if self.dtype.kind in "iu" else self.range
        edges = np.linspace(low, high + (self.dtype.kind in "iu"), HISTOGRAM_BINS + 1)
        if not values.size or low == high:
            return {"edges": [low, high], "counts": [int(counts.sum())]}
        bin_counts, _ = np.histogram(values, edges, weights=counts)
        return {"edges": edges.tolist(), "counts": bin_counts.astype(int).tolist()}

    def as_dict(self) -> dict[str, Json]:
        """Everything as plain data, for JSON."""
        low, high = self.range
        dead, constant = self.dead, self.constant
        return {
            "task": self.task,
            "operation": self.index,
            "engine": self.engine,
            "fused": list(self.taken_from),
            "layer": self.layer,
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "runs": self.runs,
            "min": low,
            "max": high,
            "zero_point": self.zero,
            "zero_share": self.share_of(self.zero),
            "saturated_share": self.saturated,
            "special": self.special,
            "channels": self.shape[1],
            "dead_count": len(dead),
            "dead_channels": dead[:MOST_CHANNELS],
            "constant_count": len(constant),
            "constant_channels": constant[:MOST_CHANNELS],
            "histogram": self.histogram(),
            "statistics": self.statistics,
        }


class TensorStatistics:
    """Collects the health of all operations; give :meth:`see` to an
    :class:`~nvdla.checks.compare.comparison.Observer`."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.tensors: dict[tuple[int, int], TensorHealth] = {}
        self._parts: dict[tuple[str | None, int], set[tuple[int, int]]] = {}

    def see(self, observation: Observation) -> None:
        """Note an operation's output. What BDMA moves and what stays on the fly has no elements to look at, and of an
        intermediate result nothing states the zero point. The last of several operations that write one tensor has all
        of it: its parts are no longer looked at."""
        if observation.surface is None or observation.engine == "bdma" or observation.is_intermediate:
            return
        key, place = (observation.task, observation.index), observation.place
        parts = self._parts.setdefault((place.tensor, place.image), set()) if place is not None else set()
        if observation.is_part:
            parts.add(key)
        elif observation.whole is not None:
            for part in parts:
                self.tensors.pop(part, None)
        if key not in self.tensors:
            self.tensors[key] = TensorHealth.of(observation, self.names)
        self.tensors[key].add(observation)


@dataclass(frozen=True)
class Scale:
    """One converter. ``real`` = scale / 2**truncate; ``bits``: significant bits of the scale; None where it comes
    from memory channel by channel."""

    task: int
    operation: int
    engine: str
    layer: str | None
    converter: str
    scale: int | None
    truncate: int
    offset: int
    real: float | None
    bits: int | None

    def as_dict(self) -> dict[str, Json]:
        """Everything as plain data, for JSON."""
        return asdict(self)


def scales(context: Context) -> list[Scale]:
    """All converters of integer operations that do something."""
    return [scale for subject in context.subjects if subject.roi == 0 for scale in scales_of(subject)]


def scales_of(subject: Operation) -> Iterator[Scale]:
    """The converters of one operation in the order of the data. fp16 has none."""
    op = subject.op
    if subject.type == OpType.CONV and op.out_precision != Precision.FP16:
        yield from _converter(subject, "in_cvt", op.in_cvt, op.in_cvt.enable)
        if op.out_cvt.truncate:
            yield _scale(subject, "accumulator", 1, op.out_cvt.truncate, 0)
    if subject.type == OpType.SDP and op.src_precision != Precision.FP16:
        for name in STAGES:
            yield from _stage(subject, name, getattr(op, f"{name}_op"))
        # The SDP converts whether the descriptor specifies enable or not (kmd/firmware/sdp.c writes the registers).
        yield from _converter(subject, "out_cvt", op.out_cvt, True)
    if subject.type == OpType.CDP and op.in_precision != Precision.FP16:
        yield from _converter(subject, "in_cvt", op.in_cvt, True)
        yield from _converter(subject, "out_cvt", op.out_cvt, True)


def _converter(subject: Operation, name: str, cvt: Any, used: bool) -> Iterator[Scale]:
    if used and (cvt.scale, cvt.truncate, cvt.offset) != (1, 0, 0):
        yield _scale(subject, name, cvt.scale, cvt.truncate, cvt.offset)


def _stage(subject: Operation, name: str, stage: Any) -> Iterator[Scale]:
    if not stage.enable or stage.type not in (SdpType.MUL, SdpType.BOTH):
        return
    is_slope = stage.act == Activation.PRELU and stage.mode == SdpMode.PER_LAYER
    if is_slope and stage.mul_operand == 0:  # a ReLU: the factor of negative numbers alone
        return
    operand = stage.mul_operand if stage.mode == SdpMode.PER_LAYER else None
    yield _scale(subject, f"{name} multiplier", operand, stage.truncate, 0)


def _scale(subject: Operation, name: str, scale: int | None, truncate: int, offset: int) -> Scale:
    real = None if scale is None else math.ldexp(scale, -truncate)
    bits = None if scale is None else abs(scale).bit_length()
    place = (subject.task, subject.index, subject.engine, subject.layer)
    return Scale(*place, name, scale, truncate, offset, real, bits)


CHECKS: list[Rule] = []
check = partial(rule, into=CHECKS)


@dataclass(frozen=True)
class CheckContext(Context):
    """``names``: layers and scales; ``calibration``: the table as given; ``tensors``: measured health, empty
    without a run; ``run_error``: why the loadable could not be run; ``accumulators``: saturated sums by convolution."""

    names: Names = field(default_factory=Names)
    calibration: dict[str, dict[str, Json]] | None = None
    tensors: dict[tuple[int, int], TensorHealth] = field(default_factory=dict)
    run_error: str | None = None
    accumulators: dict[tuple[int, int], int] = field(default_factory=dict)

    @cached_property
    def scales(self) -> list[Scale]:
        """Every converter of an integer operation."""
        return scales(self)

    @cached_property
    def by_place(self) -> dict[tuple[int, int], Operation]:
        """Operations of ROI 0 by task and index."""
        return {(subject.task, subject.index): subject for subject in self.subjects if subject.roi == 0}

    def is_trained(self, subject: Operation) -> bool:
        """Check whether the kernels of a convolution are those of the model: unless its layer file states operators
        without kernels alone."""
        operators = {self.names.operators.get(layer) for layer in (subject.layer or "").split("+")}
        return None in operators or not operators.isdisjoint(TRAINED)

    def trained_convolutions(self) -> Iterator[Operation]:
        """The convolutions with kernels of the model."""
        return filter(self.is_trained, self.of_type(OpType.CONV))

    def measured(self) -> Iterator[tuple[Operation, TensorHealth]]:
        """Every operation with its observed outputs."""
        for place, health in self.tensors.items():
            if place in self.by_place:
                yield self.by_place[place], health

    def is_own(self, subject: Operation) -> bool:
        """Check whether this toolkit compiled the operation: no other compiler writes shapes into layer files."""
        return self.names.tensor(subject.layer) in self.names.shapes

    def operand(self, subject: Operation, name: str) -> np.ndarray | None:
        """The elements of weights or operands that the loadable brings along."""
        return operand(self.loadable, subject, name)


#: makes the surfaces of each run once the network's inputs are known
Inputs = Callable[[Any], list[list[bytes]]]


@dataclass(frozen=True)
class DoctorReport:
    """All findings (the worst first), the scales, and the health of every tensor that was seen."""

    loadable: str
    configuration: str | None
    abi: str
    runs: int
    run_error: str | None
    findings: tuple[Finding, ...]
    scales: list[dict[str, Json]] = field(repr=False)
    tensors: list[Document] = field(repr=False)

    def count(self, severity: str) -> int:
        """Count how many findings have this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def as_dict(self) -> dict[str, Json]:
        """Everything as plain data, for JSON."""
        return {
            "loadable": self.loadable,
            "configuration": self.configuration,
            "abi": self.abi,
            "runs": self.runs,
            "run_error": self.run_error,
            "counts": {severity: self.count(severity) for severity in map(str, Severity)},
            "findings": [finding.as_dict() for finding in self.findings],
            "scales": self.scales,
            "tensors": self.tensors,
        }


def checks() -> list[Rule]:
    """The doctor's own checks in the order of their documentation: every module ``*_checks.py`` of this package."""
    modules_of("nvdla.checks.doctor", "_checks")
    return sorted(CHECKS, key=lambda rule: rule.chapter)


@dataclass
class FirstRun:
    """First run of the check: its raw inputs and outputs, and what was written to memory. ``runtime`` is None
    where there was none that came to its end."""

    runtime: Any = None
    surfaces: list[bytes] = field(default_factory=list, repr=False)
    outputs: list[bytes] = field(default_factory=list, repr=False)
    observations: list[Observation] = field(default_factory=list, repr=False)


@by_annotations
def examine(
    subject: Loadable | Program,
    config: str = "auto",
    abi: str = "auto",
    *,
    names: Names | None = None,
    calibration: dict[str, Document] | None = None,
    inputs: Inputs | None = None,
    threads: int | None = None,
    recording: FirstRun | None = None,
    random: bool = False,
    linked: LinkedLoadable | None = None,
) -> DoctorReport:
    """Examine a loadable: the linter's rules, the doctor's checks, and with ``inputs`` a run on each.

    ``recording`` is filled by the first run. ``random``: the inputs are random numbers, so checks that judge what real
    data show are left out. Raises ConfigError for an unknown configuration, FormatError for inputs
    that do not fit; a loadable that cannot run is a finding.
    """
    names = names or Names()
    program = subject if isinstance(subject, Program) else _decoded(subject, config, abi, names)
    statistics, runs, run_error = TensorStatistics(names), 0, None
    accumulators: dict[tuple[int, int], int] = {}
    if inputs is not None:
        runs, run_error = _run(program, threads, inputs, statistics, accumulators, recording or FirstRun())
    report = lint(program, dry=not runs or run_error is not None, linked=linked)  # a run finds more than a dry run
    context = CheckContext(
        program,
        names,
        calibration,
        statistics.tensors,
        run_error if report.clean else None,  # the linter has said why
        accumulators,
    )
    findings = [
        *report.findings,
        *(finding for rule in checks() if not (random and rule.of_data) for finding in _findings(rule, context)),
    ]
    return DoctorReport(
        report.loadable,
        report.configuration,
        report.abi,
        runs,
        run_error,
        tuple(sorted(findings, key=sort_key)),
        [scale.as_dict() for scale in context.scales],
        [tensor.as_dict() for tensor in statistics.tensors.values()],
    )


def _decoded(loadable: Loadable, config: str, abi: str, names: Names) -> Program:
    """Decode a loadable, a broken one as far as possible. Raises ConfigError, DescriptorError."""
    try:
        return Program.of(loadable, config, abi, names.layers)
    except DescriptorError:
        return Program.of(loadable, config, abi, names.layers, checked=False)


def _findings(rule: Rule, context: CheckContext) -> list[Finding]:
    try:
        return list(rule.findings(context))[:MOST_OF_A_RULE]
    except NvdlaError as error:
        return [rule.finding(f"the check failed: {error}", failed=True)]


def _run(
    program: Program,
    threads: int | None,
    inputs: Inputs,
    statistics: TensorStatistics,
    accumulators: dict[tuple[int, int], int],
    recording: FirstRun,
) -> tuple[int, str | None]:
    """Run on every input. Return the number of runs, and the reason why the loadable cannot run."""
    from nvdla.runtime import Runtime

    done = 0

    def see(observation: Observation) -> None:
        statistics.see(observation)
        if done == 0 and observation.surface is not None:
            recording.observations.append(observation)
        if observation.engine == "conv":
            place = observation.task, observation.index
            accumulators[place] = accumulators.get(place, 0) + observation.statistics.get("saturated", 0)

    try:
        if program.broken:
            raise DescriptorError(next(iter(program.broken.values())))
        runtime = Runtime(program, threads=threads)
    except NvdlaError as error:
        return 0, str(error)
    for surfaces in inputs(runtime):
        try:
            outputs = runtime.run_raw(surfaces, Observer(program, see, statistics.names).see)
        except NvdlaError as error:
            return done, str(error)
        if done == 0:
            recording.runtime, recording.surfaces, recording.outputs = runtime, surfaces, outputs
        done += 1
    return done, None
