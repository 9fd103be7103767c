"""Quantization of networks: groups of layers, activation statistics, scales.

A histogram counts magnitudes in bins of a width that is a power of two; when a larger magnitude comes, the bins are
merged two by two. So the counts depend neither on the order of the samples nor on how they are divided into batches.

A tensor of scale ``s`` holds the real number ``s * q`` in the element ``q``, as NVIDIA's compiler and its calibration
tables have it; where a tensor has a zero point ``z`` (:mod:`nvdla.compiler.builder.lower.elementwise`), ``s * (q -
z)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from nvdla.compiler.builder import floating
from nvdla.compiler.builder.network import Network
from nvdla.compiler.builder.quantization import Calibration
from nvdla.errors import BuildError
from nvdla.kernels.integers import count_magnitudes, measure_planes
from nvdla.util.arguments import by_annotations

BINS = 4096
METHODS = ("max", "percentile", "entropy", "mse")
# A limit that cuts something off must make the squared error smaller by this. What is rare in the samples (the one face
# in a picture) weighs little in the mean, and everything in the result.
WORTH_CUTTING = 2.0
# Largest squared error of a cut by entropy, relative to the least one of all cuts.
MOST_ERROR = 2.0
# A channel that only one sample has at all tells nothing about the next sample.
_MOST_HEADROOM = 4.0


class Histogram:
    """Counts of magnitudes: ``counts[i]`` of those in ``i * width .. (i + 1) * width``; exact zeros apart."""

    def __init__(self) -> None:
        self.counts = np.zeros(BINS, np.int64)
        self.zeros = 0
        self.width = 0.0
        self.peak = 0.0

    def add(self, values: np.ndarray, peak: float) -> None:
        """Count magnitudes; ``peak`` is their largest."""
        if peak == 0:
            self.zeros += values.size
            return
        self._reach(peak)
        # A power of two divides exactly, so that float32 and float64 give the same bin.
        self.zeros += count_magnitudes(np.ascontiguousarray(values).reshape(-1), 1.0 / self.width, self.counts)

    def _reach(self, peak: float) -> None:
        """Make the bins wide enough for ``peak``."""
        self.peak = max(self.peak, peak)
        wanted = 2.0 ** (int(np.ceil(np.log2(peak))) - BINS.bit_length() + 1)
        if self.width == 0.0:
            self.width = wanted
        while self.width < wanted:
            self.counts = np.concatenate((self.counts.reshape(-1, 2).sum(axis=1), np.zeros(BINS // 2, np.int64)))
            self.width *= 2

    @property
    def used(self) -> int:
        """Bins up to the one of the largest magnitude."""
        return int(np.flatnonzero(self.counts)[-1]) + 1 if np.any(self.counts) else 0

    def edge(self, bins: int) -> float:
        """The upper edge of so many bins, at most the largest magnitude."""
        return min(bins * self.width, self.peak)


def percentile_limit(histogram: Histogram, percentile: float) -> float:
    """Return the magnitude that exceeds that share of all elements, zeros included; at least one bin."""
    below = histogram.zeros + np.cumsum(histogram.counts)
    wanted = percentile / 100 * below[-1]
    index = int(np.searchsorted(below, wanted))
    if wanted <= histogram.zeros:
        return histogram.width
    inside = 1.0 - (below[index] - wanted) / histogram.counts[index]
    return min((index + inside) * histogram.width, histogram.peak)


def entropy_limit(histogram: Histogram, largest: int) -> float:
    """The magnitude at which to saturate so that the Kullback-Leibler divergence is least.

    Candidates are the upper edges of the bins; the reference has the tail folded into its last bin, the candidate has
    ``largest + 1`` levels. A cut is left out where its squared error is more than ``MOST_ERROR`` times the least one:
    both distributions lose the tail, so the divergence alone does not show how far off saturated elements are.
    """
    counts = histogram.counts[: histogram.used].astype(np.float64)
    width = histogram.width
    # As many bins as calibration tools use; finer ones hold too few counts to compare.
    if len(counts) > BINS // 2:
        counts = np.append(counts, np.zeros(len(counts) % 2)).reshape(-1, 2).sum(axis=1)
        width *= 2
    if largest >= len(counts):
        return histogram.peak
    # Zeros are exact at every scale, but they belong to the distribution.
    counts[0] += histogram.zeros
    best, limit = np.inf, histogram.peak
    errors = _squared_errors(counts, np.minimum(np.arange(1, len(counts) + 1) * width, histogram.peak), width, largest)
    for bins in range(largest + 1, len(counts) + 1, 16):
        if errors[bins - 1] > MOST_ERROR * errors.min():
            continue
        divergence = _divergence(counts, bins, largest + 1)
        if divergence < best:
            best, limit = divergence, min(bins * width, histogram.peak)
    return limit


def _divergence(histogram: np.ndarray, bins: int, levels: int) -> float:
    reference = histogram[:bins].copy()
    candidate = reference.copy()
    reference[-1] += histogram[bins:].sum()
    owner = np.arange(bins) * levels // bins
    filled = candidate > 0
    sums = np.bincount(owner, candidate, levels)
    counts = np.bincount(owner, filled, levels)
    spread = np.where(filled, (sums / np.maximum(counts, 1))[owner], 0.0)
    if spread.sum() == 0 or reference.sum() == 0:
        return np.inf
    p, q = reference / reference.sum(), spread / spread.sum()
    used = p > 0
    return float(np.sum(p[used] * np.log(p[used] / np.maximum(q[used], 1e-12))))


def _squared_errors(counts: np.ndarray, edges: np.ndarray, width: float, largest: int) -> np.ndarray:
    """Sum of the squared errors of all elements with saturation at each edge."""
    middles = (np.arange(len(counts)) + 0.5) * width
    beyond = [total[-1] - total for total in (np.cumsum(counts * middles**power) for power in (0, 1, 2))]
    clipped = beyond[2] - 2 * edges * beyond[1] + edges**2 * beyond[0]
    errors: np.ndarray = np.cumsum(counts) * (edges / largest) ** 2 / 12 + clipped
    return errors


def mse_limit(histogram: Histogram, largest: int) -> float:
    """The magnitude at which to saturate so that the mean squared error is least.

    Elements within the limit are wrong by a twelfth of a squared unit, those beyond by their distance from it. Nothing
    is cut off where the error of the largest magnitude is less than ``WORTH_CUTTING`` times as large.
    """
    used = histogram.used
    counts = histogram.counts[:used].astype(np.float64)
    edges = np.minimum(np.arange(1, used + 1) * histogram.width, histogram.peak)
    errors = _squared_errors(counts, edges, histogram.width, largest)
    return float(edges[np.argmin(errors)] if errors.min() * WORTH_CUTTING < errors[-1] else edges[-1])


#: numbers beyond it are infinite where they leave a part: as float32
_LARGEST = float(np.finfo(np.float32).max)


class NotFiniteError(BuildError):
    """The float network gives NaN or infinity in ``layers``, in the network's order."""

    def __init__(self, layers: list[str]) -> None:
        super().__init__(
            "the float network gives NaN or infinity on the calibration data. Check the data and the weights.",
            layer=layers[0],
        )
        self.layers = layers


class Statistics:
    """Peaks and means a channel and (on demand) histograms of tensors by name."""

    def __init__(self, histograms: bool = True) -> None:
        self.histograms: dict[str, Histogram] = {}
        self._with_histograms = histograms
        self._sums: dict[str, np.ndarray] = {}
        self._counts: dict[str, int] = {}
        self._ends: dict[str, tuple[float, float]] = {}
        self._samples = 0
        self._ranks: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def update(self, values: Mapping[str, np.ndarray]) -> None:
        """Take in some samples: arrays (N, C, H, W) by name. Raises NotFiniteError for NaN and infinities (of
        float32)."""
        unbounded = []
        for name, array in values.items():
            planes = np.ascontiguousarray(array).reshape(1, array.shape[0] * array.shape[1], -1)
            ends: np.ndarray = np.zeros((3, *array.shape[:2]))
            lows, highs, sums = ends
            measure_planes(planes, lows.reshape(-1), highs.reshape(-1), sums.reshape(-1))
            peaks = np.maximum(-lows, highs)
            if not np.all(np.isfinite(sums)) or peaks.max() > _LARGEST:
                unbounded.append(name)
                continue
            self._rank(name, peaks)
            low, high = self._ends.get(name, (0.0, 0.0))
            self._ends[name] = min(low, float(lows.min())), max(high, float(highs.max()))
            self._sums[name] = self._sums.get(name, 0.0) + sums.sum(axis=0)
            self._counts[name] = self._counts.get(name, 0) + len(array) * planes.shape[2]
            if self._with_histograms:
                self.histograms.setdefault(name, Histogram()).add(planes, float(peaks.max()))
        self._samples += max(map(len, values.values()), default=0)
        if unbounded:
            raise NotFiniteError(unbounded)

    def _rank(self, name: str, peaks: np.ndarray) -> None:
        """The largest and second largest magnitude of every channel, and which sample has the largest; of samples
        (N, C)."""
        nothing = np.zeros(peaks.shape[1])
        first, second, holder = self._ranks.get(name, (nothing, nothing, nothing - 1))
        ranked = np.concatenate((first[None], second[None], peaks))
        best = np.argmax(ranked, axis=0)
        holder = np.where(best > 0, self._samples + best, holder)
        self._ranks[name] = ranked.max(axis=0), np.partition(ranked, -2, axis=0)[-2], holder

    def __contains__(self, name: str) -> bool:
        return name in self._ranks

    def __bool__(self) -> bool:
        return bool(self._ranks)

    @property
    def peaks(self) -> Mapping[str, np.ndarray]:
        """The largest magnitude of every channel, (C,)."""
        return {name: first for name, (first, _, _) in self._ranks.items()}

    @property
    def ends(self) -> Mapping[str, tuple[float, float]]:
        """The lowest number of each tensor, at most 0, and the highest, at least 0."""
        return self._ends

    @property
    def means(self) -> Mapping[str, np.ndarray]:
        """The mean of every channel, (C,)."""
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    def headroom(self) -> dict[str, float]:
        """By how much a sample that was not looked at goes beyond what the others had, tensor by tensor, at least 1.

        Each sample in turn is left out: where it has the largest magnitude of a channel, the range from the others
        would have been smaller. Of the channels of one sample that is the 99th percentile, of the samples the mean. So
        it is large for few samples and near 1 for many.
        """
        return {name: self._headroom(name) for name in self._ranks}

    def _headroom(self, name: str) -> float:
        first, second, holder = self._ranks[name]
        largest = float(first.max())
        if self._samples < 2 or largest == 0:
            return 1.0
        beyond = np.minimum(first / np.maximum(second, 1e-30), _MOST_HEADROOM) * first / largest
        holders = np.unique(holder)[:, None]
        factors = np.percentile(np.where(holder == holders, beyond, 1.0), 99, axis=1)
        # Samples that have no channel's largest magnitude stay within the range of the others.
        return float(np.sum(np.maximum(factors, 1.0)) + self._samples - len(factors)) / self._samples

    def magnitudes(self, method: str, percentile: float, largest: int) -> dict[str, float]:
        """The largest magnitude that each tensor is meant to hold. A tensor that is zero in all samples tells nothing
        about its range and gets 1."""
        if method == "max":
            return {name: float(peaks.max()) or 1.0 for name, peaks in self.peaks.items()}
        pick: Callable[[Histogram], float] = {
            "percentile": lambda histogram: percentile_limit(histogram, percentile),
            "entropy": lambda histogram: entropy_limit(histogram, largest),
            "mse": lambda histogram: mse_limit(histogram, largest),
        }[method]
        return {name: pick(histogram) if histogram.peak > 0 else 1.0 for name, histogram in self.histograms.items()}


def gather(batches: Iterable[Mapping[str, np.ndarray]], *takers: Any) -> None:
    """Give every batch to all takers (:class:`Statistics` and others with ``update``)."""
    for values in batches:
        for taker in takers:
            taker.update(values)


def check_method(method: str, percentile: float) -> None:
    """Raises BuildError for a method that does not exist and a percentile out of range."""
    if method not in METHODS:
        raise BuildError(f"calibration method: must be one of {', '.join(METHODS)}, got {method!r}")
    if not 0 < percentile <= 100:
        raise BuildError(f"percentile: must be above 0 and at most 100, got {percentile}")


@by_annotations
def calibrate(
    network: Network,
    samples: Iterable[Mapping[str, np.ndarray] | np.ndarray] | np.ndarray,
    method: str = "max",
    percentile: float = 99.99,
    levels: int = 128,
) -> Calibration:
    """Return the magnitude of every tensor, measured on sample inputs.

    Args:
        network: The network.
        samples: One batch (N, C, H, W), or several batches; each may be a mapping by input name.
        method: "max": largest magnitude. "percentile": covers that share of the magnitudes. "entropy": the cut at which
            the histogram quantized to ``levels`` keeps most information. "mse": the cut with the least mean squared
            error.
        percentile: Share of the magnitudes in percent.
        levels: Number of quantization levels.

    Raises:
        BuildError: The samples are empty, or contain NaN or infinities.
    """
    check_method(method, percentile)
    statistics = Statistics(histograms=method != "max")
    for batch in [samples] if isinstance(samples, np.ndarray | Mapping) else samples:
        statistics.update(floating.run(network, batch))
    if not statistics:
        raise BuildError(f"network {network.name}: calibration data: must have at least one input, got none")
    return Calibration(statistics.magnitudes(method, percentile, levels - 1))
