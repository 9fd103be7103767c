"""Caffe networks as ONNX models for the front end: the reader of nvdla.caffe, with weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.caffe import read_network, read_weights
from nvdla.caffe.conversion import convert
from nvdla.caffe.network import CaffeNetwork
from nvdla.caffe.text import one_line
from nvdla.errors import FormatError
from nvdla.files import read_file

MAX_FILE = 2 << 30


def caffe_proto(
    onnx: Any, path: Path, weights: str | os.PathLike[str] | None, shapes: Mapping[str, Sequence[int]]
) -> tuple[str, Any, str]:
    """(name, ModelProto, sha256 of both files) of a .prototxt with its .caffemodel.

    The batch is 1 unless ``shapes`` says otherwise. Values carry the names of the layers that make them.
    """
    if weights is None:
        raise FormatError(f"{path}: a Caffe network needs its weights (--weights FILE.caffemodel)")
    network = read_network(path, read_weights(weights))
    with np.errstate(all="ignore"):  # weights of a broken file may be infinite
        made = convert(onnx, network, _inputs(network, shapes))
    names = {value: layer for layer, value in made.names.items()}
    _rename(made.model.graph, names, made.ends)
    digest = hashlib.sha256(read_file(path, MAX_FILE) + read_file(weights, MAX_FILE)).hexdigest()
    # Outputs of a converted network have names alone; a model that others check has types and shapes.
    return path.stem, onnx.shape_inference.infer_shapes(made.model), digest


def _inputs(network: CaffeNetwork, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    found = {}
    for name, shape in network.inputs.items():
        chosen = tuple(shapes[name]) if name in shapes else None if shape is None else (1, *shape[1:])
        if chosen is None or any(size <= 0 for size in chosen):
            raise FormatError(
                f"{network.file}: input {one_line(name)} has no shape; fix it with --shape {one_line(name)}=1,3,224,224"
            )
        found[name] = chosen
    return found


def _rename(graph: Any, names: Mapping[str, str], ends: Sequence[str]) -> None:
    """Leave out the Identity behind every layer and give its result the layer's name."""
    users: dict[str, int] = {}
    for node in graph.node:
        for value in node.input:
            users[value] = users.get(value, 0) + 1
    makers = {value: node for node in graph.node for value in node.output}
    new = dict(names)
    kept = []
    for node in graph.node:
        source = node.input[0] if node.input else ""
        if node.op_type == "Identity" and node.output[0] in names and source in makers and users[source] == 1:
            new[source] = names[node.output[0]]
        else:
            kept.append(node)
    for node in kept:
        node.input[:] = [new.get(value, value) for value in node.input]
        node.output[:] = [new.get(value, value) for value in node.output]
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)
    outputs = [type(each).FromString(each.SerializeToString()) for each in graph.output if each.name in ends]
    for each in outputs:
        each.name = new.get(each.name, each.name)
    del graph.output[:]
    graph.output.extend(outputs)
