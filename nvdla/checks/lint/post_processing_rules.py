"""The engines after the convolution: SDP, PDP, CDP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nvdla.checks.lint.linter import Context, Order, Said, rule
from nvdla.loadable.descriptors.enums import MemType, OpType, Precision
from nvdla.loadable.descriptors.meaning import reads_operands
from nvdla.loadable.descriptors.task import DlaTask
from nvdla.program.accesses import STAGES, Access, share_bytes
from nvdla.program.operation import Key, Operation

MAX_POOL = 8
LOCAL_SIZES = (3, 5, 7, 9)


def _size(cube: Any) -> tuple[int, int, int]:
    return cube.width, cube.height, cube.channel


@rule("error", "Make source and destination the same size.", headline="SDP sizes differ")
def sdp_keeps_the_size(context: Context) -> Iterator[Said]:
    """Width, height and channels of source and destination of the SDP are equal.

    The registers contain only one size. A destination of another size is not filled, or overrun.
    """
    for subject in context.of_type(OpType.SDP):
        source, target = subject.surface.src_data, subject.surface.dst_data
        if _size(source) != _size(target):
            yield subject, f"reads width x height x channels {_size(source)}, writes {_size(target)}"


@rule("error", "Give the producer's output and the consumer's input the same size.", headline="on-the-fly sizes differ")
def on_the_fly_sizes_agree(context: Context) -> Iterator[Said]:
    """Producer and consumer on the fly have the same size; otherwise both deadlock.

    Engines are paired in the order of their queues: the first SDP operation with input on the fly belongs to the first
    convolution, and so on.
    """
    givers = {subject.key: subject for subject in context.subjects}
    for key, taker in context.program.takers.items():
        giver = givers[key]
        given, taken = _size(giver.surface.dst_data), _size(taker.surface.src_data)
        if given != taken and not taker.roi:
            yield (
                taker,
                f"takes width x height x channels {taken} on the fly, but operation {giver.label} "
                f"({giver.engine.upper()}) forwards {given}",
            )


@rule("error", "Store the operands in two bytes.", headline="one-byte operands for 16-bit data")
def wide_data_have_wide_operands(context: Context) -> Iterator[Said]:
    """X2 and Y use operands of two bytes for 16-bit data from memory. With one byte the C model stops
    (cmod/sdp/NV_NVDLA_sdp.cpp:415)."""
    for subject in context.of_type(OpType.SDP):
        op = subject.op
        wide = op.src_precision != Precision.INT8 and op.dst_precision != Precision.INT8
        if not wide or subject.surface.src_data.type == MemType.HW:
            continue
        for name in ("x2", "y"):
            stage = getattr(op, f"{name}_op")
            if reads_operands(stage) and stage.precision == Precision.INT8:
                yield subject, f"{name}_op has operands of one byte for {Precision(op.src_precision).name} data"


@rule(
    "error",
    "Set the surface stride of a 1 x 1 cube to one atom.",
    of_atoms=True,
    headline="single pixel with a wrong surface stride",
)
def single_pixels_of_the_sdp_are_packed(context: Context) -> Iterator[Said]:
    """The surfaces of a 1 x 1 cube that the SDP reads or writes in memory are contiguous.

    NVIDIA's C model stops at another surface stride (cmod/sdp/NV_NVDLA_sdp.cpp:385 and :1497); the hardware ignores it.
    """
    for subject in context.of_type(OpType.SDP):
        for name in ("src_data", "dst_data"):
            cube = getattr(subject.surface, name)
            if cube.type == MemType.HW or (cube.width, cube.height) != (1, 1) or subject.op.batch_num > 1:
                continue
            if cube.surf_stride != subject.atom:
                yield subject, f"{name} is 1 x 1 with surface stride {cube.surf_stride}, must be {subject.atom}"


@rule(
    "error",
    "Bind an address, or take the data on the fly and operands from the descriptor (per layer).",
    headline="data without an address",
)
def operands_have_an_address(context: Context) -> Iterator[Said]:
    """Inputs and results in memory have an address, and so have operands of the SDP (per kernel, per point)."""
    static = [task.task.id for task in context.tasks.values() if not task.network.dynamic_roi]  # addresses come later
    for subject in context.of_type(OpType.CONV, OpType.SDP, OpType.PDP, OpType.CDP):
        weights = ("weight_data",) * (subject.type == OpType.CONV)
        for name in ("src_data", "dst_data", *weights) if subject.key[0] in static else ():
            cube = getattr(subject.surface, name)
            if cube.type != MemType.HW and cube.address == -1:
                yield subject, f"{name} is in memory and has no address"
    for subject in context.of_type(OpType.SDP):
        for name in STAGES:
            cube = getattr(subject.surface, f"{name}_data")
            if reads_operands(getattr(subject.op, f"{name}_op")) and cube.address == -1:
                yield subject, f"{name}_op takes operands from memory, {name}_data has no address"


@rule("error", "Pool in several passes, each with a kernel of at most 8 x 8.", headline="pooling kernel larger than 8")
def pooling_kernels_are_at_most_8(context: Context) -> Iterator[Said]:
    """A pooling kernel has at most 8 columns and 8 lines. NVIDIA's compiler silently accepts larger ones."""
    for subject in context.of_type(OpType.PDP):
        width, height = subject.op.pool_width + 1, subject.op.pool_height + 1
        if max(width, height) > MAX_POOL:
            yield subject, f"pools {width} x {height}"


@rule(
    "error",
    "Pool from memory, or add the padding that the last window needs.",
    headline="pooling window beyond its input",
)
def pooling_windows_fit_the_input(context: Context) -> Iterator[Said]:
    """The padded input of a pooling contains every window.

    Otherwise PDP waits for data that never arrive. NVIDIA's compiler drops the right and bottom padding when pooling
    runs on the fly after the SDP.
    """
    for subject in context.of_type(OpType.PDP):
        op, source, target = subject.op, subject.surface.src_data, subject.surface.dst_data
        for axis, size, count, kernel, stride, padding in (
            ("columns", source.width, target.width, op.pool_width + 1, op.stride_x, op.pad_left + op.pad_right),
            ("lines", source.height, target.height, op.pool_height + 1, op.stride_y, op.pad_top + op.pad_bottom),
        ):
            needed = (count - 1) * stride + kernel
            if needed > size + padding:
                yield (
                    subject,
                    (
                        f"{count} {axis} of windows of {kernel}, {stride} apart, need {needed}, there are {size} "
                        f"and {padding} of padding"
                    ),
                )


@rule(
    "note",
    "Let the second operation wait for completion of the first (OP_COMPLETED).",
    of_atoms=True,
    headline="SDP reads a result too early",
    of_graph=True,
)
def the_sdp_waits_for_its_input(context: Context) -> Iterator[Said]:
    """An SDP operation that reads the result of the previous one from memory begins after that one is complete.

    Programmed or enabled is not enough. The read DMA starts the second operation when it has fetched the input of the
    first, whose last results are not yet written. The second can therefore read old data. Loadables of NVIDIA's
    compiler with consecutive elementwise layers have this problem.
    """
    for task_id, task in context.tasks.items():
        for first, second in read_too_early(task, context.operations_of(task_id), context.program.takers):
            yield second, f"reads the result of operation {first.label} without waiting for its completion"


def read_too_early(
    task: DlaTask, operations: Sequence[Operation], takers: Mapping[Key, Operation]
) -> Iterator[tuple[Operation, Operation]]:
    """Adjacent operations in the queue of a task's SDP of which the second reads from memory what the first writes, and
    may
    begin before that one is completed. ``takers``: :attr:`nvdla.program.Program.takers`."""
    order = Order(task, takers, overlap_of=OpType.SDP)
    mine = {operation.index: operation for operation in operations if operation.type == OpType.SDP}
    for first in mine.values():
        second = mine.get(first.common.consumers[OpType.SDP].index)
        if second is None or second is first or order.is_ordered(first.index, second.index):
            continue
        if any(_meet(read, written) for read in second.reads for written in first.writes):
            yield first, second


def _meet(first: Access, other: Access) -> bool:
    together = first.start < other.stop and other.start < first.stop
    return first.memory == other.memory and together and share_bytes(first.pieces, other.pieces)


@rule("error", "Set the padding values to 0.", headline="fp16 pooling with padding other than 0")
def fp16_pools_pad_with_zero(context: Context) -> Iterator[Said]:
    """Padding values of an fp16 pooling are 0: the firmware refuses others."""
    for subject in context.of_type(OpType.PDP):
        if subject.op.precision == Precision.FP16 and any(subject.op.padding_value):
            yield subject, f"padding values {list(subject.op.padding_value)}"


@rule("error", "Use 3, 5, 7 or 9 channels.", headline="normalization over an unsupported number of channels")
def normalization_spans_are_supported(context: Context) -> Iterator[Said]:
    """CDP normalizes over 3, 5, 7 or 9 channels."""
    for subject in context.of_type(OpType.CDP):
        if subject.op.local_size not in LOCAL_SIZES:
            yield subject, f"local_size is {subject.op.local_size}"
