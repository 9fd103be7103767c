"""Checks of scales, weights and biases, without a run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvdla.checks.doctor.doctor import CheckContext, check
from nvdla.checks.lint.linter import Said
from nvdla.emulator.memory.surfaces import pack_direct
from nvdla.loadable.descriptors.enums import ConvMode, OpType, Precision, SdpAlu, SdpMode, SdpType, WeightFormat
from nvdla.loadable.descriptors.meaning import reads_operands
from nvdla.program.accesses import STAGES
from nvdla.program.operation import Operation

#: a scale with fewer significant bits is off by up to 1 / 2**bits
FEW_BITS = 6
MOST_WEIGHTS = 1 << 25
SHOWN = 8


def some(numbers: list[int]) -> str:
    """Numbers for a message: the first few, and how many more there are."""
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more


@check(
    "error",
    "Calibrate again: the scale of this tensor, or of its input, was lost.",
    headline="converter with scale 0",
)
def converter_scales_are_not_zero(context: CheckContext) -> Iterator[Said]:
    """No converter multiplies by 0, which would make all results equal."""
    for scale in context.scales:
        if scale.scale == 0:
            yield context.by_place[scale.task, scale.operation], f"{scale.converter}: scale 0 >> {scale.truncate}"


@check(
    "warning",
    "Use a larger scale and a larger truncate (the scale is a 16-bit number: use 15 bits of it).",
    headline="coarse scale",
)
def scales_have_enough_bits(context: CheckContext) -> Iterator[Said]:
    """A converter's scale has at least 6 significant bits. With fewer bits it is inexact: 3 >> 9 represents any scale
    from 0.0049 to 0.0068. A power of two is exact.
    """
    for scale in context.scales:
        if scale.scale is None or scale.scale & (scale.scale - 1) == 0:
            continue
        if scale.bits is not None and scale.bits < FEW_BITS and scale.truncate:
            error = 50.0 / abs(scale.scale)
            yield (
                context.by_place[scale.task, scale.operation],
                f"{scale.converter}: {scale.scale} >> {scale.truncate} = {scale.real:.6g} has {scale.bits} significant "
                f"bits, so it may be off by {error:.2g}%",
            )


@check(
    "warning",
    "Check the calibration: a unit of the output must be larger than a unit of the sums.",
    headline="convolution result scaled up",
)
def accumulators_are_not_amplified(context: CheckContext) -> Iterator[Said]:
    """The result of an int8 convolution is scaled down, because a product of two units is finer than a unit of the
    output. With a real scale above 1, adjacent sums are more than one unit apart, and large values saturate.
    """
    for scale in context.scales:
        subject = context.by_place[scale.task, scale.operation]
        after_convolution = subject.type == OpType.SDP and subject.surface.src_data.type == 2
        amplifies = scale.real is not None and abs(scale.real) > 1
        if scale.converter == "out_cvt" and after_convolution and amplifies:
            yield subject, f"out_cvt multiplies by {scale.scale} >> {scale.truncate} = {scale.real:.6g}"


@check(
    "warning",
    "Give the layer's input or weights a larger scale.",
    headline="bias saturated at 16 bits",
)
def biases_fit_16_bits(context: CheckContext) -> Iterator[Said]:
    """No bias is at the end of its 16 bits, where it probably saturated.

    NVIDIA's compiler stores round(bias / (input scale x weight scale)) as int16.
    """
    for subject in context.of_type(OpType.SDP):
        if subject.op.src_precision == Precision.FP16:
            continue
        for name in STAGES:
            stage = getattr(subject.op, f"{name}_op")
            if not stage.enable or stage.type not in (SdpType.ADD, SdpType.BOTH) or stage.alu_type != SdpAlu.SUM:
                continue
            biases = _biases(context, subject, name)
            if biases is None or biases.dtype.itemsize != 2:
                continue
            at_end = np.flatnonzero((biases == 32767) | (biases == -32768))
            if at_end.size:
                places = some([int(channel) for channel in at_end])
                yield subject, f"{name}: {at_end.size} of {biases.size} biases are 32767 or -32768 (channels {places})"


def _biases(context: CheckContext, subject: Operation, name: str) -> np.ndarray | None:
    """The ALU operands of a stage: with BOTH they alternate with the multiplier's."""
    stage = getattr(subject.op, f"{name}_op")
    if not reads_operands(stage):
        return np.array([stage.alu_operand], np.int32).astype(np.int16) if abs(stage.alu_operand) < 1 << 15 else None
    biases = context.operand(subject, f"{name}_data")
    if biases is None:
        return None
    return biases[::2] if stage.type == SdpType.BOTH else biases


@check("note", "Prune these kernels, or find out why training made them zero.", headline="dead kernels")
def kernels_are_alive(context: CheckContext) -> Iterator[Said]:
    """No trained kernel consists of zeros; the channel of such a kernel contains only its bias."""
    for subject in context.trained_convolutions():
        peaks = kernel_peaks(context, subject)
        if peaks is not None:
            dead = [int(kernel) for kernel in np.flatnonzero(peaks == 0)]
            if dead:
                yield subject, f"{len(dead)} of {peaks.size} kernels are zero: {some(dead)}"


@check(
    "error", "Compile again with the trained weights: quantization or packing lost them.", headline="weights all zero"
)
def weights_are_not_all_zero(context: CheckContext) -> Iterator[Said]:
    """A convolution has a weight that is not zero."""
    for subject in context.of_type(OpType.CONV):
        weights = context.operand(subject, "weight_data")
        if weights is not None and weights.size and not weights.any():
            yield subject, f"all {weights.size} weights are zero"


@check(
    "warning",
    "Choose the weight scale so that the largest magnitude is 127 units.",
    headline="weights in a small part of their range",
)
def weights_use_their_range(context: CheckContext) -> Iterator[Said]:
    """The largest int8 weight of a layer is near 127; otherwise the weights lose precision, unless all have one
    magnitude."""
    for subject in context.of_type(OpType.CONV):
        weights = context.operand(subject, "weight_data")
        if weights is None or weights.dtype != np.int8 or not weights.any():
            continue
        magnitudes = np.unique(np.abs(weights.astype(np.int16)))
        peak = int(magnitudes[-1])
        exact = np.count_nonzero(magnitudes) == 1  # moves, sums and means: no scale represents 0 and one value better
        if peak < 64 and not exact:
            yield subject, f"the largest magnitude is {peak} of 127: {127 / peak:.1f} times coarser than necessary"


@check(
    "note",
    "Compile with one scale per kernel (per-filter quantization).",
    headline="kernels with very different magnitudes",
)
def kernel_magnitudes_are_similar(context: CheckContext) -> Iterator[Said]:
    """If all kernels of a layer share one scale, the largest weight of each kernel has at least 8 of 127 units."""
    for subject in context.trained_convolutions():
        peaks = kernel_peaks(context, subject)
        if peaks is None or subject.op.out_precision != Precision.INT8:
            continue
        small = [int(kernel) for kernel in np.flatnonzero((peaks > 0) & (peaks < 8))]
        if small and peaks.max() >= 64:
            yield subject, f"{len(small)} of {peaks.size} kernels use less than 8 of 127 units: {some(small)}"


def kernel_peaks(context: CheckContext, subject: Operation) -> np.ndarray | None:
    """The largest magnitude of every kernel; None where the order of the weights is not the plain one."""
    op = subject.op
    weights = context.operand(subject, "weight_data")
    shape = (subject.surface.dst_data.channel, op.kernel_channel_csc, op.kernel_height_csc, op.kernel_width_csc)
    elements = int(np.prod(shape, dtype=np.int64))
    plain = op.conv_mode == ConvMode.DIRECT and op.weight_format == WeightFormat.UNCOMPRESSED and not op.post_extension
    if weights is None or not plain or weights.dtype.kind not in "if" or not 0 < elements <= weights.size:
        return None
    if elements > MOST_WEIGHTS:
        return None
    group = context.config.mac_atomic_k // Precision(op.out_precision).bytes
    kernel_of = np.broadcast_to(np.arange(shape[0], dtype="<i2").reshape(-1, 1, 1, 1), shape)
    order = np.frombuffer(pack_direct(kernel_of, group, context.config.mac_atomic_c), "<i2")
    magnitudes = np.abs(np.nan_to_num(weights[:elements].astype(np.float32)))
    peaks = np.zeros(shape[0], np.float32)
    np.maximum.at(peaks, order, magnitudes)
    return peaks


@check(
    "warning",
    "Compute the product in fp16, or divide the scale of the result by that of the second factor.",
    headline="product with a wrong scale",
)
def products_have_the_scale_of_both(context: CheckContext) -> Iterator[Said]:
    """An int8 product of two tensors has the product of both scales. NVIDIA's compiler uses only one of them, so its
    result is wrong by a factor."""
    for subject in context.of_type(OpType.SDP):
        op = subject.op
        for name in STAGES:
            stage = getattr(op, f"{name}_op")
            product = stage.type in (SdpType.MUL, SdpType.BOTH) and stage.mode == SdpMode.PER_POINT
            # This toolkit multiplies by both scales.
            if stage.enable and product and op.src_precision == Precision.INT8 and not context.is_own(subject):
                yield subject, f"{name} multiplies two int8 tensors point by point"
