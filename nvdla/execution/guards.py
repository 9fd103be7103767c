"""When the jobs of operations may be done together or by a faster one: the guards of :mod:`nvdla.execution.fusing`.

Each function is one condition under which the other form writes the same bytes; what is refused here runs job by job.
"""

from __future__ import annotations

import numpy as np

from nvdla.hardware.convolution.arithmetic import DirectDots
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.sdp.engine import SdpJob
from nvdla.hardware.sdp.operands import InputCube, Operands
from nvdla.hardware.sdp.settings import Algorithm, SdpSettings, XBlock
from nvdla.precision import Precision

LARGEST_SHIFT = 60

Cubes = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Two operands and the result."""


def convolution_and_sdp_fit(conv: ConvolutionJob, sdp: SdpJob) -> bool:
    """True for an int8 convolution and an SDP of the usual form, which write where a fused job can."""
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
    return view is not None and view.strides[1] == view.shape[2] * view.shape[3] and _surfaces_are_apart(view)


def plain_int8_cubes(sdp: SdpJob) -> bool:
    """True for an operation of the SDP that takes one cube of int8 from memory and writes int8, without Y."""
    settings = sdp.settings
    return (
        settings.processing is Precision.INT8
        and settings.output is Precision.INT8
        and settings.batches == 1
        and not settings.flying
        and not settings.to_pdp
        and settings.y.bypass
        and _is_int8(sdp.input)
    )


def cubes_line_up(views: Cubes) -> bool:
    """True for cubes of one shape with packed lines, the last of which can be written while the others are read."""
    destination = views[-1]
    lined_up = all(_lines_are_packed(view) and view.shape == destination.shape for view in views)
    return lined_up and all(_same_or_apart(view, destination) for view in views) and _surfaces_are_apart(destination)


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


def _is_int8(cube: InputCube | None) -> bool:
    return cube is not None and cube.source is Precision.INT8


def _same_or_apart(view: np.ndarray, destination: np.ndarray) -> bool:
    """True when writing an element cannot change another one that is still to be read."""
    same = view.ctypes.data == destination.ctypes.data and view.strides == destination.strides
    return same or not np.may_share_memory(view, destination)


def _surfaces_are_apart(view: np.ndarray) -> bool:
    """False where surfaces overlap: then the order of reading and writing counts, and fused jobs have another."""
    return bool(view.shape[0] == 1 or view.strides[0] >= view.shape[1] * view.strides[1])


def _lines_are_packed(view: np.ndarray) -> bool:
    return view.strides[1:] == (view.shape[2] * view.shape[3], view.shape[3], 1)
