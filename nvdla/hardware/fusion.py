"""Jobs that do the work of two at once, for plans: a convolution and its SDP in one pass over the results.

A fused job writes the same bytes as its two parts. It leaves out what only observers ask for (the counters), and what
later jobs find in the convolution buffer; :func:`fuse` says when that matters to nobody.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvdla.hardware.convolution import ConvolutionJob
from nvdla.hardware.convolution_arithmetic import DirectDots, padded_size
from nvdla.hardware.convolution_settings import pad_element
from nvdla.hardware.sdp import SdpJob
from nvdla.hardware.sdp_settings import Algorithm, Precision, SdpSettings, XBlock

LARGEST_SHIFT = 60


def fuse(conv: ConvolutionJob, sdp: SdpJob, elements: np.ndarray | None = None) -> FusedConvolution | None:
    """One job for both, or None where the pair is not of the usual form.

    The caller promises that weights and operands in memory do not change, and that the convolution neither takes data
    from the convolution buffer nor leaves any that is used. ``elements``: weights that are left from another layer.
    """
    if not (_convolution_fits(conv) and _sdp_fits(sdp.settings) and _destination_fits(sdp)):
        return None
    weights = conv.arithmetic.unpack(conv.weight_source.read() if elements is None else elements)
    alu, mul = _x1_operands(sdp)
    from nvdla.kernels.conv_sdp_int8 import sums_fit

    return FusedConvolution(conv, sdp, weights, alu, mul) if sums_fit(weights, alu[: len(weights)]) else None


def _convolution_fits(conv: ConvolutionJob) -> bool:
    settings = conv.settings
    return isinstance(conv.arithmetic, DirectDots) and settings.batches == 1 and not settings.truncate


def _sdp_fits(settings: SdpSettings) -> bool:
    """int8 all through, X1 at most a sum, a multiplication and ReLU, X2 and Y bypassed."""
    x1, converter = settings.x1, settings.converter
    precisions = settings.processing is Precision.INT8 and settings.output is Precision.INT8
    return (
        precisions
        and settings.flying
        and settings.x2.bypass
        and settings.y.bypass
        and (x1.bypass or _x1_fits(x1))
        and converter.shift <= LARGEST_SHIFT
    )


def _x1_fits(x1: XBlock) -> bool:
    sums = x1.alu_bypass or x1.algorithm in (Algorithm.SUM, Algorithm.EQL)
    return sums and (x1.mul_bypass or not x1.prelu) and x1.mul_shift <= LARGEST_SHIFT


def _destination_fits(sdp: SdpJob) -> bool:
    """On the fly to PDP, or to memory with packed lines; operands one a channel."""
    source = sdp.sources[0]
    if source is not None and source.view.shape[1:3] != (1, 1):
        return False
    if sdp.settings.to_pdp:
        return True
    view = sdp.destination
    return view is not None and view.strides[1] == view.shape[2] * view.shape[3]


def _x1_operands(sdp: SdpJob) -> tuple[np.ndarray, np.ndarray]:
    """ALU and multiplier operands of X1 for each channel, int64; without effect where X1 does not use them.

    Those of the channels that fill the last atom count too: SDP processes whole atoms, and writes them.
    """
    x1, source = sdp.settings.x1, sdp.sources[0]
    lanes = sdp.settings.surfaces * sdp.settings.atom
    alu = np.full(lanes, 0 if x1.bypass or x1.alu_bypass else x1.alu_operand, np.int64)
    mul = np.full(lanes, 1 if x1.bypass or x1.mul_bypass else x1.mul_operand, np.int64)
    if source is not None:
        alu_memory, mul_memory = (each.reshape(-1).astype(np.int64) for each in source.read())
        alu = alu_memory if x1.needs_alu else alu
        mul = mul_memory if x1.needs_mul else mul
    if x1.bypass:
        return alu, mul
    return np.clip(alu << min(x1.alu_shift, 40), -(1 << 31), (1 << 31) - 1), mul


class FusedConvolution:
    """A direct int8 convolution and its SDP, prepared for runs on ever new data."""

    def __init__(
        self, conv: ConvolutionJob, sdp: SdpJob, weights: np.ndarray, alu: np.ndarray, mul: np.ndarray
    ) -> None:
        from nvdla.kernels import conv_int8_dot as dot
        from nvdla.kernels.conv_sdp_int8 import Stage

        self.conv, self.sdp = conv, sdp
        self.destination = sdp.destination
        self.statistics: dict[str, int] = {}
        settings, image = conv.settings, conv.settings.image
        self._direct = conv.plain and not image
        channels = settings.kernel.channels
        stored = settings.extended.channels if image else channels
        self._group = stored if image else dot.channel_group(channels)
        groups = 1 if image else -(-channels // self._group)
        dilated = not image and settings.dilation_x > 1
        self._packed, correction = dot.pack_weights(
            weights.transpose(0, 3, 1, 2), dilated, None if image else self._group
        )
        self._alu = _padded(alu, correction.size, 0) - correction.astype(np.int64)
        self._alu = self._alu.astype(np.int32)
        self._mul = _padded(mul, correction.size, 1).astype(np.int32)
        self._stage = Stage(*_stage(sdp.settings))
        rows, columns = self._plane = padded_size(settings)
        dilation = (1, 1) if image else (settings.dilation_y, settings.dilation_x)
        kernel = (settings.kernel.height, 1 if image else settings.kernel.width)
        self._taps = dot.tap_offsets(groups, kernel, dilation, self._plane, self._group)
        y = np.arange(settings.output.height)[:, None] * (settings.stride_y * columns)
        self._pixels = ((y + np.arange(settings.output.width) * settings.stride_x) * self._group).reshape(-1)
        # A dot takes four bytes at a time and may read past the end of the last line.
        self._flat = np.full(groups * rows * columns * self._group + 4, 128, np.uint8)
        self._data = self._flat[:-4].reshape(groups, rows, columns, self._group)
        self._out, self._place, self._handed = self._target()

    def run(self, source: Any = None) -> np.ndarray | None:
        """Convolve and process. Returns what PDP takes on the fly, None when the result went to memory."""
        from nvdla.kernels import conv_int8_dot as dot
        from nvdla.kernels.conv_sdp_int8 import convolve_and_convert

        settings = self.conv.settings
        left = 0 if settings.image else settings.pad_left
        dot.blocked_cube(self._cube(), settings.pad_top, left, int(pad_element(settings)), self._data)
        convolve_and_convert(
            self._flat,
            self._pixels,
            self._taps,
            self._packed.shape[2],
            self._packed,
            self._alu,
            self._mul,
            self._stage,
            self._out,
            self._place,
        )
        return self._handed

    def _cube(self) -> np.ndarray:
        """The input as int8 (surfaces, height, width, atom): from memory as it lies, or one surface of lines."""
        if self._direct:
            return np.ascontiguousarray(self.conv.source.surfaces()[0])
        lines = self.conv.source.read()
        if self.conv.settings.image:
            missing = self._plane[1] - lines.shape[2]
            lines = np.pad(lines, ((0, 0), (0, 0), (0, max(missing, 0)), (0, 0)))
        return lines

    def _target(self) -> tuple[np.ndarray, tuple[int, int, int], np.ndarray | None]:
        """Flat results, (surfaces, surface stride, atom), and what is handed to PDP."""
        settings = self.sdp.settings
        surfaces, plane, atom = settings.surfaces, settings.height * settings.width, settings.atom
        if settings.to_pdp:
            cube = np.empty((surfaces, settings.height, settings.width, atom), np.int8)
            return cube.reshape(-1), (surfaces, plane * atom, atom), cube
        view = self.destination
        stride = view.strides[0] if surfaces > 1 else plane * atom
        flat = np.lib.stride_tricks.as_strided(view.view(np.int8), ((surfaces - 1) * stride + plane * atom,), (1,))
        return flat, (surfaces, stride, atom), None


def _padded(values: np.ndarray, size: int, fill: int) -> np.ndarray:
    padded = np.full(size, fill, np.int64)
    padded[: values.size] = values
    return padded


def _stage(settings: SdpSettings) -> tuple[int, int, int, int, int, int]:
    """The fields of kernels.conv_sdp_int8.Stage."""
    x1, converter = settings.x1, settings.converter
    multiply = not x1.bypass and (not x1.mul_bypass or x1.mul_shift > 0)
    low = 0 if not x1.bypass and not x1.relu_bypass else -(1 << 31)
    shift = x1.mul_shift if multiply else 0
    return int(multiply), shift, low, converter.offset, converter.scale, converter.shift
