"""Memory planning: every root gets bytes; inner roots share a pool where their lives do not overlap."""

from __future__ import annotations

from dataclasses import dataclass

from nvdla.build.ir import BYTES, Operation, Program, Root, Surface, reads, writes
from nvdla.hardware.configuration import Configuration

# Surfaces begin at multiples of this: more than any engine asks for (64 bytes), the alignment of CPU buffers.
ALIGNMENT = 256


@dataclass(frozen=True)
class Layout:
    """Bytes of a root: packed lines and surfaces of whole atoms."""

    line_stride: int
    surface_stride: int
    size: int


def layout_of(root: Root, config: Configuration) -> Layout:
    atom = config.memory_atom
    line = root.width * atom
    surfaces = -(-root.channels * BYTES[root.precision] // atom)
    return Layout(line, line * root.height, line * root.height * surfaces)


@dataclass(frozen=True)
class Life:
    """First and last operation (positions in the program) between which a root must keep its bytes."""

    first: int
    last: int


@dataclass
class Plan:
    """Offsets of inner roots in the pool, by identity, and the pool's size."""

    offsets: dict[int, int]
    size: int


def lives(operations: list[Operation]) -> dict[int, tuple[Root, Life]]:
    """Life of every root that operations touch, by identity."""
    found: dict[int, tuple[Root, Life]] = {}
    for position, operation in enumerate(operations):
        touched: list[Surface | None] = [*reads(operation), writes(operation)]
        for surface in touched:
            if surface is not None:
                root = surface.root
                first = found[id(root)][1].first if id(root) in found else position
                found[id(root)] = (root, Life(first, position))
    return found


def plan(program: Program, config: Configuration, kept: set[int] = frozenset()) -> Plan:
    """Place inner roots by first fit in order of falling size; ``kept`` roots (by identity) need no memory."""
    inner = [
        (root, life, layout_of(root, config).size)
        for root, life in lives(program.operations).values()
        if root.role == "inner" and id(root) not in kept
    ]
    placed: list[tuple[int, int, Life]] = []
    offsets: dict[int, int] = {}
    for root, life, size in sorted(inner, key=lambda each: (-each[2], each[1].first)):
        offset = _first_fit(placed, life, size)
        offsets[id(root)] = offset
        placed.append((offset, offset + size, life))
    end = max((end for _, end, _ in placed), default=0)
    return Plan(offsets, _aligned(end))


def _first_fit(placed: list[tuple[int, int, Life]], life: Life, size: int) -> int:
    """The lowest aligned offset that no root of an overlapping life uses."""
    busy = sorted((start, end) for start, end, other in placed if other.first <= life.last and life.first <= other.last)
    offset = 0
    for start, end in busy:
        if offset + size <= start:
            break
        offset = max(offset, _aligned(end))
    return offset


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
