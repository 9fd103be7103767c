"""A faulty run without the firmware: from the step where the first fault strikes, and no further than it shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nvdla.errors import ConfigError
from nvdla.execution.fused_convolution import FusedConvolution, x1_operands
from nvdla.execution.shared import Shared
from nvdla.execution.steps import Chain, Step
from nvdla.faults.array import array_of
from nvdla.faults.convolution import ConvolutionFaults, FaultyConvolution
from nvdla.faults.network import Golden, StruckNetwork, afresh, convolution
from nvdla.faults.resolve import Poke, Resolved
from nvdla.hardware.convolution.engine import ConvolutionJob


class FaultReplay:
    """``faults`` on a network whose steps may be done again."""

    def __init__(self, network: StruckNetwork, faults: Resolved) -> None:
        self._network, self._faults = network, faults
        self._bytes = [network.byte_at(poke.space, poke.address) for poke in faults.pokes]
        self._readers = [network.readers(view) for view in self._bytes]
        self._plain = self._needed_plain()
        self._steps = self._made()
        self._first, self._last = self._extent()

    def run(self, golden: Golden) -> list[bytes]:
        """Raw outputs for the inputs of a healthy run."""
        network, count = self._network, len(self._steps)
        network.restore(golden, self._first)
        open_until = dict.fromkeys(range(-len(self._bytes), 0), -1)
        changed: list[tuple[np.ndarray, int]] = []
        try:
            for number in range(self._first, count):
                self._strike(number, changed, open_until)
                step = self._steps[number]
                step.run()
                self._heal(number, changed)
                if not _equal(network.fused[number].writes, golden.written[number]):
                    open_until[number] = network.last_reader(number)
                if number >= self._last and all(end <= number for end in open_until.values()):
                    return golden.outputs
            self._strike(count, changed, open_until)
            return network.outputs()
        finally:
            for view, old in reversed(changed):
                view[0] = old

    def run_lanes(self, images: Sequence[Sequence[object]]) -> list[list[bytes]]:
        """Raw outputs of images in lanes 1, 2 ...; without faults in memory."""
        linked, count = self._network.linked, len(images)
        self._network.clear_lanes(images)
        for step in self._steps:
            step.run_lanes(linked.lanes, count)
        outputs = [linked.lanes.across(linked.data(memory), count) for memory in linked.loadable.outputs]
        return [[output[lane].tobytes() for output in outputs] for lane in range(count)]

    def _needed_plain(self) -> set[int]:
        """Steps that must read what a fused form has read once, and all that share the buffer with a step of those."""
        network = self._network
        plain = set(self._faults.convolutions)
        for poke, readers in zip(self._faults.pokes, self._readers, strict=True):
            plain |= {number for number in readers if number < len(network.steps) and _acts(poke, number)}
        together = set(plain)
        for number in plain:
            together |= set(range(network.first_of_group[number], network.last_of_group[number] + 1))
        return together

    def _made(self) -> list[Step]:
        network, steps, shared = self._network, [], Shared()
        for number, fused in enumerate(network.fused):
            faults = self._faults.convolutions.get(number)
            if number not in self._plain:
                steps.append(fused)
                continue
            quick = None if faults is None else _with_constant_products(fused, faults, shared)
            steps.append(quick or _with(afresh(network.steps[number]), faults))
        return steps

    def _extent(self) -> tuple[int, int]:
        """The step to begin with, and the last at which a fault acts."""
        network, count = self._network, len(self._steps)
        firsts, lasts = [*self._faults.convolutions], [*self._faults.convolutions]
        for poke, readers in zip(self._faults.pokes, self._readers, strict=True):
            # A permanent fault is there in every memory state: nothing happens before somebody reads it.
            firsts.append(min(readers, default=count) if poke.permanent else min(poke.first, count))
            lasts.append(count if poke.permanent else poke.first)
        first = min(firsts, default=count)
        return (network.first_of_group[first] if first < count else count), max(lasts, default=-1)

    def _strike(self, number: int, changed: list[tuple[np.ndarray, int]], open_until: dict[int, int]) -> None:
        """Before a step: what strikes now."""
        for index, poke in enumerate(self._faults.pokes):
            view = self._bytes[index]
            now = number == self._first if poke.permanent else number == poke.first
            if now:
                changed.append((view, int(view[0])))
                view[0] = poke.effect.on_word(int(view[0]), 8)
                if not poke.once:
                    open_until[index - len(self._bytes)] = max(self._readers[index], default=-1)

    def _heal(self, number: int, changed: list[tuple[np.ndarray, int]]) -> None:
        """After a step: what was there for it alone goes, what stays strikes what was written."""
        for index, poke in enumerate(self._faults.pokes):
            view = self._bytes[index]
            if poke.once and number == poke.first:
                view[0] = next(old for where, old in changed if where is view)
            elif poke.permanent and any(np.shares_memory(view, each) for each in self._network.fused[number].writes):
                view[0] = poke.effect.on_word(int(view[0]), 8)


def _acts(poke: Poke, number: int) -> bool:
    """Whether a byte may differ from the healthy run when a step reads it."""
    return poke.permanent or number == poke.first or (number > poke.first and not poke.once)


def _equal(views: Sequence[np.ndarray], golden: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(view, data) for view, data in zip(views, golden, strict=True))


def _with(step: Step, faults: ConvolutionFaults | None) -> Step:
    """The step with a broken convolution."""
    if faults is None:
        return step
    conv = convolution(step)
    assert conv is not None and isinstance(step, Chain)
    return Chain((FaultyConvolution(conv, faults), *step.jobs[1:]))


def faulty_jobs(jobs: Sequence[object], faults: ConvolutionFaults) -> list[object]:
    """The jobs of a chain with a broken convolution. Raises ConfigError where the chain has none."""
    conv = jobs[0]
    if not isinstance(conv, ConvolutionJob):
        raise ConfigError("the step that a fault should strike has no convolution any more")
    return [FaultyConvolution(conv, faults), *jobs[1:]]


def _with_constant_products(fused: Step, faults: ConvolutionFaults, shared: Shared) -> Step | None:
    """The fused step where all that is broken are multipliers that give a constant: weights without effect, and as
    many constants more in every sum as there are atoms; None for other faults, or where sums could leave 32 bits."""
    job = fused.jobs[0] if isinstance(fused, Chain) else None
    if not isinstance(job, FusedConvolution) or not isinstance(fused, Chain) or not _all_constant(faults):
        return None
    from nvdla.kernels.fast.conv_sdp_int8 import sums_fit

    conv, arithmetic = job.conv, array_of(job.conv)
    weights = arithmetic.unpack(conv.weight_source.read()).copy()
    alu, mul = (each.copy() for each in x1_operands(job.sdp))
    group, sequence = arithmetic.group, arithmetic.sequence()
    for where, effect in faults.array.multipliers:
        for atom in sequence:
            place = 0
            for row, column, first, end in atom:
                channel = first + where.channel - place
                if first <= channel < end:
                    weights[where.kernel :: group, row, column, channel] = 0
                    alu[where.kernel : len(weights) : group] += effect.value
                place += end - first
    if not sums_fit(weights, alu[: len(weights)]):
        return None
    return Chain((FusedConvolution(conv, job.sdp, weights, (alu, mul), shared), *fused.jobs[1:]))


def _all_constant(faults: ConvolutionFaults) -> bool:
    multipliers = faults.array.multipliers
    whole = all(where.port == "product" and where.always for where, _ in multipliers)
    return (
        whole and all(effect.kind == "set" for _, effect in multipliers) and not (faults.array.sums or faults.entries)
    )
