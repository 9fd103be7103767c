"""Stages of the SDP that several layers have, and their operands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nvdla.builder.groups import Group
from nvdla.builder.ir import Process, Stage
from nvdla.builder.quantize import common_fixed_point
from nvdla.errors import BuildError

if TYPE_CHECKING:
    from nvdla.builder.lower.lowering import Lowering


ALU = {"add": "add", "maximum": "max", "minimum": "min"}
"""What the SDP's ALU does, by the operation of an elementwise layer."""


def from_zero(lowering: Lowering, group: Group, stage: Stage) -> Stage:
    """The stage, on elements whose 0 it brings to 0."""
    zero = lowering.source(group.layer.inputs[0]).zero
    return replace(stage, alu="add", alu_operand=-zero) if zero else stage


def alone(lowering: Lowering, group: Group, x1: Stage, x2: Stage | None = None, constant: int = 0) -> None:
    """One operation from memory to memory; ``constant`` stands for 0 behind its stages."""
    source, destination = lowering.source(group.layer.inputs[0]), lowering.target(group.output)
    if not constant and not destination.zero:
        convert = lowering.convert(source.scale, destination)
    else:
        # The last stage has room for a factor: the zero points are whole numbers of finer units.
        multiplier, convert = lowering.rescaled(source.scale, constant, destination)
        if x2 is None and x1.multiplier is not None:
            x2 = Stage(multiplier=multiplier)
        else:
            (x2 or x1).multiplier = multiplier
    lowering.operations.append(Process(group.name, source, destination, x1, x2, convert=convert))


def prelu_stage(slopes: np.ndarray) -> Stage:
    """A stage that multiplies negative integers by the slopes (a number where they are all the same)."""
    multipliers, truncate = common_fixed_point(slopes, most=31)
    return Stage(multiplier=number_or_channels(multipliers), truncate=truncate, prelu=True)


def bias_operand(name: str, bias: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, int]:
    """int16 operands and their common left shift: the finest in which the largest fits."""
    exact = bias / unit
    largest = float(np.max(np.abs(exact), initial=0.0))
    shift = max(0, int(np.ceil(np.log2(max(largest, 1.0) / 32767.0))))
    if largest >= 2.0**31:
        raise BuildError(
            f"layer {name}: a bias is {largest:.3g} units of the accumulator, at most 2**31; check bias and calibration"
        )
    return np.clip(np.floor(exact / 2.0**shift + 0.5), -32768, 32767).astype(np.int64), shift


def number_or_channels(values: np.ndarray) -> int | float | np.ndarray:
    """An operand as one number where all are the same, else as numbers a channel."""
    return values.flat[0].item() if np.all(values == values.flat[0]) else values
