"""Image files to input tensors, as NVIDIA's runtime does it (umd/apps/runtime/TestUtils.cpp, DlaImageUtils.cpp).

int8 networks get ``floor(pixel * 127 / 255 + 0.5)``, fp16 networks ``(pixel - mean[c]) / normalize`` as half.
Colour images are taken in the order B, G, R, since the Caffe networks that NVIDIA's compiler reads expect that.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

import numpy as np

from nvdla.errors import FormatError

ORDERS = ("bgr", "rgb")
MAX_PIXELS = 64 << 20
# Pillow knows many more, one of which (PostScript) starts another program.
FORMATS = ("PPM", "PNG", "JPEG")
CHANNELS = {"1": 1, "L": 1, "RGB": 3, "P": 3, "RGBA": 4}


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become numbers: ``mean`` per channel and ``normalize`` (fp16 and int16 only), channel ``order`` of
    colour images, ``resize`` to the size of the input (otherwise a different size is refused)."""

    mean: tuple[float, ...] = ()
    normalize: float = 1.0
    order: str = "bgr"
    resize: bool = False


def load_image(
    path: str | os.PathLike[str],
    shape: tuple[int, int, int, int],
    dtype: np.dtype | type,
    preprocessing: Preprocessing | None = None,
) -> np.ndarray:
    """The image as a tensor (1, C, H, W) of ``dtype`` for an input of ``shape`` (N, C, H, W).

    Raises FormatError for a file that is no image, or whose size or channels are not those of the input.
    """
    preprocessing = preprocessing or Preprocessing()
    pixels = read_pixels(path, shape, preprocessing)
    return convert_pixels(pixels, np.dtype(dtype), preprocessing)


def image_shape(path: str | os.PathLike[str]) -> tuple[int, int, int, int]:
    """Shape (1, C, H, W) of an 8-bit image file, from its header alone. Raises FormatError."""
    from PIL import Image

    name = os.fspath(path)
    try:
        with warnings.catch_warnings(), Image.open(path, formats=FORMATS) as image:
            warnings.simplefilter("error")
            channels, (width, height) = CHANNELS.get(image.mode), image.size
            mode = image.mode
    except Exception as error:  # Pillow's decoders raise a dozen kinds for broken files
        raise FormatError(f"{name}: the image cannot be read: {error or type(error).__name__}") from error
    if channels is None:
        raise FormatError(f"{name}: the image has mode {mode}; convert it to grey, RGB or RGBA")
    return 1, channels, height, width


def read_pixels(
    path: str | os.PathLike[str], shape: tuple[int, int, int, int], preprocessing: Preprocessing
) -> np.ndarray:
    """The pixels of an 8-bit image file as uint8 (1, C, H, W), colour channels in the wanted order."""
    from PIL import Image, UnidentifiedImageError

    name = os.fspath(path)
    _, channels, height, width = shape
    try:
        with warnings.catch_warnings(), Image.open(path, formats=FORMATS) as image:
            warnings.simplefilter("error")
            _check_size(name, image.size, (width, height), preprocessing.resize)
            image = _with_channels(name, image, channels)
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.uint8)
    except FormatError:
        raise
    except UnidentifiedImageError:
        raise FormatError(f"{name}: not an image that can be read (PGM, PPM, PNG and JPEG can)") from None
    except Exception as error:  # Pillow's decoders raise a dozen kinds for broken files
        raise FormatError(f"{name}: the image cannot be read: {error or type(error).__name__}") from error
    cube = pixels.reshape(height, width, -1).transpose(2, 0, 1)
    if channels >= 3 and preprocessing.order == "bgr":
        cube = np.concatenate([cube[2::-1], cube[3:]])
    return cube[None]


def _check_size(name: str, found: tuple[int, int], wanted: tuple[int, int], resize: bool) -> None:
    """Before any pixel is decoded, so that a huge image costs nothing."""
    if found[0] * found[1] > MAX_PIXELS:
        raise FormatError(f"{name}: {found[0]} x {found[1]} pixels are more than the limit of {MAX_PIXELS}")
    if found != wanted and not resize:
        raise FormatError(
            f"{name}: the image is {found[0]} x {found[1]} (width x height), the network's input is "
            f"{wanted[0]} x {wanted[1]}; scale the image, or ask for --resize"
        )


def _with_channels(name: str, image, channels: int):  # type: ignore[no-untyped-def]  # PIL is imported late
    """The image in the mode that has ``channels`` channels; grey is never turned into colour or back silently."""
    if image.mode in ("1", "L") and channels == 1:
        return image.convert("L")
    if image.mode in ("P", "RGB") and channels in (3, 4):
        return image.convert("RGB" if channels == 3 else "RGBA")
    if image.mode == "RGBA" and channels in (3, 4):
        return image if channels == 4 else image.convert("RGB")
    modes = {1: "grey", 3: "RGB", 4: "RGB or RGBA"}
    raise FormatError(
        f"{name}: the image has mode {image.mode}, the network's input has {channels} channels; "
        + (f"convert it to 8-bit {modes[channels]}" if channels in modes else "give a .npy or .bin tensor instead")
    )


def convert_pixels(pixels: np.ndarray, dtype: np.dtype, preprocessing: Preprocessing) -> np.ndarray:
    """uint8 pixels (N, C, H, W) to the input's element type.

    Raises FormatError for a mean or normalize that does not fit (count, zero, not finite) or an integer network,
    whose conversion takes neither.
    """
    mean, normalize = preprocessing.mean, preprocessing.normalize
    if dtype == np.int8:
        if any(mean) or normalize != 1.0:
            raise FormatError(
                "mean and normalize have no effect on an int8 input: its pixels become floor(p * 127 / 255 + 0.5), "
                "the scale is part of the network's calibration; leave them out, or give a .npy tensor"
            )
        return np.floor(pixels * 127.0 / 255.0 + 0.5).astype(np.int8)
    if not np.isfinite(normalize) or normalize == 0 or not np.isfinite(mean).all():
        raise FormatError(f"normalize {normalize} and mean {mean} must be finite, and normalize not 0")
    channels = pixels.shape[1]
    if len(mean) not in (0, 1, channels):
        raise FormatError(f"{len(mean)} mean values for {channels} channels; give one, or one a channel")
    offsets = np.broadcast_to(np.array(mean or (0.0,), np.float32), (channels,)).reshape(1, -1, 1, 1)
    with np.errstate(over="ignore"):
        values = (pixels.astype(np.float32) - offsets) / np.float32(normalize)
        if dtype == np.int16:
            return np.clip(np.rint(values), -32768, 32767).astype(np.int16)
        return values.astype(np.float16)
