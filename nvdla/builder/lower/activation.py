"""Layers of one input in the SDP (and functions in the CDP where the SDP has no table)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder import lut as tables
from nvdla.builder import reference
from nvdla.builder.fuse import Group
from nvdla.builder.ir import Convert, Normalize, Process, Stage
from nvdla.builder.lower.convolution import bias_operand, number_or_channels, prelu_stage
from nvdla.builder.lut import Lut
from nvdla.builder.quantize import common_fixed_point, quantize
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering

# Where a function is wanted in fp16 and calibration says nothing about its input.
DEFAULT_RANGE = 8.0
# How far a table of halves may be off: a share of its largest value.
WORST = 1 / 64


def scale(lowering: Lowering, group: Group) -> None:
    """factors * x + bias: X1 multiplies (int16 factors of a common shift, kept in X1's result), X2 adds what is not
    nothing."""
    layer = group.layer
    source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
    relu_after = group.activation is not None
    if not lowering.integer:
        x1 = Stage(multiplier=quantize(layer.factors, 1.0, "fp16"))
        x2 = _shifted(x1, Stage("add", quantize(layer.bias, 1.0, "fp16")), relu_after)
        lowering.operations.append(Process(group.name, source, destination, x1, x2))
        return
    # Fewer bits where the bias would not fit 30 bits of the product's steps.
    largest = float(np.max(np.abs(layer.bias), initial=0.0)) / source.scale
    most = 40 if largest == 0 else int(np.clip(np.floor(30 - np.log2(largest)), 0, 40))
    bits = 14 if lowering.precision == "int16" else 15
    multipliers, shift = common_fixed_point(layer.factors, bits, most)
    unit = source.scale * 2.0**-shift
    operand, left = bias_operand(group.name, layer.bias, np.array([unit]))
    x1 = Stage(multiplier=multipliers)
    x2 = _shifted(x1, Stage("add", operand, left), relu_after)
    lowering.operations.append(
        Process(group.name, source, destination, x1, x2, convert=lowering.convert(unit, destination.scale))
    )


def _shifted(x1: Stage, x2: Stage, relu_after: bool) -> Stage | None:
    """The second stage, None where it would add nothing; the last of both has the ReLU."""
    adds = bool(np.any(np.asarray(x2.alu_operand)))
    (x2 if adds else x1).relu = relu_after
    return x2 if adds else None


def relu(lowering: Lowering, group: Group) -> None:
    """Lower a ReLU."""
    _simple(lowering, group, Stage(relu=True))


def prelu(lowering: Lowering, group: Group) -> None:
    """Lower a PReLU: a stage of integers, or of halves."""
    slopes = group.layer.slopes
    if lowering.integer:
        _simple(lowering, group, prelu_stage(slopes))
    else:
        _simple(lowering, group, Stage(multiplier=quantize(slopes, 1.0, "fp16"), prelu=True))


def clip(lowering: Lowering, group: Group) -> None:
    """Two comparisons with numbers: X1 the lower limit, X2 the upper one."""
    layer = group.layer
    limits = [np.atleast_1d(limit) for limit in (layer.low, layer.high)]
    if lowering.integer:
        unit = lowering.source(layer.inputs[0]).scale
        limits = [np.clip(np.floor(limit / unit + 0.5), -32768, 32767).astype(np.int64) for limit in limits]
    else:
        limits = [np.clip(limit, -65504, 65504).astype(np.float16) for limit in limits]
    low, high = (number_or_channels(limit) for limit in limits)
    _simple(lowering, group, Stage("max", low), Stage("min", high))


def _simple(lowering: Lowering, group: Group, x1: Stage, x2: Stage | None = None) -> None:
    source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
    convert = lowering.convert(source.scale, destination.scale)
    lowering.operations.append(Process(group.name, source, destination, x1, x2, convert=convert))


def function(lowering: Lowering, group: Group) -> None:
    """Any function by table: in the SDP's Y stage, or by the CDP with its sum and multiplication switched off.

    int8 needs no interpolation at all: LO has one entry for each value.
    """
    layer = group.layer
    form = layer.settings["function"]
    source, destination = lowering.source(layer.inputs[0]), lowering.target(group.output)
    if lowering.precision == "int8":
        table = tables.exact_int8(form, source.scale, destination.scale)
    elif lowering.precision == "int16":
        table = tables.fit_integers(lambda x: form(x * source.scale) / destination.scale, -32768, 32767)
    else:
        reach = lowering.magnitude(layer.inputs[0], DEFAULT_RANGE)
        table = tables.fit_halves(form, -reach, reach)
        _check_halves(lowering, group, table, reach)
    if lowering.config.sdp_lut:
        lowering.operations.append(Process(group.name, source, destination, lut=table))
    else:
        lowering.operations.append(Normalize(group.name, source, destination, 3, table, Convert(), direct=True))


def _check_halves(lowering: Lowering, group: Group, table: Lut, reach: float) -> None:
    """Refuse a table that is far off, and one that is where the range of its input is not known."""
    layer = group.layer
    probe = np.linspace(-reach, reach, 513)
    largest = float(np.abs(layer.settings["function"](probe)).max())
    if table.error > WORST * largest:
        raise BuildError(
            f"layer {group.name}: its table over -{reach:g} to {reach:g} is off by {table.error:.3g} of {largest:.3g}; "
            "limit the range of its input, or build in int8, where every value has an entry of its own"
        )
    known = lowering.calibration.magnitudes if lowering.calibration else {}
    if layer.inputs[0].name in known:
        return
    for side in (-2.0 * reach, 2.0 * reach):
        real = float(layer.settings["function"](np.array([side]))[0])
        given = float(reference.look_up(table, np.array([side]))[0])
        if abs(real - given) > WORST * max(largest, abs(real)):
            raise BuildError(
                f"layer {group.name}: the range of its input is not known, and its table over -{reach:g} to {reach:g} "
                f"gives {given:.3g} at {side:g} instead of {real:.3g}; calibrate with data"
            )
