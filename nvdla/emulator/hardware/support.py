"""Features of each configuration, found with small operations, set up by registers, that an engine accepts or refuses.

A probe is one smallest sensible operation of an engine in one mode and precision. :func:`ask` writes its registers into
a fresh machine of a configuration and lets the engine decode and check it; nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nvdla.emulator.hardware.configuration import Configuration
from nvdla.emulator.hardware.convolution.checks import entries_per_slice
from nvdla.emulator.hardware.machine import ENGINES, Machine
from nvdla.emulator.memory.address_space import AddressSpace, Space
from nvdla.errors import NvdlaError
from nvdla.util.precision import PRECISIONS

DATA, WEIGHTS, OUTPUT, CVSRAM = 0x80000000, 0x90000000, 0xA0000000, 0x50000000
REGION_BYTES = 1 << 18
SIDE, CHANNELS = 8, 64
"""Every probe works on a cube of 8 x 8 x 64 elements, at least one of whose surfaces is full in every configuration."""


@dataclass(frozen=True)
class Probe:
    """One operation. ``registers``: "UNIT.REGISTER" or "UNIT.REGISTER.FIELD" -> value; sizes that depend on the atom
    are filled in by :func:`ask`. ``idle``: units that the operation does not enable. ``needs``: features of the
    configuration (keys of FEATURES) that the RTL needs and the engine does not check, as NVIDIA's C model does not."""

    engine: str
    mode: str
    precision: str
    registers: dict[str, int] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """``refusal`` is the message of the error, empty when the hardware has the operation."""

    refusal: str = ""

    @property
    def supported(self) -> bool:
        """True if the operation was accepted."""
        return not self.refusal


def ask(probe: Probe, config: Configuration) -> Answer:
    """Ask whether the hardware of ``config`` has the operation of ``probe``: its RTL, and the engine of the model."""
    try:
        for feature in probe.needs:
            config.require(feature, probe.engine.upper())
        prepare(probe, config)
    except NvdlaError as error:
        return Answer(str(error))
    return Answer()


def prepare(probe: Probe, config: Configuration) -> Machine:
    """A machine whose engine has accepted the operation; :meth:`Machine.step` runs it where it needs no other engine.

    Raises NvdlaError when the engine refuses.
    """
    if not _exists(probe, _machine(config)):
        missing = ", ".join(ENGINES[probe.engine].units)
        raise NvdlaError(f"{config.name} has no {probe.engine}: its register map has no {missing}")
    machine = written([probe], config)
    units = [unit for unit in ENGINES[probe.engine].units if unit not in probe.idle]
    for unit in units:
        if "D_OP_ENABLE" in machine.unit(unit).registers:
            _write(machine, f"{unit}.D_OP_ENABLE", 1)
    machine.engine(probe.engine).prepare({unit: machine.unit(unit).current for unit in units})
    return machine


def written(chain: Sequence[Probe], config: Configuration, more: Mapping[str, int] | None = None) -> Machine:
    """A machine with the registers of the probes, and of ``more``; nothing is enabled."""
    machine = _machine(config)
    for probe in chain:
        for name, value in (_base(probe, config) | probe.registers).items():
            _write(machine, name, value)
    for name, value in (more or {}).items():
        _write(machine, name, value)
    return machine


def _machine(config: Configuration) -> Machine:
    memory = AddressSpace()
    for name, base in (("data", DATA), ("weights", WEIGHTS), ("output", OUTPUT)):
        memory.map(name, Space.DRAM, base, REGION_BYTES)
    if config.cvsram:
        memory.map("cvsram", Space.CVSRAM, CVSRAM, REGION_BYTES)
    return Machine(config, memory)


def _exists(probe: Probe, machine: Machine) -> bool:
    return all(unit in machine.registers.units for unit in ENGINES[probe.engine].units)


def _write(machine: Machine, name: str, value: int) -> None:
    """A write through the bus of "UNIT.REGISTER" or of one field, "UNIT.REGISTER.FIELD"."""
    unit, register_name, *field_name = name.split(".")
    register = machine.registers.map.register(unit, register_name)
    if field_name:
        bits = register.fields[field_name[0]]
        kept = machine.registers.read_register(register) & ~(bits.mask << bits.low)
        value = kept | (value & bits.mask) << bits.low
    machine.registers.write_register(register, value & 0xFFFFFFFF)


def _base(probe: Probe, config: Configuration) -> dict[str, int]:
    """The registers of the plainest operation of the probe's engine and precision."""
    precision = PRECISIONS.index(probe.precision)
    line = SIDE * config.memory_atom
    strides = (line, line * SIDE)
    if probe.engine == "conv":
        return _convolution(precision, strides, config)
    return {
        "sdp": _sdp,
        "pdp": _pdp,
        "cdp": _cdp,
        "rubik": _rubik,
        "bdma": _bdma,
    }[probe.engine](precision, strides)


def _convolution(precision: int, strides: tuple[int, int], config: Configuration) -> dict[str, int]:
    """A 1x1 direct convolution with 16 kernels."""
    side, kernels, element = SIDE - 1, 16, 2 if precision else 1
    entries = entries_per_slice(CHANNELS * element, SIDE, config)
    result = {"CSC.D_ZERO_PADDING_VALUE": 0, "CACC.D_CLIP_CFG": 0}
    for unit in ("CDMA", "CSC"):
        result |= {f"{unit}.D_MISC_CFG.IN_PRECISION": precision, f"{unit}.D_BANK": 7 | 7 << 16}
        result[f"{unit}.D_ENTRY_PER_SLICE"] = entries - 1
    for unit in ENGINES["conv"].units:
        result[f"{unit}.D_MISC_CFG.PROC_PRECISION"] = precision
    return result | {
        "CDMA.D_DATAIN_SIZE_0": side | side << 16,
        "CDMA.D_DATAIN_SIZE_1": CHANNELS - 1,
        "CDMA.D_DATAIN_SIZE_EXT_0": side | side << 16,
        "CDMA.D_DAIN_RAM_TYPE": 1,
        "CDMA.D_DAIN_ADDR_LOW_0": DATA,
        "CDMA.D_LINE_STRIDE": strides[0],
        "CDMA.D_SURF_STRIDE": strides[1],
        "CDMA.D_WEIGHT_RAM_TYPE": 1,
        "CDMA.D_WEIGHT_ADDR_LOW": WEIGHTS,
        "CDMA.D_WEIGHT_SIZE_0": CHANNELS * element - 1,
        "CDMA.D_WEIGHT_SIZE_1": kernels - 1,
        "CDMA.D_WEIGHT_BYTES": CHANNELS * element * kernels,
        "CSC.D_DATAIN_SIZE_EXT_0": side | side << 16,
        "CSC.D_DATAIN_SIZE_EXT_1": CHANNELS - 1,
        "CSC.D_WEIGHT_SIZE_EXT_0": 0,
        "CSC.D_WEIGHT_SIZE_EXT_1": CHANNELS - 1 | kernels - 1 << 16,
        "CSC.D_DATAOUT_SIZE_0": side | side << 16,
        "CSC.D_DATAOUT_SIZE_1": kernels - 1,
        "CSC.D_RELEASE": side,
        "CACC.D_DATAOUT_SIZE_0": side | side << 16,
        "CACC.D_DATAOUT_SIZE_1": kernels - 1,
    }


def winograd(precision: int, out_side: int = 4) -> dict[str, int]:
    """Registers that turn the direct convolution into a 3x3 one in Winograd mode with ``out_side`` rows and columns."""
    side, kernels, element = out_side - 1, 16, 2 if precision else 1
    result = {f"{unit}.D_MISC_CFG.CONV_MODE": 1 for unit in ENGINES["conv"].units}
    return result | {
        "CDMA.D_WEIGHT_SIZE_0": 4 * 4 * CHANNELS * element - 1,
        "CDMA.D_WEIGHT_BYTES": 4 * 4 * CHANNELS * element * kernels,
        "CSC.D_WEIGHT_SIZE_EXT_0": 3 | 3 << 16,
        "CSC.D_DATAOUT_SIZE_0": side | side << 16,
        "CACC.D_DATAOUT_SIZE_0": side | side << 16,
    }


def image(pixel_format: int, channels: int, precision: int, side: int = SIDE) -> dict[str, int]:
    """Registers that turn the direct convolution into one on the pixels of an image, with 1x1 kernels."""
    return {
        "CDMA.D_DATAIN_FORMAT": 1 | pixel_format << 8,
        "CSC.D_DATAIN_FORMAT": 1,
        "CDMA.D_DATAIN_SIZE_1": channels - 1,
        "CDMA.D_LINE_STRIDE": side * 32,
        "CDMA.D_DAIN_ADDR_LOW_1": DATA + REGION_BYTES // 2,
        "CDMA.D_LINE_UV_STRIDE": side * 32,
        "CDMA.D_WEIGHT_SIZE_0": channels * (2 if precision else 1) - 1,
        "CDMA.D_WEIGHT_BYTES": 128,
        "CSC.D_DATAIN_SIZE_EXT_1": channels - 1,
        "CSC.D_WEIGHT_SIZE_EXT_1": channels - 1 | 15 << 16,
    }


def _sdp(precision: int, strides: tuple[int, int]) -> dict[str, int]:
    """Memory to memory, every block bypassed."""
    result: dict[str, int] = {}
    for unit in ("SDP", "SDP_RDMA"):
        result |= {f"{unit}.D_DATA_CUBE_WIDTH": SIDE - 1, f"{unit}.D_DATA_CUBE_HEIGHT": SIDE - 1}
        result[f"{unit}.D_DATA_CUBE_CHANNEL"] = CHANNELS - 1
    return result | {
        "SDP_RDMA.D_SRC_BASE_ADDR_LOW": DATA,
        "SDP_RDMA.D_SRC_DMA_CFG": 1,
        "SDP_RDMA.D_SRC_LINE_STRIDE": strides[0],
        "SDP_RDMA.D_SRC_SURFACE_STRIDE": strides[1],
        "SDP_RDMA.D_BRDMA_CFG": 1,
        "SDP_RDMA.D_NRDMA_CFG": 1,
        "SDP_RDMA.D_ERDMA_CFG": 1,
        "SDP_RDMA.D_FEATURE_MODE_CFG": precision << 2 | precision << 4 | precision << 6,
        "SDP.D_DATA_FORMAT": precision | precision << 2,
        "SDP.D_DST_BASE_ADDR_LOW": OUTPUT,
        "SDP.D_DST_DMA_CFG": 1,
        "SDP.D_DST_LINE_STRIDE": strides[0],
        "SDP.D_DST_SURFACE_STRIDE": strides[1],
        "SDP.D_CVT_SCALE": 1,
        "SDP.D_DP_BS_CFG": 1,
        "SDP.D_DP_BN_CFG": 1,
        "SDP.D_DP_EW_CFG": 1,
    }


def _pdp(precision: int, strides: tuple[int, int]) -> dict[str, int]:
    """2x2 maximum pooling with stride 2, memory to memory."""
    result: dict[str, int] = {}
    for unit in ("PDP", "PDP_RDMA"):
        result |= {f"{unit}.D_DATA_CUBE_IN_WIDTH": SIDE - 1, f"{unit}.D_DATA_CUBE_IN_HEIGHT": SIDE - 1}
        result |= {f"{unit}.D_DATA_CUBE_IN_CHANNEL": CHANNELS - 1, f"{unit}.D_DATA_FORMAT": precision}
    return result | {
        "PDP.D_DATA_CUBE_OUT_WIDTH": SIDE // 2 - 1,
        "PDP.D_DATA_CUBE_OUT_HEIGHT": SIDE // 2 - 1,
        "PDP.D_DATA_CUBE_OUT_CHANNEL": CHANNELS - 1,
        "PDP.D_OPERATION_MODE_CFG": 1 | 1 << 4,
        "PDP.D_POOLING_KERNEL_CFG": 1 | 1 << 8 | 1 << 16 | 1 << 20,
        "PDP.D_POOLING_PADDING_CFG": 0,
        "PDP.D_RECIP_KERNEL_WIDTH": 1 << 15,
        "PDP.D_RECIP_KERNEL_HEIGHT": 1 << 15,
        "PDP.D_DST_BASE_ADDR_LOW": OUTPUT,
        "PDP.D_DST_LINE_STRIDE": strides[0] // 2,
        "PDP.D_DST_SURFACE_STRIDE": strides[1] // 4,
        "PDP.D_DST_RAM_CFG": 1,
        "PDP_RDMA.D_SRC_BASE_ADDR_LOW": DATA,
        "PDP_RDMA.D_SRC_LINE_STRIDE": strides[0],
        "PDP_RDMA.D_SRC_SURFACE_STRIDE": strides[1],
        "PDP_RDMA.D_SRC_RAM_CFG": 1,
        "PDP_RDMA.D_POOLING_KERNEL_CFG": 1 | 1 << 4,
    }


def _cdp(precision: int, strides: tuple[int, int]) -> dict[str, int]:
    """Normalization over five channels."""
    return {
        "CDP_RDMA.D_DATA_CUBE_WIDTH": SIDE - 1,
        "CDP_RDMA.D_DATA_CUBE_HEIGHT": SIDE - 1,
        "CDP_RDMA.D_DATA_CUBE_CHANNEL": CHANNELS - 1,
        "CDP_RDMA.D_DATA_FORMAT": precision,
        "CDP_RDMA.D_SRC_BASE_ADDR_LOW": DATA,
        "CDP_RDMA.D_SRC_LINE_STRIDE": strides[0],
        "CDP_RDMA.D_SRC_SURFACE_STRIDE": strides[1],
        "CDP_RDMA.D_SRC_DMA_CFG": 1,
        "CDP.D_DATA_FORMAT": precision,
        "CDP.D_DST_BASE_ADDR_LOW": OUTPUT,
        "CDP.D_DST_LINE_STRIDE": strides[0],
        "CDP.D_DST_SURFACE_STRIDE": strides[1],
        "CDP.D_DST_DMA_CFG": 1,
        "CDP.D_LRN_CFG": 1,
        "CDP.D_DATIN_SCALE": 1,
        "CDP.D_DATOUT_SCALE": 1,
    }


def _rubik(precision: int, strides: tuple[int, int]) -> dict[str, int]:
    """Surfaces to planes and back; the mode is the probe's."""
    planar = 2 * 64 * SIDE
    return {
        "RBK.D_MISC_CFG.IN_PRECISION": precision,
        "RBK.D_DAIN_RAM_TYPE": 1,
        "RBK.D_DAOUT_RAM_TYPE": 1,
        "RBK.D_DATAIN_SIZE_0": SIDE - 1 | SIDE - 1 << 16,
        "RBK.D_DATAIN_SIZE_1": CHANNELS - 1,
        "RBK.D_DATAOUT_SIZE_1": CHANNELS - 1,
        "RBK.D_DAIN_ADDR_LOW": DATA,
        "RBK.D_DAOUT_ADDR_LOW": OUTPUT,
        "RBK.D_DAIN_LINE_STRIDE": strides[0],
        "RBK.D_DAIN_SURF_STRIDE": strides[1],
        "RBK.D_DAIN_PLANAR_STRIDE": planar,
        "RBK.D_DAOUT_LINE_STRIDE": strides[0],
        "RBK.D_DAOUT_SURF_STRIDE": strides[1],
        "RBK.D_DAOUT_PLANAR_STRIDE": planar,
        "RBK.D_CONTRACT_STRIDE_1": strides[0],
    }


def _bdma(precision: int, strides: tuple[int, int]) -> dict[str, int]:
    """One copy of a line, DRAM to DRAM."""
    return {
        "BDMA.CFG_SRC_ADDR_LOW": DATA,
        "BDMA.CFG_DST_ADDR_LOW": OUTPUT,
        "BDMA.CFG_CMD": 3,
        "BDMA.CFG_LINE": 7,
        "BDMA.CFG_OP": 1,
        "BDMA.CFG_LAUNCH0": 1,
    }


def probes() -> Iterator[Probe]:
    """Every mode of every engine in every precision."""
    for index, precision in enumerate(PRECISIONS):
        yield from _convolution_probes(precision, index)
        yield from _sdp_probes(precision, index)
        for mode, method in (("average", 0), ("maximum", 1), ("minimum", 2)):
            yield Probe("pdp", f"{mode} pooling", precision, {"PDP.D_OPERATION_MODE_CFG.POOLING_METHOD": method})
        yield Probe("pdp", "on the fly after the SDP", precision, {"PDP.D_OPERATION_MODE_CFG": 1}, ("PDP_RDMA",))
        yield Probe("pdp", "split width", precision, _SPLIT_WIDTH)
        yield Probe("cdp", "local response normalization", precision)
        yield Probe("cdp", "lookup table alone", precision, {"CDP.D_FUNC_BYPASS": 3})
        for mode, value in (("contract", 0), ("split", 1), ("merge", 2)):
            yield Probe("rubik", mode, precision, {"RBK.D_MISC_CFG.RUBIK_MODE": value})
    yield Probe("bdma", "DRAM to DRAM", "int8")
    yield Probe("bdma", "DRAM to CVSRAM", "int8", {"BDMA.CFG_CMD": 1, "BDMA.CFG_DST_ADDR_LOW": CVSRAM})
    yield Probe("bdma", "CVSRAM to DRAM", "int8", {"BDMA.CFG_CMD": 2, "BDMA.CFG_SRC_ADDR_LOW": CVSRAM})


_HALF = SIDE // 2 - 1
_SPLIT_WIDTH = {
    "PDP.D_OPERATION_MODE_CFG.SPLIT_NUM": 1,
    "PDP_RDMA.D_OPERATION_MODE_CFG.SPLIT_NUM": 1,
    "PDP.D_PARTIAL_WIDTH_IN": _HALF | _HALF << 10,
    "PDP_RDMA.D_PARTIAL_WIDTH_IN": _HALF | _HALF << 10,
    "PDP.D_PARTIAL_WIDTH_OUT": SIDE // 4 - 1 | SIDE // 4 - 1 << 10,
}


def _convolution_probes(precision: str, index: int) -> Iterator[Probe]:
    from nvdla.loadable.enums import NAMES

    yield Probe("conv", "direct", precision)
    yield Probe("conv", "Winograd", precision, winograd(index))
    compressed = {f"{unit}.D_WEIGHT_FORMAT": 1 for unit in ("CDMA", "CSC")}
    compressed |= {"CDMA.D_WMB_ADDR_LOW": WEIGHTS + 0x8000, "CDMA.D_WGS_ADDR_LOW": WEIGHTS + 0xC000}
    for unit in ("CDMA", "CSC"):  # the last bank is the mask's
        compressed |= {f"{unit}.D_WMB_BYTES": 128, f"{unit}.D_BANK": 7 | 6 << 16}
    yield Probe("conv", "compressed weights", precision, compressed)
    batch = {f"{unit}.D_BATCH_NUMBER": 1 for unit in ("CDMA", "CSC", "CACC")}
    yield Probe("conv", "hardware batch", precision, batch | {"CDMA.D_BATCH_STRIDE": 8192})
    pixels = ("T_A8B8G8R8", "T_A16B16G16R16", "T_A16B16G16R16_F")[index]
    yield Probe("conv", "image input", precision, image(NAMES.index(pixels), 4, index))
    yield Probe("conv", "input in CVSRAM", precision, {"CDMA.D_DAIN_RAM_TYPE": 0, "CDMA.D_DAIN_ADDR_LOW_0": CVSRAM})


def _sdp_probes(precision: str, index: int) -> Iterator[Probe]:
    """Blocks with an operand from a register: 0 ALU (sum), 1 multiplier, both on."""
    flying = {"SDP.D_FEATURE_MODE_CFG.FLYING_MODE": 1}
    idle = ("SDP_RDMA",)
    y = ("sdp_ew_throughput",)
    yield Probe("sdp", "memory to memory", precision)
    yield Probe("sdp", "on the fly after the convolution", precision, flying, idle)
    yield Probe(
        "sdp", "on the fly to the PDP", precision, {"SDP.D_FEATURE_MODE_CFG.OUTPUT_DST": 1}, (), ("pdp_throughput",)
    )
    for mode, name in (("X1", "BS"), ("X2", "BN")):
        registers = {f"SDP.D_DP_{name}_CFG": 2 << 2}
        needs = (f"sdp_{name.lower()}_throughput",)
        yield Probe("sdp", f"{mode} (bias, scale, ReLU, PReLU)", precision, registers, (), needs)
    yield Probe("sdp", "Y (element-wise)", precision, {"SDP.D_DP_EW_CFG": 2 << 2 | 1 << 6}, (), y)
    yield Probe("sdp", "Y lookup tables", precision, {"SDP.D_DP_EW_CFG": 1 << 1 | 1 << 4}, (), (*y, "sdp_lut"))
    yield Probe("sdp", "Y compares (EQL)", precision, {"SDP.D_DP_EW_CFG": 3 << 2 | 1 << 4 | 1 << 6}, (), y)
    batch = {"SDP.D_FEATURE_MODE_CFG.BATCH_NUMBER": 1, "SDP.D_DST_BATCH_STRIDE": 16384}
    yield Probe("sdp", "hardware batch", precision, flying | batch, idle)
    order = {"SDP.D_FEATURE_MODE_CFG.WINOGRAD": 1}
    yield Probe("sdp", "Winograd order after the convolution", precision, flying | order, idle)
    others = [other for other in range(3) if other != index]
    for other in others:
        converts = {"SDP.D_DATA_FORMAT": index | other << 2, "SDP_RDMA.D_FEATURE_MODE_CFG": 5 * index << 2 | other << 6}
        line = {"SDP.D_DST_SURFACE_STRIDE": 8 * SIDE * 32}
        yield Probe("sdp", f"to {PRECISIONS[other]} in memory", precision, converts | line)
    yield Probe("sdp", "output in CVSRAM", precision, {"SDP.D_DST_DMA_CFG": 0, "SDP.D_DST_BASE_ADDR_LOW": CVSRAM})
