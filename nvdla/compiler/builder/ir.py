"""Hardware operations before scheduling, and their lookup tables.

Both tables are used in linear mode (but for fp16 normalization, where LE is exponential): an input ``x`` in a table's
range has the distance ``d = x - start``; entry ``d >> select`` and the one after it are interpolated. Sources:
"LUT programming"; hls/sdp/sdp_y_idx.cpp:28, sdp_y_inp.cpp:27; cdp/NV_NVDLA_cdp.cpp:1191.

The reference model (reference.py) evaluates them in plain numpy, the back end (tiling, planning, emission) turns them
into descriptors. A :class:`Root` is one piece of memory that holds a cube, a :class:`Surface` the part of it (channels,
rows, columns, with strides) that an operation reads or writes; concatenation and interleaving are just surfaces
of one root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from nvdla.compiler.builder.quantization import LARGEST, ends_of
from nvdla.errors import BuildError
from nvdla.loadable.enums import PixelFormat
from nvdla.tensors.real import PixelNumbers, Units
from nvdla.util.precision import Precision

LE_SEGMENTS, LO_SEGMENTS = 64, 256
Function = Callable[[np.ndarray], np.ndarray]


@dataclass(eq=False)
class LutTable:
    """One table. Integers: ``values`` int16, ``start`` and ``select`` whole numbers. fp16: halves, ``start`` a real
    number.

    ``exponent`` True (LE only): entry k covers start + 2**(select + k) .. start + 2**(select + k + 1).
    Slopes continue the table on both sides (fp16 only; integer tables end flat).
    """

    values: np.ndarray
    start: float
    select: int
    exponent: bool = False
    underflow_slope: float = 0.0
    overflow_slope: float = 0.0

    @property
    def segments(self) -> int:
        """Intervals between the entries."""
        return len(self.values) - 1

    @property
    def end(self) -> float:
        """The first input after the end of the table."""
        if self.exponent:
            return self.start + 2.0 ** min(self.select + self.segments, 127)
        return self.start + self.segments * 2.0**self.select


@dataclass(eq=False)
class Lut:
    """Both tables; ``prefer_lo`` says which answers where both hit, ``low_lo`` and ``high_lo`` where both miss."""

    le: LutTable
    lo: LutTable
    precision: str
    prefer_lo: bool = True
    low_lo: bool = True
    high_lo: bool = True
    error: float = 0.0


def exact_int8(
    function: Function, scale_in: float, scale_out: float, zero_in: int = 0, zero_out: int = 0, shift: int = 0
) -> Lut:
    """A table with one LO entry for each int8 value: no interpolation error at all. Zero points: what stands for 0.
    ``shift``: by how much the numbers that are looked up are smaller than the int8 values.

    LO starts at -128; -128 itself underflows into entry 0 (the comparison is <=), which is the entry for -128.
    """
    x = np.arange(-128, 129, dtype=np.float64)
    real = _finite(function, (x - zero_in) * scale_in)
    values = np.clip(np.floor(real / scale_out + 0.5) + zero_out, -128, 127).astype(np.int16)
    values[-1] = values[-2]  # numbers above 127 saturate
    return Lut(LutTable(values[::4], -128 - shift, 2), LutTable(values, -128 - shift, 0), Precision.INT8)


def fit_integers(function: Function, low: int, high: int, finest: int = 0) -> Lut:
    """Tables for a function of whole numbers low..high that gives table values (int16 range).

    LO covers the whole range; LE has a fourth of its segments and is put, finer, where that lowers the error most.
    """
    select = max(0, int(np.ceil(np.log2(max(high - low, 1) / LO_SEGMENTS))))
    lo = _linear(function, low, select, LO_SEGMENTS)
    probe = _probe(low, high)
    wanted = _finite(function, probe)
    error = np.abs(_interpolate(lo, probe) - wanted)
    best, worst = Lut(_linear(function, low, select + 2, LE_SEGMENTS), lo, Precision.INT16), float(error.max())
    for fine in range(finest, select):
        span = LE_SEGMENTS << fine
        for start in _starts(low, high, span, probe[int(error.argmax())]):
            le = _linear(function, start, fine, LE_SEGMENTS)
            inside = (probe > le.start) & (probe < le.end)
            both = np.where(inside, np.abs(_interpolate(le, np.where(inside, probe, start + 1)) - wanted), error)
            if both.max() < worst:
                best, worst = Lut(le, lo, Precision.INT16, prefer_lo=False), float(both.max())
    best.error = worst
    return best


def fit_halves(function: Function, low: float, high: float) -> Lut:
    """fp16 tables: LO is the finer one over low..high, LE has a quarter of its resolution over four times the range."""
    span = max(high - low, 2.0**-10)
    select = int(np.ceil(np.log2(span / LO_SEGMENTS)))
    middle = (low + high) / 2
    lo = _half_table(function, middle - LO_SEGMENTS / 2 * 2.0**select, select, LO_SEGMENTS)
    le = _half_table(function, middle - LE_SEGMENTS / 2 * 2.0 ** (select + 4), select + 4, LE_SEGMENTS)
    lut = Lut(le, lo, Precision.FP16, low_lo=False, high_lo=False)
    probe = np.linspace(low, high, 8193)
    lut.error = float(np.abs(_interpolate(lo, probe) - _finite(function, probe)).max())
    return lut


def fit_octaves(function: Function, high: float) -> Lut:
    """fp16 tables of a power of a positive number: LE has an entry per power of two, balanced so that interpolation is
    too high and too low by the same factor. LO is finer, from 1/65 of its end up to ``high``."""
    select = int(np.ceil(np.log2(high / (LO_SEGMENTS + 4))))
    lo = _half_table(function, 4 * 2.0**select, select, LO_SEGMENTS)
    edges = 2.0 ** (_FIRST_OCTAVE + np.arange(LE_SEGMENTS + 1))
    exact, part = _finite(function, edges), np.linspace(0, 1, 65)[:, None]
    most = np.max((exact[:-1] + part * np.diff(exact)) / _finite(function, edges[:-1] * (1 + part)))
    le = LutTable((exact * 2 / (1 + most)).astype(np.float16), 0.0, _FIRST_OCTAVE, exponent=True)
    return Lut(le, lo, Precision.FP16, low_lo=False, high_lo=False)


_FIRST_OCTAVE = -24
"""Power of two of the smallest positive half."""


def fit_normalization_halves(size: int, alpha: float, beta: float, k: float) -> Lut:
    """fp16 tables of (k + alpha / size * s) ** -beta: LO linear up to 16 times the knee, LE exponential beyond."""
    knee = k * size / alpha if alpha else 1.0
    select = int(np.ceil(np.log2(16 * knee / LO_SEGMENTS)))

    def function(total: np.ndarray) -> np.ndarray:
        return (k + alpha / size * total) ** -beta

    lo = _half_table(function, 0.0, select, LO_SEGMENTS)
    first = max(select + 4, -60)
    edges = 2.0 ** np.minimum(first + np.arange(LE_SEGMENTS + 1), 127)
    le = LutTable(function(edges).astype(np.float16), 0.0, first, exponent=True)
    lut = Lut(le, lo, Precision.FP16, high_lo=False)
    probe = np.linspace(0, lo.end, 8193)
    lut.error = float(np.abs(_interpolate(lo, probe) - function(probe)).max())
    return lut


def _linear(function: Function, start: int, select: int, segments: int) -> LutTable:
    edges = start + np.arange(segments + 1, dtype=np.float64) * 2.0**select
    values = np.floor(_finite(function, edges) + 0.5)
    return LutTable(np.clip(values, -32768, 32767).astype(np.int16), start, select)


def _half_table(function: Function, start: float, select: int, segments: int) -> LutTable:
    start = float(np.float32(start))
    edges = start + np.arange(segments + 1) * 2.0**select
    exact = _finite(function, edges)
    values = np.clip(exact, -65504, 65504).astype(np.float16)
    slopes = np.clip((exact[1:] - exact[:-1]) / 2.0**select, -65504, 65504)
    return LutTable(values, start, select, False, float(np.float16(slopes[0])), float(np.float16(slopes[-1])))


def _interpolate(table: LutTable, x: np.ndarray) -> np.ndarray:
    """The table in real numbers (the hardware rounds to a table unit, or to fp17)."""
    position = (x - table.start) / 2.0**table.select
    return np.interp(position, np.arange(table.segments + 1), table.values.astype(np.float64))


def _probe(low: int, high: int) -> np.ndarray:
    """Inputs at which the error is looked at: every one where they are few, denser near the low end otherwise."""
    if high - low <= 1 << 16:
        return np.arange(low, high + 1, dtype=np.float64)
    near = np.unique(np.geomspace(1, high - low, 4096).astype(np.int64))
    return np.unique(np.concatenate((low + near, np.linspace(low, high, 8192).astype(np.int64)))).astype(np.float64)


def _starts(low: int, high: int, span: int, worst: float) -> list[int]:
    """Return possible starts of a finer table: around the worst input and at the low end."""
    return sorted({low, int(min(max(worst - span // 2, low), max(low, high - span)))})


def _finite(function: Function, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        values = np.asarray(function(x), np.float64)
    if values.shape != x.shape or not np.all(np.isfinite(values)):
        raise BuildError(
            f"function of a lookup table: must be finite from {x[0]:g} to {x[-1]:g}. Limit its result there."
        )
    return values


BYTES = {str(precision): precision.bytes for precision in Precision}
DTYPES = {str(precision): precision.dtype.type for precision in Precision}


@dataclass(frozen=True)
class PixelConverter:
    """Conversion of unsigned pixels by CDMA: ``(pixel - means) * scale >> shift``.

    The result is rounded half away from zero and limited to the precision. ``lift``: bits by which a pixel is shifted
    left before. ``factors`` (C,): the real number of a channel's unit in units of the tensor's scale; the weights of
    the consuming layers compensate for it.
    """

    numbers: PixelNumbers
    means: tuple[int, ...]
    scale: int
    shift: int
    lift: int
    factors: tuple[float, ...]


@dataclass(eq=False)
class Root:
    """A whole cube in memory. ``scale``: real number of one unit (1 for fp16). ``zero``: the element that stands for 0.

    ``role``: "input", "output", "inner" or "constant", which has its elements (C, H, W) in ``data``. ``paired``: an
    even number of surfaces, for conversion between int8 and int16. ``pixels``: the format of an image; None: surfaces
    of atoms. ``converter``: its elements are unsigned pixels. ``image``: its place in a batch
    (:mod:`nvdla.compiler.builder.compiler`).
    """

    name: str
    channels: int
    height: int
    width: int
    precision: str
    scale: float = 1.0
    role: str = "inner"
    data: np.ndarray | None = None
    paired: bool = False
    pixels: PixelFormat | None = None
    converter: PixelConverter | None = None
    image: int = 0
    zero: int = 0

    @property
    def stored(self) -> str:
        """The precision of its elements in memory: of unsigned pixels that of their bits."""
        if self.converter is None:
            return self.precision
        return Precision.INT8 if self.converter.numbers.bits == 8 else Precision.INT16

    @property
    def elements(self) -> np.ndarray:
        """``data`` of a constant."""
        assert self.data is not None, f"{self.name} is not a constant"
        return self.data

    @property
    def whole(self) -> Surface:
        """The surface that covers all of it."""
        return Surface(self, 0, self.channels, 0, 1, self.height, 0, 1, self.width)


@dataclass(frozen=True, eq=False)
class Surface:
    """Part of a root: ``channels`` from ``first_channel``, ``height`` rows from ``top`` with a stride, ``width``
    columns alike. The stride of a single row or column is 1."""

    root: Root
    first_channel: int
    channels: int
    top: int
    row_stride: int
    height: int
    left: int
    column_stride: int
    width: int

    def __post_init__(self) -> None:
        for stride, count in (("row_stride", self.height), ("column_stride", self.width)):
            if count == 1:
                object.__setattr__(self, stride, 1)

    @property
    def precision(self) -> str:
        """The precision of its elements: int8, int16 or fp16."""
        return self.root.precision

    @property
    def scale(self) -> float:
        """The real number that one unit of an integer stands for."""
        return self.root.scale

    @property
    def zero(self) -> int:
        """The element that stands for 0."""
        return self.root.zero

    def real(self, elements: np.ndarray) -> np.ndarray:
        """The real numbers, float64, that elements stand for."""
        return Units(self.scale, self.zero).real(elements)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.channels, self.height, self.width

    def is_same(self, other: Surface) -> bool:
        """Return whether the other one means the same elements of the same root."""
        mine, others = ((surface.root, *_numbers(surface)) for surface in (self, other))
        return type(self) is type(other) and mine == others

    def put(self, array: np.ndarray, values: np.ndarray) -> None:
        """Store elements (C, H, W) at this surface in the root's array."""
        self.of(array)[...] = values

    def of(self, array: np.ndarray) -> np.ndarray:
        """The view of the root's array (C, H, W) that this surface means."""
        rows = slice(self.top, self.top + (self.height - 1) * self.row_stride + 1, self.row_stride)
        columns = slice(self.left, self.left + (self.width - 1) * self.column_stride + 1, self.column_stride)
        return array[self.first_channel : self.first_channel + self.channels, rows, columns]

    def channel_range(self, first: int, count: int) -> Surface:
        """The part of ``count`` channels from ``first`` on."""
        return replace(self, first_channel=self.first_channel + first, channels=count)

    def crop(self, top: int, height: int, left: int, width: int) -> Surface:
        """Rows and columns of this surface, counted by its own strides."""
        return replace(
            self,
            top=self.top + top * self.row_stride,
            height=height,
            left=self.left + left * self.column_stride,
            width=width,
        )

    def every(self, top: int, row_stride: int, height: int, left: int, column_stride: int, width: int) -> Surface:
        """Every ``row_stride``-th row and ``column_stride``-th column from a start, in this surface's strides."""
        return replace(
            self,
            top=self.top + top * self.row_stride,
            row_stride=self.row_stride * row_stride,
            height=height,
            left=self.left + left * self.column_stride,
            column_stride=self.column_stride * column_stride,
            width=width,
        )


def _numbers(surface: Surface) -> tuple[int, ...]:
    """Position of a surface in its root."""
    return tuple(getattr(surface, field.name) for field in fields(surface) if field.name != "root")


@dataclass(frozen=True, eq=False)
class PositionSurface(Surface):
    """All positions of a tensor as channels: (positions x channels of an atom, atoms of channels, 1).

    The atoms of a surface are the cube's surfaces, the tensor's surfaces its lines. ``channels`` to ``width`` are the
    cube's.
    """

    def of(self, array: np.ndarray) -> np.ndarray:
        """A copy of the root's elements in this order; channels that fill the last atom are 0."""
        positions = array.shape[1] * array.shape[2]
        atom = self.channels // positions
        end = self.top + self.height
        padded = np.zeros((end * atom, positions), array.dtype)
        padded[: array.shape[0]] = array.reshape(len(array), positions)[: len(padded)]
        cube = padded.reshape(end, atom, positions)[self.top :]
        return cube.transpose(2, 1, 0).reshape(self.channels, self.height, 1)


@dataclass(frozen=True, eq=False)
class AtomSurface(Surface):
    """A 1x1 tensor as a cube of one atom's channels whose lines are the tensor's surfaces."""

    def put(self, array: np.ndarray, values: np.ndarray) -> None:
        """Channels beyond the tensor's are dropped (the hardware writes them into the last atom)."""
        first = self.top * self.channels
        flat = values[:, :, 0].T.reshape(-1)[: len(array) - first]
        array[first : first + len(flat), 0, 0] = flat


Operand = int | float | np.ndarray | Surface


@dataclass
class Stage:
    """X1, X2 or Y. Order: X adds (or compares), multiplies, shifts, ReLU; operands: a number, (K,) numbers, a surface.

    ``prelu``: only negative values are multiplied and shifted.
    """

    alu: str | None = None
    alu_operand: Operand | None = None
    alu_shift: int = 0
    multiplier: Operand | None = None
    truncate: int = 0
    relu: bool = False
    prelu: bool = False

    @property
    def surfaces(self) -> list[Surface]:
        """The operands that are surfaces in memory."""
        return [operand for operand in (self.alu_operand, self.multiplier) if isinstance(operand, Surface)]


@dataclass
class Convert:
    """Output converter: (x - offset) * scale >> shift, rounded half away from zero, saturated."""

    scale: int = 1
    shift: int = 0
    offset: int = 0

    def __post_init__(self) -> None:
        if not -(1 << 31) <= self.offset < 1 << 31:
            raise BuildError(
                f"output converter: offset: must fit into 32 bits, got a {int(self.offset).bit_length()}-bit integer. "
                "The scales of its tensors are too far apart."
            )


@dataclass(eq=False)
class Convolve:
    """A convolution into the SDP. ``weights`` (K, C, R, S) integers or halves; pads (top, bottom, left, right), of the
    element that stands for 0. ``winograd``: by that method, the weights are the plain ones
    (:mod:`nvdla.compiler.builder.packing`)."""

    layer: str
    source: Surface
    weights: np.ndarray
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    process: Process
    truncate: int = 0
    winograd: bool = False

    @cached_property
    def nonzero(self) -> np.ndarray:
        """Weights of each kernel that are not 0."""
        return np.count_nonzero(self.weights.reshape(len(self.weights), -1), axis=1)


@dataclass(eq=False)
class Process:
    """One SDP operation; ``source`` None = on the fly from the convolution."""

    layer: str
    source: Surface | None
    destination: Surface
    x1: Stage | None = None
    x2: Stage | None = None
    lut: Lut | None = None
    convert: Convert = field(default_factory=Convert)

    @property
    def taken(self) -> Surface:
        """``source`` of an operation that takes its data from memory."""
        assert self.source is not None, f"{self.layer} takes its data from a convolution"
        return self.source

    @property
    def stages(self) -> list[Stage]:
        """The stages that work, in order."""
        return [stage for stage in (self.x1, self.x2) if stage is not None]


@dataclass(eq=False)
class Pool:
    """PDP; ``mode`` "max", "min" or "average"; pads (top, bottom, left, right), in averages of the element for 0."""

    layer: str
    source: Surface
    destination: Surface
    mode: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]


@dataclass(eq=False)
class Normalize:
    """CDP: LUT over the sum of squares of ``size`` channels, times the element; or LUT of the element alone
    (``direct``)."""

    layer: str
    source: Surface
    destination: Surface
    size: int
    lut: Lut
    convert: Convert
    direct: bool = False


@dataclass(eq=False)
class Contract:
    """Rubik: channels of ``stride`` (vertical, horizontal) times as many groups of whole atoms become rows and columns
    between one another; group ``sy * stride_x + sx`` gives every element from (sy, sx) on."""

    layer: str
    source: Surface
    destination: Surface
    stride: tuple[int, int]


@dataclass(eq=False)
class Softmax:
    """CPU task over the channels of a 1x1 cube."""

    layer: str
    source: Surface
    destination: Surface


Operation = Convolve | Process | Pool | Normalize | Contract | Softmax


@dataclass(frozen=True)
class Quantized:
    """Quantized form of a convolution: scales (K,) of its integer weights, and the real bias (K,) it adds."""

    scales: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True)
class GroupsForm:
    """``groups`` of a convolution in one dense convolution; ``convolutions`` of them, ``cycles`` in a queue of their
    own."""

    groups: int
    convolutions: int
    cycles: int


@dataclass(frozen=True)
class GroupsChoice:
    """Number of a layer's ``groups`` per dense convolution: evaluated candidates and index of the chosen one."""

    layer: str
    groups: int
    forms: tuple[GroupsForm, ...]
    taken: int


@dataclass
class LoweredProgram:
    """A lowered network: operations in an order that respects the data, and the roots that the application binds.

    ``tensors`` maps the name of each layer to the surface with its result, for those that an operation writes.
    ``quantized``: integer convolutions by layer name. ``grouped``: the evaluated candidates for grouped convolutions.
    ``images``: those of a batch, one after the other in every bound tensor.
    """

    name: str
    precision: str
    operations: list[Operation]
    inputs: list[Root]
    outputs: list[Root]
    tensors: dict[str, Surface]
    quantized: dict[str, Quantized] = field(default_factory=dict)
    grouped: list[GroupsChoice] = field(default_factory=list)
    images: int = 1

    def ranges(self) -> dict[str, tuple[float, float, float]]:
        """(lowest, highest) number of each integer tensor, and that of one unit, by name."""
        ranges = {}
        for name, surface in self.tensors.items():
            if surface.precision in LARGEST:
                low, high = surface.real(np.array(ends_of(surface.precision, surface.zero)))
                ranges[name] = float(low), float(high), surface.scale
        return ranges


def reads(operation: Operation) -> list[Surface]:
    """All surfaces that an operation reads."""
    if isinstance(operation, Convolve):
        return [operation.source, *reads(operation.process)]
    if isinstance(operation, Process):
        surfaces = [operation.source] if operation.source is not None else []
        return surfaces + [surface for stage in operation.stages for surface in stage.surfaces]
    return [operation.source]


def writes(operation: Operation) -> Surface:
    """The surface that an operation writes."""
    return operation.process.destination if isinstance(operation, Convolve) else operation.destination
