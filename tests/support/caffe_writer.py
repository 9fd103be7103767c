"""Caffe's two file formats, written the plainest way: a network's text, and weights in protobuf's wire format."""

from __future__ import annotations

import struct

import numpy as np


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def blob(array, legacy: bool = False, double: bool = False, packed: bool = True, packed_shape: bool = True) -> bytes:
    """A BlobProto."""
    array = np.asarray(array)
    if legacy:
        sizes = (1,) * (4 - array.ndim) + array.shape
        shape = b"".join(number(axis, size) for axis, size in enumerate(sizes, 1))
    elif packed_shape:
        shape = field(7, field(1, b"".join(map(varint, array.shape))))
    else:
        shape = field(7, b"".join(number(1, size) for size in array.shape))
    if double:
        return shape + field(8, array.astype("<f8").tobytes())
    if packed:
        return shape + field(5, array.astype("<f4").tobytes())
    return shape + b"".join(varint(5 << 3 | 5) + struct.pack("<f", each) for each in array.ravel())


def caffemodel(weights: dict[str, list], old: bool = False, **form: bool) -> bytes:
    """A NetParameter with the blobs of each layer, in the new form or that of ``layers``."""
    name_number, blob_number, layer_number = (4, 6, 2) if old else (1, 7, 100)
    out = field(1, b"written by a test")
    for name, blobs in weights.items():
        layer = field(name_number, name.encode())
        layer += number(5, 4) if old else field(2, b"Whatever")  # the types are those of the .prototxt
        layer += b"".join(field(blob_number, blob(each, **form)) for each in blobs)
        out += field(layer_number, layer)
    return out


def prototxt(*layers: str, shape: tuple[int, ...] = (1, 3, 8, 8)) -> str:
    """A network of an input and these layers."""
    dims = " ".join(f"dim: {size}" for size in shape)
    head = f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {dims} }} }} }}\n'
    return head + "\n".join(layers)


def layer(kind: str, settings: str = "", bottom="data", top: str | list[str] = "out", name: str = "layer") -> str:
    """One layer's text."""
    bottoms = "".join(f' bottom: "{each}"' for each in ([bottom] if isinstance(bottom, str) else bottom))
    tops = "".join(f' top: "{each}"' for each in ([top] if isinstance(top, str) else top))
    return f'layer {{ name: "{name}" type: "{kind}"{bottoms}{tops} {settings} }}'
