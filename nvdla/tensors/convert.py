"""Tensors between layouts, element types and files: what ``nvdla tensor`` does.

A :class:`Form` says how a tensor is in bytes: layout, shape, element type, strides. Layouts are "feature-x8",
"feature-x16", "feature-x32" (surfaces of atoms of so many bytes), "nchw" and "nhwc" (dense), and NVDLA's pixel formats
("A8B8G8R8" ...; of two planes the second is a surface stride after the first, with lines of twice the stride).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from nvdla.emulator.memory.surfaces import FeatureLayout, Layout, PixelLayout, feature_atom, tensor_layout
from nvdla.errors import FormatError, shape_text
from nvdla.loadable.enums import PIXEL_FORMATS, ImageFormat, PixelFormat
from nvdla.loadable.model import Loadable
from nvdla.tensors.files import check_whole
from nvdla.util.rounding import ceil_div

ATOMS = {"feature-x8": 8, "feature-x16": 16, "feature-x32": 32}
DENSE = ("nchw", "nhwc")
PIXELS = tuple(pixel_format.name for pixel_format in PixelFormat if pixel_format < PixelFormat.FEATURE)
LAYOUTS = (*ATOMS, *DENSE, *PIXELS)
DTYPES = ("int8", "uint8", "int16", "uint16", "float16", "float32")
MAX_BYTES = 1 << 30
MAX_SIDE = 1 << 24

Shape = tuple[int, int, int, int]


@dataclass(frozen=True)
class DenseLayout:
    """Elements one after the other, without gaps: channels outermost ("nchw") or innermost ("nhwc")."""

    shape: Shape
    dtype: np.dtype
    order: str
    size: int

    @property
    def _stored(self) -> Shape:
        n, c, h, w = self.shape
        return (n, c, h, w) if self.order == "nchw" else (n, h, w, c)

    def pack(self, array: np.ndarray, buffer: np.ndarray) -> None:
        """Put an array (N, C, H, W) into the bytes (uint8)."""
        stored = array if self.order == "nchw" else np.moveaxis(array, 1, -1)
        buffer[:] = np.ascontiguousarray(stored, self.dtype).reshape(-1).view(np.uint8)

    def unpack(self, buffer: np.ndarray) -> np.ndarray:
        """The array (N, C, H, W) of the bytes (uint8)."""
        stored = buffer.view(self.dtype).reshape(self._stored)
        return np.array(stored if self.order == "nchw" else np.moveaxis(stored, -1, 1), order="C")


@dataclass(frozen=True)
class Form:
    """Byte layout of a tensor (N, C, H, W). Strides of 0 are the packed ones; all are in bytes.

    ``size``: bytes of the buffer, 0 = as many as the tensor takes.
    """

    layout: str
    shape: Shape
    dtype: np.dtype
    line_stride: int = 0
    surface_stride: int = 0
    image_stride: int = 0
    size: int = 0

    def make(self, size: int | None = None) -> Layout:
        """The layout in a buffer of ``size`` bytes (None: as many as it takes).

        Raises NvdlaError for unknown layouts, shapes and sizes that cannot be, a buffer that is too small.
        """
        _check_shape(self.shape, self.dtype)
        filled = self.filled()
        filled._check_strides()
        needed = filled.bytes
        size = (self.size or needed) if size is None else size
        if not 0 < needed <= MAX_BYTES or size > MAX_BYTES:
            raise FormatError(
                f"a tensor {shape_text(self.shape)} of {self.dtype} as {self.layout}: must have at most "
                f"{MAX_BYTES} bytes, got {needed}"
            )
        if self.layout in DENSE:
            if size != needed:
                raise FormatError(
                    f"a tensor {shape_text(self.shape)} of {self.dtype}: must have {needed} bytes, got {size}"
                )
            return DenseLayout(self.shape, self.dtype, self.layout, size)
        if self.layout in ATOMS:
            return FeatureLayout(
                self.shape, self.dtype, ATOMS[self.layout], filled.line_stride, filled.surface_stride,
                filled.image_stride, size,
            )  # fmt: skip
        pixel = PixelFormat[self.layout]
        strides = filled.line_stride, filled.image_stride, size, filled.surface_stride
        return PixelLayout(self.shape, self.dtype, pixel, *strides)

    def filled(self) -> Form:
        """This layout with the packed strides written out. Raises FormatError for an unknown layout."""
        height, width = self.shape[2:]
        if self.layout not in LAYOUTS:
            raise FormatError(f"unknown layout {self.layout!r}: must be one of {', '.join(LAYOUTS)}")
        if self.layout in DENSE:
            return self
        if self.layout in ATOMS:
            line = self.line_stride or width * ATOMS[self.layout]
            surface = self.surface_stride or height * line
            return replace(
                self, line_stride=line, surface_stride=surface,
                image_stride=self.image_stride or self.surfaces * surface,
            )  # fmt: skip
        line = self.line_stride or width * self.pixel_bytes
        surface = (self.surface_stride or height * line) if self._planes > 1 else 0
        image = self.image_stride or surface + height * line * self._image.lines(self._planes - 1)
        return replace(self, line_stride=line, surface_stride=surface, image_stride=image)

    def _check_strides(self) -> None:
        """Lines, surfaces and images do not overlap."""
        if self.layout in DENSE:
            return
        n, _, height, width = self.shape
        line = width * (ATOMS.get(self.layout) or self.pixel_bytes)
        image = max(self.surfaces * self.surface_stride, height * self.line_stride)
        if self._planes > 1:
            image = self.surface_stride + height * self.line_stride * self._image.lines(1)
        for name, value, least, matters in (
            ("line stride", self.line_stride, line, True),
            ("surface stride", self.surface_stride, height * self.line_stride, max(self.surfaces, self._planes) > 1),
            ("image stride", self.image_stride, image, n > 1),
        ):
            if value > MAX_BYTES:
                raise FormatError(f"{name}: must be at most {MAX_BYTES} bytes, got {str(value)[:40]}")
            if matters and value < least:
                raise FormatError(f"{name}: must be at least {least} bytes, got {value}")

    @property
    def surfaces(self) -> int:
        """Surfaces of an image in a feature layout, 1 otherwise."""
        if self.layout not in ATOMS:
            return 1
        return ceil_div(self.shape[1] * self.dtype.itemsize, ATOMS[self.layout])

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel in an image format, in the first plane."""
        return self._image.bytes_per_pixel(0)

    @property
    def _image(self) -> ImageFormat:
        return PIXEL_FORMATS[PixelFormat[self.layout]]

    @property
    def _planes(self) -> int:
        return len(self._image.planes) if self.layout in PIXELS else 1

    @property
    def bytes(self) -> int:
        """Return the bytes of the packed or strided tensor, to its last byte; whole surfaces and lines where it is
        packed."""
        n, _, height, width = self.shape
        if self.layout in DENSE:
            return math.prod(self.shape) * self.dtype.itemsize
        filled = self.filled()
        if self.layout in ATOMS:
            line, last = width * ATOMS[self.layout], (self.surfaces - 1) * filled.surface_stride
        else:
            plane = self._planes - 1
            line, last = width * self._image.bytes_per_pixel(plane), plane * filled.surface_stride
            last += (height - 1) * filled.line_stride * (self._image.lines(plane) - 1)
        image = last + (height - 1) * filled.line_stride + line
        return (n - 1) * filled.image_stride + image

    def offset(self, n: int, c: int, h: int, w: int) -> int:
        """The byte at which an element begins."""
        size = self.dtype.itemsize
        _, channels, height, width = self.shape
        if self.layout == "nchw":
            return (((n * channels + c) * height + h) * width + w) * size
        if self.layout == "nhwc":
            return (((n * height + h) * width + w) * channels + c) * size
        filled = self.filled()
        if self.layout in ATOMS:
            elements = ATOMS[self.layout] // size
            surface, inside = divmod(c, elements)
            return (
                n * filled.image_stride + surface * filled.surface_stride + h * filled.line_stride
                + w * ATOMS[self.layout] + inside * size
            )  # fmt: skip
        plane, place = self._component(c)
        start = n * filled.image_stride + plane * filled.surface_stride + place * size
        return (
            start
            + h * filled.line_stride * self._image.lines(plane)
            + w * self._image.bytes_per_pixel(plane)
        )  # fmt: skip

    def _component(self, channel: int) -> tuple[int, int]:
        """The plane of a channel, and its place in a pixel of that."""
        for plane, order in enumerate(self._image.planes):
            if channel in order:
                return plane, order.index(channel)
        return 0, 0


def _check_shape(shape: Shape, dtype: np.dtype) -> None:
    if len(shape) != 4 or not all(1 <= side <= MAX_SIDE for side in shape):
        raise FormatError(f"shape: N, C, H, W must each be 1 .. {MAX_SIDE}, got {shape_text(shape)}")
    if math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise FormatError(f"a tensor {shape_text(shape)} of {dtype}: must have at most {MAX_BYTES} bytes")


def dtype_named(name: str) -> np.dtype:
    """An element type by name. Raises FormatError."""
    if name not in DTYPES:
        raise FormatError(f"unknown element type {name!r}: must be one of {', '.join(DTYPES)}")
    return np.dtype(name).newbyteorder("<")


def form_of(loadable: Loadable, name: str | None) -> Form:
    """The form of a bound tensor of a loadable: by name, or its only input. Raises FormatError."""
    bound = {loadable.tensor(m.tensor_desc_id).name: m for m in (*loadable.inputs, *loadable.outputs)}
    if name is None and len(loadable.inputs) == 1:
        name = loadable.tensor(loadable.inputs[0].tensor_desc_id).name
    if name not in bound:
        given = repr(name) if name else "none. Name the tensor: FILE:NAME."
        raise FormatError(f"{loadable.name}: bound tensor: must be one of {', '.join(bound) or 'none'}, got {given}")
    memory = bound[name]
    tensor = loadable.tensor(memory.tensor_desc_id)
    layout = tensor_layout(tensor, memory.size)
    names = {atom: name for name, atom in ATOMS.items()}
    return Form(
        names.get(feature_atom(tensor) or 0, tensor.pixel_format.name),
        layout.shape,
        layout.dtype,
        tensor.line_stride,
        tensor.surface_stride,
        memory.size // max(tensor.n, 1),
        memory.size,
    )


def unpack(data: bytes, form: Form, what: str) -> np.ndarray:
    """The tensor (N, C, H, W) in raw bytes. Raises FormatError when they are too few."""
    if len(data) < form.bytes:
        raise FormatError(
            f"{what}: {shape_text(form.shape)} of {form.dtype} as {form.layout}: must have {form.bytes} bytes, got "
            f"{len(data)} (cut off?)"
        )
    size = form.bytes if form.layout in DENSE else len(data)
    if form.layout in DENSE and len(data) != size:
        raise FormatError(
            f"{what}: {shape_text(form.shape)} of {form.dtype} as {form.layout}: must have {size} bytes, got "
            f"{len(data)}"
        )
    return form.make(size).unpack(np.frombuffer(data, np.uint8))


def pack(array: np.ndarray, form: Form) -> bytes:
    """The bytes of a tensor; those that hold no element are 0."""
    layout = form.make()
    buffer = np.zeros(layout.size, np.uint8)
    layout.pack(array, buffer)
    return buffer.tobytes()


def quantize(array: np.ndarray, dtype: np.dtype, scale: float, offset: int = 0) -> np.ndarray:
    """Real numbers to elements: ``round(real / scale) + offset``, halves away from zero, saturated.

    Raises FormatError for a scale that is not a positive number, and NaN where the elements are integers.
    """
    _check_scale(scale)
    values = array.astype(np.float64) / scale
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    if np.isnan(values).any():
        raise FormatError(f"values: must not be NaN for {dtype}, got {int(np.isnan(values).sum())} NaN")
    limits = np.iinfo(dtype)
    rounded = np.copysign(np.floor(np.abs(values) + 0.5), values) + offset
    return np.clip(rounded, limits.min, limits.max).astype(dtype)


def dequantize(array: np.ndarray, scale: float, offset: int = 0) -> np.ndarray:
    """Elements to real numbers (float32): ``scale * (element - offset)``."""
    _check_scale(scale)
    with np.errstate(over="ignore"):
        return (scale * (array.astype(np.float64) - offset)).astype(np.float32)


def _check_scale(scale: float) -> None:
    if not (math.isfinite(scale) and scale > 0):
        raise FormatError(f"scale: must be a positive number (the real value of one unit), got {scale}")


def cast(array: np.ndarray, dtype: np.dtype, advice: str = "Use --quantization-scale to quantize them") -> np.ndarray:
    """The same values in another element type. Raises FormatError with ``advice`` when an integer type cannot hold
    them."""
    if array.dtype == dtype:
        return array
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    check_whole(array, dtype, str(dtype), advice)
    return array.astype(dtype)


def as_nchw(array: np.ndarray, shape: Shape | None, what: str) -> np.ndarray:
    """An array of up to four dimensions as (N, C, H, W), or as ``shape``. Raises FormatError."""
    if array.dtype.kind not in "iufb":
        raise FormatError(f"{what}: must be an array of numbers, got elements of type {array.dtype}")
    if shape is not None:
        if array.size != math.prod(shape):
            raise FormatError(
                f"{what}: must have the {math.prod(shape)} elements of {shape_text(shape)}, got {array.size} in "
                f"shape {shape_text(array.shape)}"
            )
        return array.reshape(shape)
    if array.ndim > 4:
        raise FormatError(f"{what}: must have 4 dimensions, got {array.ndim}. Add --shape N,C,H,W.")
    if array.size == 0:
        raise FormatError(f"{what}: must have at least one element, got shape {shape_text(array.shape)}")
    return array.reshape((1,) * (4 - array.ndim) + array.shape)
