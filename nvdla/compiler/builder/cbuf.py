"""CBUF use of convolutions, and of pixel inputs.

In a line of an image the pixels' channels follow each other, so a row of a kernel (columns x channels) is one vector
for the MAC cells. With a post-extension of 2 or 4, as many rows share a pass (programming guide, "Image input"). The
RTL gives the same bytes with each post-extension.

Sources: programming guide, "Strategy selection" and "Limitations"; hardware documents, "CONV_BUF"; the entries of a
slice are checked by cmod/csc/NV_NVDLA_csc.cpp:646 (branch master), which aborts when they are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nvdla.compiler.builder.ir import BYTES, Convolve, PixelConverter
from nvdla.compiler.builder.layers import reach
from nvdla.compiler.builder.quantization import LARGEST, fixed_point
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.convolution import checks
from nvdla.errors import BuildError
from nvdla.limits import LINE_ALIGNMENT
from nvdla.loadable.enums import PIXEL_FORMATS, PixelFormat
from nvdla.tensors.real import PixelNumbers
from nvdla.util.precision import Precision
from nvdla.util.rounding import align, ceil_div

FORMATS: dict[tuple[str, int], PixelFormat] = {
    (Precision.INT8, 1): PixelFormat.R8,
    (Precision.INT8, 4): PixelFormat.A8B8G8R8,
    (Precision.INT16, 1): PixelFormat.R16_I,
    (Precision.INT16, 4): PixelFormat.A16B16G16R16,
    (Precision.FP16, 1): PixelFormat.R16_F,
    (Precision.FP16, 4): PixelFormat.A16B16G16R16_F,
}
"""By precision and components of a pixel. Elements are signed, as set in PIXEL_SIGN_OVERRIDE of CDMA."""
UNSIGNED = (
    PixelFormat.R8,
    PixelFormat.A8B8G8R8,
    PixelFormat.R10,
    PixelFormat.A2B10G10R10,
    PixelFormat.R12,
    PixelFormat.R16,
    PixelFormat.A16B16G16R16,
)
"""For elements that CDMA takes as unsigned: the first that has the bits and the channels is taken."""
MOST_CHANNELS = 4
PICTURE_BITS = 8
MOST_MEAN = (1 << 15) - 1
EXACT_BITS = 11
"""Whole numbers of as many bits are halves."""


def format_for(channels: int, precision: str) -> PixelFormat | None:
    """The pixel format for so many channels; None above four."""
    return FORMATS[precision, 1 if channels == 1 else MOST_CHANNELS] if channels <= MOST_CHANNELS else None


def unsigned_format(channels: int, config: Configuration, bits: int) -> PixelFormat | None:
    """The format for unsigned pixels of so many bits; None where there is none."""
    able = (form for form in UNSIGNED if PIXEL_FORMATS[form].depth == bits)
    return next((form for form in able if not hindrance(form, channels, "", config)), None)


def named(wanted: str) -> PixelFormat | None:
    """The pixel format of a name; None for no such name."""
    known = PixelFormat.__members__.get(wanted)
    return known if known is not None and known < PixelFormat.FEATURE else None


def depth(wanted: str) -> int | None:
    """Bits of the unsigned pixels that inputs of a format have ("pixels": those of pictures); None where elements are
    the network's own."""
    form = named(wanted)
    if form is None:
        return PICTURE_BITS if wanted == "pixels" else None
    spec = PIXEL_FORMATS[form]
    return None if spec.floating or spec.signed else spec.depth


def stored_precision(form: PixelFormat) -> str:
    """The precision of the elements in memory."""
    spec = PIXEL_FORMATS[form]
    return Precision.FP16 if spec.floating else Precision.INT8 if spec.element_bytes == 1 else Precision.INT16


def hindrance(form: PixelFormat, channels: int, precision: str, config: Configuration) -> str:
    """Why a tensor of so many channels cannot be pixels of a format; "" where it can. CDMA makes every precision of
    unsigned pixels; signed ones and halves are those of the network."""
    spec, own = PIXEL_FORMATS[form], stored_precision(form)
    if lack := config.refusal(own, f"the elements of {form.name}"):
        return lack
    if (spec.floating or spec.signed) and own != precision:
        return f"pixels of {form.name} are for {own}, the network computes in {precision}"
    if channels > spec.whole:
        return f"a pixel of {form.name} has {spec.whole} channels of {spec.depth} bits, the input has {channels}"
    return ""


def converter(numbers: PixelNumbers, form: PixelFormat, channels: int, precision: str) -> tuple[PixelConverter, float]:
    """CDMA's settings for pixels, and the real number of one unit of what it makes.

    Pixels stay as they are where they fit (a unit is one of a pixel's); else the largest distance from the mean is the
    largest element, for halves the power of two from which on they are no longer exact. Raises BuildError for a mean
    that CDMA's 16 bits do not hold.
    """
    mean, scale = numbers.channels(channels)
    lift = 16 - numbers.bits if PIXEL_FORMATS[form].bits else 0
    means = np.rint(mean * (1 << lift))
    if np.max(np.abs(means)) > MOST_MEAN + 1:
        raise BuildError(
            f"pixels of {form.name}: mean: must be at most {MOST_MEAN / (1 << lift):g} for pixels of "
            f"{numbers.bits} bits (CDMA subtracts it), got {float(mean[np.argmax(np.abs(means))]):g}. Use the "
            "input format image."
        )
    means = np.clip(means, -MOST_MEAN - 1, MOST_MEAN).astype(np.int64)
    farthest = int(np.max(np.maximum(np.abs(means), np.abs((numbers.largest << lift) - means))))
    if precision == Precision.FP16:
        factor, shift = 1, max((farthest - 1).bit_length() - EXACT_BITS, 0)
    else:
        limit = LARGEST[precision]
        factor, shift = (1, 0) if farthest <= limit + 1 else fixed_point(limit / farthest)
    unit = float(np.max(scale)) * 2.0**shift / (factor << lift)
    factors = tuple(float(factor) for factor in scale / np.max(scale))
    return PixelConverter(numbers, tuple(int(mean) for mean in means), factor, shift, lift, factors), unit


def components(pixels: PixelFormat) -> int:
    """Elements of a pixel, the unused ones too."""
    return PIXEL_FORMATS[pixels].channels


def pixel_bytes(pixels: PixelFormat) -> int:
    """From one column to the next of the (first) plane."""
    return PIXEL_FORMATS[pixels].bytes_per_pixel(0)


def line_stride(pixels: PixelFormat, width: int) -> int:
    """Bytes from line to line."""
    return align(width * pixel_bytes(pixels), LINE_ALIGNMENT)


def kernel_channels(operation: Convolve) -> int:
    """Channels of a kernel as the hardware takes it: of an image, those of all columns of a row."""
    _, channels, _, columns = operation.weights.shape
    pixels = operation.source.root.pixels
    return channels if pixels is None else columns * components(pixels)


def entries_of_line(operation: Convolve, config: Configuration) -> int:
    """Entries of the convolution buffer that a line takes with its padding."""
    pixels, source = operation.source.root.pixels, operation.source
    assert pixels is not None
    width = operation.padding[2] + source.width + operation.padding[3]
    return ceil_div(width * components(pixels) * BYTES[source.precision], config.cbuf_entry_bytes)


def post_extension(operation: Convolve, config: Configuration) -> int:
    """Rows of a kernel that share a pass: as many as fit the channels of a MAC cell."""
    channels, rows = kernel_channels(operation), operation.weights.shape[2]
    fitting = [count for count in (4, 2) if channels * count <= config.mac_atomic_c and rows > count // 2]
    return fitting[0] if fitting else 1


def plane_stride(pixels: PixelFormat, width: int, height: int) -> int:
    """Bytes from the first plane to the second; 0 where there is one."""
    return line_stride(pixels, width) * height if len(PIXEL_FORMATS[pixels].planes) > 1 else 0


def image_bytes(pixels: PixelFormat, width: int, height: int) -> int:
    """Bytes of an image, all planes: the lines of the second are longer in the ratio of its pixels."""
    spec = PIXEL_FORMATS[pixels]
    return line_stride(pixels, width) * height * sum(spec.lines(plane) for plane in range(len(spec.planes)))


WINOGRAD_TAPS = 16


@dataclass(frozen=True)
class Buffer:
    """Dimensions of one configuration's convolution buffer: banks of ``entries`` entries of ``entry_bytes``."""

    banks: int
    entries: int
    entry_bytes: int

    @property
    def bank_bytes(self) -> int:
        """Bytes of one bank: its entries times their size."""
        return self.entries * self.entry_bytes


def buffer_of(config: Configuration) -> Buffer:
    """The convolution buffer of a configuration."""
    return Buffer(config.cbuf_banks, config.cbuf_bank_entries, config.cbuf_entry_bytes)


@dataclass(frozen=True)
class Tile:
    """A part of a convolution's result and the input it needs: (first, count) of rows and columns, padding t, b, l,
    r."""

    out_rows: tuple[int, int]
    out_columns: tuple[int, int]
    in_rows: tuple[int, int]
    in_columns: tuple[int, int]
    padding: tuple[int, int, int, int]


@dataclass(frozen=True)
class Fit:
    """Use of the buffer by a convolution.

    ``keeps_weights``: all tiles but the first reuse the weights of the first.
    ``compressed``: the buffer contains the weights without their zeros.
    """

    tiles: tuple[Tile, ...]
    data_banks: int
    weight_banks: int
    keeps_weights: bool = False
    compressed: bool = False


def entries_per_slice(channels: int, width: int, precision: str, config: Configuration) -> int:
    """Entries that one line of a feature cube takes."""
    return checks.entries_per_slice(channels * BYTES[precision], width, config)


def line_entries(operation: Convolve, config: Configuration) -> int:
    """Entries that one line of a convolution's source takes."""
    source = operation.source
    if source.root.pixels is not None:
        return entries_of_line(operation, config)
    return entries_per_slice(source.channels, source.width, source.precision, config)


def kernel_bytes(operation: Convolve) -> int:
    """Bytes of one kernel, the unused components of an image's pixels too."""
    _, channels, rows, columns = operation.weights.shape
    if operation.source.root.pixels is not None:
        channels, columns = kernel_channels(operation), 1
    return weight_bytes(1, channels, rows, columns, operation.source.precision)


def stored_kernel_bytes(operation: Convolve, config: Configuration) -> int:
    """Return the bytes of one kernel in memory; for Winograd's method transformed, in whole atoms of channels."""
    if not operation.winograd:
        return kernel_bytes(operation)
    return align(operation.source.channels * BYTES[operation.source.precision], config.memory_atom) * WINOGRAD_TAPS


def weight_bytes(kernels: int, channels: int, rows: int, columns: int, precision: str) -> int:
    """Bytes of uncompressed weights before the rounding to entries."""
    return kernels * channels * rows * columns * BYTES[precision]


def kernel_group(config: Configuration, precision: str) -> int:
    """Kernels that the MAC array works on together: half as many for elements of two bytes."""
    return config.mac_atomic_k // BYTES[precision]


def rounded(size: int, config: Configuration) -> int:
    """The size of weights that is fetched: whole entries of the convolution buffer, so that what is fetched is what
    is released.

    More than that is never released: the next convolution reads its weights too early, or deadlocks
    (:mod:`nvdla.emulator.hardware.convolution.cbuf`).
    """
    return align(size, config.cbuf_entry_bytes)


def fit(operation: Convolve, config: Configuration) -> Fit:
    """Banks and tiles of a convolution: whole if possible, else the fewest tiles.

    Raises BuildError naming the layer when one kernel group does not fit.
    """
    buffer = buffer_of(config)
    choices = _weight_choices(operation, config, buffer)
    best: Fit | None = None
    for banks in choices:
        candidate = _with_weight_banks(operation, config, buffer, banks) if banks < buffer.banks else None
        if candidate is not None and (best is None or len(candidate.tiles) < len(best.tiles)):
            best = candidate
    if best is None:
        raise _does_not_fit(operation, config, buffer, choices[-1])
    return best


def _weight_choices(operation: Convolve, config: Configuration, buffer: Buffer) -> list[int]:
    """Banks for all weights, for two kernel groups (loading overlaps computing), for one."""
    kernels, group = len(operation.weights), kernel_group(config, operation.source.precision)
    kernel_size = kernel_bytes(operation)
    sizes = [rounded(min(count, kernels) * kernel_size, config) for count in (kernels, 2 * group, group)]
    banks = [ceil_div(size, buffer.bank_bytes) for size in sizes]
    return sorted(set(banks), reverse=True)


def _with_weight_banks(operation: Convolve, config: Configuration, buffer: Buffer, weight_banks: int) -> Fit | None:
    """The tiles when the rest of the banks holds data; None if not even one window fits."""
    capacity = (buffer.banks - weight_banks) * buffer.entries
    height, width = operation.process.destination.shape[1:]
    # CDMA can crop an image's lines, but not its columns: their addresses are not aligned to atoms.
    image = operation.source.root.pixels is not None
    for parts in range(1, 2 if image else width + 1):
        columns = ceil_div(width, parts)
        widest = max(_extent(operation, 1, first, min(columns, width - first))[1] for first in range(0, width, columns))
        entries = line_entries(replace(operation, source=operation.source.crop(0, 1, 0, widest)), config)
        rows = _rows_that_fit(operation, capacity // entries, height)
        if rows == 0 or (columns == 1 and rows == 1 and (height, width) != (1, 1)):
            continue
        tiles = tuple(
            _tile(operation, top, min(rows, height - top), left, min(columns, width - left))
            for top in range(0, height, rows)
            for left in range(0, width, columns)
        )
        used = max(tile.in_rows[1] for tile in tiles) * entries
        return Fit(tiles, ceil_div(used, buffer.entries), weight_banks)
    return None


def tiles_of_rows(operation: Convolve, parts: Sequence[tuple[int, int]]) -> tuple[Tile, ...]:
    """Tiles of whole lines: (first, count) of the result's rows each."""
    width = operation.process.destination.width
    return tuple(_tile(operation, top, rows, 0, width) for top, rows in parts)


def _rows_that_fit(operation: Convolve, lines: int, height: int) -> int:
    """The most result rows whose input has at most ``lines`` lines, evened out over the tiles; 0 if none."""
    span, stride = reach(operation.weights.shape[2], operation.dilation[0]), operation.stride[0]
    if _extent(operation, 0, 0, height)[1] <= lines:
        return height
    rows = (lines - span) // stride + 1 if lines >= span else 0
    if rows <= 0:
        return 0
    parts = ceil_div(height, rows)
    return ceil_div(height, parts)


def _extent(operation: Convolve, axis: int, first: int, count: int) -> tuple[int, int, int, int]:
    """(first, count, padding before, padding after) of the input that result rows or columns need."""
    size = operation.source.shape[1 + axis]
    span = reach(operation.weights.shape[2 + axis], operation.dilation[axis])
    start = first * operation.stride[axis] - operation.padding[2 * axis]
    end = (first + count - 1) * operation.stride[axis] - operation.padding[2 * axis] + span
    return max(start, 0), min(end, size) - max(start, 0), max(-start, 0), max(end - size, 0)


def _tile(operation: Convolve, top: int, rows: int, left: int, columns: int) -> Tile:
    y = _extent(operation, 0, top, rows)
    x = _extent(operation, 1, left, columns)
    return Tile((top, rows), (left, columns), y[:2], x[:2], y[2:] + x[2:])


def _does_not_fit(operation: Convolve, config: Configuration, buffer: Buffer, banks: int) -> BuildError:
    kernels, channels, rows, columns = operation.weights.shape
    size = min(kernels, kernel_group(config, operation.source.precision)) * kernel_bytes(operation)
    return BuildError(
        f"one kernel group of {channels} channels, {rows}x{columns} takes {size} bytes "
        f"({banks} banks of {buffer.bank_bytes}), and with one window of data it must fit the {buffer.banks} banks of "
        f"{config.name}; use fewer channels or a smaller kernel, or pool the input first",
        layer=operation.layer,
    )
