"""The tables of the container: overview, tasks, memories, blobs, tensors, relocations."""

from __future__ import annotations

from collections import Counter
from typing import Any

from nvdla.argument_kinds import by_annotations
from nvdla.descriptors import DlaTask, EmuTask
from nvdla.errors import shape_text
from nvdla.loadable import Loadable, MemoryEntry, TensorDesc
from nvdla.loadable.enums import DataType, MemoryDomain, MemoryFlags
from nvdla.program.program import Program, Tasks

Row = dict[str, Any]


@by_annotations
def overview(program: Program) -> Row:
    """The questions everyone asks first."""
    loadable = program.loadable
    by_domain = Counter[str]()
    for memory in loadable.memories:
        by_domain[memory.domain.name] += memory.size
    return {
        "file": loadable.name,
        "version": str(loadable.version),
        "identifier": loadable.identifier or None,
        "configuration": program.config.name,
        "configuration_reason": program.config_reason,
        "abi": program.abi.name,
        "abi_reason": program.abi_reason,
        "inputs": [describe_tensor(loadable, memory) for memory in loadable.inputs],
        "outputs": [describe_tensor(loadable, memory) for memory in loadable.outputs],
        "tasks": [f"{task.id} {task.interface.name}" for task in loadable.tasks],
        "operations": dict(operation_counts(program.tasks)),
        "dram_bytes": by_domain[MemoryDomain.SYSTEM.name],
        "cvsram_bytes": by_domain[MemoryDomain.SRAM.name],
        "blobs": len(loadable.blobs),
        "blob_bytes": sum(blob.length for blob in loadable.blobs),
    }


def operation_counts(tasks: Tasks) -> Counter[str]:
    """Operations by type over all tasks; CPU operations by their own names."""
    return Counter(operation.op_type.name for task in tasks.values() for operation in task.operations())


def describe_tensor(loadable: Loadable, memory: MemoryEntry) -> str:
    """One line about a bound tensor: name, NCHW, element type, layout."""
    tensor = loadable.tensor(memory.tensor_desc_id)
    shape = shape_text((tensor.n, tensor.c, tensor.h, tensor.w))
    return f"{tensor.name}: {shape} {_element(tensor)}, {tensor.pixel_format.name}, {tensor.size:,} bytes"


def _element(tensor: TensorDesc) -> str:
    """ "int8", "int16" or "fp16" of a bound tensor."""
    return "fp16" if tensor.data_type == DataType.HALF else tensor.data_type.name.lower()


@by_annotations
def task_rows(loadable: Loadable, tasks: Tasks) -> list[Row]:
    """Every task with its place in the submit order."""
    served = {task: entry.id for entry in loadable.submit_order for task in entry.task_ids}
    return [
        {
            "task": task.id,
            "interface": task.interface.name,
            "submit_entry": served.get(task.id),
            "instance": task.instance,
            "addresses": len(task.address_list),
            "operations": len(tasks[task.id]),
            "luts": _luts(tasks[task.id]),
            "pre_actions": list(task.pre_actions),
            "post_actions": list(task.post_actions),
        }
        for task in loadable.tasks
    ]


def _luts(task: DlaTask | EmuTask) -> int | None:
    return len(task.luts) if isinstance(task, DlaTask) else None


@by_annotations
def memory_rows(loadable: Loadable) -> list[Row]:
    """Every memory with its contents and what is bound to it."""
    windows: dict[int, list[int]] = {}
    for entry in loadable.addresses:
        windows.setdefault(entry.mem_id, []).append(entry.id)
    return [
        {
            "memory": memory.id,
            "domain": memory.domain.name,
            "flags": flag_names(memory.flags),
            "size": memory.size,
            "alignment": memory.alignment,
            "contents": [f"{name}@{offset}" for name, offset in zip(memory.contents, memory.offsets, strict=False)],
            "bound_as": _bound_as(loadable, memory),
            "addresses": windows.get(memory.id, []),
        }
        for memory in loadable.memories
    ]


def flag_names(flags: MemoryFlags) -> str:
    """ "ALLOC SET"; bits without a name are shown as a number."""
    named = [flag.name for flag in MemoryFlags if flag and flags & flag and flag.name]
    rest = int(flags) & ~sum(int(flag) for flag in MemoryFlags)
    return " ".join([*named, *([f"0x{rest:x}"] if rest else [])]) or "NONE"


def _bound_as(loadable: Loadable, memory: MemoryEntry) -> str | None:
    if not (memory.is_input or memory.is_output):
        return None
    kind = "input" if memory.is_input else "output"
    return f"{kind} {memory.bind_id} {loadable.tensor(memory.tensor_desc_id).name}"


@by_annotations
def blob_rows(loadable: Loadable) -> list[Row]:
    """Every blob with the memories that it fills."""
    users: dict[str, list[int]] = {}
    for memory in loadable.memories:
        for name in memory.contents:
            users.setdefault(name, []).append(memory.id)
    return [
        {
            "blob": blob.name,
            "size": blob.length,
            "interface": blob.interface.name,
            "sub_interface": blob.sub_interface.name,
            "version": str(blob.version) if blob.version is not None else None,
            "memories": users.get(blob.name, []),
        }
        for blob in loadable.blobs
    ]


@by_annotations
def tensor_rows(loadable: Loadable) -> list[Row]:
    """Every tensor that an application can bind."""
    return [_tensor_row(tensor) for tensor in loadable.tensors]


def _tensor_row(tensor: TensorDesc) -> Row:
    return {
        "tensor": tensor.id,
        "name": tensor.name,
        "n": tensor.n,
        "c": tensor.c,
        "h": tensor.h,
        "w": tensor.w,
        "data_type": tensor.data_type.name,
        "data_format": tensor.data_format.name,
        "category": tensor.data_category.name,
        "pixel_format": tensor.pixel_format.name,
        "memory": tensor.mem_id,
        "offset": tensor.offset,
        "size": tensor.size,
        "element_stride": tensor.element_stride,
        "line_stride": tensor.line_stride,
        "surface_stride": tensor.surface_stride,
    }


@by_annotations
def relocation_rows(loadable: Loadable) -> list[Row]:
    """Every place where a stride of a bound tensor is written."""
    return [
        {
            "memory": reloc.write_id,
            "offset": reloc.offset,
            "interface": reloc.interface.name,
            "sub_interface": reloc.sub_interface.name,
            "stride": reloc.reloc_type.name,
            "address": reloc.address_id,
        }
        for reloc in loadable.relocs
    ]
