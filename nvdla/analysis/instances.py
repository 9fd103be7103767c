"""Estimate of one network on several NVDLA instances with one memory, as a batch or as a pipeline of its layers.

An instance alone takes the cycles of the cycle model. Next to others, the part of them in which the memory transfers
its bytes grows: while the memory serves the others for three quarters of the time, a transfer takes four times as long.
The instances therefore never transfer more than the memory can. All instances share one processor for CPU operations.
No run of several instances was measured.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nvdla.analysis.study import Study
from nvdla.errors import ConfigError

SPLITS = {
    "batch": "every instance runs the whole network on its own inputs",
    "pipeline": "every instance runs consecutive layers of each input",
}
MAX_INSTANCES = 64


@dataclass(frozen=True)
class PipelineStage:
    """Consecutive operations on one instance, from the label ``first`` to the label ``last``.

    Attributes:
        alone: Cycles per input without other instances.
        transfer: Cycles per input in which the memory transfers its bytes, at most ``alone``.
        cycles: Cycles per input next to the other instances.
    """

    first: str
    last: str
    alone: float
    transfer: float
    cycles: float = 0.0

    def contended(self, others: float) -> PipelineStage:
        """Return the stage next to instances for which the memory works during this share of the time (below 1)."""
        return replace(self, cycles=self.alone - self.transfer + self.transfer / (1 - others))


@dataclass(frozen=True)
class Splitting:
    """A network on several instances.

    Attributes:
        period: Cycles between two results.
        least_period: No schedule of these instances on this memory and processor is faster, by the cycle model.
        bound: What sets ``least_period``: "instances", "memory" or "processor".
        stages: Stages of a pipeline; one stage for a batch, which every instance runs.
    """

    period: float
    least_period: float
    bound: str
    stages: list[PipelineStage]

    @property
    def latency(self) -> float:
        """Cycles from an input to its result, without waiting for a free stage."""
        return sum(stage.cycles for stage in self.stages)


def splitting(studies: Sequence[Study], instances: int, split: str) -> Splitting:
    """Estimate one network on several instances.

    Args:
        studies: Studies of the network's loadables, in order, each on the memory of all instances.
        instances: 1 to MAX_INSTANCES.
        split: A key of SPLITS.

    Raises:
        ConfigError: The number or the split is unknown, or a run never ends.
    """
    if not 1 <= instances <= MAX_INSTANCES:
        raise ConfigError(f"instances: must be 1 to {MAX_INSTANCES}, got {instances}")
    if split not in SPLITS:
        raise ConfigError(f"split: must be one of {', '.join(SPLITS)}, got {split}")
    if any(study.schedule.total is None for study in studies):
        raise ConfigError("instances: must share a network that ends, got a deadlock")
    chains = _Chains(studies)
    whole = chains.stage(0, len(chains.names))
    bounds = {"instances": whole.alone / instances, "memory": whole.transfer, "processor": chains.processor}
    bound = max(bounds, key=lambda name: bounds[name])
    stages = [whole] * instances if split == "batch" else chains.stages(instances)
    results = instances if split == "batch" else 1  # in the time of the longest stage
    low, high = bounds[bound], max(whole.alone, bounds[bound]) * 2
    for _ in range(64):
        period = (low + high) / 2
        fits = max(stage.cycles for stage in _next_to_each_other(stages, period * results)) <= period * results
        low, high = (low, period) if fits else (period, high)
    if high > whole.alone:  # one instance alone is faster
        return Splitting(whole.alone, bounds[bound], bound, [whole.contended(0)])
    shared = _next_to_each_other(stages, high * results)
    return Splitting(high, bounds[bound], bound, shared[:1] if split == "batch" else shared)


def _next_to_each_other(stages: Sequence[PipelineStage], time: float) -> list[PipelineStage]:
    """Return the stages if each runs once in a time, which is more than the transfers of all together."""
    transfers = sum(stage.transfer for stage in stages)
    return [stage.contended(min((transfers - stage.transfer) / time, 1 - 1e-12)) for stage in stages]


class _Chains:
    """The chains of operations of a network in the order in which they begin.

    ``ends``: cycles until the chains before each are at their end; ``alone``: cycles of each chain if nothing of it
    overlaps with the one before; ``read`` and ``written``: bytes of the DRAM port.
    """

    def __init__(self, studies: Sequence[Study]) -> None:
        self.names: list[tuple[str, str]] = []
        self.ends = [0]
        self.alone: list[int] = []
        self.read: list[int] = []
        self.written: list[int] = []
        config, memory = studies[0].config, studies[0].memory
        self._both, self._rate = memory.shared, memory.bytes_per_cycle or config.dram_width_bits / 8
        self.processor = 0.0
        for study in studies:
            self._add(study)

    def _add(self, study: Study) -> None:
        begin = self.ends[-1]
        for chain in study.steps:
            spans, estimates = study.schedule.spans, [study.estimates[node.key] for node in chain]
            end = max(self.ends[-1], *(begin + (spans[node.key].end or 0) for node in chain))
            if chain[0].engine == "cpu":
                self.processor += end - self.ends[-1]
            self.alone.append(max(estimates[0].own_cycles or 0, end - self.ends[-1]))
            self.ends.append(end)
            self.names.append((chain[0].label, chain[-1].label))
            self.read.append(sum(entry.read_bytes - entry.cvsram_read_bytes for entry in estimates))
            self.written.append(sum(entry.written_bytes - entry.cvsram_written_bytes for entry in estimates))
        rest = begin + study.schedule.cycles - self.ends[-1]  # the firmware completes the last operation
        self.ends[-1] += rest
        self.alone[-1] += rest

    def stage(self, first: int, after: int) -> PipelineStage:
        """Return consecutive chains as a stage."""
        cycles = self.alone[first] + self.ends[after] - self.ends[first + 1] if first else self.ends[after]
        read, written = sum(self.read[first:after]), sum(self.written[first:after])
        transfer = (read + written if self._both else max(read, written)) / self._rate
        return PipelineStage(self.names[first][0], self.names[after - 1][1], max(cycles, transfer), transfer)

    def stages(self, most: int) -> list[PipelineStage]:
        """Cut the chains into at most ``most`` stages with a short longest one."""
        low, high = max(max(self.alone), self.ends[-1] // most), self.ends[-1] + max(self.alone)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(self._cut(middle)) <= most else (middle + 1, high)
        starts = self._cut(high)
        return [self.stage(*bounds) for bounds in zip(starts, [*starts[1:], len(self.names)], strict=True)]

    def _cut(self, limit: int) -> list[int]:
        """Return the first chain of each stage, where every stage takes the chains that fit into ``limit`` cycles."""
        starts = [0]
        while True:
            first = starts[-1]
            end = limit - self.alone[first] + self.ends[first + 1] if first else limit
            after = max(bisect_right(self.ends, end) - 1, first + 1)
            if after >= len(self.names):
                return starts
            starts.append(after)
