"""docs/support.md: what is supported, by asking the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvdla.emulator.hardware.configuration import Configuration, configuration, configurations
from nvdla.emulator.hardware.support import Probe, ask, probes, winograd
from nvdla.emulator.memory.address_space import Region, Space
from nvdla.emulator.memory.linker import AddressWindow
from nvdla.errors import NvdlaError
from nvdla.loadable.model import AddressEntry
from nvdla.util.precision import PRECISIONS

Change = Callable[[Any], None]
"""Edit of an operation of the firmware layer, in place."""

ENGINE_TITLES = {
    "conv": "Convolution (CDMA, CBUF, CSC, CMAC, CACC)",
    "sdp": "SDP, the single data processor",
    "pdp": "PDP, pooling",
    "cdp": "CDP, local response normalization",
    "rubik": "Rubik, reshaping",
    "bdma": "BDMA, copies between memories",
}

INTRODUCTION = """# What is supported

This page lists the configurations that support each feature: *all*, or their names. It was made by
`python tools/pages/supported.py`; do not edit. For each configuration, feature and precision a small operation was set
up in the registers, and its engine accepted or refused it. The messages below each table are those that users see.

The tables state what the RTL has. NVIDIA's C model also runs SDP stages and lookup tables that the RTL of a
configuration lacks, and so does the register model (`trace replay`, `csb replay`, `serve --registers`); loadables that
use them are [refused](#refusals-of-the-firmware). Features that the toolkit does not model are [at the
end](#not-modeled)."""


@dataclass(frozen=True)
class Limit:
    """Something that the hardware does and this model does not, or that no hardware does. ``probe``: an operation that
    shows it; ``refused``: whether it is refused."""

    what: str
    how: str
    probe: Probe | None = None
    refused: bool = True


def limits() -> Iterator[Limit]:
    """Features that are not modeled, and the behavior instead."""
    memory_mode = {"SDP.D_FEATURE_MODE_CFG.WINOGRAD": 1}
    yield Limit(
        "SDP: Winograd order of a cube that comes from memory",
        "refused; Winograd order comes from the convolution on the fly",
        Probe("sdp", "Winograd order from memory", "int8", memory_mode),
    )
    yield Limit(
        "Convolution: Winograd outputs whose width or height is not a multiple of 4",
        "refused: the output consists of 4 x 4 tiles; use a larger output and ignore the rest",
        Probe("conv", "Winograd, output of 5 x 5", "int8", winograd(0, 5)),
    )
    yield Limit(
        "CDMA: images in block-linear order (PIXEL_MAPPING 1)",
        "refused; no configuration has it",
        Probe("conv", "block-linear image", "int8", {"CDMA.D_DATAIN_FORMAT": 1 | 12 << 8 | 1 << 16}),
    )
    yield Limit(
        "PDP: the capacity of its line buffer",
        "not checked: rows that are too wide for the line buffer of the hardware are pooled",
        Probe("pdp", "a row of 4096 columns", "int8", _WIDE_ROW),
        refused=False,
    )
    yield Limit(
        "Time",
        "an operation completes when it starts, so counters of cycles and stalls stay 0. "
        "`nvdla cycles` has a separate cycle model",
    )
    yield Limit(
        "Simultaneous memory accesses of two engines",
        "one chain of engines runs after the other, in the order of the firmware",
    )
    yield Limit("CPU operations other than softmax and power", "refused: NVIDIA's EMU task has only these two")


_WIDE = 4096
_WIDE_ROW = {
    "PDP.D_DATA_CUBE_IN_WIDTH": _WIDE - 1,
    "PDP_RDMA.D_DATA_CUBE_IN_WIDTH": _WIDE - 1,
    "PDP.D_DATA_CUBE_OUT_WIDTH": _WIDE // 2 - 1,
    "PDP.D_DATA_CUBE_IN_HEIGHT": 1,
    "PDP_RDMA.D_DATA_CUBE_IN_HEIGHT": 1,
    "PDP.D_DATA_CUBE_OUT_HEIGHT": 0,
    "PDP.D_DATA_CUBE_IN_CHANNEL": 7,
    "PDP_RDMA.D_DATA_CUBE_IN_CHANNEL": 7,
    "PDP.D_DST_LINE_STRIDE": _WIDE * 16,
    "PDP_RDMA.D_SRC_LINE_STRIDE": _WIDE * 32,
}


def support_page() -> str:
    """docs/support.md."""
    parts = [INTRODUCTION, "", *configuration_table()]
    asked = list(probes())
    for engine, title in ENGINE_TITLES.items():
        parts += ["", f"## {title}", ""]
        parts += _engine_table([probe for probe in asked if probe.engine == engine])
        parts += ["", *pixel_formats()] if engine == "conv" else []
    parts += ["", *firmware_section()]
    parts += ["", "## Not modeled", "", "| feature | behavior |", "|---|---|"]
    parts += [f"| {limit.what} | {limit.how} |" for limit in limits()]
    return "\n".join([*parts, "", "Next: [configurations and their cost](silicon.md), [numerics](numerics.md)."]) + "\n"


def configuration_table() -> list[str]:
    """The configurations and their sizes."""
    lines = [
        "| configuration | precisions | MACs | atom | CBUF | CVSRAM | address bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for config in configurations().values():
        macs = f"{config.mac_atomic_c} x {config.mac_atomic_k}"
        cbuf = f"{config.cbuf_banks} x {config.cbuf_bank_bytes // 1024} KiB"
        cells = (config.name, ", ".join(config.precisions), macs, f"{config.memory_atom} B", cbuf)
        lines.append(f"| {' | '.join(cells)} | {_mark(config.cvsram)} | {config.address_bits} |")
    return lines


def _mark(answer: bool) -> str:
    return "yes" if answer else "-"


def _having(answers: list[bool]) -> str:
    """Names of the configurations whose answer is yes."""
    names = [name for name, answer in zip(configurations(), answers, strict=True) if answer]
    return "all" if all(answers) else ", ".join(names) or "none"


def _engine_table(asked: list[Probe]) -> list[str]:
    """One row per mode, then the refusals. Precisions with the same answers in all rows share a column."""
    rows: dict[str, dict[str, str]] = {}
    refusals: list[str] = []
    for probe in asked:
        answers = [ask(probe, config) for config in configurations().values()]
        precision = "any precision" if probe.engine == "bdma" else probe.precision
        rows.setdefault(probe.mode, {})[precision] = _having([answer.supported for answer in answers])
        refusals += [answer.refusal for answer in answers if answer.refusal][:1]
    columns: dict[tuple[str, ...], list[str]] = {}
    for precision in dict.fromkeys(precision for row in rows.values() for precision in row):
        columns.setdefault(tuple(row.get(precision, "") for row in rows.values()), []).append(precision)
    lines = [
        f"| mode | {' | '.join(', '.join(names) for names in columns.values())} |",
        f"|---|{'---|' * len(columns)}",
    ]
    lines += [f"| {mode} | {' | '.join(cells)} |" for mode, *cells in zip(rows, *columns, strict=True)]
    return [*lines, *([""] if refusals else []), *(f"* `{message}`" for message in dict.fromkeys(refusals))]


def pixel_formats() -> list[str]:
    """Image input by pixel format."""
    from nvdla.emulator.hardware.support import image
    from nvdla.loadable.enums import PIXEL_FORMATS

    lines = ["### Pixel formats of image input", ""]
    lines += ["| input precision | formats that nv_full accepts | accepted on nv_small |", "|---|---|---|"]
    for index, precision in enumerate(PRECISIONS):
        taken = {}
        for name in ("nv_full", "nv_small"):
            config = configuration(name)
            taken[name] = [
                form.name
                for value, form in enumerate(PIXEL_FORMATS)
                if form.floating == (precision == "fp16")
                and ask(Probe("conv", form.name, precision, image(value, form.channels, index)), config).supported
            ]
        small = "all" if taken["nv_small"] == taken["nv_full"] else ", ".join(taken["nv_small"]) or "none"
        lines.append(f"| {precision} | {', '.join(taken['nv_full'])} | {small} |")
    return lines


def firmware_section() -> list[str]:
    """Features of loadables that the firmware layer refuses."""
    lines = ["## Refusals of the firmware", "", "| a loadable with | runs on |", "|---|---|"]
    refusals = []
    for what, change in FIRMWARE_CASES.items():
        answers = [firmware_refusal(config, change) for config in configurations().values()]
        lines.append(f"| {what} | {_having([not answer for answer in answers])} |")
        refusals += [answer for answer in answers if answer][:1]
    return [*lines, "", *(f"* `{message}`" for message in dict.fromkeys(refusals))]


def _with_y(operation: Any) -> None:
    stage = operation.op.y_op
    stage.enable, stage.type, stage.mode, stage.alu_type = 1, 2, 0, 2


def _with_lut(operation: Any) -> None:
    from nvdla.loadable.descriptors import NEW

    operation.op.lut_index, operation.lut = 0, NEW.LutParam()


def _with_cvsram(operation: Any) -> None:
    operation.surface.dst_data.type = 1


def _with(precision: int) -> Change:
    def change(operation: Any) -> None:
        operation.op.src_precision = operation.op.dst_precision = precision

    return change


FIRMWARE_CASES = {
    "an SDP operation in int8": lambda operation: None,
    "an SDP operation in int16": _with(1),
    "an SDP operation in fp16": _with(2),
    "a Y (element-wise) stage in its SDP": _with_y,
    "a lookup table in its SDP": _with_lut,
    "a surface in CVSRAM": _with_cvsram,
}


def firmware_refusal(config: Configuration, change: Change) -> str:
    """The message with which the firmware layer refuses an SDP copy that ``change`` has edited; empty: it takes it."""
    from nvdla.emulator.firmware.driver import driver
    from nvdla.emulator.firmware.operation import FirmwareOperation
    from nvdla.loadable.descriptors import NEW
    from nvdla.loadable.descriptors.enums import OpType

    op, surface = NEW.SdpOp(lut_index=-1, batch_num=1), NEW.SdpSurface()
    for cube in (surface.src_data, surface.dst_data):
        cube.width = cube.height = 1
        cube.channel = cube.size = cube.line_stride = cube.surf_stride = config.memory_atom
    memory = Region("memory", Space.DRAM, 0x80000000, np.zeros(1 << 16, np.uint8))
    addresses = [AddressWindow(0, AddressEntry(0, 0, 0, memory.size), memory, memory.base, memory.size)]
    operation = FirmwareOperation(0, 0, 0, OpType.SDP, op, surface, config, addresses)
    change(operation)
    try:
        driver(OpType.SDP).check(operation)
    except NvdlaError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(support_page(), end="")
