"""Layer names on networks of NVIDIA's compiler: how many are found, and whether what an operation writes is what the
layer that it is named after makes (in the float reference of every layer)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.golden import LOADABLES, inputs_of, manifest, runtime_of

import nvdla
from nvdla.checks.compare.comparison import Observation, Observer
from nvdla.checks.layers import ModelGraph, caffe_graph, recognize

pytestmark = pytest.mark.skipif(not LOADABLES.is_dir(), reason="the corpus of NVIDIA's loadables is not here")
#: a cosine above which a tensor is the layer's, and by how much another layer must be nearer to be the right one
NEAR, CLEARLY = 0.97, 0.02


def networks() -> list[str]:
    return sorted({case["network"] for case in manifest(LOADABLES)})


def graphs(network: str) -> Iterator[ModelGraph]:
    """The model without weights, and with them where they are there."""
    folder = LOADABLES / network
    yield caffe_graph(folder / "net.prototxt")
    if (folder / "net.caffemodel").exists():
        yield caffe_graph(folder / "net.prototxt", folder / "net.caffemodel")


@pytest.mark.slow
@pytest.mark.parametrize("network", networks())
def test_95_of_100_operations_have_names(network):
    for graph in graphs(network):
        for path in sorted((LOADABLES / network).glob("*.nvdla")):
            found = recognize(nvdla.load(path), graph)
            assert found.share >= 0.95, path.name
            assert not found.unused, path.name


@pytest.mark.parametrize("network", ["resnet50", "lenet", "eltwise_proj_block", "concat3_conv", "deconv_k3s3"])
def test_known_networks_are_named_throughout(network):
    path = min((LOADABLES / network).glob("*.nvdla"))
    found = recognize(nvdla.load(path), next(graphs(network)))
    assert found.share == 1 and "order" not in found.confidence.values()


def with_reference() -> list[str]:
    """Networks with a float reference of every layer."""
    return [name for name in networks() if (LOADABLES / name / "reference.npz").exists()]


@pytest.mark.slow
@pytest.mark.parametrize("network", with_reference())
def test_what_an_operation_writes_is_what_its_layer_makes(network):
    """Cosines of what was written, with every layer's float tensor: no other layer is clearly nearer than the named."""
    references = {name: each for name, each in np.load(LOADABLES / network / "reference.npz").items() if each.ndim == 4}
    graph = next(graphs(network))
    wrong = []
    for case in manifest(LOADABLES):
        if case["network"] != network or case["expect"] != "ok" or case.get("batch", 1) != 1:
            continue
        runtime = runtime_of(case)
        found = recognize(runtime.loadable, graph)
        observer = Observer(runtime.program(found.layers))
        runtime.run_raw(inputs_of(case), on_operation=observer.see)
        wrong += [(case["path"], str(each), each.layer) for each in observer.observations if misnamed(each, references)]
    assert not wrong


def misnamed(observation: Observation, references: dict[str, np.ndarray]) -> bool:
    """Whether another layer's tensor is clearly nearer to what an operation wrote."""
    if observation.surface is None or observation.layer is None:
        return False
    angles = {name: nearest(observation.tensor, each) for name, each in references.items()}
    own = angles.get(observation.layer.split("+")[-1])
    best = max((each for each in angles.values() if each is not None), default=None)
    return own is not None and best is not None and own < NEAR and best > own + CLEARLY


def nearest(tensor: np.ndarray, reference: np.ndarray) -> float | None:
    """The greatest cosine of a tensor with as many rows of a layer's; None where the shapes do not fit."""
    rows, all_rows = tensor.shape[2], reference.shape[2]
    if (tensor.shape[1], tensor.shape[3]) != (reference.shape[1], reference.shape[3]) or rows > all_rows:
        return None
    return max(cosine(tensor, reference[:, :, row : row + rows]) for row in range(all_rows - rows + 1))


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    one, other = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    norm = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / norm) if norm and np.isfinite(norm) else 0.0
