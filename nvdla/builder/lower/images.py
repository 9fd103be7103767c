"""Which inputs come as images: those that only convolutions take, with up to four channels."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder import pixels
from nvdla.builder.cbuf import fit
from nvdla.builder.groups import Group
from nvdla.builder.ir import DTYPES, Convolve, PixelConverter, Process, Root
from nvdla.errors import BuildError
from nvdla.loadable.enums import PixelFormat

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering
    from nvdla.builder.network import NetworkTensor

FORMATS = ("auto", "image", "feature", "pixels")


def chosen(lowering: Lowering, wanted: str) -> dict[str, PixelFormat]:
    """The pixel formats of inputs by name. ``wanted``: "auto" where that is possible, "image" for all of them (else
    BuildError), "pixels" for all of them with unsigned elements, "feature" for none, or the name of a pixel format."""
    if wanted not in FORMATS and pixels.named(wanted) is None:
        names = ", ".join(each.name for each in PixelFormat if each < PixelFormat.FEATURE)
        raise BuildError(f"input format {wanted!r}: known are {', '.join(FORMATS)} and the pixel formats {names}")
    found: dict[str, PixelFormat] = {}
    for tensor in lowering.network.inputs if wanted != "feature" else ():
        form, reason = _form(lowering, tensor, wanted)
        reason = reason if form is None else _hindrance(lowering, tensor, form)
        if form is not None and not reason:
            found[tensor.name] = form
        elif wanted != "auto":
            raise BuildError(f"input {tensor.name} cannot be an image: {reason}; use the input format auto or feature")
    return found


def _form(lowering: Lowering, tensor: NetworkTensor, wanted: str) -> tuple[PixelFormat | None, str]:
    """The format of an input, or why there is none."""
    channels, precision = tensor.shape[0], lowering.default
    known = pixels.named(wanted)
    if known is not None:
        reason = pixels.hindrance(known, channels, precision, lowering.config)
        if not reason and pixels.depth(wanted) not in (None, lowering.numbers.bits):
            reason = f"pixels of {wanted} have {pixels.depth(wanted)} bits, the given ones {lowering.numbers.bits}"
        return (None, reason) if reason else (known, "")
    if wanted != "pixels":
        return pixels.format_for(channels, precision), "it has more than four channels"
    bits = lowering.numbers.bits
    form = pixels.unsigned_format(channels, lowering.config, bits)
    return form, f"there are no pixels of {channels} channels of {bits} bits for {lowering.config.name}"


def converted(lowering: Lowering) -> dict[str, PixelConverter]:
    """What CDMA makes of inputs that are unsigned pixels. Scales of these inputs are set by it, and where channels have
    scales of their own the weights of those who read them have their factors; halves, which have no scale, have all of
    it there."""
    found: dict[str, PixelConverter] = {}
    for tensor in (each for each in lowering.network.inputs if each.name in lowering.images):
        form = lowering.images[tensor.name]
        converter, unit = pixels.converter(lowering.numbers, form, tensor.shape[0], lowering.default)
        if lowering.default == "fp16":
            converter = replace(converter, factors=tuple(unit * factor for factor in converter.factors))
        else:
            lowering.scales[tensor.name] = unit
        found[tensor.name] = converter
        if any(factor != 1 for factor in converter.factors):
            factors = np.array(converter.factors)[:, None, None]
            for group in (each for each in lowering.groups if tensor in each.layer.inputs):
                group.weights = group.kernels * factors
    return found


def _hindrance(lowering: Lowering, tensor: NetworkTensor, form: PixelFormat) -> str:
    """Why an input cannot be an image; "" where it can."""
    if tensor in lowering.network.outputs:
        return "it is an output, too"
    if tensor.shape[1:] == (1, 1):
        return "it is a single pixel"
    for group in (each for each in lowering.groups if tensor in each.layer.inputs):
        layer = group.layer
        if layer.kind != "convolution" or layer.groups != 1:
            return f"layer {layer.name} is no dense convolution"
        if layer.dilation != (1, 1):
            return f"layer {layer.name} has dilation {layer.dilation}"
        if lowering.precisions[group.output.name] != lowering.default:
            return f"layer {layer.name} has another precision"
        if not _fits(lowering, tensor, form, group):
            return f"layer {layer.name} does not fit the convolution buffer on whole lines"
    return ""


def _fits(lowering: Lowering, tensor: NetworkTensor, form: PixelFormat, group: Group) -> bool:
    precision, layer = lowering.default, group.layer
    assert group.weights is not None
    source = Root("", *tensor.shape, precision, pixels=form).whole
    weights = np.broadcast_to(np.zeros((), DTYPES[precision]), (1, *group.weights.shape[1:]))
    result = Root("", 1, *layer.output.shape[1:], precision).whole
    trial = Convolve("", source, weights, layer.stride, layer.padding, layer.dilation, Process("", None, result))
    try:
        fit(trial, lowering.config)
    except BuildError:
        return False
    return True
