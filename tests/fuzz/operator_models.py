"""Generator of small ONNX models around one operator, from onnx's own schemas.

The first two bytes of an input choose the operator, the rest seeds all other choices, so that an input stands for one
model. A model starts valid as far as names, types and shapes of the schema allow; zero to three *faults* then move
attributes, constants, shapes and types to their limits, and a *frame* puts the node into a sub-graph, a local function,
a chain, or between QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper
from operator_plans import ATTRIBUTES, PLANS, WORDS, Plan

INTS = (0, 1, -1, 2, 3, -2, 63, 64, -64, -65, 127, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 32)
INTS = (*INTS, (1 << 63) - 1, -(1 << 63), (1 << 62) + 1)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    3.4e38,
    -3.4e38,
    1e-45,
    65504.0,
    65520.0,
)
STRINGS = (b"", b"NOTSET", b"SAME_UPPER", b"VALID", b"\xff\xfe", b"linear", b"a" * 3000, b"\n\x1b[31m", b"...ij,jk->ik")
SIZES = (0, 1, 2, 3, 5, 8, 17, 64, 255)
HUGE = (1 << 16, 1 << 31, (1 << 63) - 1, -1)
OLDEST, NEWEST = 7, defs.onnx_opset_version()
OPERATORS = tuple(sorted({each.name for each in defs.get_all_schemas_with_history() if each.domain == ""}))
#: element types of a tensor in a schema's words
TYPES = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items() if name != "UNDEFINED"}
FRAMES = ("none",) * 9 + ("function", "if", "loop", "qdq", "qdq", "after", "after", "before", "before", "twice")
#: operators in front of the chosen one, or behind it, with the attributes that they need
NEIGHBOURS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("Relu", {}), ("Sigmoid", {}), ("Tanh", {}), ("Neg", {}), ("Abs", {}), ("Flatten", {}), ("Identity", {})),
    *(("MaxPool", {"kernel_shape": [2, 2]}), ("AveragePool", {"kernel_shape": [2, 2]}), ("GlobalAveragePool", {})),
    *(("Transpose", {}), ("Softmax", {}), ("Clip", {}), ("Cast", {"to": TensorProto.FLOAT}), ("LeakyRelu", {})),
    *(("Shape", {}), ("Exp", {}), ("LRN", {"size": 3}), ("Squeeze", {}), ("DepthToSpace", {"blocksize": 2})),
)


@dataclass
class Made:
    """A model and what is known of it: ``faults`` that it was given, ``operators`` in it."""

    proto: Any
    operator: str
    faults: list[str]
    frame: str
    opset: int


@dataclass
class _Draft:
    """A graph while it grows."""

    rng: random.Random
    opset: int
    nodes: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def name(self) -> str:
        return f"v{len(self.nodes) + len(self.inputs) + len(self.constants)}"

    def constant(self, array: np.ndarray, kind: int = 0) -> str:
        """A constant of an element type (0: the array's): initializer, or, more rarely, result of a Constant."""
        name, tensor = self.name(), tensor_of(array, kind)
        tensor.name = name
        if self.rng.randrange(6):
            self.constants.append(tensor)
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        return name

    def input(self, kind: int, shape: Sequence[int | str] | None) -> str:
        name = self.name()
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def add(self, op: str, inputs: Sequence[str], count: int = 1, **attributes: Any) -> list[str]:
        name = self.name()
        results = [f"{name}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(op, inputs, results, **attributes))
        return results


def tensor_of(array: np.ndarray, kind: int = 0) -> Any:
    """A tensor; of element types that numpy does not have, one with bytes of zero."""
    if not kind or kind == TensorProto.STRING:
        return numpy_helper.from_array(
            np.asarray(array if kind == 0 else np.full(array.shape, "s"), object if kind else None)
        )
    try:
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        if dtype.isbuiltin != 1:
            raise TypeError
        with np.errstate(all="ignore"):
            return numpy_helper.from_array(np.asarray(array).astype(dtype))
    except (TypeError, KeyError, ValueError):
        return TensorProto(data_type=kind, dims=array.shape, raw_data=bytes(2 * array.size))


def operator_of(data: bytes) -> str:
    """The operator that an input chooses."""
    return OPERATORS[int.from_bytes(data[:2].ljust(2, b"\0"), "little") % len(OPERATORS)]


def model_of(data: bytes, faults: bool = True) -> Made | None:
    """The model of an input; None where the operator is not in the opset that it chooses."""
    rng, operator = random.Random(data), operator_of(data)
    opset = rng.choice((rng.randint(OLDEST, NEWEST), rng.randint(11, min(21, NEWEST)), 13, 17))
    try:
        schema = defs.get_schema(operator, opset, "")
    except defs.SchemaError:
        opset = NEWEST
        schema = defs.get_schema(operator, opset, "")
    if schema.deprecated:
        return None
    draft, plan = _Draft(rng, opset), _plan(schema, rng)
    frame = rng.choice(FRAMES)
    wanted = [rng.choice(FAULTS) for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3)) if faults else 0)]
    for fault in wanted:
        if fault in _ON_PLAN:
            _ON_PLAN[fault](plan, rng)
    outputs = _node(draft, schema, plan, frame)
    if frame == "twice":
        outputs = _chained(draft, outputs, defs.get_schema(rng.choice(OPERATORS), ""), rng)
    for fault in wanted:
        if fault in _ON_DRAFT:
            _ON_DRAFT[fault](draft, rng)
    floats = all(kind == "tensor(float)" for kind in plan.kinds.values())
    return Made(_finished(draft, outputs, frame, floats, bool(wanted)), operator, wanted, frame, opset)


# ---- the node


def _plan(schema: Any, rng: random.Random) -> Plan:
    """What goes into the node: of a plan for the operator, and where it says nothing, by names and types."""
    plan = PLANS[schema.name](rng) if schema.name in PLANS else Plan()
    if not plan.base:
        plan.base = tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.choice((4, 4, 4, 3, 2, 1))))
    plan.kinds = {each.type_param_str: _kind(each.allowed_type_strs, rng) for each in schema.type_constraints}
    plan.attributes = {k: v for k, v in plan.attributes.items() if k in schema.attributes}
    for name, attribute in schema.attributes.items():
        if name not in plan.attributes and (attribute.required or (rng.randrange(8) == 0 and not plan.strict)):
            plan.attributes[name] = _attribute(name, attribute, plan, rng)
    return plan


def _kind(allowed: Sequence[str], rng: random.Random) -> str:
    """A type that the schema allows: mostly float."""
    if "tensor(float)" in allowed and rng.randrange(8):
        return "tensor(float)"
    return rng.choice(sorted(allowed))


def _attribute(name: str, attribute: Any, plan: Plan, rng: random.Random) -> Any:
    """A plausible value."""
    kind, kinds = attribute.type, defs.OpSchema.AttrType
    if name in ATTRIBUTES:
        return ATTRIBUTES[name](rng, len(plan.base))
    if kind in (kinds.INT, kinds.INTS):
        value = rng.choice((0, 1, 1, 2, -1))
        return value if kind == kinds.INT else [value] * rng.choice((1, 2, 4))
    if kind in (kinds.FLOAT, kinds.FLOATS):
        real = rng.choice((0.0, 0.5, 1.0, 2.0))
        return real if kind == kinds.FLOAT else [real] * rng.choice((1, 2))
    if kind in (kinds.STRING, kinds.STRINGS):
        word = rng.choice(WORDS)
        return word if kind == kinds.STRING else [word] * rng.choice((1, 2))
    if kind == kinds.TENSOR:
        return tensor_of(np.asarray(rng.choice((1.0, [1, 2], [0.5]))))
    return _body(rng) if kind == kinds.GRAPH else _edge(rng)


def _body(rng: random.Random) -> Any:
    """A sub-graph for any attribute."""
    count = rng.choice((0, 0, 1, 2, 3))
    ends = [
        helper.make_tensor_value_info(f"b{n}", rng.choice((1, 1, 7, 9)), rng.choice(([], [1], None)))
        for n in range(count)
    ]
    node = (
        helper.make_node("Identity", [ends[0].name], ["r"])
        if ends
        else helper.make_node("Constant", [], ["r"], value=tensor_of(np.float32([1])))
    )
    return helper.make_graph([node], "body", ends, [helper.make_tensor_value_info("r", 1, None)])


def _node(draft: _Draft, schema: Any, plan: Plan, frame: str) -> list[str]:
    """Add the node, and give its outputs' names."""
    rng, names, count = draft.rng, [], max(schema.min_input, len(plan.inputs))
    optional = list(range(schema.min_input, min(schema.max_input, schema.min_input + 4)))
    if not plan.strict:
        count = max(count, rng.choice((schema.min_input, *optional)) + (1 if optional and rng.randrange(2) else 0))
    for place in range(min(count, schema.max_input)):
        formal = schema.inputs[min(place, len(schema.inputs) - 1)]
        names.append(_value(draft, place, formal, plan))
    results = max(
        schema.min_output, min(plan.outputs or rng.choice((1, 1, 1, 2)), schema.max_output), schema.min_output
    )
    made = [f"y{number}" for number in range(results)]
    node = helper.make_node(schema.name, names, made, **plan.plain())
    if frame == "qdq" and draft.rng.randrange(2):
        node.name = "q"
    draft.nodes.append(node)
    for name, value in plan.attributes.items():
        if isinstance(value, onnx.AttributeProto):
            value.name = name
            node.attribute.append(value)
    return made


def _value(draft: _Draft, place: int, formal: Any, plan: Plan) -> str:
    """One input of the node: a constant, an input of the graph, or nothing."""
    rng, given = draft.rng, plan.inputs.get(place)
    kind = plan.kinds.get(formal.type_str, formal.type_str)
    if given is None and formal.option == defs.OpSchema.FormalParameterOption.Optional and rng.randrange(3) == 0:
        return ""
    if kind.startswith(("seq(", "optional(")):
        inner = kind[kind.index("tensor(") :].rstrip(")") + ")"
        element = draft.input(TYPES.get(inner, 1), plan.base)
        if kind.startswith("optional(tensor"):
            return draft.add("Optional", [element])[0]
        made = draft.add("SequenceConstruct", [element] * rng.choice((1, 2)))[0]
        return made if kind.startswith("seq(") else draft.add("Optional", [made])[0]
    number = TYPES.get(kind, 1)
    if isinstance(given, np.ndarray):
        return draft.constant(given, number if given.dtype.kind == "f" or number in (6, 7) else 0)
    shape = given if given is not None else _shape(rng, plan.base)
    if number in (6, 7) and rng.randrange(5) and place:  # indices, sizes: constants, as models have them
        return draft.constant(
            np.asarray([rng.choice((0, 1, 1, 2, -1)) for _ in range(int(np.prod(shape)) % 5)]), number
        )
    if place and rng.randrange(2) and int(np.prod(shape)) <= 1 << 16:
        random_numbers = np.random.default_rng(rng.randrange(1 << 16))
        array = random_numbers.standard_normal(shape) * 0.5
        return draft.constant(np.abs(array) + 0.1 if rng.randrange(8) == 0 else array, number)
    return _framed(draft, draft.input(number, shape), number)


def _framed(draft: _Draft, name: str, number: int) -> str:
    """An input of the graph, more rarely with an operator in front of the node."""
    rng = draft.rng
    if number != TensorProto.FLOAT:
        return name
    if rng.randrange(8) == 0:
        op, attributes = rng.choice(NEIGHBOURS)
        return draft.add(op, [name], **attributes)[0]
    return _quantized(draft, name) if rng.randrange(8) == 0 and draft.opset >= 10 else name


def _quantized(draft: _Draft, name: str) -> str:
    """QuantizeLinear and DequantizeLinear behind a value."""
    rng = draft.rng
    scale = np.asarray(rng.choice((0.05, 0.05, 0.02, 1.0, *(FLOATS if rng.randrange(16) == 0 else ()))), np.float32)
    zero = np.asarray(rng.choice((0, 0, 0, 3, 127)), rng.choice((np.int8, np.int8, np.uint8)))
    s, z = draft.constant(scale), draft.constant(zero)
    return draft.add("DequantizeLinear", [draft.add("QuantizeLinear", [name, s, z])[0], s, z])[0]


def _shape(rng: random.Random, base: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that goes together with the base by broadcasting, mostly."""
    kind = rng.randrange(8)
    if kind < 4:
        return base
    if kind == 4:
        return tuple(1 if rng.randrange(2) else size for size in base)
    if kind == 5:
        return base[rng.randrange(len(base)) :]
    return (base[1],) if kind == 6 and len(base) > 1 else ()


def _chained(draft: _Draft, outputs: list[str], schema: Any, rng: random.Random) -> list[str]:
    """A second operator behind the first."""
    if schema.deprecated or not schema.inputs:
        return outputs
    plan = _plan(schema, rng)
    names = [
        _value(draft, place, schema.inputs[min(place, len(schema.inputs) - 1)], plan)
        for place in range(1, max(schema.min_input, len(plan.inputs)))
    ]
    made = [f"z{number}" for number in range(max(schema.min_output, 1))]
    draft.nodes.append(helper.make_node(schema.name, [outputs[0], *names], made, **plan.plain()))
    return made


# ---- the graph around it


def _finished(draft: _Draft, outputs: list[str], frame: str, floats: bool, faults: bool) -> Any:
    """The model. ``floats``: all types are float; ``faults``: outputs may state any type and shape."""
    rng, opset, functions = draft.rng, draft.opset, []
    if frame == "after" and (faults or floats):
        op, attributes = rng.choice(NEIGHBOURS)
        outputs = draft.add(op, outputs[:1], **attributes)
    if frame == "before" and draft.inputs and floats:
        draft.nodes.append(helper.make_node("Relu", [draft.inputs[0].name], ["unused"]))
    if frame == "qdq" and opset >= 10 and (faults or floats):
        outputs = [_quantized(draft, outputs[0])]
    graph_nodes, held = draft.nodes, draft.constants
    if frame in ("if", "loop"):
        graph_nodes, held, outputs = _nested(draft, outputs, frame)
    if frame == "function":
        names = [each.name for each in (*draft.inputs, *held)]
        opsets = [helper.make_opsetid("", opset)]
        functions = [helper.make_function("own", "F", names, outputs, draft.nodes, opsets)]
        graph_nodes = [helper.make_node("F", names, outputs, domain="own")]
    ends = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    for each in ends:
        if faults and rng.randrange(2) == 0:
            each.CopyFrom(
                helper.make_tensor_value_info(each.name, rng.choice((1, 1, 7)), rng.choice((None, [1], [1, 2, 3, 4])))
            )
    graph = helper.make_graph(graph_nodes, "operators", draft.inputs, ends, held)
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("own", 1)] if functions else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=rng.choice((8, 8, 10)), functions=functions)


def _nested(draft: _Draft, outputs: list[str], frame: str) -> tuple[list[Any], list[Any], list[str]]:
    """The node inside If or Loop."""
    rng, made = draft.rng, f"{frame}_out"
    inner = [onnx.ValueInfoProto(name=outputs[0])]
    if frame == "if":
        condition = draft.constant(np.asarray(bool(rng.randrange(2))))
        if not any(each.name == condition for each in draft.constants):
            draft.nodes.remove(next(each for each in draft.nodes if condition in each.output))
            draft.constants.append(numpy_helper.from_array(np.asarray(True), condition))
        other = helper.make_node("Constant", [], ["e"], value=tensor_of(np.float32([1])))
        branches = (
            helper.make_graph(draft.nodes, "then", [], inner),
            helper.make_graph([other], "else", [], [onnx.ValueInfoProto(name="e")]),
        )
        return (
            [helper.make_node("If", [condition], [made], then_branch=branches[0], else_branch=branches[1])],
            draft.constants,
            [made],
        )
    trips = numpy_helper.from_array(np.asarray(rng.choice((0, 1, 2, 3, *INTS))), "trips")
    on = numpy_helper.from_array(np.asarray(True), "on")
    ends = [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("c", 9, [])]
    body = helper.make_graph(
        [*draft.nodes, helper.make_node("Identity", ["c"], ["c2"])],
        "body",
        ends,
        [helper.make_tensor_value_info("c2", 9, []), *inner],
    )
    return [helper.make_node("Loop", ["trips", "on"], [made], body=body)], [*draft.constants, trips, on], [made]


# ---- faults


def _edge(rng: random.Random) -> Any:
    """Any attribute at its limits, of any kind."""
    kind = rng.randrange(9)
    if kind < 3:
        return rng.choice(INTS)
    if kind < 5:
        return [rng.choice(INTS) for _ in range(rng.choice((1, 2, 4, 4, 6)))]
    if kind == 5:
        return rng.choice((*FLOATS, list(FLOATS[: rng.randrange(1, 6)])))
    if kind == 6:
        return rng.choice(STRINGS)
    if kind == 7:
        kinds = onnx.AttributeProto
        return rng.choice(
            (
                kinds(type=kinds.INTS),
                kinds(type=kinds.FLOATS),
                kinds(type=kinds.STRINGS),
                kinds(),
                kinds(type=kinds.INTS, ints=[1] * 5000),
            )
        )
    return tensor_of(np.asarray(rng.choice((float("nan"), [], [[1.0]], 1 << 62))))


def _like(value: Any, rng: random.Random) -> Any:
    """A limit of the kind that a value has."""
    if isinstance(value, bool | int):
        return rng.choice(INTS)
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, str | bytes):
        return rng.choice(STRINGS)
    if isinstance(value, list) and value:
        changed = list(value)
        changed[rng.randrange(len(changed))] = _like(value[0], rng)
        return rng.choice(
            (changed, changed, changed[:-1] or changed, changed * 2, [_like(value[0], rng)] * len(changed))
        )
    return _edge(rng)


def _move_attribute(plan: Plan, rng: random.Random) -> None:
    if plan.attributes:
        name = rng.choice(sorted(plan.attributes))
        plan.attributes[name] = _like(plan.attributes[name], rng) if rng.randrange(4) else _edge(rng)


def _drop_attribute(plan: Plan, rng: random.Random) -> None:
    if plan.attributes:
        del plan.attributes[rng.choice(sorted(plan.attributes))]


def _add_attribute(plan: Plan, rng: random.Random) -> None:
    plan.attributes[rng.choice((*sorted(ATTRIBUTES), "nonsense"))] = _edge(rng)


def _move_constant(plan: Plan, rng: random.Random) -> None:
    """Values of a constant to their limits, or another shape for it."""
    places = [place for place, each in plan.inputs.items() if isinstance(each, np.ndarray)]
    if not places:
        return _odd_shape(plan, rng)
    place = rng.choice(places)
    array = np.array(plan.inputs[place])
    kind = rng.randrange(6)
    if kind == 0:
        array = array.reshape(-1)[:0] if rng.randrange(2) else array[None]
    elif kind == 1:
        array = np.concatenate([array.ravel(), array.ravel()])
    elif array.size:
        whole = array.dtype.kind in "iub"
        info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
        value = rng.choice(INTS if whole else FLOATS)
        array.ravel()[rng.randrange(array.size)] = min(max(value, info.min), info.max) if info else value
        if kind == 2:
            array[...] = array.ravel()[-1]
    plan.inputs[place] = array
    return None


def _odd_shape(plan: Plan, rng: random.Random) -> None:
    """Another rank or size for one input, or for all that follow the base."""
    sizes = tuple(rng.choice(SIZES) for _ in range(rng.choice((0, 1, 2, 3, 4, 4, 4, 5, 6))))
    while np.prod(sizes, dtype=float) > 1 << 18:
        sizes = sizes[1:]
    places = [place for place, each in plan.inputs.items() if not isinstance(each, np.ndarray)]
    if places:
        place = rng.choice(places)
        old = plan.inputs[place]
        changed = list(old)
        if changed and rng.randrange(2):
            changed[rng.randrange(len(changed))] = rng.choice((*SIZES, *HUGE) if rng.randrange(4) == 0 else SIZES)
        plan.inputs[place] = tuple(changed) if changed != list(old) else sizes
    else:
        plan.base = sizes or (1,)


def _other_type(plan: Plan, rng: random.Random) -> None:
    if plan.kinds:
        plan.kinds[rng.choice(sorted(plan.kinds))] = rng.choice(sorted(TYPES))


def _move_input(draft: _Draft, rng: random.Random) -> None:
    """An input of a node: gone, doubled, or another value of the graph."""
    node = rng.choice(draft.nodes)
    values = [each.name for each in (*draft.inputs, *draft.constants)]
    if not node.input:
        return
    kind, at = rng.randrange(4), rng.randrange(len(node.input))
    if kind == 0:
        del node.input[at]
    elif kind == 1:
        node.input.append(rng.choice([*values, ""]))
    else:
        node.input[at] = rng.choice([*values, "", "nowhere"]) if kind == 2 else node.input[0]


def _move_output(draft: _Draft, rng: random.Random) -> None:
    """One more output, or one that another node has already."""
    node = rng.choice(draft.nodes)
    node.output.append(rng.choice(("", "more", *draft.nodes[0].output)))


def _raw_edges(draft: _Draft, rng: random.Random) -> None:
    """Bytes of a stored constant, or its dimensions, which then do not fit."""
    if not draft.constants:
        return
    tensor = rng.choice(draft.constants)
    if tensor.raw_data and rng.randrange(2):
        tensor.raw_data = rng.choice((b"\xff", b"\x00", b"\x7f", b"\x80", b"")) * len(tensor.raw_data)
    elif rng.randrange(4) == 0:
        tensor.dims.append(rng.choice(INTS))


_ON_PLAN: dict[str, Callable[[Plan, random.Random], None]] = {
    "attribute": _move_attribute, "no attribute": _drop_attribute, "more attributes": _add_attribute,
    "constant": _move_constant, "shape": _odd_shape, "type": _other_type,
}  # fmt: skip
_ON_DRAFT: dict[str, Callable[[_Draft, random.Random], None]] = {
    "input": _move_input, "output": _move_output, "bytes": _raw_edges,
}  # fmt: skip
FAULTS = (
    ("attribute",) * 4
    + ("constant",) * 4
    + ("shape",) * 3
    + ("type", "bytes", "no attribute", "more attributes", "input", "output")
)
