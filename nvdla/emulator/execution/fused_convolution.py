"""Convolutions with their SDP operation in one job, and buffers that jobs share.

It writes the same bytes as the two jobs, one after the other (:mod:`nvdla.emulator.execution.fusing` says when). It
leaves out
what only observers ask for (the counters), and what later jobs find in the convolution buffer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.emulator.hardware.convolution.cdma import ImageSource
from nvdla.emulator.hardware.convolution.checks import fetch_pad_element, pad_element, padded_size
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.hardware.job import Handed, Job
from nvdla.emulator.hardware.sdp.engine import SdpJob
from nvdla.emulator.hardware.sdp.settings import SdpSettings
from nvdla.emulator.memory.address_space import Lanes, Move, footprint
from nvdla.limits import Work
from nvdla.util.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.kernels.fast.conv_sdp_int8 import Summand
    from nvdla.kernels.jit.recorded_calls import RecordedCall


class Scratch:
    """Memory that the fused jobs of a plan use one after the other; nothing in it lasts."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self._size = 0

    def reserve(self, size: int) -> None:
        """Say before anything is taken how much will be: then all take the same memory."""
        self._size = max(self._size, size)

    def take(self, size: int) -> np.ndarray:
        """``size`` bytes with anything in them."""
        self.reserve(size)
        if self._memory.size < size:
            self._memory = np.empty(self._size, np.uint8)
        return self._memory[:size]


class Shared:
    """Resources that the fused jobs of a plan share: memory for padded data and for results to PDP, and packed
    weights. Layers with the same weights (averages are) read them from one place, which stays in the cache."""

    def __init__(self) -> None:
        self.data = Scratch()
        self.handed = Scratch()
        self._packed: dict[tuple[tuple[int, ...], bytes], list[np.ndarray]] = {}

    def packed(self, weights: np.ndarray) -> np.ndarray:
        """The packed weights, or the same ones of an earlier job."""
        equal = self._packed.setdefault((weights.shape, weights.reshape(-1)[:4096].tobytes()), [])
        for known in equal:
            if np.array_equal(known, weights):
                return known
        equal.append(weights)
        return weights


def flat_bytes(view: np.ndarray) -> np.ndarray:
    """The footprint of a cube as flat int8, from its first byte to its last; lines may overlap or have gaps."""
    return np.lib.stride_tricks.as_strided(view.view(np.int8), (footprint(view),), (1,))


_Cubes = tuple[np.ndarray, tuple[int, int, int, int], tuple[int, int, int]]
"""Flat cubes; (surfaces, height, width, atom) of one; strides of image, surface and line."""


SPARE = 4
"""Bytes after the data that a dot may read."""


class _Prepared(NamedTuple):
    """Work of a run: ``lines``, which Python fills first (images, lines, columns, channels; None for none), recorded
    calls, and ``handed``, results that do not go to memory (images, surfaces, height, width, atom)."""

    lines: np.ndarray | None
    records: list[RecordedCall]
    handed: np.ndarray | None


def _channel_group(conv: ConvolutionJob) -> int:
    """Channels that are contiguous in the data."""
    from nvdla.kernels.fast import conv_int8_dot as dot

    settings = conv.settings
    return settings.extended.channels if settings.image else dot.channel_group(settings.kernel.channels)


def packed_weights(
    conv: ConvolutionJob, sdp: SdpJob, weights: np.ndarray, out: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (kernels, rows, columns, channels) as the tile loads them, and their correction.

    ``out`` takes the first, if given. They are in the order of the input: in memory, or of the copy of it.
    """
    from nvdla.kernels.fast import conv_int8_dot as dot

    image, dilated = conv.settings.image, not conv.settings.image and conv.settings.dilation_x > 1
    in_memory = _lies_ready(conv, sdp.destination)
    group = conv.source.views[0].shape[3] if in_memory else None if image else _channel_group(conv)
    return dot.pack_weights(weights.transpose(0, 3, 1, 2), dilated, group, out)


def _lies_ready(conv: ConvolutionJob, destination: np.ndarray | None) -> bool:
    """True without padding for a 1 x 1 kernel or a single result: every dot takes its bytes from atoms of a line in
    their order in memory. (Dots of other kernels share bytes, so that reordering them pays.)
    """
    settings = conv.settings
    single = settings.output.width == settings.output.height == settings.dilation_x == 1
    direct = conv.plain and not settings.image
    if not direct or not (single or (settings.kernel.width, settings.kernel.height) == (1, 1)):
        return False
    if destination is not None and np.may_share_memory(conv.source.views[0], destination):
        return False  # the input must be read as a whole before anything is written
    out = settings.output
    bottom = (settings.kernel.height - 1) * settings.dilation_y
    inside_x = (out.width - 1) * settings.stride_x + settings.kernel.width <= settings.data.width
    inside_y = (out.height - 1) * settings.stride_y + bottom < settings.data.height
    atom, group = conv.source.views[0].shape[3], _channel_group(conv)
    if _needs_copy_for_matrices(conv, atom):
        return False
    return settings.pad_left == settings.pad_top == 0 and inside_x and inside_y and group % atom == 0


def _needs_copy_for_matrices(conv: ConvolutionJob, atom: int) -> bool:
    """True where products of matrices need more bytes in a row than an ``atom`` in memory has, and are worth a copy
    of the data: for more than one block of kernels."""
    from nvdla.kernels.fast import conv_int8_dot as dot
    from nvdla.kernels.fast import dot_layout, dot_tile

    output, kernel, group = conv.settings.output, conv.settings.kernel, _channel_group(conv)
    if output.width * output.height < dot_layout.MATRIX_PIXELS or conv.settings.kernels <= dot.KERNELS:
        return False
    taps = ceil_div(kernel.channels, group) * kernel.height
    suits = [dot_tile.multiplies_matrices(taps, kernel.width * size // 4) for size in (group, atom)]
    return suits == [True, False]


class FusedConvolution(Job):
    """A direct int8 convolution and its SDP, prepared for repeated runs and for batches of images.

    ``packed``: from :func:`packed_weights`; ``part``: the convolution of the plan that it replaces, where ``conv`` was
    made from that.
    """

    def __init__(
        self,
        conv: ConvolutionJob,
        sdp: SdpJob,
        packed: tuple[np.ndarray, np.ndarray],
        operands: tuple[np.ndarray, np.ndarray],
        shared: Shared,
        part: ConvolutionJob | None = None,
    ) -> None:
        from nvdla.kernels.fast.conv_sdp_int8 import FusedStage, narrow_settings

        self.conv, self.sdp = conv, sdp
        self.destination = sdp.destination
        self.statistics: dict[str, int] = {}
        self._data, self._handed = shared.data, shared.handed
        self._direct = conv.plain and not conv.settings.image
        self._group = _channel_group(conv)
        self._packed, correction = packed
        alu, mul = operands
        self._alu = (_padded(alu, correction.size, 0) - correction).astype(np.int32)
        self._mul = _padded(mul, correction.size, 1).astype(np.int32)
        self._stage = FusedStage(*_stage(sdp.settings))
        # X2 works between the two parts of a narrow ending.
        self._narrow = narrow_settings(self._stage) if sdp.settings.x2.bypass else np.empty(0, np.int64)
        self._in_place = _lies_ready(conv, self.destination)
        self._packed = shared.packed(self._packed)
        self._parts: tuple[Job, ...] = (part or conv, sdp)
        self._lay_out()
        self._place_in_memory()

    def _lay_out(self) -> None:
        """Compute the offsets of pixels and taps, in the padded data or in memory."""
        from nvdla.kernels.fast import conv_int8_dot as dot

        settings, view = self.conv.settings, self.conv.source.views[0]
        rows, columns = padded_size(settings)
        groups = 1 if settings.image else ceil_div(settings.kernel.channels, self._group)
        self._blocks = (groups, rows, columns, self._group)
        y, x = np.arange(settings.output.height)[:, None] * settings.stride_y, np.arange(settings.output.width)
        x = x * settings.stride_x
        if self._in_place:
            surface, line, pixel, _ = view.strides
            self._pixels = (y * line + x * pixel).reshape(-1)
            down = np.arange(settings.kernel.height) * (settings.dilation_y * line)
            self._taps = (np.arange(view.shape[0])[:, None] * surface + down).reshape(-1)
            return
        self._pixels = ((y * columns + x) * self._group).reshape(-1)
        dilation = (1, 1) if settings.image else (settings.dilation_y, settings.dilation_x)
        kernel = (settings.kernel.height, 1 if settings.image else settings.kernel.width)
        self._taps = dot.tap_offsets(groups, kernel, dilation, (rows, columns), self._group)

    @property
    def lines(self) -> int:
        """Rows of data, padding included, that it looks at."""
        return self._blocks[1]

    def is_alike(self, other: FusedConvolution) -> bool:
        """True when both do the same to data of other rows."""
        return (
            self._packed is other._packed
            and self._traits() == other._traits()
            and np.array_equal(self._alu, other._alu)
            and np.array_equal(self._mul, other._mul)
        )

    def _traits(self) -> tuple[object, ...]:
        settings, source = self.conv.settings, self.conv.source
        size, extended, output, padding = settings.data, settings.extended, settings.output, settings.fetch_padding
        widths = (size.width, size.channels, extended.width, extended.channels, output.width, output.channels)
        walk = (settings.stride_x, settings.stride_y, settings.dilation_x, settings.dilation_y)
        pads = (settings.pad_left, settings.pad_value, padding.left, padding.right, settings.fetch_pad_value)
        pixels = (source.format, source.signed) if isinstance(source, ImageSource) else None
        sdp = replace(self.sdp.settings, height=0)
        own = (self._in_place, self._direct, settings.image, settings.kernel, settings.converter)
        return *own, widths, walk, pads, pixels, settings.precision, sdp

    def whole(self, conv: ConvolutionJob, sdp: SdpJob, parts: tuple[Job, ...]) -> FusedConvolution | None:
        """A job for the rows that ``conv`` and ``sdp`` speak of, which stand for ``parts``; None where data would have
        to be taken in another way."""
        job = copy.copy(self)
        job.conv, job.sdp, job.destination, job._parts = conv, sdp, sdp.destination, parts
        if _lies_ready(conv, job.destination) != job._in_place:
            return None
        job._lay_out()
        job._place_in_memory()
        return job

    def _place_in_memory(self) -> None:
        """Reserve memory for data and results."""
        self._single: _Prepared | None = None
        self._in_lanes: tuple[int, _Prepared] | None = None
        self._read: tuple[np.ndarray, np.ndarray | None, list[RecordedCall]] | None = None
        if not self._in_place:
            self._data.reserve(math.prod(self._blocks) + SPARE)
        if self.destination is None:
            self._handed.reserve(self._handed_bytes)

    @property
    def parts(self) -> tuple[Job, ...]:
        """The jobs that it stands for, in the order of the data."""
        return self._parts

    @property
    def work(self) -> Work:
        """Cost of a run."""
        conv, sdp = self.conv.work, self.sdp.work
        return Work(conv.multiplications, conv.elements + sdp.elements, max(conv.cube, sdp.cube))

    @property
    def reads(self) -> list[np.ndarray]:
        """The data and the operands of X2: weights and X1's operands were read when the job was made."""
        summand = self.sdp.sources[1]
        return [*self.conv.source.views, *([] if summand is None else [summand.view])]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return self.sdp.writes

    def _relocate(self, move: Move) -> None:
        self.conv = move.once(self.conv, lambda: self.conv.moved(move))
        self.sdp = move.once(self.sdp, lambda: self.sdp.moved(move))
        self._parts = tuple(move.once(part, partial(part.moved, move)) for part in self._parts)
        self.destination = self.sdp.destination
        self._data, self._handed = move.once(self._data, Scratch), move.once(self._handed, Scratch)
        self._place_in_memory()

    @property
    def reread_bytes(self) -> int:
        """Bytes of weights that each image reads for a single result per kernel (0 for several results)."""
        return self._packed.nbytes if self._pixels.size == 1 else 0

    @property
    def scratch_bytes(self) -> int:
        """Bytes besides the network's memories that an image takes while this job is at work."""
        handed = 0 if self.destination is not None else self._handed_bytes
        return handed + (0 if self._in_place else math.prod(self._blocks))

    @property
    def _handed_bytes(self) -> int:
        settings = self.sdp.settings
        return settings.surfaces * settings.pixels * settings.atom

    def run(self, source: Handed = None) -> Handed:
        """Convolve and process. Returns the input of PDP, None if the result went to memory."""
        prepared = self._prepared()
        if prepared.lines is not None:
            prepared.lines[...] = self._lines()
        handed = self._done(prepared)
        return None if handed is None else handed[0]

    def records(self, source: Handed = None) -> tuple[list[RecordedCall], Handed] | None:
        """The job as records of compiled kernels; None where Python has to read the lines."""
        prepared = self._prepared()
        if prepared.lines is not None:
            return None
        return prepared.records, None if prepared.handed is None else prepared.handed[0]

    def read_in(self) -> None:
        """Do a part of the next :meth:`records`, in about half of its time."""
        self._read = self._read or self._input(None, 1)

    def run_lanes(self, lanes: Lanes, count: int, handed: Handed = None) -> Handed:
        """Compute for ``count`` images in lanes 1, 2 ...: what PDP takes has them one after the other."""
        if self._in_lanes is None or self._in_lanes[0] != count:
            self._in_lanes = count, self._prepare(lanes, count)
        prepared = self._in_lanes[1]
        if prepared.lines is not None:
            prepared.lines[...] = self._lines_of(lanes, count)
        return self._done(prepared)

    def _prepared(self) -> _Prepared:
        self._single = self._single or self._prepare(None, 1)
        return self._single

    def _done(self, prepared: _Prepared) -> Handed:
        for record in prepared.records:
            record.run()
        return prepared.handed

    def _prepare(self, lanes: Lanes | None, count: int) -> _Prepared:
        """For one image, or ``count`` in lanes."""
        data, lines, records = (self._read if lanes is None else None) or self._input(lanes, count)
        handed = self._handed_cubes(count) if self.destination is None else None
        if handed is not None:
            out, out_stride = handed.reshape(-1), self._handed_bytes
        elif lanes is None:
            out, out_stride = flat_bytes(self.writes[0]), 0
        else:
            out, out_stride = lanes.flat(self.writes[0], 1, count), lanes.stride
        size = math.prod(self._blocks)
        stride = size if not self._in_place else 0 if lanes is None else lanes.stride
        return _Prepared(lines, [*records, self._convolution(data, out, (count, stride, out_stride), lanes)], handed)

    def _input(self, lanes: Lanes | None, count: int) -> tuple[np.ndarray, np.ndarray | None, list[RecordedCall]]:
        """The data as the dots take them, flat; the lines that Python reads before, if any; and what brings them into
        order."""
        from nvdla.kernels.fast import conv_int8_dot as dot

        view, settings, lines = self.conv.source.views[0], self.conv.settings, None
        if self._direct:
            flat = flat_bytes(view) if lanes is None else lanes.flat(view, 1, count)
        if self._in_place:
            return flat, None, []
        # A dot takes four bytes at a time and may read past the end of the last line.
        data = self._data.take(count * math.prod(self._blocks) + SPARE)
        out = data[:-SPARE].reshape(count, *self._blocks)
        if self._direct:
            surfaces, height, width, atom = view.shape
            stride = 0 if lanes is None else lanes.stride
            cubes: _Cubes = flat, (surfaces, height, width, atom), (stride, view.strides[0], view.strides[1])
        elif (image := self._image(lanes, out)) is not None:
            return data, None, [image]
        else:
            lines = np.empty((count, *self._lines().shape[1:]), np.int8)
            _, rows, columns, channels = lines.shape
            line = columns * channels
            cubes = lines.reshape(-1), (1, rows, columns, channels), (rows * line, 0, line)
        left = 0 if settings.image else settings.pad_left
        return data, lines, [dot.blocked_cubes(*cubes, settings.pad_top, left, int(pad_element(settings)), out)]

    def _image(self, lanes: Lanes | None, out: np.ndarray) -> RecordedCall | None:
        """The record that reads images of 8-bit channels, None for what else there is."""
        source, settings = self.conv.source, self.conv.settings
        tables = source.tables() if isinstance(source, ImageSource) else None
        if tables is None or not isinstance(source, ImageSource):
            return None
        from nvdla.kernels.fast.image_int8 import Channel, Surroundings, image_lines

        size, padding = settings.data, settings.fetch_padding
        width = padding.left + size.width + padding.right
        pads = (int(fetch_pad_element(settings)), int(pad_element(settings)))
        around = Surroundings(size.height, size.width, padding.left, width, settings.pad_top, *pads)
        channels = []
        for plane, at in source.places():
            view, stride = source.views[plane], 0 if lanes is None else lanes.stride
            first = view if lanes is None else lanes.at(view, 1)
            pixel = source.format.bytes_per_pixel(plane)
            channels.append(Channel(first.ctypes.data + at, view.strides[1], pixel, stride))
        return image_lines(around, channels, tables, out.reshape(len(out), *self._blocks[1:]))

    def _convolution(
        self, data: np.ndarray, out: np.ndarray, images: tuple[int, int, int], lanes: Lanes | None
    ) -> RecordedCall:
        """The record of the convolution. ``images``: how many, bytes from one to the next of data and of results."""
        from nvdla.kernels.fast.conv_sdp_int8 import Place, convolution
        from nvdla.kernels.fast.dot_layout import FLIP

        settings, pixels, (count, stride, out_stride) = self.sdp.settings, self._pixels, images
        atom = pixel_stride = settings.atom
        plane = settings.height * settings.width * atom
        surface_stride = plane if self.destination is None else self.destination.strides[0]
        size = self.conv.source.views[0].size if self._in_place else math.prod(self._blocks)
        other, summand = self._summand(lanes, count)
        if pixels.size == 1:  # the images take the place of pixels: weights are read once for several of them
            pixels, pixel_stride = pixels + np.arange(count) * stride, out_stride
            summand = summand._replace(pixel_stride=summand.image_stride)
            count, stride, out_stride = 1, 0, 0
        flip = FLIP if self._in_place else 0
        place = Place(settings.surfaces, surface_stride, atom, pixel_stride, flip, count, stride, size, out_stride)
        quads, operands = self._packed.shape[2], (self._alu, self._mul)
        arrays = (data, pixels, self._taps, quads, self._packed, *operands)
        return convolution(*arrays, self._stage, self._narrow, out, place, other, summand)

    def _summand(self, lanes: Lanes | None, count: int) -> tuple[np.ndarray | None, Summand]:
        """The cube that X2 adds, flat, for one image or for ``count`` in lanes; None where there is none."""
        from nvdla.kernels.fast.conv_sdp_int8 import INT32_LOW, NO_SUMMAND, Summand

        operand, x2 = self.sdp.sources[1], self.sdp.settings.x2
        if operand is None:
            return None, NO_SUMMAND
        view, low = operand.view, INT32_LOW if x2.relu_bypass else 0
        in_lanes = lanes is not None and lanes.holds(view)
        flat = lanes.flat(view, 1, count) if lanes is not None and in_lanes else flat_bytes(view)
        stride = lanes.stride if lanes is not None and in_lanes else 0
        return flat, Summand(view.strides[0], view.shape[3], stride, x2.alu_shift, low)

    def _lines(self) -> np.ndarray:
        """The lines that CDMA makes, int8 (1, height, width, channels)."""
        lines = self.conv.source.read()[..., : self.conv.settings.extended.channels]
        if self.conv.settings.image:
            missing = self._blocks[2] - lines.shape[2]
            lines = np.pad(lines, ((0, 0), (0, 0), (0, max(missing, 0)), (0, 0)))
        return np.ascontiguousarray(lines)

    def _lines_of(self, lanes: Lanes, count: int) -> np.ndarray:
        """The lines of all images: each is read by way of lane 0."""
        lines = []
        for lane in range(1, count + 1):
            for view in self.conv.source.views:
                view[...] = lanes.at(view, lane)
            lines.append(self._lines())
        return np.concatenate(lines)

    def _handed_cubes(self, count: int) -> np.ndarray:
        """Return the memory for results to PDP, int8 (images, surfaces, height, width, atom)."""
        settings = self.sdp.settings
        shape = (count, settings.surfaces, settings.height, settings.width, settings.atom)
        return self._handed.take(math.prod(shape)).view(np.int8).reshape(shape)


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


def x1_operands(sdp: SdpJob) -> tuple[np.ndarray, np.ndarray]:
    """ALU and multiplier operands of X1 for each channel, int64; without effect where X1 does not use them.

    Those of the channels that fill the last atom count too: SDP processes whole atoms, and writes them.
    """
    x1, source = sdp.settings.x1, sdp.sources[0]
    channels = sdp.settings.surfaces * sdp.settings.atom
    alu = np.full(channels, 0 if x1.bypass or x1.alu_bypass else x1.alu_operand, np.int64)
    mul = np.full(channels, 1 if x1.bypass or x1.mul_bypass else x1.mul_operand, np.int64)
    if source is not None:
        alu_memory, mul_memory = (operand.reshape(-1).astype(np.int64) for operand in source.read())
        alu = alu_memory if x1.needs_alu else alu
        mul = mul_memory if x1.needs_mul else mul
    if x1.bypass:
        return alu, mul
    return np.clip(alu << min(x1.alu_shift, 40), -(1 << 31), (1 << 31) - 1), mul


def is_below(view: np.ndarray, other: np.ndarray) -> bool:
    """Return True when the other view begins where this one's last row ends."""
    return bool(other.ctypes.data == view.ctypes.data + view.shape[1] * view.strides[1])


def merged(bands: Sequence[FusedConvolution]) -> FusedConvolution | None:
    """Return one job for bands of rows of one layer, None where it would write other bytes."""
    sources = [_joined([band.conv.source.views[plane] for band in bands]) for plane in range(_planes(bands))]
    results, operands = _joined([band.writes[0] for band in bands]), _summands(bands)
    others = _joined(operands) if operands else None
    if results is None or (operands and others is None) or any(source is None for source in sources):
        return None
    views = [view for view, _ in filter(None, sources)]
    summand = None if others is None else others[0]
    if any(np.may_share_memory(results[0], view) for view in [*views, *([] if summand is None else [summand])]):
        return None
    starts = [rows for _, rows in filter(None, sources)]
    if any(rows != starts[0] for rows in starts) or not _rows_agree(bands, starts[0], results[1], views[0].shape[1]):
        return None
    if others is not None and others[1] != results[1]:
        return None
    conv, sdp = _whole_convolution(bands, views), _whole_sdp(bands, results[0], summand)
    return bands[0].whole(conv, sdp, tuple(part for band in bands for part in band.parts))


def _planes(bands: Sequence[FusedConvolution]) -> int:
    return min(len(band.conv.source.views) for band in bands)


def _summands(bands: Sequence[FusedConvolution]) -> list[np.ndarray]:
    """Return the operands that X2 adds, of all bands or of none."""
    return [operand.view for operand in (band.sdp.sources[1] for band in bands) if operand is not None]


def _joined(views: Sequence[np.ndarray]) -> tuple[np.ndarray, list[int]] | None:
    """The cube that has the rows of all views (surfaces, rows, columns, atom) without a gap, in their order, and the
    row that each begins with; None where there is none."""
    first = views[0]
    line, end = first.strides[1], 0
    starts: list[int] = []
    for view in views:
        distance = view.ctypes.data - first.ctypes.data
        start = distance // max(line, 1)
        alike = (
            view.strides == first.strides and view.shape[::2] == first.shape[::2] and view.shape[3] == first.shape[3]
        )
        if not alike or line <= 0 or start * line != distance or not (starts[-1] if starts else 0) <= start <= end:
            return None
        starts.append(start)
        end = max(end, start + view.shape[1])
    if first.shape[0] > 1 and first.strides[0] < end * line:
        return None  # rows of one surface would overlap those of the next
    shape = (first.shape[0], end, *first.shape[2:])
    return as_strided(first, shape, first.strides), starts


def _rows_agree(bands: Sequence[FusedConvolution], starts: list[int], results: list[int], rows: int) -> bool:
    """True when each result is of the same rows as in its band, and what is padding there is padding of the whole."""
    above = bands[0].conv.settings.pad_top
    expected_row = 0
    for band, start, result in zip(bands, starts, results, strict=True):
        settings = band.conv.settings
        first = start - settings.pad_top
        last = first + band.lines - 1
        within = (settings.pad_top == 0 or start == 0) and (
            last < start + settings.data.height or start + settings.data.height == rows
        )
        if not within or result != expected_row or first != result * settings.stride_y - above:
            return False
        expected_row += settings.output.height
    return True


def _whole_convolution(bands: Sequence[FusedConvolution], views: list[np.ndarray]) -> ConvolutionJob:
    """The convolution of all bands: it only describes places, and never runs."""
    conv = copy.copy(bands[0].conv)
    height, rows = sum(band.conv.settings.output.height for band in bands), views[0].shape[1]
    settings = conv.settings
    conv.settings = replace(
        settings,
        data=replace(settings.data, height=rows),
        extended=replace(settings.extended, height=rows),
        output=replace(settings.output, height=height),
    )
    conv.source = copy.copy(conv.source)
    conv.source.settings, conv.source.views = conv.settings, views
    return conv


def _whole_sdp(bands: Sequence[FusedConvolution], result: np.ndarray, summand: np.ndarray | None) -> SdpJob:
    """The SDP of all bands."""
    sdp = copy.copy(bands[0].sdp)
    sdp.settings = replace(sdp.settings, height=result.shape[1])
    sdp.destinations, sdp.destination = [result], result
    operand = sdp.sources[1]
    if operand is not None and summand is not None:
        sdp.sources = [sdp.sources[0], replace(operand, view=summand), *sdp.sources[2:]]
    return sdp
