"""LayerNormalization written out as means, squares and a square root, as exporters write it without the operator.

A square root of a variance and a constant is the start. What follows it is compared as a formula, because exporters
order it differently: (x - mean) / deviation * scale + bias, or x * inverse + (bias - mean * inverse).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nvdla.compiler.frontend.attributes import DOMAINS
from nvdla.compiler.frontend.isolation import reads

if TYPE_CHECKING:
    from onnx import NodeProto

_SOURCE, _MEAN, _NOTHING = "source", "mean", ""
#: Coefficients, one or one per channel, of (a factor, a power of the inverse deviation): the sum of their products.
_Formula = dict[tuple[str, int], np.ndarray]


@dataclass(frozen=True)
class Pattern:
    """The nodes of a LayerNormalization over one dimension.

    Attributes:
        nodes: their names.
        last: the node that computes the result.
        source: the value that is normalized.
        axis: its dimension.
        epsilon: what is added to the variance.
        scale: a factor per channel.
        bias: a summand per channel.
    """

    nodes: set[str]
    last: NodeProto
    source: str
    axis: int
    epsilon: float
    scale: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True)
class _Start:
    """The root of a variance: values ``source``, ``mean`` and ``deviation``, the last to the power of ``-power``."""

    source: str
    mean: str
    deviation: str
    power: int
    axis: int
    epsilon: float


class PatternSearch:
    """Search for written out LayerNormalizations in sorted nodes.

    Args:
        nodes: the nodes.
        constants: arrays by value name.
        shapes: shapes by value name.
        types: element types by value name.
        outputs: names of the model's outputs.
    """

    def __init__(
        self,
        nodes: Sequence[NodeProto],
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, tuple[int, ...]],
        types: Mapping[str, np.dtype],
        outputs: set[str],
    ) -> None:
        self.nodes, self.constants, self.shapes, self.types, self.outputs = nodes, constants, shapes, types, outputs
        self.makers = {value: node for node in nodes for value in node.output if value}
        self.users: dict[str, list[int]] = {}
        for number, node in enumerate(nodes):
            for name in reads(node):
                self.users.setdefault(name, []).append(number)

    def patterns(self) -> Iterator[Pattern]:
        """Return each LayerNormalization whose inner values nothing else uses."""
        for node in self.nodes:
            start = self._start(node)
            pattern = self._pattern(start) if start is not None else None
            if pattern is not None:
                yield pattern

    # ---- mean, variance and its root

    def _start(self, root: NodeProto) -> _Start | None:
        power = {"Sqrt": 0.5, "Pow": self._number(root, 1)}.get(_operator(root))
        total = self._maker(root.input[0], "Add") if power in (0.5, -0.5) else None
        for place in (0, 1):
            if total is None:
                break
            epsilon, variance = self._number(total, 1 - place), self._mean(total.input[place])
            moments = self._moments(*variance) if variance is not None else None
            if epsilon is not None and epsilon >= 0 and variance is not None and moments is not None:
                return _Start(*moments, root.output[0], -1 if power == 0.5 else 1, variance[1], epsilon)
        return None

    def _moments(self, squares: str, axis: int) -> tuple[str, str] | None:
        """Source and mean of squared differences along ``axis``."""
        square = self._maker(squares, "Mul", "Pow")
        if square is None or not (square.input[0] == square.input[1] or self._number(square, 1) == 2):
            return None
        difference = self._maker(square.input[0], "Sub")
        for source, mean in (difference.input, difference.input[::-1]) if difference is not None else ():
            if self._mean(mean) == (source, axis) and source in self.shapes and self.types[source].kind == "f":
                return source, mean
        return None

    def _maker(self, name: str, *operators: str) -> NodeProto | None:
        node = self.makers.get(name)
        return node if node is not None and _operator(node) in operators else None

    def _number(self, node: NodeProto, index: int) -> float | None:
        """An input that is one finite constant number."""
        array = self.constants.get(node.input[index]) if index < len(node.input) else None
        return float(array.item()) if array is not None and array.size == 1 and np.all(np.isfinite(array)) else None

    def _mean(self, name: str) -> tuple[str, int] | None:
        """Return what a value is the mean of, and along which dimension, if that stays with size 1."""
        node = self._maker(name, "ReduceMean")
        if node is None:
            return None
        attributes = {attribute.name: attribute for attribute in node.attribute}
        axes = list(attributes["axes"].ints) if "axes" in attributes else []
        if len(node.input) > 1 and node.input[1] in self.constants:
            axes = self.constants[node.input[1]].ravel().tolist()
        rank = len(self.shapes.get(node.input[0], ()))
        if len(axes) != 1 or rank == 0 or ("keepdims" in attributes and not attributes["keepdims"].i):
            return None
        return node.input[0], int(axes[0]) % rank

    # ---- what follows the root

    def _pattern(self, start: _Start) -> Pattern | None:
        """The longest formula of a LayerNormalization."""
        formulas = self._formulas(start)
        shape, kind = self.shapes[start.source], self.types[start.source]
        for name, formula in reversed(formulas.items()):
            fits = (self.shapes.get(name), self.types.get(name)) == (shape, kind) and _is_normalization(formula)
            nodes = self._between(start.source, name) if fits else None
            if nodes is not None:
                arrays = [formula.get(key, np.zeros(1)) for key in ((_SOURCE, 1), (_NOTHING, 0))]
                scale, bias = (np.broadcast_to(array, shape[start.axis]) for array in arrays)
                return Pattern(nodes, self.makers[name], start.source, start.axis, start.epsilon, scale, bias)
        return None

    def _formulas(self, start: _Start) -> dict[str, _Formula]:
        """The values that are formulas of source, mean and inverse deviation, in the order of the nodes."""
        formulas: dict[str, _Formula] = {
            start.source: {(_SOURCE, 0): np.ones(1)},
            start.mean: {(_MEAN, 0): np.ones(1)},
            start.deviation: {(_NOTHING, start.power): np.ones(1)},
        }
        waiting = sorted(number for name in formulas for number in self.users.get(name, ()))
        while waiting:
            node = self.nodes[heapq.heappop(waiting)]
            if _operator(node) not in _FORMS or node.output[0] in formulas:
                continue
            given = [formulas.get(name) or self._constant(name, start) for name in node.input]
            formula = _FORMS[node.op_type](*given) if all(given) else None
            if formula:
                formulas[node.output[0]] = formula
                for user in self.users.get(node.output[0], ()):
                    heapq.heappush(waiting, user)
        return formulas

    def _constant(self, name: str, start: _Start) -> _Formula | None:
        """A constant with one number per channel."""
        array, shape = self.constants.get(name), self.shapes[start.source]
        if array is None or array.ndim > len(shape) or not np.all(np.isfinite(array)):
            return None
        sizes = (1,) * (len(shape) - array.ndim) + array.shape
        channels = sizes[start.axis]
        return {(_NOTHING, 0): array.astype(np.float64).ravel()} if array.size == channels else None

    def _between(self, source: str, result: str) -> set[str] | None:
        """Names of the nodes from source to result; None where something else uses a value between them."""
        between: dict[str, NodeProto] = {}
        waiting = [result]
        while waiting:
            node = self.makers.get(waiting.pop())
            if node is not None and node.name not in between:
                between[node.name] = node
                waiting += [name for name in node.input if name != source]
        inner = {name for node in between.values() for name in node.output} - {result}
        users = {self.nodes[number].name for name in inner for number in self.users.get(name, ())}
        return set(between) if not inner & self.outputs and users <= set(between) else None


def _operator(node: NodeProto) -> str:
    """The standard operator of a node, empty for another one."""
    return node.op_type if node.domain in DOMAINS else ""


def _sum(first: _Formula, second: _Formula) -> _Formula:
    zero = np.zeros(1)
    return {key: first.get(key, zero) + second.get(key, zero) for key in {**first, **second}}


def _difference(first: _Formula, second: _Formula) -> _Formula:
    return _sum(first, _negative(second))


def _negative(formula: _Formula) -> _Formula:
    return {key: -array for key, array in formula.items()}


def _product(first: _Formula, second: _Formula) -> _Formula | None:
    """The product; None where both have the source or the mean."""
    product: _Formula = {}
    for (factor, power), array in first.items():
        for (other, more), other_array in second.items():
            if factor and other:
                return None
            product = _sum(product, {(factor or other, power + more): array * other_array})
    return product


def _reciprocal(formula: _Formula) -> _Formula | None:
    """The reciprocal of one number per channel times a power of the deviation."""
    ((factor, power), array), *more = formula.items()
    return None if more or factor or np.any(array == 0) else {(_NOTHING, -power): 1.0 / array}


def _quotient(first: _Formula, second: _Formula) -> _Formula | None:
    reciprocal = _reciprocal(second)
    return None if reciprocal is None else _product(first, reciprocal)


_FORMS: dict[str, Callable[..., _Formula | None]] = {
    "Add": _sum,
    "Sub": _difference,
    "Neg": _negative,
    "Mul": _product,
    "Div": _quotient,
    "Reciprocal": _reciprocal,
}


def _is_normalization(formula: _Formula) -> bool:
    """Return whether a formula is (source - mean) * inverse deviation * scale + bias."""
    needed = {(_SOURCE, 1), (_MEAN, 1)}
    if not needed <= set(formula) <= {*needed, (_NOTHING, 0)}:
        return False
    return bool(np.any(formula[_SOURCE, 1])) and bool(np.all(formula[_SOURCE, 1] == -formula[_MEAN, 1]))
