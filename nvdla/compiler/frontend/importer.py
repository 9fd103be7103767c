"""From a normalized ONNX model to builder networks: one walk over the nodes, cut into accelerator and host parts.

Every node is tried on the accelerator: its operator (:mod:`nvdla.compiler.frontend.operators`) adds layers to the
network of a
part, and the new layers are lowered alone, so that what a configuration cannot do is known before calibration. A node
that cannot be done goes to the host with the reason. Parts are numbered so that data flows from lower to higher ones:
even ones run on the accelerator, odd ones on the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compiler.builder import Calibration, Network
from nvdla.compiler.builder.cbuf import fit
from nvdla.compiler.builder.cost_model import USUAL_POLICY, CostModel
from nvdla.compiler.builder.ir import Convolve, Process, Root
from nvdla.compiler.builder.layers import ConvSettings, Layer, NetworkTensor
from nvdla.compiler.builder.lower import lower
from nvdla.compiler.builder.lower.convolution import Window, check_window
from nvdla.compiler.builder.schedule import schedule
from nvdla.compiler.frontend.attributes import DOMAINS
from nvdla.compiler.frontend.checking import multiplications
from nvdla.compiler.frontend.graph import FLOATS, Binding, Cut, Graph, GraphValue, Node, canonical
from nvdla.compiler.frontend.isolation import one_line, reads
from nvdla.compiler.frontend.model import OLDEST, Model
from nvdla.compiler.frontend.opening import submodel
from nvdla.compiler.frontend.operators import OPERATORS, Operator
from nvdla.compiler.frontend.quantization.mixed import ALSO_REAL, GIVES_ELEMENTS
from nvdla.compiler.frontend.tflite.graph import HOST_KEY
from nvdla.emulator.hardware.configuration import Configuration, configuration
from nvdla.errors import BuildError, ConfigError, FormatError
from nvdla.util.precision import Precision

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


# What numpy and Python raise where attributes do not fit each other; onnxruntime judges such a node.
_UNUSUAL = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError)
ACCELERATOR, CPU, FOLDED, HOST = "accelerator", "cpu", "folded", "host"
SINGLE_FAILURES = 16
"""Nodes that go to the host one by one. Each later one takes twice as many adjacent nodes along as the one before."""

#: why a node that only moves elements has operations
MOVED = "moves elements for the nodes that read it"


@dataclass
class NodeRow:
    """One node of the model: where it runs and why. ``operations``: layers that compute it, those of one group by the
    name of the whole group."""

    name: str
    op: str
    placement: str
    reason: str = ""
    advice: str = ""
    operations: list[str] = field(default_factory=list)
    macs: int = 0
    part: int | None = None

    def __getitem__(self, name: str) -> object:
        """A field by its name, as in the rows of all other tables."""
        return getattr(self, name)

    @property
    def number(self) -> int:
        """``part`` of a node that was not folded."""
        assert self.part is not None, f"{self.name} is in no part"
        return self.part


@dataclass
class Part:
    """Nodes that run together. ``kind`` "accelerator": ``network`` with ``inputs`` and ``outputs`` bound; "host":
    ``model``, an ONNX ModelProto, whose inputs and outputs are value names."""

    kind: str
    nodes: list[str]
    network: Network | None = None
    inputs: list[Binding] = field(default_factory=list)
    outputs: list[Binding] = field(default_factory=list)
    model: Any = None

    @property
    def layers(self) -> Network:
        """``network`` of a part on the accelerator."""
        assert self.network is not None, "a part on the host has no network"
        return self.network

    @property
    def takes(self) -> list[str]:
        """Names of the tensors that it takes, each once."""
        return list(dict.fromkeys(binding.value for binding in self.inputs))


@dataclass
class Imported:
    """Result of :func:`import_graph`; see :mod:`nvdla.compiler.frontend`."""

    model: Model
    config: Configuration
    precision: str
    parts: list[Part]
    nodes: list[NodeRow]
    tensors: dict[str, str]
    ties: dict[str, str]
    magnitudes: dict[str, float]
    orders: dict[str, np.ndarray | None] = field(default_factory=dict)

    @property
    def networks(self) -> list[Network]:
        """The networks of the parts that run on the accelerator."""
        return [part.network for part in self.parts if part.network is not None]

    @property
    def network(self) -> Network | None:
        """The network of the first accelerator part, None where nothing runs on the accelerator."""
        return next(iter(self.networks), None)

    @property
    def notes(self) -> list[str]:
        """The notes of the model; those on its integers for a loadable that has other numbers than these."""
        kinds: Mapping[str, tuple[str, ...]] = {Precision.INT16: ("int16",), Precision.FP16: ()}
        own = kinds.get(self.precision, ("int8", "uint8", "int16"))
        gives = "a loadable in fp16 gives real numbers" if self.precision == Precision.FP16 else GIVES_ELEMENTS
        takes = f"a loadable in {self.precision} takes real numbers (float arrays)"
        return [
            note
            if any(f": {kind} in the model; " in note for kind in own)
            else note.replace(ALSO_REAL, takes).replace(GIVES_ELEMENTS, gives)
            for note in self.model.notes
        ]

    @property
    def cuts(self) -> int:
        """Places where data goes from the accelerator to the host or back, besides the model's own ends."""
        return max(0, len(self.parts) - 1)


def import_graph(
    model: Model,
    config: str | Configuration,
    precision: str = "int8",
    host: Mapping[str, str] | None = None,
    ranged: bool = True,
) -> Imported:
    """Place every node and make the networks. ``host``: nodes that must run on the host, and why. ``ranged``: False
    where the ranges of tensors will not be known (fp16 without calibration).

    Raises ConfigError for a configuration or precision that does not exist; never for a node.
    """
    chosen = configuration(config) if isinstance(config, str) else config
    chosen.require(precision)
    forced = _sums_of_exponentials(model) | (_variances(model) if precision == Precision.INT8 else {})
    forced |= {name: Cut(reason) for name, reason in (host or {}).items()}
    while True:
        walk = _Walk(model, chosen, precision, forced, ranged)
        walk.run()
        again = walk.unbound or walk.islands()
        if not again:
            return walk.finish()
        forced.update(again)


def _sums_of_exponentials(model: Model) -> dict[str, Cut]:
    """Find the nodes Exp, ReduceSum and Log of a logarithm of a sum of exponentials.

    Neither int8 nor fp16 elements hold such a sum (exp(12) is above the largest half). Where the largest value is
    subtracted before, as in a softmax, the sum is small."""
    makers = {name: node for node in model.proto.graph.node for name in node.output}
    cuts: dict[str, Cut] = {}
    for log in model.proto.graph.node:
        total = makers.get(log.input[0]) if log.op_type == "Log" else None
        power = makers.get(total.input[0]) if total is not None and total.op_type == "ReduceSum" else None
        if total is None or power is None or power.op_type != "Exp":
            continue
        shifted = makers.get(power.input[0])
        if shifted is None or not any(
            name in makers and makers[name].op_type == "ReduceMax" for name in shifted.input if shifted.op_type == "Sub"
        ):
            cuts |= {node.name: Cut("elements cannot hold a sum of exponentials") for node in (power, total, log)}
    return cuts


def _variances(model: Model) -> dict[str, Cut]:
    """Find the nodes of a variance that is the mean of the squares minus the square of the mean.

    In int8 the steps of both are larger than a small variance. ONNX defines LayerNormalization in this way; exporters
    write the mean of the squared deviations, which int8 represents well enough."""
    makers = {name: node for node in model.proto.graph.node for name in node.output}
    cuts: dict[str, Cut] = {}
    for difference in model.proto.graph.node:
        terms = [makers.get(name) for name in difference.input] if difference.op_type == "Sub" else []
        if len(terms) != 2 or terms[0] is None or terms[0].op_type != "ReduceMean":
            continue
        square, mean = makers.get(terms[0].input[0]), _squared(terms[1], makers)
        source = _squared(square, makers)
        if source and mean and mean in makers and list(makers[mean].input[:1]) == [source]:
            cuts |= {
                node.name: Cut("a difference of int8 elements is not exact enough for a variance")
                for node in (square, *terms, difference)
                if node is not None
            }
    return cuts


def _squared(node: NodeProto | None, makers: Mapping[str, NodeProto]) -> str:
    """Name of the value that a node squares; empty if it is another operator."""
    return node.input[0] if node is not None and node.op_type == "Mul" and node.input[0] == node.input[1] else ""


class _Walk:
    def __init__(
        self, model: Model, config: Configuration, precision: str, forced: dict[str, Cut], ranged: bool
    ) -> None:
        self.ranged = ranged
        self.model, self.config, self.precision, self.forced = model, config, precision, forced
        self.graphs: dict[int, Graph] = {}
        self.stages: dict[str, int] = {}  # value -> part number of its producer; inputs of the model: -1
        self.rows: list[NodeRow] = []
        self.nodes: dict[str, Node] = {}
        self.by_part: dict[int, list[Node]] = {}
        self.makers: dict[str, Node] = {}
        self.unbound: dict[str, Cut] = {}  # nodes whose results no surface holds, and why

    def run(self) -> None:
        for proto in self.model.proto.graph.node:
            node = _node(proto, self.model)
            self.nodes[node.name] = node
            row = self._place(node)
            self.rows.append(row)
            self.by_part.setdefault(row.number, []).append(node)
            for value in node.outputs:
                self.stages[value] = row.number
                self.makers.setdefault(value, node)
        self._outputs()

    @cached_property
    def used(self) -> set[str]:
        """Values that a node takes or the model gives."""
        return {name for node in self.model.proto.graph.node for name in node.input} | set(self.model.outputs)

    @cached_property
    def readers(self) -> dict[str, set[int]]:
        """The parts whose nodes read a value; -1: it is an output of the model."""
        readers: dict[str, set[int]] = {name: {-1} for name in self.model.outputs}
        for number, nodes in self.by_part.items():
            for name in (name for node in nodes for name in reads(node.proto)):
                readers.setdefault(name, set()).add(number)
        return readers

    # ---- placing

    def _place(self, node: Node) -> NodeRow:
        taken = [self.stages.get(name, -1) for name in reads(node.proto) if name not in self.model.constants]
        latest = max(taken, default=-1)
        try:
            operator = self._operator(node)
            if node.name in self.forced:
                raise self.forced[node.name]
            return self._try(node, operator, 0 if latest < 0 else latest + latest % 2)
        except Cut as cut:
            part = 1 if latest < 0 else latest + 1 - latest % 2
            return NodeRow(node.name, node.op, HOST, cut.reason, cut.advice, macs=macs(node), part=part)

    def _operator(self, node: Node) -> Operator:
        """The operator of a node; Cut for one that no settings or scales would bring onto the accelerator."""
        for entry in node.proto.metadata_props:
            if entry.key == HOST_KEY:
                raise Cut(entry.value)
        if node.proto.domain not in DOMAINS:
            raise Cut(f"operators of domain {node.proto.domain} are not supported")
        operator = OPERATORS.get(node.op)
        if operator is None:
            raise Cut(f"{node.op} is not supported on the accelerator")
        if node.model.opset < OLDEST and "broadcast" in node.attributes:
            raise Cut(
                "its broadcast attribute (opset 6 or earlier) is not supported",
                "convert the model with onnx.version_converter",
            )
        return operator

    def _try(self, node: Node, operator: Operator, part: int) -> NodeRow:
        self._check_types(node)
        graph = self.graphs.get(part)
        if graph is None:
            network = Network(self.model.name if part == 0 else f"{self.model.name}.{part}")
            graph = Graph(self.model, self.config, self.precision, network)
        before = _Snapshot(graph)
        graph.node = node
        try:
            result = operator.function(graph, node)
            first = before.layers
            self._trial(graph, graph.network.since(first))
        except (BuildError, ConfigError, Cut) as error:
            before.restore(graph)
            raise error if isinstance(error, Cut) else Cut(str(error)) from None
        except _UNUSUAL as error:
            before.restore(graph)
            raise Cut(f"its inputs or attributes are not supported ({one_line(error)})") from None
        self.graphs[part] = graph
        for value in [result] if isinstance(result, GraphValue) else result:
            graph.values[value.name] = value
            if value.tensor is not None and graph.tensors.get(value.tensor.name) == value.name:
                graph.orders[value.tensor.name] = value.index
        added = graph.network.since(first)
        layers = [layer.name for layer in added if layer.kind != "input"]
        tables = all(layer.kind in ("input", "function") for layer in added)
        is_task = any(layer.kind == "softmax" for layer in added)
        placement = CPU if is_task else ACCELERATOR if layers else FOLDED
        note = "lookup table" if tables and "table" not in operator.note else operator.note
        reason = note if layers else "no operation needed"
        return NodeRow(node.name, node.op, placement, reason, "", layers, macs(node), part)

    def _check_types(self, node: Node) -> None:
        for name in [*(n for n in node.inputs if n and n not in self.model.constants), *node.outputs]:
            if name and 0 in self.model.shapes.get(name, ()):
                raise Cut(f"tensor {name} has no elements")
            kind = self.model.types.get(name)
            if (
                name
                and kind is not None
                and kind.name not in FLOATS
                and node.op not in ("QuantizeLinear", "DequantizeLinear")
            ):
                raise Cut(f"tensor {name} has element type {kind.name}; the accelerator computes real numbers only")
        if len([name for name in node.outputs if name]) > 1 and node.op != "Split":
            extra = [name for name in node.outputs[1:] if name in self.used]
            if extra:
                raise Cut(f"its output {extra[0]} is used, but only the first output is supported")

    def _trial(self, graph: Graph, layers: list[Layer]) -> None:
        """Lower the new layers alone: refuses what this configuration cannot do. Convolutions are judged by their
        shapes: their weights would only take time."""
        for layer in layers:
            if layer.kind == "convolution":
                self._fits(layer)
        trial = Network("trial")
        trial.layers = [layer for layer in layers if layer.kind not in ("input", "convolution")]
        if not trial.layers:
            return
        inner = {id(layer.output) for layer in trial.layers}
        outside = {id(t): t for layer in trial.layers for t in layer.inputs if id(t) not in inner}
        trial.inputs = list(outside.values()) or [graph.network.inputs[0]]
        used = {id(t) for layer in trial.layers for t in layer.inputs}
        trial.outputs = [layer.output for layer in trial.layers if id(layer.output) not in used]
        names = [t.name for t in trial.inputs] + [layer.name for layer in trial.layers]
        known = Calibration(dict.fromkeys(names, 1.0)) if self.ranged or self.precision != Precision.FP16 else None
        forms = CostModel(
            self.config, 1, policy=replace(USUAL_POLICY, shares_data=False)
        )  # what is shared is never refused
        schedule(lower(trial, self.config, self.precision, known), self.config, forms)

    def _fits(self, layer: Layer) -> None:
        """Check registers and convolution buffer of a convolution; kernels are split until each fits."""
        settings = ConvSettings.of(layer)
        window = Window(settings.stride, settings.padding, settings.dilation)
        check_window(layer.name, settings.weights.shape, window)
        _, height, width = layer.inputs[0].shape
        per_group = settings.weights.shape[1]
        source = Root(layer.name, per_group, height, width, self.precision).whole
        target = Root(layer.name, 1, *layer.output.shape[1:], self.precision).whole
        weights = np.broadcast_to(np.int8(0), (1, per_group, *settings.weights.shape[2:]))
        process = Process(layer.name, None, target)
        fit(Convolve(layer.name, source, weights, window.stride, window.padding, window.dilation, process), self.config)

    # ---- ends

    def _outputs(self) -> None:
        """Bind the values that other parts and the application need."""
        self.outputs: dict[int, list[Binding]] = {number: [] for number in self.graphs}
        ends, renamed = set(self.model.outputs), dict[int, dict[str, str]]()
        for number, graph in self.graphs.items():
            bound: dict[NetworkTensor, str] = {}
            outputs: list[tuple[NetworkTensor, GraphValue]] = []
            for name in self._needed_outside(number):
                try:
                    outputs.append((self._bind_output(graph, graph.values[name], bound), graph.values[name]))
                except (BuildError, Cut) as error:
                    cut = error if isinstance(error, Cut) else Cut(str(error))
                    self.unbound[self.makers[name].name] = cut
            named = {tensor: name for tensor, name in bound.items() if name in ends}
            renamed[number] = graph.rename(named)
            self.outputs[number] = [
                Binding(tensor.name, value.name, value.index, value.shape) for tensor, value in outputs
            ]
        for row in self.rows:
            names = renamed.get(row.number, {})
            row.operations = [names.get(name, name) for name in row.operations]

    def _needed_outside(self, number: int) -> list[str]:
        values = (value for node in self.by_part.get(number, []) for value in node.outputs if value)
        return [value for value in values if self.readers.get(value, set()) - {number}]

    def _bind_output(self, graph: Graph, value: GraphValue, bound: dict[NetworkTensor, str]) -> NetworkTensor:
        """``bound``: outputs of the graph so far with the name of their first value; they are added to."""
        tensor = value.tensor
        if tensor is None:
            graph.node = self.makers[value.name]
            before = _Snapshot(graph)
            root = graph.values[value.boundary]
            try:
                source = graph.flat(root)
                value.tensor = source
                tensor = graph.arrange(
                    GraphValue(value.name, value.shape, source, value.index), None, canonical(value.shape)
                )
                value.index = None
            except (Cut, BuildError):
                before.restore(graph)
                value.tensor = None
                tensor = graph.bind(root, value.index, canonical(value.shape))
                value.index = None
            value.tensor = tensor
        if tensor not in bound:
            graph.network.output(tensor)
            bound[tensor] = value.name
        return tensor

    # ---- the result

    def islands(self) -> dict[str, Cut]:
        """Nodes of accelerator parts that compute nothing, where there is a host part to take them; and of those that
        multiply nothing, where all that they read and all that reads them is on the host: the copies cost more."""
        if not any(number % 2 for number in self.by_part):
            return {}
        idle = {}
        busy = {row.part for row in self.rows if row.placement != FOLDED}
        for number, nodes in self.by_part.items():
            if number % 2 == 0 and number not in busy:
                cut = Cut("it needs no operation, and the nodes around it run on the host")
                idle.update({node.name: cut for node in nodes})
            elif number % 2 == 0 and self._lies_between_host_parts(number, nodes):
                cut = Cut("it has no multiplications of a matrix, and the nodes around it run on the host")
                idle.update({node.name: cut for node in nodes})
                after = [row for row in self.rows if row.part == number + 1 and row.placement == HOST]
                idle.update({row.name: Cut(row.reason, row.advice) for row in after})  # they stay there
        return idle

    def _lies_between_host_parts(self, number: int, nodes: list[Node]) -> bool:
        if any(row.macs for row in self.rows if row.part == number):
            return False
        own = {value for node in nodes for value in node.outputs}
        taken = {name for node in nodes for name in reads(node.proto)} - own - self.model.constants.keys()
        sources = {self.stages.get(name, -1) for name in taken}
        targets = {reader for value in own for reader in self.readers.get(value, ())} - {number}
        return bool(sources and targets) and all(part > 0 and part % 2 for part in sources | targets)

    def finish(self) -> Imported:
        tensors: dict[str, str] = {}
        ties: dict[str, str] = {}
        magnitudes: dict[str, float] = {}
        orders: dict[str, np.ndarray | None] = {}
        parts = []
        numbers = sorted(self.by_part)
        places = {number: place for place, number in enumerate(numbers)}
        whole = self.model.proto.graph
        known = {value.name: value for value in [*whole.input, *whole.value_info, *whole.output]}
        for number in numbers:
            nodes = self.by_part[number]
            names = [node.name for node in nodes]
            if number % 2:
                model = submodel(self.model, [node.proto for node in nodes], self._needed_outside(number), known)
                part = Part(HOST, names, model=model)
                part.inputs = [Binding(value.name, value.name, None, ()) for value in model.graph.input]
                part.outputs = [Binding(value.name, value.name, None, ()) for value in model.graph.output]
            else:
                graph = self.graphs[number]
                prune(graph.network)
                left = {layer.name for layer in graph.network.layers}
                part = Part(ACCELERATOR, names, graph.network)
                part.inputs = [binding for binding in graph.bindings if binding.tensor in left]
                part.outputs = self.outputs[number]
                tensors.update((k, v) for k, v in graph.tensors.items() if k in left)
                ties.update((k, v) for k, v in graph.ties.items() if k in left)
                magnitudes.update(graph.magnitudes)
                orders.update((k, v) for k, v in graph.orders.items() if k in left)
            parts.append(part)
        left = {layer.name for graph in self.graphs.values() for layer in graph.network.layers}
        for row in self.rows:
            row.part = places[row.number]
            if row.operations and left.isdisjoint(row.operations):
                row.reason = "in the lookup table of a later node"
        self._credit_moves()
        folded = [NodeRow(row.name, row.op, FOLDED, row.reason) for row in self.model.folded]
        return Imported(
            self.model,
            self.config,
            self.precision,
            parts,
            self.rows + folded,
            tensors,
            ties,
            magnitudes,
            orders,
        )

    def _credit_moves(self) -> None:
        """Layers that move elements for a reader are also operations of the nodes that only state the move."""
        rows = {row.name: row for row in self.rows}
        for number, graph in self.graphs.items():
            nodes = self.by_part.get(number, [])
            makers = {name: node for node in nodes for name in node.outputs}
            roots: dict[str, str] = {}
            for layer, source in graph.ties.items():
                roots[layer] = roots.get(source, source)
            for node in nodes:
                own = f"{graph.name(node.outputs[0])}/"
                moves: dict[str, list[str]] = {}
                for move in rows[node.name].operations:
                    if move in roots and move.startswith(own):
                        moves.setdefault(graph.tensors.get(roots[move], roots[move]), []).append(move)
                if moves:
                    _credit(node, moves, makers, rows)


def _credit(
    node: Node, moves: Mapping[str, list[str]], makers: Mapping[str, Node], rows: Mapping[str, NodeRow]
) -> None:
    """``moves``: layers that a node needs to read elements of a value, by this value. They belong to the nodes between
    the two, back to the first that is known to move elements already."""
    behind: dict[str, Node] = {}
    waiting, reached = list(node.inputs), dict(moves)
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is None or maker.name in behind:
            continue
        if rows[maker.name].reason == MOVED:
            behind[maker.name] = maker
            reached |= {name: [move for of in moves.values() for move in of] for name in maker.inputs[:1]}
        elif rows[maker.name].placement == FOLDED:
            behind[maker.name] = maker
            waiting += maker.inputs
    for name, maker in reversed(behind.items()):
        moving = [move for value in maker.inputs if value in reached for move in reached[value]]
        if moving:
            reached |= dict.fromkeys(maker.outputs, moving)
            rows[name].placement, rows[name].reason = ACCELERATOR, MOVED
            rows[name].operations = list(dict.fromkeys([*rows[name].operations, *moving]))


class _Snapshot:
    """State to restore after a failed attempt: the containers of a graph only grow, so their sizes are enough."""

    def __init__(self, graph: Graph) -> None:
        self.layers = graph.network.count
        self.sizes = [len(table) for table in self._growing(graph)]

    def restore(self, graph: Graph) -> None:
        if graph.network.count > self.layers:
            graph.network.layers = graph.network.layers[: self.layers]
        for value, index in reversed(graph.placements[self.sizes[0] :]):
            value.tensor, value.index = None, index
        for table, size in zip(self._growing(graph), self.sizes, strict=True):
            if isinstance(table, list):
                del table[size:]
            else:
                while len(table) > size:
                    table.popitem()

    @staticmethod
    def _growing(graph: Graph) -> tuple[list[Any] | dict[Any, Any], ...]:
        network = graph.network
        tables = graph.placements, network.inputs, graph.bindings, graph.tensors, graph.ties, graph.arranged
        return *tables, graph.values, graph.bound


def prune(network: Network) -> None:
    """Remove layers whose results are not used."""
    needed = {id(tensor) for tensor in network.outputs}
    kept = []
    for layer in reversed(network.layers):
        if id(layer.output) in needed or (layer.kind == "input" and id(layer.output) in needed):
            needed.update(id(tensor) for tensor in layer.inputs)
            kept.append(layer)
    network.layers = kept[::-1]
    network.inputs = [tensor for tensor in network.inputs if id(tensor) in needed]


def _node(proto: ModelProto, model: Model) -> Node:
    import onnx

    attributes = {}
    for attribute in proto.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        attributes[attribute.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return Node(proto.name, proto.op_type, list(proto.input), list(proto.output), attributes, model, proto)


def macs(node: Node) -> int:
    """Multiplications of a convolution or matrix product, 0 for anything else."""
    return multiplications(node.op, node.inputs, node.outputs, node.attributes, node.model.shapes)


def check_host(imported: Imported) -> None:
    """Raise BuildError naming the first node on the host (``--no-host``)."""
    for row in imported.nodes:
        if row.placement == HOST:
            advice = f"; {row.advice}" if row.advice else ""
            error = BuildError(f"node {row.name} ({row.op}) would run on the host: {row.reason}{advice}")
            error.layer = row.name
            raise error


__all__ = ["FormatError", "Imported", "NodeRow", "Part", "check_host", "import_graph"]


def nodes_for_host(model: Model, fresh: set[str], kept: Set[str], failures: int) -> set[str]:
    """The nodes that go to the host after a failure: ``fresh`` alone, after SINGLE_FAILURES with ever more adjacent
    nodes, as each failure costs an import of all nodes."""
    if failures <= SINGLE_FAILURES:
        return fresh
    return _around(model, fresh, kept, 1 << (failures - SINGLE_FAILURES))


def readers(model: Model, nodes: set[str]) -> set[str]:
    """The consumers of these nodes."""
    graph = model.proto.graph.node
    values = {value for node in graph if node.name in nodes for value in node.output}
    return {node.name for node in graph if values & set(reads(node))}


def _around(model: Model, nodes: Set[str], kept: Set[str], count: int) -> set[str]:
    """The nodes, and up to ``count`` nodes around them, in the order of the model, that are not kept on the host: at
    most half of them."""
    names = [node.name for node in model.proto.graph.node if node.name not in kept]
    count = min(count, len(names) // 2)
    first = min((place for place, name in enumerate(names) if name in nodes), default=0)
    begin = max(0, min(first - count // 2, len(names) - count))
    return {*nodes, *names[begin : begin + count]}
