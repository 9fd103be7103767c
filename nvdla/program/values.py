"""Values of a loadable's tensors and constants.

A value is one result at one place for as long as it lives, so that memory which is used again holds one value after
the other. They are found by going through the operations in the order in which they run: a write makes a value, a read
uses the values whose bytes are there.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from ctypes import Structure
from dataclasses import dataclass, field, replace

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import DescriptorError
from nvdla.loadable.descriptors.abi import Abi
from nvdla.loadable.enums import MemoryFlags
from nvdla.loadable.model import Loadable, MemoryEntry, TensorDesc
from nvdla.program.accesses import Access, Shape, merged
from nvdla.program.operation import Key, Operation
from nvdla.program.program import Program

MAX_WORK = 1 << 22
KINDS = ("input", "output", "constant", "intermediate", "unset")


@dataclass
class Value:
    """``pieces`` of ``memory`` (first byte, byte after the last), written by ``writer`` (None: there before the run).

    ``kind``: "input" and "output" are bound memories, "constant" comes from the file, "intermediate" is between
    operations, "unset" is read before any write. ``readers`` in order; ``first`` and ``last``: steps of
    its first write and last read (a step is an operation, or a chain of them on the fly); -1 = before the first, the
    number of steps = after the last. ``damaged_by``: operations that overwrite part of it before its last read;
    ``covered``: (step, bytes) of it that a later value takes.
    """

    id: int
    name: str
    kind: str
    memory: int
    pieces: tuple[tuple[int, int], ...]
    writer: Key | None
    shape: Shape | None
    element_bytes: int
    layout: str
    line_stride: int
    surface_stride: int
    first: int
    last: int
    readers: list[tuple[Key, str]] = field(default_factory=list)
    damaged_by: list[Key] = field(default_factory=list)
    covered: list[tuple[int, int]] = field(default_factory=list)

    @property
    def offset(self) -> int:
        """First byte in its memory."""
        return self.pieces[0][0]

    @property
    def end(self) -> int:
        """The byte after the last in its memory."""
        return self.pieces[-1][1]

    @property
    def size(self) -> int:
        """Bytes from the first to the last."""
        return self.end - self.offset

    @property
    def bytes(self) -> int:
        """Bytes that it really takes."""
        return sum(end - start for start, end in self.pieces)


class _Ledger:
    """Last writers of the bytes of one memory: segments in ascending order, without overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segments: list[tuple[int, int, Value]] = []

    def at(self, start: int, end: int) -> list[tuple[int, int, Value]]:
        """The segments that touch the range."""
        first = max(bisect.bisect_right(self._starts, start) - 1, 0)
        last = bisect.bisect_left(self._starts, end)
        return [segment for segment in self._segments[first:last] if segment[1] > start and segment[0] < end]

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range that no operation has written."""
        gaps, reached = [], start
        for low, high, _ in self.at(start, end):
            if low > reached:
                gaps.append((reached, low))
            reached = max(reached, high)
        return [*gaps, (reached, end)] if reached < end else gaps

    def write(self, start: int, end: int, value: Value) -> None:
        touched = self.at(start, end)
        fresh = [(start, end, value)]
        if touched:
            low, high, before = touched[0][0], touched[-1][1], touched[0][2]
            if low < start:
                fresh.insert(0, (low, start, before))
            if high > end:
                fresh.append((end, high, touched[-1][2]))
            first = bisect.bisect_left(self._starts, touched[0][0])
        else:
            first = bisect.bisect_left(self._starts, start)
        self._segments[first : first + len(touched)] = fresh
        self._starts[first : first + len(touched)] = [piece[0] for piece in fresh]


class _Tracer:
    def __init__(self, loadable: Loadable, steps: int) -> None:
        self.loadable = loadable
        self.steps = steps
        self.values: list[Value] = []
        self.ledgers: dict[int, _Ledger] = {memory.id: _Ledger() for memory in loadable.memories}
        self.memories = {memory.id: memory for memory in loadable.memories}
        self.work = 0

    def spend(self, amount: int) -> None:
        """Files can be made whose surfaces cut each other into ever smaller pieces."""
        self.work += amount
        if self.work > MAX_WORK:
            raise DescriptorError("surfaces of operations overlap in too many pieces")

    def read(self, access: Access, node: Operation, step: int) -> None:
        ledger = self.ledgers[access.memory]
        values: dict[int, Value] = {}
        gaps = [gap for start, end in access.filled for gap in ledger.gaps(start, end)]
        if gaps:
            self._appear(access, gaps)
        for start, end in access.pieces:
            segments = ledger.at(start, end)
            self.spend(len(segments) + 1)
            values |= {value.id: value for _, _, value in segments}
        for value in values.values():
            value.readers.append((node.key, access.role))
            value.last = max(value.last, step)

    def _appear(self, access: Access, gaps: Sequence[tuple[int, int]]) -> None:
        """Bytes that are read and that no operation has written: from the file, from the application, or unset."""
        memory = self.memories[access.memory]
        if memory.is_input:  # the application gives the whole image, with the padding of its lines
            kind, tensor = "input", self.loadable.tensor(memory.tensor_desc_id)
            start, end = _image(memory, tensor, gaps[0][0])
            gaps = merged(sorted([*self.ledgers[memory.id].gaps(start, end), *gaps]))
            access = replace(access, start=start, shape=(tensor.c, tensor.h, tensor.w))
        elif memory.contents and memory.flags & MemoryFlags.SET:
            kind = "constant"
        else:
            kind = "unset"
        self._make(_name(self.loadable, memory, access, kind), kind, access, tuple(gaps), None, -1)

    def write(self, access: Access, node: Operation, step: int) -> None:
        ledger = self.ledgers[access.memory]
        memory = self.memories[access.memory]
        for start, end in access.pieces:
            segments = ledger.at(start, end)
            self.spend(len(segments) + 1)
            for low, high, value in segments:
                value.covered.append((step, min(high, end) - max(low, start)))
                value.damaged_by.append(node.key)
        kind = "output" if memory.is_output else "intermediate"
        last = self.steps if memory.is_output else step
        name = _name(self.loadable, memory, access, kind)
        self._make(name, kind, access, access.pieces, node.key, step, last)

    def _make(
        self,
        name: str,
        kind: str,
        access: Access,
        pieces: tuple[tuple[int, int], ...],
        writer: Key | None,
        first: int,
        last: int | None = None,
    ) -> None:
        value = Value(
            id=len(self.values),
            name=name,
            kind=kind,
            memory=access.memory,
            pieces=pieces,
            writer=writer,
            shape=access.shape,
            element_bytes=access.element_bytes,
            layout=access.layout,
            line_stride=access.line_stride,
            surface_stride=access.surface_stride,
            first=first,
            last=first if last is None else last,
        )
        self.values.append(value)
        for start, end in pieces:
            self.ledgers[access.memory].write(start, end, value)


def _name(loadable: Loadable, memory: MemoryEntry, access: Access, kind: str) -> str:
    """The name of a bound tensor or of a blob, else memory and offset."""
    if memory.is_input or memory.is_output:
        name = loadable.tensor(memory.tensor_desc_id).name
        return name if not access.offset else f"{name}+{access.offset}"
    if kind == "constant":
        for offset, blob in reversed(loadable.contents(memory)):
            if offset <= access.offset < offset + max(blob.length, 1):
                return blob.name if offset == access.offset else f"{blob.name}+{access.offset - offset}"
    return f"memory {memory.id}" + (f"+{access.offset}" if access.offset else "")


def values_of(loadable: Loadable, steps: Sequence[Sequence[Operation]]) -> list[Value]:
    """All values, in the order in which they come to be. ``steps`` in the order in which they run; the operations of
    one step work at the same time, so a step reads before it writes.

    ``damaged_by`` keeps only operations that overwrite a value which is still read afterwards.
    Raises DescriptorError for surfaces that overlap in absurdly many pieces.
    """
    tracer = _Tracer(loadable, len(steps))
    for step, chain in enumerate(steps):
        for node in chain:
            for access in node.reads:
                if access.pieces:
                    tracer.read(access, node, step)
        for node in chain:
            for access in node.writes:
                if access.pieces:
                    tracer.write(access, node, step)
    places = {node.key: step for step, chain in enumerate(steps) for node in chain}
    for value in tracer.values:
        early = [key for key in dict.fromkeys(value.damaged_by) if places[key] < value.last]
        value.damaged_by = early
    _complete_outputs(loadable, tracer.values)
    return tracer.values


def _complete_outputs(loadable: Loadable, values: Sequence[Value]) -> None:
    """Let an output that is written at once take all bytes of its image, as the application reads them."""
    images: dict[tuple[int, int, int], list[Value]] = defaultdict(list)
    for value in values:
        if value.kind == "output":
            memory = loadable.memory(value.memory)
            start, end = _image(memory, loadable.tensor(memory.tensor_desc_id), value.offset)
            images[memory.id, start, end].append(value)
    for (_, start, end), parts in images.items():
        if len(parts) == 1 and parts[0].offset == start:
            parts[0].pieces = tuple(merged(sorted([(start, end), *parts[0].pieces])))


def _image(memory: MemoryEntry, tensor: TensorDesc, offset: int) -> tuple[int, int]:
    """First byte of the image of a bound tensor that has a byte, and the byte after its last."""
    size = max(memory.size // max(tensor.n, 1), 1)
    start = offset // size * size
    return start, start + size


def constant_bytes(loadable: Loadable, subject: Operation, cube: Structure) -> np.ndarray | None:
    """The loaded bytes (uint8) of a data cube, as many as its size says; None where nothing is loaded."""
    window = subject.finder.window(cube.address)
    if window is None:
        return None
    entry = window[0]
    start, size = entry.offset + cube.offset, cube.size
    for begin, blob in loadable.contents(loadable.memory(entry.mem_id)):
        if begin <= start < begin + blob.length:
            return np.frombuffer(blob.data, np.uint8)[start - begin : start - begin + size]
    return None


@dataclass(frozen=True)
class OfProgram:
    """Something said of a program."""

    program: Program

    @property
    def loadable(self) -> Loadable:
        """The loadable that is looked at."""
        return self.program.loadable

    @property
    def config(self) -> Configuration:
        """The configuration that it is looked at for."""
        return self.program.config

    @property
    def abi(self) -> Abi:
        """The ABI of its descriptors."""
        return self.program.abi
