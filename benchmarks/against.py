"""Networks that NVIDIA's compiler has compiled: their loadables, and the same networks by this compiler.

Sources are in ../shared/corpus/loadables: prototxt, calibration table, weights (seeded ones where they were left out).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from same_function import KERNEL, OTHERWISE, STEPS, UNITS, as_theirs, means_in_steps_of_the_input, with_waits

import nvdla
from nvdla.analysis.cycles.constants import Memory
from nvdla.analysis.study import Study
from nvdla.compiler.caffe import conversion, layers, read_network
from nvdla.compiler.caffe.network import CaffeNetwork
from nvdla.compiler.frontend.loading import caffe_proto
from nvdla.errors import BuildError, NvdlaError
from nvdla.loadable.enums import MemoryDomain
from nvdla.loadable.model import Loadable

CORPUS = Path(__file__).resolve().parents[1] / ".." / "shared" / "corpus" / "loadables"


@dataclass(frozen=True)
class Pair:
    """A network on one configuration. ``theirs``: cycles of NVIDIA's fastest loadable, called ``combination``;
    ``ours`` None: not built, and why. ``otherwise``: what both compute instead of the network's function, for which
    ``exact`` are our cycles; ``waits``: how many it lacks, with which ``theirs`` are counted."""

    network: str
    config: str
    precision: str
    batch: int
    combination: str
    theirs: int
    ours: int | None
    why: str = ""
    otherwise: str = ""
    exact: int | None = None
    waits: int = 0

    @property
    def ratio(self) -> float:
        """Our cycles to theirs."""
        return (self.ours or 0) / self.theirs


def cycles(loadable: Loadable, config: str, memory: Memory | None = None) -> int:
    """Total cycles of ``nvdla cycles``."""
    return Study.of(loadable, config, memory=memory or Memory()).schedule.cycles


def pairs(chosen: set[str]) -> Iterator[Pair]:
    """Every network (of ``chosen``, where that is not empty), configuration, precision and batch of the corpus that
    runs; NVIDIA's loadable is the fastest of all its profiles."""
    found: dict[tuple[str, str, str, int], list[dict[str, Any]]] = {}
    for case in json.loads((CORPUS / "manifest.json").read_text())["cases"]:
        source = CORPUS / case["network"] / "net.prototxt"
        if case["expect"] == "ok" and source.exists() and (not chosen or case["network"] in chosen):
            key = case["network"], case["config"], case["precision"], case["batch"]
            found.setdefault(key, []).append(case)
    for (network, config, precision, batch), cases in sorted(found.items()):
        theirs, best, waits = _fastest(config, [CORPUS / case["path"] for case in cases if case["tasks"]])
        room = sum(memory.size for memory in nvdla.load(best).memories if memory.domain == MemoryDomain.SRAM)
        otherwise, exact, ours, why = OTHERWISE.get((network, precision), ""), None, None, ""
        try:
            ours = cycles(built(network, config, precision, batch, room), config)
            if otherwise:
                exact, ours = ours, cycles(built(network, config, precision, batch, room, otherwise), config)
        except NvdlaError as error:
            why = str(error).replace(f"{CORPUS}/", "")
        yield Pair(network, config, precision, batch, best.stem, theirs, ours, why, otherwise, exact, waits)


def _fastest(config: str, paths: list[Path]) -> tuple[int, Path, int]:
    """Cycles of the fastest of NVIDIA's loadables with all waits that they need, which it is, and how many it lacks."""
    found = []
    for path in paths:
        loadable, waits = with_waits(nvdla.load(path), config)
        found.append((cycles(loadable, config), path, waits))
    return min(found, key=lambda each: each[0])


def built(network: str, config: str, precision: str, batch: int, cvsram: int = 0, otherwise: str = "") -> Loadable:
    """The network by this compiler, with as much CVSRAM; ``otherwise``: what NVIDIA's loadable computes instead of it
    (OTHERWISE).

    Raises NvdlaError where a part of it would run on the host.
    """
    folder = CORPUS / network
    weights = folder / "net.caffemodel"
    shapes = shapes_of(read_network(folder / "net.prototxt"), batch)
    settings: dict[str, Any] = {"cvsram": cvsram}
    data = None
    if precision != "fp16":
        random = np.random.default_rng(3)
        data = {name: random.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
        settings |= {"per_channel": False, "bias_correction": False}  # as NVIDIA's loadables
    if otherwise in (KERNEL, UNITS):
        import onnx

        model = caffe_proto(onnx, folder / "net.prototxt", weights, shapes)[1]
        source: Any = as_theirs(onnx, model, None if data is None else next(iter(data.values())))
    elif weights.exists():
        source = folder / "net.prototxt"
        settings |= {"weights": weights, "shapes": shapes}
    else:
        source = seeded(network, batch)
    with means_in_steps_of_the_input() if otherwise == STEPS else nullcontext():
        made = nvdla.compile(source, config, precision, data, host=False, method="max", **settings)
    if made.loadable is None:
        raise BuildError(f"{network}: no part of it runs on the accelerator")
    return made.loadable


@cache
def seeded(network: str, batch: int) -> Any:
    """The ONNX model of a prototxt whose weights were left out: seeded ones of He's scale."""
    import onnx

    random = np.random.default_rng(5)

    def blob(layer: Any, index: int, _count: int, shape: tuple[int, ...], _what: str) -> np.ndarray:
        if layer.type in ("BatchNorm", "Scale"):  # mean and shift 0, variance and factor 1
            one = index > 0 if layer.type == "BatchNorm" else index == 0
            return np.full(shape, one, np.float32)
        fan = math.prod(shape[1:])
        return (random.standard_normal(shape) * math.sqrt(2 / fan)).astype(np.float32)

    source = read_network(CORPUS / network / "net.prototxt")
    with mock.patch.object(layers, "_blob", blob):
        made = conversion.convert(onnx, source, shapes_of(source, batch))
    outputs = [onnx.ValueInfoProto(name=name) for name in made.ends]
    del made.model.graph.output[:]
    made.model.graph.output.extend(outputs)
    return onnx.shape_inference.infer_shapes(made.model)


def shapes_of(source: CaffeNetwork, batch: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the inputs for so many images."""
    return {name: (batch, *shape[1:]) for name, shape in source.inputs.items() if shape}


def geometric_mean(found: list[Pair]) -> float:
    """Mean ratio of the networks that were built."""
    logs = [math.log(pair.ratio) for pair in found if pair.ours]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
