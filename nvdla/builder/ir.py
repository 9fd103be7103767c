"""Operations of the hardware with whole numbers, before addresses: what lowering makes and everything after it uses.

The reference model (reference.py) evaluates them in plain numpy, the back end (tiling, planning, emission) turns them
into descriptors. A :class:`Root` is one piece of memory that holds a cube, a :class:`Surface` the part of it (channels,
rows, columns, with strides) that an operation reads or writes; concatenation and interleaving are just surfaces
of one root.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from nvdla.builder.lut import Lut
from nvdla.loadable.enums import PixelFormat
from nvdla.precision import Precision
from nvdla.tensors.pixel_numbers import PixelNumbers

BYTES = {each.title: each.bytes for each in Precision}
DTYPES = {each.title: each.dtype.type for each in Precision}


@dataclass(frozen=True)
class PixelConverter:
    """What CDMA makes of unsigned pixels: ``(pixel - means) * scale >> shift``, rounded half away from zero, limited to
    the precision. ``lift``: bits by which a pixel is moved up before. ``factors`` (C,): the real number of a channel's
    unit in units of the tensor's scale, which the weights of whoever reads it make up for."""

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
    (:mod:`nvdla.builder.batch`).
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
        return "int8" if self.converter.numbers.bits == 8 else "int16"

    @property
    def elements(self) -> np.ndarray:
        """``data`` of a constant."""
        assert self.data is not None, f"{self.name} is no constant"
        return self.data

    @property
    def whole(self) -> Surface:
        """The surface that covers all of it."""
        return Surface(self, 0, self.channels, 0, 1, self.height, 0, 1, self.width)


@dataclass(frozen=True, eq=False)
class Surface:
    """Part of a root: ``channels`` from ``first_channel``, ``height`` rows from ``top`` with a stride, ``width``
    columns alike."""

    root: Root
    first_channel: int
    channels: int
    top: int
    row_stride: int
    height: int
    left: int
    column_stride: int
    width: int

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
        return (elements.astype(np.float64) - self.zero) * self.scale

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return self.channels, self.height, self.width

    def is_same(self, other: Surface) -> bool:
        """Whether the other one means the same elements of the same root."""
        mine, others = ((each.root, *_numbers(each)) for each in (self, other))
        return type(self) is type(other) and mine == others

    def put(self, array: np.ndarray, values: np.ndarray) -> None:
        """Put elements (C, H, W) where this surface lies in the root's array."""
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
    """Where a surface lies in its root."""
    return tuple(getattr(surface, each.name) for each in fields(surface) if each.name != "root")


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
        return [each for each in (self.alu_operand, self.multiplier) if isinstance(each, Surface)]


@dataclass
class Convert:
    """Output converter: (x - offset) * scale >> shift, rounded half away from zero, saturated."""

    scale: int = 1
    shift: int = 0
    offset: int = 0


@dataclass(eq=False)
class Convolve:
    """A convolution into the SDP. ``weights`` (K, C, R, S) integers or halves; pads (top, bottom, left, right), of the
    element that stands for 0. ``winograd``: by that method, the weights are the plain ones
    (:mod:`nvdla.builder.winograd`)."""

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
    """PDP; ``mode`` "max", "min" or "average"; pads (top, bottom, left, right), in averages of the element that stands
    for 0."""

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
class Quantised:
    """What lowering made of a convolution: scales (K,) of its integer weights, and the real bias (K,) it adds."""

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
    """How many of a layer's ``groups`` one dense convolution takes: what was weighed, and the place of what was
    taken."""

    layer: str
    groups: int
    forms: tuple[GroupsForm, ...]
    taken: int


@dataclass
class LoweredProgram:
    """A lowered network: operations in an order that respects the data, and the roots that the application binds.

    ``tensors`` maps a layer's name to the surface that holds its result, for those that an operation writes.
    ``quantised``: integer convolutions by layer name. ``grouped``: what was weighed for convolutions of groups.
    ``images``: those of a batch, one after the other in every bound tensor.
    """

    name: str
    precision: str
    operations: list[Operation]
    inputs: list[Root]
    outputs: list[Root]
    tensors: dict[str, Surface]
    quantised: dict[str, Quantised] = field(default_factory=dict)
    grouped: list[GroupsChoice] = field(default_factory=list)
    images: int = 1


def reads(operation: Operation) -> list[Surface]:
    """All surfaces that an operation reads."""
    if isinstance(operation, Convolve):
        return [operation.source, *reads(operation.process)]
    if isinstance(operation, Process):
        found = [operation.source] if operation.source is not None else []
        return found + [surface for stage in operation.stages for surface in stage.surfaces]
    return [operation.source]


def writes(operation: Operation) -> Surface:
    """The surface that an operation writes."""
    return operation.process.destination if isinstance(operation, Convolve) else operation.destination
