"""The .dimg files of NVIDIA's runtime: a 36-byte header, then the elements in channel, row, column order.

With ``--rawdump`` NVIDIA's runtime leaves the header out and writes the numbers as text separated by blanks; that
form is read too. Source: umd/apps/runtime/DlaImage.h (header), DlaImage.cpp (order of elements).
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.files import read_file

MAGIC = b"DIMG"
HEADER = struct.Struct("<4sI7I")
MAX_FILE = 1 << 30
MAX_TEXT = 1 << 26  # bytes of a text dump: its numbers take some thirty times as much while they are read


class SurfaceFormat(IntEnum):
    """The surface formats of a .dimg that NVIDIA's runtime writes."""

    T_R8 = 0
    T_A16B16G16R16_F = 8
    T_A8B8G8R8 = 13
    F8_CHW_I = 37
    F16_CHW_I = 38
    F16_CHW_F = 39
    F8_X32_I = 40
    F8_X8_I = 41
    F16_X16_I = 42
    F16_X16_F = 43
    F32_CHW_F = 44
    F32_X8_F = 45


_DTYPES = {
    SurfaceFormat.T_R8: np.uint8,
    SurfaceFormat.T_A16B16G16R16_F: np.float16,
    SurfaceFormat.T_A8B8G8R8: np.uint8,
    SurfaceFormat.F8_CHW_I: np.int8,
    SurfaceFormat.F16_CHW_I: np.int16,
    SurfaceFormat.F16_CHW_F: np.float16,
    SurfaceFormat.F8_X32_I: np.int8,
    SurfaceFormat.F8_X8_I: np.int8,
    SurfaceFormat.F16_X16_I: np.int16,
    SurfaceFormat.F16_X16_F: np.float16,
    SurfaceFormat.F32_CHW_F: np.float32,
    SurfaceFormat.F32_X8_F: np.float32,
}

_FORMAT_OF = {
    (np.dtype(np.int8), 8): SurfaceFormat.F8_X8_I,
    (np.dtype(np.int8), 32): SurfaceFormat.F8_X32_I,
    (np.dtype(np.int16), 32): SurfaceFormat.F16_X16_I,
    (np.dtype(np.float16), 32): SurfaceFormat.F16_X16_F,
}


def read_dimg(path: str | os.PathLike[str]) -> np.ndarray:
    """The tensor of a .dimg file, shape (1, C, H, W); a text dump gives shape (1, n, 1, 1).

    Raises FormatError for a wrong magic, version, surface format or length.
    """
    name = os.fspath(path)
    data = read_file(path, MAX_FILE, ".dimg file")
    if not data.startswith(MAGIC):
        return _read_text(name, data)
    if len(data) < HEADER.size:
        raise FormatError(f"{name}: {len(data)} bytes, but the header of a .dimg file has {HEADER.size} (cut off?)")
    _, version, code, width, height, channels, _, _, _ = HEADER.unpack_from(data)
    if version != 0:
        raise FormatError(f"{name}: .dimg version {version}, only version 0 is known")
    if code not in _DTYPES:
        known = ", ".join(f"{each.value} {each.name}" for each in SurfaceFormat)
        raise FormatError(f"{name}: .dimg surface format {code} cannot be read; known are {known}")
    dtype = np.dtype(_DTYPES[SurfaceFormat(code)]).newbyteorder("<")
    expected = width * height * channels * dtype.itemsize
    found = len(data) - HEADER.size
    if code == SurfaceFormat.F8_X8_I and found == 2 * expected:
        # Files of 2018 (NVIDIA's regression): the list of formats lacked F8_X8_I, so 41 was F16_X16_I.
        dtype, expected = np.dtype("<i2"), found
    if expected != found or not expected:
        raise FormatError(
            f"{name}: the header says {channels} x {height} x {width} elements of {dtype.itemsize} bytes = {expected} "
            f"bytes, the file holds {found}{' (cut off?)' if found < expected else ''}"
        )
    return np.frombuffer(data, dtype, offset=HEADER.size).reshape(1, channels, height, width)


def _read_text(name: str, data: bytes) -> np.ndarray:
    """A raw dump: numbers separated by blanks. Integers stay integers (int16), anything else is float32."""
    if len(data) > MAX_TEXT:
        raise FormatError(f"{name}: {len(data)} bytes without 'DIMG' at byte 0; a text dump has at most {MAX_TEXT}")
    words = data.split()
    if not words:
        raise FormatError(f"{name}: an empty file is neither a .dimg nor a text dump of one")
    try:
        values = np.array([float(word) for word in words])
    except ValueError:
        raise FormatError(f"{name}: neither a .dimg (no 'DIMG' at byte 0) nor numbers separated by blanks") from None
    whole = np.isfinite(values).all() and (values == np.rint(values)).all() and np.abs(values).max() < 1 << 15
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        return values.astype(np.int16 if whole else np.float32).reshape(1, -1, 1, 1)


def dimg_bytes(tensor: np.ndarray, atom: int = 32, strides: tuple[int, int] = (0, 0), size: int = 0) -> bytes:
    """The .dimg file of one image (1, C, H, W) or (C, H, W), as NVIDIA's runtime writes it.

    ``atom`` is the memory atom in bytes (8 on nv_small), ``strides`` the line and surface stride and ``size`` the
    bytes of the buffer it came from; the last two are only recorded in the header.
    """
    cube = tensor[0] if tensor.ndim == 4 and tensor.shape[0] == 1 else tensor
    if cube.ndim != 3:
        raise FormatError(
            f"a .dimg file holds one image: a tensor of shape {shape_text(tensor.shape)} does not fit, split it"
        )
    code = _FORMAT_OF.get((cube.dtype, atom)) or _FORMAT_OF.get((cube.dtype, 32))
    if code is None:
        raise FormatError(f"a .dimg file cannot hold {cube.dtype}; it takes int8, int16 and float16")
    channels, height, width = cube.shape
    header = HEADER.pack(MAGIC, 0, code, width, height, channels, *strides, size)
    return header + np.ascontiguousarray(cube).astype(cube.dtype.newbyteorder("<"), copy=False).tobytes()
