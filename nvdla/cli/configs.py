"""``nvdla configs``: the hardware configurations, what they have, their area and power, and FPGAs that they fit."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from nvdla.cli.output import add_format_options, print_document, print_table, say
from nvdla.emulator.hardware.configuration import UNITS, configuration, configurations, proof, proof_lines
from nvdla.errors import FormatError
from nvdla.util.escaping import Document

if TYPE_CHECKING:
    from nvdla.emulator.hardware.configuration import Configuration

SILICON = {
    "area": {"mm2_28nm": "mm2_28nm", "mm2_16nm": "mm2_16nm"},
    "power": {"mw_peak": "mW_peak", "mw_average": "mW_average"},
}  # fmt: skip
"""Columns of an estimate for each option, by key, with their headings."""
HELP = """List the hardware configurations: precisions, MAC array, convolution buffer, optional units.

  nvdla configs                            all of them
  nvdla configs --silicon                  area and power by the fit of NVIDIA's table, with the table
  nvdla configs nv_small my.yaml --fpga    FPGA boards, by public reports"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("configuration", nargs="*", help="names or .yaml files (default: all built-in configurations)")
    parser.add_argument("--silicon", action="store_true", help="print area and power (28 and 16 nm) with their source")
    parser.add_argument(
        "--fpga",
        action="store_true",
        help="print whether the configurations fit on FPGA boards, according to public reports",
    )
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    configs = [_configuration(name) for name in args.configuration] or list(configurations().values())
    proofs = [proof(config) for config in configs]
    document: Document = {"configurations": [vars(config) for config in configs], "proof": proofs}
    if args.silicon:
        document["silicon"] = silicon_of(configs)
    if args.fpga:
        document["fpga"] = _fpga(configs)
    if print_document(document, args):
        return 0
    if args.silicon:
        print_silicon(document["silicon"])
    if args.fpga:
        _print_fpga(document["fpga"])
    if not (args.silicon or args.fpga):
        unproven = [[name for name, basis in features["results"].items() if basis is None] for features in proofs]
        rows = [_row(config) | {"unproven": ", ".join(names)} for config, names in zip(configs, unproven, strict=True)]
        print_table("configurations", rows)
        if args.configuration:
            print_table("compared with", [row for features in proofs for row in _proof_rows(features)])
            for line in [line for config in configs for line in proof_lines(config, ("results",))]:
                say(f"Note: {line}.")
    return 0


def _configuration(name: str) -> Configuration:
    """A configuration. Raises FormatError for the name of a board."""
    from nvdla.analysis.silicon import facts

    if any(name.lower() == row["board"].lower() for row in facts()["boards"]):
        known = ", ".join(configurations())
        raise FormatError(
            f"{name}: must be a configuration ({known}), got a board. 'nvdla configs --fpga' lists boards."
        )
    return configuration(name)


def _proof_rows(features: Document) -> list[Document]:
    """One row per feature."""
    return [
        {
            "configuration": features["configuration"],
            "feature": feature,
            "results": basis or "extrapolated",
            "cycles": features["cycles"][feature] or "extrapolated",
        }
        for feature, basis in features["results"].items()
    ]


def _row(config: Configuration) -> Document:
    return {
        "name": config.name,
        "precisions": " ".join(config.precisions),
        "atom": config.memory_atom,
        "MACs": f"{config.mac_atomic_c}x{config.mac_atomic_k}",
        "CBUF KiB": config.cbuf_banks * config.cbuf_bank_bytes // 1024,
        "banks": config.cbuf_banks,
        "DRAM bits": config.dram_width_bits,
        "has": ", ".join(word for key, word in UNITS.items() if getattr(config, key)),
    }


def add_silicon_options(parser: argparse.ArgumentParser) -> None:
    """--area and --power."""
    parser.add_argument(
        "--area", action="store_true", help="also print the area in mm2 (28 and 16 nm), by a fit of NVIDIA's table"
    )
    parser.add_argument(
        "--power", action="store_true", help="also print the power in mW (16 nm), by a fit of NVIDIA's table"
    )


def silicon_of(configs: Sequence[Configuration]) -> Document:
    """Return area and power of configurations, and the table that they are fitted to."""
    from nvdla.analysis.silicon import facts, silicon, silicon_notes

    return {"estimates": [silicon(config) for config in configs], "table": facts()["table"], "notes": silicon_notes()}


def print_silicon(document: Document, hidden: Collection[str] = ()) -> None:
    """Print area and power, without the ``hidden`` columns, and their source."""
    columns = ("configuration", "macs", "cbuf_kib", "mm2_28nm", "mm2_16nm", "mw_peak", "mw_average", "basis")
    shown = [name for name in columns if name not in hidden]
    print_table("area and power, estimated", document["estimates"], shown)
    print_table("NVIDIA's table (ResNet-50, 1 GHz, int8)", document["table"]["rows"])
    for line in document["notes"]:
        say(f"Note: {line}.")
    for estimate in document["estimates"]:
        if estimate["refused"]:
            say(f"Note: {estimate['configuration']}: no estimate: {estimate['refused']}.")


def _fpga(configs: list[Configuration]) -> Document:
    from nvdla.analysis.silicon import facts, fpga_verdicts

    verdicts = [verdict for config in configs for verdict in fpga_verdicts(config)]
    names = {config.name for config in configs}
    reports = [report for report in facts()["fpga_reports"] if report["configuration"] in names]
    return {"verdicts": verdicts, "reports": reports, "boards": facts()["boards"]}


def _print_fpga(document: Document) -> None:
    """The answers come last: a terminal shows the end of the output."""
    print_table("public reports", document["reports"])
    print_table("boards", document["boards"])
    columns = ("configuration", "board", "device", "verdict", "reason", "source")
    rows: list[Document] = []
    for _, verdicts in groupby(document["verdicts"], key=itemgetter("configuration")):
        same = list(verdicts)
        alike = len({row["reason"] for row in same}) == 1  # no report of this configuration
        rows += [{**same[0], "board": "every board", "device": None}] if alike else same
    print_table("FPGA boards", rows, columns, ("source",))
