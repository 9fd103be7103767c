"""Small networks made by hand: operations and their dependency graph, descriptor by descriptor.

Memory "data" (address index 1) is bound as input and output at once through two windows: operations read and write
cubes of 8 x 1 x 1 bytes (nv_small) at offsets of it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from nvdla.loadable import AddressEntry, Blob, Loadable, MemoryEntry, SubmitEntry, TaskEntry, TensorDesc
from nvdla.loadable.descriptors import NEW
from nvdla.loadable.descriptors.enums import Event, OpType
from nvdla.loadable.enums import DataFormat, DataType, Interface, MemoryFlags, PixelFormat, SubInterface

ATOM = {"nv_small": 8, "nv_full": 32}
DATA_BYTES = 4096
INPUT, OUTPUT, WORK = 1, 2, 3  # address indices
SET = MemoryFlags.ALLOC | MemoryFlags.SET


@dataclass
class Op:
    """One operation: how to fill its descriptors, and its node in the graph.

    ``consumers``: (operation index, event) by type; ``waits``: its dependency count.
    """

    type: OpType
    fill: object
    waits: int = 0
    consumers: dict[OpType, tuple[int, Event]] = field(default_factory=dict)
    fused_parent: tuple[int, Event] | None = None


def cube(target, address, offset=0, size=1, memory=0, atom=8, width=1, height=1, channels=None):
    """Fill a data cube descriptor; ``address`` -1 with memory 2 is on the fly."""
    target.type, target.address, target.offset = memory, address, offset
    target.width, target.height, target.channel = width, height, channels or atom
    target.line_stride, target.surf_stride = width * atom, width * height * atom
    target.size = width * height * atom


def copy(source, destination, atom=8):
    """An SDP operation that copies one atom: (address index, offset) to (address index, offset)."""

    def fill(op, surface):
        op.lut_index = -1
        op.batch_num = 1
        op.out_cvt.scale = 1
        cube(surface.src_data, *source, atom=atom)
        cube(surface.dst_data, *destination, atom=atom)

    return fill


def pool(source, destination, atom=8):
    """A PDP operation: 1x1 maximum pooling, so a copy."""

    def fill(op, surface):
        op.split_num = op.stride_x = op.stride_y = op.pool_mode = 1
        cube(surface.src_data, *source, atom=atom)
        cube(surface.dst_data, *destination, atom=atom)

    return fill


def chain(count, op_type=OpType.SDP, make=copy):
    """``count`` operations, each after the one before, through the work memory."""
    ops = []
    for index in range(count):
        source = (INPUT, 0) if index == 0 else (WORK, 64 * index)
        destination = (OUTPUT, 0) if index == count - 1 else (WORK, 64 * (index + 1))
        op = Op(op_type, make(source, destination), waits=int(index > 0))
        if index < count - 1:
            op.consumers[op_type] = (index + 1, Event.OP_COMPLETED)
        ops.append(op)
    return ops


def dependency(target, op, index):
    target.index, target.op_type, target.dependency_count = index, op.type, op.waits
    for consumer in (*target.consumers, target.fused_parent):
        consumer.index = -1
    for op_type, (consumer, event) in op.consumers.items():
        target.consumers[op_type].index, target.consumers[op_type].event = consumer, event
    if op.fused_parent:
        target.fused_parent.index, target.fused_parent.event = op.fused_parent


def heads(ops):
    """The first operation of each type that no other of its type leads to."""
    found = []
    for op_type in OpType:
        own = [index for index, op in enumerate(ops) if op.type == op_type]
        followers = {op.consumers[op_type][0] for op in ops if op.type == op_type and op_type in op.consumers}
        found.append(next((index for index in own if index not in followers), own[0] if own else -1))
    return found


def blobs_of(ops, rois=1, statistics=False, op_head=None, **network):
    """The descriptor blobs of a DLA task; ``ops`` holds the operations of all ROIs one ROI after the other."""
    desc = NEW.NetworkDesc(
        operation_desc_index=5,
        surface_desc_index=6,
        dependency_graph_index=4,
        lut_data_index=7,
        roi_array_index=-1,
        surface_index=-1,
        stat_list_index=8 if statistics else -1,
        num_rois=rois,
        num_operations=len(ops) // rois,
        num_luts=2,
        num_addresses=9,
        input_layer=-1,
    )
    desc.op_head[:] = op_head or heads(ops[: len(ops) // rois])
    for name, value in network.items():
        setattr(desc, name, value)
    graph = (NEW.CommonOpDesc * len(ops))()
    containers = (NEW.OperationContainer * len(ops))()
    surfaces = (NEW.SurfaceContainer * len(ops))()
    for index, op in enumerate(ops):
        dependency(graph[index], op, index % (len(ops) // rois))
        name = op.type.name.lower()
        op.fill(getattr(containers[index], f"{name}_op"), getattr(surfaces[index], f"{name}_surface"))
    return {
        "addr0": bytes(desc),
        "dep_graph": bytes(graph),
        "op_list": bytes(containers),
        "surf_list": bytes(surfaces),
        "lut_list": bytes(2 * ctypes.sizeof(NEW.LutParam)),
        "stat_list": bytes(len(ops) * ctypes.sizeof(NEW.StatContainer)),
    }


SUBS = {
    "addr0": SubInterface.ADDR0,
    "dep_graph": SubInterface.DEPS,
    "op_list": SubInterface.OPS,
    "surf_list": SubInterface.SURFS,
    "lut_list": SubInterface.LUTS,
    "stat_list": SubInterface.NONE,
}


def network(ops, config="nv_small", extra=None, **options):
    """A loadable of one DLA task. ``extra``: further blobs by name, behind the address indices from 9 on."""
    atom = ATOM[config]
    blobs = blobs_of(ops, **options)
    blobs.update(extra or {})
    memories = [
        MemoryEntry(0, 256, flags=MemoryFlags.ALLOC | MemoryFlags.INPUT, tensor_desc_id=0),
        MemoryEntry(1, 256, flags=MemoryFlags.ALLOC | MemoryFlags.OUTPUT, tensor_desc_id=1),
        MemoryEntry(2, DATA_BYTES, flags=MemoryFlags.ALLOC),
    ]
    order = []
    for name, data in blobs.items():
        order.append(len(memories))
        memories.append(MemoryEntry(len(memories), len(data), flags=SET, contents=(f"task-0-{name}",), offsets=(0,)))
    addresses = tuple(AddressEntry(memory.id, memory.id, 0, memory.size) for memory in memories)
    task = TaskEntry(0, Interface.DLA1, (order[0], 0, 1, 2, *order[1:]))
    return Loadable(
        tasks=(task,),
        memories=tuple(memories),
        addresses=addresses,
        blobs=tuple(
            Blob(f"task-0-{name}", data, len(data), Interface.DLA1, SUBS.get(name, SubInterface.NONE))
            for name, data in blobs.items()
        ),
        tensors=(tensor("data", 0, atom), tensor("result", 1, atom)),
        submits=(SubmitEntry(0, (0,)),),
    )


def tensor(name, number, atom):
    pixel_format = {8: PixelFormat.FEATURE_X8, 32: PixelFormat.FEATURE}[atom]
    width = 256 // atom
    return TensorDesc(
        name,
        number,
        mem_id=number,
        size=256,
        n=1,
        c=atom,
        h=1,
        w=width,
        data_format=DataFormat.NCxHWx,
        data_type=DataType.INT8,
        pixel_format=pixel_format,
        strides=(1, 256, 256, 0, 0, 0, 0, 0),
    )
