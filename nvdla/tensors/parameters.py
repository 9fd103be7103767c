"""The tensor parameter every container speaks: name, element type, shape, bytes, metadata.

Conversions between formats go through a list of :class:`Parameter`; a format reads into it and is written from it.
Data is a read-only view on the file it came from: nothing is copied until it is written somewhere else.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import IO

import numpy as np

from nvdla.errors import FormatError, shape_text
from nvdla.util.escaping import Json
from nvdla.util.files import write_data
from nvdla.util.rounding import ceil_div

#: Bytes that the constant (splat) parameters of a file may take together when they are written out in full.
MATERIALISE_LIMIT = 1 << 28

#: Element types: name -> bits of one element as stored. Names are numpy's, and ml_dtypes' where numpy has none.
ELEMENT_BITS: Mapping[str, int] = MappingProxyType({
    "bool": 8,
    "int4": 4, "uint4": 4,
    "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64, "uint64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64, "complex64": 64, "complex128": 128,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8,
    "float8_e3m4": 8, "float8_e4m3": 8, "float8_e4m3b11fnuz": 8,
})  # fmt: skip

#: Bytes that the pattern of a splat may have.
PATTERN_LENGTHS = (1, 2, 4, 8, 16)

#: Bytes of a splat that are written at a time; a multiple of every pattern IREE knows.
_SPLAT_PIECE = 1 << 20

_NO_METADATA: Mapping[str, Json] = MappingProxyType({})


def element_count(shape: tuple[int, ...]) -> int:
    """Elements of a tensor of this shape (1 for a scalar)."""
    return 0 if 0 in shape else math.prod(shape)  # a long shape with an extent of 0 must not make a huge number


def packed_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor: elements packed without gaps, the last byte padded for types under 8 bits."""
    if dtype not in ELEMENT_BITS:
        raise FormatError(f"unknown element type {dtype!r}: must be one of {', '.join(ELEMENT_BITS)}")
    return ceil_div(element_count(shape) * ELEMENT_BITS[dtype], 8)


@dataclass(frozen=True)
class Parameter:
    """One named tensor.

    ``dtype`` is a key of ELEMENT_BITS and ``shape`` a tuple; both are None if the container does not record them (the
    tensor is then a sequence of bytes). ``data`` is a read-only, one-dimensional byte view, little-endian, in C order;
    it is None for a splat, which repeats ``pattern`` over ``length`` bytes, and for data in a separate file (without a
    pattern). ``metadata`` contains other facts from the container as plain JSON values.
    """

    name: str
    dtype: str | None
    shape: tuple[int, ...] | None
    data: memoryview | None
    length: int
    pattern: bytes | None = None
    metadata: Mapping[str, object] = field(default_factory=lambda: _NO_METADATA)
    #: What the container this came from holds for it, so that writing the same format again loses nothing.
    origin: object = field(default=None, repr=False, compare=False)

    @classmethod
    def from_bytes(
        cls,
        name: str,
        data: bytes | memoryview,
        dtype: str | None = None,
        shape: tuple[int, ...] | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> Parameter:
        """Return a parameter on existing bytes, without a copy.

        Args:
            name: Name of the tensor.
            data: The bytes, little-endian, in C order.
            dtype: Key of ELEMENT_BITS, if known.
            shape: Shape, if known.
            metadata: Other facts, plain JSON values.
        """
        view = memoryview(data).toreadonly().cast("B") if len(data) else memoryview(b"")
        return cls(name, dtype, shape, view, len(view), None, metadata or _NO_METADATA)

    @classmethod
    def from_array(cls, name: str, array: np.ndarray, metadata: Mapping[str, object] | None = None) -> Parameter:
        """Return a parameter on a numpy array, copied only if it is not C-contiguous and little-endian.

        Args:
            name: Name of the tensor.
            array: The array.
            metadata: Other facts, plain JSON values.

        Raises:
            FormatError: Containers do not have the element type of the array.
        """
        plain = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).reshape(array.shape)
        if plain.dtype.name not in ELEMENT_BITS:
            raise FormatError(
                f"parameter {name!r}: element type: must be one of {', '.join(ELEMENT_BITS)}, got {array.dtype}"
            )
        return cls.from_bytes(name, plain.reshape(-1).view(np.uint8).data, plain.dtype.name, plain.shape, metadata)

    def as_bytes(self, limit: int = MATERIALISE_LIMIT) -> memoryview:
        """Return the bytes; a splat is written out.

        Args:
            limit: Largest size of a splat, in bytes.

        Raises:
            FormatError: The splat is larger, or the data are in a separate file.
        """
        if self.data is not None:
            return self.data
        if self.pattern is None:
            raise FormatError(
                f"parameter {self.name!r}: its {self.length} bytes are in an external file. Name the directory "
                "that may be read: --option external=DIR."
            )
        if self.length > limit:
            raise FormatError(
                f"parameter {self.name!r}: splat: must have at most {limit} bytes when written out, got "
                f"{self.length}. Keep it a splat, or raise the limit."
            )
        pattern = self._sound_pattern()
        return memoryview((pattern * (self.length // len(pattern) + 1))[: self.length]).toreadonly()

    def _sound_pattern(self) -> bytes:
        """The pattern of a splat. FormatError for one of a length that stands for nothing: 0 bytes, or 3."""
        pattern = self.pattern or b""
        if len(pattern) not in PATTERN_LENGTHS:
            raise FormatError(f"parameter {self.name!r}: pattern: must have 1, 2, 4, 8 or 16 bytes, got {len(pattern)}")
        return pattern

    def write(self, file: IO[bytes]) -> None:
        """Write :meth:`as_bytes` to a file, piece by piece; :func:`check_splats` limits splats.

        Args:
            file: File that is open for writing.
        """
        if self.data is not None:
            write_data(file, self.data)
            return
        if self.pattern is None:
            self.as_bytes()  # says what is missing
        pattern = self._sound_pattern()
        piece = pattern * (_SPLAT_PIECE // len(pattern))
        for start in range(0, self.length, len(piece)):
            file.write(piece[: self.length - start])

    def as_array(self, limit: int = MATERIALISE_LIMIT) -> np.ndarray:
        """Return the tensor as a read-only array (a view if there are data).

        The type is uint8 if it is not recorded. Types that numpy lacks (bfloat16, float8, int4) become unsigned
        integers of the same width and shape; int4 and uint4 become packed, one-dimensional bytes.

        Args:
            limit: Largest size of a splat, in bytes.

        Raises:
            FormatError: The splat is larger, or the data are in a separate file.
        """
        data = self.as_bytes(limit)
        if self.dtype is None or self.shape is None:
            return np.frombuffer(data, np.uint8)
        bits = ELEMENT_BITS.get(self.dtype)
        if bits is None:
            raise FormatError(f"parameter {self.name!r}: element type: must be known, got {self.dtype!r}")
        expected = packed_size(self.dtype, self.shape)
        if expected != len(data):
            raise FormatError(
                f"parameter {self.name!r}: data: must have {expected} bytes ({self.dtype} of shape "
                f"{shape_text(self.shape)}), got {len(data)}"
            )
        if bits < 8:
            return np.frombuffer(data, np.uint8)
        return np.frombuffer(data, numpy_dtype(self.dtype)).reshape(self.shape)


def utf8_name(name: str) -> bytes:
    """A parameter's name in UTF-8; FormatError for one that was read from other bytes."""
    try:
        return name.encode("utf-8")
    except UnicodeEncodeError:
        raise FormatError(f"parameter name {name!r} cannot be written as UTF-8") from None


def check_given(parameters: Iterable[Parameter]) -> None:
    """Check what a file is to be written from: names that bytes can hold, as many bytes as type and shape take.

    Raises:
        FormatError: a parameter is not so.
    """
    for parameter in parameters:
        try:
            parameter.name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise FormatError(
                f"parameter {parameter.name[:80]!r}: name: must not contain half of a surrogate pair"
            ) from None
        if parameter.dtype is None or parameter.shape is None:
            continue
        size = packed_size(parameter.dtype, parameter.shape)
        if parameter.length != size:
            shown = f"{parameter.dtype} of shape {shape_text(parameter.shape)}"
            raise FormatError(
                f"parameter {parameter.name[:80]!r}: {shown} must have {size} bytes, got {parameter.length}"
            )


def check_splats(parameters: Iterable[Parameter], limit: int = MATERIALISE_LIMIT) -> None:
    """FormatError when all splats written out would take more than ``limit`` bytes: a small file may ask for that."""
    total = sum(parameter.length for parameter in parameters if parameter.data is None)
    if total > limit:
        raise FormatError(
            f"splats: must have at most {limit} bytes when written out, got {total}. Exclude them, or write a "
            "format that keeps splats (irpa)."
        )


def numpy_dtype(dtype: str) -> np.dtype:
    """The little-endian numpy type that holds ``dtype``: itself, or the unsigned integer of its width.

    Types that other packages register with numpy (ml_dtypes' bfloat16) do not count: files would depend on them.
    """
    with contextlib.suppress(TypeError):
        if np.dtype(dtype).isbuiltin == 1:
            return np.dtype(dtype).newbyteorder("<")
    return np.dtype(f"<u{max(ELEMENT_BITS[dtype], 8) // 8}")
