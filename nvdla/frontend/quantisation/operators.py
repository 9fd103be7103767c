"""QOperator nodes (QLinearConv and relatives) as float nodes between QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

MICROSOFT = "com.microsoft"


class Rewriter:
    """Collects the nodes and constants that take the place of one node."""

    def __init__(self, constants: dict[str, np.ndarray], fresh: Callable[[str], str]) -> None:
        self.constants, self._fresh = constants, fresh
        self.nodes: list[Any] = []
        self.added: dict[str, np.ndarray] = {}

    def real(self, value: str, scale: str, zero: str, axis: int | None = None) -> str:
        """The real numbers of a quantised value."""
        name = self._fresh(f"{value}_real")
        self._node("DequantizeLinear", [value, scale, zero], name, **({} if axis is None else {"axis": axis}))
        return name

    def constant(self, name: str, values: np.ndarray) -> str:
        """Add a constant under a fresh name; returns that."""
        name = self._fresh(name)
        self.added[name] = values
        return name

    def float_node(
        self, node: Any, kind: str, inputs: list[str], without: tuple[str, ...] = (), domain: str = ""
    ) -> str:
        """The node itself on real numbers."""
        import onnx

        name = self._fresh(f"{node.output[0]}_real")
        made = onnx.helper.make_node(kind, inputs, [name], node.name, domain=domain)
        made.attribute.extend(each for each in node.attribute if each.name not in without)
        self.nodes.append(made)
        return name

    def quantised(self, value: str, scale: str, zero: str, output: str) -> None:
        """Add the quantisation of a value."""
        self._node("QuantizeLinear", [value, scale, zero], output)

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> None:
        import onnx

        while inputs and not inputs[-1]:
            inputs.pop()
        self.nodes.append(onnx.helper.make_node(kind, inputs, [output], self._fresh(f"{output}_{kind}"), **attributes))


def _optional(node: Any, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _scales(rewriter: Rewriter, name: str) -> np.ndarray:
    return np.asarray(rewriter.constants[name], np.float64)


def _bias(rewriter: Rewriter, name: str, source: str, weights: str) -> list[str]:
    """An int32 bias as real numbers: its scale is that of source times weights."""
    if not name:
        return []
    units = np.ravel(_scales(rewriter, source)) * np.ravel(_scales(rewriter, weights))
    return [rewriter.constant(f"{name}_real", (rewriter.constants[name] * units).astype(np.float32))]


def _operand(node: Any, first: int) -> tuple[str, str, str]:
    """Names of a quantised input: its elements, their scale and zero point."""
    value, scale, zero = node.input[first : first + 3]
    return value, scale, zero


def _conv(rewriter: Rewriter, node: Any) -> None:
    x, w = _operand(node, 0), _operand(node, 3)
    axis = 0 if np.size(rewriter.constants[w[1]]) > 1 else None
    inputs = [rewriter.real(*x), rewriter.real(*w, axis=axis), *_bias(rewriter, _optional(node, 8), x[1], w[1])]
    rewriter.quantised(rewriter.float_node(node, "Conv", inputs), node.input[6], node.input[7], node.output[0])


def _matmul(rewriter: Rewriter, node: Any) -> None:
    a, b = _operand(node, 0), _operand(node, 3)
    axis = -1 if np.size(rewriter.constants[b[1]]) > 1 else None
    inputs = [rewriter.real(*a), rewriter.real(*b, axis=axis)]
    rewriter.quantised(rewriter.float_node(node, "MatMul", inputs), node.input[6], node.input[7], node.output[0])


def _gemm(rewriter: Rewriter, node: Any) -> None:
    import onnx

    a, b = _operand(node, 0), _operand(node, 3)
    transposed = any(each.name == "transB" and each.i for each in node.attribute)
    axis = (0 if transposed else 1) if np.size(rewriter.constants[b[1]]) > 1 else None
    alpha = next((onnx.helper.get_attribute_value(each) for each in node.attribute if each.name == "alpha"), 1.0)
    bias = _bias(rewriter, _optional(node, 6), a[1], b[1])
    if bias:
        rewriter.added[bias[0]] = rewriter.added[bias[0]] * np.float32(alpha)
    result = rewriter.float_node(node, "Gemm", [rewriter.real(*a), rewriter.real(*b, axis=axis), *bias])
    scale, zero = _optional(node, 7), _optional(node, 8)
    if scale:
        rewriter.quantised(result, scale, zero, node.output[0])
    else:
        rewriter.nodes[-1].output[0] = node.output[0]


def _two(kind: str) -> Callable[[Rewriter, Any], None]:
    def rewrite(rewriter: Rewriter, node: Any) -> None:
        inputs = [rewriter.real(*_operand(node, first)) for first in (0, 3)]
        result = rewriter.float_node(node, kind, inputs)
        rewriter.quantised(result, node.input[6], _optional(node, 7), node.output[0])

    return rewrite


def _one(kind: str, without: tuple[str, ...] = ()) -> Callable[[Rewriter, Any], None]:
    def rewrite(rewriter: Rewriter, node: Any) -> None:
        result = rewriter.float_node(node, kind, [rewriter.real(*_operand(node, 0))], without)
        rewriter.quantised(result, node.input[3], _optional(node, 4), node.output[0])

    return rewrite


def _concat(rewriter: Rewriter, node: Any) -> None:
    inputs = [rewriter.real(*_operand(node, first)) for first in range(2, len(node.input), 3)]
    rewriter.quantised(rewriter.float_node(node, "Concat", inputs), node.input[0], node.input[1], node.output[0])


# (domain, operator) -> its rewriting, and the positions of scales that must be constants.
OPERATORS: dict[tuple[str, str], tuple[Callable[[Rewriter, Any], None], tuple[int, ...]]] = {
    ("", "QLinearConv"): (_conv, (1, 3, 4, 6)),
    ("", "QLinearMatMul"): (_matmul, (1, 4, 6)),
    (MICROSOFT, "QGemm"): (_gemm, (1, 3, 4)),
    (MICROSOFT, "QLinearAdd"): (_two("Add"), (1, 4, 6)),
    (MICROSOFT, "QLinearMul"): (_two("Mul"), (1, 4, 6)),
    (MICROSOFT, "QLinearConcat"): (_concat, (0, 1)),
    (MICROSOFT, "QLinearSigmoid"): (_one("Sigmoid"), (1, 3)),
    (MICROSOFT, "QLinearLeakyRelu"): (_one("LeakyRelu"), (1, 3)),
    (MICROSOFT, "QLinearSoftmax"): (_one("Softmax", ("opset",)), (1, 3)),
    (MICROSOFT, "QLinearAveragePool"): (_one("AveragePool", ("channels_last",)), (1, 3)),
    (MICROSOFT, "QLinearGlobalAveragePool"): (_one("GlobalAveragePool", ("channels_last",)), (1, 3)),
}


def rewrites(node: Any, constants: dict[str, np.ndarray]) -> Callable[[Rewriter, Any], None] | None:
    """How a node becomes a float one, None where it is no QOperator or its scales are computed."""
    found = OPERATORS.get((node.domain if node.domain != "ai.onnx" else "", node.op_type))
    if found is None or any(each.name == "channels_last" and each.i for each in node.attribute):
        return None
    rewrite, needed = found
    return rewrite if all(_optional(node, index) in constants for index in needed) else None
