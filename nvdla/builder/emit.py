"""The loadable: memories, addresses, tasks, descriptor lists, bound tensors, relocations."""

from __future__ import annotations

import ctypes
from typing import Any

from nvdla.builder.addresses import CONSTANTS, CVSRAM, POOL, Addresses, Extent
from nvdla.builder.describe import Describer, lut_param
from nvdla.builder.graph import Links, link
from nvdla.builder.ir import BYTES, LoweredProgram, Root, reads
from nvdla.builder.packing import PackedWeights
from nvdla.builder.planner import SurfacePlan, plan
from nvdla.builder.schedule import HardwareOperation, ScheduledCpuTask, ScheduledDlaTask, Task, schedule
from nvdla.builder.weigh import Weigher
from nvdla.descriptors.abi import NEW
from nvdla.descriptors.enums import EmuFormat, EmuOpType, Event, OpType
from nvdla.descriptors.structures import NUM_OP_TYPES
from nvdla.hardware.configuration import Configuration
from nvdla.loadable.enums import (
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
from nvdla.loadable.pixel_formats import PIXEL_FORMATS
from nvdla.memory.surfaces import FEATURE_ATOMS
from nvdla.rounding import align

PAGE = 4096
# What a batch may take of the memory that it needs at the least, so that images do not wait for one another.
BATCH_ROOM = 3.0
_DATA_TYPES = {"int8": DataType.INT8, "int16": DataType.INT16, "fp16": DataType.HALF}
_DLA_VERSION, _EMU_VERSION, _RAW_VERSION = Version(0, 12, 3), Version(0, 0, 1), Version(0, 0, 0)


def emit(
    program: LoweredProgram,
    config: Configuration,
    weigher: Weigher | None = None,
    packed: PackedWeights | None = None,
    cvsram: int = 0,
) -> tuple[Loadable, list[Task], SurfacePlan]:
    """The loadable of a program, the tasks as scheduled (for the sidecar), and where surfaces lie.

    ``weigher``: who chooses forms (None: as level 1 does); ``packed``: weights that were packed before, of the same
    program; ``cvsram``: bytes of CVSRAM that surfaces may lie in.
    """
    tasks = schedule(program, config, weigher)
    layout = memory_plan(program, config, tasks, cvsram)
    addresses = Addresses(program, config, layout)
    emitter = _Emitter(program, config, tasks, addresses, layout, packed or PackedWeights(program, config))
    return emitter.loadable(), tasks, layout


def memory_plan(program: LoweredProgram, config: Configuration, tasks: list[Task], cvsram: int = 0) -> SurfacePlan:
    """Where inner surfaces lie. What goes on the fly needs no memory; a chain on the fly reads and writes at one
    time."""
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
                interface, made = Interface.DLA1, self._dla_lists(number, task, ids)
            else:
                interface, made = Interface.EMU1, self._cpu_lists(number, task, ids)
            first = next_id
            lists.append((first, made))
            next_id += len(made)
            # Address index 0 is the network descriptor, then the shared memories, then the other lists.
            address_list = (first, *range(len(shared)), *range(first + 1, next_id))
            entries.append(TaskEntry(number, interface, address_list, -1, *self._events(number, events)))
        self._add_shared(shared)
        for first, made in lists:
            for offset, blob in enumerate(made):
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
            pixel = next(each for each, atom in FEATURE_ATOMS.items() if atom == self.config.memory_atom)
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
        indices = {name: 1 + each for name, each in ids.items()}
        describer = Describer(self.addresses, self.constants, indices, self.packed)
        described = [describer.describe(hardware) for hardware in task.operations]
        links = link(task.operations, {each.index: self._extents(each) for each in task.operations})
        graph = b"".join(bytes(_common(hardware, links[hardware.index])) for hardware in task.operations)
        lists = [("dep_graph", SubInterface.DEPS, graph)]
        lists.append(("op_list", SubInterface.OPS, b"".join(bytes(operation) for operation, _ in described)))
        lists.append(("surf_list", SubInterface.SURFS, b"".join(bytes(surface) for _, surface in described)))
        if describer.luts:
            lists.append(("lut_list", SubInterface.LUTS, b"".join(bytes(lut_param(lut)) for lut in describer.luts)))
        network = self._network(task, len(ids), len(describer.luts))
        blobs = [self._blob(number, "addr0", Interface.DLA1, SubInterface.ADDR0, bytes(network))]
        return blobs + [self._blob(number, name, Interface.DLA1, sub, data) for name, sub, data in lists]

    def _network(self, task: ScheduledDlaTask, shared: int, luts: int) -> Any:
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
        indices = {name: 1 + each for name, each in ids.items()}
        network = NEW.EmuNetworkDesc()
        network.operation_desc_index, network.operation_buffer_desc_index = 1 + len(ids), 2 + len(ids)
        network.num_operations = 1
        container, buffers = NEW.EmuOperationContainer(), NEW.EmuBuffers()
        softmax = container.softmax_op
        softmax.common.op_type, softmax.axis = EmuOpType.SOFTMAX, 1
        softmax.common.input_scale_factor = task.operation.source.scale
        softmax.common.output_scale_factor = task.operation.destination.scale
        for field, surface in (
            (buffers.src_data, task.operation.source),
            (buffers.dst_data, task.operation.destination),
        ):
            cube = self.addresses.cube(surface)
            field.address_index, field.address_index_offset, field.size = indices[cube.memory], cube.offset, cube.size
            field.format = self._cpu_format(surface.precision)
            field.width, field.height, field.channel = cube.width, cube.height, cube.channels
            field.line_stride, field.surf_stride = cube.line_stride, cube.surface_stride
        return [
            self._blob(number, "addr0", Interface.EMU1, SubInterface.ADDR0, bytes(network)),
            self._blob(number, "op_list", Interface.EMU1, SubInterface.OPS, bytes(container)),
            self._blob(number, "op_buf_list", Interface.EMU1, SubInterface.SURFS, bytes(buffers)),
        ]

    def _cpu_format(self, precision: str) -> EmuFormat:
        if precision == "fp16":
            return EmuFormat.FF16
        return EmuFormat.INT8_8 if self.config.memory_atom == 8 else EmuFormat.INT8

    # ---- relocations

    def _relocs(self, ids: dict[str, int], lists: list[tuple[int, list[Blob]]]) -> list[RelocEntry]:
        """Strides of bound tensors within surface and buffer lists, for applications that bind other strides."""
        found = []
        for task, (first, blobs) in zip(self.tasks, lists, strict=True):
            position = next(i for i, blob in enumerate(blobs) if blob.sub_interface == SubInterface.SURFS)
            interface = Interface.DLA1 if isinstance(task, ScheduledDlaTask) else Interface.EMU1
            for root in self.addresses.bound:
                name = f"{root.role} {root.name}"
                for offset, kind in _stride_fields(task, blobs[position], 1 + ids[name], self.addresses, root):
                    found.append(RelocEntry(ids[name], first + position, offset, interface, SubInterface.SURFS, kind))
        return found


def _common(hardware: HardwareOperation, links: Links) -> Any:
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


def _stride_fields(
    task: Task, blob: Blob, address: int, addresses: Addresses, root: Root
) -> list[tuple[int, RelocType]]:
    """Byte offsets in a surface list of the strides that are those of one bound tensor."""
    layout = addresses.layout(root)
    found: list[tuple[int, RelocType]] = []
    if root.pixels is not None and len(PIXEL_FORMATS[root.pixels].planes) > 1:
        return found  # the second plane's stride and place have no kind of relocation

    def look(field: Any, kind: Any, base: int, index_name: str) -> None:
        if getattr(field, index_name) != address:
            return
        if field.line_stride == layout.line_stride:
            found.append((base + kind.line_stride.offset, RelocType.LINE))
        if root.pixels is None and field.surf_stride == layout.surface_stride:
            found.append((base + kind.surf_stride.offset, RelocType.SURFACE))

    if isinstance(task, ScheduledCpuTask):
        buffers = NEW.EmuBuffers.from_buffer_copy(blob.data)
        for name in ("src_data", "dst_data"):
            look(getattr(buffers, name), NEW.EmuBuffer, getattr(NEW.EmuBuffers, name).offset, "address_index")
        return found
    size = ctypes.sizeof(NEW.SurfaceContainer)
    for hardware in task.operations:
        member, names = _MEMBERS[hardware.type]
        container = NEW.SurfaceContainer.from_buffer_copy(blob.data, hardware.index * size)
        structure = getattr(container, member)
        for name in names:
            base = hardware.index * size + getattr(type(structure), name).offset
            look(getattr(structure, name), NEW.DataCube, base, "address")
    return found
