"""Surface layouts: how tensors lie in memory, as strided numpy views, with packing and unpacking to NCHW.

Feature layout ("NCxHWx"): channels are cut into atoms of 32 (nv_small: 8) bytes; a surface holds one atom of channels
of every position. An element (n, c, h, w) lies at ``n * image_stride + c // x * surface_stride + h * line_stride +
w * atom + c % x * element`` with x elements in an atom. Source: NVDLA doc, hw/v1/format.rst "feature data format".
Pixel layouts: lines of packed pixels (format.rst "pixel format").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.errors import FormatError, LinkError, shape_text
from nvdla.loadable.enums import DataType, PixelFormat
from nvdla.loadable.model import TensorDesc
from nvdla.loadable.pixel_formats import PIXEL_FORMATS, ImageFormat
from nvdla.memory.short_copies import assign
from nvdla.rounding import ceil_div

DTYPES: dict[DataType, np.dtype] = {
    DataType.INT8: np.dtype("i1"),
    DataType.INT16: np.dtype("<i2"),
    DataType.HALF: np.dtype("<f2"),
}
FEATURE_ATOMS = {PixelFormat.FEATURE: 32, PixelFormat.FEATURE_X8: 8}


class Layout(Protocol):
    """How an NCHW tensor lies in ``size`` bytes. Buffers are uint8 vectors of that size."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""

    @property
    def dtype(self) -> np.dtype:
        """Element type."""

    @property
    def size(self) -> int:
        """Bytes of the buffer."""

    def pack(self, array: np.ndarray, buffer: np.ndarray) -> None:
        """Write an array (N, C, H, W) into the buffer; bytes that hold no element keep what they were."""

    def unpack(self, buffer: np.ndarray) -> np.ndarray:
        """The tensor (N, C, H, W) in the buffer, as a new array."""


@dataclass(frozen=True)
class FeatureLayout:
    """Feature layout; strides in bytes. ``atom`` is 8 or 32."""

    shape: tuple[int, int, int, int]
    dtype: np.dtype
    atom: int
    line_stride: int
    surface_stride: int
    image_stride: int
    size: int

    def __post_init__(self) -> None:
        n, _, height, width = _checked_shape(self.shape)
        if self.line_stride < 0 or self.surface_stride < 0 or self.image_stride < 0:
            raise LinkError(f"negative stride: line {self.line_stride}, surface {self.surface_stride}")
        last = (n - 1) * self.image_stride + (self.surfaces - 1) * self.surface_stride
        end = last + (height - 1) * self.line_stride + width * self.atom
        if end > self.size:
            raise LinkError(
                f"a feature tensor {shape_text(self.shape)} with line stride {self.line_stride} and surface stride "
                f"{self.surface_stride} takes {end} bytes, more than its {self.size}"
            )
        _check_overlap(n * self.surfaces * height * width * self.atom, self.size, self.shape)

    @property
    def elements(self) -> int:
        """Elements (channels) of an atom."""
        return self.atom // self.dtype.itemsize

    @property
    def surfaces(self) -> int:
        """Surfaces of an image."""
        return ceil_div(self.shape[1], self.elements)

    def view(self, buffer: np.ndarray) -> np.ndarray:
        """All elements, padding channels included: a view (N, surfaces, H, W, elements of an atom)."""
        n, _, height, width = self.shape
        strides = (self.image_stride, self.surface_stride, self.line_stride, self.atom, self.dtype.itemsize)
        view: np.ndarray = np.ndarray((n, self.surfaces, height, width, self.elements), self.dtype, buffer, 0, strides)
        return view

    def pack(self, array: np.ndarray, buffer: np.ndarray) -> None:
        """Put an array (N, C, H, W) into the surface's bytes (uint8)."""
        view = self.view(buffer)
        channels, full = self.shape[1], self.shape[1] // self.elements
        if full:
            grouped = array[:, : full * self.elements].reshape(array.shape[0], full, self.elements, *array.shape[2:])
            assign(view[:, :full], grouped.transpose(0, 1, 3, 4, 2))
        if channels > full * self.elements:
            rest = channels - full * self.elements
            assign(view[:, full, :, :, :rest], array[:, full * self.elements :].transpose(0, 2, 3, 1))

    def unpack(self, buffer: np.ndarray) -> np.ndarray:
        """The array (N, C, H, W) of the surface's bytes (uint8)."""
        view = self.view(buffer).transpose(0, 1, 4, 2, 3)
        n, surfaces, elements, height, width = view.shape
        return np.array(view.reshape(n, surfaces * elements, height, width)[:, : self.shape[1]], self.dtype, order="C")


@dataclass(frozen=True)
class PixelLayout:
    """Lines of pixels, one to four components each. ``shape`` is (N, C, H, W) with C up to the pixel's components.

    Components of 8 and 16 bits are elements of ``dtype``; in the 10-bit formats three of 10 and one of 2 share a
    32-bit word, and elements are their unsigned values. Channels are R, G, B, A (Y, U, V, A). Formats of two planes
    have the second ``plane_stride`` bytes behind the first, with lines of twice the stride (twice the elements).
    """

    shape: tuple[int, int, int, int]
    dtype: np.dtype
    format: PixelFormat
    line_stride: int
    image_stride: int
    size: int
    plane_stride: int = 0

    def __post_init__(self) -> None:
        n, channels, height, width = _checked_shape(self.shape)
        if not self._image.bits and self.dtype.itemsize != self._stored.itemsize:
            raise FormatError(f"{self.format.name} has elements of {self._stored.itemsize} bytes, not {self.dtype}")
        if channels > self.components:
            raise LinkError(f"{self.format.name} has {self.components} channels, the tensor {channels}")
        last, form = len(self._image.planes) - 1, self._image
        line = (height - 1) * self.line_stride * form.lines(last) + width * form.bytes_per_pixel(last)
        end = (n - 1) * self.image_stride + last * self.plane_stride + line
        if last and self.plane_stride < height * self.line_stride:
            raise LinkError(
                f"an image {shape_text(self.shape)} in {self.format.name}: the second plane lies {self.plane_stride} "
                f"bytes behind the first, which takes {height * self.line_stride}"
            )
        if self.line_stride < 0 or end > self.size:
            raise LinkError(
                f"an image {shape_text(self.shape)} in {self.format.name} with "
                f"line stride {self.line_stride} takes {end} bytes, "
                f"more than its {self.size}"
            )
        _check_overlap(n * height * width * sum(self._plane_bytes), self.size, self.shape)

    @property
    def components(self) -> int:
        """Elements of a pixel."""
        return self._image.channels

    @property
    def pixel_bytes(self) -> int:
        """Components of a pixel as they lie in memory, those of the first plane."""
        return self._image.bytes_per_pixel(0)

    @property
    def atom(self) -> int:
        """Bytes of a pixel (the distance of columns, as in a feature layout)."""
        return self.pixel_bytes

    @property
    def surface_stride(self) -> int:
        """From plane to plane; an image of one has none."""
        return self.plane_stride

    def pack(self, array: np.ndarray, buffer: np.ndarray) -> None:
        """Put an array (N, C, H, W) into the image's bytes (uint8)."""
        if self._image.bits:
            self._words(buffer)[:] = self._pack_10(array)
            return
        for plane, order in enumerate(self._image.planes):
            pixels = self._pixels(buffer, plane)
            for position, channel in enumerate(order):
                if channel < array.shape[1]:
                    assign(pixels[..., position], array[:, channel].astype(self.dtype, copy=False).view(self._stored))

    def unpack(self, buffer: np.ndarray) -> np.ndarray:
        """The array (N, C, H, W) of the image's bytes (uint8)."""
        channels = self.shape[1]
        if self._image.bits:
            return self._unpack_10(buffer)[:, :channels]
        found = [np.empty(0, self.dtype)] * self.components
        for plane, order in enumerate(self._image.planes):
            pixels = self._pixels(buffer, plane)
            for position, channel in enumerate(order):
                found[channel] = pixels[..., position].view(self.dtype)
        return np.stack(found[:channels], axis=1)

    @property
    def _image(self) -> ImageFormat:
        return PIXEL_FORMATS[self.format]

    @property
    def _stored(self) -> np.dtype:
        return np.dtype(f"<u{self._image.element_bytes}")

    @property
    def _plane_bytes(self) -> list[int]:
        return [self._image.bytes_per_pixel(plane) for plane in range(len(self._image.planes))]

    def _pixels(self, buffer: np.ndarray, plane: int) -> np.ndarray:
        """View (N, H, W, components) of a plane in memory order, element type as stored."""
        n, _, height, width = self.shape
        size, line = self._plane_bytes[plane], self.line_stride * self._image.lines(plane)
        shape, strides = (n, height, width, size), (self.image_stride, line, size, 1)
        return as_strided(buffer[plane * self.plane_stride :], shape, strides).view(self._stored)

    def _words(self, buffer: np.ndarray) -> np.ndarray:
        n, _, height, width = self.shape
        flat = as_strided(buffer, (n, height, width, 4), (self.image_stride, self.line_stride, 4, 1))
        return flat.view("<u4")[..., 0]

    def _fields(self) -> list[tuple[int, int, int]]:
        """(channel, shift, bits) of each component, from the least significant bits up."""
        bits = self._image.bits
        return [(channel, sum(bits[:at]), bits[at]) for at, channel in enumerate(self._image.planes[0])]

    def _pack_10(self, array: np.ndarray) -> np.ndarray:
        word = np.zeros((array.shape[0], *array.shape[2:]), np.uint32)
        for channel, shift, bits in self._fields():
            if channel < array.shape[1]:
                word |= (array[:, channel].astype(np.uint32) & ((1 << bits) - 1)) << np.uint32(shift)
        return word

    def _unpack_10(self, buffer: np.ndarray) -> np.ndarray:
        words = self._words(buffer)
        planes = [np.empty(0, self.dtype)] * 4
        for channel, shift, bits in self._fields():
            planes[channel] = (words >> np.uint32(shift) & ((1 << bits) - 1)).astype(self.dtype)
        return np.stack(planes, axis=1)


def tensor_layout(tensor: TensorDesc, size: int, strides: tuple[int, ...] | None = None) -> Layout:
    """The layout of a bound tensor in a memory of ``size`` bytes, with its own strides or the given ones.

    Raises FormatError for a data type or pixel format that a bound tensor cannot have, LinkError where it does not fit.
    """
    line, surface = (strides or tensor.strides)[1:3]
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None:
        known = ", ".join(each.name for each in DTYPES)
        raise FormatError(f"tensor {tensor.name}: data type {tensor.data_type.name} is not one of {known}")
    shape = (tensor.n, tensor.c, tensor.h, tensor.w)
    _checked_shape(shape)
    image_stride = size // tensor.n
    if tensor.pixel_format in FEATURE_ATOMS:
        atom = FEATURE_ATOMS[tensor.pixel_format]
        return FeatureLayout(shape, dtype, atom, line, surface, image_stride, size)
    if tensor.pixel_format >= len(PIXEL_FORMATS):
        raise FormatError(f"tensor {tensor.name}: its pixel format {tensor.pixel_format} is not known")
    planes = len(PIXEL_FORMATS[tensor.pixel_format].planes)
    plane = (surface or tensor.h * line) if planes > 1 else 0
    return PixelLayout(shape, dtype, tensor.pixel_format, line, image_stride, size, plane)


def _check_overlap(needed: int, size: int, shape: tuple[int, ...]) -> None:
    """Strides may not make a small memory stand for a large tensor."""
    if needed > size:
        raise LinkError(
            f"a tensor of N x C x H x W = {shape_text(shape)} has {needed} bytes in whole atoms, its memory has {size}"
        )


def _checked_shape(shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    if min(shape) < 1:
        raise LinkError(f"a tensor of N x C x H x W = {shape_text(shape)} is empty")
    return shape
