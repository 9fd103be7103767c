"""Checks of the results of a run on real inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nvdla.checks.doctor.doctor import CheckContext, TensorHealth, check
from nvdla.checks.doctor.fault_checks import edge, precision_of
from nvdla.checks.doctor.number_checks import some
from nvdla.checks.lint.linter import Said
from nvdla.errors import counted
from nvdla.loadable.descriptors.enums import OpType, Precision
from nvdla.program.accesses import STAGES
from nvdla.program.operation import Operation
from nvdla.program.values import constant_bytes

#: shares of elements at the ends of the type
SOME, MANY = 0.01, 0.10
#: elements of a channel that must have been seen before it is called dead
ENOUGH = 64
#: elements at the ends of the type that are too few to judge
FEW = 5
OUT_OF_RANGE = 0.01
#: equal entries at the end of a table whose function no longer changes
FLAT = 4


def _computes(subject: Operation, health: TensorHealth) -> bool:
    """Check whether the operation makes new numbers, enough of them to judge: pooling and Rubik only forward what was
    there before them, and one position that is spread over a map gives the same number everywhere."""
    if subject.type == OpType.PDP:
        source = subject.surface.src_data
        if source.width * source.height == 1 and math.prod(health.shape[2:]) > 1:
            return False
    return health.elements >= ENOUGH and (health.engine in ("sdp", "cdp") or bool(health.taken_from))


def _saturated(subject: Operation, health: TensorHealth) -> float:
    """The share of its integers that saturate at the ends of their type; 0 if there are too few to judge."""
    if not _computes(subject, health) or health.dtype.kind != "i":
        return 0.0
    return health.saturated if round(health.saturated * health.elements) > FEW else 0.0


def _reason(health: TensorHealth) -> str:
    low, high = health.limits
    return (
        f"{health.saturated:.1%} of {health.elements} elements are at the ends ({health.share_of(low):.1%} are "
        f"{low:g}, {health.share_of(high):.1%} are {high:g})"
    )


@check(
    "error",
    "Check that the input is like the calibration data, and that rounding keeps it (notes of compile). Else calibrate "
    "again: the scale is too small.",
    of_data=True,
    headline="outputs saturated",
)
def outputs_are_not_cut_off(context: CheckContext) -> Iterator[Said]:
    """Less than 10 % of a tensor's integers are at the ends of their type. Tensors with fewer than 64 elements in all
    runs are not judged."""
    for subject, health in context.measured():
        if _saturated(subject, health) > MANY:
            yield subject, _reason(health)


@check(
    "warning",
    "Check the histogram. Calibrate with more images, or with a larger maximum.",
    of_data=True,
    headline="outputs that saturate",
)
def outputs_hardly_saturate(context: CheckContext) -> Iterator[Said]:
    """Less than 1 % of a tensor's integers are at the ends of their type. Entropy calibration saturates that many.
    Tensors with fewer than 64 elements, or with at most 5 at the ends, in all runs are not judged: add images."""
    for subject, health in context.measured():
        if SOME < _saturated(subject, health) <= MANY:
            yield subject, _reason(health)


@check(
    "warning",
    "Calibrate again: the scale of this tensor is larger than its values need.",
    of_data=True,
    headline="outputs in a small part of their range",
)
def outputs_use_their_range(context: CheckContext) -> Iterator[Said]:
    """The largest int8 magnitude of a tensor, or of another with its scale, is at least a quarter of the range (32 of
    127). A final sigmoid or tanh, whose range is known, is not judged."""

    def peak(health: TensorHealth) -> float:
        low, high = health.range
        return max(health.zero - low, high - health.zero)

    def scale(health: TensorHealth) -> float | None:
        return context.names.scales.get(context.names.tensor(health.layer) or "")

    used = {scale(health) for _, health in context.measured() if 4 * peak(health) >= health.room} - {None}
    for subject, health in context.measured():
        is_small = health.dtype == np.int8 and 0 < 4 * peak(health) < health.room
        is_final = any(context.loadable.memory(access.memory).is_output for access in subject.writes)
        is_small &= not (is_final and health.limited.all())
        if is_small and _computes(subject, health) and scale(health) not in used:
            low, high = health.range
            smaller = health.room / peak(health)
            yield subject, f"values from {low:g} to {high:g}: a scale {smaller:.1f} times smaller would hold them"


def _has_channels(context: CheckContext, subject: Operation, health: TensorHealth) -> bool:
    """Check whether the channels can be judged: enough elements of each, and new ones. A convolution that the compiler
    made, such as for a Concat, copies channels next to zeros."""
    written = (context.by_place.get((health.task, index)) for index in health.taken_from)
    is_made = any(item is not None and item.type == OpType.CONV and not context.is_trained(item) for item in written)
    return _computes(subject, health) and health.per_channel >= ENOUGH and not is_made


def _copies_constant(context: CheckContext, subject: Operation) -> bool:
    """Check whether an SDP operation writes a constant of the loadable unchanged, such as the zeros of a padding."""
    if subject.type != OpType.SDP or any(getattr(subject.op, f"{name}_op").enable for name in STAGES):
        return False
    source = dict(subject.used_cubes()).get("src_data")
    return source is not None and constant_bytes(context.loadable, subject, source) is not None


@check(
    "error",
    "Check the layer's weights, bias and scale.",
    of_data=True,
    headline="outputs all zero",
)
def outputs_are_not_all_zero(context: CheckContext) -> Iterator[Said]:
    """A tensor has an element that is not zero."""
    for subject, health in context.measured():
        is_zero = health.range == (health.zero, health.zero) and not health.special
        if _computes(subject, health) and is_zero and not _copies_constant(context, subject):
            yield subject, f"all {health.elements} elements of {counted(health.runs, 'run')} are zero"


@check(
    "note",
    "Prune these channels if they are zero in the float model, too. Otherwise the scale of the tensor is too coarse.",
    of_data=True,
    headline="dead channels",
)
def channels_are_alive(context: CheckContext) -> Iterator[Said]:
    """No channel is zero everywhere, in all runs. Only channels with at least 64 elements count."""
    for subject, health in context.measured():
        dead = health.dead
        if dead and len(dead) < health.shape[1] and _has_channels(context, subject, health):
            yield subject, f"{len(dead)} of {health.shape[1]} channels always zero: {some(dead)}"


@check(
    "note",
    "Check the kernels. If the channel changes in the float model, the scale of the tensor is too coarse.",
    of_data=True,
    headline="constant channels",
)
def channels_change(context: CheckContext) -> Iterator[Said]:
    """No channel has the same value everywhere. Only channels with at least 64 elements count."""
    for subject, health in context.measured():
        constant = health.constant
        if constant and _has_channels(context, subject, health):
            yield subject, f"{len(constant)} of {health.shape[1]} channels never changed: {some(constant)}"


@check("warning", "Widen the table's range, or scale its input.", of_data=True, headline="lookups out of range")
def lookups_stay_in_range(context: CheckContext) -> Iterator[Said]:
    """Less than 1 % of the lookups are outside the ranges of both tables, where a straight line is used. Lookups beyond
    an end where the function no longer changes do not count."""
    for subject, health in context.measured():
        counts = health.statistics
        under = counts.get("lut_uflow", counts.get("lut_underflow", 0))
        over = counts.get("lut_oflow", counts.get("lut_overflow", 0))
        total = under + over + sum(counts.get(name, 0) for name in ("lut_le_hit", "lut_lo_hit", "lut_hybrid"))
        if subject.lut is None or not total or health.limited.all():
            continue
        goes_on_below, goes_on_above = _flat_ends(subject)
        under, over = under * (not goes_on_below), over * (not goes_on_above)
        if (under + over) / total > OUT_OF_RANGE:
            yield subject, f"{under} of {total} lookups were below the tables, {over} above"


def _flat_ends(subject: Operation) -> tuple[bool, bool]:
    """Return whether a table of integers goes on as it ends, below and above. Numbers at its start count as below it:
    the least one of an int8 table for all of them."""
    lut = subject.lut
    if lut is None or Precision(precision_of(subject)) == Precision.FP16:
        return False, False
    table, op = np.array(lut.linear_only_table[:]), subject.op
    offset = op.in_cvt.offset if subject.type == OpType.CDP else 0
    takes_all = precision_of(subject) == Precision.INT8 and edge(subject, lut.linear_only_start) <= -128 - offset
    is_flat = np.ptp(table[:FLAT]) <= 1 and lut.linear_only_underflow_slope.data_i.scale == 0
    return takes_all or is_flat, np.ptp(table[-FLAT:]) <= 1 and lut.linear_only_overflow_slope.data_i.scale == 0


@check(
    "error",
    "Check the inputs and the previous layers: a NaN spreads to all later layers.",
    of_data=True,
    headline="NaN or infinity",
)
def numbers_are_finite(context: CheckContext) -> Iterator[Said]:
    """No NaN or infinity in an fp16 tensor."""
    for subject, health in context.measured():
        if health.special:
            yield subject, f"{health.special} of {health.elements} elements are NaN or infinite"


@check("warning", "Scale the network down: the largest fp16 number is 65504.", of_data=True, headline="fp16 overflow")
def fp16_values_do_not_overflow(context: CheckContext) -> Iterator[Said]:
    """No fp16 element is at the end of its range, where NVDLA saturates."""
    for subject, health in context.measured():
        low, high = health.limits
        if health.dtype.kind == "f" and _computes(subject, health) and (health.share_of(low) or health.share_of(high)):
            yield subject, f"{health.saturated:.2%} of {health.elements} elements are {low:g} or {high:g}"


@check(
    "error",
    "Raise out_cvt.truncate of the convolution, or split the channels.",
    of_data=True,
    headline="accumulator saturates",
)
def accumulators_do_not_saturate(context: CheckContext) -> Iterator[Said]:
    """No sum of a convolution saturates in the accumulator's 32 bits."""
    for (task, index), counts in context.accumulators.items():
        subject = context.by_place.get((task, index))
        if subject is not None and subject.type == OpType.CONV and counts:
            yield subject, f"{counted(counts, 'sum')} saturated"


@check("error", "See the message; 'nvdla lint' gives details.", headline="run that failed")
def the_run_succeeds(context: CheckContext) -> Iterator[Said]:
    """The loadable runs on its configuration."""
    if context.run_error is not None:
        yield context.run_error
