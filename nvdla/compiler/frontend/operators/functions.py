"""Functions of one variable, and the operators that compute them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.frontend.graph import Cut, Function, Graph, GraphValue, Node
from nvdla.util.precision import Precision

# Taylor series of the error function around multiples of 1 / STEPS; from LARGEST on it is 1 in float64.
STEPS, LARGEST, TERMS = 64, 6, 8
CHUNK = 1 << 14
"""Elements that are computed together, in the first-level caches."""


@cache
def _erf_series() -> np.ndarray:
    """Coefficients (TERMS, LARGEST * STEPS + 1): derivative n + 1 is (-1)^n H_n(x) erf'(x), H_n of Hermite."""
    x = np.arange(LARGEST * STEPS + 1) / STEPS
    slope, hermite, before = 2 / math.sqrt(math.pi) * np.exp(-x * x), np.ones_like(x), np.zeros_like(x)
    rows = [np.array([math.erf(place) for place in x])]
    for n in range(TERMS - 1):
        rows.append((-1) ** n * slope * hermite / math.factorial(n + 1))
        hermite, before = 2 * x * hermite - 2 * n * before, hermite
    return np.array(rows)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function: within 2e-16 of math.erf, which Python would have to call for each element."""
    result = np.empty(np.shape(x))
    flat, out, series = np.reshape(x, -1), result.reshape(-1), _erf_series()
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        magnitude = np.fmin(np.abs(part), LARGEST)
        place = np.rint(magnitude * STEPS).astype(np.int64)
        distance, y = magnitude - place / STEPS, series[-1][place]
        for row in series[-2::-1]:
            y = y * distance + row[place]
        out[start : start + CHUNK] = np.where(np.isnan(part), part, np.copysign(y, part))
    return result


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + np.exp(-np.clip(x, -700, 700)))


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x))."""
    return np.logaddexp(0.0, x)


def round_even(x: np.ndarray) -> np.ndarray:
    """Rounded half to even."""
    return np.rint(x)


def _number(node: Node, name: str, default: float) -> float:
    return float(node.get(name, default))


def _elu(alpha: float) -> Function:
    return lambda x: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _selu(node: Node) -> Function:
    alpha = _number(node, "alpha", 1.6732632423543772)
    gamma = _number(node, "gamma", 1.0507009873554805)
    inner = _elu(alpha)
    return lambda x: gamma * inner(x)


def _celu(node: Node) -> Function:
    alpha = _number(node, "alpha", 1.0)
    return lambda x: np.maximum(0, x) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _hard_sigmoid(node: Node) -> Function:
    alpha, beta = _number(node, "alpha", 0.2), _number(node, "beta", 0.5)
    return lambda x: np.clip(alpha * x + beta, 0, 1)


def _thresholded(node: Node) -> Function:
    alpha = _number(node, "alpha", 1.0)
    return lambda x: np.where(x > alpha, x, 0.0)


def _gelu(node: Node) -> Function:
    if node.get("approximate", "none") == "tanh":
        return lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _shrink(node: Node) -> Function:
    bias, lambd = _number(node, "bias", 0.0), _number(node, "lambd", 0.5)
    return lambda x: np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0.0))


def _swish(node: Node) -> Function:
    alpha = _number(node, "alpha", 1.0)
    return lambda x: x * sigmoid(alpha * x)


def _plain(function: Function) -> Callable[[Node], Function]:
    return lambda node: function


#: operator -> the function that a node means
TABLE: dict[str, Callable[[Node], Function]] = {
    "Sigmoid": _plain(sigmoid),
    "Tanh": _plain(np.tanh),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Elu": lambda node: _elu(_number(node, "alpha", 1.0)),
    "Selu": _selu,
    "Celu": _celu,
    "Softplus": _plain(softplus),
    "Softsign": _plain(lambda x: x / (1 + np.abs(x))),
    "Mish": _plain(lambda x: x * np.tanh(softplus(x))),
    "Gelu": _gelu,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded,
    "Shrink": _shrink,
    "Erf": _plain(erf),
    "Exp": _plain(lambda x: np.exp(np.minimum(x, 700))),
    "Log": _plain(np.log),
    "Sqrt": _plain(np.sqrt),
    "Reciprocal": _plain(lambda x: 1.0 / x),
    "Sign": _plain(np.sign),
    "Floor": _plain(np.floor),
    "Ceil": _plain(np.ceil),
    "Round": _plain(round_even),
    "Sin": _plain(np.sin),
    "Cos": _plain(np.cos),
    "Tan": _plain(np.tan),
    "Asin": _plain(np.arcsin),
    "Acos": _plain(np.arccos),
    "Atan": _plain(np.arctan),
    "Sinh": _plain(lambda x: np.sinh(np.clip(x, -700, 700))),
    "Cosh": _plain(lambda x: np.cosh(np.clip(x, -700, 700))),
    "Asinh": _plain(np.arcsinh),
    "Acosh": _plain(np.arccosh),
    "Atanh": _plain(np.arctanh),
}
#: jumps: a table of int8 has one entry per value and holds them; one that interpolates does not
JUMPS = frozenset(("Sign", "Floor", "Ceil", "Round", "ThresholdedRelu", "Shrink"))
#: steep places, or domains outside of which the function has no value
POLES = frozenset(("Log", "Reciprocal", "Tan", "Atanh", "Acosh", "Asin", "Acos", "Sqrt"))


def total(function: Function) -> Function:
    """The function with numbers everywhere: NaN becomes 0, infinities the largest finite value next to them."""

    def everywhere(x: np.ndarray) -> np.ndarray:
        values = np.empty(np.shape(x))
        flat, out = np.asarray(x, np.float64).reshape(-1), values.reshape(-1)
        with np.errstate(all="ignore"):
            for start in range(0, flat.size, CHUNK):  # intermediate results are as large as their argument
                out[start : start + CHUNK] = function(flat[start : start + CHUNK])
        if np.all(np.isfinite(values)):
            return values
        finite = values[np.isfinite(values)]
        top = float(np.abs(finite).max()) if finite.size else 0.0
        return np.nan_to_num(values, nan=0.0, posinf=top, neginf=-top)

    return everywhere


MOST_CALLS = 64
"""Functions that one table composes; a longer composition starts from the value in memory again."""


def derived(value: GraphValue) -> tuple[GraphValue, Function]:
    """The value that this one is a function of, and the function (itself, where it is none)."""
    if value.base is not None and value.function is not None:
        return value.base, value.function
    return value, lambda x: x


def is_table(value: GraphValue) -> bool:
    """Return whether a lookup table makes this value: what follows goes into the same table."""
    return value.tensor is not None and value.tensor.producer.kind == "function" and value.base is not None


def keep(node: Node, result: GraphValue, source: GraphValue, function: Function) -> GraphValue:
    """Record the argument of which the result is a function."""
    base, inner = derived(source)
    return composed(node, result, base, lambda x: function(inner(x)), source.calls + 1)


def composed(node: Node, result: GraphValue, base: GraphValue, function: Function, calls: int) -> GraphValue:
    """The result with what it is a function of, unless that takes too many calls.

    A quantized model may leave a limit (a ReLU6) to the range of the integers: a table that composes functions stores
    no integers between them, so their range belongs to the function."""
    if calls <= MOST_CALLS:
        held = node.model.affine.get(node.outputs[0])
        result.base, result.calls = base, calls
        result.function = function if held is None else lambda x: np.clip(function(x), *held.ends)
    return result


def moved(node: Node, source: GraphValue, tensor: NetworkTensor) -> GraphValue:
    """A result whose elements are stored in the order of the source, in the shape that the model states."""
    index = None if source.index is None else source.index.reshape(node.out_shape)
    return GraphValue(node.outputs[0], node.out_shape, tensor, index)


def table(graph: Graph, node: Node, source: GraphValue, function: Function, smooth: bool = True) -> GraphValue:
    """A lookup table, also of everything that leads to ``source`` by a table."""
    start, whole = source, function
    inner = source.function
    if is_table(source) and source.base is not None and inner is not None:
        start, outer = source.base, inner
        whole = lambda x: function(outer(x))  # noqa: E731
    if not smooth and graph.precision != Precision.INT8:
        raise Cut("it has jumps, which a table that interpolates between entries cannot hold", "build in int8")
    tensor = graph.network.function(graph.label(node), graph.flat(start), total(whole))
    graph.tensors[tensor.name] = node.outputs[0]
    return keep(node, moved(node, start, tensor), source, function)


def linear(graph: Graph, node: Node, source: GraphValue, factor: float, offset: float) -> GraphValue:
    """factor * x + offset: goes into the table before it, else into the convolution before it or an SDP operation."""

    def function(x: np.ndarray) -> np.ndarray:
        return factor * x + offset

    if is_table(source):
        return table(graph, node, source, function)
    tensor = graph.network.scale(graph.label(node), graph.flat(source), np.array([factor]), np.array([offset]))
    graph.tensors[tensor.name] = node.outputs[0]
    return keep(node, moved(node, source, tensor), source, function)
