"""Image files to input tensors, as NVIDIA's runtime does it (umd/apps/runtime/TestUtils.cpp, DlaImageUtils.cpp).

int8 networks get ``floor(pixel * 127 / 255 + 0.5)``, fp16 networks ``(pixel - mean[c]) / std`` as half.
Color images are taken in the order B, G, R, since the Caffe networks that NVIDIA's compiler reads expect that.
"""

from __future__ import annotations

import io
import os
import re
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nvdla.errors import FormatError, counted, shape_text
from nvdla.util.files import read_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from PIL.Image import Image

Result = TypeVar("Result")

ORDERS = ("bgr", "rgb")
MAX_PIXELS = 64 << 20
#: the longest side that images may be scaled or cropped to
MAX_SIDE = 1 << 16
INTERPOLATIONS = ("pil", "opencv")
# Pillow knows many more, one of which (PostScript) starts another program.
FORMATS = ("PPM", "PNG", "JPEG")
MAX_FILE = 1 << 29
JPEG, PNG, SCAN = b"\xff\xd8\xff", b"\x89PNG", b"\xff\xda"
#: scans of a JPEG (usual are 1, and about 10 of a progressive one), and pixels of all its scans together
MAX_SCANS, MAX_SCANNED = 100, 1 << 30
#: bytes of a PNM header with its comments, and of a number in a file that writes pixels as text
MAX_PNM_HEADER, MAX_PNM_NUMBER = 1 << 13, 16
_GAP = rb"(?:\s|#[^\n\r]*[\n\r])+"
_PNM_HEADER = re.compile(rb"P(\w)" + _GAP + rb"(\d{1,9})" + _GAP + rb"(\d{1,9})(?=\s|#)")
_PNM_GREATEST = re.compile(_GAP + rb"[^\s#]")
_CUT_OFF = re.compile("truncat|not enough|unexpected end|end of file|premature", re.IGNORECASE)
INT8_OF_PIXEL = np.floor(np.arange(256) * 127.0 / 255.0 + 0.5).astype(np.int8)
GRAY = "converted to gray (0.299 R + 0.587 G + 0.114 B)"
CHANNELS = {"1": 1, "L": 1, "RGB": 3, "P": 3, "RGBA": 4}


@dataclass(frozen=True)
class PixelConversion:
    """Conversion of pixels to numbers: ``(pixel - mean) / std * scale``, one number each or one per channel (of an int8
    input only where its scale is known); order of the channels of ``color`` images ("": that of the model, else bgr);
    ``resize`` to the size of the input, or the shorter side to a number of pixels; ``crop``: side of the square that is
    kept around the center (otherwise a different size is refused); ``interpolation``: "pil" (bilinear, averaging where
    it reduces), or "opencv" (INTER_LINEAR). ``digit``: the input takes digits like those of MNIST, into which pictures
    of any size are converted (:func:`find_digit`).
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    color: str = ""
    resize: bool | int = False
    digit: bool = False
    crop: int = 0
    interpolation: str = "pil"

    @property
    def is_normalization(self) -> bool:
        """Check whether it changes the numbers of pixels."""
        return any(self.mean) or any(number != 1.0 for number in self.std + self.scale)

    def sizes(self, name: str, size: tuple[int, int], wanted: tuple[int, int]) -> tuple[int, int]:
        """Return the size (width, height) to which an image is scaled before it is cropped to ``wanted``.

        Raises:
            FormatError: The image cannot have the wanted size then.
        """
        scaled = size
        if self.resize is True and not self.crop:
            return wanted
        if self.resize is True:
            raise FormatError(f"{name}: --resize: must be the shorter side in pixels with --crop, got no number")
        if self.resize:
            width, height = size
            side = self.resize
            scaled = (side, side * height // width) if width < height else (side * width // height, side)
        if scaled[0] * scaled[1] > MAX_PIXELS:
            raise FormatError(f"{name}: scaled to {scaled[0]} x {scaled[1]}: must be at most {MAX_PIXELS} pixels")
        if self.crop and self.crop > min(scaled):
            raise FormatError(f"{name}: --crop {self.crop}: must be at most {min(scaled)}, the shorter side")
        if (result := (self.crop, self.crop) if self.crop else scaled) != wanted:
            raise FormatError(
                f"{name}: size: must be {wanted[0]} x {wanted[1]} (width x height), got "
                f"{result[0]} x {result[1]}. Scale the image, or use --resize."
            ).about("resize")
        return scaled

    def fit(self, image: Image, name: str, wanted: tuple[int, int]) -> Image:
        """Return an image scaled and cropped to the size (width, height). Raises FormatError."""
        scaled = self.sizes(name, image.size, wanted)
        if image.size != scaled:
            image = _opencv_linear(image, scaled) if self.interpolation == "opencv" else _bilinear(image, scaled)
        if scaled == wanted:
            return image
        left, top = (round((side - target) / 2) for side, target in zip(scaled, wanted, strict=True))
        return image.crop((left, top, left + wanted[0], top + wanted[1]))


def load_image(
    path: object,
    shape: tuple[int, int, int, int],
    dtype: np.dtype | type,
    preprocessing: PixelConversion | None = None,
) -> np.ndarray:
    """The image as a tensor (1, C, H, W) of ``dtype`` for an input of ``shape`` (N, C, H, W); a file, or what
    :func:`read_pixels` takes else.

    Raises FormatError for a file that is not an image, or whose size or channels are not those of the input.
    """
    preprocessing = preprocessing or PixelConversion()
    pixels = read_pixels(path, shape, preprocessing)
    return convert_pixels(pixels, np.dtype(dtype), preprocessing)


def image_shape(path: str | os.PathLike[str]) -> tuple[int, int, int, int]:
    """Shape (1, C, H, W) of an 8-bit image file, from its header alone. Raises FormatError."""
    from PIL import Image, UnidentifiedImageError

    name = os.fspath(path)
    data = image_bytes(path)
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            warnings.simplefilter("error")
            channels, (width, height) = CHANNELS.get(image.mode), image.size
            mode = image.mode
    except UnidentifiedImageError:
        raise _unknown(name, data) from None
    except Exception as error:  # Pillow's decoders raise a dozen kinds for broken files
        raise _broken(name, error) from error
    if channels is None:
        raise FormatError(f"{name}: mode: must be gray, RGB or RGBA, got {mode}. Convert the image.")
    return 1, channels, height, width


def read_pixels(source: object, shape: tuple[int, int, int, int], preprocessing: PixelConversion) -> np.ndarray:
    """The pixels of an 8-bit image as uint8 (1, C, H, W), color channels in the wanted order.

    ``source``: an image file, a PIL image, or a uint8 array (H, W) or (H, W, C) with the channels R, G, B (and A).
    Raises FormatError.
    """
    return _opened(source, lambda image, name: _cube(image, name, shape, preprocessing))


def describe_digit(source: object, size: tuple[int, int]) -> str:
    """Return the changes that :func:`find_digit` applies to a picture for an input of (width, height), "" for none.

    Raises FormatError for a file that is not an image, and for a picture without a digit.
    """

    def changes(image: Image, name: str) -> str:
        _check_size(name, image.size)
        return find_digit(image, name, size)[1]

    return _opened(source, changes)


def describe_gray(path: str, channels: int) -> str:
    """Return the change of the colors of an image file for an input of so many channels, "" for nothing.

    Raises FormatError for a file that is not an image.
    """
    return GRAY if channels == 1 and image_shape(path)[1] != 1 else ""


def _opened(source: object, use: Callable[[Image, str], Result]) -> Result:
    """Return the result of a function of the picture and its name."""
    if not isinstance(source, (str, os.PathLike)):
        return use(_picture(source), "the image")
    name = os.fspath(source)
    return _decoded(image_bytes(source), name, use)


def decode_picture(data: bytes, name: str) -> Image:
    """Return the PIL image in the bytes of an image file, decoded. Raises FormatError."""

    def loaded(image: Image, name: str) -> Image:
        _check_size(name, image.size)
        image.load()
        return image

    if data[:1] == b"P" and data[1:2].isalnum():
        _check_pnm(data, name)
    return _decoded(data, name, loaded)


def _decoded(data: bytes, name: str, use: Callable[[Image, str], Result]) -> Result:
    """Return the result of a function of the picture in the bytes of a file, and its name. Raises FormatError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            warnings.simplefilter("error")
            _check_scans(data, image.size, name)
            return use(image, name)
    except FormatError:
        raise
    except UnidentifiedImageError:
        raise _unknown(name, data) from None
    except Exception as error:  # Pillow's decoders raise a dozen kinds for broken files
        raise _broken(name, error) from error


def is_pil(value: object) -> bool:
    """Check whether it is a PIL image; PIL is not imported for it."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def is_picture(value: object, shape: tuple[int, ...]) -> bool:
    """Check whether a value is a picture for an input of ``shape`` (N, C, H, W), not its elements.

    Pictures are PIL images and uint8 arrays (H, W) or (H, W, channels).
    """
    if is_pil(value):
        return True
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return False
    if value.ndim == 2:
        return True
    return value.ndim == 3 and value.shape[-1] in CHANNELS.values() and value.shape != tuple(shape[1:])


def _picture(value: Any) -> Image:
    """A PIL image of a uint8 array; a PIL image unchanged."""
    from PIL import Image

    if not isinstance(value, np.ndarray):
        return value
    plane = value[..., 0] if value.ndim == 3 and value.shape[-1] == 1 else value
    if not plane.size:
        raise FormatError(f"image: must have pixels, got shape {shape_text(value.shape)}")
    return Image.fromarray(np.ascontiguousarray(plane))


def _cube(image: Image, name: str, shape: tuple[int, int, int, int], preprocessing: PixelConversion) -> np.ndarray:
    _, channels, height, width = shape
    _check_size(name, image.size)
    if preprocessing.digit and channels != 1:
        raise FormatError(f"{name}: --digit: input: must have one channel, got {channels}")
    if preprocessing.digit:
        return find_digit(image, name, (width, height))[0][None, None]
    preprocessing.sizes(name, image.size, (width, height))  # before pixels are decoded
    image = preprocessing.fit(_with_channels(name, image, channels), name, (width, height))
    cube = np.asarray(image, np.uint8).reshape(height, width, -1).transpose(2, 0, 1)
    if channels >= 3 and preprocessing.color != "rgb":
        cube = np.concatenate([cube[2::-1], cube[3:]])
    return cube[None]


def image_bytes(path: str | os.PathLike[str]) -> bytes:
    """The bytes of an image file, whose header is found without searching megabytes. Raises FormatError."""
    data, name = read_file(path, MAX_FILE, "image"), os.fspath(path)
    if data[:1] == b"P" and data[1:2].isalnum():
        _check_pnm(data, name)
    return data


def _check_scans(data: bytes, size: tuple[int, int], name: str) -> None:
    """A progressive JPEG goes over its pixels once a scan, and a small file may have thousands."""
    scans = data.count(SCAN) if data.startswith(JPEG) else 0
    if scans > MAX_SCANS or (scans > 1 and scans * size[0] * size[1] > MAX_SCANNED):
        raise FormatError(
            f"{name}: must have at most {MAX_SCANS} scans and {MAX_SCANNED} pixels in all scans, got {scans} scans "
            f"of {size[0]} x {size[1]} pixels. Save the image as a baseline JPEG or a PNG."
        )


def _check_pnm(data: bytes, name: str) -> None:
    """The words of the header come early, and pixels written as text are no longer than numbers are."""
    header = _PNM_HEADER.match(data[:MAX_PNM_HEADER])
    if header is None:
        raise FormatError(
            f"{name}: PNM header: must have width and height in its first {MAX_PNM_HEADER} bytes (cut off?)"
        )
    width, height = int(header[2]), int(header[3])
    room = MAX_PNM_HEADER + MAX_PNM_NUMBER * 3 * min(width * height, MAX_PIXELS)
    if header[1] in b"123" and len(data) > room:
        raise FormatError(f"{name}: {width} x {height} pixels as text: must have at most {room} bytes, got {len(data)}")
    if header[1] not in b"14" and not _PNM_GREATEST.match(data, header.end(), header.end() + MAX_PNM_HEADER):
        raise FormatError(
            f"{name}: PNM header: must have a maximum value in its first {MAX_PNM_HEADER} bytes (cut off?)"
        )


def _unknown(name: str, data: bytes) -> FormatError:
    if data.startswith((JPEG, PNG)):
        return FormatError(f"{name}: the image cannot be read: its header is broken or ends early (cut off?)")
    from nvdla.util.recognition import wrong_kind

    other = wrong_kind(data, name, "an image (PGM, PPM, PNG or JPEG)", ("image",))
    return FormatError(other or f"{name}: not an image that can be read (PGM, PPM, PNG and JPEG can)")


def _broken(name: str, error: Exception) -> FormatError:
    hint = " (cut off?)" if isinstance(error, EOFError) or _CUT_OFF.search(str(error)) else ""
    return FormatError(f"{name}: the image cannot be read: {str(error) or type(error).__name__}{hint}")


def _bilinear(image: Image, size: tuple[int, int]) -> Image:
    from PIL import Image as Images

    return image.resize(size, Images.Resampling.BILINEAR)


def _opencv_linear(image: Image, size: tuple[int, int]) -> Image:
    """The image scaled as INTER_LINEAR of OpenCV does it: two taps per axis, with weights in units of 1/2048."""
    from PIL import Image as Images

    pixels = np.asarray(image, np.int32)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    height, width = pixels.shape[:2]
    if (width, height) == (2 * size[0], 2 * size[1]):  # OpenCV averages then
        quads = pixels[::2, ::2] + pixels[1::2, ::2] + pixels[::2, 1::2] + pixels[1::2, 1::2]
        result = (quads + 2) >> 2
    else:
        left, right, near, far = _taps(size[0], width)
        top, bottom, upper, lower = _taps(size[1], height)
        near, far = np.where(left == right, 2048, near), np.where(left == right, 0, far)  # not so for rows
        columns = (pixels[:, left] * near[:, None] + pixels[:, right] * far[:, None]) >> 4
        above = (columns[top] * upper[:, None, None]) >> 16
        result = (above + ((columns[bottom] * lower[:, None, None]) >> 16) + 2) >> 2
    shape = result.shape if result.shape[2] > 1 else result.shape[:2]
    return Images.fromarray(result.astype(np.uint8).reshape(shape))


def _taps(count: int, source: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Positions and weights of the two pixels of a line that each new pixel is made of."""
    place = ((np.arange(count) + 0.5) * (source / count) - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.int64)
    second = np.rint((place - first) * np.float32(2048)).astype(np.int32)
    return first.clip(0, source - 1), (first + 1).clip(0, source - 1), 2048 - second, second


def _check_size(name: str, image_size: tuple[int, int]) -> None:
    """Before any pixel is decoded, so that a huge image costs nothing."""
    if image_size[0] * image_size[1] > MAX_PIXELS:
        raise FormatError(f"{name}: must have at most {MAX_PIXELS} pixels, got {image_size[0]} x {image_size[1]}")


def _with_channels(name: str, image, channels: int):  # type: ignore[no-untyped-def]  # PIL is imported late
    """The image in the mode that has ``channels`` channels: color becomes gray, gray never becomes color."""
    if image.mode in CHANNELS and channels == 1:
        return image.convert("L")
    if image.mode in ("P", "RGB") and channels in (3, 4):
        return image.convert("RGB" if channels == 3 else "RGBA")
    if image.mode == "RGBA" and channels in (3, 4):
        return image if channels == 4 else image.convert("RGB")
    modes = {1: "gray", 3: "RGB", 4: "RGB or RGBA"}
    raise FormatError(
        f"{name}: mode: must fit an input of {counted(channels, 'channel')}, got {image.mode}. "
        + (f"Convert it to 8-bit {modes[channels]}." if channels in modes else "Use a .npy or .bin tensor.")
    )


# ---- pictures of digits

DIGIT_SIDE, DIGIT_FIELD = 20, 28
"""Longest side of a digit of MNIST, and side of its picture."""
LARGEST_SIDE = 256
"""Pixels of the longer side to which a picture is reduced before its digit is searched."""
LEAST_CONTRAST = 24
"""Gray levels between paper and ink."""


def find_digit(image: Image, name: str, size: tuple[int, int]) -> tuple[np.ndarray, str]:
    """Convert the picture of one digit to the form of MNIST: light ink on black, its longest side 20 of 28 pixels, its
    center of mass in the middle.

    A picture of the input's size with a dark border has that form already; only its colors become gray.

    Args:
        image: The picture, of any size and mode; transparent parts are white paper.
        name: Its name in messages.
        size: Width and height of the input.

    Returns:
        The pixels uint8 (H, W), and the applied changes in words ("" if there was none).

    Raises:
        FormatError: The picture has too little contrast.
    """
    changes = [] if image.mode in ("1", "L") else ["converted to gray"]
    gray = _gray(image)
    pixels = np.asarray(gray, np.uint8)
    if is_digit(pixels, size):
        return pixels, "".join(changes)
    ink, light = _ink(gray, name)
    changes += ["inverted (light paper)"] * light
    threshold = _threshold(ink)
    rows, columns = (np.flatnonzero((ink > threshold).any(axis=axis)) for axis in (1, 0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    ink = np.where(ink > threshold / 2, ink, 0)[top:bottom, left:right]
    reduction = max(1.0, max(image.size) / LARGEST_SIDE)
    changes.append(f"cropped to {round((right - left) * reduction)}x{round((bottom - top) * reduction)}")
    changes.append(f"centered in {size[0]}x{size[1]}")
    return _centered(ink, size), ", ".join(changes)


def is_digit(pixels: np.ndarray, size: tuple[int, int]) -> bool:
    """Check whether gray pixels have the form of MNIST: the size (width, height) of the input, and a dark border."""
    if pixels.shape != size[::-1]:
        return False
    border = _border(pixels)
    return bool(2 * np.count_nonzero(border < LEAST_CONTRAST) > border.size)


def _gray(image: Image) -> Image:
    from PIL import Image as Images

    if image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        paper = Images.new("RGBA", image.size, "white")
        image = Images.alpha_composite(paper, image)
    return image.convert("L")


def _border(pixels: np.ndarray) -> np.ndarray:
    """The outermost pixels."""
    return np.concatenate([pixels[0], pixels[-1], pixels[1:-1, 0], pixels[1:-1, -1]])


def _ink(gray: Image, name: str) -> tuple[np.ndarray, bool]:
    """The difference of each pixel from the paper, at most 255 levels, float (H, W); whether the paper is light.

    The brightness of the paper is a plane through the border, because photographed paper is lit from one side.
    """
    from PIL import Image, ImageFilter

    if max(gray.size) > LARGEST_SIDE:
        factor = LARGEST_SIDE / max(gray.size)
        size = (max(1, round(gray.size[0] * factor)), max(1, round(gray.size[1] * factor)))
        gray = gray.resize(size, Image.Resampling.BOX)
    if min(gray.size) > 2 * DIGIT_FIELD:
        gray = gray.filter(ImageFilter.MedianFilter(3))
    pixels = np.asarray(gray, np.float64)
    y, x = np.mgrid[: pixels.shape[0], : pixels.shape[1]]
    known = np.stack([_border(part) for part in (x, y, np.ones_like(x))], axis=1)
    plane = np.linalg.lstsq(known, _border(pixels), rcond=None)[0]
    difference = pixels - (x * plane[0] + y * plane[1] + plane[2])
    darkest, lightest = -difference.min(), difference.max()
    light = bool(darkest > lightest)
    contrast = int(max(darkest, lightest))
    if contrast < LEAST_CONTRAST:
        raise FormatError(
            f"{name}: digit: must have {LEAST_CONTRAST} of 255 gray levels or more between ink and paper, got "
            f"{contrast}. Use a clearer picture, or --no-preprocess for the pixels as they are."
        )
    ink = np.maximum(-difference if light else difference, 0)
    return ink * (255 / ink.max()), light


def _threshold(ink: np.ndarray) -> int:
    """The level that divides paper from ink with the largest variance between both (Otsu); of several, the middle."""
    counts = np.bincount(ink.astype(np.uint8).ravel(), minlength=256)
    levels = np.arange(256)
    below, sums = np.cumsum(counts), np.cumsum(counts * levels)
    above, rest = below[-1] - below, sums[-1] - sums
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = below * above * (sums / below - rest / above) ** 2
    variance = np.where(above * below > 0, variance, 0.0)
    return int(np.flatnonzero(variance >= variance.max() * (1 - 1e-9)).mean())


def _centered(ink: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """A cropped digit in a black picture (H, W): its size that of MNIST, its center of mass in the middle."""
    from PIL import Image

    width, height = size
    factor = min(width, height) * DIGIT_SIDE / DIGIT_FIELD / max(ink.shape)
    scaled = (max(1, round(ink.shape[1] * factor)), max(1, round(ink.shape[0] * factor)))
    method = Image.Resampling.BOX if factor < 1 else Image.Resampling.BILINEAR
    reduced = Image.fromarray(ink.astype(np.float32)).resize(scaled, method)
    digit: np.ndarray = np.asarray(reduced, np.float64)
    digit = digit * (255 / digit.max())
    middles = []
    for axis, room in ((0, height), (1, width)):
        mass = digit.sum(axis=1 - axis)
        center = float((mass * (np.arange(len(mass)) + 0.5)).sum() / mass.sum())
        middles.append(min(max(round(room / 2 - center), 0), room - len(mass)))
    pixels = np.zeros((height, width), np.uint8)
    top, left = middles
    pixels[top : top + digit.shape[0], left : left + digit.shape[1]] = np.rint(digit)
    return pixels


def convert_pixels(pixels: np.ndarray, dtype: np.dtype, preprocessing: PixelConversion) -> np.ndarray:
    """uint8 pixels (N, C, H, W) to the input's element type.

    Raises FormatError for a mean, std or scale that does not fit (count, zero, not finite) or an integer network,
    whose conversion takes none of them.
    """
    numbers = {"mean": preprocessing.mean, "std": preprocessing.std, "scale": preprocessing.scale}
    if dtype == np.int8:
        if preprocessing.is_normalization:
            raise FormatError(
                "mean, std and scale: must be omitted for an int8 input without a known scale: its pixels become "
                "floor(p * 127 / 255 + 0.5), as in NVIDIA's runtime. Give the scale with --input-scale or --scales, "
                "or give a .npy tensor."
            ).about("mean", "std", "scale")
        return INT8_OF_PIXEL[pixels]
    for name, given in numbers.items():
        if not np.isfinite(given).all() or (name != "mean" and 0 in given):
            raise FormatError(f"{name}: must be finite{'' if name == 'mean' else ' and not 0'}, got {given}").about(
                name
            )
        if len(given) not in (0, 1, pixels.shape[1]):
            raise FormatError(
                f"{name}: must be one number or one per channel ({pixels.shape[1]}), got {len(given)}"
            ).about(name)
    offsets, divisors, factors = (
        np.array(given or (neutral,), np.float32).reshape(1, -1, 1, 1)
        for given, neutral in zip(numbers.values(), (0.0, 1.0, 1.0), strict=True)
    )
    with np.errstate(over="ignore"):
        values = (pixels.astype(np.float32) - offsets) / divisors * factors
        if dtype == np.int16:
            return np.clip(np.rint(values), -32768, 32767).astype(np.int16)
        return values.astype(np.float16)
