"""The convolution pipeline: CDMA, CBUF, CSC, CMAC, CACC."""

from __future__ import annotations

from collections.abc import Iterator

from nvdla.checks.lint.linter import Context, Order, Said, rule
from nvdla.emulator.hardware.convolution.checks import entries_per_slice
from nvdla.limits import MASK_ALIGNMENT
from nvdla.loadable.descriptors.enums import ConvMode, MemType, OpType, Precision, WeightFormat
from nvdla.program.operation import Operation
from nvdla.util.rounding import align, ceil_div


@rule("error", "Lower data_bank or weight_bank.", headline="more banks than the convolution buffer has")
def banks_fit_the_buffer(context: Context) -> Iterator[Said]:
    """Data and weights have together at most the banks of the convolution buffer (16 on nv_full and nv_large, 32 on the
    others). The mask of compressed weights uses the last one."""
    for subject in context.of_type(OpType.CONV):
        op, banks = subject.op, context.config.cbuf_banks
        compressed = op.weight_format == WeightFormat.COMPRESSED
        if op.data_bank + op.weight_bank > banks - compressed:  # values-fit-their-registers finds 0
            mask = ", of which the mask of compressed weights has one" if compressed else ""
            asked = f"data_bank {op.data_bank} + weight_bank {op.weight_bank}"
            yield subject, f"{asked} of {banks} banks of {context.config.name}{mask}"


def direct_feature(subject: Operation) -> bool:
    """A direct convolution of a feature cube with known precisions."""
    op = subject.op
    return op.conv_mode == ConvMode.DIRECT and not subject.is_image and Precision(op.in_precision).known


@rule(
    "error",
    "Correct entry_per_slice or the size of the input, or compile for this configuration.",
    of_atoms=True,
    headline="wrong number of entries per slice",
)
def slices_have_the_entries_of_the_buffer(context: Context) -> Iterator[Said]:
    """entry_per_slice is the number of buffer entries of one input line on this configuration.

    Complete entries of atoms come first, the rest is packed (NVDLA hardware documents, CONV_BUF). The C model stops at
    another number (cmod/csc/NV_NVDLA_csc.cpp:659 of branch master) or, on nv_full, prints a message.
    """
    entry = context.config.cbuf_entry_bytes
    for subject in context.of_type(OpType.CONV):
        if not direct_feature(subject):
            continue
        cube = subject.surface.src_data
        size = cube.channel * Precision(subject.op.in_precision).bytes
        expected = entries_per_slice(size, cube.width, context.config)
        if subject.op.entry_per_slice != expected:
            yield (
                subject,
                (
                    f"entry_per_slice is {subject.op.entry_per_slice}; a line of {cube.width} x {cube.channel} "
                    f"elements takes {expected} entries of {entry} bytes"
                ),
            )


@rule(
    "error",
    "Give the data more banks, or split the input in height.",
    of_atoms=True,
    headline="data too large for their banks",
)
def data_fit_their_banks(context: Context) -> Iterator[Said]:
    """The lines that one kernel needs at once fit the banks for data."""
    entries = context.config.cbuf_bank_entries
    for subject in context.of_type(OpType.CONV):
        if not direct_feature(subject):
            continue
        op = subject.op
        span = (op.kernel_height_csc - 1) * max(op.dilation_y, 1) + 1
        lines = min(span, subject.surface.src_data.height)
        if lines * op.entry_per_slice > op.data_bank * entries:
            yield (
                subject,
                (
                    f"{lines} lines of {op.entry_per_slice} entries at once, {op.data_bank} data banks hold "
                    f"{op.data_bank * entries}"
                ),
            )


@rule("error", "Give the weights more banks, or split the kernels.", headline="weights too large for their banks")
def weights_fit_their_banks(context: Context) -> Iterator[Said]:
    """The weights of one kernel group fit the banks for weights."""
    for subject in context.of_type(OpType.CONV):
        op = subject.op
        if op.weight_format == WeightFormat.COMPRESSED:
            continue
        group = context.config.mac_atomic_k // Precision(op.out_precision).bytes
        size = min(subject.surface.dst_data.channel, group) * op.bytes_per_kernel
        room = op.weight_bank * context.config.cbuf_bank_bytes
        if size > room:
            yield subject, f"{size} bytes of weights in a kernel group, {op.weight_bank} weight banks hold {room}"


@rule(
    "error",
    "Set bytes_per_kernel to kernel width x height x channels x element bytes.",
    headline="wrong number of bytes per kernel",
)
def kernels_have_their_size(context: Context) -> Iterator[Said]:
    """bytes_per_kernel is the size of a kernel. With another number CDMA and CSC deadlock."""
    for subject in context.of_type(OpType.CONV):
        op = subject.op
        size = op.kernel_width_csc * op.kernel_height_csc * op.kernel_channel_csc
        expected = size * Precision(op.out_precision).bytes
        if op.bytes_per_kernel != expected:
            kernel = f"{op.kernel_width_csc} x {op.kernel_height_csc} x {op.kernel_channel_csc}"
            yield subject, f"bytes_per_kernel is {op.bytes_per_kernel}, a kernel of {kernel} has {expected}"


@rule("error", "Correct the size of weight_data, or the number of kernels.", headline="weights too small")
def weights_are_complete(context: Context) -> Iterator[Said]:
    """Uncompressed weights have at least kernels x bytes_per_kernel bytes."""
    for subject in context.of_type(OpType.CONV):
        op, weights = subject.op, subject.surface.weight_data
        needed = subject.surface.dst_data.channel * op.bytes_per_kernel
        if op.weight_format != WeightFormat.COMPRESSED and weights.size < needed:
            yield subject, f"weight_data has {weights.size} bytes, {needed} are needed"


@rule(
    "error",
    "Correct the sizes of wmb_data (one bit per weight, rounded up to 128 bytes) and wgs_data (four bytes per group).",
    headline="mask or group sizes of compressed weights incomplete",
)
def compressed_weights_have_mask_and_sizes(context: Context) -> Iterator[Said]:
    """The mask of compressed weights (WMB) has one bit per weight, rounded up to 128 bytes. Every kernel group has a
    size (WGS) of four bytes.

    CDMA fetches these sizes and reports kernel groups by them. With a shorter mask the last group never arrives; the
    hardware asserts that the mask is not longer.
    """
    for subject in context.of_type(OpType.CONV):
        op, surface = subject.op, subject.surface
        if op.weight_format != WeightFormat.COMPRESSED or op.weight_reuse or not Precision(op.out_precision).known:
            continue
        element, kernels = Precision(op.out_precision).bytes, surface.dst_data.channel
        bits = kernels * (op.bytes_per_kernel // element)
        mask = align(ceil_div(bits, 8), MASK_ALIGNMENT)
        sizes = 4 * ceil_div(kernels, context.config.mac_atomic_k // element)
        if surface.wmb_data.size != mask:
            yield subject, f"wmb_data has {surface.wmb_data.size} bytes, {bits} weights take {mask}"
        if surface.wgs_data.size < sizes:
            yield subject, f"wgs_data has {surface.wgs_data.size} bytes, {sizes} are needed"


@rule("error", "Round the weights up to 128 bytes.", headline="weights not a multiple of 128 bytes")
def weights_are_fetched_in_whole_pieces(context: Context) -> Iterator[Said]:
    """On nv_full the size of the weights is a multiple of 128 bytes: its register lacks the low bits."""
    for subject in context.of_type(OpType.CONV):
        size = subject.surface.weight_data.size
        if size % context.config.weight_alignment:
            yield subject, f"weight_data has {size} bytes"


@rule("error", "Lower fetch_grain to the height of the input.", headline="fetch_grain larger than the input")
def grains_fit_the_height(context: Context) -> Iterator[Said]:
    """fetch_grain is at most the number of input lines; otherwise the data are wrong."""
    for subject in context.of_type(OpType.CONV):
        height = subject.surface.src_data.height
        if subject.op.fetch_grain > max(height, 1):
            yield subject, f"fetch_grain is {subject.op.fetch_grain}, the input has {height} lines"


@rule("error", "Scale in the SDP; the accumulator can only truncate.", headline="accumulator that scales")
def accumulators_only_truncate(context: Context) -> Iterator[Said]:
    """out_cvt of a convolution has scale 1 and offset 0: the firmware refuses anything else."""
    for subject in context.of_type(OpType.CONV):
        convert = subject.op.out_cvt
        if (convert.scale, convert.offset) != (1, 0):
            yield subject, f"out_cvt has scale {convert.scale} and offset {convert.offset}"


@rule("error", "Convert in a separate SDP operation.", headline="converter that changes the width of features")
def features_keep_their_width(context: Context) -> Iterator[Said]:
    """The input converter changes the width of images only. Features with another width than the processing
    precision stop the pipeline."""
    for subject in context.of_type(OpType.CONV):
        op = subject.op
        widths = [Precision(precision).bytes for precision in (op.in_precision, op.out_precision)]
        if not subject.is_image and widths[0] != widths[1]:
            names = Precision(op.in_precision).name, Precision(op.out_precision).name
            yield subject, f"feature data in {names[0]}, processed in {names[1]}"


@rule("error", "Correct padding, stride, or the size of the result.", headline="wrong size of a convolution's result")
def convolution_results_have_their_size(context: Context) -> Iterator[Said]:
    """The result has at most one line and column per kernel position in the padded input. One more is a deadlock: the
    pipeline waits for data that do not exist."""
    for subject, size, (columns, lines) in _sizes(context):
        if size[0] > columns or size[1] > lines:
            yield subject, _of_results(size, columns, lines)


@rule("warning", "Correct padding, stride, or the size of the result.", headline="convolution without all results")
def convolution_results_are_complete(context: Context) -> Iterator[Said]:
    """The result has a line and column for every kernel position in the padded input."""
    for subject, size, (columns, lines) in _sizes(context):
        if size[0] <= columns and size[1] <= lines and size != (columns, lines):
            yield subject, _of_results(size, columns, lines)


def _of_results(size: tuple[int, int], columns: int, lines: int) -> str:
    return f"the result has {size[0]} columns and {size[1]} lines, the padded input makes {columns} and {lines}"


def _sizes(context: Context) -> Iterator[tuple[Operation, tuple[int, int], tuple[int, int]]]:
    """Direct convolutions of features, with the columns and lines of their results, and of kernel positions."""
    for subject in context.of_type(OpType.CONV):
        op, target = subject.op, subject.surface.dst_data
        if op.conv_mode != ConvMode.DIRECT or subject.is_image:
            continue
        columns = _results(
            op.input_width_csc + op.pad_x_left + op.pad_x_right, op.kernel_width_csc, op.conv_stride_x, op.dilation_x
        )
        lines = _results(
            op.input_height_csc + op.pad_y_top + op.pad_y_bottom, op.kernel_height_csc, op.conv_stride_y, op.dilation_y
        )
        yield subject, (target.width, target.height), (columns, lines)


def _results(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Places that a kernel finds in ``size`` padded elements."""
    room = size - ((kernel - 1) * dilation + 1)
    return room // stride + 1 if stride and room >= 0 else 0


@rule(
    "error",
    "Set the line stride of a 1 x 1 result to one atom.",
    of_atoms=True,
    headline="single pixel with a wrong line stride",
)
def single_pixels_are_packed(context: Context) -> Iterator[Said]:
    """A 1 x 1 result of a convolution has a line stride of one memory atom: the firmware refuses others."""
    for subject in context.of_type(OpType.CONV):
        target = subject.surface.dst_data
        if (target.width, target.height) == (1, 1) and target.line_stride != subject.atom:
            yield subject, f"dst_data is 1 x 1 with line stride {target.line_stride}, an atom has {subject.atom} bytes"


@rule(
    "error", "Let the convolution forward its result to an SDP operation.", headline="convolution that writes to memory"
)
def convolutions_forward_to_the_sdp(context: Context) -> Iterator[Said]:
    """A convolution cannot write to memory; its result goes through the SDP on the fly."""
    for subject in context.of_type(OpType.CONV):
        if subject.surface.dst_data.type != MemType.HW:
            yield subject, f"dst_data has memory type {MemType(subject.surface.dst_data.type).name}, must be on the fly"


@rule(
    "note",
    "Round the size of weight_data up to the next entry of the convolution buffer, not further.",
    headline="more weights fetched than used",
)
def only_used_weights_are_fetched(context: Context) -> Iterator[Said]:
    """The size of uncompressed weights is rounded up to entries of the convolution buffer, and no further.

    Additional bytes are never released. The next convolution reads its weights too early or, when the banks change,
    deadlocks (in NVIDIA's C model; hardware does not wait). The dry run reports this.
    """
    entry = context.config.cbuf_entry_bytes
    for subject in context.of_type(OpType.CONV):
        op, size = subject.op, subject.surface.weight_data.size
        if op.weight_format == WeightFormat.COMPRESSED or op.weight_reuse:
            continue
        used = align(subject.surface.dst_data.channel * op.bytes_per_kernel, entry)
        if size > used:
            yield subject, f"weight_data has {size} bytes, its kernels take {used} in whole entries of {entry} bytes"


@rule(
    "note",
    "Let the second operation wait for completion of the first (OP_COMPLETED), or give both the same banks.",
    headline="bank change without a wait",
    of_graph=True,
)
def other_banks_wait_for_the_previous_convolution(context: Context) -> Iterator[Said]:
    """A convolution with other banks than the previous one begins after the previous one is complete.

    Otherwise NVIDIA's C model can deadlock. CSC releases the weights during the last stripes of the first convolution,
    and CDMA fetches those of the second. At the change of banks CSC then drops this notification
    (cmod/csc/NV_NVDLA_csc.cpp:357 and :1534, nvdlav1). It needs small weights and a slow end of the first convolution;
    loadables of NVIDIA's compiler with parallel branches can have it.
    """
    for task_id, task in context.tasks.items():
        order = Order(task, context.program.takers, overlap_of=OpType.CONV)
        convolutions = {
            operation.index: operation for operation in context.operations_of(task_id) if operation.type == OpType.CONV
        }
        for first in convolutions.values():
            second = convolutions.get(first.common.consumers[OpType.CONV].index)
            if second is None:
                continue
            banks = [f"{convolution.op.data_bank} + {convolution.op.weight_bank}" for convolution in (first, second)]
            if banks[0] != banks[1] and not order.is_ordered(first.index, second.index):
                yield second, f"{banks[1]} banks after {banks[0]} of operation {first.label}"
