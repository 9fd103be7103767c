"""``nvdla configs``: the hardware configurations and what they have."""

from __future__ import annotations

import argparse

from nvdla.cli.output import add_format_options, print_document, print_table
from nvdla.emulator.hardware.configuration import configurations

HELP = "List the hardware configurations: precisions, MAC array, convolution buffer, optional units."

FEATURES = {
    "sdp_lut": "LUT",
    "bdma": "BDMA",
    "rubik": "Rubik",
    "winograd": "Winograd",
    "weight_compression": "compressed weights",
    "batch": "hardware batch",
    "cvsram": "CVSRAM",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add_format_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    found = configurations().values()
    if print_document({"configurations": [vars(each) for each in found]}, args):
        return 0
    rows = [
        {
            "name": each.name,
            "precisions": " ".join(each.precisions),
            "atom": each.memory_atom,
            "MACs": f"{each.mac_atomic_c} x {each.mac_atomic_k}",
            "CBUF KiB": each.cbuf_banks * each.cbuf_bank_bytes // 1024,
            "banks": each.cbuf_banks,
            "DRAM bits": each.dram_width_bits,
            "has": ", ".join(word for key, word in FEATURES.items() if getattr(each, key)),
        }
        for each in found
    ]
    print_table("configurations", rows)
    return 0
