"""The MAC array and CACC with something broken: a convolution output by output, MAC atom by MAC atom.

CSC feeds the array in atoms (:mod:`nvdla.hardware.sequence`): multiplier (k, c) takes the element at place c of each
atom, and the weight of the kernel at place k of the kernel group. So a broken multiplier touches every kernel k,
k + group, ... and every atom that has a place c. The rest of the array is not computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nvdla.errors import ConfigError
from nvdla.faults.effects import Effect
from nvdla.faults.places import Multiplier, PartialSum
from nvdla.hardware.convolution.arithmetic import DirectDots, DirectIntegers, pad_lines
from nvdla.hardware.convolution.engine import ConvolutionJob
from nvdla.hardware.convolution.settings import window_strides
from nvdla.rounding import ceil_div

HIGHEST = (1 << 47) - 1


@dataclass(frozen=True)
class ArrayFaults:
    """What is broken during one convolution."""

    multipliers: list[tuple[Multiplier, Effect]] = field(default_factory=list)
    sums: list[tuple[PartialSum, Effect]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.multipliers or self.sums)


def array_of(conv: ConvolutionJob) -> DirectDots | DirectIntegers:
    """The arithmetic of a convolution that is done element by element. Raises ConfigError for other modes."""
    arithmetic = conv.arithmetic
    if not isinstance(arithmetic, DirectDots | DirectIntegers):
        mode = "Winograd mode" if conv.settings.winograd else conv.settings.precision.title
        raise ConfigError(f"faults in the MAC array and CACC are for direct int8 and int16 convolutions, not {mode}")
    return arithmetic


def check_multiplier(conv: ConvolutionJob, where: Multiplier) -> None:
    """Raise ConfigError for a multiplier that the array does not have, or a cycle that the convolution does not."""
    array, out = array_of(conv), conv.settings.output
    kernels, channels = array.group, array.config.mac_atomic_c
    if not (-1 <= where.kernel < kernels and 0 <= where.channel < channels):
        raise ConfigError(
            f"multiplier kernel={where.kernel} channel={where.channel}: {array.config.name} has {kernels} x "
            f"{channels} of them in this precision"
        )
    if where.port not in ("product", "data", "weight"):
        raise ConfigError(f"multiplier port={where.port!r}: must be product, data or weight")
    groups, atoms = ceil_div(conv.settings.kernels, kernels), len(array.sequence())
    one = 0 <= where.y < out.height and 0 <= where.x < out.width
    every = where.y == where.x == -1
    if not (one or every) or not -1 <= where.atom < atoms or not -1 <= where.group < groups or where.length < 1:
        raise ConfigError(
            f"multiplier y={where.y} x={where.x} length={where.length} atom={where.atom} group={where.group}: the "
            f"convolution has {out.height} x {out.width} outputs of {atoms} atoms in {groups} kernel groups"
        )


def check_sum(conv: ConvolutionJob, place: PartialSum) -> None:
    """Raise ConfigError for a partial sum that the convolution does not have."""
    out, atoms = conv.settings.output, len(array_of(conv).sequence())
    limits = ((place.kernel, conv.settings.kernels), (place.y, out.height), (place.x, out.width))
    if not all(0 <= value < limit for value, limit in limits) or not -1 <= place.atom < atoms:
        raise ConfigError(
            f"partial sum kernel={place.kernel} y={place.y} x={place.x} atom={place.atom}: the convolution has "
            f"{conv.settings.kernels} kernels, {out.height} x {out.width} outputs of {atoms} atoms"
        )


def accumulators_with(
    conv: ConvolutionJob, lines: np.ndarray, elements: np.ndarray, healthy: np.ndarray, faults: ArrayFaults
) -> np.ndarray:
    """CACC's delivery (batches, surfaces, height, width, atom) int32 with faults; ``healthy`` is that without them."""
    from nvdla.kernels import conv as kernels_of

    weights = array_of(conv).unpack(elements)
    touched = _touched(conv, faults)
    if not touched.size:
        return healthy
    padded = pad_lines(lines, conv.settings)
    window = kernels_of.ConvolutionWindow(**window_strides(conv.settings))
    view = kernels_of.windows(padded, window, weights.shape[1:])
    sums = _sums(view, weights[touched], touched, conv, faults)
    atom = healthy.shape[4]
    out = np.empty((healthy.shape[0], touched.size, *healthy.shape[2:4], 1), np.int32)
    kernels_of.deliver(sums, conv.settings.truncate, out)
    result = healthy.copy()
    for number, kernel in enumerate(touched):
        result[:, kernel // atom, :, :, kernel % atom] = out[:, number, :, :, 0]
    return result


def _touched(conv: ConvolutionJob, faults: ArrayFaults) -> np.ndarray:
    """Kernels that any fault can reach."""
    kernels = np.arange(conv.settings.kernels)
    reached = {int(kernel) for where, _ in faults.multipliers for kernel in kernels[_mine(kernels, where, conv)]}
    return np.array(sorted(reached | {place.kernel for place, _ in faults.sums}), np.int64)


def _mine(kernels: np.ndarray, where: Multiplier, conv: ConvolutionJob) -> np.ndarray:
    """Which of the kernels a multiplier works on."""
    group = array_of(conv).group
    cells = np.ones(len(kernels), bool) if where.kernel < 0 else kernels % group == where.kernel
    return np.flatnonzero(cells if where.group < 0 else cells & (kernels // group == where.group))


def _sums(
    view: np.ndarray, weights: np.ndarray, kernels: np.ndarray, conv: ConvolutionJob, faults: ArrayFaults
) -> np.ndarray:
    """Sums (batches, height, width, kernels) int64, saturated at 48 bits after each atom as CACC does."""
    sums = np.zeros((*view.shape[:3], len(kernels)), np.int64)
    sequence = array_of(conv).sequence()
    broken = [
        _Broken(where, effect, _mine(kernels, where, conv), _outputs(view, where))
        for where, effect in faults.multipliers
    ]
    bits = 8 * conv.settings.precision.bytes
    for number, atom in enumerate(sequence):
        place = 0
        for row, column, first, end in atom:
            part = view[:, :, :, row, column, first:end].astype(np.float64)
            # 64 products of 16 bits stay below 2^37: exact in float64.
            sums += (part @ weights[:, row, column, first:end].T.astype(np.float64)).astype(np.int64)
            for each in broken:
                channel = first + each.where.channel - place
                if each.where.atom in (-1, number) and first <= channel < end:
                    each.strike(sums, view, weights, (row, column, channel), bits)
            place += end - first
        np.clip(sums, -HIGHEST - 1, HIGHEST, out=sums)
        for target, effect in faults.sums:
            if target.atom in (number, number - len(sequence)):
                at = (0, target.y, target.x, int(np.searchsorted(kernels, target.kernel)))
                sums[at] = effect.on(sums[at], target.bits)
    return sums


def _outputs(view: np.ndarray, where: Multiplier) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the outputs at which a multiplier is struck."""
    height, width = view.shape[1:3]
    first, count = (0, height * width) if where.y < 0 else (where.y * width + where.x, where.length)
    return np.unravel_index(np.arange(first, min(first + count, height * width)), (height, width))  # type: ignore[return-value]


@dataclass(frozen=True)
class _Broken:
    """A broken multiplier: ``kernels`` that it works on, by position, and ``outputs`` at which it is struck."""

    where: Multiplier
    effect: Effect
    kernels: np.ndarray
    outputs: tuple[np.ndarray, np.ndarray]

    def strike(
        self, sums: np.ndarray, view: np.ndarray, weights: np.ndarray, element: tuple[int, int, int], bits: int
    ) -> None:
        """Take the true products of an element of the window out of the sums and put the faulty ones in."""
        (rows, columns), (row, column, channel) = self.outputs, element
        data = view[slice(None), rows, columns, row, column, channel].astype(np.int64)[..., None]
        factor = weights[self.kernels, row, column, channel].astype(np.int64)
        true = data * factor
        if self.where.port == "product":
            false = self.effect.on(true, 2 * bits)
        elif self.where.port == "data":
            false = self.effect.on(data, bits) * factor
        else:
            false = data * self.effect.on(factor, bits)
        sums[:, rows[:, None], columns[:, None], self.kernels] += false - true
