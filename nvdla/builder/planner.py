"""Memory planning: every root gets bytes; inner roots share a pool where their lives do not overlap."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from nvdla.builder import pixels
from nvdla.builder.ir import BYTES, LoweredProgram, Operation, Root, Softmax, Surface, reads, writes
from nvdla.hardware.configuration import Configuration
from nvdla.rounding import align, ceil_div

# Surfaces begin at multiples of this: more than any engine asks for (64 bytes), the alignment of CPU buffers.
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
        plane, whole = pixels.plane_stride(root.pixels, *size), pixels.image_bytes(root.pixels, *size)
        return MemoryLayout(pixels.line_stride(root.pixels, root.width), plane, whole)
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
    live at one time, below which no plan can come.
    ``cvsram``: offsets of those that lie in CVSRAM instead, ``cvsram_size`` bytes of it."""

    offsets: dict[int, int]
    size: int
    least: int = 0
    cvsram: dict[int, int] = field(default_factory=dict)
    cvsram_size: int = 0


def lives(operations: list[Operation], together: Mapping[int, int] | None = None) -> dict[int, tuple[Root, Life]]:
    """Life of every root that operations touch, by identity.

    ``together``: operations (positions) that run at the same time as an earlier one, on the fly behind it.
    """
    found: dict[int, tuple[Root, Life]] = {}
    for number, operation in enumerate(operations):
        position = (together or {}).get(number, number)
        touched: list[Surface | None] = [*reads(operation), writes(operation)]
        for surface in touched:
            if surface is not None:
                root = surface.root
                first = found[id(root)][1].first if id(root) in found else position
                found[id(root)] = (root, Life(first, position))
    return found


def plan(
    program: LoweredProgram,
    config: Configuration,
    kept: Set[int] = frozenset(),
    together: Mapping[int, int] | None = None,
    cvsram: int = 0,
    idle: int = 0,
) -> SurfacePlan:
    """Place inner roots by first fit in order of falling size; ``kept`` roots (by identity) need no memory.

    ``together`` as for :func:`lives`; ``cvsram``: bytes of CVSRAM that there are (:func:`_in_cvsram`). ``idle``:
    operations for which bytes are left alone after their last use, so that whoever gets them next need not wait.
    """
    found = lives(program.operations)
    starts = _chain_starts(len(program.operations), [found[root][1] for root in kept if root in found])
    inner = [
        (root, Life(starts[life.first], life.last), layout_of(root, config).size)
        for root, life in found.values()
        if root.role == "inner" and id(root) not in kept
    ]
    fast, most = _in_cvsram(program.operations, inner, cvsram)
    inner = [each for each in inner if id(each[0]) not in fast]
    least = _least([(life, size) for _, life, size in inner])
    inner = [(root, Life(life.first, life.last + idle), size) for root, life, size in inner]
    pool, offsets = _Pool(len(inner)), {}
    for root, life, size in sorted(inner, key=lambda each: (-each[2], each[1].first)):
        offsets[id(root)] = pool.take(pool.fit(life, size), life, size)
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
    for root, life, size in sorted(inner, key=lambda each: (-touched[id(each[0])], each[2], each[1].first)):
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
    """The first operation of the chain on the fly that each operation belongs to: all of a chain runs at once, so the
    chain's result must not lie where its first operation still reads."""
    starts = list(range(count))
    for life in sorted(flying, key=lambda each: each.first):
        starts[life.last] = starts[life.first]
    return starts


class _Pool:
    """Bytes of a memory that roots share whose lives do not overlap."""

    def __init__(self, most: int) -> None:
        self.end = 0
        self._places = np.zeros((4, most), np.int64)  # start, end, first and last operation of the life
        self._count = 0

    def fit(self, life: Life, size: int) -> int:
        """The lowest aligned offset that no root of an overlapping life uses."""
        places = self._places[:, : self._count]
        busy = places[:2, (places[2] <= life.last) & (life.first <= places[3])]
        offset = 0
        for low, high in sorted(busy.T.tolist()):
            if offset + size <= low:
                break
            offset = max(offset, _aligned(high))
        return offset

    def take(self, offset: int, life: Life, size: int) -> int:
        """Use the bytes at ``offset``, which it returns, during a life."""
        self._places[:, self._count] = offset, offset + size, life.first, life.last
        self._count += 1
        self.end = max(self.end, offset + size)
        return offset


def _aligned(size: int) -> int:
    return align(size, ALIGNMENT)
