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
    if print_document({"configurations": [vars(config) for config in found]}, args):
        return 0
    rows = [
        {
            "name": config.name,
            "precisions": " ".join(config.precisions),
            "atom": config.memory_atom,
            "MACs": f"{config.mac_atomic_c} x {config.mac_atomic_k}",
            "CBUF KiB": config.cbuf_banks * config.cbuf_bank_bytes // 1024,
            "banks": config.cbuf_banks,
            "DRAM bits": config.dram_width_bits,
            "has": ", ".join(word for key, word in FEATURES.items() if getattr(config, key)),
        }
        for config in found
    ]
    print_table("configurations", rows)
    return 0
