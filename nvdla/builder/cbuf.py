"""The convolution buffer: entries of a slice, banks, and tiles for layers that do not fit whole.

Sources: programming guide, "Strategy selection" and "Limitations"; hardware documents, "CONV_BUF"; the entries of a
slice are checked by cmod/csc/NV_NVDLA_csc.cpp:646 (branch master), which aborts when they are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvdla.builder import pixels
from nvdla.builder.ir import BYTES, Convolve
from nvdla.builder.shapes import reach
from nvdla.errors import BuildError
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.convolution import slices
from nvdla.rounding import align, ceil_div

WINOGRAD_TAPS = 16


@dataclass(frozen=True)
class Buffer:
    """Dimensions of one configuration's convolution buffer: banks of ``entries`` entries of ``entry_bytes``."""

    banks: int
    entries: int
    entry_bytes: int
    atoms_per_entry: int

    @property
    def bank_bytes(self) -> int:
        """What a bank holds: its entries times their size."""
        return self.entries * self.entry_bytes


def buffer_of(config: Configuration) -> Buffer:
    """The convolution buffer of a configuration."""
    entry = config.cbuf_entry_bytes
    return Buffer(config.cbuf_banks, config.cbuf_bank_entries, entry, entry // config.memory_atom)


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
    """How a convolution uses the buffer. ``keeps_weights``: all tiles but the first use the first one's;
    ``compressed``: its weights lie there without their zeros."""

    tiles: tuple[Tile, ...]
    data_banks: int
    weight_banks: int
    keeps_weights: bool = False
    compressed: bool = False


def entries_per_slice(channels: int, width: int, precision: str, config: Configuration) -> int:
    """Entries that one line of a feature cube takes."""
    return slices.entries_per_slice(channels * BYTES[precision], width, config)


def line_entries(operation: Convolve, config: Configuration) -> int:
    """Entries that one line of a convolution's source takes."""
    source = operation.source
    if source.root.pixels is not None:
        return pixels.entries_of_line(operation, config)
    return entries_per_slice(source.channels, source.width, source.precision, config)


def kernel_bytes(operation: Convolve) -> int:
    """Bytes of one kernel, the unused components of an image's pixels too."""
    _, channels, rows, columns = operation.weights.shape
    if operation.source.root.pixels is not None:
        channels, columns = pixels.kernel_channels(operation), 1
    return weight_bytes(1, channels, rows, columns, operation.source.precision)


def stored_kernel_bytes(operation: Convolve, config: Configuration) -> int:
    """Bytes of one kernel as it lies in memory: transformed, in whole atoms of channels, for Winograd's method."""
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

    More than that is never released: the next convolution reads its weights too early, or waits for ever
    (:mod:`nvdla.hardware.convolution.books`).
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
        raise BuildError(_does_not_fit(operation, config, buffer, choices[-1]))
    return best


def _weight_choices(operation: Convolve, config: Configuration, buffer: Buffer) -> list[int]:
    """Banks for all weights, for two kernel groups (loading hides behind computing), for one."""
    kernels, group = len(operation.weights), kernel_group(config, operation.source.precision)
    each = kernel_bytes(operation)
    sizes = [rounded(min(count, kernels) * each, config) for count in (kernels, 2 * group, group)]
    banks = [ceil_div(size, buffer.bank_bytes) for size in sizes]
    return sorted(set(banks), reverse=True)


def _with_weight_banks(operation: Convolve, config: Configuration, buffer: Buffer, weight_banks: int) -> Fit | None:
    """The tiles when the rest of the banks holds data; None if not even one window fits."""
    capacity = (buffer.banks - weight_banks) * buffer.entries
    height, width = operation.process.destination.shape[1:]
    # CDMA can crop an image's lines, but not its columns: their addresses are no atoms'.
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


def _does_not_fit(operation: Convolve, config: Configuration, buffer: Buffer, banks: int) -> str:
    kernels, channels, rows, columns = operation.weights.shape
    size = min(kernels, kernel_group(config, operation.source.precision)) * kernel_bytes(operation)
    return (
        f"layer {operation.layer}: one kernel group of {channels} channels, {rows}x{columns} takes {size} bytes "
        f"({banks} banks of {buffer.bank_bytes}), and with one window of data it must fit the {buffer.banks} banks of "
        f"{config.name}; use fewer channels or a smaller kernel, or pool the input first"
    )
