"""LeNet as a Caffe network: the text of its layers, and its weights in Caffe's file format.

A .caffemodel is a protobuf message: the network holds layers, a layer its name and blobs, a blob its shape and data.
"""

from __future__ import annotations

import struct

import numpy as np

#: name, Caffe's type, parameters; each takes what the one before gives, ReLU in place
LAYERS = (
    ("conv1", "Convolution", "convolution_param { num_output: 6 kernel_size: 5 }"),
    ("relu1", "ReLU", ""),
    ("pool1", "Pooling", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"),
    ("conv2", "Convolution", "convolution_param { num_output: 16 kernel_size: 5 }"),
    ("relu2", "ReLU", ""),
    ("pool2", "Pooling", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }"),
    ("ip1", "InnerProduct", "inner_product_param { num_output: 120 }"),
    ("relu3", "ReLU", ""),
    ("ip2", "InnerProduct", "inner_product_param { num_output: 84 }"),
    ("relu4", "ReLU", ""),
    ("ip3", "InnerProduct", "inner_product_param { num_output: 10 }"),
    ("prob", "Softmax", ""),
)

# Field numbers of Caffe's messages (caffe.proto)
_NET_NAME, _NET_LAYER = 1, 100
_LAYER_NAME, _LAYER_TYPE, _LAYER_BLOBS = 1, 2, 7
_BLOB_DATA, _BLOB_SHAPE, _SHAPE_DIM = 5, 7, 1


def prototxt() -> str:
    """The network's text; pixels are 0..255."""
    lines = ['name: "lenet"', "layer {", '  name: "data"', '  type: "Input"', '  top: "data"']
    lines += ["  input_param { shape { dim: 1 dim: 1 dim: 28 dim: 28 } }", "}"]
    bottom = "data"
    for name, kind, parameters in LAYERS:
        top = bottom if kind == "ReLU" else name
        lines += ["layer {", f'  name: "{name}"', f'  type: "{kind}"', f'  bottom: "{bottom}"', f'  top: "{top}"']
        lines += [f"  {parameters}"] * bool(parameters) + ["}"]
        bottom = top
    return "\n".join(lines) + "\n"


def caffemodel(weights: dict[str, np.ndarray]) -> bytes:
    """The weights of LeNet ("lenet/conv1/weights", ...), as float32."""
    out = _field(_NET_NAME, b"lenet")
    for name, kind, _ in LAYERS:
        layer = _field(_LAYER_NAME, name.encode()) + _field(_LAYER_TYPE, kind.encode())
        for part in ("weights", "bias"):
            if f"lenet/{name}/{part}" in weights:
                layer += _field(_LAYER_BLOBS, _blob(weights[f"lenet/{name}/{part}"]))
        out += _field(_NET_LAYER, layer)
    return out


def _blob(array: np.ndarray) -> bytes:
    shape = _field(_SHAPE_DIM, b"".join(map(_varint, array.shape)))
    data = struct.pack(f"<{array.size}f", *array.reshape(-1).tolist())
    return _field(_BLOB_SHAPE, shape) + _field(_BLOB_DATA, data)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Seven bits per byte, lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
