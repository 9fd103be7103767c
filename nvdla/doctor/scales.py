"""The real scales that converters imply: ``scale >> truncate`` as a number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nvdla.descriptors.enums import OpType, Precision, SdpMode, SdpType
from nvdla.lint.context import Context
from nvdla.program.accesses import STAGES
from nvdla.program.operation import Operation


@dataclass(frozen=True)
class Scale:
    """One converter. ``real`` = scale / 2**truncate; ``bits``: significant bits of the scale; None where it comes
    from memory channel by channel."""

    task: int
    operation: int
    engine: str
    layer: str | None
    converter: str
    scale: int | None
    truncate: int
    offset: int
    real: float | None
    bits: int | None

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return asdict(self)


def scales(context: Context) -> list[Scale]:
    """All converters of integer operations that do something."""
    return [scale for subject in context.subjects if subject.roi == 0 for scale in scales_of(subject)]


def scales_of(subject: Operation) -> Iterator[Scale]:
    """The converters of one operation in the order of the data. fp16 has none."""
    op = subject.op
    if subject.type == OpType.CONV and op.out_precision != Precision.FP16:
        yield from _converter(subject, "in_cvt", op.in_cvt, op.in_cvt.enable)
        if op.out_cvt.truncate:
            yield _scale(subject, "accumulator", 1, op.out_cvt.truncate, 0)
    if subject.type == OpType.SDP and op.src_precision != Precision.FP16:
        for name in STAGES:
            yield from _stage(subject, name, getattr(op, f"{name}_op"))
        # The SDP converts whether the descriptor says enable or not (kmd/firmware/sdp.c writes the registers).
        yield from _converter(subject, "out_cvt", op.out_cvt, True)
    if subject.type == OpType.CDP and op.in_precision != Precision.FP16:
        yield from _converter(subject, "in_cvt", op.in_cvt, True)
        yield from _converter(subject, "out_cvt", op.out_cvt, True)


def _converter(subject: Operation, name: str, cvt: Any, used: bool) -> Iterator[Scale]:
    if used and (cvt.scale, cvt.truncate, cvt.offset) != (1, 0, 0):
        yield _scale(subject, name, cvt.scale, cvt.truncate, cvt.offset)


def _stage(subject: Operation, name: str, stage: Any) -> Iterator[Scale]:
    if not stage.enable or stage.type not in (SdpType.MUL, SdpType.BOTH):
        return
    operand = stage.mul_operand if stage.mode == SdpMode.PER_LAYER else None
    yield _scale(subject, f"{name} multiplier", operand, stage.truncate, 0)


def _scale(subject: Operation, name: str, scale: int | None, truncate: int, offset: int) -> Scale:
    real = None if scale is None else math.ldexp(scale, -truncate)
    bits = None if scale is None else abs(scale).bit_length()
    place = (subject.task, subject.index, subject.engine, subject.layer)
    return Scale(*place, name, scale, truncate, offset, real, bits)
