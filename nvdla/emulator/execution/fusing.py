"""Fused jobs: which operations may be fused, additions, parts computed apart.

Each function is one condition under which the fused job writes the same bytes; all other operations run job by job.

Convolutions that :mod:`nvdla.emulator.execution.fused_convolution` does not support (fp16, Winograd, int16, other SDP
settings) keep their packed weights, which operations with the same weights (bands of rows of one layer) share.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from nvdla.emulator.execution.fused_convolution import FusedConvolution, Shared, flat_bytes, packed_weights, x1_operands
from nvdla.emulator.execution.steps import Chain, Step
from nvdla.emulator.hardware.convolution.arithmetic import DirectDots, DirectHalves
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.hardware.job import Handed, Job, cubes_line_up, surfaces_are_apart
from nvdla.emulator.hardware.sdp.engine import SdpJob
from nvdla.emulator.hardware.sdp.settings import Algorithm, Operands, SdpSettings, XBlock
from nvdla.emulator.memory.address_space import Lanes, Move
from nvdla.limits import Work
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.kernels.jit.object_code import ObjectCode
    from nvdla.kernels.jit.recorded_calls import RecordedCall

LARGEST_SHIFT = 60

Cubes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Two operands and the result."""


def convolution_and_sdp_fit(conv: ConvolutionJob, sdp: SdpJob) -> bool:
    """Return True for an int8 convolution and an SDP with supported settings that write where a fused job can."""
    return _convolution_fits(conv) and _sdp_fits(sdp.settings) and _destination_fits(sdp) and _summand_fits(sdp)


def _convolution_fits(conv: ConvolutionJob) -> bool:
    settings = conv.settings
    return isinstance(conv.arithmetic, DirectDots) and settings.batches == 1 and not settings.truncate


def _sdp_fits(settings: SdpSettings) -> bool:
    """int8 all through, X1 at most a sum, a multiplication and ReLU, X2 at most a sum and ReLU, Y bypassed."""
    x1, x2, converter = settings.x1, settings.x2, settings.converter
    precisions = settings.processing is Precision.INT8 and settings.output is Precision.INT8
    return (
        precisions
        and settings.flying
        and (x2.bypass or _x2_fits(x2))
        and settings.y.bypass
        and (x1.bypass or _x1_fits(x1))
        and converter.shift <= LARGEST_SHIFT
    )


def _x1_fits(x1: XBlock) -> bool:
    sums = x1.alu_bypass or x1.algorithm in (Algorithm.SUM, Algorithm.EQL)
    return sums and (x1.mul_bypass or not x1.prelu) and x1.mul_shift <= LARGEST_SHIFT


def _x2_fits(x2: XBlock) -> bool:
    from nvdla.kernels.fast.conv_sdp_int8 import LARGEST_X2_SHIFT

    sums = x2.needs_alu and x2.algorithm in (Algorithm.SUM, Algorithm.EQL) and x2.alu_shift <= LARGEST_X2_SHIFT
    return sums and x2.mul_bypass and x2.mul_shift == 0


def _summand_fits(sdp: SdpJob) -> bool:
    """X2's operands, if any: a byte an element of the cube, in packed lines that the results do not overwrite."""
    operand, settings = sdp.sources[1], sdp.settings
    if operand is None:
        return True
    view, destination = operand.view, sdp.destination
    whole = view.shape[1:] == (settings.height, settings.width, settings.atom)
    apart = destination is None or not np.may_share_memory(view, destination)
    return operand.size == 1 and not operand.both and whole and apart and view.strides[1] == view[0, 0].size


def _destination_fits(sdp: SdpJob) -> bool:
    """On the fly to PDP, or to memory with packed lines; operands one a channel."""
    source = sdp.sources[0]
    if source is not None and source.view.shape[1:3] != (1, 1):
        return False
    if sdp.settings.to_pdp:
        return True
    view = sdp.destination
    return view is not None and view.strides[1] == view.shape[2] * view.shape[3] and surfaces_are_apart(view)


def weighted_sum(sdp: SdpJob) -> tuple[np.ndarray, tuple[int, int], bool] | None:
    """(the other cube, weights of the input and of that, ReLU) where X1 and X2 make such a sum: at most a factor from
    a register, then at most a cube from memory, shifted. Without that the input itself is added 0 times."""
    x1, x2 = sdp.settings.x1, sdp.settings.x2
    if _is_factor(x1):
        weight = 1 if x1.bypass else x1.mul_operand
        clipped, adder, operand = not x1.bypass and not x1.relu_bypass, x2, sdp.sources[1]
    elif x2.bypass:
        weight, clipped, adder, operand = 1, False, x1, sdp.sources[0]
    else:
        return None
    if adder.bypass and sdp.input is not None:
        return sdp.input.view, (weight, 0), clipped
    if clipped or operand is None or not _adds_cube(adder, operand):
        return None
    return operand.view, (weight, 1 << adder.alu_shift), not adder.relu_bypass


def _adds_cube(block: XBlock, operand: Operands) -> bool:
    """True for an X block that adds int8 from memory, and does nothing else before its ReLU."""
    adds = block.needs_alu and block.algorithm is Algorithm.SUM and block.mul_bypass and block.mul_shift == 0
    return adds and operand.size == 1 and not operand.both


def _is_factor(block: XBlock) -> bool:
    """True for an X block that multiplies by a register alone, or is bypassed."""
    if block.bypass:
        return True
    multiplies = not block.mul_bypass and not block.mul_from_memory and not block.prelu
    return multiplies and block.alu_bypass and block.mul_shift == 0


def fast_add(sdp: SdpJob) -> FastAdd | None:
    """A job for the weighted sum of int8 cubes in memory, two or only one, or None where the operation is another."""
    weighted = weighted_sum(sdp) if sdp.maps_int8 else None
    if weighted is None or sdp.input is None or sdp.destination is None:
        return None
    second, weights, relu = weighted
    views = (sdp.input.view, second, sdp.destination)
    if not cubes_line_up(views):
        return None
    from nvdla.kernels.fast.sdp_int8_add import sum_fits

    return FastAdd(sdp, views, weights, relu) if sum_fits(weights) else None


class FastAdd(Job):
    """SDP from memory to memory: the weighted sum of two cubes of int8, ReLU, output converter."""

    def __init__(self, sdp: SdpJob, views: Cubes, weights: tuple[int, int], relu: bool) -> None:
        self.sdp = sdp
        self._weights = weights
        self._relu = relu
        self.destination = sdp.destination
        self.statistics: dict[str, int] = {}
        self._place(views)

    @property
    def parts(self) -> tuple[Job, ...]:
        """The jobs that it stands for, in the order of the data."""
        return (self.sdp,)

    @property
    def work(self) -> Work:
        """Cost of a run."""
        return self.sdp.work

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return self.sdp.reads

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return self.sdp.writes

    def _relocate(self, move: Move) -> None:
        self.sdp = move.once(self.sdp, lambda: self.sdp.moved(move))
        self.destination = self.sdp.destination
        first, second, out = self._views
        self._place((move(first), move(second), move(out)))

    def _place(self, views: Cubes) -> None:
        """Work on these cubes: two operands and the result."""
        self._views = views
        self._record: RecordedCall | None = None

    def run(self, source: Handed = None) -> None:
        """Add and convert. Every element is read before it is written, so the result may replace an operand."""
        self._recorded().run()

    def records(self, source: Handed = None) -> tuple[list[RecordedCall], Handed]:
        """The one record that it is."""
        return [self._recorded()], None

    def run_lanes(self, lanes: Lanes, count: int, handed: Handed = None) -> None:
        """Compute for ``count`` images in lanes 1, 2 ..."""
        cubes = [
            (lanes.flat(view, 1, count), lanes.stride) if lanes.holds(view) else (flat_bytes(view), 0)
            for view in self._views
        ]
        self._addition(cubes, count).run()

    def _recorded(self) -> RecordedCall:
        self._record = self._record or self._addition([(flat_bytes(view), 0) for view in self._views], 1)
        return self._record

    def _addition(self, cubes: list[tuple[np.ndarray, int]], images: int) -> RecordedCall:
        """For ``images``; ``cubes``: operands and result, flat, with the bytes from one image to the next."""
        from nvdla.kernels.fast.sdp_int8_add import addition

        settings = self.sdp.settings
        converter = (settings.converter.offset, settings.converter.scale, settings.converter.shift)
        (first, first_stride), (second, second_stride), (out, out_stride) = cubes
        strides = (self._views[0].strides[0], self._views[1].strides[0], self._views[2].strides[0])
        size, apart = settings.pixels * settings.atom, (first_stride, second_stride, out_stride)
        surfaces, weights = settings.surfaces, self._weights
        return addition(first, second, strides, size, surfaces, self._relu, converter, out, weights, images, apart)


class ConvolutionApart(Job):
    """A convolution with its own copy of weights, or of those of an earlier one, ``elements`` in memory order.

    ``part``: the job of the plan that this one replaces, where ``conv`` was made from it.
    """

    def __init__(self, conv: ConvolutionJob, elements: np.ndarray, shared: Shared, part: ConvolutionJob) -> None:
        self.conv = conv
        self._parts: tuple[Job, ...] = (part,)
        self.statistics = conv.statistics
        packed = conv.arithmetic.pack(elements)
        self._packed: Any = _shared(packed, shared)

    @property
    def parts(self) -> tuple[Job, ...]:
        """The job that it stands for."""
        return self._parts

    @property
    def work(self) -> Work:
        """Cost of a run."""
        return self.conv.work

    @property
    def needs_kernels(self) -> bool:
        """As the convolution itself."""
        return self.conv.needs_kernels

    @property
    def reads(self) -> list[np.ndarray]:
        """The data: weights were read when the job was made."""
        return self.conv.source.views

    @property
    def writes(self) -> list[np.ndarray]:
        """Nothing: the results go to SDP."""
        return []

    def _relocate(self, move: Move) -> None:
        self.conv = move.once(self.conv, lambda: self.conv.moved(move))
        self._parts = tuple(move.once(part, partial(part.moved, move)) for part in self._parts)
        self.statistics = self.conv.statistics

    def run(self, source: Handed = None) -> np.ndarray:
        """Convolve. Returns what :meth:`ConvolutionJob.run` does."""
        return self.conv.run_apart(self._packed)


def _shared(packed: Any, shared: Shared) -> Any:
    """Packed weights, or the same ones of an earlier job: an array, or several."""
    if isinstance(packed, tuple):
        return tuple(shared.packed(array) for array in packed)
    return shared.packed(packed)


Constant = Callable[[list[np.ndarray]], bool]
Release = Callable[[list[np.ndarray]], None]
Validate = Callable[[tuple[Job, ...], Chain], Chain]


Result = TypeVar("Result")


def at_once(parts: Generator[bool, None, Result]) -> Result:
    """Do all parts of a work; return its result."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            result: Result = end.value
            return result


def fuse_steps(
    steps: Sequence[Step], constant: Constant, release: Release, validated: Validate | None = None
) -> list[Step]:
    """Return what :func:`fuse_in_parts` does."""
    return at_once(fuse_in_parts(steps, constant, release, validated))


def fuse_in_parts(
    steps: Sequence[Step], constant: Constant, release: Release, validated: Validate | None = None
) -> Generator[bool, None, list[Step]]:
    """Return the same steps with convolutions and their SDP fused where no other job needs what a fused job leaves out.

    Yield False after each step, and after each part of a long one.

    From last to first, since a job can only be fused when the next convolution needs nothing from the convolution
    buffer: data and weights only where it is fused itself (then it has its own copy, or fetches again what is still in
    memory). Other convolutions bypass the buffer under the same conditions. Nothing is fused where a convolution reads
    from the wrong place of the buffer.

    Args:
        steps: The recorded steps.
        constant: Returns whether no run changes the memory of views.
        release: Takes the views that need not be read again.
        validated: Makes a step that also runs the original one.
    """
    if any(conv.displaced for conv in filter(None, map(_convolution, steps))):
        return list(steps)
    left, again = _weights_left(steps), _data_again(steps)
    shared = Shared()
    fused: list[Step] = []
    next_needs_buffer = False
    for step in reversed(steps):
        yield False
        conv = _convolution(step)
        if conv is None or not isinstance(step, Chain):
            fused.append(_alone(step, validated))
            continue
        own, weights = again.get(id(conv), conv), left[id(conv)]
        is_free = not next_needs_buffer and own.data.in_place
        job = (yield from _without_buffer(own, step, weights, constant, shared)) if is_free else None
        if isinstance(job, FusedConvolution):
            release(_constants(conv, step.jobs[1], None))
        next_needs_buffer = job is None and not (conv.data.in_place and conv.weights.in_place)
        fused.append(step if job is None else _replacing(step, (job, *step.jobs[len(job.parts) :]), validated))
    return fused[::-1]


def _fuse(
    conv: ConvolutionJob,
    sdp: Job,
    shared: Shared,
    elements: np.ndarray | None = None,
    part: ConvolutionJob | None = None,
) -> Generator[bool, None, FusedConvolution | None]:
    """Return one job for both, or None where the pair does not meet the conditions.

    The caller promises that weights and operands in memory do not change, and that the convolution neither takes data
    from the convolution buffer nor leaves any that is used. ``elements``: weights that are left from another layer.
    ``part``: the job of the plan that ``conv`` was made from, where that is another.
    """
    if not isinstance(sdp, SdpJob) or not convolution_and_sdp_fit(conv, sdp):
        return None
    elements = conv.weight_source.read() if elements is None else elements
    operands = x1_operands(sdp)
    yield False
    packed = yield from _packed(conv, sdp, elements, operands[0])
    if packed is None:
        return None
    job = FusedConvolution(conv, sdp, packed, operands, shared, part)
    yield False
    return job


def _packed(
    conv: ConvolutionJob, sdp: SdpJob, elements: np.ndarray, alu: np.ndarray
) -> Generator[bool, None, tuple[np.ndarray, np.ndarray] | None]:
    """Return what :func:`packed_weights` does for weights in the order of memory, a few blocks of kernels at a time.

    None where sums could leave 32 bits.
    """
    from nvdla.kernels.fast.conv_int8_dot import KERNELS, aligned
    from nvdla.kernels.fast.conv_sdp_int8 import sums_fit

    arithmetic, kernels = conv.arithmetic, conv.settings.kernels
    assert isinstance(arithmetic, DirectDots)  # as convolution_and_sdp_fit requires
    size, step = conv.weight_source.count // kernels, math.lcm(KERNELS, arithmetic.group)
    step *= max(1, PACKED_AT_ONCE // (size * step))
    packed, corrections = np.empty(0, np.int8), []
    for first in range(0, kernels, step):
        count = min(step, kernels - first)
        weights = arithmetic.unpack(elements[first * size :][: count * size], count)
        if not sums_fit(weights, alu[first : first + count]):
            return None
        out = packed[first // KERNELS :][: ceil_div(count, KERNELS)] if first else None
        own, correction = packed_weights(conv, sdp, weights, out)
        if not first:
            packed = own if count == kernels else aligned((ceil_div(kernels, KERNELS), *own.shape[1:]))
            packed[: len(own)] = own
        corrections.append(correction)
        yield False
    return packed, np.concatenate(corrections)


def _without_buffer(
    conv: ConvolutionJob, step: Chain, weights: ConvolutionJob | None, constant: Constant, shared: Shared
) -> Generator[bool, None, FusedConvolution | ConvolutionApart | None]:
    """Return a job for the convolution of a step and its SDP, or for the convolution alone, that does not use the
    convolution buffer; None where weights may change or lines are not its own. ``conv``: the convolution, or one made
    from it. ``weights``: the convolution that fetched the weights, if it is another."""
    part = _convolution(step) or conv
    sdp = step.jobs[1]
    if constant(_constants(conv, sdp, weights)):
        elements = None if weights is None else weights.weight_source.read()
        job = yield from _fuse(conv, sdp, shared, elements, part)
        if job is not None:
            return job
    source = (weights or conv).weight_source
    if not conv.reads_own_lines or not constant(source.views):
        return None
    return ConvolutionApart(conv, source.read(), shared, part)


def _convolution(step: Step) -> ConvolutionJob | None:
    """The convolution that a step begins with."""
    first = step.jobs[0] if isinstance(step, Chain) else None
    return first if isinstance(first, ConvolutionJob) else None


def _alone(step: Step, validated: Validate | None) -> Step:
    """A step without a convolution, by a faster job where there is one."""
    if not isinstance(step, Chain) or len(step.jobs) > 1 or not isinstance(step.jobs[0], SdpJob):
        return step
    job = fast_add(step.jobs[0])
    return step if job is None else _replacing(step, (job,), validated)


def _replacing(step: Chain, jobs: tuple[Job, ...], validated: Validate | None) -> Chain:
    return Chain(jobs) if validated is None else validated(jobs, step)


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
            changed = any(np.may_share_memory(view, array) for view in first.source.views for array in written)
            job = None if changed else conv.fetching_again(first)
            if job is not None:
                again[id(conv)] = job
        written += step.writes
    return again


def _constants(conv: ConvolutionJob, sdp: Job, weights: ConvolutionJob | None) -> list[np.ndarray]:
    """Return what a fused job reads from memory once: weights (of the convolution that fetched them), operands of
    X1."""
    operands = sdp.sources[:1] if isinstance(sdp, SdpJob) else []
    return (weights or conv).weight_source.views + [operand.view for operand in operands if operand is not None]


POOL = (
    ("jit.thread_pool_code:run_commands", 3),
    ("jit.thread_pool_code:serve", 3),
    ("jit.thread_pool_code:pause_for", 1),
)
"""Kernels that all fused steps need."""


def needed_kernels(steps: Sequence[Step]) -> list[ObjectCode] | None:
    """Return the compiled kernels that the fused steps need; None if they also need others, or if that is not known."""
    from nvdla.kernels.jit.object_code import PACKAGE, object_code

    places: dict[str, None] = {}
    for step in steps:
        of_step = _kernels_of(step)
        if of_step is None:
            return None
        places |= dict.fromkeys(of_step)
    for place in places:  # the first run takes long in any case
        importlib.import_module(f"{PACKAGE}{place.partition(':')[0]}")
    return [*(object_code(place, 2) for place in places), *(object_code(*kernel) for kernel in POOL)]


def _kernels_of(step: Step) -> list[str] | None:
    if not isinstance(step, Chain):
        return [record.kernel.place for record in step.task.records() or ()]  # others need only numpy
    first, *rest = step.jobs
    if all(map(_is_half, step.jobs)):
        convolutions = (job.arithmetic for job in step.jobs if isinstance(job, ConvolutionJob))
        return [arithmetic.place for arithmetic in convolutions if isinstance(arithmetic, DirectHalves)]
    if isinstance(first, ConvolutionJob):
        if not rest or not isinstance(rest[0], SdpJob) or not convolution_and_sdp_fit(first, rest[0]):
            return None
        places = ["fast.image_int8:_lines" if first.settings.image else "fast.conv_int8_dot:_block"]
        return [*places, "fast.conv_sdp_int8:_convolve", *map(_pooling, rest[1:])]
    if not first.computes:
        return []
    recorded = ((fast_add(first) or first) if isinstance(first, SdpJob) else first).records()
    return None if recorded is None or rest else [call.kernel.place for call in recorded[0]]


def _is_half(job: Job) -> bool:
    """True for a job in fp16, where only convolutions need kernels."""
    if isinstance(job, SdpJob):
        return job.settings.floating
    from nvdla.emulator.hardware.pdp import PdpJob

    if isinstance(job, PdpJob):
        return job.settings.elements is Precision.FP16
    return isinstance(job, ConvolutionJob) and isinstance(job.arithmetic, DirectHalves)


def _pooling(job: Job) -> str:
    from nvdla.emulator.hardware.pdp import AVERAGE, PdpJob

    average = isinstance(job, PdpJob) and job.settings.method == AVERAGE
    return f"pdp:pool_{'average' if average else 'extreme'}.recorded"


PACKED_AT_ONCE = 1 << 16
"""Bytes of weights that one part of the preparation packs, in about 0.2 ms."""

SHARE = 0.07
"""Part of the time of a run by the fallback that the preparation for compiled kernels takes after it."""


class Switch(Generic[Result]):
    """Preparation for compiled kernels in small parts, after runs by the fallback.

    ``parts``: yields after each part, True where it waits for another process (``waits``), and returns the ``result``.
    """

    def __init__(self, parts: Generator[bool, None, Result]) -> None:
        self._parts = parts
        self._longest = 0.0
        self.result: Result | None = None
        self.waits = False

    def go_on(self, until: float) -> None:
        """Prepare ``until`` a thread time: at least one part, and others while one like the longest so far fits."""
        while self.result is None:
            began = time.thread_time()
            try:
                self.waits = next(self._parts)
            except StopIteration as end:
                self.result = end.value
            now = time.thread_time()
            self._longest = max(self._longest, now - began)
            if self.waits or now + self._longest > until:
                break
