"""Arithmetic of two or more tensors, with constants and broadcasting."""

from __future__ import annotations

import math

import numpy as np

from nvdla.compiler.builder import NetworkTensor
from nvdla.compiler.frontend.graph import Cut, Graph, GraphValue, Node, canonical, factor_of
from nvdla.compiler.frontend.operators.functions import composed, derived, is_table, keep, linear, moved, table
from nvdla.compiler.frontend.operators.registry import operator
from nvdla.util.precision import Precision

_FORMS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum}


@operator("Add", "Sub", "Mul", "Div", note="SDP, elementwise")
def arithmetic(graph: Graph, node: Node) -> GraphValue:
    """Elementwise in the SDP.

    A constant, or one constant per channel, is folded into the previous convolution; other constants are tensors in
    the loadable. Broadcasting repeats the smaller tensor on the accelerator. Div by a constant multiplies by its
    reciprocal; a constant divided by a tensor is a table; two computed tensors cannot be divided. x * f(x) with
    functions of the same x is one table (in fp16, x * x is a product). In int8 f may contain other operators, too:
    x * clip(x + 3, 0, 6) / 6 is one table.
    """
    computed = node.computed()
    if (len(computed) == 2 and node.inputs[0] == node.inputs[1]) or (len(computed) == 2 and _same_base(graph, node)):
        return _of_one(graph, node)
    if len(computed) == 2:
        return _of_two(graph, node, graph.source(node, 0), graph.source(node, 1))
    source, constant = graph.source(node, computed[0]), node.required(1 - computed[0], "operand")
    return _with_constant(graph, node, source, constant, computed[0] == 0)


def _same_base(graph: Graph, node: Node) -> bool:
    """Return whether both sides are functions of the same numbers in the same order."""
    value, other = (graph.source(node, i) for i in (0, 1))
    first, second = derived(value)[0], derived(other)[0]
    if value.shape != other.shape or first.name != second.name or first.size != value.size:
        return False
    if not all(_same_order(first, side) for side in (second, value, other)):
        return False
    return (
        is_table(value) or is_table(other) or value is other or (graph.precision == Precision.INT8 and node.op == "Mul")
    )


def _same_order(value: GraphValue, other: GraphValue) -> bool:
    """Return whether the elements of both are at the same places of their tensors."""
    if value.index is None or other.index is None:
        return value.index is other.index
    return np.array_equal(value.index.ravel(), other.index.ravel())


def _of_one(graph: Graph, node: Node) -> GraphValue:
    """f(x) op g(x)."""
    value, other = graph.source(node, 0), graph.source(node, 1)
    base, first = derived(value)
    second = derived(other)[1]
    calls = value.calls + other.calls + 1
    form = _FORMS[node.op]
    if node.inputs[0] == node.inputs[1] and not is_table(value):
        base, first, second, calls = value, (lambda x: x), (lambda x: x), 1
        if node.op in ("Add", "Sub"):
            return linear(graph, node, value, 2.0 if node.op == "Add" else 0.0, 0.0)
        if node.op == "Mul" and graph.precision == Precision.FP16:
            return _square(graph, node, value)

    def function(x: np.ndarray) -> np.ndarray:
        return form(first(x), second(x))

    result = table(graph, node, _plain(base), function)
    result.base, result.function, result.calls = None, None, 0
    return composed(node, result, base, function, calls)


def _plain(base: GraphValue) -> GraphValue:
    return GraphValue(base.name, base.shape, base.tensor, base.index, base.boundary)


def _with_constant(graph: Graph, node: Node, source: GraphValue, constant: np.ndarray, first: bool) -> GraphValue:
    out = node.out_shape
    if math.prod(out) != source.size:
        source = _spread(graph, node, source, out)
    op = node.op
    if op == "Div" and first:
        if np.any(constant == 0):
            raise Cut("it divides by zero")
        op, constant = "Mul", 1.0 / constant
    source = GraphValue(
        source.name,
        out,
        source.tensor,
        None if source.index is None else source.index.reshape(out),
        source.boundary,
        source.base,
        source.function,
        source.calls,
    )
    source, (values,) = graph.with_constants(source, constant)
    tensor = source.placed
    number = factor_of(values)
    if op == "Div":
        if not isinstance(number, float):
            raise Cut("a constant tensor is divided by a computed one", "use Reciprocal and Mul")
        return table(graph, node, source, lambda x: number / x)
    sign = -1.0 if op == "Sub" and not first else 1.0
    shift = -1.0 if op == "Sub" and first else 1.0
    if isinstance(number, float):
        if op == "Mul":
            return linear(graph, node, source, number, 0.0)
        return linear(graph, node, source, sign, shift * number)
    name = graph.label(node)
    if number is not None:
        ones = np.ones(len(number))
        factors, offsets = (number, 0 * number) if op == "Mul" else (sign * ones, shift * number)
        result = graph.network.scale(name, tensor, factors, offsets)
    elif op == "Mul":
        result = graph.network.multiply(name, tensor, graph.network.constant(graph.label(node, "factor"), values))
    else:
        if sign < 0:
            tensor = graph.network.scale(graph.label(node, "negative"), tensor, np.array([-1.0]))
        result = graph.network.add(name, tensor, graph.network.constant(graph.label(node, "operand"), shift * values))
    graph.tensors[result.name] = node.outputs[0]
    return moved(node, source, result)


def _of_two(graph: Graph, node: Node, value: GraphValue, other: GraphValue) -> GraphValue:
    if node.op == "Div":
        raise Cut("both sides of the division are computed", "multiply by a reciprocal")
    first, second, like = aligned(graph, node, value, other)
    if node.op == "Sub":
        second = graph.network.scale(graph.label(node, "negative"), second, np.array([-1.0]))
    layer = graph.network.multiply if node.op == "Mul" else graph.network.add
    result = layer(graph.label(node), first, second)
    graph.tensors[result.name] = node.outputs[0]
    return moved(node, like, result)


def aligned(
    graph: Graph, node: Node, value: GraphValue, other: GraphValue
) -> tuple[NetworkTensor, NetworkTensor, GraphValue]:
    """Two values as cubes of one order, broadcast to the result's shape; the third says in what order."""
    out = node.out_shape
    # An input of the part that has no tensor yet is bound in the order of the other side.
    if value.size == other.size == math.prod(out) and (value.tensor is None) == (other.tensor is None):
        first, second = graph.flat(value), graph.flat(other)
        same = value.index is other.index or (
            value.index is not None
            and other.index is not None
            and np.array_equal(value.index.ravel(), other.index.ravel())
        )
        if same and first.shape == second.shape:
            return first, second, GraphValue("", out, first, None if value.index is None else value.index.reshape(out))
    value, other = (_spread(graph, node, side, out) for side in (value, other))
    # in the order of the one that has a tensor already, the other is moved
    like = value if value.tensor is not None or other.tensor is None else other
    cube = graph.flat(like).shape
    wanted, index = None, like.index
    if index is not None:
        if np.unique(index).size != index.size or index.size != math.prod(cube):
            cube = canonical(out)
            like = GraphValue("", out, graph.arrange(like, None, cube), None)
        else:
            wanted = np.zeros(math.prod(out), np.int64)
            wanted[index.ravel()] = np.arange(index.size)
    tensors = [like.placed if side is like else graph.arrange(side, wanted, cube) for side in (value, other)]
    if value is not like and other is not like:
        tensors = [graph.arrange(side, wanted, cube) for side in (value, other)]
    return (
        tensors[0],
        tensors[1],
        GraphValue("", out, tensors[0], None if like.index is None else like.index.reshape(out)),
    )


def _spread(graph: Graph, node: Node, value: GraphValue, out: tuple[int, ...]) -> GraphValue:
    """A value broadcast to a shape: its elements repeated by index."""
    if value.shape == out:
        return value
    if value.size == math.prod(out):
        index = None if value.index is None else value.index.reshape(out)
        return GraphValue(value.name, out, value.tensor, index, value.boundary)
    index = np.broadcast_to(value.order().reshape((1,) * (len(out) - len(value.shape)) + value.shape), out)
    return GraphValue(value.name, out, value.tensor, np.ascontiguousarray(index), value.boundary)


@operator("Max", "Min", "Sum", "Mean", note="SDP, elementwise")
def several(graph: Graph, node: Node) -> GraphValue:
    """Any number of tensors, two at a time in the SDP. Constants and broadcasting work as for Add. Mean is the sum
    divided by the number of inputs."""
    computed = dict.fromkeys(node.computed())
    constants = [node.required(i, "operand") for i in range(len(node.inputs)) if i not in computed]
    values = [graph.source(node, i) for i in computed]
    if not values:
        raise Cut("all inputs are constants")
    combine = {"Max": np.maximum, "Min": np.minimum}.get(node.op, np.add)
    constant = None
    for array in constants:
        constant = array if constant is None else combine(constant, array)
    if len(node.inputs) == 1:
        return graph.alias(node, values[0], values[0].index)
    result = values[0]
    for other in values[1:]:
        first, second, like = aligned(graph, node, result, other)
        layer = {"Max": graph.network.maximum, "Min": graph.network.minimum}.get(node.op, graph.network.add)
        like.tensor = layer(graph.label(node, "partial"), first, second)
        result = like
    if constant is not None:
        result = _constant_partner(graph, node, result, constant)
    if node.op == "Mean":
        return linear(graph, node, _nameless(result), 1.0 / len(node.inputs), 0.0)
    return _named(graph, node, result)


def _nameless(value: GraphValue) -> GraphValue:
    return GraphValue("", value.shape, value.tensor, value.index)


def _named(graph: Graph, node: Node, value: GraphValue) -> GraphValue:
    """The last layer is the node's own: it takes the value's name."""
    tensor = value.placed
    layer = tensor.producer
    if layer.name.startswith(f"{graph.name(node.outputs[0])}/"):
        graph.network.rename({layer: graph.label(node)})
    graph.tensors[tensor.name] = node.outputs[0]
    return GraphValue(node.outputs[0], node.out_shape, tensor, value.index)


def _constant_partner(graph: Graph, node: Node, value: GraphValue, constant: np.ndarray) -> GraphValue:
    value, (values,) = graph.with_constants(_spread(graph, node, value, node.out_shape), constant)
    tensor = value.placed
    number = factor_of(values)
    name = graph.label(node, "partial")
    if isinstance(number, float) and node.op in ("Max", "Min"):
        limits = (number, 3.0e38) if node.op == "Max" else (-3.0e38, number)
        result = (
            graph.network.relu(name, tensor) if limits == (0.0, 3.0e38) else graph.network.clip(name, tensor, *limits)
        )
    elif node.op in ("Max", "Min"):
        layer = graph.network.maximum if node.op == "Max" else graph.network.minimum
        result = layer(name, tensor, graph.network.constant(graph.label(node, "operand"), values))
    elif number is not None:
        result = graph.network.bias(name, tensor, np.asarray(number))
    else:
        result = graph.network.add(name, tensor, graph.network.constant(graph.label(node, "operand"), values))
    return GraphValue("", node.out_shape, result, value.index)


@operator("Pow", note="lookup table")
def power(graph: Graph, node: Node) -> GraphValue:
    """A table, for a constant exponent that is one number. In fp16 the square is a product of the tensor with
    itself."""
    source = graph.source(node)
    exponent = node.required(1, "exponent")
    if exponent.size != 1:
        return _powers(graph, node, source, exponent)
    number = float(exponent.ravel()[0])
    if number == 1:
        return graph.alias(node, source, source.index)
    if number == 2 and graph.precision == Precision.FP16:
        return _square(graph, node, source)
    return table(graph, node, source, lambda x: np.power(x, number))


def _square(graph: Graph, node: Node, source: GraphValue) -> GraphValue:
    """The product of a tensor with itself: a table of halves would be coarse near 0, and wrong far from it."""
    tensor = graph.flat(source)
    result = graph.network.multiply(graph.label(node), tensor, tensor)
    graph.tensors[result.name] = node.outputs[0]
    return keep(node, moved(node, source, result), source, np.square)


def _powers(graph: Graph, node: Node, source: GraphValue, exponent: np.ndarray) -> GraphValue:
    raise Cut("the exponent differs between elements")


@operator("BatchNormalization", note="factor and offset per channel")
def batch_norm(graph: Graph, node: Node) -> GraphValue:
    """A factor and an offset per channel, folded into the preceding convolution or computed by one SDP operation.
    Inference form only, with constant statistics."""
    if node.get("training_mode", 0):
        raise Cut("it is in training mode")
    source = graph.source(node)
    scale, offset, mean, variance = (node.required(i, what) for i, what in enumerate(("scale", "B", "mean", "var"), 1))
    factor = scale / np.sqrt(variance + float(node.get("epsilon", 1e-5)))
    shape = (1, -1) + (1,) * (len(source.shape) - 2)
    constants = [array.reshape(shape) for array in (factor, offset - mean * factor)]
    source, cubes = graph.with_constants(source, *constants)
    both = [factor_of(array) for array in cubes]
    if both[0] is None or both[1] is None:
        raise Cut("its channels must be the channels of the cube")
    result = graph.network.scale(graph.label(node), source.placed, np.asarray(both[0]), np.asarray(both[1]))
    graph.tensors[result.name] = node.outputs[0]
    return moved(node, source, result)
