"""Addresses of tensors and weights in DRAM and CVSRAM, and the planner that places them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from nvdla import limits
from nvdla.compiler.builder import cbuf
from nvdla.compiler.builder.ir import (
    BYTES,
    AtomSurface,
    LoweredProgram,
    Operation,
    PositionSurface,
    Root,
    Softmax,
    Surface,
    reads,
    writes,
)
from nvdla.compiler.builder.schedule import ColumnSurface
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.loadable.enums import PixelFormat
from nvdla.util.rounding import align, ceil_div

# Surfaces begin at multiples of this: more than any engine requires (64 bytes), the alignment of CPU buffers.
ALIGNMENT = 256


@dataclass(frozen=True)
class MemoryLayout:
    """Bytes of a root: packed lines and surfaces of whole atoms."""

    line_stride: int
    surface_stride: int
    size: int


def layout_of(root: Root, config: Configuration) -> MemoryLayout:
    """Strides and size of a tensor in the layout of features, or of an image."""
    if root.pixels is not None:
        size = root.width, root.height
        plane, whole = cbuf.plane_stride(root.pixels, *size), cbuf.image_bytes(root.pixels, *size)
        return MemoryLayout(cbuf.line_stride(root.pixels, root.width), plane, whole)
    atom = config.memory_atom
    line = root.width * atom
    surfaces = ceil_div(root.channels * BYTES[root.precision], atom)
    surfaces += surfaces % 2 if root.paired else 0
    return MemoryLayout(line, line * root.height, line * root.height * surfaces)


@dataclass(frozen=True)
class Life:
    """First and last operation (positions in the program) between which a root must keep its bytes."""

    first: int
    last: int


@dataclass
class SurfacePlan:
    """Offsets of inner roots in the pool, by identity, and the pool's size. ``least``: the largest sum of surfaces that
    live at one time, a lower bound for every plan.
    ``cvsram``: offsets of roots placed in CVSRAM instead, ``cvsram_size`` bytes of it."""

    offsets: dict[int, int]
    size: int
    least: int = 0
    cvsram: dict[int, int] = field(default_factory=dict)
    cvsram_size: int = 0


def lives(operations: list[Operation], together: Mapping[int, int] | None = None) -> dict[int, tuple[Root, Life]]:
    """Life of every root that operations touch, by identity.

    ``together``: operations (positions) that run at the same time as an earlier one, which feeds them on the fly.
    """
    known: dict[int, tuple[Root, Life]] = {}
    for number, operation in enumerate(operations):
        position = (together or {}).get(number, number)
        touched: list[Surface | None] = [*reads(operation), writes(operation)]
        for surface in touched:
            if surface is not None:
                root = surface.root
                first = known[id(root)][1].first if id(root) in known else position
                known[id(root)] = (root, Life(first, position))
    return known


def plan(
    program: LoweredProgram,
    config: Configuration,
    kept: Set[int] = frozenset(),
    together: Mapping[int, int] | None = None,
    cvsram: int = 0,
    idle: int = 0,
) -> SurfacePlan:
    """Place inner roots by first fit in order of falling size; ``kept`` roots (by identity) need no memory.

    ``together`` as for :func:`lives`; ``cvsram``: bytes of available CVSRAM (:func:`_in_cvsram`). ``idle``: number
    of operations for which bytes stay unused after their last use, so that the next surface there need not wait.
    """
    lives_by_root = lives(program.operations)
    starts = _chain_starts(len(program.operations), [lives_by_root[root][1] for root in kept if root in lives_by_root])
    inner = [
        (root, Life(starts[life.first], life.last), layout_of(root, config).size)
        for root, life in lives_by_root.values()
        if root.role == "inner" and id(root) not in kept
    ]
    fast, most = _in_cvsram(program.operations, inner, cvsram)
    inner = [entry for entry in inner if id(entry[0]) not in fast]
    least = _least([(life, size) for _, life, size in inner])
    inner = [(root, Life(life.first, life.last + idle), size) for root, life, size in inner]
    pool, offsets = _Pool(len(inner)), {}
    for root, life, size in sorted(inner, key=lambda entry: (-entry[2], entry[1].first)):
        offsets[id(root)] = pool.take(pool.fit(life, size), life, size)
        limits.PLAN.check_memory(root.name, "surfaces between operations", pool.end)
    return SurfacePlan(offsets, _aligned(pool.end), least, fast, _aligned(most))


def _in_cvsram(
    operations: list[Operation], inner: list[tuple[Root, Life, int]], capacity: int
) -> tuple[dict[int, int], int]:
    """Offsets of roots that fit the CVSRAM, by identity, and bytes of it that they take: those first that are touched
    most often for their bytes, of equal ones the smaller. The CPU's operations take theirs from DRAM."""
    touched: dict[int, int] = {}
    barred: set[int] = set()
    for operation in operations:
        for surface in (*reads(operation), writes(operation)):
            touched[id(surface.root)] = touched.get(id(surface.root), 0) + 1
            if isinstance(operation, Softmax):
                barred.add(id(surface.root))
    pool, offsets = _Pool(len(inner)), {}
    for root, life, size in sorted(inner, key=lambda entry: (-touched[id(entry[0])], entry[2], entry[1].first)):
        offset = pool.fit(life, size)
        if id(root) not in barred and offset + size <= capacity:
            offsets[id(root)] = pool.take(offset, life, size)
    return offsets, pool.end


def _least(inner: list[tuple[Life, int]]) -> int:
    """The largest sum of sizes of lives that overlap."""
    changes: dict[int, int] = {}
    for life, size in inner:
        changes[life.first] = changes.get(life.first, 0) + size
        changes[life.last + 1] = changes.get(life.last + 1, 0) - size
    alive = most = 0
    for position in sorted(changes):
        alive += changes[position]
        most = max(most, alive)
    return most


def _chain_starts(count: int, flying: list[Life]) -> list[int]:
    """The first operation of the chain on the fly that each operation belongs to. All of a chain runs at once, so the
    chain's result must not overlap the memory that its first operation still reads."""
    starts = list(range(count))
    for life in sorted(flying, key=lambda life: life.first):
        starts[life.last] = starts[life.first]
    return starts


class _Pool:
    """Bytes of a memory that roots share whose lives do not overlap."""

    def __init__(self, most: int) -> None:
        self.end = 0
        # start, aligned end, first and last operation of the life, in the order of starts
        self._places = np.zeros((4, most), np.int64)
        self._count = 0

    def fit(self, life: Life, size: int) -> int:
        """The lowest aligned offset that no root of an overlapping life uses."""
        places = self._places[:, : self._count]
        low, high = places[:2, (places[2] <= life.last) & (life.first <= places[3])]
        offsets = np.maximum.accumulate(np.concatenate(([0], high)))
        room = offsets[:-1] + size <= low
        return int(offsets[np.argmax(room) if room.any() else -1])

    def take(self, offset: int, life: Life, size: int) -> int:
        """Use the bytes at ``offset``, which it returns, during a life."""
        place = int(np.searchsorted(self._places[0, : self._count], offset))
        self._places[:, place + 1 : self._count + 1] = self._places[:, place : self._count]
        self._places[:, place] = offset, _aligned(offset + size), life.first, life.last
        self._count += 1
        self.end = max(self.end, offset + size)
        return offset


def _aligned(size: int) -> int:
    return align(size, ALIGNMENT)


CONSTANTS, POOL, CVSRAM = "constants", "pool", "CVSRAM"


@dataclass(frozen=True)
class Extent:
    """Bytes start..end of one memory: all of them, or ``span`` bytes every ``stride`` bytes from the start on."""

    memory: str
    start: int
    end: int
    stride: int = 0
    span: int = 0


class GrowingColumns:
    """Rows of whole numbers, kept as columns; the time to append a row does not depend on their number."""

    def __init__(self, width: int) -> None:
        self._columns = np.zeros((width, 16), np.int64)
        self.count = 0

    def append(self, *row: int) -> int:
        """Append a row; returns its place."""
        if self.count == self._columns.shape[1]:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
        self._columns[:, self.count] = row
        self.count += 1
        return self.count - 1

    @property
    def columns(self) -> np.ndarray:
        """All rows, (width, rows); elements may be changed."""
        return self._columns[:, : self.count]


class ExtentTable:
    """Many extents as columns, to be compared with one at a time: a task may have thousands."""

    def __init__(self, extents: Iterable[Extent] = ()) -> None:
        self._memories: dict[str, int] = {}
        self._rows = GrowingColumns(5)
        for extent in extents:
            self.add(extent)

    def add(self, extent: Extent) -> int:
        """Append an extent; returns its place."""
        memory = self._memories.setdefault(extent.memory, len(self._memories))
        return self._rows.append(memory, extent.start, extent.end, extent.stride, extent.span)

    def meet(self, extent: Extent) -> np.ndarray:
        """Return which extents may share a byte with this one: bool (extents,).

        Bands of rows of one tensor have none: counted modulo their common stride, their pieces are disjoint.
        """
        memory, start, end, stride, span = self._rows.columns
        meets = (memory == self._memories.get(extent.memory, -1)) & (start < extent.end) & (extent.start < end)
        if not extent.stride:
            return meets
        distance = (start - extent.start) % extent.stride
        apart = (distance >= extent.span) & (-distance % extent.stride >= span)
        return meets & ~((stride == extent.stride) & apart)


@dataclass(frozen=True)
class Cube:
    """A surface as the firmware names it: memory, byte offset, dimensions, strides in bytes."""

    memory: str
    offset: int
    channels: int
    height: int
    width: int
    line_stride: int
    surface_stride: int
    size: int

    @property
    def extent(self) -> Extent:
        """The bytes of the memory that it takes."""
        if self.surface_stride < max(self.height * self.line_stride, 1):
            return Extent(self.memory, self.offset, self.offset + self.size)
        span = self.size - (self.size - 1) // self.surface_stride * self.surface_stride
        return Extent(self.memory, self.offset, self.offset + self.size, self.surface_stride, span)


class Constants:
    """Weights and operands, each once: blobs at aligned offsets of one memory."""

    def __init__(self) -> None:
        self.blobs: list[tuple[str, int, bytes]] = []
        self.size = 0
        self._known: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        """Return the offset of ``data``; identical bytes are stored once."""
        if data not in self._known:
            offset = align(self.size, ALIGNMENT)
            self.blobs.append((f"tb-{len(self.blobs)}", offset, data))
            self._known[data] = offset
            self.size = offset + len(data)
        return self._known[data]


class Addresses:
    """Memories by name: constants, pool, and one for each bound tensor."""

    def __init__(self, program: LoweredProgram, config: Configuration, plan: SurfacePlan) -> None:
        self.config = config
        self.constants = Constants()
        self._plan = plan
        self.bound = [*program.inputs, *program.outputs]
        self.memories = [CONSTANTS, POOL, CVSRAM, *(self._memory(root) for root in self.bound)]

    def layout(self, root: Root) -> MemoryLayout:
        """Strides and size of a tensor in memory."""
        return layout_of(root, self.config)

    def cube(self, surface: Surface) -> Cube:
        """Return the data cube of a surface with contiguous columns, or of a column of elements."""
        if surface.root.pixels is not None:
            return self._image(surface, surface.root.pixels)
        if isinstance(surface, PositionSurface | AtomSurface):
            return self._turned(surface)
        root, layout, atom = surface.root, self.layout(surface.root), self.config.memory_atom
        size = BYTES[root.precision]
        offset = (
            self._base(root)
            + surface.first_channel * size // atom * layout.surface_stride
            + surface.top * layout.line_stride
            + surface.left * atom
        )
        channels, height, width = surface.shape
        line = surface.row_stride * layout.line_stride
        if isinstance(surface, ColumnSurface):
            line = surface.column_stride * atom
        surfaces = ceil_div(channels * size, atom)
        stride = layout.surface_stride
        if (surfaces, height, width) == (1, 1, 1):
            # The C model insists on this stride for 1x1 cubes (cmod/sdp/NV_NVDLA_sdp.cpp:385).
            line = stride = atom
        end = (surfaces - 1) * stride + (height - 1) * line + width * atom
        return Cube(self._memory(root), offset, channels, height, width, line, stride, end)

    def _turned(self, surface: Surface) -> Cube:
        """A cube whose lines are the tensor's surfaces; its own surfaces are contiguous atoms."""
        layout, atom = self.layout(surface.root), self.config.memory_atom
        line = layout.surface_stride if surface.height > 1 else atom
        surfaces = surface.channels * BYTES[surface.precision] // atom
        offset = self._base(surface.root) + surface.top * layout.surface_stride
        stride = atom if isinstance(surface, PositionSurface) or surface.height == 1 else line * surface.height
        end = (surfaces - 1) * atom + (surface.height - 1) * line + atom
        return Cube(self._memory(surface.root), offset, *surface.shape, line, stride, end)

    def _image(self, surface: Surface, form: PixelFormat) -> Cube:
        """Whole lines of an image: its channels are a pixel's, unused ones too."""
        layout, height = self.layout(surface.root), surface.height
        offset = self._base(surface.root) + surface.top * layout.line_stride
        channels, size = cbuf.components(form), height * layout.line_stride
        return Cube(self._memory(surface.root), offset, channels, height, surface.width, layout.line_stride, 0, size)

    def flying(self, channels: int, height: int, width: int, precision: str) -> Cube:
        """A cube between two engines, packed."""
        atom = self.config.memory_atom
        surfaces = ceil_div(channels * BYTES[precision], atom)
        line = width * atom
        return Cube("", 0, channels, height, width, line, line * height, line * height * surfaces)

    def _memory(self, root: Root) -> str:
        if root.role == "inner":
            return CVSRAM if id(root) in self._plan.cvsram else POOL
        return CONSTANTS if root.role == "constant" else f"{root.role} {root.name}"

    def _base(self, root: Root) -> int:
        if root.role == "constant":
            return self.constants.add(packed(root, self.config))
        if root.role != "inner":
            return root.image * self.layout(root).size
        return self._plan.cvsram[id(root)] if id(root) in self._plan.cvsram else self._plan.offsets[id(root)]


def packed(root: Root, config: Configuration) -> bytes:
    """The elements of a constant as a feature cube: surfaces of lines of atoms."""
    atom = config.memory_atom // BYTES[root.precision]
    surfaces = ceil_div(root.channels, atom)
    padded = np.zeros((surfaces * atom, root.height, root.width), root.elements.dtype)
    padded[: root.channels] = root.elements
    return padded.reshape(surfaces, atom, root.height, root.width).transpose(0, 2, 3, 1).tobytes()
