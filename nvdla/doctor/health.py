"""What every operation wrote over a number of runs: range, histogram, channels, saturation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.compare.observation import Observation
from nvdla.program.naming import Names

HISTOGRAM_BINS = 16
MOST_CHANNELS = 64


@dataclass
class TensorHealth:
    """One operation's output over all runs. Integers are counted value by value, fp16 bit pattern by bit pattern.
    ``zero``: the element that stands for 0."""

    task: int
    index: int
    engine: str
    layer: str | None
    taken_from: tuple[int, ...]
    dtype: np.dtype
    shape: tuple[int, ...]
    zero: int = 0
    runs: int = 0
    counts: np.ndarray | None = field(default=None, repr=False)
    channel_low: np.ndarray | None = field(default=None, repr=False)
    channel_high: np.ndarray | None = field(default=None, repr=False)
    statistics: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, observation: Observation, names: Names) -> TensorHealth:
        """A tensor that nothing is known of yet but what ``names`` say."""
        return cls(
            observation.task,
            observation.index,
            observation.engine,
            observation.layer,
            observation.taken_from,
            observation.dtype,
            observation.tensor.shape,
            names.zero_point(observation.layer) if observation.dtype.kind == "i" else 0,
        )

    def add(self, observation: Observation) -> None:
        """One more run."""
        tensor = observation.tensor
        bits = np.ascontiguousarray(tensor).view(f"u{tensor.itemsize}").reshape(-1)
        counts = np.bincount(bits, minlength=1 << (8 * tensor.itemsize))
        low, high = tensor.min(axis=(0, 2, 3)), tensor.max(axis=(0, 2, 3))
        if self.counts is None or self.channel_low is None or self.channel_high is None:
            self.counts, self.channel_low, self.channel_high = counts, low, high
        else:
            self.counts = self.counts + counts
            self.channel_low = np.minimum(self.channel_low, low)
            self.channel_high = np.maximum(self.channel_high, high)
        self.runs += 1
        for name, value in observation.statistics.items():
            self.statistics[name] = self.statistics.get(name, 0) + value

    @property
    def elements(self) -> int:
        """Elements seen, over all runs."""
        return 0 if self.counts is None else int(self.counts.sum())

    @property
    def per_channel(self) -> int:
        """Elements of a channel over all runs."""
        return self.elements // max(self.shape[1], 1)

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """(values that occur, how often), in ascending order; NaN and infinities of fp16 are left out."""
        counts = np.empty(0, np.int64) if self.counts is None else self.counts
        bits = np.flatnonzero(counts)
        found = bits.astype(f"u{self.dtype.itemsize}").view(self.dtype).astype(np.float64)
        finite = np.isfinite(found)
        order = np.argsort(found[finite], kind="stable")
        return found[finite][order], counts[bits[finite][order]]

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the greatest value of the type."""
        limits = np.iinfo(self.dtype) if self.dtype.kind in "iu" else np.finfo(self.dtype)
        return float(limits.min), float(limits.max)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest value seen; 0 where there was none."""
        values, _ = self.values()
        return (float(values[0]), float(values[-1])) if values.size else (0.0, 0.0)

    def share_of(self, value: float) -> float:
        """The part of the elements that have this value, 0 to 1."""
        values, counts = self.values()
        return float(counts[values == value].sum()) / max(self.elements, 1)

    @property
    def saturated(self) -> float:
        """The share of elements at either end of the type. The lower one is none where it stands for 0: there a ReLU
        ends."""
        low, high = self.limits
        return (self.share_of(low) if low != self.zero else 0.0) + self.share_of(high)

    @property
    def room(self) -> float:
        """Units between the element that stands for 0 and the farther end of the type."""
        low, high = self.limits
        return max(self.zero - low, high - self.zero) if self.zero else high

    @property
    def special(self) -> int:
        """NaN and infinities."""
        _, counts = self.values()
        return self.elements - int(counts.sum())

    @property
    def dead(self) -> list[int]:
        """Channels that were zero everywhere."""
        return [
            int(each) for each in np.flatnonzero((self.channel_low == self.zero) & (self.channel_high == self.zero))
        ]

    @property
    def constant(self) -> list[int]:
        """Channels with one value everywhere that is not zero."""
        same = (self.channel_low == self.channel_high) & (self.channel_low != self.zero)
        return [int(each) for each in np.flatnonzero(same)]

    def histogram(self) -> dict[str, list[float]]:
        """Equally wide bins over the range of the type (integers) or of what occurs (fp16): edges and counts."""
        values, counts = self.values()
        low, high = self.limits if self.dtype.kind in "iu" else self.range
        edges = np.linspace(low, high + (self.dtype.kind in "iu"), HISTOGRAM_BINS + 1)
        if not values.size or low == high:
            return {"edges": [low, high], "counts": [int(counts.sum())]}
        found, _ = np.histogram(values, edges, weights=counts)
        return {"edges": edges.tolist(), "counts": found.astype(int).tolist()}

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        low, high = self.range
        dead, constant = self.dead, self.constant
        return {
            "task": self.task,
            "operation": self.index,
            "engine": self.engine,
            "fused": list(self.taken_from),
            "layer": self.layer,
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "runs": self.runs,
            "min": low,
            "max": high,
            "zero_point": self.zero,
            "zero_share": self.share_of(self.zero),
            "saturated_share": self.saturated,
            "special": self.special,
            "channels": self.shape[1],
            "dead_count": len(dead),
            "dead_channels": dead[:MOST_CHANNELS],
            "constant_count": len(constant),
            "constant_channels": constant[:MOST_CHANNELS],
            "histogram": self.histogram(),
            "statistics": self.statistics,
        }


class Checkup:
    """Collects the health of all operations; give :meth:`see` to an :class:`~nvdla.compare.observation.Observer`."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.tensors: dict[tuple[int, int], TensorHealth] = {}

    def see(self, observation: Observation) -> None:
        """Note an operation's output. What BDMA moves and what stays on the fly has no elements to look at."""
        if observation.surface is None or observation.engine == "bdma":
            return
        key = observation.task, observation.index
        if key not in self.tensors:
            self.tensors[key] = TensorHealth.of(observation, self._names)
        self.tensors[key].add(observation)
