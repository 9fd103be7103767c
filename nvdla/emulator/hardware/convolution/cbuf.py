"""Convolution buffer: banks, entries and their accounting.

CDMA and CSC count entries, each for itself, for data and for weights. The counts are independent of the content of the
buffer: with settings that let them drift apart, a later convolution reads from the wrong place or deadlocks. These are
the counts of NVIDIA's C model (cmod/cdma/NV_NVDLA_cdma.cpp, cmod/csc/NV_NVDLA_csc.cpp; lines are of branch master). A
convolution begins to fetch when CSC begins with it, so each can be accounted for as a whole.

What is fetched and read at the same place (:mod:`nvdla.emulator.hardware.convolution.cbuf`) never goes through here
but to be
found by a later convolution: that uses data or weights again, or reads from the wrong place.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.convolution.checks import (
    ConvolutionSettings,
    fetched_weight_bytes,
    from_entries,
    to_entries,
)
from nvdla.errors import ScheduleError
from nvdla.util.rounding import ceil_div


@dataclass(frozen=True)
class BufferLayer:
    """Demands of one convolution on the buffer. Counts are entries; ``bank`` is the entries of a bank, ``entry`` bytes.

    ``line``: what a line is made of; ``weights``: which weights they are. ``data``: entries that CDMA reports at a
    time. ``needed``: entries of all data that CSC works on. ``released``: entries that it releases at the end.
    ``fetched_bytes``: bytes of weights that CDMA fetches, ``weight_entries`` the whole entries of D_WEIGHT_BYTES.
    ``groups``: of each kernel group, the kernels and the entries that all kernels up to its end take.
    ``mask``: entries of the mask of compressed weights, 0 of plain ones. Compressed weights are all released at the
    end, also those not read; their mask has its own bank.
    """

    layout: tuple[object, ...]
    data_banks: int
    weight_banks: int
    bank: int
    entry: int
    line: tuple[int, ...]
    weights: tuple[int, int]
    data: tuple[int, ...]
    needed: int
    released: int
    fetched_bytes: int
    weight_entries: int
    groups: tuple[tuple[int, int], ...]
    mask: int
    data_reuse: bool
    weight_reuse: bool
    keep_data: bool
    keep_weights: bool

    @property
    def banks(self) -> tuple[int, int]:
        """Banks of data and of weights."""
        return self.data_banks, self.weight_banks

    @property
    def compressed(self) -> bool:
        """True if the weights are stored without their zeros."""
        return self.mask > 0

    @property
    def kernels(self) -> int:
        """Kernels of all groups."""
        return sum(kernels for kernels, _ in self.groups)

    @property
    def used(self) -> int:
        """Entries of weights that CSC reads."""
        return self.weight_entries if self.compressed else self.groups[-1][1]


@dataclass(frozen=True)
class BufferAccess:
    """Places of the data and weights of one convolution, in entries from the first entry of its banks, ring or not.

    ``fetches``: whether anything is fetched, to ``written`` on. ``read``: where CSC reads. ``notes``: what is wrong
    with it, though it runs. ``mask``: entry of the mask of compressed weights in its bank.
    """

    fetches: bool
    written: int
    read: int
    notes: tuple[str, ...] = ()
    mask: int = 0

    @property
    def in_place(self) -> bool:
        """True if it reads only its own fetched data."""
        return self.fetches and self.written == self.read


class DataBook:
    """Entries of data. ``model_deadlocks``: raise where the C model deadlocks at a change of banks and hardware
    does not.
    """

    def __init__(self, model_deadlocks: bool = True) -> None:
        self._model_deadlocks = model_deadlocks
        self._layer: BufferLayer | None = None
        self._free = self._planned = self._written = 0  # CDMA: as many entries may be planned, are planned
        self._read = self._available = 0  # CSC: position, entries that it knows to be there
        self._reports: deque[int] = deque()  # from CDMA, not looked at by CSC yet
        self._pending: deque[int] = deque()  # entries that do not fit yet
        self._left = 0  # kept by the layer before

    def use(self, layer: BufferLayer) -> BufferAccess:
        """Account for one convolution. Raises ScheduleError for a deadlock."""
        before = self._layer
        notes: list[str] = []
        moved = before is None or before.data_banks != layer.data_banks
        same = before is not None and before.layout == layer.layout and before.banks == layer.banks
        again = same and layer.data_reuse
        if not again:
            self._free += max(self._left, 0)
            self._read = 0 if moved else self._read + max(self._left, 0)
            self._available = 0 if moved else self._available
        self._fetch_pending()
        if self._pending:
            raise ScheduleError(
                "deadlock: entries that the previous convolution still fetches must fit its data banks, but "
                f"{sum(self._pending)} do not"
            )
        if moved:
            self._change_banks(before, layer, notes)
        kept = before is not None and before.keep_data
        fetches = not (again and kept)
        self._written = self._planned
        if fetches:
            self._pending.extend(layer.data)
            self._fetch_pending()
        self._wait(layer, notes)
        self._compare(layer, again, notes)
        access = BufferAccess(fetches, self._written, self._read, tuple(notes))
        released = 0 if layer.keep_data else layer.released
        self._left = layer.needed - released
        self._read += released
        self._free += released
        self._fetch_pending()
        self._layer = layer
        return access

    def _change_banks(self, before: BufferLayer | None, layer: BufferLayer, notes: list[str]) -> None:
        """CDMA waits until all entries of the other banks are released (cdma:253, 3414)."""
        if before is not None and self._free < self._planned + before.data_banks * before.bank:
            missing = self._planned + before.data_banks * before.bank - self._free
            what = f"{missing} entries of data that were fetched before the change of banks are never released"
            if self._model_deadlocks:
                raise ScheduleError(f"deadlock: change of D_BANK: {what}")
            notes.append(f"NVIDIA's C model deadlocks, hardware does not: {what}")
        self._free, self._planned = layer.data_banks * layer.bank, 0

    def _compare(self, layer: BufferLayer, again: bool, notes: list[str]) -> None:
        """Note a convolution that does not read the lines that its settings mean."""
        before = self._layer
        if before is not None and again and before.line != layer.line:
            notes.append(
                "it uses lines again (DATA_REUSE) that have another width, number of channels or of entries "
                "(D_ENTRY_PER_SLICE)"
            )
        kept = max(self._left, 0) if again else 0
        ahead = self._written - kept - self._read
        if ahead:
            notes.append(
                f"it reads its data {abs(ahead)} entries too {'early' if ahead > 0 else 'late'} in the convolution "
                "buffer: those before it released other entries than they had (D_RELEASE, DATA_REUSE)"
            )

    def _fetch_pending(self) -> None:
        """CDMA plans piece by piece, as far as the buffer has free entries (cdma:1101, 3369)."""
        while self._pending and self._planned + self._pending[0] <= self._free:
            self._planned += self._pending[0]
            self._reports.append(self._pending.popleft())

    def _wait(self, layer: BufferLayer, notes: list[str]) -> None:
        """CSC waits for all lines. Its difference has no sign (csc:2708): after the fetched entries it starts at
        once."""
        if self._available < self._read:
            notes.append(
                f"it reads data {self._read - self._available} entries after the fetched ones: the layers before "
                "have released more lines than they had (D_RELEASE)"
            )
            return
        while self._available - self._read < layer.needed:
            if not self._reports:
                there = self._available - self._read
                raise ScheduleError(
                    f"deadlock: the convolution needs {layer.needed} entries of data "
                    f"(CSC.D_DATAIN_SIZE_EXT_0, D_ENTRY_PER_SLICE), the convolution buffer gets {there} "
                    f"in {layer.data_banks} banks of {layer.bank} entries"
                )
            self._available += self._reports.popleft()


class WeightBook:
    """Entries of weights; kernels are counted, too. ``model_deadlocks`` as in :class:`DataBook`.

    ``lenient``: the C model complains of a re-use of weights that were not kept, and fetches them (nv_full).
    """

    def __init__(self, model_deadlocks: bool = True, lenient: bool = False) -> None:
        self._model_deadlocks, self._lenient = model_deadlocks, lenient
        self._layer: BufferLayer | None = None
        self._free = self._planned = self._bytes = 0
        self._read = self._first_read = 0
        self._kernels = self._used = self._first_used = 0
        self._mask = self._first_mask = 0
        self._left = 0

    def use(self, layer: BufferLayer) -> BufferAccess:
        """Account for one convolution. Raises ScheduleError for a deadlock."""
        before = self._layer
        notes: list[str] = []
        moved = before is None or before.banks != layer.banks
        same = before is not None and not moved and before.layout == layer.layout
        reuses, kept = same and layer.weight_reuse, before is not None and before.keep_weights
        again = reuses and kept
        self._begin(moved, again)
        if self._planned > self._free:
            raise ScheduleError(
                "deadlock: entries that the previous convolution still fetches must fit its weight banks, but "
                f"{self._planned - self._free} do not"
            )
        if reuses and not kept:
            self._not_kept(notes)
        if moved:
            self._change_banks(before, layer, notes)
        written, read, mask = self._planned, self._read, self._mask
        if not again:
            self._fetch(layer)
        elif self._kernels - self._used < layer.kernels:
            raise ScheduleError(
                f"deadlock: kernels to reuse (WEIGHT_REUSE): must be at most {self._kernels - self._used} (in the "
                f"convolution buffer), got {layer.kernels}"
            )
        if before is not None and again and before.weights != layer.weights:
            notes.append("it reuses the weights of another layer (WEIGHT_REUSE): address or kernel size differ")
        if not again and written != read:
            notes.append(
                f"it reads its weights {(written - read) * layer.entry} bytes too early in the convolution buffer: "
                "those before it had a size (weight_data.size) above what their kernels take, rounded up to entries "
                f"of {layer.entry} bytes"
            )
        self._end(layer)
        self._layer = layer
        return BufferAccess(not again, written, read, tuple(notes), mask)

    def _begin(self, moved: bool, again: bool) -> None:
        """CSC releases what the layer before has kept, or goes back to where that began (csc:358-427)."""
        if again:
            self._read, self._used, self._mask = self._first_read, self._first_used, self._first_mask
            return
        self._free += self._left
        if moved:
            self._kernels = self._used = self._read = self._mask = 0
        self._first_read, self._first_used, self._first_mask = self._read, self._used, self._mask

    def _not_kept(self, notes: list[str]) -> None:
        """cdma:510; a message on nv_full (nvdlav1 cdma:503)."""
        what = "it reuses weights (WEIGHT_REUSE) that the previous convolution has released (SKIP_WEIGHT_RLS is 0)"
        if not self._lenient:
            raise ScheduleError(f"NVIDIA's C model stops: {what}")
        notes.append(f"NVIDIA's C model reports an invalid setting and fetches the weights: {what}")

    def _change_banks(self, before: BufferLayer | None, layer: BufferLayer, notes: list[str]) -> None:
        """CDMA waits until all entries of the other banks are released (cdma:481, 3438)."""
        if before is not None and self._free < self._planned + before.weight_banks * before.bank:
            missing = self._planned + before.weight_banks * before.bank - self._free
            what = (
                f"{missing} entries of weights that were fetched before the change of banks are never released, since "
                "the kernels do not take all of their size: round weight_data.size up to an entry of the convolution "
                "buffer, not more"
            )
            if self._model_deadlocks:
                raise ScheduleError(f"deadlock: change of D_BANK: {what}")
            notes.append(f"NVIDIA's C model deadlocks, hardware does not: {what}")
        self._free, self._planned, self._bytes = layer.weight_banks * layer.bank, 0, 0

    def _fetch(self, layer: BufferLayer) -> None:
        """Kernel group after kernel group must fit in addition to entries that are never released (cdma:3398)."""
        room, start = self._free - self._planned, 0
        for _, end in layer.groups if not layer.compressed else ():
            if end - (0 if layer.keep_weights else start) > room:
                raise ScheduleError(
                    f"deadlock: {end - (0 if layer.keep_weights else start)} entries of weights "
                    f"must be in the buffer at once, the {layer.weight_banks} banks of {layer.bank} entries hold "
                    f"{room} (D_BANK)"
                )
            start = end
        self._bytes += layer.fetched_bytes
        self._planned = ceil_div(self._bytes, layer.entry)
        self._kernels += layer.kernels

    def _end(self, layer: BufferLayer) -> None:
        """Kernels are released group by group as far as they were read, or kept (csc:483-495, 1518)."""
        self._read += layer.used
        self._used += layer.kernels
        self._mask += layer.mask
        self._left = layer.weight_entries if layer.keep_weights else 0
        if not layer.keep_weights:
            self._free += layer.used


class ConvolutionBuffer:
    """Cells of entries, data banks first, and the accounts of data and weights. All cells are zero when a run begins.

    ``read_back``: whether any convolution so far reads what it does not fetch itself. ``complete``: whether all
    convolutions of the run are accounted.
    ``model_deadlocks``: see :class:`nvdla.emulator.hardware.convolution.cbuf.DataBook`.
    """

    def __init__(self, config: Configuration, model_deadlocks: bool = True) -> None:
        self.config = config
        self.read_back = self.complete = False
        self._data = DataBook(model_deadlocks)
        self._weights = WeightBook(model_deadlocks, lenient=not config.c_model_stops)
        self._cells = np.zeros((config.cbuf_banks * config.cbuf_bank_entries, config.cbuf_entry_bytes), np.uint8)
        self.layers = 0

    def account(self, settings: ConvolutionSettings) -> tuple[BufferAccess, BufferAccess]:
        """Enter the next convolution into the accounts: where it finds data and weights. Raises ScheduleError."""
        layer = layer_of(settings, self.config)
        self.layers += 1
        return self._data.use(layer), self._weights.use(layer)

    def apart(self) -> ConvolutionBuffer:
        """Clone the buffer with its own cells, for convolutions that have been accounted for."""
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
            elements = entries.reshape(lines, -1)[:, : flat.shape[1]]
            flat[:, : elements.shape[1]] = elements
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

        CDMA never gets ahead of CSC by more than the banks hold, so the bytes before ``data`` are still in the cells.
        """
        first, capacity = self.weight_entries(settings)
        count = ceil_div(settings.kernel_bytes, self.config.cbuf_entry_bytes)
        at = access.read + np.arange(count)
        cells = self._cells[first + at % capacity]
        if data is not None:
            own = self._as_entries(data)
            inside = (at >= access.written) & (at < access.written + len(own))
            cells[inside] = own[at[inside] - access.written]
        return cells.reshape(-1)[: settings.kernel_bytes].view(settings.precision.bits)

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
    """Return True if lines are stored in the buffer without gaps between elements."""
    return settings.image or settings.winograd


def layer_of(settings: ConvolutionSettings, config: Configuration) -> BufferLayer:
    """Decode the settings of a convolution for CBUF accounting."""
    entry, slices = config.cbuf_entry_bytes, settings.entries_per_slice
    size = fetched_weight_bytes(settings, config)
    return BufferLayer(
        layout=settings.layout,
        data_banks=settings.banks[0],
        weight_banks=settings.banks[1],
        bank=config.cbuf_bank_entries,
        entry=entry,
        line=(settings.extended.width, settings.extended.channels, slices, int(settings.precision)),
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
    group, kernel_bytes = config.mac_atomic_k // settings.precision.bytes, settings.kernel_bytes // settings.kernels
    ends = [min(first + group, settings.kernels) for first in range(0, settings.kernels, group)]
    starts = [0, *ends[:-1]]
    entry = config.cbuf_entry_bytes
    return tuple((end - start, ceil_div(end * kernel_bytes, entry)) for start, end in zip(starts, ends, strict=True))
