"""PDP, the planar data processor: pooling, from memory or on the fly from the SDP.

Source: cmod/pdp/NV_NVDLA_pdp.cpp; programming guide, "Planar Data Processor".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.job import (
    CUBE_LIMIT,
    EngineContext,
    Handed,
    Job,
    MemoryCube,
    check_size,
    element_type,
    elements_of,
    memory_cube,
    surfaces_of,
)
from nvdla.emulator.hardware.register_file import RegisterGroup
from nvdla.emulator.memory.address_space import AddressSpace, Lanes, Move
from nvdla.errors import ConfigError, ScheduleError
from nvdla.limits import MAX_WINDOW, Work
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from nvdla.kernels.jit.recorded_calls import RecordedCall
    from nvdla.kernels.pdp import Cubes

AVERAGE, MAXIMUM, MINIMUM = 0, 1, 2
# Kernel, stride and padding before, each (vertical, horizontal).
Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]

# The sign bit of PAD_VALUE_1X..7X (NV_NVDLA_pdp.cpp:496) and the bits of the line buffer's sums.
_PAD_SIGN_BITS = {"int8": (7, 8, 9, 9, 10, 10, 10), "int16": (15, 16, 17, 17, 18, 18, 18)}
SUM_BITS = {"int8": 16, "int16": 32}


@dataclass(frozen=True)
class PoolingWindow:
    """Geometry in one direction."""

    kernel: int
    stride: int
    pad_before: int
    pad_after: int

    def outputs(self, size: int) -> int:
        """Return the number of windows of a cube of ``size``."""
        return (size + self.pad_before + self.pad_after - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class Piece:
    """Columns that are pooled together: all, or one part of a split width. Offsets and widths in elements."""

    source: int
    width: int
    target: int
    out_width: int
    window: PoolingWindow


@dataclass(frozen=True)
class PdpSettings:
    """One pooling. ``source``: None on the fly from SDP."""

    source: MemoryCube | None
    destination: MemoryCube
    elements: Precision
    method: int
    height: int
    out_height: int
    surfaces: int
    vertical: PoolingWindow
    pieces: tuple[Piece, ...]
    pad_values: np.ndarray
    reciprocal: tuple[int, int]
    flush_nan: bool

    @property
    def width(self) -> int:
        """Columns of the input, all parts of a split width together."""
        return max(piece.source + piece.width for piece in self.pieces)

    @property
    def out_width(self) -> int:
        """Columns of the output, all parts of a split width together."""
        return max(piece.target + piece.out_width for piece in self.pieces)


class PdpJob(Job):
    """One prepared pooling. ``source`` None: on the fly from SDP as (surfaces, H, W, atom elements)."""

    destination: np.ndarray

    def __init__(self, settings: PdpSettings, group: RegisterGroup, memory: AddressSpace) -> None:
        self.settings = settings
        self.group = group
        self.source = source = None if settings.source is None else settings.source.view(memory)
        self.destination = settings.destination.view(memory)
        self.statistics: dict[str, int] = {}
        self._wide = None if source is None or settings.elements is Precision.FP16 else _wide(settings, source)

    @property
    def work(self) -> Work:
        """Every output looks at its whole window."""
        settings = self.settings
        window = settings.vertical.kernel * max(piece.window.kernel for piece in settings.pieces)
        read = math.prod(self._expected_shape())
        largest = max(read, self.destination.size)
        return Work(elements=read + self.destination.size * window, cube=largest, scratch=16 * largest)

    @property
    def needs_kernels(self) -> bool:
        """Only averages of fp16 have no fallback."""
        return self.settings.elements is Precision.FP16 and self.settings.method == AVERAGE

    @property
    def reads(self) -> list[np.ndarray]:
        """Views of the memory that it reads."""
        return [] if self.source is None else [self.source]

    @property
    def writes(self) -> list[np.ndarray]:
        """Views of the memory that it writes."""
        return [self.destination]

    def _relocate(self, move: Move) -> None:
        self.source = None if self.source is None else move(self.source)
        self._wide = None if self._wide is None else move(self._wide)
        self.destination = move(self.destination)

    def check_handed(self, shape: tuple[int, ...] | None) -> None:
        """Raise ScheduleError unless the SDP hands over the cube that the registers describe."""
        if self.source is None and shape != self._expected_shape():
            wanted, got = _describe(self._expected_shape()), "nothing" if shape is None else _describe(shape)
            raise ScheduleError(f"deadlock: PDP takes {wanted} on the fly, the SDP delivers {got}")

    def run(self, source: Handed = None) -> None:
        """Pool the cube in memory, or ``source``."""
        elements = self.settings.elements
        if self.source is not None:
            source = elements_of(self.source if self._wide is None else self._wide, elements)
        assert source is not None  # as check_handed requires
        if elements is Precision.FP16:
            source = self._special_values(source)
        nans = self._pool_cube(source, self.destination)
        if elements is Precision.FP16:
            self.statistics["nan_output"] = nans
            self.group.values["D_NAN_OUTPUT_NUM"] = nans

    def records(self, source: Handed = None) -> tuple[list[RecordedCall], Handed] | None:
        """As a record: int8 cubes that are contiguous, all pieces at once."""
        view = source if self.source is None else self._wide if self._wide is not None else self.source
        fits = self.settings.elements is Precision.INT8 and len(self.settings.pieces) == 1
        if view is None or not (fits and view.flags.c_contiguous and self.destination.flags.c_contiguous):
            return None
        from nvdla.kernels.pdp import Cubes, pooling

        settings, (surfaces, height, width, atom) = self.settings, view.shape
        _, out_height, out_width, _ = self.destination.shape
        cubes = Cubes(1, surfaces, height, width, out_height, out_width, atom, 0, 0)
        flat, out, window = view.reshape(-1), self.destination.reshape(-1), self._geometry(settings.pieces[0])
        average = (settings.pad_values, settings.reciprocal, SUM_BITS["int8"])
        is_average = settings.method == AVERAGE
        record = pooling(flat, out, cubes, window, settings.method == MINIMUM, average if is_average else None)
        return [record], None

    def run_lanes(self, lanes: Lanes, count: int, handed: Handed = None) -> None:
        """:meth:`run` for ``count`` images in lanes 1, 2 ...; ``handed`` contains their cubes one after the other.
        Integers, which have no counters, are pooled all at once.
        """
        if self.settings.elements is Precision.FP16:
            super().run_lanes(lanes, count, handed)
            return
        view = self._source_view(lanes)
        source = np.empty(0, np.uint8) if handed is None else handed  # data from memory are not passed on
        in_lanes = view is None or (lanes.holds(view) and view.flags.c_contiguous)
        if in_lanes and self.destination.flags.c_contiguous and len(self.settings.pieces) == 1:
            self._pool_images(lanes, count, source.reshape(-1) if view is None else lanes.flat(view, 1, count))
            return
        for lane in range(1, count + 1):
            cube = source[lane - 1] if view is None else elements_of(lanes.at(view, lane), self.settings.elements)
            self._pool_cube(cube, lanes.at(self.destination, lane))

    def _source_view(self, lanes: Lanes) -> np.ndarray | None:
        """Return the input in memory, with lines that no window covers if that makes it contiguous."""
        is_wide = self._wide is not None and lanes.holds_all(self._wide)
        return self._wide if is_wide else self.source

    def _pool_images(self, lanes: Lanes, count: int, source: np.ndarray) -> None:
        """Pool contiguous cubes, flat: from the SDP one after the other, or from lanes."""
        from nvdla.kernels.pdp import Cubes

        dtype = self.settings.elements.bits
        surfaces, height, width, atom = self._expected_shape()
        stride = out_stride = lanes.stride // dtype.itemsize
        view = self._source_view(lanes)
        if view is None:
            stride = surfaces * height * width * atom
        else:
            surfaces, height, width, _ = view.shape
        _, out_height, out_width, _ = self.destination.shape
        cubes = Cubes(count, surfaces, height, width, out_height, out_width, atom, stride, out_stride)
        out = lanes.flat(self.destination, 1, count).view(dtype)
        _pool_integers(self.settings, source.view(dtype), out, cubes, self._geometry(self.settings.pieces[0]))

    def _pool_cube(self, source: np.ndarray, destination: np.ndarray) -> int:
        """Pool all pieces of a cube; returns the NaNs written (fp16)."""
        elements = self.settings.elements
        direct = destination.flags.c_contiguous and len(self.settings.pieces) == 1
        out = destination if direct else np.empty(destination.shape, np.uint8)
        nans = sum(self._pool(source, out.view(elements.bits), piece) for piece in self.settings.pieces)
        if not direct:
            destination[...] = out
        return nans

    def _expected_shape(self) -> tuple[int, int, int, int]:
        atom = self.destination.shape[3] // self.settings.elements.bytes
        return (self.settings.surfaces, self.settings.height, self.settings.width, atom)

    def _special_values(self, source: np.ndarray) -> np.ndarray:
        """Count infinities and NaNs, and flush the NaNs: only of what comes from memory (:549, ExtractDmaPayload)."""
        from nvdla.kernels.pdp import count_special, flush_nan

        source = source.view(np.uint16)
        infinities, nans = count_special(source) if self.source is not None else (0, 0)
        self.statistics |= {"inf_input": infinities, "nan_input": nans}
        self.group.values |= {"D_INF_INPUT_NUM": infinities, "D_NAN_INPUT_NUM": nans}
        if nans and self.settings.flush_nan:
            source = source.copy()
            flush_nan(source)
        return source

    def _pool(self, source: np.ndarray, out: np.ndarray, piece: Piece) -> int:
        """Pool one piece into its columns of ``out``; returns the NaNs written (fp16)."""
        whole = len(self.settings.pieces) == 1
        columns = source if whole else np.ascontiguousarray(source[:, :, piece.source : piece.source + piece.width])
        shape = (*out.shape[:2], piece.out_width, out.shape[3])
        result = out if whole else np.empty(shape, out.dtype)
        nans = self._compute(columns, result, piece)
        if not whole:
            out[:, :, piece.target : piece.target + piece.out_width] = result
        return nans

    def _geometry(self, piece: Piece) -> Geometry:
        """Return the geometry of the windows of a piece."""
        vertical, horizontal = self.settings.vertical, piece.window
        kernel, stride = (vertical.kernel, horizontal.kernel), (vertical.stride, horizontal.stride)
        return kernel, stride, (vertical.pad_before, horizontal.pad_before)

    def _compute(self, columns: np.ndarray, result: np.ndarray, piece: Piece) -> int:
        settings, (kernel, stride, pad) = self.settings, self._geometry(piece)
        if settings.elements is Precision.FP16:
            from nvdla.kernels.pdp import pool_fp16

            values, reciprocal = settings.pad_values, settings.reciprocal
            return pool_fp16(columns, result, settings.method, kernel, stride, pad, values, reciprocal)
        from nvdla.kernels.pdp import Cubes

        (surfaces, height, width, _), (_, out_height, out_width, atom) = columns.shape, result.shape
        cubes = Cubes(1, surfaces, height, width, out_height, out_width, atom, 0, 0)
        _pool_integers(settings, columns.reshape(-1), result.reshape(-1), cubes, (kernel, stride, pad))
        return 0


def _pool_integers(settings: PdpSettings, source: np.ndarray, out: np.ndarray, cubes: Cubes, window: Geometry) -> None:
    """Run the kernel of the method on flat cubes."""
    from nvdla.kernels import pdp

    work = source.size / pdp.ELEMENTS_PER_NANOSECOND
    if settings.method == AVERAGE:
        values = (settings.pad_values, settings.reciprocal, SUM_BITS[settings.elements])
        pdp.pool_average.for_work(work, source, out, cubes, *window, *values)
    else:
        pdp.pool_extreme.for_work(work, source, out, cubes, *window, int(settings.method == MINIMUM))


def _wide(settings: PdpSettings, source: np.ndarray) -> np.ndarray | None:
    """The packed cube that ``source`` is the upper left part of, if no window reaches beyond that part. Pooling then
    needs no contiguous copy. None if ``source`` is contiguous, or memory has no such cube.
    """
    surfaces, height, width, atom = source.shape
    surface, line, pixel, _ = source.strides
    packed = pixel == atom and line >= width * atom and line % atom == 0 and surface >= height * line
    if source.flags.c_contiguous or len(settings.pieces) > 1 or not packed or surface % line:
        return None
    vertical, horizontal = settings.vertical, settings.pieces[0].window
    below = (settings.out_height - 1) * vertical.stride + vertical.kernel - vertical.pad_before
    right = (settings.out_width - 1) * horizontal.stride + horizontal.kernel - horizontal.pad_before
    if below > height or right > width or source.ctypes.data + surfaces * surface > _end_of_memory(source):
        return None
    return np.lib.stride_tricks.as_strided(source, (surfaces, surface // line, line // atom, atom))


def _end_of_memory(view: np.ndarray) -> int:
    """Return the end address of the array that a view is part of."""
    owner, base = view, view.base
    while base is not None:
        owner, base = (base if isinstance(base, np.ndarray) else owner), getattr(base, "base", None)
    reach = sum((n - 1) * stride for n, stride in zip(owner.shape, owner.strides, strict=True))
    return int(owner.ctypes.data + owner.itemsize + reach)


def _describe(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} surfaces of {shape[1]} lines of {shape[2]} atoms"


class Pdp:
    """The PDP of one machine."""

    def __init__(self, machine: EngineContext) -> None:
        self.machine = machine

    def prepare(self, groups: dict[str, RegisterGroup]) -> PdpJob:
        """Decode and check. Raises ConfigError for what the hardware lacks, ScheduleError for what never ends."""
        settings = decode(groups, self.machine.config)
        check(settings)
        return PdpJob(settings, groups["PDP"], self.machine.memory)


def decode(groups: dict[str, RegisterGroup], config: Configuration) -> PdpSettings:
    """Decode the registers of units PDP and PDP_RDMA. Raises ConfigError and ScheduleError."""
    config.require("pdp_throughput")
    g = groups["PDP"]
    elements = element_type(g, "D_DATA_FORMAT.INPUT_DATA", config)
    method = g["D_OPERATION_MODE_CFG.POOLING_METHOD"]
    if method > MINIMUM:
        name = "PDP.D_OPERATION_MODE_CFG.POOLING_METHOD"
        raise ConfigError(f"{name}: must be 0 (average), 1 (max) or 2 (min), got {method}")
    pieces = tuple(_pieces(g, _window(g, "WIDTH", "LEFT", "RIGHT")))
    height, out_height = g["D_DATA_CUBE_IN_HEIGHT"] + 1, g["D_DATA_CUBE_OUT_HEIGHT"] + 1
    surfaces, atom = surfaces_of(g["D_DATA_CUBE_IN_CHANNEL"] + 1, elements, config), config.memory_atom
    out_width = max(piece.target + piece.out_width for piece in pieces)
    source, shape = None, (surfaces, height, max(piece.source + piece.width for piece in pieces), atom)
    if g["D_OPERATION_MODE_CFG.FLYING_MODE"]:
        rdma = _read_dma(groups, split=len(pieces) > 1)
        source = memory_cube(rdma, "SRC", "D_SRC_RAM_CFG.SRC_RAM_TYPE", shape, config)
    check_size(shape, CUBE_LIMIT, "PDP source")
    written = (surfaces, out_height, out_width, atom)
    return PdpSettings(
        source=source,
        destination=memory_cube(g, "DST", "D_DST_RAM_CFG.DST_RAM_TYPE", written, config),
        elements=elements,
        method=method,
        height=height,
        out_height=out_height,
        surfaces=surfaces,
        vertical=_window(g, "HEIGHT", "TOP", "BOTTOM"),
        pieces=pieces,
        pad_values=_pad_values(g, elements),
        reciprocal=(g["D_RECIP_KERNEL_HEIGHT.RECIP_KERNEL_HEIGHT"], g["D_RECIP_KERNEL_WIDTH.RECIP_KERNEL_WIDTH"]),
        flush_nan=bool(g["D_NAN_FLUSH_TO_ZERO.NAN_TO_ZERO"]),
    )


def check(settings: PdpSettings) -> None:
    """Check that windows and cubes fit. Raises ConfigError and ScheduleError."""
    _check_outputs("height", settings.vertical, settings.height, settings.out_height)
    for piece in settings.pieces:
        _check_outputs("width", piece.window, piece.width, piece.out_width)
        if piece.source < 0:
            raise ConfigError("PDP: kernel: must not be wider than the first part of the split width")
    if settings.source is None and len(settings.pieces) > 1:
        raise ConfigError("PDP.D_OPERATION_MODE_CFG.SPLIT_NUM: only data from memory can be split in width")


def _window(g: RegisterGroup, direction: str, before: str, after: str) -> PoolingWindow:
    kernel = g[f"D_POOLING_KERNEL_CFG.KERNEL_{direction}"] + 1
    if kernel > MAX_WINDOW:
        field = f"PDP.D_POOLING_KERNEL_CFG.KERNEL_{direction}"
        raise ConfigError(f"{field}: must be at most {MAX_WINDOW - 1}, got {kernel - 1}")
    return PoolingWindow(
        kernel=kernel,
        stride=g[f"D_POOLING_KERNEL_CFG.KERNEL_STRIDE_{direction}"] + 1,
        pad_before=g[f"D_POOLING_PADDING_CFG.PAD_{before}"],
        pad_after=g[f"D_POOLING_PADDING_CFG.PAD_{after}"],
    )


def _check_outputs(name: str, window: PoolingWindow, size: int, outputs: int) -> None:
    """Each output must be fed by at least one input, and no input may make an output that nothing takes."""
    possible = window.outputs(size)
    if outputs > possible:
        needed = (outputs - 1) * window.stride + window.kernel - window.pad_before - window.pad_after
        raise ScheduleError(
            f"deadlock: {outputs} PDP output elements of {name} (kernel {window.kernel}, stride {window.stride}, "
            f"padding {window.pad_before} and {window.pad_after}) need {needed} input elements, there are {size}"
        )
    if outputs < possible:
        raise ConfigError(f"PDP: the input makes {possible} output elements of {name}, the output cube has {outputs}")
    last = (outputs - 1) * window.stride - window.pad_before
    if window.pad_before >= window.kernel or last >= size:
        raise ScheduleError(
            f"deadlock: a PDP output element of {name} is in the padding alone (kernel {window.kernel}, "
            f"padding {window.pad_before} and {window.pad_after})"
        )


def _pieces(g: RegisterGroup, window: PoolingWindow) -> Iterator[Piece]:
    """Yield the parts of the width: adjacent parts share kernel - stride columns of the input
    (NV_NVDLA_pdp.cpp:236)."""
    split = g["D_OPERATION_MODE_CFG.SPLIT_NUM"] + 1
    if split == 1:
        yield Piece(0, g["D_DATA_CUBE_IN_WIDTH"] + 1, 0, g["D_DATA_CUBE_OUT_WIDTH"] + 1, window)
        return
    shared = window.kernel - window.stride
    source, target = 0, 0
    for number in range(split):
        which = "FIRST" if number == 0 else "LAST" if number == split - 1 else "MID"
        width = g[f"D_PARTIAL_WIDTH_IN.PARTIAL_WIDTH_IN_{which}"] + 1
        out_width = g[f"D_PARTIAL_WIDTH_OUT.PARTIAL_WIDTH_OUT_{which}"] + 1
        before = window.pad_before if number == 0 else 0
        after = window.pad_after if number == split - 1 else 0
        overlap = shared if number else 0
        part = PoolingWindow(window.kernel, window.stride, before, after)
        yield Piece(source - overlap, width + overlap, target, out_width, part)
        source, target = source + width, target + out_width


def _pad_values(g: RegisterGroup, precision: Precision) -> np.ndarray:
    """int64 (8,): what n elements outside the cube add, n = 0..7; fp17 bit patterns for fp16.

    The hardware model only sets the bits above the sign bit, it never clears them (int_sign_extend, :1854).
    """
    values = [0]
    for number in range(1, 8):
        value = g[f"D_POOLING_PADDING_VALUE_{number}_CFG.PAD_VALUE_{number}X"]
        if precision is Precision.FP16:
            value &= 0x1FFFF
        else:
            sign_bit = _PAD_SIGN_BITS[precision][number - 1]
            if value >> sign_bit & 1:
                value |= -1 << sign_bit
        values.append(value)
    return np.array(values, np.int64)


def _read_dma(groups: dict[str, RegisterGroup], split: bool) -> RegisterGroup:
    """Return the group of the read DMA, which must fetch the cube that PDP takes: else one of them deadlocks."""
    if "PDP_RDMA" not in groups:
        raise ScheduleError("deadlock: PDP takes its data from memory, but PDP_RDMA is not enabled")
    g, rdma = groups["PDP"], groups["PDP_RDMA"]
    same = ["D_DATA_CUBE_IN_WIDTH", "D_DATA_CUBE_IN_HEIGHT", "D_DATA_CUBE_IN_CHANNEL", "D_DATA_FORMAT.INPUT_DATA"]
    pairs = [(name, name) for name in same]
    pairs.append(("D_OPERATION_MODE_CFG.SPLIT_NUM", "D_OPERATION_MODE_CFG.SPLIT_NUM"))
    if split:
        pairs[0] = ("D_PARTIAL_WIDTH_IN", "D_PARTIAL_WIDTH_IN")
        fields = ("KERNEL_WIDTH", "KERNEL_STRIDE_WIDTH")
        pairs += [(f"D_POOLING_KERNEL_CFG.{field}",) * 2 for field in fields]
    for ours, theirs in pairs:
        if g[ours] != rdma[theirs]:
            raise ScheduleError(
                f"deadlock: PDP.{ours} is {g[ours]}, PDP_RDMA.{theirs} is {rdma[theirs]}: must be equal"
            )
    return rdma
