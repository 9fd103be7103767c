"""Contents of a loadable as plain data: one function per view, each returns rows with stable keys."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ctypes import Structure
from typing import Any

from nvdla.errors import shape_text
from nvdla.limits import PAGE
from nvdla.loadable import Blob, Loadable, MemoryEntry, TensorDesc
from nvdla.loadable.descriptors import DlaTask, EmuOperation, EmuTask, fields, member
from nvdla.loadable.descriptors.enums import Activation, ConvMode, MemType, OpType, SdpMode, SdpType
from nvdla.loadable.enums import DataType, MemoryDomain, MemoryFlags
from nvdla.program.accesses import STAGES, Shape
from nvdla.program.operation import Dependency, Key, Operation, scope_of_most
from nvdla.program.program import Program
from nvdla.program.program import Tasks as ProgramTasks
from nvdla.program.values import Value
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document

__all__ = [
    "TABLES",
    "address_rows",
    "annotated_rows",
    "blob_rows",
    "blocks",
    "compiler_profile",
    "event_rows",
    "first_name",
    "graph_rows",
    "hexdump_lines",
    "memory_rows",
    "operation_rows",
    "overview",
    "relocation_rows",
    "subgraphs",
    "submit_rows",
    "task_rows",
    "tensor_rows",
]

Row = Document


@by_annotations
def overview(program: Program) -> Row:
    """The questions everyone asks first."""
    loadable = program.loadable
    profile, profile_reason = compiler_profile(program)
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
        "profile": profile,
        "profile_reason": profile_reason,
        "inputs": [describe_tensor(loadable, memory) for memory in loadable.inputs],
        "outputs": [describe_tensor(loadable, memory) for memory in loadable.outputs],
        "tasks": [f"{task.id} {task.interface.name}" for task in loadable.tasks],
        "operations": dict(operation_counts(program.tasks)),
        "dram_bytes": by_domain[MemoryDomain.SYSTEM.name],
        "cvsram_bytes": by_domain[MemoryDomain.SRAM.name],
        "blobs": len(loadable.blobs),
        "blob_bytes": sum(blob.length for blob in loadable.blobs),
    }


@by_annotations
def compiler_profile(program: Program) -> tuple[str | None, str]:
    """Return the profile with which NVIDIA's compiler made a loadable, and the evidence.

    The passes of a profile leave traces: ``basic`` gives every constant a memory of its size, the others pool them in
    whole pages; ``fast-math`` merges operations of the SDP; ``default`` and ``performance`` have the same passes.
    Several names are possible where a network has nothing to merge or to pool.

    Args:
        program: The decoded loadable.

    Returns:
        The name or names of the profile, and the evidence. The name is None for files of other compilers.
    """
    loadable = program.loadable
    first = loadable.memories[0] if loadable.memories else None
    if first is None or first.contents or (first.size, first.flags) != (PAGE, MemoryFlags.ALLOC):
        return None, "not from NVIDIA's compiler, whose first memory is empty and has 4096 bytes"
    constants = [memory for memory in loadable.memories if any(map(_is_constant, memory.contents))]
    pooled = any(len(memory.contents) > 1 for memory in constants)
    if len(constants) > 1 and not pooled:
        return "basic", f"each of {len(constants)} constants has its own memory"
    if constants and not pooled and constants[0].size % PAGE:
        return "basic", f"the memory of the constant has {constants[0].size} bytes, pools have whole pages"
    stages = [operation for operation in _operations(program) if operation.type == OpType.SDP]
    evidence = ["constants share a memory"] if pooled else []
    if constants and not pooled and loadable.blob(constants[0].contents[0]).length % PAGE:
        pooled, evidence = True, ["the memory of the constant has whole pages, as pools have"]
    evidence += ["Winograd convolutions, which no named profile enables"] if _has_winograd(program) else []
    merged = next((stage for stage in stages if _is_merged(stage)), None)
    if merged is not None:
        return "fast-math", "; ".join([*evidence, f"operation {merged.label} merges several layers"])
    apart = _unmerged(stages) if pooled else None
    if apart is not None:
        first_label, second_label = (stage.label for stage in apart)
        evidence.append(f"fast-math would merge operations {first_label} and {second_label}")
        return "default or performance", "; ".join(evidence)
    names = "default, performance or fast-math" if pooled else "basic, default, performance or fast-math"
    return names, "; ".join([*evidence, "no operations to merge", *([] if pooled else ["no constants to pool"])])


def _is_constant(blob: str) -> bool:
    return not blob.startswith("task-")


def _has_winograd(program: Program) -> bool:
    modes = (operation.descriptors.op.conv_mode for operation in _operations(program) if operation.type == OpType.CONV)
    return any(mode == ConvMode.WINOGRAD for mode in modes)


def _stages(operation: Operation) -> list[Any]:
    """Return the enabled stages of an SDP operation."""
    return [stage for stage in (getattr(operation.descriptors.op, f"{name}_op") for name in STAGES) if stage.enable]


def _is_merged(operation: Operation) -> bool:
    """Check whether an SDP operation computes more than one layer."""
    stages = _stages(operation)
    return len(stages) > 1 or any(stage.act != Activation.NONE and stage.type != SdpType.NONE for stage in stages)


def _unmerged(operations: list[Operation]) -> tuple[Operation, Operation] | None:
    """Return two SDP operations that fast-math would merge: the second reads what the first wrote, whole."""
    written: dict[tuple[int, int, int], Operation] = {}
    for operation in operations:
        source, destination = _ends(operation)
        before = written.get((operation.task, source.address, source.offset))
        kinds = [(stage.type, stage.mode, stage.act) for stage in _stages(operation)]
        if before is not None and not operation.takes_on_the_fly and before.output == operation.input:
            plain = all(mode != SdpMode.PER_POINT and act != Activation.LUT for _, mode, act in kinds)
            ends = any(stage.act != Activation.NONE for stage in _stages(before))
            if len(kinds) == 1 and plain and not ends:
                return before, operation
        written[operation.task, destination.address, destination.offset] = operation
    return None


def operation_counts(tasks: ProgramTasks) -> Counter[str]:
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
def task_rows(loadable: Loadable, tasks: ProgramTasks) -> list[Row]:
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
    """Every memory with its contents and bindings."""
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


@by_annotations
def event_rows(loadable: Loadable) -> list[Row]:
    """Return every entry of the event list, in file order."""
    return [
        {"event": event.id, "type": event.type.name, "target": event.target, "val": event.val, "op": event.op.name}
        for event in loadable.events
    ]


@by_annotations
def submit_rows(loadable: Loadable) -> list[Row]:
    """Return every entry of the submit list, in file order (the runtime serves them by number)."""
    return [{"submit": entry.id, "tasks": list(entry.task_ids)} for entry in loadable.submits]


@by_annotations
def address_rows(loadable: Loadable) -> list[Row]:
    """Return every entry of the address list, with the bytes that it reaches after clipping to its memory."""
    return [
        {
            "address": entry.id,
            "memory": entry.mem_id,
            "offset": entry.offset,
            "size": entry.size,
            "reaches": loadable.address_bytes(entry),
        }
        for entry in loadable.addresses
    ]


#: The root tables of a loadable by section name; the version, which is one row, is in the overview.
TABLES: Mapping[str, Callable[[Program], list[Row]]] = {
    "tasks": lambda program: task_rows(program.loadable, program.tasks),
    "submits": lambda program: submit_rows(program.loadable),
    "events": lambda program: event_rows(program.loadable),
    "memory": lambda program: memory_rows(program.loadable),
    "addresses": lambda program: address_rows(program.loadable),
    "blobs": lambda program: blob_rows(program.loadable),
    "tensors": lambda program: tensor_rows(program.loadable),
    "relocs": lambda program: relocation_rows(program.loadable),
}


@by_annotations
def operation_rows(program: Program) -> list[Row]:
    """Every operation of every task (its first region of interest), in list order."""
    return [_row(operation) for operation in _operations(program)]


def _operations(program: Program) -> list[Operation]:
    places = {task: place for place, task in enumerate(program.tasks)}
    return sorted(
        (operation for operation in program.operations if operation.roi == 0),
        key=lambda operation: places[operation.task],
    )


def _row(operation: Operation) -> Row:
    decoded = operation.descriptors
    if isinstance(decoded, EmuOperation):
        title, what = decoded.op_type.name, decoded.op_type.name.lower()
        places = [f"address {surface.address_index}" for surface in (decoded.src, decoded.dst)]
    else:
        title, what = decoded.op_type.name, operation.what
        places = [] if operation.type == OpType.BDMA else [place_of(cube) for cube in _ends(operation)]
    return {
        "task": operation.task,
        "operation": operation.index,
        "type": title,
        "precision": operation.precision,
        "input": _shape(operation.input),
        "output": _shape(operation.output),
        "source": places[0] if places else None,
        "destination": places[1] if places else None,
        "what": what,
        "waits_for": operation.waits_for,
        "consumers": [
            f"{consumer.type.name} {consumer.target[2]} on {_event(consumer)}" for consumer in operation.dependencies
        ],
    }


def _ends(operation: Operation) -> tuple[Structure, Structure]:
    return operation.surface.src_data, operation.surface.dst_data


def _shape(shape: Shape | None) -> str | None:
    """ "6x24x24": channels, height, width of a data cube."""
    return None if shape is None else shape_text(shape)


def place_of(cube: Structure) -> str:
    """Return where a data cube is: on the fly, or memory and address index."""
    if cube.type == MemType.HW:
        return "on the fly"
    if cube.address == -1:
        return "none"
    offset = f"+{cube.offset}" if cube.offset else ""
    memory = "CVSRAM " if cube.type == MemType.CV else ""
    return f"{memory}address {cube.address}{offset}"


def _event(dependency: Dependency) -> str:
    return f"{dependency.event} (fused parent)" if dependency.on_the_fly else dependency.event


@by_annotations
def graph_rows(program: Program) -> list[Row]:
    """Every arrow of the dependency graphs: producer, consumer and the event that releases the consumer."""
    return [
        {
            "task": operation.task,
            "from": operation.index,
            "from_type": operation.engine.upper(),
            "event": _event(consumer),
            "to": consumer.target[2],
            "to_type": consumer.type.name,
        }
        for operation in _operations(program)
        for consumer in operation.dependencies
    ]


Tasks = Mapping[int, DlaTask | EmuTask]
BYTES_A_LINE = 16


@by_annotations
def hexdump_lines(data: memoryview, start: int = 0, length: int | None = None) -> Iterator[str]:
    """Offset, sixteen bytes, and what of them is printable ASCII; a run of equal lines is one ``*``."""
    end = len(data) if length is None else min(len(data), start + length)
    before: bytes | None = None
    starred = False
    for offset in range(start, end, BYTES_A_LINE):
        piece = bytes(data[offset : min(offset + BYTES_A_LINE, end)])
        if piece == before and offset + BYTES_A_LINE < end:
            if not starred:
                yield "*"
            starred = True
            continue
        starred, before = False, piece
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        halves = f"{piece[:8].hex(' ')}  {piece[8:].hex(' ')}"
        yield f"{offset:08x}  {halves:48}  |{text}|"
    yield f"{end:08x}"


@by_annotations
def annotated_rows(loadable: Loadable, tasks: Tasks, blob: Blob) -> list[Row]:
    """Field by field: offset, bytes, name, type, value, meaning. Empty when no structure is on the blob."""
    return [
        {
            "offset": f"0x{field.offset:04x}",
            "bytes": _shorten(bytes(blob.data[field.offset : field.offset + field.size]).hex(" ")),
            "field": field.name,
            "type": field.type,
            "value": _value(field.value),
            "meaning": field.meaning,
        }
        for prefix, base, structure in _structures(loadable, tasks, blob)
        for field in fields(structure, base, prefix)
        if not field.reserved
    ]


def _shorten(text: str, limit: int = 8 * 3) -> str:
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def _value(value: object) -> object:
    if not isinstance(value, list):
        return value
    numbers = ", ".join(str(number) for number in value[:8])
    return f"[{numbers}{', ...' if len(value) > 8 else ''}]"


def _structures(loadable: Loadable, tasks: Tasks, blob: Blob) -> Iterator[tuple[str, int, Structure]]:
    """(name, byte offset in the blob, structure) of everything that is on ``blob``."""
    for task_id, task in tasks.items():
        for kind, index, entries in _lists(task):
            if index >= 0 and _is_behind(loadable, task, index, blob):
                yield from _entries(task_id, kind, task, entries)


def _lists(task: DlaTask | EmuTask) -> Iterator[tuple[str, int, Sequence[Structure]]]:
    network = task.network
    yield "network", 0, [network]
    if isinstance(task, EmuTask):
        yield "operation", network.operation_desc_index, task.containers
        yield "buffers", network.operation_buffer_desc_index, task.buffers
        return
    yield "operation", network.operation_desc_index, task.containers
    yield "surface", network.surface_desc_index, task.surface_containers
    yield "dependency", network.dependency_graph_index, task.dependencies
    yield "lut", network.lut_data_index, task.luts


def _is_behind(loadable: Loadable, task: DlaTask | EmuTask, index: int, blob: Blob) -> bool:
    """Does address index ``index`` of the task lead to this blob (its first content, from offset 0 on)?"""
    addresses = task.task.address_list
    if index >= len(addresses):
        return False
    entry = loadable.address(addresses[index])
    memory = loadable.memory(entry.mem_id)
    return any(
        name == blob.name and offset == entry.offset
        for name, offset in zip(memory.contents, memory.offsets, strict=False)
    )


def _entries(
    task_id: int, kind: str, task: DlaTask | EmuTask, entries: Iterable[Structure]
) -> Iterator[tuple[str, int, Structure]]:
    for position, entry in enumerate(entries):
        structure = entry
        if isinstance(task, DlaTask) and kind in ("operation", "surface"):
            structure = member(entry, task.dependencies[position].op_type)
        elif isinstance(task, EmuTask) and kind == "operation":
            structure = task.operations()[position].op
        if structure is not None:
            name = "network" if kind == "network" else f"{kind}[{position}]"
            yield f"task {task_id} {name}.", position * ctypes.sizeof(entry), structure


_WORD = re.compile(r"[^/._:]+")
FEWEST_TILES = 4  # operations of a layer that is a block
MOST_LAYERS = 8  # a block with as many that is three quarters of the network is divided


def first_name(layer: str) -> str:
    """Return the first of the names that the compiler (+) or TFLite's converter (;) has joined."""
    return re.split("[+;]", layer)[0]


def blocks(layers: Sequence[str | None]) -> list[str | None]:
    """The block of each operation, None where it is in none.

    A block is the beginning of the names of its layers: one word (up to / . _ :) more than all layers in the scope of
    most begin with, and further words where it would be nearly the whole network. Of joined names (+ ;) the first
    counts. A block has at least two layers, and is not everything; tiles of one layer are their own block.
    """
    firsts = [first_name(layer) if layer else "" for layer in layers]
    heads, tiles = _heads(list(dict.fromkeys(firsts))), Counter(firsts)
    sizes = Counter(heads.values())
    heads_of_blocks: list[str | None] = []
    for first in firsts:
        if heads[first] and 2 <= sizes[heads[first]] < len(tiles):
            heads_of_blocks.append(heads[first])
        else:
            heads_of_blocks.append(first if first and tiles[first] >= FEWEST_TILES else None)
    return heads_of_blocks


def _heads(names: Sequence[str]) -> dict[str, str]:
    """The beginning of each name that layers of a block have in common; "" for names outside the scope of most."""
    scope = scope_of_most([name for name in names if name])
    words = {name: list(_WORD.finditer(name)) if name.startswith(scope) else [] for name in names}
    length = _common([[word[0] for word in split] for split in words.values() if split]) + 1
    heads = {name: name[: split[length - 1].end()] if len(split) >= length else "" for name, split in words.items()}
    while True:
        head, size = next(iter(Counter(filter(None, heads.values())).most_common(1)), ("", 0))
        length += 1
        longer = {name for name, split in words.items() if heads[name] == head and len(split) >= length}
        if size < MOST_LAYERS or 4 * size < 3 * len(names) or not longer:
            return heads
        heads |= {name: name[: words[name][length - 1].end()] for name in longer}


def subgraphs(program: Program, values: Iterable[Value]) -> list[str | None]:
    """Return the subgraph of each operation that a viewer can draw as one box, None for an operation in none.

    A subgraph is a block (:func:`blocks`) whose operations are connected by the data that they write or read; a block
    in several such parts is several subgraphs ("hs", "hs (2)"). A part of a single layer is a subgraph with the name of
    the layer if it has many tiles, and otherwise none. Names are without the scope of most layers.
    """
    scope = scope_of_most({node.layer for node in program.operations if node.layer})
    names = blocks([node.layer for node in program.operations])
    block_of = {node.key: name for node, name in zip(program.operations, names, strict=True) if name}
    groups = [[node.key for node in chain] for chain in program.chains]
    for value in values:
        if value.kind != "constant":
            groups.append([key for key, _ in value.readers] + ([value.writer] if value.writer else []))
    parts = _parts(block_of, groups)
    count: Counter[str] = Counter()
    name_of_part: dict[int, str | None] = {}
    for key, name in block_of.items():
        part = parts[key]
        if id(part) not in name_of_part:
            inside = {program.by_key[member].layer or "" for member in part}
            if len(inside) == 1:
                (layer,) = inside
                name_of_part[id(part)] = first_name(layer).removeprefix(scope) if len(part) >= FEWEST_TILES else None
                continue
            count[name] += 1
            name_of_part[id(part)] = name.removeprefix(scope) + (f" ({count[name]})" if count[name] > 1 else "")
    return [name_of_part[id(parts[node.key])] if node.key in block_of else None for node in program.operations]


def _parts(block_of: Mapping[Key, str], groups: Iterable[Sequence[Key]]) -> dict[Key, list[Key]]:
    """Return the connected part of the block that each operation is in; members of a group are connected."""
    parts = {key: [key] for key in block_of}
    for group in groups:
        first: dict[str, Key] = {}
        for key in group:
            if key not in block_of:
                continue
            small, large = sorted((parts[key], parts[first.setdefault(block_of[key], key)]), key=len)
            if small is not large:
                large += small
                parts.update(dict.fromkeys(small, large))
    return parts


def _common(named: Sequence[Sequence[str]]) -> int:
    """Count how many words all names begin with; those of a single layer have none in common with others."""
    if len({tuple(name) for name in named}) < 2:
        return 0
    shortest = min(map(len, named))
    return next((at for at in range(shortest) if len({name[at] for name in named}) > 1), shortest)
