"""Where everything lies: constants, the pool of inner surfaces, bound tensors; surfaces as data cubes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nvdla.builder import pixels
from nvdla.builder.ir import BYTES, AtomSurface, LoweredProgram, PositionSurface, Root, Surface
from nvdla.builder.planner import ALIGNMENT, MemoryLayout, SurfacePlan, layout_of
from nvdla.builder.schedule import ColumnSurface
from nvdla.hardware.configuration import Configuration
from nvdla.loadable.enums import PixelFormat
from nvdla.rounding import align, ceil_div

CONSTANTS, POOL, CVSRAM = "constants", "pool", "CVSRAM"


@dataclass(frozen=True)
class Extent:
    """Bytes start..end of one memory: all of them, or ``span`` bytes every ``stride`` bytes from the start on."""

    memory: str
    start: int
    end: int
    stride: int = 0
    span: int = 0


class ExtentTable:
    """Many extents as columns, to be compared with one at a time: a task may have thousands."""

    def __init__(self, extents: Sequence[Extent]) -> None:
        self._memories = {memory: number for number, memory in enumerate(dict.fromkeys(e.memory for e in extents))}
        rows = [(self._memories[e.memory], e.start, e.end, e.stride, e.span) for e in extents]
        self._columns = np.array(rows, np.int64).reshape(-1, 5).T.copy()

    def meet(self, extent: Extent, count: int | None = None) -> np.ndarray:
        """Which of the first ``count`` extents (all) may have a byte in common with this one: bool (count,).

        Bands of rows of one tensor have none: counted modulo their common stride, their pieces lie apart.
        """
        memory, start, end, stride, span = self._columns[:, :count]
        meets = (memory == self._memories.get(extent.memory, -1)) & (start < extent.end) & (extent.start < end)
        if not extent.stride:
            return meets
        behind = (start - extent.start) % extent.stride
        apart = (behind >= extent.span) & (-behind % extent.stride >= span)
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
        """The offset of ``data``; the same bytes lie there once."""
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
        """The data cube of a surface whose columns lie side by side, or of a column of elements."""
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
        """A cube whose lines are the tensor's surfaces; its own surfaces are atoms that lie side by side."""
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
        channels, size = pixels.components(form), height * layout.line_stride
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
