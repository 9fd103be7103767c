"""Changes of existing loadables: edit, merge, and convert to another ABI.

All functions take loadables and return a new one. They raise BuildError, or DescriptorError for broken descriptors.

The old data cube has no byte offset: :func:`convert_abi` makes every offset a separate address entry, appended to the
task's address list; the way back leaves these entries in place. Strides in relocations move with the surface lists.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from ctypes import Structure
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration, configuration
from nvdla.emulator.memory.surfaces import compress_as, pack_direct
from nvdla.errors import BuildError, DescriptorError, FormatError, shape_text
from nvdla.loadable.descriptors.abi import Abi, abi_named
from nvdla.loadable.descriptors.enums import (
    OLD_EMU_FORMATS,
    DataFormat,
    EmuFormat,
    EmuOpType,
    OpType,
    Precision,
    SdpMode,
    SdpType,
    WeightFormat,
)
from nvdla.loadable.descriptors.task import DlaOperation, DlaTask, EmuTask
from nvdla.loadable.enums import Interface, SubInterface
from nvdla.loadable.model import AddressEntry, Blob, Loadable, MemoryEntry, RelocEntry, TaskEntry, Version
from nvdla.program.program import Program
from nvdla.util.rounding import ceil_div

__all__ = ["convert_abi", "merge", "rebind", "rename", "replace_operands", "replace_weights", "strip"]

_STAGES = ("x1", "x2", "y")


def replace_weights(loadable: Loadable, task: int, operation: int, weights: np.ndarray, config: str) -> Loadable:
    """Replace the weights of a convolution.

    Convolutions that share the old weights (tiles of one layer) get the new ones, too.

    Args:
        loadable: The loadable.
        task: Id of the task.
        operation: Index of the operation.
        weights: Array (kernels, channels, rows, columns) with the element type of the operation (int8, int16, float16)
            and the old size. In compressed weights, elements that are not stored must stay 0.
        config: Name of the configuration, which determines the packing.

    Returns:
        A new loadable.

    Raises:
        BuildError: The operation is not a direct convolution on features, or the weights do not fit.
    """
    decoded, descriptor = _operation(loadable, task, operation, OpType.CONV)
    chosen = configuration(config)
    op = descriptor.op
    where = f"operation {task}/{operation}"
    if op.data_format != DataFormat.FEATURE or op.conv_mode:
        image = " Compile with --input-format feature (Python: input_format='feature')." if not op.conv_mode else ""
        raise BuildError(f"{where}: weights: must be of a direct convolution on feature data to be replaced.{image}")
    shape = (descriptor.surface.dst_data.channel, op.kernel_channel_csc, op.kernel_height_csc, op.kernel_width_csc)
    dtype = Precision(op.out_precision).dtype
    weights = np.asarray(weights)
    if weights.shape != shape or weights.dtype != dtype:
        raise BuildError(
            f"{where}: weights {shape_text(weights.shape)} {weights.dtype} must be {shape_text(shape)} {dtype}"
        )
    data = _packed(weights, chosen)
    if op.weight_format == WeightFormat.COMPRESSED:
        mask = _content(loadable, decoded, descriptor.surface.wmb_data, ceil_div(weights.size, 8), where)
        room, elements = descriptor.surface.weight_data.size, np.frombuffer(data, weights.dtype)
        try:
            data = compress_as(elements, np.frombuffer(mask, np.uint8), room, where)
        except FormatError as error:
            raise BuildError(str(error)) from None
    return _overwrite(loadable, decoded, descriptor.surface.weight_data, data, where)


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
    """Replace the per-channel operands (biases, factors) of a stage of an SDP operation.

    Args:
        loadable: The loadable.
        task: Id of the task.
        operation: Index of the operation.
        stage: "x1", "x2" or "y".
        alu: Operands (channels,) of the ALU, int16 or float16, if the stage has them.
        multiplier: Operands (channels,) of the multiplier, int16 or float16, if the stage has them.

    Returns:
        A new loadable.

    Raises:
        BuildError: The stage has no operands in memory, or other ones than given.
    """
    where = f"operation {task}/{operation}, stage {stage}"
    if stage not in _STAGES:
        raise BuildError(f"operation {task}/{operation}: stage: must be one of {', '.join(_STAGES)}, got {stage}")
    decoded, descriptor = _operation(loadable, task, operation, OpType.SDP)
    settings, cube = getattr(descriptor.op, f"{stage}_op"), getattr(descriptor.surface, f"{stage}_data")
    wanted = {SdpType.ADD: (alu,), SdpType.MUL: (multiplier,), SdpType.BOTH: (alu, multiplier)}.get(settings.type, ())
    if not settings.enable or settings.mode != SdpMode.PER_KERNEL or not wanted:
        raise BuildError(f"{where}: must have per-channel operands in memory")
    given = sum(values is not None for values in (alu, multiplier))
    if any(values is None for values in wanted) or given != len(wanted):
        names = {SdpType.ADD: "alu", SdpType.MUL: "multiplier", SdpType.BOTH: "alu and multiplier"}
        raise BuildError(f"{where}: operands: must be {names[SdpType(settings.type)]}")
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
    """Rename bound tensors.

    Args:
        loadable: The loadable.
        names: New names by old name.

    Returns:
        A new loadable.

    Raises:
        BuildError: A tensor does not exist, or two would have the same name.
    """
    known = [tensor.name for tensor in loadable.tensors]
    for name in names:
        if name not in known:
            raise BuildError(f"no tensor is called {name!r}: must be one of {', '.join(known)}")
    tensors = tuple(replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in loadable.tensors)
    final = [tensor.name for tensor in tensors]
    if len(set(final)) < len(final):
        raise BuildError(f"names of tensors: must be unique, got {', '.join(sorted(final))}")
    return replace(loadable, tensors=tensors)


def rebind(loadable: Loadable, inputs: Sequence[str] = (), outputs: Sequence[str] = ()) -> Loadable:
    """Change the bind order of inputs and outputs.

    Args:
        loadable: The loadable.
        inputs: Names of all inputs in the new order; empty: unchanged.
        outputs: Names of all outputs in the new order; empty: unchanged.

    Returns:
        A new loadable.

    Raises:
        BuildError: A name is unknown, missing or repeated.
    """
    order: dict[int, int] = {}
    for wanted, entries, what in ((inputs, loadable.inputs, "input"), (outputs, loadable.outputs, "output")):
        if not wanted:
            continue
        names = {loadable.tensor(entry.tensor_desc_id).name: entry.id for entry in entries}
        if sorted(wanted) != sorted(names):
            raise BuildError(f"{what}s: must be {', '.join(names)} in any order, got {', '.join(wanted)}")
        order |= {names[name]: position for position, name in enumerate(wanted)}
    memories = tuple(replace(memory, bind_id=order.get(memory.id, memory.bind_id)) for memory in loadable.memories)
    return replace(loadable, memories=memories)


def strip(loadable: Loadable) -> Loadable:
    """Remove unused entries: unlisted addresses, memories without addresses, blobs in no memory.

    The remaining entries are renumbered, because NVIDIA's runtime uses ids as positions
    (umd/core/src/runtime/Runtime.cpp:313).

    Args:
        loadable: The loadable.

    Returns:
        A new loadable.
    """
    tasks = {number for entry in loadable.submits for number in entry.task_ids}
    kept_tasks = [task for task in loadable.tasks if task.id in tasks]
    reached = {address for task in kept_tasks for address in task.address_list}
    addresses = [address for address in loadable.addresses if address.id in reached]
    used = {address.mem_id for address in addresses}
    memories = [memory for memory in loadable.memories if memory.id in used or memory.is_input or memory.is_output]
    bound = {memory.tensor_desc_id for memory in memories if memory.is_input or memory.is_output}
    names = {name for memory in memories for name in memory.contents}
    events = {event for task in kept_tasks for event in (*task.pre_actions, *task.post_actions)}
    relocs = tuple(reloc for reloc in loadable.relocs if reloc.address_id in reached and reloc.write_id in used)
    return _numbered(
        replace(
            loadable,
            tasks=tuple(kept_tasks),
            addresses=tuple(addresses),
            memories=tuple(memories),
            blobs=tuple(blob for blob in loadable.blobs if blob.name in names),
            tensors=tuple(tensor for tensor in loadable.tensors if tensor.id in bound),
            events=tuple(event for event in loadable.events if event.id in events),
            relocs=relocs,
        )
    )


def _numbered(loadable: Loadable) -> Loadable:
    """Every table's ids as positions in it, and all references to them."""
    tables = ("tasks", "memories", "addresses", "events", "tensors")
    new = {table: {entry.id: number for number, entry in enumerate(getattr(loadable, table))} for table in tables}

    def numbers(table: str, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(new[table][id_] for id_ in ids)

    return replace(
        loadable,
        tasks=tuple(
            replace(
                task,
                id=new["tasks"][task.id],
                address_list=numbers("addresses", task.address_list),
                pre_actions=numbers("events", task.pre_actions),
                post_actions=numbers("events", task.post_actions),
            )
            for task in loadable.tasks
        ),
        memories=tuple(
            replace(memory, id=number, tensor_desc_id=new["tensors"].get(memory.tensor_desc_id, 0))
            for number, memory in enumerate(loadable.memories)
        ),
        addresses=tuple(
            replace(address, id=number, mem_id=new["memories"][address.mem_id])
            for number, address in enumerate(loadable.addresses)
        ),
        events=tuple(replace(event, id=number) for number, event in enumerate(loadable.events)),
        tensors=tuple(
            replace(tensor, id=number, mem_id=new["memories"].get(tensor.mem_id, tensor.mem_id))
            for number, tensor in enumerate(loadable.tensors)
        ),
        relocs=tuple(
            replace(reloc, address_id=new["addresses"][reloc.address_id], write_id=new["memories"][reloc.write_id])
            for reloc in loadable.relocs
        ),
        submits=tuple(replace(submit, task_ids=numbers("tasks", submit.task_ids)) for submit in loadable.submits),
    )


# ---- the common part


def _operation(loadable: Loadable, task: int, operation: int, kind: OpType) -> tuple[DlaTask, DlaOperation]:
    entry = loadable.task(task)
    if entry.interface != Interface.DLA1:
        raise BuildError(f"task {task}: must have a {kind.name} operation, but runs on the CPU")
    program = Program.of(loadable, checked=False)
    if task in program.broken:
        raise DescriptorError(program.broken[task])
    decoded = program.dla_tasks[task]
    descriptor = decoded.operation(operation)
    if descriptor.op_type != kind:
        raise BuildError(f"operation {task}/{operation}: must be {kind.name}, got {descriptor.op_type.name}")
    return decoded, descriptor


def _overwrite(loadable: Loadable, task: DlaTask, cube: Structure, data: bytes, where: str) -> Loadable:
    """Write ``data`` over the blob that contains a cube; it must fit the cube."""
    if len(data) > cube.size:
        raise BuildError(f"{where}: data: must have {cube.size} bytes (old data), got {len(data)}")
    blob, offset = _blob_of(loadable, task, cube, len(data), where)
    content = bytearray(blob.data)
    content[offset : offset + len(data)] = data
    changed = replace(blob, data=memoryview(bytes(content)))
    return replace(loadable, blobs=tuple(changed if original is blob else original for original in loadable.blobs))


def _content(loadable: Loadable, task: DlaTask, cube: Structure, size: int, where: str) -> memoryview:
    """The first ``size`` bytes of a cube."""
    blob, offset = _blob_of(loadable, task, cube, size, where)
    return blob.data[offset : offset + size]


def _blob_of(loadable: Loadable, task: DlaTask, cube: Structure, size: int, where: str) -> tuple[Blob, int]:
    address = loadable.address(task.task.address_list[cube.address])
    return _blob_at(loadable, loadable.memory(address.mem_id), address.offset + cube.offset, size, where)


def _blob_at(loadable: Loadable, memory: MemoryEntry, start: int, size: int, where: str) -> tuple[Blob, int]:
    """The blob that fills bytes start.. of a memory, and the byte in it."""
    for name, offset in zip(memory.contents, memory.offsets, strict=True):
        blob = loadable.blob(name)
        if offset <= start and start + size <= offset + blob.size:
            return blob, start - offset
    raise BuildError(f"{where}: bytes {start} to {start + size} of memory {memory.id}: must be in one blob")


MAX_ID = 0xFFFF


def merge(first: Loadable, second: Loadable) -> Loadable:
    """Merge two loadables into one that runs both and binds the inputs and outputs of both.

    Args:
        first: Its inputs and outputs come first.
        second: Names that the first has too get a suffix ("data" becomes "data-2").

    Returns:
        A new loadable.

    Raises:
        BuildError: Descriptor ABIs or configurations differ, or ids exceed 16 bits.
    """
    _check_alike(first, second)
    shift = {
        table: _next(getattr(first, table))
        for table in ("memories", "addresses", "tasks", "events", "tensors", "submits")
    }
    for table, start in shift.items():
        highest = start + max((entry.id for entry in getattr(second, table)), default=0)
        if highest > MAX_ID:
            raise BuildError(f"merged {table}: highest id: must be at most {MAX_ID}, got {highest}")
    return _joined(first, second, shift)


def _joined(first: Loadable, second: Loadable, shift: Mapping[str, int]) -> Loadable:
    """All tables of the first, then those of the second with its ids shifted."""
    names = _new_names(first.blobs, second.blobs)
    tensors = _new_names(first.tensors, second.tensors)
    binds, memories = (len(first.inputs), len(first.outputs)), shift["memories"]
    targets = max((event.target for event in first.events), default=-1) + 1

    def memory(entry: MemoryEntry) -> MemoryEntry:
        bound = entry.is_input or entry.is_output
        return replace(
            entry,
            id=entry.id + memories,
            contents=tuple(names.get(name, name) for name in entry.contents),
            bind_id=entry.bind_id + (binds[0] if entry.is_input else binds[1] if entry.is_output else 0),
            tensor_desc_id=entry.tensor_desc_id + (shift["tensors"] if bound else 0),
        )

    def task(old_task: TaskEntry) -> TaskEntry:
        return replace(
            old_task,
            id=old_task.id + shift["tasks"],
            address_list=tuple(entry + shift["addresses"] for entry in old_task.address_list),
            pre_actions=tuple(entry + shift["events"] for entry in old_task.pre_actions),
            post_actions=tuple(entry + shift["events"] for entry in old_task.post_actions),
        )

    return replace(
        first,
        tasks=first.tasks + tuple(task(second_task) for second_task in second.tasks),
        memories=first.memories + tuple(memory(second_memory) for second_memory in second.memories),
        addresses=first.addresses
        + tuple(
            replace(address, id=address.id + shift["addresses"], mem_id=address.mem_id + memories)
            for address in second.addresses
        ),
        events=first.events
        + tuple(
            replace(event, id=event.id + shift["events"], target=event.target + targets) for event in second.events
        ),
        blobs=first.blobs + tuple(replace(blob, name=names[blob.name]) for blob in second.blobs),
        tensors=first.tensors
        + tuple(
            replace(tensor, id=tensor.id + shift["tensors"], mem_id=tensor.mem_id + memories, name=tensors[tensor.name])
            for tensor in second.tensors
        ),
        relocs=first.relocs
        + tuple(
            replace(reloc, address_id=reloc.address_id + shift["addresses"], write_id=reloc.write_id + memories)
            for reloc in second.relocs
        ),
        submits=first.submits
        + tuple(
            replace(
                submit,
                id=submit.id + shift["submits"],
                task_ids=tuple(number + shift["tasks"] for number in submit.task_ids),
            )
            for submit in second.submits
        ),
    )


def _check_alike(first: Loadable, second: Loadable) -> None:
    abis = [Program.of(loadable, checked=False).abi.name for loadable in (first, second)]
    if abis[0] != abis[1]:
        raise BuildError(
            f"descriptor ABIs: must be equal to merge, got {abis[0]} and {abis[1]}. Convert one "
            "(nvdla.compiler.builder.edit)."
        )
    kinds = [
        {tensor.pixel_format for tensor in loadable.tensors if tensor.pixel_format >= 36}
        for loadable in (first, second)
    ]
    if kinds[0] and kinds[1] and kinds[0] != kinds[1]:
        formats = [", ".join(kind.name for kind in kind_set) for kind_set in kinds]
        raise BuildError(
            f"surface formats: must be equal to merge, got {formats[0]} and {formats[1]}. The loadables are for "
            "different configurations."
        )


def _next(table: Iterable[Any]) -> int:
    return max((entry.id for entry in table), default=-1) + 1


def _new_names(first: Iterable[Any], second: Iterable[Any]) -> dict[str, str]:
    """New names for the second's entries such that none appears twice."""
    taken = {entry.name for entry in first}
    taken_later = {entry.name for entry in second}
    names: dict[str, str] = {}
    for entry in second:
        name, number = entry.name, 2
        while name in taken or (name != entry.name and name in taken_later):
            name, number = f"{entry.name}-{number}", number + 1
        names[entry.name] = name
        taken.add(name)
    return names


# Version of the firmware interface in the blobs: 0.12 came with the new cube.
_DLA_VERSIONS = {"old": Version(0, 11, 0), "new": Version(0, 12, 3)}


@dataclass
class _Edit:
    """Tables under change; ``moves``: (memory id, old byte) -> new byte, for relocations."""

    loadable: Loadable
    source: Abi
    target: Abi
    blobs: dict[str, bytes] = field(default_factory=dict)
    addresses: list[AddressEntry] = field(default_factory=list)
    moves: dict[tuple[int, int], int] = field(default_factory=dict)


def convert_abi(loadable: Loadable, abi: str) -> Loadable:
    """Convert a loadable to the other descriptor ABI.

    Args:
        loadable: The loadable.
        abi: "old" or "new".

    Returns:
        A new loadable; the same one if it has this ABI.

    Raises:
        BuildError: The old ABI cannot express a feature (scale factors of CPU tasks).
    """
    target = abi_named(abi)
    program = Program.of(loadable)
    if program.abi is target:
        return loadable
    edit = _Edit(loadable, program.abi, target, addresses=list(loadable.addresses))
    tasks = tuple(_convert_task(edit, program.tasks[task.id]) for task in loadable.tasks)
    sizes = {name: len(data) for name, data in edit.blobs.items()}
    memories = []
    for memory in loadable.memories:
        grown = [sizes[name] - loadable.blob(name).size for name in memory.contents if name in sizes]
        if grown and len(memory.contents) > 1:
            raise BuildError(f"memory {memory.id}: must hold one blob to change size, got several with descriptors")
        memories.append(replace(memory, size=memory.size + sum(grown)))
    grown_by = {new.id: new.size - old.size for new, old in zip(memories, loadable.memories, strict=True)}
    addresses = tuple(
        replace(address, size=address.size + grown_by[address.mem_id])
        if address.size and grown_by[address.mem_id]
        else address
        for address in edit.addresses
    )
    return replace(
        loadable,
        tasks=tasks,
        memories=tuple(memories),
        addresses=addresses,
        blobs=tuple(_blob(blob, edit) for blob in loadable.blobs),
        relocs=tuple(_moved(edit, reloc) for reloc in loadable.relocs),
    )


def _blob(blob: Blob, edit: _Edit) -> Blob:
    version = blob.version
    # Old files leave the interface out and name the list alone.
    if version is not None and blob.interface != Interface.EMU1 and blob.sub_interface != SubInterface.NONE:
        version = _DLA_VERSIONS[edit.target.name]
    if blob.name not in edit.blobs:
        return replace(blob, version=version)
    data = edit.blobs[blob.name]
    return replace(blob, data=memoryview(data), size=len(data), version=version)


def _moved(edit: _Edit, reloc: RelocEntry) -> RelocEntry:
    return replace(reloc, offset=edit.moves.get((reloc.write_id, reloc.offset), reloc.offset))


# ---- tasks


def _convert_task(edit: _Edit, task: DlaTask | EmuTask) -> TaskEntry:
    return _dla(edit, task) if isinstance(task, DlaTask) else _emu(edit, task)


class _AddressList:
    """A task's address list that grows by entries for (index, offset) pairs."""

    def __init__(self, edit: _Edit, task: TaskEntry) -> None:
        self.edit, self.entries = edit, list(task.address_list)
        self._made: dict[tuple[int, int], int] = {}

    def index(self, index: int, offset: int) -> int:
        """Return the address index for ``offset`` bytes after ``index``."""
        if offset == 0 or index < 0:
            return index
        if (index, offset) not in self._made:
            base = self.edit.loadable.address(self.entries[index])
            new = max(address.id for address in self.edit.addresses) + 1
            if new > MAX_ID:
                raise BuildError(
                    f"addresses: must be at most {MAX_ID} in the old ABI (it has no offsets in cubes), got more"
                )
            size = self.edit.loadable.address_bytes(base) - offset
            self.edit.addresses.append(AddressEntry(new, base.mem_id, base.offset + offset, max(size, 0)))
            self.entries.append(new)
            self._made[index, offset] = len(self.entries) - 1
        return self._made[index, offset]


def _dla(edit: _Edit, decoded: DlaTask) -> TaskEntry:
    addresses = _AddressList(edit, decoded.task)
    network = decoded.network
    name, memory = _list_blob(edit.loadable, decoded.task, network.surface_desc_index)
    old_size, new_size = (ctypes.sizeof(abi.SurfaceContainer) for abi in (edit.source, edit.target))
    parts = []
    for position, container in enumerate(decoded.surface_containers):
        kind = OpType(decoded.dependencies[position].op_type)
        fresh = edit.target.SurfaceContainer()
        member = f"{kind.name.lower()}_surface"
        old, new = getattr(container, member), getattr(fresh, member)
        bases = (position * old_size, position * new_size)
        if kind == OpType.BDMA:
            ctypes.memmove(ctypes.addressof(new), ctypes.addressof(old), ctypes.sizeof(new))
        else:
            _surface(edit, addresses, old, new, memory, bases)
        parts.append(bytes(fresh))
    edit.blobs[name] = b"".join(parts)
    changed = edit.source.NetworkDesc.from_buffer_copy(bytes(network))
    changed.num_addresses = len(addresses.entries)
    network_name, _ = _list_blob(edit.loadable, decoded.task, 0)
    blob = edit.loadable.blob(network_name)
    edit.blobs[network_name] = bytes(changed) + bytes(blob.data)[ctypes.sizeof(changed) :]
    return replace(decoded.task, address_list=tuple(addresses.entries))


def _surface(
    edit: _Edit, addresses: _AddressList, old: Structure, new: Structure, memory: int, bases: tuple[int, int]
) -> None:
    """Copy a surface structure cube by cube."""
    for name, *_ in old._fields_:
        value = getattr(old, name)
        if not name.endswith("_data"):
            setattr(new, name, value)
            continue
        _fields(value, getattr(new, name), ("address", "offset"))
        cube = getattr(new, name)
        used = value.address >= 0 and value.type <= 1
        if used and not _has_field(cube, "offset"):
            cube.address = addresses.index(value.address, value.offset)
        else:
            cube.address = value.address
            if _has_field(cube, "offset"):
                cube.offset = value.offset
        starts = [base + getattr(type(s), name).offset for base, s in zip(bases, (old, new), strict=True)]
        _move(edit, memory, starts, type(value), type(cube))


def _move(edit: _Edit, memory: int, starts: list[int], old: type[Structure], new: type[Structure]) -> None:
    for stride in ("line_stride", "surf_stride"):
        edit.moves[memory, starts[0] + getattr(old, stride).offset] = starts[1] + getattr(new, stride).offset


def _emu(edit: _Edit, decoded: EmuTask) -> TaskEntry:
    addresses = _AddressList(edit, decoded.task)
    network = decoded.network
    operations, buffers = [], []
    name, memory = _list_blob(edit.loadable, decoded.task, network.operation_buffer_desc_index)
    sizes = [ctypes.sizeof(abi.EmuBuffers) for abi in (edit.source, edit.target)]
    for position, (container, pair) in enumerate(zip(decoded.containers, decoded.buffers, strict=True)):
        operations.append(_emu_operation(edit, container))
        fresh = edit.target.EmuBuffers()
        for end in ("src_data", "dst_data"):
            old, new = getattr(pair, end), getattr(fresh, end)
            _fields(old, new, ("address_index", "address_index_offset", "format", "reserved"))
            new.format = _emu_format(edit, old.format)
            new.address_index = old.address_index
            if _has_field(new, "address_index_offset"):
                new.address_index_offset = old.address_index_offset
            else:
                new.address_index = addresses.index(old.address_index, old.address_index_offset)
            offsets = [
                position * size + getattr(type(p), end).offset for size, p in zip(sizes, (pair, fresh), strict=True)
            ]
            _move(edit, memory, offsets, type(old), type(new))
        buffers.append(bytes(fresh))
    operation_name, _ = _list_blob(edit.loadable, decoded.task, network.operation_desc_index)
    edit.blobs[operation_name], edit.blobs[name] = b"".join(operations), b"".join(buffers)
    return replace(decoded.task, address_list=tuple(addresses.entries))


def _emu_format(edit: _Edit, number: int) -> int:
    """The number of a buffer's element format in the other ABI."""
    if edit.target.name == "new":
        return int(OLD_EMU_FORMATS[number]) if number < len(OLD_EMU_FORMATS) else number
    if EmuFormat(number) not in OLD_EMU_FORMATS:
        raise BuildError(f"buffers of a CPU operation: must have a format of the old ABI, got {EmuFormat(number).name}")
    return OLD_EMU_FORMATS.index(EmuFormat(number))


def _emu_operation(edit: _Edit, container: Structure) -> bytes:
    fresh = edit.target.EmuOperationContainer()
    common = container.power_op.common
    member = EmuOpType(common.op_type).member
    old, new = getattr(container, member), getattr(fresh, member)
    _fields(old, new, ("common", "reserved"))
    new.common.op_type = common.op_type
    scales = (common.input_scale_factor, common.output_scale_factor)
    if _has_field(new.common, "input_scale_factor"):
        new.common.input_scale_factor, new.common.output_scale_factor = scales
    elif scales != (1.0, 1.0):
        raise BuildError(
            f"scale factors of a CPU operation: must be 1 for the old ABI (fp16 networks), got {scales[0]} and "
            f"{scales[1]}"
        )
    return bytes(fresh)


# ---- helpers


def _fields(old: Structure, new: Structure, but: tuple[str, ...]) -> None:
    """Copy the fields that both structures have."""
    names = {name for name, *_ in new._fields_}
    for name, *_ in old._fields_:
        if name in names and name not in but:
            setattr(new, name, getattr(old, name))


def _has_field(structure: Structure, name: str) -> bool:
    return any(name == field_name for field_name, *_ in structure._fields_)


def _list_blob(loadable: Loadable, task: TaskEntry, index: int) -> tuple[str, int]:
    """(blob, memory id) of a descriptor list, which must be a memory's only contents from its first byte."""
    address = loadable.address(task.address_list[index])
    memory = loadable.memory(address.mem_id)
    if address.offset or len(memory.contents) != 1 or memory.offsets[0]:
        raise BuildError(
            f"task {task.id}: address index {index} is not a separate memory ({SubInterface.SURFS.name} and other "
            "lists must be one blob per memory to change their size)"
        )
    return memory.contents[0], memory.id
