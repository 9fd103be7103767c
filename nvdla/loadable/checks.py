"""Semantic checks: everything that a loadable refers to exists and fits.

Each check is a generator of problems with a docstring that states its rule; :data:`CHECKS` lists them all.
:func:`check` raises on the first message, :func:`problems` yields every one. Work is linear in the size of the tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from nvdla.errors import LoadableError
from nvdla.loadable.enums import Interface, MemoryDomain, MemoryFlags, RelocType, SubInterface
from nvdla.loadable.model import Loadable, MemoryEntry, RelocEntry

#: largest alignment that a memory may ask for, in bytes
MAX_ALIGNMENT = 1 << 24

Problem = tuple[str, str]
"""Path of a field, as in ``memory_list[3].offsets[1]``, and the text that follows it in a message."""
Check = Callable[[Loadable], Iterator[Problem]]
CHECKS: list[Check] = []


def rule(function: Check) -> Check:
    """Add a rule to CHECKS."""
    CHECKS.append(function)
    return function


def problems(loadable: Loadable) -> Iterator[str]:
    """Every rule that the loadable breaks, one line each."""
    for check in CHECKS:
        yield from (f"{path}{text}" for path, text in check(loadable))


def check(loadable: Loadable) -> None:
    """Raise LoadableError for the first rule that the loadable breaks."""
    for path, text in itertools.chain.from_iterable(rule(loadable) for rule in CHECKS):
        error = LoadableError(f"{path}{text}")
        error.place = path
        raise error


def _fits(offset: int, size: int, limit: int) -> bool:
    """Return True if offset .. offset + size is within limit bytes (Python's integers do not wrap around)."""
    return offset >= 0 and size >= 0 and offset + size <= limit


@rule
def version_is_supported(loadable: Loadable) -> Iterator[Problem]:
    """The container's version is 0.7: the only one that NVIDIA's compilers write."""
    version = loadable.version
    if (version.major, version.minor) != (0, 7):
        yield "Loadable.version", f": must be 0.7.x, got {version}"


@rule
def ids_are_unique(loadable: Loadable) -> Iterator[Problem]:
    """No two entries of one list have the same id, and no two blobs the same name."""
    lists: list[tuple[str, str, Iterable[object]]] = [
        ("task_list", "id", loadable.tasks),
        ("memory_list", "id", loadable.memories),
        ("address_list", "id", loadable.addresses),
        ("event_list", "id", loadable.events),
        ("tensor_desc_list", "id", loadable.tensors),
        ("submit_list", "id", loadable.submits),
        ("blobs", "name", loadable.blobs),
    ]
    for table, key, entries in lists:
        seen: dict[object, int] = {}
        for index, entry in enumerate(entries):
            value = getattr(entry, key)
            first = seen.setdefault(value, index)
            if first != index:
                yield f"{table}[{index}].{key}", f": must be unique, got {value!r} as in {table}[{first}]"


@rule
def names_are_printable(loadable: Loadable) -> Iterator[Problem]:
    """Names have no control characters (NVIDIA's runtime ends a name at its first NUL); blobs have a name."""
    for index, blob in enumerate(loadable.blobs):
        if not blob.name or not blob.name.isprintable():
            yield f"blobs[{index}].name", f": must be printable and not empty, got {blob.name!r}"
    for index, tensor in enumerate(loadable.tensors):
        if not (tensor.name == "" or tensor.name.isprintable()):
            yield f"tensor_desc_list[{index}].name", f": must be printable, got {tensor.name!r}"


@rule
def blob_sizes_agree(loadable: Loadable) -> Iterator[Problem]:
    """Blob.size is the length of its data."""
    for index, blob in enumerate(loadable.blobs):
        if blob.size != blob.length:
            yield f"blobs[{index}].size", f" ({blob.name}): must be {blob.length} (size of its data), got {blob.size}"


@rule
def blobs_speak_a_known_interface(loadable: Loadable) -> Iterator[Problem]:
    """Blob.interface is NONE, DLA1 or EMU1, and its sub_interface one of that interface."""
    for index, blob in enumerate(loadable.blobs):
        if not Interface(blob.interface).known:
            yield (
                f"blobs[{index}].interface",
                f" ({blob.name}): must be 0 NONE, 1 DLA1 or 2 EMU1, got {int(blob.interface)}",
            )
        elif not SubInterface(blob.sub_interface).known:
            yield f"blobs[{index}].sub_interface", f" ({blob.name}): must be 0 .. 5, got {int(blob.sub_interface)}"


@rule
def memories_are_sane(loadable: Loadable) -> Iterator[Problem]:
    """A memory has a size, a known domain, known flags, and an alignment that is 0 or a power of two."""
    known_flags = MemoryFlags.ALLOC | MemoryFlags.SET | MemoryFlags.INPUT | MemoryFlags.OUTPUT
    for index, memory in enumerate(loadable.memories):
        where = f"memory_list[{index}]"
        if memory.size < 1:
            yield f"{where}.size", f" (memory {memory.id}): must be at least 1, got {memory.size}"
        if not MemoryDomain(memory.domain).known:
            yield f"{where}.domain", f" (memory {memory.id}): must be 0 SYSTEM or 1 SRAM, got {int(memory.domain)}"
        if int(memory.flags) & ~int(known_flags):
            yield (
                f"{where}.flags",
                f" (memory {memory.id}): must be within 0x{int(known_flags):x}, got 0x{int(memory.flags):x}",
            )
        alignment = memory.alignment
        if alignment < 0 or alignment & (alignment - 1) or alignment > MAX_ALIGNMENT:
            yield (
                f"{where}.alignment",
                f" (memory {memory.id}): must be 0 or a power of two up to {MAX_ALIGNMENT}, got {alignment}",
            )


@rule
def memory_contents_fit(loadable: Loadable) -> Iterator[Problem]:
    """A memory flagged SET names existing blobs, one offset each, and every blob fits at its offset."""
    sizes = {blob.name: blob.length for blob in loadable.blobs}
    for index, memory in enumerate(loadable.memories):
        if memory.flags & MemoryFlags.SET:
            yield from _contents_fit(f"memory_list[{index}]", memory, sizes)


def _contents_fit(where: str, memory: MemoryEntry, sizes: dict[str, int]) -> Iterator[Problem]:
    if len(memory.contents) != len(memory.offsets):
        yield (
            f"{where}.offsets",
            f" (memory {memory.id}): must be {len(memory.contents)} (one per blob), got {len(memory.offsets)}",
        )
        return
    for position, (name, offset) in enumerate(zip(memory.contents, memory.offsets, strict=True)):
        if name not in sizes:
            yield f"{where}.contents[{position}]", f" (memory {memory.id}): no blob is named {name!r}"
        elif not _fits(offset, sizes[name], memory.size):
            yield (
                f"{where}.offsets[{position}]",
                f" (memory {memory.id}): end of blob {name!r} ({offset} + {sizes[name]} bytes): must be at most "
                f"{memory.size} (memory size), got {offset + sizes[name]}",
            )


@rule
def contents_do_not_overlap(loadable: Loadable) -> Iterator[Problem]:
    """No byte of a memory is loaded from two blobs."""
    sizes = {blob.name: blob.length for blob in loadable.blobs}
    for index, memory in enumerate(loadable.memories):
        if not memory.flags & MemoryFlags.SET:
            continue
        pairs = zip(memory.contents, memory.offsets, strict=False)
        places = sorted((offset, sizes.get(name, 0), name) for name, offset in pairs)
        filled = [place for place in places if place[1]]
        for (offset, size, name), (following, _, other) in itertools.pairwise(filled):
            if offset + size > following:
                yield (
                    f"memory_list[{index}].offsets",
                    f" (memory {memory.id}): end of blob {name!r}: must be at most {following} "
                    f"(begin of blob {other!r}), got {offset + size}",
                )


@rule
def addresses_fit(loadable: Loadable) -> Iterator[Problem]:
    """An address begins in an existing memory or at its end. Its size may reach beyond: it is clipped to the memory.

    NVIDIA's compiler makes empty windows at the end of a memory for slices of a concatenation.
    """
    sizes = {memory.id: memory.size for memory in loadable.memories}
    for index, address in enumerate(loadable.addresses):
        where = f"address_list[{index}]"
        if address.mem_id not in sizes:
            yield (
                f"{where}.mem_id",
                f" (address {address.id}): must be the id of an existing memory, got {address.mem_id}",
            )
        elif not _fits(address.offset, 0, sizes[address.mem_id]):
            limit = f"at most {sizes[address.mem_id]} (size of memory {address.mem_id})"
            yield f"{where}.offset", f" (address {address.id}): must be {limit}, got {address.offset}"


@rule
def tasks_refer_to_what_exists(loadable: Loadable) -> Iterator[Problem]:
    """A task speaks DLA1 or EMU1, has at least its network descriptor's address, and all its ids exist."""
    addresses = {address.id for address in loadable.addresses}
    events = {event.id for event in loadable.events}
    for index, task in enumerate(loadable.tasks):
        where = f"task_list[{index}]"
        if task.interface not in (Interface.DLA1, Interface.EMU1):
            yield f"{where}.interface", f" (task {task.id}): must be 1 DLA1 or 2 EMU1, got {int(task.interface)}"
        if task.instance < -1:
            yield f"{where}.instance", f" (task {task.id}): must be at least -1, got {task.instance}"
        if not task.address_list:
            yield (
                f"{where}.address_list",
                f" (task {task.id}): must begin with the network descriptor, got an empty list",
            )
        yield from _missing(f"{where}.address_list", task.address_list, addresses, "address")
        yield from _missing(f"{where}.pre_actions", task.pre_actions, events, "event")
        yield from _missing(f"{where}.post_actions", task.post_actions, events, "event")


def _missing(where: str, ids: Iterable[int], known: set[int], kind: str) -> Iterator[Problem]:
    for position, id_ in enumerate(ids):
        if id_ not in known:
            yield f"{where}[{position}]", f": must be the id of an existing {kind}, got {id_}"


@rule
def submits_refer_to_tasks(loadable: Loadable) -> Iterator[Problem]:
    """A submit entry names existing tasks, and no task is submitted twice."""
    tasks = {task.id for task in loadable.tasks}
    submitted: set[int] = set()
    for index, entry in enumerate(loadable.submits):
        yield from _missing(f"submit_list[{index}].task_id", entry.task_ids, tasks, "task")
        for position, task_id in enumerate(entry.task_ids):
            if task_id in submitted:
                yield f"submit_list[{index}].task_id[{position}]", f": must be submitted once, got task {task_id} again"
            submitted.add(task_id)


@rule
def tensors_fit(loadable: Loadable) -> Iterator[Problem]:
    """A tensor is in an existing memory, offset + size within it, and each dimension is at least 1."""
    sizes = {memory.id: memory.size for memory in loadable.memories}
    for index, tensor in enumerate(loadable.tensors):
        where = f"tensor_desc_list[{index}]"
        if tensor.mem_id not in sizes:
            yield f"{where}.mem_id", f" ({tensor.name}): must be the id of an existing memory, got {tensor.mem_id}"
        elif not _fits(tensor.offset, tensor.size, sizes[tensor.mem_id]):
            yield (
                f"{where}.size",
                f" ({tensor.name}): end ({tensor.offset} + {tensor.size} bytes): must be at most "
                f"{sizes[tensor.mem_id]} (memory {tensor.mem_id}), got {tensor.offset + tensor.size}",
            )
        for axis in "nchw":
            if getattr(tensor, axis) < 1:
                yield f"{where}.{axis}", f" ({tensor.name}): must be at least 1, got {getattr(tensor, axis)}"


@rule
def bindings_are_complete(loadable: Loadable) -> Iterator[Problem]:
    """Inputs have bind ids 0, 1, 2 ... without gaps, outputs too; each has a tensor in its memory."""
    tensors = {tensor.id: tensor for tensor in loadable.tensors}
    places = {memory.id: index for index, memory in enumerate(loadable.memories)}
    for kind, entries in (("input", loadable.inputs), ("output", loadable.outputs)):
        for expected, memory in enumerate(entries):
            where = f"memory_list[{places[memory.id]}]"
            if memory.bind_id != expected:
                yield (
                    f"{where}.bind_id",
                    f" (memory {memory.id}, {kind}): must be {expected} (they count up from 0), got {memory.bind_id}",
                )
            tensor = tensors.get(memory.tensor_desc_id)
            if tensor is None:
                yield (
                    f"{where}.tensor_desc_id",
                    f" (memory {memory.id}, {kind}): must be the id of an existing tensor, got {memory.tensor_desc_id}",
                )
            elif tensor.mem_id != memory.id:
                yield (
                    f"{where}.tensor_desc_id",
                    f" (memory {memory.id}, {kind}): tensor {tensor.id} is in memory {tensor.mem_id}, not {memory.id}",
                )


@rule
def relocations_fit(loadable: Loadable) -> Iterator[Problem]:
    """A relocation rewrites a stride of an input or output, inside a descriptor list that exists."""
    memories = {memory.id: memory for memory in loadable.memories}
    addresses = {address.id: address for address in loadable.addresses}
    for index, reloc in enumerate(loadable.relocs):
        where = f"reloc_list[{index}]"
        yield from _relocation_kind(where, reloc)
        source = addresses.get(reloc.address_id)
        bound = None if source is None else memories.get(source.mem_id)
        if source is None:
            yield f"{where}.address_id", f": must be the id of an existing address, got {reloc.address_id}"
        elif bound is not None and not (bound.is_input or bound.is_output):
            yield f"{where}.address_id", f": must be in an input or output, got {reloc.address_id} (memory {bound.id})"
        written = memories.get(reloc.write_id)
        if written is None:
            yield f"{where}.write_id", f": must be the id of an existing memory, got {reloc.write_id}"
        elif not _fits(reloc.offset, 4, written.size):
            yield f"{where}.offset", f": must be at most {written.size - 4} (memory {written.id}), got {reloc.offset}"


def _relocation_kind(where: str, reloc: RelocEntry) -> Iterator[Problem]:
    if reloc.interface not in (Interface.DLA1, Interface.EMU1):
        yield f"{where}.interface", f": must be 1 DLA1 or 2 EMU1, got {int(reloc.interface)}"
    if reloc.sub_interface not in (SubInterface.OPS, SubInterface.SURFS):
        yield f"{where}.sub_interface", f": must be 3 or 4 (operation or surface list), got {int(reloc.sub_interface)}"
    if reloc.reloc_type not in (RelocType.LINE, RelocType.SURFACE):
        yield f"{where}.reloc_type", f": must be 1 (line stride) or 2 (surface stride), got {int(reloc.reloc_type)}"
