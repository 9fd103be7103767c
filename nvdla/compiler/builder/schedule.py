"""Order of hardware operations, reuse of CBUF contents, fused tails.

The form that NVIDIA's C model and RTL are known to run: direct convolutions on feature data, in banks of the same
numbers, which read the same cube; kept by all users but the last, used again by all but the first. The cycle model
evaluates each pair: a convolution that need not wait for its data may run too early for its consumer.

The order of the list is the order in every engine's queue; a chain (convolution, SDP, PDP on the fly) is contiguous.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from nvdla import limits
from nvdla.analysis.cycles.constants import ChainShape, Memory
from nvdla.analysis.cycles.estimate import convolution, queue_cycles
from nvdla.compiler.builder.cbuf import Fit, fit, rounded, stored_kernel_bytes
from nvdla.compiler.builder.cost_model import CostModel, stored_weights
from nvdla.compiler.builder.ir import (
    BYTES,
    Contract,
    Convolve,
    LoweredProgram,
    Normalize,
    Operand,
    Pool,
    Process,
    Softmax,
    Stage,
    Surface,
    reads,
    writes,
)
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import BuildError
from nvdla.limits import MAX_CUBE_SIDE
from nvdla.loadable.descriptors.enums import OpType
from nvdla.util.rounding import ceil_div

LONGEST = 64
"""Convolutions of a row; the next ones form a separate row. Deconvolutions with a stride of 8 have 64 on one
cube, other layers about six."""


class Queued(Protocol):
    """A hardware operation as far as its use of the buffer goes
    (:class:`nvdla.compiler.builder.schedule.HardwareOperation`)."""

    type: OpType
    data_banks: int
    weight_banks: int
    keeps_data: bool
    reuses_data: bool
    reuses_weights: bool
    compressed: bool

    @property
    def operation(self) -> object:
        """Operation of the program."""


def share_data(operations: Sequence[Queued], config: Configuration, memory: Memory | None) -> None:
    """Let convolutions use the data again that the one before has fetched, if that is not slower, up to
    ``PlanLimits.shared``."""
    counted = 0
    for row in _rows([entry for entry in operations if entry.type == OpType.CONV]):
        counted += len(row) ** 2
        if counted > limits.PLAN.shared:
            return
        chains = [_chain(entry, config) for entry in row]
        fewest = _cycles(row, chains, config, memory)
        for place, (before, after) in enumerate(itertools.pairwise(row), 1):
            before.keeps_data = after.reuses_data = True
            fetching, chains[place] = chains[place], _chain(after, config)
            cycles = _cycles(row, chains, config, memory)
            if cycles > fewest:
                before.keeps_data = after.reuses_data = False
                chains[place] = fetching
            fewest = min(cycles, fewest)


def _rows(queue: list[Queued]) -> Iterator[list[Queued]]:
    """Two or more convolutions, one after the other, of which each could use the data of the one before; not more than
    LONGEST, as the model looks at all of a row for each of its pairs."""
    row: list[Queued] = []
    for queued in queue:
        if row and (len(row) == LONGEST or not _may(row[-1], queued)):
            if len(row) > 1:
                yield row
            row = []
        row.append(queued)
    if len(row) > 1:
        yield row


def _may(before: Queued, after: Queued) -> bool:
    first, then = before.operation, after.operation
    assert isinstance(first, Convolve) and isinstance(then, Convolve)
    if (before.data_banks, before.weight_banks) != (after.data_banks, after.weight_banks):
        return False
    plain = not (first.winograd or then.winograd) and first.source.root.pixels is None
    return plain and first.source.is_same(then.source)


def _chain(queued: Queued, config: Configuration) -> ChainShape:
    """A convolution as the cycle model takes it, with a post-processor after it."""
    operation = queued.operation
    assert isinstance(operation, Convolve)
    chain = convolution(
        config,
        operation.source.shape,
        operation.process.destination.shape,
        (operation.weights.shape[2], operation.weights.shape[3]),
        data_banks=queued.data_banks,
        weight_banks=queued.weight_banks,
        reads_data=not queued.reuses_data,
        reads_weights=not queued.reuses_weights,
        sums=any(stage.surfaces for stage in operation.process.stages),
        table=operation.process.lut is not None,
        element_bytes=BYTES[operation.source.precision],
    )
    stored = stored_weights(operation, config) if queued.compressed and not queued.reuses_weights else None
    if stored is not None and chain.conv is not None:
        chain = replace(chain, conv=replace(chain.conv, weight_bytes=stored.traffic))
    return chain


def _cycles(row: list[Queued], chains: list[ChainShape], config: Configuration, memory: Memory | None) -> int:
    """Cycles of such convolutions, alone in a queue."""
    operation = row[-1].operation
    assert isinstance(operation, Convolve)
    return queue_cycles(chains, config, memory, element_bytes=BYTES[operation.source.precision])


# Lines that the PDP's buffer keeps at once for windows that overlap 0..8 times (PDPNode.cpp, "Formula Book").
_OVERLAP_LINES = (1, 1, 2, 4, 4, 8, 8, 8, 8)
_PDP_BUFFER_BITS = 7 * 1024 * 8


EngineOperation = Convolve | Process | Pool | Normalize | Contract
"""Operation types of the accelerator's engines; softmax runs on the CPU."""


@dataclass(eq=False)
class HardwareOperation:
    """One entry of a task's lists. ``operation`` is already in a shape that one engine takes at once.

    ``source_flies`` / ``destination_flies``: from or to the engine before or after. ``last``: the operation that
    ends its chain, so that its completion means that all of the chain is complete. ``position``: in the program.
    ``keeps_*``: for the next convolution, which ``reuses_*`` the contents of the buffer instead of fetching it.
    ``compressed``: the weights are stored without their zeros.
    """

    type: OpType
    operation: EngineOperation
    position: int
    part: str = ""
    data_banks: int = 0
    weight_banks: int = 0
    source_flies: bool = False
    destination_flies: bool = False
    keeps_data: bool = False
    reuses_data: bool = False
    keeps_weights: bool = False
    reuses_weights: bool = False
    compressed: bool = False
    index: int = -1
    chain: list[HardwareOperation] = field(default_factory=list)

    @property
    def layer(self) -> str:
        """The layer that it belongs to."""
        return self.operation.layer

    @property
    def last(self) -> HardwareOperation:
        """The last operation of its chain on the fly."""
        return self.chain[-1]

    @property
    def inputs(self) -> list[Surface]:
        """Surfaces that this engine reads from memory."""
        surfaces = list(reads(self.operation))
        if self.type == OpType.CONV:
            return surfaces[:1]
        return [] if self.source_flies and self.type == OpType.PDP else surfaces

    @property
    def output(self) -> Surface | None:
        """The surface that this engine writes to memory."""
        return None if self.destination_flies else writes(self.operation)


@dataclass
class ScheduledDlaTask:
    """Hardware operations between two CPU operations."""

    operations: list[HardwareOperation]


@dataclass
class ScheduledCpuTask:
    """A task of the CPU: its operation and its place in the order of the network."""

    operation: Softmax
    position: int


Task = ScheduledDlaTask | ScheduledCpuTask


def schedule(program: LoweredProgram, config: Configuration, cost_model: CostModel | None = None) -> list[Task]:
    """Tasks in the order of submission. ``cost_model``: chooses the variants (None: the model of level 1)."""
    tasks: list[Task] = []
    chosen = cost_model or CostModel(config, 1)
    chains = _Chains(program, config, chosen)
    current: list[HardwareOperation] = []
    position = count = 0
    while position < len(program.operations):
        operation = program.operations[position]
        if isinstance(operation, Softmax):
            if current:
                tasks.append(ScheduledDlaTask(current))
            tasks.append(ScheduledCpuTask(operation, position))
            current, position = [], position + 1
            continue
        chain, used = chains.make(operation, position)
        count += len(chain)
        limits.PLAN.check_operations(operation.layer, count)
        current += chain
        position += used
    if current:
        tasks.append(ScheduledDlaTask(current))
    for task in tasks:
        if isinstance(task, ScheduledDlaTask):
            for index, hardware in enumerate(task.operations):
                hardware.index = index
            if chosen.level:
                _share_banks(task.operations, config)
                _share_weights(task.operations, config)
                if chosen.policy.shares_data:
                    share_data(task.operations, config, chosen.memory)
    return tasks


def _share_banks(operations: list[HardwareOperation], config: Configuration) -> None:
    """Convolutions in a row divide the convolution buffer alike, as long as each has the banks that it needs: a change
    of banks is a wait. The mask of compressed weights has the last bank."""
    row: list[HardwareOperation] = []
    data = weights = 0
    masked = False
    for hardware in (hardware for hardware in operations if hardware.type == OpType.CONV):
        room = config.cbuf_banks - (masked or hardware.compressed)
        if max(data, hardware.data_banks) + max(weights, hardware.weight_banks) > room:
            _divide(row, data, weights)
            row, data, weights, masked = [], 0, 0, False
        row.append(hardware)
        data, weights = max(data, hardware.data_banks), max(weights, hardware.weight_banks)
        masked |= hardware.compressed
    _divide(row, data, weights)


def _divide(row: list[HardwareOperation], data: int, weights: int) -> None:
    """Give all of them banks of these numbers."""
    for hardware in row:
        hardware.data_banks, hardware.weight_banks = data, weights


def _share_weights(operations: list[HardwareOperation], config: Configuration) -> None:
    """Convolutions in a row with the same weights, all of them in banks of one number, fetch them once: images of a
    batch (what may be kept and used again is said in :mod:`nvdla.analysis.alternatives`)."""
    queue = [hardware for hardware in operations if hardware.type == OpType.CONV]
    for before, after in itertools.pairwise(queue):
        first, then = before.operation, after.operation
        if not isinstance(first, Convolve) or not isinstance(then, Convolve) or first.weights is not then.weights:
            continue
        same = (first.winograd, first.source.root.pixels) == (then.winograd, then.source.root.pixels)
        banks = (before.data_banks, before.weight_banks) == (after.data_banks, after.weight_banks)
        if same and banks and before.compressed == after.compressed and _may_stay(before, first, config):
            before.keeps_weights = after.reuses_weights = True


def _may_stay(hardware: HardwareOperation, operation: Convolve, config: Configuration) -> bool:
    """Return whether all weights of a convolution fit its banks."""
    if hardware.compressed:
        stored = stored_weights(operation, config)
        return stored is not None and stored.may_stay(hardware.weight_banks, config)
    size = rounded(len(operation.weights) * stored_kernel_bytes(operation, config), config)
    return size <= hardware.weight_banks * config.cbuf_bank_bytes


class _Chains:
    """Turns operations into chains."""

    def __init__(self, program: LoweredProgram, config: Configuration, cost_model: CostModel) -> None:
        self.program, self.config, self.cost_model = program, config, cost_model
        #: by root (identity), the last position that reads it
        self.last_reader = {
            id(surface.root): position
            for position, reader in enumerate(program.operations)
            for surface in reads(reader)
        }

    def make(self, operation: EngineOperation, position: int) -> tuple[list[HardwareOperation], int]:
        """Hardware operations of the operation at a position, and how many operations they cover."""
        if isinstance(operation, Convolve):
            chains = self._convolution(operation, position, self._chosen(operation, position))
        elif isinstance(operation, Process):
            chains = [[HardwareOperation(OpType.SDP, part, position)] for part in legal_copies(operation, self.config)]
        elif isinstance(operation, Pool):
            chains = [[HardwareOperation(OpType.PDP, part, position)] for part in self._pools(operation)]
        else:
            engine = OpType.RUBIK if isinstance(operation, Contract) else OpType.CDP
            chains = [[HardwareOperation(engine, operation, position)]]
        used = 1
        pool = self._pool_that_follows(operation, position) if len(chains) == 1 else None
        if pool is not None:
            chains[0][-1].destination_flies = True
            chains[0].append(HardwareOperation(OpType.PDP, pool, position + 1, source_flies=True))
            used = 2
        for number, chain in enumerate(chains):
            for hardware in chain:
                hardware.chain = chain
                hardware.part = f"{number + 1}/{len(chains)}" if len(chains) > 1 else ""
        return [hardware for chain in chains for hardware in chain], used

    def _chosen(self, operation: Convolve, position: int) -> Fit:
        if operation.winograd:
            return self.cost_model.winograd(operation, position)
        plain = fit(operation, self.config)
        pooled = len(plain.tiles) == 1 and self._pool_that_follows(operation, position) is not None
        return plain if pooled else self.cost_model.choose(operation, plain, position)

    def _convolution(self, operation: Convolve, position: int, chosen: Fit) -> list[list[HardwareOperation]]:
        chains = []
        for tile in chosen.tiles:
            process = _cropped(operation.process, tile.out_rows, tile.out_columns)
            source = operation.source.crop(*tile.in_rows, *tile.in_columns)
            whole = replace(operation, source=source, padding=tile.padding, process=process)
            for part in legal_convolutions(whole, self.config):
                conv = HardwareOperation(OpType.CONV, part, position, destination_flies=True)
                conv.data_banks, conv.weight_banks = chosen.data_banks, chosen.weight_banks
                conv.compressed = chosen.compressed
                chains.append([conv, HardwareOperation(OpType.SDP, part.process, position, source_flies=True)])
        if chosen.keeps_weights and len(chains) == len(chosen.tiles):
            for earlier, later in itertools.pairwise(chains):
                earlier[0].keeps_weights = later[0].reuses_weights = True
        return chains

    def _pool_that_follows(self, operation: EngineOperation, position: int) -> Pool | None:
        """The next operation where it pools exactly this result, narrow enough for the PDP's line buffer."""
        if not isinstance(operation, Convolve | Process) or position + 1 >= len(self.program.operations):
            return None
        if isinstance(operation, Convolve) and (operation.winograd or self.cost_model.policy.pools_alone):
            return None  # results of Winograd's method come in blocks
        pool, result = self.program.operations[position + 1], writes(operation)
        if not isinstance(pool, Pool) or pool.source.root is not result.root or result.root.role != "inner":
            return None
        # The SDP does not convert on the way to the PDP (programming guide, SDP, DC).
        if isinstance(operation, Process) and operation.taken.precision != result.precision:
            return None
        if result.shape != pool.source.shape or result.shape != (
            result.root.channels,
            result.root.height,
            result.root.width,
        ):
            return None
        if self.last_reader[id(result.root)] > position + 1:
            return None
        return pool if pool.destination.width <= widest_pool(pool, self.config) else None

    def _pools(self, pool: Pool) -> Iterator[Pool]:
        """The pool in pieces as wide as the line buffer allows; whole where the PDP itself splits the width."""
        widest = widest_pool(pool, self.config)
        if self.cost_model.level and splits_width(pool):
            yield pool
            return
        parts = ceil_div(pool.destination.width, widest)
        columns = ceil_div(pool.destination.width, parts)
        for first in range(0, pool.destination.width, columns):
            count = min(columns, pool.destination.width - first)
            start = first * pool.stride[1] - pool.padding[2]
            end = start + (count - 1) * pool.stride[1] + pool.kernel[1]
            inside = max(start, 0), min(end, pool.source.width)
            yield replace(
                pool,
                source=pool.source.crop(0, pool.source.height, inside[0], inside[1] - inside[0]),
                destination=pool.destination.crop(0, pool.destination.height, first, count),
                padding=(*pool.padding[:2], max(-start, 0), max(end - pool.source.width, 0)),
            )


def splits_width(pool: Pool) -> bool:
    """Return whether the PDP can process the columns in parts: adjacent windows, no padding.

    NVIDIA's compiler uses the same condition.
    """
    columns = pool.destination.width * pool.stride[1] == pool.source.width
    return columns and pool.kernel[1] == pool.stride[1] and pool.padding[2:] == (0, 0)


def widest_pool(pool: Pool, config: Configuration) -> int:
    """Columns of a pool's result that the PDP can hold (programming guide 10.1.4, PDPNode.cpp)."""
    size = BYTES[pool.source.precision]
    lines = _OVERLAP_LINES[ceil_div(pool.kernel[0], pool.stride[0])]
    return _PDP_BUFFER_BITS // (lines * (config.mac_atomic_k // size) * 14 * size)


def _cropped(process: Process, rows: tuple[int, int], columns: tuple[int, int]) -> Process:
    """The SDP operation of a tile, its operands from memory included."""
    if process.destination.shape[1:] == (rows[1], columns[1]):
        return process

    def part(operand: Operand | None) -> Operand | None:
        return operand.crop(*rows, *columns) if isinstance(operand, Surface) else operand

    def stage(whole: Stage | None) -> Stage | None:
        if whole is None or not whole.surfaces:
            return whole
        return replace(whole, alu_operand=part(whole.alu_operand), multiplier=part(whole.multiplier))

    return replace(
        process, destination=process.destination.crop(*rows, *columns), x1=stage(process.x1), x2=stage(process.x2)
    )


def legal_convolutions(operation: Convolve, config: Configuration) -> list[Convolve]:
    """A convolution as ones whose results the SDP can address: one pixel of a larger cube goes surface by surface, as
    in :func:`legal_copies`."""
    process = operation.process
    cubes = [process.destination, *(surface for stage in process.stages for surface in stage.surfaces)]
    atom = config.memory_atom // BYTES[process.destination.precision]
    channels = process.destination.channels
    if channels <= atom or not any(_is_scattered(cube) for cube in cubes):
        return [operation]
    parts = [(first, min(atom, channels - first)) for first in range(0, channels, atom)]
    return [
        replace(operation, weights=operation.weights[first : first + count], process=of_channels(process, first, count))
        for first, count in parts
    ]


def of_channels(process: Process, first: int, count: int) -> Process:
    """The SDP operation for some of its channels, after a convolution of as many kernels."""

    def some(operand: Operand | None) -> Operand | None:
        if isinstance(operand, Surface):
            return operand.channel_range(first, count)
        return operand[first : first + count] if isinstance(operand, np.ndarray) and operand.ndim else operand

    def stage(whole: Stage | None) -> Stage | None:
        if whole is None:
            return None
        return replace(whole, alu_operand=some(whole.alu_operand), multiplier=some(whole.multiplier))

    destination = process.destination.channel_range(first, count)
    return replace(process, destination=destination, x1=stage(process.x1), x2=stage(process.x2))


def legal_copies(process: Process, config: Configuration) -> list[Process]:
    """Split an SDP operation into ones whose cubes the hardware can address.

    The surfaces of a 1x1 cube must be contiguous (cmod/sdp/NV_NVDLA_sdp.cpp:1489 stops otherwise, nvdlav1): a copy
    of one pixel of a larger cube goes surface by surface. Each part is checked after it is cut.
    """
    return [part for cut in _interleaved_copies(process) for part in _by_surfaces(cut, config)]


def _by_surfaces(process: Process, config: Configuration) -> list[Process]:
    """Split an SDP operation on one pixel of a larger cube into one operation per surface."""
    source, channels = process.taken, process.destination.channels
    cubes = [source, process.destination, *(surface for stage in process.stages for surface in stage.surfaces)]
    if not any(_is_scattered(cube) for cube in cubes):
        return [process]
    atom = config.memory_atom // max(BYTES[cube.precision] for cube in cubes)
    parts = [(first, min(atom, channels - first)) for first in range(0, channels, atom)]
    return [replace(of_channels(process, *part), source=source.channel_range(*part)) for part in parts]


def _is_scattered(surface: Surface) -> bool:
    """One pixel of a larger cube."""
    return surface.shape[1:] == (1, 1) != (surface.root.height, surface.root.width)


def _interleaved_copies(process: Process) -> list[Process]:
    """Split an SDP operation into operations with contiguous columns.

    A result whose columns are not contiguous is written as a cube one column wide whose *lines* are the columns. Where
    whole rows follow each other without a gap on both sides that works for many rows at once.
    """
    source, destination = process.taken, process.destination
    if destination.column_stride == 1 and source.column_stride == 1:
        return [process]
    if process.stages:
        raise BuildError("only plain copies can leave columns out", layer=process.layer)
    rows = MAX_CUBE_SIDE // source.width if _seamless(source) and _seamless(destination) else 1
    if rows == 0:
        raise BuildError(
            f"columns to interleave: must be at most {MAX_CUBE_SIDE}, got {source.width}", layer=process.layer
        )
    return [
        replace(
            process,
            source=_as_column(source.crop(top, min(rows, source.height - top), 0, source.width)),
            destination=_as_column(destination.crop(top, min(rows, source.height - top), 0, source.width)),
        )
        for top in range(0, source.height, rows)
    ]


def _seamless(surface: Surface) -> bool:
    """Return whether the first column of a row follows the last of the row before with the stride of the columns."""
    return surface.row_stride == 1 and surface.width * surface.column_stride == surface.root.width


@dataclass(frozen=True, eq=False)
class ColumnSurface(Surface):
    """A surface whose elements are taken as one long column (height = rows * columns, width 1)."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, elements, 1): all elements as one column."""
        return self.channels, self.height * self.width, 1


def _as_column(surface: Surface) -> ColumnSurface:
    return ColumnSurface(**{name: getattr(surface, name) for name in Surface.__dataclass_fields__})
