"""Images as inputs: pixel formats, and what a convolution on an image takes.

In a line of an image the pixels' channels follow each other, so a row of a kernel (columns x channels) is one vector
for the MAC cells, and with a post-extension of 2 or 4 as many rows share a pass (programming guide, "Image input"; the
RTL gives the same bytes with each).
"""

from __future__ import annotations

import numpy as np

from nvdla.builder.ir import BYTES, Convolve, PixelConverter
from nvdla.builder.quantize import LARGEST, fixed_point
from nvdla.errors import BuildError
from nvdla.hardware.configuration import Configuration
from nvdla.loadable.enums import PixelFormat
from nvdla.loadable.pixel_formats import PIXEL_FORMATS
from nvdla.rounding import align, ceil_div
from nvdla.tensors.pixel_numbers import PixelNumbers

# Lines of images begin at multiples of this; CDMA fetches whole atoms, and may not go beyond a line.
LINE_ALIGNMENT = 32
FORMATS = {
    ("int8", 1): PixelFormat.R8,
    ("int8", 4): PixelFormat.A8B8G8R8,
    ("int16", 1): PixelFormat.R16_I,
    ("int16", 4): PixelFormat.A16B16G16R16,
    ("fp16", 1): PixelFormat.R16_F,
    ("fp16", 4): PixelFormat.A16B16G16R16_F,
}
"""By precision and components of a pixel. Elements are signed: CDMA is told so (PIXEL_SIGN_OVERRIDE)."""
UNSIGNED = (
    PixelFormat.R8,
    PixelFormat.A8B8G8R8,
    PixelFormat.R10,
    PixelFormat.A2B10G10R10,
    PixelFormat.R12,
    PixelFormat.R16,
    PixelFormat.A16B16G16R16,
)
"""For elements that CDMA takes as unsigned: the first that has the bits and the channels is taken."""
MOST_CHANNELS = 4
PICTURE_BITS = 8
MOST_MEAN = (1 << 15) - 1
EXACT_BITS = 11
"""Whole numbers of as many bits are halves."""


def format_for(channels: int, precision: str) -> PixelFormat | None:
    """The pixel format for so many channels; None above four."""
    return FORMATS[precision, 1 if channels == 1 else MOST_CHANNELS] if channels <= MOST_CHANNELS else None


def unsigned_format(channels: int, config: Configuration, bits: int) -> PixelFormat | None:
    """The format for unsigned pixels of so many bits; None where there is none."""
    able = (form for form in UNSIGNED if PIXEL_FORMATS[form].depth == bits)
    return next((form for form in able if not hindrance(form, channels, "", config)), None)


def named(wanted: str) -> PixelFormat | None:
    """The pixel format of a name; None for no such name."""
    known = PixelFormat.__members__.get(wanted)
    return known if known is not None and known < PixelFormat.FEATURE else None


def depth(wanted: str) -> int | None:
    """Bits of the unsigned pixels that inputs of a format have ("pixels": those of pictures); None where elements are
    the network's own."""
    form = named(wanted)
    if form is None:
        return PICTURE_BITS if wanted == "pixels" else None
    spec = PIXEL_FORMATS[form]
    return None if spec.floating or spec.signed else spec.depth


def stored_precision(form: PixelFormat) -> str:
    """The precision of the elements in memory."""
    spec = PIXEL_FORMATS[form]
    return "fp16" if spec.floating else "int8" if spec.element_bytes == 1 else "int16"


def hindrance(form: PixelFormat, channels: int, precision: str, config: Configuration) -> str:
    """Why a tensor of so many channels cannot be pixels of a format; "" where it can. CDMA makes every precision of
    unsigned pixels; signed ones and halves are those of the network."""
    spec, own = PIXEL_FORMATS[form], stored_precision(form)
    if lack := config.refusal(own, f"the elements of {form.name}"):
        return lack
    if (spec.floating or spec.signed) and own != precision:
        return f"pixels of {form.name} are for {own}, the network computes in {precision}"
    if channels > spec.whole:
        return f"a pixel of {form.name} has {spec.whole} channels of {spec.depth} bits, it has {channels}"
    return ""


def converter(numbers: PixelNumbers, form: PixelFormat, channels: int, precision: str) -> tuple[PixelConverter, float]:
    """CDMA's settings for pixels, and the real number of one unit of what it makes.

    Pixels stay as they are where they fit (a unit is one of a pixel's); else the largest distance from the mean is the
    largest element, for halves the power of two from which on they are no longer exact. Raises BuildError for a mean
    that CDMA's 16 bits do not hold.
    """
    mean, scale = numbers.channels(channels)
    lift = 16 - numbers.bits if PIXEL_FORMATS[form].bits else 0
    means = np.rint(mean * (1 << lift))
    if np.max(np.abs(means)) > MOST_MEAN + 1:
        raise BuildError(
            f"pixels of {form.name} with mean {float(mean[np.argmax(np.abs(means))]):g}: CDMA subtracts at most "
            f"{MOST_MEAN / (1 << lift):g} from pixels of {numbers.bits} bits; use the input format image"
        )
    means = np.clip(means, -MOST_MEAN - 1, MOST_MEAN).astype(np.int64)
    farthest = int(np.max(np.maximum(np.abs(means), np.abs((numbers.largest << lift) - means))))
    if precision == "fp16":
        factor, shift = 1, max((farthest - 1).bit_length() - EXACT_BITS, 0)
    else:
        limit = LARGEST[precision]
        factor, shift = (1, 0) if farthest <= limit + 1 else fixed_point(limit / farthest)
    unit = float(np.max(scale)) * 2.0**shift / (factor << lift)
    factors = tuple(float(each) for each in scale / np.max(scale))
    return PixelConverter(numbers, tuple(int(each) for each in means), factor, shift, lift, factors), unit


def components(pixels: PixelFormat) -> int:
    """Elements of a pixel, the unused ones too."""
    return PIXEL_FORMATS[pixels].channels


def pixel_bytes(pixels: PixelFormat) -> int:
    """From one column to the next of the (first) plane."""
    return PIXEL_FORMATS[pixels].bytes_per_pixel(0)


def line_stride(pixels: PixelFormat, width: int) -> int:
    """Bytes from line to line."""
    return align(width * pixel_bytes(pixels), LINE_ALIGNMENT)


def kernel_channels(operation: Convolve) -> int:
    """Channels of a kernel as the hardware takes it: of an image, those of all columns of a row."""
    _, channels, _, columns = operation.weights.shape
    pixels = operation.source.root.pixels
    return channels if pixels is None else columns * components(pixels)


def entries_of_line(operation: Convolve, config: Configuration) -> int:
    """Entries of the convolution buffer that a line takes with its padding."""
    pixels, source = operation.source.root.pixels, operation.source
    assert pixels is not None
    width = operation.padding[2] + source.width + operation.padding[3]
    return ceil_div(width * components(pixels) * BYTES[source.precision], config.cbuf_entry_bytes)


def post_extension(operation: Convolve, config: Configuration) -> int:
    """Rows of a kernel that share a pass: as many as fit the channels of a MAC cell."""
    channels, rows = kernel_channels(operation), operation.weights.shape[2]
    fitting = [count for count in (4, 2) if channels * count <= config.mac_atomic_c and rows > count // 2]
    return fitting[0] if fitting else 1


def plane_stride(pixels: PixelFormat, width: int, height: int) -> int:
    """Bytes from the first plane to the second; 0 where there is one."""
    return line_stride(pixels, width) * height if len(PIXEL_FORMATS[pixels].planes) > 1 else 0


def image_bytes(pixels: PixelFormat, width: int, height: int) -> int:
    """Bytes of an image, all planes: the lines of the second are longer in the ratio of its pixels."""
    spec = PIXEL_FORMATS[pixels]
    return line_stride(pixels, width) * height * sum(spec.lines(plane) for plane in range(len(spec.planes)))
