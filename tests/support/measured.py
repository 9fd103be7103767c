"""Cycles measured on NVIDIA's RTL: entries of the cycle corpus as shapes of the model."""

import re
from dataclasses import replace

from nvdla.analysis.cycles.constants import (
    CdpShape,
    ChainShape,
    ConvolutionShape,
    Memory,
    PdpShape,
    SdpShape,
    constants,
    flushed_windows,
)
from nvdla.analysis.cycles.estimate import chain_time
from nvdla.emulator.hardware.configuration import configuration
from nvdla.util.rounding import ceil_div


def predicted(entry):
    """The model's cycles for an entry of the corpus."""
    values = constants(configuration(entry["config"]))
    width = entry["memory"]["bytes_per_cycle"]
    memory = Memory(
        entry["memory"]["latency_cycles"],
        None if width == "bus width" else width,
        entry["memory"]["shared_read_write"],
    )
    return chain_time(UNITS[entry["unit"]](entry["shape"], values), values, memory)


def _sdp_shape(shape, values, width, height, channels):
    stages = [name for name in ("bs", "bn", "ew") if shape[name] != "bypass"]
    surfaces = ceil_div(channels, values.atom)
    cube = width * height * surfaces * values.atom
    operands = sum(_operand_bytes(shape[name], cube) for name in stages)
    source = 0 if shape.get("flying") else cube
    return SdpShape(width, height, surfaces, len(stages), "ew" in stages, source, operands, cube)


def _operand_bytes(what, cube):
    match = re.fullmatch(r"memory_([a-z]+)_([a-z]+)_(\d)B", what)
    if not match:
        return 0
    if match[2] == "channel":  # comes with each kernel, and costs nothing
        return 0
    return cube * int(match[3]) * (2 if match[1] == "both" else 1)


def _conv(shape, values):
    data = shape["w"] * shape["h"] * ceil_div(shape["c"], values.atom) * values.atom
    if shape["image_in"]:
        data = shape["h"] * ceil_div(shape["w"] * shape["c"], values.atom) * values.atom
    made = ConvolutionShape(
        out_width=shape["out_w"],
        out_height=shape["out_h"],
        kernels=shape["k"],
        kernel_width=shape["kernel_w"],
        kernel_height=shape["kernel_h"],
        kernel_channels=shape["kernel_c"],
        data_bytes=0 if shape["data_reuse"] else data,
        weight_bytes=0 if shape["weight_reuse"] else shape["weight_bytes"],
        weight_banks=shape["weight_banks"],
        data_atoms=ceil_div(shape["c"], values.atom),
        slices=shape["h"],
        by_line=bool(shape["image_in"]),
        post_extension=shape["y_extension"],
    )
    return ChainShape(conv=made, sdp=_sdp_shape(shape["sdp"], values, shape["out_w"], shape["out_h"], shape["k"]))


def _sdp(shape, values):
    return ChainShape(sdp=_sdp_shape(shape["sdp"], values, shape["w"], shape["h"], shape["c"]))


def _pdp(shape, values):
    return ChainShape(pdp=_pdp_shape(shape, values))


def _pdp_shape(shape, values, alone=True):
    pool = shape.get("pool") or shape["pdp"]
    left, top, right, bottom = pool["pad"]
    surfaces = ceil_div(pool["in_c"], values.atom)
    again = (pool["splits"] - 1) * max(pool["kernel_w"] - pool["stride_x"], 0)
    return PdpShape(
        in_width=pool["in_w"] + again,
        in_height=pool["in_h"],
        out_width=pool["out_w"],
        out_height=pool["out_h"],
        surfaces=surfaces,
        rows=flushed_windows(pool["in_h"], pool["kernel_h"], pool["stride_y"], top, bottom),
        columns=flushed_windows(pool["in_w"], pool["kernel_w"], pool["stride_x"], left, right),
        read_bytes=(pool["in_w"] + again) * pool["in_h"] * surfaces * values.atom if alone else 0,
        write_bytes=pool["out_w"] * pool["out_h"] * surfaces * values.atom,
    )


def _cdp(shape, values):
    return ChainShape(cdp=CdpShape(shape["w"], shape["h"], ceil_div(shape["c"], values.atom), not shape["sq_bypass"]))


def _sdp_pdp(shape, values):
    """PDP behind SDP on the fly: what goes between them does not go through memory."""
    sdp = replace(_sdp(shape, values).sdp, write_bytes=0)
    return ChainShape(sdp=sdp, pdp=_pdp_shape(shape, values, alone=False))


UNITS = {"conv": _conv, "sdp": _sdp, "pdp": _pdp, "cdp": _cdp, "sdp+pdp": _sdp_pdp}
