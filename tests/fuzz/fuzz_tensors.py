"""Fuzz targets: tensors from files (.dimg, .npy, .bin), images, labels; YAML files."""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile

import numpy as np
from support.tensor_files import read_tensor

from nvdla.errors import FormatError
from nvdla.program.naming import from_yaml
from nvdla.tensors.files import read_dimg, read_npy
from nvdla.tensors.images import PixelConversion
from nvdla.tensors.real import read_labels
from nvdla.util.yaml import parse_yaml

_HANDLE, _PATH = tempfile.mkstemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
atexit.register(lambda: os.path.exists(_PATH) and os.unlink(_PATH))
SHAPE = (1, 3, 4, 5)


def _file(data: bytes, ending: str) -> str:
    path = _PATH + ending
    with open(path, "wb") as stream:
        stream.write(data)
    return path


def _whole(path: str, *dtypes: type) -> None:
    for dtype in dtypes:
        try:
            found = read_tensor(path, SHAPE, dtype, PixelConversion(resize=True))
        except FormatError:
            continue
        if not isinstance(found, bytes) and (found.shape != SHAPE or found.dtype != dtype):
            raise RuntimeError(f"read_tensor gave {found.shape} {found.dtype}")


def dimg_input(data: bytes) -> None:
    """Bytes as a .dimg, and as a file of labels."""
    path = _file(data, ".dimg")
    try:
        read_dimg(path)
        _whole(path, np.int8, np.float16)
    except FormatError:
        pass
    with contextlib.suppress(FormatError):
        read_labels(path)
    os.unlink(path)


def npy_input(data: bytes) -> None:
    """Bytes as a .npy."""
    path = _file(data, ".npy")
    try:
        if read_npy(path).dtype.hasobject:
            raise RuntimeError("objects were unpickled")
        _whole(path, np.int8, np.int16, np.float16)
    except FormatError:
        pass
    os.unlink(path)


def image_input(data: bytes) -> None:
    """Bytes as an image of each kind (the content decides which)."""
    path = _file(data, ".png")
    _whole(path, np.int8, np.float16)
    os.unlink(path)


def yaml_input(data: bytes) -> None:
    """Bytes as YAML, by both of PyYAML's parsers: what both take means the same; and as a layer file."""
    import yaml

    found = []
    for loader in (yaml.CLoader, None):
        kept, yaml.CLoader = yaml.CLoader, loader or yaml.Loader
        try:
            found.append(repr(parse_yaml(data, "names.yaml")))
        except FormatError:
            pass
        finally:
            yaml.CLoader = kept
    if len(set(found)) > 1:
        raise RuntimeError(f"the parsers differ: {found}")
    path = _file(data, ".yaml")
    with contextlib.suppress(FormatError):
        from_yaml(path)
    os.unlink(path)
