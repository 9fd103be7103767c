"""Caffe networks as ONNX models: the graph under construction, and the walk over the layers.

Blobs of Caffe are variables: a layer in place writes the blob that it reads. Here every layer's result is a value of
its own, so that all can be looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvdla.caffe.network import CaffeLayer
from nvdla.errors import FormatError

OPSET, IR_VERSION = 13, 8
#: elements of all values together, and multiplications: far above real networks (ResNet-152: 10^8, 10^10)
MAX_ELEMENTS = 1 << 30
MAX_MULTIPLICATIONS = 10**13


@dataclass(frozen=True)
class CaffeValue:
    """A tensor of the graph."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements of it."""
        return math.prod(self.shape)


@dataclass
class CaffeGraph:
    """Nodes and constants. ``layer``: the one that is being turned over."""

    onnx: Any
    layer: CaffeLayer | None = None
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)
    elements: int = 0
    multiplications: int = 0

    def constant(self, array: np.ndarray) -> str:
        """A constant, in the element type of the array (floats become float32)."""
        array = np.asarray(array)
        if array.dtype.kind == "f":
            array = array.astype("<f4")
        name = f"constant{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def number(self, value: float) -> str:
        """A constant of one number."""
        return self.constant(np.array(value, np.float32))

    def node(
        self, kind: str, inputs: Sequence[CaffeValue | str], shape: Sequence[int], work: int = 0, **attributes: Any
    ) -> CaffeValue:
        """Add an operator with one result of ``shape``. ``work``: multiplications of an element of the result."""
        made = CaffeValue(f"value{len(self.nodes)}", tuple(shape))
        self._charge(made, work)
        words = [each if isinstance(each, str) else each.name for each in inputs]
        self.nodes.append(self.onnx.helper.make_node(kind, words, [made.name], **attributes))
        return made

    def fail(self, why: str) -> FormatError:
        """The error to raise, with the name of the layer that is being turned over."""
        return FormatError(why) if self.layer is None else self.layer.fail(why)

    def allow(self, shape: Sequence[int]) -> None:
        """Refuse a result of this shape before anything of its size is made."""
        if any(size <= 0 for size in shape):
            raise self.fail(f"its result would be {'x'.join(map(str, shape))}")
        elements = self.elements + math.prod(shape)
        if elements > MAX_ELEMENTS:
            raise self.fail(f"the tensors have {elements} elements up to here, the limit is {MAX_ELEMENTS}")

    def _charge(self, value: CaffeValue, work: int) -> None:
        """Refuse what would take memory or time without end."""
        self.allow(value.shape)
        self.elements += value.size
        self.multiplications += value.size * work
        if self.multiplications > MAX_MULTIPLICATIONS:
            raise self.fail(f"{self.multiplications} multiplications up to here, the limit is {MAX_MULTIPLICATIONS}")
