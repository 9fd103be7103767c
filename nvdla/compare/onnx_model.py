"""An ONNX model as the source of float tensors: every value of its graph, by name, through onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.errors import FormatError
from nvdla.files import read_file
from nvdla.program.naming import Names
from nvdla.tensors.real import to_real

if TYPE_CHECKING:
    from nvdla.runtime import Runtime

MAX_MODEL = 2 << 30
PIXEL_CHANNELS = 4


def onnx_tensors(path: str | os.PathLike[str], inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs and all values of the model's graph in the order of its nodes, by value name and by node name.

    ``inputs``: float arrays (N, C, H, W) by input name; with one input any name will do. Raises FormatError for a model
    that cannot be read or run, and when onnxruntime is not installed.
    """
    onnx, runtime = modules("an ONNX model")
    name = os.fspath(path)
    data = read_file(path, MAX_MODEL, "ONNX model")
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf raises kinds of its own
        raise FormatError(
            f"{name}: not an ONNX model, or damaged (cut off?): {' '.join(str(error).split())[:300]}"
        ) from None
    _ask_for_everything(onnx, model)
    return _by_every_name(model, run_model(runtime, model, inputs, name))


def run_model(runtime: Any, model: Any, inputs: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """All inputs and outputs of an ONNX ModelProto by name. Raises FormatError, with ``name``, when onnxruntime cannot
    run it."""
    try:
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = _feeds(session, inputs, name)
        wanted = [each.name for each in session.get_outputs()]
        return feeds | dict(zip(wanted, session.run(wanted, feeds), strict=True))
    except FormatError:
        raise
    except Exception as error:  # onnx and onnxruntime raise kinds of their own, not one family
        raise FormatError(f"{name}: onnxruntime cannot run it: {' '.join(str(error).split())[:300]}") from None


def real_inputs(runtime: Runtime, surfaces: Sequence[bytes], names: Names) -> dict[str, np.ndarray]:
    """What the bound inputs stand for, as float32 arrays. Raises FormatError for an integer input without a scale."""
    found = {}
    for tensor, surface in zip(runtime.inputs, surfaces, strict=True):
        array = tensor.layout.unpack(np.frombuffer(surface, np.uint8))
        scale = 1.0 if array.dtype.kind == "f" else names.scale(tensor.name)
        if scale is None:
            raise FormatError(
                f"input {tensor.name} is {array.dtype}: say what one unit stands for, by --scales or in --layers "
                f"(scales: {tensor.name}: NUMBER)"
            )
        found[tensor.name] = to_real(array, scale, 0 if array.dtype.kind == "f" else names.zero_point(tensor.name))
    return found


def modules(what: str) -> tuple[Any, Any]:
    """onnx and onnxruntime. Raises FormatError that says how to install them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise FormatError(f"comparing with {what} needs {error.name}: pip install 'nvdla[onnx]'") from None
    return onnx, onnxruntime


def _ask_for_everything(onnx: Any, model: Any) -> None:
    """Make every value of the graph an output."""
    known = {each.name for each in model.graph.output}
    for node in model.graph.node:
        for value in node.output:
            if value and value not in known:
                known.add(value)
                model.graph.output.append(onnx.ValueInfoProto(name=value))


def _feeds(session: Any, inputs: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    wanted = session.get_inputs()
    if len(wanted) != len(inputs):
        names = ", ".join(each.name for each in wanted)
        raise FormatError(f"{name}: the model has {len(wanted)} inputs ({names}), the network {len(inputs)}")
    by_order = list(inputs.values())
    feeds = {}
    for position, each in enumerate(wanted):
        array = inputs.get(each.name, by_order[position])
        if isinstance(each.shape, list) and len(each.shape) == 4 and isinstance(each.shape[1], int):
            array = without_spare_channels(array, each.shape[1])
        if isinstance(each.shape, list) and len(each.shape) != array.ndim:
            array = array.reshape([size if isinstance(size, int) else array.shape[0] for size in each.shape])
        feeds[each.name] = array
    return feeds


def without_spare_channels(array: np.ndarray, channels: int) -> np.ndarray:
    """The channels of an image that a network takes: pixels of NVDLA have four where a network may take fewer."""
    spare = array.ndim == 4 and array.shape[1] == PIXEL_CHANNELS and 0 < channels < PIXEL_CHANNELS
    return np.ascontiguousarray(array[:, :channels]) if spare else array


def _by_every_name(model: Any, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs, values by name in node order, and a node's first value by the node's name too."""
    made = {value for node in model.graph.node for value in node.output}
    tensors = {name: array for name, array in found.items() if name not in made}
    for node in model.graph.node:
        for value in node.output:
            if value in found:
                tensors[value] = found[value]
    for node in model.graph.node:
        if node.name and node.output and node.output[0] in found:
            tensors.setdefault(node.name, found[node.output[0]])
    return tensors
