"""The convolution buffer: its cells, and what a convolution finds in them.

What is fetched and read at the same place (:mod:`nvdla.hardware.convolution.books`) never goes through here but to be
found by a later convolution: that uses data or weights again, or reads from the wrong place.
"""

from __future__ import annotations

import copy

import numpy as np

from nvdla.hardware.configuration import Configuration
from nvdla.hardware.convolution.books import BufferAccess, BufferLayer, DataBook, WeightBook
from nvdla.hardware.convolution.checks import fetched_weight_bytes
from nvdla.hardware.convolution.settings import ConvolutionSettings
from nvdla.hardware.convolution.slices import from_entries, to_entries
from nvdla.rounding import ceil_div


class ConvolutionBuffer:
    """Cells of entries, data banks first, and the two books. All cells are zero at the beginning of a run.

    ``read_back``: whether any convolution so far has read what it did not fetch itself.
    ``patient``: see :class:`nvdla.hardware.convolution.books.DataBook`.
    """

    def __init__(self, config: Configuration, patient: bool = True) -> None:
        self.config = config
        self.read_back = False
        self._data = DataBook(patient)
        self._weights = WeightBook(patient, lenient=not config.c_model_stops)
        self._cells = np.zeros((config.cbuf_banks * config.cbuf_bank_entries, config.cbuf_entry_bytes), np.uint8)
        self.layers = 0

    def account(self, settings: ConvolutionSettings) -> tuple[BufferAccess, BufferAccess]:
        """Enter the next convolution into the books: where it finds data and weights. Raises ScheduleError."""
        layer = layer_of(settings, self.config)
        self.layers += 1
        return self._data.use(layer), self._weights.use(layer)

    def apart(self) -> ConvolutionBuffer:
        """The same buffer with cells of its own, for convolutions that have been accounted for."""
        buffer = copy.copy(self)
        buffer._cells = np.zeros_like(self._cells)
        return buffer

    def clear(self) -> None:
        """The state at the beginning of a run."""
        self._cells[:] = 0

    def write_lines(self, settings: ConvolutionSettings, access: BufferAccess, lines: np.ndarray) -> None:
        """Put lines (batches, lines, columns, channels) where the convolution fetches them to."""
        entries = self.entries_of(settings, lines)
        entries = entries[: self.data_entries(settings)]
        self._cells[(access.written + np.arange(len(entries))) % self.data_entries(settings)] = entries

    def read_lines(self, settings: ConvolutionSettings, access: BufferAccess) -> np.ndarray:
        """The lines (batches, lines, columns, channels) that the convolution finds where it reads."""
        count = settings.batches * settings.extended.height * settings.entries_per_slice
        return self.lines_of(settings, self._cells[(access.read + np.arange(count)) % self.data_entries(settings)])

    def entries_of(self, settings: ConvolutionSettings, lines: np.ndarray) -> np.ndarray:
        """Lines (batches, lines, columns, channels of whole atoms) as entries (entries, bytes), in their order."""
        batches, height, width = lines.shape[:3]
        rows = np.ascontiguousarray(lines.transpose(1, 0, 2, 3)).view(np.uint8).reshape(batches * height, width, -1)
        if not _verbatim(settings):
            return to_entries(rows, self.config).reshape(-1, self.config.cbuf_entry_bytes)
        entries = np.zeros((len(rows), settings.entries_per_slice * self.config.cbuf_entry_bytes), np.uint8)
        flat = rows.reshape(len(rows), -1)[:, : entries.shape[1]]
        entries[:, : flat.shape[1]] = flat
        return entries.reshape(-1, self.config.cbuf_entry_bytes)

    def lines_of(self, settings: ConvolutionSettings, entries: np.ndarray) -> np.ndarray:
        """The lines (batches, lines, columns, channels) that CSC makes of entries."""
        size, element = settings.extended, settings.precision.bytes
        lines = settings.batches * size.height
        entries = entries.reshape(lines, settings.entries_per_slice, -1)
        channel_bytes = size.channels * element
        if _verbatim(settings):
            width = size.width + (settings.fetch_padding.left + settings.fetch_padding.right if settings.image else 0)
            flat = np.zeros((lines, width * channel_bytes), np.uint8)
            found = entries.reshape(lines, -1)[:, : flat.shape[1]]
            flat[:, : found.shape[1]] = found
            rows = flat.reshape(lines, width, channel_bytes)
        else:
            rows = from_entries(entries, size.width, channel_bytes, self.config)[:, :, :channel_bytes]
        rows = np.ascontiguousarray(rows).view(settings.precision.bits)
        cube: np.ndarray = rows.reshape(size.height, settings.batches, *rows.shape[1:]).transpose(1, 0, 2, 3)
        return cube

    def write_weights(self, settings: ConvolutionSettings, access: BufferAccess, data: np.ndarray) -> None:
        """Put the bytes of the weights where the convolution fetches them to; of more than fit, the last stay."""
        entries = self._as_entries(data)
        first, capacity = self.weight_entries(settings)
        skipped = max(len(entries) - capacity, 0)
        at = (access.written + np.arange(skipped, len(entries))) % capacity
        self._cells[first + at] = entries[skipped:]

    def read_weights(self, settings: ConvolutionSettings, access: BufferAccess, data: np.ndarray | None) -> np.ndarray:
        """The weight elements that the convolution finds where it reads. ``data``: bytes that it fetches itself.

        CDMA never gets ahead of CSC by more than the banks hold, so what lies before ``data`` is still in the cells.
        """
        first, capacity = self.weight_entries(settings)
        count = ceil_div(settings.kernel_bytes, self.config.cbuf_entry_bytes)
        at = access.read + np.arange(count)
        found = self._cells[first + at % capacity]
        if data is not None:
            own = self._as_entries(data)
            inside = (at >= access.written) & (at < access.written + len(own))
            found[inside] = own[at[inside] - access.written]
        return found.reshape(-1)[: settings.kernel_bytes].view(settings.precision.bits)

    def write_mask(self, settings: ConvolutionSettings, access: BufferAccess, mask: np.ndarray) -> None:
        """Put the mask of compressed weights into the last bank."""
        entries = self._as_entries(mask)[: self.config.cbuf_bank_entries]
        self._cells[self._mask_entries(access, len(entries))] = entries

    def read_compressed(self, settings: ConvolutionSettings, access: BufferAccess) -> tuple[np.ndarray, np.ndarray]:
        """Weights without their zeros, and the bytes of their mask, as a convolution before has kept them."""
        entry = self.config.cbuf_entry_bytes
        first, capacity = self.weight_entries(settings)
        at = access.read + np.arange(ceil_div(fetched_weight_bytes(settings, self.config), entry))
        stored = self._cells[first + at % capacity].reshape(-1).view(settings.precision.bits)
        mask = self._cells[self._mask_entries(access, ceil_div(settings.mask_bytes, entry))]
        return stored, mask.reshape(-1)[: settings.mask_bytes]

    def _mask_entries(self, access: BufferAccess, count: int) -> np.ndarray:
        bank = self.config.cbuf_bank_entries
        return (self.config.cbuf_banks - 1) * bank + (access.mask + np.arange(count)) % bank

    def _as_entries(self, data: np.ndarray) -> np.ndarray:
        entry = self.config.cbuf_entry_bytes
        whole = np.zeros((ceil_div(data.size, entry), entry), np.uint8)
        whole.reshape(-1)[: data.size] = data
        return whole

    def data_entries(self, settings: ConvolutionSettings) -> int:
        """Entries of the banks for data."""
        return settings.banks[0] * self.config.cbuf_bank_entries

    def weight_entries(self, settings: ConvolutionSettings) -> tuple[int, int]:
        """(first entry, number of entries) of the banks for weights."""
        return self.data_entries(settings), settings.banks[1] * self.config.cbuf_bank_entries


def _verbatim(settings: ConvolutionSettings) -> bool:
    """Whether lines lie in the buffer as they come, one element behind the other."""
    return settings.image or settings.winograd


def layer_of(settings: ConvolutionSettings, config: Configuration) -> BufferLayer:
    """What the books must know of a convolution."""
    entry, slices = config.cbuf_entry_bytes, settings.entries_per_slice
    size = fetched_weight_bytes(settings, config)
    return BufferLayer(
        layout=settings.layout,
        data_banks=settings.banks[0],
        weight_banks=settings.banks[1],
        bank=config.cbuf_bank_entries,
        entry=entry,
        line=(settings.extended.width, settings.extended.channels, slices, settings.precision),
        weights=(settings.weight_address, settings.kernel_bytes // settings.kernels),
        data=_reports(settings),
        needed=settings.batches * settings.extended.height * slices,
        released=settings.released_lines * slices,
        fetched_bytes=size,
        weight_entries=size // entry,
        groups=_groups(settings, config),
        mask=ceil_div(settings.mask_bytes, entry),
        data_reuse=settings.data_reuse,
        weight_reuse=settings.weight_reuse,
        keep_data=settings.keep_data,
        keep_weights=settings.keep_weights,
    )


def _reports(settings: ConvolutionSettings) -> tuple[int, ...]:
    """Entries that CDMA reports at a time: an image as a whole, Winograd data four lines, features by their grain."""
    size, slices = settings.data, settings.entries_per_slice
    if settings.image:
        return (size.height * slices,)
    if settings.winograd:
        return (4 * slices,) * (settings.extended.height // 4)
    grain = min(settings.fetched_lines, size.height)
    whole, rest = divmod(size.height, grain)
    pieces = [grain] * whole + [rest] * (rest > 0)
    return tuple(lines * slices for lines in pieces for _ in range(settings.batches))


def _groups(settings: ConvolutionSettings, config: Configuration) -> tuple[tuple[int, int], ...]:
    """(kernels, entries of all kernels up to its end) of each kernel group."""
    group, each = config.mac_atomic_k // settings.precision.bytes, settings.kernel_bytes // settings.kernels
    ends = [min(first + group, settings.kernels) for first in range(0, settings.kernels, group)]
    starts = [0, *ends[:-1]]
    entry = config.cbuf_entry_bytes
    return tuple((end - start, ceil_div(end * each, entry)) for start, end in zip(starts, ends, strict=True))
