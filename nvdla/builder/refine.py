"""The whole way from a float network and its activations to scales and weights for integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from nvdla.argument_kinds import by_annotations
from nvdla.builder.equalise import equalise, fold
from nvdla.builder.layer_types import layer_type
from nvdla.builder.lower.zero_points import worth
from nvdla.builder.network import Network
from nvdla.builder.quantize import LARGEST, Calibration
from nvdla.builder.rounding import Patches, adapt
from nvdla.builder.statistics import Statistics, check_method, gather
from nvdla.errors import BuildError

# Samples that the sizes of channels are taken from: they need not be exact.
PEAK_SAMPLES = 32
# Methods that leave outputs whole: who names another wants what it does.
_WHOLE_OUTPUTS = ("max", "mse")
Batches = Callable[[], Iterable[Mapping[str, np.ndarray]]]


@dataclass(frozen=True)
class Recipe:
    """What is done to a network before it is built in integers.

    ``method``: where tensors saturate ("max", "percentile", "entropy", "mse"). ``equalise``: channels of one tensor are
    brought to like magnitudes. ``bias_correction`` and ``adaptive_rounding``: int8 weights are chosen for the results
    that they give. ``per_channel``: one weight scale a kernel; pass the same to :func:`nvdla.builder.build`.
    ``zero_points``: int8 tensors that are never far below 0 use all 256 elements. ``headroom``: ranges are larger by
    what samples are expected to bring that were not looked at (:meth:`nvdla.builder.statistics.Statistics.headroom`).
    """

    method: str = "mse"
    percentile: float = 99.99
    equalise: bool = True
    bias_correction: bool = True
    adaptive_rounding: bool = False
    per_channel: bool = True
    zero_points: bool = True
    headroom: bool = True


@dataclass(frozen=True)
class Refined:
    """A network that gives the same results in floats (but for adaptively rounded weights) and its calibration.

    ``factors``: by what the channels of a tensor, (C,), were divided against the network given.
    """

    network: Network
    calibration: Calibration
    factors: Mapping[str, np.ndarray] = field(default_factory=dict)


@by_annotations
def refine(
    network: Network,
    batches: Batches,
    recipe: Recipe | None = None,
    precision: str = "int8",
    held: Set[str] = frozenset(),
) -> Refined:
    """Calibrate and improve a network for "int8" or "int16".

    ``batches()`` gives the float values of tensors, arrays (N, C, H, W) by name of layer, for one batch of samples
    after the other; at least those of the inputs and of the last layer of every group (nvdla.builder.groups). It is
    called once, or twice where tensors are equalised (the first time 32 batches are enough). ``held``: tensors whose
    channels equalisation leaves alone.
    """
    recipe = recipe or Recipe()
    check_method(recipe.method, recipe.percentile)
    int8 = precision == "int8"
    folded = fold(network)
    factors: Mapping[str, np.ndarray] = {}
    peaks = Statistics(histograms=False)
    if recipe.equalise:
        gather(islice(batches(), PEAK_SAMPLES), peaks)
        folded, factors = equalise(network, peaks.peaks, recipe.per_channel, held)
    patches = Patches(folded) if int8 and recipe.adaptive_rounding else None
    statistics = Statistics(histograms=recipe.method != "max")
    gather(divided(batches(), factors), statistics, *([patches] if patches else []))
    if not statistics:
        raise BuildError(f"network {network.name}: no calibration data; give at least one input")
    magnitudes = statistics.magnitudes(recipe.method, recipe.percentile, LARGEST[precision])
    room = statistics.headroom() if recipe.headroom else dict.fromkeys(magnitudes, 1.0)
    magnitudes = {name: magnitude * room[name] for name, magnitude in magnitudes.items()}
    points = int8 and recipe.zero_points
    ranges = _of_outputs(folded, statistics, room) if recipe.method in _WHOLE_OUTPUTS else {}
    magnitudes |= {name: max(-low, high) or 1.0 for name, (low, high) in ranges.items()}
    ranges = {name: ends for name, ends in ranges.items() if points and worth(*ends)}
    result = folded
    scales: Mapping[str, np.ndarray] = {}
    if patches is not None:
        rounded = adapt(folded, patches, Calibration(magnitudes, zero_points=points), recipe.per_channel)
        result, scales = rounded.network, rounded.weight_scales
    means: Mapping[str, np.ndarray] = statistics.means if recipe.bias_correction else {}
    return Refined(result, Calibration(magnitudes, scales, means, zero_points=points, ranges=ranges), factors)


def _of_outputs(network: Network, statistics: Statistics, room: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """(lowest, highest) number of outputs, which are not cut off: in them the extremes are what was found.

    The results of a sigmoid and the like are known whatever the samples give. An output that is an input is a copy of
    it, with its scale.
    """
    found = {}
    made = [each for each in network.outputs if each not in network.inputs]
    for tensor in (each for each in made if each.name in statistics):
        bounds = layer_type(tensor.producer.kind).bounds(tensor.producer, np.inf)
        known = np.all(np.isfinite(bounds))
        (low, high), ends = bounds, statistics.ends[tensor.name]
        if known:
            low, high = min(low, ends[0]), max(high, ends[1])
        else:
            low, high = np.clip(np.multiply(ends, room[tensor.name]), *bounds)
        found[tensor.name] = min(float(low), 0.0), max(float(high), 0.0)
    return found


def divided(
    batches: Iterable[Mapping[str, np.ndarray]], factors: Mapping[str, np.ndarray]
) -> Iterator[Mapping[str, np.ndarray]]:
    """The values that the equalised network has."""
    for values in batches:
        yield {
            name: array / factors[name].astype(array.dtype)[:, None, None] if name in factors else array
            for name, array in values.items()
        }
