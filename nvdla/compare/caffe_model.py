"""A Caffe network as the source of float tensors: every layer's result, by name, through onnxruntime."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import numpy as np

from nvdla.caffe.conversion import convert
from nvdla.caffe.network import CaffeNetwork, read_network
from nvdla.caffe.text import one_line
from nvdla.caffe.weights import read_weights
from nvdla.compare.onnx_model import modules, run_model, without_spare_channels
from nvdla.errors import FormatError, shape_text


def caffe_tensors(
    prototxt: str | os.PathLike[str],
    caffemodel: str | os.PathLike[str] | None,
    inputs: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(tensors, blobs): inputs, the results of all layers in their order by layer name, then blobs that no layer is
    named after; and all blobs by their own names, with what was written to them last.

    A blob that several layers write (a ReLU in place) is a tensor under each layer's name with what that layer wrote.
    Without ``caffemodel`` a network may have no weights. ``inputs``: float arrays (N, C, H, W) by input name; with one
    input any name will do. Raises FormatError for files that cannot be read or run, and when onnxruntime is missing.
    """
    onnx, runtime = modules("a Caffe network")
    network = read_network(prototxt, None if caffemodel is None else read_weights(caffemodel))
    feeds = _feeds(network, inputs)
    with np.errstate(all="ignore"):  # weights of a broken file may be infinite
        converted = convert(onnx, network, {name: array.shape for name, array in feeds.items()})
    found = run_model(runtime, converted.model, feeds, os.fspath(prototxt))
    blobs = {name: found[value] for name, value in converted.blobs.items()}
    tensors = feeds | {name: found[value] for name, value in converted.names.items()}
    return tensors | {name: array for name, array in blobs.items() if name not in tensors}, blobs


def _feeds(network: CaffeNetwork, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our inputs under the network's names and in its shapes; the batch is ours."""
    if len(network.inputs) != len(inputs):
        names = one_line(", ".join(network.inputs)) or "none"
        raise FormatError(
            f"{network.file}: the network has {len(network.inputs)} inputs ({names}), the loadable {len(inputs)}"
        )
    by_order, feeds = list(inputs.values()), {}
    for place, (name, shape) in enumerate(network.inputs.items()):
        array = inputs.get(name, by_order[place])
        if shape is not None and len(shape) == 4:
            array = without_spare_channels(array, shape[1])
        if shape is None or shape[1:] == array.shape[1:]:
            feeds[name] = array
        elif any(size <= 0 for size in shape) or math.prod(shape[1:]) != math.prod(array.shape[1:]):
            theirs, ours = (shape_text(each) for each in (shape, array.shape))
            raise FormatError(f"{network.file}: input {one_line(name)} is {theirs}, that of the loadable {ours}")
        else:
            feeds[name] = array.reshape(array.shape[0], *shape[1:])
    return feeds
