"""Which bytes of which memory an operation reads and writes, from its descriptors alone.

An access is a footprint: pieces of contiguous bytes within one memory of the memory list. Layouts are those that the
engines use: surfaces of atoms for features, lines of pixels for images, plain bytes for weights, and for the SDP's
operands one atom a surface (per channel) or one a position (per element).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nvdla.descriptors import DlaOperation, DlaTask, EmuOperation, EmuTask
from nvdla.descriptors.enums import DataFormat, EmuFormat, MemType, OpType, Precision, RubikMode, SdpMode, SdpType
from nvdla.hardware.configuration import Configuration
from nvdla.hardware.pixel_formats import PIXEL_FORMATS
from nvdla.loadable import Loadable, TaskEntry

# A footprint of more pieces than this is taken as one piece from its first to its last byte.
MAX_PIECES = 2048
BURST = 32
EMU_ATOMS = {EmuFormat.INT8: (1, 32), EmuFormat.INT8_8: (1, 8), EmuFormat.FF16: (2, 32)}
DEFAULT_EMU_ATOM = (2, 32)

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Access:
    """One operand of an operation in memory.

    ``role``: "src", "dst", "weights", "wmb", "wgs", "x1", "x2", "y", "transfer 0" ... ``memory``: id in the memory
    list; ``pieces``: (first byte, byte behind the last) in that memory, in order, without overlap; ``traffic``: bytes
    that are moved; ``shape``: (channels, height, width) of a cube, else None; ``layout``: "feature", "image", "plane",
    "bytes"; ``beyond``: bytes that would lie behind the end of the memory (they are not in ``pieces``).
    """

    role: str
    writes: bool
    memory: int
    address: int
    pieces: tuple[tuple[int, int], ...]
    traffic: int
    layout: str
    shape: Shape | None = None
    element_bytes: int = 1
    line_stride: int = 0
    surface_stride: int = 0
    beyond: int = 0

    @property
    def offset(self) -> int:
        """First byte in the memory."""
        return self.pieces[0][0] if self.pieces else 0

    @property
    def end(self) -> int:
        """The byte behind the last."""
        return self.pieces[-1][1] if self.pieces else 0

    @property
    def size(self) -> int:
        """Bytes from the first to the last."""
        return self.end - self.offset


@dataclass(frozen=True)
class _Block:
    """``count`` lines of ``length`` bytes, ``stride`` apart; all of that ``outer_count`` times, ``outer`` apart."""

    length: int
    count: int = 1
    stride: int = 0
    outer_count: int = 1
    outer: int = 0

    @property
    def traffic(self) -> int:
        return self.length * self.count * self.outer_count

    def pieces(self, start: int) -> list[tuple[int, int]]:
        """Contiguous pieces in ascending order."""
        inner = (self.count - 1) * self.stride + self.length
        whole = (self.outer_count - 1) * self.outer + inner
        packed_lines = self.count == 1 or self.stride <= self.length
        packed_blocks = self.outer_count == 1 or self.outer <= inner
        number = (1 if packed_lines else self.count) * (1 if packed_blocks and packed_lines else self.outer_count)
        if number == 1 or number > MAX_PIECES:
            return [(start, start + whole)]
        found = []
        for block in range(self.outer_count):
            first = start + block * self.outer
            if packed_lines:
                found.append((first, first + inner))
            else:
                lines = (first + line * self.stride for line in range(self.count))
                found += [(line, line + self.length) for line in lines]
        return _merged(sorted(found))


def _merged(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in pieces:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


class AccessFinder:
    """Finds the accesses of a task's operations. ``config`` gives the atom of feature layouts, ``sizes`` the bytes of
    each memory."""

    def __init__(self, loadable: Loadable, task: TaskEntry, config: Configuration, sizes: Mapping[int, int]) -> None:
        self.config = config
        self._windows = [loadable.address(each) for each in task.address_list]
        self._sizes = sizes

    def of(self, task: DlaTask | EmuTask, operation: DlaOperation | EmuOperation) -> tuple[Access, ...]:
        """The accesses of one operation; surfaces that are on the fly or have no address are left out."""
        if isinstance(operation, EmuOperation):
            found = self._cpu(operation)
        else:
            found = _FINDERS[operation.op_type](self, operation)
        return tuple(access for access in found if access is not None)

    # ---- one engine each

    def _conv(self, operation: DlaOperation) -> Iterator[Access | None]:
        op, surface = operation.op, operation.surface
        size = _bytes(op.in_precision)
        images = (max(op.batch, 1), op.batch_stride)
        if op.data_format == DataFormat.FEATURE:
            yield self._feature("src", surface.src_data, False, size, images)
        else:
            yield from self._image(surface, op)
        yield self._plain("weights", surface.weight_data)
        if op.weight_format:
            yield self._plain("wmb", surface.wmb_data)
            yield self._plain("wgs", surface.wgs_data)
        yield self._feature("dst", surface.dst_data, True, _bytes(op.out_precision))

    def _image(self, surface: Any, op: Any) -> Iterator[Access | None]:
        cube = surface.src_data
        number = op.data_format if op.data_format < len(PIXEL_FORMATS) else 0
        pixel = PIXEL_FORMATS[number]
        for plane in range(len(pixel.planes)):
            stride = surface.in_line_uv_stride if plane else cube.line_stride
            block = _Block(cube.width * pixel.bytes_per_pixel(plane), cube.height, stride)
            shape = (len(pixel.planes[plane]), cube.height, cube.width)
            role = "src uv" if plane else "src"
            offset = surface.offset_u if plane else 0
            made = self._access(role, cube, False, block, "image", shape, pixel.element_bytes, offset)
            yield made

    def _sdp(self, operation: DlaOperation) -> Iterator[Access | None]:
        op, surface = operation.op, operation.surface
        images = (max(op.batch_num, 1), op.batch_stride)
        yield self._feature("src", surface.src_data, False, _bytes(op.src_precision))
        for name in ("x1", "x2", "y"):
            stage = getattr(op, f"{name}_op")
            if stage.enable and stage.type != SdpType.NONE and stage.mode != SdpMode.PER_LAYER:
                yield self._operand(name, stage, getattr(surface, f"{name}_data"), operation)
        yield self._feature("dst", surface.dst_data, True, _bytes(op.dst_precision), images)

    def _operand(self, name: str, stage: Any, cube: Any, operation: DlaOperation) -> Access | None:
        op, src = operation.op, operation.surface.src_data
        to_int8 = op.dst_precision == Precision.INT8 and op.src_precision != Precision.FP16
        elements = max(self.config.memory_atom // (1 if to_int8 else _bytes(op.src_precision)), 1)
        size = _bytes(stage.precision)
        length = elements * size * (2 if stage.type == SdpType.BOTH else 1)
        surfaces = max(-(-src.channel // elements), 1)
        if stage.mode == SdpMode.PER_KERNEL:
            block, shape = _Block(length * surfaces), (src.channel, 1, 1)
        else:
            block = _Block(src.width * length, max(src.height, 1), cube.line_stride, surfaces, cube.surf_stride)
            shape = (src.channel, src.height, src.width)
        return self._access(name, cube, False, block, "feature", shape, size)

    def _pdp(self, operation: DlaOperation) -> Iterator[Access | None]:
        size = _bytes(operation.op.precision)
        yield self._feature("src", operation.surface.src_data, False, size)
        yield self._feature("dst", operation.surface.dst_data, True, size)

    def _cdp(self, operation: DlaOperation) -> Iterator[Access | None]:
        yield self._feature("src", operation.surface.src_data, False, _bytes(operation.op.in_precision))
        yield self._feature("dst", operation.surface.dst_data, True, _bytes(operation.op.out_precision))

    def _rubik(self, operation: DlaOperation) -> Iterator[Access | None]:
        """Contract and split read features, merge reads planes; split writes planes."""
        op, src, dst = operation.op, operation.surface.src_data, operation.surface.dst_data
        size = _bytes(op.precision)
        if op.mode == RubikMode.MERGE:
            yield self._planes("src", src, False, size, src)
        else:
            yield self._feature("src", src, False, size)
        if op.mode == RubikMode.SPLIT:
            yield self._planes("dst", dst, True, size, src)
        elif op.mode == RubikMode.CONTRACT:
            shape = (dst.channel, src.height * max(op.stride_y, 1), src.width * max(op.stride_x, 1))
            yield self._feature("dst", dst, True, size, shape=shape)
        else:
            yield self._feature("dst", dst, True, size, shape=(dst.channel, src.height, src.width))

    def _planes(self, role: str, cube: Any, writes: bool, size: int, extent: Any) -> Access | None:
        line = extent.width * size
        line = -(-line // BURST) * BURST if writes else line
        block = _Block(line, max(extent.height, 1), cube.line_stride, max(cube.channel, 1), cube.plane_stride)
        shape = (cube.channel, extent.height, extent.width)
        return self._access(role, cube, writes, block, "plane", shape, size)

    def _bdma(self, operation: DlaOperation) -> Iterator[Access | None]:
        surface = operation.surface
        for number in range(surface.num_transfers):
            transfer = surface.transfers[number]
            for side, writes in (("source", False), ("destination", True)):
                block = _Block(
                    transfer.line_size,
                    max(transfer.line_repeat, 1),
                    getattr(transfer, f"{side}_line"),
                    max(transfer.surface_repeat, 1),
                    getattr(transfer, f"{side}_surface"),
                )
                role, address = f"transfer {number} {side}", getattr(transfer, f"{side}_address")
                yield self._at(role, address, 0, writes, block, "bytes")

    def _cpu(self, operation: EmuOperation) -> Iterator[Access | None]:
        for role, buffer, writes in (("src", operation.src, False), ("dst", operation.dst, True)):
            size, atom = EMU_ATOMS.get(buffer.element_format, DEFAULT_EMU_ATOM)
            block = _cube_block(
                (buffer.channel, buffer.height, buffer.width), size, atom, buffer.line_stride, buffer.surf_stride
            )
            shape = (buffer.channel, buffer.height, buffer.width)
            offset = buffer.address_index_offset
            strides = (buffer.line_stride, buffer.surf_stride)
            yield self._at(role, buffer.address_index, offset, writes, block, "feature", shape, size, strides)

    # ---- footprints

    def _feature(
        self,
        role: str,
        cube: Any,
        writes: bool,
        size: int,
        images: tuple[int, int] = (1, 0),
        shape: Shape | None = None,
    ) -> Access | None:
        shape = shape or (cube.channel, cube.height, cube.width)
        block = _cube_block(shape, size, self.config.memory_atom, cube.line_stride, cube.surf_stride)
        if images[0] > 1 and block.length:
            # The images of a batch lie apart; all that is between the first and the last counts.
            whole = block.pieces(0)[-1][1] + (images[0] - 1) * images[1]
            block = _Block(whole)
        return self._access(role, cube, writes, block, "feature", shape, size)

    def _plain(self, role: str, cube: Any) -> Access | None:
        return self._access(role, cube, False, _Block(cube.size), "bytes")

    def _access(
        self,
        role: str,
        cube: Any,
        writes: bool,
        block: _Block,
        layout: str,
        shape: Shape | None = None,
        size: int = 1,
        offset: int = 0,
    ) -> Access | None:
        if cube.type == MemType.HW:
            return None
        strides = (cube.line_stride, cube.surf_stride)
        return self._at(role, cube.address, cube.offset + offset, writes, block, layout, shape, size, strides)

    def _at(
        self,
        role: str,
        address: int,
        offset: int,
        writes: bool,
        block: _Block,
        layout: str,
        shape: Shape | None = None,
        size: int = 1,
        strides: tuple[int, int] = (0, 0),
    ) -> Access | None:
        """The access at an address index; None without one, or where nothing is touched."""
        if not 0 <= address < len(self._windows) or not block.traffic:
            return None
        window = self._windows[address]
        limit = self._sizes.get(window.mem_id, 0)
        pieces = block.pieces(window.offset + offset)
        inside = [(max(start, 0), min(end, limit)) for start, end in pieces if start < limit and end > 0]
        beyond = max(pieces[-1][1] - limit, -pieces[0][0], 0)
        return Access(
            role, writes, window.mem_id, address, tuple(inside), block.traffic, layout, shape, size, *strides, beyond
        )


def _bytes(precision: int) -> int:
    return 1 if precision == Precision.INT8 else 2


def _cube_block(shape: Shape, size: int, atom: int, line_stride: int, surface_stride: int) -> _Block:
    """A cube of (channels, height, width) elements of ``size`` bytes in feature layout."""
    channels, height, width = shape
    if not min(shape):
        return _Block(0)
    surfaces = -(-channels * size // atom)
    return _Block(width * atom, height, line_stride, surfaces, surface_stride)


_FINDERS = {
    OpType.BDMA: AccessFinder._bdma,
    OpType.CONV: AccessFinder._conv,
    OpType.SDP: AccessFinder._sdp,
    OpType.PDP: AccessFinder._pdp,
    OpType.CDP: AccessFinder._cdp,
    OpType.RUBIK: AccessFinder._rubik,
}


def union_bytes(pieces: Sequence[tuple[int, int]]) -> int:
    """Bytes in any of the pieces."""
    return sum(end - start for start, end in _merged(sorted(pieces)))
