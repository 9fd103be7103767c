"""Combined meaning of fields of an operation's descriptors: precisions, operands from memory, comparing."""

from __future__ import annotations

from nvdla.loadable.descriptors.enums import OpType, SdpAlu, SdpMode, SdpType
from nvdla.loadable.descriptors.structures import Descriptor
from nvdla.util.precision import Precision

#: the fields of the source's and of the destination's precision; BDMA knows no elements
PRECISION_FIELDS = {
    OpType.CONV: ("in_precision", "out_precision"),
    OpType.SDP: ("src_precision", "dst_precision"),
    OpType.PDP: ("precision", "precision"),
    OpType.CDP: ("in_precision", "out_precision"),
    OpType.RUBIK: ("precision", "precision"),
}


def precisions_of(op_type: OpType | int, op: Descriptor) -> tuple[Precision, Precision] | None:
    """(source, destination) precision of an operation's structure (ConvOp, SdpOp ...); None for BDMA."""
    names = PRECISION_FIELDS.get(OpType(op_type))
    if names is None:
        return None
    source, destination = (Precision(getattr(op, name)) for name in names)
    return source, destination


def processing_precision(source: Precision | int, destination: Precision | int) -> Precision:
    """Return the processing precision of SDP: int8 for integers that become int8, else the precision of its input
    (kmd/firmware/sdp.c processor_sdp_program)."""
    narrows = destination == Precision.INT8 and source != Precision.FP16
    return Precision.INT8 if narrows else Precision(source)


def operand_precision(source: int, stage: Descriptor) -> Precision:
    """Element type of the operands that a stage of the SDP takes from memory: int8, or 16 bits as the input has."""
    if stage.precision == Precision.INT8:
        return Precision.INT8
    return Precision.FP16 if source == Precision.FP16 else Precision.INT16


def reads_operands(stage: Descriptor) -> bool:
    """Return True if a stage of the SDP (SdpStage) takes its operands from memory."""
    return bool(stage.enable) and stage.type != SdpType.NONE and stage.mode != SdpMode.PER_LAYER


def compares(op: Descriptor) -> bool:
    """Return True if an SDP operation (SdpOp) compares (EQL in Y): it writes nothing but a status."""
    stage = op.y_op
    return bool(stage.enable) and stage.type in (SdpType.ADD, SdpType.BOTH) and stage.alu_type == SdpAlu.EQL
