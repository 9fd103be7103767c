"""Cycles of an operation from its shape: the calibrated formulas, one function a unit.

A time counts from the enabling of the operation to its interrupt. On the operations that the formulas were checked
with, errors are 0.1 to 1 % on average; operations of a few hundred cycles at narrow bandwidth are worst. Not measured,
and so unproven: Winograd, batches, compressed weights, 16-bit precisions, BDMA, Rubik, CVSRAM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from nvdla.analysis.cycles.constants import Constants, Memory
from nvdla.rounding import ceil_div

# CDMA: cycles from enabling to the first request's acceptance and from the last data to a filled buffer; from a
# group's room or weights to its first MAC; share of the bus that a lonely stream of data reaches.
FETCH_START, FETCH_RESUME, LATE_WEIGHTS, FIRST_MAC = 52, 18, 82, 24
DEEP_DATA, DEEP_SHARE, SHALLOW_SHARE = 3, 0.8, 0.97
# SDP: cycles that each stage at work adds.
STAGE = 6
# Beyond the data themselves: start and end of an operation that the memory bounds.
FLOOR_SEPARATE, FLOOR_SHARED = 50, 15
CDP_BLOCK = 8


@dataclass(frozen=True)
class ConvolutionShape:
    """A convolution with the SDP behind it.

    ``taps_*``: width, height and channels of a kernel as CSC takes them; ``data_bytes`` and ``weight_bytes`` are what
    CDMA fetches (0 for what is re-used); ``data_atoms`` the channel atoms of a pixel; ``by_line``: stripes end with
    the output line (image input); ``share``: part of the positions that one pass over a tap serves (Winograd: 1/4).
    """

    out_width: int
    out_height: int
    kernels: int
    kernel_width: int
    kernel_height: int
    kernel_channels: int
    data_bytes: int
    weight_bytes: int
    weight_banks: int
    data_atoms: int
    by_line: bool = False
    post_extension: int = 1
    batch: int = 1
    share: int = 1
    element_bytes: int = 1
    sdp: SdpShape | None = None


@dataclass(frozen=True)
class SdpShape:
    """``stages``: how many of X1, X2, Y work; ``uses_y``; bytes of the operands read and of the cube written."""

    width: int
    height: int
    surfaces: int
    stages: int = 0
    uses_y: bool = False
    read_bytes: int = 0
    write_bytes: int = 0
    batch: int = 1


@dataclass(frozen=True)
class PdpShape:
    """``in_width``: with a split width the columns of all parts, common ones counted again. ``late_rows`` and
    ``late_columns``: output rows and columns whose window ends in the padding behind the input, less one."""

    in_width: int
    in_height: int
    out_width: int
    out_height: int
    surfaces: int
    late_rows: int = 0
    late_columns: int = 0
    read_bytes: int = 0
    write_bytes: int = 0


@dataclass(frozen=True)
class CdpShape:
    width: int
    height: int
    surfaces: int


@dataclass(frozen=True)
class Time:
    """Cycles of an operation. ``bound``: what keeps it from being faster.

    Convolutions: ``data_done`` and ``weights_done`` when CDMA has fetched all, ``first_mac``, ``last_mac``.
    """

    total: int
    bound: str
    data_done: int = 0
    weights_done: int = 0
    first_mac: int = 0
    last_mac: int = 0


def memory_floor(read: int, write: int, constants: Constants, memory: Memory) -> float:
    """No operation is faster than its traffic (bytes read and written)."""
    rate = bandwidth(constants, memory)
    if memory.shared:
        return (read + write) / rate + 2 * memory.latency + FLOOR_SHARED
    return max(read, write) / rate + 2 * memory.latency + FLOOR_SEPARATE


def bandwidth(constants: Constants, memory: Memory) -> float:
    """Bytes a cycle in one direction."""
    return constants.bus if memory.bytes_per_cycle is None else min(constants.bus, memory.bytes_per_cycle)


def windows_behind(outputs: int, kernel: int, stride: int, pad_before: int, inputs: int) -> int:
    """Windows that end behind the input, less one: PDP flushes the first of them for free."""
    first = max(ceil_div(inputs + pad_before - kernel + 1, stride), 0)  # first window whose end passes the input
    return max(outputs - first - 1, 0)


def sdp_time(shape: SdpShape, constants: Constants, memory: Memory) -> Time:
    """An SDP operation from memory to memory."""
    atoms = shape.width * shape.height * shape.surfaces * shape.batch
    rate = constants.sdp_y_atom if shape.uses_y else constants.sdp_atom
    work = rate * atoms + 2 * memory.latency + constants.sdp_fixed + STAGE * shape.stages
    return _bounded(work, "SDP", shape.read_bytes, shape.write_bytes, constants, memory)


def pdp_time(shape: PdpShape, constants: Constants, memory: Memory) -> Time:
    """A PDP operation: bound by its input, whatever the kernel's size."""
    steps = shape.in_height * (shape.in_width + shape.late_columns) + shape.late_rows * shape.out_width
    work = constants.pdp_atom * shape.surfaces * steps + 2 * memory.latency + constants.pdp_fixed
    return _bounded(work, "PDP", shape.read_bytes, shape.write_bytes, constants, memory)


def cdp_time(shape: CdpShape, constants: Constants, memory: Memory) -> Time:
    """A CDP operation: a line goes in blocks of 8 columns."""
    atoms = shape.width * shape.height * shape.surfaces
    blocks = shape.height * ceil_div(shape.width, CDP_BLOCK)
    gap = constants.cdp_block_gap + constants.cdp_surface_gap * shape.surfaces
    work = constants.cdp_atom * atoms + blocks * gap + 2 * memory.latency + constants.cdp_fixed
    return _bounded(work, "CDP", atoms * constants.atom, atoms * constants.atom, constants, memory)


def copy_time(read: int, write: int, constants: Constants, memory: Memory) -> Time:
    """BDMA and Rubik move data: as long as the memory takes."""
    return Time(math.ceil(memory_floor(read, write, constants, memory)), "memory")


def convolution_time(shape: ConvolutionShape, constants: Constants, memory: Memory) -> Time:
    """A convolution with its SDP, from the enabling to the SDP's interrupt."""
    groups = _kernel_groups(shape.kernels, constants.kernels)
    lengths = _stripes(shape, constants)
    taps = _taps(shape, constants)
    sdp = constants.sdp_y_atom if shape.sdp and shape.sdp.uses_y else constants.sdp_atom
    per_stripe = [_stripe_time(length, taps, sdp, constants) for length, _ in lengths]
    group_time = sum(time * count for time, (_, count) in zip(per_stripe, lengths, strict=True))
    last = lengths[-1][0]
    # Behind the last stripe no weights are loaded any more, and nothing waits for the SDP.
    saved = per_stripe[-1] - ((taps - 1) * max(last, constants.kernels) + last)
    fetch = _Fetch(shape, groups, taps, constants, memory)
    clock = first_mac = fetch.first_mac()
    for number in range(len(groups)):
        clock = fetch.start_of_group(number, clock) + group_time
    last_mac = clock - saved
    end = constants.conv_fixed + memory.latency + sdp * last + STAGE * (shape.sdp.stages if shape.sdp else 0)
    work = last_mac + end
    written = shape.out_width * shape.out_height * shape.batch * (shape.sdp.surfaces if shape.sdp else 0)
    operands = shape.sdp.read_bytes if shape.sdp else 0
    read = shape.data_bytes + shape.weight_bytes
    floor = memory_floor(read + operands, written * constants.atom, constants, memory)
    bound = "memory" if floor > work else _bound(group_time, taps, lengths, sdp, len(groups), clock, first_mac)
    data_done, weights_done = fetch.all_fetched(last_mac)
    return Time(math.ceil(max(work, floor)), bound, data_done, weights_done, math.ceil(first_mac), math.ceil(last_mac))


def chain_time(times: list[Time], read: int, write: int, constants: Constants, memory: Memory) -> Time:
    """Units that work together on the fly take as long as the slowest, or as what the whole chain reads and writes."""
    longest = max(times, key=lambda time: time.total)
    floor = math.ceil(memory_floor(read, write, constants, memory))
    if floor > longest.total:
        longest = replace(longest, total=floor, bound="memory")
    first = times[0]
    return replace(
        longest,
        data_done=first.data_done,
        weights_done=first.weights_done,
        first_mac=first.first_mac,
        last_mac=first.last_mac,
    )


def mac_cycles(shape: ConvolutionShape, constants: Constants) -> int:
    """Cycles that the MAC array computes, were nothing else in its way."""
    positions = ceil_div(shape.out_width * shape.out_height * shape.batch, shape.share)
    return positions * _taps(shape, constants) * ceil_div(shape.kernels, constants.kernels)


def _bounded(work: float, unit: str, read: int, write: int, constants: Constants, memory: Memory) -> Time:
    floor = memory_floor(read, write, constants, memory)
    return Time(math.ceil(max(work, floor)), "memory" if floor > work else unit)


def _taps(shape: ConvolutionShape, constants: Constants) -> int:
    rows = ceil_div(shape.kernel_height, shape.post_extension)
    return shape.kernel_width * rows * ceil_div(shape.kernel_channels, constants.channels)


def _kernel_groups(kernels: int, at_a_time: int) -> list[int]:
    full, rest = divmod(kernels, at_a_time)
    return [at_a_time] * full + [rest] * (rest > 0)


def _stripes(shape: ConvolutionShape, constants: Constants) -> list[tuple[int, int]]:
    """(length, how many) of the stripes that the output positions are cut into, in order.

    Stripes hold twice as many positions as the array has kernels; a short rest takes half a stripe from its neighbour.
    """
    whole = shape.out_width if shape.by_line else shape.out_width * shape.out_height
    lines = shape.out_height if shape.by_line else 1
    whole = ceil_div(whole, shape.share)
    short = constants.kernels
    full, rest = divmod(whole, 2 * short)
    if rest == 0:
        pieces = [(2 * short, full)]
    elif rest <= short and full:
        pieces = [(2 * short, full - 1), (short, 1), (short + rest, 1)]
    else:
        pieces = [(2 * short, full), (rest, 1)]
    return [(length, count * lines * shape.batch) for length, count in pieces if count]


def _stripe_time(length: int, taps: int, sdp: float, constants: Constants) -> float:
    """A tap takes as long as the loading of the next weights at least, a stripe as long as the SDP takes it."""
    return max(taps * max(length, constants.kernels), sdp * length + constants.stripe_gap)


def _bound(
    group_time: float,
    taps: int,
    lengths: list[tuple[int, int]],
    sdp: float,
    groups: int,
    clock: float,
    first_mac: float,
) -> str:
    """What most of a convolution's time goes to."""
    waited = clock - first_mac - groups * group_time
    if max(first_mac, waited) > groups * group_time:
        return "weights" if waited > first_mac else "fetch"
    macs = sum(taps * length * count for length, count in lengths)
    if group_time <= macs * 1.05:
        return "MAC"
    return "SDP" if sdp * lengths[0][0] > taps * lengths[0][0] else "weight loading"


class _Fetch:
    """CDMA: when data and weights are in the convolution buffer.

    Both streams share the port half and half until one ends. Alone, data of many channel atoms keep the bus less busy.
    """

    def __init__(
        self, shape: ConvolutionShape, groups: list[int], taps: int, constants: Constants, memory: Memory
    ) -> None:
        self.shape, self.constants, self.memory = shape, constants, memory
        self.rate = bandwidth(constants, memory)
        self.room = shape.weight_banks * constants.bank
        self.groups = groups
        self.per_kernel = shape.weight_bytes / shape.kernels
        self.weights = [count * self.per_kernel for count in groups] if shape.weight_bytes else [0.0] * len(groups)
        self.arrived = 0.0

    def first_mac(self) -> float:
        """The MACs begin with the whole cube and the first group's weights in the buffer."""
        return max(self._data_in(), self._first_weights_in()) + self.groups[0] + FIRST_MAC

    def start_of_group(self, number: int, clock: float) -> float:
        """When a group can begin that the array is ready for at ``clock``."""
        self.arrived += self.weights[number]
        if not number or not self.shape.weight_bytes:
            return clock
        if self.shape.weight_bytes > self.room:
            missing = self.weights[number - 1] + self.weights[number] - self.room
            if missing > 0:
                clock += self.memory.latency + FETCH_RESUME + missing / self.rate
        streams = self.arrived + min(self.arrived, self.shape.data_bytes)
        return max(clock, self.memory.latency + LATE_WEIGHTS + streams / self.rate)

    def all_fetched(self, last_mac: float) -> tuple[int, int]:
        """When CDMA is done with data and with weights (those that do not fit come while the array works)."""
        weights = self.shape.weight_bytes
        streams = weights + min(weights, self.shape.data_bytes)
        weights_in = self.memory.latency + FETCH_START + streams / self.rate if weights else 0.0
        if weights > self.room and self.groups:
            weights_in = max(weights_in, last_mac * (len(self.groups) - 1) / len(self.groups))
        return math.ceil(self._data_in()), math.ceil(min(weights_in, last_mac))

    def _data_in(self) -> float:
        data = self.shape.data_bytes
        if not data:
            return 0.0
        share = DEEP_SHARE if self.shape.data_atoms >= DEEP_DATA else SHALLOW_SHARE
        both = min(data, self.shape.weight_bytes, self.room)
        alone = max(data - both, 0) / min(self.rate, share * self.constants.bus)
        return self.memory.latency + FETCH_START + 2 * both / self.rate + alone

    def _first_weights_in(self) -> float:
        """At first only what the first group multiplies with must be there, not what pads it."""
        shape = self.shape
        kernel = shape.kernel_width * shape.kernel_height * shape.kernel_channels * shape.element_bytes
        first = min(shape.weight_bytes, self.constants.kernels * max(self.per_kernel, 0), self.groups[0] * kernel)
        if not first:
            return 0.0
        both = min(first, shape.data_bytes)
        return self.memory.latency + FETCH_START + (first + both) / self.rate
