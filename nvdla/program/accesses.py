"""Which bytes of which memory an operation reads and writes, from its descriptors alone.

Layouts are those that the engines use: surfaces of atoms for features, lines of pixels for images, lines of elements
for planes, plain bytes for weights, and for the SDP's operands as many elements a pixel as it processes at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from ctypes import Structure
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nvdla.emulator.cpu.operation import computes_in_line
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import NvdlaError
from nvdla.limits import PAGE
from nvdla.loadable.descriptors.enums import (
    DataFormat,
    EmuFormat,
    MemType,
    OpType,
    RubikMode,
    SdpMode,
    SdpType,
)
from nvdla.loadable.descriptors.meaning import compares, precisions_of, processing_precision, reads_operands
from nvdla.loadable.descriptors.task import DlaOperation, DlaTask, EmuOperation, EmuTask
from nvdla.loadable.enums import PIXEL_FORMATS
from nvdla.loadable.model import AddressEntry, Loadable, TaskEntry
from nvdla.util.precision import Precision
from nvdla.util.rounding import align, ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable

# A footprint of more pieces than this is taken as one piece from its first to its last byte.
MAX_PIECES = 2048
BURST = 32
STAGES = ("x1", "x2", "y")
EMU_ATOMS = {EmuFormat.INT8: (1, 32), EmuFormat.INT8_8: (1, 8), EmuFormat.FF16: (2, 32)}
DEFAULT_EMU_ATOM = (2, 32)

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Footprint:
    """``length`` bytes, repeated in nested loops: ``loops`` are (count, stride in bytes), the innermost first."""

    length: int
    loops: tuple[tuple[int, int], ...] = ()

    @property
    def traffic(self) -> int:
        """Bytes that are moved; those touched twice count twice."""
        total = self.length
        for count, _ in self.loops:
            total *= count
        return total

    @property
    def extent(self) -> int:
        """Bytes from the first to the last."""
        return self.length + sum((count - 1) * stride for count, stride in self.loops)

    def pieces(self, start: int) -> list[tuple[int, int]]:
        """Contiguous pieces (first byte, byte after the last) in ascending order, merged where they touch."""
        pieces = [(start, start + self.length)]
        for count, stride in self.loops:
            low, high = pieces[0][0], pieces[-1][1]
            if len(pieces) == 1 and (count == 1 or stride <= high - low):
                pieces = [(low, high + (count - 1) * stride)]
            elif len(pieces) * count > MAX_PIECES:
                return [(start, start + self.extent)]
            else:
                offsets = range(0, count * stride, stride) if stride else [0]
                pieces = merged(sorted((a + offset, b + offset) for offset in offsets for a, b in pieces))
        return pieces


def merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted pieces, those that touch or overlap put together."""
    joined: list[tuple[int, int]] = []
    for start, end in pieces:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def share_bytes(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Return whether two lists of pieces in ascending order have a byte in common."""
    place = other = 0
    while place < len(some) and other < len(others):
        if some[place][0] < others[other][1] and others[other][0] < some[place][1]:
            return True
        if some[place][1] <= others[other][1]:
            place += 1
        else:
            other += 1
    return False


@dataclass(frozen=True)
class Access:
    """One operand of an operation in memory.

    ``role``: "src", "src uv", "dst", "weights", "wmb", "wgs", "x1", "x2", "y", "transfer 0 source" ...; ``field``: the
    part of the surface descriptor that says so ("src_data", "transfers[0].source"). ``memory``: id in the memory list,
    of ``limit`` bytes; ``address``: index in the task's address list; ``window``: first byte of the address's window in
    the memory; ``start``: first byte touched there. ``shape``: (channels, height, width) of a cube, else None;
    ``layout``: "feature", "image", "plane", "bytes"; strides in bytes.
    """

    role: str
    field: str
    writes: bool
    memory: int
    address: int
    window: int
    start: int
    limit: int
    footprint: Footprint = dataclasses.field(repr=False)
    layout: str = "bytes"
    shape: Shape | None = None
    element_bytes: int = 1
    line_stride: int = 0
    surface_stride: int = 0

    @property
    def traffic(self) -> int:
        """Bytes that are moved."""
        return self.footprint.traffic

    @property
    def stop(self) -> int:
        """The byte after the last that is touched, which may be after the end of the memory."""
        return self.start + self.footprint.extent

    @cached_property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """(first byte, byte after the last) in the memory, in order, without overlap; nothing beyond its last page."""
        pieces = self.footprint.pieces(self.start)
        limit = align(self.limit, PAGE)
        return tuple((max(low, 0), min(high, limit)) for low, high in pieces if low < limit and high > 0)

    @cached_property
    def filled(self) -> tuple[tuple[int, int], ...]:
        """:attr:`pieces` without a surface after the last channel: the SDP reads int16 in pairs, and ignores it."""
        if self.layout != "feature" or not self.shape or len(self.footprint.loops) < 2 or not min(self.shape):
            return self.pieces
        lines, (count, stride), *images = self.footprint.loops
        needed = ceil_div(self.shape[0] * self.element_bytes * self.shape[2], self.footprint.length)
        if count != needed + 1:
            return self.pieces
        loops = (lines, (needed, stride), *images)
        return dataclasses.replace(self, footprint=Footprint(self.footprint.length, loops)).pieces

    @property
    def is_outside(self) -> bool:
        """Check whether bytes are before the memory or after its last page."""
        return self.start < 0 or self.stop > align(self.limit, PAGE)

    @property
    def beyond(self) -> int:
        """Bytes from the end of the memory to the last that is touched; of one that begins before it, those before."""
        return max(self.stop - self.limit, -self.start, 0)

    @property
    def offset(self) -> int:
        """First byte in the memory."""
        return self.pieces[0][0] if self.pieces else 0

    @property
    def end(self) -> int:
        """The byte after the last in the memory."""
        return self.pieces[-1][1] if self.pieces else 0

    @property
    def size(self) -> int:
        """Bytes from the first to the last in the memory."""
        return self.end - self.offset


class AccessFinder:
    """Finds the accesses of a task's operations. ``config`` gives the atom of feature layouts."""

    def __init__(self, loadable: Loadable, task: TaskEntry, config: Configuration) -> None:
        self.config = config
        self._loadable = loadable
        self._ids = task.address_list
        self._known: dict[int, tuple[AddressEntry, int] | None] = {}

    def window(self, address: int) -> tuple[AddressEntry, int] | None:
        """The entry of an address index, and the bytes of its memory; None where it leads nowhere."""
        if address not in self._known:
            self._known[address] = self._look_up(address)
        return self._known[address]

    def _look_up(self, address: int) -> tuple[AddressEntry, int] | None:
        if not 0 <= address < len(self._ids):
            return None
        try:
            entry = self._loadable.address(self._ids[address])
            return entry, self._loadable.memory(entry.mem_id).size
        except NvdlaError:  # the file is broken; the check of the loadable reports it
            return None

    def of(self, task: DlaTask | EmuTask, operation: DlaOperation | EmuOperation) -> tuple[Access, ...]:
        """The accesses of one operation; surfaces that are on the fly or have no address are left out."""
        if isinstance(operation, EmuOperation):
            accesses = self._cpu(operation)
        else:
            accesses = _FINDERS[operation.op_type](self, operation)
        return tuple(access for access in accesses if access is not None)

    # ---- one engine each

    def _conv(self, operation: DlaOperation) -> Iterator[Access | None]:
        """CDMA reads; the accumulator passes results to the SDP and never writes."""
        op, surface = operation.op, operation.surface
        if op.data_format == DataFormat.FEATURE:
            images = (max(op.batch, 1), op.batch_stride)
            yield self._feature("src", surface.src_data, False, _bytes(op.in_precision), images=images)
        else:
            yield from self._image(surface, op)
        yield self._plain("weights", "weight_data", surface.weight_data)
        if op.weight_format:
            yield self._plain("wmb", "wmb_data", surface.wmb_data)
            yield self._plain("wgs", "wgs_data", surface.wgs_data)

    def _image(self, surface: Structure, op: Structure) -> Iterator[Access | None]:
        cube = surface.src_data
        pixel = PIXEL_FORMATS[op.data_format if op.data_format < len(PIXEL_FORMATS) else 0]
        for plane in range(len(pixel.planes)):
            stride = surface.in_line_uv_stride if plane else cube.line_stride
            footprint = Footprint(cube.width * pixel.bytes_per_pixel(plane), ((cube.height, stride),))
            shape = (len(pixel.planes[plane]), cube.height, cube.width)
            offset = surface.offset_u if plane else 0
            role = "src uv" if plane else "src"
            size = pixel.element_bytes
            yield self._cube(role, "src_data", cube, False, footprint, "image", shape, size, offset)

    def _sdp(self, operation: DlaOperation) -> Iterator[Access | None]:
        """Every image of a hardware batch reads the same cube and operands (cmod/sdp/NV_NVDLA_sdp.cpp:533)."""
        op, surface = operation.op, operation.surface
        atom, source, target = self.config.memory_atom, _bytes(op.src_precision), _bytes(op.dst_precision)
        processing = processing_precision(op.src_precision, op.dst_precision).bytes
        read = ceil_div(surface.src_data.channel * source, atom)
        written = ceil_div(surface.src_data.channel * target, atom)
        if source > processing:
            read = align(read, 2)  # two surfaces of 16-bit elements are one of int8
        if target > processing:
            written = 2 * read  # an int8 surface becomes two, also where the second is beyond the channels
        yield self._feature("src", surface.src_data, False, source, surfaces=read)
        for name in STAGES:
            stage = getattr(op, f"{name}_op")
            if reads_operands(stage):
                yield self._operand(name, stage, operation, atom // processing)
        if not compares(op):
            images = (max(op.batch_num, 1), op.batch_stride)
            source_cube = surface.src_data
            shape = (source_cube.channel, source_cube.height, source_cube.width)
            yield self._feature("dst", surface.dst_data, True, target, shape, written, images)

    def _operand(self, name: str, stage: Structure, operation: DlaOperation, elements: int) -> Access | None:
        """``elements``: those of an atom at the precision that the SDP computes in."""
        src, cube = operation.surface.src_data, getattr(operation.surface, f"{name}_data")
        size = Precision(stage.precision).bytes
        length = elements * size * (2 if stage.type == SdpType.BOTH else 1)
        surfaces = ceil_div(src.channel, elements)
        if stage.mode == SdpMode.PER_KERNEL:
            footprint, shape = Footprint(length * surfaces), (src.channel, 1, 1)
        else:
            loops = ((src.height, cube.line_stride), (surfaces, cube.surf_stride))
            footprint, shape = Footprint(src.width * length, loops), (src.channel, src.height, src.width)
        return self._cube(name, f"{name}_data", cube, False, footprint, "feature", shape, size)

    def _same_shape(self, operation: DlaOperation) -> Iterator[Access | None]:
        """PDP and CDP: a cube is read, a cube is written."""
        precisions = precisions_of(operation.op_type, operation.op)
        assert precisions is not None
        yield self._feature("src", operation.surface.src_data, False, precisions[0].bytes)
        yield self._feature("dst", operation.surface.dst_data, True, precisions[1].bytes)

    def _rubik(self, operation: DlaOperation) -> Iterator[Access | None]:
        """Contract and split read features, merge reads planes; split writes planes."""
        op, src, dst = operation.op, operation.surface.src_data, operation.surface.dst_data
        size = _bytes(op.precision)
        surfaces = ceil_div(dst.channel * size, self.config.memory_atom)
        if op.mode == RubikMode.CONTRACT:
            strides = max(op.stride_x, 1), max(op.stride_y, 1)
            yield self._feature("src", src, False, size, surfaces=surfaces * strides[0] * strides[1])
            shape = (dst.channel, src.height * strides[1], src.width * strides[0])
            yield self._feature("dst", dst, True, size, shape)
        elif op.mode == RubikMode.SPLIT:
            yield self._feature("src", src, False, size)
            yield self._planes("dst", dst, True, size, (dst.channel, src.height, src.width))
        else:
            shape = (src.channel, src.height, src.width)
            yield self._planes("src", src, False, size, shape)
            yield self._feature("dst", dst, True, size, shape)

    def _planes(self, role: str, cube: Structure, writes: bool, size: int, shape: Shape) -> Access | None:
        """Planes of elements; written lines are filled up to whole bursts."""
        channels, height, width = shape
        line = align(width * size, BURST) if writes else width * size
        footprint = Footprint(line, ((height, cube.line_stride), (channels, cube.plane_stride)))
        return self._cube(role, f"{role}_data", cube, writes, footprint, "plane", shape, size)

    def _bdma(self, operation: DlaOperation) -> Iterator[Access | None]:
        surface = operation.surface
        for number in range(min(surface.num_transfers, len(surface.transfers))):
            transfer = surface.transfers[number]
            for side, writes in (("source", False), ("destination", True)):
                loops = (
                    (max(transfer.line_repeat, 1), getattr(transfer, f"{side}_line")),
                    (max(transfer.surface_repeat, 1), getattr(transfer, f"{side}_surface")),
                )
                footprint, address = Footprint(transfer.line_size, loops), getattr(transfer, f"{side}_address")
                part = f"transfers[{number}].{side}"
                yield self._at(f"transfer {number} {side}", part, address, 0, writes, footprint, "bytes")

    def _cpu(self, operation: EmuOperation) -> Iterator[Access | None]:
        """Softmax walks as many elements as there are channels, ignoring strides (nvdla.emulator.cpu.softmax)."""
        walks = computes_in_line(operation.op_type)
        for role, buffer, writes in (("src", operation.src, False), ("dst", operation.dst, True)):
            size, atom = EMU_ATOMS.get(buffer.element_format, DEFAULT_EMU_ATOM)
            shape = (buffer.channel, buffer.height, buffer.width)
            strides = (buffer.line_stride, buffer.surf_stride)
            footprint = _atoms(shape, ceil_div(buffer.channel * size, atom), atom, *strides)
            if walks:
                footprint = Footprint(self._walked(operation, writes) * size)
            offset = buffer.address_index_offset
            args = (role, role, buffer.address_index, offset, writes, footprint, "feature", shape, size, strides)
            yield self._at(*args)

    @staticmethod
    def _walked(operation: EmuOperation, writes: bool) -> int:
        """Elements that softmax reads or writes: in int8 no more than the destination has channels."""
        count = operation.src.channel
        half = operation.src.element_format == EmuFormat.FF16
        return int(min(count, operation.dst.channel)) if writes and not half else count

    # ---- footprints

    def _feature(
        self,
        role: str,
        cube: Structure,
        writes: bool,
        size: int,
        shape: Shape | None = None,
        surfaces: int | None = None,
        images: tuple[int, int] = (1, 0),
    ) -> Access | None:
        """Surfaces of atoms. ``size``: bytes of an element; ``images``: (count, stride) of a hardware batch."""
        shape = shape or (cube.channel, cube.height, cube.width)
        atom = self.config.memory_atom
        if surfaces is None:
            surfaces = ceil_div(shape[0] * size, atom)
        footprint = _atoms(shape, surfaces, atom, cube.line_stride, cube.surf_stride, images)
        return self._cube(role, f"{role}_data", cube, writes, footprint, "feature", shape, size)

    def _plain(self, role: str, part: str, cube: Structure) -> Access | None:
        return self._cube(role, part, cube, False, Footprint(cube.size), "bytes")

    def _cube(
        self,
        role: str,
        part: str,
        cube: Structure,
        writes: bool,
        footprint: Footprint,
        layout: str,
        shape: Shape | None = None,
        size: int = 1,
        offset: int = 0,
    ) -> Access | None:
        """The access of a data cube of the surface descriptor; None for one that is on the fly."""
        if cube.type == MemType.HW:
            return None
        strides = (cube.line_stride, cube.surf_stride)
        where = cube.offset + offset
        return self._at(role, part, cube.address, where, writes, footprint, layout, shape, size, strides)

    def _at(
        self,
        role: str,
        part: str,
        address: int,
        offset: int,
        writes: bool,
        footprint: Footprint,
        layout: str,
        shape: Shape | None = None,
        size: int = 1,
        strides: tuple[int, int] = (0, 0),
    ) -> Access | None:
        """The access at an address index; None without one, or where nothing is touched."""
        window = self.window(address)
        if window is None or footprint.traffic <= 0:
            return None
        entry, limit = window
        start = entry.offset + offset
        return Access(
            role,
            part,
            writes,
            entry.mem_id,
            address,
            entry.offset,
            start,
            limit,
            footprint,
            layout,
            shape,
            size,
            *strides,
        )


def _bytes(precision: int) -> int:
    return Precision(precision).bytes


def _atoms(
    shape: Shape, surfaces: int, atom: int, line_stride: int, surface_stride: int, images: tuple[int, int] = (1, 0)
) -> Footprint:
    """A cube of (channels, height, width) in ``surfaces`` surfaces of atoms, for each image of a batch."""
    _, height, width = shape
    if not min(shape):
        return Footprint(0)
    return Footprint(width * atom, ((height, line_stride), (surfaces, surface_stride), images))


_FINDERS: dict[OpType, Callable[[AccessFinder, DlaOperation], Iterator[Access | None]]] = {
    OpType.BDMA: AccessFinder._bdma,
    OpType.CONV: AccessFinder._conv,
    OpType.SDP: AccessFinder._sdp,
    OpType.PDP: AccessFinder._same_shape,
    OpType.CDP: AccessFinder._same_shape,
    OpType.RUBIK: AccessFinder._rubik,
}
