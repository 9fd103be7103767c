"""Identity of an evaluation: hashes of networks, models and configurations."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from nvdla.program import naming
from nvdla.tensors.datasets import framed
from nvdla.tensors.images import PixelConversion
from nvdla.util.escaping import Json
from nvdla.util.files import read_file

MAX_NETWORK = 4 << 30
_LOCATION = re.compile(rb"\x0a\x08location\x12")


def network_settings(path: str, config: str, pixels: PixelConversion, scale: float | None) -> dict[str, Json]:
    """Return what a run of a network depends on: the content of the network, of its layer file and of a configuration
    file, and how samples become elements. Raises FormatError."""
    return {
        "network": content_hash(path),
        "layers": layer_file_hash(path),
        "config": configuration_settings(config),
        "pixels": str(pixels),
        "input_scale": scale,
    }


def layer_file_hash(network: str) -> str | None:
    """Return the SHA-256 of the layer file of a loadable, None where there is none. Raises FormatError."""
    layers = naming.path_of(network)
    return content_hash(layers, "layer file") if layers.is_file() else None


def configuration_settings(name: str) -> str | dict[str, str]:
    """Return the name of a configuration, with the hash of the content where it is a file. Raises FormatError."""
    if not name.endswith((".yaml", ".yml")):
        return name
    return {"file": name, "content": content_hash(name, "configuration")}


def content_hash(path: str | os.PathLike[str], what: str = "network") -> str:
    """Return the SHA-256 of a file. Raises FormatError."""
    return hashlib.sha256(read_file(path, MAX_NETWORK, what)).hexdigest()


def model_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a model with the files of its external data. Raises FormatError."""
    data = read_file(path, MAX_NETWORK, "model")
    digest = hashlib.sha256(data)
    for location in sorted(set(_locations(data))):
        digest.update(framed(location, Path(os.fsdecode(path)).parent / os.fsdecode(location)))
    return digest.hexdigest()


def _locations(data: bytes) -> Iterator[bytes]:
    """The names of external files in an ONNX model: the values of entries with the key "location"."""
    for match in _LOCATION.finditer(data):
        length, shift, at = 0, 0, match.end()
        while at < len(data) and shift < 28:
            length |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                if b"\0" not in data[at : at + length]:
                    yield data[at : at + length]
                break
