"""Matches between the layers of a model and the operations of a loadable, with their weights and layer files.

Each unit turns the point of what it reads into the point of what it makes, by some layers of the model. Where there is
a choice, what the takers of the result can do decides at once, or the search comes back later. A name is kept with how
sure it is: "weights" (the convolution holds the layer's weights), "structure" (nothing else fits), "order" (several
layers fit alike, and the first was taken).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from nvdla.checks.layers.choices import Flow, Label, LayerChoice, Unit, choices_of, flow_of
from nvdla.checks.layers.graphs import ELEMENTWISE, SILENT, ModelGraph, ModelLayer
from nvdla.errors import NvdlaError
from nvdla.loadable.model import Loadable
from nvdla.program.naming import FORMAT, VERSION
from nvdla.program.operation import Operation
from nvdla.program.parameters import LoadableParameters
from nvdla.program.program import Program
from nvdla.util.arguments import by_annotations
from nvdla.util.escaping import Document

#: mean |cosine| of kernels: of the same weights, quantized and scaled a kernel, it is above 0.99; of others near 0
SAME = 0.8
#: kernels that are looked at, evenly spread
MOST_KERNELS = 64
MOST_ELEMENTS = 1 << 22


class Weights:
    """The weights of a program's convolutions, decoded when asked for."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[int, int], np.ndarray | None] = {}
        self._answers: dict[tuple[int, int, str], bool | None] = {}

    def agree(self, unit: Unit, layer: ModelLayer) -> bool | None:
        """True where a convolution holds a layer's weights, False where it holds others, None if it is unknown."""
        if layer.weights is None or layer.kind != "conv":
            return None
        key = (unit.first.task, unit.first.index, layer.name)
        if key not in self._answers:
            self._answers[key] = self._compared(unit, layer.weights, layer.groups)
        return self._answers[key]

    def _compared(self, unit: Unit, model: np.ndarray, groups: int) -> bool | None:
        ours = self._of(unit.first)
        if ours is None:
            return None
        candidates = _like(model, ours.shape, groups)
        if not candidates:
            return None
        count = len(ours)
        places = _places(len(model), count)
        likeness = max(_likeness(ours, theirs[first : first + count]) for theirs in candidates for first in places)
        if likeness >= SAME:
            return True
        return None if not unit.plain else False

    @cached_property
    def _slots(self) -> dict[str, int]:
        places = {}
        for place, slot in enumerate(self._parameters.slots if self._parameters else ()):
            for name in (slot.name, *slot.metadata.get("shared_with", ())):
                places[name] = place
        return places

    @cached_property
    def _parameters(self) -> LoadableParameters | None:
        try:
            return LoadableParameters(self._program)
        except NvdlaError:  # weights that cannot be decoded are not evidence
            return None

    def _of(self, operation: Operation) -> np.ndarray | None:
        """(K, C, R, S), or None where it has none that can be compared."""
        key = (operation.task, operation.index)
        if key not in self._known:
            self._known[key] = self._decoded(f"task{operation.task}.conv{operation.index}.weights")
        return self._known[key]

    def _decoded(self, name: str) -> np.ndarray | None:
        place = self._slots.get(name)
        if place is None or self._parameters is None:
            return None
        slot = self._parameters.slots[place]
        if slot.metadata.get("transformed") or int(np.prod(slot.shape)) > MOST_ELEMENTS:
            return None
        try:
            return self._parameters.decode(slot)
        except NvdlaError:
            return None


def _places(kernels: int, count: int) -> range:
    """Return where a part of the kernels may begin."""
    return range(0, max(kernels - count, 0) + 1, count)


def _like(model: np.ndarray, shape: tuple[int, ...], groups: int) -> list[np.ndarray]:
    """A layer's weights in the form of a convolution's (C, R, S): groups filled with zeros, inner products cut.

    The elements of an inner product have their channels first, or last (TFLite). A convolution of some of the groups
    has the channels of those alone.
    """
    kernels, channels, *window = model.shape
    wanted = int(np.prod(shape[1:]))
    if channels * int(np.prod(window)) == wanted:
        last = [] if window != [1, 1] else [model.reshape(kernels, *shape[2:], shape[1]).transpose(0, 3, 1, 2)]
        return [model.reshape(kernels, *shape[1:]), *last]
    if tuple(window) != tuple(shape[2:]) or shape[1] % channels or shape[1] > groups * channels or kernels % groups:
        return []
    wide = np.zeros((kernels, shape[1], *window), model.dtype)
    for group in range(groups):
        mine = slice(group * kernels // groups, (group + 1) * kernels // groups)
        first = group * channels % shape[1]
        wide[mine, first : first + channels] = model[mine]
    return [wide]


def _likeness(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Mean |cosine| of kernels; those that are 0 say nothing."""
    if len(ours) != len(theirs):
        return 0.0
    chosen = np.unique(np.linspace(0, len(ours) - 1, min(len(ours), MOST_KERNELS)).astype(int))
    mine, other = (array[chosen].astype(np.float64).reshape(len(chosen), -1) for array in (ours, theirs))
    lengths = np.linalg.norm(mine, axis=1) * np.linalg.norm(other, axis=1)
    some = np.isfinite(lengths) & (lengths > 0)
    return float(np.abs((mine[some] * other[some]).sum(axis=1) / lengths[some]).mean()) if some.any() else 0.0


#: choices that a search may try, and how many units may stay without a name before it gives up
MOST_TRIES = 40_000
MOST_UNKNOWN = 40
MOST_QUESTIONS = 40

#: what a taker of a result asks of the layers after its point
_WANTED = {
    "conv": {"conv", "deconv", "pool"},
    "pdp": {"pool"},
    "cdp": {"norm", "lut"},
    "sdp": set(ELEMENTWISE),
    "cpu": {"cpu"},
    "output": {"output"},
}


@dataclass(frozen=True)
class Recognized:
    """Layers of a model that the operations of a loadable compute.

    Attributes:
        layers: Names of the layers ("conv1+relu1") by (task, operation).
        confidence: Evidence for each name by (task, operation): "weights", "structure" or "order".
        operations: Number of operations of the loadable.
        unused: Names of the layers that compute, but match no operation.
        inside: Operations with an intermediate result of their layer.
        outputs: Layers of the operations that write bound outputs, by the outputs' names.
    """

    layers: dict[tuple[int, int], str]
    confidence: dict[tuple[int, int], str]
    operations: int
    unused: list[str] = field(default_factory=list)
    inside: set[tuple[int, int]] = field(default_factory=set)
    outputs: dict[str, str] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Named operations of all."""
        return len(self.layers) / self.operations if self.operations else 1.0


@by_annotations
def recognize(loadable: Loadable, graph: ModelGraph, config: str = "auto", abi: str = "auto") -> Recognized:
    """Match the operations of a loadable with the layers of a model.

    Args:
        loadable: The loadable.
        graph: Graph of the model (:func:`onnx_graph` or :func:`caffe_graph`).
        config: Name of the configuration, or "auto".
        abi: "auto", "old" or "new".

    Returns:
        The layers of each operation, and the evidence for them.

    Raises:
        NvdlaError: The loadable cannot be decoded.
    """
    program = Program.of(loadable, config, abi)
    flow = flow_of(program)
    search = Search(graph, flow, Weights(program), _input_points(loadable, graph, flow))
    solution = search.best()
    doubtful = search.doubtful(solution) if solution else set()
    layers: dict[tuple[int, int], str] = {}
    confidence: dict[tuple[int, int], str] = {}
    inside: set[tuple[int, int]] = set()
    for number, choice in solution.items():
        if not choice.layers:
            continue
        unit = flow.units[number]
        how = "weights" if choice.checked else "order" if number in doubtful else "structure"
        for operation in unit.operations:
            key = (operation.task, operation.index)
            layers[key] = "+".join(layer.name for layer in choice.layers)
            confidence[key] = how
            if choice.label is not None and choice.label.inside is not None:
                inside.add(key)
    used = {layer.name for choice in solution.values() for layer in choice.layers}
    unused = [layer.name for layer in graph.layers if layer.kind not in SILENT and layer.name not in used]
    count = len({(operation.task, operation.index) for operation in program.operations})
    return Recognized(layers, confidence, count, unused, inside, _outputs(loadable, flow, layers))


def _outputs(loadable: Loadable, flow: Flow, layers: Mapping[tuple[int, int], str]) -> dict[str, str]:
    """The layers of bound outputs that operations of one layer write."""
    bound = {memory.id: loadable.tensor(memory.tensor_desc_id).name for memory in loadable.outputs}
    writers: dict[str, set[str | None]] = {}
    for value in flow.values.values():
        if value.memory in bound and value.kind == "output" and value.writer is not None:
            task, _, index = value.writer
            writers.setdefault(bound[value.memory], set()).add(layers.get((task, index)))
    return {name: layer for name, labels in writers.items() if len(labels) == 1 and (layer := next(iter(labels)))}


def _input_points(loadable: Loadable, graph: ModelGraph, flow: Flow) -> dict[int, int]:
    """Value id of what is in a bound input -> its point: by name, else by position."""
    memories = {}
    for place, memory in enumerate(loadable.inputs):
        name = loadable.tensor(memory.tensor_desc_id).name
        points = list(graph.inputs.values())
        memories[memory.id] = graph.inputs.get(name, points[place] if place < len(points) else None)
    return {
        value.id: point
        for value in flow.values.values()
        if value.kind == "input" and (point := memories.get(value.memory)) is not None
    }


class Search:
    """Depth first over the units in their order."""

    def __init__(self, graph: ModelGraph, flow: Flow, weights: Weights, inputs: dict[int, int]) -> None:
        self.graph, self.flow, self.weights = graph, flow, weights
        self.start = {value: Label(point) for value, point in inputs.items()}
        self.deepest = 0
        self._contested: set[int] = set()

    def best(self) -> dict[int, LayerChoice]:
        """Choices by unit: all of them; else those that remain where some units are left unknown, fewest first."""
        unknown: set[int] = set()
        for complete in (True, False):
            for _ in range(MOST_UNKNOWN if not complete else 1):
                solution = self.solve(unknown, complete=complete)
                if solution is not None:
                    return solution
                if not complete:
                    unknown.add(self.deepest)
        return {}

    def solve(
        self, unknown: set[int], barred: tuple[int, Sequence[ModelLayer]] | None = None, complete: bool = True
    ) -> dict[int, LayerChoice] | None:
        """A choice for every unit but the unknown, or None. ``barred``: layers that one unit must not take;
        ``complete``: every layer that computes must be found."""
        units = self.flow.units
        labels: dict[int, Label | None] = {**self.start}
        taken: dict[tuple[str, tuple[int, ...]], int] = {}
        chosen: list[LayerChoice] = []
        pending = [self._choices(0, labels, unknown, barred, taken)] if units else []
        tried, self.deepest = 0, 0
        while pending:
            choice = next(pending[-1], None)
            if choice is None:
                pending.pop()
                if chosen:
                    self._undo(chosen.pop(), units[len(pending) - 1], labels, taken)
                continue
            tried += 1
            if tried > MOST_TRIES:
                return None
            self._do(choice, units[len(pending) - 1], labels, taken)
            chosen.append(choice)
            self.deepest = max(self.deepest, min(len(chosen), len(units) - 1))
            if len(chosen) < len(units):
                pending.append(self._choices(len(chosen), labels, unknown, barred, taken))
            elif not complete or self._all_found(chosen):
                return dict(enumerate(chosen))
            else:
                self._undo(chosen.pop(), units[len(pending) - 1], labels, taken)
        return {} if not units else None

    def doubtful(self, solution: dict[int, LayerChoice]) -> set[int]:
        """Units whose layers might be others: where a choice can be made otherwise, and all still fits."""
        doubtful: set[int] = set()
        asked = 0
        for number, choice in solution.items():
            rivals = number in self._contested and not choice.checked and bool(choice.layers)
            if not rivals or asked >= MOST_QUESTIONS:
                continue
            asked += 1
            other = self.solve(set(), (number, choice.layers), complete=True)
            for place, alternative in (other or {}).items():
                if [layer.name for layer in alternative.layers] != [layer.name for layer in solution[place].layers]:
                    doubtful.add(place)
        return doubtful

    def _choices(
        self,
        number: int,
        labels: dict[int, Label | None],
        unknown: set[int],
        barred: tuple[int, Sequence[ModelLayer]] | None,
        taken: dict[tuple[str, tuple[int, ...]], int],
    ) -> Iterator[LayerChoice]:
        """Choices that a unit can take here, the likeliest first."""
        unit = self.flow.units[number]
        if number in unknown:
            yield LayerChoice((), None)
            return
        choices = [
            choice
            for choice in choices_of(unit, self.graph, labels)
            if self._fits_takers(unit, choice)
            and (barred is None or barred[0] != number or choice.layers != tuple(barred[1]))
            and (not choice.covers or (choice.layers[0].name, unit.source) not in taken)
        ]
        checked = []
        for choice in choices:
            match = self.weights.agree(unit, choice.layers[0]) if choice.layers and unit.kind == "conv" else None
            if match is None or match:
                checked.append(replace(choice, checked=bool(match)))
        if len(checked) > 1:
            self._contested.add(number)
        checked.sort(key=lambda choice: not choice.checked)
        yield from checked

    def _fits_takers(self, unit: Unit, choice: LayerChoice) -> bool:
        """Check whether those who take the result find a layer after its point that is theirs."""
        label = choice.label
        if label is None:
            return True
        kinds = self.graph.kinds_after(label.point)
        for value in unit.written:
            for kind, role in self.flow.takers.get(value, ()):
                if label.inside is not None:
                    if kind not in ("sdp", "rubik", "bdma"):
                        return False
                elif role == "operand":
                    if "eltwise" not in kinds:
                        return False
                elif kind in _WANTED and not _WANTED[kind] & kinds and not self._may_copy(kind):
                    return False
        return True

    def _may_copy(self, kind: str) -> bool:
        """An SDP may only copy, for a join of channels."""
        return kind == "sdp" and any(unit.features.copies and not unit.others for unit in self.flow.units)

    def _all_found(self, chosen: Sequence[LayerChoice]) -> bool:
        used = {layer.name for choice in chosen for layer in choice.layers}
        return all(layer.kind in SILENT or layer.name in used for layer in self.graph.layers)

    @staticmethod
    def _do(
        choice: LayerChoice, unit: Unit, labels: dict[int, Label | None], taken: dict[tuple[str, tuple[int, ...]], int]
    ) -> None:
        for value in unit.written:
            labels[value] = choice.label
        if choice.covers:
            taken[choice.layers[0].name, unit.source] = 1

    @staticmethod
    def _undo(
        choice: LayerChoice, unit: Unit, labels: dict[int, Label | None], taken: dict[tuple[str, tuple[int, ...]], int]
    ) -> None:
        for value in unit.written:
            labels.pop(value, None)
        if choice.covers:
            taken.pop((choice.layers[0].name, unit.source), None)


def layer_file(
    program: Program,
    network: str,
    recognized: Recognized,
    scales: Mapping[str, float],
    before: Mapping[str, Any] | None,
) -> Document:
    """A layer file's document. ``scales``: real value of one unit by tensor; ``before``: the layer file that was there,
    whose tensors and preprocessing stay."""
    known = dict(before or {})
    tensors = dict(known.get("tensors") or {})
    for name, scale in scales.items():
        tensors[name] = {**tensors.get(name, {}), "scale": scale}
    outputs = {name: layer for name, layer in recognized.outputs.items() if layer != name}
    precision = next((operation.precision for operation in program.operations if operation.precision), None)
    return {
        **known,
        "format": FORMAT,
        "version": VERSION,
        "network": network,
        "config": program.config.name,
        "precision": (precision or "").partition(" ")[0].lower(),
        "tensors": tensors,
        **({"outputs": outputs} if outputs else {}),
        "tasks": [_task(program, task, recognized) for task in program.submitted],
    }


def _task(program: Program, task: int, recognized: Recognized) -> Document:
    named = {
        operation.index: {
            "index": operation.index,
            "engine": operation.engine,
            "layer": recognized.layers[task, operation.index],
            "part": "",
            "confidence": recognized.confidence[task, operation.index],
            **({"writes": {"tensor": None}} if (task, operation.index) in recognized.inside else {}),
        }
        for operation in program.operations
        if operation.task == task and (task, operation.index) in recognized.layers
    }
    kind = "cpu" if task in program.cpu_tasks else "dla"
    return {"task": task, "kind": kind, "operations": list(named.values())}
