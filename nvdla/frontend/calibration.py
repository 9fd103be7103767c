"""The float model's values in onnxruntime, and the magnitudes of builder tensors from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from nvdla.builder import Calibration, floating
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


def part_inputs(part: Part, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cubes (1, C, H, W) for the inputs of an accelerator part, from ONNX values."""
    cubes = {}
    for each in part.inputs:
        flat = np.asarray(values[each.value], np.float64).ravel()
        cubes[each.tensor] = (flat if each.index is None else flat[each.index.ravel()]).reshape(1, *each.shape)
    return cubes


def inner_tensors(imported: Imported) -> list[str]:
    """Builder tensors that are neither an ONNX value nor tied to one: inner steps of a node."""
    known = set(imported.tensors) | set(imported.ties)
    return [
        layer.name
        for network in imported.networks
        for layer in network.layers
        if layer.name not in known and layer.kind != "constant"
    ]


def tensor_values(imported: Imported, feeds: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """For each feed: builder tensor -> its real numbers, flat. Inner steps come from the builder's float form."""
    wanted = list(imported.tensors.values())
    wanted += [name for part in imported.parts if part.network is not None for name in part.takes]
    model = FloatModel(imported, wanted)
    inner = set(inner_tensors(imported))
    for feed in feeds:
        values = model.run(feed)
        found = {tensor: np.asarray(values[value]).ravel() for tensor, value in imported.tensors.items()}
        for part in imported.parts:
            if part.network is not None and any(layer.name in inner for layer in part.network.layers):
                made = floating.run(part.network, part_inputs(part, values))
                found.update((name, made[name].ravel()) for name in inner if name in made)
        yield found


def with_ties(imported: Imported, magnitudes: Mapping[str, float]) -> Calibration:
    """Magnitudes of all tensors: tied ones take that of the tensor whose elements they hold."""
    found = {**magnitudes, **imported.magnitudes}
    for name, source in imported.ties.items():
        found[name] = found[source]
    return Calibration({name: value if value > 0 else 1.0 for name, value in found.items()})


def largest(imported: Imported, feeds: Iterable[Mapping[str, np.ndarray]]) -> Calibration:
    """The largest magnitude of every tensor over all samples."""
    magnitudes: dict[str, float] = {}
    for values in tensor_values(imported, feeds):
        for name, array in values.items():
            magnitudes[name] = max(magnitudes.get(name, 0.0), float(np.abs(array).max(initial=0.0)))
    return with_ties(imported, magnitudes)
