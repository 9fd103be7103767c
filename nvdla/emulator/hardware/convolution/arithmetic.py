"""Arithmetic of CMAC and CACC, in the sequence of the hardware.

It decides the result wherever addition is not associative: fp16, and sums that saturate.

Each class packs weights (once per job where they are kept) and computes accumulators
(batches, surfaces, height, width, atom elements): int32, or fp32 bits (uint32) for fp16; kernels that do not exist
give 0. ``saturated`` counts the results that CACC clamped to 32 bits.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.convolution.cdma import unpack_direct, unpack_image, unpack_winograd
from nvdla.emulator.hardware.convolution.checks import (
    LARGEST_CUBE,
    ConvolutionSettings,
    pad_element,
    padded_size,
    window_strides,
)
from nvdla.errors import ConfigError
from nvdla.util.precision import Precision
from nvdla.util.rounding import align, ceil_div

Step = list[tuple[int, int, int, int]]
"""One MAC atom: pieces (row, column, first channel, end channel) of a kernel, multiplied and added together."""


def direct_sequence(height: int, width: int, channels: int, block: int) -> list[Step]:
    """Channel blocks outside, then kernel rows, then columns (cmod/csc/NV_NVDLA_csc.cpp:650)."""
    return [
        [(row, column, first, min(first + block, channels))]
        for first in range(0, channels, block)
        for row in range(height)
        for column in range(width)
    ]


def image_sequence(height: int, channels: int, block: int, post_extension: int) -> list[Step]:
    """Blocks of extended channels outside, then kernel rows, ``post_extension`` of them in one atom (:1680)."""
    return [
        [(row, 0, first, min(first + block, channels)) for row in range(top, min(top + post_extension, height))]
        for first in range(0, channels, block)
        for top in range(0, height, post_extension)
    ]


def atom_places(
    sequence: list[Step], kernel: tuple[int, int, int], strides: tuple[int, int], atom: int
) -> tuple[np.ndarray, np.ndarray]:
    """For every place of every MAC atom: which data it multiplies, and which weight; -1 for places left empty.

    ``kernel`` is (rows, columns, channels), ``strides`` the distances of kernel rows and columns in the padded data.
    Pieces of an atom follow one another without gaps: only their order matters (which of two NaNs wins).
    Returns the data offsets from the window's start and the indices into a kernel, int64 (atoms * ``atom``,).
    """
    _, columns, channels = kernel
    data = np.full((len(sequence), atom), -1, np.int64)
    weights = np.full((len(sequence), atom), -1, np.int64)
    for number, step in enumerate(sequence):
        place = 0
        for row, column, first, end in step:
            places = slice(place, place + end - first)
            data[number, places] = np.arange(first, end) + row * strides[0] + column * strides[1]
            weights[number, places] = np.arange(first, end) + (row * columns + column) * channels
            place = places.stop
    return data.reshape(-1), weights.reshape(-1)


DOT_TERMS = (1 << 17) - 1
"""Products of two int8 values that an int32 sum can always hold."""


class Arithmetic(Protocol):
    """Arithmetic of one convolution."""

    saturated: int
    shape: tuple[int, int, int, int, int]
    takes_surfaces: bool

    def unpack(self, elements: np.ndarray) -> np.ndarray:
        """Weight elements, in memory order, as an array with the kernels in front."""

    def pack(self, elements: np.ndarray) -> Any:
        """Weight elements, in memory order, in the form that ``compute`` takes."""

    def compute(self, lines: np.ndarray, packed: Any) -> np.ndarray:
        """Accumulators from lines (batches, height, width, channels)."""


def arithmetic(settings: ConvolutionSettings, config: Configuration) -> Arithmetic:
    """The arithmetic of a convolution's mode and processing precision."""
    half = settings.precision is Precision.FP16
    if settings.winograd:
        return WinogradHalves(settings, config) if half else WinogradIntegers(settings, config)
    if half:
        return DirectHalves(settings, config)
    kind = DirectDots if DirectDots.serves(settings) else DirectIntegers
    return kind(settings, config)


class _Base:
    takes_surfaces = False
    """True with a ``compute_surfaces`` that takes feature cubes in their memory layout."""

    def __init__(self, settings: ConvolutionSettings, config: Configuration) -> None:
        self.settings = settings
        self.config = config
        self.saturated = 0
        atom = config.memory_atom // settings.precision.bytes
        out = settings.output
        self.shape = (settings.batches, ceil_div(out.channels, atom), out.height, out.width, atom)

    @property
    def group(self) -> int:
        """Kernels of a kernel group."""
        return self.config.mac_atomic_k // self.settings.precision.bytes

    def deliver(self, sums: np.ndarray) -> np.ndarray:
        """CACC's delivery of int64 sums (batches, height, width, kernels)."""
        from nvdla.kernels.conv import deliver

        out = np.empty(self.shape, np.int32)
        self.saturated = int(deliver(sums, self.settings.truncate, out))
        return out


class _Direct(_Base):
    def unpack(self, elements: np.ndarray, kernels: int | None = None) -> np.ndarray:
        """Weights of all ``kernels``, or of so many in whole groups, as an array (kernels, rows, columns, channels)."""
        settings, kernel = self.settings, self.settings.kernel
        kernels = settings.kernels if kernels is None else kernels
        if settings.image:
            lines = (kernels, kernel.height, kernel.channels)
            return unpack_image(elements, lines, self.group, self.config.mac_atomic_c, settings.post_extension)
        shape = (kernels, kernel.height, kernel.width, kernel.channels)
        return unpack_direct(elements, shape, self.group, self.config.mac_atomic_c)

    def sequence(self) -> list[Step]:
        """The order of MAC atoms."""
        kernel, block = self.settings.kernel, self.config.mac_atomic_c
        if self.settings.image:
            return image_sequence(kernel.height, kernel.channels, block, self.settings.post_extension)
        return direct_sequence(kernel.height, kernel.width, kernel.channels, block)


class DirectIntegers(_Direct):
    """int8 and int16: exact sums, saturated at 48 bits where they could get there."""

    def pack(self, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Weights, and the matrix for exact products where no sum can reach 48 bits."""
        from nvdla.kernels import conv

        weights = self.unpack(elements)
        exact = conv.largest_sum(weights) < 1 << conv.CACC_BITS - 1
        return weights, conv.pack_weights(weights) if exact else None

    def compute(self, lines: np.ndarray, packed: tuple[np.ndarray, np.ndarray | None]) -> np.ndarray:
        """The sums of a convolution: prepared input lines and packed weights to the output cube."""
        from nvdla.kernels import conv

        weights, matrix = packed
        padded = pad_lines(lines, self.settings)
        window = conv.ConvolutionWindow(**window_strides(self.settings))
        if matrix is None:
            return self.deliver(conv.saturating_sums(padded, weights, window, self.sequence()))
        return self.deliver(conv.exact_sums(padded, matrix, window, weights.shape[1:]))


class DirectDots(_Direct):
    """int8 with the processor's dot-product instruction, where it has one and sums fit an int32 in any order.

    Within that bound nothing saturates: neither 48 bits in CACC nor the 32 bits it delivers.
    """

    takes_surfaces = True

    @staticmethod
    def serves(settings: ConvolutionSettings) -> bool:
        """True for int8 layers whose sums have few enough terms, on a processor that has the instruction."""
        from nvdla.kernels.fast.dot_tile import available

        kernel = settings.kernel
        terms = kernel.width * kernel.height * kernel.channels
        return settings.precision is Precision.INT8 and terms <= DOT_TERMS and available()

    def pack(self, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights in the order of the dot-product tile, and what the offset of the data adds to each sum."""
        from nvdla.kernels.fast.conv_int8_dot import pack_weights

        return pack_weights(self.unpack(elements).transpose(0, 3, 1, 2), self._dilated)

    def compute(self, lines: np.ndarray, packed: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """From lines (batches, height, width, channels): each is a cube of one surface with wide atoms."""
        if self.settings.image:
            missing = padded_size(self.settings)[1] - lines.shape[2]
            lines = np.pad(lines, ((0, 0), (0, 0), (0, max(missing, 0)), (0, 0)))
        return self.compute_surfaces([line[None] for line in lines], packed)

    def compute_surfaces(self, cubes: list[np.ndarray], packed: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """Compute from feature cubes (surfaces, height, width, atom) int8 in their memory layout, one per batch."""
        from nvdla.kernels import conv
        from nvdla.kernels.fast import conv_int8_dot

        settings, strides = self.settings, window_strides(self.settings)
        rows, columns = padded_size(settings)
        left = 0 if settings.image else settings.pad_left
        stored = settings.extended.channels if settings.image else align(settings.extended.channels, 4)
        weights, correction = packed
        flat = np.empty(rows * columns * stored + 4, np.uint8)  # the last dot may read past the last line's end
        data = flat[: rows * columns * stored].reshape(rows, columns, stored)
        y = np.arange(settings.output.height)[:, None] * (settings.stride_y * columns)
        pixels = ((y + np.arange(settings.output.width) * settings.stride_x) * stored).reshape(-1)
        taps = np.arange(settings.kernel.height) * (strides["dilation_y"] * columns * stored)
        if self._dilated:
            taps = (taps[:, None] + np.arange(settings.kernel.width) * (settings.dilation_x * stored)).reshape(-1)
        out = np.empty(self.shape, np.int32)
        pad = int(pad_element(settings))
        for cube, target in zip(cubes, out, strict=True):
            cube = np.ascontiguousarray(cube)
            conv_int8_dot.padded_cube(cube, settings.pad_top, left, pad, data)
            sums = target.reshape(target.shape[0], pixels.size, target.shape[3])
            conv_int8_dot.accumulate(flat, pixels, taps, weights.shape[2], weights, correction, sums)
        if settings.truncate:
            conv.shift(out.reshape(-1), settings.truncate)
        return out

    @property
    def _dilated(self) -> bool:
        return not self.settings.image and self.settings.dilation_x > 1


class DirectHalves(_Direct):
    """fp16: the exact model of the MAC cells and FP48 accumulators, atom by atom in order."""

    _latest: tuple[int, tuple[np.ndarray, np.ndarray]] | None = None

    def __init__(self, settings: ConvolutionSettings, config: Configuration) -> None:
        super().__init__(settings, config)
        from nvdla.kernels.fp16_mac import ATOM

        kernel = settings.kernel
        taps = ceil_div(kernel.height, settings.post_extension) if settings.image else kernel.height * kernel.width
        atoms = ceil_div(kernel.channels, config.mac_atomic_c) * taps
        if settings.kernels * atoms * ATOM > LARGEST_CUBE:
            raise ConfigError(
                f"{settings.kernels} fp16 kernels of {kernel} fill {atoms} MAC atoms each: more than {LARGEST_CUBE} "
                "places are not computed"
            )

    def pack(self, elements: np.ndarray) -> tuple[np.ndarray, ...]:
        """Weight elements in memory order to the form that ``compute`` takes."""
        weights, fp16_mac = self.unpack(elements), self._kernels()
        _, indices = self._places(0)
        flat = weights.reshape(weights.shape[0], -1)
        packed: tuple[np.ndarray, ...] = fp16_mac.pack_weights(np.where(indices >= 0, flat[:, indices], np.uint16(0)))
        return packed

    def compute(self, lines: np.ndarray, packed: tuple[np.ndarray, ...]) -> np.ndarray:
        """The sums of a convolution: prepared input lines and packed weights to the output cube."""
        padded = pad_lines(lines, self.settings)
        length = padded.shape[2]
        strides, size = window_strides(self.settings), self.settings.output
        rows = np.arange(size.height)[:, None] * self.settings.stride_y * length
        bases = (rows + np.arange(size.width) * strides["stride_x"]).reshape(-1)
        offsets, _ = self._places(length)
        out = np.zeros(self.shape, np.uint32)
        for batch, target in zip(padded, out, strict=True):
            flat = target.reshape(target.shape[0], bases.size, target.shape[3])
            self._kernels().convolve(batch.reshape(-1), bases, offsets, packed, flat)
        return out

    def _kernels(self) -> Any:
        from nvdla.kernels import fp16_mac
        from nvdla.kernels.jit.compilation import fallback_work

        return fp16_mac if fallback_work.within_run else self.variant()

    def variant(self) -> Any:
        """Return the fast path that leaves fewer places of its vectors empty: pixels next to each other, or kernels."""
        from nvdla.kernels.fast import fp16_kernels, fp16_pixels

        size, kernels = self.settings.output, self.settings.kernels
        pixels = size.width * size.height
        return fp16_kernels if fp16_kernels.cost(pixels, kernels) < fp16_pixels.cost(pixels, kernels) else fp16_pixels

    @property
    def place(self) -> str:
        """Return the place of the compiled kernel (:class:`nvdla.kernels.jit.object_code.ObjectCode`)."""
        module: str = self.variant().__name__
        return module.removeprefix("nvdla.kernels.") + ":_convolve"

    def _places(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Data offsets and weight indices of all places of all atoms; ``length``: elements of a padded line."""
        if self._latest is None or self._latest[0] != length:
            self._latest = (length, self._found_places(length))
        return self._latest[1]

    def _found_places(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        from nvdla.kernels.fp16_mac import ATOM

        kernel, strides = self.settings.kernel, window_strides(self.settings)
        distances = (strides["dilation_y"] * length, strides["stride_column"])
        return atom_places(self.sequence(), (kernel.height, kernel.width, kernel.channels), distances, ATOM)


class _Winograd(_Base):
    def unpack(self, elements: np.ndarray) -> np.ndarray:
        """Transformed weights as an array (kernels, channels / 4, 4, 4, 4 channels)."""
        return unpack_winograd(elements, self.settings.kernels, self.settings.kernel.channels, self.group)


class WinogradIntegers(_Winograd):
    """int8 and int16 in Winograd mode."""

    def pack(self, elements: np.ndarray) -> np.ndarray:
        """Weight elements in memory order to the form that ``compute`` takes."""
        weights: np.ndarray = self.unpack(elements).transpose(2, 3, 1, 4, 0)
        return weights.reshape(4, 4, -1, self.settings.kernels).astype(np.float64)

    def compute(self, lines: np.ndarray, packed: np.ndarray) -> np.ndarray:
        """The sums of a convolution: prepared input lines and packed weights to the output cube."""
        from nvdla.kernels import winograd

        height, width, truncate = self.settings.output.height, self.settings.output.width, self.settings.pra_truncate
        return self.deliver(np.stack([winograd.convolve(cube, packed, height, width, truncate) for cube in lines]))


class WinogradHalves(_Winograd):
    """fp16 in Winograd mode."""

    def pack(self, elements: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Weight elements in memory order to the form that ``compute`` takes."""
        from nvdla.kernels.fast import fp16_pixels

        return fp16_pixels.pack_weights(self.unpack(elements).reshape(self.settings.kernels, -1))

    def compute(self, lines: np.ndarray, packed: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        """The sums of a convolution: prepared input lines and packed weights to the output cube."""
        from nvdla.kernels import winograd, winograd_fp16

        size, channels = self.settings.output, self.settings.extended.channels
        out = np.zeros(self.shape, np.uint32)
        for cube, target in zip(lines, out, strict=True):
            tiles = np.ascontiguousarray(winograd.tiles(cube, size.height, size.width))
            tiles = winograd_fp16.transform_data(tiles.reshape(-1, 4, 4, channels))
            winograd_fp16.convolve(tiles, size.width // 2, packed, target)
        return out


def pad_lines(lines: np.ndarray, settings: ConvolutionSettings) -> np.ndarray:
    """Padded lines (batches, rows, elements) that hold every element that any output needs.

    Elements outside the cube have the padding value; those after an image line (which CDMA has padded) are 0
    (cmod/csc/NV_NVDLA_csc.cpp:770, :2875).
    """
    batches, height, width, channels = lines.shape
    left = 0 if settings.image else settings.pad_left
    rows, columns = padded_size(settings)
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
