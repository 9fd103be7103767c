"""Tensors in files, .dimg among them.

With ``--rawdump`` NVIDIA's runtime leaves the header out and writes the numbers as text separated by blanks; that
form is read too. Source: umd/apps/runtime/DlaImage.h (header), DlaImage.cpp (order of elements).
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.tensors.npz import parse_npy
from nvdla.util.files import read_file, write_file
from nvdla.util.rounding import ceil_div, real

MAGIC = b"DIMG"
HEADER = struct.Struct("<4sI7I")
MAX_FILE = 1 << 30
MAX_PICTURE = 64 << 20  # pixels of a written picture
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
        raise FormatError(f"{name}: .dimg header: must have {HEADER.size} bytes, got {len(data)} (cut off?)")
    _, version, code, width, height, channels, _, _, _ = HEADER.unpack_from(data)
    if version != 0:
        raise FormatError(f"{name}: .dimg version: must be 0, got {version}")
    if code not in _DTYPES:
        known = ", ".join(f"{surface_format.value} {surface_format.name}" for surface_format in SurfaceFormat)
        raise FormatError(f"{name}: .dimg surface format: must be {known}, got {code}")
    dtype = np.dtype(_DTYPES[SurfaceFormat(code)]).newbyteorder("<")
    expected = width * height * channels * dtype.itemsize
    size = len(data) - HEADER.size
    if code == SurfaceFormat.F8_X8_I and size == 2 * expected:
        # Files of 2018 (NVIDIA's regression): the list of formats lacked F8_X8_I, so 41 was F16_X16_I.
        dtype, expected = np.dtype("<i2"), size
    if expected != size or not expected:
        raise FormatError(
            f"{name}: {channels} x {height} x {width} elements of {dtype.itemsize} bytes (header): must have "
            f"{expected} bytes, got {size}{' (cut off?)' if size < expected else ''}"
        )
    return np.frombuffer(data, dtype, offset=HEADER.size).reshape(1, channels, height, width)


def _read_text(name: str, data: bytes) -> np.ndarray:
    """A raw dump: numbers separated by blanks. Integers stay integers (int16), anything else is float32."""
    if len(data) > MAX_TEXT:
        raise FormatError(
            f"{name}: must be a .dimg file ('DIMG' at byte 0), or a text dump of at most {MAX_TEXT} bytes, got "
            f"{len(data)} bytes without 'DIMG'"
        )
    words = data.split()
    if not words:
        raise FormatError(f"{name}: must be a .dimg file or a text dump, got an empty file")
    try:
        values = np.array([real(word.decode("latin-1")) for word in words])
    except ValueError:
        from nvdla.util.recognition import wrong_kind

        unknown = f"{name}: must be a .dimg ('DIMG' at byte 0) or numbers separated by blanks"
        raise FormatError(wrong_kind(data, name, "a .dimg file", ("dimg",)) or unknown) from None
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
        raise FormatError(f".dimg file: must contain one image, got a tensor of shape {shape_text(tensor.shape)}")
    code = _FORMAT_OF.get((cube.dtype, atom)) or _FORMAT_OF.get((cube.dtype, 32))
    if code is None:
        raise FormatError(f".dimg file: element type: must be int8, int16 or float16, got {cube.dtype}")
    channels, height, width = cube.shape
    header = HEADER.pack(MAGIC, 0, code, width, height, channels, *strides, size)
    return header + np.ascontiguousarray(cube).astype(cube.dtype.newbyteorder("<"), copy=False).tobytes()


IMAGE_ENDINGS = (".pgm", ".ppm", ".png", ".jpg", ".jpeg")
INPUT_ENDINGS = (*IMAGE_ENDINGS, ".npy", ".dimg", ".bin")
DATA_ENDINGS = (".csv", ".jsonl", ".tar", ".parquet")
OUTPUT_ENDINGS = (".npy", ".dimg", ".json", ".png", ".bin")


def ending(path: str | os.PathLike[str], allowed: tuple[str, ...], what: str) -> str:
    """The lower-case ending of ``path``. Raises FormatError that lists the endings that ``what`` can have."""
    suffix = Path(path).suffix.lower()
    if suffix not in allowed:
        from nvdla.util.recognition import wrong_kind

        name, known = os.fspath(path), " ".join(allowed)
        unknown = f"{name}: suffix of {what}: must be one of {known}, got {suffix!r}"
        if allowed is INPUT_ENDINGS and (suffix in DATA_ENDINGS or (not suffix and ":" in name)):
            rows = " if its rows are path,label" if suffix == ".csv" else ""
            unknown = (
                f"{name}: must be an input ({known}), got a data set. Save one of its samples in Python: "
                f"numpy.save('input.npy', sample). 'nvdla evaluate NET {name}' runs all of them{rows}."
            )
        raise FormatError(wrong_kind(path, name, f"{what} ({known})", ("image", "npy", "dimg")) or unknown)
    return suffix


def read_raw(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a raw surface (.bin)."""
    return read_file(path, MAX_FILE, "raw surface")


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """A .npy array; pickled objects are refused, a header is believed only as far as the file is long."""
    return parse_npy(read_file(path, MAX_FILE, ".npy file"), os.fspath(path))


def check_whole(array: np.ndarray, dtype: np.dtype, what: str, advice: str, whose: str = "") -> None:
    """Raise FormatError for values that are not whole numbers, or that an integer ``dtype`` (``what``) cannot hold."""
    limits = np.iinfo(dtype)
    whole = array.dtype.kind in "iub" or (np.isfinite(array).all() and (array == np.rint(array)).all())
    if not whole or array.min() < limits.min or array.max() > limits.max:
        raise FormatError(
            f"{whose}values for {what}: must be whole numbers from {limits.min} to {limits.max}, got {array.dtype} "
            f"from {array.min()} to {array.max()}. {advice}."
        )


def fit(array: np.ndarray, shape: tuple[int, int, int, int], dtype: np.dtype, name: str) -> np.ndarray:
    """``array``, (N, C, H, W) or (N, H, W, C), as (N, C, H, W) of ``dtype``; dimensions of 1 may be missing.

    An array is (N, H, W, C) if its shape can mean nothing else. Values must survive.

    Raises FormatError for another shape, and for values that an integer ``dtype`` cannot hold.
    """
    if array.shape == shape and array.dtype == dtype:
        return array
    if array.dtype.kind not in "iufb":
        raise FormatError(f"{name}: must be an array of numbers, got elements of type {array.dtype}")
    fits = array.size == math.prod(shape) and _without_ones(array.shape) == _without_ones(shape)
    batch, channels, height, width = shape
    last = (batch, height, width, channels)
    if not fits and array.size == math.prod(shape) and _without_ones(array.shape) == _without_ones(last):
        array, fits = np.moveaxis(array.reshape(last), -1, -3), True
    if not fits:
        is_color = array.ndim == 4 and (array.shape[1], shape[1]) == (3, 4) and array.shape[2:] == shape[2:]
        hint = (
            " Its fourth channel is the padding of a pixel format: give a picture, or add a channel."
            if is_color
            else several_images(array, shape) or _hint_of_batch(array, shape)
        )
        raise FormatError(f"{name}: shape must be {shape_text(shape)}, got {shape_text(array.shape)}.{hint}")
    array = array.reshape(shape)
    if array.dtype == dtype:
        return array
    if dtype.kind == "i":
        check_whole(array, dtype, f"the input's {dtype}", "Quantize them with the network's input scale", f"{name}: ")
    with np.errstate(over="ignore", invalid="ignore"):  # halves may become infinite, as on the hardware
        return array.astype(dtype)


def several_images(array: np.ndarray, shape: Sequence[int]) -> str:
    """Advice for an array of several images, in any order of axes, where the network takes one; else empty."""
    sizes = tuple(shape)
    orders = (sizes[1:], (*sizes[2:], *sizes[1:2]), *([sizes[2:]] if 1 in sizes[1:2] else []))
    single = _without_ones(array.shape[1:])
    if array.ndim < 3 or sizes[:1] != (1,) or len(array) < 2 or single not in map(_without_ones, orders):
        return ""
    several = shape_text((len(array), *sizes[1:]))
    return f" Give one image per file: --input FILE --input FILE ...; in Python, run takes arrays as {several}."


def has_axes(array: np.ndarray, shape: Sequence[int]) -> bool:
    """Check whether ``array`` has the axes of ``shape`` but for those of size 1, or whether one of them is flat."""
    wanted = _without_ones(tuple(shape))
    return array.ndim == 1 or len(wanted) < 2 or _without_ones(array.shape) == wanted


def _hint_of_batch(array: np.ndarray, shape: tuple[int, ...]) -> str:
    """Hint for too few or too many images where the network takes several at once; 3 could be the channels of a
    color."""
    single = "export the model with a batch of 1 for single pictures"
    if array.ndim == 4 and shape[0] == 1 and (len(array) * array.shape[1], *array.shape[2:]) == tuple(shape[1:]):
        return f" If the model has a batch of {len(array)}, its images are consecutive channels: reshape the array."
    if array.shape[-3:] in (shape[1:], (*shape[2:], shape[1])) and shape[0] > 1:
        return f" The network takes {shape[0]} images at a time: give one array, or one file per image; or {single}."
    batch, rest = divmod(math.prod(shape), max(array.size, 1))
    is_one = shape[0] == batch or array.shape[-3:-2] == (1,)
    if rest or batch in (0, 1, 3) or array.shape[-2:] != shape[-2:] or not is_one:
        return ""
    return f" If the model has a batch of {batch}, {single}."


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def write_tensor(path: str | os.PathLike[str], tensor: np.ndarray, raw: bytes, layout: object = None) -> None:
    """Write an output tensor (N, C, H, W) by ending; ``raw`` is its bound surface (.bin writes that).

    ``layout``, where it is a feature layout (``.atom``, ``.line_stride``, ``.surface_stride``), only fills the header
    of a .dimg.
    """
    suffix = ending(path, OUTPUT_ENDINGS, "an output")
    if suffix == ".bin":
        data = raw
    elif suffix == ".npy":
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(tensor), allow_pickle=False)
        data = stream.getvalue()
    elif suffix == ".json":
        data = _json_bytes(tensor)
    elif suffix == ".dimg":
        strides = (getattr(layout, "line_stride", 0), getattr(layout, "surface_stride", 0))
        data = dimg_bytes(tensor, getattr(layout, "atom", 32), strides, len(raw))
    else:
        data = picture(tensor)
    write_file(path, data)


def _json_bytes(tensor: np.ndarray) -> bytes:
    """Shape, dtype and nested lists; NaN and infinities, which JSON lacks, are the strings "nan", "inf", "-inf"."""
    values: np.ndarray = tensor
    if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
        values = tensor.astype(object)
        odd = ~np.isfinite(tensor)
        values[odd] = [str(float(number)) for number in tensor[odd]]
    document = {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "data": values.tolist()}
    return (json.dumps(document, allow_nan=False) + "\n").encode()


def picture(tensor: np.ndarray) -> bytes:
    """A .png of a tensor (N, C, H, W): every channel a gray tile, scaled from its own least to greatest value."""
    from PIL import Image

    planes = tensor.reshape(-1, *tensor.shape[-2:]).astype(np.float32)
    planes = np.where(np.isfinite(planes), planes, 0)
    columns = int(np.ceil(np.sqrt(len(planes))))
    rows = ceil_div(len(planes), columns)
    height, width = planes.shape[1:]
    if (height + 1) * rows * (width + 1) * columns > MAX_PICTURE:
        raise FormatError(
            f"picture: must have at most {MAX_PICTURE} pixels, got {len(planes)} planes of {width} x {height}. "
            "Write .npy instead."
        )
    sheet = np.zeros((rows * (height + 1), columns * (width + 1)), np.uint8)
    for index, plane in enumerate(planes):
        low, high = plane.min(), plane.max()
        tile = (plane - low) * (255.0 / (high - low)) if high > low else np.zeros_like(plane)
        y, x = index // columns * (height + 1), index % columns * (width + 1)
        sheet[y : y + height, x : x + width] = np.rint(tile).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(sheet).save(stream, "PNG")
    return stream.getvalue()
