"""Pooling: windows above 8 as cascades of smaller ones, averages that do not factor as convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from nvdla.builder.cbuf import buffer_of, fit
from nvdla.builder.floating import pad, windows
from nvdla.builder.groups import Group
from nvdla.builder.ir import (
    BYTES,
    DTYPES,
    AtomSurface,
    Convert,
    Convolve,
    Pool,
    PositionSurface,
    Process,
    Surface,
)
from nvdla.builder.layer_types import LayerType
from nvdla.builder.lower.convolution import MAX_KERNEL, Window, check_window
from nvdla.builder.network import MAX_SIZE
from nvdla.builder.quantize import fixed_point
from nvdla.builder.shapes import Shape, padding_of, pair, slid
from nvdla.errors import BuildError
from nvdla.rounding import ceil_div

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import Layer
    from nvdla.hardware.configuration import Configuration

# Largest window and stride of the PDP (kmd/firmware/pdp.c, validate_strides).
LIMIT = 8
Passes = tuple[tuple[int, int], ...]


@cache
def cascade(kernel: int, stride: int | None, exact: bool, lead: int = 0) -> Passes | None:
    """One direction of a window as a cascade ((kernel, stride), ...) of windows up to 8; None where there is none.

    ``stride`` None = only one output, so any stride does. ``exact``: every element must count once (averages), so all
    but the last window must not overlap. ``lead`` is the padding, which the first window has to hold.
    """
    if kernel <= LIMIT and (stride is None or stride <= LIMIT):
        return ((kernel, min(kernel, LIMIT) if stride is None else stride),) if lead < kernel else None
    best = None
    for advance in range(LIMIT, 0, -1):
        if stride is not None and stride % advance:
            continue
        for first in range(LIMIT, max(advance, lead + 1) - 1, -1):
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

    def shape(self, name: str, shapes: list[Shape], settings: dict[str, Any]) -> Shape:
        """``stride`` None: the kernel. ``counted``: the part of the padding that averages count, None for all."""
        channels, height, width = shapes[0]
        kernel = pair(name, "kernel", settings["kernel"])
        stride = kernel if settings["stride"] is None else pair(name, "stride", settings["stride"])
        pads = padding_of(name, settings["padding"])
        if max(pads[0], pads[1]) >= kernel[0] or max(pads[2], pads[3]) >= kernel[1]:
            raise BuildError(f"layer {name}: padding {pads} must be less than the kernel {kernel}; use less padding")
        counted = settings.get("counted")
        within = pads if counted is None else padding_of(name, counted)
        if any(inner > outer for inner, outer in zip(within, pads, strict=True)):
            raise BuildError(f"layer {name}: counted padding {within} must be at most the padding {pads}")
        settings.update(kernel=kernel, stride=stride, padding=pads, counted=within)
        return (
            channels,
            slid(name, "height", height + pads[0] + pads[1], kernel[0], stride[0]),
            slid(name, "width", width + pads[2] + pads[3], kernel[1], stride[1]),
        )

    def form(self, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        """Of each window; padding never wins."""
        x = inputs[0]
        if layer.mode == "average" and layer.counted != layer.padding:
            sums = windows(pad(x, layer.padding), layer.kernel, layer.stride).sum(axis=(4, 5))
            inside = np.pad(np.ones(x.shape[2:]), (layer.counted[:2], layer.counted[2:]), constant_values=1.0)
            rest = [outer - inner for outer, inner in zip(layer.padding, layer.counted, strict=True)]
            counts = windows(pad(inside[None, None], tuple(rest)), layer.kernel, layer.stride).sum(axis=(4, 5))
            return sums / counts
        forms: dict[str, tuple[Callable[..., np.ndarray], float]] = {
            "max": (np.max, -np.inf),
            "min": (np.min, np.inf),
            "average": (np.mean, 0.0),
        }
        reduce, fill = forms[layer.mode]
        return reduce(windows(pad(x, layer.padding, fill), layer.kernel, layer.stride), axis=(4, 5))

    def lower(self, lowering: Lowering, group: Group) -> None:
        """Windows above 8 as cascades of smaller ones, averages that do not factor as convolutions."""
        layer = group.layer
        source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
        if layer.mode == "average" and layer.counted != layer.padding:
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
            settings = {
                **layer.settings,
                "kernel": (y[0], x[0]),
                "padding": (*y[1:], *x[1:]),
                "counted": (*y[1:], *x[1:]),
            }
            part = replace(group, layer=replace(layer, settings=settings))
            target = destination.crop(first_row, row_count, first_column, column_count)
            _windows(lowering, part, source.crop(top, height, left, width), target)


def _bands(layer: Layer, axis: int, size: int, results: int) -> list[tuple[tuple[int, int], tuple[int, ...]]]:
    """Results of one direction by what their windows hold: ((first, count) of the source, (first result, count, kernel,
    padding before, padding after))."""
    kernel, stride = layer.kernel[axis], layer.stride[axis]
    before = layer.padding[2 * axis]
    low, high = -layer.counted[2 * axis], size + layer.counted[2 * axis + 1]
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
            raise BuildError(f"layer {layer.name}: a window holds padding alone; use less padding")
        padding = (inside[0] - begin, last - inside[1])
        bands.append(((inside[0], inside[1] - inside[0]), (place, count, end - begin, *padding)))
        place += count
    return bands


def _windows(lowering: Lowering, group: Group, source: Surface, destination: Surface) -> None:
    layer = group.layer
    exact = layer.mode == "average"
    plans: list[Passes] = []
    for axis in (0, 1):
        single = destination.shape[1 + axis] == 1
        lead = max(layer.padding[2 * axis], layer.padding[2 * axis + 1])
        plan = cascade(layer.kernel[axis], None if single else layer.stride[axis], exact, lead)
        if plan is None:
            _without_cascade(lowering, group, source, destination)
            return
        plans.append(plan)
    length = max(len(plan) for plan in plans)
    passes = [plan + ((1, 1),) * (length - len(plan)) for plan in plans]
    _run(lowering, group, source, destination, list(zip(*passes, strict=True)))


def _run(lowering: Lowering, group: Group, source: Surface, destination: Surface, passes: list[Passes]) -> None:
    """Emit the windows; sizes between them are those that the outputs need."""
    sizes = [destination.shape[1:]]
    for (ky, sy), (kx, sx) in reversed(passes[1:]):
        sizes.insert(0, ((sizes[0][0] - 1) * sy + ky, (sizes[0][1] - 1) * sx + kx))
    for index, ((ky, sy), (kx, sx)) in enumerate(passes):
        height, width = sizes[index]
        last = index == len(passes) - 1
        target = destination if last else lowering.temporary(group.name, source.channels, height, width, source)
        pads = group.layer.padding if index == 0 else (0, 0, 0, 0)
        below = (height - 1) * sy + ky - pads[0] - source.height
        right = (width - 1) * sx + kx - pads[2] - source.width
        # Elements at the end that no window uses are cropped: the hardware wants every element used.
        used = source.crop(0, source.height + min(below, 0), 0, source.width + min(right, 0))
        padding = (pads[0], max(below, 0), pads[2], max(right, 0))
        lowering.operations.append(Pool(group.name, used, target, group.layer.mode, (ky, kx), (sy, sx), padding))
        source = target


def _without_cascade(lowering: Lowering, group: Group, source: Surface, destination: Surface) -> None:
    """An average as a convolution whose kernels hold ones, channel block by channel block; else an error."""
    layer = group.layer
    rows, columns = layer.kernel
    if layer.mode != "average" or max(layer.kernel) > MAX_KERNEL:
        raise BuildError(
            f"layer {group.name}: {layer.mode} pooling of {rows}x{columns} with stride {layer.stride} and padding "
            f"{layer.padding} is no cascade of windows up to {LIMIT}; use a smaller window, stride or padding"
        )
    window = Window(layer.stride if destination.shape[1:] != (1, 1) else (1, 1), layer.padding)
    check_window(group.name, (1, 1, rows, columns), window)
    convert = Convert(*fixed_point(1.0 / (rows * columns))) if lowering.integer else Convert()
    one = 1.0 if lowering.integer else 1.0 / (rows * columns)

    def finish(target: Surface) -> Process:
        return Process(group.name, None, target, convert=convert)

    with_ones(lowering, group, source, destination, (rows, columns), window, finish, one)


def with_ones(
    lowering: Lowering,
    group: Group,
    source: Surface,
    destination: Surface,
    kernel: tuple[int, int],
    window: Window,
    finish: Callable[[Surface], Process],
    one: float,
) -> None:
    """A sum over windows as a convolution with kernels of ``one``, channel block by channel block; ``finish`` gives the
    SDP's part for the place of a result."""
    if lowering.level and _at_once(lowering, group, source, destination, kernel, finish, one):
        return
    block = _channels_together(lowering, destination, kernel[0] * kernel[1])
    for first in range(0, source.channels, block):
        count = min(block, source.channels - first)
        weights = np.zeros((count, count, *kernel))
        weights[np.arange(count), np.arange(count)] = one
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
    one: float,
) -> bool:
    """A global average as one 1x1 convolution, where that is possible.

    The positions become channels of a cube whose lines are the tensor's surfaces: its kernels, one for each channel of
    an atom, are the same for all of them, and hold as many ones as there are positions.
    """
    atom, positions = lowering.atom_channels, source.height * source.width
    whole = source.root.whole.shape == source.shape and destination.root.whole.shape == destination.shape
    if not whole or destination.shape[1:] != (1, 1) or kernel != source.shape[1:]:
        return False
    if source.root.pixels is not None or source.channels <= atom or positions * atom > MAX_SIZE:
        return False
    if source.channels % atom and not lowering.integer:
        return False  # what lies in the last atom behind the channels may be no number
    rows = ceil_div(source.channels, atom)
    cube = PositionSurface(source.root, 0, positions * atom, 0, 1, rows, 0, 1, 1)
    target = AtomSurface(destination.root, 0, atom, 0, 1, rows, 0, 1, 1)
    elements = np.tile(one * np.eye(atom), (1, positions))[:, :, None, None].astype(DTYPES[lowering.precision])
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
