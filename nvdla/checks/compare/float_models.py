"""Float tensors of ONNX and Caffe models, run by onnxruntime."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.compiler.caffe.conversion import convert
from nvdla.compiler.caffe.network import CaffeNetwork, read_network, read_weights
from nvdla.compiler.caffe.text import one_line
from nvdla.compiler.frontend.isolation import run_session, worker_of
from nvdla.compiler.frontend.opening import open_file, open_session
from nvdla.errors import FormatError, shape_text
from nvdla.program.naming import Names
from nvdla.tensors.real import ScaleMissing

if TYPE_CHECKING:
    from nvdla.runtime import Runtime

PIXEL_CHANNELS = 4
OTHER_MODEL = "Give the model that the network was compiled from."


def onnx_tensors(
    path: str | os.PathLike[str],
    inputs: Mapping[str, np.ndarray],
    trusted: bool = False,
) -> tuple[dict[str, np.ndarray], list[str], str]:
    """(tensors, outputs, runs_in): inputs and all values of the model's graph in the order of its nodes, by value name
    and by node name, in real numbers where the model quantizes them; the names of its outputs; what runs the model
    (:attr:`nvdla.compiler.frontend.opening.OpenedModel.runs_in`).

    ``inputs``: real numbers (N, C, H, W) by input name; with one input any name will do. ``trusted``: read and run the
    model in this process, without limits. Raises FormatError for a model that cannot be read or run, and when
    onnxruntime is not installed.
    """
    modules("an ONNX model")
    name = os.fspath(path)
    model = open_file(name, worker_of(trusted), optimize=False, everything=True)
    computed = _run(model.session, inputs, name, model.units)
    real = {value: model.real(value, array) for value, array in computed.items()}
    real |= {value: real[elements] for value, elements in model.stored.items() if elements in real}
    return _by_every_name(model.nodes, real), model.outputs, model.runs_in


def run_model(model: Any, inputs: Mapping[str, np.ndarray], name: str, trusted: bool = False) -> dict[str, np.ndarray]:
    """All inputs and outputs of an ONNX ModelProto by name. Raises FormatError, with ``name``, when onnxruntime cannot
    run it."""
    return _run(open_session(model, name, worker_of(trusted), optimize=False), inputs, name)


def _run(
    session: Any, inputs: Mapping[str, np.ndarray], name: str, units: Mapping[str, tuple[float, int]] | None = None
) -> dict[str, np.ndarray]:
    feeds = feeds_for(session, inputs, name, units)
    wanted = [output.name for output in session.get_outputs()]
    return feeds | dict(zip(wanted, run_session(session, name, wanted, feeds), strict=True))


def real_inputs(runtime: Runtime, surfaces: Sequence[bytes], names: Names) -> dict[str, np.ndarray]:
    """Return the real values of the bound inputs, float32 arrays by the model's input and in its shape, where the layer
    file states those. Raises FormatError for an integer input without a scale."""
    arrays_by_input: dict[str, np.ndarray] = {}
    for tensor, surface in zip(runtime.inputs, surfaces, strict=True):
        array = tensor.layout.unpack(np.frombuffer(surface, np.uint8))
        units = names.units(tensor.name, array.dtype)
        if units is None:
            raise ScaleMissing(tensor.name, array.dtype, "input")
        real, value = units.real(array).astype(np.float32), names.inputs.get(tensor.name)
        if value is None:
            arrays_by_input[tensor.name] = real
            continue
        arrays_by_input[value.name] = value.fed(real, arrays_by_input.get(value.name))
    return arrays_by_input


def modules(what: str) -> tuple[ModuleType, ModuleType]:
    """onnx and onnxruntime. Raises FormatError that says how to install them."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise FormatError(f"comparing with {what} needs {error.name}: pip install 'nvdla[onnx]'") from None
    return onnx, onnxruntime


def feeds_for(
    session: Any, inputs: Mapping[str, np.ndarray], name: str, units: Mapping[str, tuple[float, int]] | None = None
) -> dict[str, np.ndarray]:
    """Return real inputs of a network in the shapes and types of a model that it is compared with.

    Args:
        session: of the model.
        inputs: by the network's names; inputs of other names are taken in order.
        name: of the model, for messages.
        units: (scale, zero point) of the model's quantized inputs.

    Raises:
        FormatError: The model has other inputs than the network.
    """
    wanted = session.get_inputs()
    if len(wanted) != len(inputs):
        names = ", ".join(model_input.name for model_input in wanted)
        raise FormatError(
            f"{name}: inputs: must be {len(inputs)}, as in the network, got {len(wanted)} ({names}). {OTHER_MODEL}"
        )
    by_order = list(inputs.values())
    feeds = {}
    for position, model_input in enumerate(wanted):
        array = inputs.get(model_input.name, by_order[position])
        if (
            isinstance(model_input.shape, list)
            and len(model_input.shape) == 4
            and isinstance(model_input.shape[1], int)
        ):
            array = without_spare_channels(array, model_input.shape[1])
        array = _in_shape(array, model_input, name)
        if units and model_input.name in units:
            scale, zero = units[model_input.name]
            array = np.rint(array / scale) + zero
        feeds[model_input.name] = _as_type(array, model_input.type)
    return feeds


def _in_shape(array: np.ndarray, model_input: Any, name: str) -> np.ndarray:
    """The array in the shape of a model's input, whose free sizes are names. Raises FormatError."""
    if not isinstance(model_input.shape, list):
        return array
    same = len(model_input.shape) == array.ndim
    free = array.shape if same else (array.shape[0],) * len(model_input.shape)
    shape = [size if isinstance(size, int) else known for size, known in zip(model_input.shape, free, strict=True)]
    if (_without_ones(array.shape) != _without_ones(shape)) if same else (array.size != math.prod(shape)):
        raise FormatError(
            f"{name}: input {model_input.name}: must be {shape_text(array.shape)} as in the network, "
            f"got {shape_text(shape)}. {OTHER_MODEL}"
        )
    return array.reshape(shape)


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _as_type(array: np.ndarray, kind: str) -> np.ndarray:
    """An array as a tensor of onnxruntime's type ("tensor(int8)"); other names stay float32."""
    known = {"tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(float16)": np.float16}
    known |= {"tensor(double)": np.float64, "tensor(int16)": np.int16, "tensor(uint16)": np.uint16}
    dtype = known.get(kind)
    if dtype is None:
        return array
    wanted: Any = np.dtype(dtype)
    if wanted.kind in "iu":
        array = np.clip(array, np.iinfo(wanted).min, np.iinfo(wanted).max)
    return array.astype(wanted)


def without_spare_channels(array: np.ndarray, channels: int) -> np.ndarray:
    """The channels of an image that a network takes: pixels of NVDLA have four where a network may take fewer."""
    spare = array.ndim == 4 and array.shape[1] == PIXEL_CHANNELS and 0 < channels < PIXEL_CHANNELS
    return np.ascontiguousarray(array[:, :channels]) if spare else array


def _by_every_name(nodes: Sequence[tuple[str, list[str]]], computed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs, values by name in node order, and a node's first value by the node's name too."""
    node_outputs = {value for _, outputs in nodes for value in outputs}
    tensors = {name: array for name, array in computed.items() if name not in node_outputs}
    for _, outputs in nodes:
        for value in outputs:
            if value in computed:
                tensors[value] = computed[value]
    for name, outputs in nodes:
        if name and outputs and outputs[0] in computed:
            tensors.setdefault(name, computed[outputs[0]])
    return tensors


def caffe_tensors(
    prototxt: str | os.PathLike[str],
    caffemodel: str | os.PathLike[str] | None,
    inputs: Mapping[str, np.ndarray],
    trusted: bool = False,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(tensors, blobs): inputs, the results of all layers in their order by layer name, then blobs that no layer is
    named after; and all blobs by their own names, with what was written to them last.

    A blob that several layers write (a ReLU in place) is a tensor under each layer's name with what that layer wrote.
    Without ``caffemodel`` a network may have no weights. ``inputs``: float arrays (N, C, H, W) by input name; with one
    input any name will do. ``trusted``: run the model in this process, without limits. Raises FormatError for files
    that cannot be read or run, and when onnxruntime is missing.
    """
    onnx, _ = modules("a Caffe network")
    network = read_network(prototxt, None if caffemodel is None else read_weights(caffemodel))
    feeds = _caffe_feeds(network, inputs)
    with np.errstate(all="ignore"):  # weights of a broken file may be infinite
        converted = convert(onnx, network, {name: array.shape for name, array in feeds.items()})
    results = run_model(converted.model, feeds, os.fspath(prototxt), trusted)
    blobs = {name: results[value] for name, value in converted.blobs.items()}
    tensors = feeds | {name: results[value] for name, value in converted.names.items()}
    return tensors | {name: array for name, array in blobs.items() if name not in tensors}, blobs


def _caffe_feeds(network: CaffeNetwork, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our inputs under the network's names and in its shapes; the batch is ours."""
    if len(network.inputs) != len(inputs):
        names = one_line(", ".join(network.inputs)) or "none"
        raise FormatError(
            f"{network.file}: inputs: must be {len(inputs)}, as in the loadable, got {len(network.inputs)} ({names})"
        )
    by_order, feeds = list(inputs.values()), {}
    for place, (name, shape) in enumerate(network.inputs.items()):
        array = inputs.get(name, by_order[place])
        if shape is not None and len(shape) == 4:
            array = without_spare_channels(array, shape[1])
        if shape is None or shape[1:] == array.shape[1:]:
            feeds[name] = array
        elif any(size <= 0 for size in shape) or math.prod(shape[1:]) != math.prod(array.shape[1:]):
            theirs, ours = (shape_text(shape) for shape in (shape, array.shape))
            raise FormatError(f"{network.file}: input {one_line(name)}: must be {ours} (loadable), got {theirs}")
        else:
            feeds[name] = array.reshape(array.shape[0], *shape[1:])
    return feeds
