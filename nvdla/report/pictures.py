"""Pictures inside the page: feature maps as PNG data, histograms as small drawings."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np

from nvdla.report.html import Html, tag
from nvdla.rounding import align, ceil_div

MAX_CHANNELS = 16
MAX_SIDE = 64
STRIP = 64
MAX_STRIP = 1024
BAR, HEIGHT = 8, 40


def feature_maps(tensor: np.ndarray, what: str) -> Html:
    """The first channels of a tensor (1, C, H, W) side by side: black is its least value, white its greatest.

    Planes larger than 64 x 64 are thinned out; vectors (H = W = 1) become lines of 64 values.
    """
    cube = np.nan_to_num(tensor[0].astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    if cube.shape[1:] == (1, 1):
        values = cube.reshape(-1)[:MAX_STRIP]
        width = min(values.size, STRIP)
        sheet = np.full(align(values.size, width), values.min(), np.float32)
        sheet[: values.size] = values
        planes, gap = sheet.reshape(1, -1, width), 0
    else:
        step = ceil_div(max(cube.shape[1:]), MAX_SIDE)
        planes, gap = cube[:MAX_CHANNELS, ::step, ::step], 1
    pixels = _tiles(_to_bytes(planes), gap)
    shown = f"the first {len(planes)} of {len(cube)} channels" if gap and len(planes) < len(cube) else "all channels"
    return _image(pixels, f"{what}: {shown}")


def _to_bytes(planes: np.ndarray) -> np.ndarray:
    low, high = float(planes.min()), float(planes.max())
    if high <= low:
        return np.zeros(planes.shape, np.uint8)
    return np.rint((planes - low) * (255.0 / (high - low))).astype(np.uint8)


def _tiles(planes: np.ndarray, gap: int) -> np.ndarray:
    """Planes in rows of eight, ``gap`` pixels apart (with an alpha plane, so that gaps are see-through)."""
    count, height, width = planes.shape
    columns = min(count, 8)
    rows = ceil_div(count, columns)
    sheet = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 2), np.uint8)
    for index, plane in enumerate(planes):
        y, x = index // columns * (height + gap), index % columns * (width + gap)
        sheet[y : y + height, x : x + width, 0] = plane
        sheet[y : y + height, x : x + width, 1] = 255
    return sheet


def _image(pixels: np.ndarray, what: str) -> Html:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels, "LA").save(stream, "PNG")
    height, width = pixels.shape[:2]
    zoom = max(1, min(4 if height > 1 else 12, 420 // max(width, 1)))
    data = base64.b64encode(stream.getvalue()).decode()
    return tag(
        "img",
        src=f"data:image/png;base64,{data}",
        width=width * zoom,
        height=height * zoom,
        alt=f"Feature maps of {what}",
        title=what,
        class_="maps",
    )


def histogram(counts: Sequence[float], edges: Sequence[float], what: str) -> Html:
    """Bars whose height is the logarithm of the count, so that rare values show; the counts stand in the titles."""
    top = np.log1p(max(counts, default=0)) or 1.0
    bars = []
    for place, count in enumerate(counts):
        height = float(np.log1p(count) / top * (HEIGHT - 2))
        title = f"{edges[place]:g} to {edges[place + 1]:g}: {int(count):,}"
        if count:
            bars.append(
                f'<rect x="{place * BAR}" y="{HEIGHT - height:.1f}" width="{BAR - 1}" height="{height:.1f}" '
                f'fill="var(--conv)"><title>{title}</title></rect>'
            )
    width = len(counts) * BAR
    label = tag("title", f"Histogram of {what}, {edges[0]:g} to {edges[-1]:g}")
    return Html(
        f'<svg class="histogram" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" role="img">'
        f'{label}<line x1="0" y1="{HEIGHT - 0.5}" x2="{width}" y2="{HEIGHT - 0.5}" class="grid"/>{"".join(bars)}</svg>'
    )
