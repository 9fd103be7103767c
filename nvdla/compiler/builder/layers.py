"""Layers of a network: tensors, settings of each layer type, groups of layers, and checks of arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from nvdla.compiler.builder.ir import Lut, Surface
from nvdla.errors import BuildError, shape_text

Shape = tuple[int, int, int]


Padding = int | tuple[int, int] | tuple[int, int, int, int]


def pair(name: str, what: str, value: object) -> tuple[int, int]:
    """(vertical, horizontal) from a number or a pair of positive whole numbers."""
    values = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(values) != 2 or any(int(v) != v or v < 1 for v in values):
        raise BuildError(f"{what} {value} must be a positive whole number or two (vertical, horizontal)", layer=name)
    return int(values[0]), int(values[1])


def padding_of(name: str, value: object) -> tuple[int, int, int, int]:
    """(top, bottom, left, right) from one number, a pair (vertical, horizontal) or all four."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * 4
    if len(values) == 2:
        values = (values[0], values[0], values[1], values[1])
    if len(values) != 4 or any(int(v) != v or v < 0 for v in values):
        raise BuildError(
            f"padding {value} must be one number >= 0, (vertical, horizontal) or (top, bottom, left, right)", layer=name
        )
    return tuple(int(v) for v in values)  # type: ignore[return-value]


def reach(kernel: int, dilation: int) -> int:
    """Rows or columns that a dilated kernel spans."""
    return (kernel - 1) * dilation + 1


def slid(name: str, what: str, padded: int, kernel: int, stride: int, dilation: int = 1) -> int:
    """Positions of a window that slides over ``padded`` elements; the rest at the end is not used."""
    span = reach(kernel, dilation)
    if span > padded:
        raise BuildError(f"kernel: must span at most {padded} (padded input) of the {what}, got {span}", layer=name)
    return (padded - span) // stride + 1


def weights_of(name: str, weights: np.ndarray) -> np.ndarray:
    """Four dimensions of finite float64 or float32."""
    weights = np.asarray(weights)
    if weights.dtype != np.float32:  # which stay as they are: large networks take half the memory
        weights = weights.astype(np.float64)
    if weights.ndim != 4 or weights.size == 0:
        raise BuildError(
            f"weights {shape_text(weights.shape)} must have four dimensions, none of them zero", layer=name
        )
    if not np.all(np.isfinite(weights)):
        raise BuildError("weights: must be finite, got NaN or infinity", layer=name)
    return weights


def numbers_of(name: str, what: str, values: np.ndarray | float | None, count: int) -> np.ndarray:
    """(count,) float64 from an array, a number or None (zeros)."""
    vector = np.zeros(count) if values is None else np.asarray(values, np.float64).reshape(-1)
    if vector.size == 1:
        vector = np.full(count, vector[0])
    if vector.size != count or not np.all(np.isfinite(vector)):
        raise BuildError(f"{what} must be {count} finite numbers, got {vector.size}", layer=name)
    return vector


def column(vector: np.ndarray) -> np.ndarray:
    """Numbers a channel (C,) as they meet arrays (N, C, H, W)."""
    return vector[None, :, None, None]


@dataclass(eq=False)
class NetworkTensor:
    """A cube (channels, height, width) that one layer makes and others take."""

    name: str
    shape: tuple[int, int, int]
    producer: Layer

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape))}"


Ends = tuple[np.ndarray, np.ndarray]
"""Least and most number of each channel, (C,), or of all, ()."""

S = TypeVar("S", bound="LayerSettings")


@dataclass(frozen=True, eq=False)
class LayerSettings:
    """LayerSettings of a layer in normal form; those of a layer type without any have no fields."""

    @classmethod
    def of(cls: type[S], layer: Layer) -> S:
        """Return the settings of a layer of this kind."""
        assert isinstance(layer.settings, cls), f"{layer.kind} {layer.name} has {type(layer.settings).__name__}"
        return layer.settings


@dataclass(frozen=True, eq=False)
class KernelSettings(LayerSettings):
    """Kernels that move over their input: weights of four dimensions, a bias per result channel, steps and borders.

    Pairs are (vertical, horizontal), ``padding`` is (top, bottom, left, right).
    """

    weights: np.ndarray
    bias: np.ndarray
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class ConvSettings(KernelSettings):
    """LayerSettings of a convolution, with weights (kernels, channels / groups, rows, columns)."""

    dilation: tuple[int, int]
    groups: int


@dataclass(frozen=True, eq=False)
class DeconvSettings(KernelSettings):
    """LayerSettings of a transposed convolution, with weights (channels, kernels, rows, columns)."""


@dataclass(frozen=True, eq=False)
class ScaleSettings(LayerSettings):
    """Factors and bias per channel, (channels,)."""

    factors: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True, eq=False)
class PreluSettings(LayerSettings):
    """Slopes of negative numbers per channel, (channels,)."""

    slopes: np.ndarray


@dataclass(frozen=True, eq=False)
class ClipSettings(LayerSettings):
    """Limits; ``high`` is a number or one per channel, (channels,)."""

    low: float
    high: float | np.ndarray


@dataclass(frozen=True, eq=False)
class ReluSettings(LayerSettings):
    """``high``: limit that the range of the result implies, a number or one per channel, (channels,); infinite where
    there is none. The layer does not apply it."""

    high: float | np.ndarray


@dataclass(frozen=True, eq=False)
class FunctionSettings(LayerSettings):
    """Function of a float64 array, element by element. ``octaves``: fp16 looks it up by the power of two of its input,
    for functions of positive numbers such as 1 / sqrt."""

    function: Callable[[np.ndarray], np.ndarray]
    octaves: bool = False


@dataclass(frozen=True, eq=False)
class ElementwiseSettings(LayerSettings):
    """Operation of two or more tensors: "add", "multiply", "maximum" or "minimum"."""

    operation: str


@dataclass(frozen=True, eq=False)
class JoinSettings(LayerSettings):
    """Axis along which tensors are joined: 1 (rows) or 2 (columns)."""

    axis: int


@dataclass(frozen=True, eq=False)
class ConstantSettings(LayerSettings):
    """Fixed numbers (channels, height, width)."""

    values: np.ndarray


@dataclass(frozen=True, eq=False)
class SliceSettings(LayerSettings):
    """Part of a tensor: ``channels`` (first, count), ``rows`` and ``columns`` (first, stride, count)."""

    channels: tuple[int, int]
    rows: tuple[int, int, int]
    columns: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class PadSettings(LayerSettings):
    """Border (top, bottom, left, right) of one number."""

    padding: tuple[int, int, int, int]
    value: float


@dataclass(frozen=True, eq=False)
class PoolSettings(LayerSettings):
    """Windows of a pool; ``mode`` "max", "min" or "average", ``counted`` the padding that averages count."""

    mode: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    counted: tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class LrnSettings(LayerSettings):
    """Constants of ``x * (k + alpha / size * sum(x^2)) ** -beta`` over ``size`` channels."""

    size: int
    alpha: float
    beta: float
    k: float


@dataclass(frozen=True, eq=False)
class UpsampleSettings(LayerSettings):
    """Whole factors (vertical, horizontal)."""

    factor: tuple[int, int]


@dataclass(eq=False)
class Layer:
    """Layer of a network; ``kind`` is the name of its type (:mod:`nvdla.compiler.builder.layer_types`)."""

    name: str
    kind: str
    inputs: list[NetworkTensor]
    settings: LayerSettings = field(default_factory=LayerSettings)
    result: NetworkTensor | None = None

    @property
    def output(self) -> NetworkTensor:
        """The tensor that it makes."""
        assert self.result is not None, "a layer has its tensor from the network that it is added to"
        return self.result


@dataclass(eq=False)
class Group:
    """Layers that are lowered together. ``output`` is the tensor of the last one.

    For a convolution ``weights`` and ``bias`` hold the per-channel factors of folded layers already; ``factors`` are
    these factors, which given weight scales are multiplied by. ``summand``: the operand that the SDP combines with the
    result (``combines``: "add", "maximum", "minimum", "multiply"), in units of ``unit``; the units of the summand are
    ``summand_shift`` bits coarser (:mod:`nvdla.compiler.builder.lower.elementwise`). ``lut``: the table that the SDP
    looks the result up in, in units of ``unit``.
    """

    layer: Layer
    output: NetworkTensor
    members: list[str] = field(default_factory=list)
    activation: Layer | None = None
    weights: np.ndarray | None = None
    bias: np.ndarray | None = None
    factors: np.ndarray | float = 1.0
    summand: Surface | None = None
    summand_shift: int = 0
    combines: str = "add"
    unit: float = 1.0
    lut: Lut | None = None

    @property
    def kernels(self) -> np.ndarray:
        """``weights`` of a convolution."""
        assert self.weights is not None, f"{self.name} has no weights"
        return np.asarray(self.weights, np.float64)

    @property
    def biases(self) -> np.ndarray:
        """``bias`` of a convolution."""
        assert self.bias is not None, f"{self.name} has no bias"
        return self.bias

    @property
    def name(self) -> str:
        """Names of all layers, for messages and the sidecar."""
        return "+".join(self.members)
