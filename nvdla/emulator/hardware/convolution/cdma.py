"""Inputs of a convolution: feature data, pixels and weights as CDMA fetches them.

Layouts: "In-memory data formats", weight format; cmod/csc/NV_NVDLA_csc.cpp:1150 (direct), :1553 (image).

The results are the content of the convolution buffer: arrays (batches, lines, columns, channels) in the processing
precision. Padding of features and top and bottom padding of images is added later (CSC does it).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.convolution.checks import (
    ConvolutionSettings,
    check_extended_channels,
    data_space,
    fetch_pad_element,
    fetched_weight_bytes,
    weight_space,
)
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import AddressSpace, Move
from nvdla.errors import ConfigError, ScheduleError
from nvdla.loadable.enums import PIXEL_FORMATS
from nvdla.util.precision import Precision
from nvdla.util.rounding import ceil_div

if TYPE_CHECKING:
    from typing_extensions import Self


def unpack_direct(elements: np.ndarray, shape: tuple[int, int, int, int], group: int, block: int) -> np.ndarray:
    """Weights of a direct convolution as an array (kernels, height, width, channels).

    ``elements`` holds them one after the other as in memory: kernel group (``group`` kernels, fewer in the last) ->
    block of ``block`` channels (fewer in the last) -> row -> column -> kernel -> channel.
    """
    kernels, height, width, channels = shape
    full = kernels // group
    split = full * group * height * width * channels
    parts = []
    if full:
        parts.append(_unpack_groups(elements[:split], (full, group, height, width, channels), block))
    if kernels % group:
        last = (1, kernels % group, height, width, channels)
        parts.append(_unpack_groups(elements[split : np.prod(shape)], last, block))
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _unpack_groups(elements: np.ndarray, shape: tuple[int, int, int, int, int], block: int) -> np.ndarray:
    """Groups of the same number of kernels: shape is (groups, kernels of a group, height, width, channels)."""
    groups, kernels, height, width, channels = shape
    rows = elements.reshape(groups, -1)
    blocks, rest = divmod(channels, block)
    split = blocks * block * kernels * height * width
    result = np.empty(shape, elements.dtype)
    if blocks:
        whole = rows[:, :split].reshape(groups, blocks, height, width, kernels, block).transpose(0, 4, 2, 3, 1, 5)
        result[..., : blocks * block].reshape(groups, kernels, height, width, blocks, block)[...] = whole
    if rest:
        tail = rows[:, split:].reshape(groups, height, width, kernels, rest)
        result[..., blocks * block :] = tail.transpose(0, 3, 1, 2, 4)
    return result.reshape(groups * kernels, height, width, channels)


def unpack_image(
    elements: np.ndarray, shape: tuple[int, int, int], group: int, block: int, post_extension: int
) -> np.ndarray:
    """Weights of an image convolution as an array (kernels, height, 1, extended channels).

    ``shape`` is (kernels, height, extended channels); an extended channel is column * channels + channel. With a post
    extension of 2 or 4 the rows of a kernel that are processed together are adjacent: kernel group -> rows taken
    ``post_extension`` at a time (fewer at the end) -> kernel -> row -> channel.
    """
    kernels, height, channels = shape
    if post_extension == 1:
        return unpack_direct(elements, (kernels, height, 1, channels), group, block)
    check_extended_channels(channels, block, post_extension)
    result = np.empty((kernels, height, 1, channels), elements.dtype)
    position = 0
    for first in range(0, kernels, group):
        count = min(group, kernels - first)
        for top in range(0, height, post_extension):
            rows = min(post_extension, height - top)
            size = count * rows * channels
            part = elements[position : position + size].reshape(count, rows, 1, channels)
            result[first : first + count, top : top + rows] = part
            position += size
    return result


def unpack_winograd(elements: np.ndarray, kernels: int, channels: int, group: int) -> np.ndarray:
    """Transformed weights as an array (kernels, channels / 4, 4 rows, 4 columns, 4 channels).

    In memory: kernel group -> four channels -> kernel -> row, column, channel. ``channels`` counts the extended ones.
    """
    cube = 4 * 4 * 4
    blocks = channels // 4
    full = kernels // group
    split = full * group * blocks * cube
    parts = []
    if full:
        parts.append(elements[:split].reshape(full, blocks, group, cube).transpose(0, 2, 1, 3))
    if kernels % group:
        last = elements[split : kernels * blocks * cube].reshape(1, blocks, kernels % group, cube)
        parts.append(last.transpose(0, 2, 1, 3))
    return np.concatenate([part.reshape(-1, blocks, 4, 4, 4) for part in parts])


def decompress(elements: np.ndarray, mask: np.ndarray, count: int) -> np.ndarray:
    """All ``count`` weight elements from the stored non-zero ``elements`` and the mask bytes (WMB).

    One mask bit an element, least significant bit first, running on across kernel groups; 1 = stored
    (cmod/csc/NV_NVDLA_csc.cpp:2979). Raises ConfigError when the mask claims more elements than are stored.
    """
    stored = np.unpackbits(mask, bitorder="little")[:count].astype(bool)
    needed = int(np.count_nonzero(stored))
    if needed > elements.size:
        raise ConfigError(
            f"the weight mask marks {needed} weights as stored, the compressed weights are {elements.size}"
        )
    result = np.zeros(count, elements.dtype)
    result[stored] = elements[:needed]
    return result


@dataclass
class Specials:
    """Counts of NaN and infinities in the latest read of fp16 data or weights."""

    nans: int = 0
    infinities: int = 0

    def count(self, bits: np.ndarray) -> None:
        """Add those of an array of fp16 bit patterns."""
        magnitude = bits & 0x7FFF
        self.nans += int(np.count_nonzero(magnitude > 0x7C00))
        self.infinities += int(np.count_nonzero(magnitude == 0x7C00))


class _Source:
    """Views on memory, and the special values of the latest read."""

    settings: ConvolutionSettings
    views: list[np.ndarray]
    specials: Specials

    def moved(self, move: Move) -> Self:
        """The same source in other memory."""
        source = copy.copy(self)
        source.specials = Specials()
        source.views = [move(view) for view in self.views]
        return source

    def convert(self, values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Apply the input converter; ``offsets``: one per channel, the last axis of ``values``."""
        from nvdla.kernels.conv import convert_input

        converter, precision = self.settings.converter, int(self.settings.precision)
        return convert_input(values, offsets, converter.scale, converter.truncate, precision)


class FeatureSource(_Source):
    """Feature data in memory: prepared views, one per batch, that :meth:`read` turns into lines.

    NaN and infinities are counted in whole atoms, unused channels included (cmod/cdma/NV_NVDLA_cdma.cpp:1420).
    """

    def __init__(
        self, cdma: RegisterGroup, settings: ConvolutionSettings, config: Configuration, memory: AddressSpace
    ) -> None:
        self.settings = settings
        self.specials = Specials()
        size = settings.data
        atom = config.memory_atom
        surfaces = ceil_div(size.channels * settings.input_precision.bytes, atom)
        line_stride = cdma["D_LINE_STRIDE"]
        surface_stride = cdma["D_SURF_STRIDE"]
        packed = cdma["D_DAIN_MAP.LINE_PACKED"] and cdma["D_DAIN_MAP.SURF_PACKED"]
        if packed and size.width == size.height == 1:
            surface_stride = atom  # read as one line of atoms (cmod/cdma/NV_NVDLA_cdma.cpp:1062)
        base = cdma.address("D_DAIN_ADDR_HIGH_0", "D_DAIN_ADDR_LOW_0")
        self.views = [
            memory.surface(
                data_space(cdma),
                base + batch * cdma["D_BATCH_STRIDE"],
                (surfaces, size.height, size.width, atom),
                line_stride,
                surface_stride,
                f"convolution input {size}",
            )
            for batch in range(settings.batches)
        ]

    @property
    def verbatim(self) -> bool:
        """True if the lines are the elements in memory, unconverted."""
        return self.settings.input_precision is not Precision.FP16 and self.settings.converts_nothing

    def surfaces(self) -> list[np.ndarray]:
        """The cubes (surfaces, height, width, elements of an atom) in their memory layout, one per batch."""
        return [view.view(self.settings.input_precision.bits) for view in self.views]

    def read(self) -> np.ndarray:
        """The lines as an array (batches, height, width, channels of whole atoms)."""
        settings = self.settings
        size = settings.data
        lines = []
        self.specials = Specials()
        for view in self.views:
            cube = np.ascontiguousarray(view.transpose(1, 2, 0, 3)).view(settings.input_precision.bits)
            if settings.input_precision is Precision.FP16:
                self.specials.count(cube)
            lines.append(self._convert(cube.reshape(size.height, size.width, -1)))
        return np.stack(lines)

    def _convert(self, cube: np.ndarray) -> np.ndarray:
        settings = self.settings
        if settings.input_precision is Precision.FP16:
            return flush_nan(cube) if settings.nan_to_zero else cube
        if settings.converts_nothing:
            return cube
        return self.convert(cube, np.full(cube.shape[-1], settings.converter.offsets[0]))


class WinogradSource(FeatureSource):
    """Feature data for Winograd mode: padded, and with each stride turned into channels."""

    verbatim = False

    def check(self) -> None:
        """Raise ScheduleError unless CDMA makes the lines that CSC expects."""
        settings, (surfaces, _, _, atom) = self.settings, self.views[0].shape
        pad, rows, columns = settings.fetch_padding, settings.fetch_stride_y, settings.fetch_stride_x
        width = (pad.left + settings.data.width + pad.right) // columns
        channels = rows * columns * surfaces * atom // settings.input_precision.bytes
        if (width, channels) != (settings.extended.width, settings.extended.channels):
            raise ScheduleError(
                f"deadlock: CDMA makes lines of {width} columns x {channels} channels, CSC.D_DATAIN_SIZE_EXT states "
                f"{settings.extended}"
            )

    def read(self) -> np.ndarray:
        """The extended lines as an array (batches, lines, columns, extended channels).

        Whole atoms are taken from memory, unused channels included; padding covers these too. Extended
        channels are (row of the stride, column of the stride, channel) (cmod/cdma/NV_NVDLA_cdma.cpp:3180).
        """
        settings = self.settings
        size, pad = settings.data, settings.fetch_padding
        rows, columns = settings.fetch_stride_y, settings.fetch_stride_x
        height, width = pad.top + size.height + pad.bottom, pad.left + size.width + pad.right
        results = []
        self.specials = Specials()
        for view in self.views:
            atoms = np.ascontiguousarray(view.transpose(1, 2, 0, 3)).view(settings.input_precision.bits)
            cube = atoms.reshape(size.height, size.width, -1)
            padded = np.full((height, width, cube.shape[2]), fetch_pad_element(settings))
            padded[pad.top : pad.top + size.height, pad.left : pad.left + size.width] = cube
            if settings.input_precision is Precision.FP16:  # here padding counts, and is flushed, too (:3188)
                self.specials.count(padded)
                padded = flush_nan(padded) if settings.nan_to_zero else padded
            split = padded.reshape(height // rows, rows, width // columns, columns, -1)
            results.append(split.transpose(0, 2, 1, 3, 4).reshape(height // rows, width // columns, -1))
        return np.stack(results)


class ImageSource(_Source):
    """An image in memory, one or two planes."""

    verbatim = False

    def __init__(
        self, cdma: RegisterGroup, settings: ConvolutionSettings, config: Configuration, memory: AddressSpace
    ) -> None:
        self.settings = settings
        self.specials = Specials()
        value = cdma["D_DATAIN_FORMAT.PIXEL_FORMAT"]
        if value >= len(PIXEL_FORMATS):
            known = len(PIXEL_FORMATS) - 1
            raise ConfigError(f"CDMA.D_DATAIN_FORMAT.PIXEL_FORMAT: must be 0 to {known}, got {value}")
        self.format = PIXEL_FORMATS[value]
        self.signed = bool(cdma["D_DATAIN_FORMAT.PIXEL_SIGN_OVERRIDE"])
        self._check(cdma, config)
        first = cdma["D_PIXEL_OFFSET.PIXEL_X_OFFSET"]
        size = settings.data
        self.views = []
        for plane in range(len(self.format.planes)):
            pixel_bytes = self.format.bytes_per_pixel(plane)
            start = first * pixel_bytes
            if plane:
                # The second plane's address already names the atom of the first pixel needed
                # (cmod/cdma/NV_NVDLA_cdma.cpp:2175).
                start %= config.image_offset_atom
            name = ("D_LINE_STRIDE", "D_LINE_UV_STRIDE")[plane]
            self.views.append(
                memory.surface(
                    data_space(cdma),
                    cdma.address(f"D_DAIN_ADDR_HIGH_{plane}", f"D_DAIN_ADDR_LOW_{plane}") + start,
                    (1, size.height, 1, size.width * pixel_bytes),
                    cdma[name],
                    0,
                    f"plane {plane} of image input {size}",
                )
            )

    def _check(self, cdma: RegisterGroup, config: Configuration) -> None:
        settings, form = self.settings, self.format
        if settings.data.channels != form.channels:
            raise ScheduleError(
                f"deadlock: pixel format {form.name} has {form.channels} channels, "
                f"CDMA.D_DATAIN_SIZE_1 states {settings.data.channels}"
            )
        if cdma["D_DATAIN_FORMAT.PIXEL_MAPPING"]:
            raise ConfigError("CDMA.D_DATAIN_FORMAT.PIXEL_MAPPING: must be 0 (pitch linear), got 1")
        if (form.element_bytes == 2) != (settings.input_precision is not Precision.INT8):
            raise ConfigError(
                f"pixel format {form.name} has {8 * form.element_bytes}-bit elements, "
                f"the input precision is {settings.input_precision}"
            )

    def read(self) -> np.ndarray:
        """The lines with their left and right padding as an array (1, height, padded width, channels)."""
        settings = self.settings
        size = settings.data
        pixels = np.empty((size.height, size.width, self.format.channels), np.uint16)
        for plane, view in zip(self.format.planes, self.views, strict=True):
            elements = self._elements(np.ascontiguousarray(view).reshape(size.height, size.width, -1))
            for position, channel in enumerate(plane):
                pixels[:, :, channel] = elements[:, :, position]
        padding = settings.fetch_padding
        width = padding.left + size.width + padding.right
        lines = np.empty((1, size.height, width, size.channels), settings.precision.bits)
        lines[...] = fetch_pad_element(settings)
        lines[0, :, padding.left : padding.left + size.width] = self._convert(pixels)
        return lines

    def tables(self) -> np.ndarray | None:
        """(channels, 256) what each byte of a channel becomes; None where channels are not of 8 bits."""
        if self.format.element_bytes != 1 or self.format.bits:
            return None
        every = np.repeat(np.arange(256, dtype=np.uint16)[:, None, None], self.format.channels, axis=2)
        return np.ascontiguousarray(self._convert(every)[:, 0].T)

    def places(self) -> list[tuple[int, int]]:
        """For each channel its plane, and where in a pixel of that its byte or word is."""
        planes = enumerate(self.format.planes)
        places = {channel: (plane, at) for plane, components in planes for at, channel in enumerate(components)}
        return [places[channel] for channel in sorted(places)]

    def _elements(self, data: np.ndarray) -> np.ndarray:
        """(height, width, bytes of a pixel) as (height, width, elements), unsigned, in the order of memory."""
        form = self.format
        if not form.bits:
            return data if form.element_bytes == 1 else data.view(np.uint16)
        words = data.view(np.uint32)[:, :, 0]
        elements = np.empty((*words.shape, len(form.bits)), np.uint16)
        low = 0
        for position, width in enumerate(form.bits):  # every element is moved up to the top of 16 bits
            elements[:, :, position] = (words >> low & (1 << width) - 1) << 16 - width
            low += width
        return elements

    def _convert(self, pixels: np.ndarray) -> np.ndarray:
        """The converter of CDMA, or the raw bits when it is off (cmod/cdma/NV_NVDLA_cdma.cpp:3940)."""
        settings = self.settings
        if self.format.floating or settings.input_precision is Precision.FP16:
            self.specials = Specials()
            self.specials.count(pixels)
            return flush_nan(pixels) if settings.nan_to_zero else pixels
        source = np.dtype(f"{'i' if self.signed else 'u'}{self.format.element_bytes}")
        if not settings.converter.enabled:
            return pixels.astype(source).astype(settings.precision.bits)
        return self.convert(pixels.astype(source), np.array(settings.converter.offsets[: self.format.channels]))


class WeightSource(_Source):
    """Weights in memory, plain or compressed. ``views``: of the weights and, of compressed ones, of their mask."""

    def __init__(
        self, cdma: RegisterGroup, settings: ConvolutionSettings, config: Configuration, memory: AddressSpace
    ) -> None:
        self.settings = settings
        self.specials = Specials()
        kernel = settings.kernel
        self.count = settings.kernels * kernel.width * kernel.height * kernel.channels
        self._check(cdma)
        space = weight_space(cdma)
        size = self.count * settings.precision.bytes
        masks = []
        if settings.compressed:
            size = cdma["D_WEIGHT_BYTES"]
            mask_address = cdma.address("D_WMB_ADDR_HIGH", "D_WMB_ADDR_LOW")
            masks = [memory.view(space, mask_address, settings.mask_bytes, "weight mask (WMB)")]
        address = cdma.address("D_WEIGHT_ADDR_HIGH", "D_WEIGHT_ADDR_LOW")
        self.views = [memory.view(space, address, size, f"weights of {settings.kernels} kernels {kernel}"), *masks]
        self._size = fetched_weight_bytes(settings, config)
        room = memory.find(space, address, size).end - address
        self._there = memory.view(space, address, min(self._size, room))

    def _check(self, cdma: RegisterGroup) -> None:
        settings = self.settings
        real = self.count // settings.kernels * settings.precision.bytes
        size = cdma["D_WEIGHT_SIZE_0.BYTE_PER_KERNEL"] + 1
        kernels = cdma["D_WEIGHT_SIZE_1.WEIGHT_KERNEL"] + 1
        if size != real or kernels != settings.kernels:
            raise ScheduleError(
                f"deadlock: CDMA fetches {kernels} kernels of {size} bytes, CSC needs {settings.kernels} of {real}"
            )

    @property
    def mask(self) -> np.ndarray:
        """The bytes of the mask of compressed weights."""
        return self.views[1]

    def fetched(self) -> np.ndarray:
        """All bytes that CDMA fetches, those after the last kernel included (zeros where no memory is)."""
        return np.pad(self._there, (0, self._size - self._there.size))

    def moved(self, move: Move) -> Self:
        """Return a copy whose views are elsewhere in memory, given by ``move``."""
        source = super().moved(move)
        source._there = move(self._there)
        return source

    def elements(self, stored: np.ndarray) -> np.ndarray:
        """Bytes of uncompressed weights as elements in the order of the memory layout; counts the special ones."""
        elements = stored.view(self.settings.precision.bits)
        if self.settings.precision is Precision.FP16:
            self.specials = Specials()
            self.specials.count(elements)
        return elements

    def read(self) -> np.ndarray:
        """All weight elements in the order of the memory layout, decompressed (a view where nothing changes)."""
        element_bytes = self.settings.precision.bytes
        stored, *masks = self.views
        elements = self.elements(np.ascontiguousarray(stored[: stored.size // element_bytes * element_bytes]))
        return decompress(elements, masks[0], self.count) if masks else elements


def flush_nan(bits: np.ndarray) -> np.ndarray:
    """fp16 bit patterns with every NaN replaced by +0 (D_NAN_FLUSH_TO_ZERO)."""
    return np.where((bits & 0x7FFF) > 0x7C00, np.uint16(0), bits).astype(np.uint16)


def input_source(
    cdma: RegisterGroup, settings: ConvolutionSettings, config: Configuration, memory: AddressSpace
) -> FeatureSource | ImageSource:
    """The reader for what D_DATAIN_FORMAT names. Raises NvdlaError for a footprint outside memory."""
    kind = WinogradSource if settings.winograd else ImageSource if settings.image else FeatureSource
    return kind(cdma, settings, config, memory)
