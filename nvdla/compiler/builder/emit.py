"""Loadables written from scheduled operations: descriptors, dependency graph, blobs.

The firmware (kmd/firmware/scheduler.c) keeps one queue for each engine, linked through ``consumers[own type]``,
programs two operations of a queue ahead and lets the hardware execute them in order. Rules followed here:

* A convolution waits until its SDP is enabled (``fused_parent``), the SDP until the convolution is programmed. The
  same holds for an SDP and the PDP after it.
* An operation follows the one before it in its queue when that one is enabled, or completed if it needs its result.
  For the hardware, programmed is sufficient. But NVIDIA's C model deadlocks when a read DMA finds the second group
  enabled at the end of the first, before the engine has finished the first group. The settings of the first group
  still fill the queue between DMA and engine, and the end of the second fetch is missed
  (cmod/sdp/NV_NVDLA_sdp.cpp:258, nvdlav1).
* A convolution with other banks than the one before follows it when that one is completed. CSC releases the weights
  while the last stripes are still computed or wait for space. In NVIDIA's C model CDMA then fetches the next weights
  before CSC begins the next layer. For other banks CSC then discards the notification about these weights and
  deadlocks (cmod/csc/NV_NVDLA_csc.cpp:357 and :1534, nvdlav1).
* Between engines, each operation waits for the completion of its dependencies: the last operation of each chain that
  wrote its inputs, or that read or wrote the memory that it overwrites (memory is re-used).
* An operation that receives its data on the fly writes nothing before its chain's first operation begins. So the first
  operation waits for the memory that the chain overwrites, and the others are enabled ahead.
* Each operation has one consumer entry per engine type. Queues keep their order, so a link between two queues also
  applies to all later operations of the waiting queue.
"""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from ctypes import Structure
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.compiler.builder.addresses import (
    CONSTANTS,
    CVSRAM,
    POOL,
    Addresses,
    Extent,
    ExtentTable,
    GrowingColumns,
    MemoryLayout,
    SurfacePlan,
    plan,
)
from nvdla.compiler.builder.cost_model import CostModel
from nvdla.compiler.builder.describe import Describer, lut_param
from nvdla.compiler.builder.ir import BYTES, LoweredProgram, Root, reads
from nvdla.compiler.builder.packing import PackedWeights
from nvdla.compiler.builder.schedule import HardwareOperation, ScheduledCpuTask, ScheduledDlaTask, Task, schedule
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.memory.surfaces import feature_format
from nvdla.errors import BuildError
from nvdla.limits import PAGE
from nvdla.loadable.descriptors.abi import NEW
from nvdla.loadable.descriptors.enums import EmuFormat, EmuOpType, Event, OpType
from nvdla.loadable.descriptors.structures import NUM_OP_TYPES
from nvdla.loadable.enums import (
    PIXEL_FORMATS,
    DataCategory,
    DataFormat,
    DataType,
    EventOp,
    Interface,
    MemoryDomain,
    MemoryFlags,
    RelocType,
    SubInterface,
)
from nvdla.loadable.model import (
    AddressEntry,
    Blob,
    EventEntry,
    Loadable,
    MemoryEntry,
    RelocEntry,
    SubmitEntry,
    TaskEntry,
    TensorDesc,
    Version,
)
from nvdla.util.precision import Precision
from nvdla.util.rounding import align


@dataclass
class Links:
    """One entry of the graph: consumers by type (index, event), the fused parent, and the number of events to wait
    for."""

    consumers: dict[OpType, tuple[int, Event]] = field(default_factory=dict)
    fused_parent: tuple[int, Event] | None = None
    dependencies: int = 0


MAX_OPERATIONS = (1 << 15) - 1  # consumers are numbered with 16 bits

# Bytes read and bytes written by each operation, by its index.
Extents = dict[int, tuple[list[Extent], list[Extent]]]


def link(operations: list[HardwareOperation], extents: Extents) -> list[Links]:
    """The graph of one task. ``extents``: bytes read and bytes written by each operation, by its index.

    Raises:
        BuildError: Descriptors cannot refer to so many operations.
    """
    if len(operations) > MAX_OPERATIONS:
        counts = Counter(operation.operation.layer for operation in operations)
        layer, most = counts.most_common(1)[0]
        raise BuildError(
            f"operations of a task: must be at most {MAX_OPERATIONS:,}, got {len(operations):,}, of which {most:,} are "
            "parts of this layer. A larger convolution buffer needs fewer.",
            layer=layer,
        )
    links = [Links() for _ in operations]
    _join(operations, links)
    needs = _needs(operations, extents)
    _queues(operations, links, needs)
    # Between two queues, the last operation of the one that the other waits for: all later ones wait for it, too.
    served: dict[tuple[OpType, OpType], int] = {}
    for operation in operations:
        for other_type, needed in sorted(needs[operation.index].items()):
            # The queue of the other engine is in order: its last needed operation is enough.
            queues = operations[needed].type, operation.type
            if other_type != operation.type and served.get(queues, -1) < needed:
                links[needed].consumers[operation.type] = (operation.index, Event.OP_COMPLETED)
                links[operation.index].dependencies += 1
                served[queues] = needed
    return links


def _join(operations: list[HardwareOperation], links: list[Links]) -> None:
    for operation in operations:
        for parent, child in zip(operation.chain, operation.chain[1:], strict=False):
            if operation is not child:
                continue
            links[parent.index].consumers[child.type] = (child.index, Event.OP_PROGRAMMED)
            links[child.index].dependencies += 1
            links[child.index].fused_parent = (parent.index, Event.OP_ENABLED)
            links[parent.index].dependencies += 1


class _Touched:
    """Bytes of one memory that operations have touched so far: each extent once, with the chain that touched it last.

    ``newest`` and ``chain``: the end and the start of that chain; ``older``: the end of the last chain before it.
    """

    def __init__(self) -> None:
        self.extents = ExtentTable()
        self.rows = GrowingColumns(5)
        self.places: dict[tuple[Extent, bool, OpType], int] = {}

    def add(self, extent: Extent, written: bool, operation: HardwareOperation) -> None:
        """The operation reads or writes these bytes."""
        kind, last, chain = operation.last.type, operation.last.index, operation.chain[0].index
        place = self.places.get((extent, written, kind))
        if place is None:
            self.places[extent, written, kind] = self.extents.add(extent)
            self.rows.append(last, chain, -1, written, kind)
            return
        row = self.rows.columns[:, place]
        if row[1] != chain:
            row[:3] = last, chain, row[0]

    def meeting(self, extent: Extent, written: bool, chain: int) -> Iterable[tuple[OpType, int]]:
        """The last operation of each engine that ends a chain, other than ``chain``, which touched (``written``: which
        wrote) a byte of the extent."""
        newest, chains, older, writes, kinds = self.rows.columns
        meets = self.extents.meet(extent)
        if written:
            meets &= writes != 0
        last = np.where(chains == chain, older, newest)[meets]
        kinds = kinds[meets][last >= 0]
        last = last[last >= 0]
        return [(OpType(kind), int(last[kinds == kind].max())) for kind in set(kinds.tolist())]


def _needs(operations: list[HardwareOperation], extents: Extents) -> list[dict[OpType, int]]:
    """Return for each operation the chain ends, the latest per engine, that must be complete before it starts.

    These are the writers of its inputs. For the first operation of a chain they include all operations that read or
    wrote the memory that the chain writes.
    """
    memories: defaultdict[str, _Touched] = defaultdict(_Touched)
    all_needs = []
    for operation in operations:
        chain = operation.chain[0]
        needed: dict[OpType, int] = {}
        asked = [(extent, True) for extent in extents[operation.index][0]]
        if operation is chain:
            asked += [(extent, False) for hardware in operation.chain for extent in extents[hardware.index][1]]
        for extent, written in asked:
            if extent.memory in memories:
                for kind, last in memories[extent.memory].meeting(extent, written, chain.index):
                    needed[kind] = max(last, needed.get(kind, -1))
        for extent in extents[operation.index][0]:
            if extent.memory != CONSTANTS:  # nothing writes them
                memories[extent.memory].add(extent, False, operation)
        for extent in extents[operation.index][1]:
            memories[extent.memory].add(extent, True, operation)
        all_needs.append(needed)
    return all_needs


def _queues(operations: list[HardwareOperation], links: list[Links], needs: list[dict[OpType, int]]) -> None:
    tails: dict[OpType, HardwareOperation] = {}
    for operation in operations:
        before = tails.get(operation.type)
        if before is not None:
            waits = needs[operation.index].get(operation.type) == before.index or _changes_banks(before, operation)
            event = Event.OP_COMPLETED if waits else Event.OP_ENABLED
            links[before.index].consumers[operation.type] = (operation.index, event)
            links[operation.index].dependencies += 1
        tails[operation.type] = operation


def _changes_banks(before: HardwareOperation, after: HardwareOperation) -> bool:
    """Return whether the division of the convolution buffer changes between two convolutions."""
    banks = (before.data_banks, before.weight_banks) != (after.data_banks, after.weight_banks)
    return before.type == OpType.CONV and banks


# What a batch may take of the memory that it needs at the least, so that images do not wait for one another.
BATCH_ROOM = 3.0
_DATA_TYPES: dict[str, DataType] = {
    Precision.INT8: DataType.INT8,
    Precision.INT16: DataType.INT16,
    Precision.FP16: DataType.HALF,
}
_DLA_VERSION, _EMU_VERSION, _RAW_VERSION = Version(0, 12, 3), Version(0, 0, 1), Version(0, 0, 0)


def emit(
    program: LoweredProgram,
    config: Configuration,
    cost_model: CostModel | None = None,
    packed: PackedWeights | None = None,
    cvsram: int = 0,
) -> tuple[Loadable, list[Task], SurfacePlan]:
    """Return the loadable of a program, its scheduled tasks (for the sidecar) and the placement of surfaces.

    ``cost_model``: chooses the variants (None: the model of level 1). ``packed``: previously packed weights of the
    same program. ``cvsram``: bytes of CVSRAM available for surfaces.
    """
    tasks = schedule(program, config, cost_model)
    layout = memory_plan(program, config, tasks, cvsram)
    addresses = Addresses(program, config, layout)
    emitter = _Emitter(program, config, tasks, addresses, layout, packed or PackedWeights(program, config))
    return emitter.loadable(), tasks, layout


def memory_plan(program: LoweredProgram, config: Configuration, tasks: list[Task], cvsram: int = 0) -> SurfacePlan:
    """Return the placement of inner surfaces.

    Data passed on the fly need no memory; a chain on the fly reads and writes at one time.
    """
    chained = [
        hardware
        for task in tasks
        if isinstance(task, ScheduledDlaTask)
        for hardware in task.operations
        if hardware.type == OpType.PDP and hardware.source_flies
    ]
    kept = {id(reads(hardware.operation)[0].root) for hardware in chained}
    together = {hardware.position: hardware.chain[0].position for hardware in chained}
    tight = plan(program, config, kept, together, cvsram)
    if program.images == 1:
        return tight
    # Images of a batch are independent, but for the memory that one has after another.
    idles = sorted({2 * program.images, program.images, 2}, reverse=True)
    plans = (plan(program, config, kept, together, cvsram, idle) for idle in idles)
    return next((roomy for roomy in plans if roomy.size <= BATCH_ROOM * tight.size), tight)


class _Emitter:
    """Collects the tables. A memory's id and its address's id are the same number."""

    def __init__(
        self,
        program: LoweredProgram,
        config: Configuration,
        tasks: list[Task],
        addresses: Addresses,
        layout: SurfacePlan,
        packed: PackedWeights,
    ) -> None:
        self.program, self.config, self.tasks, self.addresses = program, config, tasks, addresses
        self.packed = packed
        self.constants = addresses.constants
        self.memories: list[MemoryEntry] = []
        self.address_entries: list[AddressEntry] = []
        self.blobs: list[Blob] = []
        self.relocs: list[RelocEntry] = []
        self._pools = {POOL: layout.size, CVSRAM: layout.cvsram_size}

    def loadable(self) -> Loadable:
        # Constants are known only after the descriptors are made, but come first in the memory list.
        shared = [name for name in self.addresses.memories if self._pools.get(name, 1)]
        ids = {name: number for number, name in enumerate(shared)}
        next_id = len(shared)
        entries: list[TaskEntry] = []
        events: list[EventEntry] = []
        lists: list[tuple[int, list[Blob]]] = []
        for number, task in enumerate(self.tasks):
            if isinstance(task, ScheduledDlaTask):
                interface, blobs = Interface.DLA1, self._dla_lists(number, task, ids)
            else:
                interface, blobs = Interface.EMU1, self._cpu_lists(number, task, ids)
            first = next_id
            lists.append((first, blobs))
            next_id += len(blobs)
            # Address index 0 is the network descriptor, then the shared memories, then the other lists.
            address_list = (first, *range(len(shared)), *range(first + 1, next_id))
            entries.append(TaskEntry(number, interface, address_list, -1, *self._events(number, events)))
        self._add_shared(shared)
        for first, blobs in lists:
            for offset, blob in enumerate(blobs):
                self._memory(first + offset, blob.size, MemoryFlags.ALLOC | MemoryFlags.SET, (blob.name,), (0,))
                self.blobs.append(blob)
        for name, _, data in self.constants.blobs:
            self.blobs.append(Blob(name, memoryview(data), version=_RAW_VERSION))
        return Loadable(
            tasks=tuple(entries),
            memories=tuple(self.memories),
            addresses=tuple(self.address_entries),
            events=tuple(events),
            blobs=tuple(self.blobs),
            tensors=tuple(self._tensor(index, root, ids) for index, root in enumerate(self.addresses.bound)),
            relocs=tuple(self._relocs(ids, lists)),
            submits=tuple(SubmitEntry(number, (number,)) for number in range(len(self.tasks))),
            name=self.program.name,
        )

    # ---- memories

    def _memory(
        self,
        number: int,
        size: int,
        flags: MemoryFlags,
        contents: tuple[str, ...] = (),
        offsets: tuple[int, ...] = (),
        bind: int = 0,
        tensor: int = 0,
        domain: MemoryDomain = MemoryDomain.SYSTEM,
    ) -> None:
        size = max(size, 1)
        self.memories.append(
            MemoryEntry(
                number,
                size,
                domain,
                flags=flags,
                alignment=PAGE,
                contents=contents,
                offsets=offsets,
                bind_id=bind,
                tensor_desc_id=tensor,
            )
        )
        self.address_entries.append(AddressEntry(number, number, 0, size))

    def _add_shared(self, shared: list[str]) -> None:
        inputs = len(self.program.inputs)
        bound = self.addresses.bound
        for number, name in enumerate(shared):
            if name == CONSTANTS:
                names = tuple(blob[0] for blob in self.constants.blobs)
                offsets = tuple(blob[1] for blob in self.constants.blobs)
                flags = MemoryFlags.ALLOC | (MemoryFlags.SET if names else MemoryFlags.NONE)
                self._memory(number, align(max(self.constants.size, 1), PAGE), flags, names, offsets)
            elif name in self._pools:
                domain = MemoryDomain.SRAM if name == CVSRAM else MemoryDomain.SYSTEM
                self._memory(number, self._pools[name], MemoryFlags.ALLOC, domain=domain)
            else:
                tensor = number - (len(shared) - len(bound))
                flag = MemoryFlags.INPUT if tensor < inputs else MemoryFlags.OUTPUT
                bind = tensor if tensor < inputs else tensor - inputs
                size = self.addresses.layout(bound[tensor]).size * self.program.images
                self._memory(number, size, MemoryFlags.ALLOC | flag, bind=bind, tensor=tensor)

    def _tensor(self, index: int, root: Root, ids: dict[str, int]) -> TensorDesc:
        layout = self.addresses.layout(root)
        pixel = root.pixels
        if pixel is None:
            pixel = feature_format(self.config.memory_atom)
            assert pixel is not None  # lowering refuses others
        strides = (BYTES[root.stored], layout.line_stride, layout.surface_stride, 0, 0, 0, 0, 0)
        return TensorDesc(
            root.name,
            index,
            ids[f"{root.role} {root.name}"],
            layout.size * self.program.images,
            self.program.images,
            root.channels,
            root.height,
            root.width,
            data_format=DataFormat.NCxHWx if root.pixels is None else DataFormat.NHWC,
            data_type=_DATA_TYPES[root.stored],
            data_category=DataCategory.FEATURE if root.pixels is None else DataCategory.IMAGE,
            pixel_format=pixel,
            strides=strides,
        )

    # ---- DLA tasks

    def _dla_lists(self, number: int, task: ScheduledDlaTask, ids: dict[str, int]) -> list[Blob]:
        """Blobs of network descriptor, dependency graph, operations, surfaces and tables."""
        indices = {name: 1 + id_ for name, id_ in ids.items()}
        describer = Describer(self.addresses, self.constants, indices, self.packed)
        described = [describer.describe(hardware) for hardware in task.operations]
        links = link(task.operations, {operation.index: self._extents(operation) for operation in task.operations})
        graph = b"".join(bytes(_common(hardware, links[hardware.index])) for hardware in task.operations)
        lists = [("dep_graph", SubInterface.DEPS, graph)]
        lists.append(("op_list", SubInterface.OPS, b"".join(bytes(operation) for operation, _ in described)))
        lists.append(("surf_list", SubInterface.SURFS, b"".join(bytes(surface) for _, surface in described)))
        if describer.luts:
            lists.append(("lut_list", SubInterface.LUTS, b"".join(bytes(lut_param(lut)) for lut in describer.luts)))
        network = self._network(task, len(ids), len(describer.luts))
        blobs = [self._blob(number, "addr0", Interface.DLA1, SubInterface.ADDR0, bytes(network))]
        return blobs + [self._blob(number, name, Interface.DLA1, sub, data) for name, sub, data in lists]

    def _network(self, task: ScheduledDlaTask, shared: int, luts: int) -> Structure:
        network = NEW.NetworkDesc()
        first = 1 + shared
        network.dependency_graph_index, network.operation_desc_index, network.surface_desc_index = (
            first,
            first + 1,
            first + 2,
        )
        network.lut_data_index = first + 3 if luts else -1
        network.roi_array_index = network.surface_index = network.stat_list_index = -1
        heads = [-1] * NUM_OP_TYPES
        for hardware in reversed(task.operations):
            heads[hardware.type] = hardware.index
        network.op_head[:] = heads
        network.num_rois, network.num_operations, network.num_luts = 1, len(task.operations), luts
        network.num_addresses = 1 + shared + 3 + bool(luts)
        return network

    def _extents(self, hardware: HardwareOperation) -> tuple[list[Extent], list[Extent]]:
        read = [self.addresses.cube(surface).extent for surface in hardware.inputs]
        return read, [self.addresses.cube(hardware.output).extent] if hardware.output is not None else []

    @staticmethod
    def _blob(number: int, name: str, interface: Interface, sub: SubInterface, data: bytes) -> Blob:
        version = _DLA_VERSION if interface == Interface.DLA1 else _EMU_VERSION
        return Blob(f"task-{number}-{name}", memoryview(data), interface=interface, sub_interface=sub, version=version)

    def _events(self, number: int, events: list[EventEntry]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Tasks follow each other: each waits for the value that the one before signals."""
        before: tuple[int, ...] = ()
        if number:
            events.append(EventEntry(len(events), target=0, val=number, op=EventOp.WAIT))
            before = (events[-1].id,)
        events.append(EventEntry(len(events), target=0, val=number + 1, op=EventOp.SIGNAL))
        return before, (events[-1].id,)

    # ---- CPU tasks

    def _cpu_lists(self, number: int, task: ScheduledCpuTask, ids: dict[str, int]) -> list[Blob]:
        indices = {name: 1 + id_ for name, id_ in ids.items()}
        network = NEW.EmuNetworkDesc()
        network.operation_desc_index, network.operation_buffer_desc_index = 1 + len(ids), 2 + len(ids)
        network.num_operations = 1
        container, buffers = NEW.EmuOperationContainer(), NEW.EmuBuffers()
        softmax = container.softmax_op
        softmax.common.op_type, softmax.axis = EmuOpType.SOFTMAX, 1
        softmax.common.input_scale_factor = task.operation.source.scale
        softmax.common.output_scale_factor = task.operation.destination.scale
        for target, surface in (
            (buffers.src_data, task.operation.source),
            (buffers.dst_data, task.operation.destination),
        ):
            cube = self.addresses.cube(surface)
            target.address_index, target.address_index_offset, target.size = (
                indices[cube.memory],
                cube.offset,
                cube.size,
            )
            target.format = self._cpu_format(surface.precision)
            target.width, target.height, target.channel = cube.width, cube.height, cube.channels
            target.line_stride, target.surf_stride = cube.line_stride, cube.surface_stride
        return [
            self._blob(number, "addr0", Interface.EMU1, SubInterface.ADDR0, bytes(network)),
            self._blob(number, "op_list", Interface.EMU1, SubInterface.OPS, bytes(container)),
            self._blob(number, "op_buf_list", Interface.EMU1, SubInterface.SURFS, bytes(buffers)),
        ]

    def _cpu_format(self, precision: str) -> EmuFormat:
        if precision == Precision.FP16:
            return EmuFormat.FF16
        return EmuFormat.INT8_8 if self.config.memory_atom == 8 else EmuFormat.INT8

    # ---- relocations

    def _relocs(self, ids: dict[str, int], lists: list[tuple[int, list[Blob]]]) -> list[RelocEntry]:
        """Strides of bound tensors within surface and buffer lists, for applications that bind other strides."""
        entries = []
        bound = {1 + ids[f"{root.role} {root.name}"]: root for root in self.addresses.bound}
        for task, (first, blobs) in zip(self.tasks, lists, strict=True):
            position = next(i for i, blob in enumerate(blobs) if blob.sub_interface == SubInterface.SURFS)
            interface = Interface.DLA1 if isinstance(task, ScheduledDlaTask) else Interface.EMU1
            fields = _stride_fields(task, blobs[position], bound)
            for address in sorted(fields):
                for offset, kind in _relocated(fields[address], self.addresses.layout(bound[address]), bound[address]):
                    entry = RelocEntry(address - 1, first + position, offset, interface, SubInterface.SURFS, kind)
                    entries.append(entry)
        return entries


def _common(hardware: HardwareOperation, links: Links) -> Structure:
    common = NEW.CommonOpDesc()
    common.index, common.op_type = hardware.index, hardware.type
    common.dependency_count = links.dependencies
    for kind in range(NUM_OP_TYPES):
        index, event = links.consumers.get(OpType(kind), (-1, Event.OP_COMPLETED))
        common.consumers[kind].index, common.consumers[kind].event = index, event
    index, event = links.fused_parent or (-1, Event.OP_COMPLETED)
    common.fused_parent.index, common.fused_parent.event = index, event
    return common


_MEMBERS = {
    OpType.CONV: ("conv_surface", ("src_data",)),
    OpType.SDP: ("sdp_surface", ("src_data", "x1_data", "x2_data", "dst_data")),
    OpType.PDP: ("pdp_surface", ("src_data", "dst_data")),
    OpType.CDP: ("cdp_surface", ("src_data", "dst_data")),
    OpType.RUBIK: ("rubik_surface", ("src_data", "dst_data")),
}


@dataclass(frozen=True)
class _StrideField:
    """Strides in a surface list: the place of the structure, and what it holds."""

    base: int
    kind: Any
    line_stride: int
    surf_stride: int


def _stride_fields(task: Task, blob: Blob, bound: Mapping[int, Root]) -> dict[int, list[_StrideField]]:
    """The strides in a surface list that belong to bound tensors, by their address."""
    stride_fields: dict[int, list[_StrideField]] = {}

    def look(target: Any, kind: Any, base: int, address: int) -> None:
        if address in bound:
            stride_fields.setdefault(address, []).append(
                _StrideField(base, kind, target.line_stride, target.surf_stride)
            )

    if isinstance(task, ScheduledCpuTask):
        buffers = NEW.EmuBuffers.from_buffer_copy(blob.data)
        for name in ("src_data", "dst_data"):
            target = getattr(buffers, name)
            look(target, NEW.EmuBuffer, getattr(NEW.EmuBuffers, name).offset, target.address_index)
        return stride_fields
    size = ctypes.sizeof(NEW.SurfaceContainer)
    for hardware in task.operations:
        member, names = _MEMBERS[hardware.type]
        container = NEW.SurfaceContainer.from_buffer_copy(blob.data, hardware.index * size)
        structure = getattr(container, member)
        for name in names:
            target, base = getattr(structure, name), hardware.index * size + getattr(type(structure), name).offset
            look(target, NEW.DataCube, base, target.address)
    return stride_fields


def _relocated(fields: list[_StrideField], layout: MemoryLayout, root: Root) -> Iterator[tuple[int, RelocType]]:
    """Byte offsets of the strides that are those of the bound tensor."""
    if root.pixels is not None and len(PIXEL_FORMATS[root.pixels].planes) > 1:
        return  # the second plane's stride and place have no kind of relocation
    for stride in fields:
        if stride.line_stride == layout.line_stride:
            yield stride.base + stride.kind.line_stride.offset, RelocType.LINE
        if root.pixels is None and stride.surf_stride == layout.surface_stride:
            yield stride.base + stride.kind.surf_stride.offset, RelocType.SURFACE
