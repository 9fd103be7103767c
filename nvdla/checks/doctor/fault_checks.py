"""Faults of NVIDIA's compiler that a loadable shows, and what its CPU layers really compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvdla.checks.doctor.doctor import CheckContext, check
from nvdla.checks.lint.linter import Said
from nvdla.loadable.descriptors.enums import Activation, EmuOpType, OpType, PoolMode, Precision
from nvdla.program.operation import Operation


def _uses_lut(subject: Operation) -> bool:
    return subject.type == OpType.CDP or (subject.op.y_op.enable and subject.op.y_op.act == Activation.LUT)


def _with_tables(context: CheckContext) -> Iterator[tuple[Operation, Any]]:
    for subject in context.of_type(OpType.SDP, OpType.CDP):
        if subject.lut is not None and _uses_lut(subject):
            yield subject, subject.lut


@check(
    "error",
    "Compile the layer in fp16, or fill the table.",
    headline="empty lookup table",
)
def lookup_tables_are_filled(context: CheckContext) -> Iterator[Said]:
    """A lookup table in use has entries. NVIDIA's compiler leaves those of int8 Sigmoid and TanH empty, and the
    result is constant."""
    for subject, lut in _with_tables(context):
        if len({*lut.linear_exp_table}) == 1 and len({*lut.linear_only_table}) == 1:
            values = f"{lut.linear_exp_table[0]} in LE, {lut.linear_only_table[0]} in LO"
            yield subject, f"every entry of table {subject.op.lut_index} is the same ({values})"


@check("error", "Add the table to the task, or switch the lookup off.", headline="lookup table that does not exist")
def lookup_tables_exist(context: CheckContext) -> Iterator[Said]:
    """An SDP operation with a lookup (activation LUT) has a table."""
    for subject in context.of_type(OpType.SDP):
        if _uses_lut(subject) and subject.lut is None:
            yield subject, f"y_op looks up, but lut_index is {subject.op.lut_index}"


@check("error", "Correct the start and end of the table.", headline="empty lookup range")
def lookup_ranges_are_not_empty(context: CheckContext) -> Iterator[Said]:
    """The range of a linear table has a start below its end; otherwise every input is out of range."""
    for subject, lut in _with_tables(context):
        if Precision(precision_of(subject)) == Precision.FP16:
            continue
        start, end = (edge(subject, getattr(lut, f"linear_only_{name}")) for name in ("start", "end"))
        if start >= end:
            yield subject, f"table LO of LUT {subject.op.lut_index} covers {start} to {end}"


def precision_of(subject: Operation) -> int:
    """Return the precision of the numbers that an operation takes."""
    return subject.op.src_precision if subject.type == OpType.SDP else subject.op.in_precision


def edge(subject: Operation, value: int) -> int:
    """Return a bound of a table of integers. Bounds are 32-bit numbers in the SDP, 38-bit ones in the CDP."""
    bits = 32 if subject.type == OpType.SDP else 38
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@check(
    "warning",
    "Compile the first layer for feature input, or for nv_small; compare with the float model.",
    headline="image kernels with wrong weights",
)
def wide_image_kernels_have_their_weights(context: CheckContext) -> Iterator[Said]:
    """The first convolution on an image with kernels of 5 columns and joined lines (post-extension) has correct
    weights. NVIDIA's compiler packs them incorrectly on nv_full and nv_large; the correlation with the float model is
    0.82 to 0.99. This toolkit's are correct.
    """
    for subject in context.of_type(OpType.CONV):
        op = subject.op
        if context.is_own(subject):
            continue
        components = max(subject.surface.src_data.channel, 1)
        if subject.is_image and op.post_extension and op.kernel_channel_csc == 5 * components:
            yield (
                subject,
                (
                    f"5 columns of {components} components, {op.kernel_height_csc} lines, {1 << op.post_extension} "
                    "lines joined"
                ),
            )


@check(
    "note",
    "No change needed; at the borders the values differ from Caffe, which divides by the part inside the image.",
    headline="average that counts the padding",
)
def averages_count_the_padding(context: CheckContext) -> Iterator[Said]:
    """Average pooling divides by the whole kernel, padding included."""
    for subject in context.of_type(OpType.PDP):
        op = subject.op
        padding = (op.pad_left, op.pad_right, op.pad_top, op.pad_bottom)
        if op.pool_mode == PoolMode.AVG and any(padding):
            yield subject, "averages with padding left,right,top,bottom " + ",".join(map(str, padding))


@check(
    "warning",
    "Scale in an SDP operation instead.",
    headline="power layer without effect",
)
def power_layers_have_an_effect(context: CheckContext) -> Iterator[Said]:
    """A Power layer on the CPU has a factor, a shift or a power. NVIDIA's compiler always writes 1, 0 and 1, so the
    layer only copies."""
    for task_id, operation in _cpu_operations(context, EmuOpType.POWER):
        op = operation.op
        if (op.power, op.scale, op.shift) == (1.0, 1.0, 0.0):
            yield task_id, f"CPU operation {task_id}/{operation.index}: (0 + 1 x) ** 1 copies its input"


@check("warning", "Make the softmax's input a vector (1 x 1 pixels).", headline="softmax over a part of its input")
def softmax_input_is_one_pixel(context: CheckContext) -> Iterator[Said]:
    """The input of a softmax on the CPU is one pixel. It processes one element per channel from the start of its
    buffer, and ignores further pixels."""
    for task_id, operation in _cpu_operations(context, EmuOpType.SOFTMAX):
        source = operation.src
        if source.width * source.height > 1:
            yield (
                task_id,
                (
                    f"CPU operation {task_id}/{operation.index}: {source.channel} of "
                    f"{source.channel * source.width * source.height} elements are computed"
                ),
            )


@check("error", "Calibrate again: the scale of the CPU layer's tensors was lost.", headline="CPU layer without scales")
def cpu_layers_have_scales(context: CheckContext) -> Iterator[Said]:
    """CPU operations on int8 have positive scale factors, because they convert integers to real numbers and back."""
    for kind in (EmuOpType.POWER, EmuOpType.SOFTMAX):
        for task_id, operation in _cpu_operations(context, kind):
            for name in ("input_scale_factor", "output_scale_factor"):
                value = getattr(operation.op.common, name)
                if not value > 0:
                    yield task_id, f"CPU operation {task_id}/{operation.index}: {name} is {value:g}"


def _cpu_operations(context: CheckContext, kind: EmuOpType) -> Iterator[tuple[int, Any]]:
    for task_id, task in context.cpu_tasks.items():
        for position in range(len(task)):
            if task.containers[position].power_op.common.op_type == kind:
                yield task_id, task.operations()[position]
