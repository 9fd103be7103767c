"""The two books of the convolution buffer: how much was fetched, how much was released, and where the next reads.

CDMA and CSC count entries, each for itself, for data and for weights. Nothing ties the counts to what lies in the
buffer: settings that let them drift apart make a later convolution read from the wrong place, or wait for ever. These
are the counts of NVIDIA's C model (cmod/cdma/NV_NVDLA_cdma.cpp, cmod/csc/NV_NVDLA_csc.cpp; lines are of branch
master). A convolution begins to fetch when CSC begins with it, so each can be accounted for as a whole.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from nvdla.errors import ScheduleError
from nvdla.rounding import ceil_div


@dataclass(frozen=True)
class BufferLayer:
    """What one convolution asks of the buffer. Counts are entries; ``bank`` is the entries of a bank, ``entry`` bytes.

    ``line``: what a line is made of; ``weights``: which weights they are. ``data``: entries that CDMA reports at a
    time. ``needed``: entries of all data that CSC works on. ``released``: entries that it releases at the end.
    ``fetched_bytes``: bytes of weights that CDMA fetches, ``weight_entries`` the whole entries of D_WEIGHT_BYTES.
    ``groups``: of each kernel group, the kernels and the entries that all kernels up to its end take.
    ``mask``: entries of the mask of compressed weights, 0 of plain ones. Of compressed weights all are released at the
    end, whatever was read; their mask lies in a bank of its own.
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
        """Whether the weights are stored without their zeros."""
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
    """Where one convolution finds what it works on, in entries from the first entry of its banks, ring or not.

    ``fetches``: whether anything is fetched, to ``written`` on. ``read``: where CSC reads. ``notes``: what is wrong
    with it, though it runs. ``mask``: where the mask of compressed weights lies in its bank.
    """

    fetches: bool
    written: int
    read: int
    notes: tuple[str, ...] = ()
    mask: int = 0

    @property
    def in_place(self) -> bool:
        """True when it reads what it has fetched itself, and nothing else."""
        return self.fetches and self.written == self.read


class DataBook:
    """Entries of data. ``patient``: raise where the C model waits for ever at a change of banks and hardware does
    not."""

    def __init__(self, patient: bool = True) -> None:
        self._patient = patient
        self._layer: BufferLayer | None = None
        self._free = self._planned = self._written = 0  # CDMA: as many entries may be planned, are planned
        self._read = self._available = 0  # CSC: position, entries that it knows to be there
        self._reports: deque[int] = deque()  # from CDMA, not looked at by CSC yet
        self._pending: deque[int] = deque()  # what CDMA has no room for yet
        self._left = 0  # kept by the layer before

    def use(self, layer: BufferLayer) -> BufferAccess:
        """Account for one convolution. Raises ScheduleError when it waits for ever."""
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
                f"the convolution waits for ever: the one before still fetches data, {sum(self._pending)} entries "
                "that find no room in its banks"
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
            if self._patient:
                raise ScheduleError(f"the convolution waits for ever at a change of D_BANK: {what}")
            notes.append(f"NVIDIA's C model waits for ever, hardware does not: {what}")
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
        """CDMA plans piece by piece, as far as there is room (cdma:1101, 3369)."""
        while self._pending and self._planned + self._pending[0] <= self._free:
            self._planned += self._pending[0]
            self._reports.append(self._pending.popleft())

    def _wait(self, layer: BufferLayer, notes: list[str]) -> None:
        """CSC waits for all lines. Its difference has no sign (csc:2708): behind what was fetched it starts at once."""
        if self._available < self._read:
            notes.append(
                f"it reads data {self._read - self._available} entries behind what was fetched: the layers before "
                "have released more lines than they had (D_RELEASE)"
            )
            return
        while self._available - self._read < layer.needed:
            if not self._reports:
                there = self._available - self._read
                raise ScheduleError(
                    f"the convolution waits for ever: it needs {layer.needed} entries of data "
                    f"(CSC.D_DATAIN_SIZE_EXT_0, D_ENTRY_PER_SLICE), the convolution buffer gets {there} "
                    f"in {layer.data_banks} banks of {layer.bank} entries"
                )
            self._available += self._reports.popleft()


class WeightBook:
    """Entries of weights; kernels are counted, too. ``patient`` as in :class:`DataBook`.

    ``lenient``: the C model complains of a re-use of weights that were not kept, and fetches them (nv_full).
    """

    def __init__(self, patient: bool = True, lenient: bool = False) -> None:
        self._patient, self._lenient = patient, lenient
        self._layer: BufferLayer | None = None
        self._free = self._planned = self._bytes = 0
        self._read = self._first_read = 0
        self._kernels = self._used = self._first_used = 0
        self._mask = self._first_mask = 0
        self._left = 0

    def use(self, layer: BufferLayer) -> BufferAccess:
        """Account for one convolution. Raises ScheduleError when it waits for ever."""
        before = self._layer
        notes: list[str] = []
        moved = before is None or before.banks != layer.banks
        same = before is not None and not moved and before.layout == layer.layout
        reuses, kept = same and layer.weight_reuse, before is not None and before.keep_weights
        again = reuses and kept
        self._begin(moved, again)
        if self._planned > self._free:
            raise ScheduleError(
                f"the convolution waits for ever: the one before still fetches weights, {self._planned - self._free} "
                "entries that find no room in its banks"
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
                f"the convolution waits for ever: it uses {layer.kernels} kernels again (WEIGHT_REUSE), the "
                f"convolution buffer keeps {self._kernels - self._used}"
            )
        if before is not None and again and before.weights != layer.weights:
            notes.append("it uses weights again (WEIGHT_REUSE) that are not its own: address or kernel size differ")
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
        what = "it uses weights again (WEIGHT_REUSE) that the convolution before has not kept (SKIP_WEIGHT_RLS)"
        if not self._lenient:
            raise ScheduleError(f"NVIDIA's C model stops: {what}")
        notes.append(f"NVIDIA's C model calls it invalid, and fetches them: {what}")

    def _change_banks(self, before: BufferLayer | None, layer: BufferLayer, notes: list[str]) -> None:
        """CDMA waits until all entries of the other banks are released (cdma:481, 3438)."""
        if before is not None and self._free < self._planned + before.weight_banks * before.bank:
            missing = self._planned + before.weight_banks * before.bank - self._free
            what = (
                f"{missing} entries of weights that were fetched before the change of banks are never released, since "
                "the kernels do not take all of their size: round weight_data.size up to an entry of the convolution "
                "buffer, not more"
            )
            if self._patient:
                raise ScheduleError(f"the convolution waits for ever at a change of D_BANK: {what}")
            notes.append(f"NVIDIA's C model waits for ever, hardware does not: {what}")
        self._free, self._planned, self._bytes = layer.weight_banks * layer.bank, 0, 0

    def _fetch(self, layer: BufferLayer) -> None:
        """Kernel group after kernel group must find room beside what was never released (cdma:3398)."""
        room, start = self._free - self._planned, 0
        for _, end in layer.groups if not layer.compressed else ():
            if end - (0 if layer.keep_weights else start) > room:
                raise ScheduleError(
                    f"the convolution waits for ever: {end - (0 if layer.keep_weights else start)} entries of weights "
                    f"must be there at once, its {layer.weight_banks} banks of {layer.bank} entries have room for "
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
