"""Data that stay in the convolution buffer: convolutions in a row that take the same cube may fetch it once.

The form that NVIDIA's C model and RTL are known to run: direct convolutions on feature data, in banks of the same
numbers, which read the same cube; kept by all users but the last, used again by all but the first. The cycle model is
asked of each pair, as one that need not wait for its data may come too early for who takes its results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.cycles.queue import convolution, queue_cycles
from nvdla.builder.compression import stored_weights
from nvdla.builder.ir import BYTES, Convolve
from nvdla.descriptors.enums import OpType
from nvdla.hardware.configuration import Configuration


class Queued(Protocol):
    """A hardware operation as far as its use of the buffer goes (:class:`nvdla.builder.schedule.HardwareOperation`)."""

    type: OpType
    data_banks: int
    weight_banks: int
    keeps_data: bool
    reuses_data: bool
    reuses_weights: bool
    compressed: bool

    @property
    def operation(self) -> object:
        """What it does."""


def share_data(operations: Sequence[Queued], config: Configuration, memory: Memory | None) -> None:
    """Let convolutions use the data again that the one before has fetched, where that is no slower."""
    for row in _rows([each for each in operations if each.type == OpType.CONV]):
        fewest = _cycles(row, config, memory)
        for before, after in itertools.pairwise(row):
            before.keeps_data = after.reuses_data = True
            cycles = _cycles(row, config, memory)
            if cycles > fewest:
                before.keeps_data = after.reuses_data = False
            fewest = min(cycles, fewest)


def _rows(queue: list[Queued]) -> Iterator[list[Queued]]:
    """Two or more convolutions, one behind the other, of which each could use the data of the one before."""
    row: list[Queued] = []
    for each in queue:
        if row and not _may(row[-1], each):
            if len(row) > 1:
                yield row
            row = []
        row.append(each)
    if len(row) > 1:
        yield row


def _may(before: Queued, after: Queued) -> bool:
    first, then = before.operation, after.operation
    assert isinstance(first, Convolve) and isinstance(then, Convolve)
    if (before.data_banks, before.weight_banks) != (after.data_banks, after.weight_banks):
        return False
    plain = not (first.winograd or then.winograd) and first.source.root.pixels is None
    return plain and first.source.is_same(then.source)


def _cycles(row: list[Queued], config: Configuration, memory: Memory | None) -> int:
    """Cycles of such convolutions, with a post-processor behind each, in a queue of their own."""
    chains, size = [], 1
    for each in row:
        operation = each.operation
        assert isinstance(operation, Convolve)
        size = BYTES[operation.source.precision]
        chain = convolution(
            config,
            operation.source.shape,
            operation.process.destination.shape,
            (operation.weights.shape[2], operation.weights.shape[3]),
            data_banks=each.data_banks,
            weight_banks=each.weight_banks,
            reads_data=not each.reuses_data,
            reads_weights=not each.reuses_weights,
            sums=any(stage.surfaces for stage in operation.process.stages),
            element_bytes=size,
        )
        stored = stored_weights(operation, config) if each.compressed and not each.reuses_weights else None
        if stored is not None and chain.conv is not None:
            chain = replace(chain, conv=replace(chain.conv, weight_bytes=stored.traffic))
        chains.append(chain)
    return queue_cycles(chains, config, memory, element_bytes=size)
