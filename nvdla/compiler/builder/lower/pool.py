"""Layers over windows and planes: pooling, means, padding, upsampling, LRN.

Means are far smaller than the largest element: of steps of the source, as the PDP gives them, they use few. So the sum
is made by a convolution with ones, and the SDP brings it to the steps of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from math import isqrt

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from nvdla.compiler.builder import floating
from nvdla.compiler.builder import ir as tables
from nvdla.compiler.builder.cbuf import buffer_of, fit
from nvdla.compiler.builder.context import Lowering
from nvdla.compiler.builder.floating import pad, windows
from nvdla.compiler.builder.ir import (
    BYTES,
    DTYPES,
    AtomSurface,
    Convert,
    Convolve,
    Normalize,
    Pool,
    PositionSurface,
    Process,
    Stage,
    Surface,
)
from nvdla.compiler.builder.layer_types import Given, LayerType
from nvdla.compiler.builder.layers import (
    Group,
    Layer,
    LrnSettings,
    PadSettings,
    PoolSettings,
    Shape,
    UpsampleSettings,
    padding_of,
    pair,
    slid,
)
from nvdla.compiler.builder.lower.convolution import Window, check_window
from nvdla.compiler.builder.lower.elementwise import constant_root
from nvdla.compiler.builder.quantization import LARGEST, fixed_point
from nvdla.emulator.hardware.configuration import Configuration
from nvdla.errors import BuildError
from nvdla.limits import MAX_CUBE_SIDE, MAX_KERNEL, MAX_WINDOW
from nvdla.util.rounding import ceil_div

# Largest window and stride of the PDP (kmd/firmware/pdp.c, validate_strides).
Passes = tuple[tuple[int, int], ...]


@cache
def cascade(kernel: int, stride: int | None, exact: bool, lead: int = 0) -> Passes | None:
    """One direction of a window as a cascade ((kernel, stride), ...) of windows up to 8; None where there is none.

    ``stride`` None = only one output, so any stride does. ``exact``: every element must count once (averages), so all
    but the last window must not overlap. ``lead`` is the padding, which the first window has to hold.
    """
    if kernel <= MAX_WINDOW and (stride is None or stride <= MAX_WINDOW):
        return ((kernel, min(kernel, MAX_WINDOW) if stride is None else stride),) if lead < kernel else None
    best = None
    for advance in range(MAX_WINDOW, 0, -1):
        if stride is not None and stride % advance:
            continue
        for first in range(MAX_WINDOW, max(advance, lead + 1) - 1, -1):
            rest = kernel - first
            if rest < 0 or rest % advance or (exact and first != advance):
                continue
            if rest // advance + 1 >= kernel:
                continue
            after = cascade(rest // advance + 1, None if stride is None else stride // advance, exact)
            if after is not None and (best is None or len(after) + 1 < len(best)):
                best = ((first, advance), *after)
    return best


class PoolLayer(LayerType):
    """``mode`` "max", "min" or "average" over windows; averages divide by the part of the window that counts."""

    kind = "pool"
    keeps_scale = each_channel_alone = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> PoolSettings:
        """Return the settings; ``stride`` None is the kernel, ``counted`` None all of the padding."""
        kernel = pair(name, "kernel", given["kernel"])
        stride = kernel if given["stride"] is None else pair(name, "stride", given["stride"])
        pads = padding_of(name, given["padding"])
        if max(pads[0], pads[1]) >= kernel[0] or max(pads[2], pads[3]) >= kernel[1]:
            raise BuildError(f"padding {pads} must be less than the kernel {kernel}; use less padding", layer=name)
        counted = given.get("counted")
        within = pads if counted is None else padding_of(name, counted)
        if any(inner > outer for inner, outer in zip(within, pads, strict=True)):
            raise BuildError(f"counted padding {within} must be at most the padding {pads}", layer=name)
        return PoolSettings(given["mode"], kernel, stride, pads, within)

    def shape(self, layer: Layer) -> Shape:
        """Return the positions of the window."""
        window, (channels, height, width) = PoolSettings.of(layer), layer.inputs[0].shape
        kernel, stride, pads = window.kernel, window.stride, window.padding
        return (
            channels,
            slid(layer.name, "height", height + pads[0] + pads[1], kernel[0], stride[0]),
            slid(layer.name, "width", width + pads[2] + pads[3], kernel[1], stride[1]),
        )

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Reduce each window; max and min ignore padding."""
        x, window = inputs[0], PoolSettings.of(layer)
        if window.mode == "average" and window.counted != window.padding:
            sums = windows(pad(x, window.padding), window.kernel, window.stride).sum(axis=(4, 5))
            inside = np.pad(np.ones(x.shape[2:]), (window.counted[:2], window.counted[2:]), constant_values=1.0)
            top, bottom, left, right = (a - b for a, b in zip(window.padding, window.counted, strict=True))
            counts = windows(pad(inside[None, None], (top, bottom, left, right)), window.kernel, window.stride).sum(
                axis=(4, 5)
            )
            return sums / counts
        if window.mode == "average":
            return np.mean(windows(pad(x, window.padding), window.kernel, window.stride), axis=(4, 5))
        if x.shape[2:] == (1, 1):  # each window has this element and padding
            return np.broadcast_to(x, (*x.shape[:2], *layer.output.shape[1:])).copy()
        larger, fill = (np.maximum, -np.inf) if window.mode == "max" else (np.minimum, np.inf)
        return floating.extreme(windows(pad(x, window.padding, fill), window.kernel, window.stride), larger)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Windows above 8 as cascades of smaller ones, averages that do not factor as convolutions."""
        pool = PoolSettings.of(group.layer)
        source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        if pool.mode == "average" and pool.counted != pool.padding:
            _by_divisor(lowering, group, source, destination)
        else:
            _windows(lowering, group, source, destination)


def _by_divisor(lowering: Lowering, group: Group, source: Surface, destination: Surface) -> None:
    """Averages that do not count all padding: results whose windows hold equally much are one pool each."""
    layer = group.layer
    for rows in _bands(layer, 0, source.height, destination.height):
        for columns in _bands(layer, 1, source.width, destination.width):
            (top, height), (first_row, row_count, *y) = rows
            (left, width), (first_column, column_count, *x) = columns
            padding = y[1], y[2], x[1], x[2]
            settings = replace(PoolSettings.of(layer), kernel=(y[0], x[0]), padding=padding, counted=padding)
            part = replace(group, layer=replace(layer, settings=settings))
            target = destination.crop(first_row, row_count, first_column, column_count)
            _windows(lowering, part, source.crop(top, height, left, width), target)


def _bands(layer: Layer, axis: int, size: int, results: int) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    """Results of one direction by what their windows hold: ((first, count) of the source, (first result, count, kernel,
    padding before, padding after))."""
    pool = PoolSettings.of(layer)
    kernel, stride = pool.kernel[axis], pool.stride[axis]
    before = pool.padding[2 * axis]
    low, high = -pool.counted[2 * axis], size + pool.counted[2 * axis + 1]
    spans = []
    for place in range(results):
        begin = place * stride - before
        spans.append((max(begin, low), min(begin + kernel, high)))
    bands: list[tuple[tuple[int, int], tuple[int, ...]]] = []
    place = 0
    while place < results:
        begin, end = spans[place]
        count = 1
        while place + count < results and spans[place + count] == (begin + count * stride, end + count * stride):
            count += 1
        last = end + (count - 1) * stride
        inside = max(begin, 0), min(last, size)
        if inside[1] <= inside[0]:
            raise BuildError(
                "windows: must contain input elements, got one with padding only. Use less padding.", layer=layer.name
            )
        padding = (inside[0] - begin, last - inside[1])
        bands.append(((inside[0], inside[1] - inside[0]), (place, count, end - begin, *padding)))
        place += count
    return bands


def _windows(lowering: Lowering, group: Group, source: Surface, destination: Surface) -> None:
    pool = PoolSettings.of(group.layer)
    exact = pool.mode == "average"
    plans: list[Passes] = []
    for axis in (0, 1):
        single = destination.shape[1 + axis] == 1
        lead = max(pool.padding[2 * axis], pool.padding[2 * axis + 1])
        plan = cascade(pool.kernel[axis], None if single else pool.stride[axis], exact, lead)
        if plan is None:
            _without_cascade(lowering, group, source, destination)
            return
        plans.append(plan)
    length = max(len(plan) for plan in plans)
    passes = [plan + ((1, 1),) * (length - len(plan)) for plan in plans]
    _run(lowering, group, source, destination, list(zip(*passes, strict=True)))


def _run(lowering: Lowering, group: Group, source: Surface, destination: Surface, passes: list[Passes]) -> None:
    """Emit the windows; sizes between them are those that the outputs need."""
    pool = PoolSettings.of(group.layer)
    sizes = [destination.shape[1:]]
    for (ky, sy), (kx, sx) in reversed(passes[1:]):
        sizes.insert(0, ((sizes[0][0] - 1) * sy + ky, (sizes[0][1] - 1) * sx + kx))
    for index, ((ky, sy), (kx, sx)) in enumerate(passes):
        height, width = sizes[index]
        last = index == len(passes) - 1
        target = destination if last else lowering.temporary(group.name, source.channels, height, width, source)
        pads = pool.padding if index == 0 else (0, 0, 0, 0)
        below = (height - 1) * sy + ky - pads[0] - source.height
        right = (width - 1) * sx + kx - pads[2] - source.width
        # Elements at the end that no window uses are cropped: the hardware wants every element used.
        used = source.crop(0, source.height + min(below, 0), 0, source.width + min(right, 0))
        padding = (pads[0], max(below, 0), pads[2], max(right, 0))
        lowering.operations.append(Pool(group.name, used, target, pool.mode, (ky, kx), (sy, sx), padding))
        source = target


def _without_cascade(lowering: Lowering, group: Group, source: Surface, destination: Surface) -> None:
    """An average as a convolution whose kernels hold ones, channel block by channel block; else an error."""
    pool = PoolSettings.of(group.layer)
    rows, columns = pool.kernel
    if pool.mode != "average" or max(pool.kernel) > MAX_KERNEL:
        raise BuildError(
            f"{pool.mode} pooling of {rows}x{columns} with stride {pool.stride} and padding {pool.padding} "
            f"cannot be split into a cascade of windows up to {MAX_WINDOW}. "
            "Use a smaller window, stride or padding.",
            layer=group.name,
        )
    window = Window(pool.stride if destination.shape[1:] != (1, 1) else (1, 1), pool.padding)
    check_window(group.name, (1, 1, rows, columns), window)
    convert = Convert(*fixed_point(1.0 / (rows * columns))) if lowering.integer else Convert()
    weight = 1.0 if lowering.integer else 1.0 / (rows * columns)

    def finish(target: Surface) -> Process:
        return Process(group.name, None, target, convert=convert)

    with_ones(lowering, group, source, destination, (rows, columns), window, finish, weight)


def with_ones(
    lowering: Lowering,
    group: Group,
    source: Surface,
    destination: Surface,
    kernel: tuple[int, int],
    window: Window,
    finish: Callable[[Surface], Process],
    weight: float,
) -> None:
    """A sum over windows as a convolution with kernels of ``weight``, channel block by channel block; ``finish``
    gives the SDP's part for the place of a result."""
    if lowering.level and _at_once(lowering, group, source, destination, kernel, finish, weight):
        return
    block = _channels_together(lowering, destination, kernel[0] * kernel[1])
    for first in range(0, source.channels, block):
        count = min(block, source.channels - first)
        weights = np.zeros((count, count, *kernel))
        weights[np.arange(count), np.arange(count)] = weight
        elements = weights.astype(DTYPES[lowering.precision])
        part, process = source.channel_range(first, count), finish(destination.channel_range(first, count))
        lowering.operations.append(Convolve(group.name, part, elements, window.stride, window.padding, (1, 1), process))


def _at_once(
    lowering: Lowering,
    group: Group,
    source: Surface,
    destination: Surface,
    kernel: tuple[int, int],
    finish: Callable[[Surface], Process],
    weight: float,
) -> bool:
    """A global average as one 1x1 convolution, where that is possible.

    The positions become channels of a cube whose lines are the tensor's surfaces: its kernels, one for each channel of
    an atom, are the same for all of them, and hold as many ones as there are positions.
    """
    atom, positions = lowering.atom_channels, source.height * source.width
    whole = source.root.whole.shape == source.shape and destination.root.whole.shape == destination.shape
    if not whole or destination.shape[1:] != (1, 1) or kernel != source.shape[1:]:
        return False
    if source.root.pixels is not None or source.channels <= atom or positions * atom > MAX_CUBE_SIDE:
        return False
    if source.channels % atom and not lowering.integer:
        return False  # the last atom may contain NaN after the channels
    rows = ceil_div(source.channels, atom)
    cube = PositionSurface(source.root, 0, positions * atom, 0, 1, rows, 0, 1, 1)
    target = AtomSurface(destination.root, 0, atom, 0, 1, rows, 0, 1, 1)
    elements = np.tile(weight * np.eye(atom), (1, positions))[:, :, None, None].astype(DTYPES[lowering.precision])
    operation = Convolve(group.name, cube, elements, (1, 1), (0, 0, 0, 0), (1, 1), finish(target))
    try:
        fit(operation, lowering.config)
    except BuildError:
        return False
    lowering.operations.append(operation)
    return True


def _channels_together(lowering: Lowering, destination: Surface, taps: int) -> int:
    """Channels of one such convolution: those that the MAC cells take at once.

    Where there is one output the products are few, zeros or not, and it is the number of operations that costs: then
    as many as have kernels that fill at most three quarters of the convolution buffer.
    """
    least = max(lowering.atom_channels, lowering.config.mac_atomic_c)
    if destination.shape[1:] != (1, 1):
        return least
    atom, room = lowering.atom_channels, room_for_ones(lowering.config) // (taps * BYTES[lowering.precision])
    return max(least if least * atom <= room else atom, isqrt(room) // atom * atom)


def room_for_ones(config: Configuration) -> int:
    """Bytes of the convolution buffer that kernels of one such convolution may take."""
    buffer = buffer_of(config)
    return 3 * buffer.banks * buffer.bank_bytes // 4


# Steps of the sum are fine enough for the zero point of the result where they are this much finer than its own.
_FINE = 16
# Positions whose sum, times a factor of 15 bits, has 31 bits.
_FEW = 512


class MeanLayer(LayerType):
    """The mean over rows and columns."""

    kind = "mean"
    each_channel_alone = zero_points = stays_within = True

    def shape(self, layer: Layer) -> Shape:
        """Return one number per channel."""
        return layer.inputs[0].shape[0], 1, 1

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """The mean of each channel."""
        return inputs[0].mean(axis=(2, 3), keepdims=True)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """A convolution with ones; maps that are too large for one are averaged over small windows first."""
        source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        while (window := _first(lowering, group, source)) != (1, 1):
            sizes = source.height // window[0], source.width // window[1]
            smaller = lowering.temporary(group.name, source.channels, *sizes, source)
            lowering.operations.append(Pool(group.name, source, smaller, "average", window, window, (0, 0, 0, 0)))
            source = smaller
        weight = 1.0 if lowering.integer else 1.0 / (source.height * source.width)
        with_ones(
            lowering,
            group,
            source,
            destination,
            source.shape[1:],
            Window(),
            lambda target: _finish(lowering, group, source, target),
            weight,
        )


def _first(lowering: Lowering, group: Group, source: Surface) -> tuple[int, int]:
    """The window to average over before; (1, 1) where none is needed. As small as will do."""
    height, width = source.shape[1:]
    most = room_for_ones(lowering.config) // (lowering.atom_channels**2 * BYTES[lowering.precision])

    def able(window: tuple[int, int]) -> bool:
        rows, columns = height // window[0], width // window[1]
        return max(rows, columns) <= MAX_KERNEL and rows * columns <= most

    windows = [(y, x) for y, x in product(range(1, MAX_WINDOW + 1), repeat=2) if height % y == 0 and width % x == 0]
    windows.sort(key=lambda window: window[0] * window[1])
    chosen = next((window for window in windows if able(window)), windows[-1])
    if chosen == (1, 1) and not able(chosen):
        raise BuildError(
            f"the mean over {height}x{width} cannot be split into a cascade of windows up to {MAX_WINDOW} and one up "
            f"to {MAX_KERNEL}. Use a map of another size.",
            layer=group.name,
        )
    return chosen


def _finish(lowering: Lowering, group: Group, source: Surface, target: Surface) -> Process:
    """From sums to the steps of the result."""
    if not lowering.integer:
        return Process(group.name, None, target)
    positions = source.height * source.width
    unit, constant = source.scale / positions, source.zero * positions
    if target.zero and unit * _FINE > target.scale and positions < _FEW:
        multiplier, convert = lowering.rescaled(unit, constant, target)
        return Process(group.name, None, target, Stage(multiplier=multiplier), convert=convert)
    if unit == target.scale:  # the converter rounds nothing
        return Process(group.name, None, target, convert=Convert(offset=constant - target.zero))
    return Process(group.name, None, target, convert=lowering.convert(unit, target, constant))


class PadLayer(LayerType):
    """``padding`` rows and columns of ``value`` around the input."""

    kind = "pad"
    keeps_scale = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> PadSettings:
        """Return the border; ``padding`` is one number, a pair, or (top, bottom, left, right)."""
        return PadSettings(padding_of(name, given["padding"]), float(given["value"]))

    def shape(self, layer: Layer) -> Shape:
        """Return the input's sizes and those of the border."""
        (channels, height, width), pads = layer.inputs[0].shape, PadSettings.of(layer).padding
        return channels, height + pads[0] + pads[1], width + pads[2] + pads[3]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """The input in the middle."""
        border = PadSettings.of(layer)
        return floating.pad(inputs[0], border.padding, border.value)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """The tensor in the middle, constants around it."""
        settings = PadSettings.of(group.layer)
        source, whole = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        top, bottom, left, right = settings.padding
        channels, height, width = source.shape
        lowering.copy(group.name, source, whole.crop(top, height, left, width))
        for y, rows, x, columns in (
            (0, top, 0, whole.width),
            (top + height, bottom, 0, whole.width),
            (top, height, 0, left),
            (top, height, left + width, right),
        ):
            if rows and columns:
                values = np.full((channels, rows, columns), settings.value)
                border = constant_root(lowering, f"{group.name}/border", values, whole.scale, whole.zero)
                lowering.copy(group.name, border.whole, whole.crop(y, rows, x, columns))


class UpsampleLayer(LayerType):
    """``factor``: a number, or (vertical, horizontal)."""

    kind = "upsample"
    keeps_scale = each_channel_alone = True

    def parse(self, name: str, shapes: list[Shape], given: Given) -> UpsampleSettings:
        """Return the factor; ``factor`` is a number or (vertical, horizontal)."""
        return UpsampleSettings(pair(name, "factor", given["factor"]))

    def shape(self, layer: Layer) -> Shape:
        """Return rows and columns times the factor."""
        (channels, height, width), factor = layer.inputs[0].shape, UpsampleSettings.of(layer).factor
        return channels, height * factor[0], width * factor[1]

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Upsample by repeating the nearest element."""
        rows, columns = UpsampleSettings.of(layer).factor
        return inputs[0].repeat(rows, axis=2).repeat(columns, axis=3)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Columns first, then rows: each copy fills every factor-th column (row) of the result."""
        fy, fx = UpsampleSettings.of(group.layer).factor
        source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        wide = source
        if fx > 1:
            channels, height, width = source.shape
            wide = destination if fy == 1 else lowering.temporary(group.name, channels, height, width * fx, source)
            for column in range(fx):
                lowering.copy(group.name, source, wide.every(0, 1, height, column, fx, width))
        if fy > 1 or fx == 1:
            for row in range(fy):
                lowering.copy(group.name, wide, destination.every(row, fy, wide.height, 0, 1, wide.width))


class LrnLayer(LayerType):
    """Across channels: ``x * (k + alpha / size * sum(x^2)) ** -beta``."""

    kind = "lrn"

    def parse(self, name: str, shapes: list[Shape], given: Given) -> LrnSettings:
        """Return the constants; ``size`` is 3, 5, 7 or 9."""
        size, alpha, k = given["size"], given["alpha"], given["k"]
        if size not in (3, 5, 7, 9):
            raise BuildError(f"LRN size: must be 3, 5, 7 or 9 (windows of the CDP), got {size}", layer=name)
        if k <= 0 or alpha < 0:
            raise BuildError(f"LRN: k must be above 0 and alpha at least 0, got k {k} and alpha {alpha}", layer=name)
        return LrnSettings(size, float(alpha), float(given["beta"]), float(k))

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Normalize by sums of squares of adjacent channels; zeros beyond the first and last."""
        x, lrn = inputs[0], LrnSettings.of(layer)
        half = lrn.size // 2
        squares = np.pad(x * x, ((0, 0), (half, half), (0, 0), (0, 0)))
        total = sliding_window_view(squares, lrn.size, axis=1).sum(-1)
        return np.asarray(x * (lrn.k + lrn.alpha / lrn.size * total) ** -lrn.beta)

    def lower(self, lowering: Lowering, group: Group) -> None:
        """The table holds (k + alpha / size * s^2 * sum) ** -beta in as many bits as int16 allows; the CDP multiplies
        by x."""
        lrn = LrnSettings.of(group.layer)
        source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
        if not lowering.integer:
            table = tables.fit_normalization_halves(lrn.size, lrn.alpha, lrn.beta, lrn.k)
            lowering.operations.append(Normalize(group.name, source, destination, lrn.size, table, Convert()))
            return
        bits = 14 - int(np.ceil(np.log2(lrn.k**-lrn.beta)))
        factor = lrn.alpha / lrn.size * source.scale**2

        def normalize(total: np.ndarray) -> np.ndarray:
            return (lrn.k + factor * np.maximum(total, 0)) ** -lrn.beta * 2.0**bits

        most = lrn.size * (LARGEST[lowering.precision] + 1) ** 2
        table = tables.fit_integers(normalize, 0, most)
        convert = Convert(*fixed_point(source.scale * 2.0**-bits / destination.scale))
        lowering.operations.append(Normalize(group.name, source, destination, lrn.size, table, convert))
