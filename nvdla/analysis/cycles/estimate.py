"""Cycle estimates of operations, and of operations in a queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import Structure
from dataclasses import dataclass

from nvdla.analysis.cycles.constants import (
    CdpShape,
    ChainShape,
    ConvolutionShape,
    CopyShape,
    CycleConstants,
    Memory,
    PdpShape,
    SdpShape,
    Software,
    constants,
    flushed_windows,
    loading_cycles,
    mac_cycles,
)
from nvdla.analysis.cycles.hardware import Hardware, Run
from nvdla.analysis.cycles.schedule import ChainWork, schedule
from nvdla.analysis.cycles.simulation import whole_cycles
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import ConfigError
from nvdla.loadable.descriptors.enums import ConvMode, DataFormat, MemType, SdpMode, SdpType
from nvdla.loadable.descriptors.meaning import processing_precision
from nvdla.loadable.descriptors.structures import SdpOp, SdpStage
from nvdla.program.accesses import STAGES, Access
from nvdla.program.operation import Key, Operation
from nvdla.program.program import chains
from nvdla.util.escaping import Document
from nvdla.util.rounding import align, ceil_div

WEIGHT_ROLES = ("weights", "wmb", "wgs")
WINOGRAD_SHARE = 4  # a pass over a tap serves a tile of 2 x 2 outputs


# Time beyond the unit's own work (in cycles) from which an operation counts as memory-bound.
MEMORY_BOUND = 16
FULL_USE = 1.05


@dataclass(frozen=True)
class Time:
    """Cycles of a chain. ``bound``: the limiting resource.

    Convolutions: ``data_done`` and ``weights_done`` when CDMA has fetched all, ``first_mac``, ``last_mac``.
    """

    total: int
    bound: str
    data_done: int = 0
    weights_done: int = 0
    first_mac: int = 0
    last_mac: int = 0


def chain_time(chain: ChainShape, constants: CycleConstants, memory: Memory) -> Time:
    """The chain alone on idle units."""
    hardware = Hardware(constants, memory)
    run = hardware.start(chain, constants)
    hardware.simulation.run()
    total = whole_cycles(run.done.time or 0.0)
    if not chain.conv:
        return Time(total, _bound(chain, run, constants, memory))
    return Time(
        total,
        _convolution_bound(chain.conv, run, constants),
        data_done=math.ceil(run.data_in.time or 0.0),
        weights_done=math.ceil(run.weights_in.time or 0.0),
        first_mac=math.ceil(run.first_mac),
        last_mac=math.ceil(run.last_mac),
    )


def _bound(chain: ChainShape, run: Run, constants: CycleConstants, memory: Memory) -> str:
    if chain.copy:
        return "memory"
    unit = "PDP" if chain.pdp else "SDP" if chain.sdp else "CDP"
    return "memory" if run.slowed > MEMORY_BOUND else unit


def _convolution_bound(shape: ConvolutionShape, run: Run, constants: CycleConstants) -> str:
    """Return the use that takes most of a convolution's time.

    A transfer for which the MAC array waits takes the whole time between two kernel groups, also while the array works.
    This counts where the waits are longer than the work of the array that no such transfer covers.
    """
    parts = {"fetch": run.first_mac - run.started, **run.waits}
    parts["memory"] += run.slowed
    working = run.mac_time
    for name, covered in run.covered.items():
        if run.waits[name] > run.mac_time - covered:
            parts[name] += covered
            working -= covered
    name = max(parts, key=lambda part: parts[part])
    if parts[name] > working:
        return name
    macs = mac_cycles(shape, constants)
    if run.mac_time <= macs * FULL_USE:
        return "MAC"
    loading = loading_cycles(shape, constants)
    if loading >= run.mac_time - macs - loading:  # the rest is time in which the units after the array make it wait
        return "weight loading"
    return "PDP" if run.chain.pdp and run.pace > constants.sdp_atom + 1 else "SDP"


@dataclass(frozen=True)
class Estimate:
    """Cycles of an operation. An operation on the fly has the time of its whole chain, whose first ``leader`` is.

    ``macs``: multiplications of its arithmetic (padding included, as the hardware does them); ``mac_share``: of what
    the MAC array could do in the time; ``read_bytes`` and ``written_bytes``: what crosses NVDLA's memory ports (nothing
    of a CPU operation), ``cvsram_*``: those of them that cross the second port; ``cycles`` None: not modelled (CPU
    operations); ``measured``: the configuration and precision are those the model was calibrated on; ``shape``: the
    chain as the model takes it, with the ``constants`` of its precision.
    """

    key: Key
    leader: Key
    cycles: int | None
    bound: str | None
    macs: int
    mac_share: float | None
    read_bytes: int
    written_bytes: int
    cvsram_read_bytes: int
    cvsram_written_bytes: int
    measured: bool
    time: Time | None
    shape: ChainShape | None
    constants: CycleConstants

    @property
    def own_cycles(self) -> int | None:
        """Cycles of the chain at its first operation, None at the others: a sum counts each chain once."""
        return self.cycles if self.leader == self.key else None

    @property
    def full_use_cycles(self) -> float:
        """Cycles of its multiplications on a fully used MAC array. Unlike ``macs``, they add up across precisions."""
        return self.macs / self.constants.macs_per_cycle


def estimates(nodes: list[Operation], config: Configuration, memory: Memory) -> dict[Key, Estimate]:
    """The estimate of every operation."""
    by_key: dict[Key, Estimate] = {}
    times: dict[tuple[ChainShape, CycleConstants], Time] = {}
    for chain in chains(nodes):
        values = constants(config, _element_bytes(chain[0]))
        shape = chain_shape(chain, values)
        if shape and (shape, values) not in times:  # networks repeat their layers
            times[shape, values] = chain_time(shape, values, memory)
        time = times[shape, values] if shape else None
        for node in chain:
            macs = _macs(node)
            share = None
            if macs and time and time.total:
                share = macs / (time.total * values.macs_per_cycle)
            by_key[node.key] = Estimate(
                key=node.key,
                leader=chain[0].key,
                cycles=time.total if time else None,
                bound=time.bound if time else None,
                macs=macs,
                mac_share=share,
                read_bytes=_ported(node, node.reads),
                written_bytes=_ported(node, node.writes),
                cvsram_read_bytes=_ported(node, [access for access in node.reads if _by_cvsram(node, access)]),
                cvsram_written_bytes=_ported(node, [access for access in node.writes if _by_cvsram(node, access)]),
                measured=values.measured and _covered(node),
                time=time,
                shape=shape,
                constants=values,
            )
    return by_key


def _covered(node: Operation) -> bool:
    """Check whether the model's measurements say something about this kind of operation."""
    if _in_cvsram([node]):
        return False
    if node.engine == "conv":
        op = node.op
        return op.conv_mode == ConvMode.DIRECT and op.batch <= 1 and not op.weight_format
    return node.engine in ("sdp", "pdp", "cdp")


def chain_shape(chain: list[Operation], values: CycleConstants) -> ChainShape | None:
    """Operations that work together as the model takes them; None for what it does not model (CPU operations)."""
    parts: Document = {}
    for node in chain:
        if node.engine == "conv":
            parts["conv"] = convolution_shape(node, values)
        elif node.engine == "sdp":
            parts["sdp"] = sdp_shape(node, values)
        elif node.engine == "pdp":
            parts["pdp"] = pdp_shape(node, values)
        elif node.engine == "cdp":
            cube = node.surface.src_data
            surfaces = _surfaces(cube, _element_bytes(node), values)
            parts["cdp"] = CdpShape(cube.width, cube.height, surfaces, not node.op.bypass_sqsum)
        elif node.engine in ("bdma", "rubik"):
            parts["copy"] = CopyShape(_ported(node, node.reads), _ported(node, node.writes))
    return ChainShape(**parts, cvsram=_in_cvsram(chain)) if parts else None


def _in_cvsram(chain: list[Operation]) -> frozenset[str]:
    """Return the data of a chain in CVSRAM, by purpose."""
    roles = set()
    for node in chain:
        if node.engine not in ("conv", "sdp", "pdp", "cdp"):
            continue
        surface = node.surface
        if surface.src_data.type == MemType.CV:
            roles.add("data" if node.engine == "conv" else "read")
        if surface.dst_data.type == MemType.CV:
            roles.add("write")
        if node.engine == "conv" and surface.weight_data.type == MemType.CV:
            roles.add("weights")
        points = _points(node) if node.engine == "sdp" else []
        if points and all(getattr(surface, f"{name}_data").type == MemType.CV for name in points):
            roles.add("operand")
    return frozenset(roles)


def convolution_shape(node: Operation, values: CycleConstants) -> ConvolutionShape:
    """A convolution as the model takes it."""
    op, surface = node.op, node.surface
    src, dst = surface.src_data, surface.dst_data
    size = _element_bytes(node)
    image = op.data_format != DataFormat.FEATURE
    weights = _ported(node, [access for access in node.reads if access.role in WEIGHT_ROLES])
    return ConvolutionShape(
        out_width=max(dst.width, 1),
        out_height=max(dst.height, 1),
        kernels=max(dst.channel, 1),
        kernel_width=max(op.kernel_width_csc, 1),
        kernel_height=max(op.kernel_height_csc, 1),
        kernel_channels=max(op.kernel_channel_csc, 1),
        data_bytes=_ported(node, node.reads) - weights,
        weight_bytes=weights,
        weight_banks=max(op.weight_bank, 1),
        data_atoms=max(ceil_div(src.channel * size, values.atom), 1),
        data_banks=max(op.data_bank, 1),
        slices=max(src.height, 1),
        entries_per_slice=op.entry_per_slice,
        by_line=image,
        post_extension=1 << min(op.post_extension, 2),
        batch=max(op.batch, 1),
        share=WINOGRAD_SHARE if op.conv_mode == ConvMode.WINOGRAD else 1,
        element_bytes=size,
    )


def sdp_shape(node: Operation, values: CycleConstants) -> SdpShape:
    """An SDP operation as the model takes it."""
    op, src = node.op, node.surface.src_data
    stages = [name for name in STAGES if getattr(op, f"{name}_op").enable]
    points = _points(node)
    tables = [access for access in node.reads if access.role in STAGES and access.role not in points]
    return SdpShape(
        width=max(src.width, 1),
        height=max(src.height, 1),
        surfaces=max(_surfaces(src, _element_bytes(node), values), 1),
        stages=len(stages),
        uses_y="y" in stages,
        read_bytes=_ported(node, [access for access in node.reads if access.role not in STAGES]),
        operand_bytes=_ported(node, [access for access in node.reads if access.role in points]),
        table_bytes=_ported(node, [access for access in tables if not _by_cvsram(node, access)]),
        write_bytes=_ported(node, node.writes),
        batch=max(op.batch_num, 1),
        lut=op.lut_index >= 0,
    )


def _points(node: Operation) -> list[str]:
    """The stages of an SDP operation that read an operand for every element."""
    stages = [(name, getattr(node.op, f"{name}_op")) for name in STAGES]
    return [name for name, stage in stages if stage.enable and stage.mode == SdpMode.PER_POINT]


def pdp_shape(node: Operation, values: CycleConstants) -> PdpShape:
    """A pooling as the model takes it."""
    op, src, dst = node.op, node.surface.src_data, node.surface.dst_data
    width, height = op.pool_width + 1, op.pool_height + 1
    return PdpShape(
        in_width=src.width + _columns_again(op),
        in_height=src.height,
        out_width=dst.width,
        out_height=dst.height,
        surfaces=_surfaces(src, _element_bytes(node), values),
        rows=flushed_windows(src.height, height, max(op.stride_y, 1), op.pad_top, op.pad_bottom),
        columns=flushed_windows(src.width, width, max(op.stride_x, 1), op.pad_left, op.pad_right),
        read_bytes=_ported(node, node.reads),
        write_bytes=_ported(node, node.writes),
    )


def _columns_again(op: Structure) -> int:
    """Columns that a pooling with a split width takes for two of its parts."""
    return int(max(op.split_num - 1, 0) * max(op.pool_width + 1 - op.stride_x, 0))


def _element_bytes(node: Operation) -> int:
    """Bytes of the elements that the operation works on."""
    if node.precisions is None:
        return 1
    if node.engine == "sdp":
        return processing_precision(*node.precisions).bytes
    return node.precisions[node.engine == "conv"].bytes  # CDMA may widen pixels


def _surfaces(cube: Structure, size: int, values: CycleConstants) -> int:
    return ceil_div(cube.channel * size, values.atom)


def _ported(node: Operation, accesses: list[Access]) -> int:
    """Bytes of the accesses that cross NVDLA's memory ports.

    Nothing of a CPU operation and of what a convolution finds in its buffer does. CDMA reads whole atoms of an image;
    PDP reads the columns that two parts of a split width share for each of them.
    """
    if node.engine == "cpu":
        return 0
    if node.engine == "conv":
        in_buffer = {True: node.op.weight_reuse, False: node.op.data_reuse}
        accesses = [access for access in accesses if not in_buffer[access.role in WEIGHT_ROLES]]
    again = _columns_again(node.op) if node.engine == "pdp" else 0
    total = 0
    for access in accesses:
        total += _whole_atoms(access, node.atom) if access.layout == "image" else access.traffic
        if again and not access.writes:
            total += access.traffic // node.surface.src_data.width * again
    return total


def _by_cvsram(node: Operation, access: Access) -> bool:
    """Check whether an access goes through the second memory port."""
    if node.engine == "bdma":
        side = "destination" if access.writes else "source"
        return bool(getattr(node.surface, f"{side}_type") == MemType.CV)
    return node.engine != "cpu" and bool(getattr(node.surface, access.field).type == MemType.CV)


def _whole_atoms(access: Access, atom: int) -> int:
    """Bytes of the atoms that each line of an image touches."""
    line = access.footprint.length
    return access.traffic // line * align(access.start % atom + line, atom)


def _macs(node: Operation) -> int:
    """Multiplications of a convolution (those of its direct form, also for Winograd), 0 of other operations.

    A Winograd kernel of 4 x 4 stands for one of 3 x 3.
    """
    if node.engine != "conv":
        return 0
    op, dst = node.op, node.surface.dst_data
    winograd = op.conv_mode == ConvMode.WINOGRAD
    kernel = 9 if winograd else op.kernel_width_csc * op.kernel_height_csc
    positions = dst.width * dst.height * max(op.batch, 1)
    return positions * dst.channel * kernel * op.kernel_channel_csc


MAX_CHAINS = 1 << 16
BIAS_BYTES = 2
WEIGHT_PADDING = 128  # bytes: the builder's, and what CSC needs where banks stay the same


def convolution(
    config: Configuration,
    input_shape: tuple[int, int, int],
    output_shape: tuple[int, int, int],
    kernel: tuple[int, int],
    *,
    data_banks: int,
    weight_banks: int,
    reads_data: bool = True,
    reads_weights: bool = True,
    sums: bool = False,
    biased: bool = True,
    table: bool = False,
    element_bytes: int = 1,
) -> ChainShape:
    """A direct convolution on feature data with the SDP after it.

    Shapes are (channels, height, width) of the cubes in memory, ``kernel`` is (height, width). ``reads_data`` and
    ``reads_weights``: False where the buffer still has them; ``sums``: a second cube is added on the fly (X2);
    ``biased``: the SDP reads a number for each kernel; ``table``: its Y stage looks the results up.
    """
    channels, height, width = input_shape
    kernels, out_height, out_width = output_shape
    atom = config.memory_atom
    atoms, surfaces = ceil_div(channels * element_bytes, atom), ceil_div(kernels * element_bytes, atom)
    biases = surfaces * atom // element_bytes * BIAS_BYTES * biased
    written = out_width * out_height * surfaces * atom
    weights = ceil_div(kernels * channels * kernel[0] * kernel[1] * element_bytes, WEIGHT_PADDING) * WEIGHT_PADDING
    conv = ConvolutionShape(
        out_width=out_width,
        out_height=out_height,
        kernels=kernels,
        kernel_width=kernel[1],
        kernel_height=kernel[0],
        kernel_channels=channels,
        data_bytes=width * height * atoms * atom if reads_data else 0,
        weight_bytes=weights if reads_weights else 0,
        weight_banks=weight_banks,
        data_atoms=atoms,
        data_banks=data_banks,
        slices=height,
        entries_per_slice=ceil_div(width * atoms * atom, config.cbuf_entry_bytes),
        element_bytes=element_bytes,
    )
    operands = written if sums else 0
    sdp = SdpShape(
        out_width,
        out_height,
        surfaces,
        biased + sums + table,
        table,
        0,
        operands,
        written,
        table_bytes=biases,
        lut=table,
    )
    return ChainShape(conv=conv, sdp=sdp)


def operation_cycles(
    chain: ChainShape, config: Configuration, memory: Memory | None = None, element_bytes: int = 1
) -> Time:
    """The chain alone: cycles from its enabling to its interrupt, and what bounds it."""
    return chain_time(chain, constants(config, element_bytes), memory or Memory())


def queue_cycles(
    chains: Sequence[ChainShape],
    config: Configuration,
    memory: Memory | None = None,
    after: Sequence[Sequence[int]] | None = None,
    software: Software | None = None,
    element_bytes: int = 1,
) -> int:
    """Cycles of the whole queue, from the first register write to the last interrupt.

    ``after``: for each chain the places of those that must be complete before it is enabled (earlier ones; None:
    all independent). Raises ConfigError for places that are not before it, and for more than MAX_CHAINS chains.
    """
    if len(chains) > MAX_CHAINS:
        raise ConfigError(f"{len(chains)} chains in a queue: must be at most {MAX_CHAINS}")
    waits = after or [()] * len(chains)
    for place, mine in enumerate(waits):
        wrong = [other for other in mine if not 0 <= other < place]
        if wrong:
            raise ConfigError(f"chain {place} waits for {wrong[0]}: must be one before it")
    values = constants(config, element_bytes)
    works = _works(list(chains), [sorted(set(mine)) for mine in waits], values)
    return schedule(works, memory or Memory(), software).cycles


@dataclass(frozen=True)
class _Wait:
    target: Key
    event: str
    on_the_fly: bool = False


@dataclass(frozen=True)
class _Operation:
    """A unit's part of a chain, as the schedule asks for it."""

    key: Key
    engine: str
    queue: int
    takes_on_the_fly: bool
    gives_on_the_fly: bool
    dependencies: tuple[_Wait, ...]
    waits_for: int
    op: Structure | None = None


_LOOK_UP = SdpOp(x1_op=SdpStage(1, type=SdpType.BOTH, mode=SdpMode.PER_KERNEL), y_op=SdpStage(1))
"""The descriptor of an SDP operation after a convolution that looks up the first table."""
UNITS = {"conv": "conv", "sdp": "sdp", "pdp": "pdp", "cdp": "cdp", "copy": "rubik"}


def _works(chains: list[ChainShape], waits: list[list[int]], values: CycleConstants) -> list[ChainWork]:
    """The queue as the firmware's graph: a chain's units are enabled from the last to the first."""
    units = [[unit for unit in UNITS if getattr(chain, unit) is not None] for chain in chains]
    keys, number = [], 0
    for mine in units:
        keys.append([(0, 0, number + place) for place in range(len(mine))])
        number += len(mine)
    waiting: dict[int, list[Key]] = {}
    for place, earlier in enumerate(waits):
        for producer in earlier:
            waiting.setdefault(producer, []).append(keys[place][-1])
    queues = dict.fromkeys(UNITS, 0)
    works = []
    for place, chain in enumerate(chains):
        nodes: list[_Operation] = []
        for at, unit in enumerate(units[place]):
            last = at == len(units[place]) - 1
            ends = [_Wait(key, "OP_COMPLETED") for key in waiting.get(place, ())] if last else []
            starts = [_Wait(keys[place][at - 1], "OP_ENABLED", True)] if at else []
            behind = len(waits[place]) if last else 1
            scheduled = _Operation(
                keys[place][at],
                UNITS[unit],
                queues[unit],
                at > 0,
                not last,
                tuple(ends + starts),
                behind,
                _LOOK_UP if unit == "sdp" and chain.conv and chain.sdp and chain.sdp.lut else None,
            )
            nodes.append(scheduled)
            queues[unit] += 1
        works.append(ChainWork(nodes, chain, values))
    return works
