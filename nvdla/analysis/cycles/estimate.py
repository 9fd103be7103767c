"""Cycles of every operation of a loadable: descriptors to shapes, shapes to the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvdla.analysis.cycles.constants import CycleConstants, Memory, constants
from nvdla.analysis.cycles.model import Time, chain_time
from nvdla.analysis.cycles.shapes import (
    CdpShape,
    ChainShape,
    ConvolutionShape,
    CopyShape,
    PdpShape,
    SdpShape,
    windows_behind,
)
from nvdla.descriptors.enums import ConvMode, DataFormat, MemType, SdpMode
from nvdla.descriptors.meaning import processing_precision
from nvdla.hardware.configuration import Configuration
from nvdla.program.handover import chains
from nvdla.program.operation import Key, Operation
from nvdla.rounding import ceil_div

WINOGRAD_SHARE = 4  # a pass over a tap serves a tile of 2 x 2 outputs


@dataclass(frozen=True)
class Estimate:
    """What an operation costs. An operation on the fly has the time of its whole chain, whose first ``leader`` is.

    ``macs``: multiplications of its arithmetic (padding included, as the hardware does them); ``mac_share``: of what
    the MAC array could do in the time; ``read_bytes`` and ``written_bytes``: traffic; ``cycles`` None: not modelled
    (CPU operations); ``measured``: the configuration and precision are those the model was calibrated on;
    ``shape``: the chain as the model takes it, with the ``constants`` of its precision.
    """

    key: Key
    leader: Key
    cycles: int | None
    bound: str | None
    macs: int
    mac_share: float | None
    read_bytes: int
    written_bytes: int
    measured: bool
    time: Time | None
    shape: ChainShape | None
    constants: CycleConstants


def estimates(nodes: list[Operation], config: Configuration, memory: Memory) -> dict[Key, Estimate]:
    """The estimate of every operation."""
    found: dict[Key, Estimate] = {}
    times: dict[tuple[ChainShape, CycleConstants], Time] = {}
    for chain in chains(nodes):
        values = constants(config, _element_bytes(chain[0]))
        shape = chain_shape(chain, values)
        if shape and (shape, values) not in times:  # networks repeat their layers
            times[shape, values] = chain_time(shape, values, memory)
        time = times[shape, values] if shape else None
        for node in chain:
            macs = _macs(node)
            share = None
            if macs and time and time.total:
                share = macs / (time.total * values.channels * values.kernels)
            found[node.key] = Estimate(
                key=node.key,
                leader=chain[0].key,
                cycles=time.total if time else None,
                bound=time.bound if time else None,
                macs=macs,
                mac_share=share,
                read_bytes=sum(access.traffic for access in node.reads),
                written_bytes=sum(access.traffic for access in node.writes),
                measured=values.measured and _covered(node),
                time=time,
                shape=shape,
                constants=values,
            )
    return found


def _covered(node: Operation) -> bool:
    """Whether the model's measurements say something about this kind of operation."""
    if _in_cvsram([node]):
        return False
    if node.engine == "conv":
        op = node.op
        return op.conv_mode == ConvMode.DIRECT and op.batch <= 1 and not op.weight_format
    return node.engine in ("sdp", "pdp", "cdp")


def chain_shape(chain: list[Operation], values: CycleConstants) -> ChainShape | None:
    """Operations that work together as the model takes them; None for what it does not model (CPU operations)."""
    parts: dict[str, Any] = {}
    for node in chain:
        if node.engine == "conv":
            parts["conv"] = convolution_shape(node, values)
        elif node.engine == "sdp":
            parts["sdp"] = sdp_shape(node, values)
        elif node.engine == "pdp":
            parts["pdp"] = pdp_shape(node, values)
        elif node.engine == "cdp":
            cube = node.surface.src_data
            parts["cdp"] = CdpShape(cube.width, cube.height, _surfaces(cube, _element_bytes(node), values))
        elif node.engine in ("bdma", "rubik"):
            parts["copy"] = CopyShape(_traffic(node.reads), _traffic(node.writes))
    return ChainShape(**parts, cvsram=_in_cvsram(chain)) if parts else None


def _in_cvsram(chain: list[Operation]) -> frozenset[str]:
    """What of a chain lies in CVSRAM, by what it is for."""
    found = set()
    for node in chain:
        if node.engine not in ("conv", "sdp", "pdp", "cdp"):
            continue
        surface = node.surface
        if surface.src_data.type == MemType.CV:
            found.add("data" if node.engine == "conv" else "read")
        if surface.dst_data.type == MemType.CV:
            found.add("write")
        if node.engine == "conv" and surface.weight_data.type == MemType.CV:
            found.add("weights")
        names = ("x1", "x2", "y") if node.engine == "sdp" else ()
        points = [name for name in names if getattr(node.op, f"{name}_op").mode == SdpMode.PER_POINT]
        if any(getattr(surface, f"{name}_data").type == MemType.CV for name in points):
            found.add("operand")
    return frozenset(found)


def convolution_shape(node: Operation, values: CycleConstants) -> ConvolutionShape:
    """A convolution as the model takes it."""
    op, surface = node.op, node.surface
    src, dst = surface.src_data, surface.dst_data
    size = _element_bytes(node)
    image = op.data_format != DataFormat.FEATURE
    data = sum(access.traffic for access in node.reads if access.role.startswith("src"))
    if image:
        data = src.height * ceil_div(ceil_div(data, max(src.height, 1)), values.atom) * values.atom
    weights = sum(access.traffic for access in node.reads if access.role in ("weights", "wmb", "wgs"))
    return ConvolutionShape(
        out_width=max(dst.width, 1),
        out_height=max(dst.height, 1),
        kernels=max(dst.channel, 1),
        kernel_width=max(op.kernel_width_csc, 1),
        kernel_height=max(op.kernel_height_csc, 1),
        kernel_channels=max(op.kernel_channel_csc, 1),
        data_bytes=0 if op.data_reuse else data,
        weight_bytes=0 if op.weight_reuse else weights,
        weight_banks=max(op.weight_bank, 1),
        data_atoms=max(ceil_div(src.channel * size, values.atom), 1),
        data_banks=max(op.data_bank, 1),
        slices=max(src.height, 1),
        entries_per_slice=op.entry_per_slice,
        by_line=image,
        post_extension=1 << min(op.post_extension, 2),
        batch=max(op.batch, 1),
        share=WINOGRAD_SHARE if op.conv_mode == ConvMode.WINOGRAD else 1,
        element_bytes=size,
    )


def sdp_shape(node: Operation, values: CycleConstants) -> SdpShape:
    """An SDP operation as the model takes it. Operands for each kernel come with it, and cost nothing."""
    op, src = node.op, node.surface.src_data
    stages = [name for name in ("x1", "x2", "y") if getattr(op, f"{name}_op").enable]
    points = [name for name in stages if getattr(op, f"{name}_op").mode == SdpMode.PER_POINT]
    source = sum(access.traffic for access in node.reads if access.role.startswith("src"))
    return SdpShape(
        width=max(src.width, 1),
        height=max(src.height, 1),
        surfaces=max(_surfaces(src, _element_bytes(node), values), 1),
        stages=len(stages),
        uses_y="y" in stages,
        read_bytes=source,
        operand_bytes=sum(access.traffic for access in node.reads if access.role in points),
        write_bytes=_traffic(node.writes),
        batch=max(op.batch_num, 1),
    )


def pdp_shape(node: Operation, values: CycleConstants) -> PdpShape:
    """A pooling as the model takes it."""
    op, src, dst = node.op, node.surface.src_data, node.surface.dst_data
    width, height = op.pool_width + 1, op.pool_height + 1
    again = max(op.split_num - 1, 0) * max(width - op.stride_x, 0)
    return PdpShape(
        in_width=src.width + again,
        in_height=src.height,
        out_width=dst.width,
        out_height=dst.height,
        surfaces=_surfaces(src, _element_bytes(node), values),
        late_rows=windows_behind(dst.height, height, max(op.stride_y, 1), op.pad_top, src.height),
        late_columns=windows_behind(dst.width, width, max(op.stride_x, 1), op.pad_left, src.width),
        read_bytes=_traffic(node.reads),
        write_bytes=_traffic(node.writes),
    )


def _element_bytes(node: Operation) -> int:
    """Bytes of the elements that the operation works on."""
    if node.precisions is None:
        return 1
    if node.engine == "sdp":
        return processing_precision(*node.precisions).bytes
    return node.precisions[node.engine == "conv"].bytes  # CDMA may widen pixels


def _surfaces(cube: Any, size: int, values: CycleConstants) -> int:
    return ceil_div(cube.channel * size, values.atom)


def _traffic(accesses: list[Any]) -> int:
    return sum(access.traffic for access in accesses)


def _macs(node: Operation) -> int:
    """Multiplications of a convolution (those of its direct form, also for Winograd), 0 of other operations.

    A Winograd kernel of 4 x 4 stands for one of 3 x 3.
    """
    if node.engine != "conv":
        return 0
    op, dst = node.op, node.surface.dst_data
    winograd = op.conv_mode == ConvMode.WINOGRAD
    kernel = 9 if winograd else op.kernel_width_csc * op.kernel_height_csc
    positions = dst.width * dst.height * max(op.batch, 1)
    return positions * dst.channel * kernel * op.kernel_channel_csc
