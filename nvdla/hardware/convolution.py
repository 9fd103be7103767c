"""The convolution pipeline: CDMA fetches, CSC sequences, CMAC multiplies, CACC accumulates and hands on to SDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.errors import ConfigError, ScheduleError
from nvdla.hardware.cbuf import ConvolutionBuffer, join_lines
from nvdla.hardware.cdma import WeightSource, input_source, pad_element
from nvdla.hardware.convolution_settings import ConvolutionSettings, Precision, decode
from nvdla.hardware.register_file import RegisterGroup
from nvdla.hardware.sequence import Step, atom_places, direct_sequence, image_sequence
from nvdla.hardware.weights import unpack_direct, unpack_image, unpack_winograd

if TYPE_CHECKING:
    from nvdla.hardware.machine import Machine


class Convolution:
    """The engine. Its convolution buffer lives from operation to operation."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.buffer = ConvolutionBuffer()
        self._fetched: tuple[np.ndarray | None, np.ndarray | None] | None = None

    def prepare(self, groups: dict[str, RegisterGroup]) -> ConvolutionJob:
        """Decode and check everything. Raises NvdlaError."""
        return ConvolutionJob(self, groups)

    def fetch(self, groups: dict[str, RegisterGroup]) -> None:
        """Fill the convolution buffer now, before SDP is ready to take the results.

        The next operation then works on what memory held at this moment.
        """
        self._fetched = self.prepare(groups).fetch()

    def take_fetched(self) -> tuple[np.ndarray | None, np.ndarray | None] | None:
        """What :meth:`fetch` has read (once), None if nothing."""
        fetched, self._fetched = self._fetched, None
        return fetched


class ConvolutionJob:
    """One convolution, decoded and checked. ``run`` returns the accumulators for SDP.

    ``keep_weights`` may be set by a caller who knows that the weights in memory do not change from run to run: they
    are then unpacked once; :meth:`invalidate` drops them.
    """

    destination: None = None

    def __init__(self, engine: Convolution, groups: dict[str, RegisterGroup]) -> None:
        machine = engine.machine
        self.engine = engine
        self.groups = groups
        self.config = machine.config
        self.settings = decode(groups, machine.config)
        self.source = input_source(groups["CDMA"], self.settings, machine.config, machine.memory)
        self.weight_source = WeightSource(groups["CDMA"], self.settings, machine.config, machine.memory)
        self.statistics: dict[str, int] = {}
        self.keep_weights = False
        self._packed: Any = None

    def invalidate(self) -> None:
        """Forget unpacked weights: the next run reads them from memory again."""
        self._packed = None

    def fetch(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Data lines and weight elements as memory holds them now; None for what is left in the buffer."""
        settings, buffer = self.settings, self.engine.buffer
        lines = self.source.read() if buffer.needs_fetch(settings) else None
        weights = None if buffer.left_weights(settings) is not None else np.array(self.weight_source.read())
        return lines, weights

    def run(self, source: Any = None) -> np.ndarray:
        """Convolve. Returns (batches, surfaces, height, width, atom elements): int32, or fp32 bits for fp16."""
        settings = self.settings
        lines, elements = self.engine.take_fetched() or (None, None)
        lines = self._lines(lines)
        elements = self._elements(elements)
        accumulators = self._convolve(lines[:, : settings.extended.height], elements)
        self.engine.buffer.finish(settings, lines, elements)
        return accumulators

    def _lines(self, fetched: np.ndarray | None) -> np.ndarray:
        """The lines in the convolution buffer: what is left, then what is fetched."""
        settings, buffer = self.settings, self.engine.buffer
        left = buffer.left_lines(settings)
        if not buffer.needs_fetch(settings):
            return join_lines(None, left, settings.extended.height)
        fetched = self.source.read() if fetched is None else fetched
        return join_lines(left, fetched, settings.extended.height)

    def _elements(self, fetched: np.ndarray | None) -> np.ndarray:
        """Weight elements in memory order: left in the buffer, fetched before, or read now."""
        left = self.engine.buffer.left_weights(self.settings)
        if left is not None:
            if left.size < self.weight_source.count:
                raise ConfigError(
                    f"weight re-use: {self.weight_source.count} weights are needed, the convolution buffer "
                    f"holds {left.size}"
                )
            return left
        return self.weight_source.read() if fetched is None else fetched

    def _convolve(self, lines: np.ndarray, elements: np.ndarray) -> np.ndarray:
        """Choose the arithmetic by mode and precision."""
        settings = self.settings
        if settings.winograd:
            return self._winograd(lines, elements)
        if settings.precision is Precision.FP16:
            return self._halves(pad_lines(lines, settings), elements)
        return self._integers(pad_lines(lines, settings), elements)

    def _integers(self, lines: np.ndarray, elements: np.ndarray) -> np.ndarray:
        from nvdla.kernels import conv

        settings = self.settings
        weights, packed = self._weights(elements)
        window = conv.Window(**window_steps(settings))
        if packed is None:
            sums = conv.saturating_sums(lines, weights, window, self._sequence(weights.shape))
        else:
            sums = conv.exact_sums(lines, packed, window, weights.shape[1:])
        out = np.empty(self._output_shape(), np.int32)
        self._saturated(int(conv.deliver(sums, settings.truncate, out)))
        return out

    def _saturated(self, count: int) -> None:
        """CACC.D_OUT_SATURATION: results clamped to 32 bits (cmod/cacc/NV_NVDLA_cacc.cpp:111)."""
        self.statistics["saturated"] = count
        self.groups["CACC"].values["D_OUT_SATURATION"] = count & 0xFFFFFFFF

    def _halves(self, lines: np.ndarray, elements: np.ndarray) -> np.ndarray:
        from nvdla.kernels import fp16_mac

        settings = self.settings
        steps = window_steps(settings)
        length = lines.shape[2]
        if self._packed is None or not self.keep_weights:
            weights = self._unpack(elements)
            places = (steps["dilation_y"] * length, steps["step_column"])
            offsets, indices = atom_places(self._sequence(weights.shape), weights.shape[1:], places, fp16_mac.ATOM)
            flat = np.append(weights.reshape(weights.shape[0], -1), np.zeros((weights.shape[0], 1), np.uint16), axis=1)
            self._packed = offsets, fp16_mac.pack_weights(flat[:, indices])
        offsets, packed = self._packed
        y = np.arange(settings.output.height)[:, None] * settings.stride_y * length
        bases = (y + np.arange(settings.output.width) * steps["step_x"]).reshape(-1)
        out = np.zeros(self._output_shape(), np.uint32)
        for batch in range(settings.batches):
            target = out[batch].reshape(out.shape[1], bases.size, out.shape[4])
            fp16_mac.convolve(lines[batch].reshape(-1), bases, offsets, *packed, target)
        return out

    def _winograd(self, lines: np.ndarray, elements: np.ndarray) -> np.ndarray:
        settings = self.settings
        if lines.shape[2:] != (settings.extended.width, settings.extended.channels):
            raise ScheduleError(
                f"the convolution waits for ever: CDMA makes lines of {lines.shape[2]} x {lines.shape[3]} channels, "
                f"CSC wants {settings.extended}"
            )
        group = self.config.mac_atomic_k // settings.precision.bytes
        weights = unpack_winograd(elements, settings.kernels, settings.kernel.channels, group)
        if settings.precision is Precision.FP16:
            return self._winograd_halves(lines, weights)
        from nvdla.kernels import conv, winograd

        height, width = settings.output.height, settings.output.width
        packed = weights.transpose(2, 3, 1, 4, 0).reshape(4, 4, -1, settings.kernels).astype(np.float64)
        sums = np.stack([winograd.convolve(cube, packed, height, width, settings.pra_truncate) for cube in lines])
        out = np.empty(self._output_shape(), np.int32)
        self._saturated(int(conv.deliver(sums, settings.truncate, out)))
        return out

    def _winograd_halves(self, lines: np.ndarray, weights: np.ndarray) -> np.ndarray:
        from nvdla.kernels import fp16_mac, winograd, winograd_fp16

        settings = self.settings
        packed = fp16_mac.pack_weights(weights.reshape(settings.kernels, -1))
        out = np.zeros(self._output_shape(), np.uint32)
        for cube, target in zip(lines, out, strict=True):
            tiles = winograd.tiles(cube, settings.output.height, settings.output.width)
            flat = np.ascontiguousarray(tiles).reshape(-1, 4, 4, settings.extended.channels)
            transformed = np.empty((flat.shape[0], settings.extended.channels // 4, fp16_mac.ATOM), np.uint16)
            winograd_fp16.transform_data(flat, transformed)
            winograd_fp16.convolve(transformed, settings.output.width // 2, *packed, target)
        return out

    def _weights(self, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Weights (kernels, rows, columns, channels), and packed for the matrix product where that is exact."""
        if self._packed is not None:
            return self._packed
        from nvdla.kernels import conv

        weights = self._unpack(elements)
        packed = conv.pack_weights(weights) if conv.largest_sum(weights) < 1 << conv.CACC_BITS - 1 else None
        if self.keep_weights:
            self._packed = weights, packed
        return weights, packed

    def _unpack(self, elements: np.ndarray) -> np.ndarray:
        settings, kernel = self.settings, self.settings.kernel
        group, block = self.config.mac_atomic_k // settings.precision.bytes, self.config.mac_atomic_c
        if settings.image:
            shape = (settings.kernels, kernel.height, kernel.channels)
            return unpack_image(elements, shape, group, block, settings.post_extension)
        return unpack_direct(elements, (settings.kernels, kernel.height, kernel.width, kernel.channels), group, block)

    def _sequence(self, shape: tuple[int, int, int, int]) -> list[Step]:
        _, height, width, channels = shape
        block = self.config.mac_atomic_c
        if self.settings.image:
            return image_sequence(height, channels, block, self.settings.post_extension)
        return direct_sequence(height, width, channels, block)

    def _output_shape(self) -> tuple[int, int, int, int, int]:
        settings, out = self.settings, self.settings.output
        atom = self.config.memory_atom // settings.precision.bytes
        return settings.batches, -(-out.channels // atom), out.height, out.width, atom


def window_steps(settings: ConvolutionSettings) -> dict[str, int]:
    """The fields of kernels.conv.Window: an image line is one row of channels, its kernel has one column."""
    channels = settings.extended.channels
    return {
        "out_height": settings.output.height,
        "out_width": settings.output.width,
        "stride_y": settings.stride_y,
        "step_x": settings.stride_x * channels,
        "dilation_y": 1 if settings.image else settings.dilation_y,
        "step_column": 0 if settings.image else settings.dilation_x * channels,
    }


def pad_lines(lines: np.ndarray, settings: ConvolutionSettings) -> np.ndarray:
    """Padded lines (batches, rows, elements) that hold every element that any output needs.

    Outside the cube lies the padding value; behind the end of an image line (which CDMA has padded) zeros
    (cmod/csc/NV_NVDLA_csc.cpp:770, :2875).
    """
    kernel, out = settings.kernel, settings.output
    batches, height, width, channels = lines.shape
    left = 0 if settings.image else settings.pad_left
    steps = window_steps(settings)
    rows = (out.height - 1) * settings.stride_y + (kernel.height - 1) * steps["dilation_y"] + 1
    needed = (out.width - 1) * steps["step_x"] + (kernel.width - 1) * steps["step_column"] + kernel.channels
    columns = -(-needed // channels)
    padded = np.empty((batches, rows, columns, channels), lines.dtype)
    top = min(settings.pad_top, rows)
    used = min(height, rows - top)
    if not (used == rows and left == 0 and columns <= width):
        padded[...] = pad_element(settings)
    shown = max(min(width, columns - left), 0)
    padded[:, top : top + used, left : left + shown] = lines[:, :used, :shown]
    if settings.image:
        padded[:, top : top + used, shown:] = 0
    return padded.reshape(batches, rows, columns * channels)
