"""Surfaces and weights in memory: layouts, packing, short copies.

numpy releases Python's lock for more than 500 elements, which wakes a thread that waits for it. That takes longer than
the copy; where several threads run a small network, much longer than the run.

Feature layout ("NCxHWx"): channels are cut into atoms of 32 (nv_small: 8) bytes; a surface holds one atom of channels
of every position. An element (n, c, h, w) is at ``n * image_stride + c // x * surface_stride + h * line_stride +
w * atom + c % x * element`` with x elements in an atom. Source: NVDLA doc, hw/v1/format.rst "feature data format".
Pixel layouts: lines of packed pixels (format.rst "pixel format").

Source: "In-memory data formats", weight format; cmod/csc/NV_NVDLA_csc.cpp:1150 (direct), :1553 (image).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from nvdla.errors import FormatError, LinkError, shape_text
from nvdla.loadable.enums import PIXEL_FORMATS, DataType, ImageFormat, PixelFormat
from nvdla.loadable.model import TensorDesc
from nvdla.util.rounding import ceil_div

SHORT = 1 << 15
"""Bytes that are copied in about the time that it takes to give the lock up and to take it again."""
UNNOTICED, MOST_PIECES = 500, 8
"""Elements for which numpy keeps the lock, and so many times more that are assigned in pieces."""
_ZEROS = memoryview(bytes(SHORT))


def put(target: np.ndarray, source: memoryview | bytes | bytearray) -> None:
    """Copy bytes into as many contiguous ones (uint8)."""
    if target.size <= SHORT:
        target.data[:] = source
    else:
        target[:] = np.frombuffer(source, np.uint8)


def clear(target: np.ndarray) -> None:
    """Zero contiguous bytes (uint8)."""
    if target.size <= SHORT:
        target.data[:] = _ZEROS[: target.size]
    else:
        target.fill(0)


def assign(target: np.ndarray, source: np.ndarray) -> None:
    """``target[...] = source`` (same shape), in pieces that numpy keeps the lock for where few of them do."""
    if UNNOTICED < target.size <= MOST_PIECES * UNNOTICED:
        axis = max(range(target.ndim), key=target.shape.__getitem__)
        slice_size = target.size // target.shape[axis]
        long = UNNOTICED // slice_size
        if long * MOST_PIECES >= target.shape[axis]:
            before = (slice(None),) * axis
            for first in range(0, target.shape[axis], long):
                piece = *before, slice(first, first + long)
                target[piece] = source[piece]
            return
    target[...] = source


DTYPES: dict[DataType, np.dtype] = {
    DataType.INT8: np.dtype("i1"),
    DataType.INT16: np.dtype("<i2"),
    DataType.HALF: np.dtype("<f2"),
}
FEATURE_ATOMS = {PixelFormat.FEATURE: 32, PixelFormat.FEATURE_X8: 8}
MIDDLE_ATOM = 16


def feature_format(atom: int) -> PixelFormat | None:
    """The format of feature tensors with atoms of so many bytes; None: loadables have none."""
    if atom == MIDDLE_ATOM:
        return PixelFormat.FEATURE  # with strides of such atoms
    return next((pixel_format for pixel_format, size in FEATURE_ATOMS.items() if size == atom), None)


def feature_atom(tensor: TensorDesc) -> int | None:
    """Bytes of the atoms of a bound feature tensor, None for pixels.

    NVIDIA's stack has no format for atoms of 16 bytes (nv_medium_512): its compiler knows nv_full, nv_large and
    nv_small, its runtime FEATURE as 32 bytes and FEATURE_X8. A FEATURE tensor whose lines have exactly 16 bytes per
    pixel is one of them.
    """
    atom = FEATURE_ATOMS.get(tensor.pixel_format)
    if tensor.pixel_format == PixelFormat.FEATURE and tensor.line_stride == tensor.w * MIDDLE_ATOM:
        return MIDDLE_ATOM
    return atom


class Layout(Protocol):
    """Layout of an NCHW tensor in ``size`` bytes. Buffers are uint8 vectors of that size."""

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
            raise LinkError(
                f"strides: must not be negative, got line {self.line_stride}, surface {self.surface_stride}"
            )
        last = (n - 1) * self.image_stride + (self.surfaces - 1) * self.surface_stride
        end = last + (height - 1) * self.line_stride + width * self.atom
        if end > self.size:
            raise LinkError(
                f"feature tensor {shape_text(self.shape)}: must have at most {self.size} bytes, got {end} (line "
                f"stride {self.line_stride}, surface stride {self.surface_stride})"
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
    have the second ``plane_stride`` bytes after the first, with lines of twice the stride (twice the elements).
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
            raise FormatError(
                f"element type: must have {self._stored.itemsize} bytes for {self.format.name}, got {self.dtype}"
            )
        if channels > self.components:
            raise LinkError(f"channels: must be at most {self.components} for {self.format.name}, got {channels}")
        last, form = len(self._image.planes) - 1, self._image
        line = (height - 1) * self.line_stride * form.lines(last) + width * form.bytes_per_pixel(last)
        end = (n - 1) * self.image_stride + last * self.plane_stride + line
        if last and self.plane_stride < height * self.line_stride:
            raise LinkError(
                f"image {shape_text(self.shape)} in {self.format.name}: offset of the second plane: must be at "
                f"least {height * self.line_stride} bytes (first plane), got {self.plane_stride}"
            )
        if self.line_stride < 0 or end > self.size:
            raise LinkError(
                f"image {shape_text(self.shape)} in {self.format.name}: must have at most {self.size} bytes, got "
                f"{end} (line stride {self.line_stride})"
            )
        _check_overlap(n * height * width * sum(self._plane_bytes), self.size, self.shape)

    @property
    def components(self) -> int:
        """Elements of a pixel."""
        return self._image.channels

    @property
    def pixel_bytes(self) -> int:
        """Components of a pixel in memory order, those of the first plane."""
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
        planes = [np.empty(0, self.dtype)] * self.components
        for plane, order in enumerate(self._image.planes):
            pixels = self._pixels(buffer, plane)
            for position, channel in enumerate(order):
                planes[channel] = pixels[..., position].view(self.dtype)
        return np.stack(planes[:channels], axis=1)

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
        known = ", ".join(dtype.name for dtype in DTYPES)
        raise FormatError(f"tensor {tensor.name}: data type: must be one of {known}, got {tensor.data_type.name}")
    shape = (tensor.n, tensor.c, tensor.h, tensor.w)
    _checked_shape(shape)
    image_stride = size // tensor.n
    atom = feature_atom(tensor)
    if atom:
        return FeatureLayout(shape, dtype, atom, line, surface, image_stride, size)
    if tensor.pixel_format >= len(PIXEL_FORMATS):
        raise FormatError(f"tensor {tensor.name}: pixel format: must be known, got {tensor.pixel_format}")
    planes = len(PIXEL_FORMATS[tensor.pixel_format].planes)
    plane = (surface or tensor.h * line) if planes > 1 else 0
    return PixelLayout(shape, dtype, tensor.pixel_format, line, image_stride, size, plane)


def _check_overlap(needed: int, size: int, shape: tuple[int, ...]) -> None:
    """Strides may not make a small memory stand for a large tensor."""
    if needed > size:
        raise LinkError(
            f"tensor of N x C x H x W = {shape_text(shape)}: must have at most {size} bytes (its memory), got "
            f"{needed} in whole atoms"
        )


def _checked_shape(shape: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    if min(shape) < 1:
        raise LinkError(f"tensor: must not be empty, got N x C x H x W = {shape_text(shape)}")
    return shape


def pack_direct(weights: np.ndarray, group: int, block: int) -> bytes:
    """Weights (kernels, channels, rows, columns) in the order of a direct convolution on feature data.

    Kernel group (``group`` kernels, fewer in the last) -> block of ``block`` channels (fewer in the last) -> row ->
    column -> kernel -> channel, without gaps. Elements keep their dtype, little-endian.
    """
    little = weights.astype(weights.dtype.newbyteorder("<"), copy=False)
    parts = []
    for first in range(0, weights.shape[0], group):
        for start in range(0, weights.shape[1], block):
            part = little[first : first + group, start : start + block]
            parts.append(part.transpose(2, 3, 0, 1).tobytes())
    return b"".join(parts)


def pack_image(weights: np.ndarray, group: int, block: int, post_extension: int = 1) -> bytes:
    """Weights (kernels, channels, rows, columns) in the order of a convolution on an image.

    Columns and channels become extended channels (column * channels + channel). With a post extension of 2 or 4 as
    many rows are together: kernel group -> rows taken together -> kernel -> row -> extended channel.
    """
    kernels, channels, rows, columns = weights.shape
    extended = weights.transpose(0, 3, 1, 2).reshape(kernels, columns * channels, rows, 1)
    if post_extension == 1:
        return pack_direct(extended, group, block)
    little = extended.astype(weights.dtype.newbyteorder("<"), copy=False)[..., 0].transpose(0, 2, 1)
    return b"".join(
        little[first : first + group, top : top + post_extension].tobytes()
        for first in range(0, kernels, group)
        for top in range(0, rows, post_extension)
    )


def pack_winograd(transformed: np.ndarray, group: int) -> bytes:
    """Transformed weights (kernels, channels, 4, 4) in the order of a Winograd convolution.

    Kernel group -> four channels -> kernel -> row -> column -> channel; channels must be a multiple of 4.
    """
    kernels, channels = transformed.shape[:2]
    little = transformed.astype(transformed.dtype.newbyteorder("<"), copy=False)
    return b"".join(
        little[first : first + group, start : start + 4].transpose(0, 2, 3, 1).tobytes()
        for first in range(0, kernels, group)
        for start in range(0, channels, 4)
    )


@dataclass(frozen=True)
class CompressedWeights:
    """Weights without their zeros: ``stored`` elements, ``mask`` (WMB: a bit an element, 1 where it is stored) and
    ``sizes`` (WGS: the stored bytes of each kernel group, 32 bits each), not rounded up to anything."""

    stored: bytes
    mask: bytes
    sizes: bytes


def compress(packed: np.ndarray, groups: Sequence[int]) -> CompressedWeights:
    """Weight elements in the order of the memory layout without those that are 0. ``groups``: elements of each kernel
    group ("In-memory data formats", sparse compression option).

    Of a group of zeros the first is stored: CDMA reports a group with its bytes, and one without any after a full
    entry never (cmod/cdma/NV_NVDLA_cdma.cpp:2031, nvdlav1).
    """
    mask = packed != 0
    starts = np.concatenate([[0], np.cumsum(groups)[:-1]]).astype(np.int64)
    mask[starts] |= np.add.reduceat(mask, starts) == 0
    sizes = np.add.reduceat(mask, starts, dtype=np.uint32) * np.uint32(packed.itemsize)
    little = packed[mask].astype(packed.dtype.newbyteorder("<"), copy=False)
    return CompressedWeights(
        little.tobytes(), np.packbits(mask, bitorder="little").tobytes(), sizes.astype("<u4").tobytes()
    )


def compress_as(packed: np.ndarray, mask: np.ndarray, room: int, what: str) -> bytes:
    """The elements that a mask (WMB bytes) has, for other weights in the ``room`` bytes of compressed ones.

    Raises FormatError when one of the others is not 0, for it has no place, and for a mask that has more than fit.
    """
    stored = np.unpackbits(mask, bitorder="little")[: packed.size].astype(bool)
    lost = int(np.count_nonzero(packed[~stored]))
    if lost:
        raise FormatError(
            f"{what}: weights: must be 0 where the compressed weights omit zeros, got {lost} others. Keep these "
            "zeros, or compile the network again (at level 0 weights are never compressed)."
        )
    data: bytes = packed[stored].astype(packed.dtype.newbyteorder("<"), copy=False).tobytes()
    if len(data) > room:
        raise FormatError(f"{what}: mask of the weights: must have at most {room} bytes, got {len(data)}")
    return data.ljust(room, b"\0")
