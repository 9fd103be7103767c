"""numpy's .npy files, read without numpy's reader: no pickles, nothing evaluated, nothing allocated beyond the file.

Format: numpy/lib/format.py, "NPY format" (magic, version, header length, a Python dictionary as text, the data).
"""

from __future__ import annotations

import ast
import math
import os
import re
from typing import Any

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.files import require_file

MAGIC = b"\x93NUMPY"
MAX_HEADER = 1 << 14
MAX_RANK = 32
_NUMBER_TYPE = re.compile(r"[<>|=]?[biufc]\d{1,2}")


def parse_npy(data: bytes | memoryview, name: str) -> np.ndarray:
    """The array of a .npy file, a view on ``data``. FormatError for anything but plain numbers in full length."""
    start, shape, dtype, order = read_header(data, name)
    expected = _full_length(shape, dtype, len(data) - start, name)
    try:
        values = np.frombuffer(data, dtype, math.prod(shape), start) if expected else np.empty(0, dtype)
        return values.reshape(shape, order=order)
    except ValueError as error:  # an empty array of sizes that numpy does not take
        raise FormatError(f"{name}: .npy shape {shape_text(shape)[:80]} is not possible: {error}") from None


def map_npy(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of a .npy file that is mapped, not read. FormatError as :func:`parse_npy`, OSError where it cannot be
    opened."""
    name = os.fspath(path)
    require_file(path, "array")
    with open(path, "rb") as stream:
        beginning, size = stream.read(MAX_HEADER + 12), os.fstat(stream.fileno()).st_size
        start, shape, dtype, order = read_header(beginning, name)
        if not _full_length(shape, dtype, size - start, name):
            return parse_npy(beginning, name)
        return np.memmap(stream, dtype, "r", start, shape, order)


def _full_length(shape: tuple[int, ...], dtype: np.dtype, found: int, name: str) -> int:
    """Bytes of the data, which the file must hold."""
    expected = math.prod(shape) * dtype.itemsize
    if expected != found:
        text = " x ".join(map(str, shape)) or "one"
        raise FormatError(
            f"{name}: the header says {text[:80]} elements of {dtype.itemsize} bytes = {expected} bytes, "
            f"the file holds {found}{' (cut off?)' if found < expected else ''}"
        )
    return expected


def read_header(data: bytes | memoryview, name: str) -> tuple[int, tuple[int, ...], np.dtype, Any]:
    """Where the data begin, shape, element type and order ("C" or "F"), from the first bytes of a file (at most
    MAX_HEADER + 12 are looked at). FormatError as :func:`parse_npy` raises it."""
    start, header = _header(data, name)
    return start, *_meaning(header, name)


def _header(data: bytes | memoryview, name: str) -> tuple[int, str]:
    """Where the data begin, and the header's text."""
    if bytes(data[:6]) == MAGIC and len(data) < 10:
        raise FormatError(f"{name}: {len(data)} bytes, less than a .npy header has (cut off?)")
    if bytes(data[:6]) != MAGIC:
        raise FormatError(f"{name}: not a .npy array that can be read: no \\x93NUMPY at byte 0")
    major, size = data[6], 2 if data[6] == 1 else 4
    if major not in (1, 2, 3):
        raise FormatError(f"{name}: .npy version {major} is not known, only 1, 2 and 3 are")
    length = int.from_bytes(data[8 : 8 + size], "little")
    start = 8 + size + length
    if length > MAX_HEADER or start > len(data):
        hint = " (cut off?)" if length <= MAX_HEADER else ""
        raise FormatError(
            f"{name}: .npy header of {length} bytes; the file has {len(data)}, the limit is {MAX_HEADER}{hint}"
        )
    return start, bytes(data[8 + size : start]).decode("utf-8" if major == 3 else "latin-1", "replace")


def _meaning(header: str, name: str) -> tuple[tuple[int, ...], np.dtype, Any]:
    """Shape, element type and order ("C" or "F") of a header."""
    try:
        fields = ast.literal_eval(header.strip())
        shape, descr, fortran = fields["shape"], fields["descr"], fields["fortran_order"]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        why = type(error).__name__
        raise FormatError(f"{name}: not a .npy array that can be read: broken header ({why})") from None
    if not isinstance(shape, tuple) or len(shape) > MAX_RANK or not all(map(_is_size, shape)):
        raise FormatError(f"{name}: the .npy shape is no tuple of at most {MAX_RANK} sizes below 2^63")
    if not isinstance(descr, str) or not _NUMBER_TYPE.fullmatch(descr):
        kind = descr[:80] if isinstance(descr, str) else f"given as {type(descr).__name__}"
        raise FormatError(f"{name}: .npy element type {kind} is no plain number (objects are never read)")
    try:
        return shape, np.dtype(descr), "F" if fortran else "C"
    except TypeError:
        raise FormatError(f"{name}: .npy element type {descr} does not exist") from None


def _is_size(extent: object) -> bool:
    """Numbers of thousands of digits can be read, but not even be shown."""
    return type(extent) is int and 0 <= extent < 1 << 63
