"""Faults in convolutions: CBUF entries, multipliers, partial sums.

CSC feeds the array in atoms (:mod:`nvdla.emulator.hardware.convolution.arithmetic`): multiplier (k, c) takes the
element at place c of each
atom, and the weight of the kernel at place k of the kernel group. So a broken multiplier touches every kernel k,
k + group, ... and every atom that has a place c. The rest of the array is not computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nvdla.emulator.faults.fault import BufferEntry, Effect, Multiplier, PartialSum
from nvdla.emulator.hardware.convolution.arithmetic import DirectDots, DirectIntegers, pad_lines
from nvdla.emulator.hardware.convolution.cbuf import BufferAccess
from nvdla.emulator.hardware.convolution.checks import window_strides
from nvdla.emulator.hardware.convolution.engine import ConvolutionJob
from nvdla.emulator.hardware.job import Handed, Job
from nvdla.emulator.memory.address_space import Move
from nvdla.errors import ConfigError
from nvdla.limits import Work
from nvdla.util.rounding import align, ceil_div

SUM_BITS = {1: 34, 2: 48}
"""Bits of CACC's registers for the partial sums of int8 and int16 (NVIDIA's RTL: NV_NVDLA_CACC_CALC_*)."""


@dataclass(frozen=True)
class ArrayFaults:
    """Faults of one convolution."""

    multipliers: list[tuple[Multiplier, Effect]] = field(default_factory=list)
    sums: list[tuple[PartialSum, Effect]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.multipliers or self.sums)


def array_of(conv: ConvolutionJob) -> DirectDots | DirectIntegers:
    """The arithmetic of a convolution that is done element by element. Raises ConfigError for other modes."""
    arithmetic = conv.arithmetic
    if not isinstance(arithmetic, DirectDots | DirectIntegers):
        mode = "Winograd mode" if conv.settings.winograd else conv.settings.precision
        raise ConfigError(
            f"convolution with faults in the MAC array and CACC: must be direct int8 or int16, got {mode}"
        )
    return arithmetic


def check_multiplier(conv: ConvolutionJob, where: Multiplier) -> None:
    """Raise ConfigError for a multiplier that the array does not have, or a cycle that the convolution does not."""
    array, out = array_of(conv), conv.settings.output
    kernels, channels = array.group, array.config.mac_atomic_c
    if not (-1 <= where.kernel < kernels and 0 <= where.channel < channels):
        raise ConfigError(
            f"multiplier: must be within {kernels} x {channels} of {array.config.name} in this precision, got "
            f"kernel={where.kernel} channel={where.channel}"
        )
    if where.port not in ("product", "data", "weight"):
        raise ConfigError(f"multiplier port={where.port!r}: must be product, data or weight")
    groups, atoms = ceil_div(conv.settings.kernels, kernels), len(array.sequence())
    is_position = 0 <= where.y < out.height and 0 <= where.x < out.width
    every = where.y == where.x == -1
    if not (is_position or every) or not -1 <= where.atom < atoms or not -1 <= where.group < groups or where.length < 1:
        raise ConfigError(
            f"multiplier y={where.y} x={where.x} length={where.length} atom={where.atom} group={where.group}: the "
            f"convolution has {out.height} x {out.width} outputs of {atoms} atoms in {groups} kernel groups"
        )


def sum_bits(conv: ConvolutionJob) -> int:
    """Return how many bits CACC keeps of a partial sum of the convolution."""
    return SUM_BITS[conv.settings.precision.bytes]


def check_sum(conv: ConvolutionJob, place: PartialSum, effect: Effect) -> None:
    """Raise ConfigError for a partial sum that the convolution does not have, FormatError for a bit or value that its
    register does not have."""
    effect.check(sum_bits(conv), f"{place.kind} of {conv.settings.precision}")
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
    """Sums (batches, height, width, kernels) int64, saturated at the width of CACC's registers after each atom."""
    sums = np.zeros((*view.shape[:3], len(kernels)), np.int64)
    sequence = array_of(conv).sequence()
    broken = [
        _Broken(where, effect, _mine(kernels, where, conv), _outputs(view, where))
        for where, effect in faults.multipliers
    ]
    bits, width = 8 * conv.settings.precision.bytes, sum_bits(conv)
    highest = (1 << width - 1) - 1
    for number, atom in enumerate(sequence):
        place = 0
        for row, column, first, end in atom:
            part = view[:, :, :, row, column, first:end].astype(np.float64)
            # 64 products of 16 bits stay below 2^37: exact in float64.
            sums += (part @ weights[:, row, column, first:end].T.astype(np.float64)).astype(np.int64)
            for fault in broken:
                channel = first + fault.where.channel - place
                if fault.where.atom in (-1, number) and first <= channel < end:
                    fault.strike(sums, view, weights, (row, column, channel), bits)
            place += end - first
        np.clip(sums, -highest - 1, highest, out=sums)
        for target, effect in faults.sums:
            if target.atom in (number, number - len(sequence)):
                at = (0, target.y, target.x, int(np.searchsorted(kernels, target.kernel)))
                sums[at] = effect.on(sums[at], width)
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


@dataclass(frozen=True)
class ConvolutionFaults:
    """Faults of one convolution."""

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
    """Return the accesses of a convolution to data and weights in the buffer."""
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
        raise ConfigError("weights with faults in their CBUF entries: must not be compressed")


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
