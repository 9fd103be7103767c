"""Tensors from and to files, the format chosen by the file name's ending."""

from __future__ import annotations

import io
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.files import read_file, write_file
from nvdla.rounding import ceil_div
from nvdla.tensors.dimg import dimg_bytes
from nvdla.tensors.npy import parse_npy

IMAGE_ENDINGS = (".pgm", ".ppm", ".png", ".jpg", ".jpeg")
INPUT_ENDINGS = (*IMAGE_ENDINGS, ".npy", ".dimg", ".bin")
OUTPUT_ENDINGS = (".npy", ".dimg", ".json", ".png", ".bin")
MAX_FILE = 1 << 30


def ending(path: str | os.PathLike[str], allowed: tuple[str, ...], what: str) -> str:
    """The lower-case ending of ``path``. Raises FormatError that lists the endings that ``what`` can have."""
    suffix = Path(path).suffix.lower()
    if suffix not in allowed:
        raise FormatError(f"{os.fspath(path)}: {what} cannot have the ending {suffix!r}; it takes {' '.join(allowed)}")
    return suffix


def read_raw(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a raw surface (.bin)."""
    return read_file(path, MAX_FILE, "raw surface")


def read_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """A .npy array; pickled objects are refused, a header is believed only as far as the file is long."""
    return parse_npy(read_file(path, MAX_FILE, ".npy file"), os.fspath(path))


def check_whole(array: np.ndarray, dtype: np.dtype, what: str, advice: str, whose: str = "") -> None:
    """Raise FormatError for values that are no whole numbers, or that an integer ``dtype`` (``what``) cannot hold."""
    limits = np.iinfo(dtype)
    whole = array.dtype.kind in "iub" or (np.isfinite(array).all() and (array == np.rint(array)).all())
    if not whole or array.min() < limits.min or array.max() > limits.max:
        raise FormatError(
            f"{whose}{array.dtype} values from {array.min()} to {array.max()} do not fit {what} ({limits.min} to "
            f"{limits.max}, whole numbers); {advice}"
        )


def fit(array: np.ndarray, shape: tuple[int, int, int, int], dtype: np.dtype, name: str) -> np.ndarray:
    """``array`` as (N, C, H, W) of ``dtype``; dimensions of 1 may be missing. Values must survive.

    Raises FormatError for another shape, and for values that an integer ``dtype`` cannot hold.
    """
    if array.shape == shape and array.dtype == dtype:
        return array
    if array.dtype.kind not in "iufb":
        raise FormatError(f"{name}: an array of {array.dtype} is no tensor of numbers")
    if array.size != math.prod(shape) or _without_ones(array.shape) != _without_ones(shape):
        raise FormatError(
            f"{name}: the array's shape is {shape_text(array.shape)}, the network's input is {shape_text(shape)}"
        )
    array = array.reshape(shape)
    if array.dtype == dtype:
        return array
    if dtype.kind == "i":
        check_whole(array, dtype, f"the input's {dtype}", "quantise them with the network's input scale", f"{name}: ")
    with np.errstate(over="ignore", invalid="ignore"):  # halves may become infinite, as on the hardware
        return array.astype(dtype)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def write_tensor(path: str | os.PathLike[str], tensor: np.ndarray, raw: bytes, layout: Any = None) -> None:
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
    values: Any = tensor
    if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
        values = tensor.astype(object)
        odd = ~np.isfinite(tensor)
        values[odd] = [str(float(each)) for each in tensor[odd]]
    document = {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "data": values.tolist()}
    return (json.dumps(document, allow_nan=False) + "\n").encode()


def picture(tensor: np.ndarray) -> bytes:
    """A .png of a tensor (N, C, H, W): every channel a grey tile, scaled from its own least to greatest value."""
    from PIL import Image

    planes = tensor.reshape(-1, *tensor.shape[-2:]).astype(np.float32)
    planes = np.where(np.isfinite(planes), planes, 0)
    columns = int(np.ceil(np.sqrt(len(planes))))
    rows = ceil_div(len(planes), columns)
    height, width = planes.shape[1:]
    if (height + 1) * rows * (width + 1) * columns > 64 << 20:
        raise FormatError(f"a picture of {len(planes)} planes of {width} x {height} is too large; write .npy instead")
    sheet = np.zeros((rows * (height + 1), columns * (width + 1)), np.uint8)
    for index, plane in enumerate(planes):
        low, high = plane.min(), plane.max()
        tile = (plane - low) * (255.0 / (high - low)) if high > low else np.zeros_like(plane)
        y, x = index // columns * (height + 1), index % columns * (width + 1)
        sheet[y : y + height, x : x + width] = np.rint(tile).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(sheet).save(stream, "PNG")
    return stream.getvalue()
