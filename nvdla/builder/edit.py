"""Edit loadables: weights and operands in place, names, order of inputs and outputs, what nobody uses.

All functions take a loadable and give a new one; they refuse with BuildError (DescriptorError for broken descriptors).
:mod:`nvdla.builder.convert` changes the descriptor ABI, :mod:`nvdla.builder.merge` joins two loadables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nvdla.descriptors.enums import DataFormat, OpType, Precision, SdpMode, SdpType, WeightFormat
from nvdla.descriptors.task import DlaOperation, DlaTask
from nvdla.errors import BuildError, DescriptorError, FormatError, shape_text
from nvdla.hardware.configuration import Configuration, configuration
from nvdla.loadable.enums import Interface
from nvdla.loadable.model import Blob, Loadable, MemoryEntry
from nvdla.memory.weights import compress_as, pack_direct
from nvdla.program.program import Program
from nvdla.rounding import ceil_div

_STAGES = ("x1", "x2", "y")


def replace_weights(loadable: Loadable, task: int, operation: int, weights: np.ndarray, config: str) -> Loadable:
    """Other weights for one convolution.

    ``weights`` (kernels, channels, rows, columns) have the element type of the operation (int8, int16, float16) and the
    size of the old ones; ``config`` decides how they are packed. Convolutions that share the old weights (tiles of one
    layer) get the new ones too. Of compressed weights those that are left out must stay 0.
    """
    decoded, found = _operation(loadable, task, operation, OpType.CONV)
    chosen = configuration(config)
    op = found.op
    where = f"operation {task}/{operation}"
    if op.data_format != DataFormat.FEATURE or op.conv_mode:
        raise BuildError(f"{where}: only weights of direct convolutions on feature data can be replaced")
    shape = (found.surface.dst_data.channel, op.kernel_channel_csc, op.kernel_height_csc, op.kernel_width_csc)
    dtype = Precision(op.out_precision).dtype
    weights = np.asarray(weights)
    if weights.shape != shape or weights.dtype != dtype:
        raise BuildError(
            f"{where}: weights {shape_text(weights.shape)} {weights.dtype} must be {shape_text(shape)} {dtype}"
        )
    data = _packed(weights, chosen)
    if op.weight_format == WeightFormat.COMPRESSED:
        mask = _content(loadable, decoded, found.surface.wmb_data, ceil_div(weights.size, 8), where)
        room, elements = found.surface.weight_data.size, np.frombuffer(data, weights.dtype)
        try:
            data = compress_as(elements, np.frombuffer(mask, np.uint8), room, where)
        except FormatError as error:
            raise BuildError(str(error)) from None
    return _overwrite(loadable, decoded, found.surface.weight_data, data, where)


def _packed(weights: np.ndarray, config: Configuration) -> bytes:
    return pack_direct(weights, config.mac_atomic_k // weights.dtype.itemsize, config.mac_atomic_c)


def replace_operands(
    loadable: Loadable,
    task: int,
    operation: int,
    stage: str = "x1",
    alu: np.ndarray | None = None,
    multiplier: np.ndarray | None = None,
) -> Loadable:
    """Other operands a channel (biases, factors) for a stage of one SDP operation: int16 or float16 (channels,).

    Give those that the stage has: ``alu``, ``multiplier`` or both.
    """
    where = f"operation {task}/{operation}, stage {stage}"
    if stage not in _STAGES:
        raise BuildError(f"{where}: stages are {', '.join(_STAGES)}")
    decoded, found = _operation(loadable, task, operation, OpType.SDP)
    settings, cube = getattr(found.op, f"{stage}_op"), getattr(found.surface, f"{stage}_data")
    wanted = {SdpType.ADD: (alu,), SdpType.MUL: (multiplier,), SdpType.BOTH: (alu, multiplier)}.get(settings.type, ())
    if not settings.enable or settings.mode != SdpMode.PER_KERNEL or not wanted:
        raise BuildError(f"{where}: has no operands a channel in memory")
    given = sum(each is not None for each in (alu, multiplier))
    if any(each is None for each in wanted) or given != len(wanted):
        names = {SdpType.ADD: "alu", SdpType.MUL: "multiplier", SdpType.BOTH: "alu and multiplier"}
        raise BuildError(f"{where}: takes {names[SdpType(settings.type)]}")
    dtype = Precision(settings.precision).dtype
    columns = []
    for values in wanted:
        values = np.asarray(values)
        if values.shape != (cube.channel,) or values.dtype != dtype:
            raise BuildError(
                f"{where}: operands {shape_text(values.shape)} {values.dtype} must be {cube.channel} {dtype}"
            )
        columns.append(values)
    return _overwrite(loadable, decoded, cube, np.stack(columns, axis=1).tobytes(), where)


def rename(loadable: Loadable, names: Mapping[str, str]) -> Loadable:
    """Other names for bound tensors: {old: new}."""
    known = [tensor.name for tensor in loadable.tensors]
    for name in names:
        if name not in known:
            raise BuildError(f"no tensor is called {name!r}; there are {', '.join(known)}")
    tensors = tuple(replace(each, name=names.get(each.name, each.name)) for each in loadable.tensors)
    final = [tensor.name for tensor in tensors]
    if len(set(final)) < len(final):
        raise BuildError(f"two tensors would be called the same: {', '.join(sorted(final))}")
    return replace(loadable, tensors=tensors)


def rebind(loadable: Loadable, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Loadable:
    """Bind inputs and outputs in another order, given as names of tensors; an empty list leaves the order as it is."""
    order: dict[int, int] = {}
    for wanted, entries, what in ((inputs, loadable.inputs, "input"), (outputs, loadable.outputs, "output")):
        if not wanted:
            continue
        names = {loadable.tensor(entry.tensor_desc_id).name: entry.id for entry in entries}
        if sorted(wanted) != sorted(names):
            raise BuildError(f"{what}s {', '.join(wanted)} must be all of {', '.join(names)}, each once")
        order |= {names[name]: position for position, name in enumerate(wanted)}
    memories = tuple(replace(each, bind_id=order.get(each.id, each.bind_id)) for each in loadable.memories)
    return replace(loadable, memories=memories)


def strip(loadable: Loadable) -> Loadable:
    """Leave out what no task reaches: addresses in no address list, memories behind none, blobs in no memory.

    What is left is numbered anew, for NVIDIA's runtime takes ids as positions (umd/core/src/runtime/Runtime.cpp:313).
    """
    tasks = {number for entry in loadable.submits for number in entry.task_ids}
    kept_tasks = [each for each in loadable.tasks if each.id in tasks]
    reached = {address for task in kept_tasks for address in task.address_list}
    addresses = [each for each in loadable.addresses if each.id in reached]
    used = {each.mem_id for each in addresses}
    memories = [each for each in loadable.memories if each.id in used or each.is_input or each.is_output]
    bound = {memory.tensor_desc_id for memory in memories if memory.is_input or memory.is_output}
    names = {name for memory in memories for name in memory.contents}
    events = {event for task in kept_tasks for event in (*task.pre_actions, *task.post_actions)}
    relocs = tuple(each for each in loadable.relocs if each.address_id in reached and each.write_id in used)
    return _numbered(
        replace(
            loadable,
            tasks=tuple(kept_tasks),
            addresses=tuple(addresses),
            memories=tuple(memories),
            blobs=tuple(each for each in loadable.blobs if each.name in names),
            tensors=tuple(each for each in loadable.tensors if each.id in bound),
            events=tuple(each for each in loadable.events if each.id in events),
            relocs=relocs,
        )
    )


def _numbered(loadable: Loadable) -> Loadable:
    """Every table's ids as positions in it, and all references to them."""
    tables = ("tasks", "memories", "addresses", "events", "tensors")
    new = {table: {each.id: number for number, each in enumerate(getattr(loadable, table))} for table in tables}

    def numbers(table: str, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(new[table][each] for each in ids)

    return replace(
        loadable,
        tasks=tuple(
            replace(
                each,
                id=new["tasks"][each.id],
                address_list=numbers("addresses", each.address_list),
                pre_actions=numbers("events", each.pre_actions),
                post_actions=numbers("events", each.post_actions),
            )
            for each in loadable.tasks
        ),
        memories=tuple(
            replace(each, id=number, tensor_desc_id=new["tensors"].get(each.tensor_desc_id, 0))
            for number, each in enumerate(loadable.memories)
        ),
        addresses=tuple(
            replace(each, id=number, mem_id=new["memories"][each.mem_id])
            for number, each in enumerate(loadable.addresses)
        ),
        events=tuple(replace(each, id=number) for number, each in enumerate(loadable.events)),
        tensors=tuple(
            replace(each, id=number, mem_id=new["memories"].get(each.mem_id, each.mem_id))
            for number, each in enumerate(loadable.tensors)
        ),
        relocs=tuple(
            replace(each, address_id=new["addresses"][each.address_id], write_id=new["memories"][each.write_id])
            for each in loadable.relocs
        ),
        submits=tuple(replace(each, task_ids=numbers("tasks", each.task_ids)) for each in loadable.submits),
    )


# ---- the common part


def _operation(loadable: Loadable, task: int, operation: int, kind: OpType) -> tuple[DlaTask, DlaOperation]:
    entry = loadable.task(task)
    if entry.interface != Interface.DLA1:
        raise BuildError(f"task {task} runs on the CPU; it has no {kind.name} operation")
    program = Program.of(loadable, checked=False)
    if task in program.broken:
        raise DescriptorError(program.broken[task])
    decoded = program.dla_tasks[task]
    found = decoded.operation(operation)
    if found.op_type != kind:
        raise BuildError(f"operation {task}/{operation} is {found.op_type.name}, not {kind.name}")
    return decoded, found


def _overwrite(loadable: Loadable, task: DlaTask, cube: Any, data: bytes, where: str) -> Loadable:
    """Write ``data`` over the blob in which a cube lies; it must fit the cube."""
    if len(data) > cube.size:
        raise BuildError(f"{where}: {len(data)} bytes, the old data take {cube.size}")
    blob, offset = _blob_of(loadable, task, cube, len(data), where)
    content = bytearray(blob.data)
    content[offset : offset + len(data)] = data
    changed = replace(blob, data=memoryview(bytes(content)))
    return replace(loadable, blobs=tuple(changed if each is blob else each for each in loadable.blobs))


def _content(loadable: Loadable, task: DlaTask, cube: Any, size: int, where: str) -> memoryview:
    """The first ``size`` bytes of a cube."""
    blob, offset = _blob_of(loadable, task, cube, size, where)
    return blob.data[offset : offset + size]


def _blob_of(loadable: Loadable, task: DlaTask, cube: Any, size: int, where: str) -> tuple[Blob, int]:
    address = loadable.address(task.task.address_list[cube.address])
    return _blob_at(loadable, loadable.memory(address.mem_id), address.offset + cube.offset, size, where)


def _blob_at(loadable: Loadable, memory: MemoryEntry, start: int, size: int, where: str) -> tuple[Blob, int]:
    """The blob that fills bytes start.. of a memory, and the byte in it."""
    for name, offset in zip(memory.contents, memory.offsets, strict=True):
        blob = loadable.blob(name)
        if offset <= start and start + size <= offset + blob.size:
            return blob, start - offset
    raise BuildError(f"{where}: bytes {start} to {start + size} of memory {memory.id} are not those of one blob")
