"""What an entry's metadata blob says of the tensor: element type and shape.

The archive itself stores neither. IREE's Python writers add a JSON blob behind the prefix ``TENSORv0:`` (before:
``PYTORCH:``), with PyTorch's or numpy's names of the element type; archives converted from other formats carry none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nvdla.containers.parameters import ELEMENT_BITS, Parameter, packed_size
from nvdla.errors import FormatError

PREFIXES = (b"TENSORv0:", b"PYTORCH:")
#: A blob longer than this is not looked into: a type and a shape do not take a megabyte.
MAX_JSON = 1 << 20
MAX_RANK = 256
#: Key under which parameter metadata that IREE does not know travels in the blob.
EXTRA = "nvdla"

_ALIASES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "bool_": "bool",
    "cfloat": "complex64",
    "cdouble": "complex128",
}


def decode(blob: memoryview | bytes, length: int) -> tuple[str | None, tuple[int, ...] | None, dict[str, Any]]:
    """(dtype, shape, extra metadata). dtype and shape are None unless the blob names both and they take ``length``
    bytes; extra holds the parsed blob's other keys, or the text of a blob that is not a tensor's."""
    raw = bytes(blob) if len(blob) <= MAX_JSON else b""
    prefix = next((p for p in PREFIXES if raw.startswith(p)), None)
    if prefix is None:
        return None, None, _text(blob)
    try:
        parsed = json.loads(raw[len(prefix) :])
    except (ValueError, RecursionError):
        return None, None, _text(blob)
    if not isinstance(parsed, dict):
        return None, None, _text(blob)
    dtype, shape = _element_type(parsed.get("dtype")), _shape(parsed.get("shape"))
    extra = dict(parsed[EXTRA]) if isinstance(parsed.get(EXTRA), dict) else {}
    if dtype is None or shape is None or packed_size(dtype, shape) != length:
        return None, None, extra
    return dtype, shape, extra


def _text(blob: memoryview | bytes) -> dict[str, Any]:
    if not 0 < len(blob) <= MAX_JSON:
        return {}
    raw = bytes(blob)
    try:
        return {"blob_text": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"blob_hex": raw.hex()}


def _element_type(name: object) -> str | None:
    if not isinstance(name, str):
        return None
    plain = name.removeprefix("torch.").removeprefix("numpy.")
    plain = _ALIASES.get(plain, plain)
    return plain if plain in ELEMENT_BITS else None


def _shape(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > MAX_RANK:
        return None
    if any(type(n) is not int or not 0 <= n < 1 << 63 for n in value):
        return None
    return tuple(value)


def encode(parameter: Parameter) -> bytes:
    """The blob IREE's Python writer would store (same keys, order and spacing), plus the parameter's own metadata under
    a key of ours; empty when there is nothing to say."""
    if parameter.dtype is None or parameter.shape is None:
        return b"" if not parameter.metadata else _preserved(parameter.metadata)
    bits = ELEMENT_BITS.get(parameter.dtype)
    if bits is None:
        raise FormatError(f"parameter {parameter.name!r}: unknown element type {parameter.dtype!r}")
    content: dict[str, Any] = {
        "type": "Tensor",
        "dtype": parameter.dtype,
        "shape": list(parameter.shape),
        "dtype_desc": {
            "class_name": f"{parameter.dtype.capitalize().replace('Uint', 'UInt')}DType",
            "is_complex": parameter.dtype.startswith("complex"),
            "is_floating_point": "float" in parameter.dtype,
            # IREE's writer asks whether the type is a signed *integer*.
            "is_signed": parameter.dtype.startswith("int"),
            "itemsize": max(bits // 8, 1),
        },
    }
    if parameter.metadata:
        content[EXTRA] = dict(parameter.metadata)
    return PREFIXES[0] + json.dumps(content).encode()


def _preserved(metadata: Mapping[str, Any]) -> bytes:
    """A blob that was no tensor description goes back as it came; other metadata becomes JSON."""
    if set(metadata) == {"blob_text"}:
        return str(metadata["blob_text"]).encode()
    if set(metadata) == {"blob_hex"}:
        return bytes.fromhex(metadata["blob_hex"])
    return json.dumps({EXTRA: dict(metadata)}).encode()
