"""A convolution of which a part is broken: entries of the convolution buffer, multipliers, partial sums."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nvdla.errors import ConfigError
from nvdla.faults.array import ArrayFaults, accumulators_with
from nvdla.faults.effects import Effect
from nvdla.faults.places import BufferEntry
from nvdla.hardware.convolution.books import BufferAccess
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.job import Handed, Job
from nvdla.limits import Work
from nvdla.memory.lanes import Move
from nvdla.rounding import align, ceil_div


@dataclass(frozen=True)
class ConvolutionFaults:
    """What is broken during one convolution."""

    array: ArrayFaults = field(default_factory=ArrayFaults)
    entries: list[tuple[BufferEntry, Effect]] = field(default_factory=list)


class FaultyConvolution(Job):
    """``conv`` with faults. It runs whole first, so that the buffer holds what later convolutions find there."""

    def __init__(self, conv: ConvolutionJob, faults: ConvolutionFaults) -> None:
        self.conv, self.faults = conv, faults
        self.statistics: dict[str, int] = {}

    @property
    def work(self) -> Work:
        """That of the convolution."""
        return self.conv.work

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return self.conv.reads

    @property
    def writes(self) -> list[np.ndarray]:
        """Nothing: the results go to SDP."""
        return []

    def _relocate(self, move: Move) -> None:
        self.conv = move.once(self.conv, lambda: self.conv.moved(move))

    def run(self, source: Handed = None) -> Handed:
        """Convolve. Returns the accumulators, as the convolution does."""
        conv, faults = self.conv, self.faults
        healthy = conv.run()
        lines, elements = conv.operands()
        if faults.entries:
            lines = _struck_lines(conv, lines, faults.entries)
            elements = _struck_weights(conv, elements, faults.entries)
            healthy = conv.arithmetic.compute(lines, conv.arithmetic.pack(elements))
        if faults.array:
            return accumulators_with(conv, lines, elements, healthy, faults.array)
        return healthy


def accesses(conv: ConvolutionJob) -> tuple[BufferAccess, BufferAccess]:
    """Where a convolution that has run found its data and its weights in the buffer."""
    assert conv.data is not None and conv.weights is not None
    return conv.data, conv.weights


def used_entries(conv: ConvolutionJob) -> tuple[np.ndarray, np.ndarray]:
    """The entries of the buffer that hold data and weights of a convolution, in their order, each once."""
    settings, buffer = conv.settings, conv.engine.buffer
    first, weight_room = buffer.weight_entries(settings)
    room = buffer.data_entries(settings)
    lines = settings.batches * settings.extended.height * settings.entries_per_slice
    weights = ceil_div(settings.kernel_bytes, buffer.config.cbuf_entry_bytes)
    return (
        (accesses(conv)[0].read + np.arange(min(lines, room))) % room,
        first + (accesses(conv)[1].read + np.arange(min(weights, weight_room))) % weight_room,
    )


def check_entry(conv: ConvolutionJob, place: BufferEntry) -> None:
    """Raise ConfigError for an entry or byte that the buffer does not have."""
    config = conv.engine.buffer.config
    entries = config.cbuf_banks * config.cbuf_bank_entries
    if not (0 <= place.entry < entries and 0 <= place.byte < config.cbuf_entry_bytes):
        raise ConfigError(
            f"CBUF entry={place.entry} byte={place.byte}: {config.name} has {entries} entries of "
            f"{config.cbuf_entry_bytes} bytes"
        )
    if conv.settings.compressed and place.entry >= conv.engine.buffer.data_entries(conv.settings):
        raise ConfigError("faults in CBUF entries of compressed weights are not computed")


def _struck_lines(conv: ConvolutionJob, lines: np.ndarray, faults: list[tuple[BufferEntry, Effect]]) -> np.ndarray:
    """The lines as CSC reads them. An entry holds one line after the other where not all fit: each is struck."""
    settings, buffer = conv.settings, conv.engine.buffer
    if not (settings.image or settings.winograd):
        atom = buffer.config.memory_atom // settings.precision.bytes
        missing = align(lines.shape[3], atom) - lines.shape[3]
        lines = np.pad(lines, ((0, 0), (0, 0), (0, 0), (0, missing)))
    entries = buffer.entries_of(settings, lines)
    where = (accesses(conv)[0].read + np.arange(len(entries))) % buffer.data_entries(settings)
    for place, effect in faults:
        hit = where == place.entry
        entries[hit, place.byte] = effect.on(entries[hit, place.byte], place.bits).astype(np.uint8)
    return buffer.lines_of(settings, entries)


def _struck_weights(conv: ConvolutionJob, elements: np.ndarray, faults: list[tuple[BufferEntry, Effect]]) -> np.ndarray:
    settings, buffer = conv.settings, conv.engine.buffer
    first, room = buffer.weight_entries(settings)
    data = np.ascontiguousarray(elements).view(np.uint8).copy()
    entry = buffer.config.cbuf_entry_bytes
    where = first + (accesses(conv)[1].read + np.arange(data.size) // entry) % room
    for place, effect in faults:
        hit = (where == place.entry) & (np.arange(data.size) % entry == place.byte)
        data[hit] = effect.on(data[hit], place.bits).astype(np.uint8)
    return data.view(elements.dtype)
