"""Other ways to do a convolution, evaluated by the cycle model: in parts of rows, with other banks, weights kept.

All data of a convolution must be in the buffer before the first multiplication. In parts, only the first one's fetch is
waited for: the next part comes in while one is multiplied, where both fit into the data banks. Weights that fit
their banks are fetched once and kept from part to part (the form that the C model and the RTL are known to run: same
bank counts, exact sizes, kept by all users but the last, used again by all but the first).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from nvdla.analysis.cycles.constants import ChainShape, Memory
from nvdla.analysis.cycles.estimate import WINOGRAD_SHARE, convolution, queue_cycles
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.convolution.checks import entries_per_slice
from nvdla.limits import MASK_ALIGNMENT
from nvdla.util.escaping import Document
from nvdla.util.rounding import align, ceil_div

PARTS = (1, 2, 4)
"""Numbers of parts that are looked at."""
"""Bytes that the mask of compressed weights is a multiple of."""
GROUP_SIZE_BYTES = 4
"""Bytes of the size field of a kernel group."""


@dataclass(frozen=True)
class StoredWeights:
    """Sizes of weights in memory and in the buffer, in bytes.

    ``whole``: all weights, and ``group``: the largest kernel group, both in whole entries of the buffer. ``traffic``:
    all fetched bytes. ``mask`` (WMB): bytes in a separate bank, 0 for weights that are not compressed.
    """

    whole: int
    group: int
    traffic: int
    mask: int = 0

    @property
    def compressed(self) -> bool:
        """Check whether zeros are left out."""
        return self.mask > 0

    def banks(self, config: Configuration) -> int:
        """Banks that data and weights share."""
        return config.cbuf_banks - self.compressed

    def may_stay(self, banks: int, config: Configuration) -> bool:
        """Check whether all of them fit in so many banks."""
        return self.whole <= banks * config.cbuf_bank_bytes and self.mask <= config.cbuf_bank_bytes


def compressed(
    nonzero: np.ndarray, elements: int, group: int, size: int, config: Configuration
) -> StoredWeights | None:
    """Return the bytes of weights without their zeros; None if this is impossible or not less.

    ``nonzero``: of each kernel group, the ``elements`` of all kernels that are not 0, ``group`` of them in a group at
    most, ``size`` bytes each. The mask of a group and an entry more must fit its bank (programming guide,
    "Limitations").
    """
    entry, bank = config.cbuf_entry_bytes, config.cbuf_bank_bytes
    if not config.weight_compression or ceil_div(group, 8) + entry > bank:
        return None
    counts = np.maximum(nonzero, 1) * size
    whole, mask = align(int(counts.sum()), entry), align(ceil_div(elements, 8), MASK_ALIGNMENT)
    traffic = whole + mask + GROUP_SIZE_BYTES * len(counts)
    if traffic >= align(elements * size, entry):
        return None
    # A group may begin within an entry.
    return StoredWeights(whole, align(int(counts.max()), entry) + entry, traffic, mask)


@dataclass(frozen=True)
class Geometry:
    """A direct convolution on feature data. Shapes are (channels, height, width); ``kernel`` (height, width), ``span``
    the rows that it covers (dilation), ``stride`` and ``pad`` of the rows; ``sums``: a second cube is added.
    ``sparse``: its weights compressed, where that may pay. ``biased``: the SDP reads a number for each kernel;
    ``table``: it looks the results up."""

    source: tuple[int, int, int]
    result: tuple[int, int, int]
    kernel: tuple[int, int]
    span: int
    stride: int
    pad: int
    sums: bool = False
    element_bytes: int = 1
    sparse: StoredWeights | None = None
    biased: bool = True
    table: bool = False
    grain: ClassVar[int] = 1
    """Rows of the result that are not divided."""

    def rows(self, top: int, count: int) -> tuple[int, int]:
        """(first, count) of the input's rows for so many of the result's."""
        first = top * self.stride - self.pad
        begin, end = max(first, 0), min(first + (count - 1) * self.stride + self.span, self.source[1])
        return begin, max(end - begin, 1)

    @property
    def divisible(self) -> bool:
        """Check whether it can be done in parts of rows."""
        return True

    def entries(self, part: tuple[int, int], config: Configuration) -> int:
        """Entries of the buffer that the input of such rows of the result takes."""
        line = entries_per_slice(self.source[0] * self.element_bytes, self.source[2], config)
        return self.rows(*part)[1] * line

    def chain(self, part: tuple[int, int], form: Alternative, first: bool, config: Configuration) -> ChainShape:
        """A part as the cycle model takes it; ``first``: the first of its form."""
        reads_weights = first or not form.keeps_weights
        chain = convolution(
            config,
            (self.source[0], self.rows(*part)[1], self.source[2]),
            (self.result[0], part[1], self.result[2]),
            self.kernel,
            data_banks=form.data_banks,
            weight_banks=form.weight_banks,
            reads_weights=reads_weights,
            sums=self.sums,
            biased=self.biased,
            table=self.table,
            element_bytes=self.element_bytes,
        )
        if not form.compressed or not reads_weights:
            return chain
        assert chain.conv is not None and self.sparse is not None
        return replace(chain, conv=replace(chain.conv, weight_bytes=self.sparse.traffic))

    def fetch_share(self, config: Configuration, memory: Memory | None = None) -> float:
        """Cycles in which the input is fetched, as a share of those in which the array multiplies: what parts can
        save at most."""
        atoms = ceil_div(self.source[0] * self.element_bytes, config.memory_atom)
        fetch = atoms * config.memory_atom * self.source[1] * self.source[2]
        return self._share(fetch, config, memory)

    def zeros_share(self, config: Configuration, memory: Memory | None = None) -> float:
        """The same of what compression leaves out."""
        if self.sparse is None:
            return 0.0
        return self._share(self.weight_bytes(self.result[0], config) - self.sparse.traffic, config, memory)

    def _share(self, fetch: int, config: Configuration, memory: Memory | None) -> float:
        rate = (memory or Memory()).rate(config.dram_width_bits / 8)
        taps = self.kernel[0] * self.kernel[1] * ceil_div(self.source[0], config.mac_atomic_c)
        groups = ceil_div(self.result[0] * self.element_bytes, config.mac_atomic_k)
        return fetch / rate / (taps * groups * self.result[1] * self.result[2])

    def weight_bytes(self, kernels: int, config: Configuration) -> int:
        """Bytes of so many kernels in whole entries of the buffer."""
        size = self.source[0] * self.kernel[0] * self.kernel[1] * self.element_bytes
        return align(min(kernels, self.result[0]) * size, config.cbuf_entry_bytes)

    def weight_forms(self, config: Configuration) -> Iterator[StoredWeights]:
        """The ways in which the weights may be in memory."""
        group = max(config.mac_atomic_k // self.element_bytes, 1)
        whole, group_bytes = (self.weight_bytes(kernels, config) for kernels in (self.result[0], group))
        yield StoredWeights(whole, group_bytes, whole)
        if self.sparse is not None:
            yield self.sparse


@dataclass(frozen=True)
class WinogradGeometry(Geometry):
    """A 3x3 convolution by Winograd's method: ``kernel`` is (4, 4), the result whole blocks of 4x4. The buffer holds
    four lines and columns more than the result has, padding included."""

    grain: ClassVar[int] = 4

    def rows(self, top: int, count: int) -> tuple[int, int]:
        """(first, count) of the input's rows that are fetched."""
        first = top - self.pad
        begin, end = max(first, 0), min(first + count + self.grain, self.source[1])
        return begin, max(end - begin, 1)

    def line(self, config: Configuration) -> int:
        """Entries of a line: elements as they come, whole atoms of channels."""
        size = align(self.source[0] * self.element_bytes, config.memory_atom)
        return ceil_div((self.result[2] + self.grain) * size, config.cbuf_entry_bytes)

    def entries(self, part: tuple[int, int], config: Configuration) -> int:
        """Entries of the buffer that the input of such rows of the result takes."""
        return (part[1] + self.grain) * self.line(config)

    def chain(self, part: tuple[int, int], form: Alternative, first: bool, config: Configuration) -> ChainShape:
        """A part as the cycle model takes it."""
        whole = super().chain(part, form, first, config)
        assert whole.conv is not None
        size = self.weight_bytes(self.result[0], config) if first or not form.keeps_weights else 0
        entries = self.line(config)
        conv = replace(whole.conv, share=WINOGRAD_SHARE, weight_bytes=size, entries_per_slice=entries)
        return replace(whole, conv=conv)

    def weight_bytes(self, kernels: int, config: Configuration) -> int:
        """Bytes of so many transformed kernels."""
        size = align(self.source[0] * self.element_bytes, config.memory_atom) * self.grain**2
        return align(min(kernels, self.result[0]) * size, config.cbuf_entry_bytes)


@dataclass(frozen=True)
class Alternative:
    """``parts``: (first, count) of the result's rows; ``cycles``: from the first register write to the last interrupt,
    alone."""

    parts: tuple[tuple[int, int], ...]
    data_banks: int
    weight_banks: int
    keeps_weights: bool
    cycles: int = 0
    compressed: bool = False

    @property
    def words(self) -> str:
        """Return a description."""
        packed = ", weights compressed" if self.compressed else ""
        kept = ", weights kept" if self.keeps_weights else ""
        return f"{self.form}, {self.data_banks} data and {self.weight_banks} weight banks{packed}{kept}"

    @property
    def form(self) -> str:
        """In how many parts it is done."""
        count = len(self.parts)
        return "whole" if count == 1 else f"{count} parts of rows"

    def document(self) -> Document:
        """The alternative as plain data."""
        return {
            "form": self.form,
            "parts": len(self.parts),
            "data_banks": self.data_banks,
            "weight_banks": self.weight_banks,
            "keeps_weights": self.keeps_weights,
            "compressed": self.compressed,
            "cycles": self.cycles,
        }


def alternatives(
    geometry: Geometry,
    config: Configuration,
    memory: Memory | None = None,
    numbers: Collection[int] = PARTS,
    thorough: bool = True,
) -> list[Alternative]:
    """Everything that fits in such ``numbers`` of parts, the fastest first; of equally fast ones that with fewer parts.

    Empty where nothing fits. ``thorough``: data banks for one part alone, too, where it fits for two.
    """
    fitting = [
        replace(form, cycles=cycles_of(form, geometry, config, memory))
        for parts in sorted(numbers)
        if parts <= geometry.result[1] and (parts == 1 or geometry.divisible)
        for weights in geometry.weight_forms(config)
        for form in _narrowed(
            itertools.islice(_forms(geometry, config, parts, weights), None if thorough else 1), weights, config, memory
        )
    ]
    return sorted(fitting, key=lambda form: (form.cycles, form.compressed, len(form.parts), form.data_banks))


def _forms(geometry: Geometry, config: Configuration, count: int, weights: StoredWeights) -> Iterator[Alternative]:
    """Ways to compute in ``count`` parts, most data banks first: for the data of two parts or of one; weights are kept
    where they fit."""
    height, width = geometry.result[1:]
    rows = align(ceil_div(height, count), geometry.grain)
    parts = tuple((top, min(rows, height - top)) for top in range(0, height, rows))
    if len(parts) != count or (count > 1 and min(part[1] for part in parts) * width == 1):
        return
    entries = [geometry.entries(part, config) for part in parts]
    whole, group = (ceil_div(size, config.cbuf_bank_bytes) for size in (weights.whole, weights.group))
    together = max((a + b for a, b in itertools.pairwise(entries)), default=0)
    banks = {ceil_div(max(entries), config.cbuf_bank_entries), ceil_div(together, config.cbuf_bank_entries)}
    for data in sorted(banks, reverse=True):
        rest = weights.banks(config) - data
        if data == 0 or rest < group or data * config.cbuf_bank_entries < max(entries):
            continue
        fits = weights.may_stay(rest, config)
        yield Alternative(parts, data, min(whole, rest), fits and count > 1, compressed=weights.compressed)


def _narrowed(
    forms: Iterator[Alternative], weights: StoredWeights, config: Configuration, memory: Memory | None
) -> Iterator[Alternative]:
    """The forms, and where the memory is narrower than the bus each whole one with weight banks for two kernel groups:
    weights that wait for space leave the port to the data."""
    bus = config.dram_width_bits / 8
    narrow = memory is not None and memory.rate(bus) < bus
    banks = max(ceil_div(2 * weights.group, config.cbuf_bank_bytes), 1)
    for form in forms:
        yield form
        if narrow and len(form.parts) == 1 and banks < form.weight_banks and not weights.compressed:
            yield replace(form, weight_banks=banks)


def cycles_of(form: Alternative, geometry: Geometry, config: Configuration, memory: Memory | None = None) -> int:
    """Cycles of all parts in their own queue."""
    chains = [geometry.chain(part, form, number == 0, config) for number, part in enumerate(form.parts)]
    return queue_cycles(chains, config, memory, element_bytes=geometry.element_bytes)
