"""Fuzz target: a Caffe network, its .prototxt and its .caffemodel, as far as the ONNX model made of them.

One input is both: the text, a line ``%% net.caffemodel``, the weights.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import onnx

import nvdla.compiler.caffe.layers  # noqa: F401 - now, so that a campaign sees what it covers
from nvdla.compiler.caffe import conversion, layers, read_network, read_weights
from nvdla.errors import FormatError

_FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_TEXT, _WEIGHTS = _FOLDER / "net.prototxt", _FOLDER / "net.caffemodel"
_MARK = b"\n%% net.caffemodel\n"
ELEMENTS = 1 << 16


def one_input(data: bytes) -> None:
    """Both are read and become a model that onnx takes, or FormatError."""
    text, mark, weights = data.partition(_MARK)
    _TEXT.write_bytes(text)
    _WEIGHTS.write_bytes(weights)
    blobs = None
    with contextlib.suppress(FormatError):  # a network may be read without
        blobs = read_weights(_WEIGHTS) if mark else None
    try:
        network = read_network(_TEXT, blobs)
        shapes = {name: shape or (1, 3, 8, 8) for name, shape in network.inputs.items()}
        with mock.patch.object(layers, "MAX_ELEMENTS", ELEMENTS):
            made = conversion.convert(onnx, network, shapes)
    except FormatError:
        return
    made.model.SerializeToString()


def pack(text: bytes, weights: bytes) -> bytes:
    """A network as one input."""
    return text + _MARK + weights
