"""Placement of surfaces, and overwritten data."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from nvdla.checks.lint.linter import Context, Order, Said, rule
from nvdla.limits import PAGE
from nvdla.loadable.descriptors.enums import MemType, OpType
from nvdla.loadable.enums import MemoryDomain, MemoryFlags, RelocType
from nvdla.loadable.model import Blob, Loadable, MemoryEntry
from nvdla.program.accesses import Access, merged, share_bytes
from nvdla.program.operation import Operation
from nvdla.util.rounding import align

Span = tuple[int, int, Operation, Access]
MOST_PAIRS = 200
MOST_COMPARED = 1 << 20


@rule(
    "error",
    "Increase the memory or the address entry to the size of the surface, strides included.",
    of_atoms=True,
    headline="surface outside its memory",
)
def surfaces_are_in_their_windows(context: Context) -> Iterator[Said]:
    """The complete footprint of an operation, strides included, is inside the memory of its address.

    The hardware checks no bounds. Memories are allocated in whole pages, so the end of the last page is the limit.
    """
    for subject in context.subjects:
        for access in subject.accesses:
            if access.is_outside:
                yield (
                    subject,
                    f"{access.field} ends at byte {access.stop} of memory {access.memory}, which has {access.limit} "
                    f"(address index {access.address}, bytes {access.start - access.window} "
                    f"to {access.stop - access.window})",
                )


@rule(
    "error",
    "Align the surface: addresses and strides are multiples of the memory atom.",
    of_atoms=True,
    headline="misaligned surface",
)
def surfaces_are_aligned(context: Context) -> Iterator[Said]:
    """Addresses, line strides and surface strides are multiples of the memory atom, because the registers lack the low
    bits. This includes the address of an image and, on nv_full and nv_large, its line stride.
    """
    atom = context.config.memory_atom
    for subject in context.subjects:
        if subject.type in (OpType.BDMA, OpType.RUBIK):
            continue
        for name, cube in subject.used_cubes():
            entry = context.address(subject, cube.address)
            if entry is not None and (entry.offset + cube.offset) % atom:
                yield subject, f"{name} begins at byte {entry.offset + cube.offset}, must be a multiple of {atom}"
            if name in ("src_data", "dst_data") and not (subject.is_image and name == "src_data"):
                strides = (("line_stride", cube.line_stride), ("surf_stride", cube.surf_stride))
                for stride, value in ((stride, value) for stride, value in strides if value % atom):
                    yield subject, f"{name} {stride} {value} must be a multiple of {atom}"


@rule(
    "error",
    "Set line_stride to at least width x atom, surf_stride to at least height x line_stride.",
    of_atoms=True,
    headline="overlapping lines or surfaces of a cube",
)
def lines_do_not_overlap(context: Context) -> Iterator[Said]:
    """Lines of a surface and surfaces of a cube do not overlap, or the lines of all surfaces fit into one line stride.

    Otherwise the hardware overwrites its own results.
    """
    for subject in context.subjects:
        if subject.type in (OpType.BDMA, OpType.RUBIK):
            continue
        for name, cube in subject.used_cubes():
            if name not in ("src_data", "dst_data") or (subject.is_image and name == "src_data"):
                continue
            if cube.height > 1 and cube.line_stride < cube.width * subject.atom:
                yield (
                    subject,
                    (f"{name}: lines of {cube.width} x {subject.atom} bytes are {cube.line_stride} bytes apart"),
                )
            atoms = subject.surfaces(cube, subject.element_bytes(name))
            least = max(cube.height - 1, 0) * cube.line_stride + cube.width * subject.atom
            line = cube.width * subject.atom
            within = line <= cube.surf_stride and (atoms - 1) * cube.surf_stride + line <= cube.line_stride
            if atoms > 1 and cube.surf_stride < least and not within:
                yield subject, f"{name}: surfaces of {least} bytes are {cube.surf_stride} bytes apart"


@rule("error", "Give the result a separate place.", of_atoms=True, headline="constant overwritten")
def constants_are_not_overwritten(context: Context) -> Iterator[Said]:
    """No operation writes to weights, biases or descriptors. They are loaded once, so later runs would use changed
    data."""
    held: dict[int, _Contents] = {}
    for subject in context.subjects:
        for access in subject.writes:
            memory = context.loadable.memory(access.memory)
            if not memory.flags & MemoryFlags.SET:
                continue
            if memory.id not in held:
                held[memory.id] = _Contents(context.loadable.contents(memory))
            blob = held[memory.id].touched(access.start, access.stop)
            if blob is not None:
                yield subject, f"{access.field} writes over blob {blob.name} in memory {memory.id}"


class _Contents:
    """The blobs of a memory, (offset, blob) by offset, for questions of what is somewhere."""

    def __init__(self, contents: Sequence[tuple[int, Blob]]) -> None:
        self._offsets = [offset for offset, _ in contents]
        ends = [(offset + blob.length, number) for number, (offset, blob) in enumerate(contents)]
        #: up to each: the greatest end, and the blob that has it
        self._reach = list(itertools.accumulate(ends, max))
        self._blobs = [blob for _, blob in contents]

    def touched(self, start: int, stop: int) -> Blob | None:
        """A blob with a byte of ``start`` to ``stop``; of several one that reaches farthest."""
        last = bisect.bisect_left(self._offsets, stop) - 1
        if last < 0 or self._reach[last][0] <= start:
            return None
        return self._blobs[self._reach[last][1]]

    def at(self, byte: int) -> tuple[int, Blob] | None:
        """The last blob that begins no later than a byte, and its offset."""
        last = bisect.bisect_right(self._offsets, byte) - 1
        return None if last < 0 else (self._offsets[last], self._blobs[last])


@rule(
    "warning",
    "Order the operations by an OP_COMPLETED dependency, or give them separate places.",
    of_atoms=True,
    headline="overlapping surfaces without an order",
    of_graph=True,
)
def overlapping_surfaces_are_ordered(context: Context) -> Iterator[Said]:
    """If an operation writes data that another one reads or writes, the dependency graph orders them.

    Operations of one engine run in order. Others need a chain of OP_COMPLETED events. Operations of an on-the-fly chain
    run at the same time, so none may write data that another one reads.
    """
    for task_id, task in context.tasks.items():
        order = Order(task, context.program.takers)
        for count, (first, other, what) in enumerate(_overlaps(context.operations_of(task_id))):
            if count > MOST_PAIRS:
                break
            if not order.is_ordered(first.index, other.index):
                yield (
                    first,
                    f"{what[0]} overlaps {what[1]} of operation {other.label}, and no dependency orders the two",
                )


def _overlaps(subjects: Sequence[Operation]) -> Iterator[tuple[Operation, Operation, tuple[str, str]]]:
    """Pairs of operations one of which writes bytes that the other touches; each pair once."""
    spans: dict[int, list[Span]] = defaultdict(list)
    for subject in subjects:
        for access in subject.accesses:
            spans[access.memory].append((access.start, access.stop, subject, access))
    seen: set[tuple[int, int]] = set()
    compared = 0
    for memory in spans.values():
        active: list[Span] = []
        for span in sorted(memory, key=lambda span_key: span_key[:2]):
            active = [other for other in active if other[1] > span[0]]
            compared += len(active)
            if compared > MOST_COMPARED:
                return
            for other in active:
                pair = (min(other[2].index, span[2].index), max(other[2].index, span[2].index))
                if not (other[3].writes or span[3].writes) or pair[0] == pair[1] or pair in seen:
                    continue
                if share_bytes(other[3].pieces, span[3].pieces):  # interleaved bands of rows
                    seen.add(pair)
                    yield other[2], span[2], (other[3].field, span[3].field)
            active.append(span)


@rule(
    "warning",
    "Correct the address of the surface, or of the result that it needs.",
    of_atoms=True,
    headline="data that nothing writes",
    of_graph=True,
)
def inputs_are_written(context: Context) -> Iterator[Said]:
    """The data that an operation reads come from the file, the application or an earlier operation.

    Otherwise it reads data from before the run.
    """
    written = _Written(context)
    for operation in context.program.operations:
        for access in operation.reads:
            if context.loadable.memory(access.memory).is_input:
                continue
            missing, late = written.missing(operation, access)
            if missing is not None:
                who = "only a later operation writes" if late else "nothing writes"
                yield operation, f"{access.field} reads byte {missing} of memory {access.memory}, which {who}"


class _Times:
    """Which operation certainly begins after another is finished, of all tasks."""

    def __init__(self, context: Context) -> None:
        self._orders = {task: Order(decoded, context.program.takers) for task, decoded in context.tasks.items()}
        self._tasks = {
            task: place for place, task in enumerate(dict.fromkeys(o.task for o in context.program.operations))
        }

    def is_later(self, operation: Operation, other: Operation) -> bool:
        """Return whether an operation certainly begins after the other is finished."""
        if operation.task != other.task:
            return self._tasks[operation.task] > self._tasks[other.task]
        return operation.task in self._orders and self._orders[operation.task].is_after(operation.index, other.index)


class _Written:
    """The bytes of the memories that the file or an operation writes."""

    def __init__(self, context: Context) -> None:
        self._pieces: dict[int, list[tuple[int, int, Operation | None]]] = defaultdict(list)
        atom = context.config.memory_atom
        for operation in context.program.operations:
            for access in operation.writes:  # the CPU writes only the channels that exist; readers ignore the others
                pieces = ((low // atom * atom, align(high, atom), operation) for low, high in access.pieces)
                self._pieces[access.memory].extend(pieces)
        for memory in context.loadable.memories:
            if memory.flags & MemoryFlags.SET:
                filled = _filled(context.loadable, memory)
                self._pieces[memory.id].extend((low, high, None) for low, high in filled)
        self._joined = {number: merged(sorted(piece[:2] for piece in of)) for number, of in self._pieces.items()}
        self._times = _Times(context)
        self._compared = 0

    def missing(self, reader: Operation, access: Access) -> tuple[int | None, bool]:
        """The first byte of an access that nothing has written, and whether a later operation writes it."""
        missing = _outside(access.filled, self._joined.get(access.memory, []))
        of_memory = self._pieces[access.memory]
        self._compared += len(of_memory)
        if missing is not None or self._compared > MOST_COMPARED:
            return missing, False
        near = [piece for piece in of_memory if piece[0] < access.stop and piece[1] > access.start]
        early = sorted(piece[:2] for piece in near if piece[2] is None or not self._times.is_later(piece[2], reader))
        missing = None if len(early) == len(near) else _outside(access.filled, merged(early))
        return missing, True


@rule(
    "warning",
    "Correct the address of the result, or of the surface that should read it; or remove the operation.",
    of_atoms=True,
    headline="result that nothing reads",
    of_graph=True,
)
def results_are_read(context: Context) -> Iterator[Said]:
    """A later operation or the application reads the result of an operation, or what is next to it (a stride may skip
    rows).

    Otherwise an operation may read old data in its place.
    """
    times, compared, atom = _Times(context), 0, context.config.memory_atom
    readers: dict[int, list[tuple[Operation, Access]]] = defaultdict(list)
    for operation in context.program.operations:
        for access in operation.reads:
            readers[access.memory].append((operation, access))
    for operation in context.program.operations:
        for access in operation.writes:
            compared += len(readers[access.memory])
            if context.loadable.memory(access.memory).is_output or compared > MOST_COMPARED:
                continue
            if not any(
                read.start <= align(access.stop, atom)
                and align(read.stop, atom) >= access.start
                and reader is not operation
                and not times.is_later(operation, reader)
                for reader, read in readers[access.memory]
            ):
                yield operation, f"{access.field} at byte {access.start} of memory {access.memory} is never read"


def _filled(loadable: Loadable, memory: MemoryEntry) -> list[tuple[int, int]]:
    """The bytes of a memory that blobs fill; weights are read in whole pieces of 128 bytes."""
    blobs = zip(memory.contents, memory.offsets, strict=True)
    return [(offset, align(offset + loadable.blob(name).size, _PIECE)) for name, offset in blobs]


_PIECE = 128


def _outside(pieces: Sequence[tuple[int, int]], covered: Sequence[tuple[int, int]]) -> int | None:
    """The first byte of pieces that none of the covered ones contains; both in ascending order."""
    starts = [start for start, _ in covered]
    for start, end in pieces:
        place = bisect.bisect_right(starts, start) - 1
        reach = covered[place][1] if place >= 0 else 0
        if reach < end:
            return max(start, reach)
    return None


@rule(
    "error",
    "Split the network, or choose a configuration with more address bits.",
    headline="memory beyond the address bus",
)
def memory_fits_the_address_bus(context: Context) -> Iterator[Said]:
    """All memories of a space together fit the address bits of the configuration (32 on nv_small)."""
    totals: dict[str, int] = defaultdict(int)
    for memory in context.loadable.memories:
        totals["CVSRAM" if memory.domain == MemoryDomain.SRAM else "DRAM"] += align(memory.size, PAGE)
    for space, total in totals.items():
        if total > 1 << context.config.address_bits:
            bits = context.config.address_bits
            yield f"the memories in {space} take {total} bytes, {context.config.name} has {bits} address bits"


@rule(
    "warning",
    "Remove the relocation, or let it point to the stride of the surface of this tensor.",
    headline="relocation of a number that is not a stride",
)
def relocations_point_at_strides(context: Context) -> Iterator[Said]:
    """A relocation replaces a stride, so the current value is the stride of the tensor."""
    loadable = context.loadable
    held: dict[int, _Contents] = {}
    for index, reloc in enumerate(loadable.relocs):
        if reloc.reloc_type not in (RelocType.LINE, RelocType.SURFACE):
            continue
        memory = loadable.memory(loadable.address(reloc.address_id).mem_id)
        if not (memory.is_input or memory.is_output):
            continue
        expected = loadable.tensor(memory.tensor_desc_id).strides[reloc.reloc_type]
        if reloc.write_id not in held:
            held[reloc.write_id] = _Contents(loadable.contents(loadable.memory(reloc.write_id)))
        offset, blob = held[reloc.write_id].at(reloc.offset) or (0, None)
        at = reloc.offset - offset
        if blob is None or at > blob.length - 4:
            continue
        stored = int.from_bytes(blob.data[at : at + 4], "little")
        if stored != expected:
            yield (
                f"reloc_list[{index}]: byte {at} of blob {blob.name} holds {stored}, the tensor's "
                f"{reloc.reloc_type.name.lower()} stride is {expected}"
            )


@rule(
    "error",
    "Correct the memory type of the surface, or the domain of the memory.",
    headline="surface with the wrong memory type",
)
def surfaces_name_their_memory(context: Context) -> Iterator[Said]:
    """A surface marked DRAM is in a memory of domain SYSTEM, one marked CVSRAM in one of domain SRAM."""
    for subject in context.subjects:
        for name, cube in subject.used_cubes() if subject.type != OpType.BDMA else ():
            entry = context.address(subject, cube.address)
            if entry is None:
                continue
            sram = context.loadable.memory(entry.mem_id).domain == MemoryDomain.SRAM
            if sram != (cube.type == MemType.CV):
                marked, real = ("CVSRAM", "DRAM") if cube.type == MemType.CV else ("DRAM", "CVSRAM")
                yield subject, f"{name} is marked {marked}, but memory {entry.mem_id} is in {real}"
