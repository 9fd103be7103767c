"""Memory maps of loadables: addresses, lifetimes, reuse and overlaps, as data and as SVG."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from nvdla.analysis.study import Study
from nvdla.analysis.svg import STYLE, Drawing, short
from nvdla.analysis.views import flag_names
from nvdla.emulator.memory.placement import CVSRAM_BASE, DRAM_BASE, SPACES, Allocation, carve_out_bytes, place
from nvdla.errors import counted
from nvdla.limits import PAGE
from nvdla.loadable import MemoryEntry
from nvdla.program.operation import Key, short_layer
from nvdla.program.values import Value
from nvdla.util.escaping import Document

FORMAT, VERSION = "nvdla-memory", 1
#: at most so many pairs of values that take the same bytes one after the other are listed
MAX_PAIRS = 10_000

Row = Document


@dataclass(frozen=True)
class MemoryMap:
    """A loadable's memory at a base address. ``usage``: live bytes of each space at each step."""

    study: Study
    allocations: list[Allocation]
    usage: dict[str, list[int]]

    @classmethod
    def of(cls, study: Study, base: int = DRAM_BASE, cvsram_base: int = CVSRAM_BASE) -> MemoryMap:
        """The map of a study at a base address. Raises LinkError for addresses that cannot be."""
        placed = place(study.loadable, base, cvsram_base)
        allocations = sorted(placed, key=lambda allocation: (SPACES.index(allocation.space), allocation.address))
        spaces = {allocation.memory.id: allocation.space for allocation in allocations}
        usage = {
            space: _live_bytes(
                (value for value in study.values if spaces.get(value.memory) == space and value.kind != "constant"),
                len(study.steps),
            )
            for space in SPACES
        }
        return cls(study, allocations, usage)

    def document(self) -> Row:
        """Everything as plain data (docs/explain.md)."""
        study = self.study
        return {
            "format": FORMAT,
            "version": VERSION,
            "loadable": study.loadable.name,
            "configuration": study.config.name,
            "abi": study.abi.name,
            "spaces": self.spaces(),
            "steps": self.steps(),
            "allocations": self.allocation_rows(),
            "buffers": self.buffer_rows(),
            "reuse": self.reuse(),
            "overlaps": self.overlaps(),
            "outside": self.outside(),
            "contiguous": self.contiguous(),
            "usage": {space: self.usage[space] for space in SPACES},
        }

    def spaces(self) -> list[Row]:
        """DRAM, and CVSRAM where it is used: extent, what is in it, the peak of what lives at the same time."""
        rows = []
        for space in SPACES:
            mine = [allocation for allocation in self.allocations if allocation.space == space]
            if not mine:
                continue
            sizes: dict[str, int] = defaultdict(int)
            for allocation in mine:
                sizes[_use(allocation.memory)] += allocation.memory.size
            live = self.usage[space]
            peak = max(live, default=0)
            rows.append(
                {
                    "space": space,
                    "base": mine[0].address,
                    "end": mine[-1].end,
                    "carve_out": carve_out_bytes(mine),
                    "allocated": sum(allocation.memory.size for allocation in mine),
                    "constant": sizes["constant"],
                    "bound": sizes["input"] + sizes["output"],
                    "intermediate": sizes["intermediate"],
                    "peak_live": peak,
                    "peak_at": self._label(self.study.steps[live.index(peak)][0].key) if peak else None,
                }
            )
        return rows

    def descriptor_bytes(self) -> int:
        """Return the bytes of the descriptors, which only NVIDIA's firmware and runtime read."""
        lists = self._lists()
        return sum(allocation.memory.size for allocation in self.allocations if allocation.memory.id in lists)

    def weight_bytes(self) -> int:
        """Return the bytes of weights and other operands in the file, without the rest of their pages."""
        loadable, lists = self.study.loadable, self._lists()
        memories = [allocation.memory for allocation in self.allocations if allocation.memory.id not in lists]
        return sum(blob.length for memory in memories for _, blob in loadable.contents(memory))

    def _lists(self) -> set[int]:
        """The memories of descriptors."""
        return {memory for task in self.study.tasks.values() for memory in task.list_memories(self.study.loadable)}

    def steps(self) -> list[Row]:
        """The steps that lifetimes count in: operations that hand their results on the fly are one."""
        return [
            {
                "step": step,
                "operations": [node.label for node in chain],
                "engines": [node.engine for node in chain],
                "layer": chain[-1].layer,
            }
            for step, chain in enumerate(self.study.steps)
        ]

    def allocation_rows(self) -> list[Row]:
        """One row per memory of the memory list."""
        values = defaultdict(list)
        for value in self.study.values:
            values[value.memory].append(value)
        return [self._allocation_row(allocation, values[allocation.memory.id]) for allocation in self.allocations]

    def _allocation_row(self, allocation: Allocation, values: list[Value]) -> Row:
        memory = allocation.memory
        return {
            "memory": memory.id,
            "space": allocation.space,
            "address": allocation.address,
            "end": allocation.address + memory.size,
            "size": memory.size,
            "reserved": allocation.reserved,
            "alignment": memory.alignment,
            "flags": flag_names(memory.flags),
            "use": _use(memory),
            "name": self._memory_name(memory),
            "first_write": min((value.first for value in values), default=None),
            "last_read": max((value.last for value in values), default=None),
            "buffers": len(values),
        }

    def _memory_name(self, memory: MemoryEntry) -> str | None:
        if memory.is_input or memory.is_output:
            return self.study.loadable.tensor(memory.tensor_desc_id).name
        return memory.contents[0] if memory.contents else None

    def buffer_rows(self) -> list[Row]:
        """One row per value: its place, its first and last operation."""
        addresses = {allocation.memory.id: allocation.address for allocation in self.allocations}
        return [
            {
                "buffer": value.id,
                "name": self._value_name(value),
                "kind": value.kind,
                "memory": value.memory,
                "offset": value.offset,
                "address": addresses[value.memory] + value.offset if value.memory in addresses else None,
                "size": value.size,
                "bytes": value.bytes,
                "shape": list(value.shape) if value.shape else None,
                "layout": value.layout,
                "line_stride": value.line_stride,
                "surface_stride": value.surface_stride,
                "aligned_to": _alignment(addresses.get(value.memory, 0) + value.offset),
                "written_by": self._label(value.writer) if value.writer else None,
                "read_by": list(dict.fromkeys(self._label(key) for key, _ in value.readers)),
                "first": value.first,
                "last": value.last,
            }
            for value in self.study.values
        ]

    def _value_name(self, value: Value) -> str:
        """Return the layer name of the producing operation, else the name of the memory."""
        if value.kind == "intermediate" and value.writer:
            layer = self.study.by_key[value.writer].layer
            return layer or value.name
        return value.name

    def reuse(self) -> list[Row]:
        """Pairs of values of which the later takes bytes of the earlier, when nothing needs that any more."""
        return [row for row in self._successions() if not row.pop("alive")]

    def overlaps(self) -> list[Row]:
        """Pairs of values of which the later takes bytes of the earlier while that is still read afterwards."""
        return [row for row in self._successions() if row.pop("alive")]

    def outside(self) -> list[Row]:
        """Accesses that leave the pages of their memory; in hardware they continue in the memories around it."""
        return [
            {
                "operation": operation.label,
                "field": access.field,
                "writes": access.writes,
                "memory": access.memory,
                "first": access.start,
                "end": access.stop,
                "size": access.limit,
            }
            for operation in self.study.program.operations
            for access in operation.accesses
            if access.is_outside
        ]

    def _successions(self) -> Iterable[Row]:
        """Which value takes whose bytes: found by going through each memory's values in the order of their writes."""
        makers = defaultdict(list)
        for value in self.study.values:
            if value.writer:
                makers[self.study.step_of[value.writer]].append(value)
        count = 0
        for earlier in self.study.values:
            taken: dict[int, int] = defaultdict(int)
            for step, amount in earlier.covered:
                taken[step] += amount
            for step, amount in taken.items():
                later = next((value for value in makers[step] if value.memory == earlier.memory), None)
                if later is None or later.writer is None or count >= MAX_PAIRS:
                    continue
                count += 1
                yield {
                    "memory": earlier.memory,
                    "earlier": earlier.id,
                    "later": later.id,
                    "operation": self._label(later.writer),
                    "bytes": amount,
                    "in_place": earlier.last == step and later.writer in {key for key, _ in earlier.readers},
                    "while_read": any(
                        key != later.writer and self.study.step_of[key] == step for key, _ in earlier.readers
                    ),
                    "alive": earlier.last > step,
                }

    def contiguous(self) -> list[Row]:
        """Return the ranges that must be contiguous, with the reason. Memories may be anywhere in their space."""
        rows = []
        counts: dict[int, int] = defaultdict(int)
        for value in self.study.values:
            counts[value.memory] += 1
        for allocation in self.allocations:
            number = counts[allocation.memory.id]
            if allocation.memory.is_input or allocation.memory.is_output:
                why = f"bound as a whole ({_use(allocation.memory)})"
                batch = self.study.loadable.tensor(allocation.memory.tensor_desc_id).n
                why += f", with {batch} consecutive images" if batch > 1 else ""
            elif allocation.memory.contents:
                blobs = len(allocation.memory.contents)
                why = "loaded from the file" + (f" ({blobs} blobs at fixed offsets)" if blobs > 1 else "")
            else:
                why = f"{number} buffers at fixed offsets in it" if number > 1 else "one buffer"
            rows.append(
                {"memory": allocation.memory.id, "space": allocation.space, "bytes": allocation.memory.size, "why": why}
            )
        return rows

    def _label(self, key: Key) -> str:
        return self.study.by_key[key].label


def _use(memory: MemoryEntry) -> str:
    if memory.is_input:
        return "input"
    if memory.is_output:
        return "output"
    return "constant" if memory.contents else "intermediate"


def _alignment(address: int) -> int:
    """The largest power of two up to a page that divides the address."""
    return min(address & -address, PAGE) if address else PAGE


def _live_bytes(values: Iterable[Value], steps: int) -> list[int]:
    """Bytes alive at each step: from the write to the last read; bytes that two values share count once."""
    change = [0] * (steps + 2)
    for value in values:
        first, last = max(value.first, 0), min(value.last, steps - 1)
        if last < first:
            continue
        change[first] += value.bytes
        change[last + 1] -= value.bytes
        for step, amount in value.covered:
            if step <= last:
                change[step] -= amount
                change[last + 1] += amount
    live, total = [], 0
    for step in range(steps):
        total += change[step]
        live.append(total)
    return live


LEFT, RIGHT, ROW, CURVE = 330, 24, 15, 90
MIN_WIDTH, MAX_WIDTH = 640, 2400
MAX_ROWS = 2000
CAPTION, CHARACTER = 12, 7  # characters of a caption of the axis, and the pixels of one


def memory_svg(memory: MemoryMap, style: str = STYLE) -> str:
    """The drawing as SVG text; ``style`` "" for a page that has the colors."""
    rows = sorted(memory.buffer_rows(), key=lambda row: (row["kind"] == "constant", row["address"] or 0, row["first"]))
    steps = memory.steps()
    plot = min(max(len(steps) * 14, MIN_WIDTH), MAX_WIDTH)
    scale = plot / max(len(steps), 1)
    drawing = Drawing()
    drawing.text(8, 18, f"Memory of {short(memory.study.title, 80)}", "title")
    top = 30.0
    for space in SPACES:
        if max(memory.usage[space], default=0):
            top = _curve(drawing, memory.usage[space], space, scale, plot, top)
    top = _axis(drawing, steps, scale, plot, top, len(rows[:MAX_ROWS]) * ROW)
    for row in rows[:MAX_ROWS]:
        _bar(drawing, row, scale, len(steps), top)
        top += ROW
    if len(rows) > MAX_ROWS:
        drawing.text(8, top + 12, f"not drawn: {counted(len(rows) - MAX_ROWS, 'more buffer')}", "soft")
        top += ROW
    _legend(drawing, top + 16)
    return drawing.document(LEFT + plot + RIGHT, f"Memory map of {memory.study.loadable.name}", style)


def _curve(drawing: Drawing, live: list[int], space: str, scale: float, plot: float, top: float) -> float:
    peak = max(live)
    bottom = top + CURVE
    points = [(float(LEFT), bottom)]
    for step, amount in enumerate(live):
        y = bottom - amount / peak * (CURVE - 12)
        points += [(LEFT + step * scale, y), (LEFT + (step + 1) * scale, y)]
    points.append((LEFT + len(live) * scale, bottom))
    drawing.area(points, "intermediate")
    drawing.line(LEFT, bottom, LEFT + plot, bottom)
    drawing.text(8, top + 24, f"live bytes in {space.upper()}")
    drawing.text(8, top + 40, f"peak {peak:,} (weights not counted)", "soft")
    return bottom + 8


def _axis(drawing: Drawing, steps: list[Row], scale: float, plot: float, top: float, height: float) -> float:
    every = max(1, math.ceil((CAPTION * CHARACTER + 8) / scale))
    for step in range(0, len(steps), every):
        x = LEFT + step * scale
        drawing.line(x, top + 16, x, top + 20 + height)
        label = short(f"{steps[step]['operations'][0]} {steps[step]['engines'][0]}", CAPTION)
        if x + 2 + len(label) * CHARACTER <= LEFT + plot + RIGHT:
            drawing.text(x + 2, top + 12, label, "soft")
    drawing.line(LEFT, top + 18, LEFT + plot, top + 18)
    return top + 20


def _bar(drawing: Drawing, row: Row, scale: float, steps: int, top: float) -> None:
    first, last = max(row["first"], 0), min(row["last"], steps - 1)
    address = f"0x{row['address']:x}" if row["address"] is not None else "not allocated"
    drawing.text(8, top + 11, f"{address}  {short(short_layer(row['name']), 26)}")
    drawing.text(LEFT - 8, top + 11, f"{row['bytes']:,}", "soft", "end")
    life = f"{row['written_by'] or 'before the run'} to {row['read_by'][-1] if row['read_by'] else 'the end'}"
    title = f"{row['name']}: {row['bytes']:,} bytes at {address}, {row['kind']}, {life}"
    width = max((last - first + 1) * scale, 2)
    drawing.rect(LEFT + first * scale, top + 2, width, ROW - 4, row["kind"], title)


def _legend(drawing: Drawing, top: float) -> None:
    x = 8.0
    for kind in ("input", "intermediate", "output", "constant", "unset"):
        drawing.rect(x, top - 9, 10, 10, kind)
        drawing.text(x + 15, top, kind, "soft")
        x += 110
