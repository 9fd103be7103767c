"""Matching: a search that walks along the data and gives every value of the loadable a point of the model.

Each unit turns the point of what it reads into the point of what it makes, by some layers of the model. Where there is
a choice, what the takers of the result can do decides at once, or the search comes back later. A name is kept with how
sure it is: "weights" (the convolution holds the layer's weights), "structure" (nothing else fits), "order" (several
layers fit alike, and the first was taken).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from nvdla.argument_kinds import by_annotations
from nvdla.loadable.model import Loadable
from nvdla.program.program import Program
from nvdla.recognition.choices import Label, LayerChoice, choices_of
from nvdla.recognition.model_graph import ELEMENTWISE, SILENT, ModelGraph, ModelLayer
from nvdla.recognition.units import Flow, Unit, flow_of
from nvdla.recognition.weights import Weights

#: choices that a search may try, and how many units may stay without a name before it gives up
MOST_TRIES = 40_000
MOST_UNKNOWN = 40
MOST_QUESTIONS = 40

#: what a taker of a result asks of the layers behind its point
_WANTED = {
    "conv": {"conv", "deconv", "pool"},
    "pdp": {"pool"},
    "cdp": {"norm"},
    "sdp": set(ELEMENTWISE),
    "cpu": {"cpu"},
    "output": {"output"},
}


@dataclass(frozen=True)
class Recognised:
    """``layers``: (task, operation) -> "conv1+relu1"; ``confidence``: of each, "weights", "structure" or "order";
    ``operations``: how many there are; ``unused``: layers of the model that compute and were not found."""

    layers: dict[tuple[int, int], str]
    confidence: dict[tuple[int, int], str]
    operations: int
    unused: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Named operations of all."""
        return len(self.layers) / self.operations if self.operations else 1.0


@by_annotations
def recognise(loadable: Loadable, graph: ModelGraph, config: str = "auto", abi: str = "auto") -> Recognised:
    """Which layers of the model every operation of a loadable does. Raises NvdlaError for what cannot be decoded."""
    program = Program.of(loadable, config, abi)
    flow = flow_of(program)
    search = Search(graph, flow, Weights(program), _input_points(loadable, graph, flow))
    found = search.best()
    doubtful = search.doubtful(found) if found else set()
    layers: dict[tuple[int, int], str] = {}
    confidence: dict[tuple[int, int], str] = {}
    for number, choice in found.items():
        if not choice.layers:
            continue
        unit = flow.units[number]
        how = "weights" if choice.checked else "order" if number in doubtful else "structure"
        for operation in unit.operations:
            key = (operation.task, operation.index)
            layers[key] = "+".join(layer.name for layer in choice.layers)
            confidence[key] = how
    used = {layer.name for choice in found.values() for layer in choice.layers}
    unused = [each.name for each in graph.layers if each.kind not in SILENT and each.name not in used]
    count = len({(each.task, each.index) for each in program.operations})
    return Recognised(layers, confidence, count, unused)


def _input_points(loadable: Loadable, graph: ModelGraph, flow: Flow) -> dict[int, int]:
    """Value id of what lies in a bound input -> its point: by name, else by position."""
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
                found = self.solve(unknown, complete=complete)
                if found is not None:
                    return found
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

    def doubtful(self, found: dict[int, LayerChoice]) -> set[int]:
        """Units whose layers might be others: where a choice can be made otherwise, and all still fits."""
        doubtful: set[int] = set()
        asked = 0
        for number, choice in found.items():
            rivals = number in self._contested and not choice.checked and bool(choice.layers)
            if not rivals or asked >= MOST_QUESTIONS:
                continue
            asked += 1
            other = self.solve(set(), (number, choice.layers), complete=True)
            for place, each in (other or {}).items():
                if [layer.name for layer in each.layers] != [layer.name for layer in found[place].layers]:
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
        found = [
            choice
            for choice in choices_of(unit, self.graph, labels)
            if self._fits_takers(unit, choice)
            and (barred is None or barred[0] != number or choice.layers != tuple(barred[1]))
            and (not choice.covers or (choice.layers[0].name, unit.source) not in taken)
        ]
        checked = []
        for choice in found:
            match = self.weights.agree(unit, choice.layers[0]) if choice.layers and unit.kind == "conv" else None
            if match is None or match:
                checked.append(replace(choice, checked=bool(match)))
        if len(checked) > 1:
            self._contested.add(number)
        checked.sort(key=lambda choice: not choice.checked)
        yield from checked

    def _fits_takers(self, unit: Unit, choice: LayerChoice) -> bool:
        """Whether those who take the result find a layer behind its point that is theirs."""
        label = choice.label
        if label is None:
            return True
        kinds = self.graph.kinds_behind(label.point)
        for value in unit.made:
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
        return all(each.kind in SILENT or each.name in used for each in self.graph.layers)

    @staticmethod
    def _do(
        choice: LayerChoice, unit: Unit, labels: dict[int, Label | None], taken: dict[tuple[str, tuple[int, ...]], int]
    ) -> None:
        for value in unit.made:
            labels[value] = choice.label
        if choice.covers:
            taken[choice.layers[0].name, unit.source] = 1

    @staticmethod
    def _undo(
        choice: LayerChoice, unit: Unit, labels: dict[int, Label | None], taken: dict[tuple[str, tuple[int, ...]], int]
    ) -> None:
        for value in unit.made:
            labels.pop(value, None)
        if choice.covers:
            taken.pop((choice.layers[0].name, unit.source), None)
