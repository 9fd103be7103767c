"""What every tensor of a builder network holds in the float model: values from onnxruntime, sample by sample.

The model runs with those values as outputs that an operation of the hardware ends with; steps within one node of the
model, and copies in another order, are computed from them by the builder's own float forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from nvdla.builder.floating import evaluate
from nvdla.builder.groups import group_layers
from nvdla.errors import FormatError
from nvdla.frontend.importer import Imported, Part
from nvdla.frontend.model import one_line, session


class FloatModel:
    """The float model in onnxruntime with chosen inner values as outputs."""

    def __init__(self, imported: Imported, values: Iterable[str], threads: int | None = None) -> None:
        import onnx

        self.name = imported.model.name
        proto = onnx.ModelProto()
        proto.CopyFrom(imported.model.proto)
        graph = proto.graph
        inputs = set(imported.model.inputs)
        self.values = [name for name in dict.fromkeys(values) if name not in inputs]
        known = {each.name: each for each in [*graph.value_info, *graph.output]}
        wanted = [known.get(name) or onnx.ValueInfoProto(name=name) for name in self.values]
        copies = [onnx.ValueInfoProto.FromString(each.SerializeToString()) for each in wanted]
        del graph.output[:]
        graph.output.extend(copies)
        # Old models list initializers as inputs too, which keeps onnxruntime from folding them.
        ends = [each for each in graph.input if each.name in inputs]
        del graph.input[:]
        graph.input.extend(ends)
        self.session = session(proto, self.name, threads=threads) if self.values else None

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs and the chosen values."""
        found = dict(feed)
        if self.session is not None:
            try:
                found.update(zip(self.values, self.session.run(self.values, dict(feed)), strict=True))
            except Exception as error:  # onnxruntime raises kinds of its own
                raise FormatError(f"{self.name}: onnxruntime cannot run it: {one_line(error)}") from None
        return found


class Activations:
    """Values (1, C, H, W) of the tensors of one accelerator part, by name: of its inputs and of the last layer of every
    group that the hardware computes at once."""

    def __init__(self, imported: Imported, part: Part) -> None:
        self.imported, self.part = imported, part
        self.network = part.layers
        self.ends = {group.output.name for group in group_layers(self.network)}
        self._given = {name for name in self.ends if self._is_value(name)}
        self._computed = self._plan()
        needed = {tensor.name for tensor in self.network.inputs} | self._given
        needed -= {each.tensor for each in part.inputs}
        self._model = FloatModel(
            imported, [*(each.value for each in part.inputs), *(imported.tensors[name] for name in sorted(needed))]
        )

    def _is_value(self, name: str) -> bool:
        """Whether a tensor holds the elements of one ONNX value in an order that is known."""
        imported = self.imported
        if name not in imported.tensors or name not in imported.orders:
            return False
        size = int(np.prod(imported.model.shapes.get(imported.tensors[name], (0,))))
        return size == int(np.prod(self.network.layer(name).output.shape))

    def _plan(self) -> list[str]:
        """Layers to compute here, in order: ends that are no values, and what they need."""
        known = self._given | {tensor.name for tensor in self.network.inputs}
        needed: set[str] = set()
        for layer in reversed(self.network.layers):
            if layer.kind != "input" and layer.name not in known and (layer.name in self.ends | needed):
                needed.add(layer.name)
                needed.update(tensor.name for tensor in layer.inputs)
        return [layer.name for layer in self.network.layers if layer.name in needed - known]

    def values(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All values for one feed of the model."""
        found = self._model.run(feed)
        cubes = {}
        for each in self.part.inputs:
            flat = np.asarray(found[each.value], np.float32).ravel()
            cubes[each.tensor] = (flat if each.index is None else flat[each.index.ravel()]).reshape(1, *each.shape)
        for name in self._given:
            cubes[name] = self._cube(name, found[self.imported.tensors[name]])
        for name in self._computed:
            layer = self.network.layer(name)
            cubes[name] = np.asarray(evaluate(layer, *(cubes[tensor.name] for tensor in layer.inputs)))
        return {name: cubes[name] for name in cubes if name in self.ends or self.network.layer(name).kind == "input"}

    def _cube(self, name: str, value: np.ndarray) -> np.ndarray:
        shape, order = self.network.layer(name).output.shape, self.imported.orders[name]
        flat = np.asarray(value, np.float32).ravel()
        if order is not None:
            cube = np.empty_like(flat)
            cube[order.ravel()] = flat
            flat = cube
        return flat.reshape(1, *shape)

    def batches(self, feeds: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        """The values for one feed after the other; the next ones are computed while the caller works on these."""
        with ThreadPoolExecutor(1) as ahead:
            waiting: Future[dict[str, np.ndarray]] | None = None
            for feed in feeds:
                ready, waiting = waiting, ahead.submit(self.values, feed)
                if ready is not None:
                    yield ready.result()
            if waiting is not None:
                yield waiting.result()
