"""Which jobs of a plan are fused, and what that allows to be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nvdla.execution.apart import ConvolutionApart
from nvdla.execution.fast_add import fast_add
from nvdla.execution.fused_convolution import FusedConvolution, x1_operands
from nvdla.execution.guards import convolution_and_sdp_fit
from nvdla.execution.shared import Shared
from nvdla.execution.steps import Chain, Step
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.job import Job
from nvdla.hardware.sdp.engine import SdpJob

Constant = Callable[[list[np.ndarray]], bool]
Forget = Callable[[list[np.ndarray]], None]
Beside = Callable[[tuple[Job, ...], Chain], Chain]


def fuse_steps(steps: Sequence[Step], constant: Constant, forget: Forget, beside: Beside | None = None) -> list[Step]:
    """The same steps with convolutions and their SDP fused where nobody misses what a fused job leaves out.

    From last to first, since a job can only be fused when the next convolution needs nothing from the convolution
    buffer: data and weights only where it is fused itself (then it has its own copy, or fetches again what is still in
    memory). What cannot be fused is done past the buffer under the same conditions. ``constant`` tells
    whether views lie where no run changes anything; ``forget`` is told what need not be read again. Nothing is fused
    where a convolution reads from the wrong place of the buffer. ``beside`` makes what takes the place of a step from
    the fused jobs and the step.
    """
    if any(conv.displaced for conv in filter(None, map(_convolution, steps))):
        return list(steps)
    left, again = _weights_left(steps), _data_again(steps)
    shared = Shared()
    fused: list[Step] = []
    next_needs_buffer = False
    for step in reversed(steps):
        conv = _convolution(step)
        if conv is None or not isinstance(step, Chain):
            fused.append(_alone(step, beside))
            continue
        own, weights = again.get(id(conv), conv), left[id(conv)]
        is_free = not next_needs_buffer and own.data.in_place
        job = _past_the_buffer(own, step.jobs[1], weights, constant, shared) if is_free else None
        if isinstance(job, FusedConvolution):
            forget(_constants(conv, step.jobs[1], None))
        elif constant(conv.weight_source.views):
            conv.keep_weights = True  # unpacked once
        if job is not None:
            job.stand_for(conv)
        next_needs_buffer = job is None and not (conv.data.in_place and conv.weights.in_place)
        fused.append(step if job is None else _instead(step, (job, *step.jobs[len(job.parts) :]), beside))
    return fused[::-1]


def fuse(conv: ConvolutionJob, sdp: Job, shared: Shared, elements: np.ndarray | None = None) -> FusedConvolution | None:
    """One job for both, or None where the pair is not of the usual form.

    The caller promises that weights and operands in memory do not change, and that the convolution neither takes data
    from the convolution buffer nor leaves any that is used. ``elements``: weights that are left from another layer.
    """
    if not isinstance(sdp, SdpJob) or not convolution_and_sdp_fit(conv, sdp):
        return None
    weights = conv.arithmetic.unpack(conv.weight_source.read() if elements is None else elements)
    operands = x1_operands(sdp)
    from nvdla.kernels.fast.conv_sdp_int8 import sums_fit

    if not sums_fit(weights, operands[0][: len(weights)]):
        return None
    return FusedConvolution(conv, sdp, weights, operands, shared)


def _past_the_buffer(
    conv: ConvolutionJob, sdp: Job, weights: ConvolutionJob | None, constant: Constant, shared: Shared
) -> FusedConvolution | ConvolutionApart | None:
    """A job for a convolution and its SDP, or for the convolution alone, that leaves the convolution buffer alone;
    None where weights may change or lines are not its own. ``weights``: the convolution that fetched them, if it is
    another."""
    if constant(_constants(conv, sdp, weights)):
        job = fuse(conv, sdp, shared, None if weights is None else weights.weight_source.read())
        if job is not None:
            return job
    source = (weights or conv).weight_source
    if not conv.reads_own_lines or not constant(source.views):
        return None
    return ConvolutionApart(conv, source.read(), shared)


def _convolution(step: Step) -> ConvolutionJob | None:
    """The convolution that a step begins with."""
    first = step.jobs[0] if isinstance(step, Chain) else None
    return first if isinstance(first, ConvolutionJob) else None


def _alone(step: Step, beside: Beside | None) -> Step:
    """A step without a convolution, by a faster job where there is one."""
    if not isinstance(step, Chain) or len(step.jobs) > 1 or not isinstance(step.jobs[0], SdpJob):
        return step
    job = fast_add(step.jobs[0])
    return step if job is None else _instead(step, (job,), beside)


def _instead(step: Chain, jobs: tuple[Job, ...], beside: Beside | None) -> Chain:
    return Chain(jobs) if beside is None else beside(jobs, step)


def _weights_left(steps: Sequence[Step]) -> dict[int, ConvolutionJob | None]:
    """For each convolution the earlier one whose weights it uses again (by identity), None where it fetches its own."""
    left: dict[int, ConvolutionJob | None] = {}
    before: ConvolutionJob | None = None
    for conv in filter(None, map(_convolution, steps)):
        left[id(conv)] = None if before is None or conv.weights.fetches else left[id(before)] or before
        before = conv
    return left


def _data_again(steps: Sequence[Step]) -> dict[int, ConvolutionJob]:
    """Convolutions that find their data in the buffer, by identity, as jobs that fetch them again: those whose data are
    in memory still as they were when they were fetched."""
    again: dict[int, ConvolutionJob] = {}
    first: ConvolutionJob | None = None
    written: list[np.ndarray] = []
    for step in steps:
        conv = _convolution(step)
        if conv is not None and conv.data.fetches:
            first, written = conv, []
        elif conv is not None and first is not None:
            changed = any(np.may_share_memory(view, each) for view in first.source.views for each in written)
            job = None if changed else conv.fetching_again(first)
            if job is not None:
                again[id(conv)] = job
        written += step.writes
    return again


def _constants(conv: ConvolutionJob, sdp: Job, weights: ConvolutionJob | None) -> list[np.ndarray]:
    """What a fused job reads from memory once: weights (of the convolution that fetched them), operands of X1."""
    operands = sdp.sources[:1] if isinstance(sdp, SdpJob) else []
    return (weights or conv).weight_source.views + [operand.view for operand in operands if operand is not None]
