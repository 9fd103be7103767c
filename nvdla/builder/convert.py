"""Convert a loadable between the two descriptor ABIs (28- and 32-byte data cubes).

The old cube has no byte offset: every offset becomes an address entry of its own, appended to the task's address list;
the way back leaves these entries in place. Strides that relocations name move with the surface lists.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from typing import Any

from nvdla.descriptors.abi import Abi, abi_named
from nvdla.descriptors.enums import OLD_EMU_FORMATS, EmuFormat, EmuOpType, OpType
from nvdla.descriptors.task import DlaTask, EmuTask
from nvdla.errors import BuildError
from nvdla.loadable.enums import Interface, SubInterface
from nvdla.loadable.model import AddressEntry, Loadable, TaskEntry, Version
from nvdla.program.program import Program

MAX_ID = 0xFFFF
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
    """The same network in the other ABI ("old" or "new"); unchanged when it has it already.

    Raises BuildError for what the old ABI cannot say (scale factors of CPU tasks).
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
            raise BuildError(f"memory {memory.id} holds several blobs, among them descriptors; they cannot change size")
        memories.append(replace(memory, size=memory.size + sum(grown)))
    grown_by = {new.id: new.size - old.size for new, old in zip(memories, loadable.memories, strict=True)}
    addresses = tuple(
        replace(each, size=each.size + grown_by[each.mem_id]) if each.size and grown_by[each.mem_id] else each
        for each in edit.addresses
    )
    return replace(
        loadable,
        tasks=tasks,
        memories=tuple(memories),
        addresses=addresses,
        blobs=tuple(_blob(each, edit) for each in loadable.blobs),
        relocs=tuple(_moved(edit, each) for each in loadable.relocs),
    )


def _blob(blob: Any, edit: _Edit) -> Any:
    version = blob.version
    # Old files leave the interface out and name the list alone.
    if version is not None and blob.interface != Interface.EMU1 and blob.sub_interface != SubInterface.NONE:
        version = _DLA_VERSIONS[edit.target.name]
    if blob.name not in edit.blobs:
        return replace(blob, version=version)
    data = edit.blobs[blob.name]
    return replace(blob, data=memoryview(data), size=len(data), version=version)


def _moved(edit: _Edit, reloc: Any) -> Any:
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
        """The address index that means ``offset`` bytes behind ``index``."""
        if offset == 0 or index < 0:
            return index
        if (index, offset) not in self._made:
            base = self.edit.loadable.address(self.entries[index])
            new = max(each.id for each in self.edit.addresses) + 1
            if new > MAX_ID:
                raise BuildError(f"more than {MAX_ID} addresses are needed in the old ABI; it has no offsets in cubes")
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


def _surface(edit: _Edit, addresses: _AddressList, old: Any, new: Any, memory: int, bases: tuple[int, int]) -> None:
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


def _move(edit: _Edit, memory: int, starts: list[int], old: Any, new: Any) -> None:
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
        raise BuildError(f"a CPU operation has buffers of format {EmuFormat(number).name}, which the old ABI has not")
    return OLD_EMU_FORMATS.index(EmuFormat(number))


def _emu_operation(edit: _Edit, container: Any) -> bytes:
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
            f"a CPU operation scales by {scales[0]:g} and {scales[1]:g}; the old ABI has no scale factors, "
            "so only fp16 networks (factors 1) can be converted"
        )
    return bytes(fresh)


# ---- helpers


def _fields(old: Any, new: Any, but: tuple[str, ...]) -> None:
    """Copy the fields that both structures have."""
    names = {name for name, *_ in new._fields_}
    for name, *_ in old._fields_:
        if name in names and name not in but:
            setattr(new, name, getattr(old, name))


def _has_field(structure: Any, name: str) -> bool:
    return any(name == each for each, *_ in structure._fields_)


def _list_blob(loadable: Loadable, task: TaskEntry, index: int) -> tuple[str, int]:
    """(blob, memory id) of a descriptor list, which must be a memory's only contents from its first byte."""
    address = loadable.address(task.address_list[index])
    memory = loadable.memory(address.mem_id)
    if address.offset or len(memory.contents) != 1 or memory.offsets[0]:
        raise BuildError(
            f"task {task.id}: address index {index} is not a memory of its own ({SubInterface.SURFS.name} and other "
            "lists must be one blob a memory to change their size)"
        )
    return memory.contents[0], memory.id
